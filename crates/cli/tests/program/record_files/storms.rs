//! Storms of triggers with limits, and missed triggers.

use std::{
    fs,
    io::Write,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use retroscope_packet::LinkType;
use retroscope_pcapfile::{PcapOptions, PcapWriter};
use serde_json::Value;

use super::{S, bounded, contents, record, write_capture};
use crate::support::{PROGRAM, stderr};

/// Number of packets to port 53 in the storm, each of a different flow.
const FLOWS: u32 = 60_000;
const START: i64 = 1_800_000_000 * S;

/// A UDP packet over raw IPv4 from the host with this number.
fn udp(host: u32, port: u16) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0];
    packet.extend((10 << 24 | host).to_be_bytes());
    packet.extend([192, 0, 2, 1, 0x30, 0x39]);
    packet.extend(port.to_be_bytes());
    packet.extend([0, 12, 0, 0, 1, 2, 3, 4]);
    packet
}

/// Writes a packet of each flow to port 53, 1 ms apart, and one packet to port 77 among these
/// packets.
fn storm(path: &Path) {
    let file = std::io::BufWriter::new(fs::File::create(path).unwrap());
    let mut writer = PcapWriter::new(file, PcapOptions::new(LinkType::RAW)).unwrap();
    for flow in 0..FLOWS {
        let time_ns = START + i64::from(flow) * S / 1000;
        writer.record(time_ns, 32, &udp(flow, 53)).unwrap();
        if flow == 31_234 {
            writer.record(time_ns, 32, &udp(flow, 77)).unwrap();
        }
    }
    writer.finish().unwrap();
}

/// The number of all hits. Checks that the number of suppressed hits is the sum of the numbers for
/// each reason.
fn hits(json: &Value) -> u64 {
    let number = |value: &Value| value.as_u64().unwrap();
    let by = json["suppressed_by"].as_object().unwrap();
    assert_eq!(
        by.values().map(number).sum::<u64>(),
        number(&json["suppressed"])
    );
    number(&json["triggers"]) + number(&json["suppressed"])
}

fn listed(json: &Value) -> &[Value] {
    json["dumps"].as_array().unwrap()
}

#[test]
fn a_storm_leaves_room_for_another_rule_with_default_options() {
    let dir = tempfile::tempdir().unwrap();
    let capture = dir.path().join("storm.pcap");
    storm(&capture);
    let runs = ["one", "two"].map(|name| {
        let out = dir.path().join(name);
        let mut command = Command::new(PROGRAM);
        let rules = ["--trigger", "udp port 53", "--trigger", "udp port 77"];
        command.args(["record", "--json", "--reproducible", "--ring", "32MiB"]);
        command
            .args(rules)
            .arg("-r")
            .arg(&capture)
            .arg("-w")
            .arg(&out);
        let (peak_kib, output) = bounded::peak_kib(bounded::Running::start(&mut command));
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert!(peak_kib < (32 + 64) << 10, "{peak_kib} KiB");
        assert!(stderr(&output).lines().count() <= 1000);
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(hits(&json), u64::from(FLOWS) + 1);
        let files = contents(&out);
        assert!((100..=1000).contains(&files.len()), "{} files", files.len());
        let of_other = listed(&json).iter().filter(|d| d["rule"] == "udp port 77");
        let packets: Vec<&Value> = of_other.map(|dump| &dump["packets"]).collect();
        assert_eq!(packets, [1], "the other rule has its dump");
        files
    });
    assert!(
        runs[0] == runs[1],
        "the result is a function of the packets"
    );
}

/// 600 s of packets, 10 ms apart, to ports 1 to 100 in turn, except six packets to port 60000. Port
/// 13 has a packet each second.
fn minutes(path: &Path) {
    write_capture(path, 60_000, 600, S / 100, None);
}

#[test]
fn a_flow_is_held_off() {
    let dir = tempfile::tempdir().unwrap();
    let capture = dir.path().join("in.pcap");
    minutes(&capture);
    let out = dir.path().join("out");
    let (output, json) = record(&[
        "-q",
        "-r",
        capture.to_str().unwrap(),
        "--trigger",
        "udp port 13",
        "--past",
        "0.1s",
        "--future",
        "2s",
        "--hold-off",
        "100s",
        "-w",
        out.to_str().unwrap(),
    ]);
    let json = json.unwrap_or_else(|| panic!("{}", stderr(&output)));
    // The window of 2 s covers two further hits. With the hold-off of 100 s, the next dump starts
    // at the first hit more than 102 s after the trigger, 103 s after it.
    let triggers: Vec<&str> = listed(&json)
        .iter()
        .map(|dump| dump["trigger_time"].as_str().unwrap())
        .collect();
    let expected = (0..6).map(|n| 1_700_000_000 * S + 12 * S / 100 + n * 103 * S);
    let expected: Vec<String> = expected.map(retroscope_recorder::rfc3339).collect();
    assert_eq!(triggers, expected);
    let by = &json["suppressed_by"];
    assert_eq!((&by["open"], &by["hold-off"]), (&12.into(), &582.into()));
    let second = Path::new(listed(&json)[1]["file"].as_str().unwrap());
    let sidecar = fs::read(second.with_extension("json")).unwrap();
    let sidecar: Value = serde_json::from_slice(&sidecar).unwrap();
    assert_eq!(sidecar["suppressed_before"]["hold-off"], 100);
}

#[test]
fn bytes_of_an_hour_are_bounded_in_the_same_way_in_every_run() {
    let dir = tempfile::tempdir().unwrap();
    let capture = dir.path().join("in.pcap");
    minutes(&capture);
    let runs = ["one", "two"].map(|name| {
        let out = dir.path().join(name);
        let (output, json) = record(&[
            "-q",
            "--reproducible",
            "--ring",
            "32MiB",
            "-r",
            capture.to_str().unwrap(),
            "--trigger",
            "udp port 13",
            "--dump",
            "",
            "--past",
            "1s",
            "--future",
            "0.1s",
            "--set",
            "bytes-per-hour=4MiB",
            "-w",
            out.to_str().unwrap(),
        ]);
        let json = json.unwrap_or_else(|| panic!("{}", stderr(&output)));
        assert_eq!(hits(&json), 600);
        let bytes = listed(&json)
            .iter()
            .map(|dump| dump["bytes"].as_u64().unwrap());
        let bytes: u64 = bytes.sum();
        // The recorder counts the bytes that dumps have written after each 256 KiB of packets.
        assert!((3 << 20..7 << 20).contains(&bytes), "{bytes}");
        assert!(
            json["suppressed_by"]["bytes-per-hour"].as_u64() > Some(400),
            "{json}"
        );
        contents(&out)
    });
    assert!(runs[0] == runs[1]);
}

/// Bytes that dumps write also count towards `bytes-per-hour` if the file is smaller than the ring.
/// The result is the same for the tested sizes of the ring.
#[test]
fn bytes_are_counted_in_a_file_smaller_than_the_ring() {
    let dir = tempfile::tempdir().unwrap();
    let capture = dir.path().join("in.pcap");
    let file = std::io::BufWriter::new(fs::File::create(&capture).unwrap());
    let mut writer = PcapWriter::new(file, PcapOptions::new(LinkType::RAW)).unwrap();
    // A packet of 1,400 bytes every 0.1 s. Every 50th packet is stamped 0.5 s earlier, within the
    // reorder window. Every 30 s a packet triggers.
    for n in 0..6000_i64 {
        let port = if n % 300 == 299 { 9 } else { 7 };
        let mut packet = udp(1, port);
        packet.resize(1400, 0);
        let back_ns = if n % 50 == 0 { S / 2 } else { 0 };
        let time_ns = START + n * S / 10 - back_ns;
        writer.record(time_ns, 1400, &packet).unwrap();
    }
    writer.finish().unwrap();
    let run = |ring: &str, round: &str| {
        let out = dir.path().join(format!("{ring}{round}"));
        let (output, json) = record(&[
            "-q",
            "--reproducible",
            "--ring",
            ring,
            "-r",
            capture.to_str().unwrap(),
            "--trigger",
            "udp port 9",
            "--dump",
            "",
            "--past",
            "60s",
            "--future",
            "1s",
            "--set",
            "bytes-per-hour=1MiB",
            "-w",
            out.to_str().unwrap(),
        ]);
        let json = json.unwrap_or_else(|| panic!("{}", stderr(&output)));
        (json, contents(&out))
    };
    let (json, files) = run("32MiB", "");
    assert_eq!(hits(&json), 20);
    // The first dump has about 310 packets, the second about 610. Together they exceed the limit of
    // 1 MiB, in a file of 8 MiB.
    assert_eq!(json["triggers"], 2, "{json}");
    assert_eq!(json["suppressed_by"]["bytes-per-hour"], 18, "{json}");
    for (ring, round) in [("32MiB", "again"), ("64MiB", ""), ("512MiB", "")] {
        assert!(run(ring, round).1 == files, "{ring}");
    }
}

/// A dump ends when it has `dump-packets` packets, or at least `dump-bytes` bytes. Each window
/// would contain up to 1,091 packets.
#[test]
fn a_dump_ends_when_it_has_as_much_as_was_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let capture = dir.path().join("in.pcap");
    minutes(&capture);
    let mut runs = Vec::new();
    for (option, value) in [
        ("--set", "dump-packets=50"),
        ("--set", "dump-bytes=30KiB"),
        ("--set", "dump-packets=50"),
    ] {
        let out = dir.path().join(format!("{}", runs.len()));
        let (output, json) = record(&[
            "-q",
            "--reproducible",
            "-r",
            capture.to_str().unwrap(),
            "--trigger",
            "udp port 13",
            "--dump",
            "",
            "--past",
            "0.9s",
            "--future",
            "10s",
            "--set",
            "max-dumps=2",
            "--set",
            "dumps-per-minute=0",
            option,
            value,
            "-w",
            out.to_str().unwrap(),
        ]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let json = json.unwrap_or_else(|| panic!("{}", stderr(&output)));
        assert_eq!(hits(&json), 600);
        for dump in listed(&json) {
            let number = |field: &str| dump[field].as_u64().unwrap();
            assert_eq!(dump["verdict"], "complete", "{dump}");
            let clipped = dump["clipped"].as_array().unwrap();
            assert!(clipped.iter().any(|by| by == "limit"), "{dump}");
            if value == "dump-packets=50" {
                assert_eq!(number("packets"), 50);
            } else {
                let one = number("bytes") / number("packets");
                assert!((30 << 10..(30 << 10) + one).contains(&number("bytes")));
            }
        }
        assert!(listed(&json).len() > 60, "windows of 10 s alone allow 60");
        runs.push(contents(&out));
    }
    assert!(runs[0] == runs[2]);
}

/// A script is too slow for the packet rate: the ring overwrites packets before the script sees
/// them.
#[test]
fn triggers_that_may_be_missed_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("slow.lua");
    let text =
        "return function(pkt) local n = 0 for i = 1, 5000 do n = n + i % 7 end return n < 0 end";
    fs::write(&script, text).unwrap();
    let out = dir.path().join("out");
    let (output, json) = record(&[
        "-i",
        "generate:flows=10,size=1000,rate=300kpps",
        "--ring",
        "32MiB",
        "--trigger-lua",
        script.to_str().unwrap(),
        "-c",
        "600000",
        "-w",
        out.to_str().unwrap(),
    ]);
    let errors = stderr(&output);
    assert_eq!(output.status.code(), Some(3), "{errors}");
    let json = json.unwrap();
    let not_analyzed = json["not_analyzed"].as_u64().unwrap();
    assert!(not_analyzed > 0, "{json}");
    assert_eq!(json["analyzers"]["missed"], not_analyzed);
    // A message reports missed packets during the recording, and a message at the end gives their
    // number.
    assert!(errors.contains("missed"), "{errors}");
    let number = format!("{not_analyzed} packets");
    assert!(errors.contains(&number), "{errors}");
    assert!(errors.lines().count() < 20, "{errors}");
}

/// While nobody reads the messages, the recorder still writes all dumps. After the test has read
/// the messages, the recorder ends, and the summary lists all dumps.
#[test]
fn a_terminal_that_stands_still_holds_no_dump_up() {
    let dir = tempfile::tempdir().unwrap();
    let capture = dir.path().join("in.pcap");
    write_capture(&capture, 2000, 100, S / 100, None);
    let out = dir.path().join("out");
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    // Fills the pipe for stderr: a pipe has room for 65,536 bytes (pipe(7)).
    writer.write_all(&[b'\n'; 65_536]).unwrap();
    let mut child = Command::new(PROGRAM)
        .args(["record", "--json", "--trigger", "udp port 13", "--past"])
        .args(["0.1s", "--future", "0.1s", "-r"])
        .arg(&capture)
        .arg("-w")
        .arg(&out)
        .stdout(Stdio::piped())
        .stderr(writer)
        .spawn()
        .unwrap();
    let sidecars = || {
        let files = fs::read_dir(&out).into_iter().flatten();
        let names = files.filter_map(|file| file.ok()?.file_name().into_string().ok());
        names.filter(|name| name.ends_with(".json")).count()
    };
    let deadline = Instant::now() + Duration::from_secs(60);
    while sidecars() < 20 {
        assert!(Instant::now() < deadline, "{} dumps", sidecars());
        std::thread::yield_now();
    }
    assert!(child.try_wait().unwrap().is_none(), "it waits to say so");
    std::io::copy(&mut reader, &mut std::io::sink()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((listed(&json).len(), hits(&json)), (20, 20));
}
