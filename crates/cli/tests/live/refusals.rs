//! Interfaces that cannot be recorded or sent on are refused by one line on stderr. A further test
//! checks who owns the created files.

use std::{fs, os::unix::fs::MetadataExt, process::Command};

use tempfile::TempDir;

use crate::{
    capture,
    namespace::{Namespace, try_ip},
    privileges::copy_for_anyone,
    recorder::{PROGRAM, Recorder, run},
    shared,
    traffic::{Sender, udp},
};

/// User ID of nobody.
const NOBODY: u32 = 65534;

/// Runs a command that must end with exit code `code` and one line on stderr. Returns that line.
fn refusal(namespace: &Namespace, wrapper: &[&str], arguments: &[&str], code: i32) -> String {
    let (got, words) = run(namespace, wrapper, arguments);
    assert_eq!(got, code, "{arguments:?}: {words}");
    let lines: Vec<&str> = words.lines().collect();
    assert_eq!(lines.len(), 1, "{arguments:?}: {words}");
    lines[0].to_owned()
}

/// A user without CAP_NET_RAW is refused. The message names two remedies: sudo, and setcap.
#[test]
fn without_the_capability() {
    let _machine = shared();
    let Some(namespace) = Namespace::new("nocap") else {
        return;
    };
    if Command::new("setpriv").arg("--version").output().is_err() {
        eprintln!("SKIP: no setpriv");
        return;
    }
    let (_folder, program) = copy_for_anyone();
    let program = program.to_str().unwrap();
    let line = refusal(
        &namespace,
        &[
            "setpriv",
            "--reuid",
            "65534",
            "--regid",
            "65534",
            "--clear-groups",
        ],
        &[
            program,
            "record",
            "-q",
            "-i",
            "lo",
            "--trigger",
            "udp",
            "-w",
            "/tmp",
        ],
        1,
    );
    assert!(line.contains(&format!("sudo {program}")), "{line}");
    assert!(
        line.contains(&format!("sudo setcap cap_net_raw=eip {program}")),
        "{line}"
    );
}

/// Interfaces that do not exist or have an unsupported link type are refused. For a missing
/// interface, the message lists the existing interfaces.
#[test]
fn interfaces_that_cannot_be_recorded() {
    let _machine = shared();
    let Some(namespace) = Namespace::with_veth("refuse") else {
        return;
    };
    let directory = TempDir::new().unwrap();
    let record = |interface: &str| {
        let directory = directory.path().to_str().unwrap();
        refusal(
            &namespace,
            &[],
            &[
                PROGRAM,
                "record",
                "-i",
                interface,
                "--trigger",
                "udp",
                "-w",
                directory,
            ],
            1,
        )
    };
    let line = record("nosuch");
    assert!(
        line.contains(" nosuch;") && (line.contains("v0, v1") || line.contains("v1, v0")),
        "{line}"
    );
    let sit = "link add s0 type sit remote 10.1.1.1 local 10.1.1.2";
    if namespace.enter(|| try_ip(sit)).status.success() {
        assert!(record("s0").contains("s0 (SIT tunnel)"));
    } else {
        eprintln!("SKIP: no SIT tunnels here");
    }
}

#[test]
fn interfaces_that_cannot_be_sent_on() {
    let _machine = shared();
    let Some(namespace) = Namespace::with_veth("sendto") else {
        return;
    };
    let generate = |arguments: &str| {
        let mut all = vec![PROGRAM, "generate", "--yes", "-c", "20"];
        all.extend(arguments.split(' '));
        refusal(&namespace, &[], &all, 1)
    };
    let line = generate("-i nosuch");
    for name in ["nosuch", "v0", "v1"] {
        assert!(line.contains(name), "{line}");
    }
    let line = generate("-i v0 --size 2000");
    assert!(line.contains(" 2000 ") && line.contains(" 1514 "), "{line}");
    namespace.ip("link set v0 down");
    let line = generate("-i v0");
    assert!(line.contains("sudo ip link set v0 up"), "{line}");
}

/// Under sudo, dumps and their directory belong to the user who called sudo. Only this user and the
/// user's group may read them.
#[test]
fn under_sudo_files_belong_to_the_caller() {
    let _machine = shared();
    let Some(namespace) = Namespace::with_veth("sudo") else {
        return;
    };
    let recorder = Recorder::start_wrapped(
        &namespace,
        &["env", "SUDO_UID=65534", "SUDO_GID=65534"],
        &[
            "-i",
            "v1",
            "--ring",
            "128MiB",
            "--past",
            "1s",
            "--future",
            "10ms",
            "--trigger",
            "udp port 60000",
        ],
    );
    Sender::new(&namespace, "v0").send(&udp(1, 1000, 60000, &[0; 8]));
    recorder.dumps(1);
    let directory = recorder.directory().to_owned();
    let outcome = recorder.stop();
    outcome.expect_code(0);
    let file = capture::path(&outcome.dumps()[0]);
    let rights = |path: &std::path::Path| {
        let metadata = fs::metadata(path).unwrap();
        (metadata.uid(), metadata.gid(), metadata.mode() & 0o7777)
    };
    assert_eq!(rights(&file), (NOBODY, NOBODY, 0o640));
    assert_eq!(
        rights(&file.with_extension("json")),
        (NOBODY, NOBODY, 0o640)
    );
    assert_eq!(rights(&directory), (NOBODY, NOBODY, 0o750));
}
