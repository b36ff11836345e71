//! Packets inside tunnels. An IDS alert may name the inner packet, or the packet on the wire.

use crate::proto::{ETHER_IPV4, ETHER_IPV6, UDP};
use crate::{LinkType, Parsed, parse};

/// Maximum number of nested tunnels that the search enters.
const DEPTH: usize = 4;
/// IP protocol numbers (IANA) and EtherTypes that carry packets.
const IP_IN_IP: u8 = 4;
const IPV6_IN_IP: u8 = 41;
const GRE: u8 = 47;
const ETHER_BRIDGED: u16 = 0x6558;
const ETHER_ERSPAN: u16 = 0x88be;
const ETHER_ERSPAN_3: u16 = 0x22eb;
const ETHER_PPP: u16 = 0x880b;
/// Header bytes before the inner frame: VXLAN (RFC 7348), ERSPAN II and III
/// (draft-foschiano-erspan) with III's optional part, and Geneve before its options (RFC 8926).
const VXLAN: usize = 8;
const ERSPAN_2: usize = 8;
const ERSPAN_3: usize = 12;
const ERSPAN_3_MORE: usize = 8;
const GENEVE: usize = 8;
/// Header bytes of Teredo (RFC 4380, section 5.1.1): the origin indication, and the authentication
/// without its identifier and value.
const TEREDO_ORIGIN: usize = 8;
const TEREDO_AUTHENTICATION: usize = 13;

/// A packet inside another.
#[derive(Debug, Clone, Copy)]
pub struct InnerPacket<'d> {
    /// Headers of the inner packet. Offsets count from the start of [`Self::data`].
    pub parsed: Parsed,
    /// Captured bytes of the inner packet, link header included.
    pub data: &'d [u8],
}

/// Calls `visit` with candidates for an IP packet inside a frame, outer before inner, until `visit`
/// returns `true`. Returns whether `visit` returned `true`. `parsed` are the headers of the frame
/// `data`.
///
/// The search enters GRE (with IP, Ethernet, ERSPAN or PPP inside) and IP in IP. Over UDP it tries
/// VXLAN, Geneve and Teredo, whatever the ports. A UDP payload does not say which tunnel it belongs
/// to, so some candidates are not packets. `visit` must recognise the packet that the caller
/// searches for.
pub fn find_inner(
    parsed: &Parsed,
    data: &[u8],
    visit: &mut dyn FnMut(&InnerPacket<'_>) -> bool,
) -> bool {
    descend(parsed, data, DEPTH, visit)
}

fn descend(
    parsed: &Parsed,
    data: &[u8],
    depth: usize,
    visit: &mut dyn FnMut(&InnerPacket<'_>) -> bool,
) -> bool {
    let (Some(proto), Some(payload)) =
        (parsed.network.and_then(|ip| ip.proto), parsed.payload(data))
    else {
        return false;
    };
    if depth == 0 || parsed.is_later_fragment() {
        return false;
    }
    let mut look = |link_type: LinkType, data: Option<&[u8]>| {
        let Some(data) = data.filter(|data| !data.is_empty()) else {
            return false;
        };
        let parsed = parse(link_type, data);
        if parsed.network.is_none() {
            return false;
        }
        let inner = InnerPacket { parsed, data };
        visit(&inner) || descend(&parsed, data, depth - 1, visit)
    };
    match proto {
        IP_IN_IP | IPV6_IN_IP => look(LinkType::RAW, Some(payload)),
        GRE => gre(payload).is_some_and(|(link_type, data)| look(link_type, Some(data))),
        UDP => {
            let vxlan = payload.get(VXLAN..).filter(|_| payload[0] & 0x08 != 0);
            let geneve = geneve(payload);
            look(LinkType::RAW, teredo(payload))
                || look(LinkType::ETHERNET, vxlan)
                || geneve.is_some_and(|(link_type, data)| look(link_type, Some(data)))
        }
        _ => false,
    }
}

fn number(data: &[u8], at: usize) -> Option<u16> {
    let bytes = data.get(at..at + 2)?;
    Some(u16::from_be_bytes([bytes[0], bytes[1]]))
}

/// The link type with which to parse data of an EtherType.
fn link_type(ether_type: u16) -> Option<LinkType> {
    match ether_type {
        ETHER_IPV4 | ETHER_IPV6 => Some(LinkType::RAW),
        ETHER_BRIDGED => Some(LinkType::ETHERNET),
        _ => None,
    }
}

/// GRE: RFC 2784 and 2890. Version 1 is RFC 2637.
fn gre(data: &[u8]) -> Option<(LinkType, &[u8])> {
    let (flags, proto) = (number(data, 0)?, number(data, 2)?);
    let has = |bit: u16| usize::from(flags & bit != 0);
    // Ignore headers with routing information (RFC 1701), which is long out of use.
    if flags & 0x4000 != 0 {
        return None;
    }
    let (checksum, key, sequence) = (has(0x8000), has(0x2000), has(0x1000));
    let acknowledgment = if flags & 7 == 1 { has(0x0080) } else { 0 };
    let rest = data.get(4 + 4 * (checksum + key + sequence + acknowledgment)..)?;
    Some(match proto {
        // The first version of ERSPAN has neither a header nor a sequence number.
        ETHER_ERSPAN if sequence == 0 => (LinkType::ETHERNET, rest),
        ETHER_ERSPAN => (LinkType::ETHERNET, rest.get(ERSPAN_2..)?),
        ETHER_ERSPAN_3 => {
            let more = if *rest.get(ERSPAN_3 - 1)? & 1 == 1 {
                ERSPAN_3_MORE
            } else {
                0
            };
            (LinkType::ETHERNET, rest.get(ERSPAN_3 + more..)?)
        }
        ETHER_PPP => (LinkType::PPP, rest),
        other => (link_type(other)?, rest),
    })
}

fn geneve(data: &[u8]) -> Option<(LinkType, &[u8])> {
    let first = *data.first()?;
    let options = 4 * usize::from(first & 0x3f);
    // Geneve has version 0 only.
    let rest = data.get(GENEVE + options..).filter(|_| first >> 6 == 0)?;
    Some((link_type(number(data, 2)?)?, rest))
}

/// The IPv6 packet after Teredo's headers.
fn teredo(data: &[u8]) -> Option<&[u8]> {
    let mut rest = data;
    if number(rest, 0)? == 1 {
        let (identifier, value) = (*rest.get(2)?, *rest.get(3)?);
        rest = rest.get(TEREDO_AUTHENTICATION + usize::from(identifier) + usize::from(value)..)?;
    }
    if number(rest, 0)? == 0 {
        rest = rest.get(TEREDO_ORIGIN..)?;
    }
    (rest.first()? >> 4 == 6).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FlowKey;
    use crate::flow_of;

    fn ip(proto: u8, payload: &[u8]) -> Vec<u8> {
        let len = u16::try_from(20 + payload.len()).unwrap().to_be_bytes();
        let mut packet = vec![
            0x45, 0, len[0], len[1], 0, 0, 0, 0, 64, proto, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        ];
        packet.extend_from_slice(payload);
        packet
    }

    fn udp(port: u16, payload: &[u8]) -> Vec<u8> {
        let len = u16::try_from(8 + payload.len()).unwrap().to_be_bytes();
        let port = port.to_be_bytes();
        ip(
            UDP,
            &[
                &[0x30, 0x39, port[0], port[1], len[0], len[1], 0, 0],
                payload,
            ]
            .concat(),
        )
    }

    fn ethernet(packet: &[u8]) -> Vec<u8> {
        [&[2; 12][..], &[8, 0], packet].concat()
    }

    /// The smaller port of each UDP packet inside a raw IP packet, outer first.
    fn ports(packet: &[u8]) -> Vec<u16> {
        let mut seen = Vec::new();
        let is_found = find_inner(&parse(LinkType::RAW, packet), packet, &mut |inner| {
            if let Some(FlowKey::Ports { low, high, .. }) = flow_of(&inner.parsed) {
                seen.push(low.port.min(high.port));
            }
            false
        });
        assert!(!is_found);
        seen
    }

    #[test]
    fn each_kind_of_tunnel_is_looked_into() {
        let sought = udp(53, b"x");
        let frame = ethernet(&sought);
        let gre = |header: &[u8], rest: &[u8]| ip(GRE, &[header, rest].concat());
        let mut erspan_3 = vec![0x10, 0, 0x22, 0xeb, 0, 0, 0, 1];
        erspan_3.extend([0; 12]);
        let mut v6 = vec![0x60, 0, 0, 0, 0, 9, UDP, 64];
        v6.extend([1; 32]);
        v6.extend(&sought[20..]);
        let cases = [
            ip(4, &sought),
            ip(41, &v6),
            gre(&[0, 0, 8, 0], &sought),
            gre(
                &[0xb0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 1],
                &sought,
            ),
            gre(&[0, 0, 0x65, 0x58], &frame),
            gre(&[0, 0, 0x88, 0xbe], &frame),
            gre(
                &[0x10, 0, 0x88, 0xbe, 0, 0, 0, 1, 0x10, 0, 0, 0, 0, 0, 0, 0],
                &frame,
            ),
            gre(&erspan_3, &frame),
            gre(
                &[
                    0x30, 0x81, 0x88, 0x0b, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0x21,
                ],
                &sought,
            ),
            udp(4789, &[&[8, 0, 0, 0, 0, 0, 7, 0][..], &frame].concat()),
            udp(
                6081,
                &[&[1, 0, 0x65, 0x58, 0, 0, 7, 0, 1, 2, 3, 4][..], &frame].concat(),
            ),
            udp(3544, &v6),
            udp(
                3544,
                &[
                    &[
                        0, 1, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 1, 2, 3, 4, 5, 6,
                    ][..],
                    &v6,
                ]
                .concat(),
            ),
        ];
        for (number, packet) in cases.iter().enumerate() {
            assert_eq!(ports(packet).last(), Some(&53), "case {number}");
            for end in 0..packet.len() {
                // Truncated frames must not give other packets.
                assert!(
                    ports(&packet[..end]).iter().all(|port| *port == 53),
                    "case {number} cut at {end}"
                );
            }
        }
        let twice = gre(
            &[0, 0, 8, 0],
            &udp(4789, &[&[8, 0, 0, 0, 0, 0, 7, 0][..], &frame].concat()),
        );
        assert_eq!(ports(&twice), [4789, 53]);
        assert_eq!(ports(&sought), []);
    }

    #[test]
    fn depth_is_bounded() {
        let mut packet = udp(53, b"x");
        for _ in 0..9 {
            packet = ip(4, &packet);
        }
        let mut levels = 0;
        find_inner(&parse(LinkType::RAW, &packet), &packet, &mut |_| {
            levels += 1;
            false
        });
        assert_eq!(levels, DEPTH);
    }
}
