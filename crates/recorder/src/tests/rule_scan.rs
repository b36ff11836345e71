//! Rules that act on the past: each packet is tried once, by the scan or by a shard.

use std::{
    num::NonZeroUsize,
    thread::{scope, yield_now},
    time::Duration,
};

use retroscope_script::Script;

use super::{
    live::{START, config, packets},
    rig::{MS, Rig, RigConfig, S, udp},
};
use crate::{
    Analyzers, Cancel, CommandError, Condition, RuleStatus, TriggerRequest, control::lock,
};

const MINUTE: Duration = Duration::from_secs(60);

/// Adds the rule `past`, which scans the last minute. Steps the inserters, readers and analyzer
/// until the scan has ended; before each step `meanwhile` may change something.
fn scanned(
    rig: &mut Rig,
    expression: &str,
    request: &TriggerRequest,
    mut meanwhile: impl FnMut(&mut Rig),
) -> Result<RuleStatus, CommandError> {
    let handle = rig.handle.clone();
    scope(|scope| {
        let cancel = Cancel::default();
        let scanning = scope.spawn(move || {
            let rule = (expression, request);
            handle.put_rule_and_scan("past", rule, Condition::Any, (MINUTE, &cancel))
        });
        while !scanning.is_finished() {
            meanwhile(rig);
            rig.insert();
            rig.look();
            yield_now();
        }
        scanning.join().unwrap().map(|(rule, _)| rule)
    })
}

fn hits(rig: &Rig) -> u64 {
    rig.handle.rule("past").unwrap().hits.unwrap()
}

fn request() -> TriggerRequest {
    TriggerRequest {
        past: Some(Duration::ZERO),
        future: Some(Duration::from_secs(1)),
        ..TriggerRequest::default()
    }
}

/// One packet of port 8 at each of these times, in ms; then 10 s pass.
fn with_packets_at(plan: &RigConfig<'_>, times_ms: &[i64], dir: &tempfile::TempDir) -> Rig {
    let mut rig = Rig::new(plan, START, dir.path());
    let mut now_ms = 0;
    for (number, time_ms) in (0..).zip(times_ms) {
        rig.pass((time_ms - now_ms) * MS);
        now_ms = *time_ms;
        rig.arrive(0, udp(1, 8, number));
        rig.step();
    }
    rig.pass(10 * S);
    rig.step();
    rig
}

/// Returns the numbers of the packets of each dump, after dumps of past windows have finished.
fn dumped(rig: &mut Rig) -> Vec<Vec<u32>> {
    for _ in 0..5 {
        rig.pass(100 * MS);
        rig.step();
    }
    let numbers = |report| packets(report).iter().map(|packet| packet.2).collect();
    rig.reports.iter().map(numbers).collect()
}

/// Packets arrive before, during and after the scan. Each packet that matches is a hit once.
#[test]
fn each_packet_is_tried_once() {
    let threads = |count| Analyzers::Threads(NonZeroUsize::new(count).unwrap());
    let all = [
        Analyzers::Auto,
        Analyzers::Inline,
        threads(1),
        threads(2),
        threads(4),
    ];
    let cases = all.into_iter().flat_map(|it| [(it, 1), (it, 3)]);
    let cases = cases.flat_map(|it| [(it, false), (it, true)]);
    for (seed, ((analyzers, queues), flows_together)) in (0..).zip(cases.cycle().take(60)) {
        let mut random = fastrand::Rng::with_seed(seed);
        let case = format!("{seed}: {analyzers:?}, {queues} queues, together: {flows_together}");
        let dir = tempfile::tempdir().unwrap();
        let plan = RigConfig {
            queues,
            ring_bytes: 64 << 20,
            analyzers,
            flows_together,
            max_dumps: [0, 1, 64][random.usize(..3)],
            ..RigConfig::default()
        };
        let mut rig = Rig::new(&plan, START, dir.path());
        let mut matching = 0;
        let mut arrive = |rig: &mut Rig, packets: u32, random: &mut fastrand::Rng| {
            for _ in 0..random.u32(..=packets) {
                let port = random.u16(7..=8);
                matching += u64::from(port == 8);
                let mut packet = udp(1, port, 0);
                packet[15] = random.u8(..);
                rig.arrive(random.usize(..queues), packet);
                rig.pass(random.i64(0..MS));
            }
        };
        for _ in 0..random.u32(..8) {
            arrive(&mut rig, 300, &mut random);
            match random.u8(..3) {
                0 => rig.insert(),
                1 => rig.step(),
                _ => {}
            }
        }
        let mut left = 20;
        let rule = scanned(&mut rig, "udp port 8", &request(), |rig| {
            if left > 0 && random.bool() {
                left -= 1;
                arrive(rig, 100, &mut random);
            }
        });
        let scan = rule.unwrap().scan.unwrap();
        assert_eq!(scan.is_whole, Some(true), "{case}: {scan:?}");
        arrive(&mut rig, 300, &mut random);
        rig.pass(MS);
        (0..3).for_each(|_| rig.step());
        assert_eq!(hits(&rig), matching, "{case}: {scan:?}");
        let reading = rig.common.counters.reading();
        let acted = reading.hits.triggers + reading.hits.suppressed.total();
        assert_eq!(acted, matching, "{case}");
        rig.stop();
        assert_eq!(hits(&rig), matching, "{case}, at the end");
    }
}

/// The hits and the packets that the scan reports as overwritten are together all packets, or more
/// if packets arrive during the scan.
#[test]
fn what_was_overwritten_is_reported() {
    for is_busy in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let plan = RigConfig {
            max_dumps: 0,
            ..config()
        };
        let mut rig = Rig::new(&plan, START, dir.path());
        let mut sent = 0;
        let mut send = |rig: &mut Rig, packets| {
            for _ in 0..packets {
                let mut packet = udp(1, 8, 0);
                packet.resize(1400, 0);
                rig.arrive(0, packet);
                rig.pass(MS / 10);
            }
            sent += packets;
        };
        for _ in 0..30 {
            send(&mut rig, 1000);
            rig.step();
        }
        let mut left = if is_busy { 30 } else { 0 };
        let rule = scanned(&mut rig, "udp port 8", &request(), |rig| {
            if left > 0 {
                left -= 1;
                send(rig, 500);
            }
        });
        let during = 500 * (if is_busy { 30 } else { 0 } - left);
        let scan = rule.unwrap().scan.unwrap();
        let report = scan.report.unwrap();
        let evicted = report
            .missing
            .iter()
            .find(|missing| missing.cause == "evicted");
        let evicted = evicted.unwrap().at_most.unwrap();
        (0..3).for_each(|_| rig.step());
        assert!(evicted > 10_000, "{report:?}");
        let hits = hits(&rig);
        assert!(
            hits <= sent,
            "busy: {is_busy}, {hits} of {sent}, {report:?}"
        );
        // Packets that arrived during the scan were analyzed by a shard, and some were overwritten
        // before the scan read the ring.
        let more = hits + evicted - sent;
        assert!(more <= during, "{more} of {during}, {report:?}");
    }
}

#[test]
fn hits_of_a_window_are_one_dump() {
    let dir = tempfile::tempdir().unwrap();
    let times: Vec<i64> = (0..700).chain([2000, 2900]).collect();
    let mut rig = with_packets_at(&config(), &times, &dir);
    let rule = scanned(&mut rig, "udp port 8", &request(), |_| {}).unwrap();
    let scan = rule.scan.unwrap();
    assert_eq!((scan.hits, scan.dumps, scan.waited), (702, 2, 0));
    let all: Vec<u32> = (0..702).collect();
    assert_eq!(dumped(&mut rig), [&all[..700], &all[700..]]);
    assert!(
        rig.notices
            .iter()
            .any(|it| it.starts_with("rule 'past': scan of the last 1m"))
    );
}

/// Whether the hold-off is shorter or longer than the gap between two packets of the past, the
/// second packet starts no dump.
#[test]
fn the_hold_off_counts_from_the_scan() {
    for (hold_off_ms, dumps) in [(0, 2), (10, 1), (5000, 1)] {
        let dir = tempfile::tempdir().unwrap();
        let mut rig = with_packets_at(&config(), &[0, 2000], &dir);
        let request = TriggerRequest {
            hold_off: Some(Duration::from_millis(hold_off_ms)),
            ..request()
        };
        let rule = scanned(&mut rig, "udp port 8", &request, |_| {}).unwrap();
        assert_eq!(rule.scan.unwrap().dumps, dumps, "{hold_off_ms}");
        assert_eq!(dumped(&mut rig).len() as u64, dumps, "{hold_off_ms}");
    }
}

#[test]
fn a_single_rule_dumps_the_oldest_hit() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = with_packets_at(&config(), &[0, 2000, 4000], &dir);
    let request = TriggerRequest {
        single: true,
        ..request()
    };
    let rule = scanned(&mut rig, "udp port 8", &request, |_| {}).unwrap();
    let scan = rule.scan.unwrap();
    assert_eq!(
        (scan.dumps, rule.is_enabled, rule.hits),
        (1, false, Some(1))
    );
    rig.arrive(0, udp(1, 8, 9));
    rig.step();
    assert_eq!(dumped(&mut rig), [[0]]);
}

#[test]
fn a_rule_may_leave_during_its_scan() {
    for is_replaced in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let plan = RigConfig {
            max_dumps: 1,
            ..config()
        };
        let times: Vec<i64> = (0..5000).collect();
        let mut rig = with_packets_at(&plan, &times, &dir);
        let handle = rig.handle.clone();
        scope(|scope| {
            let mut leaving = None;
            let rule = scanned(&mut rig, "udp port 8", &request(), |rig| {
                if leaving.is_none() && rig.handle.rule("past").is_some() {
                    let handle = handle.clone();
                    leaving = Some(scope.spawn(move || match is_replaced {
                        true => handle.set_rule("past", "udp port 99", &request()).map(drop),
                        false => handle.remove_rule("past", Condition::Any).map(drop),
                    }));
                }
            });
            let leaving = leaving.unwrap();
            while !leaving.is_finished() {
                rig.look();
                yield_now();
            }
            leaving.join().unwrap().unwrap();
            let scan = rule.unwrap().scan.unwrap();
            assert!(scan.is_whole.is_some() && scan.hits <= 5000, "{scan:?}");
        });
        let rule = rig.handle.rule("past");
        assert_eq!(
            rule.map(|rule| (rule.hits, rule.scan)),
            is_replaced.then_some((Some(0), None))
        );
        rig.step();
        assert_eq!(
            dumped(&mut rig).len() as u64,
            rig.common.counters.reading().hits.triggers
        );
    }
}

/// A scan request that changes the rule but not its filter is refused.
#[test]
fn no_filter_is_tried_twice() {
    let dir = tempfile::tempdir().unwrap();
    let plan = RigConfig {
        max_dumps: 0,
        ..config()
    };
    let mut rig = with_packets_at(&plan, &[0, 2000], &dir);
    for _ in 0..2 {
        let rule = scanned(&mut rig, "udp port 8", &request(), |_| {}).unwrap();
        assert_eq!((rule.hits, rule.scan.unwrap().hits), (Some(2), 2));
    }
    let other = TriggerRequest {
        single: true,
        ..request()
    };
    let refused = scanned(&mut rig, "udp port 8", &other, |_| {}).unwrap_err();
    assert!(
        refused.to_string().contains("has this filter already"),
        "{refused}"
    );
    let rule = scanned(&mut rig, "udp", &request(), |_| {}).unwrap();
    assert_eq!((rule.hits, rule.scan.unwrap().hits), (Some(2), 2));
}

/// A dump script may keep state, so it gets no packets of the past.
#[test]
fn a_dump_script_gets_no_past() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = with_packets_at(&config(), &[0], &dir);
    let script = Script::new("dump.lua", "return function() end", false);
    lock(&rig.handle.rules.configured).config.scripts.dump = Some(script);
    let refused = scanned(&mut rig, "udp port 8", &request(), |_| {}).unwrap_err();
    assert!(refused.to_string().contains("dump script"), "{refused}");
    let own = TriggerRequest {
        dump: Some("udp".to_owned()),
        ..request()
    };
    let rule = scanned(&mut rig, "udp port 8", &own, |_| {}).unwrap();
    assert_eq!(rule.scan.unwrap().dumps, 1);
}

/// Only the later fragment matches the rule, and finds its flow.
#[test]
fn fragments_of_the_past_know_their_flow() {
    let dir = tempfile::tempdir().unwrap();
    let plan = RigConfig {
        dump: "$flow",
        ..config()
    };
    let mut rig = Rig::new(&plan, START, dir.path());
    for (number, [flags, offset]) in [(1, [0x20, 0]), (2, [0, 2])] {
        let mut packet = udp(5, 8, number);
        packet[4..6].copy_from_slice(&77_u16.to_be_bytes());
        packet[6..8].copy_from_slice(&[flags, offset]);
        rig.arrive(0, packet);
        rig.pass(MS);
        rig.step();
    }
    rig.pass(10 * S);
    rig.step();
    let later = "ip[6:2] & 0x1fff != 0";
    let own = TriggerRequest {
        past: Some(Duration::from_secs(1)),
        ..request()
    };
    let rule = scanned(&mut rig, later, &own, |_| {}).unwrap();
    assert_eq!((rule.hits, rule.scan.unwrap().dumps), (Some(1), 1));
    dumped(&mut rig);
    let report = &rig.reports[0];
    assert!(report.expression.contains("10.0.0.1:5"), "{report:?}");
}
