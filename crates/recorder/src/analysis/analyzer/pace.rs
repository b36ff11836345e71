//! How often the analyzer reads the clock, and how often it reports refused hits and unseen
//! packets.

use crate::{
    analysis::chunk::MANY,
    control::hits::{Reason, Suppressions},
    intake::counters::LossLog,
};

const MINUTE_NS: i64 = 60_000_000_000;
/// Maximum number of refused hits reported singly before the next summary is due.
const REFUSALS_TOLD: u32 = 10;

/// Desired time between two checks of clocks and commands while packets keep arriving, ns.
pub(super) const LOOK_NS: i64 = 5_000_000;

/// Decides when to check clocks and commands between packets.
#[derive(Debug)]
pub(super) struct ClockPacer {
    /// Packets after which to read the clock. Adapts to the number of packets that take
    /// [`LOOK_NS`].
    pub(super) stride: usize,
    stride_max: usize,
    /// Packets since the last read of the clock.
    since: usize,
    read_ns: i64,
    looked_ns: i64,
    /// The longest stride since the start, ns.
    pub(super) longest_ns: i64,
}

impl ClockPacer {
    /// With scripts `stride` is at most 64 packets instead of 512, because a script may suddenly
    /// become slow.
    pub(super) fn new(are_scripts: bool) -> Self {
        Self {
            stride: 1,
            stride_max: if are_scripts { MANY } else { 8 * MANY },
            since: 0,
            // The time before the first stride is no time of analysis.
            read_ns: i64::MAX,
            looked_ns: 0,
            longest_ns: 0,
        }
    }

    /// Counts packets that were analyzed. Returns whether to read the clock.
    pub(super) fn passed(&mut self, packets: usize) -> bool {
        self.since += packets;
        self.since >= self.stride
    }

    /// Adapts the stride after a read of the clock. Returns whether to check clocks and commands.
    pub(super) fn is_due(&mut self, mono_ns: i64) -> bool {
        let took_ns = mono_ns.saturating_sub(self.read_ns).max(1);
        self.longest_ns = self.longest_ns.max(took_ns);
        let fitting = (self.since as i64).saturating_mul(LOOK_NS) / took_ns;
        let most = self.stride_max.min(2 * self.stride);
        self.stride = usize::try_from(fitting).unwrap_or(most).clamp(1, most);
        self.slept(mono_ns);
        let is_due = mono_ns.saturating_sub(self.looked_ns) >= LOOK_NS;
        if is_due {
            self.looked_ns = mono_ns;
        }
        is_due
    }

    /// Starts a new stride at `mono_ns`.
    pub(super) fn slept(&mut self, mono_ns: i64) {
        self.since = 0;
        self.read_ns = mono_ns;
    }
}

/// Limits the messages about refused hits.
#[derive(Debug, Default)]
pub(super) struct RefusalNotices {
    told: u32,
    since_ns: i64,
    left_out: Suppressions,
}

/// How to report a refused hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RefusalNotice {
    Report,
    /// Report the hit, and say that further refused hits are only counted.
    ReportAsLast,
    Silent,
}

impl RefusalNotices {
    /// Returns how to report a refused hit at `mono_ns` on the monotonic clock.
    pub(super) fn add(&mut self, reason: Reason, mono_ns: i64) -> RefusalNotice {
        if self.told == 0 {
            self.since_ns = mono_ns;
        }
        if self.told >= REFUSALS_TOLD {
            self.left_out.add(reason, 1);
            return RefusalNotice::Silent;
        }
        self.told += 1;
        if self.told == REFUSALS_TOLD {
            RefusalNotice::ReportAsLast
        } else {
            RefusalNotice::Report
        }
    }

    /// A summary of the hits that were not reported, at least a minute after the first report.
    /// `None`: too early, or nothing to sum up.
    pub(super) fn due(&mut self, mono_ns: i64) -> Option<String> {
        let is_over = mono_ns.saturating_sub(self.since_ns) >= MINUTE_NS;
        if self.told == 0 || !is_over {
            return None;
        }
        self.told = 0;
        self.rest()
    }

    /// A summary of the hits that were not reported.
    pub(super) fn rest(&mut self) -> Option<String> {
        let left_out = std::mem::take(&mut self.left_out);
        if left_out.total() == 0 {
            return None;
        }
        Some(format!("further triggers refused: {left_out}"))
    }
}

/// Packets that the trigger rules did not see: overwritten, or left unread after a stop.
#[derive(Debug, Default)]
pub(super) struct UnseenPackets {
    pub(super) packets: u64,
    /// Packets not reported to the user yet.
    unreported: u64,
    pub(super) told_ns: Option<i64>,
    /// Time ranges of the packets, by producer.
    gaps: LossLog,
    /// By producer: a lower bound of the packet times of the last batch, ns.
    last_ns: Vec<i64>,
}

impl UnseenPackets {
    /// The packets of a producer's next batch are not older than `time_ns`. Rules did not see
    /// `lost` packets before the batch.
    pub(super) fn batch(&mut self, producer: usize, time_ns: i64, lost: u64) {
        if producer >= self.last_ns.len() {
            self.last_ns.resize(producer + 1, i64::MIN);
        }
        let last_ns = std::mem::replace(&mut self.last_ns[producer], time_ns);
        if lost > 0 {
            let span_ns = (last_ns.min(time_ns), last_ns.max(time_ns));
            self.gap(producer, span_ns, lost);
        }
    }

    /// Notes that the rules did not see `lost` packets of a producer in this time range.
    pub(super) fn gap(&mut self, producer: usize, span_ns: (i64, i64), lost: u64) {
        self.gaps.push(0, producer, "unseen", [span_ns; 2], lost);
    }

    /// Packets in gaps that overlap the closed interval.
    pub(super) fn within(&self, from_ns: i64, to_ns: i64) -> u64 {
        let gaps = self.gaps.within_until(u64::MAX, &[(from_ns, to_ns)]);
        gaps.iter().map(|gap| gap.packets).sum()
    }

    /// Counts `packets` more, at `mono_ns` on the monotonic clock. Returns a message at most once a
    /// minute.
    pub(super) fn add(&mut self, packets: u64, mono_ns: i64) -> Option<String> {
        self.packets += packets;
        self.unreported += packets;
        let told = self.told_ns;
        if told.is_some_and(|told_ns| mono_ns.saturating_sub(told_ns) < MINUTE_NS) {
            return None;
        }
        self.told_ns = Some(mono_ns);
        self.rest()
    }

    /// A message about packets that were not reported yet.
    pub(super) fn rest(&mut self) -> Option<String> {
        let packets = std::mem::take(&mut self.unreported);
        (packets > 0).then(|| {
            format!(
                "{packets} packets were overwritten before the trigger rules saw them: triggers may be missed (a larger --ring or fewer rules help)"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000_000_000;

    fn number(word: Option<&str>) -> u64 {
        word.unwrap().parse().unwrap()
    }

    #[test]
    fn the_time_before_the_first_stride_is_no_analysis() {
        let mut pacer = ClockPacer::new(false);
        assert!(pacer.passed(1) && pacer.is_due(1 << 60));
        assert_eq!(pacer.longest_ns, 1);
        pacer.is_due((1 << 60) + 700);
        assert_eq!(pacer.longest_ns, 700);
    }

    #[test]
    fn refusals_are_told_a_few_at_once_and_the_others_once_a_minute() {
        let mut refusals = RefusalNotices::default();
        let (mut said, mut sentences, mut left_out) = (0, 0, 0);
        let mut count = |sentence: String| {
            assert!(sentence.contains("max-dumps "), "{sentence}");
            sentences += 1;
            left_out += number(sentence.rsplit(' ').next());
        };
        let (seconds, a_second) = (86_400, 3);
        for third in 0..seconds * a_second {
            let mono_ns = third * S / a_second;
            said += u64::from(refusals.add(Reason::MaxDumps, mono_ns) != RefusalNotice::Silent);
            refusals.due(mono_ns).map(&mut count);
        }
        refusals.rest().map(&mut count);
        assert_eq!(said + left_out, (seconds * a_second) as u64, "each is told");
        let minutes = (seconds * S / MINUTE_NS) as u64;
        assert!((minutes * 19 / 20..=minutes + 1).contains(&sentences));
        assert!(said <= (sentences + 1) * u64::from(REFUSALS_TOLD), "{said}");
        (0..20).for_each(|_| _ = refusals.add(Reason::Unfilled, 0));
        assert!(refusals.rest().is_some(), "at the end");
        assert_eq!(refusals.rest(), None);
    }

    #[test]
    fn unseen_packets_are_told_once_a_minute_and_found_by_their_time() {
        let mut unseen = UnseenPackets::default();
        let mut told = Vec::new();
        for second in 0..3600 {
            unseen.batch(second % 3, second as i64 * S, 1);
            told.extend(unseen.add(1, second as i64 * S));
        }
        assert_eq!(told.len() as i64, 3600 * S / MINUTE_NS);
        told.extend(unseen.rest());
        let told = told.iter().map(|one| number(one.split(' ').next()));
        assert_eq!((told.sum(), unseen.packets), (3600, 3600));
        assert_eq!(unseen.within(i64::MIN, i64::MAX), 3600);
        assert!((1..10).contains(&unseen.within(3590 * S, 3591 * S)));
        assert_eq!(unseen.within(4000 * S, 5000 * S), 0);
    }
}
