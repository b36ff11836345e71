//! Our ring as a contestant: lossless, in bursts, with readers of open buckets.
//!
//! The reader group is gating, and the mode is [`Mode::Wait`], so a producer that is a lap ahead
//! waits. With as many readers as producers, member `i` reads producer `i`; a single reader reads
//! all producers. Producers store bursts, and would publish when their source runs dry. At full
//! speed the source never runs dry. So the ring publishes by itself: when a bucket is full, or soon
//! after 128 KiB or 4096 records are unpublished. A producer publishes after its last packet.
//!
//! Stamps continue from run to run, as the stamps of a live source do.

use std::{io, time::Duration};

use retroscope_ring::{GroupKind, Mode, Producer, Reader, Record, Ring, RingConfig};

use crate::{
    contest::{Contest, Course, Frames, Load, Run, Tally, race},
    measure::{Failure, Spread, check_count, check_lapped},
    memory::Memory,
    pin,
    session::Session,
};

/// Maximum sleep of a reader, after which it checks whether the run was stopped.
const NAP: Duration = Duration::from_millis(10);
/// Polls before a reader sleeps, if each thread has a separate CPU.
const LOOKS_ALONE: u32 = 4000;
/// Polls before a reader sleeps, if there are fewer CPUs than threads: the reader may share a CPU
/// with the producer that it waits for.
const LOOKS_SHARED: u32 = 4;

/// The contestant: a ring with its producers and readers, which live through all runs.
#[derive(Debug)]
pub(crate) struct RingContest {
    ring: Ring,
    producers: Vec<Producer>,
    readers: Vec<Reader>,
    /// The stamps of the next run begin here.
    time: u64,
    /// Whether a reader that finds no packet sleeps at once.
    pub(crate) is_sleepy: bool,
    /// Whether the ring was closed because a run failed or was stopped.
    closed: bool,
}

impl RingContest {
    /// A pre-faulted ring.
    ///
    /// # Errors
    /// [`Failure::Wrong`]: the ring is too small for this many pairs, or memory is missing.
    pub(crate) fn new(bytes: u64, pairs: usize) -> Result<Self, Failure> {
        Self::with(RingConfig::new(bytes, pairs, pairs))
    }

    /// A pre-faulted ring. `config` must have one reader for each producer, or one reader for all.
    ///
    /// # Errors
    /// As of [`Self::new`].
    pub(crate) fn with(config: RingConfig) -> Result<Self, Failure> {
        let config = RingConfig {
            mode: Mode::Wait,
            ..config
        };
        let (ring, producers) = made(&config)?;
        let readers = ring.group_of(GroupKind::Gating, config.readers);
        Ok(Self {
            producers,
            readers: readers.map_err(|error| Failure::system("making readers", error))?,
            ring,
            time: 0,
            closed: false,
            is_sleepy: false,
        })
    }
}

impl Contest for RingContest {
    fn run(&mut self, load: &Load, _memory: &mut Memory) -> Result<Run, Failure> {
        let (producers, readers) = (self.producers.len(), self.readers.len());
        let fits = match load.consumers {
            1 if readers == 1 => true,
            consumers => consumers == load.producers && readers == producers,
        };
        if !fits || load.producers > producers {
            return Err(Failure::CannotRun(format!(
                "a ring for {producers} producers and {readers} readers cannot carry {load:?}"
            )));
        }
        if self.closed {
            return Err(Failure::CannotRun("an earlier run was given up".to_owned()));
        }
        let ring = &self.ring;
        let looks_max = if self.is_sleepy {
            1
        } else if pin::cores() >= load.threads() {
            LOOKS_ALONE
        } else {
            LOOKS_SHARED
        };
        let base = self.time;
        self.time += load.packets + load.producers as u64;
        let storing = self.producers.iter_mut().take(load.producers).enumerate();
        let storing = storing
            .map(|(number, producer)| move |_: &Course| store(producer, load, number, base))
            .collect();
        let reading = self.readers.iter_mut().take(load.consumers).enumerate();
        let reading = reading
            .map(|(number, reader)| {
                let packets = match load.consumers {
                    1 => load.packets,
                    _ => load.packets_of(number),
                };
                move |course: &Course| read(reader, packets, looks_max, base, course)
            })
            .collect();
        let run = race(load, &|| ring.close(), storing, reading);
        self.closed = run.is_err();
        run
    }
}

/// One producer: stores bursts until all packets are stored.
#[inline(always)]
fn store(producer: &mut Producer, load: &Load, number: usize, base: u64) -> Result<(), Failure> {
    let frames = Frames::new(load.packet_bytes);
    let (frames, load) = (frames.view(), *load);
    let packets = load.packets_of(number);
    let mut stored = 0;
    while stored < packets {
        let end = packets.min(stored + Load::BURST);
        let record = move |packet| {
            let time = base + load.time(number, packet);
            Record::whole(time.cast_signed(), 0, frames.get(packet))
        };
        store_burst(producer, (stored..end).map(record))?;
        stored = end;
    }
    producer.publish();
    Ok(())
}

/// A ring with all its producers.
pub(crate) fn made(config: &RingConfig) -> Result<(Ring, Vec<Producer>), Failure> {
    let failure = |error| Failure::system("making a ring", error);
    let ring = Ring::new(config, None).map_err(failure)?;
    let producers = (0..config.producers).map(|_| ring.producer());
    let producers = producers.collect::<Result<_, _>>().map_err(failure)?;
    Ok((ring, producers))
}

/// Stores a packet.
#[inline(always)]
pub(crate) fn store_one(producer: &mut Producer, stamp: u64, frame: &[u8]) -> Result<(), Failure> {
    let stored = producer.store(&Record::whole(stamp.cast_signed(), 0, frame));
    stored.map_err(|error| Failure::system("store", error))
}

/// Stores a burst.
#[inline(always)]
pub(crate) fn store_burst<'f>(
    producer: &mut Producer,
    burst: impl Iterator<Item = Record<'f>>,
) -> Result<(), Failure> {
    let stored = producer.store_burst(burst);
    stored
        .map(drop)
        .map_err(|burst| Failure::system("store", burst.error))
}

/// Reads every descriptor (stamp and captured length) of `packets` packets. The stamps begin at
/// `base`.
fn read(
    reader: &mut Reader,
    packets: u64,
    looks_max: u32,
    base: u64,
    course: &Course,
) -> Result<Tally, Failure> {
    let lapped = reader.lapped().packets;
    let mut seen = Tally::default();
    let mut looks = 0;
    while seen.packets < packets {
        let Some(batch) = reader.next() else {
            looks += 1;
            if looks < looks_max {
                std::hint::spin_loop();
            } else if !reader.wait(NAP) && course.stopped() {
                return Ok(seen);
            }
            continue;
        };
        looks = 0;
        for (time_ns, captured) in batch.times_and_lengths() {
            seen.add(time_ns.cast_unsigned(), captured);
        }
    }
    reader.finish();
    check_lapped(reader.lapped().packets - lapped)?;
    let bases = base.wrapping_mul(seen.packets);
    seen.checksum = seen.checksum.wrapping_sub(bases);
    Ok(seen)
}

/// `ring/bytes-per-64B`: ring bytes divided by the packets that are in the ring after it wrapped
/// around, published in bursts of 1 or 64, the worse of the two. Includes the descriptor, the
/// unused ends of buckets and the bucket that is being filled.
pub(crate) fn retention(session: &Session) -> io::Result<()> {
    let bytes = |burst| bytes_per_packet(session.scale.ring_bytes, burst);
    session.row("ring/bytes-per-64B", None, || {
        Ok(Spread::once(bytes(1)?.max(bytes(64)?)))
    })
}

fn bytes_per_packet(ring_bytes: u64, burst: u64) -> Result<f64, Failure> {
    let (ring, mut producers) = made(&RingConfig::new(ring_bytes, 1, 1))?;
    let frames = Frames::new(64);
    let packets = ring.bytes() / 64 * 5 / 4;
    for number in 0..packets {
        store_one(&mut producers[0], number, frames.get(number))?;
        if number % burst == burst - 1 {
            producers[0].publish();
        }
    }
    producers[0].publish();
    let statistics = ring.statistics();
    check_count(packets, statistics.stored_packets)?;
    if statistics.evicted_packets == 0 {
        return Err(Failure::Unsound("the ring did not go around".to_owned()));
    }
    Ok(ring.bytes() as f64 / (packets - statistics.evicted_packets) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_load_is_carried_more_than_a_lap() {
        let mut memory = Memory::new(1).unwrap();
        let mut three = RingContest::new(48 << 20, 3).unwrap();
        for (packet_bytes, packets, pairs) in [
            (64, 1_000_000, 3),
            (1514, 50_000, 3),
            (512, 100_001, 3),
            (16, 3, 3),
        ] {
            let load = Load::pairs(packet_bytes, packets, pairs);
            for _ in 0..2 {
                let run = three.run(&load, &mut memory).unwrap();
                assert_eq!(run.check(&load), Ok(()), "{load:?}");
            }
        }
        let refused = three.run(&Load::pairs(64, 10, 4), &mut memory);
        assert!(matches!(refused, Err(Failure::CannotRun(_))), "{refused:?}");
        let mut joined = RingContest::with(RingConfig::new(48 << 20, 4, 1)).unwrap();
        joined.is_sleepy = true;
        for producers in [1, 4] {
            let load = Load::to_one(64, 1_000_001, producers);
            let run = joined.run(&load, &mut memory).unwrap();
            assert_eq!(run.check(&load), Ok(()), "{load:?}");
            assert!(run.reading_seconds > 0.0);
        }
        let refused = joined.run(&Load::pairs(64, 10, 2), &mut memory);
        assert!(matches!(refused, Err(Failure::CannotRun(_))), "{refused:?}");
    }

    #[test]
    fn a_packet_costs_itself_its_descriptor_and_little_more() {
        for burst in [1, 64] {
            let bytes = bytes_per_packet(64 << 20, burst).unwrap();
            assert!(
                (80.0..84.0).contains(&bytes),
                "{bytes}: 31 of 32 buckets are full"
            );
        }
    }
}
