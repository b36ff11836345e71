//! Kernel interfaces of the engine: bpf(2), XDP sockets, and the memory that this process shares
//! with the kernel.
//!
//! The module has the engine's own unsafe code, behind safe signatures. Values are from
//! `linux/bpf.h` and `linux/if_xdp.h` of Linux 6.6.

mod bpf;
mod memory;
mod rings;
mod socket;

pub(super) use bpf::{EbpfInstruction, Map, XdpLink, XdpProgram, attach, load_program};
pub(super) use memory::{CounterLines, LINE_WORDS, Umem};
pub(super) use rings::{ConsumerRing, ProducerRing, XdpDescriptor};
pub(super) use socket::XdpSocket;
