//! Waiting for descriptors.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};

use crate::clock::{self, SECOND_NS};

/// Shortest wait if poll(2) reports an error, unless the caller requests less, ns. Another poll(2)
/// may report the error again at once.
const AFTER_ERROR_NS: i64 = 1_000_000;

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

/// Waits until one of the descriptors is readable, or `wait` has passed. Returns earlier after a
/// signal. Returns earlier after an error too, but not in the first millisecond of the wait.
pub(crate) fn wait_for_any(descriptors: &[BorrowedFd<'_>], wait: Duration) {
    let start_ns = clock::monotonic_ns();
    let mut descriptors: Vec<PollFd<'_>> = descriptors
        .iter()
        .map(|descriptor| PollFd::new(descriptor, PollFlags::IN))
        .collect();
    let wait_ns = clock::duration_ns(wait);
    let timeout = Timespec {
        tv_sec: wait_ns / SECOND_NS,
        tv_nsec: wait_ns % SECOND_NS,
    };
    let is_failed = match poll(&mut descriptors, Some(&timeout)) {
        Ok(_) => descriptors
            .iter()
            .any(|it| !it.revents().is_empty() && !it.revents().contains(PollFlags::IN)),
        Err(error) => error != Errno::INTR,
    };
    if is_failed {
        clock::sleep_until(start_ns.saturating_add(wait_ns.min(AFTER_ERROR_NS)));
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write, os::unix::net::UnixStream, time::Instant};

    use super::*;

    #[test]
    fn one_of_several_descriptors_ends_the_wait() {
        let pairs = [UnixStream::pair().unwrap(), UnixStream::pair().unwrap()];
        let ends = pairs.each_ref().map(|(end, _)| end.as_fd());
        let start = Instant::now();
        wait_for_any(&ends, Duration::from_millis(5));
        assert!(start.elapsed() >= Duration::from_millis(5));
        (&pairs[1].1).write_all(b"x").unwrap();
        wait_for_any(&ends, Duration::from_secs(60));
        assert!(start.elapsed() < Duration::from_secs(30));
    }
}
