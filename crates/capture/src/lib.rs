//! The `Source` trait and its engines: capture files, live interfaces, streams over TCP.
//!
//! A [`Source`] is probed, then opened into [`Queue`]s. Each queue belongs to one thread. A queue
//! lends its frames, one [`Burst`] at a time. The live engines share the code of `live`; files and
//! streams over TCP share the code of `records`. DPDK and the generator are engines in other
//! crates.
//!
//! - [`mod@file`]: pcap and pcapng files,
//! - [`af_packet`]: live interfaces through TPACKET_V3,
//! - [`af_xdp`]: live interfaces that are taken away from the host,
//! - [`pcap_live`]: devices that the system's libpcap opens,
//! - [`pcap_over_ip`]: pcap and pcapng streams over TCP,
//! - [`rss`]: whether a NIC's hash keeps the two directions of a conversation together,
//! - [`send`]: sends bursts out of a live interface.
//!
//! [`quantity`] parses numbers with units.
//!
//! Engines must keep two rules. A watermark covers only bursts before the burst that is being lent.
//! After all stopped queues of a source have returned [`QueueStatus::End`], the sum of their
//! `received`, if known, equals the lent plus the lost frames. Otherwise a [`SourceEvent::Notice`]
//! has reported a difference or a failed stop.

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
mod time_stamps;
mod watermark;

pub use cpus::{CpuList, CpuListError, CpuTurns};
pub use host::{HostUse, UNSEEN};
pub use offer::Offer;
pub use retroscope_bpf::Instruction;
pub use retroscope_packet::{Direction, VlanTag};
pub use source::{
    Burst, DividedQueues, FrameMeta, InputDrops, InterfaceInfo, LentFrame, LossCause,
    OffloadEffects, Probed, Queue, QueueStatus, REST_NS_MAX, SHUNT_CLASSES, Shunt, ShuntedFlow,
    Source, SourceBuffer, SourceError, SourceEvent, SourceStatistics, TimeDomain, WaitTerms,
};
pub use time_stamps::TimeStamps;
