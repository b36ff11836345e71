//! The dashboard and the alert rules use only metrics and labels that a live recorder exports or
//! Prometheus adds.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use retroscope_api::metrics::{Process, Requests, render};
use retroscope_capture::Source;
use retroscope_flow::TrackerConfig;
use retroscope_generate::GeneratorSource;
use retroscope_recorder::{Config, Recorder, Scripts, SystemClock};
use retroscope_script::Script;
use serde_json::Value;

/// Time limit of the wait in [`live`].
const PATIENCE: Duration = Duration::from_secs(60);

fn contrib(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../contrib")
        .join(file)
}

/// The labels of each metric, with their values.
type Exported = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

fn exported(text: &str) -> Exported {
    let mut all = Exported::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap();
        let labels = all.entry(name.to_owned()).or_default();
        let told = line
            .split_once('{')
            .map_or("", |(_, told)| told.rsplit_once('}').unwrap().0);
        for label in told.split("\",").filter(|label| !label.is_empty()) {
            let (name, value) = label.split_once("=\"").unwrap();
            let value = value.trim_end_matches('"').to_owned();
            labels.entry(name.to_owned()).or_default().insert(value);
        }
    }
    all
}

/// The metrics of a recorder of generated traffic with a ring that overflows, a trigger, dumps,
/// flows, a history goal and a module.
fn live() -> String {
    let dir = tempfile::tempdir().unwrap();
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/modules/noop.lua");
    let module = Script::new("noop.lua", fs::read_to_string(module).unwrap(), false);
    let config = Config {
        ring_bytes: 16 << 20,
        triggers: vec!["udp port 60000".to_owned()],
        scripts: Scripts {
            modules: vec![module],
            ..Scripts::default()
        },
        flows: Some(TrackerConfig::default()),
        history_goal: Some(Duration::from_secs(3600)),
        directory: Some(dir.path().to_owned()),
        ..Config::default()
    };
    let sources = || {
        let source = GeneratorSource::parse("generate:rate=50kpps,size=1000,trigger-after=10ms")?;
        Ok(vec![Box::new(source) as Box<dyn Source>])
    };
    let clock = Arc::new(SystemClock);
    let recorder = Recorder::start(&config, &sources, &[], clock, None, &mut || Ok(())).unwrap();
    let begin = Instant::now();
    let text = loop {
        let status = recorder.status();
        let is_all = status
            .history_goal
            .is_some_and(|(_, limit)| limit.is_some())
            && status.dumps.finished.complete > 0
            && status.ring.evicted_packets > 0;
        if is_all {
            let requests = Requests::default();
            requests.add(429, Some("limit"));
            break render(&status, &Process::read(), &requests);
        }
        assert!(begin.elapsed() < PATIENCE, "{status:?}");
        // An overwritten bucket makes no event, so the test also checks the status every 20 ms.
        let _ = recorder.event(Duration::from_millis(20));
    };
    recorder.handle().stop();
    let summary = recorder.join();
    assert!(!summary.panicked && summary.errors.is_empty());
    text
}

/// A label matcher: label, operator, value.
type Matcher = (String, String, String);

/// The metrics in an expression with their matchers, and the labels of its groupings.
#[derive(Debug, Default)]
struct Named {
    metrics: Vec<(String, Vec<Matcher>)>,
    groups: BTreeSet<String>,
}

const GROUPINGS: [&str; 6] = [
    "by",
    "without",
    "on",
    "ignoring",
    "group_left",
    "group_right",
];
const OPERATORS: [&str; 5] = ["and", "or", "unless", "bool", "offset"];

/// Whether the word before `rest` is a function or an aggregation: `rate(…)`, `sum by (…) (…)`.
fn is_called(rest: &str) -> bool {
    let next = rest
        .split(|letter: char| !letter.is_ascii_alphanumeric())
        .next();
    rest.starts_with('(') || matches!(next, Some("by" | "without"))
}

/// Parses PromQL as far as needed to distinguish metric names from other words.
fn named(expression: &str) -> Named {
    let mut named = Named::default();
    let mut rest = expression;
    while let Some(letter) = rest.chars().next() {
        let is_word = |letter: char| letter.is_ascii_alphanumeric() || "_:".contains(letter);
        if letter == '[' {
            rest = rest.split_once(']').expect("a range").1;
        } else if letter == '"' {
            rest = rest[1..].split_once('"').expect("a string").1;
        } else if letter.is_ascii_digit() {
            rest = rest.trim_start_matches(|letter| is_word(letter) || letter == '.');
        } else if is_word(letter) {
            let end = rest.find(|letter| !is_word(letter)).unwrap_or(rest.len());
            let word;
            (word, rest) = rest.split_at(end);
            rest = rest.trim_start();
            if GROUPINGS.contains(&word) {
                let (labels, behind) = rest[1..].split_once(')').expect("labels");
                let labels = labels.split(',').map(|label| label.trim().to_owned());
                named
                    .groups
                    .extend(labels.filter(|label| !label.is_empty()));
                rest = behind;
            } else if !is_called(rest) && !OPERATORS.contains(&word) {
                let mut matchers = Vec::new();
                while let Some(more) = rest.strip_prefix(['{', ',']) {
                    let at = more.find(['=', '!']).expect("a matcher");
                    let (label, more) = more.split_at(at);
                    let (operator, more) = more.split_once('"').expect("a value");
                    let (value, more) = more.split_once('"').expect("its end");
                    matchers.push((
                        label.trim().to_owned(),
                        operator.to_owned(),
                        value.to_owned(),
                    ));
                    rest = more.trim_start_matches([' ', '}']);
                    if more.trim_start().starts_with('}') {
                        break;
                    }
                }
                named.metrics.push((word.to_owned(), matchers));
            }
        } else {
            rest = &rest[letter.len_utf8()..];
        }
    }
    named
}

const ADDED: [&str; 2] = ["job", "instance"];

fn check(expression: &str, exported: &Exported) {
    let named = named(expression);
    assert!(!named.metrics.is_empty(), "{expression}");
    let mut labels: BTreeSet<&str> = ADDED.into_iter().collect();
    for (metric, matchers) in &named.metrics {
        // Prometheus itself makes the metric `up`.
        if metric == "up" {
            continue;
        }
        let has = exported.get(metric);
        let has = has.unwrap_or_else(|| panic!("{metric} is not exported: {expression}"));
        labels.extend(has.keys().map(String::as_str));
        for (label, operator, value) in matchers {
            if ADDED.contains(&label.as_str()) {
                continue;
            }
            let values = has.get(label);
            let values = values.unwrap_or_else(|| panic!("{metric} has no {label}: {expression}"));
            // A value that a matcher excludes need not exist.
            let asked = value.split('|').filter(|_| !operator.starts_with('!'));
            for value in asked {
                assert!(
                    values.contains(value),
                    "{metric} has no {label}={value}: {expression}"
                );
            }
        }
    }
    for group in &named.groups {
        assert!(labels.contains(group.as_str()), "no {group}: {expression}");
    }
}

fn rules(text: &str) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    let mut block = None;
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len();
        if let Some(expression) = line.trim_start().strip_prefix("expr: ") {
            let is_block = expression == "|";
            all.push(if is_block {
                String::new()
            } else {
                expression.to_owned()
            });
            block = is_block.then_some(indent);
        } else if block.is_some_and(|outer| indent > outer) {
            all.last_mut().unwrap().push_str(line);
        } else {
            block = None;
        }
    }
    all
}

/// Adds the texts of all fields with the name `key`, at any depth, to `found`.
fn under<'v>(value: &'v Value, key: &str, found: &mut Vec<&'v str>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| match value {
            Value::String(text) if name == key => found.push(text),
            value => under(value, key, found),
        }),
        Value::Array(values) => values.iter().for_each(|value| under(value, key, found)),
        _ => {}
    }
}

fn dashboard() -> Value {
    serde_json::from_str(&fs::read_to_string(contrib("grafana/retroscope.json")).unwrap()).unwrap()
}

/// The expressions of the dashboard, with values for Grafana's variables.
fn dashboard_expressions(dashboard: &Value) -> Vec<String> {
    let mut found = Vec::new();
    under(dashboard, "expr", &mut found);
    let filled = found.iter().map(|text| {
        let text = text
            .replace("$__rate_interval", "5m")
            .replace("$__range", "6h");
        text.replace("$instance", ".*").replace("$job", ".*")
    });
    filled.collect()
}

#[test]
fn every_expression_names_what_a_live_recorder_exports() {
    let exported = exported(&live());
    let rules = rules(&fs::read_to_string(contrib("prometheus/rules.yml")).unwrap());
    assert!(rules.len() >= 15, "{rules:#?}");
    let dashboard = dashboard();
    let expressions = dashboard_expressions(&dashboard);
    assert!(expressions.len() >= 50, "{expressions:#?}");
    for expression in rules.iter().chain(&expressions) {
        check(expression, &exported);
    }
    let mut definitions = Vec::new();
    under(&dashboard, "definition", &mut definitions);
    assert_eq!(definitions.len(), 2);
    for definition in definitions {
        let asked = definition.strip_prefix("label_values(").unwrap();
        check(asked.rsplit_once(',').unwrap().0, &exported);
    }
}

#[test]
fn wrong_expressions_are_found() {
    let exported = exported("a_total{source=\"x\",cause=\"y\"} 1\nb 2\n");
    let right = "sum by (instance, cause) (rate(a_total{job=~\"$job\", cause!=\"z\", source=~\"x\"}[5m] offset 1m)) / on (cause) b > bool 0.5e3 and up{job=\"retroscope\"} == 0";
    check(right, &exported);
    let named = named(right);
    let metrics: Vec<_> = named
        .metrics
        .iter()
        .map(|(name, matchers)| (name.as_str(), matchers.len()))
        .collect();
    assert_eq!(metrics, [("a_total", 3), ("b", 0), ("up", 1)]);
    for wrong in [
        "a",
        "rate(c_total[5m])",
        "a_total{sauce=\"x\"}",
        "a_total{source=\"y\"}",
        "a_total{source=~\"x|y\"}",
        "b > 0 and c",
        "sum by (shard) (a_total)",
        "1 + 2",
    ] {
        let found = std::panic::catch_unwind(|| check(wrong, &exported));
        assert!(found.is_err(), "{wrong}");
    }
}

/// Panels do not overlap, and panels except rows use the data source that the user chooses.
#[test]
fn the_dashboard_is_one_that_grafana_takes() {
    let dashboard = dashboard();
    assert!(dashboard["schemaVersion"].as_u64().unwrap() >= 36);
    assert!(dashboard["id"].is_null(), "Grafana gives it");
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    assert_eq!(
        (&variables[0]["type"], &variables[0]["name"]),
        (&"datasource".into(), &"datasource".into())
    );
    let panels = dashboard["panels"].as_array().unwrap();
    let number = |value: &Value, key: &str| value[key].as_u64().unwrap();
    let (mut ids, mut taken) = (BTreeSet::new(), BTreeSet::new());
    for panel in panels {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(number(panel, "id")), "{title}");
        let place = &panel["gridPos"];
        let (x, y) = (number(place, "x"), number(place, "y"));
        for column in x..x + number(place, "w") {
            assert!(column < 24, "{title} is too wide");
            for line in y..y + number(place, "h") {
                assert!(taken.insert((column, line)), "{title} lies over another");
            }
        }
        if panel["type"] == "row" {
            continue;
        }
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        let targets = panel["targets"].as_array().unwrap();
        let letters: BTreeSet<_> = targets
            .iter()
            .map(|it| it["refId"].as_str().unwrap())
            .collect();
        assert!(
            letters.len() == targets.len() && !targets.is_empty(),
            "{title}"
        );
        assert!(
            targets
                .iter()
                .all(|it| it["datasource"]["uid"] == "${datasource}"),
            "{title}"
        );
    }
}

fn promtool(args: &[&str], path: &Path) {
    match Command::new("promtool").args(args).arg(path).output() {
        Err(error) => {
            let _ = writeln!(
                io::stderr(),
                "SKIP: no promtool (Debian: prometheus): {error}"
            );
        }
        Ok(output) => {
            let said =
                String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
            assert!(
                output.status.success(),
                "{args:?} {}: {said}",
                path.display()
            );
        }
    }
}

#[test]
fn the_alerts_fire_and_do_not() {
    promtool(&["check", "rules"], &contrib("prometheus/rules.yml"));
    promtool(&["test", "rules"], &contrib("prometheus/tests.yml"));
    let alerts = fs::read_to_string(contrib("prometheus/rules.yml")).unwrap();
    let alerts = alerts
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "));
    let tests = fs::read_to_string(contrib("prometheus/tests.yml")).unwrap();
    for alert in alerts {
        let tried = tests
            .split("alertname: ")
            .filter(|test| test.lines().next() == Some(alert));
        let fires: BTreeSet<bool> = tried
            .map(|test| {
                let expected = test.lines().nth(1).unwrap().trim();
                match expected {
                    "exp_alerts: []" => false,
                    "exp_alerts:" => true,
                    other => panic!("{alert}: {other}"),
                }
            })
            .collect();
        assert_eq!(fires.len(), 2, "{alert} is to fire once, and once not to");
    }
}

#[test]
fn promtool_reads_the_expressions_of_the_dashboard() {
    let mut rules = "groups:\n  - name: dashboard\n    rules:\n".to_owned();
    for (number, expression) in dashboard_expressions(&dashboard()).iter().enumerate() {
        let expression = serde_json::to_string(expression).unwrap();
        rules += &format!("      - record: panel:{number}\n        expr: {expression}\n");
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("dashboard.yml");
    fs::write(&path, rules).unwrap();
    promtool(&["check", "rules"], &path);
}
