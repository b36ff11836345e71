//! Community ID, version 1: the flow identifier that Suricata, Zeek and others print, so that an alert of theirs finds
//! our packets. Defined by Corelight's [Community ID Flow Hashing](https://github.com/corelight/community-id-spec).

use std::net::IpAddr;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use sha1::{Digest as _, Sha1};

use crate::proto::{ICMP, ICMPV6};
use crate::{FlowKey, Icmp, Parsed};

/// The Community ID of a frame's flow, `1:` and 28 characters of base64. Tools that are to agree need the same `seed`,
/// usually 0.
///
/// `None` where the flow is unknown (see [`crate::flow_of`]), for ICMP whose type was not captured, and for everything
/// but IP.
#[must_use]
pub fn community_id(parsed: &Parsed, seed: u16) -> Option<String> {
    let ip = parsed.network?;
    let proto = ip.proto?;
    let (ports, one_way) = match (crate::flow_of(parsed)?, ip.src) {
        (FlowKey::Ports { .. }, _) => (parsed.transport.map(|ports| (ports.src, ports.dst)), false),
        (_, IpAddr::V4(_)) if proto == ICMP => icmp_ports(parsed.icmp?, icmp_counterpart),
        (_, IpAddr::V6(_)) if proto == ICMPV6 => icmp_ports(parsed.icmp?, icmpv6_counterpart),
        _ => (None, false),
    };
    let (src_port, dst_port) = ports.unwrap_or_default();
    let (mut low, mut high) = ((ip.src, src_port), (ip.dst, dst_port));
    // Messages without a reply have no reverse direction to agree with, so the sender stays first.
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

/// The Community ID of a flow between ports: what [`community_id`] says of each of its packets. `None` for other keys,
/// which do not tell enough.
#[must_use]
pub fn community_id_of(flow: &FlowKey, seed: u16) -> Option<String> {
    let &FlowKey::Ports { proto, low, high } = flow else {
        return None;
    };
    let addrs = (low.addr, high.addr);
    Some(identifier(seed, addrs, proto, Some((low.port, high.port))))
}

/// The hash of addresses and ports that are in order.
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
    let mut id = String::from("1:");
    STANDARD.encode_string(hash.finalize(), &mut id);
    id
}

/// Adds an address in network order.
fn add_address(hash: &mut Sha1, addr: IpAddr) {
    match addr {
        IpAddr::V4(addr) => hash.update(addr.octets()),
        IpAddr::V6(addr) => hash.update(addr.octets()),
    }
}

/// ICMP's stand-in for ports: the type and its counterpart, or type and code for a message that goes one way only.
fn icmp_ports(icmp: Icmp, counterpart: fn(u8) -> Option<u8>) -> (Option<(u16, u16)>, bool) {
    let second = counterpart(icmp.kind);
    (
        Some((u16::from(icmp.kind), u16::from(second.unwrap_or(icmp.code)))),
        second.is_none(),
    )
}

/// The message type that answers an ICMP type, or that it answers.
fn icmp_counterpart(kind: u8) -> Option<u8> {
    Some(match kind {
        0 => 8, // echo
        8 => 0,
        9 => 10, // router
        10 => 9,
        13 => 14, // time stamp
        14 => 13,
        15 => 16, // information
        16 => 15,
        17 => 18, // address mask
        18 => 17,
        _ => return None,
    })
}

/// The message type that answers an ICMPv6 type, or that it answers.
fn icmpv6_counterpart(kind: u8) -> Option<u8> {
    Some(match kind {
        128 => 129, // echo
        129 => 128,
        130 => 131, // multicast listener
        131 => 130,
        133 => 134, // router
        134 => 133,
        135 => 136, // neighbour
        136 => 135,
        139 => 140, // node information
        140 => 139,
        144 => 145, // home agent address discovery
        145 => 144,
        _ => return None,
    })
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

    #[test]
    fn counterparts_are_mutual() {
        for kind in 0..=255 {
            for counterpart in [icmp_counterpart, icmpv6_counterpart] {
                if let Some(other) = counterpart(kind) {
                    assert_eq!(counterpart(other), Some(kind));
                    assert_ne!(other, kind);
                }
            }
        }
    }
}
