//! Dumps are compressed after they are complete on disk. Meanwhile other dumps are completed.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::{
    DumpReport, Verdict, ZstdLevel,
    control::progress::StopControl,
    dump::{disk::Disk, names::Directory, pool::PoolConfig, stream::DigestTime},
    tests::{
        fake_disk::{Deed, FakeDisk},
        live::START,
        rig::{MS, Rig, RigConfig, S, udp},
        sinks::{self, Barrier},
    },
};

/// A rig whose threads write and compress dumps. Each source port has its own dump.
fn rig(directory: Directory) -> Rig {
    let plan = RigConfig {
        dump: "src port $srcPort",
        past_ns: 0,
        ..RigConfig::default()
    };
    Rig::with_pool(&plan, START, directory, PoolConfig::new(true))
}

fn directory(disk: &FakeDisk) -> Directory {
    sinks::directory(disk, "dumps")
        .with_digests(DigestTime::AsWritten)
        .compressed(ZstdLevel::new(1))
}

/// Starts a dump, and lets its window end.
fn dump(rig: &mut Rig, port: u16) {
    rig.pass(MS);
    rig.arrive(0, udp(port, 9, 1));
    rig.step();
    rig.pass(2 * S);
    rig.step();
}

/// The sidecar of a dump, checked against its only file.
fn sidecar(disk: &FakeDisk, report: &DumpReport) -> Value {
    let path = PathBuf::from(format!("dumps/{}.json", report.id));
    let told: Value = serde_json::from_slice(&disk.read(&path).unwrap()).unwrap();
    let file = &told["files"][0];
    let capture = Path::new("dumps").join(file["name"].as_str().unwrap());
    assert_eq!(told["files"].as_array().map(Vec::len), Some(1));
    assert_eq!(told["file"], file["name"]);
    let bytes = disk.read(&capture).unwrap();
    let digest = Sha256::digest(&bytes);
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(file["bytes"], bytes.len());
    assert_eq!(file["sha256"], digest.as_str());
    assert_eq!(told["verdict"], "complete");
    told
}

/// Numbers of plain captures, compressed captures and sidecars. Checks that the disk has no other
/// file.
fn ends(disk: &FakeDisk) -> (usize, usize, usize) {
    let names = disk.names();
    let count = |end: &str| {
        let ends = |path: &&PathBuf| path.to_string_lossy().ends_with(end);
        names.iter().filter(ends).count()
    };
    let (plain, compressed, sidecars) = (count(".pcapng"), count(".pcapng.zst"), count(".json"));
    assert_eq!(plain + compressed + sidecars, names.len(), "{names:?}");
    (plain, compressed, sidecars)
}

#[test]
fn a_dump_is_finished_while_others_are_compressed() {
    let disk = FakeDisk::default();
    let mut rig = rig(directory(&disk));
    let barrier = Barrier::on(&disk, Deed::Write, ".zst");
    (1..=2).for_each(|port| dump(&mut rig, port));
    rig.step_until(|_| barrier.came() == 2);
    dump(&mut rig, 3);
    rig.step_until(|rig| rig.reports.len() == 3);
    assert!(
        !rig.common.counters.are_dumps_unfinished(),
        "their places are given back"
    );
    let plain: BTreeMap<_, _> = (rig.reports.iter())
        .map(|it| (it.number, sidecar(&disk, it)))
        .collect();
    assert!(
        rig.reports
            .iter()
            .all(|it| it.verdict == Verdict::Complete && it.sidecar)
    );
    assert_eq!(rig.compressed, []);
    barrier.open();
    rig.step_until(|rig| rig.compressed.len() == 3);
    assert_eq!(ends(&disk), (0, 3, 3));
    for report in &rig.compressed {
        let told = sidecar(&disk, report);
        let before = &plain[&report.number];
        let name = before["file"].as_str().unwrap();
        assert_eq!(told["file"], format!("{name}.zst"));
        assert_eq!(told["created"], before["created"], "it is no younger");
        let logged = rig.common.log.last();
        let logged = logged.iter().find(|it| it.number == report.number).unwrap();
        assert_eq!(logged.file, report.file);
        assert_eq!(logged.replaced[0].name, name);
    }
}

#[test]
fn a_dump_behind_too_many_stays_plain() {
    let disk = FakeDisk::default();
    let mut rig = rig(directory(&disk));
    let barrier = Barrier::on(&disk, Deed::Write, ".zst");
    // One after the other: no more than 64 may be open.
    for port in 1..=1001 {
        dump(&mut rig, port);
        rig.step_until(|rig| rig.reports.len() == usize::from(port));
    }
    let last = &rig.reports[1000];
    assert_eq!(last.notes, ["not compressed: 1000 dumps wait for that"]);
    assert_eq!(sidecar(&disk, last)["notes"][0], last.notes[0]);
    barrier.open();
    rig.step_until(|rig| rig.compressed.len() == 1000);
    rig.settle();
    assert_eq!(ends(&disk), (1, 1000, 1001));
}

/// The recording is aborted before dumps are compressed.
#[test]
fn what_is_not_compressed_at_the_end_is_complete() {
    let disk = FakeDisk::default();
    let control = Arc::<StopControl>::default();
    let mut rig = rig(directory(&disk).ended_by(&control));
    let barrier = Barrier::on(&disk, Deed::Write, ".zst");
    (1..=4).for_each(|port| dump(&mut rig, port));
    rig.step_until(|rig| rig.reports.len() == 4 && barrier.came() == 2);
    control.abort();
    barrier.open();
    rig.stop();
    rig.settle();
    assert_eq!(ends(&disk), (4, 0, 4));
    rig.reports.iter().for_each(|it| _ = sidecar(&disk, it));
    assert_eq!(rig.compressed, []);
    let told = rig
        .notices
        .iter()
        .filter(|it| it.contains("not compressed: the recording ends"));
    assert_eq!(told.count(), 4, "{:?}", rig.notices);
}

#[test]
fn a_dump_that_is_deleted_while_it_is_compressed_does_not_come_back() {
    for deleted in [&[".pcapng", ".json"][..], &[".pcapng"]] {
        let disk = FakeDisk::default();
        let mut rig = rig(directory(&disk));
        let barrier = Barrier::on(&disk, Deed::Write, ".zst");
        // Two dumps are being compressed, and a third one waits.
        (1..=3).for_each(|port| dump(&mut rig, port));
        rig.step_until(|rig| rig.reports.len() == 3 && barrier.came() == 2);
        for name in disk.names() {
            if deleted
                .iter()
                .any(|end| name.to_string_lossy().ends_with(end))
            {
                disk.remove(&name).unwrap();
            }
        }
        barrier.open();
        rig.settle();
        assert_eq!(ends(&disk), (0, 0, 3 * (2 - deleted.len())));
        assert_eq!((rig.compressed.len(), rig.notices.len()), (0, 0));
    }
}

/// Replaces the captures by files of another process with the same names.
fn replace_captures(disk: &FakeDisk) {
    for name in disk.names() {
        if name.extension() == Some("pcapng".as_ref()) {
            let other = Path::new("other");
            let file = disk.create(other).unwrap();
            file.write_all_at(b"other", 0).unwrap();
            disk.rename(other, &name).unwrap();
        }
    }
}

/// The captures are replaced before the compression, during it, or when the new sidecar is written.
#[test]
fn a_dump_that_is_replaced_before_it_is_compressed_stays_plain_with_a_message() {
    let disk = FakeDisk::default();
    let mut rig = rig(directory(&disk));
    let barrier = Barrier::on(&disk, Deed::Write, ".zst");
    (1..=3).for_each(|port| dump(&mut rig, port));
    rig.step_until(|rig| rig.reports.len() == 3 && barrier.came() == 2);
    replace_captures(&disk);
    barrier.open();
    rig.step_until(|rig| rig.notices.len() == 3);
    rig.settle();
    assert_eq!((ends(&disk), rig.compressed.len()), ((3, 0, 3), 0));

    let replacing = disk.clone();
    disk.set_slow(move |deed, path| {
        let has_copy = |name: &PathBuf| name.extension() == Some("zst".as_ref());
        let is_sidecar = path.to_string_lossy().ends_with(".json.part");
        if deed == Deed::Create && is_sidecar && replacing.names().iter().any(has_copy) {
            replace_captures(&replacing);
        }
    });
    dump(&mut rig, 4);
    rig.step_until(|rig| rig.notices.len() == 4);
    rig.settle();
    assert_eq!((ends(&disk), rig.compressed.len()), ((4, 0, 4), 0));
    for notice in &rig.notices {
        let is_told = notice.contains(".pcapng: not compressed: somebody else has changed");
        assert!(is_told, "{notice}");
    }
}

/// The disk is full when the sidecar of a dump is written. The sidecar is written later.
#[test]
fn a_dump_that_lacks_its_sidecar_is_not_compressed() {
    let disk = FakeDisk::default();
    let mut rig = rig(directory(&disk));
    let (filling, copies) = (disk.clone(), Arc::<AtomicUsize>::default());
    let counted = Arc::clone(&copies);
    disk.set_slow(move |deed, path| {
        let ends_with = |end| deed == Deed::Create && path.to_string_lossy().ends_with(end);
        if ends_with(".json.part") && filling.names().len() == 1 {
            filling.set_capacity(0);
        }
        counted.fetch_add(usize::from(ends_with(".zst.part")), Ordering::SeqCst);
    });
    dump(&mut rig, 1);
    rig.step_until(|rig| rig.reports.len() == 1);
    rig.settle();
    assert_eq!(ends(&disk), (1, 0, 0));
    disk.set_slow(|_, _| ());
    disk.set_capacity(usize::MAX);
    rig.pass(2 * S);
    rig.step_until(|rig| rig.notices.len() == 2);
    assert!(rig.notices[0].contains("no sidecar"), "{:?}", rig.notices);
    assert!(rig.notices[1].contains("its sidecar is written now"));
    let told = sidecar(&disk, &rig.reports[0]);
    assert_eq!(told["notes"][0], "not compressed: it lacked its sidecar");
    assert_eq!((ends(&disk), copies.load(Ordering::SeqCst)), ((1, 0, 1), 0));
}

/// The disk is full during the compression, or when the new sidecar is written.
#[test]
fn without_room_a_dump_stays_plain() {
    for full in [".zst.part", ".json.part"] {
        let disk = FakeDisk::default();
        let mut rig = rig(directory(&disk));
        let filling = disk.clone();
        disk.set_slow(move |deed, path| {
            let is_second = filling
                .names()
                .iter()
                .any(|it| it.extension() == Some("json".as_ref()));
            if deed == Deed::Create && is_second && path.to_string_lossy().ends_with(full) {
                filling.set_capacity(0);
            }
        });
        dump(&mut rig, 1);
        rig.step_until(|rig| rig.notices.len() == 1);
        rig.settle();
        assert_eq!(ends(&disk), (1, 0, 1), "{full}");
        let report = &rig.reports[0];
        sidecar(&disk, report);
        assert!(
            rig.notices[0].contains(".pcapng: not compressed: "),
            "{:?}",
            rig.notices
        );
        let logged = &rig.common.log.last()[0];
        assert_eq!((&logged.file, logged.sidecar), (&report.file, true));
        assert_eq!(logged.files, report.files);
        assert_eq!(logged.replaced, []);
        assert_eq!(rig.compressed, []);
    }
}
