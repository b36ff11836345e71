//! Many dumps at once: other dumps do not change the packets of a dump.

use std::{
    ops::{Range, RangeInclusive},
    path::Path,
    sync::Arc,
    time::Instant,
};

use retroscope_pcapfile::CaptureReader;
use retroscope_script::ScriptLimits;

use crate::{
    DumpFormat, DumpReport, Scripts, Verdict,
    dump::{disk::Disk, names::Directory},
    tests::fake_disk::FakeDisk,
    tests::rig::{MS, Rig, RigConfig, S, udp},
};

const START: i64 = 1_800_000_000 * S;
/// The number in the packets that trigger.
const TRIGGER: u32 = u32::MAX;
const PAST: i64 = 40 * MS;
const FUTURE: i64 = 25 * MS;
const FLOWS: u16 = 300;

/// A packet as it was sent: time, source port, number.
type Sent = (i64, u16, u32);

/// Records random traffic of [`FLOWS`] flows, each of which triggers once. Passes the sent packets,
/// and each dump with its packets, to `check`.
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
        limits: ScriptLimits::default(),
        ..RigConfig::default()
    };
    let mut rig = Rig::new(&plan, START, dir.path());
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
    let mut reader = CaptureReader::open(&report.file).unwrap();
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

/// The packets that were sent in the window of a dump and that `takes` selects, ordered by time and
/// queue.
fn expected(sent: &[Sent], report: &DumpReport, takes: impl Fn(&Sent) -> bool) -> Vec<Sent> {
    let window = window(report);
    let in_window = sent.iter().filter(|one| window.contains(&one.0));
    let mut expected: Vec<Sent> = in_window.filter(|one| takes(one)).copied().collect();
    expected.sort_by_key(|&(time_ns, port, _)| (time_ns, port % 2));
    expected
}

/// The source port after `mark` in the dump expression.
fn port(report: &DumpReport, mark: &str) -> u16 {
    let sidecar = std::fs::read(report.file.with_extension("json")).unwrap();
    let sidecar: serde_json::Value = serde_json::from_slice(&sidecar).unwrap();
    let expression = sidecar["filter"].as_str().unwrap();
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

const RING_BYTES: usize = 12 << 20;
const LARGE_BYTES: usize = 100_000;
const FIRST_RULE: u16 = 10;
const RULES: u16 = 8;

/// Dumps open and close at random while packets arrive, sometimes more than the ring holds before
/// the dumper runs. Checks each finished dump. Returns the number of dumps, and the number of
/// incomplete dumps.
fn come_and_go(seed: u64) -> (usize, usize) {
    let mut random = fastrand::Rng::with_seed(seed);
    let ports: Vec<String> = (FIRST_RULE..FIRST_RULE + RULES)
        .map(|port| format!("udp port {port}"))
        .collect();
    let triggers: Vec<&str> = ports.iter().map(String::as_str).collect();
    let plan = RigConfig {
        queues: 2,
        foreign_queues: (seed % 3) as usize,
        ring_bytes: RING_BYTES as u64,
        triggers: &triggers,
        past_ns: PAST,
        future_ns: FUTURE,
        ..RigConfig::default()
    };
    let disk = FakeDisk::default();
    let directory = Directory::on(
        Arc::new(disk.clone()),
        Path::new("dumps"),
        DumpFormat::PcapNg,
    );
    let mut rig = Rig::on(&plan, START, directory);
    let mut sent = Vec::new();
    let (mut checked, mut incomplete) = (0, 0);
    for round in 0..250 {
        rig.pass(MS);
        let mut send = |rig: &Rig, queue: usize, port: u16, padding: usize| {
            let number = u32::try_from(sent.len()).unwrap();
            let mut packet = udp(port, port, number);
            packet.resize(packet.len() + padding, 0);
            rig.arrive(queue, packet);
            sent.push((START + i64::from(round + 1) * MS, queue, number));
        };
        for _ in 0..random.usize(..6) {
            send(&rig, random.usize(..2), 7, 0);
        }
        let is_last = round > 150;
        if !is_last && random.u8(..4) == 0 {
            let port = FIRST_RULE + random.u16(..RULES);
            send(&rig, random.usize(..2), port, 0);
        }
        if !is_last && random.u8(..25) == 0 {
            rig.insert();
            if random.bool() {
                rig.look();
            }
            for _ in 0..random.usize(..16) {
                for _ in 0..RING_BYTES / 8 / LARGE_BYTES {
                    send(&rig, random.usize(..2), 7, LARGE_BYTES);
                }
                rig.insert();
                if random.u8(..8) == 0 {
                    rig.look();
                }
            }
        }
        if random.u8(..3) == 0 || is_last {
            rig.dumper_mut().fill(|| !is_last && random.u8(..10) == 0);
        }
        if random.u8(..3) > 0 {
            rig.step();
        }
        for report in rig.reports.drain(..) {
            incomplete += usize::from(report.verdict != Verdict::Complete);
            checked += 1;
            assert_holds(&disk, &sent, &report, &format!("seed {seed}, {report:#?}"));
        }
    }
    (checked, incomplete)
}

/// Checks that a dump has the packets of its window, once and in order, except packets that its
/// verdict reports as missing.
fn assert_holds(disk: &FakeDisk, sent: &[(i64, usize, u32)], report: &DumpReport, case: &str) {
    let window = window(report);
    let mut expected: Vec<_> = sent.iter().filter(|one| window.contains(&one.0)).collect();
    expected.sort();
    let bytes = disk.read(&report.file).unwrap();
    disk.remove(&report.file).unwrap();
    let mut reader = CaptureReader::new(bytes.as_slice()).unwrap();
    let (mut rest, mut held) = (expected.iter(), 0);
    while let Some(record) = reader.next().unwrap() {
        let number = u32::from_be_bytes(record.data[28..32].try_into().unwrap());
        let found = rest.any(|one| (one.0, one.2) == (record.meta.time_ns, number));
        assert!(
            found,
            "packet {held} was there before, or stands behind others, or was not sent so: {case}"
        );
        held += 1;
    }
    let lost = (expected.len() - held) as u64;
    let missing = report.missing.iter();
    let named: Option<u64> = missing.clone().map(|entry| entry.packets).sum();
    let bound: Option<u64> = missing.map(|entry| entry.packets.or(entry.at_most)).sum();
    assert!(lost == 0 || !report.missing.is_empty(), "{lost}: {case}");
    assert!(named.is_none_or(|named| named == lost), "{lost}: {case}");
    assert!(bound.is_none_or(|bound| bound >= lost), "{lost}: {case}");
}

#[test]
fn dumps_that_come_and_go_say_what_they_lack() {
    let (mut all, mut incomplete) = (0, 0);
    for seed in 0..20 {
        let (checked, lacking) = come_and_go(seed);
        all += checked;
        incomplete += lacking;
    }
    assert!(
        all > 300 && (50..all - 50).contains(&incomplete),
        "{all}, {incomplete}"
    );
}

/// Packets that all open dumps have read do not stay reserved.
#[test]
fn what_was_read_for_all_dumps_is_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let plan = RigConfig {
        queues: 2,
        ring_bytes: RING_BYTES as u64,
        triggers: &["udp port 9", "udp port 10"],
        dump: "$flow",
        ..RigConfig::default()
    };
    let mut rig = Rig::new(&plan, START, dir.path());
    for round in 0..50 {
        rig.pass(MS);
        if round < 2 {
            rig.arrive(0, udp(1, 9 + round, 0));
        }
        for queue in 0..2 {
            for number in 0..RING_BYTES / 8 / LARGE_BYTES {
                let mut packet = udp(1, 7, u32::try_from(number).unwrap());
                packet.resize(LARGE_BYTES, 0);
                rig.arrive(queue, packet);
            }
        }
        rig.step();
    }
    let ring = rig.common.ring.statistics();
    assert!(ring.evicted_bytes > 5 * RING_BYTES as u64, "{ring:?}");
    assert!(
        ring.reserved_buckets <= 2 && ring.reservations_fallen == 0,
        "{ring:?}"
    );
    rig.pass(2 * S);
    rig.step();
    let verdicts: Vec<Verdict> = rig.reports.iter().map(|report| report.verdict).collect();
    assert_eq!(verdicts, [Verdict::Complete; 2]);
    assert_eq!(rig.common.ring.statistics().reserved_buckets, 0);
}

/// Length of the windows of a [`Crowd`], ns.
const LONG: i64 = 3600 * S;
/// Dumps that open at once.
const TOGETHER: usize = 256;
/// Time between the openings of [`TOGETHER`] dumps each, ns.
const APART: i64 = 10 * MS;

struct Crowd {
    rig: Rig,
}

impl Crowd {
    fn new(max_dumps: usize) -> Self {
        let plan = RigConfig {
            triggers: &["udp port 9"],
            dump: "$flow",
            past_ns: 0,
            future_ns: LONG,
            max_dumps,
            ..RigConfig::default()
        };
        let disk = Arc::new(FakeDisk::default());
        let directory = Directory::on(disk, Path::new("dumps"), DumpFormat::PcapNg);
        Self {
            rig: Rig::on(&plan, START, directory),
        }
    }

    fn arrive(&self, flow: usize) {
        let mut packet = udp(1000, 9, 0);
        packet[12..16].copy_from_slice(&u32::try_from(flow).unwrap().to_be_bytes());
        self.rig.arrive(0, packet);
    }

    fn open(&mut self, flows: Range<usize>) {
        for start in flows.clone().step_by(TOGETHER) {
            (start..flows.end.min(start + TOGETHER)).for_each(|flow| self.arrive(flow));
            self.rig.step();
            self.rig.pass(APART);
        }
        self.rig.step();
        assert!(self.rig.reports.is_empty());
    }

    /// Lets the windows of open dumps end, and checks the total number of packets.
    fn finish(&mut self, dumps: usize, packets: u64) {
        let opened = i64::try_from(dumps.div_ceil(TOGETHER)).unwrap() * APART;
        self.rig.pass(LONG - opened - APART);
        let (mut finished, mut found) = (0, 0);
        while finished < dumps {
            self.rig.pass(APART);
            self.rig.step();
            for report in self.rig.reports.drain(..) {
                assert_eq!(report.verdict, Verdict::Complete, "{report:?}");
                finished += 1;
                found += report.packets;
            }
        }
        assert_eq!(found, packets);
    }

    /// Returns how often the dumper inspected a dump in one round.
    fn looks(&mut self) -> usize {
        let before = self.rig.dumper().looks();
        self.rig.step();
        self.rig.dumper().looks() - before
    }
}

/// A round inspects dumps that changed, however many are open or finished.
#[test]
fn a_round_looks_at_what_changed() {
    let (finished, open) = (10_000, 65_536);
    let mut crowd = Crowd::new(open);
    crowd.open(0..finished);
    crowd.finish(finished, finished as u64);
    crowd.open(0..open);
    assert_eq!(crowd.looks(), 0, "nothing came");
    crowd.arrive(open / 2);
    let looks = crowd.looks();
    assert!(
        (1..10).contains(&looks),
        "{looks}, for one packet of one dump"
    );
    crowd.rig.arrive(0, udp(1, 7, 0));
    assert_eq!(crowd.looks(), 0, "for a packet of no dump");
    crowd.finish(open, open as u64 + 1);
}

/// Prints the duration of a round: `cargo test --release -p retroscope-recorder --lib rounds_take
/// -- --ignored --nocapture`.
#[test]
#[ignore = "measures"]
fn rounds_take() {
    for dumps in [10, 1000, 65_536] {
        let mut crowd = Crowd::new(dumps);
        crowd.open(0..dumps);
        let mut times = [const { Vec::new() }; 2];
        for round in 0..100 {
            if round % 2 == 1 {
                crowd.arrive(dumps / 2);
            }
            crowd.rig.insert();
            crowd.rig.look();
            let start = Instant::now();
            crowd.rig.analyze();
            times[round % 2].push(start.elapsed());
            crowd.rig.pass(MS);
        }
        times.iter_mut().for_each(|times| times.sort());
        let [idle, one] = times.map(|times| times[times.len() / 2]);
        eprintln!("{dumps} open dumps: idle {idle:?}, with a packet of one {one:?}");
    }
}
