//! Patterns of payload terms: `/^GET [^ ]*\.exe/i`.
//!
//! The syntax is the regex crate's, applied to bytes. By default `.` is any byte except a line
//! feed, `\xNN` is one byte, and classes such as `\w` are ASCII. There are no back references and
//! no look-around, so a search takes linear time. Inside a pattern a slash is written `\/`.

use regex::bytes::{Regex, RegexBuilder};
use regex_syntax::ParserBuilder;

use super::PayloadProblem;

const PATTERN_BYTES_MAX: usize = 4 << 10;
const NEST_MAX: u32 = 50;
/// Maximum size of a compiled pattern in bytes. For each byte of a payload, a search may read the
/// whole compiled pattern.
const PROGRAM_BYTES_MAX: usize = 256 << 10;
/// Approximate limit, in bytes, of the cache that a search keeps between payloads.
const CACHE_BYTES_MAX: usize = 1 << 20;

/// Compiles the pattern at `start`. Also returns the offset after its text.
///
/// # Errors
/// The problem and its place.
pub(super) fn parse(text: &str, start: usize) -> Result<(Regex, usize), PayloadProblem> {
    if !text[start..].starts_with('/') {
        let message = "write a pattern between slashes, as in payload matches /text/";
        return Err((start..start, message.into()));
    }
    let Some(len) = len(&text[start + 1..]) else {
        let message = "the pattern that begins here has no closing /";
        return Err((start..start + 1, message.into()));
    };
    let span = start + 1..start + 1 + len;
    let flags_start = span.end + 1;
    let flags_end = text[flags_start..]
        .find(|c: char| !c.is_alphanumeric())
        .map_or(text.len(), |len| flags_start + len);
    let ignores_case = match &text[flags_start..flags_end] {
        "" => false,
        "i" => true,
        _ => {
            let message = "unknown flag after a pattern; the only flag is i (ignore case)";
            return Err((flags_start..flags_end, message.into()));
        }
    };
    if span.is_empty() {
        let message = "an empty pattern matches every payload";
        return Err((start..flags_start, message.into()));
    }
    let pattern = compile(&text[span.clone()], ignores_case)
        .map_err(|(inside, error)| (span.start + inside.start..span.start + inside.end, error))?;
    Ok((pattern, flags_end))
}

/// Offset of the slash that ends a pattern.
fn len(pattern: &str) -> Option<usize> {
    let mut is_escaped = false;
    pattern.bytes().position(|byte| {
        let ends = byte == b'/' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        ends
    })
}

fn compile(pattern: &str, ignores_case: bool) -> Result<Regex, PayloadProblem> {
    let whole = 0..pattern.len();
    if pattern.len() > PATTERN_BYTES_MAX {
        let bytes = pattern.len();
        let message =
            format!("a pattern of {bytes} bytes is too long; the limit is {PATTERN_BYTES_MAX}");
        return Err((whole, message.into()));
    }
    // Only the parser reports the place of an error.
    let syntax = ParserBuilder::new()
        .unicode(false)
        .utf8(false)
        .case_insensitive(ignores_case)
        .nest_limit(NEST_MAX)
        .build()
        .parse(pattern);
    if let Err(error) = syntax {
        return Err(bad(pattern, &error));
    }
    let compiled = RegexBuilder::new(pattern)
        .unicode(false)
        .case_insensitive(ignores_case)
        .nest_limit(NEST_MAX)
        .size_limit(PROGRAM_BYTES_MAX)
        .dfa_size_limit(CACHE_BYTES_MAX)
        .build();
    compiled.map_err(|error| {
        let message = match error {
            regex::Error::CompiledTooBig(limit) => format!(
                "the pattern makes a program of more than {limit} bytes; use smaller repetitions"
            ),
            other => format!("bad pattern: {other}"),
        };
        (whole, message.into())
    })
}

fn bad(pattern: &str, error: &regex_syntax::Error) -> PayloadProblem {
    let (span, message) = match error {
        regex_syntax::Error::Parse(error) => (Some(error.span()), error.kind().to_string()),
        regex_syntax::Error::Translate(error) => (Some(error.span()), error.kind().to_string()),
        other => (None, other.to_string()),
    };
    let span = span.map_or(0..pattern.len(), |span| span.start.offset..span.end.offset);
    (span, format!("bad pattern: {message}").into())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustix::time::{ClockId, clock_gettime};

    use super::*;

    fn pattern(text: &str) -> Regex {
        parse(text, 0).expect(text).0
    }

    #[test]
    fn patterns_are_about_bytes() {
        assert!(pattern(r"/\xff\x00./").is_match(b"\xff\x00\xc2"));
        assert!(!pattern(r"/a.b/").is_match(b"a\nb"));
        assert!(pattern(r"/(?s)a.b/").is_match(b"a\nb"));
        assert!(pattern(r"/^GET \/[^ ]*\.exe/").is_match(b"GET /a.exe HTTP/1.1"));
        assert!(pattern("/§/").is_match("§".as_bytes()));
        assert!(!pattern(r"/^\w$/").is_match("ä".as_bytes()));
        assert!(!pattern("/get/").is_match(b"GET"));
        assert!(pattern("/get/i").is_match(b"GET"));
        assert_eq!(parse("/a/i and", 0).unwrap().1, 4);
        assert_eq!(parse(r"/a\\/) or", 0).unwrap().1, 5);
    }

    #[test]
    fn what_is_wrong_is_marked() {
        for (text, marked, words) in [
            ("x", "", "between slashes"),
            ("/abc", "/", "no closing /"),
            (r"/abc\/", "/", "no closing /"),
            ("//", "//", "empty pattern"),
            ("/a/x", "x", "unknown flag"),
            ("/a/ii", "ii", "unknown flag"),
            ("/ab(c/", "(", "unclosed group"),
            ("/a**?+{2/", "{2", "unclosed counted repetition"),
            ("/[z-a]/", "z-a", "range"),
            (r"/a(?=b)/", "(?=", "look-around"),
            (r"/(a)\1/", r"\1", "backreferences"),
            (r"/\p{Greek}/", r"\p{Greek}", "Unicode"),
        ] {
            let (span, error) = parse(text, 0).map(drop).expect_err(text);
            let message = error.to_string();
            assert!(message.contains(words), "{text}: {message}");
            assert!(!message.contains('\n'), "{text}: {message}");
            assert_eq!(&text[span], marked, "{text}: {message}");
        }
    }

    #[test]
    fn patterns_that_would_cost_too_much_are_refused_quickly() {
        let cpu_time = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap();
        let start = cpu_time();
        let nested = format!("/{}{}/", "(".repeat(60), ")".repeat(60));
        let long = format!("/{}/", "a".repeat(PATTERN_BYTES_MAX + 1));
        for (text, words) in [
            ("/((a{100}){100}){100}/", "program of more than"),
            (r"/(\w{1000}){1000}/", "program of more than"),
            (nested.as_str(), "nest"),
            (long.as_str(), "too long"),
        ] {
            let (_, error) = parse(text, 0).map(drop).expect_err(text);
            assert!(error.to_string().contains(words), "{error}");
        }
        let took = cpu_time() - start;
        assert!(took < Duration::from_secs(1), "{took:?}");
    }
}
