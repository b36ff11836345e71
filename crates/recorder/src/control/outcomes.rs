//! The outcomes of hits by rule, for long-term monitoring.
//!
//! There may be thousands of rules: up to [`SERIES_MAX`] names have separate counters, and the
//! other rules share one set. A removed rule keeps its counters until another rule needs their
//! place.

use std::{
    collections::{BTreeMap, HashMap, btree_map::Entry},
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
    },
};

use crate::{
    analysis::director::MANUAL,
    control::{
        hits::{HitCounts, Reason},
        lock,
        progress::RuleSpending,
    },
};

/// Maximum number of names with separate counters.
const SERIES_MAX: usize = 256;

/// The outcomes of the hits of one rule, or of all rules without separate counters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleHits {
    /// The name of the rule; `None`: all rules without separate counters.
    pub rule: Option<String>,
    /// The outcomes since the name got its counters. The outcomes of earlier rules of this name are
    /// included.
    pub counts: HitCounts,
    /// Finished dumps of the rule.
    pub finished: u64,
    /// Bytes written by dumps of the rule, including open dumps: captured bytes, and the overhead
    /// of a file for each packet.
    pub bytes: u64,
}

/// The counters of a rule name, of manual triggers, or of several names together. No number is
/// ordered with another.
#[derive(Debug, Default)]
pub(crate) struct OutcomeCounters {
    triggers: AtomicU64,
    suppressed: [AtomicU64; Reason::ALL.len()],
    finished: AtomicU64,
    bytes: AtomicU64,
    /// The latest ring time that [`RuleCounters::note_hit`] got for a hit, ns; 0: no such hit.
    last_hit_ns: AtomicI64,
}

impl OutcomeCounters {
    /// Counts `hits` with this outcome; `None`: a dump. Only one thread at a time may call this.
    pub(crate) fn add(&self, reason: Option<Reason>, hits: u64) {
        let counter = match reason {
            None => &self.triggers,
            Some(reason) => &self.suppressed[reason as usize],
        };
        counter.store(counter.load(Relaxed) + hits, Relaxed);
    }

    /// Adds bytes and finished dumps. Only one thread at a time may call this.
    fn add_cost(&self, cost: RuleSpending) {
        for (counter, more) in [(&self.finished, cost.finished), (&self.bytes, cost.bytes)] {
            counter.store(counter.load(Relaxed) + more, Relaxed);
        }
    }

    /// Adds all counts of other counters. Only one thread at a time may call this.
    fn add_all(&self, other: &Self) {
        self.add(None, other.triggers.load(Relaxed));
        for reason in Reason::ALL {
            let hits = other.suppressed[reason as usize].load(Relaxed);
            self.add(Some(reason), hits);
        }
        self.add_cost(RuleSpending {
            bytes: other.bytes.load(Relaxed),
            finished: other.finished.load(Relaxed),
        });
    }

    fn add_to(&self, counts: &mut HitCounts) {
        counts.triggers += self.triggers.load(Relaxed);
        for reason in Reason::ALL {
            let suppressed = self.suppressed[reason as usize].load(Relaxed);
            counts.suppressed.add(reason, suppressed);
        }
    }
}

/// The counters of rules and of manual triggers, for the director. A rule without an entry is not
/// counted.
#[derive(Debug, Default)]
pub(crate) struct RuleCounters(HashMap<usize, Arc<OutcomeCounters>>);

impl RuleCounters {
    /// The counters of the rules with these numbers, and of manual triggers.
    pub(crate) fn of(outcomes: &Outcomes, numbers: impl IntoIterator<Item = usize>) -> Self {
        let mut counters = Self(HashMap::from([(MANUAL, Arc::clone(&outcomes.by_hand))]));
        numbers
            .into_iter()
            .for_each(|number| counters.add_rule(outcomes, number));
        counters
    }

    pub(crate) fn add_rule(&mut self, outcomes: &Outcomes, number: usize) {
        if let Some(of_rule) = outcomes.of(number) {
            self.0.insert(number, of_rule);
        }
    }

    pub(crate) fn remove_rule(&mut self, number: usize) {
        self.0.remove(&number);
    }

    /// Notes the ring time of a hit.
    pub(crate) fn note_hit(&self, rule: usize, time_ns: i64) {
        if let Some(counters) = self.0.get(&rule) {
            counters.last_hit_ns.fetch_max(time_ns, Relaxed);
        }
    }

    /// Counts `hits` of a rule with this outcome; `None`: a dump.
    pub(crate) fn add(&self, rule: usize, reason: Option<Reason>, hits: u64) {
        if let Some(counters) = self.0.get(&rule) {
            counters.add(reason, hits);
        }
    }

    pub(crate) fn add_cost(&self, rule: usize, cost: RuleSpending) {
        if let Some(counters) = self.0.get(&rule) {
            counters.add_cost(cost);
        }
    }
}

/// Numbers of rules with `single` that have started their dump, until the table of rules disables
/// these rules.
#[derive(Debug, Clone, Default)]
pub(crate) struct FiredRules(Arc<Mutex<Vec<usize>>>);

impl FiredRules {
    pub(crate) fn add(&self, number: usize) {
        lock(&self.0).push(number);
    }

    pub(crate) fn take(&self) -> Vec<usize> {
        std::mem::take(&mut lock(&self.0))
    }
}

/// The counters of all rules by name.
#[derive(Debug, Default)]
pub(crate) struct Outcomes {
    pub(crate) fired: FiredRules,
    names: Mutex<Names>,
    /// The counters of manual triggers, which have no rule.
    by_hand: Arc<OutcomeCounters>,
}

#[derive(Debug, Default)]
struct Names {
    series: BTreeMap<String, Series>,
    /// The counters that all rules without separate counters share.
    rest: Arc<OutcomeCounters>,
    /// Counters of names that were dropped while their rules may still count something, for example
    /// because dumps are open.
    past: Vec<Arc<OutcomeCounters>>,
    /// The sum of counters that no longer change.
    closed: OutcomeCounters,
    /// Name and counters by rule number.
    by_number: HashMap<usize, (Arc<str>, Arc<OutcomeCounters>)>,
    removals: u64,
}

#[derive(Debug)]
struct Series {
    counters: Arc<OutcomeCounters>,
    /// The number of the removal, counted from 1; `None`: the rule exists.
    removed: Option<u64>,
}

impl Names {
    /// Drops the name that was removed first, if any. Adds counters that no rule uses any more to
    /// `closed`.
    fn drop_oldest(&mut self) {
        let removed = self.series.iter();
        let removed = removed.filter_map(|(name, series)| Some((series.removed?, name)));
        if let Some(name) = removed.min().map(|(_, name)| name.clone()) {
            let series = self.series.remove(&name);
            self.past.extend(series.map(|series| series.counters));
        }
        for counters in std::mem::take(&mut self.past) {
            match Arc::try_unwrap(counters) {
                Ok(counters) => self.closed.add_all(&counters),
                Err(counters) => self.past.push(counters),
            }
        }
    }
}

impl Outcomes {
    /// Adds a rule with this number under a name. If the name exists, its counters now belong to
    /// this number too.
    pub(crate) fn add_rule(&self, number: usize, name: &str) {
        let names = &mut *lock(&self.names);
        let is_full = names.series.len() >= SERIES_MAX && !names.series.contains_key(name);
        if is_full {
            names.drop_oldest();
        }
        let has_room = names.series.len() < SERIES_MAX;
        let counters = match names.series.entry(name.to_owned()) {
            Entry::Occupied(mut place) => {
                place.get_mut().removed = None;
                Arc::clone(&place.get().counters)
            }
            Entry::Vacant(place) if has_room => {
                let counters = Arc::<OutcomeCounters>::default();
                place.insert(Series {
                    counters: Arc::clone(&counters),
                    removed: None,
                });
                counters
            }
            Entry::Vacant(_) => Arc::clone(&names.rest),
        };
        names.by_number.insert(number, (name.into(), counters));
    }

    /// Notes that the rule of this name was removed.
    pub(crate) fn remove_rule(&self, name: &str) {
        let names = &mut *lock(&self.names);
        names.removals += 1;
        if let Some(series) = names.series.get_mut(name) {
            series.removed = Some(names.removals);
        }
    }

    /// Forgets the number of a rule that can have no more hits.
    pub(crate) fn forget(&self, number: usize) {
        lock(&self.names).by_number.remove(&number);
    }

    fn of(&self, number: usize) -> Option<Arc<OutcomeCounters>> {
        let names = lock(&self.names);
        let of_rule = names.by_number.get(&number);
        of_rule.map(|(_, counters)| Arc::clone(counters))
    }

    /// The name of the rule with this number. A removed rule keeps its name until [`Self::forget`].
    pub(crate) fn name(&self, number: usize) -> Option<Arc<str>> {
        let names = lock(&self.names);
        let of_rule = names.by_number.get(&number);
        of_rule.map(|(name, _)| Arc::clone(name))
    }

    /// The outcomes of each name with separate counters, in the order of names. Then the sum of all
    /// other names, if it has counted anything or is in use.
    pub(crate) fn list(&self) -> Vec<RuleHits> {
        let names = lock(&self.names);
        let sum = |rule: Option<&String>, counters: &[&OutcomeCounters]| {
            let mut counts = HitCounts::default();
            counters.iter().for_each(|it| it.add_to(&mut counts));
            RuleHits {
                rule: rule.cloned(),
                counts,
                finished: counters.iter().map(|it| it.finished.load(Relaxed)).sum(),
                bytes: counters.iter().map(|it| it.bytes.load(Relaxed)).sum(),
            }
        };
        let each = names.series.iter();
        let each = each.map(|(name, series)| sum(Some(name), &[&series.counters]));
        let mut all: Vec<_> = each.collect();
        let past = names.past.iter().map(|counters| &**counters);
        let rest: Vec<_> = past.chain([&*names.rest, &names.closed]).collect();
        let is_any = Arc::strong_count(&names.rest) > 1 || !names.past.is_empty();
        let rest = sum(None, &rest);
        if is_any || rest != sum(None, &[]) {
            all.push(rest);
        }
        all
    }

    /// The latest ring time that [`RuleCounters::note_hit`] got for this name, ns. `None`: no hit,
    /// or no separate counters.
    pub(crate) fn last_hit_ns(&self, name: &str) -> Option<i64> {
        let names = lock(&self.names);
        let last_ns = names.series.get(name)?.counters.last_hit_ns.load(Relaxed);
        (last_ns != 0).then_some(last_ns)
    }

    /// The counts of manual triggers.
    pub(crate) fn by_hand(&self) -> HitCounts {
        let mut counts = HitCounts::default();
        self.by_hand.add_to(&mut counts);
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl RuleCounters {
        /// The number of rules with counters, plus 1 for manual triggers.
        pub(crate) fn known(&self) -> usize {
            self.0.len()
        }
    }

    impl Outcomes {
        /// The number of remembered rules, names, and sets of counters that have lost their name.
        pub(crate) fn known(&self) -> usize {
            let names = lock(&self.names);
            names.by_number.len() + names.series.len() + names.past.len()
        }
    }

    /// The number of triggers by name.
    fn told(outcomes: &Outcomes) -> BTreeMap<String, u64> {
        let each = outcomes.list().into_iter();
        let each = each.map(|it| (it.rule.unwrap_or("(rest)".to_owned()), it.counts.triggers));
        each.collect()
    }

    #[test]
    fn a_name_goes_on_with_its_counts_whatever_rule_has_it() {
        let outcomes = Outcomes::default();
        outcomes.add_rule(0, "1");
        let mut counters = RuleCounters::of(&outcomes, [0]);
        counters.add(0, None, 1);
        counters.add(0, Some(Reason::Open), 5);
        counters.add(usize::MAX, Some(Reason::MaxDumps), 2);
        // The rule is changed, which gives it number 1. Later it is removed and added again.
        outcomes.add_rule(1, "1");
        counters.add_rule(&outcomes, 1);
        counters.add(0, None, 1);
        counters.add(1, None, 1);
        for rule in [0, 1, 1] {
            counters.add_cost(
                rule,
                RuleSpending {
                    bytes: 100,
                    finished: 1,
                },
            );
        }
        outcomes.remove_rule("1");
        assert_eq!(told(&outcomes)["1"], 3);
        outcomes.add_rule(2, "1");
        counters.add_rule(&outcomes, 2);
        counters.add(2, None, 1);
        let list = outcomes.list();
        assert_eq!((list.len(), list[0].counts.triggers), (1, 4));
        assert_eq!((list[0].finished, list[0].bytes), (3, 300));
        assert_eq!(list[0].counts.suppressed.of(Reason::Open), 5);
        assert_eq!(list[0].counts.suppressed.total(), 5);
        let by_hand = outcomes.by_hand();
        assert_eq!(
            (by_hand.triggers, by_hand.suppressed.of(Reason::MaxDumps)),
            (0, 2)
        );
    }

    #[test]
    fn a_rule_that_nobody_counts_is_no_trigger_by_hand() {
        let outcomes = Outcomes::default();
        let mut counters = RuleCounters::of(&outcomes, []);
        counters.add_rule(&outcomes, 3);
        (0..4).for_each(|rule| counters.add(rule, None, 1));
        assert_eq!(outcomes.by_hand(), HitCounts::default());
        assert!(outcomes.list().is_empty());
    }

    #[test]
    fn thousands_of_rules_have_a_bounded_number_of_series() {
        let outcomes = Outcomes::default();
        let mut counters = RuleCounters::of(&outcomes, []);
        let rules = 16_384;
        for rule in 0..rules {
            outcomes.add_rule(rule, &format!("rule {rule}"));
            counters.add_rule(&outcomes, rule);
            counters.add(rule, None, 1);
        }
        let all = told(&outcomes);
        assert_eq!(all.len(), SERIES_MAX + 1);
        assert_eq!(all["(rest)"], (rules - SERIES_MAX) as u64);
        // The new name takes the place of the name that was removed first, whose counts are not
        // lost.
        outcomes.remove_rule("rule 7");
        outcomes.remove_rule("rule 5");
        outcomes.remove_rule("rule 16000");
        outcomes.remove_rule("no such rule");
        assert_eq!(told(&outcomes)["rule 7"], 1);
        outcomes.add_rule(rules, "new");
        counters.add_rule(&outcomes, rules);
        counters.add(rules, None, 3);
        counters.add(7, None, 1);
        let all = told(&outcomes);
        assert_eq!(
            (all.len(), all["new"], all["rule 5"]),
            (SERIES_MAX + 1, 3, 1)
        );
        assert_eq!(all["(rest)"], (rules - SERIES_MAX) as u64 + 2);
        assert!(!all.contains_key("rule 7"));
        assert_eq!(all.values().sum::<u64>(), rules as u64 + 4);
        // A name that was added again keeps its place.
        outcomes.add_rule(rules + 1, "rule 5");
        outcomes.add_rule(rules + 2, "newer");
        assert!(told(&outcomes).contains_key("rule 5"));
        assert!(!told(&outcomes).contains_key("newer"));
    }
}
