//! What a queue is asked to carry, and what it answers.
//!
//! A contestant implements [`Contest`]. It takes the [`Frames`] of a [`Load`], stores them on its producer threads, reads them
//! on its consumer threads, and returns what the consumers saw and how long it took. [`race`](crate::race::race) starts the
//! threads and takes the time, so that all contestants are timed alike; [`Run::check`] compares counts and checksums.

use std::{
    fmt,
    time::{Duration, Instant},
};

use crate::memory::Memory;

/// Bytes of source frames, at most: they stay in the first-level cache beside what a contestant needs there.
const FRAMES_BYTES_MAX: usize = 16 << 10;
/// Different frames of a load, at most: one burst.
const FRAMES_MAX: usize = 64;
/// Frames start on a cache line, and may be read up to a multiple of this.
const FRAME_ALIGNMENT: usize = 64;

/// A queue in the competition. Used from one thread; it starts its own.
pub trait Contest {
    /// As in row names: lower case with hyphens, `crossbeam-channel`.
    fn name(&self) -> &str;

    /// Carries `load` from its producers to its consumers once, without loss.
    ///
    /// `memory` is there to keep packets in; it is pre-faulted, aligned to 2 MiB, as large as the ring, and shared with the
    /// other contestants, who run before and after. What a contestant needs beside it (queues of pointers) it keeps itself.
    /// Whatever its contents, the whole of it must be used in turn: a recorder retains what it stored.
    ///
    /// # Errors
    /// [`Failure`]. [`Failure::CannotRun`] where the load does not fit the queue (two producers on a queue for one).
    fn run(&mut self, load: &Load, memory: &mut Memory) -> Result<Run, Failure>;
}

/// What is to be carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Bytes of each packet, `16..=9000`.
    pub packet_bytes: usize,
    /// Packets of all producers together.
    pub packets: u64,
    /// Threads that store, at least 1.
    pub producers: usize,
    /// Threads that read, at least 1.
    pub consumers: usize,
    /// Packets that come out of the source at a time, at least 1. A queue that can hand over packets before a bucket or buffer is
    /// full may do so after each burst.
    pub burst: usize,
    /// Consumers also read the first 8 bytes of each payload, and add them to the checksum.
    pub touch_payload: bool,
}

impl Load {
    /// `packets` packets of `packet_bytes` from each of `pairs` producers in bursts of 64, read by as many consumers, which look at
    /// every descriptor.
    #[must_use]
    pub fn pairs(packet_bytes: usize, packets: u64, pairs: usize) -> Self {
        Self {
            packet_bytes,
            packets,
            producers: pairs,
            consumers: pairs,
            burst: 64,
            touch_payload: false,
        }
    }

    /// Packets that this producer stores, `producer` in `0..producers`.
    #[must_use]
    pub fn packets_of(&self, producer: usize) -> u64 {
        let producers = self.producers as u64;
        let rest = self.packets % producers;
        self.packets / producers + u64::from((producer as u64) < rest)
    }

    /// The stamp of a producer's packet: its place if producers took turns. Below 2^48, the range of the QQ of 2016.
    #[must_use]
    #[inline(always)]
    pub fn time(&self, producer: usize, number: u64) -> u64 {
        number * self.producers as u64 + producer as u64
    }

    /// What consumers must see.
    #[must_use]
    pub fn expected(&self) -> Tally {
        let frames = Frames::count_for(self.packet_bytes) as u64;
        let mut tally = Tally::default();
        for producer in 0..self.producers {
            let packets = self.packets_of(producer);
            let (rounds, rest) = (packets / frames, packets % frames);
            let times = self.producers as u128 * sum_below(packets)
                + producer as u128 * u128::from(packets);
            let lengths = u128::from(packets) * self.packet_bytes as u128;
            let payloads = if self.touch_payload {
                u128::from(rounds) * sum_below(frames) + sum_below(rest)
            } else {
                0
            };
            tally.packets += packets;
            let sum = (times + lengths + payloads) & u128::from(u64::MAX);
            tally.checksum = tally
                .checksum
                .wrapping_add(u64::try_from(sum).unwrap_or_default());
        }
        tally
    }
}

/// The numbers below `count`, added up.
fn sum_below(count: u64) -> u128 {
    u128::from(count) * u128::from(count).saturating_sub(1) / 2
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} packets of {} B, {}P{}C",
            self.packets, self.packet_bytes, self.producers, self.consumers
        )
    }
}

/// What a consumer saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Packets.
    pub packets: u64,
    /// Their stamps and lengths (and first 8 bytes, where the load says so), added up, modulo 2^64.
    pub checksum: u64,
}

impl Tally {
    /// Counts one packet by what its descriptor or header says. `time` is the stamp that [`Load::time`] gave it, read from the
    /// queue's memory, as is `captured_bytes`.
    #[inline(always)]
    pub fn add(&mut self, time: u64, captured_bytes: usize) {
        self.packets += 1;
        self.checksum = self
            .checksum
            .wrapping_add(time)
            .wrapping_add(captured_bytes as u64);
    }

    /// Adds the first 8 bytes of a payload.
    #[inline(always)]
    pub fn touch(&mut self, payload: &[u8]) {
        if let Some(first) = payload.first_chunk() {
            self.checksum = self.checksum.wrapping_add(u64::from_le_bytes(*first));
        }
    }
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.packets += other.packets;
        self.checksum = self.checksum.wrapping_add(other.checksum);
    }
}

/// A finished run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Run {
    /// From before the first store to the last packet seen by a consumer.
    pub seconds: f64,
    /// What all consumers saw.
    pub seen: Tally,
}

impl Run {
    /// Millions of packets a second.
    #[must_use]
    pub fn mpps(&self) -> f64 {
        self.seen.packets as f64 / self.seconds / 1e6
    }

    /// Compares what was seen with what was to be carried.
    ///
    /// # Errors
    /// [`Failure::Count`], [`Failure::Checksum`].
    pub fn check(&self, load: &Load) -> Result<(), Failure> {
        let expected = load.expected();
        if self.seen.packets != expected.packets {
            return Err(Failure::Count {
                expected: expected.packets,
                seen: self.seen.packets,
            });
        }
        if self.seen.checksum != expected.checksum {
            return Err(Failure::Checksum {
                expected: expected.checksum,
                seen: self.seen.checksum,
            });
        }
        Ok(())
    }
}

/// Why there is no figure.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Nobody's fault: the load does not fit the queue or the machine. A sentence.
    #[error("{0}")]
    CannotRun(String),
    /// Packets were lost or seen twice.
    #[error("{seen} packets were seen instead of {expected}")]
    Count {
        /// Packets stored.
        expected: u64,
        /// Packets seen.
        seen: u64,
    },
    /// The number of packets is right, what they said is not.
    #[error("the checksum is {seen:#x} instead of {expected:#x}")]
    Checksum {
        /// Of what was stored.
        expected: u64,
        /// Of what was seen.
        seen: u64,
    },
    /// The ring passed its reader by in a run that must not lose anything.
    #[error("the reader was lapped by {packets} packets")]
    Lapped {
        /// Packets missed.
        packets: u64,
    },
    /// It did not come to an end.
    #[error("not finished after {seconds} s")]
    Deadline {
        /// The limit.
        seconds: u64,
    },
    /// A thread of the contestant panicked.
    #[error("a thread panicked")]
    Panicked,
    /// Two engines decide differently about a packet.
    #[error("{engine} and libpcap disagree about packet {packet} and '{text}'")]
    Disagree {
        /// Ours, or code written by hand.
        engine: String,
        /// The expression.
        text: String,
        /// Its number among the packets that were tried.
        packet: u64,
    },
    /// A denominator is not what it must be, so nothing is compared with it.
    #[error("{0}")]
    Unsound(String),
    /// Packets were seen later than they may be.
    #[error("99 of 100 packets were seen after at most {p99:?}, which must be {limit:?} or less")]
    Late {
        /// What was measured.
        p99: Duration,
        /// What is promised.
        limit: Duration,
    },
    /// A call that should work did not.
    #[error("{what}: {error}")]
    System {
        /// What was tried.
        what: String,
        /// What the system or a library said.
        error: String,
    },
}

impl Failure {
    /// From an error of a call.
    pub fn system(what: &str, error: impl fmt::Display) -> Self {
        Self::System {
            what: what.to_owned(),
            error: error.to_string(),
        }
    }
}

/// The packets of a load: a few frames that differ, small enough to stay in the first-level cache, taken in turn.
///
/// The first 8 bytes of a frame are its number (little endian), the rest a pattern.
#[derive(Debug, Clone)]
pub struct Frames {
    bytes: Vec<u8>,
    start: usize,
    frame_bytes: usize,
    stride: usize,
    mask: u64,
}

impl Frames {
    /// Frames of so many bytes, `16..=9000`.
    #[must_use]
    pub fn new(frame_bytes: usize) -> Self {
        assert!((16..=9000).contains(&frame_bytes));
        let count = Self::count_for(frame_bytes);
        let stride = frame_bytes.next_multiple_of(FRAME_ALIGNMENT);
        let mut bytes = vec![0; count * stride + FRAME_ALIGNMENT];
        let start = bytes.as_ptr().align_offset(FRAME_ALIGNMENT);
        for number in 0..count {
            let frame = &mut bytes[start + number * stride..][..stride];
            for (at, byte) in frame.iter_mut().enumerate() {
                *byte = (number * 31 + at).to_le_bytes()[0];
            }
            frame[..8].copy_from_slice(&(number as u64).to_le_bytes());
        }
        Self {
            bytes,
            start,
            frame_bytes,
            stride,
            mask: count as u64 - 1,
        }
    }

    /// The frame of a producer's packet.
    #[must_use]
    #[inline(always)]
    pub fn get(&self, number: u64) -> &[u8] {
        let start = self.start_of(number);
        &self.bytes[start..start + self.frame_bytes]
    }

    /// The same with what follows it, up to a multiple of 64 bytes; starts on a multiple of 64.
    #[must_use]
    #[inline(always)]
    pub fn padded(&self, number: u64) -> &[u8] {
        let start = self.start_of(number);
        &self.bytes[start..start + self.stride]
    }

    #[inline(always)]
    fn start_of(&self, number: u64) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "masked to 0..64")]
        let index = (number & self.mask) as usize;
        self.start + index * self.stride
    }

    /// How many different ones: a power of two, `1..=64`.
    #[must_use]
    pub fn count_for(frame_bytes: usize) -> usize {
        let fitting = FRAMES_BYTES_MAX / frame_bytes.next_multiple_of(FRAME_ALIGNMENT);
        let fitting = fitting.clamp(1, FRAMES_MAX);
        1 << fitting.ilog2()
    }
}

/// A moment until which something must have happened.
#[derive(Debug, Clone, Copy)]
pub struct Deadline(Instant);

impl Deadline {
    /// So long from now.
    #[must_use]
    pub fn after(time: Duration) -> Self {
        Self(Instant::now() + time)
    }

    /// What is left, `None` when it is over.
    #[must_use]
    pub fn left(&self) -> Option<Duration> {
        self.0.checked_duration_since(Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The closed form of `expected` against counting.
    #[test]
    fn expected_is_what_a_perfect_consumer_sees() {
        for (packet_bytes, packets, producers, touch_payload) in [
            (64, 1000, 1, false),
            (64, 1001, 2, true),
            (1514, 77, 3, true),
            (512, 5, 8, true),
        ] {
            let load = Load {
                producers,
                touch_payload,
                ..Load::pairs(packet_bytes, packets, 1)
            };
            let frames = Frames::new(packet_bytes);
            let mut seen = Tally::default();
            for producer in 0..producers {
                for number in 0..load.packets_of(producer) {
                    seen.add(load.time(producer, number), frames.get(number).len());
                    if touch_payload {
                        seen.touch(frames.get(number));
                    }
                }
            }
            assert_eq!(seen, load.expected(), "{load}");
        }
    }

    #[test]
    fn a_lost_and_a_changed_packet_fail_the_run() {
        let load = Load::pairs(64, 100, 1);
        let mut run = Run {
            seconds: 1.0,
            seen: load.expected(),
        };
        assert_eq!(run.check(&load), Ok(()));
        run.seen.checksum ^= 1;
        assert!(matches!(run.check(&load), Err(Failure::Checksum { .. })));
        run.seen.packets -= 1;
        assert!(matches!(run.check(&load), Err(Failure::Count { .. })));
    }

    #[test]
    fn frames_differ_and_stay_small() {
        for bytes in [64, 128, 256, 512, 770, 1024, 1514, 9000] {
            let frames = Frames::new(bytes);
            let count = Frames::count_for(bytes) as u64;
            assert!(frames.padded(count - 1).as_ptr().align_offset(64) == 0);
            assert_eq!(frames.get(count), frames.get(0), "in turn");
            for number in 1..count {
                assert_ne!(frames.get(number), frames.get(number - 1));
            }
        }
    }
}
