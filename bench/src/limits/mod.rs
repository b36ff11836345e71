//! What the machine's memory can do: the denominators.
//!
//! Streams (fill, copy, read) say what the memory system gives. Inserts say what is left of it for somebody who stores packets
//! one behind the other without any queue: 16 bytes of descriptor and the payload, from a source in the first-level cache,
//! into memory much larger than all caches. No index is published and nobody reads.
//!
//! [`Insert::Straight`] and [`Insert::Staged`] are the two ways with non-temporal stores that FACTS knows; which of them is
//! faster depends on the CPU, and the faster one counts as the *raw insert*.

pub mod stream;

use std::{hint::black_box, io};

use self::stream::{UNIT_BYTES, Unit};
use crate::{
    contest::{Frames, in_seconds},
    measure::{Entrant, Failure},
    memory::Memory,
    pin,
    queues::SIZES,
    session::Session,
};

/// Bytes of the descriptor before each payload: stamp (8), captured length (4), wire length (4), little endian.
pub const DESCRIPTOR_BYTES: usize = 16;
/// Bytes that are packed in the first-level cache before they are flushed. FACTS: 1 to 4 KiB are alike.
const STAGE_BYTES: usize = 4 << 10;

/// Behind them, so that a record that begins in them fits: one of the longest frames.
const STAGE_SLACK_BYTES: usize = 16 << 10;

/// Where packets are packed.
#[repr(align(64))]
struct Stage([u8; STAGE_BYTES + STAGE_SLACK_BYTES]);

/// A way to pass over memory once. Returns how many bytes that counts.
pub type Stream = fn(&mut [u8]) -> usize;

/// All of them, as in row names: fills write every byte, copies copy one half to the other (bytes count once), reads add up all words.
pub const STREAMS: [(&str, Stream); 5] = [
    ("nt-fill", nt_fill),
    ("fill", |bytes| {
        black_box(&mut *bytes).fill(FILLED);
        bytes.len()
    }),
    ("copy", |bytes| {
        let (from, to) = bytes.split_at_mut(bytes.len() / 2);
        to[..from.len()].copy_from_slice(from);
        from.len()
    }),
    ("nt-copy", |bytes| {
        let (from, to) = bytes.split_at_mut(bytes.len() / 2);
        stream::copy(stream::units(to), from);
        stream::fence();
        from.len()
    }),
    ("read", |bytes| {
        let words = bytes.as_chunks::<8>().0.iter();
        black_box(words.fold(0, |sum: u64, word| {
            sum.wrapping_add(u64::from_le_bytes(*word))
        }));
        bytes.len()
    }),
];

/// What fills write.
const FILLED: u8 = 0x5a;

/// Writes every byte, with non-temporal stores.
pub fn nt_fill(bytes: &mut [u8]) -> usize {
    stream::fill(stream::units(bytes), FILLED);
    stream::fence();
    bytes.len()
}

/// Bytes a second on `threads` threads, each with a part of `memory` of its own, over which it passes `laps` times.
///
/// # Errors
/// [`Failure::Wrong`]: one panicked.
pub fn run(stream: Stream, memory: &mut Memory, threads: usize, laps: u64) -> Result<f64, Failure> {
    on_parts(memory, threads, |part| {
        (0..laps).map(|_| stream(part) as u64).sum()
    })
}

/// How a packet gets into memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Insert {
    /// Descriptor and payload with ordinary stores (`memcpy`), packed without gaps.
    Memcpy,
    /// Descriptor and payload with non-temporal stores straight to their place; a payload ends on a multiple of 16.
    Straight,
    /// Packed without gaps in 4 KiB of the first-level cache, which are flushed with non-temporal stores.
    Staged,
}

impl Insert {
    /// The ways of the raw insert.
    pub const RAW: [Self; 2] = [Self::Straight, Self::Staged];

    /// Bytes of memory that a packet takes.
    #[must_use]
    pub fn record_bytes(self, packet_bytes: usize) -> usize {
        match self {
            Self::Memcpy | Self::Staged => DESCRIPTOR_BYTES + packet_bytes,
            Self::Straight => DESCRIPTOR_BYTES + packet_bytes.next_multiple_of(UNIT_BYTES),
        }
    }

    /// Packets a second on one thread, around `memory` so many times.
    ///
    /// # Errors
    /// [`Failure::Wrong`]: the thread panicked.
    pub fn run(self, bytes: usize, memory: &mut Memory, laps: u64) -> Result<f64, Failure> {
        on_parts(memory, 1, |part| {
            let frames = Frames::new(bytes);
            (0..laps).map(|_| self.lap(part, &frames, bytes)).sum()
        })
    }

    /// Stores as many packets as fit into `region`, from its start, and returns how many.
    pub fn lap(self, region: &mut [u8], frames: &Frames, packet_bytes: usize) -> u64 {
        let packets = region.len() / self.record_bytes(packet_bytes);
        match self {
            Self::Memcpy => {
                let records = region.chunks_exact_mut(DESCRIPTOR_BYTES + packet_bytes);
                for (number, record) in (0_u64..).zip(records) {
                    let (descriptor, payload) = record.split_at_mut(DESCRIPTOR_BYTES);
                    // The length is not known to the compiler, as it would not be of a real packet.
                    let frame = &frames.get(number)[..black_box(packet_bytes)];
                    descriptor.copy_from_slice(&describe(number, frame.len()));
                    payload.copy_from_slice(frame);
                }
            }
            Self::Straight => {
                let units = stream::units(region);
                let records = units.chunks_exact_mut(self.record_bytes(packet_bytes) / UNIT_BYTES);
                for (number, record) in (0_u64..).zip(records) {
                    let (descriptor, payload) = record.split_at_mut(DESCRIPTOR_BYTES / UNIT_BYTES);
                    stream::copy(descriptor, &describe(number, packet_bytes));
                    stream::copy(payload, frames.padded(number));
                }
                stream::fence();
            }
            Self::Staged => staged(stream::units(region), frames, packet_bytes, packets as u64),
        }
        packets as u64
    }
}

/// The descriptor of a packet.
#[inline(always)]
pub(crate) fn describe(number: u64, packet_bytes: usize) -> [u8; DESCRIPTOR_BYTES] {
    let length = packet_bytes as u128;
    (u128::from(number) | length << 64 | length << 96).to_le_bytes()
}

fn staged(region: &mut [Unit], frames: &Frames, packet_bytes: usize, packets: u64) {
    let record_bytes = DESCRIPTOR_BYTES + packet_bytes;
    let mut stage = Stage([0; STAGE_BYTES + STAGE_SLACK_BYTES]);
    let stage = &mut stage.0;
    let (mut staged, mut flushed) = (0, 0);
    for number in 0..packets {
        let record = &mut stage[staged..staged + record_bytes];
        let (descriptor, payload) = record.split_at_mut(DESCRIPTOR_BYTES);
        descriptor.copy_from_slice(&describe(number, packet_bytes));
        payload.copy_from_slice(&frames.get(number)[..packet_bytes]);
        staged += record_bytes;
        if staged >= STAGE_BYTES {
            let whole = staged / 64 * 64;
            let units = whole / UNIT_BYTES;
            stream::copy(&mut region[flushed..flushed + units], &stage[..whole]);
            flushed += units;
            stage.copy_within(whole..staged, 0);
            staged -= whole;
        }
    }
    // What is left ends somewhere inside a unit: its rest is not part of any packet.
    let rest = staged
        .next_multiple_of(UNIT_BYTES)
        .min((region.len() - flushed) * UNIT_BYTES);
    stream::copy(&mut region[flushed..], &stage[..rest]);
    stream::fence();
}

/// Runs `work` on threads, each on its part, and returns what they did together a second.
fn on_parts(
    memory: &mut Memory,
    threads: usize,
    work: impl Fn(&mut [u8]) -> u64 + Sync,
) -> Result<f64, Failure> {
    let part_bytes = memory.len() / threads / 64 * 64;
    let parts = memory
        .bytes_mut()
        .chunks_exact_mut(part_bytes)
        .take(threads);
    let work = &work;
    let (done, seconds) = in_seconds(parts.map(|part| move || work(part)).collect())?;
    Ok(done.iter().sum::<u64>() as f64 / seconds)
}

/// Passes of some threads over the memory, in GB/s.
pub(crate) fn streaming<'a>(
    session: &'a Session,
    name: impl Into<String>,
    stream: Stream,
    threads: usize,
) -> Entrant<'a> {
    let (ring_bytes, seconds) = (session.scale.ring_bytes, session.scale.seconds);
    Entrant::paced(name, seconds, 1, move |laps| {
        let per_second = run(stream, &mut session.memory.borrow_mut(), threads, laps)?;
        Ok((per_second / 1e9, per_second / ring_bytes as f64))
    })
}

/// Inserts on one thread, in Mpps: in each turn the fastest of some ways.
pub(crate) fn inserting<'a>(
    session: &'a Session,
    name: impl Into<String>,
    ways: &'a [Insert],
    packet_bytes: usize,
) -> Entrant<'a> {
    let (ring_bytes, seconds) = (session.scale.ring_bytes, session.scale.seconds);
    let in_lap = ring_bytes as f64 / (DESCRIPTOR_BYTES + packet_bytes) as f64;
    Entrant::paced(name, seconds, 1, move |laps| {
        let mut per_second = 0.0_f64;
        for way in ways {
            let memory = &mut session.memory.borrow_mut();
            per_second = per_second.max(way.run(packet_bytes, memory, laps)?);
        }
        Ok((per_second / 1e6, per_second / in_lap))
    })
}

/// What memory can do, by threads, and what inserts without a queue reach, by size of packet.
pub(crate) fn rows(session: &Session) -> io::Result<()> {
    let mut entrants = Vec::new();
    for threads in 1..=pin::cores().min(2) {
        for (name, stream) in STREAMS {
            let row = format!("limits/{name}/{threads}t");
            entrants.push(streaming(session, row, stream, threads));
        }
    }
    session.measure("memory", entrants)?;
    let mut entrants = Vec::new();
    for bytes in SIZES {
        let ways = [
            ("memcpy-insert", &[Insert::Memcpy][..]),
            ("raw-insert", &Insert::RAW),
        ];
        entrants.extend(ways.map(|(what, ways)| {
            inserting(session, format!("limits/{what}/{bytes}B"), ways, bytes)
        }));
    }
    session.measure("inserts", entrants)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stream_passes_over_all_of_it() {
        let mut memory = Memory::new(2 << 20).unwrap();
        for (name, stream) in STREAMS {
            memory.bytes_mut().fill(0);
            let half = memory.len() / 2;
            memory.bytes_mut()[..half].fill(1);
            assert!(run(stream, &mut memory, 1, 1).unwrap() > 0.0);
            let last = memory.bytes_mut().last().copied();
            let expected = match name {
                "nt-fill" | "fill" => FILLED,
                "copy" | "nt-copy" => 1,
                _ => 0,
            };
            assert_eq!(last, Some(expected), "{name}");
        }
    }

    /// Reads back every record of a lap.
    #[test]
    fn what_is_inserted_can_be_read() {
        let mut memory = Memory::new(2 << 20).unwrap();
        for packet_bytes in [64, 128, 500, 512, 1024, 1514, 9000] {
            let frames = Frames::new(packet_bytes);
            for way in [Insert::Memcpy, Insert::Straight, Insert::Staged] {
                memory.bytes_mut().fill(0);
                let packets = way.lap(memory.bytes_mut(), &frames, packet_bytes);
                let record_bytes = way.record_bytes(packet_bytes);
                assert_eq!(packets, (memory.len() / record_bytes) as u64);
                let records = memory.bytes_mut().chunks_exact(record_bytes);
                for (number, record) in (0..packets).zip(records) {
                    let (descriptor, payload) = record.split_at(DESCRIPTOR_BYTES);
                    assert_eq!(
                        descriptor,
                        describe(number, packet_bytes),
                        "{way:?} {packet_bytes}"
                    );
                    assert_eq!(
                        &payload[..packet_bytes],
                        frames.get(number),
                        "{way:?} {number}"
                    );
                }
            }
        }
    }
}
