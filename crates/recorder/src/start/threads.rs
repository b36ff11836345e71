//! The recorder's threads: what each thread does until it ends, and how other threads learn of its
//! end.

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
        RingReader, analyzer::Analyzer, director::Clip, rules::Rules, shard_reader::ShardReader,
    },
    control::{
        common::RecorderShared,
        events::{Events, RecorderEvent},
    },
    dump::{
        dumper::{Dumper, DumperParts},
        store::keeper::StoreThreads,
    },
    intake::inserter::{
        live::LiveInserter, merge::MergeInserter, parts::InserterParts, queue_intake::QueueIntake,
    },
    start::recorder::StartError,
};

/// How long the analyzer waits for records at most, while a clock may end a window or the wait of a
/// hit. From files, this is always the limit.
const ANALYZER_WAIT: Duration = Duration::from_millis(10);
/// How long the analyzer waits at most, live, while no dump is open: longer than an engine holds
/// packets back on a busy link. So on a busy link only packets wake the analyzer, or only hits if
/// inserters analyze packets.
const NO_DUMP_ANALYZER_WAIT: Duration = Duration::from_millis(100);
/// Live: an analyzer that has read all records sleeps for this time, and only then asks producers
/// to wake it, if its last wait was shorter than this time. Without the sleep, on a link that is
/// never idle, each publication would wake the analyzer by a system call of the inserter. If
/// packets arrive in blocks, waits are longer, and one wake-up serves a block. There a timer would
/// cost more, because it wakes a sleeping CPU.
const ANALYZER_PAUSE: Duration = Duration::from_millis(2);

/// Starts the dumper. The keeper ends after the dumper.
pub(super) fn spawn_dumper(
    parts: DumperParts,
    rules: Rules,
    keeper: Option<StoreThreads>,
) -> io::Result<JoinHandle<()>> {
    Builder::new().name("dumper".to_owned()).spawn(move || {
        let _keeper = keeper;
        let OpenGate(common) = &OpenGate(Arc::clone(&parts.common));
        let mut dumper = Dumper::new(parts, rules);
        common.pulses.enter("dumper");
        while !common.control.aborting() && dumper.wait() {
            dumper.step();
        }
        if common.control.aborting() {
            dumper.abandon("stopped before it was complete");
        }
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
    /// The reader that the inserter of files runs itself.
    pub(super) inserters_reader: Option<ShardReader>,
    pub(super) for_inserters: InserterParts,
    pub(super) intakes: Vec<QueueIntake>,
    /// Wakes the analyzer.
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
        let mut analyzers = vec![spawn_analyzer(self.analyzer, &common, &not_ended)?];
        for (number, mut reader) in self.shard_readers.into_iter().enumerate() {
            let gone = ThreadExitGuard::new(&[&not_ended], &wakers);
            let (common, left) = (Arc::clone(&common), Arc::clone(&left));
            let name = format!("shard-{number}");
            analyzers.push(Builder::new().name(name.clone()).spawn(move || {
                let _gone = gone;
                let OpenGate(common) = &OpenGate(common);
                common.pulses.enter(&name);
                read(&mut reader, common.is_live(), &left);
                reader.end();
            })?);
        }
        let gone = || ThreadExitGuard::new(&[&left, &not_ended], &wakers);
        let mut inserters = Vec::new();
        if common.is_live() {
            let shares = shares(self.intakes, inserter_count);
            for (index, intakes) in shares.into_iter().enumerate() {
                let inserter = LiveInserter::new(intakes, common.ring.producer()?);
                let run = |notify: &mut dyn FnMut(String)| inserter.run(notify);
                let name = format!("inserter-{index}");
                inserters.push(spawn_inserter(name, gone(), self.events.clone(), run)?);
            }
        } else {
            let reader = (self.waker, self.inserters_reader);
            let producer = common.ring.producer()?;
            let inserter = MergeInserter::new(self.intakes, producer, reader, self.for_inserters);
            let run = |notify: &mut dyn FnMut(String)| inserter.run(notify);
            let name = "inserter".to_owned();
            inserters.push(spawn_inserter(name, gone(), self.events, run)?);
        }
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

fn spawn_analyzer(
    mut analyzer: Analyzer,
    common: &Arc<RecorderShared>,
    left: &Arc<AtomicUsize>,
) -> io::Result<JoinHandle<()>> {
    let (common, left) = (Arc::clone(common), Arc::clone(left));
    Builder::new().name("analyzer".to_owned()).spawn(move || {
        let OpenGate(common) = &OpenGate(common);
        common.pulses.enter("analyzer");
        read(&mut analyzer, common.is_live(), &left);
        analyzer.end(if common.control.stopping() {
            Clip::Stop
        } else {
            Clip::End
        });
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

/// Reports the end of a thread, also after a panic, and wakes the threads that wait for that end,
/// for example the analyzer. Unless the thread panics, its inserter or reader is dropped before.
#[derive(Debug)]
struct ThreadExitGuard {
    left: Vec<Arc<AtomicUsize>>,
    wakers: Vec<Waker>,
}

impl ThreadExitGuard {
    fn new(left: &[&Arc<AtomicUsize>], wakers: &[Waker]) -> Self {
        Self {
            left: left.iter().copied().map(Arc::clone).collect(),
            wakers: wakers.to_vec(),
        }
    }
}

impl Drop for ThreadExitGuard {
    fn drop(&mut self) {
        for left in &self.left {
            left.fetch_sub(1, Ordering::Release);
        }
        self.wakers.iter().for_each(Waker::wake);
    }
}

/// Opens the inserter's gate when a thread ends that the inserter would wait for. After a panic,
/// the recording stops, because packets would no longer be analyzed.
#[derive(Debug)]
struct OpenGate(Arc<RecorderShared>);

impl Drop for OpenGate {
    fn drop(&mut self) {
        self.0.gate.off();
        if std::thread::panicking() {
            self.0.control.stop();
        }
    }
}
