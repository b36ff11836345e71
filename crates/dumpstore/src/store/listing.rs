//! Which dumps there are: read once, and brought up to date where something changed.

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

/// The finished dumps of a directory, by name.
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
        self.directory.here()
    }

    /// Looks at what lies in the directory now, and one level below it.
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
                // It cannot be read now: what is known of it is there still.
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

    /// Takes a dump up, if this is the sidecar of one.
    fn look(&mut self, into: Option<&str>, name: &Path, before: &mut BTreeMap<String, ListedDump>) {
        let Some(stem) = stem_of(name) else {
            return;
        };
        let id = super::id(into, stem);
        let known = before.remove(&id).filter(|known| {
            match self.disk().entry(&known.sidecar()) {
                Ok(now) => (now.inode, now.changed_ns) == known.seen,
                // What cannot be looked at now is none other for that.
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

    /// A dump was finished, or may have changed.
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

    /// A dump that is being written, as it is listed.
    pub(super) fn stored_open(&self, id: &str, open: &UnfinishedDump) -> StoredDump {
        StoredDump {
            is_held: self.is_held(id),
            ..open.stored(id)
        }
    }

    /// Holds a dump that is there, open or not, or releases it. Whether that is new.
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

    /// Where the mark is that holds a dump. `None`: there can be none of this name.
    fn mark(&self, id: &str) -> Option<PathBuf> {
        let (into, stem) = parts(id)?;
        let directory = into.map_or_else(|| self.root().to_owned(), |it| self.root().join(it));
        Some(hold_mark(&directory, stem))
    }

    pub(super) fn space(&self) -> io::Result<Space> {
        self.disk().space(self.root())
    }

    /// Deletes a dump. Returned is what it was: `None`, if it is held now, or is not there as it was known.
    pub(super) fn delete(&mut self, id: &str) -> io::Result<Option<Arc<StoredDump>>> {
        self.look_again(id);
        let Some(known) = self.known.get(id).filter(|known| !known.dump.is_held) else {
            return Ok(None);
        };
        known.delete(self.disk())?;
        Ok(self.known.remove(id).map(|known| known.dump))
    }

    /// Where a file of a dump is.
    pub(super) fn path(&self, id: &str, name: &str) -> Option<PathBuf> {
        let known = self.known.get(id)?;
        let file = known.dump.files.iter().find(|file| file.name == name)?;
        Some(known.directory.join(&file.name))
    }
}

/// The directory below, if there is one, and the stem of a dump of this name. `None`: no dump can have it.
fn parts(id: &str) -> Option<(Option<&str>, &str)> {
    let (into, stem) = match id.split_once('/') {
        Some((into, stem)) => (Some(into), stem),
        None => (None, id),
    };
    let is_good = is_name(stem) && into.is_none_or(|it| SubDirectory::new(it).is_ok());
    is_good.then_some((into, stem))
}
