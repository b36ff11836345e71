//! Dump filters that libpcap compiles slowly: they delay only their own dumps.

use std::time::{Duration, Instant};

use retroscope_packet::LinkType;
use retroscope_pcapfile::CaptureReader;
use retroscope_script::{Script, ScriptLimits};

use crate::{
    DumpReport, Scripts, Verdict,
    tests::rig::{MS, Rig, RigConfig, S, udp},
};

const START: i64 = 1_800_000_000 * S;
const DUMPS: u16 = 6;

/// A template that a rule set cannot look up, and that libpcap optimizes slowly.
fn slow(source_port: &str) -> String {
    let ports: Vec<String> = (2000..2100).map(|port| port.to_string()).collect();
    let ports = ports.join(" or ");
    format!("udp src port {source_port} and udp[8:4] >= 0 and not port ({ports})")
}

fn packets(report: &DumpReport) -> u64 {
    let mut reader = CaptureReader::open(&report.file).unwrap();
    while reader.fill().unwrap() > 0 {}
    reader.records_read()
}

fn rig(dump: &str, dir: &std::path::Path) -> Rig {
    rig_with(dump, Scripts::default(), dir)
}

fn rig_with(dump: &str, scripts: Scripts, dir: &std::path::Path) -> Rig {
    let plan = RigConfig {
        queues: 1,
        foreign_queues: 0,
        ring_bytes: 16 << 20,
        triggers: &["udp port 9"],
        dump,
        scripts,
        limits: ScriptLimits::default(),
        past_ns: 2 * S,
        future_ns: S,
        max_dumps: 64,
        ..RigConfig::default()
    };
    Rig::new(&plan, START, dir)
}

fn finish(rig: &mut Rig, dumps: usize) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while rig.reports.len() < dumps {
        assert!(Instant::now() < deadline, "{}", rig.reports.len());
        step_and_wait(rig);
    }
}

/// Steps, and leaves the CPU to the compiler for a while.
fn step_and_wait(rig: &mut Rig) {
    rig.step();
    std::thread::park_timeout(Duration::from_millis(1));
}

/// The dumper does not wait for slow filters. Each dump is complete, although its window may have
/// ended before its filter is compiled.
#[test]
fn slow_filters_are_compiled_aside() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = rig(&slow("$srcPort"), dir.path());
    for source in 0..DUMPS {
        rig.arrive(0, udp(1000 + source, 7, 1));
        rig.pass(MS);
    }
    rig.step();
    for source in 0..DUMPS {
        rig.arrive(0, udp(1000 + source, 9, 2));
    }
    rig.step();
    assert!(rig.dumper().compiling() > 0);
    rig.pass(500 * MS);
    for source in 0..DUMPS {
        rig.arrive(0, udp(1000 + source, 7, 3));
    }
    rig.step();
    rig.pass(10 * S);
    finish(&mut rig, usize::from(DUMPS));
    for report in &rig.reports {
        assert_eq!(report.verdict, Verdict::Complete, "{report:?}");
        assert_eq!(packets(report), 3, "{report:?}");
    }
}

/// A link type appears while dumps are open: these dumps wait for their filters as new dumps do.
#[test]
fn slow_filters_are_compiled_aside_for_further_link_types() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = rig(&slow("$srcPort"), dir.path());
    for source in 0..DUMPS {
        rig.arrive(0, udp(1000 + source, 9, 1));
    }
    rig.step();
    let deadline = Instant::now() + Duration::from_secs(120);
    while rig.dumper().compiling() > 0 {
        assert!(Instant::now() < deadline);
        step_and_wait(&mut rig);
    }
    rig.turn_up(LinkType::ETHERNET);
    rig.step();
    assert!(rig.dumper().compiling() > 0);
    rig.pass(500 * MS);
    for source in 0..DUMPS {
        rig.arrive(0, udp(1000 + source, 7, 3));
    }
    rig.pass(10 * S);
    finish(&mut rig, usize::from(DUMPS));
    for report in &rig.reports {
        assert_eq!(report.verdict, Verdict::Complete, "{report:?}");
        assert_eq!(packets(report), 2, "{report:?}");
    }
}

#[test]
fn dumps_go_on_without_the_compiler() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = rig(&slow("$srcPort"), dir.path());
    for source in 0..DUMPS {
        rig.arrive(0, udp(1000 + source, 9, 1));
    }
    rig.step();
    assert!(rig.dumper().compiling() > 0);
    rig.lose_compiler();
    rig.pass(10 * S);
    finish(&mut rig, usize::from(DUMPS));
    for report in &rig.reports {
        assert_eq!(report.verdict, Verdict::Complete, "{report:?}");
        assert_eq!(packets(report), 1, "{report:?}");
    }
}

/// The fixed parts of the template were compiled at the start.
#[test]
fn what_is_not_filled_in_is_compiled_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = rig(&format!("$flow and ({})", slow("1000")), dir.path());
    for round in 0..DUMPS {
        rig.arrive(0, udp(1000 + round, 9, 2));
        rig.step();
        assert_eq!(rig.dumper().compiling(), 0);
        rig.pass(2 * MS);
    }
    rig.pass(10 * S);
    finish(&mut rig, usize::from(DUMPS));
    let taken: Vec<u64> = rig.reports.iter().map(packets).collect();
    assert_eq!(taken, [1, 0, 0, 0, 0, 0]);
}

/// A dump script returns texts that are slow for libpcap: the analyzer compiles none of these. If
/// libpcap refuses one, the dump reports the error.
#[test]
fn slow_texts_of_a_script_are_compiled_aside() {
    for (more, refused) in [("", false), (" and type mgt", true)] {
        let dir = tempfile::tempdir().unwrap();
        let text = slow("1000") + more;
        let script = format!("return function(pkt) return '{text}' end");
        let scripts = Scripts {
            dump: Some(Script::new("dump.lua", &script, false)),
            ..Scripts::default()
        };
        let mut rig = rig_with("", scripts, dir.path());
        rig.arrive(0, udp(1000, 9, 1));
        rig.step();
        assert!(
            refused || rig.dumper().compiling() == 1,
            "{:?}",
            rig.notices
        );
        rig.pass(10 * S);
        finish(&mut rig, 1);
        let report = &rig.reports[0];
        assert_eq!(packets(report), u64::from(!refused), "{report:?}");
        let missing: Vec<_> = report
            .missing
            .iter()
            .map(|it| (it.cause, it.packets))
            .collect();
        let (verdict, expected) = match refused {
            true => (Verdict::Incomplete, vec![("script", None)]),
            false => (Verdict::Complete, Vec::new()),
        };
        assert_eq!((report.verdict, missing), (verdict, expected));
        let is_told = report
            .notes
            .iter()
            .any(|note| note.contains("takes nothing of"));
        assert_eq!(is_told, refused, "{report:?}");
    }
}

/// A packet comes too late for a window. If the filter is not compiled yet, the packet counts as
/// one that the dump may lack. Otherwise only packets that the filter selects count.
#[test]
fn the_analyzer_compiles_nothing_for_late_packets() {
    for is_compiled in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let mut rig = rig(&slow("$srcPort"), dir.path());
        rig.pass(S);
        rig.arrive(0, udp(1000, 9, 1));
        rig.insert();
        rig.look();
        if is_compiled {
            rig.pass(10 * S);
            finish(&mut rig, 1);
        } else {
            rig.pass(10 * S);
            rig.look();
        }
        for (source, number) in [(1000, 2), (1001, 3)] {
            let late = (START + S + 500 * MS, udp(source, 7, number));
            rig.feeds[0].lock().unwrap().frames.push_back(late);
        }
        rig.insert();
        rig.look();
        rig.stop();
        finish(&mut rig, 1);
        let late = if is_compiled { 1 } else { 2 };
        assert_eq!(rig.late(), (1, vec![late]));
        let missing: Vec<_> = (rig.reports[0].missing.iter())
            .map(|it| (it.cause, it.packets, it.at_most))
            .collect();
        let expected: &[_] = match is_compiled {
            true => &[],
            false => &[("late", None, Some(2))],
        };
        assert_eq!(missing, expected);
    }
}
