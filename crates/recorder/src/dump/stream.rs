//! One file of a dump, from the header to the end, and the SHA-256 digest of its bytes.
//!
//! If the processor has instructions for SHA-256, the digest is usually computed while the file is
//! written. The header of a pcapng file holds the verdict, which is known only at the end. So the
//! digest covers a header with the expected verdict, and a file with another verdict is read again.
//!
//! Without these instructions a GB takes 4 to 7 s (with instructions 0.5 s), and the disk would
//! wait. So digests are then computed only on request, by reading the complete files.

use std::{
    collections::BTreeMap,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use retroscope_packet::LinkType;
use sha2::{Digest, Sha256};

use super::{
    disk::{DiskFile, KeptFile},
    encode::VerdictField,
    names::Directory,
    output::{EncodedPiece, WrittenTotals},
};
use crate::control::packet_id::Recording;

/// Maximum number of bytes of one read call.
const READ_BYTES: usize = 256 * 1024;
/// After this many reads, the recorder lets the kernel drop the read pages from the page cache.
const READS_KEPT: usize = 32;

/// The header comments of a file.
#[derive(Debug, Clone, Default)]
pub(crate) struct Heading {
    pub(crate) headline: String,
    /// The recording that the IDs of packets belong to. `None`: packets have no IDs.
    pub(crate) recording: Option<Recording>,
    /// The verdict if nothing goes wrong.
    pub(crate) expected: String,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum DigestTime {
    /// While the files are written.
    AsWritten,
    /// After the files are complete.
    AfterClose,
    #[default]
    Never,
}

impl DigestTime {
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
            Self::AfterClose
        }
    }
}

/// A file of a dump that is being written. After an error the file has at least the bytes that were
/// [written](Self::len) before.
#[derive(Debug)]
pub(super) struct CaptureStream {
    /// The link type of the file, which identifies the file within the dump.
    pub(super) link_type: LinkType,
    file: KeptFile,
    len: u64,
    /// Packets that are wholly in the file, and that a failed dump keeps.
    pub(super) safe: WrittenTotals,
    /// Ring-wide identifiers of the file's interfaces, in the order of their blocks.
    pub(super) interfaces: Vec<u16>,
    field: Option<VerdictField>,
}

#[derive(Debug, Default)]
pub(super) struct FileDigests {
    when: DigestTime,
    /// The verdict if nothing goes wrong.
    expected: String,
    /// Digests by link type.
    of: BTreeMap<u16, Sha256>,
}

#[derive(Debug, Clone)]
pub(super) struct FinishedFile {
    pub(super) path: PathBuf,
    /// Identifies the file, whatever its name.
    pub(super) identity: (u64, u64),
    pub(super) bytes: u64,
    /// Lower-case hexadecimal digits. `None`: not computed yet, or not at all.
    pub(super) sha256: Option<String>,
}

impl CaptureStream {
    /// Creates a file, which must not exist, and writes its first piece.
    pub(super) fn create(
        directory: &Directory,
        path: PathBuf,
        first: &EncodedPiece,
    ) -> io::Result<Self> {
        let mut stream = Self {
            link_type: first.link_type,
            file: directory.with_room(0, || KeptFile::create(directory.disk(), path.clone()))?,
            len: 0,
            safe: WrittenTotals::default(),
            interfaces: Vec::new(),
            field: first.field.clone(),
        };
        stream.write(directory, first).inspect_err(|_| {
            // Otherwise a file that belongs to no dump would remain.
            let _ = directory.disk().remove(stream.path());
        })?;
        Ok(stream)
    }

    pub(super) fn path(&self) -> &Path {
        &self.file.path
    }

    pub(super) fn identity(&self) -> (u64, u64) {
        self.file.identity
    }

    pub(super) fn rename(&mut self, path: &Path) {
        path.clone_into(&mut self.file.path);
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn is_open(&self) -> bool {
        self.file.is_open()
    }

    /// Closes the descriptor until it is needed again.
    pub(super) fn close(&mut self) {
        self.file.close();
    }

    pub(super) fn take(&mut self, directory: &Directory) -> io::Result<Arc<dyn DiskFile>> {
        self.file.take(directory.disk())
    }

    /// Writes the next piece, without a sync.
    pub(super) fn write(&mut self, directory: &Directory, piece: &EncodedPiece) -> io::Result<()> {
        let bytes = piece.block.bytes();
        let file = self.file.get(directory.disk())?;
        let written = directory.with_room(bytes.len(), || file.write_all_at(bytes, self.len));
        if let Err(error) = written {
            // Truncates the file to whole blocks, if possible.
            let _ = file.set_len(self.len);
            return Err(error);
        }
        self.len += bytes.len() as u64;
        self.safe = piece.written;
        self.interfaces.extend(&piece.interfaces);
        Ok(())
    }

    /// Writes the verdict if the file has a field for it, and syncs.
    pub(super) fn finish(
        &mut self,
        directory: &Directory,
        verdict: &str,
        digests: &mut FileDigests,
    ) -> io::Result<FinishedFile> {
        let file = self.file.get(directory.disk())?;
        if let Some(field) = &mut self.field {
            field.write(file, verdict)?;
        }
        file.sync()?;
        let is_expected = self.field.is_none() || verdict == digests.expected;
        let digest = digests.of.remove(&self.link_type.0);
        let digest = digest.filter(|_| is_expected);
        let identity = file.identity()?;
        Ok(FinishedFile {
            identity,
            path: self.file.path.clone(),
            bytes: self.len,
            sha256: digest.map(hexadecimal),
        })
    }
}

impl FileDigests {
    pub(super) fn new(when: DigestTime, expected: &str) -> Self {
        Self {
            when,
            expected: expected.to_owned(),
            of: BTreeMap::new(),
        }
    }

    pub(super) fn are_on(&self) -> bool {
        self.when == DigestTime::AsWritten
    }

    pub(super) fn update(&mut self, piece: &EncodedPiece) {
        if !self.are_on() {
            return;
        }
        let bytes = piece.block.bytes();
        let digest = self.of.entry(piece.link_type.0).or_default();
        match &piece.field {
            Some(field) => digest.update(field.filled(bytes, &self.expected)),
            None => digest.update(bytes),
        }
    }

    /// Begins the digest of this link type again, with the first piece of another file.
    pub(super) fn restart(&mut self, first: &EncodedPiece) {
        self.of.remove(&first.link_type.0);
        self.update(first);
    }
}

impl FinishedFile {
    /// Computes a missing digest if digests are on. A file that cannot be read gets no digest.
    pub(super) fn digest(&mut self, directory: &Directory) {
        if self.sha256.is_none() && directory.digests != DigestTime::Never {
            let file = directory.disk().open_to_read(&self.path);
            self.sha256 = file.and_then(|file| sha256_of(&*file, directory)).ok();
        }
    }
}

/// Reads a whole file, and returns its SHA-256. A long reading fails if the recording is aborted.
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
            file.drop_cached_pages();
        }
    }
    file.drop_cached_pages();
    Ok(hexadecimal(digest))
}

pub(crate) fn hexadecimal(digest: Sha256) -> String {
    let bytes = digest.finalize();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
