//! The bytes of one file, in their order, from the header to the end; and their SHA-256.
//!
//! Large blocks are written, and go into the digest, [behind](super::behind) who makes them; what is [there](Stream::len) is told when the next one begins.
//!
//! Where the processor has instructions for it, the digest is computed as the file is written. Its first kilobytes hold the verdict, which is known at the end: they go into the digest with
//! the verdict that is expected, `complete` and what no counter tells, and only a file with another one is read again. Other processors take 4 to 7 s for a GB (with them 0.7), in which the disk would have
//! nothing to do: there all files are read again, when they are complete and have their names.

use std::{
    collections::VecDeque,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use retroscope_packet::LinkType;
use sha2::{Digest, Sha256};

use super::{
    behind::Behind,
    disk::{DiskFile, KeptFile},
    encode::VerdictField,
    names::Directory,
    output::{Piece, Written},
};

/// Bytes that are read at once.
const READ_BYTES: usize = 256 * 1024;
/// So often the page cache is told that what was read is not wanted again.
const READS_KEPT: usize = 32;

/// What a file says of itself in its header.
#[derive(Debug, Clone, Default)]
pub(crate) struct Heading {
    pub(crate) headline: String,
    /// The verdict that it will have if nothing goes wrong.
    pub(crate) expected: String,
}

/// When digests are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Digests {
    /// As files are written.
    AsWritten,
    /// When they are complete.
    Behind,
    Never,
}

impl Digests {
    /// What is best on this processor.
    pub(crate) fn here() -> Self {
        #[cfg(target_arch = "x86_64")]
        let is_quick = std::arch::is_x86_feature_detected!("sha");
        #[cfg(target_arch = "aarch64")]
        let is_quick = std::arch::is_aarch64_feature_detected!("sha2");
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let is_quick = false;
        if is_quick {
            Self::AsWritten
        } else {
            Self::Behind
        }
    }
}

/// See the module. After an error the file holds what was [written](Self::len) before.
#[derive(Debug)]
pub(super) struct Stream {
    /// The file is known by it.
    pub(super) link_type: LinkType,
    file: KeptFile,
    len: u64,
    /// Packets that are wholly in the file: what a failed dump still has.
    pub(super) safe: Written,
    /// Ring-wide identifiers of the interfaces in the file, in the order of their blocks.
    pub(super) interfaces: Vec<u16>,
    /// What `safe` becomes when each block that is being written is there.
    begun: VecDeque<Written>,
    /// What is being written behind `len`.
    behind: Option<Behind>,
    /// Blocks were begun since the last flush.
    is_busy: bool,
    /// Why that failed, where nobody was told yet.
    error: Option<io::Error>,
    /// Of all that is written, if the verdict is as it is expected. `None`: it is computed later, if at all.
    digest: Option<Sha256>,
    field: Option<VerdictField>,
    expected: String,
}

/// A file that is complete.
#[derive(Debug, Clone)]
pub(super) struct Finished {
    pub(super) path: PathBuf,
    /// What tells it from others, whatever their names.
    pub(super) identity: (u64, u64),
    pub(super) bytes: u64,
    /// Lower-case hexadecimal digits. `None`: it is not computed yet, or was not to be.
    pub(super) sha256: Option<String>,
}

impl Stream {
    /// Creates a file, which must not exist, and writes its first piece.
    pub(super) fn create(
        directory: &Directory,
        path: PathBuf,
        expected: &str,
        first: &Piece,
    ) -> io::Result<Self> {
        let header = first.block.bytes();
        let mut stream = Self {
            link_type: first.link_type,
            file: directory.with_room(0, || KeptFile::create(directory.disk(), path.clone()))?,
            len: 0,
            safe: Written::default(),
            interfaces: Vec::new(),
            begun: VecDeque::new(),
            behind: None,
            is_busy: false,
            error: None,
            digest: None,
            field: first.field.clone(),
            expected: expected.to_owned(),
        };
        stream.append(directory, header).inspect_err(|_| {
            // Nobody would know of it.
            let _ = directory.disk().remove(stream.path());
        })?;
        (stream.safe, stream.interfaces) = (first.written, first.interfaces.clone());
        let is_now = directory.digests == Digests::AsWritten;
        stream.digest = is_now.then(|| match &stream.field {
            Some(field) => Sha256::new_with_prefix(field.filled(header, expected)),
            None => Sha256::new_with_prefix(header),
        });
        Ok(stream)
    }

    /// Where it is now.
    pub(super) fn path(&self) -> &Path {
        &self.file.path
    }

    /// What tells it from others, whatever their names.
    pub(super) fn identity(&self) -> (u64, u64) {
        self.file.identity
    }

    /// It was renamed.
    pub(super) fn rename(&mut self, path: &Path) {
        path.clone_into(&mut self.file.path);
    }

    /// Bytes of the file that are there.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Whether its descriptor is open.
    pub(super) fn is_open(&self) -> bool {
        self.file.is_open()
    }

    /// Gives its descriptor back until it is needed again; all that was begun is there. The next call
    /// reports an error.
    pub(super) fn close(&mut self, directory: &Directory) {
        self.error = self.end_threads(directory).err();
        self.file.close();
    }

    /// The file, to be read, with all that was begun.
    pub(super) fn take(&mut self, directory: &Directory) -> io::Result<Arc<dyn DiskFile>> {
        self.end_threads(directory)?;
        self.file.take(directory.disk())
    }

    /// Writes bytes at the end, and returns when they are there.
    fn append(&mut self, directory: &Directory, bytes: &[u8]) -> io::Result<()> {
        let file = self.file.get(directory.disk())?;
        let written = directory.with_room(bytes.len(), || file.write_all_at(bytes, self.len));
        if let Err(error) = written {
            // Leave whole blocks behind; failing at that too changes nothing for the caller.
            let _ = file.set_len(self.len);
            return Err(error);
        }
        self.len += bytes.len() as u64;
        if let Some(digest) = &mut self.digest {
            digest.update(bytes);
        }
        Ok(())
    }

    /// Writes the next piece. After a large piece, not all need be there when this returns.
    pub(super) fn write(&mut self, directory: &Directory, piece: Piece) -> io::Result<()> {
        let (block, written) = (piece.block, piece.written);
        self.interfaces.extend(piece.interfaces);
        let is_large = block.len() >= directory.block_bytes;
        self.is_busy |= is_large;
        if self.behind.is_none() {
            self.settle(directory)?;
            if is_large {
                let file = (self.file.share(directory.disk())?, self.len);
                self.behind = Behind::start(directory, file, self.digest.as_ref());
            }
        }
        if self.behind.as_ref().is_some_and(Behind::is_full) {
            self.settle_one(directory)?;
        }
        if let Some(behind) = &mut self.behind {
            self.begun.push_back(written);
            behind.begin(block);
            return Ok(());
        }
        self.append(directory, block.bytes())?;
        self.safe = written;
        directory.behind.take_back(block);
        Ok(())
    }

    /// Returns when all is there. Threads that had no large block since the last time end.
    pub(super) fn flush(&mut self, directory: &Directory) -> io::Result<()> {
        self.settle(directory)?;
        if !std::mem::take(&mut self.is_busy) {
            self.end_threads(directory)?;
        }
        Ok(())
    }

    /// Waits for what was begun.
    fn settle(&mut self, directory: &Directory) -> io::Result<()> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        while self.behind.as_ref().is_some_and(|it| it.len() > 0) {
            self.settle_one(directory)?;
        }
        Ok(())
    }

    /// Waits for what was begun and for the threads to end, so that the file can be written here again.
    fn end_threads(&mut self, directory: &Directory) -> io::Result<()> {
        self.settle(directory)?;
        if let Some(behind) = self.behind.take() {
            self.digest = behind.end();
        }
        Ok(())
    }

    /// Waits for the oldest block of what was begun.
    fn settle_one(&mut self, directory: &Directory) -> io::Result<()> {
        match self.behind.as_mut().map_or(Ok(0), Behind::settle) {
            Ok(bytes) => {
                self.len += bytes;
                self.safe = self.begun.pop_front().unwrap_or(self.safe);
                Ok(())
            }
            Err(error) => {
                // Its threads end before anything else is done with the file.
                (self.behind, self.digest) = (None, None);
                self.begun.clear();
                // As in `write`.
                let _ = (self.file.get(directory.disk())).and_then(|file| file.set_len(self.len));
                Err(error)
            }
        }
    }

    /// Puts the verdict in its place, and has all of it stored.
    pub(super) fn finish(&mut self, directory: &Directory, verdict: &str) -> io::Result<Finished> {
        self.end_threads(directory)?;
        let file = self.file.get(directory.disk())?;
        if let Some(field) = &mut self.field {
            field.write(file, verdict)?;
        }
        file.sync()?;
        let is_expected = self.field.is_none() || verdict == self.expected;
        let digest = self.digest.take().filter(|_| is_expected);
        let identity = file.identity()?;
        Ok(Finished {
            identity,
            path: self.file.path.clone(),
            bytes: self.len,
            sha256: digest.map(hexadecimal),
        })
    }
}

impl Finished {
    /// Computes the digest, if that was not done. A file that cannot be read has none.
    pub(super) fn digest(&mut self, directory: &Directory) {
        if self.sha256.is_none() && directory.digests != Digests::Never {
            let file = directory.disk().open_to_read(&self.path);
            self.sha256 = file.and_then(|file| sha256_of(&*file, directory)).ok();
        }
    }
}

/// Reads a file through, unless the recording is to end at once.
fn sha256_of(file: &dyn DiskFile, directory: &Directory) -> io::Result<String> {
    let (mut digest, mut reader) = (Sha256::new(), file.reader());
    let mut buffer = vec![0; READ_BYTES];
    for reads in 1_usize.. {
        match reader.read(&mut buffer)? {
            0 => break,
            bytes => digest.update(&buffer[..bytes]),
        }
        if reads.is_multiple_of(READS_KEPT) {
            if directory.is_urgent(Duration::MAX) {
                return Err(io::Error::other("the recording ends"));
            }
            file.let_go();
        }
    }
    file.let_go();
    Ok(hexadecimal(digest))
}

pub(crate) fn hexadecimal(digest: Sha256) -> String {
    let bytes = digest.finalize();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
