//! Which prefix lengths are worth a look-up for an address.
//!
//! Prefixes of all lengths live in one hash table; an address must be looked up once for each length. This array says, for
//! the first 16 bits of an address, which lengths any rule has there: nearly always none, one or two. Ports are 16-bit
//! addresses, and ranges of them prefixes: for these the array is exact.

use std::{collections::HashMap, sync::Arc};

const CHUNK: usize = 1024;
const CHUNKS: usize = 65_536 / CHUNK;

/// For the first 16 bits of an address the set of lengths: bit `n` is the length `n + 1`.
#[derive(Debug, Clone)]
pub(super) struct Masks {
    chunks: Vec<Arc<[u32]>>,
}

/// How many prefixes of each length begin with the same 16 bits; kept by the writer.
#[derive(Debug, Default)]
pub(super) struct MaskCounts {
    counts: HashMap<(u16, u8), u32>,
}

impl Masks {
    pub(super) fn new() -> Self {
        let empty: Arc<[u32]> = Arc::new([0; CHUNK]);
        Self {
            chunks: vec![empty; CHUNKS],
        }
    }

    #[inline]
    pub(super) fn lengths(&self, first: u16) -> u32 {
        let first = usize::from(first);
        self.chunks[first / CHUNK][first % CHUNK]
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
        let first = usize::from(first);
        let covered = 1_usize << 16_u8.saturating_sub(bits);
        let bit = 1 << (bits - 1);
        let mut at = first;
        while at < first + covered {
            let end = ((at / CHUNK + 1) * CHUNK).min(first + covered);
            let chunk = Arc::make_mut(&mut self.chunks[at / CHUNK]);
            for mask in &mut chunk[at % CHUNK..=(end - 1) % CHUNK] {
                *mask = change(*mask, bit);
            }
            at = end;
        }
    }

    /// Bytes of memory.
    pub(super) fn bytes() -> usize {
        CHUNKS * (CHUNK * size_of::<u32>() + size_of::<Arc<[u32]>>())
    }
}
