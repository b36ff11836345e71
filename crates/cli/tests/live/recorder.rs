//! `retroscope record` as a child process: its messages, signals and end.

use std::{
    ffi::OsString,
    fs,
    io::{self, BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::namespace::Namespace;

/// A test that waits this long has failed.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// The program under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_retroscope");

/// Clock ticks per second in /proc, on every architecture that this program supports.
const USER_HZ: u64 = 100;

/// A running recorder. It is killed when the value is dropped.
#[derive(Debug)]
pub(crate) struct Recorder {
    child: Child,
    words: Arc<Words>,
    stdout: Option<JoinHandle<String>>,
    directory: PathBuf,
    // Contains `directory`, and deletes it when dropped.
    _temporary: TempDir,
}

/// Splits a line at spaces and single quotes. A quoted part is one word, even if empty.
pub(crate) fn words(line: &str) -> Vec<&str> {
    let parts = line.split('\'').enumerate();
    parts
        .flat_map(|(number, part)| match number % 2 {
            0 => part.split_ascii_whitespace().collect(),
            _ => vec![part],
        })
        .collect()
}

/// The lines that stderr has delivered, and a condition variable for threads that wait for a line.
#[derive(Debug, Default)]
struct Words {
    heard: Mutex<Heard>,
    moved: Condvar,
}

#[derive(Debug, Default)]
struct Heard {
    lines: Vec<(Instant, String)>,
    closed: bool,
}

/// How a recorder ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Exit code. -1 if a signal ended the process.
    pub(crate) code: i32,
    /// The object of `--json`: the last line of stdout.
    pub(crate) json: Value,
    /// Lines of stderr.
    pub(crate) words: Vec<String>,
    /// Time from the call of `wait` or `stop` until the process closed stderr.
    pub(crate) took: Duration,
    /// CPU time of the process, user and system.
    pub(crate) cpu: Duration,
    directory: PathBuf,
    _temporary: TempDir,
}

impl Recorder {
    /// Starts `record --json -w DIR` with further arguments, split by [`words`], and waits until it
    /// records.
    pub(crate) fn start(namespace: &Namespace, line: &str) -> Self {
        Self::start_with(namespace, &words(line))
    }

    /// Starts a recorder with arguments that are already split.
    pub(crate) fn start_with(namespace: &Namespace, arguments: &[&str]) -> Self {
        Self::start_wrapped(namespace, &[], arguments)
    }

    /// Starts a recorder through another program, which must `exec`. The recorder's command line
    /// follows `wrapper`. The argument `DIR` in `wrapper` stands for the dump directory.
    pub(crate) fn start_wrapped(
        namespace: &Namespace,
        wrapper: &[&str],
        arguments: &[&str],
    ) -> Self {
        let recorder = Self::launch(namespace, wrapper, arguments);
        recorder.line("recording on", |line| line.contains("recording on "));
        recorder
    }

    fn launch(namespace: &Namespace, wrapper: &[&str], arguments: &[&str]) -> Self {
        let temporary = TempDir::with_prefix("retroscope-live-").unwrap();
        let directory = temporary.path().join("dumps");
        let mut line: Vec<OsString> = wrapper
            .iter()
            .map(|word| {
                if *word == "DIR" {
                    directory.clone().into()
                } else {
                    word.into()
                }
            })
            .collect();
        line.extend([PROGRAM, "record", "--json", "-w"].map(OsString::from));
        line.push(directory.clone().into());
        line.extend(arguments.iter().map(OsString::from));
        let mut command = Command::new(&line[0]);
        command
            .args(&line[1..])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = namespace.enter(|| command.spawn()).unwrap();
        let words = Arc::new(Words::default());
        let (stderr, listener) = (child.stderr.take().unwrap(), Arc::clone(&words));
        std::thread::spawn(move || listener.listen(BufReader::new(stderr)));
        let mut stdout = child.stdout.take().unwrap();
        let stdout = std::thread::spawn(move || {
            let mut text = String::new();
            stdout.read_to_string(&mut text).unwrap();
            text
        });
        Self {
            child,
            words,
            stdout: Some(stdout),
            directory,
            _temporary: temporary,
        }
    }

    /// Waits until stderr has a matching line. Returns the first matching line, with the time of
    /// its arrival.
    pub(crate) fn line(&self, what: &str, is_it: impl Fn(&str) -> bool) -> (Instant, String) {
        self.lines(1, what, is_it).remove(0)
    }

    /// Waits for at least `count` matching lines on stderr. Returns all matching lines with their
    /// times of arrival.
    pub(crate) fn lines(
        &self,
        count: usize,
        what: &str,
        is_it: impl Fn(&str) -> bool,
    ) -> Vec<(Instant, String)> {
        self.words.wait(what, |heard| {
            let found: Vec<_> = heard
                .lines
                .iter()
                .filter(|(_, line)| is_it(line))
                .cloned()
                .collect();
            (found.len() >= count).then_some(found)
        })
    }

    /// Waits until at least `count` dumps are finished, with any verdict. Returns their lines.
    pub(crate) fn dumps(&self, count: usize) -> Vec<(Instant, String)> {
        self.lines(count, "finished dumps", |line| {
            line.contains(" packet") && line.contains(&*self.directory.to_string_lossy())
        })
    }

    /// Waits until an unfinished dump file exists. A thread creates the file some time after the
    /// dump was reported.
    pub(crate) fn begun(&self) {
        let deadline = Instant::now() + DEADLINE;
        let is_part = |entry: io::Result<fs::DirEntry>| {
            let name = entry.unwrap().file_name();
            name.to_string_lossy().ends_with(".part")
        };
        while !fs::read_dir(self.directory()).unwrap().any(is_part) {
            assert!(Instant::now() < deadline, "no dump is begun");
            std::thread::yield_now();
        }
    }

    /// Requests statistics until `sent` packets of the only source are stored, filtered or lost.
    /// Then no packet is in transit.
    pub(crate) fn settle(&self, sent: u64) {
        self.settle_all(1, sent);
    }

    /// Requests statistics until `sent` packets of all sources together are stored, filtered or
    /// lost.
    pub(crate) fn settle_all(&self, sources: usize, sent: u64) {
        let is_statistics = |line: &str| line.contains(": received ");
        let deadline = Instant::now() + DEADLINE;
        let mut heard = 0;
        loop {
            self.signal(Signal::USR2);
            // Statistics have one line for each source.
            let mut lines = self.lines(heard + sources, "statistics", is_statistics);
            lines.truncate(lines.len() / sources * sources);
            heard = lines.len();
            let last = &lines[heard - sources..];
            if last.iter().map(|(_, line)| accounted(line)).sum::<u64>() == sent {
                return;
            }
            assert!(Instant::now() < deadline, "{sent} sent: {last:#?}");
        }
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// The recorder's process ID.
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// The dump directory.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Sends SIGINT and waits for the end.
    pub(crate) fn stop(self) -> Outcome {
        self.signal(Signal::INT);
        self.wait()
    }

    /// Waits for the end of the recorder, at most [`DEADLINE`].
    pub(crate) fn wait(mut self) -> Outcome {
        let start = Instant::now();
        self.words
            .wait("the end", |heard| heard.closed.then_some(()));
        let took = start.elapsed();
        // Read the CPU time before waiting for the process, because /proc has no entry afterwards.
        let stdout = self.stdout.take().unwrap().join().unwrap();
        let cpu = cpu_time(self.pid());
        let status = self.child.wait().unwrap();
        let last = stdout.lines().last().unwrap_or("null");
        let words = self.words.heard().lines.clone();
        Outcome {
            code: status.code().unwrap_or(-1),
            json: serde_json::from_str(last).unwrap_or_else(|e| panic!("{e}: {last:?}")),
            words: words.into_iter().map(|(_, line)| line).collect(),
            took,
            cpu,
            directory: std::mem::take(&mut self.directory),
            _temporary: std::mem::replace(&mut self._temporary, TempDir::new().unwrap()),
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Words {
    fn listen(&self, stderr: impl BufRead) {
        for line in stderr.lines() {
            let Ok(line) = line else { break };
            self.heard().lines.push((Instant::now(), line));
            self.moved.notify_all();
        }
        self.heard().closed = true;
        self.moved.notify_all();
    }

    /// Ignores a poisoned lock: a test that panics while it waits must not make the listener panic.
    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<T>(&self, what: &str, mut look: impl FnMut(&Heard) -> Option<T>) -> T {
        let deadline = Instant::now() + DEADLINE;
        let mut heard = self.heard();
        loop {
            if let Some(found) = look(&heard) {
                return found;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(
                !heard.closed && !left.is_zero(),
                "waiting for {what}: {:#?}",
                heard.lines
            );
            heard = self.moved.wait_timeout(heard, left).unwrap().0;
        }
    }
}

impl Outcome {
    /// The final packet counts of the only source.
    pub(crate) fn source(&self) -> Ledger {
        let sources = self.json["sources"].as_array().unwrap();
        assert_eq!(sources.len(), 1, "{}", self.json);
        Ledger::of(&sources[0])
    }

    /// The final packet counts of the source with this name.
    pub(crate) fn source_named(&self, name: &str) -> Ledger {
        let sources = self.json["sources"].as_array().unwrap();
        let source = sources.iter().find(|source| source["name"] == name);
        Ledger::of(source.unwrap())
    }

    /// The dumps in the order of their triggers.
    pub(crate) fn dumps(&self) -> &[Value] {
        self.json["dumps"].as_array().unwrap()
    }

    /// The only dump of a rule.
    pub(crate) fn dump_of(&self, rule: &str) -> &Value {
        let found: Vec<&Value> = self.dumps().iter().filter(|d| d["rule"] == rule).collect();
        assert_eq!(found.len(), 1, "{rule}: {}", self.json);
        found[0]
    }

    /// Whether stderr contains a text.
    pub(crate) fn said(&self, text: &str) -> bool {
        self.words.iter().any(|line| line.contains(text))
    }

    /// The file names in the dump directory, sorted.
    pub(crate) fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.directory).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// Asserts an exit code. If it differs, prints the summary and all lines of stderr.
    pub(crate) fn expect_code(&self, code: i32) {
        assert_eq!(self.code, code, "{}\n{:#?}", self.json, self.words);
    }
}

/// The packet counts of one source at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ledger {
    pub(crate) received: u64,
    pub(crate) stored: u64,
    /// `None`: the kernel filtered, so the count is unknown.
    pub(crate) filtered: Option<u64>,
    pub(crate) lost: u64,
    pub(crate) kernel: u64,
}

impl Ledger {
    /// Reads the counts from a source's entry in `--json`. Asserts that the counts add up.
    fn of(source: &Value) -> Self {
        let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{source}"));
        let lost = source["lost"].as_object().unwrap();
        let ledger = Self {
            received: number(&source["received"]),
            stored: number(&source["stored"]),
            filtered: source["filtered"].as_u64(),
            lost: lost.values().map(number).sum(),
            kernel: number(&source["lost"]["kernel"]),
        };
        assert_eq!(
            ledger.received,
            ledger.stored + ledger.filtered.unwrap_or(0) + ledger.lost,
            "the intake ledger does not close: {source}"
        );
        ledger
    }
}

/// Number of packets that a line of statistics accounts for.
fn accounted(line: &str) -> u64 {
    // The line has the numbers received, stored, filtered, cut, and losses by cause. Numbers after
    // `; shed by` repeat some losses, and gaps and late packets are no losses.
    let ends = ["; shed by", ", the interface was away", ", up to "];
    let line = ends
        .iter()
        .fold(line, |line, end| line.split(end).next().unwrap());
    let numbers: Vec<u64> = line[line.find(": received ").unwrap()..]
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|digits| digits.parse().ok())
        .collect();
    numbers[1] + numbers[2] + numbers[4..].iter().sum::<u64>()
}

/// User and system time of a process that may have ended but was not waited for.
pub(crate) fn cpu_time(pid: Pid) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap();
    // proc(5): the name may contain any character, so count from its closing parenthesis; utime and
    // stime are fields 14 and 15.
    let fields: Vec<&str> = stat[stat.rfind(')').unwrap() + 2..].split(' ').collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 1000 / USER_HZ)
}

/// Runs the command `wrapper` + `arguments` to its end. Returns the exit code, or -1 after a
/// signal, and stderr.
pub(crate) fn run(namespace: &Namespace, wrapper: &[&str], arguments: &[&str]) -> (i32, String) {
    let line: Vec<&str> = wrapper.iter().chain(arguments).copied().collect();
    let mut command = Command::new(line[0]);
    command.args(&line[1..]).stdin(Stdio::null());
    let output = namespace.enter(|| command.output()).unwrap();
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code().unwrap_or(-1), words)
}
