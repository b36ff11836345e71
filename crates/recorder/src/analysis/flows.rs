//! The flows of a shard: counted with its packets, and told when they end.
//!
//! Flows that ended go to one receiver, by a bounded channel. Live nobody waits for it: what has no room is counted
//! ([`FlowCounts::untold`]). From files the shard waits, so that all are told, in the same order in every run. Live it also gives away what flows
//! sent in a second, where that is counted: where there is no room, it goes on until there is.

use std::{
    ops::Range,
    sync::{
        Arc, Weak,
        mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel},
    },
    time::Duration,
};

use retroscope_flow::{Ended, Secret, Slice, Tracker, TrackerConfig};
use serde::Serialize;

use crate::{
    analysis::chunk::Chunk,
    control::{Counters, common::Common, lock},
    intake::interfaces::{Interface, InterfaceCache},
};

/// Flows that are told together.
const TOGETHER: usize = 1024;
/// Batches of them that wait for the receiver.
const BATCHES_MAX: usize = 64;
/// Seconds of what flows sent that wait for their receiver.
const SLICES_MAX: usize = 16;
/// Live: flows of one shard that wait for room beside these.
const WAITING_MAX: usize = 65_536;
/// What has ended is told after this, of packet time, however few flows that are, ns.
const TOLD_EVERY_NS: i64 = 250_000_000;
/// Between two looks at a shard to which no packet comes, ns of the monotonic clock.
const PASS_NS: i64 = 100_000_000;
/// Steps of clocks that flows may still have packets from.
const STEPS_KEPT: usize = 256;

/// What became of flows, by where it was counted: `begun` is the sum of all that follow, but for `untold`, which is part of those that ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FlowCounts {
    /// Packets counted in flows.
    pub packets: u64,
    /// Packets whose flow could not be told: damaged ones, and later fragments without their first.
    pub unattributed: u64,
    /// Flows that began.
    #[serde(rename = "started")]
    pub begun: u64,
    /// Flows that go on.
    pub live: u64,
    /// Flows for which no packet came for their time-out.
    pub timed_out: u64,
    /// TCP connections that were closed when another one of the same addresses and ports began.
    pub reused: u64,
    /// Flows given up for others: there were as many as there may be.
    pub evicted: u64,
    /// Flows that went on when the recording ended.
    pub finished: u64,
    /// Flows that ended, and of which nobody was told, because the receiver was too slow or gone.
    #[serde(rename = "unreported")]
    pub untold: u64,
}

/// The counters of one shard.
#[derive(Debug, Default)]
pub(crate) struct FlowCounters(Counters<9>);

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

    /// Adds the counters to those of other shards.
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

/// Flows that ended, for one thread to take. When it is gone, flows are counted and not told.
#[derive(Debug)]
pub struct FlowReceiver {
    ended: Receiver<Vec<Ended>>,
    waker: FlowWaker,
    slices: Option<Receiver<Slice>>,
    names: InterfaceCache,
}

/// Ends the wait of who [takes](FlowReceiver::take) flows, from any thread.
#[derive(Debug, Clone, Default)]
pub struct FlowWaker(Weak<SyncSender<Vec<Ended>>>);

impl FlowWaker {
    pub(crate) fn new(ended: &Arc<SyncSender<Vec<Ended>>>) -> Self {
        Self(Arc::downgrade(ended))
    }

    /// Never waits itself: where much is to be taken, nobody sleeps.
    pub(crate) fn wake(&self) {
        if let Some(ended) = self.0.upgrade() {
            let _ = ended.try_send(Vec::new());
        }
    }
}

impl FlowReceiver {
    /// What ends the wait of [`Self::take`].
    #[must_use]
    pub fn waker(&self) -> FlowWaker {
        self.waker.clone()
    }

    /// Waits for flows that ended, at most `timeout`, or until it is woken: then there are none. Their times are the stamps of their packets.
    ///
    /// # Errors
    /// As `Receiver::recv_timeout`: `Disconnected` when the recorder tells of no more.
    pub fn take(&mut self, timeout: Duration) -> Result<Vec<Ended>, RecvTimeoutError> {
        self.ended.recv_timeout(timeout)
    }

    /// What flows send, second by second, of all shards, for any thread; to be taken once. Nothing comes without
    /// [`TrackerConfig::top`], and from files.
    pub fn take_slices(&mut self) -> Option<Receiver<Slice>> {
        self.slices.take()
    }

    /// The name of an interface, by the number that a flow has; `None`: there is none.
    pub fn interface(&mut self, number: u16) -> Option<&str> {
        let interface = self.names.interface(number)?;
        Some(&interface.name)
    }
}

/// Where shards tell of flows.
#[derive(Debug, Clone)]
pub(crate) struct FlowSender {
    ended: Arc<SyncSender<Vec<Ended>>>,
    slices: SyncSender<Slice>,
    /// From files, and at the end.
    waits: bool,
}

/// Where shards tell of the flows of a recorder, and who hears it.
pub(crate) fn channel(common: &Common) -> (FlowSender, FlowReceiver) {
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

/// See the module.
#[derive(Debug)]
pub(crate) struct Flows {
    tracker: Tracker,
    teller: Teller,
    counters: Arc<FlowCounters>,
    /// When what has ended is told at the latest, ns of packet time.
    tell_ns: i64,
    /// When [`Self::pass`] looks again, ns of the monotonic clock.
    pass_ns: i64,
}

/// What has ended and is to be told.
#[derive(Debug)]
struct Teller {
    sender: FlowSender,
    ended: Vec<Ended>,
    untold: u64,
    names: InterfaceCache,
    /// By source, the ring times from which on its stamps have been off by this, ns.
    offsets_ns: Vec<(usize, i64, i64)>,
}

impl Flows {
    /// For one of so many shards.
    pub(crate) fn new(
        config: TrackerConfig,
        shards: usize,
        sender: FlowSender,
        common: &Common,
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
            teller: Teller {
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

    /// Counts those records of a chunk that are of one interface, `number`. `offset_ns` gives the stamp less the ring time of one of them, by its place in
    /// the chunk.
    pub(crate) fn count(
        &mut self,
        (number, interface): (u16, &Interface),
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

    /// Live: no packet may have come for some time, at `mono_ns` of the monotonic clock; flows are over by it too.
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

/// All flows end, and are told: nothing waits any more that must not.
impl Drop for Flows {
    fn drop(&mut self) {
        let teller = &mut self.teller;
        teller.sender.waits = true;
        self.tracker.finish(&mut |ended| teller.add(ended));
        teller.tell();
        self.counters.set(&self.tracker, self.teller.untold);
    }
}

impl Teller {
    /// A source's stamps are off by `offset_ns` from a ring time on.
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

    /// The stamp of a source's packet of this ring time.
    fn stamp_ns(&self, source: usize, time_ns: i64) -> i64 {
        let mut steps = self.offsets_ns.iter().rev();
        let is_its = |step: &&(usize, i64, i64)| step.0 == source && step.1 <= time_ns;
        let offset_ns = steps.find(is_its).map_or(0, |step| step.2);
        time_ns.saturating_add(offset_ns)
    }

    fn add(&mut self, mut ended: Ended) {
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

    /// Tells what has ended, as far as there is room.
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
