//! The open dumps, and lists of the dumps that have work, so that a round need not inspect all open
//! dumps.
//!
//! At first a dump *catches up*: with its own reservation it reads the buckets of its window that
//! are in the ring. After that the dump *follows*, unless its window is over. All following dumps
//! share one [`WindowReading`], so the dumper reads each new record once.
//!
//! A following dump that cannot read on catches up later, with its own reservation. The ring
//! overwrites the buckets of this reservation before those of dumps that make progress.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap},
};

use retroscope_ring::{BucketInfo, BucketRef, Ring};

use super::{
    active::ActiveDump,
    order::CloseOrder,
    reading::WindowReading,
    visit::{BucketVisit, WantedRecords},
};
use crate::control::progress::Reach;

/// All open dumps of a dumper, by their state.
#[derive(Debug)]
pub(super) struct Dumps {
    ring: Ring,
    by_id: BTreeMap<u64, ActiveDump>,
    /// Dumps that catch up. All other dumps follow, or have read all their records.
    catching_up: BTreeSet<u64>,
    /// Dumps whose window is closed.
    closed: BTreeSet<u64>,
    /// Following dumps with a dump script.
    scripted: BTreeSet<u64>,
    /// Dumps with waiting packets that may be written, by the ring time of their oldest packet.
    due: BTreeSet<(i64, u64)>,
    /// Dumps that changed since [`Self::take_changed`], each once. A listed dump may be gone.
    changed: Vec<u64>,
    /// Dumps without their own reading, whose sinks have no room any more.
    full: Vec<u64>,
    /// The reading that following dumps share. `None`: no dump follows.
    following: Option<SharedReading>,
    /// Number of dumps with a limit.
    limited: usize,
    /// The records that following dumps have read.
    passed: Reach,
    listed: Vec<BucketInfo>,
    /// [`Ring::reservation_news`] when the reservations were last asked for their losses.
    news: u64,
    /// Number of dumps that were inspected.
    #[cfg(test)]
    pub(super) looks: usize,
}

#[derive(Debug)]
struct SharedReading {
    reading: WindowReading,
    /// The filters of following dumps need only packets between these ring times, ns.
    window: (i64, i64),
}

impl Dumps {
    pub(super) fn new(ring: &Ring) -> Self {
        Self {
            ring: ring.clone(),
            by_id: BTreeMap::new(),
            catching_up: BTreeSet::new(),
            closed: BTreeSet::new(),
            scripted: BTreeSet::new(),
            due: BTreeSet::new(),
            changed: Vec::new(),
            full: Vec::new(),
            following: None,
            limited: 0,
            passed: Reach::default(),
            listed: Vec::new(),
            news: 0,
            #[cfg(test)]
            looks: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    pub(super) fn has_limited(&self) -> bool {
        self.limited > 0
    }

    /// Whether all windows are closed.
    pub(super) fn are_closed(&self) -> bool {
        self.closed.len() == self.by_id.len()
    }

    /// The records that following dumps have read. A pass must reach at least as far, or the dumps
    /// would read records twice.
    pub(super) fn passed(&self) -> &Reach {
        &self.passed
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &ActiveDump> {
        self.by_id.values()
    }

    /// An open dump, for changes that concern none of its waiting packets.
    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut ActiveDump> {
        self.count(1);
        self.by_id.get_mut(&id)
    }

    pub(super) fn insert(&mut self, dump: ActiveDump) {
        self.catching_up.insert(dump.order.id);
        self.limited += usize::from(dump.order.window.is_limited());
        self.by_id.insert(dump.order.id, dump);
    }

    /// Changes an open dump, and updates the lists `due`, `changed` and `full`.
    pub(super) fn change<R>(
        &mut self,
        id: u64,
        change: impl FnOnce(&mut ActiveDump) -> R,
    ) -> Option<R> {
        self.count(1);
        let dump = self.by_id.get_mut(&id)?;
        let result = change(dump);
        let due_ns = dump.due_ns();
        if due_ns != dump.listed_ns {
            self.due.remove(&(dump.listed_ns, id));
            if due_ns != i64::MAX {
                self.due.insert((due_ns, id));
            }
            dump.listed_ns = due_ns;
        }
        if !dump.is_changed {
            dump.is_changed = true;
            self.changed.push(id);
        }
        if dump.reading.is_none() && !dump.has_room() {
            self.full.push(id);
        }
        Some(result)
    }

    pub(super) fn close(&mut self, close: CloseOrder, judge_by_ns: i64) {
        let id = close.id;
        let closed = self.change(id, |dump| {
            dump.close = Some(close);
            dump.judge_by_ns = Some(judge_by_ns);
        });
        if closed.is_some() {
            self.closed.insert(id);
        }
    }

    /// Removes the closed dumps that are `ready`, in the order of their numbers.
    pub(super) fn take_ready(&mut self, ready: impl Fn(&ActiveDump) -> bool) -> Vec<ActiveDump> {
        let done = self.closed_that(ready);
        let done = done.into_iter().filter_map(|id| self.remove(id)).collect();
        if self.by_id.len() == self.catching_up.len() {
            self.following = None;
        }
        done
    }

    pub(super) fn take_all(&mut self) -> impl Iterator<Item = ActiveDump> + use<> {
        let all = std::mem::replace(self, Self::new(&self.ring));
        all.by_id.into_values()
    }

    fn remove(&mut self, id: u64) -> Option<ActiveDump> {
        let dump = self.by_id.remove(&id)?;
        self.limited -= usize::from(dump.order.window.is_limited());
        self.due.remove(&(dump.listed_ns, id));
        self.closed.remove(&id);
        self.catching_up.remove(&id);
        self.scripted.remove(&id);
        Some(dump)
    }

    fn closed_that(&mut self, is_one: impl Fn(&ActiveDump) -> bool) -> Vec<u64> {
        self.count(self.closed.len());
        let closed = self.closed.iter().copied();
        let those = closed.filter(|id| self.by_id.get(id).is_some_and(&is_one));
        those.collect()
    }

    /// Dumps with room in their sinks whose oldest waiting packet is older than `frontier_ns`,
    /// oldest packets first. With `i64::MAX`, all such dumps with waiting packets.
    pub(super) fn due(&self, frontier_ns: i64) -> Vec<u64> {
        let due = self.due.range(..(frontier_ns, 0));
        due.map(|(_, id)| *id).collect()
    }

    /// Closed dumps with waiting packets, all of whose records are within reach.
    pub(super) fn over(&mut self, reach: &Reach) -> Vec<u64> {
        self.closed_that(|dump| !dump.waiting.is_empty() && dump.is_over(reach))
    }

    /// Catching-up dumps whose sinks have no room.
    pub(super) fn without_room(&mut self) -> Vec<u64> {
        self.count(self.catching_up.len());
        let behind = self.catching_up.iter().copied();
        let has_room = |id: &u64| self.by_id.get(id).is_none_or(ActiveDump::has_room);
        behind.filter(|id| !has_room(id)).collect()
    }

    /// The dumps that changed since [`Self::take_changed`].
    pub(super) fn changed(&self) -> Vec<u64> {
        self.changed.clone()
    }

    /// Returns the dumps that changed, and starts a new list.
    pub(super) fn take_changed(&mut self) -> Vec<u64> {
        let changed = std::mem::take(&mut self.changed);
        for id in &changed {
            if let Some(dump) = self.by_id.get_mut(id) {
                dump.is_changed = false;
            }
        }
        changed
    }

    /// The buckets with records within reach that some dump needs and can read now, oldest first,
    /// but each producer's buckets in order. `is_waited_for`: read buckets must be released, also
    /// of producers without new records.
    pub(super) fn visits(&mut self, reach: &Reach, is_waited_for: bool) -> Vec<BucketVisit> {
        let mut found = HashMap::new();
        self.follow(reach, is_waited_for, &mut found);
        self.catch_up(reach, &mut found);
        let mut visits: Vec<BucketVisit> = found.into_values().collect();
        // The state of a filter depends on the order of a producer's records.
        let place = |visit: &BucketVisit| (visit.info.producer, visit.info.first);
        visits.sort_by_key(|visit| Reverse(place(visit)));
        let mut behind = (usize::MAX, i64::MAX);
        for visit in &mut visits {
            if visit.info.producer != behind.0 {
                behind = (visit.info.producer, i64::MAX);
            }
            behind.1 = visit.info.min_ns.min(behind.1);
            visit.until_ns = behind.1;
        }
        visits.sort_by_key(|visit| (visit.until_ns, place(visit)));
        let mut until_ns = i64::MAX;
        for visit in visits.iter_mut().rev() {
            visit.until_ns = until_ns;
            until_ns = visit.info.min_ns.min(until_ns);
        }
        visits
    }

    /// Adds to `found` the records that following dumps have not read.
    fn follow(
        &mut self,
        reach: &Reach,
        is_waited_for: bool,
        found: &mut HashMap<BucketRef, BucketVisit>,
    ) {
        self.listed.clear();
        let Some(SharedReading { reading, window }) = &mut self.following else {
            return;
        };
        for producer in 0..self.ring.producers() {
            if is_waited_for || reach.is_beyond(&self.passed, producer) {
                // Lists also the bucket of the last record that was read: it may be closed by now,
                // and can then be released.
                let from = self.passed.limit(producer).saturating_sub(1);
                self.ring.buckets_from(producer, from, &mut self.listed);
            }
        }
        for info in &self.listed {
            let records = self.passed.limit_in(info)..info.committed.min(reach.limit_in(info));
            if records.is_empty() {
                continue;
            }
            if info.min_ns > window.1 || info.max_ns < window.0 {
                reading.has_read(info.bucket, records.end);
                continue;
            }
            let visit = found
                .entry(info.bucket)
                .or_insert_with(|| BucketVisit::new(*info));
            visit.extend(*window);
            for id in &self.scripted {
                let limit = |dump: &ActiveDump| records.end.min(dump.limit(info, reach));
                visit.scripted.push(WantedRecords {
                    id: *id,
                    records: records.start..self.by_id.get(id).map_or(0, limit),
                });
            }
            visit.following = records;
        }
    }

    /// Adds to `found` the records that catching-up dumps have not read.
    fn catch_up(&mut self, reach: &Reach, found: &mut HashMap<BucketRef, BucketVisit>) {
        self.count(self.catching_up.len());
        let mut infos = Vec::new();
        for id in &self.catching_up {
            let Some(dump) = self.by_id.get_mut(id) else {
                continue;
            };
            let can_read = dump.can_read();
            let Some(reading) = dump.reading.as_ref().filter(|_| can_read) else {
                // The frontier of the pass in which the dump last read.
                dump.leave_unread(self.passed.frontier_ns);
                dump.reading.iter().for_each(WindowReading::set_yielding);
                continue;
            };
            dump.unread_ns = i64::MAX;
            reading.buckets(&mut infos);
            for info in &infos {
                let records = reading.unread(info, dump.limit(info, reach));
                if records.is_empty() {
                    continue;
                }
                let visit = found
                    .entry(info.bucket)
                    .or_insert_with(|| BucketVisit::new(*info));
                visit.extend((dump.order.looks_from_ns(), dump.end_ns));
                let want = WantedRecords { id: *id, records };
                if dump.order.predicate.script().is_some() {
                    visit.scripted.push(want.clone());
                }
                visit.wanted.push(want);
            }
        }
    }

    /// Removes dumps that do not read on from this visit. They leave this bucket and the next
    /// buckets of the pass unread.
    pub(super) fn leave_out_full(&mut self, visit: &mut BucketVisit, reach: &Reach) {
        let unread_ns = visit.info.min_ns.min(visit.until_ns);
        let unread_ns = unread_ns.min(reach.frontier_ns);
        let full = std::mem::take(&mut self.full);
        self.leave(full, unread_ns);
        self.count(visit.wanted.len() + visit.scripted.len());
        let by_id = &mut self.by_id;
        let mut reads = |want: &WantedRecords| {
            let dump = by_id.get_mut(&want.id);
            dump.is_some_and(|dump| dump.reads_on(unread_ns))
        };
        visit.wanted.retain(&mut reads);
        visit.scripted.retain(&mut reads);
    }

    /// Notes that the first `to` records of a visited bucket are read for all its dumps. Dumps that
    /// catch up can release the bucket at once, because their pass may be long.
    pub(super) fn has_read(&mut self, visit: &BucketVisit, to: u32) {
        let bucket = visit.info.bucket;
        if let Some(following) = &mut self.following
            && !visit.following.is_empty()
        {
            let end = visit.following.end.min(to);
            following.reading.has_read(bucket, end);
        }
        self.count(visit.wanted.len());
        for want in &visit.wanted {
            let dump = self.by_id.get_mut(&want.id);
            if let Some(reading) = dump.and_then(|dump| dump.reading.as_mut()) {
                reading.has_read(bucket, want.records.end.min(to));
                reading.give_back(std::slice::from_ref(&visit.info));
            }
        }
    }

    /// Ends a pass: dumps learn which packets they lost, dumps that have caught up begin to follow,
    /// and read buckets are released.
    pub(super) fn settle(&mut self, reach: &Reach) {
        self.passed.clone_from(reach);
        self.tell_lost();
        self.join();
        let mut full = std::mem::take(&mut self.full);
        full.retain(|id| self.by_id.get(id).is_some_and(|dump| !dump.is_over(reach)));
        self.leave(full, reach.frontier_ns);
        if let Some(following) = &mut self.following {
            following.reading.give_back(&self.listed);
        }
    }

    fn tell_lost(&mut self) {
        let news = self.ring.reservation_news();
        if std::mem::replace(&mut self.news, news) == news {
            return;
        }
        self.count(self.catching_up.len());
        for id in &self.catching_up {
            if let Some(dump) = self.by_id.get_mut(id) {
                dump.ask_what_fell();
            }
        }
        self.tell_followers_lost();
    }

    fn tell_followers_lost(&mut self) {
        let following = self.following.as_mut();
        let Some(lost) = following.map(|following| following.reading.lost()) else {
            return;
        };
        if !lost.is_none() {
            self.count(self.by_id.len());
            let followers = self.by_id.values_mut();
            for dump in followers.filter(|dump| dump.reading.is_none()) {
                dump.lose(&lost);
            }
        }
    }

    /// Tries to end the catching-up of dumps that have read all records within reach.
    fn join(&mut self) {
        self.count(self.catching_up.len());
        let has_caught_up = |id: &u64| {
            let dump = self.by_id.get(id);
            dump.is_some_and(|dump| dump.unread_ns == i64::MAX && dump.has_room())
        };
        let behind = self.catching_up.iter().copied();
        let caught_up: Vec<u64> = behind.filter(has_caught_up).collect();
        for id in caught_up {
            let Some(dump) = self.by_id.get_mut(&id) else {
                continue;
            };
            let window = if dump.is_over(&self.passed) {
                None
            } else {
                // The shared reservation is created before the dump's own reservation is asked for
                // the last time. So no eviction falls between the two.
                let following = self.following.get_or_insert_with(|| SharedReading {
                    reading: WindowReading::resume_at(
                        &self.ring,
                        &self.passed,
                        None,
                        (i64::MIN, i64::MAX),
                    ),
                    window: (i64::MAX, i64::MIN),
                });
                Some(&mut following.window)
            };
            // If packets were overwritten just now, the dump joins later: the shared reservation
            // may report the same packets to all following dumps.
            if dump.ask_what_fell() {
                continue;
            }
            dump.reading = None;
            self.catching_up.remove(&id);
            if let Some(window) = window {
                let (from_ns, to_ns) = (dump.order.looks_from_ns(), dump.end_ns);
                *window = (window.0.min(from_ns), window.1.max(to_ns));
                if dump.order.predicate.script().is_some() {
                    self.scripted.insert(id);
                }
            }
        }
    }

    /// Stops following dumps until their filters are compiled for new link types.
    pub(super) fn wait_for_filters(&mut self, ids: Vec<u64>) {
        self.leave(ids, self.passed.frontier_ns);
    }

    /// Moves following dumps that cannot read on back to catching up, each with its own reservation
    /// for its unread records. `unread_ns`: these records usually have no older packets.
    fn leave(&mut self, ids: Vec<u64>, unread_ns: i64) {
        for id in ids {
            let dump = self.by_id.get(&id);
            let Some(dump) = dump.filter(|dump| dump.reading.is_none()) else {
                continue;
            };
            let window = (dump.order.looks_from_ns(), dump.end_ns);
            self.tell_followers_lost();
            let following = self.following.as_ref().map(|following| &following.reading);
            let reading = WindowReading::resume_at(&self.ring, &self.passed, following, window);
            reading.set_yielding();
            if let Some(dump) = self.by_id.get_mut(&id) {
                dump.reading = Some(reading);
                dump.leave_unread(unread_ns);
            }
            self.scripted.remove(&id);
            self.catching_up.insert(id);
        }
    }

    /// Counts dumps that a function inspects, so that tests can bound the cost of a round.
    #[cfg(test)]
    fn count(&mut self, dumps: usize) {
        self.looks += dumps;
    }

    #[cfg(not(test))]
    fn count(&self, _: usize) {}
}
