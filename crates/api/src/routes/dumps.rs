//! Dumps and their reports.
#![expect(
    unused_qualifications,
    reason = "the macro of utoipa qualifies the names of parameters"
)]

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
    io::{self, BufWriter, Write as _},
    sync::Arc,
};

use axum::{
    Extension,
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use retroscope_recorder::{
    CommandError, DumpReport, RecorderHandle, StoredDump, StoredDumps, Verdict, parse_time,
};
use serde::{Deserialize, Serialize};
use tokio::{sync::oneshot, task::spawn_blocking};
use utoipa::{IntoParams, ToSchema};

use super::{AppState, CallerExtension};
use crate::{
    app::{App, answer_blocking, run_blocking},
    bodies::request::{count, time},
    caller::Caller,
    extract::{Json, NoQuery, PathParam, QueryParams},
    problem::Problem,
    stream::{PieceWriter, Sender, framed_stream},
};

/// Default number of dumps on a page.
const LIMIT: u64 = 100;
/// Maximum number of dumps on a page.
const LIMIT_MAX: u64 = 1000;
/// Bytes of the list that are buffered between two checks of the caller's token.
const CHECK_BYTES: usize = 64 << 10;

/// A dump of this or of an earlier recording.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Dump)]
pub(crate) struct DumpBody<'a> {
    /// The dump's number, in the order of triggers, from 1; `null`: the dump is from an earlier
    /// recording, or no longer among the last 10,000 of this recording.
    number: Option<u64>,
    /// The dump's files in the directory; `null`: the files were deleted, or the dump failed.
    stored: Option<&'a StoredDump>,
    /// The dump's report, as in `--json` of `record`; `null`: the dump is open, from an
    /// earlier recording, or no longer among the last 10,000 of this recording.
    report: Option<&'a DumpReport>,
}

/// A page of the dumps.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Dumps)]
pub(crate) struct DumpsBody<'a> {
    /// The dumps of this recording and of earlier recordings, by the time of their triggers.
    dumps: Vec<DumpBody<'a>>,
    /// The value of `after` for the next page; `null`: this page is the last page.
    next: Option<String>,
}

/// Selects dumps.
#[derive(Debug, Clone, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct DumpsQuery {
    /// Maximum number of dumps in the answer: 100 if left out.
    #[serde(default, deserialize_with = "count")]
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u64>,
    /// The `next` of a page, for the page after it.
    after: Option<String>,
    /// Dumps of the rule with this name or expression; `manual`: triggers by hand.
    rule: Option<String>,
    /// Dumps in this state.
    #[param(inline)]
    state: Option<DumpState>,
    /// Dumps whose trigger has this time or a later time: RFC 3339, or a number since 1970, whose
    /// size tells whether it counts s, ms, µs or ns.
    since: Option<String>,
    /// The newest dump first.
    newest: Option<bool>,
}

/// A dump is open until it has a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum DumpState {
    /// The dump is being written.
    Open,
    /// The dump has all its packets.
    Complete,
    /// The dump lacks packets.
    Incomplete,
    /// The dump could not be written.
    Failed,
}

/// The position of a dump in the list: the time of its trigger, ns, and its ID.
type DumpPosition = (i64, String);

struct KnownDumps {
    finished: Vec<Arc<DumpReport>>,
    stored: StoredDumps,
    /// Dumps that were finished after the directory was listed, by ID. `None`: the directory has no
    /// finished dump of this ID.
    newly_finished: BTreeMap<String, Option<StoredDump>>,
}

impl KnownDumps {
    fn new(handle: &RecorderHandle) -> Result<Self, Problem> {
        // The directory first: an open dump that finishes between the two lists is then in both
        // lists.
        let stored = match handle.dumps() {
            // `Refused`: the recording has no directory for dumps.
            Err(CommandError::Refused(_)) => Arc::default(),
            stored => stored?,
        };
        let (finished, _) = handle.finished_dumps()?;
        let open = stored.iter().filter(|dump| dump.is_open);
        let open: BTreeSet<&str> = open.map(|dump| dump.id.as_str()).collect();
        let mut newly_finished = BTreeMap::new();
        for report in finished.iter().filter(|it| open.contains(it.id.as_str())) {
            let dump = handle.dump(&report.id)?.map(|(dump, _)| dump);
            newly_finished.insert(report.id.clone(), dump.filter(|dump| !dump.is_open));
        }
        Ok(Self {
            finished,
            stored,
            newly_finished,
        })
    }

    fn dumps(&self) -> BTreeMap<DumpPosition, DumpBody<'_>> {
        let place = |time: &str, id: &str| (parse_time(time).unwrap_or(i64::MIN), id.to_owned());
        let mut all = BTreeMap::new();
        for report in &self.finished {
            let dump = DumpBody {
                number: Some(report.number),
                stored: None,
                report: Some(report),
            };
            all.insert(place(&report.trigger_time, &report.id), dump);
        }
        for stored in self.stored.iter() {
            let dump = DumpBody {
                number: stored.number,
                stored: None,
                report: None,
            };
            let dump = all
                .entry(place(&stored.trigger_time, &stored.id))
                .or_insert(dump);
            dump.stored = match self.newly_finished.get(&stored.id) {
                Some(finished) => finished.as_ref(),
                None => Some(stored),
            };
        }
        all
    }
}

impl DumpsQuery {
    fn page<'a>(&self, found: &'a KnownDumps) -> Result<DumpsBody<'a>, Problem> {
        let limit = self.limit.unwrap_or(LIMIT);
        if !(1..=LIMIT_MAX).contains(&limit) {
            let why = format!("`limit`: {limit} is not from 1 to {LIMIT_MAX}");
            return Err(Problem::invalid(why));
        }
        let after = self.after.as_deref().map(read_position).transpose()?;
        let since = self.since.as_deref().map(time).transpose()?;
        let is_newest = self.newest.unwrap_or(false);
        let dumps = found.dumps().into_iter();
        let dumps: Box<dyn Iterator<Item = _>> = if is_newest {
            Box::new(dumps.rev())
        } else {
            Box::new(dumps)
        };
        let order = if is_newest {
            Ordering::Greater
        } else {
            Ordering::Less
        };
        let dumps = dumps.filter(|(place, dump)| {
            after.as_ref().is_none_or(|after| after.cmp(place) == order)
                && since.is_none_or(|since| since <= place.0)
                && self.matches(dump)
        });
        let mut dumps = dumps.peekable();
        let mut page = Vec::new();
        let mut last = None;
        while let Some((place, dump)) = dumps.next_if(|_| (page.len() as u64) < limit) {
            page.push(dump);
            last = Some(place);
        }
        let next = last.filter(|_| dumps.peek().is_some());
        Ok(DumpsBody {
            dumps: page,
            next: next.map(|(ns, id)| format!("{ns}_{id}")),
        })
    }

    fn matches(&self, dump: &DumpBody<'_>) -> bool {
        let stored = dump.stored.map(|it| (&it.rule, &it.rule_name, it.verdict));
        let report = dump
            .report
            .map(|it| (&it.rule, &it.rule_name, Some(it.verdict)));
        let Some((rule, name, verdict)) = report.or(stored) else {
            return false;
        };
        let state = match verdict {
            None => DumpState::Open,
            Some(Verdict::Complete) => DumpState::Complete,
            Some(Verdict::Incomplete) => DumpState::Incomplete,
            Some(Verdict::Failed) => DumpState::Failed,
        };
        self.state.is_none_or(|wanted| wanted == state)
            && self
                .rule
                .as_ref()
                .is_none_or(|wanted| wanted == rule || name.as_ref() == Some(wanted))
    }
}

fn read_position(text: &str) -> Result<DumpPosition, Problem> {
    let place = text
        .split_once('_')
        .and_then(|(ns, id)| Some((ns.parse().ok()?, id.to_owned())));
    place.ok_or_else(|| Problem::invalid("`after` is the `next` of a page"))
}

/// Writes the page at the speed of the client, until the client's token is revoked. 1,000 dumps
/// need about 1 MB.
fn write_page(page: &DumpsBody<'_>, sender: Sender, app: &App, caller: &Caller) {
    let out = TokenCheckedWriter {
        out: PieceWriter::new(&sender),
        app,
        caller,
    };
    let mut out = BufWriter::with_capacity(CHECK_BYTES, out);
    let written = serde_json::to_writer(&mut out, page).map_err(io::Error::from);
    let is_whole = written.and_then(|()| out.flush()).is_ok();
    drop(out);
    if is_whole {
        sender.end();
    }
}

/// Checks the caller's token before each write.
struct TokenCheckedWriter<'a> {
    out: PieceWriter<'a>,
    app: &'a App,
    caller: &'a Caller,
}

impl io::Write for TokenCheckedWriter<'_> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.app.check(self.caller).map_err(io::Error::other)?;
        self.out.write(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

pub(crate) fn find(handle: &RecorderHandle, dump: &str) -> Result<StoredDump, Problem> {
    let absent = || {
        Problem::not_found(format!(
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

/// The dumps, page by page
#[utoipa::path(
    get, path = "/v1/dumps", tag = "dumps",
    params(DumpsQuery),
    responses((status = 200, body = DumpsBody)),
)]
pub(crate) async fn list(
    State(app): AppState,
    Extension(caller): CallerExtension,
    QueryParams(wanted): QueryParams<DumpsQuery>,
) -> Result<Response, Problem> {
    let permit = app.query_limit.take(&caller)?;
    let handle = app.handle.clone();
    let (ready, answer) = oneshot::channel();
    let (sender, body) = framed_stream();
    let found = run_blocking(move || KnownDumps::new(&handle)).await?;
    spawn_blocking(move || {
        let page = match wanted.page(&found) {
            Ok(page) => page,
            Err(problem) => return drop(ready.send(Err(problem))),
        };
        if ready.send(Ok(())).is_ok() {
            write_page(&page, sender, &app, &caller);
        }
        drop(permit);
    });
    let bug = |_| Problem::bug("the list failed: please report this bug");
    answer.await.map_err(bug)??;
    let kind = [(header::CONTENT_TYPE, "application/json")];
    Ok((kind, body).into_response())
}

/// A dump, by its number or ID
///
/// An open dump has no `report` yet.
#[utoipa::path(
    get, path = "/v1/dumps/{number}", tag = "dumps",
    params(("number" = String, Path, description = "The dump's number or ID.", min_length = 1, example = "1")),
    responses((status = 200, body = DumpBody)),
)]
pub(crate) async fn read(
    State(app): AppState,
    _: QueryParams<NoQuery>,
    PathParam(dump): PathParam<String>,
) -> Result<Response, Problem> {
    answer_blocking(move || {
        let stored = find(&app.handle, &dump);
        let is_it = |report: &DumpReport| match &stored {
            Ok(stored) => stored.id == report.id,
            Err(_) => report.id == dump || report.number.to_string() == dump,
        };
        let report = app.handle.finished_dump(is_it)?;
        let stored = match (stored, &report) {
            // A dump that was not finished may have been finished after the first search.
            (first, Some(report)) if first.as_ref().is_ok_and(|it| !it.is_open) => first.ok(),
            (_, Some(report)) => find(&app.handle, &report.id).ok(),
            (first, None) => Some(first?),
        };
        let number = stored.as_ref().and_then(|stored| stored.number);
        Ok(Json(DumpBody {
            number: number.or(report.as_ref().map(|report| report.number)),
            stored: stored.as_ref(),
            report: report.as_deref(),
        })
        .into_response())
    })
    .await
}
