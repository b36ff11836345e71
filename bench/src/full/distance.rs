//! What distance between writer and reader is worth.
//!
//! The QQ of 2016 keeps readers a guard interval behind its writers. The ring has none: a reader follows into the open bucket.
//! Here it is held back on purpose, to see whether that would be faster.

use super::{Start, compare, shared};
use crate::{
    contest::Load,
    pace::Shared,
    pin,
    qq2016::{Qq2016, STORAGE_BYTES},
    ring::RingContest,
    session::{Session, SessionError},
};

/// Distances, in inner queues.
const DISTANCES: [usize; 5] = [0, 1, 2, 4, 8];
const PACKET_BYTES: usize = 64;

pub(super) fn run(session: &mut Session) -> Result<(), SessionError> {
    if !session.wants_below("guard") {
        return Ok(());
    }
    let pairs = if pin::cores() >= 4 { 2 } else { 1 };
    let contests: Vec<_> = DISTANCES
        .iter()
        .map(|&distance| {
            (
                distance,
                shared(Ok(Qq2016::with(STORAGE_BYTES, Some(distance)))),
            )
        })
        .collect();
    let starts = contests
        .iter()
        .map(|(distance, contest)| start(format!("guard/qq2016/{distance}"), contest, pairs));
    let starts = starts.collect();
    compare(session, starts)?;
    for distance in DISTANCES {
        let ring = RingContest::new(session.scale().ring_bytes, None, 1, 1);
        let ring = shared(ring.map(|ring| ring.at_distance(distance)));
        compare(
            session,
            vec![start(format!("guard/ring/{distance}"), &ring, 1)],
        )?;
    }
    Ok(())
}

fn start(row: String, contest: &Shared, pairs: usize) -> Start<'_> {
    Start {
        row,
        contest,
        load: Load::pairs(PACKET_BYTES, 0, pairs),
        whole_lap: true,
    }
}
