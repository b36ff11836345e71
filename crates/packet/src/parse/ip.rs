//! IPv4 (RFC 791), IPv6 (RFC 8200) with extension headers, and the start of the transport header.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::ParseStop;
use super::bytes::{array, u8_at, u16_at, u32_at, within};
use crate::proto::{
    AH, DESTINATION, FRAGMENT, HIP, HOP_BY_HOP, ICMP, ICMPV6, MOBILITY, ROUTING, SCTP, SHIM6, TCP,
    UDP,
};
use crate::{Fragment, Icmp, Ip, Parsed, Ports};

/// Maximum number of extension headers; a longer chain counts as malformed.
const CHAIN_MAX: usize = 128;

const IPV6_HEADER: usize = 40;

const UDP_HEADER: usize = 8;

const TCP_HEADER: usize = 20;

pub(super) fn either(parsed: &mut Parsed, data: &[u8], at: usize) -> Result<usize, ParseStop> {
    match u8_at(data, at)? >> 4 {
        4 => v4(parsed, data, at),
        6 => v6(parsed, data, at),
        _ => Err(ParseStop::Malformed),
    }
}

#[inline]
pub(super) fn v4(parsed: &mut Parsed, data: &[u8], at: usize) -> Result<usize, ParseStop> {
    let header: [u8; 20] = array(data, at)?;
    let header_len = usize::from(header[0] & 0x0f) * 4;
    if header[0] >> 4 != 4 || header_len < header.len() {
        return Err(ParseStop::Malformed);
    }
    let total_len = u16::from_be_bytes([header[2], header[3]]);
    let bits = u16::from_be_bytes([header[6], header[7]]);
    let proto = header[9];
    let piece = Fragment {
        id: u32::from(u16::from_be_bytes([header[4], header[5]])),
        offset: u32::from(bits & 0x1fff) * 8,
        more: bits & 0x2000 != 0,
        proto,
    };
    let fragment = (piece.more || piece.is_later()).then_some(piece);
    parsed.network_offset = u32::try_from(at).ok();
    parsed.network = Some(Ip {
        src: IpAddr::V4(Ipv4Addr::new(
            header[12], header[13], header[14], header[15],
        )),
        dst: IpAddr::V4(Ipv4Addr::new(
            header[16], header[17], header[18], header[19],
        )),
        // `chain` follows an authentication header below. Until then the protocol after that header
        // is unknown.
        proto: (proto != AH).then_some(proto),
        fragment,
        len: (total_len != 0).then_some(u32::from(total_len)),
    });
    // Segmentation offload leaves a length of 0: the packet then ends with the frame.
    let end = if total_len == 0 {
        usize::MAX
    } else {
        at + usize::from(total_len)
    };
    let body = at + header_len;
    if body > end {
        return Err(ParseStop::Malformed);
    }
    within(data, body)?;
    if total_len != 0 {
        parsed.ends_at(end);
    }
    bounded(data, end, |data| {
        if piece.is_later() {
            return Ok(body);
        }
        let (proto, body) = if proto == AH {
            chain(parsed, data, body, end, proto, is_v4_extension)?
        } else {
            (proto, body)
        };
        transport(parsed, data, body, proto, ICMP)
    })
}

#[inline]
pub(super) fn v6(parsed: &mut Parsed, data: &[u8], at: usize) -> Result<usize, ParseStop> {
    let header: [u8; IPV6_HEADER] = array(data, at)?;
    if header[0] >> 4 != 6 {
        return Err(ParseStop::Malformed);
    }
    let payload_len = u16::from_be_bytes([header[4], header[5]]);
    let next = header[6];
    let body = at + IPV6_HEADER;
    let known_len = payload_len != 0 || !(next == HOP_BY_HOP || next == TCP);
    let (src, dst): ([u8; 16], [u8; 16]) = (array(data, at + 8)?, array(data, at + 24)?);
    parsed.network_offset = u32::try_from(at).ok();
    parsed.network = Some(Ip {
        src: IpAddr::V6(Ipv6Addr::from(src)),
        dst: IpAddr::V6(Ipv6Addr::from(dst)),
        proto: None,
        fragment: None,
        len: known_len.then_some(u32::from(payload_len) + 40),
    });
    let end = if known_len {
        let end = body + usize::from(payload_len);
        parsed.ends_at(end);
        end
    } else {
        // A jumbogram (RFC 2675), or a TCP segment before offload, ends with the frame. A segment
        // must show a whole TCP header. Ethernet pads at most 6 bytes after an IPv6 header, too few
        // for a TCP header.
        if next == TCP {
            within(data, body + TCP_HEADER)?;
        }
        usize::MAX
    };
    bounded(data, end, |data| {
        let (proto, body) = chain(parsed, data, body, end, next, is_v6_extension)?;
        if parsed.is_later_fragment() {
            return Ok(body);
        }
        transport(parsed, data, body, proto, ICMPV6)
    })
}

/// Runs `parse` on the bytes before `end`, so that `parse` reads no padding after the packet. If
/// `parse` fails although the capture reaches `end`, the packet is malformed.
#[inline]
fn bounded(
    data: &[u8],
    end: usize,
    parse: impl FnOnce(&[u8]) -> Result<usize, ParseStop>,
) -> Result<usize, ParseStop> {
    match data.get(..end) {
        Some(packet) => parse(packet).map_err(|_| ParseStop::Malformed),
        None => parse(data),
    }
}

/// Whether `next` is an extension header of the IPv6 chain. Encapsulating security payload (50) and
/// "no next header" (59) end the chain.
fn is_v6_extension(next: u8) -> bool {
    matches!(
        next,
        HOP_BY_HOP | ROUTING | FRAGMENT | AH | DESTINATION | MOBILITY | HIP | SHIM6
    )
}

fn is_v4_extension(next: u8) -> bool {
    next == AH
}

/// Follows the extension headers from `at`; the first header has the number `next`. Returns the
/// upper-layer protocol and its offset. `end` is the end of the packet on the wire.
///
/// A next-header number counts only if the whole header that holds it was captured. A later
/// fragment ends the chain, because the bytes after its fragment header are no headers.
fn chain(
    parsed: &mut Parsed,
    data: &[u8],
    mut at: usize,
    end: usize,
    mut next: u8,
    is_extension: fn(u8) -> bool,
) -> Result<(u8, usize), ParseStop> {
    for _ in 0..=CHAIN_MAX {
        if !is_extension(next) {
            set_proto(parsed, next);
            return Ok((next, at));
        }
        let [following, units] = array(data, at)?;
        let len = match next {
            FRAGMENT => 8,
            AH => (usize::from(units) + 2) * 4, // RFC 4302, section 2.2: in 4-byte units, minus 2
            _ => (usize::from(units) + 1) * 8,
        };
        if len > end.saturating_sub(at) {
            return Err(ParseStop::Malformed);
        }
        let header = at;
        at = within(data, at + len)?;
        if next == FRAGMENT {
            let bits = u16_at(data, header + 2)?;
            let piece = Fragment {
                id: u32_at(data, header + 4)?,
                offset: u32::from(bits & 0xfff8),
                more: bits & 1 != 0,
                proto: following,
            };
            if set_fragment(parsed, piece)? {
                if !is_extension(following) {
                    set_proto(parsed, following);
                }
                return Ok((following, at));
            }
        }
        next = following;
    }
    Err(ParseStop::Malformed)
}

fn set_proto(parsed: &mut Parsed, proto: u8) {
    if let Some(ip) = &mut parsed.network {
        ip.proto = Some(proto);
    }
}

/// Stores a fragment header. Returns whether it belongs to a later fragment. An error if an earlier
/// fragment header has made the packet a fragment.
fn set_fragment(parsed: &mut Parsed, piece: Fragment) -> Result<bool, ParseStop> {
    let Some(ip) = &mut parsed.network else {
        return Err(ParseStop::Malformed);
    };
    if ip.fragment.is_some() {
        return Err(ParseStop::Malformed);
    }
    ip.fragment = (piece.more || piece.is_later()).then_some(piece);
    Ok(piece.is_later())
}

/// Reads ports, or ICMP type and code, from the transport header at `at`. Returns
/// [`Parsed::payload_offset`]. `icmp` is ICMP's protocol number in this IP version.
#[inline]
fn transport(
    parsed: &mut Parsed,
    data: &[u8],
    at: usize,
    proto: u8,
    icmp: u8,
) -> Result<usize, ParseStop> {
    match proto {
        TCP | UDP | SCTP => {
            let [s0, s1, d0, d1] = array(data, at)?;
            parsed.transport_offset = u32::try_from(at).ok();
            parsed.transport = Some(Ports {
                src: u16::from_be_bytes([s0, s1]),
                dst: u16::from_be_bytes([d0, d1]),
            });
            match proto {
                TCP => tcp(parsed, data, at),
                UDP => udp(parsed, data, at),
                _ => within(data, at + 12),
            }
        }
        _ if proto == icmp => {
            let [kind, code] = array(data, at)?;
            parsed.transport_offset = u32::try_from(at).ok();
            parsed.icmp = Some(Icmp { kind, code });
            within(data, at + 4)
        }
        _ => within(data, at),
    }
}

/// Reads the length in a UDP header (RFC 768). Jumbograms and offload have length 0.
#[inline]
fn udp(parsed: &mut Parsed, data: &[u8], at: usize) -> Result<usize, ParseStop> {
    let body = within(data, at + UDP_HEADER)?;
    let len = usize::from(u16_at(data, at + 4)?);
    if len >= UDP_HEADER {
        parsed.ends_at(at + len);
    }
    Ok(body)
}

/// Reads the sequence number, the flags and the length of a TCP header (RFC 9293).
#[inline]
fn tcp(parsed: &mut Parsed, data: &[u8], at: usize) -> Result<usize, ParseStop> {
    let [offset, flags] = array(data, at + 12)?;
    parsed.tcp_flags = Some(flags);
    parsed.tcp_seq = Some(u32::from_be_bytes(array(data, at + 4)?));
    let len = usize::from(offset >> 4) * 4;
    if len < TCP_HEADER {
        return Err(ParseStop::Malformed);
    }
    within(data, at + len)
}
