//! After everything is open, every thread drops the privileges that it no longer needs, and the
//! recording continues. Threads that receive or analyze packets, or compile filters, keep no
//! capability. Other threads, such as the dumper's, may keep CAP_DAC_OVERRIDE.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::PathBuf,
    process::Command,
    time::Instant,
};

use tempfile::TempDir;

use crate::{
    capture,
    namespace::Namespace,
    recorder::{DEADLINE, PROGRAM, Recorder},
    shared,
    traffic::{Sender, udp},
};

/// User ID of nobody.
pub(crate) const NOBODY: &str = "65534";

/// A wrapper that lets every user write to the parent folder of the dump directory, then runs the
/// recorder.
pub(crate) const OPEN_FOLDER: [&str; 5] = [
    "sh",
    "-c",
    r#"chmod 777 "${1%/dumps}" && shift && exec "$@""#,
    "sh",
    "DIR",
];

/// The name of each thread, and the value of a field of its status (proc(5)).
pub(crate) fn of_threads(recorder: &Recorder, field: &str) -> Vec<(String, String)> {
    let pid = recorder.pid().as_raw_nonzero();
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let one = |thread: std::io::Result<fs::DirEntry>| {
        // If the file does not exist, the thread has ended.
        let status = fs::read_to_string(thread.unwrap().path().join("status")).ok()?;
        let value = |field| {
            let mut lines = status.lines();
            let value = lines.find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
            value.unwrap().trim().to_owned()
        };
        Some((value("Name"), value(field)))
    };
    threads.filter_map(one).collect()
}

/// A wrapper that creates the dump directory for nobody, with mode 700, then runs the recorder.
pub(crate) const THEIR_FOLDER: [&str; 5] = [
    "sh",
    "-c",
    r#"mkdir -p "$1" && chown 65534:65534 "$1" && chmod 700 "$1" && shift && exec "$@""#,
    "sh",
    "DIR",
];

/// An empty capability set.
pub(crate) const NOTHING: &str = "0000000000000000";

/// CAP_DAC_OVERRIDE alone.
pub(crate) const WRITE_ANYWHERE: &str = "0000000000000002";

/// Name and permitted capabilities of each thread. Waits until all threads have their own names,
/// because a new thread first has the name of its parent.
pub(crate) fn threads(recorder: &Recorder) -> Vec<(String, String)> {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let threads = of_threads(recorder, "CapPrm");
        let named = |name: &str| threads.iter().filter(|(it, _)| it == name).count();
        if named("starter") == 0 && named("retroscope") == 1 {
            return threads;
        }
        assert!(Instant::now() < deadline, "{threads:?}");
        std::thread::yield_now();
    }
}

/// Asserts that no thread has capabilities, and that no thread can get capabilities again.
pub(crate) fn assert_given_up(recorder: &Recorder) {
    for set in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
        let threads = assert_all(recorder, set, NOTHING);
        assert!(threads >= 5, "{threads} threads");
    }
    assert_all(recorder, "NoNewPrivs", "1");
}

/// Asserts that a field of each thread's status has the value `value`. Threads that fill the ring
/// at the start may still be ending, so this function waits for their end. All other threads must
/// have the value at once. Returns the number of threads.
pub(crate) fn assert_all(recorder: &Recorder, field: &str, value: &str) -> usize {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let threads = of_threads(recorder, field);
        // The signal thread starts before privileges are dropped, so the list must contain it.
        assert!(threads.iter().any(|(name, _)| name == "signals"));
        let mut others = threads.iter().filter(|(_, it)| it != value).peekable();
        if others.peek().is_none() {
            return threads.len();
        }
        assert!(
            others.all(|(name, _)| name == "ring-fill") && Instant::now() < deadline,
            "{field}: {threads:?}"
        );
        std::thread::yield_now();
    }
}

/// Sends a packet that triggers, and checks that the dump is complete. Returns the user ID of the
/// owner of the dump's file.
pub(crate) fn record_one(namespace: &Namespace, recorder: Recorder) -> u32 {
    Sender::new(namespace, "v0").send(&udp(1, 1000, 60000, &[1; 8]));
    recorder.dumps(1);
    let outcome = recorder.stop();
    outcome.expect_code(0);
    let dump = &outcome.dumps()[0];
    assert_eq!(capture::read(dump).packets.len(), 1);
    fs::metadata(dump["file"].as_str().unwrap()).unwrap().uid()
}

const ARGUMENTS: [&str; 11] = [
    "-i",
    "v1",
    "--ring",
    "128MiB",
    "--set",
    "rx-threads=2",
    "--future",
    "10ms",
    "--trigger",
    "udp port 60000",
    "-v",
];

#[test]
fn root_keeps_nothing() {
    let _machine = shared();
    let Some(namespace) = Namespace::with_veth("proot") else {
        return;
    };
    let recorder = Recorder::start_with(&namespace, &ARGUMENTS);
    assert_given_up(&recorder);
    assert_eq!(record_one(&namespace, recorder), 0);
}

/// Root without `-Z` keeps CAP_DAC_OVERRIDE in the threads that write dumps to a directory of
/// another user. Threads that receive or analyze packets, or compile filters, keep no capability.
#[test]
fn only_who_writes_may_write_anywhere() {
    let _machine = shared();
    let Some(namespace) = Namespace::with_veth("pwrite") else {
        return;
    };
    let recorder = Recorder::start_wrapped(&namespace, &THEIR_FOLDER, &ARGUMENTS);
    let threads = threads(&recorder);
    for (name, count, set) in [
        ("inserter-", 2, NOTHING),
        ("analyzer", 1, NOTHING),
        ("filter-compiler", 1, NOTHING),
        ("dumper", 1, WRITE_ANYWHERE),
        ("dump-writer-", 4, WRITE_ANYWHERE),
    ] {
        let those = threads.iter().filter(|(it, _)| it.starts_with(name));
        let sets: Vec<_> = those.map(|(_, set)| set.as_str()).collect();
        assert_eq!(sets, vec![set; count], "{name}: {threads:?}");
    }
    assert_eq!(record_one(&namespace, recorder), 0);
}

#[test]
fn root_becomes_a_user() {
    let _machine = shared();
    let Some(namespace) = Namespace::with_veth("puser") else {
        return;
    };
    let user = format!("{NOBODY}:{NOBODY}");
    let arguments = [&ARGUMENTS[..], &["-Z", &user]].concat();
    let recorder = Recorder::start_wrapped(&namespace, &OPEN_FOLDER, &arguments);
    assert_given_up(&recorder);
    for field in ["Uid", "Gid"] {
        assert_all(&recorder, field, &[NOBODY; 4].join("\t"));
    }
    assert_all(&recorder, "Groups", "");
    assert_eq!(record_one(&namespace, recorder).to_string(), NOBODY);
}

/// A copy of the program that every user may run, wherever the checkout is.
///
/// `cp` makes the copy. If the test process wrote the copy, a process that another test starts
/// meanwhile would inherit the open descriptor. Running the copy would then fail (ETXTBSY) until
/// that process executes its own program.
pub(crate) fn copy_for_anyone() -> (TempDir, PathBuf) {
    let folder = TempDir::new().unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let program = folder.path().join("retroscope");
    let status = Command::new("cp").arg(PROGRAM).arg(&program).status();
    assert!(status.unwrap().success());
    (folder, program)
}

/// A user without capabilities starts a program file that got cap_net_raw by `setcap`. The
/// recording works, and no thread keeps a capability.
#[test]
fn file_capabilities_are_enough() {
    let _machine = shared();
    let Some(namespace) = Namespace::with_veth("pfile") else {
        return;
    };
    let (_folder, program) = copy_for_anyone();
    let mut setcap = Command::new("setcap");
    match setcap.arg("cap_net_raw=eip").arg(&program).output() {
        Ok(output) if output.status.success() => {}
        outcome => {
            eprintln!("SKIP: setcap does not work here: {outcome:?}");
            return;
        }
    }
    let start = format!(
        r#"chmod 777 "${{1%/dumps}}" && shift 2 && exec setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups \
           --inh-caps -all --bounding-set +net_raw {} "$@""#,
        program.display()
    );
    // On a file system mounted with nosuid, file capabilities have no effect.
    let probe = [
        "setpriv",
        "--reuid",
        NOBODY,
        "--regid",
        NOBODY,
        "--clear-groups",
    ];
    let program = program.to_str().unwrap();
    let line = [
        &probe[..],
        &[
            program,
            "record",
            "-i",
            "v1",
            "-c",
            "1",
            "--duration",
            "1ms",
            "-w",
            "/proc",
        ],
    ]
    .concat();
    let (_, said) = crate::recorder::run(&namespace, &line[..0], &line);
    if said.contains("no permission to record") {
        eprintln!("SKIP: file capabilities have no effect here (nosuid, no_new_privs): {said}");
        return;
    }
    let wrapper = ["sh", "-c", &start, "sh", "DIR"];
    let recorder = Recorder::start_wrapped(&namespace, &wrapper, &ARGUMENTS);
    assert_given_up(&recorder);
    assert_eq!(record_one(&namespace, recorder).to_string(), NOBODY);
}

/// A user starts the program with cap_net_raw as ambient capability, as systemd does with
/// AmbientCapabilities=CAP_NET_RAW. The recording works, and no thread keeps a capability.
#[test]
fn ambient_capabilities_are_enough() {
    let _machine = shared();
    let Some(namespace) = Namespace::with_veth("pamb") else {
        return;
    };
    if Command::new("setpriv").arg("--version").output().is_err() {
        eprintln!("SKIP: no setpriv");
        return;
    }
    let (_folder, program) = copy_for_anyone();
    // `shift 2` drops the arguments DIR and PROGRAM, because the copy runs instead of PROGRAM.
    let run = format!(
        r#"chmod 777 "${{1%/dumps}}" && shift 2 && exec setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups \
           --inh-caps +net_raw --ambient-caps +net_raw {} "$@""#,
        program.display()
    );
    let wrapper = ["sh", "-c", &run, "sh", "DIR"];
    let recorder = Recorder::start_wrapped(&namespace, &wrapper, &ARGUMENTS);
    assert_given_up(&recorder);
    assert_eq!(record_one(&namespace, recorder).to_string(), NOBODY);
}

#[test]
fn a_user_who_cannot_write_is_refused() {
    let _machine = shared();
    let Some(namespace) = Namespace::with_veth("pdeny") else {
        return;
    };
    let folder = TempDir::new().unwrap();
    let directory = folder.path().to_str().unwrap();
    for (user, words) in [
        ("65534:65534", "cannot write to"),
        ("no-such-user", "no such user"),
    ] {
        let arguments = [
            PROGRAM, "record", "-q", "-i", "v1", "--ring", "128MiB", "-t", "udp", "-w", directory,
            "-Z", user,
        ];
        let (code, said) = crate::recorder::run(&namespace, &[], &arguments);
        assert!(code == 1 || code == 2, "{code}: {said}");
        assert!(said.contains(words), "{said}");
    }
}
