//! A packet socket and its ring as an engine of [live queues](crate::live): blocks, naps, counters.

mod link;

use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, atomic::Ordering},
};

use rustix::event::PollFlags;

use super::{
    block::{BlockSummary, NicStampRange, PartSummary},
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
    time_stamps::{NIC_BEHIND_NS_MAX, disagreement},
};

/// Longest nap if blocks are retired before they are full. If fewer than 1.5 blocks arrive in this
/// time, the queue waits for each block.
const BLOCKS_WAIT_NS: i64 = 8_000_000;

/// Longest nap if blocks are full before their retire time and the watermark is needed. On a
/// virtual machine a wake-up took 20 to 40 µs of processor time, and 80 µs with the following
/// system calls and cold caches. That is as much as a thousand packets of 64 bytes.
const FULL_BLOCKS_WAIT_NS: i64 = 16_000_000;

/// Longest nap for full blocks if the caller allows a wait of this length.
const UNAWAITED_BLOCKS_WAIT_NS: i64 = REST_NS_MAX;

const _: () = assert!(BEHIND_NS + FULL_BLOCKS_WAIT_NS + 5_000_000 < WATERMARK_BEHIND_NS_MAX);

/// Name of the call that reads a socket's counters, in errors.
const COUNTERS_CALL: &str = "getsockopt(PACKET_STATISTICS)";

/// Shortest nap that is worth its cost.
const BLOCKS_WAIT_NS_MIN: i64 = 2_000_000;

/// Share of the ring that may fill during a nap at the measured block rate: one in 16.
const RING_SHARE: usize = 16;

/// Blocks that may fill during a nap at the measured block rate.
fn nap_blocks(ring_blocks: usize) -> usize {
    ring_blocks / RING_SHARE
}

/// Waiting blocks from which the queue is behind: twice [`nap_blocks`], at least one.
fn behind_blocks(ring_blocks: usize) -> usize {
    (2 * nap_blocks(ring_blocks)).max(1)
}

/// Shortest time to fill a block of 256 KiB at 10 Gbit/s, if frames take twice as much room in the
/// ring as on the wire.
const BLOCK_FILL_NS: i64 = 105_000;

/// Lent packets after which the queue reads the kernel's counters again, because these counters
/// have 32 bits.
const PACKETS_BETWEEN_READINGS: u64 = 1 << 30;

const RETIRE_NS: i64 = RETIRE_MS as i64 * 1_000_000;

#[derive(Debug, Clone, Copy)]
struct BlockRate {
    /// Blocks fetched since `since_ns`, which is on the monotonic clock.
    blocks: usize,
    since_ns: i64,
}

impl BlockRate {
    /// How long to sleep at the block rate since the last call. The caller can wait for `wait_ns`.
    /// `None`: blocks are so rare that the kernel should wake this thread for each block, or the
    /// ring fills too fast for a sleep.
    fn nap_ns(&mut self, now_ns: i64, wait_ns: i64, ring_blocks: usize) -> Option<i64> {
        let elapsed_ns = now_ns.saturating_sub(self.since_ns).max(1);
        let blocks = i64::try_from(std::mem::take(&mut self.blocks)).unwrap_or(i64::MAX);
        self.since_ns = now_ns;
        if blocks.saturating_mul(2 * BLOCKS_WAIT_NS) < elapsed_ns.saturating_mul(3) {
            return None;
        }
        // Blocks arrive faster than 1.5 times the retire rate, so many are full.
        let is_full = blocks.saturating_mul(2 * RETIRE_NS) > elapsed_ns.saturating_mul(3);
        let longest_ns = match is_full {
            true if wait_ns >= UNAWAITED_BLOCKS_WAIT_NS => UNAWAITED_BLOCKS_WAIT_NS,
            true => FULL_BLOCKS_WAIT_NS,
            false => BLOCKS_WAIT_NS,
        };
        let few = i64::try_from(nap_blocks(ring_blocks)).unwrap_or(i64::MAX);
        let nap_ns = few.saturating_mul(elapsed_ns) / blocks;
        // The next packets may arrive at the link's full speed.
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
    /// The interface's first queue, which alone reports frames larger than the MTU.
    is_first: bool,
    /// When the interface was found removed (monotonic clock).
    gone_since_ns: Option<i64>,
    /// Until when the report that an interface came back waits for the other threads (monotonic
    /// clock).
    other_threads_deadline_ns: Option<i64>,
    /// A spare socket that does not receive yet from the interface that came back.
    replacement: Option<SocketWithRing>,
    counters: SocketCounters,
    block_rate: BlockRate,
}

/// Packets since the opening.
#[derive(Debug, Default)]
struct SocketCounters {
    /// The kernel's count of packets for the queue's sockets, including dropped packets.
    received: u64,
    /// The kernel's count of dropped packets (`tp_drops`).
    dropped: u64,
    /// Frames that were lent.
    lent: u64,
    /// Lent frames with a stamp of the NIC.
    nic_stamped: u64,
    /// Packets of malformed blocks that could not be lent.
    unreadable: u64,
    /// The value of `lent` at the last reading of the kernel's counters.
    lent_at_reading: u64,
}

impl SocketCounters {
    fn seen(&self) -> u64 {
        self.lent + self.unreadable + self.dropped
    }
}

/// Makes the queue of a socket that may receive packets already.
pub(super) fn queue(
    packet_interface: Arc<PacketInterface>,
    found: InterfaceSnapshot,
    interface: InterfaceInfo,
    is_first: bool,
    cpus: Vec<u32>,
    (socket, mut ring, notice): SocketWithRing,
) -> Box<dyn Queue> {
    // The watermark starts two seconds ago: the socket may have received frames before this queue
    // was made.
    let since_ns = clock::realtime_ns().saturating_sub(2 * SECOND_NS);
    let mut live = LiveState::new(interface, cpus, since_ns, DELIVERY_DELAY_NS_MAX)
        .with_nic_stamps(packet_interface.takes_nic_stamps);
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
        other_threads_deadline_ns: None,
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
    /// Counts the effects of offloads. The first queue reports frames larger than the MTU once.
    fn note_effects(&mut self, part: PartSummary, live: &mut LiveState) {
        let effects = live.offload_effects.get_or_insert_default();
        let is_news = effects.merged == 0 && part.merged > 0;
        effects.checksum_missing += u64::from(part.checksum_missing);
        effects.merged += u64::from(part.merged);
        if is_news && self.is_first {
            let name = self.packet_interface.name();
            live.notice(format_args!(
                "frames are larger than the MTU: joined on receipt, or not yet segmented for sending; to capture them as on the wire: \
                 sudo ethtool -K {name} gro off lro off tso off gso off"
            ));
        }
    }

    /// Counts packets that keep the NIC's stamps. If most stamps of `part` disagree with the
    /// system's clock, requests the kernel's stamps.
    fn note_nic_stamps(&mut self, part: PartSummary, live: &mut LiveState) {
        let agreed = part.nic_stamped - part.nic_refused;
        self.counters.nic_stamped += u64::from(agreed);
        if part.nic_refused <= agreed {
            return;
        }
        // If the call fails, each stamp is still checked.
        let _ = self.socket.take_nic_stamps(false);
        // Relaxed: `swap` lets one queue give the notice, and no other data depends on the flag.
        let is_known = self
            .packet_interface
            .is_nic_clock_refused
            .swap(true, Ordering::Relaxed);
        if !is_known {
            let why = disagreement(part.refused_ns - self.ring.nic_range.clock_ns);
            live.notice(format_args!(
                "{why}, so packets get the kernel's time stamps"
            ));
        }
    }

    /// Sets the range of the NIC's stamps in a block that was fetched at `clock_ns`. Returns the
    /// time for [`Watermark::on_burst`](crate::live::Watermark::on_burst).
    ///
    /// With stamps of the NIC, that time is near the opening of the block: a promise by another
    /// clock could be later than the kernel's stamps of the next packets.
    fn newest_ns(&mut self, block: BlockSummary, clock_ns: i64, live: &mut LiveState) -> i64 {
        let BlockSummary {
            last_ns, opened_ns, ..
        } = block;
        if !self.packet_interface.takes_nic_stamps {
            return last_ns;
        }
        // All earlier blocks were returned.
        live.watermark.on_given_back();
        let from_ns = opened_ns.saturating_sub(NIC_BEHIND_NS_MAX);
        self.ring.nic_range = NicStampRange {
            from_ns: from_ns.max(live.watermark.time_ns),
            clock_ns,
        };
        last_ns.clamp(opened_ns, opened_ns.saturating_add(DELIVERY_DELAY_NS_MAX))
    }

    /// Adds up the kernel's counters, which a reading resets.
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
    /// An error of the socket, such as `ENETDOWN`, ends a poll and causes an earlier check.
    const LOOK_NS: i64 = 5_000_000;

    fn buffer(&self) -> Option<SourceBuffer> {
        Some(SourceBuffer::Bytes(self.ring.bytes() as u64))
    }

    /// Lends the next frames of the held block or of a later block.
    fn fetch(&mut self, live: &mut LiveState) -> Result<bool, SourceError> {
        loop {
            let part = self.ring.lend();
            self.counters.lent += u64::from(part.frames);
            self.counters.unreadable += u64::from(part.unreadable);
            self.note_effects(part, live);
            if part.nic_stamped > 0 {
                self.note_nic_stamps(part, live);
            }
            if part.frames > 0 {
                return Ok(true);
            }
            self.ring.release();
            let Some(summary) = self.ring.acquire() else {
                live.watermark.on_given_back();
                return Ok(false);
            };
            let clock_ns = clock::realtime_ns();
            let newest_ns = self.newest_ns(summary, clock_ns, live);
            live.watermark.on_burst(newest_ns, Some(clock_ns));
            if summary.packets == 0 {
                continue;
            }
            self.block_rate.blocks += 1;
            live.on_packets(newest_ns, || self.are_other_threads_ready());
            if self.counters.lent - self.counters.lent_at_reading >= PACKETS_BETWEEN_READINGS {
                self.read_counters()?;
            }
        }
    }

    fn burst(&self) -> Burst<'_> {
        self.ring.burst()
    }

    /// Whether the kernel has finished another block. The rest of the held block does not count.
    fn has_more(&self) -> Option<bool> {
        Some(self.ring.are_blocks_finished(1))
    }

    fn is_behind(&self) -> Option<bool> {
        let many = behind_blocks(self.ring.blocks());
        Some(self.ring.are_blocks_finished(many))
    }

    fn nic_stamped(&self) -> Option<u64> {
        let takes = self.packet_interface.takes_nic_stamps;
        takes.then_some(self.counters.nic_stamped)
    }

    fn wait_terms(&self, _live: &LiveState) -> Option<(Option<BorrowedFd<'_>>, i64)> {
        Some((Some(self.socket.as_fd()), i64::MAX))
    }

    fn is_dry(&self) -> bool {
        self.ring.is_kernel_block_empty()
    }

    fn look(&mut self, live: &mut LiveState, now_ns: i64) -> Result<(), SourceError> {
        self.look_at_interface(live, now_ns)
    }

    /// Waits for the ring or an error. If blocks follow each other fast, the queue sleeps instead
    /// of waking up for each block. The sleep may be longer than the requested wait.
    fn wait(
        &mut self,
        live: &mut LiveState,
        now_ns: i64,
        until_ns: i64,
    ) -> Result<(), SourceError> {
        let wait_ns = until_ns.saturating_sub(now_ns).max(0);
        // A short wait says nothing about the rate of blocks.
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
        // Rejected packets do not count as received, so the kernel's counter stops, except for
        // packets that other CPUs are placing now.
        let is_filtered = self.socket.attach_filter(&REJECT_ALL).is_ok();
        // Binding to no protocol waits for those CPUs. A member of a fanout group cannot be bound
        // again; then the drain waits instead.
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

    /// Counters that cannot be read are no error: the queue then lends the packets that arrive
    /// until the drain deadline.
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
        self.packet_interface.remove_member();
    }

    /// The numbers from the socket's counters are `None` if the kernel does not answer.
    fn statistics(&mut self, live: &mut LiveState, now_ns: i64) -> SourceStatistics {
        // The MTU may have changed.
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
            block::tests::{Packet, block_of, set_opened},
            config::LiveConfig,
            sys::Mapping,
        },
        *,
    };
    use crate::{QueueStatus, SourceEvent, TimeDomain, live::CLOSED_DRAIN_NS};

    /// As [`queue_of`], with one packet.
    fn without_counters(is_shared: bool) -> (LiveState, PacketEngine) {
        queue_of(is_shared, false, &[block_of(4096, &[Packet::default()]).0])
    }

    /// A queue whose socket is no packet socket, and whose ring contains `blocks`.
    fn queue_of(
        is_shared: bool,
        takes_nic_stamps: bool,
        blocks: &[Vec<u8>],
    ) -> (LiveState, PacketEngine) {
        let mut packet_interface =
            PacketInterface::new(LiveConfig::new("lo", "retroscope"), 1).unwrap();
        if is_shared {
            packet_interface.share(Vec::new());
        }
        packet_interface.takes_nic_stamps = takes_nic_stamps;
        let mut mapping = Mapping::in_memory(4096, blocks.len()).unwrap();
        for (index, block) in blocks.iter().enumerate() {
            mapping.hand_over(index, block);
        }
        let interface = InterfaceInfo::new("lo", LinkType::ETHERNET, TimeDomain::KernelSoftware);
        let engine = PacketEngine {
            packet_interface: Arc::new(packet_interface),
            socket: PacketSocket {
                descriptor: UnixDatagram::unbound().unwrap().into(),
            },
            ring: BlockRing::new(mapping),
            is_first: true,
            gone_since_ns: None,
            other_threads_deadline_ns: None,
            replacement: None,
            counters: SocketCounters::default(),
            block_rate: BlockRate {
                blocks: 0,
                since_ns: 0,
            },
        };
        let live = LiveState::new(interface, Vec::new(), 0, DELIVERY_DELAY_NS_MAX);
        (live.with_nic_stamps(takes_nic_stamps), engine)
    }

    /// A block that the kernel opened at `opened_ns`, with packets that the NIC stamped.
    fn nic_block(opened_ns: i64, stamps_ns: &[i64]) -> Vec<u8> {
        let parts = |ns: i64| {
            let seconds = u32::try_from(ns / SECOND_NS).unwrap();
            (seconds, u32::try_from(ns % SECOND_NS).unwrap())
        };
        let packet = |ns: &i64| Packet {
            seconds: parts(*ns).0,
            ns: parts(*ns).1,
            status: libc::TP_STATUS_TS_RAW_HARDWARE,
            ..Packet::default()
        };
        let packets: Vec<_> = stamps_ns.iter().map(packet).collect();
        let (mut block, _) = block_of(4096, &packets);
        let (seconds, ns) = parts(opened_ns);
        set_opened(&mut block, seconds, ns);
        block
    }

    #[test]
    fn more_blocks_than_a_nap_leaves_are_too_many() {
        assert_eq!([4, 15, 16, 256].map(behind_blocks), [1, 1, 2, 32]);
        assert_eq!([4, 15, 16, 256].map(nap_blocks), [0, 0, 1, 16]);
    }

    /// The NIC's clock shows TAI, 37 s ahead of UTC, or did not follow a step of the system's
    /// clock.
    #[test]
    fn a_nic_of_another_time_stamps_nothing() {
        let now_ns = clock::realtime_ns();
        let before_ns = now_ns - 5_000_000;
        for (off_ns, way) in [(37 * SECOND_NS, "ahead of"), (-2 * SECOND_NS, "behind")] {
            let blocks = [
                nic_block(before_ns, &[before_ns - 9_000_000, before_ns]),
                nic_block(now_ns, &[now_ns + off_ns, now_ns + off_ns]),
                nic_block(now_ns, &[now_ns + off_ns]),
            ];
            let (mut live, mut engine) = queue_of(false, true, &blocks);
            let mut fetch = |live: &mut LiveState| {
                assert!(engine.fetch(live).unwrap());
                let frames = engine.burst().frames.iter();
                let found: Vec<_> = frames.map(|one| (one.time_ns, one.interface)).collect();
                (found, engine.nic_stamped())
            };
            let (found, count) = fetch(&mut live);
            assert_eq!(found, [(before_ns - 9_000_000, 1), (before_ns, 1)]);
            assert_eq!((count, live.next_event()), (Some(2), None));
            let (found, count) = fetch(&mut live);
            for (time_ns, interface) in found {
                assert!((now_ns..=clock::realtime_ns()).contains(&time_ns));
                assert_eq!(interface, 0);
            }
            assert_eq!(count, Some(2));
            let Some(SourceEvent::Notice(notice)) = live.next_event() else {
                panic!("no notice");
            };
            assert!(notice.contains(way), "{notice}");
            fetch(&mut live);
            assert_eq!(live.next_event(), None, "one notice is enough");
            // No packet that arrived after the opening of the last block may be older than the
            // watermark.
            live.watermark.on_given_back();
            assert!(live.watermark.time_ns <= now_ns);
        }
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
        // The kernel's open block might contain more packets.
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
