//! The context in which libpcap compiles an expression.

use retroscope_packet::LinkType;

/// Parameters of libpcap's compiler, in addition to the expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LinkContext {
    /// Link-layer header type of the packets.
    pub link_type: LinkType,
    /// Snap length of the file or interface in bytes. 0, or more than `i32::MAX`, means libpcap's
    /// maximum, 262,144 for most link types.
    pub snaplen: u32,
    /// Whether packets come from a file or an interface.
    pub mode: FilterMode,
    /// Whether libpcap's optimizer runs, except on some very long expressions (see
    /// [`crate::compile()`]).
    pub optimize: bool,
}

impl LinkContext {
    /// A context with libpcap's optimizer.
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

/// How a link header names the protocol of its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkLayout {
    /// An EtherType at offset `at`, in a link header of `bytes` bytes.
    EtherType {
        at: u8,
        bytes: u8,
    },
    /// No link header: the version nibble distinguishes IPv4 from IPv6.
    Raw,
    Ipv4,
    Ipv6,
}

impl LinkLayout {
    pub(crate) const ETHERNET: Self = Self::EtherType { at: 12, bytes: 14 };

    /// The layout of a link type, if known.
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

/// Whether packets come from a file or from an interface. libpcap compiles some primitives for only
/// one of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FilterMode {
    /// Like `tcpdump -r`: the netmask is 0, and most link types have no `inbound`, `outbound` or
    /// `ifindex`.
    Savefile,
    /// Like a live interface with an unknown netmask: libpcap rejects `ip broadcast`. For most
    /// link types, direction and interface index come from [`crate::Aux`].
    Live,
}
