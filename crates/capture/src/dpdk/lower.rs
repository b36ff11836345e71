//! The kernel's interface that a vdev stands on, which drivers tell nothing about.
//!
//! A driver keeps the socket that it opened at the start. When the interface is removed it receives nothing more, also where there is one of
//! the same name again, and to open another one takes privileges that are given up by then. So the device ends there.

use crate::{SourceError, af_packet::sys::PacketSocket, interface::NamedInterface};

/// See the module.
#[derive(Debug)]
pub(super) struct LowerDevice {
    /// As the device's arguments name it.
    pub(super) interface: NamedInterface,
    /// What the driver's socket is bound to.
    pub(super) index: i32,
    /// Keeps it promiscuous.
    pub(super) _promiscuous: Option<PacketSocket>,
}

/// Whether the interface is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Presence {
    /// Up or down.
    Known { is_up: bool },
    /// Removed, or in another network namespace.
    Gone,
    /// The system does not say.
    Unknown,
}

impl LowerDevice {
    /// Looks for the interface, whatever it is called now.
    pub(super) fn look(&self) -> Presence {
        match self.interface.is_up(self.index) {
            Ok(is_up) => Presence::Known { is_up },
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Presence::Gone,
            Err(_) => Presence::Unknown,
        }
    }

    /// Why a device that stood on it ends.
    pub(super) fn error(&self, device: &str) -> SourceError {
        let name = self.interface.name();
        SourceError::Unsupported {
            message: format!(
                "{device}: {name} was removed, and a device of DPDK cannot follow to another: start the recording again, or use \
                 --engine af-packet, which goes on by itself"
            ),
        }
    }
}
