//! What happens to the interface under a queue: down, up, removed, there again.

use super::{DRAIN_NS, LiveQueue, Phase};
use crate::{
    Event, SourceError,
    af_packet::{port::Found, source::open_ring},
    clock,
};

/// How often an interface that was removed is looked for, and one that is down is looked at.
pub(super) const ABSENT_LOOK_NS: i64 = 10_000_000;

/// How long an interface that came back is not said to be up because other threads are not there yet.
const SIBLINGS_NS: i64 = 1_000_000_000;

/// The interface was removed. Times on the monotonic clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Absence {
    since_ns: i64,
    look_ns: i64,
}

impl LiveQueue {
    /// `ENETDOWN` tells that the interface went down or was removed. While draining neither matters.
    pub(super) fn on_socket_error(&mut self) -> Result<(), SourceError> {
        let error = self
            .socket
            .take_error()
            .map_err(|error| self.error("getsockopt(SO_ERROR)", error))?;
        let Some(error) = error.filter(|_| self.phase == Phase::Running) else {
            return Ok(());
        };
        if error.raw_os_error() != Some(libc::ENETDOWN) {
            return Err(self.error("poll", error));
        }
        self.set_up(false);
        // It may have been down for an instant only.
        self.look_after_down()
    }

    /// Looks whether an interface that went down was removed or came up. The socket reports neither: an error is raised
    /// only where it was receiving until then. Where the name is gone (renamed), frames will tell.
    pub(super) fn look_after_down(&mut self) -> Result<(), SourceError> {
        let index = self
            .socket
            .bound_index()
            .map_err(|error| self.error("getsockname", error))?;
        if index < 0 {
            self.events.push_back(Event::InterfaceGone(0));
            let now_ns = clock::monotonic_ns();
            self.absence = Some(Absence {
                since_ns: now_ns,
                look_ns: now_ns.saturating_add(ABSENT_LOOK_NS),
            });
        } else if self.port.is_up() {
            self.rise();
        }
        Ok(())
    }

    /// Looks whether an interface of this name is there again, and captures from it.
    pub(super) fn look_for_return(&mut self) -> Result<(), SourceError> {
        let now_ns = clock::monotonic_ns();
        let Some(absence) = self.absence.as_mut().filter(|one| one.look_ns <= now_ns) else {
            return Ok(());
        };
        absence.look_ns = now_ns.saturating_add(ABSENT_LOOK_NS);
        let since_ns = absence.since_ns;
        let found = match self.port.look_up() {
            Err(SourceError::NoInterface { .. }) => return Ok(()),
            result => result?,
        };
        if found.link_type != self.interfaces[0].link_type {
            let message = format!(
                "{} came back with another link type: start the recording again",
                self.port.name()
            );
            return Err(SourceError::Unsupported { message });
        }
        match self.hook_again(&found, now_ns - since_ns) {
            // It went away again meanwhile, or is down and this kernel lets only running sockets share.
            Err(SourceError::System { error, .. })
                if matches!(error.raw_os_error(), Some(libc::ENODEV | libc::EINVAL)) =>
            {
                return Ok(());
            }
            Ok(false) => return Ok(()),
            result => _ = result?,
        }
        if let Some(nic) = &mut self.nic {
            nic.follow(found.index);
        }
        self.absence = None;
        self.siblings_until_ns = Some(now_ns.saturating_add(SIBLINGS_NS));
        if found.flags.is_up() {
            self.rise();
        }
        Ok(())
    }

    /// Receives from an interface that came back after `away_ns`. False: the old ring is not read to its end yet.
    fn hook_again(&mut self, found: &Found, away_ns: i64) -> Result<bool, SourceError> {
        if !self.port.is_shared() {
            self.port.hook(&self.socket, found)?;
            self.port.admit(&self.socket)?;
            return Ok(true);
        }
        self.read_counters()?;
        let counters = &self.counters;
        let seen = counters.lent + counters.unreadable + counters.dropped;
        if seen != counters.received && away_ns < DRAIN_NS {
            return Ok(false);
        }
        let Some(socket) = self.port.take_spare() else {
            let message = format!(
                "{} was removed too often for a recording with several threads: start it again",
                self.port.name()
            );
            return Err(SourceError::Unsupported { message });
        };
        let (ring, notice) = open_ring(&self.port, &socket)?;
        self.port.hook(&socket, found)?;
        self.port.admit(&socket)?;
        self.events.extend(notice);
        // The old socket's counters were read, and its ring is empty.
        self.ring = ring;
        self.ring.set_frame_bytes_max(self.port.frame_bytes_max());
        self.socket = socket;
        Ok(true)
    }

    /// The interface is up: says so, where it came back when all threads receive from it.
    pub(super) fn rise(&mut self) {
        let is_waiting = self.siblings_until_ns.is_some_and(|until_ns| {
            !self.port.are_all_admitted() && clock::monotonic_ns() < until_ns
        });
        if !is_waiting {
            self.siblings_until_ns = None;
            self.set_up(true);
        }
    }

    fn set_up(&mut self, is_up: bool) {
        if self.is_up == is_up {
            return;
        }
        self.is_up = is_up;
        self.events.push_back(if is_up {
            Event::InterfaceUp(0)
        } else {
            Event::InterfaceDown(0)
        });
    }
}
