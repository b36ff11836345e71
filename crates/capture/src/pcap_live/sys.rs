//! Bindings to the system's libpcap: live handles.
//!
//! This file has the `unsafe` code of the engine.
#![expect(unsafe_code, reason = "calls into the C library libpcap")]

use std::{
    ffi::{CStr, c_char, c_int, c_uint},
    os::fd::BorrowedFd,
    ptr::NonNull,
    slice,
    time::Duration,
};

use super::packet_buffer::PacketBuffer;
use crate::af_packet::RETIRE_MS;

/// `PCAP_ERRBUF_SIZE` of `pcap/pcap.h`.
const ERRBUF_BYTES: usize = 256;
/// `PCAP_TSTAMP_PRECISION_NANO`.
const PRECISION_NANO: c_int = 1;
/// `PCAP_ERROR_BREAK`: `pcap_breakloop` ended the call.
const ERROR_BREAK: c_int = -2;
/// `PCAP_ERROR_NO_SUCH_DEVICE`, `PCAP_ERROR_PERM_DENIED`, `PCAP_ERROR_IFACE_NOT_UP`,
/// `PCAP_ERROR_PROMISC_PERM_DENIED`.
const ERROR_NO_SUCH_DEVICE: c_int = -5;
const ERROR_PERMISSION: c_int = -8;
const ERROR_NOT_UP: c_int = -9;
const ERROR_PROMISCUOUS_PERMISSION: c_int = -11;

/// `pcap_t`, which is opaque.
#[repr(C)]
struct RawPcap {
    _private: [u8; 0],
}

/// `struct pcap_pkthdr`.
#[repr(C)]
struct PacketHeader {
    time: libc::timeval,
    captured_len: u32,
    wire_len: u32,
}

/// `struct pcap_stat`. The counters have 32 bits and wrap around.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub(super) struct PcapStatistics {
    pub(super) received: c_uint,
    pub(super) dropped: c_uint,
    /// 0 if libpcap could not read sysfs. Unused.
    pub(super) interface_dropped: c_uint,
}

type Callback = unsafe extern "C" fn(*mut u8, *const PacketHeader, *const u8);

// Signatures from pcap/pcap.h of libpcap 1.10.3.
#[link(name = "pcap")]
unsafe extern "C" {
    fn pcap_create(device: *const c_char, errbuf: *mut c_char) -> *mut RawPcap;
    fn pcap_set_snaplen(handle: *mut RawPcap, snaplen: c_int) -> c_int;
    fn pcap_set_promisc(handle: *mut RawPcap, promiscuous: c_int) -> c_int;
    fn pcap_set_timeout(handle: *mut RawPcap, milliseconds: c_int) -> c_int;
    fn pcap_set_buffer_size(handle: *mut RawPcap, bytes: c_int) -> c_int;
    fn pcap_set_tstamp_precision(handle: *mut RawPcap, precision: c_int) -> c_int;
    fn pcap_get_tstamp_precision(handle: *mut RawPcap) -> c_int;
    fn pcap_activate(handle: *mut RawPcap) -> c_int;
    fn pcap_setnonblock(handle: *mut RawPcap, nonblocking: c_int, errbuf: *mut c_char) -> c_int;
    fn pcap_get_selectable_fd(handle: *mut RawPcap) -> c_int;
    fn pcap_get_required_select_timeout(handle: *mut RawPcap) -> *const libc::timeval;
    fn pcap_datalink(handle: *mut RawPcap) -> c_int;
    fn pcap_snapshot(handle: *mut RawPcap) -> c_int;
    fn pcap_dispatch(
        handle: *mut RawPcap,
        count: c_int,
        callback: Callback,
        user: *mut u8,
    ) -> c_int;
    fn pcap_breakloop(handle: *mut RawPcap);
    fn pcap_stats(handle: *mut RawPcap, statistics: *mut PcapStatistics) -> c_int;
    fn pcap_geterr(handle: *mut RawPcap) -> *mut c_char;
    fn pcap_statustostr(status: c_int) -> *const c_char;
    fn pcap_close(handle: *mut RawPcap);
}

/// libpcap's own limit (`MAXIMUM_SNAPLEN`), and the longest packet of the recorder's ring.
const SNAPLEN: c_int = 262_144;

/// Timeout of libpcap's packet buffer: the retire time of the AF_PACKET engine.
const TIMEOUT_MS: c_int = RETIRE_MS.cast_signed();

/// Why a handle was not activated.
#[derive(Debug)]
pub(super) enum ActivateError {
    /// The device does not exist.
    NoDevice,
    /// The process may not capture on the device.
    Permission,
    /// The device is switched off.
    NotUp,
    /// Any other error, with libpcap's message.
    Other(String),
}

/// An active, nonblocking live handle.
#[derive(Debug)]
pub(super) struct PcapHandle {
    pcap: NonNull<RawPcap>,
}

// SAFETY: a pcap_t has no ties to the thread that made it (pcap(3PCAP) requires only that one
// thread at a time uses a handle), and every method that changes it takes `&mut self`.
unsafe impl Send for PcapHandle {}

impl PcapHandle {
    /// Opens `device` and requests `buffer_bytes` of kernel or device memory. The second value is
    /// libpcap's warning.
    pub(super) fn open(
        device: &CStr,
        promiscuous: bool,
        buffer_bytes: c_int,
    ) -> Result<(Self, Option<String>), ActivateError> {
        let mut errbuf: [c_char; ERRBUF_BYTES] = [0; ERRBUF_BYTES];
        // SAFETY: `device` ends with a NUL and is copied; `errbuf` has the size that libpcap asks
        // for.
        let pcap = unsafe { pcap_create(device.as_ptr(), errbuf.as_mut_ptr()) };
        let Some(pcap) = NonNull::new(pcap) else {
            return Err(ActivateError::Other(text(&errbuf)));
        };
        let mut handle = Self { pcap };
        handle.set_options(promiscuous, buffer_bytes);
        let warning = handle.activate()?;
        handle.set_nonblocking().map_err(ActivateError::Other)?;
        Ok((handle, warning))
    }

    /// Ignores the results of the setters: they fail on active handles. `pcap_set_tstamp_precision`
    /// also fails if the device lacks the requested precision; the device then keeps its precision.
    fn set_options(&mut self, promiscuous: bool, buffer_bytes: c_int) {
        let pcap = self.pcap.as_ptr();
        // SAFETY: the handle is open and not active.
        unsafe { pcap_set_snaplen(pcap, SNAPLEN) };
        // SAFETY: the handle is open and not active.
        unsafe { pcap_set_promisc(pcap, c_int::from(promiscuous)) };
        // SAFETY: the handle is open and not active.
        unsafe { pcap_set_timeout(pcap, TIMEOUT_MS) };
        // SAFETY: the handle is open and not active.
        unsafe { pcap_set_tstamp_precision(pcap, PRECISION_NANO) };
        // SAFETY: the handle is open and not active.
        unsafe { pcap_set_buffer_size(pcap, buffer_bytes) };
    }

    fn activate(&mut self) -> Result<Option<String>, ActivateError> {
        // SAFETY: the handle is open and not active.
        let status = unsafe { pcap_activate(self.pcap.as_ptr()) };
        if status == 0 {
            return Ok(None);
        }
        let mut words = self.last_error();
        if words.is_empty() {
            // SAFETY: takes an integer.
            let general = unsafe { pcap_statustostr(status) };
            // SAFETY: pcap_statustostr returns a NUL-terminated string of static storage for every
            // integer.
            words = unsafe { CStr::from_ptr(general) }
                .to_string_lossy()
                .into_owned();
        }
        match status {
            1.. => Ok(Some(words)),
            ERROR_NO_SUCH_DEVICE => Err(ActivateError::NoDevice),
            ERROR_PERMISSION | ERROR_PROMISCUOUS_PERMISSION => Err(ActivateError::Permission),
            ERROR_NOT_UP => Err(ActivateError::NotUp),
            _ => Err(ActivateError::Other(words)),
        }
    }

    fn set_nonblocking(&mut self) -> Result<(), String> {
        let mut errbuf: [c_char; ERRBUF_BYTES] = [0; ERRBUF_BYTES];
        // SAFETY: the handle is active, `errbuf` has the size that libpcap asks for.
        match unsafe { pcap_setnonblock(self.pcap.as_ptr(), 1, errbuf.as_mut_ptr()) } {
            0 => Ok(()),
            _ => Err(text(&errbuf)),
        }
    }

    /// The `DLT_` value of the packets.
    pub(super) fn dlt(&self) -> c_int {
        // SAFETY: the handle is active; only reads.
        unsafe { pcap_datalink(self.pcap.as_ptr()) }
    }

    /// Largest number of bytes of a packet that libpcap delivers.
    pub(super) fn snaplen(&self) -> c_int {
        // SAFETY: the handle is active; only reads.
        unsafe { pcap_snapshot(self.pcap.as_ptr()) }
    }

    /// Whether stamps count nanoseconds; otherwise they count microseconds.
    pub(super) fn is_nanoseconds(&self) -> bool {
        // SAFETY: the handle is active; only reads.
        unsafe { pcap_get_tstamp_precision(self.pcap.as_ptr()) == PRECISION_NANO }
    }

    /// The descriptor to poll for packets; `None`: the device has no such descriptor.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the handle is active; only reads.
        let descriptor = unsafe { pcap_get_selectable_fd(self.pcap.as_ptr()) };
        if descriptor < 0 {
            return None;
        }
        // SAFETY: an open descriptor of the handle, which keeps it open until `pcap_close`; that
        // takes `self`.
        Some(unsafe { BorrowedFd::borrow_raw(descriptor) })
    }

    /// Longest poll, for a device whose descriptor does not report every packet, or whose interface
    /// went down; `None`: no limit.
    pub(super) fn poll_limit(&self) -> Option<Duration> {
        // SAFETY: the handle is active; only reads.
        let limit = unsafe { pcap_get_required_select_timeout(self.pcap.as_ptr()) };
        // SAFETY: null, or a timeval inside the handle, which nothing changes while `self` is
        // borrowed.
        let limit = unsafe { limit.as_ref() }?;
        let seconds = u64::try_from(limit.tv_sec).ok()?;
        let microseconds = u64::try_from(limit.tv_usec).ok()?;
        Some(Duration::from_secs(seconds) + Duration::from_micros(microseconds))
    }

    /// Delivers available packets into `packets`.
    ///
    /// # Errors
    /// libpcap's message. Packets that were delivered before the error are in `packets`.
    pub(super) fn dispatch(&mut self, packets: &mut PacketBuffer) -> Result<(), String> {
        let mut delivery = Delivery {
            packets,
            pcap: self.pcap,
            ns_per_unit: if self.is_nanoseconds() { 1 } else { 1000 },
        };
        let user: *mut Delivery<'_> = &raw mut delivery;
        // SAFETY: the handle is active and `&mut self` keeps other threads from it; libpcap calls
        // `on_packet` during this call only, with `user`, which points at `delivery` and is used by
        // nobody else meanwhile.
        let status = unsafe { pcap_dispatch(self.pcap.as_ptr(), -1, on_packet, user.cast()) };
        match status {
            0.. | ERROR_BREAK => Ok(()),
            _ => Err(self.last_error()),
        }
    }

    /// Reads the counters.
    ///
    /// # Errors
    /// libpcap's message, for example if the device has no counters.
    pub(super) fn statistics(&mut self) -> Result<PcapStatistics, String> {
        let mut statistics = PcapStatistics::default();
        // SAFETY: the handle is active, `statistics` is laid out as libpcap's structure and
        // writable.
        match unsafe { pcap_stats(self.pcap.as_ptr(), &raw mut statistics) } {
            0 => Ok(statistics),
            _ => Err(self.last_error()),
        }
    }

    fn last_error(&mut self) -> String {
        // SAFETY: the handle is open; the result is a NUL-terminated string inside it.
        let message = unsafe { pcap_geterr(self.pcap.as_ptr()) };
        // SAFETY: the NUL-terminated string does not change while `&mut self` is held.
        let message = unsafe { CStr::from_ptr(message) };
        message.to_string_lossy().into_owned()
    }
}

impl Drop for PcapHandle {
    fn drop(&mut self) {
        // SAFETY: the handle is open, used nowhere else, and closed once.
        unsafe { pcap_close(self.pcap.as_ptr()) };
    }
}

struct Delivery<'s> {
    packets: &'s mut PacketBuffer,
    pcap: NonNull<RawPcap>,
    /// The unit of `tv_usec`, ns.
    ns_per_unit: i64,
}

/// Copies one packet: libpcap may return its memory to the kernel as soon as this function returns.
///
/// # Safety
/// As `pcap_dispatch` calls it: `user` is the [`Delivery`] of the running call, `header` a packet's
/// header and `data` its `captured_len` bytes.
unsafe extern "C" fn on_packet(user: *mut u8, header: *const PacketHeader, data: *const u8) {
    // SAFETY: the caller guarantees `user`; nobody else uses the value during the call.
    let delivery = unsafe { &mut *user.cast::<Delivery<'_>>() };
    // SAFETY: the caller guarantees `header`.
    let header = unsafe { &*header };
    let data = if data.is_null() {
        &[]
    } else {
        // SAFETY: the caller guarantees `data`, and nothing writes to it before this function
        // returns.
        unsafe { slice::from_raw_parts(data, header.captured_len as usize) }
    };
    let time_ns = header
        .time
        .tv_sec
        .saturating_mul(1_000_000_000)
        .saturating_add(header.time.tv_usec.saturating_mul(delivery.ns_per_unit));
    if !delivery.packets.push(time_ns, header.wire_len, data) {
        // SAFETY: the handle is active; the call sets a flag of it, which pcap_breakloop(3PCAP)
        // allows from callbacks.
        unsafe { pcap_breakloop(delivery.pcap.as_ptr()) };
    }
}

/// libpcap's message in a buffer that was zeroed before.
fn text(errbuf: &[c_char; ERRBUF_BYTES]) -> String {
    let bytes = errbuf.map(|byte| byte.to_ne_bytes()[0]);
    let text = CStr::from_bytes_until_nul(&bytes).unwrap_or_default();
    text.to_string_lossy().into_owned()
}
