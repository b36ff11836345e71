//! The cost of a timer in the "hold" model (Jones 1986, "An empirical comparison of priority-queue
//! and event-set implementations"). Each step extracts the first timer, or in our queue one of the
//! first, and inserts it again, due at random within a minute after its old time.

use std::{cmp::Reverse, collections::BinaryHeap, time::Instant};

use retroscope_flow::{MultiresolutionQueue, TimerEntry, Timers};

use crate::{
    measure::{Entrant, Failure, Round, Series, Spread, check_count},
    session::Session,
};

/// A timer is inserted at most this long after its old time, ns: 0 to 60 s.
const SPAN: u64 = 60_000_000_000;
/// Minimum number of steps of a run.
const STEPS_MIN: u64 = 1000;

/// Steps in our queue, millions a second.
pub(super) fn queue<'a>(name: &str, session: &Session, timers: u32) -> Entrant<'a> {
    let mut queue = MultiresolutionQueue::empty();
    for (stamp, item) in first(timers) {
        queue.insert(TimerEntry { stamp, item });
    }
    stepping(name, session, move |later| {
        let Some(TimerEntry { stamp, item }) = queue.extract() else {
            return 0;
        };
        let stamp = stamp + later;
        queue.insert(TimerEntry { stamp, item });
        1
    })
}

/// Steps in a binary heap, millions a second.
pub(super) fn heap<'a>(name: &str, session: &Session, timers: u32) -> Entrant<'a> {
    let mut heap: BinaryHeap<_> = first(timers).map(Reverse).collect();
    stepping(name, session, move |later| {
        let Some(Reverse((stamp, item))) = heap.pop() else {
            return 0;
        };
        heap.push(Reverse((stamp + later, item)));
        1
    })
}

/// The slowest speed of our queue divided by the fastest, over five sizes in powers of ten: from a
/// thousandth of `timers` to ten times `timers`.
pub(super) fn flatness(session: &Session, timers: u32) -> Result<Spread, Failure> {
    let sizes = [-3, -2, -1, 0, 1].map(|power| f64::from(timers) * 10_f64.powi(power));
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "positive and far below the most"
    )]
    let entrant = |size: f64| queue(&format!("{size:.0} timers"), session, (size as u32).max(1));
    let heat = session.heat("timers", sizes.map(entrant).into());
    heat.figure(&|_| true, &slowest_over_fastest)
}

/// The slowest speed divided by the fastest, for each repetition.
fn slowest_over_fastest(round: &Round) -> Result<Spread, Failure> {
    let figures = round.iter().map(|Series { figures, .. }| figures.clone());
    let figures: Vec<_> = figures.collect::<Result<_, _>>()?;
    let turns = figures.iter().map(Vec::len).min().unwrap_or(0);
    let flatness = |turn: usize| {
        let speeds = figures.iter().map(|figures| figures[turn]);
        speeds.clone().fold(f64::INFINITY, f64::min) / speeds.fold(0.0, f64::max)
    };
    Spread::of(&(0..turns).map(flatness).collect::<Vec<_>>())
}

/// The initial timers.
fn first(count: u32) -> impl Iterator<Item = (u64, u32)> {
    let mut random = fastrand::Rng::with_seed(1);
    (0..count).map(move |item| (random.u64(0..SPAN), item))
}

/// An entrant that calls `step`. A call extracts a timer, inserts it again, later by the argument
/// in ns, and returns the number of extracted timers. The figure is millions of steps a second.
fn stepping<'a>(
    name: &str,
    session: &Session,
    mut step: impl FnMut(u64) -> u64 + 'a,
) -> Entrant<'a> {
    let mut random = fastrand::Rng::with_seed(2);
    Entrant::paced(name, session.scale.seconds, STEPS_MIN, move |steps| {
        let start = Instant::now();
        let taken = (0..steps).map(|_| step(random.u64(0..SPAN))).sum();
        let seconds = start.elapsed().as_secs_f64();
        check_count(steps, taken)?;
        let per_second = steps as f64 / seconds;
        Ok((per_second / 1e6, per_second))
    })
}
