//! Tests of a query's options.

use std::num::NonZeroU32;

use super::{
    blocks::{Block, INTERFACE, STATISTICS, blocks, packets},
    *,
};

#[derive(Debug, Clone, PartialEq, Eq)]
struct Stored {
    time_ns: i64,
    producer: usize,
    record: u64,
    stamp_ns: i64,
    bytes: usize,
}

fn asked(path: &Path, query: &Query) -> (QueryReport, Vec<u8>) {
    let mut out = Vec::new();
    let attached = Attached::open(path).unwrap();
    let report = query.of(attached).unwrap().write_to(&mut out).unwrap();
    (report, out)
}

fn counted(path: &Path, query: &Query) -> QueryReport {
    let attached = Attached::open(path).unwrap();
    query.of(attached).unwrap().count().unwrap()
}

fn refused(path: &Path, query: &Query) -> String {
    let attached = Attached::open(path).unwrap();
    match query.of(attached) {
        Err(QueryError::Usage(why)) => why,
        other => panic!("{other:?}"),
    }
}

/// Stores packets of random lengths, in disorder, with clock steps in between. No packet is
/// overwritten.
fn random_ring(random: &mut fastrand::Rng) -> (Written, Vec<Stored>) {
    let mut written = Written::new();
    let mut all = Vec::new();
    let mut offsets = [0; PRODUCERS];
    let mut records = [0; PRODUCERS];
    for turn in 0..random.i64(1..400) {
        let producer = random.usize(..PRODUCERS);
        if random.u32(..80) == 0 {
            offsets[producer] = random.i64(-300..300);
            let clock = 0;
            assert!(written.producers[producer].step(clock, offsets[producer]));
        }
        let time_ns = 2000 + 10 * turn + random.i64(-15..15);
        let bytes = random.usize(20..3000);
        written.store(producer, time_ns, bytes);
        all.push(Stored {
            time_ns,
            producer,
            record: records[producer],
            stamp_ns: time_ns + offsets[producer],
            bytes,
        });
        records[producer] += 1;
    }
    for producer in &mut written.producers {
        producer.set_watermark(100_000);
    }
    (written, all)
}

#[test]
fn limits_windows_and_snap_lengths_choose_as_a_list_does() {
    for seed in 0..60 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (written, mut all) = random_ring(&mut random);
        all.sort_by_key(|it| (it.time_ns, it.producer, it.record));
        let path = written.folder.path().join("ring");
        for round in 0..20 {
            let mut maybe = |range: std::ops::Range<i64>| random.bool().then(|| random.i64(range));
            let (a, b) = (maybe(1500..6500), maybe(1500..6500));
            let window = match (a, b) {
                (Some(a), Some(b)) => (Some(a.min(b)), Some(a.max(b))),
                window => window,
            };
            let limits = (maybe(0..200), maybe(0..200_000));
            let headers =
                maybe(1..200).and_then(|bytes| NonZeroU32::new(bytes.try_into().unwrap()));
            let has_limit = limits.0.is_some() || limits.1.is_some();
            let interfaces = match random.u32(..4) {
                0 => vec!["left".to_owned()],
                1 => vec!["right".to_owned(), "nowhere".to_owned()],
                _ => Vec::new(),
            };
            let query = Query {
                from_ns: window.0,
                to_ns: window.1,
                limit_packets: limits.0.map(|limit| limit as u64),
                limit_bytes: limits.1.map(|limit| limit as u64),
                newest: has_limit && random.bool(),
                headers,
                interfaces: interfaces.clone(),
                expression: ["", "len > 1000", "ether[7] & 1 = 0"][random.usize(..3)].into(),
                ..Query::default()
            };
            let length = |it: &Stored| headers.map_or(it.bytes, |n| it.bytes.min(n.get() as usize));
            let is_asked = |it: &&Stored| {
                let name = ["left", "right"][it.producer].to_owned();
                window.0.is_none_or(|from| from <= it.stamp_ns)
                    && window.1.is_none_or(|to| it.stamp_ns <= to)
                    && (interfaces.is_empty() || interfaces.contains(&name))
            };
            let matches = |it: &&Stored| match query.expression.as_str() {
                "" => true,
                "len > 1000" => it.bytes > 1000,
                _ => it.record & 1 == 0,
            };
            let inspected = all.iter().filter(is_asked).count() as u64;
            let mut expected: Vec<&Stored> = all.iter().filter(is_asked).filter(matches).collect();
            let found_all = expected.len();
            if query.newest {
                expected.reverse();
            }
            let (mut packets_left, mut bytes_left) = (
                query.limit_packets.unwrap_or(u64::MAX),
                query.limit_bytes.unwrap_or(u64::MAX),
            );
            let fits = expected.iter().take_while(|it| {
                let bytes = length(it) as u64;
                let fits = packets_left > 0 && bytes <= bytes_left;
                if fits {
                    packets_left -= 1;
                    bytes_left -= bytes;
                }
                fits
            });
            let count = fits.count();
            expected.truncate(count);
            if query.newest {
                expected.reverse();
            }
            let (report, out) = asked(&path, &query);
            let context = format!("seed {seed}, round {round}, {query:?}, {report:?}");
            let found: Vec<(i64, usize, u32, u64)> = packets(&out)
                .iter()
                .map(|it| {
                    let number = it
                        .data()
                        .first_chunk()
                        .map_or(0, |it| u64::from_be_bytes(*it));
                    (it.time_ns(), it.data().len(), it.wire_len(), number)
                })
                .collect();
            let is_short = headers.is_some_and(|bytes| bytes.get() < 8);
            let listed: Vec<_> = expected
                .iter()
                .map(|it| {
                    let number = if is_short { 0 } else { it.record };
                    (
                        it.stamp_ns,
                        length(it),
                        u32::try_from(it.bytes).unwrap(),
                        number,
                    )
                })
                .collect();
            assert_eq!(found, listed, "{context}");
            assert_eq!(report.packets, expected.len() as u64, "{context}");
            let is_cut = expected.len() < found_all;
            assert!(!is_cut || report.clipped == ["limit"], "{context}");
            assert!(has_limit || report.clipped.is_empty(), "{context}");
            assert_eq!(report.verdict, Verdict::Complete, "{context}");
            if !has_limit {
                assert_eq!(report.inspected, inspected, "{context}");
            }
            assert_eq!(
                report.empty.is_some(),
                found_all == 0 && report.clipped.is_empty()
            );
            assert_eq!(counted(&path, &query), report, "{context}");
        }
    }
}

#[test]
fn what_cannot_be_asked_for_is_told() {
    let written = Written::new();
    let path = written.folder.path().join("ring");
    let limited = Query {
        newest: true,
        limit_packets: Some(1),
        ..Query::default()
    };
    for (query, word) in [
        (
            Query {
                limit_packets: None,
                ..limited.clone()
            },
            "limit",
        ),
        (
            Query {
                follow: true,
                ..limited.clone()
            },
            "followed",
        ),
        (
            Query {
                from_ns: Some(2),
                to_ns: Some(1),
                ..Query::default()
            },
            "before it begins",
        ),
        (
            Query {
                community_id: Some("1:x".into()),
                ..Query::default()
            },
            "Community ID",
        ),
        (
            Query {
                after: vec![PacketId(0)],
                ..Query::default()
            },
            "recording",
        ),
    ] {
        let why = refused(&path, &query);
        assert!(why.contains(word), "{why}");
    }
}

/// An Ethernet frame with UDP from 10.0.0.`src` to 10.0.0.`dst`.
fn udp(src: u8, dst: u8, ports: [u16; 2]) -> Vec<u8> {
    let mut frame = vec![0; 12];
    frame.extend([
        8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, src, 10, 0, 0, dst,
    ]);
    frame.extend(ports.into_iter().flat_map(u16::to_be_bytes));
    frame.extend([0, 8, 0, 0]);
    frame
}

#[test]
fn a_community_id_finds_both_directions_and_nothing_else() {
    let mut written = Written::new();
    let frames = [
        udp(1, 2, [53, 4000]),
        udp(2, 1, [4000, 53]),
        udp(2, 1, [53, 4000]),
        udp(1, 3, [53, 4000]),
        vec![0; 60],
    ];
    for (at, frame) in (0..).zip(&frames) {
        let record = Record::whole(1000 + at, 0, frame);
        written.producers[0].store(&record).unwrap();
    }
    written.producers[0].publish();
    let parsed = retroscope_packet::parse(LinkType::ETHERNET, &frames[0]);
    let id = retroscope_packet::community_id(&parsed, 0).unwrap();
    let path = written.folder.path().join("ring");
    for (expression, stamps) in [("", &[1000, 1001][..]), ("src host 10.0.0.2", &[1001])] {
        let query = Query {
            community_id: Some(id.clone()),
            expression: expression.into(),
            ..Query::default()
        };
        let (report, out) = asked(&path, &query);
        let found: Vec<i64> = packets(&out).iter().map(Block::time_ns).collect();
        assert_eq!((found.as_slice(), report.inspected), (stamps, 5));
    }
}

#[test]
fn an_empty_answer_says_why_and_is_a_file() {
    let mut written = Written::new();
    let path = written.folder.path().join("ring");
    let all = Query::default();
    let why = |path: &Path, query: &Query| {
        let (report, out) = asked(path, query);
        let blocks = blocks(&out);
        let count = |kind| blocks.iter().filter(|block| block.kind == kind).count();
        let interfaces = if query.interfaces == ["left"] { 1 } else { 2 };
        assert_eq!((report.packets, count(INTERFACE)), (0, interfaces));
        let statistics = blocks.iter().filter(|block| block.kind == STATISTICS);
        for (number, block) in statistics.enumerate() {
            assert_eq!(block.interface() as usize, number);
            let json: serde_json::Value = serde_json::from_str(&block.comments()[0]).unwrap();
            assert_eq!(json, serde_json::to_value(&report).unwrap());
        }
        assert_eq!(count(STATISTICS), interfaces);
        report.empty.unwrap()
    };
    assert_eq!(why(&path, &all), Empty::NothingRecorded);
    written.fill(10_000, 2000); // 8 MiB of packets into a ring of 2 MiB
    for producer in &mut written.producers {
        producer.set_watermark(30_001);
    }
    let nobody = Query {
        interfaces: vec!["eth9".into()],
        ..Query::default()
    };
    let interfaces = vec!["left".to_owned(), "right".to_owned()];
    assert_eq!(why(&path, &nobody), Empty::NoInterface { interfaces });
    let later = Query {
        from_ns: Some(31_000),
        ..Query::default()
    };
    assert_eq!(why(&path, &later), Empty::NotYet { ns: 1000 });
    let before = Query {
        to_ns: Some(10_050),
        ..Query::default()
    };
    match why(&path, &before) {
        Empty::AgedOut { ns } => assert!((10_000..20_000).contains(&ns), "{ns}"),
        other => panic!("{other:?}"),
    }
    let between = Query {
        from_ns: Some(29_001),
        to_ns: Some(29_004),
        ..Query::default()
    };
    assert_eq!(why(&path, &between), Empty::NothingMatched { of: 0 });
    let nothing = Query {
        expression: "ether[6:2] = 7777".into(),
        interfaces: vec!["left".into()],
        from_ns: Some(29_000),
        ..Query::default()
    };
    assert_eq!(why(&path, &nothing), Empty::NothingMatched { of: 100 });
}

/// The answer is cancelled before it begins.
#[test]
fn a_cancelled_answer_ends() {
    let mut written = Written::new();
    written.fill(1000, 100);
    let attached = Attached::open(&written.folder.path().join("ring")).unwrap();
    let cancel = Cancel::default();
    let answer = Query::default().of(attached).unwrap().until(&cancel);
    cancel.cancel();
    let report = answer.write_to(Vec::new()).unwrap();
    assert_eq!((report.packets, report.inspected), (0, 0));
    assert_eq!(report.clipped, ["cancelled"]);
    assert_eq!(report.from, report.to);
}

/// A reservation keeps the oldest bucket of each producer in the ring, while later buckets are
/// overwritten.
#[test]
fn the_first_packet_behind_a_gap_tells_how_many_are_missing() {
    let mut written = Written::new();
    written.fill(1000, 100);
    let kept = written.ring.reserve(1000, 1100);
    written.fill(2000, 2000);
    let path = written.folder.path().join("ring");
    let query = Query {
        from_ns: Some(0),
        ..Query::default()
    };
    let (report, out) = asked(&path, &query);
    let found = packets(&out);
    let dropped: u64 = found.iter().map(Block::dropped).sum();
    assert_eq!(dropped + report.packets, 4200, "{report:?}");
    let gaps: Vec<_> = found.iter().filter(|it| it.dropped() > 0).collect();
    assert_eq!(gaps.len(), 2, "one a producer");
    drop(kept);
}

/// A caller's function gets the packets that a file would have, and can stop the answer.
#[test]
fn who_looks_sees_what_a_file_has() {
    let mut written = Written::new();
    written.fill(1000, 300);
    let path = written.folder.path().join("ring");
    let query = Query {
        headers: NonZeroU32::new(64),
        from_ns: Some(1998),
        ..Query::default()
    };
    let (report, out) = asked(&path, &query);
    let mut expected = ParsedAnswer::read(&out, report.clone()).packets;
    let look = |most: usize| {
        let mut seen = Vec::new();
        let attached = Attached::open(&path).unwrap();
        let report = query.of(attached).unwrap().each(|packet| {
            let number = u64::from_be_bytes(*packet.data.first_chunk().unwrap());
            assert_eq!((packet.data.len(), packet.wire_len), (64, 2048));
            assert_eq!(packet.link_type, LinkType::ETHERNET);
            let id = packet.id.expect("the region says when it was made");
            seen.push((
                packet.stamp_ns,
                u16::from(packet.interface == "right"),
                number,
                id,
            ));
            seen.len() < most
        });
        (report.unwrap(), seen)
    };
    let numbers = |seen: &[(i64, u16, u64, PacketId)]| {
        seen.iter().map(|it| (it.0, it.1, it.2)).collect::<Vec<_>>()
    };
    let (of_all, seen) = look(usize::MAX);
    assert_eq!(numbers(&seen), expected);
    assert_eq!(of_all, report);
    assert!(report.after.contains(&seen.last().unwrap().3));
    expected.truncate(7);
    let (of_some, seen) = look(7);
    assert_eq!((numbers(&seen), of_some.packets), (expected, 7));
    assert_eq!(of_some.clipped, ["limit"]);
}
