//! What matched.

/// The caller's number for a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleId(pub u64);

/// How sure a look-up is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sure {
    /// The rule matches the packet.
    Yes,
    /// It may: evaluate the [`Filter`](crate::Filter), with its state where it has one.
    Ask,
}

/// The rules that match each frame of one [`RuleReader::match_many`](super::RuleReader::match_many). Kept and used again,
/// so that matching allocates nothing once it has seen as many matches as there are.
#[derive(Debug, Clone, Default)]
pub struct Matches {
    hits: Vec<Hit>,
    /// Where the hits of the frame being looked at start.
    open: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Hit {
    id: u64,
    frame: u8,
    ask: bool,
}

impl Matches {
    /// Every match once: the index of the frame, the rule, and how sure that is. Frames come in their order, and a frame's
    /// rules by their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (usize, RuleId, Sure)> {
        self.hits.iter().map(|hit| {
            let sure = if hit.ask { Sure::Ask } else { Sure::Yes };
            (usize::from(hit.frame), RuleId(hit.id), sure)
        })
    }

    pub(super) fn clear(&mut self) {
        self.hits.clear();
        self.open = 0;
    }

    /// Adds a match of the frame being looked at; one rule may be added several times.
    #[inline]
    pub(super) fn add(&mut self, frame: usize, id: u64, ask: bool) {
        #[expect(clippy::cast_possible_truncation, reason = "at most 63")]
        let frame = frame as u8;
        self.hits.push(Hit { id, frame, ask });
    }

    /// Ends a frame.
    #[inline]
    pub(super) fn end(&mut self) {
        if self.hits.len() == self.open {
            return;
        }
        if self.hits.len() - self.open > 1 {
            self.sort();
        }
        self.open = self.hits.len();
    }

    #[inline(never)]
    fn sort(&mut self) {
        let hits = &mut self.hits[self.open..];
        if hits.is_sorted_by(|one, next| one < next) {
            return;
        }
        hits.sort_unstable();
        let mut kept = 1;
        for at in 1..hits.len() {
            if hits[at] != hits[kept - 1] {
                hits[kept] = hits[at];
                kept += 1;
            }
        }
        self.hits.truncate(self.open + kept);
    }
}
