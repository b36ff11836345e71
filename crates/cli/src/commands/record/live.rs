//! Keys about the capture of live interfaces.

use std::path::PathBuf;

use retroscope_capture::{
    CpuTurns, TimeStamps,
    af_packet::{Fanout, FanoutMode, LiveConfig, Sides},
};

use super::config::{Direction, Settings, Spread, StampOrigin};

impl Settings {
    /// The CPUs that the threads of all interfaces share.
    pub(crate) fn cpu_turns(&self) -> CpuTurns {
        CpuTurns::new(self.cpus.clone().map(|it| it.0).unwrap_or_default())
    }

    /// How to capture from `interface`, by threads on `cpus`.
    pub(crate) fn live(&self, interface: &str, cpus: CpuTurns, program: PathBuf) -> LiveConfig {
        LiveConfig {
            promiscuous: !self.no_promiscuous_mode,
            buffer_bytes: self
                .capture_buffer
                .map(|bytes| usize::try_from(bytes.0.0).unwrap_or(usize::MAX)),
            fanout: Fanout {
                mode: match self.fanout {
                    Spread::Hash => FanoutMode::Hash,
                    Spread::Qm => FanoutMode::Queue,
                    Spread::Cpu => FanoutMode::Cpu,
                },
                defragment: self.fanout_defrag,
            },
            sides: match self.direction {
                Direction::Inout => Sides::Both,
                Direction::In => Sides::In,
                Direction::Out => Sides::Out,
            },
            time_stamps: match self.time_stamps {
                StampOrigin::Auto => TimeStamps::Auto,
                StampOrigin::Hardware => TimeStamps::Hardware,
                StampOrigin::Kernel => TimeStamps::Kernel,
            },
            cpus,
            ..LiveConfig::new(interface, program)
        }
    }
}
