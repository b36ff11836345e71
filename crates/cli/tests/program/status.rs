//! `record --ring-file` and the key `ring-memfd`, and the commands `status` and `query` that read
//! the rings.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Child, ChildStderr, Command, Output, Stdio},
    time::{Duration, Instant},
};

use retroscope_pcapfile::CaptureReader;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::PROGRAM;

/// Generated traffic, which needs no privilege: 10,000 packets a second.
const TRAFFIC: &str = "generate:flows=10,rate=10kpps";

/// A recorder that is killed when this value is dropped, for example if the test fails.
struct Recording {
    child: Child,
    words: BufReader<ChildStderr>,
}

impl Recording {
    fn start(directory: &Path, arguments: &[&str]) -> Self {
        Self::of(TRAFFIC, directory, arguments)
    }

    fn of(traffic: &str, directory: &Path, arguments: &[&str]) -> Self {
        let mut child = Command::new(PROGRAM)
            .args(["record", "-i", traffic, "--ring", "32MiB", "-w"])
            .arg(directory.join("dumps"))
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let words = BufReader::new(child.stderr.take().unwrap());
        Self { child, words }
    }

    /// The path in the line `the ring is PATH: …`.
    fn ring(&mut self) -> String {
        let mut said = String::new();
        while self.words.read_line(&mut said).unwrap() > 0 {
            let line = said.lines().last().unwrap();
            if let Some(rest) = line.strip_prefix("the ring is ") {
                let (path, command) = rest.split_once(": ").unwrap();
                assert_eq!(command, format!("retroscope status --ring-file {path}"));
                return path.to_owned();
            }
        }
        panic!("it never said where its ring is: {said}");
    }

    fn signal(&mut self, signal: Signal) -> std::process::ExitStatus {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        self.child.wait().unwrap()
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        // The process has already ended unless the test failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn status(path: &str, more: &[&str]) -> Output {
    let mut command = Command::new(PROGRAM);
    command.args(["status", "--ring-file", path]).args(more);
    command.output().unwrap()
}

fn query(path: &str, more: &[&str]) -> Output {
    let mut command = Command::new(PROGRAM);
    command.args(["query", "--ring-file", path]).args(more);
    command.output().unwrap()
}

/// Causes of missing packets in a query's report.
fn causes(report: &Value) -> Vec<&str> {
    let missing = report["missing"].as_array().unwrap();
    missing
        .iter()
        .map(|missing| missing["cause"].as_str().unwrap())
        .collect()
}

fn status_json(path: &str, more: &[&str]) -> Value {
    let output = status(path, &[&["--json"], more].concat());
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), 1);
    serde_json::from_str(&text).unwrap()
}

/// Repeats `status` until the ring contains packets.
fn status_with_packets(path: &str) -> Value {
    let start = Instant::now();
    loop {
        let json = status_json(path, &["--buckets"]);
        if json["packets"].as_u64().unwrap() > 0 {
            return json;
        }
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "no packets: {json}"
        );
    }
}

fn check_running(json: &Value, process: u32) {
    assert_eq!(json["writer"]["state"], "running");
    assert_eq!(json["writer"]["process"], process);
    assert_eq!(json["writer"]["this_boot"], true);
    assert_eq!(json["bytes"], 32 << 20);
    assert!(json["created"].as_str().unwrap().ends_with('Z'));
    assert_eq!(json["interfaces"][0]["link_type"], 1);
    assert_eq!(json["interfaces_unlisted"], 0);
    let list = json["bucket_list"].as_array().unwrap();
    let packets: u64 = list.iter().map(|b| b["packets"].as_u64().unwrap()).sum();
    assert_eq!(json["packets"], packets);
    let buckets = &json["buckets"];
    let counts = ["free", "claimed", "open", "closed", "damaged"];
    let counts: u64 = counts
        .iter()
        .map(|state| buckets[state].as_u64().unwrap())
        .sum();
    assert_eq!(buckets["total"], counts);
    assert!(json["held_seconds"].as_f64().unwrap() >= 0.0);
}

#[test]
fn a_ring_in_a_memfd_is_read_while_it_runs() {
    let directory = TempDir::new().unwrap();
    let mut recording = Recording::start(directory.path(), &["--set", "ring-memfd=true"]);
    let ring = recording.ring();
    assert!(ring.starts_with(&format!("/proc/{}/fd/", recording.child.id())));
    check_running(&status_with_packets(&ring), recording.child.id());
    let text = String::from_utf8(status(&ring, &["--buckets"]).stdout).unwrap();
    assert!(
        text.contains("32 MiB") && text.contains(" running, "),
        "{text}"
    );
    assert!(
        text.contains("\nhistory   ") && text.contains("generation"),
        "{text}"
    );
    assert!(text.contains("captured  generate"), "{text}");
    assert!(recording.signal(Signal::INT).success());
    assert_eq!(
        status(&ring, &[]).status.code(),
        Some(1),
        "gone with its process"
    );
}

#[test]
fn a_ring_file_stays_and_says_how_it_ended() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("ring").display().to_string();
    let start = || Recording::start(directory.path(), &["--ring-file", &path]);
    let mut recording = start();
    assert_eq!(recording.ring(), path);
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    check_running(&status_with_packets(&path), recording.child.id());

    // A second recorder does not take over the ring.
    let mut second = start();
    assert_eq!(second.child.wait().unwrap().code(), Some(1));
    let mut said = String::new();
    second.words.read_to_string(&mut said).unwrap();
    let last = said.lines().last();
    assert!(last.is_some_and(|line| line.contains(&path)), "{said}");

    assert!(recording.signal(Signal::INT).success());
    let ended = status_json(&path, &[]);
    assert_eq!(ended["writer"]["state"], "ended");
    assert!(ended["packets"].as_u64().unwrap() > 0);
    assert_eq!(ended["bucket_list"], Value::Null);

    // The next recorder replaces the ring, and is killed.
    let mut recording = start();
    recording.ring();
    let before = status_with_packets(&path);
    recording.signal(Signal::KILL);
    let killed = status_json(&path, &[]);
    assert_eq!(killed["writer"]["state"], "killed");
    assert!(killed["packets"].as_u64() >= before["packets"].as_u64());
    let text = String::from_utf8(status(&path, &[]).stdout).unwrap();
    assert!(text.contains("killed"), "{text}");

    // A query returns every published packet. Packets that were not yet published are reported as
    // missing.
    let file = directory.path().join("all.pcapng").display().to_string();
    let query = |more: &[&str]| query(&path, more);
    let output = query(&["-w", &file, "--json"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["packets"], killed["packets"]);
    assert_eq!(causes(&report), ["unpublished"]);
    let mode = fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o137, 0, "not for everybody");
    let mut reader = CaptureReader::new(fs::File::open(&file).unwrap()).unwrap();
    let mut written = 0;
    while reader.next().unwrap().is_some() {
        written += 1;
    }
    assert_eq!(written, killed["packets"].as_u64().unwrap());
    // A query for a time before the killed recorder's last publication is complete.
    let from = killed["oldest"].as_str().unwrap();
    let piped = query(&["-w", "-", "--from", from, "--to", from, "udp"]);
    assert_eq!(piped.status.code(), Some(0), "{piped:?}");
    let mut reader = CaptureReader::new(&piped.stdout[..]).unwrap();
    assert!(reader.next().unwrap().is_some());

    // A query with wrong arguments writes no file. In particular, the query cannot overwrite the
    // ring.
    let wrong = [
        query(&["-w", &path]),
        query(&["-w", &file, "no", "filter"]),
        query(&["-w", &file, "--from", "2", "--to", "1"]),
        query(&["-w", &file, "--from", "5m"]),
        query(&["-w", "-", "--json"]),
    ];
    for output in wrong {
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(output.stdout.is_empty());
    }
    assert_eq!(status_json(&path, &[])["packets"], killed["packets"]);
    assert!(fs::metadata(&file).unwrap().len() > 1000, "left alone");
}

#[test]
fn what_a_recorder_published_before_it_was_killed_comes_out() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("ring").display().to_string();
    let mut recording = Recording::of(
        "generate:flows=10",
        directory.path(),
        &["--ring-file", &path],
    );
    recording.ring();
    // The recorder stores packets at full speed. The test waits until the recorder has stored 100
    // MiB, more than three times the ring.
    let start = Instant::now();
    while status_json(&path, &[])["stored_bytes"].as_u64() < Some(100 << 20) {
        assert!(start.elapsed() < Duration::from_secs(20));
    }
    recording.signal(Signal::KILL);
    let killed = status_json(&path, &[]);
    let file = directory.path().join("all.pcapng").display().to_string();
    let output = query(&path, &["-w", &file, "--json", "--from", "0"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["packets"], killed["packets"]);
    assert_eq!(causes(&report), ["evicted", "unpublished"]);
    let packets = killed["packets"].as_u64().unwrap();
    let evicted = report["missing"][0]["at_most"].as_u64().unwrap();
    assert!(packets + evicted >= killed["stored_packets"].as_u64().unwrap());

    // If the reader of stdout closes the pipe, `query` succeeds.
    let mut command = Command::new(PROGRAM);
    command.args(["query", "--ring-file", &path, "-w", "-"]);
    let mut left = command.stdout(Stdio::piped()).spawn().unwrap();
    drop(left.stdout.take());
    assert!(left.wait().unwrap().success());
}

#[test]
fn what_is_no_ring_is_told_in_one_sentence() {
    let directory = TempDir::new().unwrap();
    let letter = directory.path().join("letter");
    fs::write(&letter, "x".repeat(10_000)).unwrap();
    let short = directory.path().join("short");
    fs::write(&short, "x").unwrap();
    let nowhere = Path::new("/nonexistent");
    for path in [letter.as_path(), short.as_path(), directory.path(), nowhere] {
        let path = path.to_str().unwrap();
        let output = status(path, &[]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains(path) && text.lines().count() == 1, "{text}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn a_file_that_is_something_else_is_not_replaced() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("letter");
    fs::write(&path, "to a friend, in more than eight bytes").unwrap();
    let run = |file: &str| {
        let mut recording = Recording::start(directory.path(), &["--ring-file", file]);
        let code = recording.child.wait().unwrap().code();
        let mut said = String::new();
        recording.words.read_to_string(&mut said).unwrap();
        (code, said)
    };
    let (code, said) = run(path.to_str().unwrap());
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(path.to_str().unwrap()), "{said}");
    assert!(
        fs::read_to_string(&path)
            .unwrap()
            .starts_with("to a friend")
    );
    let (code, said) = run("/nonexistent/ring");
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("/nonexistent/ring: open: "), "{said}");
    let both = Recording::start(
        directory.path(),
        &["--set", "ring-memfd=true", "--ring-file", "x"],
    )
    .child
    .wait();
    assert_eq!(both.unwrap().code(), Some(2));
}
