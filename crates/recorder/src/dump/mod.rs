//! Dumps: from a window of the ring to an ordered file with a verdict.

mod active;
mod compile;
pub(crate) mod disk;
mod dumper;
mod encode;
mod file;
#[cfg(test)]
mod hostile_tests;
pub(crate) mod log;
mod names;
mod order;
mod output;
mod packet;
pub(crate) mod report;
mod scan;

pub use encode::Format;
pub(crate) use names::Directory;
pub use report::{DumpReport, Missing, PROGRAM, Verdict};

pub(crate) use dumper::{Dumper, DumperParts};
pub(crate) use file::Shelf;
pub(crate) use order::{CloseOrder, DumpOrder, Message, Messages};
