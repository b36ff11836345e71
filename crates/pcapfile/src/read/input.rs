//! A byte stream, decompressed if it is compressed.

use std::{
    fmt,
    io::{self, BufReader, Chain, Cursor, ErrorKind, Read},
};

use flate2::bufread::MultiGzDecoder;
use zstd::stream::read::Decoder as ZstdDecoder;

use crate::Compression;

/// Maximum number of compressed bytes that are read from the input stream at a time. One call of
/// [`DecompressedInput::read`] goes on over compressed data without content, such as empty gzip
/// members, until the input stream ends or returns an error. The call reads from the input stream
/// again after at most [`COMPRESSED_BYTES`].
const COMPRESSED_BYTES: usize = 32 << 10;

/// Number of first bytes that identify the compression.
const MAGIC_BYTES: usize = 4;

/// Why reading failed.
#[derive(Debug)]
pub(super) enum InputError {
    /// The input stream failed, or the zstd decoder cannot start.
    Io(io::Error),
    /// Decompression failed, usually because the data is damaged or truncated.
    Compressed(String),
}

/// The input stream, with the first bytes that were already read in front.
type RawStream<R> = Chain<Cursor<Vec<u8>>, TappedStream<R>>;

/// A stream that is decompressed as its first bytes require.
pub(super) enum DecompressedInput<R: Read> {
    Plain(RawStream<R>),
    Gzip(Box<MultiGzDecoder<BufReader<RawStream<R>>>>),
    Zstd(Box<ZstdDecoder<'static, BufReader<RawStream<R>>>>),
}

impl<R: Read> DecompressedInput<R> {
    /// Detects the compression from the first bytes of `inner`.
    pub(super) fn new(mut inner: R) -> Result<Self, InputError> {
        let mut magic = Vec::with_capacity(MAGIC_BYTES);
        let mut start = inner.by_ref().take(MAGIC_BYTES as u64);
        start.read_to_end(&mut magic).map_err(InputError::Io)?;
        let compression = match magic[..] {
            [0x1f, 0x8b, ..] => Some(Compression::Gzip),
            // A frame, or a skippable frame before it (RFC 8878, 3.1.1 and 3.1.2).
            [0x28, 0xb5, 0x2f, 0xfd] | [0x50..=0x5f, 0x2a, 0x4d, 0x18] => Some(Compression::Zstd),
            _ => None,
        };
        let failed = false;
        let stream = Cursor::new(magic).chain(TappedStream { inner, failed });
        let buffered = |stream| BufReader::with_capacity(COMPRESSED_BYTES, stream);
        Ok(match compression {
            None => Self::Plain(stream),
            Some(Compression::Gzip) => Self::Gzip(Box::new(MultiGzDecoder::new(buffered(stream)))),
            Some(Compression::Zstd) => {
                let decoder = ZstdDecoder::with_buffer(buffered(stream));
                Self::Zstd(Box::new(decoder.map_err(InputError::Io)?))
            }
        })
    }

    /// The detected compression.
    pub(super) fn compression(&self) -> Option<Compression> {
        match self {
            Self::Plain(_) => None,
            Self::Gzip(_) => Some(Compression::Gzip),
            Self::Zstd(_) => Some(Compression::Zstd),
        }
    }

    /// As [`Read::read`]. Retries after interruptions.
    pub(super) fn read(&mut self, bytes: &mut [u8]) -> Result<usize, InputError> {
        match self {
            Self::Plain(stream) => stream.read(bytes).map_err(InputError::Io),
            Self::Gzip(decoder) => decoder
                .read(bytes)
                .map_err(|error| blame(error, decoder.get_ref().get_ref(), "gzip")),
            Self::Zstd(decoder) => decoder
                .read(bytes)
                .map_err(|error| blame(error, decoder.get_ref().get_ref(), "zstd")),
        }
    }
}

impl<R: Read> fmt::Debug for DecompressedInput<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Input")
            .field("compression", &self.compression())
            .finish_non_exhaustive()
    }
}

/// Whether the input stream or its compressed data caused `error`. Only `TappedStream` knows this.
fn blame<R>(error: io::Error, stream: &RawStream<R>, format: &str) -> InputError {
    if stream.get_ref().1.failed {
        InputError::Io(error)
    } else if error.kind() == ErrorKind::UnexpectedEof {
        InputError::Compressed(format!("the {format} data ends early"))
    } else {
        InputError::Compressed(format!("the {format} data cannot be decompressed: {error}"))
    }
}

/// The input stream, which retries after interruptions and remembers whether it failed.
pub(super) struct TappedStream<R> {
    inner: R,
    /// The last call of `inner` returned an error.
    failed: bool,
}

impl<R: Read> Read for TappedStream<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = self.inner.read(bytes);
            match read {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => {
                    self.failed = read.is_err();
                    return read;
                }
            }
        }
    }
}
