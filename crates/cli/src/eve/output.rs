//! What lines go out to.

use std::{
    os::fd::BorrowedFd,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};

/// What lines go out to.
pub(super) trait LineOutput: Send {
    /// Takes at least one byte, at most all. Waits no longer than `patience`, of which it takes
    /// what it waited; `None`: as long as it takes.
    ///
    /// # Errors
    /// Nothing was taken: see [`Trouble`].
    fn write(&mut self, bytes: &[u8], patience: &mut Option<Duration>) -> Result<usize, Trouble>;

    /// After [`Trouble::Gone`]: whether there is something new to write to. `now` is of a monotonic
    /// clock.
    fn renew(&mut self, now: Instant) -> bool {
        let _ = now;
        false
    }

    /// Opens a file again by its name: whether this is one.
    ///
    /// # Errors
    /// What the system said. The old file is still open.
    fn reopen(&mut self) -> Result<bool, String> {
        Ok(false)
    }
}

/// Why an output takes nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Trouble {
    /// It has no room for now. A line of which it has a part goes on later.
    Full(String),
    /// What it wrote to is gone.
    Gone(String),
    /// Nobody reads stdout any more, who may.
    Left,
}

/// Waits until there is room; `false`: the patience is at its end.
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
        // What is wrong is what the next write says.
        Ok(_) => true,
        Err(Errno::INTR) => *patience != Some(Duration::ZERO),
        Err(_) => false,
    }
}
