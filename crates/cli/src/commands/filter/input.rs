//! The input capture file.

use std::{fs::File, io, os::fd::AsFd, path::Path};

use crate::{
    commands::target::{OutputTarget, is_standard_stream},
    failure::Failure,
};

/// An open input.
#[derive(Debug)]
pub(super) struct InputFile {
    pub(super) file: File,
    /// Name for messages.
    pub(super) name: String,
}

impl InputFile {
    /// Opens `path`; `-` is stdin.
    ///
    /// # Errors
    /// [`Failure`], exit 1.
    pub(super) fn open(path: &Path) -> Result<Self, Failure> {
        let (opened, name) = if is_standard_stream(path) {
            let file = io::stdin().as_fd().try_clone_to_owned().map(File::from);
            (file, "stdin".to_owned())
        } else {
            (File::open(path), path.display().to_string())
        };
        match opened {
            Ok(file) => Ok(Self { file, name }),
            Err(error) => Err(Failure::failed(format_args!("cannot open {name}: {error}"))),
        }
    }

    /// Whether `target` is the same file, under any name. Pipes and devices are never the same.
    pub(super) fn is_same_file(&self, target: &OutputTarget) -> bool {
        self.file
            .metadata()
            .is_ok_and(|metadata| target.is_file(&metadata))
    }
}
