//! A region's header as foreign input: after [`Layout::check`] every offset made from it lies in the file.

use std::path::Path;

use super::AttachError;
use crate::{
    Pages,
    storage::{
        INTERFACES_MAX,
        descriptor::DESCRIPTOR_BYTES,
        header::{BucketHeader, MAGIC, ProducerHeader, REGION_HEADER_BYTES, RegionHeader, VERSION},
        interfaces::InterfaceSlot,
        steps::{STEPS_MAX, StepSlot},
    },
};

/// A bucket number takes 16 bits of a link, of which 0 means none.
const BUCKETS_MAX: u64 = 65_535;
/// A producer needs four buckets.
const PRODUCERS_MAX: u64 = BUCKETS_MAX / 4;
/// Offsets in a bucket have 32 bits.
const BUCKET_BYTES_MAX: u64 = 1 << 31;

/// Where things stand in a region whose header was checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) region_bytes: usize,
    pub(super) producers: usize,
    pub(super) buckets: usize,
    pub(super) bucket_bytes: usize,
    pub(super) interfaces_max: usize,
    producers_offset: usize,
    headers_offset: usize,
    pub(super) steps_max: usize,
    steps_offset: usize,
    interfaces_offset: usize,
    buckets_offset: usize,
}

impl Layout {
    /// Checks a header against the length of its file.
    pub(super) fn check(
        header: &RegionHeader,
        file_bytes: usize,
        path: &Path,
    ) -> Result<Self, AttachError> {
        let path = || path.to_owned();
        if header.magic == MAGIC.swap_bytes() {
            return Err(AttachError::ByteOrder { path: path() });
        }
        if header.magic != MAGIC {
            return Err(AttachError::NotARing { path: path() });
        }
        if header.version == 0 {
            return Err(AttachError::NotReady { path: path() });
        }
        if header.version != VERSION {
            return Err(AttachError::Version {
                path: path(),
                found: header.version,
            });
        }
        if header.region_bytes > file_bytes as u64 {
            return Err(AttachError::Truncated {
                path: path(),
                bytes: file_bytes as u64,
                needed: header.region_bytes,
            });
        }
        Self::cut(header).map_err(|(field, value)| AttachError::Header {
            path: path(),
            field,
            value,
        })
    }

    /// `Err` names the field that cannot be.
    fn cut(header: &RegionHeader) -> Result<Self, (&'static str, u64)> {
        let count = |field, value: u64, max: u64| match usize::try_from(value) {
            Ok(count) if (1..=max).contains(&value) => Ok(count),
            _ => Err((field, value)),
        };
        let buckets = count("number of buckets", header.buckets, BUCKETS_MAX)?;
        let producers = count("number of producers", header.producers, PRODUCERS_MAX)?;
        let bucket_bytes = count("size of a bucket", header.bucket_bytes, BUCKET_BYTES_MAX)?;
        let interfaces_max = count(
            "number of interfaces",
            header.interfaces_max,
            INTERFACES_MAX as u64,
        )?;
        let steps_max = count("number of steps", header.steps_max, STEPS_MAX as u64)?;
        if !bucket_bytes.is_multiple_of(DESCRIPTOR_BYTES) {
            return Err(("size of a bucket", header.bucket_bytes));
        }
        // Each part lies behind the one before, aligned as its entries are, and the last one ends in the region.
        let mut free_from = REGION_HEADER_BYTES as u64;
        let mut part = |field, offset: u64, entries: u64, bytes: u64, alignment: u64| {
            let length = entries.checked_mul(bytes).ok_or((field, offset))?;
            let end = offset.checked_add(length).ok_or((field, offset))?;
            let fits = offset >= free_from && end <= header.region_bytes;
            if !fits || !offset.is_multiple_of(alignment) {
                return Err((field, offset));
            }
            free_from = end;
            usize::try_from(offset).map_err(|_| (field, offset))
        };
        let entry = |bytes: usize| (bytes as u64, bytes as u64);
        let (bytes, alignment) = entry(size_of::<ProducerHeader>());
        let producers_offset = part(
            "offset of producers",
            header.producers_offset,
            header.producers,
            bytes,
            alignment,
        )?;
        let (bytes, alignment) = entry(size_of::<BucketHeader>());
        let headers_offset = part(
            "offset of bucket headers",
            header.headers_offset,
            header.buckets,
            bytes,
            alignment,
        )?;
        let (bytes, alignment) = entry(size_of::<StepSlot>());
        let steps_offset = part(
            "offset of steps",
            header.steps_offset,
            header.steps_max,
            bytes,
            alignment,
        )?;
        let (bytes, alignment) = entry(size_of::<InterfaceSlot>());
        let interfaces_offset = part(
            "offset of interfaces",
            header.interfaces_offset,
            header.interfaces_max,
            bytes,
            alignment,
        )?;
        let buckets_offset = part(
            "offset of buckets",
            header.buckets_offset,
            header.buckets,
            header.bucket_bytes,
            DESCRIPTOR_BYTES as u64,
        )?;
        Ok(Self {
            region_bytes: count("size", header.region_bytes, u64::MAX)?,
            producers,
            buckets,
            bucket_bytes,
            interfaces_max,
            producers_offset,
            headers_offset,
            steps_max,
            steps_offset,
            interfaces_offset,
            buckets_offset,
        })
    }

    /// Where the header of a producer starts. Panics unless there is one.
    pub(super) fn producer(&self, id: usize) -> usize {
        assert!(id < self.producers);
        self.producers_offset + id * size_of::<ProducerHeader>()
    }

    /// Where the header of a bucket starts. Panics unless there is one.
    pub(super) fn header(&self, bucket: usize) -> usize {
        assert!(bucket < self.buckets);
        self.headers_offset + bucket * size_of::<BucketHeader>()
    }

    /// Where a bucket starts. Panics unless there is one.
    pub(super) fn bucket(&self, bucket: usize) -> usize {
        assert!(bucket < self.buckets);
        self.buckets_offset + bucket * self.bucket_bytes
    }

    /// Where the slot of a step starts. Panics unless there is one.
    pub(super) fn step(&self, slot: usize) -> usize {
        assert!(slot < self.steps_max);
        self.steps_offset + slot * size_of::<StepSlot>()
    }

    /// Where the slot of an interface starts. Panics unless there is one.
    pub(super) fn interface(&self, id: usize) -> usize {
        assert!(id < self.interfaces_max);
        self.interfaces_offset + id * size_of::<InterfaceSlot>()
    }
}

/// `None`: a number that this program does not know.
pub(super) fn pages(code: u64) -> Option<Pages> {
    match code {
        1 => Some(Pages::Small),
        2 => Some(Pages::Transparent),
        3 => Some(Pages::Explicit),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: RegionHeader = RegionHeader {
        magic: MAGIC,
        version: VERSION,
        region_bytes: 6 << 20,
        producers: 2,
        producers_offset: 4096,
        buckets: 3,
        headers_offset: 4096 + 256,
        bucket_bytes: 1 << 20,
        buckets_offset: 2 << 20,
        steps_offset: 4096 + 256 + 384,
        steps_max: 4,
        interfaces_offset: 4096 + 256 + 384 + 128,
        interfaces_max: ((2 << 20) - 4864) / 64, // up to the buckets
        created_ns: 0,
        boot_id: [0; 16],
        process: 1,
        pages: 1,
        created_mono_ns: 0,
        reserved: 0,
    };

    fn check(header: RegionHeader) -> Result<Layout, AttachError> {
        Layout::check(&header, 6 << 20, Path::new("ring"))
    }

    #[test]
    fn a_good_header_is_taken() {
        let layout = check(GOOD).unwrap();
        assert_eq!(layout.producer(1), 4096 + 128);
        assert_eq!(layout.header(2), 4096 + 256 + 256);
        assert_eq!(layout.step(1), 4096 + 256 + 384 + 32);
        assert_eq!(layout.interface(1), 4096 + 256 + 384 + 128 + 64);
        assert_eq!(layout.bucket(2), 4 << 20);
    }

    #[test]
    fn every_other_one_says_what_is_wrong() {
        let text = |header| check(header).unwrap_err().to_string();
        let swapped = RegionHeader {
            magic: MAGIC.swap_bytes(),
            ..GOOD
        };
        assert!(matches!(check(swapped), Err(AttachError::ByteOrder { .. })));
        let other = RegionHeader { magic: 5, ..GOOD };
        assert_eq!(text(other), "ring is not a ring of retroscope");
        let newer = RegionHeader { version: 9, ..GOOD };
        assert!(text(newer).contains("layout 9"));
        let unready = RegionHeader { version: 0, ..GOOD };
        assert!(matches!(check(unready), Err(AttachError::NotReady { .. })));
        let longer = RegionHeader {
            region_bytes: 8 << 20,
            ..GOOD
        };
        assert!(text(longer).contains("cut short: it has 6291456 bytes and needs 8388608"));
    }

    #[test]
    fn no_part_leaves_its_place() {
        let fields: [fn(&mut RegionHeader) -> &mut u64; 11] = [
            |h| &mut h.region_bytes,
            |h| &mut h.producers,
            |h| &mut h.producers_offset,
            |h| &mut h.buckets,
            |h| &mut h.headers_offset,
            |h| &mut h.bucket_bytes,
            |h| &mut h.buckets_offset,
            |h| &mut h.steps_offset,
            |h| &mut h.steps_max,
            |h| &mut h.interfaces_offset,
            |h| &mut h.interfaces_max,
        ];
        for (number, field) in fields.into_iter().enumerate() {
            for bad in [0, u64::MAX, u64::MAX / 128 + 1, 1 << 63] {
                let mut header = GOOD;
                *field(&mut header) = bad;
                assert!(check(header).is_err(), "field {number}: {bad}");
            }
            let mut header = GOOD;
            *field(&mut header) += 1;
            // A byte more to the region than it uses is refused by the length of the file only.
            let longer = Layout::check(&header, 7 << 20, Path::new("ring"));
            assert_eq!(longer.is_ok(), number == 0, "field {number}: one more");
        }
    }
}
