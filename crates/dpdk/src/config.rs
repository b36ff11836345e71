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
    /// Bytes of packet buffers for the receive queues of each thread, rounded down to a power of
    /// two of buffers for each queue, 64 to 32,768. `None`: for each receive queue 4096 buffers, or
    /// 512 for a vdev. The device's limits apply in both cases. Each thread gets 1024 buffers more.
    pub buffer_bytes: Option<usize>,
    /// The CPU of each thread. Empty: each thread runs on the CPUs near the device, or on any CPU
    /// if these CPUs are unknown or all CPUs of the machine.
    pub cpus: CpuTurns,
}
