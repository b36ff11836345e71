//! `record` as a service: messages to the service manager, sd_notify(3). The tests receive the
//! messages at their own sockets.

use std::{
    fs,
    io::{BufRead, BufReader, Write as _},
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixDatagram},
    },
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::{
    recording::{DEADLINE, Recording, TRAFFIC, record},
    support::{PROGRAM, skip},
};

/// The receiving side of a service manager.
struct Manager {
    socket: UnixDatagram,
    /// Value of NOTIFY_SOCKET.
    name: String,
}

impl Manager {
    fn at_path(folder: &Path) -> Self {
        let path = folder.join("notify");
        Self::of(
            UnixDatagram::bind(&path).unwrap(),
            path.display().to_string(),
        )
    }

    fn of(socket: UnixDatagram, name: String) -> Self {
        socket.set_read_timeout(Some(DEADLINE)).unwrap();
        Self { socket, name }
    }

    /// Receives the next message.
    fn hear(&self) -> String {
        let mut bytes = [0; 4096];
        let count = self.socket.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..count].to_vec()).unwrap()
    }

    /// Receives messages up to the first message that has a line with this start.
    fn hear_until(&self, begin: &str) -> Vec<String> {
        let deadline = Instant::now() + DEADLINE;
        let mut heard = Vec::new();
        loop {
            let message = self.hear();
            let is_it = message.lines().any(|line| line.starts_with(begin));
            heard.push(message);
            if is_it {
                return heard;
            }
            assert!(Instant::now() < deadline, "no {begin}: {heard:?}");
        }
    }

    fn spawn(&self, folder: TempDir, command: &mut Command) -> Recording {
        let mut child = command
            .env("NOTIFY_SOCKET", &self.name)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let words = child.stderr.take().map(BufReader::new);
        Recording {
            child,
            folder,
            first_words: String::new(),
            words,
        }
    }
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

fn has(messages: &[String], line: &str) -> bool {
    messages.iter().any(|it| it.lines().any(|it| it == line))
}

#[test]
fn a_service_manager_hears_of_a_recording_from_start_to_end() {
    let folder = tempfile::tempdir().unwrap();
    let manager = Manager::at_path(folder.path());
    let config = folder.path().join("c.toml");
    fs::write(&config, "past = '1s'\n").unwrap();
    let mut command = Command::new("env");
    command.args(["--default-signal=HUP", PROGRAM, "record", "--config"]);
    command.arg(&config).arg("-w").arg(folder.path().join("d"));
    command.args(["-i", TRAFFIC, "--ring", "512MiB"]);
    command.arg("--api");
    command.arg(format!("unix:{}", folder.path().join("api").display()));
    command.env("WATCHDOG_USEC", "500000").stdin(Stdio::null());
    let recording = manager.spawn(folder, &mut command);
    // The recorder extends its start time-out while it fills memory, and reports READY only after
    // that.
    let first = manager.hear();
    let (time, status) = first.split_once('\n').unwrap();
    assert_eq!(time, "EXTEND_TIMEOUT_USEC=30000000");
    assert!(status.starts_with("STATUS=filling the ring: "), "{first}");
    let before = manager.hear_until("READY=1");
    let (ready, before) = before.split_last().unwrap();
    assert_eq!(ready, "READY=1\nSTATUS=recording");
    let is_time = |message: &String| message.starts_with("EXTEND_TIMEOUT_USEC=");
    assert!(before.iter().all(is_time), "{before:?}");
    // The next messages contain the state and the watchdog message.
    let mut heard = manager.hear_until("STATUS=");
    let state = heard.last().unwrap().clone();
    for part in ["pps ", "history ", " · lost 0 · triggers 0"] {
        assert!(state.contains(part), "{state}");
    }
    heard.extend(manager.hear_until("STATUS="));
    assert!(has(&heard, "WATCHDOG=1"), "{heard:?}");
    // The recorder announces each reload, by SIGHUP and by the command `reload`, also with an
    // invalid configuration.
    let reloads = |heard: &[String]| {
        let reloading = heard.last().unwrap();
        assert!(reloading.contains("\nMONOTONIC_USEC="), "{reloading}");
        manager.hear_until("READY=1");
    };
    signal(&recording.child, Signal::HUP);
    reloads(&manager.hear_until("RELOADING=1"));
    fs::write(&config, "past = 'x'\n").unwrap();
    signal(&recording.child, Signal::HUP);
    reloads(&manager.hear_until("RELOADING=1"));
    recording.refused(1, &["reload"]);
    reloads(&manager.hear_until("RELOADING=1"));
    signal(&recording.child, Signal::TERM);
    let heard = manager.hear_until("STOPPING=1");
    assert!(!has(&heard, "READY=1"), "{heard:?}");
}

#[test]
fn an_abstract_name_is_told_and_a_watchdog_of_somebody_else_is_not_fed() {
    let folder = tempfile::tempdir().unwrap();
    let name = format!("retroscope-{}", folder.path().display());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let socket = UnixDatagram::bind_addr(&address).unwrap();
    let manager = Manager::of(socket, format!("@{name}"));
    let mut command = record(folder.path(), &[]);
    command
        .env("WATCHDOG_USEC", "100000")
        .env("WATCHDOG_PID", "1");
    let recording = manager.spawn(folder, &mut command);
    let mut heard = manager.hear_until("READY=1");
    // Even without files to reload, the recorder reports RELOADING and READY after SIGHUP.
    signal(&recording.child, Signal::HUP);
    heard.extend(manager.hear_until("RELOADING=1"));
    heard.extend(manager.hear_until("READY=1"));
    heard.extend(manager.hear_until("STATUS="));
    assert!(!has(&heard, "WATCHDOG=1"), "{heard:?}");
    // The recorder also reports a stop by the command `stop`.
    recording.told(&["stop"]);
    manager.hear_until("STOPPING=1");
    assert!(recording.end().0.success());
}

#[test]
fn commands_of_dumps_do_not_speak_for_the_service() {
    let folder = tempfile::tempdir().unwrap();
    let manager = Manager::at_path(folder.path());
    let seen = folder.path().join("seen");
    let post = format!("sh -c 'env >{}'", seen.display());
    let mut command = record(folder.path(), &["--post", &post]);
    command.env("WATCHDOG_USEC", "30000000");
    let recording = manager.spawn(folder, &mut command);
    manager.hear_until("READY=1");
    recording.asked(&["trigger"]);
    signal(&recording.child, Signal::TERM);
    manager.hear_until("STOPPING=1");
    let mut recording = recording;
    recording.child.wait().unwrap();
    let seen = fs::read_to_string(seen).unwrap();
    assert!(seen.contains("RETROSCOPE_ID="), "{seen}");
    for name in ["NOTIFY_SOCKET", "WATCHDOG_USEC"] {
        assert!(!seen.contains(name), "{seen}");
    }
}

/// While `--post` commands of dumps run, a stopping recorder asks the service manager for 30 s
/// more, and repeats this request.
#[test]
fn a_stop_is_given_more_time_while_commands_of_dumps_run() {
    let folder = tempfile::tempdir().unwrap();
    let manager = Manager::at_path(folder.path());
    let gate = folder.path().join("gate");
    assert!(
        Command::new("mkfifo")
            .arg(&gate)
            .status()
            .unwrap()
            .success()
    );
    // The command runs until the test opens the pipe.
    let post = format!("sh -c ': <{}'", gate.display());
    let mut command = record(folder.path(), &["--post", &post]);
    let mut recording = manager.spawn(folder, &mut command);
    manager.hear_until("READY=1");
    recording.asked(&["trigger"]);
    signal(&recording.child, Signal::TERM);
    let before = manager.hear_until("STOPPING=1");
    assert!(
        before.iter().all(|it| !it.contains("EXTEND_")),
        "{before:?}"
    );
    let is_extended = |heard: &[String]| {
        assert_eq!(
            heard.last().unwrap(),
            "EXTEND_TIMEOUT_USEC=30000000\nSTATUS=stopping: 1 commands of --post run or wait"
        );
    };
    is_extended(&manager.hear_until("EXTEND_TIMEOUT_USEC="));
    is_extended(&manager.hear_until("EXTEND_TIMEOUT_USEC="));
    fs::write(&gate, "").unwrap();
    assert!(recording.child.wait().unwrap().success());
}

#[test]
fn a_socket_that_nobody_has_is_told_once() {
    let folder = tempfile::tempdir().unwrap();
    for (name, said) in [
        ("/nowhere/notify", "cannot tell the service manager: "),
        ("vsock:2:1234", "NOTIFY_SOCKET=vsock:2:1234 is not used: "),
    ] {
        let mut command = record(folder.path(), &["--duration", "0.1"]);
        let output = command.env("NOTIFY_SOCKET", name).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let words = String::from_utf8(output.stderr).unwrap();
        assert_eq!(words.matches(said).count(), 1, "{words}");
    }
}

/// A stopped thread of another process. A tracer has stopped the thread, which continues when this
/// value is dropped.
struct Stopped {
    tracer: Child,
    go_on: Option<ChildStdin>,
    _said: BufReader<ChildStdout>,
}

impl Stopped {
    /// Stops the thread that has this name. `None`: perl is missing, or tracing is not permitted.
    fn new(process: &Child, thread: &str) -> Option<Self> {
        let tasks = format!("/proc/{}/task", process.id());
        let mut tasks = fs::read_dir(tasks).unwrap().map(|task| task.unwrap());
        let is_it = |path: &Path| {
            let name = fs::read_to_string(path.join("comm"));
            name.is_ok_and(|name| name.trim_end() == thread)
        };
        let task = tasks.find(|task| is_it(&task.path())).unwrap();
        // ptrace(2): PTRACE_SEIZE and PTRACE_INTERRUPT. When the tracer ends, the thread continues.
        let script = "$| = 1; my ($nr, $t) = @ARGV; \
             print syscall($nr, 0x4206, $t + 0, 0, 0) == 0 && syscall($nr, 0x4207, $t + 0, 0, 0) == 0 ? \"yes\\n\" : \"no: $!\\n\"; <STDIN>";
        let ptrace = if cfg!(target_arch = "aarch64") {
            "117"
        } else {
            "101"
        };
        let mut tracer = Command::new("perl")
            .args(["-e", script, ptrace])
            .arg(task.file_name())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .ok()?;
        let mut said = BufReader::new(tracer.stdout.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        let stopped = Self {
            go_on: tracer.stdin.take(),
            tracer,
            _said: said,
        };
        if line != "yes\n" {
            skip(&format!(
                "no thread was made to hang: ptrace: {}",
                line.trim_end()
            ));
            return None;
        }
        Some(stopped)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = self.go_on.take().map(|mut stdin| stdin.write_all(b"\n"));
        let _ = self.tracer.wait();
    }
}

#[test]
fn a_thread_that_hangs_starves_the_watchdog() {
    let folder = tempfile::tempdir().unwrap();
    let manager = Manager::at_path(folder.path());
    let mut command = record(folder.path(), &["--trigger", "tcp port 1"]);
    command.env("WATCHDOG_USEC", "200000");
    let recording = manager.spawn(folder, &mut command);
    manager.hear_until("WATCHDOG=1");
    for thread in ["inserter-0", "analyzer", "dumper"] {
        let Some(stopped) = Stopped::new(&recording.child, thread) else {
            return;
        };
        let heard = manager.hear_until("STATUS=hanging: ");
        let told = heard.last().unwrap();
        assert!(told.contains(thread), "{told}");
        // While the thread hangs, no further message arrives within a second.
        let timeout = Some(Duration::from_secs(1));
        manager.socket.set_read_timeout(timeout).unwrap();
        let more = manager.socket.recv(&mut [0; 4096]);
        assert!(more.is_err(), "nothing more is told: {more:?}");
        manager.socket.set_read_timeout(Some(DEADLINE)).unwrap();
        drop(stopped);
        manager.hear_until("STATUS=all threads go on");
        manager.hear_until("WATCHDOG=1");
    }
}
