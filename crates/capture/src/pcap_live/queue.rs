//! A libpcap handle as an engine of [live queues](crate::live): its packets and counters.
//!
//! # Watermark
//! On a Linux packet socket, packets wait in a block that is invisible until it is full or its
//! retire time has passed. [`DELIVERY_DELAY_NS_MAX`] allows for this. Other devices may stamp with
//! another clock, so their queues have no watermark.

mod link;

use std::os::fd::BorrowedFd;

use self::link::PcapLink;
use super::{
    packet_buffer::PacketBuffer,
    sys::{PcapHandle, PcapStatistics},
};
use crate::{
    Burst, InterfaceInfo, LossCause, Queue, SourceError, SourceEvent, SourceStatistics,
    af_packet::{InterfaceCounters, REJECT_ALL, sys::PacketSocket},
    clock::{self, SECOND_NS},
    live::{CutOff, LiveEngine, LiveQueue, LiveState, RECEIVE_PATH_NS, StopBalance},
    poll::wait_for,
};

/// Longest time from the stamp of a packet to its delivery by libpcap. Twice the retire time of 4
/// ms, two ticks of the slowest timer (10 ms each), and 12 ms for a virtual CPU that is descheduled
/// between stamp and block.
const DELIVERY_DELAY_NS_MAX: i64 = 40_000_000;

/// Time between two polls of a device without a descriptor to wait for.
const NO_DESCRIPTOR_LOOK_NS: i64 = 1_000_000;

#[derive(Debug)]
struct PcapEngine {
    handle: PcapHandle,
    /// The Linux packet socket from which the packets come. With a packet socket, the meaning of
    /// counters and clock is known.
    socket: Option<PacketSocket>,
    link: Option<PcapLink>,
    packets: PacketBuffer,
    counters: PcapCounters,
}

/// Packets since the opening.
#[derive(Debug, Default)]
struct PcapCounters {
    /// `ps_recv`, in 64 bits.
    received: u64,
    /// `ps_drop`, in 64 bits.
    dropped: u64,
    lent: u64,
    /// The last reading of libpcap's counters, which have 32 bits.
    last: PcapStatistics,
}

impl PcapCounters {
    fn add(&mut self, now: PcapStatistics) {
        let since = |now: u32, last: u32| u64::from(now.wrapping_sub(last));
        self.received += since(now.received, self.last.received);
        self.dropped += since(now.dropped, self.last.dropped);
        self.last = now;
    }
}

/// Makes a queue of an active handle. `cpus`: the CPUs for its thread.
pub(super) fn queue(
    handle: PcapHandle,
    interface: InterfaceInfo,
    socket: Option<PacketSocket>,
    promiscuous: bool,
    cpus: Vec<u32>,
    notices: Vec<String>,
) -> Box<dyn Queue> {
    let snaplen = usize::try_from(handle.snaplen()).unwrap_or(0);
    let link = socket
        .as_ref()
        .and_then(|_| PcapLink::new(&interface.name, promiscuous));
    // Packets may have arrived since the opening of the handle, less than two seconds ago.
    let since_ns = clock::realtime_ns().saturating_sub(2 * SECOND_NS);
    let mut live = LiveState::new(interface, cpus, since_ns, DELIVERY_DELAY_NS_MAX);
    live.push_events(notices.into_iter().map(SourceEvent::Notice));
    if socket.is_some() {
        // By netlink: libpcap reads these counters from sysfs, which may show another namespace.
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
        counters: PcapCounters::default(),
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

impl LiveEngine for PcapEngine {
    const LOOK_NS: i64 = 5_000_000;

    fn return_burst(&mut self, _live: &mut LiveState) {
        self.packets.clear();
    }

    fn fetch(&mut self, live: &mut LiveState) -> Result<bool, SourceError> {
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

    fn look(&mut self, live: &mut LiveState, _now_ns: i64) -> Result<(), SourceError> {
        self.look_at_interface(live)
    }

    /// The descriptor, and the longest wait that the device allows.
    fn wait_terms(&self, live: &LiveState) -> Option<(Option<BorrowedFd<'_>>, i64)> {
        let descriptor = self.handle.descriptor();
        let limit = self.handle.poll_limit().filter(|_| !live.presence.is_gone);
        let limit_ns = limit.map_or(i64::MAX, clock::duration_ns);
        let silent_ns = match descriptor {
            Some(_) => i64::MAX,
            None => NO_DESCRIPTOR_LOOK_NS,
        };
        Some((descriptor, limit_ns.min(silent_ns)))
    }

    fn wait(
        &mut self,
        live: &mut LiveState,
        now_ns: i64,
        until_ns: i64,
    ) -> Result<(), SourceError> {
        let mut wait_ns = until_ns.saturating_sub(now_ns);
        // After an interface went down, libpcap requires a call every millisecond, to detect its
        // removal. If the removal is known, the calls are unnecessary.
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

    fn cut_off(&mut self, _live: &mut LiveState) -> CutOff {
        // This bypasses libpcap on purpose: pcap_setfilter(3PCAP) would also apply the filter to
        // packets that wait in the ring already.
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

    /// Only the counters of packet sockets have a known meaning.
    fn balance(&mut self, is_over: bool) -> StopBalance {
        if self.socket.is_none() {
            return StopBalance::Unknown;
        }
        match self.read_counters() {
            Ok(()) => StopBalance::Known {
                received: self.counters.received,
                seen: self.counters.lent + self.counters.dropped,
            },
            Err(_) if is_over => StopBalance::Unknown,
            Err(_) => StopBalance::Pending,
        }
    }

    fn close(&mut self) {
        self.packets.clear();
    }

    fn statistics(&mut self, live: &mut LiveState, now_ns: i64) -> SourceStatistics {
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
            as_of_ns: is_known.then_some(as_of_ns.saturating_sub(DELIVERY_DELAY_NS_MAX)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_32_bits_wrap_around() {
        let mut counters = PcapCounters::default();
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
