//! All combinations of failures: each dump has the packets that an oracle predicts, or its verdict
//! reports packets as missing.

use std::{
    collections::BTreeMap,
    num::NonZeroUsize,
    path::Path,
    sync::{Arc, atomic::Ordering},
};

use retroscope_pcapfile::CaptureReader;
use retroscope_script::ScriptLimits;

use crate::{
    Analyzers, DumpReport, Scripts, Verdict,
    dump::{names::Directory, pool::PoolConfig},
    rfc3339,
    tests::fake_disk::FakeDisk,
    tests::rig::{MS, Rig, RigConfig, S, udp},
};

const START: i64 = 1_800_000_000 * S;
const PAST: i64 = 60 * MS;
const FUTURE: i64 = 15 * MS;
/// Times of triggers, ms. The clock is stepped between the second and the third trigger.
const TRIGGERS: [i64; 4] = [100, 150, 170, 260];
/// Time of the trigger that a flood of large packets follows, ms.
const FLOODED: i64 = TRIGGERS[2];
/// Time of the clock step, and the time range in which the disk fails, ms.
const STEP: i64 = 155;
const TROUBLE: std::ops::Range<i64> = 152..199;
/// Time range in which large packets arrive, ms.
const BULK: std::ops::Range<i64> = 205..225;
const END: i64 = 300;
const LARGE_BYTES: usize = 250_000;
/// Bytes of a block. Each large packet fills at least one block.
const BLOCK_BYTES: usize = 20_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cell {
    step_ns: i64,
    is_ring_full: bool,
    reservation_falls: bool,
    disk: Trouble,
    is_hostile: bool,
    sources: Sources,
    capture_threads: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    None,
    Full,
    ReadOnly,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sources {
    One,
    Three,
    /// Three sources, of which the third promises no watermarks.
    OneWithoutWatermark,
}

impl Cell {
    /// All possible combinations with this step of the clock.
    fn all(step_ns: i64, turn: usize) -> Vec<Self> {
        let mut cells: Vec<Self> = Vec::new();
        for number in 0..2 * 2 * 3 * 2 * 3 {
            let cell = Self {
                step_ns,
                is_ring_full: number % 2 == 1,
                reservation_falls: number / 2 % 2 == 1,
                disk: [Trouble::None, Trouble::Full, Trouble::ReadOnly][number / 4 % 3],
                is_hostile: number / 12 % 2 == 1,
                sources: [Sources::One, Sources::Three, Sources::OneWithoutWatermark][number / 24],
                capture_threads: 1 + (cells.len() + turn) % 3,
            };
            let cell = Self {
                capture_threads: match cell.sources {
                    Sources::One => 1,
                    Sources::Three => cell.capture_threads,
                    // A queue without watermark has a thread of its own.
                    Sources::OneWithoutWatermark => 3,
                },
                ..cell
            };
            cells.extend(cell.why_impossible().is_none().then_some(cell));
        }
        assert_eq!(cells.len(), 54, "a quarter of 72 is impossible");
        cells
    }

    fn why_impossible(self) -> Option<&'static str> {
        (self.reservation_falls && !self.is_ring_full)
            .then_some("a reservation falls only where nothing else is left to overwrite")
    }

    fn queues(self) -> usize {
        if self.sources == Sources::One { 1 } else { 3 }
    }

    fn triggering(self, ms: i64) -> usize {
        usize::try_from(ms).unwrap() % self.queues()
    }

    /// The stamp of a packet that is sent at `at_ns`. Only the system's clock is stepped.
    fn stamp_ns(self, source: usize, at_ns: i64) -> i64 {
        let is_foreign = self.sources == Sources::OneWithoutWatermark && source == 2;
        let is_stepped = !is_foreign && at_ns > (STEP - 1) * MS;
        START + at_ns + if is_stepped { self.step_ns } else { 0 }
    }

    fn ring_bytes(self) -> usize {
        (4 * (self.queues() + 1)) << 20
    }
}

#[derive(Debug, Clone)]
struct Sent {
    /// Time since the start on a clock without steps, ns.
    at_ns: i64,
    stamp_ns: i64,
    source: usize,
    data: Arc<[u8]>,
}

struct Recording {
    cell: Cell,
    has_writers: bool,
    analyzers: Analyzers,
    rig: Rig,
    disk: FakeDisk,
    large: Arc<[u8]>,
    sent: Vec<Sent>,
}

impl Recording {
    /// `has_writers`: the dumper does not wait for the threads that write dumps.
    fn new(cell: Cell, has_writers: bool, analyzers: Analyzers) -> Self {
        let plan = RigConfig {
            analyzers,
            queues: cell.queues(),
            capture_threads: Some(cell.capture_threads),
            foreign_queues: usize::from(cell.sources == Sources::OneWithoutWatermark),
            ring_bytes: cell.ring_bytes() as u64,
            triggers: &["udp port 9", "udp port 10"],
            dump: "",
            scripts: Scripts::default(),
            limits: ScriptLimits::default(),
            past_ns: PAST,
            future_ns: FUTURE,
            max_dumps: 64,
            ..RigConfig::default()
        };
        let disk = FakeDisk::default();
        let directory = Directory::on(
            Arc::new(disk.clone()),
            Path::new("dumps"),
            crate::DumpFormat::PcapNg,
        )
        .with_blocks(BLOCK_BYTES);
        let pool = PoolConfig::new(has_writers);
        let rig = Rig::with_pool(&plan, START, directory, pool);
        Self {
            cell,
            has_writers,
            analyzers,
            rig,
            disk,
            large: vec![0x45; LARGE_BYTES].into(),
            sent: Vec::new(),
        }
    }

    fn send(&mut self, source: usize, data: Arc<[u8]>) {
        let at_ns = self.rig.clock.mono_ns.load(Ordering::SeqCst);
        let stamp_ns = self.cell.stamp_ns(source, at_ns);
        let frame = (stamp_ns, data.to_vec());
        self.rig.feeds[source]
            .lock()
            .unwrap()
            .frames
            .push_back(frame);
        self.sent.push(Sent {
            at_ns,
            stamp_ns,
            source,
            data,
        });
    }

    /// Sends a small packet with a number to a port.
    fn send_small(&mut self, source: usize, port: u16) {
        let number = u32::try_from(self.sent.len()).unwrap();
        let mut data = udp(1, port, number);
        if self.cell.is_hostile {
            let texts = ["verdict: complete", "verdict: unfinished", "verdict: "];
            let text = texts[self.sent.len() % 3];
            data.extend(format!("{text:240}").bytes());
        }
        self.send(source, data.into());
    }

    /// Each source sends one packet 1 ns before a millisecond and one at the millisecond, which may
    /// trigger.
    fn round(&mut self, ms: i64) {
        for ns in [MS - 1, 1] {
            self.rig.pass(ns);
            for source in 0..self.cell.queues() {
                let trigger = TRIGGERS.iter().position(|trigger| *trigger == ms);
                let is_here = ns == 1 && source == self.cell.triggering(ms);
                let port = match trigger.filter(|_| is_here) {
                    Some(index) => [9, 10][index % 2],
                    None => 7,
                };
                self.send_small(source, port);
            }
        }
    }

    fn send_large(&mut self, bytes: usize) {
        for number in 0..bytes / LARGE_BYTES {
            let source = number % self.cell.queues();
            let large = Arc::clone(&self.large);
            self.send(source, large);
        }
    }

    fn run(&mut self) {
        let ring_bytes = self.cell.ring_bytes();
        for ms in 1..=END {
            self.trouble(ms);
            if ms == STEP && self.cell.step_ns != 0 {
                let wall_ns = &self.rig.clock.wall_ns;
                wall_ns.fetch_add(self.cell.step_ns, Ordering::SeqCst);
            }
            self.round(ms);
            if self.cell.is_ring_full && ms <= 20 {
                self.send_large(ring_bytes / 16);
            }
            if BULK.contains(&ms) {
                self.send_large(ring_bytes / 3 / 20);
            }
            if self.cell.reservation_falls && ms == FLOODED {
                // The analyzer requests the dump, but the dumper does not run until the flood is
                // stored.
                self.rig.insert();
                self.rig.look();
                for _ in 0..5 {
                    self.send_large(ring_bytes / 4);
                    self.rig.insert();
                }
            }
            self.step();
        }
        for _ in 0..3 {
            self.rig.pass(S);
            self.step();
        }
    }

    fn step(&mut self) {
        self.rig.step();
        if self.has_writers {
            self.rig.settle();
        }
    }

    fn trouble(&self, ms: i64) {
        let (is_begin, is_end) = (ms == TROUBLE.start, ms == TROUBLE.end);
        match self.cell.disk {
            Trouble::Full if is_begin => {
                let files = self.disk.names();
                let used = files.iter().filter_map(|path| self.disk.read(path));
                let used: usize = used.map(|bytes| bytes.len()).sum();
                self.disk.set_capacity(used + 1000);
            }
            Trouble::Full if is_end => self.disk.set_capacity(usize::MAX),
            Trouble::ReadOnly if is_begin || is_end => self.disk.set_read_only(is_begin),
            _ => {}
        }
    }

    /// All packets of a trigger's window, both ends included, ordered by a clock without steps and
    /// then by source.
    fn expected(&self, trigger_ms: i64) -> Vec<&Sent> {
        let window = trigger_ms * MS - PAST..=trigger_ms * MS + FUTURE;
        let sent = self.sent.iter();
        let mut expected: Vec<&Sent> = sent.filter(|one| window.contains(&one.at_ns)).collect();
        expected.sort_by_key(|one| (one.at_ns, one.source));
        expected
    }

    fn reports(&self) -> BTreeMap<i64, &DumpReport> {
        let reports = &self.rig.reports;
        let of = |ms| {
            let stamp_ns = self.cell.stamp_ns(self.cell.triggering(ms), ms * MS);
            let time = rfc3339(stamp_ns);
            reports.iter().rfind(|report| report.trigger_time == time)
        };
        let found = TRIGGERS.into_iter().filter_map(|ms| Some((ms, of(ms)?)));
        found.collect()
    }

    fn judge(&self) {
        let cell = self.cell;
        let reports = self.reports();
        let triggers: Vec<i64> = reports.keys().copied().collect();
        assert_eq!(triggers, TRIGGERS, "{cell:?}: {:?}", self.rig.reports);
        // The flood overtakes readers of the ring, but not inserters that analyze packets.
        let unseen = self.rig.common.counters.reading().unseen;
        let is_inline = self.analyzers == Analyzers::Auto && cell.capture_threads == cell.queues();
        let is_lapped = cell.reservation_falls && !is_inline;
        assert_eq!(unseen > 0, is_lapped, "{cell:?}");
        let told = |text: &String| text.contains("triggers may be missed");
        let notices = &self.rig.notices;
        assert_eq!(
            notices.iter().any(told),
            unseen > 0,
            "{cell:?}: {notices:?}"
        );
        for (ms, report) in reports {
            let case = format!("{cell:?}, trigger at {ms} ms, {report:#?}");
            let is_open_in_trouble = TROUBLE.contains(&ms) || TROUBLE.contains(&(ms + FUTURE / MS));
            let has_failed = cell.disk != Trouble::None && is_open_in_trouble;
            let has_fallen = cell.reservation_falls && ms == FLOODED;
            let expected = self.expected(ms);
            let held = self.held(&report.file, !has_failed, report, &case);
            assert_eq!(held.len() as u64, report.packets, "{case}");
            assert_is_part(&held, &expected, &case);
            let verdict = match (has_failed, has_fallen) {
                (true, _) => Verdict::Failed,
                (false, true) => Verdict::Incomplete,
                (false, false) => Verdict::Complete,
            };
            assert_eq!(report.verdict, verdict, "{case}");
            let not_analyzed = if ms == FLOODED { unseen } else { 0 };
            assert_eq!(report.not_analyzed, not_analyzed, "{case}");
            let lost = (expected.len() - held.len()) as u64;
            assert_eq!(lost > 0, verdict != Verdict::Complete, "{case}");
            assert_named(report, lost, &case);
        }
    }

    /// The packets of a dump's file: stamp and data. Also checks the verdict in the header.
    fn held(
        &self,
        path: &Path,
        is_finished: bool,
        report: &DumpReport,
        case: &str,
    ) -> Vec<(i64, Vec<u8>)> {
        let Some(bytes) = self.disk.read(path) else {
            assert!(!is_finished, "{case}");
            return Vec::new();
        };
        if bytes.is_empty() {
            // The disk had no room for the header.
            assert!(!is_finished, "{case}");
            return Vec::new();
        }
        let header = u32::from_le_bytes(bytes[4..8].try_into().unwrap()) as usize;
        let header = String::from_utf8_lossy(&bytes[..header]);
        let verdict = &header[header.rfind("verdict: ").unwrap()..];
        let words = if is_finished {
            report.reasons()
        } else {
            "unfinished".to_owned()
        };
        let words: String = format!("verdict: {words}").chars().take(200).collect();
        assert!(verdict.starts_with(&words), "{case}: {verdict}");
        let mut reader = CaptureReader::new(bytes.as_slice()).unwrap();
        let mut held = Vec::new();
        while let Some(record) = reader.next().unwrap() {
            held.push((record.meta.time_ns, record.data.to_vec()));
        }
        held
    }
}

/// Checks that the file has only expected packets, each at most once, and in order.
fn assert_is_part(held: &[(i64, Vec<u8>)], expected: &[&Sent], case: &str) {
    let mut rest = expected.iter();
    for (index, (stamp_ns, data)) in held.iter().enumerate() {
        let is_it = |one: &&Sent| one.stamp_ns == *stamp_ns && *one.data == **data;
        if rest.any(is_it) {
            continue;
        }
        let place = expected.iter().position(is_it);
        let before: Vec<_> = held[index.saturating_sub(3)..=index]
            .iter()
            .map(|(stamp_ns, data)| (stamp_ns, data.len()))
            .collect();
        panic!(
            "{case}: packet {index} stands behind others, or was not sent so: {before:?}; to be at {place:?}"
        );
    }
}

/// Checks that the verdict reports missing packets exactly if packets were lost. A number must be
/// right, and an upper bound must not be too low.
fn assert_named(report: &DumpReport, lost: u64, case: &str) {
    let missing = || report.missing.iter();
    let named: Option<u64> = missing().map(|entry| entry.packets).sum();
    let bound: Option<u64> = missing().map(|entry| entry.packets.or(entry.at_most)).sum();
    assert_eq!(report.missing.is_empty(), lost == 0, "{case}");
    assert!(
        named.is_none_or(|named| named == lost),
        "{case}: {lost} are missing"
    );
    assert!(
        bound.is_none_or(|bound| bound >= lost),
        "{case}: {lost} are missing"
    );
}

fn try_all(step_ns: i64, has_writers: bool) {
    let threads = |n| Analyzers::Threads(NonZeroUsize::new(n).unwrap());
    for (turn, analyzers) in [Analyzers::Auto, threads(1), threads(2)]
        .into_iter()
        .enumerate()
    {
        for cell in Cell::all(step_ns, turn) {
            let mut recording = Recording::new(cell, has_writers, analyzers);
            recording.run();
            recording.judge();
        }
    }
}

#[test]
fn combinations_without_a_step() {
    try_all(0, false);
}

#[test]
fn combinations_with_threads_that_write() {
    try_all(0, true);
}

#[test]
fn combinations_with_a_step_back() {
    try_all(-3600 * S, false);
}

#[test]
fn combinations_with_a_step_forward() {
    try_all(3600 * S, false);
}
