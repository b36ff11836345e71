//! The directory and the name that a path leads to: path_resolution(7).
//!
//! Root makes files for another user, and this user may be able to replace a part of the path by a
//! link at any moment. The link must not lead root elsewhere. So [`FileLocation::find`] opens one
//! directory after the other and keeps the last one open. Later steps use names in that directory
//! only, never the path again. Links are followed one by one, each from the directory that contains
//! the link. If the process is root, [`FileLocation::find`] refuses a link that another user may
//! have made. Other processes follow this link too: they usually have only their user's rights.

use std::{
    ffi::{OsStr, OsString},
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStringExt,
    },
    path::{Component, Path},
};

use rustix::{
    fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, fstat, openat, readlinkat, statat},
    io::Errno,
    process::geteuid,
};

/// Maximum number of links in a path, as the kernel's `MAXSYMLINKS`.
const LINKS_MAX: u32 = 40;
/// Opens the file of a name, or the symbolic link itself, without access to its content: open(2).
const LOOK: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A name in a directory that is open.
#[derive(Debug)]
pub(crate) struct FileLocation {
    pub(crate) directory: OwnedFd,
    pub(crate) name: OsString,
}

impl FileLocation {
    /// The location of a file, which need not exist.
    ///
    /// # Errors
    /// A directory of the path is missing, is no directory, or may not be entered. The path leads
    /// through more than [`LINKS_MAX`] links. The path, or the target of a link at its end, has no
    /// name at its end (`/`, `..`). The path leads root through a link that another user may have
    /// made, or by `..` into a directory where another user may write.
    pub(crate) fn find(path: &Path) -> io::Result<Self> {
        let mut walk = PathWalk::new(path)?;
        loop {
            let name = walk.rest.pop().ok_or(io::ErrorKind::IsADirectory)?;
            let (is_parent, is_last) = (name == "..", walk.rest.is_empty());
            if is_parent && is_last {
                return Err(io::ErrorKind::IsADirectory.into());
            }
            if is_last && !is_link(&walk.at, &name) {
                walk.check_links()?;
                let directory = walk.at;
                return Ok(Self { directory, name });
            }
            walk.enter(&name)?;
            if is_parent && is_shared(&fstat(&walk.at)?) {
                let why = "`..` leads to a directory that another user can write to: write the path without `..`";
                return Err(io::Error::other(why));
            }
        }
    }
}

/// The way along a path.
#[derive(Debug)]
pub(crate) struct PathWalk {
    /// The directory that was reached.
    pub(crate) at: OwnedFd,
    /// Names that follow, the next one last.
    pub(crate) rest: Vec<OsString>,
    links: u32,
    /// The first link that another user may have made.
    foreign_link: Option<OsString>,
}

impl PathWalk {
    pub(crate) fn new(path: &Path) -> io::Result<Self> {
        let mut walk = Self {
            at: open_directory(".")?,
            rest: Vec::new(),
            links: 0,
            foreign_link: None,
        };
        walk.follow_path(path)?;
        Ok(walk)
    }

    /// Goes on along `path`: from here if it is relative.
    fn follow_path(&mut self, path: &Path) -> Result<(), Errno> {
        if path.is_absolute() {
            self.at = open_directory("/")?;
        }
        let names = path.components().rev().filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => None,
        });
        self.rest.extend(names);
        Ok(())
    }

    /// Goes into the directory of this name. If the name is a symbolic link, follows the link.
    ///
    /// # Errors
    /// `NOENT`: nothing has this name. `NOTDIR`: a file that is neither a directory nor a link has
    /// the name. `LOOP`: too many links. Other errors of the system also pass through.
    pub(crate) fn enter(&mut self, name: &OsStr) -> Result<(), Errno> {
        // Only with O_DIRECTORY does O_PATH mount what autofs(5) mounts on demand.
        match openat(&self.at, name, LOOK | OFlags::DIRECTORY, Mode::empty()) {
            Ok(directory) => {
                self.at = directory;
                Ok(())
            }
            Err(Errno::NOTDIR) => self.follow(name),
            Err(error) => Err(error),
        }
    }

    /// Follows a link.
    fn follow(&mut self, name: &OsStr) -> Result<(), Errno> {
        let link = openat(&self.at, name, LOOK, Mode::empty())?;
        let stat = fstat(&link)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
            return Err(Errno::NOTDIR);
        }
        self.links += 1;
        if self.links > LINKS_MAX {
            return Err(Errno::LOOP);
        }
        if self.foreign_link.is_none() && may_be_foreign(&stat, &fstat(&self.at)?) {
            self.foreign_link = Some(name.to_owned());
        }
        let target = readlinkat(&link, "", Vec::new())?.into_bytes();
        self.follow_path(Path::new(&OsString::from_vec(target)))
    }

    /// # Errors
    /// The path led through a link that another user may have made.
    pub(crate) fn check_links(&self) -> io::Result<()> {
        match &self.foreign_link {
            None => Ok(()),
            Some(link) => Err(io::Error::other(format!(
                "{} is a symbolic link that another user can change: write the path that the link leads to",
                link.display()
            ))),
        }
    }
}

fn open_directory(path: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(CWD, path, flags, Mode::empty())
}

fn is_link(directory: impl AsFd, name: &OsStr) -> bool {
    let found = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW);
    found.is_ok_and(|it| FileType::from_raw_mode(it.st_mode) == FileType::Symlink)
}

/// Whether another user may have put a link into a directory. In a sticky directory, as `/tmp`,
/// only root and the owners of the directory and of a link can replace the link: inode(7).
fn may_be_foreign(link: &Stat, directory: &Stat) -> bool {
    let is_sticky = directory.st_mode & 0o1000 != 0;
    let is_own = is_own(link) && is_own(directory) && is_sticky;
    is_shared(directory) && !is_own
}

/// Whether another user may be able to make, rename or remove names in a directory. In a sticky
/// directory of root, other users rename and remove only names of their own files. Always `false`
/// if this process is not root. The bits of the group include all users whom an access control list
/// lets write: acl(5).
pub(crate) fn is_shared(directory: &Stat) -> bool {
    geteuid().is_root() && (!is_own(directory) || directory.st_mode & 0o022 != 0)
}

/// Device and inode number.
pub(crate) fn identity(file: &Stat) -> (u64, u64) {
    (file.st_dev, file.st_ino)
}

fn is_own(file: &Stat) -> bool {
    file.st_uid == 0 || file.st_uid == geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{PermissionsExt, lchown, symlink},
    };

    use super::*;
    use crate::tests::{THEIR_UID, theirs};

    #[test]
    fn links_are_followed_where_no_other_user_can_make_them() {
        let Some(theirs) = theirs() else { return };
        let folder = theirs.folder.path();
        let link = folder.join("link");
        symlink("victim", &link).unwrap();
        let is_found = || FileLocation::find(&link.join("passwd")).is_ok();
        let allow = |mode| fs::set_permissions(folder, fs::Permissions::from_mode(mode)).unwrap();
        for (mode, links_uid, expected) in [
            (0o755, 0, true),
            (0o755, THEIR_UID, true),
            (0o777, 0, false),
            (0o775, 0, false),
            // A sticky directory, as /tmp.
            (0o1777, 0, true),
            (0o1777, THEIR_UID, false),
        ] {
            allow(mode);
            lchown(&link, Some(links_uid), None).unwrap();
            assert_eq!(is_found(), expected, "{mode:o}, {links_uid}");
        }
        allow(0o1755);
        lchown(folder, Some(THEIR_UID), None).unwrap();
        lchown(&link, Some(0), None).unwrap();
        assert!(
            !is_found(),
            "the owner of a sticky directory removes any name"
        );
    }

    #[test]
    fn parents_are_entered_where_no_other_user_can_move_directories() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("sub")).unwrap();
        let path = folder.path().join("sub/../file");
        assert_eq!(FileLocation::find(&path).unwrap().name, "file");
        symlink("sub/../file", folder.path().join("link")).unwrap();
        let link = FileLocation::find(&folder.path().join("link"));
        assert_eq!(link.unwrap().name, "file");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let found = FileLocation::find(&path);
        assert_eq!(found.is_err(), geteuid().is_root(), "{found:?}");
    }

    #[test]
    fn a_directory_is_no_place_of_a_file() {
        for path in ["", "/", ".", "..", "/tmp/.."] {
            assert!(FileLocation::find(Path::new(path)).is_err(), "{path}");
        }
        let location = FileLocation::find(Path::new("/proc/self/status")).unwrap();
        assert_eq!(location.name, "status");
    }
}
