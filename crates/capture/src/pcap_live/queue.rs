//! A libpcap handle as an engine of the [skeleton](crate::live): its packets and counters.
//!
//! # Watermark
//! On a Linux packet socket, packets wait in a block that cannot be seen until it is full or its retire time is over. What
//! was stamped [`PLACING_NS`] before a look that found nothing has come by then. Other devices stamp by clocks of their
//! own: they promise nothing.

mod link;

use self::link::Link;
use super::{
    packet_buffer::PacketBuffer,
    sys::{Handle, PcapStatistics},
};
use crate::{
    Burst, Event, InterfaceInfo, LossCause, Queue, SourceError, SourceStatistics,
    af_packet::{InterfaceCounters, REJECT_ALL, sys::PacketSocket},
    clock::{self, SECOND_NS},
    live::{CutOff, Engine, Ledger, Live, LiveQueue, RECEIVE_PATH_NS},
    poll::wait_for,
};

/// From the stamp of a packet to when libpcap shows it, at most: twice the retire time of 4 ms, two ticks of the slowest
/// timer (10 ms each), and 12 ms for a virtual CPU that is descheduled between stamp and block.
const PLACING_NS: i64 = 40_000_000;

/// How long between two looks for packets at a device without a descriptor to wait for.
const NO_DESCRIPTOR_LOOK_NS: i64 = 1_000_000;

/// One device of libpcap.
#[derive(Debug)]
struct PcapEngine {
    handle: Handle,
    /// The packet socket of Linux that packets come from: counters and clock have a known meaning.
    socket: Option<PacketSocket>,
    link: Option<Link>,
    packets: PacketBuffer,
    counters: Counters,
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

/// A queue of an active handle. `cpus`: where its thread runs.
pub(super) fn queue(
    handle: Handle,
    interface: InterfaceInfo,
    socket: Option<PacketSocket>,
    promiscuous: bool,
    cpus: Vec<u32>,
    notices: Vec<String>,
) -> Box<dyn Queue> {
    let snaplen = usize::try_from(handle.snaplen()).unwrap_or(0);
    let link = socket
        .as_ref()
        .and_then(|_| Link::new(&interface.name, promiscuous));
    // Packets that came since the handle was opened are older than this queue: two seconds are plenty.
    let since_ns = clock::realtime_ns().saturating_sub(2 * SECOND_NS);
    let mut live = Live::new(interface, cpus, since_ns, PLACING_NS);
    live.tell(notices.into_iter().map(Event::Notice));
    if socket.is_some() {
        // libpcap reads the interface's counters from sysfs, which may show another namespace, and takes what it cannot read as 0.
        let index = link.as_ref().map(|link| link.index);
        live.counters = Some(InterfaceCounters::new(index));
    } else {
        live = live.stamped_elsewhere();
    }
    let engine = PcapEngine {
        handle,
        socket,
        link,
        packets: PacketBuffer::new(snaplen),
        counters: Counters::default(),
    };
    LiveQueue::boxed(live, engine)
}

impl PcapEngine {
    fn read_counters(&mut self) -> Result<(), String> {
        let statistics = self.handle.statistics()?;
        self.counters.add(statistics);
        Ok(())
    }
}

impl Engine for PcapEngine {
    /// Each look is three system calls.
    const LOOK_NS: i64 = 5_000_000;

    fn give_back(&mut self, _live: &mut Live) {
        self.packets.clear();
    }

    fn fetch(&mut self, live: &mut Live) -> Result<bool, SourceError> {
        let outcome = self.handle.dispatch(&mut self.packets);
        if let Some(newest_ns) = self.packets.newest_ns() {
            self.counters.lent += self.packets.len() as u64;
            let clock_ns = self.socket.is_some().then(clock::realtime_ns);
            live.watermark.on_burst(newest_ns, clock_ns);
            live.on_packets(newest_ns, || true);
        }
        if let Err(message) = outcome {
            self.on_error(live, message)?;
        }
        Ok(self.packets.len() > 0)
    }

    fn burst(&self) -> Burst<'_> {
        self.packets.burst()
    }

    fn look(&mut self, live: &mut Live, _now_ns: i64) -> Result<(), SourceError> {
        self.look_at_interface(live)
    }

    /// Waits for packets as long as the device lets us.
    fn wait(&mut self, live: &mut Live, now_ns: i64, until_ns: i64) -> Result<(), SourceError> {
        let mut wait_ns = until_ns.saturating_sub(now_ns);
        // libpcap wants to be called often while it waits to hear that the interface is gone.
        if let Some(limit) = self.handle.poll_limit().filter(|_| !live.presence.is_gone) {
            wait_ns = wait_ns.min(clock::duration_ns(limit));
        }
        let Some(descriptor) = self.handle.descriptor() else {
            clock::sleep_until(now_ns.saturating_add(wait_ns.min(NO_DESCRIPTOR_LOOK_NS)));
            return Ok(());
        };
        wait_for(descriptor, wait_ns)
            .map_err(|error| SourceError::system(&live.interface().name, "poll", error))?;
        Ok(())
    }

    fn cut_off(&mut self, _live: &mut Live) -> CutOff {
        // It is done behind libpcap's back on purpose: pcap_setfilter(3PCAP) would also apply the filter to packets that wait in the
        // ring already.
        let Some(socket) = &self.socket else {
            return CutOff::Open;
        };
        match socket.attach_filter(&REJECT_ALL) {
            Ok(()) => CutOff::Closed {
                in_flight_ns: RECEIVE_PATH_NS,
            },
            Err(error) => CutOff::Refused(format!("the kernel did not stop the capture: {error}")),
        }
    }

    /// What the counters of other devices mean is their business. Those that cannot be read are unknown, and no error.
    fn ledger(&mut self, is_over: bool) -> Ledger {
        if self.socket.is_none() {
            return Ledger::Unknown;
        }
        match self.read_counters() {
            Ok(()) => Ledger::Known {
                received: self.counters.received,
                seen: self.counters.lent + self.counters.dropped,
            },
            Err(_) if is_over => Ledger::Unknown,
            Err(_) => Ledger::Pending,
        }
    }

    fn close(&mut self) {
        self.packets.clear();
    }

    fn statistics(&mut self, live: &mut Live, now_ns: i64) -> SourceStatistics {
        let is_read = self.read_counters().is_ok();
        let is_known = is_read && live.clock.is_some();
        let interface = live.counters.as_ref();
        let nic = interface.and_then(InterfaceCounters::nic);
        let as_of_ns = interface.map_or(now_ns, |counters| counters.as_of_ns(now_ns));
        let counters = &self.counters;
        SourceStatistics {
            received: is_known.then_some(counters.received + nic.unwrap_or(0)),
            lost: vec![
                (LossCause::Kernel, is_read.then_some(counters.dropped)),
                (LossCause::Nic, nic),
            ],
            as_of_ns: is_known.then_some(as_of_ns.saturating_sub(PLACING_NS)),
        }
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
