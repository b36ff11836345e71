//! Decides whether a queue without packets polls again at once or sleeps.
//!
//! DPDK's drivers do not wait, so continuous polling uses a whole CPU. A queue polls continuously
//! while packets arrive and for [`AWAKE_AFTER_PACKET_NS`] after the last packet. Then it sleeps
//! between two polls.
//!
//! A wake-up is expensive, 20 µs in a virtual machine: naps of 0.2 ms alone take 8 % of a CPU. So
//! naps grow with the silence, up to [`LONG_SILENCE_NAP_NS_MAX`] after 7.5 s. The first naps of a
//! vdev last an eighth of the silence. The longest naps cost less than 2 %.
//!
//! A NIC's queue sleeps only as long as the smallest frames at the link's full speed fill at most
//! half of its descriptors. If the shortest nap is too long for this, the queue never sleeps. It
//! also never sleeps while the NIC's speed is unknown. Most NICs have no link directly after their
//! start, and a link that is down may come up at another speed.
//!
//! A vdev has no link and no descriptors, whatever its driver reports. Its packets wait in a buffer
//! of the kernel or of the packets' producer. For example, the ring of a `net_af_packet` may have
//! 512 frames. Including the oversleep, this ring lasts for the naps of the first second at 1.7
//! Mpps, and for the longest nap at 320 kpps.

/// How long a queue polls continuously after the last packet.
const AWAKE_AFTER_PACKET_NS: i64 = 1_000_000;

/// Shortest nap: a shorter nap costs more than it saves.
const IDLE_NAP_NS_MIN: i64 = 20_000;

/// Longest nap in the first second of a silence.
const SHORT_SILENCE_NAP_NS_MAX: i64 = 200_000;

/// Longest nap, reached after 7.5 s of silence.
const LONG_SILENCE_NAP_NS_MAX: i64 = 1_500_000;

/// Ratio of silence to nap for a vdev, at least.
const SILENCE_OVER_NAP: i64 = 8;

/// Ratio of silence to nap, for naps longer than [`SHORT_SILENCE_NAP_NS_MAX`].
const SILENCE_OVER_LONG_NAP: i64 = 5000;

/// Time that the kernel adds to a nap: 50 µs of timer slack, and the same time for the wake-up.
const OVERSLEEP_NS: i64 = 100_000;

/// Bits of the smallest frame on the wire, with preamble and gap.
const FRAME_BITS: u64 = 84 * 8;

/// The nap decision of one queue.
#[derive(Debug)]
pub(super) struct Idle {
    descriptors: u16,
    is_vdev: bool,
    /// Longest nap of a NIC's queue; `None`: the queue never sleeps. Unused for a vdev.
    nap_ns: Option<i64>,
    /// Time of the first poll without packets since the last packet, on the monotonic clock.
    silent_since_ns: Option<i64>,
}

impl Idle {
    /// For a queue with `descriptors` descriptors at a link of `megabits` Mbit/s; 0: unknown.
    pub(super) fn new(descriptors: u16, is_vdev: bool, megabits: u32) -> Self {
        Self {
            descriptors,
            is_vdev,
            nap_ns: nap_ns(descriptors, megabits),
            silent_since_ns: None,
        }
    }

    /// The link now has this speed, in Mbit/s; 0: unknown.
    pub(super) fn on_speed(&mut self, megabits: u32) {
        self.nap_ns = nap_ns(self.descriptors, megabits);
    }

    /// Packets arrived.
    pub(super) fn on_packets(&mut self) {
        self.silent_since_ns = None;
    }

    /// After a poll without packets: until when to sleep, at most until `deadline_ns`. `None`: poll
    /// again at once. Times are on the monotonic clock.
    pub(super) fn nap_until(&mut self, now_ns: i64, deadline_ns: i64) -> Option<i64> {
        let since_ns = *self.silent_since_ns.get_or_insert(now_ns);
        let silence_ns = now_ns - since_ns;
        let most_ns = (silence_ns / SILENCE_OVER_LONG_NAP)
            .clamp(SHORT_SILENCE_NAP_NS_MAX, LONG_SILENCE_NAP_NS_MAX);
        let nap_ns = if self.is_vdev {
            (silence_ns / SILENCE_OVER_NAP).clamp(IDLE_NAP_NS_MIN, most_ns)
        } else {
            self.nap_ns?.min(most_ns)
        };
        (silence_ns >= AWAKE_AFTER_PACKET_NS)
            .then(|| deadline_ns.min(now_ns.saturating_add(nap_ns)))
    }
}

/// The longest nap of a NIC's queue, however long the silence. `None`: the queue never sleeps.
fn nap_ns(descriptors: u16, megabits: u32) -> Option<i64> {
    if megabits == 0 {
        return None;
    }
    // One megabit per second is one bit per 1000 ns.
    let full_ns = u64::from(descriptors) * FRAME_BITS * 1000 / u64::from(megabits);
    let nap_ns = i64::try_from(full_ns / 2).ok()? - OVERSLEEP_NS;
    (nap_ns >= IDLE_NAP_NS_MIN).then_some(nap_ns.min(LONG_SILENCE_NAP_NS_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use retroscope_capture::clock::SECOND_NS;

    #[test]
    fn a_nap_leaves_half_of_the_descriptors_free() {
        for descriptors in [64, 512, 4096] {
            for megabits in [100, 1000, 10_000, 25_000, 100_000] {
                let frames_a_second = u64::from(megabits) * 1_000_000 / FRAME_BITS;
                let half_ns =
                    i64::from(descriptors) * SECOND_NS / 2 / frames_a_second.cast_signed();
                // The two divisions round differently.
                let at_most = |nap_ns: i64| nap_ns + OVERSLEEP_NS <= half_ns + half_ns / 1000;
                let what = format!("{descriptors} at {megabits} Mbit/s");
                match nap_ns(descriptors, megabits) {
                    Some(nap_ns) => {
                        assert!(
                            (IDLE_NAP_NS_MIN..=LONG_SILENCE_NAP_NS_MAX).contains(&nap_ns),
                            "{what}"
                        );
                        assert!(at_most(nap_ns), "{what}");
                        let longer_ns = nap_ns + nap_ns / 100 + half_ns / 1000;
                        assert!(
                            nap_ns == LONG_SILENCE_NAP_NS_MAX || !at_most(longer_ns),
                            "{what}"
                        );
                    }
                    None => assert!(half_ns < OVERSLEEP_NS + IDLE_NAP_NS_MIN, "{what}"),
                }
            }
        }
        assert_eq!(nap_ns(4096, 100), Some(LONG_SILENCE_NAP_NS_MAX));
        assert_eq!(nap_ns(64, 100_000), None);
    }

    #[test]
    fn a_vdev_is_left_alone_the_longer_the_more_silent_it_is() {
        // The speed that a vdev's driver reports means nothing.
        for megabits in [0, 10_000, 100_000] {
            let mut idle = Idle::new(512, true, megabits);
            let mut nap_at = |now_ns| idle.nap_until(now_ns, i64::MAX).map(|at| at - now_ns);
            assert_eq!(nap_at(0), None);
            assert_eq!(nap_at(AWAKE_AFTER_PACKET_NS - 1), None);
            assert_eq!(
                nap_at(AWAKE_AFTER_PACKET_NS),
                Some(AWAKE_AFTER_PACKET_NS / SILENCE_OVER_NAP)
            );
            assert_eq!(
                nap_at(100 * AWAKE_AFTER_PACKET_NS),
                Some(SHORT_SILENCE_NAP_NS_MAX)
            );
            let long_ns = SHORT_SILENCE_NAP_NS_MAX * SILENCE_OVER_LONG_NAP;
            assert_eq!(nap_at(long_ns), Some(SHORT_SILENCE_NAP_NS_MAX));
            assert_eq!(
                nap_at(3 * long_ns / 2),
                Some(3 * SHORT_SILENCE_NAP_NS_MAX / 2)
            );
            assert_eq!(nap_at(8 * SECOND_NS), Some(LONG_SILENCE_NAP_NS_MAX));
            idle.on_packets();
            assert_eq!(
                idle.nap_until(8 * SECOND_NS + AWAKE_AFTER_PACKET_NS, i64::MAX),
                None
            );
        }
    }

    #[test]
    fn a_nic_stays_awake_until_its_speed_is_known() {
        let nap = |idle: &mut Idle| {
            idle.on_packets();
            idle.nap_until(0, i64::MAX);
            idle.nap_until(AWAKE_AFTER_PACKET_NS, i64::MAX)
        };
        let mut nic = Idle::new(4096, false, 0);
        assert_eq!(nap(&mut nic), None, "no link yet");
        nic.on_speed(1000);
        assert_eq!(
            nap(&mut nic),
            Some(AWAKE_AFTER_PACKET_NS + SHORT_SILENCE_NAP_NS_MAX)
        );
        nic.on_speed(100_000);
        assert_eq!(nap(&mut nic), None, "it came up faster");
        nic.on_speed(10_000);
        assert_eq!(
            nap(&mut nic),
            nap_ns(4096, 10_000).map(|nap_ns| AWAKE_AFTER_PACKET_NS + nap_ns)
        );
        nic.on_speed(0);
        assert_eq!(nap(&mut nic), None, "it went down");
    }

    #[test]
    fn a_nic_that_is_silent_for_long_is_left_alone_as_its_descriptors_last() {
        for megabits in [100, 1000, 10_000] {
            let longest_ns = nap_ns(4096, megabits).unwrap();
            let mut nic = Idle::new(4096, false, megabits);
            assert_eq!(nic.nap_until(0, i64::MAX), None);
            for (silence_ns, most_ns) in [
                (AWAKE_AFTER_PACKET_NS, SHORT_SILENCE_NAP_NS_MAX),
                (
                    SHORT_SILENCE_NAP_NS_MAX * SILENCE_OVER_LONG_NAP,
                    SHORT_SILENCE_NAP_NS_MAX,
                ),
                (
                    3 * SHORT_SILENCE_NAP_NS_MAX * SILENCE_OVER_LONG_NAP,
                    3 * SHORT_SILENCE_NAP_NS_MAX,
                ),
                (1000 * SECOND_NS, LONG_SILENCE_NAP_NS_MAX),
            ] {
                let nap_ns = nic.nap_until(silence_ns, i64::MAX).unwrap() - silence_ns;
                assert_eq!(nap_ns, most_ns.min(longest_ns), "{megabits} Mbit/s");
            }
        }
    }

    #[test]
    fn a_new_speed_does_not_wake_it() {
        let mut idle = Idle::new(4096, false, 1000);
        assert_eq!(idle.nap_until(0, i64::MAX), None);
        idle.on_speed(100);
        assert!(idle.nap_until(AWAKE_AFTER_PACKET_NS, i64::MAX).is_some());
    }

    #[test]
    fn it_stays_awake_behind_a_packet() {
        let mut idle = Idle::new(4096, false, 1000);
        assert_eq!(idle.nap_until(0, i64::MAX), None);
        assert_eq!(idle.nap_until(AWAKE_AFTER_PACKET_NS - 1, i64::MAX), None);
        assert_eq!(
            idle.nap_until(AWAKE_AFTER_PACKET_NS, i64::MAX),
            Some(AWAKE_AFTER_PACKET_NS + SHORT_SILENCE_NAP_NS_MAX)
        );
        assert_eq!(
            idle.nap_until(AWAKE_AFTER_PACKET_NS, AWAKE_AFTER_PACKET_NS + 5),
            Some(AWAKE_AFTER_PACKET_NS + 5),
            "the caller's deadline"
        );
        idle.on_packets();
        assert_eq!(idle.nap_until(2 * AWAKE_AFTER_PACKET_NS, i64::MAX), None);
        assert_eq!(
            idle.nap_until(3 * AWAKE_AFTER_PACKET_NS, i64::MAX),
            Some(3 * AWAKE_AFTER_PACKET_NS + SHORT_SILENCE_NAP_NS_MAX)
        );
        let mut fast = Idle::new(4096, false, 100_000);
        assert_eq!(
            fast.nap_until(0, i64::MAX)
                .or(fast.nap_until(i64::MAX, i64::MAX)),
            None
        );
    }
}
