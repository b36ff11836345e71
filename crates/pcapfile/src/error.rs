//! What can go wrong, apart by blame: the system, the file, the caller.

use std::{io, path::PathBuf};

use crate::Compression;

/// Why a capture file cannot be read, or not further. The text is one sentence.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The file cannot be opened.
    #[error("cannot open {}: {error}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        error: io::Error,
    },
    /// Reading failed; the file itself may be sound.
    #[error("reading failed at byte {offset}{}: {error}", decompressed(*.compression))]
    Io {
        /// Bytes of capture data that were read before.
        offset: u64,
        /// The compression, if `offset` counts decompressed bytes.
        compression: Option<Compression>,
        /// What the system said.
        #[source]
        error: io::Error,
    },
    /// The file is neither pcap nor pcapng.
    #[error("not a pcap or pcapng capture but {what}")]
    NotACapture {
        /// What it is instead, with its article: `an empty file`.
        what: String,
    },
    /// The file is damaged or cut short, or in a version or variant that cannot be read. The records before this place are good.
    #[error("{blame} at byte {offset}{}: {message}", decompressed(*.compression))]
    Faulty {
        /// What is at fault.
        blame: Blame,
        /// Where the record or block starts, or where the version or variant is written, in bytes from the start of the capture data.
        /// Where the compressed stream itself is damaged: how many bytes came out of it.
        offset: u64,
        /// The compression, if `offset` counts decompressed bytes.
        compression: Option<Compression>,
        /// What is wrong.
        message: String,
    },
}

/// What is at fault where a file cannot be read further.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Blame {
    /// The file: it is damaged or cut short.
    #[error("damaged")]
    Damaged,
    /// This reader: the file may be sound, in a version or variant that it does not know.
    #[error("unsupported capture file")]
    Unsupported,
}

impl ReadError {
    /// Whether the file is at fault (damaged, unsupported, not a capture) and not the system that reads it.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        !matches!(self, Self::Open { .. } | Self::Io { .. })
    }

    /// Whether the stream merely has nothing to give at this moment, and reading can go on later.
    #[must_use]
    pub fn is_would_block(&self) -> bool {
        matches!(self, Self::Io { error, .. } if error.kind() == io::ErrorKind::WouldBlock)
    }
}

/// Why something cannot be written. The text is one sentence.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The stream underneath failed. What was written before may end inside a record, so the writer takes nothing more.
    #[error("writing failed after {written} bytes: {error}")]
    Io {
        /// Bytes of the records and blocks that were written completely.
        written: u64,
        /// What the system said.
        #[source]
        error: io::Error,
    },
    /// An earlier write failed, so the file may end inside a record.
    #[error("the file may end inside a record since an earlier write failed")]
    Failed,
    /// A packet has more captured bytes than its interface's snap length lets readers accept, an option is too long, or all options of a
    /// block together are. Nothing was written.
    #[error("{what} of {bytes} bytes exceeds the limit of {limit}")]
    TooLong {
        /// What is too long, with its article: `a packet`.
        what: &'static str,
        /// Its bytes.
        bytes: usize,
        /// The most that is allowed.
        limit: usize,
    },
    /// A packet or statistics name an interface that was not added. Nothing was written.
    #[error("interface {interface} was not added, there are {count}")]
    UnknownInterface {
        /// The index that was given.
        interface: u32,
        /// Interfaces of the section.
        count: usize,
    },
    /// The section has as many interfaces as readers take. Nothing was written.
    #[error("a file cannot have more than {limit} interfaces")]
    TooManyInterfaces {
        /// The most that are allowed.
        limit: usize,
    },
}

/// The words that follow an offset into compressed data.
fn decompressed(compression: Option<Compression>) -> &'static str {
    match compression {
        None => "",
        Some(Compression::Gzip) => " of the data inside gzip",
        Some(Compression::Zstd) => " of the data inside zstd",
    }
}
