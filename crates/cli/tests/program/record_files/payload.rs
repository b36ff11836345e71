//! Payload terms in `--trigger`, `--dump` and `-f`.

use std::{fs, path::Path};

use retroscope_packet::LinkType;
use retroscope_pcapfile::{PcapOptions, PcapWriter};

use super::{S, args, assert_dumps, assert_ledgers, oracle, question, read, run};
use crate::support::{shared, stderr};

/// Real traffic, triggers with each kind of payload term, and dump expressions without and with a
/// payload term.
#[test]
fn payload_terms_trigger_and_dump() {
    let Some(shared) = shared("") else { return };
    let capture = shared.join("traces/apps/zk-wikipedia.pcap");
    let packets = read(&capture).0;
    let triggers = [
        r#"tcp and payload startswith "GET ""#,
        r"udp port 53 and payload matches /wiki(p|m)edia/i",
        r#"payload contains "404 Not Found" or payload contains "image/png""#,
    ];
    for dump in [
        "$flow",
        r#"$flow and not payload contains "HTTP/1.1 200""#,
        r#"host $srcIP and payload matches /(?s)./"#,
    ] {
        let question = question(&triggers, dump, S / 10, S / 10);
        let expected = oracle::dumps(&packets, &question).unwrap();
        assert!(expected.len() > 3 && expected.iter().any(|dump| dump.packets.len() > 1));
        let dir = tempfile::tempdir().unwrap();
        let (output, json) = run(
            &args(&[&capture], &question, dir.path()),
            &["--ring", "8MiB"],
        );
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let json = json.unwrap();
        assert_dumps(&expected, &json, dump);
        assert_ledgers(&json, packets.len(), dump);
    }
}

/// The capture filter supports payload terms, like a trigger, and acts before the ring.
#[test]
fn a_payload_term_filters_what_is_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let capture = dir.path().join("in.pcap");
    let file = fs::File::create(&capture).unwrap();
    let mut writer = PcapWriter::new(file, PcapOptions::new(LinkType::RAW)).unwrap();
    let mut frame = [
        &[
            0x45, 0, 0, 36, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        ][..],
        &[0, 7, 0, 9, 0, 16, 0, 0],
        b"packet 0",
    ]
    .concat();
    for number in 0..10 {
        frame[35] = b'0' + number;
        writer.record(i64::from(number) * S, 36, &frame).unwrap();
    }
    writer.finish().unwrap();
    let question = question(&[r#"payload contains "4""#], "", 100 * S, 100 * S);
    let filter = r"udp and payload matches /packet [2-5]/";
    let (output, json) = run(
        &args(&[&capture], &question, &dir.path().join("out")),
        &["--ring", "8MiB", "-f", filter],
    );
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let json = json.unwrap();
    assert_eq!(json["sources"][0]["stored"], 4);
    assert_eq!(json["dumps"][0]["packets"], 4, "{json}");
    assert_ledgers(&json, 10, filter);
}

/// Packets that imitate the comments which the recorder writes into dumps are written unchanged. A
/// pcapng dump still has the recorder's own comments. This also holds if a packet arrives too late
/// for its window.
#[test]
fn packets_that_imitate_our_comments_are_written_as_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let capture = dir.path().join("in.pcap");
    let file = fs::File::create(&capture).unwrap();
    let mut writer = PcapWriter::new(file, PcapOptions::new(LinkType::RAW)).unwrap();
    let texts = ["verdict: complete", "verdict: unfinished", "trigger"];
    let frames = texts.map(|text| {
        let mut frame = vec![
            0x45, 0, 1, 12, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        ];
        frame.extend([0, 7, 0, 9, 0, 248, 0, 0]);
        frame.extend(format!("{text:240}").bytes());
        frame
    });
    // The last packet is too late for the window that the packet at 20 s opens.
    let records = [(16, 0), (17, 1), (20, 2), (21, 0), (30, 1), (22, 0)];
    for (second, frame) in records {
        writer.record(second * S, 268, &frames[frame]).unwrap();
    }
    writer.finish().unwrap();
    let question = question(&["udp[8:4] = 0x74726967"], "", 5 * S, 5 * S);
    for (format, extension) in [("pcapng", "pcapng"), ("pcap", "pcap")] {
        let out = dir.path().join(format);
        let args = args(&[&capture], &question, &out);
        let (output, json) = run(&args, &["--ring", "8MiB", "--format", format]);
        assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
        let json = json.unwrap();
        let dump = &json["dumps"][0];
        assert_eq!(json["dumps_with_late_packets"], 1, "{json}");
        let file = Path::new(dump["file"].as_str().unwrap());
        assert_eq!(file.extension().unwrap(), extension);
        let (packets, _) = read(file);
        let found = packets
            .iter()
            .map(|packet| (packet.time_ns / S, &packet.data));
        let expected = records[..4]
            .iter()
            .map(|(second, frame)| (*second, &frames[*frame]));
        assert!(found.eq(expected), "{format}");
        let bytes = fs::read(file).unwrap();
        let header = u32::from_le_bytes(bytes[4..8].try_into().unwrap()) as usize;
        let verdict = b"verdict: complete";
        let is_told =
            format == "pcap" || bytes[..header].windows(verdict.len()).any(|w| w == verdict);
        assert!(is_told, "{json}");
    }
}

/// An invalid term is a usage error with the option and the place.
#[test]
fn a_bad_term_is_refused_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let capture = dir.path().join("in.pcap");
    super::write_capture(&capture, 3, 100, S, None);
    for (trigger, dump, option) in [
        (r#"payload contains "a"#, "", "--trigger: "),
        ("udp", r"$flow and payload matches /(/", "--dump: "),
    ] {
        let question = question(&[trigger], dump, S, S);
        let (output, json) = run(&args(&[&capture], &question, &dir.path().join("out")), &[]);
        assert_eq!((output.status.code(), json), (Some(2), None));
        let said = stderr(&output);
        assert!(said.contains(option) && said.contains("^\n"), "{said}");
        assert!(!dir.path().join("out").exists());
    }
}
