use std::{
    ffi::{CStr, CString},
    fs, io,
    os::unix::{ffi::OsStrExt, fs::PermissionsExt},
    path::Path,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
};

use rustix::fs::{FlockOperation, Mode, OFlags, SealFlags, fcntl_get_seals, flock, open};

use super::*;
use crate::AttachError;

const BYTES: usize = 2 * ALIGNMENT;

fn config(backing: Backing) -> RingConfig {
    RingConfig {
        backing,
        ..RingConfig::new(0, 0, 0)
    }
}

fn memory(config: &RingConfig) -> RegionMemory {
    RegionMemory::new(BYTES, config, None).unwrap().0
}

fn byte(memory: &RegionMemory, offset: usize) -> u8 {
    assert!(offset < memory.bytes);
    // SAFETY: inside the mapping, as asserted.
    let place = unsafe { memory.base().add(offset) };
    // SAFETY: mapped, and only this test knows it.
    unsafe { place.read() }
}

#[test]
fn memory_is_aligned_zeroed_and_filled() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ring");
    let bytes = populate::PIECE_BYTES + ALIGNMENT;
    for backing in [Backing::Anonymous, Backing::Memfd, Backing::File(path)] {
        let mut told = Vec::new();
        let mut progress = |done, all| told.push((done, all));
        let (memory, _) = RegionMemory::new(bytes, &config(backing), Some(&mut progress)).unwrap();
        assert_eq!(told.last(), Some(&(bytes as u64, bytes as u64)));
        assert!(memory.base().as_ptr().addr().is_multiple_of(ALIGNMENT));
        assert_eq!(byte(&memory, memory.bytes - 1), 0);
    }
}

#[test]
fn touching_fills_as_well() {
    let memory = RegionMemory::aligned(ALIGNMENT, READ_WRITE).unwrap();
    let zero = Zero::new().unwrap();
    memory.touch(&zero, 0..ALIGNMENT).unwrap();
    assert_eq!(byte(&memory, 0), 0);
}

/// As for a huge page beyond a cgroup's limit, a store after the end of a file raises SIGBUS.
#[test]
fn a_page_that_cannot_be_had_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let file = RegionFile::create(&directory.path().join("ring"), BYTES).unwrap();
    let memory = RegionMemory::shared(BYTES, file).unwrap();
    let file = memory.file.as_ref().unwrap();
    ftruncate(&file.fd, ALIGNMENT as u64).unwrap();
    let zero = Zero::new().unwrap();
    assert_eq!(memory.touch(&zero, 0..ALIGNMENT), Ok(()));
    assert_eq!(memory.touch(&zero, 0..BYTES), Err(Errno::FAULT));
}

#[test]
fn a_size_beyond_memory_is_an_error() {
    let error = RegionMemory::aligned(1 << 62, READ_WRITE).unwrap_err();
    assert!(matches!(error, RingError::System { call: "mmap", .. }));
}

#[test]
fn no_backing_is_in_core_dumps() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ring");
    for backing in [Backing::Anonymous, Backing::Memfd, Backing::File(path)] {
        let memory = memory(&config(backing));
        let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
        let address = format!("{:x}-", memory.base().addr());
        let ours = smaps.split_once(&format!("\n{address}")).unwrap().1;
        let flags = ours
            .lines()
            .find(|line| line.starts_with("VmFlags:"))
            .unwrap();
        assert!(flags.split_whitespace().any(|flag| flag == "dd"), "{flags}");
    }
}

#[test]
fn a_memfd_is_sealed_locked_and_found_under_proc() {
    let memory = memory(&config(Backing::Memfd));
    let path = memory.path().unwrap();
    let file = fs::File::options()
        .read(true)
        .write(true)
        .open(&path)
        .unwrap();
    let seals = fcntl_get_seals(&file).unwrap();
    assert!(seals.contains(SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL));
    assert!(file.set_len(0).is_err());
    assert!(file.set_len(1 << 40).is_err());
    assert_eq!(file.metadata().unwrap().len(), BYTES as u64);
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert!(flock(&file, FlockOperation::NonBlockingLockShared).is_err());
    drop(memory);
    flock(&file, FlockOperation::NonBlockingLockShared).unwrap();
}

#[test]
fn a_file_is_ours_alone_and_has_its_blocks() {
    use std::os::unix::fs::MetadataExt;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ring");
    for prefault in [true, false] {
        let config = RingConfig {
            prefault,
            ..config(Backing::File(path.clone()))
        };
        let memory = memory(&config);
        assert_eq!(memory.path(), Some(path.clone()));
        let found = fs::metadata(&path).unwrap();
        assert_eq!(found.permissions().mode() & 0o777, 0o600);
        assert_eq!(found.len(), BYTES as u64);
        assert!(found.blocks() * 512 >= BYTES as u64, "set aside");
    }
    assert!(path.exists(), "it stays");
}

#[test]
fn only_an_abandoned_ring_file_is_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ring");
    let config = config(Backing::File(path.clone()));
    let again = || RegionMemory::new(BYTES, &config, None).map(|_| ());

    let running = memory(&config);
    assert!(matches!(again(), Err(RingError::FileHeld(_))));
    let reader = open(&path, OFlags::RDONLY, Mode::empty()).unwrap();
    drop(running);
    again().unwrap();
    let mut magic = [0; 8];
    rustix::io::pread(&reader, &mut magic, 0).unwrap();
    assert_eq!(
        u64::from_ne_bytes(magic),
        MAGIC,
        "the old one is still there for its reader"
    );

    let foreign = |what: &str| {
        let error = again().unwrap_err();
        assert!(
            matches!(error, RingError::FileForeign(_)),
            "{what}: {error}"
        );
        assert!(path.symlink_metadata().is_ok(), "{what} was removed");
    };
    for contents in ["", "short", "a letter to a friend, longer than eight bytes"] {
        fs::write(&path, contents).unwrap();
        foreign(contents);
        assert_eq!(fs::read_to_string(&path).unwrap(), contents);
    }
    let other = directory.path().join("other");
    fs::write(&other, MAGIC.to_ne_bytes()).unwrap();
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(&other, &path).unwrap();
    foreign("a symbolic link");
    assert_eq!(fs::read(&other).unwrap().len(), 8);
    fs::remove_file(&path).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, Mode::RUSR | Mode::WUSR).unwrap();
    foreign("a pipe");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    foreign("a directory");
    fs::remove_dir(&path).unwrap();
    again().unwrap();
}

/// A reader may lock the ring file for an instant, to find out whether a recorder runs, just when
/// the next recorder starts.
#[test]
fn a_reader_that_asks_for_the_lock_refuses_no_ring() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ring");
    let config = config(Backing::File(path.clone()));
    drop(memory(&config));
    let (asked, is_done) = (AtomicU64::new(0), AtomicBool::new(false));
    let ask = || {
        while !is_done.load(Ordering::Relaxed) {
            let Ok(reader) = open(&path, OFlags::RDONLY, Mode::empty()) else {
                continue;
            };
            for _ in 0..100 {
                if flock(&reader, FlockOperation::NonBlockingLockShared).is_ok() {
                    flock(&reader, FlockOperation::Unlock).unwrap();
                }
                asked.fetch_add(1, Ordering::Relaxed);
            }
        }
    };
    thread::scope(|scope| {
        let reader = scope.spawn(ask);
        let made: Result<Vec<_>, _> = (0..50)
            .map(|_| {
                let before = asked.load(Ordering::Relaxed);
                while asked.load(Ordering::Relaxed) == before {
                    thread::yield_now();
                }
                RegionMemory::new(BYTES, &config, None).map(|_| ())
            })
            .collect();
        is_done.store(true, Ordering::Relaxed);
        reader.join().unwrap();
        assert!(made.is_ok(), "{made:?}");
    });
}

/// A stopped reader may keep its lock for any time.
#[test]
fn a_ring_waits_for_no_reader_without_end() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ring");
    let config = config(Backing::File(path.clone()));
    drop(memory(&config));
    let reader = open(&path, OFlags::RDONLY, Mode::empty()).unwrap();
    flock(&reader, FlockOperation::NonBlockingLockShared).unwrap();
    let made = RegionMemory::new(BYTES, &config, None).map(|_| ());
    assert!(matches!(made, Err(RingError::FileHeld(_))), "{made:?}");
    drop(reader);
    memory(&config);
}

#[test]
fn a_ring_that_was_never_finished_is_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ring");
    drop(RegionFile::create(&path, BYTES).unwrap());
    memory(&config(Backing::File(path)));
}

/// A separate hugetlbfs, with reserved pages.
struct HugePages {
    directory: tempfile::TempDir,
    pages_before: String,
    /// Tests take turns: the number of huge pages is global to the machine.
    _alone: MutexGuard<'static, ()>,
}

const NR_HUGEPAGES: &str = "/proc/sys/vm/nr_hugepages";
const HUGE_PAGE_BYTES: u64 = 2 << 20;

impl HugePages {
    /// Without root, or without memory for `pages` huge pages, prints a reason and returns `None`.
    ///
    /// Mounts with system calls: a child process would have every file of this process open, and
    /// their locks, until it executes the mount program.
    fn mount(pages: u64) -> Option<Self> {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let directory = tempfile::tempdir().unwrap();
        let pages_before = fs::read_to_string(NR_HUGEPAGES).unwrap_or_default();
        let before: u64 = pages_before.trim().parse().unwrap_or(0);
        let wanted = (before + pages).to_string();
        let got = fs::write(NR_HUGEPAGES, &wanted)
            .and_then(|()| fs::read_to_string(NR_HUGEPAGES))
            .is_ok_and(|now| now.trim() == wanted);
        let this = Self {
            directory,
            pages_before,
            _alone: alone,
        };
        // The mount reserves the pages: other tests ask for huge pages too.
        let bytes = pages * HUGE_PAGE_BYTES;
        let options = CString::new(format!("pagesize=2M,min_size={bytes}")).unwrap();
        let mounted = got && mount_hugetlbfs(this.directory.path(), &options).is_ok();
        if !mounted {
            eprintln!(
                "SKIP: a ring on hugetlbfs: no right to set huge pages aside, or none to be had"
            );
        }
        mounted.then_some(this)
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        let _ = unmount(self.directory.path());
        let _ = fs::write(NR_HUGEPAGES, &self.pages_before);
    }
}

fn mount_hugetlbfs(directory: &Path, options: &CStr) -> io::Result<()> {
    let directory = CString::new(directory.as_os_str().as_bytes())?;
    // SAFETY: four zero-terminated strings that outlive the call, which changes none of them.
    let status = unsafe {
        libc::mount(
            c"none".as_ptr(),
            directory.as_ptr(),
            c"hugetlbfs".as_ptr(),
            0,
            options.as_ptr().cast(),
        )
    };
    succeeded(status)
}

fn unmount(directory: &Path) -> io::Result<()> {
    let directory = CString::new(directory.as_os_str().as_bytes())?;
    // SAFETY: a zero-terminated string that outlives the call, which does not change it.
    succeeded(unsafe { libc::umount2(directory.as_ptr(), 0) })
}

fn succeeded(status: libc::c_int) -> io::Result<()> {
    match status {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[test]
fn a_ring_on_hugetlbfs_that_was_never_finished_is_replaced() {
    let Some(mount) = HugePages::mount(16) else {
        return;
    };
    let path = mount.directory.path().join("ring");
    let config = config(Backing::File(path.clone()));
    // The file of an unfinished ring is marked and has no header.
    let mut while_filling = Vec::new();
    let mut progress = |_, _| while_filling.push(crate::Attached::open(&path).unwrap_err());
    drop(RegionMemory::new(BYTES, &config, Some(&mut progress)).unwrap());
    let error = while_filling.first().expect("it tells at least once");
    assert!(matches!(error, AttachError::NotReady { .. }), "{error}");
    let (memory, obtained) = RegionMemory::new(BYTES, &config, None).unwrap();
    assert_eq!(obtained.pages, Pages::Explicit);
    drop(memory);
    fs::remove_file(path).unwrap();
}

/// The kernel could later refuse a page that was not reserved: a store then raises SIGBUS.
#[test]
fn a_ring_on_hugetlbfs_has_its_pages_also_where_it_is_not_filled() {
    use std::os::unix::fs::MetadataExt;
    let Some(mount) = HugePages::mount(16) else {
        return;
    };
    let path = mount.directory.path().join("ring");
    let config = RingConfig {
        prefault: false,
        ..config(Backing::File(path.clone()))
    };
    let bytes = 4 * ALIGNMENT;
    let (memory, _) = RegionMemory::new(bytes, &config, None).unwrap();
    let blocks = fs::metadata(&path).unwrap().blocks();
    assert_eq!(blocks * 512, bytes as u64);
    drop(memory);
    fs::remove_file(path).unwrap();
}

#[test]
fn an_older_ring_stays_where_a_new_one_has_no_room() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ring");
    drop(RegionFile::create(&path, BYTES).unwrap());
    let before = fs::read(&path).unwrap();
    let error = RegionFile::create(&path, 1 << 60).unwrap_err();
    assert!(error.to_string().contains("room"), "{error}");
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[test]
fn a_file_system_without_room_is_an_error_at_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ring");
    let bytes = 1 << 50; // more than any file system of a test has free
    for prefault in [true, false] {
        let config = RingConfig {
            prefault,
            ..config(Backing::File(path.clone()))
        };
        let error = RegionMemory::new(bytes, &config, None).unwrap_err();
        let is_full = |error: &io::Error| error.kind() == io::ErrorKind::StorageFull;
        assert!(
            matches!(&error, RingError::File { error, .. } if is_full(error)),
            "{error}"
        );
        assert!(!path.exists(), "nothing is left behind");
    }
    let nowhere = config(Backing::File("/nonexistent/ring".into()));
    let error = RegionMemory::new(BYTES, &nowhere, None).unwrap_err();
    assert!(
        error.to_string().contains("/nonexistent/ring: open"),
        "{error}"
    );
}

#[test]
fn a_node_is_preferred_or_the_refusal_is_told() {
    let place = |node| {
        let config = RingConfig {
            numa_node: node,
            ..config(Backing::Memfd)
        };
        RegionMemory::new(BYTES, &config, None).unwrap().1.numa
    };
    assert_eq!(place(None), Numa::Unset);
    match place(Some(0)) {
        Numa::Preferred { node: 0 } => {}
        // A kernel without NUMA, or a container that forbids the call.
        Numa::Refused { node: 0, errno } => {
            assert!([libc::ENOSYS, libc::EPERM].contains(&errno), "{errno}");
        }
        other => panic!("{other:?}"),
    }
    for node in [1023, 1024, u32::MAX] {
        assert!(matches!(place(Some(node)), Numa::Refused { .. }), "{node}");
    }
}

/// After a refusal nothing may be unmapped: the addresses may belong to another thread's mapping.
#[test]
fn a_refused_mapping_takes_nothing_from_others() {
    let done = AtomicBool::new(false);
    let zero = Zero::new().unwrap();
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            for _ in 0..2000 {
                // Refused unless 1 GiB of huge pages is available.
                drop(RegionMemory::explicit(1 << 30, &Backing::Memfd));
            }
            done.store(true, Ordering::Relaxed);
        });
        while !done.load(Ordering::Relaxed) {
            let memory = RegionMemory::aligned(BYTES, READ_WRITE).unwrap();
            memory.touch(&zero, 0..BYTES).unwrap();
            assert_eq!(byte(&memory, BYTES - 1), 0);
        }
        other.join().unwrap(); // explicit: ThreadSanitizer does not see how a scope ends
    });
}

/// "hg" in `VmFlags` marks the range: proc_pid_smaps(5).
#[test]
fn memory_of_the_allocator_is_marked_for_huge_pages() {
    let memory = Vec::<u8>::with_capacity(8 << 20);
    let range = memory.as_ptr()..memory.as_ptr().wrapping_add(memory.capacity());
    ask_for_huge_pages(range.clone());
    ask_for_huge_pages(range.start..range.start.wrapping_add(100));
    ask_for_huge_pages(range.end..range.start);
    let (flags, all) = flags_of(range.start.addr() + ALIGNMENT);
    let has_huge_pages = fs::exists("/sys/kernel/mm/transparent_hugepage").unwrap();
    assert_eq!(flags.contains(" hg"), has_huge_pages, "{all}");
}

#[test]
fn a_large_buffer_is_aligned_zeroed_writable_and_marked() {
    for bytes in [0, 1, ALIGNMENT, ALIGNMENT + 1] {
        let mut buffer = LargeBuffer::new(bytes).unwrap();
        assert_eq!(
            buffer.len(),
            bytes.max(1).next_multiple_of(ALIGNMENT),
            "{bytes}"
        );
        assert!(buffer.as_ptr().addr().is_multiple_of(ALIGNMENT));
        assert!(buffer.iter().all(|byte| *byte == 0));
        buffer.fill(7);
        assert_eq!(buffer.last(), Some(&7));
        let (flags, all) = flags_of(buffer.as_ptr().addr());
        let has_huge_pages = fs::exists("/sys/kernel/mm/transparent_hugepage").unwrap();
        assert_eq!(flags.contains(" hg"), has_huge_pages, "{all}");
        assert!(flags.contains(" dd"), "{all}");
    }
    for bytes in [1 << 62, usize::MAX] {
        let error = LargeBuffer::new(bytes).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::OutOfMemory, "{error:?}");
    }
}

/// `VmFlags` of the mapping that contains an address, and all of /proc/self/smaps.
fn flags_of(address: usize) -> (String, String) {
    let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
    let inside = |line: &str| {
        pages::mapping_range(line).is_some_and(|range| range.contains(&(address as u64)))
    };
    let mut lines = smaps.lines().skip_while(|line| !inside(line));
    let flags = lines.find(|line| line.starts_with("VmFlags:"));
    (flags.unwrap().to_owned(), smaps)
}
