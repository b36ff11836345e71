//! The status of the recorder, and findings about the machine.
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

use super::{AppState, CallerExtension};
use crate::{
    app::run_blocking,
    bodies::status::{InterfaceBody, InterfacesBody, StatusBody},
    doctor::DoctorReport,
    extract::{Json, NoQuery, QueryParams, list},
    problem::Problem,
};

/// The status of the recorder
///
/// Tokens with a filter or a snap length do not get `rule_costs` and `pins`, because they may not
/// list rules and pins.
#[utoipa::path(get, path = "/v1/status", tag = "status", responses((status = 200, body = StatusBody)))]
pub(crate) async fn status(
    State(app): AppState,
    Extension(caller): CallerExtension,
    _: QueryParams<NoQuery>,
) -> Result<Response, Problem> {
    run_blocking(move || {
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
    State(app): AppState,
    _: QueryParams<NoQuery>,
) -> Result<Json<InterfacesBody>, Problem> {
    run_blocking(move || {
        let interfaces = app.handle.interfaces()?.into_iter();
        let interfaces = interfaces.map(|entry| {
            let speed_mbit = app.handle.link_speed_mbit(&entry.name);
            InterfaceBody::new(entry, speed_mbit)
        });
        let interfaces = interfaces.collect();
        Ok(Json(InterfacesBody { interfaces }))
    })
    .await
}

/// Selects interfaces.
#[derive(Debug, Clone, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct DoctorQuery {
    /// Names, separated by commas. If left out: all interfaces of the machine.
    interfaces: Option<String>,
}

/// Findings of `retroscope doctor`: settings that lose or change packets
///
/// The permission to capture is not checked, because the recorder has dropped it.
#[utoipa::path(get, path = "/v1/doctor", tag = "status", params(DoctorQuery), responses((status = 200, body = DoctorReport)))]
pub(crate) async fn doctor(
    State(app): AppState,
    QueryParams(wanted): QueryParams<DoctorQuery>,
) -> Result<Json<DoctorReport>, Problem> {
    run_blocking(move || {
        let names = list(wanted.interfaces.as_deref());
        let report = (app.services.doctor.0)(&names);
        report.map(Json).map_err(Problem::invalid)
    })
    .await
}
