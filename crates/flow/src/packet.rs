//! The facts of a packet that a flow counts, and the flow of the packet. Only the first fragment of
//! a datagram has the ports, so a later fragment may get its flow from the first fragment.

use retroscope_packet::proto::{ICMP, ICMPV6, TCP};
use retroscope_packet::{CommonHeaders, Datagrams, Icmp, LinkType, Parsed, fragment_of, parse};

use crate::DirectedKey;
use crate::flow::PAYLOAD;

/// Maximum time between a first fragment and a later fragment of the same datagram, ns. An IPv6
/// receiver also waits 60 s for the rest of a datagram (RFC 8200, 4.5).
const APART_MAX_NS: u64 = 60_000_000_000;

/// The facts of a packet that a flow counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowPacket {
    /// The key of the flow and the direction of the packet.
    pub ends: DirectedKey,
    /// Time of the packet, ns: since the UNIX epoch, or ring time in the recorder.
    pub time_ns: i64,
    /// Bytes of the whole frame on the wire.
    pub wire_len: u32,
    /// TCP flag bits. `None` if the packet has no captured flags: see [`Parsed::tcp_flags`].
    pub tcp_flags: Option<u8>,
    /// TCP sequence number. 0 if unknown: see [`Parsed::tcp_seq`].
    pub tcp_seq: u32,
    /// ICMP type and code, if captured: see [`Parsed::icmp`].
    pub icmp: Option<Icmp>,
    /// Number of the interface at which the packet was captured.
    pub interface: u16,
    /// The first bytes of the captured payload, `payload_len` bytes.
    pub(crate) payload: [u8; PAYLOAD],
    pub(crate) payload_len: u8,
    /// Bytes of payload on the wire according to the headers, captured or not. 0 if the headers are
    /// incomplete; see [`Parsed::payload`].
    pub payload_bytes: u32,
}

impl FlowPacket {
    /// A packet of interface 0 without payload, without an ICMP type, and with sequence number 0.
    #[must_use]
    pub fn new(ends: DirectedKey, time_ns: i64, wire_len: u32, tcp_flags: Option<u8>) -> Self {
        Self {
            ends,
            time_ns,
            wire_len,
            tcp_flags,
            tcp_seq: 0,
            icmp: None,
            interface: 0,
            payload: [0; PAYLOAD],
            payload_len: 0,
            payload_bytes: 0,
        }
    }

    /// A fast path for complete TCP and UDP headers directly after IP in an untagged Ethernet
    /// frame. `None`: use [`Attribution::packet`].
    #[inline]
    fn common(data: &[u8], time_ns: i64, wire_len: u32) -> Option<Self> {
        let headers = CommonHeaders::read(data)?;
        if headers.version == 0 || headers.fragment != 0 {
            return None;
        }
        let (start, end) = headers.payload(data)?;
        let (tcp_flags, tcp_seq) = if headers.proto == TCP {
            let &[_, _, _, _, a, b, c, d, .., flags] = headers.transport::<14>(data)?;
            (Some(flags), u32::from_be_bytes([a, b, c, d]))
        } else {
            (None, 0)
        };
        let payload_bytes = payload_bytes(start, end, wire_len);
        let payload = data.get(start..end.min(data.len()))?;
        let len = if headers.version == 4 { 4 } else { 16 };
        let addresses = data.get(headers.addresses..headers.addresses + 2 * len)?;
        let ends = DirectedKey::of_ports(headers.proto, addresses, headers.transport(data)?);
        let mut packet = Self::new(ends, time_ns, wire_len, tcp_flags);
        packet.tcp_seq = tcp_seq;
        packet.payload_bytes = payload_bytes;
        Some(packet.with_payload(payload))
    }

    /// The packet with at most the first 12 bytes of this payload.
    #[must_use]
    pub fn with_payload(mut self, payload: &[u8]) -> Self {
        let len = payload.len().min(PAYLOAD);
        self.payload[..len].copy_from_slice(&payload[..len]);
        #[expect(clippy::cast_possible_truncation, reason = "12 at most")]
        {
            self.payload_len = len as u8;
        }
        self
    }
}

/// Bytes from `start` to `end` of a frame, limited to the bytes on the wire.
#[inline]
fn payload_bytes(start: usize, end: usize, wire_len: u32) -> u32 {
    let end = u32::try_from(end).map_or(wire_len, |end| end.min(wire_len));
    u32::try_from(start).map_or(0, |start| end.saturating_sub(start))
}

/// Finds the flows of packets. The memory of fragments is bounded: see [`Datagrams::CAPACITY`].
#[derive(Debug, Clone)]
pub struct Attribution {
    has_vlans: bool,
    joins_fragments: bool,
    datagrams: Datagrams<(DirectedKey, i64)>,
    forgotten: u64,
    unattributed: u64,
}

impl Attribution {
    /// `has_vlans`: packets with different VLAN identifiers belong to different flows.
    ///
    /// `joins_fragments`: a later fragment belongs to the flow of a remembered first fragment, at
    /// most 60 s apart. Any other later fragment has no flow if the flow depends on ports, on ICMP
    /// types, or on other headers of the first fragment.
    #[must_use]
    pub fn new(has_vlans: bool, joins_fragments: bool) -> Self {
        Self {
            has_vlans,
            joins_fragments,
            datagrams: Datagrams::default(),
            forgotten: 0,
            unattributed: 0,
        }
    }

    /// The counted facts of a frame: see [`Self::packet`].
    #[inline]
    pub fn frame(
        &mut self,
        link_type: LinkType,
        data: &[u8],
        time_ns: i64,
        wire_len: u32,
    ) -> Option<FlowPacket> {
        if link_type == LinkType::ETHERNET
            && let Some(packet) = FlowPacket::common(data, time_ns, wire_len)
        {
            return Some(packet);
        }
        self.packet(&parse(link_type, data), data, time_ns, wire_len)
    }

    /// The counted facts of a packet with these captured bytes. `None` if the flow is unknown. A
    /// later fragment finds only a first fragment that was passed before.
    pub fn packet(
        &mut self,
        parsed: &Parsed,
        data: &[u8],
        time_ns: i64,
        wire_len: u32,
    ) -> Option<FlowPacket> {
        let Some((ends, is_whole)) = self.ends(parsed, time_ns) else {
            self.unattributed += 1;
            return None;
        };
        let mut packet = FlowPacket::new(ends, time_ns, wire_len, parsed.tcp_flags);
        packet.tcp_seq = parsed.tcp_seq.unwrap_or_default();
        packet.icmp = parsed.icmp;
        let end = parsed.payload_end.unwrap_or(usize::MAX);
        let start = parsed.payload_start();
        packet.payload_bytes = start.map_or(0, |start| payload_bytes(start, end, wire_len));
        let payload = parsed.payload(data).filter(|_| is_whole);
        Some(packet.with_payload(payload.unwrap_or_default()))
    }

    /// The key of a packet's flow, and whether the packet contains the beginning of its payload.
    #[inline]
    fn ends(&mut self, parsed: &Parsed, time_ns: i64) -> Option<(DirectedKey, bool)> {
        let is_fragment = parsed.network.is_some_and(|ip| ip.fragment.is_some());
        if !is_fragment {
            return Some((DirectedKey::of(parsed, self.has_vlans)?, true));
        }
        let datagram = fragment_of(parsed)?;
        if !parsed.is_later_fragment() {
            let ends = DirectedKey::of(parsed, self.has_vlans)?;
            if self.joins_fragments {
                self.forgotten += u64::from(self.datagrams.insert(datagram, (ends, time_ns)));
            }
            return Some((ends, true));
        }
        let known = self.datagrams.get(&datagram);
        if let Some((ends, first_ns)) = known
            && first_ns.abs_diff(time_ns) <= APART_MAX_NS
        {
            return Some((*ends, false));
        }
        // Only the first fragment has the ICMP type.
        let proto = parsed.network.and_then(|ip| ip.proto);
        let has_type = matches!(proto, Some(ICMP | ICMPV6));
        let ends = DirectedKey::of(parsed, self.has_vlans).filter(|_| !has_type)?;
        Some((ends, false))
    }

    /// Packets without a known flow.
    #[must_use]
    pub fn unattributed(&self) -> u64 {
        self.unattributed
    }

    /// Fragmented datagrams that were evicted from the memory of fragments.
    #[must_use]
    pub fn forgotten_datagrams(&self) -> u64 {
        self.forgotten
    }
}

#[cfg(test)]
mod tests {
    use retroscope_packet::{LinkType, ParseOutcome, parse, proto::UDP};

    use super::*;

    /// An IPv4 packet of 32 bytes. `field`: fragment flags and offset. The payload starts like a
    /// UDP header from port 53 to port 1234.
    fn fragment(id: u16, field: u16, proto: u8) -> (Parsed, Vec<u8>) {
        let ([a, b], [c, d]) = (id.to_be_bytes(), field.to_be_bytes());
        let mut data = vec![0x45, 0, 0, 32, a, b, c, d, 64, proto, 0, 0];
        data.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        data.extend([0, 53, 4, 210, 0, 20, 0, 0, 1, 2, 3, 4]);
        let parsed = parse(LinkType::RAW, &data);
        assert_eq!(parsed.outcome, ParseOutcome::Complete);
        (parsed, data)
    }

    fn ends(
        attribution: &mut Attribution,
        of: &(Parsed, Vec<u8>),
        time_ns: i64,
    ) -> Option<DirectedKey> {
        let packet = attribution.packet(&of.0, &of.1, time_ns, 32);
        packet.map(|packet| packet.ends)
    }

    #[test]
    fn later_fragments_find_the_ports_of_the_first() {
        let mut joined = Attribution::new(false, true);
        let (whole, first) = (fragment(7, 0, 17), fragment(7, 0x2000, 17));
        let (later, other) = (fragment(7, 2, 17), fragment(8, 2, 17));
        assert_eq!(ends(&mut joined, &later, 0), None, "not yet");
        let flow = ends(&mut joined, &first, 0);
        assert!(flow.is_some());
        assert_eq!(ends(&mut joined, &whole, 0), flow);
        assert_eq!(ends(&mut joined, &later, 60_000_000_000), flow);
        assert_eq!(ends(&mut joined, &later, 60_000_000_001), None);
        assert_eq!(ends(&mut joined, &other, 0), None);
        assert_eq!(joined.unattributed(), 3);

        let mut apart = Attribution::new(false, false);
        assert_eq!(ends(&mut apart, &first, 0), flow);
        assert_eq!(ends(&mut apart, &later, 0), None);
    }

    /// If [`FlowPacket::common`] reads a damaged frame, [`Attribution::packet`] returns the same.
    #[test]
    fn common_headers_tell_what_all_headers_tell() {
        let mut random = fastrand::Rng::with_seed(5);
        let mut common = 0;
        for round in 0..200_000 {
            let is_v6 = random.bool();
            let mut data = vec![0; 12];
            data.extend(if is_v6 { [0x86, 0xdd] } else { [8, 0] });
            let proto = random.choice([TCP, UDP]).unwrap();
            if is_v6 {
                data.extend([0x60, 0, 0, 0, 0, 40, proto, 64]);
                data.extend([1; 32]);
            } else {
                data.extend([0x45, 0, 0, 60, 0, 0, 0, 0, 64, proto, 0, 0]);
                data.extend([10, 0, 0, 2, 10, 0, 0, random.u8(0..4)]);
            }
            data.extend([
                0,
                53,
                0,
                random.u8(50..56),
                0,
                40,
                0,
                0,
                0,
                0,
                0,
                0,
                0x50,
                2,
            ]);
            data.extend([7; 40]);
            for _ in 0..random.usize(..4) {
                let at = random.usize(12..data.len());
                data[at] = random.u8(..);
            }
            data.truncate(random.usize(data.len() / 2..=data.len()));
            let mut attribution = Attribution::new(random.bool(), true);
            let parsed = parse(LinkType::ETHERNET, &data);
            if let Some(packet) = FlowPacket::common(&data, 5, 99) {
                common += 1;
                let all = attribution.packet(&parsed, &data, 5, 99);
                assert_eq!(all, Some(packet), "{round}: {data:x?}");
            }
        }
        assert!(common > 50_000, "{common}");
    }

    #[test]
    fn what_has_no_ports_needs_no_first_fragment_but_icmp() {
        let mut attribution = Attribution::new(false, false);
        assert!(ends(&mut attribution, &fragment(7, 2, 47), 0).is_some());
        assert!(ends(&mut attribution, &fragment(7, 2, 1), 0).is_none());
    }

    #[test]
    fn payload_is_what_the_first_fragment_shows() {
        let mut attribution = Attribution::new(false, true);
        let packet = |attribution: &mut Attribution, field| {
            let (parsed, data) = fragment(7, field, 17);
            attribution.packet(&parsed, &data, 0, 32).unwrap()
        };
        let first = packet(&mut attribution, 0x2000);
        assert_eq!(
            (first.payload_len, &first.payload[..4]),
            (4, &[1, 2, 3, 4][..])
        );
        assert_eq!(packet(&mut attribution, 2).payload_len, 0);
    }

    #[test]
    fn spoofed_fragments_are_forgotten() {
        let mut attribution = Attribution::new(false, true);
        for id in 0..=u16::MAX {
            ends(&mut attribution, &fragment(id, 0x2000, 17), 0);
        }
        let capacity = Datagrams::<()>::CAPACITY as u64;
        assert_eq!(attribution.forgotten_datagrams(), 65_536 - capacity);
        assert!(ends(&mut attribution, &fragment(9, 2, 17), 0).is_none());
        assert!(ends(&mut attribution, &fragment(u16::MAX, 2, 17), 0).is_some());
    }
}
