//! The frames of one flow: headers and checksums.
//!
//! To make a frame over a frame of another flow, the generator copies the 42 header bytes, writes
//! the sequence number and finishes the UDP checksum. The constant part of the checksum was
//! computed before. Over an earlier frame of the same flow, only number and checksum change.

use std::net::Ipv4Addr;

use super::flows::FlowAddresses;

const ETHERNET_BYTES: usize = 14;
const IPV4_BYTES: usize = 20;
const UDP_BYTES: usize = 8;
/// Bytes of a frame's headers.
pub(super) const HEADER_BYTES: usize = ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES;
/// Bytes of a sequence number, with which the payload of a background frame starts.
pub(super) const NUMBER_BYTES: usize = 8;
/// Offset of the UDP checksum.
const UDP_CHECKSUM_OFFSET: usize = HEADER_BYTES - 2;

/// The headers of a flow and the constant part of its UDP checksum.
#[derive(Debug)]
pub(super) struct FrameTemplate {
    pub(super) header: [u8; HEADER_BYTES],
    /// Sum of the 16-bit words of pseudo-header, UDP header and payload without the number. Below
    /// 2^31, so a number can be added.
    pub(super) sum: u32,
}

impl FrameTemplate {
    /// Headers for frames with the payload of `blank`, which has zeros instead of the sequence
    /// number.
    pub(super) fn new(flow: FlowAddresses, blank: &[u8]) -> Self {
        let mut header = [0; HEADER_BYTES];
        // At most 9000: the size was checked.
        let ip_bytes = u16::try_from(blank.len() - ETHERNET_BYTES).unwrap_or(u16::MAX);
        let udp_length = ip_bytes - 20;
        header[..6].copy_from_slice(&hardware_address(flow.destination));
        header[6..12].copy_from_slice(&hardware_address(flow.source));
        header[12..14].copy_from_slice(&[0x08, 0x00]);
        let ip = &mut header[ETHERNET_BYTES..ETHERNET_BYTES + IPV4_BYTES];
        ip[0] = 0x45;
        ip[2..4].copy_from_slice(&ip_bytes.to_be_bytes());
        // Don't fragment: an identification of 0 is then allowed (RFC 6864, section 4.1).
        ip[6] = 0x40;
        ip[8] = 64;
        ip[9] = 17;
        ip[12..16].copy_from_slice(&flow.source.octets());
        ip[16..20].copy_from_slice(&flow.destination.octets());
        let ip_checksum = checksum(sum_words(ip));
        ip[10..12].copy_from_slice(&ip_checksum.to_be_bytes());
        let udp = &mut header[ETHERNET_BYTES + IPV4_BYTES..];
        udp[0..2].copy_from_slice(&flow.source_port.to_be_bytes());
        udp[2..4].copy_from_slice(&flow.destination_port.to_be_bytes());
        udp[4..6].copy_from_slice(&udp_length.to_be_bytes());
        let sum = sum_words(&flow.source.octets())
            + sum_words(&flow.destination.octets())
            + 17
            + u32::from(udp_length)
            + sum_words(udp)
            + sum_words(&blank[HEADER_BYTES..]);
        Self { header, sum }
    }
}

/// Writes a background frame's number and checksum; `sum` is from its template.
#[inline]
pub(super) fn write_number(frame: &mut [u8], sum: u32, number: u64) {
    let [a, b] = udp_checksum(sum, number);
    let [c, d, e, f, g, h, i, j] = number.to_be_bytes();
    const END: usize = HEADER_BYTES + NUMBER_BYTES;
    frame[UDP_CHECKSUM_OFFSET..END].copy_from_slice(&[a, b, c, d, e, f, g, h, i, j]);
}

/// Writes number and checksum of the trigger frame, whose number follows [`NUMBER_BYTES`] bytes of
/// text.
pub(super) fn write_number_after_text(frame: &mut [u8], sum: u32, number: u64) {
    frame[UDP_CHECKSUM_OFFSET..HEADER_BYTES].copy_from_slice(&udp_checksum(sum, number));
    let place = HEADER_BYTES + NUMBER_BYTES..HEADER_BYTES + 2 * NUMBER_BYTES;
    frame[place].copy_from_slice(&number.to_be_bytes());
}

/// The checksum field for a sum of words and a number.
#[inline]
fn udp_checksum(sum: u32, number: u64) -> [u8; 2] {
    let word = |shift: u32| (number >> shift & 0xffff) as u32;
    let checksum = match checksum(sum + word(48) + word(32) + word(16) + word(0)) {
        // Zero would mean "no checksum" (RFC 768).
        0 => 0xffff,
        checksum => checksum,
    };
    checksum.to_be_bytes()
}

/// Sum of big-endian 16-bit words; an odd last byte is padded with zero (RFC 1071).
#[inline]
pub(super) fn sum_words(bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<2>();
    let sum: u32 = words
        .iter()
        .map(|word| u32::from(u16::from_be_bytes(*word)))
        .sum();
    sum + rest.first().map_or(0, |byte| u32::from(*byte) << 8)
}

/// The Internet checksum of a sum of words: folded to 16 bits and complemented.
#[inline]
pub(super) fn checksum(sum: u32) -> u16 {
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    #[expect(
        clippy::cast_possible_truncation,
        reason = "two folds of 32 bits leave at most 16"
    )]
    let folded = folded as u16;
    !folded
}

/// A locally administered hardware address that contains the IP address.
fn hardware_address(ip: Ipv4Addr) -> [u8; 6] {
    let [a, b, c, d] = ip.octets();
    [0x02, 0x00, a, b, c, d]
}
