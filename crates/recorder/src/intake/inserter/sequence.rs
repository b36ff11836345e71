//! Detects steps in stamps of files, and of clocks other than the system's, from the stamps alone.
//!
//! A step back is believed only after a run of old packets of a queue: consecutive packets that are
//! older than the hold time allows. Among themselves they are in order, within the hold time. The
//! run must last for the hold time and at least 64 packets. Old packets without a believed step are
//! late. A jump forward is silence.

/// Number of old packets that are needed to believe a step.
const PACKETS_MIN: u64 = 64;

/// The stamps of one queue.
#[derive(Debug)]
pub(crate) struct Sequence {
    hold_ns: i64,
    /// Stamp less ring time, ns.
    offset_ns: i64,
    /// The highest ring time up to now, ns.
    newest_ns: Option<i64>,
    behind: Option<BackwardRun>,
}

/// Consecutive packets whose stamps are older than the hold time allows. Times are stamps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BackwardRun {
    first_ns: i64,
    /// The smallest stamp; at most the hold time before `first_ns`.
    oldest_ns: i64,
    newest_ns: i64,
    packets: u64,
}

/// The position of a packet in the sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PacketOrder {
    /// The packet is in time. Old packets before it are late.
    InTime,
    /// The packet is old, and continues the run.
    Backward,
    /// The packet is old and begins a new run: the packets of the previous run are late.
    FirstBackward,
    /// With this packet a step is believed. `offset_ns` applies from the first old packet on.
    Stepped {
        /// Stamp less ring time, ns.
        offset_ns: i64,
        /// By how much the clock was set, ns.
        step_ns: i64,
    },
}

/// Packets that may follow a step but are stored as if there were no step; or old packets without a
/// step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Misplaced {
    /// Where the packet with the smallest stamp belongs, ns of ring time. For old packets without a
    /// step: the time of the latest packet before them.
    pub(crate) right_ns: i64,
    /// Where the packet with the smallest stamp is stored, ns of ring time.
    pub(crate) stored_ns: i64,
    pub(crate) length_ns: i64,
    pub(crate) packets: u64,
}

impl Misplaced {
    /// The ranges where the packets belong and where they are stored, ns of ring time.
    pub(crate) fn spans_ns(&self) -> [(i64, i64); 2] {
        let span_ns = |from_ns: i64| (from_ns, from_ns.saturating_add(self.length_ns));
        [self.right_ns, self.stored_ns].map(span_ns)
    }

    /// The packets have these stamps, and are stored with the offset `stored_offset_ns`. A packet
    /// with the stamp `beside_ns` would belong at the ring time `right_ns`. The calculation first
    /// subtracts stamps that are near each other, so it does not overflow.
    pub(super) fn of(
        stamps: impl Iterator<Item = i64>,
        stored_offset_ns: i64,
        (beside_ns, right_ns): (i64, i64),
    ) -> Self {
        let fold = |(from_ns, to_ns, packets): (i64, i64, u64), ns: i64| {
            (from_ns.min(ns), to_ns.max(ns), packets + 1)
        };
        let (from_ns, to_ns, packets) = stamps.fold((i64::MAX, i64::MIN, 0), fold);
        Self {
            right_ns: right_ns.saturating_add(from_ns.saturating_sub(beside_ns)),
            stored_ns: from_ns.saturating_sub(stored_offset_ns),
            length_ns: to_ns.saturating_sub(from_ns),
            packets,
        }
    }
}

impl Sequence {
    /// A packet may be `hold_ns` late.
    pub(crate) fn new(hold_ns: i64) -> Self {
        Self {
            hold_ns,
            offset_ns: 0,
            newest_ns: None,
            behind: None,
        }
    }

    /// Judges the next stamp. The second value: earlier packets that were late.
    pub(crate) fn see(&mut self, stamp_ns: i64) -> (PacketOrder, Option<Misplaced>) {
        let ring_ns = stamp_ns.saturating_sub(self.offset_ns);
        let newest_ns = *self.newest_ns.get_or_insert(ring_ns);
        if ring_ns >= newest_ns.saturating_sub(self.hold_ns) {
            self.newest_ns = Some(newest_ns.max(ring_ns));
            return (PacketOrder::InTime, self.give_up());
        }
        let run = self
            .behind
            .filter(|run| stamp_ns >= run.newest_ns.saturating_sub(self.hold_ns));
        let Some(mut run) = run else {
            let late = self.give_up();
            self.behind = Some(BackwardRun {
                first_ns: stamp_ns,
                oldest_ns: stamp_ns,
                newest_ns: stamp_ns,
                packets: 1,
            });
            return (PacketOrder::FirstBackward, late);
        };
        run.packets += 1;
        run.oldest_ns = run.oldest_ns.min(stamp_ns);
        run.newest_ns = run.newest_ns.max(stamp_ns);
        self.behind = Some(run);
        let length_ns = run.newest_ns.saturating_sub(run.first_ns);
        if run.packets < PACKETS_MIN || length_ns < self.hold_ns {
            return (PacketOrder::Backward, None);
        }
        // Assumption: the first old packet arrived right after the latest packet before.
        let offset_ns = run.first_ns.saturating_sub(newest_ns);
        let step_ns = offset_ns.saturating_sub(self.offset_ns);
        self.offset_ns = offset_ns;
        self.newest_ns = Some(newest_ns.saturating_add(length_ns));
        self.behind = None;
        (PacketOrder::Stepped { offset_ns, step_ns }, None)
    }

    /// The undecided run of old packets.
    pub(crate) fn behind(&self) -> Option<Misplaced> {
        let run = self.behind?;
        let all = self.misplaced([run.oldest_ns, run.newest_ns].into_iter())?;
        let packets = run.packets;
        Some(Misplaced { packets, ..all })
    }

    /// The packets of the undecided run with these stamps.
    pub(crate) fn misplaced(&self, stamps: impl Iterator<Item = i64>) -> Option<Misplaced> {
        // As for a believed step: the first old packet arrived right after the latest packet
        // before.
        let first = (self.behind?.first_ns, self.newest_ns?);
        Some(Misplaced::of(stamps, self.offset_ns, first))
    }

    /// The last step is not followed: stamps keep their previous offset, `offset_ns`.
    pub(crate) fn refuse(&mut self, offset_ns: i64) {
        self.offset_ns = offset_ns;
    }

    /// Ends the undecided run, if there is one: its packets are late. The disorder reaches from the
    /// oldest of these packets to the latest packet before the run.
    pub(crate) fn give_up(&mut self) -> Option<Misplaced> {
        let (late, right_ns) = (self.behind(), self.newest_ns?);
        self.behind = None;
        late.map(|late| Misplaced { right_ns, ..late })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000_000_000;
    const HOUR: i64 = 3600 * S;

    /// The ring times of packets with these stamps, if each packet is stored at once, and how often
    /// packets were late.
    fn ring_times(stamps: impl Iterator<Item = i64>) -> (Vec<i64>, usize) {
        let mut sequence = Sequence::new(S / 10);
        let mut late = 0;
        let times = stamps.map(|stamp_ns| {
            late += usize::from(sequence.see(stamp_ns).1.is_some());
            stamp_ns - sequence.offset_ns
        });
        let times = times.collect();
        (times, late + usize::from(sequence.give_up().is_some()))
    }

    #[test]
    fn a_step_back_is_believed_when_all_have_followed_it() {
        // 100 packets a second: 64 packets are longer than the hold time.
        let stamps = (0..500).map(|n| n * S / 100 - if n < 250 { 0 } else { HOUR });
        let (times, late) = ring_times(stamps);
        assert_eq!(late, 0);
        let expected = |n: i64| match n {
            0..250 => n * S / 100,
            250..313 => n * S / 100 - HOUR,
            _ => (n - 1) * S / 100,
        };
        assert!(times.iter().copied().eq((0..500).map(expected)));
    }

    #[test]
    fn less_is_late() {
        let back = |from: i64, to: i64| {
            let stamps =
                (0..500).map(move |n| n * S / 100 - if (from..to).contains(&n) { HOUR } else { 0 });
            ring_times(stamps)
        };
        // One packet less than needed; the same at the end.
        assert_eq!(back(250, 313).1, 1);
        assert_eq!(back(437, 500).1, 1);
        assert_eq!(back(437, 500).0[499], 499 * S / 100 - HOUR);
        // 1000 old packets, more than the 64 of a step, but within 1 ms: the hold time is 100 ms.
        let dense = (0..500)
            .map(|n| n * S / 100)
            .chain((0..1000).map(|n| -HOUR + n * 1000));
        assert_eq!(ring_times(dense).1, 1);
    }

    #[test]
    fn disorder_is_followed_nowhere() {
        let mut random = fastrand::Rng::with_seed(4);
        let mut stamps: Vec<i64> = (0..10_000).map(|_| random.i64(0..HOUR)).collect();
        let (times, late) = ring_times(stamps.iter().copied());
        assert_eq!(times, stamps);
        assert!(late > 5000, "{late}");
        stamps = (0..10_000).map(|n| n * S / 100 - n % 2 * HOUR).collect();
        let (times, late) = ring_times(stamps.iter().copied());
        assert_eq!((times, late), (stamps, 5000));
    }

    /// The ranges are where the run is stored, and where it belongs if there was a step.
    #[test]
    fn what_is_behind_is_known_to_the_last_packet() {
        let behind = |stamps: &[i64]| {
            let mut sequence = Sequence::new(S);
            for stamp_ns in stamps {
                sequence.see(*stamp_ns);
            }
            (sequence.behind().unwrap().spans_ns(), sequence.give_up())
        };
        let (spans_ns, late) = behind(&[100 * S, 96 * S, 952 * S / 10, 97 * S]);
        let [right, stored] = [(992 * S / 10, 101 * S), (952 * S / 10, 97 * S)];
        assert_eq!(spans_ns, [right, stored]);
        assert_eq!(late.unwrap().right_ns, 100 * S);
        let far = 1_800_000_000 * S;
        for (newest_ns, stamp_ns) in [(far, -8 * (far / 2)), (i64::MAX, i64::MIN)] {
            let (spans_ns, late) = behind(&[newest_ns, stamp_ns]);
            assert_eq!(spans_ns, [newest_ns, stamp_ns].map(|ns| (ns, ns)));
            assert_eq!(late.unwrap().right_ns, newest_ns);
        }
    }

    #[test]
    fn a_jump_forward_is_silence() {
        let stamps: Vec<i64> = (0..100).map(|n| n * HOUR).collect();
        assert_eq!(ring_times(stamps.iter().copied()), (stamps, 0));
    }
}
