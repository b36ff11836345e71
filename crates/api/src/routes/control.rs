//! Operations that control the recorder.

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

/// The behavior if dumps or pins need all packets in the ring.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = WhenFullSetting)]
pub(crate) struct WhenFullSetting {
    mode: WhenFull,
}

/// The behavior if dumps or pins need all packets in the ring
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

/// Set the behavior if dumps or pins need all packets in the ring
#[utoipa::path(put, path = "/v1/when-full", tag = "control", request_body = WhenFullSetting, responses((status = 200, body = WhenFullSetting)))]
pub(crate) async fn set_when_full(
    State(app): AppState,
    Extension(caller): CallerExtension,
    _: QueryParams<NoQuery>,
    Json(setting): Json<WhenFullSetting>,
) -> Result<Json<WhenFullSetting>, Problem> {
    run_blocking(move || {
        let before = app.handle.status()?.when_full;
        app.handle.set_when_full(setting.mode.into())?;
        if before != setting.mode.into() {
            let change = caller.change(Action::SetWhenFull);
            app.handle.tell_change(change.of(setting.mode.as_str()));
        }
        Ok(Json(setting))
    })
    .await
}

/// The result of a reload.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Reloaded)]
pub(crate) struct ReloadedBody {
    /// Whether anything changed.
    changed: bool,
    /// The changes in words.
    report: String,
}

/// Read the configuration file again, as SIGHUP does: either all changes apply or none
///
/// If the file has errors, the answer is 409 with the errors, and nothing changes.
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
        match &reloaded {
            Ok((_, false)) => {}
            Ok((report, true)) => app.handle.tell_change(change.with(report)),
            Err(why) => app.handle.tell_change(change.failed(why)),
        }
        let (report, changed) = reloaded.map_err(Problem::conflict)?;
        Ok(Json(ReloadedBody { changed, report }))
    })
    .await
}

/// End the recording, as SIGINT does
///
/// Open dumps are finished. Repeating the request has no further effect.
#[utoipa::path(post, path = "/v1/stop", tag = "control", responses((status = 202, description = "The recording ends.")))]
pub(crate) async fn stop(
    State(app): AppState,
    Extension(caller): CallerExtension,
    _: QueryParams<NoQuery>,
) -> StatusCode {
    // Report the event before the recorder stops, because afterwards nobody receives events.
    app.handle.tell_change(caller.change(Action::Stop));
    // Stop before the answer is sent, because the client may have disconnected.
    app.stop.store(true, Ordering::SeqCst);
    app.handle.stop();
    StatusCode::ACCEPTED
}
