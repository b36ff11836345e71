//! Selects the engine that captures from an interface.

use std::time::Duration;

use retroscope_capture::{
    Source, SourceError, TimeStamps,
    af_packet::{Fanout, LiveConfig, LiveSource, Sides},
    af_xdp::{XdpConfig, XdpSource},
    pcap_live::PcapSource,
};
#[cfg(feature = "dpdk")]
use retroscope_dpdk::{DpdkConfig, DpdkSource, EalConfig};

use super::config::{Engine, Settings};

/// Prefix of an interface name that selects DPDK for this device, whatever `engine` says.
#[cfg(feature = "dpdk")]
const DPDK_PREFIX: &str = "dpdk:";

impl Engine {
    /// The name that is shown. `auto` selects and shows af-packet.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Auto | Self::AfPacket => "af-packet",
            Self::AfXdp => "af-xdp",
            Self::Pcap => "pcap",
            Self::Dpdk => "dpdk",
        }
    }
}

impl Settings {
    /// The engine of an interface. The prefix of the interface name may select the engine.
    #[cfg_attr(
        not(feature = "dpdk"),
        expect(unused_variables, reason = "only DPDK's devices have a prefix")
    )]
    pub(crate) fn engine_of(&self, interface: &str) -> Engine {
        #[cfg(feature = "dpdk")]
        if interface.starts_with(DPDK_PREFIX) {
            return Engine::Dpdk;
        }
        self.engine
    }

    /// Creates the source for `config.interface`. `interfaces` are all interfaces of the recording
    /// that an engine captures.
    ///
    /// # Errors
    /// [`SourceError::Usage`]: the engine does not support `config` or is not built in, or no
    /// engine of the recording supports a key.
    pub(crate) fn source(
        &self,
        config: LiveConfig,
        interfaces: &[String],
    ) -> Result<Box<dyn Source>, SourceError> {
        let usage = |message: &str| SourceError::Usage(message.to_owned());
        let engine = self.engine_of(&config.interface);
        let none = |is: fn(Engine) -> bool| !interfaces.iter().any(|one| is(self.engine_of(one)));
        if self.take_interface && none(|one| matches!(one, Engine::AfXdp | Engine::Dpdk)) {
            let dpdk = if cfg!(feature = "dpdk") {
                " and dpdk"
            } else {
                ""
            };
            return Err(usage(&format!(
                "take-interface is for --engine af-xdp{dpdk}: other engines take nothing away"
            )));
        }
        if self.busy_poll.is_some() && none(|one| one == Engine::AfXdp) {
            let dpdk = if cfg!(feature = "dpdk") {
                ", and dpdk always asks"
            } else {
                ""
            };
            return Err(usage(&format!(
                "busy-poll is for --engine af-xdp: other engines wait for the kernel{dpdk}"
            )));
        }
        if config.fanout != Fanout::default()
            && none(|one| matches!(one, Engine::Auto | Engine::AfPacket))
        {
            return Err(usage(
                "fanout and fanout-defrag are for --engine af-packet: others share packets as the NIC does, or have one thread",
            ));
        }
        if config.time_stamps != TimeStamps::Auto
            && none(|one| !matches!(one, Engine::Pcap | Engine::Dpdk))
        {
            return Err(usage(
                "time-stamps is for --engine af-packet and af-xdp: dpdk takes the NIC's stamps if it can, and pcap the kernel's",
            ));
        }
        match engine {
            Engine::Auto | Engine::AfPacket => Ok(Box::new(LiveSource(config))),
            Engine::AfXdp if config.sides == Sides::Out => Err(usage(
                "--engine af-xdp sees received packets only: leave -Q out, or use --engine af-packet",
            )),
            Engine::AfXdp => Ok(Box::new(XdpSource::new(XdpConfig {
                interface: config.interface,
                promiscuous: config.promiscuous,
                take_interface: self.take_interface,
                buffer_bytes: config.buffer_bytes,
                busy_poll: self
                    .busy_poll
                    .map(|us| Duration::from_micros(us.0.0.into())),
                time_stamps: config.time_stamps,
                cpus: config.cpus,
                program: config.program,
            }))),
            Engine::Pcap if config.sides != Sides::Both => Err(usage(
                "--engine pcap takes both directions: leave -Q out, or use --engine af-packet",
            )),
            Engine::Pcap => Ok(Box::new(PcapSource(config))),
            #[cfg(not(feature = "dpdk"))]
            Engine::Dpdk => Err(usage(
                "this program was built without DPDK: cargo build --release -p retroscope-cli --features dpdk (docs/dpdk.md)",
            )),
            #[cfg(feature = "dpdk")]
            Engine::Dpdk if config.sides != Sides::Both => Err(usage(
                "--engine dpdk takes what the device gives: leave -Q out, or use --engine af-packet",
            )),
            #[cfg(feature = "dpdk")]
            Engine::Dpdk => Ok(Box::new(DpdkSource(DpdkConfig {
                device: device(&config.interface).to_owned(),
                eal: EalConfig {
                    arguments: self
                        .eal_args
                        .split_whitespace()
                        .map(str::to_owned)
                        .collect(),
                    devices: interfaces
                        .iter()
                        .filter(|one| self.engine_of(one) == Engine::Dpdk)
                        .map(|one| device(one).to_owned())
                        .collect(),
                },
                promiscuous: config.promiscuous,
                take_interface: self.take_interface,
                buffer_bytes: config.buffer_bytes,
                cpus: config.cpus,
            }))),
        }
    }
}

/// The device name in DPDK's notation: the interface name without the prefix.
#[cfg(feature = "dpdk")]
fn device(interface: &str) -> &str {
    interface.strip_prefix(DPDK_PREFIX).unwrap_or(interface)
}
