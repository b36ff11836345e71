//! Writes lines to a Unix socket as a client, like Suricata's `filetype: unix_stream`.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rustix::{
    io::Errno,
    net::{
        AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, send,
        socket_with,
    },
};

use super::output::{LineOutput, Trouble, wait_for_room};

/// Minimum time between two attempts to connect.
const CONNECT_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Socket {
    path: PathBuf,
    stream: Option<OwnedFd>,
    tried: Instant,
}

impl Socket {
    pub(super) fn open(path: &Path, now: Instant) -> Result<Self, String> {
        let stream = connected(path).map_err(|error| match error {
            Errno::CONNREFUSED => "nobody listens there".to_owned(),
            Errno::PROTOTYPE => "it is no stream socket".to_owned(),
            error => io::Error::from(error).to_string(),
        })?;
        Ok(Self {
            path: path.to_owned(),
            stream: Some(stream),
            tried: now,
        })
    }
}

impl LineOutput for Socket {
    fn write(&mut self, bytes: &[u8], patience: &mut Option<Duration>) -> Result<usize, Trouble> {
        let Some(stream) = &self.stream else {
            return Err(Trouble::Gone("nobody listens there".to_owned()));
        };
        loop {
            match send(stream, bytes, SendFlags::NOSIGNAL) {
                Ok(sent) if sent > 0 => return Ok(sent),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if wait_for_room(stream.as_fd(), patience) => {}
                Ok(_) | Err(Errno::AGAIN) => {
                    return Err(Trouble::Full("its reader is too slow".to_owned()));
                }
                Err(error) => {
                    self.stream = None;
                    return Err(Trouble::Gone(match error {
                        Errno::PIPE | Errno::CONNRESET => "its reader has gone".to_owned(),
                        error => io::Error::from(error).to_string(),
                    }));
                }
            }
        }
    }

    fn renew(&mut self, now: Instant) -> bool {
        if now.saturating_duration_since(self.tried) >= CONNECT_EVERY {
            self.tried = now;
            self.stream = connected(&self.path).ok();
        }
        self.stream.is_some()
    }
}

/// Connects without blocking: connect(2) fails with EAGAIN if the backlog of the listener is full.
fn connected(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}
