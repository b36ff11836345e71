//! The arguments of `retroscope record`, and the recorder configuration that follows from them.

use std::{path::PathBuf, time::Duration};

use retroscope_recorder::{ClassCutoff, Config, DumpFormat, Scripts, TriggerRequest};
use retroscope_ring::{Backing, Mode};
use retroscope_script::Script;

use super::config::{Expression, FormatName, Loaded, RecordFlags, RingFull, What};
use crate::{failure::Failure, memory};

/// Default limit of dumps in a minute, not for alerts, if `dumps-per-minute` is not given.
pub(super) const DUMPS_PER_MINUTE: u32 = 400;

/// Options whose whole value is an expression, without aliases.
const OF_EXPRESSION: [&str; 5] = ["-t", "--trigger", "-f", "--filter", "--dump"];

const AFTER_HELP: &str = "\
Exit codes: 0 done, 1 failed, 2 usage, 3 done, but a dump is incomplete, or triggers, alerts or EVE lines may be missing.

Examples:
  retroscope record -i eth0 -t 'tcp[tcpflags] & tcp-rst != 0' -w dumps
  retroscope record -r in.pcap -t 'udp port 53' --dump 'host $dstIP' --past 2s
  retroscope record --config retroscope.toml --set max-dumps=8";

/// Record all traffic into memory; write what surrounds a trigger to a file
///
/// SIGUSR1 triggers by hand. SIGUSR2 prints statistics. SIGINT or SIGTERM finish the open dumps and
/// stop, a second one stops at once; so does SIGHUP if stdin or stderr is a terminal.
#[derive(Debug, Clone, clap::Args)]
#[command(disable_version_flag = true, after_help = AFTER_HELP)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) flags: RecordFlags,

    /// Read keys and rules from a TOML file
    ///
    /// Flags and --set win over the file. SIGHUP reads the file again. docs/configuration.md
    /// describes the keys.
    #[arg(long, value_name = "FILE", help_heading = "Service")]
    pub(crate) config: Option<PathBuf>,

    /// Check the file of --config and exit
    ///
    /// The exit code is 0 without errors, and 2 with errors.
    #[arg(long, requires = "config", help_heading = "Service")]
    pub(crate) check_config: bool,

    /// Print all values with origins, and exit
    ///
    /// The output is a configuration file. A comment names the origin of each value.
    #[arg(long, help_heading = "Service")]
    pub(crate) print_config: bool,

    /// List the interfaces and exit
    #[arg(short = 'D', long = "list-interfaces", help_heading = "Output")]
    pub(crate) list: bool,

    /// tcpdump's filter position. An expression here is refused, because it could be a trigger or a
    /// filter
    #[arg(value_name = "FILTER", hide = true)]
    expression: Vec<String>,
}

impl Args {
    /// Refuses an expression without an option, and says what to write instead.
    pub(crate) fn refuse_expression(&self) -> Result<(), Failure> {
        if self.expression.is_empty() {
            return Ok(());
        }
        let words = self.expression.join(" ");
        let given: Vec<String> = std::env::args().collect();
        let advice = quoted(&given, &self.expression).unwrap_or_default();
        Err(Failure::usage(format!(
            "'{words}' has no option before it: --trigger FILTER is what starts a dump, -f FILTER what is recorded at all{advice}"
        )))
    }
}

/// Advice to quote an expression, if `given` contains an option of an expression, one word, and
/// then `words`, as in `-t tcp port 80`.
fn quoted(given: &[String], words: &[String]) -> Option<String> {
    let mut places = given.windows(words.len() + 2);
    let place = places.find(|it| OF_EXPRESSION.contains(&it[0].as_str()) && it[2..] == *words)?;
    let (option, expression) = (&place[0], place[1..].join(" "));
    Some(format!(
        "; quote an expression of several words: {option} '{expression}'"
    ))
}

impl Loaded {
    /// Checks what clap cannot check, and resolves defaults. The second value contains messages for
    /// the user.
    pub(crate) fn resolve(&self) -> Result<(Config, Vec<String>), Failure> {
        let of = &self.settings;
        let no_trigger = self.trigger_count() == 0 && of.alerts.from.is_empty();
        let mut notes = Vec::new();
        let of_input = of.input(memory::default_ring, &mut notes)?;
        if of_input.offline && no_trigger {
            return Err(Failure::usage(
                "-r needs a trigger: say --trigger FILTER, for example --trigger 'udp port 53', or --alerts FILE",
            ));
        }
        if of_input.offline && of.tail_drop_min().is_some() {
            return Err(Failure::usage(
                "ted is for live sources: files wait, and nothing of them is lost",
            ));
        }
        if of_input.offline && of.history_goal.is_some() {
            return Err(Failure::usage(
                "--history-goal is for live sources: what comes from files comes at no rate",
            ));
        }
        let goals = Duration::from_secs(1)..=Duration::from_secs(86_400);
        if of.history_goal.is_some_and(|goal| !goals.contains(&*goal)) {
            return Err(Failure::usage("--history-goal: 1s to 24h"));
        }
        self.check_directory()?;
        self.refuse_keys_of_post()?;
        let of_rules = of.rule.iter().filter(|rule| rule.module.is_some());
        let are_modules = !of.module.is_empty() || of_rules.count() > 0;
        of.refuse_flows_without_use(are_modules)?;
        if !of_input.offline && no_trigger {
            let pid = std::process::id();
            let by_signal = format!("SIGUSR1 (kill -USR1 {pid})");
            notes.push(if of.api.listen.is_empty() {
                format!("no --trigger: only {by_signal} starts a dump")
            } else {
                format!("no --trigger: dumps start by {by_signal} or by 'retroscope trigger'")
            });
        }
        let config = self.followed(Config {
            ring_backing: self.backing(),
            scripts: self.scripts()?,
            flows: of.eve.is_some().then(|| of.tracker()),
            hold: *of.reorder_window,
            single: of.single,
            snaplen: of.snaplen.0.0,
            tail_drop_min: of.tail_drop_min(),
            history_goal: of.history_goal.map(|goal| *goal),
            directory: Some(of.write.clone()),
            format: match of.format {
                FormatName::Pcapng => DumpFormat::PcapNg,
                FormatName::Pcap => DumpFormat::Pcap,
            },
            alerts: of.alerts.config(of_input.offline)?,
            reproducible: of.reproducible,
            ..of_input
        })?;
        Ok((of.dump_files(config), notes))
    }

    /// Applies the keys to `config` that may change during a recording.
    pub(crate) fn followed(&self, config: Config) -> Result<Config, Failure> {
        let of = &self.settings;
        let takes_all = |cutoff: &ClassCutoff| cutoff.class.is_none();
        let last = of.cutoff.len().saturating_sub(1);
        if of.cutoff.values().take(last).any(takes_all) {
            return Err(Failure::usage(
                "--cutoff: a limit without an expression applies to all flows: write it last",
            ));
        }
        let (names, requests) = self.names_and_requests();
        let of_rules = self.rules().into_iter().filter_map(|rule| match rule.what {
            What::Filter(text) => Some(text),
            What::Lua(_) | What::Module(_) => None,
        });
        Ok(Config {
            when_full: match of.when_full {
                RingFull::Record => Mode::Record,
                RingFull::Protect => Mode::Protect,
            },
            triggers: of.trigger.iter().cloned().chain(of_rules).collect(),
            names,
            requests,
            dump: of.dump.clone(),
            manual_dump: of.manual_dump.clone(),
            past: *of.past,
            future: *of.future,
            max_dumps: of.max_dumps.0.0 as usize,
            hold_off: *of.hold_off,
            dumps_per_minute: of
                .dumps_per_minute
                .map_or(DUMPS_PER_MINUTE, |it| it.0.0)
                .into(),
            limit_alerts_per_minute: of.dumps_per_minute.is_some(),
            bytes_per_hour: of.bytes_per_hour.0.0,
            dump_packets: of.dump_packets.0.0,
            dump_bytes: of.dump_bytes.0.0,
            cutoffs: of.cutoff.values().cloned().collect(),
            ..config
        })
    }

    /// The expressions of the options, for the checks of a configuration.
    pub(crate) fn expressions(&self) -> Vec<Expression<'_>> {
        let one = |option, number, text, is_template| Expression {
            option: (option, number),
            text,
            is_template,
        };
        let of = &self.settings;
        let mut all = vec![one("manual-dump", 0, of.manual_dump.as_str(), false)];
        if of.dump_lua.is_none() {
            all.push(one("dump", 0, &of.dump, true));
        }
        let filter = of.filter.as_deref();
        all.extend(filter.map(|text| one("filter", 0, text, false)));
        let triggers = of.trigger.iter().enumerate();
        all.extend(triggers.map(|(n, text)| one("trigger", n, text, false)));
        let classes = of.cutoff.values().enumerate();
        let classes = classes.filter_map(|(n, of)| Some((n, of.class.as_deref()?)));
        all.extend(classes.map(|(n, text)| one("cutoff", n, text, false)));
        all
    }

    /// Number of triggers of the keys `trigger`, `trigger-lua` and `module`. The names of these
    /// triggers are the numbers from 1.
    pub(crate) fn numbered_count(&self) -> usize {
        let of = &self.settings;
        of.trigger.len() + of.trigger_lua.len() + of.module.len()
    }

    fn trigger_count(&self) -> usize {
        self.numbered_count() + self.settings.rule.len()
    }

    /// Names of the triggers and their own dump requests. Expressions come first, then functions,
    /// then modules. Within each kind, triggers without a rule come before rules.
    fn names_and_requests(&self) -> (Vec<String>, Vec<TriggerRequest>) {
        let of = &self.settings;
        let rules = self.rules();
        let mut numbers = 1..;
        let mut all: Vec<(String, TriggerRequest)> = Vec::new();
        let kinds: [(usize, IsSuch); 3] = [
            (of.trigger.len(), |what| matches!(what, What::Filter(_))),
            (of.trigger_lua.len(), |what| matches!(what, What::Lua(_))),
            (of.module.len(), |what| matches!(what, What::Module(_))),
        ];
        for (count, is_such) in kinds {
            let numbers = numbers.by_ref().take(count);
            all.extend(numbers.map(|number| (number.to_string(), TriggerRequest::default())));
            let rules = rules.iter().filter(|rule| is_such(&rule.what));
            all.extend(rules.map(|rule| (rule.name.clone(), rule.request.clone())));
        }
        all.into_iter().unzip()
    }

    fn scripts(&self) -> Result<Scripts, Failure> {
        let of = &self.settings;
        let rules = self.rules();
        let read = |path: &PathBuf| Script::read(path, of.lua_trusted).map_err(Failure::failed);
        let of_rules = |path: fn(&What) -> Option<&PathBuf>| {
            rules.iter().filter_map(move |rule| path(&rule.what))
        };
        let functions = of_rules(|what| match what {
            What::Lua(path) => Some(path),
            _ => None,
        });
        let modules = of_rules(|what| match what {
            What::Module(path) => Some(path),
            _ => None,
        });
        let triggers = of.trigger_lua.iter().chain(functions).map(read);
        let modules = of.module.iter().chain(modules).map(read);
        Ok(Scripts {
            triggers: triggers.collect::<Result<_, _>>()?,
            dump: of.dump_lua.as_ref().map(read).transpose()?,
            modules: modules.collect::<Result<_, _>>()?,
            module_flows: of.tracker(),
        })
    }

    fn check_directory(&self) -> Result<(), Failure> {
        let directory = &self.settings.write;
        let extension = directory.extension().unwrap_or_default();
        let is_capture = ["pcap", "pcapng", "cap"]
            .iter()
            .any(|one| extension.eq_ignore_ascii_case(one));
        if !directory.is_dir() && (is_capture || directory.exists()) {
            let shown = directory.display();
            return Err(Failure::usage(format!(
                "-w {shown}: name a directory, one file per dump is written there"
            )));
        }
        Ok(())
    }

    fn backing(&self) -> Backing {
        match &self.settings.ring_file {
            Some(path) => Backing::File(path.clone()),
            None if self.settings.ring_memfd => Backing::Memfd,
            None => Backing::Anonymous,
        }
    }
}

/// Predicate on the kind of a rule.
type IsSuch = fn(&What) -> bool;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_of_several_words_is_quoted() {
        let advice = |line: &str, words: &str| {
            let list = |text: &str| Vec::from_iter(text.split(' ').map(str::to_owned));
            quoted(&list(line), &list(words))
        };
        let line = "retroscope record -i lo --trigger tcp port 80 -w d";
        let text = advice(line, "port 80").unwrap();
        assert!(text.ends_with(": --trigger 'tcp port 80'"), "{text}");
        assert_eq!(advice("retroscope record -i lo port 80", "port 80"), None);
    }
}
