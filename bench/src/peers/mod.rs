//! Third-party queues, each used as well as possible, and in the other ways of [`Way`].
//!
//! A [`Peer`] opens the ends of an empty queue. `crates.rs` has the peers from crates, and
//! `native.rs` (feature `peers`) the C and C++ peers. `well.rs` and, for [`Way::Malloc`], `each.rs`
//! drive all peers through closures ([`Sender`], [`Receiver`]) that try once and never block. So
//! all peers share the code for waiting, deadlines and counting. Generic code is compiled for each
//! peer: a call here is the peer's own call, inlined where possible.
//!
//! Every packet is stored after a descriptor of 16 bytes ([`describe`](crate::limits::describe)),
//! and the consumer reads all descriptors. A peer for one producer and one consumer gets one queue
//! for each pair of threads.

mod crates;
mod each;
#[cfg(feature = "peers")]
mod native;
mod well;

use self::{
    crates::{Array, Channel, Rtrb},
    well::FilledBuffer,
};
use crate::{
    contest::{Contest, Load, Run},
    latency::{LatencyFigures, Pace},
    measure::Failure,
    memory::Memory,
};

/// Senders and receivers of one run, one sender and one receiver for each pair of threads.
type Opened<S, R> = Result<(Vec<S>, Vec<R>), Failure>;

/// A producer's end, used by one thread. Sends a token, or returns it if the queue is full.
trait Sender: FnMut(FilledBuffer) -> Result<(), FilledBuffer> + Send {}
impl<F: FnMut(FilledBuffer) -> Result<(), FilledBuffer> + Send> Sender for F {}

/// A consumer's end, used by one thread. Returns the next token, or `None` if the queue is empty
/// now.
trait Receiver: FnMut() -> Option<FilledBuffer> + Send {}
impl<F: FnMut() -> Option<FilledBuffer> + Send> Receiver for F {}

/// A queue for tokens.
trait Peer: Copy {
    /// Opens a queue for `pairs` producers and as many consumers, with room for at least `capacity`
    /// tokens. Some peers have room for more, for example for `capacity` tokens of each pair.
    fn open(self, pairs: usize, capacity: usize) -> Opened<impl Sender, impl Receiver>;
}

/// How packets get through a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Used well: buffers of 64 packets, in all memory that the run gives to the peer.
    Well,
    /// Buffers of 64 packets, but at most 16 for each producer, which stay in the cache: the
    /// paper's figure 7.
    Reused,
    /// Buffers of one packet: the message buffers of the thesis's figure 4.1.
    OneByOne,
    /// An allocation for each packet: the thesis's figure 4.1.
    Malloc,
}

/// A peer as a contestant.
pub(crate) trait PeerContest: Contest {
    /// Carries packets as they become due.
    fn carry_due(&mut self, pace: &Pace, memory: &mut Memory) -> Result<LatencyFigures, Failure>;
}

struct PeerInUse<P>(Way, P);

impl<P: Peer> Contest for PeerInUse<P> {
    fn run(&mut self, load: &Load, memory: &mut Memory) -> Result<Run, Failure> {
        match self.0 {
            Way::Malloc => each::run(self.1, load, memory.len()),
            way => well::run(self.1, way, load, memory),
        }
    }
}

impl<P: Peer> PeerContest for PeerInUse<P> {
    fn carry_due(&mut self, pace: &Pace, memory: &mut Memory) -> Result<LatencyFigures, Failure> {
        well::carry_due(self.1, self.0, pace, memory)
    }
}

fn contestant(way: Way, peer: impl Peer + 'static) -> Box<dyn PeerContest> {
    Box::new(PeerInUse(way, peer))
}

/// All peers of this build with their names, crates first.
pub(crate) fn all(way: Way) -> Vec<(&'static str, Box<dyn PeerContest>)> {
    let crates = [
        ("rtrb", contestant(way, Rtrb)),
        ("array-queue", contestant(way, Array)),
        ("crossbeam-channel", contestant(way, Channel)),
    ];
    #[cfg(not(feature = "peers"))]
    let native = [];
    #[cfg(feature = "peers")]
    let native = native::PEERS
        .iter()
        .map(|(name, of)| (*name, contestant(way, *of)));
    crates.into_iter().chain(native).collect()
}

#[cfg(test)]
mod tests;
