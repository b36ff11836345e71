//! Every packet is accounted for: at high speed, under overload, and with several threads. Without
//! lost or late packets, a dump contains exactly the matching packets of its window.

use std::{collections::BTreeSet, fs, time::Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::{
    capture::{self, numbers_to},
    namespace::Namespace,
    quiet,
    recorder::{DEADLINE, Recorder},
    shared, soak,
    traffic::{self, SMALL, Sender, udp},
};

const RATE: u64 = 500_000;

/// Port of the numbered frames.
const BACKGROUND: u16 = 2000;

/// The host of [`record_at_speed`]'s trigger packets. The rules' dumps contain its packets.
const HOST: u8 = 7;

/// 500 kpps of 64-byte frames: no packet is lost, and dumps during the flood contain exactly the
/// packets of their windows.
///
/// Each of three trigger packets dumps the packets of one host, and SIGUSR1 dumps all packets. The
/// windows of the first and the third dump together cover the second window. So the test knows the
/// second dump packet by packet. A busy machine may send more slowly, but all sent packets must be
/// accounted for. If a delay of the recorder loses packets or makes them late, or the windows do
/// not overlap, the test tries up to two more times.
#[test]
fn half_a_million_packets_a_second_are_all_there() {
    let _machine = quiet();
    let Some(namespace) = Namespace::with_veth("speed") else {
        return;
    };
    let mut held_up = Vec::new();
    for _ in 0..3 {
        match record_at_speed(&namespace) {
            Ok(()) => return,
            Err(why) => held_up.push(why),
        }
    }
    panic!("{held_up:#?}");
}

/// Records and checks the dumps.
///
/// # Errors
/// If the machine delayed the recorder, the counts of lost or late packets. If the windows do not
/// overlap, the time between them. Other faults panic.
fn record_at_speed(namespace: &Namespace) -> Result<(), String> {
    let seconds = if soak() { 10 } else { 2 };
    let count = RATE * seconds;
    let recorder = Recorder::start_with(
        namespace,
        &[
            "-i",
            "v1",
            "--ring",
            "512MiB",
            "--past",
            "500ms",
            "--future",
            "300ms",
            "--dump",
            "host $srcIP",
            "--trigger",
            "udp port 60000",
            "--trigger",
            "udp port 60001",
            "--trigger",
            "udp port 60002",
        ],
    );
    let mut sender = Sender::new(namespace, "v0");
    // Triggers are 50 ms apart at full rate, so that windows of 800 ms overlap even on a slow
    // machine.
    let trigger_at = |n: u64| count / 2 + n * RATE / 20;
    let mut due: Vec<(u64, u16)> = vec![
        (trigger_at(3), 60002),
        (trigger_at(2), 60001),
        (trigger_at(1), 60000),
    ];
    let mut by_hand_at = Some(count / 2);
    let took = sender.flood(count, Some(RATE), traffic::number, |sent, sender| {
        if due.last().is_some_and(|(at, _)| sent >= *at) {
            let (_, port) = due.pop().unwrap();
            sender.send(&udp(HOST, 1000, port, b"trigger!"));
        }
        if by_hand_at.is_some_and(|at| sent >= at) {
            by_hand_at = None;
            recorder.signal(Signal::USR1);
        }
    });
    let sent = sender.sent();
    // The flood lasted longer than `--future` after the last trigger, so all windows have ended.
    recorder.settle(sent);
    let outcome = recorder.stop();
    eprintln!(
        "{sent} frames at {:.0} a second, {:.0} ns of receiver CPU each",
        sent as f64 / took.as_secs_f64(),
        outcome.cpu.as_nanos() as f64 / sent as f64
    );
    let ledger = outcome.source();
    assert_eq!(
        (ledger.received, ledger.lost, ledger.filtered),
        (sent, ledger.kernel, Some(0))
    );
    let missing: Vec<&Value> = outcome
        .dumps()
        .iter()
        .flat_map(|dump| dump["missing"].as_array().unwrap())
        .collect();
    let by_pause = |missing: &&Value| missing["cause"] == "kernel";
    let late = outcome.json["sources"][0]["late"].as_u64().unwrap();
    if missing.iter().all(by_pause) && ledger.kernel + late > 0 {
        return Err(format!(
            "{} dropped, {late} late, {missing:?}",
            ledger.kernel
        ));
    }
    outcome.expect_code(0);
    assert_eq!(outcome.json["triggers"], 4);

    let [first, second, third] = ["udp port 60000", "udp port 60001", "udp port 60002"]
        .map(|rule| capture::read(outcome.dump_of(rule)));
    for (capture, port) in [(&first, 60000), (&second, 60001), (&third, 60002)] {
        let numbers = numbers_to(capture, BACKGROUND);
        assert!(numbers.len() > 100, "{} packets of the host", numbers.len());
        assert!(numbers.iter().all(|n| n % 256 == u64::from(HOST)));
        assert!(numbers.windows(2).all(|two| two[1] == two[0] + 256), "gaps");
        assert_eq!(numbers_to(capture, port).len(), 1, "the trigger packet");
        // All other packets are trigger packets of the same host.
        assert!(capture.packets.len() - numbers.len() <= 3);
    }
    let dump = outcome.dump_of("udp port 60001");
    let (from_ns, to_ns) = (
        capture::time_ns(&dump["from"]),
        capture::time_ns(&dump["to"]),
    );
    let until_ns = capture::time_ns(&outcome.dump_of("udp port 60000")["to"]);
    let since_ns = capture::time_ns(&outcome.dump_of("udp port 60002")["from"]);
    if until_ns < since_ns {
        return Err(format!("{} ns between two windows", since_ns - until_ns));
    }
    assert_eq!(to_ns - from_ns, 800_000_000);
    let expected: BTreeSet<(i64, Vec<u8>)> = first
        .packets
        .iter()
        .chain(&third.packets)
        .filter(|p| (from_ns..=to_ns).contains(&p.time_ns))
        .map(|p| (p.time_ns, p.data.clone()))
        .collect();
    let got: BTreeSet<(i64, Vec<u8>)> = second
        .packets
        .iter()
        .map(|p| (p.time_ns, p.data.clone()))
        .collect();
    assert_eq!(got.len(), second.packets.len());
    assert!(
        got == expected,
        "{} packets, {} expected",
        got.len(),
        expected.len()
    );

    let everything = capture::read(outcome.dump_of("manual"));
    let numbers = numbers_to(&everything, BACKGROUND);
    assert!(numbers.len() > 10_000, "{} packets", numbers.len());
    assert!(numbers.windows(2).all(|two| two[1] == two[0] + 1), "gaps");
    Ok(())
}

/// A recorder stopped by SIGSTOP loses packets in the kernel. The count is exact, and a dump whose
/// window touches the loss reports it.
#[test]
fn overload_is_counted_and_told() {
    let _machine = quiet();
    let Some(namespace) = Namespace::with_veth("overload") else {
        return;
    };
    let recorder = Recorder::start(
        &namespace,
        "-i v1 --ring 256MiB --past 20s --future 10ms --trigger 'udp port 60000'",
    );
    let mut sender = Sender::new(&namespace, "v0");
    stall(&recorder, &mut sender);
    sender.send(&udp(1, 1000, 60000, b"trigger!"));
    recorder.dumps(1);
    let outcome = recorder.stop();
    outcome.expect_code(3);
    let ledger = outcome.source();
    assert_eq!(ledger.received, sender.sent());
    assert!(ledger.kernel > 0, "{}", outcome.json);
    let dump = &outcome.dumps()[0];
    assert_eq!(dump["verdict"], "incomplete");
    let missing = dump["missing"].as_array().unwrap();
    assert_eq!(missing.len(), 1, "{dump}");
    assert_eq!(missing[0]["cause"], "kernel");
    assert_eq!(missing[0]["packets"], ledger.kernel);
    assert!(outcome.said("missing (kernel, v1)"), "{:#?}", outcome.words);
    assert!(outcome.said(&format!("{} packets dropped by kernel", ledger.kernel)));
    capture::read(dump);
}

/// A recorder that is stopped by SIGSTOP while a window is open reads some packets of the window
/// only after the window's end. The dump contains these packets, or the source counts them as late.
/// A later dump of everything shows how many packets were in the window.
#[test]
fn a_dump_that_was_held_up_is_honest() {
    let _machine = quiet();
    let Some(namespace) = Namespace::with_veth("heldup") else {
        return;
    };
    let recorder = Recorder::start(
        &namespace,
        "-i v1 --ring 256MiB --past 20s --future 150ms --dump '' --trigger 'udp port 60000'",
    );
    let mut sender = Sender::new(&namespace, "v0");
    sender.send(&udp(1, 1000, 60000, b"trigger!"));
    recorder.line("the trigger", |line| line.starts_with("trigger "));
    hold(&recorder);
    // The flood takes at least 300 ms. About the first 150 ms are within the window, the rest is
    // after the window.
    sender.flood(30_000, Some(100_000), traffic::number, |_, _| {});
    recorder.signal(Signal::CONT);
    recorder.settle(sender.sent());
    recorder.dumps(1);
    recorder.signal(Signal::USR1);
    recorder.dumps(2);
    let outcome = recorder.stop();
    let ledger = outcome.source();
    assert_eq!(ledger.received, sender.sent());
    let dump = outcome.dump_of("udp port 60000");
    let to_ns = capture::time_ns(&dump["to"]);
    let everything = capture::read(outcome.dump_of("manual"));
    assert_eq!(everything.packets.len() as u64, ledger.stored);
    let due = everything.packets.iter().filter(|p| p.time_ns <= to_ns);
    let written = capture::read(dump).packets.len();
    let missing = dump["missing"].as_array().unwrap();
    let late = outcome.json["sources"][0]["late"].as_u64().unwrap();
    eprintln!("{written} packets in time, {late} late");
    assert_eq!(written as u64 + late, due.count() as u64, "{dump}");
    let verdict = if missing.is_empty() {
        "complete"
    } else {
        "incomplete"
    };
    assert_eq!(dump["verdict"], verdict);
}

/// Stops the process, sends more than the kernel can buffer, and continues the process.
fn stall(recorder: &Recorder, sender: &mut Sender) {
    hold(recorder);
    // For a veth pair (10 Gbit/s) the kernel's ring has at most 150 MB, about 1,000,000 small
    // frames.
    sender.flood(1_500_000, None, traffic::number, |_, _| {});
    recorder.signal(Signal::CONT);
    // Waits until the recorder has caught up. Before that, the kernel may have no room for a packet
    // that the test needs.
    recorder.settle(sender.sent());
}

/// Stops the process until SIGCONT.
fn hold(recorder: &Recorder) {
    recorder.signal(Signal::STOP);
    let deadline = Instant::now() + DEADLINE;
    while !state(recorder).starts_with('T') {
        assert!(Instant::now() < deadline, "it does not stop");
        std::thread::yield_now();
    }
}

/// The fields of /proc/PID/stat from the state of the process on (proc(5)).
fn state(recorder: &Recorder) -> String {
    let path = format!("/proc/{}/stat", recorder.pid().as_raw_nonzero());
    let stat = fs::read_to_string(path).unwrap();
    stat[stat.rfind(')').unwrap() + 2..].to_owned()
}

/// Three capture threads share the flows. The dump is one file in time order, with every packet.
#[test]
fn several_threads_write_one_ordered_file() {
    let _machine = shared();
    let Some(namespace) = Namespace::with_veth("threads") else {
        return;
    };
    let recorder = Recorder::start(
        &namespace,
        "-i v1 --ring 128MiB --set rx-threads=3 --past 20s --future 100ms --dump '' --trigger 'udp port 60000'",
    );
    let mut sender = Sender::new(&namespace, "v0");
    let count = 30_000;
    sender.flood(count, Some(100_000), traffic::number, |_, _| {});
    recorder.settle(count);
    sender.send(&udp(1, 1000, 60000, b"trigger!"));
    recorder.dumps(1);
    let outcome = recorder.stop();
    outcome.expect_code(0);
    let ledger = outcome.source();
    assert_eq!((ledger.received, ledger.stored), (count + 1, count + 1));
    let capture = capture::read(&outcome.dumps()[0]);
    let mut numbers = numbers_to(&capture, BACKGROUND);
    // Frames of different threads may have equal timestamps. Then the queue's number decides the
    // order, so the file may have another order than the sender.
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..count));
    assert_eq!(capture.packets.len() as u64, count + 1);
    assert!(capture.packets.iter().all(|p| p.data.len() == SMALL));
}

/// Two capture threads serve four interfaces. One interface is down and delays no dump; its packets
/// count from when it is up. The dump has every packet in time order, and each ledger balances.
#[test]
fn few_threads_record_many_interfaces() {
    let _machine = shared();
    let Some(namespace) = Namespace::with_veth("few") else {
        return;
    };
    let pairs = [("v0", "v1"), ("p2", "q2"), ("p3", "q3"), ("p4", "q4")];
    for (outer, inner) in &pairs[1..] {
        namespace.add_veth(outer, inner);
    }
    namespace.ip("link set q4 down");
    let recorder = Recorder::start(
        &namespace,
        "-i v1 -i q2 -i q3 -i q4 --set capture-threads=2 --ring 128MiB --past 20s --future 100ms --dump '' --trigger 'udp port 60000'",
    );
    let mut senders = pairs.map(|(outer, _)| Sender::new(&namespace, outer));
    let mut frame = udp(0, 1000, BACKGROUND, &[0; 8]);
    let count = 3000;
    for number in 0..count {
        traffic::number(number, &mut frame);
        senders[usize::try_from(number % 3).unwrap()].send(&frame);
    }
    recorder.settle_all(4, count);
    // Both threads run by now: each has stored packets.
    let threads = fs::read_dir(format!("/proc/{}/task", recorder.pid().as_raw_nonzero())).unwrap();
    let names = threads.map(|thread| fs::read_to_string(thread.unwrap().path().join("comm")));
    let inserters = names.filter(|name| name.as_ref().unwrap().starts_with("inserter-"));
    assert_eq!(inserters.count(), 2);
    let start = Instant::now();
    senders[1].send(&udp(1, 1000, 60000, b"trigger!"));
    recorder.dumps(1);
    let waited = start.elapsed();
    assert!(waited.as_secs() < 5, "{waited:?}");
    namespace.ip("link set q4 up");
    recorder.line("q4", |line| line.contains("q4: the interface is up"));
    senders[3].send(&udp(1, 1000, 60000, b"trigger!"));
    recorder.dumps(2);
    let outcome = recorder.stop();
    let stored = pairs.map(|(_, inner)| {
        let ledger = outcome.source_named(inner);
        assert_eq!(ledger.received, ledger.stored + ledger.lost, "{ledger:?}");
        ledger.stored
    });
    assert_eq!(stored, [1000, 1001, 1000, 1]);
    let capture = capture::read(&outcome.dumps()[0]);
    assert!(numbers_to(&capture, BACKGROUND).into_iter().eq(0..count));
}

/// `-c N` stores N packets. Further received packets count as filtered.
#[test]
fn a_count_is_exact() {
    let _machine = shared();
    let Some(namespace) = Namespace::with_veth("count") else {
        return;
    };
    let recorder = Recorder::start(&namespace, "-i v1 --ring 128MiB -c 100 --set rx-threads=2");
    let mut sender = Sender::new(&namespace, "v0");
    sender.flood(1000, None, traffic::number, |_, _| {});
    let outcome = recorder.wait();
    outcome.expect_code(0);
    let ledger = outcome.source();
    assert_eq!((ledger.stored, ledger.lost), (100, 0));
    assert!(outcome.said("100 packets captured"));
}

/// A capture filter rejects packets: in the kernel if the kernel can evaluate the filter and there
/// is no `-c`, otherwise in user space. Packets that the kernel rejects are not counted.
#[test]
fn what_the_capture_filter_refuses() {
    let _machine = shared();
    let Some(namespace) = Namespace::with_veth("filter") else {
        return;
    };
    let in_kernel = (10, 10, None);
    let in_user_space = (2560, 10, Some(2550));
    for (more, expected) in [
        (&["-f", "host 10.0.0.7"][..], in_kernel),
        (&["-f", "host 10.0.0.7", "-s", "60"], in_kernel),
        (&["-f", "inbound and host 10.0.0.7"], in_user_space),
        // With `-c` the filter runs in user space, so that packets after the last stored packet are
        // counted.
        (&["-f", "host 10.0.0.7", "-c", "1000"], in_user_space),
    ] {
        let arguments = [&["-i", "v1", "--ring", "128MiB"], more].concat();
        let recorder = Recorder::start_with(&namespace, &arguments);
        let mut sender = Sender::new(&namespace, "v0");
        sender.flood(2560, None, traffic::number, |_, _| {});
        let outcome = recorder.stop();
        outcome.expect_code(0);
        let ledger = outcome.source();
        assert_eq!(
            (ledger.received, ledger.stored, ledger.filtered),
            expected,
            "{more:?}"
        );
    }
}
