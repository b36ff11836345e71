//! What the engines need of the kernel alike: socket options with plain values, and mappings.
#![expect(
    unsafe_code,
    reason = "system calls that take pointers, and memory shared with the kernel"
)]

use std::{
    io,
    mem::zeroed,
    os::fd::{AsFd, AsRawFd},
    ptr::NonNull,
};

use libc::{c_int, socklen_t};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

/// C structures of integers and pointers: every bit pattern, zero among them, is a value.
///
/// # Safety
/// Only for such types; the kernel follows pointers in them only to what lives as long as the call.
pub(crate) unsafe trait Plain: Copy {}

// SAFETY: an integer.
unsafe impl Plain for c_int {}
// SAFETY: an integer.
unsafe impl Plain for u32 {}

/// Sets a socket option, setsockopt(2).
pub(crate) fn set_option<T: Plain>(
    socket: impl AsFd,
    level: c_int,
    name: c_int,
    value: &T,
) -> io::Result<()> {
    let (descriptor, pointer) = (socket.as_fd().as_raw_fd(), std::ptr::from_ref(value));
    // SAFETY: `pointer` is `length_of::<T>()` readable bytes that live across the call.
    check(unsafe { libc::setsockopt(descriptor, level, name, pointer.cast(), length_of::<T>()) })?;
    Ok(())
}

/// Takes the error that the kernel left at a socket, if any: `ENETDOWN` when its interface went down or was removed.
pub(crate) fn take_error(socket: impl AsFd) -> io::Result<Option<io::Error>> {
    let error = rustix::net::sockopt::socket_error(socket)?;
    Ok(error.err().map(io::Error::from))
}

/// Reads a socket option, getsockopt(2); what the kernel leaves out is zero.
pub(crate) fn option<T: Plain>(socket: impl AsFd, level: c_int, name: c_int) -> io::Result<T> {
    // SAFETY: a Plain type is integers and pointers, for which zero is a value.
    let mut value: T = unsafe { zeroed() };
    let mut size = length_of::<T>();
    let (descriptor, pointer) = (socket.as_fd().as_raw_fd(), &raw mut value);
    // SAFETY: `pointer` has room for `size` bytes, both live across the call, and any bytes are a valid Plain value.
    check(unsafe { libc::getsockopt(descriptor, level, name, pointer.cast(), &raw mut size) })?;
    Ok(value)
}

/// The size of a C structure, as system calls take it.
pub(crate) fn length_of<T>() -> socklen_t {
    const { assert!(size_of::<T>() < 1024) };
    #[expect(clippy::cast_possible_truncation, reason = "asserted above")]
    let length = size_of::<T>() as socklen_t;
    length
}

/// The result of a system call, or `errno`.
pub(crate) fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

/// Mapped memory, readable and writable. Who reads or writes there argues for it.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to this value alone and does not depend on the thread.
unsafe impl Send for Mapping {}
// SAFETY: `&self` gives out the address only.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `bytes` of a descriptor from `offset` on, all there from the start.
    pub(crate) fn shared(descriptor: impl AsFd, bytes: usize, offset: u64) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        let place = std::ptr::null_mut();
        // SAFETY: a new mapping at a place of the kernel's choice overlaps nothing.
        let start = unsafe { mmap(place, bytes, protection, flags, descriptor, offset) }?;
        Self::new(start.cast(), bytes)
    }

    /// Maps `bytes` of zeros, all there from the start.
    pub(crate) fn anonymous(bytes: usize) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
        // SAFETY: a new mapping at a place of the kernel's choice overlaps nothing.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, protection, flags) }?;
        Self::new(start.cast(), bytes)
    }

    fn new(start: *mut u8, bytes: usize) -> io::Result<Self> {
        let start = NonNull::new(start).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, bytes })
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly what was mapped, and borrows of it ended with this value. It can only fail for other arguments.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}
