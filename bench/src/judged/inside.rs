//! What is judged of the ring itself: latency, idle readers, retention, and scans of cold memory.

use std::time::Duration;

use crate::{
    bucket_change,
    cold_scan::ColdScan,
    contest::Failure,
    latency::{self, Latency},
    measure::{Entrant, Spread, interleave},
    retention,
    session::{Session, SessionError, say},
};

pub(super) const COLD_RATIO: &str = "ring/cold-scan/vs-length-walk";
pub(super) const COLD_NS: &str = "ring/cold-scan/ns";
pub(super) const LATENCY_IDLE: &str = "ring/latency/idle-p99-us";
pub(super) const LATENCY_1MPPS: &str = "ring/latency/1mpps-p99-us";
pub(super) const IDLE_CPU: &str = "ring/latency/idle-cpu";
pub(super) const BYTES: &str = "ring/bytes-per-64B";
pub(super) const CHANGE: &str = "ring/bucket-change-us";

/// Packets a second on a link that is called idle: the reader sleeps between any two.
const IDLE_RATE: u32 = 1000;
/// How long a reader is watched while nothing comes.
const SILENCE_SECONDS: f64 = 2.0;
/// What the cold scan is compared with.
const WALK: &str = "length-walk";

/// `ring/bytes-per-64B`.
pub(super) fn retention(session: &mut Session) -> Result<(), SessionError> {
    if !session.wants(BYTES) {
        return Ok(());
    }
    let ring_bytes = session.scale().ring_bytes;
    let worst = [1, 64].iter().try_fold(0.0, |worst: f64, &burst| {
        let bytes = retention::bytes_per_packet(ring_bytes, 64, burst)?;
        say(&format!(
            "bytes a packet of 64 B, published in bursts of {burst}: {bytes:.2}"
        ));
        Ok(worst.max(bytes))
    });
    session.absolute(BYTES, "bytes", worst.map(Spread::once))
}

/// `ring/bucket-change-us`.
pub(super) fn bucket_change(session: &mut Session) -> Result<(), SessionError> {
    if !session.wants(CHANGE) {
        return Ok(());
    }
    let scale = session.scale();
    let found = bucket_change::microseconds(scale.ring_bytes, scale.repetitions);
    session.absolute(CHANGE, "us", found)
}

/// The rows of latency, and the idle reader.
pub(super) fn latency(session: &mut Session) -> Result<(), SessionError> {
    let scale = session.scale();
    // A run at full scale takes 0.25 s: times of this module grow and shrink with it.
    let seconds =
        |full: f64| Duration::from_secs_f64(full * (scale.seconds / 0.25).clamp(0.01, 1.0));
    let p99 = |rate: u32, time: Duration| {
        repeated(scale.repetitions, || {
            latency::paced(rate, time).map(|found: Latency| found.p99_us)
        })
    };
    if session.wants(LATENCY_IDLE) {
        session.absolute(LATENCY_IDLE, "us", p99(IDLE_RATE, seconds(0.5)))?;
    }
    if session.wants(LATENCY_1MPPS) {
        // Long enough that a processor lost for some milliseconds is less than one packet in a hundred.
        session.absolute(LATENCY_1MPPS, "us", p99(1_000_000, seconds(0.5)))?;
    }
    if session.wants(IDLE_CPU) {
        let silent = latency::silent(seconds(SILENCE_SECONDS)).map(Spread::once);
        session.absolute(IDLE_CPU, "percent", silent)?;
    }
    Ok(())
}

/// The rows of cold memory.
pub(super) fn cold_scan(session: &mut Session) -> Result<(), SessionError> {
    if !session.wants_any(&[COLD_RATIO, COLD_NS]) {
        return Ok(());
    }
    let scans = cold_scans(session);
    let (ns, ratio) = match scans {
        Ok((ns, ratio)) => (Ok(ns), Ok(ratio)),
        Err(failure) => (Err(failure.clone()), Err(failure)),
    };
    if session.wants(COLD_RATIO) {
        session.ratio(COLD_RATIO, WALK, ratio)?;
    }
    if session.wants(COLD_NS) {
        session.absolute(COLD_NS, "ns", ns)?;
    }
    Ok(())
}

/// Nanoseconds a packet, and how many times as long following the lengths takes.
fn cold_scans(session: &Session) -> Result<(Spread, Spread), Failure> {
    let scale = session.scale();
    let memory = session.memory();
    let scan = ColdScan::new(scale.ring_bytes, &mut memory.borrow_mut())?;
    let heat = interleave(
        scale.repetitions,
        vec![
            Entrant::new("ring", || scan.by_descriptors()),
            Entrant::new(WALK, || scan.by_lengths(&mut memory.borrow_mut())),
        ],
    );
    Ok((heat.get("ring")?.spread()?, heat.ratio(WALK, "ring")?))
}

fn repeated(
    repetitions: usize,
    run: impl FnMut() -> Result<f64, Failure>,
) -> Result<Spread, Failure> {
    interleave(repetitions, vec![Entrant::new("it", run)])
        .get("it")?
        .spread()
}
