use retroscope_flow::{Tracker, TrackerConfig};
use retroscope_packet::{LinkType, community_id, parse};
use serde_json::{Value, json};

use super::*;

const SYN: u8 = 2;
const ACK: u8 = 16;

/// An Ethernet frame with an IPv4 packet from 10.0.0.`src` to 10.0.0.`dst`, after these VLAN tags.
fn frame(vlans: &[u16], proto: u8, [src, dst]: [u8; 2], payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![2; 12];
    for vlan in vlans {
        frame.extend([0x81, 0]);
        frame.extend(vlan.to_be_bytes());
    }
    let len = u16::try_from(20 + payload.len()).unwrap();
    frame.extend([8, 0, 0x45, 0]);
    frame.extend(len.to_be_bytes());
    frame.extend([0, 0, 0, 0, 64, proto, 0, 0]);
    frame.extend([10, 0, 0, src, 10, 0, 0, dst]);
    frame.extend(payload);
    frame
}

fn ip6(proto: u8, [src, dst]: [u8; 2], payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![2; 12];
    let len = u16::try_from(payload.len()).unwrap();
    frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
    frame.extend(len.to_be_bytes());
    frame.extend([proto, 64]);
    for end in [src, dst] {
        frame.extend([0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, end]);
    }
    frame.extend(payload);
    frame
}

fn tcp([src, dst]: [u16; 2], flags: u8) -> Vec<u8> {
    let mut header = [src.to_be_bytes(), dst.to_be_bytes()].concat();
    header.extend([0, 0, 0, 0, 0, 0, 0, 0, 0x50, flags, 0, 0, 0, 0, 0, 0]);
    header
}

fn udp([src, dst]: [u16; 2], payload: &[u8]) -> Vec<u8> {
    let len = u16::try_from(8 + payload.len()).unwrap();
    let mut header = [src, dst, len, 0].map(u16::to_be_bytes).concat();
    header.extend(payload);
    header
}

/// The flows of frames with their stamps.
fn flows(link_type: LinkType, frames: &[(i64, Vec<u8>)]) -> Vec<EndedFlow> {
    let config = TrackerConfig {
        flows_max: 1000,
        ..TrackerConfig::default()
    };
    let mut tracker = Tracker::new(&config, Secret::random());
    let mut flows = Vec::new();
    let mut ended = |flow| flows.push(flow);
    for (time_ns, data) in frames {
        let wire_len = u32::try_from(data.len()).unwrap();
        let meta = (*time_ns, wire_len);
        tracker.packet((0, link_type), meta, data, &mut ended);
    }
    tracker.finish(&mut ended);
    flows
}

fn line(ended: &EndedFlow, about: &FlowContext<'_>) -> String {
    let mut out = Vec::new();
    assert!(flow(&mut out, ended, about));
    assert_eq!(out.pop(), Some(b'\n'));
    assert!(!out.contains(&b'\n'), "one line");
    String::from_utf8(out).unwrap()
}

/// The line of the only flow.
fn value(frames: &[(i64, Vec<u8>)]) -> Value {
    let ended = flows(LinkType::ETHERNET, frames);
    assert_eq!(ended.len(), 1);
    serde_json::from_str(&line(&ended[0], &FlowContext::default())).unwrap()
}

#[test]
fn a_connection_is_told_as_suricata_tells_it() {
    let there = |flags| frame(&[7, 0], TCP, [1, 2], &tcp([1025, 80], flags));
    let back = |flags| frame(&[7, 0], TCP, [2, 1], &tcp([80, 1025], flags));
    let mut request = tcp([1025, 80], ACK | 8);
    request.extend(b"GET / HTTP/1.1");
    let frames = [
        (1_999_999_999, there(SYN)),
        (2_000_000_000, back(SYN | ACK)),
        (2_000_000_500, there(ACK)),
        (2_000_001_500, frame(&[7, 0], TCP, [1, 2], &request)),
    ];
    let ended = flows(LinkType::ETHERNET, &frames);
    let about = FlowContext {
        interface: Some("eth\"0"),
        community_id_seed: 0,
    };
    let id = community_id(&parse(LinkType::ETHERNET, &frames[1].1), 0).unwrap();
    let line = line(&ended[0], &about);
    let value: Value = serde_json::from_str(&line).unwrap();
    let flow_id = value["flow_id"].as_u64().unwrap();
    let expected = concat!(
        r#"{"timestamp":"1970-01-01T00:00:02.000001+0000","flow_id":FLOW,"in_iface":"eth\"0","event_type":"flow","vlan":[7,0],"#,
        r#""src_ip":"10.0.0.1","src_port":1025,"dest_ip":"10.0.0.2","dest_port":80,"proto":"TCP","#,
        r#""flow":{"pkts_toserver":3,"pkts_toclient":1,"bytes_toserver":200,"bytes_toclient":62,"#,
        r#""start":"1970-01-01T00:00:01.999999+0000","end":"1970-01-01T00:00:02.000001+0000","age":1,"#,
        r#""state":"established","reason":"shutdown"},"community_id":"COMMUNITY","#,
        r#""tcp":{"tcp_flags":"1a","tcp_flags_ts":"1a","tcp_flags_tc":"12","syn":true,"psh":true,"ack":true,"state":"established"},"#,
        r#""retroscope":{"start_ns":1999999999,"end_ns":2000001500,"midstream":false,"end":"finished","payload":"474554202f20485454502f31"}}"#
    );
    let expected = expected.replace("FLOW", &flow_id.to_string());
    assert_eq!(line, expected.replace("COMMUNITY", &id));
}

#[test]
fn the_client_is_first_whichever_end_of_the_key_it_is() {
    for ends in [[1, 2], [2, 1]] {
        let value = value(&[(0, frame(&[], UDP, ends, &udp([53, 53], b"")))]);
        let addr = |end: usize| format!("10.0.0.{}", ends[end]);
        assert_eq!(value["src_ip"], addr(0));
        assert_eq!(value["dest_ip"], addr(1));
        assert_eq!(value["flow"]["pkts_toserver"], 1);
        assert_eq!(value["flow"]["pkts_toclient"], 0);
        assert_eq!(value["flow"]["state"], "new");
        assert!(value.get("tcp").is_none() && value.get("vlan").is_none());
        assert!(value.get("in_iface").is_none());
        let ours = json!({"start_ns": 0, "end_ns": 0, "end": "finished"});
        assert_eq!(value["retroscope"], ours);
    }
}

#[test]
fn who_gets_the_first_packet_is_the_server_midstream() {
    let value = value(&[(0, frame(&[], TCP, [9, 1], &tcp([80, 1025], SYN | ACK)))]);
    assert_eq!(
        (&value["src_port"], &value["dest_port"]),
        (&json!(80), &json!(1025))
    );
    assert_eq!(value["flow"]["pkts_toserver"], 1);
    assert_eq!(value["tcp"].get("state"), None);
    assert_eq!(value["retroscope"]["midstream"], true);
}

#[test]
fn states_of_tcp_are_the_servers() {
    let states = [
        (&[ACK, 0, 0][..], None),
        (&[SYN], Some("syn_sent")),
        (&[SYN, 0x80 | SYN | ACK, ACK, 1 | ACK], Some("close_wait")),
        (
            &[SYN, 0x80 | SYN | ACK, ACK, 0x80 | 1 | ACK],
            Some("fin_wait1"),
        ),
        (&[ACK, 0x80 | 1 | ACK], None),
        (&[SYN, 4], Some("syn_sent")),
        (&[SYN, 0x80 | 4], Some("closed")),
        (
            &[SYN, 0x80 | SYN | ACK, ACK, 1 | ACK, 0x80 | 1 | ACK],
            Some("closed"),
        ),
        (&[1, 0x80 | 1], None),
    ];
    for (flags, state) in states {
        let packet = |flags: &u8| match flags & 0x80 {
            0 => (0, frame(&[], TCP, [1, 2], &tcp([5, 6], *flags))),
            _ => (0, frame(&[], TCP, [2, 1], &tcp([6, 5], flags & 0x7f))),
        };
        let value = value(&flags.iter().map(packet).collect::<Vec<_>>());
        assert_eq!(
            value["tcp"].get("state").and_then(Value::as_str),
            state,
            "{flags:x?}"
        );
    }
    let value = value(&[(0, frame(&[], TCP, [1, 2], &tcp([5, 6], 0xff)))]);
    let all = json!({"tcp_flags": "ff", "tcp_flags_ts": "ff", "tcp_flags_tc": "00", "syn": true, "fin": true, "rst": true,
        "psh": true, "ack": true, "urg": true, "ecn": true, "cwr": true});
    assert_eq!(value["tcp"], all);
}

#[test]
fn ends_have_the_nearest_reason() {
    let syn = frame(&[], TCP, [1, 2], &tcp([5, 6], SYN));
    let of = |end| {
        let ended = flows(LinkType::ETHERNET, &[(0, syn.clone())]);
        let ended = EndedFlow { end, ..ended[0] };
        let value: Value = serde_json::from_str(&line(&ended, &FlowContext::default())).unwrap();
        [&value["flow"]["reason"], &value["retroscope"]["end"]]
            .map(|text| text.as_str().unwrap().to_owned())
    };
    assert_eq!(of(FlowEnd::TimeOut), ["timeout", "timeout"]);
    assert_eq!(of(FlowEnd::Reused), ["tcp_reuse", "reused"]);
    assert_eq!(of(FlowEnd::Full), ["forced", "full"]);
    assert_eq!(of(FlowEnd::Crowded), ["forced", "crowded"]);
    assert_eq!(of(FlowEnd::Finished), ["shutdown", "finished"]);
}

#[test]
fn icmp_has_types_and_no_ports() {
    let request = frame(&[], ICMP, [2, 1], &[8, 0, 0, 0, 0, 7, 0, 1]);
    let reply = frame(&[], ICMP, [1, 2], &[0, 0, 0, 0, 0, 7, 0, 1]);
    let id = community_id(&parse(LinkType::ETHERNET, &reply), 0).unwrap();
    let both = value(&[(0, request.clone()), (1, reply)]);
    assert_eq!(both["src_ip"], "10.0.0.2");
    let keys = [
        "icmp_type",
        "icmp_code",
        "response_icmp_type",
        "response_icmp_code",
    ];
    assert_eq!(keys.map(|key| both[key].as_u64()), [8, 0, 0, 0].map(Some));
    assert_eq!(both["community_id"], id);
    assert_eq!(
        (&both["proto"], &both["flow"]["state"]),
        (&json!("ICMP"), &json!("established"))
    );
    assert!(both.get("src_port").is_none());

    let one = value(&[(0, request)]);
    assert!(one.get("response_icmp_type").is_none());

    let unreachable = frame(&[], ICMP, [2, 1], &[3, 1, 0, 0, 0, 0, 0, 0]);
    let id = community_id(&parse(LinkType::ETHERNET, &unreachable), 0).unwrap();
    let value = value(&[(0, unreachable)]);
    assert_eq!(
        (&value["icmp_code"], &value["src_ip"]),
        (&json!(1), &json!("10.0.0.2"))
    );
    assert_eq!(value["community_id"], id);
}

#[test]
fn icmp_without_its_type_has_no_identifier() {
    let value = value(&[(0, frame(&[], ICMP, [1, 2], &[]))]);
    assert!(value.get("icmp_type").is_none() && value.get("community_id").is_none());
    assert_eq!(value["proto"], "ICMP");
}

#[test]
fn icmp_of_ipv6_is_written_with_whole_addresses() {
    let frame = ip6(ICMPV6, [2, 1], &[135, 0, 0, 0, 0, 0, 0, 0]);
    let id = community_id(&parse(LinkType::ETHERNET, &frame), 0).unwrap();
    let value = value(&[(0, frame)]);
    assert_eq!(value["src_ip"], "2001:0db8:0000:0000:0000:0000:0000:0002");
    assert_eq!(
        (&value["proto"], &value["icmp_type"]),
        (&json!("IPv6-ICMP"), &json!(135))
    );
    assert_eq!(value["community_id"], id);
    // If the ICMP version does not match the IP version, the Community ID does not depend on the
    // ICMP type.
    let frame = ip6(ICMP, [2, 1], &[8, 0, 0, 0, 0, 0, 0, 0]);
    let id = community_id(&parse(LinkType::ETHERNET, &frame), 0).unwrap();
    assert_eq!(self::value(&[(0, frame)])["community_id"], id);
}

#[test]
fn other_protocols_have_addresses_only() {
    let frame = frame(&[], 47, [2, 1], &[0, 0, 8, 0]);
    let id = community_id(&parse(LinkType::ETHERNET, &frame), 0).unwrap();
    let value = value(&[(0, frame)]);
    assert_eq!(
        (&value["proto"], &value["community_id"]),
        (&json!("GRE"), &json!(id))
    );
    assert!(value.get("src_port").is_none() && value.get("icmp_type").is_none());
}

#[test]
fn stamps_before_1970_are_told() {
    let packet = frame(&[], UDP, [1, 2], &udp([1, 2], b""));
    let value = value(&[(-1_500_000_000, packet.clone()), (-1, packet.clone())]);
    assert_eq!(value["flow"]["start"], "1969-12-31T23:59:58.500000+0000");
    assert_eq!(value["flow"]["end"], "1969-12-31T23:59:59.999999+0000");
    assert_eq!(value["flow"]["age"], 1);
    assert_eq!(value["retroscope"]["start_ns"], -1_500_000_000);
    for time_ns in [i64::MIN, i64::MAX] {
        let value = self::value(&[(time_ns, packet.clone())]);
        assert_eq!(value["retroscope"]["end_ns"], time_ns);
    }
}

#[test]
fn what_is_not_ip_has_no_line() {
    let mut arp = vec![2; 12];
    arp.extend([8, 6]);
    arp.extend([0; 28]);
    let ended = flows(LinkType::ETHERNET, &[(0, arp)]);
    let mut out = Vec::new();
    assert!(!flow(&mut out, &ended[0], &FlowContext::default()));
    assert!(out.is_empty());
}

#[test]
fn a_flow_has_the_same_identifier_in_every_run() {
    let packet = |src| frame(&[], UDP, [src, 200], &udp([1, 2], b""));
    let id = |time_ns, src| {
        value(&[(time_ns, packet(src))])["flow_id"]
            .as_u64()
            .unwrap()
    };
    assert_eq!(
        id(5, 1),
        804_422_473_146_254,
        "as in any other run, program and machine"
    );
    let mut ids: Vec<u64> = (0..100)
        .flat_map(|n| [id(i64::from(n) + 7, 1), id(5, n)])
        .collect();
    assert!(ids.iter().all(|id| *id < 1 << 53));
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 200);
}
