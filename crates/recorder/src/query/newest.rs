//! The last so many packets: how far back they reach, before they are read in order.
//!
//! Buckets are counted from the newest back, until those that no older bucket reaches into have enough. Then they are read again, and the
//! first packets left out. So memory follows no answer, and an old bucket is not read at all.
//!
//! Where dumps may have packets among them, the whole answer is looked at once, and the stamp kept from which on the last packets come. What can be read only one of
//! the two times then changes nothing of the others: the answer has the newest that are left, and lacks what it tells.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, VecDeque},
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
    /// The whole answer is being looked at, and these of its packets may be the last.
    last: Option<Last>,
    /// Packets before the first one of this stamp are left out: see [`Group::reached_ns`].
    from_ns: Option<i64>,
    /// From here on none is left out, whatever of those before came.
    all_from_ns: Option<i64>,
    reached_ns: i64,
    /// What is still to come from there on, as it was counted.
    packets: u64,
    bytes: u64,
    of: BTreeMap<BucketRef, Counted>,
    left_out: u64,
    /// Older buckets were not looked at.
    is_cut: bool,
}

/// What a bucket had when it was counted.
#[derive(Debug)]
struct Counted {
    /// `None`: it could not be read.
    found: Option<(u64, u64)>,
    /// Packets that were counted and are newer than all of it.
    newer: u64,
}

/// The last packets of an answer that nobody sees, as many as are asked for and a few more.
#[derive(Debug, Default)]
struct Last {
    groups: VecDeque<Group>,
    packets: u64,
    bytes: u64,
    reached_ns: i64,
}

/// Packets that follow each other.
#[derive(Debug)]
struct Group {
    /// The largest stamp up to its first packet, ns: it never goes back, as stamps may.
    reached_ns: i64,
    packets: u64,
    bytes: u64,
}

/// Groups that are held: 24 MiB. With as many packets, each stamp has its own.
const GROUPS_MAX: usize = 1 << 20;

impl Last {
    /// Takes the next packet, and forgets the first ones where enough come behind them.
    fn push(&mut self, (stamp_ns, bytes): (i64, u64), (packets_max, bytes_max): (u64, u64)) {
        self.reached_ns = match self.groups.is_empty() {
            true => stamp_ns,
            false => self.reached_ns.max(stamp_ns),
        };
        self.packets += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        match self.groups.back_mut() {
            Some(group) if group.reached_ns == self.reached_ns => {
                group.packets += 1;
                group.bytes = group.bytes.saturating_add(bytes);
            }
            _ => self.groups.push_back(Group {
                reached_ns: self.reached_ns,
                packets: 1,
                bytes,
            }),
        }
        while let Some(first) = self.groups.front()
            && self.groups.len() > 1
            && (self.packets - first.packets >= packets_max
                || self.bytes - first.bytes >= bytes_max)
        {
            self.packets -= first.packets;
            self.bytes -= first.bytes;
            self.groups.pop_front();
        }
        if self.groups.len() > GROUPS_MAX {
            self.halve();
        }
    }

    /// Makes one group of two.
    fn halve(&mut self) {
        let mut groups = std::mem::take(&mut self.groups).into_iter();
        while let Some(mut group) = groups.next() {
            if let Some(next) = groups.next() {
                group.packets += next.packets;
                group.bytes = group.bytes.saturating_add(next.bytes);
            }
            self.groups.push_back(group);
        }
    }
}

impl Newest {
    /// Whether the next packet, of this stamp and so many bytes, is among the last that were asked for.
    pub(super) fn takes(&mut self, stamp_ns: i64, bytes: u64) -> bool {
        if let Some(last) = &mut self.last {
            last.push((stamp_ns, bytes), (self.packets_max, self.bytes_max));
            return true;
        }
        self.reached_ns = self.reached_ns.max(stamp_ns);
        let is_before = self
            .from_ns
            .is_some_and(|from_ns| self.reached_ns < from_ns);
        let is_sure = self.all_from_ns.is_some_and(|ns| self.reached_ns >= ns);
        let are_enough = self.packets <= self.packets_max && self.bytes <= self.bytes_max;
        let takes = is_sure || !is_before && are_enough;
        if !is_before {
            self.pass(bytes);
        }
        self.left_out += u64::from(!takes);
        takes
    }

    /// A packet that was counted is none of the answer's: the window has begun later since.
    pub(super) fn pass(&mut self, bytes: u64) {
        self.packets = self.packets.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// Whether there were more than that.
    pub(super) fn left_some_out(&self) -> bool {
        self.is_cut || self.left_out > 0
    }

    /// Packets that were counted and did not come: no more than these of the last ones are missing.
    pub(super) fn did_not_come(&self) -> u64 {
        self.packets.min(self.packets_max)
    }

    /// Where the last ones begin, as they were counted, where not all of them came.
    pub(super) fn begin_ns(&self) -> Option<i64> {
        self.from_ns.filter(|_| self.packets > 0)
    }

    /// What a bucket has now that it is read: fewer packets than when it was counted, where the window begins later since.
    pub(super) fn count_again(&mut self, bucket: BucketRef, (packets, bytes): (u64, u64)) {
        if let Some(found) = self.of.get_mut(&bucket).and_then(|it| it.found.as_mut()) {
            self.packets = (self.packets + packets).saturating_sub(found.0);
            self.bytes = self.bytes.saturating_add(bytes).saturating_sub(found.1);
            *found = (packets, bytes);
        }
    }

    /// A bucket that was counted is gone, with so many records of the window. How many of them the answer may lack, where the ring alone is asked: of those that
    /// dumps have too nobody knows.
    pub(super) fn lose(&mut self, bucket: BucketRef, records: u64) -> u64 {
        let Some(counted) = self.of.remove(&bucket) else {
            return records.min(self.packets_max);
        };
        let (packets, bytes) = counted.found.unwrap_or_default();
        self.packets = self.packets.saturating_sub(packets);
        self.bytes = self.bytes.saturating_sub(bytes);
        let packets = counted.found.map_or(records, |(packets, _)| packets);
        packets.min(self.packets_max.saturating_sub(counted.newer))
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
        // Beside what dumps may have, there may be other packets. Where a clock was set, nobody knows which.
        let dumped_ns =
            self.dumped
                .as_ref()
                .map_or(i64::MIN, |dumped| match contents.steps.is_empty() {
                    true => dumped.wanted.1,
                    false => i64::MAX,
                });
        let mut reached = BinaryHeap::<(i64, u64, u64)>::new();
        let mut counted = 0;
        for visit in &visits {
            let older_ns = visit.candidate.span_ns.1.max(dumped_ns);
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
            let newer = packets;
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
                let found = None;
                newest.of.insert(bucket.bucket, Counted { found, newer });
                continue;
            }
            let (mut its_packets, mut its_bytes) = (0_u64, 0_u64);
            self.each_match(contents, visit, |packet, _, _| {
                its_packets += 1;
                its_bytes += (packet.data.len() as u64).min(snaplen);
            });
            newest.packets += its_packets;
            newest.bytes = newest.bytes.saturating_add(its_bytes);
            let found = Some((its_packets, its_bytes));
            newest.of.insert(bucket.bucket, Counted { found, newer });
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
            newest.of.clear();
            newest.last = Some(Last::default());
            self.newest = Some(newest);
            let (stream, looker) = (self.stream.take(), self.looker.take());
            let query = &mut self.answer.query;
            let limits = (query.limit_packets.take(), query.limit_bytes.take());
            let looked = self.pass(contents, visits, None);
            let query = &mut self.answer.query;
            (query.limit_packets, query.limit_bytes) = limits;
            (self.stream, self.looker) = (stream, looker);
            looked?;
            self.dumped = self.dumped.take().map(Dumped::again);
            self.begin_again();
            let Some(counted) = self.newest.take() else {
                return Ok(());
            };
            newest = counted;
            let last = newest.last.take().unwrap_or_default();
            newest.from_ns = last.groups.front().map(|first| first.reached_ns);
            newest.all_from_ns = last.groups.get(1).map(|second| second.reached_ns);
            newest.reached_ns = i64::MIN;
            (newest.packets, newest.bytes) = (last.packets, last.bytes);
        }
        self.newest = Some(newest);
        Ok(())
    }
}
