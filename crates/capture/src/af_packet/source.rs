//! Opens a live interface: sockets, rings, fanout.

use std::{path::Path, sync::Arc};

use super::{
    classic,
    config::{FanoutMode, LiveConfig, Sides},
    interface::link_type,
    kernel_filter,
    packet_interface::{PacketInterface, SocketWithRing},
    queue,
    sys::PacketSocket,
};
use crate::{
    CpuList, Instruction, InterfaceInfo, Offer, Probed, Queue, Source, SourceError, TimeDomain,
    interface::InterfaceSnapshot,
};
use retroscope_packet::LinkType;

/// Spare sockets for each queue of a shared interface.
const SPARES: usize = 4;
/// Largest number of spare sockets of all queues together.
const SPARES_MAX: usize = 64;

/// A live interface that implements [`Source`].
///
/// Probing needs CAP_NET_RAW, and CAP_NET_ADMIN to turn on the NIC's time stamps. The queues need
/// no privilege. Captures in the network namespace of the thread that calls [`Source::probe`].
#[derive(Debug)]
pub struct LiveSource(pub LiveConfig);

impl Source for LiveSource {
    fn name(&self) -> &str {
        &self.0.interface
    }

    /// Makes `queues` sockets (1 to 256) that share the interface and reject all packets until
    /// [`Probed::open`]. Before Linux 6.13, makes one socket if the interface is down: such a
    /// kernel then refuses a fanout group.
    fn probe(self: Box<Self>, queues: usize) -> Result<Box<dyn Probed>, SourceError> {
        let queues = queues.clamp(1, 256);
        let bound = match BoundSockets::new(&self.0, queues) {
            Err(SourceError::System { error, .. })
                if queues > 1 && error.raw_os_error() == Some(libc::EINVAL) =>
            {
                BoundSockets::new(&self.0, 1)
            }
            bound => bound,
        };
        Ok(Box::new(bound?))
    }
}

/// An interface whose sockets are in its receive path, and still reject all packets.
#[derive(Debug)]
struct BoundSockets {
    packet_interface: PacketInterface,
    found: InterfaceSnapshot,
    link_type: LinkType,
    opened: Vec<SocketWithRing>,
}

impl BoundSockets {
    fn new(config: &LiveConfig, queues: usize) -> Result<Self, SourceError> {
        let mut packet_interface = PacketInterface::new(config.clone(), queues)?;
        let found = packet_interface.look_up()?;
        if config.sides == Sides::Both && found.flags.is_loopback() {
            // The loopback interface would show each frame twice.
            packet_interface.config.sides = Sides::In;
        }
        if queues > 1 {
            let spares = (SPARES * queues).min(SPARES_MAX);
            let spares = (0..spares).map(|_| packet_interface.open_socket());
            packet_interface.share(spares.collect::<Result<_, _>>()?);
        }
        let opened: Vec<_> = (0..queues)
            .map(|_| {
                let socket = packet_interface.open_socket()?;
                packet_interface.with_ring(socket)
            })
            .collect::<Result<_, _>>()?;
        let time_stamps = packet_interface.config.time_stamps;
        packet_interface.takes_nic_stamps = time_stamps.prepare(&packet_interface.interface)?;
        for (socket, ..) in &opened {
            packet_interface.bind_rejecting(socket, &found)?;
        }
        Ok(Self {
            packet_interface,
            found,
            // `look_up` has checked that the interface has a link type.
            link_type: link_type(found.hardware_type).unwrap_or(LinkType::ETHERNET),
            opened,
        })
    }
}

impl Probed for BoundSockets {
    fn queues(&self) -> usize {
        self.opened.len()
    }

    /// The kernel's hash is the same in both directions (`__skb_get_hash_symmetric` of Linux).
    fn keeps_flows_together(&self) -> bool {
        self.opened.len() == 1 || self.packet_interface.config.fanout.mode == FanoutMode::Hash
    }

    fn link_types(&self) -> Vec<LinkType> {
        vec![self.link_type]
    }

    /// Accepts only a filter that the kernel and the recorder decide alike (`kernel_filter`).
    fn open(self: Box<Self>, offer: &Offer) -> Result<Vec<Box<dyn Queue>>, SourceError> {
        let Self {
            mut packet_interface,
            found,
            link_type,
            opened,
        } = *self;
        let (socket, ..) = &opened[0];
        choose_program(&mut packet_interface, socket, kernel_part(offer, link_type));
        for (socket, ..) in &opened {
            packet_interface.start_accepting(socket)?;
        }
        let info = InterfaceInfo::new(
            packet_interface.name(),
            link_type,
            TimeDomain::KernelSoftware,
        );
        let near = CpuList::near(Path::new("/sys"), packet_interface.name(), found.index);
        let packet_interface = Arc::new(packet_interface);
        let queue = |(number, opened)| {
            let cpus = packet_interface.config.cpus.of_thread(&near);
            let (packet_interface, info) = (Arc::clone(&packet_interface), info.clone());
            queue::queue(packet_interface, found, info, number == 0, cpus, opened)
        };
        Ok(opened.into_iter().enumerate().map(queue).collect())
    }
}

/// The part of an offer that the kernel can do: the socket's program, which also truncates frames,
/// and whether the program includes the offered filter. A program of `None` accepts all frames
/// whole.
fn kernel_part(offer: &Offer, link_type: LinkType) -> (Option<Vec<Instruction>>, bool) {
    // Four bytes more for a tag that is put back, and one by which the recorder detects truncation.
    let keep = match offer.snaplen {
        0 => u32::MAX,
        snaplen => snaplen.saturating_add(5),
    };
    let mut programs = offer.programs.iter();
    match programs.find(|(of, _)| *of == link_type) {
        _ if offer.is_filtered_behind => (None, false),
        Some((_, filter)) => {
            let program = kernel_filter::for_socket(filter, link_type == LinkType::ETHERNET, keep);
            let is_filtered = program.is_some();
            (program, is_filtered)
        }
        // The recorder filters frames of this link type, and needs whole frames.
        None if !offer.programs.is_empty() => (None, false),
        None => (
            (offer.snaplen > 0).then(|| vec![Instruction::ret(keep)]),
            false,
        ),
    }
}

/// Sets the program of the interface. If the kernel refuses the filter, user space filters.
fn choose_program(
    packet_interface: &mut PacketInterface,
    socket: &PacketSocket,
    (program, is_filtered): (Option<Vec<Instruction>>, bool),
) {
    let sides = packet_interface.config.sides;
    packet_interface.program = classic::program(sides, program.as_deref());
    packet_interface.is_filtered = is_filtered;
    let program = packet_interface.program.as_deref();
    let is_refused = program.is_some_and(|program| socket.attach_filter(program).is_err());
    if is_refused && is_filtered {
        packet_interface.program = classic::program(sides, None);
        packet_interface.is_filtered = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(interface: &str) -> SourceError {
        let config = LiveConfig::new(interface, "/usr/bin/retroscope");
        Box::new(LiveSource(config)).open(1).unwrap_err()
    }

    #[test]
    fn what_is_no_interface_is_refused() {
        assert!(
            matches!(open("any"), SourceError::Unsupported(message) if !message.contains('\n'))
        );
        for name in ["no-such-if", ""] {
            assert!(
                matches!(open(name), SourceError::NoInterface { interface } if interface == name)
            );
        }
    }

    #[test]
    fn the_kernel_cuts_only_what_nobody_wants_whole() {
        let ret = |k| vec![Instruction::ret(k)];
        let mut offer = Offer {
            snaplen: 96,
            ..Offer::default()
        };
        let cut = (Some(ret(101)), false);
        assert_eq!(kernel_part(&offer, LinkType::ETHERNET), cut);
        offer.is_filtered_behind = true;
        assert_eq!(kernel_part(&offer, LinkType::ETHERNET), (None, false));
        offer.is_filtered_behind = false;
        offer.programs.push((LinkType::RAW, ret(262_144)));
        let (program, is_filtered) = kernel_part(&offer, LinkType::RAW);
        assert_eq!(program.unwrap().last(), Some(&Instruction::ret(101)));
        assert!(is_filtered);
        assert_eq!(kernel_part(&offer, LinkType::ETHERNET), (None, false));
        // If user space must decide, it gets whole frames.
        offer.programs[0].1 = vec![Instruction {
            code: 0x16,
            ..Instruction::ret(0)
        }];
        assert_eq!(kernel_part(&offer, LinkType::RAW), (None, false));
    }
}
