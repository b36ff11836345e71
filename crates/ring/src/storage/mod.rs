//! The region: who may touch which byte, and the only code that does.
//!
//! Everything outside this module works with two tokens. [`Claimed`] and then [`OpenBucket`] is the right to write one
//! bucket; [`Hold`] is the right to read the committed part of one. The control word sees to it that there is one writer,
//! and none while there are holds on anything that is not open.
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

/// The region of one ring: memory, headers, and the eventcount that tells writers when a bucket may have become free.
#[derive(Debug)]
pub(crate) struct Storage {
    // The tables point into the memory: they are declared, and so dropped, before it.
    tables: Tables,
    memory: RegionMemory,
    geometry: Geometry,
    /// Where bucket 0 starts in the region.
    buckets_offset: usize,
    pub(crate) freed: EventCount,
    /// How lines go past the cache here.
    copy_lines: CopyLines,
    #[cfg(loom)]
    shadow: shadow::Shadow,
}

impl Storage {
    /// Takes the memory and, as the configuration says, fills it.
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
        // Relaxed, these: ordered by the state.
        for producer in storage.producers() {
            producer.watermark_ns.store(i64::MIN, Ordering::Relaxed);
            producer.evicted_ns.store(i64::MIN, Ordering::Relaxed);
        }
        let state = &storage.tables.state[0];
        state
            .evicted_closed_mono_ns
            .store(i64::MIN, Ordering::Relaxed);
        // Release: whoever sees it live sees the headers.
        state.state.store(STATE_LIVE, Ordering::Release);
        Ok((storage, obtained))
    }

    /// Where another process finds the region, if it can.
    pub(crate) fn path(&self) -> Option<PathBuf> {
        self.memory.path()
    }

    /// The whole region, and its length: valid as long as the storage lives.
    #[cfg(not(loom))]
    pub(crate) fn region(&self) -> (std::ptr::NonNull<u8>, usize) {
        let last = self.geometry.buckets * self.geometry.bucket_bytes;
        (self.memory.base(), self.buckets_offset + last)
    }

    /// Puts an interface into the region's table; `false`: no place is left, which is counted there. The caller is the
    /// only one at a time, and numbers come in order.
    pub(crate) fn list_interface(&self, id: u16, entry: &InterfaceEntry) -> bool {
        let state = &self.tables.state[0];
        let Some(slot) = self.tables.interfaces.get(usize::from(id)) else {
            state.interfaces_unlisted.fetch_add(1, Ordering::Relaxed); // a count
            return false;
        };
        slot.write(entry);
        // Release: pairs with the load in `attach`.
        state.interfaces.store(u64::from(id) + 1, Ordering::Release);
        true
    }

    /// The region's place for a step. Panics unless `slot < STEPS_MAX`.
    pub(crate) fn step(&self, slot: usize) -> &StepSlot {
        &self.tables.steps[slot]
    }

    /// A bucket is overwritten whose records end before `records`, the latest at `max_ns` of ring time; it was the latest to
    /// close, at `closed_mono_ns`, of all that were. The outer mutex is held.
    pub(crate) fn tell_evicted(
        &self,
        producer: usize,
        records: u64,
        max_ns: i64,
        closed_mono_ns: i64,
    ) {
        let header = &self.tables.producers[producer];
        // Relaxed, all of them: written under the mutex, and ordered for others by the opening (edge O) that follows.
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

    /// The memory of a bucket. Panics unless it is one of this region.
    #[inline(always)]
    fn bucket_memory(&self, bucket: usize) -> BucketMemory<'_> {
        BucketMemory::new(self, bucket)
    }

    /// Copies into a bucket. All bytes of records and descriptors go through this function or the next, but for those that
    /// `WriteBuffer::put_group` and `put_packed` put to their place themselves.
    ///
    /// # Safety
    /// The caller owns the bucket (claimed or open) and no byte of the range was committed in this generation.
    unsafe fn copy_in(&self, bucket: usize, offset: usize, bytes: &[u8]) {
        let place = self.place(bucket, offset, bytes.len());
        #[cfg(loom)]
        self.shadow.write(bucket, offset, bytes.len());
        // SAFETY: `place` checked the range; readers stay below the committed mark, so nobody else accesses these bytes;
        // `bytes` cannot overlap them, since shared slices of the region exist for committed bytes only.
        unsafe { place.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// Copies whole lines into a bucket, past the cache; `offset` is a multiple of a line. [`stream::fence`] before they
    /// are published.
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

    /// Where the descriptor of a record stands in its bucket. Panics if it would lie outside.
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

/// What memory the system gave for a region.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MemoryObtained {
    pub(crate) pages: Pages,
    pub(crate) numa: Numa,
}

impl Drop for Storage {
    fn drop(&mut self) {
        // Release: whoever sees the end sees everything that was stored.
        self.tables.state[0]
            .state
            .store(STATE_ENDED, Ordering::Release);
    }
}

/// The successor of a bucket in its producer's chain, as one word: index + 1 in the low 16 bits, generation above.
/// 0 is none.
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
