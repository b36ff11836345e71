//! Dumps: what they say of themselves. Their files are in `dump_files`.

use axum::extract::State;
use retroscope_recorder::{CommandError, DumpReport, Handle, StoredDump};
use serde::Serialize;
use utoipa::ToSchema;

use super::Shared;
use crate::{
    app::waiting,
    extract::{Json, Named, Nothing, Parameters},
    problem::Problem,
};

/// A dump.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Dump)]
pub(crate) struct DumpBody {
    /// Its number, in the order of triggers, from 1; `null`: it is of an earlier recording.
    number: Option<u64>,
    /// What lies in the directory of it; `null`: nothing any more.
    stored: Option<StoredDump>,
    /// What it says of itself, as in `--json` of `record`; `null`: it is open, or of an earlier recording.
    report: Option<DumpReport>,
}

/// A dump that is on disk, or failed.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = FinishedDump)]
pub(crate) struct FinishedBody {
    /// Its number, in the order of triggers, from 1.
    number: u64,
    /// What it says of itself, as in `--json` of `record`.
    #[serde(flatten)]
    report: DumpReport,
}

/// The dumps.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Dumps)]
pub(crate) struct DumpsBody {
    /// The last 10,000 that are finished, in the order of triggers.
    dumps: Vec<FinishedBody>,
    /// How many were finished before these.
    before: u64,
    /// What lies in the directory, the oldest first and open ones last: dumps of this recording, and of earlier ones. Those that are not there were deleted, or
    /// failed.
    stored: Vec<StoredDump>,
}

impl From<DumpReport> for FinishedBody {
    fn from(report: DumpReport) -> Self {
        Self {
            number: report.number,
            report,
        }
    }
}

/// A dump that lies in the directory, by its number or ID.
pub(crate) fn find(handle: &Handle, dump: &str) -> Result<StoredDump, Problem> {
    let absent = || {
        Problem::absent(format!(
            "there is no dump {dump:?} in the directory: GET /v1/dumps lists what there is"
        ))
    };
    let id = match dump.parse() {
        Ok(number) => handle.dump_id(number)?.ok_or_else(absent)?,
        Err(_) => dump.to_owned(),
    };
    let (stored, _) = handle.dump(&id)?.ok_or_else(absent)?;
    Ok(stored)
}

/// The dumps
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
            stored: match app.handle.dumps() {
                // Nothing is dumped.
                Err(CommandError::Refused(_)) => Vec::new(),
                stored => stored?,
            },
        }))
    })
    .await
}

/// A dump, by its number or ID
///
/// One that is open has no `report` yet.
#[utoipa::path(
    get, path = "/v1/dumps/{number}", tag = "dumps",
    params(("number" = String, Path, description = "Its number, or its ID.", min_length = 1, example = "1")),
    responses((status = 200, body = DumpBody)),
)]
pub(crate) async fn read(
    State(app): Shared,
    _: Parameters<Nothing>,
    Named(dump): Named<String>,
) -> Result<Json<DumpBody>, Problem> {
    waiting(move || {
        let stored = find(&app.handle, &dump);
        let (dumps, _) = app.handle.finished_dumps()?;
        let is_it = |report: &DumpReport| match &stored {
            Ok(stored) => stored.id == report.id,
            Err(_) => report.id == dump || report.number.to_string() == dump,
        };
        let report = dumps.into_iter().find(is_it);
        let stored = match (stored, &report) {
            (Ok(stored), _) => Some(stored),
            (Err(_), Some(_)) => None,
            (Err(problem), None) => return Err(problem),
        };
        let number = stored.as_ref().and_then(|stored| stored.number);
        Ok(Json(DumpBody {
            number: number.or(report.as_ref().map(|report| report.number)),
            stored,
            report,
        }))
    })
    .await
}
