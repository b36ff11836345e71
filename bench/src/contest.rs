//! The load that a queue must carry, and how its threads are run and timed.
//!
//! A contestant implements [`Contest`]: it stores the [`Frames`] of a [`Load`] on its producer
//! threads, reads them on its consumer threads, and returns the tallies of its consumers. The time
//! is taken by [`race`], which starts the threads, so that all contestants are timed alike.
//! [`Run::check`] compares counts and checksums.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Barrier,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use crate::{
    latency::cpu_time,
    measure::{Failure, check_count, check_sum},
    memory::Memory,
    pin,
};

/// Maximum bytes of all source frames together. This many bytes stay in the first-level cache
/// together with the working set of a contestant.
const FRAMES_BYTES_MAX: usize = 16 << 10;
/// Maximum number of different frames of a load: one burst.
const FRAMES_MAX: usize = 64;
/// Frames start on a multiple of this, a cache line. A contestant may read each frame beyond its
/// end, up to the next multiple.
const FRAME_ALIGNMENT: usize = 64;
/// A run is stopped after this time. Usually a run takes fractions of a second.
const LIMIT: Duration = Duration::from_secs(20);
/// A queue in the competition. Used from one thread; the contestant starts its own threads.
pub trait Contest {
    /// Carries `load` from its producers to its consumers once, without loss.
    ///
    /// `memory` is for the packets. It is pre-faulted, aligned to 2 MiB, as large as the ring, and
    /// shared with the other contestants, which run before and after. Its initial contents are
    /// arbitrary. Unless a row measures another way of use, the contestant must cycle through the
    /// whole memory, because a recorder retains the packets that it stores.
    ///
    /// # Errors
    /// [`Failure`]. [`Failure::CannotRun`] if the load does not fit the queue (two producers on a
    /// queue for one producer).
    fn run(&mut self, load: &Load, memory: &mut Memory) -> Result<Run, Failure>;
}

/// A contestant whose construction may have failed: its runs return the error.
impl<C: Contest> Contest for Result<C, Failure> {
    fn run(&mut self, load: &Load, memory: &mut Memory) -> Result<Run, Failure> {
        self.as_mut()
            .map_err(|failure| failure.clone())?
            .run(load, memory)
    }
}

/// A closure is a contestant.
impl<F: FnMut(&Load, &mut Memory) -> Result<Run, Failure>> Contest for F {
    fn run(&mut self, load: &Load, memory: &mut Memory) -> Result<Run, Failure> {
        self(load, memory)
    }
}

/// The packets to carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Bytes of each packet, `16..=9000`.
    pub packet_bytes: usize,
    /// Packets of all producers together.
    pub packets: u64,
    /// Number of storing threads, at least 1.
    pub producers: usize,
    /// Number of reading threads: one for each producer, or one for all.
    pub consumers: usize,
}

impl Load {
    /// Packets that the source returns at a time. A queue that can hand over packets before a
    /// bucket or buffer is full may do so after each burst.
    pub const BURST: u64 = 64;

    /// A load of packets of one size with as many consumers as producers.
    #[must_use]
    pub fn pairs(packet_bytes: usize, packets: u64, pairs: usize) -> Self {
        Self {
            packet_bytes,
            packets,
            producers: pairs,
            consumers: pairs,
        }
    }

    /// A load that one thread reads.
    #[must_use]
    pub fn to_one(packet_bytes: usize, packets: u64, producers: usize) -> Self {
        Self {
            consumers: 1,
            ..Self::pairs(packet_bytes, packets, producers)
        }
    }

    /// Number of storing and reading threads.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.producers + self.consumers
    }

    /// Number of packets that this producer stores, `producer` in `0..producers`.
    #[must_use]
    pub fn packets_of(&self, producer: usize) -> u64 {
        let producers = self.producers as u64;
        let rest = self.packets % producers;
        self.packets / producers + u64::from((producer as u64) < rest)
    }

    /// The stamp of a producer's packet: its position if producers took turns. Below 2^48, the
    /// range of the QQ of 2016.
    #[must_use]
    #[inline(always)]
    pub fn time(&self, producer: usize, number: u64) -> u64 {
        number * self.producers as u64 + producer as u64
    }

    /// The tally that consumers must return.
    #[must_use]
    pub fn expected(&self) -> Tally {
        let mut checksum = 0_u64;
        for producer in 0..self.producers {
            let packets = self.packets_of(producer);
            let times = packets * packets.saturating_sub(1) / 2 * self.producers as u64;
            let each = (producer + self.packet_bytes) as u64;
            checksum = checksum.wrapping_add(times + each * packets);
        }
        Tally {
            packets: self.packets,
            checksum,
        }
    }
}

/// The packets that a consumer saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Number of packets.
    pub packets: u64,
    /// Sum of stamps and lengths of the packets, modulo 2^64.
    pub checksum: u64,
}

impl Tally {
    /// Counts one packet by its descriptor or header. `time` is the stamp of [`Load::time`]. Both
    /// arguments must be read from the queue's memory.
    #[inline(always)]
    pub fn add(&mut self, time: u64, captured_bytes: usize) {
        self.packets += 1;
        let sum = time.wrapping_add(captured_bytes as u64);
        self.checksum = self.checksum.wrapping_add(sum);
    }
}

/// A finished run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Run {
    /// Time from before the first store until a consumer has seen the last packet.
    pub seconds: f64,
    /// Tally of all consumers.
    pub seen: Tally,
    /// Processor time of all consumers, in seconds.
    pub reading_seconds: f64,
}

impl Run {
    /// Millions of packets a second.
    #[must_use]
    pub fn mpps(&self) -> f64 {
        self.seen.packets as f64 / self.seconds / 1e6
    }

    /// Compares the tally with the load.
    ///
    /// # Errors
    /// [`Failure::Count`], [`Failure::Wrong`].
    pub fn check(&self, load: &Load) -> Result<(), Failure> {
        let expected = load.expected();
        check_count(expected.packets, self.seen.packets)?;
        check_sum(expected.checksum, self.seen.checksum)
    }
}

/// The packets of a load: a few different frames, small enough to stay in the first-level cache,
/// used in turn.
///
/// The first 8 bytes of a frame are its number (little endian), the rest is a pattern.
#[derive(Debug, Clone)]
pub struct Frames {
    bytes: Vec<u8>,
    start: usize,
    frame_bytes: usize,
    stride: usize,
    mask: u64,
}

/// The frames as a value that a loop can keep in registers. Assembly in a loop, such as a store
/// past the cache, makes the compiler load again whatever is behind a reference: with these loads a
/// store of 64 bytes into the ring takes 3.9 ns instead of 3.4 ns (Zen 4).
#[derive(Debug, Clone, Copy)]
pub struct FramesView<'f> {
    bytes: &'f [u8],
    frame_bytes: usize,
    stride: usize,
    mask: u64,
}

impl Frames {
    /// Frames of `frame_bytes` bytes, `16..=9000`.
    #[must_use]
    pub fn new(frame_bytes: usize) -> Self {
        assert!((16..=9000).contains(&frame_bytes));
        let stride = frame_bytes.next_multiple_of(FRAME_ALIGNMENT);
        let most = (FRAMES_BYTES_MAX / stride).clamp(1, FRAMES_MAX);
        let count = 1 << most.ilog2();
        let mut bytes = vec![0; count * stride + FRAME_ALIGNMENT];
        let start = bytes.as_ptr().align_offset(FRAME_ALIGNMENT);
        for (number, frame) in bytes[start..]
            .chunks_exact_mut(stride)
            .take(count)
            .enumerate()
        {
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

    /// The frames as a value.
    #[must_use]
    #[inline(always)]
    pub fn view(&self) -> FramesView<'_> {
        FramesView {
            bytes: &self.bytes[self.start..],
            frame_bytes: self.frame_bytes,
            stride: self.stride,
            mask: self.mask,
        }
    }

    /// The frame of a producer's packet.
    #[must_use]
    #[inline(always)]
    pub fn get(&self, number: u64) -> &[u8] {
        self.view().get(number)
    }

    /// The frame of a producer's packet with the bytes after it, up to a multiple of 64. Starts on
    /// a multiple of 64.
    #[must_use]
    #[inline(always)]
    pub fn padded(&self, number: u64) -> &[u8] {
        self.view().padded(number)
    }
}

impl<'f> FramesView<'f> {
    /// As [`Frames::get`].
    #[must_use]
    #[inline(always)]
    pub fn get(self, number: u64) -> &'f [u8] {
        &self.padded(number)[..self.frame_bytes]
    }

    #[inline(always)]
    fn padded(self, number: u64) -> &'f [u8] {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "below the number of frames"
        )]
        let start = (number & self.mask) as usize * self.stride;
        &self.bytes[start..start + self.stride]
    }
}

/// Signals the threads of a run that the run was stopped.
#[derive(Debug)]
pub struct Course {
    stopped: AtomicBool,
    limit: Duration,
}

impl Course {
    /// Whether the run was stopped, or a thread of it failed. The caller must then return soon.
    #[must_use]
    pub fn stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed) // Relaxed: no other data depends on it
    }

    /// # Errors
    /// [`Failure::Wrong`] after the run was stopped.
    pub fn check(&self) -> Result<(), Failure> {
        if self.stopped() {
            return Err(Failure::deadline(self.limit.as_secs()));
        }
        Ok(())
    }
}

/// Runs producers and consumers, each on a separate thread ([`together`]). The clock runs from
/// before the first store to the last return of a consumer. A consumer must return as soon as it
/// has seen its last packet. The result is not checked yet.
///
/// A thread that waits for another thread must check the [`Course`], unless `stop` wakes the
/// waiting thread. `stop` is called when the run is stopped.
///
/// # Errors
/// The first [`Failure`] of a thread, including a panic and the limit of 20 seconds.
pub fn race<P, C>(
    load: &Load,
    stop: &dyn Fn(),
    producers: Vec<P>,
    consumers: Vec<C>,
) -> Result<Run, Failure>
where
    P: FnOnce(&Course) -> Result<(), Failure> + Send,
    C: FnOnce(&Course) -> Result<Tally, Failure> + Send,
{
    let threads = (producers.len(), consumers.len());
    assert_eq!(threads, (load.producers, load.consumers));
    let produce =
        |work: P| -> Work<'_, Tally> { Box::new(|course| work(course).map(|()| Tally::default())) };
    let consume = |work: C| -> Work<'_, Tally> { Box::new(work) };
    let works = producers.into_iter().map(produce);
    let legs = together(
        stop,
        works.chain(consumers.into_iter().map(consume)).collect(),
    )?;
    let (stored, read) = legs.split_at(load.producers);
    let (mut seen, mut reading_seconds) = (Tally::default(), 0.0);
    for Leg { value, cpu, .. } in read {
        reading_seconds += cpu.as_secs_f64();
        seen.packets += value.packets;
        seen.checksum = seen.checksum.wrapping_add(value.checksum);
    }
    let seconds = seconds(stored, read);
    Ok(Run {
        seconds,
        seen,
        reading_seconds,
    })
}

/// The work of one thread, boxed so that the threads of a run can have different works.
pub type Work<'w, T> = Box<dyn FnOnce(&Course) -> Result<T, Failure> + Send + 'w>;

/// The result of one thread, and its times.
#[derive(Debug, Clone, Copy)]
pub struct Leg<T> {
    /// The value that the thread returned.
    pub value: T,
    /// Time before the work.
    pub start: Instant,
    /// Time after the work.
    pub end: Instant,
    /// Processor time of the work.
    pub cpu: Duration,
}

/// Runs each work on a pinned thread. Threads have separate cores if there are enough cores. The
/// works start together when all threads are ready. Returns the results in the order of the works.
///
/// # Errors
/// The first [`Failure`], including a panic and the limit of 20 seconds. Then `stop` is called, and
/// this function waits for the other threads.
pub fn together<T: Send, W>(stop: &dyn Fn(), works: Vec<W>) -> Result<Vec<Leg<T>>, Failure>
where
    W: FnOnce(&Course) -> Result<T, Failure> + Send,
{
    within(LIMIT, stop, works)
}

fn within<T: Send, W>(
    limit: Duration,
    stop: &dyn Fn(),
    works: Vec<W>,
) -> Result<Vec<Leg<T>>, Failure>
where
    W: FnOnce(&Course) -> Result<T, Failure> + Send,
{
    let stopped = AtomicBool::new(false);
    let (course, barrier) = (&Course { stopped, limit }, &Barrier::new(works.len()));
    let mut legs: Vec<Option<Leg<T>>> = works.iter().map(|_| None).collect();
    let (ends, ended) = mpsc::channel();
    let mut failure = None;
    thread::scope(|scope| {
        for (index, work) in works.into_iter().enumerate() {
            let ends = ends.clone();
            scope.spawn(move || {
                pin::pin(index);
                barrier.wait();
                let (start, before) = (Instant::now(), cpu_time());
                let value = catch_unwind(AssertUnwindSafe(|| work(course)));
                let end = Instant::now();
                let cpu = cpu_time().saturating_sub(before);
                let value = value.map_err(Failure::panicked).flatten();
                let leg = |value| Leg {
                    value,
                    start,
                    end,
                    cpu,
                };
                let _ = ends.send((index, value.map(leg)));
            });
        }
        drop(ends);
        let begin = Instant::now();
        let mut give_up = |why: Failure| {
            failure.get_or_insert(why);
            if !course.stopped.swap(true, Ordering::Relaxed) {
                stop();
            }
        };
        loop {
            let left = limit.saturating_sub(begin.elapsed());
            let next = ended.recv_timeout(left).or_else(|error| {
                if error == mpsc::RecvTimeoutError::Timeout {
                    give_up(Failure::deadline(limit.as_secs()));
                }
                ended.recv()
            });
            match next {
                Ok((index, Ok(leg))) => legs[index] = Some(leg),
                Ok((_, Err(why))) => give_up(why),
                Err(_) => break,
            }
        }
    });
    match failure {
        Some(failure) => Err(failure),
        None => Ok(legs.into_iter().flatten().collect()),
    }
}

/// Time from the first start to the last end.
pub(crate) fn seconds<T>(from: &[Leg<T>], to: &[Leg<T>]) -> f64 {
    let start = from.iter().map(|leg| leg.start).min();
    let end = to.iter().map(|leg| leg.end).max();
    let time = end.zip(start).map(|(end, start)| end - start);
    time.unwrap_or_default().as_secs_f64()
}

/// Runs `work` on a separate thread that is pinned to one core. Returns its result and the seconds
/// that it took.
///
/// # Errors
/// [`Failure::Wrong`]: `work` panicked, or took longer than 20 seconds.
pub fn on_a_core<T: Send>(work: impl FnOnce() -> T + Send) -> Result<(T, f64), Failure> {
    let mut legs = together(&|| {}, vec![|_: &Course| Ok(work())])?;
    let Leg {
        value, start, end, ..
    } = legs.remove(0);
    Ok((value, (end - start).as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    type Producer = fn(&Course) -> Result<(), Failure>;
    type Consumer = fn(&Course) -> Result<Tally, Failure>;

    const WAITING: Consumer = |course| {
        loop {
            course.check()?;
        }
    };

    #[test]
    fn what_is_expected_is_what_somebody_sees_who_looks_at_each() {
        for (producers, packets) in [(1, 0), (1, 1), (1, 1000), (2, 1001), (3, 2)] {
            let load = Load::pairs(64, packets, producers);
            let mut seen = Tally::default();
            for producer in 0..producers {
                (0..load.packets_of(producer)).for_each(|n| seen.add(load.time(producer, n), 64));
            }
            assert_eq!(seen, load.expected(), "{load:?}");
        }
    }

    #[test]
    fn frames_differ_and_are_aligned() {
        for bytes in [16, 60, 64, 590, 1514, 9000] {
            let frames = Frames::new(bytes);
            for number in 0..100 {
                assert_eq!(frames.get(number).len(), bytes);
                assert_eq!(frames.padded(number).as_ptr().align_offset(64), 0);
                assert_eq!(&frames.padded(number)[..bytes], frames.get(number));
            }
            assert!(frames.bytes.len() <= FRAMES_BYTES_MAX + FRAME_ALIGNMENT);
        }
        assert_ne!(Frames::new(64).get(0), Frames::new(64).get(63));
    }

    #[test]
    fn tallies_add_up_and_a_lost_packet_is_noticed() {
        let load = Load::pairs(64, 10, 2);
        let consumer: Consumer = |_| {
            Ok(Tally {
                packets: 5,
                checksum: 7,
            })
        };
        let producers = vec![(|_| Ok(())) as Producer; 2];
        let run = race(&load, &|| {}, producers, vec![consumer; 2]).unwrap();
        assert_eq!(
            run.seen,
            Tally {
                packets: 10,
                checksum: 14
            }
        );
        assert!(matches!(run.check(&load), Err(Failure::Wrong(_))));
        let lost = run.check(&Load::pairs(64, 11, 2));
        assert_eq!(
            lost,
            Err(Failure::Count {
                expected: 11,
                seen: 10
            })
        );
    }

    #[test]
    fn a_run_that_hangs_is_given_up() {
        let run = within(Duration::from_millis(20), &|| {}, vec![WAITING]);
        assert_eq!(run.map(|_| ()), Err(Failure::deadline(0)));
    }

    #[test]
    fn a_thread_that_fails_ends_the_others() {
        let load = Load::pairs(64, 10, 1);
        let producer: Producer = |_| {
            Err(Failure::Count {
                expected: 1,
                seen: 0,
            })
        };
        let run = race(&load, &|| {}, vec![producer], vec![WAITING]);
        assert_eq!(
            run,
            Err(Failure::Count {
                expected: 1,
                seen: 0
            })
        );
        let producer: Producer = |_| panic!("on purpose");
        let run = race(&load, &|| {}, vec![producer], vec![WAITING]);
        assert_eq!(run, Err(Failure::panicked(())));
    }
}
