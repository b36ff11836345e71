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

use super::{Load, Programs, veth::Veth};
use crate::contest::Failure;

/// Nothing takes as long.
const LIMIT: Duration = Duration::from_secs(30);
/// Between two looks at a process that is becoming idle.
const LOOK: Duration = Duration::from_millis(30);
/// An idle program takes less processor time than this between two looks, ns: a twentieth.
const IDLE_NS: u64 = 1_500_000;
/// The trigger filter of the recorder. None of the frames has this port.
const TRIGGER: &str = "udp port 60000";
/// Memory that packets are copied into.
const RING_BYTES: u64 = 1 << 30;

/// Who captures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Retroscope,
    Tcpdump,
    Minimal,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::Retroscope, Self::Tcpdump, Self::Minimal];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Retroscope => "retroscope",
            Self::Tcpdump => "tcpdump",
            Self::Minimal => "minimal",
        }
    }

    /// How long the last packets stay in the kernel: libpcap has a block that is not full handed over after a second.
    fn lag(self) -> Duration {
        match self {
            Self::Retroscope | Self::Minimal => Duration::from_millis(20),
            Self::Tcpdump => Duration::from_millis(1200),
        }
    }

    /// What it says on stderr when it captures.
    fn ready(self) -> &'static str {
        match self {
            Self::Retroscope => "recording on",
            Self::Tcpdump => "listening on",
            Self::Minimal => "ready",
        }
    }
}

/// A program and how it is run.
#[derive(Debug)]
pub(crate) struct Contestant {
    kind: Kind,
    programs: Programs,
    directory: PathBuf,
}

impl Contestant {
    pub(crate) fn new(kind: Kind, programs: &Programs, folder: &Path) -> Self {
        Self {
            kind,
            programs: programs.clone(),
            directory: folder.join("capture-dumps"),
        }
    }

    /// Sends the load and returns the ns of processor time for each packet.
    pub(crate) fn run(&self, veth: &Veth, load: Load) -> Result<f64, Failure> {
        let mut process = Process::start(self.command(veth), self.kind.ready())?;
        let start_ns = process.cpu_settled()?;
        send(&self.programs.retroscope, veth, load)?;
        std::thread::park_timeout(self.kind.lag());
        let cpu_ns = process.cpu_settled()? - start_ns;
        let (stdout, stderr) = process.stop()?;
        let seen = self.captured(&stdout, &stderr)?;
        if seen != load.count {
            return Err(Failure::Count {
                expected: load.count,
                seen,
            });
        }
        Ok(cpu_ns as f64 / seen as f64)
    }

    fn command(&self, veth: &Veth) -> Command {
        match self.kind {
            Kind::Retroscope => {
                let mut command = veth.command(&self.programs.retroscope);
                let ring = RING_BYTES.to_string();
                command.args(["record", "--json", "-i", Veth::TO, "--ring", &ring]);
                command
                    .args(["--trigger", TRIGGER, "-w"])
                    .arg(&self.directory);
                command
            }
            Kind::Tcpdump => {
                let mut command = veth.command(Path::new("tcpdump"));
                command.args(["-n", "-i", Veth::TO, "-w", "/dev/null"]);
                command
            }
            Kind::Minimal => {
                let mut command = veth.command(&self.programs.minimal);
                command.args([Veth::TO, &RING_BYTES.to_string()]);
                command
            }
        }
    }

    /// How many packets it says that it captured. The recorder's are those analyzed, if none was missed.
    fn captured(&self, stdout: &str, stderr: &str) -> Result<u64, Failure> {
        let count = match self.kind {
            Kind::Retroscope => {
                let line = stdout.lines().last().unwrap_or_default();
                let summary: serde_json::Value = serde_json::from_str(line)
                    .map_err(|error| Failure::system("the recorder's summary", error))?;
                let analyzers = &summary["analyzers"];
                if let Some(packets @ 1..) = analyzers["lapped"].as_u64() {
                    return Err(Failure::Lapped { packets });
                }
                analyzers["analyzed"].as_u64()
            }
            Kind::Tcpdump => {
                let line = stderr
                    .lines()
                    .find(|line| line.ends_with("packets captured"));
                line.and_then(|line| line.split(' ').next()?.parse().ok())
            }
            Kind::Minimal => stdout.split(' ').next().and_then(|word| word.parse().ok()),
        };
        let name = self.kind.name();
        count.ok_or_else(|| Failure::Unsound(format!("{name} told no count: {stdout}{stderr}")))
    }
}

/// A program that runs.
#[derive(Debug)]
struct Process {
    child: Child,
    stderr: Option<JoinHandle<String>>,
}

impl Process {
    /// Starts it and waits until it says `ready` on stderr.
    fn start(mut command: Command, ready: &str) -> Result<Self, Failure> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
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

/// Sends the load from the other end.
fn send(retroscope: &Path, veth: &Veth, load: Load) -> Result<(), Failure> {
    let mut command = veth.command(retroscope);
    command.args(["generate", "-i", Veth::FROM, "--yes", "-q"]);
    command.args(["--size", &load.size.to_string()]);
    command.args(["-c", &load.count.to_string()]);
    command.args(["--rate", &format!("{}pps", load.rate)]);
    let output = command
        .output()
        .map_err(|error| Failure::system("starting the sender", error))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(Failure::CannotRun(format!("the sender: {said}")))
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
        let of = |kind, stdout, stderr| {
            Contestant::new(kind, &programs, Path::new("")).captured(stdout, stderr)
        };
        let tcpdump = "listening on v1\n7 packets captured\n9 packets received by filter\n";
        assert_eq!(of(Kind::Tcpdump, "", tcpdump), Ok(7));
        assert_eq!(of(Kind::Minimal, "12 0\n", ""), Ok(12));
        let summary = r#"{"analyzers":{"analyzed":5,"lapped":0}}"#;
        assert_eq!(of(Kind::Retroscope, summary, ""), Ok(5));
        let lapped = r#"{"analyzers":{"analyzed":5,"lapped":2}}"#;
        assert_eq!(
            of(Kind::Retroscope, lapped, ""),
            Err(Failure::Lapped { packets: 2 })
        );
        assert!(of(Kind::Tcpdump, "", "no permission").is_err());
    }
}
