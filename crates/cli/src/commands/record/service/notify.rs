//! Messages to the service manager: sd_notify(3). A datagram of `NAME=VALUE` lines goes to the
//! socket that the environment variable `NOTIFY_SOCKET` names: a path, or an abstract name of
//! unix(7) after `@`.

use std::{
    env,
    ffi::OsStr,
    io,
    os::{
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            net::{SocketAddr, UnixDatagram},
        },
    },
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use retroscope_recorder::{Clock, SystemClock};

use crate::failure::say;

/// Time to wait for room in the service manager's socket. Only a hanging manager needs longer.
const ROOM_WAIT: Duration = Duration::from_secs(1);

/// Sends messages to the service manager from any thread. Does nothing without a service manager.
#[derive(Debug, Clone, Default)]
pub(crate) struct Notify(Option<Arc<Manager>>);

#[derive(Debug)]
struct Manager {
    socket: UnixDatagram,
    address: SocketAddr,
    has_failed: AtomicBool,
}

impl Notify {
    /// The service manager that started this program, from the environment. Prints a message about
    /// an unusable address.
    pub(super) fn from_environment() -> Self {
        let Some(name) = env::var_os("NOTIFY_SOCKET") else {
            return Self::default();
        };
        match Manager::at(&name) {
            Ok(manager) => Self(Some(Arc::new(manager))),
            Err(error) => {
                let name = name.display();
                say(&format!("NOTIFY_SOCKET={name} is not used: {error}"));
                Self::default()
            }
        }
    }

    pub(super) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Sends lines. Prints the first failure, because a service manager without messages may end
    /// the service.
    pub(super) fn send(&self, lines: &str) {
        let Some(manager) = &self.0 else {
            return;
        };
        let Manager {
            socket, address, ..
        } = &**manager;
        if let Err(error) = socket.send_to_addr(lines.as_bytes(), address)
            && !manager.has_failed.swap(true, Ordering::Relaxed)
        {
            say(&format!("cannot tell the service manager: {error}"));
        }
    }

    /// Reports that a reload has ended, with or without success.
    pub(crate) fn ready(&self) {
        self.send("READY=1");
    }

    /// Reports that the configuration is being reloaded. [`Self::ready`] must follow, even if the
    /// reload fails.
    pub(crate) fn reloading(&self) {
        let now_us = SystemClock.mono_ns() / 1000;
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={now_us}"));
    }
}

impl Manager {
    fn at(name: &OsStr) -> io::Result<Self> {
        let address = match name.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            [b'/', ..] => SocketAddr::from_pathname(name)?,
            _ => {
                let what = "neither a path nor an abstract name";
                return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
            }
        };
        let socket = UnixDatagram::unbound()?;
        socket.set_write_timeout(Some(ROOM_WAIT))?;
        Ok(Self {
            socket,
            address,
            has_failed: AtomicBool::new(false),
        })
    }
}
