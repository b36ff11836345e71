//! `retroscope rules`: trigger rules of a running recorder.

use std::{process::ExitCode, time::Duration};

use retroscope_api::client::{ApiAnswer, ApiRequest, Client, ClientError, Method, target};
use serde_json::{Value, json};

use super::{
    columns::columns,
    remote::{RemoteArgs, ask, failure, printable},
    stretch::{StretchArgs, WithText, length},
    window::{LimitsArgs, WindowArgs, fields},
};
use crate::{
    failure::{Failure, put, put_json},
    units::{counted, show_size},
};

/// List or change the trigger rules of a running recorder (--api).
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit codes: 0 done, 1 refused, no such rule, or no recorder there, 2 wrong arguments or expression."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    change: Option<RulesCommand>,

    /// Print JSON objects of the API
    #[arg(long, global = true)]
    json: bool,

    #[command(flatten)]
    remote: RemoteArgs,
}

#[derive(Debug, clap::Subcommand)]
enum RulesCommand {
    /// List the rules (default)
    List,
    /// Add a rule. The recorder's options apply unless the arguments replace them
    Add(RuleArgs),
    /// Replace the expression, dump expression, window and limits of a rule between two packets.
    /// Running dumps continue unchanged
    Change(RuleArgs),
    /// Delete a rule. Running dumps continue
    Remove {
        /// Name of the rule
        name: String,
    },
    /// Enable a rule, also one that its only dump has disabled (--single)
    Enable {
        /// Name of the rule
        name: String,

        /// Disable the rule after its next dump
        #[arg(long)]
        single: bool,
    },
    /// Disable a rule: its matches start no dumps
    Disable {
        /// Name of the rule
        name: String,
    },
    /// Report how often a rule would have fired on recorded packets, and on which packets. Changes
    /// nothing
    Test(TestArgs),
}

#[derive(Debug, clap::Args)]
struct TestArgs {
    #[command(flatten)]
    stretch: StretchArgs,

    /// List the first N matching packets, at most 1000
    #[arg(long, value_name = "N", default_value_t = 10)]
    list: u64,

    /// Test this pcap-filter(7) expression
    #[arg(value_name = "FILTER", required = true)]
    expression: Vec<String>,
}

#[derive(Debug, clap::Args)]
struct RuleArgs {
    /// Name of the rule
    name: String,

    #[command(flatten)]
    window: WindowArgs,

    #[command(flatten)]
    limits: LimitsArgs,

    /// Disable the rule after its first dump. `rules enable` enables it again
    #[arg(long)]
    single: bool,

    /// Also act on packets of the last TIME that the ring still has, oldest first. Waits for this
    /// scan, at most 60 s
    #[arg(long, value_name = "TIME", value_parser = length)]
    scan_past: Option<WithText<Duration>>,

    /// Trigger on packets that match this pcap-filter(7) expression. Optional with --alert-dump
    #[arg(value_name = "FILTER", required_unless_present = "alert_dump")]
    expression: Vec<String>,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    let client = args.remote.client()?;
    let path = |name: &str| target(&["v1", "rules", name], &[]);
    match args.change.unwrap_or(RulesCommand::List) {
        RulesCommand::List => {
            let rules = ask(&client, ApiRequest::get("/v1/rules"))?;
            if args.json {
                return put_json(&rules);
            }
            put(&table(&rules))
        }
        RulesCommand::Add(rule) => {
            let request = put_request(&rule, path(&rule.name)).header("if-none-match", "*");
            let (answer, what) = match client.send(request) {
                Err(ClientError::Refused {
                    is_as_requested: true,
                    ..
                }) => (
                    ask(&client, ApiRequest::get(path(&rule.name)))?,
                    "was there",
                ),
                answer => (
                    answer.and_then(ApiAnswer::json).map_err(failure)?,
                    "is added",
                ),
            };
            told_scan(&rule, &answer, args.json, what)
        }
        RulesCommand::Change(rule) => {
            let path = path(&rule.name);
            let before = client.send(ApiRequest::get(&path)).map_err(failure)?;
            let tag = before.header("etag").unwrap_or_default().to_owned();
            let before = before.json().map_err(failure)?;
            let request = put_request(&rule, path).header("if-match", tag);
            let answer = client.send(request).map_err(failure)?;
            let after = answer.json().map_err(failure)?;
            let changed = without_hits(&before) != without_hits(&after);
            let what = if changed { "is changed" } else { "was so" };
            told_scan(&rule, &after, args.json, what)
        }
        RulesCommand::Remove { name } => {
            ask(&client, ApiRequest::new(Method::DELETE, path(&name)))?;
            told(&name, &json!({ "name": name }), args.json, "is removed")
        }
        RulesCommand::Enable { name, single } => {
            let mut patch = json!({ "enabled": true });
            if single {
                patch["single"] = true.into();
            }
            enable(&client, &name, &path(&name), patch, args.json)
        }
        RulesCommand::Disable { name } => {
            let patch = json!({ "enabled": false });
            enable(&client, &name, &path(&name), patch, args.json)
        }
        RulesCommand::Test(rule) => test(&client, &rule, args.json),
    }
}

fn test(client: &Client, rule: &TestArgs, json: bool) -> Result<ExitCode, Failure> {
    let mut body = json!({ "filter": rule.expression.join(" "), "list": rule.list });
    for (name, text) in rule.stretch.parameters()? {
        body[name] = text.into();
    }
    let request = ApiRequest::new(Method::POST, "/v1/rules/test")
        .json(body)
        .patient();
    let tested = ask(client, request)?;
    if json {
        return put_json(&tested);
    }
    put(&tried(&tested))
}

fn tried(tested: &Value) -> String {
    let text = |value: &Value| value.as_str().map(printable).unwrap_or_default();
    let scan = &tested["scan"];
    let mut rows = Vec::new();
    for packet in tested["packets"].as_array().into_iter().flatten() {
        let id = text(&packet["interface"]);
        rows.push([text(&packet["time"]), id, text(&packet["summary"])]);
    }
    let listed = rows.len() as u64;
    let hits = tested["hits"].as_u64().unwrap_or(0);
    let when = if hits == 0 {
        String::new()
    } else {
        let [first, last] = ["first", "last"].map(|name| text(&tested[name]));
        let most = &tested["most_in_a_second"];
        format!(", from {first} to {last}, {most} in a second at most")
    };
    let of = counted(scan["inspected"].as_u64().unwrap_or(0), "packet");
    let more = match hits.saturating_sub(listed) {
        0 => String::new(),
        more if listed == 0 => format!("({more} not listed)\n"),
        more => format!("(and {more} more)\n"),
    };
    let reasons = text(&scan["reasons"]);
    let table = columns(&rows, &[]);
    format!(
        "{} in {of}{when}: {reasons}\n{table}{more}",
        counted(hits, "hit")
    )
}

fn enable(
    client: &Client,
    name: &str,
    path: &str,
    patch: Value,
    json: bool,
) -> Result<ExitCode, Failure> {
    let rule = ask(client, ApiRequest::new(Method::PATCH, path).json(patch))?;
    let what = match rule["enabled"] == true {
        true => "is enabled",
        false => "is disabled",
    };
    told(name, &rule, json, what)
}

fn put_request(rule: &RuleArgs, path: String) -> ApiRequest {
    let request = ApiRequest::new(Method::PUT, path).json(body(rule));
    match rule.scan_past {
        Some(_) => request.patient(),
        None => request,
    }
}

fn body(rule: &RuleArgs) -> Value {
    let mut body = fields(&rule.window);
    body.extend(fields(&rule.limits));
    if rule.single {
        body.insert("single".to_owned(), true.into());
    }
    if !rule.expression.is_empty() {
        body.insert("filter".to_owned(), rule.expression.join(" ").into());
    }
    if let Some(past) = &rule.scan_past {
        body.insert("scan_past".to_owned(), json!(past));
    }
    body.into()
}

/// The settings of a rule.
fn without_hits(rule: &Value) -> Value {
    let mut rule = rule.clone();
    if let Some(fields) = rule.as_object_mut() {
        fields.remove("hits");
        fields.remove("last_hit");
        fields.remove("scan");
    }
    rule
}

fn told(name: &str, rule: &Value, json: bool, what: &str) -> Result<ExitCode, Failure> {
    if json {
        return put_json(rule);
    }
    put(&format!("rule '{}' {what}\n", printable(name)))
}

/// As [`told`], with the result of the requested scan.
fn told_scan(
    requested: &RuleArgs,
    rule: &Value,
    json: bool,
    what: &str,
) -> Result<ExitCode, Failure> {
    let none = || "no scan: the rule has tried the packets since it was added".to_owned();
    let scan = requested.scan_past.as_ref();
    let what = match scan.map(|_| scanned(&rule["scan"]).unwrap_or_else(none)) {
        Some(scan) => format!("{what}\n{scan}"),
        None => what.to_owned(),
    };
    told(&requested.name, rule, json, &what)
}

/// Describes the scan of a rule's past. `None`: there was no scan.
fn scanned(scan: &Value) -> Option<String> {
    let text = |value: &Value| value.as_str().map(printable);
    let past = text(&scan["past"])?;
    let count = |name: &str, what| counted(scan[name].as_u64().unwrap_or(0), what);
    let found = format!("{}, {}", count("hits", "hit"), count("dumps", "dump"));
    if scan["running"] == true {
        return Some(format!("scanning the last {past}: {found}"));
    }
    let inspected = counted(scan["scan"]["inspected"].as_u64().unwrap_or(0), "packet");
    let reasons = text(&scan["scan"]["reasons"]).map(|reasons| format!(": {reasons}"));
    let stopped = text(&scan["stopped"]).map(|why| format!("; ended early: {why}"));
    let [reasons, stopped] = [reasons, stopped].map(Option::unwrap_or_default);
    Some(format!(
        "scanned the last {past}: {found} in {inspected}{reasons}{stopped}"
    ))
}

fn table(rules: &Value) -> String {
    let mut rows = vec![["name", "hits", "filter", "overrides"].map(str::to_owned)];
    rows.extend(rules["rules"].as_array().into_iter().flatten().map(row));
    columns(&rows, &[1])
}

fn row(rule: &Value) -> [String; 4] {
    let text = |name: &str| rule[name].as_str().map(printable).unwrap_or_default();
    let hits = match rule["hits"].as_u64() {
        Some(hits) => hits.to_string(),
        None => "?".to_owned(),
    };
    let time = |name: &str| rule[name].as_str().map(printable);
    let number = |name: &str| rule[name].as_u64().map(|n| n.to_string());
    let quoted = |name: &str| {
        rule[name]
            .as_str()
            .map(|text| format!("'{}'", printable(text)))
    };
    let own = [
        ("past", time("past")),
        ("future", time("future")),
        ("packets", number("packets")),
        ("bytes", rule["bytes"].as_u64().map(show_size)),
        ("dump", quoted("dump")),
        ("alert-dump", quoted("alert_dump")),
        ("into", quoted("into")),
        ("hold-off", time("hold_off")),
        ("max-dumps", number("max_dumps")),
        ("dumps-per-minute", number("dumps_per_minute")),
        (
            "bytes-per-hour",
            rule["bytes_per_hour"].as_u64().map(show_size),
        ),
        ("by", quoted("asked_by")),
    ];
    let own = own
        .into_iter()
        .filter_map(|(name, value)| Some(format!("{name} {}", value?)));
    let mut own: Vec<String> = own.collect();
    if rule["single"] == true {
        own.insert(0, "single".to_owned());
    }
    own.extend(scanned(&rule["scan"]));
    if rule["enabled"] == false {
        own.insert(0, "disabled".to_owned());
    }
    [text("name"), hits, text("filter"), own.join(", ")]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_told_in_columns() {
        let rules = json!({ "rules": [
            { "name": "1", "filter": "udp", "enabled": true, "hits": 12345, "past": null, "dump": null },
            { "name": "scan\u{1b}s", "filter": "tcp", "enabled": false, "single": true, "hits": null, "past": "2500ms", "dump": "host $srcIP", "bytes": 1 << 20 },
        ] });
        let expected = "name     hits  filter  overrides\n\
                        1       12345  udp\n\
                        scan?s      ?  tcp     disabled, single, past 2500ms, bytes 1 MiB, dump 'host $srcIP'\n";
        assert_eq!(table(&rules), expected);
    }
}
