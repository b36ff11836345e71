//! Names of dump files, and the metadata in files and sidecars.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::{
    DumpFormat, NameTemplate, TriggerRequest, Verdict, ZstdLevel,
    dump::{disk::Disk, names::Directory, stream::DigestTime},
    tests::{
        fake_disk::{Deed, FakeDisk},
        live::START,
        rig::{MS, Rig, RigConfig, S, udp},
    },
};

fn directory(disk: &FakeDisk, name: &str) -> Directory {
    let directory = Directory::on(
        Arc::new(disk.clone()),
        Path::new("dumps"),
        DumpFormat::PcapNg,
    );
    let names = NameTemplate::new(name).unwrap();
    directory
        .with_names(&names, "sensor")
        .with_digests(DigestTime::here())
}

fn sidecar(disk: &FakeDisk, stem: &str) -> Value {
    let path = PathBuf::from(format!("dumps/{stem}.json"));
    serde_json::from_slice(&disk.read(&path).unwrap()).unwrap()
}

/// Checks that each listed file exists as described. Returns the number of files.
fn assert_listed(disk: &FakeDisk, sidecar: &Value) -> usize {
    let files = sidecar["files"].as_array().unwrap();
    for file in files {
        let name = file["name"].as_str().unwrap();
        let bytes = disk.read(&Path::new("dumps").join(name)).unwrap();
        assert_eq!(file["bytes"], bytes.len(), "{name}");
        let digest = Sha256::digest(&bytes);
        let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(file["sha256"], digest.as_str(), "{name}");
    }
    files.len()
}

#[test]
fn a_sidecar_tells_where_a_dump_comes_from() {
    let disk = FakeDisk::default();
    let request = TriggerRequest {
        asked_by: Some("suricata".to_owned()),
        reason: Some("ET SCAN \"odd\"".to_owned()),
        ..TriggerRequest::default()
    };
    let plan = RigConfig {
        requests: &[request],
        ..RigConfig::default()
    };
    let mut rig = Rig::on(&plan, START, directory(&disk, "{rule}.{interface}.{host}"));
    rig.pass(MS);
    rig.arrive(0, udp(7, 8, 1));
    rig.arrive(0, udp(1234, 9, 2));
    rig.step();
    rig.pass(2 * S);
    rig.step();
    let stem = "udp-port-9.fake0.sensor";
    let told = sidecar(&disk, stem);
    assert_eq!(assert_listed(&disk, &told), 1);
    let packet = &told["trigger_packet"];
    assert_eq!(packet["interface"], "fake0");
    let summary = packet["summary"].as_str().unwrap();
    assert!(summary.contains("10.0.0.1.1234 > 10.0.0.2.9"), "{summary}");
    assert!(packet["community_id"].as_str().unwrap().starts_with("1:"));
    assert_eq!(told["asked_by"], "suricata");
    assert_eq!(told["reason"], "ET SCAN \"odd\"");
    assert!(told["program"].as_str().unwrap().starts_with("retroscope "));
    let file = disk
        .read(Path::new(&format!("dumps/{stem}.pcapng")))
        .unwrap();
    let text = String::from_utf8_lossy(&file);
    for words in [r#"asked by "suricata""#, r#"because "ET SCAN \"odd\"""#] {
        assert!(text.contains(words), "{words}");
    }
}

#[test]
fn digests_are_those_of_the_files_whenever_they_are_computed() {
    for digests in [
        DigestTime::AsWritten,
        DigestTime::AfterClose,
        DigestTime::Never,
    ] {
        // Each packet is a separate block, or all packets share one block.
        for block_bytes in [1, usize::MAX] {
            for zstd in [None, ZstdLevel::new(3)] {
                what_is_not_known_is_not_told(digests, block_bytes, zstd);
            }
        }
    }
}

/// A trigger packet that its dump does not select has no summary. The verdict texts of the first
/// two dumps differ from the text that the recorder expected, because the start of the recording
/// clips their windows.
fn what_is_not_known_is_not_told(digests: DigestTime, block_bytes: usize, zstd: Option<ZstdLevel>) {
    let disk = FakeDisk::default();
    let plan = RigConfig {
        dump: "udp port 7",
        ..RigConfig::default()
    };
    let directory = directory(&disk, "{number}")
        .with_digests(digests)
        .with_blocks(block_bytes)
        .compressed(zstd);
    let mut rig = Rig::on(&plan, START, directory);
    rig.pass(MS);
    rig.trigger(TriggerRequest::default());
    rig.step();
    rig.arrive(0, udp(7, 7, 1));
    rig.arrive(0, udp(8, 9, 2));
    rig.step();
    rig.pass(2 * S);
    rig.step();
    let by_hand = sidecar(&disk, "0001");
    assert_eq!(by_hand["trigger_packet"], Value::Null);
    let by_packet = sidecar(&disk, "0002");
    assert_eq!(by_packet["trigger_packet"]["interface"], "fake0");
    assert_eq!(by_packet["trigger_packet"]["summary"], Value::Null);
    if digests == DigestTime::Never {
        assert_eq!(by_hand["files"][0]["sha256"], Value::Null);
        return;
    }
    for told in [&by_hand, &by_packet] {
        let name = told["files"][0]["name"].as_str().unwrap();
        assert_eq!(name.ends_with(".pcapng.zst"), zstd.is_some());
        assert_eq!(told["clipped"][0], "start");
        assert_eq!(assert_listed(&disk, told), 1);
    }
    // The window of the third dump is not clipped, so the dump ends with the expected verdict text.
    rig.pass(5 * S);
    rig.arrive(0, udp(8, 9, 3));
    rig.step();
    rig.pass(2 * S);
    rig.step();
    let whole = sidecar(&disk, "0003");
    assert_eq!(whole["clipped"].as_array().map(Vec::len), Some(0));
    assert_eq!(assert_listed(&disk, &whole), 1);
}

/// A name template that gives all dumps the same name.
#[test]
fn nothing_is_overwritten_by_a_name_that_is_not_unique() {
    let disk = FakeDisk::default();
    for (name, text) in [
        ("dump.json", "foreign sidecar"),
        ("dump-3.pcapng", "foreign capture"),
        ("dump-5.pcapng.part", "of another recorder"),
    ] {
        let file = disk.create(&Path::new("dumps").join(name)).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&*file, text.as_bytes(), 0).unwrap();
    }
    let before: Vec<_> = disk
        .names()
        .into_iter()
        .map(|path| (disk.read(&path), path))
        .collect();
    let plan = RigConfig {
        triggers: &["udp port 9", "udp port 10", "udp port 11"],
        past_ns: 0,
        ..RigConfig::default()
    };
    let mut rig = Rig::on(&plan, START, directory(&disk, "dump"));
    rig.pass(MS);
    for port in 9..12 {
        rig.arrive(0, udp(1, port, 1));
    }
    rig.step();
    rig.pass(2 * S);
    rig.step();
    let mut files: Vec<_> = rig.reports.iter().map(|it| it.file.clone()).collect();
    files.sort();
    let expected = [
        "dumps/dump-2.pcapng",
        "dumps/dump-4.pcapng",
        "dumps/dump-6.pcapng",
    ];
    assert_eq!(files, expected.map(PathBuf::from));
    for report in &rig.reports {
        assert_eq!((report.verdict, report.sidecar), (Verdict::Complete, true));
    }
    for stem in ["dump-2", "dump-4", "dump-6"] {
        assert_eq!(assert_listed(&disk, &sidecar(&disk, stem)), 1);
    }
    for (bytes, path) in before {
        assert_eq!(disk.read(&path), bytes, "{}", path.display());
    }
}

/// A name of which only a compressed capture exists counts as taken. The recorder tries some names,
/// and then finds a free name by bisection.
#[test]
fn a_free_name_is_soon_found_beside_compressed_captures() {
    let disk = FakeDisk::default();
    for number in 1..5000 {
        let name = match number {
            1 => "dumps/dump.pcapng.zst".to_owned(),
            number => format!("dumps/dump-{number}.pcapng.zst"),
        };
        disk.create(Path::new(&name)).unwrap();
    }
    let looks = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&looks);
    disk.set_slow(move |deed, _| {
        counted.fetch_add(usize::from(deed == Deed::Look), Ordering::SeqCst);
    });
    let mut rig = Rig::on(&RigConfig::default(), START, directory(&disk, "dump"));
    rig.pass(MS);
    rig.trigger(TriggerRequest::default());
    rig.step();
    rig.pass(2 * S);
    rig.step();
    let name = Path::new("dumps/dump-5000.pcapng");
    assert_eq!(rig.reports[0].file, name);
    let looks = looks.load(Ordering::SeqCst);
    assert!(looks < 500, "{looks}");
}

/// An earlier recorder was killed while it wrote a sidecar, and left a partial file.
#[test]
fn a_sidecar_that_was_left_unfinished_is_in_nobodys_way() {
    let disk = FakeDisk::default();
    let left = disk.create(Path::new("dumps/dump.json.part")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&*left, b"{\"program\"", 0).unwrap();
    let mut rig = Rig::on(&RigConfig::default(), START, directory(&disk, "dump"));
    rig.pass(MS);
    rig.trigger(TriggerRequest::default());
    rig.step();
    rig.pass(2 * S);
    rig.step();
    assert!(rig.reports[0].sidecar);
    assert_eq!(assert_listed(&disk, &sidecar(&disk, "dump")), 1);
    assert!(!disk.exists(Path::new("dumps/dump.json.part")));
}

/// The disk has no room for the sidecars of dumps. When there is room, the recorder writes the
/// sidecars. A sidecar that can never be written does not block other sidecars.
#[test]
fn sidecars_without_room_come_later() {
    let disk = FakeDisk::default();
    let mut rig = Rig::on(&RigConfig::default(), START, directory(&disk, "{number}"));
    let dump = |rig: &mut Rig, capacity: &dyn Fn(usize) -> usize| {
        disk.set_capacity(usize::MAX);
        rig.pass(MS);
        rig.trigger(TriggerRequest::default());
        rig.step();
        let names = disk.names();
        let used = names.iter().filter_map(|path| disk.read(path));
        disk.set_capacity(capacity(used.map(|bytes| bytes.len()).sum()));
        rig.arrive(0, udp(7, 7, 1));
        rig.step();
        rig.pass(2 * S);
        rig.step();
        rig.pass(2 * S);
        rig.step();
    };
    // Three dumps have room for the packet and the interface statistics, two only for the header.
    dump(&mut rig, &|used| used + 600);
    dump(&mut rig, &|used| used + 600);
    dump(&mut rig, &|used| used);
    dump(&mut rig, &|used| used + 600);
    dump(&mut rig, &|used| used);
    let (complete, failed) = (Verdict::Complete, Verdict::Failed);
    let verdicts: Vec<_> = rig.reports.iter().map(|it| it.verdict).collect();
    assert_eq!(verdicts, [complete, complete, failed, complete, failed]);
    assert!(rig.reports.iter().all(|report| !report.sidecar));
    let stems = ["0001", "0002", "0003", "0004", "0005"];
    let path = |stem: &str| PathBuf::from(format!("dumps/{stem}.json"));
    assert!(!stems.iter().any(|stem| disk.exists(&path(stem))));
    let told = |rig: &Rig, what: &str| rig.notices.iter().filter(|it| it.contains(what)).count();
    assert_eq!(told(&rig, "no sidecar: "), 5, "{:?}", rig.notices);
    disk.set_capacity(usize::MAX);
    // Another process has taken the name of the first sidecar, and has replaced the file of the
    // last dump. The fourth dump is deleted.
    disk.create(&path("0001")).unwrap();
    disk.remove(Path::new("dumps/0004.pcapng")).unwrap();
    disk.remove(Path::new("dumps/0005.pcapng.part")).unwrap();
    disk.create(Path::new("dumps/0005.pcapng.part")).unwrap();
    for _ in 0..8 {
        rig.pass(S);
        rig.step();
    }
    assert_eq!(told(&rig, "its sidecar is written now"), 2);
    assert_eq!(told(&rig, "no sidecar: "), 5, "{:?}", rig.notices);
    assert_eq!(assert_listed(&disk, &sidecar(&disk, "0002")), 1);
    let failed = sidecar(&disk, "0003");
    assert_eq!(failed["verdict"], "failed");
    assert_eq!(failed["files"][0]["name"], "0003.pcapng.part");
    let logged = rig.common.log.last();
    let have: Vec<bool> = logged.iter().map(|report| report.sidecar).collect();
    assert_eq!(have, [false, true, true, false, false]);
    assert_eq!(disk.read(&path("0001")).unwrap(), b"");
    assert!(!disk.exists(&path("0004")) && !disk.exists(&path("0005")));
}

/// A dump keeps the number that was reported with its trigger, whatever its files are called.
#[test]
fn names_that_are_taken_change_no_number() {
    let disk = FakeDisk::default();
    disk.create(Path::new("dumps/0001.pcapng")).unwrap();
    let mut rig = Rig::on(&RigConfig::default(), START, directory(&disk, "{number}"));
    for number in 1..=3_u64 {
        rig.pass(MS);
        rig.trigger(TriggerRequest::default());
        rig.step();
        rig.pass(2 * S);
        rig.step();
        let report = rig.reports.last().unwrap();
        assert_eq!(report.number, number);
        let name = format!("dumps/{:04}.pcapng", number + 1);
        assert_eq!(report.file, PathBuf::from(name));
    }
}
