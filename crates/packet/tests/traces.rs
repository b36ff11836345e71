//! Tests on real captures. Flows and Community IDs must agree with the tables of other tools, and
//! truncating a frame may remove facts, but never change a fact.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "helpers of tests, which may"
)]

mod common;

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use retroscope_packet::{
    CommonHeaders, FlowKey, LinkType, ParseOutcome, Parsed, community_id, flow_of, fragment_of,
    may_be_fragment, parse,
    proto::{ETHER_ARP, SCTP, TCP, UDP},
    summary,
};

/// Packets and wire bytes of one conversation.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Count {
    packets: u64,
    bytes: u64,
}

/// The TCP or UDP conversations of a capture.
fn conversations(path: &std::path::Path, wanted: u8) -> HashMap<FlowKey, Count> {
    let mut found = HashMap::<FlowKey, Count>::new();
    for record in common::read(path) {
        let Some(key) = flow_of(&parse(record.link_type, &record.data)) else {
            continue;
        };
        if matches!(key, FlowKey::Ports { proto, .. } if proto == wanted) {
            let count = found.entry(key).or_default();
            count.packets += 1;
            count.bytes += u64::from(record.wire_len);
        }
    }
    found
}

fn proto_number(name: &str) -> u8 {
    match name {
        "tcp" => 6,
        "udp" => 17,
        _ => panic!("no such protocol in the table: {name}"),
    }
}

/// A capture with TCP inside GRE. The table counts the inner conversations, whereas our flow is the
/// outer flow. The totals without the tunnels are from `tshark -Y 'tcp && !gre && !icmp &&
/// !icmpv6'`.
const WITH_TUNNELS: (&str, [u64; 4]) =
    ("traces/large/mix-a.pcap", [1643, 55_762, 25_896_765, 7276]);

#[test]
fn conversation_totals_agree_with_the_table() {
    let Some(shared) = common::shared() else {
        return;
    };
    let rows = common::table(&shared.join("flows-expected.tsv"));
    assert!(!rows.is_empty());
    for row in rows {
        let [trace, proto, expected @ ..] = &row[..] else {
            panic!("short row {row:?}")
        };
        let found = conversations(&shared.join(trace), proto_number(proto));
        let packets: u64 = found.values().map(|count| count.packets).sum();
        let bytes: u64 = found.values().map(|count| count.bytes).sum();
        let largest = found.values().map(|count| count.packets).max().unwrap_or(0);
        let number = |index: usize| expected[index].parse::<u64>().unwrap();
        let expected = match WITH_TUNNELS {
            (name, totals) if name == trace => totals,
            _ => [number(0), number(2), number(3), number(4)],
        };
        assert_eq!(
            [found.len() as u64, packets, bytes, largest],
            expected,
            "{trace} {proto}: conversations, packets, bytes, largest"
        );
    }
}

#[test]
fn each_conversation_agrees_with_the_table() {
    let Some(shared) = common::shared() else {
        return;
    };
    let mut expected = HashMap::<(String, String), HashMap<String, Count>>::new();
    for row in common::table(&shared.join("flows-detail.tsv")) {
        let number = |index: usize| row[index].parse::<u64>().unwrap();
        let count = Count {
            packets: number(6) + number(8),
            bytes: number(7) + number(9),
        };
        let ends = [(&row[2], &row[3]), (&row[4], &row[5])].map(|(addr, port)| {
            let (addr, port): (IpAddr, u16) = (addr.parse().unwrap(), port.parse().unwrap());
            (addr, port)
        });
        let name = format!("{:?} {:?}", ends.iter().min(), ends.iter().max());
        expected
            .entry((row[0].clone(), row[1].clone()))
            .or_default()
            .insert(name, count);
    }
    assert!(!expected.is_empty());
    for ((trace, proto), mut expected) in expected {
        let found: HashMap<String, Count> =
            conversations(&shared.join(&trace), proto_number(&proto))
                .into_iter()
                .map(|(key, count)| match key {
                    FlowKey::Ports { low, high, .. } => (
                        format!(
                            "{:?} {:?}",
                            Some(&(low.addr, low.port)),
                            Some(&(high.addr, high.port))
                        ),
                        count,
                    ),
                    other => panic!("not a conversation: {other}"),
                })
                .collect();
        if trace == WITH_TUNNELS.0 {
            expected.retain(|name, _| found.contains_key(name));
        }
        assert_eq!(found, expected, "{trace} {proto}");
    }
}

#[test]
fn community_ids_agree_with_the_table() {
    let Some(shared) = common::shared() else {
        return;
    };
    let mut ids = HashMap::<(String, u16), HashSet<String>>::new();
    let rows = common::table(&shared.join("community-id.tsv"));
    assert!(!rows.is_empty());
    for row in rows {
        let seed: u16 = row[1].parse().unwrap();
        let ids = ids.entry((row[0].clone(), seed)).or_insert_with(|| {
            let records = common::read(&shared.join(&row[0]));
            let parsed = records
                .iter()
                .map(|record| parse(record.link_type, &record.data));
            parsed
                .filter_map(|parsed| community_id(&parsed, seed).map(|id| describe(&parsed, &id)))
                .collect()
        });
        let id = if row[2] == "hex" {
            from_hex(&row[8])
        } else {
            row[8].clone()
        };
        let wanted = [&row[3], &row[4], &row[6], &id]
            .map(String::as_str)
            .join(" ");
        assert!(
            ids.contains(&wanted),
            "{row:?}: not among {} of this capture",
            ids.len()
        );
    }
}

/// Protocol, addresses and Community ID, separated by spaces.
fn describe(parsed: &Parsed, id: &str) -> String {
    let ip = parsed.network.unwrap();
    format!("{} {} {} {id}", ip.proto.unwrap(), ip.src, ip.dst)
}

/// Converts a Community ID from hexadecimal digits to base64. Both forms start with `1:`.
fn from_hex(id: &str) -> String {
    let digits = id.strip_prefix("1:").unwrap();
    let bytes: Vec<u8> = (0..digits.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap())
        .collect();
    format!("1:{}", STANDARD.encode(bytes))
}

/// Fails unless the facts of `short` are also facts of `whole`. Does not compare the offsets of the
/// IP and transport headers.
fn assert_fewer_facts(short: &Parsed, whole: &Parsed, context: &dyn Fn() -> String) {
    macro_rules! same_or_unknown {
        ($($short:expr, $whole:expr;)*) => {
            $(if $short.is_some() {
                assert_eq!($short, $whole, "{}: {}", stringify!($short), context());
            })*
        };
    }
    same_or_unknown! {
        short.src_mac, whole.src_mac;
        short.dst_mac, whole.dst_mac;
        short.ether_type, whole.ether_type;
        short.link_protocol, whole.link_protocol;
        short.llc, whole.llc;
        short.transport, whole.transport;
        short.tcp_flags, whole.tcp_flags;
        short.tcp_seq, whole.tcp_seq;
        short.icmp, whole.icmp;
        short.payload_offset, whole.payload_offset;
        short.payload_end, whole.payload_end;
        flow_of(short), flow_of(whole);
        fragment_of(short), fragment_of(whole);
        community_id(short, 0), community_id(whole, 0);
    }
    assert!(
        whole.vlan.tags().starts_with(short.vlan.tags()),
        "{}",
        context()
    );
    if let Some(ip) = short.network {
        let other = whole
            .network
            .unwrap_or_else(|| panic!("network: {}", context()));
        assert_eq!(
            (ip.src, ip.dst, ip.len),
            (other.src, other.dst, other.len),
            "{}",
            context()
        );
        same_or_unknown! { ip.proto, other.proto; ip.fragment, other.fragment; }
    }
    if short.outcome == ParseOutcome::Malformed {
        assert_eq!(whole.outcome, ParseOutcome::Malformed, "{}", context());
    }
}

#[test]
fn a_shorter_capture_yields_the_same_facts_or_fewer() {
    let Some(shared) = common::shared() else {
        return;
    };
    let (mut frames, mut complete) = (0, 0);
    for path in common::captures(&shared.join("traces")) {
        // At most 500 frames of each capture are cut at every length below 300 bytes. Headers
        // usually end well before.
        let records = common::read(&path);
        let step = records.len().div_ceil(500).max(1);
        for (index, record) in records.iter().enumerate().step_by(step) {
            let whole = parse(record.link_type, &record.data);
            assert!(
                whole
                    .payload_offset
                    .is_none_or(|offset| offset <= record.data.len())
            );
            frames += 1;
            complete += u32::from(whole.outcome == ParseOutcome::Complete);
            for len in 0..record.data.len().min(300) {
                let short = parse(record.link_type, &record.data[..len]);
                assert!(short.payload_offset.is_none_or(|offset| offset <= len));
                let context = || {
                    format!(
                        "{} frame {} cut to {len}: {short:?}",
                        path.display(),
                        index + 1
                    )
                };
                assert_fewer_facts(&short, &whole, &context);
            }
            assert!(
                summary(record.link_type, &record.data, record.wire_len)
                    .to_string()
                    .contains(" len ")
            );
        }
    }
    assert!(
        frames > 10_000 && complete > frames / 2,
        "{frames} frames, {complete} complete"
    );
}

#[test]
fn mutated_frames_yield_no_fact_that_a_cut_changes() {
    let Some(shared) = common::shared() else {
        return;
    };
    let seed = fastrand::u64(..);
    eprintln!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut frames = Vec::new();
    for folder in ["encap", "linktypes"] {
        for path in common::captures(&shared.join("traces").join(folder)) {
            frames.extend(common::read(&path).into_iter().take(20).filter(|record| {
                parse(record.link_type, &[]).outcome != ParseOutcome::UnknownLinkType
            }));
        }
    }
    let mut common_frames = 0;
    for _ in 0..200_000 {
        let record = &frames[random.usize(..frames.len())];
        let mut data = record.data[..record.data.len().min(200)].to_vec();
        for _ in 0..random.usize(1..6) {
            if let Some(at) = data.len().min(90).checked_sub(1) {
                data[random.usize(..=at)] = random.u8(..);
            }
        }
        let whole = parse(record.link_type, &data);
        assert!(
            whole
                .payload_offset
                .is_none_or(|offset| offset <= data.len())
        );
        assert!(
            fragment_of(&whole).is_none() || may_be_fragment(record.link_type, &data),
            "seed {seed} {data:02x?}"
        );
        if record.link_type == LinkType::ETHERNET
            && let Some(headers) = CommonHeaders::read(&data)
        {
            common_frames += 1;
            let context = format!("seed {seed} {data:02x?} {headers:?}");
            assert_eq!(as_common(&whole, &data), headers, "{context}");
            if let Some(start) = whole.payload_offset
                && matches!(headers.proto, TCP | UDP)
                && headers.fragment & 0x1fff == 0
            {
                let end = whole.payload_end.unwrap_or(usize::MAX);
                assert_eq!(headers.payload(&data), Some((start, end)), "{context}");
            }
            if let Some(ports) = whole.transport {
                let bytes = [ports.src.to_be_bytes(), ports.dst.to_be_bytes()].concat();
                let read = headers.transport::<4>(&data).map(|read| &read[..]);
                assert_eq!(read, Some(&bytes[..]), "{context}");
            } else if matches!(headers.proto, TCP | UDP | SCTP) && headers.fragment & 0x1fff == 0 {
                assert_eq!(headers.transport::<4>(&data), None, "{context}");
            }
        }
        let len = random.usize(..=data.len());
        let short = parse(record.link_type, &data[..len]);
        assert_fewer_facts(&short, &whole, &|| {
            format!("seed {seed} cut to {len}: {data:02x?} {short:?}")
        });
    }
    assert!(common_frames > 1000, "{common_frames} common frames");
}

/// The result that [`CommonHeaders::read`] must give for an Ethernet frame, if it gives a result.
fn as_common(parsed: &Parsed, data: &[u8]) -> CommonHeaders {
    let Some(ip) = parsed.network else {
        assert_eq!(parsed.ether_type, Some(ETHER_ARP));
        return CommonHeaders::default();
    };
    let (version, addresses, header) = match ip.src {
        IpAddr::V4(_) => (4, 26, usize::from(data[14] & 15) * 4),
        IpAddr::V6(_) => (6, 22, 40),
    };
    let addrs = match (ip.src, ip.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => [src.octets(), dst.octets()].concat(),
        (IpAddr::V6(src), IpAddr::V6(dst)) => [src.octets(), dst.octets()].concat(),
        mixed => panic!("{mixed:?}"),
    };
    assert!(data[addresses..].starts_with(&addrs));
    CommonHeaders {
        version,
        proto: ip.proto.unwrap(),
        fragment: ip.fragment.map_or(0, |piece| {
            u16::try_from(piece.offset / 8).unwrap() | u16::from(piece.more) << 13
        }),
        addresses,
        transport: 14 + header,
        end: ip.len.map_or(usize::MAX, |len| 14 + len as usize),
    }
}
