//! The request of a trigger: the selection of packets, the window, limits, and the requester.

use std::{sync::Arc, time::Duration};

use retroscope_alert::Alert;
use retroscope_capture::clock::duration_ns;
pub use retroscope_dumpstore::directory::SubDirectory;
use retroscope_flow::BiflowKey;

use crate::dump::store::RetentionLimit;

/// Bytes that are kept of the names of the requester and of the caller.
const ASKED_BY_BYTES: usize = 256;
/// Bytes that are kept of the reason.
const REASON_BYTES: usize = 1000;

/// The request of a trigger. The configuration applies to the window, the limits of the dump, the
/// hold-off and the dump expression that a request leaves out. The default leaves out everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TriggerRequest {
    /// Packet time before the trigger, of any length. Packets that the ring no longer has are
    /// missing, and the verdict reports this.
    pub past: Option<Duration>,
    /// Packet time after the trigger, of any length.
    pub future: Option<Duration>,
    /// The dump ends after this number of packets; 0: no limit.
    pub packets_max: Option<u64>,
    /// The dump ends with the packet that brings it to this number of captured bytes; 0: no limit.
    pub bytes_max: Option<u64>,
    /// Selects the packets to dump. For a rule this is a template, whose variables get the values
    /// of the trigger packet. For a manual trigger, which has no packet, this is an expression.
    /// Empty: everything.
    pub dump: Option<String>,
    /// For a rule: a [`LabelTemplate`](retroscope_alert::LabelTemplate) that selects the packets to
    /// dump for an alert that names the rule. Labels of the alert fill in the template. Empty:
    /// everything. `None`: the rule accepts no alerts.
    pub alert_dump: Option<String>,
    /// Directory for the dump files, below the directory of all dumps; made when first needed.
    pub into: Option<SubDirectory>,
    /// For a rule: how long after the end of a window the same dump expression starts no other
    /// dump.
    pub hold_off: Option<Duration>,
    /// For a rule: maximum number of dumps open at once; 0 or `None`: no limit. This limit
    /// applies in addition to the limits that all rules share.
    pub max_dumps: Option<u64>,
    /// For a rule: maximum number of dumps started in any minute, in addition to the shared limit;
    /// 0 or `None`: no limit.
    pub dumps_per_minute: Option<u64>,
    /// For a rule: while its dumps of the last hour have this number of bytes, the rule starts no
    /// other dump. 0 or `None`: the rule has no limit.
    pub bytes_per_hour: Option<u64>,
    /// For a rule: its first dump disables the rule.
    pub single: bool,
    /// Name of the requester, for the report and the sidecar; of longer texts the first 256 bytes.
    /// A second trigger that differs only in this text joins the dump of the first trigger, if that
    /// dump is open and its window covers the second trigger.
    pub asked_by: Option<String>,
    /// The name that the control plane authenticated: a token's name or a user, whatever `asked_by`
    /// says. `None`: the request did not come through the API.
    pub caller: Option<String>,
    /// The reason in the words of the person who asked: an alert, a ticket. The sidecar and the
    /// first comment of a pcapng file contain the reason; of longer texts the first 1,000 bytes.
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
    /// Times before and after the hit that belong to the hit, ns. For an alert: the alert's flow up
    /// to its packet (for an alert without addresses, a time before the alert), and 999 ns after
    /// the alert. Both are 0 for other hits.
    pub(crate) span_ns: (i64, i64),
    /// Name of the rule in the dump; `None`: the name from the director's rule number, for example
    /// the rule's expression, `manual` or `alert`.
    pub(crate) called: Option<Arc<str>>,
}

/// A rule's own limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RuleLimits {
    /// How long after the end of a window the same expression starts no dump, ns; `None`: as the
    /// recorder is configured.
    pub(crate) hold_off_ns: Option<i64>,
    /// Maximum number of dumps open at once; `u64::MAX`: no limit.
    pub(crate) dumps_max: u64,
    /// Maximum number of dumps started in any minute; `u64::MAX`: no limit.
    pub(crate) dumps_per_minute: u64,
    /// After the rule's dumps wrote this number of bytes in an hour, the rule starts no further
    /// dump. `u64::MAX`: no limit.
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
    /// A window of the given length. `packets` and `bytes` limit the dump; 0: no limit.
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

    /// Whether a dump with this number of packets and bytes has reached a limit.
    pub(crate) fn is_full(self, packets: u64, bytes: u64) -> bool {
        packets >= self.packets_max || bytes >= self.bytes_max
    }

    /// Start of the window for a trigger at `time_ns`, ns.
    pub(crate) fn start_ns(self, time_ns: i64) -> i64 {
        time_ns.saturating_sub(self.past_ns)
    }

    /// End of the window for a trigger at `time_ns`, ns.
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

    /// The terms of a request. `defaults` apply to the parts of the window that `request` leaves
    /// out.
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
