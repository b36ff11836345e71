//! Opening sources, filling the ring, starting threads.

pub(crate) mod config;
pub(crate) mod expressions;
pub(crate) mod handle;
pub(crate) mod inserters_only;
pub(crate) mod recorder;

use std::{
    cell::RefCell,
    io,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicUsize, Ordering},
    },
    thread::{Builder, JoinHandle},
    time::Duration,
};

use retroscope_capture::{
    Offer, Probed, REST_NS_MAX, SourceError,
    af_packet::WATERMARK_BEHIND_NS_MAX,
    clock::{Clock, Now, duration_ns},
};
use retroscope_packet::LinkType;
use retroscope_ring::{EvictionDetail, GroupKind, Mode, Ring, RingConfig, Waker};
use retroscope_script::Limits;

use crate::{
    analysis::{
        analyzer::{Analyzer, AnalyzerParts},
        director::{Clip, DirectorConfig},
        functions::Functions,
        native::NativeCode,
        prepared::{LinkTypes, mode},
        rules::Rules,
        terms::{Terms, Window},
    },
    control::{
        commands::commands,
        common::Common,
        events::{Event, Events},
        progress::Progress,
        unprivileged::without_capabilities,
    },
    dump::{
        dumper::{Dumper, DumperParts},
        names::Directory,
        order::Messages,
        pool::{Pool, PoolConfig},
    },
    intake::{
        Intake,
        inserter::{
            live::LiveInserter, merge::MergeInserter, parts::InserterParts,
            queue_intake::QueueIntake, shards::Shards,
        },
        interfaces::Interfaces,
        lookout::Lookout,
    },
    start::{
        config::{Config, Sources},
        expressions::{Expressions, Texts},
        handle::{ANSWER_WAIT, Handle, RuleBook},
        recorder::{Recorder, StartError},
    },
};

/// How long a live window may outlast `future` on the monotonic clock (invariant 6 of ARCHITECTURE.md).
const WINDOW_GRACE: Duration = Duration::from_millis(50);

const _: () = assert!((WATERMARK_BEHIND_NS_MAX as u128) < WINDOW_GRACE.as_nanos());
/// A queue may have gone to rest when nothing was open yet: the packets of the shortest window come when it is back. The other half
/// is for the step of the analyzer that opens the dump, and for the inserter's that follows.
const _: () = assert!(2 * (REST_NS_MAX as u128) < WINDOW_GRACE.as_nanos());
/// How long the analyzer waits for records, while clocks may end a window.
const ANALYZER_WAIT: Duration = Duration::from_millis(10);
/// How long it waits live, while no dump is open: longer than a busy queue lets packets wait, so that on a busy link its packets wake
/// the analyzer, and nothing else does; or only those that may be hits, where inserters look.
const NO_DUMP_ANALYZER_WAIT: Duration = Duration::from_millis(100);
/// How long an analyzer that has caught up with live traffic sleeps before it asks to be woken, where it was woken sooner than
/// that the last time. On a link that is never idle it would be woken for every publication, and each time with a system call
/// of the inserter's. One whose packets come in blocks is woken once for those that come together, right after the inserter:
/// a timer would cost more, because it wakes a CPU that sleeps.
const ANALYZER_PAUSE: Duration = Duration::from_millis(2);
/// Stamps of overwritten buckets kept offline, so that `missing` is exact.
const EVICTED_BYTES: usize = 256 << 20;

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
            manual: &config.manual_dump,
            filter: config.filter.as_deref(),
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
        let path = &config.directory;
        let directory =
            Directory::open(path, config.format).map_err(|error| StartError::Directory {
                path: path.clone(),
                error,
            })?;
        let queues = probed.iter().map(|(_, source)| source.queues()).sum();
        let ring_config = ring_config(config, queues, clock.now());
        let ring = Ring::new(&ring_config, progress)?;
        let offer = offer(config, &mut expressions, &known);
        // What arrived while memory was being filled was not received yet: it does not count as lost.
        let opened = probed
            .into_iter()
            .map(|(name, source)| Ok((name, source.open(&offer)?)))
            .collect::<Result<Vec<_>, SourceError>>()?;
        opened_all().map_err(StartError::Opened)?;
        let live = !config.offline;
        let mode = mode(config.offline);
        let rules = expressions.triggers.shared.clone();
        let filter = expressions.filter.as_ref().map(|it| it.prepared.clone());
        let interfaces = Interfaces::new((rules, expressions.template.clone(), mode), filter);
        let sources = opened.iter();
        let sources = sources.map(|(name, queues)| (name.clone(), queues.len()));
        let intake = Intake::new(sources, Arc::new(interfaces), config.offline);
        let common = Common::new(ring, clock, intake);
        // Threads, and what the authors of scripts wrote, run without the privileges that opening takes.
        let scripts = without_capabilities(|| {
            native.start();
            Functions::new(&config.scripts, Limits::default(), &common)
        })??;
        let mut notices = expressions.triggers.take_notices();
        notices.extend(common.intake.interfaces.take_notices());
        notices.extend(scripts.start_notice());
        notices.extend(native.notice());

        let ring = &common.ring;
        let (messages_tx, messages) = Messages::new(live);
        let events_tx = Events::new();
        let (commands_tx, commands) = commands();
        let kind = if live {
            GroupKind::Lapped
        } else {
            GroupKind::Gating
        };
        let reader = ring.group(kind)?;
        let waker = reader.waker();
        let is_looking = live && scripts.triggers.is_empty();
        let rules = expressions.direct().filter(|_| is_looking);
        let looks = rules.map(|rules| Lookout::arrange(rules, ring, queues, waker.clone()));
        let (lookout, suspects) = looks.unzip();
        let for_inserters = InserterParts {
            common: Arc::clone(&common),
            snaplen: config.snaplen,
            filter: expressions.filter.map(Box::new),
            remaining: config
                .count
                .map(|n| Arc::new(AtomicI64::new(i64::try_from(n).unwrap_or(i64::MAX)))),
            lookout,
            shards: config.offline.then(Shards::random),
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
        let (packets, bytes) = (config.dump_packets, config.dump_bytes);
        let window = Window::new(config.past, config.future, packets, bytes);
        let requests = config.requests.iter().map(|it| Terms::new(it, window));
        let functions = &scripts.triggers;
        let functions = (0..functions.len()).filter_map(|script| functions.name(script));
        let book = RuleBook::new(
            &expressions.triggers,
            functions,
            &config.requests,
            Arc::clone(&native),
            config.offline,
        );
        let parts = AnalyzerParts {
            terms: requests.enumerate().collect(),
            window,
            native: Arc::clone(&native),
            manual: expressions.manual,
            suspects,
            messages: messages_tx,
            events: events_tx.clone(),
            commands,
        };
        let analyzer = Analyzer::new(
            Arc::clone(&common),
            (expressions.triggers, scripts),
            expressions.template,
            parts,
            reader,
            director_config(config),
        );
        let start_mono_ns = live.then(|| common.clock.now().mono_ns);
        let parts = DumperParts {
            directories: vec![directory],
            pool: Pool::start(PoolConfig::new(live), &common)?,
            common: Arc::clone(&common),
            progress,
            reproducible: config.reproducible,
            messages,
            events: events_tx.clone(),
        };
        let dumper = spawn_dumper(parts, Rules::new(mode, native))?;
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
        };
        let (analyzer, inserters) = without_capabilities(|| {
            let analyzer = spawn_analyzer(analyzer, Arc::clone(&common), Arc::clone(&left))?;
            let inserters = spawn_inserters(intakes, &for_inserters, &left, &waker, &events_tx)?;
            Ok::<_, StartError>((analyzer, inserters))
        })??;
        Ok(Self {
            common,
            events: RefCell::new(handle.subscribe(Some(0))),
            handle,
            inserters,
            analyzer,
            dumper,
            notices,
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
    let mut ring = RingConfig::new(config.ring_bytes, producers, 1);
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

fn director_config(config: &Config) -> DirectorConfig {
    DirectorConfig {
        hold_ns: if config.offline {
            duration_ns(config.hold)
        } else {
            0
        },
        rules: config.triggers.len() + config.scripts.triggers.len(),
        hold_off_ns: duration_ns(config.hold_off),
        max_dumps: config.max_dumps,
        dumps_per_minute: config.dumps_per_minute,
        bytes_per_hour: config.bytes_per_hour,
        single: config.single,
        grace_ns: (!config.offline).then(|| duration_ns(WINDOW_GRACE)),
    }
}

fn spawn_dumper(parts: DumperParts, rules: Rules) -> io::Result<JoinHandle<()>> {
    Builder::new().name("dumper".to_owned()).spawn(move || {
        let OpenGate(common) = &OpenGate(Arc::clone(&parts.common));
        let mut dumper = Dumper::new(parts, rules);
        while !common.control.aborting() && dumper.wait() {
            dumper.step();
        }
        if common.control.aborting() {
            dumper.abandon("stopped before it was complete");
        }
    })
}

fn spawn_analyzer(
    mut analyzer: Analyzer,
    common: Arc<Common>,
    left: Arc<AtomicUsize>,
) -> io::Result<JoinHandle<()>> {
    Builder::new().name("analyzer".to_owned()).spawn(move || {
        let OpenGate(common) = &OpenGate(common);
        let live = common.is_live();
        let (mut was_busy, mut is_hurried) = (false, false);
        // Acquire: what the last inserter published is then seen at the end.
        while left.load(Ordering::Acquire) > 0 {
            if analyzer.step() {
                was_busy = live;
            } else if is_hurried && std::mem::take(&mut was_busy) {
                std::thread::park_timeout(ANALYZER_PAUSE);
            } else {
                was_busy = false;
                let timeout = if analyzer.has_deadline() {
                    ANALYZER_WAIT
                } else {
                    NO_DUMP_ANALYZER_WAIT
                };
                is_hurried = analyzer.wait(timeout) < ANALYZER_PAUSE;
            }
        }
        analyzer.end(if common.control.stopping() {
            Clip::Stop
        } else {
            Clip::End
        });
    })
}

fn spawn_inserters(
    intakes: Vec<QueueIntake>,
    for_inserters: &InserterParts,
    left: &Arc<AtomicUsize>,
    waker: &Waker,
    events: &Events,
) -> Result<Vec<JoinHandle<Vec<SourceError>>>, StartError> {
    let common = &for_inserters.common;
    let gone = || Gone {
        left: Arc::clone(left),
        waker: waker.clone(),
    };
    let notify = || {
        let events = events.clone();
        move |text| {
            events.tell(Event::Notice(text));
        }
    };
    if !common.is_live() {
        let (producer, parts) = (common.ring.producer()?, for_inserters.clone());
        let inserter = MergeInserter::new(intakes, producer, waker.clone(), parts);
        let (gone, mut notify) = (gone(), notify());
        let thread = Builder::new().name("inserter".to_owned()).spawn(move || {
            let _gone = gone;
            inserter.run(&mut notify)
        })?;
        return Ok(vec![thread]);
    }
    let mut threads = Vec::new();
    for (index, intake) in intakes.into_iter().enumerate() {
        let inserter = LiveInserter::new(intake, common.ring.producer()?);
        let (gone, mut notify) = (gone(), notify());
        threads.push(
            Builder::new()
                .name(format!("inserter-{index}"))
                .spawn(move || {
                    let _gone = gone;
                    inserter.run(&mut notify).into_iter().collect()
                })?,
        );
    }
    Ok(threads)
}

/// Tells the analyzer that an inserter is gone, also by a panic. Dropped after the inserter and its producer.
#[derive(Debug)]
struct Gone {
    left: Arc<AtomicUsize>,
    waker: Waker,
}

impl Drop for Gone {
    fn drop(&mut self) {
        self.left.fetch_sub(1, Ordering::Release);
        self.waker.wake();
    }
}

/// Lets the inserter pass its gate when a thread that it would wait for ends. If that was a panic, the recording ends:
/// nobody would look at it.
#[derive(Debug)]
struct OpenGate(Arc<Common>);

impl Drop for OpenGate {
    fn drop(&mut self) {
        self.0.gate.off();
        if std::thread::panicking() {
            self.0.control.stop();
        }
    }
}
