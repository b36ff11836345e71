//! The interface between capture engines and the recorder.

use std::{fmt, io, net::SocketAddr, os::fd::BorrowedFd, path::PathBuf, time::Duration};

use retroscope_packet::{Direction, LinkType, VlanTag};

use crate::{Offer, af_xdp::XdpMode, poll};

/// An origin of packets. A source is opened in two phases: the recorder can make its [`Offer`] only
/// after all sources have reported their link types, and makes its ring between the phases.
pub trait Source: Send + fmt::Debug {
    /// The name that a user gave or recognizes: `eth0`, `big.pcapng`, `generate:flows=10`.
    fn name(&self) -> &str;

    /// First phase: may need privileges. Usually acquires the engine's memory and kernel objects.
    /// `queues` is the number of threads that the caller prefers, at least 1. An engine may open
    /// fewer or more queues. If possible, the engine rejects packets that arrive before the second
    /// phase.
    ///
    /// # Errors
    /// [`SourceError`], whose text is one sentence for the user.
    fn probe(self: Box<Self>, queues: usize) -> Result<Box<dyn Probed>, SourceError>;

    /// Both phases at once, without an offer. Returns at least one queue.
    ///
    /// # Errors
    /// The errors of both phases.
    fn open(self: Box<Self>, queues: usize) -> Result<Vec<Box<dyn Queue>>, SourceError> {
        self.probe(queues)?.open(&Offer::default())
    }
}

/// A source after its first phase.
pub trait Probed: Send + fmt::Debug {
    /// The number of queues that the source opens, at least 1.
    fn queues(&self) -> usize;

    /// Whether all packets of a flow, in both directions, arrive through the same queue. If there
    /// are several queues, fragments may arrive through another queue.
    fn keeps_flows_together(&self) -> bool {
        self.queues() == 1
    }

    /// The link types of the frames, as far as they are known.
    fn link_types(&self) -> Vec<LinkType>;

    /// Second phase. The engine filters and truncates as [offered](Offer) if it can. Another engine
    /// ignores the offer, and the caller filters and truncates the frames. The queues usually need
    /// no privilege.
    ///
    /// # Errors
    /// [`SourceError`], whose text is one sentence for the user.
    fn open(self: Box<Self>, offer: &Offer) -> Result<Vec<Box<dyn Queue>>, SourceError>;
}

/// Open queues of an engine that ignores offers, for example of a stream, which cannot be opened
/// twice.
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

/// How a thread waits for one of several queues.
#[derive(Debug, Clone, Copy)]
pub struct WaitTerms<'q> {
    /// poll(2) usually reports packets that wait at the descriptor. `None`: no report of packets.
    pub descriptor: Option<BorrowedFd<'q>>,
    /// Longest time until the next call of [`Queue::next`].
    pub longest: Duration,
}

impl WaitTerms<'_> {
    /// Waits until one of several queues may have packets, at most `wait`. May return earlier, for
    /// example after a signal.
    pub fn wait_for_any<'q>(terms: impl Iterator<Item = WaitTerms<'q>>, wait: Duration) {
        let mut wait = wait;
        let shorten = |terms: WaitTerms<'q>| {
            wait = wait.min(terms.longest);
            terms.descriptor
        };
        let descriptors: Vec<BorrowedFd<'q>> = terms.filter_map(shorten).collect();
        poll::wait_for_any(&descriptors, wait);
    }
}

/// Queues between which a NIC divides flows, of an engine that ignores offers.
#[derive(Debug)]
pub struct DividedQueues {
    /// The open queues.
    pub queues: Vec<Box<dyn Queue>>,
    /// The value of [`Probed::keeps_flows_together`].
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

/// The capacity of a live queue's buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceBuffer {
    /// Capacity in bytes. Each packet takes some tens of bytes in addition to its data.
    Bytes(u64),
    /// Capacity in packets.
    Packets(u64),
}

/// Longest time for which a queue on a busy link leaves arrived packets in the kernel, ns. If the
/// caller allows only a shorter wait ([`Queue::next`]), the queue fetches the packets earlier.
pub const REST_NS_MAX: i64 = 24_000_000;

/// One stream of frames of one source, owned by one thread.
///
/// The caller alternates [`Queue::next`] and [`Queue::burst`]. Frames stay borrowed from the engine
/// until the following call of `next`. An engine reuses its memory for every burst.
pub trait Queue: Send + fmt::Debug {
    /// The interfaces known so far, in the order of [`FrameMeta::interface`]. The list only grows,
    /// and only inside `next`, because a pcapng file describes interfaces anywhere. An index is at
    /// most 65535.
    fn interfaces(&self) -> &[InterfaceInfo];

    /// Returns the previous burst to the engine and waits for the next burst, at most `wait`. The
    /// reader of a silent pipe may wait longer. On a busy link an engine may take some milliseconds
    /// more, instead of waking up for a few packets. On a busy link the engine may also leave
    /// packets in the kernel, longer if `wait` is longer, up to [`REST_NS_MAX`].
    ///
    /// # Errors
    /// A [`SourceError`] ends the queue. Frames that were lent before still count, and every later
    /// call returns [`QueueStatus::End`].
    fn next(&mut self, wait: Duration) -> Result<QueueStatus, SourceError>;

    /// The burst that the last `next` fetched. Empty unless `next` returned
    /// [`QueueStatus::Frames`].
    fn burst(&self) -> Burst<'_>;

    /// Whether packets may wait that the engine could take from the kernel or the device now. The
    /// rest of a block that the engine has taken does not count. Costs at most a few ns, and
    /// changes nothing. `None` if only [`next`](Self::next) can tell.
    fn has_more(&self) -> Option<bool> {
        None
    }

    /// Whether clearly more packets may wait than a rest leaves in the kernel ([`REST_NS_MAX`]), if
    /// the engine rests. Otherwise as [`Self::has_more`].
    fn is_behind(&self) -> Option<bool> {
        self.has_more()
    }

    /// How a thread that serves several queues waits for this queue. `None`: only
    /// [`next`](Self::next) can wait, so the queue needs a thread of its own.
    fn wait_terms(&self) -> Option<WaitTerms<'_>> {
        None
    }

    /// The CPUs on which the thread of this queue should run: the CPU that the user chose, or the
    /// CPUs near the device. Empty: any CPU.
    fn cpus(&self) -> &[u32] {
        &[]
    }

    /// Whether every lent frame has passed the [offered](Probed::open) filter.
    /// [`SourceStatistics`] then do not include refused frames.
    fn is_filtered(&self) -> bool {
        false
    }

    /// The packet time before which no more packets will arrive, in ns since the UNIX epoch. Live
    /// engines advance the watermark while idle too. `None`: no promise yet, or no promise possible
    /// (a file in any order).
    fn watermark(&self) -> Option<i64>;

    /// Whether the recorder waits for this queue's [`Queue::watermark`]. A live queue returns
    /// `false` if its stamps may disagree with the system's clock or are in any order: then it has
    /// no watermark before its end. A file returns `true`, although its watermark is `None` until
    /// its end.
    fn promises_watermark(&self) -> bool {
        true
    }

    /// Takes the oldest event that was not taken yet; `None`: there is no further event.
    fn event(&mut self) -> Option<SourceEvent>;

    /// Reads the engine's own counters. Cheap enough for a hundred calls per second, too expensive
    /// for one call per packet.
    fn statistics(&mut self) -> SourceStatistics;

    /// Packets that the kernel may have dropped before the engine's tap, as of the last
    /// [`statistics`](Self::statistics).
    fn input_drops(&self) -> InputDrops {
        InputDrops::None
    }

    /// Effects of offloads on the frames until now, if the engine detects such effects.
    fn offload_effects(&self) -> Option<OffloadEffects> {
        None
    }

    /// The mode of AF_XDP; `None` for other engines.
    fn xdp_mode(&self) -> Option<XdpMode> {
        None
    }

    /// Frames with a stamp of the NIC until now; `None`: the engine takes no such stamps, or does
    /// not count the frames.
    fn nic_stamped(&self) -> Option<u64> {
        None
    }

    /// The capacity for packets that were not fetched yet; `None`: unknown to the engine.
    fn buffer(&self) -> Option<SourceBuffer> {
        None
    }

    /// Drops packets of one direction of a flow before they are copied. If `shunt` is `None`, the
    /// engine delivers the packets of this direction again. Takes a system call.
    ///
    /// Dropped packets count as received, and as lost by the cause [`LossCause::Shed`] of the
    /// class. The engine still delivers packets with FIN, SYN or RST, and about one packet every
    /// 100 ms, so that the caller knows that the flow goes on.
    ///
    /// The drop ends with a SYN without ACK, for both directions, or after the silence. The engine
    /// never drops fragments, or frames with IPv4 options, IPv6 extension headers or VLAN tags
    /// (except tags that the NIC removes). With more than 65,536 dropped directions, the engine
    /// delivers some of the least recently seen directions again.
    ///
    /// # Errors
    /// The kernel's error; [`io::ErrorKind::Unsupported`] if the engine cannot drop.
    fn shunt(&mut self, _flow: &ShuntedFlow, _shunt: Option<Shunt>) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Stops the intake at once. Frames that arrive from now on are not received, except from a
    /// device that cannot be stopped. `next` of a live interface usually still delivers the frames
    /// that the engine holds, then [`QueueStatus::End`]. Files, streams and the generator end at
    /// once. A second call does nothing.
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
    /// Silence of the flow that ends the dropping, ns, at most 2^62.
    pub silence_ns: i64,
    /// The class that counts the dropped packets, below [`SHUNT_CLASSES`].
    pub class: u8,
}

/// Number of classes for dropped packets.
pub const SHUNT_CLASSES: u8 = 4;

/// The result of [`Queue::next`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueStatus {
    /// A burst of at least one frame is lent.
    Frames,
    /// No packet arrived in time. The watermark may have advanced, and events may be pending.
    Idle,
    /// The queue is at its end: at the end of the input, drained after [`Queue::stop`], or after an
    /// error.
    End,
}

/// Frames lent by an engine: descriptors, and the memory that contains the frames.
#[derive(Debug, Clone, Copy)]
pub struct Burst<'q> {
    /// The engine's memory, for example one TPACKET block.
    pub memory: &'q [u8],
    /// One descriptor per frame, in the order of arrival. `offset + captured_len <= memory.len()`
    /// for each.
    pub frames: &'q [FrameMeta],
}

impl<'q> Burst<'q> {
    /// A burst without frames.
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

/// The descriptor of one lent frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FrameMeta {
    /// The engine's time stamp, in ns since the UNIX epoch.
    pub time_ns: i64,
    /// Offset of the captured bytes in [`Burst::memory`].
    pub offset: usize,
    /// Bytes captured, without the tag in `vlan`.
    pub captured_len: u32,
    /// Bytes on the wire, without the tag in `vlan` and usually without the frame check sequence.
    /// At least `captured_len` except in malformed files and streams.
    pub wire_len: u32,
    /// Index into [`Queue::interfaces`].
    pub interface: u16,
    /// The direction of the frame.
    pub direction: Direction,
    /// A tag that the NIC or kernel removed from the frame. Its position in the frame is directly
    /// after the two MAC addresses.
    pub vlan: Option<VlanTag>,
}

/// A lent frame.
#[derive(Debug, Clone, Copy)]
pub struct LentFrame<'q> {
    /// The frame's descriptor.
    pub meta: FrameMeta,
    /// The captured bytes.
    pub data: &'q [u8],
}

/// An interface from which a queue delivers frames.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfaceInfo {
    /// Name for people and for the pcapng interface block. May be empty for a file without
    /// interface names.
    pub name: String,
    /// Link-layer header type of the frames.
    pub link_type: LinkType,
    /// Snap length of the interface; 0: no limit.
    pub snaplen: u32,
    /// Origin of the time stamps.
    pub time_domain: TimeDomain,
    /// Resolution of the time stamps in ns, for example 1000 for a file with microseconds.
    pub time_resolution_ns: u64,
}

impl InterfaceInfo {
    /// An interface with whole frames and stamps in ns.
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

/// The clock that stamped the frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeDomain {
    /// A capture file's stamps, in any order.
    File,
    /// Usually a software stamp by the kernel or the XDP program, or without a usable stamp the
    /// time of the fetch, on the system's real-time clock. The queue converts the XDP program's
    /// monotonic stamps.
    KernelSoftware,
    /// The system's real-time clock at the fetch of a burst: all frames of the burst have the same
    /// stamp.
    Fetch,
    /// The NIC's clock. DPDK's engine converts stamps to the system's clock. The other engines use
    /// only stamps that agree with the system's clock within some ms.
    Nic,
    /// A clock that may belong to another system, such as a capture card or another host.
    Foreign,
    /// The generator's schedule or, without a rate, the clock at the start of each burst.
    Generator,
}

impl TimeDomain {
    /// The name in sidecars and dumps.
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

/// A change of a queue, in addition to frames.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceEvent {
    /// An interface was added at this index of [`Queue::interfaces`].
    InterfaceAdded(u16),
    /// The interface went down, or was down at the start. The queue stays open, and goes on when
    /// the interface comes up.
    InterfaceDown(u16),
    /// The interface came up, or an interface of its name exists again and is up.
    InterfaceUp(u16),
    /// The interface was removed. The queue stays open, and goes on with
    /// [`SourceEvent::InterfaceUp`] when an interface of this name exists again and is up.
    InterfaceGone(u16),
    /// The interface exists, but was left to the host, as a [`Notice`](Self::Notice) has reported.
    /// The queue stays open, and goes on with [`SourceEvent::InterfaceUp`] when it may take the
    /// interface again.
    InterfaceLeft(u16),
    /// A message that the user should read once.
    Notice(String),
}

/// Why an engine lost packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LossCause {
    /// The NIC had no free descriptor, or the device of DPDK could not take the packet.
    Nic,
    /// The kernel's capture memory was full, or the packet was lost on its way through this memory,
    /// for example because its descriptor was malformed.
    Kernel,
    /// The program that captured the packets lost them before it sent them to the engine.
    Upstream,
    /// The NIC refused the packet: damaged on the wire, or of an unsupported length.
    Damaged,
    /// The engine had no free buffer.
    NoBuffer,
    /// The packet was longer than the engine's memory for one frame or, with DPDK, its lengths did
    /// not fit its buffers.
    Oversize,
    /// The engine dropped the packet on purpose before copying it, because its flow is
    /// [shunted](Queue::shunt). Contains the class.
    Shed(u8),
    /// The packet arrived through a receive queue that the engine does not serve, and went on to
    /// the host.
    Unseen,
}

impl LossCause {
    /// The name in summaries, sidecars and metrics.
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
    /// Packets that reached the engine, lost packets included, from the engine's own counter.
    /// `None`: the engine has no such counter, or cannot read the counter.
    pub received: Option<u64>,
    /// Packets lost by cause; `None`: unknown to the engine.
    pub lost: Vec<(LossCause, Option<u64>)>,
    /// Packet time up to which these counters are complete, in ns since the UNIX epoch.
    pub as_of_ns: Option<i64>,
}

/// Packets that the kernel may have dropped before any tap, because the input queue of a CPU was
/// full (`net.core.netdev_max_backlog`). The kernel has no such counter per interface, so neither
/// the received nor the lost packets include these packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum InputDrops {
    /// No packets, or another queue of the source reports the number. Also for packets that do not
    /// pass an input queue.
    #[default]
    None,
    /// Upper bound on the dropped packets since the queue was opened.
    AtMost(u64),
    /// The kernel's counters cannot be read.
    Unknown,
}

/// Frames that differ from the frames on the wire. The NIC or the kernel has changed a received
/// frame, or would change a sent frame after its capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OffloadEffects {
    /// Frames larger than this interface's MTU allows: joined on receipt, or not yet segmented for
    /// sending.
    pub merged: u64,
    /// Frames captured without a valid checksum, because of offloads.
    pub checksum_missing: u64,
}

/// Why a source did not open or ended early, or why frames were not sent. The text is one sentence
/// for the user, in many cases with the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The file cannot be opened or read, or a stream over TCP cannot be read.
    #[error("cannot read {}: {error}", path.display())]
    File {
        /// The path of the file, or the name of the stream.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The file or stream is damaged or no capture. Frames that were read before count.
    #[error("{}: {message}", path.display())]
    Damaged {
        /// The path of the file, or the name of the stream.
        path: PathBuf,
        /// The damage with the byte offset, or what the file is instead of a capture.
        message: String,
    },
    /// The process lacks a privilege. The sentence contains the command that helps.
    #[error("{0}")]
    Permission(String),
    /// The interface does not exist.
    #[error("no interface {interface}")]
    NoInterface {
        /// The name that was requested.
        interface: String,
    },
    /// The interface or the kernel does not support the capture, for example because of the link
    /// type. Contains the sentence.
    #[error("{0}")]
    Unsupported(String),
    /// A request of the user that cannot be fulfilled as it is written: for example, the
    /// description of a source does not parse. The sentence says what to write instead.
    #[error("{0}")]
    Usage(String),
    /// The interface is switched off, so it cannot send, or this engine does not wait for an
    /// interface that is down.
    #[error("{interface} is down: sudo ip link set {interface} up")]
    InterfaceDown {
        /// The name of the interface.
        interface: String,
    },
    /// The interface of a sender was removed.
    #[error("{interface} was removed")]
    InterfaceGone {
        /// The name of the interface.
        interface: String,
    },
    /// The interface does not send a frame of this length.
    #[error(
        "{interface} takes no frame of {frame_bytes} bytes: with its MTU they have {frame_bytes_max} at most"
    )]
    FrameTooLong {
        /// The name of the interface.
        interface: String,
        /// Bytes of the frame, without frame check sequence.
        frame_bytes: u32,
        /// Bytes of the longest frame that the interface sends, without a VLAN tag.
        frame_bytes_max: i32,
    },
    /// The interface accepted no frame during the sender's timeout, by default one second.
    #[error("{interface} accepts no packets: is its other end up?")]
    NoRoom {
        /// The name of the interface.
        interface: String,
    },
    /// A system call, or a call of libpcap or DPDK, failed.
    #[error("{interface}: {call}: {error}")]
    System {
        /// The name of the interface or of another live source, or `DPDK`.
        interface: String,
        /// The name of the call; for a socket option or an ioctl, with its name.
        call: &'static str,
        /// The error of the call.
        error: io::Error,
    },
}

impl SourceError {
    /// The error of a failed call.
    pub fn system(interface: &str, call: &'static str, error: io::Error) -> Self {
        Self::System {
            interface: interface.to_owned(),
            call,
            error,
        }
    }
}
