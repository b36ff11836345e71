//! The addresses that a packet must have to match an expression, for a caller with an index of
//! addresses.
//!
//! [`hosts_of`] reads a frame at the offsets that libpcap's programs use, in ARP and RARP too. The
//! module `ruleset::parse` understands only primitives whose meaning is certain. Addresses inside a
//! tunnel never count.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use retroscope_packet::LinkType;

use crate::{FilledExpression, FilterMode};

use super::{
    atom::Atom,
    key::{HeaderKey, LinkHeaderKind, has, kind},
    look_ups::conjunctions,
    understand::understand,
};

/// Maximum number of alternatives in which an expression can match.
const ALTERNATIVES_MAX: usize = 256;

/// Addresses of which every packet that matches an expression has some.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NeededHosts {
    /// Ways in which the expression can match, none empty. A matching packet has all addresses of
    /// at least one alternative, as source or destination.
    pub alternatives: Vec<Vec<IpAddr>>,
    /// Whether the addresses are certain for Ethernet frames only, because the expression tests
    /// tags or hardware addresses.
    pub is_of_ethernet: bool,
}

impl NeededHosts {
    /// Addresses that an expression needs. `None` if there are more than 256 alternatives, or if
    /// one of them requires no whole address. A shorter prefix, a name or `$flow` does not count.
    #[must_use]
    pub fn of(filled: &FilledExpression) -> Option<Self> {
        let expr = understand(filled).body.expr;
        let mut is_of_ethernet = false;
        expr.atoms(&mut |atom| {
            is_of_ethernet |= matches!(atom, Atom::Mac { .. } | Atom::Vlan(_));
        });
        let all = conjunctions(&expr, false, ALTERNATIVES_MAX)?;
        let alternatives = all.iter().map(|conjunction| {
            let needed = conjunction.iter().filter(|literal| !literal.negated);
            let hosts: Vec<IpAddr> = needed.filter_map(|literal| host(&literal.atom)).collect();
            (!hosts.is_empty()).then_some(hosts)
        });
        let alternatives: Vec<_> = alternatives.collect::<Option<_>>()?;
        Some(Self {
            alternatives,
            is_of_ethernet,
        })
    }
}

/// The address that a primitive compares as a whole.
fn host(atom: &Atom) -> Option<IpAddr> {
    match *atom {
        Atom::V4 { addr, bits: 32, .. } => Some(Ipv4Addr::from_bits(addr).into()),
        Atom::V6 {
            addr, bits: 128, ..
        } => Some(Ipv6Addr::from_bits(addr).into()),
        _ => None,
    }
}

/// Source and destination address of a frame, as primitives with a whole address compare them, if
/// captured. `None` if frames of this link type cannot be read here and may have any address.
#[must_use]
#[inline]
pub fn hosts_of(link_type: LinkType, mode: FilterMode, data: &[u8]) -> Option<[Option<IpAddr>; 2]> {
    let mut key = HeaderKey::default();
    key.read(LinkHeaderKind::of(link_type, mode)?, data);
    let v4 = |bit, addr: u32| key.has(bit).then(|| Ipv4Addr::from_bits(addr).into());
    let v6 = |is_dst| {
        let addr = key.v6_address(data, is_dst);
        addr.map(|addr| Ipv6Addr::from_bits(addr).into())
    };
    Some(match key.kind {
        kind::V4 | kind::ARP | kind::RARP => [v4(has::SRC, key.src), v4(has::DST, key.dst)],
        kind::V6 => [v6(false), v6(true)],
        _ => [None, None],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Template;

    fn needed(text: &str) -> Option<Vec<Vec<String>>> {
        let filled = Template::parse(text).unwrap().into_plain().unwrap();
        let alternatives = NeededHosts::of(&filled)?.alternatives;
        let names = |alternative: Vec<IpAddr>| alternative.iter().map(IpAddr::to_string).collect();
        Some(alternatives.into_iter().map(names).collect())
    }

    #[test]
    fn expressions_that_need_hosts_say_which() {
        for (text, alternatives) in [
            ("host 10.0.0.1", &[&["10.0.0.1"][..]][..]),
            ("src 10.0.0.1 and port 53", &[&["10.0.0.1"]]),
            (
                "host 10.0.0.1 and dst host 10.0.0.2 and not tcp",
                &[&["10.0.0.1", "10.0.0.2"]],
            ),
            ("host 10.0.0.1 or 10.0.0.2", &[&["10.0.0.1"], &["10.0.0.2"]]),
            (
                "(tcp or udp) and (host 10.0.0.1 or arp host 10.0.0.2)",
                &[&["10.0.0.1"], &["10.0.0.2"], &["10.0.0.1"], &["10.0.0.2"]],
            ),
            ("not (not host ::1)", &[&["::1"]]),
            ("vlan 7 and host 10.0.0.1", &[&["10.0.0.1"]]),
            ("net 10.0.0.1/32", &[&["10.0.0.1"]]),
            ("host 10.0.0.1 and payload contains \"x\"", &[&["10.0.0.1"]]),
            ("ip[8] < 5 and host 10.0.0.1", &[&["10.0.0.1"]]),
        ] {
            let alternatives: Vec<Vec<String>> = alternatives
                .iter()
                .map(|alternative| alternative.iter().map(|host| (*host).to_owned()).collect())
                .collect();
            assert_eq!(needed(text), Some(alternatives), "{text}");
        }
    }

    #[test]
    fn others_need_none() {
        for text in [
            "",
            "tcp",
            "not host 10.0.0.1",
            "host 10.0.0.1 or tcp",
            "net 10.0.0.0/24",
            "host 10.0.0.1 or payload contains \"x\"",
            "ip[8] < 5",
            "not (host 10.0.0.1 and host 10.0.0.2)",
            "vlan and vlan and host 10.0.0.1",
            "host 10.0.0.1 or (vlan and host 10.0.0.2)",
            "ether host 0:1:2:3:4:5",
            "ip[12:4] = 0x0a000001",
        ] {
            assert_eq!(needed(text), None, "{text}");
        }
    }
}
