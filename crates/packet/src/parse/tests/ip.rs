//! IPv4, IPv6 and the transport headers.

use super::*;

#[test]
fn deconstruct_ethernet_ipv4_tcp() {
    let parsed = parse(
        LinkType::ETHERNET,
        &ethernet(&[8, 0], &v4(6, 0x4000, &bytes(&[&TCP, b"GET"]))),
    );
    assert_eq!(parsed.outcome, ParseOutcome::Complete);
    assert_eq!(parsed.dst_mac, Some([2, 0, 0, 0, 0, 2]));
    assert_eq!(parsed.src_mac, Some([2, 0, 0, 0, 0, 1]));
    assert_eq!(parsed.ether_type, Some(0x0800));
    assert!(parsed.vlan.tags().is_empty());
    let ip = parsed.network.unwrap();
    assert_eq!(ip.src, IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)));
    assert_eq!(ip.dst, IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)));
    assert_eq!((ip.proto, ip.fragment, ip.len), (Some(6), None, Some(43)));
    assert_eq!(parsed.transport, TCP_PORTS);
    assert_eq!(parsed.tcp_flags, Some(0x12));
    assert_eq!(parsed.tcp_seq, Some(0x0102_0304));
    assert_eq!(parsed.payload_offset, Some(54));
}

#[test]
fn truncated_ipv4() {
    assert_ports_from(
        LinkType::ETHERNET,
        &ethernet(&[8, 0], &v4(6, 0, &TCP)),
        38,
        TCP_PORTS,
    );
    let mut options = v4(17, 0, &bytes(&[&[1; 8], &UDP]));
    options[0] = 0x47;
    assert_ports_from(LinkType::RAW, &options, 32, UDP_PORTS);
    assert_eq!(raw(&options[..24]).network.unwrap().proto, Some(17));
    assert_eq!(raw(&options[..19]).network, None);
}

#[test]
fn impossible_len_ipv4() {
    let good = v4(17, 0, &UDP);
    let with = |at: usize, value: u8| {
        let mut packet = good.clone();
        packet[at] = value;
        raw(&packet)
    };
    for header in [0x40, 0x44, 0x55] {
        let parsed = with(0, header);
        assert_eq!(
            (parsed.outcome, parsed.network),
            (ParseOutcome::Malformed, None),
            "{header:#x}"
        );
        assert_eq!(flow_of(&parsed), None);
    }
    // A header longer than the packet, a packet shorter than its header, and a packet that ends
    // inside the ports.
    for (at, value) in [(0, 0x4f), (3, 19), (3, 23)] {
        let parsed = with(at, value);
        assert_eq!(
            (parsed.outcome, parsed.transport),
            (ParseOutcome::Malformed, None),
            "byte {at} = {value}"
        );
        assert_eq!(flow_of(&parsed), None);
    }
    // Offload leaves a length of 0: the packet ends with the frame.
    let parsed = with(3, 0);
    assert_eq!(
        (parsed.transport, parsed.network.unwrap().len),
        (UDP_PORTS, None)
    );
    // A packet longer than the captured bytes was cut by the snap length.
    assert_eq!(with(2, 5).transport, UDP_PORTS);
}

#[test]
fn ethernet_padding_is_not_payload() {
    let mut frame = ethernet(&[8, 0], &v4(17, 0, &[]));
    frame.extend_from_slice(&UDP);
    let parsed = parse(LinkType::ETHERNET, &frame);
    assert_eq!(
        (parsed.outcome, parsed.transport),
        (ParseOutcome::Malformed, None)
    );
    let mut frame = ethernet(&[0x86, 0xdd], &v6(6, &[]));
    frame.extend_from_slice(&UDP[..6]);
    assert_eq!(parse(LinkType::ETHERNET, &frame).transport, None);
}

#[test]
fn impossible_len_tcp() {
    let mut segment = TCP;
    segment[12] = 0x40;
    let parsed = raw(&v4(6, 0, &segment));
    assert_eq!(
        (parsed.outcome, parsed.payload_offset),
        (ParseOutcome::Malformed, None)
    );
    segment[12] = 0x60;
    assert_eq!(raw(&v4(6, 0, &segment)).payload_offset, None);
    segment[12] = 0x50;
    assert_eq!(raw(&v4(6, 0, &segment)).payload_offset, Some(40));
}

#[test]
fn sctp_has_ports_and_others_have_none() {
    let payload = [&UDP[..], &[0; 8]].concat();
    assert_eq!(raw(&v4(132, 0, &payload)).transport, UDP_PORTS);
    assert_eq!(raw(&v4(132, 0, &payload)).payload_offset, Some(32));
    for proto in (0..=255).filter(|proto| ![6, 17, 132, 51].contains(proto)) {
        assert_eq!(raw(&v4(proto, 0, &payload)).transport, None);
        assert!(
            matches!(flow_of(&raw(&v4(proto, 0, &payload))), Some(FlowKey::Ip { proto: p, .. }) if p == proto)
        );
    }
}

#[test]
fn icmp_belongs_to_its_ip_version() {
    let message = [8, 1, 0, 0];
    assert_eq!(
        raw(&v4(1, 0, &message)).icmp,
        Some(Icmp { kind: 8, code: 1 })
    );
    assert_eq!(raw(&v6(58, &message)).icmp, Some(Icmp { kind: 8, code: 1 }));
    assert_eq!(raw(&v4(58, 0, &message)).icmp, None);
    assert_eq!(raw(&v6(1, &message)).icmp, None);
    assert_eq!(raw(&v4(1, 0, &message[..1])).icmp, None);
    assert_eq!(raw(&v4(1, 1, &message)).icmp, None);
}

#[test]
fn fragments_ipv4() {
    let first = raw(&v4(17, 0x2000, &UDP));
    assert_eq!(first.transport, UDP_PORTS);
    assert_eq!(
        first.network.unwrap().fragment,
        Some(Fragment {
            id: 0x1234,
            offset: 0,
            more: true,
            proto: 17
        })
    );
    for bits in [0x2001, 185, 0x1fff] {
        let later = raw(&v4(17, bits, &UDP));
        assert!(later.is_later_fragment());
        assert_eq!((later.transport, flow_of(&later)), (None, None));
        assert_eq!(fragment_of(&later), fragment_of(&first));
        assert!(matches!(
            flow_of(&raw(&v4(1, bits, &UDP))),
            Some(FlowKey::Ip { proto: 1, .. })
        ));
    }
    assert_eq!(fragment_of(&raw(&v4(17, 0x4000, &UDP))), None);
    // 8 bytes of TCP are a legal first fragment.
    assert_eq!(raw(&v4(6, 0x2000, &TCP[..8])).transport, TCP_PORTS);
}

#[test]
fn deconstruct_ipv6() {
    let parsed = parse(LinkType::ETHERNET, &ethernet(&[0x86, 0xdd], &v6(17, &UDP)));
    let ip = parsed.network.unwrap();
    assert_eq!(
        (ip.src, ip.dst),
        (IpAddr::V6(v6_addr(1)), IpAddr::V6(v6_addr(2)))
    );
    assert_eq!(
        (ip.proto, ip.len, parsed.transport),
        (Some(17), Some(48), UDP_PORTS)
    );
    assert_ports_from(LinkType::RAW, &v6(6, &TCP), 44, TCP_PORTS);
}

#[test]
fn ipv6_extension_headers() {
    // Hop-by-hop, destination options of 16 bytes, routing, mobility, authentication of 24 bytes,
    // UDP.
    let mut chain = bytes(&[
        &[60, 0, 1, 4, 0, 0, 0, 0],
        &[43, 1],
        &[0; 14],
        &[135, 0, 0, 0, 0, 0, 0, 0],
    ]);
    chain.extend_from_slice(&bytes(&[
        &[51, 0, 0, 0, 0, 0, 0, 0],
        &[17, 4],
        &[0; 22],
        &UDP,
    ]));
    let packet = v6(0, &chain);
    assert_ports_from(LinkType::RAW, &packet, packet.len() - 4, UDP_PORTS);
    for len in 0..packet.len() - 8 {
        assert_eq!(
            raw(&packet[..len]).network.and_then(|ip| ip.proto),
            None,
            "{len}"
        );
    }
    // Encapsulating security payload, no next header, and unknown numbers end the chain.
    for next in [50, 59, 253] {
        let parsed = raw(&v6(0, &bytes(&[&[next, 0, 1, 4, 0, 0, 0, 0], &UDP])));
        assert_eq!(
            (parsed.network.unwrap().proto, parsed.transport),
            (Some(next), None)
        );
        assert_eq!(parsed.payload_offset, Some(48));
    }
}

#[test]
fn impossible_len_ipv6() {
    // An extension header longer than the payload, followed by more captured bytes.
    let mut packet = v6(60, &bytes(&[&[17, 1, 1, 4, 0, 0, 0, 0], &UDP]));
    packet[5] = 8;
    let parsed = raw(&packet);
    assert_eq!(
        (parsed.outcome, parsed.transport),
        (ParseOutcome::Malformed, None)
    );
    assert_eq!(
        (parsed.network.unwrap().proto, flow_of(&parsed)),
        (None, None)
    );
    // A payload that ends inside the ports.
    let mut packet = v6(17, &UDP);
    packet[5] = 3;
    assert_eq!(
        (raw(&packet).outcome, raw(&packet).transport),
        (ParseOutcome::Malformed, None)
    );
    // More extension headers than anyone sends.
    let endless = v6(60, &[60, 0, 1, 4, 0, 0, 0, 0].repeat(140));
    assert_eq!(
        (raw(&endless).outcome, flow_of(&raw(&endless))),
        (ParseOutcome::Malformed, None)
    );
    let mut version = v6(17, &UDP);
    version[0] = 0x40;
    assert_eq!(parse(LinkType::IPV6, &version).network, None);
}

#[test]
fn ipv6_without_payload_len() {
    let jumbo = |next: u8, payload: &[u8]| {
        let mut packet = v6(next, payload);
        packet[4..6].fill(0);
        raw(&packet)
    };
    let hop_by_hop = bytes(&[&[6, 0, 0xc2, 4, 0, 1, 0, 0], &TCP]);
    assert_eq!(
        (
            jumbo(0, &hop_by_hop).transport,
            jumbo(0, &hop_by_hop).network.unwrap().len
        ),
        (TCP_PORTS, None)
    );
    assert_eq!(jumbo(6, &TCP).transport, TCP_PORTS);
    assert_eq!(jumbo(6, &TCP[..19]).transport, None);
    assert_eq!(jumbo(17, &UDP).transport, None);
}

#[test]
fn fragments_ipv6() {
    let first = raw(&v6(44, &bytes(&[&v6_fragment(17, 0, true), &UDP])));
    assert_eq!(
        (first.transport, first.network.unwrap().proto),
        (UDP_PORTS, Some(17))
    );
    let later = raw(&v6(44, &bytes(&[&v6_fragment(17, 1232, false), &UDP])));
    assert_eq!((later.transport, flow_of(&later)), (None, None));
    let key = FragmentKey {
        src: IpAddr::V6(v6_addr(1)),
        dst: IpAddr::V6(v6_addr(2)),
        proto: 17,
        id: 0x0001_0203,
    };
    assert_eq!(
        (fragment_of(&first), fragment_of(&later)),
        (Some(key), Some(key))
    );
    // An atomic fragment is a whole packet (RFC 6946).
    let atomic = raw(&v6(44, &bytes(&[&v6_fragment(6, 0, false), &TCP])));
    assert_eq!(
        (atomic.transport, atomic.network.unwrap().fragment),
        (TCP_PORTS, None)
    );
    // The fragmented data starts with an extension header: only the first fragment shows the
    // protocol.
    let options = [17, 0, 1, 4, 0, 0, 0, 0];
    let first = raw(&v6(
        44,
        &bytes(&[&v6_fragment(60, 0, true), &options, &UDP]),
    ));
    let later = raw(&v6(
        44,
        &bytes(&[&v6_fragment(60, 8, false), &options, &UDP]),
    ));
    assert_eq!((first.transport, later.transport), (UDP_PORTS, None));
    assert_eq!(
        (later.network.unwrap().proto, flow_of(&later)),
        (None, None)
    );
    assert_eq!(fragment_of(&first), fragment_of(&later));
    // Two fragment headers are nonsense.
    let twice = raw(&v6(
        44,
        &bytes(&[&v6_fragment(44, 0, true), &v6_fragment(17, 0, true), &UDP]),
    ));
    assert_eq!(
        (twice.outcome, twice.transport),
        (ParseOutcome::Malformed, None)
    );
}

#[test]
fn authentication_header_ipv4() {
    let packet = v4(51, 0, &bytes(&[&[6, 4], &[0; 22], &TCP]));
    assert_ports_from(LinkType::RAW, &packet, 48, TCP_PORTS);
    assert_eq!(raw(&packet[..30]).network.unwrap().proto, None);
    // IPv6's other extension numbers are no extension headers in IPv4.
    assert_eq!(
        raw(&v4(51, 0, &bytes(&[&[60, 4], &[0; 22], &TCP])))
            .network
            .unwrap()
            .proto,
        Some(60)
    );
}

#[test]
fn tunnels_are_not_descended() {
    for proto in [4, 41, 47] {
        let parsed = raw(&v4(proto, 0, &v4(17, 0, &UDP)));
        assert_eq!(
            (parsed.transport, parsed.network.unwrap().proto),
            (None, Some(proto))
        );
    }
}
