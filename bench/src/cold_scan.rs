//! Finding packets again in memory that no cache holds: by descriptors, and by following lengths.
//!
//! Packets of 64, 694 and 1514 bytes in random order, 770 bytes on average, fill the ring and, packed one behind the other with a header
//! of 16 bytes that tells the length, a region as large. Both scans touch the same 8 bytes of each packet's own header. Each
//! scan walks the whole of its memory, many times what the caches hold, so that it leaves the other nothing, and
//! itself only its end.

use std::{thread, time::Instant};

use retroscope_ring::{GroupKind, Record, Ring, RingConfig};

use crate::{
    contest::{Failure, Frames, Tally},
    memory::Memory,
    pin,
};

/// Sizes, and how many of 10 packets have them: 770.0 bytes on average.
const MIX: [(usize, usize); 3] = [(64, 4), (694, 2), (1514, 4)];
/// Bytes of the packed header: captured length (2), the rest 0.
const HEADER_BYTES: usize = 16;
/// The part of a packet's header that is touched.
const TOUCHED: std::ops::Range<usize> = 8..16;
/// The order of sizes is the same in every run.
const SEED: u64 = 770;

/// The packets of both scans.
struct Mix {
    frames: [Frames; 3],
    random: fastrand::Rng,
    number: u64,
}

impl Mix {
    fn new() -> Self {
        Self {
            frames: MIX.map(|(bytes, _)| Frames::new(bytes)),
            random: fastrand::Rng::with_seed(SEED),
            number: 0,
        }
    }

    fn next(&mut self) -> &[u8] {
        let mut ticket = self.random.usize(0..10);
        let mut kind = 0;
        while ticket >= MIX[kind].1 {
            ticket -= MIX[kind].1;
            kind += 1;
        }
        self.number += 1;
        self.frames[kind].get(self.number)
    }
}

/// Both memories, filled.
#[derive(Debug)]
pub struct ColdScan {
    ring: Ring,
    /// What is retained in the ring.
    in_ring: Tally,
    /// What was packed.
    packed: Tally,
}

impl ColdScan {
    /// Fills a ring of its own once around and a bit, so that all it retains was stored over older packets, and as much of `memory`
    /// as holds whole packets.
    ///
    /// # Errors
    /// [`Failure::System`]: the ring cannot be had, or refused a packet.
    pub fn new(ring_bytes: u64, memory: &mut Memory) -> Result<Self, Failure> {
        let config = RingConfig::new(ring_bytes, 1, 1);
        let ring =
            Ring::new(&config, None).map_err(|error| Failure::system("making a ring", error))?;
        Ok(Self {
            in_ring: fill_ring(&ring)?,
            packed: pack(memory.bytes_mut()),
            ring,
        })
    }

    /// Nanoseconds a packet, reading through a new reader of the ring, which starts with the oldest packet.
    ///
    /// # Errors
    /// [`Failure`]: what was seen is not what was stored.
    pub fn by_descriptors(&self) -> Result<f64, Failure> {
        let reader = self.ring.group("scan", GroupKind::Lapped);
        let mut reader = reader.map_err(|error| Failure::system("making a reader", error))?;
        timed(self.in_ring, || {
            let mut seen = Tally::default();
            while let Some(batch) = reader.next() {
                for packet in batch {
                    touch(&mut seen, packet.data);
                }
            }
            seen
        })
    }

    /// Nanoseconds a packet, following the lengths in `memory`, which is unchanged since it was filled.
    ///
    /// # Errors
    /// [`Failure`]: what was seen is not what was stored.
    pub fn by_lengths(&self, memory: &mut Memory) -> Result<f64, Failure> {
        let bytes: &[u8] = memory.bytes_mut();
        timed(self.packed, || {
            let mut seen = Tally::default();
            let mut rest = bytes;
            while let Some((header, frames)) = rest.split_first_chunk::<HEADER_BYTES>() {
                let length = usize::from(u16::from_le_bytes([header[0], header[1]]));
                if length == 0 || length > frames.len() {
                    break;
                }
                let (frame, after) = frames.split_at(length);
                touch(&mut seen, frame);
                rest = after;
            }
            seen
        })
    }
}

/// Runs a scan on a thread of its own, checks what it saw, and returns nanoseconds a packet.
fn timed(expected: Tally, scan: impl FnOnce() -> Tally + Send) -> Result<f64, Failure> {
    let (seen, time) = thread::scope(|scope| {
        let scanning = scope.spawn(|| {
            pin::pin(0);
            let start = Instant::now();
            let seen = scan();
            (seen, start.elapsed())
        });
        scanning.join().map_err(|_| Failure::Panicked)
    })?;
    if seen.packets != expected.packets {
        return Err(Failure::Count {
            expected: expected.packets,
            seen: seen.packets,
        });
    }
    if seen.checksum != expected.checksum {
        return Err(Failure::Checksum {
            expected: expected.checksum,
            seen: seen.checksum,
        });
    }
    Ok(time.as_secs_f64() * 1e9 / seen.packets as f64)
}

/// What a scan does with a packet: counts it, its length, and 8 bytes of its header.
#[inline(always)]
fn touch(seen: &mut Tally, frame: &[u8]) {
    seen.add(0, frame.len());
    seen.touch(&frame[TOUCHED]);
}

fn fill_ring(ring: &Ring) -> Result<Tally, Failure> {
    let mut producer = ring
        .producer()
        .map_err(|error| Failure::system("making a producer", error))?;
    let packets = ring.bytes() / 770 * 11 / 10;
    let mut mix = Mix::new();
    let mut tallies = Vec::new();
    for number in 0..packets {
        let frame = mix.next();
        let mut tally = Tally::default();
        touch(&mut tally, frame);
        tallies.push(tally);
        let record = Record::whole(number.cast_signed(), 0, frame);
        producer
            .store(&record)
            .map_err(|error| Failure::system("store", error))?;
    }
    producer.publish();
    let statistics = ring.statistics();
    let evicted = usize::try_from(statistics.evicted_packets).unwrap_or(usize::MAX);
    let mut retained = Tally::default();
    for tally in tallies.iter().skip(evicted) {
        retained += *tally;
    }
    Ok(retained)
}

fn pack(bytes: &mut [u8]) -> Tally {
    let mut mix = Mix::new();
    let mut packed = Tally::default();
    let mut used = 0;
    loop {
        let frame = mix.next();
        let Some(record) = bytes.get_mut(used..used + HEADER_BYTES + frame.len()) else {
            break;
        };
        let (header, place) = record.split_at_mut(HEADER_BYTES);
        header.fill(0);
        header[..2].copy_from_slice(&frame.len().to_le_bytes()[..2]);
        place.copy_from_slice(frame);
        touch(&mut packed, frame);
        used += record.len();
    }
    bytes[used..].fill(0); // a length of 0 ends the walk
    packed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_is_770() {
        let sum: usize = MIX.iter().map(|(bytes, share)| bytes * share).sum();
        assert_eq!(sum, 7700);
        assert_eq!(MIX.iter().map(|(_, share)| share).sum::<usize>(), 10);
        let mut mix = Mix::new();
        let bytes: usize = (0..10_000).map(|_| mix.next().len()).sum();
        assert!((755..785).contains(&(bytes / 10_000)));
    }

    #[test]
    fn both_scans_see_all_and_a_changed_byte_is_noticed() {
        let mut memory = Memory::new(4 << 20).unwrap();
        let scan = ColdScan::new(32 << 20, &mut memory).unwrap();
        assert!(scan.in_ring.packets > 10_000, "{scan:?}");
        assert!(scan.by_descriptors().unwrap() > 0.0);
        assert!(scan.by_lengths(&mut memory).unwrap() > 0.0);
        memory.bytes_mut()[HEADER_BYTES + TOUCHED.start] ^= 1;
        let changed = scan.by_lengths(&mut memory);
        assert!(
            matches!(changed, Err(Failure::Checksum { .. })),
            "{changed:?}"
        );
    }
}
