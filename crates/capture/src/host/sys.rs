//! A netlink socket that the kernel is strict with: setsockopt(2).
#![expect(unsafe_code, reason = "a system call that takes a pointer")]

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

/// `SOL_NETLINK`, and `NETLINK_GET_STRICT_CHK` of `linux/netlink.h`.
const LEVEL: libc::c_int = 270;
const STRICT: libc::c_int = 12;

/// Has the kernel refuse questions that it does not understand, and list only what they ask for. Since Linux 4.20; fails with
/// `ENOPROTOOPT` before.
pub(super) fn set_strict(socket: BorrowedFd<'_>) -> io::Result<()> {
    let on: libc::c_int = 1;
    let length = libc::socklen_t::try_from(size_of::<libc::c_int>()).map_err(io::Error::other)?;
    let pointer: *const libc::c_int = &raw const on;
    // SAFETY: `pointer` leads to `length` readable bytes, which live across the call.
    let outcome =
        unsafe { libc::setsockopt(socket.as_raw_fd(), LEVEL, STRICT, pointer.cast(), length) };
    if outcome != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
