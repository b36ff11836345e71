//! Which engine captures from an interface.

use clap::ValueEnum;
use retroscope_capture::{
    Source, SourceError,
    af_packet::{LiveConfig, LiveSource, Sides},
    pcap_live::{PcapConfig, PcapSource},
};

/// The capture engine of live interfaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Engine {
    /// af-packet
    #[default]
    Auto,
    /// The kernel's packet sockets: every interface, several threads, nothing taken away from the host
    AfPacket,
    /// The system's libpcap: any device that it opens, one thread each
    Pcap,
}

impl Engine {
    /// The name that is shown: what `auto` came to.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Auto | Self::AfPacket => "af-packet",
            Self::Pcap => "pcap",
        }
    }

    /// An interface as a source of this engine.
    ///
    /// # Errors
    /// [`SourceError::Usage`]: the engine cannot do what `config` asks for.
    pub(crate) fn source(self, config: LiveConfig) -> Result<Box<dyn Source>, SourceError> {
        match self {
            Self::Auto | Self::AfPacket => Ok(Box::new(LiveSource::new(config))),
            Self::Pcap if config.sides != Sides::Both => Err(SourceError::Usage {
                message:
                    "--engine pcap takes both directions: leave -Q out, or use --engine af-packet"
                        .to_owned(),
            }),
            Self::Pcap => Ok(Box::new(PcapSource::new(PcapConfig {
                device: config.interface,
                promiscuous: config.promiscuous,
                buffer_bytes: config.buffer_bytes,
                program: config.program,
            }))),
        }
    }
}
