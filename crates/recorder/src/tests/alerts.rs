//! Alerts whose stamps are ahead of the clock, and the number of alerts that may wait.

use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use retroscope_alert::{Alert, ParsedLine, read};

use crate::{
    AlertOutcome,
    analysis::RingReader,
    rfc3339,
    tests::{
        live::{START, config},
        rig::{MS, Rig, S, udp},
    },
};

/// An alert about packets from `source_port` to port 7, stamped `time_ns`.
fn alert(source_port: u16, time_ns: i64) -> Arc<Alert> {
    let stamp = format!("{}+0000", &rfc3339(time_ns)[..26]);
    let line = format!(
        r#"{{"timestamp":"{stamp}","event_type":"alert","src_ip":"10.0.0.1","dest_ip":"10.0.0.2","src_port":{source_port},"dest_port":7,"proto":"UDP","alert":{{"gid":1,"signature_id":1,"rev":1}}}}"#
    );
    let ParsedLine::Alert { alert, .. } = read(line.as_bytes()) else {
        panic!("{line}");
    };
    Arc::from(alert)
}

fn rig(dir: &std::path::Path) -> Rig {
    let mut rig = Rig::new(&config(), START, dir);
    rig.pass(MS);
    rig.step();
    rig
}

fn outcomes(rig: &Rig) -> Vec<(AlertOutcome, u64)> {
    let counts = rig.common.alerts.counts();
    let all = AlertOutcome::ALL.map(|outcome| (outcome, counts.of(outcome)));
    all.into_iter().filter(|(_, count)| *count > 0).collect()
}

#[test]
fn an_alert_far_ahead_of_the_clock_is_answered_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = rig(dir.path());
    let alerts = vec![alert(1, START + 3600 * S), alert(2, START + 11 * S)];
    rig.handle.alerts(alerts).unwrap();
    rig.step();
    assert_eq!(outcomes(&rig), [(AlertOutcome::NotYet, 2)]);
    let reason = rig.alerts[0].reason.as_deref().unwrap();
    assert!(reason.contains("its time is 3599.999 s after"), "{reason}");
    assert_eq!(rig.analyzer().next_in(), None);
    rig.pass(4000 * S);
    rig.step();
    rig.stop();
    assert_eq!(outcomes(&rig), [(AlertOutcome::NotYet, 2)]);
    assert!(rig.reports.is_empty(), "{:?}", rig.reports);
}

/// An alert that is a few seconds ahead of the clock does not wake the analyzer before its time.
#[test]
fn an_alert_soon_to_come_wakes_the_analyzer_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = rig(dir.path());
    let ahead_ns = 5 * S;
    rig.handle.alerts(vec![alert(1, START + ahead_ns)]).unwrap();
    rig.step();
    assert!(!rig.analyzer().has_deadline());
    let left = Duration::from_nanos((ahead_ns - MS).unsigned_abs());
    assert_eq!(rig.analyzer().next_in(), Some(left));
    rig.pass(ahead_ns - 2 * MS);
    rig.step();
    assert_eq!(outcomes(&rig), []);
    rig.arrive(0, udp(1, 7, 0));
    rig.pass(MS);
    assert_eq!(rig.analyzer().next_in(), Some(Duration::ZERO));
    rig.step();
    assert_eq!(outcomes(&rig), [(AlertOutcome::Dump, 1)]);
    assert!(rig.analyzer().has_deadline(), "of the dump");
    rig.stop();
    assert_eq!(rig.reports[0].packets, 1);
}

#[test]
fn a_stop_acts_on_no_alert_that_is_to_come() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = rig(dir.path());
    let ahead = (0..100).map(|port| alert(port, START + 9 * S));
    rig.handle.alerts(ahead.collect()).unwrap();
    rig.step();
    rig.stop();
    assert_eq!(outcomes(&rig), [(AlertOutcome::NotYet, 100)]);
    assert!(rig.reports.is_empty());
    let reason = rig.alerts[0].reason.as_deref();
    assert_eq!(reason, Some("the recording ended before its time"));
    let counts = rig.common.alerts.counts();
    assert_eq!((counts.total(), counts.unmatched()), (100, 100));
}

#[test]
fn alerts_that_wait_are_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = rig(dir.path());
    let one = alert(1, START + 9 * S);
    // The event log keeps only the last events of these alerts, and the rig panics if it takes
    // events after missed events. So the test calls `look`, which takes no events.
    for _ in 0..3 {
        rig.handle.alerts(vec![Arc::clone(&one); 30_000]).unwrap();
        rig.look();
    }
    assert_eq!(outcomes(&rig), [(AlertOutcome::NotYet, 90_000 - 65_536)]);
    // A new alert that is due earlier waits instead of an alert that is due later.
    rig.handle.alerts(vec![alert(2, START + 8 * S)]).unwrap();
    rig.look();
    rig.pass(8 * S);
    rig.look();
    assert_eq!(
        outcomes(&rig),
        [
            (AlertOutcome::Dump, 1),
            (AlertOutcome::NotYet, 90_001 - 65_536)
        ]
    );
}

/// 65,536 alerts wait for their time, and no more may wait.
#[test]
fn an_alert_that_is_due_is_acted_on_however_many_wait() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = rig(dir.path());
    let ahead = vec![alert(1, START + 9 * S); 65_536];
    rig.handle.alerts(ahead).unwrap();
    rig.handle.alerts(vec![alert(2, START); 10]).unwrap();
    rig.look();
    assert_eq!(
        outcomes(&rig),
        [(AlertOutcome::Dump, 1), (AlertOutcome::Joined, 9)]
    );
}

/// The clock is set back by 15 s. One alert waits for its time meanwhile. The other alert has a
/// stamp from before the step and arrives after the step.
#[test]
fn alerts_stamped_before_the_clock_was_set_back_keep_their_time() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = rig(dir.path());
    rig.pass(20 * S);
    rig.arrive(0, udp(1, 7, 0));
    let stamp_ns = rig.clock.wall_ns.load(SeqCst);
    let waits = alert(2, stamp_ns + 5 * S);
    rig.handle.alerts(vec![waits]).unwrap();
    rig.pass(10 * MS);
    rig.step();
    rig.clock.wall_ns.fetch_sub(15 * S, SeqCst);
    rig.step();
    rig.handle.alerts(vec![alert(1, stamp_ns)]).unwrap();
    rig.step();
    assert_eq!(outcomes(&rig), [(AlertOutcome::Dump, 1)]);
    let left = Duration::from_nanos((5 * S - 10 * MS).unsigned_abs());
    assert_eq!(rig.analyzer().next_in(), Some(left));
    rig.pass(5 * S - 10 * MS);
    rig.arrive(0, udp(2, 7, 1));
    rig.pass(10 * MS);
    rig.step();
    assert_eq!(outcomes(&rig), [(AlertOutcome::Dump, 2)]);
    rig.stop();
    let dumped: Vec<_> = rig.reports.iter().map(|report| report.packets).collect();
    assert_eq!(dumped, [1, 1]);
}
