//! What matched.

/// The caller's number for a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleId(pub u64);

/// How sure a look-up is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Certainty {
    /// The rule matches the packet.
    Certain,
    /// It may: evaluate the [`Filter`](crate::Filter), with its state where it has one.
    AskFilter,
}

/// The rules that match each frame of one [`RuleReader::match_many`](super::RuleReader::match_many). Kept and used again,
/// so that matching allocates nothing once it has seen as many matches as there are.
#[derive(Debug, Clone, Default)]
pub struct Matches {
    list: Vec<RuleMatch>,
    /// Where the hits of the frame being looked at start.
    open: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct RuleMatch {
    id: u64,
    frame: u8,
    ask: bool,
}

impl Matches {
    /// Every match once: the index of the frame, the rule, and how sure that is. Frames come in their order, and a frame's
    /// rules by their numbers.
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

    /// Adds a match of the frame being looked at; one rule may be added several times.
    #[inline]
    pub(super) fn add(&mut self, frame: usize, id: u64, ask: bool) {
        #[expect(clippy::cast_possible_truncation, reason = "at most 63")]
        let frame = frame as u8;
        self.list.push(RuleMatch { id, frame, ask });
    }

    /// Ends a frame.
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
