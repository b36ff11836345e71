//! Checks of filters while a user types.
#![expect(
    unused_qualifications,
    reason = "the macro of utoipa qualifies the names of parameters"
)]

use axum::{Extension, extract::State};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{AppState, CallerExtension};
use crate::{
    app::run_blocking,
    bodies::request::check_names,
    extract::{Json, QueryParams},
    problem::{Problem, ProblemBody},
};

/// The filter to check.
#[derive(Debug, Clone, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct FilterParameters {
    /// A pcap-filter(7) expression.
    #[param(example = "udp port 53")]
    filter: String,
}

/// The result of a check.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = FilterCheck)]
pub(crate) struct FilterCheckBody {
    /// Why a query with this filter is refused; `null`: the filter is valid.
    problem: Option<ProblemBody>,
}

/// Checks a filter without reading packets
///
/// An invalid filter gets status 200 too, because a filter is often invalid while a user types.
#[utoipa::path(
    get, path = "/v1/filters", tag = "packets",
    params(FilterParameters),
    responses((status = 200, body = FilterCheckBody)),
)]
pub(crate) async fn check(
    State(app): AppState,
    Extension(caller): CallerExtension,
    QueryParams(asked): QueryParams<FilterParameters>,
) -> Result<Json<FilterCheckBody>, Problem> {
    let permit = app.query_limit.take(&caller)?;
    run_blocking(move || {
        let _permit = permit;
        let checked = check_names(&asked.filter, &caller);
        let checked = checked.and_then(|()| Ok(app.handle.check_expression(&asked.filter)?));
        let problem = checked.err().map(Problem::into_body);
        Ok(Json(FilterCheckBody { problem }))
    })
    .await
}
