//! Numbers with units: `500kpps`, `1.5Gbit`, `250ms`.

use std::time::Duration;

/// Splits `12.5ms` into the number, as a value and its count of decimal places, and the unit. `None` unless it starts
/// with a digit, has at most 9 decimal places, and the digits fit.
fn split(text: &str) -> Option<(u128, u32, &str)> {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || fraction.contains('.') || fraction.len() > 9 || number.ends_with('.') {
        return None;
    }
    let digits: u64 = format!("{whole}{fraction}").parse().ok()?;
    Some((
        u128::from(digits),
        u32::try_from(fraction.len()).ok()?,
        unit,
    ))
}

/// `digits / 10^places * scale` as an integer; `None` if it is none or does not fit.
fn scaled(digits: u128, places: u32, scale: u64) -> Option<u64> {
    let product = digits.checked_mul(u128::from(scale))?;
    let divisor = 10_u128.pow(places);
    if product % divisor != 0 {
        return None;
    }
    u64::try_from(product / divisor).ok()
}

/// A count per second with a decimal prefix and one of `units`: `500kpps` with `["pps"]` is 500 000.
pub(super) fn parse_per_second(text: &str, units: &[&str]) -> Option<u64> {
    let (digits, places, unit) = split(text)?;
    let prefix = units.iter().find_map(|known| unit.strip_suffix(known))?;
    let scale = match prefix {
        "" => 1,
        "k" | "K" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        _ => return None,
    };
    scaled(digits, places, scale)
}

/// A duration: `250ms`, `10s`, `5m`, `2h`; without a unit seconds.
pub(super) fn parse_duration(text: &str) -> Option<Duration> {
    let (digits, places, unit) = split(text)?;
    let scale_ns = match unit {
        "ns" => 1,
        "us" | "µs" => 1_000,
        "ms" => 1_000_000,
        "" | "s" => 1_000_000_000,
        "m" => 60 * 1_000_000_000,
        "h" => 3_600 * 1_000_000_000,
        _ => return None,
    };
    scaled(digits, places, scale_ns).map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates() {
        for (text, expected) in [
            ("1pps", Some(1)),
            ("500kpps", Some(500_000)),
            ("1.5Mpps", Some(1_500_000)),
            ("2Gpps", Some(2_000_000_000)),
            ("0.5pps", None),
            ("500", None),
            ("kpps", None),
            ("1.pps", None),
            ("1..5Mpps", None),
            ("-1pps", None),
            ("1Tpps", None),
            ("99999999999999999999pps", None),
            ("18446744073709551615Gpps", None),
        ] {
            assert_eq!(parse_per_second(text, &["pps"]), expected, "{text}");
        }
    }

    #[test]
    fn durations() {
        for (text, expected_ns) in [
            ("10", Some(10_000_000_000)),
            ("250ms", Some(250_000_000)),
            ("1.5s", Some(1_500_000_000)),
            ("5m", Some(300_000_000_000)),
            ("2h", Some(7_200_000_000_000)),
            ("3us", Some(3_000)),
            ("", None),
            ("s", None),
            ("10 s", None),
            ("10d", None),
            ("9999999999999h", None),
        ] {
            assert_eq!(
                parse_duration(text),
                expected_ns.map(Duration::from_nanos),
                "{text}"
            );
        }
    }
}
