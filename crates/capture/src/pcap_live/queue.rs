//! A libpcap handle as a queue: waiting, watermark, link state, counters, drained stop.
//!
//! # Watermark
//! On a Linux packet socket, packets wait in a block that cannot be seen until it is full or its retire time is over. What
//! was stamped [`PLACING_NS`] before a look that found nothing has come by then. Other devices stamp by clocks of their
//! own: they promise nothing.

mod link;
mod presence;

use std::{collections::VecDeque, io, time::Duration};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};

use self::{
    link::{ABSENT_LOOK_NS, Link},
    presence::Presence,
};
use super::{
    stage::Stage,
    sys::{Handle, PcapStatistics},
};
use crate::{
    Burst, Event, InputDrops, InterfaceInfo, LossCause, Queue, SourceError, SourceStatistics,
    Status,
    af_packet::{InterfaceLosses, REJECT_ALL, sys::PacketSocket},
    clock::{self, SECOND_NS},
    watermark::{ClockWatch, Watermark},
};

/// From the stamp of a packet to when libpcap shows it, at most: twice the retire time of 4 ms, two ticks of the slowest
/// timer (10 ms each), and 12 ms for a virtual CPU that is descheduled between stamp and block.
const PLACING_NS: i64 = 40_000_000;

/// How long a stopped queue waits for packets that the counters know and libpcap has not shown.
const DRAIN_NS: i64 = 100_000_000;

/// How long CPUs that are in the receive path take to leave it.
const QUIET_NS: i64 = 12_000_000;

/// How often a draining queue looks, and one whose device has no descriptor to wait for.
const LOOK_NS: i64 = 1_000_000;

/// One device of libpcap.
#[derive(Debug)]
pub(super) struct PcapQueue {
    interfaces: [InterfaceInfo; 1],
    cpus: Vec<u32>,
    handle: Handle,
    /// The packet socket of Linux that packets come from: counters and clock have a known meaning.
    socket: Option<PacketSocket>,
    link: Option<Link>,
    stage: Stage,
    events: VecDeque<Event>,
    phase: Phase,
    presence: Presence,
    counters: Counters,
    watermark: Watermark,
    clock: ClockWatch,
    lost_before: InterfaceLosses,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    /// The intake is cut off; what was received still comes. Times on the monotonic clock.
    Draining {
        give_up_ns: i64,
        quiet_from_ns: i64,
    },
    Ended,
}

/// Packets since the opening.
#[derive(Debug, Default)]
struct Counters {
    /// `ps_recv`, in 64 bits.
    received: u64,
    /// `ps_drop`.
    dropped: u64,
    /// Packets that were lent.
    lent: u64,
    /// The last reading: libpcap counts in 32 bits.
    last: PcapStatistics,
}

impl Counters {
    fn add(&mut self, now: PcapStatistics) {
        let since = |now: u32, last: u32| u64::from(now.wrapping_sub(last));
        self.received += since(now.received, self.last.received);
        self.dropped += since(now.dropped, self.last.dropped);
        self.last = now;
    }
}

impl PcapQueue {
    /// A queue of an active handle.
    pub(super) fn new(
        handle: Handle,
        interface: InterfaceInfo,
        socket: Option<PacketSocket>,
        promiscuous: bool,
        cpus: Vec<u32>,
        notices: Vec<String>,
    ) -> Self {
        let snaplen = usize::try_from(handle.snaplen()).unwrap_or(0);
        let link = socket
            .as_ref()
            .and_then(|socket| Link::new(socket, &interface.name, promiscuous));
        // Packets that came since the handle was opened are older than this queue: two seconds are plenty.
        let since_ns = clock::realtime_ns().saturating_sub(2 * SECOND_NS);
        Self {
            lost_before: InterfaceLosses::default(),
            interfaces: [interface],
            cpus,
            handle,
            socket,
            link,
            stage: Stage::new(snaplen),
            events: notices.into_iter().map(Event::Notice).collect(),
            phase: Phase::Running,
            presence: Presence::new(),
            counters: Counters::default(),
            watermark: Watermark::new(since_ns, PLACING_NS),
            clock: ClockWatch::new(),
        }
    }

    /// Takes what libpcap has. Returns whether there was something.
    fn dispatch(&mut self) -> Result<bool, SourceError> {
        let outcome = self.handle.dispatch(&mut self.stage);
        if let Some(newest_ns) = self.stage.newest_ns() {
            self.counters.lent += self.stage.len() as u64;
            let clock_ns = self.is_packet_socket().then(clock::realtime_ns);
            self.watermark.on_burst(newest_ns, clock_ns);
            match &mut self.phase {
                Phase::Draining { give_up_ns, .. } => {
                    *give_up_ns = clock::monotonic_ns().saturating_add(DRAIN_NS);
                }
                _ => self.events.extend(self.presence.frames(newest_ns)),
            }
        }
        if let Err(message) = outcome {
            self.on_error(message)?;
        }
        Ok(self.stage.len() > 0)
    }

    /// An interface that was removed is an event; while draining it does not matter.
    fn on_error(&mut self, message: String) -> Result<(), SourceError> {
        // libpcap takes one that got another name for removed, until packets come.
        let was_there = self.has_interface();
        self.look_at_interface()?;
        if self.phase != Phase::Running || !was_there {
            return Ok(());
        }
        Err(SourceError::System {
            interface: self.interfaces[0].name.clone(),
            call: "pcap_dispatch",
            error: io::Error::other(message),
        })
    }

    fn is_packet_socket(&self) -> bool {
        self.socket.is_some()
    }

    fn read_counters(&mut self) -> Result<(), String> {
        let statistics = self.handle.statistics()?;
        self.counters.add(statistics);
        Ok(())
    }

    fn drain(&mut self) {
        let now_ns = clock::monotonic_ns();
        self.phase = Phase::Draining {
            give_up_ns: now_ns.saturating_add(DRAIN_NS),
            quiet_from_ns: now_ns.saturating_add(QUIET_NS),
        };
    }

    /// Whether a stopped device whose intake cannot be cut off has had its time.
    fn is_cut_off(&self) -> bool {
        match self.phase {
            Phase::Draining { quiet_from_ns, .. } => {
                !self.is_packet_socket() && clock::monotonic_ns() >= quiet_from_ns
            }
            _ => false,
        }
    }

    /// Whether a draining queue that has just shown nothing is at its end: all that was received was lent or dropped, or
    /// it is time to give up.
    fn is_drained(&mut self, now_ns: i64) -> bool {
        let Phase::Draining {
            give_up_ns,
            quiet_from_ns,
        } = self.phase
        else {
            return false;
        };
        if now_ns < quiet_from_ns {
            return false;
        }
        if self.read_counters().is_err() {
            return true;
        }
        let seen = self.counters.lent + self.counters.dropped;
        if seen == self.counters.received {
            return true;
        }
        if now_ns < give_up_ns {
            return false;
        }
        let name = &self.interfaces[0].name;
        let missing = self.counters.received.abs_diff(seen);
        self.events.push_back(Event::Notice(format!(
            "{name}: {missing} packets that the kernel counted did not come"
        )));
        true
    }

    /// Waits for packets until `until_ns` on the monotonic clock, or as long as the device lets us.
    fn wait(&self, now_ns: i64, until_ns: i64) -> Result<(), SourceError> {
        let mut wait_ns = until_ns.saturating_sub(now_ns).max(0);
        // libpcap wants to be called often while it waits to hear that the interface is gone.
        let is_absent = self.link.as_ref().is_some_and(Link::is_absent);
        if let Some(limit) = self.handle.poll_limit().filter(|_| !is_absent) {
            wait_ns = wait_ns.min(clock::duration_ns(limit));
        }
        if is_absent || !self.presence.is_up() {
            wait_ns = wait_ns.min(ABSENT_LOOK_NS);
        }
        let Some(descriptor) = self.handle.descriptor() else {
            clock::sleep_until(now_ns.saturating_add(wait_ns.min(LOOK_NS)));
            return Ok(());
        };
        let timeout = Timespec {
            tv_sec: wait_ns / SECOND_NS,
            tv_nsec: wait_ns % SECOND_NS,
        };
        match poll(
            &mut [PollFd::new(&descriptor, PollFlags::IN)],
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

    fn try_next(&mut self, wait: Duration) -> Result<Status, SourceError> {
        self.stage.clear();
        if self.phase == Phase::Ended {
            return Ok(Status::End);
        }
        let deadline_ns = clock::monotonic_ns().saturating_add(clock::duration_ns(wait));
        loop {
            let looked_ns = clock::realtime_ns();
            if self.is_cut_off() {
                self.phase = Phase::Ended;
                return Ok(Status::End);
            }
            if self.dispatch()? {
                return Ok(Status::Frames);
            }
            self.watermark.on_silence(looked_ns);
            self.look_at_interface()?;
            if let Some(step) = self.clock.look().filter(|_| self.is_packet_socket()) {
                let sentence = step.sentence(&self.interfaces[0].name);
                self.events.push_back(Event::Notice(sentence));
                if step.step_ns < 0 {
                    self.watermark.on_clock_set_back(step.now_ns);
                    self.presence.on_clock_set_back(step.now_ns);
                }
            }
            let now_ns = clock::monotonic_ns();
            if self.is_drained(now_ns) {
                self.phase = Phase::Ended;
                return Ok(Status::End);
            }
            if now_ns >= deadline_ns {
                return Ok(Status::Idle);
            }
            let until_ns = match self.phase {
                Phase::Draining { .. } => deadline_ns.min(now_ns.saturating_add(LOOK_NS)),
                _ => deadline_ns,
            };
            self.wait(now_ns, until_ns)?;
        }
    }
}

impl Queue for PcapQueue {
    fn interfaces(&self) -> &[InterfaceInfo] {
        &self.interfaces
    }

    fn next(&mut self, wait: Duration) -> Result<Status, SourceError> {
        self.try_next(wait).inspect_err(|_| {
            self.phase = Phase::Ended;
            self.stage.clear();
        })
    }

    fn burst(&self) -> Burst<'_> {
        self.stage.burst()
    }

    fn cpus(&self) -> &[u32] {
        &self.cpus
    }

    fn watermark(&self) -> Option<i64> {
        self.is_packet_socket().then(|| self.watermark.time_ns())
    }

    fn promises_watermark(&self) -> bool {
        self.is_packet_socket()
    }

    fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn statistics(&mut self) -> SourceStatistics {
        let now_ns = clock::realtime_ns();
        let is_read = self.read_counters().is_ok();
        self.lost_before = self.link.as_mut().map(Link::losses).unwrap_or_default();
        let counters = &self.counters;
        let nic = self.lost_before.nic;
        SourceStatistics {
            received: (is_read && self.is_packet_socket())
                .then_some(counters.received + nic.unwrap_or(0)),
            lost: vec![
                (LossCause::Kernel, is_read.then_some(counters.dropped)),
                (LossCause::Nic, nic),
            ],
            as_of_ns: (is_read && self.is_packet_socket())
                .then_some(now_ns.saturating_sub(PLACING_NS)),
        }
    }

    fn input_drops(&self) -> InputDrops {
        match self.lost_before.input_at_most {
            _ if !self.is_packet_socket() => InputDrops::None,
            Some(packets) => InputDrops::AtMost(packets),
            None => InputDrops::Unknown,
        }
    }

    fn stop(&mut self) {
        if self.phase != Phase::Running {
            return;
        }
        // It is done behind libpcap's back on purpose: pcap_setfilter(3PCAP) would also apply the filter to packets that wait in the
        // ring already.
        if let Some(socket) = &self.socket
            && let Err(error) = socket.attach_filter(&REJECT_ALL)
        {
            // Packets would come for ever.
            let name = &self.interfaces[0].name;
            self.events.push_back(Event::Notice(format!(
                "{name}: the kernel did not stop the capture: {error}"
            )));
            self.phase = Phase::Ended;
            return;
        }
        self.drain();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_32_bits_wrap_around() {
        let mut counters = Counters::default();
        let reading = |received, dropped| PcapStatistics {
            received,
            dropped,
            interface_dropped: 0,
        };
        counters.add(reading(u32::MAX, 1));
        counters.add(reading(4, 1));
        counters.add(reading(4, 3));
        assert_eq!(counters.received, (1 << 32) + 4);
        assert_eq!(counters.dropped, 3);
    }
}
