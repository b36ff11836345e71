//! Analysis: a [`shard`] inspects packets. The [`analyzer`] turns the hits into orders for the
//! dumper.
//!
//! The filters of dumps and triggers are also here: compiled for link types (`prepared`), turned
//! into machine code (`native`), looked up together (`rules`), and tried together (`chunk`).

use std::time::Duration;

pub(crate) mod alerts;
pub(crate) mod analyzer;
pub(crate) mod budget;
pub(crate) mod chunk;
pub(crate) mod derivation;
pub(crate) mod director;
pub(crate) mod dump_script;
pub(crate) mod flows;
pub(crate) mod fragments;
pub(crate) mod functions;
pub(crate) mod hit_queue;
pub(crate) mod late;
pub(crate) mod lockstep;
pub(crate) mod native;
pub(crate) mod open_dumps;
pub(crate) mod predicate;
pub(crate) mod prepared;
pub(crate) mod rules;
pub(crate) mod shard;
pub(crate) mod shard_reader;
pub(crate) mod shard_slots;
pub(crate) mod terms;
pub(crate) mod trigger_scripts;
pub(crate) mod triggers;

/// The work of a thread that reads the ring.
pub(crate) trait RingReader {
    /// Reads records, live a bounded number of batches. Returns `false` if there were no records.
    fn step(&mut self) -> bool;

    /// Sleeps until there is something to do, at most about `timeout`. Returns how long the thread
    /// slept.
    fn wait(&mut self, timeout: Duration) -> Duration;

    /// Whether something may be due soon without a new record. If so, the thread waits at most 10
    /// ms at a time, otherwise at most 100 ms.
    fn has_deadline(&self) -> bool;

    /// The longest time that the thread may wait. `None`: only [`Self::has_deadline`] limits the
    /// wait.
    fn next_in(&self) -> Option<Duration> {
        None
    }
}
