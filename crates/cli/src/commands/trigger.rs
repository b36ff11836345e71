//! `retroscope trigger`: starts a dump by hand.

use std::process::ExitCode;

use retroscope_api::client::{ApiRequest, Method};

use super::{
    remote::{RemoteArgs, ask, printable},
    window::{WindowArgs, fields},
};
use crate::failure::{Failure, put, put_json};

/// Start a dump, like SIGUSR1. The recorder's options apply unless the arguments replace them.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit codes: 0 done, the dump is open; 1 refused, or no recorder there; 2 wrong arguments."
)]
pub(crate) struct Args {
    /// Name this trigger. If the request is repeated with the same NAME, the recorder starts no
    /// second dump (it remembers the last 256 names)
    #[arg(long, value_name = "NAME")]
    key: Option<String>,

    #[command(flatten)]
    window: WindowArgs,

    /// Print one JSON object instead of a sentence
    #[arg(long)]
    json: bool,

    /// Dump the packets that match this expression, like --dump; '' selects all packets
    #[arg(value_name = "FILTER", conflicts_with = "dump")]
    expression: Vec<String>,

    #[command(flatten)]
    remote: RemoteArgs,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let mut body = fields(&args.window);
    if !args.expression.is_empty() {
        body.insert("dump".to_owned(), args.expression.join(" ").into());
    }
    let mut request = ApiRequest::new(Method::POST, "/v1/triggers").json(body.into());
    if let Some(key) = &args.key {
        request = request.header("idempotency-key", key);
    }
    let answer = ask(&args.remote.client()?, request)?;
    if args.json {
        return put_json(&answer);
    }
    let (dump, existed) = (&answer["dump"], answer["existed"] == true);
    let what = if existed { "was there" } else { "is open" };
    let end = answer["window_end"].as_str().map(printable);
    let end = end.map_or_else(String::new, |end| format!(", its window ends at {end}"));
    put(&format!("dump {dump} {what}{end}\n"))
}
