//! One queue on its way into the ring.

use std::{ops::Range, sync::Arc, time::Duration};

use retroscope_capture::{Burst, Queue, QueueStatus, SourceError, SourceEvent, TimeDomain};
use retroscope_ring::{Producer, RingError};

use super::{
    frame_writer::{FrameWriter, together},
    host::{HostStamps, StampAction},
    parts::{InserterParts, KnownInterface, SOURCE_WAIT},
    sequence::Misplaced,
    step_lookahead::{FrameStep, StepLookahead},
};
use crate::{
    control::{
        ring_time::{Moment, clock_of},
        time::{rfc3339, seconds},
    },
    intake::{
        counters::{
            CLOCK_STEP, EngineReading, LOST_INTERFACE_LIMIT, LOST_NO_BUCKET, LossWatch,
            QueueCounters, SHED_BY,
        },
        inline::InHand,
    },
};

/// A queue and its state at intake.
#[derive(Debug)]
pub(crate) struct QueueIntake {
    /// A copy for this queue. From files, the inserter lends the filter while frames are stored.
    pub(super) parts: InserterParts,
    pub(super) queue: Box<dyn Queue>,
    pub(super) source: usize,
    pub(super) counters: Arc<QueueCounters>,
    /// The queue's interfaces. Frames of other interfaces are lost.
    interfaces: Vec<KnownInterface>,
    /// Whether interface numbers are used up.
    is_full: bool,
    pub(super) writer: FrameWriter,
    watch: LossWatch,
    /// If the stamps are from another clock: the smallest distance, ns, by which they were ahead of
    /// the system's clock since the last reading of counters.
    ahead_ns_min: i64,
    stamps: ToRingTime,
    /// The next frame of the burst.
    pub(super) cursor: usize,
    /// Whether this is the first queue of its source. Only the first queue reports changes of the
    /// interface.
    is_first: bool,
    /// The error that ended the queue.
    pub(super) error: Option<SourceError>,
    /// Messages for the user that were not taken yet.
    pub(super) notices: Vec<String>,
}

#[derive(Debug)]
enum ToRingTime {
    /// Stamps are ring time already.
    Steady,
    /// The stamps are from, converted to, or in agreement with the system's clock.
    Host(HostStamps),
    /// The stamps of a file, or of another clock, judged by their sequence.
    Judged(StepLookahead),
}

impl ToRingTime {
    fn of(queue: &dyn Queue, parts: &InserterParts) -> Self {
        let offline = parts.common.intake.offline;
        match queue.interfaces().first().map(|it| it.time_domain) {
            Some(TimeDomain::Generator) => Self::Steady,
            Some(TimeDomain::KernelSoftware | TimeDomain::Fetch | TimeDomain::Nic) => {
                Self::Host(HostStamps::new(0))
            }
            Some(TimeDomain::File | TimeDomain::Foreign) | None => {
                Self::Judged(StepLookahead::new(parts.hold_ns, offline))
            }
        }
    }
}

impl QueueIntake {
    pub(crate) fn of_all(
        sources: Vec<Vec<Box<dyn Queue>>>,
        parts: &InserterParts,
    ) -> Result<Vec<Self>, RingError> {
        let mut intakes = Vec::new();
        for (source, queues) in sources.into_iter().enumerate() {
            let counters = &parts.common.intake.sources[source].queues;
            for (queue, counters) in queues.into_iter().zip(counters) {
                intakes.push(Self::new(queue, source, Arc::clone(counters), parts)?);
            }
        }
        Ok(intakes)
    }

    /// Registers the queue's interfaces under `source`.
    pub(crate) fn new(
        queue: Box<dyn Queue>,
        source: usize,
        counters: Arc<QueueCounters>,
        parts: &InserterParts,
    ) -> Result<Self, RingError> {
        counters.set_promises(queue.promises_watermark());
        if parts.classes.is_some() {
            counters.set_sheds();
        }
        let stamps = ToRingTime::of(queue.as_ref(), parts);
        let start_ns = parts.common.clock.now().ring_ns;
        let watch = LossWatch::new(source, start_ns);
        let first = parts.common.intake.sources[source].queues.first();
        let is_first = first.is_none_or(|first| Arc::ptr_eq(first, &counters));
        let mut intake = Self {
            parts: parts.clone(),
            queue,
            source,
            counters,
            interfaces: Vec::new(),
            is_full: false,
            writer: FrameWriter {
                source,
                ..FrameWriter::default()
            },
            watch,
            ahead_ns_min: 0,
            stamps,
            cursor: 0,
            is_first,
            error: None,
            notices: Vec::new(),
        };
        intake.register()?;
        Ok(intake)
    }

    /// Whether a thread can serve this queue together with others. Without the queue's watermark, a
    /// shared producer would have no watermark either.
    pub(crate) fn can_share_thread(&self) -> bool {
        self.queue.wait_terms().is_some() && self.queue.promises_watermark()
    }

    pub(crate) fn source_name(&self) -> &str {
        &self.parts.common.intake.sources[self.source].name
    }

    /// Registers new interfaces. Fails once, when there are too many.
    fn register(&mut self) -> Result<(), RingError> {
        while !self.is_full
            && let Some(info) = self.queue.interfaces().get(self.interfaces.len())
        {
            let mut info = info.clone();
            if info.name.is_empty() {
                // A classic pcap has no interface name.
                info.name = file_name(&self.parts.common.intake.sources[self.source].name);
            }
            let interfaces = &self.parts.common.intake.interfaces;
            let registered = interfaces.register(&self.parts.common.ring, self.source, &info);
            self.is_full = registered.is_err();
            let id = registered?;
            let link_type = info.link_type;
            self.interfaces.push(KnownInterface { id, link_type });
        }
        Ok(())
    }

    /// All frames of the previous burst must be processed before.
    pub(super) fn fetch(&mut self, wait: Duration) -> QueueStatus {
        if let ToRingTime::Judged(ahead) = &mut self.stamps {
            ahead.fetched();
        }
        self.cursor = 0;
        let fetched = self.queue.next(wait);
        self.fetched(fetched)
    }

    /// Keeps an error, which ends the queue, and registers new interfaces.
    fn fetched(&mut self, fetched: Result<QueueStatus, SourceError>) -> QueueStatus {
        let status = fetched.unwrap_or_else(|error| {
            self.error = Some(error);
            QueueStatus::End
        });
        if let Err(error) = self.register() {
            self.notices.push(error.to_string());
        }
        status
    }

    /// The source had no packets at this time of the monotonic clock.
    pub(super) fn set_dry(&mut self, mono_ns: i64) {
        if let ToRingTime::Host(host) = &mut self.stamps {
            host.dry_mono_ns = mono_ns;
        }
    }

    pub(super) fn fetch_ahead(&mut self) -> QueueStatus {
        let ToRingTime::Judged(ahead) = &mut self.stamps else {
            return self.fetch(SOURCE_WAIT);
        };
        let (cursor, fetched) = ahead.extend(self.queue.as_mut(), self.cursor);
        self.cursor = cursor;
        self.fetched(fetched)
    }

    /// No frames follow: the waiting frames are late.
    pub(super) fn give_up_ahead(&mut self) {
        if let ToRingTime::Judged(ahead) = &mut self.stamps {
            ahead.give_up();
        }
    }

    /// The lent frames; the frames before `cursor` are done.
    pub(super) fn burst(&self) -> Burst<'_> {
        match &self.stamps {
            ToRingTime::Judged(ahead) => ahead.burst(self.queue.as_ref()),
            _ => self.queue.burst(),
        }
    }

    /// How long the first lent frame was at the source, by its stamp, ns; 0 without a frame.
    pub(super) fn queueing_delay_ns(&self, now: Moment) -> i64 {
        let first = self.burst().frames.first();
        let now_ns = now.ring_ns.saturating_add(now.offset_ns);
        first.map_or(0, |first| now_ns.saturating_sub(first.time_ns))
    }

    /// The frames to store next, all with the offset that applies from now on. Empty: no frames, or
    /// later frames must decide first.
    pub(super) fn part(&mut self, producer: &mut Producer, now: Moment) -> Range<usize> {
        loop {
            let cursor = self.cursor;
            let frames = self.burst().frames.len();
            if cursor == frames {
                return cursor..cursor;
            }
            match &mut self.stamps {
                ToRingTime::Steady => return cursor..frames,
                ToRingTime::Host(host) => {
                    let frames = &self.queue.burst().frames[cursor..];
                    match host.part(frames, now) {
                        StampAction::Store { count, uncertain } => {
                            let range = cursor..cursor + count;
                            self.log_uncertain(range.clone(), uncertain, now);
                            return range;
                        }
                        StampAction::Step { offset_ns } => {
                            let is_followed = producer.step(clock_of(self.source), offset_ns);
                            host.stepped(offset_ns, is_followed, now);
                            self.writer.offset_ns = host.applied_ns;
                        }
                    }
                }
                ToRingTime::Judged(ahead) => {
                    let intake = &self.parts.common.intake;
                    if let (false, Some(last)) = (intake.offline, self.queue.burst().frames.last())
                    {
                        let now_ns = now.ring_ns.saturating_add(now.offset_ns);
                        let ahead_ns = last.time_ns.saturating_sub(now_ns);
                        let back_ns = self.ahead_ns_min.saturating_sub(ahead_ns).max(0);
                        self.ahead_ns_min = self.ahead_ns_min.min(ahead_ns);
                        self.watch.set_back(back_ns);
                        self.counters.set_ahead(ahead_ns, back_ns);
                    }
                    ahead.decide(self.queue.as_ref());
                    let record = if intake.offline { producer.stored() } else { 0 };
                    while let Some(late) = ahead.late_at(cursor) {
                        let spans_ns = [(late.stored_ns, late.right_ns); 2];
                        let disorder = &intake.disorder;
                        disorder.push(record, self.source, "disorder", spans_ns, 1);
                    }
                    if let Some(run) = ahead.misplaced.take() {
                        self.log_misplaced(&run, record);
                        continue;
                    }
                    match ahead.step_at(cursor) {
                        Some(step) => {
                            let is_followed = producer.step(clock_of(self.source), step.offset_ns);
                            if is_followed {
                                self.writer.offset_ns = step.offset_ns;
                                self.report_step(step);
                            } else {
                                let mut end = ahead.decided;
                                let more = ahead.refuse(self.writer.offset_ns);
                                let first = step.index;
                                let refused = more.into_iter().rev();
                                for step in refused.chain([FrameStep { first, ..step }]) {
                                    self.log_misplaced(&self.behind(step, end), record);
                                    end = step.first;
                                }
                            }
                            if let Some(run) = &step.misplaced {
                                self.log_misplaced(run, record);
                            }
                        }
                        None => {
                            self.counters.set_undecided(ahead.undecided());
                            return cursor..ahead.end();
                        }
                    }
                }
            }
        }
    }

    /// The ring time of a frame with the current offset, ns.
    pub(super) fn ring_ns(&self, stamp_ns: i64) -> i64 {
        stamp_ns.wrapping_sub(self.writer.offset_ns)
    }

    pub(super) fn watermark_ns(&self, now: Moment) -> Option<i64> {
        let stamp_ns = self.queue.watermark()?;
        Some(self.present_ns(stamp_ns, now))
    }

    /// The ring time of an engine's statement about the present.
    fn present_ns(&self, stamp_ns: i64, now: Moment) -> i64 {
        match &self.stamps {
            _ if stamp_ns == i64::MAX => stamp_ns,
            ToRingTime::Host(host) => host.ring_ns(stamp_ns, now),
            _ => self.ring_ns(stamp_ns),
        }
    }

    /// The present by the clock of the queue's packets. A clock other than the system's has a
    /// separate ring time, which decides the windows of its packets.
    fn of_stamps(&self, now: Moment) -> Moment {
        let system_ns = now.ring_ns.saturating_add(now.offset_ns);
        let stamp_ns = |ahead_ns| system_ns.saturating_add(ahead_ns);
        let own_ns = |ahead_ns| self.ring_ns(stamp_ns(ahead_ns));
        let ring_ns = self.counters.ahead_ns().map_or(now.ring_ns, own_ns);
        Moment { ring_ns, ..now }
    }

    /// Logs a loss by a clock step: `uncertain` frames of `range` may be stamped on the other side
    /// of a step. The loss reaches from the earliest time that the stamps allow to now.
    fn log_uncertain(&self, range: Range<usize>, uncertain: usize, now: Moment) {
        if uncertain == 0 {
            return;
        }
        let frames = &self.burst().frames[range];
        let nearest = |meta: &retroscope_capture::FrameMeta| self.present_ns(meta.time_ns, now);
        let from_ns = frames.iter().map(nearest).min().unwrap_or(now.ring_ns);
        let span_ns = (from_ns, now.ring_ns.max(from_ns));
        let losses = &self.parts.common.intake.losses;
        losses.push(0, self.source, CLOCK_STEP, [span_ns; 2], uncertain as u64);
    }

    /// The frames from the first frame after `step` to before `end`, if the ring does not follow
    /// the step.
    fn behind(&self, step: FrameStep, end: usize) -> Misplaced {
        let frames = &self.burst().frames[step.first..end];
        let stamps = frames.iter().map(|meta| meta.time_ns);
        // With the offset of the step, a stamp equal to the offset belongs at ring time 0.
        Misplaced::of(stamps, self.writer.offset_ns, (step.offset_ns, 0))
    }

    /// Logs packets that may follow a step but are stored as if there were no step.
    fn log_misplaced(&self, run: &Misplaced, record: u64) {
        let losses = &self.parts.common.intake.losses;
        losses.push(record, self.source, CLOCK_STEP, run.spans_ns(), run.packets);
    }

    /// Reports a step that the stamps of the source have shown.
    fn report_step(&self, step: FrameStep) {
        let stamp_ns = self.burst().frames[step.index].time_ns;
        let at_ns = self.ring_ns(stamp_ns);
        let from_ns = if self.parts.common.intake.offline {
            at_ns
        } else {
            at_ns.saturating_sub(self.parts.hold_ns)
        };
        let text = format!(
            "{}: the time stamps step by {} at {}",
            self.parts.common.intake.sources[self.source].name,
            seconds(step.step_ns),
            rfc3339(stamp_ns)
        );
        self.parts.common.clock.note(from_ns, at_ns, text);
    }

    /// Returns the number of processed frames. If that is less than `range`, `-c` is reached, and
    /// the caller must not store later frames.
    pub(super) fn store(&mut self, range: Range<usize>, producer: &mut Producer) -> usize {
        let burst = match &self.stamps {
            ToRingTime::Judged(ahead) => ahead.burst(self.queue.as_ref()),
            _ => self.queue.burst(),
        };
        let frames = &burst.frames[range.clone()];
        let is_followed = || self.queue.has_more() != Some(false);
        let is_behind = || self.queue.is_behind() != Some(false);
        let burst = InHand {
            burst,
            is_followed: &is_followed,
            is_behind: &is_behind,
        };
        let (writer, parts) = (&mut self.writer, &mut self.parts);
        match together(frames, &self.interfaces, parts.snaplen) {
            Some((interface, false)) => {
                return writer.store_together(&burst, frames, interface, producer, parts);
            }
            Some((interface, true)) => {
                return writer.store_tagged(&burst, frames, interface, producer, parts);
            }
            None => {}
        }
        if let Some(inline) = &mut writer.inline {
            inline.before_storing(producer);
        }
        let before = (producer.stored(), writer.count.stored_bytes);
        let mut is_stored = |index: &usize| {
            let frame = burst.frame(*index);
            let goes_on = writer.store(&frame, &self.interfaces, producer, parts);
            // Logged separately, so that each window reports only its own packets. From files, a
            // window may end with the next record.
            if let Some(ns) = writer.unnumbered_ns.take() {
                let intake = &parts.common.intake;
                let record = if intake.offline { producer.stored() } else { 0 };
                let losses = &intake.losses;
                losses.push(record, self.source, LOST_INTERFACE_LIMIT, [(ns, ns); 2], 1);
            }
            goes_on
        };
        let taken = range.take_while(|index| is_stored(index)).count();
        if let Some(inline) = &mut writer.inline {
            let bytes = writer.count.stored_bytes - before.1;
            inline.count_stored(producer.stored() - before.0, bytes);
        }
        taken
    }

    /// Counts fetched frames beyond `-c` or `--duration` as filtered.
    pub(super) fn refuse(&mut self, frames: usize) {
        self.writer.count.filtered += frames as u64;
    }

    /// Adds the counts to the shared counters, and logs losses.
    pub(super) fn flush(&mut self) {
        let count = std::mem::take(&mut self.writer.count);
        let refused_ns = self.writer.refused_ns.take();
        let shed_ns = std::mem::take(&mut self.writer.shed_ns);
        for ((span_ns, packets), cause) in shed_ns.into_iter().zip(count.shed).zip(SHED_BY) {
            if let Some(span_ns) = span_ns {
                let shed = &self.parts.common.intake.shed;
                shed.push(0, self.source, cause, [span_ns; 2], packets);
            }
        }
        if let Some(spans_ns) = refused_ns.map(|span_ns| [span_ns; 2]) {
            let losses = &self.parts.common.intake.losses;
            let packets = count.no_bucket;
            losses.push(0, self.source, LOST_NO_BUCKET, spans_ns, packets);
        }
        self.counters.add(count);
    }

    pub(super) fn read_statistics(&mut self) {
        let before = self.parts.common.clock.now();
        let statistics = self.queue.statistics();
        // The clock is read afterwards, so that no loss in the reading is later.
        let now = self.parts.common.clock.now();
        let mut reading = EngineReading {
            statistics,
            effects: self.queue.offload_effects(),
            xdp_mode: self.queue.xdp_mode(),
            nic_stamped: self.queue.nic_stamped(),
            buffer: self.queue.buffer(),
            input_drops: self.queue.input_drops(),
        };
        let statistics = &mut reading.statistics;
        statistics.as_of_ns = statistics.as_of_ns.map(|ns| self.present_ns(ns, now));
        let span_ns = (self.of_stamps(before).ring_ns, self.of_stamps(now).ring_ns);
        self.ahead_ns_min = self.counters.ahead_ns().unwrap_or(0);
        let losses = &self.parts.common.intake.losses;
        self.watch.observe(&reading, span_ns, losses);
        let away = &self.parts.common.intake.sources[self.source].away;
        away.report(span_ns.1, losses);
        // With stamps of another clock, the engine cannot say up to which time its counters are
        // complete.
        let statistics = &mut reading.statistics;
        if statistics.lost.iter().any(|(_, lost)| lost.is_some()) {
            statistics.as_of_ns.get_or_insert(span_ns.0);
        }
        self.parts.common.intake.set_read(now.mono_ns);
        self.counters.set_engine(reading);
    }

    /// The queue has ended, with or without an error.
    pub(super) fn ended(&mut self) {
        let Some(error) = &self.error else {
            if !self.parts.common.control.stopping() {
                // The packets with old stamps are late, as at the end of a file.
                self.give_up_ahead();
                self.counters.set_undecided(None);
            }
            self.counters.set_ended();
            return;
        };
        let now = self.of_stamps(self.parts.common.clock.now());
        let intake = &self.parts.common.intake;
        let queue = (&*self.counters, self.watch.last_ns);
        if let Some(what) = intake.no_longer_recorded(self.source, queue, now) {
            let notice = format!("{what} is no longer recorded: {error}");
            self.notices.push(notice);
        }
    }

    /// Takes the queue's events, and tracks outages of the interface.
    pub(super) fn take_events(&mut self) {
        while let Some(event) = self.queue.event() {
            let name = |index: u16| {
                self.queue
                    .interfaces()
                    .get(usize::from(index))
                    .map_or("?", |i| i.name.as_str())
            };
            let common = Arc::clone(&self.parts.common);
            let away = &common.intake.sources[self.source].away;
            match event {
                SourceEvent::Notice(text) => self.notices.push(text),
                SourceEvent::InterfaceAdded(_) => {}
                _ if !self.is_first => {}
                SourceEvent::InterfaceUp(i) => {
                    let now_ns = self.of_stamps(common.clock.now()).ring_ns;
                    away.end(now_ns, &common.intake.losses);
                    let text = format!("{}: the interface is up again", name(i));
                    self.notices.push(text);
                }
                // This event also arrives if the interface was never up.
                SourceEvent::InterfaceDown(i) => {
                    away.begin(self.watch.last_ns);
                    self.notices.push(format!(
                        "{}: the interface is down; recording goes on when it is up",
                        name(i)
                    ));
                }
                SourceEvent::InterfaceGone(i) => {
                    away.begin(self.watch.last_ns);
                    self.notices.push(format!(
                        "{}: the interface is gone; recording goes on when it is back",
                        name(i)
                    ));
                }
                // The engine has already reported this with a notice.
                SourceEvent::InterfaceLeft(_) => away.begin(self.watch.last_ns),
            }
        }
    }
}

fn file_name(source: &str) -> String {
    let name = std::path::Path::new(source).file_name();
    name.map_or(source.to_owned(), |name| {
        name.to_string_lossy().into_owned()
    })
}

#[cfg(test)]
mod tests {
    use retroscope_capture::{
        Direction, FrameMeta, InterfaceInfo, SourceStatistics, clock::SystemClock,
    };
    use retroscope_packet::LinkType;
    use retroscope_ring::{Ring, RingConfig};

    use super::*;
    use crate::{
        control::common::RecorderShared,
        intake::{Intake, counters::INTERFACE_DOWN},
    };

    #[derive(Debug)]
    struct Frames {
        interface: InterfaceInfo,
        frames: Vec<FrameMeta>,
    }

    impl Queue for Frames {
        fn interfaces(&self) -> &[InterfaceInfo] {
            std::slice::from_ref(&self.interface)
        }

        fn next(&mut self, _: Duration) -> Result<QueueStatus, SourceError> {
            Ok(QueueStatus::End)
        }

        fn burst(&self) -> Burst<'_> {
            Burst {
                memory: &[7; 60],
                frames: &self.frames,
            }
        }

        fn watermark(&self) -> Option<i64> {
            None
        }

        fn event(&mut self) -> Option<SourceEvent> {
            None
        }

        fn statistics(&mut self) -> SourceStatistics {
            SourceStatistics::default()
        }

        fn stop(&mut self) {}
    }

    /// A queue of 60-byte frames, 100 ms apart. Only the first interface is announced.
    fn intake_of(interfaces: &[u16], offline: bool) -> (QueueIntake, Ring) {
        let frame = |(number, interface): (i64, &u16)| FrameMeta {
            time_ns: number * STEP_NS,
            offset: 0,
            captured_len: 60,
            wire_len: 60,
            interface: *interface,
            direction: Direction::Inbound,
            vlan: None,
        };
        let queue = Frames {
            interface: InterfaceInfo {
                name: "file".to_owned(),
                link_type: LinkType::ETHERNET,
                snaplen: 0,
                time_domain: TimeDomain::File,
                time_resolution_ns: 1,
            },
            frames: (0..).zip(interfaces).map(frame).collect(),
        };
        let ring = Ring::new(&RingConfig::new(16 << 20, 1, 1), None).unwrap();
        let source = std::iter::once(("file".to_owned(), 1));
        let intake = Intake::new(source, Arc::default(), offline);
        let common = RecorderShared::new(ring.clone(), Arc::new(SystemClock), intake);
        let parts = InserterParts::new(&crate::Config::default(), Arc::clone(&common));
        let counters = Arc::clone(&common.intake.sources[0].queues[0]);
        let intake = QueueIntake::new(Box::new(queue), 0, counters, &parts).unwrap();
        (intake, ring)
    }

    /// A dump that is judged while a queue ends must find the loss if it finds the end.
    #[test]
    fn the_end_of_a_queue_is_not_seen_before_its_loss_is_logged() {
        let (mut intake, _ring) = intake_of(&[0], false);
        let common = Arc::clone(&intake.parts.common);
        let (judged_tx, judged) = std::sync::mpsc::channel();
        intake.counters.when_ended(move || {
            let losses = common.intake.losses(&[(0, i64::MAX)], 0, &[]);
            let causes: Vec<_> = losses.iter().map(|it| it.cause).collect();
            judged_tx.send(causes).unwrap();
        });
        intake.error = Some(SourceError::NoInterface {
            interface: "eth0".to_owned(),
        });
        intake.ended();
        assert_eq!(judged.try_recv().unwrap(), [INTERFACE_DOWN]);
        assert!(intake.counters.is_ended());
    }

    /// From files a window may end with any record.
    #[test]
    fn what_has_no_interface_is_told_between_its_neighbours() {
        let interfaces = [0, 0, 1, 0, 0, 1, 1, 0];
        let (mut intake, ring) = intake_of(&interfaces, true);
        let common = Arc::clone(&intake.parts.common);
        let mut producer = ring.producer().unwrap();
        assert_eq!(intake.store(0..interfaces.len(), &mut producer), 8);
        intake.flush();
        let lost = |record| {
            let found = common
                .intake
                .losses
                .within_until(record, &[(0, 10 * STEP_NS)]);
            found.iter().map(|it| it.packets).sum::<u64>()
        };
        assert_eq!([1, 2, 3, 4, 5].map(lost), [0, 1, 1, 3, 3]);
        assert_eq!(
            common.intake.snapshots()[0].lost[LOST_INTERFACE_LIMIT],
            Some(3)
        );
    }

    #[test]
    fn what_has_no_interface_is_counted_in_its_window_however_bursts_fall() {
        let interfaces: Vec<u16> = (0..64).map(|n| u16::from(n % 7 == 3 || n > 50)).collect();
        for burst in [1, 2, 3, 10, 64] {
            let (mut intake, ring) = intake_of(&interfaces, false);
            let mut producer = ring.producer().unwrap();
            for from in (0..64).step_by(burst) {
                let range = from..64.min(from + burst);
                assert_eq!(intake.store(range.clone(), &mut producer), range.len());
                intake.flush();
            }
            let common = &intake.parts.common;
            for (from, to) in [(0, 63), (4, 9), (4, 10), (30, 60), (51, 51), (63, 70)] {
                let (from_ns, to_ns) = (i64::from(from) * STEP_NS, i64::from(to) * STEP_NS);
                let told = common.intake.losses(&[(from_ns, to_ns)], 0, &[1]);
                let told: u64 = told
                    .iter()
                    .map(|it| {
                        assert_eq!(it.cause, LOST_INTERFACE_LIMIT);
                        it.packets.unwrap()
                    })
                    .sum();
                let lost = (from..=to).filter(|n| interfaces.get(*n as usize) == Some(&1));
                let case = format!("{from} to {to}, bursts of {burst}");
                assert_eq!(told, lost.count() as u64, "{case}");
            }
            let lost = interfaces.iter().filter(|it| **it == 1).count() as u64;
            let source = &common.intake.snapshots()[0];
            assert_eq!(source.lost[LOST_INTERFACE_LIMIT], Some(lost));
            assert_eq!(source.stored, 64 - lost);
        }
    }

    const STEP_NS: i64 = 100_000_000;
}
