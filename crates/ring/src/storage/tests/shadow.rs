//! Loom's eyes on the record bytes: one cell for every 16 bytes, which neighbouring records never share under loom.
#![expect(unsafe_code, reason = "shares cells that hold nothing")]

use crate::config::Geometry;

const GRANULE: usize = 16;

#[derive(Debug)]
pub(super) struct Shadow {
    cells: Vec<loom::cell::UnsafeCell<()>>,
    per_bucket: usize,
}

impl Shadow {
    pub(super) fn new(geometry: Geometry) -> Self {
        let per_bucket = geometry.bucket_bytes / GRANULE;
        let cells = (0..geometry.buckets * per_bucket)
            .map(|_| loom::cell::UnsafeCell::new(()))
            .collect();
        Self { cells, per_bucket }
    }

    pub(super) fn read(&self, bucket: usize, offset: usize, length: usize) {
        self.range(bucket, offset, length)
            .iter()
            .for_each(|cell| cell.with(|_| ()));
    }

    pub(super) fn write(&self, bucket: usize, offset: usize, length: usize) {
        self.range(bucket, offset, length)
            .iter()
            .for_each(|cell| cell.with_mut(|_| ()));
    }

    fn range(&self, bucket: usize, offset: usize, length: usize) -> &[loom::cell::UnsafeCell<()>] {
        let start = bucket * self.per_bucket;
        &self.cells[start + offset / GRANULE..start + (offset + length).div_ceil(GRANULE)]
    }
}

// SAFETY: the cells hold nothing; loom itself watches who accesses them when, which is what they are for.
unsafe impl Sync for Shadow {}
