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
#[derive(Debug, Default)]
pub(super) struct MaskCounts {
    counts: HashMap<(u16, u8), u32>,
}

impl Masks {
    pub(super) fn new() -> Self {
        Self(Chunked::of(1 << 16))
    }

    #[inline]
    pub(super) fn lengths(&self, first: u16) -> u32 {
        self.0.get(u32::from(first)).copied().unwrap_or(0)
    }

    /// A prefix of `bits` bits (1 to 32) that begins with `first`, which is not there yet.
    pub(super) fn add(&mut self, counts: &mut MaskCounts, first: u16, bits: u8) {
        let count = counts.counts.entry((first, bits)).or_default();
        *count += 1;
        if *count == 1 {
            self.change(first, bits, |mask, bit| mask | bit);
        }
    }

    /// Takes such a prefix back.
    pub(super) fn remove(&mut self, counts: &mut MaskCounts, first: u16, bits: u8) {
        let Some(count) = counts.counts.get_mut(&(first, bits)) else {
            return;
        };
        *count -= 1;
        if *count == 0 {
            counts.counts.remove(&(first, bits));
            self.change(first, bits, |mask, bit| mask & !bit);
        }
    }

    /// Changes the sets of all addresses that the prefix covers.
    fn change(&mut self, first: u16, bits: u8, change: impl Fn(u32, u32) -> u32) {
        let first = u32::from(first);
        let covered = 1 << 16_u8.saturating_sub(bits);
        for at in first..first + covered {
            let mask = self.0.get_mut(at);
            *mask = change(*mask, 1 << (bits - 1));
        }
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        self.0.bytes()
    }
}
