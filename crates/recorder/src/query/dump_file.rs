//! Reads a dump's capture file packet by packet, and checks that the file is as it was written.

use std::{
    fmt,
    io::{self, Read},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use retroscope_pcapfile::{CaptureReader, FileInterface, RecordMeta};
use sha2::{Digest, Sha256};

use super::Cancel;
use crate::{control::lock, dump::stream::hexadecimal};

type CapturedPacket<'f> = (RecordMeta, &'f [u8], &'f FileInterface);

/// A capture file whose length and, if known, SHA-256 are checked at its end.
pub(super) struct CheckedCaptureFile {
    reader: CaptureReader<HashedFile>,
    digest: Arc<Mutex<Sha256>>,
    expected: Option<String>,
    /// Length of the file according to the sidecar, bytes.
    bytes: u64,
    read: Arc<AtomicU64>,
    /// Index of the next packet in the reader's current burst.
    at: usize,
}

/// Bytes of memory of an open file; a larger packet or a decompressor takes more.
const MEMORY_BYTES: usize = 64 << 10;

/// The error if the query is cancelled before the file was read to its end.
pub(super) const CANCELLED: &str = "the query was cancelled";

/// Computes the digest and the length of the bytes that are read.
struct HashedFile {
    file: Box<dyn Read + Send>,
    digest: Arc<Mutex<Sha256>>,
    read: Arc<AtomicU64>,
}

impl fmt::Debug for CheckedCaptureFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CheckedCaptureFile").finish_non_exhaustive()
    }
}

impl Read for HashedFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        lock(&self.digest).update(&buffer[..read]);
        self.read.fetch_add(read as u64, Relaxed);
        Ok(read)
    }
}

impl CheckedCaptureFile {
    /// Begins a file of `bytes` bytes. `expected`: its SHA-256, if known.
    ///
    /// # Errors
    /// The file is no capture, or cannot be read.
    pub(super) fn new(
        file: Box<dyn Read + Send>,
        bytes: u64,
        expected: Option<String>,
    ) -> Result<Self, String> {
        let digest = Arc::<Mutex<Sha256>>::default();
        let read = Arc::<AtomicU64>::default();
        let hashed = HashedFile {
            read: Arc::clone(&read),
            file,
            digest: Arc::clone(&digest),
        };
        Ok(Self {
            reader: CaptureReader::with_memory(hashed, MEMORY_BYTES)
                .map_err(|error| error.to_string())?,
            digest,
            expected,
            bytes,
            read,
            at: 0,
        })
    }

    /// The current packet, with its bytes and interface. `None`: the file has no more packets, and
    /// its length and its SHA-256, if known, are as expected.
    ///
    /// # Errors
    /// The file is damaged, was changed or cannot be read, or the query is cancelled.
    pub(super) fn peek(&mut self, cancel: &Cancel) -> Result<Option<CapturedPacket<'_>>, String> {
        while self.at == self.reader.records().len() {
            if cancel.is_cancelled() {
                return Err(CANCELLED.to_owned());
            }
            self.at = 0;
            match self.reader.poll() {
                Ok(Some(0)) => return self.check().map(|()| None),
                Ok(_) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        let meta = self.reader.records()[self.at];
        let data = &self.reader.memory()[meta.offset..][..meta.captured_len as usize];
        let interface = &self.reader.interfaces()[usize::from(meta.interface)];
        Ok(Some((meta, data, interface)))
    }

    pub(super) fn step(&mut self) {
        self.at += 1;
    }

    fn check(&self) -> Result<(), String> {
        let read = self.read.load(Relaxed);
        if read != self.bytes {
            let bytes = self.bytes;
            return Err(format!(
                "it is not as it was written: it has {read} bytes, not {bytes}"
            ));
        }
        let digest = hexadecimal(lock(&self.digest).clone());
        match &self.expected {
            Some(expected) if *expected != digest => {
                Err("it is not as it was written: it has another SHA-256".to_owned())
            }
            _ => Ok(()),
        }
    }
}
