//! Where shards are: with their inserters, with threads of their own, or in their seats, where the analyzer finds them.
//!
//! A shard moves between two bursts, and its place among the records of its producer is all that it takes along. Live, an inserter that has it claims
//! the records that it stores, before it stores them, and looks at them while it has the frames in its cache. All others are the analyzer's,
//! which reads them from the ring. An inserter takes the shard back where the analyzer has read everything that it stored.
//! So each record is looked at once, in order.
//!
//! Where shards have [readers](crate::analysis::shard_reader) of their own, all records are claimed. From files the analyzer, which goes
//! through all packets in order, waits for them.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{
            AtomicBool, AtomicI64, AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
};

use crate::{
    analysis::{
        director::HitOrder,
        hit_queue::HitQueue,
        shard::{RemovedRules, Shard},
        triggers::RuleChange,
    },
    control::{durations::ProcessingTimes, lock},
};

/// Gaps of one reader that wait.
const GAPS_MAX: usize = 256;
/// Hits of one shard that wait from files: it looks no further until the analyzer has taken some.
const WAITING_MAX: usize = 65_536;

/// The place of one shard, on cache lines of its own: its inserter writes the mark once a burst.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct ShardSlot {
    /// Empty while the inserter has it.
    shard: Mutex<Option<Box<Shard>>>,
    /// Records of the producer before this are not the analyzer's to look at. Only an inserter writes this.
    claimed: AtomicU64,
    /// What changed in the rules since the shard last looked at packets, and whether anything did.
    changes: Mutex<Vec<RuleChange>>,
    has_changes: AtomicBool,
    /// Rules that the shard no longer has, for another thread to drop.
    gone: Mutex<RemovedRules>,
    /// What was found elsewhere, for the analyzer; live …
    hits: Mutex<HitQueue>,
    /// … and from files.
    found: Mutex<FileFindings>,
    moved: Condvar,
    /// Live, where it has a reader of its own: none of its packets that is still to be looked at is older than this, ns of ring time.
    pub(crate) promised_ns: AtomicI64,
    /// Whoever has the shard times it.
    pub(crate) times: Arc<ProcessingTimes>,
    /// How many records it looked at.
    pub(crate) analyzed: AtomicU64,
    /// Those that it did not.
    gaps: Mutex<Vec<UnanalyzedGap>>,
}

/// Packets of a producer that nobody looked at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UnanalyzedGap {
    pub(crate) producer: usize,
    /// Where they were, ns of ring time.
    pub(crate) span_ns: (i64, i64),
    pub(crate) packets: u64,
    /// Overwritten before; else left at a stop.
    pub(crate) is_lapped: bool,
}

/// What a shard found in a file so far.
#[derive(Debug, Default)]
struct FileFindings {
    hits: VecDeque<HitOrder>,
    /// The records before this one were looked at.
    looked: u64,
    /// The analyzer takes nothing any more.
    is_over: bool,
}

/// Who looks at packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AnalysisPlacement {
    /// The analyzer, with one shard.
    Analyzer,
    /// Live, each inserter with a shard of its own, and where it has no time the analyzer.
    Inserters,
    /// Readers of their own, one a shard.
    Readers,
}

/// The seats of all shards.
#[derive(Debug)]
pub(crate) struct ShardSlots {
    slots: Vec<ShardSlot>,
    pub(crate) placement: AnalysisPlacement,
    /// Whether hits are wanted.
    armed: AtomicBool,
}

impl ShardSlots {
    /// For these shards: the producers are divided among them. Where inserters have them there is one for each producer.
    pub(crate) fn new(shards: Vec<Shard>, placement: AnalysisPlacement) -> Self {
        let is_read = placement == AnalysisPlacement::Readers;
        let slot = |shard| ShardSlot {
            shard: Mutex::new(Some(Box::new(shard))),
            claimed: AtomicU64::new(if is_read { u64::MAX } else { 0 }),
            changes: Mutex::default(),
            has_changes: AtomicBool::default(),
            gone: Mutex::default(),
            hits: Mutex::default(),
            found: Mutex::default(),
            moved: Condvar::new(),
            promised_ns: AtomicI64::new(if is_read { i64::MIN } else { i64::MAX }),
            times: Arc::default(),
            analyzed: AtomicU64::default(),
            gaps: Mutex::default(),
        };
        Self {
            slots: shards.into_iter().map(slot).collect(),
            placement,
            armed: AtomicBool::new(true),
        }
    }

    /// The seat of the shard that looks at a producer's packets, live.
    pub(crate) fn of(&self, producer: usize) -> &ShardSlot {
        &self.slots[producer % self.slots.len()]
    }

    pub(crate) fn all(&self) -> &[ShardSlot] {
        &self.slots
    }

    pub(crate) fn set_armed(&self, armed: bool) {
        // Relaxed: a hit that is found meanwhile is asked for again by the director.
        self.armed.store(armed, Relaxed);
    }

    /// The rules change for all shards: all of it between two packets.
    pub(crate) fn change_rules(&self, changes: &[RuleChange]) {
        let voids = Voids::of(changes);
        for slot in &self.slots {
            // Outside of the lock, for which an inserter waits: cloning thousands of rules takes
            // milliseconds, and so does dropping thousands.
            let changes = changes.to_vec();
            let mut waiting = lock(&slot.changes);
            let void = voids.push(&mut waiting, changes);
            slot.has_changes.store(true, Relaxed);
            drop(waiting);
            drop(void);
        }
    }

    /// Which of these rules, which were removed, some shard still has.
    pub(crate) fn known_of(&self, removed: &[usize]) -> HashSet<usize> {
        let mut known = HashSet::new();
        if removed.is_empty() {
            return known;
        }
        for slot in &self.slots {
            let changes = lock(&slot.changes);
            known.extend(changes.iter().filter_map(|change| match change {
                RuleChange::Remove(number) => Some(*number),
                _ => None,
            }));
        }
        known
    }

    pub(crate) fn are_armed(&self) -> bool {
        self.armed.load(Relaxed)
    }

    /// Live: none of the packets that readers of shards have still to look at is older than this, ns.
    pub(crate) fn promised_ns(&self) -> i64 {
        // Acquire: the hits before it have been told.
        let promised = self.slots.iter().map(|slot| slot.promised_ns.load(Acquire));
        promised.min().unwrap_or(i64::MAX)
    }

    /// From files: waits until all shards have looked at the record `next`. Returns the hits from there on, in order, up to a record before `end`
    /// or `end` itself, and that one.
    pub(crate) fn take_found(&self, next: u64, mut end: u64) -> (Vec<HitOrder>, u64) {
        for slot in &self.slots {
            let mut found = lock(&slot.found);
            while found.looked <= next {
                let waited = slot.moved.wait(found);
                found = waited.unwrap_or_else(PoisonError::into_inner);
            }
            end = end.min(found.looked);
        }
        let mut hits = Vec::new();
        for slot in &self.slots {
            let mut found = lock(&slot.found);
            let count = found.hits.partition_point(|order| order.record < end);
            hits.extend(found.hits.drain(..count));
            slot.moved.notify_all();
        }
        // Those of a record are all of one shard.
        hits.sort_by_key(|order| order.record);
        (hits, end)
    }

    /// The analyzer takes nothing any more.
    pub(crate) fn end(&self) {
        for slot in &self.slots {
            lock(&slot.found).is_over = true;
            slot.moved.notify_all();
        }
    }
}

impl ShardSlot {
    /// Runs `visit` with the shard, if it is here and nobody else has it.
    pub(crate) fn visit<R>(&self, visit: impl FnOnce(&mut Shard) -> R) -> Option<R> {
        self.try_lock()?.as_deref_mut().map(visit)
    }

    /// Runs `visit` with the shard, if it is here, and waits for who visits it now.
    pub(crate) fn visit_waiting<R>(&self, visit: impl FnOnce(&mut Shard) -> R) -> Option<R> {
        lock(&self.shard).as_deref_mut().map(visit)
    }

    /// The inserter takes it, if it is here and nobody else has it. The analyzer must have read all that was stored.
    pub(crate) fn take(&self) -> Option<Box<Shard>> {
        self.try_lock()?.take()
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, Option<Box<Shard>>>> {
        try_lock(&self.shard)
    }

    /// The inserter puts it back, before it stores what it does not claim.
    pub(crate) fn put_back(&self, shard: Box<Shard>) {
        *lock(&self.shard) = Some(shard);
    }

    /// Whether the shard has the rules as they are now: what it `found` by others was told.
    pub(crate) fn has_taken_up(&self) -> bool {
        lock(&self.changes).is_empty()
    }

    /// To be called before a shard looks at packets: takes up what changed in the rules. What it `found` by the rules as they were is told before.
    pub(crate) fn refresh(&self, shard: &mut Shard, found: &mut HitQueue) {
        // Before the changes: who sees a set without a rule that was taken out sees the change too. Relaxed: ordered by the set's
        // publication, and the changes by the mutex.
        shard.rules.refresh();
        if self.has_changes.load(Relaxed) {
            self.tell(found);
            let changes = {
                let mut changes = lock(&self.changes);
                self.has_changes.store(false, Relaxed);
                std::mem::take(&mut *changes)
            };
            let gone = shard.change(changes);
            lock(&self.gone).append(gone);
        }
    }

    /// The inserter looks at the records before `end`. To be called before they are stored, and again, with no less than what was
    /// stored, if some of them were not.
    pub(crate) fn claim(&self, end: u64) {
        // Relaxed: ordered before the records by their publication (the ring's edge P1).
        self.claimed.store(end, Relaxed);
    }

    /// To be asked after some records of the producer were found: those before this are not to be looked at.
    pub(crate) fn claimed(&self) -> u64 {
        // Relaxed: whoever sees a record published also sees the claim that was made before it (the ring's edge P1).
        self.claimed.load(Relaxed)
    }

    /// An inserter, which never waits, found these: it keeps them while the analyzer is just taking what was told before. To be called
    /// before its watermark moves past them, which must wait too: a window that takes one of them is then open before it could close.
    pub(crate) fn try_tell(&self, hits: &mut HitQueue) {
        if let Some(mut told) = try_lock(&self.hits) {
            told.append(hits);
        }
    }

    /// The same for who may wait.
    pub(crate) fn tell(&self, hits: &mut HitQueue) {
        lock(&self.hits).append(hits);
    }

    /// Drops the rules that the shard no longer has, on the caller's thread: milliseconds for
    /// thousands of rules.
    pub(crate) fn drop_gone(&self) {
        let gone = std::mem::take(&mut *lock(&self.gone));
        drop(gone);
    }

    /// What was told live.
    pub(crate) fn take_hits(&self) -> HitQueue {
        std::mem::take(&mut *lock(&self.hits))
    }

    /// From files: the shard has looked at its records before `looked`, and found these, the last of all. Waits while too many wait.
    pub(crate) fn tell_found(&self, hits: &mut Vec<HitOrder>, looked: u64) {
        let mut found = lock(&self.found);
        found.hits.extend(hits.drain(..));
        found.looked = looked;
        self.moved.notify_all();
        while found.hits.len() > WAITING_MAX && !found.is_over {
            let waited = self.moved.wait(found);
            found = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The reader of the shard did not see these. Of too many that wait, those that come last stand together.
    pub(crate) fn miss(&self, gap: UnanalyzedGap) {
        let mut gaps = lock(&self.gaps);
        let is_full = gaps.len() >= GAPS_MAX;
        match gaps.last_mut() {
            Some(last) if is_full && last.is_lapped == gap.is_lapped => {
                last.packets += gap.packets;
                last.span_ns.0 = last.span_ns.0.min(gap.span_ns.0);
                last.span_ns.1 = last.span_ns.1.max(gap.span_ns.1);
            }
            _ => gaps.push(gap),
        }
    }

    /// What [`Self::miss`] told.
    pub(crate) fn take_gaps(&self) -> Vec<UnanalyzedGap> {
        std::mem::take(&mut *lock(&self.gaps))
    }

    /// Live: the reader of the shard has told what it found among packets older than this, ns.
    pub(crate) fn promise(&self, promised_ns: i64) {
        self.promised_ns.store(promised_ns, Release);
    }
}

/// The waiting changes that newer changes make void. On a silent link no shard takes changes up,
/// and the list would grow.
#[derive(Debug)]
struct Voids {
    /// By number of a rule that is removed, enabled or disabled: whether it is removed. Each rule
    /// occurs in one change at most.
    by_rule: HashMap<usize, bool>,
    has_default: bool,
}

impl Voids {
    fn of(changes: &[RuleChange]) -> Self {
        let mut voids = Self {
            by_rule: HashMap::new(),
            has_default: false,
        };
        for change in changes {
            match change {
                RuleChange::Remove(number) => _ = voids.by_rule.insert(*number, true),
                RuleChange::Enable(number, _) => _ = voids.by_rule.insert(*number, false),
                RuleChange::Default(_) => voids.has_default = true,
                RuleChange::Add(..) => {}
            }
        }
        voids
    }

    fn voids(&self, before: &RuleChange) -> bool {
        match before {
            RuleChange::Add(rule, _) => self.by_rule.get(&rule.number) == Some(&true),
            RuleChange::Enable(number, _) => self.by_rule.contains_key(number),
            RuleChange::Default(_) => self.has_default,
            RuleChange::Remove(_) => false,
        }
    }

    /// Adds the changes to those that wait. Returns what is void.
    fn push(&self, waiting: &mut Vec<RuleChange>, mut changes: Vec<RuleChange>) -> Vec<RuleChange> {
        let void: Vec<RuleChange> = waiting.extract_if(.., |it| self.voids(it)).collect();
        let number = |change: &RuleChange| match change {
            RuleChange::Add(rule, _) => Some(rule.number),
            _ => None,
        };
        let never_known: HashSet<usize> = void.iter().filter_map(number).collect();
        changes.retain(|change| match change {
            RuleChange::Remove(number) => !never_known.contains(number),
            _ => true,
        });
        waiting.append(&mut changes);
        void
    }
}

fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(place) => Some(place),
        Err(TryLockError::Poisoned(place)) => Some(place.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

#[cfg(test)]
mod tests {
    use retroscope_filter::Filter;
    use retroscope_packet::LinkType;
    use retroscope_ring::{Ring, RingConfig};

    use super::*;
    use crate::{
        analysis::{
            prepared::{PreparedFilter, mode},
            triggers::Rule,
        },
        control::common::RecorderShared,
        intake::{Intake, inline::inline_of_test},
        tests::rig::FakeClock,
    };

    fn added(number: usize) -> RuleChange {
        let rule = Rule {
            number,
            text: "udp port 8".to_owned(),
            prepared: PreparedFilter::new(Filter::resolved("udp port 8").unwrap(), mode(false)),
            hits: Arc::default(),
            is_enabled: true,
        };
        RuleChange::Add(Box::new(rule), None)
    }

    /// On a link that is silent nobody takes changes up: what waits is no more than there are rules.
    #[test]
    fn changes_that_are_over_do_not_wait() {
        let ring = Ring::new(&RingConfig::new(16 << 20, 1, 1), None).unwrap();
        let sources = std::iter::once(("a".to_owned(), 1));
        let intake = Intake::new(sources, Arc::default(), false);
        let common = RecorderShared::new(ring, Arc::new(FakeClock::default()), intake);
        let (parts, _reader) = inline_of_test("udp port 7", LinkType::RAW, &common);
        let slots = &parts.slots;
        let waiting = || lock(&slots.all()[0].changes).len();
        for number in 1..1000 {
            let is_enabled = number % 2 == 0;
            slots.change_rules(&[RuleChange::Enable(0, is_enabled)]);
            slots.change_rules(&[RuleChange::Remove(number - 1), added(number)]);
            slots.change_rules(&[RuleChange::Enable(number, is_enabled)]);
            assert!(waiting() <= 4, "{number}: {}", waiting());
        }
        let mut shard = slots.of(0).take().unwrap();
        slots.of(0).refresh(&mut shard, &mut HitQueue::default());
        let known = shard.known_rules();
        let known: Vec<_> = known
            .iter()
            .map(|(number, it)| (*number, it.is_enabled))
            .collect();
        assert_eq!((known, waiting()), (vec![(999, false)], 0));
    }

    /// A reload of all rules while an inserter has the shard: the inserter takes the new rules, and
    /// another thread drops the old rules.
    #[test]
    fn an_inserter_drops_no_rule() {
        const RULES: usize = 16_000;
        let ring = Ring::new(&RingConfig::new(16 << 20, 1, 1), None).unwrap();
        let sources = std::iter::once(("a".to_owned(), 1));
        let intake = Intake::new(sources, Arc::default(), false);
        let common = RecorderShared::new(ring, Arc::new(FakeClock::default()), intake);
        let (parts, _reader) = inline_of_test("udp port 7", LinkType::RAW, &common);
        let (slots, slot) = (&parts.slots, parts.slots.of(0));
        let mut shard = slot.take().unwrap();
        let mut found = HitQueue::default();
        let first: Vec<_> = (1..=RULES).map(added).collect();
        let hits = first.iter().map(|change| match change {
            RuleChange::Add(rule, _) => Arc::downgrade(&rule.hits),
            _ => panic!("{change:?}"),
        });
        let hits: Vec<_> = hits.collect();
        slots.change_rules(&first);
        drop(first);
        slot.refresh(&mut shard, &mut found);
        let removed = (1..=RULES).map(RuleChange::Remove);
        let second = removed.chain((RULES + 1..=2 * RULES).map(added));
        let second: Vec<_> = second.collect();
        slots.change_rules(&second);
        let start = std::time::Instant::now();
        slot.refresh(&mut shard, &mut found);
        eprintln!("{RULES} rules by others: {:?}", start.elapsed());
        assert_eq!(shard.known_rules().len(), 1 + RULES);
        let left = || hits.iter().filter(|hits| hits.strong_count() > 0).count();
        assert_eq!(left(), RULES, "they wait for the analyzer");
        slot.drop_gone();
        assert_eq!(left(), 0);
    }
}
