//! What a live recorder promises about time and loss, on injected clocks.

use std::sync::atomic::Ordering::SeqCst;

use retroscope_pcapfile::Reader;
use retroscope_script::Limits;

use crate::{
    Scripts, Verdict,
    rig::{MS, Plan, Rig, S, udp},
};

const START: i64 = 1_800_000_000 * S;

fn plan() -> Plan<'static> {
    Plan {
        queues: 1,
        foreign_queues: 0,
        ring_bytes: 16 << 20,
        triggers: &["udp port 9"],
        dump: "",
        scripts: Scripts::default(),
        limits: Limits::default(),
        past_ns: 2 * S,
        future_ns: S,
        max_dumps: 64,
    }
}

/// Ports and times of the packets in a finished dump.
fn packets(report: &crate::DumpReport) -> Vec<(i64, u16, u32)> {
    let mut reader = Reader::open(&report.file).unwrap();
    let mut packets = Vec::new();
    while let Some(record) = reader.next().unwrap() {
        let port = u16::from_be_bytes([record.data[22], record.data[23]]);
        let number = u32::from_be_bytes(record.data[28..32].try_into().unwrap());
        packets.push((record.meta.time_ns, port, number));
    }
    packets
}

/// What a dump misses: causes, and how many packets.
fn missing(report: &crate::DumpReport) -> Vec<(&str, Option<u64>)> {
    let missing = report.missing.iter();
    missing.map(|it| (it.cause, it.packets)).collect()
}

/// 16 producers at one packet a second, a ring of 128 MiB: a packet one hour old is still dumped. Stored time is ring
/// bytes over rate, whatever the number of queues (the paper's c(r) forgets the producers).
#[test]
fn an_hour_of_slow_queues_stays() {
    let dir = tempfile::tempdir().unwrap();
    let hour = 3600;
    let plan = Plan {
        queues: 16,
        ring_bytes: 128 << 20,
        past_ns: hour * S,
        future_ns: 0,
        ..plan()
    };
    let mut rig = Rig::new(&plan, START, dir.path());
    for second in 0..=hour + 10 {
        for queue in 0..16 {
            rig.arrive(queue, udp(1, 7, u32::try_from(second).unwrap()));
        }
        rig.pass(S);
        if second % 60 == 0 {
            rig.step();
        }
    }
    rig.arrive(3, udp(1, 9, 0));
    rig.step();
    rig.pass(100 * MS);
    rig.step();
    let report = &rig.reports[0];
    assert_eq!(
        (report.verdict, report.missing.len()),
        (Verdict::Complete, 0),
        "{report:?}"
    );
    let packets = packets(report);
    let trigger_ns = START + (hour + 11) * S;
    assert_eq!(packets[0].0, trigger_ns - hour * S, "exactly one hour old");
    // Seconds 11 to 3610 of 16 queues, and the trigger.
    assert_eq!(packets.len(), 16 * 3600 + 1);
    assert!(packets.is_sorted_by_key(|p| p.0));
}

/// FlowScope's dumper waited for later traffic: on a silent link its dump never ended.
#[test]
fn a_dump_on_a_silent_link_ends_on_time() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(&plan(), START, dir.path());
    rig.pass(MS);
    rig.arrive(0, udp(1, 9, 1));
    rig.step();
    // The watermark is 1 ms behind the clock and must pass `to`.
    rig.pass(S + MS);
    rig.step();
    assert!(
        rig.reports.is_empty(),
        "the window is open up to its last nanosecond"
    );
    rig.pass(1);
    rig.step();
    rig.step();
    assert_eq!(rig.reports.len(), 1);
    assert_eq!(
        (rig.reports[0].verdict, rig.reports[0].packets),
        (Verdict::Complete, 1)
    );
}

/// A queue that promises nothing any more cannot keep a dump open for long.
#[test]
fn a_stuck_watermark_ends_50_ms_late() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(&plan(), START, dir.path());
    rig.pass(MS);
    rig.arrive(0, udp(1, 9, 1));
    rig.step();
    rig.pass(S + 50 * MS);
    rig.feeds[0].lock().unwrap().watermark_ns = Some(START);
    // The producer's watermark never went back: let it stand where it was.
    rig.feeds[0].lock().unwrap().watermark_ns = None;
    rig.step();
    assert!(rig.reports.is_empty());
    rig.pass(1);
    rig.feeds[0].lock().unwrap().watermark_ns = None;
    rig.step();
    rig.step();
    assert_eq!(rig.reports.len(), 1);
}

/// The analyzer stands still between a look at its clock and a packet that came meanwhile: the packet's window does not end the
/// sooner for that, behind whichever look it was.
#[test]
fn a_window_is_not_cut_short_by_an_analyzer_that_stood_still() {
    let mut readings = 0;
    while stands_still_behind(readings) {
        readings += 1;
    }
    assert!(readings > 0, "the clock was never looked at");
}

/// The same behind one look, with so many before it. False: there were no more.
fn stands_still_behind(readings: usize) -> bool {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(&plan(), START, dir.path());
    rig.pass(MS);
    rig.step();
    let trigger_ns = START + 501 * MS;
    if !rig.analyze_with_pause(readings, 500 * MS, udp(1, 9, 1)) {
        return false;
    }
    // 50 ms behind the end of a window that had begun with the pause.
    rig.pass(S - 400 * MS);
    rig.step();
    rig.pass(100 * MS);
    rig.arrive(0, udp(1, 7, 2));
    rig.step();
    assert!(rig.reports.is_empty(), "paused behind reading {readings}");
    rig.pass(400 * MS);
    rig.step();
    rig.step();
    let report = &rig.reports[0];
    assert_eq!(report.verdict, Verdict::Complete, "{readings}: {report:?}");
    let expected = [(trigger_ns, 9, 1), (trigger_ns + 700 * MS, 7, 2)];
    assert_eq!(
        packets(report),
        expected,
        "paused behind reading {readings}"
    );
    true
}

/// Two overlapping dumps both hold the packets they share.
#[test]
fn overlapping_dumps_share_packets() {
    let dir = tempfile::tempdir().unwrap();
    let plan = Plan {
        triggers: &["udp port 9", "udp port 10"],
        ..plan()
    };
    let mut rig = Rig::new(&plan, START, dir.path());
    for number in 0..40 {
        let port = match number {
            20 => 9,
            25 => 10,
            _ => 7,
        };
        rig.pass(100 * MS);
        rig.arrive(0, udp(1, port, number));
        rig.step();
    }
    rig.pass(2 * S);
    rig.step();
    rig.step();
    let numbers = |i: usize| {
        packets(&rig.reports[i])
            .iter()
            .map(|p| p.2)
            .collect::<Vec<_>>()
    };
    assert_eq!(numbers(0), (0..=30).collect::<Vec<_>>());
    assert_eq!(numbers(1), (5..=35).collect::<Vec<_>>());
}

/// Packets that are looked at together trigger as they do alone: each hit its own dump, in their order.
#[test]
fn every_hit_of_a_large_batch_counts() {
    let dir = tempfile::tempdir().unwrap();
    let plan = Plan {
        dump: "src port $srcPort",
        ..plan()
    };
    let mut rig = Rig::new(&plan, START, dir.path());
    let hits = [5_u16, 63, 64, 65, 128, 299];
    for number in 0..300 {
        rig.pass(1);
        let port = if hits.contains(&number) { 9 } else { 7 };
        rig.arrive(0, udp(1000 + number, port, u32::from(number)));
    }
    rig.step();
    rig.pass(2 * S);
    rig.step();
    rig.step();
    let triggers: Vec<_> = rig.reports.iter().map(|report| report.trigger_ns).collect();
    assert_eq!(triggers, hits.map(|number| START + 1 + i64::from(number)));
    for (report, number) in rig.reports.iter().zip(hits) {
        let packet = (report.trigger_ns, 9, u32::from(number));
        assert_eq!(packets(report), [packet]);
    }
}

/// Kernel loss inside the window makes the dump incomplete; outside, it does not touch it.
#[test]
fn loss_counts_where_it_happened() {
    for (lost_before, lost_inside, verdict) in
        [(7, 0, Verdict::Complete), (0, 5, Verdict::Incomplete)]
    {
        let dir = tempfile::tempdir().unwrap();
        let mut rig = Rig::new(&plan(), START, dir.path());
        rig.pass(MS);
        rig.step();
        rig.feeds[0].lock().unwrap().lost += lost_before;
        rig.pass(100 * MS);
        rig.step();
        rig.pass(10 * S);
        rig.step();
        rig.arrive(0, udp(1, 9, 1));
        rig.step();
        rig.feeds[0].lock().unwrap().lost += lost_inside;
        rig.pass(100 * MS);
        rig.step();
        rig.pass(2 * S);
        rig.step();
        rig.step();
        let report = &rig.reports[0];
        assert_eq!(report.verdict, verdict, "{report:?}");
        let missing: Vec<_> = report
            .missing
            .iter()
            .map(|m| (m.cause, m.packets))
            .collect();
        let expected = if lost_inside > 0 {
            vec![("kernel", Some(lost_inside))]
        } else {
            Vec::new()
        };
        assert_eq!(missing, expected);
    }
}

/// One source fails while another one is recorded on: every dump after that says so, not only those that are open then.
#[test]
fn a_source_that_is_gone_is_missing_from_every_later_dump() {
    for failed in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let plan = Plan {
            queues: 2,
            ..plan()
        };
        let mut rig = Rig::new(&plan, START, dir.path());
        rig.pass(MS);
        rig.step();
        {
            let mut feed = rig.feeds[0].lock().unwrap();
            (feed.failed, feed.stopped) = (failed, !failed);
        }
        rig.step();
        rig.pass(60 * S);
        rig.step();
        rig.arrive(1, udp(1, 9, 1));
        rig.step();
        rig.pass(2 * S);
        rig.step();
        rig.step();
        let report = &rig.reports[0];
        let missing = missing(report);
        let source = &rig.intake.snapshots()[0];
        if failed {
            assert_eq!(report.verdict, Verdict::Incomplete, "{report:?}");
            assert_eq!(missing, [(crate::INTERFACE_DOWN, None)]);
            // It is away as long as the others are recorded.
            let away_ns = u64::try_from(62 * S).unwrap();
            assert_eq!((source.gaps, source.gap_ns), (1, away_ns));
        } else {
            assert_eq!(source.gaps, 0);
            // The end of a stream is the end of its source.
            assert_eq!(
                (report.verdict, missing),
                (Verdict::Complete, vec![]),
                "{report:?}"
            );
        }
    }
}

/// A stop closes the window there, without waiting for its end, and calls it clipped, not incomplete.
#[test]
fn a_stop_clips() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(&plan(), START, dir.path());
    rig.pass(500 * MS);
    rig.arrive(0, udp(1, 7, 1));
    rig.arrive(0, udp(1, 9, 2));
    rig.step();
    rig.pass(100 * MS);
    rig.arrive(0, udp(1, 7, 3));
    rig.stop();
    let report = &rig.reports[0];
    assert_eq!(
        (report.verdict, report.clipped.as_slice(), report.packets),
        (Verdict::Complete, &["start", "stop"][..], 3)
    );
    let snapshot = &rig.intake.snapshots()[0];
    assert_eq!(
        (snapshot.received, snapshot.stored, snapshot.in_flight()),
        (Some(3), 3, Some(0))
    );
}

/// A step of the real-time clock while a dump is open: it ends when it would have, and holds what arrived meanwhile, in the order in which it
/// came, with the stamps that it came with.
#[test]
fn a_clock_step_loses_nothing() {
    for step_ns in [3600 * S, -3600 * S, 150 * MS, -150 * MS] {
        let dir = tempfile::tempdir().unwrap();
        let mut rig = Rig::new(&plan(), START, dir.path());
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
        // Trigger at number 5, one second of future: numbers up to 15, the last one at its very end.
        let expected: Vec<(i64, u32)> = stamps.into_iter().zip(0..).take(16).collect();
        let found: Vec<(i64, u32)> = packets(report).iter().map(|p| (p.0, p.2)).collect();
        assert_eq!(found, expected, "step of {step_ns} ns: {report:?}");
        assert_eq!(report.verdict, Verdict::Complete, "{report:?}");
        assert_eq!(report.notes.len(), 1, "{:?}", report.notes);
        assert!(report.notes[0].contains("stepped"), "{:?}", report.notes);
        assert_eq!(rig.notices.len(), 1, "{:?}", rig.notices);
    }
}

/// A clock set back on a full ring: the past stays as long as it was, and a dump whose window lies around the step has all of it.
#[test]
fn a_clock_set_back_on_a_full_ring_keeps_the_past() {
    for step_ns in [3600 * S, -3600 * S] {
        let dir = tempfile::tempdir().unwrap();
        let plan = Plan {
            ring_bytes: 8 << 20,
            dump: "udp",
            ..plan()
        };
        let mut rig = Rig::new(&plan, START, dir.path());
        // A quarter of a bucket each: 7 s are in the ring, of 8 buckets.
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
        // Trigger at 88; 2 s before it, and 1 s behind.
        let numbers: Vec<u32> = packets(report).iter().map(|p| p.2).collect();
        assert_eq!(numbers, (80..=92).collect::<Vec<_>>(), "{step_ns}");
    }
}

/// A burst that was fetched around a step: stamps tell which of its packets came before.
#[test]
fn a_burst_on_both_sides_of_a_step_is_told_apart() {
    for step_ns in [3600 * S, -3600 * S] {
        let dir = tempfile::tempdir().unwrap();
        let mut rig = Rig::new(&plan(), START, dir.path());
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
        // One more with a stamp of before: another CPU was held up.
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

/// A source that promises nothing beside one that does: dumps do not wait for it, its packets are in them, and its silence is no loss.
#[test]
fn a_source_without_watermarks_holds_nothing_up() {
    for ahead_ns in [0, 30 * MS, 400 * MS, -400 * MS] {
        let dir = tempfile::tempdir().unwrap();
        let plan = Plan {
            queues: 2,
            foreign_queues: 1,
            ..plan()
        };
        let mut rig = Rig::new(&plan, START, dir.path());
        rig.pass(MS);
        rig.step();
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
        assert_eq!(report.verdict, Verdict::Complete, "{ahead_ns}: {report:?}");
        if ahead_ns < -50 * MS {
            // What comes when the window has closed by the other source's watermark is late, and told.
            rig.stop();
            let amended = &rig.reports[1];
            assert_eq!(missing(amended), [("late", Some(4))], "{amended:?}");
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

/// The analyzer stood still whenever it read one clock behind the other: what seems a step is none, and a step is one at the next look
/// that can tell.
#[test]
fn clocks_that_are_read_far_apart_tell_of_no_step() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(&plan(), START, dir.path());
    rig.pass(MS);
    rig.step();
    rig.clock.apart_ns.store(200 * MS, SeqCst);
    rig.clock.wall_ns.fetch_sub(200 * MS, SeqCst);
    rig.step();
    rig.clock.apart_ns.store(0, SeqCst);
    rig.clock.wall_ns.fetch_add(200 * MS, SeqCst);
    rig.step();
    assert!(rig.notices.is_empty(), "{:?}", rig.notices);
    rig.clock.wall_ns.fetch_add(200 * MS, SeqCst);
    rig.clock.apart_ns.store(2 * MS, SeqCst);
    rig.step();
    assert!(rig.notices.is_empty(), "{:?}", rig.notices);
    rig.clock.apart_ns.store(MS, SeqCst);
    rig.step();
    assert_eq!(rig.notices.len(), 1, "{:?}", rig.notices);
    assert!(
        rig.notices[0].contains("stepped by 0.2"),
        "{:?}",
        rig.notices
    );
}

/// The first dump behind a step has its whole window: whether its trigger comes before anybody has noticed the step, or when the analyzer
/// has and the queue has not.
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
        let mut rig = Rig::new(&plan(), START, dir.path());
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

/// A loss that the counters tell only after the window has closed still counts: the verdict waits for them.
#[test]
fn a_verdict_waits_for_the_counters() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(&plan(), START, dir.path());
    rig.pass(MS);
    rig.arrive(0, udp(1, 9, 1));
    rig.step();
    let stale_ns = START + 500 * MS;
    for _ in 0..3 {
        rig.pass(600 * MS);
        rig.feeds[0].lock().unwrap().known_ns = Some(stale_ns);
        rig.step();
    }
    assert!(
        rig.reports.is_empty(),
        "the window is over, its losses are not known"
    );
    rig.feeds[0].lock().unwrap().lost += 3;
    rig.pass(20 * MS);
    rig.step();
    rig.step();
    let report = &rig.reports[0];
    assert_eq!(
        (report.verdict, missing(report)),
        (Verdict::Incomplete, vec![("kernel", Some(3))])
    );
}

/// Counters that never come: the verdict says that it does not know, and never claims to be complete.
#[test]
fn unknown_losses_are_not_called_complete() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(&plan(), START, dir.path());
    rig.pass(MS);
    rig.arrive(0, udp(1, 9, 1));
    rig.step();
    for _ in 0..8 {
        rig.pass(500 * MS);
        rig.feeds[0].lock().unwrap().known_ns = Some(START + 500 * MS);
        rig.step();
    }
    let report = &rig.reports[0];
    assert_eq!(
        (report.verdict, missing(report)),
        (Verdict::Incomplete, vec![("unknown", None)])
    );
    assert_eq!(report.missing[0].source.as_deref(), Some("fake0"));
}

/// After a step back stamps are used again: packets that carry them are not late for dumps from before the step.
#[test]
fn a_step_back_makes_nobody_late() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(&plan(), START, dir.path());
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
    assert_eq!(
        rig.reports.len(),
        1,
        "nothing was amended: {:?}",
        rig.reports
    );
}

/// More buckets overwritten than the log remembers: a window that they never touched is still complete.
#[test]
fn what_was_forgotten_long_ago_is_not_missing() {
    let dir = tempfile::tempdir().unwrap();
    let plan = Plan {
        past_ns: 10 * MS,
        future_ns: 0,
        ring_bytes: 8 << 20,
        ..plan()
    };
    let mut rig = Rig::new(&plan, START, dir.path());
    // Four large packets fill a bucket of 1 MiB; the log remembers 8192 buckets.
    let large = vec![0x45; 250_000];
    for _ in 0..8300 {
        for _ in 0..4 {
            rig.arrive(0, large.clone());
        }
        rig.pass(S);
        rig.step();
    }
    rig.arrive(0, udp(1, 9, 1));
    rig.step();
    rig.pass(20 * MS);
    rig.step();
    rig.step();
    let report = &rig.reports[0];
    assert_eq!(
        (report.verdict, report.packets),
        (Verdict::Complete, 1),
        "{report:?}"
    );
}

/// Inserters pass packets by for the analyzer: it still finds each hit, whatever else is in its burst and its batch.
#[test]
fn every_hit_is_found_behind_the_inserters_look() {
    let dir = tempfile::tempdir().unwrap();
    let plan = Plan {
        queues: 3,
        triggers: &["udp port 9", "udp src port 9 or udp dst port 11"],
        past_ns: 0,
        // Behind a window that is over every packet of its bucket is looked at.
        future_ns: 1000 * S,
        max_dumps: 1000,
        ..plan()
    };
    let mut rig = Rig::new(&plan, START, dir.path());
    let mut random = fastrand::Rng::with_seed(9);
    let (mut hits, mut packets) = (0, 0);
    for round in 0..400 {
        for queue in 0..3 {
            for _ in 0..random.usize(..150) {
                // In one round of four there are none.
                let port = match random.u32(..200) {
                    0 if round % 4 > 0 => 9,
                    1 if round % 4 > 0 => 11,
                    _ => 12,
                };
                hits += u64::from(port < 12);
                packets += 1;
                rig.arrive(queue, udp(1, port, 0));
            }
        }
        rig.pass(MS);
        if random.bool() {
            rig.step();
        }
    }
    let passed_by = rig.passed_by() as u64;
    assert!(
        (packets / 10..packets).contains(&passed_by),
        "{passed_by} of {packets}"
    );
    rig.stop();
    let count =
        |counter: &std::sync::atomic::AtomicU64| counter.load(std::sync::atomic::Ordering::Relaxed);
    let counters = &rig.counters;
    let counts = counters.hits();
    let found = counts.triggers + counts.suppressed.total();
    assert!(hits > 100);
    assert_eq!((found, count(&counters.analyzed)), (hits, packets));
}
