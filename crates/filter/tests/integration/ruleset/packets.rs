//! Random packets with few different addresses and ports, so that rules with these values match.

use retroscope_packet::LinkType;

/// IPv4 addresses in rules and packets.
pub(crate) const HOSTS: [[u8; 4]; 6] = [
    [10, 0, 0, 1],
    [10, 0, 0, 2],
    [10, 0, 1, 1],
    [10, 1, 0, 1],
    [192, 168, 0, 1],
    [192, 168, 255, 255],
];
/// IPv6 addresses in rules and packets.
pub(crate) const HOSTS6: [&str; 4] = ["2001:db8::1", "2001:db8::2", "2001:db8:0:1::1", "fe80::1"];
/// Ports in rules and packets.
pub(crate) const PORTS: [u16; 7] = [0, 53, 80, 1000, 1001, 60000, 65535];

const TCP: u8 = 6;
const UDP: u8 = 17;

fn one<T: Copy>(random: &mut fastrand::Rng, of: &[T]) -> T {
    of[random.usize(..of.len())]
}

/// A packet and its length on the wire.
pub(crate) fn packet(random: &mut fastrand::Rng, link_type: LinkType) -> (Vec<u8>, u32) {
    let mut packet = Vec::new();
    let (kind, body) = network(random, link_type);
    link_header(random, link_type, kind, &mut packet);
    packet.extend(body);
    let wire_len = u32::try_from(packet.len()).expect("small") + random.u32(..2) * 100;
    match random.u8(..16) {
        0 => packet.truncate(random.usize(..=packet.len())),
        1 => packet.truncate(packet.len().min(random.usize(..48))),
        2 => {
            let at = random.usize(..packet.len());
            packet[at] = random.u8(..);
        }
        _ => {}
    }
    (packet, wire_len)
}

fn link_header(random: &mut fastrand::Rng, link_type: LinkType, kind: u16, packet: &mut Vec<u8>) {
    match link_type {
        LinkType::ETHERNET => {
            for _ in 0..2 {
                packet.extend([2, 0, 0, 0, 0, random.u8(1..4)]);
            }
            for _ in 0..one(random, &[0, 0, 0, 0, 1, 1, 2]) {
                packet.extend(
                    one(random, &[0x8100_u16, 0x8100, 0x88a8, 0x9100, 0x9200]).to_be_bytes(),
                );
                packet.extend((random.u16(9..12) | random.u16(..8) << 13).to_be_bytes());
            }
            packet.extend(kind.to_be_bytes());
        }
        LinkType::LINUX_SLL => {
            packet.extend([0, 0, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0]);
            packet.extend(kind.to_be_bytes());
        }
        LinkType::LINUX_SLL2 => {
            packet.extend(kind.to_be_bytes());
            packet.extend([0, 0, 0, 0, 0, 1, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0]);
        }
        LinkType::NULL => {
            let family: u32 = match kind {
                0x0800 => 2,
                0x86dd => one(random, &[10, 24, 28, 30]),
                _ => 7,
            };
            packet.extend(family.to_ne_bytes());
        }
        LinkType::LOOP => {
            let family: u32 = match kind {
                0x0800 => 2,
                0x86dd => one(random, &[10, 24, 28, 30]),
                _ => 7,
            };
            packet.extend(family.to_be_bytes());
        }
        LinkType::PPP => packet.extend(match kind {
            0x0800 => [0xff, 3, 0, 0x21],
            0x86dd => [0xff, 3, 0, 0x57],
            _ => [0xff, 3, 0xc0, 0x21],
        }),
        _ => {}
    }
}

fn network(random: &mut fastrand::Rng, link_type: LinkType) -> (u16, Vec<u8>) {
    match random.u8(..16) {
        0 if link_type != LinkType::IPV6 => (one(random, &[0x0806, 0x8035]), arp(random)),
        1 => (
            one(random, &[0x88cc, 0x0026, 0x8847]),
            vec![random.u8(..); 40],
        ),
        2..6 => (0x86dd, v6(random)),
        _ => (0x0800, v4(random)),
    }
}

fn arp(random: &mut fastrand::Rng) -> Vec<u8> {
    let mut arp = vec![0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1];
    arp.extend(one(random, &HOSTS));
    arp.extend([0; 6]);
    arp.extend(one(random, &HOSTS));
    arp
}

fn v4(random: &mut fastrand::Rng) -> Vec<u8> {
    let words = one(random, &[5_u8, 5, 5, 5, 6, 15, 4, 0]);
    let proto = one(random, &[TCP, TCP, UDP, UDP, 132, 1, 2, 47, 50, 51, 58]);
    let fragment = one(random, &[0_u16, 0, 0, 0, 0x4000, 0x2000, 0x2001, 1]);
    let body = transport(random, proto);
    let len = u16::from(words.max(5)) * 4 + u16::try_from(body.len()).expect("small");
    let mut packet = vec![0x40 | words, 0];
    packet.extend(len.to_be_bytes());
    packet.extend([0, 7]);
    packet.extend(fragment.to_be_bytes());
    packet.extend([one(random, &[1, 64]), proto, 0, 0]);
    packet.extend(one(random, &HOSTS));
    packet.extend(one(random, &HOSTS));
    packet.resize(usize::from(words.max(5)) * 4, 1);
    packet.extend(body);
    packet
}

fn v6(random: &mut fastrand::Rng) -> Vec<u8> {
    let proto = one(random, &[TCP, TCP, UDP, UDP, 132, 58, 59]);
    let before = one(random, &[None, None, None, None, Some(44), Some(0)]);
    let mut body = Vec::new();
    if before.is_some() {
        body.extend([proto, 0, 0, random.u8(..4), 0, 0, 0, 9]);
    }
    body.extend(transport(random, proto));
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend(u16::try_from(body.len()).expect("small").to_be_bytes());
    packet.extend([before.unwrap_or(proto), 64]);
    for _ in 0..2 {
        let addr: std::net::Ipv6Addr = one(random, &HOSTS6).parse().expect("an address");
        packet.extend(addr.octets());
    }
    packet.extend(body);
    packet
}

fn transport(random: &mut fastrand::Rng, proto: u8) -> Vec<u8> {
    let mut body = Vec::new();
    for _ in 0..2 {
        body.extend(one(random, &PORTS).to_be_bytes());
    }
    match proto {
        TCP => body.extend([
            0,
            0,
            0,
            1,
            0,
            0,
            0,
            0,
            0x50,
            random.u8(..32),
            0,
            9,
            0,
            0,
            0,
            0,
        ]),
        UDP => body.extend([0, 8, 0, 0]),
        _ => body.extend([0; 12]),
    }
    body
}
