//! The destination of output: a file or stdout.

use std::{
    fmt,
    fs::{self, File, Metadata},
    io::{self, IsTerminal as _},
    os::{
        fd::AsFd,
        unix::fs::{MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
};

use anyhow::Context;
use retroscope_unix::sudo_caller;
use rustix::fs::fchown;

use crate::failure::Failure;

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

    /// Refuses stdout for packets if stdout is a terminal, or is also for JSON.
    pub(super) fn refuse_stdout(&self, json: bool) -> Result<(), Failure> {
        let why = match self {
            Self::Stdout if json => "--json and -w - both write to stdout: name a file",
            Self::Stdout if io::stdout().is_terminal() => {
                "stdout is a terminal: name a file, or pipe into tshark -r -"
            }
            _ => return Ok(()),
        };
        Err(Failure::usage(why))
    }

    /// Opens the destination. A new file has mode 0640, less the umask, because it contains
    /// traffic.
    ///
    /// # Errors
    /// The system's error, with the name.
    pub(super) fn open(&self) -> anyhow::Result<File> {
        let opened = match self {
            Self::Stdout => io::stdout().as_fd().try_clone_to_owned().map(File::from),
            Self::File(path) => open_or_create(path),
        };
        opened.with_context(|| format!("cannot write {self}"))
    }

    /// Whether the destination is the regular file `other`, under any name.
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

fn open_or_create(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).mode(0o640);
    match options.clone().create_new(true).open(path) {
        // The caller of sudo becomes the owner neither of an existing file nor of a file that is
        // created through a link.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            options.create(true).truncate(true).open(path)
        }
        made => {
            let file = made?;
            // If the owner cannot be changed, the file is still written.
            if let (Some(uid), gid) = sudo_caller() {
                let _ = fchown(&file, Some(uid), gid);
            }
            Ok(file)
        }
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

/// Whether the reader of the output closed its end.
pub(super) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}

/// Whether `path` is `-`: stdin or stdout.
pub(super) fn is_standard_stream(path: &Path) -> bool {
    path.as_os_str() == "-"
}
