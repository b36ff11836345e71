//! Triggers by later fragments, which carry no ports.

use std::{fs, path::Path};

use retroscope_packet::LinkType;
use retroscope_pcapfile::{PcapOptions, PcapWriter};

use super::{S, args, assert_dumps, oracle, question, read, run};
use crate::support::{shared, stderr};

/// A raw UDP packet from 10.0.0.1 to 10.0.0.2 with a source port, an identification, and the
/// fragment field.
fn packet(port: u16, id: u16, fragment: u16) -> Vec<u8> {
    let mut data = vec![
        0x45, 0, 0, 36, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 0, 0, 9, 0, 16, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];
    data[4..6].copy_from_slice(&id.to_be_bytes());
    data[6..8].copy_from_slice(&fragment.to_be_bytes());
    data[20..22].copy_from_slice(&port.to_be_bytes());
    data
}

/// A later fragment triggers a dump of its flow with the flow's earlier packets. A further hit of
/// the same flow starts no second dump.
#[test]
fn a_later_fragment_triggers_for_its_flow() {
    let dir = tempfile::tempdir().unwrap();
    let capture = dir.path().join("in.pcap");
    let file = fs::File::create(&capture).unwrap();
    let mut writer = PcapWriter::new(file, PcapOptions::new(LinkType::RAW)).unwrap();
    let (first, later) = (0x2000, 2);
    let frames = [
        packet(7, 1, 0),
        packet(8, 2, 0),
        packet(7, 3, first),
        packet(8, 4, first),
        packet(0xffff, 3, later), // triggers
        packet(7, 5, first),
        packet(0xffff, 5, later), // a hit of the same flow
        packet(0xffff, 6, later), // its first fragment is missing: another flow
        packet(7, 60_000, 0),     // a hit by its identification, of the same flow again
    ];
    for (time_ns, frame) in (1000..).map(|s| s * S).zip(&frames) {
        writer.record(time_ns, 36, frame).unwrap();
    }
    writer.finish().unwrap();
    for dump in ["$flow", "$communityId"] {
        let trigger = "ip[6:2] & 0x1fff != 0 or ip[4:2] = 60000";
        let question = question(&[trigger], dump, 100 * S, 100 * S);
        let out = dir.path().join(dump);
        let (output, json) = run(&args(&[&capture], &question, &out), &["--ring", "8MiB"]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let json = json.unwrap();
        let expected = oracle::dumps(&read(&capture).0, &question).unwrap();
        assert_dumps(&expected, &json, dump);
        let file = json["dumps"][0]["file"].as_str().unwrap();
        let ids: Vec<u16> = read(Path::new(file))
            .0
            .iter()
            .map(|p| u16::from_be_bytes([p.data[4], p.data[5]]))
            .collect();
        assert_eq!(ids, [1, 3, 3, 5, 5, 60_000], "{dump}");
        let dumps = if dump == "$flow" { 2 } else { 1 };
        assert_eq!(json["dumps"].as_array().unwrap().len(), dumps, "{dump}");
    }
}

/// A later fragment in real traffic triggers the dump that the oracle expects, with packets before
/// the trigger.
#[test]
fn fragments_of_a_real_capture_agree_with_the_oracle() {
    let Some(shared) = shared("") else { return };
    let capture = shared.join("traces/encap/ak-socks5-http-302-frag.pcap");
    let packets = read(&capture).0;
    let question = question(&["ip[6:2] & 0x1fff != 0"], "$flow", 100 * S, 100 * S);
    let expected = oracle::dumps(&packets, &question).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (output, json) = run(
        &args(&[&capture], &question, dir.path()),
        &["--ring", "8MiB"],
    );
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_dumps(&expected, &json.unwrap(), "socks");
    let first = &expected[0];
    assert!(first.packets[0].time_ns < first.trigger_ns);
}
