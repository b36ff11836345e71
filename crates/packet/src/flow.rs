//! Flow keys: packets with equal keys belong together.
//!
//! A key holds no VLAN tags: a flow stays the same flow under any tag stack. The key of a frame
//! with a tunnel describes the outer packet.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crate::parsed::Mac;
use crate::proto::{ICMP, ICMPV6, IGMP, SCTP, TCP, UDP};
use crate::{LinkType, MacAddr, ParseOutcome, Parsed};

/// An address and port at one end of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowEndpoint {
    /// IP address.
    pub addr: IpAddr,
    /// Port.
    pub port: u16,
}

/// Key of a bidirectional flow: packets of both directions have the same key. `low <= high` in each
/// variant that has these fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FlowKey {
    /// TCP, UDP, SCTP: the 5-tuple.
    Ports {
        /// 6, 17 or 132.
        proto: u8,
        /// The smaller end.
        low: FlowEndpoint,
        /// The larger end.
        high: FlowEndpoint,
    },
    /// Other IP: address pair and upper-layer protocol.
    Ip {
        /// Upper-layer protocol.
        proto: u8,
        /// The smaller address.
        low: IpAddr,
        /// The larger address.
        high: IpAddr,
    },
    /// Not IP, between hardware addresses.
    Mac {
        /// EtherType after the VLAN stack; `None` for IEEE 802.3 length frames.
        ether_type: Option<u16>,
        /// The smaller address.
        low: MacAddr,
        /// The larger address.
        high: MacAddr,
    },
    /// Not IP, on a link type without a pair of hardware addresses.
    Link {
        /// Link type.
        link_type: LinkType,
        /// Protocol number in the link header: see [`crate::LinkProtocol::number`].
        protocol: u32,
    },
}

/// Fields by which the fragments of one packet are recognised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FragmentKey {
    /// Sender.
    pub src: IpAddr,
    /// Receiver.
    pub dst: IpAddr,
    /// Protocol of the fragmented data: see [`crate::Fragment::proto`].
    pub proto: u8,
    /// Identification.
    pub id: u32,
}

/// The flow of a frame. `None` if the flow is unknown:
///
/// - a later fragment of TCP, UDP or SCTP, or of a packet whose fragmented data begin with an IPv6
///   extension header or an authentication header (see [`fragment_of`])
/// - a header that the key needs was cut off or is malformed
/// - an unknown link type
#[must_use]
pub fn flow_of(parsed: &Parsed) -> Option<FlowKey> {
    let Some(ip) = parsed.network else {
        // If the link header was cut off, the frame may be IP.
        return (parsed.outcome == ParseOutcome::Complete).then(|| link_flow(parsed));
    };
    let proto = ip.proto?;
    if matches!(proto, TCP | UDP | SCTP) {
        let ports = parsed.transport?;
        let end = |addr, port| FlowEndpoint { addr, port };
        return Some(FlowKey::between(
            proto,
            end(ip.src, ports.src),
            end(ip.dst, ports.dst),
        ));
    }
    let end = |addr| FlowEndpoint { addr, port: 0 };
    Some(FlowKey::between(proto, end(ip.src), end(ip.dst)))
}

/// Whether `a <= b`. Faster than the derived comparison, because it compares integers.
fn is_ordered(a: FlowEndpoint, b: FlowEndpoint) -> bool {
    match (a.addr, b.addr) {
        (IpAddr::V4(x), IpAddr::V4(y)) => (x.to_bits(), a.port) <= (y.to_bits(), b.port),
        (IpAddr::V6(x), IpAddr::V6(y)) => (x.to_bits(), a.port) <= (y.to_bits(), b.port),
        _ => a <= b,
    }
}

fn link_flow(parsed: &Parsed) -> FlowKey {
    if let (Some(src), Some(dst)) = (parsed.src_mac, parsed.dst_mac) {
        return FlowKey::Mac {
            ether_type: parsed.ether_type,
            low: src.min(dst),
            high: src.max(dst),
        };
    }
    let protocol = parsed.link_protocol.map_or(0, |protocol| protocol.number());
    FlowKey::Link {
        link_type: parsed.link_type,
        protocol,
    }
}

/// The key that a fragment shares with the other fragments of its packet. `None` if the parsed
/// headers show no fragment.
///
/// A caller that stores the flow of the first fragment under this key can recognise the later
/// fragments of that flow.
#[must_use]
pub fn fragment_of(parsed: &Parsed) -> Option<FragmentKey> {
    let ip = parsed.network?;
    let fragment = ip.fragment?;
    Some(FragmentKey {
        src: ip.src,
        dst: ip.dst,
        proto: fragment.proto,
        id: fragment.id,
    })
}

impl fmt::Display for FlowEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        SocketAddr::new(self.addr, self.port).fmt(f)
    }
}

impl FlowKey {
    /// The IP flow between two ends. Only TCP, UDP and SCTP keep the ports.
    #[must_use]
    pub fn between(proto: u8, a: FlowEndpoint, b: FlowEndpoint) -> Self {
        if matches!(proto, TCP | UDP | SCTP) {
            let (low, high) = if is_ordered(a, b) { (a, b) } else { (b, a) };
            return Self::Ports { proto, low, high };
        }
        let (low, high) = (a.addr.min(b.addr), a.addr.max(b.addr));
        Self::Ip { proto, low, high }
    }
}

impl fmt::Display for FlowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Ports { proto, low, high } => write!(f, "{} {low} {high}", ProtoName(proto)),
            Self::Ip { proto, low, high } => write!(f, "{} {low} {high}", ProtoName(proto)),
            Self::Mac {
                ether_type,
                low,
                high,
            } => {
                match ether_type {
                    Some(ether_type) => write!(f, "ether 0x{ether_type:04x}")?,
                    None => f.write_str("llc")?,
                }
                write!(f, " {} {}", Mac(low), Mac(high))
            }
            Self::Link {
                link_type,
                protocol,
            } => write!(f, "link {} protocol 0x{protocol:04x}", link_type.0),
        }
    }
}

impl fmt::Display for FragmentKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {} > {} fragment {}",
            ProtoName(self.proto),
            self.src,
            self.dst,
            self.id
        )
    }
}

/// Prints an IP protocol by its pcap-filter name, or as `proto N`.
pub(crate) struct ProtoName(pub(crate) u8);

impl fmt::Display for ProtoName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            ICMP => "icmp",
            IGMP => "igmp",
            TCP => "tcp",
            UDP => "udp",
            ICMPV6 => "icmp6",
            SCTP => "sctp",
            other => return write!(f, "proto {other}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;

    /// A UDP flow. `src` and `dst`: the last byte of the address and of the port.
    fn udp(is_v6: bool, src: [u8; 2], dst: [u8; 2]) -> FlowKey {
        let ports = [0, src[1], 0, dst[1], 0, 8, 0, 0];
        let packet = if is_v6 {
            let mut header = [0; 40];
            (header[0], header[5], header[6]) = (0x60, 8, UDP);
            (header[23], header[39]) = (src[0], dst[0]);
            [&header[..], &ports].concat()
        } else {
            let header = [
                0x45, 0, 0, 28, 0, 0, 0, 0, 64, UDP, 0, 0, 10, 0, 0, src[0], 10, 0, 0, dst[0],
            ];
            [&header[..], &ports].concat()
        };
        flow_of(&parse(LinkType::RAW, &packet)).unwrap()
    }

    #[test]
    fn keys_are_equal_both_ways_and_ordered() {
        for is_v6 in [false, true] {
            for (a, b) in [
                ([1, 80], [2, 9]),
                ([2, 9], [1, 80]),
                ([1, 7], [1, 8]),
                ([200, 1], [100, 1]),
                ([1, 1], [1, 1]),
            ] {
                let key = udp(is_v6, a, b);
                assert_eq!(key, udp(is_v6, b, a));
                assert!(
                    matches!(key, FlowKey::Ports { low, high, .. } if low <= high),
                    "{key}"
                );
            }
            assert_ne!(
                udp(is_v6, [1, 80], [2, 9]),
                udp(is_v6, [1, 9], [2, 80]),
                "ports belong to their addresses"
            );
        }
    }

    #[test]
    fn keys_print_themselves() {
        assert_eq!(
            udp(false, [2, 9], [1, 80]).to_string(),
            "udp 10.0.0.1:80 10.0.0.2:9"
        );
        assert_eq!(
            udp(true, [2, 9], [1, 80]).to_string(),
            "udp [::1]:80 [::2]:9"
        );
        let key = FlowKey::Mac {
            ether_type: Some(0x88cc),
            low: [0; 6],
            high: [255; 6],
        };
        assert_eq!(
            key.to_string(),
            "ether 0x88cc 00:00:00:00:00:00 ff:ff:ff:ff:ff:ff"
        );
        let key = FlowKey::Link {
            link_type: LinkType::PPP,
            protocol: 0xc021,
        };
        assert_eq!(key.to_string(), "link 9 protocol 0xc021");
        let addr = IpAddr::from([10, 0, 0, 1]);
        assert_eq!(
            FlowKey::Ip {
                proto: 47,
                low: addr,
                high: addr
            }
            .to_string(),
            "proto 47 10.0.0.1 10.0.0.1"
        );
        let key = FragmentKey {
            src: addr,
            dst: addr,
            proto: TCP,
            id: 7,
        };
        assert_eq!(key.to_string(), "tcp 10.0.0.1 > 10.0.0.1 fragment 7");
    }
}
