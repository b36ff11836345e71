//! Receive queues of a port as an engine of [live queues](retroscope_capture::live): bursts, time
//! stamps, counters.
//!
//! # Counting
//! The counters belong to the port, so its first queue reports all counters. The other queues
//! report only the frames that they dropped as too long or malformed. `received` is `ipackets` plus
//! the packets lost before: `nic` is `imissed`, `damaged` is `ierrors`, `no-buffer` is `rx_nombuf`.
//! Each queue counts the packets that it took; at the end, the sum is compared with `ipackets` of
//! the stop. After a stop the first queue waits up to 1 s for the ends of the other queues, so that
//! the sum is complete.
//!
//! # Stop
//! DPDK cannot close a queue without discarding its waiting packets. So a stopped queue goes on
//! until its receive queues have been empty for 12 ms or 100 ms have passed. Later packets are not
//! received. The queues of a device that never runs out of packets stop at once. A queue whose vdev
//! is on top of a removed interface stops itself, and ends with an error.

use std::sync::{
    Arc,
    atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering},
};

use super::{
    eal,
    idle::Idle,
    lower::{LowerDevice, is_gone},
    port::{BURST, FRAME_BYTES_MAX, OpenPort},
    stamps::{DeviceClock, DeviceClockReading},
    sys::{Environment, MbufBurst, PortCounters, RawFrame},
};
use retroscope_capture::{
    Burst, Direction, FrameMeta, InterfaceInfo, LossCause, Queue, SourceBuffer, SourceError,
    SourceEvent, SourceStatistics, VlanTag, clock,
    live::{CutOff, LiveEngine, LiveQueue, LiveState, StopBalance},
};

/// Longest time from a stamp of the device's clock until the packet can be received. Includes the
/// error of the conversion to the system's clock.
const DELIVERY_DELAY_NS_MAX: i64 = 10_000_000;

/// How long the first queue waits at its end for the other queues. If the interface was removed,
/// each queue stops only after its own next check, every 50 ms.
const OTHER_QUEUES_WAIT_NS: i64 = 1_000_000_000;

/// The identifier (TPID) of the VLAN tag that NICs remove.
const TPID: u16 = 0x8100;

/// A port, and the state that its queues share.
#[derive(Debug)]
pub(super) struct PortQueues {
    pub(super) open_port: OpenPort,
    /// Frames that each queue took from the port: lent, or counted as too long or malformed. Each
    /// counter is in a separate cache line.
    frames_taken: Vec<PaddedCount>,
    /// Number of queues that have not reported their end.
    queues_running: AtomicUsize,
    /// The link's speed in Mbit/s as one of the queues found it; 0: unknown, or the link is down.
    megabits: AtomicU32,
    environment: &'static Environment,
    /// The kernel interface under a vdev.
    lower: Option<LowerDevice>,
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct PaddedCount(AtomicU64);

impl PortQueues {
    /// The state for one queue per thread.
    pub(super) fn new(
        environment: &'static Environment,
        open_port: OpenPort,
        lower: Option<LowerDevice>,
    ) -> Self {
        let queues = usize::from(open_port.threads);
        Self {
            frames_taken: (0..queues).map(|_| PaddedCount::default()).collect(),
            queues_running: AtomicUsize::new(queues),
            megabits: AtomicU32::new(0),
            open_port,
            environment,
            lower,
        }
    }

    fn frames_taken(&self) -> u64 {
        // Relaxed: counters. The counter of a queue that ended is complete for a thread that has
        // seen the end.
        self.frames_taken
            .iter()
            .map(|count| count.0.load(Ordering::Relaxed))
            .sum()
    }
}

/// The origin of a frame's time stamp.
#[derive(Debug)]
pub(super) enum Stamping {
    /// The system's clock at the fetch of the burst.
    Fetch,
    /// The driver's stamp, in units of this many ns since the UNIX epoch.
    Epoch(i64),
    /// The device's clock.
    Device(DeviceClock),
}

/// Receive queues of a port, served by one thread.
#[derive(Debug)]
struct DpdkEngine {
    mbufs: MbufBurst,
    frames: Vec<FrameMeta>,
    shared: Arc<PortQueues>,
    /// The receive queues that this engine polls; `turn` is the index of the next queue to poll.
    queues: Vec<u16>,
    turn: usize,
    /// Index of this queue among the source's queues, which is also the index of its thread.
    queue_index: usize,
    stamping: Stamping,
    is_registered: bool,
    idle: Idle,
    oversize: u64,
    /// Frames that the port refused, without the errors that its driver counts while the interface
    /// does not exist.
    refused: u64,
    unstamped: u64,
    /// The port's counters when this queue was stopped.
    at_stop: Option<PortCounters>,
    end: EndPhase,
}

/// The progress of a queue's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EndPhase {
    /// The queue receives.
    Open,
    /// The queue takes no more packets.
    Shut,
    /// The queue has reported its end to the other queues. The first queue waits for the ends of
    /// the other queues until `deadline_ns`, on the monotonic clock.
    Waiting { deadline_ns: i64 },
    /// The first queue's wait is over: all queues have ended, or the wait has timed out. The other
    /// queues do not wait.
    Over,
}

/// Makes the queue of thread `queue_index` of a started port. `cpus`: the CPUs for the thread.
pub(super) fn queue(
    interface: InterfaceInfo,
    cpus: Vec<u32>,
    notices: Vec<String>,
    shared: Arc<PortQueues>,
    queue_index: usize,
    stamping: Stamping,
) -> Box<dyn Queue> {
    let open_port = &shared.open_port;
    let megabits = open_port.port.link().unwrap_or_default().megabits;
    // Relaxed: no other data depend on the number.
    shared.megabits.store(megabits, Ordering::Relaxed);
    let delivery_delay_max_ns = if matches!(stamping, Stamping::Fetch) {
        0
    } else {
        DELIVERY_DELAY_NS_MAX
    };
    let mut live = LiveState::new(interface, cpus, clock::realtime_ns(), delivery_delay_max_ns);
    if matches!(stamping, Stamping::Epoch(_)) {
        // A driver's own stamps may come from any clock.
        live = live.stamped_elsewhere();
    }
    live.push_events(notices.into_iter().map(SourceEvent::Notice));
    let engine = DpdkEngine {
        mbufs: MbufBurst::new(Arc::clone(&open_port.port), queue_index, BURST),
        frames: Vec::with_capacity(usize::from(BURST)),
        queues: (0..open_port.queues)
            .skip(queue_index)
            .step_by(usize::from(open_port.threads))
            .collect(),
        turn: 0,
        queue_index,
        stamping,
        is_registered: false,
        idle: Idle::new(open_port.descriptors, open_port.quirks.is_vdev, megabits),
        oversize: 0,
        refused: 0,
        unstamped: 0,
        at_stop: None,
        end: EndPhase::Open,
        shared,
    };
    LiveQueue::boxed(live, engine)
}

impl DpdkEngine {
    /// Registers the thread at the first call, so that the environment keeps a cache of buffers for
    /// the thread.
    fn register(&mut self, live: &mut LiveState) {
        if !std::mem::replace(&mut self.is_registered, true)
            && let Err(error) = eal::register_thread(self.shared.environment)
        {
            live.notice(format_args!(
                "DPDK does not register the capture thread ({error}), so the capture is slower"
            ));
        }
    }

    /// Describes the `count` received frames. Returns whether there is a frame to lend.
    fn lend(&mut self, live: &mut LiveState, count: usize) -> bool {
        let now_ns = clock::realtime_ns();
        self.read_device_clock(now_ns);
        let direction = if self.shared.open_port.quirks.shows_sent {
            Direction::Unknown
        } else {
            Direction::Inbound
        };
        let newest_ns = if self.mbufs.is_plain && matches!(self.stamping, Stamping::Fetch) {
            let describe = |raw: &RawFrame| meta(raw, raw.place().unwrap_or(0), now_ns, direction);
            self.frames.extend(self.mbufs.frames().iter().map(describe));
            now_ns
        } else {
            self.describe(now_ns, direction)
        };
        let taken = &self.shared.frames_taken[self.queue_index].0;
        // Relaxed: a counter with one writer.
        taken.store(
            taken.load(Ordering::Relaxed) + count as u64,
            Ordering::Relaxed,
        );
        if self.frames.is_empty() {
            return false;
        }
        // After a frame that the device stamped, frames with older stamps may still wait in another
        // receive queue.
        if matches!(self.stamping, Stamping::Fetch) || self.queues.len() == 1 {
            live.watermark.on_burst(newest_ns, Some(now_ns));
        }
        live.on_packets(newest_ns, || false); // the checks of the link report whether it is up
        true
    }

    /// Describes frames one by one, for frames with individual stamps, several buffers or foreign
    /// buffers. Returns the newest stamp.
    fn describe(&mut self, now_ns: i64, direction: Direction) -> i64 {
        let mut own_at = self.mbufs.own_at;
        let mut newest_ns = i64::MIN;
        for index in 0..self.mbufs.frames().len() {
            let raw = self.mbufs.frames()[index];
            let offset = match raw.place() {
                Some(offset) => offset,
                None => {
                    let is_short = raw.bytes <= FRAME_BYTES_MAX;
                    // If the segments are shorter than the head claims, fewer bytes are copied.
                    if !is_short || self.mbufs.gather(index, own_at, raw.bytes) < raw.bytes {
                        self.oversize += 1;
                        continue;
                    }
                    own_at += raw.bytes as usize;
                    own_at - raw.bytes as usize
                }
            };
            let time_ns = match self.stamping {
                Stamping::Fetch => now_ns,
                _ => self.stamp_ns(index, now_ns),
            };
            newest_ns = newest_ns.max(time_ns);
            self.frames.push(meta(&raw, offset, time_ns, direction));
        }
        newest_ns
    }

    /// The time of a frame that the driver or the device stamps.
    fn stamp_ns(&mut self, index: usize, now_ns: i64) -> i64 {
        let is_stamped = self.mbufs.frames()[index].is_stamped;
        let stamp = is_stamped.then(|| self.mbufs.stamp(index));
        let stamp_ns = stamp.and_then(|stamp| match &self.stamping {
            Stamping::Fetch => None,
            Stamping::Epoch(unit_ns) => i64::try_from(stamp)
                .ok()
                .and_then(|stamp| stamp.checked_mul(*unit_ns)),
            Stamping::Device(clock) => clock.time_ns(stamp, now_ns),
        });
        stamp_ns.unwrap_or_else(|| {
            self.unstamped += 1;
            now_ns
        })
    }

    fn read_device_clock(&mut self, now_ns: i64) {
        if let Stamping::Device(device) = &mut self.stamping
            && device.is_due(now_ns)
            && let Ok(ticks) = self.shared.open_port.port.clock()
        {
            device.read(DeviceClockReading {
                ticks,
                time_ns: clock::realtime_ns(),
            });
        }
    }

    /// Checks the link. If a kernel interface is under the vdev, every queue checks this interface,
    /// and stops if it was removed. Otherwise the port's first queue checks for all queues. The
    /// other queues of a NIC check only while its speed is unknown, because the first queue makes
    /// no checks while packets arrive.
    fn look_at_link(&mut self, live: &mut LiveState) {
        let shared = Arc::clone(&self.shared);
        // Relaxed: no other data depend on the number.
        let known = || shared.megabits.load(Ordering::Relaxed);
        let is_needed =
            self.queue_index == 0 || (known() == 0 && !self.shared.open_port.quirks.is_vdev);
        let is_up = match &shared.lower {
            Some(lower) => {
                let found = lower.interface.is_up(lower.index);
                if is_gone(&found) {
                    live.failure = Some(lower.error(&live.interface().name));
                    return live.stop(self);
                }
                found.ok()
            }
            None if is_needed => {
                let link = shared.open_port.port.link().ok();
                let megabits = link.unwrap_or_default().megabits;
                shared.megabits.store(megabits, Ordering::Relaxed);
                link.map(|link| link.is_up)
            }
            _ => None,
        };
        self.idle.on_speed(known());
        if let Some(is_up) = is_up.filter(|_| self.queue_index == 0) {
            live.set_interface_up(is_up);
        }
    }

    /// Whether the interface under the vdev was removed.
    fn is_lower_gone(&self) -> bool {
        let lower = self.shared.lower.as_ref();
        lower.is_some_and(|lower| is_gone(&lower.interface.is_up(lower.index)))
    }

    /// The port's counters as statistics.
    fn port_statistics(
        &mut self,
        counters: PortCounters,
        as_of_ns: Option<i64>,
    ) -> SourceStatistics {
        // `net_pcap` counts an error for each poll of an interface that is gone. The check of the
        // interface follows the reading of the counters, so accepted counters are from a time when
        // the interface existed.
        if counters.refused > self.refused && !self.is_lower_gone() {
            self.refused = counters.refused;
        }
        let arrived = if self.end == EndPhase::Over {
            self.arrived()
        } else {
            counters.received
        };
        let missed = self
            .shared
            .open_port
            .quirks
            .counts_missed
            .then_some(counters.missed);
        let lost = vec![
            (LossCause::Nic, missed),
            (LossCause::Damaged, Some(self.refused)),
            (LossCause::NoBuffer, Some(counters.no_buffer)),
            (LossCause::Oversize, Some(self.oversize)),
        ];
        let before: u64 = lost[..3].iter().filter_map(|(_, count)| *count).sum();
        SourceStatistics {
            received: Some(arrived + before),
            lost,
            as_of_ns,
        }
    }

    /// The number of packets that the port received until its end: its counter at the stop, or the
    /// packets that the queues took if these are more. Packets that arrive after the stop and are
    /// not taken do not count.
    fn arrived(&self) -> u64 {
        let at_stop = self.at_stop.unwrap_or_default().received;
        at_stop.max(self.shared.frames_taken())
    }

    /// Reports to the other queues that this queue takes no more packets.
    fn mark_finished(&mut self) {
        if matches!(self.end, EndPhase::Open | EndPhase::Shut) {
            // Release, pairs with the Acquire in `balance`: the count in `frames_taken` is
            // complete.
            self.shared.queues_running.fetch_sub(1, Ordering::Release);
            let now_ns = clock::monotonic_ns();
            self.end = EndPhase::Waiting {
                deadline_ns: now_ns.saturating_add(OTHER_QUEUES_WAIT_NS),
            };
        }
    }
}

/// The descriptor of a frame whose bytes begin at `offset`.
fn meta(raw: &RawFrame, offset: usize, time_ns: i64, direction: Direction) -> FrameMeta {
    FrameMeta {
        time_ns,
        offset,
        captured_len: raw.bytes,
        wire_len: raw.bytes,
        interface: 0,
        direction,
        vlan: raw.is_tagged.then_some(VlanTag {
            tpid: TPID,
            tci: raw.tci,
        }),
    }
}

impl LiveEngine for DpdkEngine {
    /// Checks are rare, because the driver may take a lock or query its NIC for the answer.
    const LOOK_NS: i64 = 50_000_000;

    /// The descriptors of the NIC's receive queues that this engine polls. `None` for a vdev, whose
    /// descriptors usually hold no waiting packets.
    fn buffer(&self) -> Option<SourceBuffer> {
        let OpenPort {
            quirks,
            descriptors,
            ..
        } = &self.shared.open_port;
        let packets = self.queues.len() as u64 * u64::from(*descriptors);
        (!quirks.is_vdev).then_some(SourceBuffer::Packets(packets))
    }

    fn return_burst(&mut self, live: &mut LiveState) {
        self.frames.clear();
        self.mbufs.free();
        self.register(live);
    }

    /// Polls each receive queue once, in turn, until a queue has packets to lend.
    fn fetch(&mut self, live: &mut LiveState) -> Result<bool, SourceError> {
        if self.end != EndPhase::Open {
            return Ok(false);
        }
        for _ in 0..self.queues.len() {
            let queue = self.queues[self.turn];
            self.turn = (self.turn + 1) % self.queues.len();
            let count = self.mbufs.receive(queue);
            if count > 0 && self.lend(live, count) {
                self.idle.on_packets();
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn burst(&self) -> Burst<'_> {
        Burst {
            memory: self.mbufs.memory(),
            frames: &self.frames,
        }
    }

    fn look(&mut self, live: &mut LiveState, _now_ns: i64) -> Result<(), SourceError> {
        if live.is_running() {
            self.look_at_link(live);
        }
        let unstamped = std::mem::take(&mut self.unstamped);
        if unstamped > 0 {
            live.notice(format_args!(
                "{unstamped} packets arrived without a stamp, and got the time of their fetch"
            ));
        }
        Ok(())
    }

    fn wait(
        &mut self,
        _live: &mut LiveState,
        now_ns: i64,
        until_ns: i64,
    ) -> Result<(), SourceError> {
        match self.idle.nap_until(now_ns, until_ns) {
            Some(until_ns) => clock::sleep_until(until_ns),
            None => std::hint::spin_loop(),
        }
        Ok(())
    }

    fn cut_off(&mut self, _live: &mut LiveState) -> CutOff {
        self.at_stop = Some(self.shared.open_port.port.counters().unwrap_or_default());
        if self.shared.open_port.quirks.never_runs_dry {
            self.end = EndPhase::Shut;
            return CutOff::Closed { in_flight_ns: 0 };
        }
        CutOff::Open
    }

    /// The first queue reports the port's counters, so it waits for the ends of the other queues.
    fn balance(&mut self, _is_over: bool) -> StopBalance {
        self.mark_finished();
        if let EndPhase::Waiting { deadline_ns } = self.end {
            let are_others_over = self.shared.queues_running.load(Ordering::Acquire) == 0;
            if self.queue_index == 0 && !are_others_over && clock::monotonic_ns() < deadline_ns {
                return StopBalance::Pending;
            }
            self.end = EndPhase::Over;
        }
        if self.queue_index > 0 {
            return StopBalance::Unknown;
        }
        StopBalance::Known {
            received: self.arrived(),
            seen: self.shared.frames_taken(),
        }
    }

    fn statistics(&mut self, _live: &mut LiveState, now_ns: i64) -> SourceStatistics {
        // Packet time until which the counters are complete; unknown if the driver stamps packets
        // with its own clock.
        let is_foreign = matches!(self.stamping, Stamping::Epoch(_));
        let as_of_ns = (!is_foreign).then(|| now_ns.saturating_sub(DELIVERY_DELAY_NS_MAX));
        if self.queue_index > 0 {
            return SourceStatistics {
                received: Some(0),
                lost: vec![(LossCause::Oversize, Some(self.oversize))],
                as_of_ns,
            };
        }
        match self.shared.open_port.port.counters() {
            Ok(counters) => self.port_statistics(counters, as_of_ns),
            Err(_) => SourceStatistics {
                received: None,
                lost: [LossCause::Nic, LossCause::Damaged, LossCause::NoBuffer]
                    .map(|cause| (cause, None))
                    .to_vec(),
                as_of_ns: None,
            },
        }
    }
}

impl Drop for DpdkEngine {
    fn drop(&mut self) {
        self.mark_finished();
    }
}
