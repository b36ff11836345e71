//! Trigger rules.

use axum::{
    Extension,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::Response,
};
use retroscope_recorder::{Action, RecorderHandle, RuleStatus, SubDirectory};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Asking, Shared};
use crate::{
    app::{answering, waiting},
    bodies::request::RulePut,
    extract::{Json, Named, Nothing, Parameters, check_name},
    problem::Problem,
};

/// A trigger rule. `null`: as the recorder was started.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Rule)]
pub(crate) struct RuleBody {
    /// Its name: as given, or its place among the triggers of the start, from 1.
    name: String,
    /// The trigger expression, or the script's file.
    expression: String,
    /// Whether its matches are hits.
    enabled: bool,
    /// Whether it is of the start or of the configuration file.
    configured: bool,
    /// Packets that matched this expression; `null`: not counted, of a script.
    hits: Option<u64>,
    past_seconds: Option<f64>,
    future_seconds: Option<f64>,
    packets: Option<u64>,
    bytes: Option<u64>,
    dump: Option<String>,
    /// What is dumped of an alert of Alertmanager; `null`: it takes none.
    alert_dump: Option<String>,
    into: Option<String>,
    hold_off_seconds: Option<f64>,
    max_dumps: Option<u64>,
    dumps_per_minute: Option<u64>,
    bytes_per_hour: Option<u64>,
    keep_bytes: Option<u64>,
    keep_age_seconds: Option<f64>,
    asked_by: Option<String>,
    /// As whom those were let in who asked for it.
    caller: Option<String>,
}

/// All rules.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Rules)]
pub(crate) struct RulesBody {
    rules: Vec<RuleBody>,
}

/// What is to change of a rule.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = RulePatch)]
pub(crate) struct RulePatch {
    /// Whether its matches are hits.
    enabled: bool,
}

impl From<RuleStatus> for RuleBody {
    fn from(rule: RuleStatus) -> Self {
        let request = rule.request;
        Self {
            name: rule.name,
            expression: rule.expression,
            enabled: rule.is_enabled,
            configured: rule.is_configured,
            hits: rule.hits,
            past_seconds: request.past.map(|past| past.as_secs_f64()),
            future_seconds: request.future.map(|future| future.as_secs_f64()),
            packets: request.packets_max,
            bytes: request.bytes_max,
            dump: request.dump,
            alert_dump: request.alert_dump,
            hold_off_seconds: request.hold_off.map(|time| time.as_secs_f64()),
            max_dumps: request.max_dumps,
            dumps_per_minute: request.dumps_per_minute,
            bytes_per_hour: request.bytes_per_hour,
            keep_bytes: request.keep.and_then(|keep| keep.bytes),
            keep_age_seconds: request
                .keep
                .and_then(|keep| keep.age)
                .map(|age| age.as_secs_f64()),
            into: request
                .into
                .as_ref()
                .map(|into| SubDirectory::as_str(into).to_owned()),
            asked_by: request.asked_by,
            caller: request.caller,
        }
    }
}

/// The rules, by name
#[utoipa::path(get, path = "/v1/rules", tag = "rules", responses((status = 200, body = RulesBody)))]
pub(crate) async fn list(State(app): Shared, _: Parameters<Nothing>) -> Result<Response, Problem> {
    answering(move || {
        let rules = app.handle.rules().into_iter();
        let rules = rules.map(RuleBody::from).collect();
        Ok(Json(RulesBody { rules }))
    })
    .await
}

/// A rule
#[utoipa::path(
    get, path = "/v1/rules/{name}", tag = "rules",
    params(("name" = String, Path, min_length = 1, max_length = 64)),
    responses((status = 200, body = RuleBody)),
)]
pub(crate) async fn read(
    State(app): Shared,
    _: Parameters<Nothing>,
    Named(name): Named<String>,
) -> Result<Json<RuleBody>, Problem> {
    waiting(move || Ok(Json(find(&app.handle, &name)?.into()))).await
}

/// Make a rule as it is wanted: a new one, or another expression, dump, window and limits in the place of what is there
///
/// Each packet is looked at by the old rule or by the new one. Dumps that are open go on as they were asked for. With `If-None-Match: *` a rule
/// that is there stays as it is, and the request is refused (412).
#[utoipa::path(
    put, path = "/v1/rules/{name}", tag = "rules",
    params(
        ("name" = String, Path, min_length = 1, max_length = 64),
        ("If-None-Match" = Option<String>, Header, description = "`*`: change no rule that is there.", pattern = r"^\*$"),
    ),
    request_body = RulePut,
    responses(
        (status = 200, description = "It was there, and is as wanted.", body = RuleBody),
        (status = 201, description = "It is new.", body = RuleBody),
    ),
)]
pub(crate) async fn put(
    State(app): Shared,
    Extension(caller): Asking,
    _: Parameters<Nothing>,
    Named(name): Named<String>,
    headers: HeaderMap,
    Json(wanted): Json<RulePut>,
) -> Result<(StatusCode, Json<RuleBody>), Problem> {
    check_name(&name)?;
    let only_new = match headers
        .get(header::IF_NONE_MATCH)
        .map(|value| value.as_bytes())
    {
        None => false,
        Some(b"*") => true,
        Some(_) => {
            return Err(Problem::senseless(
                "`If-None-Match` is `*` or left out: rules have no entity tags",
            ));
        }
    };
    let request = wanted.request(&caller)?;
    wanted.expression()?;
    waiting(move || {
        let handle = &app.handle;
        let rule = (wanted.expression()?, &request);
        let existed = handle.put_rule(&name, rule, wanted.enabled, only_new)?;
        let change = caller.change(Action::PutRule).of(&name);
        handle.tell_change(change.with(rule.0));
        let status = if existed {
            StatusCode::OK
        } else {
            StatusCode::CREATED
        };
        Ok((status, Json(find(handle, &name)?.into())))
    })
    .await
}

/// Enable or disable a rule
#[utoipa::path(
    patch, path = "/v1/rules/{name}", tag = "rules",
    params(("name" = String, Path, min_length = 1, max_length = 64)),
    request_body = RulePatch,
    responses((status = 200, body = RuleBody)),
)]
pub(crate) async fn enable(
    State(app): Shared,
    Extension(caller): Asking,
    _: Parameters<Nothing>,
    Named(name): Named<String>,
    Json(patch): Json<RulePatch>,
) -> Result<Json<RuleBody>, Problem> {
    waiting(move || {
        find(&app.handle, &name)?;
        app.handle.enable_rule(&name, patch.enabled)?;
        let action = match patch.enabled {
            true => Action::EnableRule,
            false => Action::DisableRule,
        };
        app.handle.tell_change(caller.change(action).of(&name));
        Ok(Json(find(&app.handle, &name)?.into()))
    })
    .await
}

/// Remove a rule; its dumps go on
#[utoipa::path(
    delete, path = "/v1/rules/{name}", tag = "rules",
    params(("name" = String, Path, min_length = 1, max_length = 64)),
    responses((status = 204, description = "It is gone.")),
)]
pub(crate) async fn remove(
    State(app): Shared,
    Extension(caller): Asking,
    _: Parameters<Nothing>,
    Named(name): Named<String>,
) -> Result<StatusCode, Problem> {
    waiting(move || {
        if app.handle.remove_rule(&name)? {
            let change = caller.change(Action::RemoveRule);
            app.handle.tell_change(change.of(&name));
            Ok(StatusCode::NO_CONTENT)
        } else {
            Err(no_rule(&name))
        }
    })
    .await
}

pub(super) fn find(handle: &RecorderHandle, name: &str) -> Result<RuleStatus, Problem> {
    handle.rule(name).ok_or_else(|| no_rule(name))
}

fn no_rule(name: &str) -> Problem {
    Problem::absent(format!(
        "there is no rule {name:?}: GET /v1/rules lists them"
    ))
}
