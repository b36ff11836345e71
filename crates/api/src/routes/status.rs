//! What the recorder is doing, and on what machine.
#![expect(
    unused_qualifications,
    reason = "the macro of utoipa qualifies the names of parameters"
)]

use axum::{
    Extension,
    extract::State,
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use utoipa::IntoParams;

use super::{Asking, Shared};
use crate::{
    app::waiting,
    bodies::status::{InterfacesBody, StatusBody},
    doctor::Report,
    extract::{Json, Nothing, Parameters, list},
    problem::Problem,
};

/// What the recorder is doing
///
/// Without `rule_costs` and `pins` for who may not ask for rules and pins: tokens with a filter or a snap length.
#[utoipa::path(get, path = "/v1/status", tag = "status", responses((status = 200, body = StatusBody)))]
pub(crate) async fn status(
    State(app): Shared,
    Extension(caller): Asking,
    _: Parameters<Nothing>,
) -> Result<Response, Problem> {
    waiting(move || {
        let mut status = app.handle.status()?;
        if caller.is_restricted() {
            status.hits_by_rule.clear();
            status.pins.clear();
        }
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

/// Which interfaces.
#[derive(Debug, Clone, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct DoctorQuery {
    /// Names, with commas between; left out: all of the machine.
    interfaces: Option<String>,
}

/// What on the machine would lose packets, or change them before they are recorded: what `retroscope doctor` says
///
/// But for the permission to capture, which the recorder gave up once it had it.
#[utoipa::path(get, path = "/v1/doctor", tag = "status", params(DoctorQuery), responses((status = 200, body = Report)))]
pub(crate) async fn doctor(
    State(app): Shared,
    Parameters(wanted): Parameters<DoctorQuery>,
) -> Result<Json<Report>, Problem> {
    waiting(move || {
        let names = list(wanted.interfaces.as_deref());
        let report = (app.services.doctor.0)(&names);
        report.map(Json).map_err(Problem::invalid)
    })
    .await
}
