//! Queries of rings in files, some of them damaged.

mod asking;
mod blocks;
mod dumped;
mod dumped_lists;
mod following;
mod indexed;
mod newest;
mod recorders;

use std::{
    fs::{self, OpenOptions},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use retroscope_capture::TimeDomain;
use retroscope_packet::LinkType;
use retroscope_pcapfile::CaptureReader;
use retroscope_ring::{
    AttachError, Attached, Backing, InterfaceEntry, Producer, Record, Ring, RingConfig,
};
use tempfile::TempDir;

use super::*;
use crate::{Verdict, rfc3339};

/// Size of a bucket: the smallest possible size. The ring has eight buckets for two producers.
const BUCKET_BYTES: usize = 260 << 10;
const BUCKETS: usize = 8;
const PRODUCERS: usize = 2;

/// A ring in a file, and the stamps of its stored packets by producer, in the order of storing.
struct Written {
    folder: TempDir,
    ring: Ring,
    producers: Vec<Producer>,
    published: Vec<Vec<i64>>,
}

struct ParsedAnswer {
    report: QueryReport,
    /// Stamp, interface and number of each packet.
    packets: Vec<(i64, u16, u64)>,
    interfaces: usize,
}

impl Written {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = RingConfig {
            bucket_bytes: Some(BUCKET_BYTES),
            backing: Backing::File(folder.path().join("ring")),
            prefault: false,
            created_ns: 1,
            created_mono_ns: 1,
            ..RingConfig::new((BUCKETS * BUCKET_BYTES) as u64, PRODUCERS, 0)
        };
        let ring = Ring::new(&config, None).unwrap();
        for name in ["left", "right"] {
            let entry = InterfaceEntry {
                name: name.into(),
                link_type: LinkType::ETHERNET.0,
                snaplen: 0,
                time_domain: TimeDomain::KernelSoftware as u8,
                clock: 0,
            };
            ring.add_interface(entry).unwrap();
        }
        let producers = (0..PRODUCERS).map(|_| ring.producer().unwrap()).collect();
        Self {
            folder,
            ring,
            producers,
            published: vec![Vec::new(); PRODUCERS],
        }
    }

    /// Stores a packet of `bytes` bytes, which begins with its number among the packets of its
    /// producer. Its interface has the producer's number.
    fn store(&mut self, producer: usize, stamp_ns: i64, bytes: usize) {
        let number = self.published[producer].len() as u64;
        let mut frame = vec![0; bytes];
        frame[..8].copy_from_slice(&number.to_be_bytes());
        let interface = u16::try_from(producer).unwrap();
        let record = Record::whole(stamp_ns, interface, &frame);
        self.producers[producer].store(&record).unwrap();
        self.published[producer].push(stamp_ns);
    }

    /// Stores `turns` packets of 2 KiB from each producer, and publishes the packets.
    fn fill(&mut self, from_ns: i64, turns: i64) {
        for turn in 0..turns {
            self.store(0, from_ns + 10 * turn, 2048);
            self.store(1, from_ns + 10 * turn + 5, 2048);
        }
        self.producers.iter_mut().for_each(Producer::publish);
    }

    /// A copy of the region as a killed recorder would leave it: no process has locked the file.
    fn killed(&self) -> PathBuf {
        let copy = self.folder.path().join("killed");
        fs::copy(self.folder.path().join("ring"), &copy).unwrap();
        copy
    }
}

fn answer(path: &Path, query: &Query) -> Result<ParsedAnswer, QueryError> {
    let attached = Attached::open(path).unwrap();
    let mut out = Vec::new();
    let report = query.of(attached)?.write_to(&mut out)?;
    Ok(ParsedAnswer::read(&out, report))
}

impl ParsedAnswer {
    fn read(out: &[u8], report: QueryReport) -> Self {
        let mut reader = CaptureReader::new(out).unwrap();
        let mut packets = Vec::new();
        while let Some(record) = reader.next().unwrap() {
            let number = record
                .data
                .first_chunk()
                .map_or(0, |bytes| u64::from_be_bytes(*bytes));
            packets.push((record.meta.time_ns, record.meta.interface, number));
        }
        assert_eq!(report.packets, packets.len() as u64);
        let end = &out[out.len().saturating_sub(8192)..];
        let count = |text: &str| {
            end.windows(text.len())
                .filter(|at| *at == text.as_bytes())
                .count()
        };
        let verdict = format!("verdict: {}", report.reasons());
        assert_eq!(count(&verdict), usize::from(report.packets > 0));
        let interfaces = reader.interfaces().len();
        assert_eq!(count(&serde_json::to_string(&report).unwrap()), interfaces);
        Self {
            report,
            packets,
            interfaces,
        }
    }

    fn stamps(&self) -> Vec<i64> {
        self.packets.iter().map(|packet| packet.0).collect()
    }

    /// The numbers of the packets of an interface of the file.
    fn numbers(&self, interface: u16) -> Vec<u64> {
        let own = self.packets.iter().filter(|packet| packet.1 == interface);
        own.map(|packet| packet.2).collect()
    }
}

fn causes(answer: &ParsedAnswer) -> Vec<&'static str> {
    answer
        .report
        .missing
        .iter()
        .map(|missing| missing.cause)
        .collect()
}

#[test]
fn a_running_ring_gives_all_that_was_published_in_order() {
    let mut written = Written::new();
    written.fill(1000, 100);
    // The stamps of one producer need not be in order.
    written.store(0, 1500, 100);
    written.producers[0].publish();
    written.store(0, 9999, 100); // not published
    let answer = answer(&written.folder.path().join("ring"), &Query::default()).unwrap();
    let mut expected: Vec<i64> = written.published.concat();
    expected.retain(|stamp_ns| *stamp_ns != 9999);
    expected.sort_unstable();
    assert_eq!(answer.stamps(), expected);
    assert_eq!(
        answer.report.verdict,
        Verdict::Complete,
        "{:?}",
        answer.report
    );
    assert!(answer.report.notes.is_empty());
}

#[test]
fn windows_and_filters_choose() {
    let mut written = Written::new();
    written.fill(1000, 100);
    for producer in &mut written.producers {
        producer.set_watermark(2000);
    }
    let path = written.folder.path().join("ring");
    let window = Query {
        from_ns: Some(1100),
        to_ns: Some(1120),
        ..Query::default()
    };
    let found = answer(&path, &window).unwrap();
    assert_eq!(found.stamps(), [1100, 1105, 1110, 1115, 1120]);
    assert_eq!(found.report.verdict, Verdict::Complete);
    // Compares the last two of the eight bytes of the packet's number.
    let filtered = Query {
        expression: "ether[6:2] = 7".into(),
        ..Query::default()
    };
    let found = answer(&path, &filtered).unwrap();
    assert_eq!(found.packets, [(1070, 0, 7), (1075, 1, 7)]);
    let outbound = Record {
        direction: 2,
        ..Record::whole(2000, 0, &[0; 60])
    };
    written.producers[0].store(&outbound).unwrap();
    written.producers[0].publish();
    let directed = Query {
        expression: "outbound".into(),
        ..Query::default()
    };
    assert_eq!(answer(&path, &directed).unwrap().stamps(), [2000]);
    let nothing = Query {
        expression: "ether[6:2] = 7777".into(),
        ..Query::default()
    };
    let found = answer(&path, &nothing).unwrap();
    assert_eq!((found.packets.len(), found.interfaces), (0, 2));
    assert_eq!(found.report.verdict, Verdict::Complete);
    let wrong = Query {
        expression: "not a filter (".into(),
        ..Query::default()
    };
    assert!(matches!(answer(&path, &wrong), Err(QueryError::Filter(_))));
    let last = Query {
        last_ns: Some(50),
        ..Query::default()
    };
    let killed = answer(&written.killed(), &last).unwrap();
    assert_eq!(killed.stamps(), (1950..2005).step_by(5).collect::<Vec<_>>());
}

#[test]
fn what_was_overwritten_is_told_where_it_was_asked_for() {
    let mut written = Written::new();
    written.fill(1000, 2000); // 8 MiB of packets into a ring of 2 MiB
    let path = written.folder.path().join("ring");
    let whole = answer(&path, &Query::default()).unwrap();
    assert_eq!(
        whole.report.verdict,
        Verdict::Complete,
        "{:?}",
        whole.report
    );
    for interface in 0..2 {
        let numbers = whole.numbers(interface);
        assert!(numbers.len() > 200);
        let first = 2000 - numbers.len() as u64;
        assert_eq!(numbers, (first..2000).collect::<Vec<_>>());
    }
    let all = Query {
        from_ns: Some(0),
        ..Query::default()
    };
    let all = answer(&path, &all).unwrap();
    assert_eq!(causes(&all), ["evicted"]);
    let bounds: u64 = all
        .report
        .missing
        .iter()
        .filter_map(|missing| missing.at_most)
        .sum();
    assert_eq!(bounds + all.report.packets, 4000);
    let statistics = written.ring.statistics();
    assert_eq!(bounds, statistics.evicted_packets);
    let before = Query {
        to_ns: Some(1500),
        ..Query::default()
    };
    let before = answer(&path, &before).unwrap();
    assert_eq!(
        (before.packets.len(), causes(&before)),
        (0, vec!["evicted", "unpublished"])
    );
}

#[test]
fn a_killed_writer_is_not_believed_beyond_its_last_publication() {
    let mut written = Written::new();
    written.fill(1000, 100);
    for producer in &mut written.producers {
        producer.set_watermark(2100);
    }
    let killed = written.killed();
    let found = answer(&killed, &Query::default()).unwrap();
    assert_eq!(
        (found.packets.len(), causes(&found)),
        (200, vec!["unpublished"])
    );
    // Only a watermark promises that no older packet follows.
    for (to_ns, is_known) in [(2099, true), (2100, false)] {
        let known = Query {
            to_ns: Some(to_ns),
            ..Query::default()
        };
        let found = answer(&killed, &known).unwrap();
        assert_eq!(found.packets.len(), 200);
        assert_eq!(found.report.verdict == Verdict::Complete, is_known);
    }
    let file = OpenOptions::new().write(true).open(&killed).unwrap();
    file.write_all_at(&2_u64.to_ne_bytes(), 1024).unwrap();
    assert_eq!(
        causes(&answer(&killed, &Query::default()).unwrap()),
        ["unpublished"]
    );
    // After a clean end, the watermarks say that no packets follow.
    let Written {
        folder,
        ring,
        producers,
        ..
    } = written;
    drop((ring, producers));
    let found = answer(&folder.path().join("ring"), &Query::default()).unwrap();
    assert_eq!(
        (found.packets.len(), found.report.verdict),
        (200, Verdict::Complete)
    );
}

/// The recorder was killed before it stored a packet.
#[test]
fn an_empty_ring_of_a_killed_writer_is_not_complete() {
    let mut written = Written::new();
    let known = Query {
        to_ns: Some(4999),
        ..Query::default()
    };
    written.producers[0].set_watermark(5000);
    let found = answer(&written.killed(), &known).unwrap();
    assert_eq!(causes(&found), ["unpublished"]);
    written.producers[1].set_watermark(5000);
    let found = answer(&written.killed(), &known).unwrap();
    assert_eq!(found.report.verdict, Verdict::Complete);
}

/// Buckets are overwritten after the query read their headers, and before it reads their records.
#[test]
fn what_is_overwritten_meanwhile_is_told_only_where_it_was_named() {
    for named in [None, Some(1000)] {
        let mut written = Written::new();
        written.fill(1000, 450);
        let attached = Attached::open(&written.folder.path().join("ring")).unwrap();
        let query = Query {
            from_ns: named,
            ..Query::default()
        };
        let answer = query.of(attached).unwrap();
        written.fill(5500, 200);
        let mut out = Vec::new();
        let report = answer.write_to(&mut out).unwrap();
        let found = ParsedAnswer::read(&out, report);
        let all = named.is_some().then_some("evicted");
        assert_eq!(causes(&found), Vec::from_iter(all));
        let from = found.report.from.as_deref();
        assert_eq!(
            from == Some(rfc3339(1000).as_str()),
            named.is_some(),
            "{from:?}"
        );
        for interface in 0..2 {
            let numbers = found.numbers(interface);
            let first = numbers[0];
            assert!(first > 50 && numbers.len() > 100, "{first}");
            assert_eq!(numbers, (first..450).collect::<Vec<_>>());
        }
    }
}

/// A query without a start gives all packets from the place where the ring is complete, also if a
/// clock was set.
#[test]
fn a_window_without_a_start_holds_all_on_both_sides_of_a_step() {
    for step_ns in [3_600_000_000_000, -9000] {
        let mut written = Written::new();
        for producer in &mut written.producers {
            assert!(producer.step(0, 5000));
        }
        written.fill(1000, 1500);
        for producer in &mut written.producers {
            assert!(producer.step(0, step_ns));
        }
        written.fill(16_000, 50);
        let path = written.killed();
        let found = answer(&path, &Query::default()).unwrap();
        for interface in 0..2 {
            let numbers = found.numbers(interface);
            assert!(numbers.len() > 200);
            let first = 1550 - numbers.len() as u64;
            assert_eq!(numbers, (first..1550).collect::<Vec<_>>());
        }
        let first_ns = found.packets[0].0;
        let told = [first_ns - 5, first_ns].map(rfc3339);
        let from = found.report.from.unwrap();
        assert!((&told[0]..=&told[1]).contains(&&from), "{from} {told:?}");
        let last = Query {
            last_ns: Some(995),
            ..Query::default()
        };
        let found = answer(&path, &last).unwrap();
        assert_eq!(found.packets.len(), 200, "{:?}", found.report);
        assert_eq!(causes(&found), ["unpublished"]);
    }
}

#[test]
fn a_long_expression_has_an_answer() {
    let mut written = Written::new();
    written.fill(1000, 3);
    let long = Query {
        expression: format!("ether[6:2] = 1{}or ether[6:2] = 2", " ".repeat(70_000)),
        ..Query::default()
    };
    let found = answer(&written.folder.path().join("ring"), &long).unwrap();
    assert_eq!(found.packets.len(), 4);
}

#[test]
fn steps_of_a_clock_are_in_the_stamps() {
    let mut written = Written::new();
    written.store(0, 1000, 60);
    assert!(written.producers[0].step(0, -500));
    written.store(0, 1010, 60);
    written.producers[0].publish();
    let path = written.folder.path().join("ring");
    let found = answer(&path, &Query::default()).unwrap();
    assert_eq!(found.stamps(), [1000, 510]);
    let early = Query {
        from_ns: Some(0),
        to_ns: Some(600),
        ..Query::default()
    };
    let found = answer(&path, &early).unwrap();
    assert_eq!(found.packets.len(), 1);
}

/// A query reads the only bucket of a producer, even if the bucket's header has wrong times.
#[test]
fn a_header_with_wrong_times_hides_nothing() {
    let mut written = Written::new();
    written.fill(1000, 100);
    for producer in &mut written.producers {
        producer.set_watermark(3000);
    }
    // The word of the header with the smallest or the largest time, its wrong value, and a window
    // that is outside of the wrong times.
    for (word, ns, window) in [(3, 1400_i64, (1000, 1100)), (4, 1500, (1600, 1700))] {
        let path = written.killed();
        let query = Query {
            from_ns: Some(window.0),
            to_ns: Some(window.1),
            ..Query::default()
        };
        let whole = answer(&path, &query).unwrap();
        assert_eq!(whole.report.verdict, Verdict::Complete);
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        let header = PRODUCERS_AT + 128 * PRODUCERS;
        file.write_all_at(&ns.to_ne_bytes(), header as u64 + 8 * word)
            .unwrap();
        let found = answer(&path, &query).unwrap();
        assert_eq!(causes(&found), ["damaged"]);
        assert_eq!(found.packets.len(), whole.packets.len());
    }
}

#[test]
fn files_that_are_cut_short_are_refused() {
    let mut written = Written::new();
    written.fill(1000, 200);
    let path = written.killed();
    let mut random = fastrand::Rng::with_seed(14);
    let length = fs::metadata(&path).unwrap().len();
    let mut cuts: Vec<u64> = (0..1000).map(|_| random.u64(..length)).collect();
    cuts.sort_unstable_by(|a, b| b.cmp(a));
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    for cut in cuts {
        file.set_len(cut).unwrap();
        let refused = Attached::open(&path).unwrap_err();
        assert!(
            matches!(refused, AttachError::Truncated { .. }),
            "{refused}"
        );
    }
}

/// With random changed bytes, the query fails, or its answer ends and can be read. If all changed
/// bytes are checked ([`is_checked`]), a complete answer has all packets.
#[test]
fn damage_is_told() {
    let mut written = Written::new();
    written.fill(1000, 600);
    for producer in &mut written.producers {
        producer.set_watermark(7000);
    }
    let path = written.killed();
    let queries = [
        (None, 6990, ""),
        (Some(5000), 5100, ""),
        (Some(4000), 6000, "ether[6:2] & 3 = 1"),
    ];
    let queries = queries.map(|(from_ns, to_ns, expression)| Query {
        expression: expression.to_owned(),
        from_ns,
        to_ns: Some(to_ns),
        ..Query::default()
    });
    let expected = queries.each_ref().map(|query| {
        let found = answer(&path, query).unwrap();
        assert_eq!(
            found.report.verdict,
            Verdict::Complete,
            "{:?}",
            found.report
        );
        found.packets
    });
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .unwrap();
    let good = fs::read(&path).unwrap();
    let mut random = fastrand::Rng::with_seed(15);
    let mut outcomes = [0; 3];
    for round in 0..600 {
        let changes = match round % 100 {
            0 => 20_000,
            _ => random.usize(1..4),
        };
        let places: Vec<usize> = (0..changes).map(|_| place(&mut random, &good)).collect();
        for place in &places {
            file.write_all_at(&[random.u8(..)], *place as u64).unwrap();
        }
        let is_checked = places.iter().all(|place| is_checked(*place, &good));
        for (query, expected) in queries.iter().zip(&expected) {
            let result = Attached::open(&path).ok().map(|_| answer(&path, query));
            outcomes[match result {
                None | Some(Err(_)) => 0,
                Some(Ok(found)) if found.report.verdict == Verdict::Complete => {
                    let same = found
                        .packets
                        .iter()
                        .zip(expected)
                        .all(|(a, b)| (a.0, a.1) == (b.0, b.1));
                    let same = same && found.packets.len() == expected.len();
                    assert!(same || !is_checked, "{places:?} {query:?}");
                    1
                }
                Some(Ok(_)) => 2,
            }] += 1;
        }
        for place in places {
            file.write_all_at(&good[place..=place], place as u64)
                .unwrap();
        }
    }
    assert!(outcomes.iter().all(|count| *count > 50), "{outcomes:?}");
}

const PRODUCERS_AT: usize = 4096;
const TABLES_AT: usize = PRODUCERS_AT + 128 * (PRODUCERS + BUCKETS);
const TABLES_BYTES: usize = 1024 * 32 + PRODUCERS * 64;
/// Upper bound on bytes of descriptors in a bucket.
const DESCRIPTORS: usize = 16 * 150;

/// A random offset in the file, more often in headers, tables and descriptors.
fn place(random: &mut fastrand::Rng, good: &[u8]) -> usize {
    let end = good.len() - BUCKET_BYTES * random.usize(..BUCKETS);
    let used = [
        0..200,
        1024..1056,
        PRODUCERS_AT..TABLES_AT,
        PRODUCERS_AT..TABLES_AT,
        TABLES_AT..TABLES_AT + TABLES_BYTES,
        end - DESCRIPTORS..end,
        0..good.len(),
    ];
    let range = random.usize(..used.len());
    random.usize(used[range].clone())
}

/// Whether a changed byte at this offset is noticed, or makes no difference. docs/dev/threats.md
/// lists the changes that are not noticed.
fn is_checked(place: usize, good: &[u8]) -> bool {
    let buckets_at = good.len() - BUCKET_BYTES * BUCKETS;
    if place >= buckets_at {
        // Checks cover only the offset and the captured length of a record.
        let from_end = BUCKET_BYTES - (place - buckets_at) % BUCKET_BYTES;
        let is_payload = from_end > DESCRIPTORS;
        return !is_payload && (2..8).contains(&((from_end - 1) % 16));
    }
    // A changed watermark or time of overwritten packets is not noticed.
    let of_producer = PRODUCERS_AT..PRODUCERS_AT + 128 * PRODUCERS;
    let is_told = of_producer.contains(&place) && [2, 5].contains(&(place % 128 / 8));
    !is_told && place < TABLES_AT
}
