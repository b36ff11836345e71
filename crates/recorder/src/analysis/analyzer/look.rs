//! The analyzer's work on the packets of [shards](crate::analysis::shard), and on their hits.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
};

use retroscope_ring::{Batch, Packet, Packets};

use super::Core;
use crate::{
    analysis::{
        chunk::{Chunk, MANY},
        director::{HitOrder, TriggerHit},
        hit_queue::HitQueue,
        predicate::DumpExpression,
        shard::{Findings, FlowEnded, FoundHit, NumberedPackets, Shard},
        shard_reader::STOP_DRAIN_NS,
        shard_slots::{ShardSlot, ShardSlots},
    },
    control::hits::{HitRefusal, Reason},
};

/// Goes through a batch together with a shard. The analyzer's own work for a packet comes before
/// the hits of this packet.
struct BatchWalk<'c, 'b> {
    core: &'c mut Core,
    producer: usize,
    /// The packets of the batch that were not passed yet. `next` is the record number of the first
    /// of these packets.
    packets: Packets<'b>,
    next: u64,
    /// A lower bound of the packet times, ns.
    oldest_ns: i64,
    /// The last packet that was passed and read.
    last: Option<Packet<'b>>,
    /// Whether the director was armed after the last passed packet, before the hits of this packet.
    are_wanted: bool,
}

impl<'c, 'b> BatchWalk<'c, 'b> {
    fn new(core: &'c mut Core, batch: &Batch<'b>) -> Self {
        Self {
            are_wanted: core.director.armed,
            core,
            producer: batch.producer,
            packets: batch.iter(),
            next: batch.first,
            oldest_ns: batch.oldest_ns,
            last: None,
        }
    }

    /// Passes the packets before `record`. Live, packets of a batch that is too new for all closed
    /// windows are skipped.
    fn go_to(&mut self, record: u64) {
        let count = record.saturating_sub(self.next);
        if count == 0 {
            return;
        }
        self.core.analyzed += count;
        let is_promised = self.core.is_promised(self.producer);
        if self.core.live && !self.core.closed.concerns(self.oldest_ns, is_promised) {
            let count = usize::try_from(count).unwrap_or(usize::MAX);
            #[cfg(test)]
            {
                self.core.passed_by += count;
            }
            if count < self.packets.len() {
                self.packets.nth(count - 1);
            }
            self.next = record;
        }
        while self.next < record
            && let Some(packet) = self.packets.next()
        {
            self.core.packet((self.producer, self.next), &packet);
            self.next += 1;
            self.last = Some(packet);
        }
        self.are_wanted = self.core.director.armed;
    }
}

impl Findings for BatchWalk<'_, '_> {
    fn are_wanted(&self) -> bool {
        self.core.director.armed
    }

    fn hit(&mut self, order: HitOrder, expression: Option<Result<DumpExpression, HitRefusal>>) {
        self.go_to(order.record + 1);
        if self.are_wanted {
            let expression = expression.or_else(|| self.expression(order));
            if let Some(expression) = expression {
                self.core.hit((order, expression));
            }
        }
    }

    fn flow_ended(&mut self, record: u64, over: FlowEnded) {
        self.go_to(record);
        self.core.on_flow_ended(&over);
    }
}

impl Core {
    /// A module reports the end of a flow for which it requested a dump.
    pub(super) fn on_flow_ended(&mut self, over: &FlowEnded) {
        let flow = (over.rule, over.flow);
        self.director
            .on_flow_ended(flow, over.now_ns, over.until_ns);
    }
}

impl BatchWalk<'_, '_> {
    /// Derives the dump expression for a hit on the last passed packet. `None`: the hit starts no
    /// dump.
    fn expression(&mut self, order: HitOrder) -> Option<Result<DumpExpression, HitRefusal>> {
        let interface = self.core.names.interface(self.last.as_ref()?.interface)?;
        let derivation = self.core.derivation.as_mut()?;
        let place = (order.producer, order.record);
        derivation.expression(order.rule, interface, place, self.last.as_ref()?)
    }
}

impl Core {
    /// Live: acts on hits that inserters and readers queued. Then forgets removed rules, once all
    /// shards have applied all changes.
    pub(super) fn take_hits(&mut self) {
        let slots = Arc::clone(&self.slots);
        slots.all().iter().for_each(ShardSlot::drop_gone);
        // Check this before taking the hits: if all shards are up to date, the queues have all hits
        // of the removed rules.
        let is_past = !self.leaving.is_empty() && slots.all().iter().all(ShardSlot::is_up_to_date);
        self.act_on_queued_hits(&slots);
        self.end_scans(|scan| scan.is_over());
        if is_past {
            let gone = std::mem::take(&mut self.leaving);
            gone.into_iter().for_each(|number| self.forget_rule(number));
        }
    }

    /// Forgets removed rules that no shard has any more, after acting on their hits.
    pub(super) fn forget_removed_rules(&mut self) {
        let slots = Arc::clone(&self.slots);
        let known = slots.still_known(&self.leaving);
        self.act_on_queued_hits(&slots);
        let leaving = std::mem::take(&mut self.leaving);
        for number in leaving {
            match known.contains(&number) {
                true => self.leaving.push(number),
                false => self.forget_rule(number),
            }
        }
    }

    fn act_on_queued_hits(&mut self, slots: &ShardSlots) {
        if !self.live || !slots.placement.has_readers() {
            return;
        }
        for slot in slots.all() {
            let mut told = slot.take_hits();
            let mut over = told.take_ended_flows().into_iter().peekable();
            let (hits, counted) = told.drain();
            for (number, hit) in hits.into_iter().enumerate() {
                while let Some((_, over)) = over.next_if(|(before, _)| *before <= number) {
                    self.on_flow_ended(&over);
                }
                self.hit(hit);
            }
            over.for_each(|(_, over)| self.on_flow_ended(&over));
            self.count_overflowed(counted);
            slot.take_gaps().into_iter().for_each(|gap| self.gap(gap));
        }
    }

    /// Counts hits that a full queue only counted, by rule.
    pub(super) fn count_overflowed(&mut self, counted: BTreeMap<usize, u64>) {
        for (rule, hits) in counted {
            if self.count(rule, hits) {
                let reason = match self.director.armed {
                    true => Reason::QueueFull,
                    false => Reason::Single,
                };
                self.director.suppress(rule, reason, hits);
            }
        }
    }

    /// From files, with readers: goes through a batch, waits until the readers have analyzed the
    /// batch's records, and acts on their hits.
    fn walk(&mut self, batch: &Batch<'_>) {
        let slots = Arc::clone(&self.slots);
        let end = batch.first + batch.len() as u64;
        let mut walk = BatchWalk::new(self, batch);
        while walk.next < end {
            let (hits, until) = slots.take_found(walk.next, end);
            hits.into_iter().for_each(|order| walk.hit(order, None));
            walk.go_to(until);
        }
    }

    pub(super) fn analyze_batch(&mut self, batch: &Batch<'_>) {
        let slots = Arc::clone(&self.slots);
        if !slots.placement.has_readers() {
            let slot = slots.of(batch.producer);
            slot.visit(|shard| self.analyze_with((slot, shard), batch));
        } else if self.live {
            let end = batch.first + batch.len() as u64;
            BatchWalk::new(self, batch).go_to(end);
        } else {
            self.walk(batch);
        }
    }

    /// Lets the shard analyze a batch. Live, also checks clocks and commands in between.
    fn analyze_with(&mut self, (slot, shard): (&ShardSlot, &mut Shard), batch: &Batch<'_>) {
        slot.refresh(shard, &mut HitQueue::default());
        let end = batch.first + batch.len() as u64;
        let mut walk = BatchWalk::new(self, batch);
        if walk.core.live && !walk.are_wanted && !shard.needs_all_packets() {
            return walk.go_to(end);
        }
        let mut packets = NumberedPackets::from(batch.first, walk.packets.clone());
        let mut chunk = Chunk::new();
        let common = Arc::clone(&walk.core.common);
        while walk.next < end {
            let live = walk.core.live;
            if live {
                chunk.most = walk.core.pacer.stride.min(MANY);
            }
            let next = walk.next;
            let look = || shard.analyze(batch.producer, &mut packets, &mut chunk, &mut walk);
            let count = slot.counters.times.time(&common.clock, look);
            walk.go_to(next + count as u64);
            shard.set_analyzed(batch.producer, walk.next);
            if live && walk.core.pacer.passed(count) {
                if walk.core.is_time_over() {
                    walk.core.broken_off = Some((batch.producer, end - walk.next));
                    return;
                }
                slot.refresh(shard, &mut HitQueue::default());
            }
        }
    }

    /// Checks clocks and commands if due. Returns `true` if the analyzer first saw a request to
    /// stop at least 3 s ago: the caller must then skip the remaining packets.
    fn is_time_over(&mut self) -> bool {
        let mono_ns = self.common.clock.mono_ns();
        if self.pacer.is_due(mono_ns) {
            self.check_clocks_and_commands(self.common.clock.now(), None);
        }
        let stopping = self.common.control.stopping();
        stopping && mono_ns - *self.stopped_ns.get_or_insert(mono_ns) >= STOP_DRAIN_NS
    }

    /// Whether the clock that closes windows waits for the watermark of a producer. Offline:
    /// `false`.
    fn is_promised(&self, producer: usize) -> bool {
        self.live && self.promises.get(producer).copied().unwrap_or(true)
    }

    fn packet(&mut self, (producer, record): (usize, u64), packet: &Packet<'_>) {
        if !self.live {
            self.offline_clock(record, packet);
            if let Some(derivation) = &mut self.derivation
                && derivation.fragments.wanted
                && self.director.armed
                && let Some(interface) = self.names.interface(packet.interface)
            {
                let fragments = &mut derivation.fragments;
                fragments.see(interface.link_type, packet.time_ns, packet.data);
            }
        }
        if self
            .closed
            .concerns(packet.time_ns, self.is_promised(producer))
            && let Some(interface) = self.names.interface(packet.interface)
        {
            let offset_ns = self.stamps.offset_ns(producer, interface.source, record);
            let closed = &mut self.closed;
            if closed.check(producer, record, interface, packet, offset_ns)
                && let Some(source) = self.common.intake.sources.get(interface.source)
            {
                source.late.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// A shard found a hit. While the past of its rule is scanned, the hit waits.
    fn hit(&mut self, found: FoundHit) {
        let (rule, time_ns) = (found.0.rule, found.0.time_ns);
        if !self.scans.contains_key(&rule) {
            return self.act_on_hit(found);
        }
        let start_ns = self.terms_of(rule).window.start_ns(time_ns);
        if let Some(scanned) = self.scans.get_mut(&rule) {
            scanned.wait(found, start_ns);
        }
        self.keep_for_waiting();
    }

    pub(super) fn act_on_hit(&mut self, (order, mut expression): FoundHit) {
        if !self.count(order.rule, 1) {
            return;
        }
        if self.live {
            // This thread may have stood still since the packet arrived, and the deadline of a new
            // window counts from now.
            self.director.mono_ns = self.common.clock.mono_ns();
        }
        self.take_costs_live();
        let mut terms = self.terms_of(order.rule);
        if let Ok(expression) = &mut expression {
            expression.into.clone_from(&terms.into);
            terms.flow = expression.flow;
        }
        let hit = TriggerHit {
            order,
            terms,
            expression,
        };
        self.director.hit(hit, &mut self.orders);
        self.execute();
    }

    /// Counts hits of a rule. Returns `false`, and counts nothing, if the rule is forgotten or
    /// disabled.
    fn count(&self, rule: usize, hits: u64) -> bool {
        let rule = self.rules.get(&rule).filter(|rule| rule.is_enabled);
        if let Some(of_rule) = rule.and_then(|rule| rule.hits.as_ref()) {
            of_rule.fetch_add(hits, Ordering::Relaxed);
        }
        rule.is_some()
    }
}
