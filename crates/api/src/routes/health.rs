//! Whether it lives, whether it records; metrics.

use axum::{
    Extension,
    extract::State,
    http::HeaderMap,
    http::header,
    response::{IntoResponse, Response},
};

use super::{Asking, Shared};
use crate::{
    app::waiting,
    extract::{Nothing, Parameters},
    metrics::{Format, Process, render},
    problem::Problem,
};

/// Whether the program answers
#[utoipa::path(get, path = "/healthz", tag = "health", responses((status = 200, content_type = "text/plain", body = String)))]
pub(crate) async fn healthz(_: Parameters<Nothing>) -> &'static str {
    "ok\n"
}

/// Whether it records
#[utoipa::path(get, path = "/readyz", tag = "health", responses((status = 200, content_type = "text/plain", body = String)))]
pub(crate) async fn readyz(
    State(app): Shared,
    _: Parameters<Nothing>,
) -> Result<&'static str, Problem> {
    waiting(move || {
        // It is stopped before it ends.
        app.handle.status()?;
        Ok("recording\n")
    })
    .await
}

/// Metrics, as Prometheus reads them: OpenMetrics or text/plain 0.0.4, by `Accept`
#[utoipa::path(get, path = "/metrics", tag = "health", responses((status = 200, content_type = "text/plain", body = String)))]
pub(crate) async fn metrics(
    State(app): Shared,
    Extension(caller): Asking,
    _: Parameters<Nothing>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let accept = headers.get_all(header::ACCEPT).into_iter();
    let format = Format::negotiate(accept.filter_map(|line| line.to_str().ok()));
    let text = waiting(move || {
        let mut status = app.handle.status()?;
        if caller.is_restricted() {
            // Rules are named to who may ask for them: all are `other` here.
            let rules = status.hits_by_rule.iter_mut();
            rules.for_each(|it| it.rule = None);
        }
        Ok(render(&status, &Process::read(), format))
    })
    .await?;
    Ok(([(header::CONTENT_TYPE, format.content_type())], text).into_response())
}
