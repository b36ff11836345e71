//! Facts about a packet, in addition to its bytes, that a filter may query.

use retroscope_packet::Direction;

/// Capture facts that live filters may query: `inbound`, `outbound`, `ifindex`.
///
/// A filter that reads an unknown direction or index rejects the packet, as after a load beyond the
/// packet's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Aux {
    /// Direction of the packet.
    pub direction: Direction,
    /// The kernel's index of the interface. `None` if unknown.
    pub ifindex: Option<u32>,
}

impl From<Direction> for Aux {
    /// The interface index is unknown.
    #[inline]
    fn from(direction: Direction) -> Self {
        Self {
            direction,
            ifindex: None,
        }
    }
}
