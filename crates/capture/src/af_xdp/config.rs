//! How to capture with AF_XDP.

use std::{path::PathBuf, time::Duration};

use crate::CpuTurns;

/// How to capture with AF_XDP.
#[derive(Debug, Clone)]
pub struct XdpConfig {
    /// The interface's name.
    pub interface: String,
    /// Whether to take frames for other hosts too.
    pub promiscuous: bool,
    /// Take the interface's packets away from the host although that uses it ([`HostUse`](crate::host::HostUse)).
    pub take_interface: bool,
    /// Bytes of memory of each receive queue, rounded down to a power of two of chunks; `None`: 64 MiB.
    pub buffer_bytes: Option<usize>,
    /// How long a thread asks the driver for packets itself before it sleeps; `None`: the driver interrupts.
    pub busy_poll: Option<Duration>,
    /// The CPU of each queue's thread; none: those near the device, where the machine has several NUMA nodes.
    pub cpus: CpuTurns,
    /// The program's path, for the commands that a message names.
    pub program: PathBuf,
}
