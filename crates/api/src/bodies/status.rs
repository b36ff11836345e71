//! What a recorder is doing, as the API and the statistics of EVE tell it.

use std::collections::BTreeMap;

use retroscope_recorder::{
    AlertCounts, FlowCounts, ModuleStatus, Pin, PostCounts, ProcessingHistogram, RecorderStatus,
    RuleHits, SourceSnapshot, Suppressions, rfc3339,
};
use retroscope_ring::{InterfaceEntry, Mode};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a recorder is doing. `null`: unknown, or there is no such thing.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = RecorderStatus)]
pub struct StatusBody<'a> {
    /// Every source's intake ledger, as in `--json` of `record`.
    sources: &'a [SourceSnapshot],
    /// How long a packet may take without a drop.
    buffers: Vec<BufferBody<'a>>,
    analyzers: AnalyzersBody,
    ring: RingBody,
    /// The places that keep packets of the past, the newest packets first.
    tiers: [TierBody; 1],
    /// All that was stored within this time is in the ring, seconds; files: `null`.
    history_seconds: Option<f64>,
    /// How far it is to reach back.
    history_goal_seconds: Option<f64>,
    /// How many bytes of each direction flows keep for that; `null`: all.
    history_limit_bytes: Option<u64>,
    /// What became of the commands of `--post`; `null`: there are none.
    post: Option<PostCounts>,
    /// Hits that started dumps.
    triggers: u64,
    /// Hits that started none.
    suppressed: u64,
    /// … by reason.
    #[schema(value_type = std::collections::BTreeMap<String, u64>)]
    suppressed_by: Suppressions,
    /// Dumps whose window is open or whose file is not finished.
    dumps_open: u64,
    /// Bytes that are copied for dumps and not written yet.
    copied_bytes: u64,
    /// Steps of the real-time clock beyond 100 ms.
    clock_steps: u64,
    /// Dumps that packets may have come too late for: their verdicts do not report these packets.
    dumps_with_late_packets: u64,
    /// Scripts that failed or exceeded a budget, and do nothing any more.
    scripts_failed: u64,
    /// What became of flows; `null`: they are not counted.
    flows: Option<FlowCounts>,
    /// What modules did.
    modules: &'a [ModuleStatus],
    /// What became of alerts of an IDS.
    #[schema(value_type = Object)]
    alerts: AlertCounts,
    /// How long packets take to be looked at, by shard.
    processing: Vec<ProcessingBody>,
    when_full: WhenFull,
    /// How many trigger rules there are.
    rules: usize,
    /// What the rules cost, by name: those that are there, some that were, and at last, with `null` as its name, all that are not told one by one (beyond 256).
    /// How long a packet takes is known of all rules together (`inspection`): they are one program.
    rule_costs: Vec<RuleCostBody<'a>>,
    inspection: InspectionBody,
    pins: Vec<PinBody>,
    /// The number of the next event.
    next_event: u64,
}

/// The reading ledger of one moment: `stored = analyzed + missed + unread`.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Analyzers)]
struct AnalyzersBody {
    stored: u64,
    analyzed: u64,
    /// Packets that the ring overwrote before the analyzer inspected the packets.
    missed: u64,
    unread: u64,
}

/// The ring.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Ring)]
struct RingBody {
    /// Packets published since the start, …
    stored: u64,
    stored_bytes: u64,
    /// … those that were overwritten.
    evicted: u64,
    evicted_bytes: u64,
    free_buckets: usize,
    open_buckets: usize,
    closed_buckets: usize,
    /// Of the closed ones, those that dumps or pins want.
    reserved_buckets: usize,
    /// Reservations of dumps and pins that the ring revoked because it needed their space.
    reservations_revoked: u64,
}

/// A place that keeps packets of the past.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TierStatus)]
struct TierBody {
    tier: Tier,
    /// The class of packets that this tier keeps; `null`: packets of all classes.
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

/// What a source's engine holds.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Buffer)]
struct BufferBody<'a> {
    source: &'a str,
    buffer_packets: Option<u64>,
    /// By the link's speed in Gbit/s: how long a packet may take to be looked at before one is dropped, seconds.
    longest_seconds_by_gbit: BTreeMap<String, Option<f64>>,
}

/// How long packets of a shard took.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Processing)]
struct ProcessingBody {
    /// Upper ends of the classes, ns; of the last, which has none, `null`.
    below_ns: Vec<Option<u64>>,
    /// Packets of each class.
    packets: Vec<u64>,
    /// What 99.99 % of them took at most, ns; `null`: none was timed.
    p9999_ns: Option<u64>,
}

/// What a rule led to since it was first there under its name.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = RuleCost)]
struct RuleCostBody<'a> {
    rule: Option<&'a str>,
    /// Hits that started a dump, …
    dumps: u64,
    /// … those of these dumps that are finished, …
    finished: u64,
    /// … and bytes that they have written: captured ones, and what a file takes for each packet beside.
    bytes: u64,
    /// Hits that started none.
    suppressed: u64,
}

/// What it takes to look at a packet: all trigger rules and scripts, modules, and counting flows, where that is done.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Inspection)]
struct InspectionBody {
    /// Packets whose inspection was timed: one burst in eight is.
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
        }
    }
}

/// What a full ring does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum WhenFull {
    /// New packets go on: the oldest dump or pin in their way loses what it has not written.
    Record,
    /// Dumps and pins keep what they want: new packets without a place are lost, and counted.
    Protect,
    /// Files wait for who reads them.
    Wait,
}

impl WhenFull {
    /// Its name, as in JSON.
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

/// A stretch of time that the ring keeps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Pin)]
pub(crate) struct PinBody {
    name: String,
    /// Stamps from here, RFC 3339; `null`: from the oldest that was there.
    from: Option<String>,
    /// … to here.
    to: String,
    /// The ring needed the space of the pin, which protects nothing any more.
    revoked: bool,
    /// Upper bound on packets in the pin's time range that were overwritten before the pin was
    /// made. A bucket that is only partly in the time range counts with all of its packets.
    evicted_before: u64,
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
            when_full: status.when_full.into(),
            rules: status.rules,
            rule_costs: status.hits_by_rule.iter().map(Into::into).collect(),
            inspection: InspectionBody::of(&status.processing),
            pins: status.pins.iter().map(PinBody::from).collect(),
            next_event: status.next_event,
        }
    }
}

/// R-Scope's table 1.
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
    /// Bytes kept of each frame at most; `null`: without limit.
    snaplen: Option<u32>,
}

/// The interfaces of the recording.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Interfaces)]
pub(crate) struct InterfacesBody {
    pub(crate) interfaces: Vec<InterfaceBody>,
}

impl From<InterfaceEntry> for InterfaceBody {
    fn from(entry: InterfaceEntry) -> Self {
        Self {
            name: entry.name,
            link_type: entry.link_type,
            snaplen: (entry.snaplen > 0).then_some(entry.snaplen),
        }
    }
}
