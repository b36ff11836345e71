//! Rules whose past is being scanned ([`RuleScan`]).

use std::sync::Arc;

use super::Core;
use crate::{
    analysis::{
        hit_queue::HitQueue, shard::FoundHit, shard_slots::AnalysisPlacement, triggers::Rule,
    },
    control::rule_scan::RuleScan,
};

#[derive(Debug)]
pub(super) struct ScannedRule {
    pub(super) scan: Arc<RuleScan>,
    /// Hits that shards have found since the rule was added.
    hits: HitQueue,
    /// The start of the earliest window of these hits, ns.
    from_ns: Option<i64>,
    waiting: u64,
}

impl ScannedRule {
    /// A hit whose window starts at `start_ns` waits for the end of the scan.
    pub(super) fn wait(&mut self, hit: FoundHit, start_ns: i64) {
        self.hits.push(hit);
        self.waiting += 1;
        self.from_ns = Some(
            self.from_ns
                .map_or(start_ns, |from_ns| from_ns.min(start_ns)),
        );
    }

    pub(super) fn waiting_from_ns(&self) -> Option<i64> {
        self.from_ns
    }
}

impl Core {
    /// Call this before the shards get a new rule.
    pub(super) fn begin_scan(&mut self, rule: &Rule) {
        let Some(scan) = &rule.scan else {
            return;
        };
        let is_divided = self.slots.placement == AnalysisPlacement::ShardReaders;
        scan.begin(rule.number, self.slots.all().len(), is_divided);
        self.director.scanned.insert(rule.number);
        let scanned = ScannedRule {
            scan: Arc::clone(scan),
            hits: HitQueue::default(),
            from_ns: None,
            waiting: 0,
        };
        self.scans.insert(rule.number, scanned);
    }

    /// Acts on hits of a scan in their order, and ends the scan with the last hits. Returns the
    /// number of dumps that the hits started, and whether the scan should go on.
    pub(super) fn act_on_scanned(
        &mut self,
        rule: usize,
        hits: Vec<FoundHit>,
        is_last: bool,
    ) -> (u64, bool) {
        let before = self.director.counts.triggers;
        if let Some((first, _)) = hits.first() {
            self.director.scan_passed(rule, first.time_ns);
        }
        hits.into_iter().for_each(|hit| self.act_on_hit(hit));
        let dumps = self.director.counts.triggers - before;
        if is_last {
            self.end_scan(rule);
        }
        let is_enabled = self.rules.get(&rule).is_some_and(|rule| rule.is_enabled);
        (dumps, is_enabled && self.scans.contains_key(&rule))
    }

    pub(super) fn end_scans(&mut self, is_over: impl Fn(&RuleScan) -> bool) {
        let over = self.scans.iter().filter(|(_, it)| is_over(&it.scan));
        let over: Vec<usize> = over.map(|(rule, _)| *rule).collect();
        over.into_iter().for_each(|rule| self.end_scan(rule));
    }

    /// The scan of a rule has ended: the waiting hits act.
    pub(super) fn end_scan(&mut self, rule: usize) {
        let Some(scanned) = self.scans.remove(&rule) else {
            return;
        };
        scanned
            .scan
            .update(|status| status.waited = scanned.waiting);
        let (hits, counted) = scanned.hits.drain();
        hits.into_iter().for_each(|hit| self.act_on_hit(hit));
        self.count_overflowed(counted);
        self.director.scan_ended(rule);
        self.execute();
    }
}
