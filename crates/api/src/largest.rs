//! Finds the largest of very many keys in bounded memory.

use std::{collections::HashMap, hash::Hash};

/// Maximum number of keys that are tracked at the same time.
const TRACKED_MAX: usize = 65_536;

/// A number of packets and their bytes on the wire. `sent_bytes`: bytes that the key sent, if the
/// key is an end of a flow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Volume {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    pub(crate) sent_bytes: u64,
}

/// The measure for the comparison.
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

/// Sums by key. If there are too many keys, the smaller half or more is dropped, and a dropped key
/// starts again at zero. A reported sum is never too large, and too small by at most
/// [`Self::uncertain`].
#[derive(Debug)]
pub(crate) struct Largest<K> {
    by: LargestBy,
    max: usize,
    tracked: HashMap<K, Volume>,
    /// Upper bound of the bytes and packets that a key may have lost: for each call of
    /// [`Self::drop_smaller_half`], the largest dropped volume is added.
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

    /// Drops half of the keys or more. At least `max / 2` new keys follow before the next call, so
    /// the cost per key is small.
    fn drop_smaller_half(&mut self) {
        let mut sizes: Vec<_> = self.tracked.values().map(|it| it.by(self.by)).collect();
        let middle = sizes.len() / 2;
        let (_, middle, _) = sizes.select_nth_unstable(middle);
        let (least, by) = (*middle, self.by);
        let (mut bytes, mut packets) = (0, 0);
        let mut spare = self.tracked.len() / 2;
        self.tracked.retain(|_, volume| {
            let size = volume.by(by);
            // Many volumes may be equal to the median. Drop at most half of all keys for that
            // reason.
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

    pub(crate) fn uncertain(&self) -> (u64, u64) {
        self.uncertain
    }

    /// The largest keys, in descending order.
    pub(crate) fn largest(self, count: usize) -> Vec<(K, Volume)> {
        let by = self.by;
        let mut all: Vec<_> = self.tracked.into_iter().collect();
        // Order equal volumes by key, because the order of a hash table is random.
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

    /// A small random number generator: xorshift64*.
    fn fastrand_like(seed: u64) -> impl FnMut() -> u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        move || {
            state ^= state >> 12;
            state ^= state << 25;
            state ^= state >> 27;
            state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
        }
    }

    #[test]
    fn equal_ones_go_by_halves() {
        let mut largest = Largest::with_max(LargestBy::Packets, 100);
        (0..101_u32).for_each(|key| largest.add(key, Volume::of(60, false)));
        assert_eq!(largest.tracked.len(), 51);
        assert_eq!(largest.uncertain(), (60, 1));
    }
}
