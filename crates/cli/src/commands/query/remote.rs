//! Queries a running recorder over HTTP.
//!
//! ^C asks the recorder to end a follow. The answer then ends with a verdict.

use std::{
    fs::File,
    io::{self, ErrorKind, Write},
};

use retroscope_api::client::{ApiAnswer, ApiRequest, Client, ClientError, Method, target};
use retroscope_recorder::Cancel;
use serde_json::{Value, json};

use super::{Args, QueryOutcome, blocks::Blocks};
use crate::{
    commands::{remote::failure, target::OutputTarget},
    failure::Failure,
};

/// Sends the query and writes the packets to the file that `open` returns. With `--count`, opens
/// no file.
pub(super) fn run(
    args: &Args,
    cancel: &Cancel,
    open: impl FnOnce(&OutputTarget) -> Result<File, Failure>,
) -> Result<QueryOutcome, Failure> {
    let client = args.remote.client()?;
    let parameters = args.parameters()?;
    let parameters: Vec<(&str, &str)> = parameters
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    let request = ApiRequest::get(target(&["v1", "query"], &parameters));
    // The answer to a follow has data about every second, so the default limit of 60 s without data
    // applies. Another query may send nothing for an hour.
    let request = match args.follow {
        true => request,
        false => request.patient(),
    };
    // If the recorder refuses the query, no file is created.
    let answer = client.send(request).map_err(failure)?;
    let Some(target) = args.target() else {
        return Ok(QueryOutcome::Answered(record(
            answer.json().map_err(failure)?,
        )));
    };
    let place = answer.header("location").map(str::to_owned);
    let file = open(&target)?;
    let mut blocks = Blocks::default();
    let end = |place: &str| client.send(ApiRequest::new(Method::DELETE, place));
    let end = || _ = place.as_deref().map(end);
    match copy(answer, file, &mut blocks, (cancel, &end)) {
        Ok(()) => {}
        Err(TransferError::Answer(error)) => return Err(failure(error)),
        Err(TransferError::File(error)) if error.kind() == ErrorKind::BrokenPipe => {
            // The reader of the output has closed the pipe.
            return Ok(QueryOutcome::ReaderLeft);
        }
        Err(TransferError::File(error)) if error.kind() == ErrorKind::InvalidData => {
            let shown = args.remote.shown();
            return Err(Failure::failed(format_args!("{shown}: {error}")));
        }
        Err(TransferError::File(error)) => {
            return Err(Failure::failed(format_args!(
                "cannot write {target}: {error}"
            )));
        }
    }
    let in_file = blocks.verdict_so_far();
    verdict(&client, place.as_deref(), in_file).map(QueryOutcome::Answered)
}

/// The reason why copying ended early.
enum TransferError {
    Answer(ClientError),
    File(io::Error),
}

/// Writes the answer as it arrives. If the copy is cancelled, calls `end`.
fn copy(
    mut answer: ApiAnswer<'_>,
    mut file: impl Write,
    blocks: &mut Blocks,
    (cancel, end): (&Cancel, &dyn Fn()),
) -> Result<(), TransferError> {
    let mut is_ended = false;
    let mut look = || {
        if cancel.is_cancelled() && !std::mem::replace(&mut is_ended, true) {
            end();
        }
    };
    while let Some(piece) = answer.piece_or(&mut look).map_err(TransferError::Answer)? {
        blocks
            .push(&piece, &mut file)
            .map_err(TransferError::File)?;
        look();
    }
    file.flush().map_err(TransferError::File)
}

/// Fetches the verdict from `Location`. Without `Location`, or if the request fails, for example
/// because the recorder has ended, returns the verdict in the file, if any.
fn verdict(client: &Client, place: Option<&str>, in_file: Option<Value>) -> Result<Value, Failure> {
    let asked = place.map(|place| {
        client
            .send(ApiRequest::get(place))
            .and_then(ApiAnswer::json)
    });
    match asked {
        Some(Ok(record)) if record["report"].is_object() => Ok(record),
        Some(Ok(record)) => {
            let why = record["error"].as_str().unwrap_or("it has no verdict");
            Err(Failure::failed(why))
        }
        missing => match (in_file, missing) {
            (Some(report), _) => Ok(json!({ "report": report })),
            (None, Some(Err(error))) => Err(failure(error)),
            (None, _) => Err(Failure::failed("the recorder gives no verdict")),
        },
    }
}

/// Normalizes a JSON answer, which is a report or an object that contains a report.
fn record(answer: Value) -> Value {
    if answer["report"].is_object() {
        answer
    } else {
        let reasons = answer["reasons"].clone();
        json!({ "report": answer, "reasons": reasons })
    }
}
