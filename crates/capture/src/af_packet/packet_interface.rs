//! An interface by its name, and binding sockets to the interface.
//!
//! A single socket is bound again when an interface of this name comes back. A member of a fanout
//! group cannot be bound again (`packet_do_bind` of `net/packet/af_packet.c`), so a spare socket
//! replaces it. The spare was opened at the start, while the process had the privilege.
//!
//! A socket enters the receive path while its filter rejects all packets, joins its group, and then
//! accepts packets. At the start, all sockets have joined before one accepts, so no frame reaches
//! two sockets. When an interface comes back, each thread does this for its own socket, so the
//! group may assign packets to a socket that still rejects them.

use std::{
    io,
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError, atomic::AtomicBool},
};

use super::{
    classic::REJECT_ALL,
    config::{LiveConfig, Sides},
    interface::{hardware_text, link_type},
    ring::BlockRing,
    size::queue_bytes,
    sys::{Mapping, PacketSocket},
    watermark::RETIRE_MS,
};
use crate::{
    Instruction, SourceError, SourceEvent,
    interface::{InterfaceSnapshot, NamedInterface},
    sys::take_error,
};

/// Bytes of an Ethernet header, and of a VLAN tag.
const ETHERNET_BYTES: u32 = 14;
const TAG_BYTES: u32 = 4;

/// `ETH_P_ALL`.
const ALL_PROTOCOLS: u16 = 3;

/// `PACKET_FANOUT_FLAG_UNIQUEID`: the kernel chooses a free group number.
const FANOUT_UNIQUE: u16 = 0x2000;
/// `PACKET_FANOUT_FLAG_IGNORE_OUTGOING`: the group gets no copies of packets that this host sends.
const FANOUT_IGNORE_OUTGOING: u16 = 0x4000;
/// `PACKET_FANOUT_FLAG_DEFRAG`.
const FANOUT_DEFRAGMENT: u16 = 0x8000;

/// Bytes of a block. The kernel truncates a frame that does not fit a block.
///
/// The kernel closes a full block, and an open block that is not empty after about [`RETIRE_MS`]
/// or, since Linux 6.18, sooner. On such a kernel, at 500,000 frames of 64 bytes per second, half
/// of the blocks have 276 instead of 1,724 frames.
const BLOCK_BYTES: u32 = 256 * 1024;

/// Smallest number of blocks: one block is lent while the kernel fills the next blocks.
const BLOCKS_MIN: u32 = 4;

/// Name of the call that joins a fanout group, in errors.
pub(super) const FANOUT_CALL: &str = "setsockopt(PACKET_FANOUT)";

/// A socket with its ring, and a notice if the ring is smaller than requested.
pub(super) type SocketWithRing = (PacketSocket, BlockRing, Option<SourceEvent>);

/// An interface, and the state that its sockets share.
#[derive(Debug)]
pub(super) struct PacketInterface {
    /// The configuration; for a loopback interface, `Sides::Both` becomes `Sides::In`.
    pub(super) config: LiveConfig,
    pub(super) interface: NamedInterface,
    /// The program of a socket that accepts packets; `None`: the socket accepts all packets.
    pub(super) program: Option<Vec<Instruction>>,
    /// The sockets request the NIC's stamps when they are bound.
    pub(super) takes_nic_stamps: bool,
    /// A queue has reported that the NIC's clock does not agree with the system's clock.
    pub(super) is_nic_clock_refused: AtomicBool,
    /// The sockets accept only packets that the user's filter accepts.
    pub(super) is_filtered: bool,
    /// Bytes to request for each socket's ring.
    pub(super) ring_bytes: usize,
    /// Several sockets share the packets of the interface.
    pub(super) is_shared: bool,
    sharing: Mutex<Sharing>,
}

/// State that the threads of an interface share.
#[derive(Debug)]
struct Sharing {
    /// Sockets that should share the interface, without failed sockets.
    members: usize,
    group: Option<FanoutGroup>,
    /// Unused sockets that were opened at the start.
    spares: Vec<PacketSocket>,
}

#[derive(Debug, Clone, Copy)]
struct FanoutGroup {
    /// Index of the group's interface.
    index: i32,
    number: u16,
    /// Successful `start_accepting` calls.
    accepting: usize,
}

impl PacketInterface {
    /// Prepares an interface for `queues` sockets, in the network namespace of the calling thread.
    pub(super) fn new(config: LiveConfig, queues: usize) -> Result<Self, SourceError> {
        let interface = NamedInterface::new(&config.interface)?;
        let ring_bytes = config
            .buffer_bytes
            .unwrap_or_else(|| queue_bytes(&interface.query, &config.interface, queues));
        Ok(Self {
            config,
            interface,
            ring_bytes,
            program: None,
            takes_nic_stamps: false,
            is_nic_clock_refused: AtomicBool::new(false),
            is_filtered: false,
            is_shared: false,
            sharing: Mutex::new(Sharing {
                members: queues,
                group: None,
                spares: Vec::new(),
            }),
        })
    }

    /// Lets several sockets share the packets; keeps `spares` for later.
    pub(super) fn share(&mut self, spares: Vec<PacketSocket>) {
        self.is_shared = true;
        self.sharing().spares = spares;
    }

    /// Takes a spare socket and gives it a ring.
    pub(super) fn open_spare(&self) -> Result<SocketWithRing, SourceError> {
        let spare = self.sharing().spares.pop();
        let spare = spare.ok_or_else(|| {
            SourceError::Unsupported(format!(
                "{} was removed too often for a recording with several threads: start it again",
                self.name()
            ))
        })?;
        self.with_ring(spare)
    }

    pub(super) fn name(&self) -> &str {
        &self.config.interface
    }

    /// Looks up the interface of this name.
    ///
    /// # Errors
    /// No interface has the name, its kind cannot be recorded, or a system call failed.
    pub(super) fn look_up(&self) -> Result<InterfaceSnapshot, SourceError> {
        let name = self.name();
        if name == "any" {
            let message = "cannot record on 'any', whose frames differ in link type, with this engine: name each interface with its own -i, or \
                 take --engine pcap";
            return Err(SourceError::Unsupported(message.to_owned()));
        }
        let found = self.interface.look_up()?;
        if link_type(found.hardware_type).is_none() {
            let kind = hardware_text(found.hardware_type);
            let message = format!(
                "cannot record on {name} ({kind}): only Ethernet, loopback and raw IP interfaces work"
            );
            return Err(SourceError::Unsupported(message));
        }
        Ok(found)
    }

    /// Bytes of the largest expected frame: the MTU plus an Ethernet header and a tag. `u32::MAX`:
    /// unknown.
    pub(super) fn frame_bytes_max(&self) -> u32 {
        let mtu = self.interface.query.mtu(self.name()).ok();
        let mtu = mtu.and_then(|mtu| u32::try_from(mtu).ok());
        mtu.map_or(u32::MAX, |mtu| {
            mtu.saturating_add(ETHERNET_BYTES + TAG_BYTES)
        })
    }

    pub(super) fn is_up(&self) -> bool {
        let flags = self.interface.query.flags(self.name());
        flags.is_ok_and(|flags| flags.is_up())
    }

    /// If the process lacks the privilege, the error names commands that help.
    pub(super) fn open_socket(&self) -> Result<PacketSocket, SourceError> {
        PacketSocket::new().map_err(|error| match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                permission("record on", self.name(), &self.config.program)
            }
            _ => self.error("socket(AF_PACKET)", error),
        })
    }

    /// Gives a ring to a socket.
    pub(super) fn with_ring(&self, socket: PacketSocket) -> Result<SocketWithRing, SourceError> {
        let blocks_wanted = self.ring_bytes / BLOCK_BYTES as usize;
        let blocks_wanted = u32::try_from(blocks_wanted)
            .unwrap_or(u32::MAX)
            .max(BLOCKS_MIN);
        let blocks = self.set_up_ring(&socket, blocks_wanted)?;
        let mapping = Mapping::of_socket(&socket, BLOCK_BYTES as usize, blocks as usize)
            .map_err(|error| self.error("mmap", error))?;
        let notice = (blocks < blocks_wanted).then(|| {
            let kib = |blocks: u32| u64::from(blocks) * u64::from(BLOCK_BYTES / 1024);
            SourceEvent::Notice(format!(
                "{}: the kernel had {} KiB of {} KiB for its ring",
                self.name(),
                kib(blocks),
                kib(blocks_wanted)
            ))
        });
        Ok((socket, BlockRing::new(mapping), notice))
    }

    /// Requests `blocks` blocks, then half as many while the kernel lacks memory, at least
    /// [`BLOCKS_MIN`]. Returns the number of blocks.
    fn set_up_ring(&self, socket: &PacketSocket, mut blocks: u32) -> Result<u32, SourceError> {
        loop {
            match socket.set_up_ring(BLOCK_BYTES, blocks, RETIRE_MS) {
                Ok(()) => return Ok(blocks),
                Err(error)
                    if error.raw_os_error() == Some(libc::ENOMEM) && blocks / 2 >= BLOCKS_MIN =>
                {
                    blocks /= 2;
                }
                Err(error) => return Err(self.error("setsockopt(PACKET_RX_RING)", error)),
            }
        }
    }

    /// Puts a socket into the receive path of the interface, with a filter that rejects all
    /// packets: until all members have joined the group, a packet could reach two sockets. May be
    /// repeated after an error.
    pub(super) fn bind_rejecting(
        &self,
        socket: &PacketSocket,
        found: &InterfaceSnapshot,
    ) -> Result<(), SourceError> {
        // An earlier attempt may have left ENETDOWN, because the interface was down.
        let _ = take_error(socket);
        socket
            .attach_filter(&REJECT_ALL)
            .map_err(|error| self.error("setsockopt(SO_ATTACH_FILTER)", error))?;
        // Other programs, such as an IDS, then usually report the same time for a packet as we do.
        let _ = socket.stamp_on_arrival();
        if self.takes_nic_stamps {
            socket
                .take_nic_stamps(true)
                .map_err(|error| self.error("setsockopt(PACKET_TIMESTAMP)", error))?;
        }
        if self.ignores_outgoing() && !self.is_shared {
            // Before Linux 4.20 the filter alone rejects outgoing packets.
            let _ = socket.ignore_outgoing();
        }
        receive_from(socket, &self.interface, found, self.config.promiscuous)?;
        if self.is_shared {
            // The last step: from now on the group may assign packets to this socket, which rejects
            // them. Switching to promiscuous mode may wait long for other changes to interfaces.
            self.join_group(socket, found.index)?;
        }
        Ok(())
    }

    /// Lets a bound socket accept packets.
    pub(super) fn start_accepting(&self, socket: &PacketSocket) -> Result<(), SourceError> {
        match &self.program {
            Some(program) => socket
                .attach_filter(program)
                .map_err(|error| self.error("setsockopt(SO_ATTACH_FILTER)", error))?,
            None => socket
                .detach_filter()
                .map_err(|error| self.error("setsockopt(SO_DETACH_FILTER)", error))?,
        }
        if let Some(group) = &mut self.sharing().group {
            group.accepting += 1;
        }
        Ok(())
    }

    pub(super) fn are_all_accepting(&self) -> bool {
        let sharing = self.sharing();
        let group = sharing.group.as_ref();
        group.is_none_or(|group| group.accepting >= sharing.members)
    }

    /// Other sockets do not wait for a removed member.
    pub(super) fn remove_member(&self) {
        self.sharing().members -= 1;
    }

    fn sharing(&self) -> MutexGuard<'_, Sharing> {
        self.sharing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ignores_outgoing(&self) -> bool {
        self.config.sides == Sides::In
    }

    /// Joins the group of the interface, or creates the group.
    fn join_group(&self, socket: &PacketSocket, index: i32) -> Result<(), SourceError> {
        let call = FANOUT_CALL;
        let group = &mut self.sharing().group;
        let fanout = self.config.fanout;
        let mut mode = fanout.mode as u16;
        if fanout.defragment {
            mode |= FANOUT_DEFRAGMENT;
        }
        if self.ignores_outgoing() {
            mode |= FANOUT_IGNORE_OUTGOING;
        }
        if let Some(FanoutGroup { number, .. }) = group.filter(|group| group.index == index) {
            return socket
                .join_fanout(number, mode)
                .map_err(|error| self.error(call, error));
        }
        socket
            .join_fanout(0, mode | FANOUT_UNIQUE)
            .map_err(|error| self.error(call, error))?;
        let number = socket
            .fanout_group()
            .map_err(|error| self.error(call, error))?;
        *group = Some(FanoutGroup {
            index,
            number,
            accepting: 0,
        });
        Ok(())
    }

    pub(super) fn error(&self, call: &'static str, error: io::Error) -> SourceError {
        self.interface.error(call, error)
    }
}

/// Binds a socket to an interface. `promiscuous` has no effect on a loopback interface.
pub(crate) fn receive_from(
    socket: &PacketSocket,
    interface: &NamedInterface,
    found: &InterfaceSnapshot,
    promiscuous: bool,
) -> Result<(), SourceError> {
    socket
        .bind(found.index, ALL_PROTOCOLS)
        .map_err(|error| interface.error("bind", error))?;
    if promiscuous && !found.flags.is_loopback() {
        socket
            .set_promiscuous(found.index)
            .map_err(|error| interface.error("setsockopt(PACKET_ADD_MEMBERSHIP)", error))?;
    }
    Ok(())
}

/// The error for a process that lacks CAP_NET_RAW, with commands that help.
pub(crate) fn permission(what: &str, interface: &str, program: &Path) -> SourceError {
    let program = program.display();
    let message = format!(
        "no permission to {what} {interface}: run it as 'sudo {program} …', or once \
         'sudo setcap cap_net_raw=eip {program}'"
    );
    SourceError::Permission(message)
}
