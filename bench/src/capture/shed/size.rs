//! Losses of bursts by the size of the queue (R-Scope, figure 5).
//!
//! Frames of 512 bytes arrive in bursts of [`BURSTS_MS`], at [`TIMES`] the rate that the recorder
//! analyzes without loss. After each burst there is a pause, so the mean rate is [`MEAN`] of the
//! loss-free rate. The queue is the ring; the kernel's buffer is small. An inserter that analyzes
//! its packets has the largest ring.

use std::{io, time::Duration};

use super::{
    NONE, ONE_ANALYZER, Variant, in_turns,
    run::{Lab, SLOW_SCRIPT, count, number},
};
use crate::{capture::pause, measure::Failure, session::Session};

/// Sizes of the ring, MiB.
const SIZES_MIB: [usize; 7] = [8, 16, 24, 32, 64, 128, 512];
const BURSTS_MS: [u64; 4] = [100, 200, 300, 400];
const TIMES: f64 = 8.0;
const MEAN: f64 = 0.75;

/// A recorder, and its ring in MiB.
type SizeCase = (&'static Variant, usize);

/// The rows of figure 5: percent of the packets that the kernel dropped, or that were overwritten
/// before their analysis.
pub(super) fn rows(session: &Session, turns: usize) -> io::Result<()> {
    let cases = cases();
    if cases.iter().all(|([name], _)| !session.wants(name)) {
        return Ok(());
    }
    let lab = Lab::of_bursts(session);
    let lab = lab.and_then(|lab| Ok((lab.loss_free_rate(&NONE)?, lab)));
    in_turns(session, turns, cases, |(variant, ring_mib)| {
        let (rate, lab) = lab.as_ref().map_err(Clone::clone)?;
        Ok([burst(lab, variant, *ring_mib, *rate)?])
    })
}

/// Name of each row, and its case.
fn cases() -> Vec<([String; 1], SizeCase)> {
    let case = |size| {
        let name = format!("shed/queue/thread/{size}MiB");
        ([name], (&ONE_ANALYZER, size))
    };
    let mut cases: Vec<_> = SIZES_MIB.map(case).into();
    cases.push((["shed/queue/inline/512MiB".to_owned()], (&NONE, 512)));
    cases
}

/// Sends the bursts to a recorder, and returns the lost packets in percent.
fn burst(lab: &Lab, variant: &Variant, ring_mib: usize, loss_free: f64) -> Result<f64, Failure> {
    let overload = format!("--set capture-buffer=1MiB {SLOW_SCRIPT}");
    let recorder = lab.recorder_with(ring_mib, &overload, variant)?;
    let mut sent = 0;
    for ms in BURSTS_MS {
        let seconds = Duration::from_millis(ms).as_secs_f64();
        let packets = count(seconds * TIMES * loss_free);
        let time = lab.send_in_time(packets, TIMES * loss_free)?;
        sent += packets as u64;
        let left = seconds * TIMES / MEAN - time.seconds;
        pause(Duration::from_secs_f64(left.max(0.0)));
    }
    let summary = lab.summary(recorder, sent)?;
    let lost = number(&summary["sources"][0]["lost"]["kernel"])?;
    let missed = number(&summary["analyzers"]["missed"])?;
    Ok(100.0 * (lost + missed) as f64 / sent as f64)
}
