//! How to capture from a live interface: what a user chooses.

use std::path::PathBuf;

use crate::CpuTurns;

/// How to capture from an interface.
#[derive(Debug, Clone)]
pub struct LiveConfig {
    /// The interface's name.
    pub interface: String,
    /// Whether to take frames for other hosts too.
    pub promiscuous: bool,
    /// Kernel memory of each queue in bytes, rounded down to blocks of 256 KiB, at least 4 of them; `None`: by the speed of the
    /// link and the memory of the machine (`size`). Less is taken, and said by a notice, where the kernel has no more.
    pub buffer_bytes: Option<usize>,
    /// Which queue gets a frame, where there are several.
    pub fanout: Fanout,
    /// Which frames to take by their way.
    pub sides: Sides,
    /// The CPU of each queue's thread; none: those near the device, where the machine has several NUMA nodes.
    pub cpus: CpuTurns,
    /// The program's path, for the commands that a message names.
    pub program: PathBuf,
}

impl LiveConfig {
    /// Everything that passes `interface`, in promiscuous mode, spread by flow.
    pub fn new(interface: impl Into<String>, program: impl Into<PathBuf>) -> Self {
        Self {
            interface: interface.into(),
            promiscuous: true,
            buffer_bytes: None,
            fanout: Fanout::default(),
            sides: Sides::default(),
            cpus: CpuTurns::default(),
            program: program.into(),
        }
    }
}

/// How the kernel spreads frames over the queues of an interface: `PACKET_FANOUT` of packet(7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fanout {
    /// What decides.
    pub mode: FanoutMode,
    /// Joins fragments of IPv4 before they are spread, so that those of a datagram go where its other packets go
    /// (`PACKET_FANOUT_FLAG_DEFRAG`). What is captured then is the joined datagram, which was never on the wire.
    pub defragment: bool,
}

/// What decides which queue gets a frame. The values are the lower byte of the kernel's mode word: `PACKET_FANOUT_HASH`, `_QM`, `_CPU` of
/// `linux/if_packet.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FanoutMode {
    /// The flow, the same for both directions. Later fragments follow their addresses.
    #[default]
    Hash = 0,
    /// The receive queue of the NIC: its own hash decides, and what it splits stays split.
    Queue = 5,
    /// The CPU that received the frame.
    Cpu = 2,
}

/// Which frames to take, seen from this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sides {
    /// Both. The loopback interface, which would show each frame twice, shows the received one.
    #[default]
    Both,
    /// Received frames, also those for other hosts.
    In,
    /// Frames that this host sends.
    Out,
}
