//! Writing. Nothing is buffered here: over a file, a `BufWriter` of some 100 KiB belongs between.

mod options;
mod pcap;
mod pcapng;
mod sink;

pub use options::{InterfaceStatistics, PacketOptions, SectionOptions};
pub use pcap::PcapWriter;
pub use pcapng::{PACKET_HEADER_BYTES, PcapNgWriter};
