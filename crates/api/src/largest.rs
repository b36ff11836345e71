//! The largest of very many, in bounded memory.

use std::{collections::HashMap, hash::Hash};

/// Things that are told apart at once.
const TRACKED_MAX: usize = 65_536;

/// Packets, and their bytes on the wire: those of all, and those that one end sent where it has ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Volume {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    pub(crate) sent_bytes: u64,
}

/// By what they are compared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LargestBy {
    /// Bytes on the wire.
    #[default]
    Bytes,
    /// Packets.
    Packets,
}

impl Volume {
    pub(crate) fn of(wire_len: u32, is_sent: bool) -> Self {
        let bytes = u64::from(wire_len);
        Self {
            packets: 1,
            bytes,
            sent_bytes: if is_sent { bytes } else { 0 },
        }
    }

    fn add(&mut self, other: Self) {
        self.packets += other.packets;
        self.bytes += other.bytes;
        self.sent_bytes += other.sent_bytes;
    }

    fn by(&self, by: LargestBy) -> (u64, u64) {
        match by {
            LargestBy::Bytes => (self.bytes, self.packets),
            LargestBy::Packets => (self.packets, self.bytes),
        }
    }
}

/// Adds up by key. Where there are too many keys, the smaller half is given up and begins anew: what is told of a key is then no more than it
/// has, and less by no more than [`Self::uncertain`].
#[derive(Debug)]
pub(crate) struct Largest<K> {
    by: LargestBy,
    max: usize,
    tracked: HashMap<K, Volume>,
    /// What keys may have had that were given up, one after the other.
    uncertain: (u64, u64),
}

impl<K: Eq + Hash + Copy + Ord> Largest<K> {
    pub(crate) fn new(by: LargestBy) -> Self {
        Self::with_max(by, TRACKED_MAX)
    }

    fn with_max(by: LargestBy, max: usize) -> Self {
        Self {
            by,
            max,
            tracked: HashMap::new(),
            uncertain: (0, 0),
        }
    }

    pub(crate) fn add(&mut self, key: K, volume: Volume) {
        if let Some(known) = self.tracked.get_mut(&key) {
            known.add(volume);
            return;
        }
        if self.tracked.len() >= self.max {
            self.drop_smaller_half();
        }
        self.tracked.insert(key, volume);
    }

    /// Gives up the smaller half. No more than once in so many new keys, so that one costs little.
    fn drop_smaller_half(&mut self) {
        let mut sizes: Vec<_> = self.tracked.values().map(|it| it.by(self.by)).collect();
        let middle = sizes.len() / 2;
        let (_, middle, _) = sizes.select_nth_unstable(middle);
        let (least, by) = (*middle, self.by);
        let (mut bytes, mut packets) = (0, 0);
        let mut spare = self.tracked.len() / 2;
        self.tracked.retain(|_, volume| {
            let size = volume.by(by);
            // Of those that are equal to the middle, as many as half is.
            let stays = size > least || (size == least && spare == 0);
            if !stays {
                spare = spare.saturating_sub(1);
                bytes = bytes.max(volume.bytes);
                packets = packets.max(volume.packets);
            }
            stays
        });
        self.uncertain = (self.uncertain.0 + bytes, self.uncertain.1 + packets);
    }

    /// By how much a key may have more than is told: bytes and packets.
    pub(crate) fn uncertain(&self) -> (u64, u64) {
        self.uncertain
    }

    /// The largest, those first.
    pub(crate) fn largest(self, count: usize) -> Vec<(K, Volume)> {
        let by = self.by;
        let mut all: Vec<_> = self.tracked.into_iter().collect();
        // The key decides between equal ones, so that the answer is the same each time.
        all.sort_unstable_by(|a, b| b.1.by(by).cmp(&a.1.by(by)).then(a.0.cmp(&b.0)));
        all.truncate(count);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_are_counted_exactly() {
        let mut largest = Largest::new(LargestBy::Bytes);
        for number in 0..1000_u32 {
            largest.add(number % 7, Volume::of(number % 7 * 10 + 1, number % 2 == 0));
        }
        assert_eq!(largest.uncertain(), (0, 0));
        let found = largest.largest(3);
        let keys: Vec<u32> = found.iter().map(|(key, _)| *key).collect();
        assert_eq!(keys, [6, 5, 4]);
        assert_eq!(found[0].1.packets, 142);
        assert_eq!(
            (found[0].1.bytes, found[0].1.sent_bytes),
            (142 * 61, 71 * 61)
        );
    }

    /// Elephants in a flood of others are found, and what is told of them is as close as is said.
    #[test]
    fn the_largest_survive_a_flood() {
        for by in [LargestBy::Bytes, LargestBy::Packets] {
            for seed in 0..20 {
                let mut random = fastrand_like(seed);
                let mut largest = Largest::with_max(by, 64);
                let mut exact: HashMap<u64, Volume> = HashMap::new();
                for turn in 0..50_000 {
                    let key = match turn % 10 {
                        0..4 => u64::try_from(turn % 4).unwrap(),
                        _ => 100 + random() % 100_000,
                    };
                    let volume = Volume::of(60 + u32::try_from(random() % 1400).unwrap(), false);
                    largest.add(key, volume);
                    exact.entry(key).or_default().add(volume);
                }
                assert!(largest.tracked.len() <= 64 && largest.uncertain() > (0, 0));
                let (bytes, packets) = largest.uncertain();
                let found = largest.largest(4);
                let mut keys: Vec<u64> = found.iter().map(|(key, _)| *key).collect();
                keys.sort_unstable();
                assert_eq!(keys, [0, 1, 2, 3], "seed {seed}");
                for (key, volume) in found {
                    let all = exact[&key];
                    assert!(volume.bytes <= all.bytes && all.bytes - volume.bytes <= bytes);
                    assert!(
                        volume.packets <= all.packets && all.packets - volume.packets <= packets
                    );
                }
            }
        }
    }

    /// A small generator of numbers: xorshift64*.
    fn fastrand_like(seed: u64) -> impl FnMut() -> u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        move || {
            state ^= state >> 12;
            state ^= state << 25;
            state ^= state >> 27;
            state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
        }
    }

    /// All alike: half of them go, and no more.
    #[test]
    fn equal_ones_go_by_halves() {
        let mut largest = Largest::with_max(LargestBy::Packets, 100);
        (0..101_u32).for_each(|key| largest.add(key, Volume::of(60, false)));
        assert_eq!(largest.tracked.len(), 51);
        assert_eq!(largest.uncertain(), (60, 1));
    }
}
