//! The direction of a packet.

/// Direction of a packet, seen from the capturing host. Values as in pcapng's `epb_flags`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Direction {
    /// The capture source does not report the direction.
    #[default]
    Unknown = 0,
    /// Received.
    Inbound = 1,
    /// Sent by this host.
    Outbound = 2,
}

impl Direction {
    /// The direction with this value. Any other value is unknown.
    #[inline]
    #[must_use]
    pub fn from_bits(bits: u8) -> Self {
        match bits {
            1 => Self::Inbound,
            2 => Self::Outbound,
            _ => Self::Unknown,
        }
    }
}
