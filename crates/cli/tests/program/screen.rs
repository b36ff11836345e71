//! `status` with and without a terminal, and packets for a terminal.

use std::{fs::File, process::Command};

use rustix::termios::tcgetattr;

use crate::{
    recording::Recording,
    support::PROGRAM,
    terminal::{LEAVE, Running, Terminal, shows},
};

/// `-w -` is refused if stdout is a terminal, before the program contacts a recorder.
#[test]
fn a_terminal_gets_no_packets() {
    let terminal = Terminal::new();
    let tty = File::options().write(true).open(terminal.path()).unwrap();
    for words in [&["query"][..], &["dumps", "get", "1"]] {
        let mut command = Command::new(PROGRAM);
        command.args(words).args(["-w", "-", "--socket", "none"]);
        let output = command.stdout(tty.try_clone().unwrap()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("terminal"), "{said}");
    }
}

/// `status` on a terminal shows rates, rules and pins, and follows a resize. `NO_COLOR` turns
/// colors off. After `q` or SIGINT the terminal is restored.
#[test]
fn what_a_recorder_does_is_seen_on_a_terminal() {
    let recording = Recording::start(&["--trigger", "tcp port 9", "--set", "max-dumps=1"]);
    let terminal = Terminal::new();
    terminal.resize(120, 30);
    let tty = File::options().read(true).write(true).open(terminal.path());
    let tty = tty.unwrap();
    let modes = || format!("{:?}", tcgetattr(&tty).unwrap());
    let before = modes();
    let start = |colors: &str| {
        let mut command = Command::new(PROGRAM);
        command
            .args(["status", "--socket"])
            .arg(recording.socket())
            .env("NO_COLOR", colors)
            .stdin(tty.try_clone().unwrap())
            .stdout(tty.try_clone().unwrap())
            .stderr(tty.try_clone().unwrap());
        Running(command.spawn().unwrap())
    };
    let mut child = start("1");
    let mut seen = String::new();
    // Rates appear with the second answer.
    let rates = [
        "(q quits)",
        "history   ",
        " s",
        "pps, ",
        "Mbit/s; ",
        "lost      0",
        "dumps     0 open",
        "source",
        "generate",
        "rule",
        "1 ",
        "tcp port 9",
    ];
    terminal.wait(&mut seen, |seen| shows(seen, &rates));
    recording.told(&["rules", "add", "all", "udp or tcp"]);
    recording.told(&["pin", "kept"]);
    let more = ["all ", "udp or tcp", "kept"];
    terminal.wait(&mut seen, |seen| shows(seen, &more));

    terminal.resize(30, 3);
    terminal.wait(&mut seen, |seen| {
        !shows(seen, &["lost"]) && shows(seen, &["history"])
    });
    terminal.resize(120, 30);
    terminal.wait(&mut seen, |seen| shows(seen, &more));
    terminal.press(b'q');
    assert_eq!(child.0.wait().unwrap().code(), Some(0));
    terminal.wait(&mut seen, |seen| seen.contains(LEAVE));
    assert!(!seen.contains("[1;31m"), "no colors were wanted");
    assert_eq!(modes(), before);

    // After the recorder has ended, the screen shows above the last status that the recorder does
    // not answer. SIGINT restores the terminal.
    let mut child = start("");
    let mut seen = String::new();
    terminal.wait(&mut seen, |seen| shows(seen, &["(q quits)", "tcp port 9"]));
    recording.told(&["stop"]);
    let gone = ["no answer, this is what it told before", "tcp port 9"];
    terminal.wait(&mut seen, |seen| shows(seen, &gone));
    assert!(seen.contains("[1;31m"), "it stands out");
    rustix::process::kill_process(
        rustix::process::Pid::from_child(&child.0),
        rustix::process::Signal::INT,
    )
    .unwrap();
    assert_eq!(child.0.wait().unwrap().code(), Some(0));
    terminal.wait(&mut seen, |seen| seen.contains(LEAVE));
    assert_eq!(modes(), before);
}

/// Without a terminal the status is printed once as text.
#[test]
fn what_a_recorder_does_is_told_as_text() {
    let recording = Recording::start(&["--trigger", "tcp port 9"]);
    recording.wait_for_packets(1);
    let told = recording.told(&["status"]);
    for part in ["history   ", "stored    ", "lost      0", "tcp port 9"] {
        assert!(told.contains(part), "{told}");
    }
    assert!(
        !told.contains('\x1b') && !told.contains("q quits"),
        "{told}"
    );
    recording.told(&["stop"]);
    assert_eq!(recording.end().0.code(), Some(0));
}
