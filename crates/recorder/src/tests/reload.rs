//! Another configuration for a running recorder: all or nothing.

use std::{
    thread::{scope, yield_now},
    time::Duration,
};

use retroscope_filter::Filter;
use retroscope_ring::Mode;

use crate::{
    CommandError, Condition, Config, ReloadOutcome, RuleStatus, TriggerRequest, Verdict,
    analysis::{director::HitOrder, hit_queue::HitQueue, predicate::DumpExpression},
    tests::{
        control::asked,
        live::{START, config, packets},
        rig::{MS, Rig, S, udp},
    },
};

fn arrive(rig: &mut Rig, port: u16, number: u32) {
    rig.arrive(0, udp(1, port, number));
    rig.pass(100 * MS);
    rig.step();
}

fn rig(dir: &std::path::Path) -> Rig {
    let mut rig = Rig::new(&config(), START, dir);
    rig.pass(MS);
    rig.step();
    rig
}

fn with_rules(rules: &[(&str, &str)]) -> Config {
    let (names, triggers) = rules
        .iter()
        .map(|(a, b)| ((*a).into(), (*b).into()))
        .unzip();
    Config {
        names,
        triggers,
        ..config().config()
    }
}

fn reload(rig: &mut Rig, config: &Config) -> Result<ReloadOutcome, CommandError> {
    asked(rig, |handle| handle.reload(config))
}

fn refusal(rig: &mut Rig, config: &Config) -> String {
    let before = rig.handle.rules();
    let why = reload(rig, config).unwrap_err().to_string();
    assert_eq!(rig.handle.rules(), before, "{why}");
    why
}

fn rules(rig: &Rig) -> Vec<(String, String, u64, bool)> {
    let all = rig.handle.rules().into_iter();
    let it = |it: RuleStatus| (it.name, it.expression, it.hits.unwrap(), it.is_configured);
    all.map(it).collect()
}

fn rule(
    name: &str,
    expression: &str,
    hits: u64,
    is_configured: bool,
) -> (String, String, u64, bool) {
    (name.to_owned(), expression.to_owned(), hits, is_configured)
}

#[test]
fn rules_come_change_and_go_together() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = rig(dir.path());
    let nothing = reload(&mut rig, &config().config()).unwrap();
    assert!(nothing.is_empty(), "{nothing}");
    assert_eq!(nothing.to_string(), "nothing changed");
    arrive(&mut rig, 9, 0);
    let first = with_rules(&[
        ("1", "udp port 9"),
        ("a", "udp port 7"),
        ("b", "udp port 8"),
    ]);
    let told = reload(&mut rig, &first).unwrap();
    assert_eq!(
        (told.added, told.changed.len()),
        (vec!["a".to_owned(), "b".to_owned()], 0)
    );
    for (port, number) in [(7, 1), (8, 2), (9, 3)] {
        arrive(&mut rig, port, number);
    }
    assert_eq!(
        rules(&rig),
        [
            rule("1", "udp port 9", 2, true),
            rule("a", "udp port 7", 1, true),
            rule("b", "udp port 8", 1, true)
        ]
    );
    // One rule is removed, one is changed, one requests another window only, and one is new.
    let mut second = with_rules(&[
        ("a", "udp port 7"),
        ("b", "udp port 6"),
        ("c", "udp port 5"),
    ]);
    second.requests = vec![TriggerRequest {
        future: Some(Duration::ZERO),
        ..TriggerRequest::default()
    }];
    let told = reload(&mut rig, &second).unwrap();
    assert_eq!(
        told.to_string(),
        "rules added: c; rules changed: a, b; rules removed: 1"
    );
    for (port, number) in [(9, 4), (8, 5), (7, 6), (6, 7), (5, 8)] {
        arrive(&mut rig, port, number);
    }
    assert_eq!(
        rules(&rig),
        [
            rule("a", "udp port 7", 2, true),
            rule("b", "udp port 6", 1, true),
            rule("c", "udp port 5", 1, true)
        ]
    );
    for number in 9..30 {
        arrive(&mut rig, 1, number);
    }
    rig.reports.sort_by_key(|report| report.number);
    let ends = rig.reports.iter().map(|report| {
        assert_eq!(report.verdict, Verdict::Complete);
        let last = packets(report).last().unwrap().2;
        (report.rule.as_str(), last)
    });
    assert_eq!(
        ends.collect::<Vec<_>>(),
        [
            ("udp port 9", 10),
            ("udp port 7", 11),
            ("udp port 8", 12),
            ("udp port 7", 6),
            ("udp port 6", 17),
            ("udp port 5", 18)
        ]
    );
}

#[test]
fn it_is_all_or_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = rig(dir.path());
    let good = with_rules(&[("1", "udp port 9"), ("good", "udp port 7")]);
    let other = |change: fn(&mut Config)| {
        let mut config = good.clone();
        config.past = Duration::from_secs(7);
        change(&mut config);
        config
    };
    let wrong = [
        other(|it| it.triggers[1] = "udp prot 7".to_owned()),
        other(|it| it.dump = "host $src".to_owned()),
        other(|it| it.manual_dump = "$srcIP".to_owned()),
        other(|it| it.names[1] = "1".to_owned()),
        other(|it| it.names[1] = "x".repeat(65)),
        other(|it| it.names[1] = "\n".to_owned()),
        other(|it| {
            it.requests = vec![TriggerRequest {
                dump: Some("prot 7".to_owned()),
                ..TriggerRequest::default()
            }];
        }),
        other(|it| {
            it.cutoffs = vec![crate::ClassCutoff {
                class: None,
                cutoff: retroscope_flow::Cutoff {
                    bytes: 1,
                    refill_ns: 1,
                },
            }];
        }),
        other(|it| it.when_full = Mode::Wait),
    ];
    let says = [
        "rule 'good': ",
        "unknown variable $src",
        "$srcIP needs a trigger packet",
        "two rules have the name '1'",
        "a name has 1 to 64 bytes",
        "no control characters",
        "rule '1': ",
        "--cutoff",
        "never waits",
    ];
    for (wrong, says) in wrong.iter().zip(says) {
        let why = refusal(&mut rig, wrong);
        assert!(why.contains(says), "{says}: {why}");
    }
    for number in 0..60 {
        arrive(&mut rig, 1, number);
    }
    arrive(&mut rig, 9, 60);
    for number in 61..80 {
        arrive(&mut rig, 7, number);
    }
    assert_eq!(rig.reports.len(), 1);
    let first = packets(&rig.reports[0])[0];
    assert_eq!(first.2, 40, "2 s before");
    let told = reload(&mut rig, &other(|_| {})).unwrap();
    assert_eq!(told.to_string(), "rules added: good; changed: past");
    assert_eq!(
        reload(&mut rig, &other(|_| {})).unwrap(),
        ReloadOutcome::default()
    );
}

/// Changed settings apply to manual triggers and to rules without their own settings.
#[test]
fn settings_hold_for_whoever_does_not_say() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = rig(dir.path());
    let own = TriggerRequest {
        past: Some(Duration::from_millis(50)),
        ..TriggerRequest::default()
    };
    asked(&mut rig, |it| it.set_rule("own", "udp port 6", &own)).unwrap();
    let none = TriggerRequest::default();
    asked(&mut rig, |it| it.set_rule("bare", "udp port 5", &none)).unwrap();
    let mut new = config().config();
    (new.past, new.future) = (Duration::from_millis(250), Duration::ZERO);
    (new.dump, new.manual_dump) = ("src port 1".to_owned(), "udp port 2".to_owned());
    (new.max_dumps, new.hold_off) = (1, Duration::from_secs(10));
    let told = reload(&mut rig, &new).unwrap();
    assert_eq!(
        told.settings,
        [
            "dump",
            "manual-dump",
            "past",
            "future",
            "hold-off",
            "max-dumps"
        ]
    );
    let held = |rig: &mut Rig, port: u16, number| {
        let before = rig.reports.len();
        arrive(rig, port, number);
        for _ in 0..8 {
            rig.pass(100 * MS);
            rig.step();
        }
        let new = &rig.reports[before..];
        new.iter().map(|it| packets(it).len()).collect::<Vec<_>>()
    };
    for (port, expected) in [(9, 3), (6, 1), (5, 3)] {
        for number in 0..10 {
            arrive(&mut rig, 1, number);
        }
        assert_eq!(held(&mut rig, port, 10), [expected], "port {port}");
    }
    assert_eq!(held(&mut rig, 9, 11), [0_usize; 0], "it is held off");
    rig.pass(12 * S);
    rig.step();
    assert_eq!(held(&mut rig, 9, 12).len(), 1);
    arrive(&mut rig, 2, 13);
    rig.trigger(TriggerRequest::default());
    rig.step();
    for _ in 0..8 {
        rig.pass(100 * MS);
        rig.step();
    }
    let last = rig.reports.last().unwrap();
    assert_eq!((last.rule.as_str(), packets(last).len()), ("manual", 1));
}

/// A reload keeps rules that commands added, and restores rules of the configuration that commands
/// changed or removed. It does not enable disabled rules.
#[test]
fn commands_and_reloads_meet() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = rig(dir.path());
    let none = TriggerRequest::default();
    let configured = with_rules(&[
        ("1", "udp port 9"),
        ("a", "udp port 7"),
        ("b", "udp port 8"),
    ]);
    reload(&mut rig, &configured).unwrap();
    asked(&mut rig, |it| it.set_rule("mine", "udp port 6", &none)).unwrap();
    asked(&mut rig, |it| it.set_rule("a", "udp port 5", &none)).unwrap();
    asked(&mut rig, |it| it.remove_rule("b", Condition::Any)).unwrap();
    asked(&mut rig, |it| {
        it.enable_rule("1", (false, None), Condition::Any)
    })
    .unwrap();
    let told = reload(&mut rig, &configured).unwrap();
    assert_eq!(told.to_string(), "rules added: b; rules changed: a");
    assert_eq!(
        rules(&rig),
        [
            rule("1", "udp port 9", 0, true),
            rule("a", "udp port 7", 0, true),
            rule("b", "udp port 8", 0, true),
            rule("mine", "udp port 6", 0, false)
        ]
    );
    assert!(!rig.handle.rules()[0].is_enabled, "nobody enabled it");
    // After a reload, an equal rule of a command belongs to the configuration. A different rule of
    // the same name is refused.
    let other = with_rules(&[("mine", "udp port 1")]);
    assert!(refusal(&mut rig, &other).contains("'mine' is there already, by a command"));
    let same = with_rules(&[("mine", "udp port 6")]);
    let told = reload(&mut rig, &same).unwrap();
    assert_eq!(told.to_string(), "rules removed: 1, a, b");
    assert_eq!(rules(&rig), [rule("mine", "udp port 6", 0, true)]);
    let told = reload(&mut rig, &with_rules(&[])).unwrap();
    assert_eq!(told.to_string(), "rules removed: mine");
    for number in 0..10 {
        arrive(&mut rig, 6, number);
    }
    assert_eq!(rig.reports.len(), 0);
}

#[test]
fn a_storm_of_reloads_loses_no_hit() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = rig(dir.path());
    let mut of_rule = 0;
    for round in 0..100_u32 {
        let mut rules = vec![(
            "1".to_owned(),
            format!("udp port 9 and len < {}", 1000 + round),
        )];
        let more = (round * 7 % 40) as usize;
        rules.extend((0..more).map(|n| (format!("r{n}"), format!("udp port {}", 100 + n))));
        let rules: Vec<_> = rules
            .iter()
            .map(|(a, b)| (a.as_str(), b.as_str()))
            .collect();
        rig.arrive(0, udp(1, 9, round));
        rig.insert();
        let told = reload(&mut rig, &with_rules(&rules)).unwrap();
        assert_eq!(told.changed, ["1"]);
        rig.arrive(0, udp(1, 9, round));
        rig.pass(10 * MS);
        rig.step();
        let hits = rig.handle.rules()[0].hits.unwrap();
        of_rule += hits;
        assert_eq!(rig.handle.rules().len(), 1 + more);
    }
    let status = rig.handle.status().unwrap();
    let hits = status.hits.triggers + status.hits.suppressed.total();
    assert_eq!((hits, of_rule, status.lapped), (200, 100, 0));
}

/// Rules have numbers from 2^20 on, as after years of changes.
#[test]
fn rules_may_be_changed_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = rig(dir.path());
    rig.handle.rules.skip_to(1 << 20);
    let request = TriggerRequest::default();
    let added = asked(&mut rig, |handle| {
        handle.set_rule("a", "udp port 7", &request)
    });
    assert!(matches!(added, Ok(false)), "{added:?}");
    for port in [6, 5, 4] {
        let text = format!("udp port {port}");
        let changed = asked(&mut rig, |handle| handle.set_rule("a", &text, &request));
        assert!(changed.unwrap());
        arrive(&mut rig, port, 0);
        assert_eq!(rules(&rig)[1], rule("a", &text, 1, false));
    }
    let asks_for = with_rules(&[("1", "udp port 9"), ("b", "udp port 3")]);
    assert_eq!(reload(&mut rig, &asks_for).unwrap().added, ["b"]);
    arrive(&mut rig, 3, 0);
    assert_eq!(rules(&rig)[2], rule("b", "udp port 3", 1, true));
    rig.step();
    assert_eq!(rig.common.outcomes.known(), 3 + 3);
}

/// A shard reports a hit of the new rule before the analyzer has finished the command.
#[test]
fn the_first_hit_of_a_new_rule_has_the_window_of_the_rule() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = rig(dir.path());
    for number in 0..10 {
        arrive(&mut rig, 1, number);
    }
    let order = HitOrder {
        time_ns: START + MS + 900 * MS,
        source: 0,
        producer: 0,
        record: 9,
        rule: 1,
    };
    let filter = Filter::plain("udp").unwrap();
    let mut told = HitQueue::default();
    told.push((order, Ok(DumpExpression::plain(filter.filled().clone()))));
    rig.slots.of(0).queue_hits(&mut told);
    let own = TriggerRequest {
        past: Some(Duration::from_millis(250)),
        future: Some(Duration::ZERO),
        ..TriggerRequest::default()
    };
    let handle = rig.handle.clone();
    scope(|scope| {
        let asking = scope.spawn(|| handle.set_rule("1", "udp port 8", &own).unwrap());
        while !asking.is_finished() {
            rig.run_commands();
            yield_now();
        }
    });
    rig.pass(2 * S);
    rig.step();
    rig.pass(2 * S);
    rig.step();
    let dumped = rig.reports.iter().map(|it| packets(it).len());
    assert_eq!(dumped.collect::<Vec<_>>(), [3]);
}
