//! A dump whose file is not complete yet: what it has read, what waits, what it lost.

use std::{
    collections::{HashMap, VecDeque},
    io,
    path::PathBuf,
};

use retroscope_packet::FragmentKey;
use retroscope_ring::{BucketInfo, BucketRef, Count, Evicted, EvictedBucket, Packet};

use super::{
    encode::InterfaceTotals,
    file::{DumpFile, Label},
    order::{CloseOrder, DumpOrder, Step},
    output::{Key, Written},
    report::{DumpReport, Missing, SidecarInterface, Verdict},
};
use crate::{
    director::Clip,
    hits::Suppressed,
    intake::Intake,
    interfaces::{Interface, InterfaceCache},
    predicate::Decision,
    progress::Reach,
    time::rfc3339,
};

/// Later fragments kept aside for their first fragment, per dump.
const KEPT_FRAGMENTS: usize = 1024;
/// A dump whose file is not complete yet.
#[derive(Debug)]
pub(super) struct Active {
    pub(super) order: DumpOrder,
    pub(super) number: u64,
    /// For the sidecar; `None` if no file could be made.
    pub(super) label: Option<Label>,
    pub(super) file: Result<DumpFile, Box<Failure>>,
    /// How many records of a bucket were looked at.
    pub(super) scanned: HashMap<BucketRef, u32>,
    pub(super) waiting: Vec<Waiting>,
    pub(super) kept: VecDeque<(FragmentKey, Waiting)>,
    /// What the window became after each step of the clock.
    pub(super) steps: Vec<SteppedWindow>,
    /// Later fragments given up because too many waited for their first one.
    pub(super) forgotten_fragments: u64,
    pub(super) before: Evicted,
    pub(super) lost: Lost,
    pub(super) late: Option<Missing>,
    pub(super) per_interface: HashMap<u16, u64>,
    /// Bytes of its files that were told to the director.
    pub(super) told_bytes: u64,
    pub(super) close: Option<CloseOrder>,
    /// Live: not judged before the counters cover the window or this passed on the monotonic clock.
    pub(super) judge_by_ns: Option<i64>,
}

/// A window on the other side of a clock step: stamps of another scale, and only from records after the step.
#[derive(Debug)]
pub(super) struct SteppedWindow {
    from_ns: i64,
    to_ns: i64,
    starts: Vec<u64>,
}

/// A dump that the disk refused.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) error: String,
    pub(super) parts: Vec<PathBuf>,
    pub(super) safe: Written,
    /// `disk` or `stopped`.
    cause: &'static str,
    /// Packets that were taken and are not in the file; it means nothing for `stopped`.
    pub(super) lost: u64,
    pub(super) first_ns: i64,
    pub(super) last_ns: i64,
}

/// Reserved buckets that were overwritten before they were written.
#[derive(Debug, Default)]
pub(super) struct Lost {
    pub(super) packets: u64,
    pub(super) estimated: bool,
    pub(super) span_ns: Option<(i64, i64)>,
}

impl Lost {
    fn add(&mut self, count: Count, span_ns: Option<(i64, i64)>) {
        self.packets += count.packets;
        self.estimated |= !count.exact;
        let either = |(a, b): (i64, i64), (c, d): (i64, i64)| (a.min(c), b.max(d));
        self.span_ns = match (self.span_ns, span_ns) {
            (Some(known), Some(more)) => Some(either(known, more)),
            (known, more) => known.or(more),
        };
    }
}

/// A packet of a dump that waits for its turn.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) key: Key,
    pub(super) wire_len: u32,
    pub(super) interface: u16,
    pub(super) direction: u8,
    pub(super) place: Place,
}

#[derive(Debug)]
pub(super) enum Place {
    Ring(BucketRef, u32),
    Copied(Box<[u8]>),
}

impl Waiting {
    fn new(packet: &Packet<'_>, found: &Found, interface: &Interface, place: Place) -> Self {
        Self {
            key: Key {
                time_ns: packet.time_ns,
                source: interface.source,
                producer: found.producer,
                record: found.record,
            },
            wire_len: packet.wire_len,
            interface: packet.interface,
            direction: packet.direction,
            place,
        }
    }

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
pub(super) struct SidecarFacts {
    pub(super) expression: String,
    pub(super) suppressed: Suppressed,
    pub(super) interfaces: Vec<SidecarInterface>,
}

pub(super) fn end(ends: &[u64], producer: usize) -> u64 {
    ends.get(producer).copied().unwrap_or(0)
}

/// The verdict as it stands in a capture file.
pub(super) fn verdict_line(report: &DumpReport) -> String {
    let clipped = if report.clipped.is_empty() {
        String::new()
    } else {
        format!("; clipped: {}", report.clipped.join(", "))
    };
    format!("verdict: {}{clipped}", report.reasons())
}

pub(super) fn interface_totals(
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
pub(super) struct Found {
    pub(super) bucket: BucketRef,
    pub(super) index: u32,
    pub(super) producer: usize,
    pub(super) record: u64,
}

impl SidecarFacts {
    pub(super) fn has_several_link_types(&self) -> bool {
        let mut link_types = self.interfaces.iter().map(|interface| interface.link_type);
        let first = link_types.next();
        link_types.any(|link_type| Some(link_type) != first)
    }
}

impl Active {
    /// How many records of a bucket may be looked at: those within reach and before the dump's end.
    pub(super) fn limit(&self, info: &BucketInfo, reach: &Reach) -> u32 {
        let mut limit = reach.limit(info.producer);
        if let Some(close) = &self.close {
            limit = limit.min(end(&close.ends, info.producer));
        }
        u32::try_from(limit.saturating_sub(info.first)).unwrap_or(u32::MAX)
    }

    /// The smallest and the largest time of a packet that may lie in the window, ns.
    pub(super) fn span_ns(&self) -> (i64, i64) {
        let windows = self
            .steps
            .iter()
            .map(|window| (window.from_ns, window.to_ns));
        windows.fold((self.order.from_ns, self.order.to_ns), |a, b| {
            (a.0.min(b.0), a.1.max(b.1))
        })
    }

    /// Whether a record lies in the window.
    pub(super) fn wants(&self, time_ns: i64, found: &Found) -> bool {
        let within = |from_ns, to_ns| (from_ns..=to_ns).contains(&time_ns);
        within(self.order.from_ns, self.order.to_ns)
            || self.steps.iter().any(|window| {
                within(window.from_ns, window.to_ns)
                    && found.record >= end(&window.starts, found.producer)
            })
    }

    /// Puts a packet that the filter takes among the waiting, if it lies in the window; returns how many of them stay in
    /// its bucket.
    pub(super) fn take(
        &mut self,
        packet: &Packet<'_>,
        found: Found,
        interface: &Interface,
    ) -> usize {
        if !self.wants(packet.time_ns, &found) {
            return 0;
        }
        let place = Place::Ring(found.bucket, found.index);
        self.waiting
            .push(Waiting::new(packet, &found, interface, place));
        1
    }

    /// Asks the filter, with what it learned about fragments, whether to take a packet of the window; returns how many
    /// packets more wait in its bucket.
    pub(super) fn ask(
        &mut self,
        packet: &Packet<'_>,
        found: Found,
        interface: &Interface,
        names: &mut InterfaceCache,
    ) -> usize {
        if !self.wants(packet.time_ns, &found) {
            return 0;
        }
        let answer = self.order.predicate.decide(interface, packet);
        let in_bucket = match answer.decision {
            Decision::Skip => 0,
            Decision::Take => self.take(packet, found, interface),
            Decision::Maybe(fragment) => {
                if self.kept.len() >= KEPT_FRAGMENTS {
                    self.kept.pop_front();
                    self.forgotten_fragments += 1;
                }
                let place = Place::Copied(packet.data.into());
                let waiting = Waiting::new(packet, &found, interface, place);
                self.kept.push_back((fragment, waiting));
                0
            }
        };
        if let Some(fragment) = answer.resolves {
            self.resolve(fragment, names);
        }
        in_bucket
    }

    /// The clock was stepped while the window is open: it goes on in the new stamps, for as long as it had left.
    pub(super) fn follow_step(&mut self, step: &Step) {
        let to_ns = self.last_ns().saturating_add(step.step_ns);
        let window = SteppedWindow {
            from_ns: step.from_ns,
            to_ns,
            starts: step.starts.clone(),
        };
        self.steps.push(window);
        let (from_ns, to_ns) = self.span_ns();
        self.order.reservation.set_interval(from_ns, to_ns);
    }

    /// The end of the window in the stamps that packets carry now, ns.
    pub(super) fn last_ns(&self) -> i64 {
        self.steps
            .last()
            .map_or(self.order.to_ns, |window| window.to_ns)
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

    /// Later fragments that may belong to the dump, of datagrams whose first fragment came when they were given up, or came and
    /// was forgotten.
    fn undecided_fragments(&self) -> u64 {
        let forgot_first = self.order.predicate.has_forgotten_fragments();
        let waiting = if forgot_first { self.kept.len() } else { 0 };
        self.forgotten_fragments + waiting as u64
    }

    /// A reserved bucket was overwritten: what was not looked at is missing.
    pub(super) fn lose(&mut self, fallen: &EvictedBucket) {
        let skip = self.scanned.remove(&fallen.bucket).unwrap_or(0);
        let (from_ns, to_ns) = (self.order.from_ns, self.order.to_ns);
        let count = fallen.count_in(from_ns, to_ns, skip);
        // An estimate of none is no promise that there was none.
        if count.packets > 0 || !count.exact {
            self.lost.add(count, fallen.span_in(from_ns, to_ns));
        }
    }

    /// A packet that waited was overwritten in the ring.
    pub(super) fn lose_waiting(&mut self, time_ns: i64) {
        let one = Count {
            packets: 1,
            exact: true,
        };
        self.lost.add(one, Some((time_ns, time_ns)));
    }

    /// Takes the file out of a dump that is done with.
    pub(super) fn take_file(&mut self) -> Result<DumpFile, Box<Failure>> {
        let nothing = Failure::new(String::new(), Vec::new(), Written::default(), 0);
        std::mem::replace(&mut self.file, Err(Box::new(nothing)))
    }

    /// After a failure: packets that were taken but never reached the disk.
    pub(super) fn count_unwritten(&mut self) {
        let taken: u64 = self.per_interface.values().sum();
        if let Err(failure) = &mut self.file {
            failure.lost += taken.saturating_sub(failure.safe.packets);
        }
    }

    pub(super) fn never_closed(&self) -> CloseOrder {
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

    pub(super) fn report(
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
            verdict: Verdict::Complete,
            clipped,
            missing: self.missing(close, failure, written.restamped, intake),
            error: failure.map(|f| f.error.clone()),
            notes: close.notes.clone(),
            number: self.number,
            trigger_ns: order.trigger_ns,
            span_ns: written.first_ns.zip(written.last_ns),
            sidecar: false,
        };
        report.notes.extend(order.predicate.notes());
        report.notes.extend(order.predicate.fault());
        report.notes.extend(intake.unknown_losses());
        report.judge();
        report
    }

    fn missing(
        &self,
        close: &CloseOrder,
        failure: Option<&Failure>,
        restamped: u64,
        intake: &Intake,
    ) -> Vec<Missing> {
        let order = &self.order;
        let mut missing = Vec::new();
        if order.predicate.fault().is_some() {
            missing.push(Missing::new("script", order.from_ns, order.to_ns, None));
        }
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
        if packets > 0 || estimated {
            let (first, last) = span.unwrap_or((order.from_ns, order.from_ns));
            let first = if self.before.unknown_before_ns.is_some() {
                order.from_ns
            } else {
                first.max(order.from_ns)
            };
            let known = self.before.unknown_before_ns.is_none() && packets > 0;
            let mut entry = Missing::new(
                "evicted",
                first,
                last.min(order.to_ns),
                known.then_some(packets),
            );
            entry.estimated = known && estimated;
            missing.push(entry);
        }
        let stepped = !self.steps.is_empty();
        let until = if stepped {
            order.to_ns
        } else {
            close.clock_ns.min(order.to_ns)
        };
        missing.extend(intake.losses(order.from_ns, until));
        for window in &self.steps {
            missing.extend(intake.losses(window.from_ns, window.to_ns.min(close.clock_ns)));
        }
        missing.extend(intake.unknown(order.from_ns, self.last_ns()));
        let fragments = self.undecided_fragments();
        if fragments > 0 {
            missing.push(Missing::at_most(
                "fragments",
                order.from_ns,
                self.last_ns(),
                fragments,
            ));
        }
        if restamped > 0 {
            let (from_ns, to_ns) = self.span_ns();
            let entry = Missing::new("restamped", from_ns, to_ns, Some(restamped));
            missing.push(entry);
        }
        missing.extend(self.late.clone());
        if let Some(failure) = failure {
            missing.push(Missing::new(
                failure.cause,
                failure.first_ns,
                failure.last_ns.max(failure.first_ns),
                (failure.cause == DISK).then_some(failure.lost),
            ));
        }
        missing
    }

    pub(super) fn sidecar_facts(
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
                time_source: interface.time_domain.as_str(),
            })
        };
        SidecarFacts {
            expression: self.order.expression.clone(),
            suppressed: close.suppressed.clone(),
            interfaces: interfaces.into_iter().filter_map(describe).collect(),
        }
    }
}

/// Why a dump failed, as `missing` names it: the file system refused it, …
const DISK: &str = "disk";
/// … or it was not to be completed.
const STOPPED: &str = "stopped";

impl Failure {
    /// The file system refused.
    pub(super) fn new(error: String, parts: Vec<PathBuf>, safe: Written, at_ns: i64) -> Self {
        Self {
            error,
            parts,
            safe,
            cause: DISK,
            lost: 0,
            first_ns: at_ns,
            last_ns: at_ns,
        }
    }

    /// Nobody completes it.
    pub(super) fn stopped(why: &str, parts: Vec<PathBuf>, safe: Written, at_ns: i64) -> Self {
        let at_ns = safe.last_ns.unwrap_or(at_ns);
        Self {
            cause: STOPPED,
            ..Self::new(why.to_owned(), parts, safe, at_ns)
        }
    }

    pub(super) fn of(file: &DumpFile, error: &io::Error, at_ns: i64) -> Self {
        let safe = file.safe();
        Self::new(
            error.to_string(),
            file.parts(),
            safe,
            safe.last_ns.unwrap_or(at_ns),
        )
    }

    pub(super) fn lose(&mut self, time_ns: i64) {
        self.lost += 1;
        self.last_ns = self.last_ns.max(time_ns);
    }
}
