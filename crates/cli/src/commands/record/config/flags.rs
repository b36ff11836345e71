//! The keys that have a flag, and `--set` for all keys of the command. A flag assigns a value to
//! its key.

use clap::{
    Arg, ArgAction, ArgMatches, Command, ValueHint,
    builder::{PossibleValuesParser, StyledStr, TypedValueParser},
    error::ErrorKind,
    parser::ValueSource,
};

use super::{
    key::{Key, Shape},
    layers::{AssignedValue, Assignment, is_of_flows, key_of},
};

/// A flag.
struct Flag {
    /// The key with its table.
    key: &'static str,
    short: Option<char>,
    long: &'static str,
    value: &'static str,
    /// Alias for compatibility with FlowScope.
    alias: Option<&'static str>,
    commands: Commands,
}

/// The commands that accept a flag.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Commands {
    Record,
    Flows,
    Both,
}
use Commands::{Both, Flows, Record};

const fn flag(commands: Commands, letter: char, key: &'static str, value: &'static str) -> Flag {
    Flag {
        key,
        short: if letter == ' ' { None } else { Some(letter) },
        long: key,
        value,
        alias: None,
        commands,
    }
}

const fn called(long: &'static str, of: Flag) -> Flag {
    Flag { long, ..of }
}

const fn also(alias: &'static str, of: Flag) -> Flag {
    let alias = Some(alias);
    Flag { alias, ..of }
}

/// All flags of keys. The help lists the flags of a section in this order.
const FLAGS: &[Flag] = &[
    also("device", flag(Both, 'i', "interface", "IFACE")),
    flag(Both, 'r', "read", "FILE"),
    flag(Both, ' ', "engine", "ENGINE"),
    flag(Both, 'f', "filter", "FILTER"),
    flag(Both, 'F', "filter-file", "FILE"),
    flag(Record, 's', "snaplen", "N"),
    flag(Both, 'p', "no-promiscuous-mode", ""),
    flag(Both, 'Q', "direction", "WAY"),
    flag(Both, 'c', "count", "N"),
    flag(Both, ' ', "duration", "TIME"),
    flag(Both, ' ', "ring", "SIZE"),
    flag(Record, ' ', "ring-file", "FILE"),
    flag(Record, ' ', "cutoff", "LIMIT"),
    flag(Record, ' ', "history-goal", "TIME"),
    also("trigger-expr", flag(Record, 't', "trigger", "FILTER")),
    also("trigger-code", flag(Record, ' ', "trigger-lua", "FILE")),
    flag(Record, ' ', "module", "FILE"),
    called("alerts", flag(Record, ' ', "alerts.from", "WHERE")),
    flag(Record, ' ', "single", ""),
    flag(Record, ' ', "hold-off", "TIME"),
    also("dumper-expr", flag(Record, ' ', "dump", "FILTER")),
    also("dumper-code", flag(Record, ' ', "dump-lua", "FILE")),
    also("dump-past", flag(Record, ' ', "past", "TIME")),
    also("dump-future", flag(Record, ' ', "future", "TIME")),
    also("path", flag(Record, 'w', "write", "DIR")),
    flag(Record, ' ', "format", "FORMAT"),
    flag(Record, ' ', "compress", "HOW"),
    flag(Record, ' ', "keep", "SIZE,TIME"),
    flag(Record, ' ', "post", "CMD"),
    flag(Record, ' ', "reproducible", ""),
    flag(Both, ' ', "json", ""),
    flag(Both, ' ', "eve", "TARGET"),
    flag(Flows, ' ', "community-id-seed", "N"),
    flag(Flows, ' ', "idle-timeout", "TIME"),
    flag(Flows, ' ', "fragments", "HOW"),
    flag(Flows, ' ', "vlans", "HOW"),
    flag(Flows, ' ', "max-flows", "N"),
    flag(Both, 'q', "quiet", ""),
    flag(Both, 'v', "verbose", ""),
    called("api", flag(Record, ' ', "api.listen", "ADDR")),
    called("tokens", flag(Record, ' ', "api.tokens", "FILE")),
    flag(Both, 'Z', "relinquish-privileges", "USER"),
];

/// Hidden flag of FlowScope: ring size in GiB.
const SIZE: &str = "size";

/// The flags of `record`.
pub(crate) type RecordFlags = Flags<true>;
/// The flags of `flows`.
pub(crate) type FlowsFlags = Flags<false>;

/// Assignments by flags and `--set`, in their order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Flags<const RECORD: bool>(pub(crate) Vec<Assignment>);

impl<const RECORD: bool> Flags<RECORD> {
    fn all() -> impl Iterator<Item = (&'static Flag, &'static Key)> {
        let others = if RECORD { Flows } else { Record };
        let ours = FLAGS.iter().filter(move |flag| flag.commands != others);
        ours.filter_map(|flag| Some((flag, key_of(&path(flag.key)).ok()?)))
    }
}

/// The path of a key: the name of its table, if the key is in a table, and the name of the key.
fn path(key: &str) -> Vec<String> {
    key.split('.').map(str::to_owned).collect()
}

fn argument(flag: &'static Flag, key: &Key) -> Arg {
    let arg = Arg::new(flag.long)
        .long(flag.long)
        .help(StyledStr::from(key.summary()))
        .long_help(StyledStr::from(key.help()))
        .help_heading(key.section)
        .aliases(flag.alias)
        .value_name(flag.value);
    let arg = match flag.short {
        Some(letter) => arg.short(letter),
        None => arg,
    };
    let arg = match flag.value {
        "FILE" | "DIR" => arg.value_hint(ValueHint::AnyPath),
        _ => arg,
    };
    match key.shape {
        Shape::Switch => arg.action(ArgAction::SetTrue),
        Shape::List => arg
            .action(ArgAction::Append)
            .value_parser(value_parser(flag)),
        _ if key.choices.is_empty() => arg.value_parser(value_parser(flag)),
        _ => arg
            .value_parser(PossibleValuesParser::new(key.choices))
            .hide_possible_values(true),
    }
}

impl Flag {
    fn assignment(&self, value: AssignedValue) -> Assignment {
        Assignment {
            option: self
                .short
                .map_or_else(|| format!("--{}", self.long), |letter| format!("-{letter}")),
            path: path(self.key),
            value,
            adds: true,
        }
    }
}

/// Rejects a text that is invalid for the flag's key.
fn value_parser(flag: &'static Flag) -> impl TypedValueParser<Value = String> {
    move |text: &str| {
        let checked = flag
            .assignment(AssignedValue::Text(text.to_owned()))
            .check();
        checked.map(|()| text.to_owned())
    }
}

/// Rejects a text that is not a number of GiB.
fn size_parser(text: &str) -> Result<String, String> {
    let assignment = Assignment::new("", "ring", format!("{text}GiB"));
    assignment.check().map(|()| text.to_owned())
}

/// Rejects a text that is no valid assignment to a key of the command.
fn set_parser<const RECORD: bool>(text: &str) -> Result<String, String> {
    let assignment = Assignment::of_set(text)?;
    if !RECORD && !is_of_flows(&assignment.path) {
        let key = assignment.path.join(".");
        return Err(format!("{key} is for `retroscope record`"));
    }
    assignment.check().map(|()| text.to_owned())
}

/// The option `--set`.
fn set<const RECORD: bool>() -> Arg {
    Arg::new("set")
        .long("set")
        .value_name("KEY=VALUE")
        .value_parser(set_parser::<RECORD>)
        .action(ArgAction::Append)
        .help_heading("Service")
        .help("Set any key (repeatable)")
        .long_help(
            "Set any key (repeatable)\n\nVALUE is TOML; other text is a string. \
             Flags and --set win over the file, and later ones over earlier ones. A rule's key is \
             rule.NAME.KEY. docs/configuration.md describes keys and lists.",
        )
}

impl<const RECORD: bool> clap::Args for Flags<RECORD> {
    fn augment_args(command: Command) -> Command {
        let command = command.args(Self::all().map(|(flag, key)| argument(flag, key)));
        let help = Arg::new("help").short('h').long("help");
        let help = help.action(ArgAction::Help).help_heading("Output");
        let size = Arg::new(SIZE).long(SIZE).value_name("GIB").hide(true);
        let size = size.value_parser(size_parser);
        command.disable_help_flag(true).args([
            help.help("Print help (--help: more)"),
            size.conflicts_with("ring"),
            set::<RECORD>(),
        ])
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<const RECORD: bool> clap::FromArgMatches for Flags<RECORD> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut given: Vec<(usize, Assignment)> = Vec::new();
        let is_given = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
        for (flag, key) in Self::all().filter(|(flag, _)| is_given(flag.long)) {
            if key.shape == Shape::Switch {
                let index = matches.index_of(flag.long).unwrap_or_default();
                given.push((index, flag.assignment(AssignedValue::On)));
            } else {
                given.extend(
                    texts(matches, flag.long)
                        .map(|(index, text)| (index, flag.assignment(AssignedValue::Text(text)))),
                );
            }
        }
        for (index, gib) in texts(matches, SIZE) {
            given.push((
                index,
                Assignment::new(&format!("--{SIZE}"), "ring", format!("{gib}GiB")),
            ));
        }
        for (index, text) in texts(matches, "set") {
            let wrong = |why| clap::Error::raw(ErrorKind::ValueValidation, why);
            given.push((index, Assignment::of_set(&text).map_err(wrong)?));
        }
        given.sort_by_key(|(index, _)| *index);
        Ok(Self(given.into_iter().map(|(_, it)| it).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The values of an option with their positions on the command line.
fn texts(matches: &ArgMatches, id: &str) -> impl Iterator<Item = (usize, String)> {
    let texts = matches.get_many::<String>(id).into_iter().flatten();
    matches
        .indices_of(id)
        .into_iter()
        .flatten()
        .zip(texts.cloned())
}
