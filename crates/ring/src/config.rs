//! How large a ring is, where its memory comes from, how it is cut into buckets, and what happens when it is full.

use std::path::PathBuf;

use crate::{
    RingError,
    storage::descriptor::{CAPTURED_BYTES_MAX, DESCRIPTOR_BYTES, EXTENSION_BYTES},
};

/// The usual bucket: one huge page.
const BUCKET_BYTES: usize = 2 << 20;
/// The one exception to multiples of 2 MiB, for rings too small for their number of producers.
const BUCKET_BYTES_SMALL: usize = 1 << 20;
/// Larger rings get larger buckets rather than more of them, so that a walk over all buckets stays short.
const BUCKETS_MAX_CHOSEN: u64 = 4096;
/// A bucket number takes 16 bits of a link, of which 0 means none.
pub(crate) const BUCKETS_MAX: usize = 65_535;
/// An explicit bucket size is a multiple of this. Under loom memory is a few cells on the heap.
pub(crate) const BUCKET_BYTES_MULTIPLE: usize = if cfg!(loom) { DESCRIPTOR_BYTES } else { 4096 };
/// Offsets in a bucket have 28 bits (`storage/descriptor.rs`).
pub(crate) const BUCKET_BYTES_MAX: usize = 256 << 20;
/// One record of the greatest length always fits.
pub(crate) const BUCKET_BYTES_MIN: usize =
    (CAPTURED_BYTES_MAX + EXTENSION_BYTES + DESCRIPTOR_BYTES)
        .next_multiple_of(BUCKET_BYTES_MULTIPLE);
/// Buckets for each producer and each reader: one written, one read, one being handed over, one of history.
pub(crate) const BUCKETS_PER_PARTY: usize = if cfg!(loom) { 1 } else { 4 };

/// What a ring is made for. Sized once; nothing grows later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RingConfig {
    /// Bytes for all buckets; rounded down to whole buckets. The mapping is a little larger (headers, at least 2 MiB).
    pub bytes: u64,
    /// Bytes of a bucket, or `None` to choose: 2 MiB, a multiple of it where that makes more than 4096 buckets, and
    /// 1 MiB where 2 MiB makes too few. Sizes that are not multiples of 2 MiB share huge pages between buckets.
    pub bucket_bytes: Option<usize>,
    /// Producers that may be opened over the life of the ring, at least 1.
    pub producers: usize,
    /// Readers (members of all groups) that may be open at a time.
    pub readers: usize,
    /// What a writer does when every bucket is taken; can be changed later.
    pub mode: Mode,
    /// Backs all memory with pages before the first store, as a live recorder needs: a first touch costs microseconds.
    /// Without, a run that ends before the ring is full takes only what it used.
    pub prefault: bool,
    /// How much is remembered of overwritten buckets.
    pub eviction_detail: EvictionDetail,
    /// What the region is made of.
    pub backing: Backing,
    /// The NUMA node whose memory is preferred, `0..1024`. What became of it: [`Ring::numa`](crate::Ring::numa).
    pub numa_node: Option<u32>,
    /// When the ring was made, for its header: ns since the UNIX epoch, 0 for unknown. The ring reads no clock.
    pub created_ns: i64,
    /// The same on the monotonic clock (`CLOCK_MONOTONIC`), ns; 0 for unknown.
    pub created_mono_ns: i64,
}

impl RingConfig {
    /// A ring of anonymous memory, in [`Mode::Record`] with [`EvictionDetail::Bounds`] and a chosen bucket size.
    #[must_use]
    pub fn new(bytes: u64, producers: usize, readers: usize) -> Self {
        Self {
            bytes,
            bucket_bytes: None,
            producers,
            readers,
            mode: Mode::Record,
            prefault: true,
            eviction_detail: EvictionDetail::Bounds,
            backing: Backing::Anonymous,
            numa_node: None,
            created_ns: 0,
            created_mono_ns: 0,
        }
    }

    /// Adds readers, `more` of them or as many as there are buckets for, whose size stays what it is without them. Returns how many.
    ///
    /// # Errors
    /// As making the ring.
    pub fn add_readers(&mut self, more: usize) -> Result<usize, RingError> {
        let geometry = self.geometry()?;
        self.bucket_bytes = Some(geometry.bucket_bytes);
        let parties = geometry.buckets / BUCKETS_PER_PARTY;
        let more = more.min(parties - self.producers - self.readers);
        self.readers += more;
        Ok(more)
    }

    /// How the bytes are cut.
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

/// What the region is made of, and so who else can see it. It is left out of core dumps in every case.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Backing {
    /// Memory of this process alone.
    #[default]
    Anonymous,
    /// A file without a name (memfd_create(2)), of mode 0600 and sealed against shrinking and growing. Another process
    /// of the same user opens it as `/proc/PID/fd/N` ([`Ring::path`](crate::Ring::path)). It ends with its last user.
    ///
    /// # Minimum kernel version
    /// Linux 3.17.
    Memfd,
    /// A file that stays when the process ends, however it ends: on tmpfs or hugetlbfs for speed, on a disk where the
    /// page cache may follow. It is made anew, with mode 0600, and locked (flock(2)) as long as the ring lives. In the
    /// place of an older ring file of the same user that nobody has locked the new one is made, and the old one is gone;
    /// anything else that is there is refused, a symbolic link too.
    File(PathBuf),
}

/// What a writer does when no bucket is free and none may be overwritten at once.
///
/// Holds and gating groups are respected in every mode; the modes differ in what a reservation is worth. Table 6.1 of
/// the QQ thesis lets an enqueue on a full queue succeed only above the queue's priority: `Record` is a writer above
/// it, `Wait` a writer at it (blocks), `Protect` a writer at it that cannot wait and counts its loss instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Mode {
    /// The live default: when nothing else can be overwritten, the oldest reservation falls, if none
    /// [yields](crate::Reservation::set_yielding).
    Record = 0,
    /// Reservations stand: the store fails with [`StoreError::Full`](crate::StoreError::Full).
    Protect = 1,
    /// Reservations stand: the writer waits.
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
    /// The smallest and the largest time of each of the last 8192 buckets, in memory taken at the start.
    Bounds,
    /// Every time, which costs a walk over the descriptors of each bucket that is overwritten. Beyond the budget the oldest
    /// buckets keep only their smallest and largest time. If that is not enough, they are forgotten.
    Exact {
        /// Bytes of times to keep at most.
        budget_bytes: usize,
    },
}

/// How the region is cut, in range by construction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// `1..=65_535`.
    pub(crate) buckets: usize,
    /// A multiple of 16, at most 256 MiB; one record of the greatest length fits.
    pub(crate) bucket_bytes: usize,
    /// At least 1.
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
