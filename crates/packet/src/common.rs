//! The headers that most Ethernet frames have, read at fixed places: for those who look at every packet.

use crate::proto::{AH, ETHER_ARP, ETHER_IPV4, ETHER_IPV6, ICMPV6, SCTP, TCP, UDP};

/// Bytes of an Ethernet header without tags.
const LINK: usize = 14;

/// Where the headers are in an untagged Ethernet frame that carries ARP, IPv4 without an authentication header, or IPv6 with TCP, UDP, SCTP
/// or ICMPv6 right behind its fixed header. [`crate::parse`] says the same about such a frame, and reads all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CommonHeaders {
    /// IP version, 4 or 6. ARP: 0, as all other fields.
    pub version: u8,
    /// IPv4 protocol or IPv6 next header.
    pub proto: u8,
    /// IPv4's "more fragments" flag, 0x2000, and fragment offset, 0x1fff, in units of 8 bytes. 0: it is no fragment.
    pub fragment: u16,
    /// Offset of the source address in the frame; the destination address follows it. Both were captured.
    pub addresses: usize,
    /// Offset of the transport header in the frame. It may lie beyond the captured bytes or the packet: see [`Self::transport`].
    pub transport: usize,
    /// Offset of the end of the IP packet in the frame, or [`usize::MAX`] where the IP header does not tell. Padding may follow it, and
    /// it may lie beyond the captured bytes.
    pub end: usize,
}

impl CommonHeaders {
    /// Reads the captured bytes of an Ethernet frame. `None`: [`crate::parse`] has to.
    ///
    /// Inlined, so that callers who go on with some of these frames only, or with some fields, pay for no more.
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

    /// The first bytes of the transport header, where so many of the packet were captured. `data` is what was read.
    #[inline(always)]
    #[must_use]
    pub fn transport<'d, const N: usize>(&self, data: &'d [u8]) -> Option<&'d [u8; N]> {
        let end = self.transport + N;
        let header = data.get(self.transport..end)?;
        header.first_chunk().filter(|_| end <= self.end)
    }

    /// Where the payload of a TCP or UDP packet starts and ends in the frame. The end may lie
    /// beyond the captured bytes, or be [`usize::MAX`]. `None` for other protocols, for a transport
    /// header that was not captured whole, and for a TCP header length that cannot be. The packet
    /// must not be a later fragment. `data` is the frame that [`Self::read`] saw.
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
                // A length below 8 tells no end.
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
