//! Ports from opening to closing: the lock of the opening thread, the builder, and queries of an
//! open port.

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

/// One thread at a time creates, opens and closes ports.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The lock of the only thread that creates, opens or closes ports. Functions take the lock, or the
/// [`PortBuilder`] that holds it, by `&mut`: a shared reference could be lent to a second thread.
#[derive(Debug)]
pub(crate) struct PortsLock(
    #[expect(dead_code, reason = "held, never looked at")] MutexGuard<'static, ()>,
);

impl PortsLock {
    /// Waits until no other thread opens or closes a port. A thread that has the lock must not call
    /// this function.
    pub(crate) fn acquire() -> Self {
        Self(ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Number of ports that are open or being opened.
pub(super) static OPEN: AtomicUsize = AtomicUsize::new(0);

impl Environment {
    /// Creates a device from its description.
    pub(crate) fn probe(&self, _: &mut PortsLock, device: &str) -> io::Result<()> {
        let device = CString::new(device)?;
        // SAFETY: `device` ends with NUL and is copied; the caller has the ports lock.
        check(unsafe { rsd_probe(device.as_ptr()) })
    }

    /// The port of the device with this name.
    pub(crate) fn find(&self, _: &mut PortsLock, name: &str) -> io::Result<u16> {
        let (name, mut port) = (CString::new(name)?, 0);
        // SAFETY: `name` ends with NUL, `port` is writable; the caller has the ports lock.
        check(unsafe { rsd_find(name.as_ptr(), &raw mut port) })?;
        Ok(port)
    }
}

/// A pool of packet buffers in one block of memory, followed by bytes that belong to the receiver
/// of the packets.
#[derive(Debug)]
pub(crate) struct MbufPool {
    pub(super) raw: RawPool,
    pub(super) memory: NonNull<u8>,
}

// SAFETY: any thread may use a mempool; this value only exposes its address.
unsafe impl Send for MbufPool {}
// SAFETY: any thread may use a mempool, and `&self` allows no changes of this value.
unsafe impl Sync for MbufPool {}

impl Drop for MbufPool {
    fn drop(&mut self) {
        // SAFETY: freed once, by a thread with the ports lock: pools are dropped while a port is
        // being opened, and by `Port::drop`. `Port::drop` first closes the device, so no driver
        // uses the pools any more. Each `MbufBurst` of the port has returned its buffers, because
        // it holds the port.
        unsafe { rsd_free_pool(&raw mut self.raw) };
    }
}

/// A port that is being opened. Its thread holds the ports lock until the opening succeeds or
/// fails.
#[derive(Debug)]
pub(crate) struct PortBuilder {
    // Dropped in this order: the thread still has the lock when it closes the port.
    pub(crate) port: Port,
    ports_lock: PortsLock,
}

impl PortBuilder {
    /// Starts to open the port with this number. Dropping the value closes the port.
    pub(crate) fn new(
        environment: &'static Environment,
        number: u16,
        ports_lock: PortsLock,
    ) -> Self {
        // Relaxed: the count matters at the end of the process, to the thread that has waited for
        // the other threads.
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

    /// Releases the lock, so that other threads may open and close ports.
    pub(crate) fn finish(self) -> Port {
        let Self {
            mut port,
            ports_lock,
        } = self;
        port.is_opening = false;
        drop(ports_lock);
        port
    }

    /// Makes a pool of `count` buffers with `room` bytes each for data, followed by `own_bytes`
    /// bytes for the receiver of the packets. `packed`: the buffers may cross page boundaries,
    /// because no device accesses the buffers.
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
        // SAFETY: the caller has the ports lock, `name` ends with NUL and is copied, `raw` is
        // writable and has the layout of the structure.
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

    /// Configures the port, which is not started. `key`: the hash key if packets should be spread;
    /// otherwise empty.
    pub(crate) fn configure(&mut self, setup: &PortSetup, key: &[u8]) -> io::Result<()> {
        let (key, bytes) = self.port.keep_key(key)?;
        // SAFETY: the caller has the ports lock, and the port is open. The call copies the
        // structure, which lives across the call. The key has `bytes` bytes and lives until the
        // port is closed: only its address is copied, and some drivers read it when the port is
        // started.
        check(unsafe { rsd_configure(self.port.number, setup, key, bytes) })
    }

    /// The device's hash key of `bytes` bytes.
    pub(crate) fn rss_key(&mut self, bytes: usize) -> io::Result<Vec<u8>> {
        let mut key = vec![0; bytes];
        let bytes = u8::try_from(bytes).map_err(io::Error::other)?;
        // SAFETY: the caller has the ports lock, the port is open, `key` has room for `bytes`.
        check(unsafe { rsd_rss_key(self.port.number, key.as_mut_ptr(), bytes) })?;
        Ok(key)
    }

    /// Sets the device's hash key.
    pub(crate) fn set_rss_key(&mut self, key: &[u8]) -> io::Result<()> {
        let (key, bytes) = self.port.keep_key(key)?;
        // SAFETY: the caller has the ports lock, and the port is open. `key` has `bytes` and lives
        // until the port is closed: some drivers copy only its address.
        check(unsafe { rsd_set_rss_key(self.port.number, key, bytes) })
    }

    /// Assigns a pool to a queue of the configured port.
    pub(crate) fn set_up_queue(
        &mut self,
        queue: u16,
        descriptors: u16,
        node: i32,
        pool: &MbufPool,
    ) -> io::Result<()> {
        let mempool = pool.raw.mempool;
        // SAFETY: the caller has the ports lock, and the port is configured and not started. The
        // caller gives the pool to this value, which keeps it until the port is closed.
        check(unsafe { rsd_set_up_queue(self.port.number, queue, descriptors, node, mempool) })
    }

    /// Keeps pools until the port is closed. Puts these pools in front of the pools of earlier
    /// calls.
    pub(crate) fn keep_pools(&mut self, pools: Vec<MbufPool>) {
        self.port.pools.splice(0..0, pools);
    }

    pub(crate) fn start(&mut self) -> io::Result<()> {
        // SAFETY: the caller has the ports lock, the port is configured, and every queue is set up.
        check(unsafe { rsd_start_port(self.port.number) })
    }

    pub(crate) fn set_promiscuous(&mut self) -> io::Result<()> {
        // SAFETY: the caller has the ports lock, the port is open.
        check(unsafe { rsd_set_promiscuous(self.port.number) })
    }
}

/// An opened device, with its receive memory.
#[derive(Debug)]
pub(crate) struct Port {
    pub(super) number: u16,
    /// One pool for each thread, then the pools that the driver refused.
    pub(super) pools: Vec<MbufPool>,
    /// Hash keys that the driver got. The driver may keep their addresses until the port is closed.
    rss_keys: Vec<Vec<u8>>,
    /// Whether a [`PortBuilder`] holds the port; its thread already has the ports lock.
    is_opening: bool,
    /// Lock for queries of the port. Never taken per packet.
    asking: Mutex<()>,
    _environment: &'static Environment,
}

impl Port {
    /// Copies a key, and keeps the copy until the port is closed. Returns its address and length.
    fn keep_key(&mut self, key: &[u8]) -> io::Result<(*mut u8, u8)> {
        let bytes = u8::try_from(key.len()).map_err(io::Error::other)?;
        let mut copy = key.to_vec();
        let start = copy.as_mut_ptr();
        self.rss_keys.push(copy);
        Ok((start, bytes))
    }

    /// A query of the port, which fills a structure.
    fn ask<T: Default>(
        &self,
        question: unsafe extern "C" fn(u16, *mut T) -> c_int,
    ) -> io::Result<T> {
        let _asking = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        let mut answer = T::default();
        // SAFETY: the port is open, no other thread queries it; `answer` is writable and has the
        // layout of the structure.
        check(unsafe { question(self.number, &raw mut answer) })?;
        Ok(answer)
    }

    pub(crate) fn counters(&self) -> io::Result<PortCounters> {
        self.ask(rsd_counters)
    }

    pub(crate) fn link(&self) -> io::Result<PortLink> {
        self.ask(rsd_link)
    }

    /// The time of the device's clock.
    pub(crate) fn clock(&self) -> io::Result<u64> {
        self.ask(rsd_clock)
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        let _alone = (!self.is_opening).then(PortsLock::acquire);
        // SAFETY: this thread has the ports lock, the port is open and nobody uses it: every
        // receiver of its packets holds this value.
        unsafe { rsd_close(self.number) };
        // Free the pools while this thread has the lock, and after the device that received into
        // the pools is closed.
        self.pools.clear();
        // Release, pairs with `end`.
        OPEN.fetch_sub(1, Ordering::Release);
    }
}
