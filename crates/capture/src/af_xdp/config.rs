//! Configuration of a capture with AF_XDP.

use std::{path::PathBuf, time::Duration};

use crate::{CpuTurns, TimeStamps};

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
    /// Bytes of packet memory of each receive queue; `None`: 64 MiB. Rounded down to a power of two
    /// of chunks, and limited to 64 to 131,072 chunks.
    pub buffer_bytes: Option<usize>,
    /// How long a thread polls the driver for packets before it sleeps; `None`: the thread does not
    /// poll.
    pub busy_poll: Option<Duration>,
    /// The origin of time stamps.
    pub time_stamps: TimeStamps,
    /// The CPU of each queue's thread. Empty: the CPUs near the device, or any CPU if these are
    /// unknown.
    pub cpus: CpuTurns,
    /// The path of this executable, for commands in messages.
    pub program: PathBuf,
}
