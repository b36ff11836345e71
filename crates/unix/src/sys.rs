//! Requests to the kernel that rustix does not have: `SO_PEERGROUPS` of unix(7) sockets, since
//! Linux 4.13, and close_range(2), since Linux 5.9; and `SO_PEERCRED`, because the process number
//! in rustix's answer must not be 0.
#![expect(
    unsafe_code,
    reason = "a socket option of variable length, and one with a process number 0; close_range(2)"
)]

use std::{
    io,
    os::fd::{AsFd, AsRawFd},
};

use libc::{SO_PEERCRED, SO_PEERGROUPS, SOL_SOCKET, gid_t, socklen_t, ucred};

/// The kernel's answer to `SO_PEERGROUPS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PeerGroups {
    /// Number of groups that the kernel wrote.
    Count(usize),
    /// Number of groups that there must be room for; nothing is written (`ERANGE`).
    Needs(usize),
}

/// Reads the supplementary groups of the client of a unix socket into `groups`, getsockopt(2).
///
/// # Errors
/// `ENODATA` if the socket has no client, `ENOPROTOOPT` before Linux 4.13.
pub(crate) fn peer_groups(socket: impl AsFd, groups: &mut [gid_t]) -> io::Result<PeerGroups> {
    let descriptor = socket.as_fd().as_raw_fd();
    let mut bytes = socklen_t::try_from(size_of_val(groups)).unwrap_or(socklen_t::MAX);
    let pointer = groups.as_mut_ptr();
    // SAFETY: `pointer` has room for at least `bytes` bytes, any bytes are valid `gid_t`, and both
    // pointers live across the call.
    let result = unsafe {
        libc::getsockopt(
            descriptor,
            SOL_SOCKET,
            SO_PEERGROUPS,
            pointer.cast(),
            &raw mut bytes,
        )
    };
    // The kernel writes the needed length with ERANGE too: net/core/sock.c.
    let count = usize::try_from(bytes).unwrap_or(usize::MAX) / size_of::<gid_t>();
    if result == 0 {
        return Ok(PeerGroups::Count(count));
    }
    match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::ERANGE) => Ok(PeerGroups::Needs(count)),
        error => Err(error),
    }
}

/// Reads the user, the group and the process number of the client of a unix socket, getsockopt(2).
/// The process number is 0 if the client is in no PID namespace that this process sees
/// (pid_namespaces(7)).
///
/// # Errors
/// The descriptor is no socket.
pub(crate) fn peer_credentials(socket: impl AsFd) -> io::Result<ucred> {
    let descriptor = socket.as_fd().as_raw_fd();
    let mut credentials = ucred {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    let mut bytes = socklen_t::try_from(size_of::<ucred>()).unwrap_or(0);
    // SAFETY: `credentials` has `bytes` bytes, any bytes are a valid `ucred`, and both pointers
    // live across the call.
    let result = unsafe {
        libc::getsockopt(
            descriptor,
            SOL_SOCKET,
            SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut bytes,
        )
    };
    match result {
        0 => Ok(credentials),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Closes every descriptor of this process from `first` on, close_range(2).
///
/// Only for the start of a process that owns no such descriptor: descriptors that another part of
/// the process owns would be closed too.
///
/// # Errors
/// The kernel is older than Linux 5.9, or a seccomp filter forbids the call.
pub fn close_from(first: u32) -> io::Result<()> {
    let flags: libc::c_uint = 0;
    // SAFETY: the call reads and writes no memory of the process. The caller owns no descriptor in
    // the range, so no value of this process refers to a closed descriptor.
    match unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
