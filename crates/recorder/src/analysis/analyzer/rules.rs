//! Changes of rules, the costs of their dumps, packets that no rule saw, and messages about rules.

use std::sync::atomic::Ordering;

use retroscope_ring::{Packet, Positions};

use super::Core;
use crate::{
    analysis::{
        derivation::Derivation,
        director::ALERT,
        shard_slots::UnanalyzedGap,
        terms::{TriggerRequest, TriggerTerms},
        triggers::RuleChange,
    },
    control::{commands::Settings, events::RecorderEvent},
    start::rules::NO_PACKET,
};

/// Bytes of packets from files after which `account_before` takes the costs of dumps. This usually
/// takes tens of microseconds.
const STRETCH_BYTES: u64 = 256 << 10;

impl Core {
    pub(super) fn terms_of(&self, rule: usize) -> TriggerTerms {
        let parts = &self.parts;
        let default = || TriggerTerms::new(&TriggerRequest::default(), parts.window);
        parts.terms.get(&rule).cloned().unwrap_or_else(default)
    }

    /// If the changes add a rule, a removed rule may have a successor: the removed rule stays until
    /// all shards have applied the changes, for the hits until then. Otherwise removed rules are
    /// forgotten now.
    pub(super) fn change_rules(&mut self, changes: &[RuleChange]) {
        let is_replaced = changes.iter().any(|it| matches!(it, RuleChange::Add(..)));
        let are_there = changes.iter().filter_map(|change| match change {
            RuleChange::Add(rule, _) => Some((rule.number, true)),
            RuleChange::Remove(number) => Some((*number, false)),
            RuleChange::Enable(..) | RuleChange::Default(_) => None,
        });
        self.director.set_rules(&are_there.collect::<Vec<_>>());
        for change in changes {
            match change {
                RuleChange::Add(rule, _) => {
                    let outcomes = &self.common.outcomes;
                    self.director.by_rule.add_rule(outcomes, rule.number);
                    self.rules.insert(rule.number, rule.known());
                    self.begin_scan(rule);
                }
                RuleChange::Remove(number) if is_replaced => self.leaving.push(*number),
                RuleChange::Remove(number) => self.forget_rule(*number),
                RuleChange::Enable(number, is_enabled) => {
                    if let Some(rule) = self.rules.get_mut(number) {
                        rule.is_enabled = *is_enabled;
                    }
                    if *is_enabled {
                        self.director.rearm(*number);
                    }
                }
                RuleChange::Default(_) => {}
            }
        }
        self.slots.change_rules(changes);
    }

    /// Disables the single rules that have started their dump.
    pub(super) fn disable_fired(&mut self) {
        for number in std::mem::take(&mut self.director.just_fired) {
            self.common.outcomes.fired.add(number);
            self.change_rules(&[RuleChange::Enable(number, false)]);
            if let Some(name) = self.common.outcomes.name(number) {
                let notice = format!("rule '{name}' is disabled: it has started its single dump");
                self.tell(RecorderEvent::Notice(notice));
            }
        }
    }

    /// Forgets a rule: hits that are found later have no effect.
    pub(super) fn forget_rule(&mut self, number: usize) {
        if let Some(scanned) = self.scans.get(&number) {
            scanned.scan.stop("the rule was removed or replaced");
            self.end_scan(number);
        }
        self.rules.remove(&number);
        self.parts.terms.remove(&number);
        self.director.forget_rule(number);
        self.common.outcomes.forget(number);
    }

    /// Sets the terms of these rules from their requests. With `settings`, `requests` must have all
    /// rules.
    pub(super) fn change_terms(
        &mut self,
        requests: &[(usize, TriggerRequest)],
        settings: Option<Box<Settings>>,
    ) {
        let parts = &mut self.parts;
        if let Some(settings) = settings {
            (parts.window, parts.manual) = (settings.window, settings.manual);
            self.director.set_limits(settings.limits);
        }
        let requests = requests.iter();
        let terms =
            requests.map(|(rule, request)| (*rule, TriggerTerms::new(request, parts.window)));
        parts.terms.extend(terms);
        self.director.limits_bytes_of_rules = parts.limit_bytes();
    }

    /// Live: passes the costs of dumps since the previous call on to the director.
    pub(super) fn take_costs_live(&mut self) {
        if self.live {
            self.take_costs();
        }
    }

    /// Offline, if a limit may depend on what dumps write: takes the costs of dumps about every
    /// [`STRETCH_BYTES`] of packets. So the director's decisions depend on packets, not on threads.
    pub(super) fn account_before(&mut self, packet: &Packet<'_>) {
        if !self.director.counts_bytes() && !self.director.has_limited() {
            return;
        }
        if self.unaccounted_bytes >= STRETCH_BYTES {
            self.unaccounted_bytes = 0;
            self.account();
        }
        self.unaccounted_bytes += packet.data.len() as u64;
    }

    /// Offline: the dumper catches up with the analyzer, and the director gets the costs.
    pub(super) fn account(&mut self) {
        self.read_for_dumps(true);
        self.take_costs();
    }

    fn take_costs(&mut self) {
        let (costs, full) = self.common.costs.take();
        for (id, end_ns) in full {
            if let Some(window) = self.open.get_mut(&id) {
                window.to_ns = window.to_ns.min(end_ns);
                self.director.is_full(id, &mut self.orders);
            } else {
                self.closed.cut(id, end_ns);
            }
        }
        for (rule, cost) in costs {
            self.director.by_rule.add_cost(rule, cost);
            self.director.wrote(rule, cost.bytes);
            (0..cost.finished).for_each(|_| self.director.finished(rule));
        }
    }

    /// How many of `lapped` packets that were not analyzed a rule might have matched: all of these
    /// packets or 0.
    pub(super) fn unseen_of(&self, lapped: u64) -> u64 {
        if self.director.armed && self.rules.values().any(|rule| rule.is_enabled) {
            lapped
        } else {
            0
        }
    }

    /// `packets` were overwritten before they were read; rules might have matched `unseen` of
    /// these.
    pub(super) fn was_lapped(&mut self, packets: u64, unseen: u64) {
        self.lapped += packets;
        if unseen > 0
            && let Some(sentence) = self.unseen.add(unseen, self.common.clock.mono_ns())
        {
            self.tell(RecorderEvent::Notice(sentence));
        }
    }

    /// A reader of a shard did not analyze packets: they were overwritten, or left at the stop.
    pub(super) fn gap(&mut self, gap: UnanalyzedGap) {
        let unseen = self.unseen_of(gap.packets);
        if unseen > 0 {
            self.unseen.gap(gap.producer, gap.span_ns, unseen);
        }
        if gap.is_lapped {
            self.was_lapped(gap.packets, unseen);
        } else {
            self.left_unread += unseen;
        }
    }

    /// Notes that `packets` packets of a producer, usually before `time_ns` of ring time, are not
    /// analyzed. Returns how many packets a rule might have matched.
    pub(super) fn miss(&mut self, producer: usize, time_ns: i64, packets: u64) -> u64 {
        let unseen = self.unseen_of(packets);
        self.unseen.batch(producer, time_ns, unseen);
        unseen
    }

    /// At the end: reports how many packets the rules did not see after a stop. `positions`: how
    /// far the analyzer has read.
    pub(super) fn leave_unread(&mut self, positions: &Positions) {
        let now_ns = self.common.clock.now().ring_ns;
        let mut unseen = std::mem::take(&mut self.left_unread);
        if let Some((broken_off, left)) = self.broken_off {
            for producer in 0..self.common.ring.producers() {
                let published = self.common.ring.published(producer);
                let behind = published.saturating_sub(positions.get(producer));
                let left = if producer == broken_off { left } else { 0 };
                unseen += self.miss(producer, now_ns, behind + left);
            }
        }
        self.unseen.packets += unseen;
        if unseen > 0 {
            self.tell(RecorderEvent::Notice(format!(
                "the trigger rules did not see {unseen} packets before the stop: triggers may be missed (fewer rules or faster scripts help)"
            )));
        }
    }

    /// At the end: reports refused hits, and unseen and late packets, that were only counted.
    pub(super) fn report_rest(&mut self) {
        let rest = [self.refusals.rest(), self.unseen.rest()];
        for sentence in rest.into_iter().flatten() {
            self.tell(RecorderEvent::Notice(sentence));
        }
        self.report_late(i64::MAX);
    }

    /// Reports packets that arrived too late for dumps. `mono_ns`: see
    /// [`ClosedWindows::take_unreported`](crate::analysis::late::ClosedWindows::take_unreported).
    pub(super) fn report_late(&mut self, mono_ns: i64) {
        for (source, late) in self.closed.take_unreported(mono_ns) {
            if let Some(source) = self.common.intake.sources.get(source) {
                self.tell(RecorderEvent::Notice(late.sentence(&source.name)));
            }
        }
    }

    /// The name of a rule in messages and files.
    pub(super) fn rule_name(&self, rule: usize) -> &str {
        if rule == ALERT {
            return "alert";
        }
        let rule = self.rules.get(&rule);
        rule.map_or("manual", |rule| rule.name.as_str())
    }

    /// Reports pending messages, and counts failed scripts.
    pub(super) fn report_notices(&mut self) {
        let common = &self.common;
        let (mut notices, mut failed) = (Vec::new(), 0);
        for slot in self.slots.all() {
            // `visit` skips a shard that another thread is using.
            slot.visit(|shard| {
                failed = failed.max(shard.scripts.failed());
                notices.extend(shard.take_notices());
            });
        }
        let derivation = self.derivation.iter_mut();
        notices.extend(derivation.flat_map(Derivation::take_notices));
        // Relaxed: no other data is published with this number.
        let counter = &common.counters.trigger_scripts_failed;
        counter.fetch_max(failed, Ordering::Relaxed);
        notices.extend(self.common.intake.interfaces.take_notices());
        notices.extend(self.common.clock.take_unreported_steps());
        let ended = self.common.pins.take_ended(self.common.clock.mono_ns());
        notices.extend(ended);
        notices.extend(self.common.pins.take_fallen(&self.common.ring));
        notices.extend(self.parts.native.notice());
        for notice in notices {
            self.tell(RecorderEvent::Notice(notice));
        }
    }

    /// Reports rules that never matched, if VLAN tags may be the reason.
    pub(super) fn hint_at_tags(&self) {
        let sources = self.common.intake.snapshots();
        let tagged: u64 = sources.iter().map(|source| source.tagged).sum();
        if tagged == 0 {
            return;
        }
        for rule in self.rules.values() {
            let hits = rule.hits.as_ref().map(|hits| hits.load(Ordering::Relaxed));
            if hits != Some(0) || rule.name == NO_PACKET {
                continue;
            }
            let text = &rule.name;
            self.tell(RecorderEvent::Notice(format!(
                "trigger '{text}' never matched; {tagged} tagged packets: try 'vlan and ({text})'"
            )));
        }
    }
}
