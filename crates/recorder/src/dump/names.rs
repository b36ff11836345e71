//! The directory of the dumps, and how their files are written.

use std::{io, ops::Deref, path::Path, sync::Arc, time::Duration};

use retroscope_dumpstore::{
    directory::{self, SubDirectory},
    store::keeper::KeeperHandle,
    template::NameTemplate,
};

use super::{block::BLOCK_BYTES, compress::ZstdLevel, encode::DumpFormat, stream::DigestTime};
use crate::control::progress::StopControl;

/// The directory of the dumps or one of its subdirectories, and how the files there are written.
#[derive(Debug, Clone)]
pub(crate) struct Directory {
    place: directory::DumpDirectory,
    pub(super) format: DumpFormat,
    /// Compression level of complete files; `None`: files stay plain.
    pub(super) zstd: Option<ZstdLevel>,
    pub(super) digests: DigestTime,
    /// A block of a file is written when it has at least this many encoded bytes.
    pub(super) block_bytes: usize,
    control: Arc<StopControl>,
}

impl Deref for Directory {
    type Target = directory::DumpDirectory;

    fn deref(&self) -> &Self::Target {
        &self.place
    }
}

impl Directory {
    /// Opens a directory as [`directory::DumpDirectory::open`] does.
    pub(crate) fn open(path: &Path, format: DumpFormat) -> io::Result<Self> {
        let place = directory::DumpDirectory::open(path)?;
        Ok(Self::of(place, format).with_digests(DigestTime::here()))
    }

    /// The working directory, without a test whether it is writable.
    pub(crate) fn untried(format: DumpFormat) -> Self {
        Self::of(directory::DumpDirectory::untried(), format)
    }

    /// An existing directory; without digests of files.
    #[cfg(test)]
    pub(crate) fn on(
        disk: Arc<dyn retroscope_dumpstore::disk::Disk>,
        path: &Path,
        format: DumpFormat,
    ) -> Self {
        Self::of(directory::DumpDirectory::on(disk, path), format)
    }

    fn of(place: directory::DumpDirectory, format: DumpFormat) -> Self {
        Self {
            place,
            format,
            zstd: None,
            digests: DigestTime::Never,
            block_bytes: BLOCK_BYTES,
            control: Arc::default(),
        }
    }

    pub(crate) fn with_digests(self, digests: DigestTime) -> Self {
        Self { digests, ..self }
    }

    pub(crate) fn compressed(self, zstd: Option<ZstdLevel>) -> Self {
        Self { zstd, ..self }
    }

    #[cfg(test)]
    pub(crate) fn with_blocks(self, block_bytes: usize) -> Self {
        Self {
            block_bytes,
            ..self
        }
    }

    pub(crate) fn kept_by(self, keeper: Option<&KeeperHandle>) -> Self {
        let place = self.place.with_keeper(keeper);
        Self { place, ..self }
    }

    pub(crate) fn ended_by(self, control: &Arc<StopControl>) -> Self {
        let control = Arc::clone(control);
        Self { control, ..self }
    }

    /// Whether work that takes minutes must stop: see [`StopControl::is_urgent`].
    pub(super) fn is_urgent(&self, grace: Duration) -> bool {
        self.control.is_urgent(grace)
    }

    pub(crate) fn with_names(self, template: &NameTemplate, host: &str) -> Self {
        let place = self.place.with_names(template, host);
        Self { place, ..self }
    }

    /// The subdirectory of this name; without a name this directory.
    pub(super) fn below(&self, name: Option<&SubDirectory>) -> Self {
        let place = self.place.below(name);
        Self {
            place,
            ..self.clone()
        }
    }
}
