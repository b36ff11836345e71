//! The sockets that an IDS writes its lines to. They are ours: Suricata connects, and drops lines where nobody takes them at once. One thread does nothing
//! but take them.

use std::{
    fs, io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::{
            fs::{FileTypeExt as _, PermissionsExt as _},
            net::{UnixDatagram, UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        mpsc::{SyncSender, TrySendError},
    },
};

use retroscope_alert::{LINE_BYTES_MAX, Lines};
use retroscope_recorder::{AlertLines, Handle};
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, eventfd, poll},
    fs::{Gid, Uid, chown},
};

/// Connections at once, as of an IDS with several threads.
const CLIENTS_MAX: usize = 64;
/// Bytes taken together.
const READ_BYTES: usize = 256 << 10;

/// Sockets that are bound, before anybody gives up privileges; their files go with them.
#[derive(Debug, Default)]
pub(super) struct Sockets {
    listeners: Vec<UnixListener>,
    datagrams: Vec<UnixDatagram>,
    files: Vec<PathBuf>,
}

impl Drop for Sockets {
    fn drop(&mut self) {
        for path in &self.files {
            // What cannot be removed is found to be nobody's by the next one that wants it.
            let _ = fs::remove_file(path);
        }
    }
}

impl Sockets {
    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Listens at a path, of which the owner and his group may write to it.
    pub(super) fn bind(
        &mut self,
        path: &Path,
        is_stream: bool,
        (user, group): (Option<Uid>, Option<Gid>),
    ) -> io::Result<()> {
        let is_socket = fs::symlink_metadata(path).is_ok_and(|it| it.file_type().is_socket());
        if is_socket {
            let is_taken = match is_stream {
                true => UnixStream::connect(path).is_ok(),
                false => UnixDatagram::unbound()
                    .and_then(|it| it.connect(path))
                    .is_ok(),
            };
            if is_taken {
                return Err(io::ErrorKind::AddrInUse.into());
            }
            // Of a program that has ended.
            fs::remove_file(path)?;
        }
        if is_stream {
            let listener = UnixListener::bind(path)?;
            listener.set_nonblocking(true)?;
            self.listeners.push(listener);
        } else {
            let socket = UnixDatagram::bind(path)?;
            socket.set_nonblocking(true)?;
            self.datagrams.push(socket);
        }
        self.files.push(path.to_owned());
        if user.is_some() || group.is_some() {
            chown(path, user, group)?;
        }
        fs::set_permissions(path, fs::Permissions::from_mode(0o660))
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
