//! Many dumps at once: each holds what it would hold alone.

use std::ops::RangeInclusive;

use retroscope_pcapfile::Reader;
use retroscope_script::Limits;

use crate::{
    DumpReport, Scripts, Verdict,
    tests::rig::{MS, Rig, RigConfig, S, udp},
};

const START: i64 = 1_800_000_000 * S;
/// The number of a packet that triggers.
const TRIGGER: u32 = u32::MAX;
const PAST: i64 = 40 * MS;
const FUTURE: i64 = 25 * MS;
const FLOWS: u16 = 300;

/// A packet as it was sent: time, source port, number.
type Sent = (i64, u16, u32);

/// Records random traffic of [`FLOWS`] flows on two queues, one a source port, each of which triggers once. Gives to `check`
/// what was sent, and each dump with its packets.
fn record(dump: &str, check: impl Fn(&[Sent], &DumpReport, Vec<Sent>)) {
    let seed = 0x00d0_1e5e;
    let mut random = fastrand::Rng::with_seed(seed);
    let dir = tempfile::tempdir().unwrap();
    let plan = RigConfig {
        queues: 2,
        foreign_queues: 0,
        ring_bytes: 16 << 20,
        triggers: &["udp[8:4] = 0xffffffff"],
        dump,
        past_ns: PAST,
        future_ns: FUTURE,
        max_dumps: usize::from(FLOWS),
        scripts: Scripts::default(),
        limits: Limits::default(),
        ..RigConfig::default()
    };
    let mut rig = Rig::new(&plan, START, dir.path());
    // Some alone, and all that are left in the last round of these, at once.
    let triggers: Vec<u32> = (0..FLOWS).map(|_| random.u32(60..500).min(200)).collect();
    let mut sent = Vec::new();
    for round in 0..300 {
        rig.pass(MS);
        for (port, trigger) in (1000..).zip(&triggers) {
            let is_trigger = round == *trigger;
            if is_trigger || random.u8(..5) == 0 {
                let number = if is_trigger { TRIGGER } else { round };
                rig.arrive(usize::from(port % 2), udp(port, 9, number));
                sent.push((START + i64::from(round + 1) * MS, port, number));
            }
        }
        if random.u8(..4) > 0 {
            rig.step();
        }
    }
    rig.pass(S);
    rig.step();
    rig.step();
    let flows = usize::from(FLOWS);
    assert_eq!(
        rig.reports.len(),
        flows,
        "seed {seed:#x}: {:?}",
        rig.notices
    );
    for report in &rig.reports {
        assert_eq!(report.verdict, Verdict::Complete, "{report:?}");
        check(&sent, report, packets(report));
    }
}

fn packets(report: &DumpReport) -> Vec<Sent> {
    let mut reader = Reader::open(&report.file).unwrap();
    let mut packets = Vec::new();
    while let Some(record) = reader.next().unwrap() {
        let port = u16::from_be_bytes([record.data[20], record.data[21]]);
        let number = u32::from_be_bytes(record.data[28..32].try_into().unwrap());
        packets.push((record.meta.time_ns, port, number));
    }
    packets
}

fn window(report: &DumpReport) -> RangeInclusive<i64> {
    report.trigger_ns - PAST..=report.trigger_ns + FUTURE
}

/// Those that were sent in the window of a dump and that `takes` takes. Times are equal within a round; the order of queues
/// is then that of sources.
fn expected(sent: &[Sent], report: &DumpReport, takes: impl Fn(&Sent) -> bool) -> Vec<Sent> {
    let window = window(report);
    let in_window = sent.iter().filter(|one| window.contains(&one.0));
    let mut expected: Vec<Sent> = in_window.filter(|one| takes(one)).copied().collect();
    expected.sort_by_key(|&(time_ns, port, _)| (time_ns, port % 2));
    expected
}

/// The source port that stands in the dump expression behind `mark`.
fn port(report: &DumpReport, mark: &str) -> u16 {
    let sidecar = std::fs::read(report.file.with_extension("json")).unwrap();
    let sidecar: serde_json::Value = serde_json::from_slice(&sidecar).unwrap();
    let expression = sidecar["expression"].as_str().unwrap();
    let behind = &expression[expression.find(mark).unwrap() + mark.len()..];
    let digits = behind.find(|c: char| !c.is_ascii_digit()).unwrap();
    behind[..digits].parse().unwrap()
}

#[test]
fn dumps_of_flows_hold_their_flows() {
    record("$flow", |sent, report, packets| {
        let port = port(report, "10.0.0.1:");
        let expected = expected(sent, report, |one| one.1 == port);
        assert!(packets == expected, "{packets:?}, expected {expected:?}");
        assert!(packets.contains(&(report.trigger_ns, port, TRIGGER)));
    });
}

#[test]
fn dumps_that_are_looked_up_and_compared_hold_what_they_take() {
    let dump = "udp src port $srcPort and not udp[11] & 7 = 3 or udp[8:4] = 0xffffffff";
    record(dump, |sent, report, packets| {
        let port = port(report, "src port ");
        let takes = |one: &Sent| one.1 == port && one.2 % 8 != 3 || one.2 == TRIGGER;
        let expected = expected(sent, report, takes);
        assert!(packets == expected, "{packets:?}, expected {expected:?}");
    });
}

#[test]
fn dumps_that_are_asked_about_every_packet_hold_what_they_take() {
    record("not $flow and udp[11] & 15 = 3", |sent, report, packets| {
        let port = port(report, "10.0.0.1:");
        let takes = |one: &Sent| one.1 != port && one.2 % 16 == 3;
        let expected = expected(sent, report, takes);
        assert!(packets == expected, "{packets:?}, expected {expected:?}");
        assert!(packets.len() > 1);
    });
}
