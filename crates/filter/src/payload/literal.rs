//! Strings of payload terms: `"GET \x00\r\n"`.

use std::ops::Range;

use super::PayloadError;

/// Parses the string at `start`, which belongs to `operator`; gives its bytes and where the text goes on.
///
/// Between the quotes stands UTF-8 text, taken as its bytes, and the escapes `\xNN \n \r \t \\ \"`.
///
/// # Errors
/// What is wrong, and where.
pub(super) fn parse(
    text: &str,
    start: usize,
    operator: &'static str,
) -> Result<(Vec<u8>, usize), (Range<usize>, PayloadError)> {
    if !text[start..].starts_with('"') {
        return Err((start..start, PayloadError::NoString { operator }));
    }
    let mut bytes = Vec::new();
    let mut at = start + 1;
    while let Some(&byte) = text.as_bytes().get(at) {
        match byte {
            b'"' if bytes.is_empty() => return Err((start..at + 1, PayloadError::EmptyString)),
            b'"' => return Ok((bytes, at + 1)),
            b'\\' => {
                let (escaped, len) = escape(text, at)?;
                bytes.push(escaped);
                at += len;
            }
            _ => {
                bytes.push(byte);
                at += 1;
            }
        }
    }
    let (what, closing) = ("string", '"');
    Err((start..start + 1, PayloadError::Unclosed { what, closing }))
}

/// The byte that the escape at `at` stands for, and the bytes of the escape.
fn escape(text: &str, at: usize) -> Result<(u8, usize), (Range<usize>, PayloadError)> {
    let bytes = &text.as_bytes()[at + 1..];
    let simple = match bytes.first() {
        Some(b'n') => b'\n',
        Some(b'r') => b'\r',
        Some(b't') => b'\t',
        Some(same @ (b'\\' | b'"')) => *same,
        Some(b'x') => {
            let digits = (bytes.get(1).and_then(hex), bytes.get(2).and_then(hex));
            return match digits {
                (Some(high), Some(low)) => Ok((high << 4 | low, 4)),
                _ => Err((at..at + 2, PayloadError::UnknownEscape)),
            };
        }
        _ => return Err((at..at + 2, PayloadError::UnknownEscape)),
    };
    Ok((simple, 2))
}

/// The value of a hexadecimal digit.
fn hex(digit: &u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_bytes() {
        let parsed = |text| parse(text, 0, "contains").map_err(|(_, error)| error);
        assert_eq!(parsed("\"GET /\" and"), Ok((b"GET /".to_vec(), 7)));
        assert_eq!(
            parsed(r#""\x00\xfF\n\r\t\\\"/""#),
            Ok((b"\x00\xff\n\r\t\\\"/".to_vec(), 21))
        );
        assert_eq!(parsed("\"§\n\""), Ok((b"\xc2\xa7\n".to_vec(), 5)));
        assert_eq!(parsed("\"$srcIP ) or\""), Ok((b"$srcIP ) or".to_vec(), 13)));
    }

    #[test]
    fn what_is_wrong_is_marked() {
        let (what, closing) = ("string", '"');
        let unclosed = PayloadError::Unclosed { what, closing };
        let operator = "startswith";
        for (text, marked, error) in [
            ("abc", "", PayloadError::NoString { operator }),
            ("", "", PayloadError::NoString { operator }),
            ("\"", "\"", unclosed.clone()),
            (r#""abc\""#, "\"", unclosed),
            (r#""""#, r#""""#, PayloadError::EmptyString),
            (r#""a\qb""#, r"\q", PayloadError::UnknownEscape),
            (r#""a\x4"#, r"\x", PayloadError::UnknownEscape),
            (r#""a\x4§""#, r"\x", PayloadError::UnknownEscape),
            (r#""a\x+1""#, r"\x", PayloadError::UnknownEscape),
            (r#""a\"#, r"\", PayloadError::UnknownEscape),
            (r#""a\§""#, r"\§", PayloadError::UnknownEscape),
        ] {
            let (span, found) = parse(text, 0, operator).expect_err(text);
            assert_eq!(found, error, "{text}");
            assert_eq!(crate::Place::new(text, span.clone()).span, {
                let start = text.find(marked).unwrap();
                start..start + marked.len()
            });
        }
    }
}
