//! Opens sources, makes the ring, starts threads.

pub(crate) mod analysis_placement;
pub(crate) mod by_hand;
pub(crate) mod config;
mod dump_files;
pub(crate) mod expressions;
pub(crate) mod handle;
pub(crate) mod inserters_only;
pub(crate) mod recorder;
pub(crate) mod reload;
mod reporting;
mod rule_scan;
pub(crate) mod rules;
pub(crate) mod threads;

use std::{
    cell::RefCell,
    collections::HashMap,
    io,
    path::PathBuf,
    sync::{
        Arc,
        mpsc::{Receiver, SyncSender},
    },
    time::Duration,
};

use retroscope_capture::{
    Offer, Queue, REST_NS_MAX,
    af_packet::WATERMARK_BEHIND_NS_MAX,
    clock::{Clock, Now, duration_ns},
};
use retroscope_flow::TailDrop;
use retroscope_packet::LinkType;
use retroscope_pcapfile::scan_link_types;
use retroscope_ring::{EvictionDetail, GroupKind, Mode, Ring, RingConfig, RingError, Waker};
use retroscope_script::ScriptLimits;
use rustix::system::uname;

use crate::{
    analysis::{
        analyzer::{Analyzer, AnalyzerParts},
        director::{DirectorConfig, SharedLimits},
        dump_script::DumpFunction,
        flows::{self, FlowReceiver},
        functions::ScriptFunctions,
        native::NativeCode,
        prepared::{LinkTypes, mode},
        rules::Rules,
        shard_reader::ShardReader,
        shard_slots::{AnalysisPlacement, ShardSlots},
        terms::{DumpWindow, TriggerTerms},
    },
    control::{
        commands::{AnalyzerCommand, commands},
        common::RecorderShared,
        events::Events,
        packet_id::Recording,
        pulse::ThreadPulse,
        threads::DividedAnalysis,
        unprivileged::without_capabilities,
    },
    dump::{
        dumper::{Dumper, DumperParts},
        names::Directory,
        order::{DumperMessage, DumperMessages},
        pool::{Pool, PoolConfig},
        post::{Post, PostQueue},
        sidecar::Origin,
        store::{
            keeper::{KeeperConfig, StoreThreads},
            retention::{Retention, RuleRetention},
        },
        stream::DigestTime,
    },
    intake::{
        Intake,
        inline::{InlineParts, SharedReaders},
        inserter::{
            parts::InserterParts,
            queue_intake::QueueIntake,
            shards::{ShardHash, StoredShards},
        },
        interfaces::Interfaces,
        marks::Marks,
        placement::{AnalysisResources, PlacementShared},
        shedding::{Cutoffs, History, SheddingConfig},
    },
    query::index::ring_bytes,
    start::{
        analysis_placement::{Situation, choose, place_shards},
        config::{Config, Sources},
        expressions::CheckedExpressions,
        handle::{ANSWER_WAIT, RecorderHandle},
        recorder::{Recorder, StartError},
        reload::Configured,
        rules::RuleBook,
        threads::{DataPath, spawn_dumper},
    },
};

/// How long a live window may outlast `future` on the monotonic clock, unless its rule's past is
/// scanned (invariant 6 of ARCHITECTURE.md).
const WINDOW_GRACE: Duration = Duration::from_millis(50);

const _: () = assert!((WATERMARK_BEHIND_NS_MAX as u128) < WINDOW_GRACE.as_nanos());
/// While no dump is open, a queue may leave arrived packets in the kernel for `REST_NS_MAX`. The
/// other half of the grace time is for the step that opens the dump.
const _: () = assert!(2 * (REST_NS_MAX as u128) < WINDOW_GRACE.as_nanos());
/// From files: maximum bytes of the log of the times of overwritten records.
const EVICTED_BYTES: usize = 256 << 20;

/// About the maximum number of flows that all inserters distinguish while packets may be shed.
const SHED_FLOWS_MAX: usize = 1 << 20;

impl Recorder {
    /// Opens the sources, makes the ring and starts the threads. `progress` gets the bytes of
    /// memory that are filled, and the bytes of the whole ring.
    ///
    /// `opened_all` runs when everything is open, before the first packet is analyzed. The caller
    /// can give up privileges there. An error of `opened_all` ends the start.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(
        config: &Config,
        sources: &Sources<'_>,
        files: &[PathBuf],
        clock: Arc<dyn Clock>,
        progress: Option<&mut dyn FnMut(u64, u64)>,
        opened_all: &mut dyn FnMut() -> Result<(), Box<dyn std::error::Error + Send + Sync>>,
    ) -> Result<Self, StartError> {
        let opened = OpenedRecorder::new(config, sources, files, clock, progress)?;
        let events = Events::new();
        // Starts before `opened_all`, which may give up privileges: commands of `--post` may have
        // another identity than the recorder.
        let post = config.post.as_ref();
        let post = post.map(|config| Post::start(config, events.clone()));
        let post = post.transpose().map_err(StartError::Opened)?;
        opened_all().map_err(StartError::Opened)?;
        // Scripts are loaded without the capabilities that opening the sources needs.
        let planned = without_capabilities(|| opened.plan(config))??;
        planned.wire(config, events)?.run(config, post)
    }
}

/// Everything that takes privileges to open, and the user's expressions.
#[derive(Debug)]
struct OpenedRecorder {
    common: Arc<RecorderShared>,
    expressions: CheckedExpressions,
    native: Arc<NativeCode>,
    /// Names of the rules, in their order.
    names: Vec<String>,
    directory: Directory,
    /// The queues of each source.
    sources: Vec<Vec<Box<dyn Queue>>>,
    queues: usize,
    /// Live: number of capture threads, each with a producer.
    producers: usize,
    /// Number of requested readers of shards that the ring has room for.
    readers: usize,
    /// Whether all packets of a flow, of both directions, arrive at one queue.
    flows_together: bool,
}

impl OpenedRecorder {
    fn new(
        config: &Config,
        sources: &Sources<'_>,
        files: &[PathBuf],
        clock: Arc<dyn Clock>,
        progress: Option<&mut dyn FnMut(u64, u64)>,
    ) -> Result<Self, StartError> {
        let sources = sources()?;
        let source_names: Vec<_> = sources.iter().map(|it| it.name().to_owned()).collect();
        let probed = sources.into_iter();
        let probed = probed.map(|source| source.probe(config.rx_threads));
        let probed = probed.collect::<Result<Vec<_>, _>>()?;
        let of_file = |path: &PathBuf| scan_link_types(path).unwrap_or_default();
        let of_files = || files.iter().flat_map(of_file).collect();
        let mut known: Vec<_> = probed.iter().flat_map(|it| it.link_types()).collect();
        known.sort_unstable();
        known.dedup();
        let native = Arc::new(NativeCode::new());
        let link_types = LinkTypes::new(&known, &of_files);
        let mut expressions = CheckedExpressions::new(config, &link_types, &native)
            .map_err(StartError::Expression)?;
        let names = rules::names(config);
        let names = names.map_err(|error| StartError::Names(error.to_string()))?;
        let directory = open_directory(config)?;
        let queues = probed.iter().map(|source| source.queues()).sum();
        let producers = config.capture_threads.filter(|_| !config.offline);
        let producers = producers.map_or(queues, |threads| threads.min(queues));
        let flows_together = probed.len() == 1 && probed[0].keeps_flows_together();
        let mut ring_config = ring_config(config, producers, clock.now());
        let analyzers = config.analyzers;
        let readers = ring_config.add_readers(analyzers.readers_max())?;
        ring_config.releasing_readers = analyzers.releasing_readers_max(config.offline, queues);
        let ring = Ring::new(&ring_config, progress)?;
        let offer = offer(config, &mut expressions, &known);
        // Packets that arrive before the sources open, while memory is filled, do not count as
        // lost.
        let opened = probed.into_iter().map(|source| source.open(&offer));
        let sources = opened.collect::<Result<Vec<_>, _>>()?;
        let rules = expressions.triggers.shared.clone();
        let prepared = (rules, expressions.templates.clone(), mode(config.offline));
        let filter = expressions.filter.as_ref().map(|it| it.prepared.clone());
        let interfaces = Arc::new(Interfaces::new(prepared, filter));
        let named = source_names.into_iter().zip(sources.iter().map(Vec::len));
        let intake = Intake::new(named, interfaces, config.offline).served_by(producers);
        let common = RecorderShared::new(ring, clock, intake);
        common.alerts.begin(&config.alerts);
        Ok(Self {
            common,
            expressions,
            native,
            names,
            directory,
            sources,
            queues,
            producers,
            readers,
            flows_together,
        })
    }

    /// Loads the scripts, and decides what is shed and which threads analyze packets.
    fn plan(mut self, config: &Config) -> Result<Planned, StartError> {
        self.native.start();
        let load = || ScriptFunctions::new(&config.scripts, ScriptLimits::default(), &self.common);
        let mut scripts = vec![load()?];
        let functions = &scripts[0].triggers;
        let templates = &self.expressions.templates;
        let situation = Situation {
            offline: config.offline,
            queues: self.queues.max(1),
            producers: self.producers.max(1),
            readers: self.readers,
            flows_together: self.flows_together,
            triggers: functions.partition(),
            dump: scripts[0].dump.as_ref().map(DumpFunction::partition),
            learns: templates.asking_for_flows() > 0 || functions.has_modules(),
            flows: config.flows.is_some(),
            modules: functions.has_modules(),
            joins: config.scripts.joins(),
        };
        let shunts = functions.shunts();
        let (placement, shards, notice) =
            choose(config.analyzers, situation).map_err(StartError::Analyzers)?;
        for _ in 1..shards {
            scripts.push(load()?);
        }
        let mut notices = self.expressions.triggers.take_notices();
        notices.extend(self.common.intake.interfaces.take_notices());
        notices.extend(scripts[0].start_notice());
        notices.extend(notice);
        notices.extend(self.native.notice());
        notices.extend(self.directory.notice());
        let classes = self.classes(config, shunts);
        let book = RuleBook::new(
            &self.expressions.triggers,
            scripts[0].triggers.names().map(|(name, _)| name),
            (config, std::mem::take(&mut self.names)),
            Arc::clone(&self.native),
            shards > 1 && !self.flows_together && placement != AnalysisPlacement::ShardReaders,
            &self.common.outcomes,
            Configured {
                config: config.clone(),
                cutoffs: classes.as_ref().map(|it| Arc::clone(&it.cutoffs)),
            },
        );
        Ok(Planned {
            opened: self,
            placement,
            scripts,
            classes,
            book,
            notices,
        })
    }

    /// The limits by which inserters shed packets of flows; `None`: inserters shed no packets.
    fn classes(&mut self, config: &Config, shunts: bool) -> Option<SheddingConfig> {
        let live = !config.offline;
        let tail_drop = config.tail_drop_min.filter(|_| live).map(TailDrop::new);
        let goal = config.history_goal.filter(|_| live);
        let of_flows = std::mem::take(&mut self.expressions.classes);
        if of_flows.is_empty() && tail_drop.is_none() && goal.is_none() && !shunts {
            return None;
        }
        let ring = &self.common.ring;
        let rules = Rules::new(mode(config.offline), Arc::clone(&self.native));
        let history = |goal| Arc::new(History::new(duration_ns(goal), ring, self.producers));
        let also = (shunts, goal.is_some());
        // One inserter sheds the packets of all files.
        let sheddings = if live { self.queues.max(1) } else { 1 };
        Some(SheddingConfig {
            cutoffs: Arc::new(Cutoffs::new(of_flows, tail_drop, also)),
            marks: Arc::new(Marks::new(live, rules)),
            shunts,
            flows_max: SHED_FLOWS_MAX.div_ceil(sheddings),
            tail_drop,
            history: goal.map(history),
            // `Planned::wire` adds the readers.
            readers: Vec::new(),
            ring_bytes: ring.bytes() / self.producers.max(1) as u64,
        })
    }
}

#[derive(Debug)]
struct Planned {
    opened: OpenedRecorder,
    placement: AnalysisPlacement,
    /// The functions of each shard.
    scripts: Vec<ScriptFunctions>,
    classes: Option<SheddingConfig>,
    book: RuleBook,
    /// Messages for the user.
    notices: Vec<String>,
}

impl Planned {
    /// Makes and connects the parts of inserters and analyzers.
    fn wire(mut self, config: &Config, events: Events) -> Result<Wired, StartError> {
        let common = self.opened.common;
        let expressions = self.opened.expressions;
        let kind = if config.offline {
            GroupKind::Gating
        } else {
            GroupKind::Lapped
        };
        let reader = common.ring.group(kind)?;
        let (waker, positions) = (reader.waker(), reader.positions());
        let flows = config.flows.map(|tracker| {
            let (sender, receiver) = flows::channel(&common);
            ((tracker, sender), receiver)
        });
        let is_sharded =
            self.placement == AnalysisPlacement::ShardReaders && self.scripts.len() > 1;
        let shard_hash = is_sharded.then(ShardHash::random);
        for functions in &mut self.scripts {
            functions.triggers.shard_hash.clone_from(&shard_hash);
        }
        let (slots, derivation) = place_shards(
            self.placement,
            (expressions.triggers, self.scripts),
            &expressions.templates,
            flows.as_ref().map(|(told, _)| told),
            self.classes.as_ref().map(|it| &it.marks),
            &common,
        );
        let stored_shards = (is_sharded && !config.offline)
            .then(|| Arc::new(StoredShards::new(self.opened.producers)));
        let mut shard_readers = shard_readers(&common, &slots, &waker, stored_shards.as_ref())?;
        if let Some(classes) = &mut self.classes {
            let of_shards = shard_readers.iter().map(ShardReader::positions);
            classes.readers = of_shards.chain([positions.clone()]).collect();
        }
        let of_inserters = match self.placement {
            AnalysisPlacement::Inserters => std::mem::take(&mut shard_readers),
            _ => Vec::new(),
        };
        let shared_readers = SharedReaders::new(of_inserters);
        let inline = shared_readers.as_ref().map(|readers| InlineParts {
            slots: Arc::clone(&slots),
            readers: Arc::clone(readers),
            analyzer: waker.clone(),
            placing: placing(config, &common.ring, self.opened.producers),
        });
        let for_inserters = InserterParts {
            filter: expressions.filter.map(Box::new),
            classes: self.classes,
            inline,
            shards: shard_hash,
            stored_shards,
            ..InserterParts::new(config, Arc::clone(&common))
        };
        let intakes = QueueIntake::of_all(self.opened.sources, &for_inserters)?;
        let alone = intakes.iter().find(|intake| !intake.can_share_thread());
        if let Some(alone) = alone.filter(|_| self.opened.producers < self.opened.queues) {
            return Err(StartError::Threads(alone.source_name().to_owned()));
        }
        let (messages_tx, messages) = DumperMessages::new();
        let (commands_tx, commands) = commands();
        let window = default_window(config);
        let requests = config
            .requests
            .iter()
            .map(|it| TriggerTerms::new(it, window));
        let parts = AnalyzerParts {
            terms: requests.enumerate().collect(),
            window,
            native: Arc::clone(&self.book.native),
            manual: expressions.manual,
            alerts: config.alerts.clone(),
            messages: messages_tx,
            events: events.clone(),
            commands,
        };
        let director = director_config(config);
        let shards = (slots, derivation);
        Ok(Wired {
            data_path: DataPath {
                analyzer: Analyzer::new(common, shards, parts, (reader, shared_readers), director),
                shard_readers,
                for_inserters,
                intakes,
                waker,
                events,
            },
            messages,
            commands: commands_tx,
            book: self.book,
            directory: self.opened.directory,
            flows: flows.map(|(_, receiver)| receiver),
            notices: self.notices,
        })
    }
}

/// The parts of inserters and analyzers, and what further threads need.
#[derive(Debug)]
struct Wired {
    data_path: DataPath,
    messages: Receiver<DumperMessage>,
    commands: SyncSender<AnalyzerCommand>,
    book: RuleBook,
    directory: Directory,
    flows: Option<FlowReceiver>,
    /// Messages for the user.
    notices: Vec<String>,
}

impl Wired {
    /// Starts the other threads: first those that write dumps, with the privileges of the caller.
    fn run(
        mut self,
        config: &Config,
        post: Option<(Post, PostQueue)>,
    ) -> Result<Recorder, StartError> {
        let live = !config.offline;
        let for_inserters = &self.data_path.for_inserters;
        let (common, events) = (Arc::clone(&for_inserters.common), &self.data_path.events);
        let classes = for_inserters.classes.as_ref();
        let (post, post_queue) = post.unzip();
        let start_mono_ns = live.then(|| common.clock.now().mono_ns);
        let (rules, clock) = (self.book.keeps(), common.clock.shared());
        let keeper = start_keeper((config, rules), &self.directory, clock, events)?;
        let kept_by = keeper.as_ref().map(|thread| thread.keeper().clone());
        let pool = PoolConfig::new(live).compressing(config.zstd.is_some());
        let parts = DumperParts {
            directory: (self.directory.kept_by(kept_by.as_ref())).ended_by(&common.control),
            pool: Pool::start(pool, &common)?,
            common: Arc::clone(&common),
            marks: classes.map(|it| Arc::clone(&it.marks)),
            post: post_queue,
            reproducible: config.reproducible,
            origin: Origin {
                host: (!config.reproducible).then(host),
                recording: (!config.reproducible)
                    .then(|| Recording::of(&common.ring.attached().info())),
                capture_filter: config.filter.clone(),
            },
            messages: self.messages,
            events: events.clone(),
            keeper,
        };
        let rules = Rules::new(mode(config.offline), Arc::clone(&self.book.native));
        let dumper = if live {
            Some(spawn_dumper(parts, rules)?)
        } else {
            let dumper = Dumper::new(parts, rules);
            self.data_path.analyzer.run_dumper(dumper);
            None
        };
        let handle = RecorderHandle {
            control: Arc::clone(&common.control),
            waker: self.data_path.waker.clone(),
            commands: self.commands,
            rules: Arc::new(self.book),
            common: Arc::downgrade(&common),
            start_mono_ns,
            answer_wait: ANSWER_WAIT,
            log: Arc::clone(events.log()),
            history: classes.and_then(|it| it.history.clone()),
            keeper: kept_by,
            post: post.as_ref().map(Post::counter),
        };
        let (analyzers, inserters) = without_capabilities(|| self.data_path.spawn())??;
        Ok(Recorder {
            common,
            events: RefCell::new(handle.subscribe(Some(0))),
            handle,
            inserters,
            analyzers: analyzers.into_iter().chain(dumper).collect(),
            post,
            notices: self.notices,
            flows: self.flows,
        })
    }
}

/// The filtering that engines may take over. With `-c` engines must not filter, because inserters
/// count packets after the last requested packet as filtered.
fn offer(config: &Config, expressions: &mut CheckedExpressions, link_types: &[LinkType]) -> Offer {
    let filter = expressions.filter.as_mut();
    let programs = match filter {
        Some(filter) if config.count.is_none() => filter.programs(link_types),
        _ => Vec::new(),
    };
    Offer {
        is_filtered_behind: expressions.filter.is_some() && programs.is_empty(),
        programs,
        snaplen: config.snaplen,
    }
}

/// The directory of dumps. Without a configured directory: the working directory, without a check
/// that it can be written.
fn open_directory(config: &Config) -> Result<Directory, StartError> {
    let directory = match &config.directory {
        Some(path) => Directory::open(path, config.format).map_err(|error| {
            let path = path.clone();
            StartError::Directory { path, error }
        })?,
        None => Directory::untried(config.format),
    };
    let directory = directory
        .with_names(&config.name, &host())
        .compressed(config.zstd);
    Ok(match config.sha256 {
        true => directory,
        false => directory.with_digests(DigestTime::Never),
    })
}

fn host() -> String {
    uname().nodename().to_string_lossy().into_owned()
}

/// Number of buckets of a ring for this number of capture threads, and bytes of each bucket.
/// `None`: no such ring is possible, usually because it is too small.
#[must_use]
pub fn planned_buckets(config: &Config, threads: usize) -> Option<(usize, usize)> {
    let now = Now {
        wall_ns: 0,
        mono_ns: 0,
        read_gap_ns: 0,
    };
    ring_config(config, threads, now).buckets().ok()
}

fn ring_config(config: &Config, threads: usize, now: Now) -> RingConfig {
    let producers = if config.offline { 1 } else { threads };
    // From files, results depend on the size of the ring, so no part of it is for the index.
    let bytes = match config.offline {
        true => config.ring_bytes,
        false => ring_bytes(config.ring_bytes),
    };
    let mut ring = RingConfig::new(bytes, producers, 1);
    ring.backing = config.ring_backing.clone();
    ring.numa_node = config.numa_node;
    ring.created_ns = now.wall_ns;
    ring.created_mono_ns = now.mono_ns;
    ring.mode = config.when_full;
    if config.offline {
        ring.mode = Mode::Wait;
        // Memory that the ring does not need stays free.
        ring.prefault = false;
        ring.eviction_detail = EvictionDetail::Exact {
            budget_bytes: EVICTED_BYTES,
        };
    }
    ring
}

/// Decides which thread analyzes the packets of an inserter.
fn placing(config: &Config, ring: &Ring, inserters: usize) -> Arc<PlacementShared> {
    let room = AnalysisResources {
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
        threads: 1,
        inserters,
        ring_bytes: ring.bytes(),
    };
    PlacementShared::new(config.analyzers, room)
}

/// The window of a trigger that sets no window.
fn default_window(config: &Config) -> DumpWindow {
    let (packets, bytes) = (config.dump_packets, config.dump_bytes);
    DumpWindow::new(config.past, config.future, packets, bytes)
}

/// The limits that all rules share.
fn shared_limits(config: &Config) -> SharedLimits {
    SharedLimits {
        hold_off_ns: duration_ns(config.hold_off),
        max_dumps: config.max_dumps,
        dumps_per_minute: config.dumps_per_minute,
        alerts_per_minute: config.limit_alerts_per_minute,
        bytes_per_hour: config.bytes_per_hour,
    }
}

/// Starts the threads that keep and list the dumps of the directory, if there is a directory.
fn start_keeper(
    (config, rules): (&Config, HashMap<String, RuleRetention>),
    directory: &Directory,
    clock: Arc<dyn Clock>,
    events: &Events,
) -> io::Result<Option<StoreThreads>> {
    if config.directory.is_none() {
        return Ok(None);
    }
    let keeping = KeeperConfig {
        limits: Retention {
            all: config.keep,
            rules,
        },
        min_free: config.min_free,
    };
    let listener = Arc::new(events.clone());
    StoreThreads::start((**directory).clone(), keeping, clock, listener).map(Some)
}

fn director_config(config: &Config) -> DirectorConfig {
    DirectorConfig {
        hold_ns: if config.offline {
            duration_ns(config.hold)
        } else {
            0
        },
        rules: config.rules(),
        limits: shared_limits(config),
        single: config.single,
        alert_dumps: config.alerts.max_dumps,
        are_alerts_expected: config.alerts.may_come(),
        grace_ns: (!config.offline).then(|| duration_ns(WINDOW_GRACE)),
    }
}

/// A reader for each shard, if shards have readers.
pub(crate) fn shard_readers(
    common: &Arc<RecorderShared>,
    slots: &Arc<ShardSlots>,
    waker: &Waker,
    stored: Option<&Arc<StoredShards>>,
) -> Result<Vec<ShardReader>, RingError> {
    if !slots.placement.has_readers() {
        return Ok(Vec::new());
    }
    let _ = common.divided.set(DividedAnalysis {
        placement: slots.placement,
        stored: stored.cloned(),
    });
    let shards = slots.all().len();
    let kind = match common.is_live() {
        true => GroupKind::Lapped,
        false => GroupKind::Gating,
    };
    let readers = match slots.placement {
        // Each reader reads all records.
        AnalysisPlacement::ShardReaders => (0..shards)
            .map(|_| common.ring.group(kind))
            .collect::<Result<_, _>>()?,
        _ => common.ring.group_of(kind, shards)?,
    };
    let each = readers.into_iter().enumerate().map(|(slot, reader)| {
        let place = (Arc::clone(slots), slot);
        let pulse = match slots.placement {
            AnalysisPlacement::Inserters => ThreadPulse::default(),
            _ => common.pulses.of(format!("shard-{slot}")),
        };
        let reader = ShardReader::new(Arc::clone(common), place, reader, (waker.clone(), pulse));
        reader.with_stored(stored.cloned())
    });
    Ok(each.collect())
}
