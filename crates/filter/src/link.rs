//! What an expression is compiled for.

use retroscope_packet::LinkType;

/// What libpcap must know beside the expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LinkContext {
    /// Link-layer header type of the packets.
    pub link_type: LinkType,
    /// Snap length of the file or interface in bytes; 0, or more than libpcap's maximum, means that maximum. Accepting
    /// programs return it.
    pub snaplen: u32,
    /// File or interface.
    pub mode: FilterMode,
    /// Runs libpcap's optimizer, except on expressions so long that it would take minutes (see [`crate::compile()`]).
    pub optimize: bool,
}

impl LinkContext {
    /// With libpcap's optimizer.
    #[must_use]
    pub fn new(link_type: LinkType, snaplen: u32, mode: FilterMode) -> Self {
        Self {
            link_type,
            snaplen,
            mode,
            optimize: true,
        }
    }
}

/// Where a link header has the protocol of the packet that it carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkLayout {
    /// An EtherType at offset `at`; the link header has `bytes`.
    EtherType {
        at: u8,
        bytes: u8,
    },
    /// No link header: the version nibble tells IPv4 from IPv6.
    Raw,
    Ipv4,
    Ipv6,
}

impl LinkLayout {
    pub(crate) const ETHERNET: Self = Self::EtherType { at: 12, bytes: 14 };

    /// `None` for link types whose headers depend on more than an EtherType.
    pub(crate) fn of(link_type: LinkType) -> Option<Self> {
        Some(match link_type {
            LinkType::ETHERNET => Self::ETHERNET,
            LinkType::LINUX_SLL => Self::EtherType { at: 14, bytes: 16 },
            LinkType::LINUX_SLL2 => Self::EtherType { at: 0, bytes: 20 },
            LinkType::RAW | LinkType::RAW_BSD | LinkType::RAW_OPENBSD => Self::Raw,
            LinkType::IPV4 => Self::Ipv4,
            LinkType::IPV6 => Self::Ipv6,
            _ => return None,
        })
    }
}

/// Whether packets come from a file or from an interface: libpcap compiles some primitives for one of them only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FilterMode {
    /// As `tcpdump -r`: the netmask is 0; most link types have no `inbound`, `outbound` or `ifindex`.
    Savefile,
    /// As on a live interface whose netmask is unknown: `ip broadcast` is refused, direction and interface index come
    /// from [`crate::Aux`].
    Live,
}
