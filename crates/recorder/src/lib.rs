//! The recorder: the threads between sources and dumps.
//!
//! Packets flow one way. An *inserter* copies a source's bursts into the ring. The *analyzer*, an
//! inserter or a separate thread tries the trigger rules on the packets. The *dumper* reads the
//! windows of dumps and has them written to files. The deciding parts own neither threads nor
//! clocks: `analysis::director` (what a hit becomes), `dump::output` (one ordered file),
//! `intake::counters` (the ledgers).
//!
//! | module | contents |
//! |---|---|
//! | `intake` | from a burst into the ring: inserters, capture filter, counters, interfaces |
//! | `analysis` | the analyzer, trigger rules and scripts, the director, filters |
//! | `dump` | from a window of the ring to a file with a verdict |
//! | `control` | state that threads share: clocks, progress, commands, pins, events |
//! | `query` | a window of a ring (also of another process) and of dumps, with a verdict |
//! | `timeline` | the contents of the history, slot by slot |
//! | `start` | expressions, configuration, opening sources, threads, the control handle |
//!
//! `docs/dev/waits.md` lists which thread waits for which, and how long.

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
    alerts::{AlertConfig, AlertCounts, AlertLines, AlertNews, AlertOutcome, AlertSummary},
    audit::{Action, Change, Refusal},
    commands::TriggerOutcome,
    durations::{AgeHistogram, ProcessingHistogram},
    events::{Export, Missed, RecorderEvent, Subscription},
    hits::{HitCounts, Reason, Suppressions},
    outcomes::RuleHits,
    pins::{Pin, PinChange},
    rule_scan::RuleScanStatus,
    threads::{AnalysisLedger, ThreadStatus},
    time::{parse_time, rfc3339},
};
pub use dump::{
    compress::ZstdLevel,
    encode::DumpFormat,
    log::{DumpCounts, DumpTotals},
    post::{Identity, PostCommand, PostConfig, PostCounts, PostOutcome, PostResult},
    report::{DumpReport, Missing, PROGRAM, Verdict},
    store::{
        DeletedDump, MinFree, RetentionLimit, StoredDump, StoredFile, WhyDeleted,
        lister::{DumpFileReader, StoredDumps},
    },
    template::NameTemplate,
};
pub use intake::counters::{INTERFACE_DOWN, LOST_INTERFACE_LIMIT, LOST_NO_BUCKET, SourceSnapshot};
pub use query::{
    AnswerDumps, Cancel, DumpAnswer, DumpsAsked, Empty, IndexUse, PacketId, QueriedPacket, Query,
    QueryAnswer, QueryError, QueryReport,
};
pub use retroscope_alert::{Alert, AlertIdentity, LabelFilled, LabelTemplate};
pub use retroscope_capture::clock::{Clock, Now, SystemClock};
pub use retroscope_filter::KnownFlow;
pub use start::{
    by_hand::ManualTrigger,
    config::{Analyzers, ClassCutoff, Config, Scripts, Sources},
    expressions::{ExpressionError, check_alert_template, check_expression, check_template},
    handle::{CommandError, RecorderHandle, RequestedRange, check_name},
    inserters_only::{Inserted, insert_only},
    planned_buckets,
    recorder::{Recorder, RecorderStatus, RecorderSummary, StartError},
    reload::ReloadOutcome,
    rules::{Condition, NO_PACKET, RuleStatus},
};
pub use timeline::{
    SLOTS_MAX, Timeline, TimelineRequest,
    peaks::{PeakCounts, Peaks, SeriesBy},
};
