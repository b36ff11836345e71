//! The directory that dumps go to, and the names of its files.

use std::{
    fs::DirBuilder,
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    disk::{Disk, SystemDisk},
    encode::Format,
};
use crate::{analysis::terms::SubDirectory, control::time::file_stamp};

/// Longest part of a rule that goes into a file name, in bytes.
const RULE_BYTES: usize = 64;

/// Where dumps are written, and how: the same for all dumps of a recorder.
#[derive(Debug, Clone)]
pub(crate) struct Directory {
    path: PathBuf,
    /// It lies in that of the dumps, and is made when it is needed.
    is_below: bool,
    disk: Arc<dyn Disk>,
    pub(super) format: Format,
}

impl Directory {
    /// Makes the directory (0750, parents too) if it is missing, and tries that files can be made in it.
    ///
    /// Run as root through sudo, what is made belongs to the calling user (`SUDO_UID`, `SUDO_GID`).
    ///
    /// # Errors
    /// What the system said about making the directory or a file in it.
    pub(crate) fn open(path: &Path, format: Format) -> io::Result<Self> {
        let owner = sudo_caller();
        let disk = SystemDisk { owner };
        make(path, &disk)?;
        let directory = Self::on(Arc::new(disk), path, format);
        let probe = path.join(format!(".retroscope-{}.probe", std::process::id()));
        drop(directory.disk.create(&probe)?);
        directory.disk.remove(&probe)?;
        Ok(directory)
    }

    /// The working directory, which may or may not be written to.
    pub(crate) fn untried(format: Format) -> Self {
        let disk = SystemDisk { owner: None };
        Self::on(Arc::new(disk), Path::new(""), format)
    }

    /// A directory that is there.
    pub(crate) fn on(disk: Arc<dyn Disk>, path: &Path, format: Format) -> Self {
        let path = path.to_owned();
        Self {
            path,
            is_below: false,
            disk,
            format,
        }
    }

    /// The one of this name in it; without a name itself.
    pub(super) fn below(&self, name: Option<&SubDirectory>) -> Self {
        let mut directory = self.clone();
        if let Some(name) = name {
            directory.path.push(name.as_str());
            directory.is_below = true;
        }
        directory
    }

    /// Sees to it that it is there.
    pub(super) fn make(&self) -> io::Result<()> {
        if self.is_below {
            self.disk.make_directory(&self.path)
        } else {
            Ok(())
        }
    }

    /// The directory's path as the user gave it.
    #[must_use]
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The same as something that can be opened.
    pub(super) fn here(&self) -> &Path {
        if self.path.as_os_str().is_empty() {
            Path::new(".")
        } else {
            &self.path
        }
    }

    /// The file system that it lies in.
    pub(super) fn disk(&self) -> &dyn Disk {
        &*self.disk
    }
}

/// Makes a directory and its parents.
fn make(path: &Path, disk: &SystemDisk) -> io::Result<()> {
    let missing: Vec<PathBuf> = path
        .ancestors()
        .take_while(|p| !p.as_os_str().is_empty() && !p.exists())
        .map(Path::to_owned)
        .collect();
    DirBuilder::new().recursive(true).mode(0o750).create(path)?;
    missing.iter().for_each(|made| disk.own(made));
    Ok(())
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

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

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
    fn a_directory_is_made_and_files_are_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x/y");
        let directory = Directory::open(&path, Format::PcapNg).unwrap();
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777 & !0o750,
            0
        );
        let file = path.join("f");
        drop(directory.disk().create(&file).unwrap());
        assert_eq!(
            fs::metadata(&file).unwrap().permissions().mode() & 0o777,
            0o640
        );
        assert_eq!(
            directory.disk().create(&file).unwrap_err().kind(),
            io::ErrorKind::AlreadyExists
        );
    }
}
