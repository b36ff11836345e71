//! The length of a word, approximately as libpcap's scanner cuts words.

/// Words of two characters that are neither letters nor digits.
const PAIRS: [&str; 9] = ["&&", "||", ">=", "<=", "==", "!=", "<<", ">>", "::"];

/// Length in bytes of the first word of `rest`, or 0.
pub(crate) fn first_word_len(rest: &str) -> usize {
    rest.chars()
        .next()
        .map_or(0, |first| word_len(rest, first, true))
}

/// Length in bytes of the first word of `rest`, which begins with `first`. With `colon_joins` a
/// colon is part of an address.
pub(crate) fn word_len(rest: &str, first: char, colon_joins: bool) -> usize {
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
