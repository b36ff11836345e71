//! Insertions and removals of rules, between batches of packets and while other threads match
//! packets.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread::ScopedJoinHandle,
};

use retroscope_filter::{
    Aux, Filter, FilterFrame, FilterMode, Matches, RuleId, RuleReader, RuleSet,
};
use retroscope_packet::LinkType;

use super::{Reference, compare, packets, random_packets, rules, rules_in};

/// Copies of the rules whose element in `set` is true.
fn present(references: &[Reference], set: &[bool]) -> Vec<Reference> {
    let present = references.iter().zip(set).filter(|(_, is_in)| **is_in);
    present
        .map(|(reference, _)| Reference {
            id: reference.id,
            text: reference.text.clone(),
            programs: reference.programs.clone(),
        })
        .collect()
}

#[test]
fn after_any_updates_the_rules_there_are_match_and_no_others() {
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let link_type = LinkType::ETHERNET;
    let mut set = RuleSet::new(FilterMode::Savefile);
    set.add_link_type(link_type);
    let mut references: Vec<Reference> = (0..120)
        .map(|id| {
            Reference::new(
                id,
                rules::rule(&mut random),
                link_type,
                FilterMode::Savefile,
            )
        })
        .collect();
    let mut is_in = vec![false; references.len()];
    let mut reader = set.reader();
    let packets = random_packets(&mut random, link_type, 320);
    for round in 0..40 {
        for _ in 0..random.usize(1..40) {
            let at = random.usize(..references.len());
            let id = references[at].id;
            match random.u8(..3) {
                0 => {
                    assert_eq!(set.remove(id), is_in[at], "seed {seed}, round {round}");
                    is_in[at] = false;
                }
                1 => {
                    // A new text under the same identifier.
                    let text = rules::rule(&mut random);
                    references[at] = Reference::new(id.0, text, link_type, FilterMode::Savefile);
                    set.remove(id);
                    is_in[at] = insert(&mut set, &references[at]);
                }
                _ => is_in[at] = insert(&mut set, &references[at]),
            }
        }
        // Fused programs must give the same results with and without machine code.
        for joint in set.take_fused() {
            if random.bool() {
                // If the compilation fails, the programs run one by one, with the same results.
                let _ = joint.make_native();
            }
        }
        assert_eq!(rules_in(&set), is_in.iter().filter(|is_in| **is_in).count());
        reader.refresh();
        assert!(!reader.refresh(), "nothing changed since");
        compare(
            &mut reader,
            link_type,
            &present(&references, &is_in),
            &packets,
            seed,
        );
    }
    for reference in &references {
        set.remove(reference.id);
    }
    reader.refresh();
    assert_eq!(rules_in(&set), 0);
    assert_eq!(compare(&mut reader, link_type, &[], &packets, seed), 0);
    assert_eq!(
        set.table_bytes(),
        {
            let mut other = RuleSet::new(FilterMode::Savefile);
            other.add_link_type(link_type);
            let rules =
                (0..120).map(|id| (RuleId(id), Filter::plain("tcp").expect("an expression")));
            assert!(other.insert_many(rules).is_empty());
            assert!((0..120).all(|id| other.remove(RuleId(id))));
            other.table_bytes()
        },
        "tables shrink to what they are without rules"
    );
}

#[test]
fn rules_without_look_ups_are_put_together() {
    let mut set = RuleSet::new(FilterMode::Savefile);
    set.add_link_type(LinkType::ETHERNET);
    let texts = ["ip[8] < 5", "not port 22", "udp port 53", "greater 1000"];
    let filters = texts.map(|text| Filter::plain(text).expect("an expression"));
    assert!(set.insert_many((0..).map(RuleId).zip(&filters)).is_empty());
    let joints = set.take_fused();
    let programs: Vec<usize> = joints.iter().map(|one| one.programs().len()).collect();
    assert_eq!(programs, [3]);
    joints[0].make_native().expect("x86-64 Linux");
    assert!(set.remove(RuleId(3)));
    assert!(set.take_fused().is_empty(), "it is masked out");
}

fn insert(set: &mut RuleSet, reference: &Reference) -> bool {
    let filter = Filter::plain(&reference.text).expect("an expression");
    set.insert(reference.id, &filter).is_ok()
}

#[test]
fn a_rule_that_stays_is_found_while_others_come_and_go() {
    const ROUNDS: u64 = 300;
    let kept = [
        "host 10.0.0.1",
        "tcp port 80",
        "net 10.0.0.0/8",
        "ip[8] < 5",
    ];
    let mut random = fastrand::Rng::new();
    let link_type = LinkType::ETHERNET;
    let mut set = RuleSet::new(FilterMode::Savefile);
    set.add_link_type(link_type);
    for (id, text) in (0..).zip(kept) {
        let filter = Filter::plain(text).expect("an expression");
        let _placed = set.insert(RuleId(id), &filter).expect("it compiles");
    }
    let references: Vec<Reference> = (0..)
        .zip(kept)
        .map(|(id, text)| Reference::new(id, text.to_owned(), link_type, FilterMode::Savefile))
        .collect();
    let packets: Vec<(Vec<u8>, u32)> = (0..RuleReader::MANY)
        .map(|_| packets::packet(&mut random, link_type))
        .collect();
    let frames: Vec<FilterFrame<'_>> = packets
        .iter()
        .map(|(data, wire_len)| FilterFrame::new(data, *wire_len, Aux::default()))
        .collect();
    let expected: Vec<(usize, u64, bool)> = frames
        .iter()
        .enumerate()
        .flat_map(|(number, frame)| {
            references
                .iter()
                .map(move |one| (number, one.id.0, one.matches(frame)[0]))
        })
        .collect();
    let (is_over, batches) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let start = |_| {
            let mut reader = set.reader();
            let (frames, expected, is_over, batches) = (&frames, &expected, &is_over, &batches);
            scope.spawn(move || {
                let mut matches = Matches::default();
                let mut versions = 0;
                while !is_over.load(Ordering::Relaxed) || versions == 0 {
                    versions += usize::from(reader.refresh());
                    reader.match_many(link_type, 0, frames, &mut matches);
                    let found: Vec<(usize, u64)> = matches
                        .iter()
                        .filter(|(_, id, _)| id.0 < 4)
                        .map(|(number, id, _)| (number, id.0))
                        .collect();
                    for (number, id, matches) in expected {
                        assert_eq!(found.contains(&(*number, *id)), *matches);
                    }
                    batches.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        let readers = [0, 1].map(start);
        // The writer stops after at least 300 rounds and 100 batches of both readers together, or
        // if a reader fails.
        let mut round = 0;
        let failed = || readers.iter().any(ScopedJoinHandle::is_finished);
        while !failed() && (round < ROUNDS || batches.load(Ordering::Relaxed) < 100) {
            let id = RuleId(100 + round % 50);
            if round % 100 < 50 {
                let text = rules::rule(&mut random);
                let _ = set.insert(id, &Filter::plain(&text).expect("an expression"));
            } else {
                set.remove(id);
            }
            round += 1;
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn ten_thousand_rules_of_a_kind_match_as_one() {
    let mut random = fastrand::Rng::new();
    let link_type = LinkType::ETHERNET;
    let mut set = RuleSet::new(FilterMode::Savefile);
    set.add_link_type(link_type);
    // All rules require the same host. The set looks up 160 rules by the host, and the other rules
    // by 1,024 nets. In both cases the other primitive is compared after the look-up.
    let text = |id: u64| {
        format!(
            "host 10.0.0.1 and net {}.{}.0.0/16",
            10 + id / 256 % 4,
            id % 256
        )
    };
    let rules =
        (0..10_000).map(|id| (RuleId(id), Filter::plain(&text(id)).expect("an expression")));
    assert!(set.insert_many(rules).is_empty());
    let mut reader = set.reader();
    let mut matches = Matches::default();
    let mut count = 0;
    for _ in 0..20 {
        let (data, wire_len) = packets::packet(&mut random, link_type);
        let frame = [FilterFrame::new(&data, wire_len, Aux::default())];
        reader.match_many(link_type, 0, &frame, &mut matches);
        for id in (0..10_000).step_by(97) {
            let rule = Reference::new(id, text(id), link_type, FilterMode::Savefile);
            let is_found = matches.iter().any(|(_, found, _)| found == RuleId(id));
            assert!(rule.matches(&frame[0]).contains(&is_found), "{}", rule.text);
            count += usize::from(is_found);
        }
    }
    assert!((0..10_000).all(|id| set.remove(RuleId(id))));
    assert!(rules_in(&set) == 0 && count < 20 * 104);
}
