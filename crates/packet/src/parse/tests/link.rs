//! Link headers.

use super::*;

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
        assert_eq!(parsed.vlan.has_more(), depth > 8);
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
        ParseOutcome::Malformed
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
    // The checksum decides, unless it is 0.
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
        ParseOutcome::Malformed
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
    assert_eq!(version.outcome, ParseOutcome::Malformed);

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
        assert_eq!(
            parse(link_type, &[0x50; 40]).outcome,
            ParseOutcome::Malformed
        );
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
    // ARP on this link type has no pair of hardware addresses to compare.
    let arp = parse(LinkType::LINUX_SLL, &v1(1, [8, 6]));
    assert_eq!(
        flow_of(&arp),
        Some(FlowKey::Link {
            link_type: LinkType::LINUX_SLL,
            protocol: 0x0806
        })
    );
    // A netlink family is not an EtherType.
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
    let link_type = LinkType(195);
    assert_eq!(
        parsed,
        Parsed {
            link_type,
            ..Parsed::default()
        }
    );
    assert_eq!(
        (parsed.outcome, flow_of(&parsed)),
        (ParseOutcome::UnknownLinkType, None)
    );
}
