//! The plug between capture engines and the recorder.

use std::{fmt, io, net::SocketAddr, path::PathBuf, time::Duration};

use retroscope_packet::{Direction, LinkType, VlanTag};

use crate::{Offer, af_xdp::XdpMode};

/// Where packets come from. It is opened in two phases: what to offer is known only when all sources have told what they deliver, and
/// memory is filled in between.
pub trait Source: Send + fmt::Debug {
    /// The name that a user gave or would recognise: `eth0`, `big.pcapng`, `generate:flows=10`.
    fn name(&self) -> &str;

    /// First phase: takes the privileges, memory and kernel objects that the engine needs. `queues` is how many threads the caller would
    /// like to run, at least 1; an engine that cannot spread its traffic has fewer. What arrives from now on is not received yet where the
    /// engine can reject it.
    ///
    /// # Errors
    /// [`SourceError`], whose text is one sentence for the user.
    fn probe(self: Box<Self>, queues: usize) -> Result<Box<dyn Probed>, SourceError>;

    /// Both phases at once, with nothing offered: into at least one queue.
    ///
    /// # Errors
    /// Those of both phases.
    fn open(self: Box<Self>, queues: usize) -> Result<Vec<Box<dyn Queue>>, SourceError> {
        self.probe(queues)?.open(&Offer::default())
    }
}

/// A source after its first phase.
pub trait Probed: Send + fmt::Debug {
    /// Into how many queues it opens, at least 1.
    fn queues(&self) -> usize;

    /// Whether all packets of a flow, of both directions, come by the same queue.
    fn keeps_flows_together(&self) -> bool {
        self.queues() == 1
    }

    /// The link types of its frames, as far as they are known.
    fn link_types(&self) -> Vec<LinkType>;

    /// Second phase. The engine filters and cuts frames as [offered](Offer) if it can; one that cannot ignores it, and the caller filters
    /// and cuts what it lends. The queues need no privilege.
    ///
    /// # Errors
    /// [`SourceError`], whose text is one sentence for the user.
    fn open(self: Box<Self>, offer: &Offer) -> Result<Vec<Box<dyn Queue>>, SourceError>;
}

/// An engine that takes no offer, and has something that cannot be had again: a stream, an interface that is taken away from the host.
impl Probed for Vec<Box<dyn Queue>> {
    fn queues(&self) -> usize {
        self.len()
    }

    fn link_types(&self) -> Vec<LinkType> {
        let interfaces = self.iter().flat_map(|queue| queue.interfaces());
        interfaces.map(|interface| interface.link_type).collect()
    }

    fn open(self: Box<Self>, _offer: &Offer) -> Result<Vec<Box<dyn Queue>>, SourceError> {
        Ok(*self)
    }
}

/// Queues of such an engine, between which a NIC divides flows.
#[derive(Debug)]
pub struct DividedQueues {
    /// The queues, open.
    pub queues: Vec<Box<dyn Queue>>,
    /// See [`Probed::keeps_flows_together`].
    pub flows_together: bool,
}

impl Probed for DividedQueues {
    fn queues(&self) -> usize {
        self.queues.len()
    }

    fn keeps_flows_together(&self) -> bool {
        self.flows_together
    }

    fn link_types(&self) -> Vec<LinkType> {
        self.queues.link_types()
    }

    fn open(self: Box<Self>, _offer: &Offer) -> Result<Vec<Box<dyn Queue>>, SourceError> {
        Ok(self.queues)
    }
}

/// What a live queue has room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceBuffer {
    /// Bytes, of which a packet takes some tens beside its own.
    Bytes(u64),
    /// Packets.
    Packets(u64),
}

/// How long a queue leaves packets alone at most that have come, ns, if it may wait for as long or longer ([`Queue::next`]).
pub const REST_NS_MAX: i64 = 24_000_000;

/// One stream of frames of one source, owned by one thread.
///
/// The caller alternates [`Queue::next`] and [`Queue::burst`]; frames stay borrowed from the engine until the next
/// `next`. Nothing allocates per burst once the engine runs.
pub trait Queue: Send + fmt::Debug {
    /// The interfaces known so far, in the order of their index in [`FrameMeta::interface`]. It only grows, and only
    /// inside `next` (pcapng files describe interfaces on the way); an index is at most 65535.
    fn interfaces(&self) -> &[InterfaceInfo];

    /// Gives the previous burst back to the engine and waits for the next one, at most `wait`; on a busy link an engine may
    /// take some milliseconds more, rather than to be woken for little. It also lets packets of a busy link wait the longer the longer
    /// `wait` is, up to [`REST_NS_MAX`].
    ///
    /// # Errors
    /// A [`SourceError`] ends the queue: what was lent before counts, and every further call returns [`QueueStatus::End`].
    fn next(&mut self, wait: Duration) -> Result<QueueStatus, SourceError>;

    /// The burst that the last `next` fetched; empty unless that returned [`QueueStatus::Frames`].
    fn burst(&self) -> Burst<'_>;

    /// The CPUs that the thread that serves this queue should run on: those that were asked for, or those near the device. Empty:
    /// any.
    fn cpus(&self) -> &[u32] {
        &[]
    }

    /// Whether every frame that is lent has passed the filter that was [offered](Probed::open). What it refused is then
    /// not in [`SourceStatistics::received`], and nobody has counted it.
    fn is_filtered(&self) -> bool {
        false
    }

    /// The packet time before which nothing more will come, in ns since the UNIX epoch. LiveState engines move it on while
    /// idle too. `None`: no promise yet, or none possible (a file in any order).
    fn watermark(&self) -> Option<i64>;

    /// Whether this queue makes promises at all, [`Queue::watermark`], as long as it is not at its end. One that does not is never waited
    /// for: its stamps are of another clock, or in any order.
    fn promises_watermark(&self) -> bool {
        true
    }

    /// Takes one event that happened since the last call.
    fn event(&mut self) -> Option<SourceEvent>;

    /// Reads the engine's own counters. Cheap enough for a hundred calls a second, too dear for one a packet.
    fn statistics(&mut self) -> SourceStatistics;

    /// What the kernel may have dropped before the engine's tap, as of the last [`statistics`](Self::statistics).
    fn input_drops(&self) -> InputDrops {
        InputDrops::None
    }

    /// What offloads did to the frames so far, where the engine can tell.
    fn offload_effects(&self) -> Option<OffloadEffects> {
        None
    }

    /// How AF_XDP takes the packets; `None`: another engine does.
    fn xdp_mode(&self) -> Option<XdpMode> {
        None
    }

    /// What it holds of packets that were not fetched yet; `None`: the engine cannot tell.
    fn buffer(&self) -> Option<SourceBuffer> {
        None
    }

    /// Drops packets of one direction of a flow before they are copied, or, without `shunt`, takes them again. What is dropped is counted as received and lost by
    /// the cause [`LossCause::Shed`] of the class. Taken all the same are packets with FIN, SYN or RST, and one about every 100 ms, so that who decides knows that the flow goes on. A SYN
    /// without ACK, and the silence end it, the former for both directions. Packets with VLAN tags, IPv4 options, IPv6 extension headers, and
    /// fragments are never dropped. Of more than 65,536 flows the least recently seen come back. A system call.
    ///
    /// # Errors
    /// What the kernel said; [`io::ErrorKind::Unsupported`] where the engine cannot.
    fn shunt(&mut self, _flow: &ShuntedFlow, _shunt: Option<Shunt>) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Stops the intake at once: frames that arrive from now on are not received, those the engine holds already
    /// still come out of `next`, then [`QueueStatus::End`]. Calling it again does nothing.
    fn stop(&mut self);
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

/// How packets of a flow are dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shunt {
    /// Until it was silent for longer, ns, at most 2^62.
    pub silence_ns: i64,
    /// What they are counted as, below [`SHUNT_CLASSES`].
    pub class: u8,
}

/// Classes that dropped packets are counted by.
pub const SHUNT_CLASSES: u8 = 4;

/// What [`Queue::next`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueStatus {
    /// A burst of at least one frame is lent.
    Frames,
    /// Nothing came in time; watermark and events may have moved.
    Idle,
    /// The queue is at its end: end of input, or drained after [`Queue::stop`].
    End,
}

/// Frames lent by an engine: descriptors and the memory that they point into.
#[derive(Debug, Clone, Copy)]
pub struct Burst<'q> {
    /// The engine's memory, for example one TPACKET block.
    pub memory: &'q [u8],
    /// One descriptor a frame, in the order of arrival. `offset + captured_len <= memory.len()` for each.
    pub frames: &'q [FrameMeta],
}

impl<'q> Burst<'q> {
    /// A burst of no frames.
    pub const EMPTY: Self = Self {
        memory: &[],
        frames: &[],
    };

    /// The frame at `index`. Panics unless `index < frames.len()`.
    #[must_use]
    pub fn frame(&self, index: usize) -> LentFrame<'q> {
        let meta = self.frames[index];
        LentFrame {
            meta,
            data: &self.memory[meta.offset..meta.offset + meta.captured_len as usize],
        }
    }

    /// All frames, in order.
    pub fn iter(self) -> impl ExactSizeIterator<Item = LentFrame<'q>> {
        (0..self.frames.len()).map(move |index| self.frame(index))
    }
}

/// A descriptor of one lent frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FrameMeta {
    /// Nanoseconds since the UNIX epoch, as the engine stamped it.
    pub time_ns: i64,
    /// Where the captured bytes start in [`Burst::memory`].
    pub offset: usize,
    /// Bytes captured, without `vlan`.
    pub captured_len: u32,
    /// Bytes on the wire, without `vlan` and without the frame check sequence; `>= captured_len` except in odd files.
    pub wire_len: u32,
    /// Index into [`Queue::interfaces`].
    pub interface: u16,
    /// Which way the frame went.
    pub direction: Direction,
    /// A tag that the NIC or kernel took out of the frame; it belongs behind the two MAC addresses.
    pub vlan: Option<VlanTag>,
}

/// A lent frame.
#[derive(Debug, Clone, Copy)]
pub struct LentFrame<'q> {
    /// Its descriptor.
    pub meta: FrameMeta,
    /// Its captured bytes.
    pub data: &'q [u8],
}

/// An interface that a queue delivers frames from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfaceInfo {
    /// Name for people and for the pcapng interface block; may be empty for a file that has none.
    pub name: String,
    /// Link-layer header type of its frames.
    pub link_type: LinkType,
    /// Bytes kept of each frame at most; 0: no limit.
    pub snaplen: u32,
    /// Where its time stamps come from.
    pub time_domain: TimeDomain,
    /// Resolution of its time stamps in ns: 1, or 1000 for a microsecond file, and so on.
    pub time_resolution_ns: u64,
}

impl InterfaceInfo {
    /// An interface whose frames are kept whole and stamped in ns.
    pub fn new(name: impl Into<String>, link_type: LinkType, time_domain: TimeDomain) -> Self {
        Self {
            name: name.into(),
            link_type,
            snaplen: 0,
            time_domain,
            time_resolution_ns: 1,
        }
    }
}

/// Whose clock stamped the frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeDomain {
    /// A capture file's stamps, in any order.
    File,
    /// The kernel's software stamp of each packet, from the system's real-time clock.
    KernelSoftware,
    /// The system's real-time clock, read when a burst was fetched: all of its frames have one stamp.
    Fetch,
    /// The NIC's clock, converted to the system's.
    Nic,
    /// A clock that is not this system's: a capture card's, another host's.
    Foreign,
    /// The generator's schedule.
    Generator,
}

impl TimeDomain {
    /// The word that sidecars and dumps use.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::KernelSoftware => "kernel-software",
            Self::Fetch => "fetch",
            Self::Nic => "nic",
            Self::Foreign => "foreign",
            Self::Generator => "generator",
        }
    }
}

/// Something that happened to a queue beside frames.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceEvent {
    /// An interface was added at this index of [`Queue::interfaces`].
    InterfaceAdded(u16),
    /// The interface went down; the queue stays open and goes on when it comes back.
    InterfaceDown(u16),
    /// The interface came up again.
    InterfaceUp(u16),
    /// The interface was removed; the queue stays open, and goes on with [`SourceEvent::InterfaceUp`] when one of this name is there
    /// again.
    InterfaceGone(u16),
    /// The interface is there, and was left to the host, which a [`Notice`](Self::Notice) has told; the queue stays open, and goes on with
    /// [`SourceEvent::InterfaceUp`] when it may take it again.
    InterfaceLeft(u16),
    /// Something that the user should read once.
    Notice(String),
}

/// Why an engine lost packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LossCause {
    /// The NIC had no descriptor free.
    Nic,
    /// The kernel's capture ring was full.
    Kernel,
    /// It was lost before it came to this host, by whoever captured it.
    Upstream,
    /// The NIC refused it: damaged on the wire, or of a length that it does not take.
    Damaged,
    /// The engine had no buffer for it.
    NoBuffer,
    /// Longer than the engine's memory for one frame.
    Oversize,
    /// Dropped on purpose before it was copied, because its flow is [shunted](Queue::shunt), by class.
    Shed(u8),
    /// It came by a receive queue that the engine does not serve, and went on to the host.
    Unseen,
}

impl LossCause {
    /// The word that summaries, sidecars and metrics use.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Nic => "nic",
            Self::Kernel => "kernel",
            Self::Upstream => "upstream",
            Self::Damaged => "damaged",
            Self::NoBuffer => "no-buffer",
            Self::Oversize => "oversize",
            Self::Shed(_) => "shed",
            Self::Unseen => "unseen",
        }
    }
}

/// The engine's own counters since the queue was opened.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SourceStatistics {
    /// Packets that reached the engine, lost ones included, from the engine's own counter. `None`: it has none.
    pub received: Option<u64>,
    /// Packets lost by cause; `None`: the engine cannot tell.
    pub lost: Vec<(LossCause, Option<u64>)>,
    /// Packet time up to which these counters are known to be complete, in ns since the UNIX epoch.
    pub as_of_ns: Option<i64>,
}

/// Packets that the kernel may have dropped before any tap saw them, because the input queue of a CPU was full
/// (`net.core.netdev_max_backlog`). Nobody counts them for one interface, so they are in no ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum InputDrops {
    /// None, or another queue of the source tells: packets come some other way.
    #[default]
    None,
    /// No more than these since the queue was opened.
    AtMost(u64),
    /// The kernel's counters cannot be read.
    Unknown,
}

/// Frames that a NIC or the kernel had made, or was still to make, different from those on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OffloadEffects {
    /// Larger than any frame of this interface: several that were joined on receipt, or one that was still to be cut.
    pub merged: u64,
    /// Without a checksum, which the NIC was to fill in.
    pub checksum_missing: u64,
}

/// Why a source did not open, or ended early. The text is one sentence for the user and names what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The file cannot be opened or read.
    #[error("cannot read {}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The file is damaged or not a capture; what was read before counts.
    #[error("{}: {message}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong, with the byte offset.
        message: String,
    },
    /// The process may not capture. The sentence names the command that helps.
    #[error("{0}")]
    Permission(String),
    /// There is no such interface.
    #[error("no interface {interface}")]
    NoInterface {
        /// The name that was asked for.
        interface: String,
    },
    /// The interface's link type is not supported, or several at once were asked for. With the sentence.
    #[error("{0}")]
    Unsupported(String),
    /// A description of a source that does not parse. The sentence says what to write instead.
    #[error("{0}")]
    Usage(String),
    /// The interface is switched off, so nothing can be sent; or this engine does not wait for it.
    #[error("{interface} is down: sudo ip link set {interface} up")]
    InterfaceDown {
        /// The interface.
        interface: String,
    },
    /// The interface was removed while it was sent on.
    #[error("{interface} was removed")]
    InterfaceGone {
        /// The interface.
        interface: String,
    },
    /// The interface does not send a frame of this length.
    #[error(
        "{interface} takes no frame of {frame_bytes} bytes: with its MTU they have {frame_bytes_max} at most"
    )]
    FrameTooLong {
        /// The interface.
        interface: String,
        /// Bytes of the frame, without frame check sequence.
        frame_bytes: u32,
        /// Bytes of the longest frame that it takes, without a VLAN tag.
        frame_bytes_max: i32,
    },
    /// The interface took no frame for as long as the sender waits, a second unless it was told otherwise.
    #[error("{interface} takes no packets: is its other end up?")]
    NoRoom {
        /// The interface.
        interface: String,
    },
    /// A system call failed.
    #[error("{interface}: {call}: {error}")]
    System {
        /// The interface.
        interface: String,
        /// The system call, with its option.
        call: &'static str,
        /// What it returned.
        error: io::Error,
    },
}

impl SourceError {
    /// A system call that failed.
    pub fn system(interface: &str, call: &'static str, error: io::Error) -> Self {
        Self::System {
            interface: interface.to_owned(),
            call,
            error,
        }
    }
}
