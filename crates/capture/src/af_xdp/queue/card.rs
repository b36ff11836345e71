//! Packets that the card had no room for, which no program sees: in copy mode, where the interface's counter tells.
//!
//! In zero-copy mode drivers count those that found no chunk in different places, or not at all, so it is unknown.

use crate::af_packet::{InterfaceLosses, NicLosses};

/// How old an answer may be, ns: asking takes three system calls, and on some drivers a lock.
const AGE_NS_MAX: i64 = 20_000_000;

/// See the module. The counter is the whole interface's, so one queue has it.
#[derive(Debug)]
pub(super) struct Card {
    losses: Option<NicLosses>,
    /// The interface is ours: what it loses meanwhile counts.
    is_ours: bool,
    /// When it was asked last, on the system's clock.
    pub(super) asked_ns: i64,
    /// What it had lost by then, and the kernel's input queues.
    pub(super) lost: InterfaceLosses,
}

impl Card {
    /// Counts from now on.
    pub(super) fn new(index: u32) -> Self {
        Self {
            losses: NicLosses::watch(index.cast_signed()),
            is_ours: true,
            asked_ns: i64::MIN,
            lost: InterfaceLosses::default(),
        }
    }

    /// Asks for the counter, unless that was done just now. `is_last`: in any case.
    pub(super) fn ask(&mut self, now_ns: i64, is_last: bool) {
        let age_ns = now_ns.checked_sub(self.asked_ns);
        let is_fresh = age_ns.is_some_and(|age_ns| (0..AGE_NS_MAX).contains(&age_ns));
        if is_fresh && !is_last {
            return;
        }
        self.asked_ns = now_ns;
        if self.is_ours {
            self.lost = self
                .losses
                .as_mut()
                .map(NicLosses::read)
                .unwrap_or_default();
        }
    }

    /// The interface is about to be gone, or the host's.
    pub(super) fn leave(&mut self, now_ns: i64) {
        self.ask(now_ns, true);
        self.is_ours = false;
    }

    /// Another interface, or the same one again, is ours.
    pub(super) fn follow(&mut self, index: u32) {
        self.is_ours = true;
        if let Some(losses) = &mut self.losses {
            losses.follow(index.cast_signed());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_asked_now_and_then_and_at_the_end() {
        // The loopback interface is the first of every network namespace, and loses nothing.
        let mut card = Card::new(1);
        if card.losses.is_none() {
            eprintln!("SKIP: the kernel does not tell what interface 1 lost");
            return;
        }
        let start_ns = 1_000_000_000;
        let asked = [
            (start_ns, false, start_ns),
            (start_ns + AGE_NS_MAX - 1, false, start_ns),
            (start_ns + AGE_NS_MAX, false, start_ns + AGE_NS_MAX),
            (start_ns + AGE_NS_MAX + 1, true, start_ns + AGE_NS_MAX + 1),
            // The clock was set back.
            (start_ns, false, start_ns),
        ];
        for (now_ns, is_last, asked_ns) in asked {
            card.ask(now_ns, is_last);
            assert_eq!((card.asked_ns, card.lost.nic), (asked_ns, Some(0)));
        }
        card.lost.nic = Some(7);
        card.is_ours = false;
        card.ask(start_ns, true);
        assert_eq!(card.lost.nic, Some(7), "the host's");
        card.follow(1);
        card.ask(start_ns, true);
        assert_eq!(card.lost.nic, Some(0));
    }
}
