//! Operations on the outer queue, by number of threads: whether its mutex can become the limit.
//!
//! Each thread of the QQ of 2016 takes an empty storage, gives it back, dequeues one, gives it back, and so on. The ring gives a bucket
//! only for the one before, which must be full; so its threads store packets that fill a bucket each, and copying
//! them is part of the time: the figure is a lower bound of what its outer queue can do.

use std::io;

use retroscope_ring::RingConfig;

use crate::{
    contest::in_seconds,
    measure::{Entrant, Failure},
    memory::Memory,
    pin,
    qq2016::{Kind, Original, Queue, STORAGE_BYTES},
    ring::{made, store_one},
    session::Session,
};

/// Operations of a thread in one run.
const OPERATIONS_QQ: u64 = 100_000;
/// Buckets that a thread of the ring fills in one run.
const OPERATIONS_RING: u64 = 2000;
/// Bytes of a ring's bucket, and of the packet that fills most of it.
const BUCKET_BYTES: usize = 512 << 10;
const PACKET_BYTES: usize = 256 << 10;
/// Two packets do not fit.
const _: () = assert!(2 * PACKET_BYTES + 32 > BUCKET_BYTES);

/// `outer/…`.
pub(crate) fn rows(session: &Session) -> io::Result<()> {
    let mut entrants = Vec::new();
    for threads in 1..=pin::cores().min(8) {
        entrants.push(Entrant::new(
            format!("outer/qq2016/{threads}t"),
            move || of_qq(&mut session.memory.borrow_mut(), threads),
        ));
        entrants.push(Entrant::new(format!("outer/ring/{threads}t"), move || {
            of_ring(session.scale.ring_bytes / 4, threads)
        }));
    }
    session.measure("outer queue", entrants)
}

fn of_qq(memory: &mut Memory, threads: usize) -> Result<f64, Failure> {
    let mut offsets = vec![Vec::new(); memory.len() / STORAGE_BYTES];
    let parts = memory.bytes_mut().chunks_exact_mut(STORAGE_BYTES);
    let storages = parts
        .zip(&mut offsets)
        .map(|(part, offsets)| Original::<1>::storage(part, offsets));
    let queue = Queue::new(storages, 0);
    let work = || {
        for _ in 0..OPERATIONS_QQ / 2 {
            drop(queue.enqueue());
            drop(queue.dequeue());
        }
    };
    let (_, seconds) = in_seconds(vec![work; threads])?;
    Ok(threads as f64 * OPERATIONS_QQ as f64 / seconds / 1e6)
}

fn of_ring(bytes: u64, threads: usize) -> Result<f64, Failure> {
    let config = RingConfig {
        bucket_bytes: Some(BUCKET_BYTES),
        ..RingConfig::new(bytes, threads, 0)
    };
    let (_ring, producers) = made(&config)?;
    let frame = &vec![0x5a; PACKET_BYTES];
    let works = producers.into_iter().map(|mut producer| {
        move || (0..OPERATIONS_RING).try_for_each(|number| store_one(&mut producer, number, frame))
    });
    let (done, seconds) = in_seconds(works.collect())?;
    done.into_iter().collect::<Result<(), Failure>>()?;
    // Each bucket is taken, and the one before is closed, in one operation.
    Ok(threads as f64 * OPERATIONS_RING as f64 / seconds / 1e6)
}
