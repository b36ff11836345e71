//! Follows the bytes of a TCP connection or of a UDP flow.
//!
//! Sequence numbers order the bytes of each TCP direction. A segment after a hole waits until the
//! hole is filled, or until the other side acknowledges the hole: then the recorder missed these
//! bytes. If the waiting segments of both directions need more than [`BYTES_MAX`] bytes of memory,
//! the holes of the newest segment's direction count as missed bytes.

use std::{collections::BTreeMap, net::SocketAddr};

use retroscope_packet::{FlowEndpoint, Parsed, Ports, parse, proto::TCP};
use retroscope_recorder::{PacketId, QueriedPacket};

/// Maximum number of bytes in all segments of the result, and of memory for all waiting segments.
pub(crate) const BYTES_MAX: usize = 1 << 20;
const SEGMENTS_MAX: usize = 10_000;

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

/// Bytes of one direction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) from_client: bool,
    pub(crate) stamp_ns: i64,
    pub(crate) id: Option<PacketId>,
    pub(crate) bytes: SegmentBytes,
}

/// The contents of a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SegmentBytes {
    Seen(Vec<u8>),
    /// Number of bytes that were not seen, or that a snap length cut off.
    Missing(u64),
}

#[derive(Debug)]
pub(crate) struct Conversation {
    /// The packet that the connection must contain.
    asked: PacketId,
    has_asked: bool,
    /// The side that opened the connection, or that sent the first packet.
    pub(crate) client: Option<SocketAddr>,
    pub(crate) server: Option<SocketAddr>,
    /// SYN or SYN-ACK was seen.
    pub(crate) has_start: bool,
    /// FIN or RST was seen.
    pub(crate) has_end: bool,
    pub(crate) segments: Vec<Segment>,
    /// Bytes from the client and from the server, missing bytes included.
    pub(crate) totals: [u64; 2],
    pub(crate) is_truncated: bool,
    /// Bytes in `segments`, without missing bytes.
    kept: usize,
    /// Memory of the waiting segments, bytes.
    waiting: usize,
    sides: [Side; 2],
}

/// One direction of a connection. Positions count bytes from the start of the direction, or from
/// the first seen byte if no SYN was seen before the first data.
#[derive(Debug, Default)]
struct Side {
    syn: Option<u32>,
    /// Sequence number and position of the next byte; `None`: unknown.
    next: Option<(u32, i64)>,
    /// Position after the last byte that the other side acknowledged.
    acknowledged: i64,
    /// Position of FIN.
    end: Option<i64>,
    waiting: BTreeMap<i64, WaitingSegment>,
}

/// The payload of one packet, which may wait for the bytes before it.
#[derive(Debug)]
struct WaitingSegment {
    stamp_ns: i64,
    id: Option<PacketId>,
    data: Vec<u8>,
    /// Length on the wire, bytes.
    length: usize,
}

impl WaitingSegment {
    /// Bytes in memory, also for a segment without captured payload.
    fn memory(&self) -> usize {
        size_of::<Self>() + self.data.len()
    }
}

struct TcpPacket {
    flags: u8,
    seq: u32,
    ack: u32,
}

impl Conversation {
    pub(crate) fn new(asked: PacketId) -> Self {
        Self {
            asked,
            has_asked: false,
            client: None,
            server: None,
            has_start: false,
            has_end: false,
            segments: Vec::new(),
            totals: [0; 2],
            is_truncated: false,
            kept: 0,
            waiting: 0,
            sides: Default::default(),
        }
    }

    /// Adds a packet of the flow. `false`: the conversation needs no further packets.
    pub(crate) fn packet(&mut self, seen: &QueriedPacket<'_>) -> bool {
        let parsed = parse(seen.link_type, seen.data);
        let (Some(ip), Some(ports)) = (parsed.network, parsed.transport) else {
            return true;
        };
        let Ports { src, dst } = ports;
        let (source, target) = (SocketAddr::new(ip.src, src), SocketAddr::new(ip.dst, dst));
        let tcp = (ip.proto == Some(TCP))
            .then(|| tcp_of(&parsed, seen.data))
            .flatten();
        if let Some(tcp) = &tcp
            && tcp.flags & (SYN | ACK) == SYN
            && self.client.is_some()
            && !(self.client == Some(source) && self.sides[0].syn == Some(tcp.seq))
        {
            // Usually another connection with the same ports.
            if self.has_asked {
                return false;
            }
            *self = Self::new(self.asked);
        }
        if self.client.is_none() {
            let is_answer = tcp
                .as_ref()
                .is_some_and(|tcp| tcp.flags & (SYN | ACK) == SYN | ACK);
            let (client, server) = if is_answer {
                (target, source)
            } else {
                (source, target)
            };
            (self.client, self.server) = (Some(client), Some(server));
        }
        self.has_asked |= seen.id == Some(self.asked);
        let side = usize::from(self.client != Some(source));
        let data = parsed.payload(seen.data).unwrap_or_default().to_vec();
        let on_wire = parsed.payload_end.zip(parsed.payload_start());
        let on_wire = on_wire.map_or(0, |(end, start)| end.saturating_sub(start));
        let piece = WaitingSegment {
            stamp_ns: seen.stamp_ns,
            id: seen.id,
            length: on_wire.max(data.len()),
            data,
        };
        match tcp {
            Some(tcp) => self.segment(side, &tcp, piece),
            None => self.give(side, piece, 0),
        }
        !(self.is_truncated && self.has_asked)
    }

    /// Ends the conversation: adds the waiting segments, and the missing bytes before each segment.
    pub(crate) fn finish(&mut self) {
        for side in 0..2 {
            self.give_waiting(side, i64::MAX);
            let Side {
                next,
                acknowledged,
                end,
                ..
            } = self.sides[side];
            let Some((_, position)) = next else { continue };
            let missing = acknowledged.min(end.unwrap_or(i64::MAX)) - position;
            if let (Ok(missing @ 1..), Some(last)) =
                (u64::try_from(missing), self.segments.last().cloned())
            {
                self.miss(side, missing, last.stamp_ns, last.id);
            }
        }
    }

    pub(crate) fn has_asked(&self) -> bool {
        self.has_asked
    }

    fn segment(&mut self, side: usize, tcp: &TcpPacket, piece: WaitingSegment) {
        let is_syn = tcp.flags & SYN != 0;
        let own = &mut self.sides[side];
        if is_syn && own.syn.is_none() {
            own.syn = Some(tcp.seq);
            own.next.get_or_insert((tcp.seq.wrapping_add(1), 0));
            self.has_start = true;
        }
        self.has_end |= tcp.flags & (FIN | RST) != 0;
        // The other side's bytes first, because this packet acknowledges them.
        if tcp.flags & ACK != 0 && tcp.flags & RST == 0 {
            self.acknowledge(1 - side, tcp.ack);
        }
        let first = tcp.seq.wrapping_add(u32::from(is_syn));
        let own = &mut self.sides[side];
        if own.next.is_none() && (!piece.data.is_empty() || piece.length > 0) {
            own.next = Some((first, 0));
        }
        if let Some((next, position)) = own.next {
            let at = position + i64::from(first.wrapping_sub(next).cast_signed());
            let length = i64::try_from(piece.length).unwrap_or(i64::MAX);
            if tcp.flags & FIN != 0 {
                own.end = Some(at.saturating_add(length));
            }
            self.place(side, at, piece);
        }
    }

    fn place(&mut self, side: usize, at: i64, piece: WaitingSegment) {
        let own = &mut self.sides[side];
        let Some((_, position)) = own.next else {
            return;
        };
        let length = i64::try_from(piece.length).unwrap_or(i64::MAX);
        if at.saturating_add(length) <= position {
            return; // sent again, too late, or without data
        }
        if at <= position {
            let seen_before = usize::try_from(position - at).unwrap_or(usize::MAX);
            self.give(side, piece, seen_before);
            self.give_waiting(side, i64::MIN);
            return;
        }
        let is_longer = |before: &WaitingSegment| before.length >= piece.length;
        if own.waiting.get(&at).is_some_and(is_longer) {
            return; // sent again
        }
        self.waiting += piece.memory();
        if let Some(before) = own.waiting.insert(at, piece) {
            self.waiting -= before.memory();
        }
        if self.waiting > BYTES_MAX {
            self.give_waiting(side, i64::MAX);
        }
    }

    /// The other side has received all bytes of `side` before the sequence number `ack`.
    fn acknowledge(&mut self, side: usize, ack: u32) {
        let own = &mut self.sides[side];
        let Some((next, position)) = own.next else {
            return;
        };
        let at = position + i64::from(ack.wrapping_sub(next).cast_signed());
        own.acknowledged = own.acknowledged.max(at);
        self.give_waiting(side, at);
    }

    /// Adds waiting segments of `side` to the result. Stops at a hole that ends after the position
    /// `acknowledged`. Other holes count as missing bytes.
    fn give_waiting(&mut self, side: usize, acknowledged: i64) {
        loop {
            let own = &mut self.sides[side];
            let Some((_, position)) = own.next else {
                return;
            };
            let Some(first) = own.waiting.first_entry() else {
                return;
            };
            let at = *first.key();
            if at > position && at > acknowledged {
                return;
            }
            let piece = first.remove();
            self.waiting -= piece.memory();
            if let Ok(missing @ 1..) = u64::try_from(at - position) {
                self.miss(side, missing, piece.stamp_ns, piece.id);
            }
            let seen_before = usize::try_from(position - at).unwrap_or(0);
            self.give(side, piece, seen_before);
        }
    }

    /// Adds a segment to the result, without its first `seen_before` bytes.
    fn give(&mut self, side: usize, mut piece: WaitingSegment, seen_before: usize) {
        let length = piece.length.saturating_sub(seen_before);
        if length == 0 {
            return;
        }
        piece.data.drain(..seen_before.min(piece.data.len()));
        let (stamp_ns, id) = (piece.stamp_ns, piece.id);
        let cut = length - piece.data.len().min(length);
        if !piece.data.is_empty() {
            self.advance(side, piece.data.len() as u64);
            self.push(side, stamp_ns, id, SegmentBytes::Seen(piece.data));
        }
        if cut > 0 {
            self.miss(side, cut as u64, stamp_ns, id);
        }
    }

    fn miss(&mut self, side: usize, missing: u64, stamp_ns: i64, id: Option<PacketId>) {
        self.advance(side, missing);
        self.push(side, stamp_ns, id, SegmentBytes::Missing(missing));
    }

    fn advance(&mut self, side: usize, bytes: u64) {
        self.totals[side] += bytes;
        if let Some((next, position)) = &mut self.sides[side].next {
            let low = u32::try_from(bytes & u64::from(u32::MAX)).unwrap_or_default();
            *next = next.wrapping_add(low);
            *position = position.saturating_add_unsigned(bytes);
        }
    }

    fn push(&mut self, side: usize, stamp_ns: i64, id: Option<PacketId>, bytes: SegmentBytes) {
        let length = match &bytes {
            SegmentBytes::Seen(bytes) => bytes.len(),
            SegmentBytes::Missing(_) => 0,
        };
        if self.kept + length > BYTES_MAX || self.segments.len() >= SEGMENTS_MAX {
            self.is_truncated = true;
        }
        if !self.is_truncated {
            self.kept += length;
            self.segments.push(Segment {
                from_client: side == 0,
                stamp_ns,
                id,
                bytes,
            });
        }
    }
}

fn tcp_of(parsed: &Parsed, data: &[u8]) -> Option<TcpPacket> {
    let start = usize::try_from(parsed.transport_offset?).ok()?;
    let ack = data.get(start + 8..start + 12)?;
    Some(TcpPacket {
        flags: parsed.tcp_flags?,
        seq: parsed.tcp_seq?,
        ack: u32::from_be_bytes(ack.try_into().ok()?),
    })
}

pub(crate) fn end_text(end: Option<SocketAddr>) -> String {
    end.map_or_else(String::new, |end| {
        FlowEndpoint {
            addr: end.ip(),
            port: end.port(),
        }
        .to_string()
    })
}

#[cfg(test)]
mod tests {
    use retroscope_packet::LinkType;

    use super::*;

    /// A packet of the client or the server: direction, flags, sequence number, acknowledgement,
    /// payload.
    type Sent<'p> = (bool, u8, u32, u32, &'p [u8]);

    fn packet((client, flags, seq, ack, payload): Sent<'_>) -> Vec<u8> {
        let length = u16::try_from(40 + payload.len()).unwrap();
        let [from, to] = if client { [1, 2] } else { [2, 1] };
        let mut bytes = vec![0x45, 0];
        bytes.extend(length.to_be_bytes());
        bytes.extend([
            0, 0, 0, 0, 64, TCP, 0, 0, 10, 0, 0, from, 10, 0, 0, to, 0, from, 0, to,
        ]);
        bytes.extend(seq.to_be_bytes());
        bytes.extend(ack.to_be_bytes());
        bytes.extend([0x50, flags, 0, 0, 0, 0, 0, 0]);
        bytes.extend(payload);
        bytes
    }

    /// Follows packets, whose IDs are their indexes. Bytes after `captured` are cut off.
    fn followed(asked: u64, captured: usize, sent: &[Sent<'_>]) -> Conversation {
        let mut conversation = Conversation::new(PacketId(asked));
        for (number, sent) in (0..).zip(sent) {
            let bytes = packet(*sent);
            let seen = QueriedPacket {
                stamp_ns: number,
                id: Some(PacketId(number.cast_unsigned())),
                interface: "",
                link_type: LinkType::RAW,
                wire_len: u32::try_from(bytes.len()).unwrap(),
                dropped: 0,
                data: &bytes[..captured.min(bytes.len())],
            };
            let goes_on = conversation.packet(&seen);
            let waiting = conversation.sides.iter().map(|side| side.waiting.len());
            assert!(waiting.sum::<usize>() < 20_000);
            if !goes_on {
                break;
            }
        }
        conversation.finish();
        conversation
    }

    /// The segments as text: `>` from the client, `<` from the server, `-N` missing.
    fn text(conversation: &Conversation) -> String {
        let segments = conversation.segments.iter().map(|segment| {
            let from = if segment.from_client { '>' } else { '<' };
            match &segment.bytes {
                SegmentBytes::Seen(bytes) => format!("{from}{}", String::from_utf8_lossy(bytes)),
                SegmentBytes::Missing(bytes) => format!("{from}-{bytes}"),
            }
        });
        segments.collect::<Vec<_>>().join(" ")
    }

    fn shown(sent: &[Sent<'_>]) -> String {
        text(&followed(0, usize::MAX, sent))
    }

    #[test]
    fn bytes_are_in_order_and_given_once() {
        let shown = shown(&[
            (true, SYN, u32::MAX - 3, 0, b""),
            (false, SYN | ACK, 700, u32::MAX - 2, b""),
            // The sequence number wraps. The second segment arrives first.
            (true, ACK, 1, 701, b"efgh"),
            (true, ACK, u32::MAX - 2, 701, b"abcd"),
            // Sent again, with two new bytes.
            (true, ACK, 1, 701, b"efghij"),
            (false, ACK, 701, 7, b"answer"),
            (true, ACK, u32::MAX - 2, 707, b"abcd"),
            // A TCP keep-alive probe: its byte was sent before.
            (true, ACK, 6, 707, b"x"),
            (false, FIN | ACK, 707, 7, b""),
        ]);
        assert_eq!(shown, ">abcd >efgh >ij <answer");
    }

    #[test]
    fn missing_bytes_are_counted() {
        let one = [
            (true, SYN, 99, 0, &b""[..]),
            (true, ACK, 100, 1, b"ab"),
            (true, ACK, 105, 1, b"fg"),
            (true, ACK, 110, 1, b"kl"),
            (false, ACK, 1, 107, b"ok"),
        ];
        let conversation = followed(0, usize::MAX, &one);
        assert_eq!(text(&conversation), ">ab >-3 >fg <ok >-3 >kl");
        assert_eq!(conversation.totals, [12, 2]);
        // The last bytes are missing. FIN uses a sequence number, but is no byte.
        let end = [
            (true, SYN, 99, 0, &b""[..]),
            (true, ACK, 100, 1, b"ab"),
            (true, FIN | ACK, 107, 1, b""),
            (false, ACK, 1, 108, b""),
        ];
        assert_eq!(shown(&end), ">ab >-5");
        // A snap length of 43 keeps 3 bytes of payload.
        let cut = [
            (true, ACK, 7, 0, &b"abcdef"[..]),
            (true, ACK, 13, 0, b"ghi"),
        ];
        assert_eq!(text(&followed(0, 43, &cut)), ">abc >-3 >ghi");
    }

    #[test]
    fn the_connection_of_the_packet_is_chosen() {
        let twice = [
            (true, SYN, 99, 0, &b""[..]),
            (true, ACK, 100, 1, b"first"),
            (true, SYN, 99, 0, b""), // sent again
            (true, SYN, 500, 0, b""),
            (true, ACK, 501, 1, b"second"),
        ];
        for (asked, expected) in [(1, ">first"), (2, ">first"), (3, ">second"), (4, ">second")] {
            let conversation = followed(asked, usize::MAX, &twice);
            assert_eq!(text(&conversation), expected, "{asked}");
            assert!(conversation.has_start && conversation.has_asked());
        }
        let late = followed(0, usize::MAX, &[(false, ACK, 7, 1, b"late")]);
        assert!(!late.has_start && !late.has_end);
        // A SYN-ACK without a SYN shows which side is the client: its receiver.
        let answer = followed(0, usize::MAX, &[(false, SYN | ACK, 7, 1, b"")]);
        assert_eq!(end_text(answer.client), "10.0.0.1:1");
    }

    #[test]
    fn memory_is_bounded() {
        let large = vec![b'x'; 1400];
        let mut sent: Vec<Sent<'_>> = vec![(true, SYN, 0, 0, b"")];
        // Every second segment is missing.
        sent.extend((0..1600).map(|number| (true, ACK, 1 + 2800 * number, 1, &large[..])));
        let conversation = followed(0, usize::MAX, &sent);
        assert!(conversation.is_truncated && conversation.kept <= BYTES_MAX);
        // With a snap length of 40 (headers only), the number of segments is the limit.
        sent.extend((1600..30_000).map(|number| (true, ACK, 1 + 2800 * number, 1, &large[..])));
        assert!(followed(0, 40, &sent).is_truncated);
    }
}
