//! The arguments of `retroscope record`, and what they mean together.

use std::{
    fs,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::ValueEnum;
use retroscope_recorder::{Analyzers, Config, Format, Scripts, SubDirectory, TriggerRequest};
use retroscope_ring::Backing;
use retroscope_script::Script;

use super::{engine::EngineArgs, has_engine, is_generator, live::LiveArgs};
use crate::{commands::protocol::WhenFull, failure::Failure, memory, numa, units};

/// The connection of the trigger packet.
const DEFAULT_DUMP: &str = "$flow";

/// Record all traffic into memory; when a trigger matches, write what happened before and after it.
///
/// Exit codes: 0 done, 1 failed, 2 usage, 3 done but a dump is incomplete or triggers may have been missed. SIGUSR1 triggers by hand, SIGUSR2 prints
/// statistics, SIGINT or SIGTERM finish the open dumps and stop, a second one stops at once; so does SIGHUP where stdin or stderr is a
/// terminal.
#[derive(Debug, Clone, clap::Args)]
#[command(disable_version_flag = true)]
pub(crate) struct Args {
    /// Interface to record (repeat for several); `TCP@HOST:PORT` for a stream of pcap or pcapng from there, or
    /// `generate:flows=…,size=…,rate=…` for made-up traffic
    #[arg(
        short = 'i',
        long = "interface",
        visible_alias = "device",
        value_name = "IFACE"
    )]
    pub(crate) interfaces: Vec<String>,

    /// Capture file to read instead (repeat to merge several by time): pcap or pcapng, also gzip or zstd
    #[arg(short = 'r', long = "read", value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,

    #[command(flatten)]
    pub(crate) engine: EngineArgs,

    /// Memory for packets, like 4GiB [default: 1GiB, or a quarter of the available memory if less]
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    pub(crate) ring: Option<u64>,

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

    /// Listen at this unix socket for commands, which `retroscope ctl` sends: for this user, root and the socket's group
    #[arg(long, value_name = "PATH")]
    pub(crate) control: Option<PathBuf>,

    /// The ring in GiB: FlowScope's name
    #[arg(long, value_name = "GIB", conflicts_with = "ring", hide = true)]
    size: Option<u64>,

    /// Capture filter: what does not match is not recorded
    #[arg(short = 'f', long = "filter", value_name = "EXPR")]
    filter: Option<String>,

    /// Read the capture filter from a file
    #[arg(
        short = 'F',
        long = "filter-file",
        value_name = "FILE",
        conflicts_with = "filter"
    )]
    filter_file: Option<PathBuf>,

    /// Bytes kept of each packet; 0: all
    #[arg(
        short = 's',
        long = "snaplen",
        value_name = "BYTES",
        default_value_t = 0
    )]
    snaplen: u32,

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
    dump_lua: Option<PathBuf>,

    /// What the Nth trigger dumps, in place of --dump or --dump-lua: of --trigger in their order, from 1, then of --trigger-lua; repeat for several
    #[arg(long, value_name = "N=TEMPLATE", value_parser = numbered)]
    trigger_dump: Vec<(usize, String)>,

    /// Where the files of the Nth trigger's dumps go: a directory of this name below that of -w, made if missing; repeat for several
    #[arg(long, value_name = "N=NAME", value_parser = numbered)]
    trigger_into: Vec<(usize, String)>,

    /// Let the Lua files do whatever this program can: raw memory (FFI), files, commands
    #[arg(long)]
    lua_trusted: bool,

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

    /// Dumps started in any minute at most (of the packets, with -r); 0: without limit
    #[arg(long, value_name = "N", default_value_t = 400, value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    dumps_per_minute: u32,

    /// Start no dump while so much was written in the last hour (of the packets, with -r), like 20GiB; 0: without limit
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = units::size_or_none)]
    bytes_per_hour: u64,

    /// After a dump's window, time in which what triggered it, the same trigger with the same dump expression, starts none
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = units::duration)]
    hold_off: Duration,

    /// Capture threads for each interface; af-xdp has one for each receive queue, pcap and -r one, whatever is given
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    rx_threads: u32,

    /// Where triggers are looked for: `inline`, in the threads that capture; in N other threads; or `auto`, inline as long as that keeps up and in
    /// one more thread else
    #[arg(long, value_name = "inline|N|auto", default_value = "auto", value_parser = analyzers)]
    analyzers: Analyzers,

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

    /// Stop after so many recorded packets
    #[arg(short = 'c', long = "count", value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,

    /// Stop after this time (of the packets, with -r)
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    duration: Option<Duration>,

    /// Print a summary as one JSON object on the last line of stdout
    #[arg(long)]
    pub(crate) json: bool,

    /// Leave creation times out of dumps, so that two runs over the same files give the same bytes
    #[arg(long)]
    reproducible: bool,

    /// List the interfaces and exit
    #[arg(short = 'D', long = "list-interfaces")]
    pub(crate) list: bool,

    #[command(flatten)]
    pub(crate) live: LiveArgs,

    /// Become this user (a name, or UID:GID) once everything is open. Capabilities are given up in any case
    #[arg(short = 'Z', long = "relinquish-privileges", value_name = "USER")]
    pub(crate) user: Option<String>,

    /// Say only what went wrong
    #[arg(short = 'q', long)]
    pub(crate) quiet: bool,

    /// Say more: statistics of every source and of the ring at the end
    #[arg(short = 'v', long)]
    pub(crate) verbose: bool,

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
        let offline = !self.files.is_empty();
        if offline && !self.interfaces.is_empty() {
            return Err(Failure::usage(
                "choose -i or -r: a recording is either live or from files",
            ));
        }
        let no_trigger = self.triggers.is_empty() && self.trigger_lua.is_empty();
        if offline && no_trigger {
            return Err(Failure::usage(
                "-r needs a trigger: say --trigger EXPR, for example --trigger 'udp port 53'",
            ));
        }
        let mut numbered = self.interfaces.iter().enumerate();
        if let Some((_, name)) = numbered.find(|(i, name)| self.interfaces[..*i].contains(name)) {
            return Err(Failure::usage(format!(
                "-i {name} is given twice: name each interface once"
            )));
        }
        self.check_directory()?;
        let mut notes = Vec::new();
        let ring_bytes = self.ring_bytes(&mut notes);
        if !offline && no_trigger {
            let pid = std::process::id();
            notes.push(if self.control.is_some() {
                format!(
                    "no --trigger: dumps are started by SIGUSR1 (kill -USR1 {pid}) and at --control"
                )
            } else {
                format!("no --trigger: only SIGUSR1 starts a dump (kill -USR1 {pid})")
            });
        }
        if offline && self.rx_threads > 1 {
            notes.push("--rx-threads: files are read by one thread".to_owned());
        }
        if self.live.cpus.is_some() && !self.interfaces.iter().any(|name| has_engine(name)) {
            notes.push("--cpus: there is no interface whose threads it could pin".to_owned());
        }
        let config = Config {
            offline,
            ring_bytes,
            ring_backing: self.backing(),
            when_full: self.when_full.into(),
            numa_node: self.numa_node(&mut notes),
            rx_threads: self.rx_threads as usize,
            analyzers: self.analyzers,
            triggers: self.triggers.clone(),
            dump: self.dump.clone(),
            manual_dump: self.manual_dump.clone(),
            scripts: self.scripts()?,
            filter: self.filter_text()?,
            requests: self.requests()?,
            past: self.past,
            future: self.future,
            hold: self.hold,
            single: self.single,
            max_dumps: self.max_dumps as usize,
            hold_off: self.hold_off,
            dumps_per_minute: self.dumps_per_minute.into(),
            bytes_per_hour: self.bytes_per_hour,
            dump_packets: self.dump_packets,
            dump_bytes: self.dump_bytes,
            snaplen: self.snaplen,
            count: self.count,
            duration: self.duration,
            directory: self.directory.clone(),
            format: match self.format {
                FormatName::Pcapng => Format::PcapNg,
                FormatName::Pcap => Format::Pcap,
            },
            reproducible: self.reproducible,
        };
        Ok((config, notes))
    }

    /// What triggers ask for of their own.
    fn requests(&self) -> Result<Vec<TriggerRequest>, Failure> {
        let triggers = self.triggers.len() + self.trigger_lua.len();
        let mut requests = vec![TriggerRequest::default(); triggers];
        let dumps = self.trigger_dump.iter().map(|it| ("--trigger-dump", it));
        let places = self.trigger_into.iter().map(|it| ("--trigger-into", it));
        for (option, (number, what)) in dumps.chain(places) {
            let wrong = |why: String| Failure::usage(format!("{option} {number}={what}: {why}"));
            let request = requests.get_mut(number - 1);
            let request =
                request.ok_or_else(|| wrong(format!("the last trigger is number {triggers}")))?;
            let is_second = if option == "--trigger-into" {
                let place = SubDirectory::new(what).map_err(wrong)?;
                request.into.replace(place).is_some()
            } else {
                request.dump.replace(what.clone()).is_some()
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
        let triggers = self.trigger_lua.iter().map(read);
        Ok(Scripts {
            triggers: triggers.collect::<Result<_, _>>()?,
            dump: self.dump_lua.as_ref().map(read).transpose()?,
        })
    }

    /// Where dumps go.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
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

    fn ring_bytes(&self, notes: &mut Vec<String>) -> u64 {
        let available = memory::available();
        let asked = self
            .ring
            .or(self.size.map(|gib| gib.saturating_mul(1 << 30)));
        let Some(asked) = asked else {
            return memory::default_ring(available);
        };
        match available.map(memory::largest_ring) {
            Some(largest) if asked > largest => {
                let (asked, fits) = (units::show_size(asked), units::show_size(largest));
                notes.push(format!(
                    "a ring of {asked} does not fit into the available memory; using {fits}"
                ));
                largest
            }
            _ => asked,
        }
    }

    fn backing(&self) -> Backing {
        match &self.ring_file {
            Some(path) => Backing::File(path.clone()),
            None if self.ring_memfd => Backing::Memfd,
            None => Backing::Anonymous,
        }
    }

    /// The node that all live interfaces are on, where the machine has several.
    fn numa_node(&self, notes: &mut Vec<String>) -> Option<u32> {
        let live = self.interfaces.iter().filter(|name| !is_generator(name));
        let topology = numa::Topology::read(Path::new("/sys"), live.map(String::as_str));
        let node = topology.common_node();
        if node.is_none() && topology.nodes > 1 && topology.known().count() > 1 {
            notes.push(
                "the interfaces are on several NUMA nodes: the ring's memory is on any".to_owned(),
            );
        }
        node
    }

    fn filter_text(&self) -> Result<Option<String>, Failure> {
        let Some(path) = &self.filter_file else {
            return Ok(self.filter.clone());
        };
        let text = fs::read_to_string(path)
            .map_err(|error| Failure::failed(format!("cannot read {}: {error}", path.display())))?;
        // As tcpdump -F: a comment runs from # to the end of its line.
        let lines = text.lines().filter_map(|line| line.split('#').next());
        let text = lines.collect::<Vec<_>>().join(" ");
        Ok(Some(text.trim().to_owned()))
    }
}

/// What is said of a trigger, by its number.
fn numbered(text: &str) -> Result<(usize, String), String> {
    let (number, what) = text.split_once('=').unwrap_or_default();
    match number.parse() {
        Ok(number @ 1..) => Ok((number, what.to_owned())),
        _ => Err("it is the number of a trigger, from 1, then '=', as in 1=host $srcIP".to_owned()),
    }
}

/// Where triggers are looked for, as people write it.
fn analyzers(text: &str) -> Result<Analyzers, String> {
    match text {
        "auto" => Ok(Analyzers::Auto),
        "inline" => Ok(Analyzers::Inline),
        number => match number.parse() {
            Ok(threads @ 1..=256_usize) => NonZeroUsize::new(threads).map(Analyzers::Threads),
            _ => None,
        }
        .ok_or_else(|| "it is 'inline', 'auto', or a number of threads from 1 to 256".to_owned()),
    }
}
