//! What happens to the interface under libpcap's packet socket: down, up, removed, there again.
//!
//! libpcap tells of a removal only, and has no way to go on. Its socket has: one that lost its interface can be bound to another,
//! which takes no privilege, and what it receives then comes into the ring that libpcap reads. So that is done behind its back,
//! through a second descriptor of the socket. libpcap asks the socket at each call whether its interface exists, and keeps nothing
//! of it that must be the same but its name and its type (`pcap_wait_for_frames_mmap` and `device_still_exists` of pcap-linux.c,
//! 1.10).

use std::io;

use super::PcapEngine;
use crate::{
    Event, SourceError, af_packet::sys::PacketSocket, interface::NamedInterface, live::Live,
};

/// All EtherTypes, as libpcap binds.
const ALL_PROTOCOLS: u16 = 3;

/// A packet socket of libpcap and the interface that it is bound to.
#[derive(Debug)]
pub(super) struct Link {
    /// A descriptor of libpcap's own socket.
    socket: PacketSocket,
    interface: NamedInterface,
    /// At the opening.
    pub(super) index: i32,
    /// `ARPHRD_`: what libpcap chose the link type by.
    hardware_type: u16,
    promiscuous: bool,
}

impl Link {
    /// The interface of this name; `None` where the device is none, like `any`, or cannot be asked for.
    pub(super) fn new(socket: &PacketSocket, name: &str, promiscuous: bool) -> Option<Self> {
        let interface = NamedInterface::new(name).ok()?;
        let found = interface.look_up().ok()?;
        Some(Self {
            socket: socket.try_clone().ok()?,
            interface,
            index: found.index,
            hardware_type: found.hardware_type,
            promiscuous: promiscuous && !found.flags.is_loopback(),
        })
    }

    /// Whether the interface that the socket is bound to is up; `None`: it was removed, or has another name.
    fn is_up(&self) -> io::Result<Option<bool>> {
        let index = self.socket.bound_index()?;
        let is_there = index >= 0 && self.interface.has_name(index);
        Ok(is_there.then(|| self.interface.is_up(index).ok()).flatten())
    }

    /// Receives from the interface that has the name now. Returns its index and whether it is up; `None`: there is none.
    fn bind(&self) -> Result<Option<(i32, bool)>, SourceError> {
        let found = match self.interface.look_up() {
            Err(SourceError::NoInterface { .. }) => return Ok(None),
            found => found?,
        };
        if found.hardware_type != self.hardware_type {
            return Err(self.interface.other_link_type());
        }
        let index = found.index;
        let mut outcome = self.socket.bind(index, ALL_PROTOCOLS);
        let mut call = "bind";
        if outcome.is_ok() && self.promiscuous {
            outcome = self.socket.set_promiscuous(index);
            call = "setsockopt(PACKET_ADD_MEMBERSHIP)";
        }
        match outcome {
            Ok(()) => Ok(Some((index, found.flags.is_up()))),
            // It went away again meanwhile.
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
            Err(error) => Err(self.interface.error(call, error)),
        }
    }
}

impl PcapEngine {
    /// libpcap waits for an interface that is down without a word, so the system is asked while nothing comes.
    pub(super) fn look_at_interface(&mut self, live: &mut Live) -> Result<(), SourceError> {
        let Some(link) = self.link.as_ref().filter(|_| live.is_running()) else {
            return Ok(());
        };
        if live.presence.is_gone() {
            if let Some((index, is_up)) = link.bind()? {
                live.found(is_up);
                if let Some(counters) = &mut live.counters {
                    counters.follow(index);
                }
            }
            return Ok(());
        }
        let index = link
            .socket
            .bound_index()
            .map_err(|error| link.interface.error("getsockname", error))?;
        if index < 0 {
            live.gone(Event::InterfaceGone(0));
            live.look_due_ns = i64::MIN;
        } else if let Ok(Some(is_up)) = link.is_up() {
            live.found(is_up);
        }
        Ok(())
    }

    /// An interface that was removed is an event; while draining it does not matter.
    pub(super) fn on_error(&mut self, live: &mut Live, message: String) -> Result<(), SourceError> {
        // libpcap takes one that got another name for removed, until packets come.
        let was_there = match &self.link {
            Some(link) => link.is_up().is_ok_and(|is_up| is_up.is_some()),
            None => true,
        };
        if !live.presence.is_gone() {
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
