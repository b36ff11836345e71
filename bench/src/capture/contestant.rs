//! Capture programs, run one at a time, and their processor time.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use rustix::{
    io::Errno,
    process::{Pid, Signal, kill_process},
};

use super::{
    CaptureLoad, Programs, RING_BYTES,
    keeping::Files,
    path,
    sender::{Seats, send},
    veth::Veth,
};
use crate::{
    measure::{Failure, check_lapped},
    pin, say,
    session::Session,
};

/// Maximum time until a program becomes idle.
const LIMIT: Duration = Duration::from_secs(30);
/// Interval between two readings of a process that becomes idle.
const LOOK: Duration = Duration::from_millis(30);
/// An idle program uses less processor time than this between two readings, ns: a twentieth of the
/// interval.
const IDLE_NS: u64 = 1_500_000;
/// The trigger filter of the recorder. No frame has this port.
const TRIGGER: &str = "udp port 60000";
/// A program that may lose packets may lose one packet of this many. With its own buffer of 2 MiB
/// tcpdump loses some packets now and then.
const LOSS_SHARE: u64 = 100;

/// A kind of capture program.
#[derive(Debug)]
pub(super) struct ContestantKind {
    /// Name, as in names of rows.
    pub(super) name: &'static str,
    /// Command line. [`Contestant::command`] replaces the words in capitals.
    line: &'static str,
    /// Text on stderr when the program captures.
    ready: &'static str,
    /// How long the last packets stay in the kernel. libpcap hands over a partly filled block after
    /// a second.
    lag: Duration,
    /// How often the program runs again at most, if it lost too many packets.
    tries_more: u32,
    /// The program may lose one packet of this many; `u64::MAX`: no packet.
    loss_share: u64,
    /// Extracts two counts from stdout and stderr: packets captured (of the recorder: analyzed),
    /// and packets that the recorder's analyzer missed (0 for other programs).
    counts: fn(&str, &str) -> Option<(u64, u64)>,
}

pub(super) static RETROSCOPE: ContestantKind = ContestantKind {
    name: "retroscope",
    line: "RETROSCOPE record --json -i v1 --trigger TRIGGER --ring 1GiB -w FOLDER/dumps",
    ready: "recording on",
    lag: Duration::from_millis(20),
    tries_more: 0,
    loss_share: u64::MAX,
    counts: |stdout, _| {
        let summary: serde_json::Value = serde_json::from_str(stdout.lines().last()?).ok()?;
        let count = |name| summary["analyzers"][name].as_u64();
        count("analyzed").zip(count("missed"))
    },
};

pub(super) static TCPDUMP: ContestantKind = ContestantKind {
    name: "tcpdump",
    line: "tcpdump -n -i v1 -w /dev/null",
    ready: "listening on",
    lag: Duration::from_millis(1200),
    tries_more: 3,
    loss_share: LOSS_SHARE,
    counts: |_, stderr| {
        let mut lines = stderr.lines();
        number(lines.find_map(|line| line.strip_suffix(" packets captured"))?)
    },
};

/// The tcpdump that also keeps the past, in a ring of files. `-Z root`: another user could not
/// create the files.
pub(super) static KEEPING: ContestantKind = ContestantKind {
    name: "keeping",
    line: "tcpdump -n -i v1 -Z root -C 100 -W 8 -w FOLDER/ring",
    tries_more: 9,
    loss_share: u64::MAX,
    ..TCPDUMP
};

pub(super) static MINIMAL: ContestantKind = ContestantKind {
    name: "minimal",
    line: "MINIMAL v1 RING_BYTES",
    ready: "ready",
    lag: Duration::from_millis(20),
    counts: |stdout, _| number(stdout.split(' ').next()?),
    ..TCPDUMP
};

/// The counts of a program without an analyzer: `text` as the captured packets, and 0 missed
/// packets.
fn number(text: &str) -> Option<(u64, u64)> {
    Some((text.trim().parse().ok()?, 0))
}

/// A program and how it runs.
#[derive(Debug)]
pub(super) struct Contestant<'s> {
    pub(super) kind: &'static ContestantKind,
    pub(super) session: &'s Session,
    pub(super) seats: Seats,
    /// The folder for packets, if the program keeps files.
    pub(super) files: Option<Files>,
}

impl Contestant<'_> {
    /// Sends the load and returns ns of processor time per captured packet. The recorder must
    /// capture all packets at the first try. Other programs try again if they lost too many
    /// packets; a message announces each new try.
    pub(super) fn time(&self, veth: &Veth, load: CaptureLoad) -> Result<f64, Failure> {
        for _ in 0..self.kind.tries_more {
            match self.time_once(veth, load) {
                Err(failure @ Failure::Count { .. }) => {
                    say(&format!("{}: once more: {failure}", self.kind.name));
                }
                outcome => return outcome,
            }
        }
        self.time_once(veth, load)
    }

    fn time_once(&self, veth: &Veth, load: CaptureLoad) -> Result<f64, Failure> {
        if let Some(files) = &self.files {
            files.clear()?;
        }
        let process = Process::start(self.command(veth)?, self.kind.ready, self.seats.program)?;
        let start_ns = process.cpu_settled()?;
        send(self.session, veth, self.seats, load)?;
        // Wait until the last packets have left the kernel.
        std::thread::park_timeout(self.kind.lag);
        let cpu_ns = process.cpu_settled()?.saturating_sub(start_ns);
        let (seen, lapped) = self.captured(process)?;
        check_lapped(lapped)?;
        let share = self.kind.loss_share;
        let kept = match &self.files {
            Some(files) => files.packets(load.size)?,
            None => seen,
        };
        for seen in [seen, kept] {
            if !(load.count - load.count / share..=load.count).contains(&seen) {
                let expected = load.count;
                return Err(Failure::Count { expected, seen });
            }
        }
        Ok(cpu_ns as f64 / seen as f64)
    }

    /// Ends the program and returns its counts.
    fn captured(&self, process: Process) -> Result<(u64, u64), Failure> {
        let (stdout, stderr) = process.stop()?;
        (self.kind.counts)(&stdout, &stderr).ok_or_else(|| {
            let name = self.kind.name;
            Failure::Unsound(format!("{name} told no count: {stdout}{stderr}"))
        })
    }

    fn command(&self, veth: &Veth) -> Result<Command, Failure> {
        let Programs {
            retroscope,
            minimal,
            ..
        } = &self.session.programs;
        let (retroscope, minimal) = (path(retroscope.as_ref())?, path(minimal.as_ref())?);
        let dumps = self.session.folder.join("capture-dumps");
        let files = self
            .files
            .as_ref()
            .map_or(dumps.as_path(), |files| files.0.path());
        let fill = |word: &str| match word.split_once('/') {
            _ if word == "TRIGGER" => TRIGGER.to_owned(),
            _ if word == "RETROSCOPE" => retroscope.clone(),
            _ if word == "MINIMAL" => minimal.clone(),
            _ if word == "RING_BYTES" => RING_BYTES.to_string(),
            Some(("FOLDER", name)) => files.join(name).display().to_string(),
            _ => word.to_owned(),
        };
        Ok(veth.command(self.kind.line.split(' ').map(fill)))
    }
}

/// A running program.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    stderr: Option<JoinHandle<String>>,
}

impl Process {
    /// Starts the program on its CPUs and waits until it prints `ready` on stderr.
    pub(super) fn start(
        mut command: Command,
        ready: &'static str,
        cpus: &[usize],
    ) -> Result<Self, Failure> {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let child = pin::confined(cpus, || command.spawn());
        let mut child = child.map_err(|error| Failure::system("starting ip", error))?;
        let (is_ready, readiness) = mpsc::channel();
        let lines = child.stderr.take().into_iter();
        let lines = lines.flat_map(|pipe| BufReader::new(pipe).lines().map_while(Result::ok));
        let stderr = std::thread::spawn(move || {
            let said = lines.inspect(|line| {
                if line.contains(ready) {
                    // `start` drops the receiver after the first message, so later sends fail.
                    let _ = is_ready.send(());
                }
            });
            said.map(|line| line + "\n").collect()
        });
        let mut process = Self {
            child,
            stderr: Some(stderr),
        };
        if readiness.recv().is_ok() {
            return Ok(process);
        }
        // The program closed stderr, usually because it ended, before it was ready.
        let said = process.said();
        Err(Failure::CannotRun(format!("{command:?}: {}", said.trim())))
    }

    /// The program's output on stderr. Waits until the program closes stderr, usually at its end.
    fn said(&mut self) -> String {
        let said = self.stderr.take().and_then(|thread| thread.join().ok());
        said.unwrap_or_default()
    }

    /// Processor time of the existing threads since their start, ns, after the program has become
    /// idle.
    fn cpu_settled(&self) -> Result<u64, Failure> {
        let limit = Instant::now() + LIMIT;
        let mut before_ns = self.cpu_ns()?;
        while Instant::now() < limit {
            std::thread::park_timeout(LOOK);
            let now_ns = self.cpu_ns()?;
            if now_ns.saturating_sub(before_ns) < IDLE_NS {
                return Ok(now_ns);
            }
            before_ns = now_ns;
        }
        Err(Failure::deadline(LIMIT.as_secs()))
    }

    /// Processor time of the existing threads since their start, ns. A thread that ends meanwhile
    /// is left out.
    pub(super) fn cpu_ns(&self) -> Result<u64, Failure> {
        let failed = |error| Failure::system("reading schedstat", error);
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id())).map_err(failed)?;
        let of_task = |task: std::io::Result<fs::DirEntry>| {
            let text = match fs::read_to_string(task?.path().join("schedstat")) {
                // `SRCH`: the thread ended after its file was opened.
                Err(error)
                    if error.kind() == std::io::ErrorKind::NotFound
                        || error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) =>
                {
                    return Ok(0);
                }
                text => text?,
            };
            let word = text.split(' ').next().unwrap_or_default();
            word.parse::<u64>().map_err(std::io::Error::other)
        };
        tasks.map(of_task).sum::<Result<u64, _>>().map_err(failed)
    }

    /// Ends the program as a user would, and returns its output.
    pub(super) fn stop(mut self) -> Result<(String, String), Failure> {
        kill_process(Pid::from_child(&self.child), Signal::INT)
            .map_err(|error| Failure::system("kill", error))?;
        let mut stdout = String::new();
        if let Some(mut pipe) = self.child.stdout.take() {
            pipe.read_to_string(&mut stdout)
                .map_err(|error| Failure::system("reading its output", error))?;
        }
        Ok((stdout, self.said()))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // After a successful run, `stop` has already ended the program.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_found_in_what_programs_say() {
        let tcpdump = "listening on v1\n7 packets captured\n9 packets received by filter\n";
        assert_eq!((TCPDUMP.counts)("", tcpdump), Some((7, 0)));
        assert_eq!((MINIMAL.counts)("12 0\n", ""), Some((12, 0)));
        let summary = r#"{"analyzers":{"analyzed":5,"missed":2}}"#;
        assert_eq!((RETROSCOPE.counts)(summary, ""), Some((5, 2)));
        for kind in [&TCPDUMP, &RETROSCOPE] {
            assert_eq!((kind.counts)("", "no permission"), None);
        }
    }
}
