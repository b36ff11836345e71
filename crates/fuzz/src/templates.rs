//! Checks that any text is an expression or an error with a position in the text.

use std::ops::Range;

use retroscope_filter::{
    Aux, Decision, FilledExpression, Filter, FilterFrame, FilterMode, LinkContext, PacketView,
    Template, TriggerFacts,
};
use retroscope_packet::{LinkType, parse};

/// Maximum length of a text, bytes. libpcap takes seconds for some longer texts.
const TEXT_BYTES_MAX: usize = 400;
/// Words that the target passes to libpcap, in addition to numbers and our variables. libpcap would
/// look up most other words as names in the system and in the network.
const WORDS: [&str; 48] = [
    "and",
    "or",
    "not",
    "host",
    "net",
    "port",
    "portrange",
    "src",
    "dst",
    "ether",
    "ip",
    "ip6",
    "arp",
    "rarp",
    "tcp",
    "udp",
    "icmp",
    "icmp6",
    "sctp",
    "igmp",
    "proto",
    "protochain",
    "vlan",
    "mpls",
    "less",
    "greater",
    "len",
    "mask",
    "gateway",
    "broadcast",
    "multicast",
    "link",
    "byte",
    "tcpflags",
    "syn",
    "fin",
    "inbound",
    "outbound",
    "ifindex",
    "pppoes",
    "geneve",
    "llc",
    "type",
    "subtype",
    "lsb",
    "msb",
    "decnet",
    "iso",
];

/// Names of variables, after a dollar sign.
const VARIABLES: [&str; 11] = [
    "srcIP",
    "dstIP",
    "srcPort",
    "dstPort",
    "proto",
    "srcMAC",
    "dstMAC",
    "vlan",
    "flow",
    "iface",
    "communityId",
];

/// A UDP datagram in a tagged Ethernet frame, with a payload.
const FRAME: [u8; 52] = [
    2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x81, 0, 0, 7, 8, 0, // link header, tag, IPv4
    0x45, 0, 0, 34, 0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, // 34 bytes with UDP
    0x04, 0x57, 0, 53, 0, 14, 0, 0, b'p', b'a', b'y', b'l', b'o', b'a', // 1111 to 53, 6 bytes
];

/// Input: the text, as UTF-8 with possible faults.
pub fn templates(data: &[u8]) {
    let data = &data[..data.len().min(TEXT_BYTES_MAX)];
    let text = String::from_utf8_lossy(data);
    let template = match Template::parse(&text) {
        Ok(template) => template,
        Err(error) => {
            assert_place(&text, error.span());
            assert!(error.render().starts_with("filter: "));
            return;
        }
    };
    assert_eq!(template.text(), text);
    let link = LinkContext {
        link_type: LinkType::ETHERNET,
        snaplen: 0,
        mode: FilterMode::Savefile,
        optimize: true,
    };
    let knows_all = is_known(&text);
    if knows_all && let Err(error) = template.check(link) {
        assert_place(&text, error.span());
        assert!(error.render().starts_with("filter: "));
    }
    let facts = TriggerFacts {
        parsed: parse(LinkType::ETHERNET, &FRAME),
        interface: 0,
        first_fragment: None,
    };
    let filled = template.fill(&facts).expect("the packet has everything");
    match template.clone().into_plain() {
        Ok(plain) => assert_eq!(plain, filled, "it asks for nothing"),
        Err(error) => assert_place(&text, error.span()),
    }
    if knows_all {
        evaluate(filled, link);
    }
}

/// Evaluates the filter on the packet truncated to several lengths: on all of them together, on
/// each alone, and with a state.
fn evaluate(filled: FilledExpression, link: LinkContext) {
    let mut filter = Filter::new(filled);
    if let Err(error) = filter.prepare(link) {
        assert_place(error.text(), error.span());
        return;
    }
    let lens = [0, 13, 17, 20, 37, 45, 46, 50, FRAME.len()];
    let wire_len = 60;
    let frames = lens.map(|len| FilterFrame::new(&FRAME[..len], wire_len, Aux::default()));
    let together = filter.matches_many((link.link_type, link.mode), 0, &frames);
    for (index, len) in lens.into_iter().enumerate() {
        let view = PacketView {
            link_type: link.link_type,
            mode: link.mode,
            interface: 0,
            aux: Aux::default(),
            data: &FRAME[..len],
            wire_len,
        };
        let alone = filter.matches(&view);
        assert_eq!(
            together >> index & 1 == 1,
            alone,
            "{} cut to {len}",
            filter.filled()
        );
        let verdict = filter.evaluate(&mut filter.state(), &view);
        assert_eq!(
            verdict.decision == Decision::Take,
            alone,
            "{}",
            filter.filled()
        );
    }
}

fn assert_place(text: &str, span: Range<usize>) {
    assert!(text.get(span.clone()).is_some(), "{span:?} of {text:?}");
}

/// Whether the text between our own terms may be passed to libpcap: each word is a known word, a
/// variable or a number.
fn is_known(text: &str) -> bool {
    if !text.is_ascii() || text.contains("\\\"") {
        return false;
    }
    let outside_strings = text.split('"').step_by(2);
    outside_strings.into_iter().all(|part| {
        let mut behind_payload = false;
        part.split_ascii_whitespace().all(|chunk| {
            let is_operator = matches!(chunk, "contains" | "startswith" | "matches");
            if behind_payload || is_operator {
                let is_term = behind_payload && is_operator;
                behind_payload = false;
                return is_term;
            }
            behind_payload = chunk.ends_with("payload");
            are_known(chunk)
        }) && !behind_payload
    })
}

/// Whether all words of a text without blanks are known words, variables or numbers. The text may
/// end with `payload`.
fn are_known(chunk: &str) -> bool {
    let chunk = chunk.strip_suffix("payload").unwrap_or(chunk);
    let mut before = ' ';
    let mut rest = chunk;
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_ascii_alphanumeric();
        let len = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let word = &rest[..len];
        let is_known = WORDS.contains(&word)
            || word.bytes().all(|byte| byte.is_ascii_digit())
            || (before == '$' && VARIABLES.contains(&word));
        if !is_known {
            return false;
        }
        (before, rest) = if len == 0 {
            (first, &rest[1..])
        } else {
            (' ', &rest[len..])
        };
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libpcap_gets_no_names_to_look_up() {
        for text in [
            "tcp port 80 or (udp and not net 10.0.0.0/8)",
            "host $srcIP and $flow",
            "payload contains \"some words\" and (payload matches /1/)",
        ] {
            assert!(is_known(text), "{text}");
        }
        for text in [
            "host example",
            "host payload",
            "payload",
            "host payload and tcp",
            "host srcIP",
            "port contains",
            "payload contains \"a\\\"\" or host a \"",
            "$flow or host \u{e4}",
        ] {
            assert!(!is_known(text), "{text}");
        }
    }
}
