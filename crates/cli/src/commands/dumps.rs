//! `retroscope dumps`: what a recorder that runs has written.

use std::process::ExitCode;

use retroscope_api::client::Ask;
use serde_json::Value;

use super::{
    columns::columns,
    remote::{RemoteArgs, ask, printable},
};
use crate::failure::{Failure, put, put_json};

/// List the dumps of a recorder that runs with --api.
#[derive(Debug, clap::Args)]
#[command(after_help = "Exit codes: 0 done, 1 refused, or no recorder there, 2 wrong arguments.")]
pub(crate) struct Args {
    /// Print JSON objects, as the API gives them
    #[arg(long, global = true)]
    json: bool,

    #[command(flatten)]
    remote: RemoteArgs,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let client = args.remote.client()?;
    let dumps = ask(&client, Ask::get("/v1/dumps"))?;
    if args.json {
        return put_json(&dumps);
    }
    put(&table(&dumps))
}

fn table(dumps: &Value) -> String {
    let mut rows = vec![["dump", "rule", "trigger", "packets", "verdict"].map(str::to_owned)];
    rows.extend(dumps["dumps"].as_array().into_iter().flatten().map(row));
    columns(&rows, &[3])
}

fn row(dump: &Value) -> [String; 5] {
    let text = |name: &str| dump[name].as_str().map(printable).unwrap_or_default();
    let number = |name: &str| {
        dump[name]
            .as_u64()
            .map(|n| n.to_string())
            .unwrap_or_default()
    };
    [
        number("number"),
        text("rule"),
        text("trigger_time"),
        number("packets"),
        text("verdict"),
    ]
}
