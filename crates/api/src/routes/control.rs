//! When the ring is full; the configuration; the end.

use std::sync::{Arc, atomic::Ordering};

use axum::{extract::State, http::StatusCode};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Shared;
use crate::{
    app::waiting,
    bodies::status::WhenFull,
    extract::{Json, Nothing, Parameters},
    problem::Problem,
};

/// What a full ring does.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = WhenFullSetting)]
pub(crate) struct Setting {
    mode: WhenFull,
}

/// What happens when the ring is full of what dumps and pins want
#[utoipa::path(get, path = "/v1/when-full", tag = "control", responses((status = 200, body = Setting)))]
pub(crate) async fn when_full(
    State(app): Shared,
    _: Parameters<Nothing>,
) -> Result<Json<Setting>, Problem> {
    let app = Arc::clone(&app);
    waiting(move || {
        let mode = app.handle.status()?.when_full.into();
        Ok(Json(Setting { mode }))
    })
    .await
}

/// Say what happens when the ring is full of what dumps and pins want
#[utoipa::path(put, path = "/v1/when-full", tag = "control", request_body = Setting, responses((status = 200, body = Setting)))]
pub(crate) async fn set_when_full(
    State(app): Shared,
    _: Parameters<Nothing>,
    Json(setting): Json<Setting>,
) -> Result<Json<Setting>, Problem> {
    waiting(move || {
        app.handle.set_when_full(setting.mode.into())?;
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
    State(app): Shared,
    _: Parameters<Nothing>,
) -> Result<Json<ReloadedBody>, Problem> {
    waiting(move || {
        let none = || {
            Problem::conflict(
                "the recording was started without --config: there is nothing to read again",
            )
        };
        let reload = app.services.reload.as_ref().ok_or_else(none)?;
        let (report, changed) = (reload.0)().map_err(Problem::conflict)?;
        Ok(Json(ReloadedBody { changed, report }))
    })
    .await
}

/// End the recording, as SIGINT does
///
/// Open dumps are finished. Asked again it is the same.
#[utoipa::path(post, path = "/v1/stop", tag = "control", responses((status = 202, description = "It ends.")))]
pub(crate) async fn stop(State(app): Shared, _: Parameters<Nothing>) -> StatusCode {
    // Before the answer, which nobody may be there to hear.
    app.stop.store(true, Ordering::SeqCst);
    app.handle.stop();
    StatusCode::ACCEPTED
}
