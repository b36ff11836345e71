//! Which engine captures from an interface.

use clap::ValueEnum;
use retroscope_capture::{
    Source, SourceError,
    af_packet::{LiveConfig, LiveSource, Sides},
    af_xdp::{XdpConfig, XdpSource},
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
    /// Right behind the driver, a thread for each receive queue. Takes the interface's packets away from this host
    AfXdp,
    /// The system's libpcap: any device that it opens, one thread each
    Pcap,
}

/// Which engine, and what only some of them ask.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct EngineArgs {
    /// What captures from interfaces
    #[arg(long, value_enum, default_value_t, value_name = "ENGINE")]
    pub(crate) engine: Engine,

    /// Let af-xdp take an interface that has an address or a route: this host is cut off there
    #[arg(long)]
    take_interface: bool,
}

impl Engine {
    /// The name that is shown: what `auto` came to.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Auto | Self::AfPacket => "af-packet",
            Self::AfXdp => "af-xdp",
            Self::Pcap => "pcap",
        }
    }
}

impl EngineArgs {
    /// An interface as a source of this engine.
    ///
    /// # Errors
    /// [`SourceError::Usage`]: the engine cannot do what `config` asks for.
    pub(crate) fn source(&self, config: LiveConfig) -> Result<Box<dyn Source>, SourceError> {
        let usage = |message: &str| SourceError::Usage {
            message: message.to_owned(),
        };
        if self.take_interface && self.engine != Engine::AfXdp {
            return Err(usage(
                "--take-interface is for --engine af-xdp: other engines take nothing away",
            ));
        }
        match self.engine {
            Engine::Auto | Engine::AfPacket => Ok(Box::new(LiveSource::new(config))),
            Engine::AfXdp if config.sides == Sides::Out => Err(usage(
                "--engine af-xdp sees received packets only: leave -Q out, or use --engine af-packet",
            )),
            Engine::AfXdp => Ok(Box::new(XdpSource::new(XdpConfig {
                interface: config.interface,
                promiscuous: config.promiscuous,
                take_interface: self.take_interface,
                buffer_bytes: config.buffer_bytes,
                program: config.program,
            }))),
            Engine::Pcap if config.sides != Sides::Both => Err(usage(
                "--engine pcap takes both directions: leave -Q out, or use --engine af-packet",
            )),
            Engine::Pcap => Ok(Box::new(PcapSource::new(PcapConfig {
                device: config.interface,
                promiscuous: config.promiscuous,
                buffer_bytes: config.buffer_bytes,
                program: config.program,
            }))),
        }
    }
}
