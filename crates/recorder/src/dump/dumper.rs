//! The dumper: reads the ring for all open dumps in one pass and writes their files.
//!
//! The dumper knows no time of its own. A [`Progress`] says how far it may read (offline: as far as the analyzer has
//! come, so that a dump sees the same packets in every run) and which packets are final in order (older than every
//! watermark). Each round it visits the buckets with records that some dump has not looked at ([`Dumps`] knows them), each once for
//! all dumps that want it, oldest first, and emits what can no longer be overtaken.
//!
//! A bucket with packets that wait for their turn stays held; there are few, because only the last milliseconds wait.
//! Should they become too many (a queue without watermark), the dumper stops waiting and lets the file sort it out.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    io,
    rc::{Rc, Weak},
    sync::{
        Arc,
        atomic::Ordering,
        mpsc::{self, RecvTimeoutError},
    },
    time::Duration,
};

use retroscope_ring::{BucketRef, BucketView, Reservation};

use super::{
    active::{Active, Failure, WaitingPacket, verdict_line},
    compile::DumpCompiler,
    dumps::Dumps,
    file::{DumpFile, FinishedFile, Label},
    names::Directory,
    order::{DumpOrder, LateNews, Message},
    output::Written,
    packet::Key,
    reading::Reading,
    report::{DumpReport, PROGRAM, Sidecar, SidecarFacts, file_name},
    scan::Scanner,
    visit::Visit,
};
use crate::{
    analysis::rules::Rules,
    control::{
        common::Common,
        events::{Event, Events},
        progress::{Progress, Reach},
        ring_time::Stamps,
        time::rfc3339,
    },
    intake::interfaces::InterfaceCache,
};

/// Said of a pcapng file that Wireshark reads and tcpdump refuses.
const SEVERAL_LINK_TYPES: &str = "several link types in one file: libpcap, and so tcpdump, will not read it (--format pcap splits it)";
/// What a file holds of a packet beside its bytes: an enhanced packet block (pcapng, section 4.3).
const PACKET_OVERHEAD_BYTES: u64 = 32;
/// How long a closed live dump waits for loss counters that cover its window, ns of the monotonic clock. They are read
/// every 10 to 30 ms, and within 50 of its opening; only an inserter that does not get to run is later. Then the verdict says
/// that it does not know.
const COUNTERS_WAIT_NS: i64 = 2_000_000_000;

/// How far ahead of the watermarks a packet of a source without one may be, ns, to wait for them: they follow soon.
const WATERMARK_WAIT_NS: i64 = 100_000_000;

/// What the dumper is built from.
#[derive(Debug)]
pub(crate) struct DumperParts {
    pub(crate) common: Arc<Common>,
    pub(crate) directory: Directory,
    pub(crate) progress: Progress,
    pub(crate) reproducible: bool,
    pub(crate) messages: mpsc::Receiver<Message>,
    pub(crate) events: Events,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Dumper {
    parts: DumperParts,
    names: InterfaceCache,
    scanner: Scanner,
    stamps: Stamps,
    compiler: DumpCompiler,
    active: Dumps,
    /// Those that a late packet can still amend, by number.
    finished: BTreeMap<u64, (DumpReport, FinishedFile, SidecarFacts)>,
    /// The buckets that were visited, of which those are held that packets wait in.
    views: HashMap<BucketRef, Weak<BucketView>>,
    next_number: u64,
    /// The analyzer waits for an answer ([`Message::Account`]).
    asked: Option<(Vec<u64>, mpsc::SyncSender<()>)>,
}

impl Dumper {
    pub(crate) fn new(parts: DumperParts, rules: Rules) -> Self {
        let common = &parts.common;
        Self {
            names: common.intake.interface_cache(),
            stamps: Stamps::new(&common.ring),
            compiler: DumpCompiler::new(common.is_live()),
            active: Dumps::new(&common.ring),
            parts,
            scanner: Scanner::new(rules),
            asked: None,
            finished: BTreeMap::new(),
            views: HashMap::new(),
            next_number: 1,
        }
    }

    /// Waits for a message, at most as long as open dumps allow; false when all senders are gone and nothing is open.
    pub(crate) fn wait(&mut self) -> bool {
        // The last round may have taken the analyzer's wake before it could see what it was for.
        if self.asked.is_some() || self.parts.common.gate.asked_of_dumper().is_some() {
            return true;
        }
        let wait = if self.active.is_empty() {
            Duration::MAX
        } else {
            DUMPER_WAIT
        };
        match self.parts.messages.recv_timeout(wait) {
            Ok(message) => self.take(message),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                if !self.active.are_closed() {
                    // Nobody is left to close them.
                    self.abandon("the analyzer ended before it was complete");
                }
                if self.active.is_empty() {
                    return false;
                }
                std::thread::park_timeout(DUMPER_WAIT);
            }
        }
        true
    }

    /// One round: messages, then one pass over the ring for all dumps, then dumps that are complete.
    pub(crate) fn step(&mut self) {
        // The gate and the reach are read before the messages: whatever the analyzer sent before it moved on is
        // then seen here before the packets that came after.
        let gate = self.parts.common.gate.asked_of_dumper();
        let account = self.asked.take();
        let common = &self.parts.common;
        let mut reach = (self.parts.progress).reach(&common.ring, &common.packet_clock);
        if let Some((ends, _)) = &account {
            reach.extend(ends);
        }
        while let Ok(message) = self.parts.messages.try_recv() {
            self.take(message);
        }
        self.compiler
            .take_up(&mut self.active, &mut self.scanner, &mut self.names);
        self.pass(&reach, gate.is_some() || account.is_some());
        self.active.settle(&reach);
        for dump in self.active.take_changed() {
            self.flush(dump);
        }
        self.complete(&reach);
        if let Some((_, reply)) = account {
            let _ = reply.send(());
        }
        if let Some(gate) = gate {
            self.parts.common.gate.dumper_done(gate);
        }
    }

    /// Gives up: nothing is completed any more. The `.part` files that stay behind are reported as failed dumps.
    pub(crate) fn abandon(&mut self, why: &str) {
        for mut dump in self.active.take_all() {
            let close = dump.close.take().unwrap_or_else(|| dump.never_closed());
            if let Ok(file) = &mut dump.file {
                // What can still be flushed is; what cannot stays out of the count.
                let _ = file.flush();
                let failure = Failure::stopped(why, file.parts(), file.safe(), close.clock_ns);
                dump.file = Err(Box::new(failure));
            }
            let (intake, clock) = (&self.parts.common.intake, &self.parts.common.clock);
            let report = dump.report(&close, intake, clock);
            self.tell(Event::Finished(report));
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Open(order, reservation) => self.open(*order, reservation),
            Message::Close(close) => {
                let judge_by_ns = self.parts.common.clock.mono_ns() + COUNTERS_WAIT_NS;
                self.active.close(*close, judge_by_ns);
            }
            Message::GivenUp(news) => self.give_up(news),
            Message::Wake => {}
            Message::Account { ends, reply } => self.asked = Some((ends, reply)),
        }
    }

    fn open(&mut self, mut order: DumpOrder, reservation: Reservation) {
        let is_compiling = self
            .compiler
            .hand_over(&order, &self.scanner, self.names.link_types());
        if !is_compiling {
            self.scanner.add(&mut order);
        }
        let stamp = |ring_ns: i64| ring_ns.saturating_add(order.offset_ns);
        let trigger_ns = stamp(order.trigger_ns);
        let headline = format!(
            "{PROGRAM}: trigger {:?} at {}, window {} to {}, dump {:?}",
            order.rule,
            rfc3339(trigger_ns),
            rfc3339(stamp(order.from_ns)),
            rfc3339(stamp(order.to_ns)),
            order.expression,
        );
        let interface = order.trigger.map_or_else(
            || self.names.interface(0).map(|_| 0),
            |(_, _, interface)| Some(interface),
        );
        let first_number = self.next_number;
        let directory = &self.parts.directory;
        let label = |number| Label::new(directory, trigger_ns, number, &order.rule);
        let names = &mut self.names;
        let created = DumpFile::create(label, first_number, &headline, interface, names);
        let (file, number) = match created {
            Ok((file, number)) => (Ok(file), number),
            Err(error) => {
                let text = format!("{}: {error}", directory.path().display());
                let planned = label(first_number).path(directory.format.extension());
                let failure = Failure::new(text, vec![planned], Written::default(), order.from_ns);
                (Err(Box::new(failure)), first_number)
            }
        };
        self.next_number = number + 1;
        let lost = *reservation.evicted_before();
        self.active.insert(Active {
            label: file.as_ref().ok().map(DumpFile::label),
            order,
            number,
            is_compiling,
            file,
            reading: Some(Reading::new(reservation)),
            unread_ns: i64::MIN,
            waiting: Vec::new(),
            oldest_ns: i64::MAX,
            listed_ns: i64::MAX,
            is_changed: false,
            is_stalled: false,
            kept: VecDeque::new(),
            forgotten_fragments: 0,
            is_start_lost: lost.packets > 0 || lost.unknown_before_ns.is_some(),
            lost,
            late: None,
            is_given_up: false,
            per_interface: HashMap::new(),
            told_bytes: 0,
            close: None,
            judge_by_ns: None,
        });
    }

    /// Scans what is new within `reach` for all dumps. `everything`: emit without waiting for older packets.
    fn pass(&mut self, reach: &Reach, everything: bool) {
        for mut visit in self.active.visits(reach, everything) {
            self.active.leave_out_full(&mut visit, reach);
            if !visit.records().is_empty() {
                self.scan(&visit);
            }
            // Asked in every round: it also forgets the buckets that nothing waits in.
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
        for dump in self.active.without_room() {
            self.emit(dump, frontier_ns, reach);
        }
        for dump in self.active.due(i64::MAX) {
            if !self.holds_much() {
                break;
            }
            self.emit(dump, i64::MAX, reach);
        }
    }

    /// Emits for the dumps that have packets older than `frontier_ns`.
    fn emit_due(&mut self, frontier_ns: i64, reach: &Reach) {
        for dump in self.active.due(frontier_ns) {
            self.emit(dump, frontier_ns, reach);
        }
    }

    /// Whether packets wait in too many buckets.
    fn holds_much(&mut self) -> bool {
        let held_max = self.parts.common.ring.buckets() / 8;
        self.views.len() > held_max && {
            self.views.retain(|_, view| view.strong_count() > 0);
            self.views.len() > held_max
        }
    }

    fn scan(&mut self, visit: &Visit) {
        let bucket = visit.info.bucket;
        let held = self.views.get(&bucket).and_then(Weak::upgrade);
        let ring = &self.parts.common.ring;
        let Some(view) = held.or_else(|| ring.hold(bucket).map(Rc::new)) else {
            // Overwritten since: reservations tell what fell, once whoever overwrote it has let go of the ring.
            ring.buckets_from(visit.info.producer, u64::MAX, &mut Vec::new());
            return;
        };
        self.views.insert(bucket, Rc::downgrade(&view));
        let (names, stamps) = (&mut self.names, &mut self.stamps);
        let to = self
            .scanner
            .scan(&view, visit, &mut self.active, names, stamps);
        self.active.has_read(visit, to);
    }

    /// Writes the waiting packets of a dump that are older than `frontier_ns`, in order. Those of sources that promise nothing do not
    /// wait for others unless they come soon: they are put aside, to be merged in the end.
    fn emit(&mut self, id: u64, frontier_ns: i64, reach: &Reach) {
        let names = &mut self.names;
        self.active.change(id, |dump| {
            if dump.waiting.is_empty() || !dump.has_room() {
                return;
            }
            dump.waiting.sort_by_key(|w| w.meta.key);
            let frontier_ns = frontier_ns.min(dump.unread_ns);
            let soon_ns = frontier_ns.saturating_add(WATERMARK_WAIT_NS);
            let is_ready = |key: Key| frontier_ns == i64::MAX || key.time_ns < frontier_ns;
            let is_aside = |key: Key| key.time_ns >= soon_ns && !reach.is_promised(key.producer);
            let (ready, later) = std::mem::take(&mut dump.waiting)
                .into_iter()
                .partition(|w| is_ready(w.meta.key) || is_aside(w.meta.key));
            dump.waiting = later;
            dump.oldest_ns = (dump.waiting.first()).map_or(i64::MAX, |w| w.meta.key.time_ns);
            for WaitingPacket { meta, bytes } in ready {
                let (key, data) = (meta.key, bytes.data());
                if let Ok(file) = &mut dump.file {
                    match file.push(&meta, data, !is_ready(key), names) {
                        Ok(()) => *dump.per_interface.entry(meta.interface).or_default() += 1,
                        Err(error) => {
                            let failure = Failure::of(file, &error, key.time_ns);
                            dump.fail(failure);
                        }
                    }
                }
                if let Err(failure) = &mut dump.file {
                    failure.lose(key.time_ns);
                }
            }
        });
    }

    fn flush(&mut self, id: u64) {
        let Some(dump) = self.active.get_mut(id) else {
            return;
        };
        let written = dump.flush();
        let bytes = written.bytes + written.packets * PACKET_OVERHEAD_BYTES;
        let news = bytes.saturating_sub(std::mem::replace(&mut dump.told_bytes, bytes));
        if news > 0 {
            let costs = &self.parts.common.costs;
            costs.add(dump.order.rule_number, news, 0);
        }
    }

    /// Finishes the dumps whose window is closed and wholly read.
    fn complete(&mut self, reach: &Reach) {
        let parts = &self.parts;
        let is_done = |dump: &Active| is_ready(parts, dump, reach);
        for dump in self.active.take_ready(is_done) {
            self.finish(dump);
        }
    }

    fn finish(&mut self, mut dump: Active) {
        self.scanner.rules.remove(dump.order.id);
        let Some(close) = dump.close.take() else {
            return;
        };
        let common = Arc::clone(&self.parts.common);
        let finished = &common.counters.finished_dumps;
        finished.fetch_add(1, Ordering::Relaxed);
        common.costs.add(dump.order.rule_number, 0, 1);
        let (intake, clock) = (&common.intake, &common.clock);
        let facts = dump.sidecar_facts(&close, &mut self.names);
        let mut report = dump.report(&close, intake, clock);
        let verdict = verdict_line(&report);
        let Some(finished) = dump.finish(&close, &verdict, intake, &mut self.names) else {
            report = dump.report(&close, intake, clock);
            if let Some(label) = &dump.label {
                report.sidecar = self.write_sidecar(label, &report, &facts, false);
            }
            self.tell(Event::Finished(report));
            return;
        };
        let mut paths = finished.captures.iter().map(|(path, _)| path.clone());
        report.file = paths.next().unwrap_or_default();
        report.more_files = paths.collect();
        let mut interfaces = facts.interfaces.iter().map(|it| it.link_type);
        let first = interfaces.next();
        let are_several = interfaces.any(|link_type| Some(link_type) != first);
        if report.more_files.is_empty() && are_several {
            report.notes.push(SEVERAL_LINK_TYPES.to_owned());
        }
        report.sidecar = self.write_sidecar(&finished.label, &report, &facts, false);
        if !dump.is_given_up {
            self.finished
                .insert(dump.order.id, (report.clone(), finished, facts));
        }
        self.tell(Event::Finished(report));
    }

    fn write_sidecar(
        &mut self,
        label: &Label,
        report: &DumpReport,
        facts: &SidecarFacts,
        again: bool,
    ) -> bool {
        // The sidecar lies beside its files: their names will do, and stay true when the directory moves.
        let mut beside = report.clone();
        beside.file = file_name(&report.file);
        let more_files = report.more_files.iter();
        beside.more_files = more_files.map(|path| file_name(path)).collect();
        let sidecar = Sidecar {
            report: &beside,
            facts,
            program: PROGRAM,
            created: (!self.parts.reproducible)
                .then(|| rfc3339(self.parts.common.clock.clock().now().wall_ns)),
        };
        let written = serde_json::to_vec_pretty(&sidecar)
            .map_err(io::Error::other)
            .and_then(|mut json| {
                json.push(b'\n');
                label.write_sidecar(&json, again)
            });
        if let Err(error) = &written {
            self.tell(Event::Notice(format!(
                "{}: no sidecar: {error}",
                report.file.display()
            )));
        }
        written.is_ok()
    }

    /// A closed window is given up. If packets of it came late, or were lost before anybody looked at them, what its dump says changes.
    fn give_up(&mut self, news: LateNews) {
        let id = news.id;
        let note = |dump: &mut Active| {
            dump.is_given_up = true;
            dump.late = news.missing(dump.order.offset_ns);
            if let Some(close) = &mut dump.close {
                close.unseen += news.unseen;
            }
        };
        if self.active.change(id, note).is_some() {
            return;
        }
        let Some((mut report, mut file, facts)) = self.finished.remove(&id) else {
            return;
        };
        if !news.is_any() {
            return;
        }
        report.missing.extend(news.missing(report.offset_ns));
        report.not_analyzed += news.unseen;
        report.judge();
        if let Err(error) = file.amend(&verdict_line(&report)) {
            self.tell(Event::Notice(format!(
                "{}: verdict not changed: {error}",
                report.file.display()
            )));
        }
        report.sidecar = self.write_sidecar(&file.label, &report, &facts, true);
        self.tell(Event::Amended(report));
    }

    fn tell(&self, event: Event) {
        match &event {
            Event::Finished(report) => self.parts.common.log.add(report.clone()),
            Event::Amended(report) => self.parts.common.log.amend(report),
            _ => {}
        }
        self.parts.events.tell(event);
    }
}

/// Whether the window of a dump is closed and wholly read, and its losses are known.
fn is_ready(parts: &DumperParts, dump: &Active, reach: &Reach) -> bool {
    let Some(close) = &dump.close else {
        return false;
    };
    if dump.unread_ns != i64::MAX || !dump.is_over(reach) || !dump.waiting.is_empty() {
        return false;
    }
    dump.unknown(close, &parts.common.intake).is_empty()
        || dump
            .judge_by_ns
            .is_none_or(|by| parts.common.clock.mono_ns() >= by)
}

/// The pause between two rounds while dumps are open: short against the 100 ms that a first packet may take, long
/// against the microseconds that an idle round costs.
const DUMPER_WAIT: Duration = Duration::from_millis(5);
