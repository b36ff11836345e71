//! The boolean structure of pcap-filter text, as far as words tell it: what `and`, `or`, `not` and parentheses join.
//!
//! pcap-filter(7): `and` and `or` have the same precedence and group from left to right, `not` binds tighter. What a clause says is
//! not looked at here: that is what those who ask differ in.

use std::ops::Range;

use crate::words::{Word, WordKind};

/// Parentheses inside each other that are looked into, at most.
const DEPTH_MAX: usize = 100;
/// Primitives that change the offsets of everything after them.
const SHIFTING: [&str; 5] = ["vlan", "mpls", "pppoed", "pppoes", "geneve"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Joiner {
    And,
    Or,
}

/// The words between an `and` or `or` and the next one outside parentheses.
#[derive(Debug)]
pub(crate) struct Clause {
    /// What joins it to everything on its left; of the first clause it has no meaning.
    pub(crate) joiner: Joiner,
    /// An odd number of `not` stands in front.
    pub(crate) negated: bool,
    /// Its words, those in front included.
    pub(crate) words: Range<usize>,
    /// The first word that is no `not`: in `words`.
    pub(crate) first: usize,
    /// What stands in its parentheses, if it is nothing else.
    pub(crate) group: Option<Vec<Clause>>,
}

/// A text as clauses.
#[derive(Debug)]
pub(crate) struct Structure<'t> {
    pub(crate) text: &'t str,
    pub(crate) words: &'t [Word],
    /// For each opening parenthesis the index of the closing one.
    partners: Vec<usize>,
    /// The clauses of the expression, at least one.
    pub(crate) clauses: Vec<Clause>,
}

impl<'t> Structure<'t> {
    /// Parses a text that is cut into words. `Err`: the word where a parenthesis has no partner, or a clause no words; `words.len()` for
    /// the end of the text.
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

    /// The words of `range`, which stand at one depth of parentheses or deeper, as clauses. `Err`: the word where one has no words.
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

    /// The closing parenthesis of an opening one.
    pub(crate) fn partner(&self, index: usize) -> Option<usize> {
        (self.words[index].kind == WordKind::Open).then(|| self.partners[index])
    }

    /// Whether these words, at least one, are parentheses and what stands in them.
    pub(crate) fn is_in_parentheses(&self, words: Range<usize>) -> bool {
        self.partner(words.start)
            .is_some_and(|close| close + 1 == words.end)
    }

    /// A word as it stands in the text.
    pub(crate) fn word(&self, index: usize) -> Option<&'t str> {
        let word = self.words.get(index)?;
        Some(&self.text[word.span.clone()])
    }

    /// The bytes of some words, at least one.
    pub(crate) fn bytes(&self, words: Range<usize>) -> Range<usize> {
        self.words[words.start].span.start..self.words[words.end - 1].span.end
    }

    /// The last primitive that changes the offsets of everything after it.
    pub(crate) fn last_shift(&self) -> Option<usize> {
        let is_shifting = |word: &Word| SHIFTING.contains(&&self.text[word.span.clone()]);
        self.words.iter().rposition(is_shifting)
    }
}

/// For each opening parenthesis the index of the closing one. `Err`: the closing one that has none, or the end.
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

    /// The clauses as text: each in brackets, with what joins it.
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
