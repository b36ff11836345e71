//! The region: who may touch which byte, and the only code that does.
//!
//! Everything outside this module works with two tokens. [`Claimed`] and then [`OpenBucket`] is the right to write one
//! bucket; [`Hold`] is the right to read the committed part of one. The control word sees to it that there is one writer,
//! and none while there are holds on anything that is not open.
#![expect(
    unsafe_code,
    reason = "reads and writes the region through its address"
)]

pub(crate) mod bell;
pub(crate) mod control;
pub(crate) mod descriptor;
pub(crate) mod header;
mod hold;
pub(crate) mod interfaces;
pub(crate) mod layout;
mod open;
mod stage;
mod straight;
mod stream;
mod table;

#[cfg(loom)]
mod heap;
#[cfg(not(loom))]
mod mapping;

#[cfg(loom)]
use heap::{ALIGNMENT, Memory};
#[cfg(not(loom))]
use mapping::{ALIGNMENT, Memory};

pub(crate) use hold::Hold;
pub(crate) use open::{Claimed, OpenBucket, Opening, Stop};

use std::path::PathBuf;

use crate::{
    BucketRef, InterfaceEntry, Numa, Packet, Pages, RingConfig, RingError, config::Geometry,
    sync::Ordering,
};
use bell::Bell;
use descriptor::{DESCRIPTOR_BYTES, Descriptor, EXTENSION_BYTES, Extension};
use header::{BucketHeader, ProducerHeader, RegionState, STATE_ENDED, STATE_LIVE};
use interfaces::InterfaceSlot;
use layout::{Offsets, Tables};
use stream::{Lines, Width};
use table::Table;

/// Interface numbers have 16 bits.
pub(crate) const INTERFACES_MAX: usize = 1 << 16;
/// Bytes of the headers that most filters look at: Ethernet, IPv4 without options, and both ports with a little more.
const HEADER_BYTES: usize = 48;

/// The region of one ring: memory, headers, and the bell that tells writers when a bucket may have become free.
#[derive(Debug)]
pub(crate) struct Storage {
    // The tables may point into the memory: they are declared, and so dropped, before it.
    state: Table<RegionState>,
    interfaces: Table<InterfaceSlot>,
    buckets: Table<BucketHeader>,
    producers: Table<ProducerHeader>,
    memory: Memory,
    geometry: Geometry,
    /// Where bucket 0 starts in the region.
    buckets_offset: usize,
    pub(crate) bell: Bell,
    /// How lines go past the cache here.
    width: Width,
    #[cfg(loom)]
    shadow: shadow::Shadow,
}

impl Storage {
    /// Takes the memory and, as the configuration says, fills it.
    pub(crate) fn new(
        geometry: Geometry,
        config: &RingConfig,
        progress: Option<&mut dyn FnMut(u64, u64)>,
    ) -> Result<(Self, Placement), RingError> {
        let offsets = Offsets::new(geometry);
        let (memory, placement) = Memory::new(offsets.end, config, progress)?;
        let tables = Tables::new(
            &memory,
            geometry,
            &offsets,
            config.created_ns,
            placement.pages,
        );
        let storage = Self {
            state: tables.state,
            interfaces: tables.interfaces,
            buckets: tables.buckets,
            producers: tables.producers,
            memory,
            geometry,
            buckets_offset: offsets.buckets,
            bell: Bell::new(),
            width: Width::detect(),
            #[cfg(loom)]
            shadow: shadow::Shadow::new(geometry),
        };
        // Release: whoever sees it live sees the headers.
        storage.state[0].state.store(STATE_LIVE, Ordering::Release);
        Ok((storage, placement))
    }

    /// Where another process finds the region, if it can.
    pub(crate) fn path(&self) -> Option<PathBuf> {
        self.memory.path()
    }

    /// Puts an interface into the region's table; `false`: no place is left, which is counted there. The caller is the
    /// only one at a time, and numbers come in order.
    pub(crate) fn list_interface(&self, id: u16, entry: &InterfaceEntry) -> bool {
        let state = &self.state[0];
        let Some(slot) = self.interfaces.get(usize::from(id)) else {
            state.interfaces_unlisted.fetch_add(1, Ordering::Relaxed); // a count
            return false;
        };
        slot.write(entry);
        // Release: pairs with the load in `attach`.
        state.interfaces.store(u64::from(id) + 1, Ordering::Release);
        true
    }

    /// Interfaces that the region's table had no place for.
    pub(crate) fn interfaces_unlisted(&self) -> u64 {
        self.state[0].interfaces_unlisted.load(Ordering::Relaxed) // a count
    }

    #[inline(always)]
    pub(crate) fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Panics unless `index < geometry.buckets`.
    pub(crate) fn bucket(&self, index: usize) -> &BucketHeader {
        &self.buckets[index]
    }

    /// Panics unless `id < geometry.producers`.
    pub(crate) fn producer(&self, id: usize) -> &ProducerHeader {
        &self.producers[id]
    }

    pub(crate) fn producers(&self) -> &[ProducerHeader] {
        &self.producers
    }

    /// The record at `index` of a bucket.
    ///
    /// # Safety
    /// The record is committed in the present generation of the bucket, the caller has synchronised with the commitment
    /// (edge P1), and the bucket cannot be claimed, or not be written after a claim, while the result lives. `base_ns` is
    /// the bucket's.
    #[inline(always)]
    unsafe fn packet(&self, bucket: usize, base_ns: i64, index: usize) -> Packet<'_> {
        // SAFETY: the caller's promise covers the record's descriptor.
        let descriptor = unsafe { self.descriptor(bucket, index) };
        let offset = descriptor.offset();
        if descriptor.extended() {
            // SAFETY: the caller's promise covers the whole record.
            return unsafe { self.extended(bucket, descriptor) };
        }
        Packet {
            time_ns: descriptor.time_ns(base_ns),
            wire_len: descriptor.wire_len(),
            interface: descriptor.interface(),
            direction: descriptor.direction(),
            tag_restored: descriptor.tag_restored(),
            // SAFETY: the payload belongs to the record.
            data: unsafe { self.bytes(bucket, offset, descriptor.captured()) },
        }
    }

    /// A record of the extended form.
    ///
    /// # Safety
    /// As for [`Storage::packet`], of the record that `descriptor` was read from.
    #[cold]
    unsafe fn extended(&self, bucket: usize, descriptor: Descriptor) -> Packet<'_> {
        let offset = descriptor.offset();
        // SAFETY: the extension belongs to the record.
        let bytes = unsafe { self.bytes(bucket, offset, EXTENSION_BYTES) };
        let mut extension = Extension([0; EXTENSION_BYTES]);
        extension.0.copy_from_slice(bytes);
        Packet {
            time_ns: extension.time_ns(),
            wire_len: extension.wire_len(),
            interface: extension.interface(),
            direction: descriptor.direction(),
            tag_restored: descriptor.tag_restored(),
            // SAFETY: the payload belongs to the record.
            data: unsafe { self.bytes(bucket, offset + extension.len(), descriptor.captured()) },
        }
    }

    /// Asks for the first bytes of a record, which a reader will soon want: the line that it begins in, and that of its ports,
    /// which is another one for most records that are not whole lines.
    ///
    /// # Safety
    /// As for [`Storage::packet`].
    #[inline(always)]
    unsafe fn prefetch(&self, bucket: usize, index: usize) {
        // SAFETY: the caller's promise covers the record's descriptor.
        let descriptor = unsafe { self.descriptor(bucket, index) };
        let place = self.place(bucket, descriptor.offset(), 0);
        stream::prefetch(place);
        stream::prefetch(place.wrapping_add(HEADER_BYTES - 1));
    }

    /// Asks for a descriptor, which a reader will soon want. Nothing is read: any index may be given.
    #[inline(always)]
    fn prefetch_descriptor(&self, bucket: usize, index: usize) {
        let end = self.place(bucket, self.geometry.bucket_bytes, 0);
        stream::prefetch(end.wrapping_sub(DESCRIPTOR_BYTES * (index + 1)));
    }

    /// # Safety
    /// As for [`Storage::packet`].
    #[inline(always)]
    unsafe fn descriptor(&self, bucket: usize, index: usize) -> Descriptor {
        let offset = self.descriptor_offset(index);
        let place = self.place(bucket, offset, DESCRIPTOR_BYTES);
        #[cfg(loom)]
        self.shadow.read(bucket, offset, DESCRIPTOR_BYTES);
        // SAFETY: `place` checked the range; it is aligned, since buckets and descriptors are multiples of 16 bytes; the
        // caller sees to it that nobody writes these bytes.
        unsafe { place.cast::<Descriptor>().read() }
    }

    /// # Safety
    /// The range belongs to a record for which the caller gives the promise of [`Storage::packet`].
    #[inline(always)]
    unsafe fn bytes(&self, bucket: usize, offset: usize, length: usize) -> &[u8] {
        let place = self.place(bucket, offset, length);
        #[cfg(loom)]
        self.shadow.read(bucket, offset, length);
        // SAFETY: `place` checked the range; the memory was zeroed at the start, so that every byte is initialised; the
        // caller sees to it that nobody writes these bytes while the result lives, which `&self` keeps mapped.
        unsafe { std::slice::from_raw_parts(place, length) }
    }

    /// Copies into a bucket. All record bytes go through this function or the next, but for the short ones that the stage
    /// copies to their place itself ([`OpenBucket::append_burst`]).
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
        unsafe { Lines::NARROW.copy(place, lines.as_ptr(), lines.len()) };
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

/// What was got for a region.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Placement {
    pub(crate) pages: Pages,
    pub(crate) numa: Numa,
}

impl Drop for Storage {
    fn drop(&mut self) {
        // Release: whoever sees the end sees everything that was stored.
        self.state[0].state.store(STATE_ENDED, Ordering::Release);
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

/// Loom's eyes on the record bytes: one cell for every 16 bytes, which neighbouring records never share under loom.
#[cfg(loom)]
mod shadow {
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

        fn range(
            &self,
            bucket: usize,
            offset: usize,
            length: usize,
        ) -> &[loom::cell::UnsafeCell<()>] {
            let start = bucket * self.per_bucket;
            &self.cells[start + offset / GRANULE..start + (offset + length).div_ceil(GRANULE)]
        }
    }

    // SAFETY: the cells hold nothing; loom itself watches who accesses them when, which is what they are for.
    unsafe impl Sync for Shadow {}
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
