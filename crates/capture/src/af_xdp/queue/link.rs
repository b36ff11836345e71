//! What happens to the interface under a queue: down, up, removed, there again.
//!
//! Every queue sees that its interface was removed by an error of its socket, or that another queue has left it. What the program had
//! taken until then is fetched; then the queue looks for the next interface. The first one to find one of the name that is up attaches
//! the program, and the others follow it there by its index, whatever it is called then. Each binds a spare socket to its receive
//! queue, and when all have done so the first queue tells that the interface is up.
//!
//! An interface that comes back is the host's if that uses it, also where it begins to within [`ASK_NS`]: links are set up before
//! they get addresses.

use std::io;

use super::{DRAIN_NS, PLACING_NS, Phase, XdpQueue};
use crate::{
    Event, SourceError,
    af_xdp::{
        attachment::Held,
        program::word,
        source::{copy_words, frame_bytes, other_program, program_word},
    },
    clock::{self, SECOND_NS},
    host::HostUse,
};

/// How often an interface that was removed is looked for, or one that is down looked at, and one that the host uses.
pub(super) const ABSENT_LOOK_NS: i64 = 10_000_000;
const REFUSED_LOOK_NS: i64 = SECOND_NS / 4;

/// How often to look whether it is still there, at most: three system calls in each thread, which an idle queue makes once each time that it
/// wakes.
const RUNNING_LOOK_NS: i64 = 5_000_000;

/// How often its MTU is looked at.
const MTU_LOOK_NS: i64 = SECOND_NS / 4;

/// For how long after its return an interface is asked whether the host uses it, and how often: a netlink socket and four lists.
const ASK_NS: i64 = 60 * SECOND_NS;
const ASK_PAUSE_NS: i64 = SECOND_NS / 4;

/// How long a receive queue may be somebody else's.
const BUSY_NS: i64 = 2 * SECOND_NS;

/// The interface was removed. Times on the monotonic clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Absence {
    look_ns: i64,
    /// Since when the receive queue is somebody else's.
    busy_since_ns: Option<i64>,
    /// The generation of the interface that has no such queue.
    without: Option<u64>,
}

impl XdpQueue {
    /// The interface's state: a socket is told of its removal, and of neither down nor up.
    pub(super) fn look_at_interface(&mut self) -> Result<(), SourceError> {
        match self.phase {
            Phase::Running => {
                let now_ns = clock::monotonic_ns();
                if now_ns < self.look_due_ns {
                    return Ok(());
                }
                self.look_due_ns = now_ns.saturating_add(RUNNING_LOOK_NS);
                let error = self.opened.channel.socket.take_error();
                let error =
                    error.map_err(|error| self.port.error("getsockopt(SO_ERROR)", error))?;
                if error.is_some() {
                    self.is_removed = true;
                    self.leave();
                    return Ok(());
                }
                self.ask_the_host(now_ns);
                if self.attachment.held() != Some(self.held) {
                    self.leave();
                    return Ok(());
                }
                let is_up = self
                    .port
                    .is_up(self.held.index)
                    .map(|is_up| is_up && self.attachment.hold().is_settled(self.queues));
                if let Some(is_up) = is_up.filter(|is_up| *is_up != self.is_up) {
                    self.is_up = is_up;
                    self.events.push_back(if is_up {
                        Event::InterfaceUp(0)
                    } else {
                        Event::InterfaceDown(0)
                    });
                }
                self.tell_unseen();
                if now_ns >= self.mtu_due_ns {
                    self.mtu_due_ns = now_ns.saturating_add(MTU_LOOK_NS);
                    self.tell_mtu("start the recording again");
                }
                Ok(())
            }
            Phase::Leaving { .. } => {
                self.see_removal();
                self.settle_ledger()
            }
            Phase::Draining { .. } => {
                self.see_removal();
                Ok(())
            }
            Phase::Absent(absence) if absence.look_ns <= clock::monotonic_ns() => {
                self.look_for_return(absence)
            }
            _ => Ok(()),
        }
    }

    /// Tells of an MTU that allows frames which do not fit, once for each time that it rises so far, and why, or what helps.
    pub(super) fn tell_mtu(&mut self, reason: &str) {
        let Some(bytes_max) = self.attachment.plan.packet_bytes_max else {
            return;
        };
        let mtu = match self.line {
            0 => self.port.mtu(self.held.index),
            _ => None,
        };
        let Some(mtu) = mtu else { return };
        let fits = usize::try_from(bytes_max).is_ok_and(|max| frame_bytes(mtu) <= max);
        if !fits && self.fits_mtu {
            let name = self.port.name();
            self.events.push_back(Event::Notice(format!(
                "{name}: its MTU is {mtu}, and frames above {bytes_max} bytes are counted as lost (oversize): {reason}"
            )));
        }
        self.fits_mtu = fits;
    }

    /// Packets of receive queues without a socket: once, until the interface is another one.
    fn tell_unseen(&mut self) {
        if self.line != 0 || self.has_told_unseen {
            return;
        }
        let unseen = self.attachment.unseen();
        if unseen > self.unseen_before {
            self.has_told_unseen = true;
            let name = self.port.name();
            self.events.push_back(Event::Notice(format!(
                "{name}: it has more receive queues than at the start, and packets of the new ones are not recorded (unseen): start again"
            )));
        }
    }

    /// The removal may come after a stop, or after another queue has left.
    fn see_removal(&mut self) {
        let error = self.opened.channel.socket.take_error();
        self.is_removed |= error.is_ok_and(|error| error.is_some());
    }

    /// Leaves an interface that came back to a host that has begun to use it.
    fn ask_the_host(&mut self, now_ns: i64) {
        if !self.attachment.hold().is_to_ask(now_ns, ASK_PAUSE_NS) {
            return;
        }
        let used = self.port.host_use();
        // One that has another name by now was not asked for.
        let Some(used) = used.filter(|_| self.port.has_name(self.held.index)) else {
            return;
        };
        let (name, reason) = (self.port.name(), of_the_host(&used));
        self.events.push_back(Event::Notice(format!(
            "{name} is the host's again, and not recorded until it can be taken: {reason}"
        )));
        self.attachment.hold().refusal = Some(reason);
        self.attachment.leave(self.held.generation);
    }

    /// The interface was removed, or is the host's. What the program has taken still comes.
    fn leave(&mut self) {
        self.close(self.line);
        self.attachment.leave(self.held.generation);
        self.is_up = false;
        let is_hosts = !self.is_removed && self.attachment.hold().refusal.is_some();
        self.events.push_back(if is_hosts {
            Event::InterfaceLeft(0)
        } else {
            Event::InterfaceGone(0)
        });
        if let Some(card) = &mut self.card {
            card.leave(clock::realtime_ns());
        }
        let now_ns = clock::monotonic_ns();
        self.phase = Phase::Leaving {
            give_up_ns: now_ns.saturating_add(DRAIN_NS),
            quiet_from_ns: now_ns.saturating_add(PLACING_NS),
        };
    }

    /// The receive ring is empty. Once no CPU can be in the program any more, what it took and the ring has not shown never comes: the
    /// kernel unbinds the socket before it tells of the removal.
    fn settle_ledger(&mut self) -> Result<(), SourceError> {
        if !self.is_drained(clock::monotonic_ns()) {
            return Ok(());
        }
        self.renew()?;
        self.phase = Phase::Absent(Absence {
            look_ns: 0,
            busy_since_ns: None,
            without: None,
        });
        Ok(())
    }

    /// Closes the socket and puts a spare one in its place, if there is one.
    fn renew(&mut self) -> Result<(), SourceError> {
        let Some(spare) = self.opened.spares.pop() else {
            // Without an interface it is in nobody's way: recording ends when there is another one.
            return if self.is_removed {
                Ok(())
            } else {
                Err(self.used_up())
            };
        };
        // Its counters go with it.
        self.lost_before = self
            .lost()
            .map_err(|error| self.port.error("getsockopt(XDP_STATISTICS)", error))?
            - self.unreadable;
        self.opened.channel = spare;
        self.is_bound = false;
        Ok(())
    }

    fn used_up(&self) -> SourceError {
        self.port.unsupported(
            "it was removed too often, or more memory may not be locked (ulimit -l): start the recording again",
        )
    }

    /// Looks whether an interface of this name is there again, and up, and takes packets from it.
    fn look_for_return(&mut self, mut absence: Absence) -> Result<(), SourceError> {
        let now_ns = clock::monotonic_ns();
        absence.look_ns = now_ns.saturating_add(ABSENT_LOOK_NS);
        let held = match self.attachment.held() {
            None => self.take(&mut absence, now_ns)?,
            held => held,
        };
        if let Some(held) = held.filter(|held| absence.without == Some(held.generation)) {
            if self.port.is_up(held.index).is_none() {
                // There may be no other queue left that sees it.
                self.attachment.leave(held.generation);
            }
            self.phase = Phase::Absent(absence);
            return Ok(());
        }
        if absence.without.take().is_some() {
            self.close(self.line);
        }
        self.phase = Phase::Absent(absence);
        held.map_or(Ok(()), |held| self.bind(held, absence, now_ns))
    }

    /// Attaches the program to the interface of this name if that is up, and another queue has not attached it. Returns what it is
    /// attached to; `None`: there is none, or it is not to be taken.
    fn take(&mut self, absence: &mut Absence, now_ns: i64) -> Result<Option<Held>, SourceError> {
        let found = match self.port.look_up() {
            Err(SourceError::NoInterface { .. }) => return Ok(None),
            found => found?,
        };
        let mut hold = self.attachment.hold();
        if hold.held().is_some() || !found.is_up {
            return Ok(hold.held());
        }
        absence.look_ns = now_ns.saturating_add(REFUSED_LOOK_NS);
        let was_native = hold.is_native;
        let used = self.port.host_use();
        // What was said is said of the name.
        if !self.port.has_name(found.index) {
            return Ok(None);
        }
        let name = self.port.name();
        let refusal = match used {
            Some(used) => of_the_host(&used),
            None => match self.attachment.attach_again(&mut hold, found.index) {
                Ok(held) => {
                    hold.ask_until(now_ns.saturating_add(ASK_NS));
                    if hold.is_native != was_native {
                        let program = program_word(hold.is_native);
                        let words = format!("{name}: {program} XDP now");
                        self.events.push_back(Event::Notice(words));
                    }
                    return Ok(Some(held));
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::ENODEV) => return Ok(None),
                    Some(libc::EBUSY | libc::EEXIST) => other_program(name),
                    Some(libc::EPERM) => {
                        return Err(self.port.unsupported(
                            "it was removed, and this kernel asks for privileges to take up another one: start the recording again",
                        ));
                    }
                    _ => return Err(self.port.error("bpf(BPF_LINK_CREATE)", error)),
                },
            },
        };
        if hold.refusal.as_ref() != Some(&refusal) {
            self.events.push_back(Event::Notice(format!(
                "{name}: an interface of this name is there again, and is not taken: {refusal}"
            )));
            hold.refusal = Some(refusal);
        }
        Ok(None)
    }

    /// Receives from this queue of the interface, if it has one.
    fn bind(&mut self, held: Held, absence: Absence, now_ns: i64) -> Result<(), SourceError> {
        if self.is_bound {
            return Err(self.used_up());
        }
        let queue = u32::try_from(self.line).unwrap_or(u32::MAX);
        let (plan, is_native) = (self.attachment.plan, self.attachment.hold().is_native);
        let outcome = self.opened.channel.bind(held.index, queue, is_native, plan);
        let copied = match outcome {
            Ok(copied) => copied,
            Err(error) => return self.not_bound(error, held, absence, now_ns),
        };
        self.is_bound = true;
        self.attachment
            .set_socket(queue, &self.opened.channel.socket)
            .map_err(|error| self.port.error("bpf(BPF_MAP_UPDATE_ELEM)", error))?;
        // The socket before was closed before this one was bound.
        self.give_all();
        if std::mem::replace(&mut self.opened.copied, copied) != copied && self.line == 0 {
            let (name, copy) = (self.port.name(), copy_words(copied, plan));
            let words = format!("{name}: {copy} now");
            self.events.push_back(Event::Notice(words));
        }
        self.was_zero_copy |= copied.is_none();
        if let Some(card) = &mut self.card {
            card.follow(held.index);
        }
        self.is_stamped = true;
        self.unstamped_before = self.counter(word::UNSTAMPED);
        self.has_told_unseen = false;
        self.unseen_before = self.attachment.unseen();
        self.held = held;
        self.attachment.counters.set(self.line, word::OPEN, 1);
        self.attachment.hold().settle(held.generation, self.line);
        (self.is_removed, self.phase) = (false, Phase::Running);
        Ok(())
    }

    /// Waits for the interface or its queue, or does without it.
    fn not_bound(
        &mut self,
        error: io::Error,
        held: Held,
        mut absence: Absence,
        now_ns: i64,
    ) -> Result<(), SourceError> {
        let queue = u32::try_from(self.line).unwrap_or(u32::MAX);
        match error.raw_os_error() {
            // An interface that another queue has seen to be there, and that is gone again before this one has bound, is left too.
            Some(libc::ENODEV) => self.attachment.leave(held.generation),
            Some(libc::ENETDOWN) => {}
            Some(libc::EBUSY) if now_ns - absence.busy_since_ns.unwrap_or(now_ns) < BUSY_NS => {
                absence.busy_since_ns.get_or_insert(now_ns);
            }
            Some(libc::EINVAL) if queue > 0 => {
                absence.without = Some(held.generation);
                // If it gets one later, its packets are counted as unseen.
                self.attachment.remove_socket(queue);
                self.attachment.watch(self.line);
                self.attachment.hold().settle(held.generation, self.line);
                let name = self.port.name();
                self.events.push_back(Event::Notice(format!(
                    "{name}: it has no receive queue {queue} now"
                )));
            }
            _ => return Err(self.port.not_bound(queue, error)),
        }
        self.phase = Phase::Absent(absence);
        Ok(())
    }
}

/// Why an interface is not taken that the host uses.
fn of_the_host(used: &HostUse) -> String {
    format!("it {used}, and --take-interface was not given")
}
