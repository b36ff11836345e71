//! Programs that capture, run one at a time, and the processor time that they take.

use std::{
    ffi::OsString,
    fs,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use super::{
    Load, Programs,
    keeping::Files,
    sender::{Seats, Sent, send},
    veth::Veth,
};
use crate::{
    measure::{Failure, check_lapped},
    pin, say,
};

/// Nothing takes as long.
const LIMIT: Duration = Duration::from_secs(30);
/// Between two looks at a process that is becoming idle.
const LOOK: Duration = Duration::from_millis(30);
/// An idle program takes less processor time than this between two looks, ns: a twentieth.
const IDLE_NS: u64 = 1_500_000;
/// The trigger filter of the recorder. None of the frames has this port.
const TRIGGER: &str = "udp port 60000";
/// The others may lose one packet in so many when their time is taken: with its own buffer of 2 MiB tcpdump loses some now
/// and then.
const LOSS_SHARE: u64 = 100;
/// How often one that lost more is run again.
const TRIES_MORE: u32 = 3;
/// The same of one that may lose none.
const TRIES_MORE_KEEPING: u32 = 9;

/// Who captures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Retroscope,
    RetroscopeXdp,
    Tcpdump,
    TcpdumpKeeping,
    Dumpcap,
    Minimal,
}

impl Kind {
    /// As in names of rows, and what it says on stderr when it captures.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Retroscope => ("retroscope", "recording on"),
            Self::RetroscopeXdp => ("retroscope-af-xdp", "recording on"),
            Self::Tcpdump => ("tcpdump", "listening on"),
            Self::TcpdumpKeeping => ("keeping", "listening on"),
            Self::Dumpcap => ("dumpcap", "File: "),
            Self::Minimal => ("minimal", "ready"),
        }
    }

    pub(super) fn name(self) -> &'static str {
        self.words().0
    }

    fn is_retroscope(self) -> bool {
        matches!(self, Self::Retroscope | Self::RetroscopeXdp)
    }

    /// How long the last packets stay in the kernel: libpcap has a block that is not full handed over after a second.
    fn lag(self) -> Duration {
        let is_libpcap = !self.is_retroscope() && self != Self::Minimal;
        Duration::from_millis(if is_libpcap { 1200 } else { 20 })
    }
}

/// The memory that a contestant is given.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    /// Memory that packets are copied into, by those that keep them; a multiple of 1 MiB.
    pub(super) ring_bytes: u64,
    /// The kernel's buffer, a multiple of 1 MiB; `None`: what the program takes by itself.
    pub(super) buffer_bytes: Option<u64>,
}

/// What became of a load.
#[derive(Debug, Clone, Copy)]
pub(super) struct Trial {
    pub(super) sent: Sent,
    /// Packets that the program says it captured.
    pub(super) captured: u64,
}

/// A program and how it is run.
#[derive(Debug)]
pub(super) struct Contestant {
    kind: Kind,
    programs: Programs,
    directory: PathBuf,
    room: Room,
    seats: Seats,
    /// Where it keeps packets, if in files.
    pub(super) files: Option<Files>,
}

impl Contestant {
    pub(super) fn new(
        kind: Kind,
        programs: &Programs,
        folder: &Path,
        room: Room,
        seats: Seats,
    ) -> Self {
        Self {
            kind,
            programs: programs.clone(),
            directory: folder.join("capture-dumps"),
            room,
            seats,
            files: None,
        }
    }

    /// Sends the load and returns the ns of processor time for each packet that was captured: by the recorder all of them, at the
    /// first try. The others, whose buffers are smaller, may try again where the machine was busy with something else; a try that
    /// does not count is told.
    pub(super) fn time(&self, veth: &Veth, load: Load) -> Result<f64, Failure> {
        let mut more = match self.kind {
            kind if kind.is_retroscope() => 0,
            Kind::TcpdumpKeeping => TRIES_MORE_KEEPING,
            _ => TRIES_MORE,
        };
        loop {
            match self.time_once(veth, load) {
                Err(failure @ Failure::Count { .. }) if more > 0 => {
                    more -= 1;
                    say(&format!("{}: once more: {failure}", self.kind.name()));
                }
                outcome => return outcome,
            }
        }
    }

    fn time_once(&self, veth: &Veth, load: Load) -> Result<f64, Failure> {
        if let Some(files) = &self.files {
            files.clear()?;
        }
        let process = self.start(veth)?;
        let start_ns = process.cpu_settled()?;
        self.send(veth, load)?;
        let cpu_ns = process.cpu_settled()? - start_ns;
        let (seen, lapped) = self.captured(process)?;
        check_lapped(lapped)?;
        let may_lose = match self.kind {
            kind if kind.is_retroscope() || kind == Kind::TcpdumpKeeping => 0,
            _ => load.count / LOSS_SHARE,
        };
        let kept = match &self.files {
            Some(files) => files.packets(load.size)?,
            None => seen,
        };
        for seen in [seen, kept] {
            if !(load.count - may_lose..=load.count).contains(&seen) {
                let expected = load.count;
                return Err(Failure::Count { expected, seen });
            }
        }
        Ok(cpu_ns as f64 / seen as f64)
    }

    /// Sends the load and returns what became of it.
    pub(super) fn try_load(&self, veth: &Veth, load: Load) -> Result<Trial, Failure> {
        let process = self.start(veth)?;
        let sent = self.send(veth, load)?;
        let (captured, _) = self.captured(process)?;
        Ok(Trial { sent, captured })
    }

    /// Starts the program.
    fn start(&self, veth: &Veth) -> Result<Process, Failure> {
        Process::start(self.command(veth), self.kind.words().1, self.seats)
    }

    /// Sends the load, and waits until the last packets have left the kernel.
    fn send(&self, veth: &Veth, load: Load) -> Result<Sent, Failure> {
        let sent = send(&self.programs.retroscope, veth, self.seats, load)?;
        std::thread::park_timeout(self.kind.lag());
        Ok(sent)
    }

    /// Ends the program. How many packets it says that it captured, and how many the recorder's analyzer missed of those.
    fn captured(&self, process: Process) -> Result<(u64, u64), Failure> {
        let (stdout, stderr) = process.stop()?;
        counts(self.kind, &stdout, &stderr).ok_or_else(|| {
            let name = self.kind.name();
            Failure::Unsound(format!("{name} told no count: {stdout}{stderr}"))
        })
    }

    fn command(&self, veth: &Veth) -> Command {
        let ring_bytes = self.room.ring_bytes;
        let dumps: OsString = self.directory.clone().into();
        let mut words = match self.kind {
            Kind::Retroscope | Kind::RetroscopeXdp => {
                let ring = format!("{}MiB", ring_bytes >> 20);
                let record = ["record", "--json", "-i", Veth::TO, "--trigger", TRIGGER];
                let ring = ["--ring", &ring, "-w"];
                let words = record.into_iter().chain(ring).map(OsString::from);
                words.chain([dumps]).collect()
            }
            Kind::Tcpdump | Kind::TcpdumpKeeping => strings(["-n", "-i", Veth::TO]),
            Kind::Dumpcap => strings(["-q", "-i", Veth::TO, "-w", "/dev/null"]),
            Kind::Minimal => strings([Veth::TO, &ring_bytes.to_string()]),
        };
        match (self.kind, &self.files) {
            (Kind::RetroscopeXdp, _) => words.extend(strings(["--engine", "af-xdp"])),
            (Kind::Tcpdump, _) => words.extend(strings(["-w", "/dev/null"])),
            (Kind::TcpdumpKeeping, Some(files)) => words.extend(files.arguments()),
            _ => {}
        }
        if let Some(bytes) = self.room.buffer_bytes {
            let (kib, mib) = (bytes >> 10, bytes >> 20);
            words.extend(match self.kind {
                Kind::Tcpdump | Kind::TcpdumpKeeping => strings(["-B", &kib.to_string()]),
                Kind::Dumpcap => strings(["-B", &mib.to_string()]),
                Kind::Minimal => Vec::new(),
                _ => strings(["--capture-buffer", &format!("{mib}MiB")]),
            });
        }
        let mut command = veth.command(match self.kind {
            Kind::Retroscope | Kind::RetroscopeXdp => &self.programs.retroscope,
            Kind::Tcpdump | Kind::TcpdumpKeeping => Path::new("tcpdump"),
            Kind::Dumpcap => Path::new("dumpcap"),
            Kind::Minimal => &self.programs.minimal,
        });
        command.args(words);
        command
    }
}

fn strings<const N: usize>(words: [&str; N]) -> Vec<OsString> {
    words.map(OsString::from).to_vec()
}

/// How many packets a program says that it captured (of the recorder: that were analyzed), and how many the recorder's analyzer missed.
fn counts(kind: Kind, stdout: &str, stderr: &str) -> Option<(u64, u64)> {
    let count = match kind {
        Kind::Retroscope | Kind::RetroscopeXdp => {
            let summary: serde_json::Value = serde_json::from_str(stdout.lines().last()?).ok()?;
            let analyzers = &summary["analyzers"];
            let count = |name| analyzers[name].as_u64();
            return count("analyzed").zip(count("lapped"));
        }
        Kind::Tcpdump | Kind::TcpdumpKeeping => {
            let mut lines = stderr.lines();
            lines.find_map(|line| line.strip_suffix(" packets captured"))?
        }
        Kind::Dumpcap => {
            let mut lines = stderr.split(['\r', '\n']).rev();
            lines.find_map(|line| line.strip_prefix("Packets captured: "))?
        }
        Kind::Minimal => stdout.split(' ').next()?,
    };
    Some((count.trim().parse().ok()?, 0))
}

/// A program that runs.
#[derive(Debug)]
struct Process {
    child: Child,
    stderr: Option<JoinHandle<String>>,
}

impl Process {
    /// Starts it in its seat and waits until it says `ready` on stderr.
    fn start(mut command: Command, ready: &str, seats: Seats) -> Result<Self, Failure> {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = pin::confined(seats.program, || command.spawn())
            .map_err(|error| Failure::system("starting ip", error))?;
        let mut said = String::new();
        let mut stderr = child.stderr.take().map(BufReader::new);
        let mut is_ready = false;
        while let Some(reader) = &mut stderr
            && !is_ready
        {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                break;
            }
            is_ready = line.contains(ready);
            said.push_str(&line);
        }
        if !is_ready {
            // It ended, or is of no use.
            let _ = child.kill();
            let _ = child.wait();
            return Err(Failure::CannotRun(format!("{command:?}: {}", said.trim())));
        }
        let rest = std::thread::spawn(move || {
            if let Some(mut reader) = stderr {
                let _ = reader.read_to_string(&mut said);
            }
            said
        });
        Ok(Self {
            child,
            stderr: Some(rest),
        })
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
        let mut sum = 0;
        for task in tasks {
            let path = task.map_err(failed)?.path().join("schedstat");
            let text = fs::read_to_string(path).map_err(failed)?;
            let word = text.split(' ').next().unwrap_or_default();
            sum += word
                .parse::<u64>()
                .map_err(|error| Failure::system("reading schedstat", error))?;
        }
        Ok(sum)
    }

    /// Ends it as a user would, and returns what it said.
    fn stop(mut self) -> Result<(String, String), Failure> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid {
            kill_process(pid, Signal::INT).map_err(|error| Failure::system("kill", error))?;
        }
        let mut stdout = String::new();
        if let Some(mut pipe) = self.child.stdout.take() {
            pipe.read_to_string(&mut stdout)
                .map_err(|error| Failure::system("reading its output", error))?;
        }
        let _ = self.child.wait();
        let stderr = self.stderr.take().and_then(|thread| thread.join().ok());
        Ok((stdout, stderr.unwrap_or_default()))
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
        assert_eq!(counts(Kind::Tcpdump, "", tcpdump), Some((7, 0)));
        let dumpcap = "File: /dev/null\nPackets: 3 \rPackets captured: 8\nPackets received/dropped on interface 'v1': 8/0\n";
        assert_eq!(counts(Kind::Dumpcap, "", dumpcap), Some((8, 0)));
        assert_eq!(counts(Kind::Minimal, "12 0\n", ""), Some((12, 0)));
        let summary = r#"{"analyzers":{"analyzed":5,"lapped":2}}"#;
        assert_eq!(counts(Kind::Retroscope, summary, ""), Some((5, 2)));
        for kind in [Kind::Tcpdump, Kind::Dumpcap, Kind::Retroscope] {
            assert_eq!(counts(kind, "", "no permission"), None);
        }
    }
}
