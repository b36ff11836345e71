//! The limits of the director, which refuse hits in storms of triggers.

use retroscope_filter::{FillError, Variable};

use super::{
    tests::{acts, alert_hit},
    window_tests::terms,
    *,
};
use crate::analysis::terms::RuleLimits;

const S: i64 = 1_000_000_000;

fn config() -> DirectorConfig {
    DirectorConfig {
        hold_ns: S,
        rules: 2,
        limits: SharedLimits {
            hold_off_ns: 0,
            max_dumps: 64,
            dumps_per_minute: 400,
            alerts_per_minute: true,
            bytes_per_hour: 0,
        },
        single: false,
        alert_dumps: 4,
        are_alerts_expected: false,
        grace_ns: None,
    }
}

fn hit(time_ns: i64, rule: usize, key: u32) -> TriggerHit<u32> {
    TriggerHit {
        order: HitOrder {
            time_ns,
            source: 0,
            producer: 0,
            record: u64::from(key),
            rule,
        },
        terms: terms(10 * S, 5 * S),
        expression: Ok(key),
    }
}

/// A director whose clock follows the times of the hits, and its orders. `opened`: time, rule and
/// key of each dump.
struct Run {
    director: Director<u32>,
    opened: Vec<(i64, usize, u32)>,
    refused: Vec<HitRefusal>,
    closed: Vec<Suppressed>,
}

impl Run {
    fn new(config: DirectorConfig) -> Self {
        Self {
            director: Director::new(config),
            opened: Vec::new(),
            refused: Vec::new(),
            closed: Vec::new(),
        }
    }

    fn feed(&mut self, hit: TriggerHit<u32>) {
        let mut orders = Vec::new();
        self.director.advance(hit.order.time_ns, &mut orders);
        self.director.hit(hit, &mut orders);
        self.take(orders);
    }

    fn end(&mut self) {
        let mut orders = Vec::new();
        self.director.end(Clip::End, &mut orders);
        self.take(orders);
        assert_eq!(self.opened.len(), self.closed.len());
        let places = &self.director.places;
        assert!(!places.is_full() && places.has_room(0) && places.has_room(1));
    }

    fn take(&mut self, orders: Vec<Order<u32>>) {
        for order in orders {
            match order {
                Order::Open {
                    hit, expression, ..
                } => self.opened.push((hit.time_ns, hit.rule, expression)),
                Order::Close { suppressed, .. } => self.closed.push(suppressed),
                Order::Refused { why, .. } => self.refused.push(why),
            }
        }
    }

    fn of_rule(&self, rule: usize) -> usize {
        self.opened.iter().filter(|(_, r, _)| *r == rule).count()
    }
}

/// For a minute, rule 0 has 1,000 hits a second, each with another key.
#[test]
fn a_storm_of_flows_leaves_room_for_another_rule() {
    let mut run = Run::new(config());
    for number in 0..60_000 {
        let time_ns = 1000 * S + i64::from(number) * S / 1000;
        if number == 31_234 {
            run.feed(hit(time_ns, 1, u32::MAX));
        }
        run.feed(hit(time_ns, 0, number));
        assert!(run.director.open_dumps() <= 64);
        assert!(run.director.waiting.len() <= 1002, "those of the hold time");
    }
    run.end();
    let counts = run.director.counts;
    assert_eq!(run.of_rule(1), 1, "it gets its dump");
    assert!((100..=400).contains(&run.of_rule(0)), "{}", run.of_rule(0));
    assert_eq!(counts.triggers + counts.suppressed.total(), 60_001);
    assert_eq!(counts.suppressed.refused(), counts.suppressed.total());
}

#[test]
fn a_minute_has_its_dumps_and_each_rule_its_share() {
    let config = DirectorConfig {
        limits: SharedLimits {
            max_dumps: 1000,
            dumps_per_minute: 10,
            ..config().limits
        },
        hold_ns: 0,
        ..config()
    };
    let mut run = Run::new(config);
    for number in 0..100 {
        run.feed(hit(1000 * S, 0, number));
    }
    assert_eq!(run.of_rule(0), 5, "half of it is kept for the other rule");
    for number in 0..100 {
        run.feed(hit(1001 * S, 1, number));
    }
    assert_eq!(run.of_rule(1), 5);
    let refused = HitRefusal::Limit(Reason::DumpsPerMinute);
    assert!(run.refused.iter().all(|why| *why == refused));
    run.feed(hit(1062 * S, 0, 1000));
    assert_eq!(run.of_rule(0), 6, "the next minute");
    // No minute has more than 10 dumps, even during a permanent storm.
    let mut run = Run::new(config);
    for number in 0..6000_u32 {
        let time_ns = i64::from(number) * S / 10;
        run.feed(hit(time_ns, usize::from(number % 3 == 0), number));
    }
    for (index, (time_ns, ..)) in run.opened.iter().enumerate() {
        let since = run.opened[..index].partition_point(|(ns, ..)| ns + 60 * S <= *time_ns);
        assert!(index + 1 - since <= 10);
    }
    assert!(run.opened.len() > 80, "{}", run.opened.len());
}

#[test]
fn bytes_of_an_hour_refuse_the_rule_that_wrote_them() {
    let config = DirectorConfig {
        limits: SharedLimits {
            bytes_per_hour: 1000,
            ..config().limits
        },
        hold_ns: 0,
        ..config()
    };
    let mut run = Run::new(config);
    run.feed(hit(1000 * S, 0, 1));
    run.director.wrote(0, 400);
    run.feed(hit(1000 * S, 0, 2));
    run.director.wrote(0, 400);
    run.feed(hit(1000 * S, 0, 3));
    assert_eq!(run.refused, [HitRefusal::Limit(Reason::BytesPerHour)]);
    run.feed(hit(1000 * S, 1, 4));
    assert_eq!(run.of_rule(1), 1);
    run.feed(hit(4700 * S, 0, 5));
    assert_eq!(run.of_rule(0), 3, "an hour later");
}

#[test]
fn a_key_is_held_off_behind_its_window() {
    let config = DirectorConfig {
        limits: SharedLimits {
            hold_off_ns: 20 * S,
            ..config().limits
        },
        ..config()
    };
    let mut run = Run::new(config);
    for second in 0..60 {
        run.feed(hit((1000 + second) * S, 0, 7));
    }
    run.feed(hit(1060 * S, 0, 8));
    run.end();
    let times: Vec<i64> = run.opened.iter().map(|(ns, ..)| ns / S).collect();
    // Each window ends 5 s after its hit; then the hold-off lasts 20 s.
    assert_eq!(times, [1000, 1026, 1052, 1060]);
    let suppressed = run.director.counts.suppressed;
    assert_eq!(suppressed.of(Reason::Open), 3 * 5);
    assert_eq!(suppressed.of(Reason::HoldOff), 20 + 20 + 2);
    assert_eq!(run.refused, [], "nobody needs to hear of it");
    let before: Vec<u64> = run.closed.iter().map(|s| s.before.total()).collect();
    assert_eq!(before, [0, 20, 20, 2]);
}

#[test]
fn a_trigger_by_hand_asks_no_budget() {
    let config = DirectorConfig {
        limits: SharedLimits {
            max_dumps: 4,
            dumps_per_minute: 1,
            alerts_per_minute: true,
            bytes_per_hour: 1,
            hold_off_ns: 100 * S,
        },
        hold_ns: 0,
        rules: 1,
        ..config()
    };
    let mut run = Run::new(config);
    run.feed(hit(1000 * S, 0, 1));
    run.director.wrote(0, 10);
    run.feed(hit(1000 * S, 0, 2));
    assert_eq!(run.of_rule(0), 1);
    let mut orders = Vec::new();
    for number in 0..5 {
        let by_hand = hit(1001 * S, usize::MAX, number);
        let _ = run.director.manual(by_hand, &mut orders);
    }
    let opened = orders.iter().filter(|o| matches!(o, Order::Open { .. }));
    assert_eq!(opened.count(), 4, "as many as may be open at once");
}

/// The director of a live recording with this number of rules, which expects alerts.
fn of_alerts(rules: usize, limits: SharedLimits) -> Director<u32> {
    let mut director = Director::new(DirectorConfig {
        hold_ns: 0,
        rules,
        limits,
        alert_dumps: 1000,
        are_alerts_expected: true,
        grace_ns: Some(S / 20),
        ..config()
    });
    director.advance_mono(0, &mut Vec::new());
    director
}

#[test]
fn alerts_and_rules_share_the_dumps_of_a_minute() {
    let limits = SharedLimits {
        dumps_per_minute: 10,
        ..config().limits
    };
    for (rules, dumps) in [(0, 10), (1, 5), (2, 6)] {
        let mut director = of_alerts(rules, limits);
        let mut alert = |key| acts(&mut director, alert_hit(S, key, (S, S), 0));
        let opened = (0..100).filter_map(&mut alert);
        assert_eq!(opened.count(), dumps, "{rules} rules");
        let suppressed = director.counts.suppressed;
        assert_eq!(suppressed.of(Reason::DumpsPerMinute), 100 - dumps as u64);
        for rule in 0..rules {
            let mut orders = Vec::new();
            director.hit(hit(S, rule, 1), &mut orders);
            assert!(matches!(orders[..], [Order::Open { .. }]), "{orders:?}");
        }
        director.advance_mono(62 * S, &mut Vec::new());
        let next = acts(&mut director, alert_hit(S, 1000, (S, S), 0));
        assert!(next.is_some(), "the next minute");
    }
}

/// With `alerts_per_minute: false`, alerts also do not reduce the dumps that a rule may start.
#[test]
fn alerts_may_have_no_limit_of_a_minute() {
    let mut limits = SharedLimits {
        dumps_per_minute: 10,
        alerts_per_minute: false,
        ..config().limits
    };
    let mut director = of_alerts(1, limits);
    let acts = |director: &mut Director<u32>, keys: std::ops::Range<u32>| {
        let acts = |key| acts(director, alert_hit(S, key, (S, S), 0));
        keys.filter_map(acts).count()
    };
    assert_eq!(acts(&mut director, 0..100), 100);
    let mut orders = Vec::new();
    (0..100).for_each(|key| _ = director.hit(hit(S, 0, key), &mut orders));
    let opened = orders.iter().filter(|it| matches!(it, Order::Open { .. }));
    assert_eq!(opened.count(), 10, "alerts take nothing of it");
    limits.alerts_per_minute = true;
    director.set_limits(limits);
    assert_eq!(acts(&mut director, 100..200), 0);
}

#[test]
fn a_storm_of_a_rule_leaves_alerts_their_dumps() {
    let limits = SharedLimits {
        dumps_per_minute: 10,
        ..config().limits
    };
    let mut director = of_alerts(1, limits);
    let mut orders = Vec::new();
    (0..100).for_each(|key| _ = director.hit(hit(S, 0, key), &mut orders));
    let opened = orders.iter().filter(|it| matches!(it, Order::Open { .. }));
    assert_eq!(opened.count(), 5);
    let alert = |key| acts(&mut director, alert_hit(S, key, (S, S), 0));
    assert_eq!((0..100).filter_map(alert).count(), 5);
}

#[test]
fn alerts_write_no_more_than_their_bytes_of_an_hour() {
    let limits = SharedLimits {
        bytes_per_hour: 1000,
        ..config().limits
    };
    let mut director = of_alerts(1, limits);
    assert!(director.counts_bytes());
    let first = acts(&mut director, alert_hit(S, 1, (S, S), 0));
    assert_eq!(first, Some((1, false)));
    director.wrote(ALERT, 400);
    let within = |director: &mut Director<u32>| acts(director, alert_hit(S, 1, (S, S), 0));
    assert_eq!(within(&mut director), Some((1, true)));
    director.wrote(ALERT, 200);
    let refused = acts(&mut director, alert_hit(S, 2, (S, S), 0));
    assert_eq!(refused, None, "another dump");
    let refused = acts(&mut director, alert_hit(3 * S, 1, (S, S), 0));
    assert_eq!(refused, None, "after the dump's end");
    assert_eq!(within(&mut director), Some((1, true)), "it costs nothing");
    let mut orders = Vec::new();
    director.hit(hit(S, 0, 1), &mut orders);
    assert!(
        matches!(orders[..], [Order::Open { .. }]),
        "a rule has half"
    );
    assert_eq!(director.counts.suppressed.of(Reason::BytesPerHour), 2);
    director.advance_mono(3700 * S, &mut Vec::new());
    assert!(acts(&mut director, alert_hit(S, 2, (S, S), 0)).is_some());
}

/// The limits of bytes and of dumps per minute never refuse a manual dump, but its bytes are no
/// longer available to alerts.
#[test]
fn bytes_by_hand_count() {
    let limits = SharedLimits {
        bytes_per_hour: 1000,
        dumps_per_minute: 1,
        ..config().limits
    };
    let mut director = of_alerts(0, limits);
    let mut by_hand = |number| {
        let mut orders = Vec::new();
        let _ = director.manual(hit(S, MANUAL, number), &mut orders);
        director.wrote(MANUAL, 300);
        matches!(orders[..], [Order::Open { .. }])
    };
    assert!(by_hand(1) && by_hand(2));
    director.wrote(ALERT, 399);
    assert!(acts(&mut director, alert_hit(S, 1, (S, S), 0)).is_some());
    director.wrote(ALERT, 101);
    director.advance_mono(62 * S, &mut Vec::new());
    assert!(acts(&mut director, alert_hit(S, 2, (S, S), 0)).is_none());
    let mut orders = Vec::new();
    let _ = director.manual(hit(S, MANUAL, 3), &mut orders);
    assert!(matches!(orders[..], [Order::Open { .. }]), "{orders:?}");
}

/// A long hold time while every packet hits: first with one key, then each with another key.
#[test]
fn hits_that_wait_are_bounded_and_none_is_lost() {
    const HITS: u32 = 300_000;
    let config = DirectorConfig {
        hold_ns: 3600 * S,
        ..config()
    };
    let mut run = Run::new(config);
    for number in 0..HITS {
        let key = if number < HITS / 2 { 7 } else { number };
        run.feed(hit(1000 * S + i64::from(number) * 1_000_000, 0, key));
        assert!(run.director.waiting.len() <= WAITING_MAX);
    }
    run.end();
    let counts = run.director.counts;
    assert_eq!(counts.triggers + counts.suppressed.total(), u64::from(HITS));
    assert!(run.opened.iter().filter(|(.., key)| *key == 7).count() >= 8);
    // A second run must give the same result.
    let opened = std::mem::take(&mut run.opened);
    let mut again = Run::new(config);
    for number in 0..HITS {
        let key = if number < HITS / 2 { 7 } else { number };
        again.feed(hit(1000 * S + i64::from(number) * 1_000_000, 0, key));
    }
    again.end();
    assert!(opened == again.opened);
}

#[test]
fn a_variable_that_is_missing_fails_the_trigger() {
    let mut run = Run::new(config());
    let why = HitRefusal::Variable(FillError {
        variable: Variable::SrcPort,
        reason: "it has none",
    });
    run.feed(TriggerHit {
        expression: Err(why.clone()),
        ..hit(S, 0, 1)
    });
    run.end();
    assert_eq!(run.refused, [why]);
    let counts = run.director.counts;
    assert_eq!((counts.triggers, counts.suppressed.total()), (0, 1));
    assert_eq!(counts.suppressed.of(Reason::Unfilled), 1);
}

/// Rule 0 has its own limits; rule 1 has only the shared limits, which are large.
#[test]
fn a_rule_has_limits_of_its_own() {
    let config = DirectorConfig {
        hold_ns: 0,
        ..config()
    };
    let limited = |time_ns, rule, key, limits| {
        let mut hit = hit(time_ns, rule, key);
        hit.terms.limits = limits;
        hit
    };
    let none = RuleLimits::default();
    let own = |run: &Run| (run.of_rule(0), run.of_rule(1));

    let mut run = Run::new(config);
    let two = RuleLimits {
        dumps_max: 2,
        ..none
    };
    for key in 0..5 {
        run.feed(limited(1000 * S, 0, key, two));
        run.feed(limited(1000 * S, 1, key, none));
    }
    assert_eq!(own(&run), (2, 5));
    run.feed(limited(1010 * S, 0, 9, two));
    assert_eq!(own(&run), (3, 5), "the others are over");
    assert_eq!(run.director.counts.suppressed.of(Reason::MaxDumps), 3);

    let mut run = Run::new(config);
    let of_minute = RuleLimits {
        dumps_per_minute: 3,
        ..none
    };
    for second in 0..30 {
        let time_ns = i64::from(1000 + second) * S;
        run.feed(limited(time_ns, 0, 100 + second, of_minute));
        run.feed(limited(time_ns, 1, 100 + second, none));
    }
    assert_eq!(own(&run), (3, 30));
    run.feed(limited(1061 * S, 0, 200, of_minute));
    assert_eq!(
        own(&run),
        (4, 30),
        "the first of them is more than a minute ago"
    );
    // If the limit is raised, earlier dumps still count.
    let four = RuleLimits {
        dumps_per_minute: 4,
        ..none
    };
    run.feed(limited(1061 * S, 0, 201, four));
    run.feed(limited(1061 * S, 0, 202, four));
    assert_eq!(own(&run), (5, 30));

    let mut run = Run::new(config);
    assert!(!run.director.counts_bytes());
    run.director.limits_bytes_of_rules = true;
    assert!(run.director.counts_bytes());
    let of_hour = RuleLimits {
        bytes_per_hour: 1000,
        ..none
    };
    run.feed(limited(1000 * S, 0, 1, of_hour));
    run.director.wrote(0, 1000);
    run.director.wrote(1, 1_000_000);
    run.feed(limited(1001 * S, 0, 2, of_hour));
    run.feed(limited(1001 * S, 1, 2, none));
    assert_eq!(own(&run), (1, 1));
    run.feed(limited(4700 * S, 0, 3, of_hour));
    assert_eq!(own(&run), (2, 1), "an hour later");

    let mut run = Run::new(config);
    let held_off = RuleLimits {
        hold_off_ns: Some(20 * S),
        ..none
    };
    for second in 0..30 {
        run.feed(limited((1000 + second) * S, 0, 7, held_off));
        run.feed(limited((1000 + second) * S, 1, 7, none));
    }
    // Each window ends 5 s after its hit. Rule 0 is held off for another 20 s, so it starts a dump
    // every 26 s; rule 1 starts a dump every 6 s.
    assert_eq!(own(&run), (2, 5));
}

#[test]
fn shared_limits_change_for_what_comes() {
    let config = DirectorConfig {
        hold_ns: 0,
        rules: 1,
        ..config()
    };
    let mut run = Run::new(config);
    let mut limits = config.limits;
    for key in 0..5 {
        run.feed(hit(1000 * S, 0, key));
    }
    limits.max_dumps = 3;
    run.director.set_limits(limits);
    run.feed(hit(1000 * S, 0, 10));
    assert_eq!(run.of_rule(0), 5);
    limits = SharedLimits {
        max_dumps: 7,
        dumps_per_minute: 6,
        ..limits
    };
    run.director.set_limits(limits);
    for key in 20..25 {
        run.feed(hit(1000 * S, 0, key));
    }
    assert_eq!(run.of_rule(0), 6, "five of them in this minute already");
    limits.dumps_per_minute = 0;
    run.director.set_limits(limits);
    for key in 30..35 {
        run.feed(hit(1000 * S, 0, key));
    }
    assert_eq!(run.of_rule(0), 7, "so many at once");
}

#[test]
fn live_a_place_is_free_when_its_file_is_finished() {
    let config = DirectorConfig {
        limits: SharedLimits {
            max_dumps: 2,
            ..config().limits
        },
        rules: 1,
        hold_ns: 0,
        alert_dumps: 4,
        grace_ns: Some(S / 20),
        ..config()
    };
    let mut run = Run::new(config);
    for key in 0..3 {
        run.feed(hit(1000 * S, 0, key));
    }
    run.feed(hit(1010 * S, 0, 3));
    assert_eq!(
        (run.closed.len(), run.of_rule(0)),
        (2, 2),
        "both files are being written"
    );
    run.director.finished(0);
    run.feed(hit(1010 * S, 0, 4));
    run.feed(hit(1010 * S, 0, 5));
    assert_eq!(run.of_rule(0), 3);
}

/// The hits of rule 5 wait, and act after the rule was removed.
#[test]
fn a_rule_that_is_added_has_its_share() {
    let limited = DirectorConfig {
        limits: SharedLimits {
            dumps_per_minute: 8,
            ..config().limits
        },
        ..config()
    };
    let mut run = Run::new(limited);
    run.director.set_rules(&[(5, true)]);
    for key in 0..20 {
        run.feed(hit(i64::from(key) * MS, 5, key));
    }
    run.director.set_rules(&[(5, false)]);
    for key in 20..30 {
        run.feed(hit(i64::from(key) * MS, 0, key));
    }
    run.end();
    let opened = |rule| run.opened.iter().filter(|(_, of, _)| *of == rule).count();
    assert_eq!((opened(5), opened(0)), (4, 4), "half of it, and the rest");
    assert_eq!(run.closed.len(), 8);
}

const MS: i64 = 1_000_000;
