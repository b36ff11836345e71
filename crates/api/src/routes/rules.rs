//! Trigger rules.

use std::sync::Arc;

use axum::{
    Extension,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use retroscope_recorder::{Action, Cancel, CommandError, RecorderHandle, RuleStatus};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{AppState, CallerExtension};
use crate::{
    app::{App, answer_blocking, run_blocking},
    bodies::request::RuleBody,
    caller::Caller,
    extract::{Json, NoQuery, PathParam, Precondition, QueryParams, check_name},
    past_scan::run_cancellable,
    problem::Problem,
};

/// All rules.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Rules)]
pub(crate) struct RulesBody {
    rules: Vec<RuleBody>,
}

/// A change of a rule.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = RulePatch)]
pub(crate) struct RulePatch {
    /// Whether packets that match are hits.
    enabled: bool,
    /// Whether the next dump disables the rule. If left out, the rule keeps its setting.
    single: Option<bool>,
}

/// The rules, by name
#[utoipa::path(get, path = "/v1/rules", tag = "rules", responses((status = 200, body = RulesBody)))]
pub(crate) async fn list(
    State(app): AppState,
    _: QueryParams<NoQuery>,
) -> Result<Response, Problem> {
    answer_blocking(move || {
        let rules = app.handle.rules().into_iter();
        let rules = rules.map(RuleBody::from).collect();
        Ok(Json(RulesBody { rules }))
    })
    .await
}

/// A rule
#[utoipa::path(
    get, path = "/v1/rules/{name}", tag = "rules",
    params(("name" = String, Path, description = "The rule's name.", min_length = 1, max_length = 64)),
    responses((status = 200, body = RuleBody, headers(("ETag" = String, description = "Changes with the rule's definition.")))),
)]
pub(crate) async fn read(
    State(app): AppState,
    _: QueryParams<NoQuery>,
    PathParam(name): PathParam<String>,
) -> Result<Response, Problem> {
    run_blocking(move || Ok(tagged(StatusCode::OK, find(&app.handle, &name)?))).await
}

/// Creates or replaces a rule
///
/// Open dumps keep their old options. With `scan_past` the new rule also acts on packets in the
/// ring; `scan` of the answer has the result. A request for the rule as it is succeeds and changes
/// nothing, so the answer of GET can be sent back. Otherwise the request fails with 412 if the rule
/// has changed or does not exist (`If-Match`), or exists (`If-None-Match: *`).
#[utoipa::path(
    put, path = "/v1/rules/{name}", tag = "rules",
    params(
        ("name" = String, Path, description = "The rule's name.", min_length = 1, max_length = 64),
        ("If-Match" = Option<String>, Header, description = "The `ETag` of the rule, or `*`: the rule exists.", pattern = "^(\\*|\"[0-9a-f]{16}\")$"),
        ("If-None-Match" = Option<String>, Header, description = "`*`: change no existing rule.", pattern = r"^\*$"),
    ),
    request_body = RuleBody,
    responses(
        (status = 200, description = "The rule existed, and is as requested.", body = RuleBody, headers(("ETag" = String, description = "Changes with the rule's definition."))),
        (status = 201, description = "The rule is new.", body = RuleBody, headers(("ETag" = String, description = "Changes with the rule's definition."))),
    ),
)]
pub(crate) async fn put(
    State(app): AppState,
    Extension(caller): CallerExtension,
    _: QueryParams<NoQuery>,
    PathParam(name): PathParam<String>,
    headers: HeaderMap,
    Json(wanted): Json<RuleBody>,
) -> Result<Response, Problem> {
    check_name(&name)?;
    let condition = Precondition::read(&headers)?;
    let request = wanted.request(&caller)?;
    wanted.filter()?;
    let past = wanted.past_to_scan()?;
    let limit = Arc::clone(&app.query_limit);
    let work = move |app: &App, caller: &Caller, cancel: &Cancel| {
        let handle = &app.handle;
        let before = handle.rule(&name);
        let is_same = |before: &RuleStatus| {
            RuleBody::from(before.clone()).definition() == wanted.clone().definition()
        };
        // An unchanged rule keeps its request, with the name of the client.
        let request = match before.as_ref().filter(|before| is_same(before)) {
            Some(before) => before.request.clone(),
            None => request,
        };
        let rule = (wanted.filter()?, &request);
        let condition = condition.of_rule();
        let (made, existed) = match past {
            None => handle.put_rule(&name, rule, wanted.enabled, condition)?,
            Some(past) => handle.put_rule_and_scan(&name, rule, condition, (past, cancel))?,
        };
        if before.is_none_or(|before| before.version() != made.version()) {
            let change = caller.change(Action::PutRule).of(&name);
            handle.tell_change(change.with(rule.0));
        }
        let status = if existed {
            StatusCode::OK
        } else {
            StatusCode::CREATED
        };
        Ok(tagged(status, made))
    };
    match past {
        None => run_blocking(move || work(&app, &caller, &Cancel::default())).await,
        Some(_) => {
            let work = |app: &_, caller: &_, cancel: &_, _| work(app, caller, cancel);
            run_cancellable(app, caller, &limit, work).await
        }
    }
}

/// Enable or disable a rule, also one that its only dump has disabled
#[utoipa::path(
    patch, path = "/v1/rules/{name}", tag = "rules",
    params(
        ("name" = String, Path, description = "The rule's name.", min_length = 1, max_length = 64),
        ("If-Match" = Option<String>, Header, description = "The `ETag` of the rule, or `*`: the rule exists.", pattern = "^(\\*|\"[0-9a-f]{16}\")$"),
    ),
    request_body = RulePatch,
    responses((status = 200, body = RuleBody, headers(("ETag" = String, description = "Changes with the rule's definition.")))),
)]
pub(crate) async fn enable(
    State(app): AppState,
    Extension(caller): CallerExtension,
    _: QueryParams<NoQuery>,
    PathParam(name): PathParam<String>,
    headers: HeaderMap,
    Json(patch): Json<RulePatch>,
) -> Result<Response, Problem> {
    let condition = Precondition::read_existing(&headers)?;
    run_blocking(move || {
        let before = find(&app.handle, &name)?;
        let condition = condition.of_rule();
        let change = (patch.enabled, patch.single);
        let rule = app.handle.enable_rule(&name, change, condition);
        let is_changed = match &rule {
            Ok(rule) => before.version() != rule.version(),
            // The rule usually changes later. A repeated request then reports no change.
            Err(error) => matches!(error, CommandError::Late),
        };
        if is_changed {
            let action = match patch.enabled {
                true => Action::EnableRule,
                false => Action::DisableRule,
            };
            app.handle.tell_change(caller.change(action).of(&name));
        }
        Ok(tagged(StatusCode::OK, rule?))
    })
    .await
}

/// Remove a rule; its open dumps continue
#[utoipa::path(
    delete, path = "/v1/rules/{name}", tag = "rules",
    params(
        ("name" = String, Path, description = "The rule's name.", min_length = 1, max_length = 64),
        ("If-Match" = Option<String>, Header, description = "The `ETag` of the rule, or `*`: the rule exists.", pattern = "^(\\*|\"[0-9a-f]{16}\")$"),
    ),
    responses((status = 204, description = "The object was removed.")),
)]
pub(crate) async fn remove(
    State(app): AppState,
    Extension(caller): CallerExtension,
    _: QueryParams<NoQuery>,
    PathParam(name): PathParam<String>,
    headers: HeaderMap,
) -> Result<StatusCode, Problem> {
    let condition = Precondition::read_existing(&headers)?;
    run_blocking(move || {
        if app.handle.remove_rule(&name, condition.of_rule())? {
            let change = caller.change(Action::RemoveRule);
            app.handle.tell_change(change.of(&name));
            Ok(StatusCode::NO_CONTENT)
        } else {
            Err(no_rule(&name))
        }
    })
    .await
}

fn tagged(status: StatusCode, rule: RuleStatus) -> Response {
    let tag = [(header::ETAG, format!("\"{}\"", rule.version()))];
    (status, tag, Json(RuleBody::from(rule))).into_response()
}

pub(super) fn find(handle: &RecorderHandle, name: &str) -> Result<RuleStatus, Problem> {
    handle.rule(name).ok_or_else(|| no_rule(name))
}

fn no_rule(name: &str) -> Problem {
    Problem::not_found(format!(
        "there is no rule {name:?}: GET /v1/rules lists them"
    ))
}
