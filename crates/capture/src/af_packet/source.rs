//! Opening a live interface: sockets, rings, fanout.

use std::{path::Path, sync::Arc};

use super::{
    classic,
    config::{LiveConfig, Sides},
    kernel_filter,
    port::{Found, Port},
    queue::{LiveQueue, Place},
    ring::BlockRing,
    sys::{Mapping, PacketSocket, RingRequest},
};
use crate::{
    CpuList, Event, Instruction, InterfaceInfo, Offer, Queue, Source, SourceError, TimeDomain,
};
use retroscope_packet::LinkType;

/// Bytes of a block. A frame must fit a block, or the kernel cuts it: this takes what the recorder's ring takes, 256 KiB,
/// but for some headers.
///
/// The kernel closes a block when it is full, and every [`RETIRE_MS`] the one that it is filling, however young, unless it is empty
/// (since Linux 6.18; before, that long after it was opened). So a held-up reader loses nothing for the number of blocks times the retire time on a slow link, and for less on a fast one: at 500,000
/// frames of 64 bytes a second a block holds 1,724, and half of the blocks are closed with 276.
const BLOCK_BYTES: usize = 256 * 1024;

/// Blocks at least: one is lent while the kernel fills others.
const BLOCKS_MIN: usize = 4;

/// After how many ms the kernel hands over a block that is not full.
pub(super) const RETIRE_MS: u32 = 4;

/// Spare sockets for each queue that shares an interface: so often it survives that the interface is removed and comes back.
const SPARES: usize = 4;
/// Spare sockets of all queues together.
const SPARES_MAX: usize = 64;

/// A live interface behind the [`Source`] plug.
///
/// Opening needs CAP_NET_RAW; the queues need no privilege. It captures in the network namespace of the thread that
/// calls [`Source::open`].
#[derive(Debug)]
pub struct LiveSource {
    config: LiveConfig,
    offer: Offer,
}

impl LiveSource {
    /// A source that will capture as `config` says. Nothing is opened yet.
    #[must_use]
    pub fn new(config: LiveConfig) -> Self {
        Self {
            config,
            offer: Offer::default(),
        }
    }
}

impl Source for LiveSource {
    fn name(&self) -> &str {
        &self.config.interface
    }

    /// Takes a filter that the kernel decides as we would (`kernel_filter`), and cuts frames in the kernel unless a filter
    /// behind it wants to see all of them.
    fn offer(&mut self, offer: &Offer) {
        self.offer = offer.clone();
    }

    /// Opens `queues` queues, each with its own kernel memory, that share what comes. One if the interface is down and the
    /// kernel, before Linux 6.13, lets only running sockets share.
    fn open(self: Box<Self>, queues: usize) -> Result<Vec<Box<dyn Queue>>, SourceError> {
        let queues = queues.clamp(1, 256);
        let (port, found, opened) = match open_port(&self.config, &self.offer, queues) {
            Err(SourceError::System { error, .. })
                if queues > 1 && error.raw_os_error() == Some(libc::EINVAL) =>
            {
                open_port(&self.config, &self.offer, 1)?
            }
            result => result?,
        };
        let info = InterfaceInfo {
            name: port.name().to_owned(),
            link_type: found.link_type,
            snaplen: 0,
            time_domain: TimeDomain::KernelSoftware,
            time_resolution_ns: 1,
        };
        let near = CpuList::near(Path::new("/sys"), port.name(), found.index);
        let turns = port.config().cpus.clone();
        let port = Arc::new(port);
        let frame_bytes_max = port.frame_bytes_max();
        let queue = |(number, (socket, mut ring, notice)): (usize, Opened)| -> Box<dyn Queue> {
            let port = Arc::clone(&port);
            ring.set_frame_bytes_max(frame_bytes_max);
            let place = Place {
                is_first: number == 0,
                cpus: turns.of_thread(port.name(), number, &near),
            };
            Box::new(LiveQueue::new(
                port,
                found,
                place,
                info.clone(),
                socket,
                ring,
                notice,
            ))
        };
        Ok(opened.into_iter().enumerate().map(queue).collect())
    }
}

/// A socket with its ring, and a notice if that is smaller than wanted.
type Opened = (PacketSocket, BlockRing, Option<Event>);

/// Opens the interface with `queues` sockets that receive.
fn open_port(
    config: &LiveConfig,
    offer: &Offer,
    queues: usize,
) -> Result<(Port, Found, Vec<Opened>), SourceError> {
    let mut port = Port::new(config.clone(), queues)?;
    let found = port.look_up()?;
    // The loopback interface would show each frame twice.
    let sides = match config.sides {
        Sides::Both if found.flags.is_loopback() => Sides::In,
        sides => sides,
    };
    if queues > 1 {
        let spares = (SPARES * queues).min(SPARES_MAX);
        let spares = (0..spares).map(|_| port.open_socket());
        port.share(spares.collect::<Result<_, _>>()?);
    }
    let opened: Vec<_> = (0..queues)
        .map(|_| {
            let socket = port.open_socket()?;
            let (ring, notice) = open_ring(&port, &socket)?;
            Ok((socket, ring, notice))
        })
        .collect::<Result<_, SourceError>>()?;
    let (socket, ..) = &opened[0];
    choose_program(
        &mut port,
        socket,
        sides,
        kernel_part(offer, found.link_type),
    );
    for (socket, ..) in &opened {
        port.hook(socket, &found)?;
    }
    for (socket, ..) in &opened {
        port.admit(socket)?;
    }
    Ok((port, found, opened))
}

/// What the kernel can do of an offer.
#[derive(Debug, PartialEq, Eq)]
struct KernelPart {
    /// What a socket takes, and how much of it; `None`: everything.
    program: Option<Vec<Instruction>>,
    /// The offered filter is in it.
    is_filtered: bool,
}

fn kernel_part(offer: &Offer, link_type: LinkType) -> KernelPart {
    // Four bytes for a tag that is put back, and at least one more, so that a frame that is cut is longer than wanted.
    let keep = match offer.snaplen {
        0 => u32::MAX,
        snaplen => snaplen.saturating_add(5),
    };
    let whole = KernelPart {
        program: None,
        is_filtered: false,
    };
    if offer.is_filtered_behind {
        return whole;
    }
    let mut programs = offer.programs.iter();
    let Some((_, filter)) = programs.find(|(of, _)| *of == link_type) else {
        return KernelPart {
            program: (offer.snaplen > 0).then(|| vec![Instruction::ret(keep)]),
            ..whole
        };
    };
    let program = kernel_filter::for_socket(filter, link_type == LinkType::ETHERNET, keep);
    KernelPart {
        is_filtered: program.is_some(),
        program,
    }
}

/// Sets the port's program. The kernel may refuse a filter all the same: then it is left to user space.
fn choose_program(port: &mut Port, socket: &PacketSocket, sides: Sides, part: KernelPart) {
    let program = classic::program(sides, part.program.as_deref());
    // The socket is bound to nothing yet.
    let is_refused = program
        .as_ref()
        .is_some_and(|program| socket.attach_filter(program).is_err());
    if is_refused && part.is_filtered {
        port.set_program(sides, classic::program(sides, None), false);
    } else {
        port.set_program(sides, program, part.is_filtered);
    }
}

/// Gives a socket its ring. The second value is a notice if that is smaller than wanted.
pub(super) fn open_ring(
    port: &Port,
    socket: &PacketSocket,
) -> Result<(BlockRing, Option<Event>), SourceError> {
    let blocks_wanted = (port.ring_bytes() / BLOCK_BYTES).max(BLOCKS_MIN);
    let blocks = set_up_ring(port, socket, blocks_wanted)?;
    let mapping = Mapping::of_socket(socket, BLOCK_BYTES, blocks)
        .map_err(|error| port.error("mmap", error))?;
    let notice = (blocks < blocks_wanted).then(|| {
        let kib = |blocks: usize| blocks * BLOCK_BYTES / 1024;
        Event::Notice(format!(
            "{}: the kernel had {} KiB of {} KiB for its ring",
            port.name(),
            kib(blocks),
            kib(blocks_wanted)
        ))
    });
    Ok((BlockRing::new(mapping), notice))
}

/// Asks for `blocks` blocks, then for half as many until the kernel has the memory. Returns how many it took.
fn set_up_ring(
    port: &Port,
    socket: &PacketSocket,
    mut blocks: usize,
) -> Result<usize, SourceError> {
    let call = "setsockopt(PACKET_RX_RING)";
    loop {
        let too_large = |_| port.error(call, std::io::ErrorKind::InvalidInput.into());
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
                blocks /= 2;
            }
            Err(error) => return Err(port.error(call, error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(interface: &str) -> SourceError {
        let config = LiveConfig::new(interface, "/usr/bin/retroscope");
        Box::new(LiveSource::new(config)).open(1).unwrap_err()
    }

    #[test]
    fn refusals_are_one_sentence() {
        assert!(
            matches!(open("any"), SourceError::Unsupported { message } if !message.contains('\n'))
        );
        assert_eq!(open("no-such-if").to_string(), "no interface no-such-if");
        assert_eq!(open("").to_string(), "no interface ");
    }

    #[test]
    fn the_kernel_cuts_only_what_nobody_wants_whole() {
        let ret = |k| vec![Instruction::ret(k)];
        let mut offer = Offer {
            snaplen: 96,
            ..Offer::default()
        };
        let part = kernel_part(&offer, LinkType::ETHERNET);
        assert_eq!((part.program, part.is_filtered), (Some(ret(101)), false));
        offer.is_filtered_behind = true;
        assert_eq!(kernel_part(&offer, LinkType::ETHERNET).program, None);
        offer.is_filtered_behind = false;
        offer.programs.push((LinkType::RAW, ret(262_144)));
        let part = kernel_part(&offer, LinkType::RAW);
        assert_eq!(part.program.unwrap().last(), Some(&Instruction::ret(101)));
        assert!(part.is_filtered);
        // What user space has to decide is handed over whole.
        offer.programs[0].1 = vec![Instruction {
            code: 0x16,
            ..Instruction::ret(0)
        }];
        let part = kernel_part(&offer, LinkType::RAW);
        assert_eq!((part.program, part.is_filtered), (None, false));
    }
}
