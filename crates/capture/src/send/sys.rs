//! sendmmsg(2).
#![expect(unsafe_code, reason = "a system call that rustix does not have")]

use std::{
    io,
    mem::zeroed,
    os::fd::{AsFd, AsRawFd},
};

use crate::FrameMeta;

/// Frames of a call at most: the headers of so many stay on the stack (4 KiB) and in the L1 cache.
const BATCH: usize = 64;

/// Sends the first frames of `frames`, whose bytes lie in `memory`, on a bound packet socket, up to [`BATCH`] of them.
/// Returns how many went out, at least 1. Panics if a frame lies outside `memory`.
pub(super) fn send_frames(
    socket: impl AsFd,
    memory: &[u8],
    frames: &[FrameMeta],
) -> io::Result<usize> {
    let count = frames.len().min(BATCH);
    let mut parts = [libc::iovec {
        iov_base: std::ptr::null_mut(),
        iov_len: 0,
    }; BATCH];
    // SAFETY: an mmsghdr is integers and pointers, for which zero is a value.
    let mut messages: [libc::mmsghdr; BATCH] = unsafe { zeroed() };
    for ((frame, part), message) in frames.iter().zip(&mut parts).zip(&mut messages) {
        let bytes = &memory[frame.offset..frame.offset + frame.captured_len as usize];
        // The kernel reads through this pointer only, in spite of its type.
        *part = libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        };
        message.msg_hdr.msg_iov = part;
        message.msg_hdr.msg_iovlen = 1;
    }
    let length = libc::c_uint::try_from(count).map_err(|_| io::ErrorKind::InvalidInput)?;
    let descriptor = socket.as_fd().as_raw_fd();
    // SAFETY: the first `count <= BATCH` messages each have one part, a slice of `memory`; messages, parts and memory
    // live across the call, names and control data are empty.
    let sent = unsafe {
        libc::sendmmsg(
            descriptor,
            messages.as_mut_ptr(),
            length,
            libc::MSG_DONTWAIT,
        )
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}
