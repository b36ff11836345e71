//! Inserters alone: from sources into a ring, without analysis, to measure the cost of receiving
//! packets.

use std::{sync::Arc, thread, time::Duration};

use retroscope_capture::{
    Source,
    clock::{Clock, duration_ns},
};
use retroscope_ring::{Ring, RingConfig, RingError};

use crate::{
    control::common::RecorderShared,
    intake::{
        Intake,
        counters::SourceSnapshot,
        inserter::{
            live::LiveInserter,
            parts::InserterParts,
            queue_intake::QueueIntake,
            shards::{ShardHash, StoredShards},
        },
    },
    start::{config::Config, recorder::StartError},
};

/// The result of the inserters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inserted {
    /// The intake ledger of each source.
    pub sources: Vec<SourceSnapshot>,
    /// The time from before the threads start to the end of the last thread.
    pub elapsed: Duration,
}

/// Runs the inserters of live sources into a ring of `ring_bytes`, a thread for each queue, until
/// the sources end or `duration` has passed. With `is_sharded` inserters assign packets to shards.
///
/// # Errors
/// [`StartError`]; a source that fails later only ends its thread.
pub fn insert_only(
    sources: Vec<Box<dyn Source>>,
    rx_threads: usize,
    ring_bytes: u64,
    is_sharded: bool,
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
    let common = RecorderShared::new(ring, Arc::clone(&clock), intake);
    let parts = InserterParts {
        duration_ns: duration.map(duration_ns),
        shards: is_sharded.then(ShardHash::random),
        stored_shards: is_sharded.then(|| Arc::new(StoredShards::new(producers))),
        ..InserterParts::new(&Config::default(), Arc::clone(&common))
    };
    let inserter = |intake| {
        let producer = common.ring.producer()?;
        Ok(LiveInserter::new(vec![intake], producer))
    };
    let intakes = QueueIntake::of_all(opened, &parts)?.into_iter();
    let inserters: Vec<_> = intakes.map(inserter).collect::<Result<_, RingError>>()?;
    let start_ns = clock.mono_ns();
    thread::scope(|scope| {
        for inserter in inserters {
            scope.spawn(move || inserter.run(&mut |_| {}));
        }
    });
    let elapsed_ns = u64::try_from(clock.mono_ns() - start_ns).unwrap_or(0);
    Ok(Inserted {
        sources: common.intake.snapshots(),
        elapsed: Duration::from_nanos(elapsed_ns),
    })
}

#[cfg(test)]
mod tests {
    use retroscope_generate::{GeneratorConfig, GeneratorSource};

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
            let clock = Arc::new(SystemClock);
            let inserted =
                insert_only(vec![source], threads, 64 << 20, threads == 2, None, clock).unwrap();
            let source = &inserted.sources[0];
            assert_eq!((source.received, source.stored), (Some(20_000), 20_000));
            assert!(inserted.elapsed > Duration::ZERO);
        }
    }
}
