//! What a service manager is told: sd_notify(3). A datagram of `NAME=VALUE` lines goes to the
//! socket that the environment names, a path or, behind `@`, an abstract name of unix(7).

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

/// How long a service manager may take to make room for a message. It is one that does nothing
/// else.
const ROOM_WAIT: Duration = Duration::from_secs(1);

/// Tells the service manager, from any thread; does nothing where there is none.
#[derive(Debug, Clone, Default)]
pub(crate) struct Notify(Option<Arc<Manager>>);

#[derive(Debug)]
struct Manager {
    socket: UnixDatagram,
    address: SocketAddr,
    has_failed: AtomicBool,
}

impl Notify {
    /// The service manager that started this program, by its environment. What cannot be used is
    /// told.
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

    /// Sends lines. The first failure is told: who hears nothing may end the service.
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

    /// It records, or does again.
    pub(crate) fn ready(&self) {
        self.send("READY=1");
    }

    /// The configuration is read again; [`Self::ready`] follows, whatever comes of it.
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
