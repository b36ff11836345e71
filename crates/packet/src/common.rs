//! Headers of the most common Ethernet frames, read at fixed offsets, for code that reads the
//! headers of every packet.

use crate::proto::{AH, ETHER_ARP, ETHER_IPV4, ETHER_IPV6, ICMPV6, SCTP, TCP, UDP};

/// Bytes of an Ethernet header without tags.
const LINK: usize = 14;

/// Header offsets of an untagged Ethernet frame with one of these:
///
/// - ARP
/// - IPv4 without an authentication header
/// - IPv6 with TCP, UDP, SCTP or ICMPv6 directly after the fixed header
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CommonHeaders {
    /// IP version, 4 or 6. For ARP, this and all other fields are 0.
    pub version: u8,
    /// IPv4 protocol or IPv6 next header.
    pub proto: u8,
    /// IPv4's "more fragments" flag, 0x2000, and fragment offset, 0x1fff, in units of 8 bytes. 0 if
    /// the packet is no fragment.
    pub fragment: u16,
    /// Offset of the source address in the frame. The destination address follows. Both addresses
    /// were captured.
    pub addresses: usize,
    /// Offset of the transport header in the frame. May exceed the captured bytes or the packet.
    pub transport: usize,
    /// Offset of the end of the IP packet in the frame, or [`usize::MAX`] if the IP header gives no
    /// length. May exceed the captured bytes. Padding may follow.
    pub end: usize,
}

impl CommonHeaders {
    /// Reads the captured bytes of an Ethernet frame. Returns `None` for frames that need
    /// [`crate::parse()`].
    ///
    /// Inlined, so that a caller does not pay for fields that it does not use.
    #[inline(always)]
    #[must_use]
    pub fn read(data: &[u8]) -> Option<Self> {
        let header: &[u8; LINK + 20] = data.first_chunk()?;
        let half = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        let v4 = |header_len| Self {
            version: 4,
            proto: header[LINK + 9],
            fragment: half(LINK + 6) & 0x3fff,
            addresses: LINK + 12,
            transport: LINK + header_len,
            end: match half(LINK + 2) {
                // Segmentation offload leaves a length of 0.
                0 => usize::MAX,
                len => LINK + usize::from(len),
            },
        };
        match (half(LINK - 2), header[LINK]) {
            (ETHER_IPV4, _) if header[LINK + 9] == AH => None,
            (ETHER_IPV4, 0x45) => Some(v4(20)),
            (ETHER_IPV4, first @ 0x46..=0x4f) => Some(v4(usize::from(first & 15) * 4)),
            (ETHER_IPV6, 0x60..=0x6f) => {
                let is_last = matches!(header[LINK + 6], TCP | UDP | SCTP | ICMPV6);
                let len = half(LINK + 4);
                // A jumbogram's length is 0.
                (is_last && len != 0 && data.len() >= LINK + 40).then(|| Self {
                    version: 6,
                    proto: header[LINK + 6],
                    fragment: 0,
                    addresses: LINK + 8,
                    transport: LINK + 40,
                    end: LINK + 40 + usize::from(len),
                })
            }
            (ETHER_ARP, _) => Some(Self::default()),
            _ => None,
        }
    }

    /// The first `N` bytes after the IP header, if both the capture and the packet are long enough.
    /// `data` is the frame that [`Self::read`] read.
    #[inline(always)]
    #[must_use]
    pub fn transport<'d, const N: usize>(&self, data: &'d [u8]) -> Option<&'d [u8; N]> {
        let end = self.transport + N;
        let header = data.get(self.transport..end)?;
        header.first_chunk().filter(|_| end <= self.end)
    }

    /// Start and end of the payload of a TCP or UDP packet in the frame. The end may exceed the
    /// captured bytes, or be [`usize::MAX`].
    ///
    /// `None` for other protocols, for an impossible TCP header length, and if the first 20 bytes
    /// (TCP) or 8 bytes (UDP) of the header are not in the capture and the packet.
    ///
    /// The packet must not be a later fragment. `data` is the frame that [`Self::read`] read.
    #[inline(always)]
    #[must_use]
    pub fn payload(&self, data: &[u8]) -> Option<(usize, usize)> {
        match self.proto {
            TCP => {
                let len = usize::from(self.transport::<20>(data)?[12] >> 4) * 4;
                let start = self.transport + len;
                (len >= 20 && start <= self.end).then_some((start, self.end))
            }
            UDP => {
                let &[.., high, low, _, _] = self.transport::<8>(data)?;
                // A UDP length below 8 is impossible: the payload then ends with the IP packet.
                let end = match usize::from(u16::from_be_bytes([high, low])) {
                    0..8 => self.end,
                    len => self.end.min(self.transport + len),
                };
                Some((self.transport + 8, end))
            }
            _ => None,
        }
    }
}
