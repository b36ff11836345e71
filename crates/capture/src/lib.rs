//! The `Source` plug and its engines: capture files, AF_PACKET, the traffic generator.
//!
//! A [`Source`] opens into [`Queue`]s. Each queue is owned by one thread (a thread may serve several) and lends its
//! frames, in the engine's own memory, one [`Burst`] at a time. An engine is one module here: what it needs from the
//! kernel in `sys`, the ring or buffer it reads, and its `Queue`.

pub mod af_packet;
mod clock;
pub mod file;
pub mod generator;
pub mod send;
mod source;

pub use source::{
    Burst, Direction, Event, Frame, FrameMeta, InterfaceInfo, LossCause, Queue, Source,
    SourceError, SourceStatistics, Status, TimeDomain, VlanTag,
};
