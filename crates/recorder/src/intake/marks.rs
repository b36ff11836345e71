//! Which flows are exempt from shedding, and which are shunted: marked by who looks at packets and by the dumper, asked by inserters.
//!
//! A flow is exempt from the first of its packets on that a trigger or an open dump takes. A dump may be opened when packets of a flow are shed already: so an
//! inserter asks the filters of open dumps about a packet that it would shed, too. A dump of everything singles out no flow, and exempts none.
//!
//! Live a mark holds at once. From files what dumps do counts from the next time on that the inserter waits for all who look ([`Marks::settle`]), because how far
//! the dumper has come between is chance.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use retroscope_filter::{Filter, Frame, Matches, RuleReader, Sure};
use retroscope_flow::{Cursor, Ends, Feed, Heard, Key, LfnTable, Mark, Secret};
use retroscope_packet::{LinkType, parse};

use crate::{analysis::rules::Rules, control::lock};

/// Places for flows that are exempt, and as many for those that are shunted, live of 16 bytes each. Of 1,000 one in 2,000 is forgotten then, because another has its place.
const MARKS: usize = 1 << 20;
/// Flows that became exempt, for inserters that are behind with them.
const EXEMPTED: usize = 1024;

/// See the module. For any thread.
#[derive(Debug)]
pub(crate) struct Marks {
    flows: MarkedFlows,
    /// Filters of open dumps that do not take everything, and how many they are, which is ordered with nothing.
    dumps: Mutex<Rules>,
    open: AtomicUsize,
}

#[derive(Debug)]
enum MarkedFlows {
    /// Live. What is exempt stays so whatever others put at the same time, because nothing takes it out: so it has a table of its own.
    Shared {
        exempt: LfnTable,
        /// When flows were shunted, ring time.
        shunted: LfnTable,
        /// Those that became exempt.
        exempted: Feed<Key>,
    },
    /// From files: none is forgotten, up to [`MARKS`].
    Exact {
        table: Mutex<HashMap<Key, Mark>>,
        /// Those with packets that open dumps took since inserters last waited.
        dumped: Mutex<HashSet<Key>>,
    },
}

/// What an inserter asks the filters of open dumps by.
#[derive(Debug)]
pub(crate) struct DumpFilters {
    reader: RuleReader,
    matches: Matches,
    /// From files, whether there were any when it settled.
    any: bool,
}

impl DumpFilters {
    /// Whether an open dump certainly takes a frame, whatever its window. Where that depends on others of its datagram the dumper tells.
    fn take(&mut self, link_type: LinkType, interface: u16, frame: Frame<'_>) -> bool {
        let matches = &mut self.matches;
        self.reader
            .match_many(link_type, interface, &[frame], matches);
        matches.iter().any(|(.., sure)| sure == Sure::Yes)
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
            }
        };
        Self {
            flows,
            dumps: Mutex::new(rules),
            open: AtomicUsize::new(0),
        }
    }

    /// A trigger takes a packet of this flow, which is exempt from now on.
    pub(crate) fn exempt(&self, key: Key) {
        self.put(key, Mark::Exempt);
    }

    /// Nothing of this flow is wanted any more since a packet of this ring time, unless it is exempt.
    pub(crate) fn shunt(&self, key: Key, at_ns: i64) {
        self.put(key, Mark::Shunted { at_ns });
    }

    /// An open dump takes this packet: its flow is exempt, from files from the next [`Self::settle`] on.
    pub(crate) fn exempt_dumped(&self, link_type: LinkType, data: &[u8]) {
        let Some(Ends { key, .. }) = Ends::of(&parse(link_type, data), true) else {
            return;
        };
        match &self.flows {
            MarkedFlows::Shared { .. } => self.exempt(key),
            MarkedFlows::Exact { dumped, .. } => {
                let mut dumped = lock(dumped);
                if dumped.len() < MARKS {
                    dumped.insert(key);
                }
            }
        }
    }

    /// A dump is opened, of what this filter takes.
    pub(crate) fn open_dump(&self, id: u64, filter: &Filter, link_types: &[LinkType]) {
        let mut dumps = lock(&self.dumps);
        for link_type in link_types {
            dumps.add_link_type(*link_type);
        }
        // Live nobody waits for libpcap: what its packets are of is marked all the same.
        let is_slow = !dumps.slow_link_types(filter, link_types).is_empty();
        if !is_slow && dumps.insert(id, filter).is_ok() {
            dumps.join();
            self.open.store(dumps.len(), Relaxed);
        }
    }

    /// It wants no more packets.
    pub(crate) fn close_dump(&self, id: u64) {
        let mut dumps = lock(&self.dumps);
        dumps.remove(id);
        self.open.store(dumps.len(), Relaxed);
    }

    /// From files: an inserter has waited, and takes up which dumps are open.
    pub(crate) fn settle_filters(&self, filters: &mut DumpFilters) {
        filters.any = self.open.load(Relaxed) > 0;
        filters.reader.catch_up();
    }

    /// From files: the inserter waits, and all that was stored was looked at.
    pub(crate) fn settle(&self) {
        if let MarkedFlows::Exact { dumped, .. } = &self.flows {
            let dumped = std::mem::take(&mut *lock(dumped));
            dumped.into_iter().for_each(|key| self.exempt(key));
        }
    }

    /// What is exempt stays so.
    fn put(&self, key: Key, mark: Mark) {
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
            MarkedFlows::Exact { table, .. } => {
                let mut table = lock(table);
                let has_room = table.len() < MARKS;
                match table.get_mut(&key) {
                    Some(Mark::Exempt) => {}
                    Some(shunted) => *shunted = mark,
                    None if has_room => drop(table.insert(key, mark)),
                    None => {}
                }
            }
        }
    }

    /// What a flow is marked as, a packet of which would be shed.
    pub(crate) fn of(
        &self,
        key: &Key,
        (link_type, interface): (LinkType, u16),
        frame: Frame<'_>,
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

    fn get(&self, key: &Key) -> Option<Mark> {
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

    /// For an inserter.
    pub(crate) fn dump_filters(&self) -> DumpFilters {
        DumpFilters {
            reader: lock(&self.dumps).reader(),
            matches: Matches::default(),
            any: false,
        }
    }

    /// Where an inserter begins to hear of flows that become exempt.
    pub(crate) fn listen(&self) -> Option<Cursor> {
        match &self.flows {
            MarkedFlows::Shared { exempted, .. } => Some(exempted.listen(None)),
            MarkedFlows::Exact { .. } => None,
        }
    }

    /// The next flow that became exempt. An inserter that is far behind is not told of all: their packets come again all the same, later.
    pub(crate) fn exempted(&self, cursor: &mut Cursor) -> Option<Key> {
        let MarkedFlows::Shared { exempted, .. } = &self.flows else {
            return None;
        };
        loop {
            match exempted.hear(cursor) {
                Heard::Event(key) => return Some(key),
                Heard::Missed(_) => {}
                Heard::Nothing => return None,
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

    use retroscope_filter::Mode;

    use super::*;
    use crate::analysis::native::NativeCode;

    /// Threads that mark flows, and inserters that ask for them: no flow has the mark of another, and each that became exempt is told, or counted as missed.
    #[test]
    fn threads_mark_flows_and_ask_for_them() {
        const FLOWS: i64 = 5_000;
        let marks = Marks::new(true, Rules::new(Mode::Live, Arc::new(NativeCode::new())));
        let key = |flow: i64| Key::opaque(0, &flow.to_ne_bytes());
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
    /// One thread exempts a flow while another shunts it: it is exempt, whoever is first.
    #[test]
    fn what_is_exempt_stays_so_while_another_thread_shunts_it() {
        const ROUNDS: i64 = 50_000;
        let marks = Marks::new(true, Rules::new(Mode::Live, Arc::new(NativeCode::new())));
        let key = |flow: i64| Key::opaque(0, &flow.to_ne_bytes());
        let arrived = AtomicUsize::new(0);
        // Both threads leave at once, which they do not where one has to wake the other.
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
