//! Tests with packets that imitate the texts of a dump file, and with files that another process
//! replaced.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
};

use retroscope_capture::{InterfaceInfo, TimeDomain};
use retroscope_packet::LinkType;
use retroscope_pcapfile::CaptureReader;
use retroscope_ring::{Ring, RingConfig};
use sha2::{Digest, Sha256};

use super::{
    captures::Captures,
    encode::{DumpFormat, InterfaceTotals},
    file::{DumpFile, FileFacts},
    names::Directory,
    packet::{PacketKey, PacketMeta},
    report::{PROGRAM, report_of_test},
    sidecar::{Origin, Sidecar, SidecarFacts},
    sink::SinkEnd,
    stream::Heading,
    template::{NameFacts, NameTemplate},
};
use crate::{
    control::hits::Suppressions,
    intake::interfaces::{InterfaceCache, Interfaces, RecordedInterface},
    tests::fake_disk::FakeDisk,
};

const COMPLETE: &str = "verdict: complete";
const OTHER: &str = "verdict: incomplete: 1 packet late";

/// Payloads with texts that look like the field of the verdict.
fn payloads() -> Vec<Vec<u8>> {
    let texts = [COMPLETE, "verdict: unfinished", OTHER, "verdict: "];
    let fields = texts.map(|text| format!("{text:240}").into_bytes());
    let mut payloads = Vec::new();
    for field in &fields {
        payloads.push(field.clone());
        payloads.push([&[0; 42], field.as_slice(), field].concat());
        payloads.push(field.repeat(20));
    }
    // The first bytes of a section header, and then a field.
    payloads.push([&[0x0a, 0x0d, 0x0d, 0x0a], fields[0].as_slice()].concat());
    payloads
}

fn names() -> InterfaceCache {
    let ring = Ring::new(&RingConfig::new(16 << 20, 1, 1), None).unwrap();
    let interfaces = Interfaces::default();
    let info = InterfaceInfo {
        name: "eth0".to_owned(),
        link_type: LinkType::ETHERNET,
        snaplen: 0,
        time_domain: TimeDomain::KernelSoftware,
        time_resolution_ns: 1,
    };
    interfaces.register(&ring, 0, &info).unwrap();
    InterfaceCache::new(interfaces.into())
}

fn facts(headline: String) -> FileFacts {
    FileFacts {
        names: NameFacts {
            rule: "rule".to_owned(),
            ..NameFacts::default()
        },
        number: 1,
        name_number: 1,
        next_number: Arc::default(),
        rule_name: None,
        heading: Heading {
            headline,
            recording: None,
            expected: COMPLETE.to_owned(),
        },
    }
}

/// A finished dump of packets with these times and payloads, in this order.
fn dump(directory: &Path, format: DumpFormat, packets: &[(i64, Vec<u8>)]) -> DumpFile {
    let directory = Directory::open(directory, format).unwrap();
    let headline = format!("dump {COMPLETE:240}{:240}", "verdict: unfinished");
    let facts = facts(headline);
    let mut captures = Captures::new(format, facts.heading.clone());
    let mut file = DumpFile::new(&directory, facts);
    if let Some(interface) = names().interface(0) {
        captures.interface(0, interface);
    }
    let mut digests = captures.create(&mut file);
    for (record, (time_ns, data)) in packets.iter().enumerate() {
        let key = PacketKey {
            time_ns: *time_ns,
            source: 0,
            producer: 0,
            record: record as u64,
        };
        let wire_len = u32::try_from(data.len()).unwrap();
        let meta = PacketMeta {
            key,
            stamp_ns: *time_ns,
            wire_len,
            interface: 0,
            direction: 1,
            is_trigger: record == 0,
        };
        captures.packet(&meta, data).unwrap();
        captures.write_to(&mut file, &mut digests);
        file.close_files();
    }
    let totals = InterfaceTotals {
        start_ns: 0,
        end_ns: 0,
        received: None,
        dropped: None,
        written: 0,
    };
    let end = SinkEnd {
        verdict: COMPLETE.to_owned(),
        totals: [(0, totals)].into(),
    };
    file.finish(&end, captures, &mut digests).unwrap();
    file
}

fn path(file: &DumpFile) -> PathBuf {
    file.held().locations.swap_remove(0)
}

fn packets(path: &Path) -> Vec<(i64, Vec<u8>)> {
    let mut reader = CaptureReader::open(path).unwrap();
    let mut packets = Vec::new();
    while let Some(record) = reader.next().unwrap() {
        packets.push((record.meta.time_ns, record.data.to_vec()));
    }
    packets
}

/// The section header block as text, which includes its comments.
fn comments(path: &Path) -> String {
    let bytes = fs::read(path).unwrap();
    let length = u32::from_le_bytes(bytes[4..8].try_into().unwrap());
    String::from_utf8_lossy(&bytes[..length as usize]).into_owned()
}

fn says(path: &Path, verdict: &str) -> bool {
    let comments = comments(path);
    let field = comments.rfind("verdict: ").unwrap();
    comments[field..].starts_with(&format!("{verdict:240}"))
}

#[test]
fn packets_stay_as_they_are() {
    let payloads = payloads();
    let at = |index: usize| (10 + i64::try_from(index).unwrap(), payloads[index].clone());
    let in_order: Vec<_> = (0..payloads.len()).map(at).collect();
    // The last packet arrives first, so a merge writes a new file.
    let mut disordered = in_order.clone();
    disordered.rotate_right(1);
    for format in [DumpFormat::PcapNg, DumpFormat::Pcap] {
        for arriving in [&in_order, &disordered] {
            let dir = tempfile::tempdir().unwrap();
            let mut file = dump(dir.path(), format, arriving);
            let path = path(&file);
            let is_told = format == DumpFormat::PcapNg;
            assert!(packets(&path) == in_order);
            assert!(!is_told || says(&path, COMPLETE), "{}", comments(&path));
            assert_digest(&mut file);
        }
    }
}

fn assert_digest(file: &mut DumpFile) {
    file.compute_digests();
    let digest = Sha256::digest(fs::read(path(file)).unwrap());
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let told: Vec<_> = file.files().into_iter().map(|it| it.sha256).collect();
    assert_eq!(told, [Some(digest)]);
}

#[test]
fn a_file_that_somebody_else_changed_is_left_alone() {
    let packet = (0, format!("{COMPLETE:240}").repeat(20).into_bytes());
    let dir = tempfile::tempdir().unwrap();
    let mut file = dump(
        dir.path(),
        DumpFormat::PcapNg,
        std::slice::from_ref(&packet),
    );
    let sidecar = sidecar();
    assert!(file.sidecar(&sidecar).unwrap());
    let (capture, bytes) = (path(&file), fs::read(path(&file)).unwrap());
    let told = capture.with_extension("json");
    fs::write(dir.path().join("copy"), &bytes).unwrap();
    fs::rename(dir.path().join("copy"), &capture).unwrap();
    fs::write(&told, "theirs").unwrap();
    assert!(!file.sidecar(&sidecar).unwrap());
    assert_eq!(fs::read(&told).unwrap(), b"theirs");
    assert!(fs::read(&capture).unwrap() == bytes);
}

/// The sidecar lists both files of a pcap dump under the names that they have.
#[test]
fn a_failed_rename_leaves_no_file_that_nobody_knows() {
    let disk = FakeDisk::default();
    let directory = Directory::on(Arc::new(disk.clone()), Path::new("dumps"), DumpFormat::Pcap);
    let mut file = DumpFile::new(&directory, facts(String::new()));
    let mut captures = Captures::new(DumpFormat::Pcap, Heading::default());
    for (id, link_type) in [(0, LinkType::ETHERNET), (1, LinkType::RAW)] {
        let interface = RecordedInterface {
            source: 0,
            name: format!("eth{id}"),
            link_type,
            time_resolution_ns: 1,
            time_domain: TimeDomain::KernelSoftware,
        };
        captures.interface(id, &Arc::new(interface));
    }
    let mut digests = captures.create(&mut file);
    for interface in [0, 1] {
        let key = PacketKey {
            time_ns: 1,
            source: 0,
            producer: 0,
            record: interface.into(),
        };
        let meta = PacketMeta {
            key,
            stamp_ns: 1,
            wire_len: 60,
            interface,
            direction: 1,
            is_trigger: false,
        };
        captures.packet(&meta, &[7; 60]).unwrap();
    }
    captures.write_to(&mut file, &mut digests);
    let id = file.held().id;
    disk.set_refused(&format!("dumps/{id}.linktype101.pcap"));
    file.finish(&SinkEnd::default(), captures, &mut digests)
        .unwrap_err();
    file.close_files();
    assert!(file.sidecar(&sidecar()).unwrap());
    let held = file.held();
    let mut there = held.locations.clone();
    there.push(format!("dumps/{id}.json").into());
    there.sort();
    assert_eq!(disk.names(), there);
    let told = disk.read(Path::new(&format!("dumps/{id}.json"))).unwrap();
    let told: serde_json::Value = serde_json::from_slice(&told).unwrap();
    let listed = told["files"].as_array().unwrap();
    let listed = listed
        .iter()
        .map(|it| Path::new("dumps").join(it["name"].as_str().unwrap()));
    assert_eq!(listed.collect::<Vec<_>>(), held.locations);
    drop(file);
    assert_eq!(disk.names(), there, "both stay, as of any failed dump");
}

/// A sidecar with arbitrary content.
pub(super) fn sidecar() -> Sidecar {
    Sidecar {
        report: report_of_test(),
        facts: SidecarFacts {
            expression: String::new(),
            trigger_packet: None,
            alerts: Vec::new(),
            suppressed: 0,
            suppressed_hits: Vec::new(),
            suppressed_before: Suppressions::default(),
        },
        interfaces: Vec::new(),
        origin: Origin::default(),
        program: PROGRAM,
        created: None,
    }
}

/// The template gives all dumps the same name, and `taken` names are taken.
#[test]
fn a_name_of_many_dumps_is_found_soon() {
    for taken in [0_u64, 1, 2, 31, 32, 33, 34, 63, 64, 65, 5000] {
        let dir = tempfile::tempdir().unwrap();
        let name = |again: u64| match again {
            1 => "all".to_owned(),
            again => format!("all-{again}"),
        };
        for again in 1..=taken {
            let extension = ["json", "pcapng", "pcapng.part"][usize::try_from(again % 3).unwrap()];
            fs::write(dir.path().join(format!("{}.{extension}", name(again))), "").unwrap();
        }
        let template = NameTemplate::new("all").unwrap();
        let directory = Directory::open(dir.path(), DumpFormat::PcapNg).unwrap();
        let directory = directory.with_names(&template, "here");
        let facts = facts(String::new());
        let tries = Arc::clone(&facts.next_number);
        let mut captures = Captures::new(DumpFormat::PcapNg, facts.heading.clone());
        let mut file = DumpFile::new(&directory, facts);
        captures.create(&mut file);
        assert_eq!(file.held().id, name(taken + 1));
        assert!(tries.load(Ordering::Relaxed) < 40, "{tries:?}");
    }
}
