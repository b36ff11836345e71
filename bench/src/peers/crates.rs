//! The peers that come as crates: rtrb, crossbeam's `ArrayQueue` and channel, kanal, flume.
//!
//! All are bounded, so that memory is sized once as the ring's is. The channels are asked with their `try_` calls: see
//! [`queue`](super::queue) for how the sides wait.

use std::sync::Arc;

use super::queue::{Ends, Engine, Opened, Receiver, Refusal, Sender, Shape};

/// Makes an engine of one crate: `$open` makes `(sender, receiver)` of a capacity, both are cloned for every thread.
macro_rules! shared_engine {
    ($(#[$doc:meta])* $engine:ident, $name:literal, $sender:ty, $receiver:ty, $open:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $engine;

        impl Engine for $engine {
            type Sender<T: Send> = $sender;
            type Receiver<T: Send> = $receiver;

            fn name(&self) -> &'static str {
                $name
            }

            fn open<T: Send>(&self, shape: Shape) -> Result<Opened<Self, T>, Refusal> {
                let (sender, receiver) = $open(shape.capacity);
                Ok(Ends { senders: vec![sender; shape.producers], receivers: vec![receiver; shape.consumers] })
            }
        }
    };
}

/// [rtrb](https://docs.rs/rtrb): one producer, one consumer, wait-free; both sides keep a copy of the other's index.
#[derive(Clone, Copy, Debug)]
pub struct Rtrb;

impl Engine for Rtrb {
    type Sender<T: Send> = rtrb::Producer<T>;
    type Receiver<T: Send> = rtrb::Consumer<T>;

    fn name(&self) -> &'static str {
        "rtrb"
    }

    fn open<T: Send>(&self, shape: Shape) -> Result<Opened<Self, T>, Refusal> {
        let pairs = shape.pairs()?;
        let (senders, receivers) = (0..pairs)
            .map(|_| rtrb::RingBuffer::new(shape.capacity))
            .unzip();
        Ok(Ends { senders, receivers })
    }

    fn pairs(&self) -> bool {
        true
    }
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

shared_engine!(
    /// crossbeam's [`ArrayQueue`](https://docs.rs/crossbeam-queue): many producers, many consumers, a stamp in each slot.
    ArrayQueue,
    "array-queue",
    Arc<crossbeam_queue::ArrayQueue<T>>,
    Arc<crossbeam_queue::ArrayQueue<T>>,
    |capacity| {
        let queue = Arc::new(crossbeam_queue::ArrayQueue::new(capacity));
        (Arc::clone(&queue), queue)
    }
);

impl<T: Send> Sender<T> for Arc<crossbeam_queue::ArrayQueue<T>> {
    fn try_send(&mut self, item: T) -> Result<(), T> {
        self.push(item)
    }
}

impl<T: Send> Receiver<T> for Arc<crossbeam_queue::ArrayQueue<T>> {
    fn try_receive(&mut self) -> Option<T> {
        self.pop()
    }
}

shared_engine!(
    /// [crossbeam-channel](https://docs.rs/crossbeam-channel), bounded: the same array with sleeping and closing around it.
    CrossbeamChannel,
    "crossbeam-channel",
    crossbeam_channel::Sender<T>,
    crossbeam_channel::Receiver<T>,
    crossbeam_channel::bounded
);

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

shared_engine!(
    /// [kanal](https://docs.rs/kanal), bounded: a `VecDeque` under a spinning lock, handing over directly where a side waits.
    Kanal,
    "kanal",
    kanal::Sender<T>,
    kanal::Receiver<T>,
    kanal::bounded
);

impl<T: Send> Sender<T> for kanal::Sender<T> {
    fn try_send(&mut self, item: T) -> Result<(), T> {
        let mut item = Some(item);
        // `Ok(true)` and only that takes the item out; a closed channel keeps it like a full one.
        let _ = self.try_send_option(&mut item);
        item.map_or(Ok(()), Err)
    }
}

impl<T: Send> Receiver<T> for kanal::Receiver<T> {
    fn try_receive(&mut self) -> Option<T> {
        self.try_recv().ok().flatten()
    }
}

shared_engine!(
    /// [flume](https://docs.rs/flume), bounded: a `VecDeque` under a mutex.
    Flume,
    "flume",
    flume::Sender<T>,
    flume::Receiver<T>,
    flume::bounded
);

impl<T: Send> Sender<T> for flume::Sender<T> {
    fn try_send(&mut self, item: T) -> Result<(), T> {
        Self::try_send(self, item).map_err(flume::TrySendError::into_inner)
    }
}

impl<T: Send> Receiver<T> for flume::Receiver<T> {
    fn try_receive(&mut self) -> Option<T> {
        self.try_recv().ok()
    }
}
