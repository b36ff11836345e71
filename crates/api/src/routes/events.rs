//! The stream of events.
#![expect(
    unused_qualifications,
    reason = "the macro of utoipa qualifies the names of parameters"
)]

use std::{
    sync::mpsc::RecvTimeoutError,
    time::{Duration, Instant},
};

use axum::{
    Extension,
    body::Bytes,
    extract::State,
    http::{HeaderMap, Version, header},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use tokio::task::spawn_blocking;
use utoipa::IntoParams;

use super::{AppState, CallerExtension};
use crate::{
    bodies::{event::EventBody, request::count},
    extract::QueryParams,
    problem::Problem,
    stream::{Sender, stream},
};

/// Interval at which a silent listener's thread checks whether the client is still connected.
const CLIENT_CHECK_PERIOD: Duration = Duration::from_secs(1);
/// Time without an event after which the client gets an empty comment.
const SILENCE: Duration = Duration::from_secs(15);

/// Selects the first event.
#[derive(Debug, Clone, Copy, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct EventsQuery {
    /// The number of the first event, if it is among the last 1024. If left out: `Last-Event-ID`,
    /// or the next event.
    #[serde(default, deserialize_with = "count")]
    from: Option<u64>,
}

/// Events as server-sent events
///
/// `event` is `triggered`, `finished`, `compressed`, `posted`, `deleted`, `alert`, `exported`,
/// `changed`, `refused`, `notice`, `missed`, or as last event `end`. `data` is a JSON object. `id`
/// is the number of the next event, from which a client can resume. Browsers and libraries send it
/// as `Last-Event-ID`. A client that is too slow gets an event `missed` with the number of missed
/// events. The event `end` has `why` if the token was removed or changed, or has expired, or if the
/// session has ended.
#[utoipa::path(
    get, path = "/v1/events", tag = "status",
    params(EventsQuery, ("Last-Event-ID" = Option<u64>, Header, description = "The `id` of the last event that the client received.")),
    responses((status = 200, content_type = "text/event-stream", body = EventBody)),
)]
pub(crate) async fn events(
    State(app): AppState,
    Extension(caller): CallerExtension,
    QueryParams(wanted): QueryParams<EventsQuery>,
    version: Version,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let last = headers.get("last-event-id").map(|last| {
        let number = last.to_str().ok().and_then(|text| text.trim().parse().ok());
        number.ok_or_else(|| {
            Problem::malformed("`Last-Event-ID` is the number that an event had as its `id`")
        })
    });
    let from = wanted.from.or(last.transpose()?);
    let permit = app.listener_limit.take(&caller)?;
    let (sender, body) = stream(version)?;
    spawn_blocking(move || {
        let _permit = permit;
        let mut listener = app.handle.subscribe(from);
        // A message without data is not an event. This message sets the client's reconnection time,
        // 1000 ms, and the number to resume from: HTML, section 9.2.6.
        let mut text = format!("retry: 1000\nid: {}\n\n", listener.cursor());
        let mut told = Instant::now();
        loop {
            if !text.is_empty() {
                told = Instant::now();
                if !sender.send(Bytes::from(std::mem::take(&mut text))) {
                    return;
                }
            }
            let next = listener.cursor();
            let heard = listener.take(CLIENT_CHECK_PERIOD);
            if let Err(why) = app.check_unused(&caller) {
                return end(sender, next, Some(&why));
            }
            match heard {
                Ok(event) => {
                    let (kind, data) = EventBody::of(&event);
                    text = message(kind, &data, listener.cursor());
                }
                Err(RecvTimeoutError::Timeout) if sender.is_disconnected() => return,
                Err(RecvTimeoutError::Timeout) if told.elapsed() >= SILENCE => {
                    text = ":\n\n".to_owned();
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return end(sender, listener.cursor(), None),
            }
        }
    });
    Ok(([(header::CONTENT_TYPE, "text/event-stream")], body).into_response())
}

/// Sends the last event. `why`: the reason if the stream ends for this listener only; `None`: the
/// recording has ended.
fn end(sender: Sender, next: u64, why: Option<&str>) {
    let data = EventBody::End { why };
    if sender.send(Bytes::from(message("end", &data, next))) {
        sender.end();
    }
}

/// Formats an event. `next` is the number of the following event.
fn message(kind: &str, data: &EventBody<'_>, next: u64) -> String {
    // Strings, numbers and reports serialize without an error, in one line.
    let data = serde_json::to_string(data).unwrap_or_default();
    format!("id: {next}\nevent: {kind}\ndata: {data}\n\n")
}
