//! Writes capture files. Writers have no buffer: callers that write to a file should use a
//! `BufWriter` of some 100 KiB.

mod options;
mod pcap;
mod pcapng;
mod sink;

pub use options::{InterfaceStatistics, PacketOptions, SectionOptions};
pub use pcap::PcapWriter;
pub use pcapng::{PACKET_HEADER_BYTES, PcapNgWriter};
