//! Reactions of a queue to its interface: it goes down, comes up, is removed, and exists again.
//!
//! A queue finds the removal of its interface by an error of its socket, or because another queue
//! has detached the program. It fetches the remaining packets, then looks for the next interface.
//! The queue that first finds an interface of the name that is up attaches the program. Each queue
//! binds a spare socket to its receive queue. A queue reports that the interface is up when every
//! queue has bound its socket, has failed, or lacks its receive queue.
//!
//! If the host uses an interface that comes back, the interface is left to the host, unless the
//! user allows to take it. The queues check this for [`HOST_USE_WATCH_NS`], because an interface
//! usually comes up before it gets addresses.

use std::io;

use super::{DELIVERY_DELAY_NS_MAX, XdpEngine};
use crate::{
    SourceError, SourceEvent,
    af_xdp::{
        attachment::AttachedInterface,
        channel::RECEIVE_QUEUE_WAIT_NS,
        mode::{copy_words, program_word},
        program::word,
        xdp_interface::{frame_bytes, other_program},
    },
    clock::{self, SECOND_NS},
    host::HostUse,
    live::{ABSENT_LOOK_NS, LiveEngine as _, LiveState, QueueDrain},
    sys::take_error,
};

/// Time between two attempts to take an interface that came back.
const REFUSED_LOOK_NS: i64 = SECOND_NS / 4;

/// Time between two checks of the MTU.
const MTU_LOOK_NS: i64 = SECOND_NS / 4;

/// How long the queues check whether the host begins to use an interface that came back.
const HOST_USE_WATCH_NS: i64 = 60 * SECOND_NS;
/// Time between two checks whether the host uses the interface.
const HOST_USE_LOOK_NS: i64 = SECOND_NS / 4;

/// The relation of a queue to its interface.
#[derive(Debug, Clone, Copy)]
pub(super) enum BindState {
    /// The queue receives from the interface.
    Bound,
    /// The interface was removed or left to the host; packets that the program took may still
    /// arrive.
    Leaving(QueueDrain),
    /// No interface can be captured now, the bind has not succeeded yet, or the interface lacks the
    /// receive queue.
    Absent(InterfaceAbsence),
}

/// The state of a queue whose interface was removed or left to the host. Times are on the monotonic
/// clock.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct InterfaceAbsence {
    /// When a bind first failed with `EBUSY`.
    busy_since_ns: Option<i64>,
    /// Number of the attachment to an interface that has no receive queue with this queue's index.
    without: Option<u64>,
}

impl XdpEngine {
    /// Checks the interface. A socket gets an error when the interface is removed, but not when it
    /// goes down or up.
    pub(super) fn look_at_interface(
        &mut self,
        live: &mut LiveState,
        now_ns: i64,
    ) -> Result<(), SourceError> {
        match self.bind_state {
            // A stopped queue must detect a removal, because missing packets are then lost.
            _ if !live.is_running() => {
                self.detect_removal();
                live.look_due_ns = now_ns;
                Ok(())
            }
            BindState::Bound => self.look_while_bound(live, now_ns),
            BindState::Leaving(drain) => {
                self.detect_removal();
                live.look_due_ns = now_ns;
                if live.is_drained(drain, now_ns, |is_over| self.balance(is_over)) {
                    self.renew()?;
                    self.bind_state = BindState::Absent(InterfaceAbsence::default());
                }
                Ok(())
            }
            BindState::Absent(absence) => self.look_for_return(live, absence, now_ns),
        }
    }

    fn look_while_bound(&mut self, live: &mut LiveState, now_ns: i64) -> Result<(), SourceError> {
        let error = take_error(&self.receiver.channel.socket);
        let error =
            error.map_err(|error| self.xdp_interface.error("getsockopt(SO_ERROR)", error))?;
        self.is_removed = error.is_some();
        if !self.is_removed {
            self.check_host_use(live, now_ns);
        }
        if self.is_removed || self.attachment.attached() != Some(self.attached) {
            self.detach(live, now_ns);
            return Ok(());
        }
        if let Ok(is_up) = self.xdp_interface.interface.is_up(self.attached.index) {
            live.set_interface_up(is_up && self.is_settled());
        }
        self.report_unseen(live);
        if now_ns >= self.mtu_due_ns {
            self.mtu_due_ns = now_ns.saturating_add(MTU_LOOK_NS);
            self.report_mtu(live, "start the recording again");
        }
        Ok(())
    }

    /// Whether every queue has bound its socket to the interface, has failed, or lacks its receive
    /// queue.
    pub(super) fn is_settled(&self) -> bool {
        self.attachment.state().is_settled(self.queues)
    }

    /// Reports an MTU that allows frames longer than one chunk, once each time that the MTU rises
    /// above the limit. `reason`: why the kernel uses one chunk, or the remedy.
    pub(super) fn report_mtu(&mut self, live: &mut LiveState, reason: &str) {
        let Some(bytes_max) = self.attachment.receive_mode.packet_bytes_max else {
            return;
        };
        let mtu = match self.queue_index {
            0 => self.xdp_interface.interface.mtu(self.attached.index),
            _ => None,
        };
        let Some(mtu) = mtu else { return };
        let fits = frame_bytes(mtu) <= u32::from(bytes_max);
        if !fits && self.fits_mtu {
            live.notice(format_args!(
                "its MTU is {mtu}, and frames above {bytes_max} bytes are counted as lost (oversize): {reason}"
            ));
        }
        self.fits_mtu = fits;
    }

    /// Reports packets of receive queues without a socket, at most once after each bind.
    fn report_unseen(&mut self, live: &mut LiveState) {
        if self.queue_index == 0
            && !self.has_reported_unseen
            && self.attachment.unseen() > self.unseen_before
        {
            self.has_reported_unseen = true;
            live.notice(
                "it has more receive queues than at the start, and packets of the new ones are not recorded (unseen): start again",
            );
        }
    }

    fn detect_removal(&mut self) {
        let error = take_error(&self.receiver.channel.socket);
        self.is_removed |= error.is_ok_and(|error| error.is_some());
    }

    /// Detaches the program from an interface that came back if the host has begun to use the
    /// interface.
    fn check_host_use(&mut self, live: &mut LiveState, now_ns: i64) {
        if !self
            .attachment
            .state()
            .is_host_check_due(now_ns, HOST_USE_LOOK_NS)
        {
            return;
        }
        let used = self.xdp_interface.host_use();
        // The query was by name: ignore the answer if our interface was renamed.
        let Some(used) =
            used.filter(|_| self.xdp_interface.interface.has_name(self.attached.index))
        else {
            return;
        };
        let (name, reason) = (self.xdp_interface.name(), host_use_reason(&used));
        live.push_events([SourceEvent::Notice(format!(
            "{name} is the host's again, and not recorded until it can be taken: {reason}"
        ))]);
        self.attachment.state().refusal = Some(reason);
        self.attachment.detach(self.attached.generation);
    }

    /// Leaves an interface that was removed, or belongs to the host again. Packets that the program
    /// has taken may still arrive.
    fn detach(&mut self, live: &mut LiveState, now_ns: i64) {
        self.attachment.set_open(self.queue_index, false);
        self.attachment.detach(self.attached.generation);
        let is_hosts = !self.is_removed && self.attachment.state().refusal.is_some();
        live.set_interface_gone(if is_hosts {
            SourceEvent::InterfaceLeft(0)
        } else {
            SourceEvent::InterfaceGone(0)
        });
        if let Some(counters) = &mut live.counters {
            counters.pause(clock::realtime_ns());
        }
        self.bind_state = BindState::Leaving(QueueDrain::closed(now_ns, DELIVERY_DELAY_NS_MAX));
        live.look_due_ns = now_ns;
    }

    /// Closes the socket and replaces it with a spare socket. Without a spare socket, keeps the
    /// socket of a removed interface, and fails if the interface was left to the host.
    fn renew(&mut self) -> Result<(), SourceError> {
        let Some(spare) = self.receiver.spares.pop() else {
            // Fails later, when there is an interface to bind to (`bind`).
            return if self.is_removed {
                Ok(())
            } else {
                Err(self.no_spare_left())
            };
        };
        // The kernel's counters of the old socket end with the old socket.
        self.lost_before = self.lost().map_err(|error| {
            self.xdp_interface
                .error("getsockopt(XDP_STATISTICS)", error)
        })?;
        self.receiver.channel = spare;
        self.is_bound = false;
        Ok(())
    }

    fn no_spare_left(&self) -> SourceError {
        self.xdp_interface.unsupported(
            "it was removed too often, or more memory may not be locked (ulimit -l): start the recording again",
        )
    }

    /// Checks whether an interface of this name exists again and is up, and captures from that
    /// interface.
    fn look_for_return(
        &mut self,
        live: &mut LiveState,
        mut absence: InterfaceAbsence,
        now_ns: i64,
    ) -> Result<(), SourceError> {
        live.look_due_ns = now_ns.saturating_add(ABSENT_LOOK_NS);
        let attached = match self.attachment.attached() {
            None => self.take(live, now_ns)?,
            attached => attached,
        };
        if let Some(attached) =
            attached.filter(|attached| absence.without == Some(attached.generation))
        {
            if self.xdp_interface.interface.is_up(attached.index).is_err() {
                // The interface was removed. Possibly no other queue runs that would detach the
                // program.
                self.attachment.detach(attached.generation);
            }
            return Ok(());
        }
        if absence.without.take().is_some() {
            self.attachment.set_open(self.queue_index, false);
        }
        self.bind_state = BindState::Absent(absence);
        attached.map_or(Ok(()), |attached| {
            self.bind(live, attached, absence, now_ns)
        })
    }

    /// Attaches the program to the interface of this name, if the interface is up and no other
    /// queue has attached the program. Returns the interface to which the program is attached;
    /// `None`: no interface can be captured now.
    fn take(
        &mut self,
        live: &mut LiveState,
        now_ns: i64,
    ) -> Result<Option<AttachedInterface>, SourceError> {
        let found = match self.xdp_interface.look_up() {
            Err(SourceError::NoInterface { .. }) => return Ok(None),
            found => found?,
        };
        let index = found.index;
        let mut state = self.attachment.state();
        if state.attached().is_some() || !found.flags.is_up() {
            return Ok(state.attached());
        }
        live.look_due_ns = now_ns.saturating_add(REFUSED_LOOK_NS);
        let was_native = state.is_native;
        let used = self.xdp_interface.host_use();
        // The query was by name: the answer is valid only if the interface still has this name.
        if !self.xdp_interface.interface.has_name(index) {
            return Ok(None);
        }
        let name = self.xdp_interface.name();
        let refusal = match used {
            Some(used) => host_use_reason(&used),
            None => match self.attachment.attach_again(&mut state, index) {
                Ok(attached) => {
                    state.host_check_until_ns = now_ns.saturating_add(HOST_USE_WATCH_NS);
                    if state.is_native != was_native {
                        let program = program_word(state.is_native);
                        live.notice(format_args!("{program} XDP now"));
                    }
                    return Ok(Some(attached));
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::ENODEV) => return Ok(None),
                    Some(libc::EBUSY | libc::EEXIST) => other_program(name),
                    Some(libc::EPERM) => {
                        return Err(self.xdp_interface.unsupported(
                            "it was removed, and this kernel asks for privileges to take up another one: start the recording again",
                        ));
                    }
                    _ => return Err(self.xdp_interface.error("bpf(BPF_LINK_CREATE)", error)),
                },
            },
        };
        if state.refusal.as_ref() != Some(&refusal) {
            live.notice(format_args!(
                "an interface of this name exists again, and is not taken: {refusal}"
            ));
            state.refusal = Some(refusal);
        }
        Ok(None)
    }

    /// Binds the socket to this queue's receive queue of the interface, and opens the queue.
    fn bind(
        &mut self,
        live: &mut LiveState,
        attached: AttachedInterface,
        absence: InterfaceAbsence,
        now_ns: i64,
    ) -> Result<(), SourceError> {
        if self.is_bound {
            return Err(self.no_spare_left());
        }
        let (receive_mode, is_native) = (
            self.attachment.receive_mode,
            self.attachment.state().is_native,
        );
        let outcome =
            self.receiver
                .channel
                .bind(attached.index, self.queue_index, is_native, receive_mode);
        let copied = match outcome {
            Ok(copied) => copied,
            Err(error) => return self.not_bound(live, error, attached, absence, now_ns),
        };
        self.is_bound = true;
        self.attachment
            .set_socket(self.queue_index, &self.receiver.channel.socket)
            .map_err(|error| self.xdp_interface.error("bpf(BPF_MAP_UPDATE_ELEM)", error))?;
        // The previous socket was closed before this socket was bound, so no chunk is in use.
        self.give_all_chunks();
        if std::mem::replace(&mut self.receiver.copied, copied) != copied && self.queue_index == 0 {
            live.notice(format_args!("{} now", copy_words(copied, receive_mode)));
        }
        self.was_zero_copy |= copied.is_none();
        if let Some(counters) = &mut live.counters {
            counters.follow(attached.index);
        }
        self.is_stamped = true;
        self.unstamped_before = self.counter(word::UNSTAMPED);
        self.has_reported_unseen = false;
        self.unseen_before = self.attachment.unseen();
        self.attached = attached;
        self.attachment.set_open(self.queue_index, true);
        self.attachment
            .state()
            .settle(attached.generation, self.queue_index);
        (self.is_removed, self.bind_state) = (false, BindState::Bound);
        live.set_interface_up(false);
        live.look_due_ns = now_ns;
        Ok(())
    }

    /// Handles a failed bind: the queue tries again later, does without this receive queue, or
    /// fails.
    fn not_bound(
        &mut self,
        live: &mut LiveState,
        error: io::Error,
        attached: AttachedInterface,
        mut absence: InterfaceAbsence,
        now_ns: i64,
    ) -> Result<(), SourceError> {
        match error.raw_os_error() {
            // The queue that attached the program may have failed, so this queue detaches the
            // program.
            Some(libc::ENODEV) => self.attachment.detach(attached.generation),
            Some(libc::ENETDOWN) => {}
            Some(libc::EBUSY)
                if now_ns - absence.busy_since_ns.unwrap_or(now_ns) < RECEIVE_QUEUE_WAIT_NS =>
            {
                absence.busy_since_ns.get_or_insert(now_ns);
            }
            Some(libc::EINVAL) if self.queue_index > 0 => {
                absence.without = Some(attached.generation);
                // If the interface gets the queue later, its packets are counted as unseen.
                let sockets = &self.attachment.sockets;
                let _ = sockets.remove(&self.queue_index.to_ne_bytes());
                self.attachment.set_open(self.queue_index, true);
                self.attachment
                    .state()
                    .settle(attached.generation, self.queue_index);
                live.notice(format_args!(
                    "it has no receive queue {} now",
                    self.queue_index
                ));
            }
            _ => return Err(self.xdp_interface.not_bound(self.queue_index, error)),
        }
        self.bind_state = BindState::Absent(absence);
        Ok(())
    }
}

/// Why an interface that the host uses is not captured.
fn host_use_reason(used: &HostUse) -> String {
    format!("it {used}, and take-interface was not given")
}
