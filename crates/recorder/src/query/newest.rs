//! The last so many packets: how far back they reach, before they are read in order.
//!
//! Buckets are counted from the newest back, until those that no older bucket reaches into have enough. Then they are read again, and the
//! first packets left out. So memory follows no answer, and an old bucket is not read at all.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    io,
};

use retroscope_ring::BucketRef;

use super::{
    QueryError,
    contents::Contents,
    dumped::Dumped,
    index::Says,
    reading::{Reading, Visit},
};

/// What was counted.
#[derive(Debug, Default)]
pub(super) struct Newest {
    packets_max: u64,
    bytes_max: u64,
    /// What is still to come.
    packets: u64,
    bytes: u64,
    of: BTreeMap<BucketRef, (u64, u64)>,
    left_out: u64,
    /// Older buckets were not looked at.
    is_cut: bool,
}

impl Newest {
    /// Whether the next packet, of so many bytes, is among the last that were asked for.
    pub(super) fn takes(&mut self, bytes: u64) -> bool {
        let takes = self.packets <= self.packets_max && self.bytes <= self.bytes_max;
        self.packets = self.packets.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
        self.left_out += u64::from(!takes);
        takes
    }

    /// Whether there were more than that.
    pub(super) fn left_some_out(&self) -> bool {
        self.is_cut || self.left_out > 0
    }

    /// A bucket that was counted is gone, with so many records of the window. How many of them the answer may lack.
    pub(super) fn lose(&mut self, bucket: BucketRef, records: u64) -> u64 {
        let Some((packets, bytes)) = self.of.remove(&bucket) else {
            return records;
        };
        self.packets = self.packets.saturating_sub(packets);
        self.bytes = self.bytes.saturating_sub(bytes);
        let missing = self.packets_max.saturating_sub(self.packets);
        packets.min(missing)
    }
}

impl<W: io::Write> Reading<'_, W> {
    /// Counts, and gives the buckets to be read, by time.
    pub(super) fn find_newest<'c>(
        &mut self,
        contents: &Contents,
        mut visits: Vec<Visit<'c>>,
    ) -> Result<Vec<Visit<'c>>, QueryError> {
        let query = &self.answer.query;
        let snaplen = query.headers.map_or(u64::MAX, |bytes| bytes.get().into());
        let mut newest = Newest {
            packets_max: query.limit_packets.unwrap_or(u64::MAX),
            bytes_max: query.limit_bytes.unwrap_or(u64::MAX),
            ..Newest::default()
        };
        // Those that end last come first.
        visits.sort_by_key(|visit| Reverse(visit.candidate.span_ns.1));
        // Counted, but for buckets that an older one may reach into: by their smallest time.
        let (mut packets, mut bytes) = (0_u64, 0_u64);
        let mut reached = BinaryHeap::<(i64, u64, u64)>::new();
        let mut counted = 0;
        for visit in &visits {
            let older_ns = visit.candidate.span_ns.1;
            while let Some(&(first_ns, its_packets, its_bytes)) = reached.peek()
                && first_ns > older_ns
            {
                reached.pop();
                packets += its_packets;
                bytes = bytes.saturating_add(its_bytes);
            }
            let is_enough = packets >= newest.packets_max || bytes >= newest.bytes_max;
            if is_enough || self.is_ended() {
                break;
            }
            counted += 1;
            let bucket = &visit.candidate.bucket;
            if self.ask_index(contents, visit) == Some(Says::Nothing) {
                continue;
            }
            // What is damaged or gone is told by the pass that follows.
            if self
                .answer
                .attached
                .copy_bucket_from(bucket.bucket, visit.skip, &mut self.buffer)
                .is_err()
            {
                continue;
            }
            let (mut its_packets, mut its_bytes) = (0_u64, 0_u64);
            self.each_match(contents, visit, |packet, _, _| {
                its_packets += 1;
                its_bytes += (packet.data.len() as u64).min(snaplen);
            });
            newest.packets += its_packets;
            newest.bytes = newest.bytes.saturating_add(its_bytes);
            newest.of.insert(bucket.bucket, (its_packets, its_bytes));
            reached.push((visit.candidate.span_ns.0, its_packets, its_bytes));
        }
        newest.is_cut = counted < visits.len();
        visits.truncate(counted);
        visits.sort_by_key(|visit| visit.candidate.span_ns);
        self.newest = Some(newest);
        self.forget_counts();
        Ok(visits)
    }

    /// Adds what dumps have, where the ring has not enough. They and the ring may have the same packets, which only a whole answer tells: this is one
    /// that nobody sees.
    pub(super) fn count_dumped(
        &mut self,
        contents: &Contents,
        visits: &[Visit<'_>],
    ) -> Result<(), QueryError> {
        let Some(mut newest) = self.newest.take_if(|newest| !newest.is_cut) else {
            self.dumped = None;
            return Ok(());
        };
        if self.dumped.is_some() {
            let (stream, looker) = (self.stream.take(), self.looker.take());
            let query = &mut self.answer.query;
            let limits = (query.limit_packets.take(), query.limit_bytes.take());
            let looked = self.pass(contents, visits, None);
            let query = &mut self.answer.query;
            (query.limit_packets, query.limit_bytes) = limits;
            (self.stream, self.looker) = (stream, looker);
            looked?;
            (newest.packets, newest.bytes) = (self.tally.packets, self.tally.bytes);
            self.dumped = self.dumped.take().map(Dumped::again);
            self.begin_again();
        }
        self.newest = Some(newest);
        Ok(())
    }
}
