//! Templates, terms that pcap-filter(7) lacks (`$flow`, `$iface`, `$communityId`), and fragments,
//! through the public API.

use std::collections::HashSet;

use crate::common::frames::{Ends, arp, ipv4, udp, udp6};
use crate::common::savefile;
use retroscope_filter::{
    Aux, Decision, FilledExpression, Filter, FilterAnswer, FilterError, FilterMode, FilterProblem,
    FlowState, LinkContext, PacketView, Template, TriggerFacts, Variable,
};
use retroscope_packet::{FragmentKey, LinkType, flow_of, fragment_of, parse};

const ENDS: Ends = Ends {
    src: (1, 1111),
    dst: (2, 53),
};
const OTHER: Ends = Ends {
    src: (1, 1112),
    dst: (2, 53),
};

fn facts(frame: &[u8], interface: u16) -> TriggerFacts {
    TriggerFacts {
        parsed: parse(LinkType::ETHERNET, frame),
        interface,
        first_fragment: None,
    }
}

/// Fills a template with a later fragment whose first fragment was seen before.
fn fill_later(template: &str, trigger: &[u8], first: &[u8]) -> FilledExpression {
    let facts = TriggerFacts {
        first_fragment: flow_of(&parse(LinkType::ETHERNET, first)),
        ..facts(trigger, 3)
    };
    Template::parse(template)
        .expect("a template")
        .fill(&facts)
        .expect("the flow is known")
}

fn fill(template: &str, trigger: &[u8]) -> FilledExpression {
    Template::parse(template)
        .unwrap_or_else(|error| panic!("{}", error.render()))
        .fill(&facts(trigger, 3))
        .unwrap_or_else(|error| panic!("{template}: {error}"))
}

fn filter(template: &str, trigger: &[u8]) -> Filter {
    prepared(fill(template, trigger))
}

fn prepared(filled: FilledExpression) -> Filter {
    let mut filter = Filter::new(filled);
    filter
        .prepare(savefile(LinkType::ETHERNET, 65_535))
        .unwrap_or_else(|error| panic!("{}", error.render()));
    filter
}

fn view(data: &[u8], interface: u16) -> PacketView<'_> {
    PacketView {
        link_type: LinkType::ETHERNET,
        mode: FilterMode::Savefile,
        interface,
        aux: Aux::default(),
        data,
        wire_len: u32::try_from(data.len()).expect("a short frame"),
    }
}

fn matches(template: &str, trigger: &[u8], frame: &[u8]) -> bool {
    filter(template, trigger).matches(&view(frame, 3))
}

fn datagram(frame: &[u8]) -> FragmentKey {
    fragment_of(&parse(LinkType::ETHERNET, frame)).expect("a fragment")
}

fn error(template: &str) -> FilterError {
    let checked = Template::parse(template)
        .and_then(|template| template.check(savefile(LinkType::ETHERNET, 65_535)));
    checked.expect_err(template)
}

#[test]
fn variables_become_the_trigger_packets_values() {
    let all = "host $srcIP and host $dstIP and src port $srcPort and port $dstPort and $proto \
               and ether src $srcMAC and ether dst $dstMAC";
    let filled = fill(all, &udp(ENDS, &[]));
    assert_eq!(
        filled.to_string(),
        "host 10.0.0.1 and host 10.0.0.2 and src port 1111 and port 53 and udp \
         and ether src 02:00:00:00:00:01 and ether dst 02:00:00:00:00:02"
    );
    assert!(matches(all, &udp(ENDS, &[]), &udp(ENDS, &[])));
    assert!(!matches(all, &udp(ENDS, &[]), &udp(OTHER, &[])));
    assert!(!matches(
        "vlan $vlan and host $SrcIp",
        &udp(ENDS, &[0x2064, 7]),
        &udp(ENDS, &[100, 9])
    ));
    assert!(matches(
        "vlan $vlan",
        &udp(ENDS, &[0x2064, 7]),
        &udp(OTHER, &[100])
    ));
    assert_eq!(
        fill("ip6 src $srcIP", &udp6(ENDS)).to_string(),
        "ip6 src fe80::1"
    );
    assert_eq!(
        fill("$proto", &ipv4(ENDS, 47, (1, 0, false), &[])).to_string(),
        "proto 47"
    );
    assert!(matches(
        "not $proto",
        &ipv4(ENDS, 47, (1, 0, false), &[]),
        &udp(ENDS, &[])
    ));
}

#[test]
fn a_trigger_that_cannot_supply_a_variable_fails_with_it() {
    let later = ipv4(ENDS, 17, (9, 100, false), &[]);
    let portless = ipv4(ENDS, 1, (1, 0, false), &[]);
    for (template, trigger, variable) in [
        ("host $srcIP", arp(), Variable::SrcIp),
        ("$proto", arp(), Variable::Proto),
        ("port $srcPort", later.clone(), Variable::SrcPort),
        ("port $dstPort", portless, Variable::DstPort),
        ("vlan $vlan", udp(ENDS, &[]), Variable::Vlan),
        ("$communityId", arp(), Variable::CommunityId),
        ("$communityId", later, Variable::CommunityId),
        ("$flow", vec![1, 2, 3], Variable::Flow),
    ] {
        let filled = Template::parse(template)
            .expect("a template")
            .fill(&facts(&trigger, 0));
        assert_eq!(filled.expect_err(template).variable, variable);
    }
}

#[test]
fn a_flow_is_the_same_both_ways_and_under_tags() {
    let forth = fill("$flow and not port 5353", &udp(ENDS, &[]));
    let back = fill(
        "$flow and not port 5353",
        &udp(ENDS.reversed(), &[100, 200]),
    );
    assert_eq!(forth, back);
    assert_eq!(HashSet::from([forth.clone(), back]).len(), 1);
    assert_ne!(forth, fill("$flow and not port 5353", &udp(OTHER, &[])));
    assert!(
        forth.to_string().starts_with("$flow[udp 10.0.0.1:1111 "),
        "{forth}"
    );
    for tags in [&[][..], &[100], &[100, 200]] {
        assert!(matches(
            "$flow",
            &udp(ENDS, &[]),
            &udp(ENDS.reversed(), tags)
        ));
        assert!(!matches("$flow", &udp(ENDS, &[]), &udp(OTHER, tags)));
        assert!(matches(
            "$communityId",
            &udp(ENDS, &[]),
            &udp(ENDS.reversed(), tags)
        ));
    }
    assert!(matches("$flow", &arp(), &arp()));
    assert!(!matches("$flow", &arp(), &udp(ENDS, &[])));
    assert!(matches(
        "$communityId",
        &ipv4(ENDS, 47, (1, 0, false), &[]),
        &ipv4(ENDS, 47, (2, 0, false), &[])
    ));
}

#[test]
fn own_terms_join_pieces_from_left_to_right() {
    let (dns, tagged) = (udp(ENDS, &[]), udp(ENDS, &[9]));
    let cases = [
        // (template, frame on the trigger's interface, matches)
        ("$iface", &dns, true),
        ("not $iface", &dns, false),
        ("!!$iface && udp port 53", &dns, true),
        ("tcp or $iface and udp", &dns, true),
        ("udp or $iface and tcp", &dns, false),
        ("udp or ($iface and tcp)", &dns, true),
        ("not $iface or tcp port 80 or 53", &dns, false),
        ("not $iface or udp port 80 or 53", &dns, true),
        ("not ($iface and udp port (80 or 53))", &dns, false),
        ("$iface and (ip[0] & 0xf) << 2 > 5", &dns, true),
        ("$iface and (ip[0] & 0xf) << 2 > 50", &dns, false),
        ("$iface and vlan and udp", &tagged, true),
        ("vlan and $iface and udp", &tagged, false),
        ("((($iface))) and ((udp))", &dns, true),
        ("$iface and $flow and $communityId", &dns, true),
    ];
    for (template, frame, expected) in cases {
        assert_eq!(
            matches(template, &udp(ENDS, &[]), frame),
            expected,
            "{template}"
        );
    }
    assert!(!filter("$iface", &dns).matches(&view(&dns, 4)));
}

#[test]
fn errors_point_into_the_template() {
    let cases = [
        ("host $srcIP and port $sport", "$sport"),
        ("tcp $flow", "$flow"),
        ("$flow tcp", "tcp"),
        ("$flow and port (80 or $iface)", "("),
        ("ip[$iface] = 1", "$iface"),
        ("$flow and and tcp", "and"),
        ("($flow or tcp))", ")"),
        ("($flow or tcp", ""),
        ("$flow or", ""),
        ("not", ""),
        ("$flow and tcp port an", "an"),
        ("$flow and port $srcPort or an host 1.2.3.4", "an"),
        ("$flow and host 10.0.0.1 or port 70000 or tcp", "70000"),
        ("port $srcIP", "port"),
        ("$srcIP", "$srcIP"),
        ("$flow or 443", "443"),
    ];
    for (template, word) in cases {
        let error = error(template);
        assert_eq!(&template[error.span()], word, "{}", error.render());
        assert_eq!(error.text(), template);
    }
    assert_eq!(error("$flow and and tcp").span(), 10..13);
    assert_eq!(error("$flow or").span(), 8..8);
    let deep = format!("{}$flow{}", "(".repeat(5_000), ")".repeat(5_000));
    assert!(matches!(
        error(&deep).problem(),
        FilterProblem::Misplaced(_)
    ));
}

#[test]
fn variables_are_listed_and_need_a_trigger() {
    let template = Template::parse("$flow or host $SRCIP or host $srcip or arcnet src $1a")
        .expect("a template");
    assert_eq!(template.variables(), [Variable::Flow, Variable::SrcIp]);
    let plain = Template::parse("tcp or arcnet src $a").expect("an ARCnet address");
    assert_eq!(plain.variables(), []);
    let error = Filter::plain("tcp and host $srcIP").expect_err("a variable");
    assert_eq!(
        error.render(),
        "filter: $srcIP needs a trigger packet, and there is none here\n  tcp and host $srcIP\n               ^^^^^^"
    );
}

/// Evaluates frames in order. Returns the indexes of the frames that a dump would contain in the
/// end, and the maximum number of frames that were set aside (`Decision::Maybe`) at the same time.
fn dump(filter: &Filter, frames: &[Vec<u8>]) -> (Vec<usize>, usize) {
    let mut state: FlowState = filter.state();
    let (mut taken, mut aside, mut most) = (Vec::new(), Vec::new(), 0);
    for (index, frame) in frames.iter().enumerate() {
        let FilterAnswer { decision, resolves } = filter.evaluate(&mut state, &view(frame, 3));
        match decision {
            Decision::Take => taken.push(index),
            Decision::Skip => {}
            Decision::Maybe(key) => aside.push((key, index)),
        }
        most = most.max(aside.len());
        if let Some(resolved) = resolves {
            aside.retain(|&(key, index)| {
                let again = filter
                    .evaluate(&mut state, &view(&frames[index], 3))
                    .decision;
                assert_eq!(matches!(again, Decision::Maybe(_)), key != resolved);
                if again == Decision::Take {
                    taken.push(index);
                }
                key != resolved
            });
        }
    }
    taken.sort_unstable();
    (taken, most)
}

#[test]
fn later_fragments_follow_their_first() {
    let frames = [
        ipv4(ENDS, 17, (1, 0, true), &[]),
        ipv4(ENDS, 17, (1, 2, true), &[]),
        ipv4(OTHER, 17, (2, 0, true), &[]),
        ipv4(OTHER, 17, (2, 2, false), &[]),
        // The last fragment precedes the first fragment, in a datagram of the trigger's flow
        // (identification 3) and in a datagram of another flow (identification 4).
        ipv4(ENDS.reversed(), 17, (3, 2, false), &[5]),
        ipv4(OTHER.reversed(), 17, (4, 2, false), &[]),
        ipv4(ENDS.reversed(), 17, (3, 0, true), &[]),
        ipv4(OTHER.reversed(), 17, (4, 0, true), &[]),
        ipv4(ENDS, 17, (1, 4, false), &[]),
        // Later fragments: of another protocol, to another host, and of a datagram whose first
        // fragment never arrives.
        ipv4(ENDS, 6, (1, 2, false), &[]),
        ipv4(
            Ends {
                src: (1, 0),
                dst: (9, 0),
            },
            17,
            (1, 2, false),
            &[],
        ),
        ipv4(ENDS, 17, (8, 2, false), &[]),
        udp(ENDS, &[]),
    ];
    let trigger = udp(ENDS, &[]);
    assert_eq!(
        dump(&filter("$flow", &trigger), &frames),
        (vec![0, 1, 4, 6, 8, 12], 2)
    );
    assert_eq!(
        dump(&filter("$communityId", &trigger), &frames),
        (vec![0, 1, 4, 6, 8, 12], 2)
    );
    assert_eq!(
        dump(&filter("not $flow", &trigger), &frames),
        (vec![2, 3, 5, 7, 9, 10], 2)
    );
    assert_eq!(
        dump(
            &filter("$flow and ip[6:2] & 0x1fff != 0", &trigger),
            &frames
        ),
        (vec![1, 8], 1)
    );
    assert_eq!(
        dump(&filter("$flow or ip", &trigger), &frames).0,
        (0..13).collect::<Vec<_>>()
    );
}

#[test]
fn a_fragment_as_trigger_brings_its_datagram() {
    let frames = [
        udp(ENDS, &[]),
        ipv4(ENDS, 17, (1, 2, true), &[]),
        ipv4(ENDS, 17, (1, 0, true), &[]),
        ipv4(ENDS, 17, (1, 4, false), &[]),
        udp(ENDS.reversed(), &[]),
        udp(OTHER, &[]),
        ipv4(ENDS, 17, (2, 2, false), &[]),
    ];
    // The trigger is a later fragment, so the dump lacks frame 0 of the same flow: the flow is
    // unknown until frame 2, which is the first fragment.
    let (taken, _) = dump(&filter("$flow", &frames[1]), &frames);
    assert_eq!(taken, [1, 2, 3, 4]);
    // The trigger is the first fragment, which shows the flow. The filter matches later fragments
    // of its datagram without a state.
    let first = filter("$flow", &frames[2]);
    assert!(first.matches(&view(&frames[3], 3)));
    let verdict = first.evaluate(&mut first.state(), &view(&frames[6], 3));
    assert_eq!(verdict.decision, Decision::Maybe(datagram(&frames[6])));
    // All later fragments of one datagram fill the template equally.
    assert_eq!(fill("$flow", &frames[1]), fill("$flow", &frames[3]));
}

/// Two trigger packets give equal values exactly if they give equal texts, so hits can be compared
/// without formatting the texts.
#[test]
fn values_are_equal_where_the_filled_in_texts_are() {
    let other_first = ipv4(OTHER, 17, (3, 0, true), &[]);
    let frames = [
        udp(ENDS, &[]),
        udp(ENDS.reversed(), &[1]),
        udp(OTHER, &[]),
        ipv4(ENDS, 6, (0, 0, false), &[]),
        ipv4(ENDS, 1, (0, 0, false), &[8, 0, 0, 0]),
        ipv4(ENDS, 1, (0, 0, false), &[3, 1, 0, 0]),
        ipv4(ENDS, 17, (1, 0, true), &[]),
        ipv4(ENDS, 17, (1, 2, true), &[]),
        ipv4(ENDS, 17, (1, 4, false), &[]),
        ipv4(ENDS, 17, (2, 4, false), &[]),
        other_first.clone(),
    ];
    let later = TriggerFacts {
        first_fragment: flow_of(&parse(LinkType::ETHERNET, &other_first)),
        ..facts(&ipv4(OTHER, 17, (3, 2, true), &[]), 3)
    };
    let mut all: Vec<TriggerFacts> = frames.iter().map(|frame| facts(frame, 3)).collect();
    all.extend([facts(&frames[0], 4), later]);
    let templates = [
        "",
        "udp",
        "$flow",
        "$communityId",
        "$iface and not $flow",
        "host $srcIP",
        "host $dstIP and host $srcIP",
        "port $srcPort or port $dstPort",
        "$proto and host $srcIP",
        "ether src $srcMAC and ether dst $dstMAC",
    ];
    for text in templates {
        let template = Template::parse(text).unwrap();
        for (a, b) in all.iter().flat_map(|a| all.iter().map(move |b| (a, b))) {
            let (filled, values) = (template.fill(a), template.values(a));
            assert_eq!(filled.as_ref().err(), values.as_ref().err(), "{text}");
            let (Ok(filled), Ok(values)) = (filled, values) else {
                continue;
            };
            assert_eq!(template.filled(&values), filled, "{text}");
            if let (Ok(other), Ok(other_values)) = (template.fill(b), template.values(b)) {
                assert_eq!(filled == other, values == other_values, "{filled}, {other}");
            }
        }
    }
}

#[test]
fn a_later_fragment_whose_first_is_known_stands_for_its_flow() {
    let first = ipv4(ENDS, 17, (1, 0, true), &[]);
    let frames = [
        udp(ENDS.reversed(), &[]),
        udp(OTHER, &[]),
        // The first fragment of the next two later fragments arrived before the dump's window, so
        // it is not in this list.
        ipv4(ENDS, 17, (1, 2, true), &[]),
        ipv4(ENDS, 17, (1, 4, false), &[]),
        ipv4(ENDS, 17, (2, 2, false), &[]),
        udp(ENDS, &[]),
    ];
    for template in ["$flow", "$communityId"] {
        let filled = fill_later(template, &frames[3], &first);
        assert_eq!(dump(&prepared(filled.clone()), &frames).0, [0, 2, 3, 5]);
        // One flow gives one expression, whichever of its packets triggers.
        for trigger in [&frames[0], &first] {
            assert_eq!(filled, fill(template, trigger));
        }
    }
    // A packet that shows its own flow counts more than a remembered first fragment.
    assert_eq!(
        fill_later("$flow", &udp(OTHER, &[]), &first),
        fill("$flow", &udp(OTHER, &[]))
    );
}

#[test]
fn what_is_remembered_about_fragments_is_bounded() {
    let filter = filter("$flow", &udp(ENDS, &[]));
    let mut state = filter.state();
    let mut decide = |frame: &[u8]| filter.evaluate(&mut state, &view(frame, 3)).decision;
    for id in 0..=5_000 {
        assert_eq!(decide(&ipv4(ENDS, 17, (id, 0, true), &[])), Decision::Take);
    }
    assert_eq!(
        decide(&ipv4(ENDS, 17, (5_000, 2, false), &[])),
        Decision::Take
    );
    let forgotten = ipv4(ENDS, 17, (1, 2, false), &[]);
    assert_eq!(decide(&forgotten), Decision::Maybe(datagram(&forgotten)));
}

#[test]
fn link_types_that_are_not_prepared_match_nothing() {
    let mut filter = Filter::plain("vlan or not vlan").expect("an expression");
    assert!(!filter.matches(&view(&arp(), 0)));
    assert!(filter.prepare(savefile(LinkType::RAW, 0)).is_err());
    assert!(!filter.is_prepared(LinkType::RAW, FilterMode::Savefile));
    filter
        .prepare(savefile(LinkType::ETHERNET, 0))
        .expect("Ethernet has tags");
    assert!(filter.is_prepared(LinkType::ETHERNET, FilterMode::Savefile));
    assert!(filter.matches(&view(&arp(), 0)));
    assert!(!filter.matches(&PacketView {
        mode: FilterMode::Live,
        ..view(&arp(), 0)
    }));
}

/// A template is rejected if a piece with a variable keeps a name: the name would have to be looked
/// up for each trigger. Known names of ports and protocols become numbers.
#[test]
fn names_and_variables_do_not_mix() {
    let refused = |text: &str| match Template::parse(text).unwrap().resolve() {
        Err(error) if matches!(error.problem(), FilterProblem::NameAndVariable { .. }) => {
            text[error.span()].to_owned()
        }
        other => panic!("{text}: {other:?}"),
    };
    assert_eq!(
        refused("host $srcIP and not host www.example.com"),
        "www.example.com"
    );
    assert_eq!(
        refused("$flow or (port $srcPort and net loopback)"),
        "loopback"
    );
    assert_eq!(
        refused("host $srcIP and tcp port no-such-port"),
        "no-such-port"
    );
    for (text, has_names) in [
        ("$flow or gateway www.example.com", true),
        ("host $srcIP or payload contains \"a\" and gateway a", true),
        ("host $srcIP and port domain and not proto \\udp", false),
        ("type mgt and ether host $srcMAC", false),
    ] {
        let template = Template::parse(text).unwrap().resolve().unwrap();
        assert_eq!(template.has_names(), has_names, "{text}");
        let late = Template::parse(text).unwrap().without_names();
        let is_name =
            late.is_err_and(|late| matches!(late.problem(), FilterProblem::NameTooLate(_)));
        assert_eq!(is_name, !text.contains("type"), "{text}");
    }
}

/// After sealing, pcap-filter text with a name stays usable for the link types for which it was
/// compiled before. For other link types compilation fails, and the error points at the name.
#[test]
fn a_sealed_name_is_not_compiled_again() {
    let link = |link_type| LinkContext {
        link_type,
        snaplen: 0,
        mode: FilterMode::Savefile,
        optimize: true,
    };
    let mut filter = Filter::resolved("udp and port ssh or 80").unwrap();
    filter.prepare(link(LinkType::RAW)).unwrap();
    filter.seal();
    // A filter made from a clone of the filled-in expression shares the compiled programs.
    let mut other = Filter::new(filter.filled().clone());
    other.prepare(link(LinkType::RAW)).unwrap();
    let error = other.prepare(link(LinkType::ETHERNET)).unwrap_err();
    let problem = error.problem();
    assert!(matches!(problem, FilterProblem::NameTooLate(_)), "{error}");
    assert_eq!(&error.text()[error.span()], "ssh");
    let mut numbers = Filter::resolved("udp and port domain and host localhost").unwrap();
    numbers.seal();
    numbers.prepare(link(LinkType::ETHERNET)).unwrap();
}

/// Names of hosts and networks are rejected; names of ports and protocols pass.
#[test]
fn names_of_hosts_are_told_from_those_of_ports() {
    for (text, host) in [
        ("port domain or udp port tftp", None),
        ("ip proto \\tcp and portrange ssh-http", None),
        ("host 192.0.2.1 and net 10 and $flow", None),
        ("host x.example", Some("x.example")),
        ("port ssh and not src host a", Some("a")),
        ("net loopback", Some("loopback")),
        ("gateway g", Some("g")),
        ("ether host box", Some("box")),
        ("$flow or (tcp and dst x.example)", Some("x.example")),
    ] {
        let checked = Template::parse(text).unwrap().without_hosts();
        match (checked, host) {
            (Ok(_), None) => {}
            (Err(error), Some(host)) => {
                let is_it =
                    matches!(error.problem(), FilterProblem::HostName(name) if name == host);
                assert!(is_it, "{text}: {error}");
            }
            (checked, _) => panic!("{text}: {checked:?}"),
        }
    }
}
