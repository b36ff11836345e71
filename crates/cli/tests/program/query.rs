//! The command `query`, which asks a recorder over HTTP at its unix socket.

use std::{
    fs::{self, File},
    io::{BufReader, Read as _},
    path::Path,
    process::{Command, Output, Stdio},
    time::Instant,
};

use retroscope_pcapfile::CaptureReader;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{
    recording::{DEADLINE, Recording, packets},
    support::PROGRAM,
};

/// `query` writes packets into a file and a pipe, and prints a verdict. A refused query prints a
/// message and changes no file.
#[test]
fn packets_of_the_past_come_with_a_verdict() {
    let recording = Recording::start(&["--trigger", "tcp port 9"]);
    recording.wait_for_packets(20_000);
    let file = recording.folder.path().join("answer.pcapng");
    let path = file.to_str().unwrap();
    let output = recording.run(&["query", "-w", path]);
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    let count = packets(CaptureReader::open(&file).unwrap());
    assert!(count >= 20_000, "{said}");
    assert!(
        said.contains(&format!("{path}: {count} packets from 2")) && said.contains("Z: complete"),
        "{said}"
    );
    let output = recording.run(&["query", "-w", "-", "--last", "1s", "port", "9"]);
    assert!(output.status.success(), "{output:?}");
    assert!(packets(CaptureReader::new(&output.stdout[..]).unwrap()) < count);
    for (code, wrong) in [
        (2, &["--last", "1s", "port", "prot"][..]),
        (2, &["--from", "yesterday"]),
        (2, &["--from", "7", "--to", "6"]),
        (2, &["--newest"]),
        (2, &["--community-id", "2:x"]),
        (2, &["--count"]),
        (2, &["--ring-file", path]),
    ] {
        let refused = recording.refused(code, &[&["query", "-w", path], wrong].concat());
        assert!(!refused.is_empty());
    }
    assert_eq!(packets(CaptureReader::open(&file).unwrap()), count);
    recording.told(&["stop"]);
    assert_eq!(recording.end().0.code(), Some(0));
}

/// `query` with limits, truncated packets, an unknown interface, a resumed query, and `--count`.
#[test]
fn a_query_may_want_less_than_all() {
    let recording = Recording::start(&["--trigger", "tcp port 9"]);
    recording.wait_for_packets(20_000);
    let file = recording.folder.path().join("answer.pcapng");
    let path = file.to_str().unwrap();
    let ask = |arguments: &[&str]| {
        let report = recording.asked(&[&["query", "-w", path], arguments].concat());
        let count = packets(CaptureReader::open(&file).unwrap());
        assert_eq!(report["packets"].as_u64(), Some(count), "{arguments:?}");
        report
    };
    assert_eq!(ask(&["-c", "100"])["packets"], 100);
    let first = ask(&[
        "--limit-packets",
        "100",
        "--to",
        "2100-01-01T00:00:00+02:00",
    ]);
    let newest = ask(&["--newest", "-c", "100"]);
    assert_eq!(newest["packets"], 100);
    assert!(newest["from"].as_str() >= first["from"].as_str());
    let bytes = ask(&["--limit-bytes", "1KiB"])["bytes"].as_u64();
    assert!((1..=1024).contains(&bytes.unwrap()), "{bytes:?}");
    assert_eq!(ask(&["-i", "nothing here"])["packets"], 0);

    ask(&["-c", "100", "--snaplen", "20"]);
    let mut capture = CaptureReader::open(&file).unwrap();
    while let Some(packet) = capture.next().unwrap() {
        assert_eq!(packet.data.len(), 20);
    }

    // A resumed query continues after the last packet of the first query.
    let ids = first["after"].as_array().unwrap();
    let after: Vec<&str> = ids.iter().map(|id| id.as_str().unwrap()).collect();
    let mut arguments = vec!["-c", "100"];
    arguments.extend(after.iter().flat_map(|id| ["--after", id]));
    let second = ask(&arguments);
    assert_eq!(second["packets"], 100);
    assert_ne!(second["after"], first["after"]);

    let count = recording.asked(&["query", "--count", "udp"]);
    assert!(count["packets"].as_u64() >= Some(10_000), "{count}");
    assert_eq!(count["clipped"], Value::Null);
    let clipped = recording.asked(&["query", "--count", "--last", "5m"]);
    let outcome = (&clipped["verdict"], &clipped["clipped"][0]);
    assert_eq!(outcome, (&"complete".into(), &"start".into()), "{clipped}");
    let told = recording.told(&["query", "--count", "--last", "5m"]);
    assert!(told.contains("clipped by the start"), "{told}");
    let told = recording.told(&["query", "--count", "--last", "1s", "less 10"]);
    assert!(
        told.starts_with("0 packets from 2") && told.contains("complete"),
        "{told}"
    );
    recording.told(&["stop"]);
    assert_eq!(recording.end().0.code(), Some(0));
}

/// `query --follow` writes new packets until ^C or the end of the recording. The file then has all
/// reported packets, and the verdict is complete.
#[test]
fn a_follow_goes_on_until_it_is_interrupted() {
    let recording = Recording::start(&["--trigger", "tcp port 9"]);
    let file = recording.folder.path().join("followed.pcapng");
    let following = |file: &Path| {
        Command::new(PROGRAM)
            .args(["query", "--follow", "--json", "--socket"])
            .arg(recording.socket())
            .arg("-w")
            .arg(file)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let child = following(&file);
    let deadline = Instant::now() + DEADLINE;
    let enough = 2_000_000;
    while File::open(&file)
        .and_then(|file| file.metadata())
        .map_or(0, |file| file.len())
        < enough
    {
        assert!(Instant::now() < deadline, "nothing follows");
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let whole = |output: Output, file: &Path, ended_by: &str| {
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(0), "{report}");
        assert_eq!(report["verdict"], "complete");
        assert_eq!(report["clipped"][0], ended_by, "{report}");
        let count = packets(CaptureReader::open(file).unwrap());
        assert_eq!(report["packets"], count, "{report}");
        count
    };
    assert!(whole(output, &file, "cancelled") > 0);

    // The test interrupts one query as soon as the query's file has bytes. A further query goes on
    // until the recording ends.
    let folder = tempfile::tempdir().unwrap();
    let begun = |name: &str| {
        let file = folder.path().join(name);
        let child = following(&file);
        while fs::metadata(&file).map_or(0, |file| file.len()) == 0 {
            assert!(Instant::now() < deadline, "nothing follows");
        }
        (file, child)
    };
    let (file, child) = begun("at once");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    whole(child.wait_with_output().unwrap(), &file, "cancelled");
    let (file, child) = begun("to the end");
    recording.told(&["stop"]);
    assert_eq!(recording.end().0.code(), Some(0));
    assert!(whole(child.wait_with_output().unwrap(), &file, "end") > 0);
}

/// A reader that stops early causes no error and no message.
#[test]
fn a_broken_pipe_is_a_success() {
    let recording = Recording::start(&["--trigger", "tcp port 9"]);
    recording.wait_for_packets(20_000);
    let mut child = Command::new(PROGRAM)
        .args(["query", "--follow", "-w", "-", "--socket"])
        .arg(recording.socket())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    out.read_exact(&mut [0; 1000]).unwrap();
    drop(out);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    recording.told(&["stop"]);
    assert_eq!(recording.end().0.code(), Some(0));
}

/// A query for packets that the ring has overwritten gives exit code 3, and its verdict is
/// incomplete.
#[test]
fn what_was_overwritten_is_missing() {
    let traffic = ["-i", "generate:flows=5,size=1500,rate=40kpps"];
    let recording = Recording::start(&[&traffic[..], &["--trigger", "tcp port 9"]].concat());
    let deadline = Instant::now() + DEADLINE;
    while recording.status()["ring"]["evicted"] == 0 {
        assert!(Instant::now() < deadline, "nothing is overwritten");
    }
    let output = recording.run(&["query", "--count", "--from", "0"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(told.contains("incomplete"), "{told}");
    recording.told(&["stop"]);
    assert_eq!(recording.end().0.code(), Some(0));
}
