//! Hand-made headers: complete, truncated, and with impossible lengths. Also random bytes.

mod ip;
mod link;
mod payload;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{
    FlowKey, Fragment, FragmentKey, Icmp, LinkProtocol, LinkType, Llc, ParseOutcome, Parsed, Ports,
    Snap, VlanTag, flow_of, fragment_of, parse,
};

const MACS: [u8; 12] = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
const UDP: [u8; 8] = [0x04, 0xd2, 0, 53, 0, 8, 0, 0];
const TCP: [u8; 20] = [
    0x04, 0xd2, 0, 80, 1, 2, 3, 4, 0, 0, 0, 0, 0x50, 0x12, 0, 0, 0, 0, 0, 0,
];
const UDP_PORTS: Option<Ports> = Some(Ports { src: 1234, dst: 53 });
const TCP_PORTS: Option<Ports> = Some(Ports { src: 1234, dst: 80 });

fn bytes(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

/// An Ethernet frame. `types` are the bytes from the end of the addresses to the end of the
/// EtherType.
fn ethernet(types: &[u8], payload: &[u8]) -> Vec<u8> {
    bytes(&[&MACS, types, payload])
}

fn len_u16(len: usize) -> [u8; 2] {
    u16::try_from(len).unwrap().to_be_bytes()
}

/// An IPv4 packet with correct lengths from 10.0.0.1 to 10.0.0.2. `bits` are the flags and the
/// fragment offset.
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

/// An IPv6 packet with a correct length from 2001:db8::1 to 2001:db8::2.
fn v6(next: u8, payload: &[u8]) -> Vec<u8> {
    let [l0, l1] = len_u16(payload.len());
    bytes(&[
        &[0x60, 0, 0, 0, l0, l1, next, 64],
        &v6_addr(1).octets(),
        &v6_addr(2).octets(),
        payload,
    ])
}

/// An IPv6 fragment header. `offset` is in bytes.
fn v6_fragment(next: u8, offset: u16, more: bool) -> [u8; 8] {
    let [o0, o1] = (offset | u16::from(more)).to_be_bytes();
    [next, 0, o0, o1, 0, 1, 2, 3]
}

fn raw(data: &[u8]) -> Parsed {
    parse(LinkType::RAW, data)
}

/// Asserts that no prefix of less than `need` bytes shows ports, and that every prefix of at least
/// `need` bytes shows `ports`.
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
                ParseOutcome::Truncated,
                "{len} bytes of {frame:02x?}"
            );
            assert_eq!(flow_of(&parsed), None, "{len} bytes of {frame:02x?}");
        }
    }
}

#[test]
fn random_bytes_never_panic_nor_leave_the_frame() {
    let seed = fastrand::u64(..);
    eprintln!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let known: Vec<LinkType> = (0..=u16::MAX)
        .map(LinkType)
        .filter(|&link_type| parse(link_type, &[]).outcome != ParseOutcome::UnknownLinkType)
        .collect();
    assert!(known.len() >= 15);
    let mut data = [0; 160];
    for _ in 0..300_000 {
        random.fill(&mut data);
        // Bytes that often form headers: version nibbles, EtherTypes, extension headers.
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
        assert_ne!(parsed.outcome, ParseOutcome::UnknownLinkType);
        assert_eq!(
            parsed.payload_offset.is_some(),
            parsed.outcome == ParseOutcome::Complete
        );
        if parsed.transport.is_some() {
            let ip = parsed.network.unwrap();
            assert!(
                matches!(ip.proto, Some(6 | 17 | 132)) && !parsed.is_later_fragment(),
                "seed {seed} {frame:02x?}"
            );
        }
        check_offsets(&parsed, frame);
        let line = crate::summary(link_type, frame, 160).to_string();
        assert!(line.contains(" len 160"), "seed {seed} {line}");
    }
}

/// The bytes at the offsets must agree with the facts.
fn check_offsets(parsed: &Parsed, frame: &[u8]) {
    assert_eq!(parsed.network_offset.is_some(), parsed.network.is_some());
    if let (Some(at), Some(ip)) = (parsed.network_offset, parsed.network) {
        let header = &frame[at as usize..];
        match ip.src {
            IpAddr::V4(src) => {
                assert_eq!((header[0] >> 4, &header[12..16]), (4, &src.octets()[..]))
            }
            IpAddr::V6(src) => assert_eq!((header[0] >> 4, &header[8..24]), (6, &src.octets()[..])),
        }
    }
    let has_header = parsed.transport.is_some() || parsed.icmp.is_some();
    assert_eq!(parsed.transport_offset.is_some(), has_header);
    if let Some(at) = parsed.transport_offset {
        let header = &frame[at as usize..];
        if let Some(ports) = parsed.transport {
            let both = [ports.src, ports.dst].map(u16::to_be_bytes);
            assert_eq!(header[..4], *both.as_flattened());
        }
        if let Some(icmp) = parsed.icmp {
            assert_eq!(header[..2], [icmp.kind, icmp.code]);
        }
    }
}
