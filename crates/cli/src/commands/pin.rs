//! `retroscope pin`, `retroscope unpin`: keep the packets of a time range in the ring.

use std::process::ExitCode;

use retroscope_api::client::{ApiRequest, Method, target};
use serde_json::{Map, Value, json};

use super::{
    remote::{RemoteArgs, ask, printable},
    stretch::StretchArgs,
};
use crate::{
    failure::{Failure, put, put_json, say},
    units::counted,
};

/// Keep the packets of a time range in the ring [default: all packets up to now].
///
/// `retroscope status` lists the pins.
#[derive(Debug, clap::Args)]
#[command(after_help = "Exit codes: 0 done, 1 refused, or no recorder there, 2 wrong arguments.")]
pub(crate) struct Args {
    /// Name the pin, for `retroscope unpin`
    name: String,

    #[command(flatten)]
    stretch: StretchArgs,

    /// Print one JSON object instead of the sentence
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    remote: RemoteArgs,
}

/// Remove a pin, so that its packets can be overwritten.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit codes: 0 done, 1 refused, no such pin, or no recorder there, 2 wrong arguments."
)]
pub(crate) struct UnpinArgs {
    /// Remove the pin of this name
    name: String,

    #[command(flatten)]
    remote: RemoteArgs,
}

/// Runs `pin`.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let stretch = args.stretch.parameters()?;
    let fields = stretch.into_iter();
    let body: Map<String, Value> = fields
        .map(|(name, text)| (name.to_owned(), text.into()))
        .collect();
    let path = target(&["v1", "pins", &args.name], &[]);
    let request = ApiRequest::new(Method::PUT, path).json(body.into());
    let client = args.remote.client()?;
    let answer = client.send(request).map_err(super::remote::failure)?;
    let existed = answer.status() == 200;
    let mut pin = answer.json().map_err(super::remote::failure)?;
    if args.json {
        pin["existed"] = json!(existed);
        return put_json(&pin);
    }
    let text = |name: &str| pin[name].as_str().map(printable);
    let from = text("from").unwrap_or_else(|| "the oldest packet".to_owned());
    let to = text("to").unwrap_or_default();
    let name = printable(&args.name);
    if let Some(gone @ 1..) = pin["evicted_before"].as_u64() {
        let gone = counted(gone, "packet");
        say(&format!(
            "pin '{name}': up to {gone} of its time had been overwritten before"
        ));
    }
    let how = match (existed, pin["revoked"] == true) {
        (_, true) => "was revoked, and keeps nothing of",
        (true, false) => "replaces an older pin, and keeps",
        (false, false) => "keeps",
    };
    put(&format!("pin '{name}' {how} {from} to {to}\n"))
}

/// Runs `unpin`.
pub(crate) fn unpin(args: &UnpinArgs) -> Result<ExitCode, Failure> {
    let path = target(&["v1", "pins", &args.name], &[]);
    ask(
        &args.remote.client()?,
        ApiRequest::new(Method::DELETE, path),
    )?;
    Ok(ExitCode::SUCCESS)
}
