//! Inserters: from an engine's burst into the ring.
//!
//! Live, one inserter thread serves one queue with its own producer; the ring overwrites. Offline, one thread serves
//! the queues of all files with one producer and merges them by time stamp (ties by source, then record), so that the
//! ring's contents do not depend on how threads were scheduled.

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
