//! Live capture through AF_XDP: packets leave the kernel right behind the driver, into memory of this process.
//!
//! **It takes packets away from the host.** What is recorded reaches no socket, bridge or firewall of this machine, and what
//! the machine sends is not seen. So it is never chosen by itself, and an interface that the host uses is refused. It is for
//! a tap or a mirror port of its own.
//!
//! - `program`: the XDP program, assembled by hand,
//! - `attachment`: the program's maps and link, and [`Shunt`],
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
//! what is shunted (`shed`) and what is longer than a chunk where the kernel cannot spread it over several (`oversize`). In
//! zero-copy mode the NIC drops where no chunk is free, before any program runs: unknown (`nic`).
//!
//! # What it does not do
//! Kernel filters, the other direction, VLAN tags that the NIC takes out, hardware time stamps. When an interface gets more
//! receive queues, packets of the new ones go to the host, and a notice tells.
//!
//! # Minimum kernel version
//! 5.9 for the link, 5.11 for busy polling, 6.6 for frames longer than a chunk.

mod attachment;
mod program;
mod queue;
mod sender;
mod source;
mod sys;

pub(crate) use sender::{XdpSender, suits};

pub use attachment::{Shunt, ShuntedFlow};
pub use source::{XdpConfig, XdpSource};
