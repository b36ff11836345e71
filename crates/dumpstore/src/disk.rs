//! The file system of dumps as a trait, with an implementation by the system. Tests use an
//! implementation that becomes full, read-only or slow (`tests/fake_disk.rs`).

use std::{
    fmt,
    fs::{self, File, OpenOptions, Permissions},
    io::{self, Read},
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use retroscope_unix::{NewDirectories, Owner, make_directory};
use rustix::fs::{CWD, Mode, OFlags, RenameFlags, fchown, open, statvfs};

use crate::{direct::SystemFile, store::Space};

/// Mode of new directories. Users outside the group have no access, because the directories contain
/// captured traffic.
pub const DIRECTORY_MODE: u32 = 0o750;

/// A file system. Errors are usually the system's errors.
pub trait Disk: fmt::Debug + Send + Sync {
    /// Creates a file to read and write, with mode 0640 whatever the umask. The file must not exist
    /// yet.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;

    /// Opens a file to read and write. Does not follow a link.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;

    /// Opens a file to read. Does not follow a link.
    fn open_to_read(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;

    /// Whether this name exists. Follows a link.
    fn exists(&self, path: &Path) -> bool;

    /// Makes a directory of mode 0750, less the umask, unless it exists. A link to a directory is
    /// an error.
    fn make_directory(&self, path: &Path) -> io::Result<()>;

    /// Renames a file, and replaces a file with the name `to`.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Renames a file without replacing one: fails with `AlreadyExists` if `to` exists.
    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Deletes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// The entries of a directory, in any order.
    fn list(&self, path: &Path) -> io::Result<Vec<DirectoryEntry>>;

    /// The entry with this name. If it is a link, the link itself.
    fn entry(&self, path: &Path) -> io::Result<DirectoryEntry>;

    /// The space in the file system of a directory.
    fn space(&self, path: &Path) -> io::Result<Space>;

    /// Syncs a directory itself, so that a rename survives a power cut.
    fn sync_directory(&self, path: &Path) -> io::Result<()>;
}

/// An entry of a directory.
#[derive(Debug, Clone)]
pub struct DirectoryEntry {
    /// Name without directory.
    pub name: PathBuf,
    /// A plain file.
    pub is_file: bool,
    /// A directory; a link to a directory does not count.
    pub is_directory: bool,
    /// Length of the file.
    pub bytes: u64,
    /// Inode number.
    pub inode: u64,
    /// Time of the last change of the content, ns since the epoch.
    pub changed_ns: i64,
}

/// An open file of a [`Disk`], read and written by [`FileExt`] at offsets. After a failed write,
/// the file may contain a part of the data.
pub trait DiskFile: FileExt + fmt::Debug + Send + Sync {
    /// Truncates or extends the file to this length.
    fn set_len(&self, bytes: u64) -> io::Result<()>;

    /// Returns when all data is on the disk. Usually also drops the data from the page cache.
    fn sync(&self) -> io::Result<()>;

    /// Lets the system drop the file's data from the page cache, for data not read again soon.
    fn drop_cached_pages(&self) {}

    /// The device and inode numbers, which identify the file whatever its name.
    fn identity(&self) -> io::Result<(u64, u64)>;
}

impl dyn DiskFile + '_ {
    /// A reader from start to end.
    pub fn reader(&self) -> impl Read {
        sequential(|buffer, offset| self.read_at(buffer, offset))
    }
}

/// A file that may be closed for a while, so that its descriptor is free for other files. The file
/// is opened again when it is needed.
#[derive(Debug)]
pub struct KeptFile {
    /// The path of the file. A caller that renames the file sets the new path.
    pub path: PathBuf,
    /// Device and inode number, see [`DiskFile::identity`].
    pub identity: (u64, u64),
    open: Option<Arc<dyn DiskFile>>,
}

impl KeptFile {
    /// Creates a file, which must not exist yet.
    pub fn create(disk: &dyn Disk, path: PathBuf) -> io::Result<Self> {
        let file = disk.create(&path)?;
        Ok(Self {
            path,
            identity: file.identity()?,
            open: Some(file),
        })
    }

    /// The open file. If the file is closed, opens it again; this fails if the file is missing, or
    /// if another file has its name.
    pub fn get(&mut self, disk: &dyn Disk) -> io::Result<&dyn DiskFile> {
        let file = self.take(disk)?;
        Ok(&**self.open.insert(file))
    }

    /// As [`Self::get`], but the caller gets the open file, and this value counts as closed.
    pub fn take(&mut self, disk: &dyn Disk) -> io::Result<Arc<dyn DiskFile>> {
        if let Some(file) = self.open.take() {
            return Ok(file);
        }
        let file = disk.open(&self.path)?;
        if file.identity()? != self.identity {
            return Err(file_changed_error());
        }
        Ok(file)
    }

    /// Closes the descriptor until the file is needed again.
    pub fn close(&mut self) {
        self.open = None;
    }

    /// Whether the file has a descriptor.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }
}

/// Whether `path` is the file with this identity, and not another file of that name.
pub fn is_same_file(disk: &dyn Disk, path: &Path, identity: (u64, u64)) -> io::Result<bool> {
    match disk.open_to_read(path) {
        Ok(file) => Ok(file.identity()? == identity),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// The error for a file that another program has replaced.
pub fn file_changed_error() -> io::Error {
    io::Error::other("somebody else has changed the file")
}

/// A reader from offset 0 on. `read_at` gets an offset like `pread(2)`.
pub fn sequential<F: Fn(&mut [u8], u64) -> io::Result<usize>>(read_at: F) -> impl Read {
    struct Sequential<F>(F, u64);
    impl<F: Fn(&mut [u8], u64) -> io::Result<usize>> Read for Sequential<F> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let read = self.0(buffer, self.1)?;
            self.1 += read as u64;
            Ok(read)
        }
    }
    Sequential(read_at, 0)
}

/// The system's file system.
#[derive(Debug)]
pub struct SystemDisk {
    /// The user and group that own new files.
    pub owner: Owner,
}

impl SystemDisk {
    /// Creates a file.
    pub fn make(&self, path: &Path) -> io::Result<SystemFile> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o640);
        let file = options.open(path)?;
        file.set_permissions(Permissions::from_mode(0o640))?;
        // If the owner cannot be changed, the file is still kept: its packets matter more.
        if let (Some(uid), gid) = self.owner {
            let _ = fchown(&file, Some(uid), gid);
        }
        Ok(SystemFile::new(file))
    }

    /// Gives new directories to the owner of the files. Root can write to a directory that cannot
    /// be given away.
    pub fn give(&self, made: &NewDirectories) {
        let _ = made.give_to(self.owner);
    }
}

impl Disk for SystemDisk {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(self.make(path)?))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = open(path, flags, Mode::empty())?;
        Ok(Arc::new(SystemFile::new(File::from(file))))
    }

    fn open_to_read(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        // Nonblocking, so that opening a file that became a FIFO does not block.
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = open(path, OFlags::RDONLY | flags, Mode::empty())?;
        Ok(Arc::new(SystemFile::new(File::from(file))))
    }

    /// `false` for a link to a missing file.
    fn exists(&self, path: &Path) -> bool {
        path.exists()
    }

    fn make_directory(&self, path: &Path) -> io::Result<()> {
        match fs::symlink_metadata(path) {
            Ok(found) if found.is_dir() => return Ok(()),
            Ok(_) => return Err(io::ErrorKind::NotADirectory.into()),
            Err(_) => self.give(&make_directory(path, DIRECTORY_MODE)?),
        }
        // The directory exists. If its parent cannot be synced, the dump is still written.
        let parent = path.parent().filter(|it| !it.as_os_str().is_empty());
        let _ = self.sync_directory(parent.unwrap_or(Path::new(".")));
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<()> {
        match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
            Ok(()) => Ok(()),
            // The file system has no RENAME_NOREPLACE (rename(2)): a hard link does not replace a
            // file either.
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {
                fs::hard_link(from, to)?;
                fs::remove_file(from)
            }
            Err(errno) => Err(errno.into()),
        }
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<DirectoryEntry>> {
        let entries = fs::read_dir(path)?;
        // Unreadable entries are skipped: usually they were deleted in the meantime.
        let entry = |entry: io::Result<fs::DirEntry>| self.entry(&entry.ok()?.path()).ok();
        Ok(entries.filter_map(entry).collect())
    }

    fn entry(&self, path: &Path) -> io::Result<DirectoryEntry> {
        let meta = fs::symlink_metadata(path)?;
        let seconds_ns = meta.mtime().saturating_mul(1_000_000_000);
        Ok(DirectoryEntry {
            name: path.file_name().map_or_else(PathBuf::new, PathBuf::from),
            is_file: meta.is_file(),
            is_directory: meta.is_dir(),
            bytes: meta.len(),
            inode: meta.ino(),
            changed_ns: seconds_ns.saturating_add(meta.mtime_nsec()),
        })
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        let found = statvfs(path)?;
        Ok(Space {
            free: found.f_bavail.saturating_mul(found.f_frsize),
            total: found.f_blocks.saturating_mul(found.f_frsize),
        })
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{Gid, Uid};

    use super::*;
    use crate::tests::fake_disk::FakeDisk;

    fn read(file: &dyn DiskFile) -> Vec<u8> {
        let mut bytes = Vec::new();
        file.reader().read_to_end(&mut bytes).unwrap();
        bytes
    }

    /// The promises on which dumps rely, for the system's disk and for the disk of tests.
    fn keeps_its_promises(disk: &dyn Disk, directory: &Path) {
        let (a, b) = (directory.join("a"), directory.join("b"));
        let file = disk.create(&a).unwrap();
        file.write_all_at(b"hello ", 0).unwrap();
        file.write_all_at(b"world", 6).unwrap();
        file.write_all_at(b"HE", 0).unwrap();
        assert_eq!(read(&*file), b"HEllo world");
        file.set_len(5).unwrap();
        let mut two = [0; 2];
        file.read_exact_at(&mut two, 3).unwrap();
        assert_eq!(&two, b"lo");
        let error = file.read_exact_at(&mut two, 4).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        file.sync().unwrap();
        let is_there = |kind: io::Error| kind.kind() == io::ErrorKind::AlreadyExists;
        assert!(is_there(disk.create(&a).unwrap_err()));
        let other = disk.create(&b).unwrap();
        other.write_all_at(b"old", 0).unwrap();
        assert_ne!(file.identity().unwrap(), other.identity().unwrap());
        assert!(is_there(disk.rename_new(&a, &b).unwrap_err()));
        assert_eq!(read(&*disk.open(&b).unwrap()), b"old");
        disk.rename(&a, &b).unwrap();
        assert!(!disk.exists(&a) && disk.exists(&b));
        disk.rename_new(&b, &a).unwrap();
        let again = disk.open(&a).unwrap();
        assert_eq!(read(&*again), b"HEllo");
        assert_eq!(file.identity().unwrap(), again.identity().unwrap());
        disk.sync_directory(directory).unwrap();
        disk.remove(&a).unwrap();
        assert_eq!(read(&*file), b"HEllo", "open still");
        let gone = |kind: io::Error| kind.kind() == io::ErrorKind::NotFound;
        assert!(gone(disk.open(&a).unwrap_err()) && gone(disk.remove(&a).unwrap_err()));
        assert!(gone(disk.rename(&a, &b).unwrap_err()));
        assert!(gone(disk.rename_new(&a, &b).unwrap_err()));
        let mut kept = KeptFile::create(disk, a.clone()).unwrap();
        kept.get(disk).unwrap().write_all_at(b"kept", 0).unwrap();
        kept.close();
        assert_eq!(read(kept.get(disk).unwrap()), b"kept");
        kept.close();
        let replaced = disk.create(&b).unwrap();
        disk.rename(&b, &a).unwrap();
        let error = kept.get(disk).unwrap_err();
        assert_eq!(error.to_string(), file_changed_error().to_string());
        assert_eq!(read(&*replaced), b"");
        disk.remove(&a).unwrap();
        assert!(gone(kept.get(disk).unwrap_err()));
    }

    #[test]
    fn the_systems_disk_does_what_dumps_rely_on() {
        let dir = tempfile::tempdir().unwrap();
        keeps_its_promises(
            &SystemDisk {
                owner: (None, None),
            },
            dir.path(),
        );
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    /// If a link has the name of the file, opening fails, even if the link leads to the same file.
    #[test]
    fn a_link_in_the_place_of_a_file_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let disk = SystemDisk {
            owner: (None, None),
        };
        let (file, moved) = (dir.path().join("file"), dir.path().join("moved"));
        let mut kept = KeptFile::create(&disk, file.clone()).unwrap();
        kept.close();
        fs::rename(&file, &moved).unwrap();
        std::os::unix::fs::symlink(&moved, &file).unwrap();
        let refused = [
            kept.get(&disk).map(drop),
            disk.open(&file).map(drop),
            disk.open_to_read(&file).map(drop),
        ];
        for refused in refused {
            let error = refused.unwrap_err();
            let is_link = error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error());
            assert!(is_link, "{error}");
        }
        fs::rename(&moved, &file).unwrap();
        kept.get(&disk).unwrap();
    }

    /// Root makes files for the user who called sudo. A link of this user must not decide where
    /// root makes a directory and gives it to the user.
    #[test]
    fn no_directory_is_made_where_another_users_link_leads() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIP: needs root");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (theirs, victim) = (dir.path().join("theirs"), dir.path().join("victim"));
        let (uid, gid) = (Uid::from_raw(12_345), Gid::from_raw(12_346));
        let disk = SystemDisk {
            owner: (Some(uid), Some(gid)),
        };
        fs::create_dir(&victim).unwrap();
        fs::create_dir(&theirs).unwrap();
        std::os::unix::fs::chown(&theirs, Some(12_345), None).unwrap();
        std::os::unix::fs::symlink(&victim, theirs.join("link")).unwrap();
        let owner = |path: &Path| {
            let found = fs::metadata(path).unwrap();
            (found.uid(), found.gid())
        };
        let made = theirs.join("link/made");
        assert!(disk.make_directory(&made).is_err());
        assert!(!victim.join("made").exists());
        let made = theirs.join("made");
        disk.make_directory(&made).unwrap();
        assert_eq!(owner(&made), (12_345, 12_346));
        disk.create(&made.join("file")).unwrap();
        assert_eq!(owner(&made.join("file")), (12_345, 12_346));
    }

    #[test]
    fn so_does_that_of_tests() {
        keeps_its_promises(&FakeDisk::default(), Path::new("dumps"));
    }
}
