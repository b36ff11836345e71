//! The offsets in a region, and the header that contains the offsets. `header.rs` shows the layout.
//!
//! A reader of another process trusts no offset: it computes all offsets again from three counts,
//! and accepts a header only if every computed field matches.
#![expect(unsafe_code, reason = "points into the region")]

#[cfg(not(loom))]
use super::RegionMemory;
use super::{
    ALIGNMENT, INTERFACES_MAX, Table,
    header::{
        BucketHeader, INTERFACES_MIN, ProducerHeader, REGION_HEADER_BYTES, REGION_STATE_OFFSET,
        RegionState,
    },
    interfaces::InterfaceSlot,
    steps::{STEPS_MAX, StepSlot},
};
use crate::{Pages, RingConfig, config::Geometry};
#[cfg(not(loom))]
use crate::{
    config::{BUCKET_BYTES_MAX, BUCKETS_MAX, BUCKETS_PER_PARTY},
    storage::descriptor::DESCRIPTOR_BYTES,
};

/// "retroQQ" and a 1 for this kind of header. Also shows the byte order.
pub(crate) const MAGIC: u64 = u64::from_be_bytes(*b"retroQQ\x01");
/// Must change whenever a byte of the region changes its meaning or its offset, as must the readers
/// in `readers/`.
pub(crate) const VERSION: u64 = 4;
/// 64-bit words of a [`RegionHeader`].
pub(crate) const HEADER_WORDS: usize = 20;

/// Names of the three header fields that determine the rest of the layout: this constant and the
/// next two.
const PRODUCERS: &str = "number of producers";
const BUCKETS: &str = "number of buckets";
const BUCKET_BYTES: &str = "size of a bucket";

/// The pages that a header can name, numbered from 1.
const PAGES: [Pages; 3] = [Pages::Small, Pages::Transparent, Pages::Explicit];

// No valid number of buckets and bytes leads to an offset that overflows.
const _: () = assert!(usize::BITS == 64);

/// Offsets in a region, bytes, and numbers of entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) geometry: Geometry,
    producers: usize,
    buckets: usize,
    steps: usize,
    interfaces: usize,
    /// Start of bucket 0, not of its header.
    pub(crate) first_bucket: usize,
    pub(crate) end: usize,
    pub(crate) interfaces_max: usize,
}

/// The self-description of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RegionHeader {
    pub(crate) layout: Layout,
    /// Time of creation, ns since the UNIX epoch; 0 is unknown.
    pub(crate) created_ns: i64,
    /// Time of creation, ns of the monotonic clock; 0 is unknown.
    pub(crate) created_mono_ns: i64,
    /// The boot of the machine that created the region ([`boot_id`]).
    pub(crate) boot_id: [u64; 2],
    /// Process id of the creator, in its PID namespace.
    pub(crate) process: u64,
    /// Index into [`PAGES`], from 1 on.
    pages: u64,
}

impl Layout {
    pub(crate) fn new(geometry: Geometry) -> Self {
        let producers = REGION_HEADER_BYTES;
        let buckets = producers + geometry.producers * size_of::<ProducerHeader>();
        let steps = buckets + geometry.buckets * size_of::<BucketHeader>();
        let interfaces = steps + STEPS_MAX * size_of::<StepSlot>();
        let first_bucket = if cfg!(loom) {
            0
        } else {
            let least = INTERFACES_MIN * size_of::<InterfaceSlot>();
            (interfaces + least).next_multiple_of(ALIGNMENT)
        };
        let left = first_bucket.saturating_sub(interfaces) / size_of::<InterfaceSlot>();
        let bytes = geometry.buckets * geometry.bucket_bytes;
        Self {
            geometry,
            producers,
            buckets,
            steps,
            interfaces,
            first_bucket,
            end: (first_bucket + bytes).next_multiple_of(ALIGNMENT),
            interfaces_max: left.min(INTERFACES_MAX),
        }
    }
}

/// Offsets of entries. All methods panic if the entry does not exist.
#[cfg(not(loom))]
impl Layout {
    pub(crate) fn producer(&self, id: usize) -> usize {
        assert!(id < self.geometry.producers);
        self.producers + id * size_of::<ProducerHeader>()
    }

    pub(crate) fn bucket_header(&self, bucket: usize) -> usize {
        assert!(bucket < self.geometry.buckets);
        self.buckets + bucket * size_of::<BucketHeader>()
    }

    pub(crate) fn bucket(&self, bucket: usize) -> usize {
        assert!(bucket < self.geometry.buckets);
        self.first_bucket + bucket * self.geometry.bucket_bytes
    }

    pub(crate) fn step(&self, slot: usize) -> usize {
        assert!(slot < STEPS_MAX);
        self.steps + slot * size_of::<StepSlot>()
    }

    pub(crate) fn interface(&self, id: usize) -> usize {
        assert!(id < self.interfaces_max);
        self.interfaces + id * size_of::<InterfaceSlot>()
    }
}

impl RegionHeader {
    pub(crate) fn new(layout: Layout, config: &RingConfig, pages: Pages) -> Self {
        let number = PAGES.iter().position(|one| *one == pages);
        Self {
            layout,
            created_ns: config.created_ns,
            created_mono_ns: config.created_mono_ns,
            boot_id: boot_id(),
            process: u64::from(std::process::id()),
            pages: number.map_or(0, |number| number as u64 + 1),
        }
    }

    /// `None`: this program does not know the number.
    pub(crate) fn pages(&self) -> Option<Pages> {
        let number = usize::try_from(self.pages).ok()?.checked_sub(1)?;
        PAGES.get(number).copied()
    }

    pub(crate) fn words(&self) -> [u64; HEADER_WORDS] {
        self.fields().map(|(_, word)| word)
    }

    /// The words in their order, each with its name for users.
    fn fields(&self) -> [(&'static str, u64); HEADER_WORDS] {
        let layout = &self.layout;
        let geometry = &layout.geometry;
        let [boot_id_start, boot_id_end] = self.boot_id;
        [
            ("magic", MAGIC),
            ("layout", VERSION),
            ("size", layout.end as u64),
            (PRODUCERS, geometry.producers as u64),
            ("offset of producers", layout.producers as u64),
            (BUCKETS, geometry.buckets as u64),
            ("offset of bucket headers", layout.buckets as u64),
            (BUCKET_BYTES, geometry.bucket_bytes as u64),
            ("offset of buckets", layout.first_bucket as u64),
            ("offset of interfaces", layout.interfaces as u64),
            ("number of interfaces", layout.interfaces_max as u64),
            ("time of creation", self.created_ns.cast_unsigned()),
            ("boot id", boot_id_start),
            ("boot id", boot_id_end),
            ("process", self.process),
            ("pages", self.pages),
            ("offset of steps", layout.steps as u64),
            ("number of steps", STEPS_MAX as u64),
            ("time of creation", self.created_mono_ns.cast_unsigned()),
            ("nothing yet", 0),
        ]
    }

    /// Decodes words of an attached region, whatever their value. `Err`: the name of an invalid
    /// field, and its value.
    #[cfg(not(loom))]
    pub(crate) fn from_words(words: &[u64; HEADER_WORDS]) -> Result<Self, (&'static str, u64)> {
        let count = |name, word: u64, max: usize| match usize::try_from(word) {
            Ok(count) if (1..=max).contains(&count) => Ok(count),
            _ => Err((name, word)),
        };
        let geometry = Geometry {
            producers: count(PRODUCERS, words[3], BUCKETS_MAX / BUCKETS_PER_PARTY)?,
            buckets: count(BUCKETS, words[5], BUCKETS_MAX)?,
            bucket_bytes: count(BUCKET_BYTES, words[7], BUCKET_BYTES_MAX)?,
        };
        if !geometry.bucket_bytes.is_multiple_of(DESCRIPTOR_BYTES) {
            return Err((BUCKET_BYTES, words[7]));
        }
        let header = Self {
            layout: Layout::new(geometry),
            created_ns: words[11].cast_signed(),
            created_mono_ns: words[18].cast_signed(),
            boot_id: [words[12], words[13]],
            process: words[14],
            pages: words[15],
        };
        let used = &header.fields()[..HEADER_WORDS - 1];
        match used
            .iter()
            .zip(words)
            .find(|((_, right), word)| right != *word)
        {
            Some((&(name, _), &word)) => Err((name, word)),
            None => Ok(header),
        }
    }
}

#[derive(Debug)]
pub(super) struct Tables {
    /// A table of one entry.
    pub(super) state: Table<RegionState>,
    pub(super) producers: Table<ProducerHeader>,
    pub(super) buckets: Table<BucketHeader>,
    pub(super) steps: Table<StepSlot>,
    pub(super) interfaces: Table<InterfaceSlot>,
}

#[cfg(not(loom))]
impl Tables {
    /// Places the tables in the memory, with the header in front. The memory must be zeroed,
    /// perhaps except the magic, and nobody else may write to it.
    pub(super) fn new(memory: &RegionMemory, header: &RegionHeader) -> Self {
        let layout = &header.layout;
        let at = |offset: usize| {
            assert!(offset < layout.end);
            // SAFETY: inside the region, as asserted.
            unsafe { memory.base().add(offset) }
        };
        // SAFETY: the alignment of the region suffices for words, the region is larger than the
        // header, and nobody else writes to the memory.
        unsafe { at(0).cast().write(header.words()) };
        let Geometry {
            producers, buckets, ..
        } = layout.geometry;
        // For the five tables: `Storage` keeps the memory as long as the tables. Other code only
        // loads these bytes, atomically (`attach/`). Offsets are multiples of 128, and each table
        // ends before the next offset. Entries are integers.
        Self {
            // SAFETY: the state fits in between the header and the producers.
            state: unsafe { Table::new(at(REGION_STATE_OFFSET).cast(), 1) },
            // SAFETY: `producers` headers fit before those of buckets.
            producers: unsafe { Table::new(at(layout.producers).cast(), producers) },
            // SAFETY: `buckets` headers fit before the steps.
            buckets: unsafe { Table::new(at(layout.buckets).cast(), buckets) },
            // SAFETY: `STEPS_MAX` slots fit before the interfaces.
            steps: unsafe { Table::new(at(layout.steps).cast(), STEPS_MAX) },
            // SAFETY: `interfaces_max` slots fit before the buckets.
            interfaces: unsafe { Table::new(at(layout.interfaces).cast(), layout.interfaces_max) },
        }
    }
}

/// Identifies the current boot of the machine (random(4)). Zeros if the file cannot be read or
/// parsed.
pub(crate) fn boot_id() -> [u64; 2] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    parse_boot_id(&text).unwrap_or_default()
}

fn parse_boot_id(text: &str) -> Option<[u64; 2]> {
    let digits = text.trim().replace('-', "");
    let (start, end) = digits.split_at_checked(16)?;
    let word = |digits: &str| {
        let is_number = digits.len() == 16 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        let number = is_number.then(|| u64::from_str_radix(digits, 16).ok())?;
        number.map(|number| u64::from_ne_bytes(number.to_be_bytes()))
    };
    Some([word(start)?, word(end)?])
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::{super::Storage, *};

    const GEOMETRY: Geometry = Geometry {
        buckets: 3,
        bucket_bytes: 1 << 20,
        producers: 2,
    };

    #[test]
    fn the_region_describes_itself() {
        let config = RingConfig {
            created_ns: -7,
            created_mono_ns: 9,
            ..RingConfig::new(0, 0, 0)
        };
        let (storage, obtained) = Storage::new(GEOMETRY, &config, None).unwrap();
        // SAFETY: written by `Storage::new`, never again.
        let words = unsafe { storage.memory.base().cast::<[u64; 20]>().read() };
        let steps_offset = 4096 + 2 * 128 + 3 * 128;
        let interfaces_offset = steps_offset + 1024 * 32;
        let [boot_id_start, boot_id_end] = boot_id();
        let expected = [
            u64::from_be_bytes(*b"retroQQ\x01"),
            4,
            6 << 20,
            2,
            4096,
            3,
            4096 + 2 * 128,
            1 << 20,
            2 << 20,
            interfaces_offset,
            ((2 << 20) - interfaces_offset) / 64,
            u64::MAX - 6,
            boot_id_start,
            boot_id_end,
            u64::from(std::process::id()),
            match obtained.pages {
                Pages::Small => 1,
                Pages::Transparent => 2,
                Pages::Explicit => 3,
            },
            steps_offset,
            1024,
            9,
            0,
        ];
        assert_eq!(words, expected);
        let header = RegionHeader::from_words(&words).unwrap();
        assert_eq!(header.pages(), Some(obtained.pages));
        let layout = header.layout;
        let offset = |address: usize| address - storage.memory.base().addr().get();
        let bucket_header = offset(std::ptr::from_ref(storage.bucket(1)).addr());
        assert_eq!(bucket_header, layout.bucket_header(1));
        let producer = offset(std::ptr::from_ref(storage.producer(1)).addr());
        assert_eq!(producer, layout.producer(1));
        assert_eq!(
            offset(std::ptr::from_ref(&storage.tables.state[0]).addr()),
            1024
        );
        let interface = offset(std::ptr::from_ref(&storage.tables.interfaces[1]).addr());
        assert_eq!(interface, layout.interface(1));
        let step = offset(std::ptr::from_ref(storage.step(1)).addr());
        assert_eq!(step, layout.step(1));
        assert_eq!(layout.bucket(2), 4 << 20);
    }

    #[test]
    fn only_one_layout_of_a_geometry_is_believed() {
        let layout = Layout::new(GEOMETRY);
        let good = RegionHeader::new(layout, &RingConfig::new(0, 0, 0), Pages::Small);
        assert_eq!(RegionHeader::from_words(&good.words()), Ok(good));
        let is_free = |word: usize| [11, 12, 13, 14, 15, 18, 19].contains(&word);
        for word in 0..HEADER_WORDS {
            let right = good.words()[word];
            for other in [0, 1, right + 1, u64::MAX, u64::MAX / 128 + 1, 1 << 63] {
                let mut words = good.words();
                words[word] = other;
                let is_taken = RegionHeader::from_words(&words).is_ok();
                assert_eq!(is_taken, other == right || is_free(word), "{word}: {other}");
            }
        }
    }

    #[test]
    fn the_table_of_interfaces_takes_what_is_left() {
        let layout = |buckets, producers| {
            Layout::new(Geometry {
                buckets,
                bucket_bytes: 2 << 20,
                producers,
            })
        };
        let small = layout(8, 1);
        assert_eq!(small.first_bucket, 2 << 20);
        let before = 4096 + 9 * 128 + 1024 * 32;
        assert_eq!(small.interfaces_max, ((2 << 20) - before) / 64);
        for (buckets, producers) in [(16_000, 300), (16_300, 4), (65_535, 16_383), (4096, 1)] {
            let cut = layout(buckets, producers);
            assert!((INTERFACES_MIN..=INTERFACES_MAX).contains(&cut.interfaces_max));
            assert!(cut.interfaces + cut.interfaces_max * 64 <= cut.first_bucket);
            assert!(cut.interfaces + INTERFACES_MIN * 64 + ALIGNMENT > cut.first_bucket);
        }
    }

    #[test]
    fn a_boot_id_is_sixteen_bytes() {
        let id = parse_boot_id("01234567-89ab-cdef-0123-456789abcdef\n").unwrap();
        let bytes = id[0].to_ne_bytes();
        assert_eq!(bytes, [0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef]);
        for bad in [
            "",
            "0123",
            "01234567-89ab-cdef-0123-456789abcdeg",
            "+1234567-89ab-cdef-0123-456789abcdef",
        ] {
            assert_eq!(parse_boot_id(bad), None, "{bad}");
        }
    }
}
