//! The client at the other end of a unix socket.

use std::{io, os::fd::AsFd};

use rustix::{io::Errno, process::geteuid};

use crate::sys::{PeerGroups, peer_credentials, peer_groups};

/// Groups that the first system call has room for. Most processes have fewer.
const GROUPS: usize = 64;
/// `NGROUPS_MAX` of Linux: include/uapi/linux/limits.h.
const GROUPS_MAX: usize = 65_536;

/// A client of a unix socket, as of its connect(2): unix(7), `SO_PEERCRED`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Effective user of the client.
    pub uid: u32,
    /// Process number of the client; 0 if the client is outside this process's PID namespace, for
    /// example outside its container.
    pub pid: i32,
}

impl Peer {
    /// The client of `stream` if it is root, runs as this user, or belongs to the group `gid`.
    ///
    /// The mode of the socket's file already keeps out most other users. This check holds even if
    /// somebody changes the mode. This check asks the kernel through the socket, because with
    /// `ProtectProc=invisible` (systemd.exec(5)) `/proc` does not show the client to this process.
    /// Any thread may call this function.
    #[must_use]
    pub fn of(stream: impl AsFd, gid: u32) -> Option<Self> {
        let peer = peer_credentials(&stream).ok()?;
        let is_allowed = peer.uid == 0
            || peer.uid == geteuid().as_raw()
            || peer.gid == gid
            || groups_of(&stream).is_ok_and(|groups| groups.contains(&gid));
        let (uid, pid) = (peer.uid, peer.pid);
        is_allowed.then_some(Self { uid, pid })
    }
}

/// The effective user at the other end of a unix socket, as of its connect(2). `None`: unknown.
///
/// Any thread may call this function.
#[must_use]
pub fn uid_of(stream: impl AsFd) -> Option<u32> {
    let peer = peer_credentials(stream).ok()?;
    // A socket without a client has the user -1.
    Some(peer.uid).filter(|uid| *uid != u32::MAX)
}

/// The supplementary groups of a client, as of its connect(2). The kernel never changes this list
/// afterwards.
fn groups_of(stream: &impl AsFd) -> io::Result<Vec<u32>> {
    let mut groups = vec![0; GROUPS];
    loop {
        match peer_groups(stream, &mut groups)? {
            PeerGroups::Count(count) => {
                groups.truncate(count);
                return Ok(groups);
            }
            PeerGroups::Needs(count) if (groups.len() + 1..=GROUPS_MAX).contains(&count) => {
                groups.resize(count, 0);
            }
            PeerGroups::Needs(_) => return Err(Errno::RANGE.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        env,
        os::{fd::OwnedFd, unix::net::UnixStream},
        process::Command,
        thread::{Builder, scope},
    };

    use rustix::{
        fs::{Gid, Uid},
        thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid},
    };

    use super::*;

    /// Calls `found` for a client with this user and these groups. A separate thread is the client,
    /// because groups belong to threads.
    fn with_client<T: Send>(
        (uid, gid, groups): (u32, u32, &[u32]),
        found: impl Fn(&UnixStream) -> T + Sync,
    ) -> Option<T> {
        if !geteuid().is_root() {
            eprintln!("SKIP: needs root, to have a client with other groups");
            return None;
        }
        let groups: Vec<Gid> = groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        let connect = || {
            set_thread_groups(&groups).unwrap();
            set_thread_res_gid(gid, gid, gid).unwrap();
            set_thread_res_uid(uid, uid, uid).unwrap();
            UnixStream::pair().unwrap()
        };
        // The kernel writes down the groups of the thread that makes the pair.
        let (ours, _theirs) = scope(|scope| {
            let thread = Builder::new().spawn_scoped(scope, connect).unwrap();
            thread.join().unwrap()
        });
        Some(found(&ours))
    }

    #[test]
    fn few_and_many_groups_are_read() {
        for count in [0, 1, GROUPS, GROUPS + 1, 300, GROUPS_MAX] {
            let groups: Vec<u32> = (100_000..).take(count).collect();
            let client = (12_345, 12_346, &groups[..]);
            let read = with_client(client, |stream| groups_of(stream).unwrap());
            assert!(read.is_none_or(|read| read == groups), "{count} groups");
        }
    }

    #[test]
    fn members_of_the_group_are_let_in_and_strangers_are_not() {
        let many: Vec<u32> = (100_000..100_300).collect();
        for (client, is_let_in) in [
            // In the first three cases the group is the primary group, one of few groups, the last
            // of many groups.
            ((12_345, 777, &[][..]), true),
            ((12_345, 12_346, &[20, 777][..]), true),
            ((12_345, 12_346, &[&many[..], &[777]].concat()[..]), true),
            ((12_345, 12_346, &[][..]), false),
            ((12_345, 12_346, &many[..]), false),
            ((0, 12_346, &[][..]), true),
        ] {
            let peer = with_client(client, |stream| Peer::of(stream, 777));
            let Some(peer) = peer else { return };
            let (uid, pid) = (client.0, std::process::id().cast_signed());
            assert_eq!(peer, is_let_in.then_some(Peer { uid, pid }), "{client:?}");
        }
    }

    #[test]
    fn a_socket_without_a_client_is_an_error() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(groups_of(&socket).is_err());
        assert_eq!((Peer::of(&socket, 0), uid_of(&socket)), (None, None));
    }

    /// A recorder in a container has clients outside. The test runs itself again in a new PID
    /// namespace, where its standard input is a socket of this process.
    #[test]
    fn a_client_outside_the_pid_namespace_is_let_in() {
        const INSIDE: &str = "RETROSCOPE_TEST_INSIDE";
        if env::var_os(INSIDE).is_some() {
            let peer = Peer::of(io::stdin(), 0);
            return assert_eq!(peer, Some(Peer { uid: 0, pid: 0 }));
        }
        if !geteuid().is_root() {
            return eprintln!("SKIP: needs root, to make a PID namespace");
        }
        let mut probe = Command::new("unshare");
        let probed = probe.args(["--pid", "--fork", "true"]).status();
        if !probed.is_ok_and(|status| status.success()) {
            return eprintln!("SKIP: no PID namespace can be made here");
        }
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let mut again = Command::new("unshare");
        again
            .args(["--pid", "--fork"])
            .arg(env::current_exe().unwrap());
        again.args([
            "--exact",
            "peer::tests::a_client_outside_the_pid_namespace_is_let_in",
        ]);
        again.env(INSIDE, "yes").stdin(OwnedFd::from(ours));
        let output = again.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && text.contains("1 passed"),
            "{output:?}"
        );
    }
}
