//! Configuration of a capture with DPDK.

use super::eal::EalConfig;
use retroscope_capture::CpuTurns;

/// Configuration of a capture with DPDK.
#[derive(Debug, Clone)]
pub struct DpdkConfig {
    /// The device and its arguments, as after `--vdev` or `-a` of DPDK's programs:
    /// `net_pcap0,rx_pcap=a.pcap`, `0000:03:00.0`.
    pub device: String,
    /// How to start DPDK's environment. Ignored if this process has already started the
    /// environment.
    pub eal: EalConfig,
    /// Whether to capture frames for other hosts too.
    pub promiscuous: bool,
    /// Take an interface's packets away from the host even if the host uses the interface
    /// ([`HostUse`](retroscope_capture::HostUse)).
    pub take_interface: bool,
    /// Bytes of packet buffers of each thread. `None`: for each receive queue 4096 buffers, or 512
    /// for a vdev, within the device's limits.
    pub buffer_bytes: Option<usize>,
    /// The CPU of each thread. Empty: the CPUs near the device.
    pub cpus: CpuTurns,
}
