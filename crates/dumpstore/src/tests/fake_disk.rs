//! A file system in memory for tests, which becomes full, read-only or slow on request.

use std::{
    collections::{BTreeMap, HashMap},
    fmt, io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, Weak,
        atomic::{AtomicUsize, Ordering},
    },
};

use rustix::io::Errno;

use retroscope_dumpstore::{
    disk::{DirectoryEntry, Disk, DiskFile},
    store::Space,
};

/// A file system in memory. Clones share the files.
#[derive(Debug, Clone, Default)]
pub(crate) struct FakeDisk(Arc<Mutex<State>>, Arc<OpenFiles>);

#[derive(Debug, Default)]
struct State {
    named: BTreeMap<PathBuf, Bytes>,
    /// By inode, the number of each file in the order of creation. `files` counts the created
    /// files.
    made: HashMap<u64, i64>,
    files: i64,
    /// All files that have a name or are open. References to other files may remain for a while.
    all: Vec<Weak<Mutex<Vec<u8>>>>,
    /// Maximum number of bytes. `None`: no limit.
    capacity: Option<usize>,
    is_read_only: bool,
    /// A name to which renames fail.
    refused: Option<PathBuf>,
    /// A directory that cannot be listed.
    unlisted: Option<PathBuf>,
    delay: Option<Delay>,
}

type Bytes = Arc<Mutex<Vec<u8>>>;

/// An operation on a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deed {
    /// Asking whether a file exists, or opening the file to read.
    Look,
    /// Listing a directory.
    List,
    Create,
    Write,
    Sync,
}

/// A function that runs before each operation of a kind in [`Deed`].
#[derive(Clone)]
struct Delay(Arc<During>);

type During = dyn Fn(Deed, &Path) + Send + Sync;

impl fmt::Debug for Delay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Delay")
    }
}

#[derive(Debug)]
struct FakeFile {
    disk: FakeDisk,
    /// The name of the file when it was opened.
    path: PathBuf,
    bytes: Bytes,
}

/// Counters of open files and written bytes.
#[derive(Debug, Default)]
struct OpenFiles {
    now: AtomicUsize,
    most: AtomicUsize,
    /// Bytes written to all files.
    written: AtomicUsize,
}

impl FakeDisk {
    /// Limits the bytes of all files together.
    pub(crate) fn set_capacity(&self, bytes: usize) {
        self.state().capacity = Some(bytes);
    }

    pub(crate) fn set_read_only(&self, is_read_only: bool) {
        self.state().is_read_only = is_read_only;
    }

    /// Makes every rename to this name fail, as on a damaged disk.
    pub(crate) fn set_refused(&self, path: &str) {
        self.state().refused = Some(path.into());
    }

    /// Makes listing this directory fail, as without a free descriptor. `None`: no directory fails.
    pub(crate) fn set_unlisted(&self, path: Option<&str>) {
        self.state().unlisted = path.map(PathBuf::from);
    }

    /// Calls `during` before each operation of a kind in [`Deed`]. `during` may wait, and does not
    /// delay other operations.
    pub(crate) fn set_slow(&self, during: impl Fn(Deed, &Path) + Send + Sync + 'static) {
        self.state().delay = Some(Delay(Arc::new(during)));
    }

    /// The most files that were open at once.
    pub(crate) fn most_open(&self) -> usize {
        self.1.most.load(Ordering::SeqCst)
    }

    /// Bytes written to all files so far.
    pub(crate) fn written(&self) -> usize {
        self.1.written.load(Ordering::SeqCst)
    }

    /// The names of all files.
    pub(crate) fn names(&self) -> Vec<PathBuf> {
        self.state().named.keys().cloned().collect()
    }

    /// The content of a file.
    pub(crate) fn read(&self, path: &Path) -> Option<Vec<u8>> {
        let bytes = Arc::clone(self.state().named.get(path)?);
        let bytes = bytes.lock().unwrap();
        Some(bytes.clone())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// The state for a change. Fails if the file system is read-only.
    fn writable(&self) -> io::Result<MutexGuard<'_, State>> {
        let state = self.state();
        if state.is_read_only {
            return Err(Errno::ROFS.into());
        }
        Ok(state)
    }

    fn delay(&self, deed: Deed, path: &Path) {
        let delay = self.state().delay.clone();
        if let Some(Delay(during)) = delay {
            during(deed, path);
        }
    }

    fn file(&self, path: &Path, bytes: Bytes) -> Arc<dyn DiskFile> {
        let open = self.1.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.1.most.fetch_max(open, Ordering::SeqCst);
        Arc::new(FakeFile {
            disk: self.clone(),
            path: path.to_owned(),
            bytes,
        })
    }
}

impl Drop for FakeFile {
    fn drop(&mut self) {
        self.disk.1.now.fetch_sub(1, Ordering::SeqCst);
    }
}

impl FakeFile {
    fn len(&self) -> usize {
        self.bytes.lock().unwrap().len()
    }
}

impl State {
    fn make(&mut self) -> Bytes {
        let bytes = Bytes::default();
        if self.all.len() == self.all.capacity() {
            self.all.retain(|one| one.strong_count() > 0);
        }
        self.all.push(Arc::downgrade(&bytes));
        let inode = Arc::as_ptr(&bytes).addr() as u64;
        self.files += 1;
        self.made.insert(inode, self.files);
        bytes
    }

    /// Bytes that are still free.
    fn room(&self) -> usize {
        let Some(capacity) = self.capacity else {
            return usize::MAX;
        };
        let files = self.all.iter().filter_map(Weak::upgrade);
        let used: usize = files.map(|bytes| bytes.lock().unwrap().len()).sum();
        capacity.saturating_sub(used)
    }
}

impl Disk for FakeDisk {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.delay(Deed::Create, path);
        let mut state = self.writable()?;
        if state.named.contains_key(path) {
            return Err(Errno::EXIST.into());
        }
        let bytes = state.make();
        state.named.insert(path.to_owned(), Arc::clone(&bytes));
        Ok(self.file(path, bytes))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let bytes = self.writable()?.named.get(path).cloned();
        Ok(self.file(path, bytes.ok_or(Errno::NOENT)?))
    }

    fn open_to_read(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.delay(Deed::Look, path);
        let bytes = self.state().named.get(path).cloned();
        Ok(self.file(path, bytes.ok_or(Errno::NOENT)?))
    }

    fn exists(&self, path: &Path) -> bool {
        self.delay(Deed::Look, path);
        self.state().named.contains_key(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.writable()?;
        if state.refused.as_deref() == Some(to) {
            return Err(Errno::IO.into());
        }
        let bytes = state.named.remove(from).ok_or(Errno::NOENT)?;
        state.named.insert(to.to_owned(), bytes);
        Ok(())
    }

    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<()> {
        if self.exists(from) && self.exists(to) {
            return Err(Errno::EXIST.into());
        }
        self.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let removed = self.writable()?.named.remove(path);
        removed.map(drop).ok_or(Errno::NOENT.into())
    }

    /// Directories are the parents of files.
    fn list(&self, path: &Path) -> io::Result<Vec<DirectoryEntry>> {
        self.delay(Deed::List, path);
        if self.state().unlisted.as_deref() == Some(path) {
            return Err(Errno::MFILE.into());
        }
        let names = self.names();
        let below = names.iter().filter_map(|name| name.strip_prefix(path).ok());
        let first = |name: &Path| name.iter().next().map(|first| path.join(first));
        let mut entries: Vec<_> = below.filter_map(first).collect();
        entries.dedup();
        Ok(entries
            .iter()
            .filter_map(|path| self.entry(path).ok())
            .collect())
    }

    fn entry(&self, path: &Path) -> io::Result<DirectoryEntry> {
        let state = self.state();
        let bytes = state.named.get(path).cloned();
        if bytes.is_none() && !state.named.keys().any(|name| name.starts_with(path)) {
            return Err(Errno::NOENT.into());
        }
        let inode = bytes
            .as_ref()
            .map_or(0, |bytes| Arc::as_ptr(bytes).addr() as u64);
        Ok(DirectoryEntry {
            name: path.file_name().map(PathBuf::from).unwrap_or_default(),
            is_file: bytes.is_some(),
            is_directory: bytes.is_none(),
            bytes: bytes.map_or(0, |bytes| bytes.lock().unwrap().len() as u64),
            inode,
            changed_ns: state.made.get(&inode).copied().unwrap_or(0),
        })
    }

    fn space(&self, _path: &Path) -> io::Result<Space> {
        let state = self.state();
        let total = state.capacity.unwrap_or(usize::MAX) as u64;
        Ok(Space {
            free: state.room() as u64,
            total,
        })
    }

    fn make_directory(&self, _path: &Path) -> io::Result<()> {
        Ok(())
    }

    fn sync_directory(&self, _path: &Path) -> io::Result<()> {
        Ok(())
    }
}

impl FileExt for FakeFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let data = self.bytes.lock().unwrap();
        let offset = usize::try_from(offset).map_err(io::Error::other)?;
        let rest = data.get(offset..).unwrap_or_default();
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    /// Writes as many bytes as fit, and refuses the rest.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        self.disk.delay(Deed::Write, &self.path);
        let state = self.disk.writable()?;
        let offset = usize::try_from(offset).map_err(io::Error::other)?;
        let fits = self.len().saturating_add(state.room());
        let end = (offset + bytes.len()).min(fits);
        if end <= offset {
            return Err(Errno::NOSPC.into());
        }
        let mut data = self.bytes.lock().unwrap();
        if data.len() < end {
            data.resize(end, 0);
        }
        data[offset..end].copy_from_slice(&bytes[..end - offset]);
        let written = &self.disk.1.written;
        written.fetch_add(end - offset, Ordering::SeqCst);
        Ok(end - offset)
    }
}

impl DiskFile for FakeFile {
    fn set_len(&self, bytes: u64) -> io::Result<()> {
        drop(self.disk.writable()?);
        let bytes = usize::try_from(bytes).map_err(io::Error::other)?;
        self.bytes.lock().unwrap().resize(bytes, 0);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.delay(Deed::Sync, &self.path);
        drop(self.disk.writable()?);
        Ok(())
    }

    fn identity(&self) -> io::Result<(u64, u64)> {
        Ok((0, Arc::as_ptr(&self.bytes).addr() as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_fills_up_and_has_room_again() {
        let disk = FakeDisk::default();
        disk.set_capacity(10);
        let file = disk.create(Path::new("a")).unwrap();
        file.write_all_at(b"123456", 0).unwrap();
        let error = file.write_all_at(b"789abc", 6).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert_eq!(disk.read(Path::new("a")).unwrap(), b"123456789a");
        file.set_len(6).unwrap();
        file.write_all_at(b"ABCDEF", 0).unwrap();
        let other = disk.create(Path::new("b")).unwrap();
        assert!(other.write_all_at(b"12345", 0).is_err());
        other.write_all_at(b"1234", 0).unwrap();
        disk.remove(Path::new("b")).unwrap();
        assert!(file.write_all_at(b"1", 6).is_err(), "it is open still");
        drop(other);
        file.write_all_at(b"1234", 6).unwrap();
    }

    #[test]
    fn it_becomes_read_only_and_slow() {
        let disk = FakeDisk::default();
        let file = disk.create(Path::new("a")).unwrap();
        let writes = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&writes);
        disk.set_slow(move |deed, path| {
            let is_write = deed == Deed::Write && path == Path::new("a");
            counted.fetch_add(usize::from(is_write), Ordering::Relaxed);
        });
        file.write_all_at(b"1", 0).unwrap();
        disk.set_read_only(true);
        let errors = [
            file.write_all_at(b"2", 1).unwrap_err(),
            file.sync().unwrap_err(),
            disk.create(Path::new("b")).unwrap_err(),
            disk.rename(Path::new("a"), Path::new("b")).unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), io::ErrorKind::ReadOnlyFilesystem);
        }
        assert_eq!(disk.names(), [PathBuf::from("a")]);
        disk.set_read_only(false);
        file.write_all_at(b"2", 1).unwrap();
        assert_eq!(writes.load(Ordering::Relaxed), 3);
    }
}
