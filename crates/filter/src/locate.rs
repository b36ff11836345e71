//! Finds the word that a libpcap error is about. libpcap reports no positions, so this module
//! compiles variations of the text.
//!
//! A probe cuts the text after some words and appends a number that does not fit 32 bits. libpcap's
//! scanner rejects the number with its own message, but only if the parser gets that far. If the
//! probe gives the original error instead, the place is before the cut. Bisection finds the first
//! such cut with about a dozen probes, even in a long expression.

use std::{ffi::CString, ops::Range};

use crate::{
    FilterError, FilterProblem,
    sys::CompileHandle,
    words::{Word, words},
};

/// Prefix of the parser's errors.
const PARSER: &str = "can't parse filter expression: ";
/// The parser's error, which names no word.
const SYNTAX: &str = "syntax error";
/// A number that does not fit 32 bits and that no user writes.
const PROBE: &str = " 0x5afe5afe5afe5afe ";
/// Errors that may come from the system's resolver. If such an error fits several words, the place
/// is the first of these words: a probe would call the resolver again, which may be slow.
const RESOLVER: [&str; 2] = ["unknown host", "unknown network"];

/// The error for `message`, which `handle` gave for `text`.
pub(crate) fn refusal(text: &str, message: &str, handle: &mut CompileHandle) -> FilterError {
    let words = words(text);
    let short = message.strip_prefix(PARSER).unwrap_or(message);
    let (problem, span) = if short == SYNTAX {
        let index = first_word_refused(text, &words, handle, |answer| answer.ends_with(SYNTAX));
        let span = words.get(index).map(|word| word.span.clone());
        (FilterProblem::Syntax, span)
    } else {
        let span = quoted_phrase(text, message).or_else(|| {
            word_meant(text, &words, message, handle).map(|index| words[index].span.clone())
        });
        (FilterProblem::Refused(short.to_owned()), span)
    };
    let end = text.trim_end().len();
    FilterError::new(problem, text, span.unwrap_or(end..end))
}

/// Index of the first word after which libpcap gives the error. `words.len()` if the error needs
/// the whole text.
fn first_word_refused(
    text: &str,
    words: &[Word],
    handle: &mut CompileHandle,
    is_it: impl Fn(&str) -> bool,
) -> usize {
    let mut refused = |index: usize| {
        let prefix = format!("{}{PROBE}", &text[..words[index].span.end]);
        // `text` contains no NUL, because the caller compiled `text`.
        CString::new(prefix).is_ok_and(|prefix| {
            handle
                .compile(&prefix, false)
                .is_err_and(|answer| is_it(&answer))
        })
    };
    let (mut low, mut high) = (0, words.len());
    while low < high {
        let middle = low.midpoint(high);
        if refused(middle) {
            high = middle
        } else {
            low = middle + 1
        }
    }
    low
}

/// Index of the word that `message`, which is no syntax error, is about. `None` if `words` is
/// empty.
fn word_meant(
    text: &str,
    words: &[Word],
    message: &str,
    handle: &mut CompileHandle,
) -> Option<usize> {
    let is_named = |word: &Word| named_in(message, &text[word.span.clone()]);
    let mut named = (0..words.len()).filter(|&index| is_named(&words[index]));
    match (named.next(), named.next()) {
        (Some(only), None) => return Some(only),
        (Some(first), Some(_)) if RESOLVER.iter().any(|start| message.starts_with(start)) => {
            return Some(first);
        }
        _ => {}
    }
    // The parser may need one more word to see the end of a phrase, and reports the error after
    // that word.
    let at = first_word_refused(text, words, handle, |answer| answer == message);
    let upto = at.min(words.len().checked_sub(1)?);
    let before = |is_it: &dyn Fn(&str) -> bool| {
        let mut indexes = (0..=upto).rev();
        indexes.find(|index| is_it(&text[words[*index].span.clone()]))
    };
    before(&|word| named_in(message, word))
        .or_else(|| before(&|word| keywords(message).contains(&word)))
        .or_else(|| before(&|word| word.starts_with(char::is_alphanumeric)))
        .or(Some(upto))
}

/// Bytes of words that the message quotes exactly as in the text, such as `"10.0.0.1/8"`.
fn quoted_phrase(text: &str, message: &str) -> Option<Range<usize>> {
    let phrase = message
        .split('"')
        .nth(1)
        .filter(|phrase| phrase.contains(['/', ' ']))?;
    let start = text.find(phrase)?;
    Some(start..start + phrase.len())
}

/// Whether the message names `word`: in quotes, or as one of the message's words if `word` has a
/// digit.
fn named_in(message: &str, word: &str) -> bool {
    let bare = word.strip_prefix('\\').unwrap_or(word);
    if bare.is_empty() || !bare.starts_with(|c: char| c.is_ascii_alphanumeric() || c == ':') {
        return false;
    }
    let quoted = |quote: char| {
        message
            .split(quote)
            .skip(1)
            .step_by(2)
            .any(|name| name == bare || name.split([' ', '/']).any(|part| part == bare))
    };
    let has_digit = bare.contains(|c: char| c.is_ascii_digit());
    quoted('\'')
        || quoted('"')
        || (has_digit
            && message
                .split(' ')
                .any(|part| part == bare || (part.ends_with(':') && bare.starts_with(part))))
}

/// Keywords that an error without a quoted word is about.
fn keywords(message: &str) -> &'static [&'static str] {
    const TABLE: [(&str, &[&str]); 16] = [
        ("VLAN support", &["vlan"]),
        ("MPLS support", &["mpls"]),
        ("division by zero", &["/"]),
        ("modulus by zero", &["%"]),
        ("shift by more", &["<<", ">>"]),
        ("inbound/outbound", &["inbound", "outbound"]),
        ("ifindex", &["ifindex"]),
        ("broadcast", &["broadcast"]),
        ("netmask not known", &["broadcast"]),
        ("multicast", &["multicast"]),
        ("radio information", &["radio"]),
        ("ifname", &["ifname", "on"]),
        ("action supported", &["action"]),
        ("link-layer types supported", &["type", "subtype"]),
        ("frame direction", &["dir", "direction"]),
        ("geneve", &["geneve"]),
    ];
    TABLE
        .iter()
        .find(|(part, _)| message.contains(part))
        .map_or(&[], |(_, words)| words)
}
