//! Programs that capture, run one at a time, and the processor time that they take.

use std::{
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
use crate::{contest::Failure, pin, session::say};

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
pub(crate) enum Kind {
    Retroscope,
    RetroscopeXdp,
    Tcpdump,
    TcpdumpKeeping,
    Dumpcap,
    Minimal,
}

impl Kind {
    /// Those whose processor time is compared where the program may use all CPUs but the sender's.
    pub(crate) const TIMED: [Self; 3] = [Self::Retroscope, Self::Tcpdump, Self::Minimal];
    /// Those that keep all packets, with all threads on one CPU.
    pub(crate) const KEEPING: [Self; 2] = [Self::Retroscope, Self::TcpdumpKeeping];
    /// Those whose highest rate without loss is looked for.
    pub(crate) const RACED: [Self; 4] = [
        Self::Retroscope,
        Self::RetroscopeXdp,
        Self::Tcpdump,
        Self::Dumpcap,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Retroscope => "retroscope",
            Self::RetroscopeXdp => "retroscope-af-xdp",
            Self::Tcpdump => "tcpdump",
            Self::TcpdumpKeeping => "keeping",
            Self::Dumpcap => "dumpcap",
            Self::Minimal => "minimal",
        }
    }

    /// How long the last packets stay in the kernel: libpcap has a block that is not full handed over after a second.
    fn lag(self) -> Duration {
        match self {
            Self::Retroscope | Self::RetroscopeXdp | Self::Minimal => Duration::from_millis(20),
            Self::Tcpdump | Self::TcpdumpKeeping | Self::Dumpcap => Duration::from_millis(1200),
        }
    }

    /// What it says on stderr when it captures.
    fn ready(self) -> &'static str {
        match self {
            Self::Retroscope | Self::RetroscopeXdp => "recording on",
            Self::Tcpdump | Self::TcpdumpKeeping => "listening on",
            Self::Dumpcap => "File: ",
            Self::Minimal => "ready",
        }
    }
}

/// The memory that a contestant is given.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    /// Memory that packets are copied into, by those that keep them; a multiple of 1 MiB.
    pub(crate) ring_bytes: u64,
    /// The kernel's buffer, a multiple of 1 MiB; `None`: what the program takes by itself.
    pub(crate) buffer_bytes: Option<u64>,
}

/// What became of a load.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Trial {
    pub(crate) sent: Sent,
    /// Packets that the program says it captured.
    pub(crate) captured: u64,
}

/// A program and how it is run.
#[derive(Debug)]
pub(crate) struct Contestant {
    kind: Kind,
    programs: Programs,
    directory: PathBuf,
    room: Room,
    seats: Seats,
    /// Where it keeps packets, if in files.
    files: Option<Files>,
}

impl Contestant {
    pub(crate) fn new(
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

    /// The same with files to keep packets in.
    pub(crate) fn with_files(self) -> Result<Self, Failure> {
        let files = Some(Files::new()?);
        Ok(Self { files, ..self })
    }

    /// Sends the load and returns the ns of processor time for each packet that was captured: by the recorder all of them, at the
    /// first try. The others, whose buffers are smaller, may try again where the machine was busy with something else; a try that
    /// does not count is told.
    pub(crate) fn time(&self, veth: &Veth, load: Load) -> Result<f64, Failure> {
        let mut more = match self.kind {
            Kind::Retroscope | Kind::RetroscopeXdp => 0,
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
        let mut process = Process::start(self.command(veth), self.kind.ready(), self.seats)?;
        let start_ns = process.cpu_settled()?;
        send(&self.programs.retroscope, veth, self.seats, load)?;
        std::thread::park_timeout(self.kind.lag());
        let cpu_ns = process.cpu_settled()? - start_ns;
        let (stdout, stderr) = process.stop()?;
        let (seen, lapped) = self.captured(&stdout, &stderr)?;
        if lapped > 0 {
            return Err(Failure::Lapped { packets: lapped });
        }
        let needed = match self.kind {
            Kind::Retroscope | Kind::RetroscopeXdp | Kind::TcpdumpKeeping => load.count,
            _ => load.count - load.count / LOSS_SHARE,
        };
        let kept = match &self.files {
            Some(files) => files.packets(load.size)?,
            None => seen,
        };
        for seen in [seen, kept] {
            if !(needed..=load.count).contains(&seen) {
                return Err(Failure::Count {
                    expected: load.count,
                    seen,
                });
            }
        }
        Ok(cpu_ns as f64 / seen as f64)
    }

    /// Sends the load and returns what became of it.
    pub(crate) fn try_load(&self, veth: &Veth, load: Load) -> Result<Trial, Failure> {
        let mut process = Process::start(self.command(veth), self.kind.ready(), self.seats)?;
        let sent = send(&self.programs.retroscope, veth, self.seats, load)?;
        std::thread::park_timeout(self.kind.lag());
        let (stdout, stderr) = process.stop()?;
        let (captured, _) = self.captured(&stdout, &stderr)?;
        Ok(Trial { sent, captured })
    }

    fn command(&self, veth: &Veth) -> Command {
        let Room {
            ring_bytes,
            buffer_bytes,
        } = self.room;
        let mebibytes = |bytes: u64| format!("{}MiB", bytes >> 20);
        match self.kind {
            Kind::Retroscope | Kind::RetroscopeXdp => {
                let mut command = veth.command(&self.programs.retroscope);
                command.args(["record", "--json", "-i", Veth::TO, "--trigger", TRIGGER]);
                command.args(["--ring", &mebibytes(ring_bytes)]);
                if self.kind == Kind::RetroscopeXdp {
                    command.args(["--engine", "af-xdp"]);
                }
                if let Some(bytes) = buffer_bytes {
                    command.args(["--capture-buffer", &mebibytes(bytes)]);
                }
                command.arg("-w").arg(&self.directory);
                command
            }
            Kind::Tcpdump | Kind::TcpdumpKeeping => {
                let mut command = veth.command(Path::new("tcpdump"));
                command.args(["-n", "-i", Veth::TO]);
                match &self.files {
                    Some(files) => command.args(files.arguments()),
                    None => command.args(["-w", "/dev/null"]),
                };
                if let Some(bytes) = buffer_bytes {
                    command.args(["-B", &(bytes >> 10).to_string()]);
                }
                command
            }
            Kind::Dumpcap => {
                let mut command = veth.command(Path::new("dumpcap"));
                command.args(["-q", "-i", Veth::TO, "-w", "/dev/null"]);
                if let Some(bytes) = buffer_bytes {
                    command.args(["-B", &(bytes >> 20).to_string()]);
                }
                command
            }
            Kind::Minimal => {
                let mut command = veth.command(&self.programs.minimal);
                command.args([Veth::TO, &ring_bytes.to_string()]);
                command
            }
        }
    }

    /// How many packets it says that it captured, and how many the recorder's analyzer missed of those. The recorder's are
    /// those analyzed.
    fn captured(&self, stdout: &str, stderr: &str) -> Result<(u64, u64), Failure> {
        let counts = match self.kind {
            Kind::Retroscope | Kind::RetroscopeXdp => {
                let line = stdout.lines().last().unwrap_or_default();
                let summary: serde_json::Value = serde_json::from_str(line)
                    .map_err(|error| Failure::system("the recorder's summary", error))?;
                let analyzers = &summary["analyzers"];
                analyzers["analyzed"]
                    .as_u64()
                    .zip(analyzers["lapped"].as_u64())
            }
            Kind::Tcpdump | Kind::TcpdumpKeeping => {
                let line = stderr
                    .lines()
                    .find(|line| line.ends_with("packets captured"));
                let count = line.and_then(|line| line.split(' ').next()?.parse().ok());
                count.map(|count| (count, 0))
            }
            Kind::Dumpcap => {
                let mut lines = stderr.split(['\r', '\n']).rev();
                let count = lines.find_map(|line| line.strip_prefix("Packets captured: "));
                count.and_then(|count| Some((count.trim().parse().ok()?, 0)))
            }
            Kind::Minimal => {
                let count = stdout.split(' ').next().and_then(|word| word.parse().ok());
                count.map(|count| (count, 0))
            }
        };
        let name = self.kind.name();
        counts.ok_or_else(|| Failure::Unsound(format!("{name} told no count: {stdout}{stderr}")))
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
        Err(Failure::Deadline {
            seconds: LIMIT.as_secs(),
        })
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
    fn stop(&mut self) -> Result<(String, String), Failure> {
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
        let programs = Programs {
            retroscope: PathBuf::new(),
            minimal: PathBuf::new(),
        };
        let room = Room {
            ring_bytes: 1 << 30,
            buffer_bytes: None,
        };
        let of = |kind, stdout, stderr| {
            Contestant::new(kind, &programs, Path::new(""), room, Seats::spread())
                .captured(stdout, stderr)
        };
        let tcpdump = "listening on v1\n7 packets captured\n9 packets received by filter\n";
        assert_eq!(of(Kind::Tcpdump, "", tcpdump), Ok((7, 0)));
        let dumpcap = "File: /dev/null\nPackets: 3 \rPackets captured: 8\nPackets received/dropped on interface 'v1': 8/0\n";
        assert_eq!(of(Kind::Dumpcap, "", dumpcap), Ok((8, 0)));
        assert_eq!(of(Kind::Minimal, "12 0\n", ""), Ok((12, 0)));
        let summary = r#"{"analyzers":{"analyzed":5,"lapped":2}}"#;
        assert_eq!(of(Kind::Retroscope, summary, ""), Ok((5, 2)));
        assert!(of(Kind::Tcpdump, "", "no permission").is_err());
        assert!(of(Kind::Dumpcap, "", "no permission").is_err());
    }
}
