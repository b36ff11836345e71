//! Dumps that end at a limit of packets or bytes, in combinations with other ends and failures.

use std::{path::Path, sync::Arc, time::Duration};

use retroscope_pcapfile::CaptureReader;

use crate::{
    Config, DumpFormat, DumpReport, TriggerRequest, Verdict,
    dump::{names::Directory, pool::PoolConfig},
    tests::{
        fake_disk::FakeDisk,
        live::{START, config, missing, packets},
        rig::{MS, Rig, RigConfig, S, udp},
        windows::{contents, offline, record, write},
    },
};

/// Packets of a window before its trigger packet, one a millisecond.
const PAST: i64 = 20;
/// Small packets of a window after its trigger packet, one a millisecond.
const FUTURE: i64 = 10;
const ALL: u64 = 31;
const BYTES: u64 = 32;

#[derive(Debug, Clone, Copy)]
struct Cell {
    limit: u64,
    is_of_bytes: bool,
    is_disk_full: bool,
    reservation_falls: bool,
}

impl Cell {
    fn all() -> impl Iterator<Item = Self> {
        // Limits that are reached within the past, at its last packet, at the trigger, at the next
        // packet, at the end of the window, or not at all.
        let limits = [1, 5, 20, 21, 22, 30, ALL, ALL + 1, u64::MAX];
        let cells = limits
            .into_iter()
            .flat_map(|limit| (0..8).map(move |n| (limit, n)));
        cells.map(|(limit, n)| Self {
            limit,
            is_of_bytes: n % 2 == 1,
            is_disk_full: n / 2 % 2 == 1,
            reservation_falls: n / 4 == 1,
        })
    }

    /// The report, times of the file's packets (none if the disk is full) and of all sent packets,
    /// ms.
    fn run(self) -> (DumpReport, Vec<i64>, Vec<i64>) {
        let bytes_max = self.limit.saturating_mul(BYTES);
        let plan = RigConfig {
            past_ns: PAST * MS,
            future_ns: FUTURE * MS,
            packets_max: if self.is_of_bytes {
                u64::MAX
            } else {
                self.limit
            },
            // A limit of one byte less is reached by the same packet.
            bytes_max: if self.is_of_bytes {
                bytes_max - 1
            } else {
                u64::MAX
            },
            ring_bytes: 8 << 20,
            ..RigConfig::default()
        };
        let disk = FakeDisk::default();
        let directory = Directory::on(
            Arc::new(disk.clone()),
            Path::new("dumps"),
            DumpFormat::PcapNg,
        );
        let mut rig = Rig::with_pool(&plan, START, directory, PoolConfig::new(false));
        let mut sent = Vec::new();
        for ms in 1..=100 {
            rig.pass(MS);
            rig.arrive(0, udp(1, if ms == 50 { 9 } else { 7 }, 0));
            sent.push(ms);
            if ms == 50 {
                // Before the dumper reads anything, the ring may overwrite everything, and the disk
                // may become full.
                rig.insert();
                rig.look();
                for _ in 0..if self.reservation_falls { 48 } else { 0 } {
                    rig.arrive(0, vec![0x45; 250_000]);
                    rig.insert();
                    sent.push(ms);
                }
                if self.is_disk_full {
                    disk.set_capacity(100);
                }
            }
            rig.step();
        }
        rig.pass(3 * S);
        rig.step();
        rig.step();
        assert_eq!(rig.reports.len(), 1, "{self:?}: {:?}", rig.reports);
        let report = rig.reports.remove(0);
        let bytes = disk.read(&report.file).unwrap_or_default();
        let mut held = Vec::new();
        if !bytes.is_empty() && !self.is_disk_full {
            let verdict = format!("; clipped: {}", report.clipped.join(", "));
            let is_told = bytes
                .windows(verdict.len())
                .any(|it| it == verdict.as_bytes());
            assert_eq!(is_told, !report.clipped.is_empty(), "{self:?}");
            let mut reader = CaptureReader::new(bytes.as_slice()).unwrap();
            while let Some(record) = reader.next().unwrap() {
                held.push((record.meta.time_ns - START) / MS);
            }
        }
        (report, held, sent)
    }
}

#[test]
fn a_limit_meets_everything_else() {
    for cell in Cell::all() {
        let (report, held, mut sent) = cell.run();
        sent.retain(|ms| (50 - PAST..=50 + FUTURE).contains(ms));
        let case = format!("{cell:?}: {report:?}, {held:?}");
        let is_clipped = report.clipped == ["limit"];
        if cell.is_disk_full {
            assert_eq!(report.verdict, Verdict::Failed, "{case}");
            assert_eq!(is_clipped, report.clipped.len() == 1, "{case}");
            continue;
        }
        let is_whole = sent.starts_with(&held) && (is_clipped || held.len() == sent.len());
        assert_eq!(report.verdict == Verdict::Complete, is_whole, "{case}");
        let evicted = missing(&report)
            .iter()
            .any(|(cause, _)| *cause == "evicted");
        assert_eq!(evicted, !is_whole, "{case}");
        assert_eq!(report.line().contains("limit"), is_clipped, "{case}");
        if cell.is_of_bytes && cell.reservation_falls {
            continue;
        }
        assert_eq!(is_clipped, report.packets == cell.limit, "{case}");
        if !cell.reservation_falls {
            assert_eq!(report.packets, cell.limit.min(ALL), "{case}");
        }
    }
}

/// Only one dump may be open. A dump that reaches its limit ends long before the end of its window,
/// and the next hit starts a dump.
#[test]
fn live_a_dump_that_is_full_makes_room_for_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let requests = [TriggerRequest {
        future: Some(Duration::from_secs(3600)),
        packets_max: Some(50),
        ..TriggerRequest::default()
    }];
    let plan = RigConfig {
        max_dumps: 1,
        past_ns: 0,
        requests: &requests,
        ..config()
    };
    let mut rig = Rig::new(&plan, START, dir.path());
    for _ in 0..1000 {
        rig.pass(MS);
        rig.arrive(0, udp(1, 9, 0));
        rig.step();
    }
    assert!(
        (15..=20).contains(&rig.reports.len()),
        "{}",
        rig.reports.len()
    );
    for report in &rig.reports {
        assert_eq!((report.packets, report.verdict), (50, Verdict::Complete));
        assert_eq!(report.clipped, ["limit"]);
    }
    rig.stop();
    let last = rig.reports.last().unwrap();
    assert!(last.packets < 50 && last.clipped == ["stop"], "{last:?}");
}

/// A dump that has reached its limit reserves no buckets for the rest of its window, even if the
/// analyzer pauses.
#[test]
fn a_full_dump_gives_its_reservation_back() {
    let dir = tempfile::tempdir().unwrap();
    let plan = RigConfig {
        packets_max: 3,
        future_ns: 3600 * S,
        ..config()
    };
    let mut rig = Rig::new(&plan, START, dir.path());
    for number in 0..400 {
        rig.pass(MS);
        rig.arrive(0, udp(1, if number == 10 { 9 } else { 7 }, 0));
        rig.arrive(0, vec![0x45; 250_000]);
        rig.insert();
        // After the trigger the analyzer does not run.
        if number <= 10 {
            rig.look();
        }
        rig.dumper_mut().step();
    }
    let statistics = rig.common.ring.statistics();
    assert_eq!(statistics.reservations_fallen, 0, "{statistics:?}");
    rig.stop();
    assert_eq!(
        rig.reports[0].verdict,
        Verdict::Complete,
        "{:?}",
        rig.reports
    );
    assert_eq!(rig.reports[0].packets, 3);
}

/// The ring overwrites packets that a dump without room has not read. The dump needs none of these:
/// it has packets up to its limit.
#[test]
fn what_falls_behind_the_last_packet_is_not_missing() {
    let dir = tempfile::tempdir().unwrap();
    let plan = RigConfig {
        past_ns: 0,
        future_ns: 3600 * S,
        packets_max: 3,
        ..config()
    };
    let mut rig = Rig::new(&plan, START, dir.path());
    for number in 0..600 {
        rig.pass(MS);
        rig.dumper_mut().fill(|| number < 500);
        if number < 10 {
            rig.arrive(0, udp(1, if number == 0 { 9 } else { 7 }, number));
        } else if number < 500 {
            rig.arrive(0, vec![0x45; 250_000]);
        }
        rig.step();
    }
    assert_eq!(rig.common.ring.statistics().reservations_fallen, 1);
    rig.stop();
    let report = &rig.reports[0];
    assert_eq!((report.packets, &report.clipped[..]), (3, &["limit"][..]));
    assert_eq!(missing(report), [], "{report:?}");
}

/// A source without watermarks delivers a packet that belongs before the last packet of a full
/// dump: it counts as late. A packet after the dump's last packet does not.
#[test]
fn what_comes_late_for_a_full_dump_is_counted() {
    for (back_ms, expected) in [(30, 1), (5, 0)] {
        let dir = tempfile::tempdir().unwrap();
        let plan = RigConfig {
            queues: 2,
            foreign_queues: 1,
            packets_max: 10,
            past_ns: 40 * MS,
            ..config()
        };
        let mut rig = Rig::new(&plan, START, dir.path());
        for ms in 1..=100 {
            rig.pass(MS);
            rig.arrive(0, udp(1, if ms == 40 { 9 } else { 7 }, 0));
            if ms == 60 {
                // The last packet of the full dump is at 10 ms. The late packet is at 5 ms or at 35
                // ms.
                let late_ns = START + (40 - back_ms - if expected == 1 { 5 } else { 0 }) * MS;
                let frame = (late_ns, udp(1, 7, 1));
                rig.feeds[1].lock().unwrap().frames.push_back(frame);
            }
            rig.step();
        }
        rig.stop();
        let report = rig.reports.last().unwrap();
        assert_eq!((report.packets, &report.clipped[..]), (10, &["limit"][..]));
        assert_eq!(report.verdict, Verdict::Complete, "{report:?}");
        assert_eq!(rig.late(), (expected, vec![0, expected]));
    }
}

/// Files in order and out of order, with random limits. Each run gives the same files. A complete
/// dump has the first packets of its window, or counts as outdated.
#[test]
fn from_files_a_limit_ends_a_dump_at_the_same_packet() {
    let dir = tempfile::tempdir().unwrap();
    let seed = 0x11a17;
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut most, mut all_late) = (0, 0);
    for round in 0..12 {
        let mut late = 0;
        let disorder_ns = [0, 200 * MS, 3 * S, 1100 * MS][round % 4];
        let capture = dir.path().join("in.pcap");
        let length = [100, 1400][random.usize(..2)];
        let mut frames: Vec<(i64, Vec<u8>)> = Vec::new();
        for n in 0..8000_i64 {
            let is_trigger = n % 700 == 600;
            let back_ns = if n % 9 == 0 && !is_trigger {
                random.i64(0..=disorder_ns)
            } else {
                0
            };
            let mut packet = udp(1, if is_trigger { 9 } else { 7 }, 0);
            packet.resize(length, 0);
            frames.push((START + n * 4 * MS - back_ns, packet));
        }
        write(&capture, &frames);
        let request = TriggerRequest {
            packets_max: Some(random.u64(1..900)),
            ..TriggerRequest::default()
        };
        let runs: Vec<_> = ["one", "two", "three"]
            .map(|name| {
                let out = dir.path().join(format!("{name}{round}"));
                let config = Config {
                    triggers: vec!["udp port 9".to_owned(), "udp and udp port 9".to_owned()],
                    // The second rule has no limit.
                    requests: vec![request.clone()],
                    ring_bytes: [32 << 20, 64 << 20][round % 2],
                    ..offline(&out)
                };
                (record(&config, &capture), contents(&out))
            })
            .into();
        let case = format!("seed {seed:#x}, round {round}: {request:?}");
        assert!(runs.iter().all(|run| run.1 == runs[0].1), "{case}");
        let (of_rule, others): (Vec<_>, Vec<_>) = runs[0]
            .0
            .dumps
            .iter()
            .partition(|report| report.rule == "udp port 9");
        assert!(
            others
                .iter()
                .all(|report| !report.clipped.contains(&"limit"))
        );
        for report in of_rule {
            let is_full = report.clipped.contains(&"limit");
            let limit = request.packets_max.unwrap();
            assert_eq!(report.packets == limit, is_full, "{case}: {report:?}");
            assert!(report.packets <= limit, "{case}");
            most += u64::from(is_full);
            let is_told = report.verdict != Verdict::Complete;
            assert!(disorder_ns > S || !is_told, "{case}: {report:?}");
            let window = report.trigger_ns - 2 * S..=report.trigger_ns + S;
            let times = frames.iter().map(|(time_ns, _)| *time_ns);
            let mut expected: Vec<i64> = times.filter(|ns| window.contains(ns)).collect();
            expected.sort_unstable();
            expected.truncate(usize::try_from(limit).unwrap());
            let held: Vec<i64> = packets(report).iter().map(|packet| packet.0).collect();
            late += u64::from(held != expected && !is_told);
        }
        let outdated = runs[0].0.outdated;
        assert!(late <= outdated, "{case}: {late} of {outdated}");
        assert!(disorder_ns > S || outdated == 0, "{case}: {outdated}");
        all_late += late;
    }
    assert!(most > 10, "{most} were full");
    assert!(all_late > 10, "packets were too late for {all_late}");
}

/// A dump that lacks a late packet, because it was full before, is incomplete or counts as
/// outdated.
#[test]
fn from_files_a_late_packet_ends_a_dump() {
    let dir = tempfile::tempdir().unwrap();
    let capture = dir.path().join("in.pcap");
    let mut frames = Vec::new();
    for n in 0..2500_i64 {
        let mut packet = udp(1, if n == 0 { 9 } else { 7 }, 0);
        packet.resize(1400, 0);
        frames.push((START + n * 4 * MS, packet.clone()));
        if n >= 500 && n % 50 == 0 {
            frames.push((START + n * MS / 5 + 1, packet));
        }
    }
    write(&capture, &frames);
    let limits = 600..800_u64;
    let request = |limit| TriggerRequest {
        packets_max: Some(limit),
        ..TriggerRequest::default()
    };
    let config = Config {
        triggers: limits
            .clone()
            .map(|n| format!("udp port 9 and len > {n}"))
            .collect(),
        requests: limits.map(request).collect(),
        past: Duration::ZERO,
        future: Duration::from_secs(60),
        max_dumps: 1000,
        ..offline(&dir.path().join("out"))
    };
    let mut times: Vec<i64> = frames.iter().map(|(time_ns, _)| *time_ns).collect();
    times.sort_unstable();
    let summary = record(&config, &capture);
    assert_eq!(summary.dumps.len(), 200);
    let (mut late, mut incomplete) = (0, 0);
    for report in summary.dumps {
        let held: Vec<i64> = packets(&report).iter().map(|packet| packet.0).collect();
        let is_first = times.starts_with(&held);
        let is_complete = report.verdict == Verdict::Complete;
        assert!(is_complete || !is_first, "{report:?}");
        incomplete += u64::from(!is_complete);
        assert_eq!(report.clipped, ["start", "limit"][1..], "{report:?}");
        late += u64::from(!is_first);
    }
    assert!(late > 100, "{late}");
    let told = summary.outdated..=summary.outdated + incomplete;
    assert!(told.contains(&late), "{late} of {told:?}");
}

/// Packets are out of order by less than `reorder-window`, and the ring is full. A limit ends no
/// dump at a packet while older packets can arrive.
#[test]
fn from_files_a_full_ring_ends_no_dump_too_soon() {
    let dir = tempfile::tempdir().unwrap();
    let capture = dir.path().join("in.pcap");
    let mut random = fastrand::Rng::with_seed(0x11a17);
    let mut frame = |n: i64| {
        let is_trigger = n % 50 == 20;
        let is_early = n % 9 != 0 || is_trigger;
        let back_ns = if is_early {
            0
        } else {
            random.i64(0..=900 * MS)
        };
        let mut packet = udp(1, if is_trigger { 9 } else { 7 }, 0);
        packet.resize(1400, 0);
        (START + n * 4 * MS - back_ns, packet)
    };
    let frames: Vec<_> = (0..40_000).map(&mut frame).collect();
    write(&capture, &frames);
    let config = Config {
        ring_bytes: 32 << 20,
        past: Duration::ZERO,
        dump_packets: 240,
        ..offline(dir.path())
    };
    let dumps = record(&config, &capture).dumps;
    assert!(dumps.len() > 50, "{}", dumps.len());
    for report in dumps {
        assert_eq!(report.verdict, Verdict::Complete, "{report:?}");
    }
}

/// With a limit of bytes per hour, the dumper reads up to a packet within a batch. It must not read
/// these packets again.
#[test]
fn from_files_nothing_is_read_twice() {
    let dir = tempfile::tempdir().unwrap();
    let capture = dir.path().join("in.pcap");
    let frame = |n: i64| {
        let mut packet = udp(1, if n % 700 == 600 { 9 } else { 7 }, 0);
        packet.resize(400, 0);
        (START + n * 4 * MS, packet)
    };
    let frames: Vec<_> = (0..20_000).map(frame).collect();
    write(&capture, &frames);
    for round in 0..4 {
        let config = Config {
            bytes_per_hour: 1 << 40,
            ..offline(&dir.path().join(round.to_string()))
        };
        for report in record(&config, &capture).dumps {
            let is_whole = report.clipped.is_empty();
            assert!(!is_whole || report.packets == 751, "{report:?}");
        }
    }
}
