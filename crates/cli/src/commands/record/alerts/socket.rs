//! The sockets that an IDS writes its lines to. The recorder binds the sockets, and Suricata
//! connects. Suricata drops a line that it cannot send at once, so one thread does nothing but
//! read.

use std::{
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::{UnixDatagram, UnixListener, UnixStream},
    },
    path::Path,
    sync::{
        Arc,
        mpsc::{SyncSender, TrySendError},
    },
};

use retroscope_alert::{LINE_BYTES_MAX, Lines};
use retroscope_recorder::{AlertLines, Handle};
use retroscope_unix::{Owner, Say, Socket, SocketFile};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use crate::failure::say;

/// Connections at once, as of an IDS with several threads.
const CLIENTS_MAX: usize = 64;
/// Bytes taken together.
const READ_BYTES: usize = 256 << 10;

/// Sockets that are bound before privileges are given up. Dropping this removes their files.
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

    /// Listens at a path, where the owner and the owner's group may write.
    pub(super) fn bind(
        &mut self,
        path: &Path,
        is_stream: bool,
        owner: Owner,
    ) -> Result<(), String> {
        let tell = Say(Arc::new(say));
        let failed = |error: io::Error| format!("{}: {error}", path.display());
        if is_stream {
            let Socket { socket, file } = Socket::<UnixListener>::bind(path, owner, &tell)?;
            socket.set_nonblocking(true).map_err(failed)?;
            self.listeners.push(socket);
            self.files.push(file);
        } else {
            let Socket { socket, file } = Socket::<UnixDatagram>::bind(path, owner, &tell)?;
            socket.set_nonblocking(true).map_err(failed)?;
            self.datagrams.push(socket);
            self.files.push(file);
        }
        Ok(())
    }
}

/// What wakes the thread to its end.
pub(super) fn waker() -> io::Result<Arc<OwnedFd>> {
    Ok(Arc::new(eventfd(
        0,
        EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK,
    )?))
}

/// Takes all that is sent, until `stop` is written to. Lines go to `lines`; what has no room there is lost, and counted.
pub(super) fn drain(
    sockets: &Sockets,
    stop: &OwnedFd,
    lines: &SyncSender<Vec<u8>>,
    handle: &Handle,
) {
    let mut clients: Vec<(UnixStream, Lines)> = Vec::new();
    let mut buffer = vec![0; READ_BYTES.max(LINE_BYTES_MAX)];
    loop {
        let fds = sockets.listeners.iter().map(AsFd::as_fd);
        let fds = fds.chain(sockets.datagrams.iter().map(AsFd::as_fd));
        let fds = fds.chain(clients.iter().map(|(client, _)| client.as_fd()));
        let fds = std::iter::once(stop.as_fd()).chain(fds);
        let mut polled: Vec<PollFd<'_>> = fds
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        match poll(&mut polled, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
        if !polled[0].revents().is_empty() {
            return;
        }
        drop(polled);
        let mut counts = AlertLines::default();
        let take = |line: &[u8], counts: &mut AlertLines| {
            if let Err(TrySendError::Full(_)) = lines.try_send(line.to_vec()) {
                counts.lines += 1;
                counts.lost += 1;
            }
        };
        for socket in &sockets.datagrams {
            while let Ok(count) = socket.recv(&mut buffer) {
                for line in buffer[..count].split(|byte| *byte == b'\n') {
                    take(line, &mut counts);
                }
            }
        }
        clients.retain_mut(|(client, rest)| {
            let read = io::Read::read(client, &mut buffer);
            match read {
                Ok(0) => {
                    if let Some(torn) = rest.end() {
                        take(&torn, &mut counts);
                    }
                    false
                }
                Ok(count) => {
                    let too_long = rest.push(&buffer[..count], |line| take(line, &mut counts));
                    counts.lines += too_long;
                    counts.torn += too_long;
                    true
                }
                Err(error) => matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ),
            }
        });
        for listener in &sockets.listeners {
            while let Ok((client, _)) = listener.accept() {
                if clients.len() < CLIENTS_MAX && client.set_nonblocking(true).is_ok() {
                    clients.push((client, Lines::default()));
                }
            }
        }
        handle.count_alert_lines(&counts);
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::MetadataExt};

    use rustix::fs::{Gid, Uid};

    use super::*;

    /// The user of `-Z` has replaced the directory of the socket by a link.
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

    /// The user of `-Z` moves the directory away, and a file of the socket's name is there in the end.
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
