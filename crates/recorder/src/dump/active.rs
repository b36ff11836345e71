//! A dump whose file is not complete yet: what it has read, what waits, what it lost.

use std::{
    collections::{HashMap, VecDeque},
    io,
    path::PathBuf,
    rc::Rc,
};

use retroscope_filter::Decision;
use retroscope_packet::FragmentKey;
use retroscope_ring::{BucketInfo, BucketView, Evicted, EvictedBucket, Packet};

use super::{
    encode::InterfaceTotals,
    file::{DumpFile, FinishedFile, Label},
    order::{CloseOrder, DumpOrder},
    output::Written,
    packet::{Key, PacketMeta},
    reading::{Lost, Reading},
    report::{DumpReport, Missing, SidecarFacts, SidecarInterface, Verdict},
};
use crate::{
    analysis::director::Clip,
    control::{
        hits::Suppressed,
        progress::{Reach, records_before},
        ring_time::RingClock,
        time::rfc3339,
    },
    intake::{
        Intake,
        interfaces::{Interface, InterfaceCache},
    },
};

/// The fragments of a datagram come within such a time, ns, unless they are held up on their way.
pub(super) const DATAGRAM_NS: i64 = 100_000_000;
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
    /// What it has read by itself, while it catches up. `None`: it follows ([`Dumps`](super::dumps::Dumps)).
    pub(super) reading: Option<Reading>,
    /// `i64::MAX`: it has read all records within reach. Else packets of this ring time, ns, and later may be missing among the
    /// waiting ones.
    pub(super) unread_ns: i64,
    pub(super) waiting: Vec<WaitingPacket>,
    /// No waiting packet has an older ring time, ns.
    pub(super) oldest_ns: i64,
    /// What [`Self::due_ns`] was when it was last listed.
    pub(super) listed_ns: i64,
    /// Nothing takes its packets at the moment. It reads no further meanwhile.
    pub(super) is_stalled: bool,
    /// It is listed among those that changed in this round.
    pub(super) is_changed: bool,
    pub(super) kept: VecDeque<(FragmentKey, WaitingPacket)>,
    /// Later fragments given up because too many waited for their first one.
    pub(super) forgotten_fragments: u64,
    /// What of its window was overwritten before it was written, from before it was opened on.
    pub(super) lost: Evicted,
    /// Whether any was before it was opened.
    pub(super) is_start_lost: bool,
    pub(super) late: Option<Missing>,
    /// No more is to be heard of what came late.
    pub(super) is_given_up: bool,
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
pub(super) struct WaitingPacket {
    pub(super) meta: PacketMeta,
    pub(super) bytes: Bytes,
}

#[derive(Debug)]
pub(super) enum Bytes {
    /// In its bucket, which is held for as long.
    Ring(Rc<BucketView>, u32),
    Copied(Box<[u8]>),
}

impl Bytes {
    pub(super) fn data(&self) -> &[u8] {
        match self {
            Self::Ring(view, index) => view.packet(*index).data,
            Self::Copied(data) => data,
        }
    }
}

impl WaitingPacket {
    fn packet(&self) -> Packet<'_> {
        Packet {
            time_ns: self.meta.key.time_ns,
            wire_len: self.meta.wire_len,
            interface: self.meta.interface,
            direction: self.meta.direction,
            tag_restored: false,
            data: self.bytes.data(),
        }
    }
}

fn end(ends: &[u64], producer: usize) -> u64 {
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

/// Where a packet was found.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found<'v> {
    pub(super) view: &'v Rc<BucketView>,
    pub(super) index: u32,
    pub(super) producer: usize,
    pub(super) record: u64,
    /// Its stamp less its ring time, ns.
    pub(super) offset_ns: i64,
}

impl Active {
    /// How many records of a bucket may be looked at: those within reach and before the dump's end.
    pub(super) fn limit(&self, info: &BucketInfo, reach: &Reach) -> u32 {
        let end = records_before(self.end(info.producer), info);
        end.min(reach.limit_in(info))
    }

    /// The first record of a producer that does not belong to the dump any more.
    pub(super) fn end(&self, producer: usize) -> u64 {
        let close = self.close.as_ref();
        close.map_or(u64::MAX, |close| end(&close.ends, producer))
    }

    /// Whether its window is closed and wholly within reach.
    pub(super) fn is_over(&self, reach: &Reach) -> bool {
        let close = self.close.as_ref();
        close.is_some_and(|close| reach.covers(&close.ends))
    }

    /// Whether packets can be written.
    pub(super) fn has_room(&self) -> bool {
        !self.is_stalled
    }

    /// Whether it can read on.
    pub(super) fn can_read(&self) -> bool {
        !self.is_compiling && self.has_room()
    }

    /// Whether it still reads in a pass. If not, packets of `unread_ns` and later may be left unread.
    pub(super) fn reads_on(&mut self, unread_ns: i64) -> bool {
        let is_reading = self.reading.is_none() || self.unread_ns == i64::MAX && self.has_room();
        if !is_reading {
            self.unread_ns = self.unread_ns.min(unread_ns);
        }
        is_reading
    }

    /// The ring time of the oldest packet that waits to be written, ns; `i64::MAX`: none does, or none can be.
    pub(super) fn due_ns(&self) -> i64 {
        if self.waiting.is_empty() || !self.has_room() {
            i64::MAX
        } else {
            self.oldest_ns.min(i64::MAX - 1)
        }
    }

    fn wait(&mut self, packet: WaitingPacket) {
        self.oldest_ns = packet.meta.key.time_ns.min(self.oldest_ns);
        self.waiting.push(packet);
    }

    /// Whether a record of this ring time lies in the window.
    pub(super) fn wants(&self, time_ns: i64) -> bool {
        (self.order.from_ns..=self.order.to_ns).contains(&time_ns)
    }

    /// Puts a packet that the filter takes among the waiting, if it lies in the window.
    pub(super) fn take(&mut self, packet: &Packet<'_>, found: Found<'_>, interface: &Interface) {
        if self.wants(packet.time_ns) {
            let bytes = Bytes::Ring(Rc::clone(found.view), found.index);
            let meta = self.meta(packet, found, interface);
            self.wait(WaitingPacket { meta, bytes });
        }
    }

    fn meta(&self, packet: &Packet<'_>, found: Found<'_>, interface: &Interface) -> PacketMeta {
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

    /// Asks the filter, with what it learned about fragments, whether to take a packet of the window. A first fragment shortly before
    /// tells of those in it.
    pub(super) fn ask(
        &mut self,
        packet: &Packet<'_>,
        found: Found<'_>,
        interface: &Interface,
        names: &mut InterfaceCache,
    ) {
        // Others are looked at with those of the window: which, depends on how far a bucket was filled when it was read.
        let first_ns = self.order.from_ns.saturating_sub(DATAGRAM_NS);
        if !(first_ns..=self.order.to_ns).contains(&packet.time_ns) {
            return;
        }
        let offset_ns = found.offset_ns;
        let answer = self.order.predicate.decide(interface, packet, offset_ns);
        match answer.decision {
            _ if !self.wants(packet.time_ns) => {}
            Decision::Skip => {}
            Decision::Take => self.take(packet, found, interface),
            Decision::Maybe(fragment) => {
                if self.kept.len() >= KEPT_FRAGMENTS {
                    self.kept.pop_front();
                    self.forgotten_fragments += 1;
                }
                // It may wait for long: its bucket is not held for it.
                let bytes = Bytes::Copied(packet.data.into());
                let meta = self.meta(packet, found, interface);
                self.kept
                    .push_back((fragment, WaitingPacket { meta, bytes }));
            }
        }
        if let Some(fragment) = answer.resolves {
            self.resolve(fragment, names);
        }
    }

    /// A first fragment came: what was kept aside for it is decided now.
    fn resolve(&mut self, fragment: FragmentKey, names: &mut InterfaceCache) {
        if !self.kept.iter().any(|(key, _)| *key == fragment) {
            return;
        }
        for (key, kept) in std::mem::take(&mut self.kept) {
            if key != fragment {
                self.kept.push_back((key, kept));
            } else if let Some(interface) = names.interface(kept.meta.interface) {
                let offset_ns = kept.meta.stamp_ns.wrapping_sub(kept.meta.key.time_ns);
                let predicate = &mut self.order.predicate;
                let answer = predicate.decide(interface, &kept.packet(), offset_ns);
                if answer.decision == Decision::Take {
                    self.wait(kept);
                }
            }
        }
    }

    /// Later fragments that may belong to the dump, of datagrams whose first fragment came when they were given up, or came and
    /// was forgotten, or may have come in a bucket before the window, or behind its end.
    fn undecided_fragments(&self) -> u64 {
        let forgot_first = self.order.predicate.has_forgotten_fragments();
        let start_ns = self.order.from_ns.saturating_add(DATAGRAM_NS);
        let end_ns = self.order.to_ns.saturating_sub(DATAGRAM_NS);
        let may_be = |kept: &&(FragmentKey, WaitingPacket)| {
            let time_ns = kept.1.meta.key.time_ns;
            forgot_first || time_ns < start_ns || time_ns > end_ns
        };
        let waiting = self.kept.iter().filter(may_be).count();
        self.forgotten_fragments + waiting as u64
    }

    /// Asks its own reading what was overwritten before it was read; whether anything was.
    pub(super) fn ask_what_fell(&mut self) -> bool {
        let Some(reading) = self.reading.as_mut().filter(|reading| reading.has_fallen()) else {
            return false;
        };
        let lost = reading.lost();
        self.lose(&lost);
        !lost.is_none()
    }

    /// Buckets were overwritten: what of the window was not looked at is missing.
    pub(super) fn lose(&mut self, lost: &Lost) {
        for (bucket, skip) in &lost.buckets {
            if self.end(bucket.producer) > bucket.first + u64::from(*skip) {
                self.lose_of(bucket, *skip);
            }
        }
        let unknown_ns = lost.unknown_before_ns;
        if let Some(unknown_ns) = unknown_ns.filter(|ns| *ns >= self.order.from_ns) {
            self.lose_unknown(unknown_ns);
        }
    }

    fn lose_of(&mut self, bucket: &EvictedBucket, skip: u32) {
        let (from_ns, to_ns) = (self.order.from_ns, self.order.to_ns);
        let count = bucket.count_in(from_ns, to_ns, skip);
        // An estimate of none is no promise that there was none.
        if count.packets == 0 && count.exact {
            return;
        }
        let lost = &mut self.lost;
        lost.packets += count.packets;
        lost.exact &= count.exact;
        if let Some((first_ns, last_ns)) = bucket.span_in(from_ns, to_ns) {
            lost.first_ns = Some(lost.first_ns.map_or(first_ns, |ns| ns.min(first_ns)));
            lost.last_ns = Some(lost.last_ns.map_or(last_ns, |ns| ns.max(last_ns)));
        }
    }

    /// Reserved buckets were overwritten and forgotten, with packets up to this time.
    fn lose_unknown(&mut self, before_ns: i64) {
        let lost = &mut self.lost;
        lost.exact = false;
        lost.unknown_before_ns = lost.unknown_before_ns.max(Some(before_ns));
        lost.last_ns = lost.last_ns.max(Some(before_ns));
        lost.first_ns = lost.first_ns.or(Some(self.order.from_ns));
    }

    /// The dump fails: packets that were taken and never reached the disk are lost.
    pub(super) fn fail(&mut self, mut failure: Failure) {
        let taken: u64 = self.per_interface.values().sum();
        failure.lost = taken.saturating_sub(failure.safe.packets);
        self.file = Err(Box::new(failure));
    }

    /// Hands what was pushed to the file system. Returns what is taken, or safe of a dump that failed.
    pub(super) fn flush(&mut self) -> Written {
        if let Ok(file) = &mut self.file
            && let Err(error) = file.flush()
        {
            let failure = Failure::of(file, &error, self.order.to_ns);
            self.fail(failure);
        }
        self.written()
    }

    /// Completes the file; `None`: the dump has failed.
    pub(super) fn finish(
        &mut self,
        close: &CloseOrder,
        verdict: &str,
        intake: &Intake,
        names: &mut InterfaceCache,
    ) -> Option<FinishedFile> {
        let Ok(file) = &mut self.file else {
            return None;
        };
        let (per_interface, offset_ns) = (&self.per_interface, self.order.offset_ns);
        let totals = |id: u16| {
            let (received, dropped) = match &close.received {
                Some(received) => (
                    Some(received.get(usize::from(id)).copied().unwrap_or(0)),
                    Some(0),
                ),
                None => intake.interface_totals(id),
            };
            InterfaceTotals {
                start_ns: close.start_ns.saturating_add(offset_ns),
                end_ns: close.clock_ns.saturating_add(offset_ns),
                received,
                dropped,
                written: per_interface.get(&id).copied().unwrap_or(0),
            }
        };
        match file.finish(verdict, &totals, names) {
            Ok(finished) => Some(finished),
            Err(error) => {
                let (parts, safe) = (file.parts(), file.safe());
                self.fail(Failure::new(error.to_string(), parts, safe, close.clock_ns));
                None
            }
        }
    }

    /// Packets that are, or will be, in the file.
    fn written(&self) -> Written {
        match &self.file {
            Ok(file) => file.taken(),
            Err(failure) => failure.safe,
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
        intake: &Intake,
        clock: &RingClock,
    ) -> DumpReport {
        let (order, written) = (&self.order, self.written());
        let failure = self.file.as_ref().err();
        let mut files = failure.map_or(Vec::new(), |f| f.parts.clone()).into_iter();
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
            file: files.next().unwrap_or_default(),
            more_files: files.collect(),
            rule: order.rule.clone(),
            trigger_time: stamp(order.trigger_ns),
            from: stamp(order.from_ns),
            to: stamp(order.to_ns),
            packets: written.packets,
            bytes: written.bytes,
            verdict: Verdict::Complete,
            clipped,
            missing: self.missing(close, written.restamped, intake),
            error: failure.map(|f| f.error.clone()),
            notes: clock.within(order.from_ns, order.to_ns),
            is_stepped: false,
            is_disordered: false,
            offset_ns: order.offset_ns,
            losses_unknown: intake.unknown_losses(),
            not_analyzed: close.unseen,
            number: self.number,
            trigger_ns: order.trigger_ns,
            span_ns: written.first_ns.zip(written.last_ns),
            sidecar: false,
        };
        report.is_stepped = !report.notes.is_empty();
        report.notes.extend(order.predicate.notes());
        report.notes.extend(order.predicate.fault());
        report.notes.extend_from_slice(&report.losses_unknown);
        report.notes.extend(intake.foreign_clocks());
        let disorder = intake.disorder(order.from_ns, order.to_ns, &close.ends);
        report.is_disordered = !disorder.is_empty();
        report.notes.extend(disorder);
        report.judge();
        report
    }

    /// What nobody knows yet about the losses of its window.
    pub(super) fn unknown(&self, close: &CloseOrder, intake: &Intake) -> Vec<Missing> {
        let window_ns = (self.order.from_ns, self.order.to_ns);
        intake.unknown(window_ns, close.clock_ns, self.order.offset_ns)
    }

    fn missing(&self, close: &CloseOrder, restamped: u64, intake: &Intake) -> Vec<Missing> {
        let order = &self.order;
        let offset_ns = order.offset_ns;
        let stamp = |ring_ns: i64| ring_ns.saturating_add(offset_ns);
        let entry = |cause, from_ns: i64, to_ns: i64, packets| {
            Missing::new(cause, stamp(from_ns), stamp(to_ns), packets)
        };
        let mut missing = Vec::new();
        let is_refused = |link_type| order.predicate.is_refused(link_type);
        if order.predicate.fault().is_some() || order.made_for.is_some_and(is_refused) {
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
        let window_ns = (order.from_ns, order.to_ns);
        missing.extend(intake.missing(window_ns, close.clock_ns, offset_ns, &close.ends));
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
        if let Err(failure) = &self.file {
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
    ) -> SidecarFacts {
        let interfaces = self.file.as_ref().map_or(Vec::new(), DumpFile::interfaces);
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
