//! The C side of the native peers: `bench/shim/queues.h`, and the only code that calls it.
//!
//! [`Queue`] owns a queue, its ends keep it alive, and an item that was sent is forgotten on this side until it is received:
//! so each item has one owner. The items' bytes are copied, which is a move in Rust for every type.
#![expect(
    unsafe_code,
    reason = "calls C and C++ through function pointers, and moves items as bytes"
)]

use std::ffi::{CStr, c_char, c_void};
use std::marker::PhantomData;
use std::mem::{ManuallyDrop, MaybeUninit, align_of, size_of};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::peers::queue::{Refusal, Shape};

/// `struct queue_functions` of `queues.h`, field by field.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Functions {
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
pub(super) type Find = extern "C" fn(u32) -> Option<&'static Functions>;

// SAFETY: the declarations are those of `queues.h`. Each looks up a constant table and may be called with any number; the
// tables are never changed or freed, and NULL is `None`.
unsafe extern "C" {
    pub(super) safe fn readerwriterqueue_functions(item_bytes: u32) -> Option<&'static Functions>;
    pub(super) safe fn concurrentqueue_functions(item_bytes: u32) -> Option<&'static Functions>;
    pub(super) safe fn rte_ring_sp_functions(item_bytes: u32) -> Option<&'static Functions>;
    pub(super) safe fn rte_ring_mp_functions(item_bytes: u32) -> Option<&'static Functions>;
    pub(super) safe fn rte_ring_rts_functions(item_bytes: u32) -> Option<&'static Functions>;
    safe fn dpdk_version() -> *const c_char;
}

/// What the native peers call the version of DPDK that they were compiled with.
pub(super) fn dpdk() -> &'static str {
    // SAFETY: `dpdk_version` returns a string that ends in NUL and is never changed or freed.
    unsafe { CStr::from_ptr(dpdk_version()) }
        .to_str()
        .unwrap_or("DPDK")
}

/// A queue of C or C++ for items of type `T`.
#[derive(Debug)]
pub(super) struct Queue<T> {
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
    /// An empty queue.
    ///
    /// # Errors
    /// [`Refusal::Slot`] where no functions were compiled for the size of `T`, [`Refusal::Memory`].
    pub(super) fn new(find: Find, shape: Shape) -> Result<Arc<Self>, Refusal> {
        // What `Item` in `queues.h` promises to C++.
        const { assert!(align_of::<T>() <= 8) };
        let no_slot = Refusal::Slot {
            bytes: size_of::<T>(),
        };
        let no_memory = Refusal::Memory {
            capacity: shape.capacity,
            item_bytes: size_of::<T>(),
        };
        let functions = u32::try_from(size_of::<T>())
            .ok()
            .and_then(|bytes| find(bytes))
            .ok_or(no_slot)?;
        let number = |value: usize| {
            u32::try_from(value)
                .ok()
                .filter(|value| *value <= 1 << 30)
                .ok_or(no_memory)
        };
        let queue = (functions.create)(
            number(shape.capacity)?,
            number(shape.producers)?,
            number(shape.consumers)?,
        );
        let queue = NonNull::new(queue).ok_or(no_memory)?;
        Ok(Arc::new(Self {
            functions,
            queue,
            items: PhantomData,
        }))
    }

    fn no_memory(&self) -> Refusal {
        Refusal::Memory {
            capacity: 1,
            item_bytes: size_of::<T>(),
        }
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

impl<T> Drop for End<T> {
    fn drop(&mut self) {
        // SAFETY: `end` came from the open function that goes with `close`, is not used again, and its queue is alive.
        unsafe { (self.close)(self.end.as_ptr()) }
    }
}

/// A sender of one thread.
#[derive(Debug)]
pub struct NativeSender<T>(End<T>);

impl<T> NativeSender<T> {
    /// Opens an end.
    ///
    /// # Errors
    /// [`Refusal::Memory`].
    pub(super) fn open(queue: &Arc<Queue<T>>) -> Result<Self, Refusal> {
        // SAFETY: the queue is alive and came from `create` of these functions.
        let end = unsafe { (queue.functions.sender_open)(queue.queue.as_ptr()) };
        let end = NonNull::new(end).ok_or_else(|| queue.no_memory())?;
        Ok(Self(End {
            queue: Arc::clone(queue),
            end,
            close: queue.functions.sender_close,
        }))
    }

    /// Sends `item`, or gives it back.
    ///
    /// # Errors
    /// The item, when the queue is full.
    pub(super) fn try_send(&mut self, item: T) -> Result<(), T> {
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
pub struct NativeReceiver<T>(End<T>);

impl<T> NativeReceiver<T> {
    /// Opens an end.
    ///
    /// # Errors
    /// [`Refusal::Memory`].
    pub(super) fn open(queue: &Arc<Queue<T>>) -> Result<Self, Refusal> {
        // SAFETY: the queue is alive and came from `create` of these functions.
        let end = unsafe { (queue.functions.receiver_open)(queue.queue.as_ptr()) };
        let end = NonNull::new(end).ok_or_else(|| queue.no_memory())?;
        Ok(Self(End {
            queue: Arc::clone(queue),
            end,
            close: queue.functions.receiver_close,
        }))
    }

    /// The next item, if there is one now.
    pub(super) fn try_receive(&mut self) -> Option<T> {
        let mut item = MaybeUninit::<T>::uninit();
        let End { queue, end, .. } = &self.0;
        // SAFETY: as in `try_send`; `item` has room for one.
        let received = unsafe {
            (queue.functions.try_receive)(
                queue.queue.as_ptr(),
                end.as_ptr(),
                item.as_mut_ptr().cast(),
            )
        };
        // SAFETY: `true` means that all bytes of one item were written, and that item was a `T` whose sender forgot it.
        received.then(|| unsafe { item.assume_init() })
    }
}
