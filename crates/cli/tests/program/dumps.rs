//! `dumps` and `rules test`, as users type them.

use std::{fs, process::Command};

use retroscope_pcapfile::CaptureReader;
use serde_json::Value;

use crate::{
    recording::{Recording, packets},
    support::PROGRAM,
};

/// A user lists, copies, holds, releases and deletes a dump. A held dump cannot be deleted.
#[test]
fn dumps_are_got_held_and_deleted() {
    let recording = Recording::start(&["--past", "1s", "--future", "50ms", "--trigger", "port 9"]);
    recording.wait_for_packets(5000);
    let mut events = recording.events();
    recording.told(&["trigger", "--json"]);
    events.until(|event| event["event"] == "finished");
    let table = recording.told(&["dumps"]);
    assert!(table.contains("manual") && table.contains("KiB"), "{table}");

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("got.pcapng");
    let path = file.to_str().unwrap();
    let output = recording.run(&["dumps", "get", "1", "-w", path]);
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    let count = packets(CaptureReader::open(&file).unwrap());
    let expected = format!("{path}: {count} packets of rule 'manual': complete");
    assert!(said.contains(&expected), "{said}");
    let piped = recording.run(&["dumps", "get", "1", "-w", "-"]);
    assert_eq!(piped.stdout, fs::read(&file).unwrap());
    let dump = recording.asked(&["dumps", "get", "1", "-w", path]);
    let id = dump["stored"]["id"].as_str().unwrap();
    recording.refused(2, &["dumps", "get", "1", "-w", "-", "--json"]);
    recording.refused(2, &["dumps", "get", "1"]);

    assert_eq!(recording.told(&["dumps", "hold", "1"]), "dump 1 is held\n");
    assert_eq!(
        recording.told(&["dumps", "hold", id]),
        format!("dump {id} was held\n")
    );
    assert!(recording.told(&["dumps", "list"]).contains("held"));
    let why = recording.refused(1, &["dumps", "delete", "1"]);
    assert!(why.contains("release it first"), "{why}");
    assert_eq!(
        recording.told(&["dumps", "release", "1"]),
        "dump 1 is released\n"
    );
    assert_eq!(
        recording.told(&["dumps", "release", "1"]),
        "dump 1 was not held\n"
    );
    assert_eq!(
        recording.told(&["dumps", "delete", "1"]),
        "dump 1 is deleted\n"
    );
    assert!(recording.told(&["dumps"]).contains("none any more"));
    let before = fs::read(&file).unwrap();
    for dump in ["1", "77", "no-such"] {
        let why = recording.refused(1, &["dumps", "get", dump, "-w", path]);
        assert!(why.contains("no dump"), "{why}");
    }
    assert_eq!(
        fs::read(&file).unwrap(),
        before,
        "a refusal touches no file"
    );

    // `dumps get` copies an open dump while the dump grows, until the recording ends.
    recording.told(&["trigger", "--future", "1h"]);
    let child = Command::new(PROGRAM)
        .args(["dumps", "get", "2", "-w", path, "--socket"])
        .arg(recording.socket())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let deadline = std::time::Instant::now() + crate::recording::DEADLINE;
    while !CaptureReader::open(&file).is_ok_and(|file| packets_so_far(file) >= 10_000) {
        assert!(std::time::Instant::now() < deadline, "nothing comes");
    }
    recording.told(&["stop"]);
    assert_eq!(recording.end().0.code(), Some(0));
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(packets(CaptureReader::open(&file).unwrap()) >= 10_000);
}

/// Number of packets in a file that may be truncated.
fn packets_so_far<R: std::io::Read>(mut capture: CaptureReader<R>) -> u64 {
    let mut count = 0;
    while let Ok(Some(_)) = capture.next() {
        count += 1;
    }
    count
}

/// `rules test` reports how often a rule would have triggered on the packets in the ring, without
/// adding the rule.
#[test]
fn a_rule_is_tried_before_it_is_added() {
    let recording = Recording::start(&["--trigger", "port 9"]);
    recording.wait_for_packets(5000);
    let tested: Value = recording.asked(&["rules", "test", "less", "9000"]);
    assert!(tested["hits"].as_u64() >= Some(5000), "{tested}");
    let text = recording.told(&["rules", "test", "--last", "30s", "--list", "3", "less 9000"]);
    let lines: Vec<&str> = text.lines().collect();
    assert!(
        lines[0].contains(" hits in ") && lines[0].contains("complete"),
        "{text}"
    );
    assert_eq!(lines.len(), 5, "{text}");
    assert!(lines[4].starts_with("(and "), "{text}");
    let none = recording.told(&["rules", "test", "less 9"]);
    assert!(
        none.starts_with("0 hits in ") && none.lines().count() == 1,
        "{none}"
    );
    recording.refused(2, &["rules", "test", "udp prt"]);
    recording.refused(2, &["rules", "test"]);
    recording.told(&["stop"]);
    assert_eq!(recording.end().0.code(), Some(0));
}
