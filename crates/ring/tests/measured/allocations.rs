//! With `EvictionDetail::Bounds`, the data path allocates nothing after a warm-up. Allocations are
//! counted per thread, so that the harness and other tests do not disturb.
#![expect(unsafe_code, reason = "an allocator that counts is an unsafe trait")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    hint::black_box,
    thread,
    time::Duration,
};

use retroscope_ring::{BucketInfo, GroupKind, Record, Ring, RingConfig};

thread_local! {
    // Constant and without a destructor: counting does not allocate.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: forwards every call to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller makes the same promise that this call requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller makes the same promise that this call requires.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const DEADLINE: Duration = Duration::from_secs(60);
const BUCKET_BYTES: usize = 272 << 10;
static FRAME: [u8; 1500] = [7; 1500];

/// Counts the allocations of this thread in `work`.
fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

fn ring(producers: usize, readers: usize) -> Ring {
    let config = RingConfig {
        bucket_bytes: Some(BUCKET_BYTES),
        ..RingConfig::new(
            (4 * (producers + readers) * BUCKET_BYTES) as u64,
            producers,
            readers,
        )
    };
    Ring::new(&config, None).expect("some MiB")
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocations(|| drop(black_box(Box::new(1)))), 1);
    let mut list = Vec::with_capacity(1);
    assert_eq!(
        allocations(|| list.extend([1, 2, 3])),
        1,
        "a list that grows"
    );
}

#[test]
fn storing_reading_and_being_lapped_do_not_allocate() {
    let ring = ring(2, 2);
    let mut prompt = ring.group(GroupKind::Gating).unwrap();
    let mut late = ring.group(GroupKind::Lapped).unwrap();
    let mut producers = [ring.producer().unwrap(), ring.producer().unwrap()];
    let mut run = |rounds: i64| {
        let mut read = 0;
        for time in 0..rounds {
            for producer in &mut producers {
                producer.store(&Record::whole(time, 0, &FRAME)).unwrap();
                producer.publish();
            }
            while let Some(batch) = prompt.next() {
                read += batch.iter().filter(|packet| packet.data == FRAME).count();
            }
            if time % 5000 == 0 {
                while late.next().is_some() {}
            }
        }
        assert_eq!(read as i64, 2 * rounds);
    };
    run(10);
    assert_eq!(allocations(|| run(20_000)), 0);
    assert!(ring.statistics().evicted_packets > 10_000 && late.lapped().packets > 0);
}

#[test]
fn storing_bursts_does_not_allocate() {
    let ring = ring(1, 1);
    let mut reader = ring.group(GroupKind::Gating).unwrap();
    let mut producer = ring.producer().unwrap();
    let mut run = |rounds: usize| {
        let mut read = 0;
        for round in 0..rounds {
            // These records take different paths into the bucket.
            let burst = (0..64_usize).map(|number| {
                let (first, second) = match number % 16 {
                    5 => FRAME.split_at(700),
                    9 => FRAME.split_at(100),
                    _ if round % 3 == 0 => (&FRAME[..], &FRAME[..0]),
                    _ => (&FRAME[..64], &FRAME[..0]),
                };
                Record {
                    parts: [first, second, &[]],
                    ..Record::whole(round as i64, 0, &FRAME)
                }
            });
            assert_eq!(producer.store_burst(burst), Ok(64));
            if round % 5 == 0 {
                producer.publish();
            }
            while let Some(batch) = reader.next() {
                read += batch.iter().filter(|packet| packet.data[0] == 7).count();
            }
        }
        producer.publish();
        while let Some(batch) = reader.next() {
            read += batch.len();
        }
        assert_eq!(read, 64 * rounds);
    };
    run(10);
    assert_eq!(allocations(|| run(500)), 0);
    assert!(ring.statistics().evicted_packets > 10_000);
}

#[test]
fn sleeping_and_waking_do_not_allocate() {
    const ROUNDS: u64 = 3000;
    let ring = ring(1, 1);
    let mut reader = ring.group(GroupKind::Lapped).unwrap();
    let positions = reader.positions();
    let mut producer = ring.producer().unwrap();
    let reading = thread::spawn(move || {
        let mut sleeps = 0_u64;
        let mut read_until = |end| {
            while reader.positions().get(0) < end {
                let news = reader.next().is_some();
                reader.finish();
                if !news && reader.positions().get(0) < end {
                    sleeps += 1;
                    assert!(reader.wait(DEADLINE), "nobody woke the reader");
                }
            }
        };
        read_until(1);
        let allocated = allocations(|| read_until(ROUNDS));
        (allocated, sleeps)
    });
    let mut ping = |from, to| {
        for number in from..to {
            producer.store(&Record::whole(1, 0, &FRAME)).unwrap();
            producer.publish();
            while positions.get(0) <= number {
                thread::yield_now(); // until the reader has read the record
            }
        }
    };
    ping(0, 1);
    assert_eq!(allocations(|| ping(1, ROUNDS)), 0, "waking");
    let (allocated, sleeps) = reading.join().unwrap();
    assert_eq!(allocated, 0, "sleeping");
    assert!(sleeps > 10, "it slept {sleeps} times only");
}

#[test]
fn overwriting_around_reservations_does_not_allocate() {
    let ring = ring(1, 2);
    let mut producer = ring.producer().unwrap();
    let mut listed: Vec<BucketInfo> = Vec::with_capacity(ring.buckets());
    let mut run = |rounds: i64, time: &mut i64, window: &retroscope_ring::Reservation| {
        let mut read = 0;
        for _ in 0..rounds {
            for _ in 0..300 {
                *time += 1;
                producer.store(&Record::whole(*time, 0, &FRAME)).unwrap();
            }
            producer.set_watermark(*time);
            window.set_interval(*time - 400, *time - 100);
            window.buckets(&mut listed);
            for info in &listed {
                let view = ring.hold(info.bucket).expect("it is reserved");
                read += view
                    .iter_from(0)
                    .filter(|packet| packet.data == FRAME)
                    .count();
                window.give_back(info.bucket);
            }
        }
        assert!(read > 0);
    };
    // No thread gives the buckets of `standing` back: the writer must not overwrite these buckets.
    let (window, standing) = (ring.reserve(0, 0), ring.reserve(1, 500));
    let mut time = 0;
    run(20, &mut time, &window);
    assert_eq!(allocations(|| run(200, &mut time, &window)), 0);
    let statistics = ring.statistics();
    assert!(statistics.evicted_packets > 10_000);
    assert!(!standing.has_fallen() && !window.has_fallen());
    assert_eq!(ring.statistics().reservations_fallen, 0);
    standing.buckets(&mut listed);
    assert!(
        listed.iter().any(|info| info.min_ns == 1),
        "it still stands"
    );
}

/// The owner of the reservation copies the log's entries about the lost buckets later.
#[test]
fn a_reservation_that_falls_costs_the_writer_no_allocation() {
    let ring = ring(1, 1);
    let mut producer = ring.producer().unwrap();
    let window = ring.reserve(0, i64::MAX);
    let allocated = allocations(|| {
        for time in 0..20_000 {
            producer.store(&Record::whole(time, 0, &FRAME)).unwrap();
        }
    });
    assert_eq!(allocated, 0);
    let mut fallen = Vec::new();
    assert_eq!(window.fallen(&mut fallen), None);
    assert!(window.has_fallen() && fallen.len() > 50);
}
