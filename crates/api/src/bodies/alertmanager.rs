//! What Prometheus' Alertmanager sends to a webhook, and what it is answered.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::request::count;

/// The version of the notification that is understood, of Alertmanager since 0.14.
const VERSION: &str = "4";

/// A notification of Alertmanager, version 4: Prometheus' documentation, "Configuration", `<webhook_config>`. Later ones may say more, which is passed by.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = AlertmanagerNotification)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NotificationBody {
    /// `4`.
    #[schema(example = "4", pattern = "^4$")]
    version: String,
    /// Who is notified, as Alertmanager's configuration calls it.
    #[serde(default)]
    pub(crate) receiver: String,
    /// The alerts of a group.
    pub(crate) alerts: Vec<NotifiedAlert>,
    /// How many were left out (`max_alerts`).
    #[serde(default, deserialize_with = "count")]
    pub(crate) truncated_alerts: Option<u64>,
}

/// An alert.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = AlertmanagerAlert)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NotifiedAlert {
    /// Whether it goes on.
    pub(crate) status: AlertStatus,
    /// What it is about.
    pub(crate) labels: BTreeMap<String, String>,
    /// When it began to fire, RFC 3339.
    #[schema(example = "2026-11-20T19:15:03.5Z")]
    pub(crate) starts_at: String,
    /// What tells its labels from others'.
    #[serde(default)]
    pub(crate) fingerprint: String,
}

/// Whether an alert goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AlertStatus {
    /// It does.
    Firing,
    /// It is over.
    Resolved,
}

/// What the URL says of a notification.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct NotificationQuery {
    /// The rule that all its alerts are for, whatever their labels say; left out, each names one by its label `retroscope_rule`.
    #[param(min_length = 1, max_length = 64)]
    pub(crate) rule: Option<String>,
}

/// What was done about a notification.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AlertmanagerAnswer)]
pub(crate) struct AnswerBody {
    /// Of each alert, in their order.
    pub(crate) alerts: Vec<AlertResultBody>,
    /// Alerts that Alertmanager left out: nobody knows what of them there would be.
    pub(crate) truncated: u64,
}

/// What was done about an alert.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = AlertmanagerDone)]
pub(crate) struct AlertResultBody {
    /// That of the alert.
    pub(crate) fingerprint: String,
    pub(crate) outcome: AlertmanagerOutcome,
    /// The dump's number: see `/v1/dumps/{number}`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dump: Option<u64>,
    /// Why there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
}

/// What an alert led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum AlertmanagerOutcome {
    /// A dump was started.
    Dump,
    /// It has one: it came before, or belongs to another's that is open.
    Existed,
    /// A limit of the rule or of the recorder let it start none. It is tried again when Alertmanager repeats it.
    Suppressed,
    /// Nothing of its window is there: the ring has moved on.
    AgedOut,
    /// Nothing of its window is there: the recording began later.
    NotRecorded,
    /// It can start none: its labels do not fit, or there is no such rule.
    Refused,
    /// It is over, and nothing is done.
    Resolved,
}

impl NotificationBody {
    /// What is wrong with it.
    pub(crate) fn fault(&self) -> Option<String> {
        let version = self.version.get(..16).unwrap_or(&self.version);
        (version != VERSION).then(|| {
            format!("notifications of Alertmanager's version {VERSION:?} are understood, and not of {version:?}")
        })
    }
}
