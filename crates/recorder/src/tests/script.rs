//! Promises of a live recorder about scripts, on injected clocks.

use std::time::Duration;

use retroscope_pcapfile::CaptureReader;
use retroscope_script::{Script, ScriptLimits};

use crate::{
    DumpReport, Reason, Scripts, Verdict,
    tests::rig::{MS, Rig, RigConfig, S, udp},
};

const START: i64 = 1_800_000_000 * S;

/// A dump script: each dump has the packets with the number of its trigger packet.
const SAME_NUMBER: &str = "return function(trigger)
    local number = trigger:u32(28)
    return function(pkt) return pkt:u32(28) == number end, 'number ' .. number
end";

fn scripts(triggers: &[&str], dump: Option<&str>) -> Scripts {
    let script = |name: &str, text: &str| Script::new(name, text, false);
    Scripts {
        triggers: triggers
            .iter()
            .map(|text| script("trigger.lua", text))
            .collect(),
        dump: dump.map(|text| script("dump.lua", text)),
        ..Scripts::default()
    }
}

/// Scripts have 60 s for each call: the time of a call also passes while its thread waits for a
/// CPU.
fn rig(scripts: Scripts, directory: &tempfile::TempDir) -> Rig {
    rig_within(Duration::from_secs(60), scripts, directory)
}

fn rig_within(time: Duration, scripts: Scripts, directory: &tempfile::TempDir) -> Rig {
    let plan = RigConfig {
        queues: 1,
        foreign_queues: 0,
        ring_bytes: 16 << 20,
        triggers: &["udp port 9"],
        dump: "",
        scripts,
        limits: ScriptLimits {
            time,
            ..ScriptLimits::default()
        },
        past_ns: S,
        future_ns: 0,
        max_dumps: 64,
        ..RigConfig::default()
    };
    Rig::new(&plan, START, directory.path())
}

/// Packets with these numbers arrive together, to one port.
fn arrive(rig: &mut Rig, port: u16, numbers: std::ops::Range<u32>) {
    for number in numbers {
        rig.arrive(0, udp(1, port, number));
    }
    rig.pass(MS);
    rig.step();
}

fn close(rig: &mut Rig) {
    for _ in 0..3 {
        rig.pass(100 * MS);
        rig.step();
    }
    rig.reports.sort_by_key(|report| report.number);
}

fn numbers(report: &DumpReport) -> Vec<u32> {
    let mut reader = CaptureReader::open(&report.file).unwrap();
    let mut numbers = Vec::new();
    while let Some(record) = reader.next().unwrap() {
        numbers.push(u32::from_be_bytes(record.data[28..32].try_into().unwrap()));
    }
    numbers
}

fn failed(rig: &Rig) -> u64 {
    rig.common.counters.scripts_failed()
}

/// Packets arrive alone or up to 200 at once.
#[test]
fn a_script_is_asked_about_every_packet_once() {
    let dir = tempfile::tempdir().unwrap();
    let every_50th = "local n = 0 return function(pkt)
        if pkt:u32(28) ~= n then error('packet ' .. pkt:u32(28) .. ' in place of ' .. n) end
        n = n + 1
        return n % 50 == 0
    end";
    let mut rig = rig(scripts(&[every_50th], Some(SAME_NUMBER)), &dir);
    let mut next = 0;
    for count in [1, 5, 64, 200, 3, 1, 130, 7, 89] {
        arrive(&mut rig, 7, next..next + count);
        next += count;
    }
    close(&mut rig);
    assert_eq!(next, 500);
    assert_eq!((failed(&rig), rig.notices.clone()), (0, vec![]));
    let dumped: Vec<Vec<u32>> = rig.reports.iter().map(numbers).collect();
    let expected: Vec<Vec<u32>> = (1..=10).map(|n| vec![n * 50 - 1]).collect();
    assert_eq!(dumped, expected);
    let report = &rig.reports[0];
    assert_eq!(
        (report.rule.as_str(), report.verdict),
        ("trigger.lua", Verdict::Complete)
    );
}

/// Hits for which the dump function returns the same name share a dump.
#[test]
fn scripts_and_expressions_trigger_beside_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let port_8 = "return function(pkt) return pkt:has_port(8) end";
    let dump = "return function(trigger)
        local port = trigger:dst_port()
        return function(pkt) return pkt:dst_port() == port end, 'port ' .. port
    end";
    let mut rig = rig(scripts(&[port_8], Some(dump)), &dir);
    arrive(&mut rig, 7, 0..100);
    arrive(&mut rig, 8, 100..130);
    arrive(&mut rig, 9, 130..150);
    arrive(&mut rig, 7, 150..250);
    close(&mut rig);
    let told: Vec<_> = rig
        .reports
        .iter()
        .map(|report| (report.rule.as_str(), numbers(report)))
        .collect();
    let expected = [
        ("trigger.lua", (100..130).collect::<Vec<u32>>()),
        ("udp port 9", (130..150).collect()),
    ];
    assert_eq!(told, expected);
}

/// A dump function may return an expression, or `nil` for no dump. An invalid expression starts no
/// dump and is reported.
#[test]
fn a_dump_function_may_answer_with_an_expression() {
    let dir = tempfile::tempdir().unwrap();
    let dump = "return function(trigger)
        local number = trigger:u32(28)
        if number == 10 then return nil end
        if number == 11 then return 'no such thing' end
        return 'udp and dst port $dstPort'
    end";
    let mut rig = rig(scripts(&[], Some(dump)), &dir);
    arrive(&mut rig, 9, 10..12);
    arrive(&mut rig, 7, 12..20);
    arrive(&mut rig, 9, 20..23);
    close(&mut rig);
    assert_eq!(rig.reports.len(), 1);
    assert_eq!(numbers(&rig.reports[0]), [10, 11, 20, 21, 22]);
    assert_eq!(rig.notices.len(), 1, "{:?}", rig.notices);
    assert!(
        rig.notices[0].contains("dump.lua: 'no such thing': "),
        "{:?}",
        rig.notices
    );
}

/// The earlier hits of a failed trigger script count, and other rules go on.
#[test]
fn a_failed_trigger_script_is_told_and_passed_by() {
    let endless = "local n = 0 return function(pkt) n = n + 1 while n > 99 do end return pkt:u32(28) == 50 end";
    let error = "local none return function(pkt) return pkt:u32(28) == 60 or pkt:u32(28) > 70 and none.such end";
    for (text, seconds, said) in [
        (
            endless,
            2,
            "trigger.lua: stopped, one call took more than 2s; this script triggers no more",
        ),
        (
            error,
            60,
            "trigger.lua:1: attempt to index upvalue 'none' (a nil value); this script triggers no more",
        ),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let time = Duration::from_secs(seconds);
        let mut rig = rig_within(time, scripts(&[text], Some(SAME_NUMBER)), &dir);
        arrive(&mut rig, 7, 0..200);
        arrive(&mut rig, 7, 40..70);
        arrive(&mut rig, 9, 300..301);
        close(&mut rig);
        assert_eq!(
            (failed(&rig), rig.notices.clone()),
            (1, vec![said.to_owned()])
        );
        let rules: Vec<&str> = rig
            .reports
            .iter()
            .map(|report| report.rule.as_str())
            .collect();
        assert_eq!(rules, ["trigger.lua", "udp port 9"]);
        assert!([50, 60].contains(&numbers(&rig.reports[0])[0]));
    }
}

/// If the predicate function of a dump fails, the dump reports that it may lack packets. Later
/// triggers start no dump.
#[test]
fn a_failed_dump_script_leaves_a_verdict() {
    let dir = tempfile::tempdir().unwrap();
    let dump = "return function(trigger)
        return function(pkt) if pkt:u32(28) == 5 then error('five') end return true end
    end";
    let mut rig = rig(scripts(&[], Some(dump)), &dir);
    arrive(&mut rig, 7, 0..10);
    arrive(&mut rig, 9, 10..11);
    close(&mut rig);
    arrive(&mut rig, 9, 11..12);
    close(&mut rig);
    assert_eq!(rig.reports.len(), 1);
    let report = &rig.reports[0];
    assert_eq!(numbers(report), [0, 1, 2, 3, 4]);
    let reasons = report.reasons();
    assert!(reasons.contains("unknown losses (script)"), "{reasons}");
    assert!(
        report.notes.iter().any(|note| note == "dump.lua:2: five"),
        "{:?}",
        report.notes
    );
    assert_eq!(failed(&rig), 1);
    let hits = rig.common.counters.reading().hits;
    let unfilled = hits.suppressed.of(Reason::Unfilled);
    assert_eq!(unfilled, 1);
    let told = |text: &str| {
        rig.notices
            .iter()
            .filter(|notice| notice.contains(text))
            .count()
    };
    assert_eq!(
        told("dump.lua:2: five; this script dumps no more"),
        1,
        "{:?}",
        rig.notices
    );
    assert_eq!(told("no dump: dump.lua failed"), 1, "{:?}", rig.notices);
}

#[test]
fn what_scripts_print_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let prints = "print('loaded') return function(pkt) if pkt:u32(28) == 3 then print(pkt:src(), pkt:dst_port()) end end";
    let mut rig = rig(scripts(&[prints], None), &dir);
    arrive(&mut rig, 7, 0..5);
    assert_eq!(
        rig.notices,
        ["trigger.lua: loaded", "trigger.lua: 10.0.0.1\t7"]
    );
}
