//! The writing role. It moves from thread to thread with its producer.

use std::sync::atomic::Ordering;

use fastrand::Rng;
use retroscope_ring::{BurstError, Producer, StoreError};

use super::{
    forbidden,
    names::{Named, STEP_NS},
    round::{Round, take},
    sync::lock,
};

#[derive(Debug)]
pub(crate) struct Writer {
    producer: Producer,
    /// Number of the next record. A refused record's number is used again.
    next: u64,
    cut: u64,
}

pub(crate) fn write(round: &Round, rng: &mut Rng) {
    let writer = take(&round.writers, rng).or_else(|| {
        round.ring.producer().ok().map(|producer| Writer {
            producer,
            next: 0,
            cut: 0,
        })
    });
    let Some(mut writer) = writer else { return };
    match rng.u8(0..8) {
        0 => writer.store_some(round, rng, 1), // a lone packet
        1..=2 => writer.store_some(round, rng, 400),
        3..=4 => writer.store_some(round, rng, 64),
        5 => writer.store_burst(round, rng, 400),
        _ => (0..4).for_each(|_| writer.store_burst(round, rng, 64)),
    }
    match rng.u8(0..6) {
        0..=2 => writer.producer.publish(),
        3 if !round.rules.names.far_behind => {
            writer.producer.set_watermark(promise_ns(writer.next));
            round.happened.promised.add(1);
        }
        4 => round.stall(rng), // perhaps with unpublished records
        _ => {}
    }
    // In the first half of the round, a producer is dropped only while others can still be opened.
    let last = round.steps() > round.rules.steps / 2;
    if rng.u8(0..200) == 0 && (last || round.ring.producers() < round.rules.producers) {
        writer.leave();
    } else {
        lock(&round.writers).push(writer);
    }
}

fn refused(round: &Round, rng: &mut Rng, error: StoreError) {
    match error {
        StoreError::Full => round.happened.refused.add(1),
        StoreError::Closed => round.happened.closed.add(1),
    }
    if rng.bool() {
        std::thread::yield_now();
    }
}

/// The watermark that all records from `number` on respect.
pub(crate) fn promise_ns(number: u64) -> i64 {
    i64::try_from(number).expect("a round is short") * STEP_NS
}

impl Writer {
    fn store_some(&mut self, round: &Round, rng: &mut Rng, records_max: u64) {
        for _ in 0..rng.u64(1..=records_max) {
            if self.store(round, rng).is_err() {
                break;
            }
            match rng.u16(0..400) {
                0..10 => self.producer.publish(),
                10 => std::thread::yield_now(),
                _ => {}
            }
        }
    }

    fn store(&mut self, round: &Round, rng: &mut Rng) -> Result<(), StoreError> {
        let id = self.producer.id();
        let named = round.rules.names.record(id, self.next);
        round.begun[id].store(self.next + 1, Ordering::Relaxed); // the store orders this
        let stored = self.producer.store(&named.record());
        match stored {
            Ok(()) => self.has_stored(round, 1),
            Err(error) => refused(round, rng, error),
        }
        stored
    }

    fn store_burst(&mut self, round: &Round, rng: &mut Rng, records_max: u64) {
        let (id, next) = (self.producer.id(), self.next);
        let count = rng.u64(1..=records_max);
        let records = (next..next + count).map(|number| {
            round.begun[id].store(number + 1, Ordering::Relaxed); // as in `store`
            round.rules.names.record(id, number).record()
        });
        let result = self.producer.store_burst(records);
        let stored = match result {
            Ok(stored) => stored as u64,
            Err(BurstError { stored, .. }) => stored as u64,
        };
        forbidden::miscounted_burst(count, stored, result.is_ok());
        self.has_stored(round, stored);
        round.happened.stored_in_bursts.add(stored);
        if let Err(BurstError { error, .. }) = result {
            refused(round, rng, error);
        }
    }

    fn has_stored(&mut self, round: &Round, records: u64) {
        let id = self.producer.id();
        let numbers = self.next..self.next + records;
        let named = numbers.map(|number| round.rules.names.record(id, number));
        let cut = named.filter(Named::is_cut).count() as u64;
        self.next += records;
        self.cut += cut;
        round.happened.stored.add(records);
        round.happened.cut.add(cut);
    }

    pub(crate) fn leave(self) {
        forbidden::uncounted_cut(self.producer.cut_records(), self.cut);
    }
}
