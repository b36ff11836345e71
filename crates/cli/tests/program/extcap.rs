//! Tests of a recorder as an interface of Wireshark: the calls that extcap(4) describes, and
//! captures by tshark.

use std::{
    fs::{self, File},
    io::Read as _,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use retroscope_pcapfile::CaptureReader;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::{
    recording::{DEADLINE, Recording},
    remote::token,
    support::{PROGRAM, skip, stderr, stdout},
};

/// Time limit for the end of a capture. It is generous because the machine may be busy.
const SOON: Duration = Duration::from_secs(10);

fn retroscope(arguments: &[&str]) -> Output {
    Command::new(PROGRAM).args(arguments).output().unwrap()
}

/// Runs the program with the arguments of a query by Wireshark about the interface `retroscope`.
fn asked(arguments: &[&str]) -> Output {
    retroscope(&[arguments, &["--extcap-interface", "retroscope"]].concat())
}

/// A running capture into a pipe, with the arguments that Wireshark uses.
struct Capture {
    pipe: PathBuf,
    child: Child,
}

impl Capture {
    fn start(folder: &Path, socket: &Path, arguments: &[&str]) -> Self {
        let pipe = folder.join("pipe");
        let _ = fs::remove_file(&pipe);
        assert!(
            Command::new("mkfifo")
                .arg(&pipe)
                .status()
                .unwrap()
                .success()
        );
        let child = Command::new(PROGRAM)
            .args(["--capture", "--extcap-interface", "retroscope", "--fifo"])
            .arg(&pipe)
            .arg("--socket")
            .arg(socket)
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self { pipe, child }
    }

    fn signal(&self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
    }

    fn end(self) -> Output {
        let begin = Instant::now();
        let output = self.child.wait_with_output().unwrap();
        assert!(begin.elapsed() < SOON, "{output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
        output
    }
}

#[test]
fn wireshark_is_told_what_it_asks() {
    let interfaces = retroscope(&["--extcap-interfaces", "--extcap-version=4.0"]);
    assert!(interfaces.status.success());
    let told = stdout(&interfaces);
    assert!(
        told.starts_with("extcap {version=")
            && told.contains("\ninterface {value=retroscope}{display=")
    );
    let dlts = asked(&["--extcap-dlts"]);
    assert!(stdout(&dlts).starts_with("dlt {number=1}{name=EN10MB}"));
    let configuration = asked(&["--extcap-config"]);
    assert!(stdout(&configuration).starts_with("arg {number=0}{call=--past}"));
    // Text on stdout means that the filter is refused.
    for right in ["", "udp port 53", "payload contains \"x\""] {
        let output = asked(&["--extcap-capture-filter", right]);
        assert!(
            output.status.success() && output.stdout.is_empty(),
            "{output:?}"
        );
    }
    let wrong = asked(&["--extcap-capture-filter", "port prot"]);
    assert!(
        wrong.status.success() && wrong.stderr.is_empty(),
        "{wrong:?}"
    );
    assert_eq!(stdout(&wrong), "unknown port 'prot'\n");

    for wrong in [
        &["--extcap-dlts", "--extcap-interface", "eth0"][..],
        &["--extcap-dlts"],
        &["--capture", "--extcap-interface", "retroscope"],
        &["--extcap-nothing"],
        &["extcap"],
    ] {
        let output = retroscope(wrong);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(stderr(&output).starts_with("retroscope: "), "{output:?}");
    }
}

/// A capture ends after a signal, after the reader closes the pipe, and, with `--follow false`,
/// after the last recorded packet. Each end takes less than [`SOON`].
#[test]
fn a_capture_ends_at_once_and_says_nothing() {
    let recording = Recording::start(&["--trigger", "tcp port 9"]);
    recording.wait_for_packets(10_000);
    let folder = tempfile::tempdir().unwrap();
    let start = |arguments: &[&str]| Capture::start(folder.path(), &recording.socket(), arguments);

    // If a reader still reads the pipe after the signal, the verdict follows the packets.
    let capture = start(&["--extcap-capture-filter", "udp"]);
    let mut pipe = File::open(&capture.pipe).unwrap();
    let mut read = vec![0; 100_000];
    pipe.read_exact(&mut read).unwrap();
    capture.signal();
    pipe.read_to_end(&mut read).unwrap();
    let output = capture.end();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
    assert!(verdict_in(&read), "no verdict");

    // The verdict also arrives if no packet matches.
    let capture = start(&["--extcap-capture-filter", "less 1"]);
    let mut pipe = File::open(&capture.pipe).unwrap();
    read.clear();
    capture.signal();
    pipe.read_to_end(&mut read).unwrap();
    assert!(capture.end().status.success());
    assert!(verdict_in(&read), "no verdict");

    let capture = start(&["--extcap-capture-filter", "less 1"]);
    let mut pipe = File::open(&capture.pipe).unwrap();
    pipe.read_exact(&mut [0; 20]).unwrap();
    drop(pipe);
    let output = capture.end();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );

    // After a signal, the capture ends even if the reader neither reads nor closes the pipe.
    let capture = start(&[]);
    let mut pipe = File::open(&capture.pipe).unwrap();
    pipe.read_exact(&mut [0; 20]).unwrap();
    capture.signal();
    assert!(capture.end().status.success());

    // After a signal, the capture ends even if no reader opens the pipe.
    let capture = start(&[]);
    capture.signal();
    capture.end();

    let capture = start(&["--follow", "false", "--past", "all"]);
    let mut pipe = File::open(&capture.pipe).unwrap();
    read.clear();
    pipe.read_to_end(&mut read).unwrap();
    assert!(capture.end().status.success());
    assert!(verdict_in(&read), "no verdict");
    recording.told(&["stop"]);
    assert_eq!(recording.end().0.code(), Some(0));
}

/// Wireshark ends before the program reads the process ID of its parent. So the parent is another
/// process, which continues. The capture must end when the read end of the program's stderr is
/// closed.
#[test]
fn a_capture_ends_with_a_wireshark_that_was_gone_before_it_began() {
    let recording = Recording::start(&["--trigger", "tcp port 9"]);
    let folder = tempfile::tempdir().unwrap();
    let (gate, pipe) = (folder.path().join("gate"), folder.path().join("pipe"));
    for path in [&gate, &pipe] {
        let made = Command::new("mkfifo").arg(path).status().unwrap();
        assert!(made.success());
    }
    let mut starter = Command::new("sh")
        .args(["-c", "(read -r _ <\"$0\"; exec \"$@\") &"])
        .arg(&gate)
        .args([PROGRAM, "--capture", "--extcap-interface", "retroscope"])
        .args(["--extcap-capture-filter", "less 1", "--fifo"])
        .arg(&pipe)
        .arg("--socket")
        .arg(recording.socket())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    assert!(starter.wait().unwrap().success());
    fs::write(&gate, "\n").unwrap();
    let mut read = File::open(&pipe).unwrap();
    // The capture has begun, and no recorded packet matches.
    read.read_exact(&mut [0; 20]).unwrap();
    drop(starter.stderr.take());
    read.read_to_end(&mut Vec::new()).unwrap();
    no_process(&recording.socket());
}

fn verdict_in(capture: &[u8]) -> bool {
    let text = String::from_utf8_lossy(capture);
    text.contains(r#""verdict":"complete""#)
}

/// If a capture cannot begin, the reader of the pipe gets an empty file, and stderr says why.
#[test]
fn a_capture_that_cannot_begin_says_why() {
    let recording = Recording::start(&["--trigger", "tcp port 9"]);
    let (folder, socket) = (tempfile::tempdir().unwrap(), recording.socket());
    let missing = folder.path().join("none");
    for (code, socket, arguments, why) in [
        (1, &missing, &[][..], "No such file"),
        (
            2,
            &socket,
            &["--extcap-capture-filter", "port prot"],
            "prot",
        ),
        (2, &socket, &["--past", "tomorrow"], "or `all`"),
        (2, &socket, &["--from", "7", "--to", "6"], "before --from"),
        (2, &socket, &["--token-file", "x"], "for --url"),
    ] {
        let capture = Capture::start(folder.path(), socket, arguments);
        let mut read = Vec::new();
        File::open(&capture.pipe)
            .unwrap()
            .read_to_end(&mut read)
            .unwrap();
        assert!(read.is_empty());
        let output = capture.end();
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert!(stderr(&output).contains(why), "{output:?}");
    }
}

/// A user of tshark with a separate home directory.
struct User {
    home: TempDir,
}

impl User {
    /// `None`, with a message, if tshark is missing.
    fn new() -> Option<Self> {
        let home = tempfile::tempdir().unwrap();
        let user = Self { home };
        if user.command("tshark").arg("-v").output().is_err() {
            skip("tshark is not there; nothing was tested");
            return None;
        }
        Some(user)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        // tshark creates its temporary files and the pipe in TMPDIR.
        command
            .env("HOME", self.home.path())
            .env("TMPDIR", self.home.path());
        for other in [
            "XDG_CONFIG_HOME",
            "WIRESHARK_CONFIG_DIR",
            "WIRESHARK_EXTCAP_DIR",
            "RETROSCOPE_TOKEN_FILE",
        ] {
            command.env_remove(other);
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn retroscope(&self, code: i32, arguments: &[&str]) -> Output {
        let output = self.command(PROGRAM).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        output
    }

    /// Whether tshark lists the interface.
    fn is_listed(&self) -> bool {
        let output = self.command("tshark").arg("-D").output().unwrap();
        stdout(&output).contains(" retroscope (Retroscope recorder)")
    }

    fn capture(&self, socket: &Path, arguments: &[&str]) -> Command {
        let mut command = self.command("tshark");
        command.args(["-q", "-i", "retroscope", "-o"]);
        command.arg(format!("extcap.retroscope.socket:{}", socket.display()));
        command.args(arguments);
        command
    }

    /// Captures with tshark into a file. Returns the bytes of the file, and time and data of each
    /// packet.
    fn captured(&self, socket: &Path, arguments: &[&str]) -> (Vec<u8>, Vec<(i64, Vec<u8>)>) {
        let file = self.home.path().join("captured.pcapng");
        let mut command = self.capture(socket, arguments);
        let output = command.arg("-w").arg(&file).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!(!stderr(&output).contains("rror"), "{output:?}");
        self.leaves_nothing(socket);
        (fs::read(&file).unwrap(), packets(&file))
    }

    /// Checks that no capturing process and no pipe is left.
    fn leaves_nothing(&self, socket: &Path) {
        no_process(socket);
        let mut left = fs::read_dir(self.home.path()).unwrap().flatten();
        assert!(!left.any(|entry| entry.file_name().to_string_lossy().contains("extcap_")));
    }
}

/// Waits until no capturing process has this socket in its arguments.
fn no_process(socket: &Path) {
    let begin = Instant::now();
    let told = format!("--socket\0{}\0", socket.display());
    let is_one = |entry: &fs::DirEntry| {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        line.contains("--capture\0") && line.contains(&told)
    };
    while fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .any(|entry| is_one(&entry))
    {
        assert!(begin.elapsed() < SOON, "a process is left");
    }
}

fn packets(file: &Path) -> Vec<(i64, Vec<u8>)> {
    let mut capture = CaptureReader::open(file).unwrap();
    let mut all = Vec::new();
    while let Some(packet) = capture.next().unwrap() {
        all.push((packet.meta.time_ns, packet.data.to_vec()));
    }
    all
}

#[test]
fn it_is_installed_and_removed() {
    let Some(user) = User::new() else { return };
    let home = user.home.path();
    assert!(!user.is_listed());
    let told = user.retroscope(0, &["extcap", "--install"]);
    assert!(
        stdout(&told).contains("`tshark -D` lists retroscope"),
        "{told:?}"
    );
    assert!(user.is_listed());
    // A second installation succeeds, and an installation over a dangling link replaces the link.
    user.retroscope(0, &["extcap", "--install"]);
    let (link, _) = stdout(&told).split_once(" leads to ").unwrap();
    assert!(link.starts_with(home.to_str().unwrap()));
    fs::remove_file(link).unwrap();
    symlink("/nowhere/bin/retroscope", link).unwrap();
    user.retroscope(0, &["extcap", "--install"]);
    assert_eq!(
        fs::read_link(link).unwrap(),
        fs::canonicalize(PROGRAM).unwrap()
    );
    user.retroscope(0, &["extcap", "--uninstall"]);
    assert!(!user.is_listed());
    let told = user.retroscope(0, &["extcap", "--uninstall"]);
    assert!(stdout(&told).contains("is not there"));

    // A file that Retroscope did not create is neither replaced nor removed. A link to another
    // program is not replaced.
    fs::write(link, "#!/bin/sh\n").unwrap();
    for command in ["--install", "--uninstall"] {
        user.retroscope(1, &["extcap", command]);
    }
    assert_eq!(fs::read(link).unwrap(), b"#!/bin/sh\n");
    fs::remove_file(link).unwrap();
    symlink("/bin/true", link).unwrap();
    user.retroscope(1, &["extcap", "--install"]);
    assert_eq!(fs::read_link(link).unwrap(), Path::new("/bin/true"));

    // An installation into a folder that Wireshark does not search fails, but leaves the link in
    // the folder. `--uninstall` removes this link.
    let other = home.join("other");
    let told = user.retroscope(
        1,
        &["extcap", "--install", "--dir", other.to_str().unwrap()],
    );
    assert!(stderr(&told).contains("does not list"), "{told:?}");
    user.retroscope(
        0,
        &["extcap", "--uninstall", "--dir", other.to_str().unwrap()],
    );
    assert!(!other.join("retroscope").exists());
}

#[test]
fn tshark_has_the_packets_of_a_query() {
    let Some(user) = User::new() else { return };
    user.retroscope(0, &["extcap", "--install"]);
    let recording = Recording::start(&["--trigger", "tcp port 9"]);
    recording.wait_for_packets(20_000);
    let socket = recording.socket();
    let file = user.home.path().join("asked.pcapng");
    let path = file.to_str().unwrap();

    // Recorded packets come before new packets. tshark ends the capture after 500 packets.
    recording.asked(&["query", "-w", path, "-c", "500", "udp"]);
    let past = ["-o", "extcap.retroscope.past:1h", "-f", "udp", "-c", "500"];
    assert_eq!(user.captured(&socket, &past).1, packets(&file));

    // If the time range has an end, the capture ends by itself, with a verdict.
    let report = recording.asked(&["query", "-w", path, "-c", "5000"]);
    let at = |name: &str| report[name].as_str().unwrap().to_owned();
    let window = [
        "--from",
        &at("from"),
        "--to",
        &at("to"),
        "udp",
        "--snaplen",
        "40",
    ];
    recording.asked(&[&["query", "-w", path], &window[..]].concat());
    let option = |name: &str, value: &str| format!("extcap.retroscope.{name}:{value}");
    let (from, to) = (option("from", &at("from")), option("to", &at("to")));
    let headers = option("headers", "40");
    let window = ["-o", &from, "-o", &to, "-o", &headers, "-f", "udp"];
    let (bytes, captured) = user.captured(&socket, &window);
    assert_eq!(captured, packets(&file));
    assert!(verdict_in(&bytes), "no verdict");

    // tshark captures new packets for one second. The filter has a payload term.
    let now = option("past", "0s");
    let filter = "udp and payload matches /./";
    let (_, captured) = user.captured(&socket, &["-o", &now, "-a", "duration:1", "-f", filter]);
    assert!(!captured.is_empty());
    // If no packet matches, tshark still ends after one second.
    let (_, captured) = user.captured(&socket, &["-a", "duration:1", "-f", "less 1"]);
    assert!(captured.is_empty());
    let (_, captured) = user.captured(&socket, &["-o", &option("follow", "false")]);
    assert!(captured.len() >= 20_000);
    recording.told(&["stop"]);
    assert_eq!(recording.end().0.code(), Some(0));
}

#[test]
fn tshark_is_interrupted() {
    let Some(user) = User::new() else { return };
    user.retroscope(0, &["extcap", "--install"]);
    let recording = Recording::start(&["--trigger", "tcp port 9"]);
    let socket = recording.socket();
    for (filter, enough) in [("udp", 100_000), ("less 1", 1)] {
        let file = user.home.path().join("interrupted.pcapng");
        let _ = fs::remove_file(&file);
        let mut command = user.capture(&socket, &["-f", filter, "-w"]);
        let child = command.arg(&file).spawn().unwrap();
        let deadline = Instant::now() + DEADLINE;
        while fs::metadata(&file).map_or(0, |file| file.len()) < enough {
            assert!(Instant::now() < deadline, "nothing is captured");
        }
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        let begin = Instant::now();
        let output = child.wait_with_output().unwrap();
        assert!(begin.elapsed() < SOON, "{output:?}");
        assert!(output.status.success(), "{output:?}");
        assert!(!stderr(&output).contains("rror"), "{output:?}");
        user.leaves_nothing(&socket);
        assert_eq!(packets(&file).is_empty(), filter == "less 1");
    }

    // tshark is killed while no packet matches, and cannot remove its pipe. The capturing process
    // must end.
    let file = user.home.path().join("killed.pcapng");
    let mut command = user.capture(&socket, &["-f", "less 1", "-w"]);
    let mut child = command.arg(&file).spawn().unwrap();
    let deadline = Instant::now() + DEADLINE;
    while fs::metadata(&file).map_or(0, |file| file.len()) == 0 {
        assert!(Instant::now() < deadline, "nothing is captured");
    }
    child.kill().unwrap();
    child.wait().unwrap();
    no_process(&socket);
    recording.told(&["stop"]);
    assert_eq!(recording.end().0.code(), Some(0));
}

/// If the program cannot capture, tshark ends with an error and shows the program's message.
#[test]
fn tshark_shows_what_is_wrong() {
    let Some(user) = User::new() else { return };
    user.retroscope(0, &["extcap", "--install"]);
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens");
    let token = |name: &str, role: &str| {
        let file = token(folder.path(), &tokens, name, role);
        format!("extcap.retroscope.tokenfile:{file}")
    };
    let (view, right) = (token("v", "view"), token("p", "packets"));
    let mut recording =
        Recording::start(&["--api", "127.0.0.1:0", "--tokens", tokens.to_str().unwrap()]);
    let url = format!("extcap.retroscope.url:{}", recording.url());
    let socket = recording.socket();
    let missing = user.home.path().join("none");
    // If an option is repeated, the last value counts. An empty value counts as a missing option.
    let remote = ["-o", "extcap.retroscope.socket:", "-o", &url];
    let with = |token| [&remote[..], &["-o", token, "-c", "5"]].concat();
    assert_eq!(user.captured(&missing, &with(&right)).1.len(), 5);
    for (socket, arguments, why) in [
        (&missing, &[][..], "No such file"),
        (&socket, &["-f", "port prot"], "unknown port"),
        (
            &socket,
            &["-o", "extcap.retroscope.past:x"],
            "is not a duration",
        ),
        (&missing, &remote, "a token is asked for"),
        (&missing, &with(&view), "the role 'packets'"),
    ] {
        let output = user.capture(socket, arguments).output().unwrap();
        let said = stderr(&output);
        assert!(!output.status.success(), "{output:?}");
        assert!(
            said.contains("retroscope: ") && said.contains(why),
            "{said}"
        );
        user.leaves_nothing(socket);
    }
}
