//! Packets that no cache contains: in a ring, and packed one after another as in a capture file.
//!
//! The ring and the packed memory have packets of the same sequence, of 64, 694 and 1514 bytes in
//! random order, 770 on average. The ring has the last packets of the sequence, the packed memory
//! the first, as many as fit. A filter reads the ring as the analyzer does: descriptors yield up to
//! 64 frames while the ring prefetches the packets, then the filter runs on these frames. The
//! packed packets are walked by the lengths in their headers, as in a mapped file. Each pass covers
//! its whole memory, at full scale much more than the caches have. It then leaves nothing in the
//! caches for the other pass, and only the end of its memory for its own next pass.

use retroscope_filter::{Aux, FilterFrame, Program};
use retroscope_ring::{GroupKind, Reader, Ring, RingConfig};

use super::traffic::{Mix, Spec};
use crate::{
    contest::on_a_core,
    measure::{Failure, check_count, check_sum},
    memory::Memory,
    ring::{made, store_one},
};

/// Equally likely sizes: 770.0 bytes on average.
const SIZES: [usize; 10] = [64, 64, 64, 64, 694, 694, 1514, 1514, 1514, 1514];
const MEAN_BYTES: u64 = 770;
/// Bytes of a record's header in a pcap file: seconds, fraction, captured length, length.
const HEADER_BYTES: usize = 16;
/// Seed of the sizes: their order is the same in every run.
const SEED: u64 = 770;

/// The result of a pass over all packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct PassResult {
    /// Number of packets seen.
    pub(super) packets: u64,
    /// Number of matches. A packet that several rules match counts for each rule.
    pub(super) matches: u64,
    /// A checksum: of a filter, over the matching packets and rules; of a scan, over lengths and 8
    /// bytes of each packet.
    pub(super) checksum: u64,
}

impl PassResult {
    /// Adds up to 64 packets, and the set of matching packets.
    #[inline(always)]
    pub(super) fn add_set(&mut self, packets: usize, mut set: u64) {
        self.matches += u64::from(set.count_ones());
        while set != 0 {
            self.add_to_sum(u64::from(set.trailing_zeros()), 1);
            set &= set - 1;
        }
        self.packets += packets as u64;
    }

    /// Adds a match of a packet that [`Self::add_set`] will count, by its place in that set.
    #[inline(always)]
    pub(super) fn add(&mut self, place: usize, rule: u64) {
        self.matches += 1;
        self.add_to_sum(place as u64, rule + 1);
    }

    #[inline(always)]
    fn add_to_sum(&mut self, place: u64, factor: u64) {
        let number = (self.packets + place + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.checksum = self.checksum.wrapping_add(number.wrapping_mul(factor));
    }

    /// Reads a packet as a scan does: counts it, its length, and 8 bytes of its header.
    #[inline(always)]
    pub(super) fn touch(&mut self, frame: &[u8]) {
        self.packets += 1;
        if let Some(bytes) = frame[8..].first_chunk() {
            let sum = u64::from_le_bytes(*bytes).wrapping_add(frame.len() as u64);
            self.checksum = self.checksum.wrapping_add(sum);
        }
    }
}

/// The nanoseconds of a pass, if its result is correct.
pub(super) fn checked(
    (ns, found): (f64, PassResult),
    expected: PassResult,
) -> Result<f64, Failure> {
    check_count(expected.packets, found.packets)?;
    check_count(expected.matches, found.matches)?;
    check_sum(expected.checksum, found.checksum).map(|()| ns)
}

/// Generates the packets of the sequence, in order.
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
            frame: vec![0; SIZES[9]],
        }
    }

    /// The specification of the next packet, and its bytes.
    fn next(&mut self) -> (Spec, &[u8]) {
        let frame = &mut self.frame[..SIZES[self.sizes.usize(..SIZES.len())]];
        let spec = self.mix.spec();
        spec.write(frame);
        (spec, frame)
    }
}

/// A ring full of packets.
#[derive(Debug)]
pub(super) struct Cold {
    ring: Ring,
    /// Packets stored.
    stored: u64,
    /// Stored packets that are not in the ring any more.
    evicted: u64,
}

impl Cold {
    /// Stores more packets than the ring can keep, so that the ring is full and has overwritten its
    /// oldest packets.
    pub(super) fn new(ring_bytes: u64) -> Result<Self, Failure> {
        let (ring, mut producers) = made(&RingConfig::new(ring_bytes, 1, 1))?;
        let mut packets = Packets::new();
        let stored = ring.bytes() / MEAN_BYTES * 11 / 10;
        for number in 0..stored {
            store_one(&mut producers[0], number, packets.next().1)?;
        }
        producers[0].publish();
        let evicted = ring.statistics().evicted_packets;
        Ok(Self {
            ring,
            stored,
            evicted,
        })
    }

    /// Generates the packets in the ring once more, in their order, with their specifications.
    pub(super) fn again(&self, mut see: impl FnMut(&Spec, &[u8])) {
        let mut packets = Packets::new();
        for number in 0..self.stored {
            let (spec, frame) = packets.next();
            if number >= self.evicted {
                see(&spec, frame);
            }
        }
    }

    /// The expected result of a scan.
    pub(super) fn expect(&self) -> PassResult {
        let mut found = PassResult::default();
        self.again(|_, frame| found.touch(frame));
        found
    }

    fn reader(&self) -> Result<Reader, Failure> {
        let reader = self.ring.group(GroupKind::Lapped);
        reader.map_err(|error| Failure::system("making a reader", error))
    }

    /// Reads all packets in a scan: nanoseconds a packet, and the result.
    pub(super) fn scan(&self) -> Result<(f64, PassResult), Failure> {
        let mut reader = self.reader()?;
        timed(|found| {
            while let Some(batch) = reader.next() {
                for packet in batch {
                    found.touch(packet.data);
                }
            }
        })
    }

    /// Reads all packets, up to 64 at a time: nanoseconds a packet, and the result of `take`.
    pub(super) fn read(
        &self,
        mut take: impl FnMut(&mut PassResult, &[FilterFrame<'_>]) + Send,
    ) -> Result<(f64, PassResult), Failure> {
        let mut reader = self.reader()?;
        timed(move |found| {
            while let Some(batch) = reader.next() {
                let mut packets = batch.into_iter();
                let mut frames = [FilterFrame::new(&[], 0, Aux::default()); Program::MANY];
                loop {
                    let mut count = 0;
                    for (frame, packet) in frames.iter_mut().zip(packets.by_ref()) {
                        *frame = FilterFrame::new(packet.data, packet.wire_len, Aux::default());
                        count += 1;
                    }
                    if count == 0 {
                        break;
                    }
                    take(found, &frames[..count]);
                }
            }
        })
    }

    /// Reads all packets with a filter. The filter gets up to 64 frames and returns the set of
    /// matching frames, one bit each.
    pub(super) fn filter(
        &self,
        run: impl Fn(&[FilterFrame<'_>]) -> u64 + Sync,
    ) -> Result<(f64, PassResult), Failure> {
        let run = &run;
        self.read(|found, frames| found.add_set(frames.len(), run(frames)))
    }
}

/// Runs a pass on a separate thread: nanoseconds a packet, and the result.
fn timed(pass: impl FnOnce(&mut PassResult) + Send) -> Result<(f64, PassResult), Failure> {
    let (found, seconds) = on_a_core(|| {
        let mut found = PassResult::default();
        pass(&mut found);
        found
    })?;
    Ok((seconds * 1e9 / found.packets as f64, found))
}

/// Fills `memory` with as many packets as fit, packed as in a pcap file. Returns the expected
/// result of a walk.
pub(super) fn pack(memory: &mut Memory) -> PassResult {
    let bytes = memory.bytes_mut();
    let (mut packets, mut found, mut used) = (Packets::new(), PassResult::default(), 0);
    loop {
        let (_, frame) = packets.next();
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
        found.touch(frame);
        used += record.len();
    }
    bytes[used..].fill(0); // a length of 0 ends the walk
    found
}

/// Walks from packet to packet by their lengths: nanoseconds a packet, and the result of `see`.
pub(super) fn walk(
    memory: &mut Memory,
    see: impl Fn(&mut PassResult, &[u8], u32) + Sync,
) -> Result<(f64, PassResult), Failure> {
    let bytes: &[u8] = memory.bytes_mut();
    let word = |header: &[u8; HEADER_BYTES], at: usize| {
        u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
    };
    timed(|found| {
        let mut rest = bytes;
        while let Some((header, frames)) = rest.split_first_chunk() {
            let (captured, wire_len) = (word(header, 8) as usize, word(header, 12));
            if captured == 0 || captured > frames.len() {
                break;
            }
            let (frame, after) = frames.split_at(captured);
            see(found, frame, wire_len);
            rest = after;
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::{PORT, compile};

    #[test]
    fn all_that_is_stored_is_read_walked_and_touched() {
        let cold = Cold::new(32 << 20).unwrap();
        let program = compile(PORT).unwrap();
        let (_, found) = cold.filter(|frames| program.run_many(frames)).unwrap();
        assert!(found.packets > 30_000 && found.matches > 50, "{found:?}");
        let by_libpcap = cold.filter(|frames| program.run_many_in_libpcap(frames));
        assert_eq!(by_libpcap.unwrap().1, found);
        assert_eq!(cold.expect().packets, found.packets);
        assert!(cold.evicted > 0);
        assert_eq!(cold.scan().unwrap().1, cold.expect());

        let mut memory = Memory::new(4 << 20).unwrap();
        let packed = pack(&mut memory);
        let touch =
            |memory: &mut Memory| walk(memory, |found, frame, _| found.touch(frame)).unwrap();
        assert!(checked(touch(&mut memory), packed).is_ok());
        let walked = walk(&mut memory, |found, frame, wire_len| {
            let frame = FilterFrame::new(frame, wire_len, Aux::default());
            found.add_set(1, program.run_many_in_libpcap(&[frame]));
        });
        let (_, walked) = walked.unwrap();
        assert!(walked.packets > 4_000 && walked.matches > 5, "{walked:?}");
        memory.bytes_mut()[HEADER_BYTES + 8] ^= 1;
        assert!(matches!(
            checked(touch(&mut memory), packed),
            Err(Failure::Wrong(_))
        ));
        assert_eq!(SIZES.iter().sum::<usize>() as u64, 10 * MEAN_BYTES);
    }
}
