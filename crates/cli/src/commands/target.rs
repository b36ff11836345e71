//! The place where output goes: a file or stdout.

use std::{
    fmt,
    fs::{self, File, Metadata},
    io,
    os::fd::AsFd,
    path::{Path, PathBuf},
};

use anyhow::Context;

/// Where output goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    /// Stdout.
    Stdout,
    /// A file, which is made anew.
    File(PathBuf),
}

impl Target {
    /// `-` is stdout.
    pub(super) fn new(path: PathBuf) -> Self {
        if is_standard_stream(&path) {
            Self::Stdout
        } else {
            Self::File(path)
        }
    }

    /// Opens it for writing, without a buffer.
    ///
    /// # Errors
    /// What the system said, with the name.
    pub(super) fn open(&self) -> anyhow::Result<File> {
        let opened = match self {
            Self::Stdout => io::stdout().as_fd().try_clone_to_owned().map(File::from),
            Self::File(path) => File::create(path),
        };
        opened.with_context(|| format!("cannot write {self}"))
    }

    /// What it is now, before it is opened.
    pub(super) fn metadata(&self) -> io::Result<Metadata> {
        match self {
            Self::Stdout => File::from(io::stdout().as_fd().try_clone_to_owned()?).metadata(),
            Self::File(path) => fs::metadata(path),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdout => f.write_str("stdout"),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

/// Whether whoever read the output has left.
pub(super) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}

/// Whether `-` was given: stdin or stdout.
pub(super) fn is_standard_stream(path: &Path) -> bool {
    path.as_os_str() == "-"
}
