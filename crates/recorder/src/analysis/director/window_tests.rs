//! Windows of different lengths at the same time: from files compared with a slow model, live
//! compared with their deadlines.

use super::*;
use crate::analysis::terms::{DumpWindow, RuleLimits};

const MS: i64 = 1_000_000;

/// The terms of a trigger that requests a window of these lengths.
pub(super) fn terms(past_ns: i64, future_ns: i64) -> TriggerTerms {
    TriggerTerms {
        alert: None,
        span_ns: (0, 0),
        called: None,
        window: DumpWindow {
            past_ns,
            future_ns,
            packets_max: u64::MAX,
            bytes_max: u64::MAX,
        },
        into: None,
        asked_by: None,
        caller: None,
        reason: None,
        flow: None,
        limits: RuleLimits::default(),
    }
}

const WINDOWS: [(i64, i64); 5] = [
    (0, 0),
    (20 * MS, 5 * MS),
    (5 * MS, 200 * MS),
    (1000 * MS, MS),
    (3 * MS, i64::MAX),
];

fn hit(number: u64, time_ns: i64, key: u8, (past_ns, future_ns): (i64, i64)) -> TriggerHit<u8> {
    TriggerHit {
        order: HitOrder {
            time_ns,
            source: 0,
            producer: 0,
            record: number,
            rule: 0,
        },
        terms: terms(past_ns, future_ns),
        expression: Ok(key),
    }
}

/// A slow model of the director for files. Returns the records whose hits start dumps, and the
/// counts of the other hits.
fn model(config: &DirectorConfig, hits: &[TriggerHit<u8>]) -> (Vec<u64>, Suppressions) {
    let mut opened: Vec<(&TriggerHit<u8>, i64)> = Vec::new();
    let mut suppressed = Suppressions::default();
    for hit in hits {
        let (now_ns, window) = (hit.order.time_ns, hit.terms.window);
        let is_alike = |other: &TriggerHit<u8>| other.expression == hit.expression;
        let mut alike = opened.iter().filter(|(other, _)| is_alike(other));
        let belongs = |(other, to_ns): &(&TriggerHit<u8>, i64)| {
            let from_ns = window.start_ns(other.order.time_ns);
            other.terms == hit.terms && (from_ns..=*to_ns).contains(&now_ns)
        };
        let is_held_off = |(_, to_ns): &(&TriggerHit<u8>, i64)| {
            config.limits.hold_off_ns > 0
                && to_ns.saturating_add(config.limits.hold_off_ns) >= now_ns
        };
        let are_open = opened.iter().filter(|(_, to_ns)| *to_ns >= now_ns).count();
        if config.single && !opened.is_empty() {
            suppressed.add(Reason::Single, 1);
        } else if alike.clone().any(belongs) {
            suppressed.add(Reason::Open, 1);
        } else if alike.any(is_held_off) {
            suppressed.add(Reason::HoldOff, 1);
        } else if are_open >= config.limits.max_dumps {
            suppressed.add(Reason::MaxDumps, 1);
        } else {
            opened.push((hit, window.end_ns(now_ns)));
        }
    }
    let opened = opened.into_iter().map(|(hit, _)| hit.order.record);
    (opened.collect(), suppressed)
}

/// With random settings, and hits in and out of order.
#[test]
fn windows_of_all_lengths_do_what_the_model_does() {
    let seed = 0x71de;
    let mut random = fastrand::Rng::with_seed(seed);
    for round in 0..2000 {
        let config = DirectorConfig {
            hold_ns: [MS, 30 * MS, 5000 * MS][random.usize(..3)],
            rules: 1,
            limits: SharedLimits {
                hold_off_ns: [0, 0, 15 * MS][random.usize(..3)],
                max_dumps: [2, 5, 1000][random.usize(..3)],
                dumps_per_minute: 0,
                alerts_per_minute: true,
                bytes_per_hour: 0,
            },
            single: random.u8(..8) == 0,
            alert_dumps: 4,
            are_alerts_expected: false,
            grace_ns: None,
        };
        let case = format!("seed {seed:#x}, round {round}: {config:?}");
        let (mut director, mut orders) = (Director::new(config), Vec::new());
        let (mut hits, mut now_ns) = (Vec::new(), 0);
        for number in 0..60 {
            now_ns += random.i64(0..8 * MS);
            let late_ns = random.i64(0..config.hold_ns.min(20 * MS));
            let window = WINDOWS[random.usize(..WINDOWS.len())];
            let hit = hit(number, now_ns - late_ns, random.u8(..3), window);
            director.advance(now_ns, &mut orders);
            director.hit(hit.clone(), &mut orders);
            let waiting = director.waiting.iter();
            let wanted = waiting.map(|(order, (terms, _))| terms.window.start_ns(order.time_ns));
            assert_eq!(director.waiting_from_ns(), wanted.min(), "{case}");
            hits.push(hit);
        }
        // Move the clock past all hits first: `end` lets waiting hits act before earlier windows
        // close, which the model does not do.
        director.advance(now_ns + config.hold_ns + 1, &mut orders);
        director.end(Clip::End, &mut orders);
        hits.sort_by_key(|hit| hit.order);
        let (expected, suppressed) = model(&config, &hits);
        let opened = orders.iter().filter_map(|order| match order {
            Order::Open { hit, .. } => Some(hit.record),
            _ => None,
        });
        assert_eq!(opened.collect::<Vec<_>>(), expected, "{case}");
        assert_eq!(director.counts.suppressed, suppressed, "{case}");
        let closed = orders.iter().filter(|o| matches!(o, Order::Close { .. }));
        assert_eq!(closed.count(), expected.len(), "{case}");
        assert_eq!(director.waiting_from_ns(), None, "{case}");
    }
}

#[test]
fn each_deadline_is_kept_beside_longer_ones() {
    let config = DirectorConfig {
        hold_ns: 0,
        rules: 1,
        limits: SharedLimits {
            hold_off_ns: 0,
            max_dumps: 1000,
            dumps_per_minute: 0,
            alerts_per_minute: true,
            bytes_per_hour: 0,
        },
        single: false,
        alert_dumps: 4,
        are_alerts_expected: false,
        grace_ns: Some(50 * MS),
    };
    let mut random = fastrand::Rng::with_seed(7);
    let (mut director, mut due) = (Director::new(config), BTreeMap::new());
    for now_ms in 0..2000 {
        let mut orders = Vec::new();
        director.advance_mono(now_ms * MS, &mut orders);
        if now_ms < 1000 {
            let future_ns = random.i64(0..500) * MS;
            let number = now_ms.unsigned_abs();
            let hit = hit(number, now_ms * MS, 0, (0, future_ns));
            director.hit(hit, &mut orders);
        }
        for order in orders {
            match order {
                Order::Open {
                    id, from_ns, to_ns, ..
                } => {
                    due.insert(id, now_ms + (to_ns - from_ns) / MS + 51);
                }
                Order::Close { id, .. } => assert_eq!(due.remove(&id), Some(now_ms)),
                Order::Refused { .. } => panic!("{order:?}"),
            }
        }
    }
    assert_eq!((director.open_dumps(), due.len()), (0, 0));
}
