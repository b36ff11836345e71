//! Time limits: a dump of a single packet, `--duration`, and an idle recorder.

use std::time::{Duration, Instant};

use crate::{
    capture,
    namespace::Namespace,
    quiet,
    recorder::Recorder,
    shared,
    signals::prompt,
    soak,
    traffic::{Sender, udp},
};

const FUTURE: Duration = Duration::from_millis(200);

/// `--duration` of the recording.
const DURATION: Duration = Duration::from_secs(1);

/// Time between the end of a dump's window and the report that the dump is finished, at most.
const SLACK: Duration = Duration::from_millis(100);

/// A single packet on an idle link triggers. Its dump is complete on disk at most 100 ms after the
/// end of `--future`, although no packet follows. Other load on the machine sometimes delays the
/// dump, so the best of five tries counts. The long variant needs an idle machine and disk, and
/// checks the median of 20 tries.
#[test]
fn a_lone_packet_is_dumped_on_time() {
    let _machine = quiet();
    let Some(namespace) = Namespace::with_veth("lone") else {
        return;
    };
    let recorder = Recorder::start(
        &namespace,
        "-i v1 --ring 128MiB --past 1s --future 200ms --trigger 'udp port 60000'",
    );
    let mut sender = Sender::new(&namespace, "v0");
    let rounds = if soak() { 20 } else { 5 };
    let mut late: Vec<Duration> = Vec::new();
    for round in 0..rounds {
        let sent_at = Instant::now();
        sender.send(&udp(round, 1000, 60000, &[0; 8]));
        let (finished_at, line) = recorder.dumps(usize::from(round) + 1).pop().unwrap();
        assert!(line.contains(": 1 packet,"), "{line}");
        let took = finished_at - sent_at;
        assert!(took >= FUTURE, "the window was open for {took:?} only");
        late.push(took - FUTURE);
    }
    late.sort_unstable();
    eprintln!("after the window, sorted: {late:.1?}");
    let counts = if soak() { late.len() / 2 } else { 0 };
    assert!(late[counts] <= SLACK, "{late:?}");
    let outcome = recorder.stop();
    outcome.expect_code(0);
    assert_eq!(outcome.dumps().len(), usize::from(rounds));
    for dump in outcome.dumps() {
        assert_eq!(capture::read(dump).packets.len(), 1);
    }
}

/// `--duration` ends the recording shortly after that time. The dump of the open window is clipped
/// and complete. If a busy machine sends the packet too late or delays the end, the test records
/// again, up to four times.
#[test]
fn a_duration_ends_the_recording() {
    let _machine = shared();
    let Some(namespace) = Namespace::with_veth("duration") else {
        return;
    };
    let mut sender = Sender::new(&namespace, "v0");
    let mut tries = Vec::new();
    let mut record = || {
        let recorder = Recorder::start(
            &namespace,
            "-i v1 --ring 128MiB --duration 1s --past 0 --future 60 --trigger 'udp port 60000'",
        );
        sender.send(&udp(1, 1000, 60000, &[0; 8]));
        // `wait` fails after 30 s, long before the end of the window of 60 s.
        let outcome = recorder.wait();
        outcome.expect_code(0);
        let received = outcome.source().received;
        tries.push((received, outcome.took));
        (received == 1 && outcome.took <= DURATION + prompt()).then_some(outcome)
    };
    let outcome = (0..5).find_map(|_| record());
    let outcome = outcome.unwrap_or_else(|| panic!("packets and times: {tries:?}"));
    let dump = &outcome.dumps()[0];
    assert_eq!(dump["clipped"], serde_json::json!(["stop"]));
    assert_eq!(
        (&dump["verdict"], capture::read(dump).packets.len()),
        (&"complete".into(), 1)
    );
}

/// Maximum CPU use of an idle recorder. This test measured 0.3 to 0.7 %. /proc counts CPU time in
/// hundredths of a second, so 2 s of recording resolve 0.5 %.
const IDLE_PERCENT_MAX: f64 = 2.0;

/// An idle recorder uses almost no CPU.
#[test]
fn an_idle_recorder_rests() {
    let _machine = quiet();
    let Some(namespace) = Namespace::with_veth("idle") else {
        return;
    };
    let seconds = if soak() { 10 } else { 2 };
    let mut percents = Vec::new();
    // A hypervisor's pauses are charged to the running thread, so the best of three tries counts.
    for _ in 0..3 {
        let recorder = Recorder::start_with(
            &namespace,
            &[
                "-i",
                "v1",
                "--ring",
                "128MiB",
                "--duration",
                &format!("{seconds}s"),
                "--trigger",
                "udp port 60000",
            ],
        );
        let before = crate::recorder::cpu_time(recorder.pid());
        let outcome = recorder.wait();
        outcome.expect_code(0);
        let percent = (outcome.cpu - before).as_secs_f64() / f64::from(seconds) * 100.0;
        percents.push(percent);
        if percent <= IDLE_PERCENT_MAX {
            break;
        }
    }
    eprintln!("idle: {percents:.1?} % of a core");
    assert!(
        percents.iter().any(|percent| *percent <= IDLE_PERCENT_MAX),
        "{percents:?} % of a core"
    );
}
