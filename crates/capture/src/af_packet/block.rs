//! Reading one TPACKET_V3 block, part by part: from its bytes to frame descriptors.
//!
//! Offsets are those of `linux/if_packet.h`, checked below against libc's structures. The kernel fills the blocks, and
//! still every offset and length is checked: what does not fit is counted as unreadable and ends the walk.

use std::mem::offset_of;

use libc::{sockaddr_ll, tpacket_hdr_v1, tpacket3_hdr};

use super::sys::prefetch;
use crate::{Direction, FrameMeta, VlanTag};

/// Offsets in a block, from its start.
mod descriptor {
    pub(super) const PACKETS: usize = 12;
    pub(super) const FIRST_PACKET: usize = 16;
    pub(super) const LAST_SECONDS: usize = 40;
    pub(super) const LAST_NS: usize = 44;
    pub(super) const HEADER_BYTES: usize = 48;
}

const _: () = assert!(8 + offset_of!(tpacket_hdr_v1, num_pkts) == descriptor::PACKETS);
const _: () =
    assert!(8 + offset_of!(tpacket_hdr_v1, offset_to_first_pkt) == descriptor::FIRST_PACKET);
const _: () = assert!(8 + offset_of!(tpacket_hdr_v1, ts_last_pkt) == descriptor::LAST_SECONDS);
const _: () = assert!(8 + size_of::<tpacket_hdr_v1>() == descriptor::HEADER_BYTES);

/// Offsets in a packet's header, from its start.
mod packet {
    pub(super) const NEXT: usize = 0;
    pub(super) const SECONDS: usize = 4;
    pub(super) const NS: usize = 8;
    pub(super) const CAPTURED: usize = 12;
    pub(super) const WIRE: usize = 16;
    pub(super) const STATUS: usize = 20;
    pub(super) const MAC: usize = 24;
    pub(super) const VLAN_TCI: usize = 32;
    pub(super) const VLAN_TPID: usize = 36;
    /// The link-layer address follows the header, which is aligned to 16 bytes.
    pub(super) const KIND: usize = 48 + 10;
    pub(super) const HEADER_BYTES: usize = 48 + 20;
}

const _: () = assert!(offset_of!(tpacket3_hdr, tp_next_offset) == packet::NEXT);
const _: () = assert!(offset_of!(tpacket3_hdr, tp_sec) == packet::SECONDS);
const _: () = assert!(offset_of!(tpacket3_hdr, tp_nsec) == packet::NS);
const _: () = assert!(offset_of!(tpacket3_hdr, tp_snaplen) == packet::CAPTURED);
const _: () = assert!(offset_of!(tpacket3_hdr, tp_len) == packet::WIRE);
const _: () = assert!(offset_of!(tpacket3_hdr, tp_status) == packet::STATUS);
const _: () = assert!(offset_of!(tpacket3_hdr, tp_mac) == packet::MAC);
const _: () = assert!(offset_of!(tpacket3_hdr, hv1) + 4 == packet::VLAN_TCI);
const _: () = assert!(offset_of!(tpacket3_hdr, hv1) + 8 == packet::VLAN_TPID);
const _: () =
    assert!(size_of::<tpacket3_hdr>() + offset_of!(sockaddr_ll, sll_pkttype) == packet::KIND);
const _: () = assert!(size_of::<tpacket3_hdr>() + size_of::<sockaddr_ll>() == packet::HEADER_BYTES);

/// Bytes that a packet takes in a block at least: its header.
pub(super) const PACKET_BYTES_MIN: usize = packet::HEADER_BYTES;

/// How many packets ahead memory is asked for. The kernel wrote them on another CPU: each line is some hundred cycles away, and
/// where the next packet starts is known only when this one's header is there. They are guessed to be as long as this one. Each
/// long packet is on a page of its own: with 32 and 1514 bytes the inserter took 178 instead of 167 ns a packet.
const AHEAD_PACKETS: usize = 16;
/// How many packets ahead memory is asked for into the second-level cache, so that what the first one asks for comes from there. It
/// made the walk take 7.5 instead of 9.0 ns a packet at 64 bytes, and 26 instead of 29 at 1514. Behind the block lies the next one.
const FAR_PACKETS: usize = 48;
/// Lines that are asked for of each: those of the header, and of the start of the frame behind it.
const AHEAD_OFFSETS: [usize; 3] = [0, 64, 128];

/// What a block says about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct BlockSummary {
    /// Packets in the block, readable or not.
    pub(super) packets: u32,
    /// Time stamp of the last packet, in ns since the UNIX epoch; of a block without packets, when it was closed.
    pub(super) last_ns: i64,
}

/// What was found in a part of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct PartSummary {
    /// Packets that were described.
    pub(super) frames: u32,
    /// Packets whose headers point out of the block. They end it.
    pub(super) unreadable: u32,
    /// Packets that are larger than any frame on the wire.
    pub(super) merged: u32,
    /// Packets whose checksum the NIC was to fill in.
    pub(super) checksum_missing: u32,
}

/// A way through the packets of one block.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Walk {
    /// Where the next header starts.
    position: usize,
    /// Packets that are left.
    left: u32,
    /// From the last header that was read to the next one. Of the block before at first.
    stride: usize,
}

impl Walk {
    /// At the first packet of a block that the kernel has handed over, behind the walk `before` through another one.
    pub(super) fn new(block: &[u8], before: Self) -> (Self, BlockSummary) {
        let Some(header) = block.first_chunk::<{ descriptor::HEADER_BYTES }>() else {
            return (Self::default(), BlockSummary::default());
        };
        let last_ns = time_ns(
            word(header, descriptor::LAST_SECONDS),
            word(header, descriptor::LAST_NS),
        );
        // A block has no room for more, whatever it says.
        let room = u32::try_from(block.len() / PACKET_BYTES_MIN).unwrap_or(u32::MAX);
        let packets = word(header, descriptor::PACKETS).min(room);
        let walk = Self {
            position: word(header, descriptor::FIRST_PACKET) as usize,
            left: packets,
            stride: before.stride,
        };
        walk.ask_for_first(block);
        (walk, BlockSummary { packets, last_ns })
    }

    /// Asks for the memory of the packets that no other is ahead of, if they are as long as those of the block before.
    fn ask_for_first(self, block: &[u8]) {
        let packets =
            usize::try_from(self.left).map_or(AHEAD_PACKETS, |left| left.min(AHEAD_PACKETS));
        for packet in 0..packets {
            let start = self.position.wrapping_add(packet.wrapping_mul(self.stride));
            ask_for::<1>(block, start);
        }
    }

    /// Appends descriptors of the next packets, at most `frames_max`. No frame on the wire is larger than `frame_bytes_max`.
    ///
    /// Nothing found means that the block is at its end.
    pub(super) fn read(
        &mut self,
        block: &[u8],
        frame_bytes_max: u32,
        frames_max: usize,
        frames: &mut Vec<FrameMeta>,
    ) -> PartSummary {
        let mut part = PartSummary::default();
        let count = self.left.min(u32::try_from(frames_max).unwrap_or(u32::MAX));
        let (mut position, mut stride) = (self.position, self.stride);
        for index in 0..count {
            let Some((frame, next, status)) = read_packet(block, position) else {
                part.unreadable = self.left - index;
                self.left = 0;
                return part;
            };
            let next = next as usize;
            ask_for::<1>(
                block,
                position.wrapping_add(next.wrapping_mul(AHEAD_PACKETS)),
            );
            ask_for::<2>(block, position.wrapping_add(next.wrapping_mul(FAR_PACKETS)));
            // The last packet of a block has none behind it.
            stride = if next > 0 { next } else { stride };
            part.frames += 1;
            part.merged += u32::from(frame.wire_len > frame_bytes_max);
            part.checksum_missing += u32::from(status & libc::TP_STATUS_CSUMNOTREADY != 0);
            frames.push(frame);
            // An offset of zero marks the last packet; a loop back to it would end with the count.
            position = position.saturating_add(next);
        }
        self.position = position;
        self.left -= count;
        self.stride = stride;
        part
    }
}

/// Asks for the lines of the packet that may start at `start`, into the cache of this level.
#[inline(always)]
fn ask_for<const LEVEL: u8>(block: &[u8], start: usize) {
    for offset in AHEAD_OFFSETS {
        prefetch::<LEVEL>(block, start.wrapping_add(offset));
    }
}

/// Reads the packet header at `position`: the descriptor, the offset of the next header from this one, and the status. `None` if
/// anything lies outside the block.
#[inline(always)]
fn read_packet(block: &[u8], position: usize) -> Option<(FrameMeta, u32, u32)> {
    let header = block
        .get(position..)?
        .first_chunk::<{ packet::HEADER_BYTES }>()?;
    let captured_len = word(header, packet::CAPTURED);
    let offset = position.checked_add(usize::from(half(header, packet::MAC)))?;
    if offset.checked_add(captured_len as usize)? > block.len() {
        return None;
    }
    let frame = FrameMeta {
        time_ns: time_ns(word(header, packet::SECONDS), word(header, packet::NS)),
        offset,
        captured_len,
        wire_len: word(header, packet::WIRE),
        interface: 0,
        direction: direction(header[packet::KIND]),
        vlan: vlan(header),
    };
    let status = word(header, packet::STATUS);
    Some((frame, word(header, packet::NEXT), status))
}

/// The tag that the kernel took out of the frame. Without a TPID (kernels before 3.14) it was an 802.1Q tag.
fn vlan(header: &[u8; packet::HEADER_BYTES]) -> Option<VlanTag> {
    let status = word(header, packet::STATUS);
    if status & libc::TP_STATUS_VLAN_VALID == 0 {
        return None;
    }
    // The kernel keeps 16 bits in a word of 32.
    let tci = u16::try_from(word(header, packet::VLAN_TCI) & 0xffff).ok()?;
    let tpid = if status & libc::TP_STATUS_VLAN_TPID_VALID != 0 {
        half(header, packet::VLAN_TPID)
    } else {
        0x8100
    };
    Some(VlanTag { tpid, tci })
}

/// The kernel's packet type: `PACKET_HOST`, `PACKET_BROADCAST`, `PACKET_MULTICAST` and `PACKET_OTHERHOST` were received.
fn direction(kind: u8) -> Direction {
    match kind {
        0..=3 => Direction::Inbound,
        libc::PACKET_OUTGOING => Direction::Outbound,
        _ => Direction::Unknown,
    }
}

/// Nanoseconds since the UNIX epoch. The kernel has 32 bits for the seconds, without sign: until 2106.
fn time_ns(seconds: u32, ns: u32) -> i64 {
    i64::from(seconds) * 1_000_000_000 + i64::from(ns)
}

/// The native 32-bit word at a constant offset.
fn word<const N: usize>(header: &[u8; N], at: usize) -> u32 {
    u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
}

/// The native 16-bit word at a constant offset.
fn half<const N: usize>(header: &[u8; N], at: usize) -> u16 {
    u16::from_ne_bytes([header[at], header[at + 1]])
}

/// Builds blocks as the kernel does.
#[cfg(test)]
pub(super) mod testing {
    use super::{descriptor, packet};

    /// A packet to put into a block.
    #[derive(Debug, Clone, Default)]
    pub(crate) struct Packet {
        pub(crate) data: Vec<u8>,
        pub(crate) wire_len: u32,
        pub(crate) seconds: u32,
        pub(crate) ns: u32,
        pub(crate) status: u32,
        pub(crate) tci: u32,
        pub(crate) tpid: u16,
        pub(crate) kind: u8,
    }

    pub(crate) fn put(block: &mut [u8], at: usize, value: u32) {
        block[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }

    /// A block of `size` bytes with `packets`, and where each packet's header starts.
    pub(crate) fn block_of(size: usize, packets: &[Packet]) -> (Vec<u8>, Vec<usize>) {
        let mut bytes = vec![0; size];
        let mut position = descriptor::HEADER_BYTES;
        let mut starts = Vec::new();
        put(
            &mut bytes,
            descriptor::PACKETS,
            u32::try_from(packets.len()).unwrap(),
        );
        put(
            &mut bytes,
            descriptor::FIRST_PACKET,
            u32::try_from(position).unwrap(),
        );
        for (index, one) in packets.iter().enumerate() {
            let data_at = packet::HEADER_BYTES + 14;
            let length = (data_at + one.data.len()).next_multiple_of(16);
            let header = &mut bytes[position..position + length];
            let next = if index + 1 == packets.len() {
                0
            } else {
                length
            };
            put(header, packet::NEXT, u32::try_from(next).unwrap());
            put(header, packet::SECONDS, one.seconds);
            put(header, packet::NS, one.ns);
            put(
                header,
                packet::CAPTURED,
                u32::try_from(one.data.len()).unwrap(),
            );
            put(header, packet::WIRE, one.wire_len);
            put(header, packet::STATUS, one.status);
            put(header, packet::VLAN_TCI, one.tci);
            header[packet::MAC..packet::MAC + 2]
                .copy_from_slice(&u16::try_from(data_at).unwrap().to_ne_bytes());
            header[packet::VLAN_TPID..packet::VLAN_TPID + 2]
                .copy_from_slice(&one.tpid.to_ne_bytes());
            header[packet::KIND] = one.kind;
            header[data_at..data_at + one.data.len()].copy_from_slice(&one.data);
            put(&mut bytes, descriptor::LAST_SECONDS, one.seconds);
            put(&mut bytes, descriptor::LAST_NS, one.ns);
            starts.push(position);
            position += length;
        }
        (bytes, starts)
    }
}

#[cfg(test)]
mod tests {
    use super::{
        testing::{Packet, block_of, put},
        *,
    };

    fn packets() -> Vec<Packet> {
        let packet = |length: u8, ns| Packet {
            data: (0..length).collect(),
            wire_len: u32::from(length) + 1,
            seconds: 1_700_000_000,
            ns,
            ..Packet::default()
        };
        vec![
            Packet {
                kind: 3,
                ..packet(60, 1)
            },
            Packet {
                kind: libc::PACKET_OUTGOING,
                ..packet(0, 2)
            },
            Packet {
                status: libc::TP_STATUS_VLAN_VALID,
                tci: 0x2fff,
                tpid: 7,
                ..packet(61, 3)
            },
            Packet {
                status: libc::TP_STATUS_VLAN_VALID | libc::TP_STATUS_VLAN_TPID_VALID,
                tci: 10,
                tpid: 0x88a8,
                ..packet(200, 999_999_999)
            },
        ]
    }

    /// Reads a block in one go.
    fn read(block: &[u8]) -> (BlockSummary, PartSummary, Vec<FrameMeta>) {
        let (mut walk, summary) = Walk::new(block, Walk::default());
        let mut frames = Vec::new();
        let part = walk.read(block, 1518, usize::MAX, &mut frames);
        (summary, part, frames)
    }

    #[test]
    fn what_offloads_did_is_counted() {
        let mut packets = packets();
        packets[0].wire_len = 1519;
        packets[1].wire_len = 1518;
        packets[2].status |= libc::TP_STATUS_CSUMNOTREADY;
        let (block, _) = block_of(4096, &packets);
        let (_, part, _) = read(&block);
        assert_eq!((part.merged, part.checksum_missing), (1, 1));
    }

    #[test]
    fn every_packet_of_a_block() {
        let (block, _) = block_of(4096, &packets());
        let (summary, part, frames) = read(&block);
        let last_ns = 1_700_000_000_999_999_999;
        let packets_of = BlockSummary {
            packets: 4,
            last_ns,
        };
        assert_eq!(summary, packets_of);
        assert_eq!((part.frames, part.unreadable), (4, 0));
        for (frame, packet) in frames.iter().zip(packets()) {
            assert_eq!(
                block[frame.offset..frame.offset + frame.captured_len as usize],
                packet.data
            );
            assert_eq!(frame.wire_len, packet.wire_len);
            assert_eq!(
                frame.time_ns,
                1_700_000_000_000_000_000 + i64::from(packet.ns)
            );
        }
        let tags: Vec<_> = frames.iter().map(|frame| frame.vlan).collect();
        let (dot1q, dot1ad) = (
            VlanTag {
                tpid: 0x8100,
                tci: 0x2fff,
            },
            VlanTag {
                tpid: 0x88a8,
                tci: 10,
            },
        );
        assert_eq!(tags, [None, None, Some(dot1q), Some(dot1ad)]);
        assert_eq!(frames[0].direction, Direction::Inbound);
        assert_eq!(frames[1].direction, Direction::Outbound);
    }

    #[test]
    fn the_next_block_begins_with_the_stride_of_this_one() {
        let (block, starts) = block_of(4096, &packets());
        let (mut walk, _) = Walk::new(&block, Walk::default());
        walk.read(&block, 1518, usize::MAX, &mut Vec::new());
        let (next, _) = Walk::new(&block, walk);
        assert_eq!(next.stride, starts[3] - starts[2], "the last has none");
        assert_eq!((next.position, next.left), (starts[0], 4));
    }

    #[test]
    fn an_empty_block() {
        let (block, _) = block_of(4096, &[]);
        let nothing = (BlockSummary::default(), PartSummary::default(), Vec::new());
        assert_eq!(read(&block), nothing);
        assert_eq!(read(&block[..20]), nothing);
    }

    #[test]
    fn parts_make_the_whole() {
        let (block, _) = block_of(4096, &packets());
        let (_, whole, frames) = read(&block);
        for frames_max in 1..=5 {
            let (mut walk, _) = Walk::new(&block, Walk::default());
            let (mut rest, mut parts) = (frames.as_slice(), 0);
            loop {
                let mut some = Vec::new();
                let part = walk.read(&block, 1518, frames_max, &mut some);
                assert_eq!(part.frames as usize, some.len());
                if some.is_empty() {
                    break;
                }
                assert_eq!(some.len(), frames_max.min(rest.len()));
                let (here, behind) = rest.split_at(some.len());
                assert_eq!(some, here);
                rest = behind;
                parts += part.frames;
            }
            assert_eq!(parts, whole.frames);
        }
    }

    #[test]
    fn what_points_out_of_the_block_is_counted() {
        let (good, starts) = block_of(4096, &packets());
        for (at, value) in [
            (starts[2] + packet::CAPTURED, 5000),
            (starts[2] + packet::CAPTURED, u32::MAX),
            (starts[2] + packet::MAC, u32::MAX),
            (starts[1] + packet::NEXT, 4090),
            (starts[1] + packet::NEXT, u32::MAX),
        ] {
            let mut block = good.clone();
            put(&mut block, at, value);
            let (summary, part, frames) = read(&block);
            assert_eq!(
                (summary.packets, part.unreadable, frames.len()),
                (4, 2, 2),
                "{value} at {at}"
            );
        }
    }

    #[test]
    fn no_bytes_make_it_panic_or_leave_the_block() {
        let (good, starts) = block_of(1024, &packets());
        let headers = (0..descriptor::HEADER_BYTES).chain(
            starts
                .iter()
                .flat_map(|start| *start..start + packet::HEADER_BYTES),
        );
        for at in headers.filter(|at| at + 4 <= good.len()) {
            for value in [
                0,
                1,
                0xff,
                0x3ff,
                0x400,
                0xffff,
                0x7fff_ffff,
                0x8000_0000,
                u32::MAX,
            ] {
                let mut block = good.clone();
                put(&mut block, at, value);
                let (summary, part, frames) = read(&block);
                assert_eq!(
                    summary.packets as usize,
                    frames.len() + part.unreadable as usize
                );
                assert!(
                    frames
                        .iter()
                        .all(|frame| frame.offset + frame.captured_len as usize <= block.len())
                );
            }
        }
    }
}
