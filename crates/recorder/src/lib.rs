//! The recorder: threads between sources and dumps.
//!
//! Packets flow one way: an *inserter* copies a source's bursts into the ring, the *analyzer* reads every packet once and
//! tries the trigger rules, the *dumper* reads the windows that triggers opened and writes them to files. Control flows
//! beside it as messages. The deciding parts are pure and own neither threads nor clocks: `director` (what a hit
//! becomes), `dump::output` (one ordered file), `counters` (the ledgers); `recorder` wires them to threads.

mod analyzer;
mod away;
#[cfg(test)]
mod bounds_tests;
mod budget;
mod capture_filter;
mod chunk;
mod clock;
#[cfg(test)]
mod clock_tests;
mod counters;
mod director;
mod dump;
mod dump_log;
mod dump_script;
mod events;
mod expressions;
mod fragments;
#[cfg(test)]
mod generated_tests;
mod hits;
mod inserter;
mod inserters_only;
mod intake;
mod interfaces;
mod late;
#[cfg(test)]
mod live_tests;
mod lookout;
#[cfg(test)]
mod many_dumps_tests;
mod native;
mod open_dumps;
mod predicate;
mod prepared;
mod progress;
mod recorder;
#[cfg(test)]
mod rig;
mod ring_time;
mod rules;
mod scan;
#[cfg(test)]
mod script_tests;
#[cfg(test)]
mod slow_filter_tests;
mod start;
mod time;
mod trigger_scripts;
mod triggers;
mod unprivileged;
#[cfg(test)]
mod verdict_tests;

pub use clock::{Clock, Now, SystemClock};
pub use counters::{INTERFACE_DOWN, LOST_INTERFACE_LIMIT, LOST_NO_BUCKET, SourceSnapshot};
pub use dump::{DumpReport, Format, Missing, PROGRAM, Verdict};
pub use dump_log::DumpCounts;
pub use events::{Event, Missed};
pub use expressions::ExpressionError;
pub use hits::{HitCounts, Reason, Suppressions};
pub use inserters_only::{Inserted, insert_only};
pub use recorder::{Config, Handle, Recorder, Scripts, Sources, StartError, Status, Summary};
pub use time::rfc3339;
