//! Inserters: from an engine's burst into the ring.
//!
//! Live, an inserter thread serves one or several queues with its own producer. Offline, one thread
//! merges the queues of all files by ring time (ties by source, then by record). So the ring's
//! contents do not depend on the scheduling of threads.

pub(crate) mod frame;
mod frame_writer;
mod host;
pub(crate) mod live;
pub(crate) mod merge;
pub(crate) mod parts;
pub(crate) mod queue_intake;
pub(crate) mod sequence;
pub(crate) mod shards;
mod step_lookahead;
