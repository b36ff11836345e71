//! Hash tables whose versions share memory.
//!
//! A table has shards. A shard is an array of cache lines of four 16-byte slots, with linear
//! probing over lines. A new version copies the array of pointers and the shards that changed. With
//! 100,000 keys a shard takes 16 KiB. A look-up reads one pointer (the array of pointers stays in
//! the first-level cache) and usually one line.
//!
//! Most prefix keys of an address are in no table. For most of these keys a bit shows that
//! ([`LookUpTable::may_have`]), so no line of the table must be fetched. The bits stay in the
//! cache: they take 8 KiB for 10,000 keys. A version with a new key copies all bits.

use std::sync::Arc;

/// A power of two.
const SHARDS: usize = 256;
const LINE: usize = 4;
/// Maximum share of used slots, five eighths. A fuller shard is doubled.
const LOAD: (usize, usize) = (5, 8);

/// Filter bits for each key when the filter is built, before rounding up. At most about an
/// eighth of the bits are then set.
const FILTER_KEY_BITS: usize = 8;
/// Minimum filter bits for each key, including keys removed since the last rebuild. An insertion
/// that would go below rebuilds the filter.
const FILTER_KEY_BITS_MIN: usize = 6;
const FILTER_WORDS_MIN: usize = 16;

/// A slot: 16 bytes that contain a key. All zeros means no key.
pub(super) trait TableSlot: Copy + Default {
    type Key: Copy;

    fn key(&self) -> Self::Key;
    fn is_empty(&self) -> bool;
    fn has_key(&self, key: Self::Key) -> bool;
    fn hash(key: Self::Key, seeds: Seeds) -> u64;
    /// Number of the rule or group of entries, and whether it is a group.
    fn parts(&self) -> (u32, bool);
    /// Whether a slot with one entry matches packets with these flags and this orientation.
    fn accepts(&self, frame_flags: u16, orientation: u8) -> bool;
    /// Frame flags and orientations for [`Self::accepts`].
    fn need(&self) -> (u16, u8);
}

/// Random keys of the hashes. Without the seeds, a sender who chooses packets, and by `$flow` also
/// rules, cannot choose collisions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seeds(pub(super) u64, pub(super) u64);

impl Seeds {
    /// Multiplies to 128 bits and folds the product.
    #[inline]
    pub(super) fn hash(self, a: u64, b: u64) -> u64 {
        let product = u128::from(a ^ self.0) * u128::from(b ^ self.1);
        #[expect(clippy::cast_possible_truncation, reason = "the two halves are folded")]
        let (low, high) = (product as u64, (product >> 64) as u64);
        low ^ high
    }
}

#[derive(Debug, Clone, Copy, Default)]
#[repr(C, align(64))]
struct CacheLine<S>([S; LINE]);

/// At most one slot for each key. A clone is a new version.
#[derive(Debug, Clone)]
pub(super) struct LookUpTable<S> {
    shards: Vec<Arc<[CacheLine<S>]>>,
    used: Vec<u32>,
    /// A bit for the hash of each key, and of keys that were removed since the filter was built.
    filter: Arc<[u64]>,
    keys: usize,
    /// Number of keys that were removed since the filter was built.
    gone: usize,
    seeds: Seeds,
}

impl<S: TableSlot> LookUpTable<S> {
    pub(super) fn new(seeds: Seeds) -> Self {
        const { assert!(size_of::<S>() == 16) };
        let empty: Arc<[CacheLine<S>]> = Arc::new([CacheLine::default()]);
        Self {
            shards: vec![empty; SHARDS],
            used: vec![0; SHARDS],
            filter: vec![0; FILTER_WORDS_MIN].into(),
            keys: 0,
            gone: 0,
            seeds,
        }
    }

    /// Whether a key with this hash may exist. True for an existing key.
    #[inline(always)]
    pub(super) fn may_have(&self, hash: u64) -> bool {
        let (word, bit) = filter_place(hash, self.filter.len());
        self.filter[word] >> bit & 1 == 1
    }

    /// Adds a hash to the filter. Rebuilds are rare enough to cost only some ns for each insertion.
    fn note(&mut self, hash: u64) {
        self.keys += 1;
        if (self.keys + self.gone) * FILTER_KEY_BITS_MIN <= self.filter.len() * 64 {
            let (word, bit) = filter_place(hash, self.filter.len());
            Arc::make_mut(&mut self.filter)[word] |= 1 << bit;
            return;
        }
        let words = (self.keys * FILTER_KEY_BITS / 64).next_power_of_two();
        let mut filter = vec![0; words.max(FILTER_WORDS_MIN)];
        let lines = self.shards.iter().flat_map(|shard| shard.iter());
        for slot in lines
            .flat_map(|line| &line.0)
            .filter(|slot| !slot.is_empty())
        {
            let (word, bit) = filter_place(self.hash(slot.key()), filter.len());
            filter[word] |= 1_u64 << bit;
        }
        self.filter = filter.into();
        self.gone = 0;
    }

    #[inline]
    pub(super) fn hash(&self, key: S::Key) -> u64 {
        S::hash(key, self.seeds)
    }

    #[inline]
    fn shard_of(hash: u64) -> usize {
        const { assert!(SHARDS == 256) };
        (hash >> 56) as usize
    }

    /// The slot of a key and `true`, or any slot and `false`. Unless a line is full, no branch
    /// depends on the key's place in the line or on its existence: both are unpredictable.
    #[inline(always)]
    pub(super) fn get(&self, key: S::Key, hash: u64) -> (S, bool) {
        let lines = &*self.shards[Self::shard_of(hash)];
        let mask = lines.len() - 1;
        #[expect(clippy::cast_possible_truncation, reason = "masked")]
        let mut at = hash as usize & mask;
        loop {
            let slots = &lines[at].0;
            let mut found = 0_u32;
            for (bit, slot) in slots.iter().enumerate() {
                found |= u32::from(slot.has_key(key)) << bit;
            }
            // The slots of a line are filled in order, so the search continues only after a full
            // line.
            let goes_on = u32::from(found == 0) & u32::from(!slots[LINE - 1].is_empty());
            if goes_on == 0 {
                let slot = slots[found.trailing_zeros() as usize % LINE];
                return (slot, found != 0);
            }
            at = (at + 1) & mask;
        }
    }

    /// Loads the line where a search begins, so that the loads of many keys overlap. The result
    /// only keeps the compiler from removing the load.
    #[inline]
    pub(super) fn touch(&self, hash: u64) -> bool {
        let lines = &*self.shards[Self::shard_of(hash)];
        #[expect(clippy::cast_possible_truncation, reason = "masked")]
        let at = hash as usize & (lines.len() - 1);
        lines[at].0[0].is_empty()
    }

    pub(super) fn find(&self, key: S::Key) -> Option<S> {
        let (slot, is_found) = self.get(key, self.hash(key));
        is_found.then_some(slot)
    }

    /// Adds a slot with a new key.
    pub(super) fn insert(&mut self, slot: S) {
        let hash = self.hash(slot.key());
        let index = Self::shard_of(hash);
        let used = self.used[index] as usize + 1;
        let lines = self.shards[index].len();
        if used * LOAD.1 > lines * LINE * LOAD.0 {
            self.shards[index] = self.rebuilt(index, lines * 2, |_| true);
        }
        place(Arc::make_mut(&mut self.shards[index]), slot, hash);
        self.used[index] += 1;
        self.note(hash);
    }

    pub(super) fn remove(&mut self, key: S::Key) {
        let hash = self.hash(key);
        if self.find(key).is_none() {
            return;
        }
        let index = Self::shard_of(hash);
        let used = self.used[index] as usize - 1;
        let mut lines = self.shards[index].len();
        while lines > 1 && used * LOAD.1 * 4 < lines * LINE * LOAD.0 {
            lines /= 2;
        }
        self.shards[index] = self.rebuilt(index, lines, |slot| !slot.has_key(key));
        self.used[index] -= 1;
        self.keys -= 1;
        self.gone += 1;
    }

    /// A copy of a shard with `lines` cache lines, and the slots for which `stays` holds.
    fn rebuilt(
        &self,
        index: usize,
        lines: usize,
        stays: impl Fn(&S) -> bool,
    ) -> Arc<[CacheLine<S>]> {
        let mut rebuilt = vec![CacheLine::default(); lines];
        let old = self.shards[index].iter().flat_map(|line| &line.0);
        for slot in old.filter(|slot| !slot.is_empty() && stays(slot)) {
            place(&mut rebuilt, *slot, self.hash(slot.key()));
        }
        rebuilt.into()
    }

    pub(super) fn bytes(&self) -> usize {
        let lines: usize = self.shards.iter().map(|shard| shard.len()).sum();
        lines * size_of::<CacheLine<S>>()
            + self.filter.len() * size_of::<u64>()
            + SHARDS * (size_of::<Arc<[CacheLine<S>]>>() + size_of::<u32>())
    }
}

/// Word and bit of a hash in a filter of `words` words, a power of two. Uses the hash bits from bit
/// 24 on: bits 56 to 63 select the shard, and the lowest bits the line.
#[inline(always)]
fn filter_place(hash: u64, words: usize) -> (usize, u32) {
    let at = (hash >> 24) as usize & (words * 64 - 1);
    #[expect(clippy::cast_possible_truncation, reason = "below 64")]
    let bit = (at % 64) as u32;
    (at / 64, bit)
}

/// Puts a slot into the first free place from its line on. The load factor guarantees a free place.
fn place<S: TableSlot>(lines: &mut [CacheLine<S>], slot: S, hash: u64) {
    let mask = lines.len() - 1;
    #[expect(clippy::cast_possible_truncation, reason = "masked")]
    let mut at = hash as usize & mask;
    loop {
        if let Some(free) = lines[at].0.iter_mut().find(|slot| slot.is_empty()) {
            *free = slot;
            return;
        }
        at = (at + 1) & mask;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::ruleset::look_up_key::SmallSlot;

    #[test]
    fn the_filter_knows_all_keys_and_few_others() {
        let mut random = fastrand::Rng::with_seed(9);
        let mut table = LookUpTable::<SmallSlot>::new(Seeds(random.u64(..), random.u64(..)));
        let space: Vec<u64> = (0..40_000).map(|_| random.u64(1..)).collect();
        let others: Vec<u64> = (0..10_000).map(|_| random.u64(1..)).collect();
        let mut keys = HashSet::new();
        for round in 0..60_000_u32 {
            let key = space[random.usize(0..space.len())];
            let grows = if round < 40_000 { 0.8 } else { 0.1 };
            if random.f64() < grows {
                if keys.insert(key) {
                    table.insert(SmallSlot::one(key, 7, 0));
                }
            } else if keys.remove(&key) {
                table.remove(key);
            }
            if round % 4_000 == 0 {
                let has = |key: &u64| table.may_have(table.hash(*key));
                assert!(keys.iter().all(has));
                let found = |key: &u64| table.get(*key, table.hash(*key)).1;
                assert!(keys.iter().all(found));
                let kept = others.iter().filter(|key| has(key)).count();
                assert!(kept < 2_500, "{kept} of 10,000 with {} keys", keys.len());
            }
        }
        assert_eq!(table.keys, keys.len());
    }
}
