//! After the start nothing allocates: not storing, publishing, reading, overwriting or being lapped.
#![cfg(not(loom))]
#![expect(unsafe_code, reason = "an allocator that counts is an unsafe trait")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicU64, Ordering},
};

use retroscope_ring::{GroupKind, Record, Ring, RingConfig};

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

struct Counting;

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise is the one that is asked for here.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

// The only test of this file: others would allocate meanwhile.
#[test]
fn nothing_allocates_after_the_start() {
    let config = RingConfig {
        bucket_bytes: Some(272 << 10),
        ..RingConfig::new(16 * (272 << 10), 2, 2)
    };
    let ring = Ring::new(&config, None).unwrap();
    let mut prompt = ring.group("prompt", GroupKind::Gating).unwrap();
    let mut late = ring.group("late", GroupKind::Lapped).unwrap();
    let mut producers = [ring.producer().unwrap(), ring.producer().unwrap()];
    let frame = [7; 1500];
    let mut run = |rounds: i64| {
        let mut read = 0;
        for time in 0..rounds {
            for producer in &mut producers {
                producer.store(&Record::whole(time, 0, &frame)).unwrap();
                producer.publish();
            }
            while let Some(batch) = prompt.next() {
                read += batch.iter().filter(|packet| packet.data == frame).count();
            }
            if time % 5000 == 0 {
                while late.next().is_some() {}
            }
        }
        assert_eq!(read as i64, 2 * rounds);
    };
    run(10);
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    run(20_000);
    let after = ALLOCATIONS.load(Ordering::Relaxed);
    assert_eq!(after - before, 0);
    assert!(ring.statistics().evicted_packets > 10_000 && late.lapped().packets > 0);
}
