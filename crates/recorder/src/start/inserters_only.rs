//! Inserters alone: sources into a ring, with nobody who looks at the packets.
//!
//! No recording: for benchmarks, which want to know what taking packets costs by itself, with the very code that records.

use std::{
    sync::{Arc, Barrier, mpsc},
    thread,
    time::Duration,
};

use retroscope_capture::{
    Source,
    clock::{Clock, duration_ns},
};
use retroscope_ring::{Ring, RingConfig};

use crate::{
    control::{progress::Control, ring_time::RingClock},
    intake::{
        Intake,
        counters::SourceSnapshot,
        inserter::{InserterShared, Lane, LiveInserter},
    },
    start::recorder::StartError,
};

/// What inserters did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inserted {
    /// The intake ledger of each source.
    pub sources: Vec<SourceSnapshot>,
    /// From the first burst to the end of the last thread.
    pub elapsed: Duration,
}

/// Runs the inserters of live sources into a ring of `ring_bytes`, a thread for each queue, until the sources end or `duration` is over.
///
/// # Errors
/// [`StartError`]; a source that fails later ends its thread and leaves what it stored.
pub fn insert_only(
    sources: Vec<Box<dyn Source>>,
    rx_threads: usize,
    ring_bytes: u64,
    duration: Option<Duration>,
    clock: Arc<dyn Clock>,
) -> Result<Inserted, StartError> {
    let mut names = Vec::new();
    let mut opened = Vec::new();
    for source in sources {
        names.push(source.name().to_owned());
        opened.push(source.open(rx_threads)?);
    }
    let producers = opened.iter().map(Vec::len).sum();
    let ring = Ring::new(&RingConfig::new(ring_bytes, producers, 1), None)?;
    let queues = opened.iter().map(Vec::len);
    let intake = Intake::new(names.into_iter().zip(queues), Arc::default(), false);
    let intake = Arc::new(intake);
    let shared = InserterShared {
        ring: ring.clone(),
        intake: Arc::clone(&intake),
        control: Arc::new(Control::default()),
        clock: Arc::new(RingClock::new(Arc::clone(&clock))),
        analyzer: Arc::default(),
        snaplen: 0,
        filter: None,
        remaining: None,
        lookout: None,
        hold_ns: 0,
        duration_ns: duration.map(duration_ns),
    };
    let mut inserters = Vec::new();
    for (source, queues) in opened.into_iter().enumerate() {
        for (queue, counters) in queues.into_iter().zip(&intake.sources[source].queues) {
            let lane = Lane::new(queue, source, Arc::clone(counters), &shared)?;
            inserters.push(LiveInserter::new(lane, ring.producer()?, shared.clone()));
        }
    }
    let (first_ns, last_ns) = run(inserters, clock.as_ref());
    let elapsed_ns = u64::try_from(last_ns - first_ns).unwrap_or(0);
    Ok(Inserted {
        sources: intake.snapshots(),
        elapsed: Duration::from_nanos(elapsed_ns),
    })
}

/// Runs each on a thread of its own, all at once. Returns the first start and the last end, on the monotonic clock.
fn run(inserters: Vec<LiveInserter>, clock: &dyn Clock) -> (i64, i64) {
    let barrier = Barrier::new(inserters.len());
    let (times, taken) = mpsc::channel();
    thread::scope(|scope| {
        for inserter in inserters {
            let (times, barrier) = (times.clone(), &barrier);
            scope.spawn(move || {
                barrier.wait();
                let start_ns = clock.mono_ns();
                inserter.run(&mut |_| {});
                // The receiver waits for all threads.
                let _ = times.send((start_ns, clock.mono_ns()));
            });
        }
    });
    drop(times);
    taken
        .iter()
        .fold((i64::MAX, i64::MIN), |(first, last), (start, end)| {
            (first.min(start), last.max(end))
        })
}

#[cfg(test)]
mod tests {
    use retroscope_capture::generator::{GeneratorConfig, GeneratorSource};

    use super::*;
    use crate::SystemClock;

    #[test]
    fn every_packet_is_stored_by_one_or_two() {
        for threads in [1, 2] {
            let config = GeneratorConfig {
                count: Some(20_000),
                ..GeneratorConfig::default()
            };
            let source = Box::new(GeneratorSource::new("generate", config));
            let clock = Arc::new(SystemClock::new());
            let inserted = insert_only(vec![source], threads, 64 << 20, None, clock).unwrap();
            let source = &inserted.sources[0];
            assert_eq!((source.received, source.stored), (Some(20_000), 20_000));
            assert!(inserted.elapsed > Duration::ZERO);
        }
    }
}
