//! A peer used naively: one operation a packet.
//!
//! Either the packet itself is the item and is copied into the queue's slot ([`copied`]), or it lies in memory of its own
//! from `malloc`, which the consumer frees, and the item is the pointer ([`boxed`]). Both are what one writes first.
//!
//! The queue has room for [`SLOTS`] packets and no more, so unlike the ring it retains nothing: its memory stays in the
//! caches. That flatters these rows.

use super::header::Header;
use super::lanes::{Lanes, send};
use super::queue::{Ends, Engine, Receiver, Refusal, Sender, Shape};
use crate::contest::{Failure, Frames, Load, Run, Tally};
use crate::race::{Course, race};

/// Packets in flight at most, for each queue.
pub const SLOTS: usize = 4096;

/// A packet and its header in a slot of fixed size: queues of slots take one size only.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Slot<const BYTES: usize> {
    header: Header,
    packet: [u8; BYTES],
}

/// How a packet becomes an item, and back.
trait Item: Send {
    fn new(header: Header, packet: &[u8]) -> Self;
    fn parts(&self) -> (Header, &[u8]);
}

impl<const BYTES: usize> Item for Slot<BYTES> {
    #[inline]
    fn new(header: Header, packet: &[u8]) -> Self {
        let mut slot = Self {
            header,
            packet: [0; BYTES],
        };
        slot.packet.copy_from_slice(packet);
        slot
    }

    #[inline]
    fn parts(&self) -> (Header, &[u8]) {
        (self.header, &self.packet)
    }
}

impl<const BYTES: usize> Item for Box<Slot<BYTES>> {
    #[inline]
    fn new(header: Header, packet: &[u8]) -> Self {
        Self::new(Slot::new(header, packet))
    }

    #[inline]
    fn parts(&self) -> (Header, &[u8]) {
        (self.header, &self.packet)
    }
}

/// Calls `$run::<…>` with the slot for packets of `$bytes`: the sizes of the thesis's figures.
macro_rules! with_slot {
    ($bytes:expr, $slot:ident, $run:expr) => {
        with_slot!(@ $bytes, $slot, $run, 64, 128, 256, 512, 1024, 1514)
    };
    (@ $bytes:expr, $slot:ident, $run:expr, $($size:literal),+) => {
        match $bytes {
            $($size => {
                type $slot = Slot<$size>;
                $run
            })+
            bytes => Err(Refusal::Slot { bytes }.into()),
        }
    };
}

/// Carries `load` with the packets copied into the slots of the queue.
///
/// # Errors
/// [`Failure`]: the peer has no such mode, no slot has this size, or the run was given up.
pub fn copied<E: Engine>(engine: E, load: &Load) -> Result<Run, Failure> {
    with_slot!(
        load.packet_bytes,
        ThisSlot,
        run::<E, ThisSlot>(engine, load)
    )
}

/// Carries `load` with a `malloc` and a `free` for each packet.
///
/// # Errors
/// As [`copied`].
pub fn boxed<E: Engine>(engine: E, load: &Load) -> Result<Run, Failure> {
    with_slot!(
        load.packet_bytes,
        ThisSlot,
        run::<E, Box<ThisSlot>>(engine, load)
    )
}

fn run<E: Engine, I: Item>(engine: E, load: &Load) -> Result<Run, Failure> {
    let shape = Shape {
        producers: load.producers,
        consumers: load.consumers,
        capacity: SLOTS,
    };
    let Ends {
        mut senders,
        mut receivers,
    } = engine.open::<I>(shape)?;
    let (lanes, frames) = (&Lanes::new(load.producers), &Frames::new(load.packet_bytes));
    let item = |producer, number| {
        let packet = frames.get(number);
        I::new(
            Header::whole(load.time(producer, number), packet.len()),
            packet,
        )
    };
    touch(&mut senders, &mut receivers, || item(0, 0));
    let producers = senders
        .into_iter()
        .enumerate()
        .map(|(producer, mut sender)| {
            move |course: &Course| {
                for number in 0..load.packets_of(producer) {
                    send(course, &mut sender, item(producer, number))?;
                }
                lanes.done();
                Ok(())
            }
        });
    let consumers = receivers.into_iter().map(|mut receiver| {
        move |course: &Course| {
            let mut tally = Tally::default();
            lanes.receive_all(course, &mut receiver, |item: I| {
                let (header, packet) = item.parts();
                tally.add(header.time_ns, header.captured as usize);
                if load.touch_payload {
                    tally.touch(packet);
                }
            })?;
            Ok(tally)
        }
    });
    race(load, &|| {}, producers.collect(), consumers.collect())
}

/// Sends and receives once round the queue, so that no page of it is touched first while time is taken.
fn touch<I: Item>(
    senders: &mut [impl Sender<I>],
    receivers: &mut [impl Receiver<I>],
    item: impl Fn() -> I,
) {
    for sender in senders {
        for _ in 0..SLOTS {
            if sender.try_send(item()).is_err() {
                break;
            }
        }
        for receiver in &mut *receivers {
            while receiver.try_receive().is_some() {}
        }
    }
}
