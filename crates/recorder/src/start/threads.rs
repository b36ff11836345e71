//! The recorder's threads, and how other threads learn of the end of a thread.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread::{Builder, JoinHandle},
    time::Duration,
};

use retroscope_capture::SourceError;
use retroscope_ring::Waker;

use crate::{
    analysis::{
        RingReader, analyzer::Analyzer, director::Clip, lockstep::Lockstep, rules::Rules,
        shard_reader::ShardReader,
    },
    control::{
        common::RecorderShared,
        events::{Events, RecorderEvent},
    },
    dump::dumper::{Dumper, DumperParts},
    intake::inserter::{
        live::LiveInserter, merge::MergeInserter, parts::InserterParts, queue_intake::QueueIntake,
    },
    start::recorder::StartError,
};

/// Longest wait for records of an analyzer, or of a reader of a shard, that has a deadline, as for
/// an open dump.
const ANALYZER_WAIT: Duration = Duration::from_millis(10);
/// Longest wait for records without a deadline. This is longer than an engine holds packets back on
/// a busy link, so packets usually end the wait there.
const NO_DUMP_ANALYZER_WAIT: Duration = Duration::from_millis(100);
/// Live: sleep of an analyzer or reader that has read all records, and whose last wait was shorter
/// than this time. Only then the thread asks producers for a wake-up. Without the sleep, on a link
/// that is never idle, many publications would wake the analyzer by a system call of the inserter.
const ANALYZER_PAUSE: Duration = Duration::from_millis(2);

/// Starts the thread of a live dumper.
pub(super) fn spawn_dumper(parts: DumperParts, rules: Rules) -> io::Result<JoinHandle<()>> {
    Builder::new().name("dumper".to_owned()).spawn(move || {
        let _stop = StopOnPanic(Arc::clone(&parts.common));
        parts.common.pulses.enter("dumper");
        Dumper::new(parts, rules).run();
    })
}

/// Lets an analyzer or a reader of shards read until the threads that `left` counts have ended.
fn read(reader: &mut impl RingReader, live: bool, left: &AtomicUsize) {
    let (mut was_busy, mut is_hurried) = (false, false);
    // Acquire: everything that the last inserter published is then seen at the end.
    while left.load(Ordering::Acquire) > 0 {
        if reader.step() {
            was_busy = live;
        } else if is_hurried && std::mem::take(&mut was_busy) {
            std::thread::park_timeout(ANALYZER_PAUSE);
        } else {
            was_busy = false;
            let timeout = if reader.has_deadline() {
                ANALYZER_WAIT
            } else {
                NO_DUMP_ANALYZER_WAIT
            };
            let timeout = reader.next_in().map_or(timeout, |next| next.min(timeout));
            is_hurried = reader.wait(timeout) < ANALYZER_PAUSE;
        }
    }
}

/// The parts of the threads that store and analyze packets.
#[derive(Debug)]
pub(super) struct DataPath {
    pub(super) analyzer: Analyzer,
    pub(super) shard_readers: Vec<ShardReader>,
    pub(super) for_inserters: InserterParts,
    pub(super) intakes: Vec<QueueIntake>,
    pub(super) waker: Waker,
    pub(super) events: Events,
}

/// First the analyzer and the readers of shards; then the inserters, which return the errors of
/// their sources.
pub(super) type DataPathThreads = (Vec<JoinHandle<()>>, Vec<JoinHandle<Vec<SourceError>>>);

impl DataPath {
    /// Starts the analyzer, the readers of shards and the inserters.
    pub(super) fn spawn(self) -> Result<DataPathThreads, StartError> {
        let common = Arc::clone(&self.for_inserters.common);
        let inserter_count = if common.is_live() {
            common.intake.producers
        } else {
            1
        };
        let left = Arc::new(AtomicUsize::new(inserter_count));
        // The analyzer goes on until the readers of shards have ended too.
        let not_ended = Arc::new(AtomicUsize::new(inserter_count + self.shard_readers.len()));
        let wakers = self.shard_readers.iter().map(ShardReader::waker);
        let wakers: Vec<Waker> = wakers.chain([self.waker.clone()]).collect();
        let mut analyzer = self.analyzer;
        let (thread, lockstep) = if common.is_live() {
            let run = |left: &AtomicUsize| {
                read(&mut analyzer, true, left);
                Some(analyzer)
            };
            (spawn_analyzer(&common, &not_ended, run)?, None)
        } else {
            let lockstep = Arc::new(Lockstep::new(analyzer));
            let its_own = Arc::clone(&lockstep);
            let run = move |left: &AtomicUsize| its_own.run(left);
            let thread = spawn_analyzer(&common, &not_ended, run)?;
            (thread, Some(lockstep))
        };
        let gone = |left: &[&Arc<AtomicUsize>]| ThreadExitGuard {
            left: left.iter().copied().map(Arc::clone).collect(),
            wakers: wakers.clone(),
            lockstep: lockstep.clone(),
        };
        let mut analyzers = vec![thread];
        for (number, mut reader) in self.shard_readers.into_iter().enumerate() {
            let gone = gone(&[&not_ended]);
            let (common, left) = (Arc::clone(&common), Arc::clone(&left));
            let name = format!("shard-{number}");
            analyzers.push(Builder::new().name(name.clone()).spawn(move || {
                let _gone = gone;
                let StopOnPanic(common) = &StopOnPanic(common);
                common.pulses.enter(&name);
                read(&mut reader, common.is_live(), &left);
                reader.end();
            })?);
        }
        let gone = || gone(&[&left, &not_ended]);
        let mut inserters = Vec::new();
        let Some(lockstep) = &lockstep else {
            let shares = shares(self.intakes, inserter_count);
            for (index, intakes) in shares.into_iter().enumerate() {
                let inserter = LiveInserter::new(intakes, common.ring.producer()?);
                let run = |notify: &mut dyn FnMut(String)| inserter.run(notify);
                let name = format!("inserter-{index}");
                inserters.push(spawn_inserter(name, gone(), self.events.clone(), run)?);
            }
            return Ok((analyzers, inserters));
        };
        let producer = common.ring.producer()?;
        let inserter = MergeInserter::new(self.intakes, producer, lockstep, self.for_inserters);
        let run = |notify: &mut dyn FnMut(String)| inserter.run(notify);
        inserters.push(spawn_inserter(
            "inserter".to_owned(),
            gone(),
            self.events,
            run,
        )?);
        Ok((analyzers, inserters))
    }
}

/// Divides queues among threads, in turns ([`Intake::served_by`]).
///
/// [`Intake::served_by`]: crate::intake::Intake::served_by
pub(crate) fn shares(intakes: Vec<QueueIntake>, threads: usize) -> Vec<Vec<QueueIntake>> {
    let mut shares: Vec<Vec<QueueIntake>> = (0..threads).map(|_| Vec::new()).collect();
    for (number, intake) in intakes.into_iter().enumerate() {
        shares[number % threads].push(intake);
    }
    shares
}

/// `run` returns the analyzer when the threads that its argument counts have ended.
fn spawn_analyzer(
    common: &Arc<RecorderShared>,
    left: &Arc<AtomicUsize>,
    run: impl FnOnce(&AtomicUsize) -> Option<Analyzer> + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let (common, left) = (Arc::clone(common), Arc::clone(left));
    Builder::new().name("analyzer".to_owned()).spawn(move || {
        let StopOnPanic(common) = &StopOnPanic(common);
        common.pulses.enter("analyzer");
        if let Some(analyzer) = run(&left) {
            analyzer.end(if common.control.stopping() {
                Clip::Stop
            } else {
                Clip::End
            });
        }
    })
}

/// `run` gets a function that reports messages for the user.
fn spawn_inserter(
    name: String,
    gone: ThreadExitGuard,
    events: Events,
    run: impl FnOnce(&mut dyn FnMut(String)) -> Vec<SourceError> + Send + 'static,
) -> io::Result<JoinHandle<Vec<SourceError>>> {
    Builder::new().name(name).spawn(move || {
        let _gone = gone;
        run(&mut |text| events.tell(RecorderEvent::Notice(text)))
    })
}

/// Reports the end of a thread, also after a panic, and wakes the threads that wait for that end.
#[derive(Debug)]
struct ThreadExitGuard {
    left: Vec<Arc<AtomicUsize>>,
    wakers: Vec<Waker>,
    lockstep: Option<Arc<Lockstep>>,
}

impl Drop for ThreadExitGuard {
    fn drop(&mut self) {
        for left in &self.left {
            left.fetch_sub(1, Ordering::Release);
        }
        self.wakers.iter().for_each(Waker::wake);
        self.lockstep.iter().for_each(|it| it.ended());
    }
}

/// Stops the recording after a panic, because packets would no longer be analyzed or dumped.
#[derive(Debug)]
struct StopOnPanic(Arc<RecorderShared>);

impl Drop for StopOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.control.stop();
        }
    }
}
