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

use super::{PLACING_NS, XdpEngine};
use crate::{
    Event, SourceError,
    af_xdp::{
        attachment::Held,
        channel::RECEIVE_QUEUE_WAIT_NS,
        mode::{copy_words, program_word},
        program::word,
        taken::{frame_bytes, other_program},
    },
    clock::{self, SECOND_NS},
    host::HostUse,
    live::{ABSENT_LOOK_NS, Drain, Engine as _, Live},
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
pub(super) enum Tie {
    /// The queue receives from the interface.
    Bound,
    /// The interface was removed; what the program took still comes.
    Leaving(Drain),
    /// There is no interface, or none with such a queue.
    Absent(Absence),
}

/// The interface was removed. Times on the monotonic clock.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Absence {
    /// Since when the receive queue is somebody else's.
    busy_since_ns: Option<i64>,
    /// The generation of the interface that has no such queue.
    without: Option<u64>,
}

impl XdpEngine {
    /// The interface's state: a socket is told of its removal, and of neither down nor up.
    pub(super) fn look_at_interface(
        &mut self,
        live: &mut Live,
        now_ns: i64,
    ) -> Result<(), SourceError> {
        match self.tie {
            // The removal may come after a stop, or after another queue has left.
            _ if !live.is_running() => {
                self.see_removal();
                live.look_due_ns = now_ns;
                Ok(())
            }
            Tie::Bound => self.look_while_bound(live, now_ns),
            Tie::Leaving(drain) => {
                self.see_removal();
                // Once no CPU can be in the program any more, what it took and the ring has not shown never comes: the kernel unbinds the
                // socket before it tells of the removal.
                live.look_due_ns = now_ns;
                if live.is_drained(drain, now_ns, |is_over| self.ledger(is_over)) {
                    self.renew()?;
                    self.tie = Tie::Absent(Absence::default());
                }
                Ok(())
            }
            Tie::Absent(absence) => self.look_for_return(live, absence, now_ns),
        }
    }

    fn look_while_bound(&mut self, live: &mut Live, now_ns: i64) -> Result<(), SourceError> {
        let error = take_error(&self.opened.channel.socket);
        let error = error.map_err(|error| self.taken.error("getsockopt(SO_ERROR)", error))?;
        self.is_removed = error.is_some();
        if !self.is_removed {
            self.ask_the_host(live, now_ns);
        }
        if self.is_removed || self.attachment.held() != Some(self.held) {
            self.leave(live, now_ns);
            return Ok(());
        }
        if let Ok(is_up) = self.taken.interface.is_up(self.held.index) {
            live.found(is_up && self.is_settled());
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
        self.attachment.hold().is_settled(self.queues)
    }

    /// Tells of an MTU that allows frames which do not fit, once each time that it rises above what fits. `reason`: why they
    /// do not fit, or what helps.
    pub(super) fn tell_mtu(&mut self, live: &mut Live, reason: &str) {
        let Some(bytes_max) = self.attachment.take_mode.packet_bytes_max else {
            return;
        };
        let mtu = match self.queue_index {
            0 => self.taken.interface.mtu(self.held.index),
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
    fn tell_unseen(&mut self, live: &mut Live) {
        if self.queue_index == 0
            && !self.has_told_unseen
            && self.attachment.unseen() > self.unseen_before
        {
            self.has_told_unseen = true;
            live.notice(
                "it has more receive queues than at the start, and packets of the new ones are not recorded (unseen): start again",
            );
        }
    }

    fn see_removal(&mut self) {
        let error = take_error(&self.opened.channel.socket);
        self.is_removed |= error.is_ok_and(|error| error.is_some());
    }

    /// Leaves an interface that came back to a host that has begun to use it.
    fn ask_the_host(&mut self, live: &mut Live, now_ns: i64) {
        if !self.attachment.hold().is_to_ask(now_ns, HOST_USE_LOOK_NS) {
            return;
        }
        let used = self.taken.host_use();
        // That was asked by name: an interface that has another name by now is not meant.
        let Some(used) = used.filter(|_| self.taken.interface.has_name(self.held.index)) else {
            return;
        };
        let (name, reason) = (self.taken.name(), of_the_host(&used));
        live.tell([Event::Notice(format!(
            "{name} is the host's again, and not recorded until it can be taken: {reason}"
        ))]);
        self.attachment.hold().refusal = Some(reason);
        self.attachment.leave(self.held.generation);
    }

    /// The interface was removed, or is the host's. What the program has taken still comes.
    fn leave(&mut self, live: &mut Live, now_ns: i64) {
        self.attachment.set_open(self.queue_index, false);
        self.attachment.leave(self.held.generation);
        let is_hosts = !self.is_removed && self.attachment.hold().refusal.is_some();
        live.gone(if is_hosts {
            Event::InterfaceLeft(0)
        } else {
            Event::InterfaceGone(0)
        });
        if let Some(counters) = &mut live.counters {
            counters.leave(clock::realtime_ns());
        }
        self.tie = Tie::Leaving(Drain::closed(now_ns, PLACING_NS));
        live.look_due_ns = now_ns;
    }

    /// Closes the socket and puts a spare one in its place, if there is one.
    fn renew(&mut self) -> Result<(), SourceError> {
        let Some(spare) = self.opened.spares.pop() else {
            // The socket of a removed interface holds no receive queue: recording fails only when there is an interface to
            // bind to (`bind`).
            return if self.is_removed {
                Ok(())
            } else {
                Err(self.used_up())
            };
        };
        // Its counters go with it.
        self.lost_before = self
            .lost()
            .map_err(|error| self.taken.error("getsockopt(XDP_STATISTICS)", error))?;
        self.opened.channel = spare;
        self.is_bound = false;
        Ok(())
    }

    fn used_up(&self) -> SourceError {
        self.taken.unsupported(
            "it was removed too often, or more memory may not be locked (ulimit -l): start the recording again",
        )
    }

    /// Looks whether an interface of this name is there again, and up, and takes packets from it.
    fn look_for_return(
        &mut self,
        live: &mut Live,
        mut absence: Absence,
        now_ns: i64,
    ) -> Result<(), SourceError> {
        live.look_due_ns = now_ns.saturating_add(ABSENT_LOOK_NS);
        let held = match self.attachment.held() {
            None => self.take(live, now_ns)?,
            held => held,
        };
        if let Some(held) = held.filter(|held| absence.without == Some(held.generation)) {
            if self.taken.interface.is_up(held.index).is_err() {
                // There may be no other queue left that sees it.
                self.attachment.leave(held.generation);
            }
            return Ok(());
        }
        if absence.without.take().is_some() {
            self.attachment.set_open(self.queue_index, false);
        }
        self.tie = Tie::Absent(absence);
        held.map_or(Ok(()), |held| self.bind(live, held, absence, now_ns))
    }

    /// Attaches the program to the interface of this name if that is up, and another queue has not attached it. Returns what it is
    /// attached to; `None`: there is none, or it is not to be taken.
    fn take(&mut self, live: &mut Live, now_ns: i64) -> Result<Option<Held>, SourceError> {
        let found = match self.taken.look_up() {
            Err(SourceError::NoInterface { .. }) => return Ok(None),
            found => found?,
        };
        let index = found.index;
        let mut hold = self.attachment.hold();
        if hold.held().is_some() || !found.flags.is_up() {
            return Ok(hold.held());
        }
        live.look_due_ns = now_ns.saturating_add(REFUSED_LOOK_NS);
        let was_native = hold.is_native;
        let used = self.taken.host_use();
        // That was asked by name: it holds only if the interface still has this name.
        if !self.taken.interface.has_name(index) {
            return Ok(None);
        }
        let name = self.taken.name();
        let refusal = match used {
            Some(used) => of_the_host(&used),
            None => match self.attachment.attach_again(&mut hold, index) {
                Ok(held) => {
                    hold.ask_until_ns = now_ns.saturating_add(HOST_USE_WATCH_NS);
                    if hold.is_native != was_native {
                        let program = program_word(hold.is_native);
                        live.notice(format_args!("{program} XDP now"));
                    }
                    return Ok(Some(held));
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::ENODEV) => return Ok(None),
                    Some(libc::EBUSY | libc::EEXIST) => other_program(name),
                    Some(libc::EPERM) => {
                        return Err(self.taken.unsupported(
                            "it was removed, and this kernel asks for privileges to take up another one: start the recording again",
                        ));
                    }
                    _ => return Err(self.taken.error("bpf(BPF_LINK_CREATE)", error)),
                },
            },
        };
        if hold.refusal.as_ref() != Some(&refusal) {
            live.notice(format_args!(
                "an interface of this name is there again, and is not taken: {refusal}"
            ));
            hold.refusal = Some(refusal);
        }
        Ok(None)
    }

    /// Receives from this queue of the interface, if it has one.
    fn bind(
        &mut self,
        live: &mut Live,
        held: Held,
        absence: Absence,
        now_ns: i64,
    ) -> Result<(), SourceError> {
        if self.is_bound {
            return Err(self.used_up());
        }
        let (take_mode, is_native) = (self.attachment.take_mode, self.attachment.hold().is_native);
        let outcome = self
            .opened
            .channel
            .bind(held.index, self.queue_index, is_native, take_mode);
        let copied = match outcome {
            Ok(copied) => copied,
            Err(error) => return self.not_bound(live, error, held, absence, now_ns),
        };
        self.is_bound = true;
        self.attachment
            .set_socket(self.queue_index, &self.opened.channel.socket)
            .map_err(|error| self.taken.error("bpf(BPF_MAP_UPDATE_ELEM)", error))?;
        // The socket before was closed before this one was bound.
        self.give_all();
        if std::mem::replace(&mut self.opened.copied, copied) != copied && self.queue_index == 0 {
            live.notice(format_args!("{} now", copy_words(copied, take_mode)));
        }
        self.was_zero_copy |= copied.is_none();
        if let Some(counters) = &mut live.counters {
            counters.follow(held.index);
        }
        self.is_stamped = true;
        self.unstamped_before = self.counter(word::UNSTAMPED);
        self.has_told_unseen = false;
        self.unseen_before = self.attachment.unseen();
        self.held = held;
        self.attachment.set_open(self.queue_index, true);
        self.attachment
            .hold()
            .settle(held.generation, self.queue_index);
        (self.is_removed, self.tie) = (false, Tie::Bound);
        live.found(false);
        live.look_due_ns = now_ns;
        Ok(())
    }

    /// Waits for the interface or its queue, or does without it.
    fn not_bound(
        &mut self,
        live: &mut Live,
        error: io::Error,
        held: Held,
        mut absence: Absence,
        now_ns: i64,
    ) -> Result<(), SourceError> {
        match error.raw_os_error() {
            // An interface that another queue has seen to be there, and that is gone again before this one has bound, is left too.
            Some(libc::ENODEV) => self.attachment.leave(held.generation),
            Some(libc::ENETDOWN) => {}
            Some(libc::EBUSY)
                if now_ns - absence.busy_since_ns.unwrap_or(now_ns) < RECEIVE_QUEUE_WAIT_NS =>
            {
                absence.busy_since_ns.get_or_insert(now_ns);
            }
            Some(libc::EINVAL) if self.queue_index > 0 => {
                absence.without = Some(held.generation);
                // If it gets one later, its packets are counted as unseen.
                let sockets = &self.attachment.sockets;
                let _ = sockets.remove(&self.queue_index.to_ne_bytes());
                self.attachment.set_open(self.queue_index, true);
                self.attachment
                    .hold()
                    .settle(held.generation, self.queue_index);
                live.notice(format_args!(
                    "it has no receive queue {} now",
                    self.queue_index
                ));
            }
            _ => return Err(self.taken.not_bound(self.queue_index, error)),
        }
        self.tie = Tie::Absent(absence);
        Ok(())
    }
}

/// Why an interface is not taken that the host uses.
fn of_the_host(used: &HostUse) -> String {
    format!("it {used}, and take-interface was not given")
}
