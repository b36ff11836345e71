//! Dumps: from a window of the ring to an ordered file with a verdict.

mod active;
mod compile;
mod disk;
mod dumper;
mod encode;
#[cfg(test)]
mod fake_disk;
mod file;
#[cfg(test)]
mod hostile_tests;
pub(crate) mod log;
mod names;
mod order;
mod output;
mod report;
mod scan;
mod spending;

pub use encode::Format;
#[cfg(test)]
pub(crate) use fake_disk::FakeDisk;
pub(crate) use names::Directory;
#[cfg(test)]
pub(crate) use report::tests::report as report_of_test;
pub use report::{DumpReport, Missing, PROGRAM, Verdict};

pub(crate) use dumper::{Dumper, DumperParts};
pub(crate) use file::Shelf;
pub(crate) use order::{CloseOrder, DumpOrder, Message, Messages};
