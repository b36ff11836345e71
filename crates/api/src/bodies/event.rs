//! Events, as the API and EVE tell them.

use retroscope_recorder::{
    AlertNews, Change, DeletedDump, DumpReport, Export, Posted, RecorderEvent, Refusal, rfc3339,
};
use serde::Serialize;
use utoipa::ToSchema;

/// The `data` of an event. The event's name, such as `finished`, says which kind of event it is.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
#[schema(as = RecorderEvent)]
pub enum EventBody<'a> {
    /// A hit started a dump.
    Triggered {
        /// Its number.
        dump: u64,
        /// The trigger expression, or `manual`.
        rule: &'a str,
        /// Stamp of the trigger packet, RFC 3339.
        trigger_time: String,
        /// The filled-in dump expression; empty: everything.
        expression: &'a str,
    },
    /// A dump is on disk, or failed; or its files are compressed, and have other names.
    Finished {
        /// Its number.
        dump: u64,
        /// What it says of itself.
        report: &'a DumpReport,
    },
    /// A sentence for the user.
    Notice {
        /// It.
        text: &'a str,
    },
    /// A dump's files were deleted.
    Deleted {
        /// Which, how large, and why.
        #[serde(flatten)]
        dump: &'a DeletedDump,
    },
    /// The command of a finished dump ended.
    Posted {
        /// Of which dump, and how.
        #[serde(flatten)]
        posted: &'a Posted,
    },
    /// An alert of an IDS was acted on, or its dump has no packet.
    Alert {
        /// What its line says, what became of it, and why.
        #[serde(flatten)]
        #[schema(value_type = Object)]
        alert: &'a AlertNews,
    },
    /// Packets were given to somebody who asked.
    Exported {
        /// Who, what, and how much.
        #[serde(flatten)]
        export: &'a Export,
    },
    /// A client changed something, or a reload failed.
    Changed {
        /// The caller, its address and the change.
        #[serde(flatten)]
        change: &'a Change,
    },
    /// Clients were refused.
    Refused {
        /// The client, its address and the reason.
        #[serde(flatten)]
        refusal: &'a Refusal,
    },
    /// Events that are not kept any more.
    Missed {
        /// How many.
        count: u64,
    },
}

impl EventBody<'_> {
    /// What kind of event it is: a word, and what it says.
    #[must_use]
    pub fn of(event: &RecorderEvent) -> (&'static str, EventBody<'_>) {
        match event {
            RecorderEvent::Triggered {
                number,
                rule,
                trigger_ns,
                expression,
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
