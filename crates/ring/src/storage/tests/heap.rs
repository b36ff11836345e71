//! The region under loom: bytes and tables on the heap.
#![expect(unsafe_code, reason = "hands out the address of memory that it owns")]

use std::{path::PathBuf, ptr::NonNull};

use super::{
    MemoryObtained,
    layout::{RegionHeader, Tables},
    steps::STEPS_MAX,
};
use crate::{Numa, Pages, RingConfig, RingError};

/// Alignment of the region, in bytes.
pub(crate) const ALIGNMENT: usize = 16;

/// Owned memory, aligned to [`ALIGNMENT`] and zeroed.
#[derive(Debug)]
pub(crate) struct RegionMemory {
    base: NonNull<[u128]>,
}

// SAFETY: this value owns the memory, which is not tied to a thread. `Storage` decides who may
// access which bytes; its accessors are unsafe or exclusive.
unsafe impl Send for RegionMemory {}
// SAFETY: `&RegionMemory` gives only an address. `Storage` decides who may access which bytes.
unsafe impl Sync for RegionMemory {}

impl RegionMemory {
    pub(crate) fn new(
        bytes: usize,
        _config: &RingConfig,
        progress: Option<&mut dyn FnMut(u64, u64)>,
    ) -> Result<(Self, MemoryObtained), RingError> {
        let words = vec![0_u128; bytes.div_ceil(16)].into_boxed_slice();
        if let Some(progress) = progress {
            progress(bytes as u64, bytes as u64);
        }
        let base = NonNull::from(Box::leak(words));
        let obtained = MemoryObtained {
            pages: Pages::Small,
            numa: Numa::Unset,
        };
        Ok((Self { base }, obtained))
    }

    pub(crate) fn path(&self) -> Option<PathBuf> {
        None
    }

    #[inline(always)]
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base.cast()
    }
}

impl Drop for RegionMemory {
    fn drop(&mut self) {
        // SAFETY: leaked from a box in `new`, and freed once.
        drop(unsafe { Box::from_raw(self.base.as_ptr()) });
    }
}

pub(crate) type Table<T> = Box<[T]>;

fn table<T: Default>(length: usize) -> Table<T> {
    std::iter::repeat_with(T::default).take(length).collect()
}

impl Tables {
    pub(crate) fn new(_memory: &RegionMemory, header: &RegionHeader) -> Self {
        let geometry = header.layout.geometry;
        Self {
            state: table(1),
            producers: table(geometry.producers),
            buckets: table(geometry.buckets),
            steps: table(STEPS_MAX),
            interfaces: table(0),
        }
    }
}
