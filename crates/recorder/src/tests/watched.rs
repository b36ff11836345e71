//! The status that a recorder offers to long-term monitoring.

use std::sync::atomic::Ordering::SeqCst;

use crate::{
    AgeHistogram, Condition, Reason, TriggerRequest,
    control::hits::HitCounts,
    tests::{
        control::asked,
        live::{START, config},
        rig::{MS, Rig, S, udp},
    },
};

/// For each rule: its name, its triggers, and its hits that were suppressed because a dump was
/// open.
fn hits(rig: &Rig) -> Vec<(Option<String>, u64, u64)> {
    let each = rig.handle.status().unwrap().hits_by_rule.into_iter();
    let open = |counts: &HitCounts| counts.suppressed.of(Reason::Open);
    each.map(|it| (it.rule, it.counts.triggers, open(&it.counts)))
        .collect()
}

#[test]
fn hits_are_told_by_the_name_of_their_rule() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(&config(), START, dir.path());
    let arrive = |rig: &mut Rig, port| {
        rig.arrive(0, udp(1, port, 0));
        rig.pass(5 * MS);
        rig.step();
    };
    let name = "a \"b\"\\ c";
    let add = |rig: &mut Rig, expression| {
        let request = TriggerRequest::default();
        asked(rig, |it| it.set_rule(name, expression, &request)).unwrap()
    };
    rig.pass(MS);
    rig.step();
    add(&mut rig, "udp port 7");
    for port in [9, 9, 7, 5, 9] {
        arrive(&mut rig, port);
    }
    rig.trigger(TriggerRequest::default());
    rig.step();
    let first = (Some("1".to_owned()), 1, 2);
    let named = |triggers| (Some(name.to_owned()), triggers, 0);
    assert_eq!(hits(&rig), [first.clone(), named(1)]);
    let status = rig.handle.status().unwrap();
    assert_eq!(status.hits_by_hand.triggers, 1);
    assert_eq!(status.hits.triggers, 3, "all of them");
    // Each trigger packet was 5 ms old, the lower bound of class 3. A manual trigger has no age.
    let AgeHistogram { dumps, sum_ns } = status.trigger_ages;
    assert_eq!((dumps[3], dumps.iter().sum::<u64>()), (2, 2));
    assert_eq!(sum_ns, 10 * MS.unsigned_abs());
    asked(&mut rig, |it| it.remove_rule(name, Condition::Any)).unwrap();
    arrive(&mut rig, 7);
    add(&mut rig, "udp port 5");
    arrive(&mut rig, 5);
    asked(&mut rig, |it| {
        it.set_rule(name, "udp port 4", &TriggerRequest::default())
    })
    .unwrap();
    arrive(&mut rig, 4);
    assert_eq!(hits(&rig), [first, named(3)]);
    for _ in 0..30 {
        rig.pass(100 * MS);
        rig.step();
    }
    let totals = rig.handle.status().unwrap().dumps;
    assert_eq!((totals.finished.complete, totals.finished.total()), (5, 5));
    let packets: u64 = rig.reports.iter().map(|report| report.packets).sum();
    let bytes: u64 = rig.reports.iter().map(|report| report.bytes).sum();
    assert_eq!((totals.packets, totals.bytes), (packets, bytes));
    assert!(totals.missing.is_empty());
}

/// The clock is set before and after the first packet. The status reports the stamp of this packet.
#[test]
fn the_oldest_packet_is_told_by_its_stamp() {
    for step_ns in [3600 * S, -3600 * S] {
        let dir = tempfile::tempdir().unwrap();
        let mut rig = Rig::new(&config(), START, dir.path());
        let oldest_ns = |rig: &Rig| rig.handle.status().unwrap().oldest_stamp_ns;
        assert_eq!(oldest_ns(&rig), None);
        let step_clock = |rig: &mut Rig| {
            rig.pass(100 * MS);
            rig.step();
            rig.clock.wall_ns.fetch_add(step_ns, SeqCst);
            rig.pass(100 * MS);
            rig.step();
        };
        step_clock(&mut rig);
        let stamp_ns = rig.clock.wall_ns.load(SeqCst);
        rig.arrive(0, udp(1, 7, 0));
        step_clock(&mut rig);
        step_clock(&mut rig);
        rig.arrive(0, udp(1, 7, 1));
        rig.pass(100 * MS);
        rig.step();
        assert_eq!(oldest_ns(&rig), Some(stamp_ns), "{step_ns}");
        assert_eq!(rig.handle.status().unwrap().clock_steps, 3);
    }
}
