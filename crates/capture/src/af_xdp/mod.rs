//! LiveState capture through AF_XDP: packets leave the kernel right behind the driver, into memory of this process.
//!
//! **It takes packets away from the host.** What is recorded reaches no socket, bridge or firewall of this machine, and what
//! the machine sends is not seen. So it is never chosen by itself, and an interface that the host uses is refused. It is for
//! a tap or a mirror port of its own.
//!
//! - `program`: the XDP program, assembled by hand,
//! - `attachment`: the program's maps and link,
//! - `mode`: how packets come in, [`XdpMode`],
//! - `taken`: an interface by its name, and sockets (`channel`) for it,
//! - `sender`: the other direction, for [`send`](crate::send),
//! - `sys`: bpf(2), sockets, rings and memory shared with the kernel,
//! - `source` and `queue`: the [`Source`](crate::Source) plug.
//!
//! # Memory
//! Each receive queue of the interface has a socket and chunks of its own, taken once. The program of the interface
//! redirects a packet to the socket of its queue; the driver writes into a chunk (zero-copy), or the kernel copies. A burst
//! lends the chunks, and they go back to the kernel with the next call.
//!
//! # Counting
//! `received` is counted by the program, shed packets included. The kernel counts what found no chunk (`kernel`), the program
//! what is shunted (`shed`), what is longer than a chunk where it is not spread over several (`oversize`), and what went on to
//! the host because its receive queue has no socket (`unseen`). What the NIC had no room for (`nic`) is added to
//! `received`: the interface's counter in copy mode, unknown in zero-copy mode, where the NIC drops if no chunk is free.
//!
//! # An interface that comes back
//! The program is attached to it once it is up, a spare socket takes the place of each queue's, and the counters go on. An interface
//! that the host uses is left to the host.
//!
//! # What it does not do
//! Kernel filters, the other direction, VLAN tags that the NIC takes out, hardware time stamps. When an interface gets more
//! receive queues, packets of the new ones go to the host, are counted, and a notice tells.
//!
//! # Long frames
//! A frame longer than a chunk comes in several only where the MTU allows such frames at the start, or the network stack runs the program:
//! drivers whose zero-copy takes one buffer a frame copy otherwise. An MTU that is raised later is told, and what is too long counted.
//!
//! # Minimum kernel version
//! 5.9 for the link, 5.11 for busy polling, 6.6 for frames longer than a chunk; 5.19 to take up an interface that comes back without
//! privileges, where `kernel.unprivileged_bpf_disabled` is not 0.

mod attachment;
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
