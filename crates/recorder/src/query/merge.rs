//! Packets of many buckets in one order.
//!
//! Buckets come by their smallest time, each when the packets before it are out. So those that wait are of buckets whose times
//! overlap: one or two a producer, where clocks run forward.

use std::{collections::BTreeMap, io, ops::Range};

use retroscope_ring::Packet;

use super::{PacketId, packet_id::Numbering};

/// Range of the bound on bytes of waiting packets. If more packets overlap, the stamps of the
/// region are in disorder, or somebody made the region so.
const WAITING_BYTES: std::ops::RangeInclusive<u64> = 64 << 20..=2 << 30;
/// The bound, in buckets of the ring for each producer. Two buckets of a producer overlap. A
/// bucket of small packets takes up to three times as much here, because a packet takes 72 bytes
/// in addition to its data, and 16 in the ring.
const WAITING_BUCKETS: u64 = 6;

/// A packet that the filter took.
#[derive(Debug, Clone)]
pub(super) struct Found {
    /// Ring time, ns: what the order goes by.
    pub(super) time_ns: i64,
    pub(super) stamp_ns: i64,
    pub(super) wire_len: u32,
    pub(super) interface: u16,
    pub(super) direction: u8,
    /// Whose it is, and its number; [`FROM_DUMP`].
    pub(super) producer: usize,
    pub(super) record: u64,
    /// Records of its producer that are missing before it.
    pub(super) dropped: u64,
    /// Bytes of it in the answer.
    pub(super) captured: u32,
    data: Range<usize>,
}

/// Whose a packet of a dump is, in the place of a producer.
pub(super) const FROM_DUMP: usize = usize::MAX;

impl Found {
    /// A packet of a dump, where ring time and stamp are one.
    pub(super) fn of_dump(
        stamp_ns: i64,
        (interface, direction): (u16, u8),
        wire_len: u32,
        data: &[u8],
    ) -> Self {
        Self {
            time_ns: stamp_ns,
            stamp_ns,
            wire_len,
            interface,
            direction,
            producer: FROM_DUMP,
            record: 0,
            dropped: 0,
            captured: u32::try_from(data.len()).unwrap_or(u32::MAX), // at most 256 KiB
            data: 0..0,
        }
    }

    /// Its name; `None`: it has none, as one of a dump.
    pub(super) fn id(&self, numbering: Numbering) -> Option<PacketId> {
        (self.producer != FROM_DUMP)
            .then(|| numbering.id(self.producer, self.record))
            .flatten()
    }
}

/// The packets of one bucket.
#[derive(Debug, Default)]
pub(super) struct Piece {
    packets: Vec<Found>,
    data: Vec<u8>,
    next: usize,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Merge {
    /// By (time of the next packet, producer, its number), the order of packets; and which piece it is, as a damaged ring may have a record twice.
    pieces: BTreeMap<(i64, usize, u64, u64), Piece>,
    /// Pieces so far.
    made: u64,
    waiting_bytes: u64,
    pub(super) waiting_bytes_max: u64,
    last_ns: Option<i64>,
    /// Packets that came out behind younger ones.
    pub(super) disordered: u64,
}

impl Piece {
    /// Adds a record of a producer, of which no more bytes than `snaplen` are to be in the answer, and so many are `kept` until then.
    pub(super) fn push(
        &mut self,
        packet: &Packet<'_>,
        (producer, record): (usize, u64),
        stamp_ns: i64,
        (snaplen, kept): (usize, usize),
    ) {
        let start = self.data.len();
        let captured = packet.data.len().min(snaplen);
        let kept = packet.data.len().min(kept);
        self.data.extend_from_slice(&packet.data[..kept]);
        self.packets.push(Found {
            time_ns: packet.time_ns,
            stamp_ns,
            wire_len: packet.wire_len,
            interface: packet.interface,
            direction: packet.direction,
            producer,
            record,
            dropped: 0,
            captured: u32::try_from(captured).unwrap_or(u32::MAX), // at most 256 KiB
            data: start..self.data.len(),
        });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Puts the packets in their order; so many records are missing before the first one.
    pub(super) fn sort(&mut self, dropped: u64) {
        // Stable: of one time, in the order in which they were stored.
        self.packets.sort_by_key(|packet| packet.time_ns);
        // A piece may wait for long, and vectors grow to twice their length.
        self.packets.shrink_to_fit();
        self.data.shrink_to_fit();
        if let Some(first) = self.packets.first_mut() {
            first.dropped = dropped;
        }
    }

    fn bytes(&self) -> u64 {
        (self.data.capacity() + self.packets.capacity() * size_of::<Found>()) as u64
    }
}

impl Merge {
    /// Of a ring of so many producers and buckets of this size.
    pub(super) fn new(producers: usize, bucket_bytes: usize) -> Self {
        let overlapping = WAITING_BUCKETS * producers as u64 * bucket_bytes as u64;
        Self {
            pieces: BTreeMap::new(),
            made: 0,
            waiting_bytes: 0,
            waiting_bytes_max: overlapping.clamp(*WAITING_BYTES.start(), *WAITING_BYTES.end()),
            last_ns: None,
            disordered: 0,
        }
    }

    /// Adds packets of a bucket, in order.
    pub(super) fn add(&mut self, piece: Piece) {
        self.waiting_bytes += piece.bytes();
        self.made += 1;
        self.wait(piece, self.made);
    }

    /// Takes packets out, in order, that nothing of `until_ns` or later comes before; and others, where too many wait. `take` says
    /// whether it wants more, and so does the result.
    pub(super) fn take_before(
        &mut self,
        until_ns: Option<i64>,
        mut take: impl FnMut(&Found, &[u8]) -> io::Result<bool>,
    ) -> io::Result<bool> {
        while let Some(first) = self.pieces.first_entry() {
            let &(time_ns, _, _, number) = first.key();
            let is_early = until_ns.is_none_or(|until_ns| time_ns < until_ns);
            if !is_early && self.waiting_bytes <= self.waiting_bytes_max {
                break;
            }
            let mut piece = first.remove();
            let packet = &piece.packets[piece.next];
            self.disordered += u64::from(self.last_ns.is_some_and(|last_ns| time_ns < last_ns));
            self.last_ns = self.last_ns.max(Some(time_ns));
            let goes_on = take(packet, &piece.data[packet.data.clone()])?;
            piece.next += 1;
            self.wait(piece, number);
            if !goes_on {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Puts a piece at its place, if packets are left in it.
    fn wait(&mut self, piece: Piece, number: u64) {
        match piece.packets.get(piece.next) {
            Some(next) => {
                let key = (next.time_ns, next.producer, next.record, number);
                _ = self.pieces.insert(key, piece);
            }
            None => self.waiting_bytes -= piece.bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bucket of 2 MiB that is full of packets of `bytes`, and begins at `time_ns`.
    fn piece(time_ns: i64, bytes: usize) -> Piece {
        let (mut piece, data) = (Piece::default(), vec![7; bytes]);
        for number in 0..(2_u64 << 20) / (16 + bytes as u64) {
            let packet = Packet {
                time_ns: time_ns + i64::from(number > 0),
                wire_len: 60,
                interface: 0,
                direction: 0,
                tag_restored: false,
                shard: 0,
                data: &data,
            };
            piece.push(&packet, (0, number), time_ns, (usize::MAX, usize::MAX));
        }
        piece.sort(0);
        piece
    }

    /// Two buckets of each producer may wait, whatever the size of their packets.
    #[test]
    fn packets_of_all_producers_may_wait() {
        for (producers, bytes) in [(1, 14), (1, 64), (12, 14), (12, 1500)] {
            let mut merge = Merge::new(producers, 2 << 20);
            for _ in 0..2 * producers {
                merge.add(piece(0, bytes));
            }
            let mut taken = 0;
            let take = |_: &Found, _: &[u8]| {
                taken += 1;
                Ok(true)
            };
            assert!(merge.take_before(Some(0), take).unwrap());
            assert_eq!(taken, 0, "{producers} producers, {bytes} bytes");
        }
    }

    /// In a region where all buckets overlap, no more waits than the bound and one bucket.
    #[test]
    fn what_waits_is_bounded() {
        for (producers, most) in [(1, 64 << 20), (12, 144 << 20)] {
            let mut merge = Merge::new(producers, 2 << 20);
            assert_eq!(merge.waiting_bytes_max, most);
            let mut taken = 0;
            for _ in 0..100 {
                merge.add(piece(0, 64));
                let held: u64 = merge.pieces.values().map(Piece::bytes).sum();
                assert_eq!(merge.waiting_bytes, held);
                assert!(held <= most + (5 << 20), "{held}");
                let take = |_: &Found, _: &[u8]| {
                    taken += 1;
                    Ok(true)
                };
                assert!(merge.take_before(Some(0), take).unwrap());
                assert!(merge.waiting_bytes <= most);
            }
            assert!(taken > 0);
        }
    }
}
