//! Cuts an expression into words, close enough to libpcap's scanner to point at places and to see
//! the boolean structure. This module does not judge pcap-filter text: libpcap decides about that.
//! A payload term is one word of [`words_and_tests`].

use std::ops::Range;

use crate::{
    FilterError,
    payload::{self, PayloadTest},
    scan::word_len,
};

/// A word of the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Word {
    /// Bytes of the word in the text.
    pub(crate) span: Range<usize>,
    /// Role of the word in a boolean expression.
    pub(crate) kind: WordKind,
}

/// Role of a word in a boolean expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WordKind {
    /// `and` or `&&`.
    And,
    /// `or` or `||`.
    Or,
    /// `not` or `!`.
    Not,
    /// `(`.
    Open,
    /// `)`.
    Close,
    /// `$name`, unless it is an ARCnet address (`$` and one or two hexadecimal digits).
    Dollar,
    /// A payload term, from `payload` to the end of its string or pattern. Contains the index of
    /// the term.
    Payload(usize),
    /// Anything else.
    Other,
}

/// Cuts pcap-filter text into words. The words are in order, do not overlap, and leave out only
/// white space.
///
/// In `src or dst port 80` the `or` is part of a qualifier, and has the kind [`WordKind::Other`].
pub(crate) fn words(text: &str) -> Vec<Word> {
    let mut scanner = WordScanner::new(text);
    while let Some(len) = scanner.next_len() {
        scanner.push(len);
    }
    scanner.finish()
}

/// Cuts an expression that may contain payload terms into words. Also returns the tests of these
/// terms, in order.
///
/// # Errors
/// [`FilterProblem::Payload`](crate::FilterProblem::Payload) for an invalid payload term.
pub(crate) fn words_and_tests(text: &str) -> Result<(Vec<Word>, Vec<PayloadTest>), FilterError> {
    let mut scanner = WordScanner::new(text);
    let mut tests = payload::PayloadTests::default();
    while let Some(len) = scanner.next_len() {
        let start = scanner.at;
        // `payload` without a term after it is a name, for example that of a host.
        match &text[start..start + len] {
            payload::KEYWORD => match tests.parse(text, start)? {
                Some(len) => scanner.push_as(len, WordKind::Payload(tests.tests.len() - 1)),
                None => scanner.push(len),
            },
            _ => scanner.push(len),
        }
    }
    Ok((scanner.finish(), tests.tests))
}

/// A scan over a text, word by word.
struct WordScanner<'t> {
    text: &'t str,
    words: Vec<Word>,
    /// Start of the next word, or the end of the text.
    at: usize,
    /// Number of open square brackets.
    brackets: u32,
}

impl<'t> WordScanner<'t> {
    fn new(text: &'t str) -> Self {
        let mut scanner = Self {
            text,
            // A word and the following blank usually have at least 4 bytes on average.
            words: Vec::with_capacity(text.len() / 4 + 1),
            at: 0,
            brackets: 0,
        };
        scanner.go_to(0);
        scanner
    }

    /// Length in bytes of the next word.
    fn next_len(&self) -> Option<usize> {
        let rest = &self.text[self.at..];
        // In `ip[2:2]` the colon is a word; elsewhere it belongs to an address.
        let len = |first| word_len(rest, first, self.brackets == 0);
        rest.chars().next().map(len)
    }

    fn push(&mut self, len: usize) {
        let word = &self.text[self.at..self.at + len];
        match word {
            "[" => self.brackets += 1,
            "]" => self.brackets = self.brackets.saturating_sub(1),
            _ => {}
        }
        self.push_as(len, kind(word));
    }

    fn push_as(&mut self, len: usize, kind: WordKind) {
        let span = self.at..self.at + len;
        self.go_to(span.end);
        self.words.push(Word { span, kind });
    }

    /// Moves to the first word from `at` on.
    fn go_to(&mut self, at: usize) {
        self.at = self.text.len() - self.text[at..].trim_start().len();
    }

    fn finish(self) -> Vec<Word> {
        let Self {
            text, mut words, ..
        } = self;
        let is_direction = |word: &Word| matches!(&text[word.span.clone()], "src" | "dst");
        for middle in 1..words.len().saturating_sub(1) {
            if is_direction(&words[middle - 1]) && is_direction(&words[middle + 1]) {
                words[middle].kind = WordKind::Other;
            }
        }
        words
    }
}

fn kind(word: &str) -> WordKind {
    match word {
        "and" | "&&" => WordKind::And,
        "or" | "||" => WordKind::Or,
        "not" | "!" => WordKind::Not,
        "(" => WordKind::Open,
        ")" => WordKind::Close,
        _ if word.starts_with('$') && !is_arcnet_address(word) => WordKind::Dollar,
        _ => WordKind::Other,
    }
}

fn is_arcnet_address(word: &str) -> bool {
    matches!(word.len(), 2 | 3) && word[1..].bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str) -> Vec<&str> {
        words(text)
            .into_iter()
            .map(|word| &text[word.span])
            .collect()
    }

    #[test]
    fn words_are_those_of_the_scanner() {
        assert_eq!(
            texts(" tcp[2:2]>=80&&(not host fe80::1 or ether host 0:1:2:3:4:5)"),
            [
                "tcp",
                "[",
                "2",
                ":",
                "2",
                "]",
                ">=",
                "80",
                "&&",
                "(",
                "not",
                "host",
                "fe80::1",
                "or",
                "ether",
                "host",
                "0:1:2:3:4:5",
                ")"
            ]
        );
        assert_eq!(
            texts("!$flow and\tproto \\tcp"),
            ["!", "$flow", "and", "proto", "\\tcp"]
        );
        assert_eq!(
            texts("net 10.0.0.0/8 or tcp-syn"),
            ["net", "10.0.0.0", "/", "8", "or", "tcp-syn"]
        );
        assert_eq!(texts("ä € §"), ["ä", "€", "§"]);
        assert_eq!(texts("host ::1"), ["host", "::1"]);
        assert_eq!(texts(""), Vec::<&str>::new());
    }

    #[test]
    fn kinds_tell_variables_from_arcnet_addresses() {
        let kinds: Vec<WordKind> = words("$ab $abc $a $ $1g ! ) ||")
            .into_iter()
            .map(|word| word.kind)
            .collect();
        use WordKind::{Close, Dollar, Not, Or, Other};
        assert_eq!(
            kinds,
            [Other, Dollar, Other, Dollar, Dollar, Not, Close, Or]
        );
    }
}
