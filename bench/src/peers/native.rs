//! The peers that are C and C++: ReaderWriterQueue, ConcurrentQueue, DPDK's rte_ring, and folly's queues where somebody has them.
//!
//! Built with feature `peers` only, through the shim in `bench/shim`, from Debian's packages, folly by the path in `FOLLY_INCLUDE` (see
//! `build.rs`). Each operation is one call through a function pointer, which costs about a nanosecond: nothing for buffers of 64
//! packets, a little where every packet is an operation.
//!
//! [`Queue`] owns a queue, which its ends share, and an item that was sent is forgotten on this side until it is received:
//! so each item has one owner. The items' bytes are copied, which is a move in Rust for every type.
#![expect(
    unsafe_code,
    reason = "calls C and C++ through function pointers, and moves items as bytes"
)]

use std::{
    ffi::c_void,
    marker::PhantomData,
    mem::{ManuallyDrop, MaybeUninit},
    ptr::NonNull,
    sync::Arc,
};

use super::{Opened, Peer, Receiver, Sender, Shape};
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

/// Finds the functions for items of a size.
type Find = extern "C" fn(u32) -> Option<&'static Functions>;

// SAFETY: the declarations are those of `queues.h`. Each looks up a constant table and may be called with any number; the
// tables are never changed or freed, and NULL is `None`.
unsafe extern "C" {
    safe fn readerwriterqueue_functions(item_bytes: u32) -> Option<&'static Functions>;
    safe fn concurrentqueue_functions(item_bytes: u32) -> Option<&'static Functions>;
    safe fn rte_ring_sp_functions(item_bytes: u32) -> Option<&'static Functions>;
    safe fn rte_ring_mp_functions(item_bytes: u32) -> Option<&'static Functions>;
    safe fn rte_ring_rts_functions(item_bytes: u32) -> Option<&'static Functions>;
    #[cfg(folly)]
    safe fn folly_pcq_functions(item_bytes: u32) -> Option<&'static Functions>;
    #[cfg(folly)]
    safe fn folly_mpmc_functions(item_bytes: u32) -> Option<&'static Functions>;
}

/// How a queue is found, and whether it is for one producer and one consumer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Native(Find, bool);

pub(super) const PEERS: &[(&str, Native)] = &[
    (
        "reader-writer-queue",
        Native(readerwriterqueue_functions, true),
    ),
    ("concurrent-queue", Native(concurrentqueue_functions, false)),
    ("rte-ring-sp", Native(rte_ring_sp_functions, true)),
    // A thread that is preempted between taking its slots and moving the tail lets all others spin until it runs again.
    ("rte-ring-mp", Native(rte_ring_mp_functions, false)),
    // Relaxed tail synchronisation, DPDK's answer to more threads than CPUs.
    ("rte-ring-rts", Native(rte_ring_rts_functions, false)),
    #[cfg(folly)]
    ("folly-pcq", Native(folly_pcq_functions, true)),
    #[cfg(folly)]
    ("folly-mpmc", Native(folly_mpmc_functions, false)),
];

impl Peer for Native {
    fn open<T: Send>(self, shape: Shape) -> Opened<impl Sender<T>, impl Receiver<T>> {
        let Self(find, is_of_pairs) = self;
        let number = |count| {
            u32::try_from(count).map_err(|error| Failure::system("opening the queue", error))
        };
        let (queues, producers, consumers) = if is_of_pairs {
            (shape.pairs()?, 1, 1)
        } else {
            (1, number(shape.producers)?, number(shape.consumers)?)
        };
        let (mut senders, mut receivers) = (Vec::new(), Vec::new());
        for _ in 0..queues {
            let queue = Queue::new(find, number(shape.capacity)?, producers, consumers)?;
            senders.extend((0..producers).map(|end| sender(Arc::clone(&queue), end)));
            receivers.extend((0..consumers).map(|end| receiver(Arc::clone(&queue), end)));
        }
        Ok((senders, receivers))
    }
}

/// The sender of one thread; each has a number of its own.
fn sender<T: Send>(queue: Arc<Queue<T>>, end: u32) -> impl Sender<T> {
    move |item| {
        let item = ManuallyDrop::new(item);
        let place = (&raw const item).cast();
        // SAFETY: the queue is alive, the closure is this end's only user and is called by one thread at a time, and `item` has the size
        // for which the functions were looked up, aligned to at most 8.
        let sent = unsafe { (queue.functions.try_send)(queue.queue.as_ptr(), end, place) };
        if sent {
            Ok(())
        } else {
            Err(ManuallyDrop::into_inner(item))
        }
    }
}

/// The receiver of one thread.
fn receiver<T: Send>(queue: Arc<Queue<T>>, end: u32) -> impl Receiver<T> {
    move || {
        let mut item = MaybeUninit::<T>::uninit();
        let place = item.as_mut_ptr().cast();
        // SAFETY: as in `sender`; `item` has room for one.
        let received = unsafe { (queue.functions.try_receive)(queue.queue.as_ptr(), end, place) };
        // SAFETY: `true` means that all bytes of one item were written, and that item was a `T` whose sender forgot it.
        received.then(|| unsafe { item.assume_init() })
    }
}

/// A queue of C or C++ for items of type `T`.
#[derive(Debug)]
struct Queue<T> {
    functions: &'static Functions,
    queue: NonNull<c_void>,
    items: PhantomData<fn(T) -> T>,
}

// SAFETY: the queue itself may be used by all threads at once, each through an end of its own: that is what such queues are
// for, and `queues.h` says so. Items go from thread to thread, so they must be `Send`.
unsafe impl<T: Send> Send for Queue<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Queue<T> {}

impl<T> Queue<T> {
    fn new(
        find: Find,
        capacity: u32,
        producers: u32,
        consumers: u32,
    ) -> Result<Arc<Self>, Failure> {
        // What `Item` in `queues.h` promises to C++.
        const { assert!(align_of::<T>() <= 8 && size_of::<T>() < 1 << 10) };
        assert!(capacity <= 1 << 30);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "checked when this is compiled"
        )]
        let functions = find(size_of::<T>() as u32).ok_or_else(|| {
            let why = format!("no functions for items of {} bytes", size_of::<T>());
            Failure::CannotRun(why)
        })?;
        let queue = NonNull::new((functions.create)(capacity, producers, consumers));
        Ok(Arc::new(Self {
            functions,
            queue: queue.ok_or_else(|| Failure::system("opening the queue", "no memory"))?,
            items: PhantomData,
        }))
    }
}

impl<T> Drop for Queue<T> {
    /// Frees the queue. Items in it are forgotten: that happens only where a run was given up.
    fn drop(&mut self) {
        // SAFETY: `queue` came from `create` of these functions and is not used again: its ends hold an `Arc` of this.
        unsafe { (self.functions.destroy)(self.queue.as_ptr()) }
    }
}
