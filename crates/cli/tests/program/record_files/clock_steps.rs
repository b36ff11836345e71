//! Captures during which the clock was stepped.

use std::{fs, path::Path};

use retroscope_packet::LinkType;
use retroscope_pcapfile::{CaptureReader, PcapOptions, PcapWriter, Resolution};
use serde_json::Value;

use super::{S, record};
use crate::support::stderr;

const START_NS: i64 = 1_700_000_000 * S;
const HOUR_NS: i64 = 3600 * S;

/// A UDP packet over raw IPv4 that contains a number, to port 9 if it triggers, otherwise to port
/// 8.
fn packet(number: u32, triggers: bool, bytes: usize) -> Vec<u8> {
    let mut data = vec![
        0x45, 0, 0, 36, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 7, 0, 8, 0, 16, 0, 0,
    ];
    data[23] = if triggers { 9 } else { 8 };
    data.extend(number.to_be_bytes());
    data.resize(bytes.max(32), 0);
    data
}

/// Writes packets with these timestamps. The packets listed in `triggers` go to port 9.
fn capture(path: &Path, stamps: &[i64], triggers: &[usize], bytes: usize) {
    let file = std::io::BufWriter::new(fs::File::create(path).unwrap());
    let mut options = PcapOptions::new(LinkType::RAW);
    options.resolution = Resolution::Nano;
    let mut writer = PcapWriter::new(file, options).unwrap();
    for (number, stamp_ns) in stamps.iter().enumerate() {
        let frame = packet(
            number.try_into().unwrap(),
            triggers.contains(&number),
            bytes,
        );
        let length = u32::try_from(frame.len()).unwrap();
        writer.record(*stamp_ns, length, &frame).unwrap();
    }
    writer.finish().unwrap();
}

/// Records a capture with a trigger on port 9 and a window of a second before and a second after
/// each trigger packet.
fn dumps(capture: &Path, out: &Path, more: &[&str]) -> (Value, String) {
    let mut args = vec!["-r", capture.to_str().unwrap(), "-w", out.to_str().unwrap()];
    args.extend(["--trigger", "udp dst port 9", "--dump", "", "--past", "1s"]);
    args.extend(["--future", "1s", "--reproducible"]);
    args.extend(more);
    let (output, json) = record(&args);
    (json.expect("a summary"), stderr(&output).to_owned())
}

/// Numbers and timestamps of the packets of a dump.
fn packets(dump: &Value) -> Vec<(u32, i64)> {
    let mut reader = CaptureReader::open(Path::new(dump["file"].as_str().unwrap())).unwrap();
    let mut packets = Vec::new();
    while let Some(record) = reader.next().unwrap() {
        let number = u32::from_be_bytes(record.data[28..32].try_into().unwrap());
        packets.push((number, record.meta.time_ns));
    }
    packets
}

/// The clock steps in the middle of a capture that is more than three times as large as the ring.
/// Every dump before, after and across the step is complete. Its packets have the order and the
/// timestamps of the capture.
#[test]
fn a_step_in_mid_file_costs_nothing() {
    // 10,000 packets a second of 1400 bytes: the ring of 64 MiB holds less than 5 s.
    let (per_second, bytes) = (10_000, 1400);
    for step_ns in [HOUR_NS, -HOUR_NS] {
        let dir = tempfile::tempdir().unwrap();
        let input = dir.path().join("in.pcap");
        let step = 8 * per_second;
        let stamps: Vec<i64> = (0..16 * per_second)
            .map(|n| {
                let at_ns = START_NS + n as i64 * S / per_second as i64;
                at_ns + if n < step { 0 } else { step_ns }
            })
            .collect();
        // Triggers before, across and after the step. The window of the last trigger begins 1.5 s
        // after the step, which is more than the reorder window of 1 s.
        let triggers = [
            step / 2,
            step - 5,
            step + 5,
            step + per_second / 2,
            step + 5 * per_second / 2,
        ];
        capture(&input, &stamps, &triggers, bytes);
        let (json, words) = dumps(&input, &dir.path().join("out"), &["--ring", "64MiB"]);
        let found = json["dumps"].as_array().unwrap();
        let back = step_ns < 0;
        // A jump forward counts as silence, so no window has packets from both sides of the jump.
        // After a step back, the first packet has the ring time of the last packet before the step.
        // So a window across the step has one more packet.
        let expected = |at: usize| {
            let more = usize::from(back && at < step && at + per_second >= step);
            let around = at - per_second..=at + per_second + more;
            around.filter(move |n| back || (*n < step) == (at < step))
        };
        let mut seen = Vec::new();
        for dump in found {
            assert_eq!(dump["verdict"], "complete", "{dump}\n{words}");
            seen.push(packets(dump));
        }
        // A trigger within an open window starts no dump. After a step back this applies to the
        // triggers at `step + 5` and half a second after the step. After a jump forward it applies
        // only to the trigger half a second after the step.
        let started: Vec<usize> = if back {
            vec![step / 2, step - 5, step + 5 * per_second / 2]
        } else {
            vec![step / 2, step - 5, step + 5, step + 5 * per_second / 2]
        };
        assert_eq!(seen.len(), started.len(), "{words}");
        for (packets, at) in seen.iter().zip(started) {
            let expected: Vec<(u32, i64)> = expected(at)
                .map(|n| (u32::try_from(n).unwrap(), stamps[n]))
                .collect();
            assert!(
                *packets == expected,
                "{step_ns}: {at}: {} packets",
                packets.len()
            );
        }
        let notes = found.iter().filter(|dump| {
            let notes = dump["notes"].as_array();
            notes.is_some_and(|notes| {
                notes
                    .iter()
                    .any(|note| note.as_str().unwrap().contains("step"))
            })
        });
        assert_eq!(
            notes.count(),
            usize::from(back),
            "the one across it tells it"
        );
        assert_eq!(words.contains(" -3600.000 s"), back, "{words}");
    }
}

/// A step is only confirmed after 64 packets, which take 32 s at two packets a second. The packets
/// of these 32 s still get their correct place.
#[test]
fn a_step_is_exact_however_few_packets_tell_it() {
    let dir = tempfile::tempdir().unwrap();
    let input = dir.path().join("in.pcap");
    let stamps: Vec<i64> = (0..200)
        .map(|n| START_NS + n * S / 2 - if n < 100 { 0 } else { HOUR_NS })
        .collect();
    capture(&input, &stamps, &[101, 110], 60);
    let (json, words) = dumps(&input, &dir.path().join("out"), &[]);
    let found = json["dumps"].as_array().unwrap();
    let numbers = |dump| packets(dump).iter().map(|p| p.0).collect::<Vec<_>>();
    assert_eq!(found.len(), 2, "{words}");
    assert!(
        found.iter().all(|dump| dump["verdict"] == "complete"),
        "{json}"
    );
    // The first packet after the step counts as simultaneous with the last packet before the step,
    // because the length of the pause is unknown.
    assert_eq!(numbers(&found[0]), [98, 99, 100, 101, 102, 103]);
    assert_eq!(numbers(&found[1]), [108, 109, 110, 111, 112]);
}

/// 63 packets do not confirm a step. These packets are late, and the summary counts late packets.
#[test]
fn less_is_late() {
    let dir = tempfile::tempdir().unwrap();
    let input = dir.path().join("in.pcap");
    let back = |n: i64| if (300..363).contains(&n) { 10 * S } else { 0 };
    let stamps: Vec<i64> = (0..1000).map(|n| START_NS + n * S / 20 - back(n)).collect();
    capture(&input, &stamps, &[110], 60);
    let (json, words) = dumps(&input, &dir.path().join("out"), &[]);
    let dump = &json["dumps"][0];
    assert_eq!(dump["verdict"], "complete", "{json}\n{words}");
    assert_eq!(json["dumps_with_late_packets"], 1, "{json}");
    assert!(json["sources"][0]["late"].as_u64() > Some(0), "{json}");
    assert!(
        !words.contains("step") && !words.contains("disorder"),
        "{words}"
    );
}

/// Every second packet is stamped an hour earlier. The recorder does not take these jumps for clock
/// steps, and the dump has only packets that are not stamped earlier. A message, the notes and the
/// verdict in the file report disorder.
#[test]
fn stamps_in_disorder_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let input = dir.path().join("in.pcap");
    let stamps: Vec<i64> = (0..20_000)
        .map(|n| START_NS + n * S / 1000 - n % 2 * HOUR_NS)
        .collect();
    capture(&input, &stamps, &[10_000], 60);
    let out = dir.path().join("out");
    let (json, words) = dumps(&input, &out, &["--ring", "8MiB"]);
    let dump = &json["dumps"][0];
    assert!(words.contains("disorder"), "{words}");
    assert!(dump["notes"].to_string().contains("disorder"), "{dump}");
    let numbers: Vec<u32> = packets(dump).iter().map(|p| p.0).collect();
    assert_eq!(numbers, (9000..=11_000).step_by(2).collect::<Vec<_>>());
    let bytes = fs::read(dump["file"].as_str().unwrap()).unwrap();
    let verdict = b"verdict: complete; stamps in disorder";
    assert!(bytes.windows(verdict.len()).any(|it| it == verdict));
}

/// The clock is set back more often than the recorder follows steps. A dump is not complete if
/// packets in its window have a wrong ring time.
#[test]
fn steps_that_are_not_followed_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let input = dir.path().join("in.pcap");
    // 19 steps of an hour, one every 3 s. The recorder follows only 16 steps, because the packets
    // fill no bucket. Each filled bucket would permit one more step.
    let stamps: Vec<i64> = (0..20 * 300)
        .map(|n| START_NS + n * S / 100 - n / 300 * HOUR_NS)
        .collect();
    let triggers = [2 * 300 + 150, 18 * 300 + 150];
    capture(&input, &stamps, &triggers, 60);
    let (json, words) = dumps(&input, &dir.path().join("out"), &[]);
    let found = json["dumps"].as_array().unwrap();
    assert_eq!(found.len(), 2, "{words}");
    for dump in found {
        let numbers: Vec<u32> = packets(dump).iter().map(|p| p.0).collect();
        let is_followed = numbers.contains(&750);
        assert_eq!(
            dump["verdict"] == "complete",
            is_followed,
            "{dump}\n{words}"
        );
        if is_followed {
            assert_eq!(numbers, (650..=850).collect::<Vec<_>>());
        } else {
            let missing = dump["missing"].to_string();
            assert!(
                missing.contains("clock-step") || missing.contains("late"),
                "{dump}"
            );
        }
    }
}

/// Out-of-order packets that arrive after the end of a window do not change the dump's verdict,
/// even if the recorder reads them before it writes the verdict.
#[test]
fn disorder_behind_the_end_of_a_window_is_not_its() {
    let dir = tempfile::tempdir().unwrap();
    let input = dir.path().join("in.pcap");
    // Packets are in order for 5 s. Then every other packet has a timestamp within the window,
    // which ended at 2 s.
    let back = |n: i64| {
        if n >= 500 && n % 2 == 1 {
            n * S / 100 - 4 * S / 3
        } else {
            0
        }
    };
    let stamps: Vec<i64> = (0..3000)
        .map(|n| START_NS + n * S / 100 - back(n))
        .collect();
    capture(&input, &stamps, &[100], 60);
    let (json, words) = dumps(&input, &dir.path().join("out"), &[]);
    let dump = &json["dumps"][0];
    assert!(!words.contains("disorder"), "{words}");
    assert_eq!(dump["verdict"], "complete", "{json}");
    assert_eq!(json["sources"][0]["late"], 1250, "{json}");
}
