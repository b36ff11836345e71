//! What the queues of an interface share: the program's maps, its counters, and the link that keeps it attached.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd, AsRawFd, OwnedFd},
    sync::{Arc, OnceLock, Weak},
};

use super::{
    program::{FLOW_KEY_BYTES, Parts, assemble, word},
    sys::{
        Counters, Link, Map, XdpSocket, attach, create_map, insert, load_program, remove,
        set_socket,
    },
};
use crate::af_packet::sys::PacketSocket;

/// Receive queues that are looked after: more than any NIC has.
pub(super) const QUEUES_MAX: usize = 1024;

/// Flows that can be shunted at once; the least recently used ones fall out.
const SHUNTED_MAX: u32 = 1 << 16;

/// Sizes of values and keys, as the kernel's structures have them.
const LINE_BYTES: u32 = 64;
const KEY_BYTES: u32 = 40;
const _: () = assert!(LINE_BYTES as usize == 8 * word::COUNT);
const _: () = assert!(KEY_BYTES as usize == FLOW_KEY_BYTES);

/// `XDP_FLAGS_SKB_MODE`, `XDP_FLAGS_DRV_MODE`.
const GENERIC: u32 = 1 << 1;
const NATIVE: u32 = 1 << 2;

/// An attached program. It is detached when the last owner goes, and by the kernel if the process dies: the link is a
/// descriptor.
#[derive(Debug)]
pub(super) struct Attachment {
    // Dropped first: no packet reaches a socket that is gone.
    _link: Link,
    pub(super) counters: Counters,
    sockets: OwnedFd,
    shunted: OwnedFd,
    /// Run by the driver; else by the kernel's network stack, after it has made a packet of its own of it.
    pub(super) is_native: bool,
    /// Packets longer than a chunk come in several.
    pub(super) has_fragments: bool,
    /// Keeps the interface promiscuous.
    pub(super) promiscuous: Option<PacketSocket>,
}

impl Attachment {
    /// Loads the program and attaches it, with all queues closed: packets go on to the host. `packet_bytes_max`: what fits a
    /// chunk, if longer packets cannot be had in several.
    pub(super) fn new(interface_index: u32, packet_bytes_max: Option<i32>) -> io::Result<Self> {
        let lines = u32::try_from(QUEUES_MAX).map_err(io::Error::other)?;
        let map = |(kind, flags), key_bytes, value_bytes, entries_max| {
            create_map(Map {
                kind,
                key_bytes,
                value_bytes,
                entries_max,
                flags,
            })
        };
        let counters = map(Map::ARRAY, 4, LINE_BYTES, lines)?;
        let sockets = map(Map::SOCKETS, 4, 4, lines)?;
        let shunted = map(Map::LRU_HASH, KEY_BYTES, 8, SHUNTED_MAX)?;
        let code = assemble(Parts {
            counters: counters.as_raw_fd(),
            sockets: sockets.as_raw_fd(),
            shunted: shunted.as_raw_fd(),
            packet_bytes_max,
        });
        let has_fragments = packet_bytes_max.is_none();
        let program = load_program(&code, has_fragments)?;
        let (link, is_native) = match attach(&program, interface_index, NATIVE) {
            Ok(link) => (link, true),
            Err(error) if is_unsupported(&error) => {
                (attach(&program, interface_index, GENERIC)?, false)
            }
            Err(error) => return Err(error),
        };
        Ok(Self {
            _link: link,
            counters: Counters::new(&counters, QUEUES_MAX)?,
            sockets,
            shunted,
            is_native,
            has_fragments,
            promiscuous: None,
        })
    }

    /// Lets a socket have the packets of a queue, once the queue is opened.
    pub(super) fn set_socket(&self, queue: u32, socket: &XdpSocket) -> io::Result<()> {
        set_socket(self.sockets.as_fd(), queue, socket.as_fd())
    }

    /// Counts packets of queues from `first` on, which have no socket.
    pub(super) fn watch_others(&self, first: usize) {
        for line in first..QUEUES_MAX {
            self.counters.set(line, word::OPEN, 1);
        }
    }

    /// Packets of queues that have no socket: the interface got more queues.
    pub(super) fn unseen(&self, first: usize) -> u64 {
        (first..QUEUES_MAX)
            .map(|line| self.counters.get(line, word::UNSEEN))
            .sum()
    }
}

/// What drivers and older kernels say to what they do not have.
pub(super) fn is_unsupported(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL))
        || error.kind() == io::ErrorKind::InvalidInput
}

/// A flow in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ShuntedFlow {
    /// Source address and port.
    pub source: SocketAddr,
    /// Destination address and port, of the same family.
    pub destination: SocketAddr,
    /// 6 (TCP), 17 (UDP) or 132 (SCTP).
    pub protocol: u8,
}

impl ShuntedFlow {
    /// The key as the program makes it from a packet.
    fn key(&self) -> [u8; FLOW_KEY_BYTES] {
        let mut key = [0; FLOW_KEY_BYTES];
        let mut put = |at: usize, address: IpAddr| match address {
            IpAddr::V4(address) => key[at..at + 4].copy_from_slice(&address.octets()),
            IpAddr::V6(address) => key[at..at + 16].copy_from_slice(&address.octets()),
        };
        put(0, self.source.ip());
        put(16, self.destination.ip());
        key[32..34].copy_from_slice(&self.source.port().to_be_bytes());
        key[34..36].copy_from_slice(&self.destination.port().to_be_bytes());
        key[36] = self.protocol;
        key
    }
}

/// Drops flows in the kernel, before their packets are copied. From any thread.
///
/// Packets with VLAN tags, IPv4 options, IPv6 extension headers, and fragments are never dropped. Up to 65,536 flows: of more,
/// the least recently seen come back. What is dropped is counted as received and lost by the cause
/// [`LossCause::Shed`](crate::LossCause::Shed).
#[derive(Debug, Clone, Default)]
pub struct Shunt {
    pub(super) attachment: Arc<OnceLock<Weak<Attachment>>>,
}

impl Shunt {
    /// Drops packets of this direction of a flow from now on.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotConnected`] while the source is not open; else what the kernel said.
    pub fn insert(&self, flow: &ShuntedFlow) -> io::Result<()> {
        let attachment = self.attachment()?;
        insert(attachment.shunted.as_fd(), &flow.key())?;
        // Looking flows up costs something for each packet: it begins with the first flow.
        for line in 0..QUEUES_MAX {
            attachment.counters.set(line, word::SHUNTING, 1);
        }
        Ok(())
    }

    /// Lets packets of it through again.
    ///
    /// # Errors
    /// As [`Shunt::insert`]; [`io::ErrorKind::NotFound`] if it was not shunted.
    pub fn remove(&self, flow: &ShuntedFlow) -> io::Result<()> {
        remove(self.attachment()?.shunted.as_fd(), &flow.key())
    }

    fn attachment(&self) -> io::Result<Arc<Attachment>> {
        let attachment = self.attachment.get().and_then(Weak::upgrade);
        attachment.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's verifier judges both programs: with and without packets of several chunks.
    #[test]
    fn the_verifier_takes_the_programs() {
        let map = |(kind, flags), key_bytes, value_bytes| {
            create_map(Map {
                kind,
                key_bytes,
                value_bytes,
                entries_max: 4,
                flags,
            })
        };
        let counters = match map(Map::ARRAY, 4, LINE_BYTES) {
            Ok(counters) => counters,
            Err(error) => {
                eprintln!("SKIP: no bpf(2) here: {error}");
                return;
            }
        };
        let sockets = map(Map::SOCKETS, 4, 4).unwrap();
        let shunted = map(Map::LRU_HASH, KEY_BYTES, 8).unwrap();
        for packet_bytes_max in [None, Some(1792), Some(3840)] {
            let mut code = assemble(Parts {
                counters: counters.as_raw_fd(),
                sockets: sockets.as_raw_fd(),
                shunted: shunted.as_raw_fd(),
                packet_bytes_max,
            });
            load_program(&code, packet_bytes_max.is_none()).unwrap();
            // It is the verifier that looks: without its last instruction a program is refused, and its words come back.
            code.pop();
            let error = load_program(&code, false).unwrap_err().to_string();
            assert!(error.contains(": "), "{error}");
        }
    }

    #[test]
    fn a_flow_has_a_key() {
        let flow = ShuntedFlow {
            source: "10.1.2.3:258".parse().unwrap(),
            destination: "[2001:db8::7]:772".parse().unwrap(),
            protocol: 17,
        };
        let key = flow.key();
        assert_eq!(key[..16], [10, 1, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(key[16..20], [0x20, 1, 0x0d, 0xb8]);
        assert_eq!(key[31..], [7, 1, 2, 3, 4, 17, 0, 0, 0]);
    }
}
