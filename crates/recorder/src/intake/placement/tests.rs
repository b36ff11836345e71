use std::num::NonZero;

use super::*;

const MS: i64 = 1_000_000;
const ROOM: AnalysisResources = AnalysisResources {
    cpus: 2,
    threads: 1,
    inserters: 2,
    ring_bytes: 16 << 20,
};

fn placement(analyzers: Analyzers) -> ShardPlacement {
    ShardPlacement::new(PlacementShared::new(analyzers, ROOM))
}

/// The source wakes after it ran dry, and its first packet has waited for 0 ns.
fn wakes(placement: &mut ShardPlacement, now_ns: i64) {
    placement.observe_drain(true, now_ns);
    placement.observe_wait(now_ns, 0);
}

#[test]
fn a_thread_takes_over_from_an_inserter_that_does_not_run_dry() {
    let mut it = placement(Analyzers::Auto);
    wakes(&mut it, 0);
    for ms in 0..=5 {
        it.observe_drain(false, ms * MS);
        assert!(it.is_inline(true), "{ms}");
    }
    it.observe_drain(false, 5 * MS + 1);
    assert!(!it.is_inline(true));
}

#[test]
fn a_thread_takes_over_from_an_inserter_with_an_overlong_packet() {
    let mut it = placement(Analyzers::Auto);
    wakes(&mut it, 0);
    assert!(!it.observe_overlong(MS));
    assert!(!it.is_inline(true));
    it.observe_drain(true, MS + HOLD_NS - 1);
    assert!(!it.is_inline(true), "it was overloaded until a moment ago");
    it.observe_drain(true, MS + HOLD_NS);
    assert!(it.is_inline(true));
    let mut it = placement(Analyzers::Inline);
    assert!(it.observe_overlong(MS), "the user wants it inline");
    assert!(it.is_inline(true));
    let one_cpu = AnalysisResources { cpus: 1, ..ROOM };
    let mut it = ShardPlacement::new(PlacementShared::new(Analyzers::Auto, one_cpu));
    wakes(&mut it, 0);
    assert!(it.observe_overlong(MS), "no CPU is free");
    assert!(it.is_inline(true));
}

#[test]
fn or_of_which_much_of_the_ring_is_stored() {
    let mut it = placement(Analyzers::Auto);
    wakes(&mut it, 0);
    // The limit of each of the two inserters is half a MiB.
    it.stored(512 << 10);
    it.observe_drain(false, 1);
    assert!(it.is_inline(true));
    it.stored(1);
    it.observe_drain(false, 2);
    assert!(!it.is_inline(true));
    let mut it = placement(Analyzers::Auto);
    for ms in 0..100 {
        wakes(&mut it, ms * MS);
        it.stored(512 << 10);
        it.observe_drain(false, ms * MS);
        assert!(it.is_inline(true), "it runs dry each time");
    }
}

#[test]
fn what_came_during_a_rest_is_no_overload() {
    for rest_ms in [0, 4, 8, 16, 24] {
        let mut it = placement(Analyzers::Auto);
        wakes(&mut it, 0);
        it.observe_drain(true, MS);
        let woke_ns = (1 + rest_ms) * MS;
        it.observe_wait(woke_ns, rest_ms * MS);
        it.stored(100 << 20);
        it.observe_drain(false, woke_ns + rest_ms * MS - 1);
        assert!(rest_ms == 0 || it.is_inline(true), "not its bytes");
        it.observe_drain(false, woke_ns + (rest_ms + 5) * MS);
        assert!(rest_ms == 0 || it.is_inline(true), "not its time");
        it.observe_drain(false, woke_ns + (rest_ms + 5) * MS + 1);
        assert!(!it.is_inline(true), "{rest_ms}");
    }
}

#[test]
fn silence_is_no_rest_and_stamps_make_none_longer() {
    // The time for which the source was dry, the queueing delay of the first packet, and the time
    // from the wake-up until the inserter is overloaded; ms.
    for (dry_ms, lay_ms, due_ms) in [
        (1000, 0, 5),
        (1000, 4, 9),
        (1000, 90, 29),
        (2, 90, 7),
        (20, -7, 5),
        (20, i64::MAX / MS, 25),
    ] {
        let mut it = placement(Analyzers::Auto);
        wakes(&mut it, 0);
        it.observe_drain(true, 0);
        it.observe_wait(dry_ms * MS, lay_ms * MS);
        it.observe_drain(false, (dry_ms + due_ms) * MS);
        assert!(it.is_inline(true), "{dry_ms} {lay_ms}");
        it.observe_drain(false, (dry_ms + due_ms) * MS + 1);
        assert!(!it.is_inline(true), "{dry_ms} {lay_ms}");
    }
    // At the start the past is unknown, so the rest counts as the longest rest, 24 ms.
    let mut it = placement(Analyzers::Auto);
    it.observe_wait(i64::MAX / 2, i64::MAX);
    it.observe_drain(false, i64::MAX / 2 + 29 * MS);
    assert!(it.is_inline(true));
}

/// The inserter hands over after 6 ms.
fn handed_over() -> ShardPlacement {
    let mut it = placement(Analyzers::Auto);
    wakes(&mut it, 0);
    it.observe_drain(false, 6 * MS);
    assert!(!it.is_inline(true));
    it
}

#[test]
fn back_when_all_is_read_and_it_ran_dry_and_a_second_has_passed() {
    let mut it = handed_over();
    wakes(&mut it, 6 * MS + HOLD_NS - 1);
    assert!(!it.is_inline(true), "too soon");
    it.observe_drain(true, 6 * MS + HOLD_NS);
    assert!(!it.is_inline(false), "not all is read");
    it.observe_wait(6 * MS + HOLD_NS, 0);
    it.observe_drain(false, 7 * MS + HOLD_NS);
    assert!(it.is_inline(true), "it has run dry");
    assert!(it.is_inline(false), "the analyzer only counts from here on");
    let mut it = handed_over();
    for ms in 7..=2000 {
        it.observe_drain(false, ms * MS);
    }
    it.observe_drain(true, 2001 * MS);
    assert!(!it.is_inline(true), "it was at its limit just now");
    it.observe_drain(true, 2000 * MS + HOLD_NS);
    assert!(it.is_inline(true));
}

/// Storing alone keeps up, but storing with analysis does not. The place then changes about once a
/// second in each direction, 30 to 40 times in 20 s.
#[test]
fn it_does_not_flap() {
    for seed in 0..20 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut it = placement(Analyzers::Auto);
        let (mut now_ns, mut was_inline, mut changes) = (0, true, 0);
        while now_ns < 20 * HOLD_NS {
            wakes(&mut it, now_ns);
            let is_inline = it.is_inline(random.u32(..4) > 0);
            changes += u32::from(is_inline != was_inline);
            was_inline = is_inline;
            now_ns += random.i64(1..3 * MS);
            if is_inline {
                now_ns += 7 * MS;
                it.observe_drain(false, now_ns);
            }
        }
        assert!((30..=40).contains(&changes), "{seed}: {changes}");
    }
}

#[test]
fn a_thread_takes_over_where_a_cpu_is_free() {
    // CPUs, threads of analyzers, inserters, and the number of inserters that hand over.
    for (cpus, threads, inserters, handed_over) in [
        (1, 1, 1, 0),
        (2, 1, 1, 1),
        (2, 1, 2, 1),
        (3, 1, 2, 2),
        (4, 2, 4, 2),
        (8, 4, 4, 4),
        (5, 4, 4, 2),
        (5, 1, 4, 4),
    ] {
        let room = AnalysisResources {
            cpus,
            threads,
            inserters,
            ..ROOM
        };
        let placing = PlacementShared::new(Analyzers::Auto, room);
        let new = |_| ShardPlacement::new(Arc::clone(&placing));
        let mut all: Vec<_> = (0..inserters).map(new).collect();
        for it in &mut all {
            wakes(it, 0);
            it.observe_drain(false, 6 * MS);
        }
        let elsewhere = all
            .iter_mut()
            .filter_map(|it| (!it.is_inline(true)).then_some(()));
        assert_eq!(
            elsewhere.count(),
            handed_over,
            "{cpus} {threads} {inserters}"
        );
        // The other inserters return inline after `HOLD_NS`.
        assert_eq!(placing.at_limit.load(Relaxed), inserters);
        all.truncate(handed_over);
        assert_eq!(placing.at_limit.load(Relaxed), handed_over);
        let now_ns = 6 * MS + HOLD_NS;
        for it in &mut all {
            it.observe_drain(true, now_ns);
            assert!(it.is_inline(true));
        }
        assert_eq!(placing.at_limit.load(Relaxed), 0);
    }
}

#[test]
fn a_cpu_that_becomes_free_is_taken() {
    let placing = PlacementShared::new(Analyzers::Auto, ROOM);
    let [mut one, mut other] = [(); 2].map(|()| ShardPlacement::new(Arc::clone(&placing)));
    for it in [&mut one, &mut other] {
        wakes(it, 0);
        it.observe_drain(false, 6 * MS);
    }
    assert!(!one.is_inline(true) && other.is_inline(true));
    drop(one);
    other.observe_drain(false, 7 * MS);
    assert!(!other.is_inline(true));
}

#[test]
fn what_is_said_holds() {
    let threads = Analyzers::Threads(NonZero::<usize>::MIN);
    for (analyzers, is_inline) in [(Analyzers::Inline, true), (threads, false)] {
        let mut it = placement(analyzers);
        for ms in (0..10_000).step_by(7) {
            assert_eq!(it.is_inline(true), is_inline);
            it.stored(100 << 20);
            it.observe_drain(ms % 5 == 0, ms * MS);
            it.observe_wait(ms * MS, 0);
        }
        assert_eq!(it.placing.at_limit.load(Relaxed), 0);
    }
}
