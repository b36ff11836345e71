//! Receive side scaling in software: what a NIC's hash does to a conversation.
//!
//! A NIC with several receive queues chooses one by a Toeplitz hash of addresses and ports. With the keys that drivers use
//! the two directions of a conversation land in different queues, and so with different threads where each serves a
//! queue. Woo and Park ("Scalable TCP session monitoring with symmetric receive-side scaling", KAIST 2012) showed that a key
//! of repeated 16 bits makes both directions hash alike.
//!
//! - `symmetry`: whether given settings split conversations, decided from the key alone,
//! - `nic`: the settings of an interface.
//!
//! Where this matters: `--fanout qm` and `cpu`, AF_XDP, DPDK. The kernel's own fanout by flow does not use the NIC's hash.

mod nic;
mod symmetry;

pub use nic::rss_settings;
pub use symmetry::{FlowKind, HashFields, RssSettings, Split, TOEPLITZ, symmetric_key};
