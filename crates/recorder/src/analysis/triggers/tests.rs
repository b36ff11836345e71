//! Rules that run together match the same packets as each rule alone.

use retroscope_filter::Aux;

use super::*;
use crate::tests::rig::udp;

fn packets() -> Vec<Vec<u8>> {
    let mut packets: Vec<_> = (0..60_u16)
        .map(|n| udp(n % 7, 20 + n % 11, u32::from(n)))
        .collect();
    packets.extend((10..14).map(|length| udp(1, 20, 0)[..length * 2].to_vec()));
    packets
}

fn triggers(texts: &[String], known: &[LinkType]) -> Triggers {
    let link_types = LinkTypes::new(known, &Vec::new);
    let native = Arc::new(NativeCode::new());
    Triggers::new(texts, &link_types, true, &native).unwrap()
}

/// The hits among [`packets`] of raw IP, as (packet, rule).
fn hits(triggers: &mut Triggers) -> Vec<(usize, usize)> {
    let packets = packets();
    let frames: Vec<_> = packets
        .iter()
        .map(|data| FilterFrame::new(data, 32, Aux::default()))
        .collect();
    let any = triggers.find(LinkType::RAW, 0, &frames);
    let hits = std::mem::take(&mut triggers.hits);
    let set = hits.iter().fold(0, |set, hit| set | 1 << hit.frame);
    assert_eq!(any, set);
    let number = |hit: &RuleHit| triggers.rules[hit.rule].number;
    let pairs = hits.iter().map(|hit| (hit.frame, number(hit))).collect();
    triggers.hits = hits;
    pairs
}

/// The matches of each rule by itself.
fn one_by_one(texts: &[String]) -> Vec<(usize, usize)> {
    let link_types = LinkTypes::new(&[LinkType::RAW], &Vec::new);
    let mut expected = Vec::new();
    for (rule, text) in texts.iter().enumerate() {
        let filter = Filter::plain(text).unwrap();
        let mut prepared = PreparedFilter::new(filter, mode(true));
        prepared.check(&link_types).unwrap();
        for (index, data) in packets().iter().enumerate() {
            let frames = [FilterFrame::new(data, 32, Aux::default())];
            if prepared.matches_many(LinkType::RAW, 0, &frames) == 1 {
                expected.push((index, rule));
            }
        }
    }
    expected.sort_unstable();
    expected
}

#[test]
fn a_few_plain_rules_run_as_one_function_and_hit_as_each_alone() {
    let plain = ["udp port 20", "not udp src port 3", "udp[11] > 50", "udp"];
    let mut plain: Vec<String> = plain.iter().map(ToString::to_string).collect();
    plain.extend(
        (20..)
            .take(FEW_TOGETHER - 4)
            .map(|port| format!("dst port {port} or src port 3")),
    );
    for count in [1, 2, 3, FEW + 1, FEW_TOGETHER] {
        let rules = plain[..count].to_vec();
        let mut triggers = triggers(&rules, &[LinkType::RAW]);
        let joints = triggers.joints.iter();
        let joined: Vec<bool> = joints.map(|(_, joint)| joint.native().is_some()).collect();
        assert!(triggers.is_direct);
        match count {
            1 => assert!(joined.is_empty()),
            _ => assert_eq!(joined, [true]),
        }
        let found = hits(&mut triggers);
        assert_eq!(found, one_by_one(&rules));
        assert!((0..rules.len()).all(|rule| found.iter().any(|hit| hit.1 == rule)));
    }
    // Payload terms have no program.
    assert!(
        triggers(&texts()[..FEW], &[LinkType::RAW])
            .joints
            .is_empty()
    );
}

fn texts() -> Vec<String> {
    let mut texts = vec![
        "udp port 20".to_owned(),
        "udp and payload contains \"\\x00\\x07\"".to_owned(),
        "not udp src port 3".to_owned(),
        "udp[11] > 50 or ip[8] = 1".to_owned(),
    ];
    let hosts: Vec<_> = (0..100).map(|n| format!("host 10.1.{n}.1")).collect();
    texts.push(format!("{} or src port 5", hosts.join(" or ")));
    texts.extend((20..60).map(|port| format!("udp dst port {port}")));
    texts
}

#[test]
fn few_and_many_rules_hit_as_each_alone() {
    let texts = texts();
    for rules in [&texts[..0], &texts[..1], &texts[..FEW], &texts[..5], &texts] {
        let mut triggers = triggers(rules, &[LinkType::RAW]);
        assert_eq!(triggers.is_direct, rules.len() <= FEW);
        assert_eq!(
            hits(&mut triggers),
            one_by_one(rules),
            "{} rules",
            rules.len()
        );
        assert!(triggers.take_notices().is_empty());
    }
    // Not vacuous: each of the first 5 rules matches packets.
    let of_all = one_by_one(&texts);
    assert!((0..5).all(|rule| of_all.iter().any(|hit| hit.1 == rule)));
}

#[test]
fn rules_that_change_hit_as_each_alone() {
    let texts = texts();
    let known = LinkTypes::new(&[LinkType::RAW], &Vec::new);
    let expected = one_by_one(&texts);
    for (at_start, seed) in [(0, 1), (2, 2), (FEW + 3, 3)] {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut triggers = triggers(&texts[..at_start], &[LinkType::RAW]);
        let mut there: Vec<(usize, bool)> = (0..at_start).map(|n| (n, true)).collect();
        let mut next = at_start;
        for _ in 0..200 {
            let any = (!there.is_empty()).then(|| random.usize(..there.len()));
            match (random.u8(..3), any) {
                (0, _) if next < texts.len() => {
                    let mut prepared =
                        PreparedFilter::new(Filter::resolved(&texts[next]).unwrap(), mode(true));
                    prepared.check(&known).unwrap();
                    triggers.shared.add(next, &mut prepared).unwrap();
                    let rule = Rule {
                        number: next,
                        text: texts[next].clone(),
                        prepared,
                        hits: Arc::default(),
                        is_enabled: true,
                        scan: None,
                    };
                    let added = RuleChange::Add(Box::new(rule), None);
                    triggers.change(vec![added]);
                    there.push((next, true));
                    next += 1;
                }
                (1, Some(place)) => {
                    let (number, _) = there.remove(place);
                    triggers.change(vec![RuleChange::Remove(number)]);
                    triggers.shared.remove(&[number]);
                }
                (_, Some(place)) => {
                    there[place].1 ^= true;
                    let (number, is_enabled) = there[place];
                    let change = RuleChange::Enable(number, is_enabled);
                    triggers.change(vec![change]);
                }
                _ => {}
            }
            // No refresh in between: a change must apply to the next packet.
            let is_on = |(_, rule): &&(usize, usize)| there.contains(&(*rule, true));
            let now: Vec<_> = expected.iter().filter(is_on).copied().collect();
            assert_eq!(hits(&mut triggers), now, "seed {seed}: {there:?}");
        }
        assert!(next > at_start + 10);
    }
}

#[test]
fn link_types_that_turn_up_late_are_made_ready_by_others() {
    let texts = texts();
    for rules in [&texts[..FEW], &texts] {
        let mut triggers = triggers(rules, &[LinkType::ETHERNET]);
        triggers.shared.clone().add_link_type(LinkType::RAW);
        triggers.refresh();
        assert!(triggers.take_notices().is_empty());
        assert_eq!(
            hits(&mut triggers),
            one_by_one(rules),
            "{} rules",
            rules.len()
        );
    }
}

#[test]
fn rules_that_do_not_apply_to_a_late_link_type_are_told_once() {
    let nothing = LinkType(147);
    for rules in [1, FEW + 2] {
        let texts = vec!["icmp".to_owned(); rules];
        let mut triggers = triggers(&texts, &[LinkType::ETHERNET]);
        assert!(triggers.take_notices().is_empty());
        triggers.shared.add_link_type(nothing);
        let notices = triggers.take_notices();
        assert_eq!(notices.len(), rules, "{notices:?}");
        assert!(
            notices[0].contains("'icmp'") && notices[0].contains(" 147"),
            "{notices:?}"
        );
        triggers.shared.add_link_type(nothing);
        assert!(triggers.take_notices().is_empty());
    }
}

#[test]
fn rules_that_apply_to_some_link_types_only_are_told_once() {
    let texts = ["ether src 00:00:00:00:00:01".to_owned()];
    let known = [LinkType::RAW, LinkType::ETHERNET];
    let mut one = triggers(&texts, &known);
    let notices = one.take_notices();
    assert_eq!(notices.len(), 1, "{notices:?}");
    assert!(notices[0].contains(" 101"), "{notices:?}");
    assert!(one.take_notices().is_empty());
    let many: Vec<_> = std::iter::repeat_n(texts[0].clone(), FEW + 1).collect();
    assert_eq!(triggers(&many, &known).take_notices().len(), FEW + 1);
    let link_types = LinkTypes::new(&[LinkType::RAW], &Vec::new);
    for rules in [&texts[..], &many] {
        let native = Arc::new(NativeCode::new());
        assert!(Triggers::new(rules, &link_types, true, &native).is_err());
        let more = || vec![LinkType::ETHERNET];
        let link_types = LinkTypes::new(&[LinkType::RAW], &more);
        assert!(Triggers::new(rules, &link_types, true, &native).is_ok());
    }
}
