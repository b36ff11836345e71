//! An XDP socket as a queue: bursts, time stamps, watermark, counters, drained stop.
//!
//! # Time stamps
//! The program puts the monotonic clock in front of each packet; the difference of both clocks when a burst is fetched makes
//! it the system clock's. Where a driver has no room in front of a packet, the packets of a burst are stamped when it is
//! fetched, and a notice says so.
//!
//! # Chunks
//! A chunk is in the fill ring, in the receive ring, or lent. As many are made as a ring has entries, so neither overflows by
//! itself: packets are lost when all chunks are in the receive ring or lent.

mod card;
mod link;
mod rest;

use std::{collections::VecDeque, io, ops::Range, sync::Arc, time::Duration};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};

use self::{
    card::Card,
    link::{ABSENT_LOOK_NS, Absence},
    rest::{Rest, Verdict},
};
use super::{
    attachment::{Attachment, Held, Plan, QUEUES_MAX},
    mode::{WhyCopied, XdpMode},
    port::Port,
    program::{STAMP_BYTES, word},
    sys::{Descriptor, FillRing, RxRing, Umem, XdpSocket},
};
use crate::{
    Burst, Direction, Event, FrameMeta, InputDrops, InterfaceInfo, LossCause, Queue, SourceError,
    SourceStatistics, Status,
    clock::{self, SECOND_NS},
    watermark::{ClockWatch, Watermark},
};

/// From the stamp of a packet to its place in the receive ring at most: far more than the driver's batch of 64 takes, to allow
/// for a virtual CPU that is descheduled in between.
const PLACING_NS: i64 = 12_000_000;

/// How long a stopped queue waits for packets that the program counted and the ring has not shown.
const DRAIN_NS: i64 = 100_000_000;

/// How long a queue that asks the driver itself waits at most before it returns. One that may ask for as long never sleeps.
const BUSY_WAIT_NS: i64 = 8_000_000;

/// How often a draining queue looks.
const DRAIN_LOOK_NS: i64 = 1_000_000;

/// Descriptors of a burst at most.
const BURST: u32 = 512;

/// `XDP_PKT_CONTD`.
const CONTINUED: u32 = 1;

/// Room behind the chunks for packets of several chunks: at least one of the largest that the kernel makes (17 pages).
pub(super) const OWN_BYTES: usize = 1 << 20;

/// A socket with its rings.
#[derive(Debug)]
pub(super) struct Channel {
    pub(super) socket: XdpSocket,
    pub(super) fill: FillRing,
    pub(super) rx: RxRing,
}

impl Channel {
    /// Binds the socket to a queue of an interface: zero-copy where the driver runs the program and can. Returns why not. Fails with
    /// `EBUSY` where another socket still has the queue, or the driver is about something else: to copy for good would be no answer.
    pub(super) fn bind(
        &self,
        interface_index: u32,
        queue: u32,
        is_native: bool,
        plan: Plan,
    ) -> io::Result<Option<WhyCopied>> {
        let fragments = plan.packet_bytes_max.is_none();
        let bind = |zero_copy| {
            self.socket
                .bind(interface_index, queue, zero_copy, fragments)
        };
        let why = match is_native {
            true => match bind(true) {
                Ok(()) => return Ok(None),
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => return Err(error),
                Err(error) => WhyCopied::Refused(error.raw_os_error().unwrap_or(0)),
            },
            false => WhyCopied::Generic,
        };
        bind(false)?;
        Ok(Some(why))
    }
}

/// A bound socket with its memory.
#[derive(Debug)]
pub(super) struct Opened {
    // Closed before the chunks go; the kernel holds the pages until then in any case.
    pub(super) channel: Channel,
    /// Not bound yet, for the next interfaces of this name. They share the chunks, which belong to one socket at a time.
    pub(super) spares: Vec<Channel>,
    pub(super) umem: Umem,
    /// Chunks of `umem`, back to back from its start.
    pub(super) chunks: usize,
    /// A power of two.
    pub(super) chunk_bytes: usize,
    /// Why the kernel copies; `None`: zero-copy.
    pub(super) copied: Option<WhyCopied>,
    /// How long to ask the driver before sleeping.
    pub(super) busy_ns: Option<i64>,
}

/// Which receive queue it is.
#[derive(Debug, Clone)]
pub(super) struct Place {
    /// The queue's number, and its line in the counters.
    pub(super) line: usize,
    /// How many queues have a socket.
    pub(super) queues: usize,
    /// The interface.
    pub(super) held: Held,
    /// Where its thread runs; empty: anywhere.
    pub(super) cpus: Vec<u32>,
}

/// One receive queue of an interface.
#[derive(Debug)]
pub(super) struct XdpQueue {
    interfaces: [InterfaceInfo; 1],
    opened: Opened,
    attachment: Arc<Attachment>,
    port: Arc<Port>,
    /// As in [`Place`].
    line: usize,
    queues: usize,
    cpus: Vec<u32>,
    /// The interface, or the last one.
    held: Held,
    frames: Vec<FrameMeta>,
    /// Chunks of the burst, and others that wait for room in the fill ring.
    lent_chunks: Vec<u64>,
    events: VecDeque<Event>,
    phase: Phase,
    is_up: bool,
    /// The interface was removed, and the kernel has unbound the socket: what did not come never comes.
    is_removed: bool,
    /// The socket was bound, so it cannot be bound to another interface.
    is_bound: bool,
    is_stamped: bool,
    has_told_unseen: bool,
    /// When to look at the interface next, on the monotonic clock.
    look_due_ns: i64,
    /// The same for its MTU, of the first queue, and whether frames of that length fit where it was looked at last.
    mtu_due_ns: i64,
    fits_mtu: bool,
    was_zero_copy: bool,
    /// Of the first queue; in zero-copy mode nobody knows.
    card: Option<Card>,
    lent: u64,
    /// Packets that sockets lost which are closed, or that never came out of them.
    lost_before: u64,
    /// Counts of the program when the socket was bound.
    unstamped_before: u64,
    unseen_before: u64,
    unreadable: u64,
    watermark: Watermark,
    clock: ClockWatch,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Nobody has asked for packets yet: they go on to the host.
    Closed,
    Running,
    /// The program takes no more; what it took still comes. Times on the monotonic clock.
    Draining {
        give_up_ns: i64,
        quiet_from_ns: i64,
    },
    /// The interface was removed; what the program took still comes. Times on the monotonic clock.
    Leaving {
        give_up_ns: i64,
        quiet_from_ns: i64,
    },
    /// There is no interface, or none with such a queue.
    Absent(Absence),
    Ended,
}

impl XdpQueue {
    /// A queue that takes packets from its first `next` on.
    pub(super) fn new(
        interface: InterfaceInfo,
        opened: Opened,
        attachment: Arc<Attachment>,
        port: Arc<Port>,
        place: Place,
        notices: Vec<String>,
    ) -> Self {
        let mut queue = Self {
            interfaces: [interface],
            lent_chunks: Vec::with_capacity(opened.chunks),
            was_zero_copy: opened.copied.is_none(),
            card: (place.line == 0 && opened.copied.is_some()).then(|| Card::new(place.held.index)),
            opened,
            attachment,
            port,
            line: place.line,
            queues: place.queues,
            cpus: place.cpus,
            held: place.held,
            frames: Vec::with_capacity(BURST as usize),
            events: notices.into_iter().map(Event::Notice).collect(),
            phase: Phase::Closed,
            is_up: true,
            is_removed: false,
            is_bound: true,
            is_stamped: true,
            has_told_unseen: false,
            look_due_ns: 0,
            mtu_due_ns: 0,
            fits_mtu: true,
            lent: 0,
            lost_before: 0,
            unstamped_before: 0,
            unseen_before: 0,
            unreadable: 0,
            watermark: Watermark::new(clock::realtime_ns(), PLACING_NS),
            clock: ClockWatch::new(),
        };
        queue.give_all();
        queue.tell_mtu("this kernel or driver does not spread them over several chunks");
        queue
    }

    /// Gives all chunks to the socket, which has had none.
    fn give_all(&mut self) {
        let chunk_bytes = self.opened.chunk_bytes as u64;
        let all = (0..self.opened.chunks as u64).map(|chunk| chunk * chunk_bytes);
        self.lent_chunks.clear();
        self.lent_chunks.extend(all);
        let given = self.opened.channel.fill.give(&self.lent_chunks);
        self.lent_chunks.drain(..given);
    }

    fn counter(&self, which: usize) -> u64 {
        self.attachment.counters.get(self.line, which)
    }

    /// Gives the burst's chunks to the kernel, and wakes a driver that waits for them.
    fn give_back(&mut self) {
        self.frames.clear();
        if self.lent_chunks.is_empty() {
            return;
        }
        let given = self.opened.channel.fill.give(&self.lent_chunks);
        self.lent_chunks.drain(..given);
        if self.opened.channel.fill.needs_wakeup() {
            let timeout = Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            // poll(2) is the wake-up; what it says does not matter here.
            let _ = poll(
                &mut [PollFd::new(&self.opened.channel.socket, PollFlags::IN)],
                Some(&timeout),
            );
        }
    }

    /// Fetches what the receive ring has. Returns whether there are frames.
    fn fetch(&mut self) -> bool {
        let available = self.opened.channel.rx.available().min(BURST);
        if available == 0 {
            return false;
        }
        // The program stamps by the monotonic clock.
        let now = clock::now();
        let (now_ns, offset_ns) = (now.wall_ns, now.offset_max_ns());
        self.check_stamps();
        let (mut taken, mut own_at, mut newest_ns) = (0, self.own_start(), i64::MIN);
        while taken < available {
            let first = self.opened.channel.rx.peek(taken);
            let parts = self.parts(taken, available);
            let Some(parts) = parts else { break };
            let Some((offset, length)) = self.place(first, taken..taken + parts, &mut own_at)
            else {
                break;
            };
            let Ok(captured_len) = u32::try_from(length) else {
                break;
            };
            if length > 0 {
                let time_ns = self.time_ns(first, offset_ns, now_ns);
                newest_ns = newest_ns.max(time_ns);
                self.frames.push(FrameMeta {
                    time_ns,
                    offset,
                    captured_len,
                    wire_len: captured_len,
                    interface: 0,
                    direction: Direction::Inbound,
                    vlan: None,
                });
            } else {
                self.unreadable += 1;
            }
            for index in taken..taken + parts {
                let address = self.opened.channel.rx.peek(index).address;
                self.lent_chunks
                    .push(address & !(self.opened.chunk_bytes as u64 - 1));
            }
            taken += parts;
        }
        self.opened.channel.rx.release(taken);
        self.lent += self.frames.len() as u64;
        if self.frames.is_empty() {
            return false;
        }
        self.watermark.on_burst(newest_ns, Some(now_ns));
        true
    }

    /// Descriptors of the packet that starts at `first`; `None` if its end is not there yet.
    fn parts(&self, first: u32, available: u32) -> Option<u32> {
        let end = (first..available)
            .find(|index| self.opened.channel.rx.peek(*index).options & CONTINUED == 0)?;
        Some(end - first + 1)
    }

    fn own_start(&self) -> usize {
        self.opened.chunks * self.opened.chunk_bytes
    }

    /// Where a packet lies, in one piece, and its length; 0 if its descriptors make no sense. `None`: there is no room to put
    /// it together in this burst.
    fn place(
        &mut self,
        first: Descriptor,
        parts: Range<u32>,
        own_at: &mut usize,
    ) -> Option<(usize, usize)> {
        let limit = self.own_start();
        let range = |one: Descriptor| {
            let start = usize::try_from(one.address).ok()?;
            let end = start.checked_add(one.length as usize)?;
            (start >= STAMP_BYTES && end <= limit).then_some(start..end)
        };
        if parts.len() == 1 {
            return Some(range(first).map_or((0, 0), |range| (range.start, range.len())));
        }
        let Some(length) = parts
            .clone()
            .map(|index| range(self.opened.channel.rx.peek(index)).map(|range| range.len()))
            .sum::<Option<usize>>()
        else {
            return Some((0, 0));
        };
        if length > OWN_BYTES {
            return Some((0, 0));
        }
        if *own_at + length > limit + OWN_BYTES {
            return None;
        }
        let start = *own_at;
        for index in parts {
            if let Some(range) = range(self.opened.channel.rx.peek(index)) {
                self.opened.umem.gather(range.start, range.len(), *own_at);
                *own_at += range.len();
            }
        }
        Some((start, length))
    }

    /// The stamp in front of a packet, as the system clock's; `now_ns` where there is none.
    fn time_ns(&self, first: Descriptor, offset_ns: i64, now_ns: i64) -> i64 {
        if !self.is_stamped {
            return now_ns;
        }
        let stamp = usize::try_from(first.address)
            .ok()
            .and_then(|end| {
                self.opened
                    .umem
                    .memory()
                    .get(end.checked_sub(STAMP_BYTES)?..end)
            })
            .and_then(|bytes| bytes.try_into().ok())
            .map(i64::from_ne_bytes);
        stamp.map_or(now_ns, |stamp| stamp.saturating_add(offset_ns).min(now_ns))
    }

    /// A driver without room in front of a packet never has it: nothing can be trusted there.
    fn check_stamps(&mut self) {
        if self.is_stamped && self.counter(word::UNSTAMPED) > self.unstamped_before {
            self.is_stamped = false;
            let name = &self.interfaces[0].name;
            self.events.push_back(Event::Notice(format!(
                "{name}: the driver has no room for time stamps: packets are stamped when they are fetched"
            )));
        }
    }

    /// Lets packets of a queue go on to the host.
    fn close(&self, line: usize) {
        self.attachment.counters.set(line, word::OPEN, 0);
    }

    /// The end by an error. The other queues go on.
    fn fail(&mut self) {
        self.close(self.line);
        self.attachment.hold().fail(self.line);
        self.phase = Phase::Ended;
    }

    fn drain(&mut self) {
        self.close(self.line);
        let now_ns = clock::monotonic_ns();
        self.phase = Phase::Draining {
            give_up_ns: now_ns.saturating_add(DRAIN_NS),
            quiet_from_ns: now_ns.saturating_add(PLACING_NS),
        };
    }

    /// Packets that the kernel lost on their way into the receive ring. (What it had no chunk for is among the dropped.)
    fn lost(&self) -> io::Result<u64> {
        let statistics = self.opened.channel.socket.statistics()?;
        let ring_full = statistics.rx_ring_full.unwrap_or(0);
        let lost = statistics.rx_dropped + ring_full + statistics.rx_invalid_descs;
        Ok(lost + self.lost_before + self.unreadable)
    }

    /// Whether a draining queue, or one whose interface is gone, is at its end: every packet that the program took was lent or lost, or
    /// it is time to give up. What did not come from an interface that is gone was lost with it.
    fn is_drained(&mut self, now_ns: i64) -> bool {
        let (Phase::Draining {
            give_up_ns,
            quiet_from_ns,
        }
        | Phase::Leaving {
            give_up_ns,
            quiet_from_ns,
        }) = self.phase
        else {
            return false;
        };
        if now_ns < quiet_from_ns {
            return false;
        }
        let Ok(lost) = self.lost() else { return true };
        let rest = Rest {
            received: self.counter(word::RECEIVED),
            seen: self.lent + lost + self.counter(word::OVERSIZE),
            is_over: now_ns >= give_up_ns,
            is_unbound: self.is_removed || matches!(self.phase, Phase::Leaving { .. }),
        };
        match rest.verdict() {
            Verdict::Closed => {}
            Verdict::Wait => return false,
            Verdict::Lost(missing) => self.lost_before += missing,
            Verdict::Unexplained(missing) => {
                let name = &self.interfaces[0].name;
                self.events.push_back(Event::Notice(format!(
                    "{name}: {missing} packets that were taken did not come"
                )));
            }
        }
        true
    }

    /// Waits for packets until `until_ns` on the monotonic clock.
    fn wait(&self, now_ns: i64, until_ns: i64) -> Result<(), SourceError> {
        let wait_ns = until_ns.saturating_sub(now_ns).max(0);
        let timeout = Timespec {
            tv_sec: wait_ns / SECOND_NS,
            tv_nsec: wait_ns % SECOND_NS,
        };
        match poll(
            &mut [PollFd::new(&self.opened.channel.socket, PollFlags::IN)],
            Some(&timeout),
        ) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(SourceError::System {
                interface: self.interfaces[0].name.clone(),
                call: "poll",
                error: error.into(),
            }),
        }
    }

    /// Asks the driver itself until packets are there, for the time of busy polling or until `until_ns`. Returns whether there are.
    fn ask(&self, now_ns: i64, until_ns: i64) -> bool {
        let Some(busy_ns) = self.opened.busy_ns else {
            return false;
        };
        let until_ns = until_ns.min(now_ns.saturating_add(busy_ns));
        loop {
            self.opened.channel.socket.ask();
            if self.opened.channel.rx.available() > 0 {
                return true;
            }
            if clock::monotonic_ns() >= until_ns {
                return false;
            }
        }
    }

    fn watch_clock(&mut self) {
        let Some(step) = self.clock.look() else {
            return;
        };
        let sentence = step.sentence(&self.interfaces[0].name);
        self.events.push_back(Event::Notice(sentence));
        if step.step_ns < 0 {
            self.watermark.on_clock_set_back(step.now_ns);
        }
    }
}

impl Queue for XdpQueue {
    fn interfaces(&self) -> &[InterfaceInfo] {
        &self.interfaces
    }

    fn next(&mut self, wait: Duration) -> Result<Status, SourceError> {
        self.give_back();
        match self.phase {
            Phase::Ended => return Ok(Status::End),
            Phase::Closed => {
                self.attachment.counters.set(self.line, word::OPEN, 1);
                self.phase = Phase::Running;
            }
            _ => {}
        }
        let wait_ns = match self.opened.busy_ns {
            Some(_) => clock::duration_ns(wait).min(BUSY_WAIT_NS),
            None => clock::duration_ns(wait),
        };
        let deadline_ns = clock::monotonic_ns().saturating_add(wait_ns);
        loop {
            let looked_ns = clock::realtime_ns();
            if self.fetch() {
                return Ok(Status::Frames);
            }
            self.give_back();
            self.watermark.on_silence(looked_ns);
            let outcome = self.look_at_interface();
            outcome.inspect_err(|_| self.fail())?;
            self.watch_clock();
            let now_ns = clock::monotonic_ns();
            if matches!(self.phase, Phase::Draining { .. }) && self.is_drained(now_ns) {
                self.phase = Phase::Ended;
                return Ok(Status::End);
            }
            if now_ns >= deadline_ns {
                return Ok(Status::Idle);
            }
            let until_ns = match self.phase {
                Phase::Draining { .. } | Phase::Leaving { .. } => {
                    deadline_ns.min(now_ns.saturating_add(DRAIN_LOOK_NS))
                }
                Phase::Absent(_) => deadline_ns.min(now_ns.saturating_add(ABSENT_LOOK_NS)),
                _ if !self.is_up => deadline_ns.min(now_ns.saturating_add(ABSENT_LOOK_NS)),
                _ => deadline_ns,
            };
            if self.is_removed || matches!(self.phase, Phase::Leaving { .. } | Phase::Absent(_)) {
                // A socket without an interface tells nothing.
                clock::sleep_until(until_ns);
                continue;
            }
            if self.ask(now_ns, until_ns) {
                continue;
            }
            let outcome = self.wait(clock::monotonic_ns(), until_ns);
            outcome.inspect_err(|_| self.fail())?;
        }
    }

    fn burst(&self) -> Burst<'_> {
        Burst {
            memory: self.opened.umem.memory(),
            frames: &self.frames,
        }
    }

    fn cpus(&self) -> &[u32] {
        &self.cpus
    }

    fn xdp_mode(&self) -> Option<XdpMode> {
        Some(XdpMode {
            is_native: self.attachment.hold().is_native,
            copied: self.opened.copied,
            is_multi_buffer: self.attachment.plan.packet_bytes_max.is_none(),
        })
    }

    fn watermark(&self) -> Option<i64> {
        Some(self.watermark.time_ns())
    }

    fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn statistics(&mut self) -> SourceStatistics {
        let now_ns = clock::realtime_ns();
        let lost = self.lost().ok();
        let shed = self.counter(word::SHUNTED);
        let mut causes = vec![(LossCause::Kernel, lost), (LossCause::Shed, Some(shed))];
        if self.attachment.plan.packet_bytes_max.is_some() {
            causes.push((LossCause::Oversize, Some(self.counter(word::OVERSIZE))));
        }
        let mut received = self.counter(word::RECEIVED) + shed;
        if self.line == 0 {
            // Of queues without one of us.
            let unseen = self.attachment.unseen();
            causes.push((LossCause::Unseen, Some(unseen)));
            received += unseen;
        }
        let mut known_ns = now_ns;
        if self.was_zero_copy {
            // Where no chunk is free the NIC drops, and no program runs.
            causes.push((LossCause::Nic, None));
        } else if let Some(card) = &mut self.card {
            card.ask(now_ns, self.phase != Phase::Running);
            causes.push((LossCause::Nic, card.lost.nic));
            received += card.lost.nic.unwrap_or(0);
            known_ns = now_ns.min(card.asked_ns);
        }
        SourceStatistics {
            received: Some(received),
            lost: causes,
            as_of_ns: lost.map(|_| known_ns.saturating_sub(PLACING_NS)),
        }
    }

    fn input_drops(&self) -> InputDrops {
        // A native program runs before the input queues, a generic one behind them.
        match &self.card {
            Some(card) if !self.attachment.hold().is_native => {
                let at_most = card.lost.input_at_most;
                at_most.map_or(InputDrops::Unknown, InputDrops::AtMost)
            }
            _ => InputDrops::None,
        }
    }

    fn stop(&mut self) {
        match self.phase {
            Phase::Closed => self.phase = Phase::Ended,
            Phase::Running | Phase::Leaving { .. } => self.drain(),
            Phase::Absent(_) => {
                self.close(self.line);
                self.phase = Phase::Ended;
            }
            _ => {}
        }
        if self.line == 0 {
            // What comes to queues without a socket from now on is nobody's loss.
            (self.queues..QUEUES_MAX).for_each(|line| self.close(line));
        }
    }
}

impl Drop for XdpQueue {
    fn drop(&mut self) {
        // The program may stay for other queues.
        self.close(self.line);
    }
}
