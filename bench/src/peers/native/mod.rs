//! The peers that are C and C++: ReaderWriterQueue, ConcurrentQueue, and DPDK's rte_ring.
//!
//! Built with feature `peers` only, through the shim in `bench/shim`, from Debian's packages. Each operation is one call
//! through a function pointer, which costs about a nanosecond: nothing for buffers of 64 packets, a little where every
//! packet is an operation.

mod sys;

use super::queue::{Ends, Engine, Opened, Receiver, Refusal, Sender, Shape};
use sys::{Find, NativeReceiver, NativeSender, Queue};

/// A native queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Native {
    /// moodycamel's [ReaderWriterQueue](https://github.com/cameron314/readerwriterqueue): one producer, one consumer.
    ReaderWriterQueue,
    /// moodycamel's [ConcurrentQueue](https://github.com/cameron314/concurrentqueue): a sub-queue for each producer, used
    /// with a token for each thread.
    ConcurrentQueue,
    /// DPDK's [rte_ring](https://doc.dpdk.org/guides/prog_guide/ring_lib.html) for one producer and one consumer.
    RteRingSp,
    /// rte_ring for many, in its default mode. A thread that is preempted between taking its slots and moving the tail lets all others
    /// spin until it runs again.
    RteRingMp,
    /// rte_ring for many with relaxed tail synchronisation, DPDK's answer to more threads than CPUs.
    RteRingRts,
}

impl Native {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::ReaderWriterQueue,
        Self::ConcurrentQueue,
        Self::RteRingSp,
        Self::RteRingMp,
        Self::RteRingRts,
    ];

    fn find(self) -> Find {
        match self {
            Self::ReaderWriterQueue => sys::readerwriterqueue_functions,
            Self::ConcurrentQueue => sys::concurrentqueue_functions,
            Self::RteRingSp => sys::rte_ring_sp_functions,
            Self::RteRingMp => sys::rte_ring_mp_functions,
            Self::RteRingRts => sys::rte_ring_rts_functions,
        }
    }
}

impl Engine for Native {
    type Sender<T: Send> = NativeSender<T>;
    type Receiver<T: Send> = NativeReceiver<T>;

    fn name(&self) -> &'static str {
        match self {
            Self::ReaderWriterQueue => "reader-writer-queue",
            Self::ConcurrentQueue => "concurrent-queue",
            Self::RteRingSp => "rte-ring-sp",
            Self::RteRingMp => "rte-ring-mp",
            Self::RteRingRts => "rte-ring-rts",
        }
    }

    fn open<T: Send>(&self, shape: Shape) -> Result<Opened<Self, T>, Refusal> {
        if !self.pairs() {
            let queue = Queue::new(self.find(), shape)?;
            return Ok(Ends {
                senders: (0..shape.producers)
                    .map(|_| NativeSender::open(&queue))
                    .collect::<Result<_, _>>()?,
                receivers: (0..shape.consumers)
                    .map(|_| NativeReceiver::open(&queue))
                    .collect::<Result<_, _>>()?,
            });
        }
        let mut ends = Ends {
            senders: Vec::new(),
            receivers: Vec::new(),
        };
        for _ in 0..shape.pairs()? {
            let queue = Queue::new(
                self.find(),
                Shape {
                    producers: 1,
                    consumers: 1,
                    ..shape
                },
            )?;
            ends.senders.push(NativeSender::open(&queue)?);
            ends.receivers.push(NativeReceiver::open(&queue)?);
        }
        Ok(ends)
    }

    fn pairs(&self) -> bool {
        matches!(self, Self::ReaderWriterQueue | Self::RteRingSp)
    }
}

impl<T: Send> Sender<T> for NativeSender<T> {
    fn try_send(&mut self, item: T) -> Result<(), T> {
        Self::try_send(self, item)
    }
}

impl<T: Send> Receiver<T> for NativeReceiver<T> {
    fn try_receive(&mut self) -> Option<T> {
        Self::try_receive(self)
    }
}

/// The version of DPDK, as its headers say it.
pub fn dpdk_version() -> &'static str {
    sys::dpdk()
}
