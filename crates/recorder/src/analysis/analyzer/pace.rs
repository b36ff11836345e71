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
    /// A batch of a producer begins at `time_ns`; `lost` packets before it were overwritten. Returns where they were.
    pub(super) fn batch(&mut self, producer: usize, time_ns: i64, lost: u64) -> Option<(i64, i64)> {
        if producer >= self.last_ns.len() {
            self.last_ns.resize(producer + 1, i64::MIN);
        }
        let last_ns = std::mem::replace(&mut self.last_ns[producer], time_ns);
        if lost == 0 {
            return None;
        }
        let span_ns = (last_ns.min(time_ns), last_ns.max(time_ns));
        self.gaps.push(0, producer, "unseen", [span_ns; 2], lost);
        Some(span_ns)
    }

    /// Packets in gaps that touch the closed interval.
    pub(super) fn within(&self, from_ns: i64, to_ns: i64) -> u64 {
        let gaps = self.gaps.within_until(u64::MAX, from_ns, to_ns);
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

    fn number(word: Option<&str>) -> u64 {
        word.unwrap().parse().unwrap()
    }

    #[test]
    fn refusals_are_told_a_few_at_once_and_the_others_once_a_minute() {
        let mut refusals = Refusals::default();
        let (mut said, mut sentences, mut left_out) = (0, 0, 0);
        let mut count = |sentence: String| {
            assert!(sentence.contains("max-dumps "), "{sentence}");
            sentences += 1;
            left_out += number(sentence.rsplit(' ').next());
        };
        let (seconds, a_second) = (86_400, 3);
        for third in 0..seconds * a_second {
            let mono_ns = third * S / a_second;
            said += u64::from(refusals.add(Reason::MaxDumps, mono_ns) != Say::Nothing);
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
        let mut unseen = Unseen::default();
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
