//! Directories that are made for another user.

use std::{
    ffi::OsStr,
    io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{Dir, Mode, OFlags, fchown, fstat, mkdirat, openat},
    io::Errno,
    process::geteuid,
};

use crate::{Owner, location::PathWalk};

/// The directories that [`make_directories`] or [`make_directory`] made, kept open. If another user
/// renames a directory, no other directory is given away instead.
#[derive(Debug)]
pub struct NewDirectories {
    walk: PathWalk,
    /// In the order of their creation.
    made: Vec<NewDirectory>,
}

#[derive(Debug)]
struct NewDirectory {
    descriptor: OwnedFd,
    /// Whether [`is_new`] accepted the directory: an empty directory of this process's user.
    /// Another user may have exchanged the directory before it was opened.
    is_certain: bool,
}

/// Makes a directory and the missing directories above, with this mode, less the umask. Any thread
/// may call this function.
///
/// # Errors
/// The system's; `NotADirectory` if a file has the name. If this process is root and a directory is
/// missing: the path leads through a link that another user may have made. Root then makes no
/// directory after this link.
pub fn make_directories(path: &Path, mode: u32) -> io::Result<NewDirectories> {
    make_missing(path, mode, true)
}

/// Makes a directory whose parent exists, as [`make_directories`] does.
///
/// # Errors
/// As [`make_directories`]; `NotFound` if the parent is missing.
pub fn make_directory(path: &Path, mode: u32) -> io::Result<NewDirectories> {
    make_missing(path, mode, false)
}

fn make_missing(path: &Path, mode: u32, with_parents: bool) -> io::Result<NewDirectories> {
    let (mut walk, mut made) = (PathWalk::new(path)?, Vec::new());
    while let Some(name) = walk.rest.pop() {
        match walk.enter(&name) {
            Err(Errno::NOENT) if with_parents || walk.rest.is_empty() => {
                walk.check_links()?;
                made.extend(make(&walk.at, &name, mode)?);
                walk.enter(&name)?;
            }
            entered => entered?,
        }
    }
    Ok(NewDirectories { walk, made })
}

impl NewDirectories {
    /// Whether no directory was made.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.made.is_empty()
    }

    /// Gives the new directories to a user.
    ///
    /// # Errors
    /// The system's, or another user may have replaced a directory. If this process is root:
    /// another user may have made a link in the path, and so have chosen where the directories are.
    /// Root then keeps the directories.
    pub fn give_to(&self, (uid, gid): Owner) -> io::Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        self.walk.check_links()?;
        for directory in &self.made {
            let found = fstat(&directory.descriptor)?;
            // A file system without owners, such as vfat, may show the user `uid` as the owner of a
            // new directory.
            let is_given = uid.is_some_and(|uid| uid.as_raw() == found.st_uid);
            if !directory.is_certain && !is_given {
                let why = "another user has replaced the new directory";
                return Err(io::Error::other(why));
            }
            fchown(&directory.descriptor, uid, gid)?;
        }
        Ok(())
    }
}

/// Makes one directory. `None`: another process was faster.
fn make(parent: impl AsFd, name: &OsStr, mode: u32) -> io::Result<Option<NewDirectory>> {
    match mkdirat(&parent, name, Mode::from_raw_mode(mode)) {
        Err(Errno::EXIST) => return Ok(None),
        made => made?,
    }
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let descriptor = openat(&parent, name, flags, Mode::empty())?;
    let is_certain = is_new(&descriptor)?;
    Ok(Some(NewDirectory {
        descriptor,
        is_certain,
    }))
}

/// Whether an opened directory is empty and belongs to the effective user of this process. Then it
/// is safe to give the directory away. The call mkdirat(2) opens nothing, so another user may have
/// exchanged the new directory since.
fn is_new(directory: impl AsFd) -> io::Result<bool> {
    let is_own_name = |name: &[u8]| matches!(name, b"." | b"..");
    let mut entries = Dir::read_from(&directory)?;
    let is_empty =
        entries.all(|entry| entry.is_ok_and(|it| is_own_name(it.file_name().to_bytes())));
    Ok(is_empty && fstat(&directory)?.st_uid == geteuid().as_raw())
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    };

    use super::*;
    use crate::tests::{THEIR_UID, theirs};

    #[test]
    fn missing_directories_are_made() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let made = make_directories(&at("a/../a/./b"), 0o750).unwrap();
        assert_eq!(made.made.len(), 2);
        made.give_to((None, None)).unwrap();
        let mode = fs::metadata(at("a/b")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777 & !0o750, 0);
        assert!(make_directories(&at("a/b"), 0o750).unwrap().is_empty());
        assert!(make_directories(Path::new("."), 0o750).unwrap().is_empty());
        assert!(make_directories(Path::new("/"), 0o750).unwrap().is_empty());
        fs::write(at("file"), "").unwrap();
        let refused = make_directories(&at("file/x"), 0o750).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::NotADirectory);
        // Links of this user are followed, also to missing directories. A link to itself is an
        // error.
        symlink(at("c"), at("link")).unwrap();
        assert_eq!(
            make_directories(&at("link/d"), 0o750).unwrap().made.len(),
            2
        );
        assert!(at("c/d").is_dir());
        symlink("loop", at("loop")).unwrap();
        assert!(make_directories(&at("loop/x"), 0o750).is_err());
    }

    #[test]
    fn all_that_are_made_are_given_away() {
        let Some(theirs) = theirs() else { return };
        let path = theirs.path.join("a/b");
        let refused = make_directory(&path, 0o750).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::NotFound);
        let made = make_directories(&path, 0o750).unwrap();
        made.give_to(theirs.owner).unwrap();
        for path in [&*path, path.parent().unwrap()] {
            let found = fs::metadata(path).unwrap();
            assert_eq!((found.uid(), found.gid()), (THEIR_UID, THEIR_UID));
        }
    }

    /// Before the new directory is given away, another user renames it and puts a link in its
    /// place.
    #[test]
    fn what_is_swapped_in_is_not_given_away() {
        let Some(theirs) = theirs() else { return };
        let path = theirs.path.join("dumps");
        let made = make_directories(&path, 0o750).unwrap();
        fs::rename(&path, theirs.path.join("moved")).unwrap();
        symlink(&theirs.victim, &path).unwrap();
        made.give_to(theirs.owner).unwrap();
        assert_eq!(fs::metadata(&theirs.victim).unwrap().uid(), 0);
        let moved = fs::metadata(theirs.path.join("moved")).unwrap();
        assert_eq!(moved.uid(), THEIR_UID);
    }

    /// Another user exchanges the new directory before it is opened, for a directory of root with a
    /// file or for another user's directory. Neither may count as the new directory.
    #[test]
    fn a_directory_of_root_that_is_not_empty_is_not_taken_for_a_new_one() {
        let Some(theirs) = theirs() else { return };
        assert!(!is_new(fs::File::open(&theirs.victim).unwrap()).unwrap());
        assert!(!is_new(fs::File::open(&theirs.path).unwrap()).unwrap());
    }

    #[test]
    fn a_link_of_another_user_gives_no_directory_away() {
        let Some(theirs) = theirs() else { return };
        theirs.swap();
        let made = make_directories(&theirs.path.join("new/newer"), 0o750);
        assert_eq!(theirs.victims(), ["passwd"], "nothing is made there");
        let refused = made.unwrap_err().to_string();
        assert!(
            refused.contains("link that another user can change"),
            "{refused}"
        );
        // A link of another user to an existing directory is allowed: nothing is made, so nothing
        // is given away.
        let found = make_directories(&theirs.path, 0o750).unwrap();
        found.give_to(theirs.owner).unwrap();
        assert_eq!(fs::metadata(&theirs.victim).unwrap().uid(), 0);
    }
}
