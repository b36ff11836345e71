//! The director's open dumps, found by rule, expression and window.
//!
//! There may be thousands of open dumps, and hits look up their dumps. So only the end of the
//! recording and [`DirectorDumps::thaw`] loop over all dumps.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, hash_map::Entry},
    hash::Hash,
};

use retroscope_flow::BiflowKey;

use crate::{
    analysis::{
        director::{ALERT, ALERTS_OF_DUMP, Clip},
        terms::DumpWindow,
    },
    control::hits::Suppressed,
};

/// Maximum number of flows of a dump that ends when its flows end.
const FLOWS_MAX: usize = 1024;

/// A dump whose window is open.
#[derive(Debug)]
pub(crate) struct DirectorDump<K> {
    /// Number of the dump, larger than the numbers of earlier dumps.
    pub(crate) id: u64,
    pub(crate) rule: usize,
    pub(crate) expression: K,
    pub(crate) window: DumpWindow,
    /// Start of the window, ns of ring time.
    pub(crate) from_ns: i64,
    /// End of the window, ns of ring time.
    pub(crate) to_ns: i64,
    /// The director's clock closes the window after this time, ns, unless the dump is frozen.
    /// `i64::MAX`: the clock does not close the window.
    pub(crate) close_ns: i64,
    /// Live: the monotonic clock closes the window after this time, ns, unless the dump is frozen
    /// ([`DirectorDumps::freeze`]).
    pub(crate) deadline_ns: i64,
    /// Set if the ends of flows have shortened the window.
    pub(crate) clip: Option<Clip>,
    /// The dump's flows that have not ended, and their last hits, ns. `None`: the dump has hits
    /// without a flow, or more than [`FLOWS_MAX`] flows.
    pub(crate) flows: Option<HashMap<BiflowKey, i64>>,
    /// How long the rule and expression are held off after the end, ns; `None`: as for all rules.
    pub(crate) hold_off_ns: Option<i64>,
    pub(crate) suppressed: Suppressed,
}

#[derive(Debug)]
pub(crate) struct DirectorDumps<K> {
    by_id: BTreeMap<u64, DirectorDump<K>>,
    /// By rule and expression: the IDs of the open dumps, oldest first. Usually the list has one
    /// dump.
    by_key: HashMap<(usize, K), Vec<u64>>,
    /// By rule and flow: the IDs of the open dumps.
    by_flow: HashMap<(usize, BiflowKey), Vec<u64>>,
    /// Close times and IDs of the dumps that are not frozen.
    closing: BTreeSet<(i64, u64)>,
    /// Deadlines and IDs of the dumps that are not frozen.
    deadlines: BTreeSet<(i64, u64)>,
    /// Number of dumps that a limit of packets or bytes may end.
    limited: usize,
}

impl<K: Eq + Hash + Clone> DirectorDumps<K> {
    pub(crate) fn new() -> Self {
        Self {
            by_id: BTreeMap::new(),
            by_key: HashMap::new(),
            by_flow: HashMap::new(),
            closing: BTreeSet::new(),
            deadlines: BTreeSet::new(),
            limited: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether a limit of packets or bytes may end an open dump.
    pub(crate) fn has_limited(&self) -> bool {
        self.limited > 0
    }

    pub(crate) fn add(&mut self, dump: DirectorDump<K>) {
        let key = (dump.rule, dump.expression.clone());
        self.by_key.entry(key).or_default().push(dump.id);
        self.closing.insert((dump.close_ns, dump.id));
        self.deadlines.insert((dump.deadline_ns, dump.id));
        self.limited += usize::from(dump.window.is_limited());
        for flow in dump.flows.iter().flat_map(HashMap::keys) {
            let ids = self.by_flow.entry((dump.rule, *flow)).or_default();
            ids.push(dump.id);
        }
        self.by_id.insert(dump.id, dump);
    }

    /// A hit joins a dump. After a hit without a flow, the ends of flows do not end the dump.
    pub(crate) fn join(&mut self, id: u64, flow: Option<BiflowKey>, time_ns: i64) {
        let Some(dump) = self.by_id.get_mut(&id) else {
            return;
        };
        let Some(flows) = &mut dump.flows else {
            return;
        };
        match flow {
            Some(flow) if flows.len() < FLOWS_MAX || flows.contains_key(&flow) => {
                let last_ns = flows.entry(flow).or_insert_with(|| {
                    self.by_flow.entry((dump.rule, flow)).or_default().push(id);
                    time_ns
                });
                *last_ns = (*last_ns).max(time_ns);
            }
            _ => {
                let (rule, flows) = (dump.rule, dump.flows.take());
                self.forget(id, rule, flows.iter().flat_map(HashMap::keys));
            }
        }
    }

    /// A flow of a rule ended at `now_ns`. Returns the dumps all of whose flows have ended.
    pub(crate) fn leave(&mut self, (rule, flow): (usize, BiflowKey), now_ns: i64) -> Vec<u64> {
        let mut without = Vec::new();
        for id in self.by_flow.get(&(rule, flow)).cloned().unwrap_or_default() {
            let dump = self.by_id.get_mut(&id);
            let Some(flows) = dump.and_then(|dump| dump.flows.as_mut()) else {
                continue;
            };
            // If the flow has a hit after `now_ns`, the flow has begun again, and stays.
            if flows.get(&flow).is_some_and(|last_ns| *last_ns <= now_ns) {
                flows.remove(&flow);
                if flows.is_empty() {
                    without.push(id);
                }
                self.forget(id, rule, [&flow].into_iter());
            }
        }
        without
    }

    /// Removes a dump from the index of these flows.
    fn forget<'k>(&mut self, id: u64, rule: usize, flows: impl Iterator<Item = &'k BiflowKey>) {
        for flow in flows {
            if let Entry::Occupied(mut ids) = self.by_flow.entry((rule, *flow)) {
                ids.get_mut().retain(|other| *other != id);
                if ids.get().is_empty() {
                    ids.remove();
                }
            }
        }
    }

    /// Ends a window at `to_ns`, unless it ends earlier.
    pub(crate) fn shorten(&mut self, id: u64, to_ns: i64, close_ns: i64, deadline_ns: i64) {
        let Some(dump) = self.by_id.get_mut(&id).filter(|dump| to_ns < dump.to_ns) else {
            return;
        };
        self.closing.remove(&(dump.close_ns, id));
        self.deadlines.remove(&(dump.deadline_ns, id));
        (dump.to_ns, dump.clip) = (to_ns, Some(Clip::Flow(to_ns)));
        // `i64::MAX` stays: the clock does not follow the dump's source.
        if dump.close_ns < i64::MAX {
            dump.close_ns = dump.close_ns.min(close_ns);
        }
        dump.deadline_ns = dump.deadline_ns.min(deadline_ns);
        self.closing.insert((dump.close_ns, id));
        self.deadlines.insert((dump.deadline_ns, id));
    }

    /// No clock closes the window until [`Self::thaw`].
    pub(crate) fn freeze(&mut self, id: u64) {
        if let Some(dump) = self.by_id.get(&id) {
            self.closing.remove(&(dump.close_ns, id));
            self.deadlines.remove(&(dump.deadline_ns, id));
        }
    }

    /// Clocks may again close the windows of this rule that end before `until_ns`.
    pub(crate) fn thaw(&mut self, rule: usize, until_ns: i64) {
        let is_its = |dump: &&DirectorDump<K>| dump.rule == rule && dump.to_ns < until_ns;
        for dump in self.by_id.values().filter(is_its) {
            self.closing.insert((dump.close_ns, dump.id));
            self.deadlines.insert((dump.deadline_ns, dump.id));
        }
    }

    /// The oldest open dump of a rule and expression that was requested with this window and
    /// contains the hit's whole time span, ns. A dump that [`ALERTS_OF_DUMP`] alerts have joined is
    /// skipped.
    pub(crate) fn same(
        &mut self,
        (rule, expression): (usize, &K),
        window: DumpWindow,
        (first_ns, last_ns): (i64, i64),
    ) -> Option<&mut DirectorDump<K>> {
        let ids = self.by_key.get(&(rule, expression.clone()))?;
        let by_id = &self.by_id;
        let is_within = |id: &&u64| {
            let dump = by_id.get(id);
            dump.is_some_and(|dump| {
                dump.window == window
                    && dump.from_ns <= first_ns
                    && last_ns <= dump.to_ns
                    && (rule != ALERT || dump.suppressed.count < ALERTS_OF_DUMP)
            })
        };
        let id = *ids.iter().find(is_within)?;
        self.by_id.get_mut(&id)
    }

    /// The earliest close time of an unfrozen dump, ns.
    pub(crate) fn next_close_ns(&self) -> Option<i64> {
        self.closing.first().map(|(close_ns, _)| *close_ns)
    }

    /// Removes the dumps that the clock closes at `until_ns` or before, in the order of their
    /// closing.
    pub(crate) fn take_closed(&mut self, until_ns: i64) -> Vec<DirectorDump<K>> {
        let due = self.closing.iter().take_while(|(ns, _)| *ns <= until_ns);
        let due: Vec<u64> = due.map(|(_, id)| *id).collect();
        self.take_all_of(&due)
    }

    /// Removes the dumps whose deadline is before `mono_ns`, in the order of their deadlines.
    pub(crate) fn take_overdue(&mut self, mono_ns: i64) -> Vec<DirectorDump<K>> {
        let due = self.deadlines.range(..(mono_ns, 0));
        let due: Vec<u64> = due.map(|(_, id)| *id).collect();
        self.take_all_of(&due)
    }

    /// Removes all dumps, oldest first.
    pub(crate) fn take_all(&mut self) -> Vec<DirectorDump<K>> {
        self.closing.clear();
        self.deadlines.clear();
        self.limited = 0;
        self.by_key.clear();
        self.by_flow.clear();
        let dumps = std::mem::take(&mut self.by_id);
        dumps.into_values().collect()
    }

    fn take_all_of(&mut self, ids: &[u64]) -> Vec<DirectorDump<K>> {
        ids.iter().filter_map(|id| self.take(*id)).collect()
    }

    /// Removes a dump, if it is open.
    pub(crate) fn take(&mut self, id: u64) -> Option<DirectorDump<K>> {
        let dump = self.by_id.remove(&id)?;
        self.closing.remove(&(dump.close_ns, id));
        self.deadlines.remove(&(dump.deadline_ns, id));
        self.limited -= usize::from(dump.window.is_limited());
        self.forget(id, dump.rule, dump.flows.iter().flat_map(HashMap::keys));
        let key = (dump.rule, dump.expression.clone());
        if let Entry::Occupied(mut entry) = self.by_key.entry(key) {
            entry.get_mut().retain(|other| *other != id);
            if entry.get().is_empty() {
                entry.remove();
            }
        }
        Some(dump)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: DumpWindow = DumpWindow {
        past_ns: 0,
        future_ns: 0,
        packets_max: u64::MAX,
        bytes_max: u64::MAX,
    };

    fn dump(id: u64, expression: &'static str, to_ns: i64) -> DirectorDump<&'static str> {
        DirectorDump {
            id,
            rule: 0,
            expression,
            window: WINDOW,
            from_ns: 1,
            to_ns,
            close_ns: to_ns + 10,
            deadline_ns: id.cast_signed() * 1000,
            clip: None,
            flows: None,
            hold_off_ns: None,
            suppressed: Suppressed::default(),
        }
    }

    fn ids(dumps: &[DirectorDump<&'static str>]) -> Vec<u64> {
        dumps.iter().map(|dump| dump.id).collect()
    }

    /// Three open dumps: dump 1 of expression `a` ends at 100, dump 2 of `b` at 50, dump 3 of `a`
    /// at 200.
    fn three() -> DirectorDumps<&'static str> {
        let mut dumps = DirectorDumps::new();
        for (id, expression, to_ns) in [(1, "a", 100), (2, "b", 50), (3, "a", 200)] {
            dumps.add(dump(id, expression, to_ns));
        }
        dumps
    }

    #[test]
    fn a_hit_finds_the_oldest_dump_of_its_kind_that_is_not_over() {
        let mut dumps = three();
        let mut found = |rule, expression, time_ns| {
            let dump = dumps.same((rule, &expression), WINDOW, (time_ns, time_ns));
            dump.map(|dump| dump.id)
        };
        assert_eq!(found(0, "a", 100), Some(1));
        assert_eq!(found(0, "a", 101), Some(3));
        assert_eq!(found(0, "a", 201), None);
        assert_eq!(found(0, "b", 1), Some(2));
        assert_eq!(found(1, "a", 1), None, "of another rule");
        assert_eq!(found(0, "b", 0), None, "before it, of another clock");
        assert_eq!(ids(&dumps.take_closed(110)), [2, 1]);
        let mut found = |expression| {
            let dump = dumps.same((0, &expression), WINDOW, (1, 1));
            dump.map(|dump| dump.id)
        };
        assert_eq!((found("a"), found("b")), (Some(3), None));
    }

    #[test]
    fn they_close_in_the_order_of_their_ends_and_of_their_ids() {
        let mut dumps = three();
        dumps.add(dump(4, "c", 50));
        assert_eq!(dumps.next_close_ns(), Some(60));
        assert!(dumps.take_closed(59).is_empty());
        assert_eq!(ids(&dumps.take_closed(60)), [2, 4]);
        assert_eq!((dumps.len(), dumps.next_close_ns()), (2, Some(110)));
        assert_eq!(ids(&dumps.take_overdue(3000)), [1], "3 is due at 3000");
        assert_eq!(ids(&dumps.take_overdue(3001)), [3]);
        assert_eq!((dumps.len(), dumps.next_close_ns()), (0, None));
        // A long window that opened first does not block later windows.
        let mut dumps = three();
        let mut long = dump(0, "d", 9_000);
        long.deadline_ns = 10_000;
        dumps.add(long);
        assert_eq!(ids(&dumps.take_overdue(2001)), [1, 2]);
        assert_eq!(ids(&dumps.take_all()), [0, 3]);
    }
}
