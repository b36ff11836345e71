//! Whether a queue's interface is up, as events: what looks and packets say of it, one after the other.
//!
//! Packets wait in a block before libpcap shows them. Those that came before an interface went are shown after it was seen to be gone,
//! and do not say that it is back.

use crate::Event;

/// See the module.
#[derive(Debug)]
pub(super) struct Presence {
    is_up: bool,
    /// It was removed, and no other one was found since.
    is_gone: bool,
    /// When it was found down or gone, on the system clock.
    down_ns: i64,
}

impl Presence {
    /// Of an interface that is up.
    pub(super) fn new() -> Self {
        Self {
            is_up: true,
            is_gone: false,
            down_ns: i64::MIN,
        }
    }

    /// Whether it was up at the last look.
    pub(super) fn is_up(&self) -> bool {
        self.is_up
    }

    /// A look found the interface, up or down, at `now_ns` on the system clock.
    pub(super) fn found(&mut self, is_up: bool, now_ns: i64) -> Option<Event> {
        self.is_gone = false;
        if std::mem::replace(&mut self.is_up, is_up) == is_up {
            return None;
        }
        if is_up {
            return Some(Event::InterfaceUp(0));
        }
        self.down_ns = now_ns;
        Some(Event::InterfaceDown(0))
    }

    /// A look found it removed, at `now_ns` on the system clock.
    pub(super) fn gone(&mut self, now_ns: i64) -> Event {
        (self.is_up, self.is_gone, self.down_ns) = (false, true, now_ns);
        Event::InterfaceGone(0)
    }

    /// Packets came, the newest with this stamp.
    pub(super) fn frames(&mut self, newest_ns: i64) -> Option<Event> {
        if self.is_gone || newest_ns <= self.down_ns {
            return None;
        }
        self.found(true, newest_ns)
    }

    /// The system clock was set back to `now_ns`.
    pub(super) fn on_clock_set_back(&mut self, now_ns: i64) {
        self.down_ns = self.down_ns.min(now_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_that_waited_are_no_return() {
        let mut presence = Presence::new();
        assert_eq!(presence.frames(10), None);
        assert_eq!(presence.found(false, 100), Some(Event::InterfaceDown(0)));
        assert_eq!(presence.found(false, 105), None);
        assert_eq!(presence.frames(99), None);
        assert_eq!(presence.frames(101), Some(Event::InterfaceUp(0)));
        assert_eq!(presence.gone(200), Event::InterfaceGone(0));
        // Also where the clock was set back between the stamp and the look.
        for stamp_ns in [199, 201] {
            assert_eq!(presence.frames(stamp_ns), None);
        }
        // Another one is there, but down; what waited may still come.
        assert_eq!(presence.found(false, 300), None);
        assert_eq!(presence.frames(200), None);
        assert_eq!(presence.found(true, 310), Some(Event::InterfaceUp(0)));
    }

    #[test]
    fn a_clock_that_was_set_back_hides_no_return() {
        let mut presence = Presence::new();
        presence.found(false, 1000);
        presence.on_clock_set_back(500);
        assert_eq!(presence.frames(501), Some(Event::InterfaceUp(0)));
    }
}
