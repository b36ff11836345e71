//! Modules over flows: the packets that a module sees, and the end of its dumps.

use std::{num::NonZeroUsize, time::Duration};

use retroscope_pcapfile::CaptureReader;
use retroscope_script::Script;

use super::{
    rig::{MS, Rig, RigConfig, S, udp},
    windows::{offline, record, write},
};
use crate::{Analyzers, Config, DumpReport, Scripts, Verdict};

const START: i64 = 1_700_000_000 * S;
/// A module that requests a dump at the first packet of each flow with port 9. A flow ends if a
/// check finds no packet of the last 3 s.
const NINES: &str = "
    local m = { checkInterval = 1, stateType = 'double last;', partition = 'flow' }
    function m.handlePacket(key, state, pkt, isFirst)
        if pkt:len() == 32 and pkt:u32(28) == 0xffffffff then error('a packet that it does not like') end
        state.last = pkt:time()
        return isFirst and (key:port_a() == 9 or key:port_b() == 9)
    end
    function m.checkExpiry(key, state, check, now) return now - state.last >= 3, state.last end
    function m.buildPacketFilter() return 'udp port $srcPort' end
    return m";

fn scripts(text: &str) -> Scripts {
    Scripts {
        modules: vec![Script::new("nines.lua", text, false)],
        ..Scripts::default()
    }
}

fn threads(count: usize) -> Analyzers {
    Analyzers::Threads(NonZeroUsize::new(count).unwrap())
}

/// Times of a dump's packets, in seconds since the start, and their numbers.
fn packets(report: &DumpReport) -> Vec<(i64, u32)> {
    let mut reader = CaptureReader::open(&report.file).unwrap();
    let mut packets = Vec::new();
    while let Some(record) = reader.next().unwrap() {
        let number = u32::from_be_bytes(record.data[28..32].try_into().unwrap());
        packets.push(((record.meta.time_ns - START) / S, number));
    }
    packets
}

/// A dump ends with its flow, long before the end of its window, even on a silent link.
#[test]
fn a_dump_ends_with_its_flow() {
    for (analyzers, queues) in [
        (Analyzers::Auto, 1),
        (Analyzers::Inline, 2),
        (threads(1), 1),
        (threads(2), 2),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let plan = RigConfig {
            queues,
            ring_bytes: 64 << 20,
            triggers: &[],
            analyzers,
            scripts: scripts(NINES),
            flows_together: true,
            future_ns: 3600 * S,
            ..RigConfig::default()
        };
        let mut rig = Rig::new(&plan, START, dir.path());
        for second in 0..20 {
            rig.pass(S);
            if (5..9).contains(&second) {
                rig.arrive(queues - 1, udp(1000, 9, second));
            }
            rig.arrive(0, udp(1, 53, second));
            rig.step();
        }
        let of_flow = |rig: &mut Rig| {
            let reports = std::mem::take(&mut rig.reports);
            let [report] = &reports[..] else {
                panic!("{analyzers:?} {reports:?} {:?}", rig.notices);
            };
            assert_eq!(
                (report.verdict, &report.clipped[..]),
                (Verdict::Complete, &["flow"][..])
            );
            packets(report)
        };
        assert_eq!(of_flow(&mut rig), [(6, 5), (7, 6), (8, 7), (9, 8)]);
        rig.pass(S);
        rig.arrive(queues - 1, udp(1000, 9, 77));
        rig.step();
        for _ in 0..60 {
            rig.pass(100 * MS);
            rig.step();
        }
        assert_eq!(of_flow(&mut rig), [(21, 77)]);
        let modules = rig.common.module_statuses();
        let counts = modules[0].counts;
        assert_eq!(
            (counts.packets, counts.begun, counts.wanted),
            (25, 3, 2),
            "{modules:?}"
        );
        assert_eq!(counts.begun, counts.live + counts.over);
        rig.stop();
    }
}

type QueriedPacket = (Vec<(i64, u32)>, Vec<&'static str>);

/// Each dump ends at the same packet in every run, even if its filter also matches packets of other
/// flows.
#[test]
fn files_end_dumps_with_their_flows_at_the_same_packet() {
    let dir = tempfile::tempdir().unwrap();
    let capture = dir.path().join("in.pcap");
    let mut random = fastrand::Rng::with_seed(5);
    let mut frames = Vec::new();
    let mut time_ns = START;
    for number in 0..4000 {
        time_ns += random.i64(0..20 * MS);
        let second = (time_ns - START) / S;
        let port = if second % 10 < 2 && random.u8(..4) == 0 {
            9
        } else {
            random.u16(100..105)
        };
        // Some packets of other flows match the dump filter.
        let source = if port != 9 && random.u8(..50) == 0 {
            1000
        } else if port == 9 {
            1000 + u16::try_from(second / 10).unwrap()
        } else {
            1
        };
        frames.push((time_ns, udp(source, port, number)));
    }
    write(&capture, &frames);
    // Hits wait for the reorder window (`hold`), which may be longer than these flows last.
    for hold in [1, 10].map(Duration::from_secs) {
        let mut seen: Option<Vec<QueriedPacket>> = None;
        for analyzers in [Analyzers::Auto, threads(4), Analyzers::Inline] {
            let out = tempfile::tempdir().unwrap();
            let config = Config {
                triggers: Vec::new(),
                future: Duration::from_secs(3600),
                scripts: scripts(NINES),
                analyzers,
                hold,
                ..offline(out.path())
            };
            let summary = record(&config, &capture);
            let reports = summary.dumps.iter();
            let dumps: Vec<QueriedPacket> = reports
                .map(|report| (packets(report), report.clipped.clone()))
                .collect();
            assert!(dumps.len() >= 4, "{dumps:?}");
            let are_complete = summary
                .dumps
                .iter()
                .all(|it| it.verdict == Verdict::Complete);
            assert!(are_complete && summary.outdated == 0, "{:?}", summary.dumps);
            // All dumped flows, except perhaps the last, end before the file does.
            let is_over = |(_, clipped): &QueriedPacket| clipped.contains(&"flow");
            assert!(dumps[..dumps.len() - 1].iter().all(is_over), "{dumps:?}");
            assert_eq!(*seen.get_or_insert_with(|| dumps.clone()), dumps);
        }
    }
}

/// A clock that is set in between makes no difference.
#[test]
fn a_dump_of_two_flows_ends_with_the_last() {
    for step_ns in [0, 3600 * S, -3600 * S] {
        let dir = tempfile::tempdir().unwrap();
        let text = NINES.replace("'udp port $srcPort'", "'udp'");
        let plan = RigConfig {
            triggers: &[],
            scripts: scripts(&text),
            future_ns: 600 * S,
            ..RigConfig::default()
        };
        let mut rig = Rig::new(&plan, START, dir.path());
        for second in 0..30 {
            rig.pass(S);
            if second == 5 {
                let wall_ns = &rig.clock.wall_ns;
                wall_ns.fetch_add(step_ns, std::sync::atomic::Ordering::SeqCst);
                rig.pass(0);
            }
            if second < 2 {
                rig.arrive(0, udp(1000, 9, second));
            }
            if second < 10 {
                rig.arrive(0, udp(2000, 9, 100 + second));
            }
            rig.arrive(0, udp(1, 53, 200 + second));
            rig.step();
        }
        let [report] = &rig.reports[..] else {
            panic!("{:?} {:?}", rig.reports, rig.notices);
        };
        assert!(report.clipped.contains(&"flow"), "{report:?}");
        let numbers: Vec<u32> = packets(report)
            .into_iter()
            .map(|(_, number)| number)
            .collect();
        let last = numbers.iter().filter(|number| **number >= 200).max();
        assert!((212..=214).contains(last.unwrap()), "{step_ns} {numbers:?}");
        rig.stop();
    }
}

/// The two flows of a dump may belong to different shards.
#[test]
fn flows_of_several_shards_hold_one_dump_open() {
    for queues in [[0, 1], [1, 0], [0, 0]] {
        let dir = tempfile::tempdir().unwrap();
        let text = NINES.replace("'udp port $srcPort'", "'udp'");
        let plan = RigConfig {
            queues: 2,
            ring_bytes: 64 << 20,
            analyzers: threads(2),
            flows_together: true,
            triggers: &[],
            scripts: scripts(&text),
            future_ns: 600 * S,
            ..RigConfig::default()
        };
        let mut rig = Rig::new(&plan, START, dir.path());
        for second in 0..30 {
            rig.pass(S);
            if second < 2 {
                rig.arrive(queues[0], udp(1000, 9, second));
            }
            if second < 10 {
                rig.arrive(queues[1], udp(2000, 9, 100 + second));
            }
            rig.arrive(0, udp(1, 53, 200 + second));
            rig.arrive(1, udp(2, 53, 300 + second));
            rig.step();
        }
        let [report] = &rig.reports[..] else {
            panic!("{:?} {:?}", rig.reports, rig.notices);
        };
        let last = packets(report).into_iter().map(|(second, _)| second).max();
        assert!((13..=15).contains(&last.unwrap()), "{queues:?} {last:?}");
        assert!(report.clipped.contains(&"flow"), "{report:?}");
        rig.stop();
    }
}

/// The second failure disables the module. The recording and the rules continue.
#[test]
fn a_module_that_fails_costs_its_batch() {
    let dir = tempfile::tempdir().unwrap();
    let plan = RigConfig {
        scripts: scripts(NINES),
        ..RigConfig::default()
    };
    let mut rig = Rig::new(&plan, START, dir.path());
    rig.pass(S);
    let mut arrive = |number: u32| {
        rig.arrive(0, udp(1, 9, number));
        rig.step();
        let status = rig.common.module_statuses().remove(0);
        (status.counts.packets, status.counts.lost, status.disabled)
    };
    assert_eq!(arrive(1), (1, 0, 0));
    assert_eq!(arrive(u32::MAX), (1, 1, 0));
    assert_eq!(arrive(2), (2, 1, 0));
    assert_eq!(arrive(u32::MAX), (2, 2, 1));
    assert_eq!(arrive(3), (2, 3, 1));
    rig.pass(2 * S);
    rig.step();
    rig.stop();
    let told = rig
        .notices
        .iter()
        .filter(|notice| notice.contains("a packet that it does not like"));
    assert_eq!(told.count(), 2, "{:?}", rig.notices);
    assert_eq!(rig.common.counters.scripts_failed(), 1);
    assert!(
        rig.reports
            .iter()
            .all(|report| report.verdict == Verdict::Complete)
    );
    let all = rig
        .reports
        .iter()
        .find(|report| report.rule == "udp port 9")
        .unwrap();
    assert_eq!(packets(all).len(), 5);
}

/// With `--single` a module starts no dump after the first, but still handles all packets.
#[test]
fn modules_go_on_when_triggers_are_disarmed() {
    for analyzers in [Analyzers::Auto, Analyzers::Inline] {
        let dir = tempfile::tempdir().unwrap();
        let plan = RigConfig {
            triggers: &[],
            scripts: scripts(NINES),
            single: true,
            analyzers,
            ..RigConfig::default()
        };
        let mut rig = Rig::new(&plan, START, dir.path());
        rig.pass(S);
        for source in 1..101 {
            rig.arrive(0, udp(source, 9, 1));
            rig.step();
            rig.pass(50 * MS);
        }
        rig.stop();
        assert_eq!(rig.reports.len(), 1);
        assert_eq!(rig.common.module_statuses()[0].counts.packets, 100);
    }
}

#[test]
fn a_module_has_as_many_flows_as_it_may() {
    let dir = tempfile::tempdir().unwrap();
    let mut scripts = scripts(NINES);
    scripts.module_flows.flows_max = 100;
    let plan = RigConfig {
        scripts,
        triggers: &[],
        ring_bytes: 64 << 20,
        ..RigConfig::default()
    };
    let mut rig = Rig::new(&plan, START, dir.path());
    rig.pass(S);
    for source in 100..10_100 {
        rig.arrive(0, udp(source, 53, 1));
    }
    rig.step();
    let counts = rig.common.module_statuses()[0].counts;
    assert_eq!(
        (counts.packets, counts.begun, counts.live, counts.evicted),
        (10_000, 10_000, 100, 9_900)
    );
    rig.stop();
    assert!(rig.reports.is_empty());
}
