//! Reads capture files. Each file of this folder has one part, for example the compressed input,
//! the buffer, one of the two formats, or the reader that joins them.

mod buffer;
mod identify;
mod input;
mod pcap;
mod pcapng;
mod reader;
mod record;
mod texts;

use crate::Blame;
pub use reader::{CaptureReader, scan_link_types};
pub use record::{CaptureRecord, RecordMeta};
pub use texts::{TEXT_BYTES_MAX, TEXTS_BYTES_MAX, TextAllowance};

/// The item that a format's parser found at the start of its bytes.
#[derive(Debug)]
enum ParsedItem {
    /// A complete record. Its `offset` counts from the start of the parsed bytes.
    Record {
        /// The descriptor.
        meta: RecordMeta,
        /// Length of the record in the file, bytes.
        size: usize,
    },
    /// A complete item that is not a record, which the parser has handled.
    Other {
        /// Length of the item in the file, bytes.
        size: usize,
    },
    /// There are too few bytes.
    Short {
        /// Number of bytes needed to continue, more than were passed.
        need: usize,
        /// The incomplete object, with its article: `a record header`.
        what: &'static str,
    },
}

/// Why a parser cannot continue.
#[derive(Debug)]
struct ParseFault {
    /// Offset from the start of the parsed bytes.
    at: usize,
    /// Description of the fault.
    message: String,
    blame: Blame,
}

impl ParseFault {
    /// Damage at the start of the parsed bytes.
    fn damage(message: impl Into<String>) -> Self {
        Self {
            at: 0,
            message: message.into(),
            blame: Blame::Damaged,
        }
    }

    /// A file that may be sound, but that this reader does not support.
    fn unsupported(at: usize, message: impl Into<String>) -> Self {
        Self {
            at,
            message: message.into(),
            blame: Blame::Unsupported,
        }
    }
}
