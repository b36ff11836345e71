//! The file of a unix socket, and who may connect to it.
//!
//! It is made in a directory beside its place, into which only this user can write, and has its owner and mode before it appears under its
//! name: nobody can put another file into its place in between, which would be given away. That directory is a lock too: of
//! several recorders that find a socket that nobody listens at any more, one after the other looks at it.

use std::{
    ffi::OsString,
    fs,
    io::{self, ErrorKind},
    os::{
        fd::{AsFd, OwnedFd},
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
    net::sockopt::socket_peercred,
    process::geteuid,
};

use crate::{Owner, Say};

/// The socket's name in the workshop.
const NAME: &str = "s";

/// A socket that is listened at.
#[derive(Debug)]
pub(crate) struct Socket {
    /// Its file.
    pub(crate) file: SocketFile,
    /// Where clients come.
    pub(crate) listener: UnixListener,
}

/// Its file; removed when this is dropped.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Device and number of the file.
    identity: (u64, u64),
    gid: u32,
    say: Say,
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
    pub(crate) fn bind(path: &Path, owner: Owner, say: &Say) -> Result<Self, String> {
        let shown = path.display();
        let failed = |error: io::Error| format!("{shown}: {error}");
        let workshop = Workshop::enter(path).map_err(failed)?;
        match fs::symlink_metadata(path) {
            Ok(found) if !found.file_type().is_socket() => {
                return Err(format!("{shown}: it is there, and is no socket"));
            }
            Ok(_) => match UnixStream::connect(path) {
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                    fs::remove_file(path).map_err(failed)?;
                }
                _ => return Err(format!("{shown}: another program listens there")),
            },
            Err(_) => {}
        }
        workshop.make(path, owner, say).map_err(failed)
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

    fn make(&self, path: &Path, (uid, gid): Owner, say: &Say) -> io::Result<Socket> {
        self.clear();
        let listener = UnixListener::bind(self.path.join(NAME))?;
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
            say: say.clone(),
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

/// Who connected to a unix socket: unix(7), SO_PEERCRED.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Peer {
    /// Its user.
    pub(crate) uid: u32,
    /// Its process.
    pub(crate) pid: i32,
}

impl SocketFile {
    /// The socket's group, whose members may connect.
    pub(crate) fn group(&self) -> u32 {
        self.gid
    }
}

impl Peer {
    /// Who the other end is, if it is of this user, root, or the socket's group. The file's mode says the same; this stands where somebody
    /// changes it.
    pub(crate) fn of(stream: impl AsFd, group: u32) -> Option<Self> {
        let peer = socket_peercred(stream).ok()?;
        let pid = peer.pid.as_raw_nonzero().get();
        let is_member = || {
            let status = fs::read_to_string(format!("/proc/{pid}/status"));
            is_in_group(group, &status.unwrap_or_default())
        };
        let is_allowed = peer.uid.is_root()
            || peer.uid == geteuid()
            || peer.gid.as_raw() == group
            || is_member();
        let uid = peer.uid.as_raw();
        is_allowed.then_some(Self { uid, pid })
    }
}

/// Whether a process is in a group, by its `/proc/PID/status`: proc_pid_status(5).
fn is_in_group(gid: u32, status: &str) -> bool {
    let groups = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    let mut groups = groups.unwrap_or_default().split_ascii_whitespace();
    groups.any(|group| group.parse() == Ok(gid))
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let found = statat(CWD, &self.path, AtFlags::SYMLINK_NOFOLLOW);
        let is_ours = found.is_ok_and(|found| identity(&found) == self.identity);
        if is_ours && let Err(error) = fs::remove_file(&self.path) {
            let path = self.path.display();
            (self.say.0)(&format!(
                "cannot remove {path}: {error}; it is replaced by the next recorder that listens there"
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
        sync::Arc,
        sync::{
            Barrier,
            atomic::{AtomicBool, Ordering},
        },
        thread::scope,
    };

    use rustix::fs::{Gid, Uid};

    use super::*;

    fn silent() -> Say {
        Say(Arc::new(|_: &str| {}))
    }

    #[test]
    fn groups_of_a_process_are_read() {
        let status = "Name:\tx\nGid:\t5\t5\t5\t5\nGroups:\t20 30 1000 \nNStgid:\t1\n";
        assert!(is_in_group(30, status) && is_in_group(1000, status));
        assert!(!is_in_group(5, status) && !is_in_group(3, status));
        assert!(!is_in_group(0, ""));
    }

    #[test]
    fn a_stale_socket_is_replaced_and_nothing_else_is() {
        let folder = tempfile::tempdir().unwrap();
        let (owner, say) = ((None, None), silent());
        let path = folder.path().join("s");
        let bind = || Socket::bind(&path, owner, &say);
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
        assert!(Socket::bind(&long, owner, &say).is_err());
    }

    /// Of several that find a socket that nobody listens at any more, one has it, and is listened at.
    #[test]
    fn one_of_many_replaces_a_stale_socket() {
        let folder = tempfile::tempdir().unwrap();
        let (owner, say) = ((None, None), silent());
        let path = folder.path().join("s");
        for round in 0..500 {
            drop(UnixListener::bind(&path).unwrap());
            let start = Barrier::new(8);
            let bind = || {
                start.wait();
                Socket::bind(&path, owner, &say).ok()
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
        let ids = (Uid::from_raw(12_345), Gid::from_raw(12_346));
        let (owner, say) = ((Some(ids.0), Some(ids.1)), silent());
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
                Socket::bind(&path, owner, &say).unwrap();
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
        let (owner, say) = ((None, None), silent());
        let path = folder.path().join("s");
        let left = folder.path().join(".s.new");
        fs::create_dir(&left).unwrap();
        let refused = Socket::bind(&path, owner, &say).unwrap_err();
        assert!(refused.contains(".s.new is in the way"), "{refused}");
        fs::set_permissions(&left, fs::Permissions::from_mode(0o700)).unwrap();
        drop(UnixListener::bind(left.join(NAME)).unwrap());
        let socket = Socket::bind(&path, owner, &say).unwrap();
        assert!(!left.exists());
        drop(socket);
        std::os::unix::fs::symlink(folder.path(), &left).unwrap();
        assert!(Socket::bind(&path, owner, &say).is_err());
        assert!(!path.exists());
    }
}
