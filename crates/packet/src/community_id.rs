//! Community ID, version 1: the flow identifier that Suricata, Zeek and other tools print, defined
//! by Corelight's [Community ID Flow Hashing](https://github.com/corelight/community-id-spec).

use std::net::IpAddr;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use sha1::{Digest as _, Sha1};

use crate::proto::{ICMP, ICMPV6};
use crate::{FlowEndpoint, FlowKey, Icmp, Parsed, Ports};

/// The Community ID of a frame's flow: `1:` and 28 characters of base64. Tools agree only if they
/// use the same `seed`, usually 0.
///
/// `None` if the flow is unknown (see [`crate::flow_of`]) or not IP, or if the frame does not
/// contain the type and code of its ICMP message.
#[must_use]
pub fn community_id(parsed: &Parsed, seed: u16) -> Option<String> {
    let ip = parsed.network?;
    let proto = ip.proto?;
    let (ports, one_way) = match (crate::flow_of(parsed)?, ip.src) {
        (FlowKey::Ports { .. }, _) => (parsed.transport.map(|ports| (ports.src, ports.dst)), false),
        (_, IpAddr::V4(_)) if proto == ICMP => some_ports(icmp_ports(parsed.icmp?, false)),
        (_, IpAddr::V6(_)) if proto == ICMPV6 => some_ports(icmp_ports(parsed.icmp?, true)),
        _ => (None, false),
    };
    let (src_port, dst_port) = ports.unwrap_or_default();
    let (mut low, mut high) = ((ip.src, src_port), (ip.dst, dst_port));
    // A message without a reply has no reverse direction, so the sender stays first.
    if !one_way && high < low {
        (low, high) = (high, low);
    }

    Some(identifier(
        seed,
        (low.0, high.0),
        proto,
        ports.map(|_| (low.1, high.1)),
    ))
}

/// The Community ID of a TCP, UDP or SCTP flow. `None` for other keys, because an ICMP flow's key,
/// for example, has no message type.
#[must_use]
pub fn community_id_of(flow: &FlowKey, seed: u16) -> Option<String> {
    let &FlowKey::Ports { proto, low, high } = flow else {
        return None;
    };
    Some(community_id_between(proto, [low, high], true, seed))
}

/// The Community ID of an IP flow, from the values that the hash covers. `ends` are in hash order:
/// the smaller end first, or the sender of a one-way ICMP message first. `has_ports` is true if the
/// protocol has ports, and for ICMP and ICMPv6, whose ports [`icmp_ports`] gives.
#[must_use]
pub fn community_id_between(
    proto: u8,
    ends: [FlowEndpoint; 2],
    has_ports: bool,
    seed: u16,
) -> String {
    let [low, high] = ends;
    let ports = has_ports.then_some((low.port, high.port));
    identifier(seed, (low.addr, high.addr), proto, ports)
}

/// Whether a text has the form of a Community ID of version 1: `1:` and 20 bytes in base64.
#[must_use]
pub fn is_community_id(text: &str) -> bool {
    let digest = text.strip_prefix("1:").map(|text| STANDARD.decode(text));
    matches!(digest, Some(Ok(digest)) if digest.len() == 20)
}

fn identifier(seed: u16, addrs: (IpAddr, IpAddr), proto: u8, ports: Option<(u16, u16)>) -> String {
    let mut hash = Sha1::new();
    hash.update(seed.to_be_bytes());
    add_address(&mut hash, addrs.0);
    add_address(&mut hash, addrs.1);
    hash.update([proto, 0]);
    if let Some((low, high)) = ports {
        hash.update(low.to_be_bytes());
        hash.update(high.to_be_bytes());
    }
    let mut id = String::with_capacity(30);
    id.push_str("1:");
    STANDARD.encode_string(hash.finalize(), &mut id);
    id
}

fn add_address(hash: &mut Sha1, addr: IpAddr) {
    match addr {
        IpAddr::V4(addr) => hash.update(addr.octets()),
        IpAddr::V6(addr) => hash.update(addr.octets()),
    }
}

/// ICMP message types that answer each other: echo, router, time stamp, information, address mask.
const ICMP_PAIRS: [(u8, u8); 5] = [(8, 0), (10, 9), (13, 14), (15, 16), (17, 18)];
/// ICMPv6 message types that answer each other: echo, multicast listener, router, neighbour, node
/// information, home agent address discovery.
const ICMPV6_PAIRS: [(u8, u8); 6] = [
    (128, 129),
    (130, 131),
    (133, 134),
    (135, 136),
    (139, 140),
    (144, 145),
];

fn some_ports((ports, one_way): (Ports, bool)) -> (Option<(u16, u16)>, bool) {
    (Some((ports.src, ports.dst)), one_way)
}

/// Values that a Community ID hashes instead of ports for ICMP (ICMPv6 if `is_v6`):
///
/// - A message with a counterpart: its type and the counterpart's type, and `false`.
/// - A one-way message: its type and code, and `true`.
#[must_use]
pub fn icmp_ports(icmp: Icmp, is_v6: bool) -> (Ports, bool) {
    let pairs: &[(u8, u8)] = if is_v6 { &ICMPV6_PAIRS } else { &ICMP_PAIRS };
    let counterpart = pairs.iter().find_map(|&(one, other)| match icmp.kind {
        kind if kind == one => Some(other),
        kind if kind == other => Some(one),
        _ => None,
    });
    let [src, dst] = [icmp.kind, counterpart.unwrap_or(icmp.code)].map(u16::from);
    (Ports { src, dst }, counterpart.is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LinkType, parse};

    /// An IPv4 packet between 10.0.0.`src` and 10.0.0.`dst`.
    fn packet(src: u8, dst: u8, proto: u8, payload: &[u8]) -> Parsed {
        let mut bytes = vec![
            0x45, 0, 0, 0, 0, 0, 0, 0, 64, proto, 0, 0, 10, 0, 0, src, 10, 0, 0, dst,
        ];
        bytes.extend_from_slice(payload);
        parse(LinkType::RAW, &bytes)
    }

    fn id(parsed: &Parsed) -> String {
        community_id(parsed, 0).unwrap()
    }

    #[test]
    fn both_directions_agree() {
        let there = packet(1, 2, 17, &[0, 53, 4, 210, 0, 8, 0, 0]);
        let back = packet(2, 1, 17, &[4, 210, 0, 53, 0, 8, 0, 0]);
        assert_eq!(id(&there), id(&back));
        assert_ne!(
            id(&there),
            id(&packet(1, 2, 17, &[0, 54, 4, 210, 0, 8, 0, 0]))
        );
        assert_ne!(Some(id(&there)), community_id(&there, 1));
        assert!(is_community_id(&id(&there)));
        for wrong in [
            "",
            "1:",
            "2:LQU9qZlK+B5F3KDmev6m5PMibrg=",
            "1:LQU9qZlK+B5F3KDmev6m5PMibr",
            "1:AAAA",
        ] {
            assert!(!is_community_id(wrong), "{wrong}");
        }
        let key = crate::flow_of(&there).unwrap();
        assert_eq!(community_id_of(&key, 1), community_id(&there, 1));
        let icmp = crate::flow_of(&packet(1, 2, 1, &[8, 0, 0, 0])).unwrap();
        assert_eq!(community_id_of(&icmp, 0), None, "the type is not known");
    }

    #[test]
    fn equal_addresses_are_ordered_by_port() {
        let there = packet(1, 1, 17, &[0, 53, 4, 210, 0, 8, 0, 0]);
        let back = packet(1, 1, 17, &[4, 210, 0, 53, 0, 8, 0, 0]);
        assert_eq!(id(&there), id(&back));
    }

    #[test]
    fn echo_request_and_reply_agree() {
        assert_eq!(
            id(&packet(1, 2, 1, &[8, 0, 0, 0])),
            id(&packet(2, 1, 1, &[0, 0, 0, 0]))
        );
    }

    #[test]
    fn one_way_icmp_keeps_its_direction() {
        assert_ne!(
            id(&packet(1, 2, 1, &[3, 1, 0, 0])),
            id(&packet(2, 1, 1, &[3, 1, 0, 0]))
        );
        assert_ne!(
            id(&packet(1, 2, 1, &[3, 1, 0, 0])),
            id(&packet(1, 2, 1, &[3, 2, 0, 0]))
        );
    }

    #[test]
    fn unknown_ports_have_no_id() {
        assert_eq!(community_id(&packet(1, 2, 17, &[0, 53, 4]), 0), None);
        assert_eq!(community_id(&packet(1, 2, 1, &[8]), 0), None);
        assert_eq!(community_id(&parse(LinkType::RAW, &[]), 0), None);
    }
}
