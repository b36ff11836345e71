//! `[[rule]]`: a trigger with a name, and its own dumps and limits. `retroscope rules add` has the
//! same keys as arguments, except `lua` and `module`.

use std::{
    collections::{BTreeMap, HashMap},
    iter,
    ops::Range,
    path::PathBuf,
};

use retroscope_recorder::{NO_PACKET, TriggerRequest, check_name};

use super::{
    settings::RuleSettings,
    text::{ConfigFault, ConfigText, Place},
};

/// A rule of the configuration, from the file or from `--set`.
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

/// A rule with the places and options of its keys.
#[derive(Debug)]
pub(super) struct FileRule {
    pub(super) rule: ConfigRule,
    places: RulePlaces,
}

/// Where a rule comes from.
#[derive(Debug)]
struct RulePlaces {
    /// Places of the rule (`""`) and of its keys. Empty for a rule of the command line.
    spans: BTreeMap<String, Range<usize>>,
    /// The options that set keys of the rule.
    options: BTreeMap<String, String>,
}

impl FileRule {
    /// The place of a key's value, or of the rule if the key is not given.
    pub(super) fn place_of(&self, key: &str) -> Place {
        self.places.of(key)
    }
}

impl RulePlaces {
    fn of(&self, key: &str) -> Place {
        let span = self.spans.get(key).or_else(|| self.spans.get(""));
        let any = || self.options.values().next();
        let any = || any().filter(|_| span.is_none() || key.is_empty());
        match self.options.get(key).or_else(any) {
            Some(option) => Place::Option(option.clone()),
            None => span.cloned().into(),
        }
    }
}

/// The places of a rule's keys in the file, by key; `""` is the rule itself.
type KeySpans = BTreeMap<String, Range<usize>>;
/// The options that set a rule's keys, by key.
type KeyOptions = BTreeMap<String, String>;

/// Reads and checks all rules. `spans` has an entry for each rule of the file; these rules come
/// first in `rules`. The keys of `options` are names of rules, or `""` for the option that sets all
/// rules.
pub(super) fn read(
    text: &ConfigText,
    rules: &[RuleSettings],
    (spans, mut options): (Vec<KeySpans>, BTreeMap<String, KeyOptions>),
    faults: &mut Vec<ConfigFault>,
) -> Vec<FileRule> {
    let mut read: Vec<FileRule> = Vec::new();
    let mut names: HashMap<&str, usize> = HashMap::new();
    let spans = spans.into_iter().chain(iter::repeat_with(BTreeMap::new));
    let of_all = options.remove("").unwrap_or_default();
    for (settings, spans) in rules.iter().zip(spans) {
        let mut options = options.remove(&settings.name).unwrap_or_default();
        options.extend(of_all.clone());
        let places = RulePlaces { spans, options };
        let wrong = |key, message| places.of(key).fault(message);
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
            let line = match read[other].place_of("name") {
                Place::File(span) => format!(" in line {}", text.place(span.start).0),
                _ => String::new(),
            };
            let why = format!("name: there is a rule '{}'{line} already", settings.name);
            faults.push(wrong("name", why));
        }
        let rule = ConfigRule {
            name: settings.name.clone(),
            what,
            request: request(settings),
        };
        read.push(FileRule { rule, places });
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
        single: rule.single,
        ..TriggerRequest::default()
    }
}
