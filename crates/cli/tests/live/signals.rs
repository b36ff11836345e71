//! Signals: manual triggers, statistics, hangup, stop, and immediate stop.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;

use crate::{
    capture,
    namespace::Namespace,
    quiet,
    recorder::{Outcome, Recorder},
    shared, soak,
    terminal::Terminal,
    traffic::{self, Sender, udp},
};

/// Time limit for stopping while a window of 60 s is open. The long variant, for an idle machine
/// and disk, has a shorter limit.
pub(crate) fn prompt() -> Duration {
    Duration::from_millis(if soak() { 500 } else { 5000 })
}

/// SIGINT during an open window closes the window. The file is completed, and the verdict is
/// `complete`.
#[test]
fn an_interrupt_closes_the_open_window() {
    let _machine = quiet();
    let Some(namespace) = Namespace::with_veth("int") else {
        return;
    };
    let mut times = Vec::new();
    // If the machine delays the end, the test tries up to two more times.
    for _ in 0..3 {
        let recorder = Recorder::start(
            &namespace,
            "-i v1 --ring 128MiB --past 0 --future 60s --trigger 'udp port 60000'",
        );
        let mut sender = Sender::new(&namespace, "v0");
        for number in 0..1000_u64 {
            sender.send(&udp(1, 1000, 60000, &number.to_be_bytes()));
        }
        recorder.line("the trigger", |line| line.starts_with("trigger "));
        let outcome = recorder.stop();
        outcome.expect_code(0);
        assert_eq!(outcome.source().stored, 1000);
        let dump = &outcome.dumps()[0];
        assert_eq!(
            (&dump["verdict"], &dump["clipped"]),
            (&json!("complete"), &json!(["stop"]))
        );
        assert_eq!(capture::read(dump).packets.len(), 1000);
        times.push(outcome.took);
        if outcome.took <= prompt() {
            break;
        }
    }
    eprintln!("from SIGINT to the end: {times:.1?}");
    assert!(times.iter().any(|took| *took <= prompt()), "{times:?}");
}

/// TERM stops the recorder like INT.
#[test]
fn other_signals_end_it_too() {
    let _machine = shared();
    let Some(namespace) = Namespace::with_veth("term") else {
        return;
    };
    let recorder = Recorder::start(&namespace, "-i v1 --ring 128MiB");
    recorder.signal(Signal::TERM);
    let outcome = recorder.wait();
    outcome.expect_code(0);
    assert_eq!(outcome.source().received, 0);
}

/// A wrapper that resets the action for SIGHUP. If the tests run under nohup, the recorder would
/// otherwise inherit that SIGHUP is ignored.
const HANGUP_BY_DEFAULT: [&str; 2] = ["env", "--default-signal=HUP"];

/// SIGHUP asks a recorder without a terminal to reload its configuration. A recorder without
/// `--config` reports that there is no file to reload, and continues.
#[test]
fn a_hangup_does_not_end_a_service() {
    let _machine = shared();
    let Some(namespace) = Namespace::with_veth("hup") else {
        return;
    };
    let arguments = ["-i", "v1", "--ring", "128MiB"];
    let recorder = Recorder::start_wrapped(&namespace, &HANGUP_BY_DEFAULT, &arguments);
    recorder.signal(Signal::HUP);
    recorder.line("the answer", |line| {
        line.contains("no --config to read again")
    });
    let mut sender = Sender::new(&namespace, "v0");
    sender.flood(100, None, traffic::number, |_, _| {});
    recorder.settle(100);
    recorder.stop().expect_code(0);
}

/// SIGHUP ends a recording whose stdin is a terminal, unless the recorder was started with SIGHUP
/// ignored.
#[test]
fn a_hangup_ends_a_recording_at_a_terminal() {
    let _machine = shared();
    let Some(namespace) = Namespace::with_veth("tty") else {
        return;
    };
    let terminal = Terminal::new();
    let line = format!("exec \"$0\" \"$@\" <{}", terminal.path());
    let recorder = Recorder::start_wrapped(
        &namespace,
        &[&HANGUP_BY_DEFAULT[..], &["sh", "-c", &line]].concat(),
        &["-i", "v1", "--ring", "128MiB"],
    );
    recorder.signal(Signal::HUP);
    recorder.wait().expect_code(0);
    let line = format!("trap '' HUP; {line}");
    let recorder = Recorder::start_wrapped(
        &namespace,
        &[&HANGUP_BY_DEFAULT[..], &["sh", "-c", &line]].concat(),
        &["-i", "v1", "--ring", "128MiB"],
    );
    recorder.signal(Signal::HUP);
    let mut sender = Sender::new(&namespace, "v0");
    sender.flood(100, None, traffic::number, |_, _| {});
    recorder.settle(100);
    let outcome = recorder.stop();
    outcome.expect_code(0);
    assert!(!outcome.said("SIGHUP"), "{:#?}", outcome.words);
}

/// A second signal stops the recorder at once. The open dump stays a `.part` file, a message names
/// the file, and the exit code is 1.
#[test]
fn a_second_signal_aborts() {
    let _machine = shared();
    let Some(namespace) = Namespace::with_veth("abort") else {
        return;
    };
    // On a busy machine the first signal may end the recorder before the second is handled.
    let outcome = (0..5).find_map(|_| aborted(&namespace)).expect("an abort");
    outcome.expect_code(1);
    let part = outcome.dumps()[0]["file"].as_str().unwrap();
    assert!(part.ends_with(".pcapng.part"), "{part}");
    assert!(
        outcome.said(&format!("unfinished: {part}")),
        "{:#?}",
        outcome.words
    );
    assert_eq!(outcome.files().len(), 1, "{:?}", outcome.files());
}

/// Result of a recorder with an open dump that received two signals. `None`: the dump was completed
/// anyway.
fn aborted(namespace: &Namespace) -> Option<Outcome> {
    let recorder = Recorder::start_with(
        namespace,
        &[
            "-i",
            "v1",
            "--ring",
            "128MiB",
            "--past",
            "0",
            "--future",
            "60s",
            "--trigger",
            "udp port 60000",
        ],
    );
    let mut sender = Sender::new(namespace, "v0");
    sender.send(&udp(1, 1000, 60000, &[0; 8]));
    recorder.begun();
    // Both signals are pending when the process continues, so the second arrives before the first
    // is handled.
    recorder.signal(Signal::STOP);
    recorder.signal(Signal::INT);
    recorder.signal(Signal::TERM);
    recorder.signal(Signal::CONT);
    let outcome = recorder.wait();
    (outcome.dumps()[0]["verdict"] != "complete").then_some(outcome)
}

/// SIGUSR1 dumps all packets in the window. The key `manual-dump` restricts the dump to the packets
/// of a filter.
#[test]
fn a_trigger_by_hand_dumps_everything() {
    let _machine = shared();
    let Some(namespace) = Namespace::with_veth("hand") else {
        return;
    };
    for (narrowed, packets) in [("", 512), ("host 10.0.0.9", 2)] {
        let recorder = Recorder::start_with(
            &namespace,
            &[
                "-i",
                "v1",
                "--ring",
                "128MiB",
                "--past",
                "20s",
                "--future",
                "50ms",
                "--set",
                &format!("manual-dump={narrowed}"),
            ],
        );
        assert!(narrowed.is_empty() || recorder.directory().is_dir());
        let mut sender = Sender::new(&namespace, "v0");
        sender.flood(512, None, traffic::number, |_, _| {});
        recorder.settle(512);
        recorder.signal(Signal::USR1);
        recorder.dumps(1);
        let outcome = recorder.stop();
        outcome.expect_code(0);
        assert!(outcome.said("only SIGUSR1"), "{:#?}", outcome.words);
        let dump = outcome.dump_of("manual");
        assert_eq!(dump["clipped"], json!(["start"]));
        assert_eq!(capture::read(dump).packets.len(), packets, "{narrowed}");
    }
}

/// SIGUSR2 prints the packet counts up to now.
#[test]
fn statistics_on_demand() {
    let _machine = shared();
    let Some(namespace) = Namespace::with_veth("usr2") else {
        return;
    };
    let recorder = Recorder::start(&namespace, "-i v1 --ring 128MiB");
    recorder.signal(Signal::USR2);
    recorder.line("statistics", |line| {
        line.contains("v1: received 0, stored 0, ")
    });
    let mut sender = Sender::new(&namespace, "v0");
    sender.flood(100, None, traffic::number, |_, _| {});
    recorder.settle(100);
    recorder.stop().expect_code(0);
}
