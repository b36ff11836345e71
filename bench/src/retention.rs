//! How many bytes of ring a retained packet costs.

use retroscope_ring::{Record, Ring, RingConfig};

use crate::contest::{Failure, Frames};

/// Ring bytes over packets that are in the ring after it went around, for packets of `packet_bytes` that are published in bursts of
/// `burst`. The descriptor, what is left over at the ends of buckets and the bucket being filled are all in it.
///
/// # Errors
/// [`Failure::System`]: the ring cannot be had, or refused a packet.
pub fn bytes_per_packet(ring_bytes: u64, packet_bytes: usize, burst: u64) -> Result<f64, Failure> {
    let failure = |error| Failure::system("making a ring", error);
    let ring = Ring::new(&RingConfig::new(ring_bytes, 1, 1), None).map_err(failure)?;
    let mut producer = ring.producer().map_err(failure)?;
    let frames = Frames::new(packet_bytes);
    let packets = ring.bytes() / packet_bytes as u64 * 5 / 4;
    for number in 0..packets {
        let record = Record::whole(number.cast_signed(), 0, frames.get(number));
        producer
            .store(&record)
            .map_err(|error| Failure::system("store", error))?;
        if number % burst == burst - 1 {
            producer.publish();
        }
    }
    producer.publish();
    let statistics = ring.statistics();
    if statistics.stored_packets != packets {
        return Err(Failure::Count {
            expected: packets,
            seen: statistics.stored_packets,
        });
    }
    if statistics.evicted_packets == 0 {
        return Err(Failure::Unsound("the ring did not go around".to_owned()));
    }
    let retained = statistics.stored_packets - statistics.evicted_packets;
    Ok(ring.bytes() as f64 / retained as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_costs_itself_its_descriptor_and_little_more() {
        for burst in [1, 64] {
            let bytes = bytes_per_packet(64 << 20, 64, burst).unwrap();
            assert!(
                (80.0..84.0).contains(&bytes),
                "{bytes}: 31 of 32 buckets are full"
            );
        }
    }
}
