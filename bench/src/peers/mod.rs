//! Queues of other people, each used as well as it can be.
//!
//! A [`Peer`] opens the ends of an empty queue; `crates.rs` has those that are crates, `native.rs` (feature `peers`) those that are C and
//! C++, and `well.rs` drives them all. They are driven through closures ([`Sender`], [`Receiver`]), which try and never block, so that
//! waiting, deadlines and counting are the same code for all. Generic code is compiled for each peer: a call here is the peer's own call,
//! inlined where it can be.
//!
//! Every packet is stored behind the same 16 bytes ([`describe`](crate::limits::describe)), and the consumer reads them all. A peer
//! that is made for one producer and one consumer carries more of them in as many queues, side by side.

mod crates;
#[cfg(feature = "peers")]
mod native;
mod well;

use self::{
    crates::{Array, Channel, Rtrb},
    well::FilledBuffer,
};
use crate::{
    contest::{Contest, Load},
    measure::Failure,
    memory::Memory,
};

/// Senders and receivers of one run, one of each for every thread.
type Opened<S, R> = Result<(Vec<S>, Vec<R>), Failure>;

/// A producer's end, used by one thread: sends a token, or gives it back when the queue is full.
trait Sender: FnMut(FilledBuffer) -> Result<(), FilledBuffer> + Send {}
impl<F: FnMut(FilledBuffer) -> Result<(), FilledBuffer> + Send> Sender for F {}

/// A consumer's end, used by one thread: the next token, or `None` when the queue is empty now.
trait Receiver: FnMut() -> Option<FilledBuffer> + Send {}
impl<F: FnMut() -> Option<FilledBuffer> + Send> Receiver for F {}

/// A queue for tokens.
trait Peer: Copy {
    /// For so many producers and as many consumers. A peer that only knows powers of two holds the next larger number of tokens.
    fn open(self, pairs: usize, capacity: usize) -> Opened<impl Sender, impl Receiver>;
}

fn contestant(peer: impl Peer + 'static) -> Box<dyn Contest> {
    Box::new(move |load: &Load, memory: &mut Memory| well::run(peer, load, memory))
}

/// All peers of this build with their names, crates first.
pub(crate) fn all() -> Vec<(&'static str, Box<dyn Contest>)> {
    let crates = [
        ("rtrb", contestant(Rtrb)),
        ("array-queue", contestant(Array)),
        ("crossbeam-channel", contestant(Channel)),
    ];
    #[cfg(not(feature = "peers"))]
    let native = [];
    #[cfg(feature = "peers")]
    let native = native::PEERS
        .iter()
        .map(|(name, of)| (*name, contestant(*of)));
    crates.into_iter().chain(native).collect()
}

#[cfg(test)]
mod tests;
