//! The peers from crates: rtrb, crossbeam's `ArrayQueue` and channel. All are bounded, so that
//! memory is sized once, as in the ring.

use std::sync::Arc;

use crossbeam_queue::ArrayQueue;

use super::{Opened, Peer, Receiver, Sender};

/// [rtrb](https://docs.rs/rtrb): one producer, one consumer, wait-free. Each side keeps a copy of
/// the other side's index.
#[derive(Clone, Copy)]
pub(super) struct Rtrb;

impl Peer for Rtrb {
    fn open(self, pairs: usize, capacity: usize) -> Opened<impl Sender, impl Receiver> {
        let ends = |_| {
            let (mut sender, mut receiver) = rtrb::RingBuffer::new(capacity);
            let send = move |item| {
                sender
                    .push(item)
                    .map_err(|rtrb::PushError::Full(item)| item)
            };
            (send, move || receiver.pop().ok())
        };
        Ok((0..pairs).map(ends).unzip())
    }
}

/// crossbeam's [`ArrayQueue`](https://docs.rs/crossbeam-queue): many producers, many consumers, a
/// stamp in each slot.
#[derive(Clone, Copy)]
pub(super) struct Array;

impl Peer for Array {
    fn open(self, pairs: usize, capacity: usize) -> Opened<impl Sender, impl Receiver> {
        let queue = Arc::new(ArrayQueue::new(capacity));
        let sender = Arc::clone(&queue);
        let send = move |item| sender.push(item);
        let receive = move || queue.pop();
        Ok((vec![send; pairs], vec![receive; pairs]))
    }
}

/// [crossbeam-channel](https://docs.rs/crossbeam-channel), bounded: an array like that of
/// `ArrayQueue`, with sleeping and closing added.
#[derive(Clone, Copy)]
pub(super) struct Channel;

impl Peer for Channel {
    fn open(self, pairs: usize, capacity: usize) -> Opened<impl Sender, impl Receiver> {
        let (sender, receiver) = crossbeam_channel::bounded(capacity);
        let send = move |item| sender.try_send(item).map_err(|error| error.into_inner());
        let receive = move || receiver.try_recv().ok();
        Ok((vec![send; pairs], vec![receive; pairs]))
    }
}
