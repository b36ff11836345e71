//! Waiting for a descriptor.

use std::{io, os::fd::AsFd};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};

use crate::clock::SECOND_NS;

/// Waits until the descriptor is readable, has an error, or `wait_ns` have passed. Returns the
/// flags that poll(2) found, or no flags after a signal or the whole wait.
///
/// # Errors
/// The system's error.
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
