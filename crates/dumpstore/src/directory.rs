//! The directory that dumps go to.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use retroscope_unix::{make_directories, sudo_caller};

use crate::{
    disk::{DIRECTORY_MODE, Disk, SystemDisk},
    store::keeper::KeeperHandle,
    template::{NameFacts, NameTemplate},
};

/// A directory of dumps. Clones share the file system and the keeper.
#[derive(Debug, Clone)]
pub struct DumpDirectory {
    path: PathBuf,
    /// The name of this directory, if it is a subdirectory of the directory of dumps. The first
    /// dump in the subdirectory makes the subdirectory. `None` for the directory of dumps itself.
    below: Option<SubDirectory>,
    disk: Arc<dyn Disk>,
    naming: Arc<Naming>,
    /// The file system accepts direct writes, which bypass the page cache. `true` if this was not
    /// tested.
    goes_directly: bool,
    /// The handle of the threads that list, delete and hold the directory's dumps.
    keeper: Option<KeeperHandle>,
}

/// The form of file names.
#[derive(Debug, Default)]
struct Naming {
    template: NameTemplate,
    /// The name of this system.
    host: String,
}

impl DumpDirectory {
    /// Makes the directory and its parents (0750, less the umask) if they are missing. As a trial,
    /// makes and removes a file.
    ///
    /// If the process runs as root through sudo, new files are given to the calling user
    /// (`SUDO_UID`, `SUDO_GID`), if the file system permits.
    ///
    /// # Errors
    /// The directory cannot be made, or the file of the trial cannot be made or removed.
    pub fn open(path: &Path) -> io::Result<Self> {
        let owner = sudo_caller();
        let disk = SystemDisk { owner };
        disk.give(&make_directories(path, DIRECTORY_MODE)?);
        let probe = path.join(format!(".retroscope-{}.probe", std::process::id()));
        let goes_directly = disk.make(&probe)?.goes_directly();
        disk.remove(&probe)?;
        Ok(Self {
            goes_directly,
            ..Self::on(Arc::new(disk), path)
        })
    }

    /// The working directory. Does not test whether files can be made.
    pub fn untried() -> Self {
        let disk = SystemDisk {
            owner: (None, None),
        };
        Self::on(Arc::new(disk), Path::new(""))
    }

    /// A directory that exists.
    pub fn on(disk: Arc<dyn Disk>, path: &Path) -> Self {
        let path = path.to_owned();
        Self {
            path,
            below: None,
            disk,
            naming: Arc::default(),
            goes_directly: true,
            keeper: None,
        }
    }

    /// A message for the user if the file system refuses direct writes.
    pub fn notice(&self) -> Option<String> {
        (!self.goes_directly).then(|| {
            let path = self.openable_path().display();
            format!("{path}: its file system takes no direct writes (O_DIRECT): dumps go through the page cache, which may be slower")
        })
    }

    /// This directory with this keeper.
    pub fn with_keeper(self, keeper: Option<&KeeperHandle>) -> Self {
        let keeper = keeper.cloned();
        Self { keeper, ..self }
    }

    /// The handle of the threads that list, delete and hold the directory's dumps.
    pub fn keeper(&self) -> Option<&KeeperHandle> {
        self.keeper.as_ref()
    }

    /// The ID of a dump whose files have this stem.
    pub fn id(&self, stem: &str) -> String {
        match &self.below {
            Some(below) => format!("{}/{stem}", below.as_str()),
            None => stem.to_owned(),
        }
    }

    /// The name of this directory, if it is below the directory of dumps.
    pub fn below_name(&self) -> Option<&str> {
        self.below.as_ref().map(SubDirectory::as_str)
    }

    /// Calls `act` while no dump is deleted. `act` must not make room.
    pub fn without_deletion<T>(&self, act: impl FnOnce() -> T) -> T {
        match &self.keeper {
            Some(keeper) => keeper.without_deletion(act),
            None => act(),
        }
    }

    /// Calls `act`, which needs `bytes` of space. Calls `act` again while the file system is full
    /// and room can be made. If a quota is exceeded, room is made once. The quota may be that of a
    /// user who has other files than these dumps, and then deleting dumps may not help.
    pub fn with_room<T>(
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

    /// This directory, with file names of this form.
    pub fn with_names(self, template: &NameTemplate, host: &str) -> Self {
        let naming = Arc::new(Naming {
            template: template.clone(),
            host: host.to_owned(),
        });
        Self { naming, ..self }
    }

    /// A file name without extension: see [`NameTemplate::stem`].
    pub fn stem(&self, facts: &NameFacts, number: u64, again: u64) -> String {
        let Naming { template, host } = &*self.naming;
        template.stem(facts, host, number, again)
    }

    /// The subdirectory with this name; without a name, this directory.
    pub fn below(&self, name: Option<&SubDirectory>) -> Self {
        let mut directory = self.clone();
        if let Some(name) = name {
            directory.path.push(name.as_str());
            directory.below = Some(name.clone());
        }
        directory
    }

    /// Makes this directory if it is a missing subdirectory.
    pub fn make(&self) -> io::Result<()> {
        if self.below.is_some() {
            self.disk.make_directory(&self.path)
        } else {
            Ok(())
        }
    }

    /// The path that the user gave, with the name of a subdirectory; may be empty.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path in a form that can be opened: `.` for an empty path.
    pub fn openable_path(&self) -> &Path {
        if self.path.as_os_str().is_empty() {
            Path::new(".")
        } else {
            &self.path
        }
    }

    /// The file system of this directory.
    pub fn disk(&self) -> &dyn Disk {
        &*self.disk
    }
}

/// The name of a directory: 1 to 64 bytes of ASCII letters, digits, `-`, `_` and `.`. The name does
/// not start with `.`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SubDirectory(Arc<str>);

impl SubDirectory {
    /// Checks a name.
    ///
    /// # Errors
    /// A message for the user if the text is not such a name.
    pub fn new(name: &str) -> Result<Self, String> {
        let is_good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.starts_with('.') || !(1..=64).contains(&name.len()) || !name.chars().all(is_good) {
            return Err(
                "a directory below that of the dumps is named by 1 to 64 letters, digits, '-', '_' and '.', not beginning with '.'".to_owned(),
            );
        }
        Ok(Self(name.into()))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    #[test]
    fn a_directory_is_made_and_files_are_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x/y");
        let directory = DumpDirectory::open(&path).unwrap();
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
