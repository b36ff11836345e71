//! XDP sockets and their rings: `Documentation/networking/af_xdp.rst` of the kernel.
//!
//! # Who owns what
//! The fill ring gives chunks to the kernel, the receive ring gives them back with packets. Each ring is written by one
//! side: it stores entries, then its *producer* index; the other side loads that index, reads entries, then stores its
//! *consumer* index. Indices only grow, modulo 2^32. Kernel side: `net/xdp/xsk_queue.h`, which describes the protocol at its
//! top.
//!
//! Ordering edges: **X1** the kernel's release store of the receive ring's producer, paired with the Acquire load in
//! [`RxRing::available`]; **X2** the Release store in [`RxRing::release`], after our reads of the entries, paired with the
//! kernel's acquire load; **X3** the Release store in [`FillRing::give`], after our stores of entries and all our reads of
//! the chunks, paired with the kernel's acquire load; **X4** the kernel's release store of the fill ring's consumer, paired
//! with the Acquire load in [`FillRing::give`].
#![expect(
    unsafe_code,
    reason = "system calls, and memory shared with the kernel"
)]

use std::{
    io,
    mem::size_of,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

use libc::{c_int, socklen_t};
use rustix::net::RecvFlags;

use super::{
    check,
    memory::{Mapping, Umem},
};

const SOL_XDP: c_int = 283;
const XDP_MMAP_OFFSETS: c_int = 1;
const XDP_RX_RING: c_int = 2;
const XDP_UMEM_REG: c_int = 4;
const XDP_UMEM_FILL_RING: c_int = 5;
const XDP_UMEM_COMPLETION_RING: c_int = 6;
const XDP_STATISTICS: c_int = 7;
const XDP_OPTIONS: c_int = 8;
const PGOFF_RX_RING: u64 = 0;
const PGOFF_FILL_RING: u64 = 0x1_0000_0000;
const FAMILY: u16 = 44;
const _: () = assert!(FAMILY as c_int == libc::AF_XDP);

/// `XDP_RING_NEED_WAKEUP`.
const NEED_WAKEUP: u32 = 1;

/// Bits of `sxdp_flags`: wake-ups on demand, and packets of several chunks. Neither `XDP_COPY` nor `XDP_ZEROCOPY`: the kernel
/// then takes zero-copy where the driver has it.
const USE_NEED_WAKEUP: u16 = 1 << 3;
const USE_SG: u16 = 1 << 4;

/// Bit of [`XDP_OPTIONS`].
const OPTION_ZERO_COPY: u32 = 1;

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

/// `struct xdp_ring_offset`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
struct RingOffsets {
    producer: u64,
    consumer: u64,
    entries: u64,
    flags: u64,
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

/// `struct xdp_desc`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(in crate::af_xdp) struct Descriptor {
    /// Where the data start, in bytes from the start of the chunks.
    pub(in crate::af_xdp) address: u64,
    /// Bytes of data.
    pub(in crate::af_xdp) length: u32,
    /// Bit 0 (`XDP_PKT_CONTD`): the packet goes on in the next descriptor.
    pub(in crate::af_xdp) options: u32,
}

/// An XDP socket that receives from one queue of an interface, with the chunks of its own that the kernel fills.
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
        let (address, bytes) = umem.registered();
        let registration = UmemRegistration {
            address,
            bytes,
            chunk_bytes,
            headroom: 0,
            flags: 0,
            padding: 0,
        };
        self.set(SOL_XDP, XDP_UMEM_REG, &registration)?;
        self.set(SOL_XDP, XDP_UMEM_FILL_RING, &entries)?;
        // Nothing is sent, but the kernel wants one.
        self.set(SOL_XDP, XDP_UMEM_COMPLETION_RING, &64_u32)?;
        self.set(SOL_XDP, XDP_RX_RING, &entries)?;
        let mut offsets = MapOffsets::default();
        self.get(XDP_MMAP_OFFSETS, &mut offsets)?;
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
        Ok((
            FillRing {
                ring: fill,
                next: 0,
            },
            RxRing { ring: rx, next: 0 },
        ))
    }

    /// Binds to a queue of an interface. `fragments`: packets longer than a chunk come in several, since Linux 6.6. Fails with
    /// `EINVAL` where there is no such queue.
    pub(in crate::af_xdp) fn bind(
        &self,
        interface_index: u32,
        queue: u32,
        fragments: bool,
    ) -> io::Result<()> {
        let address = Address {
            family: FAMILY,
            flags: USE_NEED_WAKEUP | if fragments { USE_SG } else { 0 },
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

    /// Whether the NIC writes into the chunks itself; else the kernel copies. Of a bound socket.
    pub(in crate::af_xdp) fn is_zero_copy(&self) -> io::Result<bool> {
        let mut options = 0_u32;
        self.get(XDP_OPTIONS, &mut options)?;
        Ok(options & OPTION_ZERO_COPY != 0)
    }

    /// Counters since the socket was made.
    pub(in crate::af_xdp) fn statistics(&self) -> io::Result<XdpStatistics> {
        let mut statistics = XdpStatistics::default();
        self.get(XDP_STATISTICS, &mut statistics)?;
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

    fn set<T: Plain>(&self, level: c_int, option: c_int, value: &T) -> io::Result<()> {
        let pointer: *const T = value;
        // SAFETY: `pointer` is `length_of::<T>()` readable bytes that live across the call. A registration's address leads to
        // memory that its owner keeps as long as this socket (see `XdpQueue`).
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
    fn get<T: Plain>(&self, option: c_int, value: &mut T) -> io::Result<()> {
        let mut size = length_of::<T>();
        let pointer: *mut T = value;
        // SAFETY: `pointer` has room for `size` bytes, both live across the call, and any bytes are a valid Plain value.
        check(i64::from(unsafe {
            libc::getsockopt(
                self.descriptor.as_raw_fd(),
                SOL_XDP,
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

/// The size of a C structure, as system calls take it.
fn length_of<T>() -> socklen_t {
    const { assert!(size_of::<T>() < 1024) };
    #[expect(clippy::cast_possible_truncation, reason = "asserted above")]
    let length = size_of::<T>() as socklen_t;
    length
}

/// A mapped ring.
#[derive(Debug)]
struct Ring {
    mapping: Mapping,
    offsets: [usize; 4],
    /// Entries, a power of two.
    entries: u32,
    entry_bytes: usize,
}

/// Places in [`Ring::offsets`].
const PRODUCER: usize = 0;
const CONSUMER: usize = 1;
const ENTRIES: usize = 2;
const FLAGS: usize = 3;

impl Ring {
    fn new(
        socket: &XdpSocket,
        offsets: RingOffsets,
        page: u64,
        entries: u32,
        entry_bytes: usize,
    ) -> io::Result<Self> {
        let offset = |value: u64| usize::try_from(value).map_err(io::Error::other);
        let offsets = [
            offset(offsets.producer)?,
            offset(offsets.consumer)?,
            offset(offsets.entries)?,
            offset(offsets.flags)?,
        ];
        let bytes = offsets[ENTRIES].saturating_add((entries as usize).saturating_mul(entry_bytes));
        let is_inside = |place: usize| place.is_multiple_of(4) && place.saturating_add(4) <= bytes;
        if !entries.is_power_of_two()
            || !offsets.into_iter().all(is_inside)
            || !offsets[ENTRIES].is_multiple_of(8)
        {
            return Err(io::Error::other("rings of an unknown layout"));
        }
        Ok(Self {
            mapping: Mapping::shared(socket, bytes, page)?,
            offsets,
            entries,
            entry_bytes,
        })
    }

    /// One of the words that both sides know.
    fn word(&self, which: usize) -> &AtomicU32 {
        let word = self
            .mapping
            .start()
            .as_ptr()
            .wrapping_add(self.offsets[which])
            .cast();
        // SAFETY: the word lies in the mapping and is aligned, as `new` checked; it is only accessed atomically.
        unsafe { AtomicU32::from_ptr(word) }
    }

    /// The 64-bit half `half` of the entry at `index`, taken modulo the ring.
    fn half(&self, index: u32, half: usize) -> &AtomicU64 {
        assert!(half < self.entry_bytes / 8);
        let entry = (index & (self.entries - 1)) as usize * self.entry_bytes;
        let place = self.offsets[ENTRIES] + entry + 8 * half;
        let word = self.mapping.start().as_ptr().wrapping_add(place).cast();
        // SAFETY: entries lie in the mapping, as `new` made it, aligned to 8 bytes as it checked. The atomic type costs
        // nothing here and keeps a kernel that breaks the protocol from being undefined behaviour.
        unsafe { AtomicU64::from_ptr(word) }
    }
}

/// The ring that gives chunks to the kernel.
#[derive(Debug)]
pub(in crate::af_xdp) struct FillRing {
    ring: Ring,
    /// Our producer index.
    next: u32,
}

impl FillRing {
    /// Gives chunks to the kernel, as many as there is room for, and returns how many that were. They must not be read
    /// any more.
    pub(in crate::af_xdp) fn give(&mut self, chunks: &[u64]) -> usize {
        // X4: Acquire, pairs with the kernel's release of entries that it has read.
        let consumed = self.ring.word(CONSUMER).load(Ordering::Acquire);
        let taken = self.next.wrapping_sub(consumed).min(self.ring.entries);
        let room = (self.ring.entries - taken) as usize;
        let count = chunks.len().min(room);
        for chunk in &chunks[..count] {
            // Relaxed: published by X3.
            self.ring
                .half(self.next, 0)
                .store(*chunk, Ordering::Relaxed);
            self.next = self.next.wrapping_add(1);
        }
        if count > 0 {
            // X3: Release, after the entries and our reads of the chunks.
            self.ring.word(PRODUCER).store(self.next, Ordering::Release);
        }
        count
    }

    /// Whether the driver sleeps and must be told (by poll(2)) that there are chunks.
    pub(in crate::af_xdp) fn needs_wakeup(&self) -> bool {
        // Relaxed: a hint; the next look sees it at the latest.
        self.ring.word(FLAGS).load(Ordering::Relaxed) & NEED_WAKEUP != 0
    }
}

/// The ring that gives packets to this process.
#[derive(Debug)]
pub(in crate::af_xdp) struct RxRing {
    ring: Ring,
    /// Our consumer index.
    next: u32,
}

impl RxRing {
    /// Descriptors that wait, at most as many as the ring has.
    pub(in crate::af_xdp) fn available(&self) -> u32 {
        // X1: Acquire, pairs with the kernel's release of the descriptors and of the bytes in the chunks.
        let produced = self.ring.word(PRODUCER).load(Ordering::Acquire);
        produced.wrapping_sub(self.next).min(self.ring.entries)
    }

    /// The descriptor `index` places behind the first that waits. Means something only for `index < available()`.
    pub(in crate::af_xdp) fn peek(&self, index: u32) -> Descriptor {
        let at = self.next.wrapping_add(index);
        // Relaxed: ordered by X1.
        let address = self.ring.half(at, 0).load(Ordering::Relaxed);
        let rest = self.ring.half(at, 1).load(Ordering::Relaxed).to_ne_bytes();
        let [a, b, c, d, e, f, g, h] = rest;
        Descriptor {
            address,
            length: u32::from_ne_bytes([a, b, c, d]),
            options: u32::from_ne_bytes([e, f, g, h]),
        }
    }

    /// Gives `count` descriptors back; the chunks stay ours until the fill ring gets them.
    pub(in crate::af_xdp) fn release(&mut self, count: u32) {
        self.next = self.next.wrapping_add(count);
        // X2: Release, after our reads of the descriptors.
        self.ring.word(CONSUMER).store(self.next, Ordering::Release);
    }
}

/// Rings without a kernel: the tests play its part.
#[cfg(test)]
mod tests {
    use super::*;

    const ENTRIES_OF_TEST: u32 = 8;

    /// A ring whose indices stand at `start`.
    fn ring(entry_bytes: usize, start: u32) -> Ring {
        let ring = Ring {
            mapping: Mapping::anonymous(4096).unwrap(),
            offsets: [0, 64, 192, 128],
            entries: ENTRIES_OF_TEST,
            entry_bytes,
        };
        for which in [PRODUCER, CONSUMER] {
            ring.word(which).store(start, Ordering::Relaxed);
        }
        ring
    }

    /// Around the wrap of 32 bits, and elsewhere.
    const STARTS: [u32; 3] = [0, u32::MAX - 3, 12_345];

    #[test]
    fn the_fill_ring_takes_what_it_has_room_for() {
        for start in STARTS {
            let mut fill = FillRing {
                ring: ring(8, start),
                next: start,
            };
            assert_eq!(fill.give(&[]), 0);
            let chunks: Vec<u64> = (0..20).map(|chunk| chunk * 2048).collect();
            let (mut given, mut taken) = (0, Vec::new());
            // Eight fit; the kernel takes three at a time, and so many fit again.
            for room in [8, 3, 3, 3, 3, 0] {
                let now = fill.give(&chunks[given..]);
                assert_eq!(now, room);
                given += now;
                let consumer = fill.ring.word(CONSUMER).load(Ordering::Relaxed);
                let producer = fill.ring.word(PRODUCER).load(Ordering::Acquire);
                let waiting = producer.wrapping_sub(consumer);
                assert_eq!(waiting as usize, given - taken.len());
                let count = waiting.min(3);
                for index in 0..count {
                    let entry = fill.ring.half(consumer.wrapping_add(index), 0);
                    taken.push(entry.load(Ordering::Relaxed));
                }
                fill.ring
                    .word(CONSUMER)
                    .store(consumer.wrapping_add(count), Ordering::Release);
            }
            assert_eq!(given, 20);
            assert_eq!(taken, chunks[..18]);
        }
    }

    #[test]
    fn the_receive_ring_gives_what_was_put_in() {
        for start in STARTS {
            let mut rx = RxRing {
                ring: ring(16, start),
                next: start,
            };
            let mut expected = 0_u32;
            for round in 0..10 {
                let count = round % (ENTRIES_OF_TEST + 1);
                let producer = rx.ring.word(PRODUCER).load(Ordering::Relaxed);
                for index in 0..count {
                    let number = expected + index;
                    let at = producer.wrapping_add(index);
                    let [a, b, c, d] = number.to_ne_bytes();
                    let rest = u64::from_ne_bytes([a, b, c, d, 1, 0, 0, 0]);
                    rx.ring
                        .half(at, 0)
                        .store(u64::from(number) << 11, Ordering::Relaxed);
                    rx.ring.half(at, 1).store(rest, Ordering::Relaxed);
                }
                rx.ring
                    .word(PRODUCER)
                    .store(producer.wrapping_add(count), Ordering::Release);
                assert_eq!(rx.available(), count);
                for index in 0..count {
                    let number = expected + index;
                    let descriptor = Descriptor {
                        address: u64::from(number) << 11,
                        length: number,
                        options: 1,
                    };
                    assert_eq!(rx.peek(index), descriptor);
                }
                rx.release(count);
                assert_eq!(rx.available(), 0);
                let consumer = rx.ring.word(CONSUMER).load(Ordering::Acquire);
                assert_eq!(consumer, producer.wrapping_add(count));
                expected += count;
            }
            // An index that makes no sense is not believed.
            rx.ring
                .word(PRODUCER)
                .store(rx.next.wrapping_sub(1), Ordering::Release);
            assert_eq!(rx.available(), ENTRIES_OF_TEST);
        }
    }
}
