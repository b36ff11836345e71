//! Threads that change their roles at random, on a ring whose rules are random.
//!
//! A round is one ring: small or large buckets, as few of them as are allowed or many, one to six producers, some of the
//! three modes. Three to six threads take up, for a step each, a role that lies ready in a pool, or a new one: they store
//! and publish in all patterns, follow as members of gating and lapped groups that come and go, make windows, change them, give buckets back and keep holds, switch modes, close the ring, and look at counts. Now and then a thread
//! stands still in the middle of a step with everything that it has, as one that is not scheduled.
//!
//! Every record's contents are a function of its name (`names.rs`), and every reader compares all of them.
//!
//! # Forbidden outcomes
//!
//! Each is a function in `forbidden.rs` that fails under its own name:
//!
//! | | |
//! |---|---|
//! | `torn_record` | bytes, time or fields read, held or re-read are not the record's |
//! | `early_record` | a record is seen before its producer began it |
//! | `untold_gap` | a batch does not begin where the last one and what it says it missed end |
//! | `told_unfound` | batches tell of more missed records than readers found missing |
//! | `gating_loss` | a gating group missed something |
//! | `stale_hold` | one name of a bucket stands for two contents |
//! | `time_outside_bucket` | smallest and largest time of a bucket do not cover its records, or, closed, are not theirs |
//! | `lost_from_window` | in window ≠ read + gone before + told as fallen |
//! | `overwritten_though_reserved` | a reserved bucket falls although nobody was in record mode |
//! | `older_than_watermark` | a record breaks its producer's promise for the reader |
//! | `watermark_before_records` | a promise is seen before what it promises |
//! | `impossible_counts` | counts go back, or buckets vanish |
//! | `impossible_position` | a group's position goes back, or beyond what is published |
//! | `miscounted_burst` | of a burst another number is stored than is told |
//! | `uncounted_cut` | captures cut ≠ captures longer than 256 KiB |
//! | `open_ledger_of_the_ring` | at the end stored ≠ evicted + there, in packets or bytes |
//! | `open_ledger_of_a_reader` | stored since it came ≠ analyzed + lapped + unread |
//! | `lost_wake_up` | a thread sleeps although what it waits for has come |
//!
//! The last one shows as a round in which nothing moves any more. A supervisor then gives back whatever lies in the pools:
//! it drains readers, drops windows, and wakes those who sleep without news. If that does not help within a minute, the seed
//! is named and the test aborts.
//!
//! # Running
//!
//! `STRESS_SECONDS` (2) says how long, `STRESS_SEED` (0) which seed comes first; a failure prints its seed. A seed fixes rules and
//! choices, not how threads are scheduled: run it for longer to see it again (`STRESS_ROUNDS=1` repeats it).

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

/// Ticks without any step, although everything that lay ready was given back: a minute.
const STUCK_TICKS: u32 = 6000;

/// After so many rounds the usual rules have applied, and after ten times as many all of them.
const ROUNDS_FULL: u64 = 12;
/// A run has at least as many, however short it is to be; under a sanitizer they are slow.
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
        // Joined one by one: the sanitizer sees joins, but not how a scope ends.
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

/// A worker that fails must not leave the others behind.
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

/// Looks at counts and positions, as a status page would.
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

/// Sees to it that whoever waits can go on, and that it does.
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

/// Gives back all that lies ready. A writer that waits then has what it waits for.
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
    // A reader with news was woken by who published it, or never will be.
    for wakeable in lock(&round.wakers).iter() {
        if !wakeable.has_news(round) {
            wakeable.waker.wake();
        }
    }
}

/// All threads have ended, and everybody leaves: the ledgers close.
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
