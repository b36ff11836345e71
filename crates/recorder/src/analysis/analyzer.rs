//! The analyzer passes each record of the ring at most once. It gives hits to the director, and
//! passes the director's orders on to the dumper. Unless shards have readers, it also runs the one
//! shard.
//!
//! The analyzer also moves the director's clock, in ring time (`control/ring_time.rs`). Offline the
//! clock is the highest ring time seen. Live the clock follows the smallest watermark of the queues
//! that promise watermarks.

mod alerts;
mod commands;
mod look;
mod pace;
mod rules;
mod scans;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, atomic::Ordering, mpsc::Receiver},
    time::Duration,
};

use retroscope_ring::{Batch, Packet, Reader, Reservation};

use crate::{
    analysis::{
        RingReader,
        derivation::Derivation,
        director::{Clip, Director, DirectorConfig, HitOrder, Order},
        hit_queue::HitQueue,
        late::{ClosedWindows, OpenWindow},
        native::NativeCode,
        predicate::DumpExpression,
        shard::{KnownRule, Shard},
        shard_slots::{AnalysisPlacement, ShardSlots},
        terms::{DumpWindow, TriggerTerms},
    },
    control::{
        alerts::AlertConfig,
        commands::AnalyzerCommand,
        common::RecorderShared,
        events::{Events, RecorderEvent},
        hits::{HitRefusal, Suppressed},
        lock,
        outcomes::RuleCounters,
        progress::{AnalyzerReading, Reach, promised},
        pulse::ThreadPulse,
        ring_time::{Moment, StampRestorer},
        time::rfc3339,
    },
    dump::{
        dumper::Dumper,
        order::{CloseOrder, DumpOrder, DumperMessage, DumperMessages},
    },
    intake::{inline::SharedReaders, interfaces::InterfaceCache},
};

use alerts::Alerts;
use commands::TriggerKeys;
use pace::{ClockPacer, LOOK_NS, RefusalNotice, RefusalNotices, UnseenPackets};
use scans::ScannedRule;

/// Maximum number of batches that the analyzer reads between two checks of clocks and commands,
/// except in [`Analyzer::catch_up`].
const BATCHES: usize = 64;

/// From files: minimum time between two rounds of the dumper at the end of [`RingReader::step`], ns
/// of the monotonic clock.
const ROUND_NS: i64 = 5_000_000;

#[derive(Debug)]
pub(crate) struct AnalyzerParts {
    pub(crate) native: Arc<NativeCode>,
    /// Dump expression of a trigger command without its own expression.
    pub(crate) manual: DumpExpression,
    /// Window of a trigger that does not set its own.
    pub(crate) window: DumpWindow,
    /// Settings for alerts, and the alerts of files.
    pub(crate) alerts: AlertConfig,
    /// Windows, limits and other terms, by rule number. A rule without an entry has the configured
    /// values.
    pub(crate) terms: BTreeMap<usize, TriggerTerms>,
    pub(crate) messages: DumperMessages,
    pub(crate) events: Events,
    pub(crate) commands: Receiver<AnalyzerCommand>,
}

impl AnalyzerParts {
    /// Whether any rule has its own limit of bytes per hour.
    fn limit_bytes(&self) -> bool {
        let mut terms = self.terms.values();
        terms.any(|terms| terms.limits.bytes_per_hour < u64::MAX)
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.slots.end();
    }
}

/// Reads the ring, and gives hits to the director.
#[derive(Debug)]
pub(crate) struct Analyzer {
    reader: Reader,
    core: Core,
    /// Live: the readers that inserters may run.
    shared: Option<Arc<SharedReaders>>,
}

#[derive(Debug)]
struct Core {
    common: Arc<RecorderShared>,
    parts: AnalyzerParts,
    director: Director<DumpExpression>,
    live: bool,
    /// For each producer, whether it promises watermarks.
    promises: Vec<bool>,
    stamps: StampRestorer,
    names: InterfaceCache,
    orders: Vec<Order<DumpExpression>>,
    /// Rules, scripts and modules by number, with the removed rules in `leaving`.
    rules: BTreeMap<usize, KnownRule>,
    /// The rules whose past is being scanned, by number.
    scans: BTreeMap<usize, ScannedRule>,
    /// Removed rules that may still get hits: some shard may not have applied the removal yet.
    leaving: Vec<usize>,
    /// From files: derives the dump expressions of hits, if the shards do not.
    derivation: Option<Derivation>,
    slots: Arc<ShardSlots>,
    /// While hits wait: the start of the earliest window of these hits, ns, and the reservation of
    /// all packets from this time on.
    waiting: Option<(i64, Reservation)>,
    open: HashMap<u64, OpenWindow>,
    closed: ClosedWindows,
    /// Offline: packets seen, by interface.
    received: Vec<u64>,
    /// Offline: the number of the first record that was not passed.
    position: u64,
    /// Offline: how late a packet may be, ns.
    hold_ns: i64,
    /// Offline: the dumper.
    dumper: Option<Box<Dumper>>,
    /// Offline: when [`RingReader::step`] last ran a round of the dumper at its end, ns of the
    /// monotonic clock.
    dumped_ns: i64,
    /// Offline: bytes of packets that `account_before` has counted since it last took costs of
    /// dumps.
    unaccounted_bytes: u64,
    /// Offline: whether to ask the dumper for its costs now. The packet at which a limit ends a
    /// dump must not depend on threads.
    is_account_due: bool,
    start_ns: i64,
    analyzed: u64,
    lapped: u64,
    /// Total number of packets that were overwritten before the analyzer's own reader read them, up
    /// to the last batch.
    missed: u64,
    /// Packets that shard readers had not read when the time after a stop ran out, and that rules
    /// might have matched.
    left_unread: u64,
    pacer: ClockPacer,
    /// When the analyzer, between two packets, first saw the request to stop, ns of the monotonic
    /// clock.
    stopped_ns: Option<i64>,
    /// If the time after a stop ran out: the producer of the last batch, and the number of packets
    /// of this batch that were not analyzed.
    broken_off: Option<(usize, u64)>,
    /// Records of live traffic that the analyzer skipped without reading their packets.
    #[cfg(test)]
    passed_by: usize,
    refusals: RefusalNotices,
    unseen: UnseenPackets,
    /// Keys of manual triggers, and keys of commands that trigger a rule.
    keys: [TriggerKeys; 2],
    alerts: Alerts,
    pulse: ThreadPulse,
}

impl Analyzer {
    pub(crate) fn new(
        common: Arc<RecorderShared>,
        (slots, derivation): (Arc<ShardSlots>, Option<Derivation>),
        mut parts: AnalyzerParts,
        (reader, shared): (Reader, Option<Arc<SharedReaders>>),
        director: DirectorConfig,
    ) -> Self {
        let live = common.is_live();
        let promises = common.intake.promises();
        let (mut rules, mut are_scripts) = (BTreeMap::new(), false);
        let mut is_scripted = derivation.as_ref().is_some_and(Derivation::is_scripted);
        for slot in slots.all() {
            slot.visit(|shard| {
                rules = shard.known_rules();
                are_scripts = !shard.scripts.is_empty();
                is_scripted |= shard
                    .derivation
                    .as_ref()
                    .is_some_and(Derivation::is_scripted);
            });
        }
        let are_scripts = are_scripts || is_scripted;
        let hold_ns = director.hold_ns;
        let mut director = Director::new(director);
        let limited = rules.iter();
        let limited = limited.filter_map(|(rule, known)| Some((*rule, known.dumps_max?)));
        director.dumps_max = limited.collect();
        let numbers = rules.keys().copied();
        director.by_rule = RuleCounters::of(&common.outcomes, numbers);
        director.limits_bytes_of_rules = parts.limit_bytes();
        if live {
            director.promises.clone_from(&promises);
        }
        let core = Core {
            director,
            live,
            promises,
            stamps: StampRestorer::new(&common.ring),
            names: common.intake.interface_cache(),
            orders: Vec::new(),
            rules,
            scans: BTreeMap::new(),
            leaving: Vec::new(),
            derivation,
            slots,
            waiting: None,
            open: HashMap::new(),
            closed: ClosedWindows::new(live),
            received: Vec::new(),
            position: 0,
            hold_ns,
            dumper: None,
            dumped_ns: i64::MIN,
            unaccounted_bytes: 0,
            is_account_due: false,
            start_ns: if live {
                common.clock.now().ring_ns
            } else {
                i64::MAX
            },
            analyzed: 0,
            lapped: 0,
            missed: 0,
            left_unread: 0,
            pacer: ClockPacer::new(are_scripts),
            stopped_ns: None,
            broken_off: None,
            #[cfg(test)]
            passed_by: 0,
            refusals: RefusalNotices::default(),
            unseen: UnseenPackets::default(),
            keys: TriggerKeys::both(),
            alerts: Alerts::new(&mut parts.alerts),
            pulse: common.pulses.of("analyzer"),
            common,
            parts,
        };
        Self {
            reader,
            core,
            shared,
        }
    }

    /// From files: from now on the analyzer runs the dumper.
    pub(crate) fn run_dumper(&mut self, dumper: Dumper) {
        self.core.dumper = Some(Box::new(dumper));
    }

    /// Call this after the inserters have ended: analyzes the remaining packets and closes every
    /// window. After a stop, a live reader may leave packets unread when about 3 s have passed.
    pub(crate) fn end(mut self, clip: Clip) {
        while self.step() {}
        if let Some(shared) = &self.shared {
            shared.end(&self.core.pulse);
        }
        let core = &mut self.core;
        core.take_hits();
        core.end_scans(|scan| {
            scan.stop("the recording has ended");
            true
        });
        for slot in core.slots.all() {
            slot.visit_waiting(Shard::end_flows);
        }
        // Packets that the ring overwrote after the analyzer's reader returned its last batch.
        let missed = self.reader.lapped().packets - core.missed;
        let unseen = core.unseen_of(missed);
        core.was_lapped(missed, unseen);
        core.leave_unread(&self.reader.positions());
        core.end_alerts();
        core.director.end(clip, &mut core.orders);
        core.execute();
        core.report_notices();
        core.report_rest();
        core.hint_at_tags();
        core.publish_counters();
        core.parts.messages.finish();
        core.read_for_dumps(false);
        if let Some(dumper) = core.dumper.take() {
            drop(self);
            dumper.run();
        }
    }
}

impl Analyzer {
    /// Runs the readers that no inserter runs. Returns whether there were packets.
    fn run_shared(&mut self) -> bool {
        let Some(shared) = &self.shared else {
            return false;
        };
        shared.step_for(&self.core.pulse, LOOK_NS)
    }
}

impl RingReader for Analyzer {
    /// Live: whether a dump is open. Offline: always `true`.
    fn has_deadline(&self) -> bool {
        self.core.has_deadline()
    }

    /// Live: time until the next alert acts. `None`: no alert waits, or the recording is offline.
    fn next_in(&self) -> Option<Duration> {
        let next_ns = self.core.alerts.next_ns().filter(|_| self.core.live)?;
        let left_ns = next_ns.saturating_sub(self.core.common.clock.now().ring_ns);
        Some(Duration::from_nanos(u64::try_from(left_ns).unwrap_or(0)))
    }

    fn wait(&mut self, timeout: Duration) -> Duration {
        let start_ns = self.core.common.clock.mono_ns();
        if self.core.is_woken_by_inserters() {
            self.reader.doze(timeout);
        } else {
            self.reader.wait(timeout);
        }
        let now_ns = self.core.common.clock.mono_ns();
        self.core.pacer.slept(now_ns);
        let slept_ns = now_ns.saturating_sub(start_ns);
        Duration::from_nanos(slept_ns.unsigned_abs())
    }

    /// Reads at most [`BATCHES`] batches, then checks clocks and commands.
    fn step(&mut self) -> bool {
        self.read(false)
    }
}

impl Analyzer {
    /// From files, while the inserter stores no packets: reads all records, and gives the dumps the
    /// packets that they need.
    pub(crate) fn catch_up(&mut self) {
        self.read(true);
    }

    /// As [`RingReader::step`]. `is_all`: as [`Self::catch_up`].
    fn read(&mut self, is_all: bool) -> bool {
        // Read the watermark first: it must not cover records that are published after the loop.
        let promised_ns = self.core.promised_ns();
        let mut batches = 0;
        while (is_all || batches < BATCHES) && self.core.broken_off.is_none() {
            let Some(batch) = self.reader.next() else {
                break;
            };
            self.core.batch(&batch);
            batches += 1;
        }
        let more = !is_all && batches == BATCHES;
        if !more {
            self.reader.finish();
        }
        let were_packets = self.run_shared() | (batches > 0);
        let now = self.core.common.clock.now();
        self.core
            .check_clocks_and_commands(now, promised_ns.filter(|_| !more));
        if is_all {
            self.core.make_room();
            self.core.read_for_dumps(true);
            if let Some(dumper) = &self.core.dumper {
                dumper.settle_marks();
            }
        } else if now.mono_ns.saturating_sub(self.core.dumped_ns) >= ROUND_NS
            // The packet at which a limit ends a dump must not depend on the number of batches.
            && !self.core.director.has_limited()
        {
            self.core.dumped_ns = now.mono_ns;
            self.core.read_for_dumps(false);
        }
        were_packets
    }
}

impl Core {
    fn batch(&mut self, batch: &Batch<'_>) {
        // If shards have readers, each of these readers counts the records that it missed.
        let missed = batch.missed.packets;
        self.missed += missed;
        let lapped = match self.slots.placement.has_readers() {
            true => 0,
            false => missed,
        };
        self.analyzed += missed - lapped;
        let unseen = self.miss(batch.producer, batch.oldest_ns, lapped);
        self.was_lapped(lapped, unseen);
        self.analyze_batch(batch);
        self.position = batch.first + batch.len() as u64;
        self.publish_counters();
    }

    fn offline_clock(&mut self, record: u64, packet: &Packet<'_>) {
        let interface = usize::from(packet.interface);
        if interface >= self.received.len() {
            self.received.resize(interface + 1, 0);
        }
        self.start_ns = self.start_ns.min(packet.time_ns);
        // A window that closes while this record is processed ends before this record.
        self.position = record;
        self.account_before(packet);
        // Alerts that are due act before the director's clock moves.
        self.act_on_alerts(packet.time_ns);
        self.director.advance(packet.time_ns, &mut self.orders);
        self.execute();
        self.received[interface] += 1;
    }

    fn has_deadline(&self) -> bool {
        !self.live || self.director.open_dumps() > 0 || self.director.waiting_from_ns().is_some()
    }

    /// Whether the analyzer sleeps until a waker or the timeout ends its sleep, whatever producers
    /// publish meanwhile.
    fn is_woken_by_inserters(&self) -> bool {
        self.live && self.slots.placement == AnalysisPlacement::Inserters && !self.has_deadline()
    }

    fn check_clocks_and_commands(&mut self, now: Moment, promised_ns: Option<i64>) {
        self.pulse.beat();
        self.take_hits();
        if self.live {
            if let Some(promised_ns) = promised_ns {
                self.director.advance(promised_ns, &mut self.orders);
            }
            self.director.advance_mono(now.mono_ns, &mut self.orders);
            let mut over = Vec::new();
            for slot in self.slots.all() {
                slot.visit(|shard| {
                    slot.refresh(shard, &mut HitQueue::default());
                    over.extend(shard.pass(now.mono_ns));
                });
            }
            over.iter().for_each(|over| self.on_flow_ended(over));
        }
        self.take_costs_live();
        self.parts.messages.push();
        self.run_commands(now);
        if self.live {
            self.act_on_alerts(now.ring_ns);
            self.report_late(now.mono_ns);
        }
        self.execute();
        if let Some(sentence) = self.refusals.due(now.mono_ns) {
            self.tell(RecorderEvent::Notice(sentence));
        }
        self.report_notices();
        self.publish_counters();
    }

    /// Live: the smallest watermark of the running queues that promise watermarks, ns, or an
    /// earlier time up to which the readers of shards have reported. `None`: no such time is known,
    /// or offline.
    fn promised_ns(&self) -> Option<i64> {
        if !self.live {
            return None;
        }
        let least_ns = promised(&self.common.ring, &self.promises).min();
        let least_ns = least_ns.map(|ns| ns.min(self.slots.promised_ns()));
        least_ns.filter(|ns| *ns != i64::MAX && *ns != i64::MIN)
    }

    /// Offline: lets the waiting hits act if one may need the bucket that the inserter overwrites
    /// next.
    fn make_room(&mut self) {
        let Some(from_ns) = self.director.waiting_from_ns() else {
            return;
        };
        let mut buckets = Vec::new();
        let ring = &self.common.ring;
        ring.buckets_within(i64::MIN, i64::MAX, &mut buckets);
        // Usually the bucket that closed first is overwritten next.
        let oldest = buckets.iter().find(|bucket| bucket.closed);
        if oldest.is_some_and(|bucket| bucket.max_ns >= from_ns) {
            self.director.act_all(&mut self.orders);
            self.execute();
        }
    }

    /// Carries out the director's orders.
    fn execute(&mut self) {
        // Disable fired single rules first: a client must not learn of the dump before.
        self.disable_fired();
        while !self.orders.is_empty() {
            for order in std::mem::take(&mut self.orders) {
                match order {
                    Order::Open {
                        id,
                        hit,
                        terms,
                        expression,
                        from_ns,
                        to_ns,
                    } => self.open((id, hit), terms, &expression, (from_ns, to_ns)),
                    Order::Close {
                        id,
                        clipped,
                        suppressed,
                    } => self.close(id, clipped, suppressed),
                    Order::Refused { hit, why } => self.refuse(hit, &why),
                }
            }
            if std::mem::take(&mut self.is_account_due) && !self.live {
                self.account();
            }
        }
        self.keep_for_waiting();
    }

    fn open(
        &mut self,
        (id, hit): (u64, HitOrder),
        terms: TriggerTerms,
        expression: &DumpExpression,
        (from_ns, to_ns): (i64, i64),
    ) {
        let called = terms.called.as_deref();
        let rule = called.unwrap_or(self.rule_name(hit.rule)).to_owned();
        let (text, predicate) = expression.resolve(!self.live);
        let has_packet = hit.has_packet();
        let trigger = has_packet.then_some((hit.producer, hit.record, expression.interface));
        let offset_ns = if let Some(alert) = &terms.alert {
            alert.time_ns.saturating_sub(hit.time_ns)
        } else if !has_packet {
            self.common.clock.now().offset_ns
        } else {
            self.stamps.offset_ns(hit.producer, hit.source, hit.record)
        };
        self.is_account_due |= self.director.has_limited();
        self.open.insert(
            id,
            OpenWindow {
                from_ns,
                to_ns,
                predicate: predicate.clone(),
                is_limited: terms.window.is_limited(),
                late: Arc::default(),
            },
        );
        self.tell(RecorderEvent::Triggered {
            number: id,
            rule: rule.clone(),
            trigger_ns: hit.time_ns.saturating_add(offset_ns),
            expression: text.clone(),
            reason: terms.reason.clone(),
        });
        let order = DumpOrder {
            id,
            rule,
            rule_number: hit.rule,
            into: terms.into,
            asked_by: terms.asked_by,
            caller: terms.caller,
            reason: terms.reason,
            rule_name: self.common.outcomes.name(hit.rule),
            window: terms.window,
            trigger,
            trigger_ns: hit.time_ns,
            offset_ns,
            expression: text,
            predicate,
            made_for: expression.made_for,
            from_ns,
            to_ns,
            alert: terms.alert,
        };
        let reservation = self.common.ring.reserve(from_ns, to_ns);
        // To follow fragments, the dump also reads packets shortly before its window. Reserve these
        // packets only now: if they are already overwritten, they do not count as lost.
        if order.looks_from_ns() != from_ns {
            reservation.set_interval(order.looks_from_ns(), to_ns);
        }
        self.send(DumperMessage::Open(Box::new((order, reservation))));
    }

    fn close(&mut self, id: u64, clipped: Option<Clip>, suppressed: Suppressed) {
        let Some(mut window) = self.open.remove(&id) else {
            return;
        };
        if let Some(Clip::Flow(until_ns)) = clipped {
            // The module wants no packets after `until_ns`, so these are not late for the dump.
            window.to_ns = window.to_ns.min(until_ns);
        }
        self.is_account_due |= window.is_limited || self.director.has_limited();
        let closed = &self.common.counters.closed_dumps;
        closed.fetch_add(1, Ordering::Relaxed);
        let ends = self.ends();
        let clock_ns = if self.live {
            self.common.clock.now().ring_ns
        } else {
            self.director.clock_ns
        };
        self.send(DumperMessage::Close(Box::new(CloseOrder {
            id,
            clipped,
            suppressed,
            ends: ends.clone(),
            received: (!self.live).then(|| self.received.clone()),
            clock_ns,
            start_ns: self.start_ns,
            unseen: self.unseen.within(window.from_ns, window.to_ns),
            late: self.live.then(|| Arc::clone(&window.late)),
        })));
        self.closed.add(id, window, ends, clock_ns);
    }

    /// For each producer, the number of the first record that can no longer belong to a window that
    /// closes now.
    fn ends(&self) -> Vec<u64> {
        if !self.live {
            return vec![self.position];
        }
        let ring = &self.common.ring;
        (0..ring.producers()).map(|p| ring.published(p)).collect()
    }

    fn refuse(&mut self, hit: HitOrder, why: &HitRefusal) {
        let say = self.refusals.add(why.reason(), self.common.clock.mono_ns());
        if say == RefusalNotice::Silent {
            return;
        }
        let rule = self.rule_name(hit.rule).to_owned();
        let offset_ns = self.stamps.offset_ns(hit.producer, hit.source, hit.record);
        let at = rfc3339(hit.time_ns.saturating_add(offset_ns));
        let text = format!("trigger '{rule}' at {at}: {why}");
        self.tell(RecorderEvent::Notice(text));
        if say == RefusalNotice::ReportAsLast {
            self.tell(RecorderEvent::Notice(
                "further refused triggers are only counted, and reported once a minute".to_owned(),
            ));
        }
    }

    /// While hits wait, reserves the packets that these hits need.
    fn keep_for_waiting(&mut self) {
        let waiting = self.scans.values().filter_map(ScannedRule::waiting_from_ns);
        let from_ns = waiting.chain(self.director.waiting_from_ns()).min();
        match (from_ns, &mut self.waiting) {
            (None, waiting) => *waiting = None,
            (Some(from_ns), Some((kept_ns, reservation))) => {
                if *kept_ns != from_ns {
                    *kept_ns = from_ns;
                    reservation.set_interval(from_ns, i64::MAX);
                }
            }
            (Some(from_ns), waiting) => {
                *waiting = Some((from_ns, self.common.ring.reserve(from_ns, i64::MAX)));
            }
        }
    }

    fn publish_counters(&self) {
        let shared = &self.common.counters;
        let open_dumps = self.director.open_dumps() as u64;
        shared.open_dumps.store(open_dumps, Ordering::Relaxed);
        self.slots.set_armed(self.director.armed);
        // Readers of shards update `longest_ns` themselves.
        if !self.slots.placement.has_readers() {
            let longest_ns = &self.slots.of(0).counters.longest_ns;
            longest_ns.store(self.pacer.longest_ns, Ordering::Relaxed);
        }
        let analyzed = if self.live && self.slots.placement.has_readers() {
            let each = self.slots.all().iter();
            each.map(|slot| slot.counters.analyzed.load(Ordering::Relaxed))
                .sum()
        } else {
            self.analyzed
        };
        *lock(&shared.reading) = AnalyzerReading {
            analyzed,
            lapped: self.lapped,
            unseen: self.unseen.packets,
            outdated: self.closed.outdated,
            hits: self.director.counts,
            clock_steps: self.common.clock.count(),
        };
    }

    fn send(&mut self, message: DumperMessage) {
        match &mut self.dumper {
            Some(dumper) => dumper.take(message),
            None => self.parts.messages.send(message),
        }
    }

    /// From files: the dumper reads the records that the analyzer has passed. `is_waited_for`: see
    /// [`Dumper::round`].
    fn read_for_dumps(&mut self, is_waited_for: bool) {
        if let Some(dumper) = &mut self.dumper {
            let frontier_ns = self.director.clock_ns.saturating_sub(self.hold_ns);
            let reach = Reach::of_files(self.position, frontier_ns);
            dumper.round(&reach, is_waited_for);
        }
    }

    fn tell(&self, event: RecorderEvent) {
        self.parts.events.tell_patiently(event);
    }
}
