//! Losses of bursts by the size of the queue (R-Scope, figure 5).
//!
//! Frames of 512 bytes arrive in bursts of [`BURSTS_MS`], at [`TIMES`] the rate that the recorder
//! analyzes without loss. After each burst there is a pause, so the mean rate is [`MEAN`] of that
//! rate. The queue is the ring; the kernel's buffer is small. An inserter that analyzes its packets
//! has the largest ring.

use std::{io, thread::park_timeout, time::Duration};

use super::{
    NONE, Variant,
    run::{Lab, SLOW_SCRIPT, count},
    variant,
};
use crate::{
    measure::{Failure, Spread},
    say,
    session::Session,
};

/// Sizes of the ring, MiB.
const SIZES_MIB: [usize; 7] = [8, 16, 24, 32, 64, 128, 512];
const BURSTS_MS: [u64; 4] = [100, 200, 300, 400];
const TIMES: f64 = 8.0;
const MEAN: f64 = 0.75;
const ONE_ANALYZER: Variant = variant("one analyzer", "--set analyzers=1");

/// The rows of figure 5: percent of the packets that the kernel dropped, or that were overwritten
/// before their analysis.
pub(super) fn rows(session: &Session, turns: usize) -> io::Result<()> {
    if cases().iter().all(|(name, ..)| !session.wants(name)) {
        return Ok(());
    }
    let lab = Lab::of_bursts(session);
    let lab = lab.and_then(|lab| Ok((lab.loss_free_rate(&NONE)?, lab)));
    measure(session, turns, |variant, ring_mib| {
        let (rate, lab) = lab.as_ref().map_err(Clone::clone)?;
        burst(lab, variant, ring_mib, *rate)
    })
}

/// Name, ring in MiB and recorder of each row.
fn cases() -> Vec<(String, usize, &'static Variant)> {
    let case = |size| (format!("shed/queue/{size}MiB/lost"), size, &ONE_ANALYZER);
    let mut cases: Vec<_> = SIZES_MIB.map(case).into();
    cases.push(("shed/queue/inline/lost".to_owned(), 512, &NONE));
    cases
}

/// Runs each selected case in each turn, and writes the rows.
fn measure(
    session: &Session,
    turns: usize,
    run: impl Fn(&Variant, usize) -> Result<f64, Failure>,
) -> io::Result<()> {
    let mut cases = cases();
    cases.retain(|(name, ..)| session.wants(name));
    let mut lost: Vec<Result<Vec<f64>, Failure>> = vec![Ok(Vec::new()); cases.len()];
    for turn in 1..=turns {
        for ((name, ring_mib, variant), lost) in cases.iter().zip(&mut lost) {
            let percent = run(variant, *ring_mib);
            say(&format!("turn {turn} of {turns}, {name}: {percent:?}"));
            match percent {
                Ok(percent) => lost.iter_mut().for_each(|turns| turns.push(percent)),
                Err(failure) => *lost = Err(failure),
            }
        }
    }
    for ((name, ..), lost) in cases.iter().zip(lost) {
        session.row(name, None, || Spread::of(&lost?))?;
    }
    Ok(())
}

/// Sends the bursts to a recorder, and returns the lost packets in percent.
fn burst(lab: &Lab, variant: &Variant, ring_mib: usize, loss_free: f64) -> Result<f64, Failure> {
    let overload = format!("--set capture-buffer=1MiB {SLOW_SCRIPT}");
    let recorder = lab.recorder_with(ring_mib, &overload, variant)?;
    let mut sent = 0;
    for ms in BURSTS_MS {
        let seconds = Duration::from_millis(ms).as_secs_f64();
        let packets = count(seconds * TIMES * loss_free);
        let time = lab.send(packets, TIMES * loss_free)?;
        sent += packets as u64;
        let pause = seconds * TIMES / MEAN - time.seconds;
        park_timeout(Duration::from_secs_f64(pause.max(0.0)));
    }
    let summary = lab.summary(recorder, sent)?;
    let lost = &summary["sources"][0]["lost"]["kernel"];
    let missed = &summary["analyzers"]["missed"];
    let lost = [lost, missed].map(|value| value.as_u64().unwrap_or_default());
    Ok(100.0 * lost.iter().sum::<u64>() as f64 / sent as f64)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::{
        capture::shed::tests::session,
        session::{Row, read},
    };

    #[test]
    fn a_row_has_the_median_of_its_turns_or_the_failure_of_one() {
        let folder = tempfile::tempdir().unwrap();
        let calls = Cell::new(0.0);
        let run = |variant: &Variant, ring_mib| {
            calls.set(calls.get() + 1.0);
            match (variant.name, ring_mib) {
                ("one analyzer", 24) if calls.get() > 8.0 => Err(Failure::Unsound("late".into())),
                ("none", 512) => Ok(calls.get()),
                (_, mib) => Ok(mib as f64),
            }
        };
        measure(&session(folder.path(), ""), 3, run).unwrap();
        let rows: Vec<Row> = read(folder.path()).unwrap();
        let value = |name| rows.iter().find(|row| row.name == name).unwrap().value;
        assert_eq!(value("shed/queue/16MiB/lost"), Some(16.0));
        assert_eq!(value("shed/queue/inline/lost"), Some(16.0));
        assert_eq!(value("shed/queue/24MiB/lost"), None);
        assert_eq!(rows.len(), 8);
    }
}
