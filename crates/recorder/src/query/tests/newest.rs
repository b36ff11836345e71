//! Tests of queries for the newest packets. Between the count and the pass that reads, packets may
//! be overwritten, or their dumps deleted.

use std::collections::BTreeMap;

use super::{
    super::{catalog::StampRange, reading::AnswerReading, stream::AnswerStream},
    dumped::{Given, Past, Sent, dump, given, named, packets},
    *,
};

/// `between` runs after the query has found where the newest packets begin, and before the query
/// reads these packets.
fn ask(
    past: &mut Past,
    query: &Query,
    between: impl FnOnce(&mut Past),
) -> (QueryReport, Vec<Given>, Option<StampRange>) {
    let answer = past.answer(query);
    let mut out = Vec::new();
    let stream = AnswerStream::new(&mut out, "", None, answer.recording).unwrap();
    let mut reading = AnswerReading::new(answer, Some(stream));
    reading.dumped = reading.answer.dumped();
    let wanted = reading.dumped.as_ref().map(|dumped| dumped.wanted);
    let mut reading = reading.find_newest().unwrap();
    between(past);
    reading.whole_pass().unwrap();
    let report = reading.end().unwrap();
    let packets = packets(&out);
    assert_eq!(report.packets, packets.len() as u64);
    let wanted = wanted.filter(|_| report.dumps.is_some());
    (report, packets, wanted)
}

/// Packets with their counts. If several sources of a recording have a packet, the largest count.
type Bag = BTreeMap<Given, usize>;

fn bag<'g>(sources: impl IntoIterator<Item = &'g Vec<Given>>) -> Bag {
    let mut all = Bag::new();
    for source in sources {
        let mut own = Bag::new();
        source
            .iter()
            .for_each(|it| *own.entry(it.clone()).or_default() += 1);
        for (packet, count) in own {
            let known = all.entry(packet).or_default();
            *known = count.max(*known);
        }
    }
    all
}

/// The packets of two recordings.
fn sum(mut all: Bag, more: Bag) -> Bag {
    for (packet, count) in more {
        *all.entry(packet).or_default() += count;
    }
    all
}

fn count<'b>(bag: impl IntoIterator<Item = (&'b Given, &'b usize)>) -> u64 {
    bag.into_iter().map(|(_, count)| *count as u64).sum()
}

/// The current packets of the ring with stamps from 0 to `end_ns`.
fn in_ring(past: &Past, end_ns: i64) -> Vec<Given> {
    let query = Query {
        from_ns: Some(0),
        to_ns: Some(end_ns),
        ..Query::default()
    };
    past.ask(&query).1
}

/// The start of the answer's window, if the query has no start; else 0.
fn begin_ns(past: &Past, query: &Query, end_ns: i64) -> i64 {
    if query.from_ns.is_some() {
        return 0;
    }
    let open = Query {
        to_ns: Some(end_ns),
        ..Query::default()
    };
    let from = past.ask(&open).0.from.unwrap();
    crate::parse_time(&from).unwrap()
}

#[test]
fn the_newest_that_are_left_are_there_and_what_is_gone_is_told() {
    let mut outcomes = BTreeMap::<(bool, bool), u32>::new();
    // With seed 805 the window moves into a bucket that was counted.
    for seed in (0..200).chain([805]) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut past = Past::new();
        let right = random.u32(0..10);
        let send = |past: &mut Past, random: &mut fastrand::Rng, number: i64| {
            past.send(Sent {
                time_ns: 2000 + 10 * number + random.i64(-15..15),
                interface: ["left", "right"][usize::from(random.u32(..10) < right)],
                bytes: [60, 900, 2048, 3000][random.usize(..4)],
                mark: random.u16(..),
                ..Sent::default()
            });
        };
        let sent = random.i64(300..2500);
        (0..sent).for_each(|number| send(&mut past, &mut random, number));
        past.publish();
        let end_ns = 2000 + 10 * sent + 15;
        let mut sorted = past.all.clone();
        sorted.sort_by_key(|it| it.time_ns); // stable
        let mut dumps = Vec::new();
        let mut held = Vec::<(Vec<Given>, bool, bool)>::new();
        for number in 0..random.usize(..4) {
            let from_ns = random.i64(1500..20_000);
            let span = (from_ns, from_ns + random.i64(0..20_000));
            let those = || {
                sorted
                    .iter()
                    .filter(|it| (span.0..=span.1).contains(&it.time_ns))
            };
            let mut made = dump(&number.to_string(), span, "", those());
            if random.u32(..4) == 0 {
                made = made.of_others();
            }
            let is_lost = random.bool();
            let is_own = made.shelved.claims.is_some();
            held.push((
                those().map(|it| given(it, usize::MAX)).collect(),
                is_lost,
                is_own,
            ));
            dumps.push(made);
        }
        let has_dumps = !dumps.is_empty();
        past.shelve(dumps);
        let limit = [random.u64(1..60), random.u64(1..4000)][random.usize(..2)];
        let mut query = Query {
            newest: true,
            limit_packets: Some(limit),
            ..named(0, end_ns)
        };
        if random.u32(..3) == 0 {
            query.from_ns = None;
        }
        let ring_before = in_ring(&past, end_ns);
        let begun_ns = begin_ns(&past, &query, end_ns);
        let more = random.i64(0..1500) * i64::from(random.bool());
        let lost = held.iter().enumerate().filter(|(_, held)| held.1);
        let lost: Vec<String> = lost.map(|(number, _)| number.to_string()).collect();
        let (report, found, wanted) = ask(&mut past, &query, |past| {
            lost.iter().for_each(|id| past.delete(id));
            (0..more).for_each(|number| send(past, &mut random, sent + 10 + number));
            past.publish();
        });
        let what = format!("seed {seed}: {query:?} {report:?}");
        // The packets of each dump with stamps in `wanted`. `is_left`: without the deleted dumps.
        let dumped = |is_left: bool, is_own: bool| -> Vec<Vec<Given>> {
            let those = held
                .iter()
                .filter(|held| !(is_left && held.1) && held.2 == is_own);
            let (from_ns, to_ns) = wanted.unwrap_or((0, -1));
            let is_wanted = |it: &&Given| (from_ns..=to_ns).contains(&it.0);
            those
                .map(|held| held.0.iter().filter(is_wanted).cloned().collect())
                .collect()
        };
        let all = |is_left: bool, ring: &Vec<Given>| {
            let own = bag(dumped(is_left, true).iter().chain([ring]));
            sum(own, bag(&dumped(is_left, false)))
        };
        let before = all(false, &ring_before);
        let ring_after = in_ring(&past, end_ns);
        let after = all(true, &ring_after);
        let answer = bag([&found]);
        assert!(found.is_sorted_by_key(|it| it.0), "{what}");
        assert!(
            answer.iter().all(|(it, count)| after[it] >= *count),
            "{what}"
        );
        assert!(report.packets <= limit, "{what}");
        // The stamp of the oldest of the newest packets, at the time of the count.
        let newest = before
            .iter()
            .rev()
            .flat_map(|(it, count)| vec![it.0; *count]);
        let first_ns = newest.take(usize::try_from(limit).unwrap()).last().unwrap();
        // Without a start, the start of the window may move past overwritten packets.
        let moved_ns = match query.from_ns {
            None => crate::parse_time(report.from.as_deref().unwrap()).unwrap(),
            Some(_) => 0,
        };
        for (it, count) in &after {
            let is_sure = it.0 > first_ns && it.0 >= moved_ns;
            assert!(!is_sure || answer.get(it) == Some(count), "{it:?} {what}");
        }
        let is_newest = |(it, _): &(&Given, &usize)| it.0 > first_ns && it.0 >= moved_ns;
        let gone = count(before.iter().filter(is_newest)) - count(after.iter().filter(is_newest));
        let told: Vec<Option<u64>> = report.missing.iter().map(|it| it.at_most).collect();
        let is_told = told.contains(&None) || told.iter().flatten().sum::<u64>() >= gone;
        assert!(gone == 0 || !told.is_empty() && is_told, "{gone} {what}");
        if gone == 0 && lost.is_empty() && more == 0 {
            let asked = before.iter().filter(|(it, _)| it.0 >= begun_ns);
            assert_eq!(report.packets, limit.min(count(asked)), "{what}");
        }
        *outcomes
            .entry((gone > 0, wanted.is_some() && has_dumps))
            .or_default() += 1;
    }
    assert!(
        outcomes.len() == 4 && outcomes.values().all(|count| *count > 5),
        "{outcomes:?}"
    );
}
