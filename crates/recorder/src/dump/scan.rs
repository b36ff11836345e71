//! One bucket, looked at for all dumps that want it: 64 records at a time, those of a dump's window first by their
//! descriptors, then by its filter's machine code. What is left, packets that a dump takes and those that its filter must be
//! asked about, is looked at one by one.

use std::ops::Range;

use retroscope_ring::{BucketInfo, BucketView};

use super::active::{Active, Found};
use crate::{
    chunk::Chunk,
    dump_script::ScriptPredicate,
    interfaces::{Interface, InterfaceCache},
    predicate::Quick,
    trigger_scripts::shown,
};

/// A bucket to visit, and which dumps want which of its records.
#[derive(Debug)]
pub(super) struct Visit {
    pub(super) info: BucketInfo,
    /// At least one.
    pub(super) wanted: Vec<Want>,
}

/// What a dump wants of a bucket.
#[derive(Debug)]
pub(super) struct Want {
    /// Its place among the open dumps.
    pub(super) dump: usize,
    /// Counted from the start of the bucket.
    pub(super) records: Range<u32>,
}

/// Some records of a bucket, all of one interface.
struct Run<'a> {
    view: &'a BucketView,
    info: &'a BucketInfo,
    chunk: &'a Chunk<'a>,
    /// Where in the chunk.
    range: Range<usize>,
    /// Where in the bucket the chunk begins.
    base: u32,
    interface: &'a Interface,
}

/// Gives the dumps what they take of a bucket. Returns how many packets now wait there for their turn, and the first record
/// that was not looked at.
pub(super) fn scan(
    view: &BucketView,
    visit: &Visit,
    dumps: &mut [Active],
    names: &mut InterfaceCache,
) -> (usize, u32) {
    let from = visit.wanted.iter().map(|want| want.records.start).min();
    let to = visit.wanted.iter().map(|want| want.records.end).max();
    let to = to.unwrap_or(0).min(view.committed());
    let from = from.unwrap_or(0).min(to);
    let mut packets = view.iter_from(from).take((to - from) as usize);
    let mut chunk = Chunk::new();
    let (mut waiting, mut base) = (0, from);
    loop {
        let count = chunk.fill(&mut packets);
        if count == 0 {
            return (waiting, to);
        }
        for (id, range) in chunk.runs() {
            let Some(interface) = names.interface(id).cloned() else {
                continue;
            };
            let run = Run {
                view,
                info: &visit.info,
                chunk: &chunk,
                range,
                base,
                interface: &interface,
            };
            for want in &visit.wanted {
                waiting += run.give(want, &mut dumps[want.dump], names);
            }
        }
        base += u32::try_from(count).unwrap_or(0); // at most 64
    }
}

impl Run<'_> {
    /// Gives a dump what it takes; returns how many packets more wait for their turn.
    fn give(&self, want: &Want, dump: &mut Active, names: &mut InterfaceCache) -> usize {
        let range = self.wanted(want);
        if range.is_empty() {
            return 0;
        }
        let in_window = dump.in_window(self.chunk, range.clone());
        if in_window == 0 {
            return 0;
        }
        let (set, is_sure) = match dump.order.predicate.quick(self.interface.link_type) {
            Quick::Nothing => return 0,
            Quick::Program(program) => {
                let kept = program.run_many(self.chunk.frames(range.clone()));
                (in_window & kept, true)
            }
            Quick::Script(script) => (self.scripted(script, &range, in_window), true),
            Quick::Ask => (in_window, false),
        };
        let mut waiting = 0;
        let mut left = set;
        while left != 0 {
            let index = self.base + offset(range.start) + left.trailing_zeros();
            left &= left - 1;
            let found = Found {
                bucket: self.info.bucket,
                index,
                producer: self.info.producer,
                record: self.info.first + u64::from(index),
            };
            let packet = self.view.packet(index);
            waiting += if is_sure {
                dump.take(&packet, found, self.interface)
            } else {
                dump.ask(&packet, found, self.interface, names)
            };
        }
        waiting
    }

    /// Which of the records at `range` that are `in_window` a script takes: bit `n` is that of the `n`th of them. It is asked
    /// about no others, and about each once.
    fn scripted(&self, script: &ScriptPredicate, range: &Range<usize>, in_window: u64) -> u64 {
        let places = (0..u64::BITS).filter(|place| in_window >> place & 1 == 1);
        let first = self.base + offset(range.start);
        let link_type = self.interface.link_type;
        let packets: Vec<_> = places
            .clone()
            .map(|place| shown(&self.view.packet(first + place), link_type))
            .collect();
        let taken = script.match_many(&packets);
        let taken = places.enumerate().filter(|(n, _)| taken >> n & 1 == 1);
        taken.fold(0, |set, (_, place)| set | 1 << place)
    }

    /// Which part of the run a dump wants.
    fn wanted(&self, want: &Want) -> Range<usize> {
        let place = |record: u32| {
            let place = record.saturating_sub(self.base) as usize;
            place.clamp(self.range.start, self.range.end)
        };
        place(want.records.start)..place(want.records.end)
    }
}

/// A place in a chunk, which has at most 64.
fn offset(place: usize) -> u32 {
    u32::try_from(place).unwrap_or(0)
}
