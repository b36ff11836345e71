//! Receive queues of a port as one queue: bursts, time stamps, watermark, counters, drained stop.
//!
//! # Counting
//! The counters are the port's, so its first queue tells them and the others add nothing: `received` is `ipackets` with what was
//! lost, `nic` is `imissed`, `damaged` is `ierrors`, `no-buffer` is `rx_nombuf`. Each queue counts what it took; the sum is what
//! `ipackets` is compared with at the end. After a stop the first queue ends last, so that the sum is complete then.
//!
//! # Stop
//! DPDK cannot close a queue without discarding what waits in it. So a stopped queue goes on until its receive queues have
//! been empty for a moment; what comes later than that is not received. A queue whose device stands on an interface that was
//! removed stops itself, and ends with the error instead.

use std::{
    collections::VecDeque,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use super::{
    beneath::{Beneath, Presence},
    driver::Habits,
    eal,
    idle::Idle,
    port::{BURST, FRAME_BYTES_MAX},
    stamps::{DeviceClock, Reading},
    sys::{Batch, Counters, Environment, RawFrame},
};
use crate::{
    Burst, Direction, Event, FrameMeta, InterfaceInfo, LossCause, Queue, SourceError,
    SourceStatistics, Status, VlanTag, clock,
    watermark::{ClockWatch, Watermark},
};

/// From a stamp by the device's clock to when the packet can be received: what the clocks may differ by, and more.
const PLACING_NS: i64 = 10_000_000;

/// How long a stopped queue goes on where packets do not end.
pub(super) const DRAIN_NS: i64 = 100_000_000;

/// How long the first one waits for the others, each of which may find out by itself that it is to stop, after [`LOOK_NS`].
const OTHERS_NS: i64 = 1_000_000_000;

/// How long it has to be silent: packets in the kernel's receive path take so long at most.
const QUIET_NS: i64 = 12_000_000;

/// How often an idle queue looks at the link and at the clock.
const LOOK_NS: i64 = 50_000_000;

/// The tag that NICs take out.
const TPID: u16 = 0x8100;

/// What the queues of a port share.
#[derive(Debug)]
pub(super) struct Shared {
    /// Frames that each queue took from the port: lent, or counted as too long. Each in a cache line of its own.
    taken: Vec<Line>,
    /// Queues that are not at their end.
    left: AtomicUsize,
    /// The link's speed in Mbit/s as one of them found it; 0: unknown, or the link is down.
    megabits: AtomicU32,
    environment: &'static Environment,
    /// The kernel's interface that a device of software stands on.
    beneath: Option<Beneath>,
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Line(AtomicU64);

impl Shared {
    /// For so many queues.
    pub(super) fn new(
        environment: &'static Environment,
        queues: usize,
        beneath: Option<Beneath>,
    ) -> Self {
        Self {
            taken: (0..queues).map(|_| Line::default()).collect(),
            left: AtomicUsize::new(queues),
            megabits: AtomicU32::new(0),
            environment,
            beneath,
        }
    }

    fn taken(&self) -> u64 {
        // Relaxed: counters; those of a queue that ended are complete for who has seen that it did.
        self.taken
            .iter()
            .map(|line| line.0.load(Ordering::Relaxed))
            .sum()
    }
}

/// Whose time a frame gets.
#[derive(Debug)]
pub(super) enum Stamping {
    /// The system's clock, when its burst was fetched.
    Fetch,
    /// The driver's: units of so many ns since the UNIX epoch.
    Epoch(i64),
    /// The device's clock.
    Device(DeviceClock),
}

/// What a queue is made of.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) interface: InterfaceInfo,
    pub(super) batch: Batch,
    pub(super) shared: Arc<Shared>,
    pub(super) habits: Habits,
    pub(super) stamping: Stamping,
    /// This queue, of how many.
    pub(super) place: Range<usize>,
    /// Receive queues of the port.
    pub(super) queues: u16,
    pub(super) descriptors: u16,
    pub(super) cpus: Vec<u32>,
    pub(super) notices: Vec<String>,
}

/// Some receive queues of a port, served by one thread.
#[derive(Debug)]
pub(super) struct DpdkQueue {
    interfaces: [InterfaceInfo; 1],
    batch: Batch,
    frames: Vec<FrameMeta>,
    shared: Arc<Shared>,
    /// The receive queues, and which is next.
    queues: Vec<u16>,
    turn: usize,
    line: usize,
    habits: Habits,
    stamping: Stamping,
    cpus: Vec<u32>,
    events: VecDeque<Event>,
    phase: Phase,
    is_registered: bool,
    is_up: bool,
    looked_ns: i64,
    idle: Idle,
    oversize: u64,
    /// Frames that the port refused, without what its driver counts where there is no interface.
    refused: u64,
    unstamped: u64,
    /// The port's counters when it was stopped.
    at_stop: Option<Counters>,
    /// Why it stopped itself; `None` once that was told.
    failure: Option<SourceError>,
    watermark: Watermark,
    clock: ClockWatch,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    /// Stopped, and nobody has asked for packets since: whoever is slow to ask gets what waits all the same.
    Stopped,
    /// Times on the monotonic clock.
    Draining {
        asked_ns: i64,
        packet_ns: i64,
    },
    /// This queue is at its end; the others are not yet.
    Waiting {
        give_up_ns: i64,
    },
    Ended,
}

impl DpdkQueue {
    /// A queue of a port that was started.
    pub(super) fn new(parts: Parts) -> Self {
        let now_ns = clock::monotonic_ns();
        let link = parts.batch.port().link().unwrap_or_default();
        let megabits = link.speed_megabits();
        // Relaxed: a number that nothing hangs on.
        parts.shared.megabits.store(megabits, Ordering::Relaxed);
        let line = parts.place.start;
        let placing_ns = if matches!(parts.stamping, Stamping::Fetch) {
            0
        } else {
            PLACING_NS
        };
        Self {
            interfaces: [parts.interface],
            batch: parts.batch,
            frames: Vec::with_capacity(usize::from(BURST)),
            shared: parts.shared,
            queues: (0..parts.queues)
                .skip(line)
                .step_by(parts.place.end)
                .collect(),
            turn: 0,
            line,
            habits: parts.habits,
            stamping: parts.stamping,
            cpus: parts.cpus,
            events: parts.notices.into_iter().map(Event::Notice).collect(),
            phase: Phase::Running,
            is_registered: false,
            is_up: true,
            looked_ns: now_ns,
            idle: Idle::new(parts.descriptors, parts.habits.is_virtual, megabits),
            oversize: 0,
            refused: 0,
            unstamped: 0,
            at_stop: None,
            failure: None,
            watermark: Watermark::new(clock::realtime_ns(), placing_ns),
            clock: ClockWatch::new(),
        }
    }

    fn notice(&mut self, text: &str) {
        let name = &self.interfaces[0].name;
        self.events
            .push_back(Event::Notice(format!("{name}: {text}")));
    }

    /// The environment keeps buffers at hand for threads that it knows.
    fn register(&mut self) {
        if !std::mem::replace(&mut self.is_registered, true)
            && let Err(error) = eal::register_thread(self.shared.environment)
        {
            self.notice(&format!(
                "DPDK does not take the capture thread ({error}): it is slower"
            ));
        }
    }

    /// Asks the receive queues in turn until one has packets.
    fn fetch(&mut self) -> bool {
        for _ in 0..self.queues.len() {
            let queue = self.queues[self.turn];
            self.turn = (self.turn + 1) % self.queues.len();
            let count = self.batch.receive(queue);
            if count > 0 && self.lend(count) {
                return true;
            }
        }
        false
    }

    /// Describes the `count` frames that were received. Returns whether there is one.
    fn lend(&mut self, count: usize) -> bool {
        let now_ns = clock::realtime_ns();
        self.read_device_clock(now_ns);
        let direction = if self.habits.shows_sent {
            Direction::Unknown
        } else {
            Direction::Inbound
        };
        let newest_ns = if self.batch.is_plain() && matches!(self.stamping, Stamping::Fetch) {
            let describe = |raw: &RawFrame| meta(raw, raw.place().unwrap_or(0), now_ns, direction);
            self.frames.extend(self.batch.frames().iter().map(describe));
            now_ns
        } else {
            self.describe(now_ns, direction)
        };
        let line = &self.shared.taken[self.line].0;
        // Relaxed: a counter with one writer.
        line.store(
            line.load(Ordering::Relaxed) + count as u64,
            Ordering::Relaxed,
        );
        if self.frames.is_empty() {
            return false;
        }
        // Behind a stamp of the device, older ones may wait in another receive queue.
        if matches!(self.stamping, Stamping::Fetch) || self.queues.len() == 1 {
            self.watermark.on_burst(newest_ns, Some(now_ns));
        }
        true
    }

    /// Describes frames one by one: with stamps of their own, or in several buffers. Returns the newest stamp.
    fn describe(&mut self, now_ns: i64, direction: Direction) -> i64 {
        let mut own_at = self.batch.own_at();
        let mut newest_ns = i64::MIN;
        for index in 0..self.batch.frames().len() {
            let raw = self.batch.frames()[index];
            let offset = match raw.place() {
                Some(offset) => offset,
                None => {
                    let is_short = raw.bytes <= FRAME_BYTES_MAX;
                    // Less comes where its segments are not what its head says.
                    if !is_short || self.batch.gather(index, own_at, raw.bytes) < raw.bytes {
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

    /// The time of a frame where the driver or the device stamps.
    fn stamp_ns(&mut self, index: usize, now_ns: i64) -> i64 {
        let is_stamped = self.batch.frames()[index].is_stamped;
        let stamp = is_stamped.then(|| self.batch.stamp(index));
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
            && let Ok(ticks) = self.batch.port().clock()
        {
            device.read(Reading {
                ticks,
                time_ns: clock::realtime_ns(),
            });
        }
    }

    /// Looks at the link. The port's first queue does it for all; the others only as long as nobody knows its speed, because the
    /// first one has no time to look while packets come. A device that stood on an interface that was removed stops.
    fn look_at_link(&mut self) {
        let shared = Arc::clone(&self.shared);
        // Relaxed: a number that nothing hangs on.
        let known = || shared.megabits.load(Ordering::Relaxed);
        let is_needed = self.line == 0 || (known() == 0 && !self.habits.is_virtual);
        let is_up = match &shared.beneath {
            Some(beneath) => match beneath.look() {
                Presence::Known { is_up } => Some(is_up),
                Presence::Unknown => None,
                Presence::Gone => {
                    self.failure = Some(beneath.error(&self.interfaces[0].name));
                    return self.stop();
                }
            },
            None if is_needed => {
                let link = self.batch.port().link().ok();
                let megabits = link.unwrap_or_default().speed_megabits();
                shared.megabits.store(megabits, Ordering::Relaxed);
                link.map(|link| link.is_up)
            }
            _ => None,
        };
        self.idle.on_speed(known());
        if self.line == 0
            && let Some(is_up) = is_up
            && is_up != self.is_up
        {
            self.is_up = is_up;
            self.events.push_back(if is_up {
                Event::InterfaceUp(0)
            } else {
                Event::InterfaceDown(0)
            });
        }
    }

    /// What is to be done from time to time while nothing comes.
    fn look(&mut self, now_ns: i64) {
        if now_ns - self.looked_ns < LOOK_NS {
            return;
        }
        self.looked_ns = now_ns;
        if self.phase == Phase::Running {
            self.look_at_link();
        }
        let unstamped = std::mem::take(&mut self.unstamped);
        if unstamped > 0 {
            self.notice(&format!(
                "{unstamped} packets came without a stamp, and have the time when they were fetched"
            ));
        }
        if let Some(step) = self.clock.look() {
            let sentence = step.sentence(&self.interfaces[0].name);
            self.events.push_back(Event::Notice(sentence));
            if step.step_ns < 0 {
                self.watermark.on_clock_set_back(step.now_ns);
            }
        }
    }

    /// A stopped queue takes what is there, but not from a device that always has more, and not for ever.
    fn may_receive(&self) -> bool {
        match self.phase {
            Phase::Running | Phase::Stopped => true,
            Phase::Draining { asked_ns, .. } => {
                !self.habits.never_runs_dry && clock::monotonic_ns() - asked_ns < DRAIN_NS
            }
            Phase::Waiting { .. } | Phase::Ended => false,
        }
    }

    /// Goes on towards the end after a look that found nothing. Returns whether the queue is there.
    fn is_at_end(&mut self, now_ns: i64) -> bool {
        match self.phase {
            Phase::Running | Phase::Stopped => return false,
            Phase::Ended => return true,
            Phase::Draining {
                asked_ns,
                packet_ns,
            } => {
                let is_quiet = now_ns - packet_ns >= QUIET_NS;
                if !is_quiet && now_ns - asked_ns < DRAIN_NS && !self.habits.never_runs_dry {
                    return false;
                }
                // Release, pairs with the Acquire below: the count of what was lent is complete.
                self.shared.left.fetch_sub(1, Ordering::Release);
                self.phase = Phase::Waiting {
                    give_up_ns: now_ns.saturating_add(OTHERS_NS),
                };
            }
            Phase::Waiting { .. } => {}
        }
        let Phase::Waiting { give_up_ns } = self.phase else {
            return false;
        };
        // The first queue tells the port's counters, so it ends last.
        let is_last = self.shared.left.load(Ordering::Acquire) == 0;
        if self.line > 0 || is_last || now_ns >= give_up_ns {
            self.phase = Phase::Ended;
            self.tell_missing();
            return true;
        }
        false
    }

    /// Tells if packets that the port had counted when it was stopped did not come.
    fn tell_missing(&mut self) {
        if self.line > 0 {
            return;
        }
        let at_stop = self.at_stop.unwrap_or_default().received;
        let missing = at_stop.saturating_sub(self.shared.taken());
        if missing > 0 {
            self.notice(&format!(
                "{missing} packets that the device counted did not come"
            ));
        }
    }

    /// The port's counters as statistics.
    fn port_statistics(&mut self, counters: Counters) -> SourceStatistics {
        // `net_pcap` counts each time that it asks an interface that is gone. Looked for after the counters were read: what they had until
        // then is of one that was there.
        if counters.refused > self.refused && !self.stands_on_nothing() {
            self.refused = counters.refused;
        }
        let arrived = if self.phase == Phase::Ended {
            // What came after the end is not received, what came before and was not lent is missing.
            let at_stop = self.at_stop.unwrap_or_default().received;
            at_stop.max(self.shared.taken())
        } else {
            counters.received
        };
        let missed = if self.habits.counts_missed {
            Some(counters.missed)
        } else {
            None
        };
        let lost = [
            (LossCause::Nic, missed),
            (LossCause::Damaged, Some(self.refused)),
            (LossCause::NoBuffer, Some(counters.no_buffer)),
            (LossCause::Oversize, Some(self.oversize)),
        ];
        let before: u64 = lost[..3].iter().filter_map(|(_, count)| *count).sum();
        SourceStatistics {
            received: Some(arrived + before),
            lost: lost.to_vec(),
            as_of_ns: self.known_until_ns(),
        }
    }

    /// Whether the interface that the device stands on was removed.
    fn stands_on_nothing(&self) -> bool {
        let beneath = self.shared.beneath.as_ref();
        beneath.is_some_and(|beneath| beneath.look() == Presence::Gone)
    }

    /// Until when the counters are complete, in packet time; `None` where that is a driver's own.
    fn known_until_ns(&self) -> Option<i64> {
        let is_foreign = matches!(self.stamping, Stamping::Epoch(_));
        (!is_foreign).then(|| clock::realtime_ns().saturating_sub(PLACING_NS))
    }
}

/// A frame whose bytes begin at `offset`.
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

impl Queue for DpdkQueue {
    fn interfaces(&self) -> &[InterfaceInfo] {
        &self.interfaces
    }

    fn next(&mut self, wait: Duration) -> Result<Status, SourceError> {
        self.frames.clear();
        self.batch.free();
        self.register();
        let mut deadline_ns = None;
        loop {
            // Stopped before, or since the last look.
            if self.phase == Phase::Stopped {
                let now_ns = clock::monotonic_ns();
                self.phase = Phase::Draining {
                    asked_ns: now_ns,
                    packet_ns: now_ns,
                };
            }
            if self.phase == Phase::Ended {
                return Ok(Status::End);
            }
            // While packets come no clock is read for this; else the second look is the one that counts.
            let mut looked_ns = None;
            let mut has_packets = self.may_receive() && self.fetch();
            if !has_packets {
                looked_ns = Some(clock::realtime_ns());
                has_packets = self.may_receive() && self.fetch();
            }
            if has_packets {
                self.idle.on_packets();
                if let Phase::Draining { packet_ns, .. } = &mut self.phase {
                    *packet_ns = clock::monotonic_ns();
                }
                return Ok(Status::Frames);
            }
            if let Some(looked_ns) = looked_ns {
                self.watermark.on_silence(looked_ns);
            }
            let now_ns = clock::monotonic_ns();
            self.look(now_ns);
            if self.is_at_end(now_ns) {
                return self.failure.take().map_or(Ok(Status::End), Err);
            }
            let deadline_ns =
                *deadline_ns.get_or_insert(now_ns.saturating_add(clock::duration_ns(wait)));
            if now_ns >= deadline_ns {
                return Ok(Status::Idle);
            }
            match self.idle.nap_until(now_ns, deadline_ns) {
                Some(until_ns) => clock::sleep_until(until_ns),
                None => std::hint::spin_loop(),
            }
        }
    }

    fn burst(&self) -> Burst<'_> {
        Burst {
            memory: self.batch.memory(),
            frames: &self.frames,
        }
    }

    fn cpus(&self) -> &[u32] {
        &self.cpus
    }

    fn watermark(&self) -> Option<i64> {
        self.promises_watermark().then(|| self.watermark.time_ns())
    }

    /// A driver's own stamps may be of any clock.
    fn promises_watermark(&self) -> bool {
        !matches!(self.stamping, Stamping::Epoch(_))
    }

    fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn statistics(&mut self) -> SourceStatistics {
        if self.line > 0 {
            return SourceStatistics {
                received: Some(0),
                lost: vec![(LossCause::Oversize, Some(self.oversize))],
                as_of_ns: self.known_until_ns(),
            };
        }
        match self.batch.port().counters() {
            Ok(counters) => self.port_statistics(counters),
            Err(_) => SourceStatistics {
                received: None,
                lost: vec![
                    (LossCause::Nic, None),
                    (LossCause::Damaged, None),
                    (LossCause::NoBuffer, None),
                ],
                as_of_ns: None,
            },
        }
    }

    fn stop(&mut self) {
        if self.phase != Phase::Running {
            return;
        }
        self.at_stop = Some(self.batch.port().counters().unwrap_or_default());
        self.phase = Phase::Stopped;
    }
}

impl Drop for DpdkQueue {
    fn drop(&mut self) {
        let is_counted = matches!(
            self.phase,
            Phase::Running | Phase::Stopped | Phase::Draining { .. }
        );
        if is_counted {
            self.shared.left.fetch_sub(1, Ordering::Release);
        }
    }
}
