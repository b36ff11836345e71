//! Drops privileges after the sources are open: capabilities(7), credentials(7).
//!
//! On Linux, identity and capabilities belong to threads, and a new thread inherits its parent's.
//! The thread that opens the sources drops its own privileges. Earlier threads, such as the signal
//! thread, drop their own privileges too.

use std::{
    ffi::CString,
    fmt,
    path::{Path, PathBuf},
};

use anyhow::{Context, anyhow, bail};
use nix::unistd::{self, getgrouplist};
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

/// The user that threads or `--post` commands become, and the directory for dumps.
#[derive(Debug, Clone)]
pub(crate) struct Privileges {
    /// User to become. `None`: keep the current user.
    user: Option<User>,
    /// Directory for dumps. `None`: this user writes no dumps.
    directory: Option<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct User {
    /// The option that names the user, for messages.
    option: &'static str,
    name: String,
    uid: u32,
    gid: u32,
    /// Supplementary groups. For a named user, getgrouplist(3) includes `gid`.
    groups: Vec<u32>,
}

impl Privileges {
    /// Looks up a user: a name of the Name Service Switch (nsswitch.conf(5)), or `UID:GID`.
    /// `option` is the option that gives the user. The look-up must precede the drop of privileges:
    /// a module of the Name Service Switch may need files and sockets that the user of `-Z` cannot
    /// open.
    ///
    /// # Errors
    /// The user does not exist, the text is no valid `UID:GID`, or the lookup failed.
    pub(crate) fn new(
        option: &'static str,
        user: Option<&str>,
        directory: Option<&Path>,
    ) -> anyhow::Result<Self> {
        let find =
            |text: &str| User::find(option, text).with_context(|| format!("{option} {text}"));
        Ok(Self {
            user: user.map(find).transpose()?,
            directory: directory.map(Path::to_owned),
        })
    }

    /// Creates the directory for dumps with its missing parents, and gives the created directories
    /// to the user of `-Z`. Does nothing without `-Z` or without a directory.
    ///
    /// # Errors
    /// The system's error with the directory's name. Root also refuses to create a directory
    /// through a link that another user can change.
    pub(crate) fn prepare_directory(&self) -> anyhow::Result<()> {
        let (Some(user), Some(directory)) = (&self.user, &self.directory) else {
            return Ok(());
        };
        let made = make_directories(directory, 0o750);
        made.and_then(|made| made.give_to(user.owner()))
            .map_err(|error| anyhow!("cannot make {}: {error}", directory.display()))
    }

    /// Owner of files that are created before the process becomes the user of `-Z`. Without `-Z`,
    /// the system chooses the owner.
    pub(crate) fn owner(&self) -> Owner {
        self.user.as_ref().map_or((None, None), User::owner)
    }

    /// Drops the calling thread's privileges for good. Returns the capabilities that the thread
    /// keeps without `-Z`: CAP_DAC_OVERRIDE if the dump directory is not writable otherwise, and
    /// CAP_CHOWN under sudo, because the caller of sudo owns the dumps.
    ///
    /// # Errors
    /// The user may not write dumps, or a system call failed. Nothing may be recorded then.
    pub(crate) fn give_up(&self) -> anyhow::Result<CapabilitySet> {
        let Some(user) = &self.user else {
            let left = self.needed();
            keep_only(left)?;
            return Ok(left);
        };
        self.give_up_all()?;
        if let Some(directory) = self.directory.as_deref().filter(|it| !may_write(it)) {
            let directory = directory.display();
            bail!("{user}: this user cannot write to {directory}");
        }
        Ok(CapabilitySet::empty())
    }

    /// Makes the calling thread become the user, and drops all its capabilities.
    ///
    /// # Errors
    /// A system call failed.
    pub(crate) fn give_up_all(&self) -> anyhow::Result<()> {
        if let Some(user) = &self.user {
            user.become_it()?;
        }
        keep_only(CapabilitySet::empty())
    }

    /// Drops all capabilities of the calling thread.
    ///
    /// # Errors
    /// A system call failed.
    pub(crate) fn give_up_rest() -> anyhow::Result<()> {
        keep_only(CapabilitySet::empty())
    }

    /// Capabilities that are needed to write dumps. Clears the thread's effective capabilities for
    /// the check.
    fn needed(&self) -> CapabilitySet {
        let Ok(sets) = capabilities(None) else {
            return CapabilitySet::empty();
        };
        // The caller of sudo owns the dumps.
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

/// Drops all capabilities except `left`, for the calling thread and the programs that it starts.
fn keep_only(left: CapabilitySet) -> anyhow::Result<()> {
    clear_ambient_capability_set().map_err(failed("prctl(PR_CAP_AMBIENT)"))?;
    set_capabilities(None, only(left)).map_err(failed("capset"))?;
    set_no_new_privs(true).map_err(failed("prctl(PR_SET_NO_NEW_PRIVS)"))
}

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

/// Whether this thread can currently create files in a directory.
fn may_write(directory: &Path) -> bool {
    let access = Access::WRITE_OK | Access::EXEC_OK;
    accessat(CWD, directory, access, AtFlags::EACCESS).is_ok()
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.option, self.name)
    }
}

impl User {
    fn find(option: &'static str, text: &str) -> anyhow::Result<Self> {
        let (uid, gid, groups) = match text.split_once(':') {
            Some(ids) => numbers(ids).context("is no UID:GID")?,
            None => named(text)?,
        };
        Ok(Self {
            option,
            name: text.to_owned(),
            uid,
            gid,
            groups,
        })
    }

    fn owner(&self) -> Owner {
        (Some(Uid::from_raw(self.uid)), Some(Gid::from_raw(self.gid)))
    }

    fn become_it(&self) -> anyhow::Result<()> {
        let refused = |call| {
            move |error| match error {
                Errno::PERM => anyhow!(
                    "{self}: to become this user takes CAP_SETUID and CAP_SETGID, as root has them: leave {} out, \
                     capabilities are given up in any case",
                    self.option
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

/// A user ID and a group ID, without supplementary groups.
fn numbers((uid, gid): (&str, &str)) -> Option<(u32, u32, Vec<u32>)> {
    Some((uid.parse().ok()?, gid.parse().ok()?, Vec::new()))
}

fn named(name: &str) -> anyhow::Result<(u32, u32, Vec<u32>)> {
    use nix::errno::Errno;
    let user = match unistd::User::from_name(name) {
        Ok(user) => user,
        // getpwnam_r(3) may return these errors if no database knows the user.
        Err(Errno::ENOENT | Errno::ESRCH) => None,
        Err(error) => bail!("this user cannot be looked up: {error}"),
    };
    let user = user.context("no such user: write a name that `getent passwd` has, or UID:GID")?;
    let groups = getgrouplist(&CString::new(name)?, user.gid)
        .map_err(|error| anyhow!("the groups of this user cannot be looked up: {error}"))?;
    let groups = groups.into_iter().map(unistd::Gid::as_raw);
    Ok((user.uid.as_raw(), user.gid.as_raw(), groups.collect()))
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{MetadataExt, chown, symlink},
    };

    use super::*;

    #[test]
    fn users_are_found_with_their_groups() {
        let user = User::find("-Z", "root").unwrap();
        assert_eq!((user.uid, user.gid), (0, 0));
        assert!(user.groups.contains(&0), "{user:?}");
        let user = User::find("-Z", "1000:100").unwrap();
        assert_eq!((user.uid, user.gid, user.groups), (1000, 100, vec![]));
        for unknown in ["", "no-such-user", "ro\0t", "12345678", "x:1", "-1:0", "1:"] {
            let refused = Privileges::new("-Z", Some(unknown), None).unwrap_err();
            let refused = format!("{refused:#}");
            assert!(refused.starts_with(&format!("-Z {unknown}: ")), "{refused}");
        }
    }

    #[test]
    fn nobody_but_root_becomes_somebody_else() {
        let user = User::find("post-user", "12345:12345").unwrap();
        // A separate thread, because dropping privileges cannot be undone.
        let refused = std::thread::scope(|scope| {
            let try_it = || {
                set_capabilities(None, only(CapabilitySet::empty())).unwrap();
                user.become_it()
            };
            scope.spawn(try_it).join().unwrap()
        });
        let message = refused.unwrap_err().to_string();
        assert!(message.starts_with("post-user 12345:12345: "), "{message}");
        assert!(message.contains("leave post-user out"), "{message}");
    }

    #[test]
    fn nothing_is_left_but_what_dumps_need() {
        let folder = tempfile::tempdir().unwrap();
        let privileges = Privileges::new("-Z", None, Some(folder.path())).unwrap();
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

    /// Root must not create a directory through a link of the user of `-Z` and give this directory
    /// to the user.
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
            let privileges = Privileges::new("-Z", Some("12345:12345"), Some(directory)).unwrap();
            privileges.prepare_directory()
        };
        let owner = |path: &Path| fs::metadata(path).map(|found| found.uid()).ok();
        let refused = prepare(&theirs.join("link/dumps"));
        assert_ne!(owner(&victim.join("dumps")), Some(12_345));
        let refused = refused.unwrap_err().to_string();
        assert!(
            refused.contains("link that another user can change"),
            "{refused}"
        );
        // The link may name an existing directory, which keeps its owner, root.
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
        let left = in_thread(&Privileges::new("-Z", None, Some(&theirs)).unwrap()).unwrap();
        assert_eq!(left, CapabilitySet::DAC_OVERRIDE);
        let left =
            in_thread(&Privileges::new("-Z", Some("12345:12345"), Some(folder.path())).unwrap());
        let refused = left.unwrap_err().to_string();
        assert!(refused.contains("this user cannot write to"), "{refused}");
        // Only the owner may enter the parent directory, so the user becomes its owner.
        chown(folder.path(), Some(12_345), Some(12_345)).unwrap();
        let left =
            in_thread(&Privileges::new("-Z", Some("12345:12345"), Some(&theirs)).unwrap()).unwrap();
        assert_eq!(left, CapabilitySet::empty());
    }
}
