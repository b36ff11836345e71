//! What happens to the interface under a queue: down, up, removed, there again.
//!
//! Every queue sees that its interface was removed by an error of its socket. What the program had taken until then is fetched; then
//! the queue looks for an interface of the same name that is up. The first one to find it attaches the program, each binds a spare
//! socket to its receive queue, and when all have done so the first queue tells that the interface is up.

use super::{DRAIN_NS, PLACING_NS, Phase, XdpQueue};
use crate::{
    Event, SourceError,
    af_xdp::{
        program::word,
        source::{copy_words, other_program, program_word},
    },
    clock::{self, SECOND_NS},
};

/// How often an interface that was removed is looked for, and one that the host uses.
const LOOK_NS: i64 = 10_000_000;
const REFUSED_LOOK_NS: i64 = SECOND_NS / 4;

/// How often to look whether it is still there, at most: three system calls in each thread, which an idle queue makes once each time that it
/// wakes.
const RUNNING_LOOK_NS: i64 = 5_000_000;

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
                    self.leave();
                    return Ok(());
                }
                let is_up = self
                    .port
                    .is_up(self.index)
                    .map(|is_up| is_up && self.attachment.is_settled(self.queues));
                if let Some(is_up) = is_up.filter(|is_up| *is_up != self.is_up) {
                    self.is_up = is_up;
                    self.events.push_back(if is_up {
                        Event::InterfaceUp(0)
                    } else {
                        Event::InterfaceDown(0)
                    });
                }
                self.tell_unseen();
                Ok(())
            }
            Phase::Leaving { .. } => {
                self.settle_ledger();
                Ok(())
            }
            // The removal may not have been seen before the stop.
            Phase::Draining { .. } => {
                let error = self.opened.channel.socket.take_error();
                self.is_removed |= error.is_ok_and(|error| error.is_some());
                Ok(())
            }
            Phase::Absent(absence) if absence.look_ns <= clock::monotonic_ns() => {
                self.look_for_return(absence)
            }
            _ => Ok(()),
        }
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

    /// The interface was removed. What the program has taken still comes.
    fn leave(&mut self) {
        self.close(self.line);
        self.attachment.leave(self.generation);
        (self.is_up, self.is_removed) = (false, true);
        self.events.push_back(Event::InterfaceGone(0));
        let now_ns = clock::monotonic_ns();
        self.phase = Phase::Leaving {
            give_up_ns: now_ns.saturating_add(DRAIN_NS),
            quiet_from_ns: now_ns.saturating_add(PLACING_NS),
        };
    }

    /// The receive ring is empty. Once no CPU can be in the program any more, what it took and the ring has not shown never comes: the
    /// kernel unbinds the socket before it tells of the removal.
    fn settle_ledger(&mut self) {
        if !self.is_drained(clock::monotonic_ns()) {
            return;
        }
        self.phase = Phase::Absent(Absence {
            look_ns: 0,
            busy_since_ns: None,
            without: None,
        });
    }

    /// Looks whether an interface of this name is there again, and up, and takes packets from it.
    fn look_for_return(&mut self, mut absence: Absence) -> Result<(), SourceError> {
        let now_ns = clock::monotonic_ns();
        absence.look_ns = now_ns.saturating_add(LOOK_NS);
        let found = match self.port.look_up() {
            Err(SourceError::NoInterface { .. }) => None,
            result => Some(result?),
        };
        if found.is_none() && absence.without.take().is_some() {
            self.close(self.line);
        }
        self.phase = Phase::Absent(absence);
        let Some(found) = found.filter(|found| found.is_up) else {
            return Ok(());
        };
        let Some(generation) = self.take(found.index)? else {
            absence.look_ns = now_ns.saturating_add(REFUSED_LOOK_NS);
            self.phase = Phase::Absent(absence);
            return Ok(());
        };
        if absence.without == Some(generation) {
            return Ok(());
        }
        self.close(self.line);
        self.bind_spare(found.index, generation, absence, now_ns)
    }

    /// Attaches the program to the interface unless another queue has done so. Returns the generation; `None`: it is not to be
    /// taken, or gone again.
    fn take(&mut self, index: u32) -> Result<Option<u64>, SourceError> {
        let mut hold = self.attachment.hold();
        if let Some(generation) = hold.generation_of(index) {
            return Ok(Some(generation));
        }
        let name = self.port.name();
        let refuse = |what: String| {
            format!("{name}: an interface of this name is there again, and is not taken: {what}")
        };
        let was_native = hold.is_native;
        let refusal = match self.port.host_use()? {
            Some(what) => refuse(format!("it has {what}, and --take-interface was not given")),
            None => match self.attachment.attach(&mut hold, index) {
                Ok(()) => {
                    if hold.is_native != was_native {
                        let program = program_word(hold.is_native);
                        let words = format!("{name}: {program} XDP now");
                        self.events.push_back(Event::Notice(words));
                    }
                    return Ok(Some(hold.generation()));
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::ENODEV) => return Ok(None),
                    Some(libc::EBUSY | libc::EEXIST) => refuse(other_program(name)),
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
            self.events.push_back(Event::Notice(refusal.clone()));
            hold.refusal = Some(refusal);
        }
        Ok(None)
    }

    /// Receives from this queue of the interface, if it has one.
    fn bind_spare(
        &mut self,
        index: u32,
        generation: u64,
        mut absence: Absence,
        now_ns: i64,
    ) -> Result<(), SourceError> {
        let Some(spare) = self.opened.spares.pop() else {
            return Err(self.port.unsupported(
                "it was removed too often, or more memory may not be locked (ulimit -l): start the recording again",
            ));
        };
        let queue = u32::try_from(self.line).unwrap_or(u32::MAX);
        let fragments = self.attachment.has_fragments;
        if let Err(error) = spare.socket.bind(index, queue, fragments) {
            self.opened.spares.push(spare);
            match error.raw_os_error() {
                Some(libc::ENODEV | libc::ENETDOWN) => {}
                Some(libc::EBUSY) if now_ns - absence.busy_since_ns.unwrap_or(now_ns) < BUSY_NS => {
                    absence.busy_since_ns.get_or_insert(now_ns);
                }
                Some(libc::EINVAL) if queue > 0 => {
                    absence.without = Some(generation);
                    // If it gets one later, its packets are counted as unseen.
                    self.attachment.remove_socket(queue);
                    self.attachment.watch(self.line);
                    self.attachment.settle(generation);
                    let name = self.port.name();
                    self.events.push_back(Event::Notice(format!(
                        "{name}: it has no receive queue {queue} now"
                    )));
                }
                _ => return Err(self.port.error("bind(AF_XDP)", error)),
            }
            self.phase = Phase::Absent(absence);
            return Ok(());
        }
        let zero_copy = spare
            .socket
            .is_zero_copy()
            .map_err(|error| self.port.error("getsockopt(XDP_OPTIONS)", error))?;
        // Its counters go with it.
        self.lost_before = self
            .lost()
            .map_err(|error| self.port.error("getsockopt(XDP_STATISTICS)", error))?
            - self.unreadable;
        // The old socket is closed before the chunks are given to the new one.
        drop(std::mem::replace(&mut self.opened.channel, spare));
        self.attachment
            .set_socket(queue, &self.opened.channel.socket)
            .map_err(|error| self.port.error("bpf(BPF_MAP_UPDATE_ELEM)", error))?;
        self.give_all();
        if std::mem::replace(&mut self.opened.zero_copy, zero_copy) != zero_copy && self.line == 0 {
            let (name, copy) = (self.port.name(), copy_words(zero_copy));
            let words = format!("{name}: {copy} now");
            self.events.push_back(Event::Notice(words));
        }
        self.was_zero_copy |= zero_copy;
        self.is_stamped = true;
        self.unstamped_before = self.counter(word::UNSTAMPED);
        self.has_told_unseen = false;
        self.unseen_before = self.attachment.unseen();
        (self.index, self.generation) = (index, generation);
        self.attachment.counters.set(self.line, word::OPEN, 1);
        self.attachment.settle(generation);
        (self.is_removed, self.phase) = (false, Phase::Running);
        Ok(())
    }
}
