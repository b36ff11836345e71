//! The variables of templates, and their values from a trigger packet.

use std::{fmt, net::IpAddr};

use retroscope_packet::{Mac, MacAddr, Parsed};

/// Protocol numbers of <https://www.iana.org/assignments/protocol-numbers>, and the keywords of
/// pcap-filter that `$proto` shows for these numbers.
const PROTOCOLS: [(u8, &str); 5] = [
    (1, "icmp"),
    (6, "tcp"),
    (17, "udp"),
    (58, "icmp6"),
    (132, "sctp"),
];

/// A variable of a [`crate::Template`]: a name with a dollar sign, case-insensitive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Variable {
    /// `$srcIP`: source address of the trigger packet, IPv4 or IPv6.
    SrcIp,
    /// `$dstIP`: destination address.
    DstIp,
    /// `$srcPort`: source port, decimal.
    SrcPort,
    /// `$dstPort`: destination port, decimal.
    DstPort,
    /// `$proto`: a complete primitive: `tcp`, `udp`, `icmp`, `icmp6`, `sctp`, else `proto N`.
    Proto,
    /// `$srcMAC`: source hardware address.
    SrcMac,
    /// `$dstMAC`: destination hardware address.
    DstMac,
    /// `$vlan`: VLAN identifier of the outermost tag, decimal.
    Vlan,
    /// `$flow`, an own term: packets of the trigger packet's flow, both ways, under any VLAN stack.
    Flow,
    /// `$iface`, an own term: packets of the trigger packet's interface.
    Iface,
    /// `$communityId`, an own term: packets with the trigger packet's Community ID (version 1, seed
    /// 0).
    CommunityId,
}

impl Variable {
    /// All variables with their names, in the order of the documentation and of the declaration.
    const ALL: [(Self, &'static str); 11] = [
        (Self::SrcIp, "$srcIP"),
        (Self::DstIp, "$dstIP"),
        (Self::SrcPort, "$srcPort"),
        (Self::DstPort, "$dstPort"),
        (Self::Proto, "$proto"),
        (Self::SrcMac, "$srcMAC"),
        (Self::DstMac, "$dstMAC"),
        (Self::Vlan, "$vlan"),
        (Self::Flow, "$flow"),
        (Self::Iface, "$iface"),
        (Self::CommunityId, "$communityId"),
    ];

    /// Number of variables whose values are pcap-filter text. These come first.
    pub(crate) const TEXTS: usize = Self::Flow as usize;

    /// The name with its dollar sign.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// Whether this is an own term, which is joined to pcap-filter text, and not a part of such
    /// text.
    #[must_use]
    pub fn is_term(self) -> bool {
        matches!(self, Self::Flow | Self::Iface | Self::CommunityId)
    }

    /// The variable with this name, dollar sign included, case-insensitive.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|(_, its)| its.eq_ignore_ascii_case(name))
            .map(|(variable, _)| variable)
    }

    /// All names, separated by spaces.
    pub(crate) fn all_names() -> String {
        Self::ALL.map(|(_, name)| name).join(" ")
    }

    /// The value that a packet gives this variable. Own terms give an error.
    pub(crate) fn value(self, packet: &Parsed) -> Result<VariableValue, FillError> {
        let (ip, ports) = (packet.network, packet.transport);
        let value = match self {
            Self::SrcIp => ip.map(|ip| VariableValue::Ip(ip.src)),
            Self::DstIp => ip.map(|ip| VariableValue::Ip(ip.dst)),
            Self::SrcPort => ports.map(|ports| VariableValue::Number(ports.src)),
            Self::DstPort => ports.map(|ports| VariableValue::Number(ports.dst)),
            Self::Proto => ip.and_then(|ip| ip.proto).map(VariableValue::Proto),
            Self::SrcMac => packet.src_mac.map(VariableValue::Mac),
            Self::DstMac => packet.dst_mac.map(VariableValue::Mac),
            Self::Vlan => packet
                .vlan
                .outer()
                .map(|tag| VariableValue::Number(tag.id())),
            Self::Flow | Self::Iface | Self::CommunityId => None,
        };
        value.ok_or_else(|| FillError {
            variable: self,
            reason: self.missing(packet),
        })
    }

    /// Why a packet has no value for this variable.
    fn missing(self, packet: &Parsed) -> &'static str {
        match self {
            Self::SrcPort | Self::DstPort if packet.is_later_fragment() => {
                "the trigger packet is a later fragment, which carries no ports"
            }
            Self::SrcPort => "the trigger packet has no source port",
            Self::DstPort => "the trigger packet has no destination port",
            Self::Proto if packet.network.is_some() => {
                "the trigger packet's upper-layer protocol is not known"
            }
            Self::SrcIp | Self::DstIp | Self::Proto => "the trigger packet is not IP",
            Self::SrcMac | Self::DstMac => "the trigger packet has no such hardware address",
            Self::Vlan => "the trigger packet has no VLAN tag",
            Self::Flow | Self::Iface | Self::CommunityId => "it stands for no pcap-filter text",
        }
    }

    /// A sample value of the right kind, used before there is a trigger packet. Addresses come from
    /// the ranges for documentation.
    pub(crate) fn sample(self, family: SampleFamily) -> &'static str {
        match (self, family) {
            (Self::SrcIp, SampleFamily::V4) => "192.0.2.1",
            (Self::DstIp, SampleFamily::V4) => "198.51.100.1",
            (Self::SrcIp, SampleFamily::V6) => "2001:db8::1",
            (Self::DstIp, SampleFamily::V6) => "2001:db8::2",
            (Self::SrcPort, _) => "40000",
            (Self::DstPort, _) => "50000",
            (Self::Proto, _) => "tcp",
            (Self::SrcMac, _) => "00:00:5e:00:53:01",
            (Self::DstMac, _) => "00:00:5e:00:53:02",
            (Self::Vlan, _) => "100",
            (Self::Flow | Self::Iface | Self::CommunityId, _) => "",
        }
    }
}

impl fmt::Display for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Value of a variable. Its text form is pcap-filter text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum VariableValue {
    Ip(IpAddr),
    /// A port or a VLAN identifier.
    Number(u16),
    Proto(u8),
    Mac(MacAddr),
}

impl fmt::Display for VariableValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Ip(addr) => write!(f, "{addr}"),
            Self::Number(number) => write!(f, "{number}"),
            Self::Proto(number) => match PROTOCOLS.iter().find(|(known, _)| *known == number) {
                Some((_, word)) => f.write_str(word),
                None => write!(f, "proto {number}"),
            },
            Self::Mac(addr) => write!(f, "{}", Mac(addr)),
        }
    }
}

/// Address family of a sample value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SampleFamily {
    V4,
    V6,
}

/// A trigger packet has no value for a variable, so the packet cannot fill in the template.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{variable}: {reason}")]
pub struct FillError {
    /// The variable.
    pub variable: Variable,
    /// The reason, as a clause about the trigger packet.
    pub reason: &'static str,
}
