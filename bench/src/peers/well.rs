//! A peer used well: the queue carries buffers of 64 packets that cycle through the whole region.
//!
//! A producer fills a buffer with record after record, each a header of 16 bytes and the packet, as one would write them
//! into any memory, and sends it. The consumer reads every header of the buffer and passes it back. So the cost of the queue
//! is paid once for 64 packets, which is how these queues are meant to be used, and what remains is the price of storing.
//!
//! The queue may hold a quarter of the buffers. Measured with rtrb at 64 bytes, a longer queue is a faster one: with room
//! for 64 buffers a side that was interrupted soon stops the other, and the lines of a buffer that was just filled have to be
//! fetched out of the other core's cache. Sending several buffers with one operation made no difference that could be told
//! from noise, so each is sent as soon as it is full.

use std::ops::Range;

use super::buffers::{Buffers, Full, PACKETS, Turn};
use super::header::{HEADER_BYTES, Header};
use super::lanes::{Lanes, send, until};
use super::queue::{Ends, Engine, Receiver, Sender, Shape};
use crate::contest::{Failure, Frames, Load, Run, Tally};
use crate::limits::stream;
use crate::memory::Memory;
use crate::race::{Course, race};

/// How a record, a header and a packet, gets into a buffer.
pub trait Insert: Copy + Send + Sync {
    /// Bytes from one record to the next.
    fn record_bytes(self, packet_bytes: usize) -> usize;

    /// Fills `record`, as long as said above, with `header` and the frame of this number. Called for record after record in the
    /// order of their addresses.
    fn insert(self, record: &mut [u8], header: Header, frames: &Frames, number: u64);

    /// Called before a buffer is sent: then whoever receives it sees what was inserted.
    fn finish(self);
}

/// Regular stores, `memcpy` for the packet.
#[derive(Clone, Copy, Debug)]
pub struct Copying;

impl Insert for Copying {
    fn record_bytes(self, packet_bytes: usize) -> usize {
        HEADER_BYTES + packet_bytes
    }

    #[inline]
    fn insert(self, record: &mut [u8], header: Header, frames: &Frames, number: u64) {
        let (front, back) = record.split_at_mut(HEADER_BYTES);
        front.copy_from_slice(&header.to_bytes());
        back.copy_from_slice(frames.get(number));
    }

    fn finish(self) {}
}

/// Non-temporal stores straight to their place, as the raw insert of [`limits`](crate::limits) does it: with a peer that is
/// as good as a queue can be, it tells how much of our ring's lead is due to the stores alone.
#[derive(Clone, Copy, Debug)]
pub struct Streaming;

impl Insert for Streaming {
    fn record_bytes(self, packet_bytes: usize) -> usize {
        HEADER_BYTES + packet_bytes.next_multiple_of(stream::UNIT_BYTES)
    }

    #[inline]
    fn insert(self, record: &mut [u8], header: Header, frames: &Frames, number: u64) {
        let (front, back) = stream::units(record).split_at_mut(HEADER_BYTES / stream::UNIT_BYTES);
        stream::copy(front, &header.to_bytes());
        stream::copy(back, frames.padded(number));
    }

    fn finish(self) {
        stream::fence();
    }
}

/// Carries `load` in buffers that lie in `memory`.
///
/// # Errors
/// [`Failure`]: the peer has no such mode, memory is too small, or the run was given up.
pub fn run<E: Engine>(
    engine: E,
    insert: impl Insert,
    load: &Load,
    memory: &mut Memory,
) -> Result<Run, Failure> {
    let record_bytes = insert.record_bytes(load.packet_bytes);
    let mut buffers = Buffers::new(memory.bytes_mut(), record_bytes, load.producers)?;
    let (buffers, turns) = buffers.turns(load.producers);
    let capacity = buffers.count().div_ceil(4);
    let shape = Shape {
        producers: load.producers,
        consumers: load.consumers,
        capacity,
    };
    let Ends { senders, receivers } = engine.open(shape)?;
    let (lanes, frames) = (&Lanes::new(load.producers), &Frames::new(load.packet_bytes));
    let producers = turns
        .into_iter()
        .zip(senders)
        .enumerate()
        .map(|(number, (turn, sender))| {
            move |course: &Course| {
                produce(course, load, number, frames, turn, sender, insert)?;
                lanes.done();
                Ok(())
            }
        });
    let consumers = receivers.into_iter().map(|receiver| {
        move |course: &Course| consume(course, load, record_bytes, lanes, buffers, receiver)
    });
    race(load, &|| {}, producers.collect(), consumers.collect())
}

/// Stores the packets of one producer, buffer by buffer.
fn produce(
    course: &Course,
    load: &Load,
    producer: usize,
    frames: &Frames,
    mut turn: Turn<'_>,
    mut sender: impl Sender<Full>,
    insert: impl Insert,
) -> Result<(), Failure> {
    let (mut number, end) = (0, load.packets_of(producer));
    while number < end {
        let mut empty = until(course, || turn.take())?;
        let packets = fill(empty.bytes(), insert, load, producer, frames, number..end);
        insert.finish();
        send(course, &mut sender, empty.seal(packets))?;
        number += packets;
    }
    Ok(())
}

/// Fills a buffer with the next packets of a producer, and returns how many.
///
/// Not inlined: as an argument the buffer is known to overlap nothing, so that what is read for each packet stays in registers.
#[inline(never)]
fn fill(
    buffer: &mut [u8],
    insert: impl Insert,
    load: &Load,
    producer: usize,
    frames: &Frames,
    numbers: Range<u64>,
) -> u64 {
    let records = buffer
        .chunks_exact_mut(insert.record_bytes(load.packet_bytes))
        .take(PACKETS);
    let first = numbers.start;
    let mut next = first;
    for (record, number) in records.zip(numbers) {
        let header = Header::whole(load.time(producer, number), load.packet_bytes);
        insert.insert(record, header, frames, number);
        next = number + 1;
    }
    next - first
}

/// Reads every header of every buffer that comes.
fn consume(
    course: &Course,
    load: &Load,
    record_bytes: usize,
    lanes: &Lanes,
    buffers: &Buffers<'_>,
    mut receiver: impl Receiver<Full>,
) -> Result<Tally, Failure> {
    let mut tally = Tally::default();
    lanes.receive_all(course, &mut receiver, |full| {
        let (packets, bytes) = buffers.packets(&full);
        for record in bytes.chunks_exact(record_bytes).take(packets) {
            let Some((header, packet)) = record.split_first_chunk() else {
                continue;
            };
            let header = Header::from_bytes(*header);
            tally.add(header.time_ns, header.captured as usize);
            if load.touch_payload {
                tally.touch(packet);
            }
        }
        buffers.pass(full);
    })?;
    Ok(tally)
}
