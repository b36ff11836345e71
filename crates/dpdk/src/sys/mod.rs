//! Bindings to DPDK: safe functions for the functions of `shim/dpdk.c`.
//!
//! This module has all `unsafe` code of the engine. A process has one environment: [`start`]
//! returns the only [`Environment`], and functions that need the environment take a reference to
//! this value, or a value that holds such a reference. `port` opens and closes ports.
//!
//! # Threads
//! DPDK's functions for ports must not run in parallel for one port ("Ethernet device API" in
//! `rte_ethdev.h`), and creating and removing devices changes tables of the whole process. So one
//! thread at a time opens or closes ports ([`PortsLock`]). A lock in each [`Port`] lets one thread
//! at a time query the port. Each receive queue belongs to one [`MbufBurst`].
#![expect(unsafe_code, reason = "calls into the C library DPDK")]

mod port;

pub(super) use port::{MbufPool, Port, PortBuilder, PortsLock};

use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    io,
    marker::PhantomData,
    ptr::{self, NonNull},
    slice,
    sync::{Arc, atomic::Ordering},
};

/// `struct rte_mbuf` and `struct rte_mempool`, which are opaque.
#[repr(C)]
struct Mbuf {
    _private: [u8; 0],
}
#[repr(C)]
struct Mempool {
    _private: [u8; 0],
}

/// A port's description by its driver: `struct rsd_device`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(super) struct PortDescription {
    /// Packet types that the device can hash (`RTE_ETH_RSS_…`); 0: none.
    pub(super) rss_types: u64,
    driver: [c_char; 32],
    /// NUMA node; negative: any.
    pub(super) node: i32,
    pub(super) queues_max: u16,
    pub(super) descriptors_min: u16,
    pub(super) descriptors_max: u16,
    pub(super) mtu_max: u16,
    /// Bytes of a hash key; 0: unknown to the driver.
    pub(super) key_bytes: u8,
    pub(super) can_strip: bool,
    pub(super) can_stamp: bool,
    pub(super) can_scatter: bool,
}

impl PortDescription {
    /// The driver's name, such as `net_null` or `mlx5_pci`.
    pub(super) fn driver(&self) -> String {
        let bytes = self.driver.iter().map(|byte| byte.to_ne_bytes()[0]);
        let bytes: Vec<u8> = bytes.take_while(|byte| *byte != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Configuration of a port: `struct rsd_setup`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct PortSetup {
    /// MTU: bytes of payload of a frame; 0: DPDK's default, at most 1500.
    pub(super) mtu: u32,
    pub(super) queues: u16,
    pub(super) strip: bool,
    pub(super) stamp: bool,
    pub(super) scatter: bool,
}

/// A port's counters since its start: `struct rsd_counters`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub(super) struct PortCounters {
    /// Packets received: `ipackets`.
    pub(super) received: u64,
    /// Packets that the device could not take: `imissed`.
    pub(super) missed: u64,
    /// Damaged packets: `ierrors`.
    pub(super) refused: u64,
    /// Packets for which the driver got no buffer: `rx_nombuf`.
    pub(super) no_buffer: u64,
}

/// The state of a port's link: `struct rsd_link`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub(super) struct PortLink {
    /// Speed in Mbit/s; 0: unknown. The speed of a link that is down is unknown, because it may
    /// come up at another speed.
    pub(super) megabits: u32,
    pub(super) is_up: bool,
}

/// A pool and its memory, as the shim describes both: `struct rsd_pool`.
#[derive(Debug)]
#[repr(C)]
struct RawPool {
    mempool: *mut Mempool,
    zone: *const c_void,
    memory: *mut u8,
    own_at: usize,
    bytes: usize,
}

/// The memory of a pool, in which packets are expected: `struct rsd_view`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct PoolView {
    /// The flag of mbufs that have a stamp; 0: mbufs have no stamps.
    flag: u64,
    memory: *const u8,
    mempool: *mut Mempool,
    bytes: u32,
    /// Offset of a stamp in an mbuf.
    offset: i32,
}

/// A received packet: `struct rsd_frame`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(super) struct RawFrame {
    offset: u32,
    /// Bytes of all segments, according to the driver.
    pub(super) bytes: u32,
    /// Tag control information of the VLAN tag that the device removed.
    pub(super) tci: u16,
    pub(super) is_tagged: bool,
    pub(super) is_stamped: bool,
}

/// Offset of a frame that is not in the pool's memory in one piece: `RSD_ELSEWHERE`.
const ELSEWHERE: u32 = u32::MAX;

impl RawFrame {
    /// Offset of the frame's bytes in [`MbufBurst::memory`], if they are in this memory in one
    /// piece.
    pub(super) fn place(&self) -> Option<usize> {
        (self.offset != ELSEWHERE).then_some(self.offset as usize)
    }
}

const _: () = assert!(size_of::<PortDescription>() == 56 && size_of::<PortSetup>() == 12);
const _: () = assert!(
    size_of::<RawFrame>() == 12 && size_of::<PoolView>() == 32 && size_of::<RawPool>() == 40
);

unsafe extern "C" {
    fn rsd_start(count: c_int, arguments: *mut *mut c_char, keep_quiet: bool) -> c_int;
    safe fn rsd_end(clean_up: bool);
    fn rsd_take_words(into: *mut c_char, room: usize) -> usize;
    safe fn rsd_version() -> *const c_char;
    safe fn rsd_register_thread() -> c_int;
    safe fn rsd_unregister_thread();
    fn rsd_on_own_thread(work: unsafe extern "C" fn(*mut c_void), argument: *mut c_void) -> c_int;
    fn rsd_probe(device: *const c_char) -> c_int;
    fn rsd_find(name: *const c_char, port: *mut u16) -> c_int;
    fn rsd_describe(port: u16, device: *mut PortDescription) -> c_int;
    fn rsd_configure(port: u16, setup: *const PortSetup, key: *mut u8, key_bytes: u8) -> c_int;
    fn rsd_rss_key(port: u16, key: *mut u8, bytes: u8) -> c_int;
    fn rsd_set_rss_key(port: u16, key: *mut u8, bytes: u8) -> c_int;
    fn rsd_set_up_queue(
        port: u16,
        queue: u16,
        descriptors: u16,
        node: c_int,
        pool: *mut Mempool,
    ) -> c_int;
    fn rsd_start_port(port: u16) -> c_int;
    fn rsd_set_promiscuous(port: u16) -> c_int;
    fn rsd_close(port: u16);
    fn rsd_pool(
        name: *const c_char,
        pool: *mut RawPool,
        count: u32,
        room: u16,
        own_bytes: usize,
        node: c_int,
        packed: bool,
    ) -> c_int;
    fn rsd_free_pool(pool: *mut RawPool);
    fn rsd_stamp_place(flag: *mut u64) -> c_int;
    fn rsd_counters(port: u16, counters: *mut PortCounters) -> c_int;
    fn rsd_link(port: u16, link: *mut PortLink) -> c_int;
    fn rsd_clock(port: u16, ticks: *mut u64) -> c_int;
    fn rsd_receive(
        port: u16,
        queue: u16,
        view: *const PoolView,
        mbufs: *mut *mut Mbuf,
        frames: *mut RawFrame,
        room: u16,
        plain: *mut bool,
    ) -> u16;
    fn rsd_stamp(view: *const PoolView, mbuf: *const Mbuf) -> u64;
    fn rsd_gather(mbuf: *const Mbuf, into: *mut u8, room: u32) -> u32;
    fn rsd_free(mbufs: *mut *mut Mbuf, count: u16);
    fn rsd_free_plain(view: *const PoolView, mbufs: *mut *mut Mbuf, count: u16);
}

/// A status below 0 is a negated error number.
fn check(status: c_int) -> io::Result<()> {
    if status < 0 {
        return Err(io::Error::from_raw_os_error(-status));
    }
    Ok(())
}

/// The first 512 bytes of DPDK's messages since the last call, one message per line. Empty if DPDK
/// prints its messages.
pub(super) fn take_log() -> String {
    let mut bytes = [0_u8; 512];
    // SAFETY: `bytes` has room for the requested number of bytes.
    let length = unsafe { rsd_take_words(bytes.as_mut_ptr().cast(), bytes.len()) };
    String::from_utf8_lossy(&bytes[..length.min(bytes.len())]).into_owned()
}

/// The version of DPDK that this program runs with: `DPDK 22.11.11`.
#[must_use]
pub fn version() -> String {
    // SAFETY: rte_version returns a NUL-terminated static string.
    let version = unsafe { CStr::from_ptr(rsd_version()) };
    version.to_string_lossy().into_owned()
}

/// The running environment. There is one such value, which lives as long as the process.
#[derive(Debug)]
pub(super) struct Environment(());

/// Starts the environment. A process can start it once, and not again after its end. After some
/// failures DPDK refuses a second attempt.
///
/// The calling thread becomes the main lcore, and gets the affinity that `arguments` give to the
/// main lcore. So call this function on a separate thread.
pub(super) fn start(arguments: &[String], keep_quiet: bool) -> io::Result<Environment> {
    // DPDK keeps pointers to some of the arguments.
    let raw = |text: &String| Ok(CString::new(text.as_str())?.into_raw());
    let mut list: Vec<_> = arguments.iter().map(raw).collect::<io::Result<_>>()?;
    list.push(ptr::null_mut());
    let list = list.leak();
    let count = c_int::try_from(list.len() - 1).map_err(io::Error::other)?;
    // SAFETY: `list` has `count` strings that end with NUL, then a null pointer, and none is ever
    // freed.
    check(unsafe { rsd_start(count, list.as_mut_ptr(), keep_quiet) })?;
    // SAFETY: `end` may be called at any time. If atexit has no room for `end`, the process ends
    // without a clean-up.
    unsafe { libc::atexit(end) };
    Ok(Environment(()))
}

/// Ends the environment with the process. If a hung thread still holds a port, DPDK does not clean
/// up, and the kernel frees the memory.
extern "C" fn end() {
    // Acquire, pairs with the Release of a `Port` that was closed: its memory was freed before.
    rsd_end(port::OPEN.load(Ordering::Acquire) == 0);
}

impl Environment {
    /// Registers the calling thread, so that it has a cache of buffers.
    pub(super) fn register_thread(&self) -> io::Result<ThreadRegistration> {
        check(rsd_register_thread()).map(|()| ThreadRegistration(PhantomData))
    }

    /// Runs `work` on the environment's interrupt thread, perhaps after this call has returned.
    pub(super) fn on_own_thread(&self, work: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        let argument = Box::into_raw(Box::new(work));
        // SAFETY: `run_work` takes such a box, and is called once.
        let status = unsafe { rsd_on_own_thread(run_work, argument.cast()) };
        check(status).inspect_err(|_| {
            // SAFETY: the box from above, to which nobody else has a pointer.
            drop(unsafe { Box::from_raw(argument) });
        })
    }
}

/// Registration of a thread with the environment. The value stays on that thread.
#[derive(Debug)]
pub(super) struct ThreadRegistration(PhantomData<*const ()>);

impl Drop for ThreadRegistration {
    fn drop(&mut self) {
        rsd_unregister_thread();
    }
}

/// # Safety
/// `argument` comes from [`Environment::on_own_thread`], and this function is called once per
/// argument.
unsafe extern "C" fn run_work(argument: *mut c_void) {
    let work: *mut Box<dyn FnOnce() + Send> = argument.cast();
    // SAFETY: the caller guarantees it.
    let work = unsafe { Box::from_raw(work) };
    work();
}

/// Receives from queues of a port, and lends the packets until the next [`MbufBurst::receive`] or
/// [`MbufBurst::free`].
#[derive(Debug)]
pub(super) struct MbufBurst {
    // A buffer for each of `count` frames.
    mbufs: Box<[*mut Mbuf]>,
    frames: Box<[RawFrame]>,
    count: usize,
    /// All frames are whole packets in buffers of this burst's pool, which have no other
    /// references.
    pub(super) is_plain: bool,
    memory: NonNull<u8>,
    memory_bytes: usize,
    pub(super) own_at: usize,
    view: PoolView,
    port: Arc<Port>,
}

// SAFETY: one thread may receive buffers and another thread may free them, and `&mut self` ensures
// that one thread at a time does so.
unsafe impl Send for MbufBurst {}

impl MbufBurst {
    /// Bursts of up to `size` packets from pool `pool` of a port. There must be only one value per
    /// pool. Panics unless the pool exists.
    pub(super) fn new(port: Arc<Port>, pool: usize, size: u16) -> Self {
        let MbufPool { raw, memory } = &port.pools[pool];
        let mut flag = 0;
        // SAFETY: `flag` is writable. The call reads tables that exist since the start of the
        // environment, under DPDK's own lock for them (`rte_mcfg_tailq_read_lock`).
        let offset = unsafe { rsd_stamp_place(&raw mut flag) };
        let view = PoolView {
            flag: if offset < 0 { 0 } else { flag },
            memory: memory.as_ptr(),
            mempool: raw.mempool,
            // Offsets are compared with this limit; memory after it counts as elsewhere.
            bytes: u32::try_from(raw.own_at).unwrap_or(ELSEWHERE),
            offset,
        };
        Self {
            mbufs: vec![ptr::null_mut(); usize::from(size)].into(),
            frames: vec![RawFrame::default(); usize::from(size)].into(),
            count: 0,
            is_plain: false,
            memory: *memory,
            memory_bytes: raw.bytes,
            own_at: raw.own_at,
            view,
            port,
        }
    }

    /// Frees the lent packets, and receives from `queue`. The caller must own the queue: no other
    /// thread receives from this queue. Returns the number of packets.
    pub(super) fn receive(&mut self, queue: u16) -> usize {
        self.free();
        let room = u16::try_from(self.mbufs.len()).unwrap_or(u16::MAX);
        // SAFETY: the port is started and `&mut self` keeps other threads from the queue. Both
        // arrays have `room` places, `is_plain` is writable, and the view lives across the call.
        let count = unsafe {
            rsd_receive(
                self.port.number,
                queue,
                &raw const self.view,
                self.mbufs.as_mut_ptr(),
                self.frames.as_mut_ptr(),
                room,
                &raw mut self.is_plain,
            )
        };
        self.count = usize::from(count).min(self.frames.len());
        self.count
    }

    /// Returns the buffers to their pools.
    pub(super) fn free(&mut self) {
        let count = u16::try_from(self.count).unwrap_or(u16::MAX);
        self.count = 0;
        if count == 0 {
            return;
        }
        if self.is_plain {
            // SAFETY: the first `count` buffers came from `rsd_receive`, which found them plain,
            // and were not freed yet: `count` is 0 now. The view's pool is theirs, and lives as
            // long as the port.
            unsafe { rsd_free_plain(&raw const self.view, self.mbufs.as_mut_ptr(), count) };
        } else {
            // SAFETY: the first `count` buffers came from `rsd_receive` and were not freed yet:
            // `count` is 0 now. `rsd_free` takes buffers of any kind.
            unsafe { rsd_free(self.mbufs.as_mut_ptr(), count) };
        }
    }

    /// The received frames.
    pub(super) fn frames(&self) -> &[RawFrame] {
        &self.frames[..self.count]
    }

    /// The stamp of frame `index`, in the units of the driver or of the device's clock. Panics
    /// unless the frame is stamped.
    pub(super) fn stamp(&self, index: usize) -> u64 {
        assert!(self.frames()[index].is_stamped);
        // SAFETY: the buffer was received and not freed. A frame is stamped only if mbufs have room
        // for stamps.
        unsafe { rsd_stamp(&raw const self.view, self.mbufs[index]) }
    }

    /// Copies frame `index` to offset `to` of [`Self::memory`], at most `room` bytes. Returns the
    /// number of copied bytes. Panics unless the frame exists, and the `room` bytes at `to` are in
    /// the pool's memory after the buffers.
    pub(super) fn gather(&mut self, index: usize, to: usize, room: u32) -> u32 {
        assert!(index < self.count && to >= self.own_at);
        assert!(
            to.checked_add(room as usize)
                .is_some_and(|end| end <= self.memory_bytes)
        );
        let into = self.memory.as_ptr().wrapping_add(to);
        // SAFETY: the buffer was received and not freed. `room` bytes from `into` on are after the
        // buffers, as asserted, where no driver writes, and `&mut self` excludes borrows of them.
        unsafe { rsd_gather(self.mbufs[index], into, room) }
    }

    /// The pool's memory. Read only lent frames: the rest may change.
    pub(super) fn memory(&self) -> &[u8] {
        // SAFETY: the memory has this length, is initialised (DPDK zeroes the memory that it
        // reserves) and lives until the port is closed, which `self` holds. Received buffers belong
        // to this burst until they are freed, which takes `&mut self`, so no byte of them changes
        // while it is borrowed. The slice also covers the other buffers, because a burst lends one
        // slice for all of its frames; callers read none of them. (They are plain bytes, for which
        // every value is valid.)
        unsafe { slice::from_raw_parts(self.memory.as_ptr(), self.memory_bytes) }
    }
}

impl Drop for MbufBurst {
    fn drop(&mut self) {
        self.free();
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(super) use tests::{Shape, feed};
