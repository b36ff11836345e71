//! An interface by its name: whether it may be taken from the host, and sockets for its queues.
//!
//! A socket can be bound only once (`xsk_bind` of `net/xdp/xsk.c`). So each queue keeps spares for
//! an interface that comes back, made while the process had the privilege.

use std::io;

use super::{
    channel::Channel,
    config::XdpConfig,
    sys::{Umem, XdpSocket},
};
use crate::{
    SourceError,
    host::HostUse,
    interface::{InterfaceSnapshot, NamedInterface},
};

/// Bytes of an Ethernet header and two VLAN tags.
const HEADERS: u32 = 22;

#[derive(Debug)]
pub(super) struct XdpInterface {
    pub(super) config: XdpConfig,
    pub(super) interface: NamedInterface,
}

impl XdpInterface {
    /// Prepares the interface that `config` names, in the network namespace of the calling thread.
    pub(super) fn new(config: XdpConfig) -> Result<Self, SourceError> {
        let interface = NamedInterface::new(&config.interface)?;
        Ok(Self { config, interface })
    }

    pub(super) fn name(&self) -> &str {
        &self.config.interface
    }

    pub(super) fn error(&self, call: &'static str, error: io::Error) -> SourceError {
        let (interface, program) = (self.name(), self.config.program.display());
        match error.raw_os_error() {
            Some(libc::EPERM) => SourceError::Permission(format!(
                "no permission to take packets from {interface} with AF_XDP: run it as 'sudo {program} …', or once \
                     'sudo setcap cap_net_raw,cap_net_admin,cap_bpf,cap_ipc_lock=eip {program}'"
            )),
            Some(libc::EAFNOSUPPORT) => SourceError::Unsupported(
                "this kernel has no AF_XDP: use --engine af-packet".to_owned(),
            ),
            _ => SourceError::system(interface, call, error),
        }
    }

    pub(super) fn unsupported(&self, what: &str) -> SourceError {
        let message = format!(
            "cannot take packets from {} with AF_XDP: {what}",
            self.name()
        );
        SourceError::Unsupported(message)
    }

    pub(super) fn not_bound(&self, queue: u32, error: io::Error) -> SourceError {
        match error.raw_os_error() {
            Some(libc::EBUSY) => self.unsupported(&format!(
                "another AF_XDP socket has its queue {queue}, such as the one that 'generate -i {}' sends through: end that first",
                self.name()
            )),
            _ => self.error("bind(AF_XDP)", error),
        }
    }

    /// Looks up the interface of this name. Fails unless it is an Ethernet interface.
    pub(super) fn look_up(&self) -> Result<InterfaceSnapshot, SourceError> {
        let found = self.interface.look_up()?;
        if found.hardware_type != libc::ARPHRD_ETHER {
            return Err(self.unsupported("it is no Ethernet interface"));
        }
        Ok(found)
    }

    /// The host's uses of the interface, if there are any and the user has not allowed to take the
    /// interface away.
    pub(super) fn host_use(&self) -> Option<HostUse> {
        if self.config.take_interface {
            return None;
        }
        Some(HostUse::of(self.name())).filter(HostUse::is_used)
    }

    pub(super) fn open_socket(
        &self,
        umem: &Umem,
        chunks: u32,
        chunk_bytes: u32,
    ) -> Result<Channel, SourceError> {
        let socket = XdpSocket::new().map_err(|error| self.error("socket(AF_XDP)", error))?;
        if let Some(time) = self.config.busy_poll {
            let microseconds = u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
            socket
                .set_busy_poll(microseconds)
                .map_err(|error| match error.raw_os_error() {
                    Some(libc::ENOPROTOOPT) => self.unsupported(
                        "busy polling needs Linux 5.11 and CONFIG_NET_RX_BUSY_POLL: leave busy-poll out",
                    ),
                    _ => self.error("setsockopt(SO_BUSY_POLL)", error),
                })?;
        }
        let (fill, rx) = socket
            .set_up(umem, chunk_bytes, chunks)
            .map_err(|error| match error.raw_os_error() {
                Some(libc::ENOBUFS) => self.unsupported(
                    "the memory that may be locked is too small: raise it (ulimit -l), or give less with capture-buffer",
                ),
                _ => self.error("setsockopt(SOL_XDP)", error),
            })?;
        Ok(Channel { socket, fill, rx })
    }
}

pub(super) fn other_program(name: &str) -> String {
    format!("another XDP program is attached: ip link show {name} names it")
}

/// Bytes of the longest frame of an interface with this MTU, including two VLAN tags.
pub(super) fn frame_bytes(mtu: u32) -> u32 {
    mtu.saturating_add(HEADERS)
}
