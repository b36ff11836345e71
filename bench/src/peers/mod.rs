//! Queues of other people, each used as well as it can be, and as one would use it first.
//!
//! A [`Peer`] opens the ends of an empty queue for some items; `crates.rs` has those that are crates, `native.rs` (feature `peers`)
//! those that are C and C++. They are driven through closures ([`Sender`], [`Receiver`]), which try and never block, so that
//! waiting, deadlines and counting are the same code for all: a side that finds the queue full or empty leaves it alone for
//! a while. Generic code is compiled for each peer and each item: a call here is the peer's own call, inlined where it can be.
//!
//! Every packet is stored behind the same 16 bytes ([`describe`](crate::limits::describe)), and the consumer reads them all. A peer
//! that is made for one producer and one consumer carries more of them in as many queues, side by side.

mod crates;
#[cfg(feature = "peers")]
mod native;
mod slots;
mod well;

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

pub(crate) use slots::SLOT_BYTES;
use {
    crates::{Array, Channel, Rtrb},
    slots::Slot,
};

use crate::{
    contest::{Contest, Course, Load, Run, Tally, race},
    limits::DESCRIPTOR_BYTES,
    measure::Failure,
    memory::Memory,
};

/// How long a side that finds the queue full or empty leaves it alone.
///
/// Every look at an empty queue takes the producer's cache line away from it, to be fetched back before the next item can
/// be sent: a consumer that is the faster side and looks all the time slows the producer down, and itself with it. Measured
/// on two cores of an EPYC guest, 64 bytes, used well: looking again at once left rte_ring and ReaderWriterQueue 20 to 60 of
/// the 220 Mpps that they reach with pauses; rtrb does 248 with 10 µs and 256 with 20 µs; 40 µs cost a fifth.
const PAUSE: Duration = Duration::from_micros(20);
/// Pauses before the first that also yields: where more threads run than there are CPUs, the side that is waited for may
/// need this one.
const PAUSES: u32 = 4;

/// How a peer is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// `well.rs`, with regular stores: what a recorder built on it would do.
    Well,
    /// `well.rs`, with our non-temporal stores.
    Streaming,
    /// `slots.rs`: packets are copied into the queue.
    Naive,
    /// `slots.rs`: packets lie in memory from `malloc`.
    Malloc,
}

impl Style {
    /// All of them.
    pub(crate) const ALL: [Self; 4] = [Self::Well, Self::Streaming, Self::Naive, Self::Malloc];

    /// The last part of a row's name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Well => "well",
            Self::Streaming => "nt",
            Self::Naive => "naive",
            Self::Malloc => "malloc",
        }
    }
}

/// How many threads use a queue, and how many items it holds; a peer that only knows powers of two is given the next larger one.
#[derive(Clone, Copy, Debug)]
struct Shape {
    producers: usize,
    consumers: usize,
    capacity: usize,
}

impl Shape {
    fn of(load: &Load, capacity: usize) -> Self {
        let (producers, consumers) = (load.producers, load.consumers);
        Self {
            producers,
            consumers,
            capacity,
        }
    }

    /// The number of pairs of one producer and one consumer.
    fn pairs(&self) -> Result<usize, Failure> {
        let (producers, consumers) = (self.producers, self.consumers);
        if producers == consumers {
            return Ok(producers);
        }
        Err(Failure::CannotRun(format!(
            "serves pairs of one producer and one consumer, not {producers} producers and {consumers} consumers"
        )))
    }
}

/// Senders and receivers of one run, one of each for every thread.
type Opened<S, R> = Result<(Vec<S>, Vec<R>), Failure>;

/// A producer's end, used by one thread: sends an item, or gives it back when the queue is full.
trait Sender<T>: FnMut(T) -> Result<(), T> + Send {}
impl<T, F: FnMut(T) -> Result<(), T> + Send> Sender<T> for F {}

/// A consumer's end, used by one thread: the next item, or `None` when the queue is empty now.
trait Receiver<T>: FnMut() -> Option<T> + Send {}
impl<T, F: FnMut() -> Option<T> + Send> Receiver<T> for F {}

/// A queue for items of any type.
trait Peer: Copy {
    fn open<T: Send>(self, shape: Shape) -> Opened<impl Sender<T>, impl Receiver<T>>;
}

/// A peer in a style.
fn peer(style: Style, peer: impl Peer + 'static) -> Box<dyn Contest> {
    type Any<'m> = &'m mut Memory;
    match style {
        Style::Well => {
            Box::new(move |load: &Load, memory: Any<'_>| well::run::<false>(peer, load, memory))
        }
        Style::Streaming => {
            Box::new(move |load: &Load, memory: Any<'_>| well::run::<true>(peer, load, memory))
        }
        Style::Naive => Box::new(move |load: &Load, _: Any<'_>| slots::run::<Slot>(peer, load)),
        Style::Malloc => {
            Box::new(move |load: &Load, _: Any<'_>| slots::run::<Box<Slot>>(peer, load))
        }
    }
}

/// All peers of this build in one style with their names, crates first.
pub(crate) fn all(style: Style) -> Vec<(&'static str, Box<dyn Contest>)> {
    #[cfg_attr(
        not(feature = "peers"),
        expect(unused_mut, reason = "the native peers are added with the feature")
    )]
    let mut peers = vec![
        ("rtrb", peer(style, Rtrb)),
        ("array-queue", peer(style, Array)),
        ("crossbeam-channel", peer(style, Channel)),
    ];
    #[cfg(feature = "peers")]
    peers.extend(
        native::PEERS
            .iter()
            .map(|(name, found)| (*name, peer(style, *found))),
    );
    peers
}

/// Runs producers over senders, and consumers that `see` every item until all producers are done and the queue is empty.
fn carry<T, S: Sender<T>, R: Receiver<T>>(
    load: &Load,
    (senders, receivers): (Vec<S>, Vec<R>),
    produce: impl Fn(&Course, usize, S) -> Result<(), Failure> + Sync,
    see: impl Fn(&mut Tally, T) + Sync,
) -> Result<Run, Failure> {
    let (sending, produce, see) = (&AtomicUsize::new(load.producers), &produce, &see);
    let producers = senders.into_iter().enumerate().map(|(producer, sender)| {
        move |course: &Course| {
            produce(course, producer, sender)?;
            // D1: Release, pairs with D2: who sees the last one done sees all items.
            sending.fetch_sub(1, Ordering::Release);
            Ok(())
        }
    });
    let consumers = receivers.into_iter().map(|mut receive| {
        move |course: &Course| {
            let (mut seen, mut pauses) = (Tally::default(), 0);
            loop {
                // D2: Acquire, before the look that may find nothing.
                let last = sending.load(Ordering::Acquire) == 0;
                match receive() {
                    Some(item) => {
                        see(&mut seen, item);
                        pauses = 0;
                    }
                    None if last => return Ok(seen),
                    None => pause(course, &mut pauses)?,
                }
            }
        }
    });
    race(load, &|| {}, producers.collect(), consumers.collect())
}

/// Sends one item, however long the queue stays full.
#[inline]
fn send<T>(course: &Course, sender: &mut impl Sender<T>, item: T) -> Result<(), Failure> {
    let Err(mut item) = sender(item) else {
        return Ok(());
    };
    let mut pauses = 0;
    loop {
        pause(course, &mut pauses)?;
        match sender(item) {
            Ok(()) => return Ok(()),
            Err(back) => item = back,
        }
    }
}

/// Leaves the queue alone; `pauses` counts those of one wait.
#[cold]
fn pause(course: &Course, pauses: &mut u32) -> Result<(), Failure> {
    course.check()?;
    *pauses += 1;
    if *pauses > PAUSES {
        thread::yield_now();
    }
    let start = Instant::now();
    while start.elapsed() < PAUSE {
        std::hint::spin_loop();
    }
    Ok(())
}

/// Counts a packet by its descriptor.
#[inline]
pub(crate) fn see(seen: &mut Tally, descriptor: [u8; DESCRIPTOR_BYTES]) {
    let fields = u128::from_le_bytes(descriptor);
    #[expect(clippy::cast_possible_truncation, reason = "cuts fields out")]
    let (time, captured) = (fields as u64, (fields >> 64) as u32);
    seen.add(time, captured as usize);
}

#[cfg(test)]
mod tests;
