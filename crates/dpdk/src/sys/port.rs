//! Ports, from the device's name to its end: who is ports_lock, what is open_port, what an open one can be asked.

use std::{
    ffi::{CString, c_int},
    io,
    ptr::{self, NonNull},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use super::{
    Environment, PortCounters, PortDescription, PortLink, PortSetup, RawPool, check, rsd_clock,
    rsd_close, rsd_configure, rsd_counters, rsd_describe, rsd_find, rsd_free_pool, rsd_link,
    rsd_pool, rsd_probe, rsd_rss_key, rsd_set_promiscuous, rsd_set_rss_key, rsd_set_up_queue,
    rsd_start_port,
};

/// Ports are made, open_port and closed by one thread at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The thread that has this is the only one that makes, opens or closes ports. What needs it takes it, or the [`PortBuilder`] that holds
/// it, by `&mut`: a shared reference could be lent to a second thread.
#[derive(Debug)]
pub(crate) struct PortsLock(
    #[expect(dead_code, reason = "held, never looked at")] MutexGuard<'static, ()>,
);

impl PortsLock {
    /// Waits until no other thread opens or closes a port. Not for a thread that is ports_lock already.
    pub(crate) fn acquire() -> Self {
        Self(ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Ports that are open.
pub(super) static OPEN: AtomicUsize = AtomicUsize::new(0);

impl Environment {
    /// Makes a device out of its description and its driver.
    pub(crate) fn probe(&self, _: &mut PortsLock, device: &str) -> io::Result<()> {
        let device = CString::new(device)?;
        // SAFETY: `device` ends with NUL and is copied; the caller is ports_lock.
        check(unsafe { rsd_probe(device.as_ptr()) })
    }

    /// The port of the device of that name.
    pub(crate) fn find(&self, _: &mut PortsLock, name: &str) -> io::Result<u16> {
        let (name, mut port) = (CString::new(name)?, 0);
        // SAFETY: `name` ends with NUL, `port` is writable; the caller is ports_lock.
        check(unsafe { rsd_find(name.as_ptr(), &raw mut port) })?;
        Ok(port)
    }
}

/// A pool of packet buffers in one stretch of memory, with bytes behind them that belong to whoever receives into it.
#[derive(Debug)]
pub(crate) struct MbufPool {
    pub(super) raw: RawPool,
    pub(super) memory: NonNull<u8>,
}

// SAFETY: a mempool may be used by any thread; this value gives out its address only.
unsafe impl Send for MbufPool {}
// SAFETY: as above; nothing is changed through `&self`.
unsafe impl Sync for MbufPool {}

impl Drop for MbufPool {
    fn drop(&mut self) {
        // SAFETY: freed once, by a thread that is ports_lock: pools are dropped while a port is being open_port, and by `Port::drop`. That
        // closes the device first, so no driver uses them any more, and each `MbufBurst` of it has given its buffers back, because
        // it holds the port.
        unsafe { rsd_free_pool(&raw mut self.raw) };
    }
}

/// A port that is being open_port, by a thread that is ports_lock until it is done or has failed.
#[derive(Debug)]
pub(crate) struct PortBuilder {
    // Dropped in this order: the port is closed by a thread that is still ports_lock.
    pub(crate) port: Port,
    ports_lock: PortsLock,
}

impl PortBuilder {
    /// The port of that number, which is closed with this value.
    pub(crate) fn new(
        environment: &'static Environment,
        number: u16,
        ports_lock: PortsLock,
    ) -> Self {
        // Relaxed: the count matters at the end of the process, to the thread that waited for the others.
        OPEN.fetch_add(1, Ordering::Relaxed);
        let port = Port {
            number,
            pools: Vec::new(),
            rss_keys: Vec::new(),
            is_opening: true,
            asking: Mutex::new(()),
            _environment: environment,
        };
        Self { port, ports_lock }
    }

    /// Lets other threads open and close ports.
    pub(crate) fn finish(self) -> Port {
        let Self {
            mut port,
            ports_lock,
        } = self;
        port.is_opening = false;
        drop(ports_lock);
        port
    }

    /// A pool of `count` buffers with `room` bytes each for data, and `own_bytes` behind them. `packed`: the buffers may lie across the
    /// end of a page, because no device reads or writes them.
    pub(crate) fn pool(
        &mut self,
        name: &str,
        count: u32,
        room: u16,
        own_bytes: usize,
        node: i32,
        packed: bool,
    ) -> io::Result<MbufPool> {
        let name = CString::new(name)?;
        let mut raw = RawPool {
            mempool: ptr::null_mut(),
            zone: ptr::null(),
            memory: ptr::null_mut(),
            own_at: 0,
            bytes: 0,
        };
        // SAFETY: the caller is ports_lock, `name` ends with NUL and is copied, `raw` is writable and laid out as the structure.
        check(unsafe {
            rsd_pool(
                name.as_ptr(),
                &raw mut raw,
                count,
                room,
                own_bytes,
                node,
                packed,
            )
        })?;
        let memory = NonNull::new(raw.memory).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(MbufPool { raw, memory })
    }

    pub(crate) fn describe(&mut self) -> io::Result<PortDescription> {
        self.port.ask(rsd_describe)
    }

    /// Configures the port, which is not started. `key`: what it is to hash with, where packets are to be spread; else empty.
    pub(crate) fn configure(&mut self, setup: &PortSetup, key: &[u8]) -> io::Result<()> {
        let (key, bytes) = self.port.keep_key(key)?;
        // SAFETY: the caller is ports_lock, the port is open. The structure lives across the call, which copies it; the key, of so many
        // bytes, until the port is closed: only its address is copied, and some drivers read it when the port is started.
        check(unsafe { rsd_configure(self.port.number, setup, key, bytes) })
    }

    /// The key of so many bytes that the device hashes with.
    pub(crate) fn rss_key(&mut self, bytes: usize) -> io::Result<Vec<u8>> {
        let mut key = vec![0; bytes];
        let bytes = u8::try_from(bytes).map_err(io::Error::other)?;
        // SAFETY: the caller is ports_lock, the port is open, `key` has room for `bytes`.
        check(unsafe { rsd_rss_key(self.port.number, key.as_mut_ptr(), bytes) })?;
        Ok(key)
    }

    /// Sets the key that the device hashes with.
    pub(crate) fn set_rss_key(&mut self, key: &[u8]) -> io::Result<()> {
        let (key, bytes) = self.port.keep_key(key)?;
        // SAFETY: the caller is ports_lock, the port is open, `key` has `bytes` and lives until the port is closed: some drivers copy only
        // its address.
        check(unsafe { rsd_set_rss_key(self.port.number, key, bytes) })
    }

    /// Gives a queue of the configured port its pool.
    pub(crate) fn set_up_queue(
        &mut self,
        queue: u16,
        descriptors: u16,
        node: i32,
        pool: &MbufPool,
    ) -> io::Result<()> {
        let mempool = pool.raw.mempool;
        // SAFETY: the caller is ports_lock, the port is configured and not started, and the caller gives the pool to this value, which
        // keeps it until the port is closed.
        check(unsafe { rsd_set_up_queue(self.port.number, queue, descriptors, node, mempool) })
    }

    /// Keeps pools until the port is closed, in front of those that it keeps already.
    pub(crate) fn keep_pools(&mut self, pools: Vec<MbufPool>) {
        self.port.pools.splice(0..0, pools);
    }

    pub(crate) fn start(&mut self) -> io::Result<()> {
        // SAFETY: the caller is ports_lock, the port is configured, and every queue is set up.
        check(unsafe { rsd_start_port(self.port.number) })
    }

    pub(crate) fn set_promiscuous(&mut self) -> io::Result<()> {
        // SAFETY: the caller is ports_lock, the port is open.
        check(unsafe { rsd_set_promiscuous(self.port.number) })
    }
}

/// A device that was open_port, with the memory that it receives into.
#[derive(Debug)]
pub(crate) struct Port {
    pub(super) number: u16,
    /// First one for each thread, then those that the driver refused.
    pub(super) pools: Vec<MbufPool>,
    /// The keys that the driver was given, which may know their addresses until the port is closed.
    rss_keys: Vec<Vec<u8>>,
    /// Whether an [`PortBuilder`] holds it, whose thread is ports_lock already.
    is_opening: bool,
    /// Who asks the port something. Never taken for a packet.
    asking: Mutex<()>,
    _environment: &'static Environment,
}

impl Port {
    /// A copy of a key, which lives until the port is closed, and its length.
    fn keep_key(&mut self, key: &[u8]) -> io::Result<(*mut u8, u8)> {
        let bytes = u8::try_from(key.len()).map_err(io::Error::other)?;
        let mut copy = key.to_vec();
        let start = copy.as_mut_ptr();
        self.rss_keys.push(copy);
        Ok((start, bytes))
    }

    /// One of the questions about a port, each of which fills a structure.
    fn ask<T: Default>(
        &self,
        question: unsafe extern "C" fn(u16, *mut T) -> c_int,
    ) -> io::Result<T> {
        let _asking = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        let mut answer = T::default();
        // SAFETY: the port is open, no other thread asks it; `answer` is writable and laid out as the structure.
        check(unsafe { question(self.number, &raw mut answer) })?;
        Ok(answer)
    }

    pub(crate) fn counters(&self) -> io::Result<PortCounters> {
        self.ask(rsd_counters)
    }

    pub(crate) fn link(&self) -> io::Result<PortLink> {
        self.ask(rsd_link)
    }

    /// What the device's clock shows.
    pub(crate) fn clock(&self) -> io::Result<u64> {
        self.ask(rsd_clock)
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        let _alone = (!self.is_opening).then(PortsLock::acquire);
        // SAFETY: this thread is ports_lock, the port is open and nobody uses it: whoever receives from it holds this value.
        unsafe { rsd_close(self.number) };
        // While this thread is ports_lock, and behind the device that received into them.
        self.pools.clear();
        // Release, pairs with `end`.
        OPEN.fetch_sub(1, Ordering::Release);
    }
}
