//! Lines on stdout.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use rustix::io::Errno;

use super::output::{LineOutput, Trouble, wait_for_room};

/// Bytes that a pipe with room accepts without blocking: `PIPE_BUF` of pipe(7).
const SURE_BYTES: usize = 4096;

#[derive(Debug)]
pub(super) struct Stdout(pub(super) OwnedFd);

impl Stdout {
    pub(super) fn open() -> Result<Self, String> {
        let fd = io::stdout().as_fd().try_clone_to_owned();
        fd.map(Self).map_err(|error| error.to_string())
    }
}

impl LineOutput for Stdout {
    fn write(&mut self, bytes: &[u8], patience: &mut Option<Duration>) -> Result<usize, Trouble> {
        // Other processes share the blocking mode of the open file, so the mode stays. With
        // `patience`, each write therefore follows a poll(2) and has at most `SURE_BYTES`.
        let bytes = match patience {
            Some(_) => &bytes[..bytes.len().min(SURE_BYTES)],
            None => bytes,
        };
        let slow = || Trouble::Full("its reader is too slow".to_owned());
        loop {
            if patience.is_some() && !wait_for_room(self.0.as_fd(), patience) {
                return Err(slow());
            }
            match rustix::io::write(&self.0, bytes) {
                Ok(taken) if taken > 0 => return Ok(taken),
                Ok(_) => return Err(slow()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if wait_for_room(self.0.as_fd(), patience) => {}
                Err(Errno::AGAIN) => return Err(slow()),
                Err(Errno::PIPE) => return Err(Trouble::Left),
                Err(error) => return Err(Trouble::Full(error.to_string())),
            }
        }
    }
}
