//! A packet socket and its ring as a queue: waiting, link state, counters, drained stop.

mod link;

use std::{collections::VecDeque, io, sync::Arc, time::Duration};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};

use self::link::Absence;
use super::{
    block::BlockSummary,
    classic::REJECT_ALL,
    nic::NicLosses,
    port::{Found, Port},
    ring::BlockRing,
    sys::PacketSocket,
    watermark::{PLACING_NS, Watermark},
};
use crate::{
    Burst, Event, InterfaceInfo, LossCause, OffloadEffects, Queue, SourceError, SourceStatistics,
    Status,
    clock::{self, SECOND_NS},
};

/// How long a queue sleeps where blocks follow each other fast. A block that is not full is handed over after as long.
const NAP_NS: i64 = 4_000_000;

/// It does so only where no more than this part of the ring fills meanwhile: one in 16.
const RING_SHARE: usize = 16;

/// How long a stopped queue waits for packets that the counters know and the ring has not shown.
const DRAIN_NS: i64 = 100_000_000;

/// How often a draining queue looks.
const DRAIN_LOOK_NS: i64 = 1_000_000;

/// A difference between system clock and monotonic clock that is a step and not a slew.
const CLOCK_STEP_NS: i64 = 100_000_000;

/// Readings of both clocks that are further apart are not compared.
const CLOCK_READING_NS: i64 = 1_000_000;

/// The kernel's counters have 32 bits: they are read before as many packets went by.
const PACKETS_BETWEEN_READINGS: u64 = 1 << 30;

/// How fast blocks come.
#[derive(Debug, Clone, Copy)]
struct Pulse {
    /// Blocks taken since `since_ns`, on the monotonic clock.
    blocks: usize,
    since_ns: i64,
}

impl Pulse {
    /// Whether at least two blocks will come within [`NAP_NS`] if it goes on as since the last call, and still no more than a
    /// small part of the ring's.
    fn is_busy(&mut self, now_ns: i64, ring_blocks: usize) -> bool {
        let elapsed_ns = now_ns.saturating_sub(self.since_ns).max(1);
        let blocks = std::mem::take(&mut self.blocks);
        self.since_ns = now_ns;
        let expected = i64::try_from(blocks)
            .unwrap_or(i64::MAX)
            .saturating_mul(NAP_NS)
            / elapsed_ns;
        let few = i64::try_from(ring_blocks / RING_SHARE).unwrap_or(i64::MAX);
        (2..=few).contains(&expected)
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
    counters: Counters,
    /// Of the first queue only, where the kernel tells.
    nic: Option<NicLosses>,
    place: Place,
    effects: OffloadEffects,
    pulse: Pulse,
    watermark: Watermark,
    /// System clock minus monotonic clock when last looked.
    clock_offset_ns: i64,
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
            counters: Counters::default(),
            nic: place
                .is_first
                .then(|| NicLosses::watch(found.index))
                .flatten(),
            place,
            effects: OffloadEffects::default(),
            pulse: Pulse {
                blocks: 0,
                since_ns: clock::monotonic_ns(),
            },
            // Frames that came since the socket was started are older than this queue: two seconds are plenty.
            watermark: Watermark::new(now_ns.saturating_sub(2 * SECOND_NS)),
            clock_offset_ns: now_ns - clock::monotonic_ns(),
        }
    }

    /// Takes the next block that has frames. Returns whether there was one.
    fn acquire(&mut self) -> Result<bool, SourceError> {
        while let Some(summary) = self.ring.acquire() {
            let frames = u64::from(summary.packets - summary.unreadable);
            self.counters.lent += frames;
            self.counters.unreadable += u64::from(summary.unreadable);
            self.note_effects(summary);
            self.pulse.blocks += 1;
            self.watermark.on_block(summary);
            if frames > 0 {
                self.on_frames()?;
                return Ok(true);
            }
            self.ring.release();
        }
        self.watermark.on_given_back();
        Ok(false)
    }

    /// Counts what offloads did, and says once that frames are not those of the wire.
    fn note_effects(&mut self, summary: BlockSummary) {
        self.effects.checksum_missing += u64::from(summary.checksum_missing);
        if summary.merged == 0 {
            return;
        }
        if self.effects.merged == 0 && self.place.is_first {
            let name = self.port.name();
            self.events.push_back(Event::Notice(format!(
                "{name}: frames larger than the MTU come, which were joined on receipt or are cut when sent; to have those of the wire: \
                 sudo ethtool -K {name} gro off lro off tso off gso off"
            )));
        }
        self.effects.merged += u64::from(summary.merged);
    }

    fn on_frames(&mut self) -> Result<(), SourceError> {
        if let Phase::Draining { give_up_ns, .. } = &mut self.phase {
            *give_up_ns = clock::monotonic_ns().saturating_add(DRAIN_NS);
        } else if !self.is_up {
            self.set_up(true);
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

    /// Notices a step of the system clock, by reading it against the clock that cannot be set.
    fn watch_clock(&mut self) {
        let (before_ns, real_ns, after_ns) = (
            clock::monotonic_ns(),
            clock::realtime_ns(),
            clock::monotonic_ns(),
        );
        if after_ns - before_ns > CLOCK_READING_NS {
            // The thread was descheduled between the readings: they do not belong together.
            return;
        }
        let offset_ns = real_ns - before_ns;
        let step_ns = offset_ns - self.clock_offset_ns;
        self.clock_offset_ns = offset_ns;
        if step_ns.abs() <= CLOCK_STEP_NS {
            return;
        }
        let (milliseconds, way) = (
            step_ns.abs() / 1_000_000,
            if step_ns < 0 { "back" } else { "forward" },
        );
        let name = &self.interfaces[0].name;
        self.events.push_back(Event::Notice(format!(
            "{name}: the system clock was set {way} by {milliseconds} ms"
        )));
        if step_ns < 0 {
            self.watermark.on_clock_set_back(real_ns);
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
    /// Where blocks follow each other fast, it sleeps a while rather than to be woken for each: a wake-up costs as much as some
    /// dozens of packets.
    fn wait(&mut self, now_ns: i64, until_ns: i64) -> Result<bool, SourceError> {
        let is_busy = self.pulse.is_busy(now_ns, self.ring.blocks());
        if is_busy && self.phase == Phase::Running && until_ns.saturating_sub(now_ns) >= NAP_NS {
            clock::sleep_until(now_ns.saturating_add(NAP_NS));
            return Ok(true);
        }
        let wait_ns = until_ns.saturating_sub(now_ns).max(0);
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
        self.ring.release();
        if self.phase == Phase::Ended {
            return Ok(Status::End);
        }
        let deadline_ns = clock::monotonic_ns().saturating_add(clock::duration_ns(wait));
        let mut was_last_look = false;
        loop {
            let looked_ns = clock::realtime_ns();
            if self.acquire()? {
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
        self.try_next(wait)
            .inspect_err(|_| self.phase = Phase::Ended)
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
        Some(self.watermark.time_ns)
    }

    fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// `None` counters if the kernel does not answer.
    fn statistics(&mut self) -> SourceStatistics {
        let now_ns = clock::realtime_ns();
        // The MTU may have been changed.
        self.ring.set_frame_bytes_max(self.port.frame_bytes_max());
        let nic = self.nic.as_mut().map(NicLosses::read);
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
            as_of_ns: Some(now_ns.saturating_sub(PLACING_NS)),
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
        let mut is_busy = |blocks, elapsed_ns, ring_blocks| {
            pulse.blocks = blocks;
            let now_ns = pulse.since_ns + elapsed_ns;
            pulse.is_busy(now_ns, ring_blocks)
        };
        assert!(!is_busy(0, NAP_NS, 512), "silence");
        assert!(!is_busy(1, NAP_NS, 512), "woken for each is as often");
        assert!(is_busy(1, NAP_NS / 2, 512));
        assert!(is_busy(5, NAP_NS, 512), "it goes on behind a nap");
        assert!(is_busy(32, NAP_NS, 512));
        assert!(!is_busy(33, NAP_NS, 512), "the ring would fill");
        assert!(!is_busy(2, NAP_NS, 16), "a small ring is never left alone");
        assert!(!is_busy(1, 0, 512), "two looks at once");
    }
}
