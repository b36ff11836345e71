//! The headers in front of the buckets: the region's self-description, a header for each producer
//! and each bucket, the clock steps, and the interfaces.
//!
//! ```text
//! offset 0       RegionHeader     20 words of 8 bytes (`layout.rs`), constant once `state` is live
//!          0     magic                         8  version
//!         16     region bytes                 24  producers
//!         32     producers' offset            40  buckets
//!         48     bucket headers' offset       56  bytes of a bucket
//!         64     buckets' offset              72  interfaces' offset
//!         80     interfaces' max              88  time of creation, ns
//!         96     boot id, 16 bytes           112  process id
//!        120     pages: 1 small, 2 transparent, 3 explicit
//!        128     steps' offset               136  steps' max
//!        144     time of creation, ns of the monotonic clock; 0 unknown
//!       1024     RegionState      128 bytes: state, interfaces listed, interfaces that did not
//!                                 fit, latest closing time of all overwritten buckets
//!       4096     ProducerHeader   128 bytes × producers
//!       …        BucketHeader     128 bytes × buckets
//!       …        StepSlot          32 bytes × steps' max
//!       …        InterfaceSlot     64 bytes × interfaces' max: the space up to the buckets
//!       buckets  bucket_bytes × buckets, from a multiple of 2 MiB
//! ```
//!
//! All numbers are in native byte order, which the magic shows. Under loom the tables are on the
//! heap, because loom's atomics are larger than real atomics.

use super::control::Control;
use crate::sync::{AtomicI64, AtomicU64};

/// Bytes in front of the headers of the producers.
pub(crate) const REGION_HEADER_BYTES: usize = 4096;
/// Offset of [`RegionState`].
pub(crate) const REGION_STATE_OFFSET: usize = 1024;
/// Minimum number of slots for interfaces.
pub(crate) const INTERFACES_MIN: usize = 1024;
/// An unknown time of the monotonic clock.
pub(crate) const MONO_UNKNOWN: i64 = 0;

/// [`RegionState::state`]: the headers are not written yet.
pub(crate) const STATE_UNREADY: u64 = 0;
/// [`RegionState::state`]: in use, or the process was killed.
pub(crate) const STATE_LIVE: u64 = 1;
/// [`RegionState::state`]: the ring was dropped.
pub(crate) const STATE_ENDED: u64 = 2;

/// The mutable state of the region as a whole.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub(crate) struct RegionState {
    /// One of `STATE_…`. Stored with Release: live after all headers, ended after the last record.
    pub(crate) state: AtomicU64,
    /// Interfaces in the table. Stored with Release after their slots.
    pub(crate) interfaces: AtomicU64,
    /// Interfaces without a slot, which only the writing process knows.
    pub(crate) interfaces_unlisted: AtomicU64,
    /// The latest closing time of all overwritten buckets, ns of the monotonic clock, 0 if unknown.
    /// Initially `i64::MIN`: no bucket was overwritten.
    pub(crate) evicted_closed_mono_ns: AtomicI64,
}

/// The state of one producer.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub(crate) struct ProducerHeader {
    /// Records published since the start. Stored (Release, edge P2) after the bucket's committed
    /// mark.
    pub(crate) published: AtomicU64,
    /// Captured bytes of the published records. Stored before `published`.
    pub(crate) published_bytes: AtomicU64,
    /// Ring time, ns, before which the producer promises to store no more records. Initially
    /// `i64::MIN`: no promise. Stored (Release, edge T) after all earlier records are published.
    pub(crate) watermark_ns: AtomicI64,
    /// Time of the last publication, ns of the monotonic clock; 0 is unknown. Stored before
    /// `published`.
    pub(crate) published_mono_ns: AtomicI64,
    /// The number after the last overwritten record of this producer. The overwriting thread writes
    /// this field under the outer mutex.
    pub(crate) evicted_records: AtomicU64,
    /// The largest ring time of the producer's overwritten records, ns. Initially `i64::MIN`.
    pub(crate) evicted_ns: AtomicI64,
}

/// The header of one bucket.
///
/// Any thread may change `control`. The producer that owns the bucket writes the other fields.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub(crate) struct BucketHeader {
    pub(crate) control: Control,
    /// Records that readers may read. Stored with Release (edge P1) after all bytes of the records.
    pub(crate) committed: AtomicU64,
    /// Captured bytes of at least the committed records.
    pub(crate) bytes: AtomicU64,
    /// Smallest ring time of at least the committed records, ns.
    pub(crate) min_ns: AtomicI64,
    /// Largest ring time of at least the committed records, ns.
    pub(crate) max_ns: AtomicI64,
    /// The [`Link`](super::Link) to the producer's next bucket. Stored before this bucket closes;
    /// stays 0 in the last bucket of a dropped producer.
    pub(crate) next: AtomicU64,
    /// Ring time, ns, to which descriptors are relative.
    pub(crate) base_ns: AtomicI64,
    /// Number of the producer that fills the bucket.
    pub(crate) producer: AtomicU64,
    /// Number of buckets that the producer filled before.
    pub(crate) sequence: AtomicU64,
    /// Records that the producer stored in earlier buckets.
    pub(crate) first: AtomicU64,
    /// Captured bytes of the records in earlier buckets of the producer.
    pub(crate) first_bytes: AtomicU64,
    /// Number of buckets of the region that closed before.
    pub(crate) closing: AtomicU64,
    /// Time of closing, ns of the monotonic clock; 0: unknown, or not closed.
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
