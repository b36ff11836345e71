//! The director's limits: which limit refuses a hit, and what a dump uses of each limit.

use std::hash::Hash;

use super::{ALERT, Director, HitOrder, MANUAL, SharedLimits};
use crate::{
    analysis::terms::{RuleLimits, TriggerTerms},
    control::hits::Reason,
};

impl<K: Eq + Hash + Clone> Director<K> {
    /// If alerts may arrive, gives them a share of the bytes per hour, and if configured of the
    /// dumps per minute.
    pub(super) fn share_with_alerts(&mut self) {
        let is_expected = self.config.are_alerts_expected;
        let per_minute = is_expected && self.config.limits.alerts_per_minute;
        self.dumps.set_rules([(ALERT, per_minute)].into_iter());
        self.bytes.set_rules([(ALERT, is_expected)].into_iter());
    }

    /// Forgets a removed rule now, or when `places` no longer counts any of its dumps.
    pub(crate) fn forget_rule(&mut self, rule: usize) {
        self.gone.insert(rule);
        self.fired.remove(&rule);
        self.forget_gone(rule);
    }

    fn forget_gone(&mut self, rule: usize) {
        if self.places.of(rule) == 0 && self.gone.remove(&rule) {
            self.by_rule.remove_rule(rule);
        }
    }

    /// Sets other limits. Amounts in use or spent, and rules held off, stay as they are.
    pub(crate) fn set_limits(&mut self, limits: SharedLimits) {
        self.config.limits = limits;
        self.places.set_limit(limits.max_dumps as u64);
        self.dumps.set_limit(limits.dumps_per_minute);
        self.bytes.set_limit(limits.bytes_per_hour);
        self.share_with_alerts();
    }

    /// Whether a rule has as many dumps open as its own limit, or the limit of its module, allows.
    fn has_most(&self, rule: usize, limits: RuleLimits) -> bool {
        let of_module = self.dumps_max.get(&rule).copied();
        let most = limits.dumps_max.min(of_module.unwrap_or(u64::MAX));
        self.places.of(rule) >= most
    }

    /// Why a hit may not start a dump; `None`: it may.
    pub(super) fn reason_against(
        &mut self,
        hit: HitOrder,
        limits: RuleLimits,
        expression: &K,
    ) -> Option<Reason> {
        let rule = hit.rule;
        if rule == MANUAL {
            let most = self.config.limits.max_dumps;
            return (self.by_hand >= most).then_some(Reason::MaxDumps);
        }
        if self.fired.contains(&rule) {
            return Some(Reason::Single);
        }
        let now_ns = self.limits_ns(hit.time_ns);
        self.held_off.advance(now_ns);
        self.dumps.advance(now_ns);
        self.bytes.advance(now_ns);
        let is_full = match rule {
            ALERT => self.by_alert >= self.config.alert_dumps,
            _ => {
                self.places.is_full() || !self.places.has_room(rule) || self.has_most(rule, limits)
            }
        };
        if self.held_off.holds(rule, expression) {
            Some(Reason::HoldOff)
        } else if is_full {
            Some(Reason::MaxDumps)
        } else if self.holds_per_minute(rule)
            && (!self.dumps.has_room_within(rule) || self.dumps.of(rule) >= limits.dumps_per_minute)
        {
            Some(Reason::DumpsPerMinute)
        } else if !self.bytes.has_room(rule) || self.bytes.of(rule) >= limits.bytes_per_hour {
            Some(Reason::BytesPerHour)
        } else {
            None
        }
    }

    /// Whether the limit of dumps per minute applies to a rule.
    fn holds_per_minute(&self, rule: usize) -> bool {
        rule != ALERT || self.config.limits.alerts_per_minute
    }

    /// The time that limits use, ns: the monotonic clock live, `packet_ns` from files. The result
    /// never decreases.
    pub(super) fn limits_ns(&mut self, packet_ns: i64) -> i64 {
        let now_ns = if self.is_live() {
            self.mono_ns
        } else {
            packet_ns
        };
        self.limits_ns = self.limits_ns.max(now_ns);
        self.limits_ns
    }

    /// Counts a new dump against the limits. For the dump of a rule, also starts the hold-off, if
    /// configured.
    pub(super) fn take_place(&mut self, hit: HitOrder, terms: &TriggerTerms, expression: &K) {
        let rule = hit.rule;
        match rule {
            MANUAL => {
                self.by_hand += 1;
                return;
            }
            ALERT => {
                self.by_alert += 1;
                let dumps = u64::from(self.holds_per_minute(rule));
                self.dumps.spend(rule, dumps);
                return;
            }
            _ => {}
        }
        self.places.add(rule, 1);
        self.dumps.spend(rule, 1);
        let hold_off_ns = terms.limits.hold_off_ns;
        let hold_off_ns = hold_off_ns.unwrap_or(self.config.limits.hold_off_ns);
        if hold_off_ns > 0 {
            let end_ns = terms.window.end_ns(self.limits_ns(hit.time_ns));
            let until_ns = end_ns.saturating_add(hold_off_ns);
            self.held_off.hold(rule, expression.clone(), until_ns);
        }
    }

    pub(super) fn release(&mut self, rule: usize) {
        match rule {
            ALERT => self.by_alert = self.by_alert.saturating_sub(1),
            MANUAL => self.by_hand = self.by_hand.saturating_sub(1),
            _ => {
                self.places.give_back(rule, 1);
                self.forget_gone(rule);
            }
        }
    }
}
