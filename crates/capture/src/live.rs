//! Common code of all live queues: everything around the bursts.
//!
//! A [`LiveEngine`] fetches bursts, waits, checks its interface and counts. [`LiveQueue`] makes a
//! [`Queue`] of an engine. The common code:
//!
//! - decides when to check the interface and how long to wait,
//! - moves the watermark while no packet arrives,
//! - detects steps of the system clock,
//! - reports an interface that goes away or comes back,
//! - drains a stopped queue, and reports packets that are missing.
//!
//! `docs/dev/waits.md` lists who waits for what, and how long.

use std::{collections::VecDeque, fmt, io, os::fd::BorrowedFd, time::Duration};

pub use crate::watermark::Watermark;
use crate::{
    Burst, InputDrops, InterfaceInfo, OffloadEffects, Queue, QueueStatus, Shunt, ShuntedFlow,
    SourceBuffer, SourceError, SourceEvent, SourceStatistics, TimeDomain, WaitTerms,
    af_packet::InterfaceCounters,
    af_xdp::XdpMode,
    clock::{self, Now},
    watermark::ClockWatch,
};

/// How long a draining queue waits, after the last arrival, for counted packets that have not
/// arrived.
pub(crate) const CLOSED_DRAIN_NS: i64 = 100_000_000;

/// How long a stopped queue goes on if its intake cannot be cut off and packets keep arriving.
pub const OPEN_DRAIN_NS: i64 = 100_000_000;

/// Time that a packet gets for the kernel's receive path. The path takes microseconds; the limit
/// allows for a virtual CPU that is descheduled in the path.
pub(crate) const RECEIVE_PATH_NS: i64 = 12_000_000;

/// Index in [`Queue::interfaces`] of the interface's second entry: packets with the NIC's stamps.
/// Packets with another stamp, such as sent packets, belong to the first entry.
pub(crate) const NIC_STAMPED: u16 = 1;

/// Longest wait for packets while a stopped queue drains.
const DRAIN_LOOK_NS: i64 = 1_000_000;

/// Longest wait for packets of a queue whose interface is down or removed.
pub(crate) const ABSENT_LOOK_NS: i64 = 10_000_000;

/// The engine-specific part of a live queue. Only the thread that owns the queue calls these
/// functions.
pub trait LiveEngine: Send + fmt::Debug {
    /// Least time between two checks of the interface and the clocks by a queue without packets,
    /// ns. An engine can request an earlier or a later check.
    const LOOK_NS: i64;

    /// Returns the previous burst to the engine.
    fn return_burst(&mut self, _live: &mut LiveState) {}

    /// Fetches a burst. Returns whether there is a burst. If packets have arrived, calls
    /// `live.on_packets` with the newest stamp, and `live.watermark.on_burst` unless packets with
    /// older stamps may still wait elsewhere. An engine that returns these packets in several
    /// bursts calls both functions only before the first burst.
    ///
    /// # Errors
    /// The error ends the queue.
    fn fetch(&mut self, live: &mut LiveState) -> Result<bool, SourceError>;

    /// The burst that was fetched.
    fn burst(&self) -> Burst<'_>;

    /// As [`Queue::has_more`].
    fn has_more(&self) -> Option<bool> {
        None
    }

    /// As [`Queue::is_behind`].
    fn is_behind(&self) -> Option<bool> {
        self.has_more()
    }

    /// As [`Queue::wait_terms`], with the longest wait in ns.
    fn wait_terms(&self, _live: &LiveState) -> Option<(Option<BorrowedFd<'_>>, i64)> {
        None
    }

    /// After a `fetch` without packets: whether `fetch` would have returned every packet that was
    /// stamped at least the [delivery delay](Watermark) earlier.
    fn is_dry(&self) -> bool {
        true
    }

    /// Checks the interface while no packet arrives, also for a stopped queue.
    ///
    /// # Errors
    /// The error ends the queue.
    fn look(&mut self, live: &mut LiveState, now_ns: i64) -> Result<(), SourceError>;

    /// Waits for packets, at most until `until_ns` on the monotonic clock or some milliseconds
    /// longer. May return earlier.
    ///
    /// # Errors
    /// The error ends the queue.
    fn wait(&mut self, live: &mut LiveState, now_ns: i64, until_ns: i64)
    -> Result<(), SourceError>;

    /// Stops the intake.
    fn cut_off(&mut self, live: &mut LiveState) -> CutOff;

    /// Compares the engine's received counter with the packets that were delivered or lost, while a
    /// queue drains. `is_over`: the queue waits for no more packets.
    fn balance(&mut self, is_over: bool) -> StopBalance;

    /// Called when the queue has ended with an error, or when [`CutOff::Refused`] has ended it.
    fn close(&mut self) {}

    /// As [`Queue::statistics`]. `now_ns` is the system clock.
    fn statistics(&mut self, live: &mut LiveState, now_ns: i64) -> SourceStatistics;

    /// As [`Queue::input_drops`].
    fn input_drops(&self, live: &LiveState) -> InputDrops {
        let counters = live.counters.as_ref();
        counters.map_or(InputDrops::None, InterfaceCounters::input_drops)
    }

    /// As [`Queue::xdp_mode`].
    fn xdp_mode(&self) -> Option<XdpMode> {
        None
    }

    /// As [`Queue::nic_stamped`].
    fn nic_stamped(&self) -> Option<u64> {
        None
    }

    /// As [`Queue::buffer`].
    fn buffer(&self) -> Option<SourceBuffer> {
        None
    }

    /// As [`Queue::shunt`].
    fn shunt(&mut self, _flow: &ShuntedFlow, _shunt: Option<Shunt>) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// How the intake was stopped.
#[derive(Debug)]
pub enum CutOff {
    /// The engine receives no more packets, except packets that are in the receive path now.
    Closed {
        /// Longest time until the packets in the receive path arrive, ns.
        in_flight_ns: i64,
    },
    /// The engine cannot stop the intake. The queue delivers packets until no packet arrives for 12
    /// ms, and until 100 ms after the drain has begun at the latest.
    Open,
    /// No packet can arrive: the queue ends.
    Ended,
    /// The kernel refused: the queue ends. Contains the notice for the user.
    Refused(String),
}

/// Packet counts of a queue that drains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopBalance {
    /// Both counts are known.
    Known {
        /// Packets that the engine counted.
        received: u64,
        /// Packets that were lent, or are known to be lost.
        seen: u64,
    },
    /// Not known yet: the queue asks again.
    Pending,
    /// The counters cannot be read, have an unknown meaning, or are reported by another queue.
    Unknown,
}

#[derive(Debug)]
enum QueuePhase {
    Running,
    /// Stopped. The drain starts only when the caller asks for packets: a slow caller still gets
    /// the packets that wait.
    Stopped(CutOff),
    Draining(QueueDrain),
    Ended,
}

/// The drain of a stopped queue, or of a queue whose interface is gone. Times are on the monotonic
/// clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct QueueDrain {
    /// The intake cannot be cut off.
    is_open: bool,
    /// By when all packets in the receive path have arrived.
    arrived_by_ns: i64,
    deadline_ns: i64,
}

impl QueueDrain {
    /// The drain of an intake that was closed at `now_ns`. Packets may be in the receive path for
    /// `in_flight_ns`.
    pub(crate) fn closed(now_ns: i64, in_flight_ns: i64) -> Self {
        Self {
            is_open: false,
            arrived_by_ns: now_ns.saturating_add(in_flight_ns),
            deadline_ns: now_ns.saturating_add(CLOSED_DRAIN_NS),
        }
    }

    fn open(now_ns: i64) -> Self {
        Self {
            is_open: true,
            deadline_ns: now_ns.saturating_add(OPEN_DRAIN_NS),
            ..Self::closed(now_ns, RECEIVE_PATH_NS)
        }
    }

    /// A closed intake gets a later deadline. An open intake must be silent for
    /// [`RECEIVE_PATH_NS`] again, and keeps its deadline.
    pub(crate) fn on_packets(&mut self, now_ns: i64) {
        if self.is_open {
            self.arrived_by_ns = now_ns.saturating_add(RECEIVE_PATH_NS);
        } else {
            self.deadline_ns = now_ns.saturating_add(CLOSED_DRAIN_NS);
        }
    }

    /// The difference between the counted and the seen packets if the drain has finished (0 if the
    /// counts are unknown); `None`: not finished yet.
    fn missing(self, now_ns: i64, balance: impl FnOnce(bool) -> StopBalance) -> Option<u64> {
        let is_over = now_ns >= self.deadline_ns || self.is_open;
        if now_ns < self.arrived_by_ns && now_ns < self.deadline_ns {
            return None;
        }
        match balance(is_over) {
            StopBalance::Pending => None,
            StopBalance::Unknown => Some(0),
            StopBalance::Known { received, seen } => {
                (received == seen || is_over).then(|| received.abs_diff(seen))
            }
        }
    }
}

/// State that every live queue has.
#[derive(Debug)]
pub struct LiveState {
    /// The interface and, if the queue takes the NIC's stamps, the entry [`NIC_STAMPED`].
    interfaces: Vec<InterfaceInfo>,
    cpus: Vec<u32>,
    events: VecDeque<SourceEvent>,
    phase: QueuePhase,
    pub(crate) presence: Presence,
    /// The promise that no older packet arrives.
    pub watermark: Watermark,
    /// Watches the system clock, which the queue's watermark follows. `None`: another clock may
    /// stamp the packets, and the queue has no watermark.
    pub(crate) clock: Option<ClockWatch>,
    /// The value of [`Queue::is_filtered`].
    pub(crate) is_filtered: bool,
    pub(crate) offload_effects: Option<OffloadEffects>,
    /// Losses of the interface. Only the queue that reports these losses has a value.
    pub(crate) counters: Option<InterfaceCounters>,
    /// When to check the interface next, on the monotonic clock. An engine may change the value.
    pub(crate) look_due_ns: i64,
    /// Longest wait for packets in one call of `next`, ns.
    pub(crate) wait_ns_max: i64,
    /// Why the engine stopped by itself. The queue returns this error when its drain has finished.
    pub failure: Option<SourceError>,
}

impl LiveState {
    /// The state for an interface that is up. No packet is stamped before `since_ns`. Each packet
    /// can be fetched at most `delivery_delay_max_ns` after its stamp.
    pub fn new(
        interface: InterfaceInfo,
        cpus: Vec<u32>,
        since_ns: i64,
        delivery_delay_max_ns: i64,
    ) -> Self {
        Self {
            interfaces: vec![interface],
            cpus,
            events: VecDeque::new(),
            phase: QueuePhase::Running,
            presence: Presence::UP,
            watermark: Watermark::new(since_ns, delivery_delay_max_ns),
            clock: Some(ClockWatch::new(clock::now())),
            is_filtered: false,
            offload_effects: None,
            counters: None,
            look_due_ns: i64::MIN,
            wait_ns_max: i64::MAX,
            failure: None,
        }
    }

    /// Marks that another clock may stamp the packets: the queue then has no watermark, and
    /// ignores steps of the system clock.
    pub fn stamped_elsewhere(self) -> Self {
        Self {
            clock: None,
            ..self
        }
    }

    /// Adds the interface of packets with the NIC's stamps, if the queue `takes` such stamps.
    pub(crate) fn with_nic_stamps(mut self, takes: bool) -> Self {
        let time_domain = TimeDomain::Nic;
        let stamped = takes.then(|| InterfaceInfo {
            time_domain,
            ..self.interface().clone()
        });
        self.interfaces.extend(stamped);
        self
    }

    /// The interface of the queue.
    #[must_use]
    pub fn interface(&self) -> &InterfaceInfo {
        &self.interfaces[0]
    }

    /// Whether the queue was not stopped and has not ended.
    pub fn is_running(&self) -> bool {
        matches!(self.phase, QueuePhase::Running)
    }

    /// Queues a notice to the user about the interface.
    pub fn notice(&mut self, text: impl fmt::Display) {
        let name = &self.interface().name;
        let notice = SourceEvent::Notice(format!("{name}: {text}"));
        self.events.push_back(notice);
    }

    /// Queues events for the caller of the queue.
    pub fn push_events(&mut self, event: impl IntoIterator<Item = SourceEvent>) {
        self.events.extend(event);
    }

    /// The oldest event that was not taken yet.
    pub(crate) fn next_event(&mut self) -> Option<SourceEvent> {
        self.events.pop_front()
    }

    /// Records that a check found the interface up or down, and queues an event if the state
    /// changed.
    pub fn set_interface_up(&mut self, is_up: bool) {
        let event = self.presence.set_up(is_up, clock::realtime_ns());
        self.events.extend(event);
    }

    /// Records that the interface was removed or left to the host, and queues `event`.
    pub(crate) fn set_interface_gone(&mut self, event: SourceEvent) {
        self.presence.set_gone(clock::realtime_ns());
        self.events.push_back(event);
    }

    /// Packets arrived; `newest_ns` is the newest stamp. `proves_up` returns whether these packets
    /// prove that the interface is up again.
    #[inline]
    pub fn on_packets(&mut self, newest_ns: i64, proves_up: impl FnOnce() -> bool) {
        match &mut self.phase {
            QueuePhase::Running if self.presence.is_up => {}
            QueuePhase::Running => {
                if self.clock.is_some() && self.presence.proves_return(newest_ns) && proves_up() {
                    let event = self.presence.set_up(true, newest_ns);
                    self.events.extend(event);
                }
            }
            QueuePhase::Draining(drain) => drain.on_packets(clock::monotonic_ns()),
            QueuePhase::Stopped(_) | QueuePhase::Ended => {}
        }
    }

    /// Starts the drain when the caller asks a stopped queue for packets. Returns whether the queue
    /// is at its end.
    fn is_ended(&mut self) -> bool {
        if let QueuePhase::Stopped(how) = &self.phase {
            let now_ns = clock::monotonic_ns();
            self.phase = match how {
                CutOff::Closed { in_flight_ns } => {
                    QueuePhase::Draining(QueueDrain::closed(now_ns, *in_flight_ns))
                }
                CutOff::Open => QueuePhase::Draining(QueueDrain::open(now_ns)),
                CutOff::Ended | CutOff::Refused(_) => QueuePhase::Ended,
            };
        }
        matches!(self.phase, QueuePhase::Ended)
    }

    /// Whether a drain has finished. Reports packets that are missing, or that were not counted.
    pub(crate) fn is_drained(
        &mut self,
        drain: QueueDrain,
        now_ns: i64,
        balance: impl FnOnce(bool) -> StopBalance,
    ) -> bool {
        let missing = drain.missing(now_ns, balance);
        if let Some(missing @ 1..) = missing {
            self.notice(format_args!("{missing} counted packets did not arrive"));
        }
        missing.is_some()
    }

    /// Whether the drain time of a device that cannot be cut off has passed. The queue then fetches
    /// no more packets.
    fn is_overdue(&self) -> bool {
        match self.phase {
            QueuePhase::Draining(drain) => {
                drain.is_open && clock::monotonic_ns() >= drain.deadline_ns
            }
            _ => false,
        }
    }

    /// Reports a step of the system clock.
    fn watch_clock(&mut self, now: impl FnOnce() -> Now) {
        let Some(step) = self.clock.as_mut().and_then(|clock| clock.look(now())) else {
            return;
        };
        self.notice(step);
        if step.step_ns < 0 {
            self.watermark.on_clock_set_back(step.now_ns);
            self.presence.on_clock_set_back(step.now_ns);
        }
    }

    /// The caller's deadline, or earlier while the queue drains or the interface is down.
    fn until_ns(&self, now_ns: i64, deadline_ns: i64) -> i64 {
        let most_ns = match self.phase {
            QueuePhase::Draining(_) => DRAIN_LOOK_NS,
            _ if !self.presence.is_up => ABSENT_LOOK_NS,
            _ => return deadline_ns,
        };
        deadline_ns.min(now_ns.saturating_add(most_ns))
    }
}

/// An engine as a [`Queue`].
#[derive(Debug)]
pub struct LiveQueue<E> {
    live: LiveState,
    engine: E,
}

impl<E: LiveEngine + 'static> LiveQueue<E> {
    /// Makes a queue of an engine.
    #[must_use]
    pub fn boxed(live: LiveState, engine: E) -> Box<dyn Queue> {
        Box::new(Self { live, engine })
    }

    fn try_next(&mut self, wait: Duration) -> Result<QueueStatus, SourceError> {
        let Self { live, engine } = self;
        engine.return_burst(live);
        if live.is_ended() {
            return Ok(QueueStatus::End);
        }
        // This fetch reads no clock while packets arrive. The loop fetches again after it has read
        // the clock: only that fetch can prove a silence up to the reading.
        if !live.is_overdue() && engine.fetch(live)? {
            return Ok(QueueStatus::Frames);
        }
        let wait_ns = clock::duration_ns(wait).min(live.wait_ns_max);
        let deadline_ns = clock::monotonic_ns().saturating_add(wait_ns);
        loop {
            let looked_ns = clock::realtime_ns();
            if !live.is_overdue() && engine.fetch(live)? {
                return Ok(QueueStatus::Frames);
            }
            if engine.is_dry() {
                live.watermark.on_silence(looked_ns);
            }
            let now_ns = clock::monotonic_ns();
            if now_ns >= live.look_due_ns {
                live.look_due_ns = now_ns.saturating_add(E::LOOK_NS);
                live.watch_clock(clock::now);
                engine.look(live, now_ns)?;
            }
            if let QueuePhase::Draining(drain) = live.phase
                && live.is_drained(drain, now_ns, |is_over| engine.balance(is_over))
            {
                live.phase = QueuePhase::Ended;
                return live.failure.take().map_or(Ok(QueueStatus::End), Err);
            }
            // Only after an empty fetch: packets that arrived during the wait come first.
            if now_ns >= deadline_ns {
                return Ok(QueueStatus::Idle);
            }
            engine.wait(live, now_ns, live.until_ns(now_ns, deadline_ns))?;
            // The engine may have stopped itself in `look`.
            if live.is_ended() {
                return Ok(QueueStatus::End);
            }
        }
    }
}

impl<E: LiveEngine + 'static> Queue for LiveQueue<E> {
    fn interfaces(&self) -> &[InterfaceInfo] {
        &self.live.interfaces
    }

    fn next(&mut self, wait: Duration) -> Result<QueueStatus, SourceError> {
        self.try_next(wait).inspect_err(|_| {
            self.live.phase = QueuePhase::Ended;
            self.engine.close();
        })
    }

    fn burst(&self) -> Burst<'_> {
        self.engine.burst()
    }

    fn has_more(&self) -> Option<bool> {
        self.engine.has_more()
    }

    fn is_behind(&self) -> Option<bool> {
        self.engine.is_behind()
    }

    fn wait_terms(&self) -> Option<WaitTerms<'_>> {
        let (descriptor, longest_ns) = self.engine.wait_terms(&self.live)?;
        let longest_ns = self.live.until_ns(0, longest_ns.min(self.live.wait_ns_max));
        Some(WaitTerms {
            descriptor,
            longest: Duration::from_nanos(longest_ns.unsigned_abs()),
        })
    }

    fn cpus(&self) -> &[u32] {
        &self.live.cpus
    }

    fn is_filtered(&self) -> bool {
        self.live.is_filtered
    }

    fn watermark(&self) -> Option<i64> {
        let time_ns = self.live.watermark.time_ns;
        self.live.clock.is_some().then_some(time_ns)
    }

    fn promises_watermark(&self) -> bool {
        self.live.clock.is_some()
    }

    fn event(&mut self) -> Option<SourceEvent> {
        self.live.next_event()
    }

    fn statistics(&mut self) -> SourceStatistics {
        let now_ns = clock::realtime_ns();
        if let Some(counters) = &mut self.live.counters {
            counters.refresh(now_ns, !matches!(self.live.phase, QueuePhase::Running));
        }
        self.engine.statistics(&mut self.live, now_ns)
    }

    fn input_drops(&self) -> InputDrops {
        self.engine.input_drops(&self.live)
    }

    fn offload_effects(&self) -> Option<OffloadEffects> {
        self.live.offload_effects
    }

    fn xdp_mode(&self) -> Option<XdpMode> {
        self.engine.xdp_mode()
    }

    fn nic_stamped(&self) -> Option<u64> {
        self.engine.nic_stamped()
    }

    fn buffer(&self) -> Option<SourceBuffer> {
        self.engine.buffer()
    }

    fn shunt(&mut self, flow: &ShuntedFlow, shunt: Option<Shunt>) -> io::Result<()> {
        self.engine.shunt(flow, shunt)
    }

    fn stop(&mut self) {
        let Self { live, engine } = self;
        if live.is_running() {
            live.stop(engine);
        }
    }
}

impl LiveState {
    /// Stops the intake of a running queue.
    pub fn stop(&mut self, engine: &mut impl LiveEngine) {
        self.phase = match engine.cut_off(self) {
            CutOff::Refused(why) => {
                self.notice(why);
                engine.close();
                QueuePhase::Ended
            }
            how => QueuePhase::Stopped(how),
        };
    }
}

/// Whether a queue's interface is up, by checks of the interface and by arriving packets.
///
/// Packets that waited in the kernel since before the removal do not prove that the interface is
/// back.
#[derive(Debug)]
pub(crate) struct Presence {
    pub(crate) is_up: bool,
    /// The interface was removed or left to the host, and no check has found an interface since.
    pub(crate) is_gone: bool,
    /// When the interface was found down or removed, or was left to the host, on the system clock.
    /// Lowered to the new time if the clock is set back.
    down_ns: i64,
}

impl Presence {
    const UP: Self = Self {
        is_up: true,
        is_gone: false,
        down_ns: i64::MIN,
    };

    /// The interface was found up or down at `now_ns`, on the system clock.
    fn set_up(&mut self, is_up: bool, now_ns: i64) -> Option<SourceEvent> {
        self.is_gone = false;
        if std::mem::replace(&mut self.is_up, is_up) == is_up {
            return None;
        }
        if is_up {
            return Some(SourceEvent::InterfaceUp(0));
        }
        self.down_ns = now_ns;
        Some(SourceEvent::InterfaceDown(0))
    }

    /// The interface was found removed, or was left to the host, at `now_ns` on the system clock.
    fn set_gone(&mut self, now_ns: i64) {
        (self.is_up, self.is_gone, self.down_ns) = (false, true, now_ns);
    }

    /// Whether packets with the newest stamp `newest_ns` prove that an interface that was down is
    /// up again.
    fn proves_return(&self, newest_ns: i64) -> bool {
        !self.is_gone && newest_ns > self.down_ns
    }

    fn on_clock_set_back(&mut self, now_ns: i64) {
        self.down_ns = self.down_ns.min(now_ns);
    }
}

#[cfg(test)]
mod tests {
    use retroscope_packet::LinkType;

    use super::*;

    #[test]
    fn packets_that_waited_are_no_return() {
        let mut presence = Presence::UP;
        assert_eq!(
            presence.set_up(false, 100),
            Some(SourceEvent::InterfaceDown(0))
        );
        assert_eq!(presence.set_up(false, 105), None);
        assert!(!presence.proves_return(99) && presence.proves_return(101));
        assert_eq!(
            presence.set_up(true, 101),
            Some(SourceEvent::InterfaceUp(0))
        );
        presence.set_gone(200);
        // The stamp may be later than the check: the clock was set back in between.
        assert!(!presence.proves_return(199) && !presence.proves_return(201));
        // A new interface exists, but is down. Packets of the old interface may still arrive.
        assert_eq!(presence.set_up(false, 300), None);
        assert!(!presence.proves_return(200));
        assert_eq!(
            presence.set_up(true, 310),
            Some(SourceEvent::InterfaceUp(0))
        );
    }

    #[test]
    fn a_step_of_the_clock_is_told_where_it_stamps_the_packets() {
        let live = || {
            let interface =
                InterfaceInfo::new("eth0", LinkType::ETHERNET, TimeDomain::KernelSoftware);
            LiveState::new(interface, Vec::new(), clock::realtime_ns(), 0)
        };
        let stepped = || {
            let now = clock::now();
            Now {
                wall_ns: now.wall_ns + 2 * clock::SECOND_NS,
                read_gap_ns: 0,
                ..now
            }
        };
        let mut here = live();
        here.watch_clock(stepped);
        let notice = here.events.pop_front();
        assert!(
            matches!(&notice, Some(SourceEvent::Notice(text)) if text.starts_with("eth0: ")),
            "{notice:?}"
        );
        let mut elsewhere = live().stamped_elsewhere();
        elsewhere.watch_clock(stepped);
        assert_eq!(elsewhere.events.pop_front(), None);
        assert!(elsewhere.clock.is_none());
    }

    #[test]
    fn a_clock_that_was_set_back_hides_no_return() {
        let mut presence = Presence::UP;
        presence.set_up(false, 1000);
        presence.on_clock_set_back(500);
        assert!(presence.proves_return(501));
    }

    #[test]
    fn what_is_missing_at_the_end_of_a_drain_is_told() {
        let domain = TimeDomain::KernelSoftware;
        let interface = InterfaceInfo::new("v1", LinkType::ETHERNET, domain);
        let mut live = LiveState::new(interface, Vec::new(), 0, 0);
        let drain = QueueDrain::closed(0, 10);
        let mut told = |now_ns, received, seen| {
            let is_over = live.is_drained(drain, now_ns, |_| StopBalance::Known { received, seen });
            let events: Vec<_> = live.events.drain(..).collect();
            (is_over, events)
        };
        let end_ns = CLOSED_DRAIN_NS;
        assert_eq!(told(10, 9, 7), (false, vec![]), "they may come");
        assert_eq!(told(end_ns, 7, 7), (true, vec![]));
        let notice = "v1: 2 counted packets did not arrive".to_owned();
        for (received, seen) in [(9, 7), (7, 9)] {
            let expected = (true, vec![SourceEvent::Notice(notice.clone())]);
            assert_eq!(told(end_ns, received, seen), expected);
        }
    }

    #[test]
    fn a_closed_intake_is_waited_for_and_an_open_one_has_its_time() {
        let balance = |received, seen| move |_| StopBalance::Known { received, seen };
        let mut closed = QueueDrain::closed(0, 10);
        assert_eq!(closed.missing(9, balance(7, 7)), None, "on their way");
        assert_eq!(closed.missing(10, balance(7, 7)), Some(0));
        assert_eq!(closed.missing(10, |_| StopBalance::Unknown), Some(0));
        assert_eq!(closed.missing(10, balance(9, 7)), None);
        closed.on_packets(5);
        assert_eq!(closed.missing(CLOSED_DRAIN_NS, balance(9, 7)), None);
        assert_eq!(closed.missing(5 + CLOSED_DRAIN_NS, balance(7, 9)), Some(2));
        let mut open = QueueDrain::open(0);
        open.on_packets(5);
        assert_eq!(open.missing(RECEIVE_PATH_NS, balance(7, 7)), None);
        assert_eq!(open.missing(5 + RECEIVE_PATH_NS, balance(9, 7)), Some(2));
        open.on_packets(OPEN_DRAIN_NS);
        assert_eq!(
            open.missing(OPEN_DRAIN_NS, balance(9, 9)),
            Some(0),
            "no end"
        );
    }
}
