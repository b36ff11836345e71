//! Compares the matches of a rule set with the results of each rule's own program.

mod packets;
mod rules;
mod terms;
mod updates;

use retroscope_filter::{
    Aux, Certainty, Filter, FilterError, FilterFrame, FilterMode, LinkContext, Matches, Program,
    RuleId, RulePlacement, RuleReader, RuleSet, compile,
};
use retroscope_packet::{LinkType, parse};

/// Link types whose headers look-ups read, and PPP, for which every rule needs its program.
const LINK_TYPES: [LinkType; 10] = [
    LinkType::ETHERNET,
    LinkType::RAW,
    LinkType::RAW_BSD,
    LinkType::IPV4,
    LinkType::IPV6,
    LinkType::LINUX_SLL,
    LinkType::LINUX_SLL2,
    LinkType::NULL,
    LinkType::LOOP,
    LinkType::PPP,
];

fn context(link_type: LinkType, mode: FilterMode, optimize: bool) -> LinkContext {
    LinkContext {
        link_type,
        snaplen: 262_144,
        mode,
        optimize,
    }
}

/// A rule with its own programs, with and without libpcap's optimizer.
struct Reference {
    id: RuleId,
    text: String,
    programs: Result<[Program; 2], FilterError>,
}

impl Reference {
    fn new(id: u64, text: String, link_type: LinkType, mode: FilterMode) -> Self {
        let programs =
            [true, false].map(|optimize| compile(&text, context(link_type, mode, optimize)));
        let [optimized, plain] = programs;
        Self {
            id: RuleId(id),
            text,
            programs: optimized.and_then(|optimized| Ok([optimized, plain?])),
        }
    }

    /// Whether the frame matches: with the optimizer, and without. The results can differ, because
    /// the optimizer may omit a load beyond the captured bytes.
    fn matches(&self, frame: &FilterFrame<'_>) -> [bool; 2] {
        match &self.programs {
            Ok(programs) => programs
                .each_ref()
                .map(|program| program.run(frame.data(), frame.wire_len(), frame.aux()) != 0),
            Err(_) => [false; 2],
        }
    }
}

fn random_packets(
    random: &mut fastrand::Rng,
    link_type: LinkType,
    count: usize,
) -> Vec<(Vec<u8>, u32)> {
    (0..count)
        .map(|_| packets::packet(random, link_type))
        .collect()
}

/// Compares a reader's matches with the rules' own programs. Returns the number of matches.
fn compare(
    reader: &mut RuleReader,
    link_type: LinkType,
    rules: &[Reference],
    packets: &[(Vec<u8>, u32)],
    seed: u64,
) -> usize {
    let mut matches = Matches::default();
    let mut count = 0;
    for some in packets.chunks(RuleReader::MANY) {
        let frames: Vec<FilterFrame<'_>> = some
            .iter()
            .map(|(data, wire_len)| FilterFrame::new(data, *wire_len, Aux::default()))
            .collect();
        reader.match_many(link_type, 0, &frames, &mut matches);
        let found: Vec<(usize, RuleId, Certainty)> = matches.iter().collect();
        assert!(
            found.is_sorted_by_key(|(frame, id, _)| (*frame, *id)),
            "in order, each once"
        );
        for (number, frame) in frames.iter().enumerate() {
            let mut any = false;
            for rule in rules {
                let is_found = found
                    .binary_search_by_key(&(number, rule.id), |(frame, id, _)| (*frame, *id))
                    .is_ok();
                any |= is_found;
                let expected = rule.matches(frame);
                assert!(
                    expected.contains(&is_found),
                    "seed {seed}, link type {}: '{}' is {}, with {} bytes of {:02x?}",
                    link_type.0,
                    rule.text,
                    if is_found {
                        "found and should not be"
                    } else {
                        "not found"
                    },
                    frame.data().len(),
                    frame.data(),
                );
                count += usize::from(is_found);
            }
            assert_eq!(matches.iter().any(|(frame, ..)| frame == number), any);
        }
    }
    count
}

/// A set of these rules. Fails if the set rejects a rule that libpcap compiles, or rejects a rule
/// with an error that differs from libpcap's. With `prepare`, the filters are prepared before.
fn set_of(rules: &[Reference], link_type: LinkType, mode: FilterMode, prepare: bool) -> RuleSet {
    let mut set = RuleSet::new(mode);
    set.add_link_type(link_type);
    for rule in rules {
        let mut filter =
            Filter::plain(&rule.text).unwrap_or_else(|error| panic!("{}", error.render()));
        if prepare {
            _ = filter.prepare(context(link_type, mode, true));
        }
        match (set.insert(rule.id, &filter), &rule.programs) {
            (Err(error), Err(expected)) => assert_eq!(error.to_string(), expected.to_string()),
            (Err(error), Ok(_)) => panic!("{}", error.render()),
            (Ok(_), _) => {}
        }
    }
    set
}

#[test]
fn every_rule_is_found_where_its_own_program_matches() {
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    for link_type in LINK_TYPES {
        for mode in [FilterMode::Savefile, FilterMode::Live] {
            let rules: Vec<Reference> = (0..250)
                .map(|id| Reference::new(id, rules::rule(&mut random), link_type, mode))
                .collect();
            let packets = random_packets(&mut random, link_type, 640);
            for prepare in [false, true] {
                let set = set_of(&rules, link_type, mode, prepare);
                let count = compare(&mut set.reader(), link_type, &rules, &packets, seed);
                // Most seeds give 3,000 matches or more; one seed gave 1,730.
                assert!(
                    count > 1000,
                    "seed {seed}, link type {}: {count} matches",
                    link_type.0
                );
            }
        }
    }
}

/// Captures with many flows, tunnels, tags, fragments and cut packets.
const CAPTURES: [&str; 9] = [
    "traces/apps/ix-mixed.pcap",
    "traces/apps/sn-sanitized4k_truncated128.pcap",
    "traces/apps/zk-truncated-header.pcap",
    "traces/encap/nd-ip_fragmented_garbage.pcap",
    "traces/encap/ak-twovlan.pcap",
    "traces/encap/lp-ipv6_ext_headers.pcap",
    "traces/encap/lp-loopback.pcap",
    "traces/encap/ak-mpls-basic.pcap",
    "traces/encap/ak-pppoe.pcap",
];

#[test]
fn flows_hosts_and_ports_of_captures_are_found() {
    let mut random = fastrand::Rng::with_seed(7);
    let Some(root) = crate::common::shared("") else {
        return;
    };
    let mut count = 0;
    for name in CAPTURES {
        let capture = crate::common::Capture::read(&root.join(name)).expect("a capture");
        let link_type = capture.links[0].link_type;
        let packets: Vec<(Vec<u8>, u32)> = capture
            .packets
            .into_iter()
            .filter(|packet| packet.interface == 0)
            .map(|packet| (packet.data, packet.wire_len))
            .collect();
        let packets: Vec<(Vec<u8>, u32)> = packets.iter().take(3000).cloned().collect();
        let mut texts: Vec<String> = Vec::new();
        for _ in 0..60 {
            let parsed = parse(link_type, &packets[random.usize(..packets.len())].0);
            let Some(ip) = parsed.network else { continue };
            let (src, dst) = (ip.src, ip.dst);
            texts.push(format!("host {src}"));
            texts.push(format!("src host {src} and dst host {dst}"));
            if let (Some(ports), Some(proto)) = (parsed.transport, ip.proto) {
                let (a, b) = (ports.src, ports.dst);
                texts.push(format!(
                    "host {src} and host {dst} and proto {proto} and port {a} and port {b}"
                ));
                texts.push(format!("dst port {b} or host {dst}"));
                texts.push(format!("vlan and port {a}"));
            }
        }
        let rules: Vec<Reference> = (0..)
            .zip(texts)
            .map(|(id, text)| Reference::new(id, text, link_type, FilterMode::Savefile))
            .collect();
        let set = set_of(&rules, link_type, FilterMode::Savefile, false);
        count += compare(&mut set.reader(), link_type, &rules, &packets, 7);
    }
    assert!(count > 10_000, "{count} matches");
}

/// Identifiers of the rules that match one packet.
fn found(set: &RuleSet, link_type: LinkType, data: &[u8]) -> Vec<u64> {
    let mut matches = Matches::default();
    let wire_len = u32::try_from(data.len()).expect("small");
    let frames = [FilterFrame::new(data, wire_len, Aux::default())];
    set.reader().match_many(link_type, 0, &frames, &mut matches);
    matches.iter().map(|(_, id, _)| id.0).collect()
}

#[test]
fn a_link_type_that_comes_later_is_compiled_for_then() {
    let texts = [
        "ip[8] < 65",
        "host 10.0.0.1",
        "ether host 2:0:0:0:0:1",
        "udp port 53 and len < 100",
    ];
    let mut set = RuleSet::new(FilterMode::Savefile);
    for (id, text) in (0..).zip(texts) {
        let filter = Filter::plain(text).expect("an expression");
        let _placed = set
            .insert(RuleId(id), &filter)
            .expect("nothing to compile yet");
    }
    let packet = [
        0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 9, 0, 53, 0, 8, 0, 0,
    ];
    let ethernet = [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0][..], &packet].concat();
    assert_eq!(found(&set, LinkType::ETHERNET, &ethernet), [1, 2]);
    assert!(set.add_link_type(LinkType::ETHERNET).is_empty());
    assert_eq!(found(&set, LinkType::ETHERNET, &ethernet), [0, 1, 2, 3]);
    let refused = set.add_link_type(LinkType::RAW);
    let refused: Vec<u64> = refused.iter().map(|(id, _)| id.0).collect();
    assert_eq!(refused, [2], "libpcap knows no hardware addresses there");
    assert_eq!(found(&set, LinkType::RAW, &packet), [0, 1, 3]);
    assert!(
        set.add_link_type(LinkType::PPP)
            .iter()
            .all(|(id, _)| id.0 == 2)
    );
    let ppp = [&[0xff, 3, 0, 0x21][..], &packet].concat();
    assert_eq!(found(&set, LinkType::PPP, &ppp), [0, 1, 3]);
    assert!(set.remove(RuleId(0)) && set.remove(RuleId(3)));
    assert_eq!(found(&set, LinkType::PPP, &ppp), [1]);
}

#[test]
fn explanations_tell_what_became_of_a_rule() {
    let cases = [
        (
            "tcp and host 10.0.0.2 and port 80 and host 10.0.0.1 and port 9",
            RulePlacement::LookUp,
            &[("flow tcp 10.0.0.1 10.0.0.2 ports 9 80", 0)][..],
        ),
        (
            "src net 10.0.0.0/8 and udp",
            RulePlacement::LookUp,
            &[("net 10.0.0.0/8", 1)],
        ),
        (
            "port 80 or host 2001:db8::1",
            RulePlacement::LookUp,
            &[("port 80", 0), ("host 2001:db8::1", 1)],
        ),
        ("vlan 7 and arp", RulePlacement::LookUp, &[("vlan 7", 1)]),
        ("not port 22", RulePlacement::Program, &[]),
        (
            "port 22 and tcp[13] & 2 != 0",
            RulePlacement::LookUpThenProgram,
            &[("port 22", 0)],
        ),
    ];
    let mut set = RuleSet::new(FilterMode::Savefile);
    set.add_link_type(LinkType::ETHERNET);
    for (text, placement, look_ups) in cases {
        let filter = Filter::plain(text).expect("an expression");
        let _placed = set.insert(RuleId(1), &filter).expect("it compiles");
        let explanation = set.explain(RuleId(1)).expect("it is there");
        assert_eq!(explanation.placement, placement, "{text}");
        let found = explanation.look_ups.iter();
        let found: Vec<(&str, usize)> = found.map(|(key, rest)| (key.as_str(), *rest)).collect();
        assert_eq!(found, look_ups, "{text}");
        assert_eq!(
            explanation.programs.is_empty(),
            placement == RulePlacement::LookUp,
            "{text}"
        );
    }
    assert_eq!(rules_in(&set), 1);
    assert!(set.explain(RuleId(2)).is_none());
    for text in [
        "host 10.0.0",
        "port 80 and tcp[",
        "host 10.0.0.1 and port 70000",
    ] {
        let expected =
            Reference::new(1, text.to_owned(), LinkType::ETHERNET, FilterMode::Savefile).programs;
        let filter = Filter::plain(text).expect("libpcap is asked later");
        match (set.insert(RuleId(1), &filter), expected) {
            (Err(error), Err(expected)) => assert_eq!(error.render(), expected.render()),
            (Ok(_), Ok(_)) => {}
            (got, expected) => panic!("{text}: {got:?}, expected {expected:?}"),
        }
    }
}

/// Number of rules in a set. All identifiers are below 10,000.
fn rules_in(set: &RuleSet) -> usize {
    let ids = (0..10_000).map(RuleId);
    ids.filter(|id| set.explain(*id).is_some()).count()
}
