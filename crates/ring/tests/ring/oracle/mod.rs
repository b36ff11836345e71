//! Compares the ring with the model under generated operations, in one thread.
//!
//! A failure prints its seed, and `ORACLE_SEED=n cargo test -p retroscope-ring --test ring oracle`
//! repeats that seed, and with `ORACLE_SEEDS=m` runs m seeds.

mod model;

use std::{collections::BTreeMap, sync::LazyLock};

use fastrand::Rng;
use model::{Key, Model, Stored};
use retroscope_ring::{
    BucketRef, BucketView, EvictionDetail, GroupKind, Mode, Packet, Producer, Reader, Record,
    Reservation, Ring, RingConfig,
};

const BUCKET_BYTES: usize = 272 << 10;
const PRODUCERS: usize = 2;
const STEPS: usize = 4000;
const SEEDS: u64 = 24;

static NOISE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut rng = Rng::with_seed(1);
    (0..1 << 20).map(|_| rng.u8(..)).collect()
});

struct Pair {
    rng: Rng,
    ring: Ring,
    model: Model,
    producers: Vec<Producer>,
    readers: Vec<Reader>,
    reservations: BTreeMap<u64, Reservation>,
    views: Vec<(Key, BucketView, usize)>,
    reservations_max: usize,
    reservations_made: u64,
    /// [`Ring::reservation_news`] at the last check of losses.
    news: u64,
    clock_ns: i64,
    refused: u64,
}

/// Counts of events. A rule that never applied was not tested.
#[derive(Debug, Default)]
struct Happened {
    refused: u64,
    evicted: u64,
    fallen: u64,
    lapped: u64,
}

#[test]
fn generated_operations_agree_with_the_model() {
    let number = |name| {
        let text = std::env::var(name).ok()?;
        Some(text.parse::<u64>().expect("a number"))
    };
    let first = number("ORACLE_SEED");
    let count = number("ORACLE_SEEDS").unwrap_or(if first.is_some() { 1 } else { SEEDS });
    let all = count >= SEEDS;
    let mut total = Happened::default();
    for seed in (first.unwrap_or(0)..).take(usize::try_from(count).expect("not that many")) {
        eprintln!("ORACLE_SEED={seed}");
        let gating = [seed % 3 == 1, seed % 3 == 2 && seed % 2 == 0];
        let mut pair = Pair::new(seed, gating);
        for _ in 0..STEPS {
            pair.step();
        }
        let happened = pair.end();
        total.refused += happened.refused;
        total.evicted += happened.evicted;
        total.fallen += happened.fallen;
        total.lapped += happened.lapped;
    }
    eprintln!("{total:?}");
    let some = [total.refused, total.evicted, total.fallen, total.lapped]
        .iter()
        .all(|&count| count > 100);
    assert!(
        some || !all,
        "the operations hardly test the rules: {total:?}"
    );
}

impl Pair {
    fn new(seed: u64, gating: [bool; 2]) -> Self {
        let buckets = 4 * (PRODUCERS + gating.len());
        let config = RingConfig {
            bucket_bytes: Some(BUCKET_BYTES),
            eviction_detail: EvictionDetail::Exact {
                budget_bytes: 1 << 30,
            },
            ..RingConfig::new((buckets * BUCKET_BYTES) as u64, PRODUCERS, gating.len())
        };
        let ring = Ring::new(&config, None).expect("4 MiB");
        let kind = |gating| {
            if gating {
                GroupKind::Gating
            } else {
                GroupKind::Lapped
            }
        };
        let readers = gating.map(|gating| ring.group(kind(gating)).expect("two readers"));
        let producers = (0..PRODUCERS).map(|_| ring.producer().expect("two producers"));
        let producers = producers.collect();
        ring.close(); // a store that would wait returns `Closed`
        Self {
            rng: Rng::with_seed(seed),
            model: Model::new(buckets, BUCKET_BYTES, PRODUCERS, &gating),
            producers,
            readers: readers.into(),
            reservations: BTreeMap::new(),
            views: Vec::new(),
            reservations_max: if seed.is_multiple_of(2) { 4 } else { 40 },
            reservations_made: 0,
            news: 0,
            clock_ns: 1_000_000,
            refused: 0,
            ring,
        }
    }

    fn step(&mut self) {
        match self.rng.u8(0..100) {
            0..=54 => self.store(),
            55..=59 => {
                let producer = self.rng.usize(0..PRODUCERS);
                self.producers[producer].publish();
                self.model.publish(producer);
            }
            60..=75 => self.read(),
            76..=77 => {
                let group = self.rng.usize(0..2);
                self.readers[group].finish();
                self.model.finish(group);
            }
            78..=80 => {
                for _ in 0..self.rng.usize(1..=self.reservations_max / 4) {
                    self.reserve();
                }
            }
            81..=84 => self.list_and_hold(),
            85..=88 => self.release_views(),
            89..=92 => self.change_reservation(),
            93 => {
                self.model.mode = [Mode::Record, Mode::Protect, Mode::Wait][self.rng.usize(0..3)];
                self.ring.set_mode(self.model.mode);
            }
            _ => self.check(),
        }
    }

    fn store(&mut self) {
        self.clock_ns += self.rng.i64(0..2000);
        let jitter = match self.rng.u8(0..200) {
            0 => self.rng.i64(-1 << 50..1 << 50),
            1..=40 => self.rng.i64(-20_000..20_000),
            _ => 0,
        };
        let length = match self.rng.u8(0..20) {
            0 => 0,
            1 => 256 << 10,
            2..=8 => self.rng.usize(0..2000),
            _ => self.rng.usize(2000..60_000),
        };
        let start = self.rng.usize(0..NOISE.len() - length);
        let stored = Stored {
            time_ns: self.clock_ns + jitter,
            wire_len: if self.rng.u8(0..20) == 0 {
                self.rng.u32(..)
            } else {
                self.rng.u32(0..65_536)
            },
            interface: if self.rng.u8(0..20) == 0 {
                self.rng.u16(..)
            } else {
                self.rng.u16(0..255)
            },
            direction: self.rng.u8(0..3),
            tag_restored: self.rng.bool(),
            shard: self.rng.u8(0..32),
            noise: start..start + length,
        };
        let data = &NOISE[stored.noise.clone()];
        let (one, rest) = data.split_at(self.rng.usize(0..=length));
        let (two, three) = rest.split_at(self.rng.usize(0..=rest.len()));
        let record = Record {
            time_ns: stored.time_ns,
            wire_len: stored.wire_len,
            interface: stored.interface,
            direction: stored.direction,
            tag_restored: stored.tag_restored,
            shard: stored.shard,
            parts: [one, two, three],
        };
        let producer = self.rng.usize(0..PRODUCERS);
        let got = self.producers[producer].store(&record);
        assert_eq!(got, self.model.store(producer, stored));
        self.refused += u64::from(got.is_err());
        assert_eq!(
            self.ring.published(producer),
            self.model.writers[producer].published
        );
    }

    fn read(&mut self) {
        let group = self.rng.usize(0..2);
        for _ in 0..self.rng.usize(1..6) {
            self.read_one(group);
        }
    }

    fn read_one(&mut self, group: usize) -> bool {
        let expected = self.model.next(group);
        let batch = self.readers[group].next();
        let more = match (batch, expected) {
            (None, None) => false,
            (Some(batch), Some(expected)) => {
                assert_eq!(
                    (batch.producer, batch.first),
                    (expected.producer, expected.first)
                );
                assert_eq!(
                    (batch.missed, batch.len()),
                    (expected.missed, expected.records.len())
                );
                for (packet, stored) in batch.iter().zip(&expected.records) {
                    compare(packet, stored);
                }
                true
            }
            (got, expected) => panic!("batch {got:?}, expected {expected:?}"),
        };
        assert_eq!(
            self.readers[group].lapped(),
            self.model.groups[group].lapped
        );
        for producer in 0..PRODUCERS {
            assert_eq!(
                self.readers[group].positions().get(producer),
                self.model.groups[group].done[producer]
            );
        }
        more
    }

    fn interval(&mut self) -> (i64, i64) {
        let from = self.clock_ns - self.rng.i64(-50_000..300_000);
        let to = from + self.rng.i64(-1000..200_000);
        match self.rng.u8(0..40) {
            0 => (i64::MIN, i64::MAX),
            1 => (i64::MAX, i64::MIN),
            2 => (i64::MIN, to),
            3 => (from, i64::MAX),
            _ => (from, to),
        }
    }

    fn reserve(&mut self) {
        if self.reservations.len() >= self.reservations_max {
            let id = self.any_reservation();
            self.drop_reservation(id);
        }
        let (from, to) = self.interval();
        let reservation = self.ring.reserve(from, to);
        let inside = self
            .model
            .evicted
            .iter()
            .filter(|record| (from..=to).contains(&record.time_ns));
        assert_eq!(reservation.evicted_before().packets, inside.count() as u64);
        let id = self.reservations_made;
        self.reservations_made += 1;
        self.reservations.insert(id, reservation);
        self.model.reserve(id, from, to);
    }

    fn any_reservation(&mut self) -> u64 {
        let ids: Vec<u64> = self.reservations.keys().copied().collect();
        ids[self.rng.usize(0..ids.len())]
    }

    fn drop_reservation(&mut self, id: u64) {
        self.check_fallen(id);
        self.reservations.remove(&id);
        self.model.reservations.remove(&id);
    }

    fn list_and_hold(&mut self) {
        if self.reservations.is_empty() {
            return;
        }
        let id = self.any_reservation();
        for (bucket, key) in self.list(id) {
            if self.rng.u8(0..4) == 0 && self.views.len() < 5 {
                let view = self.ring.hold(bucket).expect("it was listed");
                self.model.hold(key, 1);
                self.views.push((key, view, 0));
            }
        }
    }

    fn list(&mut self, id: u64) -> Vec<(BucketRef, Key)> {
        let mut listed = Vec::new();
        self.reservations[&id].buckets(&mut listed);
        let got: Vec<_> = listed
            .iter()
            .map(|b| ((b.producer, b.first), b.committed, b.closed))
            .collect();
        assert_eq!(got, self.model.touching(id));
        listed
            .iter()
            .map(|info| (info.bucket, (info.producer, info.first)))
            .collect()
    }

    /// Compares the new records of held buckets with the model, and releases one bucket.
    fn release_views(&mut self) {
        for (key, view, seen) in &mut self.views {
            let records = &self.model.buckets[key].records;
            for (packet, stored) in view
                .iter_from(u32::try_from(*seen).expect("records of a bucket"))
                .zip(&records[*seen..])
            {
                compare(packet, stored);
                *seen += 1;
            }
            let published = self.model.writers[key.0].published - key.1;
            assert_eq!(*seen as u64, published.min(records.len() as u64));
            assert_eq!(view.info().closed, self.model.buckets[key].closed.is_some());
        }
        if !self.views.is_empty() {
            let (key, view, _) = self.views.swap_remove(self.rng.usize(0..self.views.len()));
            drop(view);
            self.model.hold(key, -1);
        }
    }

    fn change_reservation(&mut self) {
        if self.reservations.is_empty() {
            return;
        }
        let id = self.any_reservation();
        match self.rng.u8(0..5) {
            4 => {
                let yields = self.rng.bool();
                self.reservations[&id].set_yielding(yields);
                let reservation = self.model.reservations.get_mut(&id);
                reservation.expect("both sides have it").yields = yields;
            }
            0 => {
                let (from, to) = self.interval();
                self.reservations[&id].set_interval(from, to);
                let reservation = self
                    .model
                    .reservations
                    .get_mut(&id)
                    .expect("both sides have it");
                (reservation.from_ns, reservation.to_ns) = (from, to);
            }
            1 => self.drop_reservation(id),
            _ => {
                for (bucket, key) in self.list(id) {
                    if self.rng.bool() {
                        self.reservations[&id].give_back(bucket);
                        if self.model.buckets[&key].closed.is_some() {
                            self.model
                                .reservations
                                .get_mut(&id)
                                .expect("both sides have it")
                                .given
                                .insert(key);
                        }
                    }
                }
            }
        }
    }

    fn check_fallen(&mut self, id: u64) {
        let has_fallen = self.model.reservations[&id].has_fallen;
        assert_eq!(self.reservations[&id].has_fallen(), has_fallen);
        let mut lost = Vec::new();
        assert_eq!(self.reservations[&id].fallen(&mut lost), None);
        let lost: Vec<Key> = lost
            .iter()
            .map(|bucket| (bucket.producer, bucket.first))
            .collect();
        assert_eq!(
            lost,
            std::mem::take(
                &mut self
                    .model
                    .reservations
                    .get_mut(&id)
                    .expect("both sides have it")
                    .lost
            )
        );
    }

    fn check_buckets_from(&mut self) {
        let producer = self.rng.usize(0..PRODUCERS);
        let position = self.rng.u64(0..self.model.writers[producer].published + 2);
        let mut listed = Vec::new();
        self.ring.buckets_from(producer, position, &mut listed);
        let got: Vec<(Key, u64, bool)> = listed
            .iter()
            .map(|b| {
                (
                    (b.producer, b.first),
                    b.first + u64::from(b.committed),
                    b.closed,
                )
            })
            .collect();
        let mine = self.model.buckets.range((producer, 0)..(producer + 1, 0));
        let expected: Vec<(Key, u64, bool)> = mine
            .map(|(&key, bucket)| (key, self.model.committed_end(key), bucket.closed.is_some()))
            .filter(|&(key, end, _)| end > position.max(key.1))
            .collect();
        assert_eq!(got, expected, "producer {producer} from {position}");
    }

    fn check(&mut self) {
        self.check_buckets_from();
        let is_untold = |lost: &model::Reservation| !lost.lost.is_empty();
        let news = self.ring.reservation_news();
        assert!(
            news > self.news || !self.model.reservations.values().any(is_untold),
            "lost without news"
        );
        self.news = news;
        for id in self.reservations.keys().copied().collect::<Vec<_>>() {
            self.check_fallen(id);
            self.list(id);
        }
        let (from, to) = self.interval();
        for (from, to) in [(from, to), (i64::MIN, i64::MAX)] {
            let evicted = *self.ring.reserve(from, to).evicted_before();
            let inside = self.model.evicted.iter().map(|record| record.time_ns);
            let inside: Vec<i64> = inside.filter(|time| (from..=to).contains(time)).collect();
            assert_eq!(
                (evicted.packets, evicted.exact),
                (inside.len() as u64, true)
            );
            assert_eq!(
                (evicted.first_ns, evicted.last_ns),
                (inside.iter().min().copied(), inside.iter().max().copied())
            );
            assert_eq!(evicted.unknown_before_ns, None);
        }
        let statistics = self.ring.statistics();
        let (free, open, closed, reserved) = self.model.counts();
        assert_eq!(
            (statistics.free_buckets, statistics.open_buckets),
            (free, open)
        );
        assert_eq!(
            (statistics.closed_buckets, statistics.reserved_buckets),
            (closed, reserved)
        );
        assert_eq!(statistics.reservations_fallen, self.model.fallen);
        assert_eq!(statistics.evicted_packets, self.model.evicted.len() as u64);
        let published: u64 = self
            .model
            .writers
            .iter()
            .map(|writer| writer.published)
            .sum();
        assert_eq!(statistics.stored_packets, published);
    }

    fn end(mut self) -> Happened {
        self.check();
        for producer in 0..PRODUCERS {
            self.model.leave(producer);
        }
        self.producers.clear();
        self.check();
        assert!(!self.model.evicted.is_empty(), "the ring went round");
        for group in 0..2 {
            while self.read_one(group) {}
            let stored: u64 = (0..PRODUCERS)
                .map(|producer| self.ring.published(producer))
                .sum();
            let lapped = self.readers[group].lapped().packets;
            assert_eq!(
                stored,
                self.model.groups[group].read + lapped,
                "stored = analyzed + lapped + unread"
            );
            if self.model.groups[group].gating {
                assert_eq!(lapped, 0);
            }
        }
        Happened {
            refused: self.refused,
            evicted: self.model.evicted.len() as u64,
            fallen: self.model.fallen,
            lapped: self
                .model
                .groups
                .iter()
                .map(|group| group.lapped.packets)
                .sum(),
        }
    }
}

fn compare(packet: Packet<'_>, stored: &Stored) {
    let expected = Packet {
        time_ns: stored.time_ns,
        wire_len: stored.wire_len,
        interface: stored.interface,
        direction: stored.direction,
        tag_restored: stored.tag_restored,
        shard: stored.shard,
        data: &NOISE[stored.noise.clone()],
    };
    assert!(
        packet == expected,
        "record of {} ns differs",
        stored.time_ns
    );
}
