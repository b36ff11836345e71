//! Programs that capture, run one at a time, and the processor time that they take.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use super::{
    Load, Programs, RING_BYTES,
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

/// Nothing takes as long.
const LIMIT: Duration = Duration::from_secs(30);
/// Between two looks at a process that is becoming idle.
const LOOK: Duration = Duration::from_millis(30);
/// An idle program takes less processor time than this between two looks, ns: a twentieth.
const IDLE_NS: u64 = 1_500_000;
/// The trigger filter of the recorder. None of the frames has this port.
const TRIGGER: &str = "udp port 60000";
/// Who may lose packets may lose one in so many when its time is taken: with its own buffer of 2 MiB tcpdump loses some now and then.
const LOSS_SHARE: u64 = 100;

/// Who captures.
#[derive(Debug)]
pub(super) struct Kind {
    /// As in names of rows.
    pub(super) name: &'static str,
    /// How it is started. What is in capitals [`Contestant::command`] fills in.
    line: &'static str,
    /// What it says on stderr when it captures.
    ready: &'static str,
    /// How long the last packets stay in the kernel: libpcap has a block that is not full handed over after a second.
    lag: Duration,
    /// How often it is run again if it lost more than it may.
    tries_more: u32,
    /// It may lose one packet in so many.
    loss_share: u64,
    /// From stdout and stderr: how many packets it says that it captured (of the recorder: that were analyzed), and how many the
    /// recorder's analyzer missed.
    counts: fn(&str, &str) -> Option<(u64, u64)>,
}

pub(super) static RETROSCOPE: Kind = Kind {
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

pub(super) static TCPDUMP: Kind = Kind {
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

/// The one that keeps the past too, in a ring of files. `-Z root`: as somebody else it could not make them.
pub(super) static KEEPING: Kind = Kind {
    name: "keeping",
    line: "tcpdump -n -i v1 -Z root -C 100 -W 8 -w FOLDER/ring",
    tries_more: 9,
    loss_share: u64::MAX,
    ..TCPDUMP
};

pub(super) static MINIMAL: Kind = Kind {
    name: "minimal",
    line: "MINIMAL v1 RING_BYTES",
    ready: "ready",
    lag: Duration::from_millis(20),
    counts: |stdout, _| number(stdout.split(' ').next()?),
    ..TCPDUMP
};

/// A count of one that has no analyzer.
fn number(text: &str) -> Option<(u64, u64)> {
    Some((text.trim().parse().ok()?, 0))
}

/// A program and how it is run.
#[derive(Debug)]
pub(super) struct Contestant<'s> {
    pub(super) kind: &'static Kind,
    pub(super) session: &'s Session,
    pub(super) seats: Seats,
    /// Where it keeps packets, if in files.
    pub(super) files: Option<Files>,
}

impl Contestant<'_> {
    /// Sends the load and returns the ns of processor time for each packet that was captured: by the recorder all of them, at the
    /// first try. The others, whose buffers are smaller, may try again where the machine was busy with something else; a try that
    /// does not count is told.
    pub(super) fn time(&self, veth: &Veth, load: Load) -> Result<f64, Failure> {
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

    fn time_once(&self, veth: &Veth, load: Load) -> Result<f64, Failure> {
        if let Some(files) = &self.files {
            files.clear()?;
        }
        let process = Process::start(self.command(veth)?, self.kind.ready, self.seats)?;
        let start_ns = process.cpu_settled()?;
        send(self.session, veth, self.seats, load)?;
        // Until the last packets have left the kernel.
        std::thread::park_timeout(self.kind.lag);
        let cpu_ns = process.cpu_settled()? - start_ns;
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

    /// Ends the program; its counts.
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

/// A program that runs.
#[derive(Debug)]
struct Process {
    child: Child,
    stderr: Option<JoinHandle<String>>,
}

impl Process {
    /// Starts it in its seat and waits until it says `ready` on stderr.
    fn start(mut command: Command, ready: &'static str, seats: Seats) -> Result<Self, Failure> {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let child = pin::confined(seats.program, || command.spawn());
        let mut child = child.map_err(|error| Failure::system("starting ip", error))?;
        let (is_ready, readiness) = mpsc::channel();
        let lines = child.stderr.take().into_iter();
        let lines = lines.flat_map(|pipe| BufReader::new(pipe).lines().map_while(Result::ok));
        let stderr = std::thread::spawn(move || {
            let said = lines.inspect(|line| {
                if line.contains(ready) {
                    // Told once more, it is not waited for any more.
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
        // It ended, or is of no use.
        let said = process.said();
        Err(Failure::CannotRun(format!("{command:?}: {}", said.trim())))
    }

    /// What it said on stderr; waits for its end.
    fn said(&mut self) -> String {
        let said = self.stderr.take().and_then(|thread| thread.join().ok());
        said.unwrap_or_default()
    }

    /// Processor time of all threads so far in ns, once it takes next to none any more.
    fn cpu_settled(&self) -> Result<u64, Failure> {
        let limit = Instant::now() + LIMIT;
        let mut before_ns = self.cpu_ns()?;
        while Instant::now() < limit {
            std::thread::park_timeout(LOOK);
            let now_ns = self.cpu_ns()?;
            if now_ns - before_ns < IDLE_NS {
                return Ok(now_ns);
            }
            before_ns = now_ns;
        }
        Err(Failure::deadline(LIMIT.as_secs()))
    }

    fn cpu_ns(&self) -> Result<u64, Failure> {
        let failed = |error| Failure::system("reading schedstat", error);
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id())).map_err(failed)?;
        let of_task = |task: std::io::Result<fs::DirEntry>| {
            let text = fs::read_to_string(task?.path().join("schedstat"))?;
            let word = text.split(' ').next().unwrap_or_default();
            word.parse::<u64>().map_err(std::io::Error::other)
        };
        tasks.map(of_task).sum::<Result<u64, _>>().map_err(failed)
    }

    /// Ends it as a user would, and returns what it said.
    fn stop(mut self) -> Result<(String, String), Failure> {
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
        // Ended already in a run that counts.
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
