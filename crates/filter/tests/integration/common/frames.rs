//! Hand-made frames.

/// Hosts and ports at both ends. The host addresses are 10.0.0.N, or fe80::N in [`udp6`].
#[derive(Clone, Copy)]
pub(crate) struct Ends {
    /// Last byte of the source address, and the source port.
    pub(crate) src: (u8, u16),
    /// Last byte of the destination address, and the destination port.
    pub(crate) dst: (u8, u16),
}

impl Ends {
    /// The other direction.
    pub(crate) fn reversed(self) -> Self {
        Self {
            src: self.dst,
            dst: self.src,
        }
    }
}

/// A fragment of an IPv4 datagram: identification, offset in units of 8 bytes, more fragments.
pub(crate) type Piece = (u16, u16, bool);

const MACS: [u8; 12] = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];

/// An Ethernet frame with a whole UDP datagram over IPv4. `tags` are the contents of VLAN tags.
pub(crate) fn udp(ends: Ends, tags: &[u16]) -> Vec<u8> {
    ipv4(ends, 17, (7, 0, false), tags)
}

/// An Ethernet frame with IPv4 and 16 more bytes: a UDP header, or 8 bytes 0xee in a later
/// fragment, and then 8 zeros. `tags` are the contents of VLAN tags.
pub(crate) fn ipv4(ends: Ends, proto: u8, (id, offset, more): Piece, tags: &[u16]) -> Vec<u8> {
    let mut frame = MACS.to_vec();
    for tag in tags {
        frame.extend([0x81, 0x00]);
        frame.extend(tag.to_be_bytes());
    }
    frame.extend([0x08, 0x00, 0x45, 0, 0, 36]);
    frame.extend(id.to_be_bytes());
    frame.extend((offset | u16::from(more) << 13).to_be_bytes());
    frame.extend([64, proto, 0, 0, 10, 0, 0, ends.src.0, 10, 0, 0, ends.dst.0]);
    if offset == 0 {
        frame.extend(ends.src.1.to_be_bytes());
        frame.extend(ends.dst.1.to_be_bytes());
        frame.extend([0, 16, 0, 0]);
    } else {
        frame.extend([0xee; 8]);
    }
    frame.extend([0; 8]);
    frame
}

/// A UDP datagram over IPv6 between addresses fe80::N.
pub(crate) fn udp6(ends: Ends) -> Vec<u8> {
    let mut frame = MACS.to_vec();
    frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 8, 17, 64]);
    for host in [ends.src.0, ends.dst.0] {
        frame.extend([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, host]);
    }
    frame.extend(ends.src.1.to_be_bytes());
    frame.extend(ends.dst.1.to_be_bytes());
    frame.extend([0, 8, 0, 0]);
    frame
}

/// An ARP request for 10.0.0.2.
pub(crate) fn arp() -> Vec<u8> {
    let mut frame = MACS.to_vec();
    frame.extend([0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend([2, 0, 0, 0, 0, 1, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2]);
    frame
}
