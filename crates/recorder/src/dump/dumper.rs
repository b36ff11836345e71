//! The dumper: reads the ring for all open dumps in one pass and gives their sinks the packets.
//!
//! A [`Reach`] says how far the dumper may read, and which packets need not wait for older packets.
//! Offline the reach ends where the analyzer is, so that a dump sees the same packets in every run.
//! A round visits each bucket with records that some dump needs and can read, once for all dumps.
//!
//! A dump whose sink has no room reads no further meanwhile, and the ring may overwrite its window.
//!
//! A bucket with packets that wait for their turn stays held. If more than an eighth of the ring's
//! buckets are held (for example because a queue has no watermark), the dumper emits their packets
//! at once. It drops the packets for which a sink has no room. The file is sorted when it is
//! finished.

mod finishing;
mod opening;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Weak,
        atomic::AtomicU64,
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::Duration,
};

use retroscope_ring::{BucketRef, BucketView};

use super::{
    active::WaitingPacket,
    compile::DumpCompiler,
    dumps::Dumps,
    ending::{DumpEnding, Stage},
    fragments::KeptBytes,
    names::Directory,
    order::DumperMessage,
    packet::PacketKey,
    pool::{Pool, SinkWork},
    post::PostQueue,
    scan::Scanner,
    sidecar::Origin,
    store::keeper::StoreThreads,
    visit::BucketVisit,
};
use crate::{
    analysis::rules::Rules,
    control::{
        common::RecorderShared,
        events::{Events, RecorderEvent},
        progress::Reach,
        pulse::ThreadPulse,
        ring_time::StampRestorer,
    },
    intake::{interfaces::InterfaceCache, marks::Marks},
};

/// Bytes that are counted for a packet in addition to its data: an enhanced packet block without
/// options and padding (pcapng, section 4.3).
const PACKET_OVERHEAD_BYTES: u64 = 32;
/// Longest time that a closed live dump waits for loss counters that cover its window, ns of the
/// monotonic clock. While dumps are open, the counters are read every 10 to 30 ms, for the first
/// time within 50 ms.
const COUNTERS_WAIT_NS: i64 = 2_000_000_000;

/// Minimum interval at which memory that sinks do not need is freed, ns of the monotonic clock.
const REST_NS: i64 = 1_000_000_000;

/// A packet of a source without watermark waits for the watermarks only if it is less than this
/// far, ns, ahead of the smallest watermark.
const WATERMARK_WAIT_NS: i64 = 100_000_000;

#[derive(Debug)]
pub(crate) struct DumperParts {
    pub(crate) common: Arc<RecorderShared>,
    pub(crate) directory: Directory,
    pub(crate) pool: Pool,
    /// Marks the flows of dumps' packets.
    pub(crate) marks: Option<Arc<Marks>>,
    /// Runs a command for finished dumps.
    pub(crate) post: Option<PostQueue>,
    pub(crate) reproducible: bool,
    pub(crate) origin: Origin,
    pub(crate) messages: Receiver<DumperMessage>,
    pub(crate) events: Events,
    /// Ends after the dumper.
    pub(crate) keeper: Option<StoreThreads>,
}

/// The dumper: live a thread; from files the analyzer calls the dumper.
#[derive(Debug)]
pub(crate) struct Dumper {
    parts: DumperParts,
    names: InterfaceCache,
    scanner: Scanner,
    stamps: StampRestorer,
    compiler: DumpCompiler,
    /// The budget for fragments that dumps keep.
    kept_bytes: KeptBytes,
    /// The budget for written packets that dumps of alerts remember.
    written_bytes: KeptBytes,
    /// The dumps that read the ring, or wait for room in their sinks or for loss counters.
    active: Dumps,
    /// By number, dumps that no longer read the ring, but whose sinks still have work.
    ending: BTreeMap<u64, DumpEnding>,
    /// When memory that sinks do not need is freed next, ns of the monotonic clock.
    rest_ns: i64,
    /// By number, dumps that wait for another try to write their sidecar.
    lacking: BTreeMap<u64, DumpEnding>,
    /// The dump of `lacking` that was tried last.
    tried_last: u64,
    /// Time at which the next dump of `lacking` is tried, ns of the monotonic clock.
    try_again_ns: i64,
    /// The visited buckets. Buckets in which packets wait are held.
    views: HashMap<BucketRef, Weak<BucketView>>,
    /// The next number for the names of dumps.
    next_number: Arc<AtomicU64>,
    /// Why no dump is completed any more, if the recording was abandoned.
    stopped: String,
    /// Live: for each producer, whether it promises watermarks.
    promises: Vec<bool>,
    pulse: ThreadPulse,
}

impl Dumper {
    pub(crate) fn new(parts: DumperParts, rules: Rules) -> Self {
        let common = &parts.common;
        let pulse = common.pulses.of("dumper");
        Self {
            names: common.intake.interface_cache(),
            stamps: StampRestorer::new(&common.ring),
            compiler: DumpCompiler::new(common.is_live()),
            kept_bytes: KeptBytes::new(common.is_live()),
            written_bytes: KeptBytes::new(common.is_live()),
            active: Dumps::new(&common.ring),
            promises: common.intake.promises(),
            parts,
            scanner: Scanner::new(rules),
            pulse,
            ending: BTreeMap::new(),
            lacking: BTreeMap::new(),
            rest_ns: 0,
            tried_last: 0,
            try_again_ns: 0,
            views: HashMap::new(),
            next_number: Arc::new(AtomicU64::new(1)),
            stopped: String::new(),
        }
    }

    /// Waits for a message. Returns false when all senders are gone, no dump is open and no sink
    /// has work.
    pub(crate) fn wait(&mut self) -> bool {
        self.pulse.beat();
        let mut ending = self.ending.values();
        let wait = if !self.active.is_empty() || ending.any(|it| it.stage != Stage::Compressing) {
            DUMPER_WAIT
        } else if self.ending.is_empty() {
            IDLE_DUMPER_WAIT
        } else {
            COMPRESSING_WAIT
        };
        match self.parts.messages.recv_timeout(wait) {
            Ok(message) => self.take(message),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                if !self.active.are_closed() {
                    // No thread is left that could close the dumps.
                    self.abandon("the analyzer ended before it was complete");
                }
                if self.active.is_empty() && self.ending.is_empty() {
                    return false;
                }
                std::thread::park_timeout(DUMPER_WAIT);
            }
        }
        true
    }

    /// Runs until the analyzer has ended and all dumps are finished, or until the recording is
    /// aborted.
    pub(crate) fn run(mut self) {
        let (keeper, control) = (
            self.parts.keeper.take(),
            Arc::clone(&self.parts.common.control),
        );
        while !control.aborting() && self.wait() {
            self.step();
        }
        if control.aborting() {
            self.abandon("stopped before it was complete");
        }
        drop(self);
        drop(keeper);
    }

    /// One round, up to the present reach.
    pub(crate) fn step(&mut self) {
        // The reach is read before the messages. So the dumper has all messages that were queued
        // before the records within reach were published.
        let reach = self.reach();
        self.round(&reach, false);
    }

    /// Live: how far the dumper may read now. From files: as far as in the last round.
    fn reach(&self) -> Reach {
        let common = &self.parts.common;
        match common.is_live() {
            true => Reach::of_live(&common.ring, &self.promises),
            false => self.active.passed().clone(),
        }
    }

    /// A round within `reach`. `is_waited_for`, from files: afterwards the inserter may overwrite
    /// buckets, or the director needs the costs of the dumps.
    pub(crate) fn round(&mut self, reach: &Reach, is_waited_for: bool) {
        while let Ok(message) = self.parts.messages.try_recv() {
            self.take(message);
        }
        self.take_outcomes();
        self.compiler
            .take_up(&mut self.active, &mut self.scanner, &mut self.names);
        // With a limit, packets wait for older packets, because the packets that are emitted first
        // use up the limit.
        let everything = is_waited_for && !self.active.has_limited();
        self.pass(reach, is_waited_for, everything);
        self.active.settle(reach);
        for dump in self.active.take_changed() {
            self.flush(dump);
        }
        self.complete(reach);
        self.try_sidecar_again();
        self.rest();
    }

    pub(crate) fn settle_marks(&self) {
        if let Some(notice) = self.parts.marks.as_ref().and_then(|marks| marks.settle()) {
            self.tell(RecorderEvent::Notice(notice));
        }
    }

    /// Abandons the open dumps: their sinks write only what they got, and the dumps are reported as
    /// failed. Dumps whose files are being completed go on.
    pub(crate) fn abandon(&mut self, why: &str) {
        why.clone_into(&mut self.stopped);
        if let Some(post) = &self.parts.post {
            post.abort();
        }
        for mut dump in self.active.take_all() {
            let close = dump.close.take().unwrap_or_else(|| dump.never_closed());
            let id = dump.order.id;
            let (intake, clock) = (&self.parts.common.intake, &self.parts.common.clock);
            let ending = dump.into_ending(close, Stage::Stopping, intake, clock);
            self.ask(id, ending, Stage::Stopping, SinkWork::Flush);
        }
        while !self.ending.is_empty() {
            if let Some(news) = self.parts.pool.wait() {
                self.hear(news);
            }
        }
    }

    pub(crate) fn take(&mut self, message: DumperMessage) {
        match message {
            DumperMessage::Open(opened) => self.open(*opened),
            DumperMessage::Close(close) => {
                let judge_by_ns = self.parts.common.clock.mono_ns() + COUNTERS_WAIT_NS;
                self.active.close(*close, judge_by_ns);
            }
            DumperMessage::Alert { id, alert, unread } => {
                if let Some(dump) = self.active.get_mut(id) {
                    dump.alerted.add(alert, unread);
                }
            }
        }
    }

    /// Scans the unread records within `reach` for all dumps that can read. `everything`: emit
    /// without waiting for older packets.
    fn pass(&mut self, reach: &Reach, is_waited_for: bool, everything: bool) {
        // Dumps that get room here read on in this pass. Before, their packets are complete at most
        // up to the frontier of the last pass.
        let passed_ns = self.active.passed().frontier_ns;
        for dump in self.active.without_room() {
            self.emit(dump, passed_ns, reach);
        }
        for mut visit in self.active.visits(reach, is_waited_for) {
            self.active.leave_out_full(&mut visit, reach);
            if !visit.records().is_empty() {
                self.scan(&visit);
            }
            // `holds_much` comes first, because it may also forget buckets in which no packet
            // waits.
            let everything = self.holds_much() || everything;
            self.emit_due(reach.frontier_ns(everything).min(visit.until_ns), reach);
        }
        let frontier_ns = reach.frontier_ns(everything);
        for dump in self.active.changed() {
            self.emit(dump, frontier_ns, reach);
        }
        for dump in self.active.over(reach) {
            self.emit(dump, i64::MAX, reach);
        }
        self.emit_due(frontier_ns, reach);
        for dump in self.active.due(i64::MAX) {
            if !self.holds_much() {
                break;
            }
            self.emit(dump, i64::MAX, reach);
        }
    }

    fn emit_due(&mut self, frontier_ns: i64, reach: &Reach) {
        for dump in self.active.due(frontier_ns) {
            self.emit(dump, frontier_ns, reach);
        }
    }

    fn holds_much(&mut self) -> bool {
        holds_much(&mut self.views, self.parts.common.ring.buckets() / 8)
    }

    fn scan(&mut self, visit: &BucketVisit) {
        self.pulse.beat();
        let bucket = visit.info.bucket;
        let held = self.views.get(&bucket).and_then(Weak::upgrade);
        let ring = &self.parts.common.ring;
        let Some(view) = held.or_else(|| ring.hold(bucket).map(Arc::new)) else {
            // The bucket was overwritten. This call takes the ring's mutex, and so waits for the
            // thread that overwrote the bucket: then the reservations report the loss.
            ring.buckets_from(visit.info.producer, u64::MAX, &mut Vec::new());
            return;
        };
        self.views.insert(bucket, Arc::downgrade(&view));
        let (names, stamps) = (&mut self.names, &mut self.stamps);
        let to = self
            .scanner
            .scan(&view, visit, &mut self.active, names, stamps);
        self.active.has_read(visit, to);
    }

    /// Gives a dump's sink the waiting packets that are older than `frontier_ns` and the dump's
    /// `unread_ns`, as far as the sink has room. A packet of a source without watermark waits for
    /// its turn only if it is less than [`WATERMARK_WAIT_NS`] after that.
    fn emit(&mut self, id: u64, frontier_ns: i64, reach: &Reach) {
        let mut full = None;
        let (views, held_max) = (&mut self.views, self.parts.common.ring.buckets() / 8);
        let names = &mut self.names;
        self.active.change(id, |dump| {
            dump.is_stalled = dump.is_stalled && !dump.sink.has_room(0);
            if dump.waiting.is_empty() || dump.is_stalled && !holds_much(views, held_max) {
                return;
            }
            dump.waiting.sort_by_key(|w| w.meta.key);
            let frontier_ns = frontier_ns.min(dump.unread_ns);
            let soon_ns = frontier_ns.saturating_add(WATERMARK_WAIT_NS);
            let is_ready = |key: PacketKey| frontier_ns == i64::MAX || key.time_ns < frontier_ns;
            let is_ahead =
                |key: PacketKey| key.time_ns >= soon_ns && !reach.is_promised(key.producer);
            let mut ready = std::mem::take(&mut dump.waiting);
            // Usually all packets are ready, and the last one shows that.
            if !ready.last().is_some_and(|last| is_ready(last.meta.key)) {
                (ready, dump.waiting) =
                    (ready.into_iter()).partition(|w| is_ready(w.meta.key) || is_ahead(w.meta.key));
            }
            let mut is_put = |packet: &WaitingPacket| !dump.is_full() && dump.put(packet, names);
            let first_left = ready.iter().position(|packet| !is_put(packet));
            let left = ready.split_off(first_left.unwrap_or(ready.len()));
            if let Some(last) = ready.last() {
                let last_ns = last.meta.key.time_ns.min(frontier_ns);
                dump.reached_ns = dump.reached_ns.max(last_ns);
            }
            if !ready.is_empty() && dump.is_full() {
                // Packets with the ring time of the last packet may still follow, so the dump ends
                // 1 ns before.
                let end_ns = dump.reached_ns.saturating_sub(1);
                dump.end_early(end_ns);
                full = Some((id, end_ns));
                return;
            }
            dump.is_stalled |= !left.is_empty();
            // The buckets of the emitted packets need not stay held.
            drop(ready);
            if dump.is_stalled && holds_much(views, held_max) {
                dump.let_go(&left);
            } else {
                dump.waiting.splice(..0, left);
            }
            dump.oldest_ns = (dump.waiting.first()).map_or(i64::MAX, |w| w.meta.key.time_ns);
        });
        if let Some(full) = full {
            self.parts.common.costs.fill(full);
        }
        // The first packets of a dump do not wait until the rest of its past is read, which may
        // take seconds.
        let dump = self.active.get_mut(id);
        if dump.is_some_and(|dump| dump.reported_bytes == 0 && dump.taken.packets > 0) {
            self.flush(id);
        }
    }

    fn flush(&mut self, id: u64) {
        let Some(dump) = self.active.get_mut(id) else {
            return;
        };
        let (written, is_flushed) = dump.flush();
        let bytes = written.bytes + written.packets * PACKET_OVERHEAD_BYTES;
        let news = bytes.saturating_sub(std::mem::replace(&mut dump.reported_bytes, bytes));
        if news > 0 {
            let costs = &self.parts.common.costs;
            costs.add(dump.order.rule_number, news, 0);
        }
        if !is_flushed {
            // The next round tries again.
            self.active.change(id, |_| ());
        }
    }

    /// Frees memory that sinks do not need.
    fn rest(&mut self) {
        let now_ns = self.parts.common.clock.mono_ns();
        if now_ns >= self.rest_ns {
            self.rest_ns = now_ns.saturating_add(REST_NS);
            self.parts.pool.rest();
        }
    }

    fn tell(&self, event: RecorderEvent) {
        if let RecorderEvent::Finished(report) = &event {
            self.parts.common.log.add(report.clone());
        }
        self.parts.events.tell(event);
    }
}

/// Whether packets wait in more than `held_max` buckets. May remove other buckets from `views`.
fn holds_much(views: &mut HashMap<BucketRef, Weak<BucketView>>, held_max: usize) -> bool {
    views.len() > held_max && {
        views.retain(|_, view| view.strong_count() > 0);
        views.len() > held_max
    }
}

/// The longest pause between two rounds while dumps are open. It is short compared with the 100 ms
/// that a first packet may take, and long compared with the microseconds of an idle round.
const DUMPER_WAIT: Duration = Duration::from_millis(5);
/// The longest wait while the dumper only waits for the end of compression.
const COMPRESSING_WAIT: Duration = Duration::from_millis(100);
/// The longest wait for a message while no dump is open and no sink has work.
const IDLE_DUMPER_WAIT: Duration = Duration::from_secs(1);
