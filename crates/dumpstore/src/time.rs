//! Time stamps for users and in files.

use jiff::Timestamp;

/// Parses a time from a user, ns since the UNIX epoch.
///
/// The time is RFC 3339 with any offset (`2026-11-20T19:15:03.5Z`, `…+02:00`, `…+0200`), or a
/// number since 1970, with or without a fraction. A space before the offset counts as a plus sign
/// that was not escaped in a link.
///
/// The size of a number, without its sign, determines its unit:
///
/// - below 10¹¹: seconds
/// - below 10¹⁴: milliseconds (from 1973 on)
/// - below 10¹⁷: microseconds (from 1973 on)
/// - otherwise: nanoseconds (from 1973 on)
///
/// Of a number, fractions of a nanosecond are dropped.
///
/// # Errors
/// A message that says what to write instead. Times that do not fit into 64 bits of nanoseconds
/// (before 1677, after 2262) are also errors.
pub fn parse_time(text: &str) -> Result<i64, String> {
    let wrong =
        || format!("{text:?} is not a time: write it like 2026-11-20T19:15:03.5Z or 1795202103.5");
    let trimmed = text.trim();
    let is_number = |c: char| c.is_ascii_digit() || c == '.' || c == '-';
    let ns = if trimmed.starts_with(is_number)
        && trimmed
            .chars()
            .skip(1)
            .all(|c| c.is_ascii_digit() || c == '.')
    {
        epoch_ns(trimmed)
    } else {
        let time: Option<Timestamp> = with_plus(trimmed).parse().ok();
        time.and_then(|time| i64::try_from(time.as_nanosecond()).ok())
    };
    ns.ok_or_else(wrong)
}

/// Parses a number since 1970: see [`parse_time`].
fn epoch_ns(text: &str) -> Option<i64> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if whole.is_empty() || fraction.contains('.') {
        return None;
    }
    let number: u64 = whole.parse().ok()?;
    let places = match number {
        0..100_000_000_000 => 9,
        100_000_000_000..100_000_000_000_000 => 6,
        100_000_000_000_000..100_000_000_000_000_000 => 3,
        _ => 0,
    };
    let fraction = &fraction[..fraction.len().min(places)];
    let mut ns = i128::from(number) * 10_i128.pow(u32::try_from(places).ok()?);
    if !fraction.is_empty() {
        let scale = u32::try_from(places - fraction.len()).ok()?;
        ns += fraction.parse::<i128>().ok()? * 10_i128.pow(scale);
    }
    i64::try_from(sign * ns).ok()
}

/// The text, with a plus sign instead of a space between the time and the digits of an offset.
fn with_plus(text: &str) -> String {
    match text.rsplit_once(' ') {
        Some((time, offset))
            if time.contains('T') && offset.starts_with(|c: char| c.is_ascii_digit()) =>
        {
            format!("{time}+{offset}")
        }
        _ => text.to_owned(),
    }
}

/// RFC 3339 in UTC with nine digits and `Z`: `2026-11-20T19:15:03.123456789Z`.
#[must_use]
pub fn rfc3339(time_ns: i64) -> String {
    // Every `i64` of nanoseconds is between the years 1677 and 2262, within the range of
    // `Timestamp`.
    let time = Timestamp::from_nanosecond(i128::from(time_ns));
    format!("{:.9}", time.unwrap_or(Timestamp::UNIX_EPOCH))
}

/// The form of times in the names of dump files: `20261120T191503.123456789Z`, which sorts by time.
#[must_use]
pub fn file_stamp(time_ns: i64) -> String {
    rfc3339(time_ns).replace(['-', ':'], "")
}

/// Nanoseconds as seconds for a message: `10.000 s`, `-0.250 s`.
#[must_use]
pub fn seconds(ns: i64) -> String {
    format!("{:.3} s", ns as f64 / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_exactly() {
        const NS: i64 = 1_795_202_103_123_456_789;
        for text in [
            "2026-11-20T19:15:03.123456789Z",
            "2026-11-20T21:15:03.123456789+0200",
            "2026-11-20T21:15:03.123456789+02:00",
            "2026-11-20T21:15:03.123456789 0200",
            "2026-11-20T21:15:03.123456789 02:00",
            "2026-11-20t15:45:03.123456789-03:30",
            "1795202103.123456789",
            "1795202103.1234567899999",
            "1795202103123.456789",
            "1795202103123456.789",
            "1795202103123456789",
            "1795202103123456789.9",
            " 1795202103.123456789 ",
        ] {
            assert_eq!(parse_time(text), Ok(NS), "{text}");
        }
        for (text, ns) in [
            ("1970-01-01T00:00:00Z", 0),
            ("0", 0),
            ("0.5", 500_000_000),
            ("-1.5", -1_500_000_000),
            ("5.", 5_000_000_000),
            // The last number of one unit and the first of the next.
            ("100000000000", 100_000_000_000_000_000),
            ("99999999999999", 99_999_999_999_999_000_000_i128),
            ("100000000000000", 100_000_000_000_000_000),
            ("99999999999999999", 99_999_999_999_999_999_000),
            ("100000000000000000", 100_000_000_000_000_000),
        ] {
            assert_eq!(parse_time(text).ok(), i64::try_from(ns).ok(), "{text}");
        }
        for wrong in [
            "",
            " ",
            "-",
            ".",
            ".5",
            "yesterday",
            "2026-11-20",
            "2026-11-20T19:15:03",
            "9999-01-01T00:00:00Z",
            "1e400",
            "5m",
            "1h 5",
            "1.2.3",
            "--1",
            "1-2",
            "99999999999",
            "9223372036854775808",
            "99999999999999999999999999",
            "٣",
        ] {
            assert!(parse_time(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn stamps_have_nine_digits() {
        assert_eq!(
            rfc3339(1_795_202_103_123_456_789),
            "2026-11-20T19:15:03.123456789Z"
        );
        assert_eq!(
            file_stamp(1_795_202_103_123_456_789),
            "20261120T191503.123456789Z"
        );
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000000000Z");
        assert_eq!(rfc3339(-1), "1969-12-31T23:59:59.999999999Z");
        assert_eq!(file_stamp(i64::MIN), "16770921T001243.145224192Z");
        assert_eq!(file_stamp(i64::MAX), "22620411T234716.854775807Z");
    }
}
