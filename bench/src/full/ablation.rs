//! From the QQ of 2016 to our ring, one change at a time, at 64 bytes with one producer and one consumer.
//!
//! | row | change |
//! |---|---|
//! | `ablation/0-qq2016` | the QQ of 2016 as it is |
//! | `ablation/1-clock-per-burst` | the hold time is checked once for each burst of 64 packets |
//! | `ablation/2-descriptors` | 16-byte descriptors from the back of a storage, payload from its front; no vector of references |
//! | `ablation/3-nt-stores` | descriptors and payload go around the caches |
//! | `ablation/4-descriptor-groups` | descriptors wait in the L1 cache until 32 are together, so that whole lines go around the caches |
//! | `ablation/5-ring` | our ring, a call for each packet: holds instead of mutexes and guard interval, open buckets published every 128 KiB, smallest and largest times |
//! | `ablation/6-bursts` | a call for each burst of 64 packets; frames of whole lines go to their place without a buffer |
//!
//! The mutex of a storage and the guard interval have no row of their own: both cost something once for 2 MiB, and what replaced them also
//! makes open buckets readable. `guard/…` shows what distance is worth.

use std::cell::RefCell;

use super::{Start, compare, shared};
use crate::{
    contest::{Contest, Failure, Frames, Load, Run, Tally},
    limits::stream::{self, UNIT_BYTES, Unit},
    memory::Memory,
    qq2016::{Config, HOLD, Inner, PRIORITY, Qq2016, Queue, STORAGE_BYTES, Storage, ticks},
    race::{Course, race},
    ring::RingContest,
    session::{Session, SessionError},
};

const PACKET_BYTES: usize = 64;
/// Distance of readers from writers: the number of inserters (thesis, equation 7.1).
const GUARD: usize = 1;
/// Descriptors that are written together, as in our ring.
const GROUP: usize = 32;

pub(super) fn run(session: &mut Session) -> Result<(), SessionError> {
    if !session.wants_below("ablation") {
        return Ok(());
    }
    let ring_bytes = session.scale().ring_bytes;
    let ring = || RingContest::new(ring_bytes, None, 1, 1);
    let step = |step: Step| RefCell::new(Box::new(step) as Box<dyn Contest>);
    let steps = [
        ("0-qq2016", shared(Ok(Qq2016::new()))),
        ("1-clock-per-burst", step(Step::new(Change::ClockPerBurst))),
        ("2-descriptors", step(Step::new(Change::Descriptors))),
        ("3-nt-stores", step(Step::new(Change::NtStores))),
        (
            "4-descriptor-groups",
            step(Step::new(Change::DescriptorGroups)),
        ),
        ("5-ring", shared(ring().map(RingContest::packet_by_packet))),
        ("6-bursts", shared(ring())),
    ];
    let starts = steps.iter().map(|(name, contest)| Start {
        row: format!("ablation/{name}"),
        contest,
        load: Load::pairs(PACKET_BYTES, 0, 1),
        whole_lap: true,
    });
    let starts = starts.collect();
    compare(session, starts)
}

/// The last of the changes that were made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    ClockPerBurst,
    Descriptors,
    NtStores,
    DescriptorGroups,
}

/// A QQ of 2016 with changes.
#[derive(Debug)]
struct Step {
    change: Change,
    offsets: Vec<Vec<usize>>,
}

impl Step {
    fn new(change: Change) -> Self {
        Self {
            change,
            offsets: Vec::new(),
        }
    }
}

impl Contest for Step {
    fn name(&self) -> &str {
        match self.change {
            Change::ClockPerBurst => "clock-per-burst",
            Change::Descriptors => "descriptors",
            Change::NtStores => "nt-stores",
            Change::DescriptorGroups => "descriptor-groups",
        }
    }

    fn run(&mut self, load: &Load, memory: &mut Memory) -> Result<Run, Failure> {
        let config = Config {
            storage_bytes: STORAGE_BYTES,
            hold: HOLD,
            guard: GUARD,
            priority: PRIORITY,
        };
        if self.change == Change::ClockPerBurst {
            let offsets = std::mem::take(&mut self.offsets);
            let queue = Queue::new(memory.bytes_mut(), &config, offsets);
            let run = carry(&queue, load);
            self.offsets = queue.into_offsets();
            return run;
        }
        let grouped = self.change == Change::DescriptorGroups;
        let non_temporal = grouped || self.change == Change::NtStores;
        let hold_ticks = ticks::of(HOLD);
        let parts = stream::units(memory.bytes_mut()).chunks_exact_mut(STORAGE_BYTES / UNIT_BYTES);
        let storages = parts.map(|units| Described {
            units,
            payload_units: 0,
            packets: 0,
            given_out: 0,
            hold_ticks,
            non_temporal,
            grouped,
            group: [[0; UNIT_BYTES]; GROUP],
        });
        carry(&Queue::of(storages, &config), load)
    }
}

/// What the steps differ in.
trait Variant: Inner {
    /// The storage was held for too long.
    fn is_overdue(&self) -> bool;

    /// Appends a packet. `false`: it does not fit.
    fn append(&mut self, time: u64, frame: &[u8]) -> bool;

    /// Makes what was stored visible to whoever locks the storage next.
    fn finish(&mut self);

    /// Reads every header.
    fn tally(&self) -> Tally;
}

/// One producer and one consumer, which lock storages; the clock is read once for each burst.
fn carry<S: Variant + Send>(queue: &Queue<S>, load: &Load) -> Result<Run, Failure> {
    if (load.producers, load.consumers) != (1, 1) {
        return Err(Failure::CannotRun(
            "the ablation has one producer and one consumer".to_owned(),
        ));
    }
    let producer = |_: &Course| {
        let stored = fill(queue, load);
        queue.close();
        stored
    };
    let consumer = |_: &Course| {
        let mut seen = Tally::default();
        while let Some(storage) = queue.dequeue(PRIORITY) {
            seen += storage.tally();
        }
        Ok(seen)
    };
    race(load, &|| queue.close(), vec![producer], vec![consumer])
}

fn fill<S: Variant>(queue: &Queue<S>, load: &Load) -> Result<(), Failure> {
    let frames = Frames::new(load.packet_bytes);
    let packets = load.packets_of(0);
    let mut number = 0;
    while number < packets {
        let Some(mut storage) = queue.enqueue(PRIORITY) else {
            return Err(Failure::Unsound("the queue was closed".to_owned()));
        };
        'storage: while number < packets && !storage.is_overdue() {
            for _ in 0..load
                .burst
                .min(usize::try_from(packets - number).unwrap_or(usize::MAX))
            {
                if !storage.append(load.time(0, number), frames.get(number)) {
                    break 'storage;
                }
                number += 1;
            }
        }
        storage.finish();
    }
    Ok(())
}

impl Variant for Storage<'_> {
    fn is_overdue(&self) -> bool {
        Storage::is_overdue(self)
    }

    #[inline(always)]
    fn append(&mut self, time: u64, frame: &[u8]) -> bool {
        Storage::append(self, time, 0, frame).is_ok()
    }

    fn finish(&mut self) {}

    fn tally(&self) -> Tally {
        let mut seen = Tally::default();
        for stored in self.iter() {
            seen.add(stored.time, stored.frame.len());
        }
        seen
    }
}

/// Payload from the front, descriptors from the back: stamp (8 bytes), captured length (4), place of the payload in units (4).
#[derive(Debug)]
struct Described<'m> {
    units: &'m mut [Unit],
    payload_units: usize,
    packets: usize,
    given_out: u64,
    hold_ticks: u64,
    non_temporal: bool,
    /// Descriptors wait in `group`.
    grouped: bool,
    /// In the order of memory: the first one last.
    group: [[u8; UNIT_BYTES]; GROUP],
}

impl Described<'_> {
    /// Writes the descriptors that wait, `count` of them, behind which `end` units of the storage are free or payload.
    #[inline(always)]
    fn write_group(&mut self, end: usize, count: usize) {
        let waiting = self.group[GROUP - count..].as_flattened();
        stream::copy(&mut self.units[end..end + count], waiting);
    }
}

impl Inner for Described<'_> {
    fn give_out(&mut self) {
        self.payload_units = 0;
        self.packets = 0;
        self.given_out = ticks::now();
    }
}

impl Variant for Described<'_> {
    fn is_overdue(&self) -> bool {
        ticks::now().saturating_sub(self.given_out) > self.hold_ticks
    }

    #[inline(always)]
    fn append(&mut self, time: u64, frame: &[u8]) -> bool {
        let units = frame.len().div_ceil(UNIT_BYTES);
        if self.payload_units + units + self.packets + 1 > self.units.len() {
            return false;
        }
        let (start, end) = (self.payload_units, self.units.len() - self.packets);
        let fields = u128::from(time) | (frame.len() as u128) << 64 | (start as u128) << 96;
        let descriptor = fields.to_le_bytes();
        let whole = frame.len() / UNIT_BYTES;
        let place = &mut self.units[start..start + units];
        let (values, rest) = frame.split_at(whole * UNIT_BYTES);
        if self.non_temporal {
            stream::copy(place, values);
        } else {
            for (unit, value) in place.iter_mut().zip(values.as_chunks().0) {
                unit.0 = *value;
            }
        }
        if let Some(last) = place.get_mut(whole) {
            last.0[..rest.len()].copy_from_slice(rest);
        }
        if self.grouped {
            let waiting = self.packets % GROUP;
            self.group[GROUP - 1 - waiting] = descriptor;
            if waiting + 1 == GROUP {
                self.write_group(end - 1, GROUP);
            }
        } else if self.non_temporal {
            stream::copy(&mut self.units[end - 1..end], &descriptor);
        } else {
            self.units[end - 1] = Unit(descriptor);
        }
        self.payload_units += units;
        self.packets += 1;
        true
    }

    fn finish(&mut self) {
        if self.grouped {
            self.write_group(self.units.len() - self.packets, self.packets % GROUP);
        }
        if self.non_temporal {
            stream::fence();
        }
    }

    fn tally(&self) -> Tally {
        let mut seen = Tally::default();
        for descriptor in self.units.iter().rev().take(self.packets) {
            let fields = u128::from_le_bytes(descriptor.0);
            #[expect(clippy::cast_possible_truncation, reason = "cuts fields out")]
            let (time, captured) = (fields as u64, (fields >> 64) as u32);
            seen.add(time, captured as usize);
        }
        seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_carries_every_load() {
        let mut memory = Memory::new(8 << 20).unwrap();
        for change in [
            Change::ClockPerBurst,
            Change::Descriptors,
            Change::NtStores,
            Change::DescriptorGroups,
        ] {
            let mut step = Step::new(change);
            for load in [
                Load::pairs(64, 300_000, 1),
                Load::pairs(1514, 10_001, 1),
                Load::pairs(17, 1, 1),
            ] {
                let run = step.run(&load, &mut memory).unwrap();
                assert_eq!(run.check(&load), Ok(()), "{change:?}, {load}");
            }
        }
    }

    #[test]
    fn payload_and_descriptors_do_not_meet() {
        for (non_temporal, grouped) in [(false, false), (true, false), (true, true)] {
            let mut units = vec![Unit::default(); 64];
            let mut storage = Described {
                units: &mut units,
                payload_units: 0,
                packets: 0,
                given_out: 0,
                hold_ticks: u64::MAX,
                non_temporal,
                grouped,
                group: [[0; UNIT_BYTES]; GROUP],
            };
            let frame: Vec<u8> = (1..=50).collect();
            while storage.append(7, &frame) {}
            storage.finish();
            assert_eq!(storage.packets, 64 / 5);
            for packet in 0..storage.packets {
                let payload: Vec<u8> = storage.units[packet * 4..][..4]
                    .iter()
                    .flat_map(|unit| unit.0)
                    .collect();
                assert_eq!(payload[..50], frame);
            }
            assert_eq!(storage.tally().packets, 12);
        }
    }
}
