//! Behaviour of drivers that DPDK's description of a device (`rte_eth_dev_info`) does not contain.
//!
//! Taken from the drivers of DPDK 22.11. For a driver that this module does not name, the device's
//! name decides: the driver counts as the driver of a vdev or of a NIC.

use super::device::DpdkDevice;

/// The behaviour of a driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DriverQuirks {
    /// Creates vdevs, which need no memory that a NIC can reach, and whose descriptors usually hold
    /// no waiting packets.
    pub(super) is_vdev: bool,
    /// The driver copies packets into buffers, or writes no bytes: only this process accesses the
    /// buffers.
    pub(super) copies: bool,
    /// Every queue of the device gets packets, whether the recorder receives from the queue or not.
    pub(super) has_fixed_queues: bool,
    /// `imissed` counts the packets that the device could not take.
    pub(super) counts_missed: bool,
    /// The device never runs out of packets.
    pub(super) never_runs_dry: bool,
    /// Time unit of the driver's packet stamps, ns; the stamps count from the UNIX epoch. `None`:
    /// the driver gives no such stamps.
    pub(super) stamp_ns: Option<i64>,
    /// The device may also deliver packets that this host sends.
    pub(super) shows_sent: bool,
}

const NIC: DriverQuirks = DriverQuirks {
    is_vdev: false,
    copies: false,
    has_fixed_queues: false,
    counts_missed: true,
    never_runs_dry: false,
    stamp_ns: None,
    shows_sent: false,
};

impl DriverQuirks {
    /// The quirks of the driver with this name, for a device.
    pub(super) fn of(driver: &str, device: &DpdkDevice) -> Self {
        let copies = Self {
            is_vdev: true,
            copies: true,
            ..NIC
        };
        let has_fixed_queues = Self {
            has_fixed_queues: true,
            shows_sent: true,
            ..copies
        };
        match driver {
            "net_null" => Self {
                never_runs_dry: true,
                ..copies
            },
            "net_ring" => has_fixed_queues,
            // The device has a queue for each of its files or interfaces. The stamps come from
            // libpcap, from which the driver requests microseconds.
            "net_pcap" => {
                let is_endless = device.value("infinite_rx") == Some("1");
                Self {
                    never_runs_dry: is_endless,
                    stamp_ns: (!is_endless).then_some(1000),
                    ..has_fixed_queues
                }
            }
            // The driver never asks the kernel how many packets did not fit its ring.
            "net_af_packet" => Self {
                counts_missed: false,
                ..has_fixed_queues
            },
            _ if device.is_vdev() => Self {
                is_vdev: true,
                counts_missed: false,
                ..NIC
            },
            _ => NIC,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quirks(device: &str) -> DriverQuirks {
        let device: DpdkDevice = device.parse().unwrap();
        let driver = device.name.trim_end_matches(char::is_numeric).to_owned();
        DriverQuirks::of(&driver, &device)
    }

    #[test]
    fn what_is_unknown_is_not_promised() {
        assert!(quirks("net_null0").counts_missed && quirks("net_null0").never_runs_dry);
        assert!(!quirks("net_af_packet0,iface=v0").counts_missed);
        assert!(!quirks("net_tap0").counts_missed);
        assert_eq!(quirks("0000:03:00.0"), NIC);
        // `net_af_xdp` may register its buffers with the kernel, which then writes into the
        // buffers.
        assert!(!quirks("net_af_xdp0,iface=v0").copies && quirks("net_null0").copies);
    }

    #[test]
    fn a_file_that_is_read_for_ever_has_no_end_and_no_stamps() {
        let once = quirks("net_pcap0,rx_pcap=a.pcap");
        assert_eq!((once.never_runs_dry, once.stamp_ns), (false, Some(1000)));
        let forever = quirks("net_pcap0,rx_pcap=a.pcap,infinite_rx=1");
        assert_eq!((forever.never_runs_dry, forever.stamp_ns), (true, None));
    }
}
