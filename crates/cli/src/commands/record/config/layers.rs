//! Applies assignments of the command line on top of a file: the layers of a configuration.

use serde::Deserialize as _;
use toml::{
    Deserializer, Spanned, Value,
    de::{DeArray, DeString, DeTable, DeValue},
};

use super::{
    key::{Key, Setting as _, Shape},
    settings::Settings,
};
use crate::commands::removed;

/// An assignment by the command line.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Assignment {
    /// The option as messages name it: a flag by its short form if it has one, `--set KEY`, or
    /// `FILTER` for the argument of `flows`.
    pub(crate) option: String,
    /// Tables and key. For a rule: `rule`, the name of the rule, and the key.
    pub(crate) path: Vec<String>,
    pub(crate) value: AssignedValue,
    /// If the key has a list: whether the value is added to the values of earlier options.
    pub(crate) adds: bool,
}

/// A value of the command line.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum AssignedValue {
    On,
    Text(String),
    Toml(String),
}

impl Assignment {
    pub(crate) fn new(option: &str, key: &str, text: String) -> Self {
        Self {
            option: option.to_owned(),
            path: vec![key.to_owned()],
            value: AssignedValue::Text(text),
            adds: false,
        }
    }

    /// Reads `KEY=VALUE`.
    ///
    /// # Errors
    /// A sentence for the user.
    pub(crate) fn of_set(text: &str) -> Result<Self, String> {
        let (key, value) = text.split_once('=').unwrap_or_default();
        let path = read_path(key).ok_or("write KEY=VALUE, as --set max-dumps=8")?;
        let found = key_of(&path)?;
        if found.shape == Shape::Table && found.name() != "rule" {
            let key = key.trim();
            return Err(format!(
                "{key} is a table: set its keys, as --set {key}.KEY=VALUE"
            ));
        }
        let value = value.trim();
        let value = match DeValue::parse(value) {
            Ok(_) => AssignedValue::Toml(value.to_owned()),
            Err(error) if value.starts_with(['[', '"', '\'']) => {
                return Err(error.message().to_owned());
            }
            Err(_) => AssignedValue::Text(value.to_owned()),
        };
        let it = Self {
            option: format!("--set {}", key.trim()),
            path,
            value,
            adds: false,
        };
        Ok(it.as_text().unwrap_or(it))
    }

    /// This assignment with its number, boolean or date as text. `None`: the value is of another
    /// kind, or the key accepts it as it is, or does not accept the text either.
    fn as_text(&self) -> Option<Self> {
        let AssignedValue::Toml(text) = &self.value else {
            return None;
        };
        let value = DeValue::parse(text).ok()?;
        let value = value.get_ref();
        if value.is_str() || value.is_array() || value.is_table() || self.check().is_ok() {
            return None;
        }
        let it = Self {
            value: AssignedValue::Text(text.clone()),
            ..self.clone()
        };
        it.check().is_ok().then_some(it)
    }

    /// Checks the value on its own.
    ///
    /// # Errors
    /// A message: the key does not accept the value.
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut alone = DeTable::new();
        self.put(&mut alone, false)?;
        let read = Settings::deserialize(Deserializer::from(nowhere(alone)));
        read.map(drop).map_err(|error| error.message().to_owned())
    }

    /// The name of the key for [`super::ValueOrigin`]. All rules share one name.
    pub(crate) fn key(&self) -> String {
        match self.path.first() {
            Some(first) if first == "rule" => first.clone(),
            _ => self.path.join("."),
        }
    }

    /// Writes the value into a table. `adds`: append to an existing value, which becomes a list if
    /// it is no list.
    ///
    /// # Errors
    /// A message, for example: the path names no key, or leads through a value that is no table.
    pub(crate) fn put<'a>(&'a self, table: &mut DeTable<'a>, adds: bool) -> Result<(), String> {
        let value = match &self.value {
            AssignedValue::On => DeValue::Boolean(true),
            AssignedValue::Text(text) => DeValue::String(text.as_str().into()),
            AssignedValue::Toml(text) => {
                let value = DeValue::parse(text).map_err(|it| it.message().to_owned())?;
                value.into_inner()
            }
        };
        let mut table = table;
        let mut path = self.path.as_slice();
        if let [first, name, rest @ ..] = path
            && first == "rule"
        {
            table = rule_of(table, name)?;
            path = rest;
        }
        let Some((key, tables)) = path.split_last() else {
            return Err("it names no key".to_owned());
        };
        for name in tables {
            table = table_of(table, name)?;
        }
        match table.get_mut(key.as_str()).map(Spanned::get_mut) {
            Some(DeValue::Array(list)) if adds => list.push(nowhere(value)),
            Some(there) if adds => {
                let mut list = DeArray::new();
                list.push(nowhere(there.clone()));
                list.push(nowhere(value));
                *there = DeValue::Array(list);
            }
            _ => {
                insert(table, key, value);
            }
        }
        Ok(())
    }
}

fn nowhere<T>(value: T) -> Spanned<T> {
    Spanned::new(0..0, value)
}

fn insert<'a>(table: &mut DeTable<'a>, key: &'a str, value: DeValue<'a>) {
    // `insert` alone would keep the old key with its place.
    table.remove(key);
    table.insert(nowhere(DeString::from(key)), nowhere(value));
}

fn table_of<'t, 'a>(
    table: &'t mut DeTable<'a>,
    name: &'a str,
) -> Result<&'t mut DeTable<'a>, String> {
    if table.get(name).is_none() {
        insert(table, name, DeValue::Table(DeTable::new()));
    }
    match table.get_mut(name).map(Spanned::get_mut) {
        Some(DeValue::Table(inner)) => Ok(inner),
        _ => Err(format!("'{name}' is no table")),
    }
}

/// Finds a rule by name. Adds a missing rule.
fn rule_of<'t, 'a>(
    table: &'t mut DeTable<'a>,
    name: &'a str,
) -> Result<&'t mut DeTable<'a>, String> {
    if table.get("rule").is_none() {
        insert(table, "rule", DeValue::Array(DeArray::new()));
    }
    let Some(DeValue::Array(rules)) = table.get_mut("rule").map(Spanned::get_mut) else {
        return Err("write each rule as [[rule]], with two brackets".to_owned());
    };
    let is_named = |rule: &Spanned<DeValue<'_>>| {
        let rule = rule.get_ref().as_table();
        let it = rule.and_then(|rule| rule.get("name"));
        it.and_then(|it| it.get_ref().as_str()) == Some(name)
    };
    let at = rules.iter().position(is_named);
    if at.is_none() {
        let mut rule = DeTable::new();
        insert(&mut rule, "name", DeValue::String(name.into()));
        rules.push(nowhere(DeValue::Table(rule)));
    }
    let at = at.unwrap_or(rules.len() - 1);
    match rules.get_mut(at).map(Spanned::get_mut) {
        Some(DeValue::Table(rule)) => Ok(rule),
        _ => Err(format!("rule '{name}' is no table")),
    }
}

/// The names of a dotted key.
fn read_path(key: &str) -> Option<Vec<String>> {
    let document = format!("{key} = 0");
    let mut table = DeTable::parse(&document).ok()?.into_inner();
    let mut path = Vec::new();
    loop {
        let (name, value) = table.into_iter().next()?;
        path.push(name.into_inner().into_owned());
        match value.into_inner() {
            DeValue::Table(inner) => table = inner,
            _ => return Some(path),
        }
    }
}

/// Finds the key of a path.
///
/// # Errors
/// A message: the key does not exist, with a suggestion if there is a similar key.
pub(crate) fn key_of(path: &[String]) -> Result<&'static Key, String> {
    let unnamed: Vec<&str> = match path {
        [rule, _, key @ ..] if rule == "rule" => [rule.as_str()]
            .into_iter()
            .chain(key.iter().map(String::as_str))
            .collect(),
        path => path.iter().map(String::as_str).collect(),
    };
    let (mut keys, mut table) = (Settings::KEYS, "");
    let mut found = None;
    for name in unnamed {
        let key = known(keys, name, table)?;
        (keys, table, found) = (key.keys, name, Some(key));
    }
    found.ok_or_else(|| "it names no key".to_owned())
}

/// Whether `flows` uses the key of a path.
pub(crate) fn is_of_flows(path: &[String]) -> bool {
    let [name] = path else { return false };
    let is_of_section = |key: &Key| match key.section {
        "Input" => !matches!(name.as_str(), "reorder-window" | "snaplen"),
        section => section == "Output",
    };
    matches!(name.as_str(), "ring" | "relinquish-privileges")
        || key_of(path).is_ok_and(is_of_section)
}

/// Finds a key of a table.
///
/// # Errors
/// A message: the key does not exist, with a suggestion if there is a similar key.
pub(crate) fn known(keys: &'static [Key], name: &str, table: &str) -> Result<&'static Key, String> {
    if let Some(key) = keys.iter().find(|key| key.name() == name) {
        return Ok(key);
    }
    let here = match table {
        "" => String::new(),
        table => format!(" in [{table}]"),
    };
    if table.is_empty()
        && let Some(instead) = removed::of_key(name)
    {
        return Err(format!("there is no key {name:?} any more: {instead}"));
    }
    let near = |key: &&Key| strsim::jaro(&key.name(), name);
    let nearest = keys
        .iter()
        .max_by(|one, other| near(one).total_cmp(&near(other)));
    let hint = nearest.filter(|key| near(key) > 0.7);
    let hint = hint.map(|key| format!("; did you mean '{}'?", key.name()));
    let hint = hint.unwrap_or_default();
    Err(format!("there is no key {name:?}{here}{hint}"))
}

/// The default of a key in TOML notation; `false` for a switch without a default. `None`: the key
/// is no switch, and has no default or an empty default.
pub(crate) fn written_default(key: &Key) -> Option<String> {
    match key.shape {
        Shape::Switch if key.default.is_empty() => Some("false".to_owned()),
        Shape::Switch => Some(key.default.to_owned()),
        _ if key.default.is_empty() => None,
        _ if key.default.parse::<u32>().is_ok() => Some(key.default.to_owned()),
        _ => Some(Value::from(key.default).to_string()),
    }
}
