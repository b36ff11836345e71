//! The flow log of a real Suricata, line by line, beside ours of the same captures. What differs is of a class that packets or the line itself tell.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "helpers of tests, which may"
)]

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::path::Path;

use retroscope_eve::{About, flow};
use retroscope_flow::{Secret, Tracker, TrackerConfig};
use retroscope_packet::{LinkType, community_id, parse};
use retroscope_pcapfile::Reader;
use serde_json::Value;

/// Packets and bytes.
type Counts = [u64; 2];

/// What is told of a flow, by Suricata or by us.
#[derive(Debug, Clone)]
struct Line {
    start: String,
    /// Client and server: address, and port if there is one.
    ends: [(String, Option<u64>); 2],
    /// What each of them sent.
    sent: [Counts; 2],
    state: String,
    /// Suricata's: `00` where it has no session.
    tcp_flags: String,
    tcp_state: String,
}

/// Community ID and VLAN identifiers.
type Key = (String, String);

fn read_line(text: &str) -> (Key, Line) {
    let line: Value = serde_json::from_str(text).unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let count = |name: &str| line["flow"][name].as_u64().unwrap();
    let end = |addr: &str, port: &str| (text(&line[addr]), line[port].as_u64());
    let read = Line {
        start: text(&line["flow"]["start"]),
        ends: [end("src_ip", "src_port"), end("dest_ip", "dest_port")],
        sent: [
            [count("pkts_toserver"), count("bytes_toserver")],
            [count("pkts_toclient"), count("bytes_toclient")],
        ],
        state: text(&line["flow"]["state"]),
        tcp_flags: text(&line["tcp"]["tcp_flags"]),
        tcp_state: text(&line["tcp"]["state"]),
    };
    (
        (text(&line["community_id"]), line["vlan"].to_string()),
        read,
    )
}

/// What the packets of a capture tell beside its flows.
#[derive(Debug, Default)]
struct Packets {
    /// Community IDs of their outer headers.
    outside: HashSet<String>,
    /// Addresses between which fragments went, smaller one first.
    fragments: HashSet<[String; 2]>,
    /// By the Community ID of the packet that they answer, ICMP errors.
    errors: HashMap<String, Counts>,
    /// There are packets that were cut short or are damaged.
    is_damaged: bool,
}

/// Suricata writes IPv6 addresses in full, and so do we.
fn pair(ends: &[(String, Option<u64>); 2]) -> [String; 2] {
    let mut pair = [ends[0].0.clone(), ends[1].0.clone()];
    pair.sort();
    pair
}

fn shown(addr: std::net::IpAddr) -> String {
    match addr {
        std::net::IpAddr::V4(addr) => addr.to_string(),
        std::net::IpAddr::V6(addr) => {
            let groups = addr.segments().map(|group| format!("{group:04x}"));
            groups.join(":")
        }
    }
}

/// The lines of a capture, by key, and what its packets tell.
fn ours(path: &Path) -> (HashMap<Key, Vec<Line>>, Packets) {
    let mut tracker = Tracker::new(&TrackerConfig::default(), Secret::random());
    let (mut lines, mut packets) = (HashMap::<_, Vec<_>>::new(), Packets::default());
    let mut ended = |ended| {
        let mut out = Vec::new();
        if flow(&mut out, &ended, &About::default()) {
            let (key, line) = read_line(str::from_utf8(&out).unwrap());
            lines.entry(key).or_default().push(line);
        }
    };
    let mut reader = Reader::open(path).unwrap();
    while let Ok(1..) = reader.fill() {
        for meta in reader.records() {
            let link_type = reader.interfaces()[usize::from(meta.interface)].link_type;
            let data = &reader.memory()[meta.offset..][..meta.captured_len as usize];
            let parsed = parse(link_type, data);
            packets.is_damaged |= meta.captured_len < meta.wire_len;
            packets.outside.extend(community_id(&parsed, 0));
            if let Some(ip) = parsed.network.filter(|ip| ip.fragment.is_some()) {
                let mut pair = [shown(ip.src), shown(ip.dst)];
                pair.sort();
                packets.fragments.insert(pair);
            }
            let inner = parsed.icmp.and_then(|_| parsed.payload(data));
            if let Some(id) = inner.and_then(|inner| community_id(&parse(LinkType::RAW, inner), 0))
            {
                let errors = packets.errors.entry(id).or_default();
                errors[0] += 1;
                errors[1] += u64::from(meta.wire_len);
            }
            let told = (meta.time_ns, meta.wire_len);
            tracker.packet((meta.interface, link_type), told, data, &mut ended);
        }
    }
    tracker.finish(&mut ended);
    (lines, packets)
}

/// What each end sent in all lines of a key.
fn sums(lines: &[Line]) -> BTreeMap<(String, Option<u64>), Counts> {
    let mut sums = BTreeMap::<_, Counts>::new();
    for line in lines {
        for (end, sent) in line.ends.iter().zip(line.sent) {
            let sum = sums.entry(end.clone()).or_default();
            sum[0] += sent[0];
            sum[1] += sent[1];
        }
    }
    sums.retain(|_, sum| *sum != [0, 0]);
    sums
}

fn total(lines: &[Line]) -> Counts {
    let each = lines.iter().flat_map(|line| line.sent);
    each.fold([0, 0], |sum, sent| [sum[0] + sent[0], sum[1] + sent[1]])
}

/// The class of a line of Suricata's; `theirs` are all of its key, as `ours`.
fn class(
    line: &Line,
    key: &Key,
    theirs: &[Line],
    ours: &[Line],
    packets: &Packets,
) -> &'static str {
    let same = ours
        .iter()
        .find(|our| our.start == line.start && our.ends == line.ends && our.sent == line.sent);
    if let Some(our) = same {
        return match our {
            our if our.state == line.state => "equal",
            _ if line.tcp_flags == "00" => "equal, no session midstream",
            our if our.state == "closed" && line.tcp_state != "closed" => "equal, reset not taken",
            _ => "",
        };
    }
    if !packets.outside.contains(&key.0) {
        return "inside a tunnel";
    }
    if sums(theirs) == sums(ours) {
        return "cut elsewhere";
    }
    if packets.fragments.contains(&pair(&line.ends)) {
        return "fragments";
    }
    let (more, less) = (total(theirs), total(ours));
    let errors = packets.errors.get(&key.0).copied().unwrap_or_default();
    if errors[0] > 0 && more == [less[0] + errors[0], less[1] + errors[1]] {
        return "ICMP errors";
    }
    if packets.is_damaged {
        return "cut packets";
    }
    ""
}

#[test]
fn suricatas_flow_log_says_the_same_or_differs_for_a_reason() {
    let shared = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    let Ok(manifest) = fs::read_to_string(shared.join("eve/MANIFEST.tsv")) else {
        eprintln!("SKIP: no flow logs below {}", shared.display());
        return;
    };
    let mut classes = BTreeMap::<&str, usize>::new();
    let mut unexplained = Vec::new();
    for row in manifest.lines().skip(1) {
        let fields: Vec<_> = row.split('\t').collect();
        let [name, capture, "plain", ..] = fields[..] else {
            continue;
        };
        let Ok(text) = fs::read_to_string(shared.join(format!("eve/{name}.flows.json"))) else {
            continue;
        };
        let (ours, packets) = ours(&shared.join(capture));
        let mut theirs = HashMap::<Key, Vec<Line>>::new();
        for (key, line) in text.lines().map(read_line) {
            theirs.entry(key).or_default().push(line);
        }
        for (key, lines) in &theirs {
            let ours = ours.get(key).map_or(&[][..], Vec::as_slice);
            for line in lines {
                let class = class(line, key, lines, ours, &packets);
                *classes.entry(class).or_default() += 1;
                if class.is_empty() {
                    unexplained.push((name.to_owned(), line.clone(), ours.to_owned()));
                }
            }
        }
    }
    eprintln!("{classes:#?}");
    assert!(
        unexplained.is_empty(),
        "{:#?}",
        &unexplained[..unexplained.len().min(3)]
    );
    let all: usize = classes.values().sum();
    assert!(classes["equal"] * 100 >= all * 95, "{classes:?}");
}
