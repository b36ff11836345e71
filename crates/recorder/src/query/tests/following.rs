//! Follows: no packet twice, and no packet missing without a report.

use std::{
    collections::BTreeMap,
    io::Write,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    thread::{self, scope},
    time::{Duration, Instant},
};

use super::{
    blocks::{Block, PACKET, STATISTICS, blocks, packets as packets_of},
    *,
};

/// Limit for events that should happen at once.
const DEADLINE: Duration = Duration::from_secs(30);

/// A connection that breaks after a number of bytes.
#[derive(Debug, Clone)]
struct Connection {
    taken: Arc<Mutex<Vec<u8>>>,
    bytes_max: usize,
}

impl Connection {
    fn new(bytes_max: usize) -> Self {
        Self {
            taken: Arc::default(),
            bytes_max,
        }
    }

    fn taken(&self) -> Vec<u8> {
        self.taken.lock().unwrap().clone()
    }

    fn wait_for(&self, what: impl Fn(&[Block]) -> bool) -> Vec<Block> {
        let start = Instant::now();
        loop {
            let blocks = blocks(&self.taken());
            if what(&blocks) {
                return blocks;
            }
            assert!(start.elapsed() < DEADLINE, "{} blocks", blocks.len());
            thread::yield_now();
        }
    }
}

impl Write for Connection {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let mut taken = self.taken.lock().unwrap();
        let room = self.bytes_max - taken.len();
        if room == 0 {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let now = room.min(data.len());
        taken.extend_from_slice(&data[..now]);
        Ok(now)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Ends a follow if a test fails, because the failing test would wait for the follow forever.
struct Ending<'c>(&'c Cancel);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.cancel();
        }
    }
}

fn follow(
    path: &Path,
    query: &Query,
    cancel: &Cancel,
    out: Connection,
) -> Result<QueryReport, QueryError> {
    let attached = Attached::open(path).unwrap();
    query.of(attached).unwrap().until(cancel).write_to(out)
}

/// The packets of a client that reconnects.
#[derive(Debug, Default)]
struct Received {
    records: BTreeMap<usize, Vec<u64>>,
    stamps: Vec<i64>,
    dropped: u64,
    /// The last packet of each producer.
    last: BTreeMap<usize, PacketId>,
    newest: Option<PacketId>,
}

impl Received {
    fn take(&mut self, recording: Recording, bytes: &[u8]) {
        for packet in packets_of(bytes) {
            let id = packet.id();
            let (producer, record) = recording.read(id);
            let number = u64::from_be_bytes(*packet.data().first_chunk().unwrap());
            assert_eq!(number, record);
            self.records.entry(producer).or_default().push(record);
            self.stamps.push(packet.time_ns());
            self.dropped += packet.dropped();
            self.last.insert(producer, id);
            self.newest = Some(id);
        }
    }
}

/// Two producers, stamps in disorder but not before the watermarks, clock steps, and connections
/// that break anywhere.
#[test]
fn reconnections_lose_nothing_that_is_in_the_ring() {
    for seed in 0..12 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut written = Written::new();
        let path = written.folder.path().join("ring");
        let recording = Recording::of(&Attached::open(&path).unwrap().info());
        let names_each = random.bool();
        let broken = AtomicU64::new(0);
        let cancel = Cancel::default();
        let (received, ended) = scope(|scope| {
            let _ending = Ending(&cancel);
            let mut connecting = random.fork();
            let (path, broken, cancel) = (&path, &broken, &cancel);
            let reading = scope.spawn(move || {
                let mut received = Received::default();
                loop {
                    let out = Connection::new(connecting.usize(100..120_000));
                    let after: Vec<PacketId> = match names_each {
                        true => received.last.values().copied().collect(),
                        false => received.newest.into_iter().collect(),
                    };
                    let query = Query {
                        from_ns: Some(0),
                        follow: true,
                        after,
                        ..Query::default()
                    };
                    let ended = follow(path, &query, cancel, out.clone());
                    received.take(recording, &out.taken());
                    match ended {
                        Ok(report) => return (received, report),
                        Err(QueryError::Output(_)) => broken.fetch_add(1, SeqCst),
                        Err(error) => panic!("{error}"),
                    };
                }
            });
            for turn in 0..500 {
                let producer = random.usize(..PRODUCERS);
                if random.u32(..100) == 0 {
                    assert!(written.producers[producer].step(0, random.i64(-99..99)));
                }
                let bytes = random.usize(20..2000);
                written.store(producer, 10_000 + 10 * turn + random.i64(-40..40), bytes);
                if random.u32(..5) == 0 {
                    let watermark_ns = 10_000 + 10 * turn - 50;
                    written
                        .producers
                        .iter_mut()
                        .for_each(|it| it.set_watermark(watermark_ns));
                    // The writer waits for a short time, at most 30 ms, so that some connections
                    // break.
                    let before = broken.load(SeqCst);
                    let start = Instant::now();
                    while random.u32(..40) > 0
                        && broken.load(SeqCst) == before
                        && start.elapsed() < Duration::from_millis(30)
                    {
                        thread::yield_now();
                    }
                }
            }
            written
                .producers
                .iter_mut()
                .for_each(|it| it.set_watermark(i64::MAX));
            reading.join().unwrap()
        });
        assert_eq!(ended.clipped, ["end"], "seed {seed}");
        assert_eq!(ended.verdict, Verdict::Complete, "seed {seed}: {ended:?}");
        assert_eq!(received.dropped, 0, "seed {seed}");
        for (producer, published) in written.published.iter().enumerate() {
            let mut records = received.records.get(&producer).cloned().unwrap_or_default();
            records.sort_unstable();
            let all: Vec<u64> = (0..published.len() as u64).collect();
            assert_eq!(records, all, "seed {seed}, producer {producer}, {broken:?}");
        }
    }
}

/// The writer is faster than its reader: packets that arrive and packets that are reported missing
/// add up to the stored packets.
#[test]
fn what_a_slow_reader_misses_is_told_in_the_stream() {
    let mut gaps = 0;
    for seed in 0..6 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut written = Written::new();
        let path = written.folder.path().join("ring");
        let recording = Recording::of(&Attached::open(&path).unwrap().info());
        let cancel = Cancel::default();
        let first = Connection::new(200_000);
        let (received, ended) = scope(|scope| {
            let _ending = Ending(&cancel);
            let mut connecting = random.fork();
            let (path, cancel, first) = (&path, &cancel, &first);
            let reading = scope.spawn(move || {
                let mut received = Received::default();
                let mut out = first.clone();
                loop {
                    let query = Query {
                        from_ns: Some(0),
                        follow: true,
                        after: received.last.values().copied().collect(),
                        ..Query::default()
                    };
                    let ended = follow(path, &query, cancel, out.clone());
                    received.take(recording, &out.taken());
                    match ended {
                        Ok(report) => return (received, report),
                        Err(QueryError::Output(_)) => {}
                        Err(error) => panic!("{error}"),
                    }
                    out = Connection::new(connecting.usize(10_000..3_000_000));
                }
            });
            first.wait_for(|blocks| !blocks.is_empty());
            let mut time_ns = 1000;
            while time_ns < 200_000 {
                let turns = random.i64(1..400);
                written.fill(time_ns, turns);
                time_ns += 10 * turns;
                written
                    .producers
                    .iter_mut()
                    .for_each(|it| it.set_watermark(time_ns));
                if time_ns < 5000 {
                    // The reader has a packet of each producer before any packet can be missing.
                    first.wait_for(|_| first.taken().len() > 100_000 || time_ns < 2000);
                }
            }
            written
                .producers
                .iter_mut()
                .for_each(|it| it.set_watermark(i64::MAX));
            reading.join().unwrap()
        });
        assert_eq!(ended.clipped, ["end"], "seed {seed}");
        let mut total = received.dropped;
        for (producer, published) in written.published.iter().enumerate() {
            let records = &received.records[&producer];
            assert!(
                records.is_sorted_by(|a, b| a < b),
                "seed {seed}: none comes twice"
            );
            assert_eq!(
                records.last(),
                Some(&(published.len() as u64 - 1)),
                "seed {seed}"
            );
            total += records.len() as u64;
        }
        let published: usize = written.published.iter().map(Vec::len).sum();
        assert_eq!(total, published as u64, "seed {seed}: {ended:?}");
        gaps += received.dropped;
        if received.dropped > 0 && !ended.missing.is_empty() {
            assert_eq!(causes_of(&ended), ["evicted"]);
        }
    }
    assert!(gaps > 0, "the reader was never too slow");
}

fn causes_of(report: &QueryReport) -> Vec<&'static str> {
    report.missing.iter().map(|missing| missing.cause).collect()
}

/// On a silent link, the follow writes its last packet after a short time, without a verdict. The
/// statistics have the verdict.
#[test]
fn a_silent_link_holds_nothing_back() {
    let mut written = Written::new();
    let path = written.folder.path().join("ring");
    written.fill(1000, 3);
    written
        .producers
        .iter_mut()
        .for_each(|it| it.set_watermark(2000));
    let cancel = Cancel::default();
    let out = Connection::new(usize::MAX);
    let query = Query {
        follow: true,
        ..Query::default()
    };
    let report = scope(|scope| {
        let _ending = Ending(&cancel);
        let following = scope.spawn(|| follow(&path, &query, &cancel, out.clone()));
        let count = |blocks: &[Block], kind| blocks.iter().filter(|it| it.kind == kind).count();
        let found = out.wait_for(|blocks| count(blocks, PACKET) == 6);
        assert_eq!(count(&found, STATISTICS), 0);
        let mut sent = found.iter().filter(|block| block.kind == PACKET);
        assert!(sent.all(|block| block.comments().is_empty()));
        let found = out.wait_for(|blocks| count(blocks, STATISTICS) == 2);
        let told: Vec<_> = found.iter().filter(|it| it.kind == STATISTICS).collect();
        for statistics in told {
            let json: serde_json::Value = serde_json::from_str(&statistics.comments()[0]).unwrap();
            assert_eq!(json["packets"], 6);
            assert_eq!(json["verdict"], "complete");
            assert_eq!(json["to"], rfc3339(1999), "as far as all is known");
            assert_eq!(statistics.number(8), Some(3), "delivered");
        }
        written.fill(3000, 1);
        written.producers[0].set_watermark(3500);
        cancel.wait(Duration::from_millis(50));
        assert_eq!(count(&blocks(&out.taken()), PACKET), 6);
        written.producers[1].set_watermark(3500);
        out.wait_for(|blocks| count(blocks, PACKET) == 8);
        cancel.cancel();
        following.join().unwrap().unwrap()
    });
    assert_eq!((report.packets, report.clipped), (8, vec!["cancelled"]));
    assert_eq!(report.to, Some(rfc3339(3499)));
}

#[test]
fn a_follow_ends_at_its_end_and_its_limit() {
    for (to_ns, limit, packets) in [
        (Some(1015), None, 4),
        (None, Some(3), 3),
        (Some(999), None, 0),
    ] {
        let mut written = Written::new();
        let path = written.folder.path().join("ring");
        let query = Query {
            follow: true,
            to_ns,
            limit_packets: limit,
            ..Query::default()
        };
        let out = Connection::new(usize::MAX);
        let cancel = Cancel::default();
        let report = scope(|scope| {
            let _ending = Ending(&cancel);
            let following = scope.spawn(|| follow(&path, &query, &cancel, out.clone()));
            out.wait_for(|blocks| !blocks.is_empty());
            written.fill(1000, 5);
            written
                .producers
                .iter_mut()
                .for_each(|it| it.set_watermark(1100));
            following.join().unwrap().unwrap()
        });
        assert_eq!(report.packets, packets, "{report:?}");
        assert_eq!(report.verdict, Verdict::Complete, "{report:?}");
        let expected = limit.map(|_| "limit");
        assert_eq!(report.clipped, Vec::from_iter(expected));
        let last = packets_of(&out.taken()).into_iter().next_back();
        let comments = last.map_or(Vec::new(), |last| last.comments());
        let verdict = format!("verdict: {}", report.reasons());
        assert_eq!(comments, Vec::from_iter((packets > 0).then_some(verdict)));
    }
}

/// Packets arrive, and the recorder ends, before the client reads the answer.
#[test]
fn a_follow_that_begins_before_the_recorder_ends_has_its_last_packets() {
    let mut written = Written::new();
    let attached = Attached::open(&written.folder.path().join("ring")).unwrap();
    let query = Query {
        follow: true,
        ..Query::default()
    };
    let mut answer = query.of(attached).unwrap();
    answer.recorder = Some(Weak::new());
    written.fill(1000, 3);
    let report = answer.write_to(Connection::new(usize::MAX)).unwrap();
    assert_eq!(
        (report.packets, report.clipped.as_slice()),
        (6, &["end"][..])
    );
}

/// The answer reports that there may have been more packets.
#[test]
fn a_follow_of_a_killed_writer_ends() {
    let mut written = Written::new();
    written.fill(1000, 3);
    written
        .producers
        .iter_mut()
        .for_each(|it| it.set_watermark(1010));
    let query = Query {
        follow: true,
        ..Query::default()
    };
    let out = Connection::new(usize::MAX);
    let report = follow(&written.killed(), &query, &Cancel::default(), out).unwrap();
    assert_eq!(
        (report.packets, report.clipped.as_slice()),
        (6, &["end"][..])
    );
    assert_eq!(causes_of(&report), ["unpublished"]);
}

/// Accepts any bytes, and ends the answer after a number of bytes.
#[derive(Debug)]
struct Ends<'c> {
    taken: Vec<u8>,
    bytes: usize,
    cancel: &'c Cancel,
}

impl Write for &mut Ends<'_> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.taken.extend_from_slice(data);
        if self.taken.len() >= self.bytes {
            self.cancel.cancel();
        }
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_follow_that_is_ended_in_the_middle_promises_no_more_than_it_wrote() {
    let mut written = Written::new();
    let path = written.folder.path().join("ring");
    written.fill(1000, 200);
    written
        .producers
        .iter_mut()
        .for_each(|it| it.set_watermark(4000));
    let all: Vec<i64> = written.published.concat();
    let query = Query {
        follow: true,
        from_ns: Some(999),
        ..Query::default()
    };
    let mut random = fastrand::Rng::with_seed(19);
    let mut in_the_middle = 0;
    for bytes in (0..30).map(|_| random.usize(0..800_000)).chain([0]) {
        let cancel = Cancel::default();
        let mut out = Ends {
            taken: Vec::new(),
            bytes,
            cancel: &cancel,
        };
        let attached = Attached::open(&path).unwrap();
        let answer = query.of(attached).unwrap().until(&cancel);
        let report = answer.write_to(&mut out).unwrap();
        assert_eq!(report.clipped, ["cancelled"]);
        let packets = packets_of(&out.taken);
        let told = |stamp: &&i64| report.to.as_deref() >= Some(rfc3339(**stamp).as_str());
        assert_eq!(
            packets.len(),
            all.iter().filter(told).count(),
            "{bytes} bytes, {report:?}"
        );
        assert_eq!(report.packets, packets.len() as u64);
        in_the_middle += u32::from(!packets.is_empty() && packets.len() < all.len());
    }
    assert!(in_the_middle > 0);
}
