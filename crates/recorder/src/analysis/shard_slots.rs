//! The slot of each shard, and the thread that runs the shard: an inserter, a reader, or the
//! analyzer.
//!
//! With [`AnalysisPlacement::Inserters`], a shard can change between the threads of its inserter
//! and of the analyzer. Only the thread that has the shard's
//! [reader](crate::analysis::shard_reader) analyzes packets for the shard, so no record is analyzed
//! twice.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{
            AtomicBool, AtomicI64,
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
    control::{lock, threads::ShardCounters, try_lock},
};

/// From this number of pending gaps of a reader on, [`ShardSlot::miss`] merges a gap into the last
/// gap if both have the same cause.
const GAPS_MAX: usize = 256;
/// From files: with more pending hits than this, a shard waits until the analyzer takes some or
/// ends.
const WAITING_MAX: usize = 65_536;

/// The slot of one shard.
#[derive(Debug)]
pub(crate) struct ShardSlot {
    /// The shard; empty while the inserter has the shard.
    shard: Mutex<Option<Box<Shard>>>,
    /// Rule changes that the shard has not taken yet.
    changes: Mutex<Vec<RuleChange>>,
    has_changes: AtomicBool,
    /// Removed rules and templates of the shard, until the analyzer drops these.
    gone: Mutex<RemovedRules>,
    /// Live: findings of an inserter or reader for the analyzer.
    hits: Mutex<HitQueue>,
    /// Files: findings of a reader for the analyzer.
    found: Mutex<FileFindings>,
    moved: Condvar,
    /// Live, with a reader: watermark of the packets that the reader has passed, ns of ring time.
    pub(crate) promised_ns: AtomicI64,
    pub(crate) counters: Arc<ShardCounters>,
    /// Packets that the reader did not analyze, until the analyzer takes these gaps.
    gaps: Mutex<Vec<UnanalyzedGap>>,
}

/// Packets of a producer that were not analyzed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UnanalyzedGap {
    pub(crate) producer: usize,
    /// Time range of the packets, ns of ring time.
    pub(crate) span_ns: (i64, i64),
    pub(crate) packets: u64,
    /// `true`: overwritten unread. `false`: left unread when the recording stopped.
    pub(crate) is_lapped: bool,
}

/// From files: findings of a shard that the analyzer has not taken yet.
#[derive(Debug, Default)]
struct FileFindings {
    hits: VecDeque<HitOrder>,
    /// No further hits come from records before this number.
    looked: u64,
    /// The analyzer takes no more findings.
    is_over: bool,
}

/// The threads that analyze packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AnalysisPlacement {
    /// The analyzer analyzes all packets, with one shard.
    Analyzer,
    /// Live: each inserter runs the reader of its own shard, or if it has no time, the analyzer's
    /// thread may.
    Inserters,
    /// Live: reader threads, one for each shard. The readers divide the producers.
    Readers,
    /// Reader threads, one for each shard. Each reads all packets, and analyzes the packets that
    /// inserters assigned to its shard.
    ShardReaders,
}

impl AnalysisPlacement {
    /// Whether each shard has a [reader](crate::analysis::shard_reader).
    pub(crate) fn has_readers(self) -> bool {
        self != Self::Analyzer
    }
}

#[derive(Debug)]
pub(crate) struct ShardSlots {
    slots: Vec<ShardSlot>,
    pub(crate) placement: AnalysisPlacement,
    /// Whether shards should report hits.
    armed: AtomicBool,
}

impl ShardSlots {
    /// If inserters run the shards, `shards` must have one shard for each producer.
    pub(crate) fn new(shards: Vec<Shard>, placement: AnalysisPlacement) -> Self {
        let is_read = placement.has_readers();
        let slot = |(number, mut shard): (usize, Shard)| {
            shard.number = number;
            ShardSlot {
                shard: Mutex::new(Some(Box::new(shard))),
                changes: Mutex::default(),
                has_changes: AtomicBool::default(),
                gone: Mutex::default(),
                hits: Mutex::default(),
                found: Mutex::default(),
                moved: Condvar::new(),
                promised_ns: AtomicI64::new(if is_read { i64::MIN } else { i64::MAX }),
                counters: Arc::default(),
                gaps: Mutex::default(),
            }
        };
        Self {
            slots: shards.into_iter().enumerate().map(slot).collect(),
            placement,
            armed: AtomicBool::new(true),
        }
    }

    /// The slot of the shard for a producer's packets. With [`AnalysisPlacement::ShardReaders`],
    /// the shard may depend on the packet instead.
    pub(crate) fn of(&self, producer: usize) -> &ShardSlot {
        &self.slots[producer % self.slots.len()]
    }

    pub(crate) fn all(&self) -> &[ShardSlot] {
        &self.slots
    }

    pub(crate) fn set_armed(&self, armed: bool) {
        // Relaxed: a shard may see the change late. The director checks again whether a hit is
        // wanted.
        self.armed.store(armed, Relaxed);
    }

    /// Queues changes for all shards. A shard applies the changes of a call between two packets.
    pub(crate) fn change_rules(&self, changes: &[RuleChange]) {
        let voids = Voids::of(changes);
        for slot in &self.slots {
            // Clone and drop outside of the lock, for which an inserter may wait: thousands of
            // rules take milliseconds.
            let changes = changes.to_vec();
            let mut waiting = lock(&slot.changes);
            let void = voids.push(&mut waiting, changes);
            slot.has_changes.store(true, Relaxed);
            drop(waiting);
            drop(void);
        }
    }

    /// Rules whose removal some shard has not taken yet; empty if `removed` is.
    pub(crate) fn still_known(&self, removed: &[usize]) -> HashSet<usize> {
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

    /// Live: the smallest [`ShardSlot::promised_ns`] of all shards.
    pub(crate) fn promised_ns(&self) -> i64 {
        // Acquire, pairs with Release in `ShardSlot::promise`: the promised hits are in the queues.
        let promised = self.slots.iter().map(|slot| slot.promised_ns.load(Acquire));
        promised.min().unwrap_or(i64::MAX)
    }

    /// Files: waits until all shards are past record `next`. Returns the hits up to before a
    /// record, in order, and this record, `end` at most.
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
        // Stable: the hits of one record come from one shard, and stay in its order.
        hits.sort_by_key(|order| order.record);
        (hits, end)
    }

    /// The analyzer takes no more findings.
    pub(crate) fn end(&self) {
        for slot in &self.slots {
            lock(&slot.found).is_over = true;
            slot.moved.notify_all();
        }
    }
}

impl ShardSlot {
    /// Runs `visit` with the shard. `None`: another thread has or uses the shard.
    pub(crate) fn visit<R>(&self, visit: impl FnOnce(&mut Shard) -> R) -> Option<R> {
        self.try_lock()?.as_deref_mut().map(visit)
    }

    /// Runs `visit` with the shard, after another thread that uses it now. `None`: an inserter has
    /// the shard.
    pub(crate) fn visit_waiting<R>(&self, visit: impl FnOnce(&mut Shard) -> R) -> Option<R> {
        lock(&self.shard).as_deref_mut().map(visit)
    }

    /// Takes the shard for the inserter, if it is in its slot and free.
    pub(crate) fn take(&self) -> Option<Box<Shard>> {
        self.try_lock()?.take()
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, Option<Box<Shard>>>> {
        try_lock(&self.shard)
    }

    pub(crate) fn put_back(&self, shard: Box<Shard>) {
        *lock(&self.shard) = Some(shard);
    }

    /// Whether the shard has taken all rule changes, so that its earlier hits are in the queue.
    pub(crate) fn is_up_to_date(&self) -> bool {
        lock(&self.changes).is_empty()
    }

    /// Applies pending rule changes, after queueing hits of the old rules in `found`. Call this
    /// before a shard analyzes packets.
    pub(crate) fn refresh(&self, shard: &mut Shard, found: &mut HitQueue) {
        // Refresh before reading `has_changes`: a shard that sees the rule set without a removed
        // rule then also sees the change. Relaxed is enough, because publishing the set orders the
        // flag and the mutex orders the changes.
        shard.rules.refresh();
        if self.has_changes.load(Relaxed) {
            self.queue_hits(found);
            let changes = {
                let mut changes = lock(&self.changes);
                self.has_changes.store(false, Relaxed);
                std::mem::take(&mut *changes)
            };
            let gone = shard.change(changes);
            lock(&self.gone).append(gone);
        }
    }

    /// Queues hits without waiting: if the queue is locked, the hits stay in `hits`. While an
    /// inserter keeps hits, its [promise](Self::promise) must not move past them, so that a window
    /// opens before it could close.
    pub(crate) fn try_queue_hits(&self, hits: &mut HitQueue) {
        if let Some(mut told) = try_lock(&self.hits) {
            told.append(hits);
        }
    }

    /// Queues hits; may wait for the analyzer.
    pub(crate) fn queue_hits(&self, hits: &mut HitQueue) {
        lock(&self.hits).append(hits);
    }

    /// Drops removed rules: milliseconds for thousands of rules.
    pub(crate) fn drop_gone(&self) {
        let gone = std::mem::take(&mut *lock(&self.gone));
        drop(gone);
    }

    /// Takes the hits that were queued live.
    pub(crate) fn take_hits(&self) -> HitQueue {
        std::mem::take(&mut *lock(&self.hits))
    }

    /// Files: queues hits of a shard that is past the records before `looked`. May wait while too
    /// many hits are pending.
    pub(crate) fn queue_found(&self, hits: &mut Vec<HitOrder>, looked: u64) {
        let mut found = lock(&self.found);
        found.hits.extend(hits.drain(..));
        found.looked = looked;
        self.moved.notify_all();
        while found.hits.len() > WAITING_MAX && !found.is_over {
            let waited = self.moved.wait(found);
            found = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Records packets that the reader did not analyze.
    pub(crate) fn miss(&self, gap: UnanalyzedGap) {
        if gap.is_lapped {
            self.counters.missed.fetch_add(gap.packets, Relaxed);
        }
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

    pub(crate) fn take_gaps(&self) -> Vec<UnanalyzedGap> {
        std::mem::take(&mut *lock(&self.gaps))
    }

    #[cfg(test)]
    pub(crate) fn promised_ns(&self) -> i64 {
        self.promised_ns.load(Acquire)
    }

    /// Live: `promised_ns` is the watermark up to which the reader has queued hits.
    pub(crate) fn promise(&self, promised_ns: i64) {
        self.promised_ns.store(promised_ns, Release);
    }
}

/// Finds pending changes that newer changes make void. Otherwise the list would grow while a shard
/// applies no changes.
#[derive(Debug)]
struct Voids {
    /// By number, the rules that the newer changes remove (`true`), or enable or disable (`false`).
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

    /// Merges `changes` into the pending changes `waiting`. Returns the pending changes that are
    /// now void.
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
            scan: None,
        };
        RuleChange::Add(Box::new(rule), None)
    }

    /// A rule is replaced 999 times while no shard applies changes: at most 4 may be pending.
    #[test]
    fn changes_that_are_over_do_not_wait() {
        let mut config = RingConfig::new(16 << 20, 1, 1);
        config.releasing_readers = 1;
        let ring = Ring::new(&config, None).unwrap();
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

    /// An inserter that has the shard applies new rules; only [`ShardSlot::drop_gone`] drops the
    /// old rules.
    #[test]
    fn an_inserter_drops_no_rule() {
        const RULES: usize = 16_000;
        let mut config = RingConfig::new(16 << 20, 1, 1);
        config.releasing_readers = 1;
        let ring = Ring::new(&config, None).unwrap();
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
