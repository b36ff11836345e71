//! A run of `make bench-shed`: a recorder, a sender and, for figure 12, Suricata on the packets.

use std::{
    fs,
    process::{Command, Stdio},
    time::Duration,
};

use rustix::param::clock_ticks_per_second;
use serde_json::Value;
use tempfile::TempDir;

use super::{
    Variant,
    traffic::{Frames, SendTime},
};
use crate::{
    capture::{contestant::Process, path, pause, sender::Seats, veth::Veth},
    measure::{Failure, check_count},
    pin,
    session::Session,
};

/// A trigger function that needs 40 to 80 µs for a packet on a 2-core Xeon guest.
const SLOW: &str = "return function(pkt) local n = 1 for i = 1, 5000 do n = (n * 7 + i) % 1013 end return n < 0 end";
/// Rounds of the loop of [`SLOW`] for a packet.
pub(super) const SLOW_ROUNDS: f64 = 5000.0;
const SHUNT: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../examples/modules/shunt-tls.lua"
);
/// Arguments of a recorder with [`SLOW`].
pub(super) const SLOW_SCRIPT: &str = "--trigger-lua FOLDER/slow.lua";
/// Packets usually need less time from the interface to the ring.
const LAG: Duration = Duration::from_millis(200);
/// A sender that needs more than this multiple of the planned time had another rate.
const LATE: f64 = 1.1;
/// The first rate in the search for the loss-free rate: usually far more than a recorder analyzes
/// with [`SLOW`].
const FLOOD: f64 = 150_000.0;
/// A try of the search has packets for this time at most, in seconds.
const TRY_SECONDS: f64 = 3.0;
const TRIES_MAX: usize = 8;
/// The share of packets that must be analyzed when the sender ends. The other packets have just
/// arrived.
const ANALYZED: f64 = 0.98;

/// The counts of a run, and CPU times in percent of the time in which packets arrived. Suricata
/// runs after this time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Outcome {
    pub(super) sent: u64,
    pub(super) kernel: u64,
    pub(super) shed: u64,
    /// Flow records of Suricata.
    pub(super) connections: u64,
    /// Other records of Suricata, except statistics and anomalies.
    pub(super) events: u64,
    pub(super) sender_cpu: f64,
    pub(super) recorder_cpu: f64,
    pub(super) suricata_cpu: f64,
}

/// Traffic, network namespace and files that all runs share.
#[derive(Debug)]
pub(super) struct Lab {
    /// Path of `retroscope`.
    program: String,
    veth: Veth,
    seats: Seats,
    frames: Frames,
    folder: TempDir,
    /// MiB of the ring of [`Self::recorder`] for a variant that may lose packets.
    ring_mib: usize,
}

impl Lab {
    /// The lab of figure 12: the capture, and a ring for a quarter of its packets.
    ///
    /// # Errors
    /// [`Failure::CannotRun`]: no Suricata, capture or root. [`Failure::Wrong`]: a call failed.
    pub(super) fn of_capture(session: &Session, copies: u8) -> Result<Self, Failure> {
        if Command::new("suricata").arg("-V").output().is_err() {
            let why = "needs Suricata, which scripts/suricata.sh installs";
            return Err(Failure::CannotRun(why.to_owned()));
        }
        let frames = Frames::read(copies)?;
        // For each packet 18 bytes for its descriptor and a share of the unused ends of buckets,
        // and 4 MiB for a bucket that is being overwritten.
        let full = frames.len() / 4;
        let ring_mib = ((frames.bytes(full) + 18 * full) >> 20) + 4;
        Self::new(session, frames, ring_mib)
    }

    /// The lab of figures 3 and 5: frames of one size.
    ///
    /// # Errors
    /// [`Failure::CannotRun`]: root is missing. [`Failure::Wrong`]: a call failed.
    pub(super) fn of_bursts(session: &Session) -> Result<Self, Failure> {
        Self::new(session, Frames::alike(), 64)
    }

    fn new(session: &Session, frames: Frames, ring_mib: usize) -> Result<Self, Failure> {
        let program = path(session.programs.retroscope.as_ref())?;
        let veth = Veth::new()?;
        for interface in ["v0", "v1"] {
            veth.set(interface, &["mtu", "65535"])?;
        }
        let folder = TempDir::new().map_err(|error| Failure::system("mkdir", error))?;
        let lab = Self {
            program,
            veth,
            seats: Seats::spread(pin::cpus()),
            frames,
            folder,
            ring_mib,
        };
        lab.write("slow.lua", SLOW)?;
        Ok(lab)
    }

    /// Writes a file into the folder of all runs, which arguments of the recorder call `FOLDER`.
    pub(super) fn write(&self, name: &str, text: &str) -> Result<(), Failure> {
        let written = fs::write(self.folder.path().join(name), text);
        written.map_err(|error| Failure::system("write", error))
    }

    /// A rate at which the recorder analyzes packets as fast as they arrive, in packets a second.
    /// Each further try has 98 % ([`ANALYZED`]) of the rate at which the recorder analyzed packets
    /// in the try before.
    ///
    /// # Errors
    /// [`Failure::Unsound`]: the last try was too slow too. Failures of a try are returned too.
    pub(super) fn loss_free_rate(&self, plain: &Variant) -> Result<f64, Failure> {
        let mut rate = FLOOD;
        for _ in 0..TRIES_MAX {
            let packets = rate.min(self.frames.len() as f64 / TRY_SECONDS) * TRY_SECONDS;
            let recorder = self.recorder(plain)?;
            let time = self.send(count(packets), rate)?;
            let analyzed = self.analyzed()?;
            recorder.stop()?;
            if analyzed >= ANALYZED * packets {
                return Ok(rate);
            }
            rate = ANALYZED * analyzed / time.seconds;
        }
        let why = "no rate without loss was found".to_owned();
        Err(Failure::Unsound(why))
    }

    /// Sends packets at `percent` of the loss-free rate, for the same time at every rate, and has
    /// Suricata analyze what is in the ring then.
    ///
    /// # Errors
    /// [`Failure::Unsound`]: the sender was late. [`Failure::Count`], [`Failure::Wrong`].
    pub(super) fn run(
        &self,
        variant: &Variant,
        percent: u32,
        loss_free: f64,
    ) -> Result<Outcome, Failure> {
        let share = f64::from(percent) / 100.0;
        let packets = count(self.frames.len() as f64 * share / 4.0);
        let recorder = self.recorder(variant)?;
        let start_ns = recorder.cpu_ns()?;
        let time = self.send_in_time(packets, share * loss_free)?;
        let recorder_ns = recorder.cpu_ns()? - start_ns;
        pause(LAG);
        let (connections, events, suricata_seconds) = self.suricata()?;
        let summary = self.summary(recorder, packets as u64)?;
        let source = &summary["sources"][0];
        let percent = |seconds| 100.0 * seconds / time.seconds;
        Ok(Outcome {
            sent: packets as u64,
            kernel: number(&source["lost"]["kernel"])?,
            // A recorder that sheds nothing has no such counter.
            shed: source["lost"]["shed"].as_u64().unwrap_or_default(),
            connections,
            events,
            sender_cpu: percent(time.cpu_seconds),
            recorder_cpu: percent(recorder_ns as f64 / 1e9),
            suricata_cpu: percent(suricata_seconds),
        })
    }

    /// Ends a recorder, which must have received `sent` packets and disabled no script, and returns
    /// its summary.
    pub(super) fn summary(&self, recorder: Process, sent: u64) -> Result<Value, Failure> {
        let (stdout, _) = recorder.stop()?;
        let summary = parsed(stdout.lines().last().unwrap_or_default())?;
        check_count(sent, number(&summary["sources"][0]["received"])?)?;
        check_count(0, number(&summary["scripts_failed"])?)?;
        Ok(summary)
    }

    fn recorder(&self, variant: &Variant) -> Result<Process, Failure> {
        if variant.is_lossless {
            return self.recorder_with(5 * self.ring_mib, "", variant);
        }
        let overload = format!("--set capture-buffer=1MiB {SLOW_SCRIPT}");
        self.recorder_with(self.ring_mib, &overload, variant)
    }

    /// A recorder with more arguments. `FOLDER` and `SHUNT` are replaced in all.
    pub(super) fn recorder_with(
        &self,
        ring_mib: usize,
        overload: &str,
        variant: &Variant,
    ) -> Result<Process, Failure> {
        let folder = self.folder.path();
        let line = format!(
            "record --json -i v1 -w FOLDER/dumps --api unix:FOLDER/api --ring {ring_mib}MiB {overload} {} --trigger",
            variant.options,
        );
        let place = folder.display().to_string();
        let fill = |word: &str| word.replace("FOLDER", &place).replace("SHUNT", SHUNT);
        let words = [self.program.clone()].into_iter();
        let words = words.chain(line.split_whitespace().map(fill));
        let words = words.chain(["udp port 9".to_owned()]);
        Process::start(self.veth.command(words), "recording on", self.seats.program)
    }

    fn send(&self, count: usize, rate: f64) -> Result<SendTime, Failure> {
        let send = || self.frames.send("v0", count, rate);
        self.veth.run(|| pin::confined(self.seats.sender, send))?
    }

    /// Sends frames at a rate.
    ///
    /// # Errors
    /// [`Failure::Unsound`]: the sender was late. [`Failure::Wrong`]: it failed.
    pub(super) fn send_in_time(&self, count: usize, rate: f64) -> Result<SendTime, Failure> {
        let time = self.send(count, rate)?;
        let planned = count as f64 / rate;
        // The sender sleeps for a millisecond after each of its bursts.
        if time.seconds > LATE * planned + 0.01 {
            let why = format!("sending took {:.2} s instead of {planned:.2}", time.seconds);
            return Err(Failure::Unsound(why));
        }
        Ok(time)
    }

    /// A `retroscope` command that connects to the recorder's socket.
    fn client(&self, line: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.args(line.split(' ')).arg("--socket");
        command.arg(self.folder.path().join("api"));
        command
    }

    /// Number of packets that the recorder has analyzed.
    pub(super) fn analyzed(&self) -> Result<f64, Failure> {
        let output = self.client("status --json").output();
        let output = output.map_err(|error| Failure::system("status", error))?;
        let status = parsed(&String::from_utf8_lossy(&output.stdout))?;
        let analyzed = status["analyzers"]["analyzed"].as_f64();
        analyzed.ok_or_else(|| Failure::Wrong(format!("no count in {status}")))
    }

    /// Suricata's connections and events in the packets of the ring, and the seconds of its CPU
    /// time. Suricata loads no rules: its own rules report gaps, so fewer packets would give more
    /// events.
    fn suricata(&self) -> Result<(u64, u64, f64), Failure> {
        let failed = |error| Failure::system("suricata", error);
        let folder = TempDir::new().map_err(failed)?;
        let mut query = self.client("query -w -");
        let query = query.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut query = query.spawn().map_err(failed)?;
        let before = cpu_of_ended_children()?;
        let mut command = Command::new("suricata");
        command.args("-r /dev/stdin -k none -S /dev/null --runmode single -l".split(' '));
        command.arg(folder.path());
        command.stdin(query.stdout.take().map_or(Stdio::null(), Stdio::from));
        let output = command.output().map_err(failed)?;
        let cpu_seconds = cpu_of_ended_children()? - before;
        let queried = query.wait().map_err(failed)?;
        // Exit code 3 of the query means that packets are missing.
        if !output.status.success() || !matches!(queried.code(), Some(0 | 3)) {
            return Err(Failure::Wrong(format!("{queried:?} {output:?}")));
        }
        let records = fs::read_to_string(folder.path().join("eve.json")).map_err(failed)?;
        let (connections, events) = counted(&records)?;
        Ok((connections, events, cpu_seconds))
    }
}

/// The numbers of flow records, and of other records except statistics and anomalies.
fn counted(records: &str) -> Result<(u64, u64), Failure> {
    let (mut connections, mut events) = (0, 0);
    for line in records.lines() {
        match parsed(line)?["event_type"].as_str() {
            Some("flow") => connections += 1,
            Some("stats" | "anomaly") => {}
            _ => events += 1,
        }
    }
    Ok((connections, events))
}

/// A counter of the recorder's summary.
///
/// # Errors
/// [`Failure::Wrong`]: there is no number.
pub(super) fn number(value: &Value) -> Result<u64, Failure> {
    let wrong = || Failure::Wrong(format!("a counter is {value}"));
    value.as_u64().ok_or_else(wrong)
}

fn parsed(text: &str) -> Result<Value, Failure> {
    serde_json::from_str(text).map_err(|error| Failure::system("its JSON", error))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a number of packets"
)]
pub(super) fn count(packets: f64) -> usize {
    packets as usize
}

/// Seconds of CPU time of the child processes for which this process has waited.
fn cpu_of_ended_children() -> Result<f64, Failure> {
    let stat = fs::read_to_string("/proc/self/stat");
    let stat = stat.map_err(|error| Failure::system("/proc/self/stat", error))?;
    // proc(5): the name may contain any character, so count from its closing parenthesis; cutime
    // and cstime are fields 16 and 17.
    let (_, fields) = stat.rsplit_once(") ").unwrap_or_default();
    let ticks = fields.split(' ').skip(13).take(2).map(str::parse::<u64>);
    let ticks: u64 = ticks.filter_map(Result::ok).sum();
    Ok(ticks as f64 / clock_ticks_per_second() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_are_connections_and_statistics_are_no_events() {
        let kinds = ["flow", "stats", "dns", "anomaly", "flow", "http", "tls"];
        let line = |kind| format!("{{\"event_type\":\"{kind}\"}}\n");
        assert_eq!(counted(&kinds.map(line).concat()), Ok((2, 3)));
        assert!(matches!(counted("{"), Err(Failure::Wrong(_))));
    }

    #[test]
    fn cpu_time_is_that_of_children_that_ended() {
        let before = cpu_of_ended_children().unwrap();
        let work = "i=0; while [ $i -lt 300000 ]; do i=$((i + 1)); done";
        Command::new("sh").args(["-c", work]).status().unwrap();
        assert!(cpu_of_ended_children().unwrap() > before);
    }
}
