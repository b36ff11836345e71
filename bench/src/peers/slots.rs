//! A peer used naively: one operation a packet of 64 bytes.
//!
//! Either the packet itself is the item and is copied into the queue's slot, or it lies in memory of its own from `malloc`, which
//! the consumer frees, and the item is the pointer. Both are what one writes first.
//!
//! The queue has room for [`SLOTS`] packets and no more, so unlike the ring it retains nothing: its memory stays in the
//! caches. That flatters these rows.

use std::borrow::Borrow;

use super::{Peer, Shape, carry, see, send};
use crate::{
    contest::{Frames, Load, Run},
    limits::{DESCRIPTOR_BYTES, describe},
    measure::Failure,
};

/// Packets in flight at most, for each queue.
const SLOTS: usize = 4096;
/// Bytes of a packet.
pub(crate) const SLOT_BYTES: usize = 64;

/// A packet behind its descriptor.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(super) struct Slot([u8; DESCRIPTOR_BYTES + SLOT_BYTES]);

impl Slot {
    #[inline]
    fn new(time: u64, packet: &[u8]) -> Self {
        let mut slot = Self([0; DESCRIPTOR_BYTES + SLOT_BYTES]);
        let (descriptor, place) = slot.0.split_at_mut(DESCRIPTOR_BYTES);
        descriptor.copy_from_slice(&describe(time, packet.len()));
        place.copy_from_slice(packet);
        slot
    }
}

/// Carries a load of [`SLOT_BYTES`].
pub(super) fn run<I: From<Slot> + Borrow<Slot> + Send>(
    peer: impl Peer,
    load: &Load,
) -> Result<Run, Failure> {
    if load.packet_bytes != SLOT_BYTES {
        let why = format!("slots are for packets of {SLOT_BYTES} bytes");
        return Err(Failure::CannotRun(why));
    }
    let (mut senders, mut receivers) = peer.open(Shape::of(load, SLOTS))?;
    let frames = Frames::new(SLOT_BYTES);
    let item =
        |producer, number| I::from(Slot::new(load.time(producer, number), frames.get(number)));
    // Once round the queue, so that no page of it is touched first while time is taken.
    for sender in &mut senders {
        let sent = (0..SLOTS).take_while(|_| sender(item(0, 0)).is_ok());
        sent.for_each(drop);
        for receiver in &mut receivers {
            while receiver().is_some() {}
        }
    }
    carry(
        load,
        (senders, receivers),
        |course, producer, mut sender| {
            let mut numbers = 0..load.packets_of(producer);
            numbers.try_for_each(|number| send(course, &mut sender, item(producer, number)))
        },
        |seen, item: I| {
            if let Some(descriptor) = item.borrow().0.first_chunk() {
                see(seen, *descriptor);
            }
        },
    )
}
