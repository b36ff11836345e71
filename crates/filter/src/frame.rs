//! A packet as programs see it, laid out for machine code.
//!
//! Machine code walks an array of frames ([`Program::run_many`](crate::Program::run_many)), so the
//! layout is fixed at 24 bytes.
#![expect(
    unsafe_code,
    reason = "a frame keeps its slice as pointer and length, whose order in memory Rust leaves open for a slice"
)]

use std::{fmt, marker::PhantomData, ptr::NonNull, slice};

use retroscope_packet::Direction;

use crate::Aux;

/// `PACKET_HOST` and `PACKET_OUTGOING` of `linux/if_packet.h`.
const PACKET_HOST: u32 = 0;
const PACKET_OUTGOING: u32 = 4;

/// One packet: captured bytes, length on the wire, and [`Aux`].
#[derive(Clone, Copy)]
#[repr(C)]
pub struct FilterFrame<'p> {
    data: NonNull<u8>,
    captured: u32,
    wire_len: u32,
    pub(crate) aux: PackedAux,
    borrow: PhantomData<&'p [u8]>,
}

/// [`Aux`] in one word:
///
/// | Bits | Content |
/// |---|---|
/// | 0..32 | interface index |
/// | 32 | whether the interface index is known |
/// | 33 | whether the packet type is known |
/// | 34..37 | packet type |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct PackedAux(u64);

/// Byte offsets of the parts of a [`FilterFrame`], and its size, for machine code.
pub(crate) mod layout {
    use std::mem::offset_of;

    use super::FilterFrame;

    pub(crate) const DATA: i32 = 0;
    pub(crate) const CAPTURED: i32 = 8;
    pub(crate) const WIRE_LEN: i32 = 12;
    pub(crate) const AUX: i32 = 16;
    pub(crate) const BYTES: i32 = 24;

    const _: () = assert!(DATA as usize == offset_of!(FilterFrame<'_>, data));
    const _: () = assert!(CAPTURED as usize == offset_of!(FilterFrame<'_>, captured));
    const _: () = assert!(WIRE_LEN as usize == offset_of!(FilterFrame<'_>, wire_len));
    const _: () = assert!(AUX as usize == offset_of!(FilterFrame<'_>, aux));
    const _: () = assert!(BYTES as usize == size_of::<FilterFrame<'_>>());
}

// SAFETY: a frame is a `&'p [u8]` and two numbers. Nothing is written through the reference, and
// such references may go to other threads.
unsafe impl Send for FilterFrame<'_> {}
// SAFETY: a frame is a `&'p [u8]` and two numbers, and no method changes anything.
unsafe impl Sync for FilterFrame<'_> {}

impl<'p> FilterFrame<'p> {
    /// A packet with the captured bytes `data` and `wire_len` bytes on the wire. Only the first
    /// `u32::MAX` bytes of `data` count.
    #[must_use]
    #[inline]
    pub fn new(data: &'p [u8], wire_len: u32, aux: Aux) -> Self {
        Self {
            data: NonNull::from(data).cast(),
            captured: u32::try_from(data.len()).unwrap_or(u32::MAX),
            wire_len,
            aux: PackedAux::new(aux),
            borrow: PhantomData,
        }
    }

    /// The captured bytes.
    #[must_use]
    #[inline]
    pub fn data(&self) -> &'p [u8] {
        // SAFETY: pointer and length come from the slice that `new`, the only constructor, borrows
        // for `'p`. `new` never increases the length, so the bytes are inside that slice, are
        // initialized, and do not change during `'p`.
        unsafe { slice::from_raw_parts(self.data.as_ptr(), self.captured as usize) }
    }

    /// Bytes on the wire.
    #[must_use]
    #[inline]
    pub fn wire_len(&self) -> u32 {
        self.wire_len
    }

    /// Facts that a live filter may query.
    #[must_use]
    #[inline]
    pub fn aux(&self) -> Aux {
        self.aux.unpack()
    }
}

impl fmt::Debug for FilterFrame<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FilterFrame")
            .field("data", &self.data())
            .field("wire_len", &self.wire_len)
            .field("aux", &self.aux())
            .finish()
    }
}

impl PackedAux {
    pub(crate) const HAS_INTERFACE: u64 = 1 << 32;
    pub(crate) const HAS_TYPE: u64 = 1 << 33;
    pub(crate) const TYPE_SHIFT: u32 = 34;
    /// Bits of the packet type, after the shift.
    pub(crate) const TYPE_MASK: u32 = 0b111;

    #[inline]
    pub(crate) fn new(aux: Aux) -> Self {
        let packet_type = match aux.direction {
            Direction::Unknown => 0,
            Direction::Inbound => Self::HAS_TYPE | u64::from(PACKET_HOST) << Self::TYPE_SHIFT,
            Direction::Outbound => Self::HAS_TYPE | u64::from(PACKET_OUTGOING) << Self::TYPE_SHIFT,
        };
        let interface = aux
            .ifindex
            .map_or(0, |index| u64::from(index) | Self::HAS_INTERFACE);
        Self(packet_type | interface)
    }

    /// Packet type in the kernel's numbering, `None` if unknown.
    #[inline]
    pub(crate) fn packet_type(self) -> Option<u32> {
        let value = u32::try_from(self.0 >> Self::TYPE_SHIFT).unwrap_or(0);
        (self.0 & Self::HAS_TYPE != 0).then_some(value & Self::TYPE_MASK)
    }

    #[inline]
    pub(crate) fn interface(self) -> Option<u32> {
        let [a, b, c, d, ..] = self.0.to_le_bytes();
        (self.0 & Self::HAS_INTERFACE != 0).then_some(u32::from_le_bytes([a, b, c, d]))
    }

    #[inline]
    fn unpack(self) -> Aux {
        let direction = match self.packet_type() {
            None => Direction::Unknown,
            Some(PACKET_HOST) => Direction::Inbound,
            Some(_) => Direction::Outbound,
        };
        Aux {
            direction,
            ifindex: self.interface(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_gives_back_what_it_was_made_of() {
        let bytes = [1, 2, 3];
        for direction in [Direction::Unknown, Direction::Inbound, Direction::Outbound] {
            for ifindex in [None, Some(0), Some(7), Some(u32::MAX)] {
                for data in [&bytes[..], &bytes[1..2], &[]] {
                    let aux = Aux { direction, ifindex };
                    let frame = FilterFrame::new(data, 1500, aux);
                    assert_eq!(
                        (frame.data(), frame.wire_len(), frame.aux()),
                        (data, 1500, aux)
                    );
                }
            }
        }
    }
}
