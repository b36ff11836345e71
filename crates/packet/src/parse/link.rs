//! Link headers: all headers before IP.

use super::bytes::{array, u8_at, u16_at, u32_at, within};
use super::{ParseStop, ip};
use crate::proto::{ETHER_IPV4, ETHER_IPV6, ETHER_MPLS, ETHER_MPLS_MULTICAST, ETHER_PPPOE_SESSION};
use crate::{LinkProtocol, LinkType, Llc, Parsed, Snap, VlanTag};

/// Largest value of the Ethernet type field that is a length (IEEE 802.3, clause 3.2.6).
const LENGTH_MAX: u16 = 1500;

/// Maximum number of tags; a frame with more tags counts as malformed.
const TAGS_MAX: usize = 64;

/// Maximum number of MPLS labels; a frame with more labels counts as malformed.
const LABELS_MAX: usize = 32;

/// IEEE 802.1BR E-tag: 6 bytes, then another EtherType.
const ETHER_E_TAG: u16 = 0x893f;

/// Cisco VN-tag: 4 bytes, then another EtherType.
const ETHER_VN_TAG: u16 = 0x8926;

/// Parses a frame from its first byte. Returns the offset of the payload.
pub(super) fn frame(parsed: &mut Parsed, data: &[u8]) -> Result<usize, ParseStop> {
    match parsed.link_type {
        LinkType::ETHERNET => ethernet(parsed, data),
        LinkType::NULL | LinkType::LOOP => family(parsed, data),
        LinkType::RAW | LinkType::RAW_BSD | LinkType::RAW_OPENBSD => ip::either(parsed, data, 0),
        LinkType::IPV4 => ip::v4(parsed, data, 0),
        LinkType::IPV6 => ip::v6(parsed, data, 0),
        LinkType::LINUX_SLL => sll(parsed, data),
        LinkType::LINUX_SLL2 => sll2(parsed, data),
        LinkType::PPP => ppp(parsed, data, 0),
        LinkType::PPP_SERIAL => ppp_serial(parsed, data),
        LinkType::PPP_WITH_DIR => ppp(parsed, data, 1),
        LinkType::PPP_ETHER => pppoe(parsed, data, 0),
        LinkType::C_HDLC => c_hdlc(parsed, data),
        LinkType::MPLS => mpls(parsed, data, 0),
        _ => Err(ParseStop::UnknownLinkType),
    }
}

/// Ethernet II and IEEE 802.3.
#[inline]
fn ethernet(parsed: &mut Parsed, data: &[u8]) -> Result<usize, ParseStop> {
    parsed.dst_mac = Some(array(data, 0)?);
    parsed.src_mac = Some(array(data, 6)?);
    let ether_type = u16_at(data, 12)?;
    after_type(parsed, data, ether_type, 14)
}

/// Parses the bytes after a type field that ends at `at`: tags, and then the LLC header of a length
/// frame or a protocol.
#[inline]
fn after_type(
    parsed: &mut Parsed,
    data: &[u8],
    mut ether_type: u16,
    mut at: usize,
) -> Result<usize, ParseStop> {
    for _ in 0..=TAGS_MAX {
        match ether_type {
            ETHER_E_TAG => at += 6,
            ETHER_VN_TAG => at += 4,
            0..=LENGTH_MAX => {
                parsed.ends_at(at + usize::from(ether_type));
                return llc(parsed, data, at);
            }
            _ if VlanTag::TPIDS.contains(&ether_type) => {
                parsed.vlan.push(VlanTag {
                    tpid: ether_type,
                    tci: u16_at(data, at)?,
                });
                at += 2;
            }
            _ => return protocol(parsed, data, ether_type, at),
        }
        ether_type = u16_at(data, at)?;
        at += 2;
    }
    Err(ParseStop::Malformed)
}

/// Parses the protocol that an EtherType in the link header names.
#[inline]
fn protocol(
    parsed: &mut Parsed,
    data: &[u8],
    ether_type: u16,
    at: usize,
) -> Result<usize, ParseStop> {
    parsed.ether_type = Some(ether_type);
    parsed.link_protocol = Some(LinkProtocol::EtherType(ether_type));
    network(parsed, data, ether_type, at)
}

/// Parses the protocol of an EtherType.
#[inline]
fn network(
    parsed: &mut Parsed,
    data: &[u8],
    ether_type: u16,
    at: usize,
) -> Result<usize, ParseStop> {
    match ether_type {
        ETHER_IPV4 => ip::v4(parsed, data, at),
        ETHER_IPV6 => ip::v6(parsed, data, at),
        ETHER_MPLS | ETHER_MPLS_MULTICAST => mpls(parsed, data, at),
        ETHER_PPPOE_SESSION => pppoe(parsed, data, at),
        _ => within(data, at),
    }
}

/// IEEE 802.2 LLC, and SNAP (RFC 1042) if it follows.
fn llc(parsed: &mut Parsed, data: &[u8], at: usize) -> Result<usize, ParseStop> {
    parsed.link_protocol = Some(LinkProtocol::Llc);
    let [dsap, ssap, control] = array(data, at)?;
    let header = |snap| Llc {
        dsap,
        ssap,
        control,
        snap,
    };
    if (dsap, ssap, control) != (0xaa, 0xaa, 3) {
        parsed.llc = Some(header(None));
        return Ok(at + 3);
    }
    let [o0, o1, o2] = array(data, at + 3)?;
    let snap = Snap {
        organization: u32::from_be_bytes([0, o0, o1, o2]),
        protocol: u16_at(data, at + 6)?,
    };
    parsed.llc = Some(header(Some(snap)));
    if snap.organization == 0 && snap.protocol > LENGTH_MAX {
        network(parsed, data, snap.protocol, at + 8)
    } else {
        Ok(at + 8)
    }
}

/// An MPLS label stack (RFC 3032). Only the routers at its ends know what the stack carries. The
/// parser recognises IP by the version nibble and by plausible fields; any other content is
/// payload.
fn mpls(parsed: &mut Parsed, data: &[u8], mut at: usize) -> Result<usize, ParseStop> {
    for _ in 0..LABELS_MAX {
        let entry = u32_at(data, at)?;
        at += 4;
        if entry & 0x100 == 0 {
            continue;
        }
        return match u8_at(data, at)? >> 4 {
            4 if looks_like_v4(data, at)? => ip::v4(parsed, data, at),
            6 if looks_like_v6(&array(data, at)?) => ip::v6(parsed, data, at),
            _ => Ok(at),
        };
    }
    Err(ParseStop::Malformed)
}

/// Whether there is an IPv4 header at `at`, and not, for example, an Ethernet address whose first
/// digit is 4. The lengths must be possible. The checksum must be right, or 0 if the sender's NIC
/// fills it in.
fn looks_like_v4(data: &[u8], at: usize) -> Result<bool, ParseStop> {
    let fixed: [u8; 20] = array(data, at)?;
    let header_len = usize::from(fixed[0] & 0x0f) * 4;
    let total_len = usize::from(u16::from_be_bytes([fixed[2], fixed[3]]));
    if header_len < fixed.len() || (total_len != 0 && total_len < header_len) {
        return Ok(false);
    }
    let header = &data[at..within(data, at + header_len)?];
    let sum: u32 = header
        .chunks_exact(2)
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
        .sum();
    // A header has at most 30 words. One fold therefore removes the carry, or leaves a sum that is
    // not all ones.
    Ok(fixed[10..12] == [0, 0] || (sum & 0xffff) + (sum >> 16) == 0xffff)
}

/// Whether these bytes are an IPv6 header: its next header must be a number that IPv6 carries in
/// practice, and its hop limit must not be 0.
fn looks_like_v6(header: &[u8; 40]) -> bool {
    const CARRIED: [u8; 21] = [
        0, 4, 6, 17, 41, 43, 44, 46, 47, 50, 51, 58, 59, 60, 89, 103, 112, 115, 132, 135, 136,
    ];
    CARRIED.contains(&header[6]) && header[7] != 0
}

/// A PPPoE session header (RFC 2516, section 4) and its PPP frame.
fn pppoe(parsed: &mut Parsed, data: &[u8], at: usize) -> Result<usize, ParseStop> {
    let [version_type, code] = array(data, at)?;
    if version_type != 0x11 {
        return Err(ParseStop::Malformed);
    }
    let body = within(data, at + 6)?;
    parsed.ends_at(body + usize::from(u16_at(data, at + 4)?));
    if code != 0 {
        return Ok(at + 6); // a discovery packet, without a PPP frame
    }
    ppp_protocol(parsed, data, at + 6)
}

/// PPP (RFC 1661) at `at`, with or without HDLC-like address and control bytes (RFC 1662).
fn ppp(parsed: &mut Parsed, data: &[u8], at: usize) -> Result<usize, ParseStop> {
    let framed = u8_at(data, at)? == 0xff && u8_at(data, at + 1)? == 0x03;
    ppp_protocol(parsed, data, if framed { at + 2 } else { at })
}

/// PPP over serial lines. The first byte distinguishes RFC 1662 framing from Cisco's (RFC 1547,
/// section 4.3.1).
fn ppp_serial(parsed: &mut Parsed, data: &[u8]) -> Result<usize, ParseStop> {
    match u8_at(data, 0)? {
        0x0f | 0x8f => c_hdlc(parsed, data),
        _ => ppp(parsed, data, 0),
    }
}

/// A PPP protocol field. It is one byte if the last bit of that byte is set, which is the
/// compressed form (RFC 1661, section 6.5).
fn ppp_protocol(parsed: &mut Parsed, data: &[u8], at: usize) -> Result<usize, ParseStop> {
    let first = u8_at(data, at)?;
    let (protocol, at) = if first & 1 == 1 {
        (u16::from(first), at + 1)
    } else {
        (u16_at(data, at)?, at + 2)
    };
    // Inside Ethernet the EtherType stays the protocol number of the link.
    parsed
        .link_protocol
        .get_or_insert(LinkProtocol::Ppp(protocol));
    match protocol {
        0x0021 => ip::v4(parsed, data, at),
        0x0057 => ip::v6(parsed, data, at),
        0x0281 | 0x0283 => mpls(parsed, data, at),
        _ => Ok(at),
    }
}

/// Cisco HDLC: address, control, EtherType.
fn c_hdlc(parsed: &mut Parsed, data: &[u8]) -> Result<usize, ParseStop> {
    let ether_type = u16_at(data, 2)?;
    protocol(parsed, data, ether_type, 4)
}

/// BSD loopback: an address family. NULL uses the byte order of the capturing host, LOOP uses
/// network order. Programs confuse the two, but family numbers are small, so the value shows its
/// byte order.
fn family(parsed: &mut Parsed, data: &[u8]) -> Result<usize, ParseStop> {
    let big = u32_at(data, 0)?;
    let family = big.min(big.swap_bytes());
    parsed.link_protocol = Some(LinkProtocol::Family(family));
    match family {
        2 => ip::v4(parsed, data, 4),
        10 | 24 | 28 | 30 => ip::v6(parsed, data, 4),
        _ => Ok(4),
    }
}

/// Linux "cooked" capture, version 1: 16 bytes.
fn sll(parsed: &mut Parsed, data: &[u8]) -> Result<usize, ParseStop> {
    let (hardware, address_len) = (u16_at(data, 2)?, u16_at(data, 4)?);
    if address_len == 6 {
        parsed.src_mac = Some(array(data, 6)?);
    }
    let protocol = u16_at(data, 14)?;
    cooked(parsed, data, hardware, protocol, 16)
}

/// Linux "cooked" capture, version 2: 20 bytes.
fn sll2(parsed: &mut Parsed, data: &[u8]) -> Result<usize, ParseStop> {
    let (protocol, hardware, address_len) = (u16_at(data, 0)?, u16_at(data, 8)?, u8_at(data, 11)?);
    if address_len == 6 {
        parsed.src_mac = Some(array(data, 12)?);
    }
    within(data, 20)?;
    cooked(parsed, data, hardware, protocol, 20)
}

/// The protocol of a "cooked" header. Its meaning depends on the Linux device type.
fn cooked(
    parsed: &mut Parsed,
    data: &[u8],
    hardware: u16,
    protocol: u16,
    at: usize,
) -> Result<usize, ParseStop> {
    const NETLINK: u16 = 824;
    const FRAME_RELAY: u16 = 770;
    const IEEE80211: std::ops::RangeInclusive<u16> = 801..=803;
    const P_802_2: u16 = 4;

    if hardware == NETLINK || hardware == FRAME_RELAY || IEEE80211.contains(&hardware) {
        parsed.link_protocol = Some(LinkProtocol::Device { hardware, protocol });
        return within(data, at);
    }
    match protocol {
        P_802_2 => llc(parsed, data, at),
        0..=LENGTH_MAX => {
            parsed.link_protocol = Some(LinkProtocol::Device { hardware, protocol });
            within(data, at)
        }
        _ => after_type(parsed, data, protocol, at),
    }
}
