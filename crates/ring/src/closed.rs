//! Heaps of closed buckets.

use crate::outer::BucketSlot;

/// A binary heap of closed buckets, the first to close on top. [`BucketSlot::place`] is a bucket's
/// position in its heap, so any bucket can be removed.
#[derive(Debug)]
pub(crate) struct ClosedBuckets(Vec<u32>);

impl ClosedBuckets {
    /// An empty heap with room for this number of buckets.
    pub(crate) fn new(buckets: usize) -> Self {
        Self(Vec::with_capacity(buckets))
    }

    /// The first bucket to close.
    pub(crate) fn first(&self) -> Option<u32> {
        self.0.first().copied()
    }

    pub(crate) fn push(&mut self, index: u32, slots: &mut [BucketSlot]) {
        slots[index as usize].place = self.0.len();
        self.0.push(index);
        self.rise(self.0.len() - 1, slots);
    }

    pub(crate) fn remove(&mut self, index: u32, slots: &mut [BucketSlot]) {
        let (place, last) = (slots[index as usize].place, self.0.len() - 1);
        self.swap([place, last], slots);
        self.0.pop();
        if place < last {
            self.rise(place, slots);
            self.sink(place, slots);
        }
    }

    fn rise(&mut self, mut place: usize, slots: &mut [BucketSlot]) {
        while place > 0 && self.closing(place, slots) < self.closing((place - 1) / 2, slots) {
            let above = (place - 1) / 2;
            self.swap([place, above], slots);
            place = above;
        }
    }

    fn sink(&mut self, mut place: usize, slots: &mut [BucketSlot]) {
        let below = |place: usize, heap: &Self, slots: &[BucketSlot]| {
            let below = (2 * place + 1..heap.0.len()).take(2);
            let first = below.min_by_key(|below| heap.closing(*below, slots))?;
            (heap.closing(first, slots) < heap.closing(place, slots)).then_some(first)
        };
        while let Some(first) = below(place, self, slots) {
            self.swap([place, first], slots);
            place = first;
        }
    }

    fn swap(&mut self, places: [usize; 2], slots: &mut [BucketSlot]) {
        self.0.swap(places[0], places[1]);
        for place in places {
            slots[self.0[place] as usize].place = place;
        }
    }

    fn closing(&self, place: usize, slots: &[BucketSlot]) -> u64 {
        slots[self.0[place] as usize].closing
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_to_close_stays_on_top() {
        let mut rng = fastrand::Rng::with_seed(0);
        let mut slots = vec![BucketSlot::default(); 200];
        let mut closings: Vec<u64> = (0..200).collect();
        rng.shuffle(&mut closings);
        for (slot, closing) in slots.iter_mut().zip(closings) {
            slot.closing = closing;
        }
        let (mut heap, mut inside) = (ClosedBuckets::new(200), Vec::new());
        for _ in 0..20_000 {
            let index = rng.u32(0..200);
            match inside.iter().position(|other| *other == index) {
                Some(place) => {
                    inside.swap_remove(place);
                    heap.remove(index, &mut slots);
                }
                None => {
                    inside.push(index);
                    heap.push(index, &mut slots);
                }
            }
            let first = inside
                .iter()
                .min_by_key(|index| slots[**index as usize].closing);
            assert_eq!(heap.first(), first.copied());
        }
    }
}
