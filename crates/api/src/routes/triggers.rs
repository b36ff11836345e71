//! Manual triggers.

use std::time::{Duration, Instant};

use axum::{
    Extension,
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use retroscope_recorder::{CommandError, RecorderHandle, rfc3339};
use serde::Serialize;
use utoipa::ToSchema;

use super::{AppState, CallerExtension};
use crate::{
    app::run_blocking,
    bodies::request::{TriggerBody, restrict_to_caller},
    extract::{Json, NoQuery, QueryParams, check_name},
    problem::Problem,
};

/// Maximum time for which the answer waits for the dump's file. On a slow disk the dumper may need
/// longer.
const FILE_WAIT: Duration = Duration::from_secs(1);
const FILE_LOOK: Duration = Duration::from_millis(2);

/// The result of a trigger.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Triggered)]
pub(crate) struct TriggeredBody {
    /// The dump's number: see `/v1/dumps/{number}`.
    dump: u64,
    /// Whether the dump existed before: it is open, or an earlier request with the same key started
    /// it.
    existed: bool,
    /// The end of the window of a new dump, RFC 3339. `null`: the dump existed before.
    window_end: Option<String>,
}

/// Start a dump
///
/// The recorder answers after it has opened the dump. A client that does not know whether its
/// request arrived can repeat it with the same `Idempotency-Key`. The last 256 keys are remembered.
/// A key of another trigger is refused.
#[utoipa::path(
    post, path = "/v1/triggers", tag = "dumps",
    params(("Idempotency-Key" = Option<String>, Header, description = "A word that names this trigger.", min_length = 1, max_length = 64, pattern = "^[!-~]+$")),
    request_body = TriggerBody,
    responses(
        (status = 200, description = "The dump existed before.", body = TriggeredBody),
        (status = 201, description = "The dump is new.", body = TriggeredBody),
    ),
)]
pub(crate) async fn trigger(
    State(app): AppState,
    Extension(caller): CallerExtension,
    _: QueryParams<NoQuery>,
    headers: HeaderMap,
    Json(wanted): Json<TriggerBody>,
) -> Result<Response, Problem> {
    let mut keys = headers.get_all("idempotency-key").iter();
    let (key, more) = (keys.next(), keys.next());
    let key = key.map(|key| {
        let is_word = |text: &&str| text.bytes().all(|byte| byte.is_ascii_graphic());
        let text = key.to_str().ok().filter(is_word).filter(|_| more.is_none());
        text.ok_or_else(|| Problem::malformed("`Idempotency-Key` is one word of printable ASCII"))
    });
    let key = key.transpose()?.map(str::to_owned);
    if let Some(key) = &key {
        check_name(key)?;
    }
    // With the account, a client that repeats the key of another account is refused, and does not
    // learn the dump of that key.
    let meaning = format!("{} {wanted:?}", caller.account);
    let mut wanted = wanted.read(&caller, key.clone())?;
    let handle = app.handle.clone();
    let permit = app.trigger_limit.take(&caller)?;
    let triggered = run_blocking(move || {
        let _permit = permit;
        let request = &mut wanted.request;
        request.dump = restrict_to_caller(&app.handle, &caller, request.dump.take())?;
        let claim = |key: &String| app.keys.claim(key, &meaning);
        let is_new = key.as_ref().map(claim).transpose()? == Some(true);
        let triggered = app.handle.trigger_by_hand(wanted);
        // `Late`: the recorder did not answer in time, but still handles the trigger with this key.
        let is_refused = triggered
            .as_ref()
            .is_err_and(|error| !matches!(error, CommandError::Late));
        if let Some(key) = key.filter(|_| is_new && is_refused) {
            app.keys.release(&key);
        }
        Ok(triggered?)
    });
    let triggered = triggered.await?;
    let (dump, existed) = (triggered.dump, triggered.existed);
    let status = if existed {
        StatusCode::OK
    } else {
        wait_until_there(&handle, dump).await;
        StatusCode::CREATED
    };
    let location = HeaderValue::try_from(format!("/v1/dumps/{dump}"));
    let location = location.map_err(|error| Problem::bug(error.to_string()))?;
    let body = Json(TriggeredBody {
        dump,
        existed,
        window_end: triggered.window_end_ns.map(rfc3339),
    });
    Ok((status, [(header::LOCATION, location)], body).into_response())
}

/// Waits until the dumper has created the dump's file, so that the target of `Location` usually
/// exists when the client gets the answer.
async fn wait_until_there(handle: &RecorderHandle, dump: u64) {
    let begin = Instant::now();
    while begin.elapsed() < FILE_WAIT && matches!(handle.dump_id(dump), Ok(None)) {
        tokio::time::sleep(FILE_LOOK).await;
    }
}
