//! Packets that no cache holds: in a ring, and packed one behind the other as a capture file has them.
//!
//! Both hold the same packets, of 64, 694 and 1514 bytes, 770 on average, as many as fit. Ours are read as the analyzer reads
//! them: descriptors make 64 frames while the ring asks memory for the packets, then a filter is run on the 64. libpcap's are
//! walked by the lengths in their headers, as in a file that is mapped.

use std::time::Instant;

use retroscope_filter::{Aux, Frame, Program};
use retroscope_ring::{GroupKind, Record, Ring, RingConfig};

use super::{
    on_a_core,
    sys::Libpcap,
    traffic::{Mix, Spec},
};
use crate::{contest::Failure, memory::Memory};

/// Sizes, and how many of 10 packets have them: 770.0 bytes on average.
const SIZES: [(usize, usize); 3] = [(64, 4), (694, 2), (1514, 4)];
const MEAN_BYTES: u64 = 770;
/// Bytes of a record's header in a pcap file: seconds, fraction, captured length, length.
const HEADER_BYTES: usize = 16;
/// The order of sizes is the same in every run.
const SEED: u64 = 770;

/// What a pass over all packets found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Found {
    /// Packets seen.
    pub(crate) packets: u64,
    /// Matches; a packet that several rules match counts for each.
    pub(crate) matches: u64,
    /// Depends on which packets matched, and which rules.
    pub(crate) checksum: u64,
}

impl Found {
    /// Adds 64 packets, or the last of them, and those that match.
    #[inline(always)]
    pub(crate) fn add_set(&mut self, packets: usize, mut set: u64) {
        self.matches += u64::from(set.count_ones());
        while set != 0 {
            self.add_to_sum(u64::from(set.trailing_zeros()), 1);
            set &= set - 1;
        }
        self.packets += packets as u64;
    }

    /// Adds a match of a packet that [`Self::add_set`] will count, by its place among them.
    #[inline(always)]
    pub(crate) fn add(&mut self, place: usize, rule: u64) {
        self.matches += 1;
        self.add_to_sum(place as u64, rule + 1);
    }

    #[inline(always)]
    fn add_to_sum(&mut self, place: u64, factor: u64) {
        let number = (self.packets + place + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.checksum = self.checksum.wrapping_add(number.wrapping_mul(factor));
    }

    /// Compares with what must have been found.
    ///
    /// # Errors
    /// [`Failure::Count`], [`Failure::Checksum`].
    pub(crate) fn check(self, expected: Self) -> Result<(), Failure> {
        for (seen, expected) in [
            (self.packets, expected.packets),
            (self.matches, expected.matches),
        ] {
            if seen != expected {
                return Err(Failure::Count { expected, seen });
            }
        }
        if self.checksum != expected.checksum {
            return Err(Failure::Checksum {
                expected: expected.checksum,
                seen: self.checksum,
            });
        }
        Ok(())
    }
}

/// The packets in their order.
struct Packets {
    mix: Mix,
    sizes: fastrand::Rng,
    frame: Vec<u8>,
}

impl Packets {
    fn new() -> Self {
        Self {
            mix: Mix::new(),
            sizes: fastrand::Rng::with_seed(SEED),
            frame: vec![0; SIZES[2].0],
        }
    }

    fn next(&mut self) -> Option<(Spec, &[u8])> {
        let spec = self.mix.next()?;
        let mut ticket = self.sizes.usize(0..10);
        let size = SIZES.iter().find(|(_, share)| {
            let is_it = ticket < *share;
            ticket = ticket.wrapping_sub(*share);
            is_it
        });
        let frame = &mut self.frame[..size?.0];
        spec.write(frame);
        Some((spec, frame))
    }
}

/// A ring full of packets.
#[derive(Debug)]
pub(crate) struct Cold {
    ring: Ring,
    /// Packets stored.
    stored: usize,
    /// Those of them that are not in the ring any more.
    evicted: usize,
}

impl Cold {
    /// Fills a ring once around and a bit, so that all it retains was stored over older packets.
    ///
    /// # Errors
    /// [`Failure::System`]: the ring cannot be had, or refused a packet.
    pub(crate) fn new(ring_bytes: u64) -> Result<Self, Failure> {
        let config = RingConfig::new(ring_bytes, 1, 1);
        let ring =
            Ring::new(&config, None).map_err(|error| Failure::system("making a ring", error))?;
        let mut producer = ring
            .producer()
            .map_err(|error| Failure::system("making a producer", error))?;
        let mut packets = Packets::new();
        let count = ring.bytes() / MEAN_BYTES * 11 / 10;
        for number in 0..count {
            let Some((_, frame)) = packets.next() else {
                break;
            };
            producer
                .store(&Record::whole(number.cast_signed(), 0, frame))
                .map_err(|error| Failure::system("store", error))?;
        }
        producer.publish();
        let evicted = ring.statistics().evicted_packets;
        let count_of = |packets| usize::try_from(packets).unwrap_or(usize::MAX);
        Ok(Self {
            stored: count_of(count),
            evicted: count_of(evicted),
            ring,
        })
    }

    /// What the packets in the ring were made from, in their order.
    pub(crate) fn specs(&self) -> impl Iterator<Item = Spec> {
        Mix::new().take(self.stored).skip(self.evicted)
    }

    /// Reads all packets, 64 at a time, on a thread of its own: nanoseconds a packet, and what `take` added up.
    ///
    /// # Errors
    /// [`Failure`].
    pub(crate) fn read(
        &self,
        take: impl FnMut(&mut Found, &[Frame<'_>]) + Send,
    ) -> Result<(f64, Found), Failure> {
        let mut take = take;
        let reader = self.ring.group("scan", GroupKind::Lapped);
        let mut reader = reader.map_err(|error| Failure::system("making a reader", error))?;
        let (found, seconds) = on_a_core(|| {
            let start = Instant::now();
            let mut found = Found::default();
            while let Some(batch) = reader.next() {
                let mut packets = batch.into_iter();
                let mut frames = [Frame::new(&[], 0, Aux::default()); Program::MANY];
                loop {
                    let mut count = 0;
                    for (frame, packet) in frames.iter_mut().zip(packets.by_ref()) {
                        *frame = Frame::new(packet.data, packet.wire_len, Aux::default());
                        count += 1;
                    }
                    if count == 0 {
                        break;
                    }
                    take(&mut found, &frames[..count]);
                }
            }
            (found, start.elapsed().as_secs_f64())
        })?;
        Ok((seconds * 1e9 / found.packets as f64, found))
    }

    /// Reads all packets with one program.
    ///
    /// # Errors
    /// [`Failure`].
    pub(crate) fn filter(&self, program: &Program) -> Result<(f64, Found), Failure> {
        self.read(|found, frames| found.add_set(frames.len(), program.run_many(frames)))
    }

    /// The same with libpcap's `bpf_filter` on each.
    ///
    /// # Errors
    /// [`Failure`].
    pub(crate) fn filter_by(&self, libpcap: &Libpcap) -> Result<(f64, Found), Failure> {
        self.read(|found, frames| {
            let set = frames.iter().enumerate().fold(0, |set, (index, frame)| {
                let is_one = libpcap.run(frame.data(), frame.wire_len()) != 0;
                set | u64::from(is_one) << index
            });
            found.add_set(frames.len(), set);
        })
    }
}

/// Fills `memory` with as many packets as fit, packed as in a pcap file.
pub(crate) fn pack(memory: &mut Memory) {
    let bytes = memory.bytes_mut();
    let mut packets = Packets::new();
    let mut used = 0;
    while let Some((_, frame)) = packets.next() {
        let Some(record) = bytes.get_mut(used..used + HEADER_BYTES + frame.len()) else {
            break;
        };
        let (header, place) = record.split_at_mut(HEADER_BYTES);
        header.fill(0);
        #[expect(clippy::cast_possible_truncation, reason = "1514 at most")]
        let length = (frame.len() as u32).to_ne_bytes();
        header[8..12].copy_from_slice(&length);
        header[12..].copy_from_slice(&length);
        place.copy_from_slice(frame);
        used += record.len();
    }
    bytes[used..].fill(0); // a length of 0 ends the walk
}

/// Goes from packet to packet by their lengths, on a thread of its own: nanoseconds a packet, and those that `takes` takes.
///
/// # Errors
/// [`Failure::Panicked`].
pub(crate) fn walk(
    memory: &mut Memory,
    takes: impl Fn(&[u8], u32) -> bool + Sync,
) -> Result<(f64, Found), Failure> {
    let bytes: &[u8] = memory.bytes_mut();
    let word = |header: &[u8; HEADER_BYTES], at: usize| {
        u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
    };
    let (found, seconds) = on_a_core(|| {
        let start = Instant::now();
        let mut found = Found::default();
        let mut rest = bytes;
        while let Some((header, frames)) = rest.split_first_chunk() {
            let (captured, wire_len) = (word(header, 8) as usize, word(header, 12));
            if captured == 0 || captured > frames.len() {
                break;
            }
            let (frame, after) = frames.split_at(captured);
            found.add_set(1, u64::from(takes(frame, wire_len)));
            rest = after;
        }
        (found, start.elapsed().as_secs_f64())
    })?;
    Ok((seconds * 1e9 / found.packets as f64, found))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::{PORT, context};

    #[test]
    fn all_that_is_stored_is_read_and_walked() {
        let cold = Cold::new(32 << 20).unwrap();
        let program = retroscope_filter::compile(PORT, context()).unwrap();
        let libpcap = Libpcap::compile(PORT).unwrap();
        let (_, found) = cold.filter(&program).unwrap();
        assert!(found.packets > 30_000 && found.matches > 50, "{found:?}");
        assert_eq!(cold.filter_by(&libpcap).unwrap().1, found);
        assert_eq!(cold.specs().count() as u64, found.packets);
        assert!(cold.evicted > 0);

        let mut memory = Memory::new(4 << 20).unwrap();
        pack(&mut memory);
        let walked = walk(&mut memory, |frame, wire_len| {
            libpcap.run(frame, wire_len) != 0
        });
        let (_, walked) = walked.unwrap();
        assert!(walked.packets > 4_000 && walked.matches > 5, "{walked:?}");
        let mut other = walked;
        other.checksum ^= 1;
        assert!(matches!(walked.check(other), Err(Failure::Checksum { .. })));
    }
}
