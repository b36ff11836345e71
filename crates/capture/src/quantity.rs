//! Numbers with units as users write them: `500kpps`, `1.5Gbit`, `250ms`.

use std::time::Duration;

/// Splits `12.5 ms` into number and unit. The number consists of digits and points, or is empty.
#[must_use]
pub fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    (&text[..end], text[end..].trim())
}

/// A duration of at most 100 years: `250ms`, `10s`, `5m`, `2h`. A number without a unit is in
/// seconds. `None`: the text is no duration, or the duration is longer.
#[must_use]
pub fn duration(text: &str) -> Option<Duration> {
    /// 100 years. In ns this duration fits 64 bits.
    const SECONDS_MAX: f64 = 100.0 * 365.25 * 86_400.0;
    let (number, unit) = split(text);
    let scale = match unit {
        "ns" => 1e-9,
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return None,
    };
    let seconds = number.parse::<f64>().ok()? * scale;
    (0.0..=SECONDS_MAX)
        .contains(&seconds)
        .then(|| Duration::from_secs_f64(seconds))
}

/// A count for people: `1 packet`, `2 packets`. `one` is the singular.
#[must_use]
pub fn counted(count: u64, one: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {one}{plural}")
}

/// A whole number per second with one of `units`, which may have a decimal prefix: `500kpps` with
/// `["pps"]` is 500 000. `None`: the text has another form, or the number is no whole number of 64
/// bits.
#[must_use]
pub fn per_second(text: &str, units: &[&str]) -> Option<u64> {
    let (number, unit) = split(text);
    let places_of_unit = match units.iter().find_map(|known| unit.strip_suffix(known))? {
        "" => 0,
        "k" | "K" => 3,
        "M" => 6,
        "G" => 9,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let fraction = fraction.trim_end_matches('0');
    let places = u32::try_from(fraction.len()).ok()?;
    let scale = 10_u64.pow(u32::checked_sub(places_of_unit, places)?);
    let digits: u64 = format!("{whole}{fraction}").parse().ok()?;
    digits.checked_mul(scale)
}

/// A duration in the largest unit that gives a whole number, in the form that [`duration`] parses.
#[must_use]
pub fn duration_text(duration: Duration) -> String {
    let ns = duration.as_nanos();
    let units = [
        ("d", 86_400_000_000_000),
        ("h", 3_600_000_000_000),
        ("m", 60_000_000_000),
    ];
    let units = units
        .into_iter()
        .chain([("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1000)]);
    let mut units = units.filter(|(_, unit_ns)| ns > 0 && ns.is_multiple_of(*unit_ns));
    let (unit, unit_ns) = units
        .next()
        .unwrap_or(if ns == 0 { ("s", 1) } else { ("ns", 1) });
    format!("{}{unit}", ns / unit_ns)
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
            ("4.1Mpps", Some(4_100_000)),
            ("2.01Mpps", Some(2_010_000)),
            ("16.1kpps", Some(16_100)),
            ("9.007199254740993Gpps", None),
            ("18446744073709551615pps", Some(u64::MAX)),
            (".5kpps", Some(500)),
            ("5.kpps", Some(5000)),
            ("1.50pps", None),
            ("1.00pps", Some(1)),
            (".kpps", None),
            ("2Gpps", Some(2_000_000_000)),
            ("0.5pps", None),
            ("500", None),
            ("kpps", None),
            ("1..5Mpps", None),
            ("-1pps", None),
            ("1Tpps", None),
            ("99999999999999999999pps", None),
            ("18446744073709551615Gpps", None),
        ] {
            assert_eq!(per_second(text, &["pps"]), expected, "{text}");
        }
        for hundredths in 0..10_000 {
            let (whole, rest) = (hundredths / 100, hundredths % 100);
            for (unit, scale) in [("k", 10), ("M", 10_000), ("G", 10_000_000)] {
                let text = format!("{whole}.{rest:02}{unit}bit");
                assert_eq!(
                    per_second(&text, &["bit"]),
                    Some(hundredths * scale),
                    "{text}"
                );
            }
        }
    }

    #[test]
    fn durations_are_written_as_they_are_read() {
        for text in [
            "0s", "1ns", "1500us", "250ms", "10s", "90s", "5m", "2h", "30d",
        ] {
            assert_eq!(duration(text).map(duration_text).as_deref(), Some(text));
        }
        assert_eq!(duration("48h").map(duration_text).as_deref(), Some("2d"));
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
            ("10 s", Some(10_000_000_000)),
            ("1d", Some(86_400_000_000_000)),
            ("10y", None),
            ("-5", None),
            ("9999999999999h", None),
        ] {
            assert_eq!(
                duration(text),
                expected_ns.map(Duration::from_nanos),
                "{text}"
            );
        }
    }
}
