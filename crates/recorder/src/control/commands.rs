//! Commands to a running recorder, which wait in a bounded queue for the analyzer. Stop and abort
//! are flags instead (`control/progress.rs`): they concern all threads and are never refused.

use std::sync::{
    Arc,
    mpsc::{Receiver, SyncSender, sync_channel},
};

use retroscope_alert::Alert;

use crate::{
    Empty,
    analysis::{
        director::SharedLimits,
        predicate::DumpExpression,
        shard::FoundHit,
        terms::{DumpWindow, TriggerRequest},
        triggers::RuleChange,
    },
    control::ring_extent::RingExtent,
};

/// Maximum number of commands that wait at once.
pub(crate) const WAITING_MAX: usize = 64;

/// A command for the analyzer.
#[derive(Debug)]
pub(crate) enum AnalyzerCommand {
    /// A manual trigger, or a command that triggers a rule. If the analyzer remembers the key, the
    /// reply is the dump of the earlier command with this key.
    Trigger {
        key: Option<String>,
        /// Time of the trigger, ns of ring time; `None`: now, or from files the director's clock.
        at_ns: Option<i64>,
        /// If the command triggers a rule: number and name of the rule.
        rule: Option<(usize, Arc<str>)>,
        /// The trigger starts no dump if the ring has nothing up to the end of the window
        /// ([`RingExtent::gone`]).
        held: Option<RingExtent>,
        request: Box<TriggerRequest>,
        /// The expression to dump; `None`: the configured expression.
        expression: Option<DumpExpression>,
        /// `None`: no caller waits.
        reply: Option<SyncSender<Result<TriggerOutcome, NoDump>>>,
    },
    /// Hits of a rule that the scan of the past has found. The reply has the number of dumps that
    /// the hits started, and whether the scan should go on.
    Scanned {
        rule: usize,
        hits: Vec<FoundHit>,
        /// Whether the scan has ended.
        is_last: bool,
        reply: SyncSender<(u64, bool)>,
    },
    Alerts(Vec<Arc<Alert>>),
    /// Changes the rules. In each shard, all changes apply from the same packet on.
    Rules {
        changes: Vec<RuleChange>,
        /// New requests of the rules with these numbers.
        requests: Vec<(usize, TriggerRequest)>,
        /// New settings; `None`: the settings stay.
        settings: Option<Box<Settings>>,
        reply: SyncSender<()>,
    },
}

/// Settings for all rules and for manual triggers.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// The window of a trigger that sets no window.
    pub(crate) window: DumpWindow,
    pub(crate) limits: SharedLimits,
    /// The dump expression of a manual trigger that sets no expression.
    pub(crate) manual: DumpExpression,
}

/// Why a manual trigger, or a command that triggers a rule, started no dump.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NoDump {
    /// A limit, a hold-off or `single`, in words.
    Limit(String),
    /// The ring has no packet up to the end of the requested window.
    Gone(Empty),
    /// The rule that the command triggers was changed or removed.
    RuleChanged,
    /// Any other reason, in words.
    Other(String),
}

/// The result of a manual trigger, or of a command that triggers a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TriggerOutcome {
    /// The dump's number, as in [`DumpReport::number`](crate::DumpReport::number).
    pub dump: u64,
    /// Whether the dump existed before: it was open, or is that of an earlier command with the key.
    pub existed: bool,
    /// Last time stamp of the window, ns since the UNIX epoch; `None`: the dump existed before.
    pub window_end_ns: Option<i64>,
}

pub(crate) fn commands() -> (SyncSender<AnalyzerCommand>, Receiver<AnalyzerCommand>) {
    sync_channel(WAITING_MAX)
}
