//! Reactions to the interface of libpcap's packet socket: it goes down, comes up, is removed, and
//! exists again.
//!
//! libpcap reports only a removal, and does not capture from the next interface of the same name.
//! But a socket that lost its interface can be bound to another interface without privilege. So
//! this module rebinds the socket through a second descriptor, without libpcap's knowledge.
//!
//! After an interface went down, libpcap checks at each call whether the socket is bound and
//! whether an interface has the name (`pcap_wait_for_frames_mmap` and `device_still_exists` of
//! pcap-linux.c, 1.10).

use std::io;

use super::PcapEngine;
use crate::{
    SourceError, SourceEvent,
    af_packet::{receive_from, sys::PacketSocket},
    interface::NamedInterface,
    live::LiveState,
};

/// The interface to which libpcap's packet socket is bound.
#[derive(Debug)]
pub(super) struct PcapLink {
    interface: NamedInterface,
    /// The interface's index at the opening.
    pub(super) index: i32,
    /// The `ARPHRD_` value by which libpcap chose the link type.
    hardware_type: u16,
    promiscuous: bool,
}

impl PcapLink {
    /// The interface of this name; `None`: the device is no interface, like `any`, or cannot be
    /// queried.
    pub(super) fn new(name: &str, promiscuous: bool) -> Option<Self> {
        let interface = NamedInterface::new(name).ok()?;
        let found = interface.look_up().ok()?;
        Some(Self {
            interface,
            index: found.index,
            hardware_type: found.hardware_type,
            promiscuous,
        })
    }

    /// Whether the interface with this index, to which the socket is bound, is up. `None`: the
    /// interface was removed or renamed.
    fn is_up(&self, index: i32) -> Option<bool> {
        let is_there = index >= 0 && self.interface.has_name(index);
        is_there.then(|| self.interface.is_up(index).ok()).flatten()
    }

    /// Binds the socket to the interface that has the name now. Returns the interface's index and
    /// whether the interface is up; `None`: no interface has the name.
    fn bind(&self, socket: &PacketSocket) -> Result<Option<(i32, bool)>, SourceError> {
        let found = match self.interface.look_up() {
            Err(SourceError::NoInterface { .. }) => return Ok(None),
            found => found?,
        };
        if found.hardware_type != self.hardware_type {
            return Err(self.interface.other_link_type());
        }
        match receive_from(socket, &self.interface, &found, self.promiscuous) {
            // The interface was removed again meanwhile.
            Err(SourceError::System { error, .. })
                if error.raw_os_error() == Some(libc::ENODEV) =>
            {
                Ok(None)
            }
            outcome => outcome.map(|()| Some((found.index, found.flags.is_up()))),
        }
    }
}

impl PcapEngine {
    /// Checks the interface while no packet arrives: libpcap does not report an interface that is
    /// down. After a removal, binds the socket to the next interface of the same name.
    pub(super) fn look_at_interface(&mut self, live: &mut LiveState) -> Result<(), SourceError> {
        let (Some(socket), Some(link), true) = (&self.socket, &self.link, live.is_running()) else {
            return Ok(());
        };
        if live.presence.is_gone {
            if let Some((index, is_up)) = link.bind(socket)? {
                live.set_interface_up(is_up);
                if let Some(counters) = &mut live.counters {
                    counters.follow(index);
                }
            }
            return Ok(());
        }
        let index = socket
            .bound_index()
            .map_err(|error| link.interface.error("getsockname", error))?;
        if index < 0 {
            live.set_interface_gone(SourceEvent::InterfaceGone(0));
            live.look_due_ns = i64::MIN;
        } else if let Some(is_up) = link.is_up(index) {
            live.set_interface_up(is_up);
        }
        Ok(())
    }

    /// Handles an error of libpcap. Ignores the error if the interface was removed or renamed, or
    /// if the queue is stopped.
    pub(super) fn on_error(
        &mut self,
        live: &mut LiveState,
        message: String,
    ) -> Result<(), SourceError> {
        // If an interface goes down and gets another name, libpcap reports it as removed until
        // packets arrive.
        let was_there = match (&self.socket, &self.link) {
            (Some(socket), Some(link)) => socket
                .bound_index()
                .is_ok_and(|index| link.is_up(index).is_some()),
            _ => true,
        };
        if !live.presence.is_gone {
            live.look_due_ns = i64::MIN;
        }
        if !live.is_running() || !was_there {
            return Ok(());
        }
        Err(SourceError::system(
            &live.interface().name,
            "pcap_dispatch",
            io::Error::other(message),
        ))
    }
}
