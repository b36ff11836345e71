//! Latency from store to peek, from an idle link to saturation.

use std::time::Duration;

use super::REPETITIONS;
use crate::{
    contest::Failure,
    latency::{self, Latency},
    measure::Spread,
    session::{Session, SessionError},
};

/// What is told of a run.
type Figure = fn(&Latency) -> f64;

/// Names of rates and packets a second.
const RATES: [(&str, u32); 6] = [
    ("idle", 100),
    ("1kpps", 1000),
    ("10kpps", 10_000),
    ("100kpps", 100_000),
    ("1mpps", 1_000_000),
    ("10mpps", 10_000_000),
];

pub(super) fn run(session: &mut Session) -> Result<(), SessionError> {
    if !session.wants_below("latency") {
        return Ok(());
    }
    let scale = session.scale();
    let time = |full: f64| Duration::from_secs_f64(full * (scale.seconds / 0.25).clamp(0.01, 1.0));
    for (name, rate) in RATES {
        // Long enough that a CPU which the host takes for some milliseconds is less than one packet in a hundred.
        let time = time(if rate <= 1_000_000 { 1.0 } else { 0.5 });
        let found = repeated(scale.repetitions, || latency::paced(rate, time));
        write(session, name, &found)?;
    }
    let found = repeated(scale.repetitions, || latency::saturated(scale.ring_bytes));
    write(session, "saturated", &found)?;
    let two = found.and_then(|found| {
        let spread = |figure: Figure| spread(&found, figure);
        let two = spread(|found| found.two_buckets_us)?;
        let p99 = spread(|found| found.p99_us)?;
        if p99.median <= two.median {
            return Ok(two);
        }
        Err(Failure::Late {
            p99: Duration::from_secs_f64(p99.median / 1e6),
            limit: Duration::from_secs_f64(two.median / 1e6),
        })
    });
    session.absolute("latency/two-buckets", "us", two)
}

fn write(
    session: &mut Session,
    rate: &str,
    found: &Result<Vec<Latency>, Failure>,
) -> Result<(), SessionError> {
    let figures: [(&str, &str, Figure); 4] = [
        ("p50", "us", |found| found.p50_us),
        ("p99", "us", |found| found.p99_us),
        ("max", "us", |found| found.max_us),
        ("stolen", "ms", |found| found.stolen_ms),
    ];
    for (name, unit, figure) in figures {
        let spread = found.clone().and_then(|found| spread(&found, figure));
        session.absolute(&format!("latency/{rate}/{name}"), unit, spread)?;
    }
    Ok(())
}

fn repeated(
    repetitions: usize,
    mut run: impl FnMut() -> Result<Latency, Failure>,
) -> Result<Vec<Latency>, Failure> {
    (0..REPETITIONS.min(repetitions)).map(|_| run()).collect()
}

fn spread(found: &[Latency], figure: impl Fn(&Latency) -> f64) -> Result<Spread, Failure> {
    let figures: Vec<f64> = found.iter().map(figure).collect();
    Spread::of(&figures).ok_or_else(|| Failure::Unsound("no repetition".to_owned()))
}
