//! The flow table and its queue of time-outs, against alternatives, and against the limits of the
//! machine's memory.
//!
//! - `queue`: timers that are extracted and inserted again, in our queue and in a binary heap.
//! - `table`: packets of a million flows, in our table and in DashMap with a heap; and random
//!   accesses to as much memory.
//! - `lfn`: marks that threads share, in the LFN table and in maps with locks.
//! - `misses`: the flow path under valgrind, with our queue and with a heap.
//! - `traffic`: the packets.

pub(crate) mod lfn;
pub(crate) mod misses;
mod queue;
mod table;
mod traffic;

use std::{cell::LazyCell, io};

use crate::session::Session;

/// Most runs have one flow or timer for this many bytes of [`ring_bytes`](crate::measure::Scale): a
/// million flows or timers at full scale.
const SCALE_BYTES_PER_FLOW: u64 = 1 << 10;

/// Number of flows or timers at this scale, a million at full scale.
fn million(session: &Session) -> u32 {
    let count = session.scale.ring_bytes / SCALE_BYTES_PER_FLOW;
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// The judged rows.
pub(crate) fn judged(session: &Session) -> io::Result<()> {
    session.versus("flow/queue/vs-heap", "binary heap", || {
        let timers = million(session);
        Ok(vec![
            queue::queue("queue", session, timers),
            queue::heap("heap", session, timers),
        ])
    })?;
    session.row("flow/queue/flatness", Some("the fastest size"), || {
        queue::flatness(session, million(session))
    })?;
    judged_table(session)?;
    lfn::judged(session)
}

/// The rows of the flow table. The memory of the table is freed at the end.
fn judged_table(session: &Session) -> io::Result<()> {
    let heat = LazyCell::new(|| table::heat(session, million(session)));
    let heat = || heat.as_ref().map_err(Clone::clone);
    for (row, other) in [
        ("flow/table/vs-dashmap", "dashmap"),
        ("flow/table/vs-random-access", "random access"),
        ("flow/table/vs-three-lines", "three lines"),
    ] {
        session.row(row, Some(other), || heat()?.ratio("table", other))?;
    }
    session.row("flow/table/mpps", None, || heat()?.spread("table"))
}
