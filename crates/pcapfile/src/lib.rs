//! Reading and writing capture files: [pcap] and [pcapng].
//!
//! [`CaptureReader`] takes any `Read`, sees through gzip and zstd, and *lends* records: they stay in its one buffer, described by
//! [`RecordMeta`]. [`PcapWriter`] and [`PcapNgWriter`] take any `Write`. Only [`CaptureReader::open`] and [`scan_link_types`] touch
//! the file system.
//!
//! Times are nanoseconds since the UNIX epoch as `i64` (1677-09-21 to 2262-04-11); what lies outside is clamped to the
//! nearest end, never wrapped.
//!
//! Deliberately absent: seeking, name resolution and decryption blocks, packet comments on reading. Blocks that are not
//! packets, interfaces or section headers are stepped over.
//!
//! ```
//! use retroscope_pcapfile::{LinkType, PcapOptions, PcapWriter, Reader};
//!
//! let mut writer = PcapWriter::new(Vec::new(), PcapOptions::new(LinkType::ETHERNET))?;
//! writer.record(1_700_000_000_123_456_789, 1514, &[0; 60])?;
//! let file = writer.finish()?;
//!
//! let mut reader = Reader::new(&file[..])?;
//! let record = reader.next()?.expect("one record was written");
//! assert_eq!((record.meta.time_ns, record.meta.wire_len, record.data.len()), (1_700_000_000_123_456_789, 1514, 60));
//! assert!(reader.next()?.is_none());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [pcap]: https://datatracker.ietf.org/doc/draft-ietf-opsawg-pcap/
//! [pcapng]: https://datatracker.ietf.org/doc/draft-ietf-opsawg-pcapng/

mod block;
mod error;
mod format;
mod read;
mod time;
mod write;

pub use error::{Blame, ReadError, WriteError};
pub use format::{ByteOrder, Compression, FileFormat, FileInterface, PcapOptions, Resolution};
pub use read::{
    CaptureReader, CaptureRecord, RecordMeta, TEXT_BYTES_MAX, TEXTS_BYTES_MAX, TextAllowance,
    scan_link_types,
};
pub use retroscope_packet::LinkType;
pub use write::{
    InterfaceStatistics, PACKET_HEADER_BYTES, PacketOptions, PcapNgWriter, PcapWriter,
    SectionOptions,
};
