//! Throughput by size of the inner queue.

use super::{Start, compare, shared};
use crate::{
    contest::Load,
    qq2016::Qq2016,
    ring::RingContest,
    session::{Session, SessionError},
};

/// Sizes of buckets, in MiB: those of figure 7.4.
const BUCKETS_MIB: [usize; 7] = [2, 4, 8, 16, 32, 64, 128];
/// Sizes of packets.
const SIZES: [usize; 2] = [64, 1514];
/// A ring has so many buckets for each producer and reader.
const BUCKETS_LEAST: u64 = 8;

pub(super) fn run(session: &mut Session) -> Result<(), SessionError> {
    for mib in BUCKETS_MIB {
        let bytes = mib << 20;
        if bytes as u64 * BUCKETS_LEAST > session.scale().ring_bytes {
            break;
        }
        let rows = |packet: usize| {
            [
                format!("bucket/{mib}MiB/{packet}B"),
                format!("bucket-qq2016/{mib}MiB/{packet}B"),
            ]
        };
        if !SIZES
            .iter()
            .any(|&packet| rows(packet).iter().any(|row| session.wants(row)))
        {
            continue;
        }
        let ring = shared(RingContest::new(
            session.scale().ring_bytes,
            Some(bytes),
            1,
            1,
        ));
        let qq = shared(Ok(Qq2016::with(bytes, None)));
        for packet in SIZES {
            let [ours, theirs] = rows(packet);
            let start = |row, contest| Start {
                row,
                contest,
                load: Load::pairs(packet, 0, 1),
                whole_lap: true,
            };
            compare(session, vec![start(ours, &ring), start(theirs, &qq)])?;
        }
    }
    Ok(())
}
