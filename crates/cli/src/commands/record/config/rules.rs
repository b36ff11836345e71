//! `[[rule]]`: a trigger with a name, and what it asks for of its own. Its keys are the options of `retroscope rules add`.

use std::{collections::HashMap, ops::Range, path::PathBuf};

use clap::{Args as _, Command, FromArgMatches};
use retroscope_recorder::{NO_PACKET, TriggerRequest, check_name};
use toml::{Spanned, de::DeValue};

use super::{
    keys::{self, Setting},
    text::{ConfigText, Fault},
};
use crate::{
    commands::window::{LimitsArgs, WindowArgs, rule_request},
    failure::sentence,
};

/// The keys.
#[derive(Debug, clap::Args)]
struct RuleKeys {
    #[arg(long)]
    name: Option<String>,
    #[arg(long)]
    filter: Option<String>,
    #[arg(long)]
    lua: Option<PathBuf>,
    #[arg(long)]
    module: Option<PathBuf>,
    #[command(flatten)]
    window: WindowArgs,
    #[command(flatten)]
    limits: LimitsArgs,
}

/// A rule of a configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConfigRule {
    pub(crate) name: String,
    pub(crate) what: What,
    pub(crate) request: TriggerRequest,
}

/// What triggers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum What {
    /// An expression.
    Filter(String),
    /// A function of this file.
    Lua(PathBuf),
    /// A module over flows.
    Module(PathBuf),
}

/// A rule, and where it stands.
#[derive(Debug)]
pub(super) struct FileRule {
    pub(super) rule: ConfigRule,
    span: Range<usize>,
    settings: Vec<Setting>,
}

impl FileRule {
    #[cfg(test)]
    pub(super) fn keys(&self) -> impl Iterator<Item = &str> {
        self.settings.iter().map(|setting| setting.key.as_str())
    }

    /// Where a key's value stands, or else the rule.
    pub(super) fn span_of(&self, key: &str) -> Range<usize> {
        let setting = self.settings.iter().find(|setting| setting.key == key);
        let value = setting.and_then(|setting| setting.values.first());
        value.map_or(self.span.clone(), |value| value.span.clone())
    }
}

fn command() -> Command {
    let command = Command::new("rule").no_binary_name(true);
    RuleKeys::augment_args(command)
        .disable_help_flag(true)
        .disable_version_flag(true)
}

/// Reads the value of the key `rule`.
pub(super) fn read(
    text: &ConfigText,
    rules: &Spanned<DeValue<'_>>,
    faults: &mut Vec<Fault>,
) -> Vec<FileRule> {
    let DeValue::Array(list) = rules.get_ref() else {
        let why = "rules stand in [[rule]], one each, with two brackets";
        faults.push(Fault::at(rules.span(), why));
        return Vec::new();
    };
    let mut command = command();
    let mut read: Vec<FileRule> = Vec::new();
    let mut names: HashMap<String, usize> = HashMap::new();
    for rule in list.iter() {
        let DeValue::Table(table) = rule.get_ref() else {
            faults.push(Fault::at(rule.span(), "a rule is a table: write [[rule]]"));
            continue;
        };
        let before = faults.len();
        let settings = keys::read(&mut command, keys::entries(table), faults);
        if faults.len() > before {
            continue;
        }
        match of_settings(&mut command, settings, rule.span()) {
            Err(wrong) => faults.push(wrong),
            Ok(rule) => {
                if let Some(other) = names.insert(rule.rule.name.clone(), read.len()) {
                    let (line, _) = text.place(read[other].span_of("name").start);
                    let name = &rule.rule.name;
                    let why = format!("name: there is a rule '{name}' in line {line} already");
                    faults.push(Fault::at(rule.span_of("name"), why));
                }
                read.push(rule);
            }
        }
    }
    read
}

fn of_settings(
    command: &mut Command,
    settings: Vec<Setting>,
    span: Range<usize>,
) -> Result<FileRule, Fault> {
    let of_rule = |why| Fault::at(span.clone(), why);
    let values = settings.iter().flat_map(|setting| &setting.values);
    let matches = command.try_get_matches_from_mut(values.map(|value| &value.argument));
    let keys = matches.and_then(|matches| RuleKeys::from_arg_matches(&matches));
    let keys = keys.map_err(|error| of_rule(sentence(&error.to_string())))?;
    let request = rule_request(keys.window, keys.limits);
    let Some(name) = keys.name else {
        return Err(of_rule("a rule needs a name: name = \"…\"".to_owned()));
    };
    let what = match (keys.filter, keys.lua, keys.module) {
        (Some(filter), None, None) => What::Filter(filter),
        (None, Some(path), None) => What::Lua(path),
        (None, None, Some(path)) => What::Module(path),
        (None, None, None) if request.alert_dump.is_some() => What::Filter(NO_PACKET.to_owned()),
        _ => {
            return Err(of_rule(format!(
                "rule '{name}' needs one of the keys filter, lua and module, or alert-dump"
            )));
        }
    };
    let checked = check_name(&name);
    let rule = FileRule {
        rule: ConfigRule {
            name,
            what,
            request,
        },
        span,
        settings,
    };
    match checked {
        Ok(()) => Ok(rule),
        Err(error) => Err(Fault::at(rule.span_of("name"), format!("name: {error}"))),
    }
}

/// The keys that there are, for the example's test.
#[cfg(test)]
pub(super) fn key_names() -> Vec<String> {
    let command = command();
    let names = command.get_arguments().filter_map(|arg| arg.get_long());
    names.map(str::to_owned).collect()
}
