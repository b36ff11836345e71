//! Writes the parts of lines.

use std::net::IpAddr;

use jiff::{Timestamp, tz::Offset};

const HEX: &[u8; 16] = b"0123456789abcdef";

/// Writes text that contains nothing to escape.
pub(crate) fn put(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(text.as_bytes());
}

/// Writes a name in quotes, escaped for JSON.
pub(crate) fn put_name(out: &mut Vec<u8>, name: &str) {
    serde_json::to_writer(out, name).expect("text goes into memory");
}

pub(crate) fn put_number(out: &mut Vec<u8>, number: impl itoa::Integer) {
    put(out, itoa::Buffer::new().format(number));
}

/// Writes a byte as two hexadecimal digits.
pub(crate) fn put_hex(out: &mut Vec<u8>, byte: u8) {
    out.extend_from_slice(&hex(byte));
}

fn hex(byte: u8) -> [u8; 2] {
    [byte >> 4, byte & 15].map(|digit| HEX[usize::from(digit)])
}

/// Writes an address like Suricata: all eight groups of an IPv6 address with all digits.
pub(crate) fn put_addr(out: &mut Vec<u8>, addr: IpAddr) {
    match addr {
        IpAddr::V4(addr) => {
            for (at, octet) in addr.octets().into_iter().enumerate() {
                put(out, if at == 0 { "" } else { "." });
                put_number(out, octet);
            }
        }
        IpAddr::V6(addr) => {
            let mut text = [b':'; 39];
            for (place, octets) in text.chunks_mut(5).zip(addr.octets().as_chunks::<2>().0) {
                let [high, low] = octets.map(hex);
                place[..4].copy_from_slice(&[high[0], high[1], low[0], low[1]]);
            }
            out.extend_from_slice(&text);
        }
    }
}

/// Writes a time in UTC as in EVE, in quotes: `"2026-11-22T19:15:03.123456+0000"`.
///
/// The time is rounded down to a microsecond, so stamps keep their order. All `i64` of nanoseconds
/// since the UNIX epoch are between the years 1677 and 2262.
pub(crate) fn put_stamp(out: &mut Vec<u8>, time_ns: i64) {
    let time = Timestamp::from_nanosecond(i128::from(time_ns)).unwrap_or(Timestamp::UNIX_EPOCH);
    let time = Offset::UTC.to_datetime(time);
    let mut text = *b"\"0000-00-00T00:00:00.000000+0000\"";
    set_digits(&mut text[1..5], u32::from(time.year().unsigned_abs()));
    let parts = [
        (6, time.month()),
        (9, time.day()),
        (12, time.hour()),
        (15, time.minute()),
        (18, time.second()),
    ];
    for (at, number) in parts {
        set_digits(&mut text[at..at + 2], u32::from(number.unsigned_abs()));
    }
    let micros = time.subsec_nanosecond().unsigned_abs() / 1000;
    set_digits(&mut text[21..27], micros);
    out.extend_from_slice(&text);
}

/// Writes the last digits of a number, one for each byte of `place`.
#[inline]
fn set_digits(place: &mut [u8], mut number: u32) {
    for digit in place.iter_mut().rev() {
        *digit = HEX[number as usize % 10];
        number /= 10;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(put: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        put(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn stamps_are_those_of_eve() {
        let stamp = |time_ns| text(|out| put_stamp(out, time_ns));
        let micros = stamp(1_795_374_903_123_456_999);
        assert_eq!(micros, r#""2026-11-22T19:15:03.123456+0000""#);
        assert_eq!(stamp(0), r#""1970-01-01T00:00:00.000000+0000""#);
        assert_eq!(stamp(-1), r#""1969-12-31T23:59:59.999999+0000""#);
        assert_eq!(stamp(i64::MIN), r#""1677-09-21T00:12:43.145224+0000""#);
        assert_eq!(stamp(i64::MAX), r#""2262-04-11T23:47:16.854775+0000""#);
    }

    #[test]
    fn addresses_are_those_of_suricata() {
        let addr = |addr: &str| text(|out| put_addr(out, addr.parse().unwrap()));
        assert_eq!(addr("0.10.200.255"), "0.10.200.255");
        assert_eq!(
            addr("2001:16d8:ffce:10::a9b3"),
            "2001:16d8:ffce:0010:0000:0000:0000:a9b3"
        );
    }

    #[test]
    fn numbers_are_whole_and_names_are_escaped() {
        assert_eq!(text(|out| put_number(out, u64::MAX)), u64::MAX.to_string());
        assert_eq!(text(|out| put_number(out, i64::MIN)), i64::MIN.to_string());
        assert_eq!(text(|out| put_hex(out, 0x0f)), "0f");
        assert_eq!(text(|out| put_name(out, "a\"\n")), r#""a\"\n""#);
    }
}
