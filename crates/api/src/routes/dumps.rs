//! Dumps: what they say of themselves. Their files are in `dump_files`.

use std::{
    io::{self, BufWriter, Write as _},
    sync::Arc,
};

use axum::{
    Extension,
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use retroscope_recorder::{CommandError, DumpReport, RecorderHandle, StoredDump, StoredDumps};
use serde::Serialize;
use utoipa::ToSchema;

use super::{Asking, Shared};
use crate::{
    app::{App, answering, waiting},
    caller::Caller,
    extract::{Json, Named, Nothing, Parameters},
    problem::Problem,
    stream::{PieceWriter, Sender, self_ending_stream},
};

/// Bytes of the list between two checks of the caller's token.
const CHECK_BYTES: usize = 64 << 10;

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
pub(crate) struct FinishedBody<'a> {
    /// Its number, in the order of triggers, from 1.
    number: u64,
    /// What it says of itself, as in `--json` of `record`.
    #[serde(flatten)]
    report: &'a DumpReport,
}

/// The dumps.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Dumps)]
pub(crate) struct DumpsBody<'a> {
    /// The last 10,000 that are finished, in the order of triggers.
    dumps: Vec<FinishedBody<'a>>,
    /// How many were finished before these.
    before: u64,
    /// What lies in the directory, the oldest first and open ones last: dumps of this recording, and of earlier ones. Those that are not there were deleted, or
    /// failed.
    stored: Vec<&'a StoredDump>,
}

/// The dumps, before they are text.
struct Found {
    finished: Vec<Arc<DumpReport>>,
    before: u64,
    stored: StoredDumps,
}

impl Found {
    fn new(handle: &RecorderHandle) -> Result<Self, Problem> {
        let (finished, before) = handle.finished_dumps()?;
        let stored = match handle.dumps() {
            // Nothing is dumped.
            Err(CommandError::Refused(_)) => Arc::default(),
            stored => stored?,
        };
        Ok(Self {
            finished,
            before: before.total(),
            stored,
        })
    }

    /// Writes the answer at the speed of the client: the text of 10,000 dumps has some 10 MB. Ends
    /// when the client's token is revoked.
    fn write_to(&self, sender: Sender, app: &App, caller: &Caller) {
        let finished = self.finished.iter();
        let body = DumpsBody {
            dumps: finished
                .map(|report| FinishedBody {
                    number: report.number,
                    report,
                })
                .collect(),
            before: self.before,
            stored: self.stored.iter().map(|dump| &**dump).collect(),
        };
        let out = Checked {
            out: PieceWriter::new(&sender),
            app,
            caller,
        };
        let mut out = BufWriter::with_capacity(CHECK_BYTES, out);
        let written = serde_json::to_writer(&mut out, &body).map_err(io::Error::from);
        let is_whole = written.and_then(|()| out.flush()).is_ok();
        drop(out);
        if is_whole {
            sender.end(None);
        }
    }
}

/// Checks before each write that the caller's token is still valid.
struct Checked<'a> {
    out: PieceWriter<'a>,
    app: &'a App,
    caller: &'a Caller,
}

impl io::Write for Checked<'_> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.app.check(self.caller).map_err(io::Error::other)?;
        self.out.write(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// A dump that lies in the directory, by its number or ID.
pub(crate) fn find(handle: &RecorderHandle, dump: &str) -> Result<StoredDump, Problem> {
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
    Extension(caller): Asking,
    _: Parameters<Nothing>,
) -> Result<Response, Problem> {
    let place = app.running.take(&caller)?;
    let handle = app.handle.clone();
    let found = waiting(move || Found::new(&handle)).await?;
    let (sender, body) = self_ending_stream();
    tokio::task::spawn_blocking(move || {
        found.write_to(sender, &app, &caller);
        drop(place);
    });
    let kind = [(header::CONTENT_TYPE, "application/json")];
    Ok((kind, body).into_response())
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
) -> Result<Response, Problem> {
    answering(move || {
        let stored = find(&app.handle, &dump);
        let is_it = |report: &DumpReport| match &stored {
            Ok(stored) => stored.id == report.id,
            Err(_) => report.id == dump || report.number.to_string() == dump,
        };
        let report = app.handle.finished_dump(is_it)?;
        let report = report.map(Arc::unwrap_or_clone);
        let stored = match (stored, &report) {
            // The dump may have been finished after the first look.
            (first, Some(report)) if first.as_ref().is_ok_and(|it| !it.is_open) => first.ok(),
            (_, Some(report)) => find(&app.handle, &report.id).ok(),
            (first, None) => Some(first?),
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
