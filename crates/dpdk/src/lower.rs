//! The kernel interface under a vdev. DPDK's drivers do not report the state of this interface.
//!
//! A driver keeps the socket that it opened at the start. After the removal of the interface the
//! socket receives no more packets, even if an interface of the same name exists again. Opening
//! another socket needs privileges that the process may no longer have. So the device ends.

use std::io;

use retroscope_capture::{SourceError, af_packet::PacketSocket, interface::NamedInterface};

/// The kernel interface under a vdev.
#[derive(Debug)]
pub(super) struct LowerDevice {
    /// The interface that the device's arguments name.
    pub(super) interface: NamedInterface,
    /// The index to which the driver's socket is bound.
    pub(super) index: i32,
    /// Keeps the interface promiscuous.
    pub(super) _promiscuous: Option<PacketSocket>,
}

impl LowerDevice {
    /// Why a device on top of this interface ends.
    pub(super) fn error(&self, device: &str) -> SourceError {
        let name = &self.interface.name;
        SourceError::Unsupported(format!(
            "{device}: {name} was removed, and a device of DPDK cannot follow to another: start the recording again, or use \
                 --engine af-packet, which goes on by itself"
        ))
    }
}

/// Whether a check of an interface by its index found that it was removed or moved to another
/// network namespace.
pub(super) fn is_gone(found: &io::Result<bool>) -> bool {
    let error = found.as_ref().err();
    error.is_some_and(|error| error.raw_os_error() == Some(libc::ENODEV))
}
