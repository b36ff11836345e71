//! Opening: may the interface be taken, the program, a socket for each receive queue.

use std::{io, path::PathBuf, sync::Arc, time::Duration};

use retroscope_packet::LinkType;

use super::{
    attachment::{Attachment, QUEUES_MAX, Shunt, is_unsupported},
    queue::{OWN_BYTES, Opened, XdpQueue},
    sys::{Umem, XdpSocket},
};
use crate::{
    InterfaceInfo, Queue, Source, SourceError, TimeDomain,
    af_packet::{
        offloads,
        sys::{InterfaceQuery, PacketSocket},
    },
    clock::{self, SECOND_NS},
    host::host_uses,
};

/// Memory of a queue unless the user says otherwise.
const BUFFER_BYTES: usize = 64 << 20;

/// Chunks: the smaller ones take ordinary frames and waste less. The kernel allows these two sizes with pages of 4 KiB.
const SMALL_CHUNK: usize = 2048;
const LARGE_CHUNK: usize = 4096;

/// What the kernel keeps free in front of a packet (`XDP_PACKET_HEADROOM`).
const HEADROOM: usize = 256;

/// Ethernet header and two tags.
const HEADERS: usize = 22;

/// A queue that was just given back is busy for an instant: how long to try, and how often.
const BUSY_NS: i64 = 2 * SECOND_NS;
const BUSY_LOOK_NS: i64 = 10_000_000;

/// How to capture with AF_XDP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XdpConfig {
    /// The interface's name.
    pub interface: String,
    /// Whether to take frames for other hosts too.
    pub promiscuous: bool,
    /// Take the interface's packets away from the host although it has an address or a route.
    pub take_interface: bool,
    /// Bytes of memory of each receive queue, rounded down to a power of two of chunks; `None`: 64 MiB.
    pub buffer_bytes: Option<usize>,
    /// How long a thread asks the driver for packets itself before it sleeps; `None`: the driver interrupts.
    pub busy_poll: Option<Duration>,
    /// The program's path, for the commands that a message names.
    pub program: PathBuf,
}

/// A live interface, through AF_XDP, behind the [`Source`] plug.
///
/// Opening needs CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF, and CAP_IPC_LOCK or a limit of locked memory that is high enough; the queues need no privilege. It captures in the network namespace
/// of the thread that calls [`Source::open`].
#[derive(Debug)]
pub struct XdpSource {
    config: XdpConfig,
    shunt: Shunt,
}

/// An interface that was looked up.
struct Interface {
    index: u32,
    query: Arc<InterfaceQuery>,
    chunk_bytes: usize,
}

impl XdpSource {
    /// A source that will capture as `config` says. Nothing is opened yet.
    #[must_use]
    pub fn new(config: XdpConfig) -> Self {
        Self {
            config,
            shunt: Shunt::default(),
        }
    }

    /// What drops flows in the kernel once the source is open.
    #[must_use]
    pub fn shunt(&self) -> Shunt {
        self.shunt.clone()
    }

    fn error(&self, call: &'static str, error: io::Error) -> SourceError {
        let interface = self.config.interface.clone();
        let program = self.config.program.display();
        match error.raw_os_error() {
            Some(libc::EPERM) => SourceError::Permission {
                message: format!(
                    "no permission to take packets from {interface} with AF_XDP: run it as 'sudo {program} …', or once \
                     'sudo setcap cap_net_raw,cap_net_admin,cap_bpf,cap_ipc_lock=eip {program}'"
                ),
            },
            Some(libc::EAFNOSUPPORT) => SourceError::Unsupported {
                message: "this kernel has no AF_XDP: use --engine af-packet".to_owned(),
            },
            _ => SourceError::System {
                interface,
                call,
                error,
            },
        }
    }

    fn unsupported(&self, what: &str) -> SourceError {
        let message = format!(
            "cannot take packets from {} with AF_XDP: {what}",
            self.config.interface
        );
        SourceError::Unsupported { message }
    }

    fn look_up(&self) -> Result<Interface, SourceError> {
        let name = &self.config.interface;
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
        if hardware_type != libc::ARPHRD_ETHER {
            return Err(self.unsupported("it is no Ethernet interface"));
        }
        let flags = query
            .flags(name)
            .map_err(|error| self.error("ioctl(SIOCGIFFLAGS)", error))?;
        if !flags.is_up() {
            let advice = format!("it is down: sudo ip link set {name} up");
            return Err(self.unsupported(&advice));
        }
        self.check_host()?;
        let mtu = query
            .mtu(name)
            .ok()
            .and_then(|mtu| usize::try_from(mtu).ok());
        let fits_small = mtu.is_some_and(|mtu| mtu + HEADERS <= SMALL_CHUNK - HEADROOM);
        Ok(Interface {
            index: index.cast_unsigned(),
            query: Arc::new(query),
            chunk_bytes: if fits_small { SMALL_CHUNK } else { LARGE_CHUNK },
        })
    }

    /// Refuses an interface that the host itself uses.
    fn check_host(&self) -> Result<(), SourceError> {
        if self.config.take_interface {
            return Ok(());
        }
        let name = &self.config.interface;
        let used = host_uses(name).map_err(|error| self.error("getifaddrs", error))?;
        let Some(what) = used else { return Ok(()) };
        Err(SourceError::Usage {
            message: format!(
                "{name} has {what}: AF_XDP takes every packet away from this host, which would cut its connections there. \
                 Say --take-interface if that is meant, or use --engine af-packet"
            ),
        })
    }

    /// Attaches the program and makes the sockets. `fragments`: packets longer than a chunk in several.
    fn take(
        &self,
        interface: &Interface,
        fragments: bool,
    ) -> Result<(Attachment, Vec<Opened>), SourceError> {
        let chunk_bytes = interface.chunk_bytes;
        let max = i32::try_from(chunk_bytes - HEADROOM).unwrap_or(0);
        let mut attachment = Attachment::new(interface.index, (!fragments).then_some(max))
            .map_err(|error| match error.raw_os_error() {
                Some(libc::EBUSY | libc::EEXIST) => {
                    let advice = format!(
                        "another XDP program is attached: ip link show {} names it",
                        self.config.interface
                    );
                    self.unsupported(&advice)
                }
                _ => self.error("bpf", error),
            })?;
        if self.config.promiscuous {
            attachment.promiscuous = Some(self.promiscuous(interface)?);
        }
        let mut opened = Vec::new();
        for queue in 0..u32::try_from(QUEUES_MAX).unwrap_or(u32::MAX) {
            let Some(one) = self.open_queue(interface, queue, fragments, chunk_bytes)? else {
                break;
            };
            attachment
                .set_socket(queue, &one.socket)
                .map_err(|error| self.error("bpf(BPF_MAP_UPDATE_ELEM)", error))?;
            opened.push(one);
        }
        Ok((attachment, opened))
    }

    /// A packet socket that receives nothing, for as long as the interface is to be promiscuous.
    fn promiscuous(&self, interface: &Interface) -> Result<PacketSocket, SourceError> {
        let socket = PacketSocket::new().map_err(|error| self.error("socket(AF_PACKET)", error))?;
        socket
            .set_promiscuous(interface.index.cast_signed())
            .map_err(|error| self.error("setsockopt(PACKET_ADD_MEMBERSHIP)", error))?;
        Ok(socket)
    }

    /// A socket bound to a queue, zero-copy if the driver can; `None`: the interface has no such queue.
    fn open_queue(
        &self,
        interface: &Interface,
        queue: u32,
        fragments: bool,
        chunk_bytes: usize,
    ) -> Result<Option<Opened>, SourceError> {
        let mut opened = self.open_socket(chunk_bytes)?;
        let give_up_ns = clock::monotonic_ns() + BUSY_NS;
        loop {
            let Err(error) = opened.socket.bind(interface.index, queue, fragments) else {
                opened.zero_copy = opened
                    .socket
                    .is_zero_copy()
                    .map_err(|error| self.error("getsockopt(XDP_OPTIONS)", error))?;
                return Ok(Some(opened));
            };
            let now_ns = clock::monotonic_ns();
            match error.raw_os_error() {
                Some(libc::EBUSY) if now_ns < give_up_ns => {
                    clock::sleep_until(now_ns + BUSY_LOOK_NS);
                    // A socket that did not bind is of no further use.
                    opened = self.open_socket(chunk_bytes)?;
                }
                // So the kernel says that there are no more queues; for the first one it means that it does not work at all.
                Some(libc::EINVAL) if queue > 0 => return Ok(None),
                _ => return Err(self.error("bind(AF_XDP)", error)),
            }
        }
    }

    fn open_socket(&self, chunk_bytes: usize) -> Result<Opened, SourceError> {
        let wanted = self.config.buffer_bytes.unwrap_or(BUFFER_BYTES) / chunk_bytes;
        // A power of two, as the rings are, and not more than the kernel gives rings.
        let chunks = 1 << wanted.clamp(64, 1 << 17).ilog2();
        let too_large = |_| self.error("mmap", io::ErrorKind::OutOfMemory.into());
        let umem = Umem::new(chunks * chunk_bytes, OWN_BYTES)
            .map_err(|error| self.error("mmap", error))?;
        let socket = XdpSocket::new().map_err(|error| self.error("socket(AF_XDP)", error))?;
        if let Some(time) = self.config.busy_poll {
            let microseconds = u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
            socket
                .set_busy_poll(microseconds)
                .map_err(|error| match error.raw_os_error() {
                    Some(libc::ENOPROTOOPT) => self.unsupported(
                        "busy polling needs Linux 5.11 and CONFIG_NET_RX_BUSY_POLL: leave --busy-poll out",
                    ),
                    _ => self.error("setsockopt(SO_BUSY_POLL)", error),
                })?;
        }
        let entries = u32::try_from(chunks).map_err(too_large)?;
        let bytes = u32::try_from(chunk_bytes).map_err(too_large)?;
        let (fill, rx) = socket
            .set_up(&umem, bytes, entries)
            .map_err(|error| match error.raw_os_error() {
                Some(libc::ENOBUFS) => self.unsupported(
                    "the memory that may be locked is too small: raise it (ulimit -l), or give less with --capture-buffer",
                ),
                _ => self.error("setsockopt(SOL_XDP)", error),
            })?;
        Ok(Opened {
            socket,
            fill,
            rx,
            umem,
            chunks,
            chunk_bytes,
            zero_copy: false,
            busy_ns: self.config.busy_poll.map(clock::duration_ns),
        })
    }

    /// What the user should know about how it is captured.
    fn notices(&self, attachment: &Attachment, opened: &[Opened]) -> Vec<String> {
        let name = &self.config.interface;
        let queues = match opened.len() {
            1 => "1 receive queue".to_owned(),
            count => format!("{count} receive queues, a thread each"),
        };
        let program = if attachment.is_native {
            "native"
        } else {
            "generic"
        };
        let copy = if opened.iter().all(|one| one.zero_copy) {
            "zero-copy"
        } else {
            "copy mode"
        };
        let mut notices = vec![format!(
            "{name}: {queues}, {program} XDP, {copy}; this host receives nothing from {name} now, and what it sends is not recorded"
        )];
        if !attachment.has_fragments {
            notices.push(format!(
                "{name}: this kernel gives no frames above {} bytes: they are counted as lost (oversize)",
                opened[0].chunk_bytes - HEADROOM
            ));
        }
        if offloads(name).is_ok_and(|offloads| offloads.vlan_extraction == Some(true)) {
            notices.push(format!(
                "{name}: VLAN tags that the NIC takes out are not seen: sudo ethtool -K {name} rxvlan off"
            ));
        }
        notices
    }
}

impl Source for XdpSource {
    fn name(&self) -> &str {
        &self.config.interface
    }

    /// To take an interface away twice would cut it off twice.
    fn opens_once(&self) -> bool {
        true
    }

    /// Opens a queue for each receive queue that the interface has, whatever `queues` says: packets of a queue without a
    /// socket would not be seen.
    fn open(self: Box<Self>, _queues: usize) -> Result<Vec<Box<dyn Queue>>, SourceError> {
        let interface = self.look_up()?;
        let (attachment, opened) = match self.take(&interface, true) {
            Err(SourceError::System { error, .. }) if is_unsupported(&error) => {
                self.take(&interface, false)?
            }
            outcome => outcome?,
        };
        attachment.watch_others(opened.len());
        let mut notices = self.notices(&attachment, &opened);
        let attachment = Arc::new(attachment);
        // It is set by this method only, which takes the source.
        let _ = self.shunt.attachment.set(Arc::downgrade(&attachment));
        let info = InterfaceInfo {
            name: self.config.interface.clone(),
            link_type: LinkType::ETHERNET,
            snaplen: 0,
            time_domain: TimeDomain::KernelSoftware,
            time_resolution_ns: 1,
        };
        let queues = opened.len();
        let queue = |(line, opened)| -> Box<dyn Queue> {
            Box::new(XdpQueue::new(
                info.clone(),
                opened,
                Arc::clone(&attachment),
                Arc::clone(&interface.query),
                line..queues,
                std::mem::take(&mut notices),
            ))
        };
        Ok(opened.into_iter().enumerate().map(queue).collect())
    }
}
