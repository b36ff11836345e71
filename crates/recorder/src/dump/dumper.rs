//! The dumper: reads the ring for all open dumps in one pass and writes their files.
//!
//! The dumper knows no time of its own. A [`Progress`] says how far it may read (offline: as far as the analyzer has
//! come, so that a dump sees the same packets in every run) and which packets are final in order (older than every
//! watermark). Each round it asks every dump's reservation for buckets with records that were not scanned yet, visits
//! each bucket once for all dumps that want it, oldest first, and emits what can no longer be overtaken.
//!
//! A bucket with packets that wait for their turn stays held; there are few, because only the last milliseconds wait.
//! Should they become too many (a queue without watermark), the dumper stops waiting and lets the file sort it out.

use std::{
    collections::{HashMap, VecDeque},
    io,
    sync::{Arc, atomic::Ordering, mpsc},
};

use retroscope_packet::FragmentKey;
use retroscope_ring::{
    BucketInfo, BucketRef, BucketView, Evicted, EvictedBucket, Packet, Reservation, Ring,
};

use super::{
    encode::InterfaceTotals,
    file::{DumpFile, FailedFile, FinishedFile, Shelf},
    output::{DumpPacket, Key, Written},
    report::{DumpReport, Missing, PROGRAM, Sidecar, SidecarInterface},
};
use crate::{
    Event,
    analyzer::AnalyzerCounters,
    clock::Clock,
    director::{Clip, Suppressed},
    intake::Intake,
    interfaces::InterfaceCache,
    predicate::{Decision, Predicate},
    progress::{Barrier, Progress, Reach},
    time::rfc3339,
};

/// Later fragments kept aside for their first fragment, per dump.
const KEPT_FRAGMENTS: usize = 1024;
/// Finished dumps that a late packet can still amend.
const FINISHED_KEPT: usize = 1024;
/// How long a closed live dump waits for loss counters that cover its window, ns of the monotonic clock.
const COUNTERS_WAIT_NS: i64 = 40_000_000;

/// To the dumper.
#[derive(Debug)]
pub(crate) enum Message {
    /// Start a dump.
    Open(Box<DumpOrder>),
    /// No packet after `ends` belongs to the dump.
    Close(Box<CloseOrder>),
    /// Packets of a closed window arrived too late.
    Late {
        id: u64,
        packets: u64,
        first_ns: i64,
        last_ns: i64,
    },
    /// Look again: a barrier waits.
    Wake,
}

/// A dump to start.
#[derive(Debug)]
pub(crate) struct DumpOrder {
    pub(crate) id: u64,
    /// The trigger's text, for names and reports.
    pub(crate) rule: String,
    /// Where the trigger packet is: producer, record, interface. `None`: by hand.
    pub(crate) trigger: Option<(usize, u64, u16)>,
    pub(crate) trigger_ns: i64,
    pub(crate) expression: String,
    pub(crate) predicate: Predicate,
    pub(crate) from_ns: i64,
    pub(crate) to_ns: i64,
    pub(crate) reservation: Reservation,
}

/// The end of a dump's window.
#[derive(Debug)]
pub(crate) struct CloseOrder {
    pub(crate) id: u64,
    pub(crate) clipped: Option<Clip>,
    pub(crate) suppressed: Suppressed,
    /// The first record of each producer that no longer belongs to the dump.
    pub(crate) ends: Vec<u64>,
    /// Packets seen so far by interface (offline, where that is a function of the input).
    pub(crate) received: Option<Vec<u64>>,
    /// Packet time at the close, ns.
    pub(crate) clock_ns: i64,
    /// The earliest packet time recorded so far, ns.
    pub(crate) start_ns: i64,
    pub(crate) notes: Vec<String>,
}

/// What the dumper is built from.
#[derive(Debug)]
pub(crate) struct DumperParts {
    pub(crate) ring: Ring,
    pub(crate) shelf: Shelf,
    pub(crate) intake: Arc<Intake>,
    pub(crate) progress: Progress,
    pub(crate) barrier: Arc<Barrier>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) counters: Arc<AnalyzerCounters>,
    pub(crate) reproducible: bool,
    pub(crate) messages: mpsc::Receiver<Message>,
    pub(crate) events: mpsc::Sender<Event>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Dumper {
    parts: DumperParts,
    names: InterfaceCache,
    active: Vec<Active>,
    finished: VecDeque<(u64, DumpReport, FinishedFile, SidecarFacts)>,
    views: HashMap<BucketRef, HeldView>,
    next_number: u64,
    infos: Vec<BucketInfo>,
    fallen: Vec<EvictedBucket>,
}

#[derive(Debug)]
struct HeldView {
    view: BucketView,
    waiting: usize,
}

/// A dump whose file is not complete yet.
#[derive(Debug)]
struct Active {
    order: DumpOrder,
    number: u64,
    file: Result<DumpFile, Failure>,
    /// How many records of a bucket were looked at.
    scanned: HashMap<BucketRef, u32>,
    waiting: Vec<Waiting>,
    kept: VecDeque<(FragmentKey, Waiting)>,
    before: Evicted,
    lost: Lost,
    late: Option<Missing>,
    per_interface: HashMap<u16, u64>,
    close: Option<CloseOrder>,
    /// Live: not judged before the counters cover the window or this passed on the monotonic clock.
    judge_by_ns: Option<i64>,
}

/// A dump that the disk refused.
#[derive(Debug)]
struct Failure {
    error: String,
    parts: Vec<std::path::PathBuf>,
    safe: Written,
    lost: u64,
    first_ns: i64,
    last_ns: i64,
}

/// Reserved buckets that were overwritten before they were written.
#[derive(Debug, Default)]
struct Lost {
    packets: u64,
    estimated: bool,
    span_ns: Option<(i64, i64)>,
}

/// A packet of a dump that waits for its turn.
#[derive(Debug)]
struct Waiting {
    key: Key,
    wire_len: u32,
    interface: u16,
    direction: u8,
    place: Place,
}

#[derive(Debug)]
enum Place {
    Ring(BucketRef, u32),
    Copied(Box<[u8]>),
}

impl Waiting {
    /// The packet, if its bytes were copied.
    fn packet(&self) -> Option<Packet<'_>> {
        let Place::Copied(data) = &self.place else {
            return None;
        };
        Some(Packet {
            time_ns: self.key.time_ns,
            wire_len: self.wire_len,
            interface: self.interface,
            direction: self.direction,
            tag_restored: false,
            data,
        })
    }
}

#[derive(Debug, Clone)]
struct SidecarFacts {
    expression: String,
    suppressed: Suppressed,
    interfaces: Vec<SidecarInterface>,
}

/// A bucket to visit, and which dumps want which of its records.
#[derive(Debug)]
struct Visit {
    info: BucketInfo,
    wanted: Vec<(usize, u32, u32)>,
}

impl Dumper {
    pub(crate) fn new(parts: DumperParts) -> Self {
        let names = parts.intake.interface_cache();
        Self {
            parts,
            names,
            active: Vec::new(),
            finished: VecDeque::new(),
            views: HashMap::new(),
            next_number: 1,
            infos: Vec::new(),
            fallen: Vec::new(),
        }
    }

    /// Whether there is a dump to work on.
    pub(crate) fn busy(&self) -> bool {
        !self.active.is_empty()
    }

    /// Waits for a message, at most as long as open dumps allow; false when all senders are gone and nothing is open.
    pub(crate) fn wait(&mut self) -> bool {
        let message = if self.busy() {
            match self.parts.messages.recv_timeout(ROUND) {
                Ok(message) => Some(message),
                Err(mpsc::RecvTimeoutError::Timeout) => None,
                Err(mpsc::RecvTimeoutError::Disconnected) => return self.busy(),
            }
        } else {
            match self.parts.messages.recv() {
                Ok(message) => Some(message),
                Err(mpsc::RecvError) => return false,
            }
        };
        if let Some(message) = message {
            self.take(message);
        }
        true
    }

    /// One round: messages, then one pass over the ring for all dumps, then dumps that are complete.
    pub(crate) fn step(&mut self) {
        // The barrier and the reach are read before the messages: whatever the analyzer sent before it moved on is
        // then seen here before the packets that came after.
        let barrier = self.parts.barrier.asked_of_dumper();
        let reach = self.parts.progress.reach();
        while let Ok(message) = self.parts.messages.try_recv() {
            self.take(message);
        }
        self.pass(&reach, barrier.is_some());
        self.give_back();
        self.complete(&reach);
        if let Some(barrier) = barrier {
            self.parts.barrier.dumper_done(barrier);
        }
    }

    /// Gives up: nothing is completed any more. The `.part` files that stay behind are reported as failed dumps.
    pub(crate) fn abandon(&mut self) {
        self.views.clear();
        for mut dump in std::mem::take(&mut self.active) {
            let close = dump.close.take().unwrap_or_else(|| dump.never_closed());
            let parts = dump.file.as_ref().map_or(Vec::new(), DumpFile::parts);
            let safe = dump
                .file
                .as_ref()
                .map_or(Written::default(), DumpFile::safe);
            if let Ok(file) = &mut dump.file {
                let _ = file.flush();
            }
            let failure = Failure::new(
                "stopped before it was complete".to_owned(),
                parts,
                safe,
                close.clock_ns,
            );
            let report = dump.report(&close, Some(&failure), safe, &self.parts.intake);
            self.tell(Event::Finished(report));
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Open(order) => self.open(*order),
            Message::Close(close) => {
                let judge_by_ns = self.parts.clock.now().mono_ns + COUNTERS_WAIT_NS;
                if let Some(dump) = self.active.iter_mut().find(|d| d.order.id == close.id) {
                    dump.close = Some(*close);
                    dump.judge_by_ns = Some(judge_by_ns);
                }
            }
            Message::Late {
                id,
                packets,
                first_ns,
                last_ns,
            } => {
                self.late(id, Missing::new("late", first_ns, last_ns, Some(packets)));
            }
            Message::Wake => {}
        }
    }

    fn open(&mut self, order: DumpOrder) {
        let headline = format!(
            "{PROGRAM}: trigger {:?} at {}, window {} to {}, dump {:?}",
            order.rule,
            rfc3339(order.trigger_ns),
            rfc3339(order.from_ns),
            rfc3339(order.to_ns),
            order.expression,
        );
        let interface = order.trigger.map_or_else(
            || self.names.interface(0).map(|_| 0),
            |(_, _, interface)| Some(interface),
        );
        let number = self.next_number;
        self.next_number += 1;
        let shelf = &self.parts.shelf;
        let file = DumpFile::create(
            shelf,
            order.trigger_ns,
            number,
            &order.rule,
            &headline,
            interface,
            &mut self.names,
        );
        let file = file.map_err(|error| {
            let text = format!("{}: {error}", shelf.directory.path().display());
            Failure::new(text, Vec::new(), Written::default(), order.from_ns)
        });
        let before = order.reservation.evicted_before().clone();
        self.active.push(Active {
            order,
            number,
            file,
            scanned: HashMap::new(),
            waiting: Vec::new(),
            kept: VecDeque::new(),
            before,
            lost: Lost::default(),
            late: None,
            per_interface: HashMap::new(),
            close: None,
            judge_by_ns: None,
        });
    }

    /// Scans what is new within `reach` for all dumps. `everything`: emit without waiting for older packets.
    fn pass(&mut self, reach: &Reach, everything: bool) {
        let visits = self.visits(reach);
        // How far a dump may emit after each visit: what it will still read in this pass comes first.
        let mut next_ns: Vec<i64> = vec![i64::MAX; self.active.len()];
        let mut bounds: Vec<Vec<(usize, i64)>> = Vec::with_capacity(visits.len());
        for visit in visits.iter().rev() {
            bounds.push(
                visit
                    .wanted
                    .iter()
                    .map(|&(dump, _, _)| (dump, next_ns[dump]))
                    .collect(),
            );
            for &(dump, _, _) in &visit.wanted {
                next_ns[dump] = next_ns[dump].min(visit.info.min_ns);
            }
        }
        let patience = self.parts.ring.buckets() / 8;
        for (visit, bounds) in visits.iter().zip(bounds.into_iter().rev()) {
            self.scan(visit);
            let everything = everything || self.views.len() > patience;
            for (dump, bound_ns) in bounds {
                let frontier_ns = if everything {
                    i64::MAX
                } else {
                    reach.frontier_ns
                };
                self.emit(dump, frontier_ns.min(bound_ns));
            }
        }
        for dump in 0..self.active.len() {
            let close = self.active[dump].close.as_ref();
            let over = close.is_some_and(|close| reach.covers(&close.ends));
            let frontier_ns = if everything || over || self.views.len() > patience {
                i64::MAX
            } else {
                reach.frontier_ns
            };
            self.emit(dump, frontier_ns);
            self.flush(dump);
        }
    }

    /// The buckets with records that some dump has not looked at, oldest first.
    fn visits(&mut self, reach: &Reach) -> Vec<Visit> {
        let mut found: HashMap<BucketRef, Visit> = HashMap::new();
        for (index, dump) in self.active.iter_mut().enumerate() {
            self.infos.clear();
            dump.order.reservation.buckets(&mut self.infos);
            for info in &self.infos {
                let from = dump.scanned.get(&info.bucket).copied().unwrap_or(0);
                let to = info.committed.min(dump.limit(info, reach));
                if from < to {
                    let visit = found.entry(info.bucket).or_insert_with(|| Visit {
                        info: *info,
                        wanted: Vec::new(),
                    });
                    visit.wanted.push((index, from, to));
                }
            }
        }
        let mut visits: Vec<Visit> = found.into_values().collect();
        visits.sort_by_key(|v| (v.info.min_ns, v.info.producer, v.info.first));
        visits
    }

    fn scan(&mut self, visit: &Visit) {
        let bucket = visit.info.bucket;
        // Overwritten since: the reservation tells what fell.
        let Some(view) = self.parts.ring.hold(bucket) else {
            return;
        };
        let from = visit.wanted.iter().map(|w| w.1).min().unwrap_or(0);
        let to = visit
            .wanted
            .iter()
            .map(|w| w.2)
            .max()
            .unwrap_or(0)
            .min(view.committed());
        let mut waiting = 0;
        for index in from..to {
            let packet = view.packet(index);
            let record = visit.info.first + u64::from(index);
            for &(dump, wanted_from, wanted_to) in &visit.wanted {
                if (wanted_from..wanted_to).contains(&index) {
                    let place = Found {
                        bucket,
                        index,
                        producer: visit.info.producer,
                        record,
                    };
                    waiting += self.active[dump].consider(&packet, place, &mut self.names);
                }
            }
        }
        for &(dump, _, wanted_to) in &visit.wanted {
            self.active[dump].scanned.insert(bucket, wanted_to.min(to));
        }
        if waiting > 0 {
            self.views
                .entry(bucket)
                .or_insert_with(|| HeldView { view, waiting: 0 })
                .waiting += waiting;
        }
    }

    /// Writes the waiting packets of a dump that are older than `frontier_ns`, in order.
    fn emit(&mut self, dump: usize, frontier_ns: i64) {
        let dump = &mut self.active[dump];
        if dump.waiting.is_empty() {
            return;
        }
        dump.waiting.sort_by_key(|w| w.key);
        let ready = if frontier_ns == i64::MAX {
            dump.waiting.len()
        } else {
            dump.waiting
                .partition_point(|w| w.key.time_ns < frontier_ns)
        };
        let later = dump.waiting.split_off(ready);
        for waiting in std::mem::replace(&mut dump.waiting, later) {
            let Waiting {
                key,
                wire_len,
                interface,
                direction,
                place,
            } = waiting;
            let trigger = dump.order.trigger.is_some_and(|(producer, record, _)| {
                (producer, record) == (key.producer, key.record)
            });
            let held;
            let data: &[u8] = match &place {
                Place::Copied(data) => data,
                Place::Ring(bucket, index) => match self.views.get(bucket) {
                    Some(view) => {
                        held = view.view.packet(*index);
                        held.data
                    }
                    None => continue,
                },
            };
            let packet = DumpPacket {
                key,
                wire_len,
                interface,
                direction,
                data,
                trigger,
            };
            match &mut dump.file {
                Ok(file) => match file.push(&packet, &mut self.names) {
                    Ok(()) => *dump.per_interface.entry(interface).or_default() += 1,
                    Err(error) => {
                        let failure = Failure::of(file, &error, key.time_ns);
                        dump.file = Err(failure);
                        dump.count_unwritten();
                    }
                },
                Err(_) => {}
            }
            if let Err(failure) = &mut dump.file {
                failure.lose(key.time_ns);
            }
            if let Place::Ring(bucket, _) = place
                && let Some(view) = self.views.get_mut(&bucket)
            {
                view.waiting -= 1;
                if view.waiting == 0 {
                    self.views.remove(&bucket);
                }
            }
        }
    }

    fn flush(&mut self, dump: usize) {
        let dump = &mut self.active[dump];
        if let Ok(file) = &mut dump.file
            && let Err(error) = file.flush()
        {
            let failure = Failure::of(file, &error, dump.order.to_ns);
            dump.file = Err(failure);
            dump.count_unwritten();
        }
    }

    /// Closed buckets that were wholly read and written are free to be overwritten.
    fn give_back(&mut self) {
        for dump in &mut self.active {
            self.fallen.clear();
            dump.order.reservation.fallen(&mut self.fallen);
            for fallen in &self.fallen {
                dump.lose(fallen);
            }
            self.infos.clear();
            dump.order.reservation.buckets(&mut self.infos);
            for info in self.infos.iter().filter(|info| info.closed) {
                let scanned = dump.scanned.get(&info.bucket).copied().unwrap_or(0);
                let beyond = dump.close.as_ref().is_some_and(|close| {
                    info.first + u64::from(scanned) >= end(&close.ends, info.producer)
                });
                let held = self.views.contains_key(&info.bucket);
                if (scanned == info.committed || beyond) && !held {
                    dump.order.reservation.give_back(info.bucket);
                    dump.scanned.remove(&info.bucket);
                }
            }
        }
    }

    /// Finishes the dumps whose window is closed and wholly read.
    fn complete(&mut self, reach: &Reach) {
        let mut index = 0;
        while index < self.active.len() {
            if self.ready(&self.active[index], reach) {
                let dump = self.active.remove(index);
                self.finish(dump);
            } else {
                index += 1;
            }
        }
    }

    fn ready(&self, dump: &Active, reach: &Reach) -> bool {
        let Some(close) = &dump.close else {
            return false;
        };
        if !reach.covers(&close.ends) || !dump.waiting.is_empty() {
            return false;
        }
        let known =
            close.clipped.is_some() || self.parts.intake.losses_known_until(dump.order.to_ns);
        known
            || dump
                .judge_by_ns
                .is_none_or(|by| self.parts.clock.now().mono_ns >= by)
    }

    fn finish(&mut self, mut dump: Active) {
        let Some(close) = dump.close.take() else {
            return;
        };
        self.parts
            .counters
            .in_flight
            .fetch_sub(1, Ordering::Relaxed);
        let intake = Arc::clone(&self.parts.intake);
        let file = std::mem::replace(
            &mut dump.file,
            Err(Failure::new(
                String::new(),
                Vec::new(),
                Written::default(),
                0,
            )),
        );
        let sidecar = dump.sidecar_facts(
            &close,
            &mut self.names,
            file.as_ref().map_or(Vec::new(), DumpFile::interfaces),
        );
        let result = file.and_then(|file| {
            let verdict = verdict_line(&dump.report(&close, None, file.safe(), &intake));
            let totals = |id: u16| interface_totals(&close, &dump, &intake, id);
            file.finish(&verdict, &totals, &mut self.names)
                .map_err(|failed| {
                    let FailedFile { error, parts, safe } = failed;
                    let mut failure = Failure::new(error.to_string(), parts, safe, close.clock_ns);
                    failure.lost = dump
                        .per_interface
                        .values()
                        .sum::<u64>()
                        .saturating_sub(safe.packets);
                    failure
                })
        });
        match result {
            Ok(finished) => {
                let mut report = dump.report(&close, None, finished.written, &intake);
                report.file.clone_from(&finished.paths[0]);
                report.more_files = finished.paths[1..].to_vec();
                report.sidecar = self.write_sidecar(&finished, &report, &sidecar, false);
                self.finished
                    .push_back((dump.order.id, report.clone(), finished, sidecar));
                if self.finished.len() > FINISHED_KEPT {
                    self.finished.pop_front();
                }
                self.tell(Event::Finished(report));
            }
            Err(failure) => {
                let report = dump.report(&close, Some(&failure), failure.safe, &intake);
                self.tell(Event::Finished(report));
            }
        }
    }

    fn write_sidecar(
        &mut self,
        file: &FinishedFile,
        report: &DumpReport,
        facts: &SidecarFacts,
        again: bool,
    ) -> bool {
        let sidecar = Sidecar {
            report,
            expression: &facts.expression,
            suppressed: facts.suppressed.count,
            suppressed_hits: facts
                .suppressed
                .times_ns
                .iter()
                .map(|ns| rfc3339(*ns))
                .collect(),
            interfaces: facts.interfaces.clone(),
            program: PROGRAM,
            created: (!self.parts.reproducible).then(|| rfc3339(self.parts.clock.now().wall_ns)),
        };
        let written = serde_json::to_vec_pretty(&sidecar)
            .map_err(io::Error::other)
            .and_then(|mut json| {
                json.push(b'\n');
                file.write_sidecar(&json, again)
            });
        if let Err(error) = &written {
            self.tell(Event::Notice(format!(
                "{}: no sidecar: {error}",
                report.file.display()
            )));
        }
        written.is_ok()
    }

    /// A packet of a closed window came: the verdict of its dump changes.
    fn late(&mut self, id: u64, missing: Missing) {
        if let Some(dump) = self.active.iter_mut().find(|d| d.order.id == id) {
            dump.late = Some(missing);
            return;
        }
        let Some(index) = self.finished.iter().position(|f| f.0 == id) else {
            return;
        };
        let Some((_, mut report, file, facts)) = self.finished.remove(index) else {
            return;
        };
        report.missing.push(missing);
        report.judge();
        if let Err(error) = file.amend(&verdict_line(&report)) {
            self.tell(Event::Notice(format!(
                "{}: verdict not changed: {error}",
                report.file.display()
            )));
        }
        report.sidecar = self.write_sidecar(&file, &report, &facts, true);
        self.tell(Event::Amended(report));
    }

    /// A recorder that went away needs no news.
    fn tell(&self, event: Event) {
        let _ = self.parts.events.send(event);
    }
}

/// The pause between two rounds while dumps are open: short against the 100 ms that a first packet may take, long
/// against the microseconds that an idle round costs.
const ROUND: std::time::Duration = std::time::Duration::from_millis(5);

fn end(ends: &[u64], producer: usize) -> u64 {
    ends.get(producer).copied().unwrap_or(0)
}

/// The verdict as it stands in a capture file.
fn verdict_line(report: &DumpReport) -> String {
    let clipped = if report.clipped.is_empty() {
        String::new()
    } else {
        format!("; clipped: {}", report.clipped.join(", "))
    };
    format!("verdict: {}{clipped}", report.reasons())
}

fn interface_totals(
    close: &CloseOrder,
    dump: &Active,
    intake: &Intake,
    id: u16,
) -> InterfaceTotals {
    let (received, dropped) = match &close.received {
        Some(received) => (
            Some(received.get(usize::from(id)).copied().unwrap_or(0)),
            Some(0),
        ),
        None => intake.interface_totals(id),
    };
    InterfaceTotals {
        start_ns: close.start_ns,
        end_ns: close.clock_ns,
        received,
        dropped,
        written: dump.per_interface.get(&id).copied().unwrap_or(0),
    }
}

/// Where a packet was found.
#[derive(Debug, Clone, Copy)]
struct Found {
    bucket: BucketRef,
    index: u32,
    producer: usize,
    record: u64,
}

impl Active {
    /// How many records of a bucket may be looked at: those within reach and before the dump's end.
    fn limit(&self, info: &BucketInfo, reach: &Reach) -> u32 {
        let mut limit = reach.limit(info.producer);
        if let Some(close) = &self.close {
            limit = limit.min(end(&close.ends, info.producer));
        }
        u32::try_from(limit.saturating_sub(info.first)).unwrap_or(u32::MAX)
    }

    /// Puts a packet among the waiting if the dump takes it; returns how many of them stay in its bucket.
    fn consider(&mut self, packet: &Packet<'_>, found: Found, names: &mut InterfaceCache) -> usize {
        if packet.time_ns < self.order.from_ns || packet.time_ns > self.order.to_ns {
            return 0;
        }
        let Some(interface) = names.interface(packet.interface) else {
            return 0;
        };
        let key = Key {
            time_ns: packet.time_ns,
            source: interface.source,
            producer: found.producer,
            record: found.record,
        };
        let waiting = |place| Waiting {
            key,
            wire_len: packet.wire_len,
            interface: packet.interface,
            direction: packet.direction,
            place,
        };
        let answer = self.order.predicate.decide(interface, packet);
        let in_bucket = match answer.decision {
            Decision::Skip => 0,
            Decision::Take => {
                self.waiting
                    .push(waiting(Place::Ring(found.bucket, found.index)));
                1
            }
            Decision::Maybe(fragment) => {
                if self.kept.len() >= KEPT_FRAGMENTS {
                    self.kept.pop_front();
                }
                self.kept
                    .push_back((fragment, waiting(Place::Copied(packet.data.into()))));
                0
            }
        };
        if let Some(fragment) = answer.resolves {
            self.resolve(fragment, names);
        }
        in_bucket
    }

    /// A first fragment came: what was kept aside for it is decided now.
    fn resolve(&mut self, fragment: FragmentKey, names: &mut InterfaceCache) {
        if !self.kept.iter().any(|(key, _)| *key == fragment) {
            return;
        }
        for (key, kept) in std::mem::take(&mut self.kept) {
            if key != fragment {
                self.kept.push_back((key, kept));
            } else if let Some(interface) = names.interface(kept.interface)
                && let Some(packet) = kept.packet()
                && self.order.predicate.decide(interface, &packet).decision == Decision::Take
            {
                self.waiting.push(kept);
            }
        }
    }

    /// A reserved bucket was overwritten: what was not looked at is missing.
    fn lose(&mut self, fallen: &EvictedBucket) {
        let skip = self.scanned.remove(&fallen.bucket).unwrap_or(0);
        let (from_ns, to_ns) = (self.order.from_ns, self.order.to_ns);
        let count = fallen.count_in(from_ns, to_ns, skip);
        if count.packets == 0 {
            return;
        }
        self.lost.packets += count.packets;
        self.lost.estimated |= !count.exact;
        if let Some((first, last)) = fallen.span_in(from_ns, to_ns) {
            self.lost.span_ns = Some(
                self.lost
                    .span_ns
                    .map_or((first, last), |(a, b)| (a.min(first), b.max(last))),
            );
        }
    }

    /// After a failure: packets that were taken but never reached the disk.
    fn count_unwritten(&mut self) {
        let taken: u64 = self.per_interface.values().sum();
        if let Err(failure) = &mut self.file {
            failure.lost += taken.saturating_sub(failure.safe.packets);
        }
    }

    fn never_closed(&self) -> CloseOrder {
        CloseOrder {
            id: self.order.id,
            clipped: Some(Clip::Stop),
            suppressed: Suppressed::default(),
            ends: Vec::new(),
            received: None,
            clock_ns: self.order.trigger_ns,
            start_ns: self.order.from_ns,
            notes: Vec::new(),
        }
    }

    fn report(
        &self,
        close: &CloseOrder,
        failure: Option<&Failure>,
        written: Written,
        intake: &Intake,
    ) -> DumpReport {
        let order = &self.order;
        let mut clipped = Vec::new();
        if close.start_ns > order.from_ns
            && self.before.packets == 0
            && self.before.unknown_before_ns.is_none()
        {
            clipped.push("start");
        }
        match close.clipped {
            Some(Clip::Stop) => clipped.push("stop"),
            Some(Clip::End) => clipped.push("end"),
            None => {}
        }
        let mut report = DumpReport {
            file: failure
                .and_then(|f| f.parts.first().cloned())
                .unwrap_or_default(),
            more_files: failure.map_or(Vec::new(), |f| f.parts.iter().skip(1).cloned().collect()),
            rule: order.rule.clone(),
            trigger_time: rfc3339(order.trigger_ns),
            from: rfc3339(order.from_ns),
            to: rfc3339(order.to_ns),
            packets: written.packets,
            bytes: written.bytes,
            verdict: super::Verdict::Complete,
            clipped,
            missing: self.missing(close, failure, intake),
            error: failure.map(|f| f.error.clone()),
            notes: close.notes.clone(),
            number: self.number,
            trigger_ns: order.trigger_ns,
            span_ns: written.first_ns.zip(written.last_ns),
            sidecar: false,
        };
        report.notes.extend(order.predicate.notes());
        report.notes.extend(intake.unknown_losses());
        report.judge();
        report
    }

    fn missing(
        &self,
        close: &CloseOrder,
        failure: Option<&Failure>,
        intake: &Intake,
    ) -> Vec<Missing> {
        let order = &self.order;
        let mut missing = Vec::new();
        let (mut packets, mut estimated, mut span) = (
            self.before.packets,
            !self.before.exact,
            self.before.first_ns.zip(self.before.last_ns),
        );
        packets += self.lost.packets;
        estimated |= self.lost.estimated;
        if let Some((first, last)) = self.lost.span_ns {
            span = Some(span.map_or((first, last), |(a, b)| (a.min(first), b.max(last))));
        }
        if packets > 0 || self.before.unknown_before_ns.is_some() {
            let (first, last) = span.unwrap_or((order.from_ns, order.from_ns));
            let first = if self.before.unknown_before_ns.is_some() {
                order.from_ns
            } else {
                first.max(order.from_ns)
            };
            let known = self.before.unknown_before_ns.is_none();
            let mut entry = Missing::new(
                "evicted",
                first,
                last.min(order.to_ns),
                known.then_some(packets),
            );
            entry.estimated = known && estimated;
            missing.push(entry);
        }
        let until = close.clock_ns.min(order.to_ns);
        missing.extend(intake.losses(order.from_ns, until));
        missing.extend(self.late.clone());
        if let Some(failure) = failure {
            missing.push(Missing::new(
                "disk",
                failure.first_ns,
                failure.last_ns.max(failure.first_ns),
                Some(failure.lost),
            ));
        }
        missing
    }

    fn sidecar_facts(
        &self,
        close: &CloseOrder,
        names: &mut InterfaceCache,
        interfaces: Vec<u16>,
    ) -> SidecarFacts {
        let describe = |id: u16| {
            let interface = names.interface(id)?;
            Some(SidecarInterface {
                name: interface.name.clone(),
                link_type: interface.link_type.0,
                packets: self.per_interface.get(&id).copied().unwrap_or(0),
                time_resolution_ns: interface.time_resolution_ns,
            })
        };
        SidecarFacts {
            expression: self.order.expression.clone(),
            suppressed: close.suppressed.clone(),
            interfaces: interfaces.into_iter().filter_map(describe).collect(),
        }
    }
}

impl Failure {
    fn new(error: String, parts: Vec<std::path::PathBuf>, safe: Written, at_ns: i64) -> Self {
        Self {
            error,
            parts,
            safe,
            lost: 0,
            first_ns: at_ns,
            last_ns: at_ns,
        }
    }

    fn of(file: &DumpFile, error: &io::Error, at_ns: i64) -> Self {
        let safe = file.safe();
        Self::new(
            error.to_string(),
            file.parts(),
            safe,
            safe.last_ns.unwrap_or(at_ns),
        )
    }

    fn lose(&mut self, time_ns: i64) {
        self.lost += 1;
        self.last_ns = self.last_ns.max(time_ns);
    }
}
