//! One round: a ring, its rules, and the pools of roles that any worker can take.

use std::sync::{
    PoisonError,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use fastrand::Rng;
use retroscope_ring::{EvictionDetail, Mode, Positions, Ring, RingConfig, RingStatistics, Waker};

use super::{
    follower::Follower,
    names::Names,
    sync::{Condvar, Mutex, lock},
    window::Window,
    writer::Writer,
};

/// Bucket sizes in bytes to choose from, the smallest allowed size twice.
const BUCKET_BYTES: [usize; 4] = [260 << 10, 260 << 10, 512 << 10, 2 << 20];
/// Maximum memory of a ring.
const RING_BYTES_MAX: usize = 160 << 20;
/// How often the supervisor checks for progress.
pub(crate) const TICK: std::time::Duration = std::time::Duration::from_millis(10);

#[derive(Debug, Clone)]
pub(crate) struct Rules {
    pub(crate) producers: usize,
    readers: usize,
    buckets: usize,
    bucket_bytes: usize,
    /// The modes that the round may set.
    pub(crate) modes: Vec<Mode>,
    /// Whether the log keeps every stamp, so that windows can be accounted for.
    pub(crate) exact: bool,
    prefault: bool,
    pub(crate) workers: usize,
    pub(crate) steps: u64,
    pub(crate) close_at: Option<u64>,
    pub(crate) names: Names,
}

#[derive(Debug)]
pub(crate) struct Round {
    pub(crate) rules: Rules,
    pub(crate) ring: Ring,
    pub(crate) writers: Mutex<Vec<Writer>>,
    pub(crate) followers: Mutex<Vec<Follower>>,
    pub(crate) windows: Mutex<Vec<Window>>,
    pub(crate) wakers: Mutex<Vec<Wakeable>>,
    pub(crate) watched: Mutex<Watched>,
    /// Number of records that each producer has begun to store.
    pub(crate) begun: Vec<AtomicU64>,
    pub(crate) happened: Happened,
    steps: AtomicU64,
    /// Number of ticks without progress. A change ends every stall.
    relief: AtomicU64,
    over: AtomicBool,
    ticks: (Mutex<u64>, Condvar),
}

#[derive(Debug)]
pub(crate) struct Wakeable {
    pub(crate) waker: Waker,
    pub(crate) positions: Positions,
    /// Numbers of the producers that the reader reads.
    pub(crate) producers: Vec<usize>,
}

#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) statistics: RingStatistics,
    /// Positions of readers, each with its last observed values.
    pub(crate) positions: Vec<(Positions, Vec<u64>)>,
}

/// Counts of outcomes. An outcome that never occurred was not tested.
#[derive(Debug, Default)]
pub(crate) struct Happened {
    pub(crate) stored: Count,
    pub(crate) stored_in_bursts: Count,
    pub(crate) cut: Count,
    pub(crate) refused: Count,
    pub(crate) closed: Count,
    pub(crate) lapped: Count,
    pub(crate) slept: Count,
    pub(crate) stalled: Count,
    pub(crate) relieved: Count,
    pub(crate) accounted: Count,
    pub(crate) gone_before: Count,
    pub(crate) fallen: Count,
    pub(crate) overwritten_before_held: Count,
    pub(crate) held_on: Count,
    pub(crate) evicted: Count,
    pub(crate) promised: Count,
}

impl Happened {
    /// Counts that must not be 0 after a dozen rounds.
    fn usual(&self) -> [&Count; 13] {
        [
            &self.stored,
            &self.stored_in_bursts,
            &self.cut,
            &self.refused,
            &self.lapped,
            &self.slept,
            &self.stalled,
            &self.accounted,
            &self.gone_before,
            &self.fallen,
            &self.held_on,
            &self.evicted,
            &self.promised,
        ]
    }

    /// Counts that depend on the timing of threads, and may be 0 after a dozen rounds.
    fn rare(&self) -> [&Count; 3] {
        [&self.closed, &self.relieved, &self.overwritten_before_held]
    }

    fn counts(&self) -> impl Iterator<Item = &Count> {
        self.usual().into_iter().chain(self.rare())
    }

    pub(crate) fn add(&self, other: &Self) {
        for (sum, count) in self.counts().zip(other.counts()) {
            sum.add(count.value());
        }
    }

    pub(crate) fn all(&self, also_rare: bool) -> bool {
        let seen = |count: &Count| count.value() > 0;
        self.usual().into_iter().all(seen) && (!also_rare || self.rare().into_iter().all(seen))
    }
}

#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed); // read when all threads were joined
    }

    pub(crate) fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed) // read when all threads were joined
    }
}

impl Rules {
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let (producers, readers) = (rng.usize(1..=6), rng.usize(1..=5));
        let bucket_bytes = BUCKET_BYTES[rng.usize(0..BUCKET_BYTES.len())];
        let buckets = 4 * (producers + readers) * [1, 1, 1, 2, 6][rng.usize(0..5)];
        let modes = [Mode::Record, Mode::Protect, Mode::Wait];
        let modes: Vec<Mode> = modes.into_iter().filter(|_| rng.u8(0..3) > 0).collect();
        let steps = rng.u64(300..3000) / if cfg!(retroscope_sanitize) { 4 } else { 1 };
        let far_behind = rng.u8(0..4) == 0;
        Self {
            producers,
            readers,
            buckets: buckets.min(RING_BYTES_MAX / bucket_bytes),
            bucket_bytes,
            modes: if modes.is_empty() {
                vec![Mode::Record]
            } else {
                modes
            },
            exact: rng.u8(0..5) > 0,
            prefault: rng.bool(),
            workers: rng.usize(3..=6),
            steps,
            close_at: (rng.u8(0..4) == 0).then(|| rng.u64(steps / 2..steps)),
            names: Names {
                seed: rng.u64(..),
                far_ahead: rng.u8(0..3) == 0,
                far_behind,
                long_per_mille: [8, 30, 200][rng.usize(0..3)],
            },
        }
    }
}

impl Round {
    pub(crate) fn new(rules: Rules) -> Self {
        let config = RingConfig {
            bucket_bytes: Some(rules.bucket_bytes),
            mode: rules.modes[0],
            prefault: rules.prefault,
            eviction_detail: if rules.exact {
                EvictionDetail::Exact {
                    budget_bytes: 1 << 30,
                }
            } else {
                EvictionDetail::Bounds
            },
            ..RingConfig::new(
                (rules.buckets * rules.bucket_bytes) as u64,
                rules.producers,
                rules.readers,
            )
        };
        let ring = Ring::new(&config, None).expect("some MiB");
        Self {
            writers: Mutex::new(Vec::new()),
            followers: Mutex::new(Vec::new()),
            windows: Mutex::new(Vec::new()),
            wakers: Mutex::new(Vec::new()),
            watched: Mutex::new(Watched {
                statistics: ring.statistics(),
                positions: Vec::new(),
            }),
            begun: (0..rules.producers).map(|_| AtomicU64::new(0)).collect(),
            happened: Happened::default(),
            steps: AtomicU64::new(0),
            relief: AtomicU64::new(0),
            over: AtomicBool::new(false),
            ticks: (Mutex::new(0), Condvar::new()),
            rules,
            ring,
        }
    }

    /// Whether reservations never fall: no mode of the round is record mode.
    pub(crate) fn never_records(&self) -> bool {
        !self.rules.modes.contains(&Mode::Record)
    }

    /// Counts a step of a worker. Returns the number of earlier steps.
    pub(crate) fn step(&self) -> u64 {
        let steps = self.steps.fetch_add(1, Ordering::Relaxed); // orders no other data
        if steps + 1 == self.rules.steps {
            self.end();
        }
        steps
    }

    pub(crate) fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed) // orders no other data
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed) // joining the threads orders all other data
    }

    pub(crate) fn end(&self) {
        self.over.store(true, Ordering::Relaxed); // joining the threads orders all other data
        self.ring.close();
        self.tick();
    }

    pub(crate) fn relief(&self) -> u64 {
        self.relief.load(Ordering::Relaxed) // orders no other data
    }

    pub(crate) fn relieve(&self) {
        self.relief.fetch_add(1, Ordering::Relaxed); // orders no other data
    }

    /// Simulates a thread that is not scheduled, with all that it holds.
    pub(crate) fn stall(&self, rng: &mut Rng) {
        self.happened.stalled.add(1);
        let until = self.steps() + rng.u64(1..60);
        let relief = self.relief();
        let blocked = rng.u8(0..4) == 0;
        while self.steps() < until && relief == self.relief() && !self.is_over() {
            if blocked {
                self.await_tick();
            } else {
                std::thread::yield_now();
            }
        }
    }

    pub(crate) fn tick(&self) {
        *lock(&self.ticks.0) += 1;
        self.ticks.1.notify_all();
    }

    /// The supervisor's pause. Ends early when the round ends.
    pub(crate) fn pause(&self) {
        let ticks = lock(&self.ticks.0);
        if !self.is_over() {
            drop(self.ticks.1.wait_timeout(ticks, TICK));
        }
    }

    fn await_tick(&self) {
        let mut ticks = lock(&self.ticks.0);
        let now = *ticks;
        while *ticks == now && !self.is_over() {
            ticks = self
                .ticks
                .1
                .wait(ticks)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Wakeable {
    /// Whether records were published that the reader has not finished.
    pub(crate) fn has_news(&self, round: &Round) -> bool {
        self.producers
            .iter()
            .any(|&producer| self.positions.get(producer) < round.ring.published(producer))
    }
}

pub(crate) fn take<T>(pool: &Mutex<Vec<T>>, rng: &mut Rng) -> Option<T> {
    let mut pool = lock(pool);
    (!pool.is_empty()).then(|| {
        let index = rng.usize(0..pool.len());
        pool.swap_remove(index)
    })
}
