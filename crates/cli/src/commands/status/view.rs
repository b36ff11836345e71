//! Formats the state of a recorder as lines of text.

use std::{collections::BTreeMap, time::Instant};

use serde_json::Value;

use crate::{
    commands::columns::columns,
    terminal::{LineStyle, ScreenLine},
    units::show_size,
};

/// The answers of a recorder at one time.
#[derive(Debug)]
pub(super) struct Sample {
    /// Answer of `GET /v1/status`.
    pub(super) status: Value,
    /// Answer of `GET /v1/rules`, or the reason why there is none.
    pub(super) rules: Result<Value, String>,
    pub(super) taken: Instant,
}

/// Formats at most `height` lines, none wider than `width`. Rates are since `before`.
pub(super) fn view(
    title: &str,
    now: &Sample,
    before: Option<&Sample>,
    trouble: Option<&str>,
    (width, height): (usize, usize),
) -> Vec<ScreenLine> {
    let mut told = StatusView {
        lines: Vec::new(),
        width,
        now: &now.status,
        before: before.map(|before| {
            let seconds = now.taken.duration_since(before.taken).as_secs_f64();
            (&before.status, seconds.max(1e-3))
        }),
    };
    match trouble {
        Some(why) => {
            let why = why.strip_prefix(&format!("{title}: ")).unwrap_or(why);
            let text = format!("{title}: no answer, this is what it told before: {why}");
            told.line(LineStyle::Alarm, text);
        }
        None => told.line(LineStyle::Heading, format!("{title} (q quits)")),
    }
    told.history();
    told.rates();
    told.losses();
    told.dumps();
    told.alerts();
    told.sources();
    match &now.rules {
        Ok(rules) => told.rules(rules, before.and_then(|it| it.rules.as_ref().ok())),
        Err(why) => told.line(LineStyle::Plain, format!("rules     {why}")),
    }
    told.pins();
    told.threads();
    if trouble.is_none() && height == usize::MAX {
        // Plain text has no keys, so omit the hint about `q`.
        told.lines[0] = ScreenLine::new(title, LineStyle::Heading, width);
    }
    told.lines.truncate(height);
    told.lines
}

struct StatusView<'a> {
    lines: Vec<ScreenLine>,
    width: usize,
    now: &'a Value,
    /// The previous status, and the seconds since then.
    before: Option<(&'a Value, f64)>,
}

impl StatusView<'_> {
    fn line(&mut self, look: LineStyle, text: String) {
        self.lines.push(ScreenLine::new(&text, look, self.width));
    }

    /// Growth of a counter per second. `None`: the previous or the present value is missing.
    fn rate(&self, of: impl Fn(&Value) -> Option<u64>) -> Option<f64> {
        let (before, seconds) = self.before?;
        Some(of(self.now)?.saturating_sub(of(before)?) as f64 / seconds)
    }

    fn history(&mut self) {
        let status = self.now;
        let seconds = |name: &str| status[name].as_f64();
        let (have, goal) = (seconds("history_seconds"), seconds("history_goal_seconds"));
        let mut text = match have {
            Some(have) => format!("history   {have:.1} s"),
            None => "history   unknown: packets of a file".to_owned(),
        };
        if let Some(goal) = goal {
            text += &format!(" of {goal} s");
            text += &match status["history_limit_bytes"].as_u64() {
                Some(limit) => format!(", flows keep {} in each direction", show_size(limit)),
                None => ", flows keep everything".to_owned(),
            };
        }
        let ring = &status["ring"];
        let count = |name: &str| ring[name].as_u64().unwrap_or(0);
        let wanted = match count("reserved_buckets") {
            0 => String::new(),
            wanted => format!(", {wanted} wanted by dumps and pins"),
        };
        let (closed, open, free) = (
            count("closed_buckets"),
            count("open_buckets"),
            count("free_buckets"),
        );
        self.line(LineStyle::Plain, text);
        self.line(
            LineStyle::Plain,
            format!("ring      buckets: {closed} closed{wanted}, {open} open, {free} free; when full: {}",
                status["when_full"].as_str().unwrap_or("unknown")),
        );
    }

    fn rates(&mut self) {
        let ring = |name: &'static str| move |status: &Value| status["ring"][name].as_u64();
        let stored = ring("stored")(self.now).unwrap_or(0);
        let now = match (self.rate(ring("stored")), self.rate(ring("stored_bytes"))) {
            (Some(packets), Some(bytes)) => {
                format!("{packets:.0} pps, {:.3} Mbit/s; ", bytes * 8e-6)
            }
            _ => String::new(),
        };
        self.line(
            LineStyle::Plain,
            format!("stored    {now}{stored} packets since the start"),
        );
    }

    fn losses(&mut self) {
        let mut by_cause = BTreeMap::<&str, u64>::new();
        let mut unknown = Vec::new();
        for source in self.now["sources"].as_array().into_iter().flatten() {
            for (cause, lost) in source["lost"].as_object().into_iter().flatten() {
                match lost.as_u64() {
                    Some(lost) => *by_cause.entry(cause).or_default() += lost,
                    None if !unknown.contains(&cause.as_str()) => unknown.push(cause),
                    None => {}
                }
            }
        }
        let total: u64 = by_cause.values().sum();
        let causes: Vec<String> = by_cause
            .iter()
            .filter(|(_, lost)| **lost > 0)
            .map(|(cause, lost)| format!("{cause} {lost}"))
            .collect();
        let mut text = format!("lost      {total}");
        if let Some(rate) = self
            .rate(|status| Some(lost_known(status)))
            .filter(|rate| *rate > 0.0)
        {
            text += &format!(", now {rate:.0} in a second");
        }
        if !causes.is_empty() {
            text += &format!(": {}", causes.join(", "));
        }
        if !unknown.is_empty() {
            text += &format!("; unknown: {}", unknown.join(", "));
        }
        let of = |name: &str| self.now["analyzers"][name].as_u64().unwrap_or(0);
        let (unread, missed) = (of("unread"), of("missed"));
        let look = self.now["inspection"]["mean_ns"].as_f64();
        let look = look.map_or(String::new(), |ns| format!("; {ns:.0} ns a packet"));
        self.line(
            if total > 0 {
                LineStyle::Alarm
            } else {
                LineStyle::Plain
            },
            text,
        );
        self.line(
            if missed > 0 {
                LineStyle::Alarm
            } else {
                LineStyle::Plain
            },
            format!(
                "analyzers {unread} packets pending; {missed} not inspected for triggers{look}"
            ),
        );
    }

    /// Adds a table of the threads.
    fn threads(&mut self) {
        let heading = [
            "thread", "cpu", "stored", "analyzed", "pending", "missed", "longest",
        ];
        let mut rows = vec![heading.map(str::to_owned)];
        let of = |status: &Value, at: usize, field: &str| status["threads"][at][field].as_f64();
        let threads = self.now["threads"].as_array();
        for (at, thread) in threads.into_iter().flatten().enumerate() {
            let name = thread["name"].as_str().unwrap_or_default();
            let rate = |field: &str| {
                let (before, seconds) = self.before?;
                let is_same = before["threads"][at]["name"] == name;
                let before = of(before, at, field).filter(|_| is_same)?;
                Some((of(self.now, at, field)? - before) / seconds)
            };
            let pps = |field| rate(field).map(|pps| format!("{pps:.0} pps"));
            let count = |field: &str| thread[field].as_u64().map(|count| count.to_string());
            let longest = thread["longest_seconds"].as_f64();
            let cells = [
                Some(name.to_owned()),
                rate("cpu_seconds").map(|cores| format!("{:.1} %", cores * 100.0)),
                pps("stored"),
                pps("analyzed"),
                count("unread"),
                count("missed"),
                longest.map(|seconds| format!("{:.1} ms", seconds * 1e3)),
            ];
            rows.push(cells.map(|cell| cell.unwrap_or_else(|| "-".to_owned())));
        }
        if rows.len() > 1 {
            self.table(&rows, &[1, 2, 3, 4, 5, 6]);
        }
    }

    fn dumps(&mut self) {
        let status = self.now;
        let of = |name: &str| status[name].as_u64().unwrap_or(0);
        let (open, triggers, suppressed) = (of("dumps_open"), of("triggers"), of("suppressed"));
        let reasons = status["suppressed_by"].as_object().into_iter().flatten();
        let reasons = reasons.filter_map(|(reason, hits)| {
            let hits = hits.as_u64().filter(|hits| *hits > 0)?;
            Some(format!("{reason} {hits}"))
        });
        let reasons: Vec<String> = reasons.collect();
        let reasons = if reasons.is_empty() {
            String::new()
        } else {
            format!(": {}", reasons.join(", "))
        };
        self.line(
            LineStyle::Plain,
            format!("dumps     {open} open; {triggers} triggers, {suppressed} suppressed{reasons}"),
        );
        if let failed @ 1.. = of("scripts_failed") {
            self.line(
                LineStyle::Alarm,
                format!("scripts   {failed} failed, and do nothing any more"),
            );
        }
        if let late @ 1.. = of("dumps_with_late_packets") {
            let text = format!("late      packets may have come too late for {late} dumps");
            self.line(LineStyle::Alarm, text);
        }
        if let steps @ 1.. = of("clock_steps") {
            self.line(LineStyle::Plain, format!("clock     stepped {steps} times"));
        }
    }

    fn alerts(&mut self) {
        let alerts = &self.now["alerts"];
        let lines = |kind: &str| alerts["lines"][kind].as_u64().unwrap_or(0);
        if alerts["expected"] != true {
            return;
        }
        let of = |name: &str| alerts[name].as_u64().unwrap_or(0);
        let (received, unmatched, torn) = (lines("alerts"), of("unmatched"), lines("torn"));
        let found = of("acted").saturating_sub(unmatched);
        let rate = self.rate(|status| status["alerts"]["lines"]["alerts"].as_u64());
        let rate = rate.filter(|rate| *rate > 0.0);
        let rate = rate.map_or(String::new(), |rate| format!(", now {rate:.0} in a second"));
        let mut text = format!(
            "alerts    {received} received{rate}, {found} found, {unmatched} unmatched; torn lines {torn}"
        );
        let mut look = LineStyle::Plain;
        if let lost @ 1.. = lines("lost") {
            text += &format!(", lost {lost}");
            look = LineStyle::Alarm;
        }
        self.line(look, text);
        let age = |name: &str| alerts[name].as_f64().map(seconds);
        if let (Some(p50), Some(p99)) = (age("age_p50_seconds"), age("age_p99_seconds")) {
            let part = (100 * of("found_start")).checked_div(of("with_start"));
            let part = part.map(|part| format!("; {part} % still found their first packet"));
            let part = part.unwrap_or_default();
            let text = format!("          age p50 {p50}, p99 {p99}{part}");
            self.line(LineStyle::Plain, text);
        }
    }

    fn sources(&mut self) {
        let empty = Vec::new();
        let sources = self.now["sources"].as_array().unwrap_or(&empty);
        let mut rows = vec![["source", "pps", "received", "stored", "lost"].map(str::to_owned)];
        for (at, source) in sources.iter().enumerate() {
            let stored = move |status: &Value| status["sources"][at]["stored"].as_u64();
            let pps = self.rate(stored).map(|rate| format!("{rate:.0}"));
            let known = |value: &Value| value.as_u64().map_or("?".to_owned(), |n| n.to_string());
            rows.push([
                source["name"].as_str().unwrap_or_default().to_owned(),
                pps.unwrap_or_else(|| "-".to_owned()),
                known(&source["received"]),
                known(&source["stored"]),
                lost_of(source).to_string(),
            ]);
        }
        self.table(&rows, &[1, 2, 3, 4]);
    }

    fn rules(&mut self, rules: &Value, before: Option<&Value>) {
        let heading = [
            "rule",
            "hits",
            "pps",
            "dumps",
            "written",
            "suppressed",
            "filter",
        ];
        let mut rows = vec![heading.map(str::to_owned)];
        let costs = self.now["rule_costs"].as_array().into_iter().flatten();
        let costs: BTreeMap<&str, &Value> = costs
            .filter_map(|cost| Some((cost["rule"].as_str()?, cost)))
            .collect();
        let list = |rules: &Value| rules["rules"].as_array().cloned().unwrap_or_default();
        let old: BTreeMap<String, u64> = before
            .map(list)
            .unwrap_or_default()
            .iter()
            .filter_map(|rule| Some((rule["name"].as_str()?.to_owned(), rule["hits"].as_u64()?)))
            .collect();
        for rule in list(rules) {
            let name = rule["name"].as_str().unwrap_or_default().to_owned();
            let hits = rule["hits"].as_u64();
            let seconds = self.before.map(|(_, seconds)| seconds);
            let rate = hits.zip(old.get(&name)).zip(seconds);
            let rate = rate.map(|((now, old), seconds)| now.saturating_sub(*old) as f64 / seconds);
            let text = rule["filter"].as_str().unwrap_or_default();
            let off = if rule["enabled"] == false {
                " (disabled)"
            } else {
                ""
            };
            let cost = |what: &str| costs.get(&*name).and_then(|cost| cost[what].as_u64());
            let number = |n: Option<u64>| n.map_or("?".to_owned(), |n| n.to_string());
            rows.push([
                name.clone(),
                number(hits),
                rate.map_or("-".to_owned(), |rate| format!("{rate:.0}")),
                number(cost("dumps")),
                cost("bytes").map_or("?".to_owned(), show_size),
                number(cost("suppressed")),
                format!("{text}{off}"),
            ]);
        }
        self.table(&rows, &[1, 2, 3, 4, 5]);
    }

    fn pins(&mut self) {
        let empty = Vec::new();
        let pins = self.now["pins"].as_array().unwrap_or(&empty);
        let mut rows = vec![["pin", "from", "to", ""].map(str::to_owned)];
        rows.extend(pins.iter().map(|pin| {
            let text = |name: &str| pin[name].as_str().unwrap_or("the oldest packet").to_owned();
            let revoked = if pin["revoked"] == true {
                "revoked"
            } else {
                ""
            };
            [text("name"), text("from"), text("to"), revoked.to_owned()]
        }));
        if rows.len() > 1 {
            self.table(&rows, &[]);
        }
    }

    /// The first row is the heading. `right` lists the columns that are aligned to the right.
    fn table<const N: usize>(&mut self, rows: &[[String; N]], right: &[usize]) {
        for (at, text) in columns(rows, right).lines().enumerate() {
            let look = if at == 0 {
                LineStyle::Heading
            } else {
                LineStyle::Plain
            };
            self.line(look, text.to_owned());
        }
    }
}

fn lost_of(source: &Value) -> u64 {
    let lost = source["lost"].as_object().into_iter().flatten();
    lost.filter_map(|(_, lost)| lost.as_u64()).sum()
}

fn lost_known(status: &Value) -> u64 {
    let sources = status["sources"].as_array().into_iter().flatten();
    sources.map(lost_of).sum()
}

/// Formats seconds: `41 s`, `1.3 s`, `25 ms`.
fn seconds(seconds: f64) -> String {
    match seconds {
        ..0.001 => "under 1 ms".to_owned(),
        0.001..1.0 => format!("{:.0} ms", seconds * 1e3),
        1.0..10.0 => format!("{seconds:.1} s"),
        _ => format!("{seconds:.0} s"),
    }
}

#[cfg(test)]
mod tests;
