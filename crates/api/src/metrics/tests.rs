use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{self, Write},
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use retroscope_recorder::{
    AgeHistogram, AlertCounts, AnalysisLedger, DumpCounts, DumpTotals, FlowCounts, HitCounts,
    ModuleStatus, ProcessingHistogram, RecorderStatus, RuleHits, SourceSnapshot, ThreadStatus,
};
use retroscope_ring::{Mode, Ring, RingConfig};

use super::{Process, Requests, families::SERIES_MAX, render};

fn source(name: &str) -> SourceSnapshot {
    SourceSnapshot {
        name: name.to_owned(),
        received: Some(10),
        stored: 6,
        stored_bytes: 600,
        filtered: Some(1),
        lost: BTreeMap::from([
            ("kernel", Some(2)),
            ("no-free-bucket", Some(1)),
            ("nic", None),
        ]),
        cut: 3,
        gaps: 1,
        gap_ns: 1_500_000_000,
        ..SourceSnapshot::default()
    }
}

fn hits(rule: Option<&str>, triggers: u64) -> RuleHits {
    RuleHits {
        finished: 0,
        bytes: 0,
        rule: rule.map(str::to_owned),
        counts: HitCounts {
            triggers,
            ..HitCounts::default()
        },
    }
}

fn status() -> RecorderStatus {
    let mut ring = RingConfig::new(16 << 20, 1, 1);
    ring.prefault = false;
    let ring = Ring::new(&ring, None).unwrap().statistics();
    RecorderStatus {
        sources: vec![source("eth0")],
        ring,
        ring_bytes: 16 << 20,
        oldest_stamp_ns: Some(1_800_000_000_500_000_000),
        history: Some(Duration::from_millis(12_345)),
        history_goal: Some((Duration::from_secs(30), Some(65_536))),
        stored: 6,
        analyzed: 4,
        lapped: 1,
        unread: 1,
        hits: HitCounts::default(),
        hits_by_rule: vec![hits(Some("1"), 2)],
        hits_by_hand: HitCounts::default(),
        trigger_ages: AgeHistogram {
            dumps: [0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1],
            sum_ns: 20_002_000_000,
        },
        alerts: AlertCounts::default(),
        dumps: DumpTotals {
            finished: DumpCounts {
                complete: 3,
                incomplete: 1,
                failed: 0,
            },
            missing: BTreeMap::from([("evicted", 1)]),
            packets: 70,
            bytes: 7000,
        },
        dumps_open: 1,
        copied_bytes: 100,
        copied_bytes_max: 1 << 20,
        clock_steps: 1,
        outdated: 0,
        scripts_failed: 0,
        flows: Some(FlowCounts::default()),
        modules: vec![ModuleStatus::default()],
        processing: vec![ProcessingHistogram {
            packets: [8, 0, 2, 0, 0, 0, 0, 0],
            sum_ns: 12_000,
            p9999_ns: Some(5000),
        }],
        threads: vec![ThreadStatus {
            name: "inserter-0".to_owned(),
            cpu: Some(Duration::from_millis(1500)),
            stored: Some(6),
            analysis: Some(AnalysisLedger {
                analyzed: 4,
                missed: 1,
                unread: 1,
                longest: Duration::from_micros(25),
            }),
        }],
        when_full: Mode::Record,
        post: None,
        rules: 1,
        pins: Vec::new(),
        next_event: 5,
    }
}

fn known() -> Process {
    Process {
        start_seconds: Some(1_800_000_000.25),
        cpu_seconds: Some(1.5),
        resident_bytes: Some(1 << 24),
        virtual_bytes: Some(1 << 25),
        threads: Some(7),
    }
}

fn requests() -> Requests {
    let requests = Requests::default();
    requests.add(200, None);
    requests.add(429, Some("limit"));
    requests
}

fn text(status: &RecorderStatus) -> String {
    render(status, &known(), &requests())
}

/// Each series with its value. Asserts that no series and no family occurs twice.
fn series(text: &str) -> BTreeMap<&str, f64> {
    let mut all = BTreeMap::new();
    let mut families = BTreeSet::new();
    for line in text.lines() {
        if let Some(family) = line.strip_prefix("# TYPE ") {
            assert!(families.insert(family), "{line} twice");
        } else if !line.starts_with('#') {
            let (name, value) = line.rsplit_once(' ').unwrap();
            let value = value.parse::<f64>().unwrap_or_else(|_| panic!("{line}"));
            assert!(value >= 0.0 && value.is_finite(), "{line}");
            assert_eq!(all.insert(name, value), None, "{line} twice");
        }
    }
    all
}

#[test]
fn values_are_where_they_belong() {
    let text = text(&status());
    let all = series(&text);
    for (name, value) in [
        ("retroscope_received_packets_total{source=\"eth0\"}", 10.0),
        (
            "retroscope_lost_packets_total{source=\"eth0\",cause=\"kernel\"}",
            2.0,
        ),
        (
            "retroscope_interface_outage_seconds_total{source=\"eth0\"}",
            1.5,
        ),
        ("retroscope_ring_history_seconds", 12.345),
        ("retroscope_ring_history_goal_seconds", 30.0),
        (
            "retroscope_ring_oldest_packet_timestamp_seconds",
            1_800_000_000.5,
        ),
        ("retroscope_ring_size_bytes", 16_777_216.0),
        (
            "retroscope_triggers_total{rule=\"1\",outcome=\"dump\"}",
            2.0,
        ),
        (
            "retroscope_triggers_total{rule=\"manual\",outcome=\"max-dumps\"}",
            0.0,
        ),
        ("retroscope_trigger_age_seconds_bucket{le=\"0.0025\"}", 1.0),
        ("retroscope_trigger_age_seconds_bucket{le=\"10\"}", 1.0),
        ("retroscope_trigger_age_seconds_bucket{le=\"+Inf\"}", 2.0),
        ("retroscope_trigger_age_seconds_sum", 20.002),
        (
            "retroscope_packet_processing_seconds_count{shard=\"0\"}",
            10.0,
        ),
        ("retroscope_dumps_total{verdict=\"incomplete\"}", 1.0),
        ("retroscope_dumps_missing_total{cause=\"evicted\"}", 1.0),
        (
            concat!(
                "retroscope_build_info{version=\"",
                env!("CARGO_PKG_VERSION"),
                "\"}"
            ),
            1.0,
        ),
        ("process_start_time_seconds", 1_800_000_000.25),
    ] {
        assert_eq!(all.get(name), Some(&value), "{name}");
    }
}

/// An unknown value has no series. If the value of one of two sources of the same name is unknown,
/// the sum is unknown.
#[test]
fn what_is_unknown_is_absent() {
    let mut status = status();
    let unknown = SourceSnapshot {
        received: None,
        filtered: None,
        ..source("eth1")
    };
    status.sources = vec![source("eth0"), unknown, source("eth1")];
    status.oldest_stamp_ns = None;
    status.history = None;
    status.history_goal = None;
    status.flows = None;
    let text = render(&status, &Process::default(), &Requests::default());
    let all = series(&text);
    for absent in [
        "retroscope_received_packets_total{source=\"eth1\"}",
        "retroscope_filtered_packets_total{source=\"eth1\"}",
        "retroscope_lost_packets_total{source=\"eth1\",cause=\"nic\"}",
        "retroscope_ring_history_seconds",
        "retroscope_ring_history_goal_seconds",
        "retroscope_history_limit_bytes",
        "retroscope_ring_oldest_packet_timestamp_seconds",
        "retroscope_started_flows_total",
        "process_start_time_seconds",
        "process_threads",
    ] {
        assert_eq!(all.get(absent), None, "{absent}");
    }
    assert!(!text.contains("process_threads"), "nor its HELP");
    assert_eq!(
        all["retroscope_stored_packets_total{source=\"eth1\"}"],
        12.0
    );
    assert_eq!(
        all["retroscope_lost_packets_total{source=\"eth1\",cause=\"kernel\"}"],
        4.0
    );
    assert_eq!(
        all["retroscope_received_packets_total{source=\"eth0\"}"],
        10.0
    );
}

/// Users choose the names of sources and rules. Names are escaped and cannot add other series.
#[test]
fn hostile_names_are_only_names() {
    let names = [
        "\"} 1\nx 2\n",
        "\\",
        "\\n",
        "a{b=\"c\"}",
        "",
        "é\u{202e}\t",
        "# EOF",
        "other",
        "manual",
    ];
    let mut status = status();
    status.sources = names.iter().map(|name| source(name)).collect();
    status.hits_by_rule = names.iter().map(|name| hits(Some(name), 1)).collect();
    status.hits_by_rule.push(hits(None, 5));
    status.hits_by_hand.triggers = 7;
    let text = text(&status);
    let all = series(&text);
    for name in names {
        let escaped = name
            .replace('\\', "\\\\")
            .replace('"', "\\\"")
            .replace('\n', "\\n");
        let found =
            all[format!("retroscope_stored_packets_total{{source=\"{escaped}\"}}").as_str()];
        assert_eq!(found, 6.0, "{name:?}");
        let triggers = all
            [format!("retroscope_triggers_total{{rule=\"{escaped}\",outcome=\"dump\"}}").as_str()];
        let beside = match name {
            "other" => 5.0,
            "manual" => 7.0,
            _ => 0.0,
        };
        assert_eq!(triggers, 1.0 + beside, "{name:?}");
    }
    promtool(&text);
}

#[test]
fn thousands_of_sources_and_modules_have_a_bounded_number_of_series() {
    let mut status = status();
    status.sources = (0..5000)
        .map(|number| source(&number.to_string()))
        .collect();
    status.modules = (0..5000)
        .map(|number| ModuleStatus {
            name: number.to_string(),
            ..ModuleStatus::default()
        })
        .collect();
    let text = text(&status);
    let all = series(&text);
    for family in [
        "retroscope_stored_packets_total{",
        "retroscope_module_faults_total{",
    ] {
        let count = all.keys().filter(|name| name.starts_with(family)).count();
        assert_eq!(count, SERIES_MAX + 1, "{family}");
    }
    let stored = all
        .iter()
        .filter(|(name, _)| name.starts_with("retroscope_stored_packets_total{"));
    assert_eq!(
        stored.map(|(_, value)| value).sum::<f64>(),
        30_000.0,
        "none is forgotten"
    );
}

/// Checks a text by `promtool check metrics`. Skipped without promtool.
fn promtool(text: &str) {
    let child = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => {
            // Written to stderr directly, because the test harness captures `eprintln!`.
            let _ = writeln!(
                io::stderr(),
                "SKIP: no promtool (Debian: prometheus): {error}"
            );
            return;
        }
    };
    child
        .stdin
        .take()
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned()
        + &String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.is_empty(), "{said}");
}

#[test]
fn promtool_has_nothing_to_say() {
    promtool(&text(&status()));
}

/// The table of all families: name, kind, labels, and help text.
fn table(text: &str) -> String {
    let mut rows: Vec<(String, String, BTreeSet<String>, String)> = Vec::new();
    for line in text.lines() {
        if let Some((name, kind)) = line
            .strip_prefix("# TYPE ")
            .and_then(|it| it.split_once(' '))
        {
            rows.push((
                name.to_owned(),
                kind.to_owned(),
                BTreeSet::new(),
                String::new(),
            ));
            continue;
        }
        let (name, kind, labels, meaning) = rows.last_mut().unwrap();
        if let Some(help) = line.strip_prefix("# HELP ") {
            *meaning = help[name.len() + 1..].to_owned();
        } else if let Some((_, told)) = line.split_once('{') {
            let names = told
                .split("=\"")
                .filter_map(|part| part.rsplit(['{', ',', '"']).next());
            let names = names.filter(|name| name.bytes().all(|letter| letter.is_ascii_lowercase()));
            labels.extend(
                names
                    .filter(|name| !name.is_empty() && (*name != "le" || kind != "histogram"))
                    .map(str::to_owned),
            );
        }
    }
    let rows = rows.into_iter().map(|(name, kind, labels, meaning)| {
        let labels: Vec<_> = labels.iter().map(|label| format!("`{label}`")).collect();
        format!(
            "| `{name}` | {kind} | {} | {meaning} |\n",
            labels.join(", ")
        )
    });
    let head = "| metric | type | labels | |\n|---|---|---|---|\n";
    head.to_owned() + &rows.collect::<String>()
}

/// `UPDATE_GOLDEN=1 cargo test -p retroscope-api` writes the page `docs/metrics-reference.md`.
#[test]
fn the_documentation_lists_all_metrics() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics-reference.md");
    let head = "<!-- `UPDATE_GOLDEN=1 cargo test -p retroscope-api` writes this page from the recorder's metrics. -->\n\n\
        # List of metrics\n\n\
        [Metrics](metrics.md) describes how to read these.\n\n";
    let page = head.to_owned() + &table(&text(&status()));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, page).unwrap();
        return;
    }
    assert!(
        fs::read_to_string(&path).unwrap() == page,
        "docs/metrics-reference.md is not as the program is: UPDATE_GOLDEN=1 writes it"
    );
}
