//! Tests of a recorder's promises, most with a recorder that the test steps ([`rig`]).

mod alert_marks;
mod alerts;
mod analyzers;
mod bounds;
mod clock;
mod compression;
mod control;
#[expect(dead_code, reason = "the tests of the store use the rest")]
#[path = "../../../dumpstore/src/tests/fake_disk.rs"]
pub(crate) mod fake_disk;
mod fakes;
mod files;
mod flows;
mod generated;
mod limits;
pub(crate) mod live;
mod many_dumps;
mod modules;
mod own_dumps;
mod reload;
pub(crate) mod rig;
mod rule_scan;
mod script;
mod sinks;
mod slow_filter;
mod slow_script;
mod tags;
mod verdict;
mod watched;
mod windows;
