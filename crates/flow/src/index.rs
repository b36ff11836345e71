//! Finds the slot of a flow: from a hash to a few candidates, by open addressing over groups of one
//! cache line.

use std::ops::Range;

use super::Advise;

/// Maximum number of flows in a group.
pub(super) const GROUP: usize = 12;
/// Number of groups in which a flow may be.
///
/// If nobody can choose hashes, all groups of a flow are practically never full. In a full table a
/// group is the first group of at most 6 flows on average. At most one group in a hundred is the
/// first group of more than 12 flows; the flows without room there cost another cache miss.
pub(super) const PROBES: usize = 8;
/// Maximum of the average number of flows in a group.
const LOAD: usize = 6;

/// The address range of a vector's reserved memory.
pub(super) fn addresses<T>(memory: &Vec<T>) -> Range<*const u8> {
    let start = memory.as_ptr().cast::<u8>();
    start..start.wrapping_add(memory.capacity() * size_of::<T>())
}

/// A group of slots: one cache line.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C, align(64))]
struct HashGroup {
    slots: [u32; GROUP],
    /// Eight bits of the hash of each flow. 0 for an unused place.
    tags: [u8; GROUP],
    /// Number of flows that found this group full and are in one of their later groups. At 0, a
    /// search ends in this group.
    passed: u32,
}

const _: () = assert!(size_of::<HashGroup>() == 64);

impl HashGroup {
    #[inline]
    fn places(&self, tag: u8) -> PlaceMask {
        let mut tags = [0; 16];
        tags[..GROUP].copy_from_slice(&self.tags);
        // The upper bit of a byte of `equal` is set exactly where the byte of `other` is 0: no sum
        // carries into the next byte.
        let other = u128::from_le_bytes(tags) ^ (u128::from(tag) * ONES);
        let low = LOW_BITS;
        let equal = !(((other & low) + low) | other | low);
        PlaceMask(equal & (u128::MAX >> (8 * (16 - GROUP))))
    }
}

/// The value 1 in each of the 16 bytes.
const ONES: u128 = u128::MAX / 0xff;
const LOW_BITS: u128 = ONES * 0x7f;

/// Places in a group. Each place has one bit, in the byte of the place.
#[derive(Debug, Clone, Copy)]
struct PlaceMask(u128);

impl Iterator for PlaceMask {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let place = self.0.trailing_zeros() / 8;
        self.0 &= self.0 - 1;
        Some(place as usize)
    }
}

/// Slots of the table by the hash of the flow's key.
#[derive(Debug, Clone)]
pub(super) struct FlowIndex {
    /// The number of groups is a power of two.
    groups: Box<[HashGroup]>,
}

impl FlowIndex {
    /// An index for `flows_max` flows. `advise` gets the memory before the first write.
    pub(super) fn new(flows_max: usize, advise: Advise) -> Self {
        let groups = flows_max.div_ceil(LOAD).next_power_of_two().max(PROBES);
        let mut memory = Vec::with_capacity(groups);
        advise(addresses(&memory));
        memory.resize(groups, HashGroup::default());
        Self {
            groups: memory.into(),
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.groups)
    }

    /// Reads from the first group, so that the processor loads the cache line.
    #[inline]
    pub(super) fn touch(&self, hash: u64) -> u32 {
        self.groups[self.home(hash)].passed
    }

    /// The first candidate in the first group. The caller can load its flow early.
    #[inline]
    pub(super) fn candidate(&self, hash: u64) -> Option<u32> {
        let group = &self.groups[self.home(hash)];
        let place = group.places(tag(hash)).next()?;
        Some(group.slots[place])
    }

    /// Returns the first slot with the hash's tag for which `is_it` is true.
    #[inline]
    pub(super) fn find(&self, hash: u64, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let (mut at, step) = (self.home(hash), self.step(hash));
        for _ in 0..PROBES {
            let group = &self.groups[at];
            let mut slots = group.places(tag(hash)).map(|place| group.slots[place]);
            if let Some(slot) = slots.find(|slot| is_it(*slot)) {
                return Some(slot);
            }
            if group.passed == 0 {
                return None;
            }
            at = (at + step) & (self.groups.len() - 1);
        }
        None
    }

    /// The first group with room for a flow of this hash, as an argument of [`Self::insert`].
    /// `None` if all groups of the hash are full.
    #[inline]
    pub(super) fn room(&self, hash: u64) -> Option<usize> {
        let (home, step) = (self.home(hash), self.step(hash));
        let mask = self.groups.len() - 1;
        (0..PROBES).find(|probe| self.groups[(home + probe * step) & mask].tags.contains(&0))
    }

    /// Adds a slot to the group that [`Self::room`] found. Slots may have been removed in the
    /// meantime.
    #[inline]
    pub(super) fn insert(&mut self, hash: u64, slot: u32, room: usize) {
        let (home, step) = (self.home(hash), self.step(hash));
        let mask = self.groups.len() - 1;
        let group = &mut self.groups[(home + room * step) & mask];
        let place = group.places(0).next().expect("there is room");
        (group.slots[place], group.tags[place]) = (slot, tag(hash));
        for passed in 0..room {
            self.groups[(home + passed * step) & mask].passed += 1;
        }
    }

    pub(super) fn remove(&mut self, hash: u64, slot: u32) {
        let (home, step) = (self.home(hash), self.step(hash));
        let mask = self.groups.len() - 1;
        for probe in 0..PROBES {
            let group = &mut self.groups[(home + probe * step) & mask];
            let places = group.slots.iter().zip(group.tags);
            let mut places = places.map(|(other, tag)| tag != 0 && *other == slot);
            if let Some(place) = places.position(|is_it| is_it) {
                group.tags[place] = 0;
                for passed in 0..probe {
                    self.groups[(home + passed * step) & mask].passed -= 1;
                }
                return;
            }
        }
        debug_assert!(false, "slot {slot} is not in the index");
    }

    /// The slots in the first group of a hash.
    pub(super) fn neighbours(&self, hash: u64) -> impl Iterator<Item = u32> {
        let group = &self.groups[self.home(hash)];
        let slots = group.slots.iter().zip(&group.tags);
        slots.filter(|(_, tag)| **tag != 0).map(|(slot, _)| *slot)
    }

    #[inline]
    fn home(&self, hash: u64) -> usize {
        (hash >> 8) as usize & (self.groups.len() - 1)
    }

    /// Odd, so that all groups of a hash are different.
    #[inline]
    fn step(&self, hash: u64) -> usize {
        (hash >> 40) as usize | 1
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the lowest bits")]
#[inline]
fn tag(hash: u64) -> u8 {
    (hash as u8).max(1)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn it_agrees_with_a_map_when_groups_are_full() {
        for seed in 0..50 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut index = FlowIndex::new(64, |_| {});
            let mut map = HashMap::new();
            for slot in 0..4000_u32 {
                let hash = random.u64(..);
                if random.u32(0..100) < 55 {
                    let room = index.room(hash);
                    assert!(room.is_some() || map.len() >= GROUP * PROBES);
                    if let Some(room) = room {
                        index.insert(hash, slot, room);
                        map.insert(hash, slot);
                    }
                } else if let Some((&hash, &slot)) = map.iter().next() {
                    index.remove(hash, slot);
                    assert_eq!(index.find(hash, |found| found == slot), None);
                    map.remove(&hash);
                }
                for (&hash, &slot) in map.iter().take(20) {
                    assert_eq!(index.find(hash, |found| found == slot), Some(slot));
                }
            }
            for (hash, slot) in map {
                index.remove(hash, slot);
            }
            let is_empty = |group: &HashGroup| group.passed == 0 && group.tags == [0; GROUP];
            assert!(index.groups.iter().all(is_empty));
        }
    }

    #[test]
    fn equal_hashes_cost_a_bounded_search() {
        let mut index = FlowIndex::new(1 << 16, |_| {});
        let room = GROUP * PROBES;
        for slot in 0..1000 {
            let found = index.room(7);
            assert_eq!(found.is_some(), (slot as usize) < room);
            if let Some(found) = found {
                index.insert(7, slot, found);
            }
        }
        let mut tried = 0;
        let found = index.find(7, |_| {
            tried += 1;
            false
        });
        assert_eq!((found, tried), (None, room));
        assert_eq!(index.neighbours(7).count(), GROUP);
    }
}
