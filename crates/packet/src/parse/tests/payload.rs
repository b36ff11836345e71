//! Start and end of the payload.

use super::*;

fn payload(link_type: LinkType, data: &[u8]) -> Option<&[u8]> {
    parse(link_type, data).payload(data)
}

fn raw_payload(data: &[u8]) -> Option<&[u8]> {
    payload(LinkType::RAW, data)
}

/// A UDP datagram whose length field has the value `len`.
fn udp(len: u16, body: &[u8]) -> Vec<u8> {
    let [l0, l1] = len.to_be_bytes();
    bytes(&[&UDP[..4], &[l0, l1, 0, 0], body])
}

#[test]
fn it_follows_the_transport_header() {
    let mut options = TCP;
    options[12] = 0x60;
    for (proto, segment) in [
        (6, bytes(&[&TCP, b"body"])),
        (6, bytes(&[&options, &[1, 1, 1, 0], b"body"])),
        (17, udp(12, b"body")),
        (132, bytes(&[&UDP, &[0; 4], b"body"])),
        (47, b"body".to_vec()),
    ] {
        assert_eq!(raw_payload(&v4(proto, 0, &segment)), Some(&b"body"[..]));
        assert_eq!(raw_payload(&v6(proto, &segment)), Some(&b"body"[..]));
    }
    let echo = bytes(&[&[8, 0, 0, 0, 1, 2, 3, 4], b"body"]);
    assert_eq!(raw_payload(&v4(1, 0, &echo)), Some(&b"body"[..]));
    assert_eq!(raw_payload(&v6(58, &echo)), Some(&b"body"[..]));
    // The ICMP number of the other IP version is an unknown protocol.
    assert_eq!(raw_payload(&v4(58, 0, &echo)), Some(&echo[..]));
}

#[test]
fn fragments_have_what_is_in_them() {
    let first = v4(17, 0x2000, &udp(1000, b"the beginning..."));
    assert_eq!(raw_payload(&first), Some(&b"the beginning..."[..]));
    let later = v4(17, 1, b"and the rest");
    assert_eq!(raw_payload(&later), Some(&b"and the rest"[..]));
    let later = v6(44, &bytes(&[&v6_fragment(17, 1232, false), b"the rest"]));
    assert_eq!(raw_payload(&later), Some(&b"the rest"[..]));
}

#[test]
fn it_ends_where_the_packet_does() {
    for packet in [v4(17, 0, &udp(12, b"body")), v6(17, &udp(12, b"body"))] {
        let ether_type: [u8; 2] = if packet[0] == 0x45 {
            [8, 0]
        } else {
            [0x86, 0xdd]
        };
        let mut frame = ethernet(&[&[0x81, 0, 0, 7][..], &ether_type].concat(), &packet);
        frame.extend_from_slice(b"padding");
        assert_eq!(payload(LinkType::ETHERNET, &frame), Some(&b"body"[..]));
    }
    // Three kinds of UDP lengths: shorter than the packet, impossible, and longer than the packet.
    let surplus = v4(17, 0, &udp(10, b"body"));
    assert_eq!(raw_payload(&surplus), Some(&b"bo"[..]));
    for len in [0, 7, 13] {
        assert_eq!(
            raw_payload(&v4(17, 0, &udp(len, b"body"))),
            Some(&b"body"[..])
        );
    }
    // Offload leaves no length: the packet ends with the frame.
    let mut offloaded = v4(6, 0, &bytes(&[&TCP, b"body"]));
    offloaded[2..4].fill(0);
    assert_eq!(raw_payload(&offloaded), Some(&b"body"[..]));
    // IEEE 802.3: an LLC header of 3 bytes in a frame with a length field of 5.
    let padded = ethernet(&[0, 5], &[0x42, 0x42, 3, b'o', b'k', 0, 0, 0]);
    assert_eq!(payload(LinkType::ETHERNET, &padded), Some(&b"ok"[..]));
    // PPPoE: a header of 6 bytes with a length field of 4. Two of these 4 bytes are the protocol.
    let session = ethernet(
        &[0x88, 0x64],
        &[0x11, 0, 0, 1, 0, 4, 0xc0, 0x21, b'o', b'k', 0],
    );
    assert_eq!(payload(LinkType::ETHERNET, &session), Some(&b"ok"[..]));
    let arp = ethernet(&[8, 6], b"no length is told: padding may follow");
    assert_eq!(payload(LinkType::ETHERNET, &arp), Some(&arp[14..]));
}

#[test]
fn a_cut_packet_has_what_was_captured() {
    let packet = v4(17, 0, &udp(12, b"body"));
    assert_eq!(raw_payload(&packet[..30]), Some(&b"bo"[..]));
    assert_eq!(raw_payload(&packet[..28]), Some(&b""[..]));
    assert_eq!(raw_payload(&packet[..27]), None, "cut inside the header");
    let echo = v4(1, 0, &[8, 0, 0, 0, 1, 2, 3, 4, 5]);
    assert_eq!(raw_payload(&echo[..27]), None);
    assert_eq!(raw_payload(&echo[..28]), Some(&b""[..]));
    assert_eq!(raw_payload(&echo), Some(&[5][..]));
}

#[test]
fn headers_are_no_payload() {
    let mut segment = TCP;
    segment[12] = 0x40;
    for nonsense in [v4(6, 0, &segment), v4(17, 0, &UDP[..7]), vec![0x55; 40]] {
        assert_eq!(raw_payload(&nonsense), None);
    }
    let short_icmp = v4(1, 0, &[8, 0, 0, 0, 1]);
    assert_eq!(
        raw_payload(&short_icmp),
        Some(&b""[..]),
        "a message of 5 bytes"
    );
    assert_eq!(payload(LinkType(147), b"who knows"), None);
}
