//! Files that are made, or appended to, for another user.

use std::{fs::File, io, os::fd::AsFd, path::Path};

use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, fchown, fstat, openat, statat},
    io::Errno,
};

use crate::{
    Owner,
    location::{FileLocation, identity, is_shared},
};

/// Opens a file for appending and reading, or only for appending if an existing file's mode forbids
/// reading. A new file has this mode, less the umask, and belongs to `owner`. An existing file
/// keeps its owner and mode. The call does not wait for the other end of a pipe. Any thread may
/// call this function.
///
/// Root refuses a path through a link that another user may have made, or by `..` to a directory
/// where another user can write. In such a directory root also refuses a regular file with a second
/// name (hard link), and a regular file that is replaced during the call.
///
/// # Errors
/// The system's, or one of these refusals.
pub fn open_to_append(path: &Path, mode: u32, (uid, gid): Owner) -> io::Result<File> {
    let location = FileLocation::find(path)?;
    let flags = OFlags::APPEND | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let flags = flags | OFlags::NONBLOCK | OFlags::NOCTTY;
    let open = |flags, mode| openat(&location.directory, &location.name, flags, mode);
    loop {
        let opened = match open(flags | OFlags::RDWR, Mode::empty()) {
            // The mode may allow writing only.
            Err(Errno::ACCESS) => open(flags | OFlags::WRONLY, Mode::empty()),
            opened => opened,
        };
        match opened {
            Ok(file) => {
                check_name(&location, &file)?;
                return Ok(file.into());
            }
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        let new = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        match open(flags | new, Mode::from_raw_mode(mode)) {
            // Another process was faster: open that file.
            Err(Errno::EXIST) => {}
            made => {
                let made = made?;
                if uid.is_some() || gid.is_some() {
                    fchown(&made, uid, gid)?;
                }
                return Ok(made.into());
            }
        }
    }
}

/// In a directory where another user can make names, root refuses a file that may have a second
/// name.
fn check_name(location: &FileLocation, file: impl AsFd) -> io::Result<()> {
    let opened = fstat(file)?;
    let is_file = FileType::from_raw_mode(opened.st_mode) == FileType::RegularFile;
    if !is_file || !is_shared(&fstat(&location.directory)?) {
        return Ok(());
    }
    // Ask about the name, not the open file. Another user may have removed the name since, and the
    // open file would then show one name only.
    let found = statat(
        &location.directory,
        &location.name,
        AtFlags::SYMLINK_NOFOLLOW,
    )?;
    if identity(&found) != identity(&opened) {
        return Err(io::Error::other("another user has replaced the file"));
    }
    if found.st_nlink != 1 {
        return Err(io::Error::other(
            "it has a second name (hard link), and another user can write to its directory",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        io::Write,
        os::unix::fs::{MetadataExt, symlink},
    };

    use super::*;
    use crate::tests::{THEIR_UID, theirs};

    #[test]
    fn files_are_made_and_appended_to() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let append = |name: &str, text: &str| {
            let mut file = open_to_append(&at(name), 0o640, (None, None))?;
            file.write_all(text.as_bytes())
        };
        append("file", "one ").unwrap();
        assert_eq!(fs::metadata(at("file")).unwrap().mode() & 0o777 & !0o640, 0);
        // Links of this user are followed, also to a missing file. A second name (hard link) is
        // accepted.
        symlink("file", at("link")).unwrap();
        symlink("new", at("dangling")).unwrap();
        fs::hard_link(at("file"), at("second")).unwrap();
        append("link", "two ").unwrap();
        append("second", "three").unwrap();
        append("dangling", "four").unwrap();
        assert_eq!(fs::read_to_string(at("file")).unwrap(), "one two three");
        assert_eq!(fs::read_to_string(at("new")).unwrap(), "four");
        assert!(append("none/file", "").is_err());
        assert!(append("", "").is_err());
        open_to_append(Path::new("/dev/null"), 0o640, (None, None)).unwrap();
    }

    /// The name is removed or replaced after the file was opened, so the file has one name again.
    #[test]
    fn a_file_that_lost_its_name_is_refused() {
        let Some(theirs) = theirs() else { return };
        let (path, victim) = (theirs.path.join("log"), theirs.victim.join("passwd"));
        fs::hard_link(&victim, &path).unwrap();
        let location = FileLocation::find(&path).unwrap();
        let file = File::open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert!(check_name(&location, &file).is_err());
        fs::write(&path, "").unwrap();
        let refused = check_name(&location, &file).unwrap_err().to_string();
        assert!(refused.contains("replaced"), "{refused}");
        check_name(&location, File::open(&path).unwrap()).unwrap();
    }

    #[test]
    fn a_new_file_belongs_to_the_user() {
        let Some(theirs) = theirs() else { return };
        let path = theirs.path.join("new");
        open_to_append(&path, 0o640, theirs.owner).unwrap();
        let found = fs::metadata(&path).unwrap();
        assert_eq!((found.uid(), found.gid()), (THEIR_UID, THEIR_UID));
    }

    /// Another user has replaced the file, or its directory, by a link. Or the name is a second
    /// name (hard link) of another file.
    #[test]
    fn nothing_that_another_user_names_is_appended_to() {
        let Some(theirs) = theirs() else { return };
        let refuse = |path: &Path, why: &str| {
            let refused = open_to_append(path, 0o640, theirs.owner).unwrap_err();
            assert!(refused.to_string().contains(why), "{refused}");
        };
        let victim = theirs.victim.join("passwd");
        let at = |name: &str| theirs.path.join(name);
        symlink(&victim, at("link")).unwrap();
        refuse(&at("link"), "link that another user can change");
        symlink(theirs.victim.join("new"), at("dangling")).unwrap();
        refuse(&at("dangling"), "link that another user can change");
        fs::hard_link(&victim, at("second")).unwrap();
        refuse(&at("second"), "hard link");
        theirs.swap();
        refuse(&at("passwd"), "link that another user can change");
        assert_eq!(theirs.victims(), ["passwd"]);
        assert_eq!(fs::metadata(&victim).unwrap().uid(), 0);
        assert_eq!(fs::read(&victim).unwrap(), b"root");
    }
}
