//! What a recorder is asked to do.

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
        encode::Format,
        post::PostConfig,
        store::{MinFree, RetentionLimit},
        stream::Digests,
        template::NameTemplate,
    },
};

/// What to record and what to dump.
#[derive(Debug, Clone)]
pub struct Config {
    /// Files, merged by time and complete, rather than live sources.
    pub offline: bool,
    /// Bytes of the ring.
    pub ring_bytes: u64,
    /// What its memory is made of.
    pub ring_backing: Backing,
    /// Live: what happens when nothing in the ring may be overwritten but what dumps and pins want, [`Mode::Record`] or [`Mode::Protect`].
    pub when_full: Mode,
    /// The NUMA node that it should come from.
    pub numa_node: Option<u32>,
    /// Threads that each live source may use, at least 1.
    pub rx_threads: usize,
    /// Where packets are looked at.
    pub analyzers: Analyzers,
    /// Trigger expressions.
    pub triggers: Vec<String>,
    /// Dump template of the triggers that have none of their own (`requests`); empty: everything.
    pub dump: String,
    /// What a trigger by hand dumps; empty: everything.
    pub manual_dump: String,
    /// Scripts that trigger or dump.
    pub scripts: Scripts,
    /// Count flows, and tell of them when they end; `None`: do not.
    pub flows: Option<TrackerConfig>,
    /// Capture filter.
    pub filter: Option<String>,
    /// What is kept of flows, by the first class that takes a flow's first packet; of flows that none takes all is kept.
    pub cutoffs: Vec<ClassCutoff>,
    /// Live: while there is congestion connections keep their first packets only, as few as so many, 1 to 4,096. From files it is ignored: these wait.
    pub tail_drop_min: Option<u32>,
    /// Live: flows keep less where the ring would not reach back for so long otherwise. From files it is ignored.
    pub history_goal: Option<Duration>,
    /// What the triggers ask for that differs from the following, in their order, those of scripts behind expressions, then modules. Those that are missing ask for
    /// nothing of their own.
    pub requests: Vec<TriggerRequest>,
    /// What triggers are called, in the same order, each by another name of 1 to 64 bytes without control characters; those that are missing or empty, by
    /// their place, from 1.
    pub names: Vec<String>,
    /// Packet time before and after a trigger.
    pub past: Duration,
    /// See `past`.
    pub future: Duration,
    /// How late a packet of a file may be.
    pub hold: Duration,
    /// The first dump disarms the triggers.
    pub single: bool,
    /// Dumps open at once; of several rules one may have half of them, and the others share the rest.
    pub max_dumps: usize,
    /// After the end of a window, how long the same rule and filled-in dump expression start no dump.
    pub hold_off: Duration,
    /// Dumps started in any minute, shared in the same way; 0: without limit.
    pub dumps_per_minute: u64,
    /// Whether `dumps_per_minute` holds dumps of alerts too.
    pub limit_alerts_per_minute: bool,
    /// Bytes written in any hour before no further dump is started, shared in the same way; 0: without limit.
    pub bytes_per_hour: u64,
    /// A dump ends when it has so many packets, …
    pub dump_packets: u64,
    /// … or so many captured bytes; 0: without limit.
    pub dump_bytes: u64,
    /// Bytes kept of each packet; 0: all.
    pub snaplen: u32,
    /// Stop after storing this many packets.
    pub count: Option<u64>,
    /// Stop after this time; offline, of packet time.
    pub duration: Option<Duration>,
    /// The directory for dumps. `None`: the working directory. The recorder does not try the
    /// working directory at the start, because there is nothing to dump.
    pub directory: Option<PathBuf>,
    /// File format of dumps.
    pub format: Format,
    /// Level at which complete dump files are compressed. `None`: dump files stay uncompressed.
    pub zstd: Option<ZstdLevel>,
    /// Template for the names of dump files.
    pub name: NameTemplate,
    /// Write the SHA-256 of dumps' files into their sidecars. The default is true if the processor
    /// has instructions for SHA-256.
    pub sha256: bool,
    /// How many dumps are kept in the directory, and how long, those of earlier recorders among them; what is kept of a rule's dumps is in `requests`.
    pub keep: RetentionLimit,
    /// Dumps are deleted where the file system of the directory has less room than this, and when it is full.
    pub min_free: Option<MinFree>,
    /// What is run for each dump when it is finished.
    pub post: Option<PostConfig>,
    /// How alerts are acted on, and those of files.
    pub alerts: AlertConfig,
    /// Leaves creation times and the host's name out.
    pub reproducible: bool,
}

impl Config {
    /// The number of rules, scripts and modules included.
    pub(super) fn rules(&self) -> usize {
        self.triggers.len() + self.scripts.triggers.len() + self.scripts.modules.len()
    }
}

/// Live, 64 MiB; no triggers, no dumps; without limits but 64 dumps at once.
impl Default for Config {
    fn default() -> Self {
        Self {
            offline: false,
            ring_bytes: 64 << 20,
            ring_backing: Backing::Anonymous,
            when_full: Mode::Record,
            numa_node: None,
            rx_threads: 1,
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
            format: Format::PcapNg,
            zstd: None,
            name: NameTemplate::default(),
            sha256: Digests::here() == Digests::AsWritten,
            keep: RetentionLimit::default(),
            min_free: None,
            post: None,
            alerts: AlertConfig::default(),
            reproducible: false,
        }
    }
}

/// How much is kept of the flows of a class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassCutoff {
    /// A filter for the first packet of a flow; `None`: all flows.
    pub class: Option<String>,
    /// What is kept of each.
    pub cutoff: Cutoff,
}

/// Where packets are looked at for triggers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Analyzers {
    /// Live in the thread that stores them while it keeps up, and in another where it does not and a CPU is free; scripts run in that one. From
    /// files in another thread.
    #[default]
    Auto,
    /// In the thread that stores them, also where packets are lost for it.
    Inline,
    /// In so many other threads.
    Threads(NonZero<usize>),
}

/// Functions of the user.
#[derive(Debug, Clone, Default)]
pub struct Scripts {
    /// Triggers, beside the trigger expressions.
    pub triggers: Vec<Script>,
    /// What makes a predicate of a trigger packet, in place of the dump template; triggers that have one of their own keep that.
    pub dump: Option<Script>,
    /// Modules over flows. They run after `triggers`, one instance in each shard.
    pub modules: Vec<Script>,
    /// How their flows are told apart, and how many each may have.
    pub module_flows: TrackerConfig,
}

/// Makes the sources, in the order the user gave. Called once.
pub type Sources<'a> = dyn Fn() -> Result<Vec<Box<dyn Source>>, SourceError> + 'a;
