//! Live capture at high rates: the share of packets that each engine captures under overload
//! (survey, figures 10 and 11). [`lossless`] has the highest rate without loss, and [`stamps`] the
//! accuracy of time stamps.
//!
//! `shim/frame_source.c` sends frames into the receive queues of a veth device, usually one sender
//! for each queue. Under overload, a kernel thread does the receive work of each queue (threaded
//! NAPI), so that this work does not slow down the sender. Otherwise the sender's CPU does this
//! work. The kernel's threads and the program run on the CPUs without a sender, or else on any CPU.
//!
//! Every sent packet is captured, counted as lost by the program, or counted as dropped by the veth
//! device. If the numbers do not add up, rows of losses have no figure.

pub(crate) mod lossless;
pub(crate) mod stamps;

use std::{
    collections::HashSet, fs, io, os::unix::fs::symlink, process::Stdio, thread::park_timeout,
    time::Duration,
};

use rustix::process::Pid;
use tempfile::TempDir;

use super::{
    Programs,
    contestant::Process,
    path,
    shed::BRIEF_BELOW,
    veth::{Veth, printed},
};
use crate::{
    measure::{Failure, Figure, Spread},
    pin,
    session::Session,
    thesis::enough_cores,
};

/// Bytes of a packet in figure 11 of the survey, and in figure 10 the first of these.
const SIZES: [u32; 6] = [60, 128, 256, 512, 1024, 1500];
/// Receive queues in figure 10.
const QUEUES: [usize; 3] = [1, 2, 4];
/// Packets a second that the senders offer under overload, if they can: more than a core receives.
const OFFERED: f64 = 5e6;
/// Packets that a sender sends at once, except for [`stamps`].
const BURST: u32 = 64;
/// Turns of each case, and turns of a brief run.
const TURNS: (usize, usize) = (3, 1);
/// Packets usually need less time from the interface to the recorder's counters.
const LAG: Duration = Duration::from_millis(150);
/// Maximum number of readings until the counters of the veth device no longer change.
const SETTLE_MAX: u32 = 30;
/// The trigger filter of the recorder. No frame has this port.
const TRIGGER: &str = "udp dst port 60000";
const DROPPED: &str = "/sys/class/net/v1/statistics/rx_dropped";

/// A capture engine of the recorder, or another capture program.
#[derive(Debug)]
struct Engine {
    /// Name, as in names of rows.
    name: &'static str,
    /// These words follow the command line of [`RECORDER`], with the number of receive queues for
    /// `QUEUES`. `None`: another program.
    options: Option<&'static str>,
    /// The command line. [`Lab::start`] replaces the words in capitals.
    line: &'static str,
    /// Text on stderr when the program captures.
    ready: &'static str,
    /// Extracts two counts from stdout and stderr: packets captured, and packets lost.
    counts: fn(&str, &str) -> Option<(u64, u64)>,
    /// The veth device counts packets as dropped that the program counts as lost too.
    counts_twice: bool,
}

/// The recorder's command line. The rest are the options of an engine and the trigger filter.
const RECORDER: &str =
    "RETROSCOPE record --json -i v1 -w FOLDER/dumps --api unix:FOLDER/api --ring 256MiB";

const fn ours(name: &'static str, options: &'static str) -> Engine {
    Engine {
        name,
        options: Some(options),
        line: RECORDER,
        ready: "recording on",
        counts: counts_of_summary,
        counts_twice: false,
    }
}

const fn other(
    name: &'static str,
    line: &'static str,
    ready: &'static str,
    counts: fn(&str, &str) -> Option<(u64, u64)>,
) -> Engine {
    Engine {
        name,
        options: None,
        line,
        ready,
        counts,
        counts_twice: false,
    }
}

/// The engines that run over veth.
static ENGINES: [Engine; 4] = [
    ours("af-packet", "--set rx-threads=QUEUES"),
    Engine {
        counts_twice: true,
        ..ours("af-xdp", "--engine af-xdp")
    },
    ours("pcap", "--engine pcap"),
    other(
        "tcpdump",
        "tcpdump -n -i v1 -Z root --time-stamp-precision=nano -w FILE",
        "listening on",
        counts_of_tcpdump,
    ),
];

/// The counts in the recorder's summary.
fn counts_of_summary(stdout: &str, _stderr: &str) -> Option<(u64, u64)> {
    let summary: serde_json::Value = serde_json::from_str(stdout.lines().last()?).ok()?;
    let source = &summary["sources"][0];
    let lost = source["lost"].as_object()?.values();
    let lost = lost.filter_map(serde_json::Value::as_u64).sum();
    Some((source["stored"].as_u64()?, lost))
}

/// At its end tcpdump may not have read its last block, which it would read a second later. So all
/// packets that the kernel did not drop count as captured.
fn counts_of_tcpdump(_stdout: &str, stderr: &str) -> Option<(u64, u64)> {
    let count = |what| {
        let count = stderr.lines().find_map(|line| line.strip_suffix(what))?;
        count.parse::<u64>().ok()
    };
    let lost = count(" packets dropped by kernel")?;
    Some((count(" packets received by filter")? - lost, lost))
}

/// The packets of all senders.
#[derive(Debug, Clone, Copy)]
struct Sent {
    packets: u64,
    /// `CLOCK_REALTIME - CLOCK_MONOTONIC`.
    offset_ns: i64,
}

/// Numbers of the packets of a run. [`Self::checked`] ensures `captured + lost == sent`.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Outcome {
    sent: u64,
    captured: u64,
    lost: u64,
    seconds: f64,
}

impl Outcome {
    /// # Errors
    /// [`Failure::Unsound`]: a packet is missing, or counted twice.
    fn checked(self) -> Result<Self, Failure> {
        if self.captured + self.lost == self.sent {
            return Ok(self);
        }
        Err(Failure::Unsound(format!("does not add up: {self:?}")))
    }

    fn percent(&self) -> f64 {
        100.0 * self.captured as f64 / self.sent as f64
    }

    /// Packets a second that were sent, in millions.
    fn mpps(&self) -> f64 {
        self.sent as f64 / self.seconds / 1e6
    }
}

/// A veth pair, its senders, and the CPUs.
#[derive(Debug)]
struct Lab {
    retroscope: String,
    source: String,
    veth: Veth,
    queues: usize,
    /// The CPU of each sender. Its number chooses the queue.
    senders: Vec<usize>,
    /// The CPUs of the kernel's threads and of the program. Empty: any CPU.
    others: Vec<usize>,
    folder: TempDir,
}

impl Lab {
    /// `is_threaded`: a thread of the kernel receives for each queue, not the sender.
    ///
    /// # Errors
    /// [`Failure::CannotRun`]: root or a program is missing. [`Failure::Wrong`]: a call failed.
    fn new(programs: &Programs, queues: usize, is_threaded: bool) -> Result<Self, Failure> {
        let (senders, others) = seats(pin::cpus(), queues);
        let lab = Self {
            retroscope: path(programs.retroscope.as_ref())?,
            source: path(programs.frame_source.as_ref())?,
            veth: Veth::with_queues(queues)?,
            queues,
            senders,
            others,
            folder: TempDir::new().map_err(|error| Failure::system("mkdir", error))?,
        };
        // The first frames, so that the device has receive queues.
        lab.send(SIZES[0], Duration::from_millis(1), 0.0, 1)?;
        if is_threaded {
            let before = kernel_threads()?;
            let on = "echo 1 > /sys/class/net/v1/threaded";
            lab.veth.output(&["sh", "-c", on])?;
            for thread in kernel_threads()?.difference(&before) {
                pin::move_to(*thread, &lab.others);
            }
        }
        Ok(lab)
    }

    /// Packets that the receiving veth device dropped.
    fn dropped(&self) -> Result<u64, Failure> {
        let text = self.veth.output(&["cat", DROPPED])?;
        let failed = |error| Failure::system(DROPPED, error);
        text.trim().parse().map_err(failed)
    }

    /// Waits until the receiving veth device hands over and drops no more, or [`SETTLE_MAX`]
    /// readings: on a busy machine the kernel's threads may be late.
    fn settle(&self) -> Result<(), Failure> {
        let received = "/sys/class/net/v1/statistics/rx_packets";
        let mut before = String::new();
        for _ in 0..SETTLE_MAX {
            park_timeout(LAG);
            let counts = self.veth.output(&["cat", received, DROPPED])?;
            if counts == before {
                break;
            }
            before = counts;
        }
        Ok(())
    }

    /// Sends for a time, with all senders together at `rate` packets a second (0: as fast as
    /// possible).
    fn send(&self, size: u32, time: Duration, rate: f64, burst: u32) -> Result<Sent, Failure> {
        let rate = rate / self.senders.len() as f64;
        let words = format!("v0 v1 {size} {} {rate} {burst}", time.as_millis());
        let mut children = Vec::new();
        for cpu in &self.senders {
            let words = words.split(' ').map(str::to_owned);
            let mut command = self
                .veth
                .command([self.source.clone()].into_iter().chain(words));
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            let child = pin::confined(&[*cpu], || command.spawn());
            children.push(child.map_err(|error| Failure::system("starting ip", error))?);
        }
        let mut sent = Sent {
            packets: 0,
            offset_ns: 0,
        };
        for child in children {
            let output = child.wait_with_output();
            let text = printed(output, &self.source)?;
            let mut numbers = text.split_whitespace().map(str::parse::<i64>);
            let (Some(Ok(packets)), Some(Ok(offset_ns))) = (numbers.next(), numbers.next()) else {
                return Err(Failure::Wrong(format!("frame_source printed {text}")));
            };
            sent.packets += packets.unsigned_abs();
            sent.offset_ns = offset_ns;
        }
        Ok(sent)
    }

    /// Starts the program. Another program than the recorder writes its packets to `file`, or to
    /// the folder.
    fn start(&self, engine: &Engine, file: &str) -> Result<Process, Failure> {
        let folder = self.folder.path().display().to_string();
        let fill = |word: &str| {
            let word = word.replace("QUEUES", &self.queues.to_string());
            let word = word.replace("FILE", file).replace("FOLDER", &folder);
            word.replace("RETROSCOPE", &self.retroscope)
        };
        let options = engine.options.unwrap_or_default().split_whitespace();
        let trigger = engine.options.map(|_| ["--trigger", TRIGGER]);
        let words = engine.line.split(' ').chain(options).map(fill);
        let words = words.chain(trigger.into_iter().flatten().map(str::to_owned));
        Process::start(self.veth.command(words), engine.ready, &self.others)
    }

    /// Sends packets for a time while the program runs.
    fn run(
        &self,
        engine: &Engine,
        size: u32,
        time: Duration,
        rate: f64,
    ) -> Result<Outcome, Failure> {
        let before = self.dropped()?;
        // A link, because a program that fails may remove its file.
        let null = self.folder.path().join("null");
        let _ = fs::remove_file(&null);
        symlink("/dev/null", &null).map_err(|error| Failure::system("symlink", error))?;
        let process = self.start(engine, &null.display().to_string())?;
        let sent = self.send(size, time, rate, BURST)?.packets;
        self.settle()?;
        let (stdout, stderr) = process.stop()?;
        let dropped = self.dropped()? - before;
        let counts = (engine.counts)(&stdout, &stderr);
        let none = || Failure::Unsound(format!("{} told no count: {stdout}{stderr}", engine.name));
        let (captured, lost) = counts.ok_or_else(none)?;
        let outcome = Outcome {
            sent,
            captured,
            lost: dropped + if engine.counts_twice { 0 } else { lost },
            seconds: time.as_secs_f64(),
        };
        outcome.checked()
    }
}

/// The CPU of a sender for each of `queues` queues, and the other CPUs. A sender on CPU `c` reaches
/// queue `c` modulo `queues`. A queue that no CPU reaches has no sender.
fn seats(cpus: &[usize], queues: usize) -> (Vec<usize>, Vec<usize>) {
    let senders = (0..queues).filter_map(|queue| cpus.iter().find(|cpu| *cpu % queues == queue));
    let senders: Vec<usize> = senders.copied().collect();
    let others = cpus.iter().filter(|cpu| !senders.contains(cpu));
    let others = others.copied().collect();
    (senders, others)
}

/// The kernel's threads that receive for a device `v1`.
fn kernel_threads() -> Result<HashSet<Pid>, Failure> {
    let processes = fs::read_dir("/proc").map_err(|error| Failure::system("/proc", error))?;
    let ours = processes.filter_map(|process| {
        let process = process.ok()?;
        let name = fs::read_to_string(process.path().join("comm")).ok()?;
        let number = process.file_name().to_str()?.parse().ok()?;
        name.starts_with("napi/v1-")
            .then(|| Pid::from_raw(number))?
    });
    Ok(ours.collect())
}

/// Turns of a case.
fn turns(session: &Session) -> usize {
    if session.scale.seconds < BRIEF_BELOW {
        TURNS.1
    } else {
        TURNS.0.min(session.scale.repetitions)
    }
}

/// Percentage of the sent packets that each engine captures under overload.
pub(crate) fn rows(session: &Session) -> io::Result<()> {
    let names = |engine: &str, size, queues| {
        let by_queues = (size == SIZES[0]).then(|| format!("overload/{engine}/{queues}q"));
        let by_size = (queues == 1).then(|| format!("overload/{engine}/{size}B"));
        let names = by_queues.into_iter().chain(by_size);
        names.filter(|name| session.wants(name)).collect::<Vec<_>>()
    };
    for queues in QUEUES {
        let mut lab = None;
        for (size, engine) in SIZES
            .iter()
            .flat_map(|size| ENGINES.iter().map(move |it| (*size, it)))
        {
            let names = names(engine.name, size, queues);
            if names.is_empty() {
                continue;
            }
            let lab = lab.get_or_insert_with(|| {
                enough_cores(queues.max(2), false)?;
                Lab::new(&session.programs, queues, true)
            });
            let percent = lab.as_ref().map_err(Clone::clone).and_then(|lab| {
                let run = |_| lab.run(engine, size, session.scale.time(0.5), OFFERED);
                let outcomes = (0..turns(session)).map(run);
                share(&outcomes.collect::<Result<Vec<_>, _>>()?, lab)
            });
            for name in names {
                session.put(&name, None, percent.clone())?;
            }
        }
    }
    Ok(())
}

/// The percentage of several runs, with the sent packets a second as a remark.
fn share(outcomes: &[Outcome], lab: &Lab) -> Result<Figure, Failure> {
    let percents: Vec<f64> = outcomes.iter().map(Outcome::percent).collect();
    let sent: Vec<f64> = outcomes.iter().map(Outcome::mpps).collect();
    let mut remark = format!("of {:.2} Mpps", Spread::of(&sent)?.median);
    if lab.others.is_empty() {
        let (threads, cores) = (2 * lab.queues, pin::cores());
        remark += &format!(", {threads} threads on {cores} CPUs");
    }
    Ok(Figure {
        spread: Spread::of(&percents)?,
        remark: Some(remark),
    })
}

#[cfg(test)]
mod tests {
    use std::{
        path::{Path, PathBuf},
        process::Command,
    };

    use super::*;

    #[test]
    fn a_sender_has_the_cpu_of_its_queue() {
        assert_eq!(seats(&[0, 1], 1), (vec![0], vec![1]));
        assert_eq!(seats(&[0, 2, 1, 3], 2), (vec![0, 1], vec![2, 3]));
        assert_eq!(seats(&[4, 5], 2), (vec![4, 5], vec![]));
        assert_eq!(seats(&[0, 1], 4).0, [0, 1], "queues 2 and 3 have no sender");
    }

    #[test]
    fn packets_are_captured_or_lost() {
        let outcome = Outcome {
            sent: 200,
            captured: 50,
            lost: 150,
            seconds: 0.5,
        };
        assert_eq!(outcome.checked(), Ok(outcome));
        assert_eq!((outcome.percent(), outcome.mpps()), (25.0, 0.0004));
        let missing = Outcome {
            lost: 149,
            ..outcome
        };
        assert!(matches!(missing.checked(), Err(Failure::Unsound(_))));
        let summary = r#"{"sources":[{"stored":5,"lost":{"kernel":2,"shed":1,"nic":null}}]}"#;
        assert_eq!(counts_of_summary(summary, ""), Some((5, 3)));
        let tcpdump =
            "5 packets captured\n9 packets received by filter\n2 packets dropped by kernel\n";
        assert_eq!(counts_of_tcpdump("", tcpdump), Some((7, 2)));
        assert_eq!(counts_of_tcpdump("", "no permission"), None);
    }

    /// The recorder of this build, if there is one, and the sender, which this function compiles.
    pub(super) fn programs(folder: &Path) -> Programs {
        let source = folder.join("frame_source");
        let shim = concat!(env!("CARGO_MANIFEST_DIR"), "/shim/frame_source.c");
        let mut compiler = Command::new("cc");
        compiler
            .args(["-O2", "-Wall", "-Werror", shim, "-o"])
            .arg(&source);
        assert!(compiler.status().unwrap().success());
        let mut retroscope: PathBuf = std::env::current_exe().unwrap();
        retroscope.pop();
        retroscope.set_file_name("retroscope");
        Programs {
            retroscope: Some(retroscope),
            minimal: None,
            frame_source: Some(source),
        }
    }

    /// Needs root; the recorder's engines also need its program in the folder of the build.
    #[test]
    fn every_sent_packet_is_captured_or_lost_by_each_engine() {
        let folder = TempDir::new().unwrap();
        let programs = programs(folder.path());
        for queues in QUEUES {
            let lab = match Lab::new(&programs, queues, true) {
                Err(Failure::CannotRun(why)) => {
                    println!("SKIP: overload over veth: {why}");
                    return;
                }
                lab => lab.unwrap(),
            };
            for engine in &ENGINES {
                if engine.options.is_some() && !Path::new(&lab.retroscope).exists() {
                    println!("SKIP: {}: there is no {}", engine.name, lab.retroscope);
                    continue;
                }
                let run = || lab.run(engine, 60, Duration::from_millis(200), 0.0);
                // Other programs may keep the kernel's threads from their CPUs for a while.
                let outcome = run().or_else(|_| run()).or_else(|_| run());
                let outcome = outcome.unwrap_or_else(|failure| panic!("{engine:?}: {failure}"));
                println!("{queues} queues, {}: {outcome:?}", engine.name);
                assert!(outcome.captured > 0, "{engine:?}: {outcome:?}");
            }
        }
    }
}
