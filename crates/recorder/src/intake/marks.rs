//! Marks of flows that are exempt from shedding, and of flows that are shunted.
//!
//! A dump may open when packets of its flow are already being shed. So before an inserter sheds a
//! packet, it also tries the filters of open dumps, except slow filters. A dump with an empty
//! filter, or with `$iface` alone, exempts no flow.
//!
//! From files, marks set by the dumper take effect in [`Marks::settle`], because the progress of
//! threads before that is not deterministic.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Mutex,
        atomic::{AtomicU8, AtomicUsize, Ordering::Relaxed},
    },
};

use retroscope_filter::{Certainty, Filter, FilterFrame, Matches, RuleReader};
use retroscope_flow::{BiflowKey, DirectedKey, Feed, FeedCursor, FeedItem, LfnTable, Mark, Secret};
use retroscope_packet::{LinkType, parse};

use crate::{analysis::rules::Rules, control::lock};

/// Live: marks of exempt flows, and as many of shunted flows, 16 bytes each. With 1,000 marked
/// flows, another mark overwrites a mark with probability 1/2,000. From files: marks of both kinds
/// together.
const MARKS: usize = 1 << 20;
/// Number of newly exempt flows that are kept for inserters.
const EXEMPTED: usize = 1024;

/// Marks of flows, for any thread.
#[derive(Debug)]
pub(crate) struct Marks {
    flows: MarkedFlows,
    /// Filters of open dumps, for inserters. `open` is the number of filters in `dumps`. Its
    /// accesses are `Relaxed`, because no other access depends on the number.
    dumps: Mutex<Rules>,
    open: AtomicUsize,
}

#[derive(Debug)]
enum MarkedFlows {
    /// Live. Exempt flows have a separate table, so that a shunt at the same time cannot end an
    /// exemption.
    Shared {
        exempt: LfnTable,
        /// The ring times at which flows were shunted.
        shunted: LfnTable,
        /// Flows that became exempt, for inserters.
        exempted: Feed<BiflowKey>,
    },
    /// From files: only the first [`MARKS`] flows get marks.
    Exact {
        table: Mutex<HashMap<BiflowKey, Mark>>,
        /// Flows with packets in open dumps since the last [`Marks::settle`].
        dumped: Mutex<HashSet<BiflowKey>>,
        /// 1: a flow got no mark for lack of room; 2: this was reported. `Relaxed`: no other access
        /// depends on the number.
        lost: AtomicU8,
    },
}

/// An inserter's access to the filters of open dumps.
#[derive(Debug)]
pub(crate) struct DumpFilters {
    reader: RuleReader,
    matches: Matches,
    /// Whether `dumps` had filters when this was last checked.
    any: bool,
}

impl DumpFilters {
    /// Whether one of the filters certainly matches a frame, whatever the window of its dump.
    fn take(&mut self, link_type: LinkType, interface: u16, frame: FilterFrame<'_>) -> bool {
        let matches = &mut self.matches;
        self.reader
            .match_many(link_type, interface, &[frame], matches);
        matches.iter().any(|(.., sure)| sure == Certainty::Certain)
    }
}

impl Marks {
    /// `rules`: an empty set.
    pub(crate) fn new(live: bool, rules: Rules) -> Self {
        let flows = if live {
            let advise = retroscope_ring::ask_for_huge_pages;
            let table = || LfnTable::with_advice(MARKS, Secret::random(), advise);
            MarkedFlows::Shared {
                exempt: table(),
                shunted: table(),
                exempted: Feed::new(EXEMPTED),
            }
        } else {
            MarkedFlows::Exact {
                table: Mutex::default(),
                dumped: Mutex::default(),
                lost: AtomicU8::new(0),
            }
        };
        Self {
            flows,
            dumps: Mutex::new(rules),
            open: AtomicUsize::new(0),
        }
    }

    pub(crate) fn exempt(&self, key: BiflowKey) {
        self.put(key, Mark::Exempt);
    }

    /// A script or module wants no packets of this flow after this ring time.
    pub(crate) fn shunt(&self, key: BiflowKey, at_ns: i64) {
        self.put(key, Mark::Shunted { at_ns });
    }

    /// An open dump selects this packet. Exempts its flow: live now, from files in
    /// [`Self::settle`].
    pub(crate) fn exempt_dumped(&self, link_type: LinkType, data: &[u8]) {
        let Some(DirectedKey { key, .. }) = DirectedKey::of(&parse(link_type, data), true) else {
            return;
        };
        match &self.flows {
            MarkedFlows::Shared { .. } => self.exempt(key),
            MarkedFlows::Exact { dumped, lost, .. } => {
                let mut dumped = lock(dumped);
                if dumped.len() < MARKS {
                    dumped.insert(key);
                } else if !dumped.contains(&key) {
                    lost.fetch_max(1, Relaxed);
                }
            }
        }
    }

    /// A dump with this filter opens.
    pub(crate) fn open_dump(&self, id: u64, filter: &Filter, link_types: &[LinkType]) {
        let mut dumps = lock(&self.dumps);
        for link_type in link_types {
            dumps.add_link_type(*link_type);
        }
        // A slow filter would delay inserters.
        let is_slow = !dumps.slow_link_types(filter, link_types).is_empty();
        if !is_slow && dumps.insert(id, filter).is_ok() {
            dumps.join();
            self.open.store(dumps.len(), Relaxed);
        }
    }

    /// The dump needs no more packets.
    pub(crate) fn close_dump(&self, id: u64) {
        let mut dumps = lock(&self.dumps);
        dumps.remove(id);
        self.open.store(dumps.len(), Relaxed);
    }

    /// From files: the inserter learns which dumps are open.
    pub(crate) fn refresh_filters(&self, filters: &mut DumpFilters) {
        filters.any = self.open.load(Relaxed) > 0;
        filters.reader.refresh_blocking();
    }

    /// From files, when all stored packets were analyzed: exempts the flows with packets in open
    /// dumps. Returns a message for the user the first time that a flow got no mark.
    pub(crate) fn settle(&self) -> Option<String> {
        let MarkedFlows::Exact { dumped, lost, .. } = &self.flows else {
            return None;
        };
        let dumped = std::mem::take(&mut *lock(dumped));
        dumped.into_iter().for_each(|key| self.exempt(key));
        let is_new = lost.compare_exchange(1, 2, Relaxed, Relaxed).is_ok();
        is_new.then(|| {
            format!("{MARKS} flows are exempt or shunted: further flows are neither, and packets of theirs that triggers or dumps need may be shed")
        })
    }

    /// Sets a mark. An exemption prevails over a shunt.
    fn put(&self, key: BiflowKey, mark: Mark) {
        match &self.flows {
            MarkedFlows::Shared {
                exempt,
                shunted,
                exempted,
            } => match mark {
                _ if exempt.get(&key).is_some() => {}
                Mark::Exempt => {
                    exempt.put(&key, 0);
                    exempted.push(key);
                }
                Mark::Shunted { at_ns } => shunted.put(&key, at_ns.cast_unsigned()),
            },
            MarkedFlows::Exact { table, lost, .. } => {
                let mut table = lock(table);
                let has_room = table.len() < MARKS;
                match table.get_mut(&key) {
                    Some(Mark::Exempt) => {}
                    Some(shunted) => *shunted = mark,
                    None if has_room => drop(table.insert(key, mark)),
                    None => _ = lost.fetch_max(1, Relaxed),
                }
            }
        }
    }

    /// The mark of a flow. First exempts the flow if one of `filters` certainly matches the frame.
    pub(crate) fn of(
        &self,
        key: &BiflowKey,
        (link_type, interface): (LinkType, u16),
        frame: FilterFrame<'_>,
        filters: &mut DumpFilters,
    ) -> Option<Mark> {
        if matches!(self.flows, MarkedFlows::Shared { .. }) {
            filters.any = self.open.load(Relaxed) > 0;
            filters.reader.refresh();
        }
        let mark = self.get(key);
        if filters.any && mark != Some(Mark::Exempt) && filters.take(link_type, interface, frame) {
            self.exempt(*key);
            return Some(Mark::Exempt);
        }
        mark
    }

    fn get(&self, key: &BiflowKey) -> Option<Mark> {
        match &self.flows {
            MarkedFlows::Shared {
                exempt, shunted, ..
            } => {
                if exempt.get(key).is_some() {
                    return Some(Mark::Exempt);
                }
                let at_ns = shunted.get(key)?.cast_signed();
                Some(Mark::Shunted { at_ns })
            }
            MarkedFlows::Exact { table, .. } => lock(table).get(key).copied(),
        }
    }

    pub(crate) fn dump_filters(&self) -> DumpFilters {
        DumpFilters {
            reader: lock(&self.dumps).reader(),
            matches: Matches::default(),
            any: false,
        }
    }

    /// A cursor for [`Self::exempted`]; from files `None`.
    pub(crate) fn listen(&self) -> Option<FeedCursor> {
        match &self.flows {
            MarkedFlows::Shared { exempted, .. } => Some(exempted.listen(None)),
            MarkedFlows::Exact { .. } => None,
        }
    }

    /// The next flow that became exempt. A slow inserter misses some flows.
    pub(crate) fn exempted(&self, cursor: &mut FeedCursor) -> Option<BiflowKey> {
        let MarkedFlows::Shared { exempted, .. } = &self.flows else {
            return None;
        };
        loop {
            match exempted.next_event(cursor) {
                FeedItem::Event(key) => return Some(key),
                FeedItem::Missed(_) => {}
                FeedItem::Nothing => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc,
            atomic::Ordering::{AcqRel, Acquire},
        },
        thread,
    };

    use retroscope_filter::FilterMode;

    use super::*;
    use crate::analysis::native::NativeCode;

    /// No flow may have the mark of another flow. At the end, more than 98 % of the flows must have
    /// a mark.
    #[test]
    fn threads_mark_flows_and_ask_for_them() {
        const FLOWS: i64 = 5_000;
        let marks = Marks::new(
            true,
            Rules::new(FilterMode::Live, Arc::new(NativeCode::new())),
        );
        let key = |flow: i64| BiflowKey::opaque(0, &flow.to_ne_bytes());
        let (marks, found) = (&marks, AtomicUsize::new(0));
        thread::scope(|scope| {
            for thread in 0..2 {
                scope.spawn(move || {
                    for flow in 0..FLOWS {
                        match flow % 2 == thread {
                            true => marks.exempt(key(flow)),
                            false => marks.shunt(key(flow + FLOWS), flow + FLOWS),
                        }
                    }
                });
                scope.spawn(|| {
                    let mut cursor = marks.listen().unwrap();
                    for flow in 0..2 * FLOWS {
                        let mark = marks.get(&key(flow));
                        assert!(match mark {
                            Some(Mark::Exempt) => flow < FLOWS,
                            Some(Mark::Shunted { at_ns }) => at_ns == flow,
                            None => true,
                        });
                        let told = std::iter::from_fn(|| marks.exempted(&mut cursor)).count();
                        found.fetch_add(told + usize::from(mark.is_some()), Relaxed);
                    }
                });
            }
        });
        assert!(found.load(Acquire) > 0);
        let of = |flows: std::ops::Range<i64>| {
            flows
                .filter(|flow| marks.get(&key(*flow)).is_some())
                .count()
        };
        let least = usize::try_from(FLOWS).unwrap() * 98 / 100;
        assert!(of(0..FLOWS) > least && of(FLOWS..2 * FLOWS) > least);
    }

    #[test]
    fn flows_without_a_mark_are_reported() {
        let rules = Rules::new(FilterMode::Savefile, Arc::new(NativeCode::new()));
        let marks = Marks::new(false, rules);
        let key = |flow: usize| BiflowKey::opaque(0, &flow.to_ne_bytes());
        (0..MARKS).for_each(|flow| marks.shunt(key(flow), 0));
        marks.exempt(key(0));
        assert_eq!(marks.settle(), None);
        marks.exempt(key(MARKS));
        assert_eq!(marks.get(&key(MARKS)), None);
        assert!(marks.settle().is_some());
        marks.exempt(key(MARKS));
        assert_eq!(marks.settle(), None);
    }

    #[test]
    fn what_is_exempt_stays_so_while_another_thread_shunts_it() {
        const ROUNDS: i64 = 50_000;
        let marks = Marks::new(
            true,
            Rules::new(FilterMode::Live, Arc::new(NativeCode::new())),
        );
        let key = |flow: i64| BiflowKey::opaque(0, &flow.to_ne_bytes());
        let arrived = AtomicUsize::new(0);
        // Both threads spin, so that they continue at about the same time.
        let meet = |times: usize| {
            arrived.fetch_add(1, AcqRel);
            while arrived.load(Acquire) < 2 * times {
                thread::yield_now();
            }
        };
        let mut lost = 0;
        thread::scope(|scope| {
            scope.spawn(|| {
                for (flow, times) in (0..ROUNDS).zip((1..).step_by(2)) {
                    meet(times);
                    marks.shunt(key(flow), flow);
                    meet(times + 1);
                }
            });
            for (flow, times) in (0..ROUNDS).zip((1..).step_by(2)) {
                meet(times);
                marks.exempt(key(flow));
                meet(times + 1);
                lost += usize::from(marks.get(&key(flow)) != Some(Mark::Exempt));
            }
        });
        assert_eq!(lost, 0, "of {ROUNDS} flows");
    }
}
