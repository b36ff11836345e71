//! A recorder with an API, and the commands that use the API.

use std::{
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, ChildStderr, Command, ExitStatus, Output, Stdio},
    sync::mpsc::{Receiver, channel},
    thread::spawn,
    time::{Duration, Instant},
};

use serde_json::Value;
use tempfile::TempDir;

use crate::{client::Events, support::PROGRAM};

/// Generated traffic, which needs no privilege.
pub(crate) const TRAFFIC: &str = "generate:flows=10,rate=10kpps";
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// A recorder with an API at a unix socket. The recorder is killed when this value is dropped, for
/// example if the test fails.
pub(crate) struct Recording {
    pub(crate) child: Child,
    pub(crate) folder: TempDir,
    /// Messages up to the line that contains `recording on`.
    pub(crate) first_words: String,
    pub(crate) words: Option<BufReader<ChildStderr>>,
}

/// The lines of a recorder's log, as a thread reads them from stderr.
pub(crate) struct Lines(Receiver<String>);

impl Recording {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), arguments)
    }

    pub(crate) fn start_in(folder: TempDir, arguments: &[&str]) -> Self {
        let mut child = record(folder.path(), arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut words = BufReader::new(child.stderr.take().unwrap());
        let mut first_words = String::new();
        while !first_words.contains("recording on") {
            assert!(
                words.read_line(&mut first_words).unwrap() > 0,
                "it does not record"
            );
        }
        Self {
            child,
            folder,
            first_words,
            words: Some(words),
        }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("api")
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        run(&self.socket(), arguments)
    }

    /// Runs a command with `--json`, which must succeed. Returns its line of JSON.
    pub(crate) fn asked(&self, arguments: &[&str]) -> Value {
        let output = self.run(&[arguments, &["--json"]].concat());
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Runs a command, which must succeed. Returns its stdout.
    pub(crate) fn told(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a command that must fail. Returns its message.
    pub(crate) fn refused(&self, code: i32, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{arguments:?}: {output:?}"
        );
        assert!(output.stdout.is_empty());
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            said.starts_with("retroscope: ") && !said.contains('{'),
            "{said}"
        );
        said
    }

    /// The address in the next message that contains `HTTP at URL`.
    pub(crate) fn url(&mut self) -> String {
        let mut line = String::new();
        let words = self.words.as_mut().unwrap();
        while words.read_line(&mut line).unwrap() > 0 {
            if let Some((_, url)) = line.trim_end().split_once("HTTP at ") {
                return url.to_owned();
            }
            line.clear();
        }
        panic!("it never said where it serves");
    }

    /// The rest of the log, whose lines a thread reads.
    pub(crate) fn lines(&mut self) -> Lines {
        let (sender, said) = channel();
        let words = self.words.take().unwrap();
        spawn(move || {
            let mut lines = words.lines().map_while(Result::ok);
            lines.try_for_each(|line| sender.send(line))
        });
        Lines(said)
    }

    /// Waits until at least `count` packets are stored.
    pub(crate) fn wait_for_packets(&self, count: u64) {
        let deadline = Instant::now() + DEADLINE;
        while self.status()["ring"]["stored"].as_u64() < Some(count) {
            assert!(Instant::now() < deadline, "nothing is stored");
        }
    }

    pub(crate) fn events(&self) -> Events {
        Events::of(PROGRAM, &self.socket())
    }

    /// The status. Checks that its packet counts add up.
    pub(crate) fn status(&self) -> Value {
        let status = self.asked(&["status"]);
        let of = |name: &str| status["analyzers"][name].as_u64().unwrap();
        assert_eq!(of("stored"), of("analyzed") + of("missed") + of("unread"));
        assert_eq!(status["ring"]["stored"], status["analyzers"]["stored"]);
        status
    }

    /// Waits for the end of the recorder. Returns the exit code and the JSON object that `record
    /// --json` prints.
    pub(crate) fn end(mut self) -> (ExitStatus, Value) {
        let mut text = String::new();
        self.child
            .stdout
            .take()
            .unwrap()
            .read_to_string(&mut text)
            .unwrap();
        let status = self.child.wait().unwrap();
        assert!(!self.socket().exists(), "the socket is removed");
        (status, serde_json::from_str(text.trim()).unwrap())
    }
}

impl Lines {
    /// Waits for a line that contains `part`.
    pub(crate) fn line(&self, part: &str) -> String {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = self.0.recv_timeout(left);
            let line = line.unwrap_or_else(|error| panic!("{error}: {part}"));
            if line.contains(part) {
                return line;
            }
        }
    }

    /// The remaining lines, up to the end of the recorder.
    pub(crate) fn rest(self) -> String {
        self.0.iter().map(|line| line + "\n").collect()
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn record(folder: &Path, arguments: &[&str]) -> Command {
    // The test runner may ignore SIGHUP, and children inherit this. `env` restores the default.
    let mut command = Command::new("env");
    command.args(["--default-signal=HUP", PROGRAM]);
    command.args(["record", "-i", TRAFFIC, "--ring", "64MiB", "--json", "-w"]);
    command
        .arg(folder.join("dumps"))
        .arg("--api")
        .arg(format!("unix:{}", folder.join("api").display()));
    command.args(arguments).stdin(Stdio::null());
    command
}

pub(crate) fn run(socket: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(PROGRAM);
    command.args(arguments).arg("--socket").arg(socket);
    command.stdin(Stdio::null()).output().unwrap()
}

/// The number of packets of a capture.
pub(crate) fn packets(mut capture: retroscope_pcapfile::CaptureReader<impl Read>) -> u64 {
    let mut count = 0;
    while capture.next().unwrap().is_some() {
        count += 1;
    }
    count
}
