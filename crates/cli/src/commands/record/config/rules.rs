//! `[[rule]]`: a trigger with a name, and its own dumps and limits. Its keys are the options of
//! `retroscope rules add`.

use std::{
    collections::{BTreeMap, HashMap},
    iter,
    ops::Range,
    path::PathBuf,
};

use retroscope_recorder::{NO_PACKET, TriggerRequest, check_name};

use super::{
    settings::RuleSettings,
    text::{ConfigFault, ConfigText},
};

/// A rule of a configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConfigRule {
    pub(crate) name: String,
    pub(crate) what: What,
    pub(crate) request: TriggerRequest,
}

/// The kind of a trigger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum What {
    /// A filter expression.
    Filter(String),
    /// A Lua function in this file.
    Lua(PathBuf),
    /// A module that inspects flows, in this file.
    Module(PathBuf),
}

/// A rule with its places in the file.
#[derive(Debug)]
pub(super) struct FileRule {
    pub(super) rule: ConfigRule,
    /// Places of the rule (`""`) and of its keys. Empty for a rule of the command line.
    spans: BTreeMap<String, Range<usize>>,
}

impl FileRule {
    /// The place of a key's value, or of the rule.
    pub(super) fn span_of(&self, key: &str) -> Option<Range<usize>> {
        place(&self.spans, key)
    }
}

fn place(spans: &BTreeMap<String, Range<usize>>, key: &str) -> Option<Range<usize>> {
    spans.get(key).or_else(|| spans.get("")).cloned()
}

/// Reads and checks all rules. `spans` are the places of the file's rules, which come first.
pub(super) fn read(
    text: &ConfigText,
    rules: &[RuleSettings],
    spans: Vec<BTreeMap<String, Range<usize>>>,
    faults: &mut Vec<ConfigFault>,
) -> Vec<FileRule> {
    let mut read: Vec<FileRule> = Vec::new();
    let mut names: HashMap<&str, usize> = HashMap::new();
    let spans = spans.into_iter().chain(iter::repeat_with(BTreeMap::new));
    for (settings, spans) in rules.iter().zip(spans) {
        let wrong = |key, message| ConfigFault {
            span: place(&spans, key),
            message,
        };
        if let Err(error) = check_name(&settings.name)
            && !settings.name.is_empty()
        {
            faults.push(wrong("name", format!("name: {error}")));
        }
        let what = match what(settings) {
            Ok(what) => what,
            Err(why) => {
                faults.push(wrong("", why));
                continue;
            }
        };
        if let Some(other) = names.insert(&settings.name, read.len()) {
            let line = read[other]
                .span_of("name")
                .map(|span| text.place(span.start).0);
            let line = line
                .map(|line| format!(" in line {line}"))
                .unwrap_or_default();
            let why = format!("name: there is a rule '{}'{line} already", settings.name);
            faults.push(wrong("name", why));
        }
        let rule = ConfigRule {
            name: settings.name.clone(),
            what,
            request: request(settings),
        };
        read.push(FileRule { rule, spans });
    }
    read
}

/// The trigger of a rule.
fn what(rule: &RuleSettings) -> Result<What, String> {
    if rule.name.is_empty() {
        return Err("a rule needs a name: name = \"…\"".to_owned());
    }
    match (&rule.filter, &rule.lua, &rule.module) {
        (Some(filter), None, None) => Ok(What::Filter(filter.clone())),
        (None, Some(path), None) => Ok(What::Lua(path.clone())),
        (None, None, Some(path)) => Ok(What::Module(path.clone())),
        (None, None, None) if rule.alert_dump.is_some() => Ok(What::Filter(NO_PACKET.to_owned())),
        _ => Err(format!(
            "rule '{}' needs one of the keys filter, lua and module, or alert-dump",
            rule.name
        )),
    }
}

/// The recorder's request for a rule.
fn request(rule: &RuleSettings) -> TriggerRequest {
    TriggerRequest {
        past: rule.past.map(|it| *it),
        future: rule.future.map(|it| *it),
        packets_max: rule.packets.map(|it| it.0.0),
        bytes_max: rule.bytes.map(|it| it.0.0),
        dump: rule.dump.clone(),
        into: rule.into.clone().map(|it| it.0),
        asked_by: rule.asked_by.clone(),
        hold_off: rule.hold_off.map(|it| *it),
        max_dumps: rule.max_dumps.map(|it| it.0.0),
        dumps_per_minute: rule.dumps_per_minute.map(|it| it.0.0),
        bytes_per_hour: rule.bytes_per_hour.map(|it| it.0.0),
        keep: rule.keep.map(|it| *it),
        alert_dump: rule.alert_dump.clone(),
        ..TriggerRequest::default()
    }
}
