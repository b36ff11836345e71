//! Which prefix lengths are worth a look-up for an address.
//!
//! Prefixes of all lengths live in one hash table; an address must be looked up once for each length. This array says, for
//! the first 16 bits of an address, which lengths any rule has there: nearly always none, one or two. Ports are 16-bit
//! addresses, and ranges of them prefixes: for these the array is exact.

use std::collections::HashMap;

use super::chunked::Chunked;

/// For the first 16 bits of an address the set of lengths: bit `n` is the length `n + 1`.
#[derive(Debug, Clone)]
pub(super) struct Masks(Chunked<u32>);

/// How many prefixes of each length begin with the same 16 bits; kept by the writer.
pub(super) type MaskCounts = HashMap<(u16, u8), u32>;

impl Masks {
    pub(super) fn new() -> Self {
        Self(Chunked::of(1 << 16))
    }

    #[inline]
    pub(super) fn lengths(&self, first: u16) -> u32 {
        self.0.get(u32::from(first)).copied().unwrap_or(0)
    }

    /// Notes a prefix of `bits` bits (1 to 32) that begins with `first` and is new, or gone.
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
        // The sets of all addresses that the prefix covers.
        let first = u32::from(first);
        let covered = first..first + (1 << 16_u8.saturating_sub(bits));
        self.0.change(covered, |set| *set ^= 1 << (bits - 1));
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        self.0.bytes()
    }
}
