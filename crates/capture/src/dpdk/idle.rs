//! What a queue does while its device has nothing: look again at once, or sleep a moment.
//!
//! DPDK's drivers do not wait; who asks all the time takes a whole CPU. A queue asks all the time while packets come and for
//! [`BUSY_NS`] behind the last one, then it sleeps between two looks, as long as the smallest frames at the link's full speed
//! could not fill the device's descriptors meanwhile. Where they could, it never sleeps.

/// How long after the last packet it still looks all the time.
const BUSY_NS: i64 = 1_000_000;

/// What it sleeps at most, and at least: a shorter sleep costs more than it spares.
const NAP_NS_MAX: i64 = 200_000;
const NAP_NS_MIN: i64 = 20_000;

/// What the kernel adds to a sleep: 50 µs of timer slack, and as much for the way back.
const OVERSLEEP_NS: i64 = 100_000;

/// Bits that the smallest frame takes on the wire, with preamble and gap.
const FRAME_BITS: u64 = 84 * 8;

/// When to sleep.
#[derive(Debug)]
pub(super) struct Idle {
    nap_ns: Option<i64>,
    /// Since when nothing came, on the monotonic clock, as far as anybody has looked.
    silent_since_ns: Option<i64>,
}

impl Idle {
    /// For a queue of so many descriptors at a link of that speed; 0: unknown.
    pub(super) fn new(descriptors: u16, megabits: u32) -> Self {
        Self {
            nap_ns: nap_ns(descriptors, megabits),
            silent_since_ns: None,
        }
    }

    /// Packets came.
    pub(super) fn on_packets(&mut self) {
        self.silent_since_ns = None;
    }

    /// Nothing came: until when to sleep now; `None`: look again at once. Times on the monotonic clock.
    pub(super) fn nap_until(&mut self, now_ns: i64, deadline_ns: i64) -> Option<i64> {
        let since_ns = *self.silent_since_ns.get_or_insert(now_ns);
        let nap_ns = self.nap_ns?;
        (now_ns - since_ns >= BUSY_NS).then(|| deadline_ns.min(now_ns.saturating_add(nap_ns)))
    }
}

fn nap_ns(descriptors: u16, megabits: u32) -> Option<i64> {
    if megabits == 0 {
        return Some(NAP_NS_MIN);
    }
    // A megabit a second is a bit in 1000 ns.
    let full_ns = u64::from(descriptors) * FRAME_BITS * 1000 / u64::from(megabits);
    let nap_ns = i64::try_from(full_ns / 2).ok()? - OVERSLEEP_NS;
    (nap_ns >= NAP_NS_MIN).then_some(nap_ns.min(NAP_NS_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nap_leaves_half_of_the_descriptors_free() {
        assert_eq!(nap_ns(4096, 1000), Some(NAP_NS_MAX));
        // 4096 descriptors are full after 275 µs.
        assert_eq!(nap_ns(4096, 10_000), Some(37_625));
        assert_eq!(nap_ns(4096, 25_000), None);
        assert_eq!(nap_ns(512, 10_000), None);
        assert_eq!(nap_ns(512, 0), Some(NAP_NS_MIN), "unknown");
    }

    #[test]
    fn it_stays_awake_behind_a_packet() {
        let mut idle = Idle::new(4096, 1000);
        assert_eq!(idle.nap_until(0, i64::MAX), None);
        assert_eq!(idle.nap_until(BUSY_NS - 1, i64::MAX), None);
        assert_eq!(
            idle.nap_until(BUSY_NS, i64::MAX),
            Some(BUSY_NS + NAP_NS_MAX)
        );
        assert_eq!(
            idle.nap_until(BUSY_NS, BUSY_NS + 5),
            Some(BUSY_NS + 5),
            "the caller's deadline"
        );
        idle.on_packets();
        assert_eq!(idle.nap_until(2 * BUSY_NS, i64::MAX), None);
        assert_eq!(
            idle.nap_until(3 * BUSY_NS, i64::MAX),
            Some(3 * BUSY_NS + NAP_NS_MAX)
        );
        let mut fast = Idle::new(4096, 100_000);
        assert_eq!(
            fast.nap_until(0, i64::MAX)
                .or(fast.nap_until(i64::MAX, i64::MAX)),
            None
        );
    }
}
