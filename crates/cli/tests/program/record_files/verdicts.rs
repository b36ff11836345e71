//! Dumps of `record -r` that must have the verdict `incomplete`.

use std::{
    fs::{self, File},
    path::Path,
};

use retroscope_packet::LinkType;
use retroscope_pcapfile::{FileInterface, PacketOptions, PcapNgWriter, SectionOptions};
use serde_json::{Value, json};

use super::{S, args, contents, question, run};
use crate::support::stderr;

fn writer(path: &Path) -> PcapNgWriter<File> {
    PcapNgWriter::new(File::create(path).unwrap(), &SectionOptions::default()).unwrap()
}

/// A UDP packet over raw IPv4, to this port.
fn udp(port: u8) -> Vec<u8> {
    let mut packet = vec![
        0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
    ];
    packet.extend([0, 7, 0, port, 0, 8, 0, 0]);
    packet
}

/// Records a capture with one dump of all packets up to 5 s before and after a packet to port 9.
/// The dump must be incomplete. Returns the dump in the summary, and the summary.
fn only_dump(capture: &Path, out: &Path, format: &str) -> (Value, Value) {
    let question = question(&["udp port 9"], "", 5 * S, 5 * S);
    let args = args(&[capture], &question, out);
    let (output, json) = run(&args, &["--ring", "8MiB", "--format", format]);
    let json = json.unwrap();
    assert_eq!(output.status.code(), Some(3), "{} {json}", stderr(&output));
    assert_eq!(json["dumps"].as_array().unwrap().len(), 1, "{json}");
    let dump = json["dumps"][0].clone();
    assert_eq!(dump["verdict"], "incomplete", "{dump}");
    (dump, json)
}

/// Our pcap files have no timestamps before 1970 or after February 2106, our pcapng files none
/// before 1970. The recorder writes packets outside of this range with another timestamp, and the
/// verdict counts these packets as `restamped`.
#[test]
fn time_stamps_that_the_format_cannot_hold_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let end_s = 1 << 32;
    let cases = [
        ("pcap", [end_s - 2, end_s - 1, end_s, end_s + 1], 2),
        ("pcap", [-2, -1, 0, 1], 2),
        ("pcapng", [-2, -1, 0, 1], 2),
    ];
    for (index, (format, seconds, restamped)) in cases.into_iter().enumerate() {
        let capture = dir.path().join(format!("{index}.pcapng"));
        let mut writer = writer(&capture);
        let mut interface = FileInterface::new(LinkType::RAW);
        interface.description = "tsoffset".to_owned();
        writer.add_interface(&interface).unwrap();
        for second in seconds {
            let packet = udp(if second == seconds[1] { 9 } else { 7 });
            writer
                .packet(
                    0,
                    (second + 1000) * S,
                    28,
                    &packet,
                    &PacketOptions::default(),
                )
                .unwrap();
        }
        writer.finish().unwrap();
        // Turns the description into an option `if_tsoffset`, so that all timestamps are 1000 s
        // earlier.
        let mut file = fs::read(&capture).unwrap();
        let place = file.windows(8).position(|it| it == b"tsoffset").unwrap();
        file[place - 4] = 14;
        file[place..place + 8].copy_from_slice(&(-1000_i64).to_le_bytes());
        fs::write(&capture, file).unwrap();
        let out = dir.path().join(index.to_string());
        let (dump, _) = only_dump(&capture, &out, format);
        assert_eq!(dump["packets"], 4, "{dump}");
        let missing = &dump["missing"];
        assert_eq!(missing.as_array().unwrap().len(), 1, "{dump}");
        let told = (&missing[0]["cause"], &missing[0]["packets"]);
        assert_eq!(told, (&json!("restamped"), &json!(restamped)), "{dump}");
        if format == "pcapng" {
            let file = Path::new(dump["file"].as_str().unwrap());
            let verdict = b"verdict: incomplete: 2 packets (restamped)";
            let bytes = fs::read(file).unwrap();
            assert!(bytes.windows(verdict.len()).any(|w| w == verdict));
        }
    }
}

/// Two files have 80,000 interfaces, more than the 65,536 that a recording can number. Packets of
/// interfaces beyond this limit count as lost, not as filtered.
#[test]
fn packets_of_too_many_interfaces_are_lost() {
    let dir = tempfile::tempdir().unwrap();
    let captures = ["a", "b"].map(|name| dir.path().join(format!("{name}.pcapng")));
    for capture in &captures {
        let mut writer = writer(capture);
        let interface = FileInterface::new(LinkType::RAW);
        writer.add_interface(&interface).unwrap();
        writer
            .packet(0, S, 28, &udp(9), &PacketOptions::default())
            .unwrap();
        for _ in 1..40_000 {
            writer.add_interface(&interface).unwrap();
        }
        for second in 2..5 {
            writer
                .packet(39_999, second * S, 28, &udp(7), &PacketOptions::default())
                .unwrap();
        }
        writer.finish().unwrap();
    }
    let question = question(&["udp port 9"], "", 5 * S, 5 * S);
    let files = captures.each_ref().map(|path| path.as_path());
    let args = args(&files, &question, &dir.path().join("out"));
    let (output, json) = run(&args, &["--ring", "8MiB"]);
    let json = json.unwrap();
    assert_eq!(output.status.code(), Some(3), "{} {json}", stderr(&output));
    let source = &json["sources"][1];
    assert_eq!(source["lost"]["interface-limit"], 3, "{source}");
    assert_eq!(
        (&source["stored"], &source["filtered"]),
        (&json!(1), &json!(0))
    );
    let dump = &json["dumps"][0];
    let missing = &dump["missing"][0];
    let told = (&missing["cause"], &missing["packets"]);
    assert_eq!(told, (&json!("interface-limit"), &json!(3)), "{dump}");
    assert_eq!(missing["source"], captures[1].to_str().unwrap(), "{dump}");
    assert_eq!(dump["packets"], 5, "{dump}");
    let sentences =
        stderr(&output).matches("65536").count() + stderr(&output).matches("65,536").count();
    assert_eq!(sentences, 1, "told once: {}", stderr(&output));
    assert_eq!(contents(&dir.path().join("out")).len(), 2);
}
