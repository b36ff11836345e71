//! Opening a live interface: sockets, rings, promiscuous mode, fanout.

use std::{
    io,
    path::{Path, PathBuf},
};

use super::{
    interface::{hardware_text, link_type},
    queue::{LiveQueue, Setup},
    ring::BlockRing,
    sys::{Instruction, InterfaceQuery, Mapping, PacketSocket, RingRequest},
};
use crate::{Event, InterfaceInfo, Queue, Source, SourceError, TimeDomain};

/// Bytes of a block. A frame must fit a block, or the kernel cuts it: this takes what the recorder's ring takes, 256 KiB,
/// but for some headers. Even a single packet occupies a block from one retire time to the next, so the number of blocks
/// times the retire time, about a second, is how long a held-up reader loses nothing on a link that is never idle.
const BLOCK_BYTES: usize = 256 * 1024;

/// Ring memory of a queue unless the user says otherwise.
const RING_BYTES: usize = 64 * 1024 * 1024;

/// Blocks at least: one is lent while the kernel fills others.
const BLOCKS_MIN: usize = 4;

/// After how many ms the kernel hands over a block that is not full.
const RETIRE_MS: u32 = 4;

/// All EtherTypes.
const ALL_PROTOCOLS: u16 = 3;

/// Fanout by flow: both directions of a flow come to the same queue. `PACKET_FANOUT_FLAG_DEFRAG` is left out: it would
/// replace fragments by packets that were never on the wire.
const FANOUT_HASH: u16 = 0;
/// Let the kernel choose a group number that is free.
const FANOUT_UNIQUE: u16 = 0x2000;
const FANOUT_IGNORE_OUTGOING: u16 = 0x4000;

/// Rejects everything.
pub(super) const REJECT_ALL: [Instruction; 1] = [Instruction {
    code: BPF_RET,
    jt: 0,
    jf: 0,
    k: 0,
}];

/// Rejects what this host sends: the packet type, an extension of classic BPF, is `PACKET_OUTGOING`.
const REJECT_OUTGOING: [Instruction; 4] = [
    Instruction {
        code: BPF_LOAD_BYTE,
        jt: 0,
        jf: 0,
        k: 0xffff_f000 + 4,
    },
    Instruction {
        code: BPF_JUMP_EQUAL,
        jt: 0,
        jf: 1,
        k: 4,
    },
    Instruction {
        code: BPF_RET,
        jt: 0,
        jf: 0,
        k: 0,
    },
    Instruction {
        code: BPF_RET,
        jt: 0,
        jf: 0,
        k: u32::MAX,
    },
];

const BPF_RET: u16 = 0x06;
const BPF_LOAD_BYTE: u16 = 0x30;
const BPF_JUMP_EQUAL: u16 = 0x15;

/// How to capture from an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveConfig {
    /// The interface's name.
    pub interface: String,
    /// Whether to take frames for other hosts too.
    pub promiscuous: bool,
    /// Kernel memory of each queue in bytes, rounded down to blocks of 512 KiB, at least 4 of them; `None`: 64 MiB. Less
    /// is taken, and said by a notice, where the kernel has no more.
    pub buffer_bytes: Option<usize>,
    /// The program's path, for the commands that a message names.
    pub program: PathBuf,
}

/// A live interface behind the [`Source`] plug.
///
/// Opening needs CAP_NET_RAW; the queues need no privilege. It captures in the network namespace of the thread that
/// calls [`Source::open`].
#[derive(Debug)]
pub struct LiveSource {
    config: LiveConfig,
}

impl LiveSource {
    /// A source that will capture as `config` says. Nothing is opened yet.
    #[must_use]
    pub fn new(config: LiveConfig) -> Self {
        Self { config }
    }

    fn error(&self, call: &'static str, error: io::Error) -> SourceError {
        SourceError::System {
            interface: self.config.interface.clone(),
            call,
            error,
        }
    }

    /// The interface's index, properties and whether it is up.
    fn look_up(&self) -> Result<Interface, SourceError> {
        let name = &self.config.interface;
        if name == "any" {
            let message = "cannot record on 'any', whose frames differ in link type: name each interface with its own -i";
            return Err(SourceError::Unsupported {
                message: message.to_owned(),
            });
        }
        let query = InterfaceQuery::new().map_err(|error| self.error("socket(AF_UNIX)", error))?;
        let index = query
            .index(name)
            .map_err(|error| match error.raw_os_error() {
                Some(libc::ENODEV) => SourceError::NoInterface {
                    interface: name.clone(),
                },
                _ => self.error("ioctl(SIOCGIFINDEX)", error),
            })?;
        let hardware_type = query
            .hardware_type(name)
            .map_err(|error| self.error("ioctl(SIOCGIFHWADDR)", error))?;
        let Some(link_type) = link_type(hardware_type) else {
            let kind = hardware_text(hardware_type);
            let message = format!(
                "cannot record on {name} ({kind}): only Ethernet, loopback and raw IP interfaces work"
            );
            return Err(SourceError::Unsupported { message });
        };
        let flags = query
            .flags(name)
            .map_err(|error| self.error("ioctl(SIOCGIFFLAGS)", error))?;
        let info = InterfaceInfo {
            name: name.clone(),
            link_type,
            snaplen: 0,
            time_domain: TimeDomain::KernelSoftware,
            time_resolution_ns: 1,
        };
        Ok(Interface {
            index,
            info,
            is_up: flags.is_up(),
            is_loopback: flags.is_loopback(),
            query,
        })
    }

    /// A socket with its ring that receives nothing yet, and a notice if the ring is smaller than wanted.
    fn open_socket(
        &self,
        interface: &Interface,
    ) -> Result<(PacketSocket, BlockRing, Option<Event>), SourceError> {
        let socket = PacketSocket::new().map_err(|error| match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                permission("record on", &self.config.interface, &self.config.program)
            }
            _ => self.error("socket(AF_PACKET)", error),
        })?;
        let blocks_wanted =
            (self.config.buffer_bytes.unwrap_or(RING_BYTES) / BLOCK_BYTES).max(BLOCKS_MIN);
        let blocks = self.set_up_ring(&socket, blocks_wanted)?;
        let mapping = Mapping::of_socket(&socket, BLOCK_BYTES, blocks)
            .map_err(|error| self.error("mmap", error))?;
        if self.config.promiscuous && !interface.is_loopback {
            socket
                .set_promiscuous(interface.index)
                .map_err(|error| self.error("setsockopt(PACKET_ADD_MEMBERSHIP)", error))?;
        }
        let notice = (blocks < blocks_wanted).then(|| {
            let (got, wanted) = (
                blocks * BLOCK_BYTES / 1024,
                blocks_wanted * BLOCK_BYTES / 1024,
            );
            Event::Notice(format!(
                "{}: the kernel had {got} KiB of {wanted} KiB for its ring",
                self.config.interface
            ))
        });
        Ok((socket, BlockRing::new(mapping, BLOCK_BYTES), notice))
    }

    /// Asks for `blocks` blocks, then for half as many until the kernel has the memory. Returns how many it took.
    fn set_up_ring(&self, socket: &PacketSocket, mut blocks: usize) -> Result<usize, SourceError> {
        let call = "setsockopt(PACKET_RX_RING)";
        loop {
            let too_large = |_| self.error(call, io::ErrorKind::InvalidInput.into());
            let request = RingRequest {
                block_bytes: u32::try_from(BLOCK_BYTES).map_err(too_large)?,
                blocks: u32::try_from(blocks).map_err(too_large)?,
                retire_ms: RETIRE_MS,
            };
            match socket.set_up_ring(request) {
                Ok(()) => return Ok(blocks),
                Err(error)
                    if error.raw_os_error() == Some(libc::ENOMEM) && blocks / 2 >= BLOCKS_MIN =>
                {
                    blocks /= 2
                }
                Err(error) => return Err(self.error(call, error)),
            }
        }
    }

    /// Lets one socket receive.
    fn start_one(&self, interface: &Interface, socket: &PacketSocket) -> Result<(), SourceError> {
        if interface.is_loopback && socket.ignore_outgoing().is_err() {
            // Before Linux 4.20.
            socket
                .attach_filter(&REJECT_OUTGOING)
                .map_err(|error| self.error("setsockopt(SO_ATTACH_FILTER)", error))?;
        }
        socket
            .bind(interface.index, ALL_PROTOCOLS)
            .map_err(|error| self.error("bind", error))
    }

    /// Lets several sockets receive, each its share of flows. Until all have joined the group, filters keep frames away
    /// that would otherwise reach more than one of them.
    fn start_group(
        &self,
        interface: &Interface,
        sockets: &[&PacketSocket],
    ) -> Result<(), SourceError> {
        let call = "setsockopt(PACKET_FANOUT)";
        // Members of a group ignore outgoing frames together, as the first of them says.
        let mode = if interface.is_loopback {
            FANOUT_HASH | FANOUT_IGNORE_OUTGOING
        } else {
            FANOUT_HASH
        };
        let mut group = None;
        for socket in sockets {
            socket
                .attach_filter(&REJECT_ALL)
                .map_err(|error| self.error("setsockopt(SO_ATTACH_FILTER)", error))?;
            socket
                .bind(interface.index, ALL_PROTOCOLS)
                .map_err(|error| self.error("bind", error))?;
            match group {
                None => {
                    socket
                        .join_fanout(0, mode | FANOUT_UNIQUE)
                        .map_err(|error| self.error(call, error))?;
                    group = Some(
                        socket
                            .fanout_group()
                            .map_err(|error| self.error(call, error))?,
                    );
                }
                Some(group) => socket
                    .join_fanout(group, mode)
                    .map_err(|error| self.error(call, error))?,
            }
        }
        for socket in sockets {
            socket
                .detach_filter()
                .map_err(|error| self.error("setsockopt(SO_DETACH_FILTER)", error))?;
        }
        Ok(())
    }
}

/// The sentence for a process that may not open a packet socket, with the commands that help.
pub(crate) fn permission(what: &str, interface: &str, program: &Path) -> SourceError {
    let program = program.display();
    let message = format!(
        "no permission to {what} {interface}: run it as 'sudo {program} …', or once \
         'sudo setcap cap_net_raw,cap_net_admin=eip {program}'"
    );
    SourceError::Permission { message }
}

/// An interface that was looked up.
struct Interface {
    index: i32,
    info: InterfaceInfo,
    is_up: bool,
    is_loopback: bool,
    query: InterfaceQuery,
}

impl Source for LiveSource {
    fn name(&self) -> &str {
        &self.config.interface
    }

    /// Opens `queues` queues, each with its own kernel memory, that share the flows; one if the interface is down,
    /// because the kernel lets only running sockets share.
    fn open(self: Box<Self>, queues: usize) -> Result<Vec<Box<dyn Queue>>, SourceError> {
        let interface = self.look_up()?;
        let queues = if interface.is_up {
            queues.clamp(1, 256)
        } else {
            1
        };
        let opened: Vec<_> = (0..queues)
            .map(|_| self.open_socket(&interface))
            .collect::<Result<_, _>>()?;
        let sockets: Vec<_> = opened.iter().map(|(socket, ..)| socket).collect();
        match sockets[..] {
            [socket] => self.start_one(&interface, socket)?,
            _ => self.start_group(&interface, &sockets)?,
        }
        let setup = Setup {
            interface: interface.info,
            is_up: interface.is_up,
        };
        let query = std::sync::Arc::new(interface.query);
        let queue = |(socket, ring, notice)| -> Box<dyn Queue> {
            Box::new(LiveQueue::new(
                setup.clone(),
                query.clone(),
                socket,
                ring,
                notice,
            ))
        };
        Ok(opened.into_iter().map(queue).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(interface: &str) -> SourceError {
        let config = LiveConfig {
            interface: interface.to_owned(),
            promiscuous: true,
            buffer_bytes: None,
            program: PathBuf::from("/usr/bin/retroscope"),
        };
        Box::new(LiveSource::new(config)).open(1).unwrap_err()
    }

    #[test]
    fn refusals_are_one_sentence() {
        assert!(
            matches!(open("any"), SourceError::Unsupported { message } if !message.contains('\n'))
        );
        assert_eq!(open("no-such-if").to_string(), "no interface no-such-if");
        assert_eq!(open("").to_string(), "no interface ");
        assert_eq!(
            permission("record on", "eth0", Path::new("/usr/bin/retroscope")).to_string(),
            "no permission to record on eth0: run it as 'sudo /usr/bin/retroscope …', or once \
             'sudo setcap cap_net_raw,cap_net_admin=eip /usr/bin/retroscope'"
        );
    }
}
