//! A file system in memory, for tests: it fills up, becomes read-only or slow when they say so.

use std::{
    collections::BTreeMap,
    fmt,
    io::{self, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, Weak},
};

use rustix::io::Errno;

use crate::dump::disk::{Disk, DiskFile};

/// See the module. Clones are the same file system.
#[derive(Debug, Clone, Default)]
pub(crate) struct FakeDisk(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    named: BTreeMap<PathBuf, Bytes>,
    /// Of all files that are named or open.
    all: Vec<Weak<Mutex<Vec<u8>>>>,
    /// Bytes that it holds at most; `None`: any number.
    capacity: Option<usize>,
    is_read_only: bool,
    delay: Option<Delay>,
}

type Bytes = Arc<Mutex<Vec<u8>>>;

/// What happens while a slow file system writes.
#[derive(Clone)]
struct Delay(Arc<dyn Fn() + Send + Sync>);

impl fmt::Debug for Delay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Delay")
    }
}

#[derive(Debug)]
struct FakeFile {
    disk: FakeDisk,
    bytes: Bytes,
    /// Where the next bytes are appended.
    at: usize,
}

impl FakeDisk {
    /// Nothing more than so many bytes in all fits.
    pub(crate) fn set_capacity(&self, bytes: usize) {
        self.state().capacity = Some(bytes);
    }

    pub(crate) fn set_read_only(&self, is_read_only: bool) {
        self.state().is_read_only = is_read_only;
    }

    /// This happens during each write.
    pub(crate) fn set_slow(&self, during: impl Fn() + Send + Sync + 'static) {
        self.state().delay = Some(Delay(Arc::new(during)));
    }

    /// The names of its files.
    pub(crate) fn names(&self) -> Vec<PathBuf> {
        self.state().named.keys().cloned().collect()
    }

    /// What a file holds.
    pub(crate) fn read(&self, path: &Path) -> Option<Vec<u8>> {
        let bytes = Arc::clone(self.state().named.get(path)?);
        let bytes = bytes.lock().unwrap();
        Some(bytes.clone())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// The state, to be changed.
    fn writable(&self) -> io::Result<MutexGuard<'_, State>> {
        let state = self.state();
        if state.is_read_only {
            return Err(Errno::ROFS.into());
        }
        Ok(state)
    }

    fn file(&self, bytes: Bytes) -> Box<dyn DiskFile> {
        Box::new(FakeFile {
            disk: self.clone(),
            bytes,
            at: 0,
        })
    }
}

impl State {
    fn make(&mut self) -> Bytes {
        let bytes = Bytes::default();
        if self.all.len() == self.all.capacity() {
            self.all.retain(|one| one.strong_count() > 0);
        }
        self.all.push(Arc::downgrade(&bytes));
        bytes
    }

    /// Bytes that still fit.
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
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let mut state = self.writable()?;
        if state.named.contains_key(path) {
            return Err(Errno::EXIST.into());
        }
        let bytes = state.make();
        state.named.insert(path.to_owned(), Arc::clone(&bytes));
        Ok(self.file(bytes))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let bytes = self.writable()?.named.get(path).cloned();
        Ok(self.file(bytes.ok_or(Errno::NOENT)?))
    }

    fn scratch(&self, _directory: &Path) -> io::Result<Box<dyn DiskFile>> {
        let bytes = self.writable()?.make();
        Ok(self.file(bytes))
    }

    fn exists(&self, path: &Path) -> bool {
        self.state().named.contains_key(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.writable()?;
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

    fn sync_directory(&self, _path: &Path) -> io::Result<()> {
        Ok(())
    }
}

impl Write for FakeFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_all(bytes)?;
        Ok(bytes.len())
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let delay = self.disk.state().delay.clone();
        if let Some(Delay(during)) = delay {
            during();
        }
        let room = self.disk.writable()?.room();
        let fits = &bytes[..bytes.len().min(room)];
        let mut data = self.bytes.lock().unwrap();
        if data.len() < self.at {
            data.resize(self.at, 0);
        }
        data.truncate(self.at);
        data.extend_from_slice(fits);
        self.at = data.len();
        if fits.len() < bytes.len() {
            return Err(Errno::NOSPC.into());
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
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

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        drop(self.disk.writable()?);
        let mut data = self.bytes.lock().unwrap();
        let offset = usize::try_from(offset).map_err(io::Error::other)?;
        let end = offset + bytes.len();
        if data.len() < end {
            data.resize(end, 0);
        }
        data[offset..end].copy_from_slice(bytes);
        Ok(bytes.len())
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
        drop(self.disk.writable()?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn it_fills_up_and_has_room_again() {
        let disk = FakeDisk::default();
        disk.set_capacity(10);
        let mut file = disk.create(Path::new("a")).unwrap();
        file.write_all(b"123456").unwrap();
        let error = file.write_all(b"789abc").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert_eq!(disk.read(Path::new("a")).unwrap(), b"123456789a");
        file.set_len(6).unwrap();
        let mut scratch = disk.scratch(Path::new("")).unwrap();
        assert!(scratch.write_all(b"12345").is_err());
        drop(scratch);
        disk.scratch(Path::new(""))
            .unwrap()
            .write_all(b"1234")
            .unwrap();
    }

    #[test]
    fn it_becomes_read_only_and_slow() {
        let disk = FakeDisk::default();
        let mut file = disk.create(Path::new("a")).unwrap();
        let writes = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&writes);
        disk.set_slow(move || _ = counted.fetch_add(1, Ordering::Relaxed));
        file.write_all(b"1").unwrap();
        disk.set_read_only(true);
        let errors = [
            file.write_all(b"2").unwrap_err(),
            file.sync().unwrap_err(),
            disk.create(Path::new("b")).unwrap_err(),
            disk.rename(Path::new("a"), Path::new("b")).unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), io::ErrorKind::ReadOnlyFilesystem);
        }
        assert_eq!(disk.names(), [PathBuf::from("a")]);
        disk.set_read_only(false);
        file.write_all(b"2").unwrap();
        assert_eq!(writes.load(Ordering::Relaxed), 3);
    }
}
