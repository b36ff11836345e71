//! LiveState capture through AF_PACKET with TPACKET_V3: a ring of blocks that the kernel fills and this process reads.
//!
//! - `sys`: system calls and the shared memory,
//! - `block`: one block's bytes to frame descriptors,
//! - `ring`: whose turn each block is,
//! - `size`: how much memory it gets,
//! - `interface`: what interfaces there are, and which of them can be recorded,
//! - `config`: what a user chooses,
//! - `classic` and `kernel_filter`: the programs in front of the ring,
//! - `packet_interface`: an interface by its name, and how sockets are made to receive from it,
//! - `source` and `queue`: the [`Source`](crate::Source) plug,
//! - `nic`: what was lost before the kernel saw it,
//! - `watermark`: why what an idle queue promises holds.
//!
//! # Counting
//! `received` is the kernel's `tp_packets`, which includes its drops (`tp_drops`: no free block), and what the NIC had no room for.
//! The kernel's two are reset by reading and added up here; the NIC's are of the whole interface, and the first queue has them. After [`Queue::stop`](crate::Queue::stop) the queue ends when frames lent and drops add up
//! to `received`.
//!
//! # What it does not do
//! Hardware time stamps, and the `any` device, whose frames have no common link type.
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
