//! The traffic generator: FlowScope's experiment as a source.
//!
//! The generator makes background UDP flows between random hosts of 10.0.0.0/16 with random ports
//! in 1000..=10000. After a given time it sends one trigger packet with a special payload to UDP
//! port 60000. This is the set-up of section VI of the FlowScope paper (Emmerich et al., 2017).
//! Three layers:
//!
//! - [`GeneratorConfig`] has the parameters and parses `generate:flows=…,rate=…`.
//! - [`Generator`] makes the frames. It is pure, without a clock, and the same seed gives the same
//!   bytes.
//! - [`GeneratorSource`], a [`Source`](retroscope_capture::Source), paces the frames on the real
//!   clock.
//!
//! # A frame
//! Ethernet, IPv4 without options, UDP, all checksums correct. The payload of a background frame
//! starts with its 64-bit sequence number (big-endian, counted over the whole run). The payload of
//! the trigger frame starts with [`TRIGGER_TEXT`] and then its sequence number. So a check finds
//! every gap. The rest is filler, the same in all frames.
//!
//! # The trigger's flow
//! The trigger packet has the addresses and the source port of the first background flow and takes
//! one slot of the schedule. Its destination port is unique, so `udp port 60000` matches exactly
//! one packet of a run, and `$flow` is the 5-tuple of this packet. The first background flow also
//! matches `host $srcIP and host $dstIP and port $srcPort`. `host $srcIP` matches all packets that
//! the trigger's sender sends and receives.
//!
//! The generator makes no other protocols, no answers, and no mixture of sizes in one run.

mod config;
mod flows;
mod frames;
mod interval;
mod queue;
mod schedule;
mod template;

pub use config::{GeneratorConfig, Rate};
pub use frames::{Generator, TRIGGER_PORT, TRIGGER_TEXT};
pub use queue::GeneratorSource;
