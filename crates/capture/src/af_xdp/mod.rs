//! Live capture through AF_XDP: early in the receive path, the NIC or the kernel puts packets into
//! memory of this process.
//!
//! **AF_XDP takes packets away from the host.** A recorded packet reaches no other socket, bridge
//! or firewall of this machine, and sent packets are not captured. So `retroscope` never chooses
//! AF_XDP by itself, and refuses an interface that the host uses unless the user allows it. AF_XDP
//! is for a dedicated tap or mirror port.
//!
//! - `program`: the XDP program, assembled by hand,
//! - `attachment`: the program's maps and link,
//! - `btf`: finds functions of the kernel that the program calls,
//! - `mode`: how packets arrive, [`XdpMode`],
//! - `config`: user configuration,
//! - `xdp_interface`: an interface by its name, and sockets (`channel`) for the interface,
//! - `sender`: sending, for [`send`](crate::send),
//! - `sys`: bpf(2), sockets, rings and memory shared with the kernel,
//! - `source` and `queue`: the [`Source`](crate::Source) trait.
//!
//! # Memory
//! Each receive queue has a socket and chunks of memory. The program redirects a packet to the
//! socket of its queue. The driver writes the packet into a chunk (zero-copy), or the kernel copies
//! the packet. A burst lends the chunks until the next call of `next`.
//!
//! # Counting
//! `received` is the sum of:
//!
//! - packets for a socket, including packets without a free chunk (`kernel`), and packets longer
//!   than a chunk if a packet has only one chunk (`oversize`),
//! - shunted packets (`shed`),
//! - packets that went on to the host because their receive queue has no socket (`unseen`),
//! - in copy mode, packets for which the NIC had no room (`nic`), from the interface's counter.
//!
//! # An interface that comes back
//! When the interface is up, a queue attaches the program again, spare sockets replace the sockets
//! of the queues, and the counters go on.
//!
//! # What it does not do
//! The engine has no kernel filter, and captures no sent packets and no VLAN tags that the NIC
//! removes. If an interface gets more receive queues, the packets of the new queues go to the host
//! and are counted.
//!
//! # Long frames
//! A frame longer than a chunk arrives in several chunks only if the MTU allows such frames at the
//! start, or if the network stack runs the program. In other cases the engine does not request
//! several chunks: the request makes a driver copy whose zero-copy supports only one buffer per
//! frame.
//!
//! # Minimum kernel version
//! 5.9 for the link, 5.11 for busy polling, 6.6 for frames longer than a chunk, 6.7 for the NIC's
//! time stamps. If `kernel.unprivileged_bpf_disabled` is not 0, 5.19 to attach without privileges
//! to an interface that comes back.

mod attachment;
mod btf;
mod channel;
mod config;
mod mode;
mod program;
mod queue;
mod sender;
mod source;
mod sys;
mod xdp_interface;

pub(crate) use sender::{XdpSender, can_send_on};

pub use config::XdpConfig;
pub use mode::{CopyReason, XdpMode};
pub use source::XdpSource;
