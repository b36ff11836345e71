//! XDP sockets: `Documentation/networking/af_xdp.rst` of the kernel.
#![expect(
    unsafe_code,
    reason = "system calls, and memory shared with the kernel"
)]

use std::{
    io,
    mem::size_of,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use libc::{c_int, socklen_t};
use rustix::net::{RecvFlags, SendFlags};

use super::{
    check,
    memory::Umem,
    rings::{CompletionRing, Descriptor, FillRing, Ring, RingOffsets, RxRing, TxRing},
};

const SOL_XDP: c_int = 283;
const XDP_MMAP_OFFSETS: c_int = 1;
const XDP_RX_RING: c_int = 2;
const XDP_TX_RING: c_int = 3;
const XDP_UMEM_REG: c_int = 4;
const XDP_UMEM_FILL_RING: c_int = 5;
const XDP_UMEM_COMPLETION_RING: c_int = 6;
const XDP_STATISTICS: c_int = 7;
const PGOFF_RX_RING: u64 = 0;
const PGOFF_TX_RING: u64 = 0x8000_0000;
const PGOFF_FILL_RING: u64 = 0x1_0000_0000;
const PGOFF_COMPLETION_RING: u64 = 0x1_8000_0000;

/// Entries of a ring that is not used, but that the kernel wants.
const UNUSED_ENTRIES: u32 = 64;

const FAMILY: u16 = 44;
const _: () = assert!(FAMILY as c_int == libc::AF_XDP);

/// Bits of `sxdp_flags`: copy mode, zero-copy, wake-ups on demand, and packets of several chunks. Without the first two the kernel takes
/// copy mode where the driver refuses zero-copy, and does not say why.
const COPY: u16 = 1 << 1;
const ZERO_COPY: u16 = 1 << 2;
const USE_NEED_WAKEUP: u16 = 1 << 3;
const USE_SG: u16 = 1 << 4;

/// Of `asm-generic/socket.h`; the C library's crate does not have the last two.
const SO_BUSY_POLL: c_int = 46;
const SO_PREFER_BUSY_POLL: c_int = 69;
const SO_BUSY_POLL_BUDGET: c_int = 70;

/// Packets that the driver may hand over each time it is asked: what it does by itself.
const BUDGET: u32 = 64;

/// `struct sockaddr_xdp`.
#[repr(C)]
struct Address {
    family: u16,
    flags: u16,
    interface_index: u32,
    queue: u32,
    shared_umem: u32,
}

/// `struct xdp_umem_reg`, of the length that has no transmit metadata.
#[repr(C)]
struct UmemRegistration {
    address: u64,
    bytes: u64,
    chunk_bytes: u32,
    headroom: u32,
    flags: u32,
    padding: u32,
}

/// `struct xdp_mmap_offsets`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
struct MapOffsets {
    rx: RingOffsets,
    tx: RingOffsets,
    fill: RingOffsets,
    completion: RingOffsets,
}

/// `struct xdp_statistics`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub(in crate::af_xdp) struct XdpStatistics {
    /// Dropped for other reasons than the next ones; no chunk in the fill ring is one.
    pub(in crate::af_xdp) dropped: u64,
    pub(in crate::af_xdp) invalid: u64,
    tx_invalid: u64,
    /// Dropped because the receive ring was full.
    pub(in crate::af_xdp) ring_full: u64,
    /// How often the fill ring had no chunk.
    pub(in crate::af_xdp) fill_empty: u64,
    tx_empty: u64,
}

/// What `SO_MEMINFO` tells: numbers in the order of `SK_MEMINFO_`, of which later kernels may have more.
type SocketMemory = [u32; 9];

/// `SK_MEMINFO_WMEM_ALLOC`.
const WRITE_ALLOCATED: usize = 2;

/// An XDP socket at one queue of an interface, with chunks of its own: to receive, or to send.
#[derive(Debug)]
pub(in crate::af_xdp) struct XdpSocket {
    descriptor: OwnedFd,
}

impl XdpSocket {
    /// `socket(AF_XDP, SOCK_RAW)`. Fails with `EAFNOSUPPORT` where the kernel has none, `EPERM` without CAP_NET_RAW.
    pub(in crate::af_xdp) fn new() -> io::Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        // SAFETY: takes no pointers.
        let descriptor = check(i64::from(unsafe { libc::socket(libc::AF_XDP, kind, 0) }))?;
        // SAFETY: the kernel just returned this descriptor, and nothing else knows it.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        Ok(Self { descriptor })
    }

    /// Registers the chunks, of `chunk_bytes` each, and makes rings of `entries` (a power of two). The kernel keeps the pages
    /// as long as the socket lives; it writes to chunks that the fill ring gave it, until the socket is closed.
    pub(in crate::af_xdp) fn set_up(
        &self,
        umem: &Umem,
        chunk_bytes: u32,
        entries: u32,
    ) -> io::Result<(FillRing, RxRing)> {
        self.register(umem, chunk_bytes)?;
        self.set(SOL_XDP, XDP_UMEM_FILL_RING, &entries)?;
        self.set(SOL_XDP, XDP_UMEM_COMPLETION_RING, &UNUSED_ENTRIES)?;
        self.set(SOL_XDP, XDP_RX_RING, &entries)?;
        let mut offsets = MapOffsets::default();
        self.get(SOL_XDP, XDP_MMAP_OFFSETS, &mut offsets)?;
        let fill = Ring::new(
            self,
            offsets.fill,
            PGOFF_FILL_RING,
            entries,
            size_of::<u64>(),
        )?;
        let rx = Ring::new(
            self,
            offsets.rx,
            PGOFF_RX_RING,
            entries,
            size_of::<Descriptor>(),
        )?;
        Ok((FillRing::new(fill), RxRing::new(rx)))
    }

    /// The same for a socket that only sends: the kernel writes to no chunk, and reads those that the transmit ring gave it.
    pub(in crate::af_xdp) fn set_up_sending(
        &self,
        umem: &Umem,
        chunk_bytes: u32,
        entries: u32,
    ) -> io::Result<(TxRing, CompletionRing)> {
        self.register(umem, chunk_bytes)?;
        self.set(SOL_XDP, XDP_UMEM_FILL_RING, &UNUSED_ENTRIES)?;
        self.set(SOL_XDP, XDP_UMEM_COMPLETION_RING, &entries)?;
        self.set(SOL_XDP, XDP_TX_RING, &entries)?;
        let mut offsets = MapOffsets::default();
        self.get(SOL_XDP, XDP_MMAP_OFFSETS, &mut offsets)?;
        let tx = Ring::new(
            self,
            offsets.tx,
            PGOFF_TX_RING,
            entries,
            size_of::<Descriptor>(),
        )?;
        let completion = Ring::new(
            self,
            offsets.completion,
            PGOFF_COMPLETION_RING,
            entries,
            size_of::<u64>(),
        )?;
        Ok((TxRing::new(tx), CompletionRing::new(completion)))
    }

    fn register(&self, umem: &Umem, chunk_bytes: u32) -> io::Result<()> {
        let (address, bytes) = umem.registered();
        let registration = UmemRegistration {
            address,
            bytes,
            chunk_bytes,
            headroom: 0,
            flags: 0,
            padding: 0,
        };
        self.set(SOL_XDP, XDP_UMEM_REG, &registration)
    }

    /// Binds to a queue of an interface, once: to have the NIC write into the chunks itself (`zero_copy`), else the kernel copies.
    /// `fragments`: packets longer than a chunk come in several, since Linux 6.6. Fails with `EINVAL` where there is no such queue, and
    /// with what the driver says where it has no zero-copy; it can be tried again then.
    pub(in crate::af_xdp) fn bind(
        &self,
        interface_index: u32,
        queue: u32,
        zero_copy: bool,
        fragments: bool,
    ) -> io::Result<()> {
        let copying = if zero_copy { ZERO_COPY } else { COPY };
        let flags = USE_NEED_WAKEUP | copying | if fragments { USE_SG } else { 0 };
        self.bind_as(interface_index, queue, flags)
    }

    /// Binds to a queue of an interface, to send in copy mode: whatever the driver is, it is not told.
    pub(in crate::af_xdp) fn bind_to_send(
        &self,
        interface_index: u32,
        queue: u32,
    ) -> io::Result<()> {
        self.bind_as(interface_index, queue, COPY)
    }

    fn bind_as(&self, interface_index: u32, queue: u32, flags: u16) -> io::Result<()> {
        let address = Address {
            family: FAMILY,
            flags,
            interface_index,
            queue,
            shared_umem: 0,
        };
        let pointer: *const Address = &raw const address;
        // SAFETY: `address` is a sockaddr_xdp that lives across the call; bind only reads it.
        check(i64::from(unsafe {
            libc::bind(
                self.descriptor.as_raw_fd(),
                pointer.cast(),
                length_of::<Address>(),
            )
        }))?;
        Ok(())
    }

    /// Takes the error that the kernel left, if any: `ENETDOWN` when the interface was removed.
    pub(in crate::af_xdp) fn take_error(&self) -> io::Result<Option<io::Error>> {
        let error = rustix::net::sockopt::socket_error(&self.descriptor)?;
        Ok(error.err().map(io::Error::from))
    }

    /// Counters since the socket was made.
    pub(in crate::af_xdp) fn statistics(&self) -> io::Result<XdpStatistics> {
        let mut statistics = XdpStatistics::default();
        self.get(SOL_XDP, XDP_STATISTICS, &mut statistics)?;
        Ok(statistics)
    }

    /// Lets the program ask the driver for packets itself, and keeps interrupts off meanwhile where the interface defers them. Fails
    /// with `ENOPROTOOPT` before Linux 5.11, `EPERM` without CAP_NET_ADMIN.
    pub(in crate::af_xdp) fn set_busy_poll(&self, microseconds: u32) -> io::Result<()> {
        self.set(libc::SOL_SOCKET, SO_PREFER_BUSY_POLL, &1_u32)?;
        self.set(libc::SOL_SOCKET, SO_BUSY_POLL, &microseconds)?;
        self.set(libc::SOL_SOCKET, SO_BUSY_POLL_BUDGET, &BUDGET)
    }

    /// Asks the driver once. Whatever it says, the receive ring shows what came.
    pub(in crate::af_xdp) fn ask(&self) {
        // recvfrom(2) is how; an XDP socket has no bytes to copy.
        let _ = rustix::net::recv(&self.descriptor, &mut [0_u8; 0], RecvFlags::DONTWAIT);
    }

    /// Memory of the packets that the kernel made of what was sent and that nobody freed yet, in bytes. A packet's chunk is in the
    /// completion ring before the packet is gone from this sum.
    pub(in crate::af_xdp) fn bytes_under_way(&self) -> io::Result<u32> {
        let mut memory = SocketMemory::default();
        self.get(libc::SOL_SOCKET, libc::SO_MEMINFO, &mut memory)?;
        Ok(memory[WRITE_ALLOCATED])
    }

    /// Sends what the transmit ring holds, up to some of it. Fails with `EBUSY` where the driver refused a packet, which the kernel
    /// then forgot; `ENETDOWN`, `ENXIO` where the interface is down or gone.
    pub(in crate::af_xdp) fn send(&self) -> io::Result<()> {
        // sendto(2) is how; the frames are in the chunks.
        rustix::net::send(&self.descriptor, &[], SendFlags::DONTWAIT)?;
        Ok(())
    }

    fn set<T: Plain>(&self, level: c_int, option: c_int, value: &T) -> io::Result<()> {
        let pointer: *const T = value;
        // SAFETY: `pointer` is `length_of::<T>()` readable bytes that live across the call. A registration's address leads to
        // memory that its owner keeps as long as this socket (see `XdpQueue`, `XdpSender`).
        check(i64::from(unsafe {
            libc::setsockopt(
                self.descriptor.as_raw_fd(),
                level,
                option,
                pointer.cast(),
                length_of::<T>(),
            )
        }))?;
        Ok(())
    }

    /// Reads an option; what the kernel leaves out stays as it was.
    fn get<T: Plain>(&self, level: c_int, option: c_int, value: &mut T) -> io::Result<()> {
        let mut size = length_of::<T>();
        let pointer: *mut T = value;
        // SAFETY: `pointer` has room for `size` bytes, both live across the call, and any bytes are a valid Plain value.
        check(i64::from(unsafe {
            libc::getsockopt(
                self.descriptor.as_raw_fd(),
                level,
                option,
                pointer.cast(),
                &raw mut size,
            )
        }))?;
        Ok(())
    }
}

impl AsFd for XdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// C structures of integers: every bit pattern is a value.
///
/// # Safety
/// Only for such types.
unsafe trait Plain {}

// SAFETY: an integer.
unsafe impl Plain for u32 {}
// SAFETY: integers.
unsafe impl Plain for UmemRegistration {}
// SAFETY: integers.
unsafe impl Plain for MapOffsets {}
// SAFETY: integers.
unsafe impl Plain for XdpStatistics {}
// SAFETY: integers.
unsafe impl Plain for SocketMemory {}

/// The size of a C structure, as system calls take it.
fn length_of<T>() -> socklen_t {
    const { assert!(size_of::<T>() < 1024) };
    #[expect(clippy::cast_possible_truncation, reason = "asserted above")]
    let length = size_of::<T>() as socklen_t;
    length
}
