//! What happens to the interface under libpcap's packet socket: down, up, removed, there again.
//!
//! libpcap tells of a removal only, and has no way to go on. Its socket has: one that lost its interface can be bound to another,
//! which takes no privilege, and what it receives then comes into the ring that libpcap reads. So that is done behind its back,
//! through a second descriptor of the socket. libpcap asks the socket at each call whether its interface exists, and keeps nothing
//! of it that must be the same but its name and its type (`pcap_wait_for_frames_mmap` and `device_still_exists` of pcap-linux.c,
//! 1.10).

use std::io;

use super::{PcapQueue, Phase};
use crate::{
    SourceError,
    af_packet::{
        InterfaceLosses, NicLosses,
        sys::{InterfaceQuery, PacketSocket},
    },
    clock,
};

/// How often the interface is looked at, at most: each look is three system calls.
const PRESENT_LOOK_NS: i64 = 5_000_000;

/// How often an interface that was removed is looked for, or one that is down looked at.
pub(super) const ABSENT_LOOK_NS: i64 = 10_000_000;

/// All EtherTypes, as libpcap binds.
const ALL_PROTOCOLS: u16 = 3;

/// A packet socket of libpcap and the interface that it is bound to.
#[derive(Debug)]
pub(super) struct Link {
    /// A descriptor of libpcap's own socket.
    socket: PacketSocket,
    query: InterfaceQuery,
    nic: Option<NicLosses>,
    name: String,
    /// `ARPHRD_`: what libpcap chose the link type by.
    hardware_type: u16,
    promiscuous: bool,
    /// It was removed, and no other one was found yet.
    is_absent: bool,
    /// When to look for it or at it, on the monotonic clock.
    look_ns: i64,
}

impl Link {
    /// The interface of this name; `None` where the device is none, like `any`, or cannot be asked for.
    pub(super) fn new(socket: &PacketSocket, name: &str, promiscuous: bool) -> Option<Self> {
        let query = InterfaceQuery::new().ok()?;
        let is_loopback = query.flags(name).ok()?.is_loopback();
        Some(Self {
            socket: socket.try_clone().ok()?,
            hardware_type: query.hardware_type(name).ok()?,
            nic: NicLosses::watch(query.index(name).ok()?),
            query,
            name: name.to_owned(),
            promiscuous: promiscuous && !is_loopback,
            is_absent: false,
            look_ns: 0,
        })
    }

    /// What was lost before libpcap's socket. libpcap reads that from sysfs, which may show another namespace, and takes what it
    /// cannot read as 0.
    pub(super) fn losses(&mut self) -> InterfaceLosses {
        self.nic.as_mut().map(NicLosses::read).unwrap_or_default()
    }

    /// Whether the interface was removed and no other one is there yet.
    pub(super) fn is_absent(&self) -> bool {
        self.is_absent
    }

    /// Whether the interface of this index is up; `None`: the name is another one's, or nobody's.
    fn is_up(&self, index: i32) -> Option<bool> {
        let found = self.query.index(&self.name).ok();
        found.filter(|found| *found == index)?;
        Some(self.query.flags(&self.name).ok()?.is_up())
    }

    /// Whether it is time for a look.
    fn is_due(&mut self) -> bool {
        let now_ns = clock::monotonic_ns();
        let is_due = self.look_ns <= now_ns;
        if is_due {
            let pause_ns = if self.is_absent {
                ABSENT_LOOK_NS
            } else {
                PRESENT_LOOK_NS
            };
            self.look_ns = now_ns.saturating_add(pause_ns);
        }
        is_due
    }

    /// Looks whether there is an interface of this name again, and receives from it. `Some`: it does, and the interface is up or not.
    fn look_for_return(&mut self) -> Result<Option<bool>, SourceError> {
        match self.bind() {
            Ok((index, is_up)) => {
                self.is_absent = false;
                if let Some(nic) = &mut self.nic {
                    nic.follow(index);
                }
                Ok(Some(is_up))
            }
            Err(SourceError::System { error, .. })
                if error.raw_os_error() == Some(libc::ENODEV) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Receives from the interface that has the name now. Returns its index and whether it is up. Fails with `ENODEV` if there is
    /// none.
    fn bind(&self) -> Result<(i32, bool), SourceError> {
        let (name, query) = (&self.name, &self.query);
        let at = |call| move |error| self.error(call, error);
        let index = query.index(name).map_err(at("ioctl(SIOCGIFINDEX)"))?;
        let hardware_type = query
            .hardware_type(name)
            .map_err(at("ioctl(SIOCGIFHWADDR)"))?;
        if hardware_type != self.hardware_type {
            let message =
                format!("{name} came back with another link type: start the recording again");
            return Err(SourceError::Unsupported { message });
        }
        let flags = query.flags(name).map_err(at("ioctl(SIOCGIFFLAGS)"))?;
        self.socket.bind(index, ALL_PROTOCOLS).map_err(at("bind"))?;
        if self.promiscuous {
            self.socket
                .set_promiscuous(index)
                .map_err(at("setsockopt(PACKET_ADD_MEMBERSHIP)"))?;
        }
        Ok((index, flags.is_up()))
    }

    fn error(&self, call: &'static str, error: io::Error) -> SourceError {
        SourceError::System {
            interface: self.name.clone(),
            call,
            error,
        }
    }
}

impl PcapQueue {
    /// libpcap waits for an interface that is down without a word, so the system is asked while nothing comes.
    pub(super) fn look_at_interface(&mut self) -> Result<(), SourceError> {
        let Some(link) = self.link.as_mut().filter(|_| self.phase == Phase::Running) else {
            return Ok(());
        };
        if !link.is_due() {
            return Ok(());
        }
        if link.is_absent() {
            if let Some(is_up) = link.look_for_return()? {
                self.found(is_up);
            }
            return Ok(());
        }
        let index = link
            .socket
            .bound_index()
            .map_err(|error| link.error("getsockname", error))?;
        if index < 0 {
            link.is_absent = true;
            link.look_ns = 0;
            self.events
                .push_back(self.presence.gone(clock::realtime_ns()));
        } else if let Some(is_up) = link.is_up(index) {
            self.found(is_up);
        }
        Ok(())
    }

    /// Whether the socket's interface is there under its name.
    pub(super) fn has_interface(&self) -> bool {
        let is_there = |link: &Link| {
            let index = link.socket.bound_index();
            index.is_ok_and(|index| link.is_up(index).is_some())
        };
        self.link.as_ref().is_none_or(is_there)
    }

    fn found(&mut self, is_up: bool) {
        let event = self.presence.found(is_up, clock::realtime_ns());
        self.events.extend(event);
    }
}
