//! Makes files, directories and unix sockets for another user, and identifies the clients of a
//! socket.
//!
//! | module | contents |
//! |---|---|
//! | `location` | where a path leads, without trust in the users who can change it |
//! | `file`, `directory`, `socket` | make a file, directory or socket for another user; `file` also opens existing files |
//! | `peer` | user, process and groups of a client: unix(7), credentials(7) |
//! | `sys` | requests to the kernel that rustix does not have, or not in the needed form |

mod directory;
mod file;
mod location;
mod peer;
mod socket;
mod sys;
#[cfg(test)]
mod tests;

use rustix::fs::{Gid, Uid};

pub use directory::{NewDirectories, make_directories, make_directory};
pub use file::open_to_append;
pub use peer::{Peer, uid_of};
pub use socket::{Bind, BoundSocket, Notifier, SocketFile};
pub use sys::close_from;

/// The user and group that something is made for; `None`: usually those of this process.
pub type Owner = (Option<Uid>, Option<Gid>);

/// The user who called sudo (`SUDO_UID`, `SUDO_GID`), if this process is root by sudo.
#[must_use]
pub fn sudo_caller() -> Owner {
    if !rustix::process::geteuid().is_root() {
        return (None, None);
    }
    let id = |name| std::env::var(name).ok()?.parse::<u32>().ok();
    let ids = id("SUDO_UID").zip(id("SUDO_GID"));
    ids.map(|(uid, gid)| (Uid::from_raw(uid), Gid::from_raw(gid)))
        .unzip()
}
