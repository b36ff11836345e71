//! A byte stream, decompressed if it is compressed.

use std::{
    fmt,
    io::{self, BufReader, ErrorKind, Read},
};

use flate2::bufread::MultiGzDecoder;

use crate::Compression;

/// Compressed bytes fetched at a time. Data that come to nothing, such as empty members of gzip, are gone through this many at a time
/// before the stream can say that it is enough.
const COMPRESSED_BYTES: usize = 32 << 10;

/// The start of a stream that tells how it is compressed.
const MAGIC_BYTES: usize = 4;

/// Why no bytes came.
#[derive(Debug)]
pub(super) enum InputError {
    /// The stream underneath failed.
    Io(io::Error),
    /// The compressed data is damaged or cut short.
    Compressed(String),
}

/// A stream that is decompressed on the way, as its first bytes say.
pub(super) enum Input<R: Read> {
    Plain(Tap<R>),
    Gzip(Box<MultiGzDecoder<BufReader<Tap<R>>>>),
    Zstd(Box<zstd::stream::read::Decoder<'static, BufReader<Tap<R>>>>),
}

impl<R: Read> Input<R> {
    /// Looks at the first bytes of `inner`.
    pub(super) fn new(inner: R) -> Result<Self, InputError> {
        let tap = Tap::new(inner).map_err(InputError::Io)?;
        match tap.magic() {
            [0x1f, 0x8b, ..] => Ok(Self::Gzip(Box::new(MultiGzDecoder::new(
                BufReader::with_capacity(COMPRESSED_BYTES, tap),
            )))),
            // A frame, or a skippable frame before it (RFC 8878, 3.1.1 and 3.1.2).
            [0x28, 0xb5, 0x2f, 0xfd] | [0x50..=0x5f, 0x2a, 0x4d, 0x18] => {
                let tap = BufReader::with_capacity(COMPRESSED_BYTES, tap);
                let decoder =
                    zstd::stream::read::Decoder::with_buffer(tap).map_err(InputError::Io)?;
                Ok(Self::Zstd(Box::new(decoder)))
            }
            _ => Ok(Self::Plain(tap)),
        }
    }

    /// The compression that was found.
    pub(super) fn compression(&self) -> Option<Compression> {
        match self {
            Self::Plain(_) => None,
            Self::Gzip(_) => Some(Compression::Gzip),
            Self::Zstd(_) => Some(Compression::Zstd),
        }
    }

    /// As [`Read::read`]; interruptions are retried.
    pub(super) fn read(&mut self, bytes: &mut [u8]) -> Result<usize, InputError> {
        match self {
            Self::Plain(tap) => tap.read(bytes).map_err(InputError::Io),
            Self::Gzip(decoder) => decoder
                .read(bytes)
                .map_err(|error| blame(error, decoder.get_ref().get_ref(), "gzip")),
            Self::Zstd(decoder) => decoder
                .read(bytes)
                .map_err(|error| blame(error, decoder.get_ref().get_ref(), "zstd")),
        }
    }
}

impl<R: Read> fmt::Debug for Input<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Input")
            .field("compression", &self.compression())
            .finish_non_exhaustive()
    }
}

/// Whether the stream failed or what came out of it is wrong: only the tap can tell.
fn blame<R>(error: io::Error, tap: &Tap<R>, format: &str) -> InputError {
    if tap.failed {
        InputError::Io(error)
    } else if error.kind() == ErrorKind::UnexpectedEof {
        InputError::Compressed(format!("the {format} data ends early"))
    } else {
        InputError::Compressed(format!("the {format} data is damaged: {error}"))
    }
}

/// The stream underneath, which gives its first bytes twice and remembers whether it failed.
#[derive(Debug)]
pub(super) struct Tap<R> {
    inner: R,
    magic: [u8; MAGIC_BYTES],
    /// Bytes of `magic` that the stream had.
    magic_len: usize,
    /// Bytes of `magic` given again; `<= magic_len`.
    given: usize,
    /// The last call of `inner` returned an error.
    failed: bool,
}

impl<R: Read> Tap<R> {
    fn new(inner: R) -> io::Result<Self> {
        let mut tap = Self {
            inner,
            magic: [0; MAGIC_BYTES],
            magic_len: 0,
            given: 0,
            failed: false,
        };
        while tap.magic_len < MAGIC_BYTES {
            match tap.inner.read(&mut tap.magic[tap.magic_len..]) {
                Ok(0) => break,
                Ok(count) => tap.magic_len += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(tap)
    }

    fn magic(&self) -> &[u8] {
        &self.magic[..self.magic_len]
    }
}

impl<R: Read> Read for Tap<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if self.given < self.magic_len {
            let again = &self.magic[self.given..self.magic_len];
            let count = again.len().min(bytes.len());
            bytes[..count].copy_from_slice(&again[..count]);
            self.given += count;
            return Ok(count);
        }
        loop {
            match self.inner.read(bytes) {
                Ok(count) => {
                    self.failed = false;
                    return Ok(count);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    self.failed = true;
                    return Err(error);
                }
            }
        }
    }
}
