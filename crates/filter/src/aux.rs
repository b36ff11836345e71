//! What a filter may ask about a packet beside its bytes.

use retroscope_packet::Direction;

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

impl From<Direction> for Aux {
    /// All that is known of a recorded packet.
    #[inline]
    fn from(direction: Direction) -> Self {
        Self {
            direction,
            ifindex: None,
        }
    }
}
