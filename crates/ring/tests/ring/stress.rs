//! Several threads read and write a ring. Every record contains its producer, its number and a
//! checksum.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use fastrand::Rng;
use retroscope_ring::{
    BucketRef, EvictionDetail, GroupKind, Mode, Packet, Producer, Reader, Record, Ring, RingConfig,
    StoreError,
};

const BUCKET_BYTES: usize = 272 << 10;
/// A wait this long is a lost wake-up.
const DEADLINE: Duration = Duration::from_secs(60);
/// Time between the records of a producer, without jitter.
const STEP_NS: i64 = 1000;
const JITTER_NS: i64 = 50_000;

fn records() -> u64 {
    std::env::var("STRESS_RECORDS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(150_000)
}

fn ring(mode: Mode, producers: usize, readers: usize) -> Ring {
    let buckets = 4 * (producers + readers);
    let config = RingConfig {
        bucket_bytes: Some(BUCKET_BYTES),
        mode,
        eviction_detail: EvictionDetail::Exact {
            budget_bytes: 1 << 30,
        },
        ..RingConfig::new((buckets * BUCKET_BYTES) as u64, producers, readers)
    };
    Ring::new(&config, None).expect("some MiB")
}

/// A function of producer and number, so that every thread knows the packets of a window.
fn time_ns(producer: usize, number: u64) -> i64 {
    let hash = (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ producer as u64) >> 40;
    number as i64 * STEP_NS + hash as i64 % JITTER_NS
}

fn fill(frame: &mut Vec<u8>, producer: usize, number: u64) {
    frame.clear();
    frame.extend((producer as u64).to_le_bytes());
    frame.extend(number.to_le_bytes());
    let mut state = number.wrapping_mul(0xd134_2543_de82_ef95) | 1;
    let length = 20 + (state >> 33) as usize % if number.is_multiple_of(50) { 9000 } else { 200 };
    while frame.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        frame.extend(state.to_le_bytes());
    }
    let sum = checksum(frame);
    frame.extend(sum.to_le_bytes());
}

fn checksum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(2_166_136_261, |hash: u32, &byte| {
        (hash ^ u32::from(byte)).wrapping_mul(16_777_619)
    })
}

fn check(packet: Packet<'_>, producer: usize, number: u64) {
    let (body, sum) = packet.data.split_last_chunk::<4>().expect("never empty");
    assert_eq!(
        checksum(body),
        u32::from_le_bytes(*sum),
        "torn: producer {producer}, record {number}"
    );
    assert_eq!(
        body[..8],
        (producer as u64).to_le_bytes(),
        "a record of another producer"
    );
    assert_eq!(
        body[8..16],
        number.to_le_bytes(),
        "another record than its place says"
    );
    assert_eq!(packet.time_ns, time_ns(producer, number));
    assert_eq!(packet.wire_len as usize, packet.data.len());
}

/// Stores `count` records. Returns how often there was no room.
fn produce(mut producer: Producer, count: u64, seed: u64) -> u64 {
    let mut rng = Rng::with_seed(seed);
    let mut frame = Vec::new();
    let mut full = 0;
    let mut number = 0;
    while number < count {
        fill(&mut frame, producer.id(), number);
        match producer.store(&Record::whole(time_ns(producer.id(), number), 0, &frame)) {
            Ok(()) => number += 1,
            Err(StoreError::Full) => {
                full += 1;
                thread::yield_now();
            }
            Err(error) => panic!("{error}"),
        }
        match rng.u8(0..200) {
            0..5 => producer.publish(),
            5 => producer.set_watermark(number as i64 * STEP_NS),
            6 => thread::yield_now(),
            _ => {}
        }
    }
    full
}

/// Reads as one of `members` members of a group. Returns (read, missed).
fn analyze(
    mut reader: Reader,
    (member, members): (usize, usize),
    producers: usize,
    count: u64,
) -> (u64, u64) {
    let mut next = vec![0; producers];
    let (mut read, mut missed) = (0, 0);
    let mut mine = (member..producers).step_by(members);
    // If the last records were missed, no later batch reports this, only the position.
    let unread = |next: &[u64], reader: &Reader, producer: usize| {
        next[producer].max(reader.positions().get(producer)) < count
    };
    while mine
        .clone()
        .any(|producer| unread(&next, &reader, producer))
    {
        let Some(batch) = reader.next() else {
            assert!(reader.wait(DEADLINE), "nobody woke the reader");
            continue;
        };
        let (producer, mut number) = (batch.producer, batch.first);
        assert_eq!(
            number,
            next[producer] + batch.missed.packets,
            "a gap that nobody told"
        );
        missed += batch.missed.packets;
        for packet in batch.iter() {
            check(packet, producer, number);
            number += 1;
        }
        read += batch.len() as u64;
        next[producer] = number;
    }
    let lapped = reader.lapped().packets;
    assert!(missed <= lapped, "{missed} told, {lapped} found");
    reader.finish();
    assert!(mine.all(|producer| reader.positions().get(producer) == count));
    (read, lapped)
}

/// Dumps one window, and accounts for every packet of the window. Returns (packets read, packets
/// lost).
fn dump(ring: &Ring, producers: usize, count: u64, from_ns: i64, to_ns: i64) -> (u64, u64) {
    let reservation = ring.reserve(from_ns, to_ns);
    let mut seen: HashMap<BucketRef, u32> = HashMap::new();
    let mut listed = Vec::new();
    let mut read = 0;
    loop {
        // Loads the watermarks first: the list then contains the records before the watermarks.
        let over =
            (0..producers).all(|producer| ring.watermark(producer).is_some_and(|ns| ns > to_ns));
        reservation.buckets(&mut listed);
        for info in &listed {
            let Some(view) = ring.hold(info.bucket) else {
                continue;
            };
            let now = view.info();
            assert_eq!((now.producer, now.first), (info.producer, info.first));
            assert!(now.committed >= info.committed);
            let from = seen.entry(info.bucket).or_default();
            for packet in view.iter_from(*from).take((now.committed - *from) as usize) {
                check(packet, info.producer, info.first + u64::from(*from));
                *from += 1;
                read += u64::from((from_ns..=to_ns).contains(&packet.time_ns));
            }
            if now.closed {
                reservation.give_back(info.bucket);
            }
        }
        if over {
            break;
        }
        thread::yield_now();
    }
    let mut lost = reservation.evicted_before().packets;
    assert!(reservation.evicted_before().exact);
    let mut fallen = Vec::new();
    assert_eq!(reservation.fallen(&mut fallen), None);
    for bucket in fallen {
        let had = seen.get(&bucket.bucket).copied().unwrap_or(0);
        let count = bucket.count_in(from_ns, to_ns, had);
        assert!(count.exact);
        lost += count.packets;
    }
    let names =
        (0..producers).flat_map(|producer| (0..count).map(move |number| (producer, number)));
    let inside =
        names.filter(|&(producer, number)| (from_ns..=to_ns).contains(&time_ns(producer, number)));
    assert_eq!(
        read + lost,
        inside.count() as u64,
        "window {from_ns}..={to_ns}: matched = written + lost"
    );
    (read, lost)
}

#[test]
fn record_mode_with_lapped_readers_and_dumps() {
    const PRODUCERS: usize = 3;
    let count = records();
    let ring = ring(Mode::Record, PRODUCERS, 3);
    let readers = ring.group_of(GroupKind::Lapped, 2).unwrap();
    let alone = ring.group(GroupKind::Lapped).unwrap();
    let done = AtomicBool::new(false);
    let (mut written, mut lost, mut refused) = (0, 0, 0);
    thread::scope(|scope| {
        let pair: Vec<_> = readers
            .into_iter()
            .enumerate()
            .map(|(member, reader)| {
                scope.spawn(move || analyze(reader, (member, 2), PRODUCERS, count))
            })
            .collect();
        let alone = scope.spawn(move || analyze(alone, (0, 1), PRODUCERS, count));
        let dumps: Vec<_> = (0..2)
            .map(|seed| {
                let (ring, done) = (&ring, &done);
                scope.spawn(move || {
                    let mut rng = Rng::with_seed(seed);
                    let (mut read, mut lost) = (0, 0);
                    while !done.load(Ordering::Relaxed) {
                        let newest = ring.statistics().newest_ns.unwrap_or(0);
                        let from = newest - rng.i64(-5_000_000..30_000_000);
                        let one = dump(ring, PRODUCERS, count, from, from + rng.i64(0..20_000_000));
                        read += one.0;
                        lost += one.1;
                    }
                    (read, lost)
                })
            })
            .collect();
        let writers: Vec<_> = (0..PRODUCERS)
            .map(|seed| {
                let producer = ring.producer().unwrap();
                scope.spawn(move || produce(producer, count, seed as u64))
            })
            .collect();
        for writer in writers {
            refused += writer.join().unwrap();
        }
        done.store(true, Ordering::Relaxed);
        for dump in dumps {
            let (read, gone) = dump.join().unwrap();
            written += read;
            lost += gone;
        }
        let (read, missed) = alone.join().unwrap();
        assert_eq!(
            read + missed,
            count * PRODUCERS as u64,
            "stored = analyzed + lapped"
        );
        let pair = pair.into_iter().map(|reader| reader.join().unwrap());
        let (read, missed) = pair.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        assert_eq!(
            read + missed,
            count * PRODUCERS as u64,
            "stored = analyzed + lapped"
        );
    });
    let statistics = ring.statistics();
    eprintln!(
        "dumps: {written} written, {lost} lost; writers refused {refused} times; {statistics:?}"
    );
    assert_eq!(statistics.stored_packets, count * PRODUCERS as u64);
    assert_eq!(
        (statistics.open_buckets, statistics.reserved_buckets),
        (0, 0)
    );
    assert!(statistics.evicted_packets > 0);
    let evicted = *ring.reserve(i64::MIN, i64::MAX).evicted_before();
    assert_eq!(
        (evicted.packets, evicted.exact),
        (statistics.evicted_packets, true)
    );
    assert!(written > 0);
}

#[test]
fn wait_mode_with_gating_readers_loses_nothing() {
    const PRODUCERS: usize = 2;
    let count = records();
    let ring = ring(Mode::Wait, PRODUCERS, 3);
    let gating = ring.group_of(GroupKind::Gating, 2).unwrap();
    let lapped = ring.group(GroupKind::Lapped).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let gating: Vec<_> = gating
            .into_iter()
            .enumerate()
            .map(|(member, reader)| {
                scope.spawn(move || analyze(reader, (member, 2), PRODUCERS, count))
            })
            .collect();
        let lapped = scope.spawn(move || analyze(lapped, (0, 1), PRODUCERS, count));
        // Short reservations, for which writers may have to wait.
        let reserver = scope.spawn(|| {
            let mut rng = Rng::with_seed(7);
            while !done.load(Ordering::Relaxed) {
                let newest = ring.statistics().newest_ns.unwrap_or(0);
                let reservation = ring.reserve(newest - rng.i64(0..10_000_000), newest);
                thread::yield_now();
                reservation.set_interval(newest, newest);
                thread::yield_now();
            }
        });
        for seed in 0..PRODUCERS as u64 {
            let producer = ring.producer().unwrap();
            scope.spawn(move || {
                assert_eq!(
                    produce(producer, count, seed),
                    0,
                    "a writer that waits is never refused"
                )
            });
        }
        let read: u64 = gating
            .into_iter()
            .map(|reader| {
                let (read, missed) = reader.join().unwrap();
                assert_eq!(missed, 0, "a gating group loses nothing");
                read
            })
            .sum();
        assert_eq!(read, count * PRODUCERS as u64);
        let (read, missed) = lapped.join().unwrap();
        assert_eq!(read + missed, count * PRODUCERS as u64);
        done.store(true, Ordering::Relaxed);
        reserver.join().unwrap();
    });
    assert_eq!(ring.statistics().stored_packets, count * PRODUCERS as u64);
    assert!(ring.statistics().evicted_packets > 0, "the ring went round");
}

#[test]
fn modes_change_under_load() {
    const PRODUCERS: usize = 2;
    let count = records() / 2;
    let ring = ring(Mode::Record, PRODUCERS, 1);
    let reader = ring.group(GroupKind::Lapped).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let switch = scope.spawn(|| {
            let mut rng = Rng::with_seed(3);
            let mut buckets = Vec::new();
            while !done.load(Ordering::Relaxed) {
                ring.set_mode([Mode::Record, Mode::Protect, Mode::Wait][rng.usize(0..3)]);
                let reservation = ring.reserve(rng.i64(-1_000_000..100_000_000), i64::MAX);
                thread::yield_now();
                reservation.buckets(&mut buckets);
                buckets
                    .iter()
                    .for_each(|info| reservation.give_back(info.bucket));
            }
        });
        let reader = scope.spawn(move || analyze(reader, (0, 1), PRODUCERS, count));
        for seed in 0..PRODUCERS as u64 {
            let producer = ring.producer().unwrap();
            scope.spawn(move || produce(producer, count, seed));
        }
        let (read, missed) = reader.join().unwrap();
        assert_eq!(read + missed, count * PRODUCERS as u64);
        done.store(true, Ordering::Relaxed);
        switch.join().unwrap();
    });
}
