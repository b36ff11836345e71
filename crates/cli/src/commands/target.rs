//! The destination of output: a file or stdout.

use std::{
    fmt,
    fs::{self, File, Metadata},
    io,
    os::{
        fd::AsFd,
        unix::fs::{MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
};

use anyhow::Context;

/// The destination of output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum OutputTarget {
    /// Stdout.
    Stdout,
    /// A file. An existing file is overwritten.
    File(PathBuf),
}

impl OutputTarget {
    /// `-` is stdout.
    pub(super) fn new(path: PathBuf) -> Self {
        if is_standard_stream(&path) {
            Self::Stdout
        } else {
            Self::File(path)
        }
    }

    /// Opens the destination for writing, without a buffer. A new file has mode 0640, because it
    /// contains traffic.
    ///
    /// # Errors
    /// The system's error, with the name.
    pub(super) fn open(&self) -> anyhow::Result<File> {
        let opened = match self {
            Self::Stdout => io::stdout().as_fd().try_clone_to_owned().map(File::from),
            Self::File(path) => {
                let mut options = File::options();
                options.write(true).create(true).truncate(true).mode(0o640);
                options.open(path)
            }
        };
        opened.with_context(|| format!("cannot write {self}"))
    }

    /// Whether the destination is the same file as `other`, under any name, before it is opened.
    /// Pipes and devices are never the same.
    pub(super) fn is_file(&self, other: &Metadata) -> bool {
        let metadata = match self {
            Self::Stdout => {
                let stdout = io::stdout().as_fd().try_clone_to_owned();
                stdout.and_then(|stdout| File::from(stdout).metadata())
            }
            Self::File(path) => fs::metadata(path),
        };
        let identity = |metadata: &Metadata| (metadata.dev(), metadata.ino());
        other.is_file() && metadata.is_ok_and(|own| identity(&own) == identity(other))
    }
}

impl fmt::Display for OutputTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdout => f.write_str("stdout"),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

/// Whether the error means that the reader of the output left.
pub(super) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}

/// Whether `path` is `-`, which means stdin or stdout.
pub(super) fn is_standard_stream(path: &Path) -> bool {
    path.as_os_str() == "-"
}
