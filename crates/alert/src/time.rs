//! Time stamps in logs.

use jiff::Timestamp;

/// A time, ns since the epoch. Accepts date, time and offset (`2026-11-28T05:00:00.123456+0000`,
/// `…Z`), and seconds since the epoch with or without a fraction. `None` if the text is not a time,
/// or the time does not fit into 64 bits.
#[must_use]
pub fn time_ns(text: &str) -> Option<i64> {
    if let Ok(time) = text.parse::<Timestamp>() {
        return i64::try_from(time.as_nanosecond()).ok();
    }
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_number = |digits: &str| digits.bytes().all(|digit| digit.is_ascii_digit());
    if seconds.is_empty() || !is_number(seconds) || !is_number(fraction) {
        return None;
    }
    let fraction = &fraction[..fraction.len().min(9)];
    let nanoseconds: i64 = format!("{fraction:0<9}").parse().ok()?;
    let seconds: i64 = seconds.parse().ok()?;
    seconds.checked_mul(1_000_000_000)?.checked_add(nanoseconds)
}

/// A time, ns since the epoch, rounded down to a microsecond, the precision of alerts.
pub(crate) fn micros(text: &str) -> Option<i64> {
    Some(time_ns(text)?.div_euclid(1000) * 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_in_all_their_forms() {
        let at = Some(1_386_104_996_973_318_000);
        for text in [
            "2013-12-03T21:09:56.973318+0000",
            "2013-12-03T22:09:56.973318+0100",
            "2013-12-03T22:09:56.973318+01:00",
            "2013-12-03T21:09:56.973318Z",
            "2013-12-03T21:09:56.973318000Z",
            "1386104996.973318",
            "1386104996.9733180001",
        ] {
            assert_eq!(time_ns(text), at, "{text}");
        }
        assert_eq!(time_ns("1386104996"), Some(1_386_104_996_000_000_000));
        assert_eq!(
            time_ns("2013-12-03T21:09:56Z"),
            Some(1_386_104_996_000_000_000)
        );
        assert_eq!(micros("1386104996.9733189"), at);
        for text in [
            "",
            ".5",
            "-1",
            "1e9",
            "2013-12-03",
            "99999999999999",
            "noon",
            "1.5.5",
        ] {
            assert_eq!(time_ns(text), None, "{text}");
        }
    }
}
