//! The recorder: threads between sources and dumps.
//!
//! Packets flow one way: an *inserter* copies a source's bursts into the ring, the *analyzer* reads every packet once and
//! tries the trigger rules, the *dumper* reads the windows that triggers opened and writes them to files. Control flows
//! beside it as messages. The deciding parts are pure and own neither threads nor clocks: `analysis::director` (what a hit
//! becomes), `dump::output` (one ordered file), `intake::counters` (the ledgers); `start` wires them to threads.
//!
//! | room | what is in it |
//! |---|---|
//! | `intake` | from a source's burst into the ring: inserters, the capture filter, counters and losses, interfaces |
//! | `analysis` | the analyzer, the trigger rules and scripts, the director, and filters as the recorder uses them |
//! | `dump` | from a window of the ring to a file with a verdict |
//! | `control` | what the threads share: clocks, progress, wishes, events |
//! | `start` | expressions and configuration, opening sources, starting and joining threads |
//!
//! Who waits for what, and how long at most:
//!
//! | time | who waits | for what |
//! |---|---|---|
//! | `SOURCE_WAIT` 8 ms, `UNAWAITED_SOURCE_WAIT` 40 ms | an inserter | its source's next burst; longer while no dump needs its watermark |
//! | `PUBLICATION_PERIOD_NS` 1 ms | readers of the ring | the publication of an inserter whose source never runs dry |
//! | `COUNTERS_PERIOD_NS` 10 ms, `UNAWAITED_COUNTERS_PERIOD_NS` 100 ms | verdicts, the screen | an inserter's next reading of its engine's counters |
//! | `ANALYZER_WAIT` 10 ms, `NO_DUMP_ANALYZER_WAIT` 100 ms | the analyzer | records or a wish; longer while no dump is open |
//! | `ANALYZER_PAUSE` 2 ms | the analyzer | more records, where it was woken sooner than that the last time |
//! | `DUMPER_WAIT` 5 ms | the dumper | messages, while dumps are open |
//! | `WINDOW_GRACE` 50 ms | a live window behind its end | the watermarks of all queues |
//! | `WATERMARK_WAIT_NS` 100 ms | a packet of a source without a watermark | the watermarks of the others; one that is further ahead is put aside |
//! | `COUNTERS_WAIT_NS` 2 s | the verdict of a closed dump | loss counters that cover its window |

mod analysis;
mod control;
mod dump;
mod intake;
mod start;
#[cfg(test)]
mod tests;

pub use control::{
    events::{Event, Missed},
    hits::{HitCounts, Reason, Suppressions},
    time::rfc3339,
};
pub use dump::{
    encode::Format,
    log::DumpCounts,
    report::{DumpReport, Missing, PROGRAM, Verdict},
};
pub use intake::counters::{INTERFACE_DOWN, LOST_INTERFACE_LIMIT, LOST_NO_BUCKET, SourceSnapshot};
pub use retroscope_capture::clock::{Clock, Now, SystemClock};
pub use start::{
    config::{Config, Scripts, Sources},
    expressions::ExpressionError,
    inserters_only::{Inserted, insert_only},
    recorder::{Handle, Recorder, StartError, Status, Summary},
};
