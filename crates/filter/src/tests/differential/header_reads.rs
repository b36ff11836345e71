//! If [`Filter::reads_headers_only`] accepts a filter, the filter must give the same answer for two
//! packets that differ only in their payload.

use retroscope_packet::{LinkType, ParseOutcome, parse};

use super::{Trials, expressions::expression};
use crate::{Aux, Filter, FilterMode, LinkContext};

const LINK_TYPES: [LinkType; 4] = [
    LinkType::ETHERNET,
    LinkType::RAW,
    LinkType::LINUX_SLL,
    LinkType::LINUX_SLL2,
];

/// Primitives by which a user may try to read payload.
const HOSTILE: [&str; 20] = [
    "mpls",
    "mpls 100",
    "mpls 1000",
    "vlan",
    "vlan 10",
    "pppoes",
    "pppoes 7",
    "geneve",
    "udp[8] = 10",
    "udp[4:2] > 20",
    "tcp[20:2] = 80",
    "tcp[(tcp[12] >> 4) * 4] = 10",
    "icmp[2:2] = 0",
    "icmp[4:2] = 10",
    "ip[20:2] = 80",
    "ip6[40] = 10",
    "arp[24:4] = 0x0a000001",
    "rarp host 10.0.0.1",
    "ether[40] = 0x45",
    "ip6 protochain 17",
];

fn filter(text: &str, link_type: LinkType, optimize: bool) -> Option<Filter> {
    let mut filter = Filter::plain(text).ok()?;
    let link = LinkContext {
        link_type,
        snaplen: 65_535,
        mode: FilterMode::Savefile,
        optimize,
    };
    filter.prepare(link).ok()?;
    Some(filter)
}

fn is_accepted(text: &str, link_type: LinkType) -> bool {
    let filter = filter(text, link_type, true).unwrap_or_else(|| panic!("{text}"));
    filter.reads_headers_only(link_type, FilterMode::Savefile)
}

/// A random expression: `HOSTILE` primitives and those of `expressions.rs`, joined by `and`, `or`
/// and `not`.
fn text(random: &mut fastrand::Rng, depth: u32) -> String {
    if depth == 0 {
        return match random.bool() {
            true => HOSTILE[random.usize(..HOSTILE.len())].to_owned(),
            false => expression(random, 1),
        };
    }
    let (left, right) = (text(random, depth - 1), text(random, depth - 1));
    match random.u8(..4) {
        0 => format!("not ({left})"),
        1 | 2 => format!("({left}) and ({right})"),
        _ => format!("({left}) or ({right})"),
    }
}

/// 60 bytes, mostly values that filters compare with, such as addresses, ports and tags.
fn payload(random: &mut fastrand::Rng) -> Vec<u8> {
    const PIECES: [&[u8]; 12] = [
        &[0x81, 0, 0, 10],
        &[0x08, 0],
        &[0x88, 0x47],
        &[0, 6, 0x41, 64],
        &[0, 0x3e, 0x80, 64],
        &[0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0],
        &[10, 0, 0, 1],
        &[0, 80, 0, 53],
        &[0x88, 0x64, 0x11, 0, 0, 7, 0, 9, 0, 0x21],
        &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 8, 17, 64],
        &[0, 10],
        &[6, 17],
    ];
    let mut bytes = Vec::new();
    while bytes.len() < 60 {
        match random.u8(..4) {
            0 => bytes.push(random.u8(..)),
            _ => bytes.extend_from_slice(PIECES[random.usize(..PIECES.len())]),
        }
    }
    bytes.truncate(60);
    bytes
}

/// A random packet: link header, up to two tags, sometimes MPLS, PPPoE or an EtherType other than
/// IP, then IP. For raw IP, only the IP packet. The length field of IPv6 covers the rest of the
/// packet; that of IPv4 is 0.
fn packet(random: &mut fastrand::Rng, link_type: LinkType) -> Vec<u8> {
    let is_v4 = random.bool();
    let network = match is_v4 {
        true => ipv4(random),
        false => ipv6(random),
    };
    let (mut data, type_at) = match link_type {
        LinkType::RAW => return network,
        LinkType::ETHERNET => (vec![0xff; 14], 12),
        LinkType::LINUX_SLL => ([&[0, 0, 0, 1, 0, 6][..], &[2; 10]].concat(), 14),
        _ => ([&[0; 8][..], &[0, 1, 0, 6], &[2; 8]].concat(), 0),
    };
    let ip = if is_v4 { [0x08, 0] } else { [0x86, 0xdd] };
    let mut types = Vec::new();
    for _ in 0..random.usize(..3) {
        types.push(([[0x81, 0], [0x88, 0xa8]][random.usize(..2)], vec![0, 10]));
    }
    match random.u8(..8) {
        0 => {
            let label = |last: u8| [0, 0x06, 0x40 | last, 64];
            types.push(([0x88, 0x47], [label(0), label(1)].concat()));
        }
        1 => {
            let protocol = if is_v4 { 0x21 } else { 0x57 };
            types.push(([0x88, 0x64], vec![0x11, 0, 0, 7, 0, 99, 0, protocol]));
        }
        2 => types.push(([0x08, 0x06], vec![0; 8])),
        3 => types.push(([0x80, 0x35], vec![0; 8])),
        4 => types.push(([0x88, 0xcc], vec![0; 8])),
        _ => types.push((ip, Vec::new())),
    }
    let mut type_at = type_at;
    for (number, (name, header)) in types.iter().enumerate() {
        data[type_at..type_at + 2].copy_from_slice(name);
        data.extend_from_slice(header);
        if number + 1 < types.len() {
            type_at = data.len();
            data.extend_from_slice(&[0, 0]);
        }
    }
    [data, network].concat()
}

/// The number of a protocol, and one of its headers.
fn transport(random: &mut fastrand::Rng, icmp: u8) -> (u8, Vec<u8>) {
    let ports = || [0, 80, 0, 53];
    match random.u8(..5) {
        0 => {
            let words = random.u8(5..9);
            let mut header = vec![0; usize::from(words) * 4];
            header[..4].copy_from_slice(&ports());
            (header[12], header[13]) = (words << 4, random.u8(..));
            (6, header)
        }
        1 => (17, [ports(), [0, 8, 0, 0]].concat()),
        2 => (132, [ports(), [0; 4], [0; 4]].concat()),
        3 => (icmp, vec![random.u8(..9), 0, 0, 0]),
        _ => (47, Vec::new()),
    }
}

fn ipv4(random: &mut fastrand::Rng) -> Vec<u8> {
    let words = random.u8(5..9);
    let (protocol, behind) = transport(random, 1);
    let mut header = vec![0; usize::from(words) * 4];
    header[0] = 0x40 | words;
    header[9] = protocol;
    header[12..16].copy_from_slice(&[10, 0, 0, 1]);
    let is_later = random.u8(..4) == 0;
    header[7] = u8::from(is_later);
    let behind = if is_later { Vec::new() } else { behind };
    [header, behind, payload(random)].concat()
}

fn ipv6(random: &mut fastrand::Rng) -> Vec<u8> {
    let (protocol, behind) = transport(random, 58);
    let mut header = vec![0; 40];
    (header[0], header[6]) = (0x60, protocol);
    let mut extension = Vec::new();
    if random.u8(..4) == 0 {
        header[6] = 44;
        extension = vec![protocol, 0, 0, 0, 0, 0, 0, 1];
    }
    let body = [extension, behind, payload(random)].concat();
    header[5] = u8::try_from(body.len()).expect("short");
    [header, body].concat()
}

/// The packet with other bytes after the headers. `None` if the headers are not whole, or if the
/// other bytes change where the headers end.
fn twin(random: &mut fastrand::Rng, link_type: LinkType, data: &[u8]) -> Option<Vec<u8>> {
    let parsed = parse(link_type, data);
    let end = parsed.headers_end();
    let mut other = data.to_vec();
    let rest = other.get_mut(end..)?;
    for (byte, new) in rest.iter_mut().zip(payload(random)) {
        *byte = new;
    }
    let same = parse(link_type, &other).headers_end() == end;
    (parsed.outcome == ParseOutcome::Complete && same).then_some(other)
}

#[test]
fn no_accepted_filter_tells_payloads_apart() {
    let (mut accepted, mut refused, mut told) = (0, 0, 0);
    for seed in Trials::new(6000) {
        let random = &mut fastrand::Rng::with_seed(seed);
        let link_type = LINK_TYPES[random.usize(..LINK_TYPES.len())];
        let depth = random.u32(..4);
        let text = text(random, depth);
        let Some(filter) = filter(&text, link_type, random.bool()) else {
            continue;
        };
        let is_accepted = filter.reads_headers_only(link_type, FilterMode::Savefile);
        (accepted, refused) = (
            accepted + u32::from(is_accepted),
            refused + u32::from(!is_accepted),
        );
        let program = filter
            .program(link_type, FilterMode::Savefile)
            .expect("plain");
        for _ in 0..30 {
            let one = packet(random, link_type);
            let Some(other) = twin(random, link_type, &one) else {
                continue;
            };
            let run = |data: &[u8]| program.run(data, 200, Aux::default()) != 0;
            let is_told = run(&one) != run(&other);
            assert!(
                !is_told || !is_accepted,
                "seed {seed}: {text} of link type {link_type:?}\n{one:02x?}\n{other:02x?}"
            );
            told += u32::from(is_told);
        }
    }
    // There were filters of both kinds, and some of the refused ones depend on payload.
    let counts = (accepted, refused, told);
    assert!(accepted > 400 && refused > 400 && told > 30, "{counts:?}");
}

#[test]
fn filters_on_headers_are_accepted() {
    for text in [
        "",
        "tcp",
        "udp port 53 and host 192.0.2.7",
        "port 80",
        "portrange 80-90 or icmp",
        "host 2001:db8::1 or net 10.0.0.0/8",
        "ether host 2:0:0:0:0:1 or broadcast",
        "arp or rarp host 10.0.0.1",
        "tcp[tcpflags] & tcp-rst != 0 or icmp[icmptype] = icmp-echo",
        "tcp[tcpflags] & (tcp-syn|tcp-fin) != 0",
        "icmp6[icmp6type] = 8",
        "ip[8] < 5 and udp[4:2] > 20",
        "not (tcp port 22 or tcp port 443) and less 100",
        "sctp port 80 or ip proto 47 or ip6 proto 6",
    ] {
        for link_type in LINK_TYPES {
            let is_known = link_type == LinkType::ETHERNET || !text.contains("ether");
            if is_known {
                assert!(is_accepted(text, link_type), "{text} of {link_type:?}");
            }
        }
    }
    for text in [
        "vlan",
        "vlan 10 and tcp port 80",
        "vlan and vlan 20 and host 10.0.0.1",
        "mpls 100 and mpls 200",
        "pppoes and tcp port 80",
    ] {
        assert!(is_accepted(text, LinkType::ETHERNET), "{text}");
    }
    let hosts: Vec<String> = (0..200).map(|n| format!("host 10.0.{n}.1")).collect();
    assert!(is_accepted(&hosts.join(" or "), LinkType::ETHERNET));
}

#[test]
fn filters_on_payload_are_refused() {
    for text in [
        "tcp[20:4] = 0x47455420",
        "tcp[tcpflags + 7] = 0",
        "udp[tcpflags] = 0",
        "ether[60] = 1",
        "ip[20:2] = 80",
        "tcp[((tcp[12:1]&0xf0)>>2):4] = 0",
        "icmp[4:2] = 0",
        "udp port 6081 and geneve and host 10.0.0.1",
        "mpls or mpls or mpls or mpls 74565",
        "vlan or vlan or vlan 77",
        "vlan 10 or host 10.0.0.1",
        "ip6 protochain 17",
    ] {
        assert!(!is_accepted(text, LinkType::ETHERNET), "{text}");
    }
    let filter = Filter::plain("udp and payload contains \"x\"").expect("a filter");
    assert!(!filter.reads_headers_only(LinkType::ETHERNET, FilterMode::Savefile));
}
