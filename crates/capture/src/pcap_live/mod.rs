//! libpcap as an engine: devices that the system's libpcap opens.
//!
//! libpcap opens devices such as `any`, `usbmon0` or `bluetooth0`. The libpcap builds for PF_RING,
//! netmap, DAG and SNF were not tested.
//!
//! - `sys`: the C library,
//! - `packet_buffer`: the buffer for delivered packets,
//! - `queue`: waiting, watermark, counters, drained stop, interfaces that come and go,
//! - `link_type`: converts libpcap's numbers of link-layer header types to the numbers of files.
//!
//! # Copies
//! libpcap lends a packet only during its callback. So the engine copies the packet into a buffer
//! of about 128 KiB, from which the recorder copies the packet into the ring.
//!
//! # Counting
//! The meaning of pcap_stats(3PCAP) depends on the platform. On Linux packet sockets `ps_recv`
//! counts accepted packets plus `ps_drop`. `ps_drop` counts packets for which the kernel's ring had
//! no room. `ps_ifdrop` is from sysfs, which may show another network namespace, so the engine
//! reads this number by netlink. For other devices `received` is unknown.
//!
//! # What it does not do
//! The engine sets no kernel filter, because libpcap compiles filters for frames without the
//! outermost VLAN tag. One device has one queue, because libpcap has no fanout. The direction of
//! frames is unknown.

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

/// Kernel memory unless the user chooses another size. libpcap's default of 2 MiB holds 8 of its
/// blocks.
const BUFFER_BYTES: c_int = 64 << 20;

/// A device of the system's libpcap that implements [`Source`].
///
/// Opening needs the privileges that libpcap needs: CAP_NET_RAW for network interfaces. The queue
/// needs no privilege. The source captures in the network namespace of the thread that calls
/// [`Source::probe`] and opens the source.
#[derive(Debug)]
pub struct PcapSource(pub LiveConfig);

impl PcapSource {
    fn link_type(&self, handle: &PcapHandle) -> Result<LinkType, SourceError> {
        let dlt = handle.dlt();
        link_type::of_dlt(dlt).ok_or_else(|| {
            SourceError::Unsupported(format!(
                "cannot record on {}: its link type, DLT {dlt}, has no number in capture files",
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

    /// Closes the handle again: packets that arrive before the second phase would be old by then.
    fn probe(self: Box<Self>, queues: usize) -> Result<Box<dyn Probed>, SourceError> {
        let (handle, _) = self.activate()?;
        Ok(Box::new(PcapProbe {
            link_type: self.link_type(&handle)?,
            is_alone: queues > 1,
            source: *self,
        }))
    }
}

#[derive(Debug)]
struct PcapProbe {
    source: PcapSource,
    link_type: LinkType,
    /// The caller preferred several threads.
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
        // Without privileges, libpcap may report these before it looks up the device.
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
