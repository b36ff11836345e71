//! The capture file that is read.

use std::{
    fs::{File, Metadata},
    io,
    os::{fd::AsFd, unix::fs::MetadataExt},
    path::Path,
};

use crate::{
    commands::target::{Target, is_standard_stream},
    failure::Failure,
};

/// An open input.
#[derive(Debug)]
pub(super) struct Input {
    pub(super) file: File,
    /// Its name for messages.
    pub(super) name: String,
}

impl Input {
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

    /// Whether `target` is this very file, under whatever name. Pipes and devices are never the same.
    pub(super) fn is_same_file(&self, target: &Target) -> bool {
        let identity =
            |metadata: Metadata| metadata.is_file().then(|| (metadata.dev(), metadata.ino()));
        let of_input = self.file.metadata().ok().and_then(identity);
        let of_target = target.metadata().ok().and_then(identity);
        of_input.is_some() && of_input == of_target
    }
}
