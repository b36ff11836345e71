//! The directory that dumps go to, and the names of its files.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use rustix::fs::{CWD, RenameFlags};

use crate::time::file_stamp;

/// Longest part of a rule that goes into a file name, in bytes.
const RULE_BYTES: usize = 64;

/// Where dumps are written and to whom they belong.
#[derive(Debug, Clone)]
pub(crate) struct Directory {
    path: PathBuf,
    owner: Option<(u32, u32)>,
}

impl Directory {
    /// Makes the directory (0750, parents too) if it is missing, and tries that files can be made in it.
    ///
    /// Run as root through sudo, what is made belongs to the calling user (`SUDO_UID`, `SUDO_GID`).
    ///
    /// # Errors
    /// What the system said about making the directory or a file in it.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let directory = Self {
            path: path.to_owned(),
            owner: sudo_caller(),
        };
        directory.make()?;
        let probe = path.join(format!(".retroscope-{}.probe", std::process::id()));
        drop(directory.create(&probe)?);
        fs::remove_file(&probe)?;
        Ok(directory)
    }

    /// The directory's path as the user gave it.
    #[must_use]
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn make(&self) -> io::Result<()> {
        let missing: Vec<PathBuf> = self
            .path
            .ancestors()
            .take_while(|p| !p.as_os_str().is_empty() && !p.exists())
            .map(Path::to_owned)
            .collect();
        DirBuilder::new()
            .recursive(true)
            .mode(0o750)
            .create(&self.path)?;
        for made in &missing {
            self.own(made);
        }
        Ok(())
    }

    /// Creates a new file, 0640 whatever the umask, that must not exist yet.
    pub(super) fn create(&self, path: &Path) -> io::Result<File> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o640)
            .open(path)?;
        file.set_permissions(fs::Permissions::from_mode(0o640))?;
        self.own(path);
        Ok(file)
    }

    /// A file without a name in the directory: gone when it is closed.
    pub(super) fn scratch(&self) -> io::Result<File> {
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .mode(0o600)
            .custom_flags(i32::try_from(rustix::fs::OFlags::TMPFILE.bits()).unwrap_or(0))
            .open(&self.path);
        if opened.is_ok() {
            return opened;
        }
        // A file system without O_TMPFILE (open(2)): make and unlink.
        let path = self
            .path
            .join(format!(".retroscope-{}.sort", std::process::id()));
        let file = self.create(&path)?;
        fs::remove_file(&path)?;
        Ok(file)
    }

    /// Not being able to give a file away is no reason to lose the packets in it: the error is dropped on purpose.
    fn own(&self, path: &Path) {
        if let Some((uid, gid)) = self.owner {
            let _ = std::os::unix::fs::lchown(path, Some(uid), Some(gid));
        }
    }

    /// Syncs the directory itself, so that a rename survives a power cut.
    pub(super) fn sync(&self) -> io::Result<()> {
        let path = if self.path.as_os_str().is_empty() {
            Path::new(".")
        } else {
            &self.path
        };
        File::open(path)?.sync_all()
    }
}

/// The user behind sudo, if this process is root through it.
fn sudo_caller() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let id = |name| std::env::var(name).ok()?.parse::<u32>().ok();
    Some((id("SUDO_UID")?, id("SUDO_GID")?))
}

/// A file name without extension: `20261120T191503.123456789Z-0001-RULE`.
pub(super) fn stem(trigger_ns: i64, counter: u64, rule: &str) -> String {
    format!(
        "{}-{counter:04}-{}",
        file_stamp(trigger_ns),
        rule_part(rule)
    )
}

/// A rule cut to `[A-Za-z0-9._-]`: each run of other characters becomes one `-`, none at the ends.
fn rule_part(rule: &str) -> String {
    let mut part = String::new();
    for c in rule.chars() {
        if c.is_ascii_alphanumeric() || "._-".contains(c) {
            part.push(c);
        } else if !part.is_empty() && !part.ends_with('-') {
            part.push('-');
        }
        if part.len() >= RULE_BYTES {
            break;
        }
    }
    let part = part.trim_matches(['-', '.']);
    if part.is_empty() {
        "all".to_owned()
    } else {
        part.to_owned()
    }
}

/// Renames without ever replacing: `AlreadyExists` if `to` is there.
pub(super) fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Ok(()) => Ok(()),
        // A file system without RENAME_NOREPLACE (rename(2)): a hard link does not replace either.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {
            fs::hard_link(from, to)?;
            fs::remove_file(from)
        }
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stem_sorts_by_time_and_is_safe() {
        assert_eq!(
            stem(1_795_202_103_123_456_789, 1, "udp port 60000"),
            "20261120T191503.123456789Z-0001-udp-port-60000"
        );
        assert_eq!(
            rule_part("tcp[tcpflags] & (tcp-syn|tcp-fin) != 0"),
            "tcp-tcpflags-tcp-syn-tcp-fin-0"
        );
        assert_eq!(rule_part("../../etc/passwd"), "etc-passwd");
        assert_eq!(rule_part(""), "all");
        assert_eq!(rule_part("härte"), "h-rte");
        assert!(rule_part(&"host 10.0.0.1 or ".repeat(50)).len() <= RULE_BYTES);
    }

    #[test]
    fn a_rename_replaces_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        fs::write(&a, "new").unwrap();
        fs::write(&b, "old").unwrap();
        assert_eq!(
            rename_new(&a, &b).unwrap_err().kind(),
            io::ErrorKind::AlreadyExists
        );
        assert_eq!(fs::read_to_string(&b).unwrap(), "old");
        fs::remove_file(&b).unwrap();
        rename_new(&a, &b).unwrap();
        assert_eq!(fs::read_to_string(&b).unwrap(), "new");
    }

    #[test]
    fn a_directory_is_made_and_files_are_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x/y");
        let directory = Directory::open(&path).unwrap();
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777 & !0o750,
            0
        );
        let file = path.join("f");
        drop(directory.create(&file).unwrap());
        assert_eq!(
            fs::metadata(&file).unwrap().permissions().mode() & 0o777,
            0o640
        );
        assert_eq!(
            directory.create(&file).unwrap_err().kind(),
            io::ErrorKind::AlreadyExists
        );
        drop(directory.scratch().unwrap());
        assert_eq!(fs::read_dir(&path).unwrap().count(), 1);
    }
}
