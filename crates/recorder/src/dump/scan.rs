//! Scans one bucket for all dumps that need its records. All filters run at once as one rule set,
//! so the cost grows little with the number of open dumps. Each dump script runs separately.

use std::{ops::Range, sync::Arc};

use retroscope_filter::{Certainty, Matches, RuleId, RuleReader};
use retroscope_packet::LinkType;
use retroscope_ring::BucketView;

use super::{
    active::{ActiveDump, RecordLocation},
    dumps::Dumps,
    order::DumpOrder,
    visit::{BucketVisit, WantedRecords},
};
use crate::{
    analysis::{chunk::Chunk, rules::Rules, trigger_scripts::shown},
    control::ring_time::StampRestorer,
    intake::interfaces::{InterfaceCache, RecordedInterface},
};

/// The filters of the open dumps, as one rule set.
#[derive(Debug)]
pub(super) struct Scanner {
    /// The filters, under the numbers of their dumps.
    pub(super) rules: Rules,
    reader: RuleReader,
    matches: Matches,
}

struct RecordRun<'a> {
    view: &'a Arc<BucketView>,
    visit: &'a BucketVisit,
    interface: &'a RecordedInterface,
    chunk: &'a Chunk<'a>,
    /// The records' positions in the chunk.
    range: Range<usize>,
    /// The number of the run's first record in the bucket.
    first: u32,
}

impl Scanner {
    pub(super) fn new(rules: Rules) -> Self {
        Self {
            reader: rules.reader(),
            rules,
            matches: Matches::default(),
        }
    }

    pub(super) fn add(&mut self, order: &mut DumpOrder) {
        let predicate = &mut order.predicate;
        let Some(filter) = predicate.filter() else {
            return;
        };
        match self.rules.insert(order.id, filter) {
            Ok(placed) => {
                self.rules.join();
                for (link_type, error) in &placed.refused {
                    predicate.refuse(*link_type, error);
                }
            }
            Err(error) => {
                for link_type in self.rules.link_types() {
                    predicate.refuse(link_type, &error);
                }
            }
        }
    }

    /// Gives the dumps the packets that they match. Returns the end of the records that were read,
    /// counted from the start of the bucket.
    pub(super) fn scan(
        &mut self,
        view: &Arc<BucketView>,
        visit: &BucketVisit,
        dumps: &mut Dumps,
        names: &mut InterfaceCache,
        stamps: &mut StampRestorer,
    ) -> u32 {
        let Range { start, end } = visit.records();
        let to = end.min(view.committed());
        let from = start.min(to);
        let (from_ns, to_ns) = visit.window;
        let mut packets = view.iter_from(from).take((to - from) as usize);
        let mut chunk = Chunk::new();
        let mut base = from;
        loop {
            let count = chunk.fill(&mut packets, |packet| packet);
            if count == 0 {
                return to;
            }
            for (id, range) in chunk.runs() {
                let in_window = |time_ns| (from_ns..=to_ns).contains(&time_ns);
                if chunk.mask_where(range.clone(), in_window) == 0 {
                    continue;
                }
                let Some(interface) = names.interface(id).cloned() else {
                    continue;
                };
                self.learn(interface.link_type, dumps);
                let frames = chunk.frames(range.clone());
                self.reader
                    .match_many(interface.link_type, id, frames, &mut self.matches);
                let run = RecordRun {
                    view,
                    visit,
                    interface: &interface,
                    chunk: &chunk,
                    first: base + offset(range.start),
                    range,
                };
                run.give(&self.matches, dumps, names, stamps);
                for WantedRecords { id, records } in &visit.scripted {
                    dumps.change(*id, |dump| run.give_scripted(records, dump, stamps));
                }
            }
            base += offset(count);
        }
    }

    /// Compiles all filters for the link type if it is new, and loads new filters.
    fn learn(&mut self, link_type: LinkType, dumps: &mut Dumps) {
        if !self.rules.knows(link_type) {
            for (id, error) in self.rules.add_link_type(link_type) {
                dumps.change(id, |dump| dump.order.predicate.refuse(link_type, &error));
            }
        }
        // Only the dumper changes these rules, so the call never waits for another thread.
        self.reader.refresh_blocking();
    }
}

impl RecordRun<'_> {
    fn give(
        &self,
        matches: &Matches,
        dumps: &mut Dumps,
        names: &mut InterfaceCache,
        stamps: &mut StampRestorer,
    ) {
        for (frame, RuleId(id), sure) in matches.iter() {
            let index = self.first + offset(frame);
            dumps.change(id, |dump| {
                // The rule set also matches for dumps that have already read the record.
                if !self.visit.is_for(dump, index) {
                    return;
                }
                let (packet, found) = (self.view.packet(index), self.found(index, stamps));
                match sure {
                    Certainty::Certain => dump.take(&packet, found, self.interface),
                    Certainty::AskFilter => dump.ask(&packet, found, self.interface, names),
                }
            });
        }
    }

    /// Runs the script of a dump on the run's records that are in `records` and in the dump's
    /// window.
    fn give_scripted(
        &self,
        records: &Range<u32>,
        dump: &mut ActiveDump,
        stamps: &mut StampRestorer,
    ) {
        let Some(script) = dump.order.predicate.script() else {
            return;
        };
        let in_window = |time_ns| dump.wants(time_ns);
        let mut asked = self.chunk.mask_where(self.range.clone(), in_window);
        let mut packets = Vec::new();
        let mut indexes = Vec::new();
        while asked != 0 {
            let index = self.first + asked.trailing_zeros();
            asked &= asked - 1;
            let packet = self.view.packet(index);
            if records.contains(&index) && dump.wants(packet.time_ns) {
                let found = self.found(index, stamps);
                let stamp_ns = packet.time_ns.wrapping_add(found.offset_ns);
                packets.push(shown(&packet, stamp_ns, self.interface.link_type));
                indexes.push(index);
            }
        }
        if packets.is_empty() {
            return;
        }
        let taken = script.match_many(&packets);
        let taken = indexes
            .iter()
            .enumerate()
            .filter(|(n, _)| taken >> n & 1 == 1);
        for (_, index) in taken {
            let packet = self.view.packet(*index);
            dump.take(&packet, self.found(*index, stamps), self.interface);
        }
    }

    fn found(&self, index: u32, stamps: &mut StampRestorer) -> RecordLocation<'_> {
        let info = &self.visit.info;
        let record = info.first + u64::from(index);
        RecordLocation {
            view: self.view,
            index,
            producer: info.producer,
            record,
            offset_ns: stamps.offset_ns(info.producer, self.interface.source, record),
        }
    }
}

/// A position in a chunk, which has at most 64 records.
fn offset(place: usize) -> u32 {
    u32::try_from(place).unwrap_or(0)
}
