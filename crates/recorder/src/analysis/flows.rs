//! Flow accounting of a shard: counts the flows of its packets, and reports flows that ended.
//!
//! Ended flows go to one receiver through a bounded channel. If the channel is full, a shard waits
//! from files, and live at the end. Before that, a live shard keeps ended flows; too many are
//! dropped and counted ([`FlowCounts::untold`]). If requested, a live shard also sends its traffic
//! about once a second, as a slice.

use std::{
    ops::Range,
    sync::{
        Arc, Weak,
        mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel},
    },
    time::Duration,
};

use retroscope_flow::{EndedFlow, Secret, TopSlice, Tracker, TrackerConfig};
use serde::Serialize;

use crate::{
    analysis::chunk::Chunk,
    control::{AtomicCounters, common::RecorderShared, lock},
    intake::interfaces::{InterfaceCache, RecordedInterface},
};

/// A shard tries to send its ended flows at the latest when this number has gathered.
const TOGETHER: usize = 1024;
/// Maximum number of batches of ended flows that wait for the receiver.
const BATCHES_MAX: usize = 64;
/// Maximum number of slices of traffic that wait for their receiver, usually of a second each.
const SLICES_MAX: usize = 16;
/// Live: if this number of ended flows of one shard waits for room in the channel, all of these are
/// dropped and counted.
const WAITING_MAX: usize = 65_536;
/// Packet time after which a shard tries to send ended flows even if they are few, ns.
const TOLD_EVERY_NS: i64 = 250_000_000;
/// Minimum time between two runs of [`ShardFlows::pass`], ns of the monotonic clock.
const PASS_NS: i64 = 100_000_000;
/// Maximum number of clock steps that are remembered, for flows with packets before the step.
const STEPS_KEPT: usize = 256;

/// Counts of flows. Each flow that began is in `live`, `timed_out`, `reused`, `evicted` or
/// `finished`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FlowCounts {
    /// Packets counted in flows.
    pub packets: u64,
    /// Packets whose flow is unknown: damaged packets, and later fragments without their first.
    pub unattributed: u64,
    /// Flows that began.
    #[serde(rename = "started")]
    pub begun: u64,
    /// Flows that are active now.
    pub live: u64,
    /// Flows that ended because no packet arrived within their time-out.
    pub timed_out: u64,
    /// TCP connections that ended because another connection of the same addresses and ports began.
    pub reused: u64,
    /// Flows that were dropped to make room for other flows.
    pub evicted: u64,
    /// Flows that were active when the recording ended.
    pub finished: u64,
    /// Ended flows without a flow record, because the receiver was too slow or had disconnected.
    #[serde(rename = "unreported")]
    pub untold: u64,
}

/// The counters of one shard.
#[derive(Debug, Default)]
pub(crate) struct FlowCounters(AtomicCounters<9>);

impl FlowCounters {
    fn set(&self, tracker: &Tracker, untold: u64) {
        let counters = tracker.counters();
        let table = counters.table;
        self.0.store([
            table.packets,
            counters.unattributed,
            table.begun,
            counters.live,
            table.timed_out,
            table.reused,
            table.full + table.crowded,
            table.finished,
            untold,
        ]);
    }

    pub(crate) fn add_to(&self, sum: &mut FlowCounts) {
        self.0.add_to([
            &mut sum.packets,
            &mut sum.unattributed,
            &mut sum.begun,
            &mut sum.live,
            &mut sum.timed_out,
            &mut sum.reused,
            &mut sum.evicted,
            &mut sum.finished,
            &mut sum.untold,
        ]);
    }
}

/// Receives ended flows, for one thread. After this is dropped, flows are still counted but no
/// longer reported.
#[derive(Debug)]
pub struct FlowReceiver {
    ended: Receiver<Vec<EndedFlow>>,
    waker: FlowWaker,
    slices: Option<Receiver<TopSlice>>,
    names: InterfaceCache,
}

/// Wakes the thread that [takes](FlowReceiver::take) flows, from any thread.
#[derive(Debug, Clone, Default)]
pub struct FlowWaker(Weak<SyncSender<Vec<EndedFlow>>>);

impl FlowWaker {
    pub(crate) fn new(ended: &Arc<SyncSender<Vec<EndedFlow>>>) -> Self {
        Self(Arc::downgrade(ended))
    }

    /// Never blocks: if the channel is full, the receiver is not asleep.
    pub(crate) fn wake(&self) {
        if let Some(ended) = self.0.upgrade() {
            let _ = ended.try_send(Vec::new());
        }
    }
}

impl FlowReceiver {
    /// A handle that wakes a thread in [`Self::take`].
    #[must_use]
    pub fn waker(&self) -> FlowWaker {
        self.waker.clone()
    }

    /// Waits at most `timeout` for ended flows. Returns an empty list if a [`FlowWaker`] wakes the
    /// thread. The times of flows are stamps, not ring time.
    ///
    /// # Errors
    /// As `Receiver::recv_timeout`: `Disconnected` when the recorder reports no more flows.
    pub fn take(&mut self, timeout: Duration) -> Result<Vec<EndedFlow>, RecvTimeoutError> {
        self.ended.recv_timeout(timeout)
    }

    /// Takes the receiver of slices of traffic; only the first call returns the receiver. Usually
    /// each shard sends a slice of about a second. Without [`TrackerConfig::top`], and from files,
    /// no slices arrive.
    pub fn take_slices(&mut self) -> Option<Receiver<TopSlice>> {
        self.slices.take()
    }

    /// The name of the interface with this number; `None`: unknown number.
    pub fn interface(&mut self, number: u16) -> Option<&str> {
        let interface = self.names.interface(number)?;
        Some(&interface.name)
    }
}

/// Sends the ended flows and the slices of traffic of a shard.
#[derive(Debug, Clone)]
pub(crate) struct FlowSender {
    ended: Arc<SyncSender<Vec<EndedFlow>>>,
    slices: SyncSender<TopSlice>,
    /// Whether to wait for room in the channel `ended`: from files, and at the end.
    waits: bool,
}

/// Makes the channel between the shards of a recorder and the receiver of flows.
pub(crate) fn channel(common: &RecorderShared) -> (FlowSender, FlowReceiver) {
    let (sender, receiver) = sync_channel(BATCHES_MAX);
    let sender = Arc::new(sender);
    let waker = FlowWaker::new(&sender);
    let (slices, of_shards) = sync_channel(SLICES_MAX);
    let sender = FlowSender {
        ended: sender,
        slices,
        waits: !common.is_live(),
    };
    let receiver = FlowReceiver {
        ended: receiver,
        waker,
        slices: Some(of_shards),
        names: common.intake.interface_cache(),
    };
    (sender, receiver)
}

/// Counts the flows of one shard.
#[derive(Debug)]
pub(crate) struct ShardFlows {
    tracker: Tracker,
    teller: EndedFlows,
    counters: Arc<FlowCounters>,
    /// From a packet of this time on, the shard tries to send its ended flows, ns.
    tell_ns: i64,
    /// When [`Self::pass`] runs again, ns of the monotonic clock.
    pass_ns: i64,
}

/// Ended flows that are to be sent.
#[derive(Debug)]
struct EndedFlows {
    sender: FlowSender,
    ended: Vec<EndedFlow>,
    untold: u64,
    names: InterfaceCache,
    /// Clock steps: the source, the ring time of the step, and the offset of the source's stamps
    /// from then on, ns.
    offsets_ns: Vec<(usize, i64, i64)>,
}

impl ShardFlows {
    /// `shards`: number of shards that share the limits of `config`.
    pub(crate) fn new(
        config: TrackerConfig,
        shards: usize,
        sender: FlowSender,
        common: &RecorderShared,
    ) -> Self {
        let counters = Arc::<FlowCounters>::default();
        lock(&common.flows).push(Arc::clone(&counters));
        let config = TrackerConfig {
            flows_max: config.flows_max.div_ceil(shards),
            top: config.top.map(|flows_max| flows_max.div_ceil(shards)),
            ..config
        };
        Self {
            tracker: Tracker::with_advice(
                &config,
                Secret::random(),
                retroscope_ring::ask_for_huge_pages,
            ),
            teller: EndedFlows {
                sender,
                ended: Vec::new(),
                untold: 0,
                names: common.intake.interface_cache(),
                offsets_ns: Vec::new(),
            },
            counters,
            tell_ns: i64::MIN,
            pass_ns: i64::MIN,
        }
    }

    /// Counts the records at `run` of a chunk, which belong to the interface `number`. `offset_ns`
    /// returns stamp less ring time of a record, by its index in the chunk.
    pub(crate) fn count(
        &mut self,
        (number, interface): (u16, &RecordedInterface),
        chunk: &Chunk<'_>,
        run: Range<usize>,
        mut offset_ns: impl FnMut(usize) -> i64,
    ) {
        let ends = [run.start, run.end - 1].map(&mut offset_ns);
        let is_one = ends[0] == ends[1];
        for (at, (time_ns, frame)) in run.clone().zip(chunk.packets(run)) {
            let offset_ns = if is_one { ends[0] } else { offset_ns(at) };
            self.teller.steps_to(interface.source, time_ns, offset_ns);
            self.tracker.packet(
                (number, interface.link_type),
                (time_ns, frame.wire_len()),
                frame.data(),
                &mut |ended| self.teller.add(ended),
            );
            if time_ns >= self.tell_ns {
                self.tell_ns = time_ns.saturating_add(TOLD_EVERY_NS);
                self.teller.tell();
            }
        }
        self.counters.set(&self.tracker, self.teller.untold);
    }

    /// Live: lets time pass also without packets. `mono_ns`: now on the monotonic clock, which also
    /// ends flows.
    pub(crate) fn pass(&mut self, mono_ns: i64) {
        if mono_ns < self.pass_ns {
            return;
        }
        self.pass_ns = mono_ns.saturating_add(PASS_NS);
        let teller = &mut self.teller;
        self.tracker.pass(mono_ns, &mut |ended| teller.add(ended));
        let slices = &teller.sender.slices;
        self.tracker
            .give_slice(mono_ns, |slice| match slices.try_send(slice) {
                Err(TrySendError::Full(slice)) => Err(slice),
                Ok(()) | Err(TrySendError::Disconnected(_)) => Ok(()),
            });
        teller.tell();
        self.counters.set(&self.tracker, self.teller.untold);
    }
}

/// Ends all flows and sends them to the receiver. Also live, waits until the channel has room.
impl Drop for ShardFlows {
    fn drop(&mut self) {
        let teller = &mut self.teller;
        teller.sender.waits = true;
        self.tracker.finish(&mut |ended| teller.add(ended));
        teller.tell();
        self.counters.set(&self.tracker, self.teller.untold);
    }
}

impl EndedFlows {
    /// From `time_ns` of ring time on, the stamps of a source are `offset_ns` ahead of ring time.
    #[inline]
    fn steps_to(&mut self, source: usize, time_ns: i64, offset_ns: i64) {
        if offset_ns != 0 || !self.offsets_ns.is_empty() {
            self.note_step(source, time_ns, offset_ns);
        }
    }

    #[cold]
    fn note_step(&mut self, source: usize, time_ns: i64, offset_ns: i64) {
        let mut of_source = self.offsets_ns.iter().rev();
        let last = of_source.find(|(its, ..)| *its == source);
        if last.map_or(0, |(.., last_ns)| *last_ns) == offset_ns {
            return;
        }
        if self.offsets_ns.len() == STEPS_KEPT {
            self.offsets_ns.remove(0);
        }
        self.offsets_ns.push((source, time_ns, offset_ns));
    }

    /// The stamp of a source's packet with this ring time.
    fn stamp_ns(&self, source: usize, time_ns: i64) -> i64 {
        let mut steps = self.offsets_ns.iter().rev();
        let is_its = |step: &&(usize, i64, i64)| step.0 == source && step.1 <= time_ns;
        let offset_ns = steps.find(is_its).map_or(0, |step| step.2);
        time_ns.saturating_add(offset_ns)
    }

    fn add(&mut self, mut ended: EndedFlow) {
        if !self.offsets_ns.is_empty() {
            let interface = self.names.interface(ended.flow.interface());
            let source = interface.map_or(0, |interface| interface.source);
            let stamp_ns = |ns| self.stamp_ns(source, ns);
            let flow = &ended.flow;
            let times_ns = [flow.first_ns(), flow.last_ns()].map(stamp_ns);
            ended.time_ns = stamp_ns(ended.time_ns);
            ended.flow = flow.with_times(times_ns);
        }
        self.ended.push(ended);
        if self.ended.len().is_multiple_of(TOGETHER) {
            self.tell();
        }
    }

    /// Sends the ended flows. If the channel is full: from files and at the end, waits; otherwise
    /// keeps the flows for the next call, or drops all if there are at least [`WAITING_MAX`].
    fn tell(&mut self) {
        if self.ended.is_empty() {
            return;
        }
        let count = self.ended.len() as u64;
        let ended = std::mem::take(&mut self.ended);
        if self.sender.waits {
            if self.sender.ended.send(ended).is_err() {
                self.untold += count;
            }
            return;
        }
        match self.sender.ended.try_send(ended) {
            Ok(()) => {}
            Err(TrySendError::Full(ended)) if ended.len() < WAITING_MAX => self.ended = ended,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => self.untold += count,
        }
    }
}
