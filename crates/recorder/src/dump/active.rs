//! A dump whose file is not complete yet: what it has read, what waits, what it lost.

use std::{
    collections::{HashMap, VecDeque},
    io,
    path::PathBuf,
};

use retroscope_filter::Decision;
use retroscope_packet::FragmentKey;
use retroscope_ring::{BucketInfo, BucketRef, Count, Evicted, EvictedBucket, Packet};

use super::{
    encode::InterfaceTotals,
    file::{DumpFile, Label},
    order::{CloseOrder, DumpOrder},
    output::Written,
    packet::{Key, PacketMeta},
    report::{DumpReport, Missing, SidecarFacts, SidecarInterface, Verdict},
};
use crate::{
    analysis::director::Clip,
    control::{hits::Suppressed, progress::Reach, ring_time::RingClock, time::rfc3339},
    intake::{
        Intake,
        interfaces::{Interface, InterfaceCache},
    },
};

/// Later fragments kept aside for their first fragment, per dump.
const KEPT_FRAGMENTS: usize = 1024;
/// A dump whose file is not complete yet.
#[derive(Debug)]
pub(super) struct Active {
    pub(super) order: DumpOrder,
    pub(super) number: u64,
    /// Its filter is being compiled, and nothing is looked at before.
    pub(super) is_compiling: bool,
    /// For the sidecar; `None` if no file could be made.
    pub(super) label: Option<Label>,
    pub(super) file: Result<DumpFile, Box<Failure>>,
    /// How many records of a bucket were looked at.
    pub(super) scanned: HashMap<BucketRef, u32>,
    pub(super) waiting: Vec<Waiting>,
    pub(super) kept: VecDeque<(FragmentKey, Waiting)>,
    /// Later fragments given up because too many waited for their first one.
    pub(super) forgotten_fragments: u64,
    /// What of its window was overwritten before it was written, from before it was opened on.
    pub(super) lost: Evicted,
    /// Whether any was before it was opened.
    pub(super) is_start_lost: bool,
    pub(super) late: Option<Missing>,
    pub(super) per_interface: HashMap<u16, u64>,
    /// Bytes of its files that were told to the director.
    pub(super) told_bytes: u64,
    pub(super) close: Option<CloseOrder>,
    /// Live: not judged before the counters cover the window or this passed on the monotonic clock.
    pub(super) judge_by_ns: Option<i64>,
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

/// A packet of a dump that waits for its turn.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) meta: PacketMeta,
    pub(super) bytes: Bytes,
}

#[derive(Debug)]
pub(super) enum Bytes {
    Ring(BucketRef, u32),
    Copied(Box<[u8]>),
}

impl Waiting {
    /// The packet, if its bytes were copied.
    fn packet(&self) -> Option<Packet<'_>> {
        let Bytes::Copied(data) = &self.bytes else {
            return None;
        };
        Some(Packet {
            time_ns: self.meta.key.time_ns,
            wire_len: self.meta.wire_len,
            interface: self.meta.interface,
            direction: self.meta.direction,
            tag_restored: false,
            data,
        })
    }
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
    let unseen = match report.not_analyzed {
        0 => String::new(),
        packets => format!("; not analyzed: {packets} packets"),
    };
    format!("verdict: {}{clipped}{unseen}", report.reasons())
}

pub(super) fn interface_totals(
    close: &CloseOrder,
    dump: &Active,
    intake: &Intake,
    id: u16,
) -> InterfaceTotals {
    let stamp = |ring_ns: i64| ring_ns.saturating_add(dump.order.offset_ns);
    let (received, dropped) = match &close.received {
        Some(received) => (
            Some(received.get(usize::from(id)).copied().unwrap_or(0)),
            Some(0),
        ),
        None => intake.interface_totals(id),
    };
    InterfaceTotals {
        start_ns: stamp(close.start_ns),
        end_ns: stamp(close.clock_ns),
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
    /// Its stamp less its ring time, ns.
    pub(super) offset_ns: i64,
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

    /// Whether a record of this ring time lies in the window.
    pub(super) fn wants(&self, time_ns: i64) -> bool {
        (self.order.from_ns..=self.order.to_ns).contains(&time_ns)
    }

    /// Puts a packet that the filter takes among the waiting, if it lies in the window; returns how many of them stay in
    /// its bucket.
    pub(super) fn take(
        &mut self,
        packet: &Packet<'_>,
        found: Found,
        interface: &Interface,
    ) -> usize {
        if !self.wants(packet.time_ns) {
            return 0;
        }
        let bytes = Bytes::Ring(found.bucket, found.index);
        let meta = self.meta(packet, &found, interface);
        self.waiting.push(Waiting { meta, bytes });
        1
    }

    fn meta(&self, packet: &Packet<'_>, found: &Found, interface: &Interface) -> PacketMeta {
        let key = Key {
            time_ns: packet.time_ns,
            source: interface.source,
            producer: found.producer,
            record: found.record,
        };
        let place = (key.producer, key.record);
        let trigger = self.order.trigger;
        PacketMeta {
            key,
            stamp_ns: packet.time_ns.wrapping_add(found.offset_ns),
            wire_len: packet.wire_len,
            interface: packet.interface,
            direction: packet.direction,
            is_trigger: trigger.is_some_and(|(producer, record, _)| (producer, record) == place),
        }
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
        if !self.wants(packet.time_ns) {
            return 0;
        }
        let answer = {
            let offset_ns = found.offset_ns;
            self.order.predicate.decide(interface, packet, offset_ns)
        };
        let in_bucket = match answer.decision {
            Decision::Skip => 0,
            Decision::Take => self.take(packet, found, interface),
            Decision::Maybe(fragment) => {
                if self.kept.len() >= KEPT_FRAGMENTS {
                    self.kept.pop_front();
                    self.forgotten_fragments += 1;
                }
                let bytes = Bytes::Copied(packet.data.into());
                let meta = self.meta(packet, &found, interface);
                self.kept.push_back((fragment, Waiting { meta, bytes }));
                0
            }
        };
        if let Some(fragment) = answer.resolves {
            self.resolve(fragment, names);
        }
        in_bucket
    }

    fn takes(&mut self, interface: &Interface, packet: &Packet<'_>, stamp_ns: i64) -> bool {
        let offset_ns = stamp_ns.wrapping_sub(packet.time_ns);
        let answer = self.order.predicate.decide(interface, packet, offset_ns);
        answer.decision == Decision::Take
    }

    /// A first fragment came: what was kept aside for it is decided now.
    fn resolve(&mut self, fragment: FragmentKey, names: &mut InterfaceCache) {
        if !self.kept.iter().any(|(key, _)| *key == fragment) {
            return;
        }
        for (key, kept) in std::mem::take(&mut self.kept) {
            if key != fragment {
                self.kept.push_back((key, kept));
            } else if let Some(interface) = names.interface(kept.meta.interface)
                && let Some(packet) = kept.packet()
                && self.takes(interface, &packet, kept.meta.stamp_ns)
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
            self.add_lost(count, fallen.span_in(from_ns, to_ns));
        }
    }

    /// A packet that waited was overwritten in the ring.
    pub(super) fn lose_waiting(&mut self, time_ns: i64) {
        let one = Count {
            packets: 1,
            exact: true,
        };
        self.add_lost(one, Some((time_ns, time_ns)));
    }

    fn add_lost(&mut self, count: Count, span_ns: Option<(i64, i64)>) {
        let lost = &mut self.lost;
        lost.packets += count.packets;
        lost.exact &= count.exact;
        if let Some((first_ns, last_ns)) = span_ns {
            lost.first_ns = Some(lost.first_ns.map_or(first_ns, |ns| ns.min(first_ns)));
            lost.last_ns = Some(lost.last_ns.map_or(last_ns, |ns| ns.max(last_ns)));
        }
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
            unseen: 0,
        }
    }

    pub(super) fn report(
        &self,
        close: &CloseOrder,
        failure: Option<&Failure>,
        written: Written,
        intake: &Intake,
        clock: &RingClock,
    ) -> DumpReport {
        let order = &self.order;
        let stamp = |ring_ns: i64| rfc3339(ring_ns.saturating_add(order.offset_ns));
        let mut clipped = Vec::new();
        if close.start_ns > order.from_ns && !self.is_start_lost {
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
            trigger_time: stamp(order.trigger_ns),
            from: stamp(order.from_ns),
            to: stamp(order.to_ns),
            packets: written.packets,
            bytes: written.bytes,
            verdict: Verdict::Complete,
            clipped,
            missing: self.missing(close, failure, written.restamped, intake),
            error: failure.map(|f| f.error.clone()),
            notes: clock.within(order.from_ns, order.to_ns),
            is_disordered: false,
            offset_ns: order.offset_ns,
            losses_unknown: intake.unknown_losses(),
            not_analyzed: close.unseen,
            number: self.number,
            trigger_ns: order.trigger_ns,
            span_ns: written.first_ns.zip(written.last_ns),
            sidecar: false,
        };
        report.notes.extend(order.predicate.notes());
        report.notes.extend(order.predicate.fault());
        report.notes.extend_from_slice(&report.losses_unknown);
        report.notes.extend(intake.foreign_clocks());
        let disorder = intake.disorder(order.from_ns, order.to_ns);
        report.is_disordered = !disorder.is_empty();
        report.notes.extend(disorder);
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
        let offset_ns = order.offset_ns;
        let stamp = |ring_ns: i64| ring_ns.saturating_add(offset_ns);
        let entry = |cause, from_ns: i64, to_ns: i64, packets| {
            Missing::new(cause, stamp(from_ns), stamp(to_ns), packets)
        };
        let mut missing = Vec::new();
        if order.predicate.fault().is_some() {
            missing.push(entry("script", order.from_ns, order.to_ns, None));
        }
        let lost = &self.lost;
        if lost.packets > 0 || !lost.exact {
            let span_ns = lost.first_ns.zip(lost.last_ns);
            let (first_ns, last_ns) = span_ns.unwrap_or((order.from_ns, order.from_ns));
            let is_all_known = lost.unknown_before_ns.is_none();
            let first_ns = if is_all_known {
                first_ns.max(order.from_ns)
            } else {
                order.from_ns
            };
            let is_known = is_all_known && lost.packets > 0;
            let packets = is_known.then_some(lost.packets);
            let mut evicted = entry("evicted", first_ns, last_ns.min(order.to_ns), packets);
            evicted.estimated = is_known && !lost.exact;
            missing.push(evicted);
        }
        // Of a trigger with a clock that is ahead the window may lie in the future of all others.
        let until_ns = close.clock_ns.min(order.to_ns);
        if order.from_ns <= until_ns {
            missing.extend(intake.losses(order.from_ns, until_ns, offset_ns));
            missing.extend(intake.unknown(order.from_ns, until_ns, offset_ns));
        }
        let fragments = self.undecided_fragments();
        if fragments > 0 {
            let (from_ns, to_ns) = (stamp(order.from_ns), stamp(order.to_ns));
            missing.push(Missing::at_most("fragments", from_ns, to_ns, fragments));
        }
        if restamped > 0 {
            let (from_ns, to_ns) = (order.from_ns, order.to_ns);
            missing.push(entry("restamped", from_ns, to_ns, Some(restamped)));
        }
        missing.extend(self.late.clone());
        if let Some(failure) = failure {
            missing.push(entry(
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
        let stamp = |ring_ns: &i64| rfc3339(ring_ns.saturating_add(self.order.offset_ns));
        let suppressed = &close.suppressed;
        SidecarFacts {
            expression: self.order.expression.clone(),
            suppressed: suppressed.count,
            suppressed_hits: suppressed.times_ns.iter().map(stamp).collect(),
            suppressed_before: suppressed.before,
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
