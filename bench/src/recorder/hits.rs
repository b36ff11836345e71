//! From a packet to the effect of its hit, live: how late a trigger acts.
//!
//! The rules are numerous, so that one thread analyzes fewer packets a second than a link delivers.
//! The first measurement is the rate at which one thread analyzes packets. Then packets arrive on a
//! schedule at 50, 90 and 110 % of this rate, and about a hundred a second match.
//!
//! The latency of a match begins when the packet is due, which is its stamp, so a wait at the
//! source counts; the source loses no packet. The latency ends when the thread of the benchmark,
//! which sleeps, receives the event that the director started a dump (`RecorderEvent::Triggered`).
//! The latency therefore includes the wait for the analysis, the analysis, the way to the director
//! and the wake-up of the benchmark's thread. If more packets arrive than are analyzed, the latency
//! grows during the run.

use std::{io, path::Path, time::Duration};

use retroscope_generate::{GeneratorConfig, Rate};
use retroscope_recorder::{Analyzers, Clock, RecorderEvent, SystemClock};

use super::{ONE_THREAD, Plan, frames};
use crate::{
    measure::{Failure, Spread, check_count, check_lapped},
    queues,
    session::{PartsRun, Session},
};

/// Seconds for which packets arrive at a given rate.
const SECONDS: f64 = 1.0;
/// Maximum size of the ring: more than any of the runs can leave unread, so that no reader is
/// lapped. Tests use smaller rings, because their runs are shorter.
const RING_BYTES_MAX: u64 = 256 << 20;
/// Number of rules that match nothing. The rule set evaluates each of these rules on each packet,
/// because it cannot look such rules up in a table.
const RULES: u32 = 200;
/// Matching packets a second. Each match starts a dump, which takes about a millisecond of
/// processor time: with many more matches the dumps would dominate.
const HITS: u64 = 100;
/// Frames from which the rate is determined, for each millisecond of a run.
const FRAMES_PER_MS: u128 = 1000;
/// The row for the rate that one thread can analyze.
const RATE: &str = "recorder/latency/one-thread";
/// Places of analysis.
const PLACES: [(&str, Analyzers); 3] = [
    ("thread", ONE_THREAD),
    ("inline", Analyzers::Inline),
    ("auto", Analyzers::Auto),
];
const PERCENT: [u64; 3] = [50, 90, 110];

/// The rate that one thread can analyze, and the latency at [`PERCENT`] of this rate.
pub(crate) fn rows(session: &Session) -> io::Result<()> {
    // The folder of the dumps, in memory if possible (/dev/shm): on a slow disk, writing the files
    // delays later dumps.
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())?;
    let directory = folder.path();
    let ring_bytes = session.scale.ring_bytes.min(RING_BYTES_MAX);
    let time = session.scale.time(SECONDS);
    let rate = queues::two_cores().and_then(|()| {
        let count = u64::try_from(time.as_millis() * FRAMES_PER_MS).unwrap_or(u64::MAX);
        let run = || full_speed(ring_bytes, count, directory);
        session.alone(RATE, run)
    });
    session.put(RATE, None, rate.clone())?;
    let Ok(Spread { median: mpps, .. }) = rate else {
        return Ok(());
    };
    let cases = PLACES
        .iter()
        .flat_map(|place| PERCENT.map(|percent| (place, percent)));
    let cases = cases.map(|((name, analyzers), percent)| {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "saturates; rates are positive"
        )]
        let rate = (mpps * 1e4 * percent as f64) as u64;
        let run: PartsRun<'_, 2> =
            Box::new(move || paced(ring_bytes, (rate, time), *analyzers, directory));
        (format!("recorder/latency/{name}/{percent}pc-"), run)
    });
    session.measure_parts("packet to hit", ["p50", "p99"], cases.collect())
}

/// Rules that never match, about the sequence number in the payload.
fn rules() -> Vec<String> {
    let rule = |number| {
        format!(
            "(((udp[12:4] / 31) % {}) * 7) % 1009 = 70000",
            2 * number + 3
        )
    };
    (0..RULES).map(rule).collect()
}

/// Mpps that one thread analyzes if it always has packets.
fn full_speed(ring_bytes: u64, count: u64, directory: &Path) -> Result<f64, Failure> {
    let plan = Plan {
        frames: frames(Some(count)),
        analyzers: ONE_THREAD,
        triggers: rules(),
        ..Plan::quiet(ring_bytes)
    };
    let (summary, seconds) = plan.record(directory, &mut super::no_hit)?;
    check_lapped(summary.lapped)?;
    check_count(count, summary.analyzed)?;
    Ok(count as f64 / seconds / 1e6)
}

/// Median and 99th percentile at a given rate, µs.
fn paced(
    ring_bytes: u64,
    (rate, time): (u64, Duration),
    analyzers: Analyzers,
    directory: &Path,
) -> Result<[f64; 2], Failure> {
    let each = (rate / HITS).max(1);
    let mut triggers = rules();
    triggers.push(format!("udp[12:4] % {each} = 0"));
    let plan = Plan {
        frames: GeneratorConfig {
            rate: Some(Rate::FramesPerSecond(rate)),
            duration: Some(time),
            ..frames(None)
        },
        analyzers,
        triggers,
        window: Duration::ZERO,
        ..Plan::quiet(ring_bytes)
    };
    let mut latencies_ns = Vec::new();
    let mut told = |event: RecorderEvent| match event {
        RecorderEvent::Triggered { trigger_ns, .. } => {
            latencies_ns.push(SystemClock.now().wall_ns - trigger_ns);
            Ok(())
        }
        RecorderEvent::Finished(_) => Ok(()),
        other => Err(Failure::Unsound(format!(
            "an event that should not be: {other:?}"
        ))),
    };
    let (summary, _) = plan.record(directory, &mut told)?;
    check_lapped(summary.lapped)?;
    check_count(summary.stored, summary.analyzed)?;
    let hits = summary.stored.div_ceil(each);
    if latencies_ns.len() as u64 != hits {
        let why = format!("{} of {hits} hits started a dump", latencies_ns.len());
        return Err(Failure::Unsound(why));
    }
    latencies_ns.sort_unstable();
    let quantile =
        |part: usize| latencies_ns[(latencies_ns.len() * part).div_ceil(100) - 1] as f64 / 1e3;
    Ok([50, 99].map(quantile))
}
