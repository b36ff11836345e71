//! String literals of payload terms: `"GET \x00\r\n"`.

use super::PayloadProblem;

const UNKNOWN_ESCAPE: &str = r#"unknown escape; there are \xNN \n \r \t \\ \""#;

/// Parses the string at `start`, the operand of `operator`. Returns the bytes and the offset after
/// the string.
///
/// The text between the quotes means its UTF-8 bytes, with the escapes `\xNN \n \r \t \\ \"`.
///
/// # Errors
/// The problem and its place.
pub(super) fn parse(
    text: &str,
    start: usize,
    operator: &str,
) -> Result<(Vec<u8>, usize), PayloadProblem> {
    if !text[start..].starts_with('"') {
        let message = format!("write a string in double quotes, as in payload {operator} \"text\"");
        return Err((start..start, message.into()));
    }
    let mut bytes = Vec::new();
    let mut at = start + 1;
    while let Some(&byte) = text.as_bytes().get(at) {
        match byte {
            b'"' if bytes.is_empty() => {
                return Err((start..at + 1, "an empty string is in every payload".into()));
            }
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
    let message = "the string that begins here has no closing \"";
    Err((start..start + 1, message.into()))
}

/// Value and length of the escape at `at`.
fn escape(text: &str, at: usize) -> Result<(u8, usize), PayloadProblem> {
    let unknown = || (at..at + 2, UNKNOWN_ESCAPE.into());
    let bytes = &text.as_bytes()[at + 1..];
    let simple = match bytes.first() {
        Some(b'n') => b'\n',
        Some(b'r') => b'\r',
        Some(b't') => b'\t',
        Some(same @ (b'\\' | b'"')) => *same,
        Some(b'x') => {
            let digits = text.get(at + 2..at + 4);
            let digits = digits.filter(|two| two.bytes().all(|digit| digit.is_ascii_hexdigit()));
            let byte = digits.and_then(|two| u8::from_str_radix(two, 16).ok());
            return byte.map(|byte| (byte, 4)).ok_or_else(unknown);
        }
        _ => return Err(unknown()),
    };
    Ok((simple, 2))
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
        for (text, marked) in [
            ("abc", ""),
            ("", ""),
            ("\"", "\""),
            (r#""abc\""#, "\""),
            (r#""""#, r#""""#),
            (r#""a\qb""#, r"\q"),
            (r#""a\x4"#, r"\x"),
            (r#""a\x4§""#, r"\x"),
            (r#""a\x+1""#, r"\x"),
            (r#""a\"#, r"\"),
            (r#""a\§""#, r"\§"),
        ] {
            let (span, _) = parse(text, 0, "startswith").expect_err(text);
            assert_eq!(
                crate::FilterError::new(crate::FilterProblem::Syntax, text, span).span(),
                {
                    let start = text.find(marked).unwrap();
                    start..start + marked.len()
                }
            );
        }
    }
}
