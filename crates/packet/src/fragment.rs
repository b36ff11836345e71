//! A quick check for fragments, and a memory of fragmented datagrams, for code that sees every
//! packet.

use std::collections::{HashMap, VecDeque};

use crate::proto::{ETHER_ARP, ETHER_IPV4, ETHER_IPV6, ICMPV6, SCTP, TCP, UDP};
use crate::{FragmentKey, LinkType};

/// Whether a frame may be a fragment, judged by a few of its bytes. `false` is certain; for `true`
/// the caller must call [`crate::parse()`].
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
        ETHER_IPV4 => u16::from_be_bytes([header[20], header[21]]) & 0x3fff != 0,
        ETHER_IPV6 => !matches!(header[20], TCP | UDP | SCTP | ICMPV6),
        other => other != ETHER_ARP,
    }
}

/// Facts about fragmented datagrams, learned from their first fragments. Holds at most
/// [`Datagrams::CAPACITY`] datagrams, and evicts the datagram that was added first: IPv4
/// identifications repeat after at most 65,536 datagrams.
#[derive(Debug, Clone)]
pub struct Datagrams<T> {
    known: HashMap<FragmentKey, T>,
    /// The keys of `known`, oldest first.
    order: VecDeque<FragmentKey>,
}

impl<T> Default for Datagrams<T> {
    fn default() -> Self {
        Self {
            known: HashMap::new(),
            order: VecDeque::new(),
        }
    }
}

impl<T> Datagrams<T> {
    /// Maximum number of datagrams.
    pub const CAPACITY: usize = 4096;

    /// The latest value of a datagram.
    #[must_use]
    pub fn get(&self, datagram: &FragmentKey) -> Option<&T> {
        self.known.get(datagram)
    }

    /// Stores a value for a datagram. Returns whether another datagram was evicted.
    pub fn insert(&mut self, datagram: FragmentKey, value: T) -> bool {
        if self.known.insert(datagram, value).is_some() {
            return false;
        }
        self.order.push_back(datagram);
        if self.order.len() <= Self::CAPACITY {
            return false;
        }
        let oldest = self.order.pop_front();
        oldest.is_some_and(|oldest| self.known.remove(&oldest).is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_datagram_first_seen_is_forgotten_first() {
        let key = |id| FragmentKey {
            src: [10, 0, 0, 1].into(),
            dst: [10, 0, 0, 2].into(),
            proto: UDP,
            id,
        };
        let mut datagrams = Datagrams::default();
        for id in 0..4096 {
            assert!(!datagrams.insert(key(id), id));
        }
        assert!(!datagrams.insert(key(0), 7), "it is known");
        assert_eq!(datagrams.get(&key(0)), Some(&7), "the last one counts");
        assert!(datagrams.insert(key(4096), 4096));
        assert_eq!(datagrams.get(&key(0)), None);
        assert_eq!(datagrams.get(&key(1)), Some(&1));
        assert_eq!((datagrams.known.len(), datagrams.order.len()), (4096, 4096));
    }

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
