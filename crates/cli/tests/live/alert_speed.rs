//! Time from an alert until the file of its dump has a packet, while a busy link is recorded: a
//! measurement for a release build.
//!
//! `cargo test --release -p retroscope-cli --test live alert_speed -- --ignored --nocapture`
//!
//! Each alert is about a flow of the traffic, and has a timestamp that is 20 ms old. Before each
//! alert, the test writes 20 `flow` events, as an IDS does. The time runs from the write of an
//! alert's line into the socket until the dump's file contains a packet, which inotify(7) reports.
//! The packet then is in the file, but not yet safe from a power failure.

use std::{
    collections::HashMap,
    fs,
    io::{ErrorKind, Write as _},
    os::{fd::AsFd as _, unix::net::UnixStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::scope,
    time::{Duration, Instant},
};

use retroscope_packet::{LinkType, parse};
use retroscope_pcapfile::CaptureReader;
use retroscope_recorder::{Clock as _, SystemClock, rfc3339};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::inotify,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    marked::packets,
    namespace::Namespace,
    quiet,
    recorder::{PROGRAM, Recorder, cpu_time},
};

const FLOWS: u32 = 10_000;
/// Number of alerts of a measurement, each about a separate flow.
const ALERTS: u32 = 2000;
/// Goal: 99 of 100 alerts have their first packet in the file within this time.
const GOAL_MS: f64 = 200.0;
/// Number of `flow` events before each alert.
const OTHERS: usize = 20;
/// Age of an alert's timestamp when the alert is written, µs.
const LAG_US: i64 = 20_000;

/// A process that runs next to the recorder. It is killed when the value is dropped.
struct Beside(Child);

impl Drop for Beside {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The flows that `retroscope generate` makes, as fields of EVE, in the order of their packets.
fn flows(folder: &Path) -> Vec<Value> {
    let file = folder.join("flows.pcap");
    let mut command = Command::new(PROGRAM);
    command.args([
        "generate",
        "-q",
        "--flows",
        &FLOWS.to_string(),
        "-c",
        &FLOWS.to_string(),
        "-w",
    ]);
    assert!(command.arg(&file).status().unwrap().success());
    let mut reader = CaptureReader::open(&file).unwrap();
    let mut flows = Vec::new();
    while let Some(record) = reader.next().unwrap() {
        let parsed = parse(LinkType::ETHERNET, record.data);
        let (ip, ports) = (parsed.network.unwrap(), parsed.transport.unwrap());
        flows.push(json!({
            "src_ip": ip.src.to_string(), "dest_ip": ip.dst.to_string(), "src_port": ports.src, "dest_port": ports.dst, "proto": "UDP",
        }));
    }
    flows
}

fn now_us() -> i64 {
    SystemClock.now().wall_ns / 1000
}

fn stamp(us: i64) -> String {
    format!("{}+0000", &rfc3339(us * 1000)[..26])
}

/// Writes [`ALERTS`] alerts at a rate. Returns the time of each alert's write, by the trigger time
/// in the name of the dump's file. Also returns the number of lines for which the socket had no
/// room.
fn alert(socket: &Path, flows: &[Value], per_second: u32) -> (HashMap<String, Instant>, u64) {
    let mut stream = UnixStream::connect(socket).unwrap();
    // Suricata also writes without blocking.
    stream.set_nonblocking(true).unwrap();
    let mut refused = 0;
    let mut write = |line: String| match stream.write(format!("{line}\n").as_bytes()) {
        Ok(length) => {
            assert_eq!(length, line.len() + 1, "a line is torn");
            true
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => {
            refused += 1;
            false
        }
        Err(error) => panic!("{error}"),
    };
    let mut written = HashMap::new();
    let other = json!({ "timestamp": stamp(0), "event_type": "flow", "src_ip": "10.0.0.1", "dest_ip": "10.0.0.2", "pad": "x".repeat(600) }).to_string();
    let start = Instant::now();
    for number in 0..ALERTS {
        while start.elapsed() < Duration::from_secs(1) * number / per_second {
            std::thread::park_timeout(Duration::from_micros(200));
        }
        (0..OTHERS).for_each(|_| _ = write(other.clone()));
        let us = now_us() - LAG_US;
        // Use no flow twice, so that each alert has its own dump.
        let mut line = flows[number as usize * 3 % flows.len()].clone();
        line["timestamp"] = json!(stamp(us));
        line["event_type"] = json!("alert");
        line["pkt_src"] = json!("wire/pcap");
        line["flow"] = json!({ "start": stamp(us - 100_000) });
        line["alert"] =
            json!({ "gid": 1, "signature_id": number, "rev": 1, "signature": "a measurement" });
        let name = rfc3339(us * 1000).replace(['-', ':'], "");
        let now = Instant::now();
        if write(line.to_string()) {
            written.insert(name, now);
        }
    }
    (written, refused)
}

/// Times when files of the directory first contained a packet, by the trigger time in their names.
/// Ends when [`ALERTS`] files have a packet, or when no further file gets a packet for 10 s.
fn watch(directory: &Path) -> HashMap<String, Instant> {
    let watch = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
    inotify::add_watch(&watch, directory, inotify::WatchFlags::MODIFY).unwrap();
    let mut seen: HashMap<String, Instant> = HashMap::new();
    let mut buffer = vec![std::mem::MaybeUninit::uninit(); 64 << 10];
    let mut last = Instant::now();
    while seen.len() < ALERTS as usize && last.elapsed() < Duration::from_secs(10) {
        let mut polled = [PollFd::new(&watch, PollFlags::IN)];
        let wait = Timespec {
            tv_sec: 0,
            tv_nsec: 100_000_000,
        };
        poll(&mut polled, Some(&wait)).unwrap();
        let mut events = inotify::Reader::new(watch.as_fd(), &mut buffer);
        while let Ok(event) = events.next() {
            let when = Instant::now();
            let name = event
                .file_name()
                .map(|name| name.to_string_lossy().into_owned());
            let Some(name) = name.filter(|name| name.ends_with(".pcapng.part")) else {
                continue;
            };
            let time = name.split('-').next().unwrap_or_default();
            if !seen.contains_key(time) && has_packet(&directory.join(&name)) {
                seen.insert(time.to_owned(), when);
                last = when;
            }
        }
    }
    seen
}

/// Whether an unfinished file contains a packet in its complete blocks.
fn has_packet(path: &Path) -> bool {
    let bytes = fs::read(path).unwrap_or_default();
    let mut at = 0;
    while let Some(head) = bytes.get(at..at + 8) {
        let number = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap());
        let length = number(4) as usize;
        if number(0) == 6 {
            return at + length <= bytes.len();
        }
        at += length.max(12);
    }
    false
}

/// Measures each combination of packet rate, past and alert rate, and prints the results. Fails if
/// a combination misses [`GOAL_MS`] or the socket had no room. The environment variables `RATES`
/// (kpps), `PASTS` (s), `ALERT_RATES` (per second) and `RING` replace the default values.
#[test]
#[ignore = "a measurement: takes minutes of an idle machine"]
fn alerts_are_answered_while_a_busy_link_is_recorded() {
    let _machine = quiet();
    let number =
        |name: &str, default: &str| std::env::var(name).unwrap_or_else(|_| default.to_owned());
    let (rates, pasts) = (number("RATES", "100,300,500"), number("PASTS", "1,10"));
    let (alerts, ring) = (number("ALERT_RATES", "100,500"), number("RING", "1GiB"));
    let mut missed = Vec::new();
    for past in pasts.split(',') {
        for rate in rates.split(',') {
            for alerts in alerts.split(',') {
                let Some(namespace) = Namespace::with_veth("alerts") else {
                    return;
                };
                let (p99_ms, refused) =
                    measure(&namespace, rate, past, alerts.parse().unwrap(), &ring);
                if p99_ms > GOAL_MS || refused > 0 {
                    missed.push(format!(
                        "{rate} kpps, past {past} s, {alerts} alerts/s: p99 {p99_ms} ms, {refused} lines found no room"
                    ));
                }
            }
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}

/// Returns the 99th percentile of the times to the first packet in ms, and the number of lines for
/// which the socket had no room. An alert without packets counts as an infinite time.
fn measure(
    namespace: &Namespace,
    kpps: &str,
    past: &str,
    per_second: u32,
    ring: &str,
) -> (f64, u64) {
    let folder = TempDir::with_prefix("retroscope-alerts-").unwrap();
    let flows = flows(folder.path());
    let socket = folder.path().join("alerts.sock");
    let line = format!(
        "-i v1 --ring {ring} --past {past}s --future 1s --alerts unix:{}",
        socket.display()
    );
    let recorder = Recorder::start_wrapped(namespace, &[], &crate::recorder::words(&line));
    let mut generate = Command::new(PROGRAM);
    generate.args([
        "generate",
        "-i",
        "v0",
        "--json",
        "--flows",
        &FLOWS.to_string(),
        "--rate",
        &format!("{kpps}kpps"),
    ]);
    generate.stdout(Stdio::piped()).stderr(Stdio::null());
    let start = Instant::now();
    let mut generate = Beside(namespace.enter(|| generate.spawn()).unwrap());
    // Before the first alert, the ring must contain the whole past.
    let warm = Duration::from_secs(past.parse::<u64>().unwrap() + 2);
    while start.elapsed() < warm {
        std::thread::park_timeout(Duration::from_millis(100));
    }
    fs::create_dir_all(recorder.directory()).unwrap();
    let directory: PathBuf = recorder.directory().to_owned();
    let before = (cpu_time(recorder.pid()), Instant::now());
    let ((written, refused), seen) = scope(|scope| {
        let watching = scope.spawn(|| watch(&directory));
        let told = alert(&socket, &flows, per_second);
        (told, watching.join().unwrap())
    });
    let cpu =
        (cpu_time(recorder.pid()) - before.0).as_secs_f64() / before.1.elapsed().as_secs_f64();
    let pid = rustix::process::Pid::from_child(&generate.0);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let mut said = String::new();
    std::io::Read::read_to_string(generate.0.stdout.as_mut().unwrap(), &mut said).unwrap();
    let sent: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    drop(generate);
    let outcome = recorder.stop();

    let mut times: Vec<Duration> = written
        .iter()
        .filter_map(|(name, when)| Some(seen.get(name)?.duration_since(*when)))
        .collect();
    times.sort_unstable();
    let at = |percent: usize| {
        let time = times.get((written.len() * percent / 100).min(written.len() - 1));
        time.map_or(f64::INFINITY, |time| time.as_secs_f64() * 1e3)
    };
    let (alerts, source) = (&outcome.json["alerts"], outcome.source());
    let packets: usize = outcome
        .dumps()
        .iter()
        .map(|dump| packets(&crate::capture::path(dump)).len())
        .sum();
    eprintln!(
        "asked {kpps} kpps, past {past} s, {per_second} alerts/s, ring {ring}: {} of {} alerts with packets in p50 {:.0} ms, p99 {:.0} ms, at most {:.0} ms; age p99 {:.0} ms; refused lines {refused}, lost {}, torn {}",
        times.len(),
        written.len(),
        at(50),
        at(99),
        at(100),
        alerts["age_p99_seconds"].as_f64().unwrap_or(f64::NAN) * 1e3,
        alerts["lines"]["lost"],
        alerts["lines"]["torn"],
    );
    eprintln!(
        "  received {} lost {} lapped {}; recorder {cpu:.2} CPUs; {packets} packets in dumps; sent {sent}; {}",
        source.received, source.lost, outcome.json["analyzers"]["missed"], alerts["outcomes"],
    );
    assert_eq!(
        (&alerts["lines"]["lost"], &alerts["lines"]["torn"]),
        (&json!(0), &json!(0))
    );
    (at(99), refused)
}
