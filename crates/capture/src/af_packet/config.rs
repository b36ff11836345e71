//! User configuration of a live capture.

use std::path::PathBuf;

use crate::{CpuTurns, TimeStamps};

/// Configuration of the capture from an interface.
#[derive(Debug, Clone)]
pub struct LiveConfig {
    /// The interface's name.
    pub interface: String,
    /// Whether to capture frames for other hosts too.
    pub promiscuous: bool,
    /// Kernel memory of each queue in bytes. AF_PACKET rounds the number down to blocks of 256 KiB,
    /// at least 4 blocks; `None`: chosen by the speed of the link and the memory of the machine
    /// (`size`). If the kernel has less memory, the queue gets less (at least 4 blocks), and the
    /// user gets a notice. libpcap gets the number, at most 2 GiB; `None`: 64 MiB.
    pub buffer_bytes: Option<usize>,
    /// How frames are spread over several queues.
    pub fanout: Fanout,
    /// The directions of frames to capture, with AF_PACKET.
    pub sides: Sides,
    /// The origin of time stamps, with AF_PACKET.
    pub time_stamps: TimeStamps,
    /// The CPU of each queue's thread. Empty: each thread runs on the CPUs near the device, or on
    /// any CPU if these CPUs are unknown or all CPUs of the machine.
    pub cpus: CpuTurns,
    /// The program's path, for commands in messages.
    pub program: PathBuf,
}

impl LiveConfig {
    /// Captures all frames that pass `interface`, in promiscuous mode, spread by flow.
    pub fn new(interface: impl Into<String>, program: impl Into<PathBuf>) -> Self {
        Self {
            interface: interface.into(),
            promiscuous: true,
            buffer_bytes: None,
            fanout: Fanout::default(),
            sides: Sides::default(),
            time_stamps: TimeStamps::default(),
            cpus: CpuTurns::default(),
            program: program.into(),
        }
    }
}

/// How the kernel spreads frames over the queues of an interface: `PACKET_FANOUT` of packet(7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fanout {
    /// The property of a frame that selects the queue.
    pub mode: FanoutMode,
    /// Reassembles IPv4 fragments before they are spread, so that the fragments of a datagram reach
    /// the same queue as the flow's other packets (`PACKET_FANOUT_FLAG_DEFRAG`). The capture then
    /// has the reassembled datagram, which was never on the wire.
    pub defragment: bool,
}

/// The property of a frame that selects the queue. The values are the lower byte of the kernel's
/// mode word: `PACKET_FANOUT_HASH`, `_QM`, `_CPU` of `linux/if_packet.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FanoutMode {
    /// The flow, with both directions in the same queue. Fragments, also the first fragment of a
    /// datagram, are spread by their addresses.
    #[default]
    Hash = 0,
    /// The NIC's receive or transmit queue of the frame. If the NIC spreads a flow over several
    /// receive queues, the packets of the flow reach several queues of the capture.
    Queue = 5,
    /// The CPU that received or sent the frame.
    Cpu = 2,
}

/// Directions of frames, seen from this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sides {
    /// Both directions. On the loopback interface, which would show each frame twice, only the
    /// received copy.
    #[default]
    Both,
    /// Received frames, including frames for other hosts.
    In,
    /// Frames that this host sends.
    Out,
}
