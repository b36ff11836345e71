//! The configuration of a recorder.

use std::{num::NonZero, path::PathBuf, time::Duration};

use retroscope_capture::{Source, SourceError};
use retroscope_flow::{Cutoff, TrackerConfig};
use retroscope_ring::{Backing, Mode};
use retroscope_script::Script;

use crate::{
    analysis::terms::TriggerRequest,
    control::alerts::AlertConfig,
    dump::{
        compress::ZstdLevel,
        encode::DumpFormat,
        post::PostConfig,
        store::{MinFree, RetentionLimit},
        stream::DigestTime,
        template::NameTemplate,
    },
};

/// The configuration of a recorder.
#[derive(Debug, Clone)]
pub struct Config {
    /// The sources are files, merged by time, instead of live sources.
    pub offline: bool,
    /// Size of the ring, bytes.
    pub ring_bytes: u64,
    /// The memory of the ring.
    pub ring_backing: Backing,
    /// Live: what happens if dumps and pins need all buckets of the ring, [`Mode::Record`] or
    /// [`Mode::Protect`].
    pub when_full: Mode,
    /// The NUMA node of the ring's memory.
    pub numa_node: Option<u32>,
    /// Threads that each live source may use, at least 1.
    pub rx_threads: usize,
    /// Live: this number of threads, at least 1, serves the queues of all sources. `None`, or more
    /// than there are queues: one thread for each queue.
    pub capture_threads: Option<usize>,
    /// Where packets are analyzed.
    pub analyzers: Analyzers,
    /// Trigger expressions.
    pub triggers: Vec<String>,
    /// Dump template of the triggers without a separate template (`requests`); empty: everything.
    pub dump: String,
    /// Default dump expression of manual triggers; empty: everything.
    pub manual_dump: String,
    /// Scripts that trigger or dump.
    pub scripts: Scripts,
    /// Count flows, and report flows when they end; `None`: no flow accounting.
    pub flows: Option<TrackerConfig>,
    /// Capture filter.
    pub filter: Option<String>,
    /// Cutoffs of flows. The first class that matches a flow's first packet applies; flows without
    /// a class have no cutoff.
    pub cutoffs: Vec<ClassCutoff>,
    /// Live: during congestion, only the first packets of each flow are kept, at least this number,
    /// 1 to 4,096.
    pub tail_drop_min: Option<u32>,
    /// Live: if the ring would not reach back this long, flows keep less.
    pub history_goal: Option<Duration>,
    /// Requests of the triggers that differ from the settings below, in the order of triggers:
    /// expressions, scripts, modules. A missing request is a default request.
    pub requests: Vec<TriggerRequest>,
    /// Names of the triggers, in the order of `requests`: different names of 1 to 64 bytes without
    /// control characters. A trigger without a name gets its place as its name, from 1.
    pub names: Vec<String>,
    /// Packet time before a trigger.
    pub past: Duration,
    /// Packet time after a trigger.
    pub future: Duration,
    /// How late a packet may be, if it is from a file, or from a live source with stamps of another
    /// system's clock.
    pub hold: Duration,
    /// Whether the first dump of any rule disarms all rules.
    pub single: bool,
    /// Maximum number of open dumps of rules. If there are several rules, one rule may have about
    /// half of these dumps. Manual triggers may have as many dumps in addition.
    pub max_dumps: usize,
    /// For this time after the end of a dump's window, the same rule with the same filled-in dump
    /// expression starts no dump.
    pub hold_off: Duration,
    /// Maximum number of dumps that rules start in any minute, shared like `max_dumps`; 0: no
    /// limit.
    pub dumps_per_minute: u64,
    /// Whether `dumps_per_minute` also limits dumps of alerts.
    pub limit_alerts_per_minute: bool,
    /// If dumps have written this number of bytes within an hour, rules and alerts start dumps only
    /// below their share. 0: no limit.
    pub bytes_per_hour: u64,
    /// A dump ends after this number of packets; 0: no limit.
    pub dump_packets: u64,
    /// A dump ends after this number of captured bytes; 0: no limit.
    pub dump_bytes: u64,
    /// Maximum number of bytes kept of each packet; 0: all bytes.
    pub snaplen: u32,
    /// Stop after storing this many packets.
    pub count: Option<u64>,
    /// Stop after this time; offline, of packet time.
    pub duration: Option<Duration>,
    /// The directory for dumps. `None`: for a recorder that dumps nothing.
    pub directory: Option<PathBuf>,
    /// File format of dumps.
    pub format: DumpFormat,
    /// Level at which complete dump files are compressed. `None`: dump files stay uncompressed.
    pub zstd: Option<ZstdLevel>,
    /// Template for the names of dump files.
    pub name: NameTemplate,
    /// Write the SHA-256 of dumps' files into their sidecars.
    pub sha256: bool,
    /// Limits on the bytes and the age of all dumps in the directory, including dumps of earlier
    /// recorders.
    pub keep: RetentionLimit,
    /// Dumps are deleted if the file system of the directory is full, or has less room than this.
    /// `None`: no dump is deleted for lack of room.
    pub min_free: Option<MinFree>,
    /// A command that runs for each finished dump.
    pub post: Option<PostConfig>,
    /// How the recorder acts on alerts; and, for a recording of files, the alerts.
    pub alerts: AlertConfig,
    /// Leaves out creation times, the host's name, the UUID of the recording and packet IDs.
    pub reproducible: bool,
}

impl Config {
    /// The number of rules, scripts and modules included.
    pub(super) fn rules(&self) -> usize {
        self.triggers.len() + self.scripts.triggers.len() + self.scripts.modules.len()
    }
}

/// Live, 64 MiB; no triggers; no limits except 64 dumps at once and those of [`AlertConfig`].
impl Default for Config {
    fn default() -> Self {
        Self {
            offline: false,
            ring_bytes: 64 << 20,
            ring_backing: Backing::Anonymous,
            when_full: Mode::Record,
            numa_node: None,
            rx_threads: 1,
            capture_threads: None,
            analyzers: Analyzers::Auto,
            triggers: Vec::new(),
            dump: String::new(),
            manual_dump: String::new(),
            scripts: Scripts::default(),
            flows: None,
            filter: None,
            cutoffs: Vec::new(),
            tail_drop_min: None,
            history_goal: None,
            requests: Vec::new(),
            names: Vec::new(),
            past: Duration::ZERO,
            future: Duration::ZERO,
            hold: Duration::ZERO,
            single: false,
            max_dumps: 64,
            hold_off: Duration::ZERO,
            dumps_per_minute: 0,
            limit_alerts_per_minute: true,
            bytes_per_hour: 0,
            dump_packets: 0,
            dump_bytes: 0,
            snaplen: 0,
            count: None,
            duration: None,
            directory: None,
            format: DumpFormat::PcapNg,
            zstd: None,
            name: NameTemplate::default(),
            sha256: DigestTime::here() == DigestTime::AsWritten,
            keep: RetentionLimit::default(),
            min_free: None,
            post: None,
            alerts: AlertConfig::default(),
            reproducible: false,
        }
    }
}

/// A class of flows, and its cutoff.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassCutoff {
    /// A filter for the first packet of a flow; `None`: all flows.
    pub class: Option<String>,
    /// The part of each flow that is kept.
    pub cutoff: Cutoff,
}

/// Where packets are analyzed for triggers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Analyzers {
    /// The recorder chooses. Live, the thread that stores the packets usually analyzes them while
    /// it keeps up. From files, another thread usually does.
    #[default]
    Auto,
    /// In the thread that stores the packets, even if that leads to losses. From files as
    /// [`Self::Auto`].
    Inline,
    /// In at most this number of other threads; from files, the thread that stores packets may
    /// help.
    Threads(NonZero<usize>),
}

/// Functions of the user.
#[derive(Debug, Clone, Default)]
pub struct Scripts {
    /// Trigger scripts, in addition to the trigger expressions.
    pub triggers: Vec<Script>,
    /// Makes the filter of a dump from a trigger packet, instead of the dump template. Triggers
    /// with a separate template keep their template.
    pub dump: Option<Script>,
    /// Modules over flows, one instance in each shard.
    pub modules: Vec<Script>,
    /// How the flows of modules are distinguished, when they time out, and how many flows each
    /// module may have in each shard.
    pub module_flows: TrackerConfig,
}

impl Scripts {
    /// Whether a trigger script or module may join pairs of addresses.
    pub(crate) fn joins(&self) -> bool {
        self.triggers.iter().chain(&self.modules).any(Script::joins)
    }
}

/// Makes the sources, in the order the user gave. Called once.
pub type Sources<'a> = dyn Fn() -> Result<Vec<Box<dyn Source>>, SourceError> + 'a;
