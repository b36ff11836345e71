//! Live capture through AF_PACKET with TPACKET_V3: the kernel fills a ring of blocks, and this
//! process reads the blocks.
//!
//! - `sys`: system calls and the shared memory,
//! - `block`: parses the bytes of a block into frame descriptors,
//! - `ring`: ownership of the blocks,
//! - `size`: how much memory a ring gets,
//! - `interface`: the list of interfaces, and which of them can be recorded,
//! - `config`: user configuration,
//! - `classic` and `kernel_filter`: the BPF programs in front of the ring,
//! - `packet_interface`: an interface by its name, and binding sockets to the interface,
//! - `source` and `queue`: the [`Source`](crate::Source) trait,
//! - `nic`: losses before the kernel's taps,
//! - `watermark`: why a queue's watermark holds.
//!
//! # Counting
//! `received` is the kernel's `tp_packets`, which includes its drops (`tp_drops`), plus the known
//! drops of the NIC in the first queue. A reading resets the kernel's counters, so the engine adds
//! the readings up.
//!
//! # What it does not do
//! Hardware time stamps of sent packets. The `any` device, whose frames have no common link type.
//!
//! # Minimum kernel version
//! 3.14 for VLAN identifiers other than 0x8100; 4.12 for several queues.

mod block;
mod classic;
mod config;
mod interface;
mod kernel_filter;
mod nic;
mod packet_interface;
mod queue;
mod ring;
mod size;
mod source;
pub(crate) mod sys;
mod watermark;

pub(crate) use classic::REJECT_ALL;
pub use config::{Fanout, FanoutMode, LiveConfig, Sides};
pub use interface::{
    InterfaceSummary, Offloads, Reception, interfaces, offloads, reception, rss_settings,
};
pub(crate) use nic::InterfaceCounters;
pub(crate) use packet_interface::{permission, receive_from};
pub use source::LiveSource;
pub use sys::PacketSocket;
pub(crate) use watermark::RETIRE_MS;
pub use watermark::WATERMARK_BEHIND_NS_MAX;
