//! Options and keys of earlier versions, with their replacements.

use clap::{
    Error,
    error::{ContextKind, ContextValue, ErrorKind},
};

use super::record::{is_of_flows, key_of};

/// Former keys and options. A table in CHANGELOG.md has these entries too. FlowScope's names, such
/// as `device`, and `tokens` are still valid as options.
pub(crate) const KEYS: &[(&str, &str)] = &[
    ("alerts-budget", "alerts.budget"),
    ("alerts-delay", "alerts.delay"),
    ("alerts-max-dumps", "alerts.max-dumps"),
    ("api-host", "api.host"),
    ("device", "interface"),
    ("dump-future", "future"),
    ("dump-past", "past"),
    ("dumper-code", "dump-lua"),
    ("dumper-expr", "dump"),
    ("hold", "reorder-window"),
    ("metrics", "api.metrics"),
    ("no-sha256", "sha256 = false"),
    ("path", "write"),
    ("size", "ring"),
    ("tls-cert", "api.tls-cert"),
    ("tls-client-ca", "api.tls-client-ca"),
    ("tls-key", "api.tls-key"),
    ("tokens", "api.tokens"),
    ("trigger-code", "trigger-lua"),
    ("trigger-dump", "rule.NAME.dump"),
    ("trigger-expr", "trigger"),
    ("trigger-into", "rule.NAME.into"),
    ("trigger-keep", "rule.NAME.keep"),
];

/// Former options without a replacement, and the remedy.
pub(crate) const GONE: &[(&str, &str)] = &[("eve-keep", ROTATION), ("eve-rotate", ROTATION)];
const ROTATION: &str = "logrotate(8) renames the file and sends SIGHUP";

/// Former options of `retroscope filter`.
const COMMANDS: &[(&str, &str)] = &[
    ("bench", "retroscope dev filter-bench"),
    ("explain", "retroscope dev filter-explain"),
];

/// The remedy for a former key. `None`: `name` is no former key.
pub(crate) fn of_key(name: &str) -> Option<String> {
    let gone = of(GONE, name).map(str::to_owned);
    gone.or_else(|| Some(format!("write {}", of(KEYS, name)?)))
}

fn of(table: &[(&str, &'static str)], name: &str) -> Option<&'static str> {
    let (_, new) = table.iter().find(|(old, _)| *old == name)?;
    Some(new)
}

/// The replacement of the unknown option in a clap error.
pub(crate) fn instead(error: &Error) -> Option<String> {
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let option = option.split('=').next()?;
    let name = option.strip_prefix("--")?;
    let command = std::env::args_os().nth(1)?.into_string().ok()?;
    match command.as_str() {
        _ if error.kind() != ErrorKind::UnknownArgument => None,
        "record" | "flows" => of_option(option, name, command == "record"),
        "filter" => {
            let new = of(COMMANDS, name)?;
            Some(format!("{option} is a command now: {new}"))
        }
        _ => None,
    }
}

fn of_option(option: &str, name: &str, of_record: bool) -> Option<String> {
    if let Some(instead) = of(GONE, name) {
        return Some(format!("there is no {option} any more: {instead}"));
    }
    let is_key = key_of(&[name.to_owned()]).is_ok();
    let key = of(KEYS, name).or(is_key.then_some(name))?;
    let set = match key.split_once(" = ") {
        Some((key, value)) => format!("{key}={value}"),
        None => format!("{key}=VALUE"),
    };
    if of_record {
        return Some(format!(
            "{option} is a key now: --set {set}, or {key} in the file of --config"
        ));
    }
    let path: Vec<String> = key.split('.').map(str::to_owned).collect();
    is_of_flows(&path).then(|| format!("{option} is a key now: --set {set}"))
}
