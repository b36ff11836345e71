//! The engines AF_XDP and libpcap in the whole program, and properties that several engines share.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
    time::Instant,
};

use rustix::process::Signal;
use serde_json::json;

use crate::{
    capture,
    namespace::Namespace,
    privileges::of_threads,
    quiet,
    recorder::{DEADLINE, PROGRAM, Recorder, run},
    shared,
    traffic::{self, HEADERS, Sender, tagged, udp},
};

/// libpcap delivers frames with their VLAN tags in place, so a filter has the same meaning as on
/// the wire. Packets that the filter rejects are counted.
#[test]
fn libpcap_records_what_the_filter_takes() {
    let _machine = shared();
    let Some(namespace) = Namespace::with_veth("epcap") else {
        return;
    };
    let recorder = Recorder::start(
        &namespace,
        "-i v1 --engine pcap --ring 64MiB -f 'vlan 10' --past 20s --future 100ms --dump '' --trigger 'vlan and udp port 3000'",
    );
    let plain = |port| udp(1, 1000, port, b"engine");
    let inside = |port| tagged(&plain(port), &[(0x8100, 10)]);
    let mut sender = Sender::new(&namespace, "v0");
    for frame in [inside(2000), plain(2000), plain(3000), inside(3000)] {
        sender.send(&frame);
    }
    recorder.dumps(1);
    let outcome = recorder.stop();
    outcome.expect_code(0);
    assert!(outcome.said("v1 (pcap, "));
    let source = &outcome.json["sources"][0];
    assert_eq!(source["received"], 4, "{source}");
    assert_eq!(
        (&source["stored"], &source["filtered"]),
        (&2.into(), &2.into())
    );
    assert_eq!(source["lost"]["kernel"], 0);
    let dump = capture::read(&outcome.dumps()[0]);
    let came: Vec<&Vec<u8>> = dump.packets.iter().map(|packet| &packet.data).collect();
    assert_eq!(came, [&inside(2000), &inside(3000)]);
}

/// With `--engine af-xdp` the program refuses an interface with an address, unless
/// `take-interface=true` is set. With this key, the dump contains the sent packets. No XDP program
/// stays attached, neither after the end nor after kill -9.
#[test]
fn af_xdp_takes_the_interface_and_gives_it_back() {
    let _machine = shared();
    let Some(namespace) = Namespace::with_veth("exdp") else {
        return;
    };
    namespace.ip("addr add 10.8.0.1/24 dev v1");
    let (code, words) = refused(&namespace, &["-i", "v1", "--engine", "af-xdp"]);
    if words.contains("no AF_XDP") {
        eprintln!("SKIP: {words}");
        return;
    }
    assert_eq!(code, 2, "{words}");
    assert!(
        words.contains("address") && words.contains("take-interface"),
        "{words}"
    );

    let arguments = [
        "-i",
        "v1",
        "--engine",
        "af-xdp",
        "--set",
        "take-interface=true",
        "--ring",
        "64MiB",
        "-f",
        "udp or vlan",
        "--past",
        "20s",
        "--future",
        "100ms",
        "--dump",
        "",
        "--trigger",
        "udp port 3000",
    ];
    let is_attached = || {
        let output = namespace.enter(|| Command::new("ip").args(["link", "show", "v1"]).output());
        String::from_utf8_lossy(&output.unwrap().stdout).contains("xdp")
    };
    let recorder = Recorder::start_with(&namespace, &arguments);
    recorder.line("what it takes", |line| line.contains("1 receive queue, "));
    assert!(is_attached());
    let sent = [
        udp(1, 1000, 2000, b"first"),
        tagged(&udp(1, 1000, 2000, b"second"), &[(0x8100, 10)]),
        udp(1, 1000, 3000, b"trigger"),
    ];
    let mut sender = Sender::new(&namespace, "v0");
    sent.iter().for_each(|frame| sender.send(frame));
    recorder.dumps(1);
    let outcome = recorder.stop();
    outcome.expect_code(0);
    assert!(outcome.said("v1 (af-xdp, "));
    let ledger = outcome.source();
    assert_eq!((ledger.received, ledger.stored, ledger.lost), (3, 3, 0));
    let dump = capture::read(&outcome.dumps()[0]);
    let came: Vec<&Vec<u8>> = dump.packets.iter().map(|packet| &packet.data).collect();
    assert_eq!(came, sent.iter().collect::<Vec<_>>());
    assert!(!is_attached(), "it was given back");

    let recorder = Recorder::start_with(&namespace, &arguments);
    assert!(is_attached());
    recorder.signal(Signal::KILL);
    drop(recorder);
    let deadline = Instant::now() + DEADLINE;
    while is_attached() {
        assert!(Instant::now() < deadline, "kill -9 left a program behind");
    }
}

/// No NIC stamps packets of a veth interface, so `hardware` is refused, and `auto` takes the
/// kernel's stamps. With AF_XDP, `hardware` is accepted, but no packet has a stamp of a NIC. In
/// both recordings, the sidecar says that the kernel stamped the packet.
#[test]
fn stamps_are_the_kernels_where_no_nic_stamps() {
    let _machine = shared();
    let Some(namespace) = Namespace::with_veth("estamp") else {
        return;
    };
    let hardware = ["-i", "v1", "--set", "time-stamps=hardware"];
    let (code, words) = refused(&namespace, &hardware);
    assert_eq!(code, 1, "{words}");
    assert!(
        words.contains("v1 gives no hardware time stamps: "),
        "{words}"
    );

    let rest = "--ring 64MiB --past 20s --future 100ms --trigger";
    let tail: Vec<&str> = rest
        .split(' ')
        .chain(["udp port 3000", "--dump", ""])
        .collect();
    let xdp = [&hardware[..], &["--engine", "af-xdp"]].concat();
    for (engine, stamped) in [(&hardware[..2], json!(null)), (&xdp[..], json!(0))] {
        let recorder = Recorder::start_with(&namespace, &[engine, &tail].concat());
        Sender::new(&namespace, "v0").send(&udp(1, 1000, 3000, b"trigger"));
        recorder.dumps(1);
        let outcome = recorder.stop();
        outcome.expect_code(0);
        assert_eq!(outcome.json["sources"][0]["nic_stamped"], stamped);
        let sidecar = capture::path(&outcome.dumps()[0]).with_extension("json");
        let sidecar: serde_json::Value =
            serde_json::from_slice(&std::fs::read(sidecar).unwrap()).unwrap();
        let with_packets = sidecar["interfaces"].as_array().unwrap().iter();
        let sources: Vec<_> = with_packets
            .filter(|interface| interface["packets"] == 1)
            .map(|interface| interface["time_source"].clone())
            .collect();
        assert_eq!(sources, [json!("kernel-software")], "{sidecar}");
    }
}

/// A raised MTU allows frames that are too long for AF_XDP. The recorder counts such a frame, and
/// lists it as missing in the dump. A message reports the MTU, and `--json` the XDP mode.
#[test]
fn a_raised_mtu_is_in_the_verdict() {
    let _machine = shared();
    let Some(namespace) = Namespace::with_veth("emtu") else {
        return;
    };
    let line = "-i v1 --engine af-xdp --ring 64MiB --past 20s --future 100ms --trigger";
    let mut arguments: Vec<&str> = line.split(' ').collect();
    arguments.extend(["udp port 3000", "--dump", ""]);
    let recorder = Recorder::start_with(&namespace, &arguments);
    recorder.line("why it is copied", |line| {
        line.contains("copy mode") && line.contains("Operation not supported")
    });
    for side in ["v0", "v1"] {
        namespace.ip(&format!("link set {side} mtu 3000"));
    }
    recorder.line("the MTU", |line| {
        line.contains("v1: ") && line.contains("3000")
    });
    let mut sender = Sender::new(&namespace, "v0");
    for (port, bytes) in [(2000, 100), (2000, 2500), (3000, 100)] {
        sender.send(&udp(1, 1000, port, &vec![7; bytes]));
    }
    recorder.dumps(1);
    let outcome = recorder.stop();
    outcome.expect_code(3);
    let source = &outcome.json["sources"][0];
    let mode = r#"{"multi_buffer":false,"native":true,"zero_copy":false,"zero_copy_refused":"Operation not supported"}"#;
    assert_eq!(source["xdp"].to_string(), mode);
    assert_eq!(
        (&source["received"], &source["lost"]["oversize"]),
        (&3.into(), &1.into())
    );
    let dump = &outcome.dumps()[0];
    assert_eq!(dump["verdict"], "incomplete");
    let missing = dump["missing"].as_array().unwrap();
    assert!(
        missing.iter().any(|one| one["cause"] == "oversize"),
        "{dump}"
    );
    assert_eq!(capture::read(dump).packets.len(), 2);
}

/// The key `cpus` has the same meaning for AF_PACKET, AF_XDP and libpcap: one CPU for each capture
/// thread of an interface. Threads of generators get no CPU of the list.
#[test]
fn capture_threads_run_where_they_are_told() {
    let _machine = shared();
    let Some(namespace) = Namespace::with_veth("ecpus") else {
        return;
    };
    let own = rustix::thread::sched_getaffinity(None).unwrap();
    let mut all = (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| own.is_set(*cpu));
    let (Some(first), Some(last)) = (all.next(), all.next_back()) else {
        eprintln!("SKIP: there is one CPU, so every thread runs there");
        return;
    };
    let cpus = format!("{first},{last}");
    for engine in ["af-packet", "af-xdp", "pcap"] {
        let sources = ["-i", "v0", "-i", "generate:rate=1kpps", "-i", "v1"];
        let how = [
            "--engine",
            engine,
            "--ring",
            "64MiB",
            "--set",
            &format!("cpus={cpus}"),
        ];
        let arguments = [&sources[..], &how[..], &["--trigger", "icmp"]].concat();
        let (code, words) = match engine {
            "af-xdp" => refused(
                &namespace,
                &[&arguments[..], &["--duration", "1ms"]].concat(),
            ),
            _ => (0, String::new()),
        };
        if words.contains("no AF_XDP") {
            eprintln!("SKIP: {words}");
            continue;
        }
        assert_eq!(code, 0, "{words}");
        let recorder = Recorder::start_with(&namespace, &arguments);
        let deadline = Instant::now() + DEADLINE;
        // A new thread starts on the CPUs of its parent and moves later.
        loop {
            let threads = of_threads(&recorder, "Cpus_allowed_list");
            let named = |name: &&(String, String)| name.0.starts_with("inserter-");
            let inserters = threads.iter().filter(named).count();
            let has_one = |cpu: usize| {
                let cpu = cpu.to_string();
                threads.iter().filter(|(_, list)| *list == cpu).count() == 1
            };
            if inserters == 3 && has_one(first) && has_one(last) {
                break;
            }
            assert!(Instant::now() < deadline, "{engine}: {threads:?}");
        }
        recorder.stop().expect_code(0);
    }
}

/// The kernel ends promiscuous mode when it closes the packet socket, also after kill -9.
#[test]
fn kill_9_leaves_no_promiscuous_interface() {
    let _machine = shared();
    let Some(namespace) = Namespace::with_veth("eprom") else {
        return;
    };
    let is_promiscuous = || {
        let output = namespace.enter(|| {
            let mut command = Command::new("ip");
            command.args(["-d", "link", "show", "v1"]).output()
        });
        let text = String::from_utf8_lossy(&output.unwrap().stdout).into_owned();
        let count = text.split("promiscuity ").nth(1);
        count.unwrap().split(' ').next().unwrap() != "0"
    };
    for engine in ["af-packet", "pcap"] {
        assert!(!is_promiscuous());
        let recorder = Recorder::start_with(
            &namespace,
            &[
                "-i",
                "v1",
                "--engine",
                engine,
                "--ring",
                "64MiB",
                "--trigger",
                "udp",
            ],
        );
        assert!(is_promiscuous(), "{engine}");
        recorder.signal(Signal::KILL);
        drop(recorder);
        let deadline = Instant::now() + DEADLINE;
        while is_promiscuous() {
            assert!(Instant::now() < deadline, "{engine}: kill -9 left it on");
        }
    }
}

#[test]
fn what_an_engine_cannot_do_is_refused() {
    let _machine = shared();
    let Some(namespace) = Namespace::with_veth("erefuse") else {
        return;
    };
    let (code, words) = refused(&namespace, &["-i", "v1", "--engine", "pcap", "-Q", "in"]);
    assert_eq!(code, 2, "{words}");
    assert!(words.contains("--engine af-packet"), "{words}");
    let (code, words) = refused(
        &namespace,
        &["-i", "v1", "--engine", "af-xdp", "--set", "fanout=qm"],
    );
    assert_eq!(code, 2, "{words}");
    assert!(
        words.contains("fanout") && words.contains("af-packet"),
        "{words}"
    );
    let (code, words) = refused(&namespace, &["-i", "v1", "--set", "take-interface=true"]);
    assert_eq!(code, 2, "{words}");
    assert!(words.contains("--engine af-xdp"), "{words}");
    let (code, words) = refused(&namespace, &["-i", "v1", "--set", "busy-poll=50"]);
    assert_eq!(code, 2, "{words}");
    assert!(words.contains("--engine af-xdp"), "{words}");
    if cfg!(not(feature = "dpdk")) {
        let (code, words) = refused(&namespace, &["-i", "net_null0", "--engine", "dpdk"]);
        assert_eq!(code, 2, "{words}");
        assert!(words.contains("--features dpdk"), "{words}");
    }
    let (code, words) = refused(&namespace, &["-i", "any"]);
    assert_eq!(code, 1, "{words}");
    assert!(words.contains("--engine pcap"), "{words}");
}

/// A route over the interface must make the program refuse AF_XDP, even if `/proc` is empty.
#[test]
fn a_closed_proc_hides_no_route() {
    let _machine = shared();
    let Some(namespace) = Namespace::with_veth("eproc") else {
        return;
    };
    namespace.ip("route add 10.7.0.0/16 dev v1");
    let closed = [
        "unshare",
        "-m",
        "sh",
        "-c",
        "mount -t tmpfs none /proc && exec \"$@\"",
        "sh",
    ];
    let line = [PROGRAM, "record", "-i", "v1", "--engine", "af-xdp"];
    let (code, words) = run(&namespace, &closed, &line);
    assert_eq!(code, 2, "{words}");
    assert!(words.contains("route"), "{words}");
}

/// Runs `record` to its end. Returns the exit code and stderr.
fn refused(namespace: &Namespace, arguments: &[&str]) -> (i32, String) {
    let line = [&[PROGRAM, "record"], arguments].concat();
    run(namespace, &[], &line)
}

/// The XDP program drops the tail of a large flow. All dropped packets are counted and reported,
/// and the start of every flow is recorded.
#[test]
fn tails_are_dropped_in_the_kernel() {
    let _machine = quiet();
    let Some(namespace) = Namespace::with_veth("eshunt") else {
        return;
    };
    let line =
        "-i v1 --engine af-xdp --ring 64MiB --past 60s --future 100ms --cutoff 4KiB --trigger";
    let mut arguments: Vec<&str> = line.split(' ').collect();
    arguments.extend(["udp port 9", "--dump", ""]);
    let recorder = Recorder::start_with(&namespace, &arguments);
    let mut sender = Sender::new(&namespace, "v0");
    // Each hundredth packet belongs to a separate small flow, all others to one large flow.
    let port = |number: u64| match number % 100 {
        99 => 1000 + u16::try_from(number / 100).unwrap(),
        _ => 999,
    };
    let fill = |number: u64, frame: &mut [u8]| {
        frame[34..36].copy_from_slice(&port(number).to_be_bytes());
        frame[HEADERS..HEADERS + 8].copy_from_slice(&number.to_be_bytes());
    };
    sender.flood(100_000, Some(50_000), fill, |_, _| {});
    recorder.settle(sender.sent());
    sender.send(&udp(9, 9, 9, &[0; 8]));
    recorder.dumps(1);
    let outcome = recorder.stop();
    outcome.expect_code(3);
    let mut kept = BTreeMap::<u16, BTreeSet<u64>>::new();
    let dump = &outcome.dumps()[0];
    for packet in capture::read(dump).packets {
        let port = u16::from_be_bytes(packet.data[34..36].try_into().unwrap());
        kept.entry(port)
            .or_default()
            .insert(traffic::number_of(&packet.data));
    }
    let ledger = outcome.source();
    assert_eq!(ledger.received, sender.sent());
    // The dump has one packet of each small flow, the trigger packet, and the first 4 KiB of the
    // large flow.
    let large = kept.remove(&999).unwrap();
    let beginning: BTreeSet<u64> = (0..)
        .filter(|number| port(*number) == 999)
        .take(large.len())
        .collect();
    assert_eq!((kept.len(), &large), (1001, &beginning));
    assert_eq!(ledger.stored, 1001 + beginning.len() as u64);
    let payload = capture::read(dump).packets[0].data.len() - 42;
    assert_eq!(large.len(), 4096_usize.div_ceil(payload));
    // The XDP program dropped most packets of the tail. The inserter shed the packets of the tail
    // that the XDP program still passed: all packets until the order to drop the flow arrived, and
    // later at most one packet per 100 ms.
    let missing = dump["missing"].as_array().unwrap();
    let counts: Vec<u64> = missing
        .iter()
        .map(|it| it["packets"].as_u64().unwrap())
        .collect();
    assert!(
        missing.iter().all(|it| it["cause"] == "shed"),
        "{missing:?}"
    );
    assert_eq!(counts.iter().sum::<u64>(), ledger.lost);
    let [dropped, shed] = counts[..] else {
        panic!("{missing:?}");
    };
    assert!(dropped > 10 * shed, "{missing:?}");
    let source = &outcome.json["sources"][0];
    let expected = json!({ "cutoff": ledger.lost, "history-goal": 0, "ted": 0, "shunt": 0 });
    assert_eq!(source["shed"], expected);
    assert_eq!(source["shed_by_engine"], dropped);
    assert_eq!(missing[0]["by"], json!({ "cutoff": dropped }));
}

/// Connections exceed their cutoff, and reopen with the same ports in the same burst. The XDP
/// program may see the second SYN of a connection before the order to drop this connection. The
/// packets of the new connections must still be recorded.
#[test]
fn connections_that_are_opened_again_are_not_dropped() {
    const FLOWS: u16 = 50;
    let _machine = quiet();
    let Some(namespace) = Namespace::with_veth("eagain") else {
        return;
    };
    let line = "-i v1 --engine af-xdp --ring 64MiB --cutoff 2KiB --trigger";
    let mut arguments: Vec<&str> = line.split(' ').collect();
    arguments.extend([
        "udp port 9",
        "--dump",
        "",
        "--past",
        "60s",
        "--future",
        "100ms",
    ]);
    let recorder = Recorder::start_with(&namespace, &arguments);
    let mut sender = Sender::new(&namespace, "v0");
    let tcp = |flow: u16, flags: u8, payload: &[u8]| {
        let mut frame = udp(1, 1000 + flow, 80, &[]);
        frame.truncate(34);
        frame[16..18].copy_from_slice(&(40 + u16::try_from(payload.len()).unwrap()).to_be_bytes());
        frame[23] = 6;
        frame.extend((1000 + flow).to_be_bytes());
        frame.extend([0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, flags, 0, 0, 0, 0, 0, 0]);
        frame.extend(payload);
        frame
    };
    let burst = (0..FLOWS).flat_map(|flow| {
        let data = tcp(flow, 16, &[1; 1200]);
        let syn = tcp(flow, 2, &[]);
        [
            syn.clone(),
            data.clone(),
            data.clone(),
            data.clone(),
            data,
            syn,
        ]
    });
    // A veth queue has room for 256 frames, and drops further frames before the interface counts
    // them.
    for frames in burst.collect::<Vec<_>>().chunks(60) {
        frames.iter().for_each(|frame| sender.send(frame));
        recorder.settle(sender.sent());
    }
    // The inserter counts a burst before it gives the XDP program the orders that follow from the
    // burst. The packet below arrives in a later burst, so when the inserter has counted the
    // packet, the XDP program normally has the orders of the frames before.
    sender.send(&udp(9, 7, 8, &[0; 8]));
    recorder.settle(sender.sent());
    (0..FLOWS).for_each(|flow| sender.send(&tcp(flow, 16, &[2; 1000])));
    recorder.settle(sender.sent());
    sender.send(&udp(9, 9, 9, &[0; 8]));
    recorder.dumps(1);
    let outcome = recorder.stop();
    let packets = capture::read(&outcome.dumps()[0]).packets;
    let second = packets.iter().filter(|packet| packet.data.len() == 1054);
    assert_eq!(second.count(), usize::from(FLOWS), "{}", outcome.json);
}
