//! `record -r … --alerts`: over captures that a real Suricata has read, and over generated captures
//! with known results.

mod made;

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    path::{Path, PathBuf},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::Value;

use super::record;
use crate::{
    marked::{Dumped, packets},
    support::{shared, stderr},
};

/// Result of a run: packets of the dumps by file name, sidecars, summary, exit code and stderr.
pub(super) struct Run {
    pub(super) dumps: BTreeMap<PathBuf, Vec<Dumped>>,
    pub(super) sidecars: Vec<Value>,
    pub(super) summary: Value,
    pub(super) code: i32,
    pub(super) told: String,
}

pub(super) fn run(capture: &Path, alerts: &Path, more: &[&str]) -> Run {
    let dir = tempfile::tempdir().unwrap();
    let at = |path: &Path| path.display().to_string();
    let (capture, alerts, into) = (at(capture), at(alerts), at(dir.path()));
    let args = [
        "-r",
        &capture,
        "--alerts",
        &alerts,
        "-w",
        &into,
        "-q",
        "--reproducible",
    ];
    let (output, summary) = record(&[&args[..], more].concat());
    let summary = summary.unwrap_or_else(|| panic!("{}", stderr(&output)));
    let files = fs::read_dir(dir.path()).unwrap();
    let mut files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    let of = |extension: &str| {
        let files = files.clone().into_iter();
        let extension = extension.to_owned();
        files.filter(move |path| path.extension().is_some_and(|it| *it == *extension))
    };
    let name = |path: PathBuf| PathBuf::from(path.file_name().unwrap());
    Run {
        dumps: of("pcapng")
            .map(|path| (name(path.clone()), packets(&path)))
            .collect(),
        sidecars: of("json")
            .map(|path| serde_json::from_slice(&fs::read(path).unwrap()).unwrap())
            .collect(),
        summary,
        code: output.status.code().unwrap(),
        told: stderr(&output).to_owned(),
    }
}

/// Parses an EVE timestamp to µs since the epoch.
fn micros(text: &Value) -> i64 {
    retroscope_alert::time_ns(text.as_str().unwrap()).unwrap() / 1000
}

/// The SHA-256 that identifies an alert, computed from its line.
fn sha256(line: &str) -> String {
    let retroscope_alert::ParsedLine::Alert { alert, .. } = retroscope_alert::read(line.as_bytes())
    else {
        panic!("{line}");
    };
    alert.identity.sha256.clone()
}

/// For each alert about a frame from the wire, a dump contains that frame byte for byte, marked.
/// For an alert about a packet in a tunnel, the marked frame contains the packet. Alerts about
/// other packets, for example reassembled streams, are skipped.
#[test]
fn every_frame_of_a_real_suricata_is_in_a_dump_and_marked() {
    let (Some(eve), Some(traces)) = (shared("eve/MANIFEST.tsv"), shared("traces")) else {
        return;
    };
    let (eve, root) = (eve.parent().unwrap(), traces.parent().unwrap());
    let manifest = fs::read_to_string(eve.join("MANIFEST.tsv")).unwrap();
    let mut frames = 0;
    for row in manifest.lines().skip(1) {
        let [name, capture, variant, count, _] = row.split('\t').collect::<Vec<_>>()[..] else {
            panic!("{row}");
        };
        let count: usize = count.parse().unwrap();
        let path = eve.join(format!("{name}.alerts.json"));
        if count == 0 {
            continue;
        }
        let run = run(&root.join(capture), &path, &[]);
        let mut dumped: HashMap<i64, Vec<&Dumped>> = HashMap::new();
        for packet in run.dumps.values().flatten() {
            dumped.entry(packet.time_us).or_default().push(packet);
        }
        let text = fs::read_to_string(&path).unwrap();
        for line in text.lines() {
            let alert: Value = serde_json::from_str(line).unwrap();
            let frame = STANDARD.decode(alert["packet"].as_str().unwrap()).unwrap();
            let source = alert["pkt_src"].as_str().unwrap();
            let is_it: &dyn Fn(&&&Dumped) -> bool = match source {
                "wire/pcap" => &|packet| packet.data == frame,
                _ if source.ends_with("tunnel") || source.ends_with("encapsulation") => {
                    &|packet| packet.data.windows(frame.len()).any(|it| it == frame)
                }
                _ => continue,
            };
            let at = dumped.get(&micros(&alert["timestamp"]));
            let mut found = at.into_iter().flatten().filter(is_it);
            assert!(found.any(|packet| packet.is_marked), "{name}: {line}");
            frames += 1;
        }
        let alerts = &run.summary["alerts"];
        assert_eq!(alerts["acted"], count, "{name}");
        assert_eq!(
            (&alerts["unmatched"], &alerts["frames_missing"]),
            (&0.into(), &0.into()),
            "{name}"
        );
        // The sidecars together have one entry for each alert.
        let lines = run
            .sidecars
            .iter()
            .flat_map(|it| it["alerts"].as_array().unwrap());
        assert_eq!(lines.count(), count, "{name}");
        assert_eq!(run.code, 0, "{name}: {}", run.told);
        let odd = alerts["other_community_id"].as_u64().unwrap();
        assert_eq!(odd > 0, variant == "seed7", "{name}");
        assert_eq!(
            run.told.contains("seed"),
            variant == "seed7",
            "{name}: {}",
            run.told
        );
        if run.dumps.len() > 100 {
            // Alerts of a flow share a dump.
            assert!(
                run.dumps.len() * 4 < count * 3,
                "{name}: {}",
                run.dumps.len()
            );
        }
    }
    assert!(frames > 2800, "{frames}");
}

/// Alerts act 1 s late. If a sidecar gives the number of an alert's frame in the file, the packet
/// with that number, or a following packet with the same timestamp, must contain the frame. The
/// dump marks the frame only if the alert acts before the dump writes the frame. The runs have
/// marked and unmarked frames.
#[test]
fn late_alerts_are_told_which_packet_they_are_about() {
    let (Some(eve), Some(traces)) = (shared("eve/MANIFEST.tsv"), shared("traces")) else {
        return;
    };
    let (eve, root) = (eve.parent().unwrap(), traces.parent().unwrap());
    let manifest = fs::read_to_string(eve.join("MANIFEST.tsv")).unwrap();
    let (mut marked, mut unmarked) = (0, 0);
    for row in manifest.lines().skip(1) {
        let [name, capture, _, count, _] = row.split('\t').collect::<Vec<_>>()[..] else {
            panic!("{row}");
        };
        let path = eve.join(format!("{name}.alerts.json"));
        if count == "0" || name.starts_with("mix-a.") {
            continue;
        }
        let run = run(&root.join(capture), &path, &["--set", "alerts.delay=1s"]);
        let text = fs::read_to_string(&path).unwrap();
        let frames: HashMap<String, Vec<u8>> = text
            .lines()
            .map(|line| {
                let alert: Value = serde_json::from_str(line).unwrap();
                let frame = STANDARD.decode(alert["packet"].as_str().unwrap()).unwrap();
                (sha256(line), frame)
            })
            .collect();
        for sidecar in &run.sidecars {
            let dumped = &run.dumps[Path::new(sidecar["file"].as_str().unwrap())];
            for alert in sidecar["alerts"].as_array().unwrap() {
                if alert["frame"] == Value::Null {
                    continue;
                }
                let number = usize::try_from(alert["packet"].as_u64().unwrap()).unwrap();
                let packet = &dumped[number - 1];
                let us = micros(&alert["timestamp"]);
                assert_eq!(packet.time_us, us, "{name}");
                // If several packets have the alert's timestamp and direction, the sidecar gives
                // the number of the first of these packets.
                let frame = &frames[alert["sha256"].as_str().unwrap()];
                let mut alike = dumped[number - 1..]
                    .iter()
                    .take_while(|it| it.time_us == us);
                let is_it = alike.any(|it| it.data.windows(frame.len()).any(|it| it == frame));
                assert!(is_it, "{name}: {alert}");
                match packet.is_marked {
                    true => marked += 1,
                    false => unmarked += 1,
                }
            }
        }
        let again = self::run(
            &root.join(capture),
            &path,
            &["--set", "alerts.delay=1s", "--set", "analyzers=2"],
        );
        assert_eq!(again.dumps, run.dumps, "{name}");
        assert_eq!(again.sidecars, run.sidecars, "{name}");
    }
    assert!(marked > 500 && unmarked > 200, "{marked} {unmarked}");
}

/// Dumps and sidecars are the same for all tested values of `analyzers`. If the lines of the file
/// are in reverse order, the set of marked packets is the same.
#[test]
fn dumps_of_alerts_are_the_same_in_every_run() {
    let (Some(alerts), Some(capture)) = (
        shared("eve/nd-dns_fragmented.alerts.json"),
        shared("traces/encap/nd-dns_fragmented.pcap"),
    ) else {
        return;
    };
    let first = run(&capture, &alerts, &[]);
    for analyzers in ["1", "3", "inline", "auto"] {
        let again = run(
            &capture,
            &alerts,
            &["--set", &format!("analyzers={analyzers}")],
        );
        assert_eq!(again.dumps, first.dumps, "{analyzers}");
        assert_eq!(again.sidecars, first.sidecars, "{analyzers}");
    }
    let dir = tempfile::tempdir().unwrap();
    let text = fs::read_to_string(&alerts).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    lines.reverse();
    let backwards = dir.path().join("alerts.json");
    fs::write(&backwards, lines.join("\n")).unwrap();
    let again = run(&capture, &backwards, &["--ring", "16MiB"]);
    // Alerts with equal timestamps act in the order of the file, so packets may be in other dumps.
    // Only the set of marked packets is the same.
    let sets = |run: &Run| {
        let mut all: Vec<(i64, Vec<u8>)> = run
            .dumps
            .values()
            .flatten()
            .filter(|it| it.is_marked)
            .map(|it| (it.time_us, it.data.clone()))
            .collect();
        all.sort();
        all.dedup();
        all
    };
    assert_eq!(sets(&again), sets(&first));
}

/// Missing files, sockets (which need a live recording) and invalid patterns are refused with a
/// message that names `--alerts`. The recorder counts and skips torn parts of lines.
#[test]
fn what_cannot_be_read_is_told() {
    let Some(capture) = shared("traces/apps/ak-dns-mx.pcap") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let (text, into) = (
        capture.display().to_string(),
        dir.path().display().to_string(),
    );
    let ask = |alerts: &str| record(&["-r", &text, "--alerts", alerts, "-w", &into]).0;
    for (alerts, code) in [
        (format!("{into}/none*.json"), 1),
        ("unix:/tmp/x".to_owned(), 2),
        ("unix:".to_owned(), 2),
        ("/none*/eve.json".to_owned(), 1),
        ("/***/eve.json".to_owned(), 2),
    ] {
        let output = ask(&alerts);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{alerts}: {}",
            stderr(&output)
        );
        assert!(stderr(&output).contains("--alerts"), "{}", stderr(&output));
    }
    let eve = shared("eve/ak-dns-mx.alerts.json").unwrap();
    let line = fs::read_to_string(eve).unwrap();
    let line = line.lines().next().unwrap();
    let torn = dir.path().join("torn.json");
    fs::write(&torn, format!("{}{line}\n{}", &line[..99], &line[..300])).unwrap();
    let run = run(&capture, &torn, &[]);
    assert_eq!(run.summary["alerts"]["acted"], 1);
    assert_eq!(run.summary["alerts"]["lines"]["torn"], 2);
}
