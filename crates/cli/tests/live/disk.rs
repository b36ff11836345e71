//! Disks that fill up or turn read-only lose dumps, say so, and never stop the recording.
//!
//! The dump directory is a tmpfs in a mount namespace of the recorder's own; it is reached through `/proc/PID/root`.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::{Value, json};

use crate::{
    capture,
    namespace::Namespace,
    recorder::{Outcome, Recorder},
    shared,
    traffic::{Sender, udp},
};

/// What makes a packet of any flow the one that triggers: the first byte of its payload.
const TRIGGER: &str = "udp[8] = 1";

/// A packet of a host's only flow.
fn packet(host: u8, triggers: bool) -> Vec<u8> {
    udp(host, 1000, 60000, &[u8::from(triggers); 958])
}

/// Starts a recorder whose dump directory is a file system of 256 KiB.
fn start(namespace: &Namespace) -> Option<Recorder> {
    // Not the default propagation of unshare(1) is relied on: nothing gets out.
    let wrapper = [
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        r#"mkdir -p "$0" && mount -t tmpfs -o size=256k tmpfs "$0" && exec "$@""#,
        "DIR",
    ];
    let can_mount = Command::new("unshare")
        .args([
            "--mount",
            "--propagation",
            "private",
            "mount",
            "-t",
            "tmpfs",
            "tmpfs",
            "/mnt",
        ])
        .output();
    if !can_mount.is_ok_and(|output| output.status.success()) {
        eprintln!("SKIP: no mounting in a namespace of our own here");
        return None;
    }
    let arguments = [
        "-i",
        "v1",
        "--ring",
        "128MiB",
        "--past",
        "60s",
        "--future",
        "50ms",
        "--trigger",
        TRIGGER,
    ];
    Some(Recorder::start_wrapped(namespace, &wrapper, &arguments))
}

/// The recorder's path of a file or directory, seen from here.
fn seen(recorder: &Recorder, name: &str) -> PathBuf {
    let root = PathBuf::from(format!("/proc/{}/root", recorder.pid().as_raw_nonzero()));
    root.join(recorder.directory().strip_prefix("/").unwrap())
        .join(name)
}

/// The names in the recorder's directory, sorted.
fn names(recorder: &Recorder) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(seen(recorder, ""))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Removes a file and frees its bytes at once: a process that another test is starting may hold it open for an instant.
fn remove(path: &Path) {
    File::options()
        .write(true)
        .open(path)
        .and_then(|file| file.set_len(0))
        .unwrap();
    fs::remove_file(path).unwrap();
}

/// The verdicts of all dumps.
fn verdicts(outcome: &Outcome) -> Vec<&Value> {
    outcome
        .dumps()
        .iter()
        .map(|dump| &dump["verdict"])
        .collect()
}

/// A dump does not fit: it failed, its `.part` stays and is named. Space is made: the next dump succeeds.
#[test]
fn a_full_disk_fails_one_dump() {
    let _machine = shared();
    let Some(namespace) = Namespace::with_veth("full") else {
        return;
    };
    let Some(recorder) = start(&namespace) else {
        return;
    };
    let mut sender = Sender::new(&namespace, "v0");
    // 400 kB in one flow.
    for _ in 0..399 {
        sender.send(&packet(1, false));
    }
    recorder.settle(399);
    sender.send(&packet(1, true));
    let (_, line) = recorder.dumps(1).remove(0);
    assert!(line.contains(": failed: "), "{line}");
    let left = names(&recorder);
    let part = left.iter().find(|name| name.ends_with(".part")).unwrap();
    assert!(
        !left.iter().any(|name| name.ends_with(".pcapng")),
        "{left:?}"
    );
    let readable = capture::readable(&seen(&recorder, part));
    remove(&seen(&recorder, part));
    let part = recorder.directory().join(part);

    sender.send(&packet(2, true));
    recorder.dumps(2);
    let left = names(&recorder);
    let dump = left.iter().find(|name| name.ends_with(".pcapng")).unwrap();
    assert_eq!(capture::read_file(&seen(&recorder, dump)).packets.len(), 1);
    let outcome = recorder.stop();
    outcome.expect_code(3);
    assert_eq!(verdicts(&outcome), [&json!("failed"), &json!("complete")]);
    assert_eq!(outcome.source().stored, 401);
    let failed = &outcome.dumps()[0];
    assert_eq!(failed["file"], part.to_str().unwrap());
    assert!(
        failed["error"].as_str().unwrap().contains("No space left"),
        "{failed}"
    );
    let missing = &failed["missing"][0];
    assert_eq!(missing["cause"], "disk");
    // What the file kept and what the disk refused is all there was.
    assert_eq!(failed["packets"], readable);
    assert_eq!(missing["packets"], 400 - readable);
    assert!(
        outcome.said(&format!("unfinished: {}", part.display())),
        "{:#?}",
        outcome.words
    );
}

/// The file system turns read-only and back.
#[test]
fn a_read_only_disk_fails_one_dump() {
    let _machine = shared();
    let Some(namespace) = Namespace::with_veth("readonly") else {
        return;
    };
    let Some(recorder) = start(&namespace) else {
        return;
    };
    let remount = |how: &str| {
        let pid = recorder.pid().as_raw_nonzero().to_string();
        let output = Command::new("nsenter")
            .args(["-t", &pid, "-m", "mount", "-o", &format!("remount,{how}")])
            .arg(recorder.directory())
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    let mut sender = Sender::new(&namespace, "v0");
    remount("ro");
    sender.send(&packet(1, true));
    let (_, line) = recorder.dumps(1).remove(0);
    assert!(line.contains(": failed: "), "{line}");
    assert_eq!(names(&recorder), Vec::<String>::new());
    remount("rw");
    sender.send(&packet(2, true));
    recorder.dumps(2);
    let outcome = recorder.stop();
    outcome.expect_code(3);
    assert_eq!(verdicts(&outcome), [&json!("failed"), &json!("complete")]);
    let failed = &outcome.dumps()[0];
    assert!(
        failed["error"].as_str().unwrap().contains("Read-only"),
        "{failed}"
    );
    assert_eq!(outcome.source().stored, 2);
}
