//! The boolean structure of pcap-filter text: clauses joined by `and`, `or`, `not` and parentheses.
//!
//! pcap-filter(7): `and` and `or` have the same precedence and group from left to right; `not`
//! binds tighter. This module does not interpret the content of a clause.

use std::ops::Range;

use crate::words::{Word, WordKind};

/// Maximum depth of groups.
const DEPTH_MAX: usize = 100;
/// Primitives that change the offsets of later primitives, and `pppoed`.
const SHIFTING: [&str; 5] = ["vlan", "mpls", "pppoed", "pppoes", "geneve"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Joiner {
    And,
    Or,
}

/// The words from one `and` or `or` to the next, outside parentheses.
#[derive(Debug)]
pub(crate) struct Clause {
    /// Joiner between this clause and everything on its left. Without meaning for the first clause.
    pub(crate) joiner: Joiner,
    /// Whether the clause begins with an odd number of `not`.
    pub(crate) negated: bool,
    /// Words of the clause, including each leading `not`.
    pub(crate) words: Range<usize>,
    /// Index of the first word after the leading `not`s.
    pub(crate) first: usize,
    /// Clauses in the parentheses, if the words from `first` on are one pair of parentheses and its
    /// content. `None` also if the parentheses are nested more than [`DEPTH_MAX`] levels deep.
    pub(crate) group: Option<Vec<Clause>>,
}

#[derive(Debug)]
pub(crate) struct Structure<'t> {
    pub(crate) text: &'t str,
    pub(crate) words: &'t [Word],
    /// For each opening parenthesis, the index of its closing parenthesis.
    partners: Vec<usize>,
    /// At least one clause.
    pub(crate) clauses: Vec<Clause>,
}

impl<'t> Structure<'t> {
    /// Parses a text that is cut into words. `Err` is the index of the word with a syntax error;
    /// `words.len()` means the end of the text.
    pub(crate) fn parse(text: &'t str, words: &'t [Word]) -> Result<Self, usize> {
        let mut structure = Self {
            text,
            words,
            partners: partners(words)?,
            clauses: Vec::new(),
        };
        structure.clauses = structure.clauses_in(0..words.len(), 0)?;
        Ok(structure)
    }

    /// Cuts the words of `range`, which must be balanced in parentheses, into clauses. `Err` is the
    /// index of the word before which an operand is missing.
    pub(crate) fn clauses_in(
        &self,
        range: Range<usize>,
        depth: usize,
    ) -> Result<Vec<Clause>, usize> {
        let mut clauses = Vec::new();
        let mut joiner = Joiner::And;
        let mut start = range.start;
        loop {
            let is_not = |index: &usize| self.words[*index].kind == WordKind::Not;
            let nots = (start..range.end).take_while(is_not).count();
            let first = start + nots;
            let end = self.clause_end(first..range.end);
            if end == first {
                return Err(first);
            }
            let is_group = self.is_in_parentheses(first..end) && depth < DEPTH_MAX;
            let group = is_group.then(|| self.clauses_in(first + 1..end - 1, depth + 1));
            clauses.push(Clause {
                joiner,
                negated: nots % 2 == 1,
                words: start..end,
                first,
                group: group.transpose()?,
            });
            if end == range.end {
                return Ok(clauses);
            }
            joiner = match self.words[end].kind {
                WordKind::And => Joiner::And,
                _ => Joiner::Or,
            };
            start = end + 1;
        }
    }

    /// Index of the first `and` or `or` outside parentheses, or the end of `range`.
    fn clause_end(&self, range: Range<usize>) -> usize {
        let mut at = range.start;
        while at < range.end && !matches!(self.words[at].kind, WordKind::And | WordKind::Or) {
            at = self.partner(at).unwrap_or(at) + 1;
        }
        at.min(range.end)
    }

    /// Index of the closing parenthesis, if the word at `index` is an opening parenthesis.
    pub(crate) fn partner(&self, index: usize) -> Option<usize> {
        (self.words[index].kind == WordKind::Open).then(|| self.partners[index])
    }

    /// Whether these words, at least one, are a pair of parentheses and its content.
    pub(crate) fn is_in_parentheses(&self, words: Range<usize>) -> bool {
        self.partner(words.start)
            .is_some_and(|close| close + 1 == words.end)
    }

    pub(crate) fn word(&self, index: usize) -> Option<&'t str> {
        let word = self.words.get(index)?;
        Some(&self.text[word.span.clone()])
    }

    /// Bytes of these words. `words` must not be empty.
    pub(crate) fn bytes(&self, words: Range<usize>) -> Range<usize> {
        self.words[words.start].span.start..self.words[words.end - 1].span.end
    }

    /// Index of the last word that is in [`SHIFTING`].
    pub(crate) fn last_shift(&self) -> Option<usize> {
        let is_shifting = |word: &Word| SHIFTING.contains(&&self.text[word.span.clone()]);
        self.words.iter().rposition(is_shifting)
    }
}

/// For each opening parenthesis, the index of its partner. `Err` is the index of an error.
fn partners(words: &[Word]) -> Result<Vec<usize>, usize> {
    let mut partners = vec![0; words.len()];
    let mut open = Vec::new();
    for (index, word) in words.iter().enumerate() {
        match word.kind {
            WordKind::Open => open.push(index),
            WordKind::Close => partners[open.pop().ok_or(index)?] = index,
            _ => {}
        }
    }
    if open.is_empty() {
        Ok(partners)
    } else {
        Err(words.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::words;

    fn shown(structure: &Structure<'_>, clauses: &[Clause]) -> String {
        let show = |clause: &Clause| {
            let joiner = match clause.joiner {
                Joiner::And => "&",
                Joiner::Or => "|",
            };
            let inside = match &clause.group {
                Some(group) => shown(structure, group),
                None => structure.text[structure.bytes(clause.first..clause.words.end)].to_owned(),
            };
            format!(
                "{joiner}{}[{inside}]",
                if clause.negated { "!" } else { "" }
            )
        };
        clauses.iter().map(show).collect()
    }

    fn parsed(text: &str) -> Result<String, usize> {
        let words = words(text);
        let structure = Structure::parse(text, &words)?;
        Ok(shown(&structure, &structure.clauses))
    }

    #[test]
    fn clauses_are_what_is_joined() {
        let cases = [
            ("tcp", "&[tcp]"),
            ("ip and !udp or not not arp", "&[ip]&![udp]|[arp]"),
            ("not (ip or (arp)) and tcp", "&![&[ip]|[&[arp]]]&[tcp]"),
            (
                "src or dst port (80 or 443) && ip",
                "&[src or dst port (80 or 443)]&[ip]",
            ),
            ("(ip[0] & 1) = 1 and (udp)", "&[(ip[0] & 1) = 1]&[&[udp]]"),
        ];
        for (text, clauses) in cases {
            assert_eq!(parsed(text).as_deref(), Ok(clauses), "{text}");
        }
    }

    #[test]
    fn what_is_missing_has_a_place() {
        for (text, place) in [
            ("", 0),
            ("tcp and", 2),
            ("tcp and or udp", 2),
            ("(tcp or not) and udp", 4),
            ("tcp )", 1),
            ("( tcp", 2),
        ] {
            assert_eq!(parsed(text), Err(place), "{text}");
        }
        let deep = format!("{}tcp{}", "(".repeat(300), ")".repeat(300));
        assert!(parsed(&deep).is_ok());
    }
}
