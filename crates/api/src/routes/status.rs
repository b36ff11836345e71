//! What the recorder is doing.

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};

use super::Shared;
use crate::{
    app::waiting,
    bodies::status::{InterfacesBody, StatusBody},
    extract::{Json, Nothing, Parameters},
    problem::Problem,
};

/// What the recorder is doing
#[utoipa::path(get, path = "/v1/status", tag = "status", responses((status = 200, body = StatusBody)))]
pub(crate) async fn status(
    State(app): Shared,
    _: Parameters<Nothing>,
) -> Result<Response, Problem> {
    waiting(move || {
        let status = app.handle.status()?;
        Ok(Json(StatusBody::from(&status)).into_response())
    })
    .await
}

/// The interfaces of the recording
#[utoipa::path(get, path = "/v1/interfaces", tag = "status", responses((status = 200, body = InterfacesBody)))]
pub(crate) async fn interfaces(
    State(app): Shared,
    _: Parameters<Nothing>,
) -> Result<Json<InterfacesBody>, Problem> {
    waiting(move || {
        let interfaces = app.handle.interfaces()?.into_iter();
        let interfaces = interfaces.map(Into::into).collect();
        Ok(Json(InterfacesBody { interfaces }))
    })
    .await
}
