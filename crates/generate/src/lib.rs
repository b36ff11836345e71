//! The traffic generator: FlowScope's experiment as a source.
//!
//! Background UDP flows between random hosts of 10.0.0.0/16 with random ports in 1000..=10000, and one trigger packet to
//! UDP port 60000 with its own payload after a given time: the set-up of section VI of the FlowScope paper (Emmerich et
//! al., 2017). Three layers:
//!
//! - [`GeneratorConfig`] says what to generate and parses `generate:flows=…,rate=…`,
//! - [`Generator`] makes the frames: pure, the same seed gives the same bytes, no clock,
//! - [`GeneratorSource`], a [`Source`](retroscope_capture::Source), paces them on the real clock.
//!
//! # A frame
//! Ethernet, IPv4 without options, UDP, all checksums right. The payload of a background frame starts with its 64-bit
//! sequence number (big-endian, counted over the whole run), that of the trigger frame with [`TRIGGER_TEXT`] and then its
//! sequence number, so that a check finds every gap. The rest is filler, the same in all frames.
//!
//! # The trigger's flow
//! The trigger packet has the addresses and the source port of the first background flow and takes one slot of the
//! schedule. Its destination port is its own, so `udp port 60000` matches exactly one packet of a run, and `$flow` is
//! the 5-tuple of this one packet. The flow around it is `host $srcIP and host $dstIP and port $srcPort`, and
//! `host $srcIP` is everything its sender says and hears.
//!
//! It makes no other protocols, no answers and no sizes mixed in one run.

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
