//! The webhook of Prometheus' Alertmanager: the notification and the answer.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::request::count;

const VERSION: &str = "4";

/// A notification of Alertmanager, version 4: Prometheus' documentation, "Configuration",
/// `<webhook_config>`.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = AlertmanagerNotification)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NotificationBody {
    /// The version of the notification: `4`.
    #[schema(example = "4", pattern = "^4$")]
    version: String,
    /// The name of the receiver in Alertmanager's configuration.
    #[serde(default)]
    pub(crate) receiver: String,
    pub(crate) alerts: Vec<NotifiedAlert>,
    /// The number of alerts that Alertmanager left out (`max_alerts`).
    #[serde(default, deserialize_with = "count")]
    pub(crate) truncated_alerts: Option<u64>,
}

/// An alert of a notification.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = AlertmanagerAlert)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NotifiedAlert {
    /// Whether the alert is firing.
    pub(crate) status: AlertStatus,
    pub(crate) labels: BTreeMap<String, String>,
    /// The time at which the alert began to fire, RFC 3339.
    #[schema(example = "2026-11-20T19:15:03.5Z")]
    pub(crate) starts_at: String,
    /// The identification of the alert's label set.
    #[serde(default)]
    pub(crate) fingerprint: String,
}

/// Whether an alert is firing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AlertStatus {
    Firing,
    Resolved,
}

/// Query parameters of a notification.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct NotificationQuery {
    /// The rule for all alerts. If left out, each alert names its rule in the label
    /// `retroscope_rule`.
    #[param(min_length = 1, max_length = 64)]
    pub(crate) rule: Option<String>,
}

/// The result of a notification.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AlertmanagerAnswer)]
pub(crate) struct AnswerBody {
    /// The result of each alert, in the order of the notification.
    pub(crate) alerts: Vec<AlertResultBody>,
    /// The number of alerts that Alertmanager left out.
    pub(crate) truncated: u64,
}

/// The result of an alert.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = AlertmanagerDone)]
pub(crate) struct AlertResultBody {
    pub(crate) fingerprint: String,
    pub(crate) outcome: AlertmanagerOutcome,
    /// The number of the alert's dump: see `/v1/dumps/{number}`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dump: Option<u64>,
    /// The reason why the alert has no dump.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
}

/// The result of an alert.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum AlertmanagerOutcome {
    /// The alert started a dump.
    Dump,
    /// The alert has a dump: from an earlier notification, or an open dump of the rule with the
    /// same dump filter, whose window contains the alert.
    Existed,
    /// A limit, the hold-off or a disabled rule, for example, prevented a dump. The next
    /// notification of the alert tries again.
    Suppressed,
    /// The window ends before the oldest packet in the ring.
    AgedOut,
    /// The window ends before the recording began.
    NotRecorded,
    /// The alert cannot start a dump. For example, the rule does not exist, or the labels do not
    /// fit the rule's template.
    Refused,
    /// The alert has ended, so the recorder does nothing.
    Resolved,
}

impl NotificationBody {
    pub(crate) fn fault(&self) -> Option<String> {
        let version = self.version.get(..16).unwrap_or(&self.version);
        (version != VERSION).then(|| {
            format!("notifications of Alertmanager's version {VERSION:?} are understood, and not of {version:?}")
        })
    }
}
