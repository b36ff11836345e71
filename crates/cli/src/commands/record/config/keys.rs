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
use crate::failure::sentence;

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

/// Reads keys, each of which is an option of `command`. Reports wrong keys and values, and leaves
/// wrong keys out.
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
            let why = format!("'{key}' is there already, by another of its names");
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
    let all = settings.iter().flat_map(|setting| &setting.values);
    if refusal(command, all).is_some() {
        for setting in &settings {
            let each = setting.values.iter();
            faults.extend(each.filter_map(|value| check(command, &setting.key, value)));
        }
    }
    settings
}

/// The option that the user may have meant, by clap's measure.
fn similar(command: &mut Command, name: &str) -> Option<String> {
    let matches = command.try_get_matches_from_mut([format!("--{name}")]);
    match matches.err()?.get(ContextKind::SuggestedArg)? {
        ContextValue::String(option) => Some(option.trim_start_matches('-').to_owned()),
        _ => None,
    }
}

/// The arguments of a key's value, which may be a list.
fn values(arg: &Arg, key: &str, value: &Spanned<DeValue<'_>>) -> Result<Vec<Value>, Fault> {
    let wrong = |span, what: &str| Err(Fault::at(span, format!("{key}: {what}")));
    let list = match value.get_ref() {
        DeValue::Array(list) if matches!(arg.get_action(), ArgAction::Append) => {
            list.iter().collect()
        }
        _ => vec![value],
    };
    let is_flag = !arg.get_action().takes_values();
    let needs_no_value =
        is_flag || (arg.get_num_args()).is_some_and(|range| range.min_values() == 0);
    let mut values = Vec::new();
    for value in list {
        let span = value.span();
        let text = match value.get_ref() {
            DeValue::Boolean(false) if needs_no_value => continue,
            DeValue::Boolean(true) if needs_no_value => String::new(),
            DeValue::Boolean(_) => {
                return wrong(span, "it takes a value, neither true nor false");
            }
            _ if is_flag => return wrong(span, "it is true or false"),
            DeValue::String(text) => format!("={text}"),
            DeValue::Integer(number) => {
                match i64::from_str_radix(number.as_str(), number.radix()) {
                    Ok(number) => format!("={number}"),
                    Err(_) => format!("={}", number.as_str()),
                }
            }
            DeValue::Float(number) => format!("={}", number.as_str()),
            DeValue::Datetime(_) => {
                return wrong(span, "a date or time has to stand in quotes");
            }
            DeValue::Array(_) => return wrong(span, "it takes one value here, and no list"),
            DeValue::Table(_) => return wrong(span, "it takes no table"),
        };
        let argument = format!("--{key}{text}");
        values.push(Value { argument, span });
    }
    Ok(values)
}

/// Why clap refuses values, except for missing or conflicting options.
fn refusal<'v>(
    command: &mut Command,
    values: impl IntoIterator<Item = &'v Value>,
) -> Option<clap::Error> {
    let arguments = values.into_iter().map(|value| &value.argument);
    let error = command.try_get_matches_from_mut(arguments).err()?;
    let is_of_others = [
        ErrorKind::MissingRequiredArgument,
        ErrorKind::ArgumentConflict,
    ];
    (!is_of_others.contains(&error.kind())).then_some(error)
}

/// Checks one value of a key. Returns the fault if the command line would refuse the value.
fn check(command: &mut Command, key: &str, value: &Value) -> Option<Fault> {
    let error = refusal(command, [value])?;
    let why = std::error::Error::source(&error);
    // The message of a number's error alone says too little.
    let why = why.filter(|why| !why.is::<std::num::ParseIntError>());
    let why = why.map_or_else(|| sentence(&error.to_string()), ToString::to_string);
    Some(Fault::at(value.span.clone(), format!("{key}: {why}")))
}
