//! The intake ledger: the packets that each source received, and what became of these packets.
//!
//! `received = stored + filtered + Σ lost + in flight` (invariant 2 of ARCHITECTURE.md). `received`
//! is the engine's own counter.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{
            AtomicBool, AtomicI64, AtomicU64,
            Ordering::{Acquire, Relaxed, Release, SeqCst},
        },
    },
};

use serde::{Serialize, Serializer};

use retroscope_capture::{
    InputDrops, LossCause, OffloadEffects, SHUNT_CLASSES, SourceBuffer, SourceStatistics,
    af_xdp::XdpMode,
};
use retroscope_flow::ShedCause;

use crate::{
    control::lock,
    intake::{inline::DESCRIPTOR_BYTES, inserter::sequence::Misplaced},
};

/// The cause of packets that found no free bucket in the ring.
pub const LOST_NO_BUCKET: &str = "no-free-bucket";

/// The cause of packets of interfaces beyond the number that a recording can identify.
pub const LOST_INTERFACE_LIMIT: &str = "interface-limit";

/// The cause of packets whose stamps may be from the other side of a clock step. The ring time at
/// which these packets are stored may be wrong.
pub(crate) const CLOCK_STEP: &str = "clock-step";

/// The cause of packets that may have been lost, with only an upper bound. The ledger does not
/// include these packets.
pub(crate) const PERHAPS_LOST: &str = "unknown";

pub(crate) const SHED: &str = LossCause::Shed(0).as_str();

/// Reasons for shedding, in the order of [`ShedCause`] and of the classes that engines count.
pub(crate) const SHED_BY: [&str; ShedCause::ALL.len()] = ["cutoff", "history-goal", "ted", "shunt"];

const _: () = assert!(SHUNT_CLASSES as usize == SHED_BY.len());

/// Name of a cause in the log of losses.
const fn logged(cause: LossCause) -> &'static str {
    match cause {
        LossCause::Shed(class) if (class as usize) < SHED_BY.len() => SHED_BY[class as usize],
        cause => cause.as_str(),
    }
}

/// The interface was down, removed or left to the host, or its engine failed; losses are unknown.
pub const INTERFACE_DOWN: &str = "interface-down";

/// The counters of one queue of one source. The queue's inserter writes the counters; any thread
/// may read.
///
/// Loads and stores of the counts are `Relaxed`, because each number is independent. The alignment
/// keeps two inserters from writing to the same cache line, or to two lines that the processor
/// fetches as a pair.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct QueueCounters {
    stored: AtomicU64,
    stored_bytes: AtomicU64,
    filtered: AtomicU64,
    /// The engine filters, and no counter includes the packets that its filter refuses.
    is_filtered_before: AtomicBool,
    no_bucket: AtomicU64,
    shed: [AtomicU64; SHED_BY.len()],
    sheds: AtomicBool,
    interface_limit: AtomicU64,
    cut: AtomicU64,
    tagged: AtomicU64,
    engine: Mutex<EngineReading>,
    /// Ring time up to which the queue's losses are known, ns. `i64::MIN`: unknown; `i64::MAX`: the
    /// queue has ended.
    known_until_ns: AtomicI64,
    /// The queue promises no watermarks.
    promises_nothing: AtomicBool,
    /// How far the clock of the stamps is ahead of the system's clock, ns. `i64::MIN`: the system's
    /// clock, or unknown.
    ahead_ns: AtomicI64,
    /// Packets that may follow a clock step, until later packets decide; also packets of a believed
    /// step that are not reported yet.
    undecided: Mutex<Option<Misplaced>>,
    #[cfg(test)]
    at_end: tests::AtEnd,
}

/// One reading of an engine's counters for a queue.
#[derive(Debug, Default)]
pub(crate) struct EngineReading {
    /// The time `as_of_ns` is ring time.
    pub(crate) statistics: SourceStatistics,
    pub(crate) effects: Option<OffloadEffects>,
    pub(crate) xdp_mode: Option<XdpMode>,
    pub(crate) nic_stamped: Option<u64>,
    pub(crate) buffer: Option<SourceBuffer>,
    pub(crate) input_drops: InputDrops,
}

/// Counts of an inserter since it last added to the shared counters.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct BurstCount {
    pub(crate) stored: u64,
    pub(crate) stored_bytes: u64,
    pub(crate) filtered: u64,
    pub(crate) no_bucket: u64,
    pub(crate) shed: [u64; SHED_BY.len()],
    pub(crate) interface_limit: u64,
    pub(crate) cut: u64,
    pub(crate) tagged: u64,
}

impl QueueCounters {
    pub(crate) fn new() -> Self {
        Self {
            known_until_ns: AtomicI64::new(i64::MIN),
            ahead_ns: AtomicI64::new(i64::MIN),
            ..Self::default()
        }
    }

    /// Only the queue's inserter may call this.
    pub(crate) fn add(&self, count: BurstCount) {
        let add = |counter: &AtomicU64, n: u64| {
            // Most counts are 0: their cache lines need not be loaded.
            if n > 0 {
                counter.store(counter.load(Relaxed) + n, Relaxed);
            }
        };
        add(&self.stored, count.stored);
        add(&self.stored_bytes, count.stored_bytes);
        add(&self.filtered, count.filtered);
        add(&self.no_bucket, count.no_bucket);
        for (counter, n) in self.shed.iter().zip(count.shed) {
            add(counter, n);
        }
        add(&self.interface_limit, count.interface_limit);
        add(&self.cut, count.cut);
        add(&self.tagged, count.tagged);
    }

    pub(crate) fn set_engine(&self, reading: EngineReading) {
        let as_of_ns = reading.statistics.as_of_ns;
        *lock(&self.engine) = reading;
        if let Some(ns) = as_of_ns {
            // Release: a reader of this value finds all earlier losses in the log.
            self.known_until_ns.store(ns, Release);
        }
    }

    /// The engine filters: packets that it refuses are never received, so their number is unknown.
    pub(crate) fn set_filtered_before(&self) {
        self.is_filtered_before.store(true, Relaxed);
    }

    /// Number of packets that are known to be lost in the NIC, the kernel, the engine's buffers or
    /// the ring.
    pub(crate) fn lost_by_congestion(&self) -> u64 {
        let engine = lock(&self.engine);
        let is_congestion = |cause| {
            matches!(
                cause,
                LossCause::Nic | LossCause::Kernel | LossCause::NoBuffer
            )
        };
        let lost = engine.statistics.lost.iter();
        let lost = lost.filter_map(|&(cause, lost)| lost.filter(|_| is_congestion(cause)));
        lost.sum::<u64>() + self.no_bucket.load(Relaxed)
    }

    /// Average captured bytes of a stored packet.
    pub(crate) fn record_bytes(&self) -> u64 {
        self.stored_bytes.load(Relaxed) / self.stored.load(Relaxed).max(1)
    }

    /// Bytes of the ring that the packets have taken, without extensions of records.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.stored_bytes.load(Relaxed) + self.stored.load(Relaxed) * DESCRIPTOR_BYTES
    }

    pub(crate) fn set_sheds(&self) {
        self.sheds.store(true, Relaxed);
    }

    pub(crate) fn set_promises(&self, promises: bool) {
        self.promises_nothing.store(!promises, Relaxed);
    }

    /// Whether a window can wait for the queue's watermark, and a verdict for its counters.
    pub(crate) fn promises(&self) -> bool {
        !self.promises_nothing.load(Relaxed)
    }

    /// The clock of a packet's stamp is `ns` ahead of the system's clock, `back_ns` less than
    /// assumed before. So losses are known up to an earlier time.
    pub(crate) fn set_ahead(&self, ns: i64, back_ns: i64) {
        self.ahead_ns.store(ns.max(-i64::MAX), Relaxed);
        if let Some(known_ns) = self.known_until_ns() {
            let known_ns = known_ns.saturating_sub(back_ns).max(-i64::MAX);
            // Release, as in `set_engine`: a reader of this value must also find the losses.
            self.known_until_ns.store(known_ns, Release);
        }
    }

    /// How far the clock of the stamps is ahead of the system's clock, ns; see [`Self::set_ahead`].
    pub(crate) fn ahead_ns(&self) -> Option<i64> {
        Some(self.ahead_ns.load(Relaxed)).filter(|ns| *ns != i64::MIN)
    }

    pub(crate) fn set_undecided(&self, run: Option<Misplaced>) {
        *lock(&self.undecided) = run;
    }

    /// Number of packets that may be misplaced by a clock step, if their time range touches the
    /// window; some may be outside of the window. `None`: no such range touches the window.
    pub(crate) fn undecided(&self, from_ns: i64, to_ns: i64) -> Option<u64> {
        let run = (*lock(&self.undecided))?;
        let mut spans_ns = run.spans_ns().into_iter();
        let touches = spans_ns.any(|span_ns| touch(span_ns, (from_ns, to_ns)));
        touches.then_some(run.packets)
    }

    pub(crate) fn are_input_drops_unknown(&self) -> bool {
        lock(&self.engine).input_drops == InputDrops::Unknown
    }

    /// The queue has ended: no further loss is possible. The inserter must log the queue's last
    /// loss before this call.
    ///
    /// `SeqCst`: a reader of the end finds the losses in the log. If two queues end at the same
    /// time, at least one of the inserters sees both ends.
    pub(crate) fn set_ended(&self) {
        self.known_until_ns.store(i64::MAX, SeqCst);
        #[cfg(test)]
        self.at_end.act();
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.known_until_ns.load(SeqCst) == i64::MAX
    }

    /// Ring time up to which losses are known, ns; `None`: no losses are known yet.
    pub(crate) fn known_until_ns(&self) -> Option<i64> {
        Some(self.known_until_ns.load(Acquire)).filter(|ns| *ns != i64::MIN)
    }

    fn add_to(&self, snapshot: &mut SourceSnapshot) {
        snapshot.stored += self.stored.load(Relaxed);
        snapshot.stored_bytes += self.stored_bytes.load(Relaxed);
        let filtered = self.filtered.load(Relaxed);
        let is_known = !self.is_filtered_before.load(Relaxed);
        snapshot.filtered = snapshot.filtered.filter(|_| is_known).map(|n| n + filtered);
        snapshot.cut += self.cut.load(Relaxed);
        snapshot.tagged += self.tagged.load(Relaxed);
        let engine = lock(&self.engine);
        snapshot.merged = sum(snapshot.merged, engine.effects.map(|of| of.merged));
        let checksum_missing = engine.effects.map(|of| of.checksum_missing);
        snapshot.checksum_missing = sum(snapshot.checksum_missing, checksum_missing);
        snapshot.xdp_mode = match (snapshot.xdp_mode, engine.xdp_mode) {
            (Some(all), Some(mode)) => Some(all.and(mode)),
            (all, mode) => all.or(mode),
        };
        snapshot.nic_stamped = sum(snapshot.nic_stamped, engine.nic_stamped);
        snapshot.buffer = match (snapshot.buffer, engine.buffer) {
            (Some(SourceBuffer::Bytes(all)), Some(SourceBuffer::Bytes(its))) => {
                Some(SourceBuffer::Bytes(all + its))
            }
            (Some(SourceBuffer::Packets(all)), Some(SourceBuffer::Packets(its))) => {
                Some(SourceBuffer::Packets(all + its))
            }
            (all, its) => all.or(its),
        };
        let engine = &engine.statistics;
        snapshot.received = sum(snapshot.received, engine.received);
        for &(cause, n) in &engine.lost {
            add_loss(&mut snapshot.lost, cause.as_str(), n);
            if let LossCause::Shed(_) = cause {
                add_loss(&mut snapshot.shed, logged(cause), n);
                snapshot.shed_by_engine = sum(snapshot.shed_by_engine, n);
            }
        }
        let no_bucket = Some(self.no_bucket.load(Relaxed));
        add_loss(&mut snapshot.lost, LOST_NO_BUCKET, no_bucket);
        if self.sheds.load(Relaxed) {
            for (counter, cause) in self.shed.iter().zip(SHED_BY) {
                let shed = Some(counter.load(Relaxed));
                add_loss(&mut snapshot.lost, SHED, shed);
                add_loss(&mut snapshot.shed, cause, shed);
            }
        }
        // Listed only if not 0: few recordings reach the limit of interfaces.
        let interface_limit = Some(self.interface_limit.load(Relaxed)).filter(|n| *n > 0);
        if interface_limit.is_some() {
            add_loss(&mut snapshot.lost, LOST_INTERFACE_LIMIT, interface_limit);
        }
    }
}

fn add_loss(lost: &mut BTreeMap<&'static str, Option<u64>>, cause: &'static str, n: Option<u64>) {
    let lost = lost.entry(cause).or_insert(Some(0));
    *lost = sum(*lost, n);
}

/// The sum; `None` if a part is unknown.
fn sum(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    Some(a? + b?)
}

/// One source's intake at one moment. The summary of a recording contains this in serialized form.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SourceSnapshot {
    /// The source's name.
    pub name: String,
    /// Packets that reached the engine, by the engine's own counter; `None`: the engine has no such
    /// counter.
    pub received: Option<u64>,
    /// Packets stored in the ring.
    pub stored: u64,
    /// Captured bytes of the stored packets.
    #[serde(skip)]
    pub stored_bytes: u64,
    /// Packets that the capture filter refused, or that were fetched after `-c N` or, from files,
    /// `--duration` was reached. `None`: the kernel filters, and refused packets are neither
    /// received nor counted.
    pub filtered: Option<u64>,
    /// Lost packets by cause; `None`: unknown.
    pub lost: BTreeMap<&'static str, Option<u64>>,
    /// Shed packets by reason: `cutoff`, `history-goal`, `ted`, `shunt`. Empty: nothing sheds. The
    /// packets are also in `lost`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub shed: BTreeMap<&'static str, Option<u64>>,
    /// Shed packets that the engine dropped before copying; `None`: unknown.
    pub shed_by_engine: Option<u64>,
    /// Stored packets that were truncated by the snap length. No loss of packets.
    pub cut: u64,
    /// Stored packets with at least one VLAN tag.
    pub tagged: u64,
    /// Upper bound of packets that came too late for dumps, after their windows were closed. If the
    /// filter of a dump was not asked, every packet within the dump's time counts.
    pub late: u64,
    /// How often the interface went down or was removed during the recording.
    pub gaps: u64,
    /// Total time for which the interface was down or removed: ns, in JSON seconds. If recording of
    /// the interface ended early, the time until the recorder ends counts too.
    #[serde(rename = "gap_seconds", serialize_with = "as_seconds")]
    #[cfg_attr(feature = "openapi", schema(value_type = f64))]
    pub gap_ns: u64,
    /// Received packets larger than any frame on the wire, because of offloads; `None`: the engine
    /// cannot count these.
    pub merged: Option<u64>,
    /// Received packets without a checksum, because of offloads; `None`: the engine cannot count
    /// these.
    pub checksum_missing: Option<u64>,
    /// Received packets with a time stamp of the NIC. `None`: the recorder takes no stamps of the
    /// NIC, or the engine does not count these packets.
    pub nic_stamped: Option<u64>,
    /// How AF_XDP receives the packets; `None`: another engine.
    #[serde(rename = "xdp", serialize_with = "as_xdp")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Xdp>))]
    pub xdp_mode: Option<XdpMode>,
    /// Capacity of the engine's buffers, in bytes or packets; `None`: unknown.
    #[serde(skip)]
    pub buffer: Option<SourceBuffer>,
}

/// How AF_XDP receives packets.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
struct Xdp {
    /// The driver runs the XDP program, and not the kernel's generic code.
    native: bool,
    /// The NIC writes packets into the recorder's memory.
    zero_copy: bool,
    /// Why packets are copied, in words; `null`: reception is zero-copy.
    zero_copy_refused: Option<String>,
    /// A packet may have several buffers (jumbo frames).
    multi_buffer: bool,
}

fn as_xdp<S: Serializer>(mode: &Option<XdpMode>, serializer: S) -> Result<S::Ok, S::Error> {
    let told = mode.map(|mode| Xdp {
        native: mode.is_native,
        zero_copy: mode.copied.is_none(),
        zero_copy_refused: mode.copied.map(|why| why.to_string()),
        multi_buffer: mode.is_multi_buffer,
    });
    told.serialize(serializer)
}

fn as_seconds<S: Serializer>(ns: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(*ns as f64 / 1e9)
}

/// Assumed overhead of a packet in an engine's buffer, bytes.
const BUFFER_OVERHEAD: u64 = 80;
/// Bytes of a frame on an Ethernet wire in addition to the captured bytes: preamble, frame check
/// sequence, gap (IEEE 802.3).
const WIRE_OVERHEAD: u64 = 24;
/// The smallest Ethernet frame without its frame check sequence, bytes.
const FRAME_MIN: u64 = 60;

impl SourceSnapshot {
    /// Link speeds, Gbit/s, for which users see [`Self::longest_ns`].
    pub const LINK_GBITS: [u64; 5] = [1, 2, 10, 40, 100];

    /// Average captured bytes of a stored packet; [`FRAME_MIN`] if no packet was stored.
    fn mean_bytes(&self) -> u64 {
        let mean = self.stored_bytes.checked_div(self.stored);
        mean.unwrap_or(FRAME_MIN)
    }

    /// Approximate number of packets that the engine's buffer holds, if they are of average size.
    #[must_use]
    pub fn buffer_packets(&self) -> Option<u64> {
        Some(match self.buffer? {
            SourceBuffer::Packets(packets) => packets,
            SourceBuffer::Bytes(bytes) => bytes / (self.mean_bytes() + BUFFER_OVERHEAD),
        })
    }

    /// How long the processing of a packet may take, ns, before the engine must drop packets.
    /// Assumes that average packets arrive back to back on an Ethernet of `bits_per_second`
    /// (R-Scope paper, table 1: `s_lsr / λ_max`).
    #[must_use]
    pub fn longest_ns(&self, bits_per_second: u64) -> Option<u64> {
        let bits =
            u128::from(self.buffer_packets()?) * u128::from(self.mean_bytes() + WIRE_OVERHEAD) * 8;
        u64::try_from(bits * 1_000_000_000 / u128::from(bits_per_second.max(1))).ok()
    }

    /// Sums the queues of one source. `gaps`: how often its interface was away. `gap_ns`: total
    /// time away.
    pub(crate) fn of<'a>(
        name: &str,
        queues: impl Iterator<Item = &'a QueueCounters>,
        (gaps, gap_ns): (u64, u64),
    ) -> Self {
        let mut snapshot = Self {
            name: name.to_owned(),
            received: Some(0),
            filtered: Some(0),
            shed_by_engine: Some(0),
            gaps,
            gap_ns,
            merged: Some(0),
            checksum_missing: Some(0),
            nic_stamped: Some(0),
            ..Self::default()
        };
        for queue in queues {
            queue.add_to(&mut snapshot);
        }
        snapshot
    }

    /// Packets of the losses whose number is known.
    #[must_use]
    pub fn lost_known(&self) -> u64 {
        self.lost.values().flatten().sum()
    }

    /// `received − stored − filtered − Σ lost`: packets between engine and ring, usually 0 after a
    /// drained stop. An unknown `filtered` counts as 0, because the engine does not count these
    /// packets as received. `None`: `received` or a loss is unknown.
    #[must_use]
    pub fn in_flight(&self) -> Option<i128> {
        let lost: u64 = self.lost.values().copied().sum::<Option<_>>()?;
        let accounted = [self.stored, self.filtered.unwrap_or(0), lost].map(i128::from);
        Some(i128::from(self.received?) - accounted.iter().sum::<i128>())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LossEvent {
    pub(crate) source: usize,
    pub(crate) cause: &'static str,
    /// Ranges of ring time that the loss concerns, ns. Misplaced packets have two ranges: where
    /// they belong and where they are stored. For other losses both ranges are equal.
    pub(crate) spans_ns: [(i64, i64); 2],
    pub(crate) packets: u64,
    /// Some packets may be outside of the requested window.
    pub(crate) is_part: bool,
    /// The loss does not concern a window with fewer records before its end. 0: the loss concerns
    /// all windows.
    pub(crate) record: u64,
}

/// Events that verdicts report, such as losses of packets. A full log merges its oldest events.
#[derive(Debug, Default)]
pub(crate) struct LossLog {
    events: Mutex<Vec<LossEvent>>,
}

/// A log with this many events may merge its oldest events. Merged events have longer time ranges.
const LOSS_EVENTS: usize = 16_384;

impl LossEvent {
    pub(super) fn with(self, other: Self) -> Self {
        let ([a, b], [c, d]) = (self.spans_ns, other.spans_ns);
        Self {
            spans_ns: [hull(a, c), hull(b, d)],
            packets: self.packets + other.packets,
            is_part: self.is_part || other.is_part,
            ..self
        }
    }

    /// The event, reduced to the ranges that touch the closed intervals; `None`: no range does.
    fn within(self, windows_ns: &[(i64, i64)]) -> Option<Self> {
        let touches = |span_ns: &(i64, i64)| windows_ns.iter().any(|it| touch(*span_ns, *it));
        let span_ns = self.spans_ns.into_iter().filter(touches).reduce(hull)?;
        let holds = |it: &(i64, i64)| it.0 <= span_ns.0 && span_ns.1 <= it.1;
        Some(Self {
            spans_ns: [span_ns; 2],
            is_part: !windows_ns.iter().any(holds),
            ..self
        })
    }
}

fn touch(a: (i64, i64), b: (i64, i64)) -> bool {
    a.0 <= b.1 && a.1 >= b.0
}

/// The smallest range that contains both ranges.
pub(crate) fn hull(a: (i64, i64), b: (i64, i64)) -> (i64, i64) {
    (a.0.min(b.0), a.1.max(b.1))
}

impl LossLog {
    /// A source lost packets within closed intervals of ring time. If the two intervals differ, a
    /// window that touches both counts the packets once. `record`: as [`LossEvent::record`].
    pub(crate) fn push(
        &self,
        record: u64,
        source: usize,
        cause: &'static str,
        spans_ns: [(i64, i64); 2],
        packets: u64,
    ) {
        let event = LossEvent {
            source,
            cause,
            spans_ns,
            packets,
            is_part: false,
            record,
        };
        let mut events = lock(&self.events);
        let is_same = |e: &&mut LossEvent| (e.source, e.cause, e.record) == (source, cause, record);
        let is_short = |(from_ns, to_ns): (i64, i64)| to_ns.saturating_sub(from_ns) < MERGE_NS;
        // From files, no window ends between events of the same record, so the verdict does not
        // depend on when it is made.
        if let Some(last) = events.iter_mut().rev().take(LATEST).find(is_same) {
            let mut pairs = last.spans_ns.into_iter().zip(spans_ns);
            if pairs.all(|(a, b)| touch(a, b) && is_short(hull(a, b))) {
                *last = last.with(event);
                return;
            }
        }
        // Events with a record number are merged by `forget_records`, while no verdict is due.
        // Otherwise a verdict would depend on the timing of its thread.
        if events.len() >= LOSS_EVENTS && record == 0 {
            merge_oldest(&mut events);
        }
        events.push(event);
    }

    /// From files: whether [`Self::forget_records`] is needed before more frames are stored.
    pub(crate) fn is_full(&self) -> bool {
        lock(&self.events).len() >= 2 * LOSS_EVENTS
    }

    /// From files: lets all losses found until now concern all later dumps, and merges the oldest
    /// events of a long log. Call this only while the inserter pauses and no dump with an ended
    /// window waits for its verdict.
    pub(crate) fn forget_records(&self) {
        let mut events = lock(&self.events);
        events.iter_mut().for_each(|event| event.record = 0);
        if events.len() >= LOSS_EVENTS {
            merge_oldest(&mut events);
        }
    }

    /// Each event with the first of its time ranges.
    pub(crate) fn each(&self) -> Vec<(&'static str, (i64, i64), u64)> {
        let events = lock(&self.events);
        let each = events.iter();
        each.map(|event| (event.cause, event.spans_ns[0], event.packets))
            .collect()
    }

    /// The losses that touch the closed intervals and were found when at most `record` records were
    /// stored: one entry for each source and cause.
    pub(crate) fn within_until(&self, record: u64, windows_ns: &[(i64, i64)]) -> Vec<LossEvent> {
        let mut found: Vec<LossEvent> = Vec::new();
        let events = lock(&self.events);
        let known = events.iter().filter(|event| event.record <= record);
        for event in known.filter_map(|event| event.within(windows_ns)) {
            let is_same = |f: &&mut LossEvent| (f.source, f.cause) == (event.source, event.cause);
            match found.iter_mut().find(is_same) {
                Some(sum) => *sum = sum.with(event),
                None => found.push(event),
            }
        }
        found
    }
}

/// [`LossLog::push`] merges a new event only into a time range shorter than this, ns. Most windows
/// are seconds long, so 100 ms is fine enough.
const MERGE_NS: i64 = 100_000_000;

/// [`LossLog::push`] merges a new event only into one of this many latest events.
const LATEST: usize = 8;

/// Merges events other than the latest [`LOSS_EVENTS`] / 2 pairwise by source and cause. Time
/// ranges become longer, but no loss is forgotten. A source and cause with few events keeps these
/// events.
fn merge_oldest(events: &mut Vec<LossEvent>) {
    let recent = events.split_off(events.len().saturating_sub(LOSS_EVENTS / 2));
    let mut before = usize::MAX;
    while events.len() > LOSS_EVENTS / 4 && events.len() < before {
        before = events.len();
        let mut kinds = BTreeMap::<_, (usize, Option<LossEvent>)>::new();
        for event in &*events {
            kinds.entry((event.source, event.cause)).or_default().0 += 1;
        }
        let share = LOSS_EVENTS / 4 / kinds.len().max(1);
        let mut merged = Vec::with_capacity(before);
        for event in events.drain(..) {
            match kinds.entry((event.source, event.cause)).or_default() {
                (count, _) if *count <= share => merged.push(event),
                (_, open @ None) => *open = Some(event),
                (_, open) => merged.extend(open.take().map(|first| first.with(event))),
            }
        }
        merged.extend(kinds.into_values().filter_map(|(_, open)| open));
        *events = merged;
    }
    events.extend(recent);
}

/// Turns two readings of an engine's counters into loss events.
#[derive(Debug)]
pub(crate) struct LossWatch {
    source: usize,
    /// For each cause: the last known number of lost packets, and the ring time (ns) up to which
    /// this is known. A counter may be unreadable for a while.
    last: Vec<(&'static str, u64, i64)>,
    start_ns: i64,
    /// The ring time up to which the last reading counted losses, ns.
    pub(super) last_ns: i64,
}

impl LossWatch {
    pub(crate) fn new(source: usize, start_ns: i64) -> Self {
        Self {
            source,
            last: Vec::new(),
            start_ns,
            last_ns: start_ns,
        }
    }

    /// The times of the last reading move back by `ns`; see [`QueueCounters::set_ahead`].
    pub(crate) fn set_back(&mut self, ns: i64) {
        let known = self.last.iter_mut().map(|(.., known_ns)| known_ns);
        for time_ns in known.chain([&mut self.start_ns, &mut self.last_ns]) {
            *time_ns = time_ns.saturating_sub(ns);
        }
    }

    /// Logs a loss for each counter that grew since its last known value. The reading was taken
    /// between the ring times `before_ns` and `now_ns`. A loss may be later than the time to which
    /// this reading is complete, so its range ends at `now_ns`.
    pub(crate) fn observe(
        &mut self,
        reading: &EngineReading,
        (before_ns, now_ns): (i64, i64),
        log: &LossLog,
    ) {
        let statistics = &reading.statistics;
        self.last_ns = statistics.as_of_ns.unwrap_or(before_ns);
        let counted = statistics.lost.iter();
        let counted = counted.filter_map(|&(cause, n)| Some((logged(cause), n?)));
        let at_most = match reading.input_drops {
            InputDrops::AtMost(packets) => Some((PERHAPS_LOST, packets)),
            _ => None,
        };
        for (cause, n) in at_most.into_iter().chain(counted) {
            let index = self.last.iter().position(|(c, ..)| *c == cause);
            let index = index.unwrap_or_else(|| {
                self.last.push((cause, 0, self.start_ns));
                self.last.len() - 1
            });
            let now = (cause, n, self.last_ns);
            let (_, before, known_ns) = std::mem::replace(&mut self.last[index], now);
            let packets = n.saturating_sub(before);
            if packets > 0 {
                let span_ns = (known_ns.min(now_ns), now_ns.max(known_ns));
                log.push(0, self.source, cause, [span_ns; 2], packets);
            }
        }
    }
}

#[cfg(test)]
mod tests;
