//! `store_burst` stores the same records as `store`, whatever is published in between.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use retroscope_ring::{
    BurstError, GroupKind, Mode, Packet, Producer, Record, Ring, RingConfig, StoreError,
};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

#[derive(Debug, Clone)]
struct Made {
    time_ns: i64,
    wire_len: u32,
    interface: u16,
    shard: u8,
    data: Vec<u8>,
    /// Offsets at which the bytes are cut into parts.
    cuts: [usize; 2],
}

impl Made {
    fn random(rng: &mut fastrand::Rng, number: usize) -> Self {
        let length = match rng.u8(0..20) {
            0 => 0,
            1..=10 => rng.usize(1..200),
            11..=15 => rng.usize(1..2000),
            16 | 17 => 64,
            18 => rng.usize(480..560),
            _ => rng.usize(2000..70_000),
        };
        let first = rng.usize(0..=length);
        let cuts = match rng.u8(0..8) {
            0 => [first, rng.usize(first..=length)],
            _ => [length, length],
        };
        Self {
            time_ns: match rng.u8(0..30) {
                0 => i64::MAX - number as i64,
                _ => number as i64,
            },
            wire_len: u32::try_from(length).expect("at most 70,000")
                + u32::from(rng.u8(0..30) == 0) * 70_000,
            interface: if rng.u8(0..30) == 0 {
                300
            } else {
                rng.u16(0..4)
            },
            shard: rng.u8(0..32),
            data: std::iter::repeat_with(|| rng.u8(..)).take(length).collect(),
            cuts,
        }
    }

    fn record(&self) -> Record<'_> {
        let [first, second] = self.cuts;
        let parts = [
            &self.data[..first],
            &self.data[first..second],
            &self.data[second..],
        ];
        Record {
            wire_len: self.wire_len,
            shard: self.shard,
            parts,
            ..Record::whole(self.time_ns, self.interface, &[])
        }
    }

    fn assert_is(&self, packet: &Packet<'_>) {
        assert_eq!(
            (packet.time_ns, packet.wire_len),
            (self.time_ns, self.wire_len)
        );
        assert_eq!(
            (packet.interface, packet.shard),
            (self.interface, self.shard)
        );
        assert!(packet.data == self.data, "{} bytes differ", self.data.len());
    }
}

#[test]
fn bursts_store_what_single_stores_would() {
    for seed in 0..40 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let config = RingConfig {
            bucket_bytes: Some(272 << 10),
            mode: Mode::Wait,
            ..RingConfig::new(200 * (272 << 10), 1, 1)
        };
        let ring = Ring::new(&config, None).unwrap();
        let mut reader = ring.group(GroupKind::Gating).unwrap();
        let mut producer = ring.producer().unwrap();
        let made: Vec<Made> = (0..3000).map(|n| Made::random(&mut rng, n)).collect();
        let mut stored = 0;
        let mut read = 0;
        while stored < made.len() {
            let end = made.len().min(stored + rng.usize(0..200));
            let burst = made[stored..end].iter().map(Made::record);
            assert_eq!(producer.store_burst(burst), Ok(end - stored), "seed {seed}");
            stored = end;
            if rng.u8(0..3) == 0 {
                producer.store(&made[end - 1].record()).unwrap();
                producer.publish();
                // The publication usually ends inside a cache line, which later records complete.
                let again = &made[end - 1];
                while let Some(batch) = reader.next() {
                    for packet in batch {
                        if read < end {
                            made[read].assert_is(&packet);
                            read += 1;
                        } else {
                            again.assert_is(&packet);
                        }
                    }
                }
                assert_eq!(read, end, "seed {seed}");
            }
        }
        producer.publish();
        while let Some(batch) = reader.next() {
            for (packet, known) in batch.iter().zip(batch.times_and_lengths()) {
                made[read].assert_is(&packet);
                assert_eq!(known, (packet.time_ns, packet.data.len()));
                read += 1;
            }
        }
        assert_eq!(read, made.len(), "seed {seed}");
    }
}

#[test]
fn what_was_published_stays_as_it_was_while_the_bucket_fills() {
    let ring = Ring::new(&RingConfig::new(16 << 20, 1, 1), None).unwrap();
    let mut producer = ring.producer().unwrap();
    let mut rng = fastrand::Rng::with_seed(5);
    let mut published: Vec<Made> = Vec::new();
    let mut bucket = None;
    for number in 0..=255_u8 {
        let count = rng.usize(1..40);
        let made: Vec<Made> = (0..count)
            .map(|_| Made {
                data: vec![number; rng.usize(1..130)],
                ..Made::random(&mut rng, usize::from(number))
            })
            .map(|made| Made {
                cuts: [made.data.len(); 2],
                ..made
            })
            .collect();
        producer.store_burst(made.iter().map(Made::record)).unwrap();
        producer.publish();
        published.extend(made);
        let reservation = ring.reserve(i64::MIN, i64::MAX);
        let mut buckets = Vec::new();
        reservation.buckets(&mut buckets);
        bucket = bucket.or(buckets.first().map(|info| info.bucket));
        let view = ring.hold(bucket.unwrap()).unwrap();
        for (packet, made) in view.iter_from(0).zip(&published) {
            made.assert_is(&packet);
        }
    }
    assert!(published.len() > 3000);
}

#[test]
fn a_burst_that_finds_no_bucket_tells_how_far_it_came() {
    let config = RingConfig {
        bucket_bytes: Some(272 << 10),
        mode: Mode::Protect,
        ..RingConfig::new(8 * (272 << 10), 1, 1)
    };
    let ring = Ring::new(&config, None).unwrap();
    let mut reader = ring.group(GroupKind::Gating).unwrap();
    let mut producer = ring.producer().unwrap();
    let frame = [9; 1000];
    let mut records = (0..4000).map(|time| Record::whole(time, 0, &frame));
    let Err(BurstError { stored, error }) = producer.store_burst(records.by_ref()) else {
        panic!("the ring is smaller than the burst");
    };
    assert_eq!(error, StoreError::Full);
    assert!((2000..2300).contains(&stored), "{stored}");
    // The refused record is lost.
    assert_eq!(
        records.next().map(|record| record.time_ns),
        Some(stored as i64 + 1)
    );
    let mut read = 0;
    while let Some(batch) = reader.next() {
        read += batch.len();
    }
    assert_eq!(read, stored);
    assert_eq!(producer.store_burst(records.take(10)), Ok(10));
    drop(producer);
    assert_eq!(ring.statistics().stored_packets, stored as u64 + 10);
}

/// Long records must be published without waiting for the end of a group of 32.
#[test]
fn long_records_are_published_when_much_is_waiting() {
    let ring = Ring::new(&RingConfig::new(32 << 20, 1, 1), None).unwrap();
    let mut producer = ring.producer().unwrap();
    let frame = vec![1; 60_000];
    let records = [Record::whole(0, 0, &frame); 12];
    assert_eq!(producer.store_burst(records), Ok(12));
    assert!(ring.published(0) >= 10, "{} only", ring.published(0));
}

#[test]
fn a_producer_may_change_threads_before_it_publishes() {
    let ring = Ring::new(&RingConfig::new(16 << 20, 1, 1), None).unwrap();
    let mut reader = ring.group(GroupKind::Lapped).unwrap();
    let mut producer = ring.producer().unwrap();
    let frame = |number: i64| [number.to_ne_bytes()[0]; 100];
    for turn in 0..200 {
        // 20,000 bytes: too few for `store_burst` to publish by itself, and enough that it writes
        // past the cache.
        producer = std::thread::scope(|scope| {
            let mut producer = producer;
            let stored = scope.spawn(move || {
                let frames: Vec<_> = (0..200).map(|n| frame(turn + n)).collect();
                let records = frames.iter().map(|frame| Record::whole(turn, 0, frame));
                producer.store_burst(records).unwrap();
                producer
            });
            stored.join().unwrap()
        });
        producer
            .store(&Record::whole(turn, 0, &frame(turn)))
            .unwrap();
        producer.publish();
        let mut seen = 0;
        while let Some(batch) = reader.next() {
            for packet in batch {
                let number = if seen < 200 { turn + seen } else { turn };
                assert_eq!(packet.data, frame(number), "turn {turn}, record {seen}");
                seen += 1;
            }
        }
        assert_eq!(seen, 201);
    }
}

/// A seccomp filter that the process installs after its start may forbid membarrier(2).
#[test]
fn a_producer_may_change_threads_where_membarrier_is_forbidden() {
    let ring = Ring::new(&RingConfig::new(16 << 20, 1, 1), None).unwrap();
    let mut reader = ring.group(GroupKind::Lapped).unwrap();
    let mut producer = ring.producer().unwrap();
    let frames: Vec<_> = (0..200_u8).map(|number| [number; 100]).collect();
    let store = |producer: &mut Producer| {
        let records = frames.iter().map(|frame| Record::whole(0, 0, frame));
        producer.store_burst(records).unwrap();
    };
    // 20,000 unpublished bytes, enough that `store_burst` writes past the cache.
    store(&mut producer);
    let went_on = std::thread::scope(|scope| {
        let elsewhere = scope.spawn(|| {
            if let Err(error) = forbid(libc::SYS_membarrier) {
                eprintln!("SKIP: no seccomp filter here: {error}");
                return;
            }
            for _ in 0..10 {
                store(&mut producer);
                producer.publish();
            }
        });
        elsewhere.join().is_ok()
    });
    assert!(went_on);
    let mut seen = 0;
    while let Some(batch) = reader.next() {
        for packet in batch {
            let number = u8::try_from(seen % 200).unwrap();
            assert_eq!(packet.data, [number; 100], "record {seen}");
            seen += 1;
        }
    }
    assert!([0, 200 * 11].contains(&seen), "{seen}");
}

/// Makes this system call of the calling thread fail with EPERM from now on.
fn forbid(call: i64) -> seccompiler::Result<()> {
    let filter = SeccompFilter::new(
        [(call, Vec::new())].into(),
        SeccompAction::Allow,
        SeccompAction::Errno(libc::EPERM.cast_unsigned()),
        std::env::consts::ARCH.try_into()?,
    )?;
    let program: BpfProgram = filter.try_into()?;
    seccompiler::apply_filter(&program)
}

/// The records that a burst's iterator returned before it panicked are stored, except at most the
/// last unfinished group of 32.
#[test]
fn an_iterator_that_panics_costs_its_last_group_at_most() {
    static BYTES: [u8; 4096] = [0x6b; 4096];
    for lengths in [&[64][..], &[60], &[64, 1500, 60], &[1500], &[0, 1, 128]] {
        let ring = Ring::new(&RingConfig::new(16 << 20, 1, 1), None).unwrap();
        let mut reader = ring.group(GroupKind::Gating).unwrap();
        let mut producer = ring.producer().unwrap();
        let record = |number: usize| {
            let length = lengths[number % lengths.len()];
            let start = number % 1000;
            Record::whole(number as i64, 0, &BYTES[start..start + length])
        };
        let (mut stored, mut read) = (Vec::new(), 0);
        for good in (0..100).chain([1000, 2000]) {
            let from = 10_000 * good;
            let burst = (from..).map(|number| {
                if number - from == good {
                    resume_unwind(Box::new(())); // says nothing on stderr
                }
                record(number)
            });
            let unwound = catch_unwind(AssertUnwindSafe(|| producer.store_burst(burst)));
            assert!(unwound.is_err());
            let before = stored.len();
            stored.extend(from..from + good);
            let after = if good % 2 == 0 { 1 } else { 300 };
            let burst = (from + good..from + good + after).map(record);
            assert_eq!(producer.store_burst(burst), Ok(after));
            producer.publish();
            let lost = before + good + after - usize::try_from(ring.published(0)).unwrap();
            assert!(lost < 32 && lost <= good, "{lost} of {good}");
            stored.truncate(before + good - lost);
            stored.extend(from + good..from + good + after);
            while let Some(batch) = reader.next() {
                for packet in batch {
                    let expected = record(stored[read]);
                    assert_eq!(packet.time_ns, expected.time_ns, "{lengths:?}, {good}");
                    assert!(packet.data == expected.parts[0], "{lengths:?}, {good}");
                    read += 1;
                }
            }
            assert_eq!(read, stored.len());
        }
    }
}
