//! Hits on their way from a shard to the director.
//!
//! The queue is bounded, so that no shard waits for room. Beyond [`HITS_MAX`] hits, the queue keeps
//! at most the first and the last hit of each rule and expression, and counts the other hits.
//! Windows may be lost that would begin with a counted hit.

use std::collections::{BTreeMap, HashMap, hash_map::Entry};

use retroscope_flow::BiflowKey;

use crate::analysis::{
    director::HitOrder,
    predicate::DumpExpression,
    shard::{FlowEnded, FoundHit},
};

/// Number of hits beyond which the queue counts hits.
const HITS_MAX: usize = 1024;
/// Maximum number of ended flows that the queue keeps.
const OVER_MAX: usize = 65_536;
/// Maximum number of pairs of rule and expression of which the queue keeps the first and the last
/// hit.
const KEYS_MAX: usize = 4096;

/// A bounded queue of hits and ended flows.
#[derive(Debug, Default)]
pub(crate) struct HitQueue {
    hits: Vec<FoundHit>,
    /// Ended flows, each with the number of `hits` before it; `usize::MAX` after hits have
    /// overflowed into `more`. At most [`OVER_MAX`]; further ones are dropped.
    over: Vec<(usize, FlowEnded)>,
    more: HashMap<(usize, DumpExpression), OverflowedHits>,
    /// Hits that are only counted, by rule.
    counted: BTreeMap<usize, u64>,
}

#[derive(Debug, Clone, Copy)]
struct OverflowedHits {
    first: HitOrder,
    last: HitOrder,
    /// Number of hits between `first` and `last`.
    between: u64,
    /// The flow of all hits, if they have the same flow.
    flow: Option<BiflowKey>,
}

impl HitQueue {
    pub(crate) fn is_empty(&self) -> bool {
        self.hits.is_empty() && self.over.is_empty()
    }

    pub(crate) fn push_flow_ended(&mut self, over: FlowEnded) {
        if self.over.len() < OVER_MAX {
            let before = if self.more.is_empty() {
                self.hits.len()
            } else {
                usize::MAX
            };
            self.over.push((before, over));
        }
    }

    /// Takes the ended flows, each with the number of hits that act before the flow ends.
    pub(crate) fn take_ended_flows(&mut self) -> Vec<(usize, FlowEnded)> {
        std::mem::take(&mut self.over)
    }

    pub(crate) fn push(&mut self, (order, expression): FoundHit) {
        if self.hits.len() < HITS_MAX {
            return self.hits.push((order, expression));
        }
        let is_full = self.more.len() >= KEYS_MAX;
        // A hit without an expression starts no dump.
        let Ok(expression) = expression else {
            return self.count(order.rule, 1);
        };
        let flow = expression.flow;
        match self.more.entry((order.rule, expression)) {
            Entry::Occupied(mut span) => {
                let span = span.get_mut();
                span.between += u64::from(span.last != span.first);
                span.last = order;
                span.flow = span.flow.filter(|its| Some(*its) == flow);
            }
            Entry::Vacant(_) if is_full => self.count(order.rule, 1),
            Entry::Vacant(place) => {
                place.insert(OverflowedHits {
                    first: order,
                    last: order,
                    between: 0,
                    flow,
                });
            }
        }
    }

    fn count(&mut self, rule: usize, hits: u64) {
        *self.counted.entry(rule).or_default() += hits;
    }

    /// Appends the hits and ended flows of `other`, within the limits of this queue.
    pub(crate) fn append(&mut self, other: &mut Self) {
        if self.is_empty() {
            return std::mem::swap(self, other);
        }
        let mut other = std::mem::take(other);
        let room = OVER_MAX - self.over.len();
        let before = if self.more.is_empty() {
            self.hits.len()
        } else {
            usize::MAX
        };
        let over = other.take_ended_flows().into_iter().take(room);
        self.over
            .extend(over.map(|(hits, over)| (before.saturating_add(hits), over)));
        let (hits, counted) = other.drain();
        hits.into_iter().for_each(|hit| self.push(hit));
        for (rule, hits) in counted {
            self.count(rule, hits);
        }
    }

    /// Returns the individually kept hits in the order in which they were found, then the first and
    /// last hits of rules and expressions by time. Also returns for each rule the number of hits
    /// that were only counted.
    pub(crate) fn drain(self) -> (Vec<FoundHit>, BTreeMap<usize, u64>) {
        let Self {
            mut hits,
            more,
            mut counted,
            ..
        } = self;
        let mut spans = Vec::with_capacity(2 * more.len());
        for ((rule, mut expression), span) in more {
            expression.flow = span.flow;
            if span.between > 0 {
                *counted.entry(rule).or_default() += span.between;
            }
            if span.last != span.first {
                spans.push((span.last, Ok(expression.clone())));
            }
            spans.push((span.first, Ok(expression)));
        }
        // Sort by time first: each producer numbers its records independently, so record numbers
        // alone give no order.
        spans.sort_by_key(|(order, _)| *order);
        hits.append(&mut spans);
        (hits, counted)
    }
}

#[cfg(test)]
mod tests {
    use retroscope_filter::Filter;

    use super::*;
    use crate::control::hits::HitRefusal;

    fn hit(record: u64, rule: usize, key: u16) -> FoundHit {
        let order = HitOrder {
            time_ns: record as i64,
            source: 0,
            producer: 0,
            record,
            rule,
        };
        let filter = Filter::plain(&format!("udp port {key}")).unwrap();
        (order, Ok(DumpExpression::plain(filter.filled().clone())))
    }

    fn records(hits: &[FoundHit]) -> Vec<u64> {
        hits.iter().map(|(order, _)| order.record).collect()
    }

    #[test]
    fn nothing_is_left_out_of_a_queue_that_is_not_full() {
        let mut queue = HitQueue::default();
        (0..HITS_MAX as u64).for_each(|record| queue.push(hit(record, 0, 0)));
        let (hits, counted) = queue.drain();
        assert_eq!(records(&hits), (0..HITS_MAX as u64).collect::<Vec<_>>());
        assert!(counted.is_empty());
    }

    /// The earlier of two overflowed hits has the larger record number, of another producer.
    #[test]
    fn the_first_of_several_producers_stands_before_the_last() {
        let mut queue = HitQueue::default();
        (0..HITS_MAX as u64).for_each(|record| queue.push(hit(record, 0, 0)));
        for (producer, record, time_ns) in [(0, 1_000_000, 5_000), (1, 10, 6_000)] {
            let (order, expression) = hit(record, 0, 1);
            let order = HitOrder {
                producer,
                time_ns,
                ..order
            };
            queue.push((order, expression));
        }
        let (hits, _) = queue.drain();
        assert_eq!(records(&hits[HITS_MAX..]), [1_000_000, 10]);
    }

    /// For any sequence of hits, in one queue or moved between two, each hit is kept or counted.
    #[test]
    fn a_full_queue_keeps_first_and_last_of_each_rule_and_expression() {
        for seed in 0..50 {
            let mut random = fastrand::Rng::with_seed(seed);
            let keys = [1, 10, 1000, 10_000][random.usize(..4)];
            let (mut queue, mut local) = (HitQueue::default(), HitQueue::default());
            let mut ends = BTreeMap::new();
            let count = random.u64(1..30_000);
            for record in 0..count {
                let (rule, key) = (random.usize(..3), random.u16(..keys));
                let (order, mut expression) = hit(record, rule, key);
                if random.u8(..50) == 0 {
                    expression = Err(HitRefusal::Script(String::new()));
                } else if record >= HITS_MAX as u64 {
                    ends.entry((rule, key)).or_insert((record, record)).1 = record;
                }
                local.push((order, expression));
                if random.u32(..5000) == 0 {
                    queue.append(&mut local);
                    assert!(local.is_empty());
                }
            }
            queue.append(&mut local);
            let (hits, counted) = queue.drain();
            assert!(hits.len() <= HITS_MAX + 2 * KEYS_MAX);
            let counted: u64 = counted.values().sum();
            assert_eq!(hits.len() as u64 + counted, count, "{seed}");
            let stands = records(&hits);
            assert!(stands.is_sorted(), "{seed}");
            if ends.len() <= KEYS_MAX {
                for (first, last) in ends.values() {
                    let stand = |record| stands.binary_search(record).is_ok();
                    assert!(stand(first) && stand(last), "{seed}");
                }
            }
        }
    }
}
