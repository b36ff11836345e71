//! The 16 bytes that describe a record, and the extended form for records that do not fit.
//!
//! ```text
//! bucket    | payload 0 | payload 1 | … →              ← … | descriptor 1 | descriptor 0 |
//!
//! descriptor, two 64-bit words in native byte order, bit 0 lowest
//! word 0    0..48   ring time − base of the bucket, ns, two's complement (± 39 hours)
//!          48..64   wire length, bytes (0..=65_535)
//! word 1    0..28   offset of the payload in the bucket, bytes: a bucket has at most 256 MiB
//!          28..47   captured length, bytes (0..=262_144)
//!          47..55   interface (0..=254; 255 in the extended form)
//!          55..57   direction
//!             57    a VLAN tag was restored
//!             58    extended: the payload starts with an extension
//!          59..64   shard (0..=31)
//!
//! extension, in front of the captured bytes, native byte order; word 0 of the descriptor is then 0
//! bytes     0..2    length of the extension, 16 for now: readers skip bytes beyond the known
//!           2..4    interface
//!           4..8    wire length
//!           8..16   ring time, ns
//! ```
//!
//! The shard has the same bits in both forms, at the top, so that one shift reads the shard. Four
//! of its bits were bits of the offset; four bits of another field would cost more:
//!
//! - the time (44 bits: ± 2.4 hours): at fewer than 3 packets of 64 bytes a second a bucket of 2
//!   MiB takes longer than this to fill. Later packets then need the extended form.
//! - the wire length (12 bits: 4095 bytes): affects jumbo frames and segmentation offload.
//! - the interface (4 bits: 15 interfaces).
//! - the captured length: needs all its bits for 256 KiB.
//!
//! If the extension contained the shard, nearly every packet would need 16 more bytes.

#![expect(unsafe_code, reason = "shows descriptors as the bytes they are")]

use crate::{Record, config::BUCKET_BYTES_MAX};

pub(crate) const DESCRIPTOR_BYTES: usize = 16;
pub(crate) const EXTENSION_BYTES: usize = 16;
/// The maximum captured length of one record, bytes.
pub(crate) const CAPTURED_BYTES_MAX: usize = if cfg!(loom) { 16 } else { 256 << 10 };

const TIME_BITS: u32 = 48;
const TIME_MASK: u64 = (1 << TIME_BITS) - 1;
const OFFSET_BITS: u32 = 28;
const OFFSET_MASK: u64 = (1 << OFFSET_BITS) - 1;
const CAPTURED_SHIFT: u32 = OFFSET_BITS;
const CAPTURED_MASK: u64 = (1 << 19) - 1;
const INTERFACE_SHIFT: u32 = 47;
const INTERFACE_ESCAPE: u64 = 255;
const DIRECTION_SHIFT: u32 = 55;
const DIRECTION_MASK: u64 = 3;
const TAG_RESTORED: u64 = 1 << 57;
const EXTENDED: u64 = 1 << 58;
const SHARD_SHIFT: u32 = 59;

const _: () = assert!(CAPTURED_BYTES_MAX as u64 <= CAPTURED_MASK);
// Every offset is below the size of the bucket, because a descriptor follows every payload.
const _: () = assert!(BUCKET_BYTES_MAX as u64 <= OFFSET_MASK + 1);
const _: () = assert!(size_of::<Descriptor>() == DESCRIPTOR_BYTES);

/// A descriptor as stored in a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Descriptor([u64; 2]);

/// An extension as stored before a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extension(pub(crate) [u8; EXTENSION_BYTES]);

/// Describes a record of `captured` bytes at `offset` in a bucket of base time `base_ns`.
///
/// The caller must ensure `captured <= CAPTURED_BYTES_MAX`.
#[inline]
pub(crate) fn encode(
    record: &Record<'_>,
    base_ns: i64,
    offset: u32,
    captured: usize,
) -> (Descriptor, Option<Extension>) {
    if let Some(descriptor) = compact(record, base_ns, offset, captured) {
        return (descriptor, None);
    }
    let common = common(record, offset, captured);
    let rest = common | (INTERFACE_ESCAPE << INTERFACE_SHIFT) | EXTENDED;
    let mut extension = [0; EXTENSION_BYTES];
    extension[0..2].copy_from_slice(&16_u16.to_ne_bytes());
    extension[2..4].copy_from_slice(&record.interface.to_ne_bytes());
    extension[4..8].copy_from_slice(&record.wire_len.to_ne_bytes());
    extension[8..16].copy_from_slice(&record.time_ns.to_ne_bytes());
    (Descriptor([0, rest]), Some(Extension(extension)))
}

/// The compact form, if the record fits this form.
#[inline(always)]
pub(crate) fn compact(
    record: &Record<'_>,
    base_ns: i64,
    offset: u32,
    captured: usize,
) -> Option<Descriptor> {
    // The difference here and the sum in `Descriptor::time_ns` both wrap modulo 2⁶⁴, so the time
    // that a reader gets is correct even if the difference overflows.
    let delta = record.time_ns.wrapping_sub(base_ns);
    let far = delta.wrapping_add(1 << (TIME_BITS - 1)).cast_unsigned() >> TIME_BITS;
    let wire = u64::from(record.wire_len);
    if far | (wire >> 16) != 0 || u64::from(record.interface) >= INTERFACE_ESCAPE {
        return None;
    }
    let delta = delta.cast_unsigned() & TIME_MASK;
    Some(near(record, delta, offset, captured))
}

/// The latest base of a bucket for [`compact_later`], ns: in the year 2262.
#[cfg(all(target_arch = "x86_64", not(loom)))]
pub(crate) const BASE_NS_MAX: i64 = i64::MAX - (1 << (TIME_BITS - 1));

/// As [`compact`], with fewer instructions, but `None` for a record that is older than the base of
/// the bucket. The base must be at most [`BASE_NS_MAX`].
#[cfg(all(target_arch = "x86_64", not(loom)))]
#[inline(always)]
pub(crate) fn compact_later(
    record: &Record<'_>,
    base_ns: i64,
    offset: u32,
    captured: usize,
) -> Option<Descriptor> {
    // A difference below 2⁴⁷ did not overflow, because the sum of base and 2⁴⁷ does not overflow.
    let later = record.time_ns.wrapping_sub(base_ns).cast_unsigned();
    if later >> (TIME_BITS - 1) != 0
        || record.wire_len >> 16 != 0
        || u64::from(record.interface) >= INTERFACE_ESCAPE
    {
        return None;
    }
    Some(near(record, later, offset, captured))
}

/// The compact form of a record that fits, with the time difference to the base in [`TIME_BITS`]
/// bits.
#[inline(always)]
fn near(record: &Record<'_>, delta: u64, offset: u32, captured: usize) -> Descriptor {
    let time_and_wire = delta | (u64::from(record.wire_len) << TIME_BITS);
    let rest = common(record, offset, captured) | (u64::from(record.interface) << INTERFACE_SHIFT);
    Descriptor([time_and_wire, rest])
}

/// The bits that both forms share.
#[inline(always)]
fn common(record: &Record<'_>, offset: u32, captured: usize) -> u64 {
    u64::from(offset)
        | ((captured as u64) << CAPTURED_SHIFT)
        | ((u64::from(record.direction) & DIRECTION_MASK) << DIRECTION_SHIFT)
        | (u64::from(record.shard) << SHARD_SHIFT)
        | if record.tag_restored { TAG_RESTORED } else { 0 }
}

impl Descriptor {
    /// A descriptor of no record.
    pub(crate) const ZERO: Self = Self([0; 2]);

    /// On x86-64, stores the descriptor with one instruction. After two stores, a load of both
    /// words soon afterwards may wait until the stores have left the processor's store buffer.
    #[inline(always)]
    pub(crate) fn store(self, place: &mut Self) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{__m128i, _mm_set_epi64x, _mm_storeu_si128};
            let [low, high] = self.0.map(u64::cast_signed);
            // SAFETY: every x86-64 has SSE2.
            let words = unsafe { _mm_set_epi64x(high, low) };
            let place = std::ptr::from_mut(place).cast::<__m128i>();
            // SAFETY: every x86-64 has SSE2; the place is a descriptor, 16 bytes that are borrowed
            // exclusively.
            unsafe { _mm_storeu_si128(place, words) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            *place = self;
        }
    }

    pub(crate) fn as_bytes(descriptors: &[Self]) -> &[u8] {
        // SAFETY: a descriptor is two words without padding, and every byte may be read.
        unsafe { std::slice::from_raw_parts(descriptors.as_ptr().cast(), size_of_val(descriptors)) }
    }

    /// Makes a descriptor of two words, whatever their value.
    #[cfg(not(loom))]
    pub(crate) fn from_words(words: [u64; 2]) -> Self {
        Self(words)
    }

    /// Offset of the payload (with its extension) in the bucket, bytes.
    #[inline(always)]
    pub(crate) fn offset(self) -> usize {
        (self.0[1] & OFFSET_MASK) as usize
    }

    /// Captured bytes, without the extension.
    #[inline(always)]
    pub(crate) fn captured(self) -> usize {
        ((self.0[1] >> CAPTURED_SHIFT) & CAPTURED_MASK) as usize
    }

    /// Whether the payload starts with an extension.
    #[inline(always)]
    pub(crate) fn extended(self) -> bool {
        self.0[1] & EXTENDED != 0
    }

    /// The ring time in the compact form.
    #[inline(always)]
    pub(crate) fn time_ns(self, base_ns: i64) -> i64 {
        // The shifts extend the sign. The sum wraps, as the difference in `compact` does.
        base_ns.wrapping_add((self.0[0] << (64 - TIME_BITS)).cast_signed() >> (64 - TIME_BITS))
    }

    /// The wire length in the compact form.
    #[inline(always)]
    pub(crate) fn wire_len(self) -> u32 {
        (self.0[0] >> TIME_BITS) as u32
    }

    /// The interface in the compact form.
    #[inline(always)]
    pub(crate) fn interface(self) -> u16 {
        ((self.0[1] >> INTERFACE_SHIFT) & 0xff) as u16
    }

    #[inline(always)]
    pub(crate) fn direction(self) -> u8 {
        ((self.0[1] >> DIRECTION_SHIFT) & DIRECTION_MASK) as u8
    }

    #[inline(always)]
    pub(crate) fn shard(self) -> u8 {
        (self.0[1] >> SHARD_SHIFT) as u8
    }

    #[inline(always)]
    pub(crate) fn tag_restored(self) -> bool {
        self.0[1] & TAG_RESTORED != 0
    }
}

impl Extension {
    /// Bytes from the start of the extension to the captured bytes.
    pub(crate) fn len(&self) -> usize {
        usize::from(u16::from_ne_bytes([self.0[0], self.0[1]]))
    }

    pub(crate) fn interface(&self) -> u16 {
        u16::from_ne_bytes([self.0[2], self.0[3]])
    }

    pub(crate) fn wire_len(&self) -> u32 {
        u32::from_ne_bytes([self.0[4], self.0[5], self.0[6], self.0[7]])
    }

    pub(crate) fn time_ns(&self) -> i64 {
        let [.., a, b, c, d, e, f, g, h] = self.0;
        i64::from_ne_bytes([a, b, c, d, e, f, g, h])
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    /// No record of the largest bucket has a larger offset.
    const OFFSET_MAX: u32 = (256 << 20) - 16;

    fn record(time_ns: i64, wire_len: u32, interface: u16) -> Record<'static> {
        Record {
            time_ns,
            wire_len,
            interface,
            direction: 2,
            tag_restored: true,
            shard: 21,
            parts: [&[]; 3],
        }
    }

    #[test]
    fn the_layout_is_pinned() {
        let (descriptor, extension) = encode(&record(999, 1514, 7), 1000, 0x0234_5678, 60);
        assert_eq!(extension, None);
        assert_eq!(
            descriptor.0[0], 0x05ea_ffff_ffff_ffff,
            "wire 1514, delta -1"
        );
        let expected =
            0x0234_5678 | (60 << 28) | (7 << 47) | (2 << 55) | (1 << 57) | (21_u64 << 59);
        assert_eq!(descriptor.0[1], expected);
    }

    #[test]
    fn the_extension_is_pinned() {
        let (descriptor, extension) = encode(&record(-2, 0x0102_0304, 0x0506), 0, 64, 262_144);
        assert_eq!(descriptor.0[0], 0);
        let flags = (2 << 55) | (1 << 57) | (1 << 58) | (21_u64 << 59);
        let expected = 64 | (262_144 << 28) | (255 << 47) | flags;
        assert_eq!(descriptor.0[1], expected);
        let mut bytes = vec![16, 0, 0x06, 0x05, 4, 3, 2, 1];
        bytes.extend((-2_i64).to_le_bytes());
        if cfg!(target_endian = "little") {
            assert_eq!(extension.unwrap().0.as_slice(), bytes);
        }
    }

    #[test]
    fn the_compact_form_gives_back_what_went_in() {
        let far = 1 << 47;
        for (time, base) in [
            (0, 0),
            (-1, 0),
            (far - 1, 0),
            (-far, 0),
            (i64::MAX, i64::MAX - 5),
            (i64::MAX, i64::MIN),
            (i64::MIN, i64::MIN),
        ] {
            for (wire, interface) in [(0, 0), (65_535, 254)] {
                let (descriptor, extension) =
                    encode(&record(time, wire, interface), base, OFFSET_MAX, 262_144);
                assert_eq!(extension, None);
                assert_eq!(descriptor.time_ns(base), time);
                assert_eq!(descriptor.wire_len(), wire);
                assert_eq!(descriptor.interface(), interface);
                assert_eq!(descriptor.offset(), OFFSET_MAX as usize);
                assert_eq!(descriptor.captured(), 262_144);
                assert_eq!(descriptor.direction(), 2);
                assert!(descriptor.tag_restored());
                assert_eq!(descriptor.shard(), 21);
                assert!(!descriptor.extended());
            }
        }
    }

    #[test]
    fn the_extended_form_takes_the_rest() {
        let far = 1_i64 << 47;
        let rest = [
            (record(far, 60, 0), 0),
            (record(-far - 1, 60, 0), 0),
            (record(0, 65_536, 0), 0),
            (record(0, u32::MAX, 0), 0),
            (record(0, 60, 255), 0),
            (record(i64::MIN, 60, u16::MAX), i64::MAX),
        ];
        for (record, base) in rest {
            let (descriptor, extension) = encode(&record, base, 5, 9);
            let extension = extension.unwrap();
            assert!(descriptor.extended());
            assert_eq!(extension.len(), EXTENSION_BYTES);
            assert_eq!(extension.time_ns(), record.time_ns);
            assert_eq!(extension.wire_len(), record.wire_len);
            assert_eq!(extension.interface(), record.interface);
            assert_eq!((descriptor.offset(), descriptor.captured()), (5, 9));
            assert_eq!(descriptor.shard(), 21);
        }
    }
}
