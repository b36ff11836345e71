//! The configuration of `record`: a file, flags and `--set`.
//!
//! - `settings`: all keys, as structs that serde reads; `values` has their types, `key` their help,
//! - `flags`: the keys that have a flag, and `--set`,
//! - `layers`: assignments of flags and `--set` on top of the file,
//! - `rules`: the rules of `[[rule]]`,
//! - `text`: the text of the file, and errors with their place in the text,
//! - `check`: checks by `--check-config`, before the start opens a source, and at a reload,
//! - `print`: `--print-config`,
//! - `reload`: reads the file again during a recording.
//!
//! The file overrides defaults. Flags and `--set` override the file, in their order.

mod check;
mod flags;
mod key;
mod layers;
mod print;
mod reload;
mod rules;
mod settings;
mod text;
mod values;

use std::{
    collections::BTreeMap,
    ops::Range,
    path::{Path, PathBuf},
};

use retroscope_capture::af_packet::interfaces;
use serde::{Deserialize, de::DeserializeOwned};
use toml::{
    Deserializer, Spanned, Value,
    de::{DeTable, DeValue, ValueDeserializer},
};

pub(crate) use self::{
    check::{Depth, Expression},
    flags::{FlowsFlags, RecordFlags},
    key::{Key, Setting},
    layers::{Assignment, is_of_flows, key_of},
    print::schema,
    reload::Reloader,
    rules::{ConfigRule, What},
    settings::{
        Alerts, Api, Direction, Engine, FormatName, Fragments, RingFull, RuleSettings, Settings,
        Spread, StampOrigin, Vlans,
    },
    values::keep,
};
use self::{
    key::Shape,
    layers::known,
    rules::FileRule,
    text::{ConfigFault, ConfigText},
};
use super::has_engine;
use crate::{
    failure::{Failure, say},
    units::counted,
};

/// Maximum number of errors that are reported together.
const FAULTS_MAX: usize = 100;

/// Pairs of keys that exclude each other, in the file and on the command line.
const EXCLUSIVE: [[&str; 2]; 4] = [
    ["interface", "read"],
    ["filter", "filter-file"],
    ["ring-file", "ring-memfd"],
    ["dump", "dump-lua"],
];

/// Keys that do nothing without `post`.
const OF_POST: [&str; 3] = ["post-limit", "post-at-once", "post-user"];

/// The source of a value.
#[derive(Debug, Clone, PartialEq)]
enum ValueOrigin {
    File {
        key: Range<usize>,
        /// Place of the value, or of each value of a list.
        values: Vec<Range<usize>>,
    },
    /// An option of the command line.
    Option(String),
}

/// A configuration: a file, if there is one, and the command line on top.
#[derive(Debug)]
pub(crate) struct Loaded {
    path: Option<PathBuf>,
    flags: Vec<Assignment>,
    pub(crate) settings: Settings,
    rules: Vec<FileRule>,
    text: ConfigText,
    origins: BTreeMap<String, ValueOrigin>,
    /// The values that the file or the command line gives, in TOML notation, by key.
    written: BTreeMap<String, String>,
}

/// Errors of a file and a command line. An error of the file contains its place, if known.
#[derive(Debug)]
pub(crate) struct RefusedConfig {
    faults: Vec<String>,
    has_file: bool,
}

impl RefusedConfig {
    /// Returns the failure of the command. If there is a file, prints the errors first; otherwise
    /// the failure contains the errors.
    pub(crate) fn failure(self) -> Failure {
        if !self.has_file {
            return Failure::usage(self.text());
        }
        self.faults.iter().for_each(|fault| say(fault));
        let errors = counted(self.faults.len() as u64, "error");
        Failure::usage(format!("--config: {errors}, nothing was started"))
    }

    /// The first [`FAULTS_MAX`] errors, one or more lines each, and the number of further errors.
    pub(crate) fn text(&self) -> String {
        self.faults.join("\n")
    }
}

impl Loaded {
    /// Reads the file, if one is given, and applies the command line.
    ///
    /// # Errors
    /// The errors of the first step that fails: reading the file, parsing its TOML, reading its
    /// keys and the command line, checking its rules.
    pub(crate) fn new(path: Option<&Path>, flags: &[Assignment]) -> Result<Self, RefusedConfig> {
        let text = match path {
            Some(path) => ConfigText::read(path).map_err(|why| RefusedConfig {
                faults: vec![why],
                has_file: true,
            })?,
            None => ConfigText::default(),
        };
        let mut layers = Layers::default();
        let read = layers.read(&text, flags);
        let (Some((settings, written)), true) = (read, layers.faults.is_empty()) else {
            return Err(refused(&text, layers.faults));
        };
        let places = (layers.rules, layers.rule_options);
        let rules = rules::read(&text, &settings.rule, places, &mut layers.faults);
        if !layers.faults.is_empty() {
            return Err(refused(&text, layers.faults));
        }
        Ok(Self {
            path: path.map(Path::to_owned),
            flags: flags.to_vec(),
            settings,
            rules,
            text,
            origins: layers.origins,
            written,
        })
    }

    /// The rules of `[[rule]]`.
    pub(crate) fn rules(&self) -> Vec<ConfigRule> {
        self.rules.iter().map(|rule| rule.rule.clone()).collect()
    }

    /// Refuses keys about `post` if there is no `post`.
    pub(crate) fn refuse_keys_of_post(&self) -> Result<(), Failure> {
        let mut keys = OF_POST.iter();
        match keys.find(|key| self.origins.contains_key(**key)) {
            Some(key) if self.settings.post.is_none() => Err(Failure::usage(format!(
                "{key} is about `post`: give that key too"
            ))),
            _ => Ok(()),
        }
    }

    /// Whether there is a file.
    pub(crate) fn has_file(&self) -> bool {
        self.path.is_some()
    }

    /// Runs the checks of `depth`. No check opens a source.
    ///
    /// # Errors
    /// The errors that these checks find.
    pub(crate) fn check(&self, depth: Depth) -> Result<(), RefusedConfig> {
        let faults = check::check(self, depth);
        if faults.is_empty() {
            return Ok(());
        }
        Err(refused(&self.text, faults))
    }

    /// Runs `--check-config`.
    ///
    /// # Errors
    /// The errors that the checks of [`Depth::Whole`] find.
    pub(crate) fn check_only(&self) -> Result<(), RefusedConfig> {
        self.check(Depth::Whole)?;
        if !self.settings.quiet {
            say(&format!("{}: no errors", self.text.name()));
            self.missing_interfaces().iter().for_each(|note| say(note));
        }
        Ok(())
    }

    /// A message for each interface that this machine lacks, except DPDK devices. The file may be
    /// for another machine.
    fn missing_interfaces(&self) -> Vec<String> {
        let of = &self.settings;
        let names = of.interface.iter().filter(|name| {
            has_engine(name) && *name != "any" && of.engine_of(name) != Engine::Dpdk
        });
        let here = interfaces().unwrap_or_default();
        let here: Vec<&str> = here.iter().map(|it| it.name.as_str()).collect();
        let missing = names.filter(|name| !here.contains(&name.as_str()));
        let note = |name| {
            let here = here.join(", ");
            format!("no interface {name} on this machine; interfaces: {here}")
        };
        missing.map(note).collect()
    }

    /// Places of a key's values in the file. Empty if the file lacks the key, or if the command
    /// line overrides the file.
    fn spans_of(&self, key: &str) -> &[Range<usize>] {
        match self.origins.get(key) {
            Some(ValueOrigin::File { values, .. }) => values,
            _ => &[],
        }
    }
}

/// The layers while a file and a command line are read.
#[derive(Debug, Default)]
struct Layers {
    origins: BTreeMap<String, ValueOrigin>,
    /// The places of each rule and its keys.
    rules: Vec<BTreeMap<String, Range<usize>>>,
    /// The options that set keys of rules, by the names of the rules. The name `""` has the option
    /// that replaced all rules.
    rule_options: BTreeMap<String, BTreeMap<String, String>>,
    faults: Vec<ConfigFault>,
}

impl Layers {
    /// Returns the settings and the given values in TOML notation. `None`: there are errors.
    fn read(
        &mut self,
        text: &ConfigText,
        flags: &[Assignment],
    ) -> Option<(Settings, BTreeMap<String, String>)> {
        let (table, errors) = DeTable::parse_recoverable(&text.text);
        let faults = errors.iter().map(|error| of_toml(error, ""));
        self.faults.extend(faults);
        if !self.faults.is_empty() {
            return None;
        }
        let mut table = table.into_inner();
        self.file(Settings::KEYS, &table, "");
        for [one, other] in EXCLUSIVE {
            if let [
                Some(ValueOrigin::File { .. }),
                Some(ValueOrigin::File { key, .. }),
            ] = [one, other].map(|key| self.origins.get(key))
                && is_given(&table, one)
                && is_given(&table, other)
            {
                let why = format!("'{one}' and '{other}' exclude each other: leave one out");
                self.faults.push(ConfigFault::at(key.clone(), why));
            }
        }
        for flag in flags {
            self.put(&mut table, flag);
        }
        if !self.faults.is_empty() {
            return None;
        }
        let mut given = BTreeMap::new();
        for (name, value) in &table {
            match value.get_ref() {
                DeValue::Table(inner) => given.extend(inner.iter().map(|(key, value)| {
                    let key = format!("{}.{}", name.get_ref(), key.get_ref());
                    (key, written(value))
                })),
                _ => {
                    given.insert(name.get_ref().to_string(), written(value));
                }
            }
        }
        match Settings::deserialize(Deserializer::from(Spanned::new(0..0, table))) {
            Ok(settings) => Some((settings, given)),
            Err(error) => {
                self.faults.push(of_toml(&error, ""));
                None
            }
        }
    }

    /// Checks each key of a table on its own, so that all errors are found.
    fn file(&mut self, keys: &'static [Key], table: &DeTable<'_>, prefix: &str) {
        for (name, value) in table {
            let key = match known(keys, name.get_ref(), prefix) {
                Ok(key) => key,
                Err(why) => {
                    self.faults.push(ConfigFault::at(name.span(), why));
                    continue;
                }
            };
            let path = match prefix {
                "" => name.get_ref().to_string(),
                table => format!("{table}.{}", name.get_ref()),
            };
            match (key.shape, value.get_ref()) {
                (Shape::Table, _) if path == "rule" => self.rules(key.keys, value),
                (Shape::Table, DeValue::Table(inner)) => {
                    self.file(key.keys, inner, name.get_ref());
                }
                (Shape::Table, _) => {
                    let why = format!("{path} is a table: write [{path}]");
                    self.faults.push(ConfigFault::at(value.span(), why));
                }
                _ => {
                    let fault = match prefix {
                        "api" => entry::<Api>(name, value),
                        "alerts" => entry::<Alerts>(name, value),
                        _ => entry::<Settings>(name, value),
                    };
                    self.faults.extend(fault);
                    let values = match value.get_ref() {
                        DeValue::Array(list) => list.iter().map(Spanned::span).collect(),
                        _ => vec![value.span()],
                    };
                    let key = name.span();
                    self.origins.insert(path, ValueOrigin::File { key, values });
                }
            }
        }
    }

    fn rules(&mut self, keys: &'static [Key], value: &Spanned<DeValue<'_>>) {
        let DeValue::Array(list) = value.get_ref() else {
            let why = "write each rule as [[rule]], with two brackets";
            self.faults.push(ConfigFault::at(value.span(), why));
            return;
        };
        for rule in list.iter() {
            let DeValue::Table(table) = rule.get_ref() else {
                let why = "a rule is a table: write [[rule]]";
                self.faults.push(ConfigFault::at(rule.span(), why));
                continue;
            };
            let mut spans = BTreeMap::from([(String::new(), rule.span())]);
            for (name, value) in table {
                let fault = match known(keys, name.get_ref(), "rule") {
                    Ok(_) => entry::<RuleSettings>(name, value),
                    Err(why) => Some(ConfigFault::at(name.span(), why)),
                };
                self.faults.extend(fault);
                spans.insert(name.get_ref().to_string(), value.span());
            }
            self.rules.push(spans);
        }
        let (key, values) = (value.span(), Vec::new());
        self.origins
            .insert("rule".to_owned(), ValueOrigin::File { key, values });
    }

    /// Applies an assignment of the command line.
    fn put<'a>(&mut self, table: &mut DeTable<'a>, flag: &'a Assignment) {
        let wrong = |why: &str| ConfigFault::nowhere(format!("{}: {why}", flag.option));
        let key = flag.key();
        let is_list = key_of(&flag.path).is_ok_and(|key| key.shape == Shape::List);
        let has_option = matches!(self.origins.get(&key), Some(ValueOrigin::Option(_)));
        let adds = flag.adds && is_list && has_option;
        if let Err(why) = flag.put(table, adds) {
            self.faults.push(wrong(&why));
        }
        let is_on = is_given(table, &key);
        let partners = EXCLUSIVE.iter().filter(|pair| pair.contains(&key.as_str()));
        let partners = partners.flatten().filter(|other| **other != key && is_on);
        for other in partners {
            match self.origins.get(*other) {
                Some(ValueOrigin::Option(option)) if is_given(table, other) => {
                    let why = format!("{} excludes {option}: leave one out", flag.option);
                    self.faults.push(ConfigFault::nowhere(why));
                }
                Some(ValueOrigin::File { .. }) => {
                    self.origins.remove(*other);
                    table.remove(*other);
                }
                _ => {}
            }
        }
        // Rules of the file keep their places, unless the whole list of rules is replaced.
        if flag.path.len() == 1 && key == "rule" {
            self.rules.clear();
            let options = BTreeMap::from([(String::new(), flag.option.clone())]);
            self.rule_options = BTreeMap::from([(String::new(), options)]);
        }
        if let [_, rule, name] = flag.path.as_slice() {
            let options = self.rule_options.entry(rule.clone()).or_default();
            options.insert(name.clone(), flag.option.clone());
        }
        self.origins
            .insert(key, ValueOrigin::Option(flag.option.clone()));
    }
}

/// Whether a key has a value that excludes other keys: neither `false` nor an empty list.
fn is_given(table: &DeTable<'_>, key: &str) -> bool {
    match table.get(key).map(Spanned::get_ref) {
        Some(DeValue::Array(list)) => !list.is_empty(),
        Some(value) => !matches!(value, DeValue::Boolean(false)),
        None => false,
    }
}

/// A value as TOML. A text with line breaks takes several lines.
fn written(value: &Spanned<DeValue<'_>>) -> String {
    let value = Value::deserialize(ValueDeserializer::from(value.clone()));
    value.map_or_else(|error| error.to_string(), |value| value.to_string())
}

/// The error of a key of a table, if any.
fn entry<T: DeserializeOwned>(
    name: &Spanned<toml::de::DeString<'_>>,
    value: &Spanned<DeValue<'_>>,
) -> Option<ConfigFault> {
    let table: DeTable<'_> = [(name.clone(), value.clone())].into_iter().collect();
    let read = T::deserialize(Deserializer::from(Spanned::new(0..0, table)));
    let mut fault = of_toml(&read.err()?, name.get_ref());
    fault.span = fault
        .span
        .filter(|span| !span.is_empty())
        .or(Some(value.span()));
    Some(fault)
}

/// An error of `toml`, about a key.
fn of_toml(error: &toml::de::Error, key: &str) -> ConfigFault {
    let colon = if key.is_empty() { "" } else { ": " };
    ConfigFault {
        span: error.span(),
        message: format!("{key}{colon}{}", error.message()),
    }
}

/// Formats errors: first the errors without a place, then the others in the order of the file.
fn refused(text: &ConfigText, mut faults: Vec<ConfigFault>) -> RefusedConfig {
    faults.sort_by_key(|fault| fault.span.as_ref().map(|span| span.start));
    faults.dedup();
    let more = faults.len().saturating_sub(FAULTS_MAX);
    faults.truncate(FAULTS_MAX);
    if more > 0 {
        let more = counted(more as u64, "error");
        faults.push(ConfigFault::nowhere(format!("{more} more")));
    }
    RefusedConfig {
        faults: faults.iter().map(|fault| text.render(fault)).collect(),
        has_file: !text.name().is_empty(),
    }
}

/// Keys that a message mentions: its first word, and options.
fn keys_in(sentence: &str) -> impl Iterator<Item = String> {
    let first = sentence.split([':', ' ']).next();
    let words = sentence.split(|c: char| !(c.is_ascii_alphanumeric() || "-.".contains(c)));
    let options = words.filter_map(|word| match word {
        "-i" => Some("interface"),
        "-r" => Some("read"),
        "-w" => Some("write"),
        "-Z" => Some("relinquish-privileges"),
        "--alerts" => Some("alerts.from"),
        "--api" => Some("api.listen"),
        word => word.strip_prefix("--"),
    });
    first.into_iter().chain(options).map(str::to_owned)
}

#[cfg(test)]
mod tests;
