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

/// Entries of a ring that is not used, but that the kernel requires.
const UNUSED_ENTRIES: u32 = 64;

/// From `asm-generic/socket.h`.
const SO_BUSY_POLL: c_int = 46;
const SO_PREFER_BUSY_POLL: c_int = 69;
const SO_BUSY_POLL_BUDGET: c_int = 70;

/// Packets that the driver may hand over per poll: as many as in a poll after an interrupt
/// (`NAPI_POLL_WEIGHT`).
const BUDGET: u32 = 64;

/// The result of `SO_MEMINFO`: numbers in the order of `SK_MEMINFO_`.
type SocketMemory = [u32; 9];

/// `SK_MEMINFO_WMEM_ALLOC`.
const WRITE_ALLOCATED: usize = 2;

/// Bytes of an entry in rings of addresses.
const ADDRESS_BYTES: usize = size_of::<u64>();

/// An XDP socket for one queue of an interface, to receive or to send.
#[derive(Debug)]
pub(crate) struct XdpSocket {
    descriptor: OwnedFd,
}

impl XdpSocket {
    /// Calls `socket(AF_XDP, SOCK_RAW)`. Fails with `EAFNOSUPPORT` if the kernel has no AF_XDP,
    /// with `EPERM` without CAP_NET_RAW.
    pub(crate) fn new() -> io::Result<Self> {
        let (family, kind) = (AddressFamily::XDP, SocketType::RAW);
        let descriptor = socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
        Ok(Self { descriptor })
    }

    /// Registers the chunks, of `chunk_bytes` each, and makes receive and fill rings of `entries`
    /// (a power of two). The kernel writes to chunks from the fill ring until the socket is closed.
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

    /// As [`Self::set_up`], for a socket that only sends: the kernel writes to no chunk, and reads
    /// chunks from the transmit ring.
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

    /// Registers the chunks, whose pages the kernel keeps for the lifetime of the socket.
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

    /// Binds to a queue of an interface, once. Flags:
    ///
    /// - `XDP_ZEROCOPY`: the NIC itself writes into the chunks.
    /// - `XDP_COPY`: the kernel copies. With neither flag the kernel uses copy mode if the driver
    ///   refuses zero-copy.
    /// - `XDP_USE_SG`: packets longer than a chunk arrive in several chunks, since Linux 6.6.
    /// - `XDP_USE_NEED_WAKEUP`: the fill ring shows when the driver sleeps.
    ///
    /// Fails with `EINVAL` if the queue does not exist, and with the driver's error if the driver
    /// does not support zero-copy.
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

    /// Lets this process poll the driver for packets, and suppresses interrupts while it polls if
    /// the interface defers interrupts. Fails with `ENOPROTOOPT` before Linux 5.11, with `EPERM`
    /// without CAP_NET_ADMIN.
    pub(crate) fn set_busy_poll(&self, microseconds: u32) -> io::Result<()> {
        set_option(self, libc::SOL_SOCKET, SO_PREFER_BUSY_POLL, &1_u32)?;
        set_option(self, libc::SOL_SOCKET, SO_BUSY_POLL, &microseconds)?;
        set_option(self, libc::SOL_SOCKET, SO_BUSY_POLL_BUDGET, &BUDGET)
    }

    /// Polls the driver once. The result does not matter: the receive ring shows the packets.
    pub(crate) fn poll_driver(&self) {
        // recvfrom(2) triggers the poll; an XDP socket has no bytes to copy.
        let _ = recv(self, &mut [0_u8; 0], RecvFlags::DONTWAIT);
    }

    /// Memory of the kernel's packets for frames that were sent and not freed yet, in bytes. A
    /// packet's chunk is in the completion ring before the packet leaves this sum.
    pub(crate) fn bytes_under_way(&self) -> io::Result<u32> {
        let memory: SocketMemory = option(self, libc::SOL_SOCKET, libc::SO_MEMINFO)?;
        Ok(memory[WRITE_ALLOCATED])
    }

    /// Sends some or all frames of the transmit ring. Fails with `EBUSY` if the driver refused a
    /// packet, which the kernel then dropped; with `ENETDOWN` or `ENXIO` if the interface is down
    /// or gone.
    pub(crate) fn send(&self) -> io::Result<()> {
        // sendto(2) triggers the sending; the frames are in the chunks.
        send(self, &[], SendFlags::DONTWAIT)?;
        Ok(())
    }
}

impl AsFd for XdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
