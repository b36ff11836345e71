//! `--config FILE`: options of `record` from a file, and rules.
//!
//! The file is TOML. Its keys are the long names of the options, and what they say becomes arguments, which stand before those of the command line; so an option
//! that is new is a key at once. What the command line gives, the file does not. Beside options there is `[[rule]]`.

mod check;
mod keys;
mod reload;
mod rules;
mod text;

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    ops::Range,
    path::{Path, PathBuf},
};

use clap::{
    Arg, ArgMatches, Args as _, Command, FromArgMatches, error::ErrorKind, parser::ValueSource,
};
use toml::de::{DeTable, DeValue};

pub(crate) use self::{
    check::{Depth, Expression},
    reload::Reloader,
    rules::{ConfigRule, What},
};
use self::{
    keys::{Entry, Setting},
    rules::FileRule,
    text::{ConfigText, Fault},
};
use super::Args;
use crate::{
    failure::{Failure, say, sentence},
    units::counted,
};

/// Errors that are reported for one file.
const FAULTS_MAX: usize = 100;

/// Options that say where the options are, or do something else.
const NOT_OF_FILES: [&str; 3] = ["config", "check-config", "list-interfaces"];

/// Tables of options, clap's groups of these (the structures that they are in), and what the option of the table's own name is called there.
const SECTIONS: [(&str, &str, &str); 2] = [
    ("api", "ApiArgs", "listen"),
    ("alerts", "AlertArgs", "from"),
];

/// A file and a command line, put together.
#[derive(Debug)]
pub(crate) struct Loaded {
    path: PathBuf,
    command_line: Vec<OsString>,
    pub(crate) args: Args,
    text: ConfigText,
    settings: Vec<Setting>,
    rules: Vec<FileRule>,
    /// The options of the file that the command line gives.
    overridden: BTreeSet<String>,
    /// What is given of each option, as it is written.
    given: BTreeMap<String, Vec<OsString>>,
}

/// Why a file and a command line are no configuration: sentences, each with its place in the file.
#[derive(Debug)]
pub(crate) struct Refused(Vec<String>);

impl Refused {
    /// Tells the user, and makes the end of it.
    pub(crate) fn failure(self) -> Failure {
        self.0.iter().for_each(|fault| say(fault));
        let errors = counted(self.0.len() as u64, "error");
        Failure::usage(format!("--config: {errors}, nothing was started"))
    }

    /// All of it, in lines.
    pub(crate) fn text(&self) -> String {
        self.0.join("\n")
    }
}

/// The arguments of this process behind `record`.
pub(crate) fn command_line() -> Vec<OsString> {
    std::env::args_os().skip(2).collect()
}

/// The options of `record`.
fn command() -> Command {
    let command = Command::new("retroscope record").no_binary_name(true);
    Args::augment_args(command).disable_help_flag(true)
}

/// Whether an option may stand in a file.
fn is_of_files(name: &str) -> bool {
    !NOT_OF_FILES.contains(&name)
}

/// Arguments of this process that lack something, which their file may have; `None`: there is no file, or that is not what is wrong.
pub(crate) fn with_file(error: &clap::Error) -> Option<Args> {
    let is_record = std::env::args_os().nth(1).is_some_and(|it| it == "record");
    if error.kind() != ErrorKind::MissingRequiredArgument || !is_record {
        return None;
    }
    let command_line = command_line();
    let lenient = command().ignore_errors(true);
    let matches = lenient.try_get_matches_from(&command_line).ok()?;
    let args = Args::from_arg_matches(&matches).ok()?;
    args.config.is_some().then_some(args)
}

impl Loaded {
    /// Reads a file, and puts it together with the arguments behind `record`.
    ///
    /// # Errors
    /// All that is wrong in it.
    pub(crate) fn new(path: &Path, command_line: &[OsString]) -> Result<Self, Refused> {
        let text = ConfigText::read(path).map_err(|why| Refused(vec![why]))?;
        Self::of_text(path, text, command_line)
    }

    fn of_text(path: &Path, text: ConfigText, command_line: &[OsString]) -> Result<Self, Refused> {
        let (table, errors) = DeTable::parse_recoverable(&text.text);
        if !errors.is_empty() {
            let faults = errors.iter().map(|error| Fault {
                span: error.span(),
                message: error.message().to_owned(),
            });
            return Err(refused(&text, faults.collect()));
        }
        let mut faults = Vec::new();
        let (entries, rules) = entries_and_rules(&text, table.get_ref(), &mut faults);
        let (entries, others): (Vec<_>, Vec<_>) =
            entries.into_iter().partition(|it| is_of_files(&it.name));
        faults.extend(others.into_iter().map(|Entry { name, span, .. }| {
            Fault::at(span, format!("'{name}' is for the command line"))
        }));
        let settings = keys::read(&mut command(), entries, &mut faults);
        drop(table);
        if !faults.is_empty() {
            return Err(refused(&text, faults));
        }
        Self::put_together(path, text, (settings, rules), command_line)
    }

    fn put_together(
        path: &Path,
        text: ConfigText,
        (settings, rules): (Vec<Setting>, Vec<FileRule>),
        command_line: &[OsString],
    ) -> Result<Self, Refused> {
        let overridden = overridden(&settings, command_line);
        let used = settings
            .iter()
            .filter(|setting| !overridden.contains(&setting.key));
        let of_file = used.flat_map(|setting| &setting.values);
        let of_file = of_file.map(|value| OsString::from(&value.argument));
        let arguments = of_file.chain(command_line.iter().cloned());
        let mut command = command();
        let matches = command.try_get_matches_from_mut(arguments);
        let parsed = matches.and_then(|matches| Ok((Args::from_arg_matches(&matches)?, matches)));
        let (mut args, matches) = parsed.map_err(|error| {
            let message = sentence(&error.to_string());
            let is_about = |it: &&Setting| options_in(&message).any(|option| option == it.key);
            let span = settings.iter().find(is_about).map(|it| it.key_span.clone());
            refused(&text, vec![Fault { span, message }])
        })?;
        args.rules = rules.iter().map(|rule| rule.rule.clone()).collect();
        let options = given(&command, &matches).filter_map(|arg| {
            let long = arg.get_long().filter(|long| is_of_files(long))?;
            let values = matches.get_raw(arg.get_id().as_str()).into_iter().flatten();
            Some((long.to_owned(), values.map(ToOwned::to_owned).collect()))
        });
        let given = options.collect();
        Ok(Self {
            path: path.to_owned(),
            command_line: command_line.to_vec(),
            args,
            text,
            settings,
            rules,
            overridden,
            given,
        })
    }

    /// Checks all that can be checked without opening a source.
    ///
    /// # Errors
    /// All that is wrong.
    pub(crate) fn check(&self, depth: Depth) -> Result<(), Refused> {
        let faults = check::check(self, depth);
        if faults.is_empty() {
            return Ok(());
        }
        Err(refused(&self.text, faults))
    }

    /// `--check-config`.
    ///
    /// # Errors
    /// All that is wrong.
    pub(crate) fn check_only(&self) -> Result<(), Refused> {
        self.check(Depth::Whole)?;
        if !self.args.input.quiet {
            say(&format!("{}: no errors", self.text.name()));
        }
        Ok(())
    }

    /// Where the values of an option stand, if they are the file's.
    fn spans_of(&self, key: &str) -> Vec<Range<usize>> {
        if self.overridden.contains(key) {
            return Vec::new();
        }
        let setting = self.settings.iter().find(|setting| setting.key == key);
        let values = setting.into_iter().flat_map(|setting| &setting.values);
        values.map(|value| value.span.clone()).collect()
    }
}

/// Faults for a person, in the order of the file.
fn refused(text: &ConfigText, mut faults: Vec<Fault>) -> Refused {
    faults.sort_by_key(|fault| fault.span.as_ref().map(|span| span.start));
    faults.dedup();
    let more = faults.len().saturating_sub(FAULTS_MAX);
    faults.truncate(FAULTS_MAX);
    if more > 0 {
        faults.push(Fault::nowhere(format!(
            "{} more",
            counted(more as u64, "error")
        )));
    }
    Refused(faults.iter().map(|fault| text.render(fault)).collect())
}

/// The keys of a file, those of tables of options included, and its rules.
fn entries_and_rules<'t>(
    text: &ConfigText,
    table: &'t DeTable<'t>,
    faults: &mut Vec<Fault>,
) -> (Vec<Entry<'t>>, Vec<FileRule>) {
    let (mut entries, mut rules) = (Vec::new(), Vec::new());
    for entry in keys::entries(table) {
        match entry.value.get_ref() {
            _ if entry.name == "rule" => rules = rules::read(text, entry.value, faults),
            DeValue::Table(section) => entries.extend(of_section(&entry, section, faults)),
            _ => entries.push(entry),
        }
    }
    (entries, rules)
}

/// The keys of a table of options, as keys that stand alone: in `api` what is `--api-host` is `host`, and `--api` itself `listen`, in `alerts` `--alerts` itself `from`.
fn of_section<'t>(
    section: &Entry<'t>,
    table: &'t DeTable<'t>,
    faults: &mut Vec<Fault>,
) -> Vec<Entry<'t>> {
    let name = section.name.as_str();
    let Some((_, group, own)) = SECTIONS.iter().find(|(section, ..)| *section == name) else {
        let why = format!(
            "there is no table {name:?}: options are keys, which stand before the first table"
        );
        faults.push(Fault::at(section.span.clone(), why));
        return Vec::new();
    };
    let command = command();
    let members = command.get_groups().find(|it| it.get_id() == *group);
    let members = members.into_iter().flat_map(clap::ArgGroup::get_args);
    let options = members.filter_map(|id| {
        let mut all = command.get_arguments();
        all.find(|arg| arg.get_id() == id)?.get_long()
    });
    // As they are called here.
    let prefix = format!("{name}-");
    let options: BTreeMap<&str, &str> = options
        .map(|long| match long.strip_prefix(&prefix) {
            Some(short) => (short, long),
            None if long == name => (*own, long),
            None => (long, long),
        })
        .collect();
    let mut entries = keys::entries(table);
    entries.retain_mut(|entry| match options.get(entry.name.as_str()) {
        Some(long) => {
            entry.name = (*long).to_owned();
            true
        }
        None => {
            let known = Vec::from_iter(options.keys().copied()).join(", ");
            let why = format!(
                "there is no key {:?} in [{name}]; there are {known}",
                entry.name
            );
            faults.push(Fault::at(entry.span.clone(), why));
            false
        }
    });
    entries
}

/// The options that arguments give.
fn given<'c>(command: &'c Command, matches: &'c ArgMatches) -> impl Iterator<Item = &'c Arg> {
    let source = |arg: &Arg| matches.value_source(arg.get_id().as_str());
    let arguments = command.get_arguments();
    arguments.filter(move |arg| source(arg) == Some(ValueSource::CommandLine))
}

/// The options of a file that the command line replaces. The command line gives the same option, or
/// an option that conflicts.
fn overridden(settings: &[Setting], command_line: &[OsString]) -> BTreeSet<String> {
    let mut command = command().ignore_errors(true);
    let Ok(matches) = command.try_get_matches_from_mut(command_line) else {
        return BTreeSet::new();
    };
    let conflicts = |one: &Arg, other: &Arg| {
        let with = command.get_arg_conflicts_with(one);
        with.iter().any(|it| it.get_id() == other.get_id())
    };
    let keys = settings.iter().map(|setting| &setting.key);
    let keys = keys.filter(|key| {
        keys::option_of(&command, key).is_some_and(|arg| {
            given(&command, &matches).any(|other| {
                arg.get_id() == other.get_id() || conflicts(arg, other) || conflicts(other, arg)
            })
        })
    });
    keys.cloned().collect()
}

/// The long names of the options that a sentence mentions.
fn options_in(sentence: &str) -> impl Iterator<Item = &str> {
    let words = sentence.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
    words.filter_map(|word| match word {
        "-i" => Some("interface"),
        "-r" => Some("read"),
        "-w" => Some("write"),
        word => word.strip_prefix("--"),
    })
}

#[cfg(test)]
mod tests;
