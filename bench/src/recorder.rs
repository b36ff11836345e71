//! The whole recorder, and inserters alone with nobody who looks: with the generator in this process, and with DPDK's made-up packets.

use std::{
    io,
    path::Path,
    sync::{Arc, mpsc::RecvTimeoutError},
    time::{Duration, Instant},
};

use retroscope_capture::{
    Source,
    generator::{GeneratorConfig, GeneratorSource},
};
use retroscope_recorder::{
    Analyzers, Config, Event, Format, Recorder, Scripts, SystemClock, insert_only,
};
use retroscope_ring::Backing;

use crate::{
    contest::Load,
    measure::{Entrant, Failure, check_count, check_lapped},
    queues,
    ring::RingContest,
    session::Session,
};

/// Ring bytes that a frame takes beside its own: the descriptor, and some for what is left over at the ends of buckets.
const OVERHEAD_BYTES: u64 = 18;
/// The trigger filter. None of the frames has this port.
const TRIGGER: &str = "udp port 60000";
/// A recorder that says nothing for so long is given up.
const SILENCE: Duration = Duration::from_secs(20);
/// Bytes of the frames.
const FRAME_BYTES: u16 = 64;

/// The rows of the recorder and of inserters.
pub(crate) fn judged(session: &Session) -> io::Result<()> {
    let ring_bytes = session.scale.ring_bytes;
    let folder = tempfile::tempdir()?;
    let mut ring = RingContest::new(ring_bytes, 1);
    session.versus("recorder/64B/vs-ring", "ring", || {
        queues::two_cores()?;
        Ok(vec![
            Entrant::new("recorder", || run(ring_bytes, folder.path())),
            queues::carrying(
                session,
                "ring",
                &mut ring,
                Load::pairs(64, queues::lap(session, 64), 1),
            ),
        ])
    })?;
    session.versus("recorder/inserters/2-vs-1", "one inserter", || {
        queues::two_cores()?;
        let entrant = |name, threads| {
            let source = || Box::new(GeneratorSource::new("generate", frames(None)));
            Entrant::new(name, move || insert(session, source(), threads))
        };
        Ok(vec![entrant("two", 2), entrant("one", 1)])
    })?;
    let (row, bare) = ("capture/dpdk/net-null-vs-bare", "rx_burst and free");
    session.versus(row, bare, || null_over_bare(session))
}

/// What the generator makes.
fn frames(count: Option<u64>) -> GeneratorConfig {
    GeneratorConfig {
        size: FRAME_BYTES,
        count,
        ..GeneratorConfig::default()
    }
}

/// Mpps that one or more threads store, none lost, for the time of a run.
///
/// A time rather than a number of frames for each: where one of the CPUs is slower for a while, as a guest's may be, the other
/// thread goes on meanwhile, as it would in a recording, and does not wait for the end.
fn insert(session: &Session, source: Box<dyn Source>, threads: usize) -> Result<f64, Failure> {
    let clock = Arc::new(SystemClock);
    let (bytes, time) = (session.scale.ring_bytes, session.scale.time(0.25));
    let inserted = insert_only(vec![source], threads, bytes, Some(time), clock);
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

/// One inserter on `net_null` against a loop that takes its bursts and gives them back without a look.
#[cfg(feature = "dpdk")]
fn null_over_bare(session: &Session) -> Result<Vec<Entrant<'_>>, Failure> {
    use retroscope_capture::{
        CpuTurns, SourceError, Status,
        dpdk::{DpdkConfig, DpdkSource, EalConfig},
    };

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
            if queue.next(Duration::ZERO)? == Status::Frames {
                packets += queue.burst().iter().len();
            }
        }
        Ok(packets as f64 / start.elapsed().as_secs_f64() / 1e6)
    };
    let bare = move || {
        // A thread of its own, as an inserter is.
        let (mpps, _) = on_a_core(take)?;
        mpps.map_err(|error: SourceError| Failure::system("net_null", error))
    };
    Ok(vec![
        Entrant::new("net_null", move || insert(session, Box::new(source()), 1)),
        Entrant::new("bare", bare),
    ])
}

/// Records frames at full speed, live, into a ring of `ring_bytes`, and returns Mpps from the start of the threads to
/// the last frame analyzed.
///
/// There are as many frames as fit into the ring together, so that nothing is overwritten before it was read, however threads are
/// scheduled; each was stored and analyzed, or the run fails. Memory is filled before the clock starts.
fn run(ring_bytes: u64, directory: &Path) -> Result<f64, Failure> {
    let count = ring_bytes * 15 / 16 / (u64::from(FRAME_BYTES) + OVERHEAD_BYTES);
    let config = config(ring_bytes, directory);
    let sources = || {
        let source = GeneratorSource::new("generate", frames(Some(count)));
        Ok(vec![Box::new(source) as Box<dyn Source>])
    };
    let clock = Arc::new(SystemClock);
    let recorder = Recorder::start(&config, &sources, &[], clock, None, &mut || Ok(()))
        .map_err(|error| Failure::system("starting the recorder", error))?;
    let start = Instant::now();
    let failure = loop {
        let left = (start + SILENCE).saturating_duration_since(Instant::now());
        match recorder.event(left) {
            Ok(Event::Notice(_)) => {}
            Ok(other) => {
                let why = format!("no frame should match: {other:?}");
                break Some(Failure::Unsound(why));
            }
            Err(RecvTimeoutError::Disconnected) => break None,
            Err(RecvTimeoutError::Timeout) => {
                recorder.handle().abort();
                break Some(Failure::deadline(SILENCE.as_secs()));
            }
        }
    };
    let seconds = start.elapsed().as_secs_f64();
    let summary = recorder.join();
    if let Some(failure) = failure {
        return Err(failure);
    }
    check_lapped(summary.lapped)?;
    check_count(count, summary.stored)?;
    check_count(count, summary.analyzed)?;
    Ok(count as f64 / seconds / 1e6)
}

/// Dumps would go to `directory`; there are none.
fn config(ring_bytes: u64, directory: &Path) -> Config {
    Config {
        offline: false,
        ring_bytes,
        ring_backing: Backing::Anonymous,
        numa_node: None,
        when_full: retroscope_ring::Mode::Record,
        rx_threads: 1,
        analyzers: Analyzers::default(),
        triggers: vec![TRIGGER.to_owned()],
        dump: String::new(),
        manual_dump: String::new(),
        scripts: Scripts::default(),
        filter: None,
        requests: Vec::new(),
        past: Duration::from_secs(1),
        future: Duration::from_secs(1),
        hold: Duration::ZERO,
        single: false,
        max_dumps: 1,
        hold_off: Duration::ZERO,
        dumps_per_minute: 0,
        bytes_per_hour: 0,
        dump_packets: 0,
        dump_bytes: 0,
        snaplen: 0,
        count: None,
        duration: None,
        directory: directory.to_owned(),
        format: Format::PcapNg,
        reproducible: false,
    }
}
