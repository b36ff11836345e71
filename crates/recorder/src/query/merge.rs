//! Merges packets of many buckets into one order.
//!
//! A pass adds buckets by their smallest time. Before a pass adds a bucket, it takes out packets
//! before the bucket's smallest time. So if clocks run forward, usually one or two buckets of each
//! producer wait.

use std::{collections::BTreeMap, ops::Range};

use retroscope_ring::Packet;

use super::{PacketId, Recording};

/// Smallest and largest bound on the bytes of the ring's waiting packets. If more packets have to
/// wait, the stamps of the region are probably in disorder.
const WAITING_BYTES: std::ops::RangeInclusive<u64> = 64 << 20..=2 << 30;
/// The bound, in buckets of the ring for each producer. Two buckets of a producer overlap. A bucket
/// of 14-byte packets takes almost three times its size here: in addition to its data, a packet
/// takes 72 bytes, instead of 16 in the ring.
const WAITING_BUCKETS: u64 = 6;

#[derive(Debug, Clone)]
pub(super) struct MatchedPacket {
    /// Ring time, ns, which sets the order.
    pub(super) time_ns: i64,
    pub(super) stamp_ns: i64,
    pub(super) wire_len: u32,
    pub(super) interface: u16,
    pub(super) direction: u8,
    /// 0: the recording of the ring. Packets from other recordings, or without IDs, have other
    /// numbers.
    pub(super) recording: u32,
    /// The producer that stored the packet; 0 if `recording` is not 0.
    pub(super) producer: usize,
    /// The number of the packet among the records of its producer. If `recording` is not 0: the
    /// packet's ID, or without an ID the number of packets of its dump that were compared before.
    pub(super) record: u64,
    /// Records of the producer that are missing before this packet.
    pub(super) dropped: u64,
    /// Bytes of the packet in the answer.
    pub(super) captured: u32,
    data: Range<usize>,
}

impl MatchedPacket {
    /// The packet's ID in the answer; `None`: the packet is of another recording, or of a dump
    /// without IDs.
    pub(super) fn id(&self, recording: Recording) -> Option<PacketId> {
        (self.recording == 0).then(|| recording.id(self.producer, self.record))
    }

    /// The packet's place in the order.
    pub(super) fn place(&self) -> AnswerPlace {
        (self.time_ns, self.recording, self.producer, self.record)
    }
}

/// The place of a packet: time, recording, producer, record.
pub(super) type AnswerPlace = (i64, u32, usize, u64);

/// A piece of the answer: the matching packets of one bucket, or of one time in a dump.
#[derive(Debug, Default)]
pub(super) struct PacketBatch {
    packets: Vec<MatchedPacket>,
    data: Vec<u8>,
    next: usize,
}

#[derive(Debug, Default)]
pub(super) struct AnswerMerge {
    /// The waiting pieces, by the place of their next packet, then by the number of the piece. A
    /// dump that was not opened has the first place that its packets may have.
    pieces: BTreeMap<(AnswerPlace, u64), PacketBatch>,
    /// The piece whose packet was returned last, and its number.
    taken: Option<(PacketBatch, u64)>,
    /// Number of pieces of the ring up to now.
    made: u64,
    /// Bytes of the ring's pieces.
    waiting_bytes: u64,
    pub(super) waiting_bytes_max: u64,
    last: Option<AnswerPlace>,
    last_ns: Option<i64>,
    /// Packets that were taken out after packets of a later time.
    pub(super) disordered: u64,
}

/// Pieces of dumps have numbers from here on. Pieces of the ring have smaller numbers, so a packet
/// of the ring is before its copies in dumps.
const OWN_DUMPS: u64 = 1 << 62;
const OTHER_DUMPS: u64 = 1 << 63;

impl PacketBatch {
    /// Adds a packet. The answer has at most `snaplen` bytes of the packet, and the piece stores at
    /// most `kept` bytes.
    pub(super) fn push(
        &mut self,
        packet: &Packet<'_>,
        (recording, producer, record): (u32, usize, u64),
        stamp_ns: i64,
        (snaplen, kept): (usize, usize),
    ) {
        let start = self.data.len();
        let captured = packet.data.len().min(snaplen);
        let kept = packet.data.len().min(kept);
        self.data.extend_from_slice(&packet.data[..kept]);
        self.packets.push(MatchedPacket {
            time_ns: packet.time_ns,
            stamp_ns,
            wire_len: packet.wire_len,
            interface: packet.interface,
            direction: packet.direction,
            recording,
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

    /// Sorts the packets. `dropped`: records that are missing before the first packet.
    pub(super) fn sort(&mut self, dropped: u64) {
        self.packets.sort_by_key(MatchedPacket::place);
        // A growing vector may allocate twice the memory that it needs.
        self.packets.shrink_to_fit();
        self.data.shrink_to_fit();
        if let Some(first) = self.packets.first_mut() {
            first.dropped = dropped;
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.data.capacity() + self.packets.capacity() * size_of::<MatchedPacket>()
    }
}

impl AnswerMerge {
    pub(super) fn new(producers: usize, bucket_bytes: usize) -> Self {
        let overlapping = WAITING_BUCKETS * producers as u64 * bucket_bytes as u64;
        Self {
            waiting_bytes_max: overlapping.clamp(*WAITING_BYTES.start(), *WAITING_BYTES.end()),
            ..Self::default()
        }
    }

    /// Adds the packets of a bucket, which must be sorted.
    pub(super) fn add(&mut self, piece: PacketBatch) {
        self.waiting_bytes += piece.bytes() as u64;
        self.made += 1;
        self.wait(piece, self.made);
    }

    /// Adds a dump, whose first packet has ring time `from_ns` or later. `is_own`: the dump is in
    /// the recorder's log.
    pub(super) fn add_dump(&mut self, from_ns: i64, dump: usize, is_own: bool) {
        let number = if is_own { OWN_DUMPS } else { OTHER_DUMPS } | dump as u64;
        let first = (from_ns, 0, 0, 0);
        self.pieces.insert((first, number), PacketBatch::default());
    }

    /// Takes the next packet out if its time is before `until_ns` (`None`: in any case), or if too
    /// many bytes wait. Returns the packet, its bytes, and its dump, if any. `fill` reads the next
    /// piece of a dump.
    pub(super) fn next(
        &mut self,
        until_ns: Option<i64>,
        mut fill: impl FnMut(usize) -> PacketBatch,
    ) -> Option<(&MatchedPacket, &[u8], Option<usize>)> {
        if let Some((mut piece, number)) = self.taken.take() {
            piece.next += 1;
            self.wait_or_fill(piece, number, &mut fill);
        }
        while let Some(first) = self.pieces.first_entry() {
            let &(place, number) = first.key();
            let is_early = until_ns.is_none_or(|until_ns| place.0 < until_ns);
            if !is_early && self.waiting_bytes <= self.waiting_bytes_max {
                break;
            }
            let mut piece = first.remove();
            // The ring or another dump gave the same packet already.
            let is_copy = number >= OWN_DUMPS && self.last == Some(place);
            if piece.packets.is_empty() || is_copy {
                piece.next += 1;
                self.wait_or_fill(piece, number, &mut fill);
                continue;
            }
            self.disordered += u64::from(self.last_ns.is_some_and(|last_ns| place.0 < last_ns));
            (self.last, self.last_ns) = (Some(place), self.last_ns.max(Some(place.0)));
            let (piece, number) = self.taken.insert((piece, number));
            let packet = &piece.packets[piece.next];
            let dump = dump_of(*number);
            return Some((packet, &piece.data[packet.data.clone()], dump));
        }
        None
    }

    /// Puts a piece back at the place of its next packet, or reads the dump's next piece.
    fn wait_or_fill(
        &mut self,
        mut piece: PacketBatch,
        number: u64,
        fill: &mut impl FnMut(usize) -> PacketBatch,
    ) {
        match dump_of(number) {
            Some(dump) if piece.next >= piece.packets.len() => piece = fill(dump),
            _ => {}
        }
        self.wait(piece, number);
    }

    fn wait(&mut self, piece: PacketBatch, number: u64) {
        match piece.packets.get(piece.next) {
            Some(next) => _ = self.pieces.insert((next.place(), number), piece),
            None if number < OWN_DUMPS => self.waiting_bytes -= piece.bytes() as u64,
            None => {}
        }
    }
}

/// The dump of a piece with this number. `None`: the piece is of the ring.
fn dump_of(number: u64) -> Option<usize> {
    (number >= OWN_DUMPS).then(|| usize::try_from(number & !(OWN_DUMPS | OTHER_DUMPS)).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bucket of 2 MiB that is full of packets of `bytes` bytes, and begins at `time_ns`.
    fn piece(time_ns: i64, bytes: usize) -> PacketBatch {
        let (mut piece, data) = (PacketBatch::default(), vec![7; bytes]);
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
            piece.push(&packet, (0, 0, number), time_ns, (usize::MAX, usize::MAX));
        }
        piece.sort(0);
        piece
    }

    #[test]
    fn packets_of_all_producers_may_wait() {
        for (producers, bytes) in [(1, 14), (1, 64), (12, 14), (12, 1500)] {
            let mut merge = AnswerMerge::new(producers, 2 << 20);
            for _ in 0..2 * producers {
                merge.add(piece(0, bytes));
            }
            let first = merge.next(Some(0), |_| PacketBatch::default());
            assert!(first.is_none(), "{producers} producers, {bytes} bytes");
        }
    }

    /// All buckets overlap: the waiting packets are limited to the bound and one bucket.
    #[test]
    fn what_waits_is_bounded() {
        for (producers, most) in [(1, 64 << 20), (12, 144 << 20)] {
            let mut merge = AnswerMerge::new(producers, 2 << 20);
            assert_eq!(merge.waiting_bytes_max, most);
            let mut taken = 0;
            for _ in 0..100 {
                merge.add(piece(0, 64));
                let held: usize = merge.pieces.values().map(PacketBatch::bytes).sum();
                let held = held as u64;
                assert_eq!(merge.waiting_bytes, held);
                assert!(held <= most + (5 << 20), "{held}");
                while merge.next(Some(0), |_| PacketBatch::default()).is_some() {
                    taken += 1;
                }
                assert!(merge.waiting_bytes <= most);
            }
            assert!(taken > 0);
        }
    }
}
