//! `flows --top` on a pseudoterminal.

use std::{fs::File, process::Command};

use rustix::{
    process::{Pid, Signal, WaitOptions, kill_process, waitpid},
    termios::{LocalModes, tcgetattr},
};

use crate::{
    namespace::Namespace,
    recorder::PROGRAM,
    shared,
    terminal::{LEAVE, Running, Terminal, shows},
    traffic::{Sender, udp},
};

/// `flows --top` shows rows of the flows that the test sends, sorts the rows by packets after the
/// key `p`, and follows a changed terminal size. While `flows` is stopped by SIGTSTP and after its
/// end, the terminal has its old modes.
#[test]
fn a_table_on_a_terminal() {
    let _machine = shared();
    let Some(namespace) = Namespace::with_veth("top") else {
        return;
    };
    let terminal = Terminal::new();
    terminal.resize(100, 24);
    let tty = || File::options().read(true).write(true).open(terminal.path());
    let tty = tty().unwrap();
    let modes = || format!("{:?}", tcgetattr(&tty).unwrap());
    let before = modes();
    let mut command = Command::new(PROGRAM);
    command
        .args("flows -i v1 --ring 128MiB --top 2 --window 60".split(' '))
        .stdin(tty.try_clone().unwrap())
        .stdout(tty.try_clone().unwrap())
        .stderr(tty.try_clone().unwrap());
    let mut child = Running(namespace.enter(|| command.spawn()).unwrap());
    let pid = Pid::from_child(&child.0);
    let mut seen = String::new();
    terminal.wait(&mut seen, |seen| seen.contains("from > to"));
    assert!(
        !tcgetattr(&tty)
            .unwrap()
            .local_modes
            .contains(LocalModes::ECHO)
    );
    let mut sender = Sender::new(&namespace, "v0");
    for (host, packets, payload) in [(1, 30, 958), (2, 60, 158), (3, 10, 158)] {
        for _ in 0..packets {
            sender.send(&udp(host, 4000, 53, &vec![0; payload]));
        }
    }
    let [large, many] = ["10.0.0.1:4000 > 10.1.0.1:53", "10.0.0.2:4000 > 10.1.0.1:53"];
    let by_bits = ["68.2%", large, "27.3%", many, "4.5%", "all others"];
    terminal.wait(&mut seen, |seen| shows(seen, &by_bits));
    assert!(shows(&seen, &[" 3 flows; lost 0; v1", by_bits[0]]));

    terminal.press(b'p');
    let by_packets = ["60.0%", many, "30.0%", large, "10.0%", "all others"];
    terminal.wait(&mut seen, |seen| shows(seen, &by_packets));

    terminal.resize(40, 4);
    terminal.wait(&mut seen, |seen| {
        shows(seen, &["pps from > to ", many, "all others"])
    });
    terminal.wait(&mut seen, |seen| !shows(seen, &[large]));
    terminal.resize(100, 24);
    terminal.wait(&mut seen, |seen| shows(seen, &by_packets));

    kill_process(pid, Signal::USR2).unwrap();
    kill_process(pid, Signal::TSTP).unwrap();
    let (_, status) = waitpid(Some(pid), WaitOptions::UNTRACED).unwrap().unwrap();
    assert!(status.stopped(), "{status:?}");
    assert_eq!(modes(), before);
    kill_process(pid, Signal::CONT).unwrap();
    seen.clear();
    terminal.wait(&mut seen, |seen| shows(seen, &by_packets));

    terminal.press(b'q');
    let status = child.0.wait().unwrap();
    terminal.wait(&mut seen, |seen| seen.contains("3 flows of 100 packets"));
    assert_eq!(status.code(), Some(0), "{seen:?}");
    assert_eq!(modes(), before);
    let (drawn, printed) = seen.split_once(LEAVE).unwrap();
    assert!(!drawn.contains("received"), "{drawn:?}");
    assert!(
        printed.contains(many) && printed.contains("v1: received 100"),
        "{printed:?}"
    );
}
