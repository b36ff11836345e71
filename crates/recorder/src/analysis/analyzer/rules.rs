//! What dumps cost their rules, packets that no rule saw, and what is told of rules.

use std::sync::{atomic::Ordering, mpsc::sync_channel};

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
    dump::order::Message,
    start::rules::NO_PACKET,
};

/// Bytes of packets from files between two looks at what dumps cost: many against the tens of microseconds that one takes.
const STRETCH_BYTES: u64 = 256 << 10;

impl Core {
    /// What a rule asks for.
    pub(super) fn terms_of(&self, rule: usize) -> TriggerTerms {
        let parts = &self.parts;
        let default = || TriggerTerms::new(&TriggerRequest::default(), parts.window);
        parts.terms.get(&rule).cloned().unwrap_or_else(default)
    }

    /// Changes the rules: each shard hears of it before its next packets. A rule that it is told to forget is none here from now on; one with
    /// another in its place stays until all shards have that, for what it took meanwhile.
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
                }
                RuleChange::Remove(number) if is_replaced => self.leaving.push(*number),
                RuleChange::Remove(number) => self.forget_rule(*number),
                RuleChange::Enable(number, is_enabled) => {
                    if let Some(rule) = self.rules.get_mut(number) {
                        rule.is_enabled = *is_enabled;
                    }
                }
                RuleChange::Default(_) => {}
            }
        }
        self.slots.change_rules(changes);
    }

    /// No hit of a rule is acted on any more.
    pub(super) fn forget_rule(&mut self, number: usize) {
        self.rules.remove(&number);
        self.parts.terms.remove(&number);
        self.director.forget_rule(number);
        self.common.outcomes.forget(number);
    }

    /// Rules of these numbers ask for this from now on, and what they leave out is as the settings say. With settings come the requests of all rules.
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

    /// Live: gives the director what dumps have cost since the last call.
    pub(super) fn settle_live(&mut self) {
        if self.live {
            self.settle();
        }
    }

    /// Offline, where bytes are limited, of an hour or of a dump that is open: the same at the packet after each stretch, when the dumper has written all that it wants of
    /// the packets before it. So what the director knows is a function of the packets, whatever the threads do and whatever the
    /// size of the ring.
    pub(super) fn settle_before(&mut self, record: u64, packet: &Packet<'_>) {
        if !self.director.counts_bytes() && !self.director.has_limited() {
            return;
        }
        if self.unsettled_bytes >= STRETCH_BYTES {
            self.unsettled_bytes = 0;
            self.account(vec![record]);
        }
        self.unsettled_bytes += packet.data.len() as u64;
    }

    /// Offline: waits until the dumper has written what it wants of the records before `ends`, and gives the director what that cost.
    pub(super) fn account(&mut self, ends: Vec<u64>) {
        let (reply, told) = sync_channel(1);
        // C0, as in `Core::batch`: what is not read yet of the records before it is read at the account.
        let clock = &self.common.packet_clock;
        clock.store(self.director.clock_ns, Ordering::Release);
        self.send(Message::Account { ends, reply });
        // The error: the dumper is gone, and is found when it is joined.
        let _ = told.recv();
        self.settle();
    }

    fn settle(&mut self) {
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

    /// Of packets that were overwritten before they were read: how many a rule might have taken.
    pub(super) fn unseen_of(&self, lapped: u64) -> u64 {
        if self.director.armed && self.rules.values().any(|rule| rule.is_enabled) {
            lapped
        } else {
            0
        }
    }

    /// `packets` were overwritten before they were read, and some of them were `unseen`.
    pub(super) fn was_lapped(&mut self, packets: u64, unseen: u64) {
        self.lapped += packets;
        if unseen > 0
            && let Some(sentence) = self.unseen.add(unseen, self.common.clock.mono_ns())
        {
            self.tell(RecorderEvent::Notice(sentence));
        }
    }

    /// A reader of a shard did not see packets.
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

    /// `packets` of a producer, stored before `time_ns` of ring time and after those that were read, are not looked at. Returns how many of
    /// them a rule might have taken.
    pub(super) fn miss(&mut self, producer: usize, time_ns: i64, packets: u64) -> u64 {
        let unseen = self.unseen_of(packets);
        self.unseen.batch(producer, time_ns, unseen);
        unseen
    }

    /// At the end: what is behind these positions is not looked at any more.
    pub(super) fn leave_unread(&mut self, positions: &Positions) {
        let now_ns = self.common.clock.now().ring_ns;
        let mut unseen = std::mem::take(&mut self.left_unread);
        if let Some((broken_off, left)) = self.broken_off {
            for producer in 0..self.common.ring.producers() {
                let published = self.common.ring.published(producer);
                // What an inserter claimed it has looked at.
                let claimed = self.slots.of(producer).claimed();
                let behind = published.saturating_sub(positions.get(producer).max(claimed));
                let left = if producer == broken_off { left } else { 0 };
                unseen += self.miss(producer, now_ns, behind + left);
            }
        }
        self.unseen.packets += unseen;
        if unseen > 0 {
            self.tell(RecorderEvent::Notice(format!(
                "{unseen} packets were not looked at by the trigger rules before the stop: triggers may be missed (fewer rules or faster scripts help)"
            )));
        }
    }

    /// At the end: reports what was only counted so far.
    pub(super) fn tell_rest(&mut self) {
        let rest = [self.refusals.rest(), self.unseen.rest()];
        for sentence in rest.into_iter().flatten() {
            self.tell(RecorderEvent::Notice(sentence));
        }
        self.tell_late(i64::MAX);
    }

    /// Reports packets that came too late for dumps. `mono_ns`: as in [`ClosedWindows::take_unreported`](crate::analysis::late::ClosedWindows::take_unreported).
    pub(super) fn tell_late(&mut self, mono_ns: i64) {
        for (source, late) in self.closed.take_unreported(mono_ns) {
            if let Some(source) = self.common.intake.sources.get(source) {
                self.tell(RecorderEvent::Notice(late.sentence(&source.name)));
            }
        }
    }

    /// What messages and files call a rule.
    pub(super) fn rule_name(&self, rule: usize) -> &str {
        if rule == ALERT {
            return "alert";
        }
        let rule = self.rules.get(&rule);
        rule.map_or("manual", |rule| rule.name.as_str())
    }

    /// Tells what rules and scripts have to say, and counts the scripts that failed.
    pub(super) fn tell_notices(&mut self) {
        let common = &self.common;
        let (mut notices, mut failed) = (Vec::new(), 0);
        for slot in self.slots.all() {
            // One that looks now is asked later.
            slot.visit(|shard| {
                failed = failed.max(shard.scripts.failed());
                notices.extend(shard.take_notices());
            });
        }
        let derivation = self.derivation.iter_mut();
        notices.extend(derivation.flat_map(Derivation::take_notices));
        // Relaxed: a number that stands alone.
        let counter = &common.counters.trigger_scripts_failed;
        counter.fetch_max(failed, Ordering::Relaxed);
        notices.extend(self.common.intake.interfaces.take_notices());
        notices.extend(self.common.clock.take_untold());
        notices.extend(self.common.pins.take_fallen(&self.common.ring));
        notices.extend(self.parts.native.notice());
        for notice in notices {
            self.tell(RecorderEvent::Notice(notice));
        }
    }

    /// Rules that never matched, where tags may be the reason.
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
