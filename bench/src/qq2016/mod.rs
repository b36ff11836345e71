//! The QQ of 2016, written from the thesis, as the peer that the ring descends from.
//!
//! | here | thesis (2016) | paper (2017) |
//! |---|---|---|
//! | [`Original`]: header of 16 bytes, padding to 8, a vector of references, copies with `memcpy` | 5.2, 6.1, figures 5.2, 6.1; 6.2 | V-E, figure 5 |
//! | maximum hold time, checked with a clock read for each packet | 6.2.1 | V-B, V-D |
//! | a storage is locked by a mutex of its own | 6.3 | V-B |
//! | [`Queue`]: storages in a circle under one mutex, with head and tail | 5.2, figure 5.1; 6.4, listing 6.3 | V-B |
//! | guard interval | 6.4.3, figure 6.2; 7.5, equation 7.1 | V-D |
//! | one block of memory in transparent huge pages | 6.4, listing 6.2 | V-C |
//! | several inserters and readers, each with a storage of its own | 4.2, 7.2 | V-A, R1 |
//!
//! Different: the vector holds positions instead of pointers (as large, and needs no unsafe code); closing the queue lifts the guard, so
//! that a benchmark can count what was carried. Left out, because the benchmark does nothing with it: peeking and priorities (6.4.2; here
//! inserters wait when the queue is full, which makes runs lossless), the pcap writer (6.5) and the Lua bindings (6.6).
//!
//! [`Qq`] makes it a contestant. Storages have 2 MiB and the guard interval is the number of inserters, as the paper and the thesis
//! recommend. Its inner queue may be another one, for the ablation.

mod queue;
mod storage;
pub(crate) mod ticks;

use std::{
    marker::PhantomData,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

pub use queue::{Inner, Queue};
pub use storage::Original;

use crate::{
    contest::{Contest, Course, Frames, Load, Run, Tally, race},
    measure::Failure,
    memory::Memory,
};

/// The paper's default (V-C).
pub const STORAGE_BYTES: usize = 2 << 20;
/// The paper's example (V-D): ten producers, between 1 and 100 Gbit/s.
pub const HOLD: Duration = Duration::from_micros(16_770);

/// The queue of the thesis: the hold time is checked for each packet.
pub type Qq2016 = Qq<Original<1>>;

/// A kind of inner queue.
pub trait Kind {
    /// Packets between two looks at the clock, for the hold time.
    const BURST: u64;
    /// One over its part of the memory.
    type Storage<'m>: Inner + Send;

    /// Over a part that begins on a multiple of 16. `offsets` is the vector of an earlier one, whose pages are there.
    fn storage<'m>(part: &'m mut [u8], offsets: &'m mut Vec<usize>) -> Self::Storage<'m>;
}

/// A contestant.
#[derive(Debug)]
pub struct Qq<K> {
    /// Bytes of an inner queue.
    pub storage_bytes: usize,
    /// The guard interval; `None`: the number of inserters.
    pub guard: Option<usize>,
    /// The vectors of the last run.
    offsets: Vec<Vec<usize>>,
    kind: PhantomData<K>,
}

impl<K> Default for Qq<K> {
    /// As the papers recommend.
    fn default() -> Self {
        Self {
            storage_bytes: STORAGE_BYTES,
            guard: None,
            offsets: Vec::new(),
            kind: PhantomData,
        }
    }
}

impl<K: Kind> Contest for Qq<K> {
    fn run(&mut self, load: &Load, memory: &mut Memory) -> Result<Run, Failure> {
        let count = memory.len() / self.storage_bytes;
        self.offsets.resize_with(count, Vec::new);
        let parts = memory.bytes_mut().chunks_exact_mut(self.storage_bytes);
        let parts = parts.zip(&mut self.offsets);
        let storages = parts.map(|(part, offsets)| K::storage(part, offsets));
        let queue = Queue::new(storages, self.guard.unwrap_or(load.producers));
        let storing = AtomicUsize::new(load.producers);
        let (queue_ref, storing) = (&queue, &storing);
        let producers = (0..load.producers).map(|producer| {
            move |_: &Course| {
                let stored = store::<K>(queue_ref, load, producer);
                // AcqRel: whoever is the last has seen the others finish.
                if storing.fetch_sub(1, Ordering::AcqRel) == 1 {
                    queue_ref.close();
                }
                stored
            }
        });
        let consumers = (0..load.consumers).map(|_| {
            move |_: &Course| {
                let mut seen = Tally::default();
                while let Some(storage) = queue_ref.dequeue() {
                    storage.tally(&mut seen);
                }
                Ok(seen)
            }
        });
        let (producers, consumers) = (producers.collect(), consumers.collect());
        race(load, &|| queue_ref.close(), producers, consumers)
    }
}

/// One inserter: acquires storages and fills them, packet by packet (the thesis has no call for bursts, section 4.2).
fn store<K: Kind>(
    queue: &Queue<K::Storage<'_>>,
    load: &Load,
    producer: usize,
) -> Result<(), Failure> {
    let frames = Frames::new(load.packet_bytes);
    let packets = load.packets_of(producer);
    let mut number = 0;
    while number < packets {
        let Some(mut storage) = queue.enqueue() else {
            return Err(Failure::system("enqueue", "the queue was closed"));
        };
        'storage: while number < packets && !storage.is_overdue() {
            let end = packets.min(number + K::BURST);
            while number < end {
                if !storage.append(load.time(producer, number), frames.get(number)) {
                    break 'storage;
                }
                number += 1;
            }
        }
        storage.finish();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_load_is_carried() {
        let mut memory = Memory::new(4 << 20).unwrap();
        for (packet_bytes, packets, producers, consumers) in [
            (64, 5_000, 1, 1),
            (64, 200_000, 1, 1),
            (1514, 10_000, 2, 2),
            (512, 20_001, 3, 1),
            (16, 1, 1, 1),
        ] {
            let load = Load {
                packet_bytes,
                packets,
                producers,
                consumers,
            };
            let mut queue = Qq2016 {
                storage_bytes: 64 << 10,
                ..Qq2016::default()
            };
            for _ in 0..2 {
                let run = queue.run(&load, &mut memory).unwrap();
                assert_eq!(run.check(&load), Ok(()), "{load:?}");
            }
        }
    }
}
