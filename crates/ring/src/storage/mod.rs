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
mod open;
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
pub(crate) use open::{Claimed, OpenBucket, Opening};

use crate::{BucketRef, Packet, Pages, RingError, config::Geometry};
use bell::Bell;
use descriptor::{DESCRIPTOR_BYTES, Descriptor, EXTENSION_BYTES, Extension};
use header::{BucketHeader, MAGIC, ProducerHeader, REGION_HEADER_BYTES, RegionHeader, VERSION};
use table::Table;

/// The region of one ring: memory, headers, and the bell that tells writers when a bucket may have become free.
#[derive(Debug)]
pub(crate) struct Storage {
    // The tables may point into the memory: they are declared, and so dropped, before it.
    buckets: Table<BucketHeader>,
    producers: Table<ProducerHeader>,
    memory: Memory,
    geometry: Geometry,
    /// Where bucket 0 starts in the region.
    buckets_offset: usize,
    pub(crate) bell: Bell,
    #[cfg(loom)]
    shadow: shadow::Shadow,
}

impl Storage {
    /// Takes the memory and, with `prefault`, fills it.
    pub(crate) fn new(
        geometry: Geometry,
        prefault: bool,
        progress: Option<&mut dyn FnMut(u64, u64)>,
    ) -> Result<(Self, Pages), RingError> {
        let header_bytes = REGION_HEADER_BYTES
            + geometry.producers * size_of::<ProducerHeader>()
            + geometry.buckets * size_of::<BucketHeader>();
        // Under loom the tables stand on the heap.
        let buckets_offset = if cfg!(loom) {
            0
        } else {
            header_bytes.next_multiple_of(ALIGNMENT)
        };
        let region_bytes =
            (buckets_offset + geometry.buckets * geometry.bucket_bytes).next_multiple_of(ALIGNMENT);
        let (memory, pages) = Memory::new(region_bytes, prefault, progress)?;
        let (producers, buckets) = tables(&memory, geometry, region_bytes, buckets_offset);
        let storage = Self {
            buckets,
            producers,
            memory,
            geometry,
            buckets_offset,
            bell: Bell::new(),
            #[cfg(loom)]
            shadow: shadow::Shadow::new(geometry),
        };
        Ok((storage, pages))
    }

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
    /// (edge P1), and the bucket cannot be claimed, or not be written after a claim, while the result lives.
    unsafe fn packet(&self, bucket: usize, index: usize) -> Packet<'_> {
        let base_ns = self
            .bucket(bucket)
            .base_ns
            .load(crate::sync::Ordering::Relaxed); // ordered by the caller
        // SAFETY: the caller's promise covers the record's descriptor.
        let descriptor = unsafe { self.descriptor(bucket, index) };
        let offset = descriptor.offset();
        let mut packet = Packet {
            time_ns: descriptor.time_ns(base_ns),
            wire_len: descriptor.wire_len(),
            interface: descriptor.interface(),
            direction: descriptor.direction(),
            tag_restored: descriptor.tag_restored(),
            data: &[],
        };
        let mut skip = 0;
        if descriptor.extended() {
            // SAFETY: the extension belongs to the record.
            let bytes = unsafe { self.bytes(bucket, offset, EXTENSION_BYTES) };
            let mut extension = Extension([0; EXTENSION_BYTES]);
            extension.0.copy_from_slice(bytes);
            skip = extension.len();
            packet.time_ns = extension.time_ns();
            packet.wire_len = extension.wire_len();
            packet.interface = extension.interface();
        }
        // SAFETY: the payload belongs to the record.
        packet.data = unsafe { self.bytes(bucket, offset + skip, descriptor.captured()) };
        packet
    }

    /// # Safety
    /// As for [`Storage::packet`].
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
    unsafe fn bytes(&self, bucket: usize, offset: usize, length: usize) -> &[u8] {
        let place = self.place(bucket, offset, length);
        #[cfg(loom)]
        self.shadow.read(bucket, offset, length);
        // SAFETY: `place` checked the range; the memory was zeroed at the start, so that every byte is initialised; the
        // caller sees to it that nobody writes these bytes while the result lives, which `&self` keeps mapped.
        unsafe { std::slice::from_raw_parts(place, length) }
    }

    /// Copies into a bucket: the one function through which all record bytes go.
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

    /// Where the descriptor of a record stands in its bucket. Panics if it would lie outside.
    fn descriptor_offset(&self, index: usize) -> usize {
        self.geometry.bucket_bytes - DESCRIPTOR_BYTES * (index + 1)
    }

    /// The address of a range of a bucket. Panics if the range leaves the bucket.
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

/// Lays out the headers: in the mapping, with the region's description in front.
fn tables(
    memory: &Memory,
    geometry: Geometry,
    region_bytes: usize,
    buckets_offset: usize,
) -> (Table<ProducerHeader>, Table<BucketHeader>) {
    if cfg!(loom) {
        let producers = Table::on_heap(geometry.producers, ProducerHeader::new);
        return (
            producers,
            Table::on_heap(geometry.buckets, BucketHeader::new),
        );
    }
    let producers_offset = REGION_HEADER_BYTES;
    let headers_offset = producers_offset + geometry.producers * size_of::<ProducerHeader>();
    let header = RegionHeader {
        magic: MAGIC,
        version: VERSION,
        region_bytes: region_bytes as u64,
        producers: geometry.producers as u64,
        producers_offset: producers_offset as u64,
        buckets: geometry.buckets as u64,
        headers_offset: headers_offset as u64,
        bucket_bytes: geometry.bucket_bytes as u64,
        buckets_offset: buckets_offset as u64,
    };
    let base = memory.base();
    // SAFETY: the region is aligned to more than the header needs, larger than it, and known to nobody else yet.
    unsafe { base.cast::<RegionHeader>().write(header) };
    // SAFETY: `producers_offset` lies before `buckets_offset`, inside the region.
    let producers = unsafe { base.add(producers_offset) };
    // SAFETY: as above.
    let buckets = unsafe { base.add(headers_offset) };
    // SAFETY: `geometry.producers` headers fit before `headers_offset`, which is a multiple of 128 as their alignment asks;
    // `Storage` keeps the memory as long as the table and gives no other access to these bytes.
    let producers =
        unsafe { Table::in_region(producers.cast(), geometry.producers, ProducerHeader::new) };
    // SAFETY: `geometry.buckets` headers fit before `buckets_offset`; otherwise as above.
    let buckets = unsafe { Table::in_region(buckets.cast(), geometry.buckets, BucketHeader::new) };
    (producers, buckets)
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

    #[test]
    fn the_region_describes_itself() {
        let geometry = Geometry {
            buckets: 3,
            bucket_bytes: 1 << 20,
            producers: 2,
        };
        let (storage, _) = Storage::new(geometry, true, None).unwrap();
        // SAFETY: written by `Storage::new`, never again.
        let header = unsafe { storage.memory.base().cast::<RegionHeader>().read() };
        assert_eq!(header.magic.to_be_bytes(), *b"retroQQ\x01");
        assert_eq!(
            (header.version, header.producers, header.buckets),
            (1, 2, 3)
        );
        assert_eq!(
            (header.producers_offset, header.headers_offset),
            (4096, 4096 + 2 * 128)
        );
        assert_eq!(
            (header.bucket_bytes, header.buckets_offset),
            (1 << 20, 2 << 20)
        );
        assert_eq!(header.region_bytes, 6 << 20);
        assert_eq!(
            std::ptr::from_ref(storage.bucket(1)).addr() - storage.memory.base().addr().get(),
            4096 + 3 * 128
        );
    }
}
