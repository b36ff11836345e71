//! What a trigger asks for beside an expression: its window, and who asked.

use std::{sync::Arc, time::Duration};

use retroscope_capture::clock::duration_ns;

/// Bytes that are kept of the name of who asked.
const ASKED_BY_BYTES: usize = 256;

/// What a trigger asks for. What it leaves out (all, by default) is as the recorder is configured.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TriggerRequest {
    /// Packet time before the trigger, of any length: what the ring does not hold any more is missing, and told.
    pub past: Option<Duration>,
    /// Packet time after the trigger, of any length.
    pub future: Option<Duration>,
    /// Who asked, for the report and the sidecar; of longer texts the first 256 bytes. It does not tell triggers apart: a second one that asks for
    /// the same belongs to the dump of the first.
    pub asked_by: Option<String>,
}

/// The same with everything filled in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Terms {
    pub(crate) window: Window,
    pub(crate) asked_by: Option<Arc<str>>,
}

/// How much is dumped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Window {
    /// Packet time dumped before the trigger, ns, at least 0.
    pub(crate) past_ns: i64,
    /// Packet time dumped after the trigger, ns, at least 0.
    pub(crate) future_ns: i64,
}

impl Window {
    /// Its start where the trigger is at this time, ns.
    pub(crate) fn start_ns(self, time_ns: i64) -> i64 {
        time_ns.saturating_sub(self.past_ns)
    }

    /// Its end, ns.
    pub(crate) fn end_ns(self, time_ns: i64) -> i64 {
        time_ns.saturating_add(self.future_ns)
    }
}

impl Terms {
    /// What a request asks for, with `defaults` for what it leaves out.
    pub(crate) fn new(request: &TriggerRequest, defaults: Window) -> Self {
        let asked_by = request.asked_by.as_deref();
        let kept = |text: &str| Arc::from(&text[..text.floor_char_boundary(ASKED_BY_BYTES)]);
        Self {
            window: Window {
                past_ns: request.past.map_or(defaults.past_ns, duration_ns),
                future_ns: request.future.map_or(defaults.future_ns, duration_ns),
            },
            asked_by: asked_by.map(kept),
        }
    }
}
