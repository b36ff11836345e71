//! The size of a ring, the memory that backs it, its division into buckets, and the behavior when
//! it is full.

use std::path::PathBuf;

use crate::{
    RingError,
    storage::descriptor::{CAPTURED_BYTES_MAX, DESCRIPTOR_BYTES, EXTENSION_BYTES},
};

/// The default bytes of a bucket: one huge page.
const BUCKET_BYTES: usize = 2 << 20;
/// The chosen bucket size if buckets of 2 MiB would be too few for the producers and readers.
const BUCKET_BYTES_SMALL: usize = 1 << 20;
/// Above this number of buckets the ring chooses larger buckets if it can, so that a walk over all
/// buckets stays short.
const BUCKETS_MAX_CHOSEN: u64 = 4096;
/// A link has 16 bits for the number of a bucket plus 1; the value 0 means no bucket.
pub(crate) const BUCKETS_MAX: usize = 65_535;
/// Explicit bucket sizes are multiples of this, bytes.
pub(crate) const BUCKET_BYTES_MULTIPLE: usize = if cfg!(loom) { DESCRIPTOR_BYTES } else { 4096 };
/// Offsets in a bucket have 28 bits (`storage/descriptor.rs`).
pub(crate) const BUCKET_BYTES_MAX: usize = 256 << 20;
/// Smallest explicit bucket size, in bytes: one record of maximum length fits.
pub(crate) const BUCKET_BYTES_MIN: usize =
    (CAPTURED_BYTES_MAX + EXTENSION_BYTES + DESCRIPTOR_BYTES)
        .next_multiple_of(BUCKET_BYTES_MULTIPLE);
/// Minimum number of buckets for each producer and each reader.
pub(crate) const BUCKETS_PER_PARTY: usize = if cfg!(loom) { 1 } else { 4 };

/// The configuration of a ring.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RingConfig {
    /// Bytes of all buckets, rounded down to whole buckets. The mapping is larger by the headers.
    pub bytes: u64,
    /// Bytes of a bucket. `None`: the ring chooses a multiple of 2 MiB, or 1 MiB if 2 MiB gives too
    /// few buckets.
    pub bucket_bytes: Option<usize>,
    /// Producers that may be opened over the life of the ring, at least 1.
    pub producers: usize,
    /// Readers (members of all groups) that may be open at a time, without `releasing_readers`.
    pub readers: usize,
    /// Further readers, for which the ring sets no buckets aside. Such a reader must hold a bucket
    /// only while no producer needs a bucket ([`Reader::release`](crate::Reader::release)).
    pub releasing_readers: usize,
    /// Behavior of a writer when no bucket may be overwritten at once. Can be changed later.
    pub mode: Mode,
    /// Backs all memory with pages before the first store, because the first access to a page costs
    /// microseconds. A memfd or a file reserves its space in any case.
    pub prefault: bool,
    /// How much the ring remembers of overwritten buckets.
    pub eviction_detail: EvictionDetail,
    /// The kind of memory that the region uses.
    pub backing: Backing,
    /// The preferred NUMA node, `0..1024`. [`Ring::numa`](crate::Ring::numa) returns the result.
    pub numa_node: Option<u32>,
    /// Time of creation for the header: ns since the UNIX epoch, 0 for unknown.
    pub created_ns: i64,
    /// Time of creation on the monotonic clock (`CLOCK_MONOTONIC`), ns; 0 for unknown.
    pub created_mono_ns: i64,
}

impl RingConfig {
    /// A ring of anonymous memory in [`Mode::Record`].
    #[must_use]
    pub fn new(bytes: u64, producers: usize, readers: usize) -> Self {
        Self {
            bytes,
            bucket_bytes: None,
            producers,
            readers,
            releasing_readers: 0,
            mode: Mode::Record,
            prefault: true,
            eviction_detail: EvictionDetail::Bounds,
            backing: Backing::Anonymous,
            numa_node: None,
            created_ns: 0,
            created_mono_ns: 0,
        }
    }

    /// Adds up to `more` readers, as many as the buckets allow. The bucket size does not change.
    /// Returns the number of readers added.
    ///
    /// # Errors
    /// The configuration is invalid, as in [`Ring::new`](crate::Ring::new).
    pub fn add_readers(&mut self, more: usize) -> Result<usize, RingError> {
        let geometry = self.geometry()?;
        self.bucket_bytes = Some(geometry.bucket_bytes);
        let parties = geometry.buckets / BUCKETS_PER_PARTY;
        let more = more.min(parties - self.producers - self.readers);
        self.readers += more;
        Ok(more)
    }

    /// Number of buckets of the ring, and bytes of each bucket.
    ///
    /// # Errors
    /// The configuration is invalid, as in [`Ring::new`](crate::Ring::new).
    pub fn buckets(&self) -> Result<(usize, usize), RingError> {
        let geometry = self.geometry()?;
        Ok((geometry.buckets, geometry.bucket_bytes))
    }

    pub(crate) fn geometry(&self) -> Result<Geometry, RingError> {
        if self.producers == 0 {
            return Err(RingError::Producers { max: 0 });
        }
        let buckets_min = BUCKETS_PER_PARTY as u64 * (self.producers as u64 + self.readers as u64);
        let bucket_bytes = match self.bucket_bytes {
            Some(bytes) => checked_bucket_bytes(bytes)?,
            None => chosen_bucket_bytes(self.bytes, buckets_min),
        };
        let buckets = self.bytes / bucket_bytes as u64;
        if buckets < buckets_min {
            let bytes_each = self.bucket_bytes.unwrap_or(BUCKET_BYTES_SMALL) as u64;
            return Err(RingError::TooSmall {
                bytes: self.bytes,
                producers: self.producers,
                readers: self.readers,
                bytes_min: buckets_min * bytes_each,
            });
        }
        let count = usize::try_from(buckets).ok();
        let count = count.filter(|&count| count <= BUCKETS_MAX);
        let buckets = count.ok_or(RingError::TooManyBuckets { buckets })?;
        Ok(Geometry {
            buckets,
            bucket_bytes,
            producers: self.producers,
        })
    }
}

/// The memory of the region, which decides what other processes can see the region.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Backing {
    /// Memory of this process alone.
    #[default]
    Anonymous,
    /// An unnamed file (memfd_create(2)) with mode 0600, sealed against shrinking and growing.
    /// Another process of the same user can usually open the file as `/proc/PID/fd/N`
    /// ([`Ring::path`](crate::Ring::path)).
    ///
    /// # Minimum kernel version
    /// Linux 3.17.
    Memfd,
    /// A file that stays when the process ends. The ring creates the file with mode 0600 and locks
    /// it (flock(2)) while the ring lives. It may replace an older, unlocked ring file of the same
    /// user, but nothing else.
    File(PathBuf),
}

/// Behavior of a writer when no bucket is free and no bucket may be overwritten at once.
///
/// Every mode respects holds and gating groups. In table 6.1 of the QQ thesis an enqueue on a full
/// queue succeeds only above the queue's priority. `Record` is a writer above that priority. `Wait`
/// is a writer at that priority, which blocks. `Protect` is a writer at that priority that cannot
/// block and counts its losses instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Mode {
    /// If no other bucket can be overwritten, reservations fall, first those that
    /// [yield](crate::Reservation::set_yielding).
    Record = 0,
    /// Reservations never fall: the store fails with [`StoreError::Full`](crate::StoreError::Full).
    Protect = 1,
    /// Reservations never fall: the writer waits.
    Wait = 2,
}

impl Mode {
    pub(crate) fn from_u8(value: u8) -> Self {
        match value {
            0 => Self::Record,
            1 => Self::Protect,
            _ => Self::Wait,
        }
    }
}

/// How much the eviction log remembers of the ring times in overwritten buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EvictionDetail {
    /// The smallest and the largest time of each of the last 8192 overwritten buckets.
    Bounds,
    /// All times, at the cost of a walk over the descriptors of each overwritten bucket. Beyond the
    /// budget the oldest buckets keep only their smallest and largest time. If that is not enough,
    /// the log forgets the oldest buckets.
    Exact {
        /// Maximum bytes of the log's entries.
        budget_bytes: usize,
    },
}

/// The division of the region into buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// Number of buckets, `1..=65_535`.
    pub(crate) buckets: usize,
    /// Bytes of a bucket: a multiple of 16, at most 256 MiB.
    pub(crate) bucket_bytes: usize,
    /// Number of producers, at least 1.
    pub(crate) producers: usize,
}

fn checked_bucket_bytes(bucket_bytes: usize) -> Result<usize, RingError> {
    let in_range = (BUCKET_BYTES_MIN..=BUCKET_BYTES_MAX).contains(&bucket_bytes);
    if in_range && bucket_bytes.is_multiple_of(BUCKET_BYTES_MULTIPLE) {
        return Ok(bucket_bytes);
    }
    Err(RingError::BucketBytes { bucket_bytes })
}

fn chosen_bucket_bytes(bytes: u64, buckets_min: u64) -> usize {
    let unit = BUCKET_BYTES as u64;
    if bytes / unit < buckets_min {
        return BUCKET_BYTES_SMALL;
    }
    let for_few_buckets = bytes.div_ceil(BUCKETS_MAX_CHOSEN).next_multiple_of(unit);
    let for_all_parties = bytes / buckets_min.max(1) / unit * unit;
    let chosen = for_few_buckets.min(for_all_parties).max(unit);
    usize::try_from(chosen).map_or(BUCKET_BYTES_MAX, |bytes| bytes.min(BUCKET_BYTES_MAX))
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn cut(bytes: u64, producers: usize, readers: usize) -> (usize, usize) {
        let geometry = RingConfig::new(bytes, producers, readers)
            .geometry()
            .unwrap();
        (geometry.buckets, geometry.bucket_bytes)
    }

    #[test]
    fn readers_that_are_added_change_no_bucket() {
        for bytes in (8..200).map(|mib| mib << 20) {
            let mut config = RingConfig::new(bytes, 1, 1);
            let before = config.geometry().unwrap();
            let added = config.add_readers(5).unwrap();
            let now = config.geometry().unwrap();
            let cut = |it: &Geometry| (it.buckets, it.bucket_bytes);
            assert_eq!(cut(&before), cut(&now), "{bytes}");
            assert_eq!(config.readers, 1 + added);
            assert_eq!(added == 5, now.buckets >= 4 * 7, "{bytes}: {added}");
        }
    }

    #[test]
    fn buckets_are_one_huge_page_until_there_are_many() {
        assert_eq!(cut(GIB, 1, 1), (512, 2 << 20));
        assert_eq!(cut(8 * GIB, 1, 1), (4096, 2 << 20));
        assert_eq!(cut(9 * GIB, 1, 1), (2304, 4 << 20));
        assert_eq!(cut(1024 * GIB, 4, 4), (4096, 256 << 20));
        assert_eq!(cut(2048 * GIB, 4, 4), (8192, 256 << 20));
    }

    #[test]
    fn a_small_ring_for_many_producers_gets_small_buckets() {
        assert_eq!(cut(128 << 20, 16, 1), (128, 1 << 20));
        assert_eq!(
            cut((128 << 20) + 12345, 16, 1),
            (128, 1 << 20),
            "rounded down to whole buckets"
        );
    }

    #[test]
    fn too_small_names_the_least_size() {
        let bytes_min = match RingConfig::new(67 << 20, 16, 1).geometry() {
            Err(RingError::TooSmall { bytes_min, .. }) => bytes_min,
            other => panic!("{other:?}"),
        };
        assert!(RingConfig::new(bytes_min, 16, 1).geometry().is_ok());
        assert!(RingConfig::new(bytes_min - 1, 16, 1).geometry().is_err());
    }

    #[test]
    fn explicit_bucket_sizes_are_checked() {
        let with = |bucket_bytes| RingConfig {
            bucket_bytes: Some(bucket_bytes),
            ..RingConfig::new(GIB, 1, 1)
        };
        assert!(
            with(4096).geometry().is_err(),
            "a record of 256 KiB does not fit"
        );
        assert!(with((1 << 20) + 1).geometry().is_err());
        assert!(with(512 << 10).geometry().is_ok());
        assert!(RingConfig::new(GIB, 0, 1).geometry().is_err());
        let many = RingConfig {
            bytes: 64 * GIB,
            ..with(512 << 10)
        };
        assert!(matches!(
            many.geometry(),
            Err(RingError::TooManyBuckets { .. })
        ));
    }

    #[test]
    fn many_parties_limit_the_bucket_size() {
        let (buckets, bucket_bytes) = cut(64 * GIB, 1024, 1024);
        assert_eq!((buckets, bucket_bytes), (8192, 8 << 20));
    }
}
