//! Modes, reservations, holds and groups, mostly on a full ring.

use std::time::Duration;

use retroscope_ring::{
    BucketInfo, EvictedBucket, EvictionDetail, GroupKind, Mode, Producer, Reader, Record,
    Reservation, Ring, RingConfig, RingError, StoreError,
};

/// Three of these records fill a bucket of 512 KiB.
static FRAME: [u8; 150 << 10] = [7; 150 << 10];
const PER_BUCKET: i64 = 3;

fn ring(mode: Mode) -> Ring {
    let config = RingConfig {
        bucket_bytes: Some(512 << 10),
        mode,
        eviction_detail: EvictionDetail::Exact {
            budget_bytes: 1 << 20,
        },
        ..RingConfig::new(8 * (512 << 10), 1, 1)
    };
    Ring::new(&config, None).expect("4 MiB")
}

fn store(producer: &mut Producer, time_ns: i64) -> Result<(), StoreError> {
    producer.store(&Record::whole(time_ns, 0, &FRAME))?;
    producer.publish();
    Ok(())
}

/// Fills all buckets: stamps 0..24, three a bucket, the last bucket open.
fn fill(producer: &mut Producer) {
    for time in 0..8 * PER_BUCKET {
        store(producer, time).expect("the ring was empty");
    }
}

fn stamps(reader: &mut Reader) -> Vec<i64> {
    let mut stamps = Vec::new();
    while let Some(batch) = reader.next() {
        stamps.extend(batch.iter().map(|packet| packet.time_ns));
    }
    stamps
}

fn listed(reservation: &Reservation) -> Vec<BucketInfo> {
    let mut buckets = Vec::new();
    reservation.buckets(&mut buckets);
    buckets
}

#[test]
fn the_oldest_bucket_is_overwritten() {
    let ring = ring(Mode::Record);
    let mut producer = ring.producer().unwrap();
    fill(&mut producer);
    assert_eq!(ring.statistics().evicted_packets, 0);
    store(&mut producer, 24).unwrap();
    let statistics = ring.statistics();
    assert_eq!(
        (statistics.stored_packets, statistics.evicted_packets),
        (25, 3)
    );
    assert_eq!(
        (statistics.oldest_ns, statistics.newest_ns),
        (Some(3), Some(24))
    );
    let evicted = *ring.reserve(1, 100).evicted_before();
    assert_eq!((evicted.packets, evicted.exact), (2, true));
    assert_eq!((evicted.first_ns, evicted.last_ns), (Some(1), Some(2)));
}

#[test]
fn the_first_to_close_goes_first_whatever_its_times() {
    let ring = ring(Mode::Record);
    let mut producer = ring.producer().unwrap();
    for time in [50, 51, 90, 10, 11, 12, 0, 60, 61] {
        store(&mut producer, time).unwrap();
    }
    for time in 100..115 {
        store(&mut producer, time).unwrap();
    }
    for (time, first_ns) in [(200, 50), (203, 10), (206, 0)] {
        for time in time..time + 3 {
            store(&mut producer, time).unwrap();
        }
        let evicted = *ring.reserve(i64::MIN, i64::MAX).evicted_before();
        assert_eq!(evicted.first_ns, Some(first_ns));
    }
}

#[test]
fn a_held_bucket_is_skipped() {
    let ring = ring(Mode::Record);
    let mut producer = ring.producer().unwrap();
    fill(&mut producer);
    let oldest = listed(&ring.reserve(0, 0))[0].bucket;
    let view = ring.hold(oldest).unwrap();
    store(&mut producer, 24).unwrap();
    assert_eq!(view.packet(0).time_ns, 0);
    assert_eq!(view.packet(2).data, &FRAME[..]);
    assert_eq!(
        ring.reserve(3, 5).evicted_before().packets,
        3,
        "the next older one went"
    );
    drop(view);
    for time in 25..28 {
        store(&mut producer, time).unwrap();
    }
    assert!(ring.hold(oldest).is_none());
    assert_eq!(ring.reserve(0, 2).evicted_before().packets, 3);
}

#[test]
fn record_mode_overwrites_the_oldest_bucket_if_all_are_wanted() {
    let ring = ring(Mode::Record);
    let mut producer = ring.producer().unwrap();
    let first = ring.reserve(0, 11);
    let second = ring.reserve(9, 100);
    fill(&mut producer);
    let mut lost: Vec<EvictedBucket> = Vec::new();
    let news = ring.reservation_news();
    store(&mut producer, 24).unwrap();
    assert!(ring.reservation_news() > news);
    assert_eq!((first.has_fallen(), second.has_fallen()), (true, false));
    assert_eq!(first.fallen(&mut lost), None);
    assert_eq!(lost.iter().map(|b| b.min_ns).collect::<Vec<_>>(), [0]);
    assert_eq!(ring.statistics().reservations_fallen, 1);
    for time in 25..34 {
        store(&mut producer, time).unwrap();
    }
    assert_eq!(second.fallen(&mut lost), None);
    assert_eq!(lost.len(), 2, "0..9 belonged to the first alone");
    assert_eq!(
        (lost[1].min_ns, ring.statistics().reservations_fallen),
        (9, 2)
    );
    lost.clear();
    assert_eq!(first.fallen(&mut lost), None);
    assert_eq!(
        lost.iter().map(|b| b.min_ns).collect::<Vec<_>>(),
        [3, 6, 9],
        "told once each"
    );
    assert_eq!(lost[2].count_in(10, 100, 2).packets, 1);
}

/// Buckets that nobody wants are overwritten first, then those that only yielding reservations
/// want.
#[test]
fn yielding_reservations_lose_buckets_first() {
    let ring = ring(Mode::Record);
    let mut producer = ring.producer().unwrap();
    fill(&mut producer);
    let yielding: Vec<_> = (0..500).map(|_| ring.reserve(0, i64::MAX)).collect();
    yielding.iter().for_each(|it| it.set_yielding(true));
    let firm = ring.reserve(0, 5);
    let buckets = listed(&firm);
    for reservation in yielding.iter().chain([&firm]) {
        reservation.give_back(buckets[1].bucket);
    }
    let next = |producer: &mut Producer, time: i64| {
        let before = ring.reserve(0, i64::MAX).evicted_before().packets;
        (time..time + PER_BUCKET).for_each(|time| store(producer, time).unwrap());
        let after = *ring.reserve(0, i64::MAX).evicted_before();
        assert_eq!(after.packets - before, 3);
        after.last_ns
    };
    assert_eq!(next(&mut producer, 24), Some(5), "nobody wants it");
    assert!(!yielding[0].has_fallen());
    assert_eq!(next(&mut producer, 27), Some(8));
    assert_eq!(next(&mut producer, 30), Some(11));
    assert!(yielding.iter().all(Reservation::has_fallen));
    assert!(!firm.has_fallen());
    yielding.iter().for_each(|it| it.set_yielding(false));
    assert_eq!(next(&mut producer, 33), Some(11), "the first of all");
    assert!(firm.has_fallen());
    let mut lost = Vec::new();
    assert_eq!(yielding[499].fallen(&mut lost), None);
    assert_eq!(lost.iter().map(|b| b.min_ns).collect::<Vec<_>>(), [6, 9, 0]);
    drop(yielding);
    assert_eq!(next(&mut producer, 36), Some(14), "nobody wants it now");
}

/// The log may forget overwritten buckets before the owner of a fallen reservation asks for its
/// losses.
#[test]
fn a_fallen_reservation_says_what_it_does_not_know() {
    let config = RingConfig {
        bucket_bytes: Some(512 << 10),
        eviction_detail: EvictionDetail::Exact { budget_bytes: 400 },
        ..RingConfig::new(8 * (512 << 10), 1, 1)
    };
    let ring = Ring::new(&config, None).unwrap();
    let mut producer = ring.producer().unwrap();
    let (early, all) = (ring.reserve(0, 2), ring.reserve(0, i64::MAX));
    fill(&mut producer);
    for time in 24..51 {
        store(&mut producer, time).unwrap();
    }
    let forgotten = ring.reserve(0, 100).evicted_before().unknown_before_ns;
    assert!((Some(2)..Some(26)).contains(&forgotten), "{forgotten:?}");
    let mut lost = Vec::new();
    assert_eq!(early.fallen(&mut lost), forgotten);
    assert!(lost.is_empty());
    assert_eq!(all.fallen(&mut lost), forgotten);
    let told = lost.first().map(|bucket| bucket.min_ns - 1);
    assert_eq!(told, forgotten, "the rest is told");
    lost.clear();
    assert_eq!(all.fallen(&mut lost), None, "told once");
    store(&mut producer, 51).unwrap();
    assert_eq!(all.fallen(&mut lost), None, "nothing was forgotten since");
    assert_eq!(lost.len(), 1);
}

#[test]
fn a_reservation_knows_what_was_gone_before() {
    let ring = ring(Mode::Record);
    let mut producer = ring.producer().unwrap();
    fill(&mut producer);
    store(&mut producer, 24).unwrap();
    let reservation = ring.reserve(2, 10);
    assert_eq!(reservation.evicted_before().packets, 1);
    assert_eq!(
        listed(&reservation)
            .iter()
            .map(|b| b.min_ns)
            .collect::<Vec<_>>(),
        [3, 6, 9]
    );
    assert_eq!(
        ring.reserve(10, 2).evicted_before().packets,
        0,
        "an empty interval"
    );
    assert!(listed(&ring.reserve(10, 2)).is_empty());
}

#[test]
fn protect_mode_drops_what_is_new_until_something_is_given_back() {
    let ring = ring(Mode::Protect);
    let mut producer = ring.producer().unwrap();
    let reservation = ring.reserve(i64::MIN, i64::MAX);
    fill(&mut producer);
    assert_eq!(store(&mut producer, 24), Err(StoreError::Full));
    assert_eq!(store(&mut producer, 25), Err(StoreError::Full));
    assert_eq!(ring.published(0), 24);
    let buckets = listed(&reservation);
    assert_eq!((buckets.len(), buckets[7].closed), (8, false));
    reservation.give_back(buckets[7].bucket);
    assert_eq!(
        store(&mut producer, 26),
        Err(StoreError::Full),
        "an open bucket cannot be given back"
    );
    reservation.give_back(buckets[3].bucket);
    store(&mut producer, 27).unwrap();
    assert_eq!(ring.reserve(0, 100).evicted_before().first_ns, Some(9));
    assert_eq!(listed(&reservation).len(), 8);
    let mut lost = Vec::new();
    assert_eq!(reservation.fallen(&mut lost), None);
    assert!(lost.is_empty(), "it did not need it");
    reservation.set_interval(6, i64::MAX);
    for time in 28..34 {
        store(&mut producer, time).unwrap();
    }
    assert_eq!(ring.reserve(0, 5).evicted_before().packets, 6);
    assert_eq!(store(&mut producer, 34), Ok(()));
    assert_eq!(store(&mut producer, 35), Ok(()));
    assert_eq!(store(&mut producer, 36), Err(StoreError::Full));
    drop(reservation);
    assert_eq!(store(&mut producer, 37), Ok(()));
}

#[test]
fn modes_change_while_a_writer_is_stuck() {
    let ring = ring(Mode::Protect);
    let mut producer = ring.producer().unwrap();
    let reservation = ring.reserve(i64::MIN, i64::MAX);
    fill(&mut producer);
    assert_eq!(store(&mut producer, 24), Err(StoreError::Full));
    ring.set_mode(Mode::Record);
    assert_eq!(store(&mut producer, 25), Ok(()));
    assert!(reservation.has_fallen());
    assert_eq!(ring.statistics().reservations_fallen, 1);
}

#[test]
fn a_closed_ring_does_not_wait() {
    let ring = ring(Mode::Wait);
    let mut producer = ring.producer().unwrap();
    let reservation = ring.reserve(i64::MIN, i64::MAX);
    fill(&mut producer);
    ring.close();
    assert_eq!(store(&mut producer, 24), Err(StoreError::Closed));
    drop(reservation);
    assert_eq!(
        store(&mut producer, 25),
        Ok(()),
        "what need not wait still works"
    );
}

#[test]
fn a_gating_group_keeps_what_it_has_not_passed() {
    let ring = ring(Mode::Protect);
    let mut reader = ring.group(GroupKind::Gating).unwrap();
    let mut producer = ring.producer().unwrap();
    fill(&mut producer);
    assert_eq!(store(&mut producer, 24), Err(StoreError::Full));
    assert_eq!(reader.next().map(|batch| batch.len()), Some(3));
    assert_eq!(
        store(&mut producer, 24),
        Err(StoreError::Full),
        "handed out is not passed"
    );
    reader.finish();
    assert_eq!(reader.positions().get(0), 3);
    assert_eq!(
        store(&mut producer, 24),
        Err(StoreError::Full),
        "passed, but the reader still holds it"
    );
    assert_eq!(reader.next().map(|batch| batch.first), Some(3));
    assert_eq!(store(&mut producer, 24), Ok(()));
    assert_eq!(stamps(&mut reader), (6..25).collect::<Vec<_>>());
    drop(reader);
    for time in 25..100 {
        store(&mut producer, time).unwrap();
    }
}

#[test]
fn a_lapped_reader_is_told() {
    let ring = ring(Mode::Record);
    let mut reader = ring.group(GroupKind::Lapped).unwrap();
    let positions = reader.positions();
    let mut producer = ring.producer().unwrap();
    store(&mut producer, 0).unwrap();
    assert_eq!(stamps(&mut reader), [0]);
    for time in 1..60 {
        store(&mut producer, time).unwrap();
    }
    let batch = reader.next().unwrap();
    assert_eq!(
        batch.first, 1,
        "the bucket that the reader held was not overwritten"
    );
    assert_eq!((batch.len(), batch.missed.packets), (2, 0));
    let batch = reader.next().unwrap();
    // The ring has the held bucket, and 39..60 in seven other buckets.
    assert_eq!((batch.first, batch.missed.packets), (39, 36));
    assert_eq!(batch.missed.bytes, 36 * FRAME.len() as u64);
    assert_eq!(positions.get(0), 39);
    assert_eq!(stamps(&mut reader), (42..60).collect::<Vec<_>>());
    assert_eq!((reader.lapped().packets, positions.get(0)), (36, 60));
    assert_eq!(ring.reserve(0, 100).evicted_before().packets, 36);
}

#[test]
fn a_late_group_starts_with_what_is_there() {
    let ring = ring(Mode::Record);
    let mut producer = ring.producer().unwrap();
    fill(&mut producer);
    store(&mut producer, 24).unwrap();
    let mut reader = ring.group(GroupKind::Lapped).unwrap();
    assert_eq!(reader.positions().get(0), 3);
    assert_eq!(stamps(&mut reader), (3..25).collect::<Vec<_>>());
    assert_eq!(reader.lapped().packets, 0);
}

/// A held bucket is skipped when the ring overwrites, which leaves a gap after this bucket. A group
/// that starts later must report the gap as missed.
#[test]
fn a_late_group_is_told_of_a_hole_that_is_older_than_itself() {
    for kind in [GroupKind::Lapped, GroupKind::Gating] {
        let ring = ring(Mode::Record);
        let mut producer = ring.producer().unwrap();
        for time in (0..6).chain(100..118) {
            store(&mut producer, time).unwrap();
        }
        let first = listed(&ring.reserve(0, 0))[0].bucket;
        let held = ring.hold(first).unwrap();
        store(&mut producer, 118).unwrap();
        drop(held);
        let log = *ring.reserve(i64::MIN, i64::MAX).evicted_before();
        assert_eq!((log.first_ns, log.packets), (Some(3), 3), "the second one");
        let mut reader = ring.group(kind).unwrap();
        assert_eq!(reader.positions().get(0), 0);
        assert_eq!(reader.next().map(|batch| batch.first), Some(0));
        let batch = reader.next().unwrap();
        assert_eq!((batch.first, batch.missed.packets), (6, 3), "{kind:?}");
        assert_eq!(stamps(&mut reader), (103..119).collect::<Vec<_>>());
        assert_eq!(reader.lapped().packets, 3, "stored = analyzed + lapped");
    }
}

#[test]
fn the_hook_runs_before_an_overwrite_only() {
    let ring = ring(Mode::Record);
    let mut producer = ring.producer().unwrap();
    let calls = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = std::sync::Arc::clone(&calls);
    let handle = ring.clone();
    producer.on_new_bucket(Box::new(move || {
        seen.lock().unwrap().push(handle.published(0));
    }));
    fill(&mut producer);
    assert!(calls.lock().unwrap().is_empty());
    for time in 24..31 {
        producer.store(&Record::whole(time, 0, &FRAME)).unwrap();
    }
    assert_eq!(*calls.lock().unwrap(), [24, 27, 30]);
}

#[test]
fn roles_are_counted() {
    let ring = ring(Mode::Record);
    let producer = ring.producer().unwrap();
    assert!(matches!(
        ring.producer(),
        Err(RingError::Producers { max: 1 })
    ));
    let reader = ring.group(GroupKind::Lapped).unwrap();
    assert!(matches!(
        ring.group(GroupKind::Lapped),
        Err(RingError::Readers { max: 1, asked: 1 })
    ));
    drop(reader);
    assert!(ring.group(GroupKind::Lapped).is_ok());
    drop(producer);
    assert_eq!((ring.producers(), ring.watermark(0)), (1, Some(i64::MAX)));
}

#[test]
fn a_producer_that_leaves_closes_its_bucket() {
    let ring = ring(Mode::Record);
    let mut producer = ring.producer().unwrap();
    let reservation = ring.reserve(0, 10);
    producer.store(&Record::whole(5, 0, b"x")).unwrap();
    drop(producer);
    let bucket = listed(&reservation)[0];
    assert!(bucket.closed);
    assert_eq!((bucket.committed, ring.published(0)), (1, 1));
    let view = ring.hold(bucket.bucket).unwrap();
    assert_eq!(view.info(), bucket);
    assert_eq!(view.iter_from(0).len(), 1);
}

#[test]
fn a_reader_that_dozes_is_woken_by_wakers_only() {
    let ring = ring(Mode::Record);
    let (mut producer, mut reader) = (
        ring.producer().unwrap(),
        ring.group(GroupKind::Lapped).unwrap(),
    );
    let waker = reader.waker();
    waker.wake();
    assert!(reader.doze(Duration::MAX), "at once");
    // This wait leaves the reader's bit in the wait set of its producer.
    assert!(!reader.wait(Duration::ZERO));
    store(&mut producer, 7).unwrap();
    producer.publish();
    assert!(!reader.doze(Duration::from_millis(1)), "whatever is there");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for time_ns in 8..20 {
                store(&mut producer, time_ns).unwrap();
                producer.publish();
            }
            waker.wake();
        });
        assert!(reader.doze(Duration::MAX), "behind the publications");
    });
    assert_eq!(stamps(&mut reader), (7..20).collect::<Vec<_>>());
    drop(producer);
    assert!(!reader.doze(Duration::ZERO), "nor by the end of a producer");
}

/// A bucket has at most 16,383 holds. While all are taken, a reader must not count the records as
/// missed.
#[test]
fn a_reader_waits_for_a_bucket_that_has_all_its_holds() {
    let ring = Ring::new(&RingConfig::new(16 << 20, 1, 1), None).unwrap();
    let mut producer = ring.producer().unwrap();
    producer.store(&Record::whole(7, 0, b"one")).unwrap();
    producer.publish();
    let mut buckets = Vec::new();
    ring.buckets_from(0, 0, &mut buckets);
    let bucket = buckets[0].bucket;
    let mut views: Vec<_> = (0..16_383).map(|_| ring.hold(bucket).unwrap()).collect();
    assert!(ring.hold(bucket).is_none());
    let mut reader = ring.group(GroupKind::Lapped).unwrap();
    assert!(reader.next().is_none());
    views.pop();
    assert_eq!(reader.next().map(|batch| batch.len()), Some(1));
    assert_eq!(reader.lapped(), retroscope_ring::Lapped::default());
}
