//! DPDK as an engine: NICs whose drivers run in this process, and vdevs.
//!
//! **A NIC that DPDK drives is taken away from the host**: its packets are written into memory of this process, and the kernel
//! does not know of them. Vdevs (`net_null0`, `net_pcap0,rx_pcap=FILE`, `net_af_packet0,iface=eth0`) take nothing away.
//! Those that want as many queues to send as to receive (`net_tap`, `net_af_xdp`) are refused.
//!
//! - `device`: names, as DPDK's programs take them,
//! - `driver`: what drivers do that they do not tell,
//! - `eal`: DPDK's environment, one for the process,
//! - `port`: opening: queues, spreading, memory,
//! - `lower`: the kernel's interface that a vdev stands on,
//! - `queue`, `stamps`, `idle`: the [`Queue`](retroscope_capture::Queue), whose time a packet gets, and what happens while none comes,
//! - `source`: the [`Source`](retroscope_capture::Source) plug,
//! - `sys`: the functions of `shim/dpdk.c`, which calls DPDK's.
//!
//! # Threads and memory
//! DPDK's own worker threads (lcores) are not used: the recorder's inserters receive, pinned by it, and register with the
//! environment. Each thread has a pool of buffers in one stretch of memory, taken once. A burst lends buffers, and they are given
//! back together with the next call. A frame of several buffers, or of somebody else's, is copied to room of our own behind them.
//!
//! # Spreading
//! A NIC with several queues hashes with Woo and Park's key, which sends both directions of a conversation to one queue; what it
//! hashes with is read back. A device whose queues get packets anyway (`net_ring`, the files of `net_pcap`) has all of them
//! served, several by one thread where there are fewer threads.
//!
//! # What it does not do
//! Filters in the NIC, sending, noticing that a NIC was removed, devices with several ports behind one address.
//!
//! # Versions
//! Written against DPDK 22.11, whose drivers' quirks `driver` knows.

#![cfg(feature = "dpdk")]

mod config;
mod device;
mod driver;
mod eal;
mod idle;
mod lower;
mod port;
mod queue;
mod source;
mod stamps;
mod sys;
#[cfg(test)]
mod tests;

pub use config::DpdkConfig;
pub use eal::{EalConfig, on_own_thread};
pub use source::DpdkSource;
pub use sys::version;
