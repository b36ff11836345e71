//! Rules with `$flow` and other terms that pcap-filter(7) lacks. The rule set returns the rules
//! that may match a packet. If a match is not certain, the rule's filter decides.

use retroscope_filter::{
    Aux, Certainty, Decision, Filter, FilterFrame, FilterMode, Matches, PacketView, RuleId,
    RulePlacement, RuleReader, RuleSet, Template, TriggerFacts,
};
use retroscope_packet::{LinkType, parse};

use super::{context, random_packets};

const TEMPLATES: [&str; 9] = [
    "$flow",
    "$flow and not port 53",
    "$flow or host 10.0.0.2",
    "$iface and tcp",
    "$communityId",
    "udp port 53 and payload contains \"a\"",
    "payload contains \"a\"",
    "not ($flow or not tcp port 80)",
    "host $srcIP and host $dstIP",
];

#[test]
fn whatever_a_filter_takes_or_keeps_aside_is_asked_or_found() {
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let mut decided = [0; 3];
    for link_type in [
        LinkType::ETHERNET,
        LinkType::RAW,
        LinkType::LINUX_SLL,
        LinkType::NULL,
        LinkType::PPP,
    ] {
        let mut set = RuleSet::new(FilterMode::Savefile);
        set.add_link_type(link_type);
        let mut filters: Vec<Filter> = Vec::new();
        let triggers = random_packets(&mut random, link_type, 60);
        for (data, _) in &triggers {
            let facts = TriggerFacts {
                parsed: parse(link_type, data),
                interface: 1,
                first_fragment: None,
            };
            let text = TEMPLATES[random.usize(..TEMPLATES.len())];
            let template =
                Template::parse(text).unwrap_or_else(|error| panic!("{}", error.render()));
            let Ok(filled) = template.fill(&facts) else {
                continue;
            };
            let mut filter = Filter::new(filled);
            if filter
                .prepare(context(link_type, FilterMode::Savefile, true))
                .is_ok()
            {
                let id = RuleId(filters.len() as u64);
                let _placed = set.insert(id, &filter).expect("it compiles");
                filters.push(filter);
            }
        }
        let mut states: Vec<_> = filters.iter().map(Filter::state).collect();
        let mut blind: Vec<_> = filters.iter().map(Filter::state).collect();
        let mut reader = set.reader();
        let mut matches = Matches::default();
        let packets = random_packets(&mut random, link_type, 1280);
        for some in packets
            .iter()
            .chain(&triggers)
            .collect::<Vec<_>>()
            .chunks(RuleReader::MANY)
        {
            let interface = random.u16(..2);
            let frames: Vec<FilterFrame<'_>> = some
                .iter()
                .map(|(data, wire_len)| FilterFrame::new(data, *wire_len, Aux::default()))
                .collect();
            reader.match_many(link_type, interface, &frames, &mut matches);
            for (number, frame) in frames.iter().enumerate() {
                let view = PacketView {
                    link_type,
                    mode: FilterMode::Savefile,
                    interface,
                    aux: frame.aux(),
                    data: frame.data(),
                    wire_len: frame.wire_len(),
                };
                for (id, filter) in filters.iter().enumerate() {
                    // The state in `states` sees every packet, the state in `blind` only the
                    // packets for which the rule set returns `AskFilter`.
                    let expected = filter.evaluate(&mut states[id], &view).decision;
                    let found = matches
                        .iter()
                        .find(|(at, rule, _)| (*at, rule.0) == (number, id as u64));
                    let got = match found {
                        None => Decision::Skip,
                        Some((_, _, Certainty::Certain)) => Decision::Take,
                        Some((_, _, Certainty::AskFilter)) => {
                            filter.evaluate(&mut blind[id], &view).decision
                        }
                    };
                    assert_eq!(
                        got,
                        expected,
                        "seed {seed}, link type {}: '{}' on {:02x?}",
                        link_type.0,
                        filter.filled(),
                        frame.data()
                    );
                    decided[match got {
                        Decision::Take => 0,
                        Decision::Skip => 1,
                        Decision::Maybe(_) => 2,
                    }] += 1;
                }
            }
        }
    }
    let [taken, skipped, kept_aside] = decided;
    assert!(
        taken > 1000 && skipped > 10_000 && kept_aside > 0,
        "{decided:?}"
    );
}

#[test]
fn flows_are_looked_up_and_asked() {
    let mut random = fastrand::Rng::with_seed(1);
    let mut set = RuleSet::new(FilterMode::Savefile);
    let template = Template::parse("$flow").expect("a template");
    let mut id = 0;
    for (data, _) in random_packets(&mut random, LinkType::ETHERNET, 100) {
        let facts = TriggerFacts {
            parsed: parse(LinkType::ETHERNET, &data),
            interface: 0,
            first_fragment: None,
        };
        if let Ok(filled) = template.fill(&facts) {
            let placed = set
                .insert(RuleId(id), &Filter::new(filled))
                .expect("no program needed");
            assert_eq!(placed.placement, RulePlacement::LookUpThenCaller);
            id += 1;
        }
    }
    assert!(id > 50);
}
