//! The pieces that lines are made of.

use std::net::IpAddr;

use jiff::{Timestamp, tz::Offset};

const HEX: &[u8; 16] = b"0123456789abcdef";

/// As it is: without anything to escape.
pub(crate) fn put(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(text.as_bytes());
}

/// A name in quotes, with what JSON wants escaped.
pub(crate) fn put_name(out: &mut Vec<u8>, name: &str) {
    serde_json::to_writer(out, name).expect("text goes into memory");
}

pub(crate) fn put_number(out: &mut Vec<u8>, number: impl itoa::Integer) {
    put(out, itoa::Buffer::new().format(number));
}

/// A byte as two digits.
pub(crate) fn put_hex(out: &mut Vec<u8>, byte: u8) {
    out.extend([byte >> 4, byte & 15].map(|digit| HEX[usize::from(digit)]));
}

/// An address as Suricata writes it: of IPv6 all eight groups with all digits.
pub(crate) fn put_addr(out: &mut Vec<u8>, addr: IpAddr) {
    match addr {
        IpAddr::V4(addr) => {
            for (at, octet) in addr.octets().into_iter().enumerate() {
                put(out, if at == 0 { "" } else { "." });
                put_number(out, octet);
            }
        }
        IpAddr::V6(addr) => {
            for (at, octet) in addr.octets().into_iter().enumerate() {
                put(out, if at == 0 || at % 2 == 1 { "" } else { ":" });
                put_hex(out, octet);
            }
        }
    }
}

/// A time in UTC as EVE has it, in quotes: `"2026-11-22T19:15:03.123456+0000"`. What is below a microsecond is dropped, towards the past: stamps
/// keep their order. All `i64` of nanoseconds since the UNIX epoch are between the years 1677 and 2262.
pub(crate) fn put_stamp(out: &mut Vec<u8>, time_ns: i64) {
    let time = Timestamp::from_nanosecond(i128::from(time_ns)).unwrap_or(Timestamp::UNIX_EPOCH);
    let time = Offset::UTC.to_datetime(time);
    let micros = time.subsec_nanosecond().unsigned_abs() / 1000;
    let two = |number: i8| u32::from(number.unsigned_abs());
    out.push(b'"');
    put_digits::<4>(out, u32::from(time.year().unsigned_abs()));
    out.push(b'-');
    put_digits::<2>(out, two(time.month()));
    out.push(b'-');
    put_digits::<2>(out, two(time.day()));
    out.push(b'T');
    put_digits::<2>(out, two(time.hour()));
    out.push(b':');
    put_digits::<2>(out, two(time.minute()));
    out.push(b':');
    put_digits::<2>(out, two(time.second()));
    out.push(b'.');
    put_digits::<6>(out, micros);
    put(out, "+0000\"");
}

/// The last `N` digits of a number.
fn put_digits<const N: usize>(out: &mut Vec<u8>, mut number: u32) {
    let mut digits = [0; N];
    for digit in digits.iter_mut().rev() {
        *digit = HEX[number as usize % 10];
        number /= 10;
    }
    out.extend_from_slice(&digits);
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
