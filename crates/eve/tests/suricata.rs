//! Compares the flow log of a real Suricata with ours, line by line, for the same captures. Each
//! difference belongs to a class that the packets or the line explain.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "helpers of tests, which may"
)]

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::net::IpAddr;
use std::path::Path;

use retroscope_eve::{FlowContext, flow};
use retroscope_flow::{Secret, Tracker, TrackerConfig};
use retroscope_packet::{
    FlowEndpoint, Icmp, LinkType, community_id, community_id_between, icmp_ports, parse,
};
use retroscope_pcapfile::CaptureReader;
use serde_json::Value;

/// Packets and bytes.
type Counts = [u64; 2];

/// The facts of a flow, from Suricata or from us.
#[derive(Debug, Clone)]
struct Line {
    start: String,
    /// Client and server, each with its address, and with its port if the line has a port.
    ends: [(String, Option<u64>); 2],
    /// Packets and bytes that the client and the server sent.
    sent: [Counts; 2],
    state: String,
    tcp_state: String,
    proto: String,
    icmp_type: Option<u64>,
    /// The Community ID has one of Suricata's own forms, see [`regular_id`].
    has_odd_id: bool,
}

/// Community ID and VLAN identifiers.
type Key = (String, String);

fn read_line(text: &str) -> (Key, Line) {
    let line: Value = serde_json::from_str(text).unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let count = |name: &str| line["flow"][name].as_u64().unwrap();
    let end = |addr: &str, port: &str| (text(&line[addr]), line[port].as_u64());
    let id = text(&line["community_id"]);
    let regular = regular_id(&line, &id);
    let read = Line {
        start: text(&line["flow"]["start"]),
        ends: [end("src_ip", "src_port"), end("dest_ip", "dest_port")],
        sent: [
            [count("pkts_toserver"), count("bytes_toserver")],
            [count("pkts_toclient"), count("bytes_toclient")],
        ],
        state: text(&line["flow"]["state"]),
        tcp_state: text(&line["tcp"]["state"]),
        proto: text(&line["proto"]),
        icmp_type: line["icmp_type"].as_u64(),
        has_odd_id: regular.is_some(),
    };
    ((regular.unwrap_or(id), line["vlan"].to_string()), read)
}

/// The Community ID according to the specification, if `id` has one of Suricata's own forms, which
/// usually differ from the specification. Otherwise `None`.
///
/// For ESP and IPv6 in IP, Suricata also hashes two ports. Both are 0, or the first is the low half
/// of ESP's security parameters index. For an ICMPv6 message without a reply Suricata hashes the
/// type and 0 instead of type and code, with the smaller address first.
fn regular_id(line: &Value, id: &str) -> Option<String> {
    let byte = |name: &str| u8::try_from(line[name].as_u64()?).ok();
    let [src, dst] = ["src_ip", "dest_ip"].map(|name| line[name].as_str().unwrap());
    let [src, dst]: [IpAddr; 2] = [src, dst].map(|addr| addr.parse().unwrap());
    let ends = |ports: [u16; 2]| {
        [(src, ports[0]), (dst, ports[1])].map(|(addr, port)| FlowEndpoint { addr, port })
    };
    let sorted = |ports| {
        let mut ends = ends(ports);
        ends.sort_by_key(|end| (end.addr, end.port));
        ends
    };
    let (proto, hashed, regular) = match line["proto"].as_str()? {
        "IPv6-ICMP" => {
            let [kind, code] = [byte("icmp_type")?, byte("icmp_code")?];
            let (ports, goes_one_way) = icmp_ports(Icmp { kind, code }, true);
            let ends = goes_one_way.then(|| ends([ports.src, ports.dst]))?;
            (58, [u16::from(kind), 0], (ends, true))
        }
        "ESP" => {
            let index = line["spi"].as_u64()?;
            let low = u16::try_from(index & 0xffff).unwrap();
            (50, [low, 0], (sorted([0; 2]), false))
        }
        "IPv6" => (41, [0; 2], (sorted([0; 2]), false)),
        _ => return None,
    };
    let odd = community_id_between(proto, sorted(hashed), true, 0);
    let (ends, has_ports) = regular;
    (odd == id).then(|| community_id_between(proto, ends, has_ports, 0))
}

/// Facts of the packets of a capture, in addition to its flows.
#[derive(Debug, Default)]
struct Packets {
    /// Community IDs of the packets' outer headers.
    outside: HashSet<String>,
    /// Pairs of addresses between which fragments were sent, sorted as text.
    fragments: HashSet<[String; 2]>,
    /// ICMP errors, by the Community ID of the packet that they report.
    errors: HashMap<String, Counts>,
    /// Some packets were truncated.
    is_damaged: bool,
}

/// Both addresses, sorted as text. Suricata writes IPv6 addresses in full, and so do our lines.
fn pair(ends: &[(String, Option<u64>); 2]) -> [String; 2] {
    let mut pair = [ends[0].0.clone(), ends[1].0.clone()];
    pair.sort();
    pair
}

fn shown(addr: IpAddr) -> String {
    match addr {
        IpAddr::V4(addr) => addr.to_string(),
        IpAddr::V6(addr) => {
            let groups = addr.segments().map(|group| format!("{group:04x}"));
            groups.join(":")
        }
    }
}

/// Our lines of a capture, by key, and the facts of its packets.
fn ours(path: &Path) -> (HashMap<Key, Vec<Line>>, Packets) {
    let mut tracker = Tracker::new(&TrackerConfig::default(), Secret::random());
    let (mut lines, mut packets) = (HashMap::<_, Vec<_>>::new(), Packets::default());
    let mut ended = |ended| {
        let mut out = Vec::new();
        if flow(&mut out, &ended, &FlowContext::default()) {
            let (key, line) = read_line(str::from_utf8(&out).unwrap());
            lines.entry(key).or_default().push(line);
        }
    };
    let mut reader = CaptureReader::open(path).unwrap();
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

fn total(lines: &[Line]) -> Counts {
    let each = lines.iter().flat_map(|line| line.sent);
    each.fold([0, 0], |sum, sent| [sum[0] + sent[0], sum[1] + sent[1]])
}

/// The class of a line of Suricata; empty if the difference is not explained. `theirs` and `ours`
/// are all lines of Suricata and all our lines with the key of this line.
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
            our if our.state == line.state && line.has_odd_id => "equal, another Community ID",
            our if our.state == line.state => "equal",
            our if our.state == "closed" && line.tcp_state != "closed" => "equal, reset not taken",
            _ => "",
        };
    }
    // Suricata separates directions only for TCP, UDP, SCTP and ICMP.
    let is_other = !matches!(&*line.proto, "TCP" | "UDP" | "SCTP" | "ICMP" | "IPv6-ICMP");
    if is_other && line.sent == [total(ours), [0, 0]] {
        return "both directions as one";
    }
    if !packets.outside.contains(&key.0) {
        return "inside a tunnel";
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

/// The class of one of our lines with a key, start and ends that no line of Suricata has; empty if
/// the line is not explained.
fn class_of_other(line: &Line, packets: &Packets) -> &'static str {
    match (&*line.proto, line.icmp_type) {
        // Unreachable, source quench, redirect, time exceeded, parameter problem: Suricata counts
        // these in the flow that they report.
        ("ICMP", Some(3 | 4 | 5 | 11 | 12)) => "only here: ICMP errors",
        ("IGMP" | "GRE" | "IP-in-IP", _) => "only here: a protocol without flows",
        _ if packets.fragments.contains(&pair(&line.ends)) => "only here: fragments",
        _ if packets.is_damaged => "only here: cut packets",
        _ => "",
    }
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
        for (key, line) in ours
            .iter()
            .flat_map(|(key, lines)| lines.iter().map(move |it| (key, it)))
        {
            let theirs = theirs.get(key).map_or(&[][..], Vec::as_slice);
            if !theirs
                .iter()
                .any(|their| their.start == line.start && their.ends == line.ends)
            {
                let class = class_of_other(line, &packets);
                *classes.entry(class).or_default() += 1;
                if class.is_empty() {
                    unexplained.push((name.to_owned(), line.clone(), theirs.to_owned()));
                }
            }
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
    let of_suricata = classes
        .iter()
        .filter(|(class, _)| !class.starts_with("only here"));
    let all: usize = of_suricata.map(|(_, count)| count).sum();
    assert!(classes["equal"] * 100 >= all * 98, "{classes:?}");
}
