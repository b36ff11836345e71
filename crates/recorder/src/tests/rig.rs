//! A recorder for tests that control the time: fake queues, a fake clock, and the real inserters,
//! analyzer and dumper, each stepped by the test.

use std::{
    iter,
    path::Path,
    sync::{Arc, Mutex, atomic::Ordering},
    thread::{scope, yield_now},
    time::{Duration, Instant},
};

use retroscope_capture::{InterfaceInfo, TimeDomain, clock::Clock};
use retroscope_flow::TrackerConfig;
use retroscope_packet::LinkType;
use retroscope_ring::{EvictionDetail, GroupKind, Ring, RingConfig};
use retroscope_script::ScriptLimits;

use crate::{
    CommandError, RecorderEvent, Scripts,
    analysis::{
        RingReader,
        analyzer::{Analyzer, AnalyzerParts},
        director::{Clip, DirectorConfig, SharedLimits},
        dump_script::DumpFunction,
        flows::{self, FlowReceiver},
        functions::ScriptFunctions,
        native::NativeCode,
        prepared::{LinkTypes, mode},
        rules::Rules,
        shard_reader::ShardReader,
        shard_slots::{AnalysisPlacement, ShardSlots},
        terms::{DumpWindow, TriggerRequest, TriggerTerms},
    },
    control::{
        alerts::{AlertConfig, AlertNews},
        commands::{AnalyzerCommand, commands},
        common::RecorderShared,
        events::{Events, Subscription},
        packet_id::Recording,
    },
    dump::{
        dumper::{Dumper, DumperParts},
        encode::DumpFormat,
        names::Directory,
        order::DumperMessages,
        pool::{Pool, PoolConfig},
        report::DumpReport,
        sidecar::Origin,
    },
    intake::{
        Intake,
        inline::{InlineParts, SharedReaders},
        inserter::{
            live::LiveInserter,
            parts::InserterParts,
            queue_intake::QueueIntake,
            shards::{ShardHash, StoredShards},
        },
        interfaces::Interfaces,
        placement::{AnalysisResources, PlacementShared},
    },
    start::{
        analysis_placement::{Situation, choose, place_shards},
        config::{Analyzers, Config},
        expressions::CheckedExpressions,
        handle::{ANSWER_WAIT, RecorderHandle},
        reload::Configured,
        rules::{self, RuleBook},
        shard_readers,
        threads::shares,
    },
};

pub(crate) use super::fakes::{FakeClock, Feed};
use super::fakes::{FakeQueue, Pause, step_all};

pub(crate) const S: i64 = 1_000_000_000;
pub(crate) const MS: i64 = 1_000_000;

/// A recorder whose inserters, shard readers, analyzer and dumper run only when the test steps
/// them.
#[derive(Debug)]
pub(crate) struct Rig {
    pub(crate) clock: Arc<FakeClock>,
    pub(crate) feeds: Vec<Arc<Mutex<Feed>>>,
    pub(crate) common: Arc<RecorderShared>,
    inserters: Arc<Mutex<Vec<LiveInserter>>>,
    readers: Vec<ShardReader>,
    analyzer: Option<Analyzer>,
    dumper: Dumper,
    pub(crate) slots: Arc<ShardSlots>,
    events: Subscription,
    pub(crate) handle: RecorderHandle,
    pub(crate) notices: Vec<String>,
    pub(crate) reports: Vec<DumpReport>,
    pub(crate) alerts: Vec<AlertNews>,
    pub(crate) compressed: Vec<DumpReport>,
    pub(crate) flows: FlowReceiver,
}

#[derive(Debug)]
pub(crate) struct RigConfig<'a> {
    pub(crate) queues: usize,
    /// As [`Config::capture_threads`].
    pub(crate) capture_threads: Option<usize>,
    /// Number of queues, counted from the last queue, that have another clock and promise no
    /// watermark.
    pub(crate) foreign_queues: usize,
    pub(crate) link_type: LinkType,
    pub(crate) ring_bytes: u64,
    pub(crate) eviction_detail: EvictionDetail,
    pub(crate) triggers: &'a [&'a str],
    pub(crate) dump: &'a str,
    pub(crate) analyzers: Analyzers,
    pub(crate) scripts: Scripts,
    pub(crate) limits: ScriptLimits,
    pub(crate) requests: &'a [TriggerRequest],
    pub(crate) past_ns: i64,
    pub(crate) future_ns: i64,
    pub(crate) packets_max: u64,
    pub(crate) bytes_max: u64,
    pub(crate) max_dumps: usize,
    pub(crate) single: bool,
    pub(crate) flows_together: bool,
    pub(crate) flows: Option<TrackerConfig>,
}

impl Default for RigConfig<'static> {
    fn default() -> Self {
        Self {
            queues: 1,
            capture_threads: None,
            foreign_queues: 0,
            link_type: LinkType::RAW,
            ring_bytes: 8 << 20,
            eviction_detail: EvictionDetail::Bounds,
            triggers: &["udp port 9"],
            dump: "",
            analyzers: Analyzers::Auto,
            scripts: Scripts::default(),
            limits: ScriptLimits::default(),
            requests: &[],
            past_ns: 2 * S,
            future_ns: S,
            packets_max: u64::MAX,
            bytes_max: u64::MAX,
            max_dumps: 64,
            single: false,
            flows_together: false,
            flows: None,
        }
    }
}

impl RigConfig<'_> {
    pub(crate) fn config(&self) -> Config {
        let limit = |limit: u64| if limit == u64::MAX { 0 } else { limit };
        Config {
            triggers: self.triggers.iter().map(|it| (*it).to_owned()).collect(),
            dump: self.dump.to_owned(),
            requests: self.requests.to_vec(),
            past: Duration::from_nanos(self.past_ns.unsigned_abs()),
            future: Duration::from_nanos(self.future_ns.unsigned_abs()),
            dump_packets: limit(self.packets_max),
            dump_bytes: limit(self.bytes_max),
            max_dumps: self.max_dumps,
            single: self.single,
            ..Config::default()
        }
    }
}

impl Rig {
    /// A live recorder at `start_ns` of the real-time clock; the monotonic clock starts at 0.
    pub(crate) fn new(plan: &RigConfig<'_>, start_ns: i64, dir: &Path) -> Self {
        Self::on(
            plan,
            start_ns,
            Directory::open(dir, DumpFormat::PcapNg).unwrap(),
        )
    }

    pub(crate) fn on(plan: &RigConfig<'_>, start_ns: i64, directory: Directory) -> Self {
        Self::by(Arc::default(), plan, start_ns, directory)
    }

    /// A live recorder with a clock that the caller may share.
    pub(crate) fn by(
        clock: Arc<FakeClock>,
        plan: &RigConfig<'_>,
        start_ns: i64,
        directory: Directory,
    ) -> Self {
        Self::assemble(clock, plan, start_ns, directory, PoolConfig::new(false))
    }

    /// A live recorder. `pool` configures the threads that write the dumps.
    pub(crate) fn with_pool(
        plan: &RigConfig<'_>,
        start_ns: i64,
        directory: Directory,
        pool: PoolConfig,
    ) -> Self {
        Self::assemble(Arc::default(), plan, start_ns, directory, pool)
    }

    fn assemble(
        clock: Arc<FakeClock>,
        plan: &RigConfig<'_>,
        start_ns: i64,
        directory: Directory,
        pool: PoolConfig,
    ) -> Self {
        clock.wall_ns.store(start_ns, Ordering::SeqCst);
        let producers = plan.capture_threads.unwrap_or(plan.queues);
        let mut ring = RingConfig {
            eviction_detail: plan.eviction_detail,
            ..RingConfig::new(plan.ring_bytes, producers, 1)
        };
        let readers = plan.analyzers.readers_max();
        let readers = ring.add_readers(readers).unwrap();
        ring.releasing_readers = plan.analyzers.releasing_readers_max(false, plan.queues);
        let ring = Ring::new(&ring, None).unwrap();
        let config = plan.config();
        let native = Arc::new(NativeCode::new());
        let link_types = LinkTypes::new(std::slice::from_ref(&plan.link_type), &Vec::new);
        let expressions = CheckedExpressions::new(&config, &link_types, &native).unwrap();
        native.start();
        let intake = Intake::new(
            (0..plan.queues).map(|i| (format!("fake{i}"), 1)),
            Arc::new(Interfaces::new(
                (
                    expressions.triggers.shared.clone(),
                    expressions.templates.clone(),
                    mode(false),
                ),
                None,
            )),
            false,
        )
        .served_by(producers);
        let common = RecorderShared::new(ring.clone(), clock.clone(), intake);
        let reader = ring.group(GroupKind::Lapped).unwrap();
        let load = || ScriptFunctions::new(&plan.scripts, plan.limits, &common).unwrap();
        let scripts = load();
        let situation = Situation {
            offline: false,
            queues: plan.queues,
            producers,
            readers,
            flows_together: plan.flows_together,
            triggers: scripts.triggers.partition(),
            dump: scripts.dump.as_ref().map(DumpFunction::partition),
            learns: expressions.templates.asking_for_flows() > 0,
            flows: plan.flows.is_some(),
            modules: scripts.triggers.has_modules(),
            joins: plan.scripts.joins(),
        };
        let (who, shards, _) = choose(plan.analyzers, situation).unwrap();
        let scripts = iter::once(scripts).chain((1..shards).map(|_| load()));
        let names = rules::names(&config).unwrap();
        let book = RuleBook::new(
            &expressions.triggers,
            iter::empty(),
            (&config, names),
            Arc::clone(&native),
            shards > 1 && !plan.flows_together,
            &common.outcomes,
            Configured {
                config: config.clone(),
                cutoffs: None,
            },
        );
        let is_sharded = who == AnalysisPlacement::ShardReaders;
        let shard_hash = is_sharded.then(ShardHash::random);
        let mut scripts: Vec<_> = scripts.collect();
        for functions in &mut scripts {
            functions.triggers.shard_hash.clone_from(&shard_hash);
        }
        let looks = (expressions.triggers, scripts);
        let (sender, receiver) = flows::channel(&common);
        let of_flows = plan.flows.map(|config| (config, sender));
        let templates = &expressions.templates;
        let (slots, derivation) =
            place_shards(who, looks, templates, of_flows.as_ref(), None, &common);
        let stored_shards = is_sharded.then(|| Arc::new(StoredShards::new(producers)));
        let mut readers =
            shard_readers(&common, &slots, &reader.waker(), stored_shards.as_ref()).unwrap();
        let of_inserters = match who {
            AnalysisPlacement::Inserters => std::mem::take(&mut readers),
            _ => Vec::new(),
        };
        let shared_readers = SharedReaders::new(of_inserters);
        let inline = shared_readers.as_ref().map(|shared| InlineParts {
            slots: Arc::clone(&slots),
            readers: Arc::clone(shared),
            analyzer: reader.waker(),
            placing: PlacementShared::new(
                Analyzers::Auto,
                AnalysisResources {
                    cpus: 2,
                    threads: 1,
                    inserters: producers,
                    ring_bytes: ring.bytes(),
                },
            ),
        });
        let for_inserters = InserterParts {
            inline,
            shards: shard_hash,
            stored_shards,
            hold_ns: 100 * MS,
            ..InserterParts::new(&config, Arc::clone(&common))
        };
        let mut feeds = Vec::new();
        let mut intakes = Vec::new();
        for index in 0..plan.queues {
            let feed = Arc::new(Mutex::new(Feed::default()));
            feeds.push(Arc::clone(&feed));
            let is_foreign = index >= plan.queues - plan.foreign_queues;
            let info = InterfaceInfo {
                name: format!("fake{index}"),
                link_type: plan.link_type,
                snaplen: 0,
                time_domain: if is_foreign {
                    TimeDomain::Foreign
                } else {
                    TimeDomain::KernelSoftware
                },
                time_resolution_ns: 1,
            };
            let queue = FakeQueue {
                interfaces: vec![info],
                feed,
                memory: Vec::new(),
                frames: Vec::new(),
            };
            let counters = Arc::clone(&common.intake.sources[index].queues[0]);
            let intake =
                QueueIntake::new(Box::new(queue), index, counters, &for_inserters).unwrap();
            intakes.push(intake);
        }
        let inserters = shares(intakes, producers).into_iter();
        let inserters = inserters.map(|it| LiveInserter::new(it, ring.producer().unwrap()));
        let inserters: Vec<_> = inserters.collect();
        let (messages_tx, messages) = DumperMessages::new();
        let events_tx = Events::new();
        let events = events_tx.log().subscribe(Some(0));
        let (commands_tx, commands) = commands();
        let window = DumpWindow {
            past_ns: plan.past_ns,
            future_ns: plan.future_ns,
            packets_max: plan.packets_max,
            bytes_max: plan.bytes_max,
        };
        let requests = plan.requests.iter().map(|it| TriggerTerms::new(it, window));
        let parts = AnalyzerParts {
            terms: requests.enumerate().collect(),
            window,
            native: Arc::clone(&native),
            alerts: AlertConfig::default(),
            manual: expressions.manual,
            messages: messages_tx,
            events: events_tx.clone(),
            commands,
        };
        let config = DirectorConfig {
            hold_ns: 0,
            rules: plan.triggers.len() + plan.scripts.triggers.len() + plan.scripts.modules.len(),
            limits: SharedLimits {
                hold_off_ns: 0,
                max_dumps: plan.max_dumps,
                dumps_per_minute: 0,
                alerts_per_minute: true,
                bytes_per_hour: 0,
            },
            single: plan.single,
            alert_dumps: 4,
            are_alerts_expected: false,
            grace_ns: Some(50 * MS),
        };
        let handle = RecorderHandle {
            control: Arc::clone(&common.control),
            waker: reader.waker(),
            commands: commands_tx,
            log: Arc::clone(events_tx.log()),
            rules: Arc::new(book),
            common: Arc::downgrade(&common),
            start_mono_ns: Some(common.clock.mono_ns()),
            answer_wait: ANSWER_WAIT,
            history: None,
            keeper: None,
            post: None,
        };
        let analyzer = Analyzer::new(
            Arc::clone(&common),
            (Arc::clone(&slots), derivation),
            parts,
            (reader, shared_readers),
            config,
        );
        let parts = DumperParts {
            marks: None,
            common: Arc::clone(&common),
            directory,
            pool: Pool::start(pool, &common).unwrap(),
            post: None,
            reproducible: true,
            origin: Origin {
                recording: Some(Recording::of(&common.ring.attached().info())),
                ..Origin::default()
            },
            messages,
            events: events_tx,
            keeper: None,
        };
        let dumper = Dumper::new(parts, Rules::new(mode(false), native));
        Self {
            clock,
            feeds,
            common,
            inserters: Arc::new(Mutex::new(inserters)),
            readers,
            analyzer: Some(analyzer),
            dumper,
            slots,
            events,
            handle,
            notices: Vec::new(),
            reports: Vec::new(),
            alerts: Vec::new(),
            compressed: Vec::new(),
            flows: receiver,
        }
    }

    /// Moves both clocks by `ns`. The watermark of a queue, if any, moves to 1 ms before the
    /// real-time clock, and the queue's counters are then complete up to this clock.
    pub(crate) fn pass(&self, ns: i64) {
        self.clock.pass(ns);
        let wall_ns = self.clock.wall_ns.load(Ordering::SeqCst);
        for feed in &self.feeds {
            let mut feed = feed.lock().unwrap();
            feed.watermark_ns = Some(wall_ns - MS);
            feed.known_ns = Some(wall_ns);
        }
    }

    pub(crate) fn arrive(&self, queue: usize, data: Vec<u8>) {
        let now_ns = self.clock.now().wall_ns;
        self.feeds[queue]
            .lock()
            .unwrap()
            .frames
            .push_back((now_ns, data));
    }

    pub(crate) fn step(&mut self) {
        self.insert();
        self.analyze();
    }

    pub(crate) fn insert(&mut self) {
        step_all(&self.inserters);
    }

    /// As [`Self::analyze`], with a pause of `pause_ns` after `readings` readings of the clock and
    /// one more. At the end of the pause `packet` arrives on the first queue, and the inserters are
    /// stepped. Returns `false` if there was no such reading.
    pub(crate) fn analyze_with_pause(
        &mut self,
        readings: usize,
        pause_ns: i64,
        packet: Vec<u8>,
    ) -> bool {
        *self.clock.pause.lock().unwrap() = Some(Pause {
            readings,
            pause_ns,
            packet,
            feed: Arc::clone(&self.feeds[0]),
            inserters: Arc::clone(&self.inserters),
        });
        self.analyze();
        self.clock.pause.lock().unwrap().take().is_none()
    }

    pub(crate) fn look(&mut self) {
        for reader in &mut self.readers {
            while reader.step() {}
        }
        if let Some(analyzer) = &mut self.analyzer {
            while analyzer.step() {}
        }
    }

    /// Runs the readers of shards in separate threads until they are done. Meanwhile the analyzer
    /// runs until `is_so` is true.
    ///
    /// # Panics
    /// If this takes 20 s or longer.
    pub(crate) fn look_beside_readers(&mut self, mut is_so: impl FnMut(&RecorderHandle) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        scope(|scope| {
            for reader in &mut self.readers {
                scope.spawn(|| while reader.step() {});
            }
            while !is_so(&self.handle) && Instant::now() < deadline {
                self.analyzer.as_mut().map(Analyzer::step);
                yield_now();
            }
        });
        self.look();
        assert!(Instant::now() < deadline, "it did not come to that");
    }

    pub(crate) fn run_commands(&mut self) {
        self.analyzer.as_mut().map(Analyzer::run_commands);
    }

    /// Each reader of a shard and the analyzer do one step.
    pub(crate) fn look_once(&mut self) {
        self.readers.iter_mut().for_each(|it| _ = it.step());
        if let Some(analyzer) = &mut self.analyzer {
            analyzer.step();
        }
    }

    /// Steps the readers of shards and the analyzer until they are done. Then the dumper does one
    /// round.
    pub(crate) fn analyze(&mut self) {
        self.look();
        self.dumper.step();
        self.hear();
    }

    pub(crate) fn settle(&mut self) {
        self.dumper.settle();
        self.hear();
    }

    /// Steps until `is_so` is true, which may depend on other threads. Panics after 120 s.
    pub(crate) fn step_until(&mut self, mut is_so: impl FnMut(&Self) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(120);
        while !is_so(self) {
            assert!(Instant::now() < deadline, "{:?}", self.reports);
            self.step();
            std::thread::park_timeout(Duration::from_micros(100));
        }
    }

    pub(crate) fn trigger(&self, request: TriggerRequest) {
        let command = AnalyzerCommand::Trigger {
            at_ns: None,
            key: None,
            rule: None,
            held: None,
            request: Box::new(request),
            expression: None,
            reply: None,
        };
        self.handle.commands.try_send(command).unwrap();
    }

    /// The dumper abandons all open dumps. Their reports have the error `why`.
    pub(crate) fn abandon(&mut self, why: &str) {
        self.dumper.abandon(why);
        self.hear();
    }

    fn hear(&mut self) {
        while let Ok(event) = self.events.take(Duration::ZERO) {
            match event {
                RecorderEvent::Finished(report) => self.reports.push(report),
                RecorderEvent::Compressed(report) => self.compressed.push(report),
                RecorderEvent::Notice(text) => self.notices.push(text),
                RecorderEvent::Triggered { .. }
                | RecorderEvent::Deleted(_)
                | RecorderEvent::Posted(_)
                | RecorderEvent::Exported(_)
                | RecorderEvent::Changed(_)
                | RecorderEvent::Refused(_) => {}
                RecorderEvent::Alert(news) => self.alerts.push(news),
                RecorderEvent::Missed(missed) => panic!("{missed:?}"),
            }
        }
    }

    /// The number of dumps for which packets may have come too late, and by source an upper bound
    /// of such packets.
    pub(crate) fn late(&self) -> (u64, Vec<u64>) {
        let sources = self.common.intake.snapshots().into_iter();
        let outdated = self.common.counters.reading().outdated;
        (outdated, sources.map(|source| source.late).collect())
    }

    /// The first source gets another interface, of this link type.
    pub(crate) fn turn_up(&self, link_type: LinkType) {
        let info = InterfaceInfo {
            name: "more".to_owned(),
            link_type,
            snaplen: 0,
            time_domain: TimeDomain::KernelSoftware,
            time_resolution_ns: 1,
        };
        let interfaces = &self.common.intake.interfaces;
        interfaces.register(&self.common.ring, 0, &info).unwrap();
    }

    /// The thread that compiles dump filters ends in the middle of its work.
    pub(crate) fn lose_compiler(&mut self) {
        self.dumper.lose_compiler();
    }

    pub(crate) fn dumper_mut(&mut self) -> &mut Dumper {
        &mut self.dumper
    }

    pub(crate) fn dumper(&self) -> &Dumper {
        &self.dumper
    }

    /// Steps the analyzer until it is done, without the dumper. Returns the sizes of the analyzer's
    /// collections.
    pub(crate) fn analyze_alone(&mut self) -> [usize; 3] {
        let analyzer = self.analyzer.as_mut().expect("it is not stopped");
        while analyzer.step() {}
        analyzer.remembered()
    }

    /// The number of packets that the analyzer skipped, because no window was closed or the packets
    /// were too new for all closed windows.
    pub(crate) fn passed_by(&self) -> usize {
        self.analyzer.as_ref().map_or(0, Analyzer::passed_by)
    }

    pub(crate) fn analyzer(&self) -> &Analyzer {
        self.analyzer.as_ref().expect("it is not stopped")
    }

    /// Stops the recorder, and lets the dumper do one more round.
    pub(crate) fn stop(&mut self) {
        self.common.control.stop();
        self.step();
        self.step();
        self.inserters.lock().unwrap().clear();
        self.readers.drain(..).for_each(ShardReader::end);
        if let Some(analyzer) = self.analyzer.take() {
            analyzer.end(Clip::Stop);
        }
        self.step();
    }
}

impl RecorderHandle {
    pub(crate) fn set_rule(
        &self,
        name: &str,
        expression: &str,
        request: &TriggerRequest,
    ) -> Result<bool, CommandError> {
        self.put_rule(name, (expression, request), None, crate::Condition::Any)
            .map(|(_, existed)| existed)
    }
}

/// A raw IPv4 packet of 32 bytes with UDP, to `port`. Its payload is `number`.
pub(crate) fn udp(source_port: u16, port: u16, number: u32) -> Vec<u8> {
    let mut packet = vec![
        0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
    ];
    packet.extend(source_port.to_be_bytes());
    packet.extend(port.to_be_bytes());
    packet.extend([0, 12, 0, 0]);
    packet.extend(number.to_be_bytes());
    packet
}
