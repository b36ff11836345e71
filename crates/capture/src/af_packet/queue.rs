//! A packet socket and its ring as a queue: waiting, link state, counters, drained stop.

mod link;

use std::{collections::VecDeque, io, sync::Arc, time::Duration};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};

use self::link::{ABSENT_LOOK_NS, Absence};
use super::{
    block::PartSummary,
    classic::REJECT_ALL,
    nic::{InterfaceLosses, NicLosses},
    port::{Found, Port},
    ring::BlockRing,
    source::RETIRE_MS,
    sys::PacketSocket,
    watermark::{BEHIND_NS, PLACING_NS, WATERMARK_BEHIND_NS_MAX},
};
use crate::{
    Burst, Event, InputDrops, InterfaceInfo, LossCause, OffloadEffects, Queue, REST_NS_MAX,
    SourceError, SourceStatistics, Status,
    clock::{self, SECOND_NS},
    watermark::{ClockWatch, Watermark},
};

/// How long a queue sleeps at most where blocks follow each other fast …
const NAP_NS: i64 = 8_000_000;

/// … and where they are full before the kernel closes them by itself. On a virtual machine waking up took 20 to 40 µs of
/// processor time, and with the system calls and cold caches that follow 80: as much as a thousand packets of 64 bytes.
/// A queue's watermark may be late by so much more.
const NAP_FULL_NS: i64 = 16_000_000;

/// The same where nobody waits for the watermark: the caller can wait for as long.
const NAP_CALM_NS: i64 = REST_NS_MAX;

const _: () = assert!(BEHIND_NS + NAP_FULL_NS + 5_000_000 < WATERMARK_BEHIND_NS_MAX);

/// Shorter naps are not worth it.
const NAP_NS_MIN: i64 = 2_000_000;

/// No more than this part of the ring fills during a nap: one in 16.
const RING_SHARE: usize = 16;

/// How soon a block of 256 KiB is full at 10 Gbit/s of the smallest frames, which take twice as much room here. Half
/// of the ring may fill so fast during a nap.
const BLOCK_FILL_NS: i64 = 105_000;

/// How long a stopped queue waits for packets that the counters know and the ring has not shown.
const DRAIN_NS: i64 = 100_000_000;

/// How often a draining queue looks.
const DRAIN_LOOK_NS: i64 = 1_000_000;

/// How old the NIC's counters and the MTU may be. To ask for them takes a message to the kernel and back: as long as the
/// copies of hundreds of small packets.
const INTERFACE_NS: i64 = 20_000_000;

/// The kernel's counters have 32 bits: they are read before as many packets went by.
const PACKETS_BETWEEN_READINGS: u64 = 1 << 30;

/// How long the kernel fills a block at most, ns.
const RETIRE_NS: i64 = RETIRE_MS as i64 * 1_000_000;

/// How fast blocks come.
#[derive(Debug, Clone, Copy)]
struct Pulse {
    /// Blocks taken since `since_ns`, on the monotonic clock.
    blocks: usize,
    since_ns: i64,
}

impl Pulse {
    /// How long to sleep, if it goes on as since the last call: until blocks are there to be taken together, and still only
    /// a small part of the ring is full. The caller can wait for `wait_ns`. `None`: blocks come so seldom that the kernel should
    /// wake this thread for each, or so fast that it should not sleep.
    fn nap_ns(&mut self, now_ns: i64, wait_ns: i64, ring_blocks: usize) -> Option<i64> {
        let elapsed_ns = now_ns.saturating_sub(self.since_ns).max(1);
        let blocks = i64::try_from(std::mem::take(&mut self.blocks)).unwrap_or(i64::MAX);
        self.since_ns = now_ns;
        // Less than three blocks in two naps.
        if blocks.saturating_mul(2 * NAP_NS) < elapsed_ns.saturating_mul(3) {
            return None;
        }
        // Three blocks where the kernel alone would have closed two.
        let is_full = blocks.saturating_mul(2 * RETIRE_NS) > elapsed_ns.saturating_mul(3);
        let longest_ns = match is_full {
            true if wait_ns >= NAP_CALM_NS => NAP_CALM_NS,
            true => NAP_FULL_NS,
            false => NAP_NS,
        };
        let few = i64::try_from(ring_blocks / RING_SHARE).unwrap_or(i64::MAX);
        let nap_ns = few.saturating_mul(elapsed_ns) / blocks;
        // What comes next may come at the link's full speed.
        let blocks = i64::try_from(ring_blocks).unwrap_or(i64::MAX);
        let safe_ns = blocks.saturating_mul(BLOCK_FILL_NS) / 2;
        let nap_ns = nap_ns.min(safe_ns).min(longest_ns);
        (nap_ns >= NAP_NS_MIN).then_some(nap_ns)
    }
}

/// A queue among those of its interface.
#[derive(Debug, Clone)]
pub(super) struct Place {
    /// It speaks for the interface.
    pub(super) is_first: bool,
    /// Where its thread should run.
    pub(super) cpus: Vec<u32>,
}

/// One socket of a live interface.
#[derive(Debug)]
pub(super) struct LiveQueue {
    interfaces: [InterfaceInfo; 1],
    port: Arc<Port>,
    socket: PacketSocket,
    ring: BlockRing,
    events: VecDeque<Event>,
    phase: Phase,
    is_up: bool,
    /// Since when the interface does not exist, and when to look for it again, on the monotonic clock.
    absence: Option<Absence>,
    /// Until when the other threads of an interface that came back are waited for, on the monotonic clock.
    siblings_until_ns: Option<i64>,
    counters: Counters,
    /// Of the first queue only, where the kernel tells.
    nic: Option<NicLosses>,
    /// When the interface was asked last, on the system clock, and what had been lost before this socket.
    interface_ns: i64,
    lost_before: InterfaceLosses,
    place: Place,
    effects: OffloadEffects,
    pulse: Pulse,
    watermark: Watermark,
    clock_watch: ClockWatch,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    /// The intake is cut off; what the kernel holds still comes. Times on the monotonic clock.
    Draining {
        give_up_ns: i64,
        /// From when on no CPU can be in the receive path any more.
        quiet_from_ns: i64,
    },
    Ended,
}

/// Packets since the opening.
#[derive(Debug, Default)]
struct Counters {
    /// The kernel's count of packets for this socket, with those it dropped.
    received: u64,
    /// The kernel's count of packets for which no block was free.
    dropped: u64,
    /// How often the kernel found all blocks taken.
    freezes: u64,
    /// Frames that were lent.
    lent: u64,
    /// Frames in blocks that made no sense.
    unreadable: u64,
    /// `lent` when the kernel's counters were last read.
    lent_at_reading: u64,
}

impl LiveQueue {
    /// A queue of a socket that may be receiving already.
    pub(super) fn new(
        port: Arc<Port>,
        found: Found,
        place: Place,
        info: InterfaceInfo,
        socket: PacketSocket,
        ring: BlockRing,
        notice: Option<Event>,
    ) -> Self {
        let now_ns = clock::realtime_ns();
        let mut events = VecDeque::from_iter(notice);
        let is_up = found.flags.is_up();
        if !is_up {
            events.push_back(Event::InterfaceDown(0));
        }
        Self {
            interfaces: [info],
            port,
            socket,
            ring,
            events,
            phase: Phase::Running,
            is_up,
            absence: None,
            siblings_until_ns: None,
            counters: Counters::default(),
            nic: place
                .is_first
                .then(|| NicLosses::watch(found.index))
                .flatten(),
            interface_ns: i64::MIN,
            lost_before: InterfaceLosses::default(),
            place,
            effects: OffloadEffects::default(),
            pulse: Pulse {
                blocks: 0,
                since_ns: clock::monotonic_ns(),
            },
            // Frames that came since the socket was started are older than this queue: two seconds are plenty.
            watermark: Watermark::new(now_ns.saturating_sub(2 * SECOND_NS), PLACING_NS),
            clock_watch: ClockWatch::new(),
        }
    }

    /// Lends the next frames, of the block that is held or of one behind it. Returns whether there were any.
    fn lend(&mut self) -> Result<bool, SourceError> {
        loop {
            let part = self.ring.lend();
            self.counters.lent += u64::from(part.frames);
            self.counters.unreadable += u64::from(part.unreadable);
            self.note_effects(part);
            if part.frames > 0 {
                return Ok(true);
            }
            self.ring.release();
            let Some(summary) = self.ring.acquire() else {
                self.watermark.on_given_back();
                return Ok(false);
            };
            let clock_ns = clock::realtime_ns();
            self.watermark.on_burst(summary.last_ns, Some(clock_ns));
            if summary.packets > 0 {
                self.on_block()?;
            }
        }
    }

    /// Counts what offloads did, and says once that frames are not those of the wire.
    fn note_effects(&mut self, part: PartSummary) {
        self.effects.checksum_missing += u64::from(part.checksum_missing);
        if part.merged == 0 {
            return;
        }
        if self.effects.merged == 0 && self.place.is_first {
            let name = self.port.name();
            self.events.push_back(Event::Notice(format!(
                "{name}: frames larger than the MTU come, which were joined on receipt or are cut when sent; to have those of the wire: \
                 sudo ethtool -K {name} gro off lro off tso off gso off"
            )));
        }
        self.effects.merged += u64::from(part.merged);
    }

    /// A block with packets was taken.
    fn on_block(&mut self) -> Result<(), SourceError> {
        self.pulse.blocks += 1;
        if let Phase::Draining { give_up_ns, .. } = &mut self.phase {
            *give_up_ns = clock::monotonic_ns().saturating_add(DRAIN_NS);
        } else if !self.is_up {
            self.rise();
        }
        if self.counters.lent - self.counters.lent_at_reading >= PACKETS_BETWEEN_READINGS {
            self.read_counters()?;
        }
        Ok(())
    }

    /// Adds up the kernel's counters, which reading resets.
    fn read_counters(&mut self) -> Result<(), SourceError> {
        let taken = self
            .socket
            .take_statistics()
            .map_err(|error| self.error("getsockopt(PACKET_STATISTICS)", error))?;
        self.counters.received += u64::from(taken.tp_packets);
        self.counters.dropped += u64::from(taken.tp_drops);
        self.counters.freezes += u64::from(taken.tp_freeze_q_cnt);
        self.counters.lent_at_reading = self.counters.lent;
        Ok(())
    }

    /// Asks for what the interface counted, and for its MTU, which may have been changed; at the end always.
    fn ask_interface(&mut self, now_ns: i64) {
        let age_ns = now_ns.checked_sub(self.interface_ns);
        let is_fresh = age_ns.is_some_and(|age_ns| (0..INTERFACE_NS).contains(&age_ns));
        if is_fresh && self.phase == Phase::Running {
            return;
        }
        self.interface_ns = now_ns;
        self.ring.set_frame_bytes_max(self.port.frame_bytes_max());
        self.lost_before = self.nic.as_mut().map(NicLosses::read).unwrap_or_default();
    }

    /// Notices a step of the system clock.
    fn watch_clock(&mut self) {
        let Some(step) = self.clock_watch.look() else {
            return;
        };
        let sentence = step.sentence(&self.interfaces[0].name);
        self.events.push_back(Event::Notice(sentence));
        if step.step_ns < 0 {
            self.watermark.on_clock_set_back(step.now_ns);
        }
    }

    /// Whether a draining queue is at its end: every packet that the kernel counted was lent or dropped, or it is time to
    /// give up.
    fn is_drained(&mut self, now_ns: i64) -> Result<bool, SourceError> {
        let Phase::Draining {
            give_up_ns,
            quiet_from_ns,
        } = self.phase
        else {
            return Ok(false);
        };
        if now_ns < quiet_from_ns {
            return Ok(false);
        }
        self.read_counters()?;
        let seen = self.counters.lent + self.counters.unreadable + self.counters.dropped;
        if seen == self.counters.received {
            return Ok(true);
        }
        if now_ns < give_up_ns {
            return Ok(false);
        }
        let (name, missing) = (
            &self.interfaces[0].name,
            self.counters.received.abs_diff(seen),
        );
        self.events.push_back(Event::Notice(format!(
            "{name}: {missing} packets that the kernel counted did not come"
        )));
        Ok(true)
    }

    /// Waits for the ring or an error until `until_ns` on the monotonic clock. Returns whether to look at the ring again.
    ///
    /// Where blocks follow each other fast, it sleeps a while rather than to be woken for each: a wake-up costs as much as a thousand
    /// small packets. It may then sleep longer than it was asked to wait.
    fn wait(&mut self, now_ns: i64, until_ns: i64) -> Result<bool, SourceError> {
        let mut wait_ns = until_ns.saturating_sub(now_ns).max(0);
        if !self.is_up {
            wait_ns = wait_ns.min(ABSENT_LOOK_NS);
        }
        // A caller that only looks whether there is more learns nothing about the pace.
        if self.phase == Phase::Running
            && wait_ns >= NAP_NS_MIN
            && let Some(nap_ns) = self.pulse.nap_ns(now_ns, wait_ns, self.ring.blocks())
        {
            clock::sleep_until(now_ns.saturating_add(nap_ns));
            // The interface may have been down meanwhile, and a busy one is never polled.
            self.on_socket_error()?;
            return Ok(true);
        }
        // Errors are seen when it is to wait.
        if self.phase == Phase::Running && wait_ns == 0 {
            return Ok(false);
        }
        let timeout = Timespec {
            tv_sec: wait_ns / SECOND_NS,
            tv_nsec: wait_ns % SECOND_NS,
        };
        let mut descriptors = [PollFd::new(&self.socket, PollFlags::IN | PollFlags::ERR)];
        match poll(&mut descriptors, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(self.error("poll", error.into())),
        }
        let found = descriptors[0].revents();
        if found.intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL) {
            self.on_socket_error()?;
        } else if self.phase == Phase::Running {
            if self.absence.is_some() {
                self.look_for_return()?;
            } else if !self.is_up {
                self.look_after_down()?;
            }
        }
        Ok(found.contains(PollFlags::IN))
    }

    /// Lets what the kernel holds come out and ends then. `quiet_after_ns`: how long packets may still be on their way.
    fn drain(&mut self, quiet_after_ns: i64) {
        let now_ns = clock::monotonic_ns();
        self.phase = Phase::Draining {
            give_up_ns: now_ns.saturating_add(DRAIN_NS),
            quiet_from_ns: now_ns.saturating_add(quiet_after_ns),
        };
    }

    fn error(&self, call: &'static str, error: io::Error) -> SourceError {
        self.port.error(call, error)
    }

    fn try_next(&mut self, wait: Duration) -> Result<Status, SourceError> {
        if self.phase == Phase::Ended {
            self.ring.release();
            return Ok(Status::End);
        }
        if self.lend()? {
            return Ok(Status::Frames);
        }
        let deadline_ns = clock::monotonic_ns().saturating_add(clock::duration_ns(wait));
        let mut was_last_look = false;
        loop {
            let looked_ns = clock::realtime_ns();
            if self.lend()? {
                return Ok(Status::Frames);
            }
            let now_ns = clock::monotonic_ns();
            self.watch_clock();
            if self.ring.is_kernel_block_empty() {
                self.watermark.on_silence(looked_ns);
            }
            if self.is_drained(now_ns)? {
                self.phase = Phase::Ended;
                return Ok(Status::End);
            }
            if was_last_look {
                return Ok(Status::Idle);
            }
            let until_ns = match self.phase {
                Phase::Draining { .. } => deadline_ns.min(now_ns.saturating_add(DRAIN_LOOK_NS)),
                _ => deadline_ns,
            };
            let is_readable = self.wait(now_ns, until_ns)?;
            // Look once more after the deadline: what came while waiting is lent, and the watermark is of now.
            was_last_look =
                !is_readable && clock::monotonic_ns() >= deadline_ns || now_ns >= deadline_ns;
        }
    }
}

impl Queue for LiveQueue {
    fn interfaces(&self) -> &[InterfaceInfo] {
        &self.interfaces
    }

    fn next(&mut self, wait: Duration) -> Result<Status, SourceError> {
        self.try_next(wait).inspect_err(|_| {
            self.phase = Phase::Ended;
            self.port.lose_member();
        })
    }

    fn burst(&self) -> Burst<'_> {
        self.ring.burst()
    }

    fn cpus(&self) -> &[u32] {
        &self.place.cpus
    }

    fn is_filtered(&self) -> bool {
        self.port.is_filtered()
    }

    fn watermark(&self) -> Option<i64> {
        Some(self.watermark.time_ns())
    }

    fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// `None` counters if the kernel does not answer.
    fn statistics(&mut self) -> SourceStatistics {
        let now_ns = clock::realtime_ns();
        self.ask_interface(now_ns);
        let nic = self.lost_before.nic;
        let as_of_ns = now_ns.min(nic.map_or(now_ns, |_| self.interface_ns));
        let mut lost = Vec::with_capacity(2);
        if self.place.is_first {
            lost.push((LossCause::Nic, nic));
        }
        if self.read_counters().is_err() {
            lost.push((LossCause::Kernel, None));
            return SourceStatistics {
                received: None,
                lost,
                as_of_ns: None,
            };
        }
        let kernel = self.counters.dropped + self.counters.unreadable;
        lost.push((LossCause::Kernel, Some(kernel)));
        SourceStatistics {
            received: Some(self.counters.received + nic.unwrap_or(0)),
            lost,
            as_of_ns: Some(as_of_ns.saturating_sub(PLACING_NS)),
        }
    }

    fn input_drops(&self) -> InputDrops {
        match self.lost_before.input_at_most {
            _ if !self.place.is_first => InputDrops::None,
            Some(packets) => InputDrops::AtMost(packets),
            None => InputDrops::Unknown,
        }
    }

    fn offload_effects(&self) -> Option<OffloadEffects> {
        Some(self.effects)
    }

    fn stop(&mut self) {
        if self.phase != Phase::Running {
            return;
        }
        // What the filter rejects is not counted as received: from here on the kernel's counter stands still, but for
        // packets that other CPUs are placing right now.
        let is_filtered = self.socket.attach_filter(&REJECT_ALL).is_ok();
        // Binding to no protocol waits for those CPUs. A member of a fanout group cannot be bound again: wait instead.
        let is_unhooked = self
            .socket
            .bound_index()
            .and_then(|index| self.socket.bind(index.max(0), 0))
            .is_ok();
        if !is_filtered && !is_unhooked {
            // The kernel refused both: frames would come for ever.
            let name = &self.interfaces[0].name;
            self.events.push_back(Event::Notice(format!(
                "{name}: the kernel did not stop the capture"
            )));
            self.phase = Phase::Ended;
            return;
        }
        self.drain(if is_unhooked { 0 } else { PLACING_NS });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fast_blocks_are_waited_for_together() {
        let mut pulse = Pulse {
            blocks: 0,
            since_ns: 0,
        };
        let mut nap_ns = |blocks, elapsed_ns, ring_blocks| {
            pulse.blocks = blocks;
            let now_ns = pulse.since_ns + elapsed_ns;
            pulse.nap_ns(now_ns, NAP_CALM_NS - 1, ring_blocks)
        };
        assert_eq!(nap_ns(0, NAP_NS, 512), None, "silence");
        assert_eq!(nap_ns(1, NAP_NS, 512), None, "woken for each is as often");
        assert_eq!(nap_ns(1, NAP_NS / 2, 512), Some(NAP_NS));
        assert_eq!(
            nap_ns(5, 3 * NAP_NS, 512),
            Some(NAP_NS),
            "it goes on behind a nap"
        );
        assert_eq!(
            nap_ns(3, NAP_NS, 512),
            Some(NAP_NS),
            "the kernel closes as many that are not full"
        );
        assert_eq!(nap_ns(4, NAP_NS, 512), Some(NAP_FULL_NS), "full ones");
        assert_eq!(nap_ns(32, NAP_FULL_NS, 512), Some(NAP_FULL_NS));
        assert_eq!(
            nap_ns(64, NAP_FULL_NS, 512),
            Some(NAP_FULL_NS / 2),
            "the ring would fill"
        );
        assert_eq!(nap_ns(300, NAP_NS, 512), None);
        assert_eq!(
            nap_ns(2, NAP_NS, 15),
            None,
            "a small ring is never left alone"
        );
        assert_eq!(
            nap_ns(2, NAP_NS, 64),
            Some(64 * BLOCK_FILL_NS / 2),
            "nor a larger one for long: the next burst may be faster"
        );
        assert_eq!(nap_ns(1, 0, 512), None, "two looks at once");
    }

    #[test]
    fn who_can_wait_longer_is_woken_less() {
        let mut pulse = Pulse {
            blocks: 0,
            since_ns: 0,
        };
        let mut nap_ns = |blocks, wait_ns| {
            pulse.blocks = blocks;
            pulse.nap_ns(pulse.since_ns + NAP_NS, wait_ns, 512)
        };
        assert_eq!(nap_ns(4, NAP_CALM_NS), Some(NAP_CALM_NS));
        assert_eq!(nap_ns(4, NAP_NS), Some(NAP_FULL_NS));
        assert_eq!(nap_ns(2, i64::MAX), Some(NAP_NS), "not full");
    }
}
