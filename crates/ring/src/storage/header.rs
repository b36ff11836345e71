//! What stands in front of the buckets: the region's own description, a header for each producer and one for each bucket,
//! and the interfaces. Whoever maps the region read-only (`attach/`) needs nothing else.
//!
//! ```text
//! offset 0        RegionHeader     20 words of 8 bytes (`layout.rs`), written once, before RegionState::state is set
//!           0     magic              8  version          16  region bytes       24  producers
//!          32     producers' offset 40  buckets          48  headers' offset    56  bytes of a bucket
//!          64     buckets' offset   72  interfaces' off. 80  interfaces at most 88  time of creation, ns
//!          96     boot id, 16 bytes                     112  process id        120  pages: 1 small, 2 transparent, 3 explicit
//!         128     steps' offset    136  steps at most    144  time of creation, ns of the monotonic clock; 0 unknown
//!        1024     RegionState      128 bytes: state, interfaces listed, interfaces that did not fit, latest closing overwritten
//!        4096     ProducerHeader   128 bytes × producers
//!        …        BucketHeader     128 bytes × buckets
//!        …        StepSlot          32 bytes × steps at most
//!        …        InterfaceSlot     64 bytes × interfaces at most: all that is left up to the buckets, 1024 or more
//!        buckets  bucket_bytes × buckets, from a multiple of 2 MiB
//! ```
//!
//! All numbers are in native byte order; the magic tells which. State, headers and slots are structs of atomics that begin as zeros,
//! but for the three that say otherwise. Under loom they stand on the heap: its atomics are larger than real ones.

use super::control::Control;
use crate::sync::{AtomicI64, AtomicU64};

/// Bytes in front of the headers of the producers.
pub(crate) const REGION_HEADER_BYTES: usize = 4096;
/// Where [`RegionState`] stands.
pub(crate) const REGION_STATE_OFFSET: usize = 1024;
/// Places for interfaces, at least.
pub(crate) const INTERFACES_MIN: usize = 1024;
/// Stands for an unknown time of the monotonic clock.
pub(crate) const MONO_UNKNOWN: i64 = 0;

/// [`RegionState::state`]: the headers are not written yet.
pub(crate) const STATE_UNREADY: u64 = 0;
/// [`RegionState::state`]: in use, or its process was killed.
pub(crate) const STATE_LIVE: u64 = 1;
/// [`RegionState::state`]: its ring ended in good order.
pub(crate) const STATE_ENDED: u64 = 2;

/// What changes about the region as a whole.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub(crate) struct RegionState {
    /// One of `STATE_…`. Stored with Release: live after all headers, ended after the last record.
    pub(crate) state: AtomicU64,
    /// Interfaces in the table. Stored with Release after their slots; never falls.
    pub(crate) interfaces: AtomicU64,
    /// Interfaces that found no slot: the process knows them, the region does not.
    pub(crate) interfaces_unlisted: AtomicU64,
    /// The latest closing time of all buckets that were overwritten, ns of the monotonic clock; `i64::MIN`, as at the start: none
    /// was. All that was stored since then is there.
    pub(crate) evicted_closed_mono_ns: AtomicI64,
}

/// What is known about one producer. Written by that producer, but for what was overwritten.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub(crate) struct ProducerHeader {
    /// Records published, ever. Stored (Release, edge P2) after the bucket's committed mark.
    pub(crate) published: AtomicU64,
    /// Their captured bytes. Stored before `published`.
    pub(crate) published_bytes: AtomicU64,
    /// Nothing older will come; ns of ring time; `i64::MIN`, as at the start, is none. Stored (Release, edge T) after everything
    /// before is published.
    pub(crate) watermark_ns: AtomicI64,
    /// What the monotonic clock showed at the last publication, ns; 0 is unknown. Stored before `published`.
    pub(crate) published_mono_ns: AtomicI64,
    /// Behind the last of its records that were overwritten. Written under the outer mutex, as the next one is, by whoever
    /// overwrites.
    pub(crate) evicted_records: AtomicU64,
    /// The largest ring time of those, ns; `i64::MIN`, as at the start: there are none.
    pub(crate) evicted_ns: AtomicI64,
}

/// What is known about one bucket.
///
/// `control` is everybody's. All else is written by the producer that owns the bucket: the second half between claim and
/// opening, the first half at publication, `next`, `closing` and `closed_mono_ns` before closing.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub(crate) struct BucketHeader {
    pub(crate) control: Control,
    /// Records that readers may see. Stored with Release (edge P1) after all that they are made of.
    pub(crate) committed: AtomicU64,
    /// Captured bytes of at least these records.
    pub(crate) bytes: AtomicU64,
    /// Smallest ring time of at least these records, ns.
    pub(crate) min_ns: AtomicI64,
    /// Largest ring time of at least these records, ns.
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
    /// How many buckets of the region had closed before this one: the order in which they are overwritten.
    pub(crate) closing: AtomicU64,
    /// What the monotonic clock showed when it closed, ns; 0 is unknown.
    pub(crate) closed_mono_ns: AtomicI64,
}

#[cfg(not(loom))]
const _: () = {
    assert!(REGION_STATE_OFFSET + size_of::<RegionState>() <= REGION_HEADER_BYTES);
    assert!(size_of::<super::interfaces::InterfaceSlot>() == 64);
    assert!(size_of::<ProducerHeader>() == 128);
    assert!(size_of::<BucketHeader>() == 128);
};

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn the_layout_is_pinned() {
        assert_eq!(offset_of!(RegionState, state), 0);
        assert_eq!(offset_of!(RegionState, interfaces), 8);
        assert_eq!(offset_of!(RegionState, interfaces_unlisted), 16);
        assert_eq!(offset_of!(RegionState, evicted_closed_mono_ns), 24);
        assert_eq!(offset_of!(ProducerHeader, published), 0);
        assert_eq!(offset_of!(ProducerHeader, published_bytes), 8);
        assert_eq!(offset_of!(ProducerHeader, watermark_ns), 16);
        assert_eq!(offset_of!(ProducerHeader, published_mono_ns), 24);
        assert_eq!(offset_of!(ProducerHeader, evicted_records), 32);
        assert_eq!(offset_of!(ProducerHeader, evicted_ns), 40);
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
            offset_of!(BucketHeader, closing),
            offset_of!(BucketHeader, closed_mono_ns),
        ];
        assert_eq!(bucket, [0, 8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96]);
    }
}
