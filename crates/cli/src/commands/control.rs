//! `retroscope events`, `when-full`, `reload`, `stop`: commands that watch or control a running
//! recorder.

use std::process::ExitCode;

use retroscope_api::client::{ApiRequest, Method, target};
use serde_json::{Value, json};

use super::remote::{RemoteArgs, ask, failure, printable};
use crate::failure::{Failure, put, put_json};

/// Print the events of a running recorder (--api) as they happen, one JSON object a line.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit codes: 0 the recording ended, or nobody reads any more, 1 no recorder there, or the connection was lost, 2 wrong arguments."
)]
pub(crate) struct EventsArgs {
    /// Start with the event of this number, the `next` of an earlier event, if the recorder still
    /// keeps that event; 0: all kept events
    #[arg(long, value_name = "NUMBER")]
    from: Option<u64>,

    #[command(flatten)]
    remote: RemoteArgs,
}

/// Choose what happens when dumps and pins need all packets in the ring.
#[derive(Debug, clap::Args)]
#[command(after_help = "Exit codes: 0 done, 1 refused, or no recorder there, 2 wrong arguments.")]
pub(crate) struct WhenFullArgs {
    #[arg(value_enum)]
    mode: WhenFullMode,

    #[command(flatten)]
    remote: RemoteArgs,
}

/// Reload the file of `record --config`, like SIGHUP. If the file has an error, nothing changes.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit codes: 0 done, 1 refused, and nothing changed, or no recorder there, 2 wrong arguments."
)]
pub(crate) struct ReloadArgs {
    /// Print one JSON object instead of a sentence
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    remote: RemoteArgs,
}

/// Stop a recording, like SIGINT. Open dumps are finished.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit codes: 0 it ends, 1 refused, or no recorder there, 2 wrong arguments."
)]
pub(crate) struct StopArgs {
    #[command(flatten)]
    remote: RemoteArgs,
}

/// Behavior of a full ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum WhenFullMode {
    /// Keep recording: the oldest dump or pin that is in the way loses the packets that it has not
    /// written
    Record,
    /// Keep the packets of dumps and pins: new packets without room are dropped and counted
    Protect,
}

/// Runs `when-full`.
pub(crate) fn when_full(args: &WhenFullArgs) -> Result<ExitCode, Failure> {
    let mode = match args.mode {
        WhenFullMode::Record => "record",
        WhenFullMode::Protect => "protect",
    };
    let request = ApiRequest::new(Method::PUT, "/v1/when-full").json(json!({ "mode": mode }));
    ask(&args.remote.client()?, request)?;
    Ok(ExitCode::SUCCESS)
}

/// Runs `reload`.
pub(crate) fn reload(args: &ReloadArgs) -> Result<ExitCode, Failure> {
    let answer = ask(
        &args.remote.client()?,
        ApiRequest::new(Method::POST, "/v1/reload"),
    )?;
    if args.json {
        return put_json(&answer);
    }
    let report = answer["report"].as_str().unwrap_or_default();
    put(&format!("reloaded {}\n", printable(report)))
}

/// Runs `stop`.
pub(crate) fn stop(args: &StopArgs) -> Result<ExitCode, Failure> {
    ask(
        &args.remote.client()?,
        ApiRequest::new(Method::POST, "/v1/stop"),
    )?;
    Ok(ExitCode::SUCCESS)
}

/// Runs `events`.
pub(crate) fn events(args: &EventsArgs) -> Result<ExitCode, Failure> {
    let from = args.from.map(|from| from.to_string());
    let parameters: Vec<(&str, &str)> = from.iter().map(|from| ("from", from.as_str())).collect();
    let client = args.remote.client()?;
    let mut answer = client
        .send(ApiRequest::get(target(&["v1", "events"], &parameters)))
        .map_err(failure)?;
    let mut lines = EventLines::default();
    while let Some(piece) = answer.piece().map_err(failure)? {
        let text = lines.push(&piece);
        // Stop if the reader of stdout has closed the pipe.
        if !text.is_empty() && !put_all(&text)? {
            break;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes to stdout. Returns `false` if the reader of stdout has closed the pipe.
fn put_all(text: &str) -> Result<bool, Failure> {
    use std::io::{ErrorKind, Write as _, stdout};
    let mut out = stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        written => {
            let failed = |error| Failure::failed(format_args!("cannot write stdout: {error}"));
            written.map_err(failed).map(|()| true)
        }
    }
}

/// Converts server-sent events to lines of JSON: HTML, section 9.2.6.
#[derive(Debug, Default)]
struct EventLines {
    /// The start of an incomplete line.
    pending: Vec<u8>,
    kind: String,
    data: String,
    next: Option<u64>,
}

impl EventLines {
    /// Appends received bytes. Returns the lines of the completed events with data.
    fn push(&mut self, piece: &[u8]) -> String {
        self.pending.extend_from_slice(piece);
        let mut told = String::new();
        while let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.pending.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            let line = line.trim_end_matches(['\n', '\r']);
            if line.is_empty() {
                told.extend(self.event());
                continue;
            }
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "event" => value.clone_into(&mut self.kind),
                "data" => value.clone_into(&mut self.data),
                "id" => self.next = value.parse().ok(),
                _ => {}
            }
        }
        told
    }

    /// Takes the completed event as a line of JSON. `None`: the data is missing or is no JSON. For
    /// example, an empty line after a comment or an `id` completes an event without data.
    fn event(&mut self) -> Option<String> {
        let (kind, data) = (
            std::mem::take(&mut self.kind),
            std::mem::take(&mut self.data),
        );
        let fields: Value = serde_json::from_str(&data).ok()?;
        let mut event = json!({ "event": kind, "next": self.next });
        let all = event.as_object_mut()?;
        all.extend(fields.as_object().cloned().unwrap_or_default());
        // `kind` has the same word as `event`.
        all.remove("kind");
        Some(format!("{event}\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_lines_wherever_the_stream_is_cut() {
        let stream = "retry: 1000\nid: 3\n\n:\n\nid: 4\nevent: notice\ndata: {\"kind\":\"notice\",\"text\":\"ü\"}\n\nid: 5\nevent: end\ndata: {}\n\n";
        let expected =
            "{\"event\":\"notice\",\"next\":4,\"text\":\"ü\"}\n{\"event\":\"end\",\"next\":5}\n";
        for cut in 0..=stream.len() {
            let mut lines = EventLines::default();
            let first = lines.push(&stream.as_bytes()[..cut]);
            let told = first + &lines.push(&stream.as_bytes()[cut..]);
            assert_eq!(told, expected, "cut at {cut}");
        }
    }
}
