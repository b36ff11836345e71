//! The sidecars of dumps say which frames alerts are about.

use std::{
    path::Path,
    sync::{Arc, atomic::Ordering},
};

use retroscope_alert::{Alert, ParsedLine};
use serde_json::Value;

use crate::{
    DumpFormat, Verdict,
    dump::names::Directory,
    rfc3339,
    tests::{
        fake_disk::FakeDisk,
        live::START,
        rig::{MS, Rig, RigConfig, S, udp},
    },
};

/// An alert of Suricata about a packet of the flow from port 5 to 9.
fn alert(time_ns: i64, signature: u32) -> Arc<Alert> {
    let line = format!(
        r#"{{"timestamp":"{}","event_type":"alert","src_ip":"10.0.0.1","src_port":5,"dest_ip":"10.0.0.2","dest_port":9,"proto":"UDP","pkt_src":"wire/pcap","alert":{{"signature_id":{signature},"signature":"of a test"}}}}"#,
        rfc3339(time_ns)
    );
    match retroscope_alert::read(line.as_bytes()) {
        ParsedLine::Alert { alert, .. } => Arc::from(alert),
        other => panic!("{other:?}"),
    }
}

/// Only alerts start dumps.
fn rig() -> (FakeDisk, Rig) {
    let disk = FakeDisk::default();
    let directory = Directory::on(
        Arc::new(disk.clone()),
        Path::new("dumps"),
        DumpFormat::PcapNg,
    );
    let plan = RigConfig {
        triggers: &["udp port 1"],
        future_ns: 30 * S,
        ..RigConfig::default()
    };
    let rig = Rig::on(&plan, START, directory);
    (disk, rig)
}

/// The frame of a second alert is already in the file. The sidecar has the number of the packet in
/// the file, counted from 1 as Wireshark does.
#[test]
fn an_alert_about_a_written_frame_is_told_in_the_sidecar_alone() {
    const PACKETS: u32 = 1000;
    let (disk, mut rig) = rig();
    let mut stamps = Vec::new();
    for number in 0..PACKETS {
        rig.pass(MS);
        stamps.push(rig.clock.wall_ns.load(Ordering::SeqCst));
        rig.arrive(0, [udp(5, 9, number), vec![0; 1000]].concat());
        rig.step();
    }
    for (place, signature) in [(0, 1), (500, 2)] {
        rig.handle
            .alerts(vec![alert(stamps[place], signature)])
            .unwrap();
        rig.pass(5 * S);
        rig.step();
        rig.step();
    }
    rig.pass(40 * S);
    rig.step();
    rig.step();
    let report = &rig.reports[0];
    assert_eq!(
        (report.verdict, report.packets),
        (Verdict::Complete, PACKETS.into()),
        "{report:?}"
    );
    let file = disk.read(&report.file).unwrap().len();
    let told: Value = {
        let sidecar = disk.read(&report.file.with_extension("json")).unwrap();
        serde_json::from_slice(&sidecar).unwrap()
    };
    assert_eq!(told["alerts"].as_array().map(Vec::len), Some(2), "{told}");
    assert_eq!(told["alerts"][1]["frame"], true);
    assert!(
        disk.written() < file * 3 / 2,
        "{} of {file}",
        disk.written()
    );
    assert_eq!(told["alerts"][1]["packet"], 501);
}

/// The disk has no room for the alert's frame, and later has room for the sidecar.
#[test]
fn a_failed_dump_claims_no_frame_of_an_alert() {
    let (disk, mut rig) = rig();
    rig.pass(MS);
    let stamp = rig.clock.wall_ns.load(Ordering::SeqCst);
    rig.arrive(0, [udp(5, 9, 0), vec![0; 10_000]].concat());
    rig.step();
    disk.set_capacity(5000);
    rig.handle.alerts(vec![alert(stamp, 1)]).unwrap();
    rig.pass(5 * S);
    rig.step();
    rig.step();
    disk.set_capacity(usize::MAX);
    for _ in 0..3 {
        rig.pass(40 * S);
        rig.step();
    }
    let report = rig.common.log.last().remove(0);
    assert_eq!(report.verdict, Verdict::Failed, "{report:?}");
    let sidecar = disk.read(&report.file.with_extension("").with_extension("json"));
    let told: Value = serde_json::from_slice(&sidecar.unwrap()).unwrap();
    assert_eq!(told["alerts"].as_array().map(Vec::len), Some(1), "{told}");
    assert_eq!(told["alerts"][0]["frame"], Value::Null);
    assert_eq!(told["alerts"][0]["packet"], Value::Null);
}
