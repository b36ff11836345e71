//! The inserter of live queues.

use std::{sync::Arc, time::Duration};

use retroscope_capture::{QueueStatus, SourceError, WaitTerms, af_packet::WATERMARK_BEHIND_NS_MAX};
use retroscope_ring::Producer;
use rustix::thread::{CpuSet, sched_setaffinity};

use super::{parts::SOURCE_WAIT, queue_intake::QueueIntake, shards::ShardCounts};
use crate::{
    control::{pulse::ThreadPulse, ring_time::Moment},
    intake::{inline::Inline, placement::WAITING_NS_MAX, shedding::Shedding},
};

/// Longest wait that an inserter grants its source while no dump needs its watermark: on a silent
/// link and, if the inserter analyzes its packets, one without hits. A dump that opens meanwhile
/// gets no watermark of this inserter until the wait ends.
const UNAWAITED_SOURCE_WAIT: Duration = Duration::from_millis(40);

// The first packet of a dump should be in its file within 100 ms. Before that, the watermarks of
// all queues must pass the packet, and the dumper must make its next round.
const _: () = assert!(
    UNAWAITED_SOURCE_WAIT.as_nanos() + WATERMARK_BEHIND_NS_MAX as u128 + 5_000_000 < 100_000_000
);

/// Time between two readings of an engine's counters, ns, while dumps wait for counters that cover
/// their window, or with `ted`.
const COUNTERS_PERIOD_NS: i64 = 10_000_000;
/// Time between two readings of an engine's counters, ns, while no dump waits for counters. A
/// reading of AF_PACKET's counters takes several system calls, 50 µs if the CPU was asleep: as long
/// as a thousand small packets.
const UNAWAITED_COUNTERS_PERIOD_NS: i64 = 100_000_000;
/// After about this time, ns, an inserter ends its turn for a queue, even if the source never runs
/// dry.
const PUBLICATION_PERIOD_NS: i64 = 1_000_000;

#[derive(Debug)]
struct Member {
    intake: QueueIntake,
    status: QueueStatus,
    /// When the engine's counters were last read, ns of the monotonic clock.
    read_ns: i64,
    /// Packets lost by congestion (`lost_by_congestion`) at the last reading of the engine's
    /// counters.
    read_lost: u64,
    /// Whether the user knows that the triggers take longer than the source's buffer lasts.
    has_warned: bool,
}

impl Member {
    fn has_ended(&self) -> bool {
        self.status == QueueStatus::End
    }
}

/// The inserter of one live queue or, with `capture-threads`, of several queues.
///
/// The queues of one inserter share a producer, whose watermark follows the smallest of the queues
/// that have not ended. An inserter of several queues runs no shard.
#[derive(Debug)]
pub(crate) struct LiveInserter {
    members: Vec<Member>,
    producer: Producer,
    start_mono_ns: i64,
    /// The last reading of the monotonic clock, ns.
    now_ns: i64,
    /// Whether the analyzer needs the watermark for the last records.
    has_news: bool,
    is_dry: bool,
    stopped: bool,
    enough: bool,
    /// The latest promised watermark, ns of ring time.
    watermark_ns: i64,
    pulse: ThreadPulse,
}

impl LiveInserter {
    /// `intakes`: at least one; if several, each queue has [`Queue::wait_terms`].
    ///
    /// [`Queue::wait_terms`]: retroscope_capture::Queue::wait_terms
    pub(crate) fn new(mut intakes: Vec<QueueIntake>, mut producer: Producer) -> Self {
        // `Self::step` publishes after about a millisecond for each queue, so storing need not wake
        // sleeping readers.
        producer.leave_sleepers();
        let common = Arc::clone(&intakes[0].parts.common);
        let start_mono_ns = common.clock.mono_ns();
        let pulse = common.pulses.of(format!("inserter-{}", producer.id()));
        for intake in &mut intakes {
            if intake.queue.is_filtered() {
                intake.parts.filter = None;
                intake.counters.set_filtered_before();
            }
            let classes = intake.parts.classes.take();
            let shedding = classes.map(|classes| Box::new(Shedding::new(classes, None)));
            intake.writer.shedding = shedding;
            let inline = intake.parts.inline.clone();
            let inline = inline.map(|parts| Inline::new(parts, producer.id(), pulse.clone()));
            intake.writer.inline = inline;
        }
        let member = |intake| Member {
            intake,
            status: QueueStatus::Idle,
            read_ns: i64::MIN,
            read_lost: 0,
            has_warned: false,
        };
        Self {
            members: intakes.into_iter().map(member).collect(),
            producer,
            start_mono_ns,
            now_ns: start_mono_ns,
            has_news: false,
            is_dry: true,
            stopped: false,
            enough: false,
            watermark_ns: i64::MIN,
            pulse,
        }
    }

    /// Returns the errors that ended queues. `notify` gets messages for the user as they arise.
    pub(crate) fn run(mut self, notify: &mut dyn FnMut(String)) -> Vec<SourceError> {
        let pulses = &self.members[0].intake.parts.common.pulses;
        pulses.enter(&format!("inserter-{}", self.producer.id()));
        let cpus = self.cpus();
        if let Err(error) = pin(&cpus) {
            notify(format!(
                "cannot run a capture thread on CPU {cpus:?}: {error}"
            ));
        }
        loop {
            let more = self.step();
            let notices = self.members.iter_mut();
            let notices = notices.flat_map(|member| member.intake.notices.drain(..));
            notices.for_each(&mut *notify);
            if !more {
                let errors = self.members.into_iter();
                return errors.filter_map(|member| member.intake.error).collect();
            }
        }
    }

    /// The CPUs of all queues; empty if a queue may be served on any CPU.
    fn cpus(&self) -> Vec<u32> {
        let of_each = || self.members.iter().map(|member| member.intake.queue.cpus());
        if of_each().any(<[u32]>::is_empty) {
            return Vec::new();
        }
        let mut cpus: Vec<u32> = of_each().flatten().copied().collect();
        cpus.sort_unstable();
        cpus.dedup();
        cpus
    }

    /// Fetches and stores bursts of each queue until [`PUBLICATION_PERIOD_NS`] have passed or the
    /// queue has no more packets. If all sources are idle, the step may wait first. Returns `false`
    /// at the end.
    ///
    /// Records are published at the end of each step, not after each of many small bursts. The ring
    /// also publishes by itself.
    pub(crate) fn step(&mut self) -> bool {
        self.pulse.beat();
        let counters = &self.members[0].intake.parts.common.counters;
        let is_awaited = counters.are_dumps_unfinished();
        // If the source is dry by now, the rule of `placement` would count the wait as work.
        let stored = self.producer.stored();
        let is_idle = self.inline().is_none_or(|inline| !inline.is_busy(stored));
        let mut wait = match self.is_dry && is_idle {
            true => self.source_wait(is_awaited),
            false => Duration::ZERO,
        };
        if self.members.len() > 1 && !wait.is_zero() {
            let queues = self.members.iter().filter(|member| !member.has_ended());
            let terms = queues.filter_map(|member| member.intake.queue.wait_terms());
            WaitTerms::wait_for_any(terms, wait);
            wait = Duration::ZERO;
        }
        self.has_news = false;
        self.is_dry = true;
        let mut watermark_ns = Some(i64::MAX);
        for index in 0..self.members.len() {
            if self.members[index].has_ended() {
                continue;
            }
            let now = self.serve(index, wait);
            let member = &self.members[index];
            self.is_dry &= member.status != QueueStatus::Frames;
            let promise_ns = member.intake.watermark_ns(now);
            watermark_ns = watermark_ns.zip(promise_ns).map(|(a, b)| a.min(b));
        }
        let now_ns = self.now_ns;
        let stored = self.producer.stored();
        // A promise stays valid even if the engine's clock was set back.
        let watermark_ns = watermark_ns.map(|ns| self.watermark_ns.max(ns));
        if let Some(inline) = self.inline() {
            inline.before_watermark(stored, watermark_ns);
        }
        self.count_shards(stored);
        match watermark_ns {
            // The lent burst may be older than the watermark, but it is already in the ring.
            Some(watermark_ns) => {
                self.watermark_ns = watermark_ns;
                self.producer.set_watermark(watermark_ns);
            }
            None => self.producer.publish(),
        }
        let is_dry = self.is_dry;
        let first = &mut self.members[0].intake;
        if let Some(inline) = &mut first.writer.inline {
            // The publication comes first, because this may wake the analyzer.
            self.has_news = inline.after_publish(stored, is_dry, now_ns);
            let queue = &first.queue;
            inline.work_off(stored, (is_dry, now_ns), || queue.has_more());
        }
        for index in 0..self.members.len() {
            self.attend(index, is_awaited);
        }
        self.stop_if_due(now_ns);
        !self.members.iter().all(Member::has_ended)
    }

    /// The first fetch may wait. Returns the time of the last fetch.
    fn serve(&mut self, index: usize, wait: Duration) -> Moment {
        let mut now = self.fetch(index, wait);
        let intake = &mut self.members[index].intake;
        let queueing_delay_ns = intake.queueing_delay_ns(now);
        if let Some(inline) = &mut intake.writer.inline {
            inline.after_wait(now.mono_ns, queueing_delay_ns);
        }
        let until_ns = now.mono_ns.saturating_add(PUBLICATION_PERIOD_NS);
        self.has_news |= self.members[index].status == QueueStatus::Frames;
        while self.members[index].status == QueueStatus::Frames {
            self.store_burst(index, now);
            self.stop_if_due(now.mono_ns);
            if now.mono_ns >= until_ns {
                break;
            }
            now = self.fetch(index, Duration::ZERO);
        }
        now
    }

    /// Takes a queue's events, applies changes of shedding, and reads counters that are old.
    fn attend(&mut self, index: usize, is_awaited: bool) {
        let now_ns = self.now_ns;
        let member = &mut self.members[index];
        let has_ended = member.has_ended();
        if has_ended && member.intake.counters.is_ended() {
            return;
        }
        member.intake.take_events();
        if let Some(shedding) = &mut member.intake.writer.shedding {
            shedding.follow_cutoffs();
            let history = shedding.follow_history(now_ns, &member.intake.parts.common.intake);
            let notice = shedding.hand_over(member.intake.queue.as_mut());
            (member.intake.notices).extend(history.into_iter().chain(notice));
        }
        let age_ns = now_ns.saturating_sub(member.read_ns);
        let shedding = member.intake.writer.shedding.as_mut();
        let is_awaited = is_awaited || shedding.is_some_and(|shedding| shedding.has_periods());
        let is_old =
            age_ns >= UNAWAITED_COUNTERS_PERIOD_NS || is_awaited && age_ns >= COUNTERS_PERIOD_NS;
        if is_old || has_ended {
            member.intake.read_statistics();
            member.check_longest(now_ns);
            member.read_ns = now_ns;
            let counters = &member.intake.counters;
            if let Some(shedding) = &mut member.intake.writer.shedding {
                let lost = counters.lost_by_congestion();
                shedding.period(lost, &self.producer, counters.record_bytes());
            }
            let inline = member.intake.writer.inline.as_mut();
            let notices = inline.map(Inline::take_notices);
            member.intake.notices.extend(notices.into_iter().flatten());
        }
        if has_ended {
            member.intake.ended();
        }
    }

    fn inline(&mut self) -> Option<&mut Inline> {
        self.members[0].intake.writer.inline.as_mut()
    }

    fn count_shards(&self, stored: u64) {
        let Some(shards) = &self.members[0].intake.parts.stored_shards else {
            return;
        };
        let mut counts = ShardCounts::default();
        for member in &self.members {
            let of_queue = member.intake.writer.shard_counts;
            counts.iter_mut().zip(of_queue).for_each(|(a, b)| *a += b);
        }
        shards.set(self.producer.id(), stored, &counts);
    }

    /// How long this thread may wait for its sources.
    fn source_wait(&self, is_awaited: bool) -> Duration {
        if is_awaited || self.has_news || self.stopped {
            return SOURCE_WAIT;
        }
        let parts = &self.members[0].intake.parts;
        let Some(duration_ns) = parts.duration_ns else {
            return UNAWAITED_SOURCE_WAIT;
        };
        let over_ns = self.start_mono_ns.saturating_add(duration_ns);
        let left_ns = over_ns.saturating_sub(parts.common.clock.mono_ns()).max(0);
        UNAWAITED_SOURCE_WAIT.min(Duration::from_nanos(left_ns.unsigned_abs()))
    }

    /// Returns the time after the fetch.
    fn fetch(&mut self, index: usize, wait: Duration) -> Moment {
        let member = &mut self.members[index];
        member.status = member.intake.fetch(wait);
        let now = member.intake.parts.common.clock.now_since(self.now_ns);
        self.now_ns = now.mono_ns;
        self.producer.set_now(now.mono_ns);
        if member.status == QueueStatus::Idle {
            member.intake.set_dry(now.mono_ns);
        }
        now
    }

    fn store_burst(&mut self, index: usize, now: Moment) {
        let intake = &mut self.members[index].intake;
        while !self.enough {
            let range = intake.part(&mut self.producer, now);
            if range.is_empty() {
                break;
            }
            let wanted = range.len();
            let dealt_with = intake.store(range, &mut self.producer);
            intake.cursor += dealt_with;
            self.enough = dealt_with < wanted;
        }
        let frames = intake.burst().frames.len();
        intake.refuse(frames - intake.cursor);
        intake.flush();
    }

    fn stop_if_due(&mut self, now_ns: i64) {
        let parts = &self.members[0].intake.parts;
        let is_over = (parts.duration_ns).is_some_and(|d| now_ns - self.start_mono_ns >= d);
        if parts.is_spent() || is_over {
            // Threads that are still busy get the same time limit as after a request to stop.
            parts.common.control.ask_to_stop();
        }
        if parts.common.control.stopping() && !self.stopped {
            self.stopped = true;
            (self.members.iter_mut()).for_each(|member| member.intake.queue.stop());
        }
    }
}

impl Member {
    /// If the source lost packets since the last call, and the analysis took [`WAITING_NS_MAX`] or
    /// longer: lets a thread analyze, or warns the user once.
    fn check_longest(&mut self, now_ns: i64) {
        let lost = self.intake.counters.lost_by_congestion();
        let lost = lost.saturating_sub(std::mem::replace(&mut self.read_lost, lost));
        let Some(inline) = &mut self.intake.writer.inline else {
            return;
        };
        let longest_ns = inline.take_longest_ns();
        if lost == 0 || longest_ns < WAITING_NS_MAX {
            return;
        }
        if inline.observe_overlong(now_ns) && !self.has_warned {
            self.has_warned = true;
            let name = &self.intake.parts.common.intake.sources[self.intake.source].name;
            let longest_ms = longest_ns as f64 / 1e6;
            self.intake.notices.push(format!(
                "{name}: {lost} packets were lost while the triggers kept the capture thread busy for up to {longest_ms:.0} ms at a time (--set analyzers=1, or a larger capture-buffer)"
            ));
        }
    }
}

/// Restricts the calling thread to these CPUs; an empty list means no restriction.
fn pin(cpus: &[u32]) -> std::io::Result<()> {
    if cpus.is_empty() {
        return Ok(());
    }
    let mut set = CpuSet::new();
    for cpu in cpus.iter().map(|cpu| *cpu as usize) {
        if cpu < CpuSet::MAX_CPU {
            set.set(cpu);
        }
    }
    Ok(sched_setaffinity(None, &set)?)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

    use retroscope_capture::{
        Burst, Direction, FrameMeta, InterfaceInfo, Queue, SourceError, SourceEvent,
        SourceStatistics, TimeDomain,
    };
    use retroscope_packet::LinkType;
    use retroscope_ring::{Ring, RingConfig};

    use super::*;
    use crate::intake::inserter::parts::InserterParts;
    use crate::{control::common::RecorderShared, intake::Intake, tests::rig::FakeClock};

    /// Time between two frames, ns.
    const INTERVAL_NS: i64 = 100_000;

    #[derive(Debug)]
    struct SteadyQueue {
        interfaces: [InterfaceInfo; 1],
        clock: Arc<FakeClock>,
        frame: [FrameMeta; 1],
        /// Frames left; afterwards the link is idle.
        left: Arc<AtomicU64>,
        lent: usize,
        asked: Arc<Asked>,
    }

    #[derive(Debug, Default)]
    struct Asked {
        /// How long the last `next` could wait, ns.
        wait_ns: AtomicI64,
        readings: AtomicU64,
        /// The next `next` ends the queue.
        ends: AtomicBool,
    }

    impl Queue for SteadyQueue {
        fn interfaces(&self) -> &[InterfaceInfo] {
            &self.interfaces
        }

        fn next(&mut self, wait: Duration) -> Result<QueueStatus, SourceError> {
            let wait_ns = i64::try_from(wait.as_nanos()).unwrap();
            self.asked.wait_ns.store(wait_ns, Ordering::SeqCst);
            self.clock.pass(INTERVAL_NS);
            let now_ns = self.clock.mono_ns.load(Ordering::SeqCst);
            self.frame[0].time_ns = now_ns;
            let left = self.left.load(Ordering::SeqCst);
            self.left.store(left.saturating_sub(1), Ordering::SeqCst);
            self.lent = usize::from(left > 0);
            Ok(if self.asked.ends.load(Ordering::SeqCst) {
                self.lent = 0;
                QueueStatus::End
            } else if left > 0 {
                QueueStatus::Frames
            } else {
                QueueStatus::Idle
            })
        }

        fn burst(&self) -> Burst<'_> {
            Burst {
                memory: &[0; 60],
                frames: &self.frame[..self.lent],
            }
        }

        fn wait_terms(&self) -> Option<WaitTerms<'_>> {
            Some(WaitTerms {
                descriptor: None,
                longest: Duration::ZERO,
            })
        }

        fn has_more(&self) -> Option<bool> {
            Some(self.left.load(Ordering::SeqCst) > 0)
        }

        fn watermark(&self) -> Option<i64> {
            Some(self.frame[0].time_ns)
        }

        fn event(&mut self) -> Option<SourceEvent> {
            None
        }

        fn statistics(&mut self) -> SourceStatistics {
            self.asked.readings.fetch_add(1, Ordering::SeqCst);
            SourceStatistics::default()
        }

        fn stop(&mut self) {}
    }

    fn inserter(frames: u64) -> (LiveInserter, Ring, Arc<AtomicU64>, Arc<Asked>) {
        let (inserter, ring, queues) = inserter_of(&[frames]);
        let [(left, asked)] = queues.try_into().unwrap();
        (inserter, ring, left, asked)
    }

    type QueueHandles = (Arc<AtomicU64>, Arc<Asked>);

    /// As [`inserter`], of several queues.
    fn inserter_of(frames: &[u64]) -> (LiveInserter, Ring, Vec<QueueHandles>) {
        let clock = Arc::new(FakeClock::default());
        let mut config = RingConfig::new(16 << 20, 1, 1);
        config.releasing_readers = 1;
        let ring = Ring::new(&config, None).unwrap();
        let sources = std::iter::once(("steady".to_owned(), frames.len()));
        let intake = Intake::new(sources, Arc::default(), false).served_by(1);
        let common = RecorderShared::new(ring.clone(), clock.clone(), intake);
        let parts = InserterParts::new(&crate::Config::default(), Arc::clone(&common));
        let (mut intakes, mut handles) = (Vec::new(), Vec::new());
        for (frames, counters) in frames.iter().zip(&common.intake.sources[0].queues) {
            let left = Arc::new(AtomicU64::new(*frames));
            let asked = Arc::new(Asked::default());
            let queue = steady(&clock, &left, &asked);
            let counters = Arc::clone(counters);
            intakes.push(QueueIntake::new(Box::new(queue), 0, counters, &parts).unwrap());
            handles.push((left, asked));
        }
        let inserter = LiveInserter::new(intakes, ring.producer().unwrap());
        (inserter, ring, handles)
    }

    fn steady(clock: &Arc<FakeClock>, left: &Arc<AtomicU64>, asked: &Arc<Asked>) -> SteadyQueue {
        SteadyQueue {
            interfaces: [InterfaceInfo {
                name: "steady".to_owned(),
                link_type: LinkType::ETHERNET,
                snaplen: 0,
                time_domain: TimeDomain::KernelSoftware,
                time_resolution_ns: 1,
            }],
            clock: Arc::clone(clock),
            frame: [FrameMeta {
                time_ns: 0,
                offset: 0,
                captured_len: 60,
                wire_len: 60,
                interface: 0,
                direction: Direction::Inbound,
                vlan: None,
            }],
            left: Arc::clone(left),
            lent: 0,
            asked: Arc::clone(asked),
        }
    }

    #[test]
    fn several_queues_have_one_watermark() {
        let (mut inserter, ring, queues) = inserter_of(&[3, 0, u64::MAX]);
        assert!(inserter.step());
        assert_eq!(ring.watermark(0), Some(4 * INTERVAL_NS));
        assert_eq!(ring.published(0), 3 + 11);
        queues[0].1.ends.store(true, Ordering::SeqCst);
        assert!(inserter.step());
        assert_eq!(
            ring.watermark(0),
            Some(17 * INTERVAL_NS),
            "of its last fetch"
        );
        assert!(inserter.step());
        assert_eq!(
            ring.watermark(0),
            Some(30 * INTERVAL_NS),
            "of the second queue"
        );
        for (_, asked) in &queues[1..] {
            assert!(!asked.ends.swap(true, Ordering::SeqCst));
        }
        assert!(!inserter.step());
        drop(inserter);
        assert_eq!(ring.watermark(0), Some(i64::MAX));
    }

    #[test]
    fn a_source_that_runs_dry_is_told_at_once() {
        let (mut inserter, ring, ..) = inserter(3);
        assert!(inserter.step());
        assert_eq!(ring.published(0), 3);
        assert_eq!(ring.watermark(0), Some(4 * INTERVAL_NS), "of the idle look");
    }

    #[test]
    fn a_source_that_never_runs_dry_is_told_once_a_millisecond() {
        let (mut inserter, ring, left, _) = inserter(u64::MAX);
        for round in 1..=20 {
            assert!(inserter.step());
            let served = u64::MAX - left.load(Ordering::SeqCst);
            assert_eq!(ring.published(0), served, "all that was stored");
            let now_ns = i64::try_from(served).unwrap() * INTERVAL_NS;
            assert_eq!(ring.watermark(0), Some(now_ns));
            // One frame at the start, and the frames of one millisecond.
            assert_eq!(served, round * (1 + 10));
        }
    }

    #[test]
    fn a_source_is_waited_for_as_long_as_nobody_needs_its_watermark() {
        let (mut inserter, _, left, asked) = inserter(0);
        let common = Arc::clone(&inserter.members[0].intake.parts.common);
        let counters = &common.counters;
        let mut waits = || {
            inserter.step();
            Duration::from_nanos(asked.wait_ns.load(Ordering::SeqCst).unsigned_abs())
        };
        assert_eq!(
            (waits(), waits()),
            (UNAWAITED_SOURCE_WAIT, UNAWAITED_SOURCE_WAIT)
        );
        counters.open_dumps.store(1, Ordering::SeqCst);
        assert_eq!(waits(), SOURCE_WAIT);
        counters.closed_dumps.store(1, Ordering::SeqCst);
        counters.open_dumps.store(0, Ordering::SeqCst);
        assert_eq!(waits(), SOURCE_WAIT, "its file waits for counters");
        counters.finished_dumps.store(1, Ordering::SeqCst);
        assert_eq!(waits(), UNAWAITED_SOURCE_WAIT);
        left.store(1, Ordering::SeqCst);
        waits();
        assert_eq!(waits(), SOURCE_WAIT, "behind a packet that may be a hit");
        assert_eq!(waits(), UNAWAITED_SOURCE_WAIT);
    }

    #[test]
    fn a_source_is_waited_for_longer_where_no_packet_is_a_hit() {
        for (rule, wait) in [
            ("ether[20] == 7", UNAWAITED_SOURCE_WAIT),
            ("ether[20] == 0", SOURCE_WAIT),
        ] {
            let (mut inserter, _, _, asked) = inserter(1);
            let common = &inserter.members[0].intake.parts.common;
            let (parts, _reader) =
                crate::intake::inline::inline_of_test(rule, LinkType::ETHERNET, common);
            inserter.members[0].intake.writer.inline =
                Some(Inline::new(parts, 0, inserter.pulse.clone()));
            inserter.step();
            inserter.step();
            let wait_ns = asked.wait_ns.load(Ordering::SeqCst);
            assert_eq!(i128::from(wait_ns), wait.as_nanos() as i128, "{rule}");
        }
    }

    #[test]
    fn a_source_is_waited_for_when_it_is_known_to_be_dry() {
        let (mut inserter, _, left, asked) = inserter(11);
        let mut waits = || {
            inserter.step();
            asked.wait_ns.load(Ordering::SeqCst)
        };
        // The step ends after a millisecond, just when the source runs dry.
        waits();
        assert_eq!(left.load(Ordering::SeqCst), 0);
        assert_eq!(waits(), 0);
        assert!(waits() > 0);
    }

    #[test]
    fn a_recording_is_no_longer_than_its_duration_for_silence() {
        let (mut inserter, _, _, asked) = inserter(0);
        inserter.members[0].intake.parts.duration_ns = Some(100 * INTERVAL_NS);
        let mut steps = 0;
        while !inserter.stopped {
            inserter.step();
            steps += 1;
            let left_ns = (101 - steps) * INTERVAL_NS;
            assert_eq!(asked.wait_ns.load(Ordering::SeqCst), left_ns);
        }
        assert_eq!(steps, 100);
        let control = &inserter.members[0].intake.parts.common.control;
        assert!(control.is_urgent(Duration::ZERO) && !control.is_urgent(Duration::MAX));
        inserter.step();
        assert_eq!(asked.wait_ns.load(Ordering::SeqCst), 8_000_000);
    }

    #[test]
    fn counters_are_read_often_while_dumps_wait_for_them() {
        let (mut inserter, _, _, asked) = inserter(0);
        let common = Arc::clone(&inserter.members[0].intake.parts.common);
        let counters = &common.counters;
        let mut readings_in_a_second = || {
            let before = asked.readings.load(Ordering::SeqCst);
            for _ in 0..1_000_000_000 / INTERVAL_NS {
                inserter.step();
            }
            asked.readings.load(Ordering::SeqCst) - before
        };
        assert_eq!(readings_in_a_second(), 10);
        counters.open_dumps.store(1, Ordering::SeqCst);
        assert_eq!(readings_in_a_second(), 100);
    }
}
