//! Facts that the parser finds in one frame.

use std::fmt;
use std::net::IpAddr;

use crate::{LinkType, VlanStack};

/// Bytes of an ICMP header after its first four (RFC 792). In RFC 4443 these bytes begin the body.
const ICMP_BODY: usize = 4;

/// The facts of one frame, without borrows. A fact that the captured bytes do not show is `None`.
///
/// A shorter capture of the same frame gives the same facts or fewer facts, never different facts.
/// The default value has no facts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Parsed {
    /// Link type with which the frame was parsed.
    pub link_type: LinkType,
    /// How far the parser got.
    pub outcome: ParseOutcome,
    /// Source hardware address. Linux "cooked" capture has this address only.
    pub src_mac: Option<MacAddr>,
    /// Destination hardware address.
    pub dst_mac: Option<MacAddr>,
    /// Tags between the hardware addresses and the EtherType, outer to inner.
    pub vlan: VlanStack,
    /// EtherType after the VLAN stack. `None` for IEEE 802.3 length frames, for link types without
    /// EtherType, and if the frame is cut off before the EtherType or has too many tags.
    pub ether_type: Option<u16>,
    /// Protocol number in the link header.
    pub link_protocol: Option<LinkProtocol>,
    /// IEEE 802.2 header of a length frame, or of a Linux "cooked" frame with such a header.
    pub llc: Option<Llc>,
    /// The outermost IP header. The parser does not enter tunnels.
    pub network: Option<Ip>,
    /// TCP, UDP or SCTP ports. Never set for a later fragment.
    pub transport: Option<Ports>,
    /// TCP flag bits as in byte 13 of the header: 1 FIN, 2 SYN, 4 RST, 8 PSH, 16 ACK, 32 URG, 64
    /// ECE, 128 CWR.
    pub tcp_flags: Option<u8>,
    /// TCP sequence number. Known if the flags are known.
    pub tcp_seq: Option<u32>,
    /// ICMP over IPv4 or ICMPv6 over IPv6. Never set for a later fragment.
    pub icmp: Option<Icmp>,
    /// Offset of the outermost IP header. Set together with `network`.
    pub network_offset: Option<u32>,
    /// Offset of the header after IP and its extensions. Set together with `transport` or `icmp`.
    pub transport_offset: Option<u32>,
    /// Offset of the first byte that no parsed header covers: after TCP, UDP, SCTP or the first 4
    /// bytes of ICMP, else after the last known header. `<= data.len()`. See [`Parsed::payload`].
    pub payload_offset: Option<usize>,
    /// End of the payload on the wire: the smallest end that a header with a length gives. Padding
    /// and link checksums may follow. May exceed the captured bytes. `None` without
    /// `payload_offset`, and if no header gives an end (ARP on Ethernet, packets before
    /// segmentation offload).
    pub payload_end: Option<usize>,
}

/// A 48-bit hardware address, in transmission order.
pub type MacAddr = [u8; 6];

/// How far the parser got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ParseOutcome {
    /// The parser reached the payload. All headers before the payload were captured.
    Complete,
    /// Too few bytes were captured to find the end of the headers.
    Truncated,
    /// A header is inconsistent in itself or with an outer header, or follows too many headers. The
    /// facts before that header are valid.
    Malformed,
    /// This crate does not know the link type. There are no facts.
    #[default]
    UnknownLinkType,
}

/// The protocol number in a link header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LinkProtocol {
    /// An EtherType.
    EtherType(u16),
    /// An IEEE 802.2 LLC header takes the place of an EtherType.
    Llc,
    /// A PPP protocol number.
    Ppp(u16),
    /// A BSD address family, in host order.
    Family(u32),
    /// A number whose meaning depends on the device type, such as a netlink family in Linux
    /// "cooked" capture.
    Device {
        /// Linux device type, `ARPHRD_*`.
        hardware: u16,
        /// The protocol field.
        protocol: u16,
    },
}

impl LinkProtocol {
    /// The number without its kind; 0 for [`LinkProtocol::Llc`].
    #[must_use]
    pub fn number(self) -> u32 {
        match self {
            Self::EtherType(number)
            | Self::Ppp(number)
            | Self::Device {
                protocol: number, ..
            } => u32::from(number),
            Self::Family(number) => number,
            Self::Llc => 0,
        }
    }
}

/// An IEEE 802.2 LLC header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Llc {
    /// Destination service access point.
    pub dsap: u8,
    /// Source service access point.
    pub ssap: u8,
    /// First control byte.
    pub control: u8,
    /// Organization code and protocol of a SNAP header (RFC 1042).
    pub snap: Option<Snap>,
}

/// The SNAP header after LLC `aa aa 03`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Snap {
    /// Organizationally unique identifier; 0 means that `protocol` is an EtherType.
    pub organization: u32,
    /// Protocol within the organization.
    pub protocol: u16,
}

/// An IP header with its extension headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ip {
    /// Source address.
    pub src: IpAddr,
    /// Destination address in the fixed header. A routing header may name other destinations.
    pub dst: IpAddr,
    /// Upper-layer protocol, after IPv6 extension headers and authentication headers. `None` if
    /// that chain was not captured, is malformed, or continues in another fragment.
    pub proto: Option<u8>,
    /// Set for a fragment whose fragment fields were captured. `None` also for an atomic fragment
    /// (offset 0, no more fragments), which is a whole packet.
    pub fragment: Option<Fragment>,
    /// Bytes of the IP packet on the wire, fixed header included. `None` if the header gives no
    /// length: jumbograms and segmentation offload.
    pub len: Option<u32>,
}

/// Position of a fragment in its packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fragment {
    /// Identification: 16 bits in IPv4, 32 in IPv6.
    pub id: u32,
    /// Offset in bytes, a multiple of 8, at most 65528.
    pub offset: u32,
    /// Whether more fragments of the packet follow.
    pub more: bool,
    /// Protocol number of the fragmented data, usually equal in all fragments: the IPv4 protocol,
    /// or the next header of the IPv6 fragment header. The latter may be an extension header.
    pub proto: u8,
}

impl Fragment {
    /// Whether the fragment starts inside the packet and therefore has no transport header.
    #[must_use]
    pub fn is_later(self) -> bool {
        self.offset != 0
    }
}

/// Transport ports, in the direction of the packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ports {
    /// Source port.
    pub src: u16,
    /// Destination port.
    pub dst: u16,
}

/// The first two bytes of an ICMP or ICMPv6 message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Icmp {
    /// Message type. ICMP and ICMPv6 number the types differently.
    pub kind: u8,
    /// Code within the type.
    pub code: u8,
}

impl Parsed {
    /// The captured part of the payload. `data` must be the captured bytes that were parsed.
    ///
    /// | Frame | The payload starts after |
    /// |---|---|
    /// | TCP, UDP, SCTP | the transport header with its options; SCTP chunks are payload |
    /// | ICMP, ICMPv6 | the first 8 bytes of the message |
    /// | Other IP | the IP header and its extension headers |
    /// | Later fragment | the headers in the fragment |
    /// | Not IP | the link header, its tags, LLC, PPPoE and PPP headers, and MPLS labels |
    ///
    /// If a header gives the length of the packet, the payload ends where the packet ends, before
    /// the padding of a short frame.
    ///
    /// `None` if the headers were not captured whole, are malformed, or belong to an unknown link
    /// type. Header bytes are never part of the payload.
    #[must_use]
    pub fn payload<'d>(&self, data: &'d [u8]) -> Option<&'d [u8]> {
        let start = self.payload_start()?;
        let end = self.payload_end.unwrap_or(usize::MAX).min(data.len());
        if start > data.len() && self.payload_end.is_none_or(|end| end >= start) {
            return None;
        }
        Some(data.get(start..end).unwrap_or_default())
    }

    /// Offset of the payload, captured or not: see [`Self::payload`].
    #[must_use]
    pub fn payload_start(&self) -> Option<usize> {
        let body = if self.icmp.is_some() { ICMP_BODY } else { 0 };
        Some(self.payload_offset? + body)
    }

    /// Offset of the first byte after the headers: after TCP, UDP, SCTP or the first 4 bytes of
    /// ICMP, else after the last known header.
    ///
    /// For ARP and RARP, 28 more bytes count as headers: the length of a message for IPv4 over
    /// Ethernet (RFC 826, RFC 903).
    ///
    /// 0 if a header was not captured whole or is malformed, or if the link type is unknown. May
    /// exceed the captured length.
    #[must_use]
    pub fn headers_end(&self) -> usize {
        const ARP_BYTES: usize = 28;
        let is_arp = matches!(self.ether_type, Some(0x0806 | 0x8035));
        let more = if is_arp { ARP_BYTES } else { 0 };
        self.payload_offset.map_or(0, |offset| offset + more)
    }

    /// Records that a packet inside the frame ends at `end` on the wire.
    #[inline]
    pub(crate) fn ends_at(&mut self, end: usize) {
        self.payload_end = Some(self.payload_end.map_or(end, |outer| outer.min(end)));
    }

    /// Whether this is a fragment other than the first. A later fragment has no transport header.
    #[must_use]
    pub fn is_later_fragment(&self) -> bool {
        self.network
            .and_then(|ip| ip.fragment)
            .is_some_and(Fragment::is_later)
    }
}

/// Prints a hardware address as `02:00:5e:10:00:01`.
#[derive(Debug, Clone, Copy)]
pub struct Mac(pub MacAddr);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}
