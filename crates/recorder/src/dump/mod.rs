//! Dumps: from a window of the ring to an ordered file with a verdict.

mod dumper;
mod encode;
mod file;
mod names;
mod output;
mod report;

pub use encode::Format;
pub(crate) use names::Directory;
pub use report::{DumpReport, Missing, PROGRAM, Verdict};

pub(crate) use dumper::{CloseOrder, DumpOrder, Dumper, DumperParts, Message};
pub(crate) use file::Shelf;
