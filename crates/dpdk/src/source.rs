//! The [`Source`] plug: may the device be taken, the port, a queue for each thread.

use std::{fs, io, path::Path, sync::Arc};

use retroscope_packet::LinkType;

use super::{
    config::DpdkConfig,
    device::Device,
    eal::environment,
    lower::LowerDevice,
    port::{self, Opened},
    queue::{self, PortQueues, Stamping},
    stamps::{DeviceClock, Reading},
};
use retroscope_capture::{
    CpuList, DividedQueues, HostUse, InterfaceInfo, Probed, Source, SourceError, TimeDomain,
    af_packet::PacketSocket, clock, interface::NamedInterface, quantity::counted,
};

/// A device of DPDK behind the [`Source`] plug.
///
/// A NIC needs to be bound to `vfio-pci` and hugepages, a vdev what it stands on: `net_af_packet` CAP_NET_RAW in the network
/// namespace of the thread that calls [`Source::probe`]. The queues need no privilege.
#[derive(Debug)]
pub struct DpdkSource(pub DpdkConfig);

impl DpdkSource {
    /// Refuses a device that stands on an interface which the host itself uses, or says of each what is cut off, or may be.
    fn check_host(&self, device: &Device) -> Result<Vec<String>, SourceError> {
        let taken = taken_interfaces(device, Path::new("/sys"));
        let names = match taken {
            Ok(names) => names,
            // What it would take is unknown, and may be in use.
            Err(_) if self.0.take_interface => Vec::new(),
            Err(error) => {
                return Err(SourceError::Usage(format!(
                    "{} may be an interface that this host uses, for /sys/bus/pci/devices does not tell ({error}): say \
                     --set take-interface=true if it may be taken away",
                    &device.name
                )));
            }
        };
        let mut sentences = Vec::new();
        for name in names {
            let used = HostUse::of(&name);
            if used.is_used() && !self.0.take_interface {
                return Err(used.refusal(&name, &device.name));
            }
            sentences.extend(used.notices(&name));
        }
        Ok(sentences)
    }

    /// What a vdev stands on. It is made promiscuous here: DPDK's drivers would set the interface's flag, which stays
    /// when the process is killed. (libpcap does it by itself.)
    fn lower(&self, device: &Device) -> Result<Option<LowerDevice>, SourceError> {
        let Some(name) = device.value("iface").or(device.value("rx_iface")) else {
            return Ok(None);
        };
        let interface = NamedInterface::new(name)?;
        let is_socket_of = |driver: &str| device.name.starts_with(driver);
        let Ok(index) = interface.index() else {
            // `net_tap` names an interface that is still to be made, libpcap knows devices that are no interfaces.
            if is_socket_of("net_af_packet") || is_socket_of("net_af_xdp") {
                let interface = name.to_owned();
                return Err(SourceError::NoInterface { interface });
            }
            return Ok(None);
        };
        let is_ours = self.0.promiscuous && !is_socket_of("net_pcap");
        let promiscuous = is_ours.then(|| -> Result<_, SourceError> {
            let socket =
                PacketSocket::new().map_err(|error| system(device, "socket(AF_PACKET)", error))?;
            socket
                .set_promiscuous(index)
                .map_err(|error| system(device, "setsockopt(PACKET_ADD_MEMBERSHIP)", error))?;
            Ok(socket)
        });
        Ok(Some(LowerDevice {
            interface,
            index,
            _promiscuous: promiscuous.transpose()?,
        }))
    }
}

fn system(device: &Device, call: &'static str, error: io::Error) -> SourceError {
    SourceError::system(&device.name, call, error)
}

/// Interfaces of the kernel that get no more packets when the device is opened: that of AF_XDP, and those of NICs whose driver in
/// the kernel stays beside DPDK's. An error if such a NIC shows none: its interface may be in another network namespace, or there may be
/// other folders between the two, as with virtio.
fn taken_interfaces(device: &Device, sys: &Path) -> io::Result<Vec<String>> {
    if device.is_pci() {
        let folder = sys.join("bus/pci/devices").join(&device.name);
        let names = match fs::read_dir(folder.join("net")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            entries => entries?
                .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
                .collect::<io::Result<_>>()?,
        };
        if names.is_empty() {
            has_no_interface(&folder)?;
        }
        return Ok(names);
    }
    let is_xdp = device.name.starts_with("net_af_xdp");
    let taken = device.value("iface").filter(|_| is_xdp);
    Ok(taken.map(str::to_owned).into_iter().collect())
}

/// Whether the device with this folder of sysfs(5) is left to programs, or to nobody: so it has no interface anywhere.
fn has_no_interface(folder: &Path) -> io::Result<()> {
    let driver = match fs::read_link(folder.join("driver")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        driver => driver?,
    };
    let driver = driver.file_name().unwrap_or_default().to_string_lossy();
    // uio_pci_generic, igb_uio.
    if driver.contains("vfio") || driver.contains("uio") {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "its driver {driver} shows no interface in this network namespace"
    )))
}

/// Whose time the packets get.
fn stamping(opened: &Opened) -> Stamping {
    if let Some(unit_ns) = opened.quirks.stamp_ns {
        return Stamping::Epoch(unit_ns);
    }
    match opened.port.clock().ok().filter(|_| opened.has_clock) {
        Some(ticks) => Stamping::Device(DeviceClock::new(Reading {
            ticks,
            time_ns: clock::realtime_ns(),
        })),
        None => Stamping::Fetch,
    }
}

impl Source for DpdkSource {
    fn name(&self) -> &str {
        &self.0.device
    }

    fn probe(self: Box<Self>, queues: usize) -> Result<Box<dyn Probed>, SourceError> {
        let device: Device = self.0.device.parse()?;
        let lower = self.lower(&device)?;
        let cut_off = self.check_host(&device)?;
        let environment = environment(&self.0.eal)?;
        let threads = u16::try_from(queues).unwrap_or(u16::MAX).max(1);
        let mut opened = port::open(environment, &device, &self.0, threads)?;
        let mut notices = vec![sentence(&opened, &device)];
        notices.append(&mut opened.notices);
        notices.extend(cut_off);
        let near = CpuList::of_node(Path::new("/sys"), opened.node);
        let shared = Arc::new(PortQueues::new(environment, opened, lower));
        let queue = |thread| {
            let stamping = stamping(&shared.opened);
            let (time_domain, time_resolution_ns) = match stamping {
                Stamping::Epoch(unit_ns) if device.value("rx_pcap").is_some() => {
                    (TimeDomain::File, unit_ns.unsigned_abs())
                }
                Stamping::Epoch(unit_ns) => (TimeDomain::KernelSoftware, unit_ns.unsigned_abs()),
                Stamping::Device(_) => (TimeDomain::Nic, 1),
                Stamping::Fetch => (TimeDomain::Fetch, 1),
            };
            let interface = InterfaceInfo {
                time_resolution_ns,
                ..InterfaceInfo::new(&device.name, LinkType::ETHERNET, time_domain)
            };
            let cpus = self.0.cpus.of_thread(&near);
            let notices = std::mem::take(&mut notices);
            let shared = Arc::clone(&shared);
            queue::queue(interface, cpus, notices, shared, thread, stamping)
        };
        let threads = usize::from(shared.opened.threads);
        Ok(Box::new(DividedQueues {
            queues: (0..threads).map(queue).collect(),
            flows_together: threads == 1 || shared.opened.flows_together,
        }))
    }
}

/// What was opened.
fn sentence(opened: &Opened, device: &Device) -> String {
    let queues = counted(opened.queues.into(), "receive queue");
    let threads = counted(opened.threads.into(), "thread");
    let host = if opened.quirks.is_vdev {
        ""
    } else {
        "; this host receives nothing from it now, and what it sends is not recorded"
    };
    format!(
        "{}: driver {}, {queues}, {threads}{host}",
        &device.name, opened.driver
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_that_are_taken_are_found() {
        let sys = tempfile::tempdir().unwrap();
        let net = sys.path().join("bus/pci/devices/0000:03:00.0/net/ens1");
        fs::create_dir_all(net).unwrap();
        let taken = |device: &str| taken_interfaces(&device.parse().unwrap(), sys.path()).unwrap();
        assert_eq!(taken("03:00.0"), ["ens1"]);
        assert_eq!(taken("04:00.0"), [""; 0]);
        assert_eq!(taken("net_af_xdp0,iface=eth0"), ["eth0"]);
        assert_eq!(taken("net_af_packet0,iface=eth0"), [""; 0]);
        // What is no folder cannot be read as one.
        fs::create_dir_all(sys.path().join("bus/pci/devices/0000:05:00.0")).unwrap();
        fs::write(sys.path().join("bus/pci/devices/0000:05:00.0/net"), "").unwrap();
        assert!(taken_interfaces(&"05:00.0".parse().unwrap(), sys.path()).is_err());
    }

    #[test]
    fn a_nic_of_the_kernel_without_an_interface_is_not_known_to_have_none() {
        let sys = tempfile::tempdir().unwrap();
        let folder = sys.path().join("bus/pci/devices/0000:03:00.0");
        fs::create_dir_all(&folder).unwrap();
        let taken = || taken_interfaces(&"03:00.0".parse().unwrap(), sys.path());
        assert_eq!(taken().unwrap(), [""; 0], "no driver has it");
        let bind = |driver: &str| {
            let link = folder.join("driver");
            let _ = fs::remove_file(&link);
            let target = Path::new("../../../bus/pci/drivers").join(driver);
            std::os::unix::fs::symlink(target, link).unwrap();
        };
        for driver in ["vfio-pci", "uio_pci_generic", "igb_uio"] {
            bind(driver);
            assert_eq!(taken().unwrap(), [""; 0], "{driver}");
        }
        bind("mlx5_core");
        let error = taken().unwrap_err().to_string();
        assert!(error.contains("mlx5_core"), "{error}");
        // So it is seen from a network namespace that does not have the interface.
        fs::create_dir(folder.join("net")).unwrap();
        assert!(taken().is_err());
        fs::create_dir(folder.join("net/ens1")).unwrap();
        assert_eq!(taken().unwrap(), ["ens1"]);
    }
}
