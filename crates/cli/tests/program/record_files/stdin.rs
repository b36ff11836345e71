//! `-r -`: packets from stdin give dumps with as many packets as the same packets from a file.
//! Dumps finish while the stream is still open.

use std::{
    fs,
    io::Write,
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;

use super::{S, args, question, run, write_capture};
use crate::support::{PROGRAM, skip, stderr};

/// A test that waits this long has failed.
const DEADLINE: Duration = Duration::from_secs(30);

/// Starts `record -r -` with a window of 0.2 s around each packet to port 60000.
fn start(stdin: Stdio, out: &Path) -> Child {
    let question = question(&["udp port 60000"], "udp", S / 10, S / 10);
    Command::new(PROGRAM)
        .args(["record", "--json"])
        .args(args(&[Path::new("-")], &question, out))
        .args(["--set", "reorder-window=1ms", "--ring", "32MiB"])
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits for the end. Returns the number of packets of each dump. Only these numbers are compared,
/// because the files contain the interface name, which is `-` here.
fn packets(child: Child, what: &str) -> Vec<u64> {
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{what}: {}", stderr(&output));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["sources"][0]["name"], "-", "{what}");
    assert_eq!(json["sources"][0]["received"], 20_000, "{what}");
    let dumps = json["dumps"].as_array().unwrap();
    dumps
        .iter()
        .map(|dump| dump["packets"].as_u64().unwrap())
        .collect()
}

/// 20,000 frames that are 1 ms apart, with two trigger packets.
fn capture(dir: &Path) -> PathBuf {
    let path = dir.join("in.pcap");
    write_capture(&path, 20_000, 100, S / 1000, None);
    path
}

/// The number of packets of each dump if `record` reads the capture as a file.
fn expected(dir: &Path, capture: &Path) -> Vec<u64> {
    let question = question(&["udp port 60000"], "udp", S / 10, S / 10);
    let (_, json) = run(&args(&[capture], &question, &dir.join("file")), &[]);
    let json = json.unwrap();
    let dumps = json["dumps"].as_array().unwrap();
    let packets: Vec<_> = dumps
        .iter()
        .map(|dump| dump["packets"].as_u64().unwrap())
        .collect();
    assert_eq!(packets, [201, 201]);
    packets
}

#[test]
fn pipes_sockets_and_files_are_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let capture = capture(dir.path());
    let expected = expected(dir.path(), &capture);
    let bytes = fs::read(&capture).unwrap();

    let mut child = start(Stdio::piped(), &dir.path().join("pipe"));
    let mut pipe = child.stdin.take().unwrap();
    // Pieces end anywhere, even within a header.
    bytes
        .chunks(1009)
        .for_each(|piece| pipe.write_all(piece).unwrap());
    drop(pipe);
    assert_eq!(packets(child, "pipe"), expected);

    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let child = start(OwnedFd::from(theirs).into(), &dir.path().join("socket"));
    ours.write_all(&bytes).unwrap();
    drop(ours);
    assert_eq!(packets(child, "socket"), expected);

    let file = fs::File::open(&capture).unwrap();
    let child = start(file.into(), &dir.path().join("redirected"));
    assert_eq!(packets(child, "redirected file"), expected);
}

#[test]
fn compressed_streams_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let capture = capture(dir.path());
    let expected = expected(dir.path(), &capture);
    for tool in ["gzip", "zstd"] {
        let packer = Command::new(tool)
            .arg("-c")
            .arg(&capture)
            .stdout(Stdio::piped())
            .spawn();
        let Ok(mut packer) = packer else {
            skip(&format!("no {tool} to pack with"));
            continue;
        };
        let packed = packer.stdout.take().unwrap();
        let child = start(packed.into(), &dir.path().join(tool));
        assert_eq!(packets(child, tool), expected);
        packer.wait().unwrap();
    }
}

/// A dump finishes after its window, even if the stream is open and silent.
#[test]
fn dumps_do_not_wait_for_the_end_of_the_stream() {
    let dir = tempfile::tempdir().unwrap();
    let capture = capture(dir.path());
    let bytes = fs::read(&capture).unwrap();
    let out = dir.path().join("out");
    let mut child = start(Stdio::piped(), &out);
    let mut pipe = child.stdin.take().unwrap();
    // The trigger is frame 5001, and its window ends 100 frames later. The data end within a
    // record.
    let part = 24 + 6000 * 116 + 50;
    pipe.write_all(&bytes[..part]).unwrap();
    let deadline = Instant::now() + DEADLINE;
    // Check only names, because a file may lose its `.part` suffix between listing and reading.
    let is_finished = |out: &Path| {
        let entries = fs::read_dir(out).into_iter().flatten().flatten();
        entries
            .map(|entry| entry.file_name())
            .any(|name| name.to_string_lossy().ends_with(".pcapng"))
    };
    while !is_finished(&out) {
        assert_eq!(child.try_wait().unwrap(), None, "it ended");
        assert!(Instant::now() < deadline, "no dump before the end");
        std::thread::yield_now();
    }
    pipe.write_all(&bytes[part..]).unwrap();
    drop(pipe);
    assert_eq!(packets(child, "stream"), [201, 201]);
}

#[test]
fn what_is_no_capture_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = start(Stdio::piped(), dir.path());
    let mut pipe = child.stdin.take().unwrap();
    pipe.write_all(b"words, words, words, words").unwrap();
    drop(pipe);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("retroscope: stdin: "),
        "{}",
        stderr(&output)
    );
}
