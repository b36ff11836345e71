//! Reads the ring of another process, whether that process still runs or not, or a ring of this
//! process ([`Ring::attached`](crate::Ring::attached)).
//!
//! [`Attached::open`] maps a region read-only, so it cannot hold a bucket: a hold is a store. The
//! writer may therefore claim a closed bucket at any moment. [`Attached`] copies a bucket, and then
//! checks that the copied generation was still valid:
//!
//! 1. load the control word (Acquire, pairs with O in `Control::open`): state and generation;
//! 2. load the committed mark (Acquire, pairs with P1): records below the mark are written;
//! 3. copy descriptors and payload by relaxed loads;
//! 4. fence (Acquire, pairs with G, the fence in `Control::claim`), then load the control word
//!    again. If the generation differs, the copy is discarded as [`CopyError::Overwritten`].
//!
//! All data is foreign input: a header is checked against itself and the length of the file, and a
//! record against the size of the bucket and the previous record. `sys.rs` documents the remaining
//! risk: a file that its owner shortens at the wrong moment.
//!
//! ```
//! use retroscope_ring::{Attached, Backing, Buffer, Record, Ring, RingConfig};
//!
//! let config = RingConfig { backing: Backing::Memfd, ..RingConfig::new(16 << 20, 1, 1) };
//! let ring = Ring::new(&config, None)?;
//! let mut producer = ring.producer()?;
//! producer.store(&Record::whole(1_000, 0, b"a frame"))?;
//! producer.publish();
//!
//! // In another process:
//! let attached = Attached::open(&ring.path().expect("a memfd has one"))?;
//! let mut buffer = Buffer::new();
//! for bucket in attached.buckets()? {
//!     if bucket.packets > 0 {
//!         attached.copy_bucket(bucket.bucket, &mut buffer)?;
//!         assert_eq!(buffer.packets().next().map(|packet| packet.data), Some(&b"a frame"[..]));
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod buffer;
mod error;
mod sys;

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{Ordering, fence},
    },
};

pub use self::{
    buffer::Buffer,
    error::{AttachError, CopyError},
};

use self::{buffer::CopySource, sys::Mapped};
use crate::{
    BucketRef, InterfaceEntry, Pages, Step,
    config::Geometry,
    storage::{
        Storage, control,
        descriptor::DESCRIPTOR_BYTES,
        header::{
            BucketHeader, MONO_UNKNOWN, ProducerHeader, REGION_HEADER_BYTES, REGION_STATE_OFFSET,
            STATE_ENDED, STATE_UNREADY,
        },
        interfaces,
        layout::{HEADER_WORDS, Layout, MAGIC, RegionHeader, VERSION, boot_id},
        steps,
    },
};

/// How often a reader loads a header that changes meanwhile, before it reports the bucket as
/// claimed.
const ATTEMPTS: usize = 8;
/// 64-bit words of a [`BucketHeader`], in the order of its fields.
const BUCKET_WORDS: usize = std::mem::offset_of!(BucketHeader, closed_mono_ns) / 8 + 1;

/// A ring of this or another process, read-only. Any thread may call any method.
#[derive(Debug)]
pub struct Attached {
    mapped: Mapped,
    header: RegionHeader,
}

/// The self-description of a region.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegionInfo {
    /// Bytes of all buckets together.
    pub bytes: u64,
    /// Bytes of one bucket.
    pub bucket_bytes: usize,
    /// Number of buckets.
    pub buckets: usize,
    /// Number of producers that the ring allows.
    pub producers: usize,
    /// The pages that back the region. `None`: this program does not know the number in the header.
    pub pages: Option<Pages>,
    /// Time of creation, ns since the UNIX epoch. `None`: not recorded.
    pub created_ns: Option<i64>,
    /// Time of creation, ns of the monotonic clock of the boot that created the region. `None`: not
    /// recorded.
    pub created_mono_ns: Option<i64>,
    /// Process id of the creator, in the creator's PID namespace.
    pub process: u64,
    /// Whether the region was created in the current boot of this machine. `None`: unknown.
    pub this_boot: Option<bool>,
}

/// The state of the process that writes a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegionWriter {
    /// The process runs.
    Running,
    /// The process closed its ring properly.
    Ended,
    /// The process ended without closing its ring.
    Killed,
}

/// One producer of an attached ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct AttachedProducer {
    /// Records published.
    pub published: u64,
    /// Captured bytes of at least the published records.
    pub published_bytes: u64,
    /// The producer has promised to store no records before this ring time, ns. `None`: no promise
    /// yet.
    pub watermark_ns: Option<i64>,
    /// Time of the last publication, ns of the monotonic clock. `None`: not recorded.
    pub published_mono_ns: Option<i64>,
    /// Number after the producer's last overwritten record.
    pub evicted_records: u64,
    /// The largest ring time of the overwritten records, ns. `None`: no record was overwritten.
    pub evicted_ns: Option<i64>,
}

/// The state of a bucket of an attached ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttachedState {
    /// Never used.
    Free,
    /// Being claimed for new records: nothing is known about the bucket.
    Claimed,
    /// Not closed.
    Open,
    /// Gets no more records.
    Closed,
    /// The header contradicts itself.
    Damaged,
}

/// A snapshot of one bucket. Unless the bucket is open or closed, only `bucket` and `state` are
/// known, and the other numbers are 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct AttachedBucket {
    /// The bucket and its generation, for [`Attached::copy_bucket`].
    pub bucket: BucketRef,
    /// State of the bucket.
    pub state: AttachedState,
    /// Number of the bucket's producer.
    pub producer: usize,
    /// Number of the producer's earlier buckets.
    pub sequence: u64,
    /// Number of the first record, counted per producer.
    pub first: u64,
    /// Records that can be copied.
    pub packets: u64,
    /// Captured bytes of at least the records that can be copied.
    pub bytes: u64,
    /// Smallest and largest ring time of at least the records that can be copied, ns. `None`: no
    /// records.
    pub span_ns: Option<(i64, i64)>,
    /// Number of buckets that closed before this bucket. 0 unless the bucket is closed.
    pub closing: u64,
    /// Time of closing, ns of the monotonic clock. `None`: not recorded, or not closed.
    pub closed_mono_ns: Option<i64>,
}

impl Attached {
    /// Maps a ring's file, or `/proc/PID/fd/N` of a memfd ([`Ring::path`](crate::Ring::path)).
    ///
    /// # Errors
    /// [`AttachError`] says why the file cannot be read as a ring of this layout.
    pub fn open(path: &Path) -> Result<Self, AttachError> {
        let mapped = Mapped::open(path, REGION_HEADER_BYTES)?;
        // Acquire: pairs with the store in `Storage::new`. The state is loaded before the header,
        // so that the header of a ready region is complete.
        let state = mapped.load(REGION_STATE_OFFSET, Ordering::Acquire);
        let words = mapped.words(0);
        let header = check_header(&words, mapped.bytes(), path)?;
        if state == STATE_UNREADY {
            return Err(AttachError::NotReady(path.to_owned()));
        }
        Ok(Self { mapped, header })
    }

    /// A ring of this process. Keeps its memory alive.
    pub(crate) fn own(storage: &Arc<Storage>) -> Self {
        let mapped = Mapped::own(storage);
        let header = RegionHeader::from_words(&mapped.words(0));
        let header = header.expect("what this process wrote");
        Self { mapped, header }
    }

    /// The self-description of the region.
    #[must_use]
    pub fn info(&self) -> RegionInfo {
        let Geometry {
            buckets,
            bucket_bytes,
            producers,
        } = self.layout().geometry;
        let unknown = [0; 2];
        let (theirs, ours) = (self.header.boot_id, boot_id());
        RegionInfo {
            bytes: buckets as u64 * bucket_bytes as u64,
            bucket_bytes,
            buckets,
            producers,
            pages: self.header.pages(),
            created_ns: (self.header.created_ns != 0).then_some(self.header.created_ns),
            created_mono_ns: told(self.header.created_mono_ns.cast_unsigned()),
            process: self.header.process,
            this_boot: (theirs != unknown && ours != unknown).then(|| theirs == ours),
        }
    }

    /// The state of the writer, from the region's state and (for a file) the writer's lock.
    ///
    /// # Errors
    /// [`CopyError::Shrunk`].
    pub fn writer(&self) -> Result<RegionWriter, CopyError> {
        // Checks the lock first, because a ring stores that it ended before it releases the lock.
        let running = self.mapped.is_locked();
        let [state, ..] = self.state()?; // pairs with the store in `Storage::drop`
        Ok(match (state, running) {
            (STATE_ENDED, _) => RegionWriter::Ended,
            (_, true) => RegionWriter::Running,
            (_, false) => RegionWriter::Killed,
        })
    }

    /// The interfaces in the region's table, by number. A name of more than 54 bytes ends in `…`.
    /// The second value is the number of interfaces that did not fit the table.
    ///
    /// # Errors
    /// [`CopyError::Shrunk`].
    pub fn interfaces(&self) -> Result<(Vec<InterfaceEntry>, u64), CopyError> {
        let [_, count, unlisted, _] = self.state()?; // pairs with `Storage::list_interface`
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let slots = 0..count.min(self.layout().interfaces_max);
        // The count orders the slots, which are never written again.
        let listed =
            slots.map(|id| interfaces::decode(&self.mapped.words(self.layout().interface(id))));
        Ok((listed.collect(), unlisted))
    }

    /// The table of clock steps, for [`Step::stamp_ns`](crate::Step::stamp_ns). Load it after the
    /// buckets whose records need it.
    ///
    /// # Errors
    /// [`CopyError::Shrunk`].
    pub fn steps(&self) -> Result<Vec<Step>, CopyError> {
        self.whole()?;
        let read = |slot| {
            let offset = self.layout().step(slot);
            steps::read(|word, order| self.mapped.load(offset + word * 8, order))
        };
        Ok((0..steps::STEPS_MAX).filter_map(read).collect())
    }

    /// The latest closing time of the overwritten buckets, ns of the monotonic clock of the boot
    /// that created the region. 0: unknown. `None`: nothing was overwritten.
    ///
    /// # Errors
    /// [`CopyError::Shrunk`].
    pub fn whole_since_mono_ns(&self) -> Result<Option<i64>, CopyError> {
        let [_, _, _, ns] = self.state()?;
        Ok(Some(ns.cast_signed()).filter(|ns| *ns != i64::MIN))
    }

    /// All producers that the ring allows.
    ///
    /// # Errors
    /// [`CopyError::Shrunk`].
    pub fn producers(&self) -> Result<Vec<AttachedProducer>, CopyError> {
        self.whole()?;
        let read = |id| {
            let header = self.layout().producer(id);
            let watermark = header + std::mem::offset_of!(ProducerHeader, watermark_ns);
            // Acquire, pairs with T. The watermark is loaded before the other words, so that these
            // include all records before the watermark.
            let watermark_ns = self.mapped.load(watermark, Ordering::Acquire).cast_signed();
            // `published` pairs with P2, and orders the bytes, which may be newer.
            let [
                published,
                published_bytes,
                _,
                published_mono_ns,
                evicted_records,
                evicted_ns,
            ] = self.mapped.words(header);
            AttachedProducer {
                published,
                published_bytes,
                watermark_ns: Some(watermark_ns).filter(|ns| *ns != i64::MIN),
                published_mono_ns: told(published_mono_ns),
                evicted_records,
                evicted_ns: Some(evicted_ns.cast_signed()).filter(|ns| *ns != i64::MIN),
            }
        };
        Ok((0..self.layout().geometry.producers).map(read).collect())
    }

    /// All buckets, by index.
    ///
    /// # Errors
    /// [`CopyError::Shrunk`].
    pub fn buckets(&self) -> Result<Vec<AttachedBucket>, CopyError> {
        self.whole()?;
        Ok((0..self.layout().geometry.buckets)
            .map(|index| self.bucket(index))
            .collect())
    }

    /// Copies the committed records of a bucket. After an error `buffer` is empty.
    ///
    /// # Errors
    /// [`CopyError`] says why the bucket was not copied.
    pub fn copy_bucket(&self, bucket: BucketRef, buffer: &mut Buffer) -> Result<(), CopyError> {
        self.copy_bucket_from(bucket, 0, buffer)
    }

    /// As [`Attached::copy_bucket`], without the first `skip` records.
    ///
    /// # Errors
    /// The errors of [`Attached::copy_bucket`].
    pub fn copy_bucket_from(
        &self,
        bucket: BucketRef,
        skip: u64,
        buffer: &mut Buffer,
    ) -> Result<(), CopyError> {
        buffer.clear();
        self.whole()?;
        let Geometry {
            buckets,
            bucket_bytes,
            ..
        } = self.layout().geometry;
        let index = bucket.index as usize;
        if index >= buckets {
            return Err(CopyError::Damaged {
                bucket,
                what: "the ring has no such bucket",
            });
        }
        let _hold = self.mapped.hold(bucket)?;
        let [control, committed, _, _, _, _, base_ns, ..] = self.bucket_words(index);
        if !is_readable(control, bucket) {
            return Err(CopyError::Overwritten(bucket));
        }
        let source = Bucket {
            mapped: &self.mapped,
            offset: self.layout().bucket(index),
            bytes: bucket_bytes,
        };
        let filled = buffer.fill(
            &source,
            bucket,
            skip..committed,
            bucket_bytes,
            base_ns.cast_signed(),
        );
        // G: Acquire, pairs with the fence in Control::claim(): if any load above saw a byte of a
        // later generation, the load below sees that generation.
        fence(Ordering::Acquire);
        let result = if is_readable(self.control(index), bucket) {
            filled
        } else {
            Err(CopyError::Overwritten(bucket))
        };
        match result {
            Ok(()) => buffer.confirm(bucket),
            Err(_) => buffer.clear(),
        }
        result
    }

    /// The header of a bucket, all of one generation.
    fn bucket(&self, index: usize) -> AttachedBucket {
        for _ in 0..ATTEMPTS {
            let words = self.bucket_words(index);
            let entry = self.entry(index, control::decode(words[0]), &words);
            fence(Ordering::Acquire); // G, as in copy_bucket()
            let (_, generation) = control::decode(self.control(index));
            if generation == entry.bucket.generation {
                return entry;
            }
        }
        let (_, generation) = control::decode(self.control(index)); // perhaps outdated
        self.entry(
            index,
            (AttachedState::Claimed, generation),
            &[0; BUCKET_WORDS],
        )
    }

    fn entry(
        &self,
        index: usize,
        (state, generation): (AttachedState, u64),
        words: &[u64; BUCKET_WORDS],
    ) -> AttachedBucket {
        let [
            _control,
            packets,
            bytes,
            min_ns,
            max_ns,
            _next,
            _base_ns,
            producer,
            sequence,
            first,
            _first_bytes,
            closing,
            closed_mono_ns,
        ] = *words;
        let Geometry {
            producers,
            bucket_bytes,
            ..
        } = self.layout().geometry;
        let is_used = matches!(state, AttachedState::Open | AttachedState::Closed);
        let span_ns = (min_ns.cast_signed(), max_ns.cast_signed());
        let is_sound = packets <= (bucket_bytes / DESCRIPTOR_BYTES) as u64
            && producer < producers as u64
            && (packets == 0 || span_ns.0 <= span_ns.1);
        let number = |value| if is_used && is_sound { value } else { 0 };
        AttachedBucket {
            bucket: BucketRef {
                index: u32::try_from(index).unwrap_or(u32::MAX), // at most 65,535 buckets
                generation,
            },
            state: if is_used && !is_sound {
                AttachedState::Damaged
            } else {
                state
            },
            producer: usize::try_from(number(producer)).expect("below their number"),
            sequence: number(sequence),
            first: number(first),
            packets: number(packets),
            bytes: number(bytes),
            span_ns: (number(packets) > 0).then_some(span_ns),
            closing: if state == AttachedState::Closed {
                number(closing)
            } else {
                0
            },
            closed_mono_ns: match state {
                AttachedState::Closed => told(number(closed_mono_ns)),
                _ => None,
            },
        }
    }

    fn layout(&self) -> &Layout {
        &self.header.layout
    }

    /// The words of a [`BucketHeader`], loaded in their order: the control word (Acquire, pairs
    /// with O), the committed mark (Acquire, pairs with P1), and the words that these order.
    fn bucket_words(&self, index: usize) -> [u64; BUCKET_WORDS] {
        self.mapped.words(self.layout().bucket_header(index))
    }

    /// The control word of a bucket. The caller has run a fence.
    fn control(&self, index: usize) -> u64 {
        let header = self.layout().bucket_header(index);
        self.mapped.load(header, Ordering::Relaxed)
    }

    /// The words of `RegionState`, in their order.
    fn state(&self) -> Result<[u64; 4], CopyError> {
        self.whole()?;
        Ok(self.mapped.words(REGION_STATE_OFFSET))
    }

    fn whole(&self) -> Result<(), CopyError> {
        if self.mapped.still_whole() {
            Ok(())
        } else {
            Err(CopyError::Shrunk)
        }
    }
}

fn check_header(
    words: &[u64; HEADER_WORDS],
    file_bytes: usize,
    path: &Path,
) -> Result<RegionHeader, AttachError> {
    let path = path.to_owned();
    let [magic, version, region_bytes, ..] = *words;
    if magic == MAGIC.swap_bytes() {
        return Err(AttachError::ByteOrder(path));
    }
    if magic != MAGIC {
        return Err(AttachError::NotARing(path));
    }
    if version == 0 {
        return Err(AttachError::NotReady(path));
    }
    if version != VERSION {
        let found = version;
        return Err(AttachError::Version { path, found });
    }
    if region_bytes > file_bytes as u64 {
        return Err(AttachError::Truncated {
            path,
            bytes: file_bytes as u64,
            needed: region_bytes,
        });
    }
    RegionHeader::from_words(words).map_err(|(field, value)| AttachError::Header {
        path,
        field,
        value,
    })
}

fn is_readable(control: u64, bucket: BucketRef) -> bool {
    let (state, generation) = control::decode(control);
    matches!(state, AttachedState::Open | AttachedState::Closed) && generation == bucket.generation
}

/// A time of the monotonic clock, if recorded.
fn told(mono_ns: u64) -> Option<i64> {
    Some(mono_ns.cast_signed()).filter(|ns| *ns != MONO_UNKNOWN)
}

struct Bucket<'m> {
    mapped: &'m Mapped,
    offset: usize,
    bytes: usize,
}

impl CopySource for Bucket<'_> {
    fn descriptor(&self, index: usize) -> [u64; 2] {
        let start = self.offset + self.bytes - DESCRIPTOR_BYTES * (index + 1);
        [0, 8].map(|word| self.mapped.load(start + word, Ordering::Relaxed)) // ordered by the fence
    }

    fn payload(&self, offset: usize, out: &mut [u8]) {
        assert!(offset + out.len() <= self.bytes);
        self.mapped.copy(self.offset + offset, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RingConfig;

    #[test]
    fn a_header_that_cannot_be_says_why() {
        let geometry = Geometry {
            producers: 2,
            buckets: 3,
            bucket_bytes: 1 << 20,
        };
        let layout = Layout::new(geometry);
        let good = RegionHeader::new(layout, &RingConfig::new(0, 0, 0), Pages::Small);
        let check = |word: usize, value| {
            let mut words = good.words();
            words[word] = value;
            check_header(&words, 6 << 20, Path::new("ring"))
        };
        assert_eq!(check(1, VERSION).unwrap(), good);
        let swapped = check(0, MAGIC.swap_bytes());
        assert!(matches!(swapped, Err(AttachError::ByteOrder(_))));
        assert!(matches!(check(0, 5), Err(AttachError::NotARing(_))));
        assert!(matches!(check(1, 0), Err(AttachError::NotReady(_))));
        for found in [VERSION - 1, VERSION + 1] {
            let told = check(1, found).unwrap_err().to_string();
            assert!(told.contains(&format!("has layout {found}, ")), "{told}");
        }
        let longer = check(2, 8 << 20);
        assert!(matches!(longer, Err(AttachError::Truncated { .. })));
        let other = check(16, 8);
        let is_told = |field: &str, value| (field, value) == ("offset of steps", 8);
        assert!(
            matches!(other, Err(AttachError::Header { field, value, .. }) if is_told(field, value))
        );
    }
}
