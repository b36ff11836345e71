//! The rights to access the bytes of the region.
//!
//! Code outside this module works with two kinds of tokens. [`Claimed`] and later [`OpenBucket`]
//! are the right to write one bucket. [`Hold`] is the right to read the committed part of one
//! bucket. The control word ensures that a bucket has at most one writer, and no writer while holds
//! exist, unless the bucket is open.
#![expect(
    unsafe_code,
    reason = "reads and writes the region through its address"
)]

mod bucket_memory;
pub(crate) mod control;
pub(crate) mod descriptor;
pub(crate) mod eventcount;
#[cfg_attr(loom, allow(dead_code, reason = "nobody attaches to a model"))]
pub(crate) mod header;
mod hold;
pub(crate) mod interfaces;
#[cfg_attr(
    loom,
    allow(
        dead_code,
        unused_imports,
        unfulfilled_lint_expectations,
        reason = "the tables of a model stand on the heap"
    )
)]
pub(crate) mod layout;
mod open;
pub(crate) mod steps;
mod stream;
mod wide;
mod write_buffer;

#[cfg(loom)]
#[path = "tests/heap.rs"]
mod heap;
#[cfg(not(loom))]
mod mapping;
#[cfg(loom)]
#[path = "tests/shadow.rs"]
mod shadow;
#[cfg(not(loom))]
mod table;

#[cfg(loom)]
use heap::{ALIGNMENT, RegionMemory, Table};
#[cfg(not(loom))]
pub use mapping::{LargeBuffer, ask_for_huge_pages};
#[cfg(not(loom))]
use {
    mapping::{ALIGNMENT, RegionMemory},
    table::Table,
};

use bucket_memory::BucketMemory;
pub(crate) use hold::{Hold, Records};
pub(crate) use open::{Claimed, OpenBucket, OpenedBucket, Opening};
pub(crate) use write_buffer::BurstStop;

use std::path::PathBuf;

use crate::{
    BucketRef, InterfaceEntry, Numa, Pages, RingConfig, RingError, config::Geometry, sync::Ordering,
};
use descriptor::DESCRIPTOR_BYTES;
use eventcount::EventCount;
use header::{BucketHeader, ProducerHeader, STATE_ENDED, STATE_LIVE};
use layout::{Layout, RegionHeader, Tables};
use steps::StepSlot;
use stream::CopyLines;

/// Interface numbers have 16 bits.
pub(crate) const INTERFACES_MAX: usize = 1 << 16;

/// The region of one ring, and the eventcount that wakes writers when a bucket may have become
/// free.
#[derive(Debug)]
pub(crate) struct Storage {
    // The tables point into the memory. Fields drop in the order of their declaration.
    tables: Tables,
    memory: RegionMemory,
    geometry: Geometry,
    buckets_offset: usize,
    pub(crate) freed: EventCount,
    copy_lines: CopyLines,
    #[cfg(loom)]
    shadow: shadow::Shadow,
}

impl Storage {
    /// Maps the memory, and fills all pages if `config.prefault`. Meanwhile, calls `progress` with
    /// (bytes filled, total bytes).
    pub(crate) fn new(
        geometry: Geometry,
        config: &RingConfig,
        progress: Option<&mut dyn FnMut(u64, u64)>,
    ) -> Result<(Self, MemoryObtained), RingError> {
        let layout = Layout::new(geometry);
        let (memory, obtained) = RegionMemory::new(layout.end, config, progress)?;
        let header = RegionHeader::new(layout, config, obtained.pages);
        let storage = Self {
            tables: Tables::new(&memory, &header),
            memory,
            geometry,
            buckets_offset: layout.first_bucket,
            freed: EventCount::new(),
            copy_lines: CopyLines::detect(),
            #[cfg(loom)]
            shadow: shadow::Shadow::new(geometry),
        };
        // Relaxed: the state orders these stores.
        for producer in storage.producers() {
            producer.watermark_ns.store(i64::MIN, Ordering::Relaxed);
            producer.evicted_ns.store(i64::MIN, Ordering::Relaxed);
        }
        let state = &storage.tables.state[0];
        state
            .evicted_closed_mono_ns
            .store(i64::MIN, Ordering::Relaxed);
        // Release: a process that sees the live state sees the headers.
        state.state.store(STATE_LIVE, Ordering::Release);
        Ok((storage, obtained))
    }

    /// The path where another process finds the region, if any.
    pub(crate) fn path(&self) -> Option<PathBuf> {
        self.memory.path()
    }

    /// The region up to the end of the last bucket: address and bytes.
    #[cfg(not(loom))]
    pub(crate) fn region(&self) -> (std::ptr::NonNull<u8>, usize) {
        let last = self.geometry.buckets * self.geometry.bucket_bytes;
        (self.memory.base(), self.buckets_offset + last)
    }

    /// Adds an interface to the region's table. Callers must call one at a time, with numbers that
    /// ascend from 0 without gaps. `false`: the table is full.
    pub(crate) fn list_interface(&self, id: u16, entry: &InterfaceEntry) -> bool {
        let state = &self.tables.state[0];
        let Some(slot) = self.tables.interfaces.get(usize::from(id)) else {
            state.interfaces_unlisted.fetch_add(1, Ordering::Relaxed); // orders nothing
            return false;
        };
        slot.write(entry);
        // Release: pairs with the load in `attach`.
        state.interfaces.store(u64::from(id) + 1, Ordering::Release);
        true
    }

    /// Panics unless `slot < STEPS_MAX`.
    pub(crate) fn step(&self, slot: usize) -> &StepSlot {
        &self.tables.steps[slot]
    }

    /// Records in the headers that a bucket of `producer` is being overwritten. `records` is the
    /// number after the bucket's last record, and `max_ns` the largest ring time in the bucket.
    /// `closed_mono_ns` is the latest closing time of all overwritten buckets. The caller has the
    /// outer mutex.
    pub(crate) fn tell_evicted(
        &self,
        producer: usize,
        records: u64,
        max_ns: i64,
        closed_mono_ns: i64,
    ) {
        let header = &self.tables.producers[producer];
        // Relaxed, all stores: only a thread with the mutex writes these fields. The opening of the
        // bucket (edge O in `lib.rs`), which follows, orders the stores for readers.
        let records = records.max(header.evicted_records.load(Ordering::Relaxed));
        header.evicted_records.store(records, Ordering::Relaxed);
        let max_ns = max_ns.max(header.evicted_ns.load(Ordering::Relaxed));
        header.evicted_ns.store(max_ns, Ordering::Relaxed);
        let state = &self.tables.state[0];
        state
            .evicted_closed_mono_ns
            .store(closed_mono_ns, Ordering::Relaxed);
    }

    #[inline(always)]
    pub(crate) fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Panics unless `index < geometry.buckets`.
    pub(crate) fn bucket(&self, index: usize) -> &BucketHeader {
        &self.tables.buckets[index]
    }

    /// Panics unless `id < geometry.producers`.
    pub(crate) fn producer(&self, id: usize) -> &ProducerHeader {
        &self.tables.producers[id]
    }

    pub(crate) fn producers(&self) -> &[ProducerHeader] {
        &self.tables.producers
    }

    /// The memory of a bucket. Panics unless the bucket is in this region.
    #[inline(always)]
    fn bucket_memory(&self, bucket: usize) -> BucketMemory<'_> {
        BucketMemory::new(self, bucket)
    }

    /// Copies into a bucket.
    ///
    /// # Safety
    /// The caller owns the bucket (claimed or open), and no byte of the range was committed in this
    /// generation.
    unsafe fn copy_in(&self, bucket: usize, offset: usize, bytes: &[u8]) {
        let place = self.place(bucket, offset, bytes.len());
        #[cfg(loom)]
        self.shadow.write(bucket, offset, bytes.len());
        // SAFETY: `place` checked the range. Readers stay below the committed mark, so nobody else
        // accesses these bytes. `bytes` cannot overlap them, since shared slices of the region
        // exist only for committed bytes.
        unsafe { place.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// Copies whole lines into a bucket, past the cache. `offset` is a multiple of a line.
    /// [`stream::fence`] must run before the lines are published.
    ///
    /// # Safety
    /// As for [`Storage::copy_in`].
    unsafe fn stream_in(&self, bucket: usize, offset: usize, lines: &[u8]) {
        let place = self.place(bucket, offset, lines.len());
        assert!(place.addr().is_multiple_of(stream::LINE_BYTES) || cfg!(loom));
        assert!(lines.len().is_multiple_of(stream::LINE_BYTES));
        #[cfg(loom)]
        self.shadow.write(bucket, offset, lines.len());
        // SAFETY: as in `copy_in`; alignment was asserted.
        unsafe { self.copy_lines.copy(place, lines.as_ptr(), lines.len()) };
    }

    /// Offset of a record's descriptor in its bucket. Does not check `index`.
    #[inline(always)]
    fn descriptor_offset(&self, index: usize) -> usize {
        self.geometry.bucket_bytes - DESCRIPTOR_BYTES * (index + 1)
    }

    /// The address of a range of a bucket. Panics if the range leaves the bucket.
    #[inline(always)]
    fn place(&self, bucket: usize, offset: usize, length: usize) -> *mut u8 {
        let Geometry {
            buckets,
            bucket_bytes,
            ..
        } = self.geometry;
        assert!(bucket < buckets && offset <= bucket_bytes && length <= bucket_bytes - offset);
        let offset = self.buckets_offset + bucket * bucket_bytes + offset;
        // SAFETY: inside the region, as asserted.
        unsafe { self.memory.base().add(offset) }.as_ptr()
    }
}

/// The memory that the system provided for a region.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MemoryObtained {
    pub(crate) pages: Pages,
    pub(crate) numa: Numa,
}

impl Drop for Storage {
    fn drop(&mut self) {
        // Release: a process that sees the end sees everything that was stored.
        self.tables.state[0]
            .state
            .store(STATE_ENDED, Ordering::Release);
    }
}

/// The successor of a bucket in its producer's chain, as one word: index + 1 in the low 16 bits,
/// generation above. 0 means no successor.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Link(pub(crate) u64);

impl Link {
    pub(crate) fn to(bucket: BucketRef) -> Self {
        Self((bucket.generation << 16) | (u64::from(bucket.index) + 1))
    }

    pub(crate) fn target(self) -> Option<BucketRef> {
        let index = u32::try_from(self.0 & 0xffff).ok()?.checked_sub(1)?;
        Some(BucketRef {
            index,
            generation: self.0 >> 16,
        })
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_gives_back_its_bucket() {
        for (index, generation) in [(0, 1), (65_534, (1 << 48) - 1)] {
            let bucket = BucketRef { index, generation };
            assert_eq!(Link::to(bucket).target(), Some(bucket));
        }
        assert_eq!(Link(0).target(), None);
    }
}
