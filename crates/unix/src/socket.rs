//! Unix sockets that are made for another user.
//!
//! A socket is made in a staging directory, into which only this user can write, next to its final
//! location. The socket has its owner and mode before it appears under its name. So no other user
//! can replace the socket by another file in between, which would be given away. All steps use
//! descriptors of directories: a link that somebody puts into the path misleads no step. The
//! staging directory is a lock too. If several programs find a socket without a listener, they
//! inspect the socket one after the other.

use std::{
    ffi::{OsStr, OsString},
    fmt,
    io::{self, ErrorKind},
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::net::{SocketAddr, UnixDatagram, UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::{
    fs::{
        AtFlags, FileType, FlockOperation, Mode, OFlags, Stat, chmodat, chownat, flock, fstat,
        linkat, mkdirat, openat, statat, unlinkat,
    },
    io::Errno,
    process::geteuid,
};

use crate::{
    Owner,
    location::{FileLocation, identity},
};

/// Owner and group may connect and write.
const SOCKET_MODE: Mode = Mode::from_raw_mode(0o660);

/// Tells the user a sentence, from any thread.
#[derive(Clone)]
pub struct Notifier(pub Arc<dyn Fn(&str) + Send + Sync>);

impl fmt::Debug for Notifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Notifier")
    }
}

/// A kind of socket that can be bound: [`UnixListener`] or [`UnixDatagram`].
pub trait Bind: Sized {
    /// Binds a socket.
    ///
    /// # Errors
    /// The system's.
    fn bind(path: &Path) -> io::Result<Self>;

    /// Connects to a socket of this kind.
    ///
    /// # Errors
    /// The system's; `ConnectionRefused`: no program listens on the socket.
    fn connect(path: &Path) -> io::Result<()>;
}

impl Bind for UnixListener {
    fn bind(path: &Path) -> io::Result<Self> {
        Self::bind(path)
    }

    fn connect(path: &Path) -> io::Result<()> {
        UnixStream::connect(path).map(drop)
    }
}

impl Bind for UnixDatagram {
    fn bind(path: &Path) -> io::Result<Self> {
        Self::bind(path)
    }

    fn connect(path: &Path) -> io::Result<()> {
        Self::unbound()?.connect(path)
    }
}

/// A socket with a file.
#[derive(Debug)]
pub struct BoundSocket<S> {
    /// The socket.
    pub socket: S,
    /// The file of the socket.
    pub file: SocketFile,
}

/// The file of a socket. Dropping this value removes the file, unless another file has the name by
/// then.
#[derive(Debug)]
pub struct SocketFile {
    location: FileLocation,
    /// The path as the caller gave it, for messages.
    path: PathBuf,
    /// Device and inode number.
    identity: (u64, u64),
    gid: u32,
    notifier: Notifier,
}

/// The staging directory, locked. Dropping this value removes the directory.
#[derive(Debug)]
struct Staging<'p> {
    location: &'p FileLocation,
    name: OsString,
    directory: OwnedFd,
}

impl<S: Bind> BoundSocket<S> {
    /// Makes a socket of mode 0660 that belongs to `owner`. A socket on which no program listens is
    /// replaced. If the file cannot be removed at the end, `notifier` gets a sentence. Any thread
    /// may call this function.
    ///
    /// # Errors
    /// A sentence, for example: another program listens there, a file that is no socket has the
    /// name, or the system's error.
    pub fn bind(path: &Path, owner: Owner, notifier: &Notifier) -> Result<Self, String> {
        let shown = path.display();
        let failed = |error: io::Error| format!("{shown}: {error}");
        // Refuse a path that is too long for a socket address: this process binds another path, but
        // clients connect to this path.
        SocketAddr::from_pathname(path).map_err(failed)?;
        let location = FileLocation::find(path).map_err(failed)?;
        let staging = Staging::enter(&location).map_err(failed)?;
        match statat(
            &location.directory,
            &location.name,
            AtFlags::SYMLINK_NOFOLLOW,
        ) {
            Ok(found) if FileType::from_raw_mode(found.st_mode) != FileType::Socket => {
                return Err(format!("{shown}: it is there, and is no socket"));
            }
            Ok(_) => match S::connect(&location.path()) {
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                    let removed = unlinkat(&location.directory, &location.name, AtFlags::empty());
                    removed.map_err(|error| failed(error.into()))?;
                }
                _ => return Err(format!("{shown}: another program listens there")),
            },
            Err(_) => {}
        }
        let (socket, made) = staging.make::<S>(owner).map_err(failed)?;
        drop(staging);
        let file = SocketFile {
            location,
            path: path.to_owned(),
            identity: identity(&made),
            gid: made.st_gid,
            notifier: notifier.clone(),
        };
        Ok(Self { socket, file })
    }
}

impl<'p> Staging<'p> {
    /// Makes the staging directory, or takes over the directory of a program that was killed.
    /// Waits while another program uses the directory.
    fn enter(location: &'p FileLocation) -> io::Result<Self> {
        let mut name = OsString::from(".");
        name.push(&location.name);
        name.push(".new");
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        loop {
            match mkdirat(&location.directory, &name, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
            let directory = match openat(&location.directory, &name, flags, Mode::empty()) {
                Err(Errno::NOENT) => continue,
                opened => opened?,
            };
            let opened = fstat(&directory)?;
            if opened.st_uid != geteuid().as_raw() || opened.st_mode & 0o077 != 0 {
                return Err(in_the_way(&name));
            }
            flock(&directory, FlockOperation::LockExclusive)?;
            // The program that had the lock before may have removed the directory.
            match statat(&location.directory, &name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(there) if identity(&there) == identity(&opened) => {
                    return Ok(Self {
                        location,
                        name,
                        directory,
                    });
                }
                _ => {}
            }
        }
    }

    fn make<S: Bind>(&self, (uid, gid): Owner) -> io::Result<(S, Stat)> {
        self.clear()?;
        let (staging, FileLocation { directory, name }) = (&self.directory, self.location);
        // ss(8) shows this path.
        let socket = S::bind(&path_in(staging, name))?;
        chmodat(staging, name, SOCKET_MODE, AtFlags::empty())?;
        chownat(staging, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
        let made = statat(staging, name, AtFlags::SYMLINK_NOFOLLOW)?;
        // Unlike rename(2), linkat(2) replaces no existing file.
        linkat(staging, name, directory, name, AtFlags::empty())?;
        Ok((socket, made))
    }

    /// Removes the socket's name in the staging directory: of a killed program's socket, or, when
    /// the staging directory is dropped, of the new socket. If a file other than a socket has this
    /// name, the directory is not a staging directory.
    fn clear(&self) -> io::Result<()> {
        let name = &self.location.name;
        match statat(&self.directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) if FileType::from_raw_mode(found.st_mode) == FileType::Socket => {
                Ok(unlinkat(&self.directory, name, AtFlags::empty())?)
            }
            Ok(_) => Err(in_the_way(&self.name)),
            Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for Staging<'_> {
    fn drop(&mut self) {
        let _ = self.clear();
        // If that fails, the next program of this user takes the directory over.
        let _ = unlinkat(&self.location.directory, &self.name, AtFlags::REMOVEDIR);
    }
}

fn in_the_way(name: &OsStr) -> io::Error {
    io::Error::other(format!("{} is in the way: remove it", name.display()))
}

impl SocketFile {
    /// The group of the socket, whose members may connect.
    #[must_use]
    pub fn group(&self) -> u32 {
        self.gid
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let FileLocation { directory, name } = &self.location;
        let found = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW);
        let is_ours = found.is_ok_and(|found| identity(&found) == self.identity);
        if is_ours && let Err(error) = unlinkat(directory, name, AtFlags::empty()) {
            let path = self.path.display();
            (self.notifier.0)(&format!(
                "cannot remove {path}: {error}; it is replaced by the next recorder that listens there"
            ));
        }
    }
}

impl FileLocation {
    /// A path for connect(2), which takes no descriptor of a directory.
    fn path(&self) -> PathBuf {
        path_in(&self.directory, &self.name)
    }
}

/// The path of a name in an open directory: proc_pid_fd(5). The link leads to the directory
/// itself, even if the directory was renamed. If `/proc` is mounted, a process sees its own links.
fn path_in(directory: impl AsFd, name: &OsStr) -> PathBuf {
    let descriptor = directory.as_fd().as_raw_fd();
    PathBuf::from(format!("/proc/self/fd/{descriptor}")).join(name)
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeSet,
        fs,
        os::unix::fs::{MetadataExt, PermissionsExt, symlink},
        sync::{
            Barrier,
            atomic::{AtomicBool, Ordering},
        },
        thread::scope,
    };

    use super::*;
    use crate::tests::{OtherUser, THEIR_UID, theirs};

    const NOBODY: Owner = (None, None);

    fn silent() -> Notifier {
        Notifier(Arc::new(|_: &str| {}))
    }

    fn bind<S: Bind>(path: &Path) -> Result<BoundSocket<S>, String> {
        BoundSocket::bind(path, NOBODY, &silent())
    }

    fn a_stale_socket_is_replaced_and_nothing_else_is_of_kind<S: Bind>() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let first = bind::<S>(&path).ok().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o660);
        let refused = bind::<S>(&path).err().unwrap();
        assert!(refused.contains("another program listens"), "{refused}");
        drop(first);
        assert!(!path.exists(), "removed at the end");
        drop(S::bind(&path).unwrap());
        assert!(path.exists(), "left behind");
        let second = bind::<S>(&path).ok().unwrap();
        // A file that replaced the socket stays when the socket is dropped.
        fs::remove_file(&path).unwrap();
        fs::write(&path, "a file").unwrap();
        drop(second);
        let refused = bind::<S>(&path).err().unwrap();
        assert!(refused.contains("is no socket"), "{refused}");
        assert_eq!(fs::read(&path).unwrap(), b"a file");
        let long = folder.path().join("x".repeat(100));
        assert!(bind::<S>(&long).is_err());
    }

    #[test]
    fn a_stale_socket_is_replaced_and_nothing_else_is() {
        a_stale_socket_is_replaced_and_nothing_else_is_of_kind::<UnixListener>();
        a_stale_socket_is_replaced_and_nothing_else_is_of_kind::<UnixDatagram>();
    }

    #[test]
    fn a_socket_of_the_other_kind_is_in_use_too() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let _socket = bind::<UnixListener>(&path).unwrap();
        let refused = bind::<UnixDatagram>(&path).unwrap_err();
        assert!(refused.contains("another program listens"), "{refused}");
    }

    /// Eight threads, like eight programs, find a socket without a listener. One thread replaces
    /// the socket, and a client reaches this thread's socket.
    #[test]
    fn one_of_many_replaces_a_stale_socket() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        for round in 0..500 {
            drop(UnixListener::bind(&path).unwrap());
            let start = Barrier::new(8);
            let bind = || {
                start.wait();
                bind::<UnixListener>(&path).ok()
            };
            let sockets: Vec<BoundSocket<UnixListener>> = scope(|scope| {
                let all = [(); 8].map(|()| scope.spawn(bind));
                all.into_iter()
                    .filter_map(|one| one.join().unwrap())
                    .collect()
            });
            assert_eq!(sockets.len(), 1, "round {round}");
            UnixStream::connect(&path).unwrap();
            sockets[0].socket.accept().unwrap();
        }
    }

    /// The file of a new socket never shows another owner or mode than the final ones.
    #[test]
    fn it_has_its_owner_when_it_appears() {
        let Some(OtherUser { folder, owner, .. }) = theirs() else {
            return;
        };
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
            // The watching thread may begin late.
            while rounds < 1000 || !is_seen.load(Ordering::SeqCst) {
                BoundSocket::<UnixDatagram>::bind(&path, owner, &silent()).unwrap();
                rounds += 1;
            }
            is_over.store(true, Ordering::SeqCst);
            let seen = watching.join().unwrap();
            assert_eq!(seen, BTreeSet::from([(THEIR_UID, THEIR_UID, 0o140_660)]));
        });
    }

    /// A staging directory that only this user can enter was left by a killed program, and is taken
    /// over. Any other directory is refused, and so is a link: there another user may be able to
    /// replace the socket by another file, which the program would then give away.
    #[test]
    fn a_directory_that_was_left_behind_is_taken_over_and_no_others() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let left = folder.path().join(".s.new");
        fs::create_dir(&left).unwrap();
        let refused = bind::<UnixListener>(&path).unwrap_err();
        assert!(refused.contains(".s.new is in the way"), "{refused}");
        fs::set_permissions(&left, fs::Permissions::from_mode(0o700)).unwrap();
        drop(UnixListener::bind(left.join("s")).unwrap());
        let socket = bind::<UnixListener>(&path).unwrap();
        assert!(!left.exists());
        drop(socket);
        symlink(folder.path(), &left).unwrap();
        assert!(bind::<UnixListener>(&path).is_err());
        assert!(!path.exists());
    }

    /// The user keeps a file in a directory that has the name of the staging directory.
    #[test]
    fn only_a_socket_is_removed_from_the_staging_directory() {
        let folder = tempfile::tempdir().unwrap();
        let left = folder.path().join(".s.new");
        fs::create_dir(&left).unwrap();
        fs::set_permissions(&left, fs::Permissions::from_mode(0o700)).unwrap();
        fs::write(left.join("s"), "a file").unwrap();
        let refused = bind::<UnixListener>(&folder.path().join("s"));
        assert_eq!(fs::read(left.join("s")).unwrap(), b"a file");
        let refused = refused.unwrap_err();
        assert!(refused.contains(".s.new is in the way"), "{refused}");
    }

    /// After the socket's directory was found, another user puts a link in its place.
    #[test]
    fn a_swapped_directory_leads_no_step_elsewhere() {
        let Some(theirs) = theirs() else { return };
        let path = theirs.path.join("s");
        let location = FileLocation::find(&path).unwrap();
        let moved = theirs.swap();
        let staging = Staging::enter(&location).unwrap();
        let (socket, _) = staging.make::<UnixListener>(theirs.owner).unwrap();
        drop(staging);
        assert_eq!(theirs.victims(), ["passwd"], "nothing is made there");
        assert_eq!(fs::metadata(moved.join("s")).unwrap().uid(), THEIR_UID);
        drop(socket);
    }

    /// The socket's directory is replaced by a link to a directory where another file has the
    /// socket's name. Only the socket is removed.
    #[test]
    fn only_the_socket_itself_is_removed() {
        let Some(theirs) = theirs() else { return };
        let path = theirs.path.join("passwd");
        let socket = bind::<UnixDatagram>(&path).unwrap();
        let moved = theirs.swap();
        drop(socket);
        assert_eq!(theirs.victims(), ["passwd"]);
        assert!(!moved.join("passwd").exists());
    }

    #[test]
    fn a_link_of_another_user_leads_no_socket_elsewhere() {
        let Some(theirs) = theirs() else { return };
        theirs.swap();
        let refused =
            BoundSocket::<UnixListener>::bind(&theirs.path.join("s"), theirs.owner, &silent());
        let why = refused.err().unwrap();
        assert!(why.contains("link that another user can change"), "{why}");
        assert_eq!(theirs.victims(), ["passwd"]);
    }
}
