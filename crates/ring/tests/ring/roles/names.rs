//! The contents of a record, as a function of its name (round, producer, number), so that every
//! reader can check every record.
#![expect(
    clippy::cast_possible_truncation,
    reason = "hashes are cut to size; numbers of records are small"
)]

use std::{ops::Range, sync::LazyLock};

use fastrand::Rng;
use retroscope_ring::{Packet, Record};

/// Time between the records of a producer, without jitter. Unless `far_behind`, a record's time is
/// at least its number times `STEP_NS`.
pub(crate) const STEP_NS: i64 = 1000;
const JITTER_NS: u64 = 50_000;
/// More than the ± 2⁴⁷ ns from the base of the bucket that a compact descriptor can express.
const FAR_NS: i64 = 1 << 50;
/// The ring truncates longer captures to this length.
pub(crate) const CAPTURED_BYTES_MAX: usize = 256 << 10;
const LONGEST: usize = CAPTURED_BYTES_MAX + 1000;

static NOISE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut rng = Rng::with_seed(1);
    (0..1 << 20).map(|_| rng.u8(..)).collect()
});

/// Must be called before threads start: ThreadSanitizer does not see how a `LazyLock` hands over
/// its value.
pub(crate) fn prepare() {
    LazyLock::force(&NOISE);
}

/// The records of one round.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Names {
    pub(crate) seed: u64,
    /// Whether some stamps are far ahead, which requires the extended form of a descriptor.
    pub(crate) far_ahead: bool,
    /// Whether some stamps are far in the past. No producer may then promise a watermark.
    pub(crate) far_behind: bool,
    /// Records longer than an Ethernet frame, per 1000 records.
    pub(crate) long_per_mille: u64,
}

#[derive(Debug, Clone)]
pub(crate) struct Named {
    pub(crate) time_ns: i64,
    wire_len: u32,
    interface: u16,
    direction: u8,
    tag_restored: bool,
    shard: u8,
    noise: Range<usize>,
    cuts: [usize; 2],
}

impl Names {
    pub(crate) fn record(&self, producer: usize, number: u64) -> Named {
        let mut hash = Hash(self.name(producer, number));
        let length = self.length(hash.next(), hash.next() as usize);
        let start = hash.next() as usize % (NOISE.len() - LONGEST);
        let wire = hash.next();
        let interface = hash.next();
        let one = hash.next() as usize % (length + 1);
        let two = one + hash.next() as usize % (length - one + 1);
        // The ring stores records of one part by a shorter code path.
        let whole = !hash.next().is_multiple_of(4);
        Named {
            time_ns: self.time_ns(producer, number),
            wire_len: if wire.is_multiple_of(50) {
                wire as u32
            } else {
                length.min(65_535) as u32
            },
            interface: if interface.is_multiple_of(40) {
                255 + (interface >> 8) as u16 % 65_281
            } else {
                (interface >> 8) as u16 % 255
            },
            direction: (interface >> 32) as u8 % 3,
            tag_restored: interface >> 63 == 1,
            shard: (interface >> 40) as u8 % 32,
            noise: start..start + length,
            cuts: if whole { [length; 2] } else { [one, two] },
        }
    }

    /// Cheap enough for every record of a round.
    pub(crate) fn time_ns(&self, producer: usize, number: u64) -> i64 {
        let hash = Hash(self.name(producer, number) ^ 0x0071_3e5a).next();
        let near = number as i64 * STEP_NS + (hash >> 16) as i64 % JITTER_NS as i64;
        match hash % 64 {
            0 if self.far_ahead => near + FAR_NS,
            1 if self.far_behind => near - FAR_NS,
            _ => near,
        }
    }

    fn length(&self, kind: u64, length: usize) -> usize {
        let long = self.long_per_mille;
        match kind % 1000 {
            0..4 => 0,
            kind if kind < 4 + long / 8 => CAPTURED_BYTES_MAX - 20 + length % 1020,
            kind if kind < 4 + long => 1515 + length % 60_000,
            kind if kind % 2 == 0 => 1 + length % 200,
            _ => 1 + length % 1514,
        }
    }

    fn name(&self, producer: usize, number: u64) -> u64 {
        self.seed
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .wrapping_add(number.wrapping_mul(0xd134_2543_de82_ef95))
            ^ (producer as u64) << 56
    }
}

impl Named {
    pub(crate) fn record(&self) -> Record<'static> {
        let bytes = &NOISE[self.noise.clone()];
        let (one, rest) = bytes.split_at(self.cuts[0]);
        let (two, three) = rest.split_at(self.cuts[1] - self.cuts[0]);
        Record {
            time_ns: self.time_ns,
            wire_len: self.wire_len,
            interface: self.interface,
            direction: self.direction,
            tag_restored: self.tag_restored,
            shard: self.shard,
            parts: [one, two, three],
        }
    }

    /// The packet that the ring must return.
    pub(crate) fn packet(&self) -> Packet<'static> {
        let captured = self.noise.len().min(CAPTURED_BYTES_MAX);
        Packet {
            time_ns: self.time_ns,
            wire_len: self.wire_len,
            interface: self.interface,
            direction: self.direction,
            tag_restored: self.tag_restored,
            shard: self.shard,
            data: &NOISE[self.noise.start..self.noise.start + captured],
        }
    }

    pub(crate) fn captured(&self) -> usize {
        self.noise.len().min(CAPTURED_BYTES_MAX)
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.noise.len() > CAPTURED_BYTES_MAX
    }
}

/// SplitMix64 of Steele, Lea and Flood: good bits from any counter.
struct Hash(u64);

impl Hash {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
