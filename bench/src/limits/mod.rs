//! What the machine's memory can do: the denominators.
//!
//! Streams (fill, copy, read) say what the memory system gives. Inserts say what is left of it for somebody who stores packets
//! one behind the other without any queue: 16 bytes of descriptor and the payload, from a source in the first-level cache,
//! into memory much larger than all caches. No index is published and nobody reads.
//!
//! [`Insert::Straight`] and [`Insert::Staged`] are the two ways with non-temporal stores that FACTS knows; which of them is
//! faster depends on the CPU, and the faster one counts as the *raw insert*.

mod insert;
pub mod stream;

use std::{hint::black_box, sync::Barrier, thread, time::Instant};

pub use insert::{DESCRIPTOR_BYTES, Insert};

use crate::{
    contest::{Failure, Frames},
    memory::Memory,
    pin,
};

/// A way to pass over memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Writes every byte, with non-temporal stores.
    NtFill,
    /// Writes every byte, as the standard library fills a slice.
    Fill,
    /// Copies one half to the other, as the standard library does (`memcpy`). Bytes count once.
    Copy,
    /// Copies one half to the other with non-temporal stores. Bytes count once.
    NtCopy,
    /// Adds up all 8-byte words.
    Read,
}

impl Stream {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::NtFill,
        Self::Fill,
        Self::Copy,
        Self::NtCopy,
        Self::Read,
    ];

    /// As in row names.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NtFill => "nt-fill",
            Self::Fill => "fill",
            Self::Copy => "copy",
            Self::NtCopy => "nt-copy",
            Self::Read => "read",
        }
    }

    /// Passes over `bytes` once and returns how many bytes that counts.
    fn pass(self, bytes: &mut [u8]) -> u64 {
        let half = bytes.len() / 2;
        match self {
            Self::NtFill => {
                stream::fill(stream::units(bytes), 0x5a);
                stream::fence();
                return bytes.len() as u64;
            }
            Self::Fill => {
                black_box(&mut *bytes).fill(0x5a);
                return bytes.len() as u64;
            }
            Self::Copy => {
                let (from, to) = bytes.split_at_mut(half);
                to[..half].copy_from_slice(from);
            }
            Self::NtCopy => {
                let (from, to) = bytes.split_at_mut(half);
                stream::copy(stream::units(to), from);
                stream::fence();
            }
            Self::Read => {
                let (words, _) = bytes.as_chunks::<8>();
                let sum = words.iter().fold(0_u64, |sum, word| {
                    sum.wrapping_add(u64::from_le_bytes(*word))
                });
                black_box(sum);
                return bytes.len() as u64;
            }
        }
        half as u64
    }

    /// Bytes a second on `threads` threads, each with a part of `memory` of its own, over which it passes `laps` times.
    ///
    /// # Errors
    /// [`Failure::CannotRun`]: more threads than cores; [`Failure::Panicked`].
    pub fn run(self, memory: &mut Memory, threads: usize, laps: u64) -> Result<f64, Failure> {
        on_parts(memory, threads, |part| {
            (0..laps).map(|_| self.pass(part)).sum()
        })
    }
}

/// Packets a second of an insert on `threads` threads, each over its own part of `memory`, `laps` times.
///
/// # Errors
/// [`Failure::CannotRun`]: more threads than cores; [`Failure::Panicked`].
pub fn insert(
    way: Insert,
    packet_bytes: usize,
    memory: &mut Memory,
    threads: usize,
    laps: u64,
) -> Result<f64, Failure> {
    on_parts(memory, threads, |part| {
        let frames = Frames::new(packet_bytes);
        (0..laps)
            .map(|_| way.lap(part, &frames, packet_bytes))
            .sum()
    })
}

/// Runs `work` on pinned threads that start together, each on its part, and returns what they did together a second.
fn on_parts(
    memory: &mut Memory,
    threads: usize,
    work: impl Fn(&mut [u8]) -> u64 + Sync,
) -> Result<f64, Failure> {
    if threads > pin::cores() {
        let cores = pin::cores();
        return Err(Failure::CannotRun(format!(
            "{threads} threads need as many cores; there are {cores}"
        )));
    }
    let part_bytes = memory.len() / threads / 64 * 64;
    let barrier = Barrier::new(threads);
    let (work, barrier) = (&work, &barrier);
    let timed = |index: usize, part: &mut [u8]| {
        pin::pin(index);
        barrier.wait();
        let start = Instant::now();
        let done = work(part);
        (done, start, Instant::now())
    };
    let timed = &timed;
    let results: Vec<_> = thread::scope(|scope| {
        let parts = memory
            .bytes_mut()
            .chunks_exact_mut(part_bytes)
            .take(threads)
            .enumerate();
        let spawned: Vec<_> = parts
            .map(|(index, part)| scope.spawn(move || timed(index, part)))
            .collect();
        spawned
            .into_iter()
            .map(thread::ScopedJoinHandle::join)
            .collect()
    });
    let mut done = 0;
    let (mut start, mut end) = (None::<Instant>, None::<Instant>);
    for result in results {
        let (part, from, to) = result.map_err(|_| Failure::Panicked)?;
        done += part;
        start = Some(start.map_or(from, |start| start.min(from)));
        end = Some(end.map_or(to, |end| end.max(to)));
    }
    match (start, end) {
        (Some(start), Some(end)) => Ok(done as f64 / end.duration_since(start).as_secs_f64()),
        _ => Err(Failure::CannotRun("no threads were asked for".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stream_passes_over_all_of_it() {
        let mut memory = Memory::new(2 << 20).unwrap();
        for stream in Stream::ALL {
            memory.bytes_mut().fill(0);
            let half = memory.len() / 2;
            memory.bytes_mut()[..half].fill(1);
            assert!(stream.run(&mut memory, 1, 1).unwrap() > 0.0);
            let last = memory.bytes_mut().last().copied();
            let expected = match stream {
                Stream::NtFill | Stream::Fill => 0x5a,
                Stream::Copy | Stream::NtCopy => 1,
                Stream::Read => 0,
            };
            assert_eq!(last, Some(expected), "{}", stream.name());
        }
    }

    #[test]
    fn more_threads_than_cores_are_not_faked() {
        let mut memory = Memory::new(2 << 20).unwrap();
        let result = Stream::Fill.run(&mut memory, pin::cores() + 1, 1);
        assert!(matches!(result, Err(Failure::CannotRun(_))));
    }
}
