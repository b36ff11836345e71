//! The state of the sources that all threads share: counters, losses, interfaces.

pub(crate) mod capture_filter;
pub(crate) mod counters;
pub(crate) mod inline;
pub(crate) mod inserter;
pub(crate) mod interfaces;
pub(crate) mod marks;
pub(crate) mod outages;
pub(crate) mod placement;
pub(crate) mod shedding;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
    },
};

use retroscope_capture::LossCause;

use crate::{
    control::{ring_time::Moment, time::seconds},
    dump::report::Missing,
    intake::{
        counters::{
            CLOCK_STEP, INTERFACE_DOWN, LOST_INTERFACE_LIMIT, LOST_NO_BUCKET, LossEvent, LossLog,
            PERHAPS_LOST, QueueCounters, SHED, SHED_BY, SourceSnapshot, hull,
        },
        interfaces::{InterfaceCache, Interfaces},
        outages::OutageTracker,
    },
};

/// Stamps that jumped back this often within a window count as disordered.
const DISORDER_MIN: u64 = 2;

#[derive(Debug)]
pub(crate) struct Intake {
    pub(crate) sources: Vec<SourceIntake>,
    pub(crate) losses: LossLog,
    /// Packets that inserters shed. A separate log, because there may be very many entries.
    pub(crate) shed: LossLog,
    /// How often the stamps of a source jumped back without a step of its clock.
    pub(crate) disorder: LossLog,
    pub(crate) interfaces: Arc<Interfaces>,
    /// Whether the sources are files.
    pub(crate) offline: bool,
    /// When counters were last read, ns of the monotonic clock.
    read_mono_ns: AtomicI64,
    /// Live: the number of producers.
    pub(crate) producers: usize,
}

/// Packets of an interface's source since the start. `None`: unknown.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct InterfaceCounts {
    /// Packets that reached the engine.
    pub(crate) received: Option<u64>,
    /// Packets that the NIC lost.
    pub(crate) dropped: Option<u64>,
    /// Packets that the kernel lost, or for which the engine's memory or the ring had no room.
    pub(crate) os_dropped: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct SourceIntake {
    pub(crate) name: String,
    pub(crate) queues: Vec<Arc<QueueCounters>>,
    pub(crate) away: OutageTracker,
    /// Upper bound on the packets that came too late for dumps.
    pub(crate) late: AtomicU64,
}

impl SourceIntake {
    /// The queues whose losses become known: queues with watermarks, and queues that have declared
    /// losses known.
    fn counting(&self) -> impl Iterator<Item = &Arc<QueueCounters>> {
        let counts =
            |queue: &&Arc<QueueCounters>| queue.promises() || queue.known_until_ns().is_some();
        self.queues.iter().filter(counts)
    }

    fn is_recorded(&self) -> bool {
        self.queues.iter().any(|queue| !queue.is_ended())
    }

    fn snapshot(&self, mono_ns: i64) -> SourceSnapshot {
        let queues = self.queues.iter().map(AsRef::as_ref);
        SourceSnapshot {
            late: self.late.load(Relaxed),
            ..SourceSnapshot::of(&self.name, queues, self.away.totals(mono_ns))
        }
    }
}

impl Intake {
    /// `sources`: the names of the sources, and their numbers of queues.
    pub(crate) fn new(
        sources: impl Iterator<Item = (String, usize)>,
        interfaces: Arc<Interfaces>,
        offline: bool,
    ) -> Self {
        let source = |(index, (name, queues))| SourceIntake {
            name,
            queues: (0..queues)
                .map(|_| Arc::new(QueueCounters::new()))
                .collect(),
            away: OutageTracker::new(index),
            late: AtomicU64::new(0),
        };
        let sources: Vec<_> = sources.enumerate().map(source).collect();
        Self {
            producers: sources.iter().map(|source| source.queues.len()).sum(),
            sources,
            losses: LossLog::default(),
            shed: LossLog::default(),
            disorder: LossLog::default(),
            interfaces,
            offline,
            read_mono_ns: AtomicI64::new(i64::MIN),
        }
    }

    /// An inserter reads counters at this time of the monotonic clock.
    pub(crate) fn set_read(&self, mono_ns: i64) {
        // Relaxed: only the number is shared.
        self.read_mono_ns.fetch_max(mono_ns, Relaxed);
    }

    /// Bytes of the ring that all packets since the start have taken, without extensions of
    /// records.
    pub(crate) fn used_bytes(&self) -> u64 {
        let queues = self.sources.iter().flat_map(|source| &source.queues);
        queues.map(|queue| queue.used_bytes()).sum()
    }

    pub(crate) fn interface_cache(&self) -> InterfaceCache {
        InterfaceCache::new(Arc::clone(&self.interfaces))
    }

    /// The counters of each source, in the user's order.
    pub(crate) fn snapshots(&self) -> Vec<SourceSnapshot> {
        let mono_ns = self.read_mono_ns.load(Relaxed);
        self.sources.iter().map(|s| s.snapshot(mono_ns)).collect()
    }

    /// A queue of a source has ended with an error. Its packets after `known_ns` may be missing.
    ///
    /// Logs this loss before it marks the counters of the queue as ended: a dump that is judged in
    /// between must not find the end without the loss. Returns the name of what is no longer
    /// recorded, if that is new and another queue or source is still recorded.
    pub(crate) fn no_longer_recorded(
        &self,
        source: usize,
        (queue, known_ns): (&QueueCounters, i64),
        now: Moment,
    ) -> Option<String> {
        let away = &self.sources[source].away;
        let is_new = away.for_good(known_ns, now, &self.losses);
        queue.set_ended();
        let name = &self.sources[source].name;
        if self.sources[source].is_recorded() {
            return is_new.then(|| format!("a part of {name}"));
        }
        let goes_on = self.sources.iter().any(SourceIntake::is_recorded);
        (away.is_first_whole() && goes_on).then(|| name.clone())
    }

    /// Divides the queues of a live recorder among its producers: queue `n` belongs to producer
    /// `n % producers`.
    pub(crate) fn served_by(self, producers: usize) -> Self {
        Self { producers, ..self }
    }

    /// For each producer of a live recorder, whether all its queues promise watermarks.
    pub(crate) fn promises(&self) -> Vec<bool> {
        let queues = self.sources.iter().flat_map(|source| &source.queues);
        let mut promises = vec![true; self.producers];
        for (number, queue) in queues.enumerate() {
            promises[number % self.producers] &= queue.promises();
        }
        promises
    }

    /// See [`LossLog::forget_records`].
    pub(crate) fn forget_records(&self) {
        self.losses.forget_records();
        self.shed.forget_records();
        self.disorder.forget_records();
    }

    /// Messages about sources whose stamps jumped back at least [`DISORDER_MIN`] times in a window
    /// of ring time, whose records end at `ends`.
    pub(crate) fn disorder(&self, from_ns: i64, to_ns: i64, ends: &[u64]) -> Vec<String> {
        let jumps = self.disorder.within_until(end(ends), &[(from_ns, to_ns)]);
        let many = jumps.iter().filter(|event| event.packets >= DISORDER_MIN);
        let sentence = |event: &LossEvent| {
            let name = self.sources.get(event.source).map_or("?", |s| &s.name);
            format!(
                "stamps in disorder: those of {name} jumped back {} times",
                event.packets
            )
        };
        many.map(sentence).collect()
    }

    /// Sources whose losses within the closed interval of ring time are unknown. The window was
    /// closed at `clock_ns`. `offset_ns` is added to the reported times.
    pub(crate) fn unknown(
        &self,
        (from_ns, to_ns): (i64, i64),
        clock_ns: i64,
        offset_ns: i64,
    ) -> Vec<Missing> {
        if self.offline {
            return Vec::new();
        }
        let stamp = |ring_ns: i64| ring_ns.saturating_add(offset_ns);
        let losses = |queue: &Arc<QueueCounters>| {
            // A trigger whose clock is ahead may have a window in the future of other clocks.
            let ahead_ns = queue.ahead_ns().unwrap_or(0).max(0);
            let until_ns = to_ns.min(clock_ns.saturating_add(ahead_ns));
            let known_ns = queue.known_until_ns().unwrap_or(from_ns).max(from_ns);
            (known_ns < until_ns).then_some((known_ns, until_ns))
        };
        let entries = |source: &SourceIntake| {
            let losses = source.counting().filter_map(losses).min();
            let losses = losses.map(|(known_ns, until_ns)| {
                Missing::new("unknown", stamp(known_ns), stamp(until_ns), None)
            });
            let (from, to) = (stamp(from_ns), stamp(to_ns));
            let queues = source.queues.iter();
            let steps = queues.filter_map(|queue| queue.undecided(from_ns, to_ns));
            let steps = steps.map(|packets| Missing::at_most(CLOCK_STEP, from, to, packets));
            let mut missing: Vec<_> = losses.into_iter().chain(steps).collect();
            for entry in &mut missing {
                entry.source = Some(source.name.clone());
            }
            missing
        };
        self.sources.iter().flat_map(entries).collect()
    }

    /// Known and unknown losses at intake within the closed interval of ring time, for a window
    /// that was closed at `clock_ns` and whose records end at `ends`. `offset_ns` is added to the
    /// reported times.
    pub(crate) fn missing(
        &self,
        (from_ns, to_ns): (i64, i64),
        clock_ns: i64,
        offset_ns: i64,
        ends: &[u64],
    ) -> Vec<Missing> {
        let stamp = |ring_ns: i64| ring_ns.saturating_add(offset_ns);
        // Read before the losses, because inserters log a loss before they declare it known.
        let unknown = self.unknown((from_ns, to_ns), clock_ns, offset_ns);
        let mut missing = self.losses(&[(from_ns, to_ns)], offset_ns, ends);
        missing.extend(unknown);
        // A source without watermarks may deliver more packets of interfaces without a number late.
        let is_over = |queue: &Arc<QueueCounters>| queue.promises() || queue.is_ended();
        for (source, now) in self.sources.iter().zip(self.snapshots()) {
            let is_told = |it: &Missing| {
                it.cause == LOST_INTERFACE_LIMIT && it.source.as_ref() == Some(&source.name)
            };
            let has_any = !self.offline && now.lost.contains_key(LOST_INTERFACE_LIMIT);
            if has_any && !source.queues.iter().all(is_over) && !missing.iter().any(is_told) {
                let (from_ns, to_ns) = (stamp(from_ns), stamp(to_ns));
                let mut more = Missing::new(LOST_INTERFACE_LIMIT, from_ns, to_ns, None);
                more.source = Some(source.name.clone());
                missing.push(more);
            }
        }
        missing
    }

    /// Losses at intake within the closed intervals of ring time, for records up to `ends`. Stamps
    /// are `offset_ns` ahead of ring time.
    fn losses(&self, windows_ns: &[(i64, i64)], offset_ns: i64, ends: &[u64]) -> Vec<Missing> {
        let whole_ns = windows_ns.iter().copied().reduce(hull);
        let (from_ns, to_ns) = whole_ns.unwrap_or((i64::MIN, i64::MAX));
        let stamp = |ring_ns: i64| ring_ns.saturating_add(offset_ns);
        let entry = |(event, by): (LossEvent, BTreeMap<_, _>)| {
            let (first_ns, last_ns) = event.spans_ns[0];
            let from_ns = stamp(first_ns.max(from_ns));
            let to_ns = stamp(last_ns.min(to_ns));
            let (cause, packets) = (event.cause, event.packets);
            let mut missing = match cause {
                INTERFACE_DOWN => Missing::new(cause, from_ns, to_ns, None),
                _ if event.is_part && cause == SHED => {
                    Missing::at_most(cause, from_ns, to_ns, packets)
                }
                PERHAPS_LOST => Missing::at_most(cause, from_ns, to_ns, packets),
                _ => Missing::new(cause, from_ns, to_ns, Some(packets)),
            };
            missing.source = self.sources.get(event.source).map(|s| s.name.clone());
            missing.by = by;
            missing
        };
        let logs = [&self.losses, &self.shed].into_iter();
        let losses = logs.flat_map(|log| shed_together(log.within_until(end(ends), windows_ns)));
        losses.map(entry).collect()
    }

    /// Live: the known losses at intake within the closed intervals of ring time. The second value:
    /// the ring time up to which the losses of all [counting](SourceIntake::counting) queues are
    /// known, ns; `None`: unknown for some queue. Stamps are `offset_ns` ahead of ring time.
    pub(crate) fn known_losses(
        &self,
        windows_ns: &[(i64, i64)],
        offset_ns: i64,
    ) -> (Vec<Missing>, Option<i64>) {
        // Read before the losses, because inserters log a loss before they declare it known.
        let counting = self.sources.iter().flat_map(SourceIntake::counting);
        let known_ns = counting.map(|queue| queue.known_until_ns()).min();
        let known_ns = known_ns.unwrap_or(Some(i64::MAX));
        (self.losses(windows_ns, offset_ns, &[]), known_ns)
    }

    /// Live: known losses and shed packets, as cause, range of ring time, and number of packets.
    pub(crate) fn loss_events(&self) -> Vec<(&'static str, (i64, i64), u64)> {
        let logs = [&self.losses, &self.shed].into_iter();
        logs.flat_map(LossLog::each).collect()
    }

    /// Messages about losses that no counter shows.
    pub(crate) fn unknown_losses(&self) -> Vec<String> {
        let unknown = |(source, s): (&SourceIntake, SourceSnapshot)| {
            let lost = s.lost.iter().filter(|(_, n)| n.is_none());
            let mut causes: Vec<&str> = lost.map(|(cause, _)| *cause).collect();
            let mut queues = source.queues.iter();
            if queues.any(|queue| queue.are_input_drops_unknown()) {
                causes.push("backlog");
            }
            (!causes.is_empty())
                .then(|| format!("{}: losses unknown: {}", s.name, causes.join(", ")))
        };
        let sources = self.sources.iter().zip(self.snapshots());
        sources.filter_map(unknown).collect()
    }

    /// Messages about sources whose packets are placed by another clock than the system's.
    pub(crate) fn foreign_clocks(&self) -> Vec<String> {
        let sentence = |source: &SourceIntake| {
            let ahead_ns = source.queues.iter().find_map(|queue| queue.ahead_ns())?;
            let way = if ahead_ns < 0 { "behind" } else { "ahead of" };
            let (name, by) = (&source.name, seconds(ahead_ns.saturating_abs()));
            Some(format!(
                "packets of {name} are placed by its own clock, {by} {way} this system's when the last one came"
            ))
        };
        self.sources.iter().filter_map(sentence).collect()
    }

    pub(crate) fn interface_counts(&self, id: u16) -> InterfaceCounts {
        let Some(now) = self.snapshot_of(id) else {
            return InterfaceCounts::default();
        };
        let of = |causes: &[&str]| {
            let lost = now.lost.iter();
            let lost = lost.filter(|(cause, _)| causes.contains(*cause));
            let counts: Vec<Option<u64>> = lost.map(|(_, lost)| *lost).collect();
            let known: Option<u64> = counts.iter().copied().sum();
            known.filter(|_| !counts.is_empty())
        };
        InterfaceCounts {
            received: now.received,
            dropped: of(&[LossCause::Nic.as_str()]),
            os_dropped: of(&[
                LossCause::Kernel.as_str(),
                LossCause::NoBuffer.as_str(),
                LOST_NO_BUCKET,
            ]),
        }
    }

    /// Packets that the source of an interface has received and lost.
    pub(crate) fn interface_totals(&self, id: u16) -> (Option<u64>, Option<u64>) {
        self.snapshot_of(id).map_or((None, None), |it| {
            (it.received, it.lost.values().copied().sum())
        })
    }

    fn snapshot_of(&self, id: u16) -> Option<SourceSnapshot> {
        let source = self.sources.get(self.interfaces.source(id)?)?;
        Some(source.snapshot(self.read_mono_ns.load(Relaxed)))
    }
}

/// Merges the shed packets of each source into one loss, with the number of packets by reason.
fn shed_together(losses: Vec<LossEvent>) -> Vec<(LossEvent, BTreeMap<&'static str, u64>)> {
    let mut together: Vec<(LossEvent, BTreeMap<_, _>)> = Vec::with_capacity(losses.len());
    for loss in losses {
        if !SHED_BY.contains(&loss.cause) {
            together.push((loss, BTreeMap::new()));
            continue;
        }
        let (by, packets) = (loss.cause, loss.packets);
        let loss = LossEvent {
            cause: SHED,
            ..loss
        };
        let is_same = |(it, _): &&mut (LossEvent, _)| (it.source, it.cause) == (loss.source, SHED);
        match together.iter_mut().find(is_same) {
            Some((sum, parts)) => {
                *sum = sum.with(loss);
                parts.insert(by, packets);
            }
            None => together.push((loss, BTreeMap::from([(by, packets)]))),
        }
    }
    together
}

/// The number of records before the end of a window of files, which have one producer. `ends` has
/// the numbers by producer. Live the result does not matter, because loss events have record 0.
fn end(ends: &[u64]) -> u64 {
    ends.first().copied().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use retroscope_capture::{InterfaceInfo, SourceStatistics, TimeDomain};
    use retroscope_packet::LinkType;
    use retroscope_ring::{Ring, RingConfig};

    use super::*;
    use crate::intake::counters::{BurstCount, EngineReading};

    fn intake(sources: &[(&str, usize)]) -> Intake {
        let sources = sources
            .iter()
            .map(|(name, queues)| ((*name).to_owned(), *queues));
        Intake::new(sources, Arc::default(), false)
    }

    /// Ends a queue with an error. Returns the reported name.
    fn end(intake: &Intake, source: usize, queue: usize) -> Option<String> {
        let now = Moment {
            ring_ns: 200,
            mono_ns: 1000,
            offset_ns: 0,
        };
        let queue = &intake.sources[source].queues[queue];
        intake.no_longer_recorded(source, (queue, 100), now)
    }

    #[test]
    fn a_queue_that_ends_alone_is_told() {
        let intake = intake(&[("eth1", 3), ("eth2", 1)]);
        assert_eq!(end(&intake, 0, 2).as_deref(), Some("a part of eth1"));
        assert_eq!(end(&intake, 0, 0), None, "told already");
        assert_eq!(end(&intake, 0, 1).as_deref(), Some("eth1"));
        assert_eq!(end(&intake, 0, 1), None);
        assert_eq!(end(&intake, 1, 0), None, "the error says it");
        let missing = intake.losses(&[(150, 160)], 0, &[]);
        assert_eq!(missing[0].source.as_deref(), Some("eth1"));
    }

    /// A hostile stream may use all interface numbers.
    #[test]
    fn the_totals_of_all_interfaces_take_no_time() {
        let intake = intake(&[("eth1", 1), ("eth2", 1)]);
        let ring = Ring::new(&RingConfig::new(16 << 20, 1, 1), None).unwrap();
        let info = InterfaceInfo {
            name: String::new(),
            link_type: LinkType::RAW,
            snaplen: 0,
            time_domain: TimeDomain::Foreign,
            time_resolution_ns: 1,
        };
        for id in 0..=u16::MAX {
            let source = usize::from(id % 2);
            intake.interfaces.register(&ring, source, &info).unwrap();
        }
        intake.sources[0].queues[0].set_engine(EngineReading {
            statistics: SourceStatistics {
                received: Some(7),
                lost: Vec::new(),
                as_of_ns: None,
            },
            ..EngineReading::default()
        });
        let start = Instant::now();
        for id in 0..=u16::MAX {
            let received = (id % 2 == 0).then_some(7);
            assert_eq!(intake.interface_totals(id), (received, Some(0)));
        }
        assert!(start.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn a_source_without_watermarks_may_bring_more_that_has_no_interface() {
        for (promises, is_ended, told) in [(false, false, 1), (true, false, 0), (false, true, 0)] {
            let intake = intake(&[("stream", 1), ("eth1", 1)]);
            let queue = &intake.sources[0].queues[0];
            queue.set_promises(promises);
            let told_of_it = || {
                let missing = intake.missing((0, 10), 10, 0, &[]);
                let its = missing.iter().filter(|it| it.cause == LOST_INTERFACE_LIMIT);
                its.count()
            };
            assert_eq!(told_of_it(), 0);
            queue.add(BurstCount {
                interface_limit: 1,
                ..BurstCount::default()
            });
            if is_ended {
                queue.set_ended();
            }
            assert_eq!(told_of_it(), told, "{promises}, {is_ended}");
            let at_ns = (5, 5);
            intake
                .losses
                .push(0, 0, LOST_INTERFACE_LIMIT, [at_ns; 2], 1);
            assert_eq!(told_of_it(), 1, "once");
        }
    }

    #[test]
    fn queues_of_the_same_source_go_on_too() {
        let intake = intake(&[("eth1", 2)]);
        assert_eq!(end(&intake, 0, 0).as_deref(), Some("a part of eth1"));
        assert_eq!(end(&intake, 0, 1), None, "the error says it");
    }
}
