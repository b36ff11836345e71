//! The sockets that an IDS writes its lines to. The recorder binds the sockets, and Suricata
//! connects. Suricata drops a line that it cannot send at once, so one thread only receives lines;
//! another thread parses them.

use std::{
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::{UnixDatagram, UnixListener, UnixStream},
    },
    path::Path,
    sync::Arc,
    time::Duration,
};

use retroscope_alert::{LINE_BYTES_MAX, LineSplitter};
use retroscope_recorder::{AlertLines, RecorderHandle};
use retroscope_unix::{BoundSocket, Notifier, Owner, SocketFile};
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    io::Errno,
};

use super::line_queue::LineSender;
use crate::failure::say;

/// Maximum number of connections of all listeners together. An IDS may open a connection for each
/// of its threads.
const CLIENTS_MAX: usize = 64;
/// Maximum number of datagrams of one socket that are received, and of connections of one listener
/// that are accepted, before the other sockets have their turn.
const TURN: usize = 64;
/// Maximum time until accept(2) is tried again after it failed, for example because the process has
/// no free descriptor (`EMFILE`).
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Sockets that are bound before privileges are dropped. Dropping [`Sockets`] removes the files.
#[derive(Debug, Default)]
pub(super) struct Sockets {
    listeners: Vec<UnixListener>,
    datagrams: Vec<UnixDatagram>,
    files: Vec<SocketFile>,
}

impl Sockets {
    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Binds a socket at `path`, to which `owner` and the owner's group may write. `is_stream`: a
    /// stream socket, else a datagram socket.
    pub(super) fn bind(
        &mut self,
        path: &Path,
        is_stream: bool,
        owner: Owner,
    ) -> Result<(), String> {
        let tell = Notifier(Arc::new(say));
        let failed = |error: io::Error| format!("{}: {error}", path.display());
        if is_stream {
            let BoundSocket { socket, file } =
                BoundSocket::<UnixListener>::bind(path, owner, &tell)?;
            socket.set_nonblocking(true).map_err(failed)?;
            self.listeners.push(socket);
            self.files.push(file);
        } else {
            let BoundSocket { socket, file } =
                BoundSocket::<UnixDatagram>::bind(path, owner, &tell)?;
            socket.set_nonblocking(true).map_err(failed)?;
            self.datagrams.push(socket);
            self.files.push(file);
        }
        Ok(())
    }
}

/// Event that ends the thread that reads the sockets.
pub(super) fn waker() -> io::Result<Arc<OwnedFd>> {
    Ok(Arc::new(eventfd(
        0,
        EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK,
    )?))
}

/// Receives lines until `stop` is written to or poll(2) fails, except by EINTR. Lines go to
/// `lines`; lines without room are lost and counted.
pub(super) fn drain(
    sockets: &Sockets,
    stop: &OwnedFd,
    lines: &LineSender,
    handle: &RecorderHandle,
) {
    let mut drain = Drain::new(sockets);
    while drain.wait(stop) {
        let mut counts = AlertLines::default();
        let mut take = |line: &[u8], counts: &mut AlertLines| {
            if !line.is_empty() && !lines.send(line) {
                counts.lines += 1;
                counts.lost += 1;
            }
        };
        drain.take_datagrams(|line| take(line, &mut counts));
        drain.take_streams(&mut take, &mut counts);
        drain.accept();
        handle.count_alert_lines(&counts);
    }
}

/// The state of the thread that reads the sockets.
#[derive(Debug)]
struct Drain<'s> {
    sockets: &'s Sockets,
    clients: Vec<(UnixStream, LineSplitter)>,
    buffer: Vec<u8>,
    /// accept(2) failed, so the next wait leaves out the listeners: a pending connection would end
    /// the wait at once.
    cannot_accept: bool,
}

impl<'s> Drain<'s> {
    fn new(sockets: &'s Sockets) -> Self {
        Self {
            sockets,
            clients: Vec::new(),
            buffer: vec![0; LINE_BYTES_MAX],
            cannot_accept: false,
        }
    }

    /// Waits for events. `false`: `stop` was written to, or poll(2) failed, except by EINTR.
    fn wait(&mut self, stop: &OwnedFd) -> bool {
        let listeners = self
            .sockets
            .listeners
            .iter()
            .filter(|_| !self.cannot_accept);
        let fds = std::iter::once(stop.as_fd())
            .chain(listeners.map(AsFd::as_fd))
            .chain(self.sockets.datagrams.iter().map(AsFd::as_fd))
            .chain(self.clients.iter().map(|(client, _)| client.as_fd()));
        let mut polled: Vec<PollFd<'_>> = fds
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        let again = Timespec::try_from(ACCEPT_AGAIN).ok();
        let timeout = again.as_ref().filter(|_| self.cannot_accept);
        let is_over = match poll(&mut polled, timeout) {
            Ok(_) | Err(Errno::INTR) => !polled[0].revents().is_empty(),
            Err(_) => true,
        };
        self.cannot_accept = false;
        !is_over
    }

    fn take_datagrams(&mut self, mut take: impl FnMut(&[u8])) {
        for socket in &self.sockets.datagrams {
            for _ in 0..TURN {
                let Ok(count) = socket.recv(&mut self.buffer) else {
                    break;
                };
                let lines = self.buffer[..count].split(|byte| *byte == b'\n');
                lines.for_each(&mut take);
            }
        }
    }

    fn take_streams(
        &mut self,
        take: &mut impl FnMut(&[u8], &mut AlertLines),
        counts: &mut AlertLines,
    ) {
        let buffer = &mut self.buffer;
        self.clients
            .retain_mut(|(client, rest)| match io::Read::read(client, buffer) {
                Ok(0) => {
                    if let Some(torn) = rest.end() {
                        take(&torn, counts);
                    }
                    false
                }
                Ok(count) => {
                    let too_long = rest.push(&buffer[..count], |line| take(line, counts));
                    counts.lines += too_long;
                    counts.torn += too_long;
                    true
                }
                Err(error) => matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ),
            });
    }

    fn accept(&mut self) {
        for listener in &self.sockets.listeners {
            for _ in 0..TURN {
                match listener.accept() {
                    Ok((client, _)) => {
                        if self.clients.len() < CLIENTS_MAX && client.set_nonblocking(true).is_ok()
                        {
                            self.clients.push((client, LineSplitter::default()));
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(_) => {
                        self.cannot_accept = true;
                        break;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::MetadataExt, time::Instant};

    use rustix::fs::{Gid, Uid};

    use super::*;

    /// A connected socket with a byte to read acts like a listener of a process without a free
    /// descriptor: poll(2) returns at once, and accept(2) fails.
    #[test]
    fn a_connection_that_cannot_be_accepted_is_tried_again_after_a_while() {
        let folder = tempfile::tempdir().unwrap();
        let mut sockets = Sockets::default();
        let at = |name: &str| folder.path().join(name);
        let (never, mut writer) = UnixStream::pair().unwrap();
        io::Write::write_all(&mut writer, b"x").unwrap();
        sockets.listeners.push(OwnedFd::from(never).into());
        sockets.bind(&at("b"), true, (None, None)).unwrap();
        let (stop, mut drain) = (waker().unwrap(), Drain::new(&sockets));
        let since = Instant::now();
        for _ in 0..4 {
            assert!(drain.wait(&stop));
            drain.accept();
        }
        let elapsed = since.elapsed();
        assert!(elapsed >= 3 * ACCEPT_AGAIN, "4 turns in {elapsed:?}");
        // Other connections are served in the meantime.
        let client = UnixStream::connect(at("b")).unwrap();
        drain.accept();
        assert_eq!(drain.clients.len(), 1);
        io::Write::write_all(&mut &client, b"a line\n").unwrap();
        let mut lines = Vec::new();
        assert!(drain.wait(&stop));
        let mut take = |line: &[u8], _: &mut AlertLines| lines.push(line.to_vec());
        drain.take_streams(&mut take, &mut AlertLines::default());
        assert_eq!(lines, [b"a line"]);
        rustix::io::write(&*stop, &1_u64.to_ne_bytes()).unwrap();
        assert!(!drain.wait(&stop));
    }

    /// The user of `-Z` has replaced the directory of the socket by a link. No socket may appear in
    /// the directory to which the link leads.
    #[test]
    fn a_link_of_the_user_gives_no_socket_a_place_elsewhere() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIP: needs root");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let (theirs, victim) = (folder.path().join("theirs"), folder.path().join("victim"));
        fs::create_dir(&theirs).unwrap();
        std::os::unix::fs::chown(&theirs, Some(12_345), Some(12_345)).unwrap();
        fs::create_dir(&victim).unwrap();
        std::os::unix::fs::symlink(&victim, theirs.join("link")).unwrap();
        let owner = (Some(Uid::from_raw(12_345)), Some(Gid::from_raw(12_345)));
        let mut sockets = Sockets::default();
        for is_stream in [true, false] {
            let refused = sockets.bind(&theirs.join("link/socket"), is_stream, owner);
            assert!(refused.is_err() && !victim.join("socket").exists());
            let path = theirs.join(format!("socket-{is_stream}"));
            sockets.bind(&path, is_stream, owner).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().uid(), 12_345);
        }
    }

    /// The user of `-Z` moves the socket's directory away and makes a new directory with a file of
    /// the socket's name. Dropping [`Sockets`] must remove the socket and keep the file.
    #[test]
    fn only_the_socket_itself_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let (place, moved) = (folder.path().join("place"), folder.path().join("moved"));
        fs::create_dir(&place).unwrap();
        let mut sockets = Sockets::default();
        let path = place.join("socket");
        sockets.bind(&path, true, (None, None)).unwrap();
        fs::rename(&place, &moved).unwrap();
        fs::create_dir(&place).unwrap();
        fs::write(&path, "a file").unwrap();
        drop(sockets);
        assert_eq!(fs::read(&path).unwrap(), b"a file");
        assert!(!moved.join("socket").exists());
    }
}
