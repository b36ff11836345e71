//! The arguments about what packets come from: those of `retroscope record` and `retroscope flows`.

use std::{
    fs,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    time::Duration,
};

use retroscope_recorder::{Analyzers, Config};

use super::{engine::EngineArgs, has_engine, is_generator, live::LiveArgs};
use crate::{commands::interface_names, failure::Failure, memory, numa, units};

/// Where packets come from, and where they are looked at.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct InputArgs {
    /// Interface to read (repeat for several); `TCP@HOST:PORT` for a stream of pcap or pcapng from there, or
    /// `generate:flows=…,size=…,rate=…` for made-up traffic
    #[arg(
        short = 'i',
        long = "interface",
        visible_alias = "device",
        value_name = "IFACE"
    )]
    pub(crate) interfaces: Vec<String>,

    /// Read this capture file instead: pcap or pcapng, also gzip or zstd. Repeat to merge several
    /// files by time
    #[arg(
        short = 'r',
        long = "read",
        value_name = "FILE",
        conflicts_with = "interfaces"
    )]
    pub(crate) files: Vec<PathBuf>,

    #[command(flatten)]
    pub(crate) engine: EngineArgs,

    /// Memory for packets, like 4GiB [default: 1GiB, or a quarter of the available memory if less; for flows 256MiB]
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    pub(crate) ring: Option<u64>,

    /// The ring in GiB: FlowScope's name
    #[arg(long, value_name = "GIB", conflicts_with = "ring", hide = true)]
    size: Option<u64>,

    /// Capture filter: what does not match is neither recorded nor looked at
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

    /// Capture threads for each interface; af-xdp has one for each receive queue, pcap and -r one, whatever is given
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    rx_threads: u32,

    /// Where packets are looked at: `inline`, in the threads that capture; in N other threads; or `auto`, inline as long as that keeps up and in
    /// one more thread else
    #[arg(long, value_name = "inline|N|auto", default_value = "auto", value_parser = analyzers)]
    analyzers: Analyzers,

    /// Stop after so many packets
    #[arg(short = 'c', long = "count", value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,

    /// Stop after this time (of the packets, with -r)
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    duration: Option<Duration>,

    /// Print a summary as one JSON object on the last line of stdout
    #[arg(long)]
    pub(crate) json: bool,

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
}

impl InputArgs {
    /// Checks what clap cannot. What there is to record, without triggers and dumps; `default_ring` is the size of its ring by the available memory.
    /// `notes` gets sentences for the user.
    pub(crate) fn config(
        &self,
        default_ring: impl FnOnce(Option<u64>) -> u64,
        notes: &mut Vec<String>,
    ) -> Result<Config, Failure> {
        if self.interfaces.is_empty() && self.files.is_empty() {
            let list = interface_names();
            return Err(Failure::usage(format!(
                "say what to read: -i IFACE or -r FILE; interfaces: {list}"
            )));
        }
        let offline = !self.files.is_empty();
        let mut numbered = self.interfaces.iter().enumerate();
        if let Some((_, name)) = numbered.find(|(i, name)| self.interfaces[..*i].contains(name)) {
            return Err(Failure::usage(format!(
                "-i {name} is given twice: name each interface once"
            )));
        }
        if offline && self.rx_threads > 1 {
            notes.push("--rx-threads: files are read by one thread".to_owned());
        }
        if self.live.cpus.is_some() && !self.interfaces.iter().any(|name| has_engine(name)) {
            notes.push("--cpus: there is no interface whose threads it could pin".to_owned());
        }
        Ok(Config {
            offline,
            ring_bytes: self.ring_bytes(default_ring, notes),
            numa_node: self.numa_node(notes),
            rx_threads: self.rx_threads as usize,
            analyzers: self.analyzers,
            filter: self.filter_text()?,
            count: self.count,
            duration: self.duration,
            ..Config::default()
        })
    }

    fn ring_bytes(&self, default: impl FnOnce(Option<u64>) -> u64, notes: &mut Vec<String>) -> u64 {
        let available = memory::available();
        let asked = self
            .ring
            .or(self.size.map(|gib| gib.saturating_mul(1 << 30)));
        let Some(asked) = asked else {
            return default(available);
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

    /// The capture filter of `-f`.
    pub(crate) fn filter(&self) -> Option<&str> {
        self.filter.as_deref()
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
