//! Opening a live interface: sockets, rings, fanout.

use std::sync::Arc;

use super::{
    classic,
    config::{LiveConfig, Sides},
    port::{Found, Port},
    queue::LiveQueue,
    ring::BlockRing,
    sys::{Mapping, PacketSocket, RingRequest},
};
use crate::{Event, InterfaceInfo, Queue, Source, SourceError, TimeDomain};

/// Bytes of a block. A frame must fit a block, or the kernel cuts it: this takes what the recorder's ring takes, 256 KiB,
/// but for some headers. Even a single packet occupies a block from one retire time to the next, so the number of blocks
/// times the retire time is how long a held-up reader loses nothing on a link that is never idle.
const BLOCK_BYTES: usize = 256 * 1024;

/// Ring memory of a queue unless the user says otherwise. A frame of 64 bytes takes 152 here: this holds 500,000 of them
/// a second for 1.7 s, and two seconds of a link that is never idle and never fills a block.
const RING_BYTES: usize = 128 * 1024 * 1024;

/// Blocks at least: one is lent while the kernel fills others.
const BLOCKS_MIN: usize = 4;

/// After how many ms the kernel hands over a block that is not full.
const RETIRE_MS: u32 = 4;

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
}

impl Source for LiveSource {
    fn name(&self) -> &str {
        &self.config.interface
    }

    /// Opens `queues` queues, each with its own kernel memory, that share what comes. One if the interface is down and the
    /// kernel, before Linux 6.13, lets only running sockets share.
    fn open(self: Box<Self>, queues: usize) -> Result<Vec<Box<dyn Queue>>, SourceError> {
        let queues = queues.clamp(1, 256);
        let (port, found, opened) = match open_port(&self.config, queues) {
            Err(SourceError::System { error, .. })
                if queues > 1 && error.raw_os_error() == Some(libc::EINVAL) =>
            {
                open_port(&self.config, 1)?
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
        let port = Arc::new(port);
        let queue = |(socket, ring, notice)| -> Box<dyn Queue> {
            let port = Arc::clone(&port);
            Box::new(LiveQueue::new(
                port,
                found,
                info.clone(),
                socket,
                ring,
                notice,
            ))
        };
        Ok(opened.into_iter().map(queue).collect())
    }
}

/// A socket with its ring, and a notice if that is smaller than wanted.
type Opened = (PacketSocket, BlockRing, Option<Event>);

/// Opens the interface with `queues` sockets that receive.
fn open_port(
    config: &LiveConfig,
    queues: usize,
) -> Result<(Port, Found, Vec<Opened>), SourceError> {
    let mut port = Port::new(config.clone())?;
    let found = port.look_up()?;
    // The loopback interface would show each frame twice.
    let sides = match config.sides {
        Sides::Both if found.flags.is_loopback() => Sides::In,
        sides => sides,
    };
    port.set_program(sides, classic::program(sides, None));
    if queues > 1 {
        port.share();
    }
    let opened: Vec<_> = (0..queues)
        .map(|_| {
            let socket = port.open_socket()?;
            let (ring, notice) = open_ring(&port, &socket)?;
            Ok((socket, ring, notice))
        })
        .collect::<Result<_, SourceError>>()?;
    for (socket, ..) in &opened {
        port.hook(socket, &found)?;
    }
    for (socket, ..) in &opened {
        port.admit(socket)?;
    }
    Ok((port, found, opened))
}

/// Gives a socket its ring. The second value is a notice if that is smaller than wanted.
fn open_ring(
    port: &Port,
    socket: &PacketSocket,
) -> Result<(BlockRing, Option<Event>), SourceError> {
    let bytes = port.config().buffer_bytes.unwrap_or(RING_BYTES);
    let blocks_wanted = (bytes / BLOCK_BYTES).max(BLOCKS_MIN);
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
    Ok((BlockRing::new(mapping, BLOCK_BYTES), notice))
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
}
