//! Reading. One file a noun: the compressed input, the buffer, the two formats and the reader that joins them.

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

/// What a format's parser found at the start of the bytes that it was shown.
#[derive(Debug)]
enum ParsedItem {
    /// A record, wholly there. Its `offset` counts from the start of those bytes.
    Record {
        /// Its descriptor.
        meta: RecordMeta,
        /// Bytes to step over.
        size: usize,
    },
    /// Something that is not a record, wholly there and dealt with.
    Other {
        /// Bytes to step over.
        size: usize,
    },
    /// Too few bytes to tell.
    Short {
        /// Bytes needed to go on; more than were shown.
        need: usize,
        /// What they are, with its article: `a record header`.
        what: &'static str,
    },
}

/// Why a parser cannot go on.
#[derive(Debug)]
struct ParseFault {
    /// Where, counted from the start of the bytes that were shown.
    at: usize,
    /// What is wrong.
    message: String,
    blame: Blame,
}

impl ParseFault {
    /// Damage of the record or block that starts here.
    fn damage(message: impl Into<String>) -> Self {
        Self {
            at: 0,
            message: message.into(),
            blame: Blame::Damaged,
        }
    }

    /// Something sound that cannot be read.
    fn unsupported(at: usize, message: impl Into<String>) -> Self {
        Self {
            at,
            message: message.into(),
            blame: Blame::Unsupported,
        }
    }
}
