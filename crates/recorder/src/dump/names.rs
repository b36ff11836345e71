//! The directory that dumps go to, and the names of its files.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use retroscope_unix::{Owner, make_directories};
use rustix::fs::{Gid, Uid};

use super::{
    block::BLOCK_BYTES,
    compress::ZstdLevel,
    disk::{DIRECTORY_MODE, Disk, SystemDisk},
    encode::Format,
    store::keeper::Keeper,
    stream::Digests,
    template::{NameFacts, NameTemplate},
};
use crate::{analysis::terms::SubDirectory, control::progress::Control};

/// Where dumps are written, and how: the same for all dumps of a recorder.
#[derive(Debug, Clone)]
pub(crate) struct Directory {
    path: PathBuf,
    /// Its name, if it lies in that of the dumps, and is made when it is needed.
    below: Option<SubDirectory>,
    disk: Arc<dyn Disk>,
    pub(super) format: Format,
    /// How hard complete files are compressed; `None`: they stay plain.
    pub(super) zstd: Option<ZstdLevel>,
    naming: Arc<Naming>,
    pub(super) digests: Digests,
    /// From so many encoded bytes on a block of a file is written.
    pub(super) block_bytes: usize,
    /// Its file system takes writes past the page cache.
    goes_directly: bool,
    /// Who looks after it.
    keeper: Option<Keeper>,
    /// Who says that the recording is to end.
    control: Arc<Control>,
}

/// How files are named.
#[derive(Debug, Default)]
struct Naming {
    template: NameTemplate,
    /// This system's name.
    host: String,
}

impl Directory {
    /// Makes the directory (0750, parents too) if it is missing, and tries that files can be made in it.
    ///
    /// Run as root through sudo, what is made belongs to the calling user (`SUDO_UID`, `SUDO_GID`).
    ///
    /// # Errors
    /// What the system said about making the directory or a file in it.
    pub(crate) fn open(path: &Path, format: Format) -> io::Result<Self> {
        let owner = sudo_caller();
        let disk = SystemDisk { owner };
        disk.give(&make_directories(path, DIRECTORY_MODE)?);
        let probe = path.join(format!(".retroscope-{}.probe", std::process::id()));
        let goes_directly = disk.make(&probe)?.goes_directly();
        disk.remove(&probe)?;
        let directory = Self::on(Arc::new(disk), path, format).with_digests(Digests::here());
        Ok(Self {
            goes_directly,
            ..directory
        })
    }

    /// The working directory, which may or may not be written to.
    pub(crate) fn untried(format: Format) -> Self {
        let disk = SystemDisk {
            owner: (None, None),
        };
        Self::on(Arc::new(disk), Path::new(""), format)
    }

    /// A directory that is there; without digests of files.
    pub(crate) fn on(disk: Arc<dyn Disk>, path: &Path, format: Format) -> Self {
        let path = path.to_owned();
        Self {
            path,
            below: None,
            disk,
            format,
            zstd: None,
            naming: Arc::default(),
            digests: Digests::Never,
            block_bytes: BLOCK_BYTES,
            goes_directly: true,
            keeper: None,
            control: Arc::default(),
        }
    }

    /// The same with digests at another time.
    pub(crate) fn with_digests(self, digests: Digests) -> Self {
        Self { digests, ..self }
    }

    /// The same with files that are compressed when they are complete.
    pub(crate) fn compressed(self, zstd: Option<ZstdLevel>) -> Self {
        Self { zstd, ..self }
    }

    /// What is to be said of it at the start.
    pub(crate) fn notice(&self) -> Option<String> {
        (!self.goes_directly).then(|| {
            let path = self.here().display();
            format!("{path}: its file system takes no direct writes (O_DIRECT): dumps go through the page cache, which may be slower")
        })
    }

    /// The same with blocks of so many bytes.
    #[cfg(test)]
    pub(crate) fn with_blocks(self, block_bytes: usize) -> Self {
        Self {
            block_bytes,
            ..self
        }
    }

    /// The same, looked after.
    pub(crate) fn kept_by(self, keeper: &Keeper) -> Self {
        let keeper = Some(keeper.clone());
        Self { keeper, ..self }
    }

    /// The same for a recording that is ended so.
    pub(crate) fn ended_by(self, control: &Arc<Control>) -> Self {
        let control = Arc::clone(control);
        Self { control, ..self }
    }

    /// Whether what may take minutes is to be given up: see [`Control::is_urgent`].
    pub(super) fn is_urgent(&self, grace: Duration) -> bool {
        self.control.is_urgent(grace)
    }

    pub(super) fn keeper(&self) -> Option<&Keeper> {
        self.keeper.as_ref()
    }

    /// What a dump is called that has files of this stem.
    pub(super) fn id(&self, stem: &str) -> String {
        match &self.below {
            Some(below) => format!("{}/{stem}", below.as_str()),
            None => stem.to_owned(),
        }
    }

    /// Its name in that of the dumps, if it lies there.
    pub(super) fn below_name(&self) -> Option<&str> {
        self.below.as_ref().map(SubDirectory::as_str)
    }

    /// Does this while no dump is deleted. It must not make room.
    pub(super) fn without_deletion<T>(&self, act: impl FnOnce() -> T) -> T {
        match &self.keeper {
            Some(keeper) => keeper.without_deletion(act),
            None => act(),
        }
    }

    /// Does what takes so many bytes, again and again as long as there is no room for it and room can be made. Where a quota is exceeded, room is made
    /// once: it may be that of a user whose files are not these dumps, and then no dump less is any help.
    pub(super) fn with_room<T>(
        &self,
        bytes: usize,
        mut act: impl FnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        let mut tries_at_quota = 0;
        loop {
            match act() {
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
                    ) =>
                {
                    let is_quota = error.kind() == io::ErrorKind::QuotaExceeded;
                    tries_at_quota += u32::from(is_quota);
                    if tries_at_quota > 1 {
                        return Err(error);
                    }
                    let keeper = self.keeper.as_ref();
                    if !keeper.is_some_and(|keeper| keeper.make_room(bytes as u64)) {
                        return Err(error);
                    }
                }
                done => return done,
            }
        }
    }

    /// The same with names of this form.
    pub(crate) fn with_names(self, template: &NameTemplate, host: &str) -> Self {
        let naming = Arc::new(Naming {
            template: template.clone(),
            host: host.to_owned(),
        });
        Self { naming, ..self }
    }

    /// A name without extension, as [`NameTemplate::stem`] makes it.
    pub(super) fn stem(&self, facts: &NameFacts, number: u64, again: u64) -> String {
        let Naming { template, host } = &*self.naming;
        template.stem(facts, host, number, again)
    }

    /// The one of this name in it; without a name itself.
    pub(super) fn below(&self, name: Option<&SubDirectory>) -> Self {
        let mut directory = self.clone();
        if let Some(name) = name {
            directory.path.push(name.as_str());
            directory.below = Some(name.clone());
        }
        directory
    }

    /// Sees to it that it is there.
    pub(super) fn make(&self) -> io::Result<()> {
        if self.below.is_some() {
            self.disk.make_directory(&self.path)
        } else {
            Ok(())
        }
    }

    /// The directory's path as the user gave it.
    #[must_use]
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The same as something that can be opened.
    pub(super) fn here(&self) -> &Path {
        if self.path.as_os_str().is_empty() {
            Path::new(".")
        } else {
            &self.path
        }
    }

    /// The file system that it lies in.
    pub(super) fn disk(&self) -> &dyn Disk {
        &*self.disk
    }
}

/// The user behind sudo, if this process is root through it.
fn sudo_caller() -> Owner {
    if !rustix::process::geteuid().is_root() {
        return (None, None);
    }
    let id = |name| std::env::var(name).ok()?.parse::<u32>().ok();
    let ids = id("SUDO_UID").zip(id("SUDO_GID"));
    ids.map(|(uid, gid)| (Uid::from_raw(uid), Gid::from_raw(gid)))
        .unzip()
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    #[test]
    fn a_directory_is_made_and_files_are_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x/y");
        let directory = Directory::open(&path, Format::PcapNg).unwrap();
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777 & !0o750,
            0
        );
        let file = path.join("f");
        drop(directory.disk().create(&file).unwrap());
        assert_eq!(
            fs::metadata(&file).unwrap().permissions().mode() & 0o777,
            0o640
        );
        assert_eq!(
            directory.disk().create(&file).unwrap_err().kind(),
            io::ErrorKind::AlreadyExists
        );
    }
}
