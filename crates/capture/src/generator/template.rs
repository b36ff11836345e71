//! One flow's frames: headers and checksums.
//!
//! Making a frame is copying the 42 header bytes of its flow, writing 16 payload bytes and finishing the UDP checksum,
//! whose constant part was summed up beforehand. Over an earlier frame of the flow only its number and checksum change.

use std::net::Ipv4Addr;

use super::frames::FlowAddresses;

const ETHERNET_BYTES: usize = 14;
const IPV4_BYTES: usize = 20;
const UDP_BYTES: usize = 8;
/// Headers of a frame.
pub(super) const HEADER_BYTES: usize = ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES;
/// Payload bytes that are written for each frame: sequence number and filler, or trigger text and sequence number.
pub(super) const MARK_BYTES: usize = 16;
/// Where the UDP checksum stands.
const UDP_CHECKSUM_OFFSET: usize = HEADER_BYTES - 2;

/// The headers of a flow and the constant part of its UDP checksum.
#[derive(Debug)]
pub(super) struct Template {
    header: [u8; HEADER_BYTES],
    /// Sum of the 16-bit words of pseudo-header, UDP header and the filler behind the mark; below 2^31, so that a mark
    /// still fits.
    sum: u32,
    /// The same with the filler that ends the mark of a background frame.
    sum_with_filler: u32,
}

impl Template {
    /// Headers for frames as long as `blank`, whose filler counts from the mark on.
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
            + sum_words(&blank[HEADER_BYTES + MARK_BYTES..]);
        let filler = &blank[HEADER_BYTES + 8..HEADER_BYTES + MARK_BYTES];
        Self {
            header,
            sum,
            sum_with_filler: sum + sum_words(filler),
        }
    }

    /// Writes headers and mark; the filler of `frame` is in place.
    pub(super) fn write(&self, frame: &mut [u8], first: [u8; 8], second: [u8; 8]) {
        frame[..HEADER_BYTES].copy_from_slice(&self.header);
        frame[HEADER_BYTES..HEADER_BYTES + 8].copy_from_slice(&first);
        frame[HEADER_BYTES + 8..HEADER_BYTES + MARK_BYTES].copy_from_slice(&second);
        let sum = self.sum + sum_words(&first) + sum_words(&second);
        frame[UDP_CHECKSUM_OFFSET..HEADER_BYTES].copy_from_slice(&udp_checksum(sum));
    }

    /// For [`renew`].
    pub(super) fn sum_with_filler(&self) -> u32 {
        self.sum_with_filler
    }
}

/// Writes sequence number and checksum; the rest of `frame` is in place from [`Template::write`] with the filler of
/// background frames, and `sum_with_filler` is that template's.
#[inline]
pub(super) fn renew(frame: &mut [u8], sum_with_filler: u32, sequence: u64) {
    let word = |shift: u32| (sequence >> shift & 0xffff) as u32;
    let sum = sum_with_filler + word(48) + word(32) + word(16) + word(0);
    let [a, b] = udp_checksum(sum);
    let [c, d, e, f, g, h, i, j] = sequence.to_be_bytes();
    const END: usize = HEADER_BYTES + 8;
    frame[UDP_CHECKSUM_OFFSET..END].copy_from_slice(&[a, b, c, d, e, f, g, h, i, j]);
}

/// The checksum field of a sum of words.
#[inline]
fn udp_checksum(sum: u32) -> [u8; 2] {
    let checksum = match checksum(sum) {
        // Zero would mean "no checksum" (RFC 768).
        0 => 0xffff,
        checksum => checksum,
    };
    checksum.to_be_bytes()
}

/// Sum of big-endian 16-bit words, an odd last byte padded with zero (RFC 1071).
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

/// A locally administered hardware address that tells the IP address.
fn hardware_address(ip: Ipv4Addr) -> [u8; 6] {
    let [a, b, c, d] = ip.octets();
    [0x02, 0x00, a, b, c, d]
}
