//! A quick look for fragments, for those who see every packet and care about few.

use crate::LinkType;
use crate::proto::{ETHER_ARP, ETHER_IPV4, ETHER_IPV6, ICMPV6, SCTP, TCP, UDP};

/// Whether a frame may be a fragment, from a few of its bytes. `false` is certain: [`crate::fragment_of`] has no key of
/// it. `true` asks for a closer look, with [`crate::parse`]: tags, tunnels, other link types and what is cut short get it.
#[inline]
#[must_use]
pub fn may_be_fragment(link_type: LinkType, data: &[u8]) -> bool {
    if link_type != LinkType::ETHERNET {
        return true;
    }
    let Some(header) = data.first_chunk::<22>() else {
        return true;
    };
    match u16::from_be_bytes([header[12], header[13]]) {
        // More fragments, or an offset.
        ETHER_IPV4 => u16::from_be_bytes([header[20], header[21]]) & 0x3fff != 0,
        ETHER_IPV6 => !matches!(header[20], TCP | UDP | SCTP | ICMPV6),
        other => other != ETHER_ARP,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame with an EtherType, 6 bytes of anything and two more.
    fn frame(ether_type: u16, last: [u8; 2]) -> Vec<u8> {
        let mut frame = vec![0; 22];
        frame[12..14].copy_from_slice(&ether_type.to_be_bytes());
        frame[20..].copy_from_slice(&last);
        frame
    }

    #[test]
    fn whole_packets_are_told_without_parsing() {
        let cases = [
            (ETHER_IPV4, [0, 0], false),
            (ETHER_IPV4, [0x40, 0], false), // don't fragment
            (ETHER_IPV4, [0x20, 0], true),
            (ETHER_IPV4, [0x1f, 0xff], true),
            (ETHER_IPV4, [0, 1], true),
            (ETHER_IPV6, [TCP, 64], false),
            (ETHER_IPV6, [44, 64], true), // a fragment header
            (ETHER_IPV6, [0, 64], true),  // hop-by-hop options
            (ETHER_ARP, [0, 0], false),
            (0x8100, [0, 0], true),
            (0x0026, [0, 0], true), // a length
        ];
        for (ether_type, last, expected) in cases {
            let frame = frame(ether_type, last);
            assert_eq!(
                may_be_fragment(LinkType::ETHERNET, &frame),
                expected,
                "{ether_type:#x} {last:?}"
            );
            assert!(may_be_fragment(LinkType::RAW, &frame));
            assert!(may_be_fragment(LinkType::ETHERNET, &frame[..21]));
        }
    }
}
