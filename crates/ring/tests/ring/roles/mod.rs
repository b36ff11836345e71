//! Threads that change their roles at random, on a ring with random rules.
//!
//! A round is one ring. Three to six threads each take a role for one step, either a role from a
//! pool or a new role. They write, read, dump windows, switch modes, close the ring, and check
//! counts. Now and then a thread stops in the middle of a step with everything that it holds, like
//! a thread that is not scheduled.
//!
//! The contents of every record are a function of its name (`names.rs`), and every reader compares
//! all contents.
//!
//! # Forbidden outcomes
//!
//! Each outcome except `lost_wake_up` is a function in `forbidden.rs`.
//!
//! | function | outcome |
//! |---|---|
//! | `torn_record` | a record that was read, held or re-read has wrong bytes, time or fields |
//! | `early_record` | a record is seen before its producer began to store it |
//! | `untold_gap` | a batch does not begin at the end of the last batch plus its missed records |
//! | `told_unfound` | batches report more missed records than readers count as lapped |
//! | `gating_loss` | a gating group missed a record published after the group was made |
//! | `stale_hold` | one name of a bucket refers to two contents |
//! | `time_outside_bucket` | the time range of a bucket does not match its records |
//! | `lost_from_window` | in window ≠ read + gone before + reported as fallen |
//! | `overwritten_though_reserved` | a reserved bucket is lost without record mode |
//! | `older_than_watermark` | a record is older than its producer's watermark |
//! | `watermark_before_records` | a watermark is visible before the records that it promises |
//! | `impossible_counts` | a cumulative count decreases, or counts contradict each other |
//! | `impossible_position` | a group's position decreases, or exceeds the published records |
//! | `miscounted_burst` | a burst succeeds with fewer than all records, or fails with all |
//! | `uncounted_cut` | captures cut ≠ captures longer than 256 KiB |
//! | `open_ledger_of_the_ring` | at the end stored ≠ evicted + present, in packets or bytes |
//! | `open_ledger_of_a_reader` | stored since its start ≠ analyzed + lapped + unread |
//! | `lost_wake_up` | a thread sleeps although its condition holds |
//!
//! A lost wake-up shows as a round without progress. If no thread makes a step within about a
//! minute, the supervisor prints the seed and aborts the test.
//!
//! # Running
//!
//! `STRESS_SECONDS` (2) sets the duration, `STRESS_SEED` (0) the first seed. A failure prints its
//! seed. A seed determines the rules, but not the scheduling of threads: repeat the test with
//! `STRESS_SEED=n` and `STRESS_ROUNDS=1` until the failure occurs again.

mod follower;
mod forbidden;
mod names;
mod round;
#[expect(
    unused,
    reason = "the ring's own primitives, of which this test needs some"
)]
#[path = "../../../src/sync.rs"]
mod sync;
mod window;
mod writer;

use std::{
    env, thread,
    time::{Duration, Instant},
};

use fastrand::Rng;
use retroscope_ring::Mode;

use round::{Happened, Round, Rules, take};
use sync::lock;

/// The supervisor aborts after this many ticks of 10 ms without a step: about a minute.
const STUCK_TICKS: u32 = 6000;

/// After this many rounds the usual rules must have applied, after ten times as many all rules.
const ROUNDS_FULL: u64 = 12;
/// Minimum number of rounds, unless `STRESS_ROUNDS` is smaller. With a sanitizer rounds are slow.
const ROUNDS_MIN: u64 = if cfg!(retroscope_sanitize) {
    1
} else {
    ROUNDS_FULL
};

#[test]
fn random_roles() {
    let number = |name: &str, otherwise| {
        env::var(name).map_or(otherwise, |text| text.parse().expect("a number"))
    };
    let time = Duration::from_secs(number("STRESS_SECONDS", 2));
    let first = number("STRESS_SEED", 0);
    let rounds = number("STRESS_ROUNDS", u64::MAX);
    names::prepare();
    let start = Instant::now();
    let total = Happened::default();
    let mut done = 0;
    while done < rounds && (done < ROUNDS_MIN || start.elapsed() < time) {
        let seed = first.wrapping_add(done);
        eprintln!("STRESS_SEED={seed}");
        total.add(&run(seed));
        done += 1;
    }
    eprintln!("{done} rounds: {total:?}");
    assert!(
        done < ROUNDS_FULL || total.all(done >= 10 * ROUNDS_FULL),
        "some rules were hardly tested: {total:?}"
    );
}

#[expect(
    clippy::print_stderr,
    reason = "the harness shows it where the test fails"
)]
fn run(seed: u64) -> Happened {
    let rules = Rules::new(seed);
    let description = format!("{rules:?}");
    let workers = rules.workers;
    let round = Round::new(rules);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..workers as u64)
            .map(|worker| {
                let round = &round;
                scope.spawn(move || {
                    let _end = EndOnPanic(round);
                    let mut rng = Rng::with_seed(seed ^ (worker + 1) << 48);
                    while !round.is_over() {
                        step(round, &mut rng);
                    }
                })
            })
            .collect();
        supervise(&round, seed, &description);
        // Joined individually: the sanitizer sees joins, but not how a scope ends.
        let failed = workers
            .into_iter()
            .filter_map(|worker| worker.join().err())
            .next();
        if let Some(panic) = failed {
            eprintln!("failed: STRESS_SEED={seed}, {description}");
            std::panic::resume_unwind(panic);
        }
    });
    check_end(round)
}

struct EndOnPanic<'r>(&'r Round);

impl Drop for EndOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.end();
        }
    }
}

fn step(round: &Round, rng: &mut Rng) {
    match rng.u8(0..100) {
        0..=49 => writer::write(round, rng),
        50..=74 => follower::follow(round, rng),
        75..=89 => window::dump(round, rng),
        90 => {
            let modes = &round.rules.modes;
            round.ring.set_mode(modes[rng.usize(0..modes.len())]);
        }
        91 => {
            if let Some(wakeable) = take(&round.wakers, rng) {
                wakeable.waker.wake();
                lock(&round.wakers).push(wakeable);
            }
        }
        92 => round.stall(rng),
        _ => look(round, rng),
    }
    if Some(round.step()) == round.rules.close_at {
        round.ring.close();
    }
}

/// Compares the ring's counts, and the positions of one random reader, with earlier values.
fn look(round: &Round, rng: &mut Rng) {
    let mut watched = lock(&round.watched);
    let now = round.ring.statistics();
    forbidden::impossible_counts(&watched.statistics, &now, round.ring.buckets());
    watched.statistics = now;
    let count = watched.positions.len();
    if count > 0 {
        let (positions, before) = &mut watched.positions[rng.usize(0..count)];
        for (producer, before) in before.iter_mut().enumerate() {
            let now = positions.get(producer);
            forbidden::impossible_position(producer, *before, now, round.ring.published(producer));
            *before = now;
        }
    }
    watched
        .positions
        .retain(|(_, before)| before.first() != Some(&u64::MAX));
}

/// Checks for progress until the round ends. Without progress, releases what threads may wait for,
/// and later aborts.
#[expect(
    clippy::print_stderr,
    reason = "a panic could not end the threads that hang"
)]
fn supervise(round: &Round, seed: u64, description: &str) {
    let mut rng = Rng::with_seed(seed);
    let (mut steps, mut stuck) = (0, 0);
    while !round.is_over() {
        round.tick();
        round.pause();
        let now = round.steps();
        if now != steps {
            (steps, stuck) = (now, 0);
            continue;
        }
        relieve(round, &mut rng);
        stuck += 1;
        if stuck > STUCK_TICKS {
            eprintln!("FORBIDDEN lost_wake_up: STRESS_SEED={seed}, {description}, {round:?}");
            std::process::abort();
        }
    }
}

/// Lets a waiting writer find a bucket.
fn relieve(round: &Round, rng: &mut Rng) {
    round.happened.relieved.add(1);
    round.relieve();
    while let Some(window) = take(&round.windows, rng) {
        window.leave(round);
    }
    for follower in lock(&round.followers).iter_mut() {
        follower.drain(round);
    }
    if !round.never_records() {
        round.ring.set_mode(Mode::Record);
    }
    // A reader that has news must have been woken by its producer: a lost wake-up must show.
    for wakeable in lock(&round.wakers).iter() {
        if !wakeable.has_news(round) {
            wakeable.waker.wake();
        }
    }
}

/// Drops all roles and checks the final counts.
fn check_end(round: Round) -> Happened {
    let mut rng = Rng::with_seed(0);
    while let Some(writer) = take(&round.writers, &mut rng) {
        writer.leave();
    }
    while let Some(window) = take(&round.windows, &mut rng) {
        window.leave(&round);
    }
    let mut followers = std::mem::take(&mut *lock(&round.followers));
    for follower in &mut followers {
        follower.drain(&round);
    }
    for follower in &followers {
        follower.check_end(&round);
    }
    followers
        .into_iter()
        .for_each(|follower| follower.leave(&round));
    look(&round, &mut rng);
    let statistics = round.ring.statistics();
    let stored = (statistics.stored_packets, statistics.stored_bytes);
    let evicted = (statistics.evicted_packets, statistics.evicted_bytes);
    forbidden::open_ledger_of_the_ring(stored, evicted, window::read_all(&round));
    assert_eq!(statistics.stored_packets, round.happened.stored.value());
    assert_eq!(
        (statistics.open_buckets, statistics.reserved_buckets),
        (0, 0)
    );
    if round.rules.exact {
        let log = *round.ring.reserve(i64::MIN, i64::MAX).evicted_before();
        assert_eq!((log.packets, log.exact), (statistics.evicted_packets, true));
    }
    round.happened.evicted.add(statistics.evicted_packets);
    round.happened
}
