//! The limits of the machine's memory, which are denominators of ratios.
//!
//! A fill shows the bandwidth of the memory system. Inserts show the remaining bandwidth for a
//! program that stores packets one after another without a queue. An insert copies 16 bytes of
//! descriptor and the payload, from a source in the first-level cache, into memory larger than all
//! caches. It publishes no index, and nobody reads.
//!
//! [`Insert::Straight`] and [`Insert::Staged`] are two ways with non-temporal stores. The CPU
//! determines which way is faster; the faster way counts as the *raw insert*.

pub(crate) mod stream;

use std::{hint::black_box, io};

use self::stream::{UNIT_BYTES, Unit};
use crate::{
    contest::{Frames, on_a_core},
    measure::Entrant,
    memory::Memory,
    queues::SIZES,
    session::Session,
};

/// Bytes of the descriptor before each payload: stamp (8), captured length (4), wire length (4),
/// little endian.
pub(crate) const DESCRIPTOR_BYTES: usize = 16;
/// Bytes that are packed in the first-level cache before a flush. 1 to 4 KiB perform alike.
const WRITE_BUFFER_BYTES: usize = 4 << 10;

/// Additional bytes for a record that begins in the write buffer: enough for the longest frame.
const WRITE_BUFFER_SLACK_BYTES: usize = 16 << 10;

/// The buffer for packing packets.
#[repr(align(64))]
struct WriteBuffer([u8; WRITE_BUFFER_BYTES + WRITE_BUFFER_SLACK_BYTES]);

/// How a packet is stored in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Insert {
    /// Descriptor and payload with ordinary stores (`memcpy`), packed without gaps.
    Memcpy,
    /// Descriptor and payload with non-temporal stores directly to their address; a payload is
    /// padded to a multiple of 16 bytes.
    Straight,
    /// Packed without gaps in 4 KiB of the first-level cache, then flushed with non-temporal
    /// stores.
    Staged,
}

impl Insert {
    /// The two ways of the raw insert.
    pub(crate) const RAW: [Self; 2] = [Self::Straight, Self::Staged];

    /// Bytes of memory that a packet uses.
    pub(crate) fn record_bytes(self, packet_bytes: usize) -> usize {
        match self {
            Self::Memcpy | Self::Staged => DESCRIPTOR_BYTES + packet_bytes,
            Self::Straight => DESCRIPTOR_BYTES + packet_bytes.next_multiple_of(UNIT_BYTES),
        }
    }

    /// Fills `region` from its start with whole packets, and returns their number.
    pub(crate) fn lap(self, region: &mut [u8], frames: &Frames, packet_bytes: usize) -> u64 {
        let packets = region.len() / self.record_bytes(packet_bytes);
        match self {
            Self::Memcpy => {
                let records = region.chunks_exact_mut(DESCRIPTOR_BYTES + packet_bytes);
                for (number, record) in (0_u64..).zip(records) {
                    let (descriptor, payload) = record.split_at_mut(DESCRIPTOR_BYTES);
                    // The compiler does not know the length, as with real packets.
                    let frame = &frames.get(number)[..black_box(packet_bytes)];
                    descriptor.copy_from_slice(&describe(number, frame.len()));
                    payload.copy_from_slice(frame);
                }
            }
            Self::Straight => {
                let units = stream::units(region);
                let records = units.chunks_exact_mut(self.record_bytes(packet_bytes) / UNIT_BYTES);
                for (number, record) in (0_u64..).zip(records) {
                    let (descriptor, payload) = record.split_at_mut(DESCRIPTOR_BYTES / UNIT_BYTES);
                    stream::copy(descriptor, &describe(number, packet_bytes));
                    stream::copy(payload, frames.padded(number));
                }
                stream::fence();
            }
            Self::Staged => staged(stream::units(region), frames, packet_bytes, packets as u64),
        }
        packets as u64
    }
}

/// The descriptor of a packet.
#[inline(always)]
pub(crate) fn describe(number: u64, packet_bytes: usize) -> [u8; DESCRIPTOR_BYTES] {
    let length = packet_bytes as u128;
    (u128::from(number) | length << 64 | length << 96).to_le_bytes()
}

fn staged(region: &mut [Unit], frames: &Frames, packet_bytes: usize, packets: u64) {
    let record_bytes = DESCRIPTOR_BYTES + packet_bytes;
    let mut buffer = WriteBuffer([0; WRITE_BUFFER_BYTES + WRITE_BUFFER_SLACK_BYTES]);
    let buffer = &mut buffer.0;
    let (mut staged, mut flushed) = (0, 0);
    for number in 0..packets {
        let record = &mut buffer[staged..staged + record_bytes];
        let (descriptor, payload) = record.split_at_mut(DESCRIPTOR_BYTES);
        descriptor.copy_from_slice(&describe(number, packet_bytes));
        payload.copy_from_slice(&frames.get(number)[..packet_bytes]);
        staged += record_bytes;
        if staged >= WRITE_BUFFER_BYTES {
            let whole = staged / 64 * 64;
            let units = whole / UNIT_BYTES;
            stream::copy(&mut region[flushed..flushed + units], &buffer[..whole]);
            flushed += units;
            buffer.copy_within(whole..staged, 0);
            staged -= whole;
        }
    }
    // The remaining bytes may end inside a unit: the rest of the unit is not part of any packet.
    let rest = staged
        .next_multiple_of(UNIT_BYTES)
        .min((region.len() - flushed) * UNIT_BYTES);
    stream::copy(&mut region[flushed..], &buffer[..rest]);
    stream::fence();
}

/// An entrant that writes every byte of the memory with non-temporal stores, from registers. Its
/// figure is Mpps of packets of `packet_bytes` with their descriptors.
pub(crate) fn filling<'a>(
    session: &'a Session,
    name: impl Into<String>,
    packet_bytes: usize,
) -> Entrant<'a> {
    let in_lap = session.scale.ring_bytes as f64 / (DESCRIPTOR_BYTES + packet_bytes) as f64;
    Entrant::paced(name, session.scale.seconds, 1, move |laps| {
        let memory: &mut Memory = &mut session.memory.borrow_mut();
        let ((), seconds) = on_a_core(|| {
            for _ in 0..laps {
                stream::fill(stream::units(memory.bytes_mut()), FILLED);
                stream::fence();
            }
        })?;
        let per_second = laps as f64 / seconds;
        Ok((per_second * in_lap / 1e6, per_second))
    })
}

/// The byte that fills write.
const FILLED: u8 = 0x5a;

/// An entrant that inserts on one thread, in Mpps: in each turn the fastest of `ways`.
pub(crate) fn inserting<'a>(
    session: &'a Session,
    name: impl Into<String>,
    ways: &'a [Insert],
    packet_bytes: usize,
) -> Entrant<'a> {
    let (ring_bytes, seconds) = (session.scale.ring_bytes, session.scale.seconds);
    let in_lap = ring_bytes as f64 / (DESCRIPTOR_BYTES + packet_bytes) as f64;
    Entrant::paced(name, seconds, 1, move |laps| {
        let mut per_second = 0.0_f64;
        for way in ways {
            let memory: &mut Memory = &mut session.memory.borrow_mut();
            let (packets, seconds) = on_a_core(|| {
                let frames = Frames::new(packet_bytes);
                let lap = |_| way.lap(memory.bytes_mut(), &frames, packet_bytes);
                (0..laps).map(lap).sum::<u64>()
            })?;
            per_second = per_second.max(packets as f64 / seconds);
        }
        Ok((per_second / 1e6, per_second / in_lap))
    })
}

/// The rates of inserts without a queue, by packet size.
pub(crate) fn rows(session: &Session) -> io::Result<()> {
    let mut entrants = Vec::new();
    for bytes in SIZES {
        let ways = [
            ("memcpy-insert", &[Insert::Memcpy][..]),
            ("raw-insert", &Insert::RAW),
        ];
        entrants.extend(ways.map(|(what, ways)| {
            inserting(session, format!("limits/{what}/{bytes}B"), ways, bytes)
        }));
    }
    session.measure("inserts", entrants)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads back every record of a lap.
    #[test]
    fn what_is_inserted_can_be_read() {
        let mut memory = Memory::new(2 << 20).unwrap();
        for packet_bytes in [64, 128, 500, 512, 1024, 1514, 9000] {
            let frames = Frames::new(packet_bytes);
            for way in [Insert::Memcpy, Insert::Straight, Insert::Staged] {
                memory.bytes_mut().fill(0);
                let packets = way.lap(memory.bytes_mut(), &frames, packet_bytes);
                let record_bytes = way.record_bytes(packet_bytes);
                assert_eq!(packets, (memory.len() / record_bytes) as u64);
                let records = memory.bytes_mut().chunks_exact(record_bytes);
                for (number, record) in (0..packets).zip(records) {
                    let (descriptor, payload) = record.split_at(DESCRIPTOR_BYTES);
                    assert_eq!(
                        descriptor,
                        describe(number, packet_bytes),
                        "{way:?} {packet_bytes}"
                    );
                    assert_eq!(
                        &payload[..packet_bytes],
                        frames.get(number),
                        "{way:?} {number}"
                    );
                }
            }
        }
    }
}
