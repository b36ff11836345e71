//! Groups whose members share buckets: each record goes to one member, once, whoever comes and goes.
#![cfg(not(loom))]
#![expect(
    clippy::cast_possible_truncation,
    reason = "numbers of records are small"
)]

use std::{
    sync::atomic::{AtomicU8, AtomicU64, Ordering},
    thread,
    time::Duration,
};

use fastrand::Rng;
use retroscope_ring::{GroupKind, Mode, Producer, Reader, Record, Ring, RingConfig, StoreError};

const BUCKET_BYTES: usize = 272 << 10;
/// Four of these fill a bucket.
static LARGE: [u8; 60 << 10] = [0x77; 60 << 10];
const PER_BUCKET: u64 = 4;
/// Far beyond any pause of the machine: a wait this long is a lost wake-up.
const DEADLINE: Duration = Duration::from_secs(60);

fn ring(mode: Mode, producers: usize, readers: usize) -> Ring {
    let config = RingConfig {
        bucket_bytes: Some(BUCKET_BYTES),
        mode,
        ..RingConfig::new(
            (4 * (producers + readers) * BUCKET_BYTES) as u64,
            producers,
            readers,
        )
    };
    Ring::new(&config, None).expect("some MiB")
}

/// Stores large records whose times are their numbers, and publishes.
fn store(producer: &mut Producer, numbers: std::ops::Range<u64>) {
    for number in numbers {
        producer
            .store(&Record::whole(number as i64, 0, &LARGE))
            .expect("nobody keeps a bucket");
    }
    producer.publish();
}

/// The numbers of the next batch.
fn numbers(reader: &mut Reader) -> Option<std::ops::Range<u64>> {
    let batch = reader.next()?;
    let (first, end) = (batch.first, batch.first + batch.len() as u64);
    let times = batch.iter().map(|packet| packet.time_ns as u64);
    assert!(times.eq(first..end), "the records that the batch names");
    Some(first..end)
}

#[test]
fn a_member_takes_the_next_bucket_and_the_position_waits_for_the_first() {
    let ring = ring(Mode::Record, 1, 2);
    let [mut one, mut two] = members(&ring, GroupKind::Gating);
    let mut producer = ring.producer().unwrap();
    store(&mut producer, 0..2);
    assert_eq!(numbers(&mut one), Some(0..2), "the first one follows");
    assert_eq!(numbers(&mut two), None, "an open bucket has one reader");
    store(&mut producer, 2..10);
    assert_eq!(numbers(&mut two), Some(4..8));
    assert_eq!(numbers(&mut two), Some(8..10), "and follows from there");
    two.finish();
    assert_eq!(two.position(0), 0, "records 0 and 1 are not done");
    assert_eq!(numbers(&mut one), Some(2..4));
    assert_eq!(one.positions().get(0), 2);
    store(&mut producer, 10..11);
    assert_eq!(numbers(&mut one), None, "another member follows");
    assert_eq!(one.position(0), 10);
    assert_eq!(numbers(&mut two), Some(10..11));
    two.finish();
    assert_eq!(one.position(0), 11);
}

#[test]
fn what_a_dropped_member_was_not_handed_goes_to_the_others() {
    let ring = ring(Mode::Record, 1, 2);
    let [mut one, mut two] = members(&ring, GroupKind::Gating);
    let mut producer = ring.producer().unwrap();
    store(&mut producer, 0..2);
    assert_eq!(numbers(&mut one), Some(0..2));
    store(&mut producer, 2..6);
    assert_eq!(numbers(&mut two), Some(4..6));
    drop(one);
    assert_eq!(two.position(0), 2, "what it was handed is done");
    assert_eq!(numbers(&mut two), Some(2..4), "its rest");
    assert_eq!(numbers(&mut two), None);
    assert_eq!(two.position(0), 6);
    let positions = two.positions();
    drop(two);
    assert_eq!(positions.get(0), u64::MAX);
    store(&mut producer, 6..200); // the ring goes round: no hold is left
}

#[test]
fn a_follower_that_is_dropped_leaves_its_producer_to_a_sleeping_member() {
    let ring = ring(Mode::Record, 2, 2);
    let [one, mut two] = members(&ring, GroupKind::Lapped);
    let mut producer = ring.producer().unwrap();
    let woken = thread::spawn(move || {
        while numbers(&mut two).is_none() {
            assert!(two.wait(DEADLINE), "nobody woke the member");
        }
        two
    });
    drop(one); // it served producer 0
    store(&mut producer, 0..1);
    assert_eq!(woken.join().unwrap().position(1), 0);
}

#[test]
fn lapped_records_are_counted_by_one_member() {
    let ring = ring(Mode::Record, 1, 2);
    let [mut one, mut two] = members(&ring, GroupKind::Lapped);
    let mut producer = ring.producer().unwrap();
    store(&mut producer, 0..2);
    assert_eq!(numbers(&mut one), Some(0..2));
    store(&mut producer, 2..400);
    // One still has the first bucket. Two skips what was overwritten behind it.
    let mut read = 4;
    let mut first = 0;
    while let Some(batch) = two.next() {
        if batch.missed.packets > 0 {
            assert_eq!(first, 0, "told once");
            first = batch.first;
            assert_eq!(batch.missed.packets, first - PER_BUCKET);
            assert_eq!(
                batch.missed.bytes,
                (first - PER_BUCKET) * LARGE.len() as u64
            );
        }
        read += batch.len() as u64;
    }
    assert_eq!(numbers(&mut one), Some(2..4));
    assert_eq!(numbers(&mut one), None);
    assert_eq!((one.lapped().packets, one.position(0)), (0, 400));
    assert_eq!(
        read + two.lapped().packets,
        400,
        "stored = analyzed + lapped"
    );
    assert!(first > PER_BUCKET);
}

/// A member may find a loss and be dropped before the batch that tells of it.
#[test]
fn what_a_dropped_member_missed_is_told_by_the_next_and_counted_once() {
    let ring = ring(Mode::Record, 2, 2);
    let [mut one, mut two] = members(&ring, GroupKind::Lapped);
    let mut slow = ring.producer().unwrap();
    let mut fast = ring.producer().unwrap();
    store(&mut slow, 0..PER_BUCKET);
    // Begins the next bucket, and is too short to be published by itself.
    let record = Record::whole(PER_BUCKET as i64, 0, &LARGE[..32_700]);
    slow.store(&record).expect("a free bucket");
    store(&mut fast, 10..10 + 2 * ring.buckets() as u64 * PER_BUCKET);
    assert_eq!(
        numbers(&mut one),
        None,
        "the open bucket is all that is left"
    );
    assert_eq!(one.lapped().packets, PER_BUCKET);
    drop(one);
    slow.publish();
    let mut told = [0; 2];
    while let Some(batch) = two.next() {
        told[batch.producer] += batch.missed.packets;
    }
    assert_eq!(told[0], PER_BUCKET, "with the record behind the loss");
    assert_eq!(two.lapped().packets, told[1], "what it found itself");
}

/// Cursors are asked in turn; one that is at its end leaves the round while it is asked.
#[test]
fn a_member_that_leaves_a_producer_passes_over_no_other() {
    let ring = ring(Mode::Record, 6, 2);
    let [mut one, mut two] = members(&ring, GroupKind::Lapped);
    let mut producers: Vec<_> = (0..6).map(|_| ring.producer().unwrap()).collect();
    // One serves the producers 0, 2 and 4, and is at the end of a bucket of 2, behind which two goes on.
    store(&mut producers[2], 0..PER_BUCKET);
    assert_eq!(numbers(&mut one), Some(0..PER_BUCKET));
    store(&mut producers[2], PER_BUCKET..PER_BUCKET + 1);
    assert_eq!(numbers(&mut two), Some(PER_BUCKET..PER_BUCKET + 1));
    store(&mut producers[4], 0..1);
    assert_eq!(numbers(&mut one), Some(0..1));
    store(&mut producers[4], 1..2);
    assert_eq!(numbers(&mut one), Some(1..2), "0 has nothing, 2 is over");
    assert_eq!(numbers(&mut one), None);
}

#[test]
fn a_writer_waits_for_the_slowest_member() {
    let ring = ring(Mode::Protect, 1, 2);
    let [mut one, mut two] = members(&ring, GroupKind::Gating);
    let mut producer = ring.producer().unwrap();
    store(&mut producer, 0..3);
    assert_eq!(numbers(&mut one), Some(0..3));
    let mut stored = 3;
    let mut fill = |two: &mut Reader| {
        while producer.store(&Record::whole(stored, 0, &LARGE)).is_ok() {
            stored += 1;
        }
        producer.publish();
        while two.next().is_some() {}
        stored as u64
    };
    // Two reads all behind bucket 0, where one is.
    let all = ring.buckets() as u64 * PER_BUCKET;
    assert_eq!(fill(&mut two), all);
    assert_eq!(
        fill(&mut two),
        all,
        "nothing is overwritten before the first bucket"
    );
    assert_eq!(two.position(0), 0);
    assert_eq!(numbers(&mut one), Some(3..4));
    assert_eq!(fill(&mut two), all, "handed out, not done");
    assert_eq!(numbers(&mut one), None);
    assert_eq!(two.position(0), all);
    assert_eq!(fill(&mut two), 2 * all - PER_BUCKET, "all but the open one");
    assert_eq!(one.lapped().packets + two.lapped().packets, 0);
}

#[test]
fn members_are_counted_as_readers() {
    let ring = ring(Mode::Record, 1, 3);
    let pair = members(&ring, GroupKind::Lapped);
    assert_eq!(pair[1].producers().collect::<Vec<_>>(), [0]);
    assert!(ring.sharing_group("more", GroupKind::Lapped, 2).is_err());
    assert!(ring.sharing_group("none", GroupKind::Lapped, 0).is_err());
    drop(pair);
    assert_eq!(
        ring.sharing_group("all", GroupKind::Lapped, 3)
            .unwrap()
            .len(),
        3
    );
}

fn members(ring: &Ring, kind: GroupKind) -> [Reader; 2] {
    let members = ring.sharing_group("pair", kind, 2).expect("two readers");
    members.try_into().expect("two of them")
}

/// What became of each record, by producer and number.
struct Ledger {
    seen: Vec<Vec<AtomicU8>>,
    lapped: AtomicU64,
    read: AtomicU64,
}

impl Ledger {
    fn new(producers: usize, records: u64) -> Self {
        let row = || (0..records).map(|_| AtomicU8::new(0)).collect();
        Self {
            seen: (0..producers).map(|_| row()).collect(),
            lapped: AtomicU64::new(0),
            read: AtomicU64::new(0),
        }
    }

    /// Takes the next batch into account; `false`: there was none.
    fn read(&self, reader: &mut Reader) -> bool {
        let Some(batch) = reader.next() else {
            return false;
        };
        for (number, packet) in (batch.first..).zip(batch.iter()) {
            assert_eq!(packet.time_ns as u64, number);
            assert!(packet.data.iter().all(|&byte| byte == number as u8), "torn");
            let before = self.seen[batch.producer][number as usize].fetch_add(1, Ordering::Relaxed);
            assert_eq!(before, 0, "record {number} was handed out twice");
        }
        self.lapped
            .fetch_add(batch.missed.packets, Ordering::Relaxed);
        self.read.fetch_add(batch.len() as u64, Ordering::Relaxed);
        true
    }

    /// Every record before a group's position was seen, unless some were lapped.
    fn check_position(
        &self,
        positions: &retroscope_ring::Positions,
        producer: usize,
        from: &mut u64,
    ) {
        let end = positions.get(producer);
        let seen = &self.seen[producer];
        for number in *from..end.min(seen.len() as u64) {
            assert_eq!(
                seen[number as usize].load(Ordering::Relaxed),
                1,
                "the position {end} is behind the unread record {number}"
            );
        }
        *from = end.max(*from);
    }
}

fn produce(mut producer: Producer, records: u64, seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let mut number = 0;
    while number < records {
        let longest = if rng.u8(..) == 0 { 60_000 } else { 400 };
        let length = rng.usize(0..longest);
        let frame = vec![number as u8; length];
        match producer.store(&Record::whole(number as i64, 0, &frame)) {
            Ok(()) => number += 1,
            Err(StoreError::Full) => thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
        match rng.u8(..) {
            0..8 => producer.publish(),
            8..10 => thread::yield_now(),
            _ => {}
        }
    }
}

fn records() -> u64 {
    let text = std::env::var("STRESS_RECORDS").ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(150_000)
}

/// Several producers; members that read, sleep, dawdle, and some that leave. Returns the ledger and the packets lapped.
fn stress(mode: Mode, kind: GroupKind) -> (u64, u64) {
    const PRODUCERS: usize = 3;
    const MEMBERS: usize = 4;
    let records = records();
    let ring = ring(mode, PRODUCERS, MEMBERS);
    let members = ring.sharing_group("members", kind, MEMBERS);
    let members = members.expect("as many readers");
    let positions = members[0].positions();
    let ledger = Ledger::new(PRODUCERS, records);
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for seed in 0..PRODUCERS as u64 {
            let producer = ring.producer().expect("three of them");
            threads.push(scope.spawn(move || produce(producer, records, seed)));
        }
        for (member, mut reader) in members.into_iter().enumerate() {
            let ledger = &ledger;
            threads.push(scope.spawn(move || {
                let mut rng = Rng::with_seed(100 + member as u64);
                let all = records * PRODUCERS as u64;
                let part = all * member as u64 / (2 * MEMBERS as u64);
                loop {
                    let done =
                        ledger.read.load(Ordering::Relaxed) + ledger.lapped.load(Ordering::Relaxed);
                    // Half of the members leave on the way, the others stay to the end.
                    if done == all || member % 2 == 1 && done > part {
                        return;
                    }
                    if !ledger.read(&mut reader) {
                        reader.wait(Duration::from_millis(10));
                    } else if rng.u8(..) < 8 {
                        thread::yield_now();
                    }
                }
            }));
        }
        if kind == GroupKind::Gating {
            let (ledger, positions) = (&ledger, positions.clone());
            threads.push(scope.spawn(move || {
                let mut from = [0; PRODUCERS];
                while from.iter().any(|&from| from < records) {
                    for (producer, from) in from.iter_mut().enumerate() {
                        ledger.check_position(&positions, producer, from);
                    }
                    thread::yield_now();
                }
            }));
        }
        // Joined one by one: ThreadSanitizer sees joins, but not how a scope ends.
        for thread in threads {
            thread.join().expect("it did not panic");
        }
    });
    (ledger.read.into_inner(), ledger.lapped.into_inner())
}

#[test]
fn gating_members_under_load_read_everything_once() {
    let (read, lapped) = stress(Mode::Wait, GroupKind::Gating);
    assert_eq!((read, lapped), (3 * records(), 0));
}

#[test]
fn lapped_members_under_load_account_for_everything_once() {
    let (read, lapped) = stress(Mode::Record, GroupKind::Lapped);
    assert_eq!(read + lapped, 3 * records());
    eprintln!("read {read}, lapped {lapped}");
}

#[test]
fn generated_turns_hand_out_each_record_once() {
    for seed in 0..40 {
        eprintln!("seed {seed}");
        let mut rng = Rng::with_seed(seed);
        let (producers, members, records) = (rng.usize(1..4), rng.usize(1..5), 3000);
        let ring = ring(Mode::Record, producers, members);
        let mut writers: Vec<_> = (0..producers).map(|_| ring.producer().unwrap()).collect();
        let mut readers = ring
            .sharing_group("members", GroupKind::Lapped, members)
            .unwrap();
        let ledger = Ledger::new(producers, records);
        let mut stored = vec![0; producers];
        while stored.iter().any(|&stored| stored < records) {
            let producer = rng.usize(0..producers);
            let frame = vec![stored[producer] as u8; rng.usize(0..20_000)];
            if stored[producer] < records {
                let record = Record::whole(stored[producer] as i64, 0, &frame);
                // Full, where the few buckets are all held.
                stored[producer] += u64::from(writers[producer].store(&record).is_ok());
            }
            if rng.u8(0..4) == 0 {
                writers[producer].publish();
            }
            let reader = rng.usize(0..readers.len());
            match rng.u8(0..200) {
                0 if readers.len() > 1 => drop(readers.swap_remove(reader)),
                0..20 => _ = ledger.read(&mut readers[reader]),
                20 => readers[reader].finish(),
                _ => {}
            }
        }
        writers.clear();
        while readers.iter_mut().any(|reader| ledger.read(reader)) {}
        let read = ledger.read.load(Ordering::Relaxed);
        let lapped = ledger.lapped.load(Ordering::Relaxed);
        assert_eq!(
            read + lapped,
            records * producers as u64,
            "stored = analyzed + lapped"
        );
        for producer in 0..producers {
            assert_eq!(readers[0].position(producer), records);
        }
    }
}

#[test]
fn the_end_wakes_a_member_without_producers() {
    let ring = ring(Mode::Record, 1, 2);
    let members = ring.group_of("pair", GroupKind::Lapped, 2).unwrap();
    let mut idle = members.into_iter().nth(1).expect("two of them");
    assert_eq!(idle.producers().count(), 0);
    let sleeper = thread::spawn(move || idle.wait(DEADLINE));
    ring.close();
    assert!(sleeper.join().unwrap(), "nobody woke it");
}
