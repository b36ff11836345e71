//! Models of the ring's protocol, which loom runs in many orders of threads.
//!
//! `RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=2 cargo test -p retroscope-ring --release --lib
//! --test loom`
//!
//! Each 16 bytes of a record have a shadow cell. A model fails if a read and a write of a cell are
//! not ordered. It also fails if a thread is never woken, because time does not pass under loom.
//! Loom treats SeqCst accesses as AcqRel and does not model load buffering: a pass is evidence, not
//! proof.
#![cfg(loom)]

use std::time::Duration;

use loom::thread;
use retroscope_ring::{
    BucketRef, GroupKind, Mode, Packet, Producer, Reader, Record, Ring, RingConfig, StoreError,
};

const FOREVER: Duration = Duration::from_secs(3600);
/// Bucket sizes in bytes, for one record and for two.
const ONE: usize = 48;
const TWO: usize = 80;

fn ring(bucket_bytes: usize, buckets: u64, mode: Mode) -> Ring {
    let config = RingConfig {
        bucket_bytes: Some(bucket_bytes),
        mode,
        ..RingConfig::new(buckets * bucket_bytes as u64, 1, 1)
    };
    Ring::new(&config, None).expect("a few cells")
}

/// Stores and publishes a record whose time, wire length and only byte are its number.
fn store(producer: &mut Producer, number: u8) -> Result<(), StoreError> {
    store_unpublished(producer, number)?;
    producer.publish();
    Ok(())
}

fn store_unpublished(producer: &mut Producer, number: u8) -> Result<(), StoreError> {
    let data = [number];
    let record = Record {
        wire_len: u32::from(number),
        ..Record::whole(i64::from(number), 0, &data)
    };
    producer.store(&record)
}

fn check(packet: Packet<'_>, number: u64) {
    let number = u8::try_from(number).expect("a model stores a few records");
    assert_eq!(packet.time_ns, i64::from(number));
    assert_eq!(packet.wire_len, u32::from(number));
    assert_eq!(packet.data, [number]);
}

/// Reads all published records. `expected` is the number of the next record. Returns (records read,
/// records missed).
fn drain(reader: &mut Reader, expected: &mut u64) -> (u64, u64) {
    let (mut read, mut missed) = (0, 0);
    while let Some(batch) = reader.next() {
        assert_eq!(
            batch.first,
            *expected + batch.missed.packets,
            "missed what was between"
        );
        missed += batch.missed.packets;
        *expected = batch.first;
        for packet in batch {
            check(packet, *expected);
            *expected += 1;
            read += 1;
        }
    }
    (read, missed)
}

#[test]
fn the_committed_part_of_an_open_bucket_is_read() {
    loom::model(|| {
        let ring = ring(TWO, 2, Mode::Record);
        let mut reader = ring.group(GroupKind::Lapped).unwrap();
        let mut producer = ring.producer().unwrap();
        let writer = thread::spawn(move || {
            store(&mut producer, 0).unwrap();
            store(&mut producer, 1).unwrap();
            producer
        });
        let mut expected = 0;
        drain(&mut reader, &mut expected);
        let producer = writer.join().unwrap();
        drain(&mut reader, &mut expected);
        assert_eq!((expected, reader.lapped().packets), (2, 0));
        drop(producer);
    });
}

#[test]
fn what_is_published_together_is_seen_together() {
    loom::model(|| {
        let ring = ring(TWO, 2, Mode::Record);
        let mut reader = ring.group(GroupKind::Lapped).unwrap();
        let mut producer = ring.producer().unwrap();
        let writer = thread::spawn(move || {
            for number in 0..3 {
                // Storing the third record publishes the first two, because it does not fit their
                // bucket.
                store_unpublished(&mut producer, number).unwrap();
            }
            producer.publish();
            producer
        });
        let mut expected = 0;
        for _ in 0..2 {
            drain(&mut reader, &mut expected);
            assert!(
                [0, 2, 3].contains(&expected),
                "{expected} records of 2 and then 1"
            );
        }
        let _producer = writer.join().unwrap();
        drain(&mut reader, &mut expected);
        assert_eq!((expected, reader.lapped().packets), (3, 0));
    });
}

/// Under loom a group has two descriptors: the second burst completes a group that is partly
/// published.
#[test]
fn what_a_burst_stores_is_seen_when_it_is_published() {
    const FIVE: usize = 176;
    const LINES: [[u8; 16]; 5] = [[0; 16], [1; 16], [2; 16], [3; 16], [4; 16]];
    fn burst(producer: &mut Producer, numbers: std::ops::Range<usize>) {
        let count = numbers.len();
        let records = (0..).zip(&LINES).skip(numbers.start).take(count);
        let records = records.map(|(time, line)| Record::whole(time, 0, line));
        assert_eq!(producer.store_burst(records), Ok(count));
        producer.publish();
    }
    fn read(reader: &mut Reader) -> usize {
        let mut read = 0;
        while let Some(batch) = reader.next() {
            assert_eq!((batch.len(), batch.missed.packets), (batch.iter().len(), 0));
            for (number, packet) in (batch.first..).zip(batch) {
                let number = usize::try_from(number).expect("five");
                assert_eq!(
                    (packet.time_ns, packet.data),
                    (number as i64, &LINES[number][..])
                );
                read += 1;
            }
        }
        read
    }
    loom::model(|| {
        let ring = ring(FIVE, 2, Mode::Record);
        let mut reader = ring.group(GroupKind::Lapped).unwrap();
        let mut producer = ring.producer().unwrap();
        let writer = thread::spawn(move || {
            burst(&mut producer, 0..3);
            burst(&mut producer, 3..5);
            producer
        });
        let first = read(&mut reader);
        assert!([0, 3, 5].contains(&first), "{first} records of 3 and 2");
        let _producer = writer.join().unwrap();
        assert_eq!(first + read(&mut reader), 5);
    });
}

#[test]
fn times_of_an_open_bucket_cover_what_is_committed() {
    loom::model(|| {
        let ring = ring(TWO, 2, Mode::Record);
        let mut producer = ring.producer().unwrap();
        store(&mut producer, 1).unwrap();
        let writer = thread::spawn(move || {
            store(&mut producer, 0).unwrap(); // older than record 1: min_ns decreases
            producer
        });
        let reservation = ring.reserve(0, 0);
        let mut listed = Vec::new();
        reservation.buckets(&mut listed);
        let view = ring.hold(BucketRef {
            index: 0,
            generation: 1,
        });
        let view = view.expect("it is open");
        let info = view.info();
        for packet in view.iter_from(0).take(info.committed as usize) {
            assert!((info.min_ns..=info.max_ns).contains(&packet.time_ns));
        }
        let _producer = writer.join().unwrap();
        reservation.buckets(&mut listed);
        assert_eq!(listed.len(), 1, "record 0 is in the window");
    });
}

#[test]
fn claim_and_hold_exclude_each_other() {
    loom::model(|| {
        let ring = ring(ONE, 2, Mode::Record);
        let mut producer = ring.producer().unwrap();
        store(&mut producer, 0).unwrap();
        store(&mut producer, 1).unwrap();
        let writer = thread::spawn(move || {
            let stored = store(&mut producer, 2);
            (producer, stored)
        });
        let old = ring.hold(BucketRef {
            index: 0,
            generation: 1,
        });
        if let Some(view) = &old {
            assert_eq!(view.committed(), 1);
            check(view.packet(0), 0);
        }
        let new = ring.hold(BucketRef {
            index: 0,
            generation: 2,
        });
        assert!(old.is_none() || new.is_none(), "two generations at once");
        if let Some(view) = &new {
            for packet in view.iter_from(0) {
                check(packet, 2);
            }
        }
        drop(old);
        let (_producer, stored) = writer.join().unwrap();
        assert!(matches!(stored, Ok(()) | Err(StoreError::Full)));
    });
}

#[test]
fn a_lapped_reader_follows_or_is_told() {
    loom::model(|| {
        let ring = ring(ONE, 3, Mode::Record);
        let mut reader = ring.group(GroupKind::Lapped).unwrap();
        let mut producer = ring.producer().unwrap();
        store(&mut producer, 0).unwrap();
        store(&mut producer, 1).unwrap();
        store(&mut producer, 2).unwrap();
        let writer = thread::spawn(move || {
            let mut next = 3;
            for _ in 0..3 {
                // `Full` is possible: when the reader changes buckets, it holds both for a moment.
                next += u8::from(store(&mut producer, next).is_ok());
            }
            (producer, u64::from(next))
        });
        let mut expected = 0;
        let (read, missed) = drain(&mut reader, &mut expected);
        let (_producer, stored) = writer.join().unwrap();
        let (read_later, missed_later) = drain(&mut reader, &mut expected);
        assert_eq!(expected, stored);
        assert_eq!(
            read + missed + read_later + missed_later,
            stored,
            "stored = analyzed + lapped"
        );
        assert_eq!(missed + missed_later, reader.lapped().packets);
    });
}

#[test]
fn a_gating_group_wakes_the_writer_that_waits_for_it() {
    loom::model(|| {
        let ring = ring(ONE, 2, Mode::Wait);
        let mut reader = ring.group(GroupKind::Gating).unwrap();
        let mut producer = ring.producer().unwrap();
        store(&mut producer, 0).unwrap();
        store(&mut producer, 1).unwrap();
        let writer = thread::spawn(move || {
            store(&mut producer, 2).unwrap();
            producer
        });
        // The second batch releases bucket 0. No later action of this thread wakes the writer.
        assert_eq!(reader.next().map(|batch| batch.first), Some(0));
        assert_eq!(reader.next().map(|batch| batch.first), Some(1));
        let _producer = writer.join().unwrap();
        let mut expected = 2;
        assert_eq!(drain(&mut reader, &mut expected), (1, 0), "nothing is lost");
    });
}

#[test]
fn a_position_alone_wakes_the_writer() {
    loom::model(|| {
        let ring = ring(ONE, 2, Mode::Wait);
        let mut reader = ring.group(GroupKind::Gating).unwrap();
        let mut producer = ring.producer().unwrap();
        store(&mut producer, 0).unwrap();
        store(&mut producer, 1).unwrap();
        // Only dropping the reader lets the writer overwrite bucket 0.
        assert_eq!(reader.next().map(|batch| batch.first), Some(0));
        let writer = thread::spawn(move || {
            store(&mut producer, 2).unwrap();
            producer
        });
        drop(reader);
        writer.join().unwrap();
    });
}

#[test]
fn a_sleeping_reader_is_woken() {
    loom::model(|| {
        let ring = ring(TWO, 2, Mode::Record);
        let mut reader = ring.group(GroupKind::Lapped).unwrap();
        let mut producer = ring.producer().unwrap();
        let writer = thread::spawn(move || {
            store(&mut producer, 0).unwrap();
            store(&mut producer, 1).unwrap();
            producer
        });
        let mut expected = 0;
        while expected < 2 {
            assert!(reader.wait(FOREVER));
            drain(&mut reader, &mut expected);
        }
        let _producer = writer.join().unwrap();
    });
}

/// A writer that waits for a bucket cannot publish: it must wake its readers when it begins to
/// search.
#[test]
fn the_end_of_a_bucket_wakes_a_reader() {
    loom::model(|| {
        let ring = ring(ONE, 2, Mode::Wait);
        let mut reader = ring.group(GroupKind::Gating).unwrap();
        let mut producer = ring.producer().unwrap();
        let writer = thread::spawn(move || {
            store_unpublished(&mut producer, 0).unwrap();
            store_unpublished(&mut producer, 1).unwrap();
            producer
        });
        let mut expected = 0;
        while expected < 1 {
            assert!(reader.wait(FOREVER));
            drain(&mut reader, &mut expected);
        }
        let _producer = writer.join().unwrap();
    });
}

#[test]
fn a_waker_and_the_end_wake_as_well() {
    loom::model(|| {
        let ring = ring(TWO, 2, Mode::Record);
        let mut reader = ring.group(GroupKind::Lapped).unwrap();
        let waker = reader.waker();
        let other = thread::spawn(move || {
            waker.wake();
            ring.close();
        });
        assert!(reader.wait(FOREVER));
        other.join().unwrap();
    });
}

#[test]
fn nothing_falls_between_a_reservation_and_the_log() {
    loom::model(|| {
        let ring = ring(ONE, 3, Mode::Record);
        let mut producer = ring.producer().unwrap();
        store(&mut producer, 0).unwrap();
        store(&mut producer, 1).unwrap();
        store(&mut producer, 2).unwrap();
        let writer = thread::spawn(move || {
            let mut stored = 3;
            for _ in 0..2 {
                // `Full` is possible: the search may find each of the two closed buckets held.
                stored += u8::from(store(&mut producer, stored).is_ok());
            }
            (producer, u64::from(stored))
        });
        let reservation = ring.reserve(0, 1);
        let before = reservation.evicted_before().packets;
        let (mut listed, mut lost) = (Vec::new(), Vec::new());
        reservation.buckets(&mut listed);
        assert!(
            listed.len() as u64 <= 2 - before,
            "listed, although gone before"
        );
        let mut read = Vec::new();
        for info in listed {
            if let Some(view) = ring.hold(info.bucket) {
                check(view.packet(0), info.first);
                reservation.give_back(info.bucket);
                read.push(info.first);
            }
        }
        let (_producer, stored) = writer.join().unwrap();
        assert_eq!(reservation.fallen(&mut lost), None);
        // Each packet is counted once: as evicted before the reservation, as read, or as lost.
        for number in 0..2 {
            let told = lost.iter().filter(|bucket| bucket.first == number).count();
            let seen = read.iter().filter(|&&first| first == number).count();
            assert_eq!(
                usize::from(number < before) + told + seen,
                1,
                "packet {number}"
            );
        }
        assert!(
            lost.len() as u64 <= stored - 3,
            "more was lost than was overwritten"
        );
    });
}

#[test]
fn a_reservation_that_ends_wakes_the_writer() {
    loom::model(|| {
        let ring = ring(ONE, 2, Mode::Wait);
        let mut producer = ring.producer().unwrap();
        let reservation = ring.reserve(0, 1);
        store(&mut producer, 0).unwrap();
        store(&mut producer, 1).unwrap();
        let writer = thread::spawn(move || {
            store(&mut producer, 2).unwrap();
            producer
        });
        let first = BucketRef {
            index: 0,
            generation: 1,
        };
        let view = ring.hold(first);
        check(view.as_ref().expect("it is reserved").packet(0), 0);
        reservation.give_back(first);
        drop(view);
        let _producer = writer.join().unwrap();
        assert!(ring.hold(first).is_none());
    });
}

#[test]
fn the_end_wakes_a_writer() {
    loom::model(|| {
        let ring = ring(ONE, 2, Mode::Wait);
        let mut producer = ring.producer().unwrap();
        let _reservation = ring.reserve(0, 1);
        store(&mut producer, 0).unwrap();
        store(&mut producer, 1).unwrap();
        let writer = thread::spawn(move || store(&mut producer, 2));
        ring.close();
        assert_eq!(writer.join().unwrap(), Err(StoreError::Closed));
    });
}

#[test]
fn records_before_a_watermark_are_visible() {
    loom::model(|| {
        let ring = ring(TWO, 2, Mode::Record);
        let mut producer = ring.producer().unwrap();
        let handle = ring.clone();
        let writer = thread::spawn(move || {
            producer
                .store(&Record {
                    wire_len: 0,
                    ..Record::whole(0, 0, &[0])
                })
                .unwrap();
            producer.set_watermark(1);
            producer
        });
        if handle.watermark(0) == Some(1) {
            assert_eq!(handle.published(0), 1);
            let view = handle
                .hold(BucketRef {
                    index: 0,
                    generation: 1,
                })
                .expect("it is open");
            assert_eq!(view.committed(), 1);
            check(view.packet(0), 0);
        }
        drop(writer.join().unwrap());
    });
}
