//! The recorder's status in JSON, for the API and for EVE statistics.

use std::collections::BTreeMap;

use retroscope_recorder::{
    AlertCounts, AlertSummary, FlowCounts, ModuleStatus, Pin, PostCounts, ProcessingHistogram,
    RecorderStatus, RuleHits, SourceSnapshot, Suppressions, ThreadStatus, rfc3339,
};
use retroscope_ring::{InterfaceEntry, Mode};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The recorder's status. `null`: unknown or absent.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = RecorderStatus)]
pub struct StatusBody<'a> {
    /// The intake ledger of every source, as in `--json` of `record`.
    sources: &'a [SourceSnapshot],
    /// The buffers of the engines.
    buffers: Vec<BufferBody<'a>>,
    analyzers: AnalyzersBody,
    ring: RingBody,
    /// The places that keep packets of the past, first the place with the newest packets.
    tiers: [TierBody; 1],
    /// Every packet that was stored within this time is in the ring, seconds; files: `null`.
    history_seconds: Option<f64>,
    /// The time that `--history-goal` demands, seconds.
    history_goal_seconds: Option<f64>,
    /// Bytes of each direction of a flow that are kept to reach the goal; `null`: all bytes.
    history_limit_bytes: Option<u64>,
    /// Results of the commands of `--post`; `null`: no command is configured.
    post: Option<PostCounts>,
    /// Hits that started dumps.
    triggers: u64,
    /// Hits that started no dump.
    suppressed: u64,
    /// Hits that started no dump, by reason.
    #[schema(value_type = std::collections::BTreeMap<String, u64>)]
    suppressed_by: Suppressions,
    /// Dumps whose window is open or whose file is not finished.
    dumps_open: u64,
    /// Bytes that were copied for dumps and are not written yet.
    copied_bytes: u64,
    /// Steps of the real-time clock beyond 100 ms.
    clock_steps: u64,
    /// Dumps that may lack packets that arrived too late. An earlier verdict does not report these
    /// packets.
    dumps_with_late_packets: u64,
    /// Scripts and modules that are disabled because they failed or exceeded a budget.
    scripts_failed: u64,
    /// Counters of flows; `null`: flows are not counted.
    flows: Option<FlowCounts>,
    modules: &'a [ModuleStatus],
    /// Alerts of an IDS by result.
    #[schema(value_type = AlertSummary)]
    alerts: AlertCounts,
    /// Times of inspecting a packet, for each shard.
    processing: Vec<ProcessingBody>,
    /// The threads that store, analyze and dump packets; files: empty.
    threads: Vec<ThreadBody<'a>>,
    when_full: WhenFull,
    /// Number of trigger rules.
    rules: usize,
    /// Costs of current rules and of some removed rules, at most 256. If there are other rules, a
    /// last entry with the name `null` sums up their costs.
    rule_costs: Vec<RuleCostBody<'a>>,
    inspection: InspectionBody,
    pins: Vec<PinBody>,
    /// The number of the next event.
    next_event: u64,
}

/// The reading ledger at one moment: `stored = analyzed + missed + unread`.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Analyzers)]
struct AnalyzersBody {
    /// Packets stored in the ring since the start.
    stored: u64,
    /// Packets that were analyzed, or skipped because no trigger needed the packets.
    analyzed: u64,
    /// Packets that the ring overwrote before they were analyzed.
    missed: u64,
    /// Packets in the ring that are not analyzed yet.
    unread: u64,
}

/// A thread. If the thread has a share of the packets to analyze, `analyzed`, `missed` and `unread`
/// add up to this share. Otherwise these fields and `longest_seconds` are `null`.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ThreadStatus)]
struct ThreadBody<'a> {
    /// The thread's name, as `ps -T` shows it. `inserter-N` is a capture thread.
    name: &'a str,
    /// Processor time since the start; `null`: unknown.
    cpu_seconds: Option<f64>,
    /// Packets that the thread stored in the ring; `null`: not a capture thread.
    stored: Option<u64>,
    /// Packets of the share that were analyzed, or skipped because no trigger needed the packets.
    analyzed: Option<u64>,
    /// Packets of the share that the ring overwrote before they were analyzed.
    missed: Option<u64>,
    /// Packets of the share that are in the ring and not analyzed yet.
    unread: Option<u64>,
    /// The longest time between two readings of the clock while packets were analyzed. A slow call
    /// of a script shows here.
    longest_seconds: Option<f64>,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Ring)]
struct RingBody {
    /// Packets published since the start.
    stored: u64,
    /// Captured bytes of the packets published since the start.
    stored_bytes: u64,
    /// Packets that were overwritten.
    evicted: u64,
    /// Captured bytes of the overwritten packets.
    evicted_bytes: u64,
    /// Buckets without packets.
    free_buckets: usize,
    /// Buckets that a producer fills.
    open_buckets: usize,
    /// Buckets that get no more packets.
    closed_buckets: usize,
    /// Closed buckets that dumps or pins need.
    reserved_buckets: usize,
    /// Reservations of dumps and pins that lost packets because the ring needed their space.
    reservations_revoked: u64,
}

/// A place that keeps packets of the past.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TierStatus)]
struct TierBody {
    tier: Tier,
    /// The class of packets that this tier keeps; `null`: all classes.
    class: Option<&'static str>,
    /// Bytes that the tier has for packets.
    bytes: u64,
    /// Every packet that was stored within this time is in the tier, seconds; files: `null`.
    history_seconds: Option<f64>,
}

/// A kind of place for packets.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum Tier {
    /// The ring in memory.
    Ram,
    /// Files.
    #[expect(
        dead_code,
        reason = "part of the API's shape: clients must know the value"
    )]
    Disk,
}

/// The buffer of a source's engine.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Buffer)]
struct BufferBody<'a> {
    /// The source's name.
    source: &'a str,
    /// Approximate number of packets that the buffer holds; `null`: unknown.
    buffer_packets: Option<u64>,
    /// Seconds that an inspection may take before a packet is dropped, by the link's speed in
    /// Gbit/s.
    longest_seconds_by_gbit: BTreeMap<String, Option<f64>>,
}

/// Times of inspecting a packet, for one shard.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Processing)]
struct ProcessingBody {
    /// Upper bounds of the classes, ns. The last class has no bound: `null`.
    below_ns: Vec<Option<u64>>,
    /// Number of packets in each class.
    packets: Vec<u64>,
    /// The 99.99th percentile, ns; `null`: no packet was timed.
    p9999_ns: Option<u64>,
}

/// The costs of a rule since the recorder counts its name separately, with earlier rules of the
/// same name.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = RuleCost)]
struct RuleCostBody<'a> {
    rule: Option<&'a str>,
    /// Hits that started a dump.
    dumps: u64,
    /// Finished dumps.
    finished: u64,
    /// Bytes that the dumps wrote: captured bytes, and the file format's overhead of each packet.
    bytes: u64,
    /// Hits that started no dump.
    suppressed: u64,
    /// Hits that started no dump, by reason.
    #[schema(value_type = std::collections::BTreeMap<String, u64>)]
    suppressed_by: Suppressions,
}

/// The cost of inspecting a packet by trigger rules, scripts, modules and the counting of flows.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Inspection)]
struct InspectionBody {
    /// Packets whose inspection was timed. One in eight groups of up to 64 packets is timed.
    timed: u64,
    /// Mean duration of an inspection, ns; `null`: no packet was timed.
    mean_ns: Option<f64>,
}

impl InspectionBody {
    fn of(shards: &[ProcessingHistogram]) -> Self {
        let timed: u64 = shards.iter().flat_map(|shard| shard.packets).sum();
        let sum_ns: u64 = shards.iter().map(|shard| shard.sum_ns).sum();
        Self {
            timed,
            mean_ns: (timed > 0).then(|| sum_ns as f64 / timed as f64),
        }
    }
}

impl<'a> From<&'a RuleHits> for RuleCostBody<'a> {
    fn from(hits: &'a RuleHits) -> Self {
        Self {
            rule: hits.rule.as_deref(),
            dumps: hits.counts.triggers,
            finished: hits.finished,
            bytes: hits.bytes,
            suppressed: hits.counts.suppressed.total(),
            suppressed_by: hits.counts.suppressed,
        }
    }
}

/// The behavior of the recorder if dumps or pins need all packets in the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum WhenFull {
    /// New packets overwrite packets of dumps and pins.
    Record,
    /// Live recording only: dumps and pins keep their packets, and new packets are lost.
    Protect,
    /// Capture files only: reading the files waits until the dumps have written their packets.
    Wait,
}

impl WhenFull {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Record => "record",
            Self::Protect => "protect",
            Self::Wait => "wait",
        }
    }
}

impl From<Mode> for WhenFull {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Protect => Self::Protect,
            Mode::Wait => Self::Wait,
            _ => Self::Record,
        }
    }
}

impl From<WhenFull> for Mode {
    fn from(when_full: WhenFull) -> Self {
        match when_full {
            WhenFull::Record => Self::Record,
            WhenFull::Protect => Self::Protect,
            WhenFull::Wait => Self::Wait,
        }
    }
}

/// A time range that the ring keeps.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = Pin)]
pub(crate) struct PinBody {
    name: String,
    /// The first time stamp, RFC 3339; `null`: from the oldest packet that was in the ring.
    from: Option<String>,
    /// The last time stamp, RFC 3339.
    to: String,
    /// The pin protects no packets any more, because the ring needed its space.
    revoked: bool,
    /// Upper bound on packets in the pin's time range that were overwritten recently before the pin
    /// was made. A bucket partly in the time range counts with all of its packets.
    evicted_before: u64,
    /// Time until the pin ends, unless its lease is renewed; `null`: the pin has no lease.
    lease_seconds: Option<f64>,
}

impl PinBody {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

impl From<&Pin> for PinBody {
    fn from(pin: &Pin) -> Self {
        Self {
            name: pin.name.clone(),
            from: (pin.from_ns != i64::MIN).then(|| rfc3339(pin.from_ns)),
            to: rfc3339(pin.to_ns),
            revoked: pin.has_fallen,
            evicted_before: pin.evicted_before,
            lease_seconds: pin.lease_ns.map(|ns| ns as f64 / 1e9),
        }
    }
}

impl<'a> From<&'a RecorderStatus> for StatusBody<'a> {
    fn from(status: &'a RecorderStatus) -> Self {
        let ring = &status.ring;
        Self {
            sources: &status.sources,
            buffers: status.sources.iter().map(BufferBody::from).collect(),
            analyzers: AnalyzersBody {
                stored: status.stored,
                analyzed: status.analyzed,
                missed: status.lapped,
                unread: status.unread,
            },
            ring: RingBody {
                stored: ring.stored_packets,
                stored_bytes: ring.stored_bytes,
                evicted: ring.evicted_packets,
                evicted_bytes: ring.evicted_bytes,
                free_buckets: ring.free_buckets,
                open_buckets: ring.open_buckets,
                closed_buckets: ring.closed_buckets,
                reserved_buckets: ring.reserved_buckets,
                reservations_revoked: ring.reservations_fallen,
            },
            tiers: [TierBody {
                tier: Tier::Ram,
                class: None,
                bytes: status.ring_bytes,
                history_seconds: status.history.map(|history| history.as_secs_f64()),
            }],
            history_seconds: status.history.map(|history| history.as_secs_f64()),
            history_goal_seconds: status.history_goal.map(|(goal, _)| goal.as_secs_f64()),
            history_limit_bytes: status.history_goal.and_then(|(_, limit)| limit),
            post: status.post,
            triggers: status.hits.triggers,
            suppressed: status.hits.suppressed.total(),
            suppressed_by: status.hits.suppressed,
            dumps_open: status.dumps_open,
            copied_bytes: status.copied_bytes,
            clock_steps: status.clock_steps,
            dumps_with_late_packets: status.outdated,
            scripts_failed: status.scripts_failed,
            flows: status.flows,
            modules: &status.modules,
            alerts: status.alerts,
            processing: status.processing.iter().map(ProcessingBody::from).collect(),
            threads: status.threads.iter().map(ThreadBody::from).collect(),
            when_full: status.when_full.into(),
            rules: status.rules,
            rule_costs: status.hits_by_rule.iter().map(Into::into).collect(),
            inspection: InspectionBody::of(&status.processing),
            pins: status.pins.iter().map(PinBody::from).collect(),
            next_event: status.next_event,
        }
    }
}

impl<'a> From<&'a ThreadStatus> for ThreadBody<'a> {
    fn from(thread: &'a ThreadStatus) -> Self {
        Self {
            name: &thread.name,
            cpu_seconds: thread.cpu.map(|cpu| cpu.as_secs_f64()),
            stored: thread.stored,
            analyzed: thread.analysis.map(|of| of.analyzed),
            missed: thread.analysis.map(|of| of.missed),
            unread: thread.analysis.map(|of| of.unread),
            longest_seconds: thread.analysis.map(|of| of.longest.as_secs_f64()),
        }
    }
}

/// Table 1 of the R-Scope paper for this source.
impl<'a> From<&'a SourceSnapshot> for BufferBody<'a> {
    fn from(source: &'a SourceSnapshot) -> Self {
        let longest = |gbits: u64| source.longest_ns(gbits * 1_000_000_000);
        let seconds = |gbits: u64| longest(gbits).map(|ns| ns as f64 / 1e9);
        let at = SourceSnapshot::LINK_GBITS;
        Self {
            source: &source.name,
            buffer_packets: source.buffer_packets(),
            longest_seconds_by_gbit: at.map(|gbits| (gbits.to_string(), seconds(gbits))).into(),
        }
    }
}

impl From<&ProcessingHistogram> for ProcessingBody {
    fn from(histogram: &ProcessingHistogram) -> Self {
        let below = ProcessingHistogram::BELOW_NS.into_iter();
        Self {
            below_ns: below
                .map(|below| Some(below).filter(|it| *it < u64::MAX))
                .collect(),
            packets: histogram.packets.into(),
            p9999_ns: histogram.p9999_ns,
        }
    }
}

/// An interface of the recording.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Interface)]
pub(crate) struct InterfaceBody {
    name: String,
    /// Link-layer header type: a LINKTYPE_ value.
    link_type: u16,
    /// Maximum number of bytes kept of each frame (snap length); `null`: no limit.
    snaplen: Option<u32>,
    /// Speed of the link now, Mbit/s; `null`: unknown, or the link is down.
    speed_mbit: Option<u32>,
}

/// The interfaces of the recording.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Interfaces)]
pub(crate) struct InterfacesBody {
    pub(crate) interfaces: Vec<InterfaceBody>,
}

impl InterfaceBody {
    pub(crate) fn new(entry: InterfaceEntry, speed_mbit: Option<u32>) -> Self {
        Self {
            name: entry.name,
            link_type: entry.link_type,
            snaplen: (entry.snaplen > 0).then_some(entry.snaplen),
            speed_mbit,
        }
    }
}
