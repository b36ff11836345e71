//! Events in JSON, for the API and for EVE.

use retroscope_recorder::{
    AlertNews, Change, DeletedDump, DumpReport, Export, PostResult, RecorderEvent, Refusal, rfc3339,
};
use serde::Serialize;
use utoipa::ToSchema;

/// The `data` of an event. The event's name, such as `finished`, says which kind of event it is.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
#[schema(as = RecorderEvent)]
pub enum EventBody<'a> {
    /// A hit started a dump.
    #[schema(title = "triggered")]
    Triggered {
        /// The dump's number.
        dump: u64,
        /// The name of the trigger rule (by default its expression), `alert` or `manual`.
        rule: &'a str,
        /// Time stamp of the trigger packet, of the alert or of the command, RFC 3339.
        trigger_time: String,
        /// The filled-in dump filter; empty: all packets.
        expression: &'a str,
    },
    /// A dump is on disk, or failed. The event `compressed` has the same fields: the dump's files
    /// were compressed and have new names.
    #[schema(title = "finished")]
    Finished {
        /// The dump's number.
        dump: u64,
        /// The dump's report.
        report: &'a DumpReport,
    },
    /// A message for the user.
    #[schema(title = "notice")]
    Notice {
        /// The message text.
        text: &'a str,
    },
    /// A dump's files were deleted.
    #[schema(title = "deleted")]
    Deleted {
        /// The dump, its size, and the reason of the deletion.
        #[serde(flatten)]
        dump: &'a DeletedDump,
    },
    /// The command of `--post` for a finished dump ended.
    #[schema(title = "posted")]
    Posted {
        /// The dump and the result of the command.
        #[serde(flatten)]
        posted: &'a PostResult,
    },
    /// The recorder acted on an alert of an IDS, or the alert's dump has no packet.
    #[schema(title = "alert")]
    Alert {
        /// The content of the alert's line, the result, and the reason.
        #[serde(flatten)]
        #[schema(value_type = Object)]
        alert: &'a AlertNews,
    },
    /// A client received packets.
    #[schema(title = "exported")]
    Exported {
        /// The client, its request, and the amount of data.
        #[serde(flatten)]
        export: &'a Export,
    },
    /// A client changed something, or a reload failed.
    #[schema(title = "changed")]
    Changed {
        /// The caller, its address and the change.
        #[serde(flatten)]
        change: &'a Change,
    },
    /// Clients were refused.
    #[schema(title = "refused")]
    Refused {
        /// The client, its address and the reason.
        #[serde(flatten)]
        refusal: &'a Refusal,
    },
    /// Events that were overwritten before the listener could read these events.
    #[schema(title = "missed")]
    Missed {
        /// The number of missed events.
        count: u64,
    },
}

impl EventBody<'_> {
    /// The event's name and the body of its `data`.
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
                    expression,
                },
            ),
            RecorderEvent::Finished(report) => ("finished", finished(report)),
            RecorderEvent::Compressed(report) => ("compressed", finished(report)),
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

fn finished(report: &DumpReport) -> EventBody<'_> {
    EventBody::Finished {
        dump: report.number,
        report,
    }
}
