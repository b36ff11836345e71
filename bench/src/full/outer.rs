//! Operations on the outer queue, by number of threads: whether its mutex can become the limit.
//!
//! Each thread of the QQ of 2016 takes an empty storage, gives it back, dequeues one, gives it back, and so on. The ring gives a bucket
//! only for the one before, which must be full; so its threads store packets that fill a bucket each, and copying
//! them is part of the time: the figure is a lower bound of what its outer queue can do.

use std::{sync::Barrier, thread, time::Instant};

use retroscope_ring::{Record, Ring, RingConfig};

use super::{measure, memory::wanted};
use crate::{
    contest::Failure,
    measure::Entrant,
    memory::Memory,
    pin,
    qq2016::{Config, HOLD, Queue, STORAGE_BYTES},
    session::{Session, SessionError},
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

pub(super) fn run(session: &mut Session) -> Result<(), SessionError> {
    measure(session, "Mops/s", |session| {
        let (memory, ring_bytes) = (session.memory(), session.scale().ring_bytes);
        let mut entrants = Vec::new();
        for threads in 1..=pin::cores().min(8) {
            entrants.push(Entrant::new(
                format!("outer/qq2016/{threads}t"),
                move || of_qq(&mut memory.borrow_mut(), threads),
            ));
            entrants.push(Entrant::new(format!("outer/ring/{threads}t"), move || {
                of_ring(ring_bytes / 4, threads)
            }));
        }
        wanted(session, entrants)
    })
}

fn of_qq(memory: &mut Memory, threads: usize) -> Result<f64, Failure> {
    let config = Config {
        storage_bytes: STORAGE_BYTES,
        hold: HOLD,
        guard: 0,
        priority: u8::MAX,
    };
    let queue = Queue::new(memory.bytes_mut(), &config, Vec::new());
    let closed = || Failure::Unsound("the queue was closed".to_owned());
    let seconds = together((0..threads).map(|_| {
        || {
            for _ in 0..OPERATIONS_QQ / 2 {
                queue.enqueue(1).ok_or_else(closed)?.release();
                queue.dequeue(1).ok_or_else(closed)?.release();
            }
            Ok(())
        }
    }))?;
    Ok(threads as f64 * OPERATIONS_QQ as f64 / seconds / 1e6)
}

fn of_ring(bytes: u64, threads: usize) -> Result<f64, Failure> {
    let failure = |error| Failure::system("making a ring", error);
    let config = RingConfig {
        bucket_bytes: Some(BUCKET_BYTES),
        ..RingConfig::new(bytes, threads, 0)
    };
    let ring = Ring::new(&config, None).map_err(failure)?;
    let producers: Result<Vec<_>, _> = (0..threads).map(|_| ring.producer()).collect();
    let frame = vec![0x5a; PACKET_BYTES];
    let frame = frame.as_slice();
    let seconds = together(producers.map_err(failure)?.into_iter().map(|mut producer| {
        move || {
            for number in 0..OPERATIONS_RING {
                let record = Record::whole(number.cast_signed(), 0, frame);
                producer
                    .store(&record)
                    .map_err(|error| Failure::system("store", error))?;
            }
            Ok(())
        }
    }))?;
    // Each bucket is taken, and the one before is closed, in one operation.
    Ok(threads as f64 * OPERATIONS_RING as f64 / seconds / 1e6)
}

/// Runs threads that start together, and returns the seconds until the last one is done.
fn together<W>(work: impl Iterator<Item = W>) -> Result<f64, Failure>
where
    W: FnOnce() -> Result<(), Failure> + Send,
{
    let work: Vec<W> = work.collect();
    let barrier = Barrier::new(work.len());
    let barrier = &barrier;
    let ends: Vec<_> = thread::scope(|scope| {
        let threads = work.into_iter().enumerate().map(|(index, work)| {
            scope.spawn(move || {
                pin::pin(index);
                barrier.wait();
                let start = Instant::now();
                work().map(|()| (start, Instant::now()))
            })
        });
        let threads: Vec<_> = threads.collect();
        threads
            .into_iter()
            .map(thread::ScopedJoinHandle::join)
            .collect()
    });
    let mut span = None::<(Instant, Instant)>;
    for end in ends {
        let (start, end) = end.map_err(|_| Failure::Panicked)??;
        span = Some(span.map_or((start, end), |(first, last)| {
            (first.min(start), last.max(end))
        }));
    }
    let (start, end) = span.ok_or_else(|| Failure::CannotRun("no threads".to_owned()))?;
    Ok(end.duration_since(start).as_secs_f64())
}
