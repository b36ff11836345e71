//! A dump that reads the ring: its window, waiting packets and losses.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, atomic::Ordering},
};

use retroscope_filter::Decision;
use retroscope_packet::FragmentKey;
use retroscope_ring::{BucketInfo, BucketView, Evicted, EvictedBucket, Packet};

use super::{
    dump_alerts::DumpAlerts,
    encode::InterfaceTotals,
    ending::{Completion, DumpEnding, Stage},
    fragments::KeptFragments,
    order::{CloseOrder, DATAGRAM_NS, DumpOrder},
    output::WrittenTotals,
    packet::{PacketKey, PacketMeta},
    pool::SinkQueue,
    reading::{OverwrittenBuckets, WindowReading},
    report::{DumpReport, Missing, Verdict},
    sidecar::{SidecarFacts, TriggerPacket},
    sink::PacketGap,
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
        interfaces::{InterfaceCache, RecordedInterface},
        marks::Marks,
    },
};

/// A dump before it becomes a [`DumpEnding`]: it reads the ring and gives packets to its sink.
#[derive(Debug)]
pub(super) struct ActiveDump {
    pub(super) order: DumpOrder,
    /// The alerts that belong to the dump.
    pub(super) alerted: DumpAlerts,
    /// Marks the flows of the dump's packets as exempt from shedding. `None`: no marks.
    pub(super) marks: Option<Arc<Marks>>,
    /// End of the window, ns of ring time. If the dump is full: an earlier time.
    pub(super) end_ns: i64,
    /// While the dump's filter is being compiled, the dump reads nothing.
    pub(super) is_compiling: bool,
    /// The queue to the threads that write the dump's files.
    pub(super) sink: SinkQueue,
    /// The interface that a pcapng file describes before its first packet.
    pub(super) interface: Option<u16>,
    /// The packet that triggered the dump. `None`: a command or an alert triggered the dump.
    pub(super) trigger_packet: Option<TriggerPacket>,
    /// The dump's own reading position while the dump catches up (see
    /// [`Dumps`](super::dumps::Dumps)).
    pub(super) reading: Option<WindowReading>,
    /// Packets of this ring time, ns, and later may be missing among the waiting packets.
    /// `i64::MAX`: no needed record was skipped.
    pub(super) unread_ns: i64,
    /// Latest ring time, ns, of a packet that the sink got. A packet that was given ahead of its
    /// turn counts as older.
    pub(super) reached_ns: i64,
    pub(super) waiting: Vec<WaitingPacket>,
    /// While the sink has room: no waiting packet has an older ring time, ns.
    pub(super) oldest_ns: i64,
    /// The value of [`Self::due_ns`] under which [`Dumps`](super::dumps::Dumps) lists the dump.
    pub(super) listed_ns: i64,
    /// The sink had no room for the next packet.
    pub(super) is_stalled: bool,
    /// [`Dumps`](super::dumps::Dumps) lists the dump among those that changed.
    pub(super) is_changed: bool,
    /// Later fragments that wait for their first fragment.
    pub(super) kept: KeptFragments,
    /// Packets of the window that were lost before the sink got them: overwritten, or dropped for
    /// lack of room.
    pub(super) lost: Evicted,
    /// Whether packets of the window were, or may have been, overwritten before the dump was
    /// opened.
    pub(super) is_start_lost: bool,
    /// The loss since the dump was opened that the sink does not know yet, and the ring time, ns,
    /// at which the loss begins.
    pub(super) gap: Option<(i64, PacketGap)>,
    /// Packets of the window that were found after the dump had reached its limit.
    pub(super) late_after_full: u64,
    /// Packets and bytes that the dump gave to the sink.
    pub(super) taken: WrittenTotals,
    pub(super) per_interface: BTreeMap<u16, u64>,
    /// Bytes that were reported to the director: captured bytes, and an overhead for each packet.
    pub(super) reported_bytes: u64,
    pub(super) close: Option<CloseOrder>,
    /// From this time of the monotonic clock, ns, the verdict does not wait for loss counters.
    pub(super) judge_by_ns: Option<i64>,
}

/// A packet that waits for its turn, or a later fragment that waits for its first fragment.
#[derive(Debug)]
pub(super) struct WaitingPacket {
    pub(super) meta: PacketMeta,
    pub(super) bytes: Bytes,
}

#[derive(Debug)]
pub(super) enum Bytes {
    /// The packet is still in its bucket, which stays held.
    Ring(Arc<BucketView>, u32),
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
            shard: 0,
            data: self.bytes.data(),
        }
    }
}

fn end(ends: &[u64], producer: usize) -> u64 {
    ends.get(producer).copied().unwrap_or(0)
}

/// The verdict, as the text of a capture file's comment.
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

/// The place of a packet in the ring.
#[derive(Debug, Clone, Copy)]
pub(super) struct RecordLocation<'v> {
    pub(super) view: &'v Arc<BucketView>,
    pub(super) index: u32,
    pub(super) producer: usize,
    pub(super) record: u64,
    /// The packet's stamp minus its ring time, ns.
    pub(super) offset_ns: i64,
}

impl ActiveDump {
    /// Number of records of a bucket, from its first, that are within reach and before the dump's
    /// end. May exceed the records of the bucket.
    pub(super) fn limit(&self, info: &BucketInfo, reach: &Reach) -> u32 {
        let end = records_before(self.end(info.producer), info);
        end.min(reach.limit_in(info))
    }

    /// The first record of a producer that no longer belongs to the dump.
    pub(super) fn end(&self, producer: usize) -> u64 {
        let close = self.close.as_ref();
        close.map_or(u64::MAX, |close| end(&close.ends, producer))
    }

    /// Whether the window is closed and wholly within reach.
    pub(super) fn is_over(&self, reach: &Reach) -> bool {
        (self.close.as_ref()).is_some_and(|close| reach.covers(&close.ends))
    }

    /// False if the sink had no room when the dump last tried.
    pub(super) fn has_room(&self) -> bool {
        !self.is_stalled
    }

    /// Whether the dump can read further.
    pub(super) fn can_read(&self) -> bool {
        !self.is_compiling && self.has_room()
    }

    /// Whether the dump still reads in this pass. If not, packets from `unread_ns` on may stay
    /// unread.
    pub(super) fn reads_on(&mut self, unread_ns: i64) -> bool {
        if self.is_full() {
            return false;
        }
        let is_reading = self.reading.is_none() || self.unread_ns == i64::MAX && self.has_room();
        if !is_reading {
            self.leave_unread(unread_ns);
            if let Some(reading) = &self.reading {
                reading.set_yielding();
            }
        }
        is_reading
    }

    /// Notes that packets of this ring time, ns, and later may stay unread.
    pub(super) fn leave_unread(&mut self, from_ns: i64) {
        self.unread_ns = self.unread_ns.min(from_ns).min(i64::MAX - 1);
    }

    /// Lower bound on the ring times of the packets to write, ns. `i64::MAX`: no packet waits, or
    /// the sink has no room.
    pub(super) fn due_ns(&self) -> i64 {
        if self.waiting.is_empty() || !self.has_room() {
            i64::MAX
        } else {
            self.oldest_ns.min(i64::MAX - 1)
        }
    }

    fn wait(&mut self, packet: WaitingPacket) {
        if self.is_full() {
            self.late_after_full += 1;
            return;
        }
        self.oldest_ns = packet.meta.key.time_ns.min(self.oldest_ns);
        self.waiting.push(packet);
    }

    /// Whether this ring time is in the window.
    pub(super) fn wants(&self, time_ns: i64) -> bool {
        (self.order.from_ns..=self.end_ns).contains(&time_ns)
    }

    /// Adds a packet to the waiting packets, if it is in the window and, for the dump of an alert,
    /// in the alert's scope. A full dump only counts the packet.
    pub(super) fn take(
        &mut self,
        packet: &Packet<'_>,
        found: RecordLocation<'_>,
        interface: &RecordedInterface,
    ) {
        let is_it = self.wants(packet.time_ns);
        if is_it && self.order.predicate.keeps(interface, packet.data) {
            if let Some(marks) = &self.marks
                && !self.is_full()
            {
                marks.exempt_dumped(interface.link_type, packet.data);
            }
            let bytes = Bytes::Ring(Arc::clone(found.view), found.index);
            let meta = self.meta(packet, found, interface);
            self.wait(WaitingPacket { meta, bytes });
        }
    }

    fn meta(
        &self,
        packet: &Packet<'_>,
        found: RecordLocation<'_>,
        interface: &RecordedInterface,
    ) -> PacketMeta {
        let key = PacketKey {
            time_ns: packet.time_ns,
            source: interface.source,
            producer: found.producer,
            record: found.record,
        };
        let place = (key.producer, key.record);
        let trigger = self.order.trigger;
        let stamp_ns = packet.time_ns.wrapping_add(found.offset_ns);
        PacketMeta {
            key,
            stamp_ns,
            wire_len: packet.wire_len,
            interface: packet.interface,
            direction: packet.direction,
            is_trigger: trigger.is_some_and(|(producer, record, _)| (producer, record) == place),
        }
    }

    /// Runs the filter on a packet. A first fragment [shortly before](DumpOrder::looks_from_ns) the
    /// window can decide about later fragments in the window.
    pub(super) fn ask(
        &mut self,
        packet: &Packet<'_>,
        found: RecordLocation<'_>,
        interface: &RecordedInterface,
        names: &mut InterfaceCache,
    ) {
        // A visit for other dumps may read packets outside of this range, which must not change
        // the state of this dump's filter.
        if !(self.order.looks_from_ns()..=self.end_ns).contains(&packet.time_ns) {
            return;
        }
        let offset_ns = found.offset_ns;
        let answer = self.order.predicate.decide(interface, packet, offset_ns);
        match answer.decision {
            _ if !self.wants(packet.time_ns) => {}
            Decision::Skip => {}
            Decision::Take => self.take(packet, found, interface),
            Decision::Maybe(fragment) => {
                // A copy: the fragment may wait for long, and must not hold its bucket.
                let bytes = Bytes::Copied(packet.data.into());
                let meta = self.meta(packet, found, interface);
                self.kept.keep(fragment, WaitingPacket { meta, bytes });
            }
        }
        if let Some(fragment) = answer.resolves {
            self.resolve(fragment, names);
        }
    }

    /// Decides about the kept fragments of a datagram, whose first fragment has arrived.
    fn resolve(&mut self, fragment: FragmentKey, names: &mut InterfaceCache) {
        for kept in self.kept.take(fragment) {
            if let Some(interface) = names.interface(kept.meta.interface) {
                let offset_ns = kept.meta.stamp_ns.wrapping_sub(kept.meta.key.time_ns);
                let predicate = &mut self.order.predicate;
                let answer = predicate.decide(interface, &kept.packet(), offset_ns);
                if answer.decision == Decision::Take {
                    self.wait(kept);
                }
            }
        }
    }

    /// Number of later fragments that may belong to the dump: fragments without room, and kept
    /// fragments whose first fragment the filter may have missed or forgotten.
    fn undecided_fragments(&self) -> u64 {
        let forgot_first = self.order.predicate.has_forgotten_fragments();
        let start_ns = self.order.from_ns.saturating_add(DATAGRAM_NS);
        let end_ns = self.end_ns.saturating_sub(DATAGRAM_NS);
        let may_be = |kept: &&WaitingPacket| {
            let time_ns = kept.meta.key.time_ns;
            forgot_first || time_ns < start_ns || time_ns > end_ns
        };
        self.kept.forgotten + self.kept.iter().filter(may_be).count() as u64
    }

    /// Counts packets that were overwritten before the dump's own reading. Returns whether packets
    /// were, or may have been, lost.
    pub(super) fn ask_what_fell(&mut self) -> bool {
        let Some(reading) = &mut self.reading else {
            return false;
        };
        let lost = reading.lost();
        self.lose(&lost);
        !lost.is_none()
    }

    /// Counts the unread packets of overwritten buckets that are, or may be, in the window as
    /// missing.
    pub(super) fn lose(&mut self, lost: &OverwrittenBuckets) {
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
        let (from_ns, to_ns) = (self.order.from_ns, self.end_ns);
        let count = bucket.count_in(from_ns, to_ns, skip);
        if count.packets == 0 {
            return;
        }
        self.miss(count.packets, count.exact, bucket.span_in(from_ns, to_ns));
    }

    /// Notes that the ring may have overwritten and forgotten reserved buckets, with packets up to
    /// this ring time, ns.
    fn lose_unknown(&mut self, before_ns: i64) {
        let lost = &mut self.lost;
        lost.unknown_before_ns = lost.unknown_before_ns.max(Some(before_ns));
        self.miss(0, false, Some((self.order.from_ns, before_ns)));
    }

    /// Counts packets of the window that the sink does not get.
    fn miss(&mut self, packets: u64, is_exact: bool, span_ns: Option<(i64, i64)>) {
        let lost = &mut self.lost;
        lost.packets += packets;
        lost.exact &= is_exact;
        let Some((first_ns, last_ns)) = span_ns else {
            return;
        };
        lost.first_ns = Some(lost.first_ns.map_or(first_ns, |ns| ns.min(first_ns)));
        lost.last_ns = Some(lost.last_ns.map_or(last_ns, |ns| ns.max(last_ns)));
        let stamp = |ring_ns: i64| ring_ns.saturating_add(self.order.offset_ns);
        let here = PacketGap {
            packets: (packets > 0).then_some(packets),
            is_exact,
            from_ns: stamp(first_ns),
            to_ns: stamp(last_ns),
        };
        self.gap = Some(match self.gap {
            Some((before_ns, gap)) => (before_ns.min(first_ns), gap.with(here)),
            None => (first_ns, here),
        });
    }

    /// Gives a packet to the sink. Returns false if the sink has no room.
    pub(super) fn put(&mut self, packet: &WaitingPacket, names: &mut InterfaceCache) -> bool {
        let (mut meta, data) = (packet.meta, packet.bytes.data());
        if !self.sink.has_room(data.len()) {
            return false;
        }
        if let Some((_, gap)) = self.gap.take_if(|gap| gap.0 <= meta.key.time_ns) {
            self.sink.gap(&gap);
        }
        let packets = self.per_interface.entry(meta.interface).or_default();
        let is_first = *packets == 0;
        *packets += 1;
        let described = names.interface(meta.interface);
        if let (true, Some(packet), Some(at)) =
            (meta.is_trigger, &mut self.trigger_packet, described)
        {
            packet.see(at.link_type, data, meta.wire_len);
        }
        if let Some(at) = described {
            meta.is_trigger |= self.alerted.write(&meta, at.link_type, data);
        }
        if let Some(interface) = described.filter(|_| is_first) {
            self.sink.interface(meta.interface, interface);
        }
        self.sink.packet(&meta, data);
        let is_held = self.sink.format.holds(meta.stamp_ns);
        self.taken.count(&meta, data, is_held);
        true
    }

    /// Counts packets as lost that the dumper drops to free their buckets.
    pub(super) fn let_go(&mut self, packets: &[WaitingPacket]) {
        let times = packets.iter().map(|packet| packet.meta.key.time_ns);
        if let Some(span_ns) = times.clone().min().zip(times.max()) {
            self.miss(packets.len() as u64, true, Some(span_ns));
        }
    }

    /// Whether the dump has reached its limit of packets or bytes.
    pub(super) fn is_full(&self) -> bool {
        let WrittenTotals { packets, bytes, .. } = self.taken;
        self.order.window.is_full(packets, bytes)
    }

    /// Ends the window of a full dump at `end_ns`, and drops the waiting packets.
    pub(super) fn end_early(&mut self, end_ns: i64) {
        self.end_ns = end_ns;
        let lost = &mut self.lost;
        if lost.exact && lost.first_ns.is_some_and(|ns| ns > end_ns) {
            lost.packets = 0;
        }
        self.waiting.clear();
        self.oldest_ns = i64::MAX;
        self.kept.drop_after(end_ns);
        (self.unread_ns, self.is_stalled) = (i64::MAX, false);
        if let Some(reading) = &self.reading {
            reading.narrow(self.order.looks_from_ns(), end_ns);
        }
    }

    /// Flushes the sink. Returns what the sink was given, or, if it has failed, what is safely in
    /// the file. The flag is the result of [`SinkQueue::flush`].
    pub(super) fn flush(&mut self) -> (WrittenTotals, bool) {
        let is_flushed = self.sink.flush();
        let fault = self.sink.fault.as_ref();
        let written = fault.map_or(self.taken, |fault| fault.held.safe);
        (written, is_flushed)
    }

    /// The counters of the interfaces that the files may describe.
    pub(super) fn totals(
        &self,
        close: &CloseOrder,
        intake: &Intake,
    ) -> BTreeMap<u16, InterfaceTotals> {
        let offset_ns = self.order.offset_ns;
        let totals = |id: u16| {
            let (received, dropped) = match &close.received {
                Some(received) => (
                    Some(received.get(usize::from(id)).copied().unwrap_or(0)),
                    Some(0),
                ),
                None => intake.interface_totals(id),
            };
            let totals = InterfaceTotals {
                start_ns: close.start_ns.saturating_add(offset_ns),
                end_ns: close.clock_ns.saturating_add(offset_ns),
                received,
                dropped,
                written: self.per_interface.get(&id).copied().unwrap_or(0),
            };
            (id, totals)
        };
        let described = self.per_interface.keys().chain(&self.interface);
        described.copied().map(totals).collect()
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
            late: None,
        }
    }

    /// Ends the reading: only the sink has work left.
    pub(super) fn into_ending(
        mut self,
        close: CloseOrder,
        stage: Stage,
        intake: &Intake,
        clock: &RingClock,
    ) -> DumpEnding {
        let mut draft = self.draft(&close, intake, clock);
        self.judge_alerts(&close, &mut draft);
        let offset_ns = self.order.offset_ns;
        let stamp = |ring_ns: &i64| ring_ns.saturating_add(offset_ns);
        let suppressed = close.suppressed;
        DumpEnding {
            rule_number: self.order.rule_number,
            stage,
            draft,
            taken: self.taken,
            per_interface: self.per_interface,
            window: (self.order.from_ns, self.end_ns),
            sink: self.sink,
            completion: Completion::default(),
            facts: SidecarFacts {
                alerts: self.alerted.entries(),
                expression: self.order.expression,
                trigger_packet: self.trigger_packet,
                suppressed: suppressed.count,
                suppressed_hits: suppressed.times_ns.iter().map(stamp).collect(),
                suppressed_before: suppressed.before,
            },
            alerted: self.alerted,
        }
    }

    /// The report, without the parts that depend on the sink.
    fn draft(&self, close: &CloseOrder, intake: &Intake, clock: &RingClock) -> DumpReport {
        let order = &self.order;
        let stamp = |ring_ns: i64| rfc3339(ring_ns.saturating_add(order.offset_ns));
        let mut clipped = Vec::new();
        if close.start_ns > order.from_ns && !self.is_start_lost {
            clipped.push("start");
        }
        match close.clipped {
            _ if self.is_full() => clipped.push("limit"),
            Some(Clip::Stop) => clipped.push("stop"),
            Some(Clip::End) => clipped.push("end"),
            Some(Clip::Flow(_)) => clipped.push("flow"),
            None => {}
        }
        let mut report = DumpReport {
            id: String::new(),
            file: PathBuf::new(),
            more_files: Vec::new(),
            locations: Vec::new(),
            rule: order.rule.clone(),
            rule_name: order.rule_name.as_deref().map(str::to_owned),
            asked_by: order.asked_by.as_deref().map(str::to_owned),
            caller: order.caller.as_deref().map(str::to_owned),
            reason: order.reason.as_deref().map(str::to_owned),
            trigger_time: stamp(order.trigger_ns),
            from: stamp(order.from_ns),
            to: stamp(order.to_ns),
            packets: 0,
            bytes: 0,
            verdict: Verdict::Complete,
            clipped,
            missing: self.missing(close, intake),
            error: None,
            notes: clock.within(order.from_ns, self.end_ns),
            is_stepped: false,
            is_disordered: false,
            offset_ns: order.offset_ns,
            expression: order.expression.clone(),
            files: Vec::new(),
            losses_unknown: intake.unknown_losses(),
            replaced: Vec::new(),
            not_analyzed: close.unseen,
            number: order.id,
            trigger_ns: order.trigger_ns,
            span_ns: None,
            sidecar: false,
        };
        report.is_stepped = !report.notes.is_empty();
        report.notes.extend(order.predicate.notes());
        report.notes.extend(order.predicate.fault());
        report.notes.extend_from_slice(&report.losses_unknown);
        report.notes.extend(intake.foreign_clocks());
        let disorder = intake.disorder(order.from_ns, self.end_ns, &close.ends);
        report.is_disordered = !disorder.is_empty();
        report.notes.extend(disorder);
        report
    }

    /// Sources whose losses within the window are unknown, at least until their counters are read
    /// again.
    pub(super) fn unknown(&self, close: &CloseOrder, intake: &Intake) -> Vec<Missing> {
        let window_ns = (self.order.from_ns, self.end_ns);
        intake.unknown(window_ns, close.clock_ns, self.order.offset_ns)
    }

    fn missing(&self, close: &CloseOrder, intake: &Intake) -> Vec<Missing> {
        let (order, offset_ns) = (&self.order, self.order.offset_ns);
        let stamp = |ring_ns: i64| ring_ns.saturating_add(offset_ns);
        let entry = |cause, from_ns: i64, to_ns: i64, packets| {
            Missing::new(cause, stamp(from_ns), stamp(to_ns), packets)
        };
        let mut missing = Vec::new();
        let is_refused = |link_type| order.predicate.is_refused(link_type);
        if order.predicate.fault().is_some() || order.made_for.is_some_and(is_refused) {
            missing.push(entry("script", order.from_ns, self.end_ns, None));
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
            let counted = lost.exact.then_some(lost.packets);
            let mut evicted = entry("evicted", first_ns, last_ns.min(self.end_ns), counted);
            // Without the time of each packet only an upper bound is known.
            evicted.at_most = (is_all_known && !lost.exact).then_some(lost.packets);
            missing.push(evicted);
        }
        let window_ns = (order.from_ns, self.end_ns);
        missing.extend(intake.missing(window_ns, close.clock_ns, offset_ns, &close.ends));
        let after_close = close.late.as_ref();
        let after_close = after_close.map_or(0, |late| late.load(Ordering::Relaxed));
        if self.late_after_full + after_close > 0 {
            let counted = (after_close == 0).then_some(self.late_after_full);
            let mut late = entry("late", order.from_ns, self.end_ns, counted);
            late.at_most = (after_close > 0).then_some(self.late_after_full + after_close);
            missing.push(late);
        }
        let fragments = self.undecided_fragments();
        if fragments > 0 {
            let (from_ns, to_ns) = (stamp(order.from_ns), stamp(self.end_ns));
            missing.push(Missing::at_most("fragments", from_ns, to_ns, fragments));
        }
        missing
    }
}
