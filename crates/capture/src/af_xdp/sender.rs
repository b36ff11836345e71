//! An XDP socket that sends: the faster way out of a virtual Ethernet pair, for
//! [`send`](crate::send).
//!
//! One system call sends up to 32 frames. In a C loop on one core, an XDP socket sends 1.30 million
//! frames of 64 bytes per second, and a packet socket 0.89 million.
//!
//! # What the kernel does with a frame
//! The kernel makes a packet of each descriptor, in order, and returns the chunk when the packet is
//! freed: within the call, or later, for example if another CPU receives (`rps_cpus`). At the first
//! packet that the driver refuses, the kernel frees this packet and stops with `EBUSY`.
//!
//! So neither the number nor the order of returned chunks identifies the refused packet. After a
//! call that failed or did not take all frames, the sender therefore waits until no packet of its
//! socket is left (`SO_MEMINFO`). Then, with `EBUSY`, the last of the returned packets in send
//! order was refused.
//!
//! # What it does not do
//! The caller checks the interface with `can_send_on`, which accepts only veth interfaces. It
//! excludes:
//!
//! - Linux before 6.6, because veth then reports success for packets that it drops,
//! - interfaces with a queueing discipline, for which a veth driver of Linux 6.17 reports "later"
//!   about packets that the driver has freed,
//! - interfaces with several transmit queues, because the socket sends through one of them.
//!
//! The caller gives the longest frame: the kernel does not check the MTU for frames of XDP sockets.

use std::io;

use rustix::net::xdp::SocketAddrXdpFlags;

use super::sys::{ConsumerRing, ProducerRing, Umem, XdpDescriptor, XdpSocket};
use crate::{
    FrameMeta,
    af_packet::sys::InterfaceQuery,
    clock::{self, SECOND_NS},
    netlink::Netlink,
};

/// Frames that the kernel sends in one call: `TX_BATCH_SIZE` of `net/xdp/xsk.c`.
const BATCH: usize = 32;

/// Bytes of a chunk: the smallest size that the kernel accepts (`XDP_UMEM_MIN_CHUNK_SIZE`).
const CHUNK_BYTES: usize = 2048;

/// Smallest frame: a complete Ethernet header.
const HEADER_BYTES: usize = 14;

/// How long a sender waits for another socket to leave the transmit queue. The kernel frees a queue
/// some time after its last socket was closed: on a busy machine more than a tenth of a second.
const SEND_QUEUE_WAIT_NS: i64 = SECOND_NS / 2;
/// Time between two attempts to bind to a transmit queue that another socket has.
const SEND_QUEUE_LOOK_NS: i64 = SECOND_NS / 500;

/// The first Linux version whose veth driver reports packets that it drops (commit 151e887d8ff9).
const TELLS_OF_DROPS: (u32, u32) = (6, 6);

#[derive(Debug)]
pub(crate) struct XdpSender {
    // Closed before the chunks are freed.
    socket: XdpSocket,
    tx: ProducerRing,
    completion: ConsumerRing,
    umem: Umem,
    /// Staged frames whose chunks have not returned: `<= BATCH`.
    under_way: usize,
    /// Bytes of the longest frame, in range `0..=CHUNK_BYTES`.
    frame_bytes_max: usize,
}

/// Whether the interface is a veth of Linux 6.6 or later, with one transmit queue and without a
/// queueing discipline.
pub(crate) fn can_send_on(query: &InterfaceQuery, interface: &str, index: i32) -> bool {
    let has_one_queue = || query.ethtool_transmit_queues(interface).ok() == Some(1);
    let has_no_queueing = || {
        Netlink::new()
            .and_then(|mut netlink| netlink.queueing(index))
            .is_ok_and(|discipline| discipline == "noqueue")
    };
    query.driver(interface).is_ok_and(|driver| {
        driver == "veth" && is_linux(TELLS_OF_DROPS) && has_one_queue() && has_no_queueing()
    })
}

pub(super) fn is_linux(at_least: (u32, u32)) -> bool {
    let release = rustix::system::uname();
    let version = release.release().to_str().ok().and_then(version);
    version.is_some_and(|version| version >= at_least)
}

/// The first two numbers of a kernel's release, such as `6.8.0-45-generic`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|character: char| !character.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

impl XdpSender {
    /// Opens a socket at the first queue of an interface. Sends frames of up to `frame_bytes_max`
    /// bytes, and at most one chunk. Needs CAP_NET_RAW. While another XDP socket has the queue,
    /// tries again for [`SEND_QUEUE_WAIT_NS`].
    ///
    /// # Errors
    /// A system call's error, such as `EBUSY` if another XDP socket has the queue.
    pub(crate) fn open(interface_index: i32, frame_bytes_max: usize) -> io::Result<Self> {
        let deadline_ns = clock::monotonic_ns() + SEND_QUEUE_WAIT_NS;
        loop {
            // A new socket for each attempt, because the kernel does not document the state of a
            // socket whose bind failed.
            let sender = Self::unbound(frame_bytes_max.min(CHUNK_BYTES))?;
            // In copy mode the driver does not take part in the bind.
            let copy = SocketAddrXdpFlags::XDP_COPY;
            let Err(error) = sender.socket.bind(interface_index, 0, copy) else {
                return Ok(sender);
            };
            let now_ns = clock::monotonic_ns();
            if error.raw_os_error() != Some(libc::EBUSY) || now_ns >= deadline_ns {
                return Err(error);
            }
            clock::sleep_until(now_ns + SEND_QUEUE_LOOK_NS);
        }
    }

    fn unbound(frame_bytes_max: usize) -> io::Result<Self> {
        const ENTRIES: u32 = 64;
        const { assert!(BATCH <= ENTRIES as usize) };
        let umem = Umem::new(BATCH * CHUNK_BYTES, 0)?;
        let socket = XdpSocket::new()?;
        let bytes = u32::try_from(CHUNK_BYTES).map_err(io::Error::other)?;
        let (tx, completion) = socket.set_up_sending(&umem, bytes, ENTRIES)?;
        Ok(Self {
            socket,
            tx,
            completion,
            umem,
            under_way: 0,
            frame_bytes_max,
        })
    }

    /// Stages the first frames for sending, at most [`BATCH`], up to a frame that is too long or
    /// too short. Returns their number. Panics if a staged frame is outside `memory`, or unless the
    /// chunks of all earlier frames have returned (`wait_for_chunks`).
    pub(crate) fn stage(&mut self, memory: &[u8], frames: &[FrameMeta]) -> usize {
        assert_eq!(self.under_way, 0, "frames under way");
        let fits = |frame: &&FrameMeta| {
            (HEADER_BYTES..=self.frame_bytes_max).contains(&(frame.captured_len as usize))
        };
        for (slot, frame) in frames.iter().take(BATCH).take_while(fits).enumerate() {
            let length = frame.captured_len as usize;
            let at = slot * CHUNK_BYTES;
            self.umem
                .write(at, &memory[frame.offset..frame.offset + length]);
            self.tx.put(XdpDescriptor {
                address: at as u64,
                length: frame.captured_len,
                options: 0,
            });
            self.under_way += 1;
        }
        self.tx.publish();
        self.under_way
    }

    /// Sends all or some of the staged frames. Returns how many frames the kernel took, in order,
    /// and its result. With `EBUSY` the last of these frames was refused.
    ///
    /// # Errors
    /// Errors of the system calls. `ETIMEDOUT` if the kernel refused a frame or took only some
    /// frames, and packets are not freed for `timeout_ns`. Then, and if `SO_MEMINFO` cannot be
    /// read, the returned number is a lower bound.
    pub(crate) fn send(&mut self, timeout_ns: i64) -> (usize, io::Result<()>) {
        let said = self.socket.send();
        if said.is_ok() && self.tx.is_empty() {
            return (self.under_way, said);
        }
        let is_over = wait(timeout_ns, || Ok(self.socket.bytes_under_way()? == 0));
        let came_back = self.take_back();
        match is_over {
            Ok(true) => (came_back, said),
            // A refused frame's chunk returned with the others.
            Ok(false) => {
                let refused = said.is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY));
                let sent = came_back.saturating_sub(usize::from(refused));
                (sent, Err(io::Error::from_raw_os_error(libc::ETIMEDOUT)))
            }
            Err(error) => (0, Err(error)),
        }
    }

    /// Waits until all chunks have returned; `false`: not within `timeout_ns`.
    pub(crate) fn wait_for_chunks(&mut self, timeout_ns: i64) -> bool {
        wait(timeout_ns, || {
            self.take_back();
            Ok(self.under_way == 0)
        })
        .is_ok_and(|is_over| is_over)
    }

    /// Takes back returned chunks, and returns their number.
    fn take_back(&mut self) -> usize {
        // The entries need not be read: only their number matters.
        let returned = self.completion.available();
        self.completion.release(returned);
        let count = (returned as usize).min(self.under_way);
        self.under_way -= count;
        count
    }
}

/// Yields the CPU until `is_over` holds or `timeout_ns` has passed: the receiver's softirq may need
/// this CPU.
fn wait(timeout_ns: i64, mut is_over: impl FnMut() -> io::Result<bool>) -> io::Result<bool> {
    if is_over()? {
        return Ok(true);
    }
    let deadline_ns = clock::monotonic_ns().saturating_add(timeout_ns);
    while !is_over()? {
        if clock::monotonic_ns() >= deadline_ns {
            return Ok(false);
        }
        std::thread::yield_now();
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        assert_eq!(version("6.8.0-45-generic"), Some((6, 8)));
        assert_eq!(version("6.18"), Some((6, 18)));
        assert_eq!(version("5.15-rc1"), Some((5, 15)));
        for none in ["", "6", "6.", "six.1", "6.99999999999"] {
            assert_eq!(version(none), None, "{none}");
        }
        assert!(version("6.5.13") < Some(TELLS_OF_DROPS));
        assert!(version("6.10.1") >= Some(TELLS_OF_DROPS));
    }
}
