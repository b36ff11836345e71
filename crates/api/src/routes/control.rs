//! When the ring is full; the configuration; the end.

use std::sync::{Arc, atomic::Ordering};

use axum::{Extension, extract::State, http::StatusCode};
use retroscope_recorder::Action;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{AppState, CallerExtension};
use crate::{
    app::run_blocking,
    bodies::status::WhenFull,
    extract::{Json, NoQuery, QueryParams},
    problem::Problem,
};

/// What a full ring does.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = WhenFullSetting)]
pub(crate) struct WhenFullSetting {
    mode: WhenFull,
}

/// What happens when the ring is full of what dumps and pins want
#[utoipa::path(get, path = "/v1/when-full", tag = "control", responses((status = 200, body = WhenFullSetting)))]
pub(crate) async fn when_full(
    State(app): AppState,
    _: QueryParams<NoQuery>,
) -> Result<Json<WhenFullSetting>, Problem> {
    let app = Arc::clone(&app);
    run_blocking(move || {
        let mode = app.handle.status()?.when_full.into();
        Ok(Json(WhenFullSetting { mode }))
    })
    .await
}

/// Say what happens when the ring is full of what dumps and pins want
#[utoipa::path(put, path = "/v1/when-full", tag = "control", request_body = WhenFullSetting, responses((status = 200, body = WhenFullSetting)))]
pub(crate) async fn set_when_full(
    State(app): AppState,
    Extension(caller): CallerExtension,
    _: QueryParams<NoQuery>,
    Json(setting): Json<WhenFullSetting>,
) -> Result<Json<WhenFullSetting>, Problem> {
    run_blocking(move || {
        app.handle.set_when_full(setting.mode.into())?;
        let change = caller.change(Action::SetWhenFull);
        app.handle.tell_change(change.of(setting.mode.as_str()));
        Ok(Json(setting))
    })
    .await
}

/// What a reload came to.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Reloaded)]
pub(crate) struct ReloadedBody {
    /// Whether anything is different now.
    changed: bool,
    /// What, in words.
    report: String,
}

/// Read the configuration file again, as SIGHUP does: all of it is taken over, or nothing
#[utoipa::path(post, path = "/v1/reload", tag = "control", responses((status = 200, body = ReloadedBody)))]
pub(crate) async fn reload(
    State(app): AppState,
    Extension(caller): CallerExtension,
    _: QueryParams<NoQuery>,
) -> Result<Json<ReloadedBody>, Problem> {
    run_blocking(move || {
        let none = || {
            Problem::conflict(
                "the recording was started without --config: there is nothing to read again",
            )
        };
        let reload = app.services.reload.as_ref().ok_or_else(none)?;
        let reloaded = (reload.0)();
        let change = caller.change(Action::Reload);
        app.handle.tell_change(match &reloaded {
            Ok((report, _)) => change.with(report),
            Err(why) => change.failed(why),
        });
        let (report, changed) = reloaded.map_err(Problem::conflict)?;
        Ok(Json(ReloadedBody { changed, report }))
    })
    .await
}

/// End the recording, as SIGINT does
///
/// Open dumps are finished. Asked again it is the same.
#[utoipa::path(post, path = "/v1/stop", tag = "control", responses((status = 202, description = "It ends.")))]
pub(crate) async fn stop(
    State(app): AppState,
    Extension(caller): CallerExtension,
    _: QueryParams<NoQuery>,
) -> StatusCode {
    // Before the recorder stops: afterwards nobody listens.
    app.handle.tell_change(caller.change(Action::Stop));
    // Before the answer, which nobody may be there to hear.
    app.stop.store(true, Ordering::SeqCst);
    app.handle.stop();
    StatusCode::ACCEPTED
}
