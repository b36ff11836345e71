//! Triggers by hand.

use std::time::{Duration, Instant};

use axum::{
    Extension,
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use retroscope_recorder::{CommandError, RecorderHandle};
use serde::Serialize;
use utoipa::ToSchema;

use super::{AppState, CallerExtension};
use crate::{
    app::run_blocking,
    bodies::request::{TriggerBody, restrict_to_caller},
    extract::{Json, NoQuery, QueryParams, check_name},
    problem::Problem,
};

/// How long an answer waits for the dumper, which is behind where the disk is slow, …
const FILE_WAIT: Duration = Duration::from_secs(1);
/// … and how often it looks.
const FILE_LOOK: Duration = Duration::from_millis(2);

/// What a trigger led to.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[schema(as = Triggered)]
pub(crate) struct TriggeredBody {
    /// The dump's number: see `/v1/dumps/{number}`.
    dump: u64,
    /// It was there before: open, or started by the same key.
    existed: bool,
}

/// Start a dump, which is open when this is answered
///
/// Who may not know whether a request arrived sends it again with the same `Idempotency-Key`: the last 256 keys are remembered, and a key that started
/// a dump before stands for that dump. For another trigger it is refused.
#[utoipa::path(
    post, path = "/v1/triggers", tag = "dumps",
    params(("Idempotency-Key" = Option<String>, Header, min_length = 1, max_length = 64, pattern = "^[!-~]+$")),
    request_body = TriggerBody,
    responses(
        (status = 200, description = "The dump was there.", body = TriggeredBody),
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
    // A caller may not have what another's key stands for.
    let meaning = format!("{} {wanted:?}", caller.account);
    let mut wanted = wanted.read(&caller, key.clone())?;
    let handle = app.handle.clone();
    let place = app.triggers.take(&caller)?;
    let triggered = run_blocking(move || {
        let _place = place;
        let request = &mut wanted.request;
        request.dump = restrict_to_caller(&app.handle, &caller, request.dump.take())?;
        let claim = |key: &String| app.keys.claim(key, &meaning);
        let is_new = key.as_ref().map(claim).transpose()? == Some(true);
        let triggered = app.handle.trigger_by_hand(wanted);
        // One that is late is still carried out, under this key.
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
    let place = HeaderValue::try_from(format!("/v1/dumps/{dump}"));
    let place = place.map_err(|error| Problem::bug(error.to_string()))?;
    let body = Json(TriggeredBody { dump, existed });
    Ok((status, [(header::LOCATION, place)], body).into_response())
}

/// The dumper opens its file a moment after the analyzer has opened the dump: `Location` is to be there when the answer is.
async fn wait_until_there(handle: &RecorderHandle, dump: u64) {
    let begin = Instant::now();
    while begin.elapsed() < FILE_WAIT && matches!(handle.dump_id(dump), Ok(None)) {
        tokio::time::sleep(FILE_LOOK).await;
    }
}
