//! The peers that are C and C++: ReaderWriterQueue, ConcurrentQueue, DPDK's rte_ring, and folly's queues where somebody has them.
//!
//! Built with feature `peers` only, through the shim in `bench/shim`, from Debian's packages, folly by the path in `FOLLY_INCLUDE` (see
//! `build.rs`). Each operation is one call through a function pointer, which costs about a nanosecond: nothing for buffers of 64
//! packets, a little where every packet is an operation.
//!
//! [`Queue`] owns a queue, its ends keep it alive, and an item that was sent is forgotten on this side until it is received:
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

use super::{Full, Opened, Receiver, Sender, Shape, Slot, Style, peer};
use crate::{contest::Contest, measure::Failure};

/// `struct queue_functions` of `queues.h`, field by field.
#[derive(Debug)]
#[repr(C)]
struct Functions {
    create: extern "C" fn(u32, u32, u32) -> *mut c_void,
    destroy: unsafe extern "C" fn(*mut c_void),
    sender_open: unsafe extern "C" fn(*mut c_void) -> *mut c_void,
    sender_close: unsafe extern "C" fn(*mut c_void),
    receiver_open: unsafe extern "C" fn(*mut c_void) -> *mut c_void,
    receiver_close: unsafe extern "C" fn(*mut c_void),
    try_send: unsafe extern "C" fn(*mut c_void, *mut c_void, *const c_void) -> bool,
    try_receive: unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_void) -> bool,
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

/// Name, functions, and whether it is for one producer and one consumer.
const PEERS: &[(&str, Find, bool)] = &[
    ("reader-writer-queue", readerwriterqueue_functions, true),
    ("concurrent-queue", concurrentqueue_functions, false),
    ("rte-ring-sp", rte_ring_sp_functions, true),
    // A thread that is preempted between taking its slots and moving the tail lets all others spin until it runs again.
    ("rte-ring-mp", rte_ring_mp_functions, false),
    // Relaxed tail synchronisation, DPDK's answer to more threads than CPUs.
    ("rte-ring-rts", rte_ring_rts_functions, false),
    #[cfg(folly)]
    ("folly-pcq", folly_pcq_functions, true),
    #[cfg(folly)]
    ("folly-mpmc", folly_mpmc_functions, false),
];

pub(super) fn all(style: Style) -> impl Iterator<Item = (&'static str, Box<dyn Contest>)> {
    PEERS.iter().map(move |&(name, find, is_of_pairs)| {
        let peer = peer(
            style,
            move |shape| open::<Full>(find, is_of_pairs, shape),
            move |shape| open::<Slot>(find, is_of_pairs, shape),
            move |shape| open::<Box<Slot>>(find, is_of_pairs, shape),
        );
        (name, peer)
    })
}

fn open<T>(
    find: Find,
    is_of_pairs: bool,
    shape: Shape,
) -> Opened<NativeSender<T>, NativeReceiver<T>> {
    let (queues, threads) = if is_of_pairs {
        (shape.pairs()?, (1, 1))
    } else {
        (1, (shape.producers, shape.consumers))
    };
    let (mut senders, mut receivers) = (Vec::new(), Vec::new());
    for _ in 0..queues {
        let queue = Queue::new(find, shape.capacity, threads)?;
        let Functions {
            sender_open,
            sender_close,
            receiver_open,
            receiver_close,
            ..
        } = *queue.functions;
        for _ in 0..threads.0 {
            senders.push(NativeSender(End::open(&queue, sender_open, sender_close)?));
        }
        for _ in 0..threads.1 {
            receivers.push(NativeReceiver(End::open(
                &queue,
                receiver_open,
                receiver_close,
            )?));
        }
    }
    Ok((senders, receivers))
}

fn no_memory() -> Failure {
    Failure::system("opening the queue", "no memory")
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
// SAFETY: as above; a shared reference allows to open ends, which `open` does before threads are started.
unsafe impl<T: Send> Sync for Queue<T> {}

impl<T> Queue<T> {
    fn new(find: Find, capacity: usize, threads: (usize, usize)) -> Result<Arc<Self>, Failure> {
        // What `Item` in `queues.h` promises to C++.
        const { assert!(align_of::<T>() <= 8) };
        let number = |value: usize| {
            let value = u32::try_from(value).ok();
            value
                .filter(|value| *value <= 1 << 30)
                .ok_or_else(no_memory)
        };
        let functions = find(number(size_of::<T>())?).ok_or_else(|| {
            let why = format!("no functions for items of {} bytes", size_of::<T>());
            Failure::CannotRun(why)
        })?;
        let queue = (functions.create)(number(capacity)?, number(threads.0)?, number(threads.1)?);
        Ok(Arc::new(Self {
            functions,
            queue: NonNull::new(queue).ok_or_else(no_memory)?,
            items: PhantomData,
        }))
    }
}

impl<T> Drop for Queue<T> {
    /// Frees the queue. Items in it are forgotten: that happens only where a run was given up.
    fn drop(&mut self) {
        // SAFETY: `queue` came from `create` of these functions and is not used again. Ends hold an `Arc` of this, so
        // all are closed.
        unsafe { (self.functions.destroy)(self.queue.as_ptr()) }
    }
}

/// One end of a queue, for one thread: a sender or a receiver.
#[derive(Debug)]
struct End<T> {
    queue: Arc<Queue<T>>,
    end: NonNull<c_void>,
    close: unsafe extern "C" fn(*mut c_void),
}

// SAFETY: an end may be moved to another thread; it is used by one at a time, because its calls take `&mut`.
unsafe impl<T: Send> Send for End<T> {}

impl<T> End<T> {
    /// `open` and `close` are those of senders, or those of receivers, of the queue's functions.
    fn open(
        queue: &Arc<Queue<T>>,
        open: unsafe extern "C" fn(*mut c_void) -> *mut c_void,
        close: unsafe extern "C" fn(*mut c_void),
    ) -> Result<Self, Failure> {
        // SAFETY: the queue is alive and came from `create` of the functions that `open` is of.
        let end = unsafe { open(queue.queue.as_ptr()) };
        Ok(Self {
            queue: Arc::clone(queue),
            end: NonNull::new(end).ok_or_else(no_memory)?,
            close,
        })
    }
}

impl<T> Drop for End<T> {
    fn drop(&mut self) {
        // SAFETY: `end` came from the open function that goes with `close`, is not used again, and its queue is alive.
        unsafe { (self.close)(self.end.as_ptr()) }
    }
}

/// A sender of one thread.
#[derive(Debug)]
struct NativeSender<T>(End<T>);

impl<T: Send> Sender<T> for NativeSender<T> {
    fn try_send(&mut self, item: T) -> Result<(), T> {
        let item = ManuallyDrop::new(item);
        let End { queue, end, .. } = &self.0;
        // SAFETY: queue and sender belong together and are alive, `&mut self` makes this the only use of the sender, and
        // `item` has the size for which the functions were looked up, aligned to at most 8.
        let sent = unsafe {
            (queue.functions.try_send)(queue.queue.as_ptr(), end.as_ptr(), (&raw const item).cast())
        };
        if sent {
            Ok(())
        } else {
            Err(ManuallyDrop::into_inner(item))
        }
    }
}

/// A receiver of one thread.
#[derive(Debug)]
struct NativeReceiver<T>(End<T>);

impl<T: Send> Receiver<T> for NativeReceiver<T> {
    fn try_receive(&mut self) -> Option<T> {
        let mut item = MaybeUninit::<T>::uninit();
        let End { queue, end, .. } = &self.0;
        let place = item.as_mut_ptr().cast();
        // SAFETY: as in `try_send`; `item` has room for one.
        let received =
            unsafe { (queue.functions.try_receive)(queue.queue.as_ptr(), end.as_ptr(), place) };
        // SAFETY: `true` means that all bytes of one item were written, and that item was a `T` whose sender forgot it.
        received.then(|| unsafe { item.assume_init() })
    }
}
