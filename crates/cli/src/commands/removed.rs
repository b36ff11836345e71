//! Options and keys of earlier versions, with their replacements. CHANGELOG.md has the same table.

use clap::{
    Error,
    error::{ContextKind, ContextValue, ErrorKind},
};

use super::record::key_of;

/// Former options of `record` and `flows`, which were keys too, and the keys that replace them.
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
    ("no-sha256", "sha256"),
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

/// Other former options, and the commands that replace them.
const COMMANDS: &[(&str, &str)] = &[
    ("bench", "retroscope dev filter-bench"),
    ("explain", "retroscope dev filter-explain"),
];

/// The key that replaces a former key.
pub(crate) fn of_key(name: &str) -> Option<&'static str> {
    let (_, new) = KEYS.iter().find(|(old, _)| *old == name)?;
    Some(new)
}

/// The replacement of the unknown option in a clap error.
pub(crate) fn instead(error: &Error) -> Option<String> {
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let option = option.split('=').next()?;
    let name = option.strip_prefix("--")?;
    let command = std::env::args().nth(1)?;
    match command.as_str() {
        _ if error.kind() != ErrorKind::UnknownArgument => None,
        "record" | "flows" => {
            let is_key = key_of(&[name.to_owned()]).is_ok();
            let key = of_key(name).or(is_key.then_some(name))?;
            Some(format!(
                "{option} is a key now: --set {key}=VALUE, or {key} in the file of --config"
            ))
        }
        "filter" => {
            let (_, new) = COMMANDS.iter().find(|(old, _)| *old == name)?;
            Some(format!("{option} is a command now: {new}"))
        }
        _ => None,
    }
}
