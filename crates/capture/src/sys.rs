//! System calls that several engines use: socket options with plain values, and mappings.
#![expect(unsafe_code, reason = "system calls that take pointers")]

use std::{
    io,
    mem::zeroed,
    os::fd::{AsFd, AsRawFd},
};

use libc::{c_int, socklen_t};
use memmap2::{MmapOptions, MmapRaw};

/// C structures of integers and pointers, for which every bit pattern is a value, zero included.
///
/// # Safety
/// The type has only integers and pointers. The kernel follows a pointer in it only to data that
/// outlive the call.
pub(crate) unsafe trait Plain: Copy {}

// SAFETY: an integer.
unsafe impl Plain for c_int {}
// SAFETY: an integer.
unsafe impl Plain for u32 {}
// SAFETY: integers.
unsafe impl Plain for [u32; 9] {}

/// Sets a socket option: setsockopt(2).
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

/// Takes the pending error of a socket: `ENETDOWN` if the interface of an XDP or packet socket was
/// removed. A packet socket also reports an interface that went down.
pub(crate) fn take_error(socket: impl AsFd) -> io::Result<Option<io::Error>> {
    let error = rustix::net::sockopt::socket_error(socket)?;
    Ok(error.err().map(io::Error::from))
}

/// Reads a socket option: getsockopt(2). Bytes that the kernel does not write are zero.
pub(crate) fn option<T: Plain>(socket: impl AsFd, level: c_int, name: c_int) -> io::Result<T> {
    // SAFETY: a Plain type is integers and pointers, for which zero is a value.
    let mut value: T = unsafe { zeroed() };
    let mut size = length_of::<T>();
    let (descriptor, pointer) = (socket.as_fd().as_raw_fd(), &raw mut value);
    // SAFETY: `pointer` has room for `size` bytes, both live across the call, and any bytes are a
    // valid Plain value.
    check(unsafe { libc::getsockopt(descriptor, level, name, pointer.cast(), &raw mut size) })?;
    Ok(value)
}

/// The size of a C structure in the type that system calls take.
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

/// Maps `bytes` of a descriptor, starting at `offset`, shared with the kernel. Requests all pages
/// at once (`MAP_POPULATE`).
pub(crate) fn map_shared(descriptor: impl AsFd, bytes: usize, offset: u64) -> io::Result<MmapRaw> {
    let descriptor = descriptor.as_fd().as_raw_fd();
    let mut options = MmapOptions::new();
    options.len(bytes).offset(offset).populate();
    options.map_raw(descriptor)
}

/// Maps `bytes` of zeros. Requests all pages at once (`MAP_POPULATE`).
pub(crate) fn map_zeros(bytes: usize) -> io::Result<MmapRaw> {
    let mapping = MmapOptions::new().len(bytes).populate().map_anon()?;
    Ok(mapping.into())
}
