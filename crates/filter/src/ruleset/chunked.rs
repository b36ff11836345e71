//! An array whose versions share memory: chunks behind pointers, copied when they change.

use std::sync::Arc;

/// Elements of a chunk.
const CHUNK: usize = 256;

/// See the module.
#[derive(Debug, Clone)]
pub(super) struct Chunked<T> {
    chunks: Vec<Arc<[T]>>,
}

impl<T: Clone + Default> Chunked<T> {
    pub(super) fn new() -> Self {
        Self { chunks: Vec::new() }
    }

    /// With room for so many elements from the start.
    pub(super) fn of(elements: usize) -> Self {
        let empty: Arc<[T]> = vec![T::default(); CHUNK].into();
        Self {
            chunks: vec![empty; elements.div_ceil(CHUNK)],
        }
    }

    /// An element below the highest that was ever asked for with [`Self::get_mut`].
    #[inline]
    pub(super) fn get(&self, index: u32) -> Option<&T> {
        let index = index as usize;
        self.chunks.get(index / CHUNK)?.get(index % CHUNK)
    }

    /// An element to be changed. The array grows as far as it must.
    pub(super) fn get_mut(&mut self, index: u32) -> &mut T {
        let index = index as usize;
        while self.chunks.len() <= index / CHUNK {
            let chunk: Vec<T> = vec![T::default(); CHUNK];
            self.chunks.push(chunk.into());
        }
        &mut Arc::make_mut(&mut self.chunks[index / CHUNK])[index % CHUNK]
    }

    /// Bytes of memory, without what the elements point to.
    pub(super) fn bytes(&self) -> usize {
        self.chunks.len() * (CHUNK * size_of::<T>() + size_of::<Arc<[T]>>())
    }
}

/// Numbers for elements of a [`Chunked`], used again when they are given back.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    free: Vec<u32>,
    next: u32,
}

impl Numbers {
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
