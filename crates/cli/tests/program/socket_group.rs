//! The unix socket of the API while `/proc` hides processes of other users from the recorder. In
//! the packaged unit, `ProtectProc=invisible` hides these processes.

use std::{
    fs::{self, Permissions},
    io::{BufRead, BufReader},
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
};

use tempfile::TempDir;

use crate::{
    recording::TRAFFIC,
    support::{PROGRAM, skip},
};

/// User ID of the recorder, which is not root, as in the packaged unit.
const USER: u32 = 64_990;
/// Group ID of the recorder and of its socket.
const GROUP: u32 = 64_991;
/// User ID of another user, and group ID of this user's own group.
const STRANGER: u32 = 64_992;

/// A recorder that is killed when this value is dropped.
struct Service {
    child: Child,
    folder: TempDir,
    program: PathBuf,
}

impl Service {
    /// Returns `None` if this host cannot create mount namespaces or run programs as another user.
    fn start() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("retroscope");
        fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
        // If this process wrote the copy, the child of another test could inherit the descriptor.
        // Nobody can run a file that is open for writing (ETXTBSY).
        let copied = Command::new("cp").arg(PROGRAM).arg(&program).status();
        assert!(copied.unwrap().success());
        let hides = r#"mount -t proc -o hidepid=invisible proc /proc && exec "$@""#;
        let isolated = ["--mount", "sh", "-c", hides, "sh"];
        let as_user = as_user(USER, GROUP, &[]);
        let probe = Command::new("unshare")
            .args(isolated)
            .args(&as_user)
            // Succeeds if `/proc` hides the processes of root.
            .args(["test", "!", "-e", "/proc/1"])
            .output();
        match probe {
            Ok(output) if output.status.success() => {}
            outcome => {
                skip(&format!(
                    "needs root, mount namespaces and setpriv: {outcome:?}"
                ));
                return None;
            }
        }
        let mut child = Command::new("unshare")
            .args(isolated)
            .args(&as_user)
            .arg(&program)
            .args(["record", "-i", TRAFFIC, "--ring", "64MiB", "-w"])
            .arg(folder.path().join("dumps"))
            .arg("--api")
            .arg(format!("unix:{}", folder.path().join("api").display()))
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let recording = lines.find(|line| line.as_ref().unwrap().contains("recording on"));
        assert!(recording.is_some(), "it does not record");
        Some(Self {
            child,
            folder,
            program,
        })
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("api")
    }

    /// Runs `retroscope status` as a user with these groups.
    fn status(&self, uid: u32, gid: u32, groups: &[u32]) -> Output {
        let mut command = as_user(uid, gid, groups).into_iter();
        Command::new(command.next().unwrap())
            .args(command)
            .arg(&self.program)
            .args(["status", "--json", "--socket"])
            .arg(self.socket())
            .output()
            .unwrap()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The start of a command line that runs a program as a user with these groups.
fn as_user(uid: u32, gid: u32, groups: &[u32]) -> Vec<String> {
    let groups: Vec<String> = groups.iter().map(u32::to_string).collect();
    let groups = match groups.is_empty() {
        true => "--clear-groups".to_owned(),
        false => format!("--groups={}", groups.join(",")),
    };
    let (uid, gid) = (format!("--reuid={uid}"), format!("--regid={gid}"));
    vec!["setpriv".to_owned(), uid, gid, groups]
}

/// `usermod -aG retroscope` gives users access, as docs/service.md describes.
#[test]
fn members_of_the_sockets_group_are_let_in_where_proc_is_hidden() {
    let Some(service) = Service::start() else {
        return;
    };
    // More groups than the recorder's first system call has room for. The last group is the
    // socket's group.
    let many: Vec<u32> = (70_000..70_200).chain([GROUP]).collect();
    for (gid, groups) in [
        (STRANGER, &[GROUP][..]),
        (GROUP, &[][..]),
        (STRANGER, &many[..]),
    ] {
        let output = service.status(STRANGER, gid, groups);
        assert!(
            output.status.success(),
            "group {gid}, {groups:?}: {output:?}"
        );
    }
    let refused = service.status(STRANGER, STRANGER, &many[..200]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("Permission denied"), "{refused:?}");
    // If somebody opens the socket to all users, the recorder itself refuses the stranger.
    fs::set_permissions(service.socket(), Permissions::from_mode(0o666)).unwrap();
    let refused = service.status(STRANGER, STRANGER, &many[..200]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && said.contains("members of the socket's group"),
        "{refused:?}"
    );
}
