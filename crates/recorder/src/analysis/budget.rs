//! Limits that the rules share, so that a storm of one rule leaves room for other rules.
//!
//! Each of several rules has an equal share, usually half of the limit divided by the number of
//! other rules. Beyond its share a rule has room only in what is not reserved for unused shares of
//! other rules. At most half of the limit is reserved.
//!
//! Alerts share some limits as one more rule, [`ALERT`](super::director::ALERT). Manual dumps and
//! removed rules have no share, but the bytes of their dumps count.

use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
};

use crate::analysis::terms;

/// A limit that rules share, on things in use at the same time or on amounts of a [`Budget`].
#[derive(Debug)]
pub(crate) struct RuleShares {
    limit: u64,
    share: u64,
    /// Existing rules by number, and rules without a share that use something.
    rules: HashMap<usize, RuleUse>,
    total: u64,
    /// Sum of the unused shares of all rules.
    unused: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct RuleUse {
    used: u64,
    /// Whether the rule has a share; a removed rule has no share.
    is_there: bool,
}

impl RuleShares {
    pub(crate) fn new(limit: u64, rules: usize) -> Self {
        let there = RuleUse {
            used: 0,
            is_there: true,
        };
        let mut shares = Self {
            limit,
            share: 0,
            rules: (0..rules).map(|rule| (rule, there)).collect(),
            total: 0,
            unused: 0,
        };
        shares.share_out();
        shares
    }

    /// Adds (`true`) or removes rules by number. The amount that a removed rule uses counts until
    /// it is given back.
    pub(crate) fn set_rules(&mut self, rules: impl Iterator<Item = (usize, bool)>) {
        for (rule, is_there) in rules {
            self.rules.entry(rule).or_default().is_there = is_there;
        }
        self.rules.retain(|_, rule| rule.is_there || rule.used > 0);
        self.share_out();
    }

    /// Sets another limit. Amounts in use stay in use.
    pub(crate) fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
        self.share_out();
    }

    fn share_out(&mut self) {
        let there = self.rules.values().filter(|rule| rule.is_there);
        let others = there.clone().count().saturating_sub(1) as u64;
        let share = match (self.limit / 2).checked_div(others) {
            // A single rule may also use the other half, less the amounts used without a share.
            None => self.limit / 2,
            Some(share) => share.max(1).min(self.limit),
        };
        let unused = there.map(|rule| share.saturating_sub(rule.used));
        self.unused = unused.fold(0, u64::saturating_add);
        self.share = share;
    }

    /// Whether the limit is used up.
    pub(crate) fn is_full(&self) -> bool {
        self.total >= self.limit
    }

    /// Whether a rule may use more: the rule is below its share, or enough remains for the shares
    /// of the other rules.
    pub(crate) fn has_room(&self, rule: usize) -> bool {
        let rule = self.rules.get(&rule).filter(|rule| rule.is_there);
        let own = rule.map_or(0, |rule| self.share.saturating_sub(rule.used));
        let kept = self.unused.saturating_sub(own).min(self.limit / 2);
        own > 0 || self.limit.saturating_sub(self.total) > kept
    }

    pub(crate) fn of(&self, rule: usize) -> u64 {
        self.rules.get(&rule).map_or(0, |rule| rule.used)
    }

    pub(crate) fn add(&mut self, rule: usize, amount: u64) {
        self.change(rule, |used| used.saturating_add(amount));
    }

    pub(crate) fn give_back(&mut self, rule: usize, amount: u64) {
        self.change(rule, |used| used.saturating_sub(amount));
    }

    fn change(&mut self, number: usize, change: impl Fn(u64) -> u64) {
        let rule = self.rules.entry(number).or_default();
        let (before, after) = (rule.used, change(rule.used));
        rule.used = after;
        self.total = self.total.saturating_sub(before).saturating_add(after);
        if rule.is_there {
            let left = |used| self.share.saturating_sub(used);
            self.unused = self.unused.saturating_sub(left(before)) + left(after);
        } else if after == 0 {
            self.rules.remove(&number);
        }
    }
}

/// A limit on the amount spent within a period.
#[derive(Debug)]
pub(crate) struct Budget {
    /// Amounts by rule, also without a shared limit, because rules have limits too.
    shares: RuleShares,
    slot_ns: i64,
    now_slot: i64,
    /// Amounts spent, by slot and rule: at most [`SLOTS`] + 1 slots.
    spent: BTreeMap<(i64, usize), u64>,
}

/// Slots in a period. An amount counts for the period and up to one slot more.
const SLOTS: i64 = 60;

impl Budget {
    /// `limit` within any `period_ns`; 0: no limit.
    pub(crate) fn new(limit: u64, period_ns: i64, rules: usize) -> Self {
        Self {
            shares: RuleShares::new(terms::limit(limit), rules),
            slot_ns: period_ns / SLOTS,
            now_slot: i64::MIN,
            spent: BTreeMap::new(),
        }
    }

    /// As [`RuleShares::set_rules`].
    pub(crate) fn set_rules(&mut self, rules: impl Iterator<Item = (usize, bool)>) {
        self.shares.set_rules(rules);
    }

    /// Sets another limit; 0: no limit. Amounts already spent still count.
    pub(crate) fn set_limit(&mut self, limit: u64) {
        self.shares.set_limit(terms::limit(limit));
    }

    /// Moves the time forward; an earlier time has no effect.
    pub(crate) fn advance(&mut self, now_ns: i64) {
        let slot = now_ns.div_euclid(self.slot_ns);
        if slot <= self.now_slot {
            return;
        }
        self.now_slot = slot;
        while let Some(first) = self.spent.first_entry() {
            let (old, rule) = *first.key();
            if old.saturating_add(SLOTS) >= slot {
                return;
            }
            self.shares.give_back(rule, first.remove());
        }
    }

    /// Whether a rule may spend more.
    pub(crate) fn has_room(&self, rule: usize) -> bool {
        self.shares.has_room(rule)
    }

    /// As [`Self::has_room`], but `false` for all rules once the total limit is used up.
    pub(crate) fn has_room_within(&self, rule: usize) -> bool {
        !self.shares.is_full() && self.shares.has_room(rule)
    }

    /// The amount that a rule spent within the period.
    pub(crate) fn of(&self, rule: usize) -> u64 {
        self.shares.of(rule)
    }

    pub(crate) fn spend(&mut self, rule: usize, amount: u64) {
        if amount > 0 {
            self.shares.add(rule, amount);
            let spent = self.spent.entry((self.now_slot, rule)).or_default();
            *spent = spent.saturating_add(amount);
        }
    }
}

/// Pairs of a rule and an expression (`K`) that may start no dump up to a given time.
#[derive(Debug)]
pub(crate) struct HoldOff<K> {
    until_ns: HashMap<(usize, K), i64>,
    /// The entries in the order of time and then of calls.
    order: BTreeMap<(i64, u64), (usize, K)>,
    calls: u64,
}

/// Maximum number of entries. If there are more, the entry that expires first is dropped.
const HELD_OFF_MAX: usize = 65_536;

impl<K: Eq + Hash + Clone> HoldOff<K> {
    pub(crate) fn new() -> Self {
        Self {
            until_ns: HashMap::new(),
            order: BTreeMap::new(),
            calls: 0,
        }
    }

    /// Drops the entries that expired before `now_ns`.
    pub(crate) fn advance(&mut self, now_ns: i64) {
        let first_ns = |this: &Self| this.order.first_key_value().map(|(key, _)| key.0);
        while first_ns(self).is_some_and(|until_ns| until_ns < now_ns) {
            self.forget_first();
        }
    }

    /// Holds off a rule and expression until `until_ns`. A later call for the same pair replaces
    /// this time.
    pub(crate) fn hold(&mut self, rule: usize, key: K, until_ns: i64) {
        self.until_ns.insert((rule, key.clone()), until_ns);
        self.calls += 1;
        self.order.insert((until_ns, self.calls), (rule, key));
        if self.order.len() > HELD_OFF_MAX {
            self.forget_first();
        }
    }

    pub(crate) fn holds(&self, rule: usize, key: &K) -> bool {
        !self.order.is_empty() && self.until_ns.contains_key(&(rule, key.clone()))
    }

    fn forget_first(&mut self) {
        let Some(((until_ns, _), entry)) = self.order.pop_first() else {
            return;
        };
        if self.until_ns.get(&entry) == Some(&until_ns) {
            self.until_ns.remove(&entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000_000_000;

    /// Uses all that a rule may have now. Returns the amount.
    fn drain(shares: &mut RuleShares, rule: usize) -> u64 {
        let mut taken = 0;
        while !shares.is_full() && shares.has_room(rule) {
            shares.add(rule, 1);
            taken += 1;
        }
        taken
    }

    #[test]
    fn one_rule_alone_has_all() {
        assert_eq!(drain(&mut RuleShares::new(7, 1), 0), 7);
        assert_eq!(drain(&mut RuleShares::new(1, 2), 1), 1);
    }

    impl RuleShares {
        pub(crate) fn known(&self) -> usize {
            self.rules.len()
        }
    }

    impl Budget {
        pub(crate) fn known(&self) -> usize {
            self.shares.known()
        }
    }

    /// Rule 7 has no share; rule 0 is the single rule.
    #[test]
    fn what_is_used_without_a_share_leaves_a_rule_half() {
        let mut shares = RuleShares::new(10, 1);
        shares.add(7, 4);
        assert_eq!((drain(&mut shares, 0), shares.total), (6, 10));
        shares.give_back(0, 6);
        shares.add(7, 100);
        assert!(shares.is_full() && shares.has_room(0), "half is its own");
        shares.add(0, 5);
        assert!(!shares.has_room(0) && !shares.has_room(7));
        shares.give_back(7, 104);
        assert_eq!(shares.known(), 1);
    }

    #[test]
    fn rules_that_come_and_go_share_anew() {
        let mut shares = RuleShares::new(8, 1);
        assert_eq!(drain(&mut shares, 0), 8);
        shares.set_rules([(3, true)].into_iter());
        assert!(shares.is_full(), "what is used is not taken away");
        shares.give_back(0, 6);
        assert_eq!(drain(&mut shares, 3), 4, "the other may still use half");
        shares.set_rules([(0, false)].into_iter());
        shares.give_back(0, 2);
        assert_eq!((drain(&mut shares, 3), shares.total), (4, 8), "it is alone");
        shares.give_back(3, 8);
        shares.set_rules([(4, true)].into_iter());
        assert_eq!((drain(&mut shares, 3), drain(&mut shares, 4)), (4, 4));
        assert_eq!(shares.unused, 0);
    }

    #[test]
    fn a_rule_below_its_share_is_never_refused_because_of_another() {
        let seed = 0x5ba2e5;
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..2000 {
            let rules = random.usize(2..8);
            let limit = random.u64(rules as u64 * 2..100);
            let share = limit / 2 / (rules as u64 - 1);
            let mut shares = RuleShares::new(limit, rules);
            let mut used = vec![0; rules];
            for _ in 0..300 {
                let rule = random.usize(..rules);
                if random.u8(..4) == 0 && used[rule] > 0 {
                    shares.give_back(rule, 1);
                    used[rule] -= 1;
                    continue;
                }
                let room = !shares.is_full() && shares.has_room(rule);
                assert!(room || used[rule] >= share, "seed {seed:#x}: {shares:?}");
                if room {
                    shares.add(rule, 1);
                    used[rule] += 1;
                }
                assert!(used.iter().sum::<u64>() <= limit);
            }
        }
    }

    #[test]
    fn a_storm_of_one_rule_leaves_half_to_the_others() {
        for rules in [2, 3, 10, 51, 5000] {
            let mut shares = RuleShares::new(100, rules);
            assert!((50..60).contains(&drain(&mut shares, 0)), "{rules} rules");
            for rule in 1..rules.min(50) {
                assert!(!shares.is_full() && shares.has_room(rule), "rule {rule}");
                shares.add(rule, 1);
            }
        }
    }

    #[test]
    fn what_was_spent_comes_back_after_the_time() {
        let mut budget = Budget::new(10, 60 * S, 1);
        for second in 0..10 {
            budget.advance(1_000_000 * S + second * S);
            budget.spend(0, 1);
        }
        assert!(!budget.has_room(0));
        budget.advance(1_000_060 * S);
        assert!(!budget.has_room(0), "a minute that began within the second");
        budget.advance(1_000_061 * S);
        budget.spend(0, 1);
        assert!(!budget.has_room(0), "one came back");
        budget.advance(1_000_001 * S);
        assert!(!budget.has_room(0), "time does not go back");
        budget.advance(1_000_200 * S);
        assert!(budget.spent.is_empty());
        assert!(Budget::new(0, S, 1).has_room(0), "no limit");
    }

    #[test]
    fn what_overshoots_is_the_shooters() {
        let mut budget = Budget::new(100, 3600 * S, 2);
        budget.advance(0);
        budget.spend(0, 1_000_000);
        assert!(!budget.has_room(0));
        assert!(budget.has_room(1), "it has spent nothing of its share");
        budget.spend(1, 50);
        assert!(!budget.has_room(1));
    }

    #[test]
    fn a_key_is_held_off_for_its_time_and_memory_is_bounded() {
        let mut held = HoldOff::new();
        held.hold(0, 7, 100);
        held.hold(0, 7, 200);
        assert!(held.holds(0, &7) && !held.holds(1, &7) && !held.holds(0, &8));
        held.advance(150);
        assert!(held.holds(0, &7), "the later one counts");
        held.hold(0, 9, 190);
        held.advance(195);
        assert!(
            held.holds(0, &7) && !held.holds(0, &9),
            "a shorter one behind it"
        );
        held.advance(201);
        assert!(!held.holds(0, &7));
        for key in 0..200_000 {
            held.hold(0, key, 1000);
        }
        assert_eq!(held.until_ns.len(), HELD_OFF_MAX);
        assert!(held.holds(0, &199_999) && !held.holds(0, &0));
    }
}
