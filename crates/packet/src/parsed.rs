//! What parsing finds out about one frame.

use std::fmt;
use std::net::IpAddr;

use crate::{LinkType, VlanStack};

/// Bytes of an ICMP header behind its first four: RFC 792 calls them the rest of the header, in RFC 4443 they begin the
/// body.
const ICMP_BODY: usize = 4;

/// The facts of one frame. It borrows nothing; a fact that is not in the captured bytes is `None`, never a guess.
///
/// A shorter capture of the same frame yields the same facts or fewer of them, never different ones. The default has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Parsed {
    /// The link type that the frame was parsed as.
    pub link_type: LinkType,
    /// How far parsing came.
    pub outcome: ParseOutcome,
    /// Source hardware address; also set where the link header has only this one (Linux "cooked" capture).
    pub src_mac: Option<MacAddr>,
    /// Destination hardware address.
    pub dst_mac: Option<MacAddr>,
    /// The tags between the hardware addresses and the EtherType, outer to inner.
    pub vlan: VlanStack,
    /// EtherType behind the VLAN stack. `None` for IEEE 802.3 length frames and for link types without EtherType.
    pub ether_type: Option<u16>,
    /// The link header's own number of what it carries.
    pub link_protocol: Option<LinkProtocol>,
    /// IEEE 802.2 header of a length frame.
    pub llc: Option<Llc>,
    /// The outermost IP header; tunnels are not descended.
    pub network: Option<Ip>,
    /// TCP, UDP or SCTP ports. Never set for a later fragment.
    pub transport: Option<Ports>,
    /// TCP flag bits as in byte 13 of the header: 1 FIN, 2 SYN, 4 RST, 8 PSH, 16 ACK, 32 URG, 64 ECE, 128 CWR.
    pub tcp_flags: Option<u8>,
    /// TCP sequence number, where the flags are known too.
    pub tcp_seq: Option<u32>,
    /// ICMP over IPv4 or ICMPv6 over IPv6. Never set for a later fragment.
    pub icmp: Option<Icmp>,
    /// Where the outermost IP header starts. Set with `network`.
    pub network_offset: Option<u32>,
    /// Where the header behind IP and its extensions starts. Set with `transport` and `icmp`.
    pub transport_offset: Option<u32>,
    /// Where the bytes start that no header parsed here covers: behind TCP, UDP, SCTP or the first 4 bytes of ICMP,
    /// else behind the last header that was understood. `<= data.len()`. See [`Parsed::payload`].
    pub payload_offset: Option<usize>,
    /// Where the payload ends on the wire, as the innermost header with a length tells: padding and checksums of the
    /// link may follow. It may lie beyond the captured bytes. `None` without `payload_offset`, and where no header
    /// tells an end (ARP on Ethernet, packets before segmentation offload).
    pub payload_end: Option<usize>,
}

/// A 48-bit hardware address, in the order of transmission.
pub type MacAddr = [u8; 6];

/// How far parsing came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ParseOutcome {
    /// Every header that this crate knows was captured and made sense.
    Complete,
    /// The captured bytes end inside a header.
    Truncated,
    /// A header contradicts itself or the one around it; the facts before it stand.
    Malformed,
    /// The link type is not known here: there are no facts.
    #[default]
    UnknownLinkType,
}

/// A link header's number of the protocol that it carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LinkProtocol {
    /// An EtherType.
    EtherType(u16),
    /// An IEEE 802.2 LLC header follows instead of an EtherType.
    Llc,
    /// A PPP protocol number.
    Ppp(u16),
    /// A BSD address family, in host order.
    Family(u32),
    /// The number's meaning depends on the device type, such as a netlink family in Linux "cooked" capture.
    Device {
        /// Linux device type, `ARPHRD_*`.
        hardware: u16,
        /// The protocol field.
        protocol: u16,
    },
}

impl LinkProtocol {
    /// The number alone; 0 for [`LinkProtocol::Llc`].
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

/// The SNAP header behind LLC `aa aa 03`.
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
    /// Destination address as in the fixed header (a routing header may name others).
    pub dst: IpAddr,
    /// Upper-layer protocol, behind IPv6 extension headers and authentication headers. `None` where that chain was
    /// not captured, does not make sense, or lies in another fragment.
    pub proto: Option<u8>,
    /// Set for a piece of a fragmented packet. An atomic fragment (offset 0, no more) is a whole packet: `None`.
    pub fragment: Option<Fragment>,
    /// Bytes of the IP packet on the wire as the header tells, fixed header included. `None` where it does not
    /// tell: jumbograms and segmentation offload.
    pub len: Option<u32>,
}

/// Which piece of a fragmented packet this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fragment {
    /// Identification: 16 bits in IPv4, 32 in IPv6.
    pub id: u32,
    /// Offset in bytes, a multiple of 8, at most 65528.
    pub offset: u32,
    /// Whether more pieces follow this one.
    pub more: bool,
    /// Protocol number of what was cut in pieces, equal in all of them: the IPv4 protocol, or the next header of
    /// the IPv6 fragment header, which may be an extension header.
    pub proto: u8,
}

impl Fragment {
    /// Whether the piece starts within the packet, so that it has no transport header.
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
    /// Message type; the two versions number them differently.
    pub kind: u8,
    /// Code within the type.
    pub code: u8,
}

impl Parsed {
    /// The payload, as far as it is in `data`, the captured bytes that were parsed.
    ///
    /// TCP, UDP and SCTP: what follows their header (options included; of SCTP that is the chunks). ICMP and ICMPv6:
    /// what follows their first 8 bytes. Other IP: what follows the IP header and its extension headers. A later
    /// fragment: what follows the headers in it. Not IP: what follows the link header, its tags and LLC. It ends where
    /// the packet does, before the padding of a short frame.
    ///
    /// `None` where the headers were not captured whole, make no sense, or belong to an unknown link type: no header is
    /// ever taken for payload.
    #[must_use]
    pub fn payload<'d>(&self, data: &'d [u8]) -> Option<&'d [u8]> {
        let start = self.payload_start()?;
        let end = self.payload_end.unwrap_or(usize::MAX).min(data.len());
        if start > data.len() && self.payload_end.is_none_or(|end| end >= start) {
            return None;
        }
        Some(data.get(start..end).unwrap_or_default())
    }

    /// Where the payload begins, captured or not: see [`Self::payload`].
    #[must_use]
    pub fn payload_start(&self) -> Option<usize> {
        let body = if self.icmp.is_some() { ICMP_BODY } else { 0 };
        Some(self.payload_offset? + body)
    }

    /// Offset of the first byte after the headers: after TCP, UDP, SCTP or the first 4 bytes of
    /// ICMP, else after the last header that was understood.
    ///
    /// The addresses of ARP and RARP count as headers (RFC 826, RFC 903; 28 bytes for IPv4).
    ///
    /// 0 if a header was not captured whole or makes no sense. May exceed the captured length.
    #[must_use]
    pub fn headers_end(&self) -> usize {
        const ARP_BYTES: usize = 28;
        let is_arp = matches!(self.ether_type, Some(0x0806 | 0x8035));
        let more = if is_arp { ARP_BYTES } else { 0 };
        self.payload_offset.map_or(0, |offset| offset + more)
    }

    /// Notes that a packet inside the frame ends at `end` on the wire.
    #[inline]
    pub(crate) fn ends_at(&mut self, end: usize) {
        self.payload_end = Some(self.payload_end.map_or(end, |outer| outer.min(end)));
    }

    /// Whether this is a fragment other than the first: it has no transport header.
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
