//! Files of dumps: download (also of a growing file), hold, and delete.
#![expect(
    unused_qualifications,
    reason = "the macro of utoipa qualifies the names of parameters"
)]

use std::{
    sync::{Arc, mpsc::RecvTimeoutError},
    time::{Duration, Instant},
};

use axum::{
    Extension,
    body::Bytes,
    extract::State,
    http::{HeaderMap, HeaderValue, Method, StatusCode, Version, header},
    response::Response,
};
use retroscope_recorder::{
    Action, CommandError, DumpFileReader, Export, RecorderEvent, RecorderHandle, StoredDump,
    StoredFile, Subscription, Verdict,
};
use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;
use utoipa::{IntoParams, ToSchema};

use super::{AppState, CallerExtension, dumps::find};
use crate::{
    app::{App, run_blocking},
    caller::Caller,
    extract::{Json, NoQuery, PathParam, QueryParams},
    openapi::Binary,
    problem::{Cause, Problem},
    queries::ConcurrencyPermit,
    stream::{Sender, framed_stream, no_body, stream},
};

/// Maximum number of bytes that are read and sent in one step.
const PIECE_BYTES: usize = 64 << 10;
/// Interval at which a growing file is checked for new data.
const GROWTH_POLL: Duration = Duration::from_millis(100);
/// Maximum number of attempts to find and open a file. Finishing or compressing a dump renames its
/// file, perhaps between these two steps.
const OPEN_TRIES: usize = 3;
const PART: &str = ".part";

/// Selects a file of a dump.
#[derive(Debug, Clone, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct DumpFileQuery {
    /// The name of a file, if the dump has several (`--format pcap` with several link types). If
    /// left out: the first file.
    name: Option<String>,
}

struct OpenedFile {
    id: String,
    /// The name of the file without the suffix `.part` of an open dump.
    name: String,
    reader: DumpFileReader,
    /// Facts about a finished file; `None`: the file is being written.
    whole: Option<FinishedMeta>,
    /// Receives the event that the dump is finished.
    listener: Subscription,
}

struct FinishedMeta {
    packets: u64,
    /// Start and end of the dump's window, RFC 3339.
    window: (String, String),
    sha256: Option<String>,
}

impl OpenedFile {
    fn new(handle: &RecorderHandle, dump: &str, wanted: Option<&str>) -> Result<Self, Problem> {
        // Subscribe before the search, so that events during the search are received too.
        let listener = handle.subscribe(None);
        for tries in 0..OPEN_TRIES {
            let stored = find(handle, dump)?;
            let file = pick(&stored, wanted)?;
            let reader = match handle.open_dump_file(&stored.id, &file.name) {
                Err(CommandError::Refused(_)) if stored.is_open || tries == 0 => continue,
                reader => reader?,
            };
            let whole = FinishedMeta {
                packets: stored.packets,
                window: (stored.from.clone(), stored.to.clone()),
                sha256: file.sha256.clone(),
            };
            let name = file.name.strip_suffix(PART).filter(|_| stored.is_open);
            return Ok(Self {
                name: name.unwrap_or(&file.name).to_owned(),
                whole: (!stored.is_open).then_some(whole),
                id: stored.id,
                reader,
                listener,
            });
        }
        let why = format!("dump {dump} is being finished or compressed: ask again");
        Err(Problem::busy(why, Duration::from_secs(1)))
    }

    fn kind(&self) -> &'static str {
        match self.name.rsplit_once('.') {
            Some((_, "zst")) => "application/zstd",
            Some((_, "pcap")) => "application/vnd.tcpdump.pcap",
            _ => "application/x-pcapng",
        }
    }
}

fn pick<'a>(dump: &'a StoredDump, wanted: Option<&str>) -> Result<&'a StoredFile, Problem> {
    let is_wanted = |file: &&StoredFile| match wanted {
        None => true,
        Some(name) => file.name == name || file.name.strip_suffix(PART) == Some(name),
    };
    dump.files
        .iter()
        .find(is_wanted)
        .ok_or_else(|| match wanted {
            None if dump.is_open => {
                let why = "nothing of this dump is written yet: ask again";
                Problem::busy(why, Duration::from_secs(1))
            }
            None => Problem::not_found("this dump has no file"),
            Some(name) => Problem::not_found(format!(
                "this dump has no file {name:?}: GET /v1/dumps/{{number}} lists them"
            )),
        })
}

/// A dump's capture file
///
/// The file of a finished dump has a length, its SHA-256 (if known) as `ETag`, and supports
/// `Range`. The file of an open dump is sent as it grows, until the dump is finished. The verdict
/// in the head of such a copy reads `unfinished`; `/v1/dumps/{number}` has the verdict afterwards.
/// A body that ends without its last chunk is not complete. Tokens with a filter or a snap length
/// get no files, because a file is sent unchanged.
#[utoipa::path(
    get, path = "/v1/dumps/{number}/file", tag = "dumps",
    params(
        ("number" = String, Path, description = "The dump's number or ID.", min_length = 1, example = "1"),
        DumpFileQuery,
        ("Range" = Option<String>, Header, description = "One range of bytes, for a finished dump.", example = "bytes=0-1023"),
        ("If-Range" = Option<String>, Header, description = "The `ETag` of the requested file."),
    ),
    responses(
        (status = 200, content_type = "application/x-pcapng", body = Binary, description = "pcapng; with `--format` or `--compress` pcap or zstd. `Content-Type` has the format."),
        (status = 206, content_type = "application/x-pcapng", body = Binary, description = "The range."),
    ),
)]
pub(crate) async fn file(
    State(app): AppState,
    Extension(caller): CallerExtension,
    QueryParams(wanted): QueryParams<DumpFileQuery>,
    PathParam(dump): PathParam<String>,
    method: Method,
    version: Version,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let handle = app.handle.clone();
    let opened =
        run_blocking(move || OpenedFile::new(&handle, &dump, wanted.name.as_deref())).await?;
    let limit = match opened.whole {
        Some(_) => &app.query_limit,
        None => &app.follow_limit,
    };
    let permit = limit.take(&caller)?;
    let tag = opened.whole.as_ref().and_then(|it| it.sha256.as_ref());
    let tag = tag.map(|sha256| format!("\"{sha256}\""));
    let mut response = Response::new(no_body());
    let value =
        |text: &str| HeaderValue::try_from(text).map_err(|error| Problem::bug(error.to_string()));
    let all = response.headers_mut();
    let disposition = format!("attachment; filename=\"{}\"", opened.name);
    all.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static(opened.kind()),
    );
    all.insert(header::CONTENT_DISPOSITION, value(&disposition)?);
    let mut range = None;
    if opened.whole.is_some() {
        let bytes = opened.reader.bytes();
        range = asked_range(&headers, tag.as_deref(), bytes)?;
        let (first, end) = range.unwrap_or((0, bytes));
        all.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
        all.insert(header::CONTENT_LENGTH, HeaderValue::from(end - first));
        if let Some(tag) = &tag {
            all.insert(header::ETAG, value(tag)?);
        }
        if range.is_some() {
            let last = end - 1;
            let told = value(&format!("bytes {first}-{last}/{bytes}"))?;
            all.insert(header::CONTENT_RANGE, told);
        }
    }
    if range.is_some() {
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    if method == Method::HEAD {
        return Ok(response);
    }
    let (sender, body) = match opened.whole {
        Some(_) => framed_stream(),
        None => stream(version)?,
    };
    *response.body_mut() = body;
    let sending = FileTransfer {
        app,
        caller,
        sender,
        bytes: 0,
        permit: Some(permit),
    };
    spawn_blocking(move || sending.run(opened, range));
    Ok(response)
}

/// The requested range, from its first byte to the byte after its last; `None`: the whole file (RFC
/// 9110, section 14.2). Several ranges and unknown forms are ignored. Error 416: the file has no
/// byte of the range.
fn asked_range(
    headers: &HeaderMap,
    tag: Option<&str>,
    bytes: u64,
) -> Result<Option<(u64, u64)>, Problem> {
    let text = |name| headers.get(name).and_then(|it| it.to_str().ok());
    if headers.contains_key(header::IF_RANGE) && text(header::IF_RANGE) != tag {
        return Ok(None);
    }
    let mut given = headers.get_all(header::RANGE).iter();
    let (Some(_), None) = (given.next(), given.next()) else {
        return Ok(None);
    };
    let range = text(header::RANGE).and_then(|it| it.strip_prefix("bytes="));
    let Some((first, last)) = range.and_then(|it| it.split_once('-')) else {
        return Ok(None);
    };
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let (first, end) = match (number(first), number(last)) {
        (Some(first), Some(last)) if first <= last => (first, last.saturating_add(1)),
        (Some(first), None) if last.trim().is_empty() => (first, u64::MAX),
        (None, Some(length)) if first.trim().is_empty() => (
            bytes.saturating_sub(length),
            bytes.min(length).saturating_add(bytes),
        ),
        _ => return Ok(None),
    };
    let end = end.min(bytes);
    if first >= end {
        let why = format!("the file has {bytes} bytes, and none of those that are asked for");
        let all = HeaderValue::try_from(format!("bytes */{bytes}"));
        let problem = Problem::new(Cause::Range, why).with_limit(bytes);
        return Err(match all {
            Ok(all) => problem.with(header::CONTENT_RANGE, all),
            Err(_) => problem,
        });
    }
    Ok(Some((first, end)))
}

/// A transfer on a blocking thread.
struct FileTransfer {
    app: Arc<App>,
    caller: Caller,
    sender: Sender,
    bytes: u64,
    /// Released before the last piece is sent, or when the transfer ends.
    permit: Option<ConcurrencyPermit>,
}

impl FileTransfer {
    fn run(mut self, opened: OpenedFile, range: Option<(u64, u64)>) {
        let id = opened.id.clone();
        let packets = opened.whole.as_ref().map(|whole| whole.packets);
        let window = opened.whole.as_ref().map(|whole| whole.window.clone());
        let (from, to) = window.unzip();
        let sent = match (range, packets) {
            (Some((first, end)), _) => self.send(&opened.reader, first, end).map(|_| None),
            (None, Some(_)) => {
                let bytes = opened.reader.bytes();
                self.send(&opened.reader, 0, bytes).map(|_| packets)
            }
            (None, None) => self.follow(opened),
        };
        self.app.handle.tell_export(Export {
            who: self.caller.name.to_string(),
            address: self.caller.address,
            what: format!("dump {id}"),
            from,
            to,
            packets: sent.as_ref().ok().copied().flatten(),
            bytes: self.bytes,
            error: sent.as_ref().err().cloned(),
            ..Export::default()
        });
        drop(self.permit);
        if sent.is_ok() {
            self.sender.end();
        }
    }

    /// Sends a range of bytes, or the part of the range that the file has. Returns the end of the
    /// sent part.
    fn send(&mut self, reader: &DumpFileReader, first: u64, end: u64) -> Result<u64, String> {
        let mut at = first;
        while at < end {
            self.app.check(&self.caller)?;
            let most = usize::try_from(end - at).unwrap_or(PIECE_BYTES);
            let mut piece = vec![0; most.min(PIECE_BYTES)];
            let count = reader.read_at(&mut piece, at);
            let count = count.map_err(|error| format!("the file cannot be read: {error}"))?;
            if count == 0 {
                break;
            }
            piece.truncate(count);
            if at + count as u64 == end {
                // A client that has read all bytes may request another file at once.
                self.permit = None;
            }
            if !self.sender.send(Bytes::from(piece)) {
                return Err("the client has left".to_owned());
            }
            at += count as u64;
            self.bytes += count as u64;
        }
        Ok(at)
    }

    /// Sends a growing file until the dump is finished. Returns the dump's number of packets.
    fn follow(&mut self, opened: OpenedFile) -> Result<Option<u64>, String> {
        let OpenedFile {
            id,
            name,
            mut reader,
            mut listener,
            ..
        } = opened;
        let handle = self.app.handle.clone();
        let part = format!("{name}{PART}");
        let mut at = 0;
        let mut looked = Instant::now();
        loop {
            at = self.send(&reader, at, u64::MAX)?;
            self.app.check(&self.caller)?;
            let finished = match listener.take(GROWTH_POLL) {
                Ok(RecorderEvent::Finished(report)) if report.id == id => {
                    Some((report.packets, report.verdict))
                }
                Ok(RecorderEvent::Missed(_)) => finished(&handle, &id),
                Ok(_) | Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err("the recording has ended".to_owned());
                }
            };
            match finished {
                Some((_, Verdict::Failed)) => return Err("the dump failed".to_owned()),
                Some((packets, _)) => {
                    reader.set_finished();
                    self.send(&reader, at, u64::MAX)?;
                    return Ok(Some(packets));
                }
                None if self.sender.is_disconnected() => {
                    return Err("the client has left".to_owned());
                }
                None if looked.elapsed() < GROWTH_POLL => {}
                None => {
                    looked = Instant::now();
                    // A new reader sees the bytes that were written since. Opening fails if the
                    // dump was just finished: the file has a new name, and the event arrives soon.
                    if let Ok(more) = handle.open_dump_file(&id, &part) {
                        reader = more;
                    }
                }
            }
        }
    }
}

/// The number of packets and the verdict of a dump; `None`: not finished, or unknown.
fn finished(handle: &RecorderHandle, id: &str) -> Option<(u64, Verdict)> {
    let (stored, _) = handle.dump(id).ok().flatten()?;
    stored.verdict.map(|verdict| (stored.packets, verdict))
}

/// Whether a dump is protected from deletion.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Held)]
pub(crate) struct HeldBody {
    /// The dump's ID.
    id: String,
    /// Neither a limit nor a client can delete the dump.
    held: bool,
    /// Whether the state was the same before.
    existed: bool,
}

/// Protect a dump: neither a limit nor a client can delete it until it is released
#[utoipa::path(
    put, path = "/v1/dumps/{number}/hold", tag = "dumps",
    params(("number" = String, Path, description = "The dump's number or ID.", min_length = 1, example = "1")),
    responses((status = 200, body = HeldBody)),
)]
pub(crate) async fn hold(
    State(app): AppState,
    Extension(caller): CallerExtension,
    _: QueryParams<NoQuery>,
    PathParam(dump): PathParam<String>,
) -> Result<Json<HeldBody>, Problem> {
    set_held(app, caller, dump, true).await
}

/// Release a protected dump
#[utoipa::path(
    delete, path = "/v1/dumps/{number}/hold", tag = "dumps",
    params(("number" = String, Path, description = "The dump's number or ID.", min_length = 1, example = "1")),
    responses((status = 200, body = HeldBody)),
)]
pub(crate) async fn release(
    State(app): AppState,
    Extension(caller): CallerExtension,
    _: QueryParams<NoQuery>,
    PathParam(dump): PathParam<String>,
) -> Result<Json<HeldBody>, Problem> {
    set_held(app, caller, dump, false).await
}

async fn set_held(
    app: Arc<App>,
    caller: Caller,
    dump: String,
    held: bool,
) -> Result<Json<HeldBody>, Problem> {
    run_blocking(move || {
        let id = find(&app.handle, &dump)?.id;
        let existed = !app.handle.hold_dump(&id, held)?;
        if !existed {
            let action = match held {
                true => Action::HoldDump,
                false => Action::ReleaseDump,
            };
            app.handle.tell_change(caller.change(action).of(&id));
        }
        Ok(Json(HeldBody { id, held, existed }))
    })
    .await
}

/// Delete the files of a dump that is finished and not protected
#[utoipa::path(
    delete, path = "/v1/dumps/{number}", tag = "dumps",
    params(("number" = String, Path, description = "The dump's number or ID.", min_length = 1, example = "1")),
    responses((status = 204, description = "The files were deleted.")),
)]
pub(crate) async fn delete(
    State(app): AppState,
    Extension(caller): CallerExtension,
    _: QueryParams<NoQuery>,
    PathParam(dump): PathParam<String>,
) -> Result<StatusCode, Problem> {
    run_blocking(move || {
        let id = find(&app.handle, &dump)?.id;
        if app.handle.delete_dump(&id, Some(&caller.name))? {
            Ok(StatusCode::NO_CONTENT)
        } else {
            Err(Problem::not_found(format!("dump {dump} is gone")))
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse;

    use super::*;

    #[test]
    fn one_range_of_what_is_there_is_understood() {
        let range = |text: &str, given: &[(header::HeaderName, &str)]| {
            let mut headers = HeaderMap::new();
            headers.append(header::RANGE, text.parse().unwrap());
            for (name, value) in given {
                headers.append(name.clone(), value.parse().unwrap());
            }
            asked_range(&headers, Some("\"a\""), 100).map_err(|it| it.into_response().status())
        };
        for (text, expected) in [
            ("bytes=0-0", Some((0, 1))),
            ("bytes=10-19", Some((10, 20))),
            ("bytes=90-", Some((90, 100))),
            ("bytes=90-1000", Some((90, 100))),
            ("bytes=0-18446744073709551615", Some((0, 100))),
            ("bytes=-10", Some((90, 100))),
            ("bytes=-1000", Some((0, 100))),
            ("bytes=5-4", None),
            ("bytes=0-1,5-6", None),
            ("bytes=-", None),
            ("bytes=a-b", None),
            ("lines=1-2", None),
            ("bytes 1-2", None),
        ] {
            assert_eq!(range(text, &[]), Ok(expected), "{text}");
        }
        for text in ["bytes=100-", "bytes=200-300", "bytes=-0"] {
            assert_eq!(range(text, &[]), Err(StatusCode::RANGE_NOT_SATISFIABLE));
        }
        let of = |tag| range("bytes=1-2", &[(header::IF_RANGE, tag)]);
        assert_eq!(of("\"a\""), Ok(Some((1, 3))));
        assert_eq!(of("\"b\""), Ok(None), "another file");
        let two = range("bytes=1-2", &[(header::RANGE, "bytes=3-4")]);
        assert_eq!(two, Ok(None));
    }
}
