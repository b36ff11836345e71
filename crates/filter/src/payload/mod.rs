//! Terms about the payload: `payload contains "…"`, `payload startswith "…"`, `payload matches /…/`.
//!
//! They are ours, not libpcap's. They stand where a primitive stands, joined by `and or not ( )`, and are decided on the
//! bytes that [`retroscope_packet::Parsed::payload`] gives; a packet without payload matches none of them. libpcap never
//! sees them: `payload` with one of the three words behind it is no pcap-filter text.
//!
//! Strings are searched with memchr's `memmem`, patterns with regex, which takes time linear in the payload and the
//! pattern, whatever both are; a pattern may therefore not grow without bound: see [`pattern`].

mod literal;
mod pattern;
mod test;

use std::{borrow::Cow, ops::Range};

use crate::{FilterError, Problem, words::first_word_len};

pub(crate) use test::{AnyString, Test};

/// The word that begins a term.
pub(crate) const KEYWORD: &str = "payload";
/// The words that may follow, in the order of the documentation.
const OPERATORS: [(&str, Operator); 3] = [
    ("contains", Operator::Contains),
    ("startswith", Operator::StartsWith),
    ("matches", Operator::Matches),
];

/// Most patterns of one expression. Compiling one takes up to some milliseconds, and their memory adds up.
const PATTERNS_MAX: usize = 100;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operator {
    Contains,
    StartsWith,
    Matches,
}

/// What is wrong with a payload term, and where.
type Wrong = (Range<usize>, Cow<'static, str>);

/// The tests of an expression, as they are found.
#[derive(Debug, Default)]
pub(crate) struct Tests {
    tests: Vec<Test>,
    patterns: usize,
}

impl Tests {
    /// Parses the term at the word `payload` that starts at `start`, and gives its bytes; `None` if that word is
    /// something else, such as the name of a host.
    ///
    /// # Errors
    /// [`FilterError::Payload`].
    pub(crate) fn parse(&mut self, text: &str, start: usize) -> Result<Option<usize>, FilterError> {
        let refused =
            |(span, message): Wrong| FilterError::new(Problem::Payload(message), text, span);
        let operator_start = skip_blanks(text, start + KEYWORD.len());
        let operator_end = operator_start + first_word_len(&text[operator_start..]);
        let word = &text[operator_start..operator_end];
        let Some((name, operator)) = OPERATORS.into_iter().find(|(name, _)| *name == word) else {
            return if is_almost_a_term(text, operator_start..operator_end) {
                let message = "after 'payload' comes 'contains', 'startswith' or 'matches'";
                Err(refused((operator_start..operator_end, message.into())))
            } else {
                Ok(None)
            };
        };
        let operand = skip_blanks(text, operator_end);
        let parsed = match operator {
            Operator::Contains | Operator::StartsWith => {
                literal::parse(text, operand, name).map(|(bytes, end)| match operator {
                    Operator::StartsWith => (Test::starts_with(bytes), end),
                    _ => (Test::contains(&bytes), end),
                })
            }
            Operator::Matches if self.patterns == PATTERNS_MAX => {
                let message = format!(
                    "more than {PATTERNS_MAX} patterns in one expression; join some by | inside one pattern"
                );
                Err((operand..operand, message.into()))
            }
            Operator::Matches => {
                self.patterns += 1;
                pattern::parse(text, operand).map(|(pattern, end)| (Test::matches(pattern), end))
            }
        };
        let (test, end) = parsed.map_err(refused)?;
        self.tests.push(test);
        Ok(Some(end - start))
    }

    /// How many were found.
    pub(crate) fn count(&self) -> usize {
        self.tests.len()
    }

    pub(crate) fn into_vec(self) -> Vec<Test> {
        self.tests
    }
}

/// Whether a string or pattern follows, so that the user meant a term: there is neither in pcap-filter text.
fn is_almost_a_term(text: &str, word: Range<usize>) -> bool {
    let behind = &text[skip_blanks(text, word.end)..];
    let is_word = text[word.clone()].starts_with(|c: char| c.is_ascii_alphabetic());
    text[word].starts_with('"') || (is_word && behind.starts_with(['"', '/']))
}

fn skip_blanks(text: &str, at: usize) -> usize {
    text.len() - text[at..].trim_start().len()
}
