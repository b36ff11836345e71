//! An interface by its name, and how sockets are made to receive from it.
//!
//! The same steps serve the start and an interface that comes back after it was removed. A removed interface takes its index
//! with it; one of the same name is a new one. A socket alone can be bound to it. A member of a fanout group cannot leave
//! that group (`packet_do_bind` of `net/packet/af_packet.c`), so it is replaced by a spare that was opened at the start,
//! while the process had the privilege.
//!
//! A socket is bound into the receive path while it still rejects everything, joins its group, and is accepting then, at the start when
//! all its siblings are there: so no frame reaches two of them. Where an interface comes back its threads do that one after the other,
//! and what the group gives to one between both steps is rejected: the interface is said to be up when all were accepting.

use std::{
    io,
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
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

/// All EtherTypes.
const ALL_PROTOCOLS: u16 = 3;

/// Let the kernel choose a group number that is free: `PACKET_FANOUT_FLAG_UNIQUEID`.
const FANOUT_UNIQUE: u16 = 0x2000;
/// Spare the group copies of what this host sends: `PACKET_FANOUT_FLAG_IGNORE_OUTGOING`.
const FANOUT_IGNORE_OUTGOING: u16 = 0x4000;
/// `PACKET_FANOUT_FLAG_DEFRAG`.
const FANOUT_DEFRAGMENT: u16 = 0x8000;

/// Bytes of a block. A frame must fit a block, or the kernel cuts it: this takes what the recorder's ring takes, 256 KiB,
/// but for some headers.
///
/// The kernel closes a block when it is full. It also closes the one that it is filling every [`RETIRE_MS`], however young that is,
/// unless it is empty; kernels before Linux 6.18 close it [`RETIRE_MS`] after they opened it. So on a slow link a held-up reader loses
/// nothing for the number of blocks times the retire time. On a fast link that time is shorter: at 500,000 frames of 64 bytes a second
/// a block holds 1,724, and half of the blocks are closed with 276.
const BLOCK_BYTES: u32 = 256 * 1024;

/// Blocks at least: one is lent while the kernel fills others.
const BLOCKS_MIN: u32 = 4;

/// How an error names the joining of a fanout group.
pub(super) const FANOUT_CALL: &str = "setsockopt(PACKET_FANOUT)";

/// A socket with its ring, and a notice if that is smaller than wanted.
pub(super) type SocketWithRing = (PacketSocket, BlockRing, Option<SourceEvent>);

/// An interface, and what its sockets have in common.
#[derive(Debug)]
pub(super) struct PacketInterface {
    /// As the user gave it, except that `sides` is never `Both` for a loopback interface, which would show each frame twice.
    pub(super) config: LiveConfig,
    pub(super) interface: NamedInterface,
    /// What every socket takes; `None`: all that comes.
    pub(super) program: Option<Vec<Instruction>>,
    /// Sockets take only what the user's filter takes.
    pub(super) is_filtered: bool,
    /// Bytes of each socket's ring.
    pub(super) ring_bytes: usize,
    /// Several sockets share what comes.
    pub(super) is_shared: bool,
    sharing: Mutex<Sharing>,
}

/// What the threads of an interface have in common.
#[derive(Debug)]
struct Sharing {
    /// Sockets that should share the interface, without those that failed.
    members: usize,
    group: Option<FanoutGroup>,
    /// Sockets that were opened at the start.
    spares: Vec<PacketSocket>,
}

/// The fanout group of the sockets.
#[derive(Debug, Clone, Copy)]
struct FanoutGroup {
    /// The interface that it belongs to.
    index: i32,
    number: u16,
    /// Sockets that receive.
    accepting: usize,
}

impl PacketInterface {
    /// An interface that `queues` sockets are to share, in the network namespace of the calling thread.
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
            is_filtered: false,
            is_shared: false,
            sharing: Mutex::new(Sharing {
                members: queues,
                group: None,
                spares: Vec::new(),
            }),
        })
    }

    /// Several sockets are to share what comes; `spares` are kept for later.
    pub(super) fn share(&mut self, spares: Vec<PacketSocket>) {
        self.is_shared = true;
        self.sharing().spares = spares;
    }

    /// A socket that was opened at the start, with a ring.
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

    /// The interface of this name, if there is one.
    ///
    /// # Errors
    /// Everything that keeps it from being recorded.
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

    /// Bytes of the largest frame on the wire: the MTU behind a link header, with a tag that may stand inside. `u32::MAX`:
    /// unknown.
    pub(super) fn frame_bytes_max(&self) -> u32 {
        let mtu = self.interface.query.mtu(self.name()).ok();
        let mtu = mtu.and_then(|mtu| u32::try_from(mtu).ok());
        mtu.map_or(u32::MAX, |mtu| {
            mtu.saturating_add(ETHERNET_BYTES + TAG_BYTES)
        })
    }

    /// Whether the interface is switched on.
    pub(super) fn is_up(&self) -> bool {
        let flags = self.interface.query.flags(self.name());
        flags.is_ok_and(|flags| flags.is_up())
    }

    /// A socket, or the sentence about privileges.
    pub(super) fn open_socket(&self) -> Result<PacketSocket, SourceError> {
        PacketSocket::new().map_err(|error| match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                permission("record on", self.name(), &self.config.program)
            }
            _ => self.error("socket(AF_PACKET)", error),
        })
    }

    /// Gives a socket its ring.
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

    /// Asks for `blocks` blocks, then for half as many until the kernel has the memory. Returns how many it took.
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

    /// Puts a socket into the receive path of the interface. It still rejects everything: members of a group come one by one,
    /// and until all are there some would get what others got too.
    ///
    /// Calling it again after an error is allowed.
    pub(super) fn bind_rejecting(
        &self,
        socket: &PacketSocket,
        found: &InterfaceSnapshot,
    ) -> Result<(), SourceError> {
        // An earlier attempt may have left ENETDOWN: it had bound the socket to an interface that
        // was down.
        let _ = take_error(socket);
        socket
            .attach_filter(&REJECT_ALL)
            .map_err(|error| self.error("setsockopt(SO_ATTACH_FILTER)", error))?;
        // Another program on the interface, as an IDS, then tells the same time of a packet as we do. Without it ours are as good.
        let _ = socket.stamp_on_arrival();
        if self.ignores_outgoing() && !self.is_shared {
            // Before Linux 4.20 the filter alone rejects them.
            let _ = socket.ignore_outgoing();
        }
        receive_from(socket, &self.interface, found, self.config.promiscuous)?;
        if self.is_shared {
            // Last: where the interface comes back, members that were quicker receive already, and what the group gives to this one
            // until it is accepting is rejected. Becoming promiscuous may wait long, for other changes to interfaces.
            self.join_group(socket, found.index)?;
        }
        Ok(())
    }

    /// Lets a bound socket receive.
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

    /// Whether all sockets that are to share the interface receive from it.
    pub(super) fn are_all_accepting(&self) -> bool {
        let sharing = self.sharing();
        let group = sharing.group.as_ref();
        group.is_none_or(|group| group.accepting >= sharing.members)
    }

    /// A socket has failed: nobody waits for it any more.
    pub(super) fn lose_member(&self) {
        self.sharing().members -= 1;
    }

    fn sharing(&self) -> MutexGuard<'_, Sharing> {
        self.sharing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The program rejects what this host sends.
    fn ignores_outgoing(&self) -> bool {
        self.config.sides == Sides::In
    }

    /// Joins the group of the interface, or founds it.
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

/// Binds a socket to an interface that was found, in promiscuous mode if that is wanted and means something.
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

/// The sentence for a process that may not open a packet socket, with the commands that help.
pub(crate) fn permission(what: &str, interface: &str, program: &Path) -> SourceError {
    let program = program.display();
    let message = format!(
        "no permission to {what} {interface}: run it as 'sudo {program} …', or once \
         'sudo setcap cap_net_raw=eip {program}'"
    );
    SourceError::Permission(message)
}
