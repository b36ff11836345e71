//! Dumps.

use axum::extract::State;
use retroscope_recorder::DumpReport;
use serde::Serialize;
use utoipa::ToSchema;

use super::Shared;
use crate::{
    app::waiting,
    extract::{Json, Named, Nothing, Parameters},
    problem::Problem,
};

/// A dump that is on disk, or failed.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Dump)]
pub(crate) struct DumpBody {
    /// Its number, in the order of triggers, from 1.
    number: u64,
    /// What it says of itself, as in `--json` of `record`.
    #[serde(flatten)]
    #[schema(value_type = Object)]
    report: DumpReport,
}

/// The dumps that are finished.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Dumps)]
pub(crate) struct DumpsBody {
    /// The last 10,000, in the order of triggers.
    dumps: Vec<DumpBody>,
    /// How many were finished before these.
    before: u64,
}

impl From<DumpReport> for DumpBody {
    fn from(report: DumpReport) -> Self {
        Self {
            number: report.number,
            report,
        }
    }
}

/// The dumps that are finished, in the order of triggers
#[utoipa::path(get, path = "/v1/dumps", tag = "dumps", responses((status = 200, body = DumpsBody)))]
pub(crate) async fn list(
    State(app): Shared,
    _: Parameters<Nothing>,
) -> Result<Json<DumpsBody>, Problem> {
    waiting(move || {
        let (dumps, before) = app.handle.finished_dumps()?;
        Ok(Json(DumpsBody {
            dumps: dumps.into_iter().map(Into::into).collect(),
            before: before.total(),
        }))
    })
    .await
}

/// A dump that is finished
#[utoipa::path(
    get, path = "/v1/dumps/{number}", tag = "dumps",
    params(("number" = u64, Path, minimum = 1)),
    responses((status = 200, body = DumpBody)),
)]
pub(crate) async fn read(
    State(app): Shared,
    _: Parameters<Nothing>,
    Named(number): Named<u64>,
) -> Result<Json<DumpBody>, Problem> {
    waiting(move || {
        let (dumps, _) = app.handle.finished_dumps()?;
        let found = dumps.into_iter().find(|dump| dump.number == number);
        let found = found.ok_or_else(|| {
            Problem::absent(format!(
                "no dump {number} is finished: GET /v1/dumps lists them, GET /v1/events tells when one is"
            ))
        })?;
        Ok(Json(found.into()))
    })
    .await
}
