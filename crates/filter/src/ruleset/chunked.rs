//! An array of pointers to chunks, which versions of the array share. A shared chunk is copied
//! before it changes.

use std::{ops::Range, sync::Arc};

/// Number of elements in a chunk.
const CHUNK: usize = 256;

/// A clone copies only pointers.
#[derive(Debug, Clone)]
pub(super) struct Chunked<T> {
    chunks: Vec<Arc<[T]>>,
}

impl<T: Clone + Default> Chunked<T> {
    pub(super) fn new() -> Self {
        Self { chunks: Vec::new() }
    }

    /// An array of at least `elements` default values, rounded up to whole chunks.
    pub(super) fn of(elements: usize) -> Self {
        let empty: Arc<[T]> = vec![T::default(); CHUNK].into();
        Self {
            chunks: vec![empty; elements.div_ceil(CHUNK)],
        }
    }

    /// An element. `None` beyond the chunks that [`Self::get_mut`] or [`Self::of`] made.
    #[inline]
    pub(super) fn get(&self, index: u32) -> Option<&T> {
        let index = index as usize;
        self.chunks.get(index / CHUNK)?.get(index % CHUNK)
    }

    /// A mutable element. The array grows as needed, and a shared chunk is copied first.
    pub(super) fn get_mut(&mut self, index: u32) -> &mut T {
        let index = index as usize;
        while self.chunks.len() <= index / CHUNK {
            let chunk: Vec<T> = vec![T::default(); CHUNK];
            self.chunks.push(chunk.into());
        }
        &mut Arc::make_mut(&mut self.chunks[index / CHUNK])[index % CHUNK]
    }

    /// Changes existing elements, chunk by chunk.
    pub(super) fn change(&mut self, range: Range<u32>, mut change: impl FnMut(&mut T)) {
        let (start, end) = (range.start as usize, range.end as usize);
        for number in start / CHUNK..end.div_ceil(CHUNK) {
            let first = number * CHUNK;
            let within = start.max(first) - first..end.min(first + CHUNK) - first;
            let chunk = Arc::make_mut(&mut self.chunks[number]);
            chunk[within].iter_mut().for_each(&mut change);
        }
    }

    /// Bytes of memory, excluding what the elements point to. Counts shared chunks in full.
    pub(super) fn bytes(&self) -> usize {
        self.chunks.len() * (CHUNK * size_of::<T>() + size_of::<Arc<[T]>>())
    }
}

/// Indexes for elements of a [`Chunked`]. Returned indexes are reused.
#[derive(Debug, Default)]
pub(super) struct NumberPool {
    free: Vec<u32>,
    next: u32,
}

impl NumberPool {
    pub(super) fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        })
    }

    pub(super) fn give_back(&mut self, number: u32) {
        self.free.push(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_change_as_their_elements_do() {
        for (start, end) in [(0, 1), (255, 257), (256, 512), (3, 1020), (7, 7)] {
            let (mut together, mut one_by_one) = (Chunked::of(1024), Chunked::of(1024));
            together.change(start..end, |element: &mut u32| *element += 1);
            (start..end).for_each(|index| *one_by_one.get_mut(index) += 1);
            assert!(
                (0..1024).all(|index| together.get(index) == one_by_one.get(index)),
                "{start} {end}"
            );
        }
    }
}
