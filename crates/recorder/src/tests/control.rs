//! Requests of clients to a running recorder.

use std::{
    sync::atomic::Ordering::SeqCst,
    thread::{scope, yield_now},
    time::Duration,
};

use crate::{
    CommandError, Condition, DumpReport, Empty, ManualTrigger, NO_PACKET, PinChange, Query,
    RecorderHandle, RequestedRange, TriggerRequest, Verdict,
    tests::{
        live::{START, config, packets},
        rig::{MS, Rig, RigConfig, S, udp},
    },
};

/// Runs `ask` in another thread, and steps the analyzer until `ask` has returned.
pub(super) fn asked<T: Send>(rig: &mut Rig, ask: impl FnOnce(&RecorderHandle) -> T + Send) -> T {
    let handle = rig.handle.clone();
    scope(|scope| {
        let asking = scope.spawn(|| ask(&handle));
        while !asking.is_finished() {
            rig.look();
            yield_now();
        }
        asking.join().unwrap()
    })
}

/// Expressions and hits of the rules.
fn rules(rig: &Rig) -> Vec<(String, Option<u64>)> {
    let rules = rig.handle.rules().into_iter();
    rules.map(|rule| (rule.expression, rule.hits)).collect()
}

fn numbers(report: &DumpReport) -> Vec<u32> {
    packets(report).iter().map(|packet| packet.2).collect()
}

/// A change waits for a paused analyzer.
#[test]
fn the_rules_are_listed_while_a_change_waits() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(&config(), START, dir.path());
    rig.pass(MS);
    rig.step();
    let handle = rig.handle.clone();
    let added = scope(|scope| {
        let adding =
            scope.spawn(|| handle.set_rule("late", "udp port 7", &TriggerRequest::default()));
        while !handle.rules().iter().any(|rule| rule.name == "late") {
            yield_now();
        }
        assert_eq!(handle.status().unwrap().rules, 2);
        rig.look();
        adding.join().unwrap()
    });
    assert!(!added.unwrap(), "it was not there before");
}

/// A repeated request is not confirmed before the analyzer has processed the first request.
#[test]
fn a_retry_waits_for_the_analyzer_too() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(&config(), START, dir.path());
    rig.pass(MS);
    rig.step();
    rig.handle.answer_wait = Duration::ZERO;
    let is_late = |result| matches!(result, Err(CommandError::Late));
    for _ in 0..2 {
        assert!(is_late(rig.handle.set_rule(
            "late",
            "udp port 7",
            &TriggerRequest::default()
        )));
    }
    for _ in 0..2 {
        let disabled = rig
            .handle
            .enable_rule("late", (false, None), Condition::Any);
        assert!(matches!(disabled, Err(CommandError::Late)));
    }
    for _ in 0..2 {
        assert!(is_late(rig.handle.remove_rule("late", Condition::Any)));
    }
    assert_eq!(rig.handle.rules().len(), 1);
}

/// A retry whose first request was carried out succeeds, although the rule has a new version since.
#[test]
fn a_condition_holds_for_a_change_that_is_still_to_be_made() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(&config(), START, dir.path());
    rig.pass(MS);
    rig.step();
    let any = TriggerRequest::default();
    let put = |rig: &mut Rig, expression: &str, condition| {
        asked(rig, |it| {
            it.put_rule("r", (expression, &any), None, condition)
        })
    };
    let is_refused =
        |result| matches!(result, Err(CommandError::RuleChangedBefore(name)) if name == "r");
    assert!(is_refused(put(&mut rig, "udp port 7", Condition::Exists)));
    let (first, existed) = put(&mut rig, "udp port 7", Condition::New).unwrap();
    assert!(!existed);
    let old = first.version();
    for _ in 0..2 {
        let (made, existed) = put(&mut rig, "udp port 8", Condition::Unchanged(&old)).unwrap();
        assert_eq!((made.expression.as_str(), existed), ("udp port 8", true));
    }
    assert!(is_refused(put(
        &mut rig,
        "udp port 9",
        Condition::Unchanged(&old)
    )));
    put(&mut rig, "udp port 9", Condition::Exists).unwrap();
    let wrong = Condition::Unchanged(&old);
    let disabled = asked(&mut rig, |it| it.enable_rule("r", (false, None), wrong));
    assert!(is_refused(disabled.map(|rule| (rule, true))));
    let version = rig.handle.rule("r").unwrap().version();
    for _ in 0..2 {
        let right = Condition::Unchanged(&version);
        let disabled = asked(&mut rig, |it| it.enable_rule("r", (false, None), right)).unwrap();
        assert!(!disabled.is_enabled);
    }
    let removed = asked(&mut rig, |it| {
        it.remove_rule("r", Condition::Unchanged(&version))
    });
    assert!(matches!(removed, Err(CommandError::RuleChangedBefore(_))));
    assert!(asked(&mut rig, |it| it.remove_rule("r", Condition::Exists)).unwrap());
}

/// A rule with `single` starts one dump, although several queues have hits at once. When a client
/// enables the rule again, the rule starts one more dump.
#[test]
fn a_single_rule_fires_once() {
    let dir = tempfile::tempdir().unwrap();
    let plan = RigConfig {
        queues: 4,
        ring_bytes: 32 << 20,
        future_ns: 100 * MS,
        ..config()
    };
    let mut rig = Rig::new(&plan, START, dir.path());
    rig.pass(MS);
    rig.step();
    let request = TriggerRequest {
        dump: Some("port $srcPort".to_owned()),
        single: true,
        ..TriggerRequest::default()
    };
    let put =
        |it: &RecorderHandle| it.put_rule("once", ("udp port 7", &request), None, Condition::New);
    let (armed, _) = asked(&mut rig, put).unwrap();
    // Each packet would start a separate dump.
    let mut number = 0_u32;
    let mut packets = |rig: &mut Rig| {
        for _ in 0..10 {
            for queue in 0..4 {
                number += 1;
                let port = u16::try_from(number).unwrap();
                rig.arrive(queue, udp(1000 + port, 7, number));
            }
        }
        for _ in 0..3 {
            rig.step();
            rig.pass(S);
        }
        rig.step();
    };
    for dumps in 1..4 {
        for _ in 0..2 {
            packets(&mut rig);
            assert_eq!(rig.reports.len(), dumps, "{:?}", rig.reports);
        }
        let fired = rig.handle.rule("once").unwrap();
        assert!(!fired.is_enabled && fired.request.single);
        assert_eq!(
            fired.hits,
            Some(dumps as u64),
            "a disabled rule has no hits"
        );
        assert!(fired.last_hit_ns.is_some());
        let notices = rig
            .notices
            .iter()
            .filter(|it| it.contains("rule 'once' is disabled"));
        assert_eq!(notices.count(), dumps);
        assert_ne!(fired.version(), armed.version());
        let enabled = asked(&mut rig, |it| {
            it.enable_rule("once", (true, None), Condition::Exists)
        });
        assert_eq!(enabled.unwrap().version(), armed.version());
    }
    let enable = |it: &RecorderHandle| it.enable_rule("once", (true, Some(false)), Condition::Any);
    assert!(!asked(&mut rig, enable).unwrap().request.single);
    packets(&mut rig);
    // Now each of the 40 packets asks for a dump. At most 64 dumps may be open, and each of the two
    // rules has half of these places, so the rule starts 32 dumps.
    assert_eq!(rig.reports.len(), 3 + 32);
    assert!(rig.handle.rule("once").unwrap().is_enabled);
}

/// The open dump of a changed rule goes on and ends as requested.
#[test]
fn a_rule_is_changed_in_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(&config(), START, dir.path());
    let arrive = |rig: &mut Rig, port, number| {
        rig.arrive(0, udp(1, port, number));
        rig.pass(100 * MS);
        rig.step();
    };
    rig.pass(MS);
    rig.step();
    let (short, one) = (
        TriggerRequest {
            past: Some(Duration::ZERO),
            ..TriggerRequest::default()
        },
        TriggerRequest {
            packets_max: Some(1),
            asked_by: Some("me".to_owned()),
            ..TriggerRequest::default()
        },
    );
    assert!(!asked(&mut rig, |it| it.set_rule("r", "udp port 7", &short)).unwrap());
    arrive(&mut rig, 5, 0);
    arrive(&mut rig, 7, 1);
    for _ in 0..2 {
        let was_there = asked(&mut rig, |it| it.set_rule("r", "udp port 8", &short));
        assert!(was_there.unwrap());
    }
    assert_eq!(rules(&rig)[1], ("udp port 8".to_owned(), Some(0)));
    arrive(&mut rig, 7, 2);
    arrive(&mut rig, 8, 3);
    arrive(&mut rig, 8, 4);
    assert_eq!(rules(&rig)[1], ("udp port 8".to_owned(), Some(2)));
    let wrong = asked(&mut rig, |it| it.set_rule("r", "udp prot 8", &short));
    assert!(matches!(wrong, Err(CommandError::Filter(_))), "{wrong:?}");
    // Only the request changes: a hit that requests another window gets a separate dump.
    assert!(asked(&mut rig, |it| it.set_rule("r", "udp port 8", &one)).unwrap());
    assert_eq!(rules(&rig)[1], ("udp port 8".to_owned(), Some(2)));
    assert_eq!(rig.handle.rules()[1].request, one);
    arrive(&mut rig, 8, 5);
    // A disabled rule stays disabled with another expression.
    asked(&mut rig, |it| {
        it.enable_rule("r", (false, None), Condition::Any)
    })
    .unwrap();
    assert!(asked(&mut rig, |it| it.set_rule("r", "udp port 6", &one)).unwrap());
    arrive(&mut rig, 6, 6);
    assert!(asked(&mut rig, |it| it.set_rule("1", "udp port 4", &one)).unwrap());
    arrive(&mut rig, 9, 7);
    arrive(&mut rig, 4, 8);
    assert_eq!(
        rules(&rig),
        [
            ("udp port 4".to_owned(), Some(1)),
            ("udp port 6".to_owned(), Some(0))
        ]
    );
    for _ in 0..20 {
        arrive(&mut rig, 5, 9);
    }
    let reports = &mut rig.reports;
    reports.sort_by_key(|report| report.number);
    let told = reports.iter().map(|it| (it.rule.as_str(), it.verdict));
    let complete = Verdict::Complete;
    assert_eq!(
        told.collect::<Vec<_>>(),
        [
            ("udp port 7", complete),
            ("udp port 8", complete),
            ("udp port 8", complete),
            ("udp port 4", complete)
        ]
    );
    assert_eq!(
        numbers(&reports[0]),
        (1..=8).chain([9; 3]).collect::<Vec<_>>()
    );
    assert_eq!(
        numbers(&reports[1]),
        (3..=8).chain([9; 5]).collect::<Vec<_>>()
    );
    assert_eq!(numbers(&reports[2]), [0], "the first of its past");
    assert_eq!(reports[2].asked_by.as_deref(), Some("me"));
}

/// The texts of added and changed rules are bounded in bytes, without removed or replaced texts.
#[test]
fn added_rules_have_so_many_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(&config(), START, dir.path());
    rig.pass(MS);
    rig.step();
    let long = format!("udp port 7{}", " ".repeat(15_000));
    let mut request = TriggerRequest::default();
    let add = |rig: &mut Rig, name: &str, text: &str, request: &TriggerRequest| {
        asked(rig, |it| it.set_rule(name, text, request))
    };
    request.asked_by = Some("x".repeat((4 << 20) - 20_000));
    add(&mut rig, "a", "udp", &request).unwrap();
    request.asked_by = Some("x".repeat(10_000));
    let change = |it: &RecorderHandle| it.set_rule("1", "udp port 9", &request);
    asked(&mut rig, change).unwrap();
    request.asked_by = None;
    assert!(add(&mut rig, "c", &long, &request).is_err());
    asked(&mut rig, |it| it.set_rule("1", "udp port 9", &request)).unwrap();
    add(&mut rig, "b", "udp", &request).unwrap();
    add(&mut rig, "c", &long, &request).unwrap();
    let added = add(&mut rig, "d", &long, &request);
    let change = |it: &RecorderHandle| ["b", "1"].map(|name| it.set_rule(name, &long, &request));
    let [changed, of_start] = asked(&mut rig, change);
    for refused in [added, changed, of_start] {
        let Err(CommandError::Refused(why)) = refused else {
            panic!("{refused:?}");
        };
        assert!(why.contains("4194304 bytes"), "{why}");
    }
    // Dump expressions count too.
    let mut dumping = request.clone();
    dumping.dump = Some(long.clone());
    assert!(add(&mut rig, "d", "udp", &dumping).is_err());
    let longer = format!("{long} ");
    asked(&mut rig, |it| it.set_rule("c", &longer, &request)).unwrap();
    asked(&mut rig, |it| it.remove_rule("c", Condition::Any)).unwrap();
    add(&mut rig, "d", &long, &request).unwrap();
}

/// Until a change is applied, the analyzer uses the old rule, even if the client does not wait for
/// the answer.
#[test]
fn a_change_leaves_no_gap() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(&config(), START, dir.path());
    rig.pass(MS);
    rig.step();
    for port in 10..20 {
        let expression = format!("udp port {port}");
        let request = TriggerRequest::default();
        asked(&mut rig, |it| {
            it.set_rule(&port.to_string(), &expression, &request)
        })
        .unwrap();
    }
    rig.handle.answer_wait = Duration::ZERO;
    rig.arrive(0, udp(1, 10, 1));
    rig.insert();
    let request = TriggerRequest::default();
    let late = rig.handle.set_rule("10", "udp port 20", &request);
    assert!(matches!(late, Err(CommandError::Late)), "{late:?}");
    rig.look();
    rig.arrive(0, udp(1, 20, 2));
    rig.insert();
    rig.look();
    for _ in 0..20 {
        rig.pass(100 * MS);
        rig.step();
    }
    let rules = rig.reports.iter().map(|report| report.rule.as_str());
    assert_eq!(rules.collect::<Vec<_>>(), ["udp port 10", "udp port 20"]);
}

/// A pin with given times keeps the packets with these stamps, whatever steps the clock made since.
#[test]
fn a_pin_of_before_a_clock_step_keeps_its_packets() {
    for step_ns in [0, 3600 * S, -3600 * S] {
        let dir = tempfile::tempdir().unwrap();
        let plan = RigConfig {
            ring_bytes: 8 << 20,
            ..config()
        };
        let mut rig = Rig::new(&plan, START, dir.path());
        let seconds = |rig: &mut Rig, seconds| {
            for _ in 0..4 * seconds {
                rig.arrive(0, vec![0x45; 250_000]);
                rig.pass(250 * MS);
                rig.step();
            }
        };
        seconds(&mut rig, 3);
        rig.clock.wall_ns.fetch_add(step_ns, SeqCst);
        seconds(&mut rig, 1);
        let stretch = RequestedRange {
            from_ns: Some(START + 1000 * MS),
            to_ns: Some(START + 1999 * MS),
            last_ns: None,
        };
        let (pin, change) = rig.handle.pin("p", stretch, None, true).unwrap();
        let again = rig.handle.pin("p", stretch, None, true);
        assert!(matches!(again, Err(CommandError::PinExists(_))));
        assert_eq!(
            (pin.from_ns, pin.evicted_before, change),
            (START + S, 0, PinChange::Made)
        );
        seconds(&mut rig, 20);
        let query = Query {
            from_ns: stretch.from_ns,
            to_ns: stretch.to_ns,
            ..Query::default()
        };
        let answer = rig.handle.query(&query).unwrap();
        let report = answer.write_to(Vec::new()).unwrap();
        assert_eq!(report.packets, 4, "step of {step_ns} ns: {report:?}");
        let reserved = rig.common.ring.statistics().reserved_buckets;
        assert!(reserved <= 3, "{reserved} buckets, step of {step_ns} ns");
        // Times that a step left out, or that are in the wrong order, are refused.
        let within = |from_ns, to_ns| RequestedRange {
            from_ns: Some(from_ns),
            to_ns: Some(to_ns),
            last_ns: None,
        };
        let left_out = START + 1800 * S;
        assert_eq!(
            rig.handle
                .pin("q", within(left_out, left_out + S), None, false)
                .is_err(),
            step_ns > 0
        );
        assert!(
            rig.handle
                .pin("r", within(START + 1, START), None, false)
                .is_err()
        );
    }
}

/// The renewed pin has the same reservation.
#[test]
fn a_pin_with_a_lease_ends_unless_it_is_renewed() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(&config(), START, dir.path());
    for number in 0..10 {
        rig.arrive(0, udp(1, 7, number));
        rig.pass(100 * MS);
        rig.step();
    }
    let stretch = RequestedRange {
        from_ns: Some(START),
        to_ns: Some(START + S),
        last_ns: None,
    };
    let lease = Some(Duration::from_secs(30));
    let ask = |rig: &Rig, lease| rig.handle.pin("frozen", stretch, lease, false).unwrap();
    let left = |rig: &Rig| {
        let pins = rig.handle.status().unwrap().pins;
        pins.first().map(|pin| pin.lease_ns)
    };
    let reserved = |rig: &Rig| rig.common.ring.statistics().reserved_buckets;
    let (pin, change) = ask(&rig, lease);
    assert_eq!((pin.lease_ns, change), (Some(30 * S), PinChange::Made));
    let news = rig.common.ring.reservation_news();
    for _ in 0..3 {
        rig.pass(29 * S);
        rig.step();
        assert_eq!(left(&rig), Some(Some(S)));
        let (pin, change) = ask(&rig, lease);
        assert_eq!((pin.lease_ns, change), (Some(30 * S), PinChange::Renewed));
    }
    assert_eq!(
        rig.common.ring.reservation_news(),
        news,
        "the same reservation"
    );
    rig.pass(30 * S);
    rig.step();
    assert_eq!((left(&rig), reserved(&rig)), (None, 0));
    assert!(!rig.handle.unpin("frozen").unwrap());
    assert_eq!(ask(&rig, lease).1, PinChange::Made);
    assert_eq!(ask(&rig, None).1, PinChange::Replaced);
    rig.pass(3600 * S);
    rig.step();
    assert_eq!(left(&rig), Some(None), "without a lease it stays");
    assert_eq!(ask(&rig, lease).1, PinChange::Replaced);
    let pins = &rig.common.pins;
    let is_kept = || rig.common.pins.take_fallen(&rig.common.ring).is_empty();
    assert!(is_kept());
    let ended = |after_ns: i64| pins.take_ended(rig.common.clock.mono_ns() + after_ns);
    assert!(ended(30 * S - 1).is_empty());
    assert!(left(&rig).is_some());
    assert!(ended(30 * S)[0].contains("'frozen' has ended"));
    assert!(left(&rig).is_none() && ended(30 * S).is_empty());
}

/// The recorder adds losses before the ring to a query's report, and says up to when losses are
/// known.
#[test]
fn a_query_tells_what_was_lost_before_the_ring() {
    for (step_ns, counts_nothing) in [0, 3600 * S, -3600 * S]
        .into_iter()
        .zip([false; 3])
        .chain([(0, true)])
    {
        let dir = tempfile::tempdir().unwrap();
        let mut rig = Rig::new(&config(), START, dir.path());
        rig.feeds[0].lock().unwrap().counts_nothing = counts_nothing;
        let second = |rig: &mut Rig, lost| {
            for _ in 0..10 {
                rig.arrive(0, udp(1, 9, 0));
                rig.feeds[0].lock().unwrap().lost += lost;
                rig.pass(100 * MS);
                rig.step();
            }
        };
        second(&mut rig, 0);
        second(&mut rig, 3);
        rig.clock.wall_ns.fetch_add(step_ns, SeqCst);
        second(&mut rig, 0);
        second(&mut rig, 0);
        let ask = |rig: &Rig, from_ns, to_ns| {
            let query = Query {
                from_ns,
                to_ns,
                ..Query::default()
            };
            let answer = rig.handle.query(&query).unwrap();
            answer.write_to(Vec::new()).unwrap()
        };
        let told = |report: &crate::QueryReport| {
            let missing = report.missing.iter();
            let lost = missing.filter(|it| it.cause == "kernel");
            (
                report.verdict,
                lost.filter_map(|it| it.packets).sum::<u64>(),
            )
        };
        let lossy = (Some(START + S), Some(START + 2 * S));
        let behind = START + 2500 * MS + step_ns;
        let quiet = (Some(behind), Some(behind + S));
        if counts_nothing {
            let report = ask(&rig, lossy.0, lossy.1);
            assert_eq!(report.losses_known_to, None, "{report:?}");
            assert!(report.reasons().ends_with("losses before the ring unknown"));
            assert!(report.notes[0].contains("losses unknown"), "{report:?}");
            continue;
        }
        let report = ask(&rig, lossy.0, lossy.1);
        assert_eq!(told(&report), (Verdict::Incomplete, 30), "{report:?}");
        assert_eq!(report.losses_known_to, report.to);
        let lost = report
            .missing
            .iter()
            .find(|it| it.cause == "kernel")
            .unwrap();
        assert!(Some(&lost.from) >= report.from.as_ref(), "{report:?}");
        assert!(Some(&lost.to) <= report.to.as_ref(), "{report:?}");
        let report = ask(&rig, quiet.0, quiet.1);
        assert_eq!(told(&report), (Verdict::Complete, 0), "{report:?}");
        assert_eq!(report.reasons(), "complete");
        assert_eq!(told(&ask(&rig, None, None)), (Verdict::Incomplete, 30));
        // The counters were last read 50 ms ago.
        rig.arrive(0, udp(1, 9, 0));
        rig.pass(100 * MS);
        rig.feeds[0].lock().unwrap().known_ns = Some(rig.clock.wall_ns.load(SeqCst) - 50 * MS);
        rig.step();
        let report = ask(&rig, Some(behind), None);
        assert!(report.reasons().contains("unknown after 2"), "{report:?}");
    }
}

/// A source without watermarks next to a source that loses packets.
#[test]
fn a_query_tells_losses_beside_a_source_without_watermarks() {
    let dir = tempfile::tempdir().unwrap();
    let plan = RigConfig {
        queues: 2,
        foreign_queues: 1,
        ring_bytes: 16 << 20,
        ..config()
    };
    let mut rig = Rig::new(&plan, START, dir.path());
    for _ in 0..10 {
        rig.pass(100 * MS);
        let now_ns = rig.clock.wall_ns.load(SeqCst);
        let frame = (now_ns, udp(1, 7, 0));
        rig.feeds[1].lock().unwrap().frames.push_back(frame);
        rig.arrive(0, udp(1, 7, 0));
        rig.feeds[0].lock().unwrap().lost += 3;
        rig.step();
    }
    rig.pass(S);
    rig.step();
    let end_ns = rig.clock.wall_ns.load(SeqCst);
    for (from_ns, to_ns, lost) in [
        (Some(START), Some(end_ns), Some(30)),
        (None, Some(end_ns), Some(30)),
        (Some(START), None, Some(30)),
        (None, None, Some(30)),
        (Some(end_ns + S), Some(end_ns + 2 * S), None),
    ] {
        let query = Query {
            from_ns,
            to_ns,
            ..Query::default()
        };
        let answer = rig.handle.query(&query).unwrap();
        let report = answer.write_to(Vec::new()).unwrap();
        let told = report.missing.iter().find(|it| it.cause == "kernel");
        assert_eq!(told.and_then(|it| it.packets), lost, "{report:?}");
        let is_known = report.losses_known_to.is_some();
        assert_eq!(is_known, lost.is_some(), "{report:?}");
    }
}

/// A source with another clock does not follow steps of the system's clock.
#[test]
fn stamps_of_a_clock_of_its_own_are_kept_too() {
    for (foreign_queues, expected) in [(0, &[3600][..]), (1, &[3600, 0])] {
        let dir = tempfile::tempdir().unwrap();
        let plan = RigConfig {
            queues: 2,
            foreign_queues,
            ..config()
        };
        let rig = Rig::new(&plan, START, dir.path());
        rig.pass(S);
        rig.clock.wall_ns.fetch_add(3600 * S, SeqCst);
        rig.common.clock.now();
        let stamp_ns = START + 3610 * S;
        let times = rig.common.ring_times((stamp_ns, stamp_ns + 1));
        let expected = expected.iter().map(|offset| stamp_ns - offset * S);
        assert_eq!(times, expected.map(|ns| (ns, ns + 1)).collect::<Vec<_>>());
    }
}

/// There are more hits than the queue keeps one by one.
#[test]
fn all_hits_of_a_storm_are_counted_behind_a_single_dump() {
    let dir = tempfile::tempdir().unwrap();
    let plan = RigConfig {
        single: true,
        ..config()
    };
    let mut rig = Rig::new(&plan, START, dir.path());
    rig.pass(MS);
    rig.step();
    (0..3000).for_each(|number| rig.arrive(0, udp(1, 9, number)));
    rig.step();
    let hits = rig.handle.status().unwrap().hits;
    assert_eq!(rules(&rig)[0].1, Some(3000));
    assert_eq!((hits.triggers, hits.suppressed.total()), (1, 2999));
}

/// A trigger without a packet may be a hit of a rule. Its key is separate from the keys of manual
/// triggers.
#[test]
fn a_trigger_may_be_a_hit_of_a_rule() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(&config(), START, dir.path());
    rig.pass(S);
    rig.arrive(0, udp(1, 7, 0));
    rig.arrive(0, udp(1, 8, 1));
    rig.pass(S);
    rig.step();
    let rule = |dump: &str, max_dumps| TriggerRequest {
        past: Some(Duration::from_secs(2)),
        future: Some(Duration::from_secs(3)),
        max_dumps: Some(max_dumps),
        alert_dump: Some(dump.to_owned()),
        ..TriggerRequest::default()
    };
    let add = |rig: &mut Rig, name: &'static str, rule: TriggerRequest| {
        asked(rig, move |it| {
            it.put_rule(name, (NO_PACKET, &rule), None, Condition::New)
        })
    };
    for wrong in [
        "host {x} or {y}",
        "port $srcPort",
        "host {x",
        "udp) or (tcp",
    ] {
        let refused = add(&mut rig, "wrong", rule(wrong, 1));
        assert!(matches!(refused, Err(CommandError::Filter(_))), "{wrong}");
    }
    add(&mut rig, "web", rule("port {port}", 1)).unwrap();
    let ask = |rig: &mut Rig, key: &str, dump: &str, at_ns| {
        let mut request = rig.handle.rule("web").unwrap().request;
        request.dump = Some(dump.to_owned());
        let by_hand = ManualTrigger {
            key: Some(key.to_owned()),
            at_ns: Some(at_ns),
            rule: Some("web".to_owned()),
            request,
            ..ManualTrigger::default()
        };
        asked(rig, move |it| it.trigger_by_hand(by_hand))
    };
    let at_ns = START + 3 * S / 2;
    let first = ask(&mut rig, "a", "udp port 8", at_ns).unwrap();
    assert!(!first.existed);
    let again = ask(&mut rig, "a", "udp port 8", at_ns).unwrap();
    assert_eq!((again.dump, again.existed), (first.dump, true));
    // Trigger `b` joins the dump of `a`. Trigger `c` needs another dump, which exceeds the limit.
    assert_eq!(ask(&mut rig, "b", "udp port 8", at_ns).unwrap(), again);
    let why = ask(&mut rig, "c", "udp port 7", at_ns).unwrap_err();
    assert!(matches!(why, CommandError::Suppressed(_)), "{why:?}");
    assert!(why.to_string().contains("too many dumps"), "{why}");
    let by_hand = asked(&mut rig, |it| {
        it.trigger(Some("a"), TriggerRequest::default())
    });
    assert!(!by_hand.unwrap().existed);
    rig.pass(10 * S);
    rig.step();
    let report = rig.reports.iter().find(|it| it.number == first.dump);
    let report = report.unwrap();
    assert_eq!((report.rule.as_str(), numbers(report)), ("web", vec![1]));
    let costs = rig.handle.status().unwrap().hits_by_rule;
    let costs = costs.iter().find(|it| it.rule.as_deref() == Some("web"));
    let counts = &costs.unwrap().counts;
    assert_eq!((counts.triggers, counts.suppressed.total()), (1, 2));
    // Windows before the ring's contents. The key of a trigger that got a dump still leads to that
    // dump.
    let gone = |rig: &mut Rig, at_ns| match ask(rig, "e", "udp", at_ns) {
        Err(CommandError::Gone(gone)) => gone,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        gone(&mut rig, START - 10 * S),
        Empty::NotRecorded {
            ns: 7 * 1_000_000_000
        }
    );
    for _ in 0..20 {
        (0..100).for_each(|_| rig.arrive(0, vec![0; 9000]));
        rig.step();
        rig.pass(S);
    }
    let told = gone(&mut rig, START + S);
    assert!(
        matches!(
            told,
            Empty::AgedOut {
                ns: 1_000_000_000..
            }
        ),
        "{told:?}"
    );
    assert_eq!(ask(&mut rig, "a", "udp port 8", at_ns).unwrap(), again);
    asked(&mut rig, |it| {
        it.enable_rule("web", (false, None), Condition::Any)
    })
    .unwrap();
    let why = ask(&mut rig, "d", "udp", at_ns).unwrap_err();
    assert!(matches!(why, CommandError::Suppressed(_)), "{why:?}");
    assert!(why.to_string().contains("disabled"), "{why}");
}
