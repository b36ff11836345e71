//! Records whose bytes all follow from their time stamp, so that a check detects torn records.

use retroscope_ring::{Packet, Record};

/// Length of the longest generated frame, bytes.
pub(crate) const FRAME_BYTES_MAX: usize = 300;

/// Fills `frame` and returns the record of a time stamp.
pub(crate) fn record(time_ns: i64, frame: &mut [u8; FRAME_BYTES_MAX]) -> Record<'_> {
    let length = length(time_ns);
    for (index, byte) in frame[..length].iter_mut().enumerate() {
        *byte = byte_at(time_ns, index);
    }
    Record {
        wire_len: wire_len(time_ns),
        interface: interface(time_ns),
        direction: 1,
        shard: shard(time_ns),
        ..Record::whole(time_ns, 0, &frame[..length])
    }
}

pub(crate) fn check(packet: &Packet<'_>) {
    let time_ns = packet.time_ns;
    assert_eq!(packet.data.len(), length(time_ns), "length at {time_ns}");
    assert_eq!(
        packet.wire_len,
        wire_len(time_ns),
        "wire length at {time_ns}"
    );
    assert_eq!(
        packet.interface,
        interface(time_ns),
        "interface at {time_ns}"
    );
    assert_eq!((packet.direction, packet.tag_restored), (1, false));
    assert_eq!(packet.shard, shard(time_ns), "shard at {time_ns}");
    let wrong = packet.data.iter().enumerate();
    let wrong = wrong
        .filter(|&(index, &byte)| byte != byte_at(time_ns, index))
        .count();
    assert_eq!(wrong, 0, "bytes of the packet at {time_ns}");
}

fn mixed(time_ns: i64) -> u64 {
    let x = time_ns.cast_unsigned().wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^ (x >> 29)
}

fn length(time_ns: i64) -> usize {
    usize::try_from(mixed(time_ns) % (FRAME_BYTES_MAX as u64 + 1)).unwrap()
}

/// Above 65,535 bytes on the wire, a record needs the extended form of a descriptor.
fn wire_len(time_ns: i64) -> u32 {
    let length = u32::try_from(length(time_ns)).unwrap();
    if time_ns % 17 == 0 {
        70_000 + length
    } else {
        length
    }
}

fn interface(time_ns: i64) -> u16 {
    u16::try_from(time_ns.rem_euclid(3)).unwrap()
}

fn shard(time_ns: i64) -> u8 {
    u8::try_from(time_ns.rem_euclid(32)).unwrap()
}

fn byte_at(time_ns: i64, index: usize) -> u8 {
    mixed(time_ns).to_ne_bytes()[index % 8].wrapping_add((index % 256).try_into().unwrap())
}
