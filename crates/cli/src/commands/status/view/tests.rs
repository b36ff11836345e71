use std::time::Duration;

use serde_json::json;

use super::*;

fn status(stored: u64, lost: u64) -> Value {
    json!({
        "sources": [{ "name": "eth0", "received": stored + lost, "stored": stored, "lost": { "kernel": lost, "no-free-bucket": 0, "nic": null } }],
        "analyzers": { "unread": 7, "missed": 0 }, "inspection": { "timed": 100, "mean_ns": 41.7 },
        "rule_costs": [{ "rule": "1", "dumps": 3, "finished": 2, "bytes": 5 << 20, "suppressed": 5 }],
        "ring": { "stored": stored, "stored_bytes": stored * 125, "reserved_buckets": 2, "closed_buckets": 30, "open_buckets": 1, "free_buckets": 0 },
        "history_seconds": 12.345, "history_goal_seconds": 30.0, "history_limit_bytes": 20480,
        "triggers": 3, "suppressed": 5, "suppressed_by": { "hold-off": 5, "limit": 0 },
        "dumps_open": 1, "scripts_failed": 0, "clock_steps": 0, "when_full": "record",
        "pins": [{ "name": "p", "from": null, "to": "2026-11-20T00:00:00Z", "revoked": true }],
        "threads": [
            { "name": "analyzer", "cpu_seconds": 0.5, "stored": null, "analyzed": null, "missed": null, "unread": null, "longest_seconds": null },
            { "name": "inserter-0", "cpu_seconds": stored as f64 / 1e4, "stored": stored, "analyzed": stored, "missed": 0, "unread": 7, "longest_seconds": 0.00934 },
        ],
    })
}

fn sample(status: Value, hits: u64, taken: Instant) -> Sample {
    let rules = json!({ "rules": [
        { "name": "1", "filter": "udp", "enabled": true, "hits": hits },
        { "name": "lua", "filter": "x.lua", "enabled": false, "hits": null },
    ] });
    Sample {
        status,
        rules: Ok(rules),
        taken,
    }
}

fn texts(lines: &[ScreenLine]) -> Vec<&str> {
    lines.iter().map(|line| line.text.as_str()).collect()
}

#[test]
fn a_screen_tells_history_rates_losses_dumps_and_rules() {
    let start = Instant::now();
    let before = sample(status(1000, 0), 10, start);
    let now = sample(status(3000, 8), 30, start + Duration::from_secs(2));
    let lines = view("tap", &now, Some(&before), None, (100, 50));
    let expected = [
        "tap (q quits)",
        "history   12.3 s of 30 s, flows keep 20 KiB in each direction",
        "ring      buckets: 30 closed, 2 wanted by dumps and pins, 1 open, 0 free; when full: record",
        "stored    1000 pps, 1.000 Mbit/s; 3000 packets since the start",
        "lost      8, now 4 in a second: kernel 8; unknown: nic",
        "analyzers 7 packets pending; 0 not inspected for triggers; 42 ns a packet",
        "dumps     1 open; 3 triggers, 5 suppressed: hold-off 5",
        "source   pps  received  stored  lost",
        "eth0    1000      3008    3000     8",
        "rule  hits  pps  dumps  written  suppressed  filter",
        "1       30   10      3    5 MiB           5  udp",
        "lua      ?    -      ?        ?           ?  x.lua (disabled)",
        "pin  from               to",
        "p    the oldest packet  2026-11-20T00:00:00Z  revoked",
        "thread         cpu    stored  analyzed  pending  missed  longest",
        "analyzer     0.0 %         -         -        -       -        -",
        "inserter-0  10.0 %  1000 pps  1000 pps        7       0   9.3 ms",
    ];
    assert_eq!(texts(&lines), expected);
    let alarms = lines.iter().filter(|line| line.look == LineStyle::Alarm);
    assert_eq!(alarms.count(), 1);
}

#[test]
fn a_small_terminal_cuts_and_text_has_no_rates() {
    let now = sample(status(3000, 0), 30, Instant::now());
    let lines = view("t\u{1b}[7mp", &now, None, None, (10, 3));
    assert_eq!(texts(&lines), ["t?[7mp (q ", "history   ", "ring      "]);
    let lines = view("tap", &now, None, None, (usize::MAX, usize::MAX));
    let lines = texts(&lines);
    assert_eq!(lines[0], "tap");
    assert_eq!(lines[3], "stored    3000 packets since the start");
    assert_eq!(lines[4], "lost      0; unknown: nic");
}

#[test]
fn who_does_not_answer_is_told_above_what_it_told_before() {
    let mut now = sample(status(1, 0), 0, Instant::now());
    now.rules = Err("not permitted for this token".to_owned());
    let lines = view("tap", &now, None, Some("tap: refused"), (100, 50));
    assert_eq!(
        (lines[0].text.as_str(), lines[0].look),
        (
            "tap: no answer, this is what it told before: refused",
            LineStyle::Alarm
        )
    );
    assert!(texts(&lines).contains(&"rules     not permitted for this token"));
}

#[test]
fn alerts_are_told_where_there_may_be_any() {
    let told = |alerts: Value, before: Option<Value>| {
        let with = |alerts: Value| {
            let mut status = status(1, 0);
            status["alerts"] = alerts;
            status
        };
        let now = Instant::now();
        let before = before.map(|alerts| sample(with(alerts), 0, now));
        let now = sample(with(alerts), 0, now + Duration::from_secs(2));
        let lines = view("tap", &now, before.as_ref(), None, (140, 50));
        let mut lines = lines.into_iter();
        let line = lines.find(|line| line.text.starts_with("alerts"))?;
        let age = lines.next()?.text;
        let age = age.trim_start().strip_prefix("age ").unwrap_or_default();
        Some((line.text, age.to_owned(), line.look))
    };
    assert_eq!(told(json!({ "expected": false }), None), None);
    let none = json!({ "expected": true, "lines": { "alerts": 0, "torn": 0, "lost": 0 }, "acted": 0, "unmatched": 0, "with_start": 0, "found_start": 0, "age_p50_seconds": null, "age_p99_seconds": null });
    let text = "alerts    0 received, 0 found, 0 unmatched; torn lines 0";
    assert_eq!(
        told(none.clone(), None),
        Some((text.to_owned(), String::new(), LineStyle::Plain))
    );
    let some = json!({ "expected": true, "lines": { "alerts": 862, "torn": 3, "lost": 0 }, "acted": 860, "unmatched": 2, "with_start": 800, "found_start": 750, "age_p50_seconds": 0.025, "age_p99_seconds": 41.3 });
    let text = "alerts    862 received, now 431 in a second, 858 found, 2 unmatched; torn lines 3";
    let age = "p50 25 ms, p99 41 s; 93 % still found their first packet";
    assert_eq!(
        told(some.clone(), Some(none)),
        Some((text.to_owned(), age.to_owned(), LineStyle::Plain))
    );
    let mut lost = some;
    lost["lines"]["lost"] = json!(7);
    let (text, _, look) = told(lost, None).unwrap();
    assert!(text.ends_with(", lost 7"), "{text}");
    assert_eq!(look, LineStyle::Alarm);
}
