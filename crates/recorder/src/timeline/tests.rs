use super::*;
use crate::{
    LOST_NO_BUCKET,
    tests::{
        live::{START, config},
        rig::{MS, Rig, RigConfig, S, udp},
    },
};

fn spread(slots: TimelineSlots, span_ns: (i64, i64), total: u64) -> Vec<u64> {
    let mut parts = vec![0; slots.count];
    slots.spread(span_ns, total, |slot, part| parts[slot] += part);
    parts
}

#[test]
fn a_stretch_is_spread_evenly_and_nothing_of_it_is_lost() {
    let slots = TimelineSlots::new((0, 99), 10);
    assert_eq!((slots.slot_ns, slots.count), (10, 10));
    assert_eq!(spread(slots, (0, 99), 100), [10; 10]);
    assert_eq!(spread(slots, (5, 5), 7), [7, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(spread(slots, (5, 24), 20), [5, 10, 5, 0, 0, 0, 0, 0, 0, 0]);
    // Only parts outside the slots are left out.
    assert_eq!(
        spread(slots, (-50, 49), 100),
        [10, 10, 10, 10, 10, 0, 0, 0, 0, 0]
    );
    assert_eq!(spread(slots, (90, 189), 100)[9], 10);
    for (span_ns, total) in [((-20, -1), 5), ((100, 200), 5), ((10, 5), 5)] {
        assert_eq!(spread(slots, span_ns, total), [0; 10], "{span_ns:?}");
    }
    for seed in 0..300 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (from_ns, to_ns) = (random.i64(-1000..1000), random.i64(1000..5000));
        let slots = TimelineSlots::new((from_ns, to_ns), random.usize(1..40));
        let first_ns = random.i64(from_ns..=to_ns);
        let span_ns = (first_ns, random.i64(first_ns..=to_ns));
        let total = random.u64(0..10_000);
        let parts = spread(slots, span_ns, total);
        assert_eq!(parts.iter().sum::<u64>(), total, "seed {seed}");
        let per_ns = total as f64 / (span_ns.1 - span_ns.0 + 1) as f64;
        for (slot, part) in parts.into_iter().enumerate() {
            let (begin, behind) = slots.bounds(slot);
            let overlap = behind.min(i128::from(span_ns.1) + 1) - begin.max(span_ns.0.into());
            let expected = overlap.max(0) as f64 * per_ns;
            assert!((part as f64 - expected).abs() <= 1.0, "seed {seed}");
        }
    }
}

#[test]
fn times_at_both_ends_of_all_time_are_slots_too() {
    for ends in [
        (i64::MIN, i64::MAX),
        (i64::MIN, i64::MIN),
        (i64::MAX, i64::MAX),
        (0, 0),
    ] {
        for count in [1, 7, SLOTS_MAX] {
            let slots = TimelineSlots::new(ends, count);
            let parts = spread(slots, (i64::MIN, i64::MAX), u64::MAX);
            assert!(
                !parts.is_empty() && parts.len() <= count.max(4),
                "{ends:?} {count}"
            );
            assert!(slots.of(ends.0) == Some(0) && slots.of(ends.1) == Some(slots.count - 1));
        }
    }
}

fn request(from_ns: Option<i64>, to_ns: Option<i64>, slots: usize) -> TimelineRequest {
    TimelineRequest {
        from_ns,
        to_ns,
        slots,
        peaks: None,
    }
}

#[test]
fn a_live_history_is_told_by_slot() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(&config(), START, dir.path());
    let none = rig.handle.timeline(&request(None, None, 4)).unwrap();
    assert_eq!(none.packets, [Some(0)], "since it began nothing came");
    for second in 0..10 {
        for number in 0..10 {
            rig.arrive(
                0,
                udp(1, if (second, number) == (7, 0) { 9 } else { 7 }, number),
            );
            rig.pass(100 * MS);
        }
        rig.step();
    }
    let line = rig
        .handle
        .timeline(&request(Some(START - 10 * S), Some(START + 20 * S - 1), 30));
    let line = line.unwrap();
    assert_eq!((line.from_ns, line.slot_ns), (START - 10 * S, S));
    assert_eq!((line.packets.len(), line.bytes.len()), (30, 30));
    assert!(line.packets[..10].iter().all(Option::is_none), "{line:?}");
    let own: Vec<u64> = line.packets[10..20]
        .iter()
        .map(|count| count.unwrap())
        .collect();
    assert_eq!(own.iter().sum::<u64>(), 100);
    assert!(own.iter().all(|count| (9..=11).contains(count)), "{own:?}");
    let bytes: u64 = line.bytes[10..20].iter().map(|count| count.unwrap()).sum();
    assert_eq!(bytes, 100 * udp(1, 7, 0).len() as u64);
    // The clock is at the very beginning of the next slot.
    assert_eq!(line.packets[20], Some(0));
    assert!(line.packets[21..].iter().all(Option::is_none), "{line:?}");
    let triggers: u64 = line.triggers.iter().flatten().sum();
    assert_eq!(
        (triggers, line.triggers[17], line.triggers[25]),
        (1, Some(1), None)
    );
    assert_eq!(line.resolution_ns, 9_900 * MS, "all of it is in one bucket");
    assert!(
        line.losses_known_to_ns.is_some_and(|ns| ns > START + 9 * S),
        "{line:?}"
    );
    assert!(line.lost.values().flatten().all(|lost| *lost == 0));
    for wrong in [
        request(None, None, 0),
        request(None, None, SLOTS_MAX + 1),
        request(Some(START), Some(START - 1), 10),
    ] {
        let refused = rig.handle.timeline(&wrong);
        assert!(
            matches!(refused, Err(CommandError::Refused(_))),
            "{refused:?}"
        );
    }
}

/// Slots whose packets were all overwritten are unknown.
#[test]
fn what_is_overwritten_is_unknown() {
    let dir = tempfile::tempdir().unwrap();
    let plan = RigConfig {
        ring_bytes: 8 << 20,
        ..config()
    };
    let mut rig = Rig::new(&plan, START, dir.path());
    let large = vec![0x45; 250_000];
    for _ in 0..60 {
        rig.arrive(0, large.clone());
        rig.pass(S);
        rig.step();
    }
    let line = rig
        .handle
        .timeline(&request(Some(START), None, 60))
        .unwrap();
    let whole_from_ns = line.whole_from_ns.unwrap();
    assert!(whole_from_ns > START + 20 * S, "{line:?}");
    assert_eq!(line.packets[0], None);
    let stored: u64 = line.packets.iter().flatten().sum();
    let ring = rig.handle.status().unwrap().ring;
    assert_eq!(stored, ring.stored_packets - ring.evicted_packets);
    for slot in 0..line.packets.len() {
        let end_ns = START + (i64::try_from(slot).unwrap() + 1) * line.slot_ns;
        assert_eq!(
            line.packets[slot].is_none(),
            end_ns <= whole_from_ns,
            "{slot}: {line:?}"
        );
    }
    let own = rig.handle.timeline(&request(None, None, 10)).unwrap();
    assert!(
        own.packets.iter().all(Option::is_some),
        "of what is there: {own:?}"
    );
}

/// A loss is spread over its time range. The slots of an outage are marked.
#[test]
fn losses_and_outages_are_told_by_slot() {
    let triggers = TriggerLog::default();
    let slots = TimelineSlots::new((0, 99), 10);
    let losses = [
        (LOST_NO_BUCKET, (0, 19), 10),
        (LOST_NO_BUCKET, (10, 19), 4),
        ("kernel", (95, 200), 106),
        (INTERFACE_DOWN, (45, 61), 0),
        (INTERFACE_DOWN, (80, i64::MAX), 0),
    ];
    let line = Timeline::new(
        slots,
        (&[], None),
        (None, 89),
        losses.into_iter(),
        &triggers,
    );
    assert_eq!(line.lost[LOST_NO_BUCKET], [5, 9, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(line.lost["kernel"][9], 5);
    assert!(!line.lost.contains_key(INTERFACE_DOWN));
    let down: Vec<usize> = (0..10).filter(|slot| line.down[*slot]).collect();
    assert_eq!(down, [4, 5, 6, 8]);
    assert_eq!(
        (line.packets[8], line.packets[9]),
        (Some(0), None),
        "of what is to come nothing is known"
    );
}

#[test]
fn so_many_triggers_are_remembered() {
    let triggers = TriggerLog::default();
    let count = TRIGGERS_KEPT + 100;
    (0..count).for_each(|ns| triggers.add(i64::try_from(ns).unwrap()));
    let slots = TimelineSlots::new((0, i64::try_from(count).unwrap() - 1), 10);
    let line = Timeline::new(
        slots,
        (&[], None),
        (None, i64::MAX),
        std::iter::empty(),
        &triggers,
    );
    assert_eq!(line.triggers[0], None, "some of them are forgotten");
    let others: u64 = line.triggers[1..].iter().map(|count| count.unwrap()).sum();
    assert_eq!(others, (count as u64) - slots.slot_ns.unsigned_abs());
    assert_eq!(lock(&triggers.0).last_ns.len(), TRIGGERS_KEPT);
}
