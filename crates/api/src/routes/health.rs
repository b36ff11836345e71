//! Health checks and metrics.

use axum::{
    Extension,
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};

use super::{AppState, CallerExtension};
use crate::{
    app::run_blocking,
    extract::{NoQuery, QueryParams},
    metrics::{CONTENT_TYPE, Process, render},
    problem::Problem,
};

/// Whether the program answers
#[utoipa::path(get, path = "/healthz", tag = "health", responses((status = 200, content_type = "text/plain", body = String)))]
pub(crate) async fn healthz(_: QueryParams<NoQuery>) -> &'static str {
    "ok\n"
}

/// Whether the recording is running: 200, or 503 after its end
#[utoipa::path(get, path = "/readyz", tag = "health", responses((status = 200, content_type = "text/plain", body = String)))]
pub(crate) async fn readyz(
    State(app): AppState,
    _: QueryParams<NoQuery>,
) -> Result<&'static str, Problem> {
    run_blocking(move || {
        // Fails after the end of the recording.
        app.handle.status()?;
        Ok("recording\n")
    })
    .await
}

/// Metrics in Prometheus' text format 0.0.4
#[utoipa::path(get, path = "/metrics", tag = "health", responses((status = 200, content_type = "text/plain", body = String)))]
pub(crate) async fn metrics(
    State(app): AppState,
    Extension(caller): CallerExtension,
    _: QueryParams<NoQuery>,
) -> Result<Response, Problem> {
    let text = run_blocking(move || {
        let mut status = app.handle.status()?;
        if caller.is_restricted() {
            // The token may not list rules. Rules without a name are summed up as `other`.
            let rules = status.hits_by_rule.iter_mut();
            rules.for_each(|it| it.rule = None);
        }
        Ok(render(&status, &Process::read(), &app.counts))
    })
    .await?;
    Ok(([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response())
}
