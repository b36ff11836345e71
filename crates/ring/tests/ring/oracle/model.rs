//! A model of the ring: maps and lists instead of shared memory, and no threads.

#![expect(
    clippy::cast_possible_truncation,
    reason = "numbers of records are small"
)]

use std::collections::{BTreeMap, HashSet};

use retroscope_ring::{Lapped, Mode, StoreError};

/// Identifies a bucket's contents: its producer, and the number of its first record.
pub(crate) type Key = (usize, u64);

/// Unpublished captured bytes after which a store publishes.
const PUBLISH_BYTES: usize = 128 << 10;

/// A record. Its bytes are a range of the test's noise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) time_ns: i64,
    pub(crate) wire_len: u32,
    pub(crate) interface: u16,
    pub(crate) direction: u8,
    pub(crate) tag_restored: bool,
    pub(crate) shard: u8,
    pub(crate) noise: std::ops::Range<usize>,
}

#[derive(Debug)]
pub(crate) struct Bucket {
    pub(crate) records: Vec<Stored>,
    /// Bytes of payload, including extensions.
    used: usize,
    base_ns: i64,
    /// Number of buckets that closed before. `None` while open.
    pub(crate) closed: Option<u64>,
    pub(crate) holds: usize,
}

#[derive(Debug, Default)]
pub(crate) struct Writer {
    /// Number of the first record of the open bucket.
    open: Option<u64>,
    pub(crate) stored: u64,
    pub(crate) published: u64,
    unpublished_bytes: usize,
    /// `bytes[n]`: captured bytes of all records before record `n`.
    bytes: Vec<u64>,
}

#[derive(Debug)]
pub(crate) struct Reservation {
    pub(crate) from_ns: i64,
    pub(crate) to_ns: i64,
    pub(crate) yields: bool,
    pub(crate) given: HashSet<Key>,
    pub(crate) has_fallen: bool,
    pub(crate) lost: Vec<Key>,
}

#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) gating: bool,
    /// Finished position, by producer.
    pub(crate) done: Vec<u64>,
    /// Next record to hand out, by producer.
    next: Vec<u64>,
    /// Held bucket, by producer.
    at: Vec<Option<Key>>,
    missed: Vec<Lapped>,
    pub(crate) lapped: Lapped,
    pub(crate) read: u64,
    turn: usize,
    lent: Option<usize>,
}

#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) producer: usize,
    pub(crate) first: u64,
    pub(crate) missed: Lapped,
    pub(crate) records: Vec<Stored>,
}

#[derive(Debug)]
pub(crate) struct Model {
    bucket_bytes: usize,
    pub(crate) mode: Mode,
    free: usize,
    pub(crate) buckets: BTreeMap<Key, Bucket>,
    pub(crate) writers: Vec<Writer>,
    /// Keys are the numbers that the test assigned.
    pub(crate) reservations: BTreeMap<u64, Reservation>,
    pub(crate) groups: Vec<Group>,
    pub(crate) evicted: Vec<Stored>,
    pub(crate) fallen: u64,
    closings: u64,
}

impl Bucket {
    fn max_ns(&self) -> i64 {
        self.records
            .iter()
            .map(|record| record.time_ns)
            .max()
            .expect("no bucket is empty")
    }

    fn min_ns(&self) -> i64 {
        self.records
            .iter()
            .map(|record| record.time_ns)
            .min()
            .expect("no bucket is empty")
    }

    fn fits(&self, record: &Stored, bucket_bytes: usize) -> bool {
        self.used + 16 + record.noise.len() + 16 * (self.records.len() + 1) <= bucket_bytes
    }

    fn push(&mut self, record: Stored) {
        let far = !(-1 << 47..1 << 47).contains(&(record.time_ns - self.base_ns));
        let extended = far || record.wire_len >= 65_536 || record.interface >= 255;
        self.used += record.noise.len() + if extended { 16 } else { 0 };
        self.records.push(record);
    }
}

impl Model {
    pub(crate) fn new(
        buckets: usize,
        bucket_bytes: usize,
        producers: usize,
        gating: &[bool],
    ) -> Self {
        let group = |&gating| Group {
            gating,
            done: vec![0; producers],
            next: vec![0; producers],
            at: vec![None; producers],
            missed: vec![Lapped::default(); producers],
            lapped: Lapped::default(),
            read: 0,
            turn: 0,
            lent: None,
        };
        Self {
            bucket_bytes,
            mode: Mode::Record,
            free: buckets,
            buckets: BTreeMap::new(),
            writers: (0..producers)
                .map(|_| Writer {
                    bytes: vec![0],
                    ..Writer::default()
                })
                .collect(),
            reservations: BTreeMap::new(),
            groups: gating.iter().map(group).collect(),
            evicted: Vec::new(),
            fallen: 0,
            closings: 0,
        }
    }

    /// The test closed the ring: a store that would wait returns `Closed`.
    pub(crate) fn store(&mut self, producer: usize, record: Stored) -> Result<(), StoreError> {
        let open = self.writers[producer].open.map(|first| (producer, first));
        let fits = open.is_some_and(|key| self.buckets[&key].fits(&record, self.bucket_bytes));
        if !fits {
            self.publish(producer);
            self.make_room()?;
            if let Some(old) = open {
                self.close(old);
            }
            let first = self.writers[producer].stored;
            self.writers[producer].open = Some(first);
            let empty = Bucket {
                records: Vec::new(),
                used: 0,
                base_ns: record.time_ns,
                closed: None,
                holds: 0,
            };
            self.buckets.insert((producer, first), empty);
        }
        let writer = &mut self.writers[producer];
        let first = writer.open.expect("just made");
        writer.stored += 1;
        writer.unpublished_bytes += record.noise.len();
        writer
            .bytes
            .push(writer.bytes[writer.bytes.len() - 1] + record.noise.len() as u64);
        let publish = writer.unpublished_bytes >= PUBLISH_BYTES;
        self.buckets
            .get_mut(&(producer, first))
            .expect("open")
            .push(record);
        if publish {
            self.publish(producer);
        }
        Ok(())
    }

    pub(crate) fn publish(&mut self, producer: usize) {
        let writer = &mut self.writers[producer];
        writer.published = writer.stored;
        writer.unpublished_bytes = 0;
    }

    /// Publishes the producer's records and closes its bucket.
    pub(crate) fn leave(&mut self, producer: usize) {
        self.publish(producer);
        if let Some(first) = self.writers[producer].open.take() {
            self.close((producer, first));
        }
    }

    pub(crate) fn next(&mut self, group: usize) -> Option<Batch> {
        self.finish(group);
        let producers = self.writers.len();
        for step in 0..producers {
            let producer = (self.groups[group].turn + step) % producers;
            if let Some(key) = self.find(group, producer) {
                let end = self.committed_end(key);
                let group = &mut self.groups[group];
                let first = std::mem::replace(&mut group.next[producer], end);
                let missed = std::mem::take(&mut group.missed[producer]);
                group.turn = (producer + 1) % producers;
                group.lent = Some(producer);
                group.read += end - first;
                let range = (first - key.1) as usize..(end - key.1) as usize;
                return Some(Batch {
                    producer,
                    first,
                    missed,
                    records: self.buckets[&key].records[range].to_vec(),
                });
            }
        }
        None
    }

    pub(crate) fn finish(&mut self, group: usize) {
        let group = &mut self.groups[group];
        if let Some(producer) = group.lent.take() {
            group.done[producer] = group.next[producer];
        }
    }

    pub(crate) fn reserve(&mut self, id: u64, from_ns: i64, to_ns: i64) {
        let reservation = Reservation {
            from_ns,
            to_ns,
            yields: false,
            given: HashSet::new(),
            has_fallen: false,
            lost: Vec::new(),
        };
        self.reservations.insert(id, reservation);
    }

    /// Buckets with published records that touch a reservation, without those it gave back: (key,
    /// published records, closed).
    pub(crate) fn touching(&self, id: u64) -> Vec<(Key, u32, bool)> {
        let reservation = &self.reservations[&id];
        let mut found = Vec::new();
        for (&key, bucket) in &self.buckets {
            let published = (self.committed_end(key) - key.1) as usize;
            let touches = bucket.records[..published]
                .iter()
                .any(|record| record.time_ns <= reservation.to_ns)
                && bucket.records[..published]
                    .iter()
                    .any(|record| record.time_ns >= reservation.from_ns)
                && reservation.from_ns <= reservation.to_ns;
            if touches && !reservation.given.contains(&key) {
                found.push((key, published as u32, bucket.closed.is_some()));
            }
        }
        found
    }

    /// Numbers of buckets: (free, open, closed, reserved).
    pub(crate) fn counts(&self) -> (usize, usize, usize, usize) {
        let closed = self
            .buckets
            .values()
            .filter(|bucket| bucket.closed.is_some())
            .count();
        let reserved = self
            .buckets
            .keys()
            .filter(|&&key| self.is_reserved(key))
            .count();
        (self.free, self.buckets.len() - closed, closed, reserved)
    }

    /// The number after a bucket's last published record, or of its first record if none is
    /// published.
    pub(crate) fn committed_end(&self, key: Key) -> u64 {
        let end = key.1 + self.buckets[&key].records.len() as u64;
        end.min(self.writers[key.0].published).max(key.1)
    }

    /// Finds and holds the bucket with a group's next records.
    fn find(&mut self, group: usize, producer: usize) -> Option<Key> {
        loop {
            let next = self.groups[group].next[producer];
            let Some(key) = self.groups[group].at[producer] else {
                if self.writers[producer].published == next {
                    return None;
                }
                self.seek(group, producer);
                continue;
            };
            if self.committed_end(key) > next {
                return Some(key);
            }
            self.buckets[&key].closed?;
            self.hold(key, -1);
            self.groups[group].at[producer] = None;
            if self.buckets.contains_key(&(producer, next)) {
                self.hold((producer, next), 1);
                self.groups[group].at[producer] = Some((producer, next));
            }
        }
    }

    fn seek(&mut self, group: usize, producer: usize) {
        let next = self.groups[group].next[producer];
        let later = |key: &&Key| key.0 == producer && key.1 >= next;
        let found = self.buckets.keys().find(later).copied();
        let first = found.map_or(self.writers[producer].published, |(_, first)| first);
        if let Some(key) = found {
            self.hold(key, 1);
        }
        let bytes = &self.writers[producer].bytes;
        let missed = Lapped {
            packets: first - next,
            bytes: bytes[first as usize] - bytes[next as usize],
        };
        let group = &mut self.groups[group];
        group.at[producer] = found;
        group.next[producer] = first;
        if missed.packets > 0 {
            group.done[producer] = first;
        }
        group.missed[producer] += missed;
        group.lapped += missed;
    }

    pub(crate) fn hold(&mut self, key: Key, change: isize) {
        let bucket = self.buckets.get_mut(&key).expect("held buckets stay");
        bucket.holds = bucket
            .holds
            .checked_add_signed(change)
            .expect("holds are balanced");
    }

    fn close(&mut self, key: Key) {
        self.buckets.get_mut(&key).expect("it is open").closed = Some(self.closings);
        self.closings += 1;
    }

    fn wants(&self, reservation: &Reservation, key: Key) -> bool {
        let bucket = &self.buckets[&key];
        bucket.closed.is_some()
            && !reservation.given.contains(&key)
            && reservation.from_ns <= reservation.to_ns
            && bucket.min_ns() <= reservation.to_ns
            && bucket.max_ns() >= reservation.from_ns
    }

    fn is_reserved(&self, key: Key) -> bool {
        self.reservations
            .values()
            .any(|reservation| self.wants(reservation, key))
    }

    /// 0 if no reservation wants the bucket, 1 if only yielding reservations want it.
    fn protection(&self, key: Key) -> u8 {
        let all = self.reservations.values();
        let wanting = all.filter(|reservation| self.wants(reservation, key));
        let of = |reservation: &Reservation| if reservation.yields { 1 } else { 2 };
        wanting.map(of).max().unwrap_or(0)
    }

    fn passed(&self, key: Key) -> bool {
        let end = key.1 + self.buckets[&key].records.len() as u64;
        self.groups
            .iter()
            .filter(|group| group.gating)
            .all(|group| group.done[key.0] >= end)
    }

    fn make_room(&mut self) -> Result<(), StoreError> {
        if self.free > 0 {
            self.free -= 1;
            return Ok(());
        }
        let closed = |key: &Key| self.buckets[key].closed.is_some();
        let could = self
            .buckets
            .keys()
            .copied()
            .filter(|key| closed(key) && self.passed(*key) && self.buckets[key].holds == 0);
        let most = if self.mode == Mode::Record { 2 } else { 0 };
        let could = could.filter(|key| self.protection(*key) <= most);
        let victim = could.min_by_key(|key| (self.protection(*key), self.buckets[key].closed));
        let is_unread = |key: &Key| closed(key) && !self.passed(*key);
        match (victim, self.mode) {
            (Some(victim), _) => {
                self.evict(victim);
                Ok(())
            }
            (None, Mode::Wait) => Err(StoreError::Closed),
            (None, Mode::Record) if self.buckets.keys().any(is_unread) => Err(StoreError::Closed),
            (None, Mode::Record | Mode::Protect) => Err(StoreError::Full),
        }
    }

    fn evict(&mut self, key: Key) {
        let wanting: Vec<u64> = self
            .reservations
            .iter()
            .filter(|(_, reservation)| self.wants(reservation, key))
            .map(|(&id, _)| id)
            .collect();
        for id in wanting {
            let reservation = self.reservations.get_mut(&id).expect("just found");
            reservation.lost.push(key);
            self.fallen += u64::from(!reservation.has_fallen);
            reservation.has_fallen = true;
        }
        let bucket = self.buckets.remove(&key).expect("just found");
        self.evicted.extend(bucket.records);
    }
}
