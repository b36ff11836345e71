//! Tests on real captures. The flow table must agree with tshark's tables of conversations, and
//! must count every packet once.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "helpers of tests, which may"
)]

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use retroscope_flow::{Attribution, Flow, FlowTable, Secret, TimeOuts};
use retroscope_packet::parse;
use retroscope_packet::proto::{TCP, UDP};
use retroscope_pcapfile::CaptureReader;

/// The folder `shared` next to the checkout, with captures. `None` if there is no such folder.
fn shared() -> Option<PathBuf> {
    let shared = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    if shared.is_dir() {
        return Some(shared);
    }
    eprintln!(
        "SKIP: no captures at {}: nothing was tested",
        shared.display()
    );
    None
}

fn rows(path: &Path) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(path).unwrap();
    let lines = text.lines().skip(1);
    lines
        .map(|line| line.split('\t').map(str::to_owned).collect())
        .collect()
}

/// Every file below a folder except `.tsv` and `.md` files, in order of path.
fn captures(folder: &Path) -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let is_table = path
                .extension()
                .is_some_and(|ext| ext == "tsv" || ext == "md");
            if path.is_dir() {
                folders.push(path);
            } else if !is_table {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The flows of a capture, up to its end or the first damage.
struct Found {
    flows: Vec<Flow>,
    packets: u64,
    /// Number of packets with a flow, and the sum of the packets' lengths on the wire.
    attributed: [u64; 2],
    unattributed: u64,
}

fn read(path: &Path, time_outs: TimeOuts, joins_fragments: bool) -> Found {
    let mut attribution = Attribution::new(false, joins_fragments);
    let mut at_once = attribution.clone();
    let mut table = FlowTable::new(100_000, time_outs, Secret::random());
    let (mut batch, mut flows) = (Vec::new(), Vec::new());
    let (mut packets, mut attributed, mut now) = (0, [0, 0], i64::MIN);
    if let Ok(mut reader) = CaptureReader::open(path) {
        while let Ok(1..) = reader.fill() {
            for meta in reader.records() {
                let link_type = reader.interfaces()[usize::from(meta.interface)].link_type;
                let data = &reader.memory()[meta.offset..][..meta.captured_len as usize];
                let parsed = parse(link_type, data);
                packets += 1;
                now = now.max(meta.time_ns);
                let packet = attribution.packet(&parsed, data, meta.time_ns, meta.wire_len);
                let at_once = at_once.frame(link_type, data, meta.time_ns, meta.wire_len);
                assert_eq!(at_once, packet, "{path:?}: packet {packets}");
                if let Some(packet) = packet {
                    attributed[0] += 1;
                    attributed[1] += u64::from(packet.wire_len);
                    batch.push(packet);
                }
            }
            table.update(&batch, |flow, _| flows.push(*flow));
            table.expire(now, |flow, _| flows.push(*flow));
            batch.clear();
        }
    }
    table.finish(|flow, _| flows.push(*flow));
    Found {
        flows,
        packets,
        attributed,
        unattributed: attribution.unattributed(),
    }
}

/// The conversations of a capture as tshark counts: fragments without ports have no conversation.
fn conversations(path: &Path, proto: &str) -> Vec<Flow> {
    let proto = match proto {
        "tcp" => TCP,
        "udp" => UDP,
        other => panic!("no such protocol in the table: {other}"),
    };
    let mut flows = read(path, TimeOuts::idle(0), false).flows;
    flows.retain(|flow| flow.key().proto() == proto);
    flows
}

/// A capture with TCP inside GRE. tshark counts the inner conversations, whereas the flow table has
/// the outer flow. These totals, without the inner conversations, are from `tshark -Y 'tcp && !gre
/// && !icmp && !icmpv6'`: conversations, packets, bytes, and packets of the largest conversation.
const WITH_TUNNELS: (&str, [u64; 4]) =
    ("traces/large/mix-a.pcap", [1643, 55_762, 25_896_765, 7276]);

#[test]
fn totals_agree_with_the_table() {
    let Some(shared) = shared() else { return };
    let rows = rows(&shared.join("flows-expected.tsv"));
    assert!(!rows.is_empty());
    for row in rows {
        let [trace, proto, numbers @ ..] = &row[..] else {
            panic!("short row {row:?}")
        };
        let flows = conversations(&shared.join(trace), proto);
        let packets = flows
            .iter()
            .map(|flow| flow.packets()[0] + flow.packets()[1]);
        let bytes = flows.iter().map(|flow| flow.bytes()[0] + flow.bytes()[1]);
        let found = [
            flows.len() as u64,
            packets.clone().sum(),
            bytes.sum(),
            packets.max().unwrap_or(0),
        ];
        let number = |index: usize| numbers[index].parse().unwrap();
        let expected = match WITH_TUNNELS {
            (name, totals) if name == trace => totals,
            _ => [number(0), number(2), number(3), number(4)],
        };
        assert_eq!(
            found, expected,
            "{trace} {proto}: conversations, packets, bytes, largest"
        );
    }
}

type End = (IpAddr, u16);

/// Both ends, and the packets and bytes that each end sent, in order of the ends.
fn conversation(ends: [End; 2], sent: [[u64; 2]; 2]) -> ([End; 2], [[u64; 2]; 2]) {
    let ([a, b], [from_a, from_b]) = (ends, sent);
    if a <= b {
        (ends, sent)
    } else {
        ([b, a], [from_b, from_a])
    }
}

#[test]
fn each_conversation_agrees_with_the_table_both_ways() {
    let Some(shared) = shared() else { return };
    let mut expected = HashMap::<_, HashMap<_, _>>::new();
    for row in rows(&shared.join("flows-detail.tsv")) {
        let number = |index: usize| row[index].parse::<u64>().unwrap();
        let end = |index: usize| -> End {
            let (addr, port) = (row[index].parse(), row[index + 1].parse());
            (addr.unwrap(), port.unwrap())
        };
        let sent = [[number(6), number(7)], [number(8), number(9)]];
        let (ends, sent) = conversation([end(2), end(4)], sent);
        let capture = expected.entry((row[0].clone(), row[1].clone()));
        capture.or_default().insert(ends, (sent, [end(2), end(4)]));
    }
    assert!(!expected.is_empty());
    for ((trace, proto), mut expected) in expected {
        let flows = conversations(&shared.join(&trace), &proto);
        if trace == WITH_TUNNELS.0 {
            expected.retain(|ends, _| {
                let ends = Some(*ends);
                flows.iter().any(|flow| flow_ends(flow) == ends)
            });
        }
        assert_eq!(flows.len(), expected.len(), "{trace} {proto}");
        for flow in flows {
            let ends = flow_ends(&flow).unwrap();
            let [packets, bytes] = [flow.packets(), flow.bytes()];
            let sent = [[packets[0], bytes[0]], [packets[1], bytes[1]]];
            let (expected, [_, receiver]) = expected[&ends];
            assert_eq!(sent, expected, "{trace} {proto} {ends:?}");
            // In these captures the first SYN without ACK and the first packet have the same
            // receiver.
            assert_eq!(ends[flow.server()], receiver, "{trace} {proto} {ends:?}");
        }
    }
}

fn flow_ends(flow: &Flow) -> Option<[End; 2]> {
    let ends = flow.key().endpoints()?;
    Some(ends.map(|end| (end.addr, end.port)))
}

#[test]
fn every_packet_of_every_capture_is_counted_once() {
    let Some(shared) = shared() else { return };
    let captures = captures(&shared.join("traces"));
    assert!(!captures.is_empty());
    let mut joined = 0;
    for path in captures {
        let name = path.display();
        let [apart, found] =
            [false, true].map(|joins_fragments| read(&path, TimeOuts::default(), joins_fragments));
        let whole = read(&path, TimeOuts::idle(0), true);
        for found in [&apart, &found, &whole] {
            let sum = |of: fn(&Flow) -> [u64; 2]| -> u64 { found.flows.iter().flat_map(of).sum() };
            let sums = [sum(Flow::packets), sum(Flow::bytes)];
            assert_eq!(sums, found.attributed, "{name}");
            assert_eq!(found.packets, sums[0] + found.unattributed, "{name}");
            let is_odd = |flow: &Flow| flow.first_ns() > flow.last_ns();
            assert!(!found.flows.iter().any(is_odd), "{name}");
        }
        assert!(found.flows.len() >= whole.flows.len(), "{name}");
        assert!(apart.unattributed >= found.unattributed, "{name}");
        joined += apart.unattributed - found.unattributed;
    }
    assert!(joined > 0, "no fragment found its flow");
}
