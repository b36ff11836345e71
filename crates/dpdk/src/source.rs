//! The [`Source`] implementation: checks that the device may be taken, opens the port, and makes a
//! queue for each thread.

use std::{fs, io, path::Path, sync::Arc};

use retroscope_packet::LinkType;

use super::{
    config::DpdkConfig,
    device::DpdkDevice,
    eal::environment,
    lower::LowerDevice,
    port::{self, OpenPort},
    queue::{self, PortQueues, Stamping},
    stamps::{DeviceClock, DeviceClockReading},
};
use retroscope_capture::{
    CpuList, DividedQueues, HostUse, InterfaceInfo, Probed, Source, SourceError, TimeDomain,
    af_packet::PacketSocket, clock, interface::NamedInterface, quantity::counted,
};

/// A device of DPDK that implements [`Source`].
///
/// A NIC usually needs hugepages. It must be bound to `vfio-pci` or a UIO driver, unless its kernel
/// driver stays active next to DPDK's driver (mlx5). A vdev needs the privileges of the interface
/// below it: `net_af_packet` needs CAP_NET_RAW in the network namespace of the thread that calls
/// [`Source::probe`]. The queues need no privilege.
#[derive(Debug)]
pub struct DpdkSource(pub DpdkConfig);

impl DpdkSource {
    /// Refuses a device that would or may take away an interface that the host itself uses, unless
    /// `take_interface` is set. Otherwise returns notices, for each interface, about the uses that
    /// are or may be cut off.
    fn check_host(&self, device: &DpdkDevice) -> Result<Vec<String>, SourceError> {
        let taken = taken_interfaces(device, Path::new("/sys"));
        let names = match taken {
            Ok(names) => names,
            // The user has permitted to take interfaces that are in use, also unknown interfaces.
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

    /// The kernel interface under a vdev. If promiscuous mode is configured, this function sets it,
    /// because DPDK's drivers would set the interface's flag, which stays when the process is
    /// killed. libpcap sets the mode by itself.
    fn lower(&self, device: &DpdkDevice) -> Result<Option<LowerDevice>, SourceError> {
        let Some(name) = device.value("iface").or(device.value("rx_iface")) else {
            return Ok(None);
        };
        let interface = NamedInterface::new(name)?;
        let is_socket_of = |driver: &str| device.name.starts_with(driver);
        let Ok(index) = interface.index() else {
            // `net_tap` names an interface that does not exist yet, and libpcap has devices that
            // are no interfaces.
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

fn system(device: &DpdkDevice, call: &'static str, error: io::Error) -> SourceError {
    SourceError::system(&device.name, call, error)
}

/// Kernel interfaces that get no more packets after the device is opened: the interface of AF_XDP,
/// and interfaces of NICs whose kernel driver remains next to DPDK's driver.
///
/// Returns an error if such a NIC shows no interface. The interface may be in another network
/// namespace, or sysfs may have folders in between, as with virtio.
fn taken_interfaces(device: &DpdkDevice, sys: &Path) -> io::Result<Vec<String>> {
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

/// Returns `Ok` if the device with this folder of sysfs(5) has no driver, or a driver for programs
/// in user space (VFIO, UIO). Then the device has no interface in any namespace.
fn has_no_interface(folder: &Path) -> io::Result<()> {
    let driver = match fs::read_link(folder.join("driver")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        driver => driver?,
    };
    let driver = driver.file_name().unwrap_or_default().to_string_lossy();
    // `uio_pci_generic` and `igb_uio` are UIO drivers.
    if driver.contains("vfio") || driver.contains("uio") {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "its driver {driver} shows no interface in this network namespace"
    )))
}

/// The origin of the packets' time stamps.
fn stamping(open_port: &OpenPort) -> Stamping {
    if let Some(unit_ns) = open_port.quirks.stamp_ns {
        return Stamping::Epoch(unit_ns);
    }
    match open_port.port.clock().ok().filter(|_| open_port.has_clock) {
        Some(ticks) => Stamping::Device(DeviceClock::new(DeviceClockReading {
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
        let device: DpdkDevice = self.0.device.parse()?;
        let lower = self.lower(&device)?;
        let cut_off = self.check_host(&device)?;
        let environment = environment(&self.0.eal)?;
        let threads = u16::try_from(queues).unwrap_or(u16::MAX).max(1);
        let mut open_port = port::open(environment, &device, &self.0, threads)?;
        let mut notices = vec![sentence(&open_port, &device)];
        notices.append(&mut open_port.notices);
        notices.extend(cut_off);
        let near = CpuList::of_node(Path::new("/sys"), open_port.node);
        let shared = Arc::new(PortQueues::new(environment, open_port, lower));
        let queue = |thread| {
            let stamping = stamping(&shared.open_port);
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
        let threads = usize::from(shared.open_port.threads);
        Ok(Box::new(DividedQueues {
            queues: (0..threads).map(queue).collect(),
            flows_together: threads == 1 || shared.open_port.flows_together,
        }))
    }
}

/// A notice that describes the opened device.
fn sentence(open_port: &OpenPort, device: &DpdkDevice) -> String {
    let queues = counted(open_port.queues.into(), "receive queue");
    let threads = counted(open_port.threads.into(), "thread");
    let host = if open_port.quirks.is_vdev {
        ""
    } else {
        "; this host receives nothing from it now, and what it sends is not recorded"
    };
    format!(
        "{}: driver {}, {queues}, {threads}{host}",
        &device.name, open_port.driver
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
        // A file instead of a folder cannot be read.
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
        // The device looks like this from a network namespace that does not have the interface.
        fs::create_dir(folder.join("net")).unwrap();
        assert!(taken().is_err());
        fs::create_dir(folder.join("net/ens1")).unwrap();
        assert_eq!(taken().unwrap(), ["ens1"]);
    }
}
