//! Opening sources, filling the ring, starting threads.

pub(crate) mod by_hand;
pub(crate) mod config;
mod dump_files;
pub(crate) mod expressions;
pub(crate) mod handle;
pub(crate) mod inserters_only;
pub(crate) mod lookers;
pub(crate) mod recorder;
pub(crate) mod reload;
pub(crate) mod rules;
mod telling;
mod threads;

use std::{
    cell::RefCell,
    collections::HashMap,
    io,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use retroscope_capture::{
    Offer, Probed, REST_NS_MAX, SourceError,
    af_packet::WATERMARK_BEHIND_NS_MAX,
    clock::{Clock, Now, duration_ns},
};
use retroscope_flow::TailDrop;
use retroscope_packet::LinkType;
use retroscope_ring::{EvictionDetail, GroupKind, Mode, Ring, RingConfig, RingError, Waker};
use retroscope_script::Limits;
use rustix::system::uname;

use crate::{
    analysis::{
        analyzer::{Analyzer, AnalyzerParts},
        director::{DirectorConfig, SharedLimits},
        dump_script::DumpFunction,
        flows,
        functions::Functions,
        native::NativeCode,
        prepared::{LinkTypes, mode},
        rules::Rules,
        seats::{Lookers, Seats},
        shard_reader::ShardReader,
        terms::{Terms, Window},
    },
    control::{
        commands::commands, common::Common, events::Events, progress::Progress,
        unprivileged::without_capabilities,
    },
    dump::{
        dumper::DumperParts,
        names::Directory,
        order::Messages,
        pool::{Pool, PoolConfig},
        post::Post,
        sidecar::Origin,
        store::{
            keeper::{KeeperConfig, KeeperThread},
            retention::{Limits as KeepLimits, RuleKeep},
        },
        stream::Digests,
    },
    intake::{
        Intake,
        inline::InlineParts,
        inserter::{parts::InserterParts, queue_intake::QueueIntake, shards::Shards},
        interfaces::Interfaces,
        marks::Marks,
        placement::{Placing, Room},
        shedding::{Classes, Cutoffs, History},
    },
    query::index::ring_bytes,
    start::{
        config::{Analyzers, Config, Sources},
        expressions::{Expressions, Texts},
        handle::{ANSWER_WAIT, Handle},
        lookers::{Situation, choose, seat_shards},
        recorder::{Recorder, StartError},
        reload::Configured,
        rules::RuleBook,
        threads::{Gone, spawn_analyzer, spawn_dumper, spawn_inserters, spawn_shard_reader},
    },
};

/// How long a live window may outlast `future` on the monotonic clock (invariant 6 of ARCHITECTURE.md).
const WINDOW_GRACE: Duration = Duration::from_millis(50);

const _: () = assert!((WATERMARK_BEHIND_NS_MAX as u128) < WINDOW_GRACE.as_nanos());
/// A queue may have gone to rest when nothing was open yet: the packets of the shortest window come when it is back. The other half
/// is for the step of the analyzer that opens the dump, and for the inserter's that follows.
const _: () = assert!(2 * (REST_NS_MAX as u128) < WINDOW_GRACE.as_nanos());
/// Stamps of overwritten buckets kept offline, so that `missing` is exact.
const EVICTED_BYTES: usize = 256 << 20;

/// Flows that inserters tell apart at once where not all of them are kept, in all.
const SHED_FLOWS_MAX: usize = 1 << 20;

impl Recorder {
    /// Opens the sources, fills the ring and starts the threads. `progress` hears how much memory is filled.
    ///
    /// `opened_all` is called when everything is open and before any thread is started or any packet looked at: the calling thread can
    /// give up its privileges there, and the recorder's threads then have none. Its error ends the start.
    ///
    /// # Errors
    /// [`StartError`]; nothing runs then.
    pub fn start(
        config: &Config,
        sources: &Sources<'_>,
        files: &[PathBuf],
        clock: Arc<dyn Clock>,
        progress: Option<&mut dyn FnMut(u64, u64)>,
        opened_all: &mut dyn FnMut() -> Result<(), Box<dyn std::error::Error + Send + Sync>>,
    ) -> Result<Self, StartError> {
        let probed = sources()?
            .into_iter()
            .map(|source| {
                let name = source.name().to_owned();
                Ok((name, source.probe(config.rx_threads)?))
            })
            .collect::<Result<Vec<_>, SourceError>>()?;
        let texts = Texts {
            triggers: &config.triggers,
            // A dump script may answer with this, and fragments are followed for it.
            dump: if config.scripts.dump.is_some() {
                "$flow"
            } else {
                &config.dump
            },
            requests: &config.requests,
            manual: &config.manual_dump,
            filter: config.filter.as_deref(),
            cutoffs: &config.cutoffs,
        };
        let link_types = || {
            files
                .iter()
                .filter_map(|path| retroscope_pcapfile::scan_link_types(path).ok())
                .flatten()
                .collect()
        };
        let known = known_link_types(&probed);
        let native = Arc::new(NativeCode::new());
        let link_types = LinkTypes::new(&known, &link_types);
        let mut expressions = Expressions::new(&texts, &link_types, config.offline, &native)
            .map_err(StartError::Expression)?;
        let scripts = config.scripts.triggers.len() + config.scripts.modules.len();
        let names = rules::names(config, config.triggers.len() + scripts);
        let names = names.map_err(|error| StartError::Names(error.to_string()))?;
        let directory = match &config.directory {
            Some(path) => Directory::open(path, config.format).map_err(|error| {
                let path = path.clone();
                StartError::Directory { path, error }
            })?,
            None => Directory::untried(config.format),
        };
        let host = uname().nodename().to_string_lossy().into_owned();
        let mut directory = directory
            .with_names(&config.name, &host)
            .compressed(config.zstd);
        if !config.sha256 {
            directory = directory.with_digests(Digests::Never);
        }
        let queues = probed.iter().map(|(_, source)| source.queues()).sum();
        let flows_together =
            probed.len() == 1 && probed.iter().all(|(_, it)| it.keeps_flows_together());
        let mut ring_config = ring_config(config, queues, clock.now());
        let analyzers = |sheds| config.analyzers.decided(config.offline, sheds);
        let has_cutoffs = !config.cutoffs.is_empty();
        // Whether scripts shunt is known when they are loaded.
        let may_shed = has_cutoffs || !config.scripts.triggers.is_empty();
        let readers = analyzers(may_shed).readers_max(config.offline, queues);
        let readers = ring_config.add_readers(readers)?;
        let ring = Ring::new(&ring_config, progress)?;
        let offer = offer(config, &mut expressions, &known);
        // What arrived while memory was being filled was not received yet: it does not count as lost.
        let opened = probed
            .into_iter()
            .map(|(name, source)| Ok((name, source.open(&offer)?)))
            .collect::<Result<Vec<_>, SourceError>>()?;
        let events_tx = Events::new();
        // It has another identity than what comes behind.
        let post = config.post.as_ref();
        let post = post.map(|config| Post::start(config, events_tx.clone()));
        let (post, post_queue) = post.transpose().map_err(StartError::Opened)?.unzip();
        opened_all().map_err(StartError::Opened)?;
        let live = !config.offline;
        let mode = mode(config.offline);
        let rules = expressions.triggers.shared.clone();
        let filter = expressions.filter.as_ref().map(|it| it.prepared.clone());
        let interfaces = Interfaces::new((rules, expressions.templates.clone(), mode), filter);
        let sources = opened.iter();
        let sources = sources.map(|(name, queues)| (name.clone(), queues.len()));
        let intake = Intake::new(sources, Arc::new(interfaces), config.offline);
        let wall_clock = Arc::clone(&clock);
        let common = Common::new(ring, clock, intake);
        common.alerts.begin(&config.alerts);
        // Threads, and what the authors of scripts wrote, run without the privileges that opening takes.
        let (analyzers, who, scripts, notice) = without_capabilities(|| {
            native.start();
            let load = || Functions::new(&config.scripts, Limits::default(), &common);
            let mut scripts = vec![load()?];
            let situation = Situation {
                offline: config.offline,
                queues: queues.max(1),
                readers,
                flows_together,
                triggers: scripts[0].triggers.partition(),
                dump: scripts[0].dump.as_ref().map(DumpFunction::partition),
                learns: expressions.templates.asking_for_flows() > 0
                    || scripts[0].triggers.has_modules(),
                flows: config.flows.is_some(),
                modules: scripts[0].triggers.has_modules(),
            };
            let analyzers = analyzers(has_cutoffs || scripts[0].triggers.shunts());
            let (who, shards, notice) =
                choose(analyzers, situation).map_err(StartError::Analyzers)?;
            for _ in 1..shards {
                scripts.push(load()?);
            }
            Ok::<_, StartError>((analyzers, who, scripts, notice))
        })??;
        let mut notices = expressions.triggers.take_notices();
        notices.extend(common.intake.interfaces.take_notices());
        notices.extend(scripts[0].start_notice());
        notices.extend(notice);
        notices.extend(native.notice());
        notices.extend(directory.notice());

        let ring = &common.ring;
        let (messages_tx, messages) = Messages::new(live);
        let (commands_tx, commands) = commands();
        let kind = if live {
            GroupKind::Lapped
        } else {
            GroupKind::Gating
        };
        let reader = ring.group(kind)?;
        let waker = reader.waker();
        let functions = &scripts[0].triggers;
        let flows = config.flows.map(|tracker| {
            let (sender, receiver) = flows::channel(&common);
            ((tracker, sender), receiver)
        });
        let tail_drop = config.tail_drop_min.filter(|_| live).map(TailDrop::new);
        let shunts = scripts[0].triggers.shunts();
        let history = config.history_goal.filter(|_| live);
        let history = history.map(|goal| Arc::new(History::new(duration_ns(goal), ring, queues)));
        let sheds =
            !expressions.classes.is_empty() || tail_drop.is_some() || shunts || history.is_some();
        let marks =
            sheds.then(|| Arc::new(Marks::new(live, Rules::new(mode, Arc::clone(&native)))));
        let cutoffs = sheds.then(|| {
            let also = (shunts, history.is_some());
            Arc::new(Cutoffs::new(expressions.classes, tail_drop, also))
        });
        let book = RuleBook::new(
            &expressions.triggers,
            functions.names().map(|(name, _)| name),
            (config, names),
            Arc::clone(&native),
            scripts.len() > 1 && !flows_together,
            Configured {
                config: config.clone(),
                cutoffs: cutoffs.clone(),
            },
        );
        book.count_in(&common.outcomes);
        let (seats, derivation) = seat_shards(
            who,
            (expressions.triggers, scripts),
            &expressions.templates,
            flows.as_ref().map(|(told, _)| told),
            marks.as_ref(),
            &common,
        );
        let inline = (who == Lookers::Inserters).then(|| InlineParts {
            common: Arc::clone(&common),
            seats: Arc::clone(&seats),
            positions: reader.positions(),
            analyzer: waker.clone(),
            placing: Placing::new(
                config.analyzers,
                Room {
                    cpus: std::thread::available_parallelism().map_or(1, usize::from),
                    threads: 1,
                    inserters: queues,
                    ring_bytes: ring.bytes(),
                },
            ),
        });
        let mut shard_readers = shard_readers(&common, &seats, &waker)?;
        let classes = marks.clone().zip(cutoffs).map(|(marks, cutoffs)| Classes {
            cutoffs,
            marks,
            shunts,
            flows_max: SHED_FLOWS_MAX.div_ceil(queues.max(1)),
            tail_drop,
            history: history.clone(),
            readers: std::iter::once(reader.positions())
                .chain(shard_readers.iter().map(ShardReader::positions))
                .collect(),
            ring_bytes: ring.bytes() / queues.max(1) as u64,
        });
        // From files with `inline` the inserter moves the only one on.
        let inserters_reader = match analyzers {
            Analyzers::Inline => shard_readers.pop(),
            Analyzers::Auto | Analyzers::Threads(_) => None,
        };
        let for_inserters = InserterParts {
            common: Arc::clone(&common),
            snaplen: config.snaplen,
            filter: expressions.filter.map(Box::new),
            classes,
            remaining: config
                .count
                .map(|n| Arc::new(AtomicI64::new(i64::try_from(n).unwrap_or(i64::MAX)))),
            inline,
            shards: (config.offline && shard_readers.len() > 1).then(Shards::random),
            hold_ns: duration_ns(config.hold),
            duration_ns: config.duration.map(duration_ns),
        };
        let queues = opened.into_iter().map(|(_, queues)| queues).collect();
        let intakes = QueueIntake::of_all(queues, &for_inserters)?;
        let progress = if live {
            let promises = common.intake.promises();
            Progress::Live { promises }
        } else {
            Progress::Follow {
                positions: reader.positions(),
                hold_ns: duration_ns(config.hold),
            }
        };
        let window = default_window(config);
        let requests = config.requests.iter().map(|it| Terms::new(it, window));
        let parts = AnalyzerParts {
            terms: requests.enumerate().collect(),
            window,
            native: Arc::clone(&native),
            manual: expressions.manual,
            alerts: config.alerts.clone(),
            messages: messages_tx,
            events: events_tx.clone(),
            commands,
        };
        let analyzer = Analyzer::new(
            Arc::clone(&common),
            (seats, derivation),
            parts,
            reader,
            director_config(config),
        );
        let start_mono_ns = live.then(|| common.clock.now().mono_ns);
        let rules = book.keeps();
        let keeper = start_keeper((config, rules), &directory, wall_clock, &events_tx)?;
        let directory = match &keeper {
            Some(keeper) => directory.kept_by(keeper.keeper()),
            None => directory,
        };
        let directory = directory.ended_by(&common.control);
        let kept_by = keeper.as_ref().map(|thread| thread.keeper().clone());
        let parts = DumperParts {
            directory,
            pool: Pool::start(
                PoolConfig::new(live).compressing(config.zstd.is_some()),
                &common,
            )?,
            common: Arc::clone(&common),
            progress,
            marks,
            post: post_queue,
            reproducible: config.reproducible,
            origin: Origin {
                host: (!config.reproducible).then_some(host),
                capture_filter: config.filter.clone(),
            },
            messages,
            events: events_tx.clone(),
        };
        let dumper = spawn_dumper(parts, Rules::new(mode, native), keeper)?;
        let left = Arc::new(AtomicUsize::new(if live { intakes.len() } else { 1 }));
        let log = Arc::clone(events_tx.log());
        let handle = Handle {
            control: Arc::clone(&common.control),
            waker: waker.clone(),
            commands: commands_tx,
            rules: Arc::new(book),
            common: Arc::downgrade(&common),
            start_mono_ns,
            answer_wait: ANSWER_WAIT,
            log,
            history,
            keeper: kept_by,
            post: post.as_ref().map(Post::counter),
        };
        let each = shard_readers.iter().map(ShardReader::waker);
        let wakers: Vec<Waker> = each.chain([waker.clone()]).collect();
        // The analyzer goes on until these are gone too.
        let not_ended = Arc::new(AtomicUsize::new(
            left.load(Ordering::Relaxed) + shard_readers.len(),
        ));
        let (analyzers, inserters) = without_capabilities(|| {
            let mut analyzers = vec![spawn_analyzer(
                analyzer,
                Arc::clone(&common),
                Arc::clone(&not_ended),
            )?];
            for (number, reader) in shard_readers.into_iter().enumerate() {
                let gone = Gone::new(&[&not_ended], &wakers);
                analyzers.push(spawn_shard_reader(reader, number, &common, &left, gone)?);
            }
            let gone = || Gone::new(&[&left, &not_ended], &wakers);
            let inserters = spawn_inserters(
                intakes,
                &for_inserters,
                gone,
                inserters_reader,
                &waker,
                &events_tx,
            )?;
            Ok::<_, StartError>((analyzers, inserters))
        })??;
        Ok(Self {
            common,
            events: RefCell::new(handle.subscribe(Some(0))),
            handle,
            inserters,
            analyzers,
            dumper,
            post,
            notices,
            flows: flows.map(|(_, receiver)| receiver),
        })
    }
}

/// What engines may take over. With `-c` they filter nothing: what comes after the last packet is counted as filtered.
fn offer(config: &Config, expressions: &mut Expressions, link_types: &[LinkType]) -> Offer {
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

fn known_link_types(probed: &[(String, Box<dyn Probed>)]) -> Vec<LinkType> {
    let link_types = probed.iter().flat_map(|(_, source)| source.link_types());
    let mut link_types: Vec<LinkType> = link_types.collect();
    link_types.sort_unstable();
    link_types.dedup();
    link_types
}

fn ring_config(config: &Config, queues: usize, now: Now) -> RingConfig {
    let producers = if config.offline { 1 } else { queues };
    // What the files give is a function of the ring's size, and the index is for live traffic.
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
        // A file waits; memory that it does not need stays free.
        ring.prefault = false;
        ring.eviction_detail = EvictionDetail::Exact {
            budget_bytes: EVICTED_BYTES,
        };
    }
    ring
}

/// What is dumped where a trigger does not say otherwise.
fn default_window(config: &Config) -> Window {
    let (packets, bytes) = (config.dump_packets, config.dump_bytes);
    Window::new(config.past, config.future, packets, bytes)
}

/// What rules are held to together.
fn shared_limits(config: &Config) -> SharedLimits {
    SharedLimits {
        hold_off_ns: duration_ns(config.hold_off),
        max_dumps: config.max_dumps,
        dumps_per_minute: config.dumps_per_minute,
        alerts_per_minute: config.limit_alerts_per_minute,
        bytes_per_hour: config.bytes_per_hour,
    }
}

/// Starts who looks after the directory of dumps, if there is one.
fn start_keeper(
    (config, rules): (&Config, HashMap<String, RuleKeep>),
    directory: &Directory,
    clock: Arc<dyn Clock>,
    events: &Events,
) -> io::Result<Option<KeeperThread>> {
    if config.directory.is_none() {
        return Ok(None);
    }
    let keeping = KeeperConfig {
        limits: KeepLimits {
            all: config.keep,
            rules,
        },
        min_free: config.min_free,
    };
    KeeperThread::start(directory.clone(), keeping, clock, events.clone()).map(Some)
}

fn director_config(config: &Config) -> DirectorConfig {
    DirectorConfig {
        hold_ns: if config.offline {
            duration_ns(config.hold)
        } else {
            0
        },
        rules: config.triggers.len() + config.scripts.triggers.len() + config.scripts.modules.len(),
        limits: shared_limits(config),
        single: config.single,
        alert_dumps: config.alerts.max_dumps,
        are_alerts_expected: config.alerts.may_come(),
        grace_ns: (!config.offline).then(|| duration_ns(WINDOW_GRACE)),
    }
}

/// A reader for each shard that has one.
pub(crate) fn shard_readers(
    common: &Arc<Common>,
    seats: &Arc<Seats>,
    waker: &Waker,
) -> Result<Vec<ShardReader>, RingError> {
    if seats.lookers != Lookers::Readers {
        return Ok(Vec::new());
    }
    let shards = seats.all().len();
    let readers = if common.is_live() {
        common.ring.group_of(GroupKind::Lapped, shards)?
    } else {
        // Each reads all records.
        let readers = (0..shards).map(|_| common.ring.group(GroupKind::Gating));
        readers.collect::<Result<_, _>>()?
    };
    let each = readers.into_iter().enumerate().map(|(seat, reader)| {
        let place = (Arc::clone(seats), seat);
        ShardReader::new(Arc::clone(common), place, reader, waker.clone())
    });
    Ok(each.collect())
}
