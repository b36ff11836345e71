//! What a configuration file says, as arguments. The keys are the long names of the program's options: what an option takes, clap says.

use std::ops::Range;

use clap::{
    Arg, ArgAction, Command,
    error::{ContextKind, ContextValue, ErrorKind},
};
use toml::{
    Spanned,
    de::{DeString, DeTable, DeValue},
};

use super::text::Fault;
use crate::failure;

/// A key of the file and what it says.
#[derive(Debug)]
pub(super) struct Setting {
    /// The option, by its long name.
    pub(super) key: String,
    pub(super) key_span: Range<usize>,
    pub(super) values: Vec<Value>,
}

/// One value of a key.
#[derive(Debug)]
pub(super) struct Value {
    /// As it would stand in a command line.
    pub(super) argument: String,
    pub(super) span: Range<usize>,
}

/// The option of a name, other names that people may see included.
pub(super) fn option_of<'c>(command: &'c Command, name: &str) -> Option<&'c Arg> {
    command.get_arguments().find(|arg| {
        let mut aliases = arg.get_all_aliases().unwrap_or_default().into_iter();
        arg.get_long() == Some(name) || aliases.any(|alias| alias == name)
    })
}

/// A key of a table.
#[derive(Debug, Clone)]
pub(super) struct Entry<'t> {
    pub(super) name: String,
    pub(super) span: Range<usize>,
    pub(super) value: &'t Spanned<DeValue<'t>>,
}

/// The keys of a table, in the order of the file.
pub(super) fn entries<'t>(table: &'t DeTable<'t>) -> Vec<Entry<'t>> {
    let entry = |(key, value): (&Spanned<DeString<'t>>, &'t Spanned<DeValue<'t>>)| Entry {
        name: key.get_ref().to_string(),
        span: key.span(),
        value,
    };
    let mut entries: Vec<_> = table.iter().map(entry).collect();
    entries.sort_by_key(|entry| entry.span.start);
    entries
}

/// Reads keys, each of which is an option of `command`. What is wrong is told, and left out.
pub(super) fn read(
    command: &mut Command,
    entries: Vec<Entry<'_>>,
    faults: &mut Vec<Fault>,
) -> Vec<Setting> {
    let mut settings: Vec<Setting> = Vec::new();
    for Entry { name, span, value } in entries {
        let Some(arg) = option_of(command, &name) else {
            let hint = similar(command, &name);
            let hint = hint.map(|hint| format!("; did you mean '{hint}'?"));
            let hint = hint.unwrap_or_default();
            faults.push(Fault::at(span, format!("there is no key {name:?}{hint}")));
            continue;
        };
        let key = arg.get_long().unwrap_or(&name).to_owned();
        if settings.iter().any(|before| before.key == key) {
            let why = match name == key {
                true => format!("'{key}' is there already, by another of its names"),
                false => format!("'{name}' is another name of '{key}', which is there already"),
            };
            faults.push(Fault::at(span, why));
            continue;
        }
        match values(arg, &key, value) {
            Err(fault) => faults.push(fault),
            Ok(values) => settings.push(Setting {
                key,
                key_span: span,
                values,
            }),
        }
    }
    let arguments = settings.iter().flat_map(|setting| &setting.values);
    if verdict(command, arguments).is_some() {
        settings.retain(|setting| {
            let wrong = check(command, setting);
            let is_right = wrong.is_empty();
            faults.extend(wrong);
            is_right
        });
    }
    settings
}

/// The option that somebody may have meant, by clap's measure.
fn similar(command: &mut Command, name: &str) -> Option<String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    if name.is_empty() || !name.chars().all(is_plain) {
        return None;
    }
    let error = command
        .try_get_matches_from_mut([format!("--{name}")])
        .err()?;
    match error.get(ContextKind::SuggestedArg)? {
        ContextValue::String(option) => Some(option.trim_start_matches('-').to_owned()),
        _ => None,
    }
}

/// The arguments of a value.
fn values(arg: &Arg, key: &str, value: &Spanned<DeValue<'_>>) -> Result<Vec<Value>, Fault> {
    let one = |value: &Spanned<DeValue<'_>>| -> Result<Option<Value>, Fault> {
        let span = value.span();
        let wrong = |what: &str| Err(Fault::at(span.clone(), format!("{key}: {what}")));
        let is_flag = !arg.get_action().takes_values();
        let may_be_bare = is_flag
            || arg
                .get_num_args()
                .is_some_and(|range| range.min_values() == 0);
        let text = match value.get_ref() {
            DeValue::Boolean(_) if !may_be_bare => {
                return wrong("it takes a value, neither true nor false");
            }
            DeValue::Boolean(false) => return Ok(None),
            DeValue::Boolean(true) => {
                let argument = format!("--{key}");
                return Ok(Some(Value { argument, span }));
            }
            _ if is_flag => return wrong("it is true or false"),
            DeValue::String(text) => text.to_string(),
            DeValue::Integer(number) => {
                let (text, radix) = (number.as_str(), number.radix());
                match i64::from_str_radix(text, radix) {
                    Ok(number) => number.to_string(),
                    Err(_) => text.to_owned(),
                }
            }
            DeValue::Float(number) => number.as_str().to_owned(),
            DeValue::Datetime(_) => return wrong("a date or time has to stand in quotes"),
            DeValue::Array(_) => return wrong("a list within a list"),
            DeValue::Table(_) => return wrong("it takes a value, and no table"),
        };
        let argument = format!("--{key}={text}");
        Ok(Some(Value { argument, span }))
    };
    match value.get_ref() {
        DeValue::Array(list) if matches!(arg.get_action(), ArgAction::Append) => {
            let each = list.iter().map(one);
            Ok(each
                .collect::<Result<Vec<_>, _>>()?
                .into_iter()
                .flatten()
                .collect())
        }
        DeValue::Array(_) => Err(Fault::at(
            value.span(),
            format!("{key}: it takes one value, and no list"),
        )),
        _ => Ok(one(value)?.into_iter().collect()),
    }
}

/// What is wrong with values, but for what there should or should not be beside them.
fn verdict<'v>(
    command: &mut Command,
    values: impl Iterator<Item = &'v Value>,
) -> Option<clap::Error> {
    let arguments = values.map(|value| &value.argument);
    let error = command.try_get_matches_from_mut(arguments).err()?;
    let is_of_others = [
        ErrorKind::MissingRequiredArgument,
        ErrorKind::ArgumentConflict,
    ];
    (!is_of_others.contains(&error.kind())).then_some(error)
}

/// What is wrong with the values of a key, each by itself.
fn check(command: &mut Command, setting: &Setting) -> Vec<Fault> {
    if verdict(command, setting.values.iter()).is_none() {
        return Vec::new();
    }
    let each = setting.values.iter().filter_map(|value| {
        let error = verdict(command, std::iter::once(value))?;
        let why = std::error::Error::source(&error);
        // What is only the number's own error says too little.
        let why = why.filter(|why| !why.is::<std::num::ParseIntError>());
        let why = why.map_or_else(
            || failure::sentence(&error.to_string()),
            ToString::to_string,
        );
        let message = format!("{}: {why}", setting.key);
        Some(Fault::at(value.span.clone(), message))
    });
    each.collect()
}

/// The options that an error of clap is about, by their long names.
pub(super) fn options_of(error: &clap::Error) -> Vec<String> {
    let kinds = [ContextKind::InvalidArg, ContextKind::PriorArg];
    let values = kinds.iter().filter_map(|kind| error.get(*kind));
    let texts = values.flat_map(|value| match value {
        ContextValue::String(text) => vec![text.as_str()],
        ContextValue::Strings(texts) => texts.iter().map(String::as_str).collect(),
        _ => Vec::new(),
    });
    let long = |text: &str| {
        let name = text.strip_prefix("--")?;
        let end = name.find([' ', '=', '[']).unwrap_or(name.len());
        Some(name[..end].to_owned())
    };
    texts.filter_map(long).collect()
}
