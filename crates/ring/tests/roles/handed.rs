//! What the members of a sharing group were handed, all together: each record once.

use std::{collections::BTreeMap, sync::Arc};

use retroscope_ring::Reader;

use crate::{
    forbidden,
    round::Round,
    sync::{Mutex, lock},
};

/// The ledger of one sharing group.
#[derive(Debug, Clone)]
pub(crate) struct Handed(Arc<Mutex<Ledger>>);

#[derive(Debug)]
struct Ledger {
    /// By producer: the group's first record.
    starts: Vec<u64>,
    /// By producer: ranges of numbers, first and end, that do not touch.
    ranges: Vec<BTreeMap<u64, u64>>,
    read: u64,
    /// Told with batches by members that have left: also what others had found before they left.
    told: u64,
    /// Found missing by members that have left.
    lapped: u64,
    members: usize,
}

impl Handed {
    /// Before any of the members has read.
    pub(crate) fn new(round: &Round, members: &[Reader]) -> Self {
        let producers = round.rules.producers;
        Self(Arc::new(Mutex::new(Ledger {
            starts: (0..producers)
                .map(|producer| members[0].position(producer))
                .collect(),
            ranges: vec![BTreeMap::new(); producers],
            read: 0,
            told: 0,
            lapped: 0,
            members: members.len(),
        })))
    }

    /// A member was handed records from `first` to before `end`.
    pub(crate) fn add(&self, producer: usize, first: u64, end: u64) {
        let mut ledger = lock(&self.0);
        ledger.read += end - first;
        let ranges = &mut ledger.ranges[producer];
        let (mut from, mut to) = (first, end);
        if let Some((&before, &before_end)) = ranges.range(..end).next_back() {
            forbidden::handed_twice(producer, first, before_end);
            if before_end == first {
                ranges.remove(&before);
                from = before;
            }
        }
        if let Some(after_end) = ranges.remove(&end) {
            to = after_end;
        }
        ranges.insert(from, to);
    }

    /// A member leaves that was told of so many missed. At the end, when nothing is unread, the last one closes the ledger.
    pub(crate) fn leave(&self, round: &Round, reader: &Reader, told: u64, at_end: bool) {
        let mut ledger = lock(&self.0);
        ledger.told += told;
        ledger.lapped += reader.lapped().packets;
        ledger.members -= 1;
        // Who is told of a loss found it, or adopted it from a member that had left.
        forbidden::told_unfound(ledger.told, ledger.lapped);
        if at_end && ledger.members == 0 {
            let stored = ledger
                .starts
                .iter()
                .enumerate()
                .map(|(producer, start)| round.ring.published(producer) - start);
            forbidden::open_ledger_of_a_reader(stored.sum(), ledger.read, ledger.lapped, 0);
        }
    }
}
