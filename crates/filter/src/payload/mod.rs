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

use crate::{FilterError, FilterProblem, scan::first_word_len};

pub(crate) use test::{AnyString, PayloadTest};

/// The word that begins a term.
pub(crate) const KEYWORD: &str = "payload";
/// Most patterns of one expression. Compiling one takes up to some milliseconds, and their memory adds up.
const PATTERNS_MAX: usize = 100;

/// What is wrong with a payload term, and where.
type PayloadProblem = (Range<usize>, Cow<'static, str>);

/// The tests of an expression, as they are found.
#[derive(Debug, Default)]
pub(crate) struct PayloadTests {
    pub(crate) tests: Vec<PayloadTest>,
    patterns: usize,
}

impl PayloadTests {
    /// Parses the term at the word `payload` that starts at `start`, and gives its bytes; `None` if that word is
    /// something else, such as the name of a host.
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

/// Whether a string or pattern follows, so that the user meant a term: there is neither in pcap-filter text.
fn is_almost_a_term(text: &str, word: Range<usize>) -> bool {
    let behind = &text[skip_blanks(text, word.end)..];
    let is_word = text[word.clone()].starts_with(|c: char| c.is_ascii_alphabetic());
    text[word].starts_with('"') || (is_word && behind.starts_with(['"', '/']))
}

fn skip_blanks(text: &str, at: usize) -> usize {
    text.len() - text[at..].trim_start().len()
}
