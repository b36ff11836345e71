//! Reads and writes capture files: [pcap] and [pcapng].
//!
//! [`CaptureReader`] accepts any `Read`, decompresses gzip and zstd, and *lends* records: they stay
//! in its one buffer, described by [`RecordMeta`]. [`PcapWriter`] and [`PcapNgWriter`] accept any
//! `Write`. Only [`CaptureReader::open`] and [`scan_link_types`] use the file system.
//!
//! Times are nanoseconds since the UNIX epoch as `i64` (1677-09-21 to 2262-04-11). A time outside
//! this range is clamped to the nearest end, never wrapped.
//!
//! Deliberately absent: seeking, name resolution and decryption blocks, packet comments on reading.
//! The reader skips blocks other than packets, interfaces and section headers.
//!
//! ```
//! use retroscope_pcapfile::{CaptureReader, LinkType, PcapOptions, PcapWriter};
//!
//! let mut writer = PcapWriter::new(Vec::new(), PcapOptions::new(LinkType::ETHERNET))?;
//! writer.record(1_700_000_000_123_456_789, 1514, &[0; 60])?;
//! let file = writer.finish()?;
//!
//! let mut reader = CaptureReader::new(&file[..])?;
//! let record = reader.next()?.expect("one record was written");
//! let meta = record.meta;
//! assert_eq!((meta.time_ns, meta.wire_len), (1_700_000_000_123_456_789, 1514));
//! assert_eq!(record.data.len(), 60);
//! assert!(reader.next()?.is_none());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [pcap]: https://datatracker.ietf.org/doc/draft-ietf-opsawg-pcap/
//!
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
