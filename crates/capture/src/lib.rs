//! The `Source` plug and its engines: capture files, live interfaces, streams over TCP.
//!
//! A [`Source`] is probed, and then opened into [`Queue`]s. Each queue is owned by one thread (a thread may serve several) and lends its
//! frames, in the engine's own memory, one [`Burst`] at a time. An engine is one module here: what it needs from the
//! kernel in `sys`, the ring or buffer it reads, and its `Queue`. Those of live engines share a skeleton, `live`.
//!
//! - [`mod@file`]: pcap and pcapng files,
//! - [`af_packet`]: live interfaces through TPACKET_V3,
//! - [`af_xdp`]: live interfaces that are taken away from the host,
//! - [`pcap_live`]: whatever the system's libpcap opens,
//! - [`pcap_over_ip`]: pcap and pcapng streams over TCP,
//! - [`rss`]: what a NIC's hash does to conversations,
//! - [`send`]: the other direction: bursts out of a live interface.
//!
//! [`quantity`] reads the units that the texts of engines and the options of the program share.
//!
//! All engines keep two rules that the recorder builds on: a watermark never passes the frames of the burst that is
//! being lent, and after a drained stop `received` is what was lent and what was lost.

pub mod af_packet;
pub mod af_xdp;
pub mod clock;
mod cpus;
pub mod file;
mod host;
pub mod interface;
pub mod live;
mod netlink;
mod offer;
pub mod pcap_live;
pub mod pcap_over_ip;
mod poll;
pub mod quantity;
mod records;
pub mod rss;
pub mod send;
mod source;
mod sys;
mod watermark;

pub use cpus::{CpuList, CpuListError, CpuTurns};
pub use host::{HostUse, UNSEEN};
pub use offer::Offer;
pub use retroscope_bpf::Instruction;
pub use retroscope_packet::{Direction, VlanTag};
pub use source::{
    Burst, DividedQueues, FrameMeta, InputDrops, InterfaceInfo, LentFrame, LossCause,
    OffloadEffects, Probed, Queue, QueueStatus, REST_NS_MAX, SHUNT_CLASSES, Shunt, ShuntedFlow,
    Source, SourceBuffer, SourceError, SourceEvent, SourceStatistics, TimeDomain,
};
