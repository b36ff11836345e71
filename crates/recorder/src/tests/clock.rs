//! Promises of a live recorder if a clock is set, and for sources with another clock.

use std::{path::Path, sync::atomic::Ordering::SeqCst};

use crate::{
    Verdict,
    tests::{
        live::{START, config, missing, packets},
        rig::{MS, Rig, RigConfig, S, udp},
    },
};

/// The clock steps while a dump is open: the dump has its packets in order of arrival, with their
/// original stamps.
#[test]
fn a_clock_step_loses_nothing() {
    for step_ns in [3600 * S, -3600 * S, 150 * MS, -150 * MS] {
        let dir = tempfile::tempdir().unwrap();
        let mut rig = Rig::new(&config(), START, dir.path());
        rig.pass(MS);
        rig.step();
        let mut stamps = Vec::new();
        for number in 0..20 {
            stamps.push(rig.clock.wall_ns.load(SeqCst));
            rig.arrive(0, udp(1, if number == 5 { 9 } else { 7 }, number));
            rig.pass(100 * MS);
            rig.step();
            if number == 9 {
                rig.clock.wall_ns.fetch_add(step_ns, SeqCst);
            }
        }
        rig.step();
        rig.pass(100 * MS);
        rig.step();
        let report = &rig.reports[0];
        // The trigger is number 5, and the window has one second of future: numbers up to 15, of
        // which the last one is at the very end.
        let expected: Vec<(i64, u32)> = stamps.into_iter().zip(0..).take(16).collect();
        let found: Vec<(i64, u32)> = packets(report).iter().map(|p| (p.0, p.2)).collect();
        assert_eq!(found, expected, "step of {step_ns} ns: {report:?}");
        assert_eq!(report.verdict, Verdict::Complete, "{report:?}");
        assert_eq!(report.notes.len(), 1, "{:?}", report.notes);
        assert!(report.notes[0].contains("stepped"), "{:?}", report.notes);
        assert_eq!(report.reasons(), "complete; clock stepped");
        let bytes = std::fs::read(&report.file).unwrap();
        let field = b"verdict: complete; clock stepped";
        assert!(bytes.windows(field.len()).any(|it| it == field));
        assert_eq!(rig.notices.len(), 1, "{:?}", rig.notices);
    }
}

/// A clock is set forward or back while the ring is full: the past stays as long as before, and a
/// dump whose window begins at the step is complete.
#[test]
fn a_clock_set_back_on_a_full_ring_keeps_the_past() {
    for step_ns in [3600 * S, -3600 * S] {
        let dir = tempfile::tempdir().unwrap();
        let plan = RigConfig {
            ring_bytes: 8 << 20,
            dump: "udp",
            ..config()
        };
        let mut rig = Rig::new(&plan, START, dir.path());
        // Each large packet takes a quarter of a bucket of 1 MiB: 8 buckets keep at least 7 s.
        let large = vec![0x45; 250_000];
        let mut number = 0;
        let mut second = |rig: &mut Rig, port| {
            for _ in 0..4 {
                rig.arrive(0, large.clone());
                rig.arrive(0, udp(1, port, number));
                number += 1;
                rig.pass(250 * MS);
                rig.step();
            }
        };
        for _ in 0..20 {
            second(&mut rig, 7);
        }
        rig.clock.wall_ns.fetch_add(step_ns, SeqCst);
        second(&mut rig, 7);
        second(&mut rig, 7);
        second(&mut rig, 9);
        for _ in 0..2 {
            second(&mut rig, 7);
        }
        rig.step();
        let report = &rig.reports[0];
        assert_eq!(report.verdict, Verdict::Complete, "{report:?}");
        // The trigger is number 88; the window has 2 s before and 1 s after.
        let numbers: Vec<u32> = packets(report).iter().map(|p| p.2).collect();
        assert_eq!(numbers, (80..=92).collect::<Vec<_>>(), "{step_ns}");
    }
}

/// A burst that was fetched around a step: stamps show which packets were stamped before the step.
#[test]
fn a_burst_on_both_sides_of_a_step_is_told_apart() {
    for step_ns in [3600 * S, -3600 * S] {
        let dir = tempfile::tempdir().unwrap();
        let mut rig = Rig::new(&config(), START, dir.path());
        rig.pass(MS);
        rig.step();
        for number in 0..10 {
            rig.arrive(0, udp(1, if number == 7 { 9 } else { 7 }, number));
            rig.pass(MS);
            if number == 4 {
                rig.clock.wall_ns.fetch_add(step_ns, SeqCst);
            }
        }
        rig.step();
        // One more packet with a stamp of the clock before the step, as from a delayed CPU.
        let late_ns = START + 12 * MS;
        let feed = &rig.feeds[0];
        feed.lock()
            .unwrap()
            .frames
            .push_back((late_ns, udp(1, 7, 10)));
        rig.step();
        for _ in 0..3 {
            rig.pass(S);
            rig.step();
        }
        let report = &rig.reports[0];
        let numbers: Vec<u32> = packets(report).iter().map(|p| p.2).collect();
        assert_eq!(numbers, (0..10).collect::<Vec<_>>(), "{step_ns}");
        assert_eq!(missing(report), [("clock-step", Some(1))], "{report:?}");
    }
}

/// A running recorder with one queue of the host's clock and one queue of another clock.
fn beside_a_foreign_source(dir: &Path) -> Rig {
    let plan = RigConfig {
        queues: 2,
        foreign_queues: 1,
        ..config()
    };
    let mut rig = Rig::new(&plan, START, dir);
    rig.pass(MS);
    rig.step();
    rig
}

/// Dumps do not wait for a source without watermarks. They have its packets that arrive in time,
/// and its silence is no loss.
#[test]
fn a_source_without_watermarks_holds_nothing_up() {
    for ahead_ns in [0, 30 * MS, 400 * MS, -400 * MS] {
        let dir = tempfile::tempdir().unwrap();
        let mut rig = beside_a_foreign_source(dir.path());
        rig.pass(2 * S);
        let mut expected = Vec::new();
        for number in 0..20 {
            let now_ns = rig.clock.wall_ns.load(SeqCst);
            let foreign_ns = now_ns + ahead_ns;
            let frame = (foreign_ns, udp(1, 7, 100 + number));
            rig.feeds[1].lock().unwrap().frames.push_back(frame);
            expected.push((foreign_ns, 1, 100 + number));
            expected.push((now_ns, 0, number));
            rig.arrive(0, udp(1, if number == 5 { 9 } else { 7 }, number));
            rig.pass(100 * MS);
            rig.step();
            if number == 6 {
                // The first packets are on disk while the window is open.
                let part = std::fs::read_dir(dir.path()).unwrap().next().unwrap();
                let bytes = part.unwrap().metadata().unwrap().len();
                assert!(bytes > 1000, "{bytes}");
            }
        }
        rig.pass(2 * S);
        rig.step();
        rig.step();
        let trigger_ns = START + MS + 2 * S + 500 * MS;
        expected.retain(|(ns, ..)| (trigger_ns - 2 * S..=trigger_ns + S).contains(ns));
        expected.sort_unstable();
        let report = &rig.reports[0];
        let found: Vec<_> = packets(report).iter().map(|p| (p.0, p.2)).collect();
        let mut expected: Vec<_> = expected.iter().map(|p| (p.0, p.2)).collect();
        let late: Vec<_> = (report.missing.iter())
            .map(|it| (it.cause, it.at_most))
            .collect();
        let is_late = ahead_ns < -50 * MS;
        let told: &[_] = if is_late { &[("late", Some(4))] } else { &[] };
        assert_eq!(late, told, "{ahead_ns}: {report:?}");
        if is_late {
            // A packet is too late if it arrives after the other source's watermark has closed the
            // window.
            rig.stop();
            assert_eq!(rig.late(), (1, vec![0, 4]));
            let is_told = |it: &String| it.contains(" of fake1, from ");
            assert!(rig.notices.iter().any(is_told), "{:?}", rig.notices);
            expected.retain(|packet| !(116..120).contains(&packet.1));
        }
        let report = &rig.reports[0];
        assert_eq!(found, expected, "{ahead_ns}");
        assert!(
            report
                .notes
                .iter()
                .any(|note| note.contains("its own clock")),
            "{report:?}"
        );
    }
}

/// The analyzer paused between reading one clock and the other: an apparent step is not reported.
#[test]
fn clocks_that_are_read_far_apart_tell_of_no_step() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(&config(), START, dir.path());
    rig.pass(MS);
    rig.step();
    rig.clock.read_gap_ns.store(200 * MS, SeqCst);
    rig.clock.wall_ns.fetch_sub(200 * MS, SeqCst);
    rig.step();
    rig.clock.read_gap_ns.store(0, SeqCst);
    rig.clock.wall_ns.fetch_add(200 * MS, SeqCst);
    rig.step();
    assert!(rig.notices.is_empty(), "{:?}", rig.notices);
    rig.clock.wall_ns.fetch_add(200 * MS, SeqCst);
    rig.clock.read_gap_ns.store(2 * MS, SeqCst);
    rig.step();
    assert!(rig.notices.is_empty(), "{:?}", rig.notices);
    rig.clock.read_gap_ns.store(MS, SeqCst);
    rig.step();
    assert_eq!(rig.notices.len(), 1, "{:?}", rig.notices);
    assert!(
        rig.notices[0].contains("stepped by 0.2"),
        "{:?}",
        rig.notices
    );
}

/// The trigger may arrive before any thread has noticed the step, or when the analyzer has noticed
/// the step but the queue has not.
#[test]
fn a_dump_behind_a_clock_step_has_its_future() {
    let cases: [(&[i64], bool); 5] = [
        (&[3600 * S], true),
        (&[3600 * S], false),
        (&[-3600 * S], true),
        (&[-3600 * S], false),
        (&[-3600 * S, 1800 * S], true),
    ];
    for (steps_ns, is_noticed) in cases {
        let dir = tempfile::tempdir().unwrap();
        let mut rig = Rig::new(&config(), START, dir.path());
        rig.pass(MS);
        rig.step();
        for step_ns in steps_ns {
            rig.clock.wall_ns.fetch_add(*step_ns, SeqCst);
            if is_noticed {
                rig.step();
            }
        }
        for number in 0..20 {
            rig.arrive(0, udp(1, if number == 0 { 9 } else { 7 }, number));
            rig.pass(100 * MS);
            rig.step();
        }
        rig.step();
        let case = format!("{steps_ns:?} ns, noticed: {is_noticed}");
        assert_eq!(rig.reports.len(), 1, "{case}");
        let numbers: Vec<u32> = packets(&rig.reports[0]).iter().map(|p| p.2).collect();
        assert_eq!(numbers, (0..=10).collect::<Vec<_>>(), "{case}");
    }
}

/// After a step back stamps repeat.
#[test]
fn a_step_back_makes_nobody_late() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(&config(), START, dir.path());
    rig.pass(MS);
    rig.arrive(0, udp(1, 9, 1));
    rig.step();
    rig.pass(2 * S);
    rig.step();
    rig.step();
    assert_eq!(rig.reports[0].verdict, Verdict::Complete);
    rig.clock.wall_ns.fetch_sub(2 * S, SeqCst);
    for number in 0..10 {
        rig.pass(100 * MS);
        rig.step();
        rig.arrive(0, udp(1, 7, number));
        rig.step();
    }
    rig.stop();
    assert_eq!((rig.reports.len(), rig.late()), (1, (0, vec![0])));
}

/// The clock of a source is ahead by a minute, and a packet of the source triggers a window in its
/// own time. Losses are reported for this window, although no other clock reaches this time.
#[test]
fn a_window_ahead_of_all_other_clocks_has_its_losses() {
    for (lost, is_set_back) in [(0, false), (5, false), (0, true)] {
        let dir = tempfile::tempdir().unwrap();
        let mut rig = beside_a_foreign_source(dir.path());
        for number in 0..400 {
            let back_ns = if is_set_back && number >= 240 {
                3600 * S
            } else {
                0
            };
            let stamp_ns = rig.clock.wall_ns.load(SeqCst) + 60 * S - back_ns;
            let packet = udp(1, if number == 200 { 9 } else { 7 }, number);
            let mut feed = rig.feeds[1].lock().unwrap();
            feed.frames.push_back((stamp_ns, packet));
            feed.lost = if number < 240 { 0 } else { lost };
            drop(feed);
            rig.pass(10 * MS);
            rig.step();
        }
        rig.stop();
        let report = &rig.reports[0];
        let expected: &[(&str, Option<u64>)] = match (lost, is_set_back) {
            (5, _) => &[("kernel", Some(5))],
            (_, true) => &[("clock-step", Some(63))],
            _ => &[],
        };
        assert_eq!(missing(report), expected, "{report:?}");
        assert_eq!(report.packets == 301, !is_set_back, "{report:?}");
    }
}

/// Several steps in one burst, of a clock that is judged by its stamps: misplaced packets of all
/// these steps are reported.
#[test]
fn all_steps_of_a_burst_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let plan = RigConfig {
        queues: 2,
        foreign_queues: 1,
        ..config()
    };
    let mut rig = Rig::new(&plan, START, dir.path());
    let mut stamp_ns = START;
    // 100 packets, 10 ms apart, after each step of an hour back.
    let mut burst = |rig: &mut Rig, steps: u32| {
        for _ in 0..steps {
            stamp_ns -= 3600 * S;
            for number in 0..100 {
                stamp_ns += 10 * MS;
                let frame = (stamp_ns, udp(1, 7, number));
                rig.feeds[1].lock().unwrap().frames.push_back(frame);
            }
        }
        rig.step();
        stamp_ns
    };
    let affected = |rig: &Rig, from_ns, to_ns| {
        let found = rig.common.intake.losses.within(from_ns, to_ns);
        found.iter().map(|it| it.packets).sum::<u64>()
    };
    burst(&mut rig, 1);
    assert_eq!(affected(&rig, i64::MIN, i64::MAX), 0);
    // 63 packets are stored before a step is believed.
    burst(&mut rig, 2);
    assert_eq!(affected(&rig, i64::MIN, i64::MAX), 2 * 63);
    burst(&mut rig, 14);
    assert_eq!(affected(&rig, i64::MIN, i64::MAX), 16 * 63);
    // The ring follows at most 16 steps of a producer that has filled no bucket.
    let now_ns = burst(&mut rig, 2) + 16 * (3600 * S - 10 * MS);
    assert_eq!(affected(&rig, i64::MIN, i64::MAX), 16 * 63 + 2 * 100);
    // After the second step: where the packets are stored, and where they belong.
    assert_eq!(affected(&rig, now_ns - 10 * MS, now_ns), 100);
    let right_ns = now_ns + 2 * (3600 * S - 10 * MS);
    assert_eq!(affected(&rig, right_ns - 10 * MS, right_ns), 100);
}

/// The clock of a source is late, so its counters report losses in a window later than other
/// sources do. The verdict waits for these counters, or says that they are too late.
#[test]
fn a_window_behind_all_other_clocks_has_its_losses() {
    for (behind_ns, future_ns, waits_ns, expected) in [
        (60 * S, S, 0, ("kernel", Some(5))),
        (60 * S, 0, 0, ("kernel", Some(5))),
        (S, S, S, ("kernel", Some(5))),
        (60 * S, S, 3 * S, ("unknown", None)),
    ] {
        let case = format!("{behind_ns}, {future_ns}, {waits_ns}");
        let dir = tempfile::tempdir().unwrap();
        let plan = RigConfig {
            queues: 2,
            foreign_queues: 1,
            future_ns,
            ..config()
        };
        let mut rig = Rig::new(&plan, START, dir.path());
        rig.pass(5 * S);
        rig.step();
        rig.pass(5 * MS);
        let is_host = waits_ns > 0;
        let stamp_ns = rig.clock.wall_ns.load(SeqCst) - behind_ns;
        let packet = udp(1, if is_host { 7 } else { 9 }, 1);
        let frame = (stamp_ns, packet);
        rig.feeds[1].lock().unwrap().frames.push_back(frame);
        if is_host {
            rig.arrive(0, udp(1, 9, 2));
        }
        rig.step();
        rig.feeds[1].lock().unwrap().lost = if is_host { 0 } else { 5 };
        // The window closes, and no counters were read since.
        rig.pass(future_ns + 51 * MS);
        rig.analyze();
        assert!(rig.reports.is_empty(), "{case}: {:?}", rig.reports);
        rig.feeds[1].lock().unwrap().lost = 5;
        for _ in 0..4 {
            rig.pass(waits_ns / 3 + 20 * MS);
            rig.step();
            rig.analyze();
        }
        let report = &rig.reports[0];
        assert_eq!(missing(report), [expected], "{case}: {report:?}");
        assert_eq!(report.missing[0].source.as_deref(), Some("fake1"));
    }
}

/// A window closes while the stamps of a source have gone back, and more packets are needed to
/// decide whether its clock was set back. The verdict waits for these packets, or states that it
/// does not know.
#[test]
fn a_step_that_is_not_believed_yet_is_told() {
    for (counts, behind, then, ends, expected) in [
        (true, 30, 40_i32, false, Some((Some(63), None))),
        (false, 30, 40, false, Some((Some(63), None))),
        (false, 30, 0, false, Some((None, Some(30)))),
        // The source ends, so no packet follows that could decide: the packets count as late, as at
        // the end of a file.
        (false, 30, 0, true, None),
        // The stamps are in time again: the packets were late.
        (false, 1, -1, false, None),
        // No stamp goes back, so no step is reported.
        (false, 0, 0, false, None),
    ] {
        let case = format!("{counts}, {behind}, {then}, {ends}");
        let dir = tempfile::tempdir().unwrap();
        let plan = RigConfig {
            queues: 2,
            foreign_queues: 1,
            ..config()
        };
        let mut rig = Rig::new(&plan, START, dir.path());
        rig.feeds[1].lock().unwrap().counts_nothing = !counts;
        rig.pass(5 * S);
        rig.step();
        let mut number = 0;
        let mut send = |rig: &mut Rig, packets: i32, back_ns: i64| {
            for _ in 0..packets {
                number += 1;
                let stamp_ns = rig.clock.wall_ns.load(SeqCst) - back_ns;
                let frame = (stamp_ns, udp(1, 7, number));
                rig.feeds[1].lock().unwrap().frames.push_back(frame);
                rig.pass(10 * MS);
                rig.step();
            }
        };
        rig.arrive(0, udp(1, 9, 0));
        send(&mut rig, 50, 0);
        send(&mut rig, behind, 4 * S);
        rig.pass(S - i64::from(50 + behind) * 10 * MS + 5 * MS);
        rig.step();
        rig.step();
        assert_eq!(rig.reports.is_empty(), behind > 0, "{case}");
        send(&mut rig, then.abs(), if then > 0 { 4 * S } else { 0 });
        rig.analyze();
        if ends {
            rig.feeds[1].lock().unwrap().stopped = true;
            rig.step();
            rig.step();
        } else if behind > 0 && then == 0 {
            rig.pass(2 * S);
            rig.step();
            rig.analyze();
        }
        let report = &rig.reports[0];
        let found: Vec<_> = report
            .missing
            .iter()
            .map(|it| (it.packets, it.at_most))
            .collect();
        assert_eq!(found, Vec::from_iter(expected), "{case}: {report:?}");
        let causes = missing(report);
        assert!(
            causes.iter().all(|(cause, _)| *cause == "clock-step"),
            "{case}"
        );
    }
}
