//! The interface of the outputs of EVE lines.

use std::{
    os::fd::BorrowedFd,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};

/// An output of EVE lines.
pub(super) trait LineOutput: Send {
    /// Writes at least one byte. Waits for a slow reader at most `patience`, and subtracts the
    /// waited time from `patience`. `None`: without limit.
    ///
    /// # Errors
    /// Nothing was written, for the reason in [`Trouble`].
    fn write(&mut self, bytes: &[u8], patience: &mut Option<Duration>) -> Result<usize, Trouble>;

    /// Called after [`Trouble::Gone`]: returns whether the output is connected again.
    fn renew(&mut self, now: Instant) -> bool {
        let _ = now;
        false
    }

    /// Reopens a file by its name. Returns `false` for other outputs.
    ///
    /// # Errors
    /// A message that says why the file cannot be opened. The old file stays open.
    fn reopen(&mut self) -> Result<bool, String> {
        Ok(false)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Trouble {
    /// No room at present, or another error of a write.
    Full(String),
    /// The socket has no connection, for example because its reader is gone.
    Gone(String),
    /// The reader of stdout is gone, which is no error.
    Left,
}

/// Waits for room. Returns `false` if `patience` is used up or poll(2) fails. After a signal or an
/// error of `fd`, may return `true` without room.
pub(super) fn wait_for_room(fd: BorrowedFd<'_>, patience: &mut Option<Duration>) -> bool {
    let begun = Instant::now();
    let time_out = patience.map(|patience| {
        let longest = Timespec {
            tv_sec: i64::MAX,
            tv_nsec: 0,
        };
        Timespec::try_from(patience).unwrap_or(longest)
    });
    let ready = poll(&mut [PollFd::new(&fd, PollFlags::OUT)], time_out.as_ref());
    if let Some(patience) = patience {
        *patience = patience.saturating_sub(begun.elapsed());
    }
    match ready {
        Ok(0) => false,
        // If `fd` has an error, the next write returns the error.
        Ok(_) => true,
        Err(Errno::INTR) => *patience != Some(Duration::ZERO),
        Err(_) => false,
    }
}
