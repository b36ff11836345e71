//! The C and C++ peers: ReaderWriterQueue, ConcurrentQueue, DPDK's rte_ring, the queues of Boost
//! and Intel's TBB, and folly's queues if available.
//!
//! Built only with feature `peers`, through the shim in `bench/shim`, from Debian's packages, and
//! folly from the path in `FOLLY_INCLUDE` (see `build.rs`). Each operation is one call through a
//! function pointer, which costs about a nanosecond: negligible for buffers of 64 packets.
//! [`Queue`] owns a queue, and its ends share the [`Queue`].
#![expect(unsafe_code, reason = "calls C and C++ through function pointers")]

use std::{ffi::c_void, ptr::NonNull, sync::Arc};

use super::{FilledBuffer, Opened, Peer, Receiver, Sender};
use crate::measure::Failure;

/// `struct queue_functions` of `queues.h`, field by field.
#[derive(Debug)]
#[repr(C)]
struct Functions {
    create: extern "C" fn(u32, u32, u32) -> *mut c_void,
    destroy: unsafe extern "C" fn(*mut c_void),
    try_send: unsafe extern "C" fn(*mut c_void, u32, *const c_void) -> bool,
    try_receive: unsafe extern "C" fn(*mut c_void, u32, *mut c_void) -> bool,
}

/// Bytes of an item: a `usize`.
const ITEM_BYTES: u32 = 8;
const _: () = assert!(size_of::<usize>() == ITEM_BYTES as usize);

/// Finds the functions for items of a given size.
type Find = extern "C" fn(u32) -> Option<&'static Functions>;

// SAFETY: the declarations match `queues.h`. Each function looks up a constant table and may be
// called with any number. The tables are never changed or freed, and NULL is `None`.
unsafe extern "C" {
    safe fn readerwriterqueue_functions(item_bytes: u32) -> Option<&'static Functions>;
    safe fn concurrentqueue_functions(item_bytes: u32) -> Option<&'static Functions>;
    safe fn rte_ring_sp_functions(item_bytes: u32) -> Option<&'static Functions>;
    safe fn rte_ring_mp_functions(item_bytes: u32) -> Option<&'static Functions>;
    safe fn rte_ring_rts_functions(item_bytes: u32) -> Option<&'static Functions>;
    safe fn boost_spsc_functions(item_bytes: u32) -> Option<&'static Functions>;
    safe fn boost_mpmc_functions(item_bytes: u32) -> Option<&'static Functions>;
    safe fn tbb_bounded_functions(item_bytes: u32) -> Option<&'static Functions>;
    #[cfg(folly)]
    safe fn folly_pcq_functions(item_bytes: u32) -> Option<&'static Functions>;
    #[cfg(folly)]
    safe fn folly_mpmc_functions(item_bytes: u32) -> Option<&'static Functions>;
}

/// How to find a queue's functions, and whether the queue is for one producer and one consumer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Native(Find, bool);

pub(super) const PEERS: &[(&str, Native)] = &[
    (
        "reader-writer-queue",
        Native(readerwriterqueue_functions, true),
    ),
    ("concurrent-queue", Native(concurrentqueue_functions, false)),
    ("rte-ring-sp", Native(rte_ring_sp_functions, true)),
    // If a thread is preempted between taking its slots and moving the tail, later threads of the
    // same side spin until the preempted thread runs again.
    ("rte-ring-mp", Native(rte_ring_mp_functions, false)),
    // Relaxed tail synchronization, DPDK's mode for more threads than CPUs.
    ("rte-ring-rts", Native(rte_ring_rts_functions, false)),
    ("boost-spsc", Native(boost_spsc_functions, true)),
    ("boost-mpmc", Native(boost_mpmc_functions, false)),
    ("tbb-bounded", Native(tbb_bounded_functions, false)),
    #[cfg(folly)]
    ("folly-pcq", Native(folly_pcq_functions, true)),
    #[cfg(folly)]
    ("folly-mpmc", Native(folly_mpmc_functions, false)),
];

impl Peer for Native {
    fn open(self, pairs: usize, capacity: usize) -> Opened<impl Sender, impl Receiver> {
        let Self(find, is_of_pairs) = self;
        let number = |count| {
            u32::try_from(count).map_err(|error| Failure::system("opening the queue", error))
        };
        let (queues, ends) = if is_of_pairs {
            (pairs, 1)
        } else {
            (1, number(pairs)?)
        };
        let (mut senders, mut receivers) = (Vec::new(), Vec::new());
        for _ in 0..queues {
            let queue = Queue::new(find, number(capacity)?, ends)?;
            senders.extend((0..ends).map(|end| sender(Arc::clone(&queue), end)));
            receivers.extend((0..ends).map(|end| receiver(Arc::clone(&queue), end)));
        }
        Ok((senders, receivers))
    }
}

/// The sender of one thread. `end` is the number of this sender in its queue.
fn sender(queue: Arc<Queue>, end: u32) -> impl Sender {
    move |FilledBuffer(buffer)| {
        let item = (&raw const buffer).cast();
        // SAFETY: the queue is alive. The closure is this end's only user, and one thread at a time
        // calls the closure. `item` is a `usize`, the size for which the functions were looked up.
        let sent = unsafe { (queue.functions.try_send)(queue.queue.as_ptr(), end, item) };
        if sent {
            Ok(())
        } else {
            Err(FilledBuffer(buffer))
        }
    }
}

/// The receiver of one thread. `end` is the number of this receiver in its queue.
fn receiver(queue: Arc<Queue>, end: u32) -> impl Receiver {
    move || {
        let mut buffer = 0_usize;
        let item = (&raw mut buffer).cast();
        // SAFETY: as in `sender`; `item` has room for one item.
        let received = unsafe { (queue.functions.try_receive)(queue.queue.as_ptr(), end, item) };
        received.then_some(FilledBuffer(buffer))
    }
}

/// A C or C++ queue. Its items are the `usize` values of [`FilledBuffer`].
#[derive(Debug)]
struct Queue {
    functions: &'static Functions,
    queue: NonNull<c_void>,
}

// SAFETY: all threads may use the queue at once, each through a separate end, as `queues.h`
// promises. The items of the queue are plain numbers.
unsafe impl Send for Queue {}
// SAFETY: all threads may use the queue at once, each through a separate end.
unsafe impl Sync for Queue {}

impl Queue {
    fn new(find: Find, capacity: u32, ends: u32) -> Result<Arc<Self>, Failure> {
        assert!(capacity <= 1 << 30);
        let no_queue = |why| Failure::system("opening the queue", why);
        let functions = find(ITEM_BYTES).ok_or_else(|| no_queue("no functions for its items"))?;
        let queue = NonNull::new((functions.create)(capacity, ends, ends));
        let queue = queue.ok_or_else(|| no_queue("no memory"))?;
        Ok(Arc::new(Self { functions, queue }))
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: `queue` came from `create` of these functions and is not used again: its ends
        // hold an `Arc` of this value.
        unsafe { (self.functions.destroy)(self.queue.as_ptr()) }
    }
}
