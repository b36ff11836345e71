//! An XDP socket that sends: the quicker way out of a virtual Ethernet pair, for [`send`](crate::send).
//!
//! One system call takes 32 frames. A packet socket reads two structures from user memory for each of its frames, looks for
//! headers in it, and asks the security module; this one copies it and calls the driver: 1.30 instead of 0.89 million frames of
//! 64 bytes a second out of a loop in C, on one core.
//!
//! # What becomes of a frame
//! The kernel makes a packet of each descriptor, in order, within the system call, and gives the chunk back when the packet is
//! freed. A veth driver passes it on as it is. So the chunk comes back when the other end is done with the packet: within the
//! call, or later where another CPU receives (`rps_cpus`). At the first packet that was not taken the kernel stops with `EBUSY`;
//! that one is freed at once, and overtakes those that still wait.
//!
//! So neither the number of chunks that came back nor their order tells which packet was refused. After a call that did not take all
//! frames the sender therefore waits until no packet of its socket is left (`SO_MEMINFO`). Then the chunks that came back
//! are those of the packets that were made, and with `EBUSY` the last of these was refused. All that were taken before it have
//! been received, so it can go out in its place by another way.
//!
//! # What it does not do
//! Drivers that say "taken" of what they drop, as veth does before Linux 6.6; interfaces with a queueing discipline, where a veth
//! driver of Linux 6.17 says "later" about packets that it has let go; interfaces of several transmit queues, because this way
//! leads through one of them. The caller looks at that (`can_send_on`). Nor frames above the MTU that the interface had at the start:
//! nobody on this way compares them with it, and a packet socket does.

use std::io;

use rustix::net::xdp::SocketAddrXdpFlags;

use super::sys::{ConsumerRing, ProducerRing, Umem, XdpDescriptor, XdpSocket};
use crate::{
    FrameMeta,
    af_packet::sys::InterfaceQuery,
    clock::{self, SECOND_NS},
    netlink::Netlink,
};

/// What the kernel sends in one call, `TX_BATCH_SIZE` in `net/xdp/xsk.c`.
const BATCH: usize = 32;

/// Bytes of a chunk, and so of a frame. Half a page is the least that the kernel takes.
const CHUNK_BYTES: usize = 2048;

/// Without a whole Ethernet header a frame is nothing to send.
const HEADER_BYTES: usize = 14;

/// How long a sender waits for another socket to leave the queue that it sends through, and how long between two tries. The kernel
/// gives a queue free some time after its last socket was closed: on a busy machine more than a tenth of a second.
const SEND_QUEUE_WAIT_NS: i64 = SECOND_NS / 2;
const SEND_QUEUE_LOOK_NS: i64 = SECOND_NS / 500;

/// The first Linux whose veth driver tells of packets that it drops (commit 151e887d8ff9).
const TELLS_OF_DROPS: (u32, u32) = (6, 6);

/// See the module.
#[derive(Debug)]
pub(crate) struct XdpSender {
    // Closed before the chunks go; the kernel holds the pages until then in any case.
    socket: XdpSocket,
    tx: ProducerRing,
    completion: ConsumerRing,
    umem: Umem,
    /// Frames that were staged and whose chunks have not come back: `<= BATCH`.
    under_way: usize,
    /// In range `0..=CHUNK_BYTES`.
    frame_bytes_max: usize,
}

/// Whether it is known of each frame sent on an interface what became of it, and no queue is left out.
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

/// Whether this kernel is of this version at least.
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
    /// A socket at the first queue of an interface, for frames of up to `frame_bytes_max` and of a chunk. Needs CAP_NET_RAW.
    /// Waits a little for a queue that was in use just now.
    ///
    /// # Errors
    /// The error of a system call; `EBUSY` where another XDP socket has the queue.
    ///
    /// # Minimum kernel version
    /// 4.18.
    pub(crate) fn open(interface_index: i32, frame_bytes_max: usize) -> io::Result<Self> {
        let give_up_ns = clock::monotonic_ns() + SEND_QUEUE_WAIT_NS;
        loop {
            // A socket that did not bind is of no further use.
            let sender = Self::unbound(frame_bytes_max.min(CHUNK_BYTES))?;
            let copy = SocketAddrXdpFlags::XDP_COPY; // Whatever the driver is, it is not told.
            let Err(error) = sender.socket.bind(interface_index, 0, copy) else {
                return Ok(sender);
            };
            let now_ns = clock::monotonic_ns();
            if error.raw_os_error() != Some(libc::EBUSY) || now_ns >= give_up_ns {
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

    /// Takes the first frames of `frames`, whose bytes lie in `memory`, to be sent next, and returns how many: 0 if the first
    /// one is too long or too short. `wait_for_chunks` was `true` since the last ones. Panics if a frame lies outside `memory`.
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

    /// Sends what was staged, or some of it. Returns how many frames the kernel took, in order, and what it said. With `EBUSY` the
    /// last of these was refused, else all were sent. If it took fewer than there were, all that it took have been received, and the
    /// others wait for the next call.
    ///
    /// # Errors
    /// Of the system calls, and `ETIMEDOUT` if the other end keeps packets for `timeout_ns`, so that it cannot be told which one was
    /// refused.
    pub(crate) fn send(&mut self, timeout_ns: i64) -> (usize, io::Result<()>) {
        let said = self.socket.send();
        if said.is_ok() && self.tx.is_empty() {
            return (self.under_way, said);
        }
        let is_over = wait(timeout_ns, || Ok(self.socket.bytes_under_way()? == 0));
        let came_back = self.take_back();
        match is_over {
            Ok(true) => (came_back, said),
            // A refused one came back with the others.
            Ok(false) => {
                let refused = said.is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY));
                let sent = came_back.saturating_sub(usize::from(refused));
                (sent, Err(io::Error::from_raw_os_error(libc::ETIMEDOUT)))
            }
            Err(error) => (0, Err(error)),
        }
    }

    /// Waits until the other end is done with all packets that were sent; `false` if it keeps some for `timeout_ns`.
    pub(crate) fn wait_for_chunks(&mut self, timeout_ns: i64) -> bool {
        wait(timeout_ns, || {
            self.take_back();
            Ok(self.under_way == 0)
        })
        .is_ok_and(|is_over| is_over)
    }

    /// Takes chunks back that the kernel is done with, and returns how many.
    fn take_back(&mut self) -> usize {
        // Their entries are not read: all chunks of a batch are awaited, and then their number says enough.
        let returned = self.completion.available();
        self.completion.release(returned);
        let count = (returned as usize).min(self.under_way);
        self.under_way -= count;
        count
    }
}

/// Lets others run until `is_over`, for `timeout_ns`: the receiver's softirq may need this CPU. Returns whether it is over.
fn wait(timeout_ns: i64, mut is_over: impl FnMut() -> io::Result<bool>) -> io::Result<bool> {
    // The clock is not read where there is nothing to wait for.
    if is_over()? {
        return Ok(true);
    }
    let give_up_ns = clock::monotonic_ns().saturating_add(timeout_ns);
    while !is_over()? {
        if clock::monotonic_ns() >= give_up_ns {
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
