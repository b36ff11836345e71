//! The arguments of `retroscope record`, and what they mean together.

use std::{path::PathBuf, time::Duration};

use clap::ValueEnum;
use retroscope_flow::Cutoff;
use retroscope_recorder::{ClassCutoff, Config, DumpFormat, Scripts, SubDirectory, TriggerRequest};
use retroscope_ring::Backing;
use retroscope_script::Script;

use super::{
    alerts::AlertArgs,
    api_args::ApiArgs,
    config::{ConfigRule, Expression, What},
    file_args::{self, FileArgs},
    flow_args::FlowArgs,
    input::InputArgs,
};
use crate::{commands::control::WhenFull, failure::Failure, memory, units};

/// Dumps that triggers may start in a minute, where --dumps-per-minute does not say.
const DUMPS_PER_MINUTE: u32 = 400;
/// The connection of the trigger packet.
const DEFAULT_DUMP: &str = "$flow";

/// After so long without a packet a flow is kept from its beginning again, where --cutoff does not say.
const REFILL: Duration = Duration::from_secs(60);

/// An argument of --cutoff.
fn cutoff(text: &str) -> Result<ClassCutoff, String> {
    let (class, amount) = match text.rsplit_once('=') {
        Some((class, amount)) => (Some(class.to_owned()), amount),
        None => (None, text),
    };
    let (bytes, refill) = match amount.split_once('/') {
        Some((bytes, refill)) => (bytes, units::duration(refill)?),
        None => (amount, REFILL),
    };
    let bytes = units::size_or_none(bytes).map_err(|error| match &class {
        None => format!("{error}, or 'tcp port 443=20KiB' for a class of flows"),
        Some(_) => error,
    })?;
    let refill_ns = i64::try_from(refill.as_nanos()).unwrap_or(i64::MAX);
    if refill_ns == 0 {
        return Err("a flow is always silent for 0 s: say a longer time".to_owned());
    }
    let cutoff = Cutoff { bytes, refill_ns };
    Ok(ClassCutoff { class, cutoff })
}

/// Record all traffic into memory; when a trigger matches, write what happened before and after it.
///
/// Exit codes: 0 done, 1 failed, 2 usage, 3 done but a dump is incomplete or triggers may have been missed. SIGUSR1 triggers by hand, SIGUSR2 prints
/// statistics, SIGINT or SIGTERM finish the open dumps and stop, a second one stops at once; so does SIGHUP where stdin or stderr is a
/// terminal.
#[derive(Debug, Clone, clap::Args)]
#[command(disable_version_flag = true)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) input: InputArgs,

    #[command(flatten)]
    pub(crate) flows: FlowArgs,

    /// Read options, and rules with names, from this TOML file: its keys are the long names of these options, which win over it (docs/configuration.md).
    /// SIGHUP reads it again
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Say what is wrong in the file of --config, and exit: 0 nothing, 2 something
    #[arg(long, requires = "config")]
    pub(crate) check_config: bool,

    /// Rules of that file.
    #[arg(skip)]
    pub(crate) rules: Vec<ConfigRule>,

    /// Keep the ring in this file, on tmpfs or hugetlbfs, where `retroscope status` and `query` read it and where it stays after
    /// the end. An older ring file in its place is replaced, unless a recorder holds it
    #[arg(long, value_name = "PATH", conflicts_with = "ring_memfd")]
    pub(crate) ring_file: Option<PathBuf>,

    /// Keep the ring in a file without a name, which `retroscope status` and `query` read as /proc/PID/fd/N while this runs
    #[arg(long)]
    pub(crate) ring_memfd: bool,

    /// What happens when the ring is full of what dumps and pins want
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = WhenFull::Record)]
    when_full: WhenFull,

    #[command(flatten)]
    pub(crate) api: ApiArgs,

    #[command(flatten)]
    pub(crate) alerts: AlertArgs,

    /// Bytes kept of each packet; 0: all
    #[arg(
        short = 's',
        long = "snaplen",
        value_name = "BYTES",
        default_value_t = 0
    )]
    snaplen: u32,

    /// Keep the first BYTES of payload of each direction of a flow, as `20KiB`, and again after TIME without a packet of it, as `20KiB/5m`: 60s if it does not say. Of a class of
    /// flows: `tcp port 443=20KiB`, where the pcap-filter(7) expression takes their first packet; repeat for several, the first that does counts. SYN, FIN and
    /// RST are kept, and all of flows with a packet that a trigger took. What is not kept is lost by the cause `shed`
    #[arg(long = "cutoff", value_name = "[EXPR=]BYTES[/TIME]", value_parser = cutoff)]
    cutoffs: Vec<ClassCutoff>,

    /// Live, tail early drop: while the source loses packets, or more than a quarter of the ring is not looked at yet, keep only the first packets of flows, every 10 ms half as
    /// many, down to MIN, and one more every 10 ms without. SYN, FIN and RST are kept, and all of flows with a packet that a trigger took. What is not kept is lost by the cause `shed`
    #[arg(
        long,
        value_name = "MIN",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "16",
        value_parser = clap::value_parser!(u32).range(1..=4096)
    )]
    ted: Option<u32>,

    /// Live: keep the ring reaching back for TIME. While what comes would not fit, flows keep their first 16 MiB of each direction, 8 MiB, and so on down to 4 KiB, and more again when
    /// there is room; each step is told. SYN, FIN and RST are kept, and all of flows with a packet that a trigger took. What is not kept is lost by the cause `shed`
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    history_goal: Option<Duration>,

    /// Trigger: a pcap-filter(7) expression; repeat for several
    #[arg(
        short = 't',
        long = "trigger",
        visible_alias = "trigger-expr",
        value_name = "EXPR"
    )]
    pub(crate) triggers: Vec<String>,

    /// Trigger: a Lua file that returns function(pkt), which says whether a packet triggers; repeat for several
    #[arg(long, visible_alias = "trigger-code", value_name = "FILE")]
    pub(crate) trigger_lua: Vec<PathBuf>,

    /// Trigger: a module over flows, a Lua file that returns a table of functions; repeat for several
    #[arg(long = "module", value_name = "FILE")]
    pub(crate) modules: Vec<PathBuf>,

    /// What to dump: pcap-filter(7) with $srcIP $dstIP $srcPort $dstPort $proto $srcMAC $dstMAC $vlan of the trigger
    /// packet, and the terms $flow $iface $communityId; empty: everything
    #[arg(long, visible_alias = "dumper-expr", value_name = "TEMPLATE", default_value = DEFAULT_DUMP)]
    dump: String,

    /// What to dump: a Lua file that returns function(trigger), which makes of the trigger packet a function(pkt), or the text
    /// of a --dump expression
    #[arg(
        long,
        visible_alias = "dumper-code",
        value_name = "FILE",
        conflicts_with = "dump"
    )]
    pub(crate) dump_lua: Option<PathBuf>,

    /// What the Nth trigger dumps, in place of --dump or --dump-lua: of --trigger in their order, from 1, then of --trigger-lua, then of --module; repeat for several
    #[arg(long, value_name = "N=TEMPLATE", value_parser = numbered)]
    trigger_dump: Vec<(usize, String)>,

    /// Where the files of the Nth trigger's dumps go: a directory of this name below that of -w, made if missing; repeat for several
    #[arg(long, value_name = "N=NAME", value_parser = numbered)]
    trigger_into: Vec<(usize, String)>,

    /// Let the Lua files do whatever this program can: raw memory (FFI), files, commands
    #[arg(long)]
    pub(crate) lua_trusted: bool,

    /// What SIGUSR1 dumps [default: everything]
    #[arg(
        long,
        value_name = "EXPR",
        default_value = "",
        hide_default_value = true
    )]
    manual_dump: String,

    /// Time before the trigger
    #[arg(long, visible_alias = "dump-past", value_name = "TIME", default_value = "10s", value_parser = units::duration)]
    past: Duration,

    /// Time after the trigger
    #[arg(long, visible_alias = "dump-future", value_name = "TIME", default_value = "5s", value_parser = units::duration)]
    future: Duration,

    /// How late a packet of a file may be: windows stay open that much longer (with -r)
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::duration)]
    hold: Duration,

    /// Disarm all triggers after the first dump; recording and SIGUSR1 go on
    #[arg(long)]
    single: bool,

    /// End a dump when it has so many packets; 0: without limit
    #[arg(long, value_name = "N", default_value_t = 0)]
    dump_packets: u64,

    /// End a dump with the packet by which it has so many captured bytes, like 100MiB; 0: without limit
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = units::size_or_none)]
    dump_bytes: u64,

    /// Dumps open at once at most; further triggers are refused and counted. Of this limit and the next two, where there are
    /// several triggers, one of them may use half; the others share the rest
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    max_dumps: u32,

    /// Dumps started in any minute at most (of the packets, with -r); 0: without limit. Without
    /// this option, 400 for triggers, and no limit for alerts
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    dumps_per_minute: Option<u32>,

    /// Start no dump while dumps wrote SIZE in the last hour (of the packets, with -r), like 20GiB;
    /// 0: without limit. A trigger by hand still starts a dump
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = units::size_or_none)]
    bytes_per_hour: u64,

    /// After a dump's window, time in which what triggered it, the same trigger with the same dump expression, starts none
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = units::duration)]
    hold_off: Duration,

    /// Directory for dumps, made if missing
    #[arg(
        short = 'w',
        long = "write",
        visible_alias = "path",
        value_name = "DIR",
        default_value = "."
    )]
    directory: PathBuf,

    /// File format of dumps
    #[arg(long, value_enum, default_value_t = FormatName::Pcapng)]
    format: FormatName,

    #[command(flatten)]
    pub(crate) files: FileArgs,

    /// Leave creation times and this host's name out of dumps, so that two runs over the same files give the same bytes
    #[arg(long)]
    reproducible: bool,

    /// List the interfaces and exit
    #[arg(short = 'D', long = "list-interfaces")]
    pub(crate) list: bool,

    /// Where tcpdump has its expression: refused, since there are two things that it may mean
    #[arg(value_name = "EXPR", hide = true)]
    expression: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum FormatName {
    /// Interfaces, comments, statistics, verdict
    Pcapng,
    /// For old tools: ns stamps, one link type a file, verdict in the sidecar only
    Pcap,
}

impl Args {
    /// Says what to write instead of an expression without an option.
    pub(crate) fn refuse_expression(&self) -> Result<(), Failure> {
        if self.expression.is_empty() {
            return Ok(());
        }
        let words = self.expression.join(" ");
        Err(Failure::usage(format!(
            "'{words}' has no option before it: --trigger EXPR is what starts a dump, -f EXPR what is recorded at all"
        )))
    }

    /// Checks what clap cannot, and resolves defaults. The second value holds sentences for the user.
    pub(crate) fn resolve(&self) -> Result<(Config, Vec<String>), Failure> {
        let input = &self.input;
        let no_trigger = self.trigger_count() == 0 && self.alerts.alerts.is_empty();
        let mut notes = Vec::new();
        let of_input = input.config(memory::default_ring, &mut notes)?;
        if of_input.offline && no_trigger {
            return Err(Failure::usage(
                "-r needs a trigger: say --trigger EXPR, for example --trigger 'udp port 53', or --alerts FILE",
            ));
        }
        if of_input.offline && self.ted.is_some() {
            return Err(Failure::usage(
                "--ted is for live sources: files wait, and nothing of them is lost",
            ));
        }
        if of_input.offline && self.history_goal.is_some() {
            return Err(Failure::usage(
                "--history-goal is for live sources: what comes from files comes at no rate",
            ));
        }
        let goals = Duration::from_secs(1)..=Duration::from_secs(86_400);
        if self.history_goal.is_some_and(|goal| !goals.contains(&goal)) {
            return Err(Failure::usage("--history-goal: 1s to 24h"));
        }
        self.check_directory()?;
        let modules = self.rules.iter().map(|rule| &rule.what);
        let modules = modules.filter(|what| matches!(what, What::Module(_)));
        let are_modules = !self.modules.is_empty() || modules.count() > 0;
        self.flows.refuse_without_use(are_modules)?;
        if !of_input.offline && no_trigger {
            let pid = std::process::id();
            let by_signal = format!("SIGUSR1 (kill -USR1 {pid})");
            notes.push(if self.api.addresses.is_empty() {
                format!("no --trigger: only {by_signal} starts a dump")
            } else {
                format!("no --trigger: dumps are started by {by_signal} and at --api")
            });
        }
        let config = self.followed(Config {
            ring_backing: self.backing(),
            scripts: self.scripts()?,
            flows: self.flows.eve.is_some().then(|| self.flows.tracker()),
            hold: self.hold,
            single: self.single,
            snaplen: self.snaplen,
            tail_drop_min: self.ted,
            history_goal: self.history_goal,
            directory: Some(self.directory.clone()),
            format: match self.format {
                FormatName::Pcapng => DumpFormat::PcapNg,
                FormatName::Pcap => DumpFormat::Pcap,
            },
            alerts: self.alerts.config(of_input.offline)?,
            reproducible: self.reproducible,
            ..of_input
        })?;
        let config = self.files.apply(config);
        Ok((config, notes))
    }

    /// A configuration with what of it may change while the recording runs.
    pub(crate) fn followed(&self, config: Config) -> Result<Config, Failure> {
        let takes_all = |cutoff: &ClassCutoff| cutoff.class.is_none();
        let last = self.cutoffs.len().saturating_sub(1);
        if self.cutoffs.iter().take(last).any(takes_all) {
            return Err(Failure::usage(
                "--cutoff: one without an expression takes all flows, and those behind it would be for none: say it last",
            ));
        }
        let (names, requests) = self.names_and_requests()?;
        let of_rules = self.rules.iter().filter_map(|rule| match &rule.what {
            What::Filter(text) => Some(text),
            What::Lua(_) | What::Module(_) => None,
        });
        Ok(Config {
            when_full: self.when_full.into(),
            triggers: self.triggers.iter().chain(of_rules).cloned().collect(),
            names,
            requests,
            dump: self.dump.clone(),
            manual_dump: self.manual_dump.clone(),
            past: self.past,
            future: self.future,
            max_dumps: self.max_dumps as usize,
            hold_off: self.hold_off,
            dumps_per_minute: self.dumps_per_minute.unwrap_or(DUMPS_PER_MINUTE).into(),
            limit_alerts_per_minute: self.dumps_per_minute.is_some(),
            bytes_per_hour: self.bytes_per_hour,
            dump_packets: self.dump_packets,
            dump_bytes: self.dump_bytes,
            cutoffs: self.cutoffs.clone(),
            ..config
        })
    }

    /// The expressions of the options, which are tried before anything starts.
    pub(crate) fn expressions(&self) -> Vec<Expression<'_>> {
        let one = |option, number, text, is_template| Expression {
            option: (option, number),
            text,
            is_template,
        };
        let mut all = vec![one("manual-dump", 0, self.manual_dump.as_str(), false)];
        if self.dump_lua.is_none() {
            all.push(one("dump", 0, &self.dump, true));
        }
        all.extend(
            self.input
                .filter()
                .map(|text| one("filter", 0, text, false)),
        );
        let triggers = self.triggers.iter().enumerate();
        all.extend(triggers.map(|(n, text)| one("trigger", n, text, false)));
        let dumps = self.trigger_dump.iter().enumerate();
        all.extend(dumps.map(|(n, (_, text))| one("trigger-dump", n, text, true)));
        let classes = self.cutoffs.iter().enumerate();
        let classes = classes.filter_map(|(n, of)| Some((n, of.class.as_deref()?)));
        all.extend(classes.map(|(n, text)| one("cutoff", n, text, false)));
        all
    }

    /// Triggers of options, which are numbered.
    pub(crate) fn numbered_count(&self) -> usize {
        self.triggers.len() + self.trigger_lua.len() + self.modules.len()
    }

    fn trigger_count(&self) -> usize {
        self.numbered_count() + self.rules.len()
    }

    /// What triggers are called, and what they ask for of their own: expressions, those of rules behind those of options, then functions and modules in the
    /// same way.
    fn names_and_requests(&self) -> Result<(Vec<String>, Vec<TriggerRequest>), Failure> {
        let numbered = self.numbered_requests()?.into_iter().enumerate();
        let mut numbered = numbered.map(|(number, it)| ((number + 1).to_string(), it));
        let mut all: Vec<(String, TriggerRequest)> = Vec::new();
        let kinds: [(usize, IsSuch); 3] = [
            (self.triggers.len(), |what| matches!(what, What::Filter(_))),
            (self.trigger_lua.len(), |what| matches!(what, What::Lua(_))),
            (self.modules.len(), |what| matches!(what, What::Module(_))),
        ];
        for (count, is_such) in kinds {
            all.extend(numbered.by_ref().take(count));
            let rules = self.rules.iter().filter(|rule| is_such(&rule.what));
            all.extend(rules.map(|rule| (rule.name.clone(), rule.request.clone())));
        }
        Ok(all.into_iter().unzip())
    }

    /// What the triggers of options ask for.
    fn numbered_requests(&self) -> Result<Vec<TriggerRequest>, Failure> {
        let triggers = self.numbered_count();
        let mut requests = vec![TriggerRequest::default(); triggers];
        let dumps = self.trigger_dump.iter().map(|it| ("--trigger-dump", it));
        let places = self.trigger_into.iter().map(|it| ("--trigger-into", it));
        let kept = self
            .files
            .trigger_keep
            .iter()
            .map(|it| ("--trigger-keep", it));
        for (option, (number, what)) in dumps.chain(places).chain(kept) {
            let wrong = |why: String| Failure::usage(format!("{option} {number}={what}: {why}"));
            let request = requests.get_mut(number - 1);
            let request =
                request.ok_or_else(|| wrong(format!("the last trigger is number {triggers}")))?;
            let is_second = match option {
                "--trigger-into" => {
                    let place = SubDirectory::new(what).map_err(wrong)?;
                    request.into.replace(place).is_some()
                }
                "--trigger-keep" => {
                    let keep = file_args::keep(what).map_err(wrong)?;
                    request.keep.replace(keep).is_some()
                }
                _ => request.dump.replace(what.clone()).is_some(),
            };
            if is_second {
                let twice = format!("trigger {number} has another one already");
                return Err(wrong(twice));
            }
        }
        Ok(requests)
    }

    fn scripts(&self) -> Result<Scripts, Failure> {
        let read = |path: &PathBuf| Script::read(path, self.lua_trusted).map_err(Failure::failed);
        let of_rules = |path: fn(&What) -> Option<&PathBuf>| {
            let rules = self.rules.iter();
            rules.filter_map(move |rule| path(&rule.what))
        };
        let functions = of_rules(|what| match what {
            What::Lua(path) => Some(path),
            _ => None,
        });
        let modules = of_rules(|what| match what {
            What::Module(path) => Some(path),
            _ => None,
        });
        let triggers = self.trigger_lua.iter().chain(functions).map(read);
        let modules = self.modules.iter().chain(modules).map(read);
        Ok(Scripts {
            triggers: triggers.collect::<Result<_, _>>()?,
            dump: self.dump_lua.as_ref().map(read).transpose()?,
            modules: modules.collect::<Result<_, _>>()?,
            module_flows: self.flows.tracker(),
        })
    }

    fn check_directory(&self) -> Result<(), Failure> {
        let extension = self.directory.extension().unwrap_or_default();
        let is_capture = ["pcap", "pcapng", "cap"]
            .iter()
            .any(|one| extension.eq_ignore_ascii_case(one));
        if !self.directory.is_dir() && (is_capture || self.directory.exists()) {
            let shown = self.directory.display();
            return Err(Failure::usage(format!(
                "-w {shown}: name a directory, one file per dump is written there"
            )));
        }
        Ok(())
    }

    fn backing(&self) -> Backing {
        match &self.ring_file {
            Some(path) => Backing::File(path.clone()),
            None if self.ring_memfd => Backing::Memfd,
            None => Backing::Anonymous,
        }
    }
}

/// Whether a rule is of a kind.
type IsSuch = fn(&What) -> bool;

/// What is said of a trigger, by its number.
pub(super) fn numbered(text: &str) -> Result<(usize, String), String> {
    let (number, what) = text.split_once('=').unwrap_or_default();
    match number.parse() {
        Ok(number @ 1..) => Ok((number, what.to_owned())),
        _ => Err("it is the number of a trigger, from 1, then '=', as in 1=host $srcIP".to_owned()),
    }
}
