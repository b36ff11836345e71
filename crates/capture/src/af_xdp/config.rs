//! Configuration of a capture with AF_XDP.

use std::{path::PathBuf, time::Duration};

use crate::CpuTurns;

/// Configuration of a capture with AF_XDP.
#[derive(Debug, Clone)]
pub struct XdpConfig {
    /// The interface's name.
    pub interface: String,
    /// Whether to capture frames for other hosts too.
    pub promiscuous: bool,
    /// Take the interface's packets away from the host even if the host uses the interface
    /// ([`HostUse`](crate::host::HostUse)).
    pub take_interface: bool,
    /// Bytes of memory of each receive queue, rounded down to a power of two of chunks, from 64 to
    /// 131,072 chunks; `None`: 64 MiB.
    pub buffer_bytes: Option<usize>,
    /// How long a thread polls the driver for packets before it sleeps; `None`: the driver
    /// interrupts.
    pub busy_poll: Option<Duration>,
    /// The CPU of each queue's thread. Empty: the CPUs near the device, if the machine has several
    /// NUMA nodes.
    pub cpus: CpuTurns,
    /// The program's path, for commands in messages.
    pub program: PathBuf,
}
