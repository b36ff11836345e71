//! A directory of another user, and one of root that this user would like to have.

use std::{
    fs,
    os::unix::fs::{lchown, symlink},
    path::PathBuf,
};

use rustix::{
    fs::{Gid, Uid},
    process::geteuid,
};
use tempfile::TempDir;

use crate::Owner;

pub(crate) const THEIR_UID: u32 = 12_345;

pub(crate) struct OtherUser {
    /// The parent directory, which belongs to root until [`Self::swap`].
    pub(crate) folder: TempDir,
    /// A directory of the user.
    pub(crate) path: PathBuf,
    /// A directory of root, with a file `passwd`.
    pub(crate) victim: PathBuf,
    /// The user.
    pub(crate) owner: Owner,
}

/// `None` without root, which alone can make these directories.
pub(crate) fn theirs() -> Option<OtherUser> {
    if !geteuid().is_root() {
        eprintln!("SKIP: needs root");
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let (path, victim) = (folder.path().join("theirs"), folder.path().join("victim"));
    fs::create_dir(&path).unwrap();
    lchown(&path, Some(THEIR_UID), Some(THEIR_UID)).unwrap();
    fs::create_dir(&victim).unwrap();
    fs::write(victim.join("passwd"), "root").unwrap();
    let owner = (
        Some(Uid::from_raw(THEIR_UID)),
        Some(Gid::from_raw(THEIR_UID)),
    );
    Some(OtherUser {
        folder,
        path,
        victim,
        owner,
    })
}

impl OtherUser {
    /// Replaces the user's directory by a link to root's directory `victim`. Then gives the parent
    /// directory to the user, who could have made the link. Returns the new path of the user's
    /// directory.
    pub(crate) fn swap(&self) -> PathBuf {
        let moved = self.folder.path().join("moved");
        fs::rename(&self.path, &moved).unwrap();
        symlink(&self.victim, &self.path).unwrap();
        lchown(self.folder.path(), Some(THEIR_UID), None).unwrap();
        moved
    }

    /// Names in the directory of root.
    pub(crate) fn victims(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.victim).unwrap();
        entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }
}
