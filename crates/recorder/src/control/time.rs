//! Time stamps as people and files read them.

use jiff::Timestamp;

/// RFC 3339 in UTC with nine digits and `Z`: `2026-11-20T19:15:03.123456789Z`.
#[must_use]
pub fn rfc3339(time_ns: i64) -> String {
    // Every `i64` of nanoseconds lies between the years 1677 and 2262, inside what `Timestamp` can hold.
    let time = Timestamp::from_nanosecond(i128::from(time_ns));
    format!("{:.9}", time.unwrap_or(Timestamp::UNIX_EPOCH))
}

/// The form that dump files are named by: `20261120T191503.123456789Z`, which sorts by time.
#[must_use]
pub(crate) fn file_stamp(time_ns: i64) -> String {
    rfc3339(time_ns).replace(['-', ':'], "")
}

/// Nanoseconds as seconds for a sentence: `10.000 s`, `-0.250 s`.
#[must_use]
pub(crate) fn seconds(ns: i64) -> String {
    format!("{:.3} s", ns as f64 / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

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
