//! The webhook of Prometheus' Alertmanager: each firing alert can start a dump of the rule that the
//! alert or the URL names.
//!
//! Alertmanager repeats a notification after an answer of 5xx and drops it after 4xx
//! (`Retrier.Check` in its `notify/util.go`). So the answer is 503 if the recorder gave no result
//! for an alert, and 422 if all firing alerts are refused. Alertmanager repeats alerts that are
//! still firing (`repeat_interval`), and several instances may send the same alert. A key of the
//! client's account, the rule, and the fingerprint and start of the alert finds the earlier dump of
//! the same alert.

use axum::{Extension, extract::State};
use retroscope_recorder::{
    Clock, CommandError, Empty, LabelFilled, LabelTemplate, ManualTrigger, RecorderHandle,
    RuleStatus, SystemClock, TriggerRequest, parse_time,
};
use sha2::{Digest, Sha256};

use super::{AppState, CallerExtension, rules::find};
use crate::{
    app::run_blocking,
    bodies::alertmanager::{
        AlertResultBody, AlertStatus, AlertmanagerOutcome, AnswerBody, NotificationBody,
        NotificationQuery, NotifiedAlert,
    },
    caller::Caller,
    extract::{Json, LargeJson, QueryParams},
    problem::Problem,
};

/// The label that names the rule.
const RULE_LABEL: &str = "retroscope_rule";
/// Maximum number of alerts in a notification.
const ALERTS_MAX: usize = 1024;
/// Number of bytes after which [`cut`] truncates a text.
const SHOWN_BYTES: usize = 128;

/// The reason why an alert started no dump.
enum AlertFailure {
    /// For example, the rule does not exist.
    Refused(String),
    /// A limit, a hold-off or a disabled rule prevented the dump. A repeated alert may start a dump
    /// later.
    Suppressed(String),
    /// The alert's packets are not in the ring.
    Gone(Empty),
    /// The recorder gave no result, for example because it is busy. Alertmanager must repeat the
    /// notification.
    Unknown(CommandError),
}

impl From<CommandError> for AlertFailure {
    fn from(error: CommandError) -> Self {
        match error {
            CommandError::Filter(error) => Self::Refused(error.render()),
            CommandError::Refused(why) => Self::Refused(why),
            CommandError::Suppressed(why) => Self::Suppressed(why),
            CommandError::Gone(gone) => Self::Gone(gone),
            error => Self::Unknown(error),
        }
    }
}

/// Start a dump for each firing alert: the webhook of Prometheus' Alertmanager
///
/// The rule's `alert_dump` is the template of the dump filter, and the alert's labels fill it in.
/// The window surrounds `startsAt`. An alert with the same fingerprint and `startsAt` as an earlier
/// alert gets the dump of the earlier alert. An alert gets no dump if its whole window is before
/// the recording, for example after a restart, or if the packets of the window were overwritten. If
/// all firing alerts are refused, the notification is refused. The problem `limit` has the status
/// 503 here, because Alertmanager repeats a notification only after a 5xx.
#[utoipa::path(
    post, path = "/v1/alertmanager", tag = "dumps",
    params(NotificationQuery),
    request_body = NotificationBody,
    responses((status = 200, body = AnswerBody)),
)]
pub(crate) async fn notify(
    State(app): AppState,
    Extension(caller): CallerExtension,
    QueryParams(asked): QueryParams<NotificationQuery>,
    LargeJson(notification): LargeJson<NotificationBody>,
) -> Result<Json<AnswerBody>, Problem> {
    if let Some(fault) = notification.fault() {
        return Err(Problem::invalid(fault));
    }
    if notification.alerts.len() > ALERTS_MAX {
        let why = format!(
            "a notification has {ALERTS_MAX} alerts at most: set `max_alerts` of the receiver"
        );
        return Err(Problem::invalid(why));
    }
    let permit = app
        .query_limit
        .take(&caller)
        .map_err(Problem::for_alertmanager)?;
    run_blocking(move || {
        // The permit limits the threads that one client's notifications occupy: many alerts take
        // long.
        let _permit = permit;
        if let Some(name) = &asked.rule {
            find(&app.handle, name)?;
        }
        let mut done = Vec::with_capacity(notification.alerts.len());
        for alert in &notification.alerts {
            done.push(act(&app.handle, &caller, asked.rule.as_deref(), alert)?);
        }
        tell_gone(&app.handle, &notification.receiver, &done);
        tell_refused(&app.handle, &notification.receiver, &done)?;
        Ok(Json(AnswerBody {
            alerts: done,
            truncated: notification.truncated_alerts.unwrap_or_default(),
        }))
    })
    .await
}

/// Reports refused alerts as an event, because nobody reads the answer to a notification. Error
/// 422: all firing alerts are refused.
fn tell_refused(
    handle: &RecorderHandle,
    receiver: &str,
    done: &[AlertResultBody],
) -> Result<(), Problem> {
    let refused = done
        .iter()
        .filter(|it| it.outcome == AlertmanagerOutcome::Refused);
    let Some(why) = refused.clone().find_map(|it| it.reason.as_deref()) else {
        return Ok(());
    };
    let (count, of) = (refused.count(), firing(done));
    let receiver = cut(receiver);
    let text = format!(
        "{count} of {of} alerts of Alertmanager's receiver {receiver:?} were refused, the first: {why}"
    );
    handle.tell_notice(text.clone());
    if count == of {
        return Err(Problem::invalid(text));
    }
    Ok(())
}

/// Reports alerts whose packets are not in the ring as an event. The notification does not fail: an
/// alert that is still firing may have begun before a restart of the recorder.
fn tell_gone(handle: &RecorderHandle, receiver: &str, done: &[AlertResultBody]) {
    let is_gone = |it: &&AlertResultBody| {
        matches!(
            it.outcome,
            AlertmanagerOutcome::AgedOut | AlertmanagerOutcome::NotRecorded
        )
    };
    let gone = done.iter().filter(is_gone);
    let Some(why) = gone.clone().find_map(|it| it.reason.as_deref()) else {
        return;
    };
    let (count, of, receiver) = (gone.count(), firing(done), cut(receiver));
    handle.tell_notice(format!(
        "{count} of {of} alerts of Alertmanager's receiver {receiver:?} have no packets here, the first: {why}"
    ));
}

fn firing(done: &[AlertResultBody]) -> usize {
    let firing = done
        .iter()
        .filter(|it| it.outcome != AlertmanagerOutcome::Resolved);
    firing.count()
}

fn act(
    handle: &RecorderHandle,
    caller: &Caller,
    rule: Option<&str>,
    alert: &NotifiedAlert,
) -> Result<AlertResultBody, Problem> {
    let done = |outcome, dump, reason| AlertResultBody {
        fingerprint: cut(&alert.fingerprint).to_owned(),
        outcome,
        dump,
        reason,
    };
    if alert.status == AlertStatus::Resolved {
        return Ok(done(AlertmanagerOutcome::Resolved, None, None));
    }
    let triggered = by_hand(handle, caller, rule, alert)
        .map_err(AlertFailure::Refused)
        .and_then(|by_hand| Ok(handle.trigger_by_hand(by_hand)?));
    Ok(match triggered {
        Ok(triggered) if triggered.existed => {
            done(AlertmanagerOutcome::Existed, Some(triggered.dump), None)
        }
        Ok(triggered) => done(AlertmanagerOutcome::Dump, Some(triggered.dump), None),
        Err(AlertFailure::Suppressed(why)) => {
            done(AlertmanagerOutcome::Suppressed, None, Some(why))
        }
        Err(AlertFailure::Gone(gone)) => {
            let outcome = match gone {
                Empty::AgedOut { .. } => AlertmanagerOutcome::AgedOut,
                // For a trigger, the only other variant of `Empty` is `NotRecorded`.
                _ => AlertmanagerOutcome::NotRecorded,
            };
            done(outcome, None, Some(gone.to_string()))
        }
        Err(AlertFailure::Refused(why)) => done(AlertmanagerOutcome::Refused, None, Some(why)),
        Err(AlertFailure::Unknown(error)) => return Err(error.into()),
    })
}

/// The manual trigger for an alert. Error: why the alert cannot start a dump.
fn by_hand(
    handle: &RecorderHandle,
    caller: &Caller,
    rule: Option<&str>,
    alert: &NotifiedAlert,
) -> Result<ManualTrigger, String> {
    let label = |name: &str| alert.labels.get(name).map(String::as_str);
    let name = rule
        .or_else(|| label(RULE_LABEL))
        .ok_or_else(|| format!("neither `?rule=NAME` nor a label `{RULE_LABEL}` names a rule"))?;
    let known = handle.rule(name);
    let RuleStatus { name, request, .. } =
        known.ok_or_else(|| format!("there is no rule {:?}", cut(name)))?;
    let text = request.alert_dump.as_deref();
    let text =
        text.ok_or_else(|| format!("rule {name:?} is not for alerts: it has no `alert_dump`"))?;
    let LabelFilled {
        expression,
        interface,
    } = LabelTemplate::new(text)?.fill(label)?;
    let interface = interface.map(|wanted| {
        let all = handle.interfaces().unwrap_or_default();
        let at = all.iter().position(|interface| interface.name == wanted);
        let id = at.and_then(|at| u16::try_from(at).ok());
        id.ok_or_else(|| format!("no interface {wanted:?} is recorded"))
    });
    let starts_ns = parse_time(&alert.starts_at)?;
    if starts_ns <= 0 {
        return Err(format!(
            "`startsAt` is {:?}: it never began",
            alert.starts_at
        ));
    }
    // Label values were parsed and formatted again, or replaced by `$iface`, and the expression
    // compiles alone. So the expression cannot close the added parentheses.
    let expression = match (&caller.filter, expression.trim()) {
        (None, _) => expression,
        (Some(own), "") => own.to_string(),
        (Some(own), _) => format!("({own}) and ({expression})"),
    };
    let alert_name = cut(label("alertname").unwrap_or_default());
    Ok(ManualTrigger {
        key: Some(key(caller, &name, alert, starts_ns)),
        // Alertmanager's clock may be ahead of this machine's clock.
        at_ns: Some(starts_ns.min(SystemClock.now().wall_ns)),
        interface: interface.transpose()?,
        request: TriggerRequest {
            dump: Some(expression),
            caller: Some(caller.account.to_string()),
            asked_by: request
                .asked_by
                .clone()
                .or(Some(caller.account.to_string())),
            reason: Some(format!(
                "alert {alert_name:?} of Alertmanager, {:?}, since {}",
                cut(&alert.fingerprint),
                cut(&alert.starts_at),
            )),
            ..request
        },
        rule: Some(name),
        ..ManualTrigger::default()
    })
}

/// The key of an alert. The labels replace a missing fingerprint.
fn key(caller: &Caller, rule: &str, alert: &NotifiedAlert, starts_ns: i64) -> String {
    let labels = Some(&alert.labels).filter(|_| alert.fingerprint.is_empty());
    let meaning = (&caller.account, rule, &alert.fingerprint, labels, starts_ns);
    let digest = Sha256::digest(format!("{meaning:?}"));
    digest[..16]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// At most the first [`SHOWN_BYTES`] bytes of a text from a notification.
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(SHOWN_BYTES)]
}
