//! Tests of packets that left the ring and are read from random dumps: answers are compared with
//! lists.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroU32,
};

use super::{
    super::catalog::{StampRange, uncovered},
    dumped::{EXPRESSIONS, Given, Past, Sent, dump, given, named},
    *,
};

/// Some packets are alike, and the ring may be overwritten.
#[test]
fn answers_are_what_lists_say() {
    let mut outcomes = BTreeMap::<(bool, bool), u32>::new();
    for seed in 0..40 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut past = Past::new();
        let right = random.u32(1..10);
        for number in 0..random.i64(500..2500) {
            let sent = Sent {
                time_ns: 2000 + 10 * number + random.i64(-15..15),
                interface: ["left", "right"][usize::from(random.u32(..10) < right)],
                bytes: [60, 900, 2048, 3000][random.usize(..4)],
                mark: random.u16(..),
                ..Sent::default()
            };
            let copies = if random.u32(..20) == 0 { 2 } else { 1 };
            (0..copies).for_each(|_| past.send(sent.clone()));
        }
        past.publish();
        let ring = Query {
            from_ns: Some(0),
            to_ns: Some(100_000),
            ..Query::default()
        };
        let (ring, in_ring) = past.ask(&ring);
        let evicted = ring
            .missing
            .iter()
            .any(|missing| missing.cause == "evicted");
        let evicted_to = |name: &str| {
            let own: Vec<&Sent> = past.all.iter().filter(|it| it.interface == name).collect();
            let kept = in_ring.iter().filter(|it| it.1 == name).count();
            own[..own.len() - kept].iter().map(|it| it.time_ns).max()
        };
        let gap_ns = evicted_to("left").max(evicted_to("right"));
        assert_eq!(evicted, gap_ns.is_some());
        let mut sorted = past.all.clone();
        sorted.sort_by_key(|it| it.time_ns); // stable
        let mut dumps = Vec::new();
        // The packets, the expression and the sure ranges of each dump that was not deleted.
        let mut has = Vec::new();
        for number in 0..random.usize(..8) {
            let from_ns = random.i64(1500..25_000);
            let span = (from_ns, from_ns + random.i64(0..15_000));
            let expression = EXPRESSIONS[random.usize(..3) * random.usize(..2)];
            let lost_ns = random.i64(span.0..=span.1);
            let lost = (lost_ns, lost_ns + random.i64(0..3000));
            let lost: Vec<StampRange> = Vec::from_iter((random.u32(..4) == 0).then_some(lost));
            let claims = uncovered(span, &lost);
            let is_there = |it: &&Sent| {
                let has = |(from_ns, to_ns): &StampRange| (*from_ns..=*to_ns).contains(&it.time_ns);
                claims.iter().any(has) && it.is_taken(expression)
            };
            let packets: Vec<&Sent> = sorted.iter().filter(is_there).collect();
            let mut made = dump(
                &number.to_string(),
                span,
                expression,
                packets.iter().copied(),
            );
            made.shelved.claims = Some(claims.clone());
            made.is_deleted = random.u32(..6) == 0;
            if random.u32(..6) == 0 {
                made = made.of_others();
            }
            if !made.is_deleted {
                let packets: Vec<Sent> = packets.into_iter().cloned().collect();
                let is_own = made.shelved.claims.is_some();
                has.push((packets, expression, is_own.then_some(claims)));
            }
            dumps.push(made);
        }
        past.shelve(dumps);
        for _ in 0..12 {
            let from_ns = random.i64(1500..20_000);
            let to_ns = from_ns + random.i64(0..25_000);
            let expression = EXPRESSIONS[random.usize(..3)];
            let mut maybe =
                |range: std::ops::Range<u64>| (random.u32(..3) == 0).then(|| random.u64(range));
            let (limit_packets, limit_bytes) = (maybe(1..800), maybe(60..400_000));
            let headers = maybe(1..1000).and_then(|it| NonZeroU32::new(u32::try_from(it).unwrap()));
            let has_limit = limit_packets.or(limit_bytes).is_some();
            let query = Query {
                expression: expression.to_owned(),
                limit_packets,
                limit_bytes,
                newest: has_limit && random.bool(),
                headers,
                ..named(from_ns, to_ns)
            };
            let snaplen = headers.map_or(usize::MAX, |it| it.get() as usize);
            let is_asked =
                |it: &&Sent| (from_ns..=to_ns).contains(&it.time_ns) && it.is_taken(expression);
            let in_ring: Vec<Sent> = ["left", "right"]
                .iter()
                .flat_map(|name| {
                    let own: Vec<&Sent> =
                        past.all.iter().filter(|it| it.interface == *name).collect();
                    let kept = in_ring.iter().filter(|it| it.1 == *name).count();
                    own[own.len() - kept..]
                        .iter()
                        .copied()
                        .cloned()
                        .collect::<Vec<_>>()
                })
                .collect();
            // Packets of dumps count up to the latest packet that the ring evicted. If the ring
            // evicted nothing, packets from before the ring count.
            let first_ns = in_ring.iter().map(|it| it.time_ns).min().unwrap();
            let wanted_to_ns = gap_ns.unwrap_or(first_ns - 1);
            let of_dumps = has.iter();
            let of_dumps =
                of_dumps.map(|(packets, _, claims)| (packets, claims.is_some(), wanted_to_ns));
            // Packets of this recording and of the other recording, each once.
            let mut each = BTreeSet::new();
            for (packets, is_own, to_ns) in of_dumps.chain([(&in_ring, true, i64::MAX)]) {
                let asked = packets.iter().filter(is_asked);
                let asked = asked.filter(|it| it.time_ns <= to_ns);
                each.extend(asked.map(|it| (is_own, it)));
            }
            let expected = each.iter().map(|(_, sent)| given(sent, snaplen));
            let mut expected: Vec<Given> = expected.collect();
            expected.sort();
            let (report, mut found) = past.ask(&query);
            let what = format!("seed {seed}: {query:?} {report:?}");
            assert!(found.is_sorted_by_key(|it| it.0), "{what}");
            let total = expected.len();
            if query.newest || report.clipped.contains(&"limit") {
                // If packets have equal stamps, the limit may choose other packets than the list.
                if query.newest {
                    expected.reverse();
                    found.reverse();
                }
                let mut bytes = 0;
                let fits = |it: &&Given| {
                    bytes += it.3 as u64;
                    limit_bytes.is_none_or(|limit| bytes <= limit)
                };
                let count = found.iter().take_while(fits).count();
                assert_eq!(count, found.len(), "{what}");
                assert!(
                    limit_packets.is_none_or(|limit| count as u64 <= limit),
                    "{what}"
                );
                let stamps =
                    |all: &[Given]| all.iter().map(|it| it.0).take(count).collect::<Vec<_>>();
                assert_eq!(stamps(&found), stamps(&expected), "{what}");
                let is_full = limit_packets == Some(count as u64);
                assert!(is_full || limit_bytes.is_some() || count == total, "{what}");
            } else {
                found.sort();
                assert_eq!(found, expected, "{what}");
            }
            let whole = past.all.iter().filter(is_asked).count() as u64;
            let is_clipped = !report.clipped.is_empty();
            let lacks = report.missing.iter().any(|it| it.cause == "evicted");
            assert!(lacks || is_clipped || report.packets >= whole, "{what}");
            let sure: Vec<StampRange> = has
                .iter()
                .filter(|(_, taken, _)| taken.is_empty() || *taken == expression)
                .flat_map(|(_, _, claims)| claims.clone().unwrap_or_default())
                .collect();
            let gap = gap_ns
                .filter(|gap_ns| from_ns <= *gap_ns)
                .map(|ns| (from_ns, ns.min(to_ns)));
            let left = gap.map(|gap| uncovered(gap, &sure)).unwrap_or_default();
            if !is_clipped {
                assert_eq!(lacks, !left.is_empty(), "{what}");
            }
            if lacks
                && !is_clipped
                && let Some(dumps) = &report.dumps
            {
                let left = left.iter().map(|(from, to)| [rfc3339(*from), rfc3339(*to)]);
                assert_eq!(dumps.uncovered, left.collect::<Vec<_>>(), "{what}");
            }
            let from_dumps = report.dumps.as_ref().is_some_and(|it| it.packets > 0);
            *outcomes.entry((lacks, from_dumps)).or_default() += 1;
        }
    }
    assert!(
        outcomes.len() == 4 && outcomes.values().all(|count| *count > 10),
        "{outcomes:?}"
    );
}

/// Many dumps of one time range, each with packets that no other dump has.
#[test]
fn many_dumps_of_one_time_are_all_read() {
    const DUMPS: usize = 120;
    let mut past = Past::new();
    past.fill(3000);
    let window = (1000, 20_000);
    let all: Vec<Sent> = past.those(window).cloned().collect();
    let dumps = (0..DUMPS).map(|number| {
        let own = all.iter().skip(number).step_by(DUMPS);
        dump(&format!("{number:03}"), window, "", own)
    });
    past.shelve(dumps.collect());
    let (report, packets) = past.ask(&named(window.0, window.1));
    let dumps = report.dumps.unwrap();
    let errors: Vec<_> = dumps
        .dumps
        .iter()
        .filter_map(|it| it.error.as_ref())
        .collect();
    assert_eq!((dumps.failed, errors), (0, vec![]));
    assert_eq!(dumps.read, DUMPS as u64);
    let expected: Vec<_> = all.iter().map(|it| given(it, usize::MAX)).collect();
    assert_eq!(packets, expected);
}

/// There are more dumps of one time than a query may have open.
#[test]
fn too_many_dumps_of_one_time_are_told() {
    let mut past = Past::new();
    past.fill(3000);
    let window = (1000, 20_000);
    let last = past.those((19_980, 20_000));
    let last: Vec<Sent> = last.cloned().collect();
    let dumps = (0..600).map(|number| dump(&format!("{number:03}"), window, "", &last));
    past.shelve(dumps.collect());
    let (report, _) = past.ask(&named(window.0, window.1));
    let dumps = report.dumps.as_ref().unwrap();
    // Memory limits the open dumps or, with few descriptors, the descriptors do.
    assert!((88..=536).contains(&dumps.failed), "{}", dumps.failed);
    assert_eq!((dumps.read + dumps.failed, dumps.packets), (600, 3));
    let why = report.reasons();
    assert!(why.contains(&format!("{} ", dumps.failed)), "{why}");
}
