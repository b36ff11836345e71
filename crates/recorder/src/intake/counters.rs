//! The intake ledger: what each source received and what became of it.
//!
//! `received = stored + filtered + Σ lost + in flight` (invariant 2 of ARCHITECTURE.md). `received` is the engine's own counter; `stored`,
//! `filtered` and the ring's losses are counted where it happens. Every counter is written by one thread.

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

/// Packets that found no free bucket in the ring.
pub const LOST_NO_BUCKET: &str = "no-free-bucket";

/// Packets of interfaces beyond those that a recording can number.
pub const LOST_INTERFACE_LIMIT: &str = "interface-limit";

/// Packets that carry stamps from the other side of a step of the clock, and so are at a wrong place.
pub(crate) const CLOCK_STEP: &str = "clock-step";

/// Packets that may have been lost: an upper bound, which is in no ledger.
pub(crate) const PERHAPS_LOST: &str = "unknown";

/// Packets that were not kept on purpose: the name that engines have for what they shed.
pub(crate) const SHED: &str = LossCause::Shed(0).as_str();

/// Why they were not kept, by the numbers of [`ShedCause`] and of classes that engines count.
pub(crate) const SHED_BY: [&str; ShedCause::ALL.len()] = ["cutoff", "history-goal", "ted", "shunt"];

const _: () = assert!(SHUNT_CLASSES as usize == SHED_BY.len());

/// What the log of losses calls a cause.
const fn logged(cause: LossCause) -> &'static str {
    match cause {
        LossCause::Shed(class) if (class as usize) < SHED_BY.len() => SHED_BY[class as usize],
        cause => cause.as_str(),
    }
}

/// The interface was down or removed: nobody knows what passed.
pub const INTERFACE_DOWN: &str = "interface-down";

/// The counters of one queue of one source. The queue's inserter writes them, anyone reads them.
///
/// Loads and stores of the counts are `Relaxed`: each number stands alone, and the final summary is taken after the
/// threads were joined. `known_until_ns` orders the log of losses: its loads and stores say how. Aligned so that no two inserters write to one cache line, or to two that the processor fetches as a pair.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct QueueCounters {
    stored: AtomicU64,
    stored_bytes: AtomicU64,
    filtered: AtomicU64,
    /// The engine filters, and nobody counts what it refuses.
    is_filtered_before: AtomicBool,
    no_bucket: AtomicU64,
    /// By cause.
    shed: [AtomicU64; SHED_BY.len()],
    /// Whether packets may be shed.
    sheds: AtomicBool,
    interface_limit: AtomicU64,
    cut: AtomicU64,
    tagged: AtomicU64,
    engine: Mutex<EngineReading>,
    /// `i64::MIN`: nothing known yet. Ring time as the queue's packets have it.
    known_until_ns: AtomicI64,
    /// The queue makes no promise about what will come.
    promises_nothing: AtomicBool,
    /// How far the clock of its stamps is ahead of the system's, ns; `i64::MIN`: it is the system's, or not known.
    ahead_ns: AtomicI64,
    /// The last packets, if they may follow a step of the clock that stamps them and it takes more of them to tell. Live.
    undecided: Mutex<Option<Misplaced>>,
    #[cfg(test)]
    at_end: tests::AtEnd,
}

/// One reading of an engine's counters for a queue.
#[derive(Debug, Default)]
pub(crate) struct EngineReading {
    /// `as_of_ns` is ring time.
    pub(crate) statistics: SourceStatistics,
    pub(crate) effects: Option<OffloadEffects>,
    pub(crate) xdp_mode: Option<XdpMode>,
    pub(crate) buffer: Option<SourceBuffer>,
    /// What the kernel dropped before the engine saw it.
    pub(crate) input_drops: InputDrops,
}

/// What an inserter counted since it last added to the shared counters, which it does once per burst.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct BurstCount {
    pub(crate) stored: u64,
    pub(crate) stored_bytes: u64,
    pub(crate) filtered: u64,
    pub(crate) no_bucket: u64,
    /// By cause.
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

    /// Adds a burst. Only the queue's inserter calls this.
    pub(crate) fn add(&self, count: BurstCount) {
        let add = |counter: &AtomicU64, n: u64| {
            // Of most nothing was counted: their lines need not be in the cache.
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

    /// Takes over a reading of the engine's counters.
    pub(crate) fn set_engine(&self, reading: EngineReading) {
        let as_of_ns = reading.statistics.as_of_ns;
        *lock(&self.engine) = reading;
        if let Some(ns) = as_of_ns {
            // Release: who reads it finds the losses before it in the log.
            self.known_until_ns.store(ns, Release);
        }
    }

    /// The engine filters: what it refuses is never received, and so unknown.
    pub(crate) fn set_filtered_before(&self) {
        self.is_filtered_before.store(true, Relaxed);
    }

    /// Packets that were lost because there was no time or no room for them, as far as that is known.
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

    /// Captured bytes of a packet that was stored, on average.
    pub(crate) fn record_bytes(&self) -> u64 {
        self.stored_bytes.load(Relaxed) / self.stored.load(Relaxed).max(1)
    }

    /// Bytes of the ring that its packets took.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.stored_bytes.load(Relaxed) + self.stored.load(Relaxed) * DESCRIPTOR_BYTES
    }

    /// The inserter may shed packets.
    pub(crate) fn set_sheds(&self) {
        self.sheds.store(true, Relaxed);
    }

    /// Whether the queue promises watermarks.
    pub(crate) fn set_promises(&self, promises: bool) {
        self.promises_nothing.store(!promises, Relaxed);
    }

    /// Whether a window may wait for the queue's watermark, and a verdict for its counters.
    pub(crate) fn promises(&self) -> bool {
        !self.promises_nothing.load(Relaxed)
    }

    /// A packet came with a stamp of another clock, `ns` ahead of the system's. That is `back_ns` less than was thought, so what is known
    /// about losses ends the earlier.
    pub(crate) fn set_ahead(&self, ns: i64, back_ns: i64) {
        self.ahead_ns.store(ns.max(-i64::MAX), Relaxed);
        if let Some(known_ns) = self.known_until_ns() {
            let known_ns = known_ns.saturating_sub(back_ns).max(-i64::MAX);
            // Release, as in `set_engine`: a reader of this value must find the losses, too.
            self.known_until_ns.store(known_ns, Release);
        }
    }

    /// See [`Self::set_ahead`].
    pub(crate) fn ahead_ns(&self) -> Option<i64> {
        Some(self.ahead_ns.load(Relaxed)).filter(|ns| *ns != i64::MIN)
    }

    /// See [`Self::undecided`].
    pub(crate) fn set_undecided(&self, run: Option<Misplaced>) {
        *lock(&self.undecided) = run;
    }

    /// How many packets of a window, or stored in it, follow a step if there was one: nobody knows yet.
    pub(crate) fn undecided(&self, from_ns: i64, to_ns: i64) -> Option<u64> {
        let run = (*lock(&self.undecided))?;
        let mut spans_ns = run.spans_ns().into_iter();
        let touches = spans_ns.any(|span_ns| touch(span_ns, (from_ns, to_ns)));
        touches.then_some(run.packets)
    }

    /// Whether nobody knows what the kernel's input queues dropped.
    pub(crate) fn are_input_drops_unknown(&self) -> bool {
        lock(&self.engine).input_drops == InputDrops::Unknown
    }

    /// The queue has ended: no further loss is possible. The inserter must log the last loss of the
    /// queue before this call.
    ///
    /// `SeqCst`: a reader of the end finds the losses in the log. If two queues end at the same
    /// time, at least one of the inserters sees both ends.
    pub(crate) fn set_ended(&self) {
        self.known_until_ns.store(i64::MAX, SeqCst);
        #[cfg(test)]
        self.at_end.act();
    }

    /// Whether the queue has ended.
    pub(crate) fn is_ended(&self) -> bool {
        self.known_until_ns.load(SeqCst) == i64::MAX
    }

    /// Ring time up to which losses are known, ns; `None` before the first reading.
    pub(crate) fn known_until_ns(&self) -> Option<i64> {
        Some(self.known_until_ns.load(Acquire)).filter(|ns| *ns != i64::MIN)
    }

    /// Adds this queue into the snapshot of its source.
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
        // Listed only where there are any: few recordings reach the limit of interfaces.
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

/// The sum of what is known; `None` where a part is not.
fn sum(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    Some(a? + b?)
}

/// One source's intake at one moment; by default nothing is known of it.
/// Serialized it is what the summary of a recording tells of a source.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SourceSnapshot {
    /// The source's name.
    pub name: String,
    /// Packets that reached the engine, by its own count; `None`: the engine has no such counter.
    pub received: Option<u64>,
    /// Packets stored in the ring.
    pub stored: u64,
    /// Captured bytes of the stored packets.
    #[serde(skip)]
    pub stored_bytes: u64,
    /// Packets that the capture filter refused, or that came after `-c N` was reached. `None`: the kernel filters, and what it
    /// refuses is neither received nor counted.
    pub filtered: Option<u64>,
    /// Packets lost by cause; `None`: unknown.
    pub lost: BTreeMap<&'static str, Option<u64>>,
    /// Those of them that were shed by what shed them: `cutoff`, `history-goal`, `ted`, `shunt`; empty: nothing sheds.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub shed: BTreeMap<&'static str, Option<u64>>,
    /// How many of those that were shed the engine dropped before it copied them; `None`: unknown.
    pub shed_by_engine: Option<u64>,
    /// Stored packets that the snap length (or the ring's limit of 256 KiB) cut. Not a loss of packets.
    pub cut: u64,
    /// Stored packets with at least one VLAN tag.
    pub tagged: u64,
    /// Packets that came too late for finished dumps, at most: where a dump's filter was not asked, a packet of the dump's time counts.
    pub late: u64,
    /// How often the interface went down or was removed while it was recorded.
    pub gaps: u64,
    /// How long it was away in all, ns. It is away to the end of the recorder where recording it ended before.
    #[serde(rename = "gap_seconds", serialize_with = "as_seconds")]
    #[cfg_attr(feature = "openapi", schema(value_type = f64))]
    pub gap_ns: u64,
    /// Received packets larger than any frame on the wire, because of offloads ([`OffloadEffects`]); `None`: the engine cannot tell.
    pub merged: Option<u64>,
    /// Received packets without a checksum, because of offloads; `None`: the engine cannot tell.
    pub checksum_missing: Option<u64>,
    /// How AF_XDP takes the packets; `None`: another engine does.
    #[serde(rename = "xdp", serialize_with = "as_xdp")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Xdp>))]
    pub xdp_mode: Option<XdpMode>,
    /// What its engine holds of packets that were not fetched yet; `None`: it cannot tell.
    #[serde(skip)]
    pub buffer: Option<SourceBuffer>,
}

/// How AF_XDP takes packets, as users are told it.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
struct Xdp {
    native: bool,
    zero_copy: bool,
    /// Why not, in words; `null`: it is zero-copy.
    zero_copy_refused: Option<String>,
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

/// What a packet takes in an engine's memory beside its own bytes, about.
const BUFFER_OVERHEAD: u64 = 80;
/// Bytes that a frame takes on the wire of Ethernet beside its own: preamble, frame check sequence, gap (IEEE 802.3).
const WIRE_OVERHEAD: u64 = 24;
/// The smallest frame of Ethernet without its check sequence, bytes.
const FRAME_MIN: u64 = 60;

impl SourceSnapshot {
    /// Speeds of links, Gbit/s, for which users are told [`Self::longest_ns`] (R-Scope paper, table 1).
    pub const LINK_GBITS: [u64; 5] = [1, 2, 10, 40, 100];

    /// Captured bytes of a packet, on average; the fewest that there are where none came.
    fn mean_bytes(&self) -> u64 {
        let mean = self.stored_bytes.checked_div(self.stored);
        mean.unwrap_or(FRAME_MIN)
    }

    /// How many packets its engine holds, about, if they are as those so far.
    #[must_use]
    pub fn buffer_packets(&self) -> Option<u64> {
        Some(match self.buffer? {
            SourceBuffer::Packets(packets) => packets,
            SourceBuffer::Bytes(bytes) => bytes / (self.mean_bytes() + BUFFER_OVERHEAD),
        })
    }

    /// How long a packet may take to be looked at, ns, before the engine has to drop one, while such packets come back to back on an Ethernet of so many bits a second
    /// (R-Scope paper, table 1: `s_lsr / λ_max`).
    #[must_use]
    pub fn longest_ns(&self, bits_per_second: u64) -> Option<u64> {
        let bits =
            u128::from(self.buffer_packets()?) * u128::from(self.mean_bytes() + WIRE_OVERHEAD) * 8;
        u64::try_from(bits * 1_000_000_000 / u128::from(bits_per_second.max(1))).ok()
    }

    /// Sums the queues of one source. `gaps`: how often its interface was away, `gap_ns`: for how long in all.
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
            ..Self::default()
        };
        for queue in queues {
            queue.add_to(&mut snapshot);
        }
        snapshot
    }

    /// The sum of the known losses.
    #[must_use]
    pub fn lost_known(&self) -> u64 {
        self.lost.values().flatten().sum()
    }

    /// `received − stored − filtered − Σ lost`: packets between engine and ring, 0 after a drained stop. `None` where a
    /// part is unknown.
    #[must_use]
    pub fn in_flight(&self) -> Option<i128> {
        let lost: u64 = self.lost.values().copied().sum::<Option<_>>()?;
        let accounted = [self.stored, self.filtered.unwrap_or(0), lost].map(i128::from);
        Some(i128::from(self.received?) - accounted.iter().sum::<i128>())
    }
}

/// A stretch of ring time in which a source lost packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LossEvent {
    pub(crate) source: usize,
    pub(crate) cause: &'static str,
    /// From where the counter was last known unchanged to where the loss was seen, ns; and another stretch that the same packets concern,
    /// or the same one again.
    pub(crate) spans_ns: [(i64, i64); 2],
    pub(crate) packets: u64,
    /// Some of them may lie outside of the window that was asked about.
    pub(crate) is_part: bool,
    /// From files, the records that were stored when it was found: a window that ends before has nothing to do with it. Live 0.
    pub(crate) record: u64,
}

/// The losses of the recent past, for the verdicts of dumps. Written rarely: once per reading that found a loss.
#[derive(Debug, Default)]
pub(crate) struct LossLog {
    events: Mutex<Vec<LossEvent>>,
}

/// Events kept. A window that reaches back further than the log is judged by what the log still knows, merged.
const LOSS_EVENTS: usize = 16_384;

impl LossEvent {
    /// Both as one, of the same source and cause. Times may go back from one to the next.
    pub(super) fn with(self, other: Self) -> Self {
        let ([a, b], [c, d]) = (self.spans_ns, other.spans_ns);
        Self {
            spans_ns: [hull(a, c), hull(b, d)],
            packets: self.packets + other.packets,
            is_part: self.is_part || other.is_part,
            ..self
        }
    }

    /// The event with those of its spans that touch the closed intervals, if any does.
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

/// The least stretch that holds both.
pub(super) fn hull(a: (i64, i64), b: (i64, i64)) -> (i64, i64) {
    (a.0.min(b.0), a.1.max(b.1))
}

impl LossLog {
    /// A source lost packets within closed intervals of ring time: where these are two, a window that touches both counts them once. Found when
    /// so many records were stored, from files, or 0.
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
        // No window ends between two events without a record between them: what it is told does not depend on when it asks.
        if let Some(last) = events.iter_mut().rev().take(LATEST).find(is_same) {
            let mut pairs = last.spans_ns.into_iter().zip(spans_ns);
            if pairs.all(|(a, b)| touch(a, b) && is_short(hull(a, b))) {
                *last = last.with(event);
                return;
            }
        }
        // From files others are merged between dumps only, or a verdict would tell when its thread came to it.
        if events.len() >= LOSS_EVENTS && record == 0 {
            merge_oldest(&mut events);
        }
        events.push(event);
    }

    /// From files: it is to be settled before the next burst.
    pub(crate) fn is_full(&self) -> bool {
        lock(&self.events).len() >= 2 * LOSS_EVENTS
    }

    /// From files, while the inserter stands still and no dump waits whose window has ended: whatever was found so far concerns all others.
    pub(crate) fn settle(&self) {
        let mut events = lock(&self.events);
        events.iter_mut().for_each(|event| event.record = 0);
        if events.len() >= LOSS_EVENTS {
            merge_oldest(&mut events);
        }
    }

    /// Each with the first of its stretches. Where the same packets concern another one, that is left out.
    pub(crate) fn each(&self) -> Vec<(&'static str, (i64, i64), u64)> {
        let events = lock(&self.events);
        let each = events.iter();
        each.map(|event| (event.cause, event.spans_ns[0], event.packets))
            .collect()
    }

    /// The losses that touch the closed intervals and were found when at most `record` records were
    /// stored. One entry for each source and cause. A loss that touches several intervals counts
    /// once.
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

/// Neighbouring readings become one event up to this length: windows are seconds long, 100 ms is fine enough.
const MERGE_NS: i64 = 100_000_000;

/// Among the latest so many events the last one of a source and cause is looked for.
const LATEST: usize = 8;

/// Merges all but the most recent events pairwise by source and cause, until a quarter of the places is left to them or nothing to
/// merge: longer stretches, no loss forgotten. Those of which there are few stay as they are.
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
    /// How many had been lost, by cause, and up to when that is known, ns of ring time. A counter may be unreadable for a while.
    last: Vec<(&'static str, u64, i64)>,
    start_ns: i64,
    /// The ring time up to which the last reading counted losses, ns.
    pub(super) last_ns: i64,
}

impl LossWatch {
    /// Watches from `start_ns` on.
    pub(crate) fn new(source: usize, start_ns: i64) -> Self {
        Self {
            source,
            last: Vec::new(),
            start_ns,
            last_ns: start_ns,
        }
    }

    /// What the last reading knew ends `ns` earlier: see [`QueueCounters::set_ahead`].
    pub(crate) fn set_back(&mut self, ns: i64) {
        let known = self.last.iter_mut().map(|(.., known_ns)| known_ns);
        for time_ns in known.chain([&mut self.start_ns, &mut self.last_ns]) {
            *time_ns = time_ns.saturating_sub(ns);
        }
    }

    /// Compares each counter with its value before. The reading was taken between two moments of ring time. A loss lies between the time
    /// to which the reading before was complete and the end of this one: it may be younger than the packet time up to which the
    /// counters are known to be complete.
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
