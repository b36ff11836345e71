//! The list of finished dumps. A refresh reads the sidecar of a listed dump again only if the
//! sidecar changed.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    ListedDump, Space, StoredDump, hold_mark, is_held, is_name, keeper::UnfinishedDump, stem_of,
};
use crate::{
    directory::{DumpDirectory, SubDirectory},
    disk::Disk,
};

/// The finished dumps of a directory, by ID.
#[derive(Debug)]
pub(super) struct Listing {
    directory: DumpDirectory,
    known: BTreeMap<String, ListedDump>,
}

impl Listing {
    pub(super) fn new(directory: DumpDirectory) -> Self {
        Self {
            directory,
            known: BTreeMap::new(),
        }
    }

    pub(super) fn disk(&self) -> &dyn Disk {
        self.directory.disk()
    }

    fn root(&self) -> &Path {
        self.directory.openable_path()
    }

    /// Reads the directory, and the directories one level below it.
    pub(super) fn refresh(&mut self) -> io::Result<()> {
        let entries = self.disk().list(self.root())?;
        let mut before = std::mem::take(&mut self.known);
        let mut below = Vec::new();
        for entry in entries {
            if entry.is_directory {
                let name = entry.name.to_str();
                below.extend(
                    name.filter(|it| SubDirectory::new(it).is_ok())
                        .map(str::to_owned),
                );
            } else {
                self.look(None, &entry.name, &mut before);
            }
        }
        for into in below {
            match self.disk().list(&self.root().join(&into)) {
                Ok(entries) => {
                    for entry in entries {
                        self.look(Some(&into), &entry.name, &mut before);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                // The directory cannot be read now, so its known dumps stay in the list.
                Err(_) => {
                    let prefix = format!("{into}/");
                    let known = before.range(prefix.clone()..);
                    let known = known.take_while(|(id, _)| id.starts_with(&prefix));
                    let known = known.map(|(id, known)| (id.clone(), known.clone()));
                    self.known.extend(known);
                }
            }
        }
        Ok(())
    }

    /// Adds a dump, if the name is that of a sidecar.
    fn look(&mut self, into: Option<&str>, name: &Path, before: &mut BTreeMap<String, ListedDump>) {
        let Some(stem) = stem_of(name) else {
            return;
        };
        let id = super::id(into, stem);
        let known = before.remove(&id).filter(|known| {
            match self.disk().entry(&known.sidecar()) {
                Ok(now) => (now.inode, now.changed_ns) == known.seen,
                // If the sidecar cannot be read now, the dump counts as unchanged.
                Err(error) => error.kind() != io::ErrorKind::NotFound,
            }
        });
        let known = match known {
            Some(mut known) => {
                let is_held = is_held(self.disk(), &known.directory, stem);
                if known.dump.is_held != is_held {
                    Arc::make_mut(&mut known.dump).is_held = is_held;
                }
                Some(known)
            }
            None => ListedDump::read(self.disk(), self.root(), into, stem),
        };
        if let Some(known) = known {
            self.known.insert(id, known);
        }
    }

    /// Reads the sidecar of a dump that was finished or may have changed.
    pub(super) fn look_again(&mut self, id: &str) {
        self.known.remove(id);
        let known =
            parts(id).map(|(into, stem)| ListedDump::read(self.disk(), self.root(), into, stem));
        if let Some(known) = known.flatten() {
            self.known.insert(id.to_owned(), known);
        }
    }

    pub(super) fn get(&self, id: &str) -> Option<&ListedDump> {
        self.known.get(id)
    }

    pub(super) fn dumps(&self) -> impl Iterator<Item = &StoredDump> {
        self.known.values().map(|known| &*known.dump)
    }

    /// The finished dumps, shared with lists that outlive the next refresh.
    pub(super) fn shared(&self) -> impl Iterator<Item = Arc<StoredDump>> {
        self.known.values().map(|known| Arc::clone(&known.dump))
    }

    /// An open dump in the form of the list.
    pub(super) fn stored_open(&self, id: &str, open: &UnfinishedDump) -> StoredDump {
        StoredDump {
            is_held: self.is_held(id),
            ..open.stored(id)
        }
    }

    /// Holds or releases a dump, open or not. Returns whether this changed the dump.
    pub(super) fn hold(&self, id: &str, is_held: bool) -> io::Result<bool> {
        let mark = self.mark(id).ok_or(io::ErrorKind::NotFound)?;
        if self.disk().exists(&mark) == is_held {
            return Ok(false);
        }
        let done = if is_held {
            self.disk().create(&mark).map(drop)
        } else {
            self.disk().remove(&mark)
        };
        done.map(|()| true)
    }

    pub(super) fn is_held(&self, id: &str) -> bool {
        self.mark(id).is_some_and(|mark| self.disk().exists(&mark))
    }

    /// Path of the file that holds a dump. `None` if no dump can have this ID.
    fn mark(&self, id: &str) -> Option<PathBuf> {
        let (into, stem) = parts(id)?;
        let directory = into.map_or_else(|| self.root().to_owned(), |it| self.root().join(it));
        Some(hold_mark(&directory, stem))
    }

    pub(super) fn space(&self) -> io::Result<Space> {
        self.disk().space(self.root())
    }

    /// Deletes a dump, and returns the dump. `None` if the dump is held now, or has no valid
    /// sidecar now.
    pub(super) fn delete(&mut self, id: &str) -> io::Result<Option<Arc<StoredDump>>> {
        self.look_again(id);
        let Some(known) = self.known.get(id).filter(|known| !known.dump.is_held) else {
            return Ok(None);
        };
        known.delete(self.disk())?;
        Ok(self.known.remove(id).map(|known| known.dump))
    }

    /// Path of a file of a dump.
    pub(super) fn path(&self, id: &str, name: &str) -> Option<PathBuf> {
        let known = self.known.get(id)?;
        let file = known.dump.files.iter().find(|file| file.name == name)?;
        Some(known.directory.join(&file.name))
    }
}

/// The name of the subdirectory, if there is one, and the stem. `None` if no dump can have this ID.
fn parts(id: &str) -> Option<(Option<&str>, &str)> {
    let (into, stem) = match id.split_once('/') {
        Some((into, stem)) => (Some(into), stem),
        None => (None, id),
    };
    let is_good = is_name(stem) && into.is_none_or(|it| SubDirectory::new(it).is_ok());
    is_good.then_some((into, stem))
}
