//! The peers that come as crates: rtrb, crossbeam's `ArrayQueue` and channel. All are bounded, so that memory is sized once as the
//! ring's is.

use std::sync::Arc;

use crossbeam_queue::ArrayQueue;

use super::{Full, Opened, Receiver, Sender, Shape, Slot, Style, peer};
use crate::contest::Contest;

pub(super) fn all(style: Style) -> Vec<(&'static str, Box<dyn Contest>)> {
    vec![
        (
            "rtrb",
            peer(style, rtrb::<Full>, rtrb::<Slot>, rtrb::<Box<Slot>>),
        ),
        (
            "array-queue",
            peer(style, array::<Full>, array::<Slot>, array::<Box<Slot>>),
        ),
        (
            "crossbeam-channel",
            peer(
                style,
                channel::<Full>,
                channel::<Slot>,
                channel::<Box<Slot>>,
            ),
        ),
    ]
}

/// [rtrb](https://docs.rs/rtrb): one producer, one consumer, wait-free; both sides keep a copy of the other's index.
pub(super) fn rtrb<T>(shape: Shape) -> Opened<rtrb::Producer<T>, rtrb::Consumer<T>> {
    let queues = (0..shape.pairs()?).map(|_| rtrb::RingBuffer::new(shape.capacity));
    Ok(queues.unzip())
}

impl<T: Send> Sender<T> for rtrb::Producer<T> {
    fn try_send(&mut self, item: T) -> Result<(), T> {
        self.push(item).map_err(|rtrb::PushError::Full(item)| item)
    }
}

impl<T: Send> Receiver<T> for rtrb::Consumer<T> {
    fn try_receive(&mut self) -> Option<T> {
        self.pop().ok()
    }
}

/// crossbeam's [`ArrayQueue`](https://docs.rs/crossbeam-queue): many producers, many consumers, a stamp in each slot.
fn array<T>(shape: Shape) -> Opened<Arc<ArrayQueue<T>>, Arc<ArrayQueue<T>>> {
    let queue = Arc::new(ArrayQueue::new(shape.capacity));
    let ends = |count| vec![Arc::clone(&queue); count];
    Ok((ends(shape.producers), ends(shape.consumers)))
}

impl<T: Send> Sender<T> for Arc<ArrayQueue<T>> {
    fn try_send(&mut self, item: T) -> Result<(), T> {
        self.push(item)
    }
}

impl<T: Send> Receiver<T> for Arc<ArrayQueue<T>> {
    fn try_receive(&mut self) -> Option<T> {
        self.pop()
    }
}

/// [crossbeam-channel](https://docs.rs/crossbeam-channel), bounded: the same array with sleeping and closing around it.
fn channel<T>(
    shape: Shape,
) -> Opened<crossbeam_channel::Sender<T>, crossbeam_channel::Receiver<T>> {
    let (sender, receiver) = crossbeam_channel::bounded(shape.capacity);
    Ok((
        vec![sender; shape.producers],
        vec![receiver; shape.consumers],
    ))
}

impl<T: Send> Sender<T> for crossbeam_channel::Sender<T> {
    fn try_send(&mut self, item: T) -> Result<(), T> {
        Self::try_send(self, item).map_err(crossbeam_channel::TrySendError::into_inner)
    }
}

impl<T: Send> Receiver<T> for crossbeam_channel::Receiver<T> {
    fn try_receive(&mut self) -> Option<T> {
        self.try_recv().ok()
    }
}
