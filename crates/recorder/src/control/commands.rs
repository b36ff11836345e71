//! What the recorder is asked to do while it runs. Commands wait in a bounded queue for the analyzer, which takes them between two
//! batches; stop and abort are flags (`control/progress.rs`), because they concern all threads and are never refused.

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
        terms::{DumpWindow, TriggerRequest},
        triggers::RuleChange,
    },
    control::ring_extent::RingExtent,
};

/// Commands that wait at once.
pub(crate) const WAITING_MAX: usize = 64;

/// What the analyzer does.
#[derive(Debug)]
pub(crate) enum AnalyzerCommand {
    /// A trigger by hand. A key that was given before stands for the dump that it started then.
    Trigger {
        key: Option<String>,
        /// When, ns of ring time; `None`: now.
        at_ns: Option<i64>,
        /// The rule whose hit it is, by number and name; `None`: of none.
        rule: Option<(usize, Arc<str>)>,
        /// What the ring has: a hit of a rule starts no dump of what is gone.
        held: Option<RingExtent>,
        request: Box<TriggerRequest>,
        /// What is dumped, if that is not as the recorder is configured.
        expression: Option<DumpExpression>,
        /// `None`: nobody waits.
        reply: Option<SyncSender<Result<TriggerOutcome, NoDump>>>,
    },
    /// Alerts.
    Alerts(Vec<Arc<Alert>>),
    /// The rules change, between the same two packets.
    Rules {
        changes: Vec<RuleChange>,
        /// What rules of these numbers ask for from then on.
        requests: Vec<(usize, TriggerRequest)>,
        /// What they are given where they do not ask, from then on.
        settings: Option<Box<Settings>>,
        reply: SyncSender<()>,
    },
}

/// What holds for all rules, and for triggers by hand.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// What is dumped where a trigger does not say otherwise.
    pub(crate) window: DumpWindow,
    pub(crate) limits: SharedLimits,
    /// What a trigger by hand dumps.
    pub(crate) manual: DumpExpression,
}

/// Why a trigger by hand started no dump.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NoDump {
    /// A limit: which. Later it may start one.
    Limit(String),
    /// Nothing of what it asks for is there.
    Gone(Empty),
    /// The rule whose hit it is was changed or removed.
    RuleChanged,
    /// What it says.
    Other(String),
}

/// What a trigger by hand led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TriggerOutcome {
    /// The dump's number, as in [`DumpReport::number`](crate::DumpReport::number).
    pub dump: u64,
    /// It was there before: open, or started by the same key.
    pub existed: bool,
}

/// A queue of commands: where they are given, and where they are taken.
pub(crate) fn commands() -> (SyncSender<AnalyzerCommand>, Receiver<AnalyzerCommand>) {
    sync_channel(WAITING_MAX)
}
