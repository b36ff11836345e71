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
    /// Kernel memory to request for each queue, in bytes. AF_PACKET requests at least 1 MiB,
    /// libpcap at most 2 GiB. `None`: AF_PACKET chooses by the link's speed and the machine's
    /// memory; libpcap requests 64 MiB.
    pub buffer_bytes: Option<usize>,
    /// How frames are spread over several queues.
    pub fanout: Fanout,
    /// The directions of frames to capture, with AF_PACKET.
    pub sides: Sides,
    /// The origin of time stamps, with AF_PACKET.
    pub time_stamps: TimeStamps,
    /// The CPU of each queue's thread. Empty: the CPUs near the device, or any CPU if these are
    /// unknown.
    pub cpus: CpuTurns,
    /// This executable's path, for commands in messages.
    pub program: PathBuf,
}

impl LiveConfig {
    /// A configuration with defaults: promiscuous, both directions, spread by flow.
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
    /// Reassembles IPv4 fragments before they are spread (`PACKET_FANOUT_FLAG_DEFRAG`). The capture
    /// has the reassembled datagram instead of the fragments.
    pub defragment: bool,
}

/// The property of a frame that selects the queue, with the values of the kernel's
/// `PACKET_FANOUT_HASH`, `_QM` and `_CPU`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FanoutMode {
    /// The flow, with both directions in the same queue. Fragments are spread by their addresses.
    #[default]
    Hash = 0,
    /// The NIC's receive or transmit queue of the frame. The packets of a flow may reach several
    /// queues of the capture.
    Queue = 5,
    /// The CPU that processes the frame.
    Cpu = 2,
}

/// Directions of frames, seen from this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sides {
    /// Both directions; on the loopback interface only received frames.
    #[default]
    Both,
    /// Received frames, including frames for other hosts.
    In,
    /// Frames that this host sends.
    Out,
}
