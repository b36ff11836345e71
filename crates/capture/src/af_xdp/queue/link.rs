//! What happens to the interface under a queue: down, up, removed, there again.
//!
//! Every queue sees that its interface was removed by an error of its socket, or that another queue has left it. What the program had
//! taken until then is fetched; then the queue looks for the next interface. The first one to find one of the name that is up attaches
//! the program, and the others follow it there by its index, whatever it is called then. Each binds a spare socket to its receive
//! queue, and when all have done so the first queue tells that the interface is up.
//!
//! An interface that comes back is the host's if that uses it, also where it begins to within [`HOST_USE_WATCH_NS`]: links are set up before
//! they get addresses.

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

/// How long between two looks at an interface that the host uses.
const REFUSED_LOOK_NS: i64 = SECOND_NS / 4;

/// How long between two looks at its MTU.
const MTU_LOOK_NS: i64 = SECOND_NS / 4;

/// For how long after its return an interface is looked at whether the host begins to use it; and how long between two looks, each of
/// which takes a netlink socket and four lists.
const HOST_USE_WATCH_NS: i64 = 60 * SECOND_NS;
const HOST_USE_LOOK_NS: i64 = SECOND_NS / 4;

/// A queue and its interface.
#[derive(Debug, Clone, Copy)]
pub(super) enum BindState {
    /// The queue receives from the interface.
    Bound,
    /// The interface was removed; what the program took still comes.
    Leaving(QueueDrain),
    /// There is no interface, or none with such a queue.
    Absent(InterfaceAbsence),
}

/// The interface was removed. Times on the monotonic clock.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct InterfaceAbsence {
    /// Since when the receive queue is somebody else's.
    busy_since_ns: Option<i64>,
    /// The generation of the interface that has no such queue.
    without: Option<u64>,
}

impl XdpEngine {
    /// The interface's state: a socket is told of its removal, and of neither down nor up.
    pub(super) fn look_at_interface(
        &mut self,
        live: &mut LiveState,
        now_ns: i64,
    ) -> Result<(), SourceError> {
        match self.bind_state {
            // The removal may come after a stop, or after another queue has left.
            _ if !live.is_running() => {
                self.see_removal();
                live.look_due_ns = now_ns;
                Ok(())
            }
            BindState::Bound => self.look_while_bound(live, now_ns),
            BindState::Leaving(drain) => {
                self.see_removal();
                // Once no CPU can be in the program any more, what it took and the ring has not shown never comes: the kernel unbinds the
                // socket before it tells of the removal.
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
            self.ask_the_host(live, now_ns);
        }
        if self.is_removed || self.attachment.attached() != Some(self.attached) {
            self.detach(live, now_ns);
            return Ok(());
        }
        if let Ok(is_up) = self.xdp_interface.interface.is_up(self.attached.index) {
            live.set_interface_up(is_up && self.is_settled());
        }
        self.tell_unseen(live);
        if now_ns >= self.mtu_due_ns {
            self.mtu_due_ns = now_ns.saturating_add(MTU_LOOK_NS);
            self.tell_mtu(live, "start the recording again");
        }
        Ok(())
    }

    /// Whether all queues have what they need of an interface that came back.
    pub(super) fn is_settled(&self) -> bool {
        self.attachment.state().is_settled(self.queues)
    }

    /// Tells of an MTU that allows frames which do not fit, once each time that it rises above what fits. `reason`: why they
    /// do not fit, or what helps.
    pub(super) fn tell_mtu(&mut self, live: &mut LiveState, reason: &str) {
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

    /// Packets of receive queues without a socket: once, until the interface is another one.
    fn tell_unseen(&mut self, live: &mut LiveState) {
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

    fn see_removal(&mut self) {
        let error = take_error(&self.receiver.channel.socket);
        self.is_removed |= error.is_ok_and(|error| error.is_some());
    }

    /// Leaves an interface that came back to a host that has begun to use it.
    fn ask_the_host(&mut self, live: &mut LiveState, now_ns: i64) {
        if !self.attachment.state().is_to_ask(now_ns, HOST_USE_LOOK_NS) {
            return;
        }
        let used = self.xdp_interface.host_use();
        // That was asked by name: an interface that has another name by now is not meant.
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

    /// The interface was removed, or is the host's. What the program has taken still comes.
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

    /// Closes the socket and puts a spare one in its place, if there is one.
    fn renew(&mut self) -> Result<(), SourceError> {
        let Some(spare) = self.receiver.spares.pop() else {
            // The socket of a removed interface holds no receive queue: recording fails only when there is an interface to
            // bind to (`bind`).
            return if self.is_removed {
                Ok(())
            } else {
                Err(self.no_spare_left())
            };
        };
        // Its counters go with it.
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

    /// Looks whether an interface of this name is there again, and up, and takes packets from it.
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
                // There may be no other queue left that sees it.
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

    /// Attaches the program to the interface of this name if that is up, and another queue has not attached it. Returns what it is
    /// attached to; `None`: there is none, or it is not to be taken.
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
        // That was asked by name: it holds only if the interface still has this name.
        if !self.xdp_interface.interface.has_name(index) {
            return Ok(None);
        }
        let name = self.xdp_interface.name();
        let refusal = match used {
            Some(used) => host_use_reason(&used),
            None => match self.attachment.attach_again(&mut state, index) {
                Ok(attached) => {
                    state.ask_until_ns = now_ns.saturating_add(HOST_USE_WATCH_NS);
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
                "an interface of this name is there again, and is not taken: {refusal}"
            ));
            state.refusal = Some(refusal);
        }
        Ok(None)
    }

    /// Receives from this queue of the interface, if it has one.
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
        // The socket before was closed before this one was bound.
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

    /// Waits for the interface or its queue, or does without it.
    fn not_bound(
        &mut self,
        live: &mut LiveState,
        error: io::Error,
        attached: AttachedInterface,
        mut absence: InterfaceAbsence,
        now_ns: i64,
    ) -> Result<(), SourceError> {
        match error.raw_os_error() {
            // An interface that another queue has seen to be there, and that is gone again before this one has bound, is left too.
            Some(libc::ENODEV) => self.attachment.detach(attached.generation),
            Some(libc::ENETDOWN) => {}
            Some(libc::EBUSY)
                if now_ns - absence.busy_since_ns.unwrap_or(now_ns) < RECEIVE_QUEUE_WAIT_NS =>
            {
                absence.busy_since_ns.get_or_insert(now_ns);
            }
            Some(libc::EINVAL) if self.queue_index > 0 => {
                absence.without = Some(attached.generation);
                // If it gets one later, its packets are counted as unseen.
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

/// Why an interface is not taken that the host uses.
fn host_use_reason(used: &HostUse) -> String {
    format!("it {used}, and --take-interface was not given")
}
