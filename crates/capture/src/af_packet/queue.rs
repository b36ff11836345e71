//! A packet socket and its ring as an engine of the [skeleton](crate::live): blocks, naps, counters.

mod link;

use std::sync::Arc;

use rustix::event::PollFlags;

use super::{
    block::PartSummary,
    classic::REJECT_ALL,
    nic::InterfaceCounters,
    packet_interface::{PacketInterface, SocketWithRing},
    ring::BlockRing,
    sys::PacketSocket,
    watermark::{BEHIND_NS, DELIVERY_DELAY_NS_MAX, RETIRE_MS, WATERMARK_BEHIND_NS_MAX},
};
use crate::{
    Burst, InterfaceInfo, LossCause, OffloadEffects, Queue, REST_NS_MAX, SourceBuffer, SourceError,
    SourceStatistics,
    clock::{self, SECOND_NS},
    interface::InterfaceSnapshot,
    live::{CutOff, LiveEngine, LiveQueue, LiveState, StopBalance},
    poll::wait_for,
};

/// How long a queue sleeps at most, to take several blocks together, where they follow each other fast …
const BLOCKS_WAIT_NS: i64 = 8_000_000;

/// … and where they are full before the kernel closes them by itself. On a virtual machine waking up took 20 to 40 µs of
/// processor time, and with the system calls and cold caches that follow 80: as much as a thousand packets of 64 bytes.
/// A queue's watermark may be later by as much.
const FULL_BLOCKS_WAIT_NS: i64 = 16_000_000;

/// The same where nobody waits for the watermark: the caller can wait for as long.
const UNAWAITED_BLOCKS_WAIT_NS: i64 = REST_NS_MAX;

const _: () = assert!(BEHIND_NS + FULL_BLOCKS_WAIT_NS + 5_000_000 < WATERMARK_BEHIND_NS_MAX);

/// How an error names the reading of a socket's counters.
const COUNTERS_CALL: &str = "getsockopt(PACKET_STATISTICS)";

/// Shorter naps are not worth it.
const BLOCKS_WAIT_NS_MIN: i64 = 2_000_000;

/// No more than this part of the ring fills during a nap: one in 16.
const RING_SHARE: usize = 16;

/// How soon a block of 256 KiB is full at 10 Gbit/s of the smallest frames, which take twice as much room here. Half
/// of the ring may fill so fast during a nap.
const BLOCK_FILL_NS: i64 = 105_000;

/// The kernel's counters have 32 bits: they are read before as many packets went by.
const PACKETS_BETWEEN_READINGS: u64 = 1 << 30;

/// How long the kernel fills a block at most, ns.
const RETIRE_NS: i64 = RETIRE_MS as i64 * 1_000_000;

/// How fast blocks come.
#[derive(Debug, Clone, Copy)]
struct BlockRate {
    /// Blocks taken since `since_ns`, on the monotonic clock.
    blocks: usize,
    since_ns: i64,
}

impl BlockRate {
    /// How long to sleep, if it goes on as since the last call: until blocks are there to be taken together, and still only
    /// a small part of the ring is full. The caller can wait for `wait_ns`. `None`: blocks come so seldom that the kernel should
    /// wake this thread for each, or so fast that it should not sleep.
    fn nap_ns(&mut self, now_ns: i64, wait_ns: i64, ring_blocks: usize) -> Option<i64> {
        let elapsed_ns = now_ns.saturating_sub(self.since_ns).max(1);
        let blocks = i64::try_from(std::mem::take(&mut self.blocks)).unwrap_or(i64::MAX);
        self.since_ns = now_ns;
        // Less than three blocks in two naps.
        if blocks.saturating_mul(2 * BLOCKS_WAIT_NS) < elapsed_ns.saturating_mul(3) {
            return None;
        }
        // Three blocks where the kernel alone would have closed two.
        let is_full = blocks.saturating_mul(2 * RETIRE_NS) > elapsed_ns.saturating_mul(3);
        let longest_ns = match is_full {
            true if wait_ns >= UNAWAITED_BLOCKS_WAIT_NS => UNAWAITED_BLOCKS_WAIT_NS,
            true => FULL_BLOCKS_WAIT_NS,
            false => BLOCKS_WAIT_NS,
        };
        let few = i64::try_from(ring_blocks / RING_SHARE).unwrap_or(i64::MAX);
        let nap_ns = few.saturating_mul(elapsed_ns) / blocks;
        // What comes next may come at the link's full speed.
        let blocks = i64::try_from(ring_blocks).unwrap_or(i64::MAX);
        let safe_ns = blocks.saturating_mul(BLOCK_FILL_NS) / 2;
        let nap_ns = nap_ns.min(safe_ns).min(longest_ns);
        (nap_ns >= BLOCKS_WAIT_NS_MIN).then_some(nap_ns)
    }
}

/// One socket of a live interface.
#[derive(Debug)]
pub(super) struct PacketEngine {
    packet_interface: Arc<PacketInterface>,
    socket: PacketSocket,
    ring: BlockRing,
    /// The interface's first queue: it alone tells what the interface lost, and that frames are not those of the wire.
    is_first: bool,
    /// Since when the interface does not exist, on the monotonic clock.
    gone_since_ns: Option<i64>,
    /// Until when the other threads of an interface that came back are waited for, on the monotonic clock.
    siblings_until_ns: Option<i64>,
    /// A spare socket that does not receive yet from the interface that came back.
    replacement: Option<SocketWithRing>,
    counters: SocketCounters,
    block_rate: BlockRate,
}

/// Packets since the opening.
#[derive(Debug, Default)]
struct SocketCounters {
    /// The kernel's count of packets for this socket, with those it dropped.
    received: u64,
    /// The kernel's count of packets for which no block was free.
    dropped: u64,
    /// Frames that were lent.
    lent: u64,
    /// Frames in blocks that made no sense.
    unreadable: u64,
    /// `lent` when the kernel's counters were last read.
    lent_at_reading: u64,
}

impl SocketCounters {
    /// Packets that came, readable or not, and those of which the kernel tells that they were lost.
    fn seen(&self) -> u64 {
        self.lent + self.unreadable + self.dropped
    }
}

/// A queue of a socket that may be receiving already, the first one of its interface or another.
pub(super) fn queue(
    packet_interface: Arc<PacketInterface>,
    found: InterfaceSnapshot,
    interface: InterfaceInfo,
    is_first: bool,
    cpus: Vec<u32>,
    (socket, mut ring, notice): SocketWithRing,
) -> Box<dyn Queue> {
    // Frames that came since the socket was started are older than this queue: two seconds are plenty.
    let since_ns = clock::realtime_ns().saturating_sub(2 * SECOND_NS);
    let mut live = LiveState::new(interface, cpus, since_ns, DELIVERY_DELAY_NS_MAX);
    live.push_events(notice);
    if !found.flags.is_up() {
        live.set_interface_up(false);
    }
    live.is_filtered = packet_interface.is_filtered;
    live.offload_effects = Some(OffloadEffects::default());
    live.counters = is_first.then(|| InterfaceCounters::new(Some(found.index)));
    ring.frame_bytes_max = packet_interface.frame_bytes_max();
    let engine = PacketEngine {
        packet_interface,
        socket,
        ring,
        is_first,
        gone_since_ns: None,
        siblings_until_ns: None,
        replacement: None,
        counters: SocketCounters::default(),
        block_rate: BlockRate {
            blocks: 0,
            since_ns: clock::monotonic_ns(),
        },
    };
    LiveQueue::boxed(live, engine)
}

impl PacketEngine {
    /// Counts what offloads did, and says once that frames are not those of the wire.
    fn note_effects(&mut self, part: PartSummary, live: &mut LiveState) {
        let effects = live.offload_effects.get_or_insert_default();
        let is_news = effects.merged == 0 && part.merged > 0;
        effects.checksum_missing += u64::from(part.checksum_missing);
        effects.merged += u64::from(part.merged);
        if is_news && self.is_first {
            let name = self.packet_interface.name();
            live.notice(format_args!(
                "frames larger than the MTU come, which were joined on receipt or are cut when sent; to have those of the wire: \
                 sudo ethtool -K {name} gro off lro off tso off gso off"
            ));
        }
    }

    /// Adds up the kernel's counters, which reading resets.
    fn read_counters(&mut self) -> Result<(), SourceError> {
        let taken = self
            .socket
            .take_statistics()
            .map_err(|error| self.packet_interface.error(COUNTERS_CALL, error))?;
        self.counters.received += u64::from(taken.tp_packets);
        self.counters.dropped += u64::from(taken.tp_drops);
        self.counters.lent_at_reading = self.counters.lent;
        Ok(())
    }
}

impl LiveEngine for PacketEngine {
    /// The socket tells of an error also while it is polled.
    const LOOK_NS: i64 = 5_000_000;

    fn buffer(&self) -> Option<SourceBuffer> {
        Some(SourceBuffer::Bytes(self.ring.bytes() as u64))
    }

    /// Lends the next frames, of the block that is held or of a later one.
    fn fetch(&mut self, live: &mut LiveState) -> Result<bool, SourceError> {
        loop {
            let part = self.ring.lend();
            self.counters.lent += u64::from(part.frames);
            self.counters.unreadable += u64::from(part.unreadable);
            self.note_effects(part, live);
            if part.frames > 0 {
                return Ok(true);
            }
            self.ring.release();
            let Some(summary) = self.ring.acquire() else {
                live.watermark.on_given_back();
                return Ok(false);
            };
            let clock_ns = clock::realtime_ns();
            live.watermark.on_burst(summary.last_ns, Some(clock_ns));
            if summary.packets == 0 {
                continue;
            }
            self.block_rate.blocks += 1;
            live.on_packets(summary.last_ns, || self.are_siblings_there());
            if self.counters.lent - self.counters.lent_at_reading >= PACKETS_BETWEEN_READINGS {
                self.read_counters()?;
            }
        }
    }

    fn burst(&self) -> Burst<'_> {
        self.ring.burst()
    }

    fn is_dry(&self) -> bool {
        self.ring.is_kernel_block_empty()
    }

    fn look(&mut self, live: &mut LiveState, now_ns: i64) -> Result<(), SourceError> {
        self.look_at_interface(live, now_ns)
    }

    /// Waits for the ring or an error. Where blocks follow each other fast, it sleeps a while rather than to be woken for each: a wake-up
    /// costs as much as a thousand small packets. It may then sleep longer than it was asked to wait.
    fn wait(
        &mut self,
        live: &mut LiveState,
        now_ns: i64,
        until_ns: i64,
    ) -> Result<(), SourceError> {
        let wait_ns = until_ns.saturating_sub(now_ns).max(0);
        // A caller that only looks whether there is more learns nothing about the pace.
        if live.is_running()
            && wait_ns >= BLOCKS_WAIT_NS_MIN
            && let Some(nap_ns) = self.block_rate.nap_ns(now_ns, wait_ns, self.ring.blocks())
        {
            clock::sleep_until(now_ns.saturating_add(nap_ns));
            return Ok(());
        }
        let found = wait_for(&self.socket, wait_ns);
        let found = found.map_err(|error| self.packet_interface.error("poll", error))?;
        if found.intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL) {
            live.look_due_ns = i64::MIN;
        }
        Ok(())
    }

    fn cut_off(&mut self, _live: &mut LiveState) -> CutOff {
        // What the filter rejects is not counted as received: from here on the kernel's counter stands still, but for
        // packets that other CPUs are placing right now.
        let is_filtered = self.socket.attach_filter(&REJECT_ALL).is_ok();
        // Binding to no protocol waits for those CPUs. A member of a fanout group cannot be bound again: wait instead.
        let is_unbound = self
            .socket
            .bound_index()
            .and_then(|index| self.socket.bind(index.max(0), 0))
            .is_ok();
        match (is_filtered, is_unbound) {
            (false, false) => CutOff::Refused("the kernel did not stop the capture".to_owned()),
            (_, true) => CutOff::Closed { in_flight_ns: 0 },
            _ => CutOff::Closed {
                in_flight_ns: DELIVERY_DELAY_NS_MAX,
            },
        }
    }

    /// SocketCounters that the kernel does not tell are unknown, and no error: nobody knows how many packets are missing, and those that come in
    /// time are lent.
    fn balance(&mut self, is_over: bool) -> StopBalance {
        match self.read_counters() {
            Ok(()) => StopBalance::Known {
                received: self.counters.received,
                seen: self.counters.seen(),
            },
            Err(_) if is_over => StopBalance::Unknown,
            Err(_) => StopBalance::Pending,
        }
    }

    fn close(&mut self) {
        self.ring.release();
        self.packet_interface.lose_member();
    }

    /// `None` counters if the kernel does not answer.
    fn statistics(&mut self, live: &mut LiveState, now_ns: i64) -> SourceStatistics {
        // The MTU may have been changed.
        self.ring.frame_bytes_max = self.packet_interface.frame_bytes_max();
        let mut lost = Vec::with_capacity(2);
        let (mut nic, mut as_of_ns) = (None, now_ns);
        if let Some(counters) = &live.counters {
            nic = counters.nic();
            as_of_ns = counters.as_of_ns(now_ns);
            lost.push((LossCause::Nic, nic));
        }
        let is_read = self.read_counters().is_ok();
        let kernel = self.counters.dropped + self.counters.unreadable;
        lost.push((LossCause::Kernel, is_read.then_some(kernel)));
        SourceStatistics {
            received: is_read.then_some(self.counters.received + nic.unwrap_or(0)),
            lost,
            as_of_ns: is_read.then_some(as_of_ns.saturating_sub(DELIVERY_DELAY_NS_MAX)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        os::unix::net::UnixDatagram,
        time::{Duration, Instant},
    };

    use retroscope_packet::LinkType;

    use super::{
        super::{
            block::tests::{Packet, block_of},
            config::LiveConfig,
            sys::Mapping,
        },
        *,
    };
    use crate::{QueueStatus, TimeDomain, live::CLOSED_DRAIN_NS};

    /// A queue whose socket has none of the options of a packet socket, and a ring of which the kernel hands over one packet.
    fn without_counters(is_shared: bool) -> (LiveState, PacketEngine) {
        let mut packet_interface =
            PacketInterface::new(LiveConfig::new("lo", "retroscope"), 1).unwrap();
        if is_shared {
            packet_interface.share(Vec::new());
        }
        let mut mapping = Mapping::in_memory(4096, 1).unwrap();
        mapping.hand_over(0, &block_of(4096, &[Packet::default()]).0);
        let interface = InterfaceInfo::new("lo", LinkType::ETHERNET, TimeDomain::KernelSoftware);
        let engine = PacketEngine {
            packet_interface: Arc::new(packet_interface),
            socket: PacketSocket {
                descriptor: UnixDatagram::unbound().unwrap().into(),
            },
            ring: BlockRing::new(mapping),
            is_first: true,
            gone_since_ns: None,
            siblings_until_ns: None,
            replacement: None,
            counters: SocketCounters::default(),
            block_rate: BlockRate {
                blocks: 0,
                since_ns: 0,
            },
        };
        (
            LiveState::new(interface, Vec::new(), 0, DELIVERY_DELAY_NS_MAX),
            engine,
        )
    }

    #[test]
    fn counters_that_cannot_be_read_at_the_end_are_unknown() {
        let (live, engine) = without_counters(false);
        let mut queue = LiveQueue::boxed(live, engine);
        queue.stop();
        let stopped = Instant::now();
        assert_eq!(queue.next(Duration::ZERO).unwrap(), QueueStatus::Frames);
        assert_eq!(queue.burst().frames.len(), 1);
        while queue.next(Duration::from_millis(1)).unwrap() != QueueStatus::End {}
        // More might have waited in the kernel's open block.
        assert!(stopped.elapsed().as_nanos() >= u128::from(CLOSED_DRAIN_NS.unsigned_abs()));
        let statistics = queue.statistics();
        assert_eq!((statistics.received, statistics.as_of_ns), (None, None));
        assert_eq!(statistics.lost, [(LossCause::Kernel, None)]);
    }

    #[test]
    fn a_socket_is_not_replaced_before_it_was_counted() {
        let (mut live, mut engine) = without_counters(true);
        let found = engine.packet_interface.look_up().unwrap();
        let error = engine.rebind(&mut live, &found, CLOSED_DRAIN_NS);
        assert!(
            matches!(
                error,
                Err(SourceError::System {
                    call: "getsockopt(PACKET_STATISTICS)",
                    ..
                })
            ),
            "{error:?}"
        );
    }

    #[test]
    fn fast_blocks_are_waited_for_together() {
        let mut block_rate = BlockRate {
            blocks: 0,
            since_ns: 0,
        };
        let mut nap_ns = |blocks, elapsed_ns, ring_blocks| {
            block_rate.blocks = blocks;
            let now_ns = block_rate.since_ns + elapsed_ns;
            block_rate.nap_ns(now_ns, UNAWAITED_BLOCKS_WAIT_NS - 1, ring_blocks)
        };
        assert_eq!(nap_ns(0, BLOCKS_WAIT_NS, 512), None, "silence");
        assert_eq!(
            nap_ns(1, BLOCKS_WAIT_NS, 512),
            None,
            "woken for each is as often"
        );
        assert_eq!(nap_ns(1, BLOCKS_WAIT_NS / 2, 512), Some(BLOCKS_WAIT_NS));
        assert_eq!(
            nap_ns(5, 3 * BLOCKS_WAIT_NS, 512),
            Some(BLOCKS_WAIT_NS),
            "it goes on behind a nap"
        );
        assert_eq!(
            nap_ns(3, BLOCKS_WAIT_NS, 512),
            Some(BLOCKS_WAIT_NS),
            "the kernel closes as many that are not full"
        );
        assert_eq!(
            nap_ns(4, BLOCKS_WAIT_NS, 512),
            Some(FULL_BLOCKS_WAIT_NS),
            "full ones"
        );
        assert_eq!(
            nap_ns(32, FULL_BLOCKS_WAIT_NS, 512),
            Some(FULL_BLOCKS_WAIT_NS)
        );
        assert_eq!(
            nap_ns(64, FULL_BLOCKS_WAIT_NS, 512),
            Some(FULL_BLOCKS_WAIT_NS / 2),
            "the ring would fill"
        );
        assert_eq!(nap_ns(300, BLOCKS_WAIT_NS, 512), None);
        assert_eq!(
            nap_ns(2, BLOCKS_WAIT_NS, 15),
            None,
            "a small ring is never left alone"
        );
        assert_eq!(
            nap_ns(2, BLOCKS_WAIT_NS, 64),
            Some(64 * BLOCK_FILL_NS / 2),
            "nor a larger one for long: the next burst may be faster"
        );
        assert_eq!(nap_ns(1, 0, 512), None, "two looks at once");
    }

    #[test]
    fn who_can_wait_longer_is_woken_less() {
        let mut block_rate = BlockRate {
            blocks: 0,
            since_ns: 0,
        };
        let mut nap_ns = |blocks, wait_ns| {
            block_rate.blocks = blocks;
            block_rate.nap_ns(block_rate.since_ns + BLOCKS_WAIT_NS, wait_ns, 512)
        };
        assert_eq!(
            nap_ns(4, UNAWAITED_BLOCKS_WAIT_NS),
            Some(UNAWAITED_BLOCKS_WAIT_NS)
        );
        assert_eq!(nap_ns(4, BLOCKS_WAIT_NS), Some(FULL_BLOCKS_WAIT_NS));
        assert_eq!(nap_ns(2, i64::MAX), Some(BLOCKS_WAIT_NS), "not full");
    }
}
