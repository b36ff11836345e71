//! Load shedding: which of the packets that pass the capture filter an inserter keeps.
//!
//! Shunted flows are shed ([`Marks`]), except packets with SYN, FIN or RST. From files, before an
//! inserter uses a mark that may have changed, it waits until earlier packets were analyzed. So the
//! result does not depend on the speed of threads.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
    },
};

use retroscope_capture::{Queue, Shunt, ShuntedFlow};
use retroscope_filter::FilterFrame;
use retroscope_flow::{
    BiflowKey, Cutoff, DirectedKey, FeedCursor, HEAD_BYTES, HandOver, HistoryGoal, HistoryStep,
    Secret, ShedCause, Shedder, ShedderConfig, TailDrop, TrackerConfig,
};
use retroscope_packet::{
    Direction, LinkType,
    proto::{SCTP, TCP, UDP},
};
use retroscope_ring::{Positions, Producer, Ring};

use crate::{
    analysis::lockstep::Lockstep,
    control::lock,
    intake::{
        Intake,
        capture_filter::CaptureFilter,
        inserter::frame::WireFrame,
        marks::{DumpFilters, Marks},
    },
};

/// Congestion: more than one part in 4 of the inserter's share of the ring is unread.
const RING_SHARE: u64 = 4;
/// From files: after this many packets, the inserter checks again whether a flow has become exempt.
const RECHECK_PACKETS: u64 = 256;
/// Bytes of a frame that are searched for headers, if a tag is restored.
const HEADERS: usize = 256;

/// The history goal, shared by all inserters.
#[derive(Debug)]
pub(crate) struct History {
    goal: Mutex<HistoryGoal>,
    pub(crate) goal_ns: i64,
    /// End of the period, ns of the monotonic clock. Accesses to `due_ns` and `limit` are
    /// `Relaxed`, because no other access depends on these numbers.
    due_ns: AtomicI64,
    /// Number of bytes of each direction that a flow keeps; `u64::MAX`: no limit.
    limit: AtomicU64,
}

impl History {
    /// Each inserter has one bucket open, which does not count as history.
    pub(crate) fn new(goal_ns: i64, ring: &Ring, inserters: usize) -> Self {
        let buckets = ring.buckets().saturating_sub(inserters);
        let capacity = buckets as u64 * ring.bucket_bytes() as u64;
        Self {
            goal: Mutex::new(HistoryGoal::new(goal_ns, capacity)),
            goal_ns,
            due_ns: AtomicI64::new(i64::MIN),
            limit: AtomicU64::new(u64::MAX),
        }
    }

    pub(crate) fn limit(&self) -> Option<u64> {
        Some(self.limit.load(Relaxed)).filter(|limit| *limit < u64::MAX)
    }

    /// Ends a period, if one is due. Returns a message if the limit changes, or if the goal cannot
    /// be kept.
    fn period(&self, now_ns: i64, intake: &Intake) -> Option<String> {
        if now_ns < self.due_ns.load(Relaxed) {
            return None;
        }
        let mut goal = self.goal.try_lock().ok()?;
        self.due_ns.store(now_ns + goal.period_ns(), Relaxed);
        let step = goal.period(now_ns, intake.used_bytes())?;
        self.limit.store(goal.limit().unwrap_or(u64::MAX), Relaxed);
        let goal_s = self.goal_ns as f64 / 1e9;
        Some(match step {
            HistoryStep::Limit(bytes) => format!(
                "--history-goal {goal_s} s: flows keep the first {} KiB of each direction",
                bytes >> 10
            ),
            HistoryStep::All => {
                format!("--history-goal {goal_s} s: flows keep all of their packets")
            }
            HistoryStep::Short => format!(
                "--history-goal {goal_s} s cannot be kept: the first {} KiB of flows are more than the ring holds",
                HEAD_BYTES >> 10
            ),
        })
    }
}

/// A class of flows: the filter for the first packet of a flow, and what is kept of each flow.
pub(crate) type FlowClass = (Option<CaptureFilter>, Cutoff);

/// The classes of flows, which may change.
#[derive(Debug)]
pub(crate) struct Cutoffs {
    classes: Mutex<Vec<FlowClass>>,
    /// Number of changes. Relaxed: the mutex orders the changes.
    version: AtomicU64,
    /// How long flows are remembered without a packet, ns. The times of later cutoffs must not be
    /// longer.
    pub(crate) silence_ns_max: i64,
}

impl Cutoffs {
    pub(crate) fn new(
        classes: Vec<FlowClass>,
        tail_drop: Option<TailDrop>,
        (shunts, has_limit): (bool, bool),
    ) -> Self {
        let of_flows = ShedderConfig {
            cutoffs: classes.iter().map(|(_, cutoff)| *cutoff).collect(),
            tail_drop,
            shunts,
            has_limit,
        };
        Self {
            classes: Mutex::new(classes),
            version: AtomicU64::new(0),
            silence_ns_max: of_flows.silence_ns_max(),
        }
    }

    pub(crate) fn set(&self, classes: Vec<FlowClass>) {
        *lock(&self.classes) = classes;
        self.version.fetch_add(1, Relaxed);
    }
}

/// The configuration of shedding. The class of a flow is the first one without a filter, or whose
/// filter matches the packet that decides, usually the first packet of the flow.
#[derive(Debug, Clone)]
pub(crate) struct SheddingConfig {
    pub(crate) cutoffs: Arc<Cutoffs>,
    pub(crate) marks: Arc<Marks>,
    /// Whether a script or module may shunt flows.
    pub(crate) shunts: bool,
    /// Flows that are distinguished at the same time.
    pub(crate) flows_max: usize,
    /// Live: tail early drop.
    pub(crate) tail_drop: Option<TailDrop>,
    /// Live: the history goal.
    pub(crate) history: Option<Arc<History>>,
    /// The positions of the analyzer's reader and of the readers of shards.
    pub(crate) readers: Vec<Positions>,
    /// Bytes of the ring for each inserter.
    pub(crate) ring_bytes: u64,
}

/// Decides which packets of a live queue, or of all files, are shed. For one thread.
#[derive(Debug)]
pub(crate) struct Shedding {
    filters: Vec<Option<CaptureFilter>>,
    cutoffs: Arc<Cutoffs>,
    /// The version of the cutoffs that are in use.
    version: u64,
    shedder: Shedder,
    marks: Arc<Marks>,
    dump_filters: DumpFilters,
    /// Position in the list of newly exempt flows.
    exempted: Option<FeedCursor>,
    history: Option<Arc<History>>,
    readers: Vec<Positions>,
    ring_bytes: u64,
    /// Packets lost by congestion up to the last period.
    lost: u64,
    /// From files: analyzes stored packets. `None`: live.
    lockstep: Option<Arc<Lockstep>>,
    /// From files: all packets before this one were analyzed, counted in packets that the shedder
    /// was asked about.
    drained: u64,
    /// Number of packets that the shedder was asked about, up to the last packet that was kept.
    kept: u64,
    /// Number of packets that the shedder was asked about.
    asked: u64,
}

impl Shedding {
    pub(crate) fn new(classes: SheddingConfig, lockstep: Option<Arc<Lockstep>>) -> Self {
        let config = TrackerConfig {
            flows_max: classes.flows_max,
            ..TrackerConfig::default()
        };
        let of_start = lock(&classes.cutoffs.classes).clone();
        let (filters, cutoffs) = of_start.into_iter().unzip();
        let advise = retroscope_ring::ask_for_huge_pages;
        let of_flows = ShedderConfig {
            cutoffs,
            tail_drop: classes.tail_drop,
            shunts: classes.shunts,
            has_limit: classes.history.is_some(),
        };
        let mut shedder = Shedder::new(of_flows, &config, Secret::random(), advise);
        shedder.set_hands_over(lockstep.is_none());
        Self {
            filters,
            version: classes.cutoffs.version.load(Relaxed),
            cutoffs: classes.cutoffs,
            shedder,
            exempted: classes.marks.listen(),
            dump_filters: classes.marks.dump_filters(),
            marks: classes.marks,
            history: classes.history,
            readers: classes.readers,
            ring_bytes: classes.ring_bytes,
            lost: 0,
            lockstep,
            drained: 0,
            kept: 0,
            asked: 0,
        }
    }

    /// Applies changed cutoffs. Never waits: if the lock is taken, a later call applies the
    /// changes.
    pub(crate) fn follow_cutoffs(&mut self) {
        let version = self.cutoffs.version.load(Relaxed);
        if version == self.version {
            return;
        }
        let Ok(classes) = self.cutoffs.classes.try_lock() else {
            return;
        };
        let (filters, cutoffs) = classes.clone().into_iter().unzip();
        self.filters = filters;
        self.shedder.set_cutoffs(cutoffs);
        self.version = version;
    }

    /// Limits flows to the bytes that the history goal allows. Returns a message if the limit
    /// changes, or if the goal cannot be kept.
    pub(crate) fn follow_history(&mut self, now_ns: i64, intake: &Intake) -> Option<String> {
        let history = self.history.as_ref()?;
        let notice = history.period(now_ns, intake);
        self.shedder.set_limit(history.limit());
        notice
    }

    /// Lets the engine of a live queue drop flows that are shed, and receive again flows that are
    /// kept again. May return a message for the user.
    pub(crate) fn hand_over(&mut self, queue: &mut dyn Queue) -> Option<String> {
        let mut notice = None;
        for HandOver { ends, dropped } in self.shedder.take_hand_overs() {
            let shunt = dropped.map(|(silence_ns, cause)| Shunt {
                silence_ns,
                class: cause as u8,
            });
            // After a failure, no more flows are dropped, but dropped flows must still return.
            if notice.is_some() && shunt.is_some() {
                continue;
            }
            let Some(Err(error)) = flow_of(&ends).map(|flow| queue.shunt(&flow, shunt)) else {
                continue;
            };
            if error.kind() == io::ErrorKind::Unsupported {
                self.shedder.set_hands_over(false);
                self.exempted = None;
                return None;
            }
            self.shedder.end_hand_overs();
            notice = Some(format!(
                "flows are shed only after their packets arrive, because the engine failed to drop the packets earlier: {error}"
            ));
        }
        // After the other calls, which may include drops of flows that have become exempt since.
        while let Some(key) = self
            .exempted
            .as_mut()
            .and_then(|cursor| self.marks.exempted(cursor))
        {
            for is_reverse in [false, true] {
                if let Some(flow) = flow_of(&DirectedKey { key, is_reverse }) {
                    let _ = queue.shunt(&flow, None);
                }
            }
        }
        notice
    }

    /// Whether [`Self::period`] must be called.
    pub(crate) fn has_periods(&mut self) -> bool {
        self.shedder.tail_drop().is_some()
    }

    /// Ends a period. `lost`: packets that this queue has lost by congestion in total.
    /// `record_bytes`: average captured bytes of a stored packet of this queue.
    pub(crate) fn period(&mut self, lost: u64, producer: &Producer, record_bytes: u64) {
        let Some(tail_drop) = self.shedder.tail_drop() else {
            return;
        };
        let read = self.readers.iter().map(|reader| reader.get(producer.id()));
        let unread = producer
            .stored()
            .saturating_sub(read.min().unwrap_or(u64::MAX));
        let is_behind = unread.saturating_mul(record_bytes) > self.ring_bytes / RING_SHARE;
        tail_drop.period(lost > self.lost || is_behind);
        self.lost = lost;
    }

    /// Why a frame of this ring time is not kept; `None`: it is kept. From files, may call
    /// `drain_before`, which stores the earlier frames and has them analyzed.
    pub(crate) fn sheds(
        &mut self,
        (link_type, interface): (LinkType, u16),
        time_ns: i64,
        frame: &WireFrame<'_>,
        drain_before: &mut dyn FnMut(&Lockstep),
    ) -> Option<ShedCause> {
        let Self {
            filters,
            shedder,
            marks,
            dump_filters,
            lockstep,
            drained,
            kept,
            asked,
            ..
        } = self;
        let mut headers = [0; HEADERS];
        let data = match frame.parts() {
            [whole, [], []] => whole,
            parts => {
                let mut len = 0;
                for part in parts {
                    let some = &part[..part.len().min(HEADERS - len)];
                    headers[len..len + some.len()].copy_from_slice(some);
                    len += some.len();
                }
                &headers[..len]
            }
        };
        let class = || {
            let mut filters = filters.iter_mut();
            let takes = |filter: &mut Option<CaptureFilter>| {
                let filter = filter.as_mut();
                filter.is_none_or(|filter| filter.takes(link_type, interface, frame))
            };
            u16::try_from(filters.position(takes)?).ok()
        };
        // Most marks of a flow are due to packets of the flow, so wait if one of these was kept
        // since the last wait. A packet of another flow may open a dump that selects this flow, so
        // wait also after `RECHECK_PACKETS` packets.
        let mark = |key: &BiflowKey, (last, number): (Option<u64>, u64)| {
            let is_due =
                last.is_none_or(|last| last >= *drained) || number - *drained >= RECHECK_PACKETS;
            if let Some(lockstep) = lockstep
                && is_due
                && *kept > *drained
            {
                drain_before(lockstep);
                *drained = number;
                marks.refresh_filters(dump_filters);
            }
            let seen = FilterFrame::new(
                data,
                frame.wire_len,
                Direction::from_bits(frame.direction).into(),
            );
            marks.of(key, (link_type, interface), seen, dump_filters)
        };
        let place = (time_ns, frame.wire_len);
        let shed = shedder.sheds(link_type, place, data, class, mark);
        *asked += 1;
        if shed.is_none() {
            *kept = *asked;
        }
        shed
    }
}

/// A direction of a flow that an engine can drop. `None`: for example, the flow has VLAN tags.
fn flow_of(ends: &DirectedKey) -> Option<ShuntedFlow> {
    let key = &ends.key;
    if key.vlans().next().is_some() || !matches!(key.proto(), TCP | UDP | SCTP) {
        return None;
    }
    let mut sockets = key
        .endpoints()?
        .map(|end| SocketAddr::new(end.addr, end.port));
    if ends.is_reverse {
        sockets.reverse();
    }
    let [source, destination] = sockets;
    Some(ShuntedFlow {
        source,
        destination,
        protocol: key.proto(),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use retroscope_capture::{
        Burst, FrameMeta, InterfaceInfo, QueueStatus, SourceError, SourceEvent, SourceStatistics,
    };
    use retroscope_filter::FilterMode;
    use retroscope_ring::{GroupKind, Record, RingConfig};

    use super::*;
    use crate::analysis::{native::NativeCode, rules::Rules};

    fn marks() -> Arc<Marks> {
        let rules = Rules::new(FilterMode::Live, Arc::new(NativeCode::new()));
        Arc::new(Marks::new(true, rules))
    }

    #[test]
    fn losses_and_an_unread_ring_are_congestion() {
        let ring = Ring::new(&RingConfig::new(16 << 20, 1, 1), None).unwrap();
        let mut reader = ring.group(GroupKind::Lapped).unwrap();
        let mut producer = ring.producer().unwrap();
        let mut shedding = Shedding::new(
            SheddingConfig {
                cutoffs: Arc::new(Cutoffs::new(Vec::new(), None, (false, false))),
                marks: marks(),
                shunts: false,
                flows_max: 1024,
                tail_drop: Some(TailDrop::new(16)),
                history: None,
                readers: vec![reader.positions()],
                ring_bytes: ring.bytes(),
            },
            None,
        );
        let store = |producer: &mut Producer, count: usize| {
            for _ in 0..count {
                let record = Record {
                    time_ns: 0,
                    wire_len: 1024,
                    interface: 0,
                    direction: 0,
                    tag_restored: false,
                    shard: 0,
                    parts: [&[0; 1024], &[], &[]],
                };
                producer.store(&record).unwrap();
            }
            producer.publish();
        };
        let max = |shedding: &mut Shedding, lost, producer: &Producer| {
            shedding.period(lost, producer, 1024);
            shedding.shedder.tail_drop().unwrap().packets_max()
        };
        // A quarter of 16 MiB unread is no congestion yet; one packet more is.
        store(&mut producer, 4096);
        assert_eq!(max(&mut shedding, 0, &producer), None);
        store(&mut producer, 1);
        assert_eq!(max(&mut shedding, 0, &producer), Some(2048));
        assert_eq!(max(&mut shedding, 0, &producer), Some(1024));
        while reader.next().is_some() {}
        reader.finish();
        assert_eq!(max(&mut shedding, 0, &producer), Some(1025));
        // Only losses since the last period count.
        assert_eq!(max(&mut shedding, 3, &producer), Some(512));
        assert_eq!(max(&mut shedding, 3, &producer), Some(513));
    }

    /// An engine that drops flows. Calls to drop a flow fail if `calls` has at least `calls_max`
    /// entries.
    #[derive(Debug, Default)]
    struct Drops {
        calls: Vec<(ShuntedFlow, Option<u8>)>,
        calls_max: usize,
    }

    impl Queue for Drops {
        fn interfaces(&self) -> &[InterfaceInfo] {
            &[]
        }

        fn next(&mut self, _: Duration) -> Result<QueueStatus, SourceError> {
            Ok(QueueStatus::Idle)
        }

        fn burst(&self) -> Burst<'_> {
            Burst {
                memory: &[],
                frames: &[],
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

        fn shunt(&mut self, flow: &ShuntedFlow, shunt: Option<Shunt>) -> io::Result<()> {
            if self.calls.len() >= self.calls_max && shunt.is_some() {
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            self.calls.push((*flow, shunt.map(|shunt| shunt.class)));
            Ok(())
        }

        fn stop(&mut self) {}
    }

    /// A datagram with 1000 payload bytes.
    fn udp(port: u16) -> Vec<u8> {
        let mut data = vec![0; 12];
        data.extend([8, 0, 0x45, 0, 4, 4, 0, 0, 0, 0, 64, 17, 0, 0]);
        data.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        data.extend(port.to_be_bytes());
        data.extend([0, 9, 3, 240, 0, 0]);
        data.resize(data.len() + 1000, 0);
        data
    }

    #[test]
    fn what_becomes_exempt_is_taken_back_at_once() {
        let marks = marks();
        let cutoff = Cutoff {
            bytes: 1000,
            refill_ns: 60_000_000_000,
        };
        let classes = SheddingConfig {
            cutoffs: Arc::new(Cutoffs::new(vec![(None, cutoff)], None, (false, false))),
            marks: Arc::clone(&marks),
            shunts: false,
            flows_max: 1024,
            tail_drop: None,
            history: None,
            readers: Vec::new(),
            ring_bytes: 0,
        };
        let mut shedding = Shedding::new(classes, None);
        let mut queue = Drops {
            calls: Vec::new(),
            calls_max: 2,
        };
        let sheds = |shedding: &mut Shedding, port| {
            let data = udp(port);
            let len = u32::try_from(data.len()).unwrap();
            let meta = FrameMeta {
                time_ns: 0,
                offset: 0,
                captured_len: len,
                wire_len: len,
                interface: 0,
                direction: Direction::Inbound,
                vlan: None,
            };
            let frame = retroscope_capture::LentFrame { meta, data: &data };
            let wire = WireFrame::new(&frame, LinkType::ETHERNET);
            shedding.sheds((LinkType::ETHERNET, 0), 0, &wire, &mut |_| {})
        };
        let class = ShedCause::Cutoff as u8;
        for port in [1, 2] {
            assert_eq!(sheds(&mut shedding, port), None);
            assert_eq!(sheds(&mut shedding, port), Some(ShedCause::Cutoff));
        }
        assert_eq!(shedding.hand_over(&mut queue), None);
        let ports = |queue: &mut Drops| -> Vec<(u16, u16, Option<u8>)> {
            let calls = std::mem::take(&mut queue.calls).into_iter();
            let calls =
                calls.map(|(flow, class)| (flow.source.port(), flow.destination.port(), class));
            calls.collect()
        };
        assert_eq!(
            ports(&mut queue),
            [(1, 9, Some(class)), (2, 9, Some(class))]
        );
        let parsed = retroscope_packet::parse(LinkType::ETHERNET, &udp(2));
        marks.exempt(DirectedKey::of(&parsed, true).unwrap().key);
        assert_eq!(shedding.hand_over(&mut queue), None);
        let mut back = ports(&mut queue);
        back.sort_unstable();
        assert_eq!(back, [(2, 9, None), (9, 2, None)]);
        assert_eq!(sheds(&mut shedding, 2), None);
        // The failure is reported once, and dropped flows still return.
        queue.calls_max = 0;
        assert_eq!(sheds(&mut shedding, 3), None);
        assert!(sheds(&mut shedding, 3).is_some());
        assert!(shedding.hand_over(&mut queue).is_some());
        let parsed = retroscope_packet::parse(LinkType::ETHERNET, &udp(1));
        marks.exempt(DirectedKey::of(&parsed, true).unwrap().key);
        assert_eq!(sheds(&mut shedding, 1), None);
        assert_eq!(shedding.hand_over(&mut queue), None);
        assert!(ports(&mut queue).contains(&(1, 9, None)));
    }
}
