//! Payload terms compared with a naive implementation, on hand-made packets and on captures,
//! through the public API.

use crate::common::frames::{Ends, arp, ipv4, udp, udp6};
use crate::common::{Capture, savefile, shared};
use fastrand::Rng;
use retroscope_filter::{
    Aux, Decision, Filter, FilterFrame, FilterMode, FilterProblem, PacketView, Program, Template,
    TriggerFacts,
};
use retroscope_packet::{LinkType, parse};

const ENDS: Ends = Ends {
    src: (1, 1111),
    dst: (2, 53),
};
const LINK: (LinkType, FilterMode) = (LinkType::ETHERNET, FilterMode::Savefile);

fn filter(text: &str) -> Filter {
    let mut filter = Filter::plain(text).unwrap_or_else(|error| panic!("{}", error.render()));
    filter
        .prepare(savefile(LinkType::ETHERNET, 65_535))
        .unwrap_or_else(|error| panic!("{}", error.render()));
    filter
}

fn view(link_type: LinkType, data: &[u8]) -> PacketView<'_> {
    PacketView {
        link_type,
        mode: FilterMode::Savefile,
        interface: 0,
        aux: Aux::default(),
        data,
        wire_len: u32::try_from(data.len()).expect("a short frame"),
    }
}

/// Whether the filter matches the frame. Fails if `matches`, `evaluate` and `matches_many` (with
/// one frame and with [`Program::MANY`] copies) disagree.
fn matches(filter: &Filter, data: &[u8]) -> bool {
    let view = view(LinkType::ETHERNET, data);
    let alone = filter.matches(&view);
    let decision = filter.evaluate(&mut filter.state(), &view).decision;
    assert_eq!(decision == Decision::Take, alone, "{data:02x?}");
    let frames = [FilterFrame::new(data, view.wire_len, Aux::default()); Program::MANY];
    for count in [1, Program::MANY] {
        let many = filter.matches_many(LINK, 0, &frames[..count]);
        let expected = if alone {
            u64::MAX >> (Program::MANY - count)
        } else {
            0
        };
        assert_eq!(many, expected, "{count} of {data:02x?}");
    }
    alone
}

/// A UDP datagram with this payload.
fn datagram(payload: &[u8]) -> Vec<u8> {
    let mut frame = udp(ENDS, &[]);
    let udp_len = u16::try_from(8 + payload.len()).expect("a short payload");
    frame.truncate(14 + 20 + 8);
    frame[16..18].copy_from_slice(&(20 + udp_len).to_be_bytes());
    frame[38..40].copy_from_slice(&udp_len.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

#[test]
fn terms_ask_for_the_payload_and_nothing_else() {
    let frame = datagram(b"GET /index.html\r\n\x00\xff");
    for (text, expected) in [
        (r#"payload contains "index""#, true),
        (r#"payload contains "Index""#, false),
        (r#"payload contains "\r\n\x00\xff""#, true),
        (r#"payload startswith "GET /""#, true),
        (r#"payload startswith "ET""#, false),
        (r"payload matches /^get \/\w+\.html/i", true),
        (r"payload matches /^get/", false),
        (r"payload matches /\xff$/", true),
        // The addresses and the port 53 are in the headers, not in the payload.
        (r#"payload contains "\x0a\x00\x00\x01""#, false),
        (r#"payload contains "\x00\x35""#, false),
        (r#"udp and payload contains "index""#, true),
        (r#"payload contains "index" and tcp"#, false),
        (r#"not payload contains "index""#, false),
        (r#"! ! payload contains "index" && port 53"#, true),
        (r#"tcp or (udp and (payload contains "x.h" or ip6))"#, true),
        // Operands group from the left: (udp or payload contains …) and tcp.
        (r#"udp or payload contains "index" and tcp"#, false),
        (
            r#"payload contains "no" or payload contains "nor" or payload contains "html""#,
            true,
        ),
        (
            r#"payload contains "no" or payload contains "nor" or payload contains "xml""#,
            false,
        ),
    ] {
        assert_eq!(matches(&filter(text), &frame), expected, "{text}");
    }
}

#[test]
fn a_packet_without_payload_matches_no_term() {
    let any = filter("payload matches /(?s)^/");
    let negated = filter("not payload matches /(?s)^/");
    let cut = &datagram(b"payload")[..41];
    for frame in [cut, &[]] {
        assert!(!matches(&any, frame) && matches(&negated, frame));
    }
    // Three packets with a payload: an empty UDP payload, the bytes of ARP after the Ethernet
    // header, and the bytes of a later fragment after the IPv4 header.
    for frame in [udp6(ENDS), arp(), ipv4(ENDS, 17, (9, 3, false), &[7])] {
        assert!(matches(&any, &frame), "{frame:02x?}");
    }
    assert!(matches(
        &filter(r#"payload startswith "\xee\xee""#),
        &ipv4(ENDS, 17, (9, 3, false), &[7])
    ));
}

#[test]
fn terms_about_the_trigger_packet_join_in() {
    let facts = |frame: &[u8]| TriggerFacts {
        parsed: parse(LinkType::ETHERNET, frame),
        interface: 0,
        first_fragment: None,
    };
    let text = r#"$flow and not payload contains "$srcIP" and host $srcIP"#;
    let template = Template::parse(text).expect("a template");
    template
        .check(savefile(LinkType::ETHERNET, 65_535))
        .expect("it compiles");
    let filled = template
        .fill(&facts(&datagram(b"trigger")))
        .expect("filled in");
    assert_eq!(
        filled.to_string(),
        r#"$flow[udp 10.0.0.1:1111 10.0.0.2:53] and not payload contains "$srcIP" and host 10.0.0.1"#
    );
    let mut filter = Filter::new(filled);
    filter
        .prepare(savefile(LinkType::ETHERNET, 65_535))
        .expect("it compiles");
    assert!(matches(&filter, &datagram(b"other")));
    assert!(!matches(
        &filter,
        &datagram(b"the text $srcIP, as it stands")
    ));
    // A later fragment of an unknown datagram: the flow is unknown, but there is a payload.
    let later = ipv4(ENDS, 17, (77, 100, false), &[]);
    let decide = |text: &str| {
        let template = Template::parse(text).expect("a template");
        let mut filter = Filter::new(template.fill(&facts(&udp(ENDS, &[]))).expect("filled in"));
        filter
            .prepare(savefile(LinkType::ETHERNET, 65_535))
            .expect("it compiles");
        let verdict = filter.evaluate(&mut filter.state(), &view(LinkType::ETHERNET, &later));
        verdict.decision
    };
    assert!(matches!(
        decide(r#"$flow and payload contains "\xee""#),
        Decision::Maybe(_)
    ));
    assert_eq!(
        decide(r#"$flow and payload contains "\xef""#),
        Decision::Skip
    );
    assert_eq!(
        decide(r#"payload contains "\xee" or $flow"#),
        Decision::Take
    );
}

#[test]
fn payload_is_a_name_where_no_term_follows() {
    for text in ["host payload", "payload", "tcp and payload or udp"] {
        let template = Template::parse(text).expect("pcap-filter text");
        assert_eq!(template.variables(), []);
    }
    // Misplaced, incomplete and misspelled terms are errors. The text that an error marks is a
    // prefix of the second column.
    for (text, marked) in [
        ("host payload contains \"a\"", "payload contains \"a\""),
        ("payload contains payload", ""),
        ("payload \"a\"", "\"a\""),
        ("tcp and payload begins \"a\"", "begins"),
        ("payload match /a/", "match"),
    ] {
        let error = Template::parse(text).expect_err(text);
        let found = &error.text()[error.span()];
        assert!(marked.starts_with(found), "{text}: {found:?}");
    }
}

#[test]
fn errors_point_into_the_term() {
    let text = r#"tcp and (payload contains "ab\qc" or udp)"#;
    let error = Template::parse(text).expect_err(text);
    let rendered = error.render();
    let below: Vec<&str> = rendered.lines().skip(1).collect();
    let carets = format!("  {}^^", " ".repeat(text.find(r"\q").expect("it is there")));
    assert_eq!(below, [format!("  {text}"), carets]);
    let kinds = [
        (r#"payload contains "abc"#, 17..18),
        ("payload contains", 16..16),
        ("payload contains and udp", 17..17),
        ("payload matches", 15..15),
        ("payload matches /a", 16..17),
        ("payload matches /(/", 17..18),
        ("payload matches /a/gi", 19..21),
        (r#"payload startswith """#, 19..21),
    ];
    for (text, span) in kinds {
        let error = Template::parse(text).expect_err(text);
        assert!(
            matches!(error.problem(), FilterProblem::Payload(_)),
            "{text}"
        );
        assert_eq!(error.span(), span, "{text}: {error}");
    }
    let patterns = |count| vec!["payload matches /a/"; count].join(" or ");
    let hundred = patterns(100);
    assert!(Template::parse(&hundred).is_ok());
    let error = Template::parse(&patterns(101)).expect_err("101 patterns");
    assert!(
        matches!(error.problem(), FilterProblem::Payload(_)),
        "{error}"
    );
    assert!(error.span().start > hundred.len(), "{error}");
    // An error of libpcap about one part of pcap-filter text has its position in the whole text.
    let text = r#"payload contains "port 70000" and port 70000"#;
    let mut refused = Filter::plain(text).expect("the structure is right");
    let error = refused
        .prepare(savefile(LinkType::ETHERNET, 65_535))
        .expect_err("no such port");
    assert_eq!(error.span(), 39..44);
}

/// An expression that the tests evaluate themselves.
enum OracleExpression {
    /// pcap-filter text, and a function that tells whether a packet matches the text.
    Pcap(&'static str, PcapPredicate),
    Contains(Vec<u8>),
    StartsWith(Vec<u8>),
    /// A string whose letters may be in upper or lower case (`payload matches /…/i`).
    Ignoring(Vec<u8>),
    Not(Box<OracleExpression>),
    /// Operands from left to right. An operand after the first is joined to the operands on its
    /// left by `and` if its flag is true, else by `or`.
    Chain(Vec<(bool, OracleExpression)>),
}

/// A packet, its payload, and whether it has a VLAN tag.
struct Packet {
    frame: Vec<u8>,
    payload: Vec<u8>,
    is_tagged: bool,
}

/// Whether a packet matches a pcap-filter text.
type PcapPredicate = fn(&Packet) -> bool;

/// pcap-filter texts for packets of [`random_packet`].
const PCAP: [(&str, PcapPredicate); 4] = [
    ("udp", |packet| !packet.is_tagged),
    ("tcp or port 54", |_| false),
    ("greater 60", |packet| packet.frame.len() >= 60),
    ("not ip or len < 70", |packet| {
        packet.is_tagged || packet.frame.len() < 70
    }),
];

impl OracleExpression {
    fn random(random: &mut Rng, depth: u32) -> Self {
        let mut string = || {
            let len = random.usize(1..4);
            (0..len)
                .map(|_| random.choice(*b"abAB\x00\"/\\").expect("not empty"))
                .collect()
        };
        let text: Vec<u8> = string();
        match random.u8(..8) {
            0 => {
                let (text, holds) = random.choice(PCAP).expect("not empty");
                Self::Pcap(text, holds)
            }
            1 | 2 => Self::Contains(text),
            3 => Self::StartsWith(text),
            4 => Self::Ignoring(text),
            5 => Self::Not(Box::new(Self::random(random, depth.saturating_sub(1)))),
            _ if depth == 0 => Self::Contains(text),
            _ => {
                let count = random.usize(1..6);
                let operand = |_| (random.bool(), Self::random(random, depth - 1));
                Self::Chain((0..count).map(operand).collect())
            }
        }
    }

    fn text(&self) -> String {
        let hex = |bytes: &[u8]| -> String {
            bytes.iter().map(|byte| format!("\\x{byte:02X}")).collect()
        };
        match self {
            Self::Pcap(text, _) => format!("({text})"),
            Self::Contains(bytes) => format!("payload  contains \"{}\"", hex(bytes)),
            Self::StartsWith(bytes) => format!("payload startswith\t\"{}\"", hex(bytes)),
            Self::Ignoring(bytes) => format!("payload matches /{}/i", hex(bytes)),
            Self::Not(inner) => format!("not ({})", inner.text()),
            Self::Chain(operands) => {
                let mut text = "(".to_owned();
                for (index, (is_and, operand)) in operands.iter().enumerate() {
                    if index > 0 {
                        text += if *is_and { " and " } else { " || " };
                    }
                    text += &operand.text();
                }
                text + ")"
            }
        }
    }

    fn holds(&self, packet: &Packet) -> bool {
        let payload = &packet.payload;
        match self {
            Self::Pcap(_, holds) => holds(packet),
            Self::Contains(bytes) => payload.windows(bytes.len()).any(|window| window == bytes),
            Self::StartsWith(bytes) => payload.get(..bytes.len()) == Some(bytes),
            Self::Ignoring(bytes) => payload
                .windows(bytes.len())
                .any(|window| window.eq_ignore_ascii_case(bytes)),
            Self::Not(inner) => !inner.holds(packet),
            Self::Chain(operands) => {
                let mut all = operands.iter();
                let first = all.next().is_some_and(|(_, operand)| operand.holds(packet));
                all.fold(first, |left, (is_and, operand)| {
                    let right = operand.holds(packet);
                    if *is_and { left & right } else { left | right }
                })
            }
        }
    }
}

/// A UDP datagram with or without a VLAN tag, and with or without padding.
fn random_packet(random: &mut Rng) -> Packet {
    let len = random.usize(..40);
    let payload: Vec<u8> = (0..len)
        .map(|_| random.choice(*b"aabbAB\x00\"/\\").expect("not empty"))
        .collect();
    let mut frame = datagram(&payload);
    let is_tagged = random.bool();
    if is_tagged {
        frame.splice(12..12, [0x81, 0, 0, 7]);
    }
    if random.bool() {
        frame.extend_from_slice(b"abAB");
    }
    Packet {
        frame,
        payload,
        is_tagged,
    }
}

#[test]
fn generated_expressions_agree_with_the_naive_twin() {
    let seed = fastrand::u64(..);
    let mut random = Rng::with_seed(seed);
    let packets: Vec<Packet> = (0..Program::MANY)
        .map(|_| random_packet(&mut random))
        .collect();
    let frames: Vec<FilterFrame<'_>> = packets
        .iter()
        .map(|packet| {
            let wire_len = u32::try_from(packet.frame.len()).expect("a short frame");
            FilterFrame::new(&packet.frame, wire_len, Aux::default())
        })
        .collect();
    let mut matched = 0;
    for _ in 0..400 {
        let naive = OracleExpression::random(&mut random, 3);
        let text = naive.text();
        let filter = filter(&text);
        let found = filter.matches_many(LINK, 0, &frames);
        for (index, packet) in packets.iter().enumerate() {
            let expected = naive.holds(packet);
            let data = &packet.frame;
            let one = filter.matches(&view(LinkType::ETHERNET, data));
            let context = || format!("seed {seed}, {data:02x?}:\n{text}");
            assert_eq!(one, expected, "alone: {}", context());
            assert_eq!(found >> index & 1 == 1, expected, "together: {}", context());
            matched += u32::from(expected);
        }
    }
    let all = 400 * 64;
    assert!(
        (all / 10..all * 9 / 10).contains(&matched),
        "seed {seed}: {matched} of {all} say little"
    );
}

#[test]
fn real_packets_agree_with_the_naive_twin() {
    let Some(traces) = shared("traces") else {
        return;
    };
    let seed = fastrand::u64(..);
    let mut random = Rng::with_seed(seed);
    let (mut asked, mut matched) = (0, 0);
    for path in captures(&traces) {
        let Some(capture) = Capture::read(&path) else {
            continue;
        };
        for _ in 0..20 {
            // The search string is from any place in a random packet of the capture, headers and
            // padding included.
            let Some(packet) = random.choice(&capture.packets) else {
                break;
            };
            let start = random.usize(..=packet.data.len());
            let end = packet.data.len().min(start + random.usize(1..6));
            let needle = packet.data[start..end].to_vec();
            if needle.is_empty() {
                continue;
            }
            let hex: String = needle.iter().map(|byte| format!("\\x{byte:02x}")).collect();
            let text = format!("payload contains \"{hex}\"");
            let mut filter = Filter::plain(&text).expect("a term");
            let prefix = Filter::plain(&format!("payload startswith \"{hex}\"")).expect("a term");
            let pattern = Filter::plain(&format!("payload matches /{hex}/")).expect("a term");
            let mut others = [prefix, pattern];
            for packet in &capture.packets {
                let link = capture.links[packet.interface];
                let prepare = |filter: &mut Filter| filter.prepare(link).expect("no piece");
                prepare(&mut filter);
                others.iter_mut().for_each(prepare);
                let view = view(link.link_type, &packet.data);
                let parsed = parse(link.link_type, &packet.data);
                let payload = parsed.payload(&packet.data);
                let is_in = |payload: &[u8]| payload.windows(needle.len()).any(|w| w == needle);
                let contains = payload.is_some_and(is_in);
                let starts = payload.is_some_and(|payload| payload.starts_with(&needle));
                let found = [&filter, &others[0], &others[1]].map(|filter| filter.matches(&view));
                assert_eq!(
                    found,
                    [contains, starts, contains],
                    "seed {seed}, {}: {text} on {:02x?}",
                    path.display(),
                    packet.data
                );
                asked += 1;
                matched += u32::from(contains);
            }
        }
    }
    assert!(
        asked > 10_000 && matched > asked / 100,
        "{matched} of {asked}"
    );
}

/// Paths of all files with less than 100,000 bytes each in three folders of captures.
fn captures(traces: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut paths = Vec::new();
    for folder in ["apps", "encap", "linktypes"] {
        let entries = std::fs::read_dir(traces.join(folder)).expect("a folder of captures");
        for entry in entries {
            let entry = entry.expect("a readable folder");
            if entry.metadata().expect("a file").len() < 100_000 {
                paths.push(entry.path());
            }
        }
    }
    paths.sort();
    paths
}
