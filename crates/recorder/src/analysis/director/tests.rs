use super::{window_tests::terms, *};
use crate::control::{
    outcomes::{Outcomes, RuleHits},
    progress::RuleSpending,
};

const S: i64 = 1_000_000_000;

fn config() -> DirectorConfig {
    DirectorConfig {
        hold_ns: S / 10,
        rules: 2,
        limits: SharedLimits {
            hold_off_ns: 0,
            max_dumps: 3,
            dumps_per_minute: 0,
            alerts_per_minute: true,
            bytes_per_hour: 0,
        },
        single: false,
        alert_dumps: 4,
        are_alerts_expected: false,
        grace_ns: None,
    }
}

/// The director forgets a removed rule whose dumps are finished, except in the budgets of the last
/// minute and hour.
#[test]
fn rules_are_added_and_removed_without_end() {
    const RULES: usize = 70_000;
    let config = DirectorConfig {
        hold_ns: 0,
        rules: 0,
        grace_ns: Some(S / 20),
        ..config()
    };
    let mut director = Director::new(config);
    let outcomes = Outcomes::default();
    director.by_rule = RuleCounters::of(&outcomes, []);
    for rule in 0..RULES {
        let mut orders = Vec::new();
        director.advance_mono(rule as i64 * 60 * S, &mut orders);
        outcomes.add_rule(rule, &format!("feed {rule}"));
        director.by_rule.add_rule(&outcomes, rule);
        director.set_rules(&[(rule, true)]);
        let mut hit = hit(10 * S, 1, "a");
        hit.order.rule = rule;
        director.hit(hit, &mut orders);
        assert!(matches!(orders[..], [Order::Open { .. }]), "{rule}");
        director.set_rules(&[(rule, false)]);
        outcomes.remove_rule(&format!("feed {rule}"));
        director.forget_rule(rule);
        outcomes.forget(rule);
        // The dump of the rule ends after its removal.
        let bytes = 100;
        director
            .by_rule
            .add_cost(rule, RuleSpending { bytes, finished: 1 });
        director.wrote(rule, bytes);
        director.is_full(1 + rule as u64, &mut orders);
        director.finished(rule);
    }
    let kept = [
        director.since.len(),
        director.gone.len(),
        director.places.known(),
        director.by_rule.known(),
        outcomes.known(),
    ];
    assert_eq!(kept, [0, 0, 0, 1, 256], "triggers by hand, and 256 names");
    assert!(director.dumps.known() <= 3, "alerts, and a minute's rules");
    assert!(director.bytes.known() <= 63, "alerts, and an hour's rules");
    let list = outcomes.list();
    let sum = |of: fn(&RuleHits) -> u64| list.iter().map(of).sum::<u64>();
    assert_eq!(sum(|it| it.counts.triggers), RULES as u64);
    assert_eq!(sum(|it| it.bytes), 100 * RULES as u64);
}

fn hit(time_ns: i64, record: u64, expression: &'static str) -> TriggerHit<&'static str> {
    TriggerHit {
        order: HitOrder {
            time_ns,
            source: 0,
            producer: 0,
            record,
            rule: 0,
        },
        terms: terms(2 * S, S),
        expression: Ok(expression),
    }
}

/// Feeds the hits, each at its time, and ends the recording. Returns the opened dumps (time, key)
/// and the counts.
fn run(
    config: DirectorConfig,
    hits: &[TriggerHit<&'static str>],
) -> (Vec<(i64, &'static str)>, HitCounts) {
    let mut director = Director::new(config);
    let mut orders = Vec::new();
    for hit in hits {
        director.advance(hit.order.time_ns, &mut orders);
        director.hit(hit.clone(), &mut orders);
    }
    director.end(Clip::End, &mut orders);
    let opened = orders.iter().filter_map(|o| match o {
        Order::Open {
            hit, expression, ..
        } => Some((hit.time_ns, *expression)),
        _ => None,
    });
    let closed = orders
        .iter()
        .filter(|o| matches!(o, Order::Close { .. }))
        .count();
    let opened: Vec<_> = opened.collect();
    assert_eq!(opened.len(), closed, "every dump closes once");
    assert_eq!(director.open_dumps(), 0);
    (opened, director.counts)
}

#[test]
fn a_hit_while_open_starts_nothing_and_does_not_lengthen() {
    let hits = [
        hit(10 * S, 1, "a"),
        hit(10 * S + S / 2, 2, "a"),
        hit(11 * S, 3, "a"),
        hit(11 * S + 1, 4, "a"),
    ];
    let (opened, counts) = run(config(), &hits);
    assert_eq!(opened, [(10 * S, "a"), (11 * S + 1, "a")]);
    assert_eq!(
        (counts.triggers, counts.suppressed.of(Reason::Open)),
        (2, 2)
    );
}

#[test]
fn another_expression_or_rule_has_its_own_dump() {
    let mut other_rule = hit(10 * S + 2, 3, "a");
    other_rule.order.rule = 1;
    let (opened, _) = run(
        config(),
        &[hit(10 * S, 1, "a"), hit(10 * S + 1, 2, "b"), other_rule],
    );
    assert_eq!(opened.len(), 3);
}

#[test]
fn hits_within_the_hold_time_act_in_order_of_time() {
    let (opened, _) = run(
        config(),
        &[hit(10 * S, 1, "a"), hit(10 * S - S / 20, 2, "a")],
    );
    assert_eq!(opened, [(10 * S - S / 20, "a")]);
}

#[test]
fn commands_of_the_same_time_are_different_hits() {
    let command = |expression| TriggerHit {
        order: HitOrder::without_packet(S, 0),
        ..hit(S, 0, expression)
    };
    let (opened, counts) = run(config(), &["a", "b", "a"].map(command));
    assert_eq!(opened, [(S, "a"), (S, "b")]);
    assert_eq!((counts.triggers, counts.suppressed.total()), (2, 1));
}

#[test]
fn live_hits_act_at_once() {
    let mut director = Director::new(DirectorConfig {
        hold_ns: 0,
        ..config()
    });
    let mut orders = Vec::new();
    director.hit(hit(5 * S, 1, "a"), &mut orders);
    assert_eq!(orders.len(), 1);
}

#[test]
fn too_many_dumps_are_refused_and_counted() {
    let hits = [
        hit(S, 1, "a"),
        hit(S, 2, "b"),
        hit(S, 3, "c"),
        hit(S, 4, "d"),
    ];
    let alone = DirectorConfig {
        rules: 1,
        ..config()
    };
    let (opened, counts) = run(alone, &hits);
    assert_eq!(opened.len(), 3);
    let suppressed = counts.suppressed;
    assert_eq!((suppressed.total(), suppressed.refused()), (1, 1));
}

#[test]
fn single_disarms_after_the_first_dump_but_not_the_hand() {
    let config = DirectorConfig {
        single: true,
        ..config()
    };
    let (opened, counts) = run(config, &[hit(S, 1, "a"), hit(9 * S, 2, "b")]);
    assert_eq!(
        (
            opened.as_slice(),
            counts.triggers,
            counts.suppressed.of(Reason::Single)
        ),
        (&[(S, "a")][..], 1, 1)
    );

    let mut director = Director::new(config);
    let mut orders = Vec::new();
    let by_hand = |time_ns, expression| {
        let mut hit = hit(time_ns, 0, expression);
        hit.order.rule = usize::MAX;
        hit
    };
    let _ = director.manual(by_hand(S, "by hand"), &mut orders);
    assert!(director.armed, "a trigger by hand is not the shot");
    director.hit(hit(S, 1, "a"), &mut orders);
    director.act_all(&mut orders);
    assert!(!director.armed);
    let _ = director.manual(by_hand(2 * S, "by hand again"), &mut orders);
    assert_eq!(director.counts.triggers, 3);
}

/// Several hits wait, and a further hit acts at once through `manual`.
#[test]
fn a_single_rule_starts_one_dump_until_it_is_enabled_again() {
    let mut director = Director::new(config());
    let mut orders = Vec::new();
    let single = |time_ns, record, expression| {
        let mut hit = hit(time_ns, record, expression);
        hit.terms.limits.is_single = true;
        hit
    };
    for (number, dumps) in [(0, 1), (1, 2)] {
        let start_ns = number * 100 * S + S;
        for (record, expression) in (0..).zip(["a", "b", "c"]) {
            director.hit(single(start_ns, record, expression), &mut orders);
            director.hit(single(start_ns + 30 * S, record, expression), &mut orders);
        }
        director.act_all(&mut orders);
        let _ = director.manual(single(start_ns + 60 * S, 0, "d"), &mut orders);
        assert_eq!(director.counts.triggers, dumps);
        assert_eq!(std::mem::take(&mut director.just_fired), [0]);
        director.advance(start_ns + 90 * S, &mut orders);
        director.rearm(0);
    }
    assert_eq!(director.counts.suppressed.of(Reason::Single), 12);
    let refused = |order: &Order<_>| matches!(order, Order::Refused { .. });
    assert!(!orders.iter().any(refused), "no message for each of them");
}

#[test]
fn a_window_closes_after_the_hold_time() {
    let mut director = Director::new(config());
    let mut orders = Vec::new();
    director.hit(hit(10 * S, 1, "a"), &mut orders);
    director.advance(11 * S + S / 10, &mut orders);
    assert_eq!((orders.len(), director.open_dumps()), (1, 1));
    assert_eq!(director.due_ns, 11 * S + S / 10);
    director.advance(11 * S + S / 10 + 1, &mut orders);
    assert!(matches!(
        orders[1],
        Order::Close {
            id: 1,
            clipped: None,
            ..
        }
    ));
}

#[test]
fn the_end_clips_only_windows_that_were_not_over() {
    let mut director = Director::new(config());
    let mut orders = Vec::new();
    director.hit(hit(10 * S, 1, "over"), &mut orders);
    director.hit(hit(10 * S + 2, 2, "cut"), &mut orders);
    director.advance(11 * S + 1, &mut orders);
    director.end(Clip::End, &mut orders);
    let clips: Vec<_> = orders
        .iter()
        .filter_map(|o| {
            if let Order::Close { id, clipped, .. } = o {
                Some((*id, *clipped))
            } else {
                None
            }
        })
        .collect();
    assert_eq!(clips, [(1, None), (2, Some(Clip::End))]);
}

fn flow(number: u8) -> BiflowKey {
    BiflowKey::opaque(0, &[number])
}

/// A hit of this flow. Its window ends a minute after the hit.
fn hit_of(number: u8, time_ns: i64, record: u64) -> TriggerHit<&'static str> {
    let mut hit = hit(time_ns, record, "a");
    hit.terms = terms(2 * S, 60 * S);
    hit.terms.flow = Some(flow(number));
    hit
}

/// Moves the clock second by second until a dump closes, or else ends the recording. Returns when
/// the dump closed (`i64::MAX`: at the end), and its clip.
fn closed(director: &mut Director<&'static str>, from_ns: i64, end_ns: i64) -> (i64, Option<Clip>) {
    let mut orders = Vec::new();
    for second in from_ns / S..=end_ns / S {
        director.advance(second * S, &mut orders);
        if let Some(Order::Close { clipped, .. }) = orders.first() {
            return (second * S, *clipped);
        }
        orders.clear();
    }
    director.end(Clip::End, &mut orders);
    match orders.first() {
        Some(Order::Close { clipped, .. }) => (i64::MAX, *clipped),
        other => panic!("{other:?}"),
    }
}

/// Live (hold time 0), and from files, where hits and ends of flows wait for the hold time.
#[test]
fn a_dump_ends_with_the_last_of_its_flows() {
    for hold_ns in [0, 5 * S] {
        let config = DirectorConfig {
            hold_ns,
            ..config()
        };
        let run = |hits: &[(u8, i64)], over: &[(u8, i64, i64)]| {
            let mut director = Director::new(config);
            let mut orders = Vec::new();
            director.advance(S, &mut orders);
            for (record, (number, second)) in hits.iter().enumerate() {
                director.hit(hit_of(*number, second * S, record as u64), &mut orders);
            }
            for (number, now, until) in over {
                director.on_flow_ended((0, flow(*number)), now * S, until * S);
            }
            // The end of a flow of another rule has no effect.
            director.on_flow_ended((1, flow(1)), 3 * S, 3 * S);
            let (at_ns, clip) = closed(&mut director, 1, 50 * S);
            ((at_ns / S).min(99), clip)
        };
        let at = |second: i64| (second + hold_ns / S + 1, Some(Clip::Flow(second * S)));
        let end = (99, Some(Clip::End));
        assert_eq!(run(&[(1, 2)], &[(1, 10, 10)]), at(10));
        assert_eq!(run(&[(1, 2)], &[(1, 10, 20)]), at(20), "wanted for a while");
        assert_eq!(run(&[(1, 2)], &[(2, 10, 10)]), end, "of another flow");
        assert_eq!(run(&[(1, 2), (2, 3)], &[(1, 10, 10)]), end, "one goes on");
        assert_eq!(run(&[(1, 2), (2, 3)], &[(1, 10, 10), (2, 14, 14)]), at(14));
        // The flow began again. In order of arrival (live), the first dump covers both hits. In
        // order of time (files), the second hit has a separate dump.
        let anew = if hold_ns == 0 { end } else { at(10) };
        assert_eq!(run(&[(1, 2), (1, 12)], &[(1, 10, 10)]), anew);
        assert_eq!(
            run(&[(1, 2)], &[(1, 10, 70)]),
            end,
            "by its window, or the end before"
        );
    }
}

/// A hit without a flow, or more flows than the director remembers.
#[test]
fn a_dump_of_more_than_flows_ends_by_its_window() {
    let mut other = hit(3 * S, 1, "a");
    other.terms = terms(2 * S, 60 * S);
    let many = (0..2000_u64).map(|n| {
        let mut hit = hit_of(0, 3 * S, n + 1);
        hit.terms.flow = Some(BiflowKey::opaque(0, &n.to_ne_bytes()));
        hit
    });
    for hits in [vec![other], many.collect()] {
        let mut director = Director::new(DirectorConfig {
            hold_ns: 0,
            ..config()
        });
        let mut orders = Vec::new();
        director.hit(hit_of(1, 2 * S, 0), &mut orders);
        let flows: Vec<_> = hits.iter().filter_map(|hit| hit.terms.flow).collect();
        hits.into_iter()
            .for_each(|hit| _ = director.hit(hit, &mut orders));
        for flow in flows.into_iter().chain([flow(1)]) {
            director.on_flow_ended((0, flow), 10 * S, 10 * S);
        }
        assert_eq!(
            closed(&mut director, S, 50 * S),
            (i64::MAX, Some(Clip::End))
        );
    }
}

/// The clock of another source may be far ahead of a source without watermarks: only the monotonic
/// clock ends dumps of such a source.
#[test]
fn the_end_of_a_flow_waits_for_its_own_clock() {
    let mut director = Director::new(DirectorConfig {
        hold_ns: 0,
        alert_dumps: 4,
        grace_ns: Some(S / 20),
        ..config()
    });
    director.promises = vec![false];
    let mut orders = Vec::new();
    director.advance_mono(0, &mut orders);
    director.advance(1_000_000 * S, &mut orders);
    director.hit(hit_of(1, 10 * S, 1), &mut orders);
    director.on_flow_ended((0, flow(1)), 12 * S, 17 * S);
    let closes = |orders: &[Order<_>]| orders.iter().any(|it| matches!(it, Order::Close { .. }));
    director.advance(1_000_001 * S, &mut orders);
    director.advance_mono(5 * S, &mut orders);
    assert!(!closes(&orders));
    director.advance_mono(6 * S, &mut orders);
    assert!(closes(&orders));
}

/// A hit of the built-in rule of alerts, with this window. Its flow began `flow_ns` earlier.
pub(super) fn alert_hit(
    time_ns: i64,
    expression: u32,
    window: (i64, i64),
    flow_ns: i64,
) -> TriggerHit<u32> {
    let terms = TriggerTerms {
        span_ns: (flow_ns, 999),
        ..terms(window.0, window.1)
    };
    TriggerHit {
        order: HitOrder::without_packet(time_ns, ALERT),
        terms,
        expression: Ok(expression),
    }
}

/// The dump of an alert, and whether the dump was open; `None`: the alert is refused.
pub(super) fn acts(director: &mut Director<u32>, hit: TriggerHit<u32>) -> Option<(u64, bool)> {
    let mut orders = Vec::new();
    let acted = director.manual(hit, &mut orders);
    match (acted, &orders[..]) {
        (Ok((id, false)), [Order::Open { .. }]) => Some((id, false)),
        (Ok((id, true)), []) => Some((id, true)),
        (Err(_), [Order::Refused { .. }]) => None,
        other => panic!("{other:?}"),
    }
}

/// The dump's window must have the alert's packet and all of the flow before that packet.
#[test]
fn alerts_belong_to_the_open_dump_that_has_their_flow() {
    let mut director = Director::new(DirectorConfig {
        alert_dumps: 3,
        ..config()
    });
    let mut alert = |time_ns, key, flow_ns| {
        let hit = alert_hit(time_ns, key, (S, 2 * S), flow_ns);
        acts(&mut director, hit)
    };
    assert_eq!(alert(10 * S, 7, 0), Some((1, false)));
    assert_eq!(alert(10 * S, 8, 0), Some((2, false)), "of another flow");
    assert_eq!(alert(11 * S, 7, 2 * S), Some((1, true)));
    assert_eq!(alert(12 * S, 7, 0), Some((1, true)), "at the end of it");
    assert_eq!(alert(9 * S, 7, 0), Some((1, true)), "before its trigger");
    assert_eq!(
        alert(11 * S, 7, 2 * S + 1),
        Some((3, false)),
        "an older flow"
    );
    assert_eq!(
        alert(12 * S + 1000, 8, 0),
        None,
        "after it: no place is left"
    );
    let mut orders = Vec::new();
    director.advance(13 * S + S / 10 + 1000, &mut orders);
    let closed: Vec<_> = orders
        .iter()
        .map(|order| match order {
            Order::Close { id, suppressed, .. } => (*id, suppressed.count),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(closed, [(1, 3), (2, 0), (3, 0)]);
    assert_eq!(director.counts.suppressed.of(Reason::Open), 3);
    let hit = alert_hit(12 * S, 8, (S, 2 * S), 0);
    assert_eq!(acts(&mut director, hit), Some((4, false)));
}

#[test]
fn a_dump_is_of_a_bounded_number_of_alerts() {
    let mut director = Director::new(config());
    let mut dump = |_| acts(&mut director, alert_hit(10 * S, 7, (S, S), 0));
    let dumps: Vec<_> = (0..ALERTS_OF_DUMP + 2).map_while(&mut dump).collect();
    assert_eq!(dumps[dumps.len() - 2..], [(1, true), (2, false)]);
}
