//! What a peer must offer to take part: ends that try, and never block.
//!
//! Every peer is driven through the same three traits, so that waiting, deadlines and counting are the same code for all.
//! Generic code is compiled for each peer and each item: a call here is the peer's own call, inlined where it can be.
//!
//! Waiting is not left to the peers: a side that finds the queue full or empty leaves it alone for a while (`lanes`).

use crate::contest::Failure;

/// How many threads use a queue, and how much it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Threads that send, at least 1.
    pub producers: usize,
    /// Threads that receive, at least 1.
    pub consumers: usize,
    /// Items in flight, at least 1. A peer that only knows powers of two is given the next larger one.
    pub capacity: usize,
}

/// Senders and receivers of one run, one of each for every thread.
#[derive(Debug)]
pub struct Ends<S, R> {
    /// One a producer.
    pub senders: Vec<S>,
    /// One a consumer.
    pub receivers: Vec<R>,
}

/// A queue of somebody else.
pub trait Engine: Copy + Send + Sync {
    /// The end of one producer.
    type Sender<T: Send>: Sender<T>;
    /// The end of one consumer.
    type Receiver<T: Send>: Receiver<T>;

    /// The name that rows carry, as its authors write it, in lower case.
    fn name(&self) -> &'static str;

    /// Makes an empty queue for `shape`.
    ///
    /// A queue for one producer and one consumer serves `n` of each as `n` queues side by side; [`Engine::pairs`] says so.
    ///
    /// # Errors
    /// [`Refusal`] where the peer cannot do this.
    fn open<T: Send>(&self, shape: Shape) -> Result<Opened<Self, T>, Refusal>;

    /// True where producer `i` reaches consumer `i` only.
    fn pairs(&self) -> bool {
        false
    }
}

/// What [`Engine::open`] returns.
pub type Opened<E, T> = Ends<<E as Engine>::Sender<T>, <E as Engine>::Receiver<T>>;

/// A producer's end, used by one thread.
pub trait Sender<T>: Send {
    /// Sends `item`, or gives it back when the queue is full.
    ///
    /// # Errors
    /// The item itself: nothing was sent.
    fn try_send(&mut self, item: T) -> Result<(), T>;
}

/// A consumer's end, used by one thread.
pub trait Receiver<T>: Send {
    /// The next item, or `None` when the queue is empty now.
    fn try_receive(&mut self) -> Option<T>;
}

/// Why a peer does not take part in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// One producer and one consumer to a queue, so as many of one as of the other.
    #[error(
        "serves pairs of one producer and one consumer, not {producers} producers and {consumers} consumers"
    )]
    Pairs {
        /// Producers asked for.
        producers: usize,
        /// Consumers asked for.
        consumers: usize,
    },
    /// Packets are moved in slots of a few sizes fixed at compile time.
    #[error("no slot was compiled for packets of {bytes} bytes")]
    Slot {
        /// Packet bytes asked for.
        bytes: usize,
    },
    /// The peer could not get memory for its slots.
    #[error("no memory for a queue of {capacity} items of {item_bytes} bytes")]
    Memory {
        /// Items asked for.
        capacity: usize,
        /// Bytes an item.
        item_bytes: usize,
    },
}

impl Shape {
    /// The number of pairs of one producer and one consumer.
    ///
    /// # Errors
    /// [`Refusal::Pairs`] where there are more of one than of the other.
    pub fn pairs(&self) -> Result<usize, Refusal> {
        if self.producers == self.consumers {
            Ok(self.producers)
        } else {
            Err(Refusal::Pairs {
                producers: self.producers,
                consumers: self.consumers,
            })
        }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Memory { .. } => Self::system("opening the queue", refusal),
            Refusal::Pairs { .. } | Refusal::Slot { .. } => Self::CannotRun(refusal.to_string()),
        }
    }
}
