//! The file of the control socket.
//!
//! It is made in a directory beside its place, into which only this user can write, and has its owner and mode before it appears under its
//! name: nobody can put another file into its place in between, which would be given away. That directory is a lock too: of
//! several recorders that find a socket that nobody listens at any more, one after the other looks at it.

use std::{
    ffi::OsString,
    fs,
    io::{self, ErrorKind},
    os::{
        fd::OwnedFd,
        unix::{
            fs::FileTypeExt,
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{
        AtFlags, CWD, FlockOperation, Mode, OFlags, Stat, chmodat, chownat, flock, fstat, linkat,
        mkdir, open, statat, unlinkat,
    },
    io::Errno,
    process::geteuid,
};

use crate::{failure::say, privileges::Privileges};

/// The socket's name in the workshop.
const NAME: &str = "s";

/// A socket that is listened at.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(super) file: SocketFile,
    pub(super) listener: UnixListener,
}

/// Its file; removed when this is dropped.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    /// Device and number of the file.
    identity: (u64, u64),
    pub(super) gid: u32,
}

/// The directory beside it, locked; removed when this is dropped.
#[derive(Debug)]
struct Workshop {
    path: PathBuf,
    directory: OwnedFd,
}

impl Socket {
    /// Makes the socket: 0660, of the user that the program becomes. A socket that nobody listens at any more is replaced.
    ///
    /// # Errors
    /// A sentence: somebody listens there, or it is something else, or what the system said.
    pub(crate) fn bind(path: &Path, privileges: &Privileges) -> Result<Self, String> {
        let shown = path.display();
        let failed = |error: io::Error| format!("--control {shown}: {error}");
        let workshop = Workshop::enter(path).map_err(failed)?;
        match fs::symlink_metadata(path) {
            Ok(found) if !found.file_type().is_socket() => {
                return Err(format!("--control {shown}: it is there, and is no socket"));
            }
            Ok(_) => match UnixStream::connect(path) {
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                    fs::remove_file(path).map_err(failed)?;
                }
                _ => return Err(format!("--control {shown}: another program listens there")),
            },
            Err(_) => {}
        }
        workshop.make(path, privileges).map_err(failed)
    }
}

impl Workshop {
    /// Makes the directory for a socket at this path, or takes over that of a recorder that was killed; waits for one that is at it.
    fn enter(socket: &Path) -> io::Result<Self> {
        let mut name = OsString::from(".");
        name.push(socket.file_name().ok_or(ErrorKind::InvalidInput)?);
        name.push(".new");
        let path = socket.with_file_name(name);
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        loop {
            match mkdir(&path, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
            let directory = match open(&path, flags, Mode::empty()) {
                Err(Errno::NOENT) => continue,
                opened => opened?,
            };
            let opened = fstat(&directory)?;
            if opened.st_uid != geteuid().as_raw() || opened.st_mode & 0o077 != 0 {
                let path = path.display();
                let why = format!("{path} is in the way: remove it");
                return Err(io::Error::other(why));
            }
            flock(&directory, FlockOperation::LockExclusive)?;
            // Who had it may have removed it since.
            match statat(CWD, &path, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(there) if identity(&there) == identity(&opened) => {
                    return Ok(Self { path, directory });
                }
                _ => {}
            }
        }
    }

    fn make(&self, path: &Path, privileges: &Privileges) -> io::Result<Socket> {
        self.clear();
        let listener = UnixListener::bind(self.path.join(NAME))?;
        let (uid, gid) = privileges.owner();
        chmodat(
            &self.directory,
            NAME,
            Mode::from_raw_mode(0o660),
            AtFlags::empty(),
        )?;
        chownat(&self.directory, NAME, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
        let made = statat(&self.directory, NAME, AtFlags::SYMLINK_NOFOLLOW)?;
        // Unlike a rename it replaces nothing.
        linkat(&self.directory, NAME, CWD, path, AtFlags::empty())?;
        let file = SocketFile {
            path: path.to_owned(),
            identity: identity(&made),
            gid: made.st_gid,
        };
        Ok(Socket { file, listener })
    }

    fn clear(&self) {
        // It is seldom there.
        let _ = unlinkat(&self.directory, NAME, AtFlags::empty());
    }
}

impl Drop for Workshop {
    fn drop(&mut self) {
        self.clear();
        // Where that fails, the next one takes it over.
        let _ = fs::remove_dir(&self.path);
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let found = statat(CWD, &self.path, AtFlags::SYMLINK_NOFOLLOW);
        let is_ours = found.is_ok_and(|found| identity(&found) == self.identity);
        if is_ours && let Err(error) = fs::remove_file(&self.path) {
            let path = self.path.display();
            say(&format!(
                "cannot remove {path}: {error}; it is replaced by the next --control"
            ));
        }
    }
}

fn identity(file: &Stat) -> (u64, u64) {
    (file.st_dev, file.st_ino)
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeSet,
        os::unix::fs::{MetadataExt, PermissionsExt},
        sync::{
            Barrier,
            atomic::{AtomicBool, Ordering},
        },
        thread::scope,
    };

    use super::*;

    #[test]
    fn a_stale_socket_is_replaced_and_nothing_else_is() {
        let folder = tempfile::tempdir().unwrap();
        let privileges = Privileges::new(None, Some(folder.path())).unwrap();
        let path = folder.path().join("s");
        let bind = || Socket::bind(&path, &privileges);
        let first = bind().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o660);
        let refused = bind().unwrap_err();
        assert!(refused.contains("another program listens"), "{refused}");
        drop(first);
        assert!(!path.exists(), "removed at the end");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "left behind");
        let second = bind().unwrap();
        // What somebody put into its place stays.
        fs::remove_file(&path).unwrap();
        fs::write(&path, "a file").unwrap();
        drop(second);
        let refused = bind().unwrap_err();
        assert!(refused.contains("is no socket"), "{refused}");
        assert_eq!(fs::read(&path).unwrap(), b"a file");
        let long = folder.path().join("x".repeat(200));
        assert!(Socket::bind(&long, &privileges).is_err());
    }

    /// Of several that find a socket that nobody listens at any more, one has it, and is listened at.
    #[test]
    fn one_of_many_replaces_a_stale_socket() {
        let folder = tempfile::tempdir().unwrap();
        let privileges = Privileges::new(None, Some(folder.path())).unwrap();
        let path = folder.path().join("s");
        for round in 0..500 {
            drop(UnixListener::bind(&path).unwrap());
            let start = Barrier::new(8);
            let bind = || {
                start.wait();
                Socket::bind(&path, &privileges).ok()
            };
            let sockets: Vec<Socket> = scope(|scope| {
                let all = [(); 8].map(|()| scope.spawn(bind));
                all.into_iter()
                    .filter_map(|one| one.join().unwrap())
                    .collect()
            });
            assert_eq!(sockets.len(), 1, "round {round}");
            UnixStream::connect(&path).unwrap();
            sockets[0].listener.accept().unwrap();
        }
    }

    /// Who sees it sees it with the owner that it keeps.
    #[test]
    fn it_has_its_owner_when_it_appears() {
        if !geteuid().is_root() {
            eprintln!("SKIP: needs root");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let privileges = Privileges::new(Some("12345:12346"), Some(folder.path())).unwrap();
        let path = folder.path().join("s");
        let (is_over, is_seen) = (AtomicBool::new(false), AtomicBool::new(false));
        scope(|scope| {
            let watching = scope.spawn(|| {
                let mut seen = BTreeSet::new();
                while !is_over.load(Ordering::SeqCst) {
                    let found = fs::symlink_metadata(&path);
                    seen.extend(found.map(|found| (found.uid(), found.gid(), found.mode())));
                    is_seen.store(!seen.is_empty(), Ordering::SeqCst);
                }
                seen
            });
            let mut rounds = 0;
            // Its thread may begin late.
            while rounds < 1000 || !is_seen.load(Ordering::SeqCst) {
                Socket::bind(&path, &privileges).unwrap();
                rounds += 1;
            }
            is_over.store(true, Ordering::SeqCst);
            let seen = watching.join().unwrap();
            assert_eq!(seen, BTreeSet::from([(12_345, 12_346, 0o140_660)]));
        });
    }

    /// The directory in which it is made is left behind by recorders that were killed, or by somebody who wants to be given a file.
    #[test]
    fn a_directory_that_was_left_behind_is_taken_over_and_no_others() {
        let folder = tempfile::tempdir().unwrap();
        let privileges = Privileges::new(None, Some(folder.path())).unwrap();
        let path = folder.path().join("s");
        let left = folder.path().join(".s.new");
        fs::create_dir(&left).unwrap();
        let refused = Socket::bind(&path, &privileges).unwrap_err();
        assert!(refused.contains(".s.new is in the way"), "{refused}");
        fs::set_permissions(&left, fs::Permissions::from_mode(0o700)).unwrap();
        drop(UnixListener::bind(left.join(NAME)).unwrap());
        let socket = Socket::bind(&path, &privileges).unwrap();
        assert!(!left.exists());
        drop(socket);
        std::os::unix::fs::symlink(folder.path(), &left).unwrap();
        assert!(Socket::bind(&path, &privileges).is_err());
        assert!(!path.exists());
    }
}
