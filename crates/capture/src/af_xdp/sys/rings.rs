//! The rings of an XDP socket, which define the owner of each chunk.
//!
//! # Who owns what
//! One side writes a ring: it stores entries, then its *producer* index. The other side loads that
//! index, reads entries, then stores its *consumer* index. Indices only grow, modulo 2^32. Kernel
//! side: `net/xdp/xsk_queue.h`, which describes the protocol at its top.
//!
//! To receive, the fill ring gives chunks to the kernel, and the receive ring returns them with
//! packets. To send, the transmit ring and the completion ring do the same.
//!
//! Ordering edges:
//!
//! - **X1** the kernel's release store of a producer index, after its writes of entries and its
//!   last access to the chunks, paired with the Acquire load in [`ConsumerRing::available`].
//! - **X2** the Release store in [`ConsumerRing::release`], after our reads of the entries, paired
//!   with the kernel's load, on whose value the kernel's next writes of entries depend.
//! - **X3** the Release store in [`ProducerRing::publish`], after our stores of entries and all our
//!   accesses to the chunks, paired with the kernel's acquire load.
//! - **X4** the kernel's release store of a consumer index, paired with the Acquire load in
//!   [`ProducerRing::room`].
#![expect(unsafe_code, reason = "memory shared with the kernel")]

use std::{
    io,
    os::fd::AsFd,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

use memmap2::MmapRaw;
use rustix::net::xdp::XdpRingOffset;

use crate::sys::map_shared;

/// `XDP_RING_NEED_WAKEUP`.
const NEED_WAKEUP: u32 = 1;

/// `struct xdp_desc`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct XdpDescriptor {
    /// Offset of the data, in bytes from the start of the chunks.
    pub(crate) address: u64,
    pub(crate) length: u32,
    /// Bit 0 (`XDP_PKT_CONTD`): the packet continues in the next descriptor.
    pub(crate) options: u32,
}

#[derive(Debug)]
pub(super) struct XdpRing {
    mapping: MmapRaw,
    offsets: [usize; 4],
    /// Number of entries, a power of two.
    entries: u32,
    entry_bytes: usize,
}

/// Positions in [`XdpRing::offsets`].
const PRODUCER: usize = 0;
const CONSUMER: usize = 1;
const ENTRIES: usize = 2;
const FLAGS: usize = 3;

impl XdpRing {
    /// Maps the ring of `socket` at the kernel's page offset `page`.
    pub(super) fn new(
        socket: impl AsFd,
        offsets: XdpRingOffset,
        page: u64,
        entries: u32,
        entry_bytes: usize,
    ) -> io::Result<Self> {
        let unknown = || io::Error::other("rings of an unknown layout");
        let flags = offsets.flags.ok_or_else(unknown)?;
        let offsets = [offsets.producer, offsets.consumer, offsets.desc, flags];
        let offsets = offsets.map(|offset| usize::try_from(offset).unwrap_or(usize::MAX));
        let bytes = offsets[ENTRIES].saturating_add((entries as usize).saturating_mul(entry_bytes));
        let is_inside = |place: usize| place.is_multiple_of(4) && place.saturating_add(4) <= bytes;
        if !entries.is_power_of_two()
            || !offsets.into_iter().all(is_inside)
            || !offsets[ENTRIES].is_multiple_of(8)
        {
            return Err(unknown());
        }
        Ok(Self {
            mapping: map_shared(socket, bytes, page)?,
            offsets,
            entries,
            entry_bytes,
        })
    }

    /// One of the words that both sides access.
    fn word(&self, which: usize) -> &AtomicU32 {
        let word = self
            .mapping
            .as_mut_ptr()
            .wrapping_add(self.offsets[which])
            .cast();
        // SAFETY: the word is in the mapping and is aligned, as `new` checked; it is only accessed
        // atomically.
        unsafe { AtomicU32::from_ptr(word) }
    }

    /// The 64-bit half `half` of the entry at `index`, modulo the ring's size.
    fn half(&self, index: u32, half: usize) -> &AtomicU64 {
        assert!(half < self.entry_bytes / 8);
        let entry = (index & (self.entries - 1)) as usize * self.entry_bytes;
        let place = self.offsets[ENTRIES] + entry + 8 * half;
        let word = self.mapping.as_mut_ptr().wrapping_add(place).cast();
        // SAFETY: `new` made the mapping large enough for all entries, and checked their alignment
        // to 8 bytes.
        // Atomic: a kernel that breaks the protocol then causes no undefined behaviour.
        unsafe { AtomicU64::from_ptr(word) }
    }
}

/// A ring that gives chunks to the kernel: fill, transmit.
#[derive(Debug)]
pub(crate) struct ProducerRing {
    ring: XdpRing,
    /// Our producer index.
    next: u32,
}

impl ProducerRing {
    /// Wraps a new ring, whose indices are 0.
    pub(super) fn new(ring: XdpRing) -> Self {
        Self { ring, next: 0 }
    }

    fn room(&self) -> u32 {
        // X4: Acquire, pairs with the kernel's release of entries that it has read.
        let consumed = self.ring.word(CONSUMER).load(Ordering::Acquire);
        let taken = self.next.wrapping_sub(consumed).min(self.ring.entries);
        self.ring.entries - taken
    }

    /// Whether the kernel has consumed all entries.
    pub(crate) fn is_empty(&self) -> bool {
        self.room() == self.ring.entries
    }

    /// Gives chunks to the kernel through a fill ring, as many as there is room for, and returns
    /// their number. The caller must not read these chunks until the receive ring returns them.
    pub(crate) fn give(&mut self, chunks: &[u64]) -> usize {
        let count = chunks.len().min(self.room() as usize);
        for chunk in &chunks[..count] {
            // Relaxed: published by X3.
            self.ring
                .half(self.next, 0)
                .store(*chunk, Ordering::Relaxed);
            self.next = self.next.wrapping_add(1);
        }
        if count > 0 {
            self.publish();
        }
        count
    }

    /// Appends a descriptor to a transmit ring. The caller must have at most as many descriptors in
    /// flight as the ring has entries.
    pub(crate) fn put(&mut self, descriptor: XdpDescriptor) {
        let [a, b, c, d] = descriptor.length.to_ne_bytes();
        let [e, f, g, h] = descriptor.options.to_ne_bytes();
        let rest = u64::from_ne_bytes([a, b, c, d, e, f, g, h]);
        // Relaxed, both: published by X3.
        let address = self.ring.half(self.next, 0);
        address.store(descriptor.address, Ordering::Relaxed);
        self.ring.half(self.next, 1).store(rest, Ordering::Relaxed);
        self.next = self.next.wrapping_add(1);
    }

    /// Gives the stored entries to the kernel. The caller must not write to the chunks until
    /// another ring returns them.
    pub(crate) fn publish(&self) {
        // X3: Release, after the entries and our accesses to the chunks.
        self.ring.word(PRODUCER).store(self.next, Ordering::Release);
    }

    /// Whether the driver sleeps and needs a wake-up (by poll(2)) for new chunks.
    pub(crate) fn needs_wakeup(&self) -> bool {
        // Relaxed: a hint; if this load misses the flag, a later check sees the flag.
        self.ring.word(FLAGS).load(Ordering::Relaxed) & NEED_WAKEUP != 0
    }
}

/// A ring that gives chunks to this process: receive, completion.
#[derive(Debug)]
pub(crate) struct ConsumerRing {
    ring: XdpRing,
    /// Our consumer index.
    next: u32,
}

impl ConsumerRing {
    pub(super) fn new(ring: XdpRing) -> Self {
        Self { ring, next: 0 }
    }

    /// Number of entries that wait, at most the size of the ring.
    pub(crate) fn available(&self) -> u32 {
        // X1: Acquire, pairs with the kernel's release of the entries and of the chunks.
        let produced = self.ring.word(PRODUCER).load(Ordering::Acquire);
        produced.wrapping_sub(self.next).min(self.ring.entries)
    }

    /// The descriptor of a receive ring at `index` after the first waiting entry. Valid only for
    /// `index < available()`.
    pub(crate) fn peek(&self, index: u32) -> XdpDescriptor {
        let at = self.next.wrapping_add(index);
        // Relaxed: ordered by X1.
        let address = self.ring.half(at, 0).load(Ordering::Relaxed);
        let rest = self.ring.half(at, 1).load(Ordering::Relaxed).to_ne_bytes();
        let [a, b, c, d, e, f, g, h] = rest;
        XdpDescriptor {
            address,
            length: u32::from_ne_bytes([a, b, c, d]),
            options: u32::from_ne_bytes([e, f, g, h]),
        }
    }

    /// Returns `count` entries of this ring to the kernel. The chunks stay ours until we give them
    /// to the kernel through another ring.
    pub(crate) fn release(&mut self, count: u32) {
        self.next = self.next.wrapping_add(count);
        // X2: Release, after our reads of the entries.
        self.ring.word(CONSUMER).store(self.next, Ordering::Release);
    }
}

/// Rings without a kernel: the tests play its part.
#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::map_zeros;

    const ENTRIES_OF_TEST: u32 = 8;

    fn ring(entry_bytes: usize, start: u32) -> XdpRing {
        let ring = XdpRing {
            mapping: map_zeros(4096).unwrap(),
            offsets: [0, 64, 192, 128],
            entries: ENTRIES_OF_TEST,
            entry_bytes,
        };
        for which in [PRODUCER, CONSUMER] {
            ring.word(which).store(start, Ordering::Relaxed);
        }
        ring
    }

    /// Indices around the wrap of 32 bits, and elsewhere.
    const STARTS: [u32; 3] = [0, u32::MAX - 3, 12_345];

    #[test]
    fn the_fill_ring_takes_what_it_has_room_for() {
        for start in STARTS {
            let mut fill = ProducerRing {
                ring: ring(8, start),
                next: start,
            };
            assert_eq!(fill.give(&[]), 0);
            let chunks: Vec<u64> = (0..20).map(|chunk| chunk * 2048).collect();
            let (mut given, mut taken) = (0, Vec::new());
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
            let mut rx = ConsumerRing {
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
                    let descriptor = XdpDescriptor {
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
            // With an impossible producer index, the number of entries is the size of the ring.
            rx.ring
                .word(PRODUCER)
                .store(rx.next.wrapping_sub(1), Ordering::Release);
            assert_eq!(rx.available(), ENTRIES_OF_TEST);
        }
    }

    #[test]
    fn what_is_sent_comes_back() {
        for start in STARTS {
            let mut tx = ProducerRing {
                ring: ring(16, start),
                next: start,
            };
            let mut completion = ConsumerRing {
                ring: ring(8, start),
                next: start,
            };
            let mut seen = 0;
            for round in 0..20 {
                let count = round % (ENTRIES_OF_TEST + 1);
                for number in seen..seen + count {
                    tx.put(XdpDescriptor {
                        address: u64::from(number) << 11,
                        length: 60 + number,
                        options: number,
                    });
                }
                let at = start.wrapping_add(seen);
                let producer = tx.ring.word(PRODUCER);
                assert_eq!(producer.load(Ordering::Acquire), at, "not published");
                tx.publish();
                assert_eq!(producer.load(Ordering::Acquire), at.wrapping_add(count));
                assert_eq!(tx.is_empty(), count == 0);
                let consumer = tx.ring.word(CONSUMER);
                consumer.store(at.wrapping_add(count), Ordering::Release);
                assert!(tx.is_empty());
                for number in seen..seen + count {
                    let at = start.wrapping_add(number);
                    let address = tx.ring.half(at, 0).load(Ordering::Relaxed);
                    let rest = tx.ring.half(at, 1).load(Ordering::Relaxed).to_ne_bytes();
                    let [a, b, c, d, e, f, g, h] = rest;
                    assert_eq!(address, u64::from(number) << 11);
                    assert_eq!(u32::from_ne_bytes([a, b, c, d]), 60 + number);
                    assert_eq!(u32::from_ne_bytes([e, f, g, h]), number);
                }
                assert_eq!(completion.available(), 0);
                seen += count;
                completion
                    .ring
                    .word(PRODUCER)
                    .store(start.wrapping_add(seen), Ordering::Release);
                assert_eq!(completion.available(), count);
                completion.release(count);
                let consumed = completion.ring.word(CONSUMER).load(Ordering::Acquire);
                assert_eq!(consumed, start.wrapping_add(seen));
            }
            completion
                .ring
                .word(PRODUCER)
                .store(completion.next.wrapping_sub(1), Ordering::Release);
            assert_eq!(completion.available(), ENTRIES_OF_TEST);
        }
    }
}
