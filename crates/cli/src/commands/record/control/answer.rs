//! What a request is answered.

use std::{
    io::{self, BufReader, BufWriter, Write},
    os::unix::net::UnixStream,
    sync::{atomic::Ordering, mpsc::RecvTimeoutError},
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use retroscope_api::{EventBody, PinBody, StatusBody};
use retroscope_recorder::{
    CommandError, Event, Handle, Query, QueryError, QueryReport, Stretch, SubDirectory, parse_time,
};
use retroscope_ring::Mode;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};

use super::{Busy, QUERIES_MAX, Shared, refusal, write};
use crate::{
    commands::protocol::{Request, StretchText, WhenFull},
    units::duration,
};

/// How long a listener's thread waits for news before it looks whether the client is there.
const LISTENER_LOOK: Duration = Duration::from_secs(1);
/// Bytes of a capture file in a line.
const DATA_BYTES: usize = 48 << 10;

/// Answers a request. The error: the client is gone.
pub(super) fn answer(
    request: &[u8],
    reader: &mut BufReader<&UnixStream>,
    stream: &UnixStream,
    shared: &Shared,
) -> io::Result<()> {
    let request = match serde_json::from_slice::<Request>(request) {
        Ok(request) => request,
        Err(error) => return write(stream, &refusal(&format!("not a request: {error}"))),
    };
    let is_query = matches!(request, Request::Query { .. });
    let Some(_busy) = Busy::new(shared, is_query) else {
        let why = format!("{QUERIES_MAX} queries run, which is the limit: try again");
        return write(stream, &refusal(&why));
    };
    let handle = &shared.handle;
    match request {
        Request::Query {
            expression,
            stretch,
        } => query(handle, expression, &stretch, stream),
        Request::Events { from } => events(handle, from, reader, stream),
        Request::Stop {} => {
            // Before the answer, which nobody may be there to hear. The end waits for who is busy.
            shared.stop.store(true, Ordering::SeqCst);
            handle.stop();
            write(stream, &json!({ "ok": true }))
        }
        Request::Reload {} => {
            let none = || Err("the recording was started without --config".to_owned());
            let reloader = shared.reloader.as_ref();
            let answer = match reloader.map_or_else(none, |reloader| reloader.reload()) {
                Ok((told, changed)) => json!({ "ok": true, "changed": changed, "report": told }),
                Err(why) => refusal(&why),
            };
            write(stream, &answer)
        }
        request => {
            let answer = command(handle, request);
            write(stream, &answer.unwrap_or_else(|why| refusal(&why)))
        }
    }
}

/// The commands whose answer is one line.
fn command(handle: &Handle, request: Request) -> Result<Value, String> {
    let said = |error: CommandError| error.to_string();
    Ok(match request {
        Request::Trigger { key, window } => {
            let request = window.request()?;
            let triggered = handle.trigger(key.as_deref(), request).map_err(said)?;
            json!({ "ok": true, "dump": triggered.dump, "existed": triggered.existed })
        }
        Request::Rules {} => {
            let rule = |rule: &retroscope_recorder::RuleStatus| {
                json!({
                    "name": rule.name,
                    "expression": rule.expression,
                    "enabled": rule.is_enabled,
                    "configured": rule.is_configured,
                    "hits": rule.hits,
                    "past_seconds": rule.request.past.map(|past| past.as_secs_f64()),
                    "future_seconds": rule.request.future.map(|future| future.as_secs_f64()),
                    "packets": rule.request.packets_max,
                    "bytes": rule.request.bytes_max,
                    "dump": rule.request.dump,
                    "into": rule.request.into.as_ref().map(SubDirectory::as_str),
                    "asked_by": rule.request.asked_by,
                    "hold_off_seconds": rule.request.hold_off.map(|time| time.as_secs_f64()),
                    "max_dumps": rule.request.max_dumps,
                    "dumps_per_minute": rule.request.dumps_per_minute,
                    "bytes_per_hour": rule.request.bytes_per_hour,
                })
            };
            let rules: Vec<Value> = handle.rules().iter().map(rule).collect();
            json!({ "ok": true, "rules": rules })
        }
        Request::AddRule {
            name,
            expression,
            window,
            limits,
        } => {
            let request = window.rule_request(&limits)?;
            let existed = handle.add_rule(&name, &expression, &request);
            json!({ "ok": true, "existed": existed.map_err(said)? })
        }
        Request::ChangeRule {
            name,
            expression,
            window,
            limits,
        } => {
            let request = window.rule_request(&limits)?;
            let changed = handle.change_rule(&name, &expression, &request);
            json!({ "ok": true, "changed": changed.map_err(said)? })
        }
        Request::RemoveRule { name } => {
            let existed = handle.remove_rule(&name).map_err(said)?;
            json!({ "ok": true, "existed": existed })
        }
        Request::EnableRule { name, enabled } => {
            let changed = handle.enable_rule(&name, enabled).map_err(said)?;
            json!({ "ok": true, "changed": changed })
        }
        Request::Pin { name, stretch } => {
            let stretch = read_stretch(&stretch)?;
            let (pin, existed) = handle.pin(&name, stretch).map_err(said)?;
            json!({ "ok": true, "pin": PinBody::from(&pin), "existed": existed })
        }
        Request::Unpin { name } => {
            let existed = handle.unpin(&name).map_err(said)?;
            json!({ "ok": true, "existed": existed })
        }
        Request::Status {} => {
            let status = handle.status().map_err(said)?;
            with_ok(to_json(&StatusBody::from(&status)))
        }
        Request::WhenFull { mode } => {
            handle.set_when_full(mode.into()).map_err(said)?;
            json!({ "ok": true })
        }
        Request::Query { .. } | Request::Events { .. } | Request::Reload {} | Request::Stop {} => {
            refusal("answered elsewhere")
        }
    })
}

impl From<WhenFull> for Mode {
    fn from(when_full: WhenFull) -> Self {
        match when_full {
            WhenFull::Record => Self::Record,
            WhenFull::Protect => Self::Protect,
        }
    }
}

/// Times as users write them, as the recorder takes them.
fn read_stretch(text: &StretchText) -> Result<Stretch, String> {
    let read = |text: &Option<String>| text.as_deref().map(parse_time).transpose();
    let last = text.last.as_deref().map(duration).transpose()?;
    let stretch = Stretch {
        from_ns: read(&text.from)?,
        to_ns: read(&text.to)?,
        last_ns: last.map(|last| i64::try_from(last.as_nanos()).unwrap_or(i64::MAX)),
    };
    if last.is_some() && (text.from.is_some() || text.to.is_some()) {
        return Err("\"last\" stands alone, without \"from\" and \"to\"".to_owned());
    }
    if stretch
        .from_ns
        .zip(stretch.to_ns)
        .is_some_and(|(from, to)| from > to)
    {
        return Err("\"to\" is before \"from\"".to_owned());
    }
    Ok(stretch)
}

/// Packets of the ring: lines with pieces of a capture file, then one with its verdict. They are read as the client takes them; what is
/// overwritten meanwhile, the verdict tells.
fn query(
    handle: &Handle,
    expression: String,
    stretch: &StretchText,
    stream: &UnixStream,
) -> io::Result<()> {
    let ask = || -> Result<QueryReport, String> {
        let stretch = read_stretch(stretch)?;
        let query = Query {
            expression,
            from_ns: stretch.from_ns,
            to_ns: stretch.to_ns,
            last_ns: stretch.last_ns,
            ..Query::default()
        };
        let answer = handle.query(&query).map_err(|error| match error {
            QueryError::Filter(error) => error.render(),
            error => error.to_string(),
        })?;
        let mut out = BufWriter::with_capacity(DATA_BYTES, Data(stream));
        let report = answer
            .write_to(&mut out)
            .map_err(|error| error.to_string())?;
        out.flush().map_err(|error| error.to_string())?;
        Ok(report)
    };
    let answer = match ask() {
        Ok(report) => json!({ "ok": true, "report": report, "reasons": report.reasons() }),
        Err(why) => refusal(&why),
    };
    write(stream, &answer)
}

/// A capture file, as lines to a client.
struct Data<'a>(&'a UnixStream);

impl Write for Data<'_> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        for piece in data.chunks(DATA_BYTES) {
            let text = BASE64_STANDARD.encode(piece);
            write(self.0, &json!({ "ok": true, "data": text }))?;
        }
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// News, until the recording ends, or the client says something, or leaves.
fn events(
    handle: &Handle,
    from: Option<u64>,
    reader: &BufReader<&UnixStream>,
    stream: &UnixStream,
) -> io::Result<()> {
    let mut listener = handle.subscribe(from);
    write(stream, &json!({ "ok": true, "next": listener.cursor() }))?;
    loop {
        match listener.take(LISTENER_LOOK) {
            Ok(event) => write(stream, &event_json(&event, listener.cursor()))?,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return write(stream, &json!({ "ok": true, "event": "end" }));
            }
        }
        let now = Timespec::default();
        let mut said = [PollFd::new(stream, PollFlags::IN)];
        let is_said = !reader.buffer().is_empty() || poll(&mut said, Some(&now)) != Ok(0);
        if is_said {
            return Ok(());
        }
    }
}

/// Structs of numbers and strings are always JSON.
fn to_json(body: &impl serde::Serialize) -> Value {
    serde_json::to_value(body).unwrap_or_default()
}

/// An answer with these fields.
fn with_ok(mut fields: Value) -> Value {
    fields["ok"] = true.into();
    fields
}

/// `next` is the number of the event behind it.
fn event_json(event: &Event, next: u64) -> Value {
    let (kind, body) = EventBody::of(event);
    let mut fields = to_json(&body);
    fields["event"] = kind.into();
    fields["next"] = next.into();
    with_ok(fields)
}
