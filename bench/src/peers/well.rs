//! Drives a peer well: the queue carries buffers of 64 packets that cycle through the whole region.
//! [`Way::OneByOne`] has buffers of one packet. [`Way::Reused`] and [`carry_due`] use only the
//! start of a large region.
//!
//! The region is divided into buffers, and each producer owns an equal run of buffers. The producer
//! fills its buffers cyclically in order, so that the region always contains the latest packets, as
//! our ring does. In a buffer, records follow each other, each a descriptor of 16 bytes and the
//! packet. The queue carries [`FilledBuffer`] tokens. The consumer reads every descriptor of a
//! buffer and marks the buffer free. The producer waits until the next buffer in its order is free.
//! So no second queue for the way back is needed, a consumer that was preempted keeps its buffer,
//! and the cost of the queue is paid once for 64 packets.
//!
//! The queue has room for at least a quarter of the buffers. Measured with rtrb at 64 bytes, a
//! longer queue is faster. With room for 64 buffers, an interrupted side soon stops the other side,
//! and the lines of a just filled buffer must be fetched from the other core's cache. Sending
//! several buffers with one operation made no difference beyond noise, so each buffer is sent as
//! soon as it is full.
#![expect(
    unsafe_code,
    reason = "producers and consumers use parts of one region, one at a time, by token"
)]

use std::{
    marker::PhantomData,
    ops::Range,
    sync::atomic::{AtomicU8, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use super::{Peer, Receiver, Sender, Way};
use crate::{
    contest::{Course, Frames, Load, Run, Tally, race},
    latency::{Consumer, LatencyFigures, Pace},
    limits::{DESCRIPTOR_BYTES, describe},
    measure::Failure,
    memory::Memory,
};

/// How long a producer waits after it finds the queue full or its next buffer in use, and, except
/// in [`carry_due`], a consumer after it finds the queue empty.
///
/// Every poll of an empty queue takes the producer's cache line, which the producer must fetch back
/// before it can send the next item. A consumer that is faster and polls all the time therefore
/// slows the producer and itself. The figures are from two cores of an EPYC guest, 64 bytes, driven
/// as here. Immediate polling left rte_ring and ReaderWriterQueue 20 to 60 of the 220 Mpps that
/// they reach with pauses. With pauses, rtrb reaches 248 Mpps with 10 µs and 256 Mpps with 20 µs;
/// 40 µs cost a fifth.
const PAUSE: Duration = Duration::from_micros(20);
/// For [`Way::Reused`]: a producer fills all its buffers in 4 µs and then waits for the consumer.
/// Measured as for [`PAUSE`]: rtrb, rte_ring and ConcurrentQueue reach 111 to 121 Mpps with 1 µs,
/// 70 to 148 with 2 µs, and 34 to 43 with 0.1 to 0.5 µs. After 20 µs, only the pause is measured.
const PAUSE_REUSED: Duration = Duration::from_micros(1);
/// Pauses before the first pause that also yields: with more threads than CPUs, the other side may
/// need this CPU.
const PAUSES: u32 = 4;

/// Maximum packets of a buffer.
pub(super) const PACKETS: u8 = 64;
/// Minimum number of buffers for each producer: one being filled, one being read, two in between.
const BUFFERS_LEAST: usize = 4;
const FREE: u8 = 0;
/// Buffers of each producer if the buffers are reused while they are in the cache.
const BUFFERS_REUSED: usize = 16;
/// Maximum bytes of buffers in [`carry_due`]. A queue of single packets then has room for 13 ms at
/// 10 million packets a second. So a consumer that loses its processor for some milliseconds does
/// not stop the producer.
const DUE_BYTES: usize = 64 << 20;

/// The right to read one buffer, and the duty to free the buffer. Eight bytes, which every queue
/// can carry like a pointer: the index of a buffer or, in `each.rs`, the address of an allocation.
#[derive(Debug)]
pub(super) struct FilledBuffer(pub(super) usize);

/// # Errors
/// [`Failure::CannotRun`] unless each producer has a consumer.
pub(super) fn in_pairs(load: &Load) -> Result<(), Failure> {
    if load.producers == load.consumers {
        return Ok(());
    }
    let why = "the other queues run with as many consumers as producers";
    Err(Failure::CannotRun(why.to_owned()))
}

/// The buffers of one run, in borrowed memory.
///
/// A buffer is either free (only its producer may fill it) or has packets (the owner of its
/// [`FilledBuffer`] may read it). The producer makes a token after it filled the buffer. A token
/// cannot be copied, and ends when the buffer is freed. The queue orders filling before reading.
#[derive(Debug)]
struct Buffers<'m> {
    start: *mut u8,
    buffer_bytes: usize,
    /// Packets of a full buffer.
    packets_max: u8,
    /// For each buffer, [`FREE`] or its number of packets.
    packets: Box<[AtomicU8]>,
    memory: PhantomData<&'m mut [u8]>,
}

// SAFETY: this value alone borrows the bytes at `start` for `'m`, and one thread at a time accesses
// each buffer, as the type's documentation says.
unsafe impl Send for Buffers<'_> {}
// SAFETY: one thread at a time accesses each buffer, as the type's documentation says.
unsafe impl Sync for Buffers<'_> {}

impl<'m> Buffers<'m> {
    fn new(
        memory: &'m mut [u8],
        packets_max: u8,
        record_bytes: usize,
        producers: usize,
    ) -> Result<Self, Failure> {
        // Whole cache lines, so that neighbors share no line.
        let buffer_bytes = (usize::from(packets_max) * record_bytes).next_multiple_of(64);
        let count = memory.len() / buffer_bytes;
        if count < BUFFERS_LEAST * producers {
            let bytes = memory.len();
            let why =
                format!("{bytes} bytes give {count} buffers of {packets_max} packets: too few");
            return Err(Failure::CannotRun(why));
        }
        Ok(Self {
            start: memory.as_mut_ptr(),
            buffer_bytes,
            packets_max,
            packets: (0..count).map(|_| AtomicU8::new(FREE)).collect(),
            memory: PhantomData,
        })
    }

    /// The bytes of buffer `index`.
    ///
    /// # Safety
    /// The caller has the only right to the buffer while the slice lives: it is the buffer's
    /// producer and saw it free, or owns its [`FilledBuffer`].
    #[inline]
    #[expect(clippy::mut_from_ref, reason = "the tokens say who may have it")]
    unsafe fn bytes(&self, index: usize) -> &mut [u8] {
        assert!(index < self.packets.len());
        // SAFETY: in bounds of the borrowed region, as `index` is below the number of buffers.
        let start = unsafe { self.start.add(index * self.buffer_bytes) };
        // SAFETY: the buffer is in bounds of the region. Its bytes are initialized, as the region
        // came from a slice, and nobody else accesses them, as the caller promises.
        unsafe { std::slice::from_raw_parts_mut(start, self.buffer_bytes) }
    }
}

/// Carries `load` in buffers in `memory`.
///
/// # Errors
/// [`Failure`], and [`Failure::CannotRun`] unless each producer has a consumer.
pub(super) fn run(
    peer: impl Peer,
    way: Way,
    load: &Load,
    memory: &mut Memory,
) -> Result<Run, Failure> {
    in_pairs(load)?;
    let record_bytes = DESCRIPTOR_BYTES + load.packet_bytes;
    let packets_max = packets_max(way);
    let mut memory = memory.bytes_mut();
    if way == Way::Reused {
        let bytes = BUFFERS_REUSED * load.producers * usize::from(PACKETS) * record_bytes;
        let end = memory.len().min(bytes.next_multiple_of(64));
        memory = &mut memory[..end];
    }
    let buffers = &Buffers::new(memory, packets_max, record_bytes, load.producers)?;
    let count = buffers.packets.len();
    let (senders, receivers) = peer.open(load.producers, count.div_ceil(4))?;
    let frames = &Frames::new(load.packet_bytes);
    let share = count / load.producers;
    let sending = &AtomicUsize::new(load.producers);
    let producers = senders.into_iter().enumerate().map(|(producer, sender)| {
        move |course: &Course| {
            let own = producer * share..(producer + 1) * share;
            let polling = Polling::new(course, way);
            produce(polling, load, producer, frames, buffers, own, sender)?;
            // D1: Release, pairs with D2 in `receive_all`: a consumer that sees the last producer
            // finished sees all tokens.
            sending.fetch_sub(1, Ordering::Release);
            Ok(())
        }
    });
    let consumers = receivers.into_iter().map(|receiver| {
        move |course: &Course| {
            let take = |full, seen: &mut Tally| {
                consume(record_bytes, buffers, full, |record| add(record, seen));
            };
            receive_all(Polling::new(course, way), receiver, sending, take)
        }
    });
    race(load, &|| {}, producers.collect(), consumers.collect())
}

/// Packets of a full buffer.
fn packets_max(way: Way) -> u8 {
    match way {
        Way::OneByOne => 1,
        _ => PACKETS,
    }
}

/// Carries packets as they become due, from one producer to one consumer, in at most
/// [`DUE_BYTES`] of the memory. The producer sends a buffer when it is full, and when no further
/// packet is due. The consumer polls without pauses.
///
/// # Errors
/// [`Failure`].
pub(super) fn carry_due(
    peer: impl Peer,
    way: Way,
    pace: &Pace,
    memory: &mut Memory,
) -> Result<LatencyFigures, Failure> {
    let record_bytes = DESCRIPTOR_BYTES + pace.packet_bytes;
    let end = memory.len().min(DUE_BYTES);
    let memory = &mut memory.bytes_mut()[..end];
    let buffers = &Buffers::new(memory, packets_max(way), record_bytes, 1)?;
    let count = buffers.packets.len();
    let (senders, receivers) = peer.open(1, count.div_ceil(4))?;
    let ends = senders.into_iter().zip(receivers).next();
    let no_ends = || Failure::system("opening the queue", "no ends");
    let (mut sender, mut receiver) = ends.ok_or_else(no_ends)?;
    let frames = &Frames::new(pace.packet_bytes);
    let sending = |course: &Course| {
        let (polling, mut indexes) = (Polling::new(course, way), (0..count).cycle());
        pace.send(|mut numbers, time_ns| {
            while !numbers.is_empty() {
                let index = indexes.next().unwrap_or_default();
                let last = numbers.start + u64::from(buffers.packets_max);
                let filled = numbers.start..numbers.end.min(last);
                numbers.start = filled.end;
                let fill = |buffer: &mut [u8]| {
                    fill(buffer, pace.packet_bytes, frames, filled, |_| time_ns)
                };
                pass(polling, buffers, index, &mut sender, fill)?;
            }
            Ok(())
        })
    };
    let take = |consumer: &mut Consumer| {
        let Some(full) = receiver() else {
            std::hint::spin_loop();
            return Ok(false);
        };
        consumer.look();
        consume(record_bytes, buffers, full, |record| {
            if let Some((time_ns, _)) = described(record) {
                consumer.see(time_ns);
            }
        });
        Ok(true)
    };
    pace.run(&|| {}, sending, take)
}

/// Stores the packets of one producer, buffer by buffer, in the order of its buffers.
fn produce(
    polling: Polling<'_>,
    load: &Load,
    producer: usize,
    frames: &Frames,
    buffers: &Buffers<'_>,
    own: Range<usize>,
    mut sender: impl Sender,
) -> Result<(), Failure> {
    let (mut number, end) = (0, load.packets_of(producer));
    for index in own.cycle() {
        if number == end {
            break;
        }
        let filled = number..end.min(number + u64::from(buffers.packets_max));
        number = filled.end;
        let (load, bytes) = (*load, load.packet_bytes);
        let time = move |number| load.time(producer, number);
        let fill = |buffer: &mut [u8]| fill(buffer, bytes, frames, filled, time);
        pass(polling, buffers, index, &mut sender, fill)?;
    }
    Ok(())
}

/// Waits until the buffer `index` of this producer is free, fills it, and sends its token. `fill`
/// returns the number of packets.
#[inline(always)]
fn pass(
    polling: Polling<'_>,
    buffers: &Buffers<'_>,
    index: usize,
    sender: &mut impl Sender,
    fill: impl FnOnce(&mut [u8]) -> u8,
) -> Result<(), Failure> {
    let mut waiting = polling;
    // B2: Acquire, pairs with B1 in `consume`: reading is finished before the buffer is
    // overwritten.
    while buffers.packets[index].load(Ordering::Acquire) != FREE {
        waiting.pause()?;
    }
    // SAFETY: the buffer is in this producer's run and free, and the token is made after the slice
    // is gone.
    let packets = fill(unsafe { buffers.bytes(index) });
    // Relaxed: the queue orders this before the buffer is read.
    buffers.packets[index].store(packets, Ordering::Relaxed);
    send(polling, sender, FilledBuffer(index))
}

/// Sends a token. Waits while the queue is full, until the run is stopped.
#[inline]
pub(super) fn send(
    mut polling: Polling<'_>,
    sender: &mut impl Sender,
    full: FilledBuffer,
) -> Result<(), Failure> {
    let Err(mut full) = sender(full) else {
        return Ok(());
    };
    loop {
        polling.pause()?;
        match sender(full) {
            Ok(()) => return Ok(()),
            Err(back) => full = back,
        }
    }
}

/// Receives tokens for `take` until the queue is empty and `sending`, the number of producers that
/// have not finished, is 0.
#[inline]
pub(super) fn receive_all(
    polling: Polling<'_>,
    mut receiver: impl Receiver,
    sending: &AtomicUsize,
    mut take: impl FnMut(FilledBuffer, &mut Tally),
) -> Result<Tally, Failure> {
    let (mut seen, mut waiting) = (Tally::default(), polling);
    loop {
        // D2: Acquire, before a receive that may find nothing.
        let last = sending.load(Ordering::Acquire) == 0;
        match receiver() {
            Some(full) => {
                take(full, &mut seen);
                waiting = polling;
            }
            None if last => return Ok(seen),
            None => waiting.pause()?,
        }
    }
}

/// How a thread waits before the next poll of the queue or of a buffer. A copy for each wait.
#[derive(Debug, Clone, Copy)]
pub(super) struct Polling<'c> {
    course: &'c Course,
    period: Duration,
    pauses: u32,
}

impl<'c> Polling<'c> {
    pub(super) fn new(course: &'c Course, way: Way) -> Self {
        let period = match way {
            Way::Reused => PAUSE_REUSED,
            Way::Well | Way::OneByOne | Way::Malloc => PAUSE,
        };
        Self {
            course,
            period,
            pauses: 0,
        }
    }

    /// Waits before the next poll.
    ///
    /// # Errors
    /// The run was stopped.
    #[cold]
    fn pause(&mut self) -> Result<(), Failure> {
        self.course.check()?;
        self.pauses += 1;
        if self.pauses > PAUSES {
            thread::yield_now();
        }
        let start = Instant::now();
        while start.elapsed() < self.period {
            std::hint::spin_loop();
        }
        Ok(())
    }
}

/// Fills a buffer with packets, and returns their number. `time`: the stamp of a packet.
///
/// Not inlined: as an argument the buffer is known not to overlap other data, so that the values
/// read for each packet stay in registers.
#[inline(never)]
fn fill(
    buffer: &mut [u8],
    packet_bytes: usize,
    frames: &Frames,
    numbers: Range<u64>,
    time: impl Fn(u64) -> u64,
) -> u8 {
    let records = buffer.chunks_exact_mut(DESCRIPTOR_BYTES + packet_bytes);
    let mut packets = 0;
    for (record, number) in records.zip(numbers) {
        let descriptor = describe(time(number), packet_bytes);
        let (front, back) = record.split_at_mut(DESCRIPTOR_BYTES);
        front.copy_from_slice(&descriptor);
        back.copy_from_slice(frames.get(number));
        packets += 1;
    }
    packets
}

/// Stamp and captured length in the descriptor of a record.
#[inline(always)]
fn described(record: &[u8]) -> Option<(u64, u32)> {
    let fields = u128::from_le_bytes(*record.first_chunk()?);
    #[expect(clippy::cast_possible_truncation, reason = "cuts fields out")]
    let fields = (fields as u64, (fields >> 64) as u32);
    Some(fields)
}

/// Counts a record by its descriptor.
#[inline(always)]
pub(super) fn add(record: &[u8], seen: &mut Tally) {
    if let Some((time, captured)) = described(record) {
        seen.add(time, captured as usize);
    }
}

/// Shows every record of a buffer to `see`, and frees the buffer.
#[inline(always)]
fn consume(
    record_bytes: usize,
    buffers: &Buffers<'_>,
    FilledBuffer(index): FilledBuffer,
    mut see: impl FnMut(&[u8]),
) {
    // Relaxed: the queue has ordered the producer's store before this.
    let packets = buffers.packets[index].load(Ordering::Relaxed);
    // SAFETY: this is the token of the buffer, and the buffer is freed after the slice is gone.
    let bytes = unsafe { buffers.bytes(index) };
    for record in bytes.chunks_exact(record_bytes).take(usize::from(packets)) {
        see(record);
    }
    // B1: Release, pairs with B2 in `pass`.
    buffers.packets[index].store(FREE, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_hold_descriptors_and_packets() {
        let load = Load::pairs(100, 70, 1);
        let frames = Frames::new(100);
        let mut memory = Memory::new(1).unwrap();
        let buffer = &mut memory.bytes_mut()[..64 * 116];
        for (numbers, count) in [(0..64, 64), (64..70, 6)] {
            let time = |number| load.time(0, number);
            assert_eq!(fill(buffer, 100, &frames, numbers.clone(), time), count);
            for (record, number) in buffer.chunks_exact(116).zip(numbers).take(count.into()) {
                assert_eq!(record[..16], describe(number, 100));
                assert_eq!(&record[16..], frames.get(number));
            }
        }
    }

    #[test]
    fn a_region_too_small_is_told() {
        assert!(Buffers::new(&mut [0; 4 * 64], PACKETS, 1, 1).is_ok());
        let mut short = [0; 3 * 64];
        let refused = Buffers::new(&mut short, PACKETS, 1, 1);
        assert!(matches!(refused, Err(Failure::CannotRun(_))));
    }
}
