//! Queues of other people, each used as well as it can be, and as one would use it first.
//!
//! | module | holds |
//! |---|---|
//! | [`queue`] | what a peer must offer: [`Engine`] and its two ends |
//! | [`crates`] | rtrb, `ArrayQueue`, crossbeam-channel, kanal, flume: always there |
//! | `native` | ReaderWriterQueue, ConcurrentQueue, rte_ring: with feature `peers` |
//! | [`well`], [`buffers`] | used well: buffers of 64 packets that cycle through the whole region |
//! | [`slots`] | used naively: one operation a packet, copied or from `malloc` |
//! | `lanes` | how both sides send, receive and wait, whatever the peer |
//! | [`versions`](mod@versions) | what was measured |
//!
//! Every packet is stored behind the same header, and the consumer reads every header. A peer that is made for one producer
//! and one consumer carries more of them in as many queues, side by side.

pub mod buffers;
pub mod crates;
pub mod header;
mod lanes;
#[cfg(feature = "peers")]
pub mod native;
pub mod queue;
pub mod slots;
pub mod versions;
pub mod well;

pub use versions::versions;

use crate::contest::{Contest, Failure, Load, Run};
use crate::memory::Memory;
use queue::Engine;

/// How a peer is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// [`well`], with regular stores: what a recorder built on it would do.
    Well,
    /// [`well`], with our non-temporal stores.
    Streaming,
    /// [`slots::copied`].
    Naive,
    /// [`slots::boxed`].
    Malloc,
}

impl Style {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Well, Self::Streaming, Self::Naive, Self::Malloc];

    /// The last part of a row's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Well => "well",
            Self::Streaming => "nt",
            Self::Naive => "naive",
            Self::Malloc => "malloc",
        }
    }
}

/// A queue of somebody else, in one style.
#[derive(Clone, Copy, Debug)]
pub struct Peer<E> {
    engine: E,
    style: Style,
}

impl<E: Engine> Contest for Peer<E> {
    fn name(&self) -> &str {
        self.engine.name()
    }

    fn run(&mut self, load: &Load, memory: &mut Memory) -> Result<Run, Failure> {
        match self.style {
            Style::Well => well::run(self.engine, well::Copying, load, memory),
            Style::Streaming => well::run(self.engine, well::Streaming, load, memory),
            Style::Naive => slots::copied(self.engine, load),
            Style::Malloc => slots::boxed(self.engine, load),
        }
    }
}

/// All peers of this build in one style, crates first.
#[must_use]
pub fn all(style: Style) -> Vec<Box<dyn Contest>> {
    fn peer<E: Engine + 'static>(engine: E, style: Style) -> Box<dyn Contest> {
        Box::new(Peer { engine, style })
    }
    #[cfg_attr(
        not(feature = "peers"),
        expect(unused_mut, reason = "the native peers are added with the feature")
    )]
    let mut peers = vec![
        peer(crates::Rtrb, style),
        peer(crates::ArrayQueue, style),
        peer(crates::CrossbeamChannel, style),
        peer(crates::Kanal, style),
        peer(crates::Flume, style),
    ];
    #[cfg(feature = "peers")]
    peers.extend(native::Native::ALL.map(|engine| peer(engine, style)));
    peers
}

#[cfg(test)]
mod tests;
