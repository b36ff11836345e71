//! Which packets belong together: what `$flow` compares.
//!
//! VLAN tags are not part of a key: a flow is the same flow under any stack of them. Tunnels are not descended.

use std::fmt;
use std::net::IpAddr;

use crate::parsed::Mac;
use crate::proto::{ICMP, ICMPV6, IGMP, SCTP, TCP, UDP};
use crate::{LinkType, MacAddr, Outcome, Parsed};

/// An address and port at one end of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Endpoint {
    /// IP address.
    pub addr: IpAddr,
    /// Port.
    pub port: u16,
}

/// The key of a bidirectional flow: equal for the packets of both directions. `low <= high` in each variant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FlowKey {
    /// TCP, UDP, SCTP: the 5-tuple.
    Ports {
        /// 6, 17 or 132.
        proto: u8,
        /// The smaller end.
        low: Endpoint,
        /// The larger end.
        high: Endpoint,
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
        /// EtherType behind the VLAN stack; `None` for IEEE 802.3 length frames.
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
        /// The link header's number of what it carries: see [`crate::LinkProtocol::number`].
        protocol: u32,
    },
}

/// What the pieces of one fragmented packet have in common, in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FragmentKey {
    /// Sender.
    pub src: IpAddr,
    /// Receiver.
    pub dst: IpAddr,
    /// Protocol of what was fragmented: see [`crate::Fragment::proto`].
    pub proto: u8,
    /// Identification.
    pub id: u32,
}

/// The flow of a frame, or `None` where it cannot be told: a later fragment of TCP, UDP or SCTP (see [`fragment_of`]),
/// headers that were cut off or make no sense, an unknown link type.
#[must_use]
pub fn flow_of(parsed: &Parsed) -> Option<FlowKey> {
    let Some(ip) = parsed.network else {
        // Without the whole link header this might have been IP.
        return if parsed.outcome == Outcome::Complete {
            link_flow(parsed)
        } else {
            None
        };
    };
    let proto = ip.proto?;
    if matches!(proto, TCP | UDP | SCTP) {
        let ports = parsed.transport?;
        let (src, dst) = (
            Endpoint {
                addr: ip.src,
                port: ports.src,
            },
            Endpoint {
                addr: ip.dst,
                port: ports.dst,
            },
        );
        let (low, high) = if is_ordered(src, dst) {
            (src, dst)
        } else {
            (dst, src)
        };
        return Some(FlowKey::Ports { proto, low, high });
    }
    let (low, high) = if ip.src <= ip.dst {
        (ip.src, ip.dst)
    } else {
        (ip.dst, ip.src)
    };
    Some(FlowKey::Ip { proto, low, high })
}

/// Whether `a <= b`, as integers: comparing the derived way, byte by byte and field by field, takes longer.
fn is_ordered(a: Endpoint, b: Endpoint) -> bool {
    match (a.addr, b.addr) {
        (IpAddr::V4(x), IpAddr::V4(y)) => (x.to_bits(), a.port) <= (y.to_bits(), b.port),
        (IpAddr::V6(x), IpAddr::V6(y)) => (x.to_bits(), a.port) <= (y.to_bits(), b.port),
        _ => a <= b,
    }
}

/// The key of a frame that is not IP.
fn link_flow(parsed: &Parsed) -> Option<FlowKey> {
    if let (Some(src), Some(dst)) = (parsed.src_mac, parsed.dst_mac) {
        return Some(FlowKey::Mac {
            ether_type: parsed.ether_type,
            low: src.min(dst),
            high: src.max(dst),
        });
    }
    let protocol = parsed.link_protocol.map_or(0, |protocol| protocol.number());
    Some(FlowKey::Link {
        link_type: parsed.link_type,
        protocol,
    })
}

/// What joins a fragment, the first or a later one, to the other pieces of its packet. `None` for whole packets.
///
/// A first fragment has a [`flow_of`] too: remember its fragment key to recognise the later pieces of that flow.
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

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.addr {
            IpAddr::V4(addr) => write!(f, "{addr}:{}", self.port),
            IpAddr::V6(addr) => write!(f, "[{addr}]:{}", self.port),
        }
    }
}

impl fmt::Display for FlowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Ports { proto, low, high } => write!(f, "{} {low} {high}", ProtoName(proto)),
            Self::Ip { proto, low, high } => write!(f, "{} {low} {high}", ProtoName(proto)),
            Self::Mac {
                ether_type: Some(ether_type),
                low,
                high,
            } => {
                write!(f, "ether 0x{ether_type:04x} {} {}", Mac(low), Mac(high))
            }
            Self::Mac {
                ether_type: None,
                low,
                high,
            } => write!(f, "llc {} {}", Mac(low), Mac(high)),
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

/// Prints an IP protocol by name where pcap-filter has one, else `proto N`.
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
