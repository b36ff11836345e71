//! Payload terms: `payload contains "…"`, `payload startswith "…"`, `payload matches /…/`.
//!
//! Payload terms are Retroscope's own primitives, joined by `and or not ( )`. A term tests the
//! bytes that [`retroscope_packet::Parsed::payload`] returns, even 0 bytes. If the payload is
//! unknown (`None`), the term does not match. In pcap-filter text, none of the three operators can
//! follow `payload`.
//!
//! memchr's `memmem` searches single strings, aho-corasick several at once. The regex crate's time
//! is linear in the payload and in the pattern, so the size of a pattern is bounded: see
//! [`pattern`].

mod literal;
mod pattern;
mod test;

use std::{borrow::Cow, ops::Range};

use crate::{FilterError, FilterProblem, scan::first_word_len};

pub(crate) use test::{AnyString, PayloadTest};

pub(crate) const KEYWORD: &str = "payload";
/// Maximum number of patterns in one expression. Compiling a pattern takes up to some milliseconds,
/// and the patterns' memory adds up.
const PATTERNS_MAX: usize = 100;

type PayloadProblem = (Range<usize>, Cow<'static, str>);

#[derive(Debug, Default)]
pub(crate) struct PayloadTests {
    pub(crate) tests: Vec<PayloadTest>,
    patterns: usize,
}

impl PayloadTests {
    /// Parses the term whose word `payload` starts at `start`. Returns the length of the term, or
    /// `None` if the word is something else, such as a host name.
    ///
    /// # Errors
    /// [`FilterProblem::Payload`].
    pub(crate) fn parse(&mut self, text: &str, start: usize) -> Result<Option<usize>, FilterError> {
        let operator_start = skip_blanks(text, start + KEYWORD.len());
        let operator_end = operator_start + first_word_len(&text[operator_start..]);
        let operand = skip_blanks(text, operator_end);
        let parsed = match &text[operator_start..operator_end] {
            name @ "contains" => {
                let string = literal::parse(text, operand, name);
                string.map(|(bytes, end)| (PayloadTest::contains(&bytes), end))
            }
            name @ "startswith" => {
                let string = literal::parse(text, operand, name);
                string.map(|(bytes, end)| (PayloadTest::StartsWith(bytes.into()), end))
            }
            "matches" if self.patterns == PATTERNS_MAX => {
                let message = format!(
                    "more than {PATTERNS_MAX} patterns in one expression; join some by | inside one pattern"
                );
                Err((operand..operand, message.into()))
            }
            "matches" => {
                self.patterns += 1;
                pattern::parse(text, operand)
                    .map(|(pattern, end)| (PayloadTest::Matches(pattern), end))
            }
            _ if is_almost_a_term(text, operator_start..operator_end) => {
                let message = "after 'payload' comes 'contains', 'startswith' or 'matches'";
                Err((operator_start..operator_end, message.into()))
            }
            _ => return Ok(None),
        };
        let (test, end) = parsed.map_err(|(span, message)| {
            FilterError::new(FilterProblem::Payload(message), text, span)
        })?;
        self.tests.push(test);
        Ok(Some(end - start))
    }
}

/// Whether a string follows `payload`, or a word and then a string or pattern. pcap-filter text has
/// no strings and patterns, so the user meant a payload term.
fn is_almost_a_term(text: &str, word: Range<usize>) -> bool {
    let behind = &text[skip_blanks(text, word.end)..];
    let is_word = text[word.clone()].starts_with(|c: char| c.is_ascii_alphabetic());
    text[word].starts_with('"') || (is_word && behind.starts_with(['"', '/']))
}

fn skip_blanks(text: &str, at: usize) -> usize {
    text.len() - text[at..].trim_start().len()
}
