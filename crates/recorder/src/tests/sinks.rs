//! Threads that write dumps: a dump whose file is slow or fails costs other dumps nothing.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use retroscope_pcapfile::CaptureReader;

use crate::{
    DumpFormat, DumpReport, Verdict,
    dump::{names::Directory, pool::PoolConfig},
    tests::{
        fake_disk::{Deed, FakeDisk},
        live::{START, missing},
        rig::{MS, Rig, RigConfig, S, udp},
    },
};

/// Blocks operations of a disk until the test opens the barrier or ends. Make the barrier after the
/// rig: the barrier must be dropped before the rig waits for its threads.
#[derive(Debug, Default)]
pub(super) struct Barrier(Arc<BarrierState>);

#[derive(Debug, Default)]
pub(super) struct BarrierState {
    is_open: Mutex<bool>,
    opened: Condvar,
    came: AtomicUsize,
}

impl Barrier {
    /// Blocks operations of this kind on files whose path contains `name`.
    pub(super) fn on(disk: &FakeDisk, deed: Deed, name: &'static str) -> Self {
        let barrier = Self::default();
        let waiting = Arc::clone(&barrier.0);
        disk.set_slow(move |this, path| {
            if this == deed && path.to_string_lossy().contains(name) {
                waiting.came.fetch_add(1, Ordering::SeqCst);
                let is_open = waiting.is_open.lock().unwrap();
                drop(waiting.opened.wait_while(is_open, |is_open| !*is_open));
            }
        });
        barrier
    }

    pub(super) fn came(&self) -> usize {
        self.0.came.load(Ordering::SeqCst)
    }

    pub(super) fn open(&self) {
        *self.0.is_open.lock().unwrap() = true;
        self.0.opened.notify_all();
    }
}

impl Drop for Barrier {
    fn drop(&mut self) {
        self.open();
    }
}

pub(super) fn directory(disk: &FakeDisk, name: &str) -> Directory {
    Directory::on(Arc::new(disk.clone()), Path::new(name), DumpFormat::PcapNg)
}

/// A rig whose dumper does not wait for the threads that write the dumps.
fn rig(plan: &RigConfig<'_>, disk: &FakeDisk) -> Rig {
    Rig::with_pool(plan, START, directory(disk, "dumps"), PoolConfig::new(true))
}

/// Bytes that are copied for dumps and not written yet.
fn copied_bytes(rig: &Rig) -> usize {
    rig.common.counters.copied_bytes.load(Ordering::SeqCst)
}

fn packets(disk: &FakeDisk, path: &Path) -> Vec<(i64, u32)> {
    let bytes = disk.read(path).unwrap_or_default();
    if bytes.is_empty() {
        return Vec::new();
    }
    let mut reader = CaptureReader::new(bytes.as_slice()).unwrap();
    let mut packets = Vec::new();
    while let Some(record) = reader.next().unwrap() {
        let number = u32::from_be_bytes(record.data[28..32].try_into().unwrap());
        packets.push((record.meta.time_ns, number));
    }
    packets
}

fn named(disk: &FakeDisk, name: &str) -> PathBuf {
    let mut names = disk.names().into_iter();
    let found = names.find(|path| path.to_string_lossy().contains(name));
    found.unwrap_or_default()
}

fn holds(disk: &FakeDisk, path: &Path, text: &str) -> bool {
    let bytes = disk.read(path).unwrap();
    bytes
        .windows(text.len())
        .any(|window| window == text.as_bytes())
}

/// At most two threads hang in syncs, and packets of another dump are written.
#[test]
fn no_first_packet_waits_for_a_sync() {
    let disk = FakeDisk::default();
    let plan = RigConfig {
        dump: "src port $srcPort",
        past_ns: 0,
        ..RigConfig::default()
    };
    let mut rig = rig(&plan, &disk);
    let barrier = Barrier::on(&disk, Deed::Sync, "");
    rig.pass(MS);
    for port in 0..6 {
        rig.arrive(0, udp(1000 + port, 9, 1));
    }
    rig.step();
    rig.pass(2 * S);
    rig.step_until(|_| barrier.came() == 2);
    rig.arrive(0, udp(2000, 9, 7));
    rig.pass(10 * MS);
    rig.step_until(|_| packets(&disk, &named(&disk, "-0007-")).len() == 1);
    let large = [udp(2000, 7, 8), vec![0; 100_000]].concat();
    for _ in 0..400 {
        rig.pass(MS);
        rig.arrive(0, large.clone());
        rig.step();
        rig.step_until(|rig| copied_bytes(rig) == 0);
    }
    assert_eq!((barrier.came(), rig.reports.len()), (2, 0));
    barrier.open();
    rig.pass(2 * S);
    rig.step();
    rig.settle();
    let verdicts: Vec<_> = rig
        .reports
        .iter()
        .map(|it| (it.verdict, it.packets))
        .collect();
    assert_eq!(rig.reports.len(), 7, "{verdicts:?}");
    assert!(verdicts.iter().all(|it| it.0 == Verdict::Complete));
    let last = rig
        .reports
        .iter()
        .find(|report| report.number == 7)
        .unwrap();
    assert_eq!(last.packets, 401);
}

/// A file accepts no data. Its dump loses packets that the ring overwrites, and reports exactly how
/// many. Another dump goes on, and copies stay within their limit.
#[test]
fn a_sink_that_stands_still_holds_up_its_own_dump_alone() {
    let disk = FakeDisk::default();
    let plan = RigConfig {
        triggers: &["udp port 9", "udp port 10"],
        past_ns: 0,
        ..RigConfig::default()
    };
    let pool = PoolConfig {
        budget_bytes: 3 << 20,
        ..PoolConfig::new(true)
    };
    let mut rig = Rig::with_pool(&plan, START, directory(&disk, "dumps"), pool);
    let barrier = Barrier::on(&disk, Deed::Write, "-0001-");
    let mut sent = Vec::new();
    for number in 0..170 {
        rig.pass(10 * MS);
        let port = match number {
            0 => 9,
            50 => 10,
            _ => 7,
        };
        let packet = [udp(1, port, number), vec![0; 200_000]].concat();
        sent.push((rig.clock.wall_ns.load(Ordering::SeqCst), number));
        rig.arrive(0, packet);
        rig.step();
        rig.step_until(|rig| {
            let copied = copied_bytes(rig);
            assert!(copied <= pool.budget_bytes, "{copied}");
            // Before the barrier opens, the stalled dump may have copies, at most a third of the
            // budget.
            copied
                <= if number <= 85 {
                    pool.budget_bytes / 3
                } else {
                    0
                }
        });
        if number == 85 {
            let others = packets(&disk, &named(&disk, "-0002-"));
            assert!(others.len() > 30, "{}", others.len());
            assert_eq!(packets(&disk, &named(&disk, "-0001-")), []);
            barrier.open();
        }
    }
    rig.pass(2 * S);
    rig.step_until(|rig| rig.reports.len() == 2);
    for report in &rig.reports {
        let from = if report.number == 1 { 0 } else { 50 };
        let expected = &sent[from..=from + 100];
        let held = packets(&disk, &report.file);
        assert!(held.iter().all(|packet| expected.contains(packet)));
        assert!(held.is_sorted());
        let is_whole = report.number == 2;
        let lost = (expected.len() - held.len()) as u64;
        let told = [("evicted", Some(lost))];
        let told = if is_whole { &[][..] } else { &told };
        assert_eq!(missing(report), told, "{report:?}");
        assert_eq!(
            (report.verdict == Verdict::Complete, lost == 0),
            (is_whole, is_whole)
        );
        let has_gap = holds(&disk, &report.file, "overwritten before they were written");
        assert_eq!(has_gap, !is_whole);
    }
}

/// A dump whose file accepts no data reserves the buckets that it has not read. The ring overwrites
/// these when it needs buckets.
#[test]
fn a_dump_without_room_costs_older_ones_nothing() {
    let disk = FakeDisk::default();
    let plan = RigConfig {
        dump: "src port $srcPort",
        past_ns: S,
        ring_bytes: 16 << 20,
        ..RigConfig::default()
    };
    let pool = PoolConfig {
        budget_bytes: 1 << 20,
        ..PoolConfig::new(true)
    };
    let mut rig = Rig::with_pool(&plan, START, directory(&disk, "dumps"), pool);
    let barrier = Barrier::on(&disk, Deed::Write, "-0002-");
    rig.pass(MS);
    rig.arrive(0, udp(1, 9, 0));
    rig.step();
    let large = |source, number| [udp(source, 7, number), vec![0; 200_000]].concat();
    for number in 0..40 {
        rig.arrive(0, large(2, number));
        rig.pass(MS);
    }
    rig.arrive(0, udp(2, 9, 40));
    rig.pass(MS);
    rig.step();
    let ring = rig.common.ring.statistics();
    let reserved = (ring.closed_buckets, ring.reserved_buckets);
    assert_eq!(reserved, (3, 2), "it has read one, and waits with it");
    // These packets need more buckets than are free. The older dump has not read these packets.
    (0..50).for_each(|number| rig.arrive(0, large(3, number)));
    rig.insert();
    barrier.open();
    rig.pass(2 * S);
    rig.step_until(|rig| rig.reports.len() == 2);
    assert_eq!(rig.common.ring.statistics().reservations_fallen, 1);
    let verdicts = |report: &DumpReport| (report.number, report.verdict);
    let mut verdicts: Vec<_> = rig.reports.iter().map(verdicts).collect();
    verdicts.sort_by_key(|one| one.0);
    let expected = [(1, Verdict::Complete), (2, Verdict::Incomplete)];
    assert_eq!(verdicts, expected);
}

/// The window of a dump whose file accepts no data has more bytes than the ring.
#[test]
fn a_hung_dump_of_the_whole_ring_costs_others_nothing() {
    let disk = FakeDisk::default();
    let plan = RigConfig {
        dump: "src port $srcPort",
        past_ns: 10 * S,
        max_dumps: 11,
        ..RigConfig::default()
    };
    let pool = PoolConfig {
        budget_bytes: 3 << 20,
        ..PoolConfig::new(true)
    };
    let mut rig = Rig::with_pool(&plan, START, directory(&disk, "dumps"), pool);
    let barrier = Barrier::on(&disk, Deed::Write, "-0001-");
    for source in 1..=11 {
        rig.pass(MS);
        rig.arrive(0, udp(source, 9, 0));
        rig.step();
    }
    for number in 0..150 {
        rig.pass(5 * MS);
        let large = [udp(1, 7, number), vec![0; 200_000]].concat();
        rig.arrive(0, large);
        (2..=11).for_each(|source| rig.arrive(0, udp(source, 7, number)));
        rig.step();
        rig.step_until(|rig| copied_bytes(rig) <= pool.budget_bytes / 3);
    }
    let ring = &rig.common.ring;
    assert!(ring.statistics().evicted_bytes > 2 * ring.bytes());
    assert_eq!((barrier.came(), rig.reports.len()), (1, 0));
    barrier.open();
    rig.pass(2 * S);
    rig.step_until(|rig| rig.reports.len() == 11);
    for report in &rig.reports {
        let is_whole = report.number != 1;
        assert_eq!(report.verdict == Verdict::Complete, is_whole, "{report:?}");
        assert!(!is_whole || report.packets == 151, "{report:?}");
    }
}

/// A dump has no room again and again, and then room for good. The dump writes all packets although
/// no more packets arrive, even if no source promises a watermark.
#[test]
fn what_waits_is_written_when_there_is_room() {
    for foreign_queues in 0..2 {
        let disk = FakeDisk::default();
        let plan = RigConfig {
            foreign_queues,
            ..RigConfig::default()
        };
        let mut rig = Rig::on(&plan, START, directory(&disk, "dumps"));
        let step = |rig: &mut Rig, is_full| {
            rig.pass(20 * MS);
            rig.dumper_mut().fill(|| is_full);
            rig.step();
        };
        let written = || packets(&disk, &named(&disk, "-0001-")).len();
        for number in 0..3 {
            rig.arrive(0, udp(1, if number == 0 { 9 } else { 7 }, 2 * number));
            step(&mut rig, true);
            rig.arrive(0, udp(1, 7, 2 * number + 1));
            step(&mut rig, true);
            step(&mut rig, false);
        }
        (0..3).for_each(|_| step(&mut rig, false));
        assert_eq!((written(), rig.reports.len()), (6, 0), "{foreign_queues}");
    }
}

/// A dump stalls while a packet waits, and another queue may still deliver older packets. When
/// there is room, the older packets are read first.
#[test]
fn a_dump_that_has_room_again_is_given_nothing_before_what_is_older() {
    let disk = FakeDisk::default();
    let plan = RigConfig {
        queues: 2,
        ring_bytes: 16 << 20,
        ..RigConfig::default()
    };
    // The dump's share of the budget has no room for the second of two long packets.
    let pool = PoolConfig {
        budget_bytes: 100_000,
        ..PoolConfig::new(true)
    };
    let mut rig = Rig::with_pool(&plan, START, directory(&disk, "dumps"), pool);
    let barrier = Barrier::on(&disk, Deed::Write, "");
    let feed = |rig: &Rig, queue: usize, ms: i64, data| {
        let frame = (START + ms * MS, data);
        rig.feeds[queue].lock().unwrap().frames.push_back(frame);
    };
    let long = |number| [udp(1, 7, number), vec![0; 30_000]].concat();
    rig.pass(10 * MS);
    feed(&rig, 0, 10, udp(1, 9, 0));
    rig.insert();
    rig.look();
    rig.pass(30 * MS);
    feed(&rig, 0, 20, long(1));
    feed(&rig, 0, 21, long(2));
    feed(&rig, 0, 40, udp(1, 7, 4));
    // The watermarks are at 39 ms.
    rig.step();
    rig.pass(20 * MS);
    feed(&rig, 1, 39, udp(1, 7, 3));
    rig.insert();
    barrier.open();
    while copied_bytes(&rig) > 0 {
        std::thread::yield_now();
    }
    let written = || {
        let packets = packets(&disk, &named(&disk, "-0001-"));
        packets.into_iter().map(|it| it.1).collect::<Vec<u32>>()
    };
    rig.step_until(|_| written().last() == Some(&4));
    assert_eq!(written(), [0, 1, 2, 3, 4]);
}

/// Writes 300 dumps with packets that are merged at the end. Returns the contents of the files by
/// name, and the largest number of files that were open at once.
fn many_dumps(pool: PoolConfig) -> (BTreeMap<PathBuf, Vec<u8>>, usize) {
    let disk = FakeDisk::default();
    let plan = RigConfig {
        queues: 2,
        foreign_queues: 1,
        dump: "src port $srcPort",
        max_dumps: 300,
        past_ns: 100 * MS,
        ring_bytes: 16 << 20,
        ..RigConfig::default()
    };
    let mut rig = Rig::with_pool(&plan, START, directory(&disk, "dumps"), pool);
    rig.pass(MS);
    rig.step();
    for number in 0..20 {
        let now_ns = rig.clock.wall_ns.load(Ordering::SeqCst);
        for source in 1000..1300 {
            let port = if number == 2 { 9 } else { 7 };
            rig.arrive(0, udp(source, port, number));
            let rest = if source < 1010 { 30_000 } else { 0 };
            let ahead = [udp(source, 7, 100 + number), vec![0; rest]].concat();
            let ahead = (now_ns + 400 * MS, ahead);
            rig.feeds[1].lock().unwrap().frames.push_back(ahead);
        }
        rig.pass(100 * MS);
        rig.step();
    }
    rig.pass(2 * S);
    rig.step();
    rig.settle();
    assert_eq!(rig.reports.len(), 300);
    for report in &rig.reports {
        assert_eq!(report.verdict, Verdict::Complete, "{report:?}");
        let held = packets(&disk, &report.file);
        assert!(held.len() > 15 && held.is_sorted(), "{held:?}");
    }
    let names = disk.names().into_iter();
    let files = names.map(|path| (path.clone(), disk.read(&path).unwrap()));
    (files.collect(), disk.most_open())
}

#[test]
fn dumps_are_the_same_whoever_writes_them_and_with_few_descriptors() {
    let many = PoolConfig {
        files_max: usize::MAX,
        ..PoolConfig::new(false)
    };
    let (expected, most_open) = many_dumps(many);
    assert_eq!(expected.len(), 600, "nothing is left of the merges");
    assert!(most_open >= 300, "{most_open}");
    for waits in [true, false] {
        let few = PoolConfig {
            waits,
            files_max: 16,
            ..PoolConfig::new(true)
        };
        let (files, most_open) = many_dumps(few);
        assert!(files == expected, "waits: {waits}");
        assert!(most_open <= 16, "waits: {waits}, {most_open}");
    }
}

/// A second recorder writes to the same directory: its dumps get the next free numbers.
#[test]
fn names_that_are_taken_are_left_alone() {
    let disk = FakeDisk::default();
    let mut files = Vec::new();
    for dumps in [1, 2] {
        let mut rig = rig(&RigConfig::default(), &disk);
        for number in 0..dumps {
            rig.pass(S);
            rig.arrive(0, udp(1, 9, number));
            rig.step();
            rig.pass(3 * S);
            rig.step();
            rig.settle();
        }
        files.extend(rig.reports.iter().map(|report| report.file.clone()));
    }
    let name = |index: usize| files[index].to_string_lossy().into_owned();
    assert_eq!(name(1), name(0).replace("-0001-", "-0002-"));
    assert!(name(2).contains("-0003-"), "{}", name(2));
    for path in &files {
        assert_eq!(packets(&disk, path).len(), 1);
    }
    assert_eq!(disk.names().len(), 6);
}

/// A disk fails: the report says what the file has and what is missing.
#[test]
fn a_disk_that_fails_is_reported() {
    for is_failing in [false, true] {
        let disk = FakeDisk::default();
        let mut rig = rig(&RigConfig::default(), &disk);
        rig.pass(MS);
        rig.arrive(0, udp(1, 9, 1));
        rig.pass(10 * MS);
        rig.step();
        rig.settle();
        disk.set_read_only(is_failing);
        rig.pass(MS);
        rig.arrive(0, udp(1, 7, 2));
        rig.pass(3 * S);
        rig.step();
        rig.settle();
        assert_eq!(rig.reports.len(), 1);
        let report = &rig.reports[0];
        assert_eq!(report.locations, std::slice::from_ref(&report.file));
        let held = packets(&disk, &report.file).len();
        if is_failing {
            assert_eq!((report.verdict, report.packets), (Verdict::Failed, 1));
            assert_eq!((missing(report), held), (vec![("disk", Some(1))], 1));
            let error = report.error.as_deref();
            assert!(error.is_some_and(|error| error.contains("Read-only")));
            continue;
        }
        assert_eq!((report.verdict, report.packets), (Verdict::Complete, 2));
        assert_eq!(held, 2);
        let sidecar = disk.read(&report.file.with_extension("json")).unwrap();
        let sidecar: serde_json::Value = serde_json::from_slice(&sidecar).unwrap();
        let own = report.file.file_name().unwrap().to_str().unwrap();
        assert_eq!(
            (&sidecar["file"], &sidecar["locations"]),
            (&own.into(), &serde_json::json!([own]))
        );
    }
}

/// A packet arrives while its dump is synced: the verdict stays as it was.
#[test]
fn a_packet_is_too_late_for_a_dump_that_is_synced() {
    let disk = FakeDisk::default();
    let plan = RigConfig {
        queues: 2,
        foreign_queues: 1,
        ring_bytes: 16 << 20,
        ..RigConfig::default()
    };
    let mut rig = rig(&plan, &disk);
    let barrier = Barrier::on(&disk, Deed::Sync, "");
    rig.pass(MS);
    rig.arrive(0, udp(1, 9, 1));
    let in_window_ns = rig.clock.wall_ns.load(Ordering::SeqCst) + 10;
    rig.step();
    rig.pass(3 * S);
    rig.step_until(|_| barrier.came() == 1);
    let late = (in_window_ns, udp(1, 7, 2));
    rig.feeds[1].lock().unwrap().frames.push_back(late);
    rig.step();
    rig.stop();
    barrier.open();
    rig.step_until(|rig| rig.reports.len() == 1);
    let report = &rig.reports[0];
    assert_eq!((report.verdict, report.packets), (Verdict::Complete, 1));
    assert_eq!(rig.late(), (1, vec![0, 1]));
    let sidecar = report.file.with_extension("json");
    assert!(!holds(&disk, &sidecar, "incomplete"));
}

/// The copied packets of an abandoned dump are written, and the partial file is reported as a
/// failed dump.
#[test]
fn what_was_copied_is_written_when_all_is_given_up() {
    let disk = FakeDisk::default();
    let mut rig = rig(&RigConfig::default(), &disk);
    rig.pass(MS);
    rig.arrive(0, udp(1, 9, 1));
    rig.pass(100 * MS);
    rig.arrive(0, udp(1, 7, 2));
    rig.pass(100 * MS);
    rig.step();
    rig.abandon("stopped before it was complete");
    let [report] = rig.reports.as_slice() else {
        panic!("{:?}", rig.reports);
    };
    assert_eq!((report.verdict, report.packets), (Verdict::Failed, 2));
    assert_eq!(
        report.error.as_deref(),
        Some("stopped before it was complete")
    );
    assert_eq!(missing(report), [("stopped", None)]);
    assert_eq!(packets(&disk, &report.file).len(), 2);
    assert_eq!(disk.names().as_slice(), std::slice::from_ref(&report.file));
}
