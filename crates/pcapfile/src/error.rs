//! Errors, divided by their cause: the system, the file, the caller.

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
        /// The system's error.
        #[source]
        error: io::Error,
    },
    /// Reading failed. The file itself may be sound.
    #[error("reading failed at byte {offset}{}: {error}", decompressed(*.compression))]
    Io {
        /// Bytes of capture data read before; 0 if the first 4 bytes of the file cannot be read.
        offset: u64,
        /// The compression, if `offset` counts decompressed bytes.
        compression: Option<Compression>,
        /// The system's error.
        #[source]
        error: io::Error,
    },
    /// The file is neither pcap nor pcapng.
    #[error("not a pcap or pcapng capture but {what}")]
    NotACapture {
        /// A guess at the format of the file, such as `an empty file`.
        what: String,
    },
    /// The file is damaged or truncated, or the reader does not support it. Records before this
    /// position were lent.
    #[error("{blame} at byte {offset}{}: {message}", decompressed(*.compression))]
    Faulty {
        /// Whether the file or the reader is at fault.
        blame: Blame,
        /// Offset of the header, record or block, or of the field at fault, in bytes of capture
        /// data. If decompression fails: the number of decompressed bytes that the reader got
        /// before.
        offset: u64,
        /// The compression, if `offset` counts decompressed bytes.
        compression: Option<Compression>,
        /// Description of the fault.
        message: String,
    },
}

/// Whether the file or the reader is at fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Blame {
    /// The file: it is most likely damaged or truncated.
    #[error("damaged")]
    Damaged,
    /// The reader: the file may be sound, but the reader does not support it.
    #[error("unsupported capture file")]
    Unsupported,
}

impl ReadError {
    /// Whether the content of the file is the cause of the error (damaged, unsupported, not a
    /// capture). False if the system cannot open or read the file.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        !matches!(self, Self::Open { .. } | Self::Io { .. })
    }

    /// Whether the stream has no data at this moment. After such an error of
    /// [`CaptureReader::fill`](crate::CaptureReader::fill), reading can continue later.
    #[must_use]
    pub fn is_would_block(&self) -> bool {
        matches!(self, Self::Io { error, .. } if error.kind() == io::ErrorKind::WouldBlock)
    }
}

/// Why something cannot be written. The text is one sentence.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The output stream failed. The file may end inside a record, so the writer accepts nothing
    /// more.
    #[error("writing failed after {written} bytes: {error}")]
    Io {
        /// Bytes of the file header, records and blocks that were written completely.
        written: u64,
        /// The system's error.
        #[source]
        error: io::Error,
    },
    /// An earlier write failed, so the file may end inside a record.
    #[error("the file may end inside a record since an earlier write failed")]
    Failed,
    /// A packet, an option or a whole block is too long. Nothing was written.
    #[error("{what} of {bytes} bytes exceeds the limit of {limit}")]
    TooLong {
        /// The object that is too long, with its article: `a packet`.
        what: &'static str,
        /// Length of the packet, option or block in bytes.
        bytes: usize,
        /// The maximum length in bytes.
        limit: usize,
    },
    /// A packet or statistics refer to an interface that was not added. Nothing was written.
    #[error("interface {interface} was not added, there are {count}")]
    UnknownInterface {
        /// The given index.
        interface: u32,
        /// Number of interfaces in the section.
        count: usize,
    },
    /// The section has the maximum number of interfaces that this crate's reader accepts. Nothing
    /// was written.
    #[error("a file cannot have more than {limit} interfaces")]
    TooManyInterfaces {
        /// The maximum number of interfaces.
        limit: usize,
    },
}

/// Text after an offset that counts decompressed bytes; otherwise empty.
fn decompressed(compression: Option<Compression>) -> &'static str {
    match compression {
        None => "",
        Some(Compression::Gzip) => " of the data inside gzip",
        Some(Compression::Zstd) => " of the data inside zstd",
    }
}
