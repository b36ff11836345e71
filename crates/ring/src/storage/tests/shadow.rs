//! Lets loom check accesses to record bytes: one cell for every 16 bytes. Under loom neighboring
//! records never share a cell.
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

// SAFETY: the cells are empty; loom itself checks who accesses them when.
unsafe impl Sync for Shadow {}
