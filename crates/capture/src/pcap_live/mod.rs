//! libpcap as an engine: any device that the system's libpcap opens.
//!
//! Where the other engines know one interface of the kernel each, this one knows none: PF_RING, netmap, DAG and SNF bring
//! libpcap builds of their own (none was tried), and `any`, `usbmon0` or `bluetooth0` are devices of the common one.
//!
//! - `sys`: the C library,
//! - `packet_buffer`: where its packets wait,
//! - `queue`: waiting, watermark, counters, drained stop, interfaces that come and go,
//! - `link_type`: its names for link-layer headers.
//!
//! # Copies
//! One into a buffer of 128 KiB that stays in the cache, one from there into the recorder's ring. libpcap lends a packet
//! during its callback only: its AF_PACKET code gives a block back to the kernel before pcap_dispatch(3PCAP) returns, so
//! that a burst that was lent without a copy could change while it is read. `af-packet` copies once.
//!
//! # Counting
//! pcap_stats(3PCAP) leaves its meaning to the platform. On Linux packet sockets `ps_recv` counts what passed, with what
//! `ps_drop` counts: packets for which the kernel's ring had no room. `ps_ifdrop` is what the NIC missed, read from sysfs,
//! known only where that shows this network namespace. For other devices `received` is unknown, and what is dropped is
//! what they say.
//!
//! # What it does not do
//! Kernel filters: libpcap compiles them for frames whose VLAN tag was taken out, which is another language than that of
//! frames on the wire. The recorder filters in user space, and counts what it refuses. One queue for a device: libpcap has
//! no fanout. The direction of a frame is not told.

mod link_type;
mod packet_buffer;
mod queue;
mod sys;

use std::{
    ffi::{CString, c_int},
    io,
    path::Path,
};

use retroscope_packet::LinkType;

use self::sys::{ActivateError, PcapHandle};
use crate::{
    CpuList, InterfaceInfo, Offer, Probed, Queue, Source, SourceError, TimeDomain,
    af_packet::{
        LiveConfig, permission,
        sys::{InterfaceQuery, PacketSocket},
    },
};

/// Kernel memory unless the user says otherwise: libpcap's own 2 MiB hold 8 of its blocks.
const BUFFER_BYTES: c_int = 64 << 20;

/// A device of the system's libpcap behind the [`Source`] plug.
///
/// Opening needs what libpcap needs, CAP_NET_RAW for network interfaces; the queue needs no privilege. It captures in the
/// network namespace of the thread that calls [`Source::probe`] and opens it.
#[derive(Debug)]
pub struct PcapSource(pub LiveConfig);

impl PcapSource {
    fn link_type(&self, handle: &PcapHandle) -> Result<LinkType, SourceError> {
        let dlt = handle.dlt();
        link_type::of_dlt(dlt).ok_or_else(|| {
            SourceError::Unsupported(format!(
                "cannot record on {}: its link type, DLT {dlt}, has no number in files",
                self.0.interface
            ))
        })
    }

    fn activate(&self) -> Result<(PcapHandle, Option<String>), SourceError> {
        let device = &self.0.interface;
        let no_interface = || SourceError::NoInterface {
            interface: device.clone(),
        };
        let name = CString::new(device.as_str()).map_err(|_| no_interface())?;
        let buffer_bytes = self.0.buffer_bytes.map_or(BUFFER_BYTES, |bytes| {
            c_int::try_from(bytes).unwrap_or(c_int::MAX)
        });
        let handle = PcapHandle::open(&name, self.0.promiscuous, buffer_bytes);
        handle.map_err(|error| match error {
            ActivateError::NoDevice => no_interface(),
            ActivateError::Permission => permission("record on", device, &self.0.program),
            ActivateError::NotUp => SourceError::InterfaceDown {
                interface: device.clone(),
            },
            ActivateError::Other(message) => {
                SourceError::system(device, "pcap_activate", io::Error::other(message))
            }
        })
    }
}

impl Source for PcapSource {
    fn name(&self) -> &str {
        &self.0.interface
    }

    /// One queue, whatever `queues` says. It is closed again: packets that came before the second phase would be old by then.
    fn probe(self: Box<Self>, queues: usize) -> Result<Box<dyn Probed>, SourceError> {
        let (handle, _) = self.activate()?;
        Ok(Box::new(PcapProbe {
            link_type: self.link_type(&handle)?,
            is_alone: queues > 1,
            source: *self,
        }))
    }
}

/// A device that could be activated.
#[derive(Debug)]
struct PcapProbe {
    source: PcapSource,
    link_type: LinkType,
    /// More threads were wanted.
    is_alone: bool,
}

impl Probed for PcapProbe {
    fn queues(&self) -> usize {
        1
    }

    fn link_types(&self) -> Vec<LinkType> {
        vec![self.link_type]
    }

    fn open(self: Box<Self>, _offer: &Offer) -> Result<Vec<Box<dyn Queue>>, SourceError> {
        let (handle, warning) = self.source.activate()?;
        let config = &self.source.0;
        let device = &config.interface;
        let socket = handle.descriptor().and_then(PacketSocket::of);
        let interface = InterfaceInfo {
            name: device.clone(),
            link_type: self.source.link_type(&handle)?,
            snaplen: u32::try_from(handle.snaplen()).unwrap_or(0),
            time_domain: if socket.is_some() {
                TimeDomain::KernelSoftware
            } else {
                TimeDomain::Foreign
            },
            time_resolution_ns: if handle.is_nanoseconds() { 1 } else { 1000 },
        };
        let mut notices = Vec::new();
        if let Some(warning) = warning {
            notices.push(format!("{device}: libpcap warns: {warning}"));
        }
        if self.is_alone {
            notices.push(format!(
                "{device}: libpcap has one queue, so one thread captures"
            ));
        }
        let cpus = config.cpus.of_thread(&near(device));
        let promiscuous = config.promiscuous;
        let queue = queue::queue(handle, interface, socket, promiscuous, cpus, notices);
        Ok(vec![queue])
    }
}

/// The CPUs near a device that is a network interface; none where it is not.
fn near(device: &str) -> CpuList {
    let index = InterfaceQuery::new().and_then(|query| query.index(device));
    index.map_or_else(
        |_| CpuList::default(),
        |index| CpuList::near(Path::new("/sys"), device, index),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(device: &str) -> SourceError {
        let config = LiveConfig::new(device, "retroscope");
        Box::new(PcapSource(config)).open(1).unwrap_err()
    }

    #[test]
    fn refusals_are_one_sentence() {
        // Without privileges libpcap says that before it looks for the device.
        for device in ["no-such-if", "nul\0", ""] {
            let error = open(device);
            assert!(
                matches!(
                    error,
                    SourceError::NoInterface { .. } | SourceError::Permission(_)
                ),
                "{device:?}: {error:?}"
            );
        }
    }
}
