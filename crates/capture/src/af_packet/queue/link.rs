//! Reactions of a queue to its interface: it goes down, comes up, is removed, and exists again.

use super::{COUNTERS_CALL, PacketEngine};
use crate::{
    SourceError, SourceEvent,
    af_packet::{interface::link_type, packet_interface::FANOUT_CALL},
    clock,
    interface::InterfaceSnapshot,
    live::{CLOSED_DRAIN_NS, LiveState},
    sys::take_error,
};

/// Longest wait of the report that an interface is up again for the other queues.
const SIBLINGS_WAIT_NS: i64 = 1_000_000_000;

impl PacketEngine {
    /// Checks the interface. `ENETDOWN` reports that it went down or was removed. The socket does
    /// not report that an interface that is down came up or was removed.
    pub(super) fn look_at_interface(
        &mut self,
        live: &mut LiveState,
        now_ns: i64,
    ) -> Result<(), SourceError> {
        let error = take_error(&self.socket)
            .map_err(|error| self.packet_interface.error("getsockopt(SO_ERROR)", error))?;
        if !live.is_running() {
            return Ok(());
        }
        match error {
            Some(error) if error.raw_os_error() == Some(libc::ENETDOWN) => {
                live.set_interface_up(false)
            }
            Some(error) => return Err(self.packet_interface.error("poll", error)),
            None => {}
        }
        if let Some(since_ns) = self.gone_since_ns {
            self.look_for_return(live, now_ns, since_ns)
        } else if !live.presence.is_up {
            // The interface may have been down for an instant only.
            self.look_after_down(live, now_ns)
        } else {
            Ok(())
        }
    }

    /// Checks whether an interface that went down was removed or came up.
    fn look_after_down(&mut self, live: &mut LiveState, now_ns: i64) -> Result<(), SourceError> {
        let index = self
            .socket
            .bound_index()
            .map_err(|error| self.packet_interface.error("getsockname", error))?;
        if index < 0 {
            live.set_interface_gone(SourceEvent::InterfaceGone(0));
            self.gone_since_ns = Some(now_ns);
        } else if self.packet_interface.is_up() && self.are_other_threads_ready() {
            live.set_interface_up(true);
        }
        Ok(())
    }

    /// Checks whether an interface of this name exists again, and captures from that interface.
    fn look_for_return(
        &mut self,
        live: &mut LiveState,
        now_ns: i64,
        since_ns: i64,
    ) -> Result<(), SourceError> {
        let found = match self.packet_interface.look_up() {
            Err(SourceError::NoInterface { .. }) => return Ok(()),
            result => result?,
        };
        if link_type(found.hardware_type) != Some(live.interface().link_type) {
            return Err(self.packet_interface.interface.other_link_type());
        }
        match self.rebind(live, &found, now_ns - since_ns) {
            Err(error) if is_to_be_tried_again(&error) => return Ok(()),
            Ok(false) => return Ok(()),
            result => _ = result?,
        }
        if let Some(counters) = &mut live.counters {
            counters.follow(found.index);
        }
        self.gone_since_ns = None;
        self.other_threads_deadline_ns = Some(now_ns.saturating_add(SIBLINGS_WAIT_NS));
        live.set_interface_up(found.flags.is_up() && self.are_other_threads_ready());
        Ok(())
    }

    /// Receives from an interface that came back after `away_ns`. `false`: not yet. After a failed
    /// attempt the queue keeps its spare socket for the next attempt.
    pub(super) fn rebind(
        &mut self,
        live: &mut LiveState,
        found: &InterfaceSnapshot,
        away_ns: i64,
    ) -> Result<bool, SourceError> {
        if !self.packet_interface.is_shared {
            self.packet_interface.bind_rejecting(&self.socket, found)?;
            self.packet_interface.start_accepting(&self.socket)?;
            return Ok(true);
        }
        // Without the old socket's counters the sum would be too small, so an error ends the queue.
        self.read_counters()?;
        let is_read_to_its_end = self.counters.received == self.counters.seen();
        if !is_read_to_its_end && away_ns < CLOSED_DRAIN_NS {
            return Ok(false);
        }
        let (socket, ..) = match &mut self.replacement {
            Some(_) if !found.flags.is_up() => return Ok(false),
            Some(opened) => opened,
            none => none.insert(self.packet_interface.open_spare()?),
        };
        self.packet_interface.bind_rejecting(socket, found)?;
        self.packet_interface.start_accepting(socket)?;
        let Some((socket, ring, notice)) = self.replacement.take() else {
            return Ok(false);
        };
        live.push_events(notice);
        // The old socket's counters were read, and its ring is empty or its drain time has passed.
        self.ring = ring;
        self.ring.frame_bytes_max = self.packet_interface.frame_bytes_max();
        self.socket = socket;
        Ok(true)
    }

    /// Whether all threads receive from an interface that came back, or the time for this has
    /// passed.
    pub(super) fn are_other_threads_ready(&self) -> bool {
        self.other_threads_deadline_ns.is_none_or(|until_ns| {
            self.packet_interface.are_all_accepting() || clock::monotonic_ns() >= until_ns
        })
    }
}

/// Whether another attempt may succeed, because the interface was removed again (`ENODEV`) or is
/// down (`EINVAL`). Before Linux 6.13 a socket joins a fanout group only while its interface is up.
fn is_to_be_tried_again(error: &SourceError) -> bool {
    let SourceError::System { call, error, .. } = error else {
        return false;
    };
    match error.raw_os_error() {
        Some(libc::ENODEV) => *call != COUNTERS_CALL,
        Some(libc::EINVAL) => *call == FANOUT_CALL,
        _ => false,
    }
}
