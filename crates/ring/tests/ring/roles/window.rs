//! The dumping role: a window of packet time, its reservation, and the held buckets.

use std::collections::HashMap;

use fastrand::Rng;
use retroscope_ring::{BucketInfo, BucketRef, BucketView, EvictedBucket, Reservation};

use super::{
    forbidden,
    round::{Round, take},
    sync::lock,
};

/// Maximum number of holds that a window keeps for later steps.
const KEPT_MAX: usize = 3;
const WINDOWS_MAX: usize = 5;

#[derive(Debug)]
pub(crate) struct Window {
    reservation: Reservation,
    from_ns: i64,
    to_ns: i64,
    /// Whether the interval was changed: the packets of the window can then not be accounted for.
    changed: bool,
    seen: HashMap<BucketRef, Seen>,
    fallen: Vec<EvictedBucket>,
    kept: Vec<BucketView>,
}

/// The records of a bucket that the window has read.
#[derive(Debug, Clone, Copy)]
struct Seen {
    producer: usize,
    first: u64,
    count: u32,
    min_ns: i64,
    max_ns: i64,
}

pub(crate) fn dump(round: &Round, rng: &mut Rng) {
    let count = lock(&round.windows).len();
    if count == 0 || (count < WINDOWS_MAX && rng.u8(0..6) == 0) {
        let window = Window::new(round, rng);
        lock(&round.windows).push(window);
        return;
    }
    let Some(mut window) = take(&round.windows, rng) else {
        return;
    };
    window.look_at_kept(round, rng);
    match rng.u8(0..20) {
        0 => window.change(round, rng),
        1..=4 => return window.leave(round),
        _ => window.read(round, rng),
    }
    window.take_fallen(round);
    if rng.u8(0..8) == 0 {
        round.stall(rng); // with holds and a reservation
    }
    lock(&round.windows).push(window);
}

fn interval(round: &Round, rng: &mut Rng) -> (i64, i64) {
    if rng.u8(0..10) == 0 {
        return (i64::MIN, i64::MAX);
    }
    let statistics = round.ring.statistics();
    let newest = if statistics.newest_ns.is_some_and(|ns| ns < 1 << 40) {
        statistics.newest_ns.unwrap_or(0)
    } else {
        i64::try_from(statistics.stored_packets).expect("a round is short") * 1000
    };
    let from = newest - rng.i64(-1_000_000..20_000_000);
    (from, from + rng.i64(-10..15_000_000))
}

impl Window {
    fn new(round: &Round, rng: &mut Rng) -> Self {
        let (from_ns, to_ns) = interval(round, rng);
        Self {
            reservation: round.ring.reserve(from_ns, to_ns),
            from_ns,
            to_ns,
            changed: false,
            seen: HashMap::new(),
            fallen: Vec::new(),
            kept: Vec::new(),
        }
    }

    fn change(&mut self, round: &Round, rng: &mut Rng) {
        (self.from_ns, self.to_ns) = interval(round, rng);
        self.reservation.set_interval(self.from_ns, self.to_ns);
        self.changed = true;
    }

    /// Reads the new records of the window's buckets. May keep some holds for later steps.
    fn read(&mut self, round: &Round, rng: &mut Rng) {
        let mut listed = Vec::new();
        self.reservation.buckets(&mut listed);
        for info in listed {
            let Some(view) = round.ring.hold(info.bucket) else {
                round.happened.overwritten_before_held.add(1);
                continue;
            };
            self.read_bucket(round, &info, &view);
            if rng.u8(0..12) == 0 && self.kept.len() < KEPT_MAX {
                self.kept.push(view);
            }
        }
    }

    fn read_bucket(&mut self, round: &Round, listed: &BucketInfo, view: &BucketView) {
        let now = view.info();
        forbidden::stale_hold(&now, listed.producer, listed.first);
        assert!(now.committed >= listed.committed, "records do not go away");
        let seen = self.seen.entry(now.bucket).or_insert(Seen {
            producer: now.producer,
            first: now.first,
            count: 0,
            min_ns: i64::MAX,
            max_ns: i64::MIN,
        });
        forbidden::stale_hold(&now, seen.producer, seen.first);
        let new = (now.committed - seen.count) as usize;
        for packet in view.iter_from(seen.count).take(new) {
            let number = seen.first + u64::from(seen.count);
            forbidden::torn_record(&round.rules.names, &packet, seen.producer, number);
            seen.min_ns = seen.min_ns.min(packet.time_ns);
            seen.max_ns = seen.max_ns.max(packet.time_ns);
            seen.count += 1;
        }
        if seen.count > 0 {
            forbidden::time_outside_bucket(&now, seen.min_ns, seen.max_ns, now.closed);
        }
        if now.closed {
            self.reservation.give_back(now.bucket);
        }
    }

    /// Checks random records of buckets held since an earlier step. With a probability of one half,
    /// drops the newest hold.
    fn look_at_kept(&mut self, round: &Round, rng: &mut Rng) {
        for view in &self.kept {
            let (now, seen) = (view.info(), self.seen[&view.info().bucket]);
            forbidden::stale_hold(&now, seen.producer, seen.first);
            for _ in 0..20 {
                let index = rng.u32(0..seen.count.max(1)).min(now.committed.max(1) - 1);
                if index < now.committed {
                    let number = seen.first + u64::from(index);
                    let packet = view.packet(index);
                    forbidden::torn_record(&round.rules.names, &packet, seen.producer, number);
                }
            }
            round.happened.held_on.add(1);
        }
        if rng.bool() {
            self.kept.pop();
        }
    }

    fn take_fallen(&mut self, round: &Round) {
        let before = self.fallen.len();
        assert_eq!(self.reservation.fallen(&mut self.fallen), None);
        let new = self.fallen.len() - before;
        round.happened.fallen.add(new as u64);
        if round.never_records() {
            forbidden::overwritten_though_reserved(new);
        }
    }

    /// Drops the window. If the interval never changed and the log is exact, accounts for every
    /// packet published before.
    pub(crate) fn leave(mut self, round: &Round) {
        let published: Vec<u64> = (0..round.rules.producers)
            .map(|producer| round.ring.published(producer))
            .collect();
        self.kept.clear();
        let mut nothing_random = Rng::with_seed(0);
        self.read(round, &mut nothing_random);
        self.take_fallen(round);
        if self.changed || !round.rules.exact {
            return;
        }
        assert!(
            self.reservation.evicted_before().exact,
            "the log has room for all"
        );
        let before = self.reservation.evicted_before().packets;
        let (mut inside, mut read, mut fallen) = (0, 0, 0);
        for (producer, &published) in published.iter().enumerate() {
            inside += self.inside(round, producer, 0, published);
        }
        for seen in self.seen.values() {
            let end = (seen.first + u64::from(seen.count)).min(published[seen.producer]);
            read += self.inside(round, seen.producer, seen.first, end);
        }
        for gone in &self.fallen {
            let had = self.seen.get(&gone.bucket).map_or(0, |seen| seen.count);
            let (first, end) = (
                gone.first + u64::from(had),
                gone.first + u64::from(gone.packets),
            );
            let told = gone.count_in(self.from_ns, self.to_ns, had);
            assert!(told.exact, "the log knows every stamp");
            assert_eq!(
                told.packets,
                self.inside(round, gone.producer, first, end),
                "{gone:?}"
            );
            fallen += self.inside(
                round,
                gone.producer,
                first,
                end.min(published[gone.producer]),
            );
        }
        let window = self.from_ns..=self.to_ns;
        forbidden::lost_from_window(&window, inside, read, before, fallen);
        round.happened.accounted.add(inside);
        round.happened.gone_before.add(before);
    }

    /// Number of a producer's records from `first` to before `end` that are in the window.
    fn inside(&self, round: &Round, producer: usize, first: u64, end: u64) -> u64 {
        let names = &round.rules.names;
        let inside =
            |number: &u64| (self.from_ns..=self.to_ns).contains(&names.time_ns(producer, *number));
        (first..end).filter(inside).count() as u64
    }
}

/// Reads everything that is still in the ring. Returns packets and captured bytes.
pub(crate) fn read_all(round: &Round) -> (u64, u64) {
    let reservation = round.ring.reserve(i64::MIN, i64::MAX);
    let mut listed = Vec::new();
    reservation.buckets(&mut listed);
    let (mut packets, mut bytes) = (0, 0);
    for info in listed {
        let view = round
            .ring
            .hold(info.bucket)
            .expect("nobody writes any more");
        for (number, packet) in (info.first..).zip(view.iter_from(0)) {
            forbidden::torn_record(&round.rules.names, &packet, info.producer, number);
            packets += 1;
            bytes += packet.data.len() as u64;
        }
    }
    (packets, bytes)
}
