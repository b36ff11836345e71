//! What a trigger asks for: what is dumped, its window, how much of it, and who asked.

use std::{sync::Arc, time::Duration};

use retroscope_alert::Alert;
use retroscope_capture::clock::duration_ns;
pub use retroscope_dumpstore::directory::SubDirectory;
use retroscope_flow::Key;

use crate::dump::store::Keep;

/// Bytes that are kept of the name of who asked, …
const ASKED_BY_BYTES: usize = 256;
/// … and of why.
const REASON_BYTES: usize = 1000;

/// What a trigger asks for. What it leaves out (all, by default) is as the recorder is configured.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TriggerRequest {
    /// Packet time before the trigger, of any length: what the ring does not hold any more is missing, and told.
    pub past: Option<Duration>,
    /// Packet time after the trigger, of any length.
    pub future: Option<Duration>,
    /// The dump ends when it has so many packets; 0: without limit.
    pub packets_max: Option<u64>,
    /// The dump ends with the packet by which it has so many captured bytes, or more; 0: without limit.
    pub bytes_max: Option<u64>,
    /// What is dumped: of a rule a template, which each trigger packet fills in; by hand, where there is no such packet, an expression. Empty:
    /// everything.
    pub dump: Option<String>,
    /// Of a rule: what is dumped of an alert that names it, a [`LabelTemplate`](retroscope_alert::LabelTemplate), which labels of the alert fill in. Empty: everything;
    /// `None`: it takes no alerts.
    pub alert_dump: Option<String>,
    /// Below the directory of the dumps: where its files go; made when it is first needed.
    pub into: Option<SubDirectory>,
    /// Of a rule: after the end of its window, how long the same dump expression starts no other dump.
    pub hold_off: Option<Duration>,
    /// Of a rule, beside the limits that all rules share: dumps open at once, …
    pub max_dumps: Option<u64>,
    /// … dumps started in any minute, …
    pub dumps_per_minute: Option<u64>,
    /// … and bytes written in any hour before no further dump is started; 0, as `None`: without a limit of its own.
    pub bytes_per_hour: Option<u64>,
    /// Who asked, for the report and the sidecar; of longer texts the first 256 bytes. It does not tell triggers apart: a second one that asks for
    /// the same belongs to the dump of the first.
    pub asked_by: Option<String>,
    /// As whom the control plane let in who asked, whatever they call themselves: a token's name, or a user. `None`: it was no command.
    pub caller: Option<String>,
    /// Why, in the words of who asked: an alert, a ticket. It stands in the report, the sidecar and the file's first comment; of longer texts the first 1,000 bytes.
    pub reason: Option<String>,
    /// How many of a rule's dumps are kept, and how long, beside what is kept of all.
    pub keep: Option<Keep>,
}

/// The same with everything filled in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TriggerTerms {
    pub(crate) window: DumpWindow,
    pub(crate) into: Option<SubDirectory>,
    pub(crate) asked_by: Option<Arc<str>>,
    pub(crate) caller: Option<Arc<str>>,
    pub(crate) reason: Option<Arc<str>>,
    /// The flow that it is of, where a module says when that is over.
    pub(crate) flow: Option<Key>,
    pub(crate) limits: RuleLimits,
    /// The alert that it is of.
    pub(crate) alert: Option<Arc<Alert>>,
    /// Times before and after the hit that belong to the hit, ns: of an alert, its flow up to its
    /// packet, and the rest of the microsecond. Both are 0 for a packet and for a trigger by hand.
    pub(crate) span_ns: (i64, i64),
    /// What its dump calls the rule; `None`: by the rule's expression.
    pub(crate) called: Option<Arc<str>>,
}

/// What a rule is held to of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RuleLimits {
    /// After the end of a window, how long the same expression starts no dump, ns; `None`: as the recorder is configured.
    pub(crate) hold_off_ns: Option<i64>,
    /// Dumps open at once, to `u64::MAX`: without limit, as the next ones.
    pub(crate) dumps_max: u64,
    pub(crate) dumps_per_minute: u64,
    pub(crate) bytes_per_hour: u64,
}

/// None.
impl Default for RuleLimits {
    fn default() -> Self {
        Self {
            hold_off_ns: None,
            dumps_max: u64::MAX,
            dumps_per_minute: u64::MAX,
            bytes_per_hour: u64::MAX,
        }
    }
}

/// How much is dumped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DumpWindow {
    /// Packet time dumped before the trigger, ns, at least 0.
    pub(crate) past_ns: i64,
    /// Packet time dumped after the trigger, ns, at least 0.
    pub(crate) future_ns: i64,
    /// Packets that end it, 1 to `u64::MAX`: without limit.
    pub(crate) packets_max: u64,
    /// Bytes that do, in the same range.
    pub(crate) bytes_max: u64,
}

impl DumpWindow {
    /// A window of a length. `packets` and `bytes` limit it; 0: they do not.
    pub(crate) fn new(past: Duration, future: Duration, packets: u64, bytes: u64) -> Self {
        Self {
            past_ns: duration_ns(past),
            future_ns: duration_ns(future),
            packets_max: limit(packets),
            bytes_max: limit(bytes),
        }
    }

    /// Whether more than time ends it.
    pub(crate) fn is_limited(self) -> bool {
        self.packets_max.min(self.bytes_max) < u64::MAX
    }

    /// Whether so many packets and bytes end it.
    pub(crate) fn is_full(self, packets: u64, bytes: u64) -> bool {
        packets >= self.packets_max || bytes >= self.bytes_max
    }

    /// Its start where the trigger is at this time, ns.
    pub(crate) fn start_ns(self, time_ns: i64) -> i64 {
        time_ns.saturating_sub(self.past_ns)
    }

    /// Its end, ns.
    pub(crate) fn end_ns(self, time_ns: i64) -> i64 {
        time_ns.saturating_add(self.future_ns)
    }
}

/// A limit as users write it, of whom 0 means none.
pub(crate) fn limit(limit: u64) -> u64 {
    if limit == 0 { u64::MAX } else { limit }
}

impl TriggerTerms {
    /// The first and the last time that belong to a hit at `time_ns`, ns.
    pub(crate) fn span_at(&self, time_ns: i64) -> (i64, i64) {
        let (before_ns, after_ns) = self.span_ns;
        (
            time_ns.saturating_sub(before_ns),
            time_ns.saturating_add(after_ns),
        )
    }

    /// What a request asks for, with `defaults` for what it leaves out.
    pub(crate) fn new(request: &TriggerRequest, defaults: DumpWindow) -> Self {
        let kept = |text: &Option<String>, bytes| {
            let text = text.as_deref()?;
            Some(Arc::from(&text[..text.floor_char_boundary(bytes)]))
        };
        Self {
            window: DumpWindow {
                past_ns: request.past.map_or(defaults.past_ns, duration_ns),
                future_ns: request.future.map_or(defaults.future_ns, duration_ns),
                packets_max: request.packets_max.map_or(defaults.packets_max, limit),
                bytes_max: request.bytes_max.map_or(defaults.bytes_max, limit),
            },
            into: request.into.clone(),
            asked_by: kept(&request.asked_by, ASKED_BY_BYTES),
            caller: kept(&request.caller, ASKED_BY_BYTES),
            reason: kept(&request.reason, REASON_BYTES),
            flow: None,
            alert: None,
            span_ns: (0, 0),
            called: None,
            limits: RuleLimits {
                hold_off_ns: request.hold_off.map(duration_ns),
                dumps_max: limit(request.max_dumps.unwrap_or(0)),
                dumps_per_minute: limit(request.dumps_per_minute.unwrap_or(0)),
                bytes_per_hour: limit(request.bytes_per_hour.unwrap_or(0)),
            },
        }
    }
}
