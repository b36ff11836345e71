//! The memory of a recorder that runs for a long time, and its reports about missed triggers.

use std::{num::NonZeroUsize, sync::atomic::Ordering};

use crate::{
    Analyzers, TriggerRequest, Verdict,
    tests::rig::{MS, Rig, RigConfig, S, udp},
};

const START: i64 = 1_800_000_000 * S;

fn config() -> RigConfig<'static> {
    RigConfig {
        dump: "$flow",
        past_ns: 10 * MS,
        future_ns: 5 * MS,
        max_dumps: 8,
        ..RigConfig::default()
    }
}

fn step_clock(rig: &Rig, step_ns: i64) {
    rig.clock.wall_ns.fetch_add(step_ns, Ordering::SeqCst);
}

#[test]
fn thousands_of_dumps_and_steps_leave_little_behind() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(&config(), START, dir.path());
    let mut most = [0; 3];
    for round in 0..4000_u16 {
        rig.pass(20 * MS);
        if round % 3 == 0 {
            rig.arrive(0, udp(round, 9, 0));
        }
        if round % 5 == 0 {
            step_clock(&rig, if round % 2 == 0 { S } else { -S });
        }
        rig.step();
        for (most, now) in most.iter_mut().zip(rig.analyze_alone()) {
            *most = now.max(*most);
        }
    }
    rig.stop();
    let hits = rig.common.counters.reading().hits;
    assert_eq!(
        hits.triggers + hits.suppressed.total(),
        4000_u64.div_ceil(3)
    );
    assert!(hits.triggers > 1024, "{hits:?}");
    assert_eq!(rig.reports.len() as u64, hits.triggers);
    let [open, closed, unsent] = most;
    assert!(open <= 8 && closed <= 1024 && unsent == 0, "{most:?}");
    let (listed, before) = rig.common.log.summary();
    assert_eq!(
        listed.len() as u64 + before.total(),
        rig.reports.len() as u64
    );
}

/// Packets come too late for finished dumps: for the last dump, and for the oldest dumps, whose
/// windows are merged into one range.
#[test]
fn packets_that_come_too_late_are_counted_and_told() {
    let dir = tempfile::tempdir().unwrap();
    let plan = RigConfig {
        queues: 2,
        foreign_queues: 1,
        ring_bytes: 16 << 20,
        dump: "",
        ..config()
    };
    let mut rig = Rig::new(&plan, START, dir.path());
    let mut first_ns = 0;
    let mut expected = (0, vec![0, 0]);
    for number in 0..1040 {
        rig.pass(20 * MS);
        let now_ns = rig.clock.wall_ns.load(Ordering::SeqCst);
        if number == 0 {
            first_ns = now_ns;
        }
        let last_ns = now_ns - 40 * MS;
        let (late, dumps, packets) = match number {
            // Two packets within the window of the last dump, and one between two windows.
            10 => (vec![last_ns, last_ns + 15 * MS, last_ns], 1, 2),
            // A packet before all windows, six of which are merged into one range.
            1030 => (vec![first_ns - 15 * MS], 0, 0),
            // Seven of the 1,031 closed windows are merged into one range, which includes the time
            // between two windows. The first packet in the range makes all seven dumps outdated.
            1031 => (vec![first_ns, first_ns + 15 * MS], 7, 2),
            _ => (vec![], 0, 0),
        };
        expected.0 += dumps;
        expected.1[1] += packets;
        // The last packet is stamped now, and shows that the source's clock was not set back.
        let frames = late.iter().chain([&now_ns]).map(|ns| (*ns, udp(1, 7, 0)));
        rig.feeds[1].lock().unwrap().frames.extend(frames);
        rig.arrive(0, udp(1, 9, 0));
        rig.step();
        rig.pass(20 * MS);
        rig.step();
        assert_eq!(rig.late(), expected, "{number}");
    }
    // Late packets are reported at most once a minute. The stop, less than a minute after the first
    // report, brings the second report.
    let is_told = |it: &&String| it.contains("up to 2 packets of fake1, ");
    assert_eq!(rig.notices.iter().filter(is_told).count(), 1);
    rig.stop();
    assert_eq!(rig.notices.iter().filter(is_told).count(), 2);
    assert_eq!(rig.reports.len(), 1040, "each is judged once");
    let mut verdicts = rig.reports.iter().map(|report| report.verdict);
    assert!(verdicts.all(|verdict| verdict == Verdict::Complete));
}

/// One dump during a storm of clock steps.
#[test]
fn notes_of_steps_are_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let plan = RigConfig {
        future_ns: 1000 * S,
        ..config()
    };
    let mut rig = Rig::new(&plan, START, dir.path());
    rig.pass(MS);
    rig.arrive(0, udp(1, 9, 0));
    for round in 0..2000 {
        rig.pass(MS);
        step_clock(&rig, if round % 2 == 0 { S } else { -S });
        rig.step();
    }
    rig.stop();
    let notes = rig.reports[0].notes.len();
    assert!((100..=256).contains(&notes), "{notes}");
}

/// The dumper hangs for more than an hour, as with a dead disk.
#[test]
fn little_waits_for_a_dumper_that_hangs() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(&config(), START, dir.path());
    let mut most = [0; 3];
    for round in 0..20_000_u16 {
        rig.pass(200 * MS);
        rig.arrive(0, udp(round, 9, 0));
        rig.trigger(TriggerRequest::default());
        rig.insert();
        for (most, now) in most.iter_mut().zip(rig.analyze_alone()) {
            *most = now.max(*most);
        }
    }
    let [open, closed, ..] = most;
    assert!(open <= 16 && closed <= 16, "{most:?}");
    let hits = rig.common.counters.reading().hits;
    assert_eq!(hits.triggers, 16, "8 of the rule, 8 by hand");
    assert_eq!(hits.triggers + hits.suppressed.total(), 40_000);
    rig.stop();
    assert_eq!(rig.reports.len(), 16, "none is lost");
}

/// The analyzer makes no progress until the ring has overwritten packets.
#[test]
fn packets_that_no_rule_saw_are_told() {
    let rules = [(&["udp port 9"][..], true), (&[][..], false)];
    let cases = rules.map(|(triggers, expected)| {
        [5 * MS, 3600 * S].map(|future_ns| (triggers, expected, future_ns))
    });
    for (triggers, expected, future_ns) in cases.into_iter().flatten() {
        let dir = tempfile::tempdir().unwrap();
        let plan = RigConfig {
            triggers,
            dump: "",
            // If inserters analyzed the packets, no packets would be missed.
            analyzers: Analyzers::Threads(NonZeroUsize::MIN),
            ring_bytes: 16 << 20,
            past_ns: 10 * S,
            future_ns,
            ..config()
        };
        let mut rig = Rig::new(&plan, START, dir.path());
        rig.pass(S);
        rig.arrive(0, udp(1, 7, 0));
        rig.step();
        for number in 0..600 {
            rig.pass(MS);
            for _ in 0..1000 {
                rig.arrive(0, udp(1, 7, number));
            }
            rig.insert();
        }
        rig.arrive(0, udp(1, 9, 0));
        rig.trigger(TriggerRequest::default());
        rig.step();
        rig.pass(S);
        rig.step();
        assert_eq!(rig.reports.is_empty(), future_ns > S);
        rig.stop();
        let unseen = rig.common.counters.reading().unseen;
        let lapped = rig.common.counters.reading().lapped;
        assert!(lapped > 10_000, "{lapped}");
        assert_eq!(unseen, if expected { lapped } else { 0 });
        let told = |text: &String| text.contains("triggers may be missed");
        assert_eq!(rig.notices.iter().any(told), expected, "{:?}", rig.notices);
        for report in &rig.reports {
            assert_eq!(report.verdict, Verdict::Incomplete, "they are gone, too");
            assert_eq!(report.not_analyzed, unseen, "{report:?}");
            let sidecar = std::fs::read(report.file.with_extension("json")).unwrap();
            let sidecar: serde_json::Value = serde_json::from_slice(&sidecar).unwrap();
            assert_eq!(sidecar["not_analyzed"].as_u64(), expected.then_some(unseen));
            let file = std::fs::read(&report.file).unwrap();
            let mark = format!("not analyzed: {unseen} packets");
            let has_mark = file
                .windows(mark.len())
                .any(|bytes| bytes == mark.as_bytes());
            assert_eq!(has_mark, expected);
        }
        assert!(!rig.reports.is_empty());
    }
}

/// A window closes by the clock while the analyzer still has many packets to read. After the dump
/// was judged, the ring overwrites packets that the analyzer has not read.
#[test]
fn packets_that_no_rule_saw_are_counted_after_the_judging() {
    let dir = tempfile::tempdir().unwrap();
    let plan = RigConfig {
        dump: "",
        analyzers: Analyzers::Threads(NonZeroUsize::MIN),
        ring_bytes: 160 << 20,
        future_ns: S,
        ..config()
    };
    let mut rig = Rig::new(&plan, START, dir.path());
    rig.pass(S);
    rig.arrive(0, udp(1, 9, 0));
    rig.step();
    let large = |rig: &mut Rig, megabytes: usize| {
        (0..4 * megabytes).for_each(|_| rig.arrive(0, vec![0x45; 250_000]));
        rig.insert();
    };
    // More packets than the analyzer reads between two checks of the clock.
    large(&mut rig, 145);
    rig.pass(2 * S);
    rig.look_once();
    large(&mut rig, 200);
    rig.step();
    rig.step();
    let not_analyzed = |rig: &Rig| {
        rig.reports
            .iter()
            .map(|it| it.not_analyzed)
            .collect::<Vec<_>>()
    };
    assert_eq!(not_analyzed(&rig), [0]);
    rig.stop();
    let unseen = rig.common.counters.reading().unseen;
    assert!(unseen > 0);
    assert_eq!(not_analyzed(&rig), [0], "judged once");
}

/// Bytes of this process in memory (proc_pid_statm(5)).
fn resident_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = text.split(' ').nth(1).unwrap().parse().unwrap();
    pages * rustix::param::page_size()
}

/// The clock of a source without watermarks is ahead. The test runs in a separate process, because
/// other tests take memory.
#[test]
fn a_source_that_is_ahead_takes_no_memory_for_each_packet() {
    const ALONE: &str = "RETROSCOPE_TEST_ALONE";
    const PACKETS: usize = 1_000_000;
    if std::env::var_os(ALONE).is_none() {
        let name = "tests::bounds::a_source_that_is_ahead_takes_no_memory_for_each_packet";
        let program = std::env::current_exe().unwrap();
        let mut alone = std::process::Command::new(program);
        let output = alone
            .args(["--exact", name])
            .env(ALONE, "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && text.contains("1 passed"),
            "{text}"
        );
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let plan = RigConfig {
        queues: 2,
        foreign_queues: 1,
        ring_bytes: 16 << 20,
        past_ns: 0,
        future_ns: 3600 * S,
        ..RigConfig::default()
    };
    let mut rig = Rig::new(&plan, START, dir.path());
    rig.pass(MS);
    rig.arrive(0, udp(1, 9, 0));
    rig.step();
    let mut before = 0;
    for round in 0..PACKETS / 1000 {
        rig.pass(MS);
        let ahead_ns = rig.clock.wall_ns.load(Ordering::SeqCst) + S;
        let packets = (0..1000).map(|number| (ahead_ns + number, udp(2, 7, 0)));
        rig.feeds[1].lock().unwrap().frames.extend(packets);
        // A packet that is not ahead, so that each round has packets of both kinds.
        rig.arrive(0, udp(2, 7, 0));
        rig.step();
        if round == 10 {
            before = resident_bytes();
        }
    }
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 32 << 20, "{} bytes a packet", grown / PACKETS);
    rig.pass(3601 * S);
    rig.step();
    rig.step();
    assert_eq!(rig.reports.len(), 1);
    let report = &rig.reports[0];
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes after the merge");
    let mut reader = retroscope_pcapfile::CaptureReader::open(&report.file).unwrap();
    let (mut packets, mut last_ns) = (0, 0);
    while let Some(record) = reader.next().unwrap() {
        assert!(record.meta.time_ns >= last_ns, "packet {packets}");
        (packets, last_ns) = (packets + 1, record.meta.time_ns);
    }
    assert_eq!((packets, report.packets), (1_001_001, 1_001_001));
}
