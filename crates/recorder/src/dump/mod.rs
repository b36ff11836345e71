//! Dumps: from a window of the ring to an ordered file with a verdict.

mod active;
#[cfg(test)]
mod arrival_tests;
mod block;
mod captures;
mod compile;
pub(crate) mod compress;
pub(crate) mod dump_alerts;
pub(crate) mod dumper;
mod dumps;
pub(crate) mod encode;
mod ending;
pub(crate) mod file;
mod fragments;
#[cfg(test)]
mod hostile_tests;
pub(crate) mod log;
pub(crate) mod names;
pub(crate) mod order;
mod output;
mod packet;
pub(crate) mod pool;
pub(crate) mod post;
mod reading;
pub(crate) mod report;
mod runs;
mod scan;
pub(crate) mod sidecar;
mod sink;
pub(crate) mod stream;
mod visit;

pub(crate) use retroscope_dumpstore::{direct, disk, store, template};
