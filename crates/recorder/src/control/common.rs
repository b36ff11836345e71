//! The state that all threads of a recorder share.

use std::sync::{Arc, Mutex, OnceLock};

use retroscope_capture::clock::Clock;
use retroscope_ring::Ring;

use crate::{
    analysis::{
        flows::{FlowCounters, FlowCounts},
        trigger_scripts::{ModuleCounters, ModuleStatus},
    },
    control::{
        alerts::AlertCounters,
        durations::{Durations, ProcessingHistogram},
        lock,
        outcomes::Outcomes,
        pins::Pins,
        progress::{AnalyzerCounters, DumpCosts, StopControl},
        pulse::ThreadPulses,
        ring_time::{RingClock, ring_times_at},
        threads::{DividedAnalysis, ShardCounters},
    },
    dump::log::DumpLog,
    intake::Intake,
    query::index::BucketIndex,
    timeline::{TriggerLog, peaks::PeakCache},
};

#[derive(Debug)]
pub(crate) struct RecorderShared {
    pub(crate) ring: Ring,
    pub(crate) clock: RingClock,
    pub(crate) intake: Intake,
    /// Requests to stop. A separate `Arc`, for threads that outlive the recorder and must not keep
    /// the ring.
    pub(crate) control: Arc<StopControl>,
    pub(crate) counters: AnalyzerCounters,
    pub(crate) costs: DumpCosts,
    pub(crate) shards: Mutex<Vec<Arc<ShardCounters>>>,
    /// How packets are divided among the readers of shards; empty if the analyzer analyzes all
    /// packets.
    pub(crate) divided: OnceLock<DividedAnalysis>,
    /// The modules of each shard: number, name for messages, and counters.
    pub(crate) modules: Mutex<Vec<(usize, String, Arc<ModuleCounters>)>>,
    /// The counters of the shards that count flows.
    pub(crate) flows: Mutex<Vec<Arc<FlowCounters>>>,
    pub(crate) log: DumpLog,
    pub(crate) pins: Pins,
    pub(crate) index: Arc<BucketIndex>,
    pub(crate) outcomes: Outcomes,
    /// Live: ages of trigger packets when their dumps opened; written by the dumper.
    pub(crate) trigger_ages: Durations,
    pub(crate) alerts: AlertCounters,
    /// The trigger times of the last dumps.
    pub(crate) triggers: TriggerLog,
    pub(crate) peaks: PeakCache,
    pub(crate) pulses: ThreadPulses,
}

impl RecorderShared {
    pub(crate) fn new(ring: Ring, clock: Arc<dyn Clock>, intake: Intake) -> Arc<Self> {
        Arc::new(Self {
            index: Arc::new(BucketIndex::of(&ring, intake.offline)),
            ring,
            clock: RingClock::new(clock),
            intake,
            control: Arc::default(),
            counters: AnalyzerCounters::default(),
            costs: DumpCosts::default(),
            shards: Mutex::default(),
            divided: OnceLock::new(),
            modules: Mutex::default(),
            flows: Mutex::default(),
            log: DumpLog::default(),
            pins: Pins::default(),
            outcomes: Outcomes::default(),
            trigger_ages: Durations::default(),
            alerts: AlertCounters::default(),
            triggers: TriggerLog::default(),
            peaks: PeakCache::default(),
            pulses: ThreadPulses::default(),
        })
    }

    /// Live: the ranges of ring time for stamps within a closed interval. For sources with another
    /// clock, the ranges include every offset that the stamps of their packets in the ring have.
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

    /// The stamp of a ring time by the system's clock; from files, the ring time itself.
    pub(crate) fn stamp_ns(&self, ring_ns: i64) -> i64 {
        if self.is_live() {
            self.clock.stamp_ns(ring_ns)
        } else {
            ring_ns
        }
    }

    /// Records the age of the packet for which the dumper opens a dump. Ages from files, or by
    /// stamps of another clock, are not recorded.
    pub(crate) fn record_age(&self, producer: usize, trigger_ns: i64) {
        if self.is_live() && self.intake.promises().get(producer) != Some(&false) {
            let age_ns = self.clock.now().ring_ns.saturating_sub(trigger_ns);
            let age_ns = u64::try_from(age_ns).unwrap_or(0);
            self.trigger_ages.record(age_ns, 1);
        }
    }

    /// Processing times of packets, by shard.
    pub(crate) fn processing(&self) -> Vec<ProcessingHistogram> {
        let shards = lock(&self.shards);
        shards.iter().map(|shard| shard.times.histogram()).collect()
    }

    /// The status of each module, in the order of modules.
    pub(crate) fn module_statuses(&self) -> Vec<ModuleStatus> {
        let mut all = Vec::<ModuleStatus>::new();
        for (number, name, counters) in &*lock(&self.modules) {
            all.resize(all.len().max(number + 1), ModuleStatus::default());
            all[*number].name.clone_from(name);
            counters.add_to(&mut all[*number]);
        }
        all
    }

    /// Counts of flows; `None`: flows are not counted.
    pub(crate) fn flow_counts(&self) -> Option<FlowCounts> {
        let shards = lock(&self.flows);
        let mut sum = FlowCounts::default();
        shards.iter().for_each(|shard| shard.add_to(&mut sum));
        (!shards.is_empty()).then_some(sum)
    }

    /// Whether the sources are live, not files.
    pub(crate) fn is_live(&self) -> bool {
        !self.intake.offline
    }
}
