//! What stands in front of the buckets: the region's own description, a header for each producer and one for each bucket.
//!
//! ```text
//! offset 0        RegionHeader     4096 bytes, written once
//!        4096     ProducerHeader   128 bytes × producers
//!        …        BucketHeader     128 bytes × buckets
//!        …        padding to a multiple of 2 MiB
//!        buckets  bucket_bytes × buckets
//! ```
//!
//! Headers of producers and buckets are structs of atomics only. Where they stand, in the mapping or on the heap, is the
//! choice of [`Storage`](super::Storage): loom's atomics are larger than real ones and do not live in mappings.

use super::control::Control;
use crate::sync::{AtomicI64, AtomicU64};

/// Bytes of the region header.
pub(crate) const REGION_HEADER_BYTES: usize = 4096;
/// "retroQQ" and a 1 for this layout; also tells the byte order.
pub(crate) const MAGIC: u64 = u64::from_be_bytes(*b"retroQQ\x01");
/// Changes whenever a byte of the region changes its meaning.
pub(crate) const VERSION: u64 = 1;

/// The first bytes of the region. Plain numbers: written before anybody else knows the region, never again.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct RegionHeader {
    pub(crate) magic: u64,
    pub(crate) version: u64,
    /// Bytes of the whole region.
    pub(crate) region_bytes: u64,
    pub(crate) producers: u64,
    pub(crate) producers_offset: u64,
    pub(crate) buckets: u64,
    pub(crate) headers_offset: u64,
    pub(crate) bucket_bytes: u64,
    pub(crate) buckets_offset: u64,
}

/// What one producer tells about itself. Written by that producer only.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct ProducerHeader {
    /// Records published, ever. Stored (Release, edge P2) after the bucket's committed mark.
    pub(crate) published: AtomicU64,
    /// Their captured bytes. Stored before `published`.
    pub(crate) published_bytes: AtomicU64,
    /// Nothing older will come; ns, `i64::MIN` is none. Stored (Release, edge T) after everything before is published.
    pub(crate) watermark_ns: AtomicI64,
}

/// What is known about one bucket.
///
/// `control` is everybody's. All else is written by the producer that owns the bucket: the second half between claim and
/// opening, the first half at publication, `next` before closing.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct BucketHeader {
    pub(crate) control: Control,
    /// Records that readers may see. Stored with Release (edge P1) after all that they are made of.
    pub(crate) committed: AtomicU64,
    /// Captured bytes of at least these records.
    pub(crate) bytes: AtomicU64,
    /// Smallest time of at least these records, ns.
    pub(crate) min_ns: AtomicI64,
    /// Largest time of at least these records, ns.
    pub(crate) max_ns: AtomicI64,
    /// The [`Link`](super::Link) to the producer's next bucket; 0 until it is known, which is before this one closes.
    pub(crate) next: AtomicU64,
    /// What the times in descriptors are relative to.
    pub(crate) base_ns: AtomicI64,
    /// The producer that fills or filled it.
    pub(crate) producer: AtomicU64,
    /// How many buckets that producer had before.
    pub(crate) sequence: AtomicU64,
    /// Records that the producer stored in buckets before.
    pub(crate) first: AtomicU64,
    /// Their captured bytes.
    pub(crate) first_bytes: AtomicU64,
}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<RegionHeader>() <= REGION_HEADER_BYTES);
    assert!(size_of::<ProducerHeader>() == 128);
    assert!(size_of::<BucketHeader>() == 128);
};

impl ProducerHeader {
    /// As at the start of a region.
    pub(crate) fn new() -> Self {
        Self {
            published: AtomicU64::new(0),
            published_bytes: AtomicU64::new(0),
            watermark_ns: AtomicI64::new(i64::MIN),
        }
    }
}

impl BucketHeader {
    /// A free bucket that was never used.
    pub(crate) fn new() -> Self {
        Self {
            control: Control::new(),
            committed: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            min_ns: AtomicI64::new(0),
            max_ns: AtomicI64::new(0),
            next: AtomicU64::new(0),
            base_ns: AtomicI64::new(0),
            producer: AtomicU64::new(0),
            sequence: AtomicU64::new(0),
            first: AtomicU64::new(0),
            first_bytes: AtomicU64::new(0),
        }
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn the_layout_is_pinned() {
        assert_eq!(offset_of!(RegionHeader, region_bytes), 16);
        assert_eq!(offset_of!(RegionHeader, buckets_offset), 64);
        assert_eq!(offset_of!(ProducerHeader, published), 0);
        assert_eq!(offset_of!(ProducerHeader, published_bytes), 8);
        assert_eq!(offset_of!(ProducerHeader, watermark_ns), 16);
        let bucket = [
            offset_of!(BucketHeader, control),
            offset_of!(BucketHeader, committed),
            offset_of!(BucketHeader, bytes),
            offset_of!(BucketHeader, min_ns),
            offset_of!(BucketHeader, max_ns),
            offset_of!(BucketHeader, next),
            offset_of!(BucketHeader, base_ns),
            offset_of!(BucketHeader, producer),
            offset_of!(BucketHeader, sequence),
            offset_of!(BucketHeader, first),
            offset_of!(BucketHeader, first_bytes),
        ];
        assert_eq!(bucket, [0, 8, 16, 24, 32, 40, 48, 56, 64, 72, 80]);
    }
}
