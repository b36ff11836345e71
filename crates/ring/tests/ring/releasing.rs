//! Readers that return the end of a batch, pass over records, or release their bucket.

use retroscope_ring::{GroupKind, Mode, Producer, Reader, Record, Ring, RingConfig};

const BUCKET_BYTES: usize = 272 << 10;
const BUCKETS: usize = 8;
const PACKET_BYTES: usize = 4_000;

fn ring(mode: Mode) -> (Ring, Producer, Reader) {
    let config = RingConfig {
        bucket_bytes: Some(BUCKET_BYTES),
        mode,
        releasing_readers: 1,
        ..RingConfig::new((BUCKETS * BUCKET_BYTES) as u64, 1, 1)
    };
    let ring = Ring::new(&config, None).expect("some MiB");
    let producer = ring.producer().expect("the first");
    let other = ring.group(GroupKind::Lapped).expect("the first");
    let reader = ring.group(GroupKind::Lapped).expect("the releasing one");
    assert!(ring.group(GroupKind::Lapped).is_err(), "both are open");
    drop(other);
    (ring, producer, reader)
}

fn store(producer: &mut Producer, records: u64) {
    for _ in 0..records {
        let number = producer.stored();
        let frame = [number.to_le_bytes()[0]; PACKET_BYTES];
        let record = Record::whole(number.cast_signed(), 0, &frame);
        producer.store(&record).expect("the mode lets it");
    }
    producer.publish();
}

#[test]
fn each_record_is_read_passed_over_or_missed() {
    let (mut returned, mut passed_over, mut all_missed) = (0, 0, 0);
    for seed in 0..50 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (_ring, mut producer, mut reader) = ring(Mode::Record);
        let mut next = 0;
        for _ in 0..300 {
            match random.u8(..8) {
                0 => store(&mut producer, random.u64(0..1_200)),
                1 | 2 => store(&mut producer, random.u64(0..20)),
                3 => reader.release(),
                4 => reader.finish(),
                5 => {
                    let stored = producer.stored();
                    let to = stored.min(next + random.u64(0..40));
                    passed_over += to - next;
                    reader.continue_at(0, to);
                    next = to;
                }
                _ => {
                    let Some(batch) = reader.next() else {
                        assert_eq!(next, producer.stored(), "{seed}: records are left");
                        continue;
                    };
                    let missed = batch.missed.packets;
                    assert_eq!(missed > 0, batch.missed.bytes > 0, "{seed}");
                    assert_eq!(batch.first, next + missed, "{seed}");
                    all_missed += missed;
                    let most = batch.len() as u64;
                    let count = random.u64(1..=most);
                    for (record, number) in batch.iter().zip(batch.first..) {
                        assert_eq!(record.time_ns.unsigned_abs(), number, "{seed}");
                        assert_eq!(record.data[0], number.to_le_bytes()[0], "{seed}");
                    }
                    next = batch.first + count;
                    if count < most {
                        returned += most - count;
                        reader.continue_at(0, next);
                    }
                }
            }
        }
        reader.finish();
        assert_eq!(reader.positions().get(0), next, "{seed}");
    }
    assert!(returned > 1_000 && passed_over > 1_000 && all_missed > 1_000);
}

/// After `release` the ring may overwrite the bucket that the reader read last, but not after
/// `finish` alone.
#[test]
fn a_reader_that_has_released_holds_no_bucket() {
    for releases in [true, false] {
        let (ring, mut producer, mut reader) = ring(Mode::Record);
        store(&mut producer, 10);
        assert!(reader.next().is_some());
        if releases {
            reader.release();
        } else {
            reader.finish();
        }
        store(&mut producer, 2_000);
        let mut buckets = Vec::new();
        ring.buckets_within(i64::MIN, i64::MAX, &mut buckets);
        let first_is_there = buckets.iter().any(|bucket| bucket.min_ns == 0);
        assert_eq!(first_is_there, !releases);
    }
}

/// The next batch begins with the first record that was not passed over.
#[test]
fn records_are_passed_over_before_they_are_published() {
    let (_ring, mut producer, mut reader) = ring(Mode::Record);
    let record = Record::whole(0, 0, &[0; PACKET_BYTES]);
    for _ in 0..5 {
        producer.store(&record).unwrap();
    }
    reader.continue_at(0, 4);
    assert!(reader.next().is_none(), "nothing is published");
    producer.publish();
    let batch = reader.next().unwrap();
    assert_eq!((batch.first, batch.len(), batch.missed.packets), (4, 1, 0));
}
