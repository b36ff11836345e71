//! Tests in which a recorder answers queries from its own dumps.

use std::path::Path;

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::*;
use crate::{
    DumpFormat,
    control::events::Events,
    dump::{
        disk::Disk,
        names::Directory,
        store::keeper::{KeeperConfig, StoreThreads},
        stream::{DigestTime, hexadecimal},
    },
    tests::{
        fake_disk::FakeDisk,
        live::START,
        rig::{FakeClock, MS, Rig, RigConfig, S, udp},
    },
};

const SIDECAR: &str = "dumps/0001.json";
const CAPTURE: &str = "dumps/0001.pcapng";

struct Bench {
    rig: Rig,
    disk: FakeDisk,
    _keeper: StoreThreads,
}

impl Bench {
    fn new(plan: &RigConfig<'_>) -> Self {
        let (disk, clock) = (FakeDisk::default(), Arc::<FakeClock>::default());
        let names = crate::NameTemplate::new("{number}").unwrap();
        let directory = Directory::on(
            Arc::new(disk.clone()),
            Path::new("dumps"),
            DumpFormat::PcapNg,
        )
        .with_names(&names, "sensor")
        .with_digests(DigestTime::here());
        let config = KeeperConfig::default();
        let keeper = StoreThreads::start(
            (*directory).clone(),
            config,
            clock.clone(),
            Arc::new(Events::new()),
        );
        let keeper = keeper.unwrap();
        let directory = directory.kept_by(Some(keeper.keeper()));
        let mut rig = Rig::by(clock, plan, START, directory);
        rig.handle.keeper = Some(keeper.keeper().clone());
        Self {
            rig,
            disk,
            _keeper: keeper,
        }
    }

    /// Receives packets, alternately to ports 7 and 8, 1 ms apart.
    fn arrive(&mut self, packets: u32) {
        for number in 0..packets {
            self.rig.pass(MS);
            let port = 7 + u16::try_from(number % 2).unwrap();
            self.rig.arrive(0, udp(1, port, number));
        }
        self.rig.step();
    }

    /// Receives more packets than the ring can store, within 0.2 s.
    fn flood(&mut self) {
        for number in 0..10_000 {
            self.rig.pass(MS / 50);
            let mut packet = udp(1, 5, number);
            packet.resize(1400, 0);
            self.rig.arrive(0, packet);
            if number % 500 == 0 {
                self.rig.step();
            }
        }
        self.rig.step();
    }

    /// Queries the first 0.1 s.
    fn ask(&self, expression: &str) -> QueryReport {
        let query = Query {
            expression: expression.to_owned(),
            from_ns: Some(START + MS),
            to_ns: Some(START + 100 * MS),
            dumps: DumpsAsked::Named,
            ..Query::default()
        };
        self.rig.handle.query(&query).unwrap().count().unwrap()
    }

    fn put(&self, path: &str, bytes: &[u8]) {
        let path = Path::new(path);
        self.disk.remove(path).unwrap();
        let file = self.disk.create(path).unwrap();
        file.write_all_at(bytes, 0).unwrap();
    }

    fn sidecar(&self) -> Value {
        serde_json::from_slice(&self.disk.read(Path::new(SIDECAR)).unwrap()).unwrap()
    }
}

fn errors(report: &QueryReport) -> Vec<String> {
    let dumps = &report.dumps.as_ref().unwrap().dumps;
    dumps.iter().filter_map(|dump| dump.error.clone()).collect()
}

fn is_evicted(report: &QueryReport) -> bool {
    report.missing.iter().any(|it| it.cause == "evicted")
}

/// A process that can write into the dump directory cannot make a dump cover more than it does.
#[test]
fn what_a_dump_covers_the_recorder_knows() {
    let plan = RigConfig {
        dump: "udp port 7",
        ..RigConfig::default()
    };
    let mut bench = Bench::new(&plan);
    bench.arrive(100);
    bench.rig.arrive(0, udp(1, 9, 0));
    bench.rig.step();
    bench.rig.pass(2 * S);
    bench.rig.step();
    bench.flood();
    let report = bench.ask("udp port 7");
    assert_eq!(
        (report.packets, is_evicted(&report)),
        (50, false),
        "{report:?}"
    );
    let report = bench.ask("");
    assert_eq!(
        (report.packets, is_evicted(&report)),
        (50, true),
        "{report:?}"
    );
    assert_eq!(errors(&report), [""; 0]);
    let sidecar = bench.sidecar();
    let mut changed = sidecar.clone();
    changed["filter"] = "".into();
    bench.put(SIDECAR, changed.to_string().as_bytes());
    let report = bench.ask("");
    assert!(is_evicted(&report) && report.packets == 0, "{report:?}");
    assert!(errors(&report)[0].contains("another filter"), "{report:?}");
    assert!(report.reasons().contains("1 not read whole"), "{report:?}");
    // The capture is changed, and the sidecar has its new checksum.
    let mut changed = sidecar.clone();
    let capture = bench.disk.read(Path::new(CAPTURE)).unwrap();
    let mut other = capture.clone();
    let last = other.len() - 60;
    other[last] ^= 1;
    changed["files"][0]["sha256"] = hexadecimal(Sha256::new_with_prefix(&other)).into();
    bench.put(SIDECAR, changed.to_string().as_bytes());
    bench.put(CAPTURE, &other);
    let report = bench.ask("udp port 7");
    assert!(is_evicted(&report) && report.packets == 0, "{report:?}");
    assert!(errors(&report)[0].contains("other files"), "{report:?}");
    // With the original files, the dump is a source again.
    bench.put(SIDECAR, sidecar.to_string().as_bytes());
    bench.put(CAPTURE, &capture);
    let report = bench.ask("udp port 7");
    assert_eq!(
        (report.packets, is_evicted(&report)),
        (50, false),
        "{report:?}"
    );
}

/// A dump that is being written is not a source yet, and is not reported as faulty.
#[test]
fn a_dump_that_grows_is_a_source_when_it_is_finished() {
    let plan = RigConfig {
        future_ns: 5 * S,
        ..RigConfig::default()
    };
    let mut bench = Bench::new(&plan);
    bench.arrive(100);
    bench.rig.trigger(crate::TriggerRequest::default());
    bench.rig.step();
    bench.flood();
    let dumps = RecorderHandle::dumps(&bench.rig.handle).unwrap();
    assert!(dumps.len() == 1 && dumps[0].is_open, "{dumps:?}");
    let report = bench.ask("");
    assert_eq!(
        (report.packets, is_evicted(&report)),
        (0, true),
        "{report:?}"
    );
    let dumps = report.dumps.unwrap();
    assert_eq!((dumps.read, dumps.failed, dumps.dumps.len()), (0, 0, 0));
    assert_eq!(dumps.uncovered.len(), 1);
    bench.rig.pass(6 * S);
    bench.rig.step();
    assert_eq!(bench.rig.reports.len(), 1);
    let report = bench.ask("");
    assert_eq!(
        (report.packets, is_evicted(&report)),
        (100, false),
        "{report:?}"
    );
}
