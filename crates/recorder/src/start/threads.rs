//! The recorder's threads: what each does until it ends, and how the others hear of that.

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
        common::Common,
        events::{Event, Events},
    },
    dump::{
        dumper::{Dumper, DumperParts},
        store::keeper::KeeperThread,
    },
    intake::inserter::{
        live::LiveInserter, merge::MergeInserter, parts::InserterParts, queue_intake::QueueIntake,
    },
    start::recorder::StartError,
};

/// How long the analyzer waits for records, while clocks may end a window.
const ANALYZER_WAIT: Duration = Duration::from_millis(10);
/// How long it waits live, while no dump is open: longer than a busy queue lets packets wait, so that on a busy link its packets wake
/// the analyzer, and nothing else does; or only hits, where inserters look.
const NO_DUMP_ANALYZER_WAIT: Duration = Duration::from_millis(100);
/// How long an analyzer that has caught up with live traffic sleeps before it asks to be woken, where it was woken sooner than
/// that the last time. On a link that is never idle it would be woken for every publication, and each time with a system call
/// of the inserter's. One whose packets come in blocks is woken once for those that come together, right after the inserter:
/// a timer would cost more, because it wakes a CPU that sleeps.
const ANALYZER_PAUSE: Duration = Duration::from_millis(2);

/// The keeper ends behind it.
pub(super) fn spawn_dumper(
    parts: DumperParts,
    rules: Rules,
    keeper: Option<KeeperThread>,
) -> io::Result<JoinHandle<()>> {
    Builder::new().name("dumper".to_owned()).spawn(move || {
        let _keeper = keeper;
        let OpenGate(common) = &OpenGate(Arc::clone(&parts.common));
        let mut dumper = Dumper::new(parts, rules);
        while !common.control.aborting() && dumper.wait() {
            dumper.step();
        }
        if common.control.aborting() {
            dumper.abandon("stopped before it was complete");
        }
    })
}

/// Reads until those are gone that are `left`.
fn read(reader: &mut impl RingReader, live: bool, left: &AtomicUsize) {
    let (mut was_busy, mut is_hurried) = (false, false);
    // Acquire: what the last inserter published is then seen at the end.
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

pub(super) fn spawn_analyzer(
    mut analyzer: Analyzer,
    common: Arc<Common>,
    left: Arc<AtomicUsize>,
) -> io::Result<JoinHandle<()>> {
    Builder::new().name("analyzer".to_owned()).spawn(move || {
        let OpenGate(common) = &OpenGate(common);
        read(&mut analyzer, common.is_live(), &left);
        analyzer.end(if common.control.stopping() {
            Clip::Stop
        } else {
            Clip::End
        });
    })
}

pub(super) fn spawn_shard_reader(
    mut reader: ShardReader,
    number: usize,
    common: &Arc<Common>,
    left: &Arc<AtomicUsize>,
    gone: Gone,
) -> io::Result<JoinHandle<()>> {
    let (common, left) = (Arc::clone(common), Arc::clone(left));
    let thread = Builder::new().name(format!("shard-{number}"));
    thread.spawn(move || {
        let _gone = gone;
        let OpenGate(common) = &OpenGate(common);
        read(&mut reader, common.is_live(), &left);
        reader.end();
    })
}

pub(super) fn spawn_inserters(
    intakes: Vec<QueueIntake>,
    for_inserters: &InserterParts,
    gone: impl Fn() -> Gone,
    reader: Option<ShardReader>,
    waker: &Waker,
    events: &Events,
) -> Result<Vec<JoinHandle<Vec<SourceError>>>, StartError> {
    let common = &for_inserters.common;
    let notify = || {
        let events = events.clone();
        move |text| {
            events.tell(Event::Notice(text));
        }
    };
    if !common.is_live() {
        let (producer, parts) = (common.ring.producer()?, for_inserters.clone());
        let inserter = MergeInserter::new(intakes, producer, (waker.clone(), reader), parts);
        let (gone, mut notify) = (gone(), notify());
        let thread = Builder::new().name("inserter".to_owned()).spawn(move || {
            let _gone = gone;
            inserter.run(&mut notify)
        })?;
        return Ok(vec![thread]);
    }
    let mut threads = Vec::new();
    for (index, intake) in intakes.into_iter().enumerate() {
        let inserter = LiveInserter::new(intake, common.ring.producer()?);
        let (gone, mut notify) = (gone(), notify());
        threads.push(
            Builder::new()
                .name(format!("inserter-{index}"))
                .spawn(move || {
                    let _gone = gone;
                    inserter.run(&mut notify).into_iter().collect()
                })?,
        );
    }
    Ok(threads)
}

/// Tells those who wait for it, the analyzer among them, that a thread is gone, also by a panic. Dropped after what the thread owns.
#[derive(Debug)]
pub(super) struct Gone {
    left: Vec<Arc<AtomicUsize>>,
    wakers: Vec<Waker>,
}

impl Gone {
    pub(super) fn new(left: &[&Arc<AtomicUsize>], wakers: &[Waker]) -> Self {
        Self {
            left: left.iter().copied().map(Arc::clone).collect(),
            wakers: wakers.to_vec(),
        }
    }
}

impl Drop for Gone {
    fn drop(&mut self) {
        for left in &self.left {
            left.fetch_sub(1, Ordering::Release);
        }
        self.wakers.iter().for_each(Waker::wake);
    }
}

/// Lets the inserter pass its gate when a thread that it would wait for ends. If that was a panic, the recording ends:
/// nobody would look at it.
#[derive(Debug)]
struct OpenGate(Arc<Common>);

impl Drop for OpenGate {
    fn drop(&mut self) {
        self.0.gate.off();
        if std::thread::panicking() {
            self.0.control.stop();
        }
    }
}
