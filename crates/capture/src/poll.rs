//! Waiting for a descriptor.

use std::{io, os::fd::AsFd};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};

use crate::clock::SECOND_NS;

/// Waits until the descriptor can be read, has an error, or `wait_ns` are over. Returns what poll(2) found; nothing where a signal came or the
/// time is over.
///
/// # Errors
/// What the system said.
pub(crate) fn wait_for(descriptor: impl AsFd, wait_ns: i64) -> io::Result<PollFlags> {
    let wait_ns = wait_ns.max(0);
    let timeout = Timespec {
        tv_sec: wait_ns / SECOND_NS,
        tv_nsec: wait_ns % SECOND_NS,
    };
    let mut descriptors = [PollFd::new(&descriptor, PollFlags::IN)];
    match poll(&mut descriptors, Some(&timeout)) {
        Ok(_) => Ok(descriptors[0].revents()),
        Err(Errno::INTR) => Ok(PollFlags::empty()),
        Err(error) => Err(error.into()),
    }
}
