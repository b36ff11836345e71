//! `retroscope dumps`: finished and open dumps of a running recorder.

use std::{
    io::{ErrorKind, Write},
    path::PathBuf,
    process::ExitCode,
};

use retroscope_api::client::{ApiRequest, Client, Method, target};
use serde_json::{Value, json};

use super::{
    columns::columns,
    remote::{RemoteArgs, ask, failure, printable},
    target::OutputTarget,
};
use crate::{
    failure::{Failure, put, put_json, say},
    units::show_size,
};

/// List, fetch, protect or delete the dumps of a running recorder (--api).
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A dump is named by its number, or by its ID, which its files' names begin with.\n\n\
                  Exit codes: 0 done, 1 refused, no such dump, or no recorder there, 2 wrong arguments."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<DumpsCommand>,

    /// Print JSON objects of the API
    #[arg(long, global = true)]
    json: bool,

    #[command(flatten)]
    remote: RemoteArgs,
}

#[derive(Debug, clap::Subcommand)]
enum DumpsCommand {
    /// List the dumps (default)
    List,
    /// Copy the capture file of a dump. If the dump is open, keep copying until the dump is
    /// finished
    Get(GetArgs),
    /// Protect a dump from deletion, by limits and by users
    Hold {
        /// Number or ID of the dump
        dump: String,
    },
    /// Remove the protection of a dump
    Release {
        /// Number or ID of the dump
        dump: String,
    },
    /// Delete the files of a dump that is finished and not protected
    Delete {
        /// Number or ID of the dump
        dump: String,
    },
}

#[derive(Debug, clap::Args)]
struct GetArgs {
    /// Copy the dump with this number or ID
    dump: String,

    /// Write to FILE and overwrite an existing FILE; - is stdout
    #[arg(short, value_name = "FILE")]
    write: PathBuf,

    /// Copy the file of this name, if the dump has several files [default: the first]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    let client = args.remote.client()?;
    let hold = |dump: &str| target(&["v1", "dumps", dump, "hold"], &[]);
    match args.command.unwrap_or(DumpsCommand::List) {
        DumpsCommand::List => {
            let dumps = list(&client)?;
            if args.json {
                return put_json(&json!({ "dumps": dumps }));
            }
            put(&table(&dumps))
        }
        DumpsCommand::Get(wanted) => get(&client, &wanted, args.json),
        DumpsCommand::Hold { dump } => {
            let answer = ask(&client, ApiRequest::new(Method::PUT, hold(&dump)))?;
            told(&dump, &answer, args.json, ["is held", "was held"])
        }
        DumpsCommand::Release { dump } => {
            let answer = ask(&client, ApiRequest::new(Method::DELETE, hold(&dump)))?;
            told(&dump, &answer, args.json, ["is released", "was not held"])
        }
        DumpsCommand::Delete { dump } => {
            let path = target(&["v1", "dumps", &dump], &[]);
            let answer = ask(&client, ApiRequest::new(Method::DELETE, path))?;
            told(&dump, &answer, args.json, ["is deleted"; 2])
        }
    }
}

fn told(
    dump: &str,
    answer: &Value,
    json: bool,
    [new, old]: [&str; 2],
) -> Result<ExitCode, Failure> {
    if json {
        return put_json(answer);
    }
    let what = if answer["existed"] == true { old } else { new };
    put(&format!("dump {} {what}\n", printable(dump)))
}

/// Copies the file as it arrives.
fn get(client: &Client, wanted: &GetArgs, json: bool) -> Result<ExitCode, Failure> {
    let out = OutputTarget::new(wanted.write.clone());
    out.refuse_stdout(json)?;
    let name: Vec<_> = wanted.name.iter().map(|it| ("name", it.as_str())).collect();
    let path = target(&["v1", "dumps", &wanted.dump, "file"], &name);
    // If the recorder refuses the request, no file is created.
    let mut answer = client.send(ApiRequest::get(path)).map_err(failure)?;
    let mut file = out
        .open()
        .map_err(|error| Failure::failed(format_args!("{error:#}")))?;
    while let Some(piece) = answer.piece().map_err(failure)? {
        match file.write_all(&piece) {
            // The reader of the output has closed the pipe.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(ExitCode::SUCCESS),
            written => written
                .map_err(|error| Failure::failed(format_args!("cannot write {out}: {error}")))?,
        }
    }
    drop(answer);
    let about = target(&["v1", "dumps", &wanted.dump], &[]);
    let Ok(dump) = ask(client, ApiRequest::get(about)) else {
        say(&format!("{out}: all of it; the recorder has ended since"));
        return Ok(ExitCode::SUCCESS);
    };
    if json {
        return put_json(&dump);
    }
    let [_, rule, _, packets, verdict, _] = row(&dump);
    say(&format!(
        "{out}: {packets} packets of rule '{rule}': {verdict}"
    ));
    Ok(ExitCode::SUCCESS)
}

/// All dumps, page by page.
fn list(client: &Client) -> Result<Vec<Value>, Failure> {
    let mut dumps = Vec::new();
    let mut after = None;
    loop {
        let mut parameters = vec![("limit", "1000")];
        parameters.extend(after.as_deref().map(|after| ("after", after)));
        let mut page = ask(
            client,
            ApiRequest::get(target(&["v1", "dumps"], &parameters)),
        )?;
        if let Some(more) = page["dumps"].as_array_mut() {
            dumps.append(more);
        }
        after = page["next"].as_str().map(str::to_owned);
        if after.is_none() {
            return Ok(dumps);
        }
    }
}

/// The dumps as columns of text.
fn table(dumps: &[Value]) -> String {
    let mut rows =
        vec![["dump", "rule", "trigger", "packets", "verdict", "files"].map(str::to_owned)];
    rows.extend(dumps.iter().map(row));
    columns(&rows, &[3])
}

/// A row of the table: number or ID, rule, trigger time, packets, verdict, and state of the files.
fn row(dump: &Value) -> [String; 6] {
    let stored = &dump["stored"];
    let of = |name: &str| match &dump["report"][name] {
        Value::Null => stored[name].clone(),
        value => value.clone(),
    };
    let text = |name: &str| of(name).as_str().map(printable).unwrap_or_default();
    let number = |name: &str| of(name).as_u64().map(|n| n.to_string());
    let is_open = stored["is_open"] == true;
    let files = match stored["bytes"].as_u64() {
        None => "none any more".to_owned(),
        Some(bytes) if stored["is_held"] == true => format!("{}, held", show_size(bytes)),
        Some(bytes) => show_size(bytes),
    };
    [
        match dump["number"].as_u64() {
            Some(number) => number.to_string(),
            None => text("id"),
        },
        text("rule"),
        text("trigger_time"),
        if is_open {
            String::new()
        } else {
            number("packets").unwrap_or_default()
        },
        if is_open {
            "open".to_owned()
        } else {
            text("verdict")
        },
        files,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dumps_are_told_in_columns_whatever_became_of_them() {
        let report = |number: u64, id: &str| json!({ "number": number, "id": id, "rule": "udp", "trigger_time": "T", "packets": 12, "verdict": "complete" });
        let stored = |number: Option<u64>, id: &str, held: bool| {
            json!({ "number": number, "id": id, "is_open": number.is_some(), "is_held": held, "rule": "tcp\u{1b}",
            "trigger_time": "U", "packets": 0, "bytes": 2048, "verdict": number.is_none().then_some("incomplete") })
        };
        let dump = |number: Option<u64>, stored: Value, report: Value| json!({ "number": number, "stored": stored, "report": report });
        let dumps = [
            dump(None, stored(None, "old", false), Value::Null),
            dump(Some(1), Value::Null, report(1, "a")),
            dump(Some(2), stored(None, "b", true), report(2, "b")),
            dump(Some(3), stored(Some(3), "c", false), Value::Null),
        ];
        let expected = "dump  rule  trigger  packets  verdict     files\n\
                        old   tcp?  U              0  incomplete  2 KiB\n\
                        1     udp   T             12  complete    none any more\n\
                        2     udp   T             12  complete    2 KiB, held\n\
                        3     tcp?  U                 open        2 KiB\n";
        assert_eq!(table(&dumps), expected);
    }
}
