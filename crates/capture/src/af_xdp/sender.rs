//! An XDP socket that sends: the quicker way out of a virtual Ethernet pair, for [`send`](crate::send).
//!
//! One system call takes 32 frames. A packet socket reads two structures from user memory for each of its frames, looks for
//! headers in it, and asks the security module; this one copies it and calls the driver: 1.30 instead of 0.89 million frames of
//! 64 bytes a second out of a loop in C, on one core.
//!
//! # What becomes of a frame
//! The kernel makes a packet of each descriptor, in order, within the system call, and gives the chunk back when nobody owns
//! the packet on behalf of this socket any more. A veth driver lets go of it before it passes it on, so the chunk is back when
//! the call returns, whether the other end took the packet or not. At the first packet that was not taken the kernel stops
//! with `EBUSY`: the last chunk that came back is that packet's. So it is known of each frame what became of it.
//!
//! # What it does not do
//! Drivers that own packets longer, where it would not be known; interfaces with a queueing discipline, where a veth driver of
//! Linux 6.17 says "later" about packets that it has let go; interfaces of several transmit queues, because this way leads
//! through one of them. The caller looks at that (`suits`).

use std::io;

use super::sys::{CompletionRing, Descriptor, TxRing, Umem, XdpSocket};
use crate::{
    FrameMeta,
    af_packet::sys::{InterfaceQuery, Links},
    clock::{self, SECOND_NS},
};

/// What the kernel sends in one call, `TX_BATCH_SIZE` in `net/xdp/xsk.c`.
const BATCH: usize = 32;

/// Bytes of a chunk, and so of a frame. Half a page is the least that the kernel takes.
const CHUNK_BYTES: usize = 2048;

/// Without a whole Ethernet header a frame is nothing to send.
const HEADER_BYTES: usize = 14;

/// The kernel gives a queue free some time after its last socket was closed.
const BUSY_NS: i64 = SECOND_NS / 10;
const BUSY_LOOK_NS: i64 = SECOND_NS / 500;

/// See the module.
#[derive(Debug)]
pub(crate) struct XdpSender {
    // Closed before the chunks go; the kernel holds the pages until then in any case.
    socket: XdpSocket,
    tx: TxRing,
    completion: CompletionRing,
    umem: Umem,
    /// Frames that were staged and have not come back: `<= BATCH`.
    under_way: usize,
}

/// Whether it is known of each frame sent on an interface what became of it, and no queue is left out.
pub(crate) fn suits(query: &InterfaceQuery, interface: &str, index: i32) -> bool {
    let has_one_queue = || query.ethtool_transmit_queues(interface).ok() == Some(1);
    let has_no_queueing = || {
        Links::new()
            .and_then(|mut links| links.queueing(index))
            .is_ok_and(|discipline| discipline == b"noqueue")
    };
    query
        .driver(interface)
        .is_ok_and(|driver| driver == "veth" && has_one_queue() && has_no_queueing())
}

impl XdpSender {
    /// A socket at the first queue of an interface. Needs CAP_NET_RAW. Waits a little for a queue that was in use just now.
    ///
    /// # Errors
    /// Of the system calls: `EBUSY` where another XDP socket has the queue.
    ///
    /// # Minimum kernel version
    /// 4.18.
    pub(crate) fn open(interface_index: i32) -> io::Result<Self> {
        let index = u32::try_from(interface_index).map_err(io::Error::other)?;
        let give_up_ns = clock::monotonic_ns() + BUSY_NS;
        loop {
            // A socket that did not bind is of no further use.
            let sender = Self::unbound()?;
            let Err(error) = sender.socket.bind_to_send(index, 0) else {
                return Ok(sender);
            };
            let now_ns = clock::monotonic_ns();
            if error.raw_os_error() != Some(libc::EBUSY) || now_ns >= give_up_ns {
                return Err(error);
            }
            clock::sleep_until(now_ns + BUSY_LOOK_NS);
        }
    }

    fn unbound() -> io::Result<Self> {
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
        })
    }

    /// Takes the first frames of `frames`, whose bytes lie in `memory`, to be sent next, and returns how many: 0 if the first
    /// one does not fit a chunk. All that were staged before have come back. Panics if a frame lies outside `memory`.
    pub(crate) fn stage(&mut self, memory: &[u8], frames: &[FrameMeta]) -> usize {
        assert_eq!(self.under_way, 0, "frames under way");
        let fits = |frame: &&FrameMeta| {
            (HEADER_BYTES..=CHUNK_BYTES).contains(&(frame.captured_len as usize))
        };
        for (slot, frame) in frames.iter().take(BATCH).take_while(fits).enumerate() {
            let length = frame.captured_len as usize;
            let at = slot * CHUNK_BYTES;
            self.umem
                .write(at, &memory[frame.offset..frame.offset + length]);
            self.tx.put(Descriptor {
                address: at as u64,
                length: frame.captured_len,
                options: 0,
            });
            self.under_way += 1;
        }
        self.tx.publish();
        self.under_way
    }

    /// Sends what is under way, or some of it. Returns how many frames came back, in order, and what the kernel said. With
    /// `EBUSY` the last of these was refused; else all were sent.
    pub(crate) fn send(&mut self) -> (usize, io::Result<()>) {
        let said = self.socket.send();
        let back = (self.completion.take() as usize).min(self.under_way);
        self.under_way -= back;
        (back, said)
    }
}
