//! DPDK as an engine: NICs whose drivers run in this process, and vdevs.
//!
//! **A NIC under DPDK is taken away from the host**: its packets are written into memory of this
//! process, and never reach the kernel. Vdevs (`net_null0`, `net_pcap0,rx_pcap=FILE`,
//! `net_af_packet0,iface=eth0`) take no packets away. The engine cannot open vdevs that require as
//! many transmit queues as receive queues (`net_tap`, `net_af_xdp`).
//!
//! - `device`: device names, as DPDK's programs accept them,
//! - `driver`: behaviour of drivers that DPDK's description of a device does not contain,
//! - `eal`: DPDK's environment, one for the process,
//! - `port`: opening a port: queues, spreading, memory,
//! - `lower`: the kernel interface under a vdev,
//! - `queue`, `stamps`, `idle`: the [`Queue`](retroscope_capture::Queue), the origin of time
//!   stamps, and waiting without packets,
//! - `source`: the [`Source`](retroscope_capture::Source) trait,
//! - `config`: user configuration,
//! - `sys`: the functions of `shim/dpdk.c`, which call DPDK's functions.
//!
//! # Threads and memory
//! The engine does not use DPDK's own worker threads (lcores). The recorder's inserters receive,
//! may be pinned, and register with the environment. Each thread has a pool of buffers in
//! one block of memory, allocated once. A burst lends buffers, and the next call returns them
//! together. A frame of several buffers, or of a foreign buffer, is copied to private room after
//! the pool.
//!
//! # Spreading
//! The engine gives a NIC with several queues Woo and Park's hash key, which sends both directions
//! of a conversation to one queue. The engine reads the key back, because a driver may keep another
//! key. If all queues of a device get packets anyway (for example `net_ring`, or the files of
//! `net_pcap`), the engine serves all queues. With fewer threads, a thread serves several queues.
//!
//! # What it does not do
//! Filters in the NIC, sending, detecting the removal of a NIC, devices with several ports at one
//! address.
//!
//! # Versions
//! Written for DPDK 22.11; `driver` knows the quirks of its drivers.

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
