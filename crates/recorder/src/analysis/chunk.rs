//! Up to 64 records of one producer as arrays: shards and the dumper test all records of a chunk
//! together.
//!
//! Filling a chunk usually reads only descriptors of the ring, no payloads. The matching records,
//! usually few, are read again.

use std::ops::Range;

use retroscope_filter::{Aux, FilterFrame, Program};
use retroscope_packet::{Direction, LinkType, may_be_fragment};
use retroscope_ring::Packet;

/// Maximum number of records of a chunk: the bits of a `u64` are a set of records.
pub(crate) const MANY: usize = Program::MANY;

/// Records of one producer in their order.
#[derive(Debug)]
pub(crate) struct Chunk<'r> {
    /// The first `len` entries are valid, in all three arrays.
    frames: [FilterFrame<'r>; MANY],
    times_ns: [i64; MANY],
    interfaces: [u16; MANY],
    len: usize,
    /// Maximum number of records that [`Self::fill`] takes; not more than [`MANY`].
    pub(crate) most: usize,
}

impl<'r> Chunk<'r> {
    pub(crate) fn new() -> Self {
        Self {
            frames: [FilterFrame::new(&[], 0, Aux::default()); MANY],
            times_ns: [0; MANY],
            interfaces: [0; MANY],
            len: 0,
            most: MANY,
        }
    }

    /// Replaces the contents with the next records, of which `of` returns the packet. Returns the
    /// number of records.
    // The `next` of `packets` should be `#[inline(always)]`. Otherwise the compiler may return each
    // packet through memory: a packet of 64 bytes takes 16 ns instead of 9 ns.
    #[inline(always)]
    pub(crate) fn fill<T>(
        &mut self,
        packets: &mut impl Iterator<Item = T>,
        of: impl Fn(T) -> Packet<'r>,
    ) -> usize {
        let frames = self.frames[..self.most].iter_mut();
        let places = frames.zip(&mut self.times_ns);
        let places = places.zip(&mut self.interfaces);
        // A local variable, because the compiler would write a field to memory for each record.
        let mut len = 0;
        for ((frame, time_ns), interface) in places {
            let Some(packet) = packets.next() else {
                break;
            };
            let packet = of(packet);
            *frame = FilterFrame::new(
                packet.data,
                packet.wire_len,
                Direction::from_bits(packet.direction).into(),
            );
            *time_ns = packet.time_ns;
            *interface = packet.interface;
            len += 1;
        }
        self.len = len;
        len
    }

    pub(crate) fn frames(&self, range: Range<usize>) -> &[FilterFrame<'r>] {
        &self.frames[range]
    }

    /// The times of the records at `range`, ns, and their frames.
    pub(crate) fn packets(
        &self,
        range: Range<usize>,
    ) -> impl Iterator<Item = (i64, &FilterFrame<'r>)> {
        let times = self.times_ns[range.clone()].iter().copied();
        times.zip(&self.frames[range])
    }

    /// The runs of records of one interface.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (u16, Range<usize>)> {
        let mut left = &self.interfaces[..self.len];
        std::iter::from_fn(move || {
            let id = *left.first()?;
            // Usually all records have one interface: the fold detects this without a branch for
            // each record.
            let differ = left.iter().fold(0, |differ, other| differ | (other ^ id));
            let count = match differ {
                0 => left.len(),
                _ => left.iter().take_while(|other| **other == id).count(),
            };
            let start = self.len - left.len();
            left = &left[count..];
            Some((id, start..start + count))
        })
    }

    /// The records at `range` whose ring time satisfies `is_one`: bit `n` is set for record `n` of
    /// the range.
    pub(crate) fn mask_where(&self, range: Range<usize>, is_one: impl Fn(i64) -> bool) -> u64 {
        let times = self.times_ns[range].iter().enumerate();
        times.fold(0, |set, (index, time_ns)| {
            set | u64::from(is_one(*time_ns)) << index
        })
    }
}

/// Visits some packets of a chunk, in their order.
#[derive(Debug)]
pub(crate) struct SelectedPackets<I> {
    packets: I,
    /// Number of packets that were passed.
    passed: usize,
}

impl<I: Iterator> SelectedPackets<I> {
    pub(crate) fn new(packets: I) -> Self {
        Self { packets, passed: 0 }
    }

    /// The packet at `index`, which must not have been passed.
    pub(crate) fn to(&mut self, index: usize) -> Option<I::Item> {
        let packet = self.packets.nth(index.checked_sub(self.passed)?)?;
        self.passed = index + 1;
        Some(packet)
    }
}

/// The frames that may be fragments: bit `n` is set for frame `n`.
pub(crate) fn fragments(link_type: LinkType, frames: &[FilterFrame<'_>]) -> u64 {
    frames.iter().enumerate().fold(0, |set, (index, frame)| {
        let may_be = may_be_fragment(link_type, frame.data());
        set | u64::from(may_be) << index
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(time_ns: i64, interface: u16, data: &[u8]) -> Packet<'_> {
        Packet {
            time_ns,
            wire_len: 100,
            interface,
            direction: 2,
            tag_restored: false,
            shard: 0,
            data,
        }
    }

    #[test]
    fn it_holds_the_next_records_and_only_these() {
        let data: Vec<u8> = (0..70).collect();
        let packets: Vec<_> = (0..70).map(|n| packet(n as i64, 3, &data[n..=n])).collect();
        let mut packets = packets.into_iter();
        let mut chunk = Chunk::new();
        assert_eq!(chunk.fill(&mut packets, |packet| packet), MANY);
        assert_eq!(chunk.frames(2..4)[1].data(), [3]);
        assert_eq!(
            chunk.fill(&mut packets, |packet| packet),
            6,
            "none was dropped in between"
        );
        let frame = chunk.frames(0..6)[0];
        assert_eq!((frame.data(), frame.wire_len()), (&[64][..], 100));
        assert_eq!(frame.aux(), Direction::Outbound.into());
        assert_eq!(chunk.runs().collect::<Vec<_>>(), [(3, 0..6)]);
        assert_eq!(chunk.fill(&mut packets, |packet| packet), 0);
        assert_eq!(chunk.runs().count(), 0);
    }

    #[test]
    fn runs_and_sets_count_from_their_start() {
        let mut chunk = Chunk::new();
        let interfaces = [1, 1, 0, 2, 2, 2];
        let packets = interfaces.iter().zip(10..);
        let mut packets = packets.map(|(i, ns)| packet(ns, *i, &[]));
        chunk.fill(&mut packets, |packet| packet);
        let runs: Vec<_> = chunk.runs().collect();
        assert_eq!(runs, [(1, 0..2), (0, 2..3), (2, 3..6)]);
        assert_eq!(chunk.mask_where(0..6, |ns| ns <= 12), 0b111);
        assert_eq!(chunk.mask_where(3..6, |ns| ns >= 14), 0b110);
    }
}
