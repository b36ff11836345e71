//! Finds where the newest packets begin, before a pass reads the packets in order.
//!
//! In the ring, buckets are scanned from the newest back until enough packets match. The pass then
//! begins with the oldest of these packets. Packets wait on a heap while an older bucket may have a
//! newer packet.
//!
//! If dumps may have some of the packets, a first pass counts the whole answer, and keeps the
//! places of its last packets. The second pass begins at one of these places.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    io,
    sync::Arc,
};

use super::{
    Query, QueryAnswer, QueryError,
    contents::{CandidateBucket, RegionContents, offsets},
    dump_reader::DumpReader,
    index::IndexAnswer,
    merge::{AnswerPlace, MatchedPacket},
    reading::{AnswerReading, BucketRead, QueryTally},
    resume::RecordPosition,
};

/// Where the newest packets of an answer begin, if the query leaves out older packets.
#[derive(Debug, Clone, Copy)]
pub(super) struct NewestStart {
    /// Stamp of the first of the newest packets, ns. If the limits allow no packet: stamp of the
    /// last packet.
    pub(super) begin_ns: i64,
    /// Packets before this place are older.
    begin: AnswerPlace,
}

/// The last packets of an answer, while it is counted.
#[derive(Debug, Default)]
pub(super) struct LastPackets {
    limits: (u64, u64),
    /// Places where the newest packets may begin, each with the number of packets and bytes of the
    /// answer before that place.
    begins: VecDeque<(NewestStart, u64, u64)>,
    /// Binary logarithm of the number of packets from one entry of `begins` to the next.
    distance_log2: u32,
    /// The place after the last packet.
    end: Option<NewestStart>,
    packets: u64,
    bytes: u64,
}

/// A packet on the heap: its position, its stamp in ns, and its bytes in the answer.
type Match = (RecordPosition, i64, u64);

/// Maximum number of entries of [`LastPackets::begins`], of 56 bytes each. If more packets are
/// within the limit, the entries are for every second packet, every fourth, and so on. The answer
/// may then have fewer packets than its limit.
const BEGINS_MAX: usize = 1 << 20;

impl NewestStart {
    pub(super) fn takes(&self, packet: &MatchedPacket) -> bool {
        packet.place() >= self.begin
    }
}

impl LastPackets {
    pub(super) fn push(&mut self, packet: &MatchedPacket) {
        let (begin_ns, begin) = (packet.stamp_ns, packet.place());
        let end = (begin.0, begin.1, begin.2, begin.3.saturating_add(1));
        self.end = Some(NewestStart {
            begin_ns,
            begin: end,
        });
        let begin = NewestStart { begin_ns, begin };
        // Before the push, because an entry more would double the memory of the queue.
        let mut distance = 1 << self.distance_log2;
        if self.begins.len() == BEGINS_MAX {
            self.distance_log2 += 1;
            distance *= 2;
            self.begins
                .retain(|(_, packets, _)| packets.is_multiple_of(distance));
        }
        if self.packets.is_multiple_of(distance) {
            self.begins.push_back((begin, self.packets, self.bytes));
        }
        self.packets += 1;
        self.bytes += u64::from(packet.captured);
        let is_too_much = |(_, packets, bytes): &mut (NewestStart, u64, u64)| {
            self.packets - *packets > self.limits.0 || self.bytes - *bytes > self.limits.1
        };
        while self.begins.pop_front_if(is_too_much).is_some() {}
    }

    /// Where the newest packets begin. `None`: with the first packet of the whole answer, or the
    /// answer has no packet.
    fn begin(&self) -> Option<NewestStart> {
        match self.begins.front() {
            Some((_, 0, _)) => None,
            first => first.map(|first| first.0).or(self.end),
        }
    }
}

fn limits(query: &Query) -> (u64, u64) {
    let or_all = |limit: Option<u64>| limit.unwrap_or(u64::MAX);
    (or_all(query.limit_packets), or_all(query.limit_bytes))
}

impl<W: io::Write> AnswerReading<'_, W> {
    /// Finds the first of the newest packets, and lets the following pass begin there.
    pub(super) fn find_newest(mut self) -> Result<Self, QueryError> {
        if let Some((position, begin_ns, _)) = self.newest_in_ring() {
            let QueryAnswer { resume, window, .. } = &mut self.answer;
            resume.begin_with(position);
            window.resume(Some(position.0), begin_ns.saturating_sub(position.0));
            self.dumped = None;
            self.newest = Some(NewestStart {
                begin_ns,
                begin: (i64::MIN, 0, 0, 0),
            });
        } else if self.dumped.is_some() {
            return self.newest_with_dumps();
        }
        Ok(self)
    }

    /// The first of the newest packets; if the limits allow no packet, the position after the last
    /// packet. `None`: the ring alone does not decide, or all of its packets are within the limits.
    fn newest_in_ring(&mut self) -> Option<Match> {
        let contents = Arc::clone(&self.start);
        let RegionContents { buckets, steps, .. } = &*contents;
        let window = self.answer.window;
        let offsets = |it: &CandidateBucket| offsets(steps, it.bucket.producer);
        let buckets = buckets.iter();
        let mut buckets: Vec<_> = buckets
            .filter(|it| window.touches(it.reach_ns, offsets(it)))
            .collect();
        buckets.sort_by_key(|it| Reverse(it.span_ns.1));
        let dumped_ns = match &self.dumped {
            None => i64::MIN,
            Some(dumped) if steps.is_empty() => dumped.wanted.1,
            // A clock was set: the order of stamps is not that of the ring.
            Some(_) => i64::MAX,
        };
        let waiting_max = self.merge.waiting_bytes_max / size_of::<Match>() as u64;
        let mut waiting = BinaryHeap::<Match>::new();
        let limits = limits(&self.answer.query);
        let (mut first, mut packets, mut bytes) = (None, 0, 0);
        for (number, candidate) in buckets.iter().enumerate() {
            if self.is_ended() {
                break;
            }
            self.add_matches(&contents, candidate, &mut waiting);
            let older = buckets.get(number + 1);
            let older_ns = older.map_or(i64::MIN, |it| it.span_ns.1).max(dumped_ns);
            while let Some((position, stamp_ns, its_bytes)) = waiting.peek().copied()
                && (position.0 > older_ns || waiting.len() as u64 > waiting_max)
            {
                if position.0 <= older_ns && self.dumped.is_some() {
                    // An older bucket or a dump may have a newer packet.
                    return None;
                }
                (packets, bytes) = (packets + 1, bytes + its_bytes);
                if packets > limits.0 || bytes > limits.1 {
                    let behind = (position.0, position.1, position.2.saturating_add(1));
                    return first.or(Some((behind, stamp_ns, 0)));
                }
                first = waiting.pop();
            }
            let is_full = packets == limits.0 || bytes == limits.1;
            if is_full && (older.is_some() || !waiting.is_empty()) {
                return first;
            }
        }
        None
    }

    /// Adds the packets of a bucket that match. The pass that follows reports a bucket that cannot
    /// be read.
    fn add_matches(
        &mut self,
        contents: &RegionContents,
        candidate: &CandidateBucket,
        waiting: &mut BinaryHeap<Match>,
    ) {
        let visit = BucketRead::of(candidate);
        let bucket = &candidate.bucket;
        let attached = &self.answer.attached;
        if self.ask_index(contents, &visit) == Some(IndexAnswer::Nothing)
            || attached
                .copy_bucket(bucket.bucket, &mut self.buffer)
                .is_err()
        {
            return;
        }
        let snaplen = self
            .answer
            .query
            .headers
            .map_or(u64::MAX, |it| it.get().into());
        self.each_match(contents, &visit, |packet, record, stamp_ns| {
            let position = (packet.time_ns, bucket.producer, record);
            waiting.push((position, stamp_ns, (packet.data.len() as u64).min(snaplen)));
        });
        self.tally = QueryTally::default(); // the pass that follows counts the packets
    }

    /// Counts the whole answer to find where its newest packets begin: the ring and dumps may have
    /// the same packets.
    fn newest_with_dumps(self) -> Result<Self, QueryError> {
        let Self {
            mut answer,
            stream,
            visitor,
            dumped,
            ..
        } = self;
        let last = LastPackets {
            limits: limits(&answer.query),
            ..LastPackets::default()
        };
        let query = &mut answer.query;
        let limits = (query.limit_packets.take(), query.limit_bytes.take());
        let mut counting = AnswerReading::<io::Sink>::new(answer, None);
        (counting.dumped, counting.last) = (dumped, Some(last));
        counting.whole_pass()?;
        let AnswerReading {
            mut answer,
            dumped,
            last,
            ..
        } = counting;
        (answer.query.limit_packets, answer.query.limit_bytes) = limits;
        Ok(Self {
            visitor,
            dumped: dumped.map(DumpReader::again),
            newest: last.and_then(|last| last.begin()),
            ..Self::new(answer, stream)
        })
    }
}

#[cfg(test)]
mod tests {
    use retroscope_ring::Packet;

    use super::*;
    use crate::query::merge::{AnswerMerge, PacketBatch};

    /// The queue of places must not grow beyond its bound, also not while it is thinned out.
    #[test]
    fn places_take_bounded_memory() {
        let packet = Packet {
            time_ns: 0,
            wire_len: 60,
            interface: 0,
            direction: 0,
            tag_restored: false,
            shard: 0,
            data: &[0; 60],
        };
        let mut piece = PacketBatch::default();
        piece.push(&packet, (0, 0, 0), 0, (60, 60));
        let mut merge = AnswerMerge::new(1, 2 << 20);
        merge.add(piece);
        let next = merge.next(None, |_| PacketBatch::default());
        let mut packet = next.unwrap().0.clone();
        let mut last = LastPackets {
            limits: (u64::MAX, u64::MAX),
            ..LastPackets::default()
        };
        for record in 0..2 * BEGINS_MAX as u64 {
            packet.record = record;
            last.push(&packet);
            assert!(last.begins.capacity() <= BEGINS_MAX);
        }
        assert!(last.begin().is_none(), "all packets are within the limits");
        // The answer has nearly as many packets as its limit allows.
        let limit = 3 * BEGINS_MAX as u64;
        let mut last = LastPackets {
            limits: (limit, u64::MAX),
            ..LastPackets::default()
        };
        let end = 4 * limit + 1;
        for record in 0..end {
            packet.record = record;
            last.push(&packet);
        }
        let first = last.begin().unwrap().begin.3;
        assert!((end - limit..end - limit + 4).contains(&first), "{first}");
    }
}
