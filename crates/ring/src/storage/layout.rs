//! Where things stand in a region, and making its headers. `header.rs` draws it.
#![expect(unsafe_code, reason = "points into the region")]

use super::{
    ALIGNMENT, INTERFACES_MAX, Memory,
    header::{
        BucketHeader, INTERFACES_MIN, MAGIC, ProducerHeader, REGION_HEADER_BYTES,
        REGION_STATE_OFFSET, RegionHeader, RegionState, VERSION,
    },
    interfaces::InterfaceSlot,
    steps::{STEPS_MAX, StepSlot},
    table::Table,
};
use crate::{Pages, RingConfig, config::Geometry};

/// Offsets in a region, bytes, in rising order.
#[derive(Debug, Clone, Copy)]
pub(super) struct Offsets {
    producers: usize,
    headers: usize,
    steps: usize,
    interfaces: usize,
    pub(super) buckets: usize,
    pub(super) end: usize,
    /// Number of slots for interfaces.
    interfaces_max: usize,
}

impl Offsets {
    pub(super) fn new(geometry: Geometry) -> Self {
        let producers = REGION_HEADER_BYTES;
        let headers = producers + geometry.producers * size_of::<ProducerHeader>();
        let steps = headers + geometry.buckets * size_of::<BucketHeader>();
        let interfaces = steps + STEPS_MAX * size_of::<StepSlot>();
        // Under loom the tables stand on the heap.
        let buckets = if cfg!(loom) {
            0
        } else {
            let least = INTERFACES_MIN * size_of::<InterfaceSlot>();
            (interfaces + least).next_multiple_of(ALIGNMENT)
        };
        let left = buckets.saturating_sub(interfaces) / size_of::<InterfaceSlot>();
        let end = (buckets + geometry.buckets * geometry.bucket_bytes).next_multiple_of(ALIGNMENT);
        Self {
            producers,
            headers,
            steps,
            interfaces,
            buckets,
            end,
            interfaces_max: left.min(INTERFACES_MAX),
        }
    }
}

/// The headers of a region.
pub(super) struct Tables {
    /// One entry.
    pub(super) state: Table<RegionState>,
    pub(super) producers: Table<ProducerHeader>,
    pub(super) buckets: Table<BucketHeader>,
    pub(super) interfaces: Table<InterfaceSlot>,
    pub(super) steps: Table<StepSlot>,
}

impl Tables {
    /// Lays them out: in the mapping, with the region's description in front, or on the heap. The memory is zeroed (but
    /// for the magic, which stays what it is) and known to nobody else who writes.
    pub(super) fn new(
        memory: &Memory,
        geometry: Geometry,
        offsets: &Offsets,
        config: &RingConfig,
        pages: Pages,
    ) -> Self {
        let Geometry {
            producers, buckets, ..
        } = geometry;
        if cfg!(loom) {
            return Self {
                state: Table::on_heap(1, RegionState::new),
                producers: Table::on_heap(producers, ProducerHeader::new),
                buckets: Table::on_heap(buckets, BucketHeader::new),
                interfaces: Table::on_heap(0, || unreachable!("none")),
                steps: Table::on_heap(STEPS_MAX, StepSlot::new),
            };
        }
        let header = RegionHeader {
            magic: MAGIC,
            version: VERSION,
            region_bytes: offsets.end as u64,
            producers: producers as u64,
            producers_offset: offsets.producers as u64,
            buckets: buckets as u64,
            headers_offset: offsets.headers as u64,
            bucket_bytes: geometry.bucket_bytes as u64,
            buckets_offset: offsets.buckets as u64,
            interfaces_offset: offsets.interfaces as u64,
            interfaces_max: offsets.interfaces_max as u64,
            created_ns: config.created_ns,
            boot_id: boot_id(),
            process: u64::from(std::process::id()),
            pages: match pages {
                Pages::Small => 1,
                Pages::Transparent => 2,
                Pages::Explicit => 3,
            },
            steps_offset: offsets.steps as u64,
            steps_max: STEPS_MAX as u64,
            created_mono_ns: config.created_mono_ns,
            reserved: 0,
        };
        let at = |offset: usize| {
            assert!(offset < offsets.end);
            // SAFETY: inside the region, as asserted.
            unsafe { memory.base().add(offset) }
        };
        // SAFETY: the region is aligned to more than the header needs, larger than it, and written by nobody else.
        unsafe { at(0).cast::<RegionHeader>().write(header) };
        // In the five tables: `Storage` keeps the memory as long as the tables and gives no other access to these bytes.
        // Offsets are multiples of 128, and rise by at least what the table before them takes.
        // SAFETY: the state fits in between the header and the producers.
        let state =
            unsafe { Table::in_region(at(REGION_STATE_OFFSET).cast(), 1, RegionState::new) };
        let first = at(offsets.producers).cast();
        // SAFETY: `producers` headers fit before `offsets.headers`.
        let producers = unsafe { Table::in_region(first, producers, ProducerHeader::new) };
        let first = at(offsets.headers).cast();
        // SAFETY: `buckets` headers fit before `offsets.steps`.
        let buckets = unsafe { Table::in_region(first, buckets, BucketHeader::new) };
        let first = at(offsets.steps).cast();
        // SAFETY: `STEPS_MAX` slots fit before `offsets.interfaces`.
        let steps = unsafe { Table::in_region(first, STEPS_MAX, StepSlot::new) };
        let first = at(offsets.interfaces).cast();
        // SAFETY: `interfaces_max` slots fit before `offsets.buckets`; slots are integers, in memory that is zeroed.
        let interfaces = unsafe { Table::zeroed_in_region(first, offsets.interfaces_max) };
        Self {
            state,
            producers,
            buckets,
            interfaces,
            steps,
        }
    }
}

/// Tells this start of the machine from every other; zeros if it cannot be read. See random(4).
pub(crate) fn boot_id() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    parse_boot_id(&text).unwrap_or_default()
}

/// `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`, in hexadecimal digits.
fn parse_boot_id(text: &str) -> Option<[u8; 16]> {
    let digits: Vec<u8> = text
        .trim()
        .chars()
        .filter(|&c| c != '-')
        .map(|c| c.to_digit(16).and_then(|digit| u8::try_from(digit).ok()))
        .collect::<Option<_>>()?;
    let mut id = [0; 16];
    if digits.len() != 2 * id.len() {
        return None;
    }
    for (byte, pair) in id.iter_mut().zip(digits.as_chunks::<2>().0) {
        *byte = (pair[0] << 4) | pair[1];
    }
    Some(id)
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::{super::Storage, *};

    #[test]
    fn the_region_describes_itself() {
        let geometry = Geometry {
            buckets: 3,
            bucket_bytes: 1 << 20,
            producers: 2,
        };
        let config = RingConfig {
            created_ns: -7,
            created_mono_ns: 9,
            ..RingConfig::new(0, 0, 0)
        };
        let (storage, placement) = Storage::new(geometry, &config, None).unwrap();
        // SAFETY: written by `Storage::new`, never again.
        let header = unsafe { storage.memory.base().cast::<RegionHeader>().read() };
        let steps_offset = 4096 + 2 * 128 + 3 * 128;
        let interfaces_offset = steps_offset + 1024 * 32;
        let expected = RegionHeader {
            magic: u64::from_be_bytes(*b"retroQQ\x01"),
            version: 3,
            region_bytes: 6 << 20,
            producers: 2,
            producers_offset: 4096,
            buckets: 3,
            headers_offset: 4096 + 2 * 128,
            bucket_bytes: 1 << 20,
            buckets_offset: 2 << 20,
            interfaces_offset,
            interfaces_max: ((2 << 20) - interfaces_offset) / 64,
            created_ns: -7,
            boot_id: boot_id(),
            process: u64::from(std::process::id()),
            pages: match placement.pages {
                Pages::Small => 1,
                Pages::Transparent => 2,
                Pages::Explicit => 3,
            },
            steps_offset,
            steps_max: 1024,
            created_mono_ns: 9,
            reserved: 0,
        };
        assert_eq!(header, expected);
        // SAFETY: as above; the header is 20 words.
        let words = unsafe { storage.memory.base().cast::<[u64; 20]>().read() };
        assert_eq!(RegionHeader::from_words(&words), expected);
        let offset = |address: usize| address - storage.memory.base().addr().get();
        assert_eq!(
            offset(std::ptr::from_ref(storage.bucket(1)).addr()),
            4096 + 3 * 128
        );
        assert_eq!(offset(std::ptr::from_ref(&storage.state[0]).addr()), 1024);
        assert_eq!(
            offset(storage.interfaces.as_ptr().addr()) as u64,
            interfaces_offset
        );
        assert_eq!(offset(storage.steps.as_ptr().addr()) as u64, steps_offset);
    }

    #[test]
    fn the_table_of_interfaces_takes_what_is_left() {
        let offsets = |buckets, producers| {
            Offsets::new(Geometry {
                buckets,
                bucket_bytes: 2 << 20,
                producers,
            })
        };
        let small = offsets(8, 1);
        assert_eq!(small.buckets, 2 << 20);
        let before = 4096 + 9 * 128 + 1024 * 32;
        assert_eq!(small.interfaces_max, ((2 << 20) - before) / 64);
        for (buckets, producers) in [(16_000, 300), (16_300, 4), (65_535, 16_383), (4096, 1)] {
            let cut = offsets(buckets, producers);
            assert!((INTERFACES_MIN..=INTERFACES_MAX).contains(&cut.interfaces_max));
            assert!(cut.interfaces + cut.interfaces_max * 64 <= cut.buckets);
            assert!(cut.interfaces + INTERFACES_MIN * 64 + ALIGNMENT > cut.buckets);
        }
    }

    #[test]
    fn a_boot_id_is_sixteen_bytes() {
        let id = parse_boot_id("01234567-89ab-cdef-0123-456789abcdef\n").unwrap();
        assert_eq!(id[..8], [0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef]);
        for bad in ["", "0123", "01234567-89ab-cdef-0123-456789abcdeg"] {
            assert_eq!(parse_boot_id(bad), None, "{bad}");
        }
    }
}
