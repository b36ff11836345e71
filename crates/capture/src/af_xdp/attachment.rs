//! State that the queues of an interface share: the program with its maps and counters, and the
//! link that keeps the program attached.
//!
//! The program is loaded at the start, with privileges. Attaching a loaded program to an interface
//! that comes back needs no privileges (`bpf_xdp_link_attach` of `net/core/dev.c`), except before
//! Linux 5.19 if `kernel.unprivileged_bpf_disabled` is set.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, Read as _},
    os::fd::{AsFd, AsRawFd},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use super::{
    btf::function_id,
    mode::ReceiveMode,
    program::{
        FLOW_KEY_BYTES, NIC_STAMP_FUNCTION, ProgramInputs, SHUNTED_STATE_BYTES, ShuntedState,
        TAKEN_EVERY_NS, assemble, flow_key, word,
    },
    sys::{CounterLines, LINE_WORDS, Map, XdpLink, XdpProgram, XdpSocket, attach, load_program},
};
use crate::{Shunt, ShuntedFlow, af_packet::sys::PacketSocket, clock};

/// Largest number of receive queues that have counters and sockets.
pub(super) const QUEUES_MAX: u32 = 1024;

/// Largest number of shunted flows, each in one direction. In a full map, a new flow replaces
/// another flow (LRU).
const SHUNTED_MAX: u32 = 1 << 16;

/// Bytes of a queue's line in the counters.
const LINE_BYTES: usize = 8 * word::COUNT;

const _: () = assert!(
    word::COUNT == LINE_WORDS,
    "a line as `CounterLines` maps it"
);

/// Largest size of the kernel's type information that is read.
const BTF_BYTES_MAX: u64 = 64 << 20;

/// `XDP_FLAGS_SKB_MODE`, `XDP_FLAGS_DRV_MODE`.
const GENERIC: u32 = 1 << 1;
const NATIVE: u32 = 1 << 2;

/// An XDP program for interfaces of one name. Dropping this value, or the end of the process,
/// detaches the program.
#[derive(Debug)]
pub(super) struct Attachment {
    // Dropped before the maps, because `state` contains the link: the program is detached first.
    state: Mutex<AttachmentState>,
    program: XdpProgram,
    /// A program for the interface of the start alone, which gets the NIC's stamps from the driver.
    /// `None`: the queues take no stamps of the NIC.
    bound: Option<XdpProgram>,
    /// A queue has reported packets without a usable stamp of the NIC.
    pub(super) has_reported_stamps: AtomicBool,
    pub(super) counters: CounterLines,
    pub(super) sockets: Map,
    shunted: Map,
    /// The program looks flows up in `shunted`: true from the first shunted flow on.
    is_shunting: AtomicBool,
    pub(super) receive_mode: ReceiveMode,
    /// Keeps the interface promiscuous while the program is attached.
    promiscuous: Option<PacketSocket>,
}

/// The interface to which the program is attached, and the state of each queue for this interface.
/// The sets contain indices of receive queues.
#[derive(Debug, Default)]
pub(super) struct AttachmentState {
    link: Option<(XdpLink, AttachedInterface)>,
    /// Number of attachments until now. An interface may leave for another namespace and come back
    /// with the same index.
    generation: u64,
    /// The driver runs the program; otherwise the kernel's network stack.
    pub(super) is_native: bool,
    /// Queues that have a socket, or know that the interface has no such queue.
    settled: BTreeSet<u32>,
    /// Queues that have failed, and wait for no interface any more.
    failed: BTreeSet<u32>,
    /// Why an interface that came back is not captured. The user got this text.
    pub(super) refusal: Option<String>,
    /// When to check next whether the host uses an interface that came back, on the monotonic
    /// clock.
    host_check_due_ns: i64,
    /// When the checks for uses by the host end, on the monotonic clock; 0: no checks.
    pub(super) host_check_until_ns: i64,
}

/// An attachment to an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AttachedInterface {
    pub(super) index: i32,
    /// Number of the attachment to this interface.
    pub(super) generation: u64,
}

impl Attachment {
    /// Loads the program. `promiscuous`: a socket that receives no packets, if interfaces should be
    /// promiscuous. `stamping`: the index of the interface whose NIC's stamps the queues take.
    pub(super) fn new(
        receive_mode: ReceiveMode,
        promiscuous: Option<PacketSocket>,
        stamping: Option<i32>,
    ) -> io::Result<Self> {
        let counters = Map::new(Map::ARRAY, 4, LINE_BYTES, QUEUES_MAX)?;
        let sockets = Map::new(Map::SOCKETS, 4, 4, QUEUES_MAX)?;
        let shunted = Map::new(
            Map::LRU_HASH,
            FLOW_KEY_BYTES,
            SHUNTED_STATE_BYTES,
            SHUNTED_MAX,
        )?;
        let load = |nic_stamps, device| {
            let code = assemble(ProgramInputs {
                counters: counters.descriptor.as_raw_fd(),
                sockets: sockets.descriptor.as_raw_fd(),
                shunted: shunted.descriptor.as_raw_fd(),
                receive_mode,
                nic_stamps,
            });
            load_program(&code, receive_mode.has_fragments, device)
        };
        let bound = match stamping {
            Some(_) => Some(load(Some(nic_stamp_function()?), stamping)?),
            None => None,
        };
        Ok(Self {
            state: Mutex::default(),
            program: load(stamping.map(|_| 0), None)?,
            bound,
            has_reported_stamps: AtomicBool::new(false),
            counters: CounterLines::new(&counters.descriptor, QUEUES_MAX)?,
            sockets,
            shunted,
            is_shunting: AtomicBool::new(false),
            receive_mode,
            promiscuous,
        })
    }

    /// Locks the state of the attachment.
    pub(super) fn state(&self) -> MutexGuard<'_, AttachmentState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the program leaves room for the NIC's stamp in front of a packet.
    pub(super) fn has_nic_stamps(&self) -> bool {
        self.bound.is_some()
    }

    /// Attaches the program to an interface that came back: in the driver if the driver supports
    /// XDP, otherwise in the network stack. Tries first the program that gets the NIC's stamps,
    /// which fits only the interface of the start.
    pub(super) fn attach_again(
        &self,
        state: &mut AttachmentState,
        index: i32,
    ) -> io::Result<AttachedInterface> {
        let bound = self.bound.as_ref().map(|bound| (bound, true));
        let others = [(&self.program, true), (&self.program, false)];
        let mut outcome = Err(io::ErrorKind::InvalidInput.into());
        for (program, is_native) in bound.into_iter().chain(others) {
            outcome = self.attach_program(state, index, is_native, program);
            if !outcome.as_ref().is_err_and(is_unsupported) {
                break;
            }
        }
        outcome
    }

    /// Attaches the program to the interface of the start. The packets of a queue go on to the host
    /// until [`Self::set_open`] opens the queue. `state` must have no interface.
    pub(super) fn attach(
        &self,
        state: &mut AttachmentState,
        index: i32,
        is_native: bool,
    ) -> io::Result<AttachedInterface> {
        let program = self.bound.as_ref().unwrap_or(&self.program);
        self.attach_program(state, index, is_native, program)
    }

    fn attach_program(
        &self,
        state: &mut AttachmentState,
        index: i32,
        is_native: bool,
        program: &XdpProgram,
    ) -> io::Result<AttachedInterface> {
        assert!(state.link.is_none(), "an interface was left before");
        let mode = if is_native { NATIVE } else { GENERIC };
        let link = attach(program, index, mode)?;
        if let Some(socket) = &self.promiscuous {
            socket.set_promiscuous(index)?;
        }
        let generation = state.generation + 1;
        let attached = AttachedInterface { index, generation };
        *state = AttachmentState {
            link: Some((link, attached)),
            generation,
            is_native,
            failed: std::mem::take(&mut state.failed),
            ..AttachmentState::default()
        };
        Ok(attached)
    }

    /// The interface to which the program is attached, if any.
    pub(super) fn attached(&self) -> Option<AttachedInterface> {
        self.state().attached()
    }

    /// Detaches the program, unless `generation` is not the current attachment.
    pub(super) fn detach(&self, generation: u64) {
        let mut state = self.state();
        let is_it =
            |(_, attached): &mut (XdpLink, AttachedInterface)| attached.generation == generation;
        let Some((_, attached)) = state.link.take_if(is_it) else {
            return;
        };
        if let Some(socket) = &self.promiscuous {
            // If the interface was removed, the kernel has already ended promiscuous mode.
            let _ = socket.unset_promiscuous(attached.index);
        }
    }

    /// Assigns the packets of a queue to a socket. The program redirects them once the queue is
    /// open.
    pub(super) fn set_socket(&self, queue_index: u32, socket: &XdpSocket) -> io::Result<()> {
        let descriptor = socket.as_fd().as_raw_fd();
        self.sockets
            .insert(&queue_index.to_ne_bytes(), &descriptor.to_ne_bytes())
    }

    /// Opens or closes a queue. The packets of a closed queue go on to the host uncounted.
    pub(super) fn set_open(&self, queue_index: u32, is_open: bool) {
        self.counters
            .set(queue_index, word::OPEN, u64::from(is_open));
    }

    /// Makes the program drop the packets of this direction of a flow or, if `shunt` is `None`,
    /// deliver them again. [`Queue::shunt`](crate::Queue::shunt) describes which packets are
    /// dropped.
    pub(super) fn shunt(&self, flow: &ShuntedFlow, shunt: Option<Shunt>) -> io::Result<()> {
        let Some(Shunt { silence_ns, class }) = shunt else {
            return match self.shunted.remove(&flow_key(flow)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                outcome => outcome,
            };
        };
        let now_ns = clock::monotonic_ns();
        let next_ns = now_ns + i64::from(TAKEN_EVERY_NS);
        let flow_state: ShuntedState = [now_ns, next_ns, silence_ns, class.into()];
        let flow_state = flow_state.map(i64::to_ne_bytes);
        self.shunted
            .insert(&flow_key(flow), flow_state.as_flattened())?;
        // A look-up costs time for each packet, so the program starts with the first shunted flow.
        // Relaxed: `swap` lets one thread write the lines, and no other data depends on the flag.
        if !self.is_shunting.swap(true, Relaxed) {
            for queue_index in 0..QUEUES_MAX {
                self.counters.set(queue_index, word::SHUNTING, 1);
            }
        }
        Ok(())
    }

    /// Packets of open receive queues without a socket, which went on to the host.
    pub(super) fn unseen(&self) -> u64 {
        (0..QUEUES_MAX)
            .map(|queue_index| self.counters.get(queue_index, word::UNSEEN))
            .sum()
    }
}

impl AttachmentState {
    pub(super) fn attached(&self) -> Option<AttachedInterface> {
        self.link.as_ref().map(|(_, attached)| *attached)
    }

    /// Marks that this queue has a socket for the interface, or that the interface has no such
    /// queue. Does nothing for an earlier attachment.
    pub(super) fn settle(&mut self, generation: u64, queue_index: u32) {
        if self.generation == generation {
            self.settled.insert(queue_index);
        }
    }

    /// Marks that this queue has failed: the other queues do not wait for this queue.
    pub(super) fn fail(&mut self, queue_index: u32) {
        self.failed.insert(queue_index);
    }

    /// Whether all of the first `queues` queues are settled or have failed.
    pub(super) fn is_settled(&self, queues: u32) -> bool {
        (0..queues).all(|index| self.settled.contains(&index) || self.failed.contains(&index))
    }

    /// Whether a check for uses by the host is due at `now_ns`. If so, schedules the next check
    /// `pause_ns` later.
    pub(super) fn is_host_check_due(&mut self, now_ns: i64, pause_ns: i64) -> bool {
        let is_due = (self.host_check_due_ns..self.host_check_until_ns).contains(&now_ns);
        if is_due {
            self.host_check_due_ns = now_ns.saturating_add(pause_ns);
        }
        is_due
    }
}

/// The identifier of the kernel's function that gives the NIC's stamps. Reads the kernel's type
/// information, some MB.
fn nic_stamp_function() -> io::Result<i32> {
    let mut btf = Vec::new();
    let file = File::open("/sys/kernel/btf/vmlinux")?;
    file.take(BTF_BYTES_MAX).read_to_end(&mut btf)?;
    function_id(&btf, NIC_STAMP_FUNCTION).ok_or_else(|| {
        let message = "this kernel has no metadata for XDP (Linux 6.3)";
        io::Error::new(io::ErrorKind::InvalidInput, message)
    })
}

/// Whether an error may mean that the driver or an older kernel lacks a feature, or that the
/// driver's packets may not fit one buffer.
pub(super) fn is_unsupported(error: &io::Error) -> bool {
    let refusals = [libc::EOPNOTSUPP, libc::EINVAL, libc::ERANGE];
    error
        .raw_os_error()
        .is_some_and(|code| refusals.contains(&code))
        || error.kind() == io::ErrorKind::InvalidInput
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_settles_once() {
        let mut state = AttachmentState::default();
        state.settle(0, 1);
        state.settle(0, 1);
        assert!(!state.is_settled(2), "it is one queue");
        // Queue 0 settles for another attachment, which does not count.
        state.settle(1, 0);
        assert!(!state.is_settled(2));
        state.settle(0, 0);
        assert!(state.is_settled(2));
        assert!(!state.is_settled(3));
        state.fail(2);
        assert!(state.is_settled(3), "nobody waits for one that failed");
    }

    #[test]
    fn the_host_is_asked_now_and_then_and_not_for_ever() {
        let mut state = AttachmentState::default();
        assert!(
            !state.is_host_check_due(10, 100),
            "it was there at the start"
        );
        state.host_check_until_ns = 500;
        let asked = [10, 50, 109, 110, 499, 500].map(|now_ns| state.is_host_check_due(now_ns, 100));
        assert_eq!(asked, [true, false, false, true, true, false]);
    }

    #[test]
    fn the_program_is_told_once_to_look_flows_up() {
        let receive_mode = ReceiveMode {
            is_native: true,
            packet_bytes_max: None,
            has_fragments: false,
        };
        let attachment = match Attachment::new(receive_mode, None, None) {
            Ok(attachment) => attachment,
            Err(error) => {
                eprintln!("SKIP: no bpf(2) here: {error}");
                return;
            }
        };
        let flow = |port| ShuntedFlow {
            source: ([192, 0, 2, 1], port).into(),
            destination: ([192, 0, 2, 2], 443).into(),
            protocol: 6,
        };
        let shunt = Some(Shunt {
            silence_ns: 1_000_000_000,
            class: 0,
        });
        let word_of = |queue_index| attachment.counters.get(queue_index, word::SHUNTING);
        attachment.shunt(&flow(1), None).unwrap();
        assert_eq!(word_of(0), 0, "nothing is shunted yet");
        attachment.shunt(&flow(1), shunt).unwrap();
        assert_eq!([0, QUEUES_MAX - 1].map(word_of), [1, 1]);
        attachment.counters.set(7, word::SHUNTING, 0);
        attachment.shunt(&flow(2), shunt).unwrap();
        assert_eq!(word_of(7), 0, "it was written again");
    }

    #[test]
    fn the_verifier_takes_the_programs() {
        let map = |kind, key_bytes, value_bytes| Map::new(kind, key_bytes, value_bytes, 4);
        let counters = match map(Map::ARRAY, 4, LINE_BYTES) {
            Ok(counters) => counters,
            Err(error) => {
                eprintln!("SKIP: no bpf(2) here: {error}");
                return;
            }
        };
        let sockets = map(Map::SOCKETS, 4, 4).unwrap();
        let shunted = map(Map::LRU_HASH, FLOW_KEY_BYTES, SHUNTED_STATE_BYTES).unwrap();
        for (packet_bytes_max, has_fragments) in [
            (None, true),
            (Some(1792), false),
            (Some(3840), false),
            (Some(3840), true),
        ] {
            let inputs = ProgramInputs {
                counters: counters.descriptor.as_raw_fd(),
                sockets: sockets.descriptor.as_raw_fd(),
                shunted: shunted.descriptor.as_raw_fd(),
                receive_mode: ReceiveMode {
                    is_native: true,
                    packet_bytes_max,
                    has_fragments,
                },
                nic_stamps: None,
            };
            for nic_stamps in [Some(0), None] {
                let code = assemble(ProgramInputs {
                    nic_stamps,
                    ..inputs
                });
                load_program(&code, has_fragments, None).unwrap();
            }
            // The verifier does run: it refuses a program without its last instruction, and its
            // message is part of the error.
            let mut code = assemble(inputs);
            code.pop();
            let error = load_program(&code, false, None).unwrap_err().to_string();
            assert!(error.contains(": "), "{error}");
        }
    }
}
