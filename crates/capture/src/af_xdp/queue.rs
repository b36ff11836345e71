//! An XDP socket as an engine of [live queues](crate::live): bursts, time stamps, counters.
//!
//! # Time stamps
//! The program puts the monotonic time in front of each packet. The queue converts this time to the
//! system clock, by the difference of the two clocks at the fetch of the burst. If the driver once
//! has no room in front of a packet, the queue stamps all further packets of this interface at
//! their fetch.
//!
//! If the queue takes the NIC's stamps, the NIC's stamp is in front of the monotonic time. The
//! queue uses the NIC's stamp if it agrees with this time and is not older than the watermark.
//!
//! # Chunks
//! A chunk is in the fill ring, with the driver, in the receive ring, or lent. Neither ring
//! overflows, because each has as many entries as there are chunks.

mod link;

use std::{
    io,
    ops::Range,
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, atomic::Ordering},
};

use self::link::BindState;
use super::{
    attachment::{AttachedInterface, Attachment, QUEUES_MAX},
    channel::Channel,
    mode::{CopyReason, XdpMode},
    program::{STAMP_BYTES, word},
    sys::{Umem, XdpDescriptor},
    xdp_interface::XdpInterface,
};
use crate::{
    Burst, Direction, FrameMeta, InputDrops, LossCause, Queue, SHUNT_CLASSES, Shunt, ShuntedFlow,
    SourceBuffer, SourceError, SourceStatistics,
    af_packet::InterfaceCounters,
    clock,
    live::{CutOff, LiveEngine, LiveQueue, LiveState, NIC_STAMPED, RECEIVE_PATH_NS, StopBalance},
    poll::wait_for,
    time_stamps::{NIC_AHEAD_NS_MAX, NIC_BEHIND_NS_MAX, disagreement},
};

/// Longest expected time from the stamp of a packet to its arrival in the receive ring. Allows for
/// a descheduled virtual CPU.
pub(super) const DELIVERY_DELAY_NS_MAX: i64 = RECEIVE_PATH_NS;

/// Longest wait of a queue that polls the driver, before `next` returns.
const BUSY_POLL_WAIT_NS: i64 = 8_000_000;

/// Largest number of descriptors of a burst.
const BURST: u32 = 512;

const NO_NIC_STAMP: &str = "packets have no stamp of the NIC";

/// `XDP_PKT_CONTD`.
const CONTINUED: u32 = 1;

/// Bytes after the chunks, for copies of packets of several chunks.
pub(super) const OWN_BYTES: usize = 1 << 20;

/// A socket with its memory.
#[derive(Debug)]
pub(super) struct XdpReceiver {
    // Closed before the chunks are freed.
    pub(super) channel: Channel,
    /// Unbound sockets for the next interfaces of this name. They share the chunks, which belong to
    /// one socket at a time.
    pub(super) spares: Vec<Channel>,
    pub(super) umem: Umem,
    /// Number of chunks in `umem`, back to back from its start.
    pub(super) chunks: u32,
    /// Bytes of a chunk, a power of two.
    pub(super) chunk_bytes: u32,
    /// Why the kernel copies; `None`: zero-copy.
    pub(super) copied: Option<CopyReason>,
    /// How long to poll the driver before sleeping; `None`: the queue does not poll the driver.
    pub(super) busy_ns: Option<i64>,
}

/// One receive queue of an interface.
#[derive(Debug)]
pub(super) struct XdpEngine {
    receiver: XdpReceiver,
    attachment: Arc<Attachment>,
    xdp_interface: Arc<XdpInterface>,
    /// The number of the receive queue, and of its line in the counters.
    queue_index: u32,
    /// Number of receive queues for which the source opened a socket at the start.
    queues: u32,
    /// The current interface, or the last interface.
    attached: AttachedInterface,
    bind_state: BindState,
    frames: Vec<FrameMeta>,
    /// Chunks of the burst that is being lent, and chunks that wait for room in the fill ring.
    lent_chunks: Vec<u64>,
    is_removed: bool,
    /// The socket was bound, so it cannot be bound to another interface.
    is_bound: bool,
    is_stamped: bool,
    has_reported_unseen: bool,
    /// When to check the MTU next, on the monotonic clock.
    mtu_due_ns: i64,
    /// Whether frames of the interface's MTU fitted at the last check.
    fits_mtu: bool,
    was_zero_copy: bool,
    lent: u64,
    /// Lent frames with a stamp of the NIC.
    nic_stamped: u64,
    /// Losses of closed sockets, packets that did not arrive before their interface was gone, and
    /// packets that could not be lent (malformed, or longer than [`OWN_BYTES`]).
    lost_before: u64,
    /// The program's count of packets without a stamp when the socket was bound.
    unstamped_before: u64,
    /// The program's count of packets of queues without a socket when the socket was bound.
    unseen_before: u64,
}

/// Makes a queue for one of `queues` receive queues of an interface. The program redirects packets
/// to the queue after [`Attachment::set_open`].
pub(super) fn queue(
    mut live: LiveState,
    receiver: XdpReceiver,
    (attachment, attached): (Arc<Attachment>, AttachedInterface),
    xdp_interface: Arc<XdpInterface>,
    (queue_index, queues): (u32, u32),
) -> Box<dyn Queue> {
    if receiver.busy_ns.is_some() {
        live.wait_ns_max = BUSY_POLL_WAIT_NS;
    }
    if queue_index == 0 && receiver.copied.is_some() {
        // In zero-copy mode the number of packets that the NIC drops is unknown: drivers count
        // packets without a free chunk in different places, or not at all.
        live.counters = Some(InterfaceCounters::new(Some(attached.index)));
    }
    let mut engine = XdpEngine {
        lent_chunks: Vec::with_capacity(receiver.chunks as usize),
        was_zero_copy: receiver.copied.is_none(),
        receiver,
        attachment,
        xdp_interface,
        queue_index,
        queues,
        attached,
        bind_state: BindState::Bound,
        frames: Vec::with_capacity(BURST as usize),
        is_removed: false,
        is_bound: true,
        is_stamped: true,
        has_reported_unseen: false,
        mtu_due_ns: 0,
        fits_mtu: true,
        lent: 0,
        nic_stamped: 0,
        lost_before: 0,
        unstamped_before: 0,
        unseen_before: 0,
    };
    engine.give_all_chunks();
    let reason = "this kernel or driver does not spread them over several chunks";
    engine.report_mtu(&mut live, reason);
    LiveQueue::boxed(live, engine)
}

impl XdpEngine {
    /// Gives all chunks to the socket, which has had no chunks.
    fn give_all_chunks(&mut self) {
        let chunk_bytes = u64::from(self.receiver.chunk_bytes);
        let all = (0..u64::from(self.receiver.chunks)).map(|chunk| chunk * chunk_bytes);
        self.lent_chunks.clear();
        self.lent_chunks.extend(all);
        self.give_lent();
    }

    /// Gives the returned chunks to the kernel, as many as the fill ring has room for.
    fn give_lent(&mut self) {
        let given = self.receiver.channel.fill.give(&self.lent_chunks);
        self.lent_chunks.drain(..given);
    }

    fn counter(&self, which: usize) -> u64 {
        self.attachment.counters.get(self.queue_index, which)
    }

    /// Returns the burst's chunks to the kernel, and wakes a driver that waits for chunks.
    fn take_back(&mut self) {
        self.frames.clear();
        if self.lent_chunks.is_empty() {
            return;
        }
        self.give_lent();
        if self.receiver.channel.fill.needs_wakeup() {
            // poll(2) makes the wake-up; its result does not matter here.
            let _ = wait_for(&self.receiver.channel.socket, 0);
        }
    }

    /// Number of descriptors of the packet that starts at `first`; `None` if its last descriptor
    /// has not arrived yet.
    fn parts(&self, first: u32, available: u32) -> Option<u32> {
        let end = (first..available)
            .find(|index| self.receiver.channel.rx.peek(*index).options & CONTINUED == 0)?;
        Some(end - first + 1)
    }

    fn own_start(&self) -> usize {
        self.receiver.umem.own_at()
    }

    /// The bytes of a descriptor in the chunks; `None`: the descriptor is malformed.
    fn range(&self, index: u32) -> Option<Range<usize>> {
        let descriptor = self.receiver.channel.rx.peek(index);
        let start = usize::try_from(descriptor.address).ok()?;
        let end = start.checked_add(descriptor.length as usize)?;
        (start >= STAMP_BYTES && end <= self.own_start()).then_some(start..end)
    }

    /// The offset and length of a packet; 0 bytes: the packet cannot be lent. Copies a packet of
    /// several chunks to `own_at`, and advances `own_at`. `None`: this burst has no room for the
    /// copy.
    fn place(&mut self, parts: Range<u32>, own_at: &mut usize) -> Option<(usize, usize)> {
        if parts.len() == 1 {
            let range = self.range(parts.start);
            return Some(range.map_or((0, 0), |range| (range.start, range.len())));
        }
        let lengths = parts.clone().map(|index| Some(self.range(index)?.len()));
        let length = lengths.sum::<Option<usize>>();
        let Some(length) = length.filter(|length| *length <= OWN_BYTES) else {
            return Some((0, 0));
        };
        if *own_at + length > self.own_start() + OWN_BYTES {
            return None;
        }
        let start = *own_at;
        for index in parts {
            if let Some(range) = self.range(index) {
                self.receiver.umem.gather(range.start, range.len(), *own_at);
                *own_at += range.len();
            }
        }
        Some((start, length))
    }

    /// The program's stamp of a packet, by the system's clock and at most `now_ns`, and the NIC's
    /// stamp, 0 without one. `now_ns` if the queue trusts no stamps.
    fn time_ns(&self, first: XdpDescriptor, offset_ns: i64, now_ns: i64) -> (i64, i64) {
        let front = usize::try_from(first.address)
            .ok()
            .filter(|_| self.is_stamped)
            .and_then(|end| self.receiver.umem.memory().get(..end))
            .and_then(|memory| memory.split_last_chunk::<STAMP_BYTES>());
        let Some((rest, stamp)) = front else {
            return (now_ns, 0);
        };
        let time_ns = i64::from_ne_bytes(*stamp).saturating_add(offset_ns);
        let nic = rest.last_chunk::<STAMP_BYTES>();
        let nic = nic.filter(|_| self.attachment.has_nic_stamps());
        (
            time_ns.min(now_ns),
            nic.map_or(0, |nic| i64::from_ne_bytes(*nic)),
        )
    }

    /// Reports a burst without a usable stamp of the NIC, once for all queues. `stamped`: frames of
    /// the burst whose NIC's stamp was used. `ahead_ns`: how far a stamp that was not used is ahead
    /// of the system's clock.
    fn note_nic_stamps(&mut self, stamped: u64, ahead_ns: Option<i64>, live: &mut LiveState) {
        self.nic_stamped += stamped;
        // Relaxed: `swap` lets one queue give the notice, and no other data depends on the flag.
        if stamped > 0
            || !self.attachment.has_nic_stamps()
            || self
                .attachment
                .has_reported_stamps
                .swap(true, Ordering::Relaxed)
        {
            return;
        }
        let why = ahead_ns.map_or_else(|| NO_NIC_STAMP.to_owned(), disagreement);
        live.notice(format_args!(
            "{why}, so the XDP program stamps such packets"
        ));
    }

    /// If a driver once had no room in front of a packet, the queue trusts no more stamps until it
    /// is bound to the next interface.
    fn check_stamps(&mut self, live: &mut LiveState) {
        if self.is_stamped && self.counter(word::UNSTAMPED) > self.unstamped_before {
            self.is_stamped = false;
            live.notice(
                "the driver has no room for time stamps: packets are stamped when they are fetched",
            );
        }
    }

    /// Packets that the kernel lost on their way into the receive ring, and `lost_before`.
    fn lost(&self) -> io::Result<u64> {
        let statistics = self.receiver.channel.socket.statistics()?;
        let ring_full = statistics.rx_ring_full.unwrap_or(0);
        let lost = statistics.rx_dropped + ring_full + statistics.rx_invalid_descs;
        Ok(lost + self.lost_before)
    }

    /// Polls the driver until packets arrive, the busy-poll time has passed or `until_ns` is
    /// reached. Returns whether packets have arrived.
    fn busy_poll(&self, now_ns: i64, until_ns: i64) -> bool {
        let Some(busy_ns) = self.receiver.busy_ns else {
            return false;
        };
        let until_ns = until_ns.min(now_ns.saturating_add(busy_ns));
        loop {
            self.receiver.channel.socket.poll_driver();
            if self.receiver.channel.rx.available() > 0 {
                return true;
            }
            if clock::monotonic_ns() >= until_ns {
                return false;
            }
        }
    }
}

impl LiveEngine for XdpEngine {
    const LOOK_NS: i64 = 5_000_000;

    fn return_burst(&mut self, _live: &mut LiveState) {
        self.take_back();
    }

    fn fetch(&mut self, live: &mut LiveState) -> Result<bool, SourceError> {
        let available = self.receiver.channel.rx.available().min(BURST);
        if available == 0 {
            self.take_back();
            return Ok(false);
        }
        // The program's stamps are on the monotonic clock.
        let now = clock::now();
        let (now_ns, offset_ns) = (now.wall_ns, now.offset_max_ns());
        self.check_stamps(live);
        let (mut taken, mut own_at, mut newest_ns) = (0, self.own_start(), i64::MIN);
        let (mut nic_stamped, mut nic_ahead_ns) = (0, None);
        while taken < available {
            let first = self.receiver.channel.rx.peek(taken);
            let parts = self.parts(taken, available);
            let Some(parts) = parts else { break };
            let Some((offset, length)) = self.place(taken..taken + parts, &mut own_at) else {
                break;
            };
            let Ok(captured_len) = u32::try_from(length) else {
                break;
            };
            if length > 0 {
                let (mut time_ns, nic_ns) = self.time_ns(first, offset_ns, now_ns);
                let mut interface = 0;
                if nic_ns != 0 {
                    if agrees(nic_ns, time_ns) && nic_ns >= live.watermark.time_ns {
                        (time_ns, interface) = (nic_ns.min(now_ns), NIC_STAMPED);
                        nic_stamped += 1;
                    } else {
                        nic_ahead_ns = Some(nic_ns.saturating_sub(time_ns));
                    }
                }
                newest_ns = newest_ns.max(time_ns);
                self.frames.push(FrameMeta {
                    time_ns,
                    offset,
                    captured_len,
                    wire_len: captured_len,
                    interface,
                    direction: Direction::Inbound,
                    vlan: None,
                });
            } else {
                self.lost_before += 1;
            }
            for index in taken..taken + parts {
                let address = self.receiver.channel.rx.peek(index).address;
                self.lent_chunks
                    .push(address & !(u64::from(self.receiver.chunk_bytes) - 1));
            }
            taken += parts;
        }
        self.receiver.channel.rx.release(taken);
        self.lent += self.frames.len() as u64;
        if self.frames.is_empty() {
            self.take_back();
            return Ok(false);
        }
        self.note_nic_stamps(nic_stamped, nic_ahead_ns, live);
        live.watermark.on_burst(newest_ns, Some(now_ns));
        live.on_packets(newest_ns, || self.is_settled());
        Ok(true)
    }

    fn burst(&self) -> Burst<'_> {
        Burst {
            memory: self.receiver.umem.memory(),
            frames: &self.frames,
        }
    }

    fn has_more(&self) -> Option<bool> {
        Some(self.receiver.channel.rx.available() > 0)
    }

    /// A queue that polls the driver needs a thread of its own.
    fn wait_terms(&self, _live: &LiveState) -> Option<(Option<BorrowedFd<'_>>, i64)> {
        let is_bound = !self.is_removed && matches!(self.bind_state, BindState::Bound);
        let descriptor = is_bound.then(|| self.receiver.channel.socket.as_fd());
        let polls = self.receiver.busy_ns.is_some();
        (!polls).then_some((descriptor, i64::MAX))
    }

    fn look(&mut self, live: &mut LiveState, now_ns: i64) -> Result<(), SourceError> {
        self.look_at_interface(live, now_ns)
    }

    fn wait(
        &mut self,
        _live: &mut LiveState,
        now_ns: i64,
        until_ns: i64,
    ) -> Result<(), SourceError> {
        if self.is_removed || !matches!(self.bind_state, BindState::Bound) {
            // A socket without an interface reports nothing.
            clock::sleep_until(until_ns);
        } else if !self.busy_poll(now_ns, until_ns) {
            let wait_ns = until_ns.saturating_sub(clock::monotonic_ns());
            wait_for(&self.receiver.channel.socket, wait_ns)
                .map_err(|error| self.xdp_interface.error("poll", error))?;
        }
        Ok(())
    }

    fn cut_off(&mut self, _live: &mut LiveState) -> CutOff {
        self.attachment.set_open(self.queue_index, false);
        // Ends the count of packets of queues without a socket. Each queue does this, because the
        // first queue may have failed.
        (self.queues..QUEUES_MAX).for_each(|other| self.attachment.set_open(other, false));
        if matches!(self.bind_state, BindState::Absent(_)) {
            return CutOff::Ended;
        }
        CutOff::Closed {
            in_flight_ns: DELIVERY_DELAY_NS_MAX,
        }
    }

    /// Compares the packets that the program took with the packets that were lent or lost. If the
    /// interface is gone, packets that have not arrived by the end of the drain count as lost.
    fn balance(&mut self, is_over: bool) -> StopBalance {
        let Ok(lost) = self.lost() else {
            return StopBalance::Unknown;
        };
        let received = self.counter(word::RECEIVED);
        let seen = self.lent + lost + self.counter(word::OVERSIZE);
        let is_unbound = self.is_removed || matches!(self.bind_state, BindState::Leaving(_));
        let lost = lost_with_interface(received, seen, is_over && is_unbound);
        self.lost_before += lost;
        let seen = seen + lost;
        StopBalance::Known { received, seen }
    }

    /// Closes this queue only: the other queues go on.
    fn close(&mut self) {
        self.attachment.set_open(self.queue_index, false);
        self.attachment.state().fail(self.queue_index);
    }

    fn statistics(&mut self, live: &mut LiveState, now_ns: i64) -> SourceStatistics {
        let lost = self.lost().ok();
        let mut causes = vec![(LossCause::Kernel, lost)];
        let mut received = self.counter(word::RECEIVED);
        for class in 0..SHUNT_CLASSES {
            let shed = self.counter(word::SHUNTED + usize::from(class));
            causes.push((LossCause::Shed(class), Some(shed)));
            received += shed;
        }
        if self.attachment.receive_mode.packet_bytes_max.is_some() {
            causes.push((LossCause::Oversize, Some(self.counter(word::OVERSIZE))));
        }
        if self.queue_index == 0 {
            // Packets of receive queues that have no socket of ours.
            let unseen = self.attachment.unseen();
            causes.push((LossCause::Unseen, Some(unseen)));
            received += unseen;
        }
        let mut known_ns = now_ns;
        if self.was_zero_copy {
            // Without a free chunk the NIC drops the packet, and no program runs.
            causes.push((LossCause::Nic, None));
        } else if let Some(counters) = &live.counters {
            causes.push((LossCause::Nic, counters.nic()));
            received += counters.nic().unwrap_or(0);
            known_ns = counters.as_of_ns(now_ns);
        }
        SourceStatistics {
            received: Some(received),
            lost: causes,
            as_of_ns: lost.map(|_| known_ns.saturating_sub(DELIVERY_DELAY_NS_MAX)),
        }
    }

    fn input_drops(&self, live: &LiveState) -> InputDrops {
        // A native program runs before the input queues, a generic program after the input queues.
        match &live.counters {
            Some(counters) if !self.attachment.state().is_native => counters.input_drops(),
            _ => InputDrops::None,
        }
    }

    fn nic_stamped(&self) -> Option<u64> {
        let takes = self.attachment.has_nic_stamps();
        takes.then_some(self.nic_stamped)
    }

    fn buffer(&self) -> Option<SourceBuffer> {
        Some(SourceBuffer::Packets(self.receiver.chunks.into()))
    }

    fn shunt(&mut self, flow: &ShuntedFlow, shunt: Option<Shunt>) -> io::Result<()> {
        self.attachment.shunt(flow, shunt)
    }

    fn xdp_mode(&self) -> Option<XdpMode> {
        Some(XdpMode {
            is_native: self.attachment.state().is_native,
            copied: self.receiver.copied,
            is_multi_buffer: self.attachment.receive_mode.packet_bytes_max.is_none(),
        })
    }
}

/// Whether a stamp of the NIC agrees with the XDP program's stamp of the packet.
fn agrees(nic_ns: i64, time_ns: i64) -> bool {
    let ahead_ns = nic_ns.saturating_sub(time_ns);
    (-NIC_BEHIND_NS_MAX..=NIC_AHEAD_NS_MAX).contains(&ahead_ns)
}

/// Packets that the program took and that did not arrive before the interface was gone.
fn lost_with_interface(received: u64, seen: u64, is_gone: bool) -> u64 {
    if is_gone {
        received.saturating_sub(seen)
    } else {
        0
    }
}

impl Drop for XdpEngine {
    fn drop(&mut self) {
        // The program may stay attached for other queues.
        self.attachment.set_open(self.queue_index, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SECOND_NS;

    #[test]
    fn a_stamp_of_the_nic_is_near_the_programs() {
        let agreed = [
            -NIC_BEHIND_NS_MAX,
            0,
            NIC_AHEAD_NS_MAX,
            -NIC_BEHIND_NS_MAX - 1,
            NIC_AHEAD_NS_MAX + 1,
            i64::MAX,
        ]
        .map(|ahead_ns| agrees(ahead_ns.saturating_add(SECOND_NS), SECOND_NS));
        assert_eq!(agreed, [true, true, true, false, false, false]);
    }

    #[test]
    fn what_did_not_come_of_an_interface_is_lost_with_it() {
        assert_eq!(lost_with_interface(9, 7, true), 2);
        assert_eq!(lost_with_interface(7, 7, true), 0);
        assert_eq!(
            lost_with_interface(7, 9, true),
            0,
            "no loss makes that good"
        );
        assert_eq!(lost_with_interface(9, 7, false), 0, "they may still come");
    }
}
