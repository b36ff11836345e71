//! Headers built by hand: deconstruct, truncated, impossible_len for each protocol.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{
    FlowKey, Fragment, FragmentKey, Icmp, LinkProtocol, LinkType, Llc, Outcome, Parsed, Ports,
    Snap, VlanTag, flow_of, fragment_of, is_supported, parse,
};

const MACS: [u8; 12] = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
const UDP: [u8; 8] = [0x04, 0xd2, 0, 53, 0, 8, 0, 0];
const TCP: [u8; 20] = [
    0x04, 0xd2, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x12, 0, 0, 0, 0, 0, 0,
];
const UDP_PORTS: Option<Ports> = Some(Ports { src: 1234, dst: 53 });
const TCP_PORTS: Option<Ports> = Some(Ports { src: 1234, dst: 80 });

fn bytes(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

/// An Ethernet frame; `types` are the bytes from behind the addresses to the EtherType.
fn ethernet(types: &[u8], payload: &[u8]) -> Vec<u8> {
    bytes(&[&MACS, types, payload])
}

fn len_u16(len: usize) -> [u8; 2] {
    u16::try_from(len).unwrap().to_be_bytes()
}

/// An IPv4 packet of right lengths from 10.0.0.1 to 10.0.0.2; `bits` are flags and fragment offset.
fn v4(proto: u8, bits: u16, payload: &[u8]) -> Vec<u8> {
    let [l0, l1] = len_u16(20 + payload.len());
    let [b0, b1] = bits.to_be_bytes();
    bytes(&[
        &[
            0x45, 0, l0, l1, 0x12, 0x34, b0, b1, 64, proto, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        ],
        payload,
    ])
}

fn v6_addr(last: u16) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last)
}

/// An IPv6 packet of right length from 2001:db8::1 to 2001:db8::2.
fn v6(next: u8, payload: &[u8]) -> Vec<u8> {
    let [l0, l1] = len_u16(payload.len());
    bytes(&[
        &[0x60, 0, 0, 0, l0, l1, next, 64],
        &v6_addr(1).octets(),
        &v6_addr(2).octets(),
        payload,
    ])
}

/// An IPv6 fragment header; `offset` in bytes.
fn v6_fragment(next: u8, offset: u16, more: bool) -> [u8; 8] {
    let [o0, o1] = (offset | u16::from(more)).to_be_bytes();
    [next, 0, o0, o1, 0, 1, 2, 3]
}

fn raw(data: &[u8]) -> Parsed {
    parse(LinkType::RAW, data)
}

/// Asserts that no prefix shows ports before it holds `need` bytes, and every longer one shows `ports`.
fn assert_ports_from(link_type: LinkType, frame: &[u8], need: usize, ports: Option<Ports>) {
    for len in 0..=frame.len() {
        let parsed = parse(link_type, &frame[..len]);
        assert_eq!(
            parsed.transport,
            if len < need { None } else { ports },
            "{len} bytes of {frame:02x?}"
        );
        if len < need {
            assert_eq!(
                parsed.outcome,
                Outcome::Truncated,
                "{len} bytes of {frame:02x?}"
            );
            assert_eq!(flow_of(&parsed), None, "{len} bytes of {frame:02x?}");
        }
    }
}

#[test]
fn deconstruct_ethernet_ipv4_tcp() {
    let parsed = parse(
        LinkType::ETHERNET,
        &ethernet(&[8, 0], &v4(6, 0x4000, &bytes(&[&TCP, b"GET"]))),
    );
    assert_eq!(parsed.outcome, Outcome::Complete);
    assert_eq!(parsed.dst_mac, Some([2, 0, 0, 0, 0, 2]));
    assert_eq!(parsed.src_mac, Some([2, 0, 0, 0, 0, 1]));
    assert_eq!(parsed.ether_type, Some(0x0800));
    assert!(parsed.vlan.is_empty());
    let ip = parsed.network.unwrap();
    assert_eq!(ip.src, IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)));
    assert_eq!(ip.dst, IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)));
    assert_eq!((ip.proto, ip.fragment, ip.len), (Some(6), None, Some(43)));
    assert_eq!(parsed.transport, TCP_PORTS);
    assert_eq!(parsed.tcp_flags, Some(0x12));
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
            (Outcome::Malformed, None),
            "{header:#x}"
        );
        assert_eq!(flow_of(&parsed), None);
    }
    // A header longer than the packet, then a packet shorter than its header, then one that ends inside the ports.
    for (at, value) in [(0, 0x4f), (3, 19), (3, 23)] {
        let parsed = with(at, value);
        assert_eq!(
            (parsed.outcome, parsed.transport),
            (Outcome::Malformed, None),
            "byte {at} = {value}"
        );
        assert_eq!(flow_of(&parsed), None);
    }
    // Offload leaves 0: the packet ends with the frame.
    let parsed = with(3, 0);
    assert_eq!(
        (parsed.transport, parsed.network.unwrap().len),
        (UDP_PORTS, None)
    );
    // More than was captured is a snap length's doing.
    assert_eq!(with(2, 5).transport, UDP_PORTS);
}

#[test]
fn ethernet_padding_is_not_payload() {
    let mut frame = ethernet(&[8, 0], &v4(17, 0, &[]));
    frame.extend_from_slice(&UDP);
    let parsed = parse(LinkType::ETHERNET, &frame);
    assert_eq!(
        (parsed.outcome, parsed.transport),
        (Outcome::Malformed, None)
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
        (Outcome::Malformed, None)
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
    // Hop-by-hop, destination options of 16 bytes, routing, mobility, authentication of 24 bytes, UDP.
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
    // An extension header longer than the payload, though bytes behind it were captured.
    let mut packet = v6(60, &bytes(&[&[17, 1, 1, 4, 0, 0, 0, 0], &UDP]));
    packet[5] = 8;
    let parsed = raw(&packet);
    assert_eq!(
        (parsed.outcome, parsed.transport),
        (Outcome::Malformed, None)
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
        (Outcome::Malformed, None)
    );
    // More extension headers than anyone sends.
    let endless = v6(60, &[60, 0, 1, 4, 0, 0, 0, 0].repeat(140));
    assert_eq!(
        (raw(&endless).outcome, flow_of(&raw(&endless))),
        (Outcome::Malformed, None)
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
    // What was fragmented starts with an extension header: only the first piece knows the protocol.
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
    assert_eq!((twice.outcome, twice.transport), (Outcome::Malformed, None));
}

#[test]
fn authentication_header_ipv4() {
    let packet = v4(51, 0, &bytes(&[&[6, 4], &[0; 22], &TCP]));
    assert_ports_from(LinkType::RAW, &packet, 48, TCP_PORTS);
    assert_eq!(raw(&packet[..30]).network.unwrap().proto, None);
    // IPv6's other extension numbers mean nothing in IPv4.
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

#[test]
fn vlan_stacks() {
    let packet = v4(17, 0, &UDP);
    let plain = flow_of(&parse(LinkType::ETHERNET, &ethernet(&[8, 0], &packet)));
    assert!(plain.is_some());
    let tpids: [[u8; 2]; 5] = [[0x81, 0], [0x88, 0xa8], [0x91, 0], [0x92, 0], [0x93, 0]];
    let mut types = Vec::new();
    for depth in 1..=20 {
        let [t0, t1] = tpids[depth % 5];
        types.extend_from_slice(&[
            t0,
            t1,
            0x60 | u8::try_from(depth / 8).unwrap(),
            u8::try_from(depth).unwrap(),
        ]);
        let frame = ethernet(&bytes(&[&types, &[8, 0]]), &packet);
        let parsed = parse(LinkType::ETHERNET, &frame);
        assert_eq!((flow_of(&parsed), parsed.ether_type), (plain, Some(0x0800)));
        assert_eq!(
            (parsed.vlan.depth(), parsed.vlan.has_more()),
            (depth, depth > 8)
        );
        assert_eq!(parsed.vlan.tags().len(), depth.min(8));
        assert_eq!(
            parsed.vlan.outer(),
            Some(VlanTag {
                tpid: 0x88a8,
                tci: 0x6001
            })
        );
        assert_ports_from(LinkType::ETHERNET, &frame, 14 + 4 * depth + 24, UDP_PORTS);
    }
    assert_eq!(
        VlanTag {
            tpid: 0x8100,
            tci: 0xf064
        }
        .id(),
        100
    );
    let endless = ethernet(&[0x81, 0, 0, 1].repeat(200), &[]);
    assert_eq!(
        parse(LinkType::ETHERNET, &endless).outcome,
        Outcome::Malformed
    );
}

#[test]
fn llc_and_snap() {
    let parsed = parse(LinkType::ETHERNET, &ethernet(&[0, 38], &[0x42, 0x42, 3, 0]));
    assert_eq!(
        parsed.llc,
        Some(Llc {
            dsap: 0x42,
            ssap: 0x42,
            control: 3,
            snap: None
        })
    );
    assert_eq!(
        (parsed.ether_type, parsed.link_protocol),
        (None, Some(LinkProtocol::Llc))
    );
    assert!(matches!(
        flow_of(&parsed),
        Some(FlowKey::Mac {
            ether_type: None,
            ..
        })
    ));
    assert_eq!(
        flow_of(&parse(
            LinkType::ETHERNET,
            &ethernet(&[0, 38], &[0x42, 0x42])
        )),
        None
    );

    let snap = ethernet(
        &[0, 36],
        &bytes(&[&[0xaa, 0xaa, 3, 0, 0, 0, 8, 0], &v4(17, 0, &UDP)]),
    );
    assert_ports_from(LinkType::ETHERNET, &snap, 46, UDP_PORTS);
    let cisco = ethernet(&[0, 36], &[0xaa, 0xaa, 3, 0, 0, 0x0c, 0x20, 0, 2]);
    let parsed = parse(LinkType::ETHERNET, &cisco);
    assert_eq!(
        parsed.llc.unwrap().snap,
        Some(Snap {
            organization: 0x0c,
            protocol: 0x2000
        })
    );
}

#[test]
fn flow_of_non_ip_is_bidirectional() {
    let there = ethernet(&[0x88, 0xcc], &[0; 46]);
    let back = bytes(&[&there[6..12], &there[..6], &there[12..]]);
    let key = flow_of(&parse(LinkType::ETHERNET, &there));
    assert!(matches!(
        key,
        Some(FlowKey::Mac {
            ether_type: Some(0x88cc),
            ..
        })
    ));
    assert_eq!(key, flow_of(&parse(LinkType::ETHERNET, &back)));
    let tagged = bytes(&[&there[..12], &[0x81, 0, 0, 5], &there[12..]]);
    assert_eq!(key, flow_of(&parse(LinkType::ETHERNET, &tagged)));
    assert_eq!(flow_of(&parse(LinkType::ETHERNET, &there[..13])), None);
}

#[test]
fn mpls() {
    let labels = [0, 1, 0, 64, 0, 2, 1, 64];
    let frame = ethernet(&[0x88, 0x47], &bytes(&[&labels, &v4(17, 0, &UDP)]));
    assert_eq!(parse(LinkType::ETHERNET, &frame).transport, UDP_PORTS);
    assert_eq!(parse(LinkType::ETHERNET, &frame).ether_type, Some(0x8847));
    let frame = ethernet(&[0x88, 0x48], &bytes(&[&labels, &v6(17, &UDP)]));
    assert_eq!(parse(LinkType::ETHERNET, &frame).transport, UDP_PORTS);
    // The checksum tells, where there is one.
    let mut packet = v4(17, 0, &UDP);
    packet[10..12].copy_from_slice(&[0x54, 0x9b]);
    let frame = |packet: &[u8]| ethernet(&[0x88, 0x47], &bytes(&[&labels, packet]));
    assert_ports_from(LinkType::ETHERNET, &frame(&packet), 46, UDP_PORTS);
    packet[11] ^= 1;
    assert_eq!(parse(LinkType::ETHERNET, &frame(&packet)).network, None);
    // An Ethernet pseudo-wire whose destination starts with 6 or 4 is not IP.
    for first in [0x6c, 0x4c, 0x00] {
        let inner = bytes(&[
            &[first, 0x9c, 0xed, 1, 2, 3, 0x10, 0xb1, 0x1c, 4, 5, 6, 8, 0],
            &v4(17, 0, &[0; 40]),
        ]);
        let parsed = parse(
            LinkType::ETHERNET,
            &ethernet(&[0x88, 0x47], &bytes(&[&labels, &inner])),
        );
        assert_eq!(
            (parsed.network, parsed.transport),
            (None, None),
            "{first:#x}"
        );
        assert!(matches!(
            flow_of(&parsed),
            Some(FlowKey::Mac {
                ether_type: Some(0x8847),
                ..
            })
        ));
    }
    let endless = ethernet(&[0x88, 0x47], &[0; 400]);
    assert_eq!(
        parse(LinkType::ETHERNET, &endless).outcome,
        Outcome::Malformed
    );
}

#[test]
fn pppoe_and_ppp() {
    let packet = v4(17, 0, &UDP);
    let session = bytes(&[&[0x11, 0, 0, 9, 0, 30, 0, 0x21], &packet]);
    assert_ports_from(
        LinkType::ETHERNET,
        &ethernet(&[0x88, 0x64], &session),
        46,
        UDP_PORTS,
    );
    assert_ports_from(LinkType::PPP_ETHER, &session, 32, UDP_PORTS);
    let control = parse(
        LinkType::ETHERNET,
        &ethernet(&[0x88, 0x64], &[0x11, 0, 0, 9, 0, 4, 0xc0, 0x21, 9, 0]),
    );
    assert!(matches!(
        flow_of(&control),
        Some(FlowKey::Mac {
            ether_type: Some(0x8864),
            ..
        })
    ));
    let version = parse(
        LinkType::ETHERNET,
        &ethernet(&[0x88, 0x64], &[0x21, 0, 0, 9, 0, 4, 0, 0x21]),
    );
    assert_eq!(version.outcome, Outcome::Malformed);

    for prefix in [
        &[0xff, 3, 0, 0x21][..],
        &[0, 0x21],
        &[0x21],
        &[0xff, 3, 0x21],
    ] {
        for link_type in [LinkType::PPP, LinkType::PPP_SERIAL] {
            assert_ports_from(
                link_type,
                &bytes(&[prefix, &packet]),
                prefix.len() + 24,
                UDP_PORTS,
            );
        }
    }
    assert_ports_from(
        LinkType::PPP,
        &bytes(&[&[0, 0x57], &v6(17, &UDP)]),
        46,
        UDP_PORTS,
    );
    assert_ports_from(
        LinkType::PPP_WITH_DIR,
        &bytes(&[&[1, 0xff, 3, 0, 0x21], &packet]),
        29,
        UDP_PORTS,
    );
    let lcp = parse(LinkType::PPP, &[0xff, 3, 0xc0, 0x21, 1]);
    assert_eq!(
        flow_of(&lcp),
        Some(FlowKey::Link {
            link_type: LinkType::PPP,
            protocol: 0xc021
        })
    );
    for link_type in [LinkType::C_HDLC, LinkType::PPP_SERIAL] {
        assert_ports_from(
            link_type,
            &bytes(&[&[0x0f, 0, 8, 0], &packet]),
            28,
            UDP_PORTS,
        );
    }
}

#[test]
fn address_families_in_both_byte_orders() {
    let (four, six) = (v4(17, 0, &UDP), v6(17, &UDP));
    for link_type in [LinkType::NULL, LinkType::LOOP] {
        for family in [2_u32, 10, 24, 28, 30] {
            let packet = if family == 2 { &four } else { &six };
            let need = packet.len();
            assert_ports_from(
                link_type,
                &bytes(&[&family.to_be_bytes(), packet]),
                need,
                UDP_PORTS,
            );
            assert_ports_from(
                link_type,
                &bytes(&[&family.to_le_bytes(), packet]),
                need,
                UDP_PORTS,
            );
        }
        let other = parse(link_type, &[0, 0, 0, 23, 1]);
        assert_eq!(
            flow_of(&other),
            Some(FlowKey::Link {
                link_type,
                protocol: 23
            })
        );
    }
}

#[test]
fn raw_ip() {
    for link_type in [LinkType::RAW, LinkType::RAW_BSD, LinkType::RAW_OPENBSD] {
        assert_ports_from(link_type, &v4(17, 0, &UDP), 24, UDP_PORTS);
        assert_ports_from(link_type, &v6(17, &UDP), 44, UDP_PORTS);
        assert_eq!(parse(link_type, &[0x50; 40]).outcome, Outcome::Malformed);
    }
    assert_ports_from(LinkType::IPV4, &v4(17, 0, &UDP), 24, UDP_PORTS);
    assert_ports_from(LinkType::IPV6, &v6(17, &UDP), 44, UDP_PORTS);
    assert_eq!(parse(LinkType::IPV4, &v6(17, &UDP)).network, None);
}

#[test]
fn linux_cooked() {
    let packet = v4(17, 0, &UDP);
    let v1 = |hardware: u8, protocol: [u8; 2]| {
        bytes(&[
            &[0, 0, hardware / 100, hardware, 0, 6, 2, 0, 0, 0, 0, 9, 0, 0],
            &protocol,
        ])
    };
    let frame = bytes(&[&v1(1, [8, 0]), &packet]);
    assert_ports_from(LinkType::LINUX_SLL, &frame, 40, UDP_PORTS);
    assert_eq!(
        parse(LinkType::LINUX_SLL, &frame).src_mac,
        Some([2, 0, 0, 0, 0, 9])
    );
    let tagged = bytes(&[&v1(1, [0x81, 0]), &[0, 7, 8, 0], &packet]);
    assert_ports_from(LinkType::LINUX_SLL, &tagged, 44, UDP_PORTS);
    // ARP has no pair of addresses to compare.
    let arp = parse(LinkType::LINUX_SLL, &v1(1, [8, 6]));
    assert_eq!(
        flow_of(&arp),
        Some(FlowKey::Link {
            link_type: LinkType::LINUX_SLL,
            protocol: 0x0806
        })
    );
    // A netlink family is no EtherType.
    let mut netlink = bytes(&[&v1(1, [8, 0]), &packet]);
    netlink[2..4].copy_from_slice(&824_u16.to_be_bytes());
    let parsed = parse(LinkType::LINUX_SLL, &netlink);
    assert_eq!((parsed.network, parsed.ether_type), (None, None));
    assert_eq!(
        parsed.link_protocol,
        Some(LinkProtocol::Device {
            hardware: 824,
            protocol: 0x0800
        })
    );

    let v2 = bytes(&[
        &[8, 0, 0, 0, 0, 0, 0, 3, 0, 1, 0, 6, 2, 0, 0, 0, 0, 9, 0, 0],
        &packet,
    ]);
    assert_ports_from(LinkType::LINUX_SLL2, &v2, 44, UDP_PORTS);
    assert_eq!(
        parse(LinkType::LINUX_SLL2, &v2).src_mac,
        Some([2, 0, 0, 0, 0, 9])
    );
}

#[test]
fn unknown_link_type_has_no_facts() {
    let data = ethernet(&[8, 0], &v4(17, 0, &UDP));
    let parsed = parse(LinkType(195), &data);
    assert_eq!(parsed, Parsed::empty(LinkType(195)));
    assert_eq!(
        (parsed.outcome, flow_of(&parsed)),
        (Outcome::UnknownLinkType, None)
    );
    assert!(!is_supported(LinkType(195)) && is_supported(LinkType::ETHERNET));
}

#[test]
fn random_bytes_never_panic_nor_leave_the_frame() {
    let seed = fastrand::u64(..);
    eprintln!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let known: Vec<LinkType> = (0..=u16::MAX)
        .map(LinkType)
        .filter(|&link_type| is_supported(link_type))
        .collect();
    assert!(known.len() >= 15);
    let mut data = [0; 160];
    for _ in 0..300_000 {
        random.fill(&mut data);
        // Bytes that make headers likely: version nibbles, EtherTypes, extension headers.
        for _ in 0..random.usize(0..12) {
            let at = random.usize(..90);
            data[at] = random
                .choice([
                    0x45, 0x60, 8, 0, 0x86, 0xdd, 0x81, 6, 17, 43, 44, 51, 60, 2, 0x11,
                ])
                .unwrap();
        }
        let frame = &data[..random.usize(..=data.len())];
        let link_type = random.choice(&known).copied().unwrap();
        let parsed = parse(link_type, frame);
        assert!(
            parsed
                .payload_offset
                .is_none_or(|offset| offset <= frame.len()),
            "seed {seed} {frame:02x?}"
        );
        assert_ne!(parsed.outcome, Outcome::UnknownLinkType);
        assert_eq!(
            parsed.payload_offset.is_some(),
            parsed.outcome == Outcome::Complete
        );
        if parsed.transport.is_some() {
            let ip = parsed.network.unwrap();
            assert!(
                matches!(ip.proto, Some(6 | 17 | 132)) && !parsed.is_later_fragment(),
                "seed {seed} {frame:02x?}"
            );
        }
        let line = crate::summary(link_type, frame, 160).to_string();
        assert!(line.contains(" len 160"), "seed {seed} {line}");
    }
}
