//! What happens to the interface under libpcap's packet socket: down, up, removed, there again.
//!
//! libpcap reports a removal only, and has no way to go on. Its socket has: one that lost its interface can be bound to another,
//! which takes no privilege, and what it receives then comes into the ring that libpcap reads. So that is done behind its back,
//! through a second descriptor of the socket. libpcap asks the socket at each call whether its interface exists, and keeps nothing
//! of it that must be the same but its name and its type (`pcap_wait_for_frames_mmap` and `device_still_exists` of pcap-linux.c,
//! 1.10).

use std::io;

use super::PcapEngine;
use crate::{
    SourceError, SourceEvent,
    af_packet::{receive_from, sys::PacketSocket},
    interface::NamedInterface,
    live::LiveState,
};

/// The interface that libpcap's packet socket is bound to.
#[derive(Debug)]
pub(super) struct PcapLink {
    interface: NamedInterface,
    /// The interface's index when it was opened.
    pub(super) index: i32,
    /// `ARPHRD_`: what libpcap chose the link type by.
    hardware_type: u16,
    promiscuous: bool,
}

impl PcapLink {
    /// The interface of this name; `None` where the device is none, like `any`, or cannot be asked for.
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

    /// Whether the interface of this index, which the socket is bound to, is up; `None`: it was removed, or has another name.
    fn is_up(&self, index: i32) -> Option<bool> {
        let is_there = index >= 0 && self.interface.has_name(index);
        is_there.then(|| self.interface.is_up(index).ok()).flatten()
    }

    /// Receives from the interface that has the name now. Returns its index and whether it is up; `None`: there is none.
    fn bind(&self, socket: &PacketSocket) -> Result<Option<(i32, bool)>, SourceError> {
        let found = match self.interface.look_up() {
            Err(SourceError::NoInterface { .. }) => return Ok(None),
            found => found?,
        };
        if found.hardware_type != self.hardware_type {
            return Err(self.interface.other_link_type());
        }
        match receive_from(socket, &self.interface, &found, self.promiscuous) {
            // It went away again meanwhile.
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
    /// libpcap waits for an interface that is down without a word, so the system is asked while nothing comes.
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

    /// An interface that was removed is an event; while draining it does not matter.
    pub(super) fn on_error(
        &mut self,
        live: &mut LiveState,
        message: String,
    ) -> Result<(), SourceError> {
        // libpcap takes one that got another name for removed, until packets come.
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
