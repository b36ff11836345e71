//! The arguments of `retroscope record` about live interfaces.

use std::path::PathBuf;

use clap::ValueEnum;
use retroscope_capture::af_packet::{Fanout, FanoutMode, LiveConfig, Sides};
use retroscope_capture::{CpuList, CpuTurns};

use crate::units;

/// How live interfaces are captured.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct LiveArgs {
    /// Do not put the interface into promiscuous mode
    #[arg(short = 'p', long = "no-promiscuous-mode")]
    no_promiscuous: bool,

    /// Which packets, seen from this host: received, sent, or both
    #[arg(short = 'Q', long, value_name = "WAY", value_enum, default_value_t = Way::Inout)]
    direction: Way,

    /// How the capture threads of an interface share its packets (af-packet): by flow, NIC queue or CPU
    #[arg(long, value_name = "MODE", value_enum, default_value_t = Spread::Hash)]
    fanout: Spread,

    /// Join fragments of IPv4 before they are shared out (af-packet). Joined packets were never on the wire
    #[arg(long)]
    fanout_defrag: bool,

    /// CPUs for the capture threads of all interfaces, in turns, like 2-5,8; the threads of `TCP@` and `generate:` run anywhere [default: those
    /// near the interface]
    #[arg(long, value_name = "LIST")]
    pub(crate) cpus: Option<CpuList>,

    /// Memory of each capture thread for packets that came and were not read yet [default: 64MiB with af-xdp and pcap; with af-packet by the
    /// speed of the link and the memory of this machine]
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    capture_buffer: Option<u64>,
}

/// `-Q`, in tcpdump's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Way {
    In,
    Out,
    Inout,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Spread {
    /// By flow, both directions alike
    Hash,
    /// By receive queue of the NIC
    Qm,
    /// By the CPU that received the packet
    Cpu,
}

impl LiveArgs {
    /// The CPUs that the threads of all interfaces share.
    pub(crate) fn cpus(&self) -> CpuTurns {
        CpuTurns::new(self.cpus.clone().unwrap_or_default())
    }

    /// How to capture from `interface`, by threads on `cpus`.
    pub(crate) fn config(&self, interface: &str, cpus: CpuTurns, program: PathBuf) -> LiveConfig {
        LiveConfig {
            promiscuous: !self.no_promiscuous,
            buffer_bytes: self
                .capture_buffer
                .map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX)),
            fanout: Fanout {
                mode: match self.fanout {
                    Spread::Hash => FanoutMode::Hash,
                    Spread::Qm => FanoutMode::Queue,
                    Spread::Cpu => FanoutMode::Cpu,
                },
                defragment: self.fanout_defrag,
            },
            sides: match self.direction {
                Way::Inout => Sides::Both,
                Way::In => Sides::In,
                Way::Out => Sides::Out,
            },
            cpus,
            ..LiveConfig::new(interface, program)
        }
    }
}
