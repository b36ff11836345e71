//! Reading and writing capture files: [pcap] and [pcapng].
//!
//! [`Reader`] takes any `Read`, sees through gzip and zstd, and *lends* records: they stay in its one buffer, described by
//! [`RecordMeta`]. Only [`Reader::open`] and [`scan_link_types`] touch the file system.
//!
//! Times are nanoseconds since the UNIX epoch as `i64` (1677-09-21 to 2262-04-11); what lies outside is clamped to the
//! nearest end, never wrapped.
//!
//! Deliberately absent: seeking, name resolution and decryption blocks, packet comments on reading. Blocks that are not
//! packets, interfaces or section headers are stepped over.
//!
//! [pcap]: https://datatracker.ietf.org/doc/draft-ietf-opsawg-pcap/
//! [pcapng]: https://datatracker.ietf.org/doc/draft-ietf-opsawg-pcapng/

mod error;
mod format;
mod read;

pub use error::ReadError;
pub use format::{ByteOrder, Compression, Format, Interface, Kind, Resolution};
pub use read::{Reader, Record, RecordMeta, scan_link_types};
pub use retroscope_packet::LinkType;
