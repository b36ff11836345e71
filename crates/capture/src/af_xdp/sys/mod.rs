//! What the engine needs of the kernel: bpf(2), XDP sockets, and the memory shared with both.
//!
//! All unsafe code of the engine is here. Each function is one system call, or one access to shared memory behind a safe
//! signature; decisions are made by the callers. Values are those of `linux/bpf.h` and `linux/if_xdp.h` of Linux 6.6.

mod bpf;
mod memory;
mod rings;
mod socket;

pub(super) use bpf::{EbpfInstruction, Map, XdpLink, XdpProgram, attach, load_program};
pub(super) use memory::{CounterLines, LINE_WORDS, Umem};
pub(super) use rings::{ConsumerRing, ProducerRing, XdpDescriptor};
pub(super) use socket::XdpSocket;
