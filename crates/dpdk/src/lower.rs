//! The kernel's interface that a vdev stands on, which drivers tell nothing about.
//!
//! A driver keeps the socket that it open_port at the start. When the interface is removed it receives nothing more, also where there is one of
//! the same name again, and to open another one takes privileges that are given up by then. So the device ends there.

use std::io;

use retroscope_capture::{SourceError, af_packet::PacketSocket, interface::NamedInterface};

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

impl LowerDevice {
    /// Why a device that stood on it ends.
    pub(super) fn error(&self, device: &str) -> SourceError {
        let name = &self.interface.name;
        SourceError::Unsupported(format!(
            "{device}: {name} was removed, and a device of DPDK cannot follow to another: start the recording again, or use \
                 --engine af-packet, which goes on by itself"
        ))
    }
}

/// Whether a look at an interface, whatever it is called now, found that it was removed or is in another network namespace.
pub(super) fn is_gone(found: &io::Result<bool>) -> bool {
    let error = found.as_ref().err();
    error.is_some_and(|error| error.raw_os_error() == Some(libc::ENODEV))
}
