use super::{window_tests::terms, *};

const S: i64 = 1_000_000_000;

fn config() -> DirectorConfig {
    DirectorConfig {
        hold_ns: S / 10,
        rules: 2,
        hold_off_ns: 0,
        max_dumps: 3,
        dumps_per_minute: 0,
        bytes_per_hour: 0,
        single: false,
        grace_ns: None,
    }
}

fn hit(time_ns: i64, record: u64, expression: &'static str) -> Hit<&'static str> {
    Hit {
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

/// Feeds hits as packets that carry the clock with them, then ends; returns (open: time, key) and the counts.
fn run(
    config: DirectorConfig,
    hits: &[Hit<&'static str>],
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
    director.manual(by_hand(S, "by hand"), &mut orders);
    assert!(director.armed, "a trigger by hand is not the shot");
    director.hit(hit(S, 1, "a"), &mut orders);
    director.act_all(&mut orders);
    assert!(!director.armed);
    director.manual(by_hand(2 * S, "by hand again"), &mut orders);
    assert_eq!(director.counts.triggers, 3);
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
