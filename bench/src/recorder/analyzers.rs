//! Several analyzers on one queue (FlowScope, section IV): what the division of the packets costs,
//! and what a second analyzer brings.

use std::{io, num::NonZero, path::Path, time::Duration};

use retroscope_generate::{GeneratorConfig, GeneratorSource, Rate};
use retroscope_recorder::{Analyzers, Scripts};
use retroscope_script::Script;
use rustix::time::{ClockId, clock_gettime};

use super::{Plan, frames, insert, no_hit};
use crate::{
    measure::{Entrant, Failure, check_count, check_lapped},
    queues,
    session::Session,
    thesis::enough_cores,
};

const SHARD: &str = "recorder/analyzers/shard-ns";
const ONE: &str = "recorder/analyzers/one-thread";
const TWO: &str = "recorder/analyzers/2-vs-1";
const CPU: &str = "recorder/analyzers/live-cpu-2-vs-1";
const LIVE: &str = "recorder/analyzers/live-2-vs-1";
/// Takes about 2 µs a packet (Zen 3), and matches nothing.
const SCRIPT: &str = "partition = 'flow'
return function(pkt)
    local n = 1
    for i = 1, 200 do n = (n * 7 + i) % 1013 end
    return n < 0
end";
/// Packets that one thread analyzes in a second, about.
const PACKETS_PER_SECOND: f64 = 5e5;
/// Seconds for which live packets arrive, and for which one analyzer reads a filled ring.
const SECONDS: f64 = 1.0;
/// The rate of live packets. One analyzer usually keeps up, and is busy for a part of the time.
const LIVE_PER_SECOND: u64 = 150_000;
/// A rate of live packets that two analyzers usually do not reach.
const FAST_PER_SECOND: u64 = 1_400_000;

/// The rows of this module.
pub(crate) fn rows(session: &Session) -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let directory = folder.path();
    session.row(SHARD, None, || session.alone(SHARD, || shard_ns(session)))?;
    let heat = queues::two_cores().map(|()| {
        let run = |threads| move || filled(session, threads, directory);
        let entrants = vec![Entrant::new("two", run(2)), Entrant::new("one", run(1))];
        session.heat(TWO, entrants)
    });
    let heat = heat.as_ref().map_err(Clone::clone);
    session.row(ONE, None, || heat.clone()?.spread("one"))?;
    session.row(TWO, Some("one"), || heat.clone()?.ratio("two", "one"))?;
    session.versus(CPU, "one", || {
        queues::two_cores()?;
        let cpu_ns = |threads| Ok(live(session, threads, LIVE_PER_SECOND, directory)?.1);
        Ok(two_and_one(cpu_ns))
    })?;
    session.versus(LIVE, "one", || {
        // The inserter, two analyzers, and a CPU for other programs.
        enough_cores(4, false)?;
        let mpps = |threads| Ok(live(session, threads, FAST_PER_SECOND, directory)?.0);
        Ok(two_and_one(mpps))
    })
}

/// Entrants with two analyzers and with one. `run` gets the number of analyzers.
fn two_and_one<'a>(run: impl Fn(usize) -> Result<f64, Failure> + Copy + 'a) -> Vec<Entrant<'a>> {
    [("two", 2), ("one", 1)]
        .map(|(name, threads)| Entrant::new(name, move || run(threads)))
        .into()
}

/// Time that an inserter takes to assign a packet of 64 bytes to a shard, ns: the difference of two
/// runs, with shards and without.
fn shard_ns(session: &Session) -> Result<f64, Failure> {
    let ns = |is_sharded| {
        let source = GeneratorSource::new("generate", frames(None));
        insert(session, Box::new(source), 1, is_sharded).map(|mpps| 1e3 / mpps)
    };
    Ok(ns(true)? - ns(false)?)
}

/// Mpps that analyzers with [`SCRIPT`] read from a ring. The inserter stores all packets in about
/// 3 % of the time, so nearly always the source has ended, and the ring has all packets.
fn filled(session: &Session, threads: usize, directory: &Path) -> Result<f64, Failure> {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a run takes seconds at most"
    )]
    let count = (session.scale.time(SECONDS).as_secs_f64() * PACKETS_PER_SECOND) as u64;
    let (mpps, _) = record(session, threads, frames(Some(count)), directory)?;
    Ok(mpps)
}

/// The figures of [`record`] for packets that arrive at this rate for [`SECONDS`].
fn live(
    session: &Session,
    threads: usize,
    per_second: u64,
    directory: &Path,
) -> Result<(f64, f64), Failure> {
    let frames = GeneratorConfig {
        rate: Some(Rate::FramesPerSecond(per_second)),
        duration: Some(session.scale.time(SECONDS)),
        ..frames(None)
    };
    record(session, threads, frames, directory)
}

/// Records these frames. Every frame must be analyzed, by this number of threads. Returns Mpps, and
/// the processor time for each packet, ns.
fn record(
    session: &Session,
    threads: usize,
    frames: GeneratorConfig,
    directory: &Path,
) -> Result<(f64, f64), Failure> {
    let plan = Plan {
        frames,
        analyzers: NonZero::new(threads).map_or(Analyzers::Auto, Analyzers::Threads),
        triggers: Vec::new(),
        scripts: Scripts {
            triggers: vec![Script::new("slow.lua", SCRIPT, false)],
            ..Scripts::default()
        },
        ..Plan::quiet(session.scale.ring_bytes)
    };
    let before = process_time();
    let (summary, seconds) = plan.record(directory, &mut no_hit)?;
    let cpu = process_time().saturating_sub(before);
    check_lapped(summary.lapped)?;
    check_count(summary.stored, summary.analyzed)?;
    let packets = summary.stored as f64;
    Ok((packets / seconds / 1e6, cpu.as_secs_f64() * 1e9 / packets))
}

/// Processor time of this process.
fn process_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}
