//! Signals: by hand, statistics, the end, the end at once.

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

/// What an end under an open window may take: far less than the window would last, and less still
/// where the machine and its disk are idle.
pub(crate) fn prompt() -> Duration {
    Duration::from_millis(if soak() { 500 } else { 5000 })
}

/// SIGINT under an open window: the window is closed there, its file completed and called complete.
#[test]
fn an_interrupt_closes_the_open_window() {
    let _machine = quiet();
    let Some(namespace) = Namespace::with_veth("int") else {
        return;
    };
    let mut times = Vec::new();
    // A machine that was held up may need a second try.
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

/// TERM ends it as INT does.
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

/// The tests themselves may run under nohup, whose ignore is inherited.
const HANGUP_BY_DEFAULT: [&str; 2] = ["env", "--default-signal=HUP"];

/// HUP asks a service to read its files again, of which this one has none: it says so and goes on.
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

/// HUP ends a recording with a terminal, and not one that was started to ignore it.
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

/// A second signal ends it at once: the open dump stays a `.part`, which is named, and the exit
/// code tells.
#[test]
fn a_second_signal_aborts() {
    let _machine = shared();
    let Some(namespace) = Namespace::with_veth("abort") else {
        return;
    };
    // On a busy machine the end that the first asked for may come before the second is served.
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

/// How a recorder with an open dump ended that got two signals; `None`: the dump was completed all
/// the same.
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
    // Both are pending when it goes on, so that the second comes before the first is served.
    recorder.signal(Signal::STOP);
    recorder.signal(Signal::INT);
    recorder.signal(Signal::TERM);
    recorder.signal(Signal::CONT);
    let outcome = recorder.wait();
    (outcome.dumps()[0]["verdict"] != "complete").then_some(outcome)
}

/// SIGUSR1 dumps everything in the window, whatever `--dump` says; `--manual-dump` narrows it.
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

/// SIGUSR2 prints the ledger so far.
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
