//! Giving up privileges once everything is open, before the first packet is looked at: capabilities(7), credentials(7).
//!
//! Identity and capabilities belong to threads here: the thread that opened the sources gives up its own, and those that it
//! starts afterwards have none. The thread for signals, which is older, gives up its own when it starts, and is waited for.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, anyhow, bail};
use retroscope_unix::{Owner, make_directories};
use rustix::{
    fs::{Access, AtFlags, CWD, Gid, Uid, accessat},
    io::Errno,
    thread::{
        CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
        set_capabilities, set_no_new_privs, set_thread_groups, set_thread_res_gid,
        set_thread_res_uid,
    },
};

/// What to be after the start.
#[derive(Debug, Clone)]
pub(crate) struct Privileges {
    /// Become this user; `None`: stay who it is.
    user: Option<User>,
    /// Where dumps go; `None`: there are none.
    directory: Option<PathBuf>,
}

/// A user of this system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct User {
    name: String,
    uid: u32,
    gid: u32,
    /// Further groups.
    groups: Vec<u32>,
}

impl Privileges {
    /// `user` is a name or `UID:GID`.
    ///
    /// # Errors
    /// No such user.
    pub(crate) fn new(user: Option<&str>, directory: Option<&Path>) -> anyhow::Result<Self> {
        let find = |text: &str| {
            let read = |path| fs::read_to_string(path).unwrap_or_default();
            let found = User::find(text, &read("/etc/passwd"), &read("/etc/group"));
            found.ok_or_else(|| {
                anyhow!("-Z {text}: no such user in /etc/passwd; write UID:GID for one that is elsewhere")
            })
        };
        Ok(Self {
            user: user.map(find).transpose()?,
            directory: directory.map(Path::to_owned),
        })
    }

    /// Makes the directory for dumps and the missing directories above, and gives all of these to
    /// the user who writes dumps.
    ///
    /// # Errors
    /// The system's, with the directory's name. Another user may have made a link in the path, and
    /// so have chosen where the directories are.
    pub(crate) fn prepare_directory(&self) -> anyhow::Result<()> {
        let (Some(user), Some(directory)) = (&self.user, &self.directory) else {
            return Ok(());
        };
        let made = make_directories(directory, 0o750);
        made.and_then(|made| made.give_to(user.owner()))
            .with_context(|| format!("cannot make {}", directory.display()))
    }

    /// The user and group of files that are made before the process becomes that user.
    pub(crate) fn owner(&self) -> Owner {
        self.user.as_ref().map_or((None, None), User::owner)
    }

    /// Gives up the calling thread's privileges for good. Returns the capabilities that are left to a root without
    /// `-Z`: CAP_DAC_OVERRIDE if its dumps go to a directory that it could not write to without it, and CAP_CHOWN under sudo,
    /// whose caller owns the dumps.
    ///
    /// # Errors
    /// The user may not write dumps, or a system call failed: then nothing is to be recorded.
    pub(crate) fn give_up(&self) -> anyhow::Result<CapabilitySet> {
        let Some(user) = &self.user else {
            let left = self.needed();
            keep_only(left)?;
            return Ok(left);
        };
        self.give_up_all()?;
        if let Some(directory) = self.directory.as_deref().filter(|it| !may_write(it)) {
            let (name, directory) = (&user.name, directory.display());
            bail!("-Z {name}: this user cannot write to {directory}");
        }
        Ok(CapabilitySet::empty())
    }

    /// Gives up everything of a thread that neither opens nor writes anything.
    ///
    /// # Errors
    /// A system call failed.
    pub(crate) fn give_up_all(&self) -> anyhow::Result<()> {
        if let Some(user) = &self.user {
            user.become_it()?;
        }
        keep_only(CapabilitySet::empty())
    }

    /// Gives up what [`Self::give_up`] left to the thread that started the calling one.
    ///
    /// # Errors
    /// A system call failed.
    pub(crate) fn give_up_rest() -> anyhow::Result<()> {
        keep_only(CapabilitySet::empty())
    }

    /// What writing dumps takes. The directory is tried without capabilities, which the thread keeps the right to until then.
    fn needed(&self) -> CapabilitySet {
        let Ok(sets) = capabilities(None) else {
            return CapabilitySet::empty();
        };
        // Under sudo dumps are given to whoever called it.
        let giving = if std::env::var_os("SUDO_UID").is_some() {
            sets.permitted & CapabilitySet::CHOWN
        } else {
            CapabilitySet::empty()
        };
        let writing = sets.permitted & CapabilitySet::DAC_OVERRIDE;
        let bare = CapabilitySets {
            effective: CapabilitySet::empty(),
            ..sets
        };
        if writing.is_empty()
            || set_capabilities(None, bare).is_err()
            || self.directory.as_deref().is_none_or(may_write)
        {
            return giving;
        }
        writing | giving
    }
}

/// Takes all capabilities but these from the calling thread, and those of programs that it may start.
fn keep_only(left: CapabilitySet) -> anyhow::Result<()> {
    clear_ambient_capability_set().map_err(failed("prctl(PR_CAP_AMBIENT)"))?;
    set_capabilities(None, only(left)).map_err(failed("capset"))?;
    set_no_new_privs(true).map_err(failed("prctl(PR_SET_NO_NEW_PRIVS)"))
}

/// The error of a system call.
fn failed(call: &str) -> impl FnOnce(Errno) -> anyhow::Error {
    move |error| anyhow!("cannot give up privileges: {call}: {error}")
}

fn only(set: CapabilitySet) -> CapabilitySets {
    CapabilitySets {
        effective: set,
        permitted: set,
        inheritable: CapabilitySet::empty(),
    }
}

/// Whether this thread, with what it has now, can make files in a directory.
fn may_write(directory: &Path) -> bool {
    let access = Access::WRITE_OK | Access::EXEC_OK;
    accessat(CWD, directory, access, AtFlags::EACCESS).is_ok()
}

impl User {
    /// A user by name, or `UID:GID` as it is.
    fn find(text: &str, passwd: &str, group: &str) -> Option<Self> {
        if let Some((uid, gid)) = text.split_once(':') {
            return Some(Self {
                name: text.to_owned(),
                uid: uid.parse().ok()?,
                gid: gid.parse().ok()?,
                groups: Vec::new(),
            });
        }
        let mut lines = passwd.lines().map(|line| line.split(':'));
        let mut fields = lines.find(|fields| fields.clone().next() == Some(text))?;
        let (uid, gid) = (fields.nth(2)?.parse().ok()?, fields.next()?.parse().ok()?);
        let groups = group.lines().filter_map(|line| {
            let mut fields = line.split(':').skip(2);
            let (number, members) = (fields.next()?, fields.next()?);
            let is_member = members.split(',').any(|member| member == text);
            number.parse().ok().filter(|_| is_member)
        });
        Some(Self {
            name: text.to_owned(),
            uid,
            gid,
            groups: groups.collect(),
        })
    }

    fn owner(&self) -> Owner {
        (Some(Uid::from_raw(self.uid)), Some(Gid::from_raw(self.gid)))
    }

    fn become_it(&self) -> anyhow::Result<()> {
        let name = &self.name;
        let refused = |call| {
            move |error| match error {
                Errno::PERM => anyhow!(
                    "-Z {name}: to become this user takes CAP_SETUID and CAP_SETGID, as root has them: leave -Z out, \
                     capabilities are given up in any case"
                ),
                error => failed(call)(error),
            }
        };
        let groups: Vec<Gid> = self.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        set_thread_groups(&groups).map_err(refused("setgroups"))?;
        set_thread_res_gid(gid, gid, gid).map_err(refused("setresgid"))?;
        set_thread_res_uid(uid, uid, uid).map_err(refused("setresuid"))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, chown, symlink};

    use super::*;

    const PASSWD: &str =
        "root:x:0:0:root:/root:/bin/sh\ncap:x:101:102::/:/bin/false\nodd\ncapture:x:7:8::/:\n";
    const GROUP: &str = "root:x:0:\nwires:x:20:other,cap\ntaps:x:30:cap\nno:x:40:capture\nodd\n";

    #[test]
    fn users_are_found_with_their_groups() {
        let user = User::find("cap", PASSWD, GROUP).unwrap();
        assert_eq!((user.uid, user.gid, user.groups), (101, 102, vec![20, 30]));
        let user = User::find("1000:100", PASSWD, GROUP).unwrap();
        assert_eq!((user.uid, user.gid, user.groups), (1000, 100, vec![]));
        for unknown in ["", "ca", "odd", "1000", "x:1", "-1:0"] {
            assert_eq!(User::find(unknown, PASSWD, GROUP), None, "{unknown}");
        }
    }

    #[test]
    fn nobody_but_root_becomes_somebody_else() {
        let user = User::find("12345:12345", "", "").unwrap();
        // A thread of its own: it ends with what it gave up.
        let refused = std::thread::scope(|scope| {
            let try_it = || {
                set_capabilities(None, only(CapabilitySet::empty())).unwrap();
                user.become_it()
            };
            scope.spawn(try_it).join().unwrap()
        });
        let message = refused.unwrap_err().to_string();
        assert!(message.starts_with("-Z 12345:12345: "), "{message}");
        assert!(message.contains("leave -Z out"), "{message}");
    }

    #[test]
    fn nothing_is_left_but_what_dumps_need() {
        let folder = tempfile::tempdir().unwrap();
        let privileges = Privileges::new(None, Some(folder.path())).unwrap();
        // A thread of its own: it ends with what it gave up.
        let left = std::thread::scope(|scope| {
            let give_up = || {
                let left = privileges.give_up().unwrap();
                let sets = capabilities(None).unwrap();
                assert_eq!((sets.effective, sets.permitted), (left, left));
                assert!(rustix::thread::no_new_privs().unwrap());
                left
            };
            scope.spawn(give_up).join().unwrap()
        });
        assert_eq!(left, CapabilitySet::empty(), "the folder is its own");
    }

    /// The user of `-Z` makes a link. The link must not choose which directory root gives away.
    #[test]
    fn a_directory_that_the_users_link_leads_to_is_not_given_away() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIP: needs root");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let (theirs, victim) = (folder.path().join("theirs"), folder.path().join("victim"));
        fs::create_dir(&theirs).unwrap();
        chown(&theirs, Some(12_345), Some(12_345)).unwrap();
        fs::create_dir(&victim).unwrap();
        symlink(&victim, theirs.join("link")).unwrap();
        let prepare = |directory: &Path| {
            let privileges = Privileges::new(Some("12345:12345"), Some(directory)).unwrap();
            privileges.prepare_directory()
        };
        let owner = |path: &Path| fs::metadata(path).map(|found| found.uid()).ok();
        let refused = prepare(&theirs.join("link/dumps"));
        assert_ne!(owner(&victim.join("dumps")), Some(12_345));
        let refused = format!("{:#}", refused.unwrap_err());
        assert!(
            refused.contains("link that another user can change"),
            "{refused}"
        );
        // The user may follow the link with the rights of this user.
        prepare(&theirs.join("link")).unwrap();
        assert_eq!(owner(&victim), Some(0));
        prepare(&theirs.join("a/dumps")).unwrap();
        assert_eq!(owner(&theirs.join("a")), Some(12_345));
        assert_eq!(owner(&theirs.join("a/dumps")), Some(12_345));
    }

    #[test]
    fn a_directory_of_somebody_else_keeps_root_its_right() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIP: needs root");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let theirs = folder.path().join("theirs");
        fs::create_dir(&theirs).unwrap();
        chown(&theirs, Some(12_345), Some(12_345)).unwrap();
        let in_thread = |privileges: &Privileges| {
            std::thread::scope(|scope| {
                let give_up = || privileges.give_up();
                scope.spawn(give_up).join().unwrap()
            })
        };
        let left = in_thread(&Privileges::new(None, Some(&theirs)).unwrap()).unwrap();
        assert_eq!(left, CapabilitySet::DAC_OVERRIDE);
        let left = in_thread(&Privileges::new(Some("12345:12345"), Some(folder.path())).unwrap());
        let refused = left.unwrap_err().to_string();
        assert!(refused.contains("this user cannot write to"), "{refused}");
        // The folder above is root's own; that user may not even look into it.
        chown(folder.path(), Some(12_345), Some(12_345)).unwrap();
        let left =
            in_thread(&Privileges::new(Some("12345:12345"), Some(&theirs)).unwrap()).unwrap();
        assert_eq!(left, CapabilitySet::empty());
    }
}
