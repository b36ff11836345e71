//! Full file systems.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, mpsc},
};

use super::{
    MinFree, WhyDeleted,
    keeper::{KeeperConfig, StoreThreads},
    lister::Question,
    tests::{News, WAIT, open, put, put_dump, told},
};
use crate::{
    directory::DumpDirectory,
    tests::{FakeClock, S, fake_disk::FakeDisk},
    time::rfc3339,
};

/// A real file system of 8 MiB, of which another program takes up to 3.6 MB while dumps are
/// written. Older dumps are deleted for new dumps. A last write, which is larger than the file
/// system, deletes all dumps except the held dump.
#[test]
fn a_full_file_system_makes_room_beside_another_writer() {
    let folder = tempfile::tempdir().unwrap();
    let Some(_mount) = Mount::tmpfs(folder.path(), "8m") else {
        return;
    };
    let (news, listener) = mpsc::channel();
    let config = KeeperConfig {
        min_free: Some(MinFree::Bytes(0)),
        ..KeeperConfig::default()
    };
    let directory = DumpDirectory::open(folder.path()).unwrap();
    let clock = Arc::<FakeClock>::default();
    let keeper = StoreThreads::start(directory.clone(), config, clock, Arc::new(news)).unwrap();
    let directory = directory.with_keeper(Some(keeper.keeper()));
    let disk = directory.disk();
    let root = folder.path().to_str().unwrap();
    put_dump(disk, root, "held", 1 << 20, 0, "udp");
    put(disk, &format!("{root}/held.hold"), b"");
    let (mut written, mut foreign) = (0, 0);
    let chunk = vec![1; 1 << 20];
    for number in 1..200_u32 {
        // The other program writes four files. A file is cut if the file system is full.
        if number % 10 == 0 && foreign < 4 {
            fs::write(
                folder.path().join(format!("foreign-{foreign}")),
                &chunk[..900_000],
            )
            .ok();
            foreign += 1;
        }
        let stem = format!("{root}/{number:04}");
        let made = directory.with_room(chunk.len(), || {
            let path = format!("{stem}.pcapng");
            let _ = fs::remove_file(&path);
            fs::write(path, &chunk[..500_000])
        });
        made.unwrap();
        let mut told = told(&[(&format!("{number:04}.pcapng"), 500_000)]);
        told["created"] = rfc3339(i64::from(number) * S).into();
        directory
            .with_room(1000, || fs::write(format!("{stem}.json"), told.to_string()))
            .unwrap();
        written += 1;
        keeper
            .keeper()
            .register_open(&format!("{number:04}"), open(&[]));
        keeper
            .keeper()
            .register_finished(&format!("{number:04}"), &format!("{number:04}"));
    }
    let left = keeper.keeper().look(Question::List, WAIT).unwrap();
    // A write that exceeds the file system: only the held dump is left.
    let full = directory.with_room(0, || {
        fs::write(folder.path().join("huge"), vec![1; 9 << 20])
    });
    assert_eq!(full.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    let last = keeper.keeper().look(Question::List, WAIT).unwrap();
    let ids: Vec<_> = last.iter().map(|dump| dump.id.as_str()).collect();
    assert_eq!(ids, ["held"]);
    drop(keeper);
    let mut deleted = Vec::new();
    while let Ok(event) = listener.try_recv() {
        match event {
            News::Deleted(dump) => {
                assert_eq!(dump.why, WhyDeleted::MinFree);
                deleted.push(dump.id);
            }
            News::Notice(_) => {}
        }
    }
    assert!(deleted.is_sorted(), "the oldest first: {deleted:?}");
    assert_eq!((deleted.len(), written), (199, 199), "each once");
    // Dumps of 0.5 MB fill what the files of the other program leave of the 8 MiB.
    assert!((3..=15).contains(&(left.len() - 1)), "{}", left.len());
    for number in 0..foreign {
        assert!(folder.path().join(format!("foreign-{number}")).exists());
    }
}

/// Deleting dumps may not help against a quota, so only one dump is deleted, and the write is tried
/// once more.
#[test]
fn a_quota_does_not_cost_all_dumps() {
    let disk = FakeDisk::default();
    for number in 0..9 {
        put_dump(&disk, "dumps", &number.to_string(), 1000, number, "udp");
    }
    let directory = DumpDirectory::on(Arc::new(disk.clone()), Path::new("dumps"));
    let config = KeeperConfig {
        min_free: Some(MinFree::Bytes(0)),
        ..KeeperConfig::default()
    };
    disk.set_capacity(100_000);
    let clock = Arc::<FakeClock>::default();
    let keeper = StoreThreads::start(
        directory.clone(),
        config,
        clock,
        Arc::new(mpsc::channel().0),
    )
    .unwrap();
    let directory = directory.with_keeper(Some(keeper.keeper()));
    let mut tries = 0;
    let refused = directory.with_room(1, || {
        tries += 1;
        Err::<(), _>(rustix::io::Errno::DQUOT.into())
    });
    let kind = refused.unwrap_err().kind();
    assert_eq!((kind, tries), (std::io::ErrorKind::QuotaExceeded, 2));
    let left = keeper.keeper().look(Question::List, WAIT).unwrap();
    assert_eq!(left.len(), 8);
}

/// A file system in memory, mounted until this is dropped.
struct Mount(PathBuf);

impl Mount {
    fn tmpfs(at: &Path, size: &str) -> Option<Self> {
        let options = format!("size={size}");
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &options, "retroscope-test"])
            .arg(at)
            .output();
        let is_mounted = mount.is_ok_and(|mount| mount.status.success());
        if !is_mounted {
            eprintln!("SKIP: needs root, to mount a tmpfs");
        }
        is_mounted.then(|| Self(at.to_owned()))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
