//! Tests of flow records, cutoffs and the history goal with live traffic.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use retroscope_packet::LinkType;
use retroscope_pcapfile::{PcapOptions, PcapWriter};
use serde_json::Value;

use tempfile::TempDir;

use crate::{
    client::Api,
    namespace::Namespace,
    quiet,
    recorder::{PROGRAM, Recorder},
    shared,
    traffic::{Sender, tagged, udp},
};

/// Reads the `flow` events of addresses in 10.0.0.0/8. Returns the client port, the packets of each
/// direction and the bytes of each direction, by Community ID.
fn flows(text: &str) -> BTreeMap<String, [u64; 5]> {
    let lines = text.lines();
    let lines = lines.map(|line| serde_json::from_str::<Value>(line).unwrap());
    let lines = lines.filter(|line| line["event_type"] == "flow");
    lines
        .filter(|line| line["src_ip"].as_str().unwrap().starts_with("10."))
        .map(|line| {
            let id = line["community_id"].as_str().unwrap().to_owned();
            let count = |name: &str| line["flow"][name].as_u64().unwrap();
            let counts = [
                line["src_port"].as_u64().unwrap(),
                count("pkts_toserver"),
                count("pkts_toclient"),
                count("bytes_toserver"),
                count("bytes_toclient"),
            ];
            (id, counts)
        })
        .collect()
}

/// The frame with swapped IP addresses and ports, as the reply of the other endpoint.
fn answer(request: &[u8]) -> Vec<u8> {
    let mut frame = request.to_vec();
    for (to, from, len) in [(26, 30, 4), (30, 26, 4), (34, 36, 2), (36, 34, 2)] {
        frame[to..to + len].copy_from_slice(&request[from..from + len]);
    }
    frame
}

/// Output of `retroscope flows` for a file.
fn of_file(path: &Path) -> String {
    let output = Command::new(PROGRAM)
        .args(["flows", "-q", "--idle-timeout", "0", "-r"])
        .arg(path)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Requests arrive on one interface and replies on another, and two threads analyze the packets.
/// The flows must equal the flows of a file with both directions.
#[test]
fn directions_on_two_interfaces_are_the_flows_of_one_file() {
    let _machine = shared();
    let Some(namespace) = Namespace::with_veth("flows") else {
        return;
    };
    namespace.add_veth("w0", "w1");
    let directory = tempfile::tempdir().unwrap();
    let eve = directory.path().join("eve.json");
    let line = format!(
        "-i v1 -i w1 --ring 128MiB --set analyzers=2 --set idle-timeout=0 --trigger 'udp port 9' --eve {}",
        eve.display()
    );
    let recorder = Recorder::start(&namespace, &line);
    let (mut one, mut other) = (Sender::new(&namespace, "v0"), Sender::new(&namespace, "w0"));
    let path = directory.path().join("both.pcap");
    let file = fs::File::create(&path).unwrap();
    let mut writer = PcapWriter::new(file, PcapOptions::new(LinkType::ETHERNET)).unwrap();
    let mut time_ns = 0;
    let mut write = |frame: &[u8]| {
        time_ns += 1_000_000;
        let len = u32::try_from(frame.len()).unwrap();
        writer.record(time_ns, len, frame).unwrap();
    };
    for round in 0..3 {
        for host in 1..200 {
            let request = udp(host, 4000, 53, &vec![1; usize::from(host)]);
            write(&request);
            one.send(&request);
            if host > round * 50 {
                let answer = answer(&request);
                write(&answer);
                other.send(&answer);
            }
        }
    }
    writer.finish().unwrap();
    let sent = one.sent() + other.sent();
    recorder.settle_all(2, sent);
    let outcome = recorder.stop();
    outcome.expect_code(0);
    let told = fs::read_to_string(eve).unwrap();
    let (live, expected) = (flows(&told), flows(&of_file(&path)));
    assert_eq!(expected.len(), 199);
    let differ = expected
        .iter()
        .find(|(id, counts)| live.get(*id) != Some(*counts));
    assert_eq!(differ.map(|(id, counts)| (counts, &live[id])), None);
    assert_eq!(live.len(), expected.len());
}

/// The kernel removes VLAN tags from frames, but flows with different tags stay distinct. A flow
/// that triggered is exempt from the cutoff once its trigger packet was analyzed, by the inserter
/// or the analyzer.
#[test]
fn flows_are_cut_off_but_those_that_trigger() {
    for analyzers in ["inline", "1"] {
        let _machine = shared();
        let Some(namespace) = Namespace::with_veth("cutoff") else {
            return;
        };
        let line = format!(
            "-i v1 --ring 128MiB --set analyzers={analyzers} --cutoff 2KiB --past 20s --future 60s --dump '' --trigger 'udp port 9 and payload startswith \"A\"'"
        );
        let recorder = Recorder::start(&namespace, &line);
        let mut sender = Sender::new(&namespace, "v0");
        // If packets have 500 bytes of payload, the first 5 of a flow begin before 2 KiB.
        let frames = [
            udp(1, 4000, 53, &[1; 500]),
            tagged(&udp(1, 4000, 53, &[1; 500]), &[(0x8100, 7)]),
            tagged(&udp(1, 4000, 53, &[1; 500]), &[(0x8100, 8)]),
            udp(2, 4000, 9, &[1; 500]),
        ];
        sender.send(&udp(3, 4000, 9, &[b'A'; 500]));
        recorder.begun();
        for _ in 0..20 {
            frames.iter().for_each(|frame| sender.send(frame));
            sender.send(&udp(3, 4000, 9, &[1; 500]));
        }
        recorder.settle(sender.sent());
        let outcome = recorder.stop();
        outcome.expect_code(3);
        let dump = &outcome.dumps()[0];
        assert_eq!(dump["packets"], 4 * 5 + 21, "{analyzers}: {dump}");
        let missing = &dump["missing"][0];
        let told = (&missing["cause"], &missing["packets"]);
        assert_eq!(told, (&"shed".into(), &60.into()), "{analyzers}: {dump}");
        assert_eq!(outcome.json["sources"][0]["lost"]["shed"], 60);
        assert!(outcome.said("60 packets missing (shed"));
    }
}

/// A dump opens for flows that exceeded their cutoff. Further packets of these flows are stored as
/// soon as the inserter notices the dump, whether or not the window contains an earlier packet of
/// the flows.
#[test]
fn flows_that_an_open_dump_takes_are_kept() {
    for past in ["20s", "0s"] {
        let _machine = shared();
        let Some(namespace) = Namespace::with_veth("cutdump") else {
            return;
        };
        let directory = TempDir::new().unwrap();
        let socket = directory.path().join("api");
        let line = format!(
            "-i v1 --ring 128MiB --cutoff 2KiB --past {past} --future 60s --dump 'udp port 53' --trigger 'udp port 9' --api unix:{}",
            socket.display()
        );
        let recorder = Recorder::start(&namespace, &line);
        let api = Api::at(&socket);
        let mut sender = Sender::new(&namespace, "v0");
        let (wanted, other) = (udp(1, 4000, 53, &[1; 500]), udp(2, 4000, 54, &[1; 500]));
        for _ in 0..20 {
            sender.send(&wanted);
            sender.send(&other);
        }
        recorder.settle(sender.sent());
        sender.send(&udp(3, 4000, 9, &[0; 8]));
        recorder.begun();
        let stored = || {
            let status = api.status();
            status["sources"][0]["stored"].as_u64().unwrap()
        };
        recorder.settle(sender.sent());
        let (before, deadline) = (stored(), Instant::now() + Duration::from_secs(20));
        assert_eq!(before, 5 + 5 + 1, "{past}");
        while stored() == before {
            assert!(Instant::now() < deadline, "{past}: it is not kept");
            sender.send(&wanted);
            recorder.settle(sender.sent());
        }
        let before = stored();
        for _ in 0..20 {
            sender.send(&wanted);
            sender.send(&other);
        }
        recorder.settle(sender.sent());
        assert_eq!(stored(), before + 20, "{past}");
        recorder.stop().expect_code(3);
    }
}

/// The load quadruples and drops again. In at least 99 % of the readings after 4 s, the ring
/// reaches back at least 3 s, the goal. During the overload, the recorder sheds packets. Afterwards
/// flows keep all packets again.
#[test]
fn the_ring_reaches_back_for_the_goal() {
    const GOAL_S: u64 = 3;
    /// Packets per second. At this rate, packets of about half the ring's size arrive within
    /// `GOAL_S`.
    const RATE: u64 = 30_000;
    let _machine = quiet();
    let Some(namespace) = Namespace::with_veth("goal") else {
        return;
    };
    let directory = TempDir::new().unwrap();
    let socket = directory.path().join("api");
    let line = format!(
        "-i v1 --ring 16MiB --past 60s --future 0s --dump '' --trigger 'udp port 9' --history-goal {GOAL_S}s --api unix:{}",
        socket.display()
    );
    let recorder = Recorder::start(&namespace, &line);
    let api = Api::at(&socket);
    let mut sender = Sender::new(&namespace, "v0");
    // One packet in ten belongs to many small flows, the others to four large flows.
    let fill = |number: u64, frame: &mut [u8]| {
        let port = match number % 10 {
            0 => 2000 + u16::try_from(number / 100 % 60_000).unwrap(),
            _ => 1000 + u16::try_from(number % 4).unwrap(),
        };
        frame[34..36].copy_from_slice(&port.to_be_bytes());
    };
    let (mut next, mut histories, mut limits) = (Instant::now(), Vec::new(), Vec::new());
    let begin = Instant::now();
    for (times, seconds) in [(1, 5), (4, 5), (1, 8)] {
        sender.flood(times * RATE * seconds, Some(times * RATE), fill, |_, _| {
            if next.elapsed() < Duration::from_millis(50) {
                return;
            }
            next = Instant::now();
            let status = api.status();
            if begin.elapsed() > Duration::from_secs(GOAL_S + 1) {
                histories.push(status["history_seconds"].as_f64().unwrap());
                limits.push(status["history_limit_bytes"].as_u64());
            }
        });
    }
    recorder.settle(sender.sent());
    let outcome = recorder.stop();
    outcome.expect_code(0);
    let short = histories.iter().filter(|history| **history < GOAL_S as f64);
    let (short, all) = (short.count(), histories.len());
    let least = histories.iter().copied().fold(f64::INFINITY, f64::min);
    eprintln!("{short} of {all} readings below {GOAL_S} s, the least {least:.2} s");
    eprintln!("{:?}", outcome.source());
    assert!(
        short * 100 <= all && all > 100,
        "{short} of {all}: {histories:?}"
    );
    assert!(
        limits.iter().any(Option::is_some) && limits.last() == Some(&None),
        "{limits:?}"
    );
    assert!(outcome.said("--history-goal 3 s: flows keep all of their packets"));
    let ledger = outcome.source();
    assert_eq!(ledger.received, sender.sent());
    assert!(outcome.json["sources"][0]["lost"]["shed"].as_u64().unwrap() > 0);
}
