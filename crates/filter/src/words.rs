//! Cutting pcap-filter text into words, near enough to libpcap's scanner to point at places and to see the boolean
//! structure. Nothing is judged here: libpcap has the last word on every expression.

use std::ops::Range;

/// A word of the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Word {
    /// Its bytes in the text.
    pub(crate) span: Range<usize>,
    /// What it does in a boolean expression.
    pub(crate) kind: WordKind,
}

/// What a word does in a boolean expression.
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
    /// Anything else.
    Other,
}

/// Operators of two characters.
const PAIRS: [&str; 9] = ["&&", "||", ">=", "<=", "==", "!=", "<<", ">>", "::"];

/// Cuts `text` into words. They come in order, do not overlap, and leave out white space only.
///
/// In `src or dst port 80` the `or` is part of a qualifier, and of kind [`WordKind::Other`].
pub(crate) fn words(text: &str) -> Vec<Word> {
    let mut words = Vec::new();
    let mut brackets = 0_u32;
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let start = text.len() - rest.len();
        // In `ip[2:2]` the colon stands alone; elsewhere it belongs to an address.
        let len = word_len(rest, first, brackets == 0);
        match first {
            '[' => brackets += 1,
            ']' => brackets = brackets.saturating_sub(1),
            _ => {}
        }
        words.push(Word {
            span: start..start + len,
            kind: kind(&rest[..len]),
        });
        rest = rest[len..].trim_start();
    }
    let is_direction = |word: &Word| matches!(&text[word.span.clone()], "src" | "dst");
    for middle in 1..words.len().saturating_sub(1) {
        if is_direction(&words[middle - 1]) && is_direction(&words[middle + 1]) {
            words[middle].kind = WordKind::Other;
        }
    }
    words
}

fn word_len(rest: &str, first: char, colon_joins: bool) -> usize {
    let len_while = |from: usize, belongs: &dyn Fn(char) -> bool| {
        from + rest[from..]
            .find(|character| !belongs(character))
            .unwrap_or(rest.len() - from)
    };
    let joins = |c: char| {
        c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-') || (colon_joins && c == ':')
    };
    match first {
        '$' => len_while(1, &|c| c.is_ascii_alphanumeric() || c == '_'),
        '\\' => len_while(1, &|c| {
            !matches!(c, ' ' | '!' | '(' | ')') && !c.is_ascii_whitespace()
        }),
        _ if first.is_ascii_alphanumeric() => len_while(0, &joins),
        ':' if colon_joins => len_while(0, &joins),
        _ if PAIRS.iter().any(|pair| rest.starts_with(pair)) => 2,
        _ => first.len_utf8(),
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
