//! Several interfaces, unusual interfaces, and interfaces that disappear and return.

use std::{fs, net::UdpSocket, time::Instant};

use retroscope_pcapfile::LinkType;
use rustix::process::Signal;
use serde_json::Value;

use crate::{
    capture::{self, numbers_to},
    namespace::{Namespace, try_ip},
    recorder::{DEADLINE, PROGRAM, Recorder, run},
    shared,
    traffic::{Sender, number_of, udp},
    tun::Tun,
};

/// One dump file contains Ethernet frames and bare IP packets, each with its interface name.
#[test]
fn a_veth_and_a_tun_go_into_one_file() {
    let _machine = shared();
    let Some(namespace) = Namespace::with_veth("two") else {
        return;
    };
    let Some(mut tun) = Tun::new(&namespace, "t0", "10.9.0.1/24") else {
        return;
    };
    let recorder = Recorder::start(
        &namespace,
        "-i v1 -i t0 --ring 128MiB --past 20s --future 100ms --dump '' --trigger 'udp port 60000'",
    );
    let mut sender = Sender::new(&namespace, "v0");
    for number in 0..10_u64 {
        let frame = udp(1, 1000, 2000, &number.to_be_bytes());
        sender.send(&frame);
        tun.receive(&frame[14..50]);
    }
    recorder.settle_all(2, 20);
    // Packets that this host sends are captured too.
    let socket = namespace.enter(|| UdpSocket::bind("10.9.0.1:5000").unwrap());
    socket.send_to(b"trigger!", "10.9.0.2:60000").unwrap();
    recorder.dumps(1);
    let outcome = recorder.stop();
    outcome.expect_code(0);
    assert_eq!(outcome.source_named("v1").stored, 10);
    assert_eq!(outcome.source_named("t0").stored, 11);
    let capture = capture::read(&outcome.dumps()[0]);
    let mut numbers = [Vec::new(), Vec::new()];
    for packet in &capture.packets {
        let (name, link_type) = &capture.interfaces[usize::from(packet.interface)];
        match (name.as_str(), *link_type) {
            ("v1", LinkType::ETHERNET) => numbers[0].push(number_of(&packet.data)),
            ("t0", LinkType::RAW) => {
                numbers[1].push(u64::from_be_bytes(packet.data[28..36].try_into().unwrap()));
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(numbers[0].iter().copied().eq(0..10), "{numbers:?}");
    assert!(
        numbers[1]
            .iter()
            .copied()
            .eq((0..10).chain([u64::from_be_bytes(*b"trigger!")])),
        "{numbers:?}"
    );
}

/// The kernel shows a packet on `lo` twice, outgoing and incoming. The recorder must record it
/// once.
#[test]
fn loopback_shows_each_packet_once() {
    let _machine = shared();
    let Some(namespace) = Namespace::new("lo") else {
        return;
    };
    namespace.ip("link set lo up");
    let recorder = Recorder::start(
        &namespace,
        "-i lo --ring 128MiB --past 20s --future 60s --dump '' --trigger 'udp port 60000'",
    );
    let (sender, receiver) = namespace.enter(|| {
        let bind = |address| UdpSocket::bind(address).unwrap();
        (bind("127.0.0.1:0"), bind("127.0.0.1:60000"))
    });
    for number in 0..100_u64 {
        sender
            .send_to(&number.to_be_bytes(), receiver.local_addr().unwrap())
            .unwrap();
    }
    recorder.settle(100);
    let outcome = recorder.stop();
    outcome.expect_code(0);
    assert_eq!(outcome.source().stored, 100);
    let capture = capture::read(&outcome.dumps()[0]);
    assert!(numbers_to(&capture, 60000).into_iter().eq(0..100));
}

/// An interface goes down and up. Messages report both, the interface is recorded again, and a dump
/// across the gap is incomplete.
#[test]
fn an_interface_goes_down_and_up() {
    let _machine = shared();
    let Some(namespace) = Namespace::with_veth("downup") else {
        return;
    };
    let recorder = Recorder::start(
        &namespace,
        "-i v1 --ring 128MiB --set rx-threads=2 --past 20s --future 100ms --trigger 'udp port 60000'",
    );
    Sender::new(&namespace, "v0").send(&udp(1, 1000, 60001, &[1; 8]));
    namespace.ip("link set v1 down");
    recorder.line("down", |line| line.contains("v1: the interface is down"));
    namespace.ip("link set v1 up");
    recorder.line("up", |line| line.contains("v1: the interface is up again"));
    namespace.wait_for_carrier("v0");
    Sender::new(&namespace, "v0").send(&udp(1, 1000, 60000, &[1; 8]));
    recorder.dumps(1);
    let outcome = recorder.stop();
    outcome.expect_code(3);
    assert_eq!(outcome.source().stored, 2);
    assert_eq!(outcome.json["sources"][0]["gaps"], 1);
    assert_away(&outcome.dumps()[0], "v1");
    // One message reports the interface as down, although each thread has its own socket.
    let went_down = outcome
        .words
        .iter()
        .filter(|w| w.contains("the interface is down"));
    assert_eq!(went_down.count(), 1, "{:#?}", outcome.words);
}

/// Asserts that the dump is incomplete for one reason: an unknown number of packets from the time
/// when the interface was away.
fn assert_away(dump: &Value, source: &str) {
    let [missing] = &dump["missing"].as_array().unwrap()[..] else {
        panic!("{dump}")
    };
    assert_eq!(
        (&dump["verdict"], &missing["cause"], &missing["source"]),
        (
            &"incomplete".into(),
            &"interface-down".into(),
            &source.into()
        )
    );
    assert!(missing["packets"].is_null(), "{missing}");
    let [from, to] = ["from", "to"].map(|end| missing[end].as_str().unwrap());
    assert!(from < to, "{missing}");
}

/// One of two interfaces is removed. The other interface is still recorded. The dump is incomplete,
/// so the exit code is 3.
#[test]
fn an_interface_is_removed() {
    let _machine = shared();
    let Some(namespace) = Namespace::with_veth("gone") else {
        return;
    };
    namespace.add_veth("w0", "w1");
    let recorder = Recorder::start(
        &namespace,
        "-i v1 -i w1 --ring 128MiB --past 20s --future 100ms --dump '' --trigger 'udp port 60000'",
    );
    Sender::new(&namespace, "v0").send(&udp(1, 1000, 2000, &[1; 8]));
    namespace.ip("link del v0");
    recorder.line("gone", |line| line.contains("v1: the interface is gone"));
    let mut sender = Sender::new(&namespace, "w0");
    sender.send(&udp(1, 1000, 60000, &[1; 8]));
    recorder.dumps(1);
    let outcome = recorder.stop();
    outcome.expect_code(3);
    assert_away(&outcome.dumps()[0], "v1");
    assert_eq!(
        (
            outcome.source_named("v1").stored,
            outcome.source_named("w1").stored
        ),
        (1, 1)
    );
    let capture = capture::read(&outcome.dumps()[0]);
    assert_eq!(capture.packets.len(), 2);
}

/// The only interface is removed and created again: with three engines, with one thread and
/// several, and without privileges. The recording continues. Dumps before and after the gap are
/// complete, and a dump during the gap is incomplete.
#[test]
fn the_only_interface_is_removed_and_comes_back() {
    let _machine = shared();
    comes_back("last", &["--set", "rx-threads=1"]);
    comes_back("last", &["--set", "rx-threads=2"]);
    comes_back("last", &["--engine", "pcap"]);
    comes_back("last", &["--engine", "pcap", "-Z", "65534:65534"]);
    comes_back("last", &["--engine", "af-xdp"]);
    comes_back("last", &["--engine", "af-xdp", "-Z", "65534:65534"]);
}

fn comes_back(tag: &str, engine: &[&str]) {
    let Some(namespace) = Namespace::with_veth(tag) else {
        return;
    };
    if engine.contains(&"af-xdp") && !has_af_xdp(&namespace) {
        return;
    }
    let arguments = [
        "-i",
        "v1",
        "--ring",
        "128MiB",
        "--past",
        "0",
        "--future",
        "50ms",
        "--trigger",
        "udp port 60000",
        "--trigger",
        "udp port 60001",
    ];
    let recorder = Recorder::start_with(&namespace, &[&arguments[..], engine].concat());
    if engine.contains(&"af-xdp") {
        // Until the capture thread runs, packets still go to the host.
        recorder.line("what it takes", |line| line.contains("1 receive queue, "));
    }
    Sender::new(&namespace, "v0").send(&udp(1, 1000, 60000, &[1; 8]));
    recorder.dumps(1);
    namespace.ip("link del v0");
    recorder.line("gone", |line| line.contains("v1: the interface is gone"));
    // A dump whose window is entirely within the gap must also report the gap.
    recorder.signal(Signal::USR1);
    recorder.dumps(2);
    namespace.add_veth("v0", "v1");
    recorder.line("back", |line| {
        line.contains("v1: the interface is up again")
    });
    namespace.wait_for_carrier("v0");
    Sender::new(&namespace, "v0").send(&udp(1, 1000, 60001, &[1; 8]));
    recorder.dumps(3);
    let outcome = recorder.stop();
    outcome.expect_code(3);
    let source = &outcome.json["sources"][0];
    let counts = ["received", "stored", "filtered", "gaps"].map(|name| source[name].as_u64());
    assert_eq!(counts, [2, 2, 0, 1].map(Some), "{engine:?}: {source}");
    let is_lost = |n: &Value| n.as_u64().is_some_and(|n| n > 0);
    assert!(
        !source["lost"].as_object().unwrap().values().any(is_lost),
        "{source}"
    );
    assert!(source["gap_seconds"].as_f64().unwrap() > 0.0, "{source}");
    for rule in ["udp port 60000", "udp port 60001"] {
        let dump = outcome.dump_of(rule);
        assert_eq!(
            (&dump["verdict"], capture::read(dump).packets.len()),
            (&"complete".into(), 1),
            "{engine:?}"
        );
    }
    assert_away(outcome.dump_of("manual"), "v1");
}

/// Waits until `count` packet sockets are bound to the interface that has this name now.
fn wait_for_sockets(namespace: &Namespace, interface: &str, count: usize) {
    let deadline = Instant::now() + DEADLINE;
    namespace.enter(|| {
        let list = retroscope_capture::af_packet::interfaces().unwrap();
        let one = list.iter().find(|one| one.name == interface).unwrap();
        let index = one.index.to_string();
        loop {
            // Columns of the file: sk, RefCnt, Type, Proto, Iface, …
            let sockets = fs::read_to_string("/proc/thread-self/net/packet").unwrap();
            let is_bound = |line: &&str| line.split_whitespace().nth(4) == Some(&index);
            if sockets.lines().filter(is_bound).count() == count {
                return;
            }
            assert!(Instant::now() < deadline, "{interface}: {sockets}");
            std::thread::yield_now();
        }
    });
}

/// After its fifth removal, an interface with several threads is no longer recorded and counts as
/// away until the end. The other interface is still recorded, and a later dump is incomplete.
#[test]
fn an_interface_is_away_for_good() {
    let _machine = shared();
    let Some(namespace) = Namespace::with_veth("often") else {
        return;
    };
    namespace.add_veth("w0", "w1");
    let arguments = "-i v1 -i w1 --set rx-threads=2 --ring 128MiB --past 0 --future 50ms --dump";
    let mut arguments: Vec<&str> = arguments.split(' ').collect();
    arguments.extend(["", "--trigger", "udp port 60000"]);
    let recorder = Recorder::start_with(&namespace, &arguments);
    for times in 1..=4 {
        namespace.ip("link del v0");
        recorder.lines(times, "gone", |line| {
            line.contains("v1: the interface is gone")
        });
        namespace.add_veth("v0", "v1");
        recorder.lines(times, "back", |line| {
            line.contains("v1: the interface is up")
        });
        // Only one thread reports the removal. Each thread must have bound a new socket before the
        // next removal.
        wait_for_sockets(&namespace, "v1", 2);
    }
    namespace.ip("link del v0");
    namespace.add_veth("v0", "v1");
    let (ended, _) = recorder.line("its end", |line| {
        line.contains("v1 was removed too often") && !line.contains("a part")
    });
    Sender::new(&namespace, "w0").send(&udp(1, 1000, 60000, &[1; 8]));
    recorder.dumps(1);
    let away = ended.elapsed();
    let outcome = recorder.stop();
    outcome.expect_code(1);
    assert_away(&outcome.dumps()[0], "v1");
    let sources = outcome.json["sources"].as_array().unwrap();
    let v1 = sources
        .iter()
        .find(|source| source["name"] == "v1")
        .unwrap();
    assert_eq!(v1["gaps"], 5, "{v1}");
    assert!(
        v1["gap_seconds"].as_f64().unwrap() > away.as_secs_f64(),
        "{v1}"
    );
    // While one thread of v1 has ended and the other still runs, a message says `a part of v1`.
    let told = outcome
        .words
        .iter()
        .filter(|line| line.contains("too often") && !line.contains("a part of v1"));
    assert_eq!(
        told.count(),
        2,
        "as it happened and at the end: {:#?}",
        outcome.words
    );
}

/// Whether the kernel has AF_XDP. Prints a message if not.
fn has_af_xdp(namespace: &Namespace) -> bool {
    let line = [
        PROGRAM,
        "record",
        "-i",
        "lo",
        "--engine",
        "af-xdp",
        "--trigger",
        "ip",
    ];
    // AF_XDP cannot record this interface, so the program always ends.
    let (_, words) = run(namespace, &[], &line);
    let has = !words.contains("no AF_XDP");
    if !has {
        eprintln!("SKIP: {words}");
    }
    has
}

/// The kernel detaches the XDP program when the recorder is killed, also from an interface that was
/// removed and created again.
#[test]
fn kill_9_leaves_no_program_on_an_interface_that_came_back() {
    let _machine = shared();
    let Some(namespace) = Namespace::with_veth("again") else {
        return;
    };
    if !has_af_xdp(&namespace) {
        return;
    }
    let is_attached = || {
        let output = namespace.enter(|| try_ip("link show v1"));
        String::from_utf8_lossy(&output.stdout).contains("xdp")
    };
    let arguments = [
        "-i",
        "v1",
        "--engine",
        "af-xdp",
        "--ring",
        "64MiB",
        "--trigger",
        "udp",
    ];
    let recorder = Recorder::start_with(&namespace, &arguments);
    namespace.ip("link del v0");
    recorder.line("gone", |line| line.contains("v1: the interface is gone"));
    namespace.add_veth("v0", "v1");
    recorder.line("back", |line| {
        line.contains("v1: the interface is up again")
    });
    assert!(is_attached());
    recorder.signal(Signal::KILL);
    drop(recorder);
    let deadline = Instant::now() + DEADLINE;
    while is_attached() {
        assert!(Instant::now() < deadline, "kill -9 left a program behind");
    }
}
