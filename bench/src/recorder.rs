//! The whole recorder, and inserters alone without analyzers: with the generator in this process,
//! and with DPDK's synthetic packets.
//!
//! `analyzers` compares one and two analyzers, `dump_rate` dumps with the disk. `hits` measures the
//! time from a packet to the effect of its hit, `processing` the time of a module for a packet, and
//! `slowed` inserters on several receive queues.

pub(crate) mod analyzers;
pub(crate) mod dump_rate;
pub(crate) mod hits;
pub(crate) mod processing;
pub(crate) mod slowed;

use std::{
    io,
    num::NonZero,
    path::Path,
    sync::{Arc, mpsc::RecvTimeoutError},
    time::{Duration, Instant},
};

use retroscope_capture::Source;
use retroscope_generate::{GeneratorConfig, GeneratorSource};
use retroscope_recorder::{
    Analyzers, Config, Recorder, RecorderEvent, RecorderSummary, Scripts, SystemClock, insert_only,
};

use crate::{
    contest::Load,
    measure::{Entrant, Failure, check_count, check_lapped},
    queues,
    ring::RingContest,
    session::Session,
};

/// Ring bytes of a frame in addition to its own bytes: the descriptor, and a share of the unused
/// ends of buckets.
const OVERHEAD_BYTES: u64 = 18;
/// The trigger filter. No frame has this port.
const TRIGGER: &str = "udp port 60000";
/// [`Plan::record`] aborts a recorder that has not ended after this time.
const SILENCE: Duration = Duration::from_secs(20);
/// Bytes of the frames.
const FRAME_BYTES: u16 = 64;

/// One thread that reads the ring.
const ONE_THREAD: Analyzers = Analyzers::Threads(NonZero::<usize>::MIN);
/// The whole recorder by place of analysis: rows, each against the bare ring.
const PLACES: [(&str, Analyzers); 3] = [
    ("recorder/64B/vs-ring", Analyzers::Auto),
    ("recorder/64B/vs-ring-inline", Analyzers::Inline),
    ("recorder/64B/vs-ring-thread", ONE_THREAD),
];
/// Two inserters against one inserter, without and with inline analysis. If the first row misses
/// its goal, memory may limit two inserters, and the second row has a remark.
const TWO_INSERTERS: &str = "recorder/inserters/2-vs-1";
const TWO_INLINE: &str = "recorder/2-inline/vs-1";

/// A live recording.
struct Plan {
    ring_bytes: u64,
    frames: GeneratorConfig,
    /// Number of inserters, each with its share of the frames.
    inserters: usize,
    analyzers: Analyzers,
    triggers: Vec<String>,
    scripts: Scripts,
    /// Packet time before and after a trigger.
    window: Duration,
    /// Stop after this time.
    duration: Option<Duration>,
}

/// The rows of the recorder and of inserters.
pub(crate) fn judged(session: &Session) -> io::Result<()> {
    let ring_bytes = session.scale.ring_bytes;
    let folder = tempfile::tempdir()?;
    let mut ring = RingContest::new(ring_bytes, 1);
    for (row, analyzers) in PLACES {
        session.versus(row, "ring", || {
            queues::two_cores()?;
            Ok(vec![
                Entrant::new("recorder", || full(ring_bytes, analyzers, folder.path())),
                queues::carrying(
                    session,
                    "ring",
                    &mut ring,
                    Load::pairs(64, queues::lap(session, 64), 1),
                ),
            ])
        })?;
    }
    two_vs_one(session, folder.path())?;
    let (row, bare) = ("capture/dpdk/net-null-vs-bare", "rx_burst and free");
    session.versus(row, bare, || null_over_bare(session))
}

/// The rows of two inserters.
fn two_vs_one(session: &Session, directory: &Path) -> io::Result<()> {
    let is_inline_wanted = session.wants(TWO_INLINE);
    if !is_inline_wanted && !session.wants(TWO_INSERTERS) {
        return Ok(());
    }
    let heat = queues::two_cores().map(|()| {
        let source = || Box::new(GeneratorSource::new("generate", frames(None)));
        let inserters = move |threads| move || insert(session, source(), threads, false);
        let inline = |inserters| move || timed(session, inserters, directory);
        let mut entrants = vec![
            Entrant::new("two", inserters(2)),
            Entrant::new("one inserter", inserters(1)),
        ];
        if is_inline_wanted {
            entrants.push(Entrant::new("two inline", inline(2)));
            entrants.push(Entrant::new("one inline", inline(1)));
        }
        session.heat(TWO_INSERTERS, entrants)
    });
    let ratio = |two, one| {
        let heat = heat.as_ref().map_err(Clone::clone)?;
        let all: Vec<_> = heat.names().iter().map(String::as_str).collect();
        heat.ratio_among(&all, two, one)
    };
    let bare = ratio("two", "one inserter");
    session.put(TWO_INSERTERS, Some("one inserter"), bare.clone())?;
    session.row(TWO_INLINE, Some("one inline"), || {
        let inline = ratio("two inline", "one inline");
        let (two, one) = ("two inserters without a look", "one");
        queues::given(inline, bare, TWO_INSERTERS, two, one)
    })
}

/// The frames of the generator.
fn frames(count: Option<u64>) -> GeneratorConfig {
    GeneratorConfig {
        size: FRAME_BYTES,
        count,
        ..GeneratorConfig::default()
    }
}

/// Mpps that one or more threads store without loss, for the time of a run.
///
/// The run has a fixed time instead of a fixed number of frames per thread. If the CPU of one
/// thread is slower for a while, as in a virtual machine, the other thread stores packets until the
/// end of the run, as in a recording.
fn insert(
    session: &Session,
    source: Box<dyn Source>,
    threads: usize,
    is_sharded: bool,
) -> Result<f64, Failure> {
    let clock = Arc::new(SystemClock);
    let (bytes, time) = (session.scale.ring_bytes, session.scale.time(0.25));
    let inserted = insert_only(vec![source], threads, bytes, is_sharded, Some(time), clock);
    let inserted = inserted.map_err(|error| Failure::system("starting inserters", error))?;
    let source = &inserted.sources[0];
    if source.received != Some(source.stored) || source.lost_known() > 0 {
        return Err(Failure::Unsound(format!("packets were lost: {source:?}")));
    }
    Ok(source.stored as f64 / inserted.elapsed.as_secs_f64() / 1e6)
}

#[cfg(not(feature = "dpdk"))]
fn null_over_bare(_: &Session) -> Result<Vec<Entrant<'_>>, Failure> {
    let why = "built without the feature dpdk, which needs libdpdk-dev";
    Err(Failure::CannotRun(why.to_owned()))
}

/// One inserter on `net_null` against a loop that receives its bursts and frees them without
/// reading.
#[cfg(feature = "dpdk")]
fn null_over_bare(session: &Session) -> Result<Vec<Entrant<'_>>, Failure> {
    use retroscope_capture::{CpuTurns, QueueStatus, SourceError};
    use retroscope_dpdk::{DpdkConfig, DpdkSource, EalConfig};

    use crate::contest::on_a_core;
    let source = || {
        let device = format!("net_null0,size={FRAME_BYTES}");
        DpdkSource(DpdkConfig {
            eal: EalConfig {
                arguments: Vec::new(),
                devices: vec![device.clone()],
            },
            device,
            promiscuous: false,
            take_interface: false,
            buffer_bytes: None,
            cpus: CpuTurns::default(),
        })
    };
    let time = session.scale.time(0.25);
    let take = move || {
        let mut opened = Box::new(source()).open(1)?;
        let (start, mut packets) = (Instant::now(), 0);
        while let Some(queue) = opened.first_mut()
            && start.elapsed() < time
        {
            if queue.next(Duration::ZERO)? == QueueStatus::Frames {
                packets += queue.burst().iter().len();
            }
        }
        Ok(packets as f64 / start.elapsed().as_secs_f64() / 1e6)
    };
    let bare = move || {
        // A separate thread, as for an inserter.
        let (mpps, _) = on_a_core(take)?;
        mpps.map_err(|error: SourceError| Failure::system("net_null", error))
    };
    Ok(vec![
        Entrant::new("net_null", move || {
            insert(session, Box::new(source()), 1, false)
        }),
        Entrant::new("bare", bare),
    ])
}

/// Records frames at full speed, live, into a ring of `ring_bytes`, and returns Mpps over the time
/// from the start to the end of the recorder's threads.
///
/// All frames together fit into the ring, so that no frame is overwritten before it is read,
/// however threads are scheduled. Every frame must be stored and analyzed, or the run fails. The
/// ring's memory is pre-faulted before the clock starts.
fn full(ring_bytes: u64, analyzers: Analyzers, directory: &Path) -> Result<f64, Failure> {
    let count = ring_bytes * 15 / 16 / (u64::from(FRAME_BYTES) + OVERHEAD_BYTES);
    let plan = Plan {
        frames: frames(Some(count)),
        analyzers,
        ..Plan::quiet(ring_bytes)
    };
    let (summary, seconds) = plan.record(directory, &mut no_hit)?;
    check_lapped(summary.lapped)?;
    check_count(count, summary.stored)?;
    check_count(count, summary.analyzed)?;
    Ok(count as f64 / seconds / 1e6)
}

/// Mpps that one or more inserters store and analyze without loss, for the time of a run, as in
/// [`insert`].
fn timed(session: &Session, inserters: usize, directory: &Path) -> Result<f64, Failure> {
    let time = session.scale.time(0.25);
    let plan = Plan {
        inserters,
        analyzers: Analyzers::Inline,
        duration: Some(time),
        ..Plan::quiet(session.scale.ring_bytes)
    };
    let (summary, _) = plan.record(directory, &mut no_hit)?;
    check_lapped(summary.lapped)?;
    check_count(summary.stored, summary.analyzed)?;
    Ok(summary.stored as f64 / time.as_secs_f64() / 1e6)
}

fn no_hit(event: RecorderEvent) -> Result<(), Failure> {
    Err(Failure::Unsound(format!(
        "no frame should match: {event:?}"
    )))
}

impl Plan {
    /// One inserter at full speed, and frames that do not match.
    fn quiet(ring_bytes: u64) -> Self {
        Self {
            ring_bytes,
            frames: frames(None),
            inserters: 1,
            analyzers: Analyzers::Auto,
            triggers: vec![TRIGGER.to_owned()],
            scripts: Scripts::default(),
            window: Duration::from_secs(1),
            duration: None,
        }
    }

    /// Records until the frames or the time end, and passes all events except notices to `told`.
    /// Also returns the seconds from the start to the end of all threads.
    fn record(
        &self,
        directory: &Path,
        told: &mut dyn FnMut(RecorderEvent) -> Result<(), Failure>,
    ) -> Result<(RecorderSummary, f64), Failure> {
        let config = self.config(directory);
        let sources = || {
            let source = GeneratorSource::new("generate", self.frames.clone());
            Ok(vec![Box::new(source) as Box<dyn Source>])
        };
        let clock = Arc::new(SystemClock);
        let recorder = Recorder::start(&config, &sources, &[], clock, None, &mut || Ok(()))
            .map_err(|error| Failure::system("starting the recorder", error))?;
        let start = Instant::now();
        let mut failure = None;
        loop {
            let left = (start + SILENCE).saturating_duration_since(Instant::now());
            match recorder.event(left) {
                Ok(RecorderEvent::Notice(_)) => {}
                Ok(event) => failure = failure.or(told(event).err()),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    recorder.handle().abort();
                    failure = Some(Failure::deadline(SILENCE.as_secs()));
                    break;
                }
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        let summary = recorder.join();
        match failure {
            Some(failure) => Err(failure),
            None => Ok((summary, seconds)),
        }
    }

    /// The recorder's configuration. Dumps go to `directory`.
    fn config(&self, directory: &Path) -> Config {
        Config {
            ring_bytes: self.ring_bytes,
            rx_threads: self.inserters,
            analyzers: self.analyzers,
            triggers: self.triggers.clone(),
            scripts: self.scripts.clone(),
            past: self.window,
            future: self.window,
            max_dumps: 1024,
            duration: self.duration,
            directory: Some(directory.to_owned()),
            ..Config::default()
        }
    }
}
