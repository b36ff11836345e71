//! The result of matching: rules for each frame.

/// The caller's identifier of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleId(pub u64);

/// Whether a match is certain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Certainty {
    /// The rule matches the packet.
    Certain,
    /// The rule may match. The caller must evaluate the [`Filter`](crate::Filter).
    AskFilter,
}

/// The rules that match each frame of one
/// [`RuleReader::match_many`](super::RuleReader::match_many). Reuse the value to avoid allocations.
#[derive(Debug, Clone, Default)]
pub struct Matches {
    list: Vec<RuleMatch>,
    /// Index of the current frame's first match.
    open: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct RuleMatch {
    id: u64,
    frame: u8,
    ask: bool,
}

impl Matches {
    /// All matches, without duplicates: the index of the frame, the rule, and whether the match is
    /// certain. The order is by frame, then by rule identifier.
    pub fn iter(&self) -> impl Iterator<Item = (usize, RuleId, Certainty)> {
        self.list.iter().map(|found| {
            let sure = if found.ask {
                Certainty::AskFilter
            } else {
                Certainty::Certain
            };
            (usize::from(found.frame), RuleId(found.id), sure)
        })
    }

    pub(super) fn clear(&mut self) {
        self.list.clear();
        self.open = 0;
    }

    /// Adds a match of the current frame. A rule may be added several times.
    #[inline]
    pub(super) fn add(&mut self, frame: usize, id: u64, ask: bool) {
        #[expect(clippy::cast_possible_truncation, reason = "at most 63")]
        let frame = frame as u8;
        self.list.push(RuleMatch { id, frame, ask });
    }

    /// Ends the current frame.
    #[inline]
    pub(super) fn end(&mut self) {
        if self.list.len() == self.open {
            return;
        }
        if self.list.len() - self.open > 1 {
            self.sort();
        }
        self.open = self.list.len();
    }

    #[inline(never)]
    fn sort(&mut self) {
        let list = &mut self.list[self.open..];
        if list.is_sorted_by(|one, next| one < next) {
            return;
        }
        list.sort_unstable();
        let mut kept = 1;
        for at in 1..list.len() {
            if list[at] != list[kept - 1] {
                list[kept] = list[at];
                kept += 1;
            }
        }
        self.list.truncate(self.open + kept);
    }
}
