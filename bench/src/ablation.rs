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

use std::io;

use crate::{
    contest::{Contest, Course, Frames, Load, Run, Tally, race},
    limits::stream::{self, UNIT_BYTES, Unit},
    measure::Failure,
    memory::Memory,
    qq2016::{Config, Inner, Qq2016, Queue, Storage, ticks},
    queues::carrying,
    ring::RingContest,
    session::Session,
};

/// Distance of readers from writers: the number of inserters (thesis, equation 7.1).
const GUARD: usize = 1;
/// Descriptors that are written together, as in our ring.
const GROUP: usize = 32;

/// `ablation/…`.
pub(crate) fn rows(session: &Session) -> io::Result<()> {
    let ring = || RingContest::new(session.scale.ring_bytes, None, 1, 1);
    let mut steps: [(&str, Box<dyn Contest>); 7] = [
        ("0-qq2016", Box::new(Qq2016::new())),
        (
            "1-clock-per-burst",
            Box::new(Step::new(Change::ClockPerBurst)),
        ),
        ("2-descriptors", Box::new(Step::new(Change::Descriptors))),
        ("3-nt-stores", Box::new(Step::new(Change::NtStores))),
        (
            "4-descriptor-groups",
            Box::new(Step::new(Change::DescriptorGroups)),
        ),
        (
            "5-ring",
            Box::new(ring().map(RingContest::packet_by_packet)),
        ),
        ("6-bursts", Box::new(ring())),
    ];
    let load = Load::pairs(64, 0, 1);
    let entrants = steps.iter_mut().map(|(name, contest)| {
        carrying(session, format!("ablation/{name}"), contest.as_mut(), load)
    });
    let entrants = entrants.collect();
    session.measure("ablation", entrants)
}

/// The last of the changes that were made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
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
    /// The vectors of the last run, whose pages are there.
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
    fn run(&mut self, load: &Load, memory: &mut Memory) -> Result<Run, Failure> {
        let config = Config::new(GUARD);
        if self.change == Change::ClockPerBurst {
            let offsets = std::mem::take(&mut self.offsets);
            let queue = Queue::new(memory.bytes_mut(), config, offsets);
            let run = carry(&queue, load);
            self.offsets = queue.into_offsets();
            return run;
        }
        let units = stream::units(memory.bytes_mut());
        let parts = units.chunks_exact_mut(config.storage_bytes / UNIT_BYTES);
        let storages = parts.map(|units| Described::new(units, self.change));
        carry(&Queue::of(storages, config), load)
    }
}

/// What the steps differ in.
trait Variant: Inner {
    /// The storage was held for too long.
    fn is_overdue(&self) -> bool;

    /// Appends a packet. `false`: it does not fit.
    fn append(&mut self, time: u64, frame: &[u8]) -> bool;

    /// Makes what was stored visible to whoever locks the storage next.
    fn finish(&mut self) {}

    /// Reads every header.
    fn tally(&self, seen: &mut Tally);
}

/// One producer and one consumer, which lock storages; the clock is read once for each burst.
fn carry<S: Variant + Send>(queue: &Queue<S>, load: &Load) -> Result<Run, Failure> {
    let producer = |_: &Course| {
        fill(queue, load);
        queue.close();
        Ok(())
    };
    let consumer = |_: &Course| {
        let mut seen = Tally::default();
        while let Some(storage) = queue.dequeue() {
            storage.tally(&mut seen);
        }
        Ok(seen)
    };
    race(load, &|| queue.close(), vec![producer], vec![consumer])
}

fn fill<S: Variant>(queue: &Queue<S>, load: &Load) {
    let frames = Frames::new(load.packet_bytes);
    let packets = load.packets_of(0);
    let mut number = 0;
    while number < packets
        && let Some(mut storage) = queue.enqueue()
    {
        'storage: while number < packets && !storage.is_overdue() {
            for _ in 0..Load::BURST.min(packets - number) {
                if !storage.append(load.time(0, number), frames.get(number)) {
                    break 'storage;
                }
                number += 1;
            }
        }
        storage.finish();
    }
}

impl Variant for Storage<'_> {
    fn is_overdue(&self) -> bool {
        Storage::is_overdue(self)
    }

    #[inline(always)]
    fn append(&mut self, time: u64, frame: &[u8]) -> bool {
        Storage::append(self, time, frame)
    }

    fn tally(&self, seen: &mut Tally) {
        for (time, frame) in self.iter() {
            seen.add(time, frame.len());
        }
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
    change: Change,
    /// Descriptors that wait, in the order of memory: the first one last.
    group: [[u8; UNIT_BYTES]; GROUP],
}

impl<'m> Described<'m> {
    fn new(units: &'m mut [Unit], change: Change) -> Self {
        Self {
            units,
            payload_units: 0,
            packets: 0,
            given_out: 0,
            hold_ticks: ticks::hold(),
            change,
            group: [[0; UNIT_BYTES]; GROUP],
        }
    }

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
        if self.change >= Change::NtStores {
            stream::copy(place, values);
        } else {
            for (unit, value) in place.iter_mut().zip(values.as_chunks().0) {
                unit.0 = *value;
            }
        }
        if let Some(last) = place.get_mut(whole) {
            last.0[..rest.len()].copy_from_slice(rest);
        }
        match self.change {
            Change::DescriptorGroups => {
                let waiting = self.packets % GROUP;
                self.group[GROUP - 1 - waiting] = descriptor;
                if waiting + 1 == GROUP {
                    self.write_group(end - 1, GROUP);
                }
            }
            Change::NtStores => stream::copy(&mut self.units[end - 1..end], &descriptor),
            _ => self.units[end - 1] = Unit(descriptor),
        }
        self.payload_units += units;
        self.packets += 1;
        true
    }

    fn finish(&mut self) {
        if self.change == Change::DescriptorGroups {
            self.write_group(self.units.len() - self.packets, self.packets % GROUP);
        }
        if self.change >= Change::NtStores {
            stream::fence();
        }
    }

    fn tally(&self, seen: &mut Tally) {
        for descriptor in self.units.iter().rev().take(self.packets) {
            let fields = u128::from_le_bytes(descriptor.0);
            #[expect(clippy::cast_possible_truncation, reason = "cuts fields out")]
            let (time, captured) = (fields as u64, (fields >> 64) as u32);
            seen.add(time, captured as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Change; 4] = [
        Change::ClockPerBurst,
        Change::Descriptors,
        Change::NtStores,
        Change::DescriptorGroups,
    ];

    #[test]
    fn every_step_carries_every_load() {
        let mut memory = Memory::new(8 << 20).unwrap();
        for change in ALL {
            let mut step = Step::new(change);
            for (bytes, packets) in [(64, 300_000), (1514, 10_001), (17, 1)] {
                let load = Load::pairs(bytes, packets, 1);
                let run = step.run(&load, &mut memory).unwrap();
                assert_eq!(run.check(&load), Ok(()), "{change:?}, {load}");
            }
        }
    }

    #[test]
    fn payload_and_descriptors_do_not_meet() {
        for change in &ALL[1..] {
            let mut units = vec![Unit::default(); 64];
            let mut storage = Described::new(&mut units, *change);
            let frame: Vec<u8> = (1..=50).collect();
            while storage.append(7, &frame) {}
            storage.finish();
            assert_eq!(storage.packets, 64 / 5);
            for packet in 0..storage.packets {
                let payload = storage.units[packet * 4..][..4].iter();
                let payload: Vec<u8> = payload.flat_map(|unit| unit.0).collect();
                assert_eq!(payload[..50], frame);
            }
            let mut seen = Tally::default();
            storage.tally(&mut seen);
            assert_eq!(
                seen,
                Tally {
                    packets: 12,
                    checksum: 12 * (7 + 50)
                }
            );
        }
    }
}
