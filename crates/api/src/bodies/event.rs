//! Events in JSON, for the API and for EVE.

use retroscope_recorder::{
    AlertNews, Change, DeletedDump, DumpReport, Export, PostResult, RecorderEvent, Refusal, rfc3339,
};
use serde::Serialize;
use utoipa::ToSchema;

/// The `data` of an event. `kind` is also the event's name.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "kind", rename_all = "lowercase")]
#[schema(as = RecorderEvent)]
pub enum EventBody<'a> {
    /// A hit started a dump.
    Triggered {
        /// The dump's number.
        dump: u64,
        /// The expression of the trigger rule, the name of the script or module, `alert` or
        /// `manual`. If a command triggered a rule, the name of the rule.
        rule: &'a str,
        /// Time stamp of the trigger packet, of the alert or of the command, RFC 3339.
        trigger_time: String,
        /// The filled-in dump filter; empty: all packets.
        filter: &'a str,
    },
    /// A dump is on disk, or failed.
    Finished {
        /// The dump's number.
        dump: u64,
        /// The dump's report.
        report: &'a DumpReport,
    },
    /// A dump's files were compressed and have new names.
    Compressed {
        /// The dump's number.
        dump: u64,
        /// The dump's report.
        report: &'a DumpReport,
    },
    /// A message for the user.
    Notice {
        /// The message text.
        text: &'a str,
    },
    /// A dump's files were deleted.
    Deleted {
        /// The deleted dump.
        #[serde(flatten)]
        dump: &'a DeletedDump,
    },
    /// The command of `--post` for a finished dump ended, could not be started, or was not run.
    Posted {
        /// The result of the command.
        #[serde(flatten)]
        posted: &'a PostResult,
    },
    /// The recorder acted on an alert of an IDS, or the alert's dump has no packet.
    Alert {
        /// The alert and its outcome.
        #[serde(flatten)]
        alert: &'a AlertNews,
    },
    /// A client received packets.
    Exported {
        /// The client and its request.
        #[serde(flatten)]
        export: &'a Export,
    },
    /// A client or a reload of the configuration file changed something, or a reload failed.
    Changed {
        /// The change.
        #[serde(flatten)]
        change: &'a Change,
    },
    /// Clients were refused.
    Refused {
        /// The refusal.
        #[serde(flatten)]
        refusal: &'a Refusal,
    },
    /// Events that were overwritten before the listener could read these events.
    Missed {
        /// The number of missed events.
        count: u64,
    },
    /// The last event of the stream.
    End {
        /// Why the stream ends for this client only. Absent if the recording has ended.
        #[serde(skip_serializing_if = "Option::is_none")]
        why: Option<&'a str>,
    },
}

impl EventBody<'_> {
    /// The event's name and its `data`.
    #[must_use]
    pub fn of(event: &RecorderEvent) -> (&'static str, EventBody<'_>) {
        match event {
            RecorderEvent::Triggered {
                number,
                rule,
                trigger_ns,
                expression,
                reason: _,
            } => (
                "triggered",
                EventBody::Triggered {
                    dump: *number,
                    rule,
                    trigger_time: rfc3339(*trigger_ns),
                    filter: expression,
                },
            ),
            RecorderEvent::Finished(report) => (
                "finished",
                EventBody::Finished {
                    dump: report.number,
                    report,
                },
            ),
            RecorderEvent::Compressed(report) => (
                "compressed",
                EventBody::Compressed {
                    dump: report.number,
                    report,
                },
            ),
            RecorderEvent::Deleted(dump) => ("deleted", EventBody::Deleted { dump }),
            RecorderEvent::Posted(posted) => ("posted", EventBody::Posted { posted }),
            RecorderEvent::Notice(text) => ("notice", EventBody::Notice { text }),
            RecorderEvent::Alert(alert) => ("alert", EventBody::Alert { alert }),
            RecorderEvent::Exported(export) => ("exported", EventBody::Exported { export }),
            RecorderEvent::Changed(change) => ("changed", EventBody::Changed { change }),
            RecorderEvent::Refused(refusal) => ("refused", EventBody::Refused { refusal }),
            RecorderEvent::Missed(missed) => (
                "missed",
                EventBody::Missed {
                    count: missed.total(),
                },
            ),
        }
    }
}
