//! Promises of a live recorder about time and loss, on injected clocks.

use retroscope_pcapfile::CaptureReader;

use crate::{
    Verdict,
    tests::rig::{MS, Rig, RigConfig, S, udp},
};

pub(crate) const START: i64 = 1_800_000_000 * S;

pub(crate) fn config() -> RigConfig<'static> {
    RigConfig {
        ring_bytes: 16 << 20,
        ..RigConfig::default()
    }
}

/// Time, destination port and number of each packet in a finished dump.
pub(crate) fn packets(report: &crate::DumpReport) -> Vec<(i64, u16, u32)> {
    let mut reader = CaptureReader::open(&report.file).unwrap();
    let mut packets = Vec::new();
    while let Some(record) = reader.next().unwrap() {
        let port = u16::from_be_bytes([record.data[22], record.data[23]]);
        let number = u32::from_be_bytes(record.data[28..32].try_into().unwrap());
        packets.push((record.meta.time_ns, port, number));
    }
    packets
}

/// Causes of missing packets of a dump, with their numbers.
pub(crate) fn missing(report: &crate::DumpReport) -> Vec<(&str, Option<u64>)> {
    let missing = report.missing.iter();
    missing.map(|it| (it.cause, it.packets)).collect()
}

/// 16 producers with one packet a second each, and a ring of 128 MiB: a packet that is one hour old
/// is still dumped. The formula c(r) of the FlowScope paper has no term for the number of
/// producers.
#[test]
fn an_hour_of_slow_queues_stays() {
    let dir = tempfile::tempdir().unwrap();
    let hour = 3600;
    let plan = RigConfig {
        queues: 16,
        ring_bytes: 128 << 20,
        past_ns: hour * S,
        future_ns: 0,
        ..config()
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
    assert_eq!(packets.len(), 16 * 3600 + 1);
    assert!(packets.is_sorted_by_key(|p| p.0));
}

/// FlowScope's dumper waited for later traffic, so on a silent link its dump never ended.
#[test]
fn a_dump_on_a_silent_link_ends_on_time() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(&config(), START, dir.path());
    rig.pass(MS);
    rig.arrive(0, udp(1, 9, 1));
    rig.step();
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

#[test]
fn a_stuck_watermark_ends_50_ms_late() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(&config(), START, dir.path());
    rig.pass(MS);
    rig.arrive(0, udp(1, 9, 1));
    rig.step();
    rig.pass(S + 50 * MS);
    rig.feeds[0].lock().unwrap().watermark_ns = Some(START);
    rig.feeds[0].lock().unwrap().watermark_ns = None;
    rig.step();
    assert!(rig.reports.is_empty());
    rig.pass(1);
    rig.feeds[0].lock().unwrap().watermark_ns = None;
    rig.step();
    rig.step();
    assert_eq!(rig.reports.len(), 1);
}

/// The analyzer pauses after any reading of its clock, and a packet arrives meanwhile. The packet's
/// window must not end early for that reason.
#[test]
fn a_window_is_not_cut_short_by_an_analyzer_that_stood_still() {
    let mut readings = 0;
    while stands_still_behind(readings) {
        readings += 1;
    }
    assert!(readings > 0, "the clock was never looked at");
}

/// The pause follows `readings` readings of the clock and one more. Returns `false` if there was no
/// such reading.
fn stands_still_behind(readings: usize) -> bool {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(&config(), START, dir.path());
    rig.pass(MS);
    rig.step();
    let trigger_ns = START + 501 * MS;
    if !rig.analyze_with_pause(readings, 500 * MS, udp(1, 9, 1)) {
        return false;
    }
    // After the next line, a window that began with the pause would have ended.
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

#[test]
fn overlapping_dumps_share_packets() {
    let dir = tempfile::tempdir().unwrap();
    let plan = RigConfig {
        triggers: &["udp port 9", "udp port 10"],
        ..config()
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

/// Each hit of a batch has its own dump, in order.
#[test]
fn every_hit_of_a_large_batch_counts() {
    let dir = tempfile::tempdir().unwrap();
    let plan = RigConfig {
        dump: "src port $srcPort",
        ..config()
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

#[test]
fn loss_counts_where_it_happened() {
    for (lost_before, lost_inside, verdict) in
        [(7, 0, Verdict::Complete), (0, 5, Verdict::Incomplete)]
    {
        let dir = tempfile::tempdir().unwrap();
        let mut rig = Rig::new(&config(), START, dir.path());
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

/// One source fails while another is still recorded: later dumps report that, too.
#[test]
fn a_source_that_is_gone_is_missing_from_every_later_dump() {
    for failed in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let plan = RigConfig {
            queues: 2,
            ..config()
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
        let source = &rig.common.intake.snapshots()[0];
        if failed {
            assert_eq!(report.verdict, Verdict::Incomplete, "{report:?}");
            assert_eq!(missing, [(crate::INTERFACE_DOWN, None)]);
            let away_ns = u64::try_from(62 * S).unwrap();
            assert_eq!((source.gaps, source.gap_ns), (1, away_ns));
        } else {
            assert_eq!(source.gaps, 0);
            assert_eq!(
                (report.verdict, missing),
                (Verdict::Complete, vec![]),
                "{report:?}"
            );
        }
    }
}

/// A stop closes the window early. The dump is clipped, not incomplete.
#[test]
fn a_stop_clips() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(&config(), START, dir.path());
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
    let snapshot = &rig.common.intake.snapshots()[0];
    assert_eq!(
        (snapshot.received, snapshot.stored, snapshot.in_flight()),
        (Some(3), 3, Some(0))
    );
}

/// The counters report a loss only after the window has ended. The verdict waits for the counters.
#[test]
fn a_verdict_waits_for_the_counters() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(&config(), START, dir.path());
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

/// If the counters are not read again after a time within the window, the verdict is not complete.
#[test]
fn unknown_losses_are_not_called_complete() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(&config(), START, dir.path());
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

/// More buckets were overwritten than the log remembers. A later window is still complete.
#[test]
fn what_was_forgotten_long_ago_is_not_missing() {
    let dir = tempfile::tempdir().unwrap();
    let plan = RigConfig {
        past_ns: 10 * MS,
        future_ns: 0,
        ring_bytes: 8 << 20,
        ..config()
    };
    let mut rig = Rig::new(&plan, START, dir.path());
    let large = vec![0x45; 250_000];
    for _ in 0..8300 {
        for _ in 0..4 {
            rig.arrive(0, large.clone());
            rig.insert();
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

#[test]
fn every_hit_is_found_by_inserters() {
    let dir = tempfile::tempdir().unwrap();
    let plan = RigConfig {
        queues: 3,
        triggers: &["udp port 9", "udp src port 9 or udp dst port 11"],
        past_ns: 0,
        // While no window is closed, the analyzer need not check each packet.
        future_ns: 1000 * S,
        max_dumps: 1000,
        ..config()
    };
    let mut rig = Rig::new(&plan, START, dir.path());
    let mut random = fastrand::Rng::with_seed(9);
    let (mut hits, mut packets) = (0, 0);
    for round in 0..400 {
        for queue in 0..3 {
            for _ in 0..random.usize(..150) {
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
    assert_eq!(rig.passed_by() as u64, packets, "inserters had time");
    rig.stop();
    let counters = &rig.common.counters;
    let counts = counters.reading().hits;
    let found = counts.triggers + counts.suppressed.total();
    assert!(hits > 100);
    assert_eq!((found, counters.reading().analyzed), (hits, packets));
}
