//! XDP sockets: `Documentation/networking/af_xdp.rst` of the kernel.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use libc::c_int;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
    sockopt,
    xdp::{
        SocketAddrXdp, SocketAddrXdpFlags, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING,
        XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING, XdpStatistics, XdpUmemReg,
        XdpUmemRegFlags,
    },
};

use super::{
    memory::Umem,
    rings::{ConsumerRing, ProducerRing, XdpDescriptor, XdpRing},
};
use crate::sys::{option, set_option};

/// Entries of a ring that is not used, but that the kernel wants.
const UNUSED_ENTRIES: u32 = 64;

/// Of `asm-generic/socket.h`; the C library's crate does not have the last two.
const SO_BUSY_POLL: c_int = 46;
const SO_PREFER_BUSY_POLL: c_int = 69;
const SO_BUSY_POLL_BUDGET: c_int = 70;

/// Packets that the driver may hand over each time it is asked: what it does by itself.
const BUDGET: u32 = 64;

/// What `SO_MEMINFO` tells: numbers in the order of `SK_MEMINFO_`, of which later kernels may have more.
type SocketMemory = [u32; 9];

/// `SK_MEMINFO_WMEM_ALLOC`.
const WRITE_ALLOCATED: usize = 2;

/// Bytes of an entry of the rings that hold addresses only.
const ADDRESS_BYTES: usize = size_of::<u64>();

/// An XDP socket at one queue of an interface, with chunks of its own: to receive, or to send.
#[derive(Debug)]
pub(crate) struct XdpSocket {
    descriptor: OwnedFd,
}

impl XdpSocket {
    /// `socket(AF_XDP, SOCK_RAW)`. Fails with `EAFNOSUPPORT` where the kernel has none, `EPERM` without CAP_NET_RAW.
    pub(crate) fn new() -> io::Result<Self> {
        let (family, kind) = (AddressFamily::XDP, SocketType::RAW);
        let descriptor = socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
        Ok(Self { descriptor })
    }

    /// Registers the chunks, of `chunk_bytes` each, and makes rings of `entries` (a power of two). The kernel keeps the pages
    /// as long as the socket lives; it writes to chunks that the fill ring gave it, until the socket is closed.
    pub(crate) fn set_up(
        &self,
        umem: &Umem,
        chunk_bytes: u32,
        entries: u32,
    ) -> io::Result<(ProducerRing, ConsumerRing)> {
        self.register(umem, chunk_bytes)?;
        sockopt::set_xdp_umem_fill_ring_size(self, entries)?;
        sockopt::set_xdp_umem_completion_ring_size(self, UNUSED_ENTRIES)?;
        sockopt::set_xdp_rx_ring_size(self, entries)?;
        let offsets = sockopt::xdp_mmap_offsets(self)?;
        let ring = |offsets, page, bytes| XdpRing::new(self, offsets, page, entries, bytes);
        let fill = ring(offsets.fr, XDP_UMEM_PGOFF_FILL_RING, ADDRESS_BYTES)?;
        let rx = ring(offsets.rx, XDP_PGOFF_RX_RING, size_of::<XdpDescriptor>())?;
        Ok((ProducerRing::new(fill), ConsumerRing::new(rx)))
    }

    /// The same for a socket that only sends: the kernel writes to no chunk, and reads those that the transmit ring gave it.
    pub(crate) fn set_up_sending(
        &self,
        umem: &Umem,
        chunk_bytes: u32,
        entries: u32,
    ) -> io::Result<(ProducerRing, ConsumerRing)> {
        self.register(umem, chunk_bytes)?;
        sockopt::set_xdp_umem_fill_ring_size(self, UNUSED_ENTRIES)?;
        sockopt::set_xdp_umem_completion_ring_size(self, entries)?;
        sockopt::set_xdp_tx_ring_size(self, entries)?;
        let offsets = sockopt::xdp_mmap_offsets(self)?;
        let ring = |offsets, page, bytes| XdpRing::new(self, offsets, page, entries, bytes);
        let tx = ring(offsets.tx, XDP_PGOFF_TX_RING, size_of::<XdpDescriptor>())?;
        let completion = ring(offsets.cr, XDP_UMEM_PGOFF_COMPLETION_RING, ADDRESS_BYTES)?;
        Ok((ProducerRing::new(tx), ConsumerRing::new(completion)))
    }

    /// The chunks' owner keeps them as long as this socket (see `XdpEngine`, `XdpSender`).
    fn register(&self, umem: &Umem, chunk_bytes: u32) -> io::Result<()> {
        let (addr, len) = umem.registered();
        let registration = XdpUmemReg {
            addr,
            len,
            chunk_size: chunk_bytes,
            headroom: 0,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        };
        Ok(sockopt::set_xdp_umem_reg(self, registration)?)
    }

    /// Binds to a queue of an interface, once: with `XDP_ZEROCOPY` to have the NIC write into the chunks itself, with `XDP_COPY` the kernel
    /// copies. With neither the kernel takes copy mode where the driver refuses zero-copy, and does not say why. `XDP_USE_SG`: packets longer
    /// than a chunk come in several, since Linux 6.6. `XDP_USE_NEED_WAKEUP`: the fill ring tells when the driver sleeps. Fails with `EINVAL`
    /// where there is no such queue, and with what the driver says where it has no zero-copy; it can be tried again then.
    pub(crate) fn bind(
        &self,
        interface_index: i32,
        queue: u32,
        flags: SocketAddrXdpFlags,
    ) -> io::Result<()> {
        let index = interface_index.cast_unsigned();
        Ok(bind(self, &SocketAddrXdp::new(flags, index, queue))?)
    }

    /// Counters since the socket was made.
    pub(crate) fn statistics(&self) -> io::Result<XdpStatistics> {
        Ok(sockopt::xdp_statistics(self)?)
    }

    /// Lets the program ask the driver for packets itself, and keeps interrupts off meanwhile where the interface defers them. Fails
    /// with `ENOPROTOOPT` before Linux 5.11, `EPERM` without CAP_NET_ADMIN.
    pub(crate) fn set_busy_poll(&self, microseconds: u32) -> io::Result<()> {
        set_option(self, libc::SOL_SOCKET, SO_PREFER_BUSY_POLL, &1_u32)?;
        set_option(self, libc::SOL_SOCKET, SO_BUSY_POLL, &microseconds)?;
        set_option(self, libc::SOL_SOCKET, SO_BUSY_POLL_BUDGET, &BUDGET)
    }

    /// Asks the driver once. Whatever it says, the receive ring shows what came.
    pub(crate) fn poll_driver(&self) {
        // recvfrom(2) is how; an XDP socket has no bytes to copy.
        let _ = recv(self, &mut [0_u8; 0], RecvFlags::DONTWAIT);
    }

    /// Memory of the packets that the kernel made of what was sent and that nobody freed yet, in bytes. A packet's chunk is in the
    /// completion ring before the packet is gone from this sum.
    pub(crate) fn bytes_under_way(&self) -> io::Result<u32> {
        let memory: SocketMemory = option(self, libc::SOL_SOCKET, libc::SO_MEMINFO)?;
        Ok(memory[WRITE_ALLOCATED])
    }

    /// Sends what the transmit ring holds, up to some of it. Fails with `EBUSY` where the driver refused a packet, which the kernel
    /// then forgot; `ENETDOWN`, `ENXIO` where the interface is down or gone.
    pub(crate) fn send(&self) -> io::Result<()> {
        // sendto(2) is how; the frames are in the chunks.
        send(self, &[], SendFlags::DONTWAIT)?;
        Ok(())
    }
}

impl AsFd for XdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
