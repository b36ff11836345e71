//! Opens an interface: checks that it may be taken from the host, loads the program, and opens a
//! socket for each receive queue.

use std::{path::Path, sync::Arc};

use retroscope_packet::LinkType;

use super::{
    attachment::{AttachedInterface, Attachment, QUEUES_MAX, is_unsupported},
    channel::RECEIVE_QUEUE_WAIT_NS,
    config::XdpConfig,
    mode::{ReceiveMode, copy_words, program_word},
    queue::{self, DELIVERY_DELAY_NS_MAX, OWN_BYTES, XdpReceiver},
    sender::is_linux,
    sys::Umem,
    xdp_interface::{XdpInterface, frame_bytes, other_program},
};
use crate::{
    CpuList, InterfaceInfo, Offer, Probed, Queue, Source, SourceError, SourceEvent, TimeDomain,
    TimeStamps,
    af_packet::{offloads, rss_settings, sys::PacketSocket},
    clock,
    host::HostUse,
    live::LiveState,
    quantity::counted,
    rss::{FlowKind, RssSettings},
    source::DividedQueues,
    time_stamps::no_stamps,
};

/// Memory of a queue unless the user chooses another size.
const BUFFER_BYTES: usize = 64 << 20;

/// Chunk sizes that the kernel allows with pages of 4 KiB, bytes. Frames of MTU 1500 fit the
/// smaller chunks.
const SMALL_CHUNK: u16 = 2048;
const LARGE_CHUNK: u16 = 4096;

/// Bytes that the kernel keeps free in front of a packet (`XDP_PACKET_HEADROOM`).
const HEADROOM: u16 = 256;

/// The first Linux version in which a packet of several buffers reaches a socket ("xsk: add support
/// for AF_XDP multi-buffer on Rx path").
const JOINS_BUFFERS: (u32, u32) = (6, 6);

/// Time between two attempts to bind a socket whose receive queue another socket still has.
const RECEIVE_QUEUE_LOOK_NS: i64 = 10_000_000;

/// Largest number of spare sockets for each queue. An interface that comes back needs a new socket.
const SPARES: usize = 4;
/// Largest number of spare sockets of all queues together. Each queue may have one spare socket
/// even if that exceeds the limit.
const SPARES_MAX: usize = 64;

/// A live interface through AF_XDP that implements [`Source`].
///
/// Opening needs CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF, and CAP_IPC_LOCK or a sufficient limit of
/// locked memory. Since Linux 5.19 the queues need no privilege. The source captures in the network
/// namespace of the thread that calls [`Source::probe`]. To find an interface that comes back, the
/// queues must run in the same namespace.
#[derive(Debug)]
pub struct XdpSource {
    config: XdpConfig,
}

type TakenInterface = (Attachment, AttachedInterface, Vec<XdpReceiver>);

impl XdpSource {
    /// A source that will capture as `config` says. Opens nothing yet.
    #[must_use]
    pub fn new(config: XdpConfig) -> Self {
        Self { config }
    }

    /// Attaches the program and opens the sockets in the first supported mode. If that fails with
    /// the NIC's stamps, takes the interface without these stamps, unless the user requires them.
    /// The second value is then a notice.
    fn take_best(
        &self,
        xdp_interface: &XdpInterface,
        (index, chunk_bytes): (i32, u32),
        (better, last): (Vec<ReceiveMode>, ReceiveMode),
        takes_nic_stamps: bool,
    ) -> Result<(TakenInterface, Option<String>), SourceError> {
        let first = |modes: Vec<ReceiveMode>, last, nic_stamps| {
            let take = |mode| Self::take(xdp_interface, index, chunk_bytes, mode, nic_stamps);
            let is_followed = |outcome: &Result<_, SourceError>| !matches!(outcome, Err(SourceError::System { error, .. }) if is_unsupported(error));
            let outcome = modes.into_iter().map(take).find(is_followed);
            outcome.unwrap_or_else(|| take(last))
        };
        let mut refused = None;
        if takes_nic_stamps {
            // Only a driver gives the NIC's stamps, and only to a program that it runs.
            let mut native = better.clone();
            native.retain(|mode| mode.is_native);
            let last = native.pop().unwrap_or(last);
            match first(native, last, true) {
                Ok(taken) => return Ok((taken, None)),
                Err(error) if self.config.time_stamps == TimeStamps::Hardware => {
                    return Err(no_stamps(xdp_interface.name(), error));
                }
                Err(error) => {
                    refused = Some(format!(
                        "{}: the XDP program gets no stamps of the NIC: {error}",
                        xdp_interface.name()
                    ));
                }
            }
        }
        Ok((first(better, last, false)?, refused))
    }

    fn take(
        xdp_interface: &XdpInterface,
        index: i32,
        chunk_bytes: u32,
        receive_mode: ReceiveMode,
        takes_nic_stamps: bool,
    ) -> Result<TakenInterface, SourceError> {
        let promiscuous = xdp_interface.config.promiscuous.then(PacketSocket::new);
        let promiscuous = promiscuous
            .transpose()
            .map_err(|error| xdp_interface.error("socket(AF_PACKET)", error))?;
        let stamping = takes_nic_stamps.then_some(index);
        let attachment = Attachment::new(receive_mode, promiscuous, stamping)
            .map_err(|error| xdp_interface.error("bpf", error))?;
        let attached = attachment
            .attach(&mut attachment.state(), index, receive_mode.is_native)
            .map_err(|error| match error.raw_os_error() {
                Some(libc::EBUSY | libc::EEXIST) => {
                    xdp_interface.unsupported(&other_program(xdp_interface.name()))
                }
                _ => xdp_interface.error("bpf(BPF_LINK_CREATE)", error),
            })?;
        let mut receivers = Vec::new();
        for queue in 0..QUEUES_MAX {
            let Some(one) = open_queue(xdp_interface, index, queue, receive_mode, chunk_bytes)?
            else {
                break;
            };
            attachment
                .set_socket(queue, &one.channel.socket)
                .map_err(|error| xdp_interface.error("bpf(BPF_MAP_UPDATE_ELEM)", error))?;
            attachment.state().settle(attached.generation, queue);
            receivers.push(one);
        }
        Ok((attachment, attached, receivers))
    }

    fn notices(&self, attachment: &Attachment, receivers: &[XdpReceiver]) -> Vec<String> {
        let name = &self.config.interface;
        let queues = counted(receivers.len() as u64, "receive queue");
        let threads = if receivers.len() == 1 {
            ""
        } else {
            ", a thread each"
        };
        let program = program_word(attachment.state().is_native);
        let copied = receivers.iter().find_map(|one| one.copied);
        let copy = copy_words(copied, attachment.receive_mode);
        let mut notices = vec![format!(
            "{name}: {queues}{threads}, {program} XDP, {copy}; this host receives nothing from {name} now, and what it sends is not recorded"
        )];
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

    /// Ignores the preferred number: packets of a receive queue without a socket would be missed.
    fn probe(self: Box<Self>, _queues: usize) -> Result<Box<dyn Probed>, SourceError> {
        let xdp_interface = XdpInterface::new(self.config.clone())?;
        let found = xdp_interface.look_up()?;
        let name = xdp_interface.name();
        if !found.flags.is_up() {
            let advice = format!("it is down: sudo ip link set {name} up");
            return Err(xdp_interface.unsupported(&advice));
        }
        let used = HostUse::of(name);
        if used.is_used() && !self.config.take_interface {
            return Err(used.refusal(name, "AF_XDP"));
        }
        let frame_bytes = xdp_interface.interface.mtu(found.index).map(frame_bytes);
        let fits =
            |chunk: u16| frame_bytes.is_some_and(|bytes| bytes <= u32::from(chunk - HEADROOM));
        let chunk_bytes = if fits(SMALL_CHUNK) {
            SMALL_CHUNK
        } else {
            LARGE_CHUNK
        };
        let bytes_max = chunk_bytes - HEADROOM;
        let (takes_nic_stamps, kept) = self
            .config
            .time_stamps
            .prepare_xdp(&xdp_interface.interface, found.index)?;
        let modes = ReceiveMode::all(bytes_max, fits(chunk_bytes), is_linux(JOINS_BUFFERS));
        let (taken, refused) = self.take_best(
            &xdp_interface,
            (found.index, chunk_bytes.into()),
            modes,
            takes_nic_stamps,
        )?;
        let (attachment, attached, mut receivers) = taken;
        let queues = u32::try_from(receivers.len()).unwrap_or(QUEUES_MAX);
        (queues..QUEUES_MAX).for_each(|other| attachment.set_open(other, true));
        let few_spares = open_spares(&xdp_interface, &mut receivers);
        let mut notices = self.notices(&attachment, &receivers);
        notices.extend(used.notices(name));
        notices.extend(few_spares);
        notices.extend(kept.or(refused));
        let (xdp_interface, attachment) = (Arc::new(xdp_interface), Arc::new(attachment));
        let domain = TimeDomain::KernelSoftware;
        let info = InterfaceInfo::new(xdp_interface.name(), LinkType::ETHERNET, domain);
        let near = CpuList::near(Path::new("/sys"), &self.config.interface, found.index);
        let queue = |(queue_index, receivers)| {
            let cpus = self.config.cpus.of_thread(&near);
            let mut live = LiveState::new(
                info.clone(),
                cpus,
                clock::realtime_ns(),
                DELIVERY_DELAY_NS_MAX,
            )
            .with_nic_stamps(attachment.has_nic_stamps());
            live.push_events(notices.drain(..).map(SourceEvent::Notice));
            let attachment = Arc::clone(&attachment);
            let xdp_interface = Arc::clone(&xdp_interface);
            queue::queue(
                live,
                receivers,
                (attachment, attached),
                xdp_interface,
                (queue_index, queues),
            )
        };
        let queues: Vec<_> = (0..).zip(receivers).map(queue).collect();
        let is_proved = |settings: RssSettings| {
            let mut kinds = FlowKind::ALL.iter();
            kinds.all(|kind| settings.splits(*kind).is_none())
        };
        let divided = DividedQueues {
            flows_together: queues.len() == 1
                || rss_settings(&self.config.interface).is_ok_and(is_proved),
            queues,
        };
        Ok(Box::new(ProbedQueues {
            divided,
            attachment,
        }))
    }
}

/// The queues, whose packets go to the host until [`Probed::open`].
#[derive(Debug)]
struct ProbedQueues {
    divided: DividedQueues,
    attachment: Arc<Attachment>,
}

impl Probed for ProbedQueues {
    fn queues(&self) -> usize {
        self.divided.queues()
    }

    fn keeps_flows_together(&self) -> bool {
        self.divided.keeps_flows_together()
    }

    fn link_types(&self) -> Vec<LinkType> {
        self.divided.link_types()
    }

    fn open(self: Box<Self>, offer: &Offer) -> Result<Vec<Box<dyn Queue>>, SourceError> {
        let queues = Box::new(self.divided).open(offer)?;
        (0..)
            .zip(&queues)
            .for_each(|(queue_index, _)| self.attachment.set_open(queue_index, true));
        Ok(queues)
    }
}

/// Opens a socket bound to a queue; `None`: the interface has no such queue.
fn open_queue(
    xdp_interface: &XdpInterface,
    index: i32,
    queue: u32,
    receive_mode: ReceiveMode,
    chunk_bytes: u32,
) -> Result<Option<XdpReceiver>, SourceError> {
    let wanted = xdp_interface.config.buffer_bytes.unwrap_or(BUFFER_BYTES) / chunk_bytes as usize;
    // A power of two, like the rings, and within the kernel's limit for rings.
    let chunks: u32 = 1 << wanted.clamp(64, 1 << 17).ilog2();
    let umem = Umem::new(chunks as usize * chunk_bytes as usize, OWN_BYTES)
        .map_err(|error| xdp_interface.error("mmap", error))?;
    let mut channel = xdp_interface.open_socket(&umem, chunks, chunk_bytes)?;
    let deadline_ns = clock::monotonic_ns() + RECEIVE_QUEUE_WAIT_NS;
    let copied = loop {
        let error = match channel.bind(index, queue, receive_mode.is_native, receive_mode) {
            Ok(copied) => break copied,
            Err(error) => error,
        };
        let now_ns = clock::monotonic_ns();
        match error.raw_os_error() {
            Some(libc::EBUSY) if now_ns < deadline_ns => {
                clock::sleep_until(now_ns + RECEIVE_QUEUE_LOOK_NS);
                // A new socket for each attempt, because the kernel does not document the state of
                // a socket whose bind failed.
                channel = xdp_interface.open_socket(&umem, chunks, chunk_bytes)?;
            }
            // The interface has no such queue. For queue 0, `EINVAL` has another cause.
            Some(libc::EINVAL) if queue > 0 => return Ok(None),
            _ => return Err(xdp_interface.not_bound(queue, error)),
        }
    };
    Ok(Some(XdpReceiver {
        channel,
        spares: Vec::new(),
        umem,
        chunks,
        chunk_bytes,
        copied,
        busy_ns: xdp_interface.config.busy_poll.map(clock::duration_ns),
    }))
}

/// Opens up to [`SPARES`] spare sockets for each queue. Returns a sentence for the user if that
/// fails, for example because of a limit of locked memory.
fn open_spares(xdp_interface: &XdpInterface, receivers: &mut [XdpReceiver]) -> Option<String> {
    let wanted = (SPARES_MAX / receivers.len().max(1)).clamp(1, SPARES);
    for times in 0..wanted {
        for one in receivers.iter_mut() {
            match xdp_interface.open_socket(&one.umem, one.chunks, one.chunk_bytes) {
                Ok(spare) => one.spares.push(spare),
                Err(error) => return Some(few_spares(xdp_interface.name(), times, wanted, &error)),
            }
        }
    }
    None
}

fn few_spares(name: &str, times: usize, wanted: usize, error: &SourceError) -> String {
    let why = match error {
        // Each socket counts the chunks once more against the limit.
        SourceError::Unsupported(_) => "no more memory may be locked (ulimit -l)".to_owned(),
        error => error.to_string(),
    };
    let times = match times {
        0 => return format!("{name}: if it is removed it cannot be taken up again: {why}"),
        1 => "once".to_owned(),
        times => format!("{times} times"),
    };
    format!("{name}: if it is removed it can be taken up again {times}, not {wanted} times: {why}")
}
