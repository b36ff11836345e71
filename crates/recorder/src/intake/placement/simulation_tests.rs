//! The rule compared with R-Scope's lemma 1. An inserter, its source's buffer, the ring and an
//! analyzer run on simulated clocks, in each case inline, in a thread, and as the rule decides.
//! `docs/dev/analyzers.md` has the figures.

use std::num::NonZero;

use super::*;

const MS: i64 = 1_000_000;
/// Largest burst that AF_PACKET lends, packets.
const BURST: i64 = 256;
/// Time between two publications, ns.
const PUBLICATION_NS: i64 = MS;
/// Longest analysis before an inserter asks its source again, ns, unless a packet takes longer.
const STRIDE_NS: i64 = 50_000;
const PACKET_BYTES: u64 = 80;
const TIME_NS: i64 = 2000 * MS;

/// Costs of one packet, ns.
#[derive(Debug, Clone, Copy)]
struct Costs {
    /// Fetching from the source and storing.
    store: i64,
    /// Analyzing a packet that is still in the inserter's cache.
    near: i64,
    /// Analyzing a packet that is read back from the ring.
    far: i64,
}

/// A few short rules: storing a packet costs more than fetching it from memory again. So a second
/// thread handles more packets than the inserter alone.
const SHORT: Costs = Costs {
    store: 40,
    near: 40,
    far: 60,
};
/// Expensive analysis: the cost of storing is negligible, as in the lemma.
const LONG: Costs = Costs {
    store: 40,
    near: 1000,
    far: 1100,
};

/// A steady rate in packets a millisecond, and bursts with another rate.
#[derive(Debug, Clone, Copy)]
struct Load {
    rate: i64,
    rate_max: i64,
    burst_ns: i64,
    period_ns: i64,
}

impl Load {
    /// Packets that arrived before this time.
    fn before(&self, ns: i64) -> i64 {
        let (periods, rest) = (ns / self.period_ns, ns % self.period_ns);
        let burst_ns = periods * self.burst_ns + rest.min(self.burst_ns);
        (self.rate_max * burst_ns + self.rate * (ns - burst_ns)) / MS
    }
}

#[derive(Debug, Clone, Copy)]
struct Case {
    costs: Costs,
    load: Load,
    /// Packets that the source's buffer holds.
    source: i64,
    /// Bytes of the ring.
    ring_bytes: u64,
    /// Rest of the dry engine, ns; at least 1,000.
    rest_ns: i64,
    cpus: usize,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct End {
    came: i64,
    dropped: i64,
    /// Packets that were overwritten in the ring before the analyzer could analyze the packets.
    lapped: i64,
    looked: i64,
    unread: i64,
    /// How often analysis moved between inserter and thread.
    changes: i64,
    /// CPU time, ns.
    busy_ns: i64,
}

struct Simulation {
    case: Case,
    now_ns: i64,
    /// Packets that arrived and were counted.
    seen: i64,
    waiting: i64,
    /// Time that the analyzer has spent on its next packet.
    had_ns: i64,
    /// Whether the inserter analyzes the unread packets.
    is_inline: bool,
    end: End,
}

impl Simulation {
    /// Lets time pass; the inserter works for `ns` of it if `is_work`. On one CPU, the inserter and
    /// the analyzer take turns.
    fn pass(&mut self, ns: i64, is_work: bool) {
        let is_shared = self.case.cpus == 1 && is_work && self.end.unread > 0 && !self.is_inline;
        let wall_ns = if is_shared { 2 * ns } else { ns };
        self.now_ns += wall_ns;
        self.end.busy_ns += if is_work { ns } else { 0 };
        self.had_ns += if self.case.cpus == 1 && is_work {
            wall_ns - ns
        } else {
            ns
        };
        let unread = if self.is_inline { 0 } else { self.end.unread };
        let looked = (self.had_ns / self.case.costs.far).min(unread);
        self.end.busy_ns += looked * self.case.costs.far;
        self.end.looked += looked;
        self.end.unread -= looked;
        self.had_ns = match unread - looked {
            0 => 0,
            _ => self.had_ns - looked * self.case.costs.far,
        };
        let came = self.case.load.before(self.now_ns);
        self.waiting += came - self.seen;
        self.seen = came;
        let over = (self.waiting - self.case.source).max(0);
        self.end.dropped += over;
        self.waiting -= over;
    }

    /// Stores packets, which are not analyzed yet. If the ring is full, it overwrites the oldest
    /// packets that are not analyzed.
    fn store(&mut self, packets: i64) {
        self.pass(packets * self.case.costs.store, true);
        self.end.unread += packets;
        let ring = i64::try_from(self.case.ring_bytes / PACKET_BYTES).unwrap();
        let lapped = (self.end.unread - ring).max(0);
        self.end.lapped += lapped;
        self.end.unread -= lapped;
    }

    /// The inserter analyzes unread packets, at this cost of each, until the source has packets or
    /// until a time.
    fn work_off(&mut self, cost: i64, until_ns: i64) {
        let stride = (STRIDE_NS / cost).max(1);
        while self.end.unread > 0 && self.waiting == 0 && self.now_ns < until_ns {
            let packets = stride.min(self.end.unread);
            self.end.unread -= packets;
            self.end.looked += packets;
            self.pass(packets * cost, true);
        }
    }
}

fn simulate(case: Case, analyzers: Analyzers) -> End {
    let room = AnalysisResources {
        cpus: case.cpus,
        threads: 1,
        inserters: 1,
        ring_bytes: case.ring_bytes,
    };
    let mut placement = ShardPlacement::new(PlacementShared::new(analyzers, room));
    let mut it = Simulation {
        case,
        now_ns: 0,
        seen: 0,
        waiting: 0,
        had_ns: 0,
        is_inline: placement.is_inline,
        end: End::default(),
    };
    let mut is_idle = true;
    while it.now_ns < TIME_NS {
        let dry_ns = it.now_ns;
        if is_idle {
            it.pass(case.rest_ns.max(1000), false);
        }
        placement.observe_wait(it.now_ns, (it.now_ns - dry_ns).min(case.rest_ns));
        let until_ns = it.now_ns + PUBLICATION_NS;
        while it.waiting > 0 && it.now_ns < until_ns {
            let packets = it.waiting.min(BURST);
            it.waiting -= packets;
            let is_inline = placement.is_inline(it.end.unread == 0);
            it.end.changes += i64::from(is_inline != it.is_inline);
            it.is_inline = is_inline;
            let is_in_hand = is_inline && it.end.unread == 0;
            it.store(packets);
            if is_in_hand {
                it.work_off(case.costs.near, i64::MAX);
            }
            placement.stored(packets.unsigned_abs() * PACKET_BYTES);
        }
        let is_dry = it.waiting == 0;
        let has_caught_up = is_dry && !(it.is_inline && it.end.unread > 0);
        placement.observe_drain(has_caught_up, it.now_ns);
        is_idle = has_caught_up;
        if it.is_inline && is_dry && !has_caught_up {
            it.work_off(case.costs.far, it.now_ns + PUBLICATION_NS);
            is_idle = it.waiting == 0 && it.end.unread == 0;
            if is_idle {
                placement.observe_drain(true, it.now_ns);
            }
        }
    }
    it.end.came = it.seen - it.waiting;
    let End {
        came,
        dropped,
        lapped,
        looked,
        unread,
        ..
    } = it.end;
    assert_eq!(came, dropped + lapped + looked + unread, "{case:?}");
    it.end
}

/// Simulates the case with analysis inline, in a thread, and as the rule decides.
fn all(case: Case) -> [End; 3] {
    [
        Analyzers::Inline,
        Analyzers::Threads(NonZero::<usize>::MIN),
        Analyzers::Auto,
    ]
    .map(|analyzers| {
        let end = simulate(case, analyzers);
        println!("{analyzers:?}: {end:?}");
        end
    })
}

/// Upper bound on the packets that are lost because of `changes` changes of the place. Each change
/// to a thread costs the packets beyond the inserter's rate that arrive until the rule sees the
/// overload, less the source's buffer.
fn bound(case: Case, changes: i64) -> i64 {
    let cost = case.costs.store + case.costs.near;
    let seen_ns =
        WAITING_NS_MAX + 2 * case.rest_ns.min(REST_NS_MAX) + PUBLICATION_NS + BURST * cost;
    let too_many = (case.load.rate_max * seen_ns / MS - seen_ns / cost).max(0);
    (changes + 1) / 2 * (too_many - case.source).max(0)
}

fn steady(rate: i64) -> Load {
    Load {
        rate,
        rate_max: rate,
        burst_ns: 0,
        period_ns: TIME_NS,
    }
}

const BASE: Case = Case {
    costs: SHORT,
    load: Load {
        rate: 0,
        rate_max: 0,
        burst_ns: 0,
        period_ns: 1,
    },
    source: 100_000,
    ring_bytes: 16 << 20,
    rest_ns: 0,
    cpus: 2,
};

fn is_whole(end: &End) -> bool {
    (end.dropped, end.lapped) == (0, 0)
}

/// Case (1) of the lemma, with an inserter that keeps up.
#[test]
fn case_1_inline_costs_less() {
    for costs in [SHORT, LONG] {
        // Half of the inserter's rate.
        let load = steady(MS / (costs.store + costs.near) / 2);
        let [inline, thread, auto] = all(Case {
            costs,
            load,
            ..BASE
        });
        assert!([inline, thread, auto].iter().all(is_whole));
        assert_eq!((inline, auto.changes), (auto, 0));
        assert!(inline.busy_ns < thread.busy_ns);
    }
}

/// Case (2) of the lemma: the source's buffer holds the packets that arrive while one packet is
/// analyzed. The lemma has no drops, because its queue is unlimited. The ring is limited.
#[test]
fn case_2_a_burst_that_the_source_holds_is_no_overload() {
    let load = Load {
        rate: 1000,
        rate_max: 20_000,
        burst_ns: 2 * MS,
        period_ns: 50 * MS,
    };
    let [inline, thread, auto] = all(Case {
        load,
        ring_bytes: 256 << 20,
        ..BASE
    });
    assert!([inline, thread, auto].iter().all(is_whole));
    assert_eq!(auto, inline);
    assert!(inline.busy_ns < thread.busy_ns);
}

#[test]
fn case_2_of_a_longer_burst_the_ring_becomes_the_queue() {
    let load = Load {
        rate: 1000,
        rate_max: 20_000,
        burst_ns: 50 * MS,
        period_ns: 500 * MS,
    };
    let [inline, thread, auto] = all(Case { load, ..BASE });
    assert!(inline.dropped == 0 && inline.lapped > 1_000_000);
    assert!(is_whole(&thread) && is_whole(&auto));
    assert!((1..=4).contains(&auto.changes));
    let ring_bytes = 256 << 20;
    let [inline, ..] = all(Case {
        load,
        ring_bytes,
        ..BASE
    });
    assert!(is_whole(&inline));
}

#[test]
fn case_2_at_a_rate_that_is_too_much_for_ever() {
    let [inline, thread, auto] = all(Case {
        load: steady(16_000),
        ..BASE
    });
    assert!(inline.dropped == 0 && inline.lapped > 6_000_000);
    assert!(is_whole(&thread) && is_whole(&auto));
    assert!((1..=3).contains(&auto.changes));
}

/// Case (3) of the lemma: the source's buffer holds almost nothing, and more packets arrive than
/// one thread can analyze. The lemma says inline, because a thread analyzes fewer packets. But a
/// dump may have packets that no thread analyzed.
#[test]
fn case_3_inline_sees_more_and_a_thread_keeps_more() {
    // With a larger buffer the lemma's case is (2), and the source drops nothing.
    for source in [2, 100_000] {
        let case = Case {
            costs: LONG,
            load: steady(2000),
            source,
            ..BASE
        };
        let [inline, thread, auto] = all(case);
        if source == 2 {
            assert!(inline.looked > thread.looked, "the lemma");
            assert!(inline.dropped > 1_900_000 && inline.lapped == 0);
        } else {
            assert!(inline.looked > thread.looked * 9 / 10);
            assert!(inline.dropped == 0 && inline.lapped > 1_900_000);
        }
        assert!(thread.dropped == 0 && thread.lapped > 1_900_000);
        assert!(auto.dropped <= bound(case, auto.changes), "the rule");
        assert!(auto.lapped <= thread.lapped * 101 / 100);
        assert!(auto.dropped + auto.lapped < (inline.dropped + inline.lapped) * 11 / 10);
    }
}

/// Case (4) of the lemma: the source's buffer holds almost nothing, bursts exceed the inserter's
/// rate, and the average does not. The lemma says that a thread is better. The rule learns this in
/// the first burst that lasts.
#[test]
fn case_4_a_burst_that_lasts_is_learned_from() {
    let load = Load {
        rate: 100,
        rate_max: 2000,
        burst_ns: 50 * MS,
        period_ns: 200 * MS,
    };
    let case = Case {
        costs: LONG,
        load,
        source: 2,
        ..BASE
    };
    let [inline, thread, auto] = all(case);
    assert!(is_whole(&thread));
    assert!(inline.dropped > 500_000);
    assert!(auto.dropped <= bound(case, auto.changes) && auto.dropped < inline.dropped / 20);
    let load = Load {
        burst_ns: 2 * MS,
        period_ns: 20 * MS,
        ..load
    };
    let [inline, thread, auto] = all(Case { load, ..case });
    assert!(is_whole(&thread) && inline.dropped > 200_000);
    assert_eq!((auto.dropped, auto.changes), (inline.dropped, 0));
    let [inline, _, auto] = all(Case {
        load,
        source: 4096,
        ..case
    });
    assert!(is_whole(&inline) && is_whole(&auto));
}

#[test]
fn without_a_free_cpu_it_stays() {
    let load = steady(16_000);
    let [inline, thread, auto] = all(Case {
        load,
        cpus: 1,
        ..BASE
    });
    assert_eq!(auto, inline);
    assert!(inline.dropped < thread.dropped + thread.lapped);
    let case = Case {
        costs: LONG,
        load: steady(2000),
        cpus: 1,
        ..BASE
    };
    let [inline, thread, auto] = all(case);
    assert_eq!(auto, inline);
    assert!(thread.dropped == 0 && thread.looked < inline.looked);
}

/// An engine rests for 24 ms, for 4 ms or not at all. The rule may see overload only above 55 % and
/// 69 % of the time.
#[test]
fn a_rest_looks_like_overload_above_half_of_the_time() {
    for (percent, rest_ns, changes) in [
        (20, 24 * MS, 0),
        (50, 24 * MS, 0),
        (54, 24 * MS, 0),
        (58, 24 * MS, 1),
        (66, 4 * MS, 0),
        (74, 4 * MS, 1),
        (95, 0, 0),
    ] {
        let rate = MS / (SHORT.store + SHORT.far) * percent / 100;
        let case = Case {
            load: steady(rate),
            rest_ns,
            source: 1_000_000,
            ring_bytes: 256 << 20,
            ..BASE
        };
        let [inline, thread, auto] = all(case);
        assert!([inline, thread, auto].iter().all(is_whole));
        assert_eq!(auto.changes.min(1), changes, "{percent} {rest_ns}");
    }
}

/// If storing alone keeps up, the source drops no more packets with the rule than with the better
/// place, apart from the packets while the rule learns. Compared with a thread, at most 2 % more of
/// the packets are not analyzed.
#[test]
fn it_loses_no_more_than_the_better_place() {
    for seed in 0..60 {
        let mut random = fastrand::Rng::with_seed(seed);
        let costs = if random.bool() { SHORT } else { LONG };
        let most = MS / (costs.store + costs.near);
        let period_ns = random.i64(10..500) * MS;
        let rest_ns = if random.bool() {
            0
        } else {
            random.i64(1..=24) * MS
        };
        let load = Load {
            rate: random.i64(0..most),
            rate_max: random.i64(0..(2 * most).min(24_000)),
            burst_ns: random.i64(1..period_ns),
            period_ns,
        };
        // At most half of the buffer fills during a rest.
        let least = (2 * load.rate.max(load.rate_max) * rest_ns / MS).max(1000);
        let source = random.i64(least..10 * least);
        let case = Case {
            costs,
            load,
            source,
            rest_ns,
            ..BASE
        };
        println!("{seed} {case:?}");
        let [inline, thread, auto] = all(case);
        let more = bound(case, auto.changes);
        assert!(
            auto.dropped <= inline.dropped.min(thread.dropped) + more,
            "{seed}: {more}"
        );
        let unseen = |end: &End| end.lapped + end.unread;
        assert!(unseen(&auto) <= unseen(&thread) + auto.came / 50, "{seed}");
    }
}
