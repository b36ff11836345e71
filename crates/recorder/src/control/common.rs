//! What all threads of a recorder share.

use std::sync::{Arc, Mutex, atomic::AtomicI64};

use retroscope_capture::clock::Clock;
use retroscope_ring::{Ring, Waker};

use crate::{
    analysis::{
        flows::{FlowCounters, FlowCounts},
        trigger_scripts::{ModuleCounters, ModuleStatus},
    },
    control::{
        alerts::AlertCounters,
        durations::{ProcessingHistogram, ProcessingTimes, TriggerAges},
        lock,
        outcomes::Outcomes,
        pins::Pins,
        progress::{AnalyzerCounters, DumpCosts, Gate, StopControl},
        pulse::ThreadPulses,
        ring_time::{RingClock, ring_times_at},
    },
    dump::log::DumpLog,
    intake::Intake,
    query::index::Index,
    timeline::TriggerLog,
};

/// See the module. Each part says who writes it.
#[derive(Debug)]
pub(crate) struct RecorderShared {
    pub(crate) ring: Ring,
    pub(crate) clock: RingClock,
    pub(crate) intake: Intake,
    /// What anyone may ask for, also who outlives the recorder's threads and must not keep the ring.
    pub(crate) control: Arc<StopControl>,
    pub(crate) gate: Gate,
    /// Offline: the highest packet time that the analyzer had seen before it moved its positions, ns. It writes it for the dumper.
    pub(crate) packet_clock: AtomicI64,
    pub(crate) counters: AnalyzerCounters,
    pub(crate) costs: DumpCosts,
    /// How long packets take to be looked at, by shard.
    pub(crate) times: Mutex<Vec<Arc<ProcessingTimes>>>,
    /// What modules do, by shard: their numbers, what messages call them, and their counters.
    pub(crate) modules: Mutex<Vec<(usize, String, Arc<ModuleCounters>)>>,
    /// Those of the shards that count flows.
    pub(crate) flows: Mutex<Vec<Arc<FlowCounters>>>,
    pub(crate) log: DumpLog,
    pub(crate) pins: Pins,
    /// What queries know of buckets of the ring.
    pub(crate) index: Arc<Index>,
    /// What hits became, by rule.
    pub(crate) outcomes: Outcomes,
    /// Live: how old trigger packets were when their dumps were opened. The dumper writes it.
    pub(crate) trigger_ages: TriggerAges,
    /// What became of alerts.
    pub(crate) alerts: AlertCounters,
    /// When the last ones were.
    pub(crate) triggers: TriggerLog,
    /// Whether inserters, analyzers and the dumper go round.
    pub(crate) pulses: ThreadPulses,
}

impl RecorderShared {
    pub(crate) fn new(ring: Ring, clock: Arc<dyn Clock>, intake: Intake) -> Arc<Self> {
        Arc::new(Self {
            index: Arc::new(Index::of(&ring, intake.offline)),
            ring,
            clock: RingClock::new(clock),
            intake,
            control: Arc::default(),
            gate: Gate::default(),
            packet_clock: AtomicI64::new(i64::MIN),
            counters: AnalyzerCounters::default(),
            costs: DumpCosts::default(),
            times: Mutex::default(),
            modules: Mutex::default(),
            flows: Mutex::default(),
            log: DumpLog::default(),
            pins: Pins::default(),
            outcomes: Outcomes::default(),
            trigger_ages: TriggerAges::default(),
            alerts: AlertCounters::default(),
            triggers: TriggerLog::default(),
            pulses: ThreadPulses::default(),
        })
    }

    /// From files: waits at the gate until the analyzer has read all and the dumper has written what it wants of it, and then lets the
    /// logs of losses merge what they hold.
    pub(crate) fn wait_for_readers(&self, analyzer: &Waker) {
        self.gate.wait(|| analyzer.wake());
        self.intake.settle();
    }

    /// Live: the stretches of ring time of packets with stamps between these, both included. Of a source with a clock of its own they are
    /// those at any setting that its packets have.
    pub(crate) fn ring_times(&self, stamps: (i64, i64)) -> Vec<(i64, i64)> {
        let mut times = self.clock.ring_times(stamps);
        let promises = self.intake.promises();
        if promises.contains(&false) {
            let is_own = |producer: usize| promises.get(producer) == Some(&false);
            let steps = self.ring.steps().into_iter();
            let offsets = steps.filter(|step| is_own(step.producer));
            let offsets = offsets.map(|step| step.offset_ns).chain([0]);
            times.extend(offsets.map(|offset_ns| ring_times_at(stamps, offset_ns)));
        }
        times
    }

    /// The stamp of ring time as the system's clock showed it then; from files, ring time itself: their clocks are not ours.
    pub(crate) fn stamp_ns(&self, ring_ns: i64) -> i64 {
        if self.is_live() {
            self.clock.stamp_ns(ring_ns)
        } else {
            ring_ns
        }
    }

    /// The dumper opens a dump for a packet (by producer) of this time: notes how old that is, where its clock is ours.
    pub(crate) fn record_age(&self, producer: usize, trigger_ns: i64) {
        if self.is_live() && self.intake.promises().get(producer) != Some(&false) {
            let age_ns = self.clock.now().ring_ns.saturating_sub(trigger_ns);
            self.trigger_ages.record(u64::try_from(age_ns).unwrap_or(0));
        }
    }

    /// How long packets take to be looked at, by shard.
    pub(crate) fn processing(&self) -> Vec<ProcessingHistogram> {
        let times = lock(&self.times);
        times.iter().map(|times| times.histogram()).collect()
    }

    /// What modules did, in their order.
    pub(crate) fn module_statuses(&self) -> Vec<ModuleStatus> {
        let mut all = Vec::<ModuleStatus>::new();
        for (number, name, counters) in &*lock(&self.modules) {
            all.resize(all.len().max(number + 1), ModuleStatus::default());
            all[*number].name.clone_from(name);
            counters.add_to(&mut all[*number]);
        }
        all
    }

    /// What became of flows; `None`: they are not counted.
    pub(crate) fn flow_counts(&self) -> Option<FlowCounts> {
        let shards = lock(&self.flows);
        let mut sum = FlowCounts::default();
        shards.iter().for_each(|shard| shard.add_to(&mut sum));
        (!shards.is_empty()).then_some(sum)
    }

    /// Live sources, rather than files.
    pub(crate) fn is_live(&self) -> bool {
        !self.intake.offline
    }
}
