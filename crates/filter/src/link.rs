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
    pub mode: Mode,
    /// Runs libpcap's optimizer, except on expressions so long that it would take minutes (see [`crate::compile()`]).
    pub optimize: bool,
}

impl LinkContext {
    /// With libpcap's optimizer.
    #[must_use]
    pub fn new(link_type: LinkType, snaplen: u32, mode: Mode) -> Self {
        Self {
            link_type,
            snaplen,
            mode,
            optimize: true,
        }
    }
}

/// Whether packets come from a file or from an interface: libpcap compiles some primitives for one of them only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// As `tcpdump -r`: the netmask is 0; most link types have no `inbound`, `outbound` or `ifindex`.
    Savefile,
    /// As on a live interface whose netmask is unknown: `ip broadcast` is refused, direction and interface index come
    /// from [`crate::Aux`].
    Live,
}
