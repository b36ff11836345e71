//! The reading role: a member of a group, with its ledger.

use std::{collections::BTreeMap, sync::atomic::Ordering, time::Duration};

use fastrand::Rng;
use retroscope_ring::{GroupKind, Reader};

use super::{
    forbidden,
    round::{Round, Wakeable, take},
    sync::lock,
    writer::promise_ns,
};

/// A wait this long is a lost wake-up.
const DEADLINE: Duration = Duration::from_secs(600);

#[derive(Debug)]
pub(crate) struct Follower {
    reader: Reader,
    kind: GroupKind,
    /// Keys are the numbers of the producers that this reader reads.
    ledgers: BTreeMap<usize, Ledger>,
}

#[derive(Debug, Default)]
struct Ledger {
    start: u64,
    /// Number of records published when the group was made. Of these, later buckets may have been
    /// overwritten before earlier buckets.
    old: u64,
    next: u64,
    read: u64,
    missed: u64,
    /// The last watermark seen: (number of the first record for which it holds, watermark in ns).
    promised: Option<(u64, i64)>,
}

pub(crate) fn follow(round: &Round, rng: &mut Rng) {
    if rng.u8(0..20) == 0 {
        enter(round, rng);
    }
    let Some(mut follower) = take(&round.followers, rng) else {
        return enter(round, rng);
    };
    follower.look_for_promises(round);
    for _ in 0..rng.u8(1..30) {
        if !follower.read_one(round, Some(rng)) {
            if rng.u8(0..3) == 0 && !round.is_over() {
                follower.sleep(round);
            }
            break;
        }
    }
    match rng.u8(0..8) {
        0 => follower.reader.finish(),
        1 => round.stall(rng), // with an unfinished batch
        _ => {}
    }
    if rng.u8(0..60) == 0 {
        follower.leave(round);
    } else {
        lock(&round.followers).push(follower);
    }
}

/// Makes a group with one to three members, if the ring allows more readers.
fn enter(round: &Round, rng: &mut Rng) {
    let kind = if rng.u8(0..3) == 0 {
        GroupKind::Gating
    } else {
        GroupKind::Lapped
    };
    let members = rng.usize(1..=3);
    let Ok(readers) = round.ring.group_of(kind, members) else {
        return;
    };
    for (member, reader) in readers.into_iter().enumerate() {
        let ledger = |producer| {
            let start = reader.positions().get(producer);
            let ledger = Ledger {
                start,
                old: round.ring.published(producer),
                next: start,
                ..Ledger::default()
            };
            (producer, ledger)
        };
        let ledgers: BTreeMap<usize, Ledger> = (member..round.rules.producers)
            .step_by(members)
            .map(ledger)
            .collect();
        lock(&round.wakers).push(Wakeable {
            waker: reader.waker(),
            positions: reader.positions(),
            producers: ledgers.keys().copied().collect(),
        });
        let starts = vec![0; round.rules.producers];
        lock(&round.watched)
            .positions
            .push((reader.positions(), starts));
        lock(&round.followers).push(Follower {
            reader,
            kind,
            ledgers,
        });
    }
}

impl Follower {
    /// Loads each watermark before the published count: all records that the watermark promises
    /// must be published.
    fn look_for_promises(&mut self, round: &Round) {
        for (&producer, ledger) in &mut self.ledgers {
            let Some(watermark_ns) = round.ring.watermark(producer) else {
                continue;
            };
            let published = round.ring.published(producer);
            ledger.promised = Some((published, watermark_ns));
            if watermark_ns == i64::MAX {
                let begun = round.begun[producer].load(Ordering::Relaxed); // after the watermark
                assert!(
                    begun - published <= 1,
                    "it left, and its last record was stored or refused"
                );
            } else {
                let promised = u64::try_from(watermark_ns / promise_ns(1)).expect("not negative");
                forbidden::watermark_before_records(producer, published, promised);
            }
        }
    }

    /// Reads one batch and checks every record. May stall in the middle if given a generator.
    fn read_one(&mut self, round: &Round, mut rng: Option<&mut Rng>) -> bool {
        let Some(batch) = self.reader.next() else {
            return false;
        };
        let producer = batch.producer;
        let ledger = self
            .ledgers
            .get_mut(&producer)
            .expect("a producer of this member's");
        forbidden::untold_gap(producer, batch.first, ledger.next, batch.missed.packets);
        if self.kind == GroupKind::Gating && batch.first > ledger.old {
            forbidden::gating_loss(producer, batch.missed.packets);
        }
        ledger.missed += batch.missed.packets;
        round.happened.lapped.add(batch.missed.packets);
        ledger.next = batch.first + batch.len() as u64;
        ledger.read += batch.len() as u64;
        let begun = round.begun[producer].load(Ordering::Relaxed); // ordered by what was published
        forbidden::early_record(producer, ledger.next - 1, begun);
        let stall_at = rng
            .as_mut()
            .and_then(|rng| (rng.u8(0..40) == 0).then(|| rng.usize(0..batch.len())));
        let (first, promised) = (batch.first, ledger.promised);
        for (index, packet) in batch.into_iter().enumerate() {
            let number = first + index as u64;
            forbidden::torn_record(&round.rules.names, &packet, producer, number);
            if let Some((_, watermark_ns)) = promised.filter(|&(from, _)| number >= from) {
                forbidden::older_than_watermark(producer, number, packet.time_ns, watermark_ns);
            }
            if let Some(rng) = rng.as_mut().filter(|_| stall_at == Some(index)) {
                round.stall(rng);
                forbidden::torn_record(&round.rules.names, &packet, producer, number);
            }
        }
        true
    }

    fn sleep(&mut self, round: &Round) {
        round.happened.slept.add(1);
        assert!(self.reader.wait(DEADLINE), "FORBIDDEN lost_wake_up");
    }

    pub(crate) fn drain(&mut self, round: &Round) {
        while self.read_one(round, None) {}
        self.reader.finish();
    }

    /// Checks the ledgers at their present positions, and leaves the group.
    pub(crate) fn leave(self, round: &Round) {
        let told = self.ledgers.values().map(|ledger| ledger.missed).sum();
        // Only the next batch would report the last missed records.
        forbidden::told_unfound(told, self.reader.lapped().packets);
        for (&producer, ledger) in &self.ledgers {
            let published = round.ring.published(producer);
            let (stored, unread) = (published - ledger.start, published - ledger.next);
            forbidden::open_ledger_of_a_reader(stored, ledger.read, ledger.missed, unread);
        }
    }

    pub(crate) fn check_end(&self, round: &Round) {
        let (mut stored, mut read) = (0, 0);
        for (&producer, ledger) in &self.ledgers {
            let published = round.ring.published(producer);
            assert_eq!(self.reader.positions().get(producer), published);
            stored += published - ledger.start;
            read += ledger.read;
        }
        forbidden::open_ledger_of_a_reader(stored, read, self.reader.lapped().packets, 0);
    }
}
