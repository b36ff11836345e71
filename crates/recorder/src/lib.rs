//! The recorder: threads between sources and dumps.
//!
//! Packets flow one way: an *inserter* copies a source's bursts into the ring, the *analyzer* reads every packet once and
//! tries the trigger rules, the *dumper* reads the windows that triggers opened and has them written to files. Control flows
//! beside it as messages. The deciding parts are pure and own neither threads nor clocks: `analysis::director` (what a hit
//! becomes), `dump::output` (one ordered file), `intake::counters` (the ledgers); `start` wires them to threads.
//!
//! | room | what is in it |
//! |---|---|
//! | `intake` | from a source's burst into the ring: inserters, the capture filter, counters and losses, interfaces |
//! | `analysis` | the analyzer, the trigger rules and scripts, the director, and filters as the recorder uses them |
//! | `dump` | from a window of the ring to a file with a verdict |
//! | `control` | what the threads share: clocks, progress, commands, pins, events |
//! | `query` | the ring of another process, or the recorder's own: a window of it, in order, with a verdict |
//! | `timeline` | what the history holds, slot by slot |
//! | `start` | expressions and configuration, opening sources, starting and joining threads, the handle that controls them |
//!
//! Who waits for what, and how long: `docs/waits.md`.

mod analysis;
mod control;
mod dump;
mod intake;
mod query;
mod start;
#[cfg(test)]
mod tests;
mod timeline;

pub use analysis::{
    flows::{FlowCounts, FlowReceiver, FlowWaker},
    terms::{SubDirectory, TriggerRequest},
    trigger_scripts::ModuleStatus,
};
pub use control::{
    alerts::{AlertConfig, AlertCounts, AlertLines, AlertNews, AlertOutcome},
    audit::{Action, Change, Refusal},
    commands::Triggered,
    durations::{AgeHistogram, ProcessingHistogram},
    events::{Event, Export, Missed, Subscription},
    hits::{HitCounts, Reason, Suppressions},
    outcomes::RuleHits,
    pins::Pin,
    time::{parse_time, rfc3339},
};
pub use dump::{
    compress::ZstdLevel,
    encode::Format,
    log::{DumpCounts, DumpTotals},
    post::{Identity, PostCommand, PostConfig, PostCounts, PostOutcome, Posted},
    report::{DumpReport, Missing, PROGRAM, Verdict},
    store::{
        DeletedDump, Keep, MinFree, StoredDump, StoredFile, WhyDeleted,
        lister::{DumpFileReader, StoredDumps},
    },
    template::NameTemplate,
};
pub use intake::counters::{INTERFACE_DOWN, LOST_INTERFACE_LIMIT, LOST_NO_BUCKET, SourceSnapshot};
pub use query::{
    Answer, Cancel, DumpAnswer, DumpsAsked, Empty, FromDumps, IndexUse, PacketId, Query,
    QueryError, QueryReport, Seen,
};
pub use retroscope_alert::{Alert, Identity as AlertIdentity, LabelFilled, LabelTemplate};
pub use retroscope_capture::clock::{Clock, Now, SystemClock};
pub use retroscope_filter::KnownFlow;
pub use start::{
    by_hand::ByHand,
    config::{Analyzers, ClassCutoff, Config, Scripts, Sources},
    expressions::{ExpressionError, check_alert_template, check_expression, check_template},
    handle::{CommandError, Handle, Stretch, check_name},
    inserters_only::{Inserted, insert_only},
    recorder::{Recorder, StartError, Status, Summary},
    reload::Reloaded,
    rules::{Condition, NO_PACKET, RuleStatus},
};
pub use timeline::{SLOTS_MAX, Timeline, TimelineRequest};
