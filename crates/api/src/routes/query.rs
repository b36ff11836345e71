//! Queries for packets of the past, and with `follow` for new packets.
#![expect(
    unused_qualifications,
    reason = "the macro of utoipa qualifies the names of parameters"
)]

use std::{io::Write, num::NonZeroU32, sync::Arc};

use axum::{
    Extension,
    extract::State,
    http::{HeaderValue, StatusCode, Version, header},
    response::{IntoResponse, Response},
};
use retroscope_recorder::{
    Cancel, Clock, DumpsAsked, Export, PacketId, Query, QueryError, QueryReport, SystemClock,
    rfc3339,
};
use serde::{Deserialize, Serialize};
use tokio::{sync::oneshot, task::spawn_blocking};
use utoipa::{IntoParams, ToSchema};

use super::{AppState, CallerExtension};
use crate::{
    app::{AbortOnDrop, App},
    bodies::request::{TimeRangeBody, check_names, count as limit},
    caller::Caller,
    extract::{Json, NoQuery, PathParam, QueryParams, list},
    openapi::Binary,
    problem::Problem,
    queries::{ConcurrencyPermit, QueryRecord},
    role::Role,
    stream::{PieceWriter, Sender, framed_stream, on_disconnect, stream},
};

/// Maximum number of bytes of a packet in the ring.
const SNAPLEN_MAX: u32 = 256 << 10;

/// Selects packets.
#[derive(Debug, Clone, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct QueryParameters {
    /// A pcap-filter(7) expression; left out: every packet.
    #[param(example = "udp")]
    filter: Option<String>,
    /// Packets with this Community ID (version 1, seed 0).
    #[param(example = "1:LQU9qZlK+B5F3KDmev6m5PMibrg=")]
    community_id: Option<String>,
    /// Packets of these interfaces: names, separated by commas.
    interfaces: Option<String>,
    /// Packets from this time on: RFC 3339 with any offset, or a number since 1970, whose size
    /// tells whether it counts s, ms, µs or ns.
    #[param(example = "2026-11-20T19:15:03.5Z")]
    from: Option<String>,
    /// Packets up to and including this time.
    to: Option<String>,
    /// Packets of this duration before now. Excludes `from` and `to`.
    last: Option<String>,
    /// Maximum number of packets.
    #[serde(default, deserialize_with = "limit")]
    limit_packets: Option<u64>,
    /// Maximum number of captured bytes.
    #[serde(default, deserialize_with = "limit")]
    limit_bytes: Option<u64>,
    /// With a limit: select the last packets instead of the first.
    newest: Option<bool>,
    /// Truncate each packet to this number of bytes.
    #[param(minimum = 1, maximum = 262_144, value_type = Option<u32>)]
    snaplen: Option<NonZeroU32>,
    /// Continue with new packets until `to`, a limit, or the end of the recording.
    follow: Option<bool>,
    /// Resume after these packets of an earlier answer: IDs, separated by commas, from
    /// `epb_packetid` or from `after` in the verdict.
    after: Option<String>,
    /// Return the verdict as JSON, without the packets. The head of the answer, with `Location`, is
    /// sent before the packets are counted.
    count: Option<bool>,
}

impl QueryParameters {
    /// The query, restricted to the packets that the caller may see.
    fn query(self, caller: &Caller) -> Result<Query, Problem> {
        let stretch = TimeRangeBody {
            from: self.from,
            to: self.to,
            last: self.last,
        };
        let stretch = stretch.read()?;
        check_names(self.filter.as_deref().unwrap_or_default(), caller)?;
        if self.count == Some(true) && self.follow == Some(true) {
            return Err(Problem::invalid(
                "`count` and `follow`: what is to come cannot be counted",
            ));
        }
        let after = list(self.after.as_deref()).into_iter().map(|id| {
            let read = id.parse::<PacketId>();
            read.map_err(|_| Problem::invalid(format!("`after`: {id:?} is no packet's ID")))
        });
        let snaplen = caller.snaplen.and_then(NonZeroU32::new);
        if self.snaplen.is_some_and(|bytes| bytes.get() > SNAPLEN_MAX) {
            let why = format!("`snaplen`: no packet has more than {SNAPLEN_MAX} bytes");
            return Err(Problem::invalid(why));
        }
        let headers = [self.snaplen, snaplen].into_iter().flatten().min();
        Ok(Query {
            expression: self.filter.unwrap_or_default(),
            within: caller.filter.as_deref().unwrap_or_default().to_owned(),
            tried_bytes: snaplen,
            tried_headers: !caller.may(Role::Packets),
            community_id: self.community_id,
            interfaces: list(self.interfaces.as_deref()),
            from_ns: stretch.from_ns,
            to_ns: stretch.to_ns,
            last_ns: stretch.last_ns,
            limit_packets: self.limit_packets,
            limit_bytes: self.limit_bytes,
            newest: self.newest.unwrap_or(false),
            headers,
            follow: self.follow.unwrap_or(false),
            after: after.collect::<Result<_, _>>()?,
            dumps: if caller.is_restricted() {
                DumpsAsked::Counted
            } else {
                DumpsAsked::Named
            },
        })
    }
}

/// Packets of the past, as a pcapng file
///
/// Packets that have left the ring are read from finished dumps, except with `after`. `dumps` in
/// the verdict names the dumps, and the time ranges that no dump covers; tokens with a filter or a
/// snap length get counts only. The verdict is usually in comments of the last packet and of the
/// interfaces' statistics, and afterwards at `Location`. An answer that fails ends without its last
/// chunk.
#[utoipa::path(
    get, path = "/v1/query", tag = "packets",
    params(QueryParameters),
    responses((
        status = 200, description = "The packets; with `count` the verdict only.",
        content((Binary = "application/x-pcapng"), (CountBody = "application/json")),
        headers(("Location" = String, description = "The URL of the verdict, while the query is among the last 256.")),
    )),
)]
pub(crate) async fn query(
    State(app): AppState,
    Extension(caller): CallerExtension,
    QueryParams(asked): QueryParams<QueryParameters>,
    version: Version,
) -> Result<Response, Problem> {
    let is_count = asked.count == Some(true);
    let limit = if asked.follow == Some(true) {
        &app.follow_limit
    } else {
        &app.query_limit
    };
    let permit = limit.take(&caller)?;
    let cancel = Cancel::default();
    let (sender, body) = match is_count {
        true => framed_stream(),
        false => stream(version)?,
    };
    let body = on_disconnect(body, {
        let cancel = cancel.clone();
        move || cancel.cancel()
    });
    let (ready, answer) = oneshot::channel();
    let watch = tokio::spawn({
        let (app, caller, cancel) = (Arc::clone(&app), caller.clone(), cancel.clone());
        async move { cancel.cancel_because(&app.revoked(&caller).await) }
    });
    let task = QueryJob {
        app,
        caller,
        sender,
        cancel,
        permit,
        _watch: AbortOnDrop(watch),
    };
    spawn_blocking(move || task.run(asked, ready));
    let id = answer
        .await
        .unwrap_or_else(|_| Err(Problem::bug("the query failed: please report this bug")))?;
    let value =
        |text: String| HeaderValue::try_from(text).map_err(|error| Problem::bug(error.to_string()));
    let now = rfc3339(SystemClock.now().wall_ns);
    let name: String = now
        .chars()
        .take(19)
        .filter(|c| c.is_ascii_alphanumeric())
        .collect();
    let mut response = body.into_response();
    let all = response.headers_mut();
    let kind = match is_count {
        true => "application/json",
        false => "application/x-pcapng",
    };
    all.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    all.insert(header::LOCATION, value(format!("/v1/queries/{id}"))?);
    if !is_count {
        let file = format!("attachment; filename=\"retroscope-{name}Z.pcapng\"");
        all.insert(header::CONTENT_DISPOSITION, value(file)?);
    }
    Ok(response)
}

/// The verdict of a query without the packets.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Counted)]
struct CountBody {
    #[serde(flatten)]
    report: QueryReport,
    /// The verdict in words.
    reasons: String,
}

struct QueryJob {
    app: Arc<App>,
    caller: Caller,
    sender: Sender,
    cancel: Cancel,
    permit: ConcurrencyPermit,
    /// Cancels the query when the caller's token or session ends.
    _watch: AbortOnDrop,
}

impl QueryJob {
    fn run(self, asked: QueryParameters, ready: oneshot::Sender<Result<String, Problem>>) {
        let handle = &self.app.handle;
        let is_count = asked.count == Some(true);
        let begin = || -> Result<_, Problem> {
            let query = asked.query(&self.caller)?;
            let answer = handle.query(&query)?.until(&self.cancel);
            let queries = &self.app.queries;
            let begun = queries.begin(&self.caller, &query.whole_expression(), &self.cancel);
            let begun =
                begun.map_err(|error| Problem::bug(format!("no random number: {error}")))?;
            Ok((query, answer, begun))
        };
        let (query, answer, begun) = match begin() {
            Ok(all) => all,
            Err(problem) => return drop(ready.send(Err(problem))),
        };
        if ready.send(Ok(begun.id.clone())).is_err() {
            return begun.end(Err("the client has left".to_owned()));
        }
        let mut out = PieceWriter::new(&self.sender);
        let written = match is_count {
            true => answer
                .count()
                .and_then(|report| write_count(report, &mut out)),
            false => answer.write_to(&mut out),
        };
        let written = written.and_then(|report| {
            out.flush().map_err(QueryError::Output)?;
            Ok(report)
        });
        let bytes = out.bytes;
        let outcome = written.map_err(|error| error.to_string());
        if !is_count {
            let mut export = Export::new(&self.caller.name, self.caller.address, "query", &query);
            match &outcome {
                Ok(report) => export.answered(report),
                Err(why) => export.error = Some(why.clone()),
            }
            handle.tell_export(Export { bytes, ..export });
        }
        let is_whole = outcome.is_ok();
        begun.end(outcome);
        // A client that has read the whole answer may send its next query at once.
        drop(self.permit);
        if is_whole {
            self.sender.end();
        }
    }
}

fn write_count(report: QueryReport, out: &mut impl Write) -> Result<QueryReport, QueryError> {
    let reasons = report.reasons();
    let counted = CountBody { report, reasons };
    serde_json::to_writer(out, &counted).map_err(|error| QueryError::Output(error.into()))?;
    Ok(counted.report)
}

/// The state of one of the last 256 queries, for the client that sent the query and for admins
#[utoipa::path(
    get, path = "/v1/queries/{id}", tag = "packets",
    params(("id" = String, Path, description = "The query's ID, from `Location` of its answer.", min_length = 1, max_length = 64)),
    responses((status = 200, body = QueryRecord)),
)]
pub(crate) async fn verdict(
    State(app): AppState,
    Extension(caller): CallerExtension,
    _: QueryParams<NoQuery>,
    PathParam(id): PathParam<String>,
) -> Result<Json<QueryRecord>, Problem> {
    let found = app.queries.find(&caller, &id);
    found.map(Json).ok_or_else(no_query)
}

/// Cancel a query that you sent, or as admin any query
///
/// The query's answer ends early, with the verdict of what it contains.
#[utoipa::path(
    delete, path = "/v1/queries/{id}", tag = "packets",
    params(("id" = String, Path, description = "The query's ID, from `Location` of its answer.", min_length = 1, max_length = 64)),
    responses((status = 204, description = "The query ends, or has ended.")),
)]
pub(crate) async fn cancel(
    State(app): AppState,
    Extension(caller): CallerExtension,
    _: QueryParams<NoQuery>,
    PathParam(id): PathParam<String>,
) -> Result<StatusCode, Problem> {
    if app.queries.cancel(&caller, &id) {
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(no_query())
    }
}

fn no_query() -> Problem {
    Problem::not_found(
        "there is no such query of yours among the last 256: its ID is in the `Location` of its answer",
    )
}
