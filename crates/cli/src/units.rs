//! Parses sizes and durations, and formats numbers for people.

use std::time::Duration;

use retroscope_capture::quantity;
pub(crate) use retroscope_capture::quantity::counted;

/// Parses a size in bytes: `4GiB`, `512MiB`, `4G`. The suffix is required, and is a power of 1024.
///
/// # Errors
/// A sentence that says what to write instead.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a size: write it like 512MiB or 4GiB");
    let (number, unit) = quantity::split(text);
    let lower = unit.to_ascii_lowercase();
    let prefix = lower.strip_suffix('b').unwrap_or(&lower);
    let exponent = match prefix.strip_suffix('i').unwrap_or(prefix) {
        "k" => 1,
        "m" => 2,
        "g" => 3,
        "t" => 4,
        "" => {
            return Err(format!(
                "{text:?} has no unit: say {}GiB or {}MiB",
                digits_or(number),
                digits_or(number)
            ));
        }
        _ => return Err(wrong()),
    };
    let bytes = number
        .parse::<f64>()
        .ok()
        .map(|n| n * 1024_f64.powi(exponent))
        .filter(|bytes| (1.0..9e18).contains(bytes));
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "in range by the filter above"
    )]
    bytes.map(|bytes| bytes as u64).ok_or_else(wrong)
}

/// Parses a size like [`size`], or `0`.
///
/// # Errors
/// A sentence that says what to write instead.
pub(crate) fn size_or_none(text: &str) -> Result<u64, String> {
    if text == "0" { Ok(0) } else { size(text) }
}

/// Parses a duration: `250ms`, `10s`, `5m`, `2h`. A number without a unit is in seconds.
///
/// # Errors
/// A sentence that says what to write instead.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a duration: write it like 250ms, 10s, 5m or 2h");
    quantity::duration(text).ok_or_else(wrong)
}

pub(crate) fn show_size(bytes: u64) -> String {
    let units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    let text = format!("{value:.1}");
    format!("{} {}", text.trim_end_matches(".0"), units[unit])
}

fn digits_or(number: &str) -> &str {
    if number.is_empty() { "4" } else { number }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_need_a_unit() {
        assert_eq!(size("4GiB"), Ok(4 << 30));
        assert_eq!(size("512M"), Ok(512 << 20));
        assert_eq!(size("1.5gb"), Ok(3 << 29));
        assert_eq!(size("64 KiB"), Ok(64 << 10));
        let advice = size("4").unwrap_err();
        assert!(
            advice.contains(" 4GiB ") && advice.contains(" 4MiB"),
            "{advice}"
        );
        for bad in [
            "",
            "GiB",
            "-1GiB",
            "4XiB",
            "4GiiBB",
            "1e9",
            "0GiB",
            "99999999TiB",
        ] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn durations_default_to_seconds() {
        assert_eq!(duration("10"), Ok(Duration::from_secs(10)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("2h"), Ok(Duration::from_secs(7200)));
        assert_eq!(duration("0.5s"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("0"), Ok(Duration::ZERO));
        for bad in ["", "s", "-5", "5x", "1e300h", "nan"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_are_short() {
        assert_eq!(show_size(1 << 30), "1 GiB");
        assert_eq!(show_size(3 << 29), "1.5 GiB");
        assert_eq!(show_size(512), "512 bytes");
    }

    #[test]
    fn one_is_singular() {
        assert_eq!(
            [0, 1, 2].map(|count| counted(count, "packet")),
            ["0 packets", "1 packet", "2 packets"]
        );
    }
}
