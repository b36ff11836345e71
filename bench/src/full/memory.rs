//! What memory can do, by threads, and what inserts without a queue reach, by size of packet.

use super::{SIZES, measure};
use crate::{
    limits::{self, Insert, Stream},
    measure::Entrant,
    pin,
    session::{Session, SessionError},
};

/// Passes over the memory in one run of a stream.
const LAPS: u64 = 3;

pub(super) fn run(session: &mut Session) -> Result<(), SessionError> {
    let threads = if pin::cores() > 1 {
        vec![1, 2]
    } else {
        vec![1]
    };
    measure(session, "GB/s", |session| {
        let memory = session.memory();
        let streams = threads
            .iter()
            .flat_map(|&threads| Stream::ALL.map(|stream| (stream, threads)));
        let entrants = streams.map(|(stream, threads)| {
            Entrant::new(format!("limits/{}/{threads}t", stream.name()), move || {
                Ok(stream.run(&mut memory.borrow_mut(), threads, LAPS)? / 1e9)
            })
        });
        wanted(session, entrants.collect())
    })?;
    measure(session, "Mpps", |session| {
        let memory = session.memory();
        let run =
            |way, bytes| Ok(limits::insert(way, bytes, &mut memory.borrow_mut(), 1, LAPS)? / 1e6);
        let mut entrants = Vec::new();
        for bytes in SIZES {
            entrants.push(Entrant::new(
                format!("limits/memcpy-insert/{bytes}B"),
                move || run(Insert::Memcpy, bytes),
            ));
            // The faster of the two ways, in each turn.
            entrants.push(Entrant::new(
                format!("limits/raw-insert/{bytes}B"),
                move || {
                    let straight: f64 = run(Insert::Straight, bytes)?;
                    Ok(straight.max(run(Insert::Staged, bytes)?))
                },
            ));
        }
        wanted(session, entrants)
    })
}

/// Those of the entrants, named after their rows, that are wanted.
pub(super) fn wanted<'a>(session: &Session, entrants: Vec<Entrant<'a>>) -> Vec<Entrant<'a>> {
    entrants
        .into_iter()
        .filter(|entrant| session.wants(entrant.name()))
        .collect()
}
