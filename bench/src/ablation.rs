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
//! | `ablation/6-bursts` | a call for each burst of 64 packets |
//!
//! The mutex of a storage and the guard interval have no row of their own: both cost something once for 2 MiB, and what replaced them also
//! makes open buckets readable. `guard/…` shows what distance is worth.

use std::io;

use crate::{
    contest::{Contest, Load, Tally},
    limits::{
        describe,
        stream::{self, UNIT_BYTES, Unit},
    },
    measure::Failure,
    peers::see,
    qq2016::{Inner, Kind, Original, Qq, Qq2016, ticks::Hold},
    queues::{carrying, lap},
    ring::RingContest,
    session::Session,
};

/// Descriptors that are written together, as in our ring.
const GROUP: usize = 32;
/// Steps from which on there are no regular stores, and descriptors wait.
const NT_STORES: u8 = 3;
const DESCRIPTOR_GROUPS: u8 = 4;

/// `ablation/…`.
pub(crate) fn rows(session: &Session) -> io::Result<()> {
    let ring = |packet_by_packet| {
        let mut ring = RingContest::new(session.scale.ring_bytes, None, 1, 1)?;
        ring.packet_by_packet = packet_by_packet;
        Ok::<_, Failure>(ring)
    };
    let mut steps: [(&str, Box<dyn Contest>); 7] = [
        ("0-qq2016", Box::new(Qq2016::default())),
        (
            "1-clock-per-burst",
            Box::new(Qq::<Original<{ Load::BURST }>>::default()),
        ),
        ("2-descriptors", Box::new(Qq::<Step<2>>::default())),
        ("3-nt-stores", Box::new(Qq::<Step<NT_STORES>>::default())),
        (
            "4-descriptor-groups",
            Box::new(Qq::<Step<DESCRIPTOR_GROUPS>>::default()),
        ),
        ("5-ring", Box::new(ring(true))),
        ("6-bursts", Box::new(ring(false))),
    ];
    let load = Load::pairs(64, lap(session, 64), 1);
    let entrants = steps.iter_mut().map(|(name, contest)| {
        carrying(session, format!("ablation/{name}"), contest.as_mut(), load)
    });
    let entrants = entrants.collect();
    session.measure("ablation", entrants)
}

/// The changes up to this one.
#[derive(Debug)]
struct Step<const STEP: u8>;

impl<const STEP: u8> Kind for Step<STEP> {
    const BURST: u64 = Load::BURST;
    type Storage<'m> = Described<'m, STEP>;

    fn storage<'m>(part: &'m mut [u8], _: &'m mut Vec<usize>) -> Described<'m, STEP> {
        Described {
            units: stream::units(part),
            payload_units: 0,
            packets: 0,
            hold: Hold::new(),
            group: [[0; UNIT_BYTES]; GROUP],
        }
    }
}

/// Payload from the front, descriptors from the back.
#[derive(Debug)]
struct Described<'m, const STEP: u8> {
    units: &'m mut [Unit],
    payload_units: usize,
    packets: usize,
    hold: Hold,
    /// Descriptors that wait, in the order of memory: the first one last.
    group: [[u8; UNIT_BYTES]; GROUP],
}

impl<const STEP: u8> Described<'_, STEP> {
    /// Writes the descriptors that wait, `count` of them, behind which `end` units of the storage are free or payload.
    #[inline(always)]
    fn write_group(&mut self, end: usize, count: usize) {
        let waiting = self.group[GROUP - count..].as_flattened();
        stream::copy(&mut self.units[end..end + count], waiting);
    }
}

impl<const STEP: u8> Inner for Described<'_, STEP> {
    fn give_out(&mut self) {
        self.payload_units = 0;
        self.packets = 0;
        self.hold.begin();
    }

    #[inline(always)]
    fn is_overdue(&self) -> bool {
        self.hold.is_over()
    }

    #[inline(always)]
    fn append(&mut self, time: u64, frame: &[u8]) -> bool {
        let units = frame.len().div_ceil(UNIT_BYTES);
        if self.payload_units + units + self.packets + 1 > self.units.len() {
            return false;
        }
        let (start, end) = (self.payload_units, self.units.len() - self.packets);
        let descriptor = describe(time, frame.len());
        let whole = frame.len() / UNIT_BYTES;
        let place = &mut self.units[start..start + units];
        let (values, rest) = frame.split_at(whole * UNIT_BYTES);
        if STEP >= NT_STORES {
            stream::copy(place, values);
        } else {
            for (unit, value) in place.iter_mut().zip(values.as_chunks().0) {
                unit.0 = *value;
            }
        }
        if let Some(last) = place.get_mut(whole) {
            last.0[..rest.len()].copy_from_slice(rest);
        }
        if STEP >= DESCRIPTOR_GROUPS {
            let waiting = self.packets % GROUP;
            self.group[GROUP - 1 - waiting] = descriptor;
            if waiting + 1 == GROUP {
                self.write_group(end - 1, GROUP);
            }
        } else if STEP >= NT_STORES {
            stream::copy(&mut self.units[end - 1..end], &descriptor);
        } else {
            self.units[end - 1] = Unit(descriptor);
        }
        self.payload_units += units;
        self.packets += 1;
        true
    }

    fn finish(&mut self) {
        if STEP >= DESCRIPTOR_GROUPS {
            self.write_group(self.units.len() - self.packets, self.packets % GROUP);
        }
        if STEP >= NT_STORES {
            stream::fence();
        }
    }

    fn tally(&self, seen: &mut Tally) {
        for descriptor in self.units.iter().rev().take(self.packets) {
            see(seen, descriptor.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;

    fn carries_every_load<K: Kind>() {
        let mut memory = Memory::new(8 << 20).unwrap();
        for (bytes, packets) in [(64, 300_000), (1514, 10_001), (17, 1)] {
            let load = Load::pairs(bytes, packets, 1);
            let run = Qq::<K>::default().run(&load, &mut memory).unwrap();
            assert_eq!(run.check(&load), Ok(()), "{load:?}");
        }
    }

    fn payload_and_descriptors_do_not_meet<const STEP: u8>() {
        let mut memory = Memory::new(1).unwrap();
        let mut storage =
            Step::<STEP>::storage(&mut memory.bytes_mut()[..1024], Box::leak(Box::default()));
        let frame: Vec<u8> = (1..=50).collect();
        while storage.append(7, &frame) {}
        storage.finish();
        for packet in 0..64 / 5 {
            let payload = storage.units[packet * 4..][..4].iter();
            let payload: Vec<u8> = payload.flat_map(|unit| unit.0).collect();
            assert_eq!(payload[..50], frame);
        }
        let mut seen = Tally::default();
        storage.tally(&mut seen);
        assert_eq!((seen.packets, seen.checksum), (12, 12 * (7 + 50)));
    }

    #[test]
    fn every_step_keeps_and_carries_what_is_stored() {
        carries_every_load::<Original<64>>();
        carries_every_load::<Step<2>>();
        carries_every_load::<Step<3>>();
        carries_every_load::<Step<4>>();
        payload_and_descriptors_do_not_meet::<2>();
        payload_and_descriptors_do_not_meet::<3>();
        payload_and_descriptors_do_not_meet::<4>();
    }
}
