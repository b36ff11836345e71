//! What a filter may ask about a packet beside its bytes.

/// Facts of the capture that live filters may ask for: `inbound`, `outbound`, `ifindex`.
///
/// A question without an answer rejects the packet, as a load beyond its end does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Aux {
    /// Which way the packet went.
    pub direction: Direction,
    /// The kernel's index of the interface.
    pub ifindex: Option<u32>,
}

/// Which way a packet went, seen from the capturing host. Values as in pcapng's `epb_flags`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Direction {
    /// Not known: the packet is neither `inbound` nor `outbound`.
    #[default]
    Unknown = 0,
    /// Received.
    Inbound = 1,
    /// Sent by this host.
    Outbound = 2,
}
