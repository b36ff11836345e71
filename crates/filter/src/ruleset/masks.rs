//! Tells which prefix lengths need a look-up for an address.
//!
//! One hash table holds prefixes of all lengths, so an address needs one look-up for each length.
//! For each value of the first 16 bits of an address, [`Masks`] holds the few lengths of matching
//! prefixes. A port is a 16-bit address and a port range consists of prefixes, so [`Masks`] is
//! exact for ports.

use std::collections::HashMap;

use super::chunked::Chunked;

/// A set of prefix lengths for each value of the first 16 bits of an address. Bit `n` of a set
/// means length `n + 1`.
#[derive(Debug, Clone)]
pub(super) struct Masks(Chunked<u32>);

/// Number of prefixes with the same first 16 bits and length, for the writer.
pub(super) type MaskCounts = HashMap<(u16, u8), u32>;

impl Masks {
    pub(super) fn new() -> Self {
        Self(Chunked::of(1 << 16))
    }

    #[inline]
    pub(super) fn lengths(&self, first: u16) -> u32 {
        self.0.get(u32::from(first)).copied().unwrap_or(0)
    }

    /// Records a new or removed prefix of `bits` bits (1 to 32) that begins with `first`.
    pub(super) fn note(&mut self, counts: &mut MaskCounts, first: u16, bits: u8, is_new: bool) {
        let count = counts.entry((first, bits)).or_default();
        let was_there = *count != 0;
        *count = if is_new { *count + 1 } else { *count - 1 };
        let is_there = *count != 0;
        if !is_there {
            counts.remove(&(first, bits));
        }
        if was_there == is_there {
            return;
        }
        // Changes the set of each value of 16 bits that the prefix covers.
        let first = u32::from(first);
        let covered = first..first + (1 << 16_u8.saturating_sub(bits));
        self.0.change(covered, |set| *set ^= 1 << (bits - 1));
    }

    pub(super) fn bytes(&self) -> usize {
        self.0.bytes()
    }
}
