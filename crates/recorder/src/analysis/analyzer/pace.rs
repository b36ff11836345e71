//! How often the user is told of what may happen at any rate: a few times at once, then once a minute of what was left out.

use crate::{
    control::hits::{Reason, Suppressions},
    intake::counters::LossLog,
};

/// Time between two sentences about what was left out, ns of the monotonic clock.
const MINUTE_NS: i64 = 60_000_000_000;
/// Refused hits told one by one in a minute.
const REFUSALS_TOLD: u32 = 10;

/// Refused hits, told and left out.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    told: u32,
    since_ns: i64,
    left_out: Suppressions,
}

/// What to say of a refused hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Say {
    It,
    /// And that the next ones are left out.
    ItAndNoMore,
    Nothing,
}

impl Refusals {
    /// A hit was refused at a moment of the monotonic clock.
    pub(super) fn add(&mut self, reason: Reason, mono_ns: i64) -> Say {
        if self.told == 0 {
            self.since_ns = mono_ns;
        }
        if self.told >= REFUSALS_TOLD {
            self.left_out.add(reason);
            return Say::Nothing;
        }
        self.told += 1;
        if self.told == REFUSALS_TOLD {
            Say::ItAndNoMore
        } else {
            Say::It
        }
    }

    /// A sentence about what was left out, a minute after the first one that was told.
    pub(super) fn due(&mut self, mono_ns: i64) -> Option<String> {
        let is_over = mono_ns.saturating_sub(self.since_ns) >= MINUTE_NS;
        if self.told == 0 || !is_over {
            return None;
        }
        self.told = 0;
        self.rest()
    }

    /// A sentence about what was left out.
    pub(super) fn rest(&mut self) -> Option<String> {
        let left_out = std::mem::take(&mut self.left_out);
        if left_out.total() == 0 {
            return None;
        }
        Some(format!("further triggers refused: {left_out}"))
    }
}

/// Packets that were overwritten before the trigger rules saw them.
#[derive(Debug, Default)]
pub(super) struct Unseen {
    pub(super) packets: u64,
    /// How many of these the user was not told of yet.
    untold: u64,
    told_ns: Option<i64>,
    /// Where they were, by producer.
    gaps: LossLog,
    /// The time of the last batch of each producer, ns.
    last_ns: Vec<i64>,
}

impl Unseen {
    /// A batch of a producer begins at `time_ns`; `lost` packets before it were overwritten.
    pub(super) fn batch(&mut self, producer: usize, time_ns: i64, lost: u64) {
        if producer >= self.last_ns.len() {
            self.last_ns.resize(producer + 1, i64::MIN);
        }
        let last_ns = std::mem::replace(&mut self.last_ns[producer], time_ns);
        if lost == 0 {
            return;
        }
        let span_ns = (last_ns.min(time_ns), last_ns.max(time_ns));
        self.gaps.push(producer, "unseen", span_ns, lost);
    }

    /// Packets in gaps that touch the closed interval.
    pub(super) fn within(&self, from_ns: i64, to_ns: i64) -> u64 {
        let gaps = self.gaps.within(from_ns, to_ns);
        gaps.iter().map(|gap| gap.packets).sum()
    }

    /// `packets` more were found at `mono_ns` on the monotonic clock. Returns the sentence to say, at once and then once a minute.
    pub(super) fn add(&mut self, packets: u64, mono_ns: i64) -> Option<String> {
        self.packets += packets;
        self.untold += packets;
        let told = self.told_ns;
        if told.is_some_and(|told_ns| mono_ns.saturating_sub(told_ns) < MINUTE_NS) {
            return None;
        }
        self.told_ns = Some(mono_ns);
        self.rest()
    }

    /// A sentence about those that the user was not told of.
    pub(super) fn rest(&mut self) -> Option<String> {
        let packets = std::mem::take(&mut self.untold);
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

    #[test]
    fn refusals_are_told_a_few_at_once_and_the_others_once_a_minute() {
        let mut refusals = Refusals::default();
        let mut said = 0;
        let mut sentences = Vec::new();
        // A year of storms, 3 a second.
        for third in 0..3 * 86_400 {
            let mono_ns = third * S / 3;
            said += usize::from(refusals.add(Reason::MaxDumps, mono_ns) != Say::Nothing);
            sentences.extend(refusals.due(mono_ns));
        }
        assert!((14_000..=14_400).contains(&said), "{said}");
        assert!((1400..=1440).contains(&sentences.len()));
        assert_eq!(sentences[0], "further triggers refused: max-dumps 171");
        (0..20).for_each(|_| _ = refusals.add(Reason::Unfilled, 0));
        assert!(refusals.rest().is_some(), "at the end");
        assert_eq!(refusals.rest(), None);
    }

    #[test]
    fn unseen_packets_are_told_once_a_minute_and_found_by_their_time() {
        let mut unseen = Unseen::default();
        let mut told = 0;
        for second in 0..3600 {
            unseen.batch(second % 3, second as i64 * S, 1);
            told += usize::from(unseen.add(1, second as i64 * S).is_some());
        }
        assert_eq!((told, unseen.packets), (60, 3600));
        assert!(unseen.rest().unwrap().starts_with("59 packets were"));
        assert_eq!(unseen.within(i64::MIN, i64::MAX), 3600);
        assert!((1..10).contains(&unseen.within(3590 * S, 3591 * S)));
        assert_eq!(unseen.within(4000 * S, 5000 * S), 0);
    }
}
