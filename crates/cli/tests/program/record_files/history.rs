//! `record --cutoff` over real and heavy-tailed captures. The number of stored packets equals the
//! oracle's, and the ring reaches back at least 90 % as far as the oracle predicts.

use std::{
    collections::{HashMap, VecDeque},
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
};

use retroscope_packet::{FlowKey, FragmentKey, LinkType, flow_of, fragment_of, icmp_ports, parse};
use retroscope_pcapfile::{PcapOptions, PcapWriter};
use serde_json::Value;

use super::{
    S, captures,
    oracle::{Packet, lateness_ns, read},
    record,
};
use crate::support::{shared, stderr};

const SYN: u8 = 2;
const ACK: u8 = 16;
const FIN_SYN_RST: u8 = 7;

/// For each packet, whether `--cutoff BYTES` keeps it. A flow restarts at a SYN without ACK and
/// after 60 s of silence.
fn kept(packets: &[Packet], bytes: u64) -> Vec<bool> {
    // The key of a flow: flow key and VLAN IDs, and for ICMP the addresses with the type-specific
    // fields that replace ports.
    type Flow = (FlowKey, Vec<u16>, Option<[(IpAddr, u16); 2]>);
    let mut first_fragments = HashMap::<FragmentKey, (Flow, i64)>::new();
    // By flow: the time of the latest packet, and the bytes of payload sent in each direction.
    let mut flows = HashMap::<Flow, (i64, HashMap<(_, u16), u64>)>::new();
    let is_kept = |packet: &Packet| {
        let parsed = parse(packet.link_type, &packet.data);
        let Some(ip) = parsed.network else {
            return true;
        };
        let tags = parsed.vlan.tags().iter().take(3);
        let messages = parsed.icmp.map(|icmp| {
            let (ports, is_one_way) = icmp_ports(icmp, ip.src.is_ipv6());
            let mut ends = [(ip.src, ports.src), (ip.dst, ports.dst)];
            if !is_one_way {
                ends.sort_unstable();
            }
            ends
        });
        let tags = tags.map(|tag| tag.id()).collect();
        let own = flow_of(&parsed).map(|flow| (flow, tags, messages));
        let flow: Option<Flow> = match fragment_of(&parsed) {
            Some(datagram) if parsed.is_later_fragment() => {
                let first = first_fragments.get(&datagram);
                let first = first.filter(|(_, at)| packet.time_ns.abs_diff(*at) <= 60_000_000_000);
                first.map(|(flow, _)| flow.clone())
            }
            Some(datagram) => {
                let first = own.clone().map(|flow| (flow, packet.time_ns));
                first_fragments.extend(first.map(|first| (datagram, first)));
                own
            }
            None => own,
        };
        let Some(flow) = flow else {
            return true;
        };
        let flags = parsed.tcp_flags.unwrap_or(0);
        let (last_ns, sent) = flows.entry(flow.clone()).or_default();
        if flags & (SYN | ACK) == SYN || (packet.time_ns - *last_ns).abs() >= 60 * S {
            sent.clear();
            *last_ns = packet.time_ns;
        }
        *last_ns = packet.time_ns.max(*last_ns);
        // A later fragment has no ports, so its source address selects the direction. For a host
        // that talks to itself this is ambiguous.
        let port = match &flow.0 {
            FlowKey::Ports { low, .. } if low.addr == ip.src => low.port,
            FlowKey::Ports { high, .. } => high.port,
            _ => 0,
        };
        let port = parsed.transport.map_or(port, |ports| ports.src);
        let sent = sent.entry((ip.src, port)).or_default();
        let before = *sent;
        let wire_len = packet.wire_len as usize;
        let end = parsed.payload_end.map_or(wire_len, |end| end.min(wire_len));
        let start = parsed.payload_start().unwrap_or(end);
        *sent += end.saturating_sub(start) as u64;
        before < bytes || flags & FIN_SYN_RST != 0
    };
    packets.iter().map(is_kept).collect()
}

/// Records a capture with one dump of the whole ring, when a packet matches `trigger`. Returns the
/// summary and the dumped packets. `None` if the trigger does not compile for the capture's link
/// type.
fn recorded(
    capture: &Path,
    trigger: &str,
    ring: &str,
    cutoff: &[&str],
) -> Option<(Value, Vec<Packet>)> {
    let dir = tempfile::tempdir().unwrap();
    let [capture, out] = [capture, dir.path()].map(|path| path.to_str().unwrap());
    let args = ["-q", "-r", capture, "-w", out, "--ring", ring, "--single"];
    let window = ["--past", "24h", "--future", "24h", "--dump", ""];
    let (output, json) = record(&[&args[..], &window, &["--trigger", trigger], cutoff].concat());
    let Some(json) = json else {
        // The trigger is `arp`, and the capture's link type has no ARP.
        assert!(stderr(&output).contains("--trigger: "), "{output:?}");
        return None;
    };
    let packets = json["dumps"][0]["file"].as_str().map(|file| {
        let (packets, is_whole) = read(Path::new(file));
        assert!(is_whole);
        packets
    });
    Some((json, packets.unwrap_or_default()))
}

fn in_order(packets: &[Packet], kept: &[bool]) -> Vec<Packet> {
    let kept = packets.iter().zip(kept).filter(|(_, is_kept)| **is_kept);
    let mut kept: Vec<_> = kept.map(|(packet, _)| packet.clone()).collect();
    kept.sort_by_key(|packet| packet.time_ns);
    kept
}

#[test]
fn real_captures_are_cut_off_as_an_oracle_does() {
    let Some(shared) = shared("") else { return };
    let (mut all, mut shed, mut whole) = (0, 0, 0);
    for capture in captures(&shared) {
        if capture.starts_with(shared.join("traces/malformed"))
            || fs::metadata(&capture).unwrap().len() < 20_000
        {
            continue;
        }
        let (packets, _) = read(&capture);
        // After a step back, silence is measured in ring time, which this oracle lacks.
        if lateness_ns(&packets) > S {
            continue;
        }
        let cutoff = ["--cutoff", "2KiB"];
        let Some((json, dump)) = recorded(&capture, "arp", "64MiB", &cutoff) else {
            continue;
        };
        if json["errors"]
            .as_array()
            .is_some_and(|errors| !errors.is_empty())
        {
            continue;
        }
        let kept = kept(&packets, 2048);
        let expected = kept.iter().filter(|is_kept| **is_kept).count();
        let source = &json["sources"][0];
        let name = capture.display();
        assert_eq!(source["stored"], expected, "{name}: {source}");
        assert_eq!(source["lost"]["shed"], kept.len() - expected, "{name}");
        if !dump.is_empty() {
            let same = |one: &Packet, other: &Packet| {
                (one.time_ns, &one.data) == (other.time_ns, &other.data)
            };
            let [from, to] = ["from", "to"].map(|of| json["dumps"][0][of].as_str().unwrap());
            let mut expected = in_order(&packets, &kept);
            expected.retain(|packet| {
                let time = retroscope_recorder::rfc3339(packet.time_ns);
                (from..=to).contains(&time.as_str())
            });
            assert_eq!(dump.len(), expected.len(), "{name}");
            assert!(
                dump.iter().zip(&expected).all(|(a, b)| same(a, b)),
                "{name}"
            );
            whole += 1;
        }
        all += packets.len();
        shed += kept.len() - expected;
    }
    eprintln!("{shed} of {all} packets shed; {whole} captures compared packet by packet");
    assert!(shed > 50_000 && whole > 10, "{shed} {whole}");
}

/// A flow of a generated capture: port, remaining bytes of payload, and number of sent packets.
#[derive(Debug)]
struct Tail {
    port: u16,
    left: u64,
    sent: u64,
}

/// About 66 MB in 60 s: TCP and UDP flows with Pareto-distributed sizes, retransmitted TCP
/// segments, and immediate reuse of ports by new flows. After the 51st packet of a flow some
/// packets have one byte of payload. Some large UDP packets are fragmented. The last packet comes
/// from port 60000.
fn heavy_tailed(path: &Path, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let file = fs::File::create(path).unwrap();
    let mut writer = PcapWriter::new(file, PcapOptions::new(LinkType::ETHERNET)).unwrap();
    let (mut flows, mut repeat) = (Vec::<Tail>::new(), VecDeque::<(u32, Vec<u8>)>::new());
    let mut ident = 0_u16;
    for number in 0..50_000_i64 {
        let time_ns = number * 1_200_000;
        if number == 49_999 {
            writer
                .record(time_ns, 60, &frame((60_000, 17, false), 0, b"end", (0, 0)))
                .unwrap();
            break;
        }
        if let Some((len, data)) = repeat.pop_front_if(|_| random.u8(..) < 40) {
            writer.record(time_ns, len, &data).unwrap();
            continue;
        }
        let is_new = flows.len() < 30;
        if is_new {
            #[expect(clippy::cast_possible_truncation, reason = "at most 10^9")]
            let left = (3000.0 * (1.0 - random.f64()).powf(-1.0 / 1.1)).min(1e9) as u64;
            let port = random.u16(1000..1200);
            flows.push(Tail {
                port,
                left,
                sent: 0,
            });
        }
        let at = if is_new {
            flows.len() - 1
        } else {
            random.usize(..flows.len())
        };
        let flow = &mut flows[at];
        // Even ports use TCP.
        let is_tcp = flow.port.is_multiple_of(2);
        let flags = match flow.sent {
            0 if is_tcp => SYN,
            _ => ACK,
        };
        let is_burst = flow.sent > 50 && random.u8(..) < 10;
        let most = if is_burst { 1 } else { 1400 };
        let len = if flags == SYN { 0 } else { most.min(flow.left) };
        let (left, is_reply) = (flow.left - len, random.u8(..) < 20);
        let payload = vec![7; usize::try_from(len).unwrap()];
        let protocol = if is_tcp { 6 } else { 17 };
        let is_split = !is_tcp && len > 1000 && random.u8(..) < 30;
        ident = ident.wrapping_add(1);
        let pieces: Vec<_> = if is_split {
            let (first, rest) = payload.split_at(792);
            vec![
                frame(
                    (flow.port, protocol, is_reply),
                    flags,
                    first,
                    (ident, 0x2000),
                ),
                frame((flow.port, protocol, is_reply), flags, rest, (ident, 100)),
            ]
        } else {
            vec![frame(
                (flow.port, protocol, is_reply),
                flags,
                &payload,
                (0, 0),
            )]
        };
        for data in pieces {
            let len = u32::try_from(data.len()).unwrap();
            writer.record(time_ns, len, &data).unwrap();
            if is_tcp && random.u8(..) < 5 {
                repeat.push_back((len, data));
            }
        }
        (flow.left, flow.sent) = (left, flow.sent + 1);
        if flow.left == 0 {
            flows.swap_remove(at);
        }
    }
    writer.finish().unwrap();
}

/// A frame between a port of 10.0.0.1 and port 443 of 10.0.0.2. `piece`: identification, and the
/// flags and offset of a fragment.
fn frame(
    (port, protocol, is_reply): (u16, u8, bool),
    flags: u8,
    payload: &[u8],
    piece: (u16, u16),
) -> Vec<u8> {
    let is_later = piece.1 & 0x1fff > 0;
    let header = match (is_later, protocol) {
        (true, _) => 0,
        (false, 6) => 20,
        (false, _) => 8,
    };
    let u16_of = |len: usize| u16::try_from(len).unwrap().to_be_bytes();
    let mut data = vec![0; 12];
    data.extend([8, 0, 0x45, 0]);
    data.extend(u16_of(20 + header + payload.len()));
    data.extend(piece.0.to_be_bytes());
    data.extend(piece.1.to_be_bytes());
    data.extend([64, protocol, 0, 0]);
    let mut ends = [([10, 0, 0, 1], port), ([10, 0, 0, 2], 443)];
    if is_reply {
        ends.reverse();
    }
    data.extend(ends.iter().flat_map(|(address, _)| *address));
    if !is_later {
        data.extend(ends.iter().flat_map(|(_, port)| port.to_be_bytes()));
        match protocol {
            6 => data.extend([0, 0, 0, 0, 0, 0, 0, 0, 0x50, flags, 0, 0, 0, 0, 0, 0]),
            _ => {
                // The UDP length of a first fragment is larger than its payload, because further
                // fragments follow.
                let more = if piece.1 == 0x2000 { 600 } else { 0 };
                data.extend(u16_of(8 + payload.len() + more));
                data.extend([0, 0]);
            }
        }
    }
    data.extend(payload);
    data
}

/// Time range in s of the last packets of `packets` that fit into as much ring memory as `held`
/// uses.
fn past_s(packets: &[Packet], held: &[Packet]) -> f64 {
    let bytes = |packet: &Packet| packet.data.len() + 16;
    let mut room: usize = held.iter().map(bytes).sum();
    let end_ns = packets.last().unwrap().time_ns;
    let fit = packets.iter().rev().take_while(|packet| {
        let fits = room >= bytes(packet);
        room = room.saturating_sub(bytes(packet));
        fits
    });
    (end_ns - fit.last().unwrap().time_ns) as f64 / S as f64
}

/// A filter that matches only the last packet of a capture that has IPv4 in an untagged Ethernet
/// frame.
fn last_packet(packets: &[Packet]) -> String {
    let header = |packet: &Packet| match packet.data.get(12..34) {
        Some([8, 0, header @ ..]) => <[u8; 20]>::try_from(header).ok(),
        _ => None,
    };
    let headers: Vec<_> = packets.iter().filter_map(header).collect();
    let number = |header: &[u8; 20], at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    let last = headers.last().unwrap();
    let is_it = |header: &&[u8; 20]| {
        [2, 4].map(|at| number(header, at)) == [2, 4].map(|at| number(last, at))
    };
    assert_eq!(headers.iter().filter(is_it).count(), 1);
    format!(
        "ip[2:2] = {} and ip[4:2] = {}",
        number(last, 2),
        number(last, 4)
    )
}

#[test]
fn the_ring_reaches_back_as_far_as_the_oracle_says() {
    let directory = tempfile::tempdir().unwrap();
    let mut cases: Vec<(PathBuf, String)> = Vec::new();
    for seed in 1..=3 {
        let path = directory.path().join(format!("heavy-{seed}.pcap"));
        heavy_tailed(&path, seed);
        cases.push((path, "udp port 60000".to_owned()));
    }
    if let Some(shared) = shared("") {
        let path = shared.join("traces/large/mix-a.pcap");
        let last = last_packet(&read(&path).0);
        cases.push((path, last));
    }
    for (capture, trigger) in cases {
        let (packets, _) = read(&capture);
        let (_, held) = recorded(&capture, &trigger, "16MiB", &[]).unwrap();
        let without = past_s(&held, &held);
        for bytes in [4096, 65_536] {
            let cutoff = format!("{}KiB", bytes >> 10);
            let (json, dump) =
                recorded(&capture, &trigger, "16MiB", &["--cutoff", &cutoff]).unwrap();
            let kept = kept(&packets, bytes);
            let expected = in_order(&packets, &kept);
            assert_eq!(json["sources"][0]["stored"], expected.len(), "{cutoff}");
            let (reached, predicted) = (past_s(&dump, &dump), past_s(&expected, &held));
            eprintln!(
                "{cutoff}: {reached:.1} s, predicted {predicted:.1} s, without {without:.1} s"
            );
            assert!(
                reached >= 0.9 * predicted,
                "{cutoff}: {reached} {predicted}"
            );
            assert!(reached > without, "{cutoff}: {reached} {without}");
            let kept = &expected[expected.len() - dump.len()..];
            let same = |(a, b): (&Packet, &Packet)| (a.time_ns, &a.data) == (b.time_ns, &b.data);
            assert!(dump.iter().zip(kept).all(same), "{cutoff}");
        }
    }
}
