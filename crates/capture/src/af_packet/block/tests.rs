//! Blocks in the kernel's layout.

use super::*;

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

/// A block of `size` bytes with `packets`, and the offset of each packet's header.
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
        header[packet::VLAN_TPID..packet::VLAN_TPID + 2].copy_from_slice(&one.tpid.to_ne_bytes());
        header[packet::KIND] = one.kind;
        header[data_at..data_at + one.data.len()].copy_from_slice(&one.data);
        put(&mut bytes, descriptor::LAST_SECONDS, one.seconds);
        put(&mut bytes, descriptor::LAST_NS, one.ns);
        starts.push(position);
        position += length;
    }
    (bytes, starts)
}

/// Sets the time when the kernel opened a block.
pub(crate) fn set_opened(block: &mut [u8], seconds: u32, ns: u32) {
    put(block, descriptor::OPENED_SECONDS, seconds);
    put(block, descriptor::OPENED_NS, ns);
}

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

const RANGE: NicStampRange = NicStampRange {
    from_ns: 1_700_000_000_000_000_100,
    clock_ns: 1_700_000_000_000_000_900,
};

fn read(block: &[u8]) -> (BlockSummary, PartSummary, Vec<FrameMeta>) {
    let (mut walk, summary) = BlockWalk::new(block, BlockWalk::default());
    let mut frames = Vec::new();
    let part = walk.read(block, 1518, RANGE, usize::MAX, &mut frames);
    (summary, part, frames)
}

#[test]
fn a_stamp_of_the_nic_counts_where_it_agrees_with_the_clock() {
    let ahead_ns = u32::try_from(NIC_AHEAD_NS_MAX).unwrap();
    let hardware = libc::TP_STATUS_TS_RAW_HARDWARE;
    let software = 1 << 29; // TP_STATUS_TS_SOFTWARE
    let packet = |ns, status| Packet {
        seconds: 1_700_000_000,
        ns,
        status,
        ..Packet::default()
    };
    let other_clock = Packet {
        seconds: 1_700_000_037,
        ..packet(500, hardware)
    };
    let packets = [
        packet(7, 0),
        packet(100, hardware),
        packet(99, hardware),
        packet(99, software),
        packet(901, hardware),
        packet(900 + ahead_ns, hardware | libc::TP_STATUS_VLAN_VALID),
        packet(901 + ahead_ns, hardware),
        other_clock,
        packet(2000, software),
    ];
    let (_, part, frames) = read(&block_of(4096, &packets).0);
    let found: Vec<_> = frames
        .iter()
        .map(|frame| (frame.time_ns - 1_700_000_000_000_000_000, frame.interface))
        .collect();
    let expected = [
        (7, 0),
        (100, NIC_STAMPED),
        (900, 0),
        (99, 0),
        (900, NIC_STAMPED),
        (900, NIC_STAMPED),
        (900, 0),
        (900, 0),
        (2000, 0),
    ];
    assert_eq!(found, expected);
    assert_eq!((part.nic_stamped, part.nic_refused), (6, 3));
    assert_eq!(part.refused_ns, 1_700_000_037_000_000_500);
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
        opened_ns: 0,
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
    let (mut walk, _) = BlockWalk::new(&block, BlockWalk::default());
    walk.read(&block, 1518, RANGE, usize::MAX, &mut Vec::new());
    let (next, _) = BlockWalk::new(&block, walk);
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
        let (mut walk, _) = BlockWalk::new(&block, BlockWalk::default());
        let (mut rest, mut parts) = (frames.as_slice(), 0);
        loop {
            let mut some = Vec::new();
            let part = walk.read(&block, 1518, RANGE, frames_max, &mut some);
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
