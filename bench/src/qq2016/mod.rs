//! The QQ of 2016, written from the thesis: the ancestor of the ring, as a contestant.
//!
//! | here | thesis (2016) | paper (2017) |
//! |---|---|---|
//! | [`Storage`]: header of 16 bytes, padding to 8 | 5.2, 6.1, figures 5.2, 6.1 | V-E, figure 5 |
//! | vector of references, copies with `memcpy` | 5.2, 6.2 | V-E |
//! | maximum hold time, checked with a clock read per packet | 6.2.1 | V-B, V-D |
//! | one mutex per storage | 6.3 | V-B |
//! | [`Queue`]: a circle under one mutex | 5.2, figure 5.1; 6.4, listing 6.3 | V-B |
//! | guard interval | 6.4.3, figure 6.2; 7.5, equation 7.1 | V-D |
//! | one block of memory in transparent huge pages | 6.4, listing 6.2 | V-C |
//! | several inserters and readers, one storage each | 4.2, 7.2 | V-A, R1 |
//!
//! Two points differ. The vector contains offsets, which are as large as pointers and need no
//! unsafe code. Closing the queue lifts the guard, so that a benchmark can count the packets.
//!
//! Four features are omitted, because the benchmark does not use them: peeking and priorities
//! (6.4.2), the pcap writer (6.5) and the Lua bindings (6.6). Instead of using priorities,
//! inserters wait when the queue is full, which makes runs lossless.
//!
//! [`Qq2016`] is the contestant. By default, storages have 2 MiB and the guard interval is the
//! number of inserters, as the paper and the thesis recommend.

mod queue;
mod storage;
pub(crate) mod ticks;

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use self::{queue::Queue, storage::Storage};

use crate::{
    contest::{Contest, Course, Frames, Load, Run, Tally, race, seconds, together},
    latency::{Consumer, LatencyFigures, Pace},
    measure::{Failure, check_count},
    memory::Memory,
};

/// Bytes of a storage: the paper's default (V-C).
const STORAGE_BYTES: usize = 2 << 20;
/// The maximum hold time of a storage, from the paper's example (V-D): ten producers, between 1 and
/// 100 Gbit/s.
pub(crate) const HOLD: Duration = Duration::from_micros(16_770);

/// The QQ of 2016 as a contestant.
#[derive(Debug)]
pub(crate) struct Qq2016 {
    /// The vectors of references, one for each storage. The next run uses them again.
    pub(crate) offsets: Vec<Vec<usize>>,
    /// Bytes of a storage.
    pub(crate) storage_bytes: usize,
    /// The guard interval; `None`: the number of inserters.
    pub(crate) guard: Option<usize>,
    /// Whether an inserter checks the hold time before each packet. `carry_due` always checks.
    pub(crate) checks_hold: bool,
}

impl Default for Qq2016 {
    fn default() -> Self {
        Self {
            offsets: Vec::new(),
            storage_bytes: STORAGE_BYTES,
            guard: None,
            checks_hold: true,
        }
    }
}

impl Qq2016 {
    /// A queue in this memory, for this many producers and consumers.
    fn queue<'m>(
        &'m mut self,
        memory: &'m mut Memory,
        (producers, consumers): (usize, usize),
    ) -> Result<Queue<'m>, Failure> {
        let count = memory.len() / self.storage_bytes;
        let guard = self.guard.unwrap_or(producers);
        if count <= guard.max(producers + consumers) {
            let bytes = self.storage_bytes;
            let why = format!("the memory has only {count} storages of {bytes} bytes");
            return Err(Failure::CannotRun(why));
        }
        self.offsets.resize_with(count, Vec::new);
        let parts = memory.bytes_mut().chunks_exact_mut(self.storage_bytes);
        let parts = parts.zip(&mut self.offsets);
        let storages = parts.map(|(part, offsets)| Storage::new(part, offsets));
        Ok(Queue::new(storages, guard))
    }

    /// Carries packets as they become due. The end of the run lifts the guard, and hands the last
    /// storage over early.
    pub(crate) fn carry_due(
        &mut self,
        pace: &Pace,
        memory: &mut Memory,
    ) -> Result<LatencyFigures, Failure> {
        let queue = &self.queue(memory, (1, 1))?;
        let frames = Frames::new(pace.packet_bytes);
        let send = |_: &Course| {
            let mut open = None;
            let sent = pace.send(|mut numbers, time_ns| {
                while !numbers.is_empty() {
                    let mut storage = match open.take() {
                        Some(storage) => storage,
                        None => queue.enqueue().ok_or_else(closed)?,
                    };
                    let mut store = |number| {
                        !storage.is_overdue() && storage.append(time_ns, frames.get(number))
                    };
                    while !numbers.is_empty() && store(numbers.start) {
                        numbers.start += 1;
                    }
                    // A storage that refused a packet goes back to the queue.
                    open = numbers.is_empty().then_some(storage);
                }
                Ok(())
            });
            drop(open);
            queue.close();
            sent
        };
        let take = |consumer: &mut Consumer| {
            let storage = queue.dequeue().ok_or_else(closed)?;
            consumer.look();
            storage.times().for_each(|time_ns| consumer.see(time_ns));
            Ok(true)
        };
        pace.run(&|| queue.close(), send, take)
    }
}

fn closed() -> Failure {
    Failure::system("the queue", "it was closed")
}

impl Contest for Qq2016 {
    fn run(&mut self, load: &Load, memory: &mut Memory) -> Result<Run, Failure> {
        let store = if self.checks_hold {
            store::<true>
        } else {
            store::<false>
        };
        let queue = self.queue(memory, (load.producers, load.consumers))?;
        let storing = AtomicUsize::new(load.producers);
        let (queue_ref, storing) = (&queue, &storing);
        let producers = (0..load.producers).map(|producer| {
            move |_: &Course| {
                let stored = store(queue_ref, load, producer);
                // AcqRel: the last producer has seen the others finish.
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

/// One inserter: acquires storages and fills them, packet by packet (the thesis has no call for
/// bursts, section 4.2).
fn store<const CHECKS_HOLD: bool>(
    queue: &Queue<'_>,
    load: &Load,
    producer: usize,
) -> Result<(), Failure> {
    let frames = Frames::new(load.packet_bytes);
    let packets = load.packets_of(producer);
    let mut number = 0;
    while number < packets {
        let mut storage = queue.enqueue().ok_or_else(closed)?;
        while number < packets
            && !(CHECKS_HOLD && storage.is_overdue())
            && storage.append(load.time(producer, number), frames.get(number))
        {
            number += 1;
        }
    }
    Ok(())
}

/// Calls `enqueue` and `dequeue` in turns on each thread, `turns` times, with the guard off and
/// nothing stored. Returns the calls of all threads a second.
pub(crate) fn calls_per_second(threads: usize, turns: u64) -> Result<f64, Failure> {
    // Each thread dequeues after it enqueued, so it always finds a storage.
    let mut offsets = vec![Vec::new(); 2 * threads];
    let mut memory = Memory::new(2 * threads * STORAGE_BYTES)?;
    let parts = memory.bytes_mut().chunks_exact_mut(STORAGE_BYTES);
    let parts = parts.zip(&mut offsets);
    let queue = Queue::new(parts.map(|(part, offsets)| Storage::new(part, offsets)), 0);
    let queue = &queue;
    let work = |_| {
        move |_: &Course| {
            // A storage is returned before the next call.
            let turn = |_: &u64| {
                let is_enqueued = queue.enqueue().is_some();
                is_enqueued && queue.dequeue().is_some()
            };
            Ok((0..turns).filter(turn).count() as u64)
        }
    };
    let legs = together(&|| queue.close(), (0..threads).map(work).collect())?;
    let done: u64 = legs.iter().map(|leg| leg.value).sum();
    check_count(threads as u64 * turns, done)?;
    Ok(2.0 * done as f64 / seconds(&legs, &legs))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_load_is_carried() {
        let mut memory = Memory::new(16 << 20).unwrap();
        for (packet_bytes, packets, pairs) in [
            (64, 5_000, 1),
            (64, 500_000, 1),
            (1514, 30_000, 2),
            (512, 80_001, 3),
            (16, 1, 1),
        ] {
            let load = Load::pairs(packet_bytes, packets, pairs);
            let mut queue = Qq2016::default();
            for _ in 0..2 {
                let run = queue.run(&load, &mut memory).unwrap();
                assert_eq!(run.check(&load), Ok(()), "{load:?}");
            }
        }
    }

    /// Settings as in figures 7.1, 7.4 and 7.6, and a run without the check of the hold time.
    #[test]
    fn every_setting_of_the_thesis_carries_every_packet() {
        let mut memory = Memory::new(64 << 20).unwrap();
        for (storage_mib, guard, checks_hold, load) in [
            (2, None, true, Load::to_one(64, 1_000_001, 5)),
            (8, None, true, Load::to_one(64, 1_000_001, 4)),
            (2, Some(1), true, Load::pairs(64, 1_000_001, 4)),
            (2, Some(8), true, Load::pairs(64, 1_000_001, 4)),
            (2, None, false, Load::pairs(64, 1_000_001, 1)),
        ] {
            let mut queue = Qq2016 {
                storage_bytes: storage_mib << 20,
                guard,
                checks_hold,
                ..Qq2016::default()
            };
            let run = queue.run(&load, &mut memory).unwrap();
            assert_eq!(run.check(&load), Ok(()), "{queue:?}");
        }
        let mut large = Qq2016 {
            storage_bytes: 32 << 20,
            ..Qq2016::default()
        };
        let refused = large.run(&Load::pairs(64, 10, 1), &mut memory);
        assert!(matches!(refused, Err(Failure::CannotRun(_))), "{refused:?}");
    }

    #[test]
    fn the_outer_queue_answers_every_call() {
        for threads in [1, 3] {
            assert!(calls_per_second(threads, 1000).unwrap() > 0.0);
        }
    }
}
