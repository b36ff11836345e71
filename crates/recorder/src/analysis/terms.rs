//! The request of a trigger: the selection of packets, the window, limits, and the requester.

use std::{sync::Arc, time::Duration};

use retroscope_alert::Alert;
use retroscope_capture::clock::duration_ns;
pub use retroscope_dumpstore::directory::SubDirectory;
use retroscope_flow::BiflowKey;

use crate::dump::store::RetentionLimit;

/// Maximum bytes kept of `asked_by` and of `caller`.
const ASKED_BY_BYTES: usize = 256;
/// Maximum bytes kept of the reason.
const REASON_BYTES: usize = 1000;

/// The request of a trigger. The configuration fills in the window, the limits of the dump, the
/// hold-off and the dump expression if the request leaves them out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TriggerRequest {
    /// Packet time to dump before the trigger; the ring may no longer have all packets.
    pub past: Option<Duration>,
    /// Packet time to dump after the trigger.
    pub future: Option<Duration>,
    /// The dump ends after this number of packets; 0: no limit.
    pub packets_max: Option<u64>,
    /// The dump ends with the packet that brings it to this number of captured bytes; 0: no limit.
    pub bytes_max: Option<u64>,
    /// Selects the packets to dump; empty: everything. For a rule, a template with variables of the
    /// trigger packet; for a manual trigger, an expression.
    pub dump: Option<String>,
    /// For a rule: a [`LabelTemplate`](retroscope_alert::LabelTemplate) that selects the packets to
    /// dump for an alert that names the rule; empty: everything. `None`: the rule accepts no
    /// alerts.
    pub alert_dump: Option<String>,
    /// Directory for the dump files, below the directory of all dumps.
    pub into: Option<SubDirectory>,
    /// For a rule: how long after the end of a window the same dump expression starts no other
    /// dump.
    pub hold_off: Option<Duration>,
    /// For a rule: maximum number of its open dumps, in addition to the shared limits; 0 or `None`:
    /// no limit.
    pub max_dumps: Option<u64>,
    /// For a rule: maximum number of dumps started in any minute, in addition to the shared limit;
    /// 0 or `None`: no limit.
    pub dumps_per_minute: Option<u64>,
    /// For a rule: number of bytes written by its dumps in an hour, from which on the rule starts
    /// no dump; 0 or `None`: no limit.
    pub bytes_per_hour: Option<u64>,
    /// For a rule: its first dump disables the rule.
    pub single: bool,
    /// Name of the requester, for the report and the sidecar; of longer texts the first 256 bytes.
    pub asked_by: Option<String>,
    /// Name that the control plane authenticated: a token's name or a user. `None`: no name.
    pub caller: Option<String>,
    /// The reason, for the sidecar and the pcapng file: an alert, a ticket; of longer texts the
    /// first 1,000 bytes.
    pub reason: Option<String>,
    /// Limits on the bytes and the age of a rule's dumps, in addition to the limits for all dumps.
    pub keep: Option<RetentionLimit>,
}

/// A trigger request with the default window filled in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TriggerTerms {
    pub(crate) window: DumpWindow,
    pub(crate) into: Option<SubDirectory>,
    pub(crate) asked_by: Option<Arc<str>>,
    pub(crate) caller: Option<Arc<str>>,
    pub(crate) reason: Option<Arc<str>>,
    /// The flow of the hit, if a module reports when the flow ends.
    pub(crate) flow: Option<BiflowKey>,
    pub(crate) limits: RuleLimits,
    /// The alert that led to the hit.
    pub(crate) alert: Option<Arc<Alert>>,
    /// Times before and after the hit that belong to the hit, ns. Both are 0 unless the hit is an
    /// alert, whose flow may have begun earlier.
    pub(crate) span_ns: (i64, i64),
    /// Name of the rule in the dump; `None`: the name of the director's rule number.
    pub(crate) called: Option<Arc<str>>,
}

/// A rule's own limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RuleLimits {
    /// How long after the end of a window the same expression starts no dump, ns; `None`: the
    /// configured time.
    pub(crate) hold_off_ns: Option<i64>,
    /// Maximum number of dumps open at once; `u64::MAX`: no limit.
    pub(crate) dumps_max: u64,
    /// Maximum number of dumps started in any minute; `u64::MAX`: no limit.
    pub(crate) dumps_per_minute: u64,
    /// Bytes written by the rule's dumps in an hour, from which on the rule starts no dump;
    /// `u64::MAX`: no limit.
    pub(crate) bytes_per_hour: u64,
    /// The first dump disables the rule.
    pub(crate) is_single: bool,
}

/// No limits of the rule; the configured hold-off.
impl Default for RuleLimits {
    fn default() -> Self {
        Self {
            hold_off_ns: None,
            dumps_max: u64::MAX,
            dumps_per_minute: u64::MAX,
            bytes_per_hour: u64::MAX,
            is_single: false,
        }
    }
}

/// The time range and the limits of a dump, relative to its trigger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DumpWindow {
    /// Packet time dumped before the trigger, ns, at least 0.
    pub(crate) past_ns: i64,
    /// Packet time dumped after the trigger, ns, at least 0.
    pub(crate) future_ns: i64,
    /// Number of packets at which the dump ends, at least 1; `u64::MAX`: no limit.
    pub(crate) packets_max: u64,
    /// Number of captured bytes at which the dump ends, at least 1; `u64::MAX`: no limit.
    pub(crate) bytes_max: u64,
}

impl DumpWindow {
    /// `packets` and `bytes` limit the dump; 0: no limit.
    pub(crate) fn new(past: Duration, future: Duration, packets: u64, bytes: u64) -> Self {
        Self {
            past_ns: duration_ns(past),
            future_ns: duration_ns(future),
            packets_max: limit(packets),
            bytes_max: limit(bytes),
        }
    }

    /// Whether packets or bytes can end the dump before its time.
    pub(crate) fn is_limited(self) -> bool {
        self.packets_max.min(self.bytes_max) < u64::MAX
    }

    pub(crate) fn is_full(self, packets: u64, bytes: u64) -> bool {
        packets >= self.packets_max || bytes >= self.bytes_max
    }

    pub(crate) fn start_ns(self, time_ns: i64) -> i64 {
        time_ns.saturating_sub(self.past_ns)
    }

    pub(crate) fn end_ns(self, time_ns: i64) -> i64 {
        time_ns.saturating_add(self.future_ns)
    }
}

/// Converts a limit as users write it, where 0 means no limit.
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

    /// `defaults` apply to the parts of the window that `request` leaves out.
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
                is_single: request.single,
            },
        }
    }
}
