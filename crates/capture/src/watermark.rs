//! Time rules that the live engines share: the watermark, and the detection of steps of the system
//! clock.
//!
//! The live engines and their common code report bursts, empty fetches, and the longest delay
//! between a packet's stamp and its delivery. The rules are in this module. Points in time are ns
//! since the UNIX epoch.

use std::fmt;

use crate::clock::{CLOCK_STEP_NS, Now};

/// A queue's promise that no older packet will arrive. It only advances, unless the system clock is
/// set back.
#[derive(Debug)]
pub struct Watermark {
    pub(crate) time_ns: i64,
    /// The newest stamp of all bursts since the start or since the system clock was last set back,
    /// including the burst that is being lent. Before the first such burst, the time of the first
    /// promise. At most the system clock at the fetch, if the system clock stamps the packets.
    burst_ns: i64,
    /// The longest time from the stamp of a packet until the engine can fetch the packet, ns.
    delivery_delay_max_ns: i64,
}

impl Watermark {
    /// Starts at `now_ns`. No stamp is older than `now_ns - delivery_delay_max_ns`.
    pub(crate) fn new(now_ns: i64, delivery_delay_max_ns: i64) -> Self {
        let time_ns = now_ns.saturating_sub(delivery_delay_max_ns);
        Self {
            time_ns,
            burst_ns: time_ns,
            delivery_delay_max_ns,
        }
    }

    /// A burst with the newest stamp `newest_ns` is being lent: the promise covers only the earlier
    /// bursts. `clock_ns`: the system clock when the burst was fetched; `None`: the stamps may
    /// come from another clock.
    ///
    /// While packets arrive without a pause, the queue does not compare the clocks, so this
    /// function detects a step back. If the clock is earlier than the promise, the clock was set
    /// back and the promise follows. A stamp later than the clock, for example from before the
    /// step, counts as the time of the clock.
    pub fn on_burst(&mut self, newest_ns: i64, clock_ns: Option<i64>) {
        self.on_given_back();
        let Some(clock_ns) = clock_ns else {
            self.burst_ns = self.burst_ns.max(newest_ns);
            return;
        };
        if clock_ns < self.time_ns {
            self.on_clock_set_back(clock_ns);
        }
        self.burst_ns = self.burst_ns.max(newest_ns.min(clock_ns));
    }

    /// The engine has got all bursts back, so the promise covers all bursts.
    pub(crate) fn on_given_back(&mut self) {
        self.time_ns = self
            .time_ns
            .max(self.burst_ns.saturating_sub(self.delivery_delay_max_ns));
    }

    /// A fetch that began at `looked_ns` on the system clock found no packet.
    pub(crate) fn on_silence(&mut self, looked_ns: i64) {
        self.on_given_back();
        self.time_ns = self
            .time_ns
            .max(looked_ns.saturating_sub(self.delivery_delay_max_ns));
    }

    /// The system clock was set back to `now_ns`.
    pub(crate) fn on_clock_set_back(&mut self, now_ns: i64) {
        *self = Self::new(now_ns, self.delivery_delay_max_ns);
    }
}

/// Detects steps of the system clock by comparing it with the monotonic clock, which nobody can
/// set.
#[derive(Debug)]
pub(crate) struct ClockWatch {
    /// System clock minus monotonic clock at the last comparison.
    offset_ns: i64,
}

/// A step of the system clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClockStep {
    /// Size of the step, ns. Negative if the clock was set back.
    pub(crate) step_ns: i64,
    /// The system clock after the step, ns since the UNIX epoch.
    pub(crate) now_ns: i64,
}

impl fmt::Display for ClockStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = if self.step_ns < 0 { "back" } else { "forward" };
        let milliseconds = self.step_ns.abs() / 1_000_000;
        write!(f, "the system clock was set {way} by {milliseconds} ms")
    }
}

impl ClockWatch {
    /// Starts to watch, with a first reading of both clocks.
    pub(crate) fn new(now: Now) -> Self {
        let offset_ns = now.offset_max_ns();
        Self { offset_ns }
    }

    /// Compares a reading of both clocks with the reading before. Returns a step if the difference
    /// of the clocks has changed by more than [`CLOCK_STEP_NS`].
    pub(crate) fn look(&mut self, now: Now) -> Option<ClockStep> {
        // If the thread was descheduled at each attempt to read both clocks, the two readings do
        // not belong together.
        if !now.is_one_moment() {
            return None;
        }
        let offset_ns = now.offset_max_ns();
        let step_ns = offset_ns - self.offset_ns;
        self.offset_ns = offset_ns;
        (step_ns.abs() > CLOCK_STEP_NS).then_some(ClockStep {
            step_ns,
            now_ns: now.wall_ns,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::READ_GAP_NS_MAX;

    const DELIVERY_DELAY_NS_MAX: i64 = 10;

    #[test]
    fn it_never_passes_the_burst_that_is_lent() {
        let mut watermark = Watermark::new(1000, DELIVERY_DELAY_NS_MAX);
        assert_eq!(watermark.time_ns, 990);
        watermark.on_burst(2000, Some(2005));
        assert_eq!(watermark.time_ns, 990, "the burst is being lent");
        watermark.on_burst(3000, Some(3000));
        assert_eq!(watermark.time_ns, 1990);
        watermark.on_given_back();
        assert_eq!(watermark.time_ns, 2990);
    }

    #[test]
    fn it_follows_the_clock_in_silence_and_goes_back_with_it_only() {
        let mut watermark = Watermark::new(1000, DELIVERY_DELAY_NS_MAX);
        watermark.on_silence(5000);
        assert_eq!(watermark.time_ns, 4990);
        watermark.on_silence(4000);
        watermark.on_burst(4500, Some(5000));
        watermark.on_given_back();
        assert_eq!(watermark.time_ns, 4990, "never back");
        watermark.on_clock_set_back(100);
        assert_eq!(watermark.time_ns, 90);
    }

    #[test]
    fn a_clock_set_back_is_seen_by_the_stamps_of_an_endless_burst() {
        let mut watermark = Watermark::new(1_000_000, DELIVERY_DELAY_NS_MAX);
        // This burst was stamped before the step, and arrives after the step was reported.
        watermark.on_clock_set_back(5000);
        watermark.on_burst(1_000_000, Some(5100));
        watermark.on_given_back();
        assert_eq!(watermark.time_ns, 5090);
        // Nobody has reported this step.
        watermark.on_burst(5200, Some(5200));
        watermark.on_burst(3000, Some(3000));
        assert_eq!(watermark.time_ns, 2990);
        watermark.on_burst(3100, Some(3100));
        watermark.on_given_back();
        assert_eq!(watermark.time_ns, 3090);
        // Stamps of another clock may be ahead of the system clock.
        watermark.on_burst(9000, None);
        watermark.on_given_back();
        assert_eq!(watermark.time_ns, 8990);
    }

    #[test]
    fn steps_are_told_and_slews_are_not() {
        let mut watch = ClockWatch { offset_ns: 1000 };
        // `before_ns`: the monotonic clock before the real-time clock was read.
        let mut read = |wall_ns, before_ns, read_gap_ns| {
            watch.look(Now {
                wall_ns,
                mono_ns: before_ns + read_gap_ns,
                read_gap_ns,
            })
        };
        let far_ns = READ_GAP_NS_MAX + 1;
        assert_eq!(
            read(9 * CLOCK_STEP_NS, 50_000, far_ns),
            None,
            "nor compared later"
        );
        let mut look = |wall_ns, before_ns| read(wall_ns, before_ns, READ_GAP_NS_MAX);
        assert_eq!(look(51_000, 50_000), None);
        assert_eq!(look(60_000 + CLOCK_STEP_NS, 59_000), None);
        let step = look(0, 70_000).unwrap();
        assert_eq!(step.step_ns, -CLOCK_STEP_NS - 71_000);
        let told = step.to_string();
        let amount = format!(" back by {} ms", CLOCK_STEP_NS / 1_000_000);
        assert!(told.contains(&amount), "{told}");
        assert_eq!(look(10_000, 80_000), None, "a step is told once");
    }
}
